/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames of an image transfer, inside TLS 1.3. Little-endian; a header of
 * eight bytes (type, zero, length of the body), then the body. Pure encode and
 * decode; docs/protocol.md has the conversation and test vectors.
 *
 * Limits are part of the format: a peer that sends more is cut off, so a
 * receiver's memory does not depend on who talks to it.
 */
#ifndef RECLAIM_WIRE_TRANSFER_FRAME_H
#define RECLAIM_WIRE_TRANSFER_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "wire/ticket.h"

#define TRANSFER_VERSION 1
#define TRANSFER_HEADER_LEN 8
#define TRANSFER_BODY_MAX 65536u              /* of every frame but CHUNK's payload */
#define TRANSFER_PAYLOAD_MAX ((4u << 20) + 4096u) /* largest chunk, sealed or incompressible */
#define TRANSFER_STREAMS_MAX 8
#define TRANSFER_BASES_MAX 4
#define TRANSFER_TEXT_MAX 480

enum transfer_frame_type {
	TRANSFER_HELLO = 1, /* client: who, which session and stream, the ticket */
	TRANSFER_OFFER,     /* sender: the image, what it can be a delta of */
	TRANSFER_MANIFEST,  /* sender: bytes of the manifest, in order */
	TRANSFER_NEED,      /* receiver: a piece of the bitmap of lacking chunks */
	TRANSFER_PARTIAL,   /* receiver: the beginning of a payload that it kept */
	TRANSFER_READY,     /* receiver: that was all; which base it has */
	TRANSFER_CHUNK,     /* sender: one chunk, payload follows */
	TRANSFER_NAK,       /* receiver: this chunk was not what it should be; send it again whole */
	TRANSFER_PROGRESS,  /* receiver: what has arrived */
	TRANSFER_END,       /* sender: every lacking chunk has been sent */
	TRANSFER_COMMITTED, /* receiver: the image is whole and on disk */
	TRANSFER_FAIL,      /* either: a named error; the connection ends */
	TRANSFER_TYPE_COUNT,
};

/* Named errors, the same on the wire, in the agent's callbacks and in --json. */
enum transfer_code {
	TRANSFER_OK = 0,
	TRANSFER_E_VERSION,    /* the peer speaks another version */
	TRANSFER_E_PROTOCOL,   /* a frame that makes no sense here */
	TRANSFER_E_TICKET,     /* unsigned, forged, for somebody or something else */
	TRANSFER_E_EXPIRED,    /* its time is over */
	TRANSFER_E_EPOCH,      /* an older incarnation, or an older image than is held */
	TRANSFER_E_PEER,       /* certificate not of our CA, or not the ticket's */
	TRANSFER_E_SPACE,      /* no room; nothing was written */
	TRANSFER_E_DAMAGED,    /* a chunk or manifest is not what its digest says */
	TRANSFER_E_MISSING,    /* the image or chunk is not held (any more) */
	TRANSFER_E_KEY,        /* the job's key is missing or another */
	TRANSFER_E_BUSY,       /* too many sessions, or the same image is arriving already */
	TRANSFER_E_CANCELLED,
	TRANSFER_E_SUPERSEDED, /* a newer commit took its place */
	TRANSFER_E_LINK,       /* connection lost and not found again in time */
	TRANSFER_E_CRASHED,    /* the helper process died */
	TRANSFER_E_IO,         /* the disk, with errno in the text */
	TRANSFER_CODE_COUNT,
};
extern const char *const transfer_code_names[TRANSFER_CODE_COUNT + 1]; /* "ok", "version", ... */
const char *transfer_code_name(enum transfer_code code);
/* Unknown text gives TRANSFER_E_PROTOCOL. */
enum transfer_code transfer_code_parse(const char *text);

enum transfer_mode { TRANSFER_MODE_SEND = 1, TRANSFER_MODE_FETCH = 2 };

struct transfer_hello {
	uint16_t version;
	enum transfer_mode mode; /* of the client */
	uint8_t stream, streams; /* this connection's number, of how many */
	uint8_t session[16];     /* random, of the client; groups the streams */
	uint8_t image[32];       /* which image */
	char ticket[TICKET_TEXT_MAX]; /* on stream 0; "" on the others */
};

struct transfer_offer {
	uint8_t image[32];
	uint64_t manifest_len;
	bool has_key;
	uint8_t key[32]; /* of the job: lets the receiver apply deltas; held in memory only */
	uint8_t bases[TRANSFER_BASES_MAX][32];
	uint8_t base_count;
};

struct transfer_need {
	uint32_t first, count;   /* chunk numbers; bit i of bitmap is chunk first + i */
	const uint8_t *bitmap;   /* into the frame's body; (count + 7) / 8 bytes */
};
#define TRANSFER_NEED_MAX (1u << 18) /* chunks in one frame */

