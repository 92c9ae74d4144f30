/* SPDX-License-Identifier: Apache-2.0 */
/* See dtls.h. */
#include "volunteer/dtls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

struct dtls_context {
	SSL_CTX *ssl;
	BIO_METHOD *method;
	uint8_t fingerprint[DTLS_FINGERPRINT];
};

struct dtls {
	struct dtls_context *context;
	SSL *ssl;
	const struct dtls_ops *ops;
	void *user;
	uint8_t peer[DTLS_FINGERPRINT];
	const uint8_t *in; /* the datagram being handled */
	size_t in_len;
	bool up, buffers;
};

/* ---- the BIO: one write is one datagram, one read is one datagram ---- */

static int bio_write(BIO *b, const char *bytes, int len)
{
	struct dtls *d = BIO_get_data(b);
	d->ops->output(d->user, bytes, (size_t)len);
	return len;
}

static int bio_read(BIO *b, char *bytes, int len)
{
	struct dtls *d = BIO_get_data(b);
	BIO_clear_retry_flags(b);
	if (!d->in) {
		BIO_set_retry_read(b);
		return -1;
	}
	size_t n = d->in_len < (size_t)len ? d->in_len : (size_t)len;
	memcpy(bytes, d->in, n);
	d->in = NULL;
	return (int)n;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
	(void)b, (void)num, (void)ptr;
	switch (cmd) {
	case BIO_CTRL_FLUSH:
		return 1;
	case BIO_CTRL_DGRAM_QUERY_MTU:
	case BIO_CTRL_DGRAM_GET_FALLBACK_MTU:
		return DTLS_MTU;
	case BIO_CTRL_DGRAM_GET_MTU_OVERHEAD:
		return 28; /* IPv4 and UDP */
	default:
		return 0;
	}
}

static int bio_create(BIO *b)
{
	BIO_set_init(b, 1);
	return 1;
}

/* ---- context ---- */

static X509 *make_certificate(EVP_PKEY *key)
{
	X509 *cert = X509_new();
	uint64_t serial;
	if (!cert || RAND_bytes((unsigned char *)&serial, sizeof(serial)) != 1)
		goto fail;
	X509_NAME *name = X509_get_subject_name(cert);
	/* A day before, for clocks that differ; nobody looks at the dates of these certificates. */
	if (!X509_set_version(cert, 2) ||
	    !ASN1_INTEGER_set_uint64(X509_get_serialNumber(cert), serial >> 1) ||
	    !X509_gmtime_adj(X509_getm_notBefore(cert), -86400L) ||
	    !X509_gmtime_adj(X509_getm_notAfter(cert), 86400L * 365) ||
	    !X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"reclaim",
					-1, -1, 0) ||
	    !X509_set_issuer_name(cert, name) || !X509_set_pubkey(cert, key) ||
	    !X509_sign(cert, key, EVP_sha256()))
		goto fail;
	return cert;
fail:
	X509_free(cert);
	return NULL;
}

/* Whoever has the announced fingerprint is the peer; that is checked after the handshake. */
static int accept_any(int ok, X509_STORE_CTX *store)
{
	(void)ok, (void)store;
	return 1;
}

static int context_setup(struct dtls_context *c, EVP_PKEY *key, X509 *cert)
{
	unsigned len = DTLS_FINGERPRINT;
	c->ssl = SSL_CTX_new(DTLS_method());
	c->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "datagram");
	if (!c->ssl || !c->method || !X509_digest(cert, EVP_sha256(), c->fingerprint, &len) ||
	    SSL_CTX_use_certificate(c->ssl, cert) != 1 || SSL_CTX_use_PrivateKey(c->ssl, key) != 1 ||
	    SSL_CTX_set_min_proto_version(c->ssl, DTLS1_2_VERSION) != 1 ||
	    SSL_CTX_set_cipher_list(c->ssl, "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"
					    "ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-AES128-GCM-SHA256") != 1 ||
	    SSL_CTX_set1_groups_list(c->ssl, "X25519:P-256") != 1)
		return -EIO;
	SSL_CTX_set_verify(c->ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, accept_any);
	SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(c->ssl, SSL_OP_NO_QUERY_MTU | SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
	SSL_CTX_set_read_ahead(c->ssl, 1);
	BIO_meth_set_write(c->method, bio_write);
	BIO_meth_set_read(c->method, bio_read);
	BIO_meth_set_ctrl(c->method, bio_ctrl);
	BIO_meth_set_create(c->method, bio_create);
	return 0;
}

int dtls_context_new(struct dtls_context **ret)
{
	struct dtls_context *c = calloc(1, sizeof(*c));
	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *cert = key ? make_certificate(key) : NULL;
	int r = c && cert ? context_setup(c, key, cert) : -ENOMEM;
	X509_free(cert);
	EVP_PKEY_free(key);
	if (r < 0) {
		dtls_context_free(c);
		ERR_clear_error();
		return r;
	}
	*ret = c;
	return 0;
}

