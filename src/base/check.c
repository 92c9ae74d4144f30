/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

_Noreturn void check_failed(const char *expr, const char *file, int line)
{
	(void)fprintf(stderr, "%s:%d: CHECK(%s) failed: a bug, please report it\n", file, line, expr);
	abort();
}
