/* SPDX-License-Identifier: Apache-2.0 */
#include "coordinator/vault.h"

#include <errno.h>
#include <openssl/evp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/rng.h"

#define KEY_LEN 32
#define NONCE_LEN 12
#define TAG_LEN 16
#define MAGIC "v1."
#define MAGIC_LEN 3

struct vault {
	uint8_t key[KEY_LEN];
};

int vault_create(const char *dir, struct diag *diag)
{
	uint8_t key[KEY_LEN];
	char hex[2 * KEY_LEN + 1], path[4096];
	int r = path_format(path, sizeof(path), "%s/master.key", dir);
	if (r == 0 && access(path, F_OK) == 0)
		r = -EEXIST;
	if (r == 0)
		r = random_bytes(key, sizeof(key));
	if (r == 0) {
		hex_encode(key, sizeof(key), hex);
		r = file_write_atomic(path, hex, sizeof(hex) - 1, 0600);
		explicit_bzero(key, sizeof(key));
		explicit_bzero(hex, sizeof(hex));
	}
	return r < 0 ? diag_set(diag, r, path, "cannot be made: %s", strerror(-r)) : 0;
}

int vault_open(const char *dir, struct vault **ret, struct diag *diag)
{
	char path[4096];
	struct stat st;
	CLEANUP_FREE char *hex = NULL;
	size_t len;
	int r = path_format(path, sizeof(path), "%s/master.key", dir);
	if (r == 0)
		r = file_read(path, 1024, &hex, &len);
	if (r < 0)
		return diag_set(diag, r, path, "cannot be read: %s", strerror(-r));
	if (stat(path, &st) == 0 && st.st_mode & 077)
		return diag_set(diag, -EACCES, path, "may be read by others; it must have mode 0600");
	struct vault *v = calloc(1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	r = len == 2 * KEY_LEN ? hex_decode(hex, len, v->key, KEY_LEN) : -EINVAL;
	explicit_bzero(hex, len);
	if (r < 0) {
		vault_close(v);
		return diag_set(diag, -EINVAL, path, "is not a key of 64 hexadecimal digits");
	}
	*ret = v;
	return 0;
}

void vault_close(struct vault *v)
{
	if (!v)
		return;
	explicit_bzero(v->key, sizeof(v->key));
	free(v);
}

int vault_seal(const struct vault *v, const char *label, const void *bytes, size_t len, char **ret)
{
	size_t box_len = NONCE_LEN + len + TAG_LEN;
	CLEANUP_FREE uint8_t *box = malloc(box_len);
	CLEANUP_FREE char *text = malloc(MAGIC_LEN + 2 * box_len + 1);
	if (!box || !text || len > INT32_MAX / 4)
		return -ENOMEM;
	int r = random_bytes(box, NONCE_LEN), n = 0;
	if (r < 0)
		return r;
	EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
	r = ctx && EVP_EncryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, v->key, box) &&
	    EVP_EncryptUpdate(ctx, NULL, &n, (const uint8_t *)label, (int)strlen(label)) &&
	    EVP_EncryptUpdate(ctx, box + NONCE_LEN, &n, bytes, (int)len) &&
	    EVP_EncryptFinal_ex(ctx, box + NONCE_LEN + n, &n) &&
	    EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG_LEN, box + NONCE_LEN + len) ? 0 : -EIO;
	EVP_CIPHER_CTX_free(ctx);
	if (r < 0)
		return r;
	memcpy(text, MAGIC, MAGIC_LEN);
	hex_encode(box, box_len, text + MAGIC_LEN);
	*ret = TAKE(text);
	return 0;
}

int vault_unseal(const struct vault *v, const char *label, const char *text, char **ret,
		 size_t *ret_len)
{
	size_t hex_len = strlen(text);
	if (hex_len < MAGIC_LEN || strncmp(text, MAGIC, MAGIC_LEN) != 0)
		return -EBADMSG;
	hex_len -= MAGIC_LEN;
	size_t box_len = hex_len / 2;
	if (hex_len % 2 || box_len < NONCE_LEN + TAG_LEN || box_len > INT32_MAX)
		return -EBADMSG;
	size_t len = box_len - NONCE_LEN - TAG_LEN;
	CLEANUP_FREE uint8_t *box = malloc(box_len);
	CLEANUP_FREE char *out = malloc(len + 1);
	if (!box || !out)
		return -ENOMEM;
	if (hex_decode(text + MAGIC_LEN, hex_len, box, box_len) < 0)
		return -EBADMSG;
	int n = 0;
	EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
	bool ok = ctx && EVP_DecryptInit_ex(ctx, EVP_aes_256_gcm(), NULL, v->key, box) &&
		  EVP_DecryptUpdate(ctx, NULL, &n, (const uint8_t *)label, (int)strlen(label)) &&
		  EVP_DecryptUpdate(ctx, (uint8_t *)out, &n, box + NONCE_LEN, (int)len) &&
		  EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG_LEN, box + NONCE_LEN + len) &&
		  EVP_DecryptFinal_ex(ctx, (uint8_t *)out + n, &n) > 0;
	EVP_CIPHER_CTX_free(ctx);
	if (!ok)
		return -EBADMSG;
	out[len] = 0;
	*ret = TAKE(out);
	*ret_len = len;
	return 0;
}
