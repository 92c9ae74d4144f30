/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 with an external PSK (RFC 8446, 2.2): the identity is the epoch and
 * the ticket, the key is the session key in it, with ephemeral key exchange.
 * There are no certificates: who holds the key is whom the registry meant.
 * The BIO writes with MSG_NOSIGNAL, since a library must not raise SIGPIPE.
 */
#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include "stream/node_internal.h"

enum { IDENTITY_MAX = 8 + STREAM_TICKET_MAX };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static SSL_CTX *client_ctx, *server_ctx;
static BIO_METHOD *method;

static int bio_write(BIO *b, const char *bytes, int len)
{
	struct link *l = BIO_get_data(b);
	ssize_t n = send(l->fd, bytes, (size_t)len, MSG_NOSIGNAL | MSG_DONTWAIT);

	BIO_clear_retry_flags(b);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		BIO_set_retry_write(b);
	return (int)n;
}

static int bio_read(BIO *b, char *bytes, int len)
{
	struct link *l = BIO_get_data(b);
	ssize_t n = recv(l->fd, bytes, (size_t)len, MSG_DONTWAIT);

	BIO_clear_retry_flags(b);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		BIO_set_retry_read(b);
	return (int)n;
}

static long bio_ctrl(BIO *b, int cmd, long num, void *ptr)
{
	(void)b, (void)num, (void)ptr;
	return cmd == BIO_CTRL_FLUSH;
}

static SSL_SESSION *session_of(SSL *ssl, const uint8_t key[SEAL_KEY_LEN])
{
	static const uint8_t suite[] = { 0x13, 0x01 }; /* TLS_AES_128_GCM_SHA256 */
	const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, suite);
	SSL_SESSION *s = SSL_SESSION_new();

	if (!s || !cipher || !SSL_SESSION_set1_master_key(s, key, SEAL_KEY_LEN) ||
	    !SSL_SESSION_set_cipher(s, cipher) ||
	    !SSL_SESSION_set_protocol_version(s, TLS1_3_VERSION)) {
		SSL_SESSION_free(s);
		return NULL;
	}
	return s;
}

static int use_session(SSL *ssl, const EVP_MD *md, const unsigned char **id, size_t *id_len,
		       SSL_SESSION **ret)
{
	static __thread uint8_t identity[IDENTITY_MAX];
	struct link *l = SSL_get_app_data(ssl);

	(void)md; /* the only suite offered has SHA-256 */
	store_le64(identity, l->tls_epoch);
	memcpy(identity + 8, l->tls_ticket, l->tls_ticket_len);
	*id = identity;
	*id_len = 8 + l->tls_ticket_len;
	*ret = session_of(ssl, l->tls_session);
	return *ret != NULL;
}

static int find_session(SSL *ssl, const unsigned char *identity, size_t len, SSL_SESSION **ret)
{
	struct link *l = SSL_get_app_data(ssl);
	struct reclaim_node *n = l->node;
	const uint8_t *key = NULL;
	struct seal_ticket t;

	*ret = NULL;
	if (len < 8 || len > IDENTITY_MAX)
		return 1;
	uint64_t epoch = load_le64(identity);
	if (n->key_epoch && epoch == n->key_epoch)
		key = n->key;
	else if (n->key_next_epoch && epoch == n->key_next_epoch)
		key = n->key_next;
	if (key && seal_ticket_open(key, n->name, epoch, identity + 8, len - 8, &t) == 0) {
		*ret = session_of(ssl, t.session);
		seal_wipe(&t, sizeof(t));
	}
	return 1; /* without a session the handshake fails: there is no certificate */
}

static void make_ctx(void)
{
	SSL_CTX *both[2] = { SSL_CTX_new(TLS_client_method()), SSL_CTX_new(TLS_server_method()) };

	method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "reclaim");
	if (!method || !both[0] || !both[1])
		return;
	BIO_meth_set_write(method, bio_write);
	BIO_meth_set_read(method, bio_read);
	BIO_meth_set_ctrl(method, bio_ctrl);
	for (int i = 0; i < 2; i++) {
		SSL_CTX_set_min_proto_version(both[i], TLS1_3_VERSION);
		SSL_CTX_set_ciphersuites(both[i], "TLS_AES_128_GCM_SHA256");
		SSL_CTX_set_mode(both[i], SSL_MODE_ENABLE_PARTIAL_WRITE |
					  SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
		SSL_CTX_set_options(both[i], SSL_OP_NO_TICKET);
		SSL_CTX_set_num_tickets(both[i], 0);
		SSL_CTX_set_read_ahead(both[i], 1);
		SSL_CTX_set_default_read_buffer_len(both[i], 64 << 10);
	}
	SSL_CTX_set_psk_use_session_callback(both[0], use_session);
	SSL_CTX_set_psk_find_session_callback(both[1], find_session);
	client_ctx = both[0];
	server_ctx = both[1];
}

int tls_attach(struct link *l)
{
	(void)pthread_once(&once, make_ctx);
	if (!client_ctx)
		return -ENOMEM;
	SSL *ssl = SSL_new(l->incoming ? server_ctx : client_ctx);
	BIO *bio = BIO_new(method);

	if (!ssl || !bio) {
		SSL_free(ssl);
		BIO_free(bio);
		return -ENOMEM;
	}
	BIO_set_data(bio, l);
	BIO_set_init(bio, 1);
	SSL_set_bio(ssl, bio, bio);
	SSL_set_app_data(ssl, l);
	if (l->incoming)
		SSL_set_accept_state(ssl);
	else
		SSL_set_connect_state(ssl);
	l->tls = ssl;
	return 0;
}

static int outcome(SSL *ssl, int r)
{
	int e = SSL_get_error(ssl, r);

	ERR_clear_error();
	if (e == SSL_ERROR_WANT_READ || e == SSL_ERROR_WANT_WRITE)
		return -EAGAIN;
	return -ECONNRESET;
}

int tls_handshake(struct link *l)
{
	int r = SSL_do_handshake(l->tls);

	if (r == 1) {
		l->tls_done = true;
		return 0;
	}
	return outcome(l->tls, r);
}

ssize_t tls_write(struct link *l, const void *bytes, size_t len)
{
	size_t done;
	int r = SSL_write_ex(l->tls, bytes, len, &done);

	return r == 1 ? (ssize_t)done : outcome(l->tls, r);
}

ssize_t tls_read(struct link *l, void *bytes, size_t len)
{
	size_t done;
	int r = SSL_read_ex(l->tls, bytes, len, &done);

	if (r == 1)
		return (ssize_t)done;
	r = outcome(l->tls, r);
	return r == -ECONNRESET ? 0 : r;
}

bool tls_buffered(struct link *l)
{
	return l->tls && SSL_has_pending(l->tls);
}

void tls_done(struct link *l)
{
	SSL_free(l->tls);
	l->tls = NULL;
}
