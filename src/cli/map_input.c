/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/map_input.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "volunteer/lend.h"

void map_input_init(struct map_input *in, const char *const *args, size_t count)
{
	memset(in, 0, sizeof(*in));
	in->args = args;
	in->args_count = count;
	in->use_stdin = count == 0;
}

void map_input_done(struct map_input *in)
{
	if (in->lines)
		fclose(in->lines);
	strbuf_done(&in->pending);
}

static bool parse_range(const char *text, uint64_t *ret_from, uint64_t *ret_to)
{
	const char *dots = strstr(text, "..");
	char from[24];
	if (!dots || dots == text || (size_t)(dots - text) >= sizeof(from))
		return false;
	memcpy(from, text, (size_t)(dots - text));
	from[dots - text] = '\0';
	return parse_u64(from, ret_from) == 0 && parse_u64(dots + 2, ret_to) == 0 &&
	       *ret_from <= *ret_to;
}

uint64_t map_input_known(const struct map_input *in)
{
	uint64_t sum = 0, from, to;
	for (size_t i = 0; i < in->args_count; i++) {
		if (parse_range(in->args[i], &from, &to))
			sum += to - from + 1;
		else if (in->args[i][0] == '@' || strcmp(in->args[i], "-") == 0)
			return 0;
		else
			sum++;
	}
	return sum;
}

void map_input_feed(struct map_input *in)
{
	char buf[65536];
	ssize_t n = read(STDIN_FILENO, buf, sizeof(buf));
	if (n > 0)
		(void)strbuf_append(&in->pending, buf, (size_t)n); /* failure is sticky: seen below */
	else if (n == 0 || errno != EAGAIN)
		in->stdin_ended = true;
}

static int next_stdin(struct map_input *in, struct strbuf *ret, struct diag *diag)
{
	const char *nl = in->pending.len ? memchr(in->pending.data, '\n', in->pending.len) : NULL;
	size_t len = nl ? (size_t)(nl - in->pending.data) : in->pending.len;
	if (in->pending.failed || len > LEND_VALUE_MAX)
		return diag_set(diag, -EFBIG, "stdin", "a line longer than %u bytes", LEND_VALUE_MAX);
	if (!nl && !in->stdin_ended)
		return -EAGAIN;
	if (!nl && in->pending.len == 0)
		return 0;
	int r = strbuf_append(ret, in->pending.data, len);
	strbuf_consume(&in->pending, nl ? len + 1 : len);
	return r < 0 ? r : 1;
}

static int next_line(struct map_input *in, struct strbuf *ret)
{
	CLEANUP_FREE char *line = NULL;
	size_t cap = 0;
	ssize_t n = getline(&line, &cap, in->lines);
	if (n < 0) {
		fclose(in->lines);
		in->lines = NULL;
		return 0;
	}
	if (n > 0 && line[n - 1] == '\n')
		n--;
	int r = strbuf_append(ret, line, (size_t)n);
	return r < 0 ? r : 1;
}

static int next_file(const char *path, struct strbuf *ret, struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = file_read(path, LEND_VALUE_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, path, "%s", r == -EFBIG ? "larger than a value may be (4 MiB)"
								 : strerror(-r));
	r = strbuf_append(ret, text, len);
	return r < 0 ? r : 1;
}

static int open_argument(struct map_input *in, const char *arg, struct strbuf *ret,
			 struct diag *diag)
{
	if (parse_range(arg, &in->at, &in->to)) {
		in->range = true;
		return -EAGAIN;
	}
	if (strcmp(arg, "-") == 0) {
		in->use_stdin = true;
		return -EAGAIN;
	}
	if (arg[0] != '@')
		return next_file(arg, ret, diag);
	in->lines = fopen(arg + 1, "re");
	return in->lines ? -EAGAIN : diag_set(diag, -errno, arg + 1, "%s", strerror(errno));
}

int map_input_next(struct map_input *in, struct strbuf *ret, struct diag *diag)
{
	strbuf_clear(ret);
	for (;;) {
		int r;
		if (in->range) {
			r = strbuf_printf(ret, "%llu", (unsigned long long)in->at);
			in->range = in->at++ < in->to;
			return r < 0 ? r : 1;
		}
		if (in->lines) {
			r = next_line(in, ret);
			if (r != 0)
				return r;
			continue;
		}
		if (in->use_stdin) {
			r = next_stdin(in, ret, diag);
			if (r != 0)
				return r;
			in->use_stdin = false;
			continue;
		}
		if (in->next == in->args_count)
			return 0;
		r = open_argument(in, in->args[in->next++], ret, diag);
		if (r != -EAGAIN) /* a file is a value; others are opened now */
			return r;
	}
}
