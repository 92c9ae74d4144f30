/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One TLS connection of a transfer: blocking, for one thread, with frames. The
 * exception is the control link, on which one thread reads while others may
 * send: it takes a lock around the TLS state and waits outside it.
 *
 * Outgoing TLS records are gathered into large writes and incoming ones read
 * in large reads: at 16 KiB a record the system calls would cost more than the
 * cipher.
 */
#ifndef RECLAIM_TRANSFER_LINK_H
#define RECLAIM_TRANSFER_LINK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/diag.h"
#include "io/identity.h"
#include "wire/traffic_class.h"
#include "wire/transfer_frame.h"

struct link;

struct link_target {
	const char *host;
	uint16_t port;
	const char *bind_addr; /* or NULL */
	enum traffic_class traffic_class;
	uint32_t mark_tag;
};

/* Connects and shakes hands, at most timeout_ms. -ECONNREFUSED and so on, -EACCES when the peer is
 * not of our CA or role. cancel_fd: readable = give up (-ECANCELED). */
int link_connect(SSL_CTX *ctx, const struct link_target *to, int timeout_ms, int cancel_fd,
		 struct link **ret, struct diag *diag);
/* Takes fd over (also on failure). */
int link_accept(SSL_CTX *ctx, int fd, int timeout_ms, struct link **ret, struct diag *diag);
/* For a socket that will listen: what waits in the kernel of a receiver that dies is lost, so it is
 * bounded, at the cost of rate on long paths (3 connections, 50 ms: 370 Mbit/s). */
void link_bound_buffer(int fd);
void link_free(struct link *l);
DEFINE_CLEANUP(struct link *, link_free)

const struct identity_peer *link_peer(const struct link *l);
int link_fd(const struct link *l);
/* Marks and DSCP. */
void link_set_class(struct link *l, enum traffic_class c, uint32_t mark_tag);
/* The congestion control: the system's, the one that yields on delay, or the one that holds its
 * paced rate. False when this kernel lacks it: then a yielding link has Reno, the gentlest that
 * every kernel has, and a holding one the system's. */
enum link_cc { LINK_CC_DEFAULT, LINK_CC_YIELD, LINK_CC_HOLD };
bool link_set_cc(struct link *l, enum link_cc cc);
/* Without CAP_NET_ADMIN the mark is refused: DSCP alone then. */
bool link_is_marked(const struct link *l);
/* From another thread: whoever waits on the link gets -ECONNABORTED. */
void link_shutdown(struct link *l);
uint64_t link_bytes_out(const struct link *l);
uint64_t link_bytes_in(const struct link *l);

/* ---- data links: blocking ---- */

/* A short read is -ECONNRESET. link_read_some: like read(2), 0 = the peer closed in order. */
int link_read(struct link *l, void *buf, size_t len);
int link_write(struct link *l, const void *buf, size_t len);
int link_flush(struct link *l);

/* ---- the control link ---- */

/* A whole frame; from any thread. */
int link_send(struct link *l, const void *frame, size_t len);
/* Waits for the next frame, at most timeout_ms (-ETIMEDOUT; -1 = for ever) or until wake_fd (-1 =
 * none) is readable (-EINTR); one thread. body has TRANSFER_BODY_MAX bytes. -ECONNRESET when the
 * peer is gone. */
int link_receive(struct link *l, int timeout_ms, int wake_fd, struct transfer_header *ret_header, uint8_t *body,
		 struct diag *diag);

#endif
