/* SPDX-License-Identifier: Apache-2.0 */
/* The Data Channel Establishment Protocol, RFC 8832: open and its acknowledgement. */
#ifndef RECLAIM_VOLUNTEER_DCEP_H
#define RECLAIM_VOLUNTEER_DCEP_H

#include <stddef.h>
#include <stdint.h>

#define DCEP_PPID 50u
#define DCEP_PPID_STRING 51u
#define DCEP_PPID_BINARY 53u
#define DCEP_PPID_STRING_EMPTY 56u
#define DCEP_PPID_BINARY_EMPTY 57u
#define DCEP_LABEL_MAX 64u
#define DCEP_MAX (12u + 2 * DCEP_LABEL_MAX)

enum dcep_type { DCEP_ACK = 2, DCEP_OPEN = 3 };

struct dcep {
	enum dcep_type type;
	uint8_t channel_type; /* 0 = reliable, ordered: the only one that is accepted */
	char label[DCEP_LABEL_MAX + 1];
};

/* 0, -EBADMSG (malformed), -EMSGSIZE (label or protocol too long). */
int dcep_decode(const uint8_t *bytes, size_t len, struct dcep *ret);
/* Writes at most DCEP_MAX bytes. */
size_t dcep_encode(const struct dcep *d, uint8_t *buf);

#endif
