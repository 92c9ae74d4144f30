/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys and tickets. The job's secret stays with the registry, which derives
 * from it one key per endpoint and epoch and gives that to the owner alone. A
 * sender gets a session key and, sealed under the owner's key, a ticket that
 * holds the same session key and the sender's name and epoch. So only the
 * owner of that very epoch can answer, only a worker of the job can ask, and
 * the owner knows who asks without asking anybody. The session key is the
 * external PSK of a TLS 1.3 handshake with ephemeral Diffie-Hellman.
 */
#ifndef RECLAIM_STREAM_SEAL_H
#define RECLAIM_STREAM_SEAL_H

#include <stddef.h>
#include <stdint.h>

#include "wire/stream_frame.h"

#define SEAL_KEY_LEN 32

struct seal_ticket {
	uint8_t session[SEAL_KEY_LEN];
	uint64_t producer_epoch;
	char producer[STREAM_NAME_MAX + 1];
};

int seal_owner_key(const uint8_t secret[SEAL_KEY_LEN], const char *name, uint64_t epoch,
		   uint8_t ret[SEAL_KEY_LEN]);
int seal_ticket_make(const uint8_t owner_key[SEAL_KEY_LEN], const char *name, uint64_t epoch,
		     const struct seal_ticket *t, uint8_t ret[STREAM_TICKET_MAX], size_t *ret_len);
/* -EACCES: not made for this endpoint, epoch and key. */
int seal_ticket_open(const uint8_t owner_key[SEAL_KEY_LEN], const char *name, uint64_t epoch,
		     const uint8_t *ticket, size_t len, struct seal_ticket *ret);
/* Overwrites a key; not optimised away. */
void seal_wipe(void *key, size_t len);

#endif
