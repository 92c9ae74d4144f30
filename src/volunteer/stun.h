/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STUN binding messages (RFC 8489) with the attributes of ICE (RFC 8445):
 * decode, verify, encode. Every datagram on the UDP port may be forged, so
 * decoding trusts no length, and a message counts only once its integrity is
 * verified with the password of the channel it names.
 */
#ifndef RECLAIM_VOLUNTEER_STUN_H
#define RECLAIM_VOLUNTEER_STUN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "volunteer/address.h"

#define STUN_HEADER 20u
#define STUN_ID 12u
#define STUN_USER_MAX 513u
#define STUN_MESSAGE_MAX 700u

enum stun_type {
	STUN_REQUEST = 0x0001,
	STUN_INDICATION = 0x0011,
	STUN_SUCCESS = 0x0101,
	STUN_ERROR = 0x0111,
};

struct stun {
	enum stun_type type;
	uint8_t id[STUN_ID];
	const char *user; /* borrowed, not terminated; NULL = none */
	size_t user_len;
	size_t integrity; /* offset of MESSAGE-INTEGRITY; 0 = none */
	bool fingerprint; /* present and right; a wrong one is a decoding error */
	bool use_candidate, controlling, controlled;
	uint64_t tie_breaker;
	uint16_t error;
	struct address mapped; /* XOR-MAPPED-ADDRESS; family 0 = none */
};

/* True if a datagram on a port shared with DTLS is for STUN (RFC 7983). */
bool stun_is(const uint8_t *bytes, size_t len);
/* 0 or -EBADMSG. */
int stun_decode(const uint8_t *bytes, size_t len, struct stun *ret);
/* The message (as decoded from these bytes) was made by one who knows the password. */
bool stun_verify(const struct stun *s, const uint8_t *bytes, const char *password);

struct stun_request {
	uint8_t id[STUN_ID];
	const char *user; /* "theirs:ours"; NULL: a plain request to a STUN server */
	const char *password;
	uint32_t priority;
	bool controlling, use_candidate;
	uint64_t tie_breaker;
};
/* Both write at most STUN_MESSAGE_MAX bytes and return the length. */
size_t stun_encode_request(const struct stun_request *r, uint8_t *buf);
size_t stun_encode_success(const uint8_t id[STUN_ID], const struct address *mapped,
			   const char *password, uint8_t *buf);
size_t stun_encode_error(const uint8_t id[STUN_ID], uint16_t code, const char *password,
			 uint8_t *buf);

#endif
