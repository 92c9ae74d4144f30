/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who talks: one certificate authority per campus, made by `reclaim-coordinator
 * init`; every machine and person holds a key and a certificate of it. A
 * certificate says CN = name and O = role ("agent", "guest", ...), nothing
 * else is trusted. P-256 keys, TLS 1.3 only, no session tickets (a revoked
 * peer must not resume).
 *
 * A server is recognised by chain + role, not by host name: machines move
 * between addresses, and only the coordinator holds the coordinator role.
 *
 * An identity folder holds ca.pem, cert.pem and key.pem (mode 0600).
 */
#ifndef RECLAIM_IO_IDENTITY_H
#define RECLAIM_IO_IDENTITY_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"

enum identity_role {
	IDENTITY_NONE = 0, /* no certificate */
	IDENTITY_OWNER,
	IDENTITY_GUEST,
	IDENTITY_ADMIN,
	IDENTITY_AGENT,
	IDENTITY_COORDINATOR,
	IDENTITY_ROLE_COUNT,
};
extern const char *const identity_role_names[IDENTITY_ROLE_COUNT + 1]; /* for FIELD_ENUM */
const char *identity_role_name(enum identity_role role);
int identity_role_parse(const char *text, enum identity_role *ret); /* 0 or -EINVAL */

#define IDENTITY_NAME_MAX 64   /* bytes, [A-Za-z0-9._-], starts with a letter or digit */
#define IDENTITY_SERIAL_MAX 40 /* hexadecimal digits */
#define IDENTITY_DIGEST_HEX 64 /* SHA-256 */
bool identity_name_is_valid(const char *name);

/* What a verified certificate says. */
struct identity_peer {
	char name[IDENTITY_NAME_MAX + 1]; /* "" for IDENTITY_NONE */
	enum identity_role role;
	char serial[IDENTITY_SERIAL_MAX + 1];
	char digest[IDENTITY_DIGEST_HEX + 1]; /* SHA-256 of the certificate (DER), for tickets */
};

/* ---- making identities ---- */

struct identity_ca; /* the signing half: ca.pem + ca.key of a folder */
int identity_ca_create(const char *dir, const char *campus, struct diag *diag);
int identity_ca_open(const char *dir, struct identity_ca **ret, struct diag *diag);
void identity_ca_free(struct identity_ca *ca);
const char *identity_ca_pem(const struct identity_ca *ca);
/* SHA-256 of the CA certificate (DER), hexadecimal: what a join token carries. */
const char *identity_ca_fingerprint(const struct identity_ca *ca);
/* Signs a PEM request. Subject and extensions of the request are ignored: name and role come
 * from the caller. ret_pem is malloc'd; ret_serial may be NULL. */
int identity_ca_sign(struct identity_ca *ca, const char *csr_pem, const char *name,
		     enum identity_role role, uint64_t valid_s, char **ret_pem,
		     char ret_serial[IDENTITY_SERIAL_MAX + 1], struct diag *diag);

/* Makes key.pem in dir unless it is there, and a request for it (malloc'd PEM). */
int identity_request(const char *dir, const char *name, char **ret_csr_pem, struct diag *diag);
/* Writes ca.pem and cert.pem beside key.pem, after checking that they belong together. */
int identity_install(const char *dir, const char *ca_pem, const char *cert_pem,
		     struct diag *diag);

/* ---- using one ---- */

struct identity;
int identity_open(const char *dir, struct identity **ret, struct diag *diag);
void identity_free(struct identity *id);
DEFINE_CLEANUP(struct identity *, identity_free)
#define CLEANUP_IDENTITY CLEANUP(identity_free_cleanup)
const struct identity_peer *identity_self(const struct identity *id);
const char *identity_cert_pem(const struct identity *id);
const char *identity_ca_pem_of(const struct identity *id);
uint64_t identity_expires_wall_ms(const struct identity *id);

/* TLS 1.3 contexts, to be freed with SSL_CTX_free(). A client context refuses a server of another
 * role than server_role (IDENTITY_NONE = any of our CA). A server context asks for a certificate
 * and, if peer_required, refuses to go on without. */
int identity_tls_client(const struct identity *id, enum identity_role server_role, SSL_CTX **ret);
int identity_tls_server(const struct identity *id, bool peer_required, SSL_CTX **ret);
/* The same on a context that a library made. */
int identity_tls_setup_client(const struct identity *id, enum identity_role server_role,
			      SSL_CTX *ctx);
int identity_tls_setup_server(const struct identity *id, bool peer_required, SSL_CTX *ctx);
/* A client that knows only the CA's fingerprint (enrolment): the server's chain must end in it. */
int identity_tls_setup_fingerprint(const char *ca_fingerprint, SSL_CTX *ctx);
/* Fills role IDENTITY_NONE when the peer showed no certificate; -EACCES if it did not verify. */
int identity_peer_of(SSL *ssl, struct identity_peer *ret);

/* ---- signed statements (tickets) ---- */

#define IDENTITY_SIGNATURE_MAX 128
int identity_sign(const struct identity *id, const void *bytes, size_t len,
		  uint8_t ret_signature[IDENTITY_SIGNATURE_MAX], size_t *ret_len);
/* Verifies with a certificate (PEM) that must chain to our CA and be in date.
 * 0, -EACCES (chain, date), -EBADMSG (signature), -EINVAL (not a certificate). */
int identity_verify(const struct identity *id, const char *cert_pem, const void *bytes, size_t len,
		    const uint8_t *signature, size_t signature_len, struct identity_peer *ret);
/* Checks a certificate alone: chain, date, subject. */
int identity_check_cert(const struct identity *id, const char *cert_pem,
			struct identity_peer *ret, struct diag *diag);

#endif
