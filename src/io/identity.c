/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Using an identity: loading the folder, TLS contexts, signatures. Making
 * identities is ca.c's. Trusts nothing but ca.pem of its own folder.
 */
#include "io/identity.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/file.h"
#include "base/parse.h"
#include "io/identity_internal.h"

const char *const identity_role_names[IDENTITY_ROLE_COUNT + 1] = {
	[IDENTITY_NONE] = "none",   [IDENTITY_OWNER] = "owner",
	[IDENTITY_GUEST] = "guest", [IDENTITY_ADMIN] = "admin",
	[IDENTITY_AGENT] = "agent", [IDENTITY_COORDINATOR] = "coordinator",
};

struct identity {
	struct identity_peer self;
	X509 *ca;
	X509 *cert;
	EVP_PKEY *key;
	X509_STORE *store;
	char *ca_pem;
	char *cert_pem;
	uint64_t expires_wall_ms;
};

const char *identity_role_name(enum identity_role role)
{
	return (unsigned)role < IDENTITY_ROLE_COUNT ? identity_role_names[role] : "unknown";
}

int identity_role_parse(const char *text, enum identity_role *ret)
{
	for (int i = 1; i < IDENTITY_ROLE_COUNT; i++) {
		if (strcmp(text, identity_role_names[i]) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

bool identity_name_is_valid(const char *name)
{
	static const char alnum[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
	size_t len = name ? strlen(name) : 0;
	if (len == 0 || len > IDENTITY_NAME_MAX || !strchr(alnum, name[0]))
		return false;
	return strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
	       len;
}

int identity_diag_openssl(struct diag *diag, int err, const char *where, const char *what)
{
	unsigned long code = ERR_peek_last_error();
	const char *reason = code ? ERR_reason_error_string(code) : NULL;
	ERR_clear_error();
	if (reason)
		return diag_set(diag, err, where, "%s: %s", what, reason);
	return diag_set(diag, err, where, "%s", what);
}

static int subject_field(X509 *cert, int nid, char *ret, size_t ret_size)
{
	X509_NAME *name = X509_get_subject_name(cert);
	int i = X509_NAME_get_index_by_NID(name, nid, -1);
	if (i < 0 || X509_NAME_get_index_by_NID(name, nid, i) >= 0)
		return -EINVAL; /* absent, or said twice */
	ASN1_STRING *data = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(name, i));
	int len = ASN1_STRING_length(data);
	if (len <= 0 || (size_t)len >= ret_size ||
	    memchr(ASN1_STRING_get0_data(data), 0, (size_t)len))
		return -EINVAL;
	memcpy(ret, ASN1_STRING_get0_data(data), (size_t)len);
	ret[len] = 0;
	return 0;
}

int identity_cert_digest(X509 *cert, char ret[IDENTITY_DIGEST_HEX + 1])
{
	uint8_t digest[EVP_MAX_MD_SIZE];
	unsigned len = 0;
	if (!X509_digest(cert, EVP_sha256(), digest, &len))
		return -EINVAL;
	hex_encode(digest, len, ret);
	return 0;
}

int identity_peer_of_cert(X509 *cert, struct identity_peer *ret)
{
	struct identity_peer peer = { 0 };
	char role[32];

	if (subject_field(cert, NID_commonName, peer.name, sizeof(peer.name)) < 0 ||
	    subject_field(cert, NID_organizationName, role, sizeof(role)) < 0)
		return -EINVAL;
	if (!identity_name_is_valid(peer.name) || identity_role_parse(role, &peer.role) < 0)
		return -EINVAL;
	BIGNUM *serial = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), NULL);
	char *hex = serial ? BN_bn2hex(serial) : NULL;
	int r = -EINVAL;
	if (hex && strlen(hex) <= IDENTITY_SERIAL_MAX) {
		for (size_t i = 0; hex[i]; i++)
			peer.serial[i] = (char)(hex[i] >= 'A' ? hex[i] + 32 : hex[i]);
		r = identity_cert_digest(cert, peer.digest);
	}
	OPENSSL_free(hex);
	BN_free(serial);
	if (r == 0)
		*ret = peer;
	return r;
}

X509 *identity_parse_cert(const char *pem)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, (void *)"") : NULL;
	BIO_free(bio);
	return cert;
}

static uint64_t wall_ms_of(const ASN1_TIME *t)
{
	int days = 0, secs = 0;
	ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
	uint64_t ms = 0;
	if (epoch && ASN1_TIME_diff(&days, &secs, epoch, t) && days >= 0)
		ms = ((uint64_t)days * 86400 + (uint64_t)MAX(secs, 0)) * 1000;
	ASN1_TIME_free(epoch);
	return ms;
}

