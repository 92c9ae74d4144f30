/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ticket: leave to move one job's image from one machine to another. The
 * coordinator signs the encoded body (io/identity.h); both ends check it. This
 * file is the pure part: body and text form.
 *
 *     text = "rt1." base64url(body) "." base64url(signature) "." base64url(certificate, DER)
 *
 * Time: remaining_ms is counted by each holder from when it first saw the
 * serial, so no two clocks need agree; a reconnect does not start it again.
 * What ends a stray ticket for good is the epoch, which receivers fence.
 */
#ifndef RECLAIM_WIRE_TICKET_H
#define RECLAIM_WIRE_TICKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "wire/traffic_class.h"

#define TICKET_NAME_MAX 64    /* bytes of a job id or a machine name */
#define TICKET_DIGEST_HEX 64  /* SHA-256 of a certificate (DER), lower-case hexadecimal */
#define TICKET_SERIAL_MAX 32
#define TICKET_BODY_MAX 1024
#define TICKET_SIGNATURE_MAX 128
#define TICKET_CERT_MAX 4096
#define TICKET_TEXT_MAX 8192

enum ticket_use {
	TICKET_MOVE = 1, /* source sends, destination may start the job */
	TICKET_STAGE,    /* source sends ahead of a move; superseded by newer images */
	TICKET_FETCH,    /* destination asks source for an image that it holds */
	TICKET_STANDBY,  /* a move decided by the source while no coordinator answers */
	TICKET_USE_COUNT,
};
extern const char *const ticket_use_names[TICKET_USE_COUNT + 1]; /* [0] is "none" */

struct ticket {
	char serial[TICKET_SERIAL_MAX + 1]; /* unique per ticket; [A-Za-z0-9._-] */
	enum ticket_use use;
	char job[TICKET_NAME_MAX + 1];
	uint64_t epoch;         /* of the incarnation whose image moves */
	bool image_any;         /* any image of that job and epoch */
	uint8_t image[32];      /* else exactly this one */
	/* Who holds the image and who gets it. An empty digest accepts any certificate of
	 * that name, so that a renewal does not void standby tickets. */
	char source[TICKET_NAME_MAX + 1];
	char source_digest[TICKET_DIGEST_HEX + 1];
	char destination[TICKET_NAME_MAX + 1];
	char destination_digest[TICKET_DIGEST_HEX + 1];
	uint64_t remaining_ms;
	uint64_t floor_bps;     /* bit/s granted; 0 = none */
	enum traffic_class traffic_class;
	bool hold_only;         /* the destination only keeps it: it is not given the job's key */
};

/* 0 or -EINVAL with diag (a field out of bounds), -ENOBUFS. */
int ticket_encode_body(const struct ticket *t, uint8_t *buf, size_t buf_size, size_t *ret_len,
		       struct diag *diag);
/* 0 or -EBADMSG with diag. ret is written only on success. */
int ticket_decode_body(const uint8_t *body, size_t len, struct ticket *ret, struct diag *diag);

/* The parts of a ticket's text. */
struct ticket_text {
	uint8_t body[TICKET_BODY_MAX];
	size_t body_len;
	uint8_t signature[TICKET_SIGNATURE_MAX];
	size_t signature_len;
	uint8_t cert[TICKET_CERT_MAX]; /* DER of the signer's certificate */
	size_t cert_len;
};
int ticket_format(const struct ticket_text *parts, char *buf, size_t buf_size);
int ticket_parse(const char *text, struct ticket_text *ret, struct diag *diag);

#endif
