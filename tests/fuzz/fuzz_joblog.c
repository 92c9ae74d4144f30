/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A log's two files as they may be found after any accident, and then output.
 * First byte: how much of the input is the index; the rest is the text and
 * what is written next.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/file.h"
#include "coordinator/joblog.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char dir[] = "/tmp/reclaim-fuzz-XXXXXX";

static void put(const char *name, const uint8_t *bytes, size_t len)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "w");
	CHECK(f && fwrite(bytes, 1, len, f) == len);
	fclose(f);
}

static void clean(void)
{
	(void)dir_remove_all(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static int ready;
	struct joblog *l = NULL;
	uint64_t stored;
	if (!ready) {
		CHECK(mkdtemp(dir));
		atexit(clean);
		ready = 1;
	}
	if (size < 2)
		return 0;
	size_t index_len = (size_t)data[0] * 64, at = 2;
	index_len = MIN(index_len, size - at);
	put("x.idx", data + at, index_len);
	at += index_len;
	size_t text_len = (size - at) * data[1] / 255;
	put("x.log", data + at, text_len);
	at += text_len;
	if (joblog_open(dir, "x", 1 << 20, &l, NULL) < 0)
		return 0;
	uint64_t before = joblog_length(l), epoch = UINT64_MAX;
	CHECK(joblog_output(l, epoch, 0, 0, (const char *)data + at, size - at, &stored) == 0);
	CHECK(joblog_length(l) >= before);
	CHECK(joblog_cursor(l, epoch, stored, 0) <= joblog_length(l));
	joblog_close(l);
	CHECK(joblog_open(dir, "x", 1 << 20, &l, NULL) == 0);
	CHECK(joblog_cursor(l, epoch, stored, 0) <= joblog_length(l));
	joblog_close(l);
	return 0;
}
