/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DTLS 1.2 over datagrams that somebody else sends and receives: OpenSSL with
 * a BIO that keeps datagram boundaries. The peer is known by its certificate's
 * SHA-256 alone, which the signaller carried (RFC 8827); chains and names mean
 * nothing here.
 */
#ifndef RECLAIM_VOLUNTEER_DTLS_H
#define RECLAIM_VOLUNTEER_DTLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DTLS_MTU 1200u
#define DTLS_FINGERPRINT 32u

struct dtls_context; /* a key and a certificate of its own, made anew for each process */
int dtls_context_new(struct dtls_context **ret);
void dtls_context_free(struct dtls_context *c);
const uint8_t *dtls_context_fingerprint(const struct dtls_context *c);

struct dtls;

struct dtls_ops {
	void (*output)(void *user, const void *bytes, size_t len);
	/* Decrypted data; must not free the dtls. */
	void (*data)(void *user, const void *bytes, size_t len);
};

int dtls_new(struct dtls_context *c, bool client, const uint8_t peer[DTLS_FINGERPRINT],
	     const struct dtls_ops *ops, void *user, struct dtls **ret);
void dtls_free(struct dtls *d); /* sends close_notify if the handshake was done */

enum dtls_event { DTLS_NOTHING, DTLS_UP, DTLS_CLOSED, DTLS_FAILED };
/* A client's first flight. */
enum dtls_event dtls_start(struct dtls *d);
enum dtls_event dtls_input(struct dtls *d, const void *bytes, size_t len);
/* Milliseconds until dtls_timeout() is due, or -1. */
int dtls_timeout_ms(const struct dtls *d);
enum dtls_event dtls_timeout(struct dtls *d);
int dtls_send(struct dtls *d, const void *bytes, size_t len); /* 0 or -EPIPE */
/* Gives record buffers back (32 KiB); they return with the next record. */
void dtls_idle(struct dtls *d);

#endif
