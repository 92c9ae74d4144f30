/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames between stream nodes. docs/protocol.md, "Streams", is the text; the
 * vectors there are checked by stream_frame_test.c.
 *
 * Every frame is an 8-byte head (type, class, 16 zero bits, u32 length of what
 * follows) and a body, little-endian. RUN and FRAG carry messages: their fixed
 * part is decoded in place and the payload stays where it is. All others are
 * small and decode into one struct. Nothing here is trusted: lengths are
 * bounded, names are plain, enums are checked.
 */
#ifndef RECLAIM_WIRE_STREAM_FRAME_H
#define RECLAIM_WIRE_STREAM_FRAME_H

#include <stdint.h>

#include "wire/bytes.h"

#define STREAM_PROTOCOL 1
#define STREAM_NAME_MAX 63     /* bytes of an endpoint's name */
#define STREAM_TICKET_MAX 512
#define STREAM_LOCATOR_MAX 127
#define STREAM_FRAME_HEAD 8
#define STREAM_RUN_HEAD 32     /* with the frame head */
#define STREAM_FRAG_HEAD 40
#define STREAM_RECORD_HEAD 4   /* u32 length before each message of a RUN */
#define STREAM_SMALL_MAX 2048  /* body of a frame that is neither RUN, FRAG nor STATE */
#define STREAM_BODY_MAX (4u << 20) /* of RUN, FRAG, STATE; a longer length is a broken peer */
#define STREAM_MESSAGE_MAX (1u << 30)

enum stream_frame_type {
	STREAM_FRAME_HELLO = 1, /* first on a link: version, who connects */
	STREAM_FRAME_ATTACH,    /* sender: a stream wants to send to (eid, epoch) */
	STREAM_FRAME_WELCOME,   /* owner: activated; send from next, up to limit */
	STREAM_FRAME_NACK,      /* owner: not here; why */
	STREAM_FRAME_RUN,       /* many complete messages */
	STREAM_FRAME_FRAG,      /* a piece of a long message */
	STREAM_FRAME_ACK,       /* delivered, stable, credit */
	STREAM_FRAME_FREEZE,    /* owner: stop, I delivered up to `seq` */
	STREAM_FRAME_RESUME,    /* owner: the move was called off, send from next */
	STREAM_FRAME_PREPARE,   /* owner: epoch+1 will be at `locator`, connect ahead */
	STREAM_FRAME_ABORT,     /* either side: this stream ends now; code */
	STREAM_FRAME_CLOSE,     /* sender: the stream ends after `seq` */
	STREAM_FRAME_BEAT,      /* both: alive; the owner says how long its lease still runs */
	STREAM_FRAME_OFFER,     /* S to T: attempt `hid` of (eid, epoch) begins */
	STREAM_FRAME_READY,     /* T to S: buffers there, what was sent ahead is in */
	STREAM_FRAME_STATE,     /* S to T: bytes of the state */
	STREAM_FRAME_CUT,       /* S to T: frozen, state complete, install and commit */
	STREAM_FRAME_MOVED,     /* T to S: committed (code 0), or refused (code) */
	STREAM_FRAME_COUNT,
};

enum stream_class {
	STREAM_CONTROL,
	STREAM_TOKEN,
	STREAM_ACTIVATION,
	STREAM_BULK,
	STREAM_CLASS_COUNT,
};

enum stream_nack {
	STREAM_NACK_MOVED = 1, /* a higher epoch exists: ask for the route */
	STREAM_NACK_STALE,     /* the sender's own epoch is old: it is fenced */
	STREAM_NACK_FROZEN,    /* moving: hold, an answer follows */
	STREAM_NACK_UNKNOWN,   /* no such endpoint here */
	STREAM_NACK_REFUSED,   /* ticket does not fit */
	STREAM_NACK_LOST,      /* what the owner needs the sender has forgotten */
	STREAM_NACK_COUNT,
};

enum stream_state_kind {
	STREAM_STATE_AHEAD,   /* application state sent while still running */
	STREAM_STATE_FINAL,   /* application state after the freeze */
	STREAM_STATE_LIBRARY, /* cursors and retained output (src/stream/image.h) */
	STREAM_STATE_KIND_COUNT,
};

