/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SCTP associations over somebody else's datagrams. assoc.c is the one file that
 * knows which SCTP library there is (usrsctp, whose last release is of 2021); its
 * symbols are called sctp_*, so ours are not.
 *
 * One thread; global timers that assoc_advance() drives. Each association has a
 * local port of its own: usrsctp finds endpoints by port.
 */
#ifndef RECLAIM_VOLUNTEER_ASSOC_H
#define RECLAIM_VOLUNTEER_ASSOC_H

#include <stddef.h>
#include <stdint.h>

#define ASSOC_MESSAGE_MAX (256u << 10) /* bytes; longer ones break the association */

struct assoc;

struct assoc_ops {
	/* Packets for the peer; may come from any assoc_*() call, also assoc_advance(). */
	void (*output)(void *user, const void *bytes, size_t len);
	void (*up)(void *user);
	/* A whole message. */
	void (*message)(void *user, uint16_t stream, uint32_t ppid, const void *bytes, size_t len);
	void (*writable)(void *user); /* after -EAGAIN */
	void (*down)(void *user);     /* must not close from within: defer it */
};

/* A local port for the next association; the caller announces it in its SDP. */
uint16_t assoc_port_next(void);
/* Both ends connect; 0 or -errno. */
int assoc_open(uint16_t local_port, uint16_t remote_port, const struct assoc_ops *ops, void *user,
	      struct assoc **ret);
void assoc_close(struct assoc *s); /* abort; no callback comes after */
void assoc_input(struct assoc *s, const void *bytes, size_t len);
/* 0, -EAGAIN (send buffer full), -EPIPE. */
int assoc_send(struct assoc *s, uint16_t stream, uint32_t ppid, const void *bytes, size_t len);
/* Lets `ms` pass for all associations: about every 100 ms (its timers are one list). */
void assoc_advance(uint32_t ms);
/* How many associations exist. */
size_t assoc_count(void);

#endif
