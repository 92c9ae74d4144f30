/* SPDX-License-Identifier: Apache-2.0 */
#include "stream/seal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "base/rng.h"

enum { NONCE = 12, TAG = 16 };

void seal_wipe(void *key, size_t len)
{
	OPENSSL_cleanse(key, len);
}

int seal_owner_key(const uint8_t secret[SEAL_KEY_LEN], const char *name, uint64_t epoch,
		   uint8_t ret[SEAL_KEY_LEN])
{
	uint8_t text[128];
	struct bytes_out o = { .data = text, .cap = sizeof(text) };
	unsigned len = SEAL_KEY_LEN;

	bytes_out_raw(&o, "reclaim stream owner", 20);
	bytes_out_u64(&o, epoch);
	bytes_out_raw(&o, name, strnlen(name, STREAM_NAME_MAX));
	if (o.failed)
		return -EINVAL;
	return HMAC(EVP_sha256(), secret, SEAL_KEY_LEN, text, o.len, ret, &len) ? 0 : -EIO;
}

static int aad_of(const char *name, uint64_t epoch, uint8_t *aad, size_t cap)
{
	struct bytes_out o = { .data = aad, .cap = cap };

	bytes_out_u64(&o, epoch);
	bytes_out_raw(&o, name, strnlen(name, STREAM_NAME_MAX));
	return (int)o.len;
}

int seal_ticket_make(const uint8_t owner_key[SEAL_KEY_LEN], const char *name, uint64_t epoch,
		     const struct seal_ticket *t, uint8_t ret[STREAM_TICKET_MAX], size_t *ret_len)
{
	uint8_t plain[256], aad[128];
	struct bytes_out o = { .data = plain, .cap = sizeof(plain) };
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int r = -EIO, n = 0, aad_len = aad_of(name, epoch, aad, sizeof(aad));

	bytes_out_raw(&o, t->session, SEAL_KEY_LEN);
	bytes_out_u64(&o, t->producer_epoch);
	bytes_out_raw(&o, t->producer, strnlen(t->producer, STREAM_NAME_MAX));
	if (c && !random_bytes(ret, NONCE) &&
	    EVP_EncryptInit_ex(c, EVP_aes_256_gcm(), NULL, owner_key, ret) &&
	    EVP_EncryptUpdate(c, NULL, &n, aad, aad_len) &&
	    EVP_EncryptUpdate(c, ret + NONCE, &n, plain, (int)o.len) &&
	    EVP_EncryptFinal_ex(c, ret + NONCE + n, &aad_len) &&
	    EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_GET_TAG, TAG, ret + NONCE + n)) {
		*ret_len = (size_t)(NONCE + n + TAG);
		r = 0;
	}
	EVP_CIPHER_CTX_free(c);
	seal_wipe(plain, sizeof(plain));
	return r;
}

int seal_ticket_open(const uint8_t owner_key[SEAL_KEY_LEN], const char *name, uint64_t epoch,
		     const uint8_t *ticket, size_t len, struct seal_ticket *ret)
{
	uint8_t plain[STREAM_TICKET_MAX], aad[128], tag[TAG];
	int n = 0, m = 0, aad_len = aad_of(name, epoch, aad, sizeof(aad));

	if (len < NONCE + TAG + SEAL_KEY_LEN + 8 || len > STREAM_TICKET_MAX)
		return -EACCES;
	EVP_CIPHER_CTX *c = EVP_CIPHER_CTX_new();
	int body = (int)(len - NONCE - TAG);
	int r = -EACCES;

	memcpy(tag, ticket + NONCE + body, TAG);
	if (c && EVP_DecryptInit_ex(c, EVP_aes_256_gcm(), NULL, owner_key, ticket) &&
	    EVP_DecryptUpdate(c, NULL, &n, aad, aad_len) &&
	    EVP_DecryptUpdate(c, plain, &n, ticket + NONCE, body) &&
	    EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_GCM_SET_TAG, TAG, tag) &&
	    EVP_DecryptFinal_ex(c, plain + n, &m) > 0) {
		size_t name_len = (size_t)body - SEAL_KEY_LEN - 8;

		if (name_len <= STREAM_NAME_MAX) {
			memset(ret, 0, sizeof(*ret));
			memcpy(ret->session, plain, SEAL_KEY_LEN);
			ret->producer_epoch = load_le64(plain + SEAL_KEY_LEN);
			memcpy(ret->producer, plain + SEAL_KEY_LEN + 8, name_len);
			r = 0;
		}
	}
	EVP_CIPHER_CTX_free(c);
	seal_wipe(plain, sizeof(plain));
	return r;
}
