/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by identity.c and ca.c. */
#ifndef RECLAIM_IO_IDENTITY_INTERNAL_H
#define RECLAIM_IO_IDENTITY_INTERNAL_H

#include <openssl/evp.h>
#include <openssl/x509.h>

#include "io/identity.h"

/* Puts OpenSSL's own reason behind `what`, clears its queue, returns err. */
int identity_diag_openssl(struct diag *diag, int err, const char *where, const char *what);
X509 *identity_parse_cert(const char *pem); /* NULL if it is none */
EVP_PKEY *identity_parse_key(const char *pem);
int identity_cert_digest(X509 *cert, char ret[IDENTITY_DIGEST_HEX + 1]);
/* The subject's name and role; -EINVAL if it lacks or repeats them. Does not verify. */
int identity_peer_of_cert(X509 *cert, struct identity_peer *ret);
int identity_from_pem(const char *where, const char *ca_pem, const char *cert_pem,
		      const char *key_pem, struct identity **ret, struct diag *diag);

#endif