void dtls_context_free(struct dtls_context *c)
{
	if (!c)
		return;
	SSL_CTX_free(c->ssl);
	BIO_meth_free(c->method);
	free(c);
}

const uint8_t *dtls_context_fingerprint(const struct dtls_context *c)
{
	return c->fingerprint;
}

/* ---- one association ---- */

int dtls_new(struct dtls_context *c, bool client, const uint8_t peer[DTLS_FINGERPRINT],
	     const struct dtls_ops *ops, void *user, struct dtls **ret)
{
	struct dtls *d = calloc(1, sizeof(*d));
	if (!d)
		return -ENOMEM;
	d->context = c;
	d->ops = ops;
	d->user = user;
	memcpy(d->peer, peer, sizeof(d->peer));
	d->ssl = SSL_new(c->ssl);
	BIO *bio = BIO_new(c->method);
	if (!d->ssl || !bio) {
		BIO_free(bio);
		SSL_free(d->ssl);
		free(d);
		return -ENOMEM;
	}
	BIO_set_data(bio, d);
	SSL_set_bio(d->ssl, bio, bio);
	(void)SSL_set_mtu(d->ssl, DTLS_MTU);
	(void)DTLS_set_link_mtu(d->ssl, DTLS_MTU + 28);
	if (client)
		SSL_set_connect_state(d->ssl);
	else
		SSL_set_accept_state(d->ssl);
	d->buffers = true;
	*ret = d;
	return 0;
}

void dtls_free(struct dtls *d)
{
	if (!d)
		return;
	if (d->up) {
		if (!d->buffers)
			(void)SSL_alloc_buffers(d->ssl); /* else the peer finds out by silence */
		(void)SSL_shutdown(d->ssl);
	}
	SSL_free(d->ssl);
	ERR_clear_error();
	free(d);
}

static bool peer_is_right(struct dtls *d)
{
	X509 *cert = SSL_get1_peer_certificate(d->ssl);
	uint8_t digest[DTLS_FINGERPRINT];
	unsigned len = sizeof(digest);
	bool right = cert && X509_digest(cert, EVP_sha256(), digest, &len) &&
		     CRYPTO_memcmp(digest, d->peer, sizeof(digest)) == 0;
	X509_free(cert);
	return right;
}

static enum dtls_event failure(struct dtls *d, int result)
{
	int error = SSL_get_error(d->ssl, result);
	ERR_clear_error();
	if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE)
		return DTLS_NOTHING;
	return error == SSL_ERROR_ZERO_RETURN ? DTLS_CLOSED : DTLS_FAILED;
}

static enum dtls_event pump(struct dtls *d)
{
	enum dtls_event event = DTLS_NOTHING;
	ERR_clear_error();
	if (!d->up) {
		int r = SSL_do_handshake(d->ssl);
		if (r != 1)
			return failure(d, r);
		if (!peer_is_right(d))
			return DTLS_FAILED;
		d->up = true;
		event = DTLS_UP;
	}
	uint8_t buf[2048];
	int n;
	while ((n = SSL_read(d->ssl, buf, sizeof(buf))) > 0)
		d->ops->data(d->user, buf, (size_t)n);
	enum dtls_event end = failure(d, n);
	return end == DTLS_NOTHING ? event : end;
}

enum dtls_event dtls_start(struct dtls *d)
{
	return pump(d);
}

enum dtls_event dtls_input(struct dtls *d, const void *bytes, size_t len)
{
	if (!d->buffers) {
		if (SSL_alloc_buffers(d->ssl) != 1)
			return DTLS_NOTHING; /* as if the datagram were lost */
		d->buffers = true;
	}
	d->in = bytes;
	d->in_len = len;
	enum dtls_event event = pump(d);
	d->in = NULL;
	return event;
}

int dtls_timeout_ms(const struct dtls *d)
{
	struct timeval left;
	if (d->up || !DTLSv1_get_timeout(d->ssl, &left))
		return -1;
	return (int)(left.tv_sec * 1000 + left.tv_usec / 1000 + 1);
}

enum dtls_event dtls_timeout(struct dtls *d)
{
	if (d->up)
		return DTLS_NOTHING;
	int r = DTLSv1_handle_timeout(d->ssl);
	ERR_clear_error();
	return r < 0 ? DTLS_FAILED : DTLS_NOTHING;
}

int dtls_send(struct dtls *d, const void *bytes, size_t len)
{
	if (!d->up)
		return -EPIPE;
	if (!d->buffers) {
		if (SSL_alloc_buffers(d->ssl) != 1)
			return -EPIPE;
		d->buffers = true;
	}
	ERR_clear_error();
	return SSL_write(d->ssl, bytes, (int)len) > 0 ? 0 : -EPIPE;
}

void dtls_idle(struct dtls *d)
{
	if (d->up && d->buffers && SSL_free_buffers(d->ssl) == 1)
		d->buffers = false;
}