enum transfer_codec {
	TRANSFER_SEALED = 0, /* the chunk as stored: sealed with the job's key */
	TRANSFER_ZSTD,       /* zstd of the plain chunk */
	TRANSFER_DELTA,      /* zstd of the byte planes of the difference to a base chunk */
	TRANSFER_CODEC_COUNT,
};

struct transfer_chunk {
	uint32_t index;       /* in the manifest */
	enum transfer_codec codec;
	uint32_t base_index;  /* TRANSFER_DELTA: in the base's manifest */
	uint32_t payload_len; /* whole */
	uint32_t offset;      /* of the first byte that follows; > 0 when resumed */
	uint8_t check[8];     /* XXH3-64 of the whole payload, big-endian canonical */
};
#define TRANSFER_CHUNK_BODY_LEN 28 /* then payload_len - offset bytes */

struct transfer_partial {
	struct transfer_chunk chunk; /* as it was sent; chunk.offset = bytes kept */
};

struct transfer_ready {
	uint64_t lacking;     /* chunks */
	uint64_t lacking_bytes; /* as stored */
	uint8_t base;         /* index into the offer's bases, 0xff = none */
};

struct transfer_progress {
	uint64_t chunks, bytes; /* stored so far in this session; payload bytes */
};

struct transfer_fail {
	enum transfer_code code;
	char text[TRANSFER_TEXT_MAX + 1];
};

struct transfer_header {
	enum transfer_frame_type type;
	uint32_t len; /* of the body, for CHUNK with the payload */
};

/* Encoders write header and body and return the length, or -ENOBUFS / -EINVAL.
 * CHUNK's encoder leaves the payload to the caller. */
int transfer_encode_hello(const struct transfer_hello *m, uint8_t *buf, size_t size);
int transfer_encode_offer(const struct transfer_offer *m, uint8_t *buf, size_t size);
int transfer_encode_need(const struct transfer_need *m, uint8_t *buf, size_t size);
int transfer_encode_partial(const struct transfer_partial *m, uint8_t *buf, size_t size);
int transfer_encode_ready(const struct transfer_ready *m, uint8_t *buf, size_t size);
int transfer_encode_chunk(const struct transfer_chunk *m, uint8_t *buf, size_t size);
int transfer_encode_nak(uint32_t index, uint8_t *buf, size_t size);
int transfer_encode_progress(const struct transfer_progress *m, uint8_t *buf, size_t size);
int transfer_encode_end(uint64_t chunks, uint8_t *buf, size_t size);
int transfer_encode_committed(const uint8_t image[32], uint8_t *buf, size_t size);
int transfer_encode_fail(const struct transfer_fail *m, uint8_t *buf, size_t size);
/* A MANIFEST frame's header; len bytes follow. */
int transfer_encode_manifest(uint32_t len, uint8_t *buf, size_t size);

/* Decoders take the body (CHUNK: its first TRANSFER_CHUNK_BODY_LEN bytes) and return 0 or
 * -EBADMSG with diag; ret is written only on success. */
int transfer_decode_header(const uint8_t buf[TRANSFER_HEADER_LEN], struct transfer_header *ret,
			   struct diag *diag);
int transfer_decode_hello(const uint8_t *body, size_t len, struct transfer_hello *ret,
			  struct diag *diag);
int transfer_decode_offer(const uint8_t *body, size_t len, struct transfer_offer *ret,
			  struct diag *diag);
int transfer_decode_need(const uint8_t *body, size_t len, struct transfer_need *ret,
			 struct diag *diag);
int transfer_decode_partial(const uint8_t *body, size_t len, struct transfer_partial *ret,
			    struct diag *diag);
int transfer_decode_ready(const uint8_t *body, size_t len, struct transfer_ready *ret,
			  struct diag *diag);
/* body_len: of the whole frame, to check payload_len - offset against. */
int transfer_decode_chunk(const uint8_t *body, size_t body_len, struct transfer_chunk *ret,
			  struct diag *diag);
int transfer_decode_nak(const uint8_t *body, size_t len, uint32_t *ret, struct diag *diag);
int transfer_decode_progress(const uint8_t *body, size_t len, struct transfer_progress *ret,
			     struct diag *diag);
int transfer_decode_end(const uint8_t *body, size_t len, uint64_t *ret, struct diag *diag);
int transfer_decode_committed(const uint8_t *body, size_t len, uint8_t ret[32],
			      struct diag *diag);
int transfer_decode_fail(const uint8_t *body, size_t len, struct transfer_fail *ret,
			 struct diag *diag);

#endif
