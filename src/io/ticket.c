/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <openssl/pem.h>
#include <string.h>

#include "io/identity.h"
#include "io/ticket.h"
#include "wire/ticket.h"

/* Keeps a ticket's signature from meaning anything elsewhere. */
static const char context[] = "reclaim ticket v1";

static size_t statement(const struct ticket_text *parts, uint8_t buf[sizeof(context) + TICKET_BODY_MAX])
{
	memcpy(buf, context, sizeof(context));
	memcpy(buf + sizeof(context), parts->body, parts->body_len);
	return sizeof(context) + parts->body_len;
}

static X509 *cert_read(const char *pem)
{
	BIO *bio = BIO_new_mem_buf(pem, -1);
	X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;

	BIO_free(bio);
	return cert;
}

int ticket_sign(const struct identity *id, const struct ticket *t,
			 char ret_text[TICKET_TEXT_MAX], struct diag *diag)
{
	struct ticket_text parts;
	uint8_t buf[sizeof(context) + TICKET_BODY_MAX], *der = NULL;
	X509 *cert;
	int r = ticket_encode_body(t, parts.body, sizeof(parts.body), &parts.body_len, diag), n;

	if (r < 0)
		return r;
	r = identity_sign(id, buf, statement(&parts, buf), parts.signature, &parts.signature_len);
	if (r < 0)
		return diag_set(diag, r, "ticket", "cannot sign");
	cert = cert_read(identity_cert_pem(id));
	n = cert ? i2d_X509(cert, &der) : -1;
	X509_free(cert);
	if (n <= 0 || n > TICKET_CERT_MAX) {
		OPENSSL_free(der);
		return diag_set(diag, -EINVAL, "ticket", "the signer's certificate is unusable");
	}
	memcpy(parts.cert, der, (size_t)n);
	parts.cert_len = (size_t)n;
	OPENSSL_free(der);
	return ticket_format(&parts, ret_text, TICKET_TEXT_MAX);
}

static char *cert_to_pem(const uint8_t *der, size_t len)
{
	const unsigned char *p = der;
	X509 *cert = d2i_X509(NULL, &p, (long)len);
	BIO *bio = cert ? BIO_new(BIO_s_mem()) : NULL;
	char *text = NULL, *data;

	if (bio && PEM_write_bio_X509(bio, cert) == 1) {
		long n = BIO_get_mem_data(bio, &data);

		text = n > 0 ? strndup(data, (size_t)n) : NULL;
	}
	BIO_free(bio);
	X509_free(cert);
	return text;
}

int ticket_verify(const struct identity *id, const char *text, struct ticket *ret,
			   struct diag *diag)
{
	struct ticket_text parts;
	struct identity_peer signer;
	struct ticket t;
	uint8_t buf[sizeof(context) + TICKET_BODY_MAX];
	CLEANUP_FREE char *pem = NULL;
	int r = ticket_parse(text, &parts, diag);

	if (r < 0)
		return r;
	pem = cert_to_pem(parts.cert, parts.cert_len);
	if (!pem)
		return diag_set(diag, -EBADMSG, "ticket", "the signer's certificate is damaged");
	r = identity_verify(id, pem, buf, statement(&parts, buf), parts.signature,
			    parts.signature_len, &signer);
	if (r == -EACCES)
		return diag_set(diag, r, "ticket", "signed by a certificate that is not of our authority");
	if (r < 0)
		return diag_set(diag, -EBADMSG, "ticket", "the signature does not fit");
	if (signer.role != IDENTITY_COORDINATOR)
		return diag_set(diag, -EACCES, "ticket", "signed by %s, who is not the coordinator",
				signer.name);
	r = ticket_decode_body(parts.body, parts.body_len, &t, diag);
	if (r == 0)
		*ret = t;
	return r;
}