static int check_chain(X509_STORE *store, X509 *cert, int *ret_why)
{
	X509_STORE_CTX *ctx = X509_STORE_CTX_new();
	int r = -ENOMEM;
	if (ctx && X509_STORE_CTX_init(ctx, store, cert, NULL)) {
		r = X509_verify_cert(ctx) == 1 ? 0 : -EACCES;
		*ret_why = X509_STORE_CTX_get_error(ctx);
	}
	X509_STORE_CTX_free(ctx);
	ERR_clear_error();
	return r;
}

int identity_check_cert(const struct identity *id, const char *cert_pem,
			struct identity_peer *ret, struct diag *diag)
{
	X509 *cert = identity_parse_cert(cert_pem);
	if (!cert) {
		ERR_clear_error();
		return diag_set(diag, -EINVAL, "certificate", "is not a PEM certificate");
	}
	int why = 0;
	int r = check_chain(id->store, cert, &why);
	if (r < 0)
		diag_set(diag, r, "certificate", "%s", X509_verify_cert_error_string(why));
	else if (identity_peer_of_cert(cert, ret) < 0)
		r = diag_set(diag, -EACCES, "certificate", "has no name and role");
	X509_free(cert);
	return r;
}

/* ---- the folder ---- */

static int read_file(const char *dir, const char *name, char **ret, struct diag *diag)
{
	char path[4096];
	size_t len;
	int r = path_format(path, sizeof(path), "%s/%s", dir, name);
	if (r == 0)
		r = file_read(path, 1 << 20, ret, &len);
	if (r < 0)
		return diag_set(diag, r, path, "cannot be read: %s", strerror(-r));
	return 0;
}

EVP_PKEY *identity_parse_key(const char *pem)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, NULL, (void *)"") : NULL;
	BIO_free(bio);
	return key;
}

int identity_from_pem(const char *where, const char *ca_pem, const char *cert_pem,
		      const char *key_pem, struct identity **ret, struct diag *diag)
{
	struct identity *id = calloc(1, sizeof(*id));
	if (!id)
		return -ENOMEM;
	int r = -EINVAL, why = 0;

	id->ca_pem = strdup(ca_pem);
	id->cert_pem = strdup(cert_pem);
	id->ca = identity_parse_cert(ca_pem);
	id->cert = identity_parse_cert(cert_pem);
	id->key = identity_parse_key(key_pem);
	if (!id->ca)
		identity_diag_openssl(diag, r, where, "ca.pem is not a certificate");
	else if (!id->cert)
		identity_diag_openssl(diag, r, where, "cert.pem is not a certificate");
	else if (!id->key)
		identity_diag_openssl(diag, r, where, "key.pem is not a private key");
	else if (!X509_check_private_key(id->cert, id->key))
		identity_diag_openssl(diag, r, where, "cert.pem and key.pem do not belong together");
	else if (identity_peer_of_cert(id->cert, &id->self) < 0)
		diag_set(diag, r, where, "cert.pem names no known role and name");
	else
		r = 0;
	if (r == 0) {
		id->store = X509_STORE_new();
		if (!id->store || !X509_STORE_add_cert(id->store, id->ca))
			r = -ENOMEM;
		else if (check_chain(id->store, id->cert, &why) < 0)
			r = diag_set(diag, -EACCES, where, "cert.pem: %s",
				     X509_verify_cert_error_string(why));
		else
			id->expires_wall_ms = wall_ms_of(X509_get0_notAfter(id->cert));
	}
	if (r < 0) {
		identity_free(id);
		return r;
	}
	*ret = id;
	return 0;
}

int identity_open(const char *dir, struct identity **ret, struct diag *diag)
{
	CLEANUP_FREE char *ca_pem = NULL, *cert_pem = NULL, *key_pem = NULL;
	char path[4096];
	struct stat st;

	int r = read_file(dir, "ca.pem", &ca_pem, diag);
	if (r == 0)
		r = read_file(dir, "cert.pem", &cert_pem, diag);
	if (r == 0)
		r = read_file(dir, "key.pem", &key_pem, diag);
	if (r < 0)
		return r;
	if (path_format(path, sizeof(path), "%s/key.pem", dir) == 0 && stat(path, &st) == 0 &&
	    (st.st_mode & 077) != 0)
		return diag_set(diag, -EACCES, path, "may be read by others (mode %04o, wants 0600)",
				st.st_mode & 07777);
	r = identity_from_pem(dir, ca_pem, cert_pem, key_pem, ret, diag);
	explicit_bzero(key_pem, strlen(key_pem));
	return r;
}

