/* SPDX-License-Identifier: Apache-2.0 */
/* A UDP address, IPv4 or IPv6, in one fixed size; a v4-mapped v6 address becomes v4. */
#ifndef RECLAIM_VOLUNTEER_ADDRESS_H
#define RECLAIM_VOLUNTEER_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>

struct address {
	uint8_t family; /* 4, 6; 0 = none */
	uint8_t zero;
	uint16_t port;  /* host order */
	uint8_t ip[16]; /* v4 in the first four bytes, the others zero */
};

#define ADDRESS_TEXT_MAX 64

bool address_equal(const struct address *a, const struct address *b);
/* Numeric address only: 0 or -EINVAL. */
int address_parse(const char *ip, uint16_t port, struct address *ret);
/* The address without the port; returns buf. */
const char *address_format(const struct address *a, char buf[ADDRESS_TEXT_MAX]);
socklen_t address_to_sockaddr(const struct address *a, struct sockaddr_storage *ret);
int address_from_sockaddr(const struct sockaddr *sa, struct address *ret);
/* The machine's own addresses (no link-local ones; loopback last); returns how many. */
unsigned address_local(struct address *ret, unsigned cap);

#endif
