/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over saved cases: the files of the folders and files given. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = file_read(path, 64u << 20, &text, &len);
	if (r < 0)
		return r;
	/* An exact copy, so that a read past the end is seen by the sanitizer. */
	uint8_t *copy = malloc(len ? len : 1);
	if (!copy)
		return -1;
	for (size_t i = 0; i < len; i++)
		copy[i] = (uint8_t)text[i];
	(void)LLVMFuzzerTestOneInput(copy, len);
	free(copy);
	return 0;
}

int main(int argc, char **argv)
{
	unsigned count = 0;
	for (int i = 1; i < argc; i++) {
		CLEANUP_DIR DIR *d = opendir(argv[i]);
		if (!d) {
			(void)fprintf(stderr, "%s: cannot open\n", argv[i]);
			return 1;
		}
		for (struct dirent *e; (e = readdir(d));) {
			char path[4096];
			if (e->d_name[0] == '.' || path_format(path, sizeof(path), "%s/%s", argv[i], e->d_name) < 0)
				continue;
			if (replay_file(path) < 0) {
				(void)fprintf(stderr, "%s: cannot replay\n", path);
				return 1;
			}
			count++;
		}
	}
	(void)printf("%u saved cases\n", count);
	return count ? 0 : 1; /* a target without cases tests nothing */
}
