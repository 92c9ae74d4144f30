/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames into the decoder, and a whole conversation of them into a node: the
 * input is a list of (link, length, bytes).
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "volunteer/frame.h"
#include "volunteer/node.h"

static void on_send(void *user, int link, const void *bytes, size_t len)
{
	struct frame f;
	(void)user, (void)link;
	CHECK(frame_decode(bytes, len, &f) == 0); /* a node sends only what others accept */
}

static void on_link(void *user, int link)
{
	(void)user, (void)link;
}

static void on_nothing(void *user)
{
	(void)user;
}

static void on_compute(void *user, uint64_t value, const void *bytes, size_t len)
{
	(void)user, (void)value, (void)bytes;
	CHECK(len <= NODE_VALUE_MAX);
}

static void on_value(void *user, uint64_t value)
{
	(void)user, (void)value;
}

static void on_make_offer(void *user, uint32_t generation)
{
	(void)user, (void)generation;
}

static void on_take_offer(void *user, int slot, uint64_t origin, const void *sdp, size_t len)
{
	(void)user, (void)slot, (void)origin, (void)sdp;
	CHECK(len <= FRAME_SIGNAL_MAX);
}

static void on_take_answer(void *user, const void *sdp, size_t len)
{
	(void)user, (void)sdp, (void)len;
}

static void on_parent(void *user, bool up, uint64_t position, uint32_t generation)
{
	(void)user, (void)up, (void)position, (void)generation;
}

static const struct node_ops ops = { on_send, on_link, on_nothing, on_compute, on_value,
				     on_make_offer, on_take_offer, on_take_answer, on_parent,
				     on_parent, NULL };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct frame f;
	struct node *n;
	uint64_t now = 1000;
	if (frame_decode(data, len, &f) == 0) {
		uint8_t buf[FRAME_MAX];
		uint64_t ids[FRAME_IDS_MAX];
		for (size_t i = 0; i < f.ids_count; i++)
			ids[i] = frame_id(&f, i);
		if (f.hops)
			CHECK(frame_encode(&f, ids, buf) == len && memcmp(buf, data, len) == 0);
	}
	enum route_mode mode = len > 0 && (data[0] & 1) ? ROUTE_LOCAL : ROUTE_NAMED;
	if (node_new(5, 3, mode, &ops, NULL, &n) < 0)
		return 0;
	node_set_workers(n, 2, now);
	for (int link = NODE_SOCKET; link < 3; link++)
		node_link_up(n, link, now);
	(void)node_expect(n, 7, 4, 1, now);
	node_assigned(n, 1, 1, now);
	for (size_t at = 1; at + 3 <= len;) {
		int link = (int)(data[at] % 6) + NODE_SOCKET;
		size_t part = (size_t)data[at + 1] << 8 | data[at + 2];
		at += 3;
		if (part > len - at)
			part = len - at;
		now += 50;
		node_input(n, link, data + at, part, now);
		node_tick(n, now);
		at += part;
	}
	node_free(n);
	return 0;
}
