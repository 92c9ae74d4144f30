/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The notice as the guest sees it: one JSON document in a file (by rename), on the
 * cloud spot paths, and on the guest's socket. Pure but for notice_write().
 */
#ifndef RECLAIM_JOB_NOTICE_H
#define RECLAIM_JOB_NOTICE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/strbuf.h"

enum notice_kind {
	NOTICE_NONE = 0,   /* nobody wants the machine */
	NOTICE_RECLAIM,
	NOTICE_CANCELLED,  /* a notice was withdrawn: go on */
	NOTICE_CHECKPOINT, /* "save when you can"; nothing ends */
};

struct notice {
	enum notice_kind kind;
	const char *id;       /* borrowed */
	uint64_t epoch;
	uint64_t window_ns;
	uint64_t deadline_ns; /* CLOCK_BOOTTIME */
};

/*
 * {"action","time","remaining_s","deadline","window_s","epoch","id"}. action is
 * "terminate" (the cloud's word for it), "none" after a cancel, "checkpoint". time and
 * deadline are the same instant, as RFC 3339 text and in seconds of the epoch, by this
 * machine's wall clock; remaining_s is exact at the moment of writing. A new reference.
 */
json_t *notice_document(const struct notice *n, uint64_t now_boot_ns, uint64_t now_wall_ms);
/* Writes it by rename; NONE removes the file. 0 or -errno. */
int notice_write(const char *path, const struct notice *n, uint64_t now_boot_ns, uint64_t now_wall_ms);

/* ---- cloud spot paths over HTTP/1 ---- */

#define METADATA_REQUEST_MAX 8192

struct metadata_effect {
	bool ack;   /* Azure's StartRequests: "done, take me" */
	bool wait;  /* GCP's wait_for_change: answer when the notice changes */
	bool close; /* the connection ends after the answer */
};

/*
 * Answers the first request in the bytes. Bytes used (> 0) with an answer appended to
 * out (none if effect.wait), 0 if the request is not whole yet, -EPROTO for what is no
 * HTTP (an answer is appended, close afterwards), -EMSGSIZE beyond METADATA_REQUEST_MAX.
 * changed: the waiting request is answered now, whatever it waits for.
 */
int metadata_answer(const struct notice *n, bool changed, uint64_t now_boot_ns, uint64_t now_wall_ms,
		    const char *bytes, size_t len, struct strbuf *out, struct metadata_effect *ret);

/* ---- the guest's own socket ---- */

#define GUEST_LINE_MAX 4096

enum guest_op {
	GUEST_OP_NONE = 0,
	GUEST_OP_HELLO,   /* answer with the state */
	GUEST_OP_ACK,     /* saved: the window may end */
	GUEST_OP_COMMIT,  /* a checkpoint is complete: name, step */
	GUEST_OP_REQUEUE, /* start me again when I have exited */
	GUEST_OP_NOTICE,  /* what is the notice? */
};

struct guest_request {
	int op; /* enum guest_op */
	char *name;
	uint64_t step;
};
/* One line without its newline: 0, -EINVAL, -ENOMEM. */
int guest_request_decode(const char *line, size_t len, struct guest_request *ret, struct diag *diag);
void guest_request_done(struct guest_request *r);

#endif
