/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a gang's packets look like between machines. One key per start of a gang,
 * made by the coordinator and never used for a second one; from it a key per
 * ordered pair of ranks (HKDF-SHA256), AES-256-GCM, counters as nonces.
 *
 *     0       version, 1
 *     1       rank that sent it
 *     2..3    zero
 *     4..7    epoch, low 32 bits, big endian
 *     8..15   counter, big endian, from 1; the nonce's last 8 bytes (the first 4 are 0)
 *     16..    an IPv4 packet, sealed, or nothing (a keepalive)
 *     last 16 tag; over bytes 0..15 too
 *
 * A packet is taken once (a window of TUNNEL_WINDOW counters), and only if what
 * is inside goes from its sender's address to ours. Sans I/O; tunnel_main.c has
 * the sockets. Bytes given to tunnel_open() are outside input (fuzz_tunnel).
 */
#ifndef RECLAIM_EDGE_TUNNEL_H
#define RECLAIM_EDGE_TUNNEL_H

#include <netinet/in.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define TUNNEL_RANKS_MAX 32
#define TUNNEL_KEY_LEN 32
#define TUNNEL_HEADER_LEN 16
#define TUNNEL_OVERHEAD (TUNNEL_HEADER_LEN + 16)
#define TUNNEL_MTU 1420              /* 1500 less IP, UDP, our own, and some for the way */
#define TUNNEL_PACKET_MAX 2048
#define TUNNEL_WINDOW 1024
#define TUNNEL_IFNAME "gang0"
/* UDP ports of tunnels; the edge keeps everybody else's first packets from them. Below the range
 * of ephemeral ports. A port is not used again before the network has forgotten its flow. */
#define TUNNEL_PORT_MIN 24000
#define TUNNEL_PORTS 1024

struct tunnel;

/* Inside: the same on all machines, whoever else is there. Seen by the gang alone. */
struct in_addr tunnel_address(unsigned rank); /* 100.126.0.1 on, in a /24 */

/* 0, -EINVAL, -ENOMEM, -EIO (no such cipher). The key is copied. */
int tunnel_new(const uint8_t key[TUNNEL_KEY_LEN], uint64_t epoch, unsigned rank, unsigned ranks,
	       struct tunnel **ret);
void tunnel_free(struct tunnel *t);
/* Which rank a packet from inside is for; -EHOSTUNREACH for none. */
int tunnel_route(const struct tunnel *t, const void *packet, size_t len);
/* out has room for len + TUNNEL_OVERHEAD. Returns the length, or -errno. len 0 = a keepalive. */
ssize_t tunnel_seal(struct tunnel *t, unsigned to, const void *packet, size_t len, uint8_t *out);
/*
 * out has room for len. Returns the packet's length (0: a keepalive) and its rank, or -EBADMSG (not
 * ours, not for us, changed on the way), -EALREADY (seen before, or too old to know).
 */
ssize_t tunnel_open(struct tunnel *t, const uint8_t *in, size_t len, uint8_t *out, unsigned *ret_from);

#endif
