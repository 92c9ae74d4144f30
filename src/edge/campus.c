/* SPDX-License-Identifier: Apache-2.0 */
/* What is closed to guests unless a rule opens it: campus prefixes, the prefixes
 * on this machine's links, its own addresses. */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>

#include "base/check.h"
#include "base/vec.h"
#include "edge/edge_internal.h"

#define CAMPUS_MAX 1000 /* below the trie's size, so that new ones fit before old ones go */

/* Private, shared, link-local, loopback, and everything from multicast up (RFC 6890). */
static const struct {
	const char *addr;
	uint8_t len;
} campus_default[] = {
	{ "0.0.0.0", 8 },      { "10.0.0.0", 8 },    { "100.64.0.0", 10 }, { "127.0.0.0", 8 },
	{ "169.254.0.0", 16 }, { "172.16.0.0", 12 }, { "192.168.0.0", 16 }, { "224.0.0.0", 3 },
};

struct campus {
	struct VEC(struct edge_abi_prefix) list;
	int err;
};

static void add(struct campus *c, struct in_addr addr, uint8_t len)
{
	uint32_t mask = len ? htonl(UINT32_MAX << (32 - len)) : 0;
	struct edge_abi_prefix p = { .prefix_len = len, .address = addr.s_addr & mask };

	if (c->list.count >= CAMPUS_MAX)
		c->err = -E2BIG;
	else if (c->err == 0)
		c->err = VEC_PUSH(&c->list, p);
}

static void add_link(struct in_addr addr, uint8_t len, int ifindex, void *arg)
{
	(void)ifindex; /* all links: a guest is a guest on each of them */
	add(arg, addr, len);
	add(arg, addr, 32);
}

static bool has(struct campus *c, const struct edge_abi_prefix *key)
{
	VEC_EACH(&c->list, p)
		if (p->prefix_len == key->prefix_len && p->address == key->address)
			return true;
	return false;
}

/* New prefixes first, so that nothing is open in between. */
static int apply(struct edge *e, struct campus *c)
{
	struct edge_abi_prefix key, next;
	uint32_t one = 1;
	int err = 0, more;

	VEC_EACH(&c->list, p)
		if (err == 0)
			err = map_write(&e->hooks, EDGE_MAP_CAMPUS, p, &one);
	if (err < 0)
		return err;
	more = bpf_map_get_next_key(e->hooks.maps[EDGE_MAP_CAMPUS], NULL, &key);
	while (more == 0) {
		more = bpf_map_get_next_key(e->hooks.maps[EDGE_MAP_CAMPUS], &key, &next);
		if (!has(c, &key))
			(void)map_remove_key(&e->hooks, EDGE_MAP_CAMPUS, &key); /* gone is fine */
		key = next;
	}
	return 0;
}

int campus_refresh(struct edge *e)
{
	struct campus c = { VEC_INIT, 0 };
	struct in_addr addr;
	int err;

	for (size_t i = 0; i < e->campus_count; i++)
		add(&c, e->campus[i].addr, e->campus[i].len);
	for (size_t i = 0; e->campus_count == 0 && i < ARRAY_SIZE(campus_default); i++) {
		CHECK(inet_pton(AF_INET, campus_default[i].addr, &addr) == 1);
		add(&c, addr, campus_default[i].len);
	}
	err = net_addr_each(e->sock, add_link, &c);
	if (err == 0)
		err = c.err;
	if (err == 0)
		err = apply(e, &c);
	VEC_DONE(&c.list);
	return err;
}
