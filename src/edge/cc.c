/* SPDX-License-Identifier: Apache-2.0 */
#include "edge/cc.h"

#include <errno.h>

int cc_available(void)
{
	return -EOPNOTSUPP;
}

int cc_load(const char *dir)
{
	(void)dir;
	return -EOPNOTSUPP;
}
