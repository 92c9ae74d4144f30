/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of a manifest commit. Apart from ckpt_watch.c, so that the shim needs no OpenSSL. */
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "job/ckpt_watch.h"

static int digest_file(const char *path, uint64_t *ret_size, char hex[65])
{
	CLEANUP_FD int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	CLEANUP_FREE char *buf = malloc(1 << 20);
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	unsigned char digest[EVP_MAX_MD_SIZE];
	uint64_t size = 0;
	ssize_t n = 0;
	int r = fd < 0 ? -errno : !buf || !ctx || !EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) ? -ENOMEM : 0;

	while (r == 0 && (n = read(fd, buf, 1 << 20)) > 0) {
		size += (uint64_t)n;
		if (!EVP_DigestUpdate(ctx, buf, (size_t)n))
			r = -EIO;
	}
	if (r == 0 && n < 0)
		r = -errno;
	if (r == 0 && !EVP_DigestFinal_ex(ctx, digest, NULL))
		r = -EIO;
	EVP_MD_CTX_free(ctx);
	if (r < 0)
		return r;
	hex_encode(digest, 32, hex);
	*ret_size = size;
	return 0;
}

int ckpt_verify(const char *dir, const char *name, struct diag *diag)
{
	char folder[4096], path[4400];
	CLEANUP_FREE char *text = NULL;
	char *save = NULL;
	size_t len;
	int r = path_format(folder, sizeof(folder), "%s%s%s", dir, name[0] ? "/" : "", name);

	if (r == 0)
		r = path_format(path, sizeof(path), "%s/" CKPT_MANIFEST_NAME, folder);
	if (r == 0)
		r = file_read(path, CKPT_MANIFEST_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, name, "the manifest cannot be read: %s", strerror(-r));
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		char hex[65], *digest = strchr(line, ' '), *file = digest ? strchr(digest + 1, ' ') : NULL;
		uint64_t want, size;

		if (!file)
			return diag_set(diag, -EBADMSG, name, "a line of the manifest is not SIZE SHA256 NAME");
		*digest++ = '\0';
		*file++ = '\0';
		if (parse_u64(line, &want) < 0 || path_format(path, sizeof(path), "%s/%s", folder, file) < 0)
			return diag_set(diag, -EBADMSG, name, "a line of the manifest is not SIZE SHA256 NAME");
		r = digest_file(path, &size, hex);
		if (r < 0)
			return diag_set(diag, -EBADMSG, file, "cannot be read: %s", strerror(-r));
		if (size != want || strcasecmp(hex, digest))
			return diag_set(diag, -EBADMSG, file, "differs from its manifest");
	}
	return 0;
}