void identity_free(struct identity *id)
{
	if (!id)
		return;
	X509_free(id->ca);
	X509_free(id->cert);
	EVP_PKEY_free(id->key);
	X509_STORE_free(id->store);
	free(id->ca_pem);
	free(id->cert_pem);
	free(id);
}

const struct identity_peer *identity_self(const struct identity *id)
{
	return &id->self;
}

const char *identity_cert_pem(const struct identity *id)
{
	return id->cert_pem;
}

const char *identity_ca_pem_of(const struct identity *id)
{
	return id->ca_pem;
}

uint64_t identity_expires_wall_ms(const struct identity *id)
{
	return id->expires_wall_ms;
}

/* ---- TLS ---- */

static int tls_setup(const struct identity *id, SSL_CTX *ctx)
{
	if (!SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION) ||
	    !SSL_CTX_use_certificate(ctx, id->cert) || !SSL_CTX_use_PrivateKey(ctx, id->key))
		goto bad;
	X509_STORE *store = X509_STORE_new();
	if (!store || !X509_STORE_add_cert(store, id->ca)) {
		X509_STORE_free(store);
		goto bad;
	}
	SSL_CTX_set_cert_store(ctx, store); /* takes it; whatever else was trusted is gone */
	SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
	return 0;
bad:
	ERR_clear_error();
	return -EINVAL;
}

/*
 * The whole judgement of a peer's certificate: our authority, in date, and (as
 * a client) the role that we came for. Set as OpenSSL's replacement for its
 * own check, because libraries in between put their own verify callbacks on
 * each connection, and those forgive things.
 */
static int judge_peer(X509_STORE_CTX *store_ctx, void *arg)
{
	intptr_t wanted = (intptr_t)arg;
	SSL *ssl = X509_STORE_CTX_get_ex_data(store_ctx, SSL_get_ex_data_X509_STORE_CTX_idx());
	X509 *cert = X509_STORE_CTX_get0_cert(store_ctx);
	struct identity_peer peer;
	int why = X509_V_ERR_UNSPECIFIED;

	if (check_chain(SSL_CTX_get_cert_store(SSL_get_SSL_CTX(ssl)), cert, &why) < 0) {
		X509_STORE_CTX_set_error(store_ctx, why);
		return 0;
	}
	if (identity_peer_of_cert(cert, &peer) < 0 ||
	    (wanted != IDENTITY_NONE && (intptr_t)peer.role != wanted)) {
		X509_STORE_CTX_set_error(store_ctx, X509_V_ERR_SUBJECT_ISSUER_MISMATCH);
		return 0;
	}
	X509_STORE_CTX_set_error(store_ctx, X509_V_OK);
	return 1;
}

int identity_tls_setup_client(const struct identity *id, enum identity_role server_role,
			      SSL_CTX *ctx)
{
	int r = tls_setup(id, ctx);
	if (r < 0)
		return r;
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_cert_verify_callback(ctx, judge_peer, (void *)(intptr_t)server_role);
	return 0;
}

int identity_tls_setup_server(const struct identity *id, bool peer_required, SSL_CTX *ctx)
{
	int r = tls_setup(id, ctx);
	if (r < 0)
		return r;
	SSL_CTX_set_num_tickets(ctx, 0);
	SSL_CTX_set_options(ctx, SSL_OP_NO_TICKET);
	/* The authority goes along: who enrols knows it by its fingerprint only. */
	if (!SSL_CTX_add_client_CA(ctx, id->ca) || !SSL_CTX_add1_chain_cert(ctx, id->ca))
		return -ENOMEM;
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER |
				(peer_required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0), NULL);
	SSL_CTX_set_cert_verify_callback(ctx, judge_peer, (void *)(intptr_t)IDENTITY_NONE);
	return 0;
}

int identity_tls_client(const struct identity *id, enum identity_role server_role, SSL_CTX **ret)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	if (!ctx)
		return -ENOMEM;
	int r = identity_tls_setup_client(id, server_role, ctx);
	if (r < 0) {
		SSL_CTX_free(ctx);
		return r;
	}
	*ret = ctx;
	return 0;
}

