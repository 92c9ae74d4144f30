/* SPDX-License-Identifier: Apache-2.0 */
#include "image/seal.h"

#include <errno.h>
#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <string.h>
#include <xxhash.h>

static const char seal_label[] = "reclaim image v1";

int seal_keys_derive(const uint8_t job_key[32], struct seal_keys *ret)
{
	EVP_KDF *kdf = EVP_KDF_fetch(NULL, "HKDF", NULL);
	EVP_KDF_CTX *ctx = kdf ? EVP_KDF_CTX_new(kdf) : NULL;
	uint8_t out[32 + SEAL_SECRET_LEN + SEAL_KEY_CHECK_LEN];
	char digest[] = "SHA256";
	OSSL_PARAM params[] = {
		OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, (void *)(uintptr_t)job_key, 32),
		OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, (void *)(uintptr_t)seal_label,
						  sizeof(seal_label) - 1),
		OSSL_PARAM_construct_end(),
	};
	int r = -EIO;

	if (!ctx)
		r = -ENOMEM;
	else if (EVP_KDF_derive(ctx, out, sizeof(out), params) == 1) {
		memcpy(ret->key, out, 32);
		memcpy(ret->name_secret, out + 32, SEAL_SECRET_LEN);
		memcpy(ret->key_check, out + 32 + SEAL_SECRET_LEN, SEAL_KEY_CHECK_LEN);
		r = 0;
	}
	OPENSSL_cleanse(out, sizeof(out));
	EVP_KDF_CTX_free(ctx);
	EVP_KDF_free(kdf);
	return r;
}

void seal_name(const struct seal_keys *k, const void *plain, size_t len,
	       uint8_t ret_name[SEAL_NAME_LEN])
{
	XXH128_canonical_t c;

	XXH128_canonicalFromHash(&c, XXH3_128bits_withSecret(plain, len, k->name_secret,
							     SEAL_SECRET_LEN));
	memcpy(ret_name, c.digest, SEAL_NAME_LEN);
}

void seal_check(const void *sealed, size_t len, uint8_t ret_check[SEAL_CHECK_LEN])
{
	XXH64_canonical_t c;

	XXH64_canonicalFromHash(&c, XXH3_64bits(sealed, len));
	memcpy(ret_check, c.digest, SEAL_CHECK_LEN);
}

struct sealer {
	EVP_CIPHER_CTX *seal, *open;
};

int sealer_new(const struct seal_keys *k, struct sealer **ret)
{
	struct sealer *s = calloc(1, sizeof(*s));

	if (!s)
		return -ENOMEM;
	s->seal = EVP_CIPHER_CTX_new();
	s->open = EVP_CIPHER_CTX_new();
	if (!s->seal || !s->open ||
	    EVP_EncryptInit_ex(s->seal, EVP_aes_256_gcm(), NULL, k->key, NULL) != 1 ||
	    EVP_DecryptInit_ex(s->open, EVP_aes_256_gcm(), NULL, k->key, NULL) != 1) {
		sealer_free(s);
		return -ENOMEM;
	}
	*ret = s;
	return 0;
}

void sealer_free(struct sealer *s)
{
	if (!s)
		return;
	EVP_CIPHER_CTX_free(s->seal);
	EVP_CIPHER_CTX_free(s->open);
	free(s);
}

static void aad_fill(uint8_t aad[SEAL_NAME_LEN + 4], const uint8_t *name, size_t len)
{
	memcpy(aad, name, SEAL_NAME_LEN);
	for (int i = 0; i < 4; i++)
		aad[SEAL_NAME_LEN + i] = (uint8_t)(len >> (8 * i));
}

int sealer_seal(struct sealer *s, const uint8_t name[SEAL_NAME_LEN], const void *plain, size_t len,
		void *sealed, uint8_t ret_tag[SEAL_TAG_LEN])
{
	uint8_t aad[SEAL_NAME_LEN + 4];
	int n;

	if (len > INT32_MAX)
		return -EINVAL;
	aad_fill(aad, name, len);
	if (EVP_EncryptInit_ex(s->seal, NULL, NULL, NULL, name) != 1 ||
	    EVP_EncryptUpdate(s->seal, NULL, &n, aad, sizeof(aad)) != 1 ||
	    EVP_EncryptUpdate(s->seal, sealed, &n, plain, (int)len) != 1 ||
	    EVP_EncryptFinal_ex(s->seal, (uint8_t *)sealed + len, &n) != 1 ||
	    EVP_CIPHER_CTX_ctrl(s->seal, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_LEN, ret_tag) != 1)
		return -EIO;
	return 0;
}

int sealer_open(struct sealer *s, const uint8_t name[SEAL_NAME_LEN],
		const uint8_t tag[SEAL_TAG_LEN], const void *sealed, size_t len, void *plain)
{
	uint8_t aad[SEAL_NAME_LEN + 4];
	int n;

	if (len > INT32_MAX)
		return -EINVAL;
	aad_fill(aad, name, len);
	if (EVP_DecryptInit_ex(s->open, NULL, NULL, NULL, name) != 1 ||
	    EVP_DecryptUpdate(s->open, NULL, &n, aad, sizeof(aad)) != 1 ||
	    EVP_DecryptUpdate(s->open, plain, &n, sealed, (int)len) != 1 ||
	    EVP_CIPHER_CTX_ctrl(s->open, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_LEN,
				(void *)(uintptr_t)tag) != 1)
		return -EIO;
	return EVP_DecryptFinal_ex(s->open, (uint8_t *)plain + len, &n) == 1 ? 0 : -EBADMSG;
}
