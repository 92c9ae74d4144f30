/* SPDX-License-Identifier: Apache-2.0 */
#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sha256.h"

static int append_file(struct text *t, const char *path)
{
	FILE *f = fopen(path, "rbe");
	char buf[16384];
	size_t n;
	int r = 0;

	if (!f)
		return -errno;
	while (r == 0 && (n = fread(buf, 1, sizeof(buf), f)) > 0) {
		uint8_t *grown = realloc(t->ids, t->len + n);

		if (grown) {
			memcpy(grown + t->len, buf, n);
			t->ids = grown;
			t->len += n;
		} else {
			r = -ENOMEM;
		}
	}
	if (r == 0 && ferror(f))
		r = -EIO;
	(void)fclose(f); /* read only */
	return r;
}

static int append_folder(struct text *t, const char *path)
{
	struct dirent **names;
	int n = scandir(path, &names, NULL, alphasort), r = 0;

	if (n < 0)
		return -errno;
	for (int i = 0; i < n; i++) {
		char full[4096];
		struct stat st;

		(void)snprintf(full, sizeof(full), "%s/%s", path, names[i]->d_name);
		if (r == 0 && lstat(full, &st) == 0 && S_ISREG(st.st_mode))
			r = append_file(t, full);
		free(names[i]);
	}
	free(names);
	return r;
}

int text_load(const char *path, struct text *ret)
{
	struct text t = { 0 };
	int id_of[256], r;
	struct sha256 hash;
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	r = S_ISDIR(st.st_mode) ? append_folder(&t, path) : append_file(&t, path);
	if (r == 0 && t.len < 2)
		r = -ENODATA;
	if (r < 0) {
		text_done(&t);
		return r;
	}
	sha256_init(&hash);
	sha256_update(&hash, t.ids, t.len);
	sha256_final_hex(&hash, t.digest);
	memset(id_of, -1, sizeof(id_of));
	for (size_t i = 0; i < t.len; i++)
		id_of[t.ids[i]] = 0;
	for (int b = 0; b < 256; b++)
		if (id_of[b] == 0) {
			t.bytes[t.vocab] = (uint8_t)b;
			id_of[b] = (int)t.vocab++;
		}
	for (size_t i = 0; i < t.len; i++)
		t.ids[i] = (uint8_t)id_of[t.ids[i]];
	*ret = t;
	return 0;
}

void text_done(struct text *t)
{
	free(t->ids);
	t->ids = NULL;
}
