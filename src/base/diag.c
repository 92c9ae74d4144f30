/* SPDX-License-Identifier: Apache-2.0 */
#include "base/diag.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int diag_set(struct diag *diag, int err, const char *where, const char *what_fmt, ...)
{
	if (!diag)
		return err;
	(void)snprintf(diag->where, sizeof(diag->where), "%s", where ? where : "");
	va_list args;
	va_start(args, what_fmt);
	(void)vsnprintf(diag->what, sizeof(diag->what), what_fmt, args);
	va_end(args);
	return err;
}

void diag_prefix(struct diag *diag, const char *prefix)
{
	if (!diag)
		return;
	char inner[DIAG_WHERE_MAX];
	memcpy(inner, diag->where, sizeof(inner));
	/* Cutting a long place is better than failing to report it. */
	if (inner[0])
		(void)!snprintf(diag->where, sizeof(diag->where), "%.120s: %.130s", prefix, inner);
	else
		(void)snprintf(diag->where, sizeof(diag->where), "%s", prefix);
}

const char *diag_format(const struct diag *diag, char *buf, unsigned long buf_size)
{
	const char *colon = diag->where[0] && diag->what[0] ? ": " : "";
	(void)snprintf(buf, buf_size, "%s%s%s", diag->where, colon, diag->what);
	return buf;
}
