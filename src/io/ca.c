/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making identities: the campus's certificate authority, keys, requests,
 * signing. Key files are written with mode 0600 before anything refers to
 * them.
 */
#include <errno.h>
#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "base/file.h"
#include "base/rng.h"
#include "io/identity.h"
#include "io/identity_internal.h"

#define CA_VALID_S (UINT64_C(20) * 365 * 86400)
#define CSR_PEM_MAX (16u << 10)
#define BACKDATE_S 3600 /* clocks of a campus are never quite equal */

struct identity_ca {
	X509 *cert;
	EVP_PKEY *key;
	char *pem;
	char fingerprint[IDENTITY_DIGEST_HEX + 1];
};

static char *bio_text(BIO *bio)
{
	char *data;
	long len = BIO_get_mem_data(bio, &data);
	return len > 0 ? strndup(data, (size_t)len) : NULL;
}

static char *cert_pem_of(X509 *cert)
{
	BIO *bio = BIO_new(BIO_s_mem());
	char *pem = bio && PEM_write_bio_X509(bio, cert) ? bio_text(bio) : NULL;
	BIO_free(bio);
	return pem;
}

static int write_key(const char *path, EVP_PKEY *key)
{
	BIO *bio = BIO_new(BIO_s_secmem());
	int r = -ENOMEM;
	if (bio && PEM_write_bio_PKCS8PrivateKey(bio, key, NULL, NULL, 0, NULL, NULL)) {
		char *data;
		long len = BIO_get_mem_data(bio, &data);
		r = file_write_atomic(path, data, (size_t)len, 0600);
	}
	BIO_free(bio);
	return r;
}

static int set_serial(X509 *cert)
{
	uint8_t bytes[16];
	int r = random_bytes(bytes, sizeof(bytes));
	if (r < 0)
		return r;
	bytes[0] &= 0x7f; /* positive */
	bytes[0] |= 0x40; /* and of one length */
	BIGNUM *bn = BN_bin2bn(bytes, sizeof(bytes), NULL);
	r = bn && BN_to_ASN1_INTEGER(bn, X509_get_serialNumber(cert)) ? 0 : -ENOMEM;
	BN_free(bn);
	return r;
}

static bool add_extension(X509 *cert, X509 *issuer, int nid, const char *value)
{
	X509V3_CTX ctx;
	X509V3_set_ctx_nodb(&ctx);
	X509V3_set_ctx(&ctx, issuer, cert, NULL, NULL, 0);
	X509_EXTENSION *ext = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
	bool ok = ext && X509_add_ext(cert, ext, -1);
	X509_EXTENSION_free(ext);
	return ok;
}

static bool set_subject(X509_NAME *name, const char *cn, const char *o)
{
	return X509_NAME_add_entry_by_NID(name, NID_commonName, MBSTRING_UTF8,
					  (const unsigned char *)cn, -1, -1, 0) &&
	       X509_NAME_add_entry_by_NID(name, NID_organizationName, MBSTRING_UTF8,
					  (const unsigned char *)o, -1, -1, 0);
}

static bool set_dates(X509 *cert, uint64_t valid_s)
{
	time_t now = time(NULL);
	return X509_time_adj_ex(X509_getm_notBefore(cert), 0, -BACKDATE_S, &now) &&
	       X509_time_adj_ex(X509_getm_notAfter(cert), (int)(valid_s / 86400),
				(long)(valid_s % 86400), &now);
}