/* Which fields a type uses stands in stream_frame.c, one row per type. */
struct stream_frame {
	uint8_t type;
	uint8_t cls;
	uint8_t level;   /* ATTACH: flags, see STREAM_ATTACH_* */
	uint8_t kind;    /* STATE: enum stream_state_kind */
	uint32_t handle; /* the sender's number for the stream on this link */
	uint32_t code;
	uint64_t epoch;  /* of the endpoint */
	uint64_t seq;
	uint64_t stable;
	uint64_t limit;  /* absolute byte credit since the attach */
	uint64_t hid;
	uint32_t offset;
	uint32_t total;
	uint32_t count;
	uint64_t producer_epoch;
	uint32_t stream;       /* the producer's own number for the stream, lasting */
	char name[STREAM_NAME_MAX + 1];     /* endpoint */
	char producer[STREAM_NAME_MAX + 1];
	char locator[STREAM_LOCATOR_MAX + 1];
	const uint8_t *blob;   /* ticket or state bytes; a view into the input */
	size_t blob_len;
};

/* The class byte of an ABORT says whose stream the handle is of. */
#define STREAM_ABORT_BY_SENDER 0u
#define STREAM_ABORT_BY_OWNER 1u

#define STREAM_ATTACH_DETERMINISTIC 1u /* regenerated messages may be checked by digest */

/* Appends one frame; -ENOBUFS when it does not fit, -EINVAL for a field beyond its limit. */
int stream_frame_encode(const struct stream_frame *f, struct bytes_out *out);

/*
 * Reads one frame from the front. Returns the bytes it takes, 0 when more are
 * needed, or -EBADMSG. For RUN, FRAG and STATE only the fixed part must be
 * there: *ret_payload is the length of the rest, and the return value covers
 * the fixed part alone.
 */
int stream_frame_decode(const uint8_t *data, size_t len, struct stream_frame *ret,
			uint32_t *ret_payload);

const char *stream_frame_name(unsigned type);
const char *stream_class_name(unsigned cls);
const char *stream_nack_name(unsigned code);
/* 1 to STREAM_NAME_MAX bytes of letters, digits and "-_./:", not starting with a dot. */
bool stream_name_valid(const char *name);

/* The two hot heads, written without a table. */
static inline void stream_run_head(uint8_t *p, uint8_t cls, uint32_t handle, uint32_t count,
				   uint64_t epoch, uint64_t seq, uint32_t payload)
{
	store_le32(p, (uint32_t)STREAM_FRAME_RUN | (uint32_t)cls << 8);
	store_le32(p + 4, STREAM_RUN_HEAD - STREAM_FRAME_HEAD + payload);
	store_le32(p + 8, handle);
	store_le32(p + 12, count);
	store_le64(p + 16, epoch);
	store_le64(p + 24, seq);
}

/* The head of a RUN that lies whole at p, with the checks of stream_frame_decode(). */
static inline bool stream_run_decode(const uint8_t *p, size_t len, struct stream_frame *ret,
				     uint32_t *ret_payload)
{
	if (len < STREAM_RUN_HEAD || p[0] != STREAM_FRAME_RUN || p[1] >= STREAM_CLASS_COUNT || p[2] ||
	    p[3])
		return false;
	uint32_t body = load_le32(p + 4), payload = body - (STREAM_RUN_HEAD - STREAM_FRAME_HEAD);

	ret->type = STREAM_FRAME_RUN;
	ret->cls = p[1];
	ret->handle = load_le32(p + 8);
	ret->count = load_le32(p + 12);
	ret->epoch = load_le64(p + 16);
	ret->seq = load_le64(p + 24);
	*ret_payload = payload;
	return body >= STREAM_RUN_HEAD - STREAM_FRAME_HEAD && payload <= STREAM_BODY_MAX &&
	       ret->count > 0 && ret->seq > 0 && ret->seq < UINT64_MAX - ret->count &&
	       (uint64_t)ret->count * STREAM_RECORD_HEAD <= payload;
}

static inline void stream_frag_head(uint8_t *p, uint8_t cls, uint32_t handle, uint64_t epoch,
				    uint64_t seq, uint32_t total, uint32_t offset, uint32_t payload)
{
	store_le32(p, (uint32_t)STREAM_FRAME_FRAG | (uint32_t)cls << 8);
	store_le32(p + 4, STREAM_FRAG_HEAD - STREAM_FRAME_HEAD + payload);
	store_le32(p + 8, handle);
	store_le32(p + 12, 0);
	store_le64(p + 16, epoch);
	store_le64(p + 24, seq);
	store_le32(p + 32, total);
	store_le32(p + 36, offset);
}

#endif
