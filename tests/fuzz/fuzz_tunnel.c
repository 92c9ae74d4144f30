/* SPDX-License-Identifier: Apache-2.0 */
/* Packets from the network at a gang's tunnel. The first byte says which of them are sealed by
 * a peer, so that what is inside is reached too. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "edge/tunnel.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t key[TUNNEL_KEY_LEN] = "any";
	uint8_t wire[TUNNEL_PACKET_MAX + TUNNEL_OVERHEAD], out[TUNNEL_PACKET_MAX];
	struct tunnel *a, *b;
	unsigned from = 99;
	if (size < 1 || size > TUNNEL_PACKET_MAX)
		return 0;
	CHECK(tunnel_new(key, 1, 0, 3, &a) == 0 && tunnel_new(key, 1, 1, 3, &b) == 0);
	(void)tunnel_route(a, data + 1, size - 1);
	ssize_t n = data[0] & 1 ? tunnel_seal(a, 1, data + 1, size - 1, wire) : -1;
	if (n > 0) {
		n = tunnel_open(b, wire, (size_t)n, out, &from);
		CHECK(n < 0 || (from == 0 && memcmp(out, data + 1, (size_t)n) == 0));
	} else {
		n = tunnel_open(b, data + 1, size - 1, out, &from);
		CHECK(n < 0); /* nobody without the key */
	}
	tunnel_free(a);
	tunnel_free(b);
	return 0;
}