/* Certificate of `key`; self-signed as an authority when ca is NULL. */
static int make_cert(struct identity_ca *ca, EVP_PKEY *key, const char *cn, const char *o,
		     uint64_t valid_s, X509 **ret)
{
	X509 *cert = X509_new();
	X509 *issuer = ca ? ca->cert : cert;
	bool ok = cert && X509_set_version(cert, X509_VERSION_3) && set_serial(cert) == 0 &&
		  set_dates(cert, valid_s) && set_subject(X509_get_subject_name(cert), cn, o) &&
		  X509_set_issuer_name(cert, X509_get_subject_name(issuer)) &&
		  X509_set_pubkey(cert, key);
	if (ok && ca)
		ok = add_extension(cert, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
		     add_extension(cert, issuer, NID_key_usage, "critical,digitalSignature") &&
		     add_extension(cert, issuer, NID_ext_key_usage, "clientAuth,serverAuth");
	else if (ok)
		ok = add_extension(cert, issuer, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
		     add_extension(cert, issuer, NID_key_usage, "critical,keyCertSign,cRLSign") &&
		     add_extension(cert, issuer, NID_subject_key_identifier, "hash");
	if (!ok || !X509_sign(cert, ca ? ca->key : key, EVP_sha256())) {
		X509_free(cert);
		return -EINVAL;
	}
	*ret = cert;
	return 0;
}

int identity_ca_create(const char *dir, const char *campus, struct diag *diag)
{
	char path[4096];
	if (!identity_name_is_valid(campus))
		return diag_set(diag, -EINVAL, "campus", "\"%s\" is no valid name", campus);
	int r = path_format(path, sizeof(path), "%s/ca.key", dir);
	if (r < 0)
		return diag_set(diag, r, dir, "path is too long");
	if (access(path, F_OK) == 0)
		return diag_set(diag, -EEXIST, path, "already there: this campus has an authority");
	r = dir_make_all(dir, 0700);
	if (r < 0)
		return diag_set(diag, r, dir, "cannot be made: %s", strerror(-r));

	EVP_PKEY *key = EVP_EC_gen("P-256");
	X509 *cert = NULL;
	CLEANUP_FREE char *pem = NULL;
	r = key ? make_cert(NULL, key, campus, "campus", CA_VALID_S, &cert) : -ENOMEM;
	if (r < 0) {
		r = identity_diag_openssl(diag, r, dir, "no certificate authority could be made");
		goto out;
	}
	pem = cert_pem_of(cert);
	char pem_path[4096];
	r = pem ? path_format(pem_path, sizeof(pem_path), "%s/ca.pem", dir) : -ENOMEM;
	/* The certificate first: ca.key is what says "there is an authority". */
	if (r == 0)
		r = file_write_atomic(pem_path, pem, strlen(pem), 0644);
	if (r == 0)
		r = write_key(path, key);
	if (r < 0)
		diag_set(diag, r, dir, "cannot be written: %s", strerror(-r));
out:
	X509_free(cert);
	EVP_PKEY_free(key);
	return r;
}

int identity_ca_open(const char *dir, struct identity_ca **ret, struct diag *diag)
{
	char path[4096];
	CLEANUP_FREE char *key_pem = NULL;
	size_t len;
	struct identity_ca *ca = calloc(1, sizeof(*ca));
	if (!ca)
		return -ENOMEM;
	int r = path_format(path, sizeof(path), "%s/ca.pem", dir);
	if (r == 0)
		r = file_read(path, 1 << 20, &ca->pem, &len);
	if (r == 0)
		r = path_format(path, sizeof(path), "%s/ca.key", dir);
	if (r == 0)
		r = file_read(path, 1 << 20, &key_pem, &len);
	if (r < 0) {
		diag_set(diag, r, path, "cannot be read: %s", strerror(-r));
		goto bad;
	}
	ca->cert = identity_parse_cert(ca->pem);
	ca->key = identity_parse_key(key_pem);
	explicit_bzero(key_pem, len);
	r = -EINVAL;
	if (!ca->cert || !ca->key || !X509_check_private_key(ca->cert, ca->key)) {
		identity_diag_openssl(diag, r, dir, "ca.pem and ca.key do not belong together");
		goto bad;
	}
	r = identity_cert_digest(ca->cert, ca->fingerprint);
	if (r < 0)
		goto bad;
	*ret = ca;
	return 0;
bad:
	identity_ca_free(ca);
	return r;
}

void identity_ca_free(struct identity_ca *ca)
{
	if (!ca)
		return;
	X509_free(ca->cert);
	EVP_PKEY_free(ca->key);
	free(ca->pem);
	free(ca);
}

const char *identity_ca_pem(const struct identity_ca *ca)
{
	return ca->pem;
}

const char *identity_ca_fingerprint(const struct identity_ca *ca)
{
	return ca->fingerprint;
}

int identity_ca_sign(struct identity_ca *ca, const char *csr_pem, const char *name,
		     enum identity_role role, uint64_t valid_s, char **ret_pem,
		     char ret_serial[IDENTITY_SERIAL_MAX + 1], struct diag *diag)
{
	if (!identity_name_is_valid(name))
		return diag_set(diag, -EINVAL, "name", "\"%.80s\" is no valid name", name);
	if (strlen(csr_pem) > CSR_PEM_MAX)
		return diag_set(diag, -EINVAL, "csr", "is longer than %u bytes", CSR_PEM_MAX);
	BIO *bio = BIO_new_mem_buf(csr_pem, -1);
	X509_REQ *req = bio ? PEM_read_bio_X509_REQ(bio, NULL, NULL, (void *)"") : NULL;
	BIO_free(bio);
	if (!req)
		return identity_diag_openssl(diag, -EINVAL, "csr", "is no PEM certificate request");

	EVP_PKEY *key = X509_REQ_get0_pubkey(req);
	X509 *cert = NULL;
	char *pem = NULL;
	struct identity_peer peer;
	int r = -EINVAL;
	/* The request's own signature shows that the sender holds the key. */
	if (!key || X509_REQ_verify(req, key) != 1)
		identity_diag_openssl(diag, r, "csr", "is not signed by its own key");
	else if (EVP_PKEY_get_base_id(key) != EVP_PKEY_EC &&
		 EVP_PKEY_get_base_id(key) != EVP_PKEY_ED25519)
		diag_set(diag, r, "csr", "wants an elliptic-curve key");
	else if ((r = make_cert(ca, key, name, identity_role_name(role), valid_s, &cert)) < 0)
		identity_diag_openssl(diag, r, "csr", "could not be signed");
	else if (!(pem = cert_pem_of(cert)))
		r = -ENOMEM;
	else
		r = identity_peer_of_cert(cert, &peer);
	if (r == 0) {
		*ret_pem = TAKE(pem);
		if (ret_serial)
			memcpy(ret_serial, peer.serial, sizeof(peer.serial));
	}
	free(pem);
	X509_free(cert);
	X509_REQ_free(req);
	ERR_clear_error();
	return r;
}

/* The key of the folder, made if there is none. */
static int folder_key(const char *dir, EVP_PKEY **ret, struct diag *diag)
{
	char path[4096];
	CLEANUP_FREE char *pem = NULL;
	size_t len;
	int r = path_format(path, sizeof(path), "%s/key.pem", dir);
	if (r == 0)
		r = dir_make_all(dir, 0700);
	if (r < 0)
		return diag_set(diag, r, dir, "cannot be made: %s", strerror(-r));
	r = file_read(path, 1 << 20, &pem, &len);
	if (r == 0) {
		*ret = identity_parse_key(pem);
		explicit_bzero(pem, len);
		return *ret ? 0 : identity_diag_openssl(diag, -EINVAL, path, "is not a private key");
	}
	if (r != -ENOENT)
		return diag_set(diag, r, path, "cannot be read: %s", strerror(-r));
	EVP_PKEY *key = EVP_EC_gen("P-256");
	r = key ? write_key(path, key) : -ENOMEM;
	if (r < 0) {
		EVP_PKEY_free(key);
		return diag_set(diag, r, path, "cannot be written: %s", strerror(-r));
	}
	*ret = key;
	return 0;
}

int identity_request(const char *dir, const char *name, char **ret_csr_pem, struct diag *diag)
{
	EVP_PKEY *key = NULL;
	int r = folder_key(dir, &key, diag);
	if (r < 0)
		return r;
	X509_REQ *req = X509_REQ_new();
	BIO *bio = BIO_new(BIO_s_mem());
	char *pem = NULL;
	if (req && bio && X509_REQ_set_version(req, 0) &&
	    X509_NAME_add_entry_by_NID(X509_REQ_get_subject_name(req), NID_commonName, MBSTRING_UTF8,
				       (const unsigned char *)name, -1, -1, 0) &&
	    X509_REQ_set_pubkey(req, key) && X509_REQ_sign(req, key, EVP_sha256()) &&
	    PEM_write_bio_X509_REQ(bio, req))
		pem = bio_text(bio);
	BIO_free(bio);
	X509_REQ_free(req);
	EVP_PKEY_free(key);
	if (!pem)
		return identity_diag_openssl(diag, -EINVAL, dir, "no request could be made");
	*ret_csr_pem = pem;
	return 0;
}

int identity_install(const char *dir, const char *ca_pem, const char *cert_pem, struct diag *diag)
{
	char path[4096];
	CLEANUP_FREE char *key_pem = NULL;
	size_t len;
	int r = path_format(path, sizeof(path), "%s/key.pem", dir);
	if (r == 0)
		r = file_read(path, 1 << 20, &key_pem, &len);
	if (r < 0)
		return diag_set(diag, r, dir, "key.pem cannot be read: %s", strerror(-r));
	CLEANUP_IDENTITY struct identity *id = NULL;
	r = identity_from_pem(dir, ca_pem, cert_pem, key_pem, &id, diag);
	explicit_bzero(key_pem, len);
	if (r < 0)
		return r;
	CHECK(path_format(path, sizeof(path), "%s/ca.pem", dir) == 0);
	r = file_write_atomic(path, ca_pem, strlen(ca_pem), 0644);
	CHECK(path_format(path, sizeof(path), "%s/cert.pem", dir) == 0);
	if (r == 0)
		r = file_write_atomic(path, cert_pem, strlen(cert_pem), 0644);
	if (r < 0)
		return diag_set(diag, r, path, "cannot be written: %s", strerror(-r));
	return 0;
}