int identity_tls_server(const struct identity *id, bool peer_required, SSL_CTX **ret)
{
	SSL_CTX *ctx = SSL_CTX_new(TLS_server_method());
	if (!ctx)
		return -ENOMEM;
	int r = identity_tls_setup_server(id, peer_required, ctx);
	if (r < 0) {
		SSL_CTX_free(ctx);
		return r;
	}
	*ret = ctx;
	return 0;
}

int identity_peer_of(SSL *ssl, struct identity_peer *ret)
{
	X509 *cert = SSL_get0_peer_certificate(ssl);
	if (!cert) {
		*ret = (struct identity_peer){ .role = IDENTITY_NONE };
		return 0;
	}
	if (SSL_get_verify_result(ssl) != X509_V_OK)
		return -EACCES;
	return identity_peer_of_cert(cert, ret) < 0 ? -EACCES : 0;
}

/*
 * Enrolment: the chain that the server sends must contain a self-signed
 * certificate with the known digest, and lead to it. The chain is judged
 * against that certificate alone.
 */
static int fingerprint_verify(X509_STORE_CTX *store_ctx, void *arg)
{
	const char *wanted = arg;
	STACK_OF(X509) *chain = X509_STORE_CTX_get0_untrusted(store_ctx);
	X509 *leaf = X509_STORE_CTX_get0_cert(store_ctx);

	for (int i = 0; chain && i < sk_X509_num(chain); i++) {
		char digest[IDENTITY_DIGEST_HEX + 1];
		X509 *ca = sk_X509_value(chain, i);
		if (identity_cert_digest(ca, digest) < 0 || strcasecmp(digest, wanted) != 0)
			continue;
		X509_STORE *store = X509_STORE_new();
		struct identity_peer peer;
		int why = 0;
		int ok = store && X509_STORE_add_cert(store, ca) &&
			 check_chain(store, leaf, &why) == 0 &&
			 identity_peer_of_cert(leaf, &peer) == 0 && peer.role == IDENTITY_COORDINATOR;
		X509_STORE_free(store);
		if (ok)
			return 1;
	}
	X509_STORE_CTX_set_error(store_ctx, X509_V_ERR_CERT_UNTRUSTED);
	return 0;
}

static void fingerprint_free(void *parent, void *ptr, CRYPTO_EX_DATA *ad, int index, long argl,
			     void *argp)
{
	free(ptr);
}

int identity_tls_setup_fingerprint(const char *ca_fingerprint, SSL_CTX *ctx)
{
	static int index = -1;
	if (strlen(ca_fingerprint) != IDENTITY_DIGEST_HEX)
		return -EINVAL;
	if (index < 0)
		index = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, fingerprint_free);
	char *wanted = strdup(ca_fingerprint);
	if (!wanted || !SSL_CTX_set_ex_data(ctx, index, wanted)) {
		free(wanted);
		return -ENOMEM;
	}
	if (!SSL_CTX_set_min_proto_version(ctx, TLS1_3_VERSION))
		return -EINVAL;
	SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, NULL);
	SSL_CTX_set_cert_verify_callback(ctx, fingerprint_verify, wanted);
	return 0;
}

/* ---- signatures ---- */

int identity_sign(const struct identity *id, const void *bytes, size_t len,
		  uint8_t ret_signature[IDENTITY_SIGNATURE_MAX], size_t *ret_len)
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	size_t sig_len = IDENTITY_SIGNATURE_MAX;
	int r = -EINVAL;
	if (ctx && EVP_DigestSignInit(ctx, NULL, EVP_sha256(), NULL, id->key) == 1 &&
	    EVP_DigestSign(ctx, ret_signature, &sig_len, bytes, len) == 1) {
		*ret_len = sig_len;
		r = 0;
	}
	EVP_MD_CTX_free(ctx);
	ERR_clear_error();
	return r;
}

int identity_verify(const struct identity *id, const char *cert_pem, const void *bytes, size_t len,
		    const uint8_t *signature, size_t signature_len, struct identity_peer *ret)
{
	struct identity_peer peer;
	int r = identity_check_cert(id, cert_pem, &peer, NULL);
	if (r < 0)
		return r;
	X509 *cert = identity_parse_cert(cert_pem);
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	r = -EBADMSG;
	if (cert && ctx &&
	    EVP_DigestVerifyInit(ctx, NULL, EVP_sha256(), NULL, X509_get0_pubkey(cert)) == 1 &&
	    EVP_DigestVerify(ctx, signature, signature_len, bytes, len) == 1)
		r = 0;
	EVP_MD_CTX_free(ctx);
	X509_free(cert);
	ERR_clear_error();
	if (r == 0)
		*ret = peer;
	return r;
}
