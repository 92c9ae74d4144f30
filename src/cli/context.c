/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/context.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

int cli_fail(const struct diag *diag)
{
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
	(void)fprintf(stderr, "reclaim: %s\n", diag_format(diag, text, sizeof(text)));
	return 1;
}

int cli_failf(const char *fmt, ...)
{
	va_list args;
	(void)fputs("reclaim: ", stderr);
	va_start(args, fmt);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fputc('\n', stderr);
	return 1;
}

void cli_print_json(json_t *value)
{
	(void)json_dumpf(value, stdout, JSON_INDENT(2) | JSON_ENCODE_ANY);
	(void)putchar('\n');
	json_decref(value);
}

int cli_identity_dir(char *buf, size_t size)
{
	const char *dir = getenv("RECLAIM_IDENTITY");
	if (dir && *dir)
		return path_format(buf, size, "%s", dir);
	const char *home = getenv("HOME");
	struct passwd *pw = home && *home ? NULL : getpwuid(getuid());
	if (pw)
		home = pw->pw_dir;
	return path_format(buf, size, "%s/.config/reclaim", home ? home : "");
}

static int read_address(const char *dir, struct cli_context *c, struct diag *diag)
{
	const char *env = getenv("RECLAIM_COORDINATOR");
	if (env && *env)
		return path_format(c->address, sizeof(c->address), "%s", env);
	char path[PATH_MAX];
	CLEANUP_FREE char *text = NULL;
	int r = path_format(path, sizeof(path), "%s/coordinator", dir);
	if (r == 0)
		r = file_read(path, sizeof(c->address) - 1, &text, NULL);
	if (r < 0)
		return diag_set(diag, r, path,
				"no coordinator known: %s; 'reclaim enrol TOKEN' writes it, or set "
				"RECLAIM_COORDINATOR",
				strerror(-r));
	text[strcspn(text, "\n")] = '\0';
	return path_format(c->address, sizeof(c->address), "%s", text);
}

int cli_context_open(struct cli_context *c)
{
	char dir[PATH_MAX];
	struct diag diag = DIAG_INIT;
	c->identity = NULL;
	int r = cli_identity_dir(dir, sizeof(dir));
	if (r == 0)
		r = read_address(dir, c, &diag);
	if (r == 0)
		r = identity_open(dir, &c->identity, &diag);
	if (r < 0)
		(void)cli_fail(&diag);
	return r;
}

void cli_context_close(struct cli_context *c)
{
	identity_free(c->identity);
	c->identity = NULL;
}

int cli_connect(const struct cli_context *c, struct http_client **ret)
{
	struct diag diag = DIAG_INIT;
	int r = http_client_open(c->identity, c->address, ret, &diag);
	if (r < 0)
		(void)cli_fail(&diag);
	return r;
}

int cli_open(struct cli_context *c, struct http_client **ret)
{
	int r = cli_context_open(c);
	return r < 0 ? r : cli_connect(c, ret);
}
