/* SPDX-License-Identifier: Apache-2.0 */
/* The programs one packet at a time, by BPF_PROG_TEST_RUN: no namespace, no traffic. */
#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/pkt_cls.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/rng.h"
#include "edge/edge_internal.h"

#define SLOT 5
#define IFINDEX 1 /* test runs happen on lo unless told otherwise */
#define FUZZ_PACKETS 20000

static struct edge_hooks hooks;
static struct edge_abi_guest guest;

struct packet {
	uint8_t bytes[256];
	size_t len;
	uint32_t mark, priority; /* in and out */
	uint8_t out[256];
};

/* The verdict, or REFUSED: the kernel does not test-run packets cut below their protocol's header. */
#define REFUSED (-1000)
static int run(enum edge_prog prog, struct packet *p)
{
	struct __sk_buff skb = { .mark = p->mark, .priority = p->priority };
	LIBBPF_OPTS(bpf_test_run_opts, opts, .data_in = p->bytes, .data_size_in = (uint32_t)p->len,
		    .data_out = p->out, .data_size_out = sizeof(p->out), .ctx_in = &skb,
		    .ctx_size_in = sizeof(skb), .ctx_out = &skb, .ctx_size_out = sizeof(skb), .repeat = 1);
	int err = bpf_prog_test_run_opts(hooks.progs[prog], &opts);

	if (err == -EINVAL)
		return REFUSED;
	assert_int_equal(err, 0);
	p->mark = skb.mark;
	p->priority = skb.priority;
	return (int)opts.retval;
}

static uint16_t ip_sum(const void *header, size_t len)
{
	const uint8_t *b = header;
	uint32_t sum = 0;

	for (size_t i = 0; i < len; i += 2)
		sum += (uint32_t)(b[i] << 8 | b[i + 1]);
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* UDP from the guest to dst:port with this TOS. */
static struct packet udp(const char *dst, uint16_t port, uint8_t tos)
{
	struct packet p = { .len = ETH_HLEN + 28 + 8 };
	struct ether_header *eth = (void *)p.bytes;
	struct iphdr ip = { .version = 4, .ihl = 5, .tos = tos, .tot_len = htons(36), .ttl = 64,
			    .protocol = IPPROTO_UDP, .saddr = guest.address, .daddr = inet_addr(dst) };
	struct udphdr u = { .source = htons(4000), .dest = htons(port), .len = htons(16) };

	ip.check = htons(ip_sum(&ip, sizeof(ip)));
	memcpy(eth->ether_shost, guest.mac, 6);
	memcpy(eth->ether_dhost, guest.gateway_mac, 6);
	eth->ether_type = htons(ETHERTYPE_IP);
	memcpy(p.bytes + ETH_HLEN, &ip, sizeof(ip));
	memcpy(p.bytes + ETH_HLEN + 20, &u, sizeof(u));
	return p;
}

static void set_kill(uint32_t key, uint32_t value)
{
	assert_int_equal(map_write(&hooks, EDGE_MAP_KILL, &key, &value), 0);
}

static void set_lease(uint64_t deadline)
{
	uint32_t slot = SLOT;

	assert_int_equal(map_write(&hooks, EDGE_MAP_LEASE, &slot, &deadline), 0);
}

static void set_flags(uint32_t flags)
{
	struct edge_abi_config c = {
		.flags = flags, .guest_net = inet_addr("100.127.0.0"), .guest_mask = inet_addr("255.255.255.0"),
		.link_rate = 125000000, .guest_classid = TREE_GUEST0,
		.classid = { [TRAFFIC_CONTROL] = TREE_CONTROL, [TRAFFIC_DEADLINE] = TREE_DEADLINE,
			     [TRAFFIC_SCAVENGER] = TREE_SCAVENGER },
	};
	uint32_t zero = 0;

	assert_int_equal(map_write(&hooks, EDGE_MAP_CONFIG, &zero, &c), 0);
}

static int setup(void **state)
{
	struct edge_abi_rules rules = { .count = 2, .rules = {
		{ .address = inet_addr("10.1.2.0"), .mask = inet_addr("255.255.255.0"), .proto = IPPROTO_UDP,
		  .port_min = 100, .port_max = 200 },
		{ .address = inet_addr("10.9.9.9"), .mask = 0xffffffff },
	} };
	struct edge_abi_prefix campus = { .prefix_len = 8, .address = inet_addr("10.0.0.0") };
	uint32_t slot = SLOT, ifindex = IFINDEX, one = 1;

	(void)state;
	guest = (struct edge_abi_guest){
		.flags = EDGE_ABI_GUEST_ACTIVE | EDGE_ABI_GUEST_INTERNET, .ifindex = IFINDEX,
		.mark = traffic_mark(TRAFFIC_GUEST, 3 << EDGE_ABI_TAG_GENERATION_SHIFT | SLOT),
		.address = inet_addr("100.127.0.11"), .gateway = inet_addr("100.127.0.10"),
		.mac = { 2, 1, 1, 1, 1, 2 }, .gateway_mac = { 2, 1, 1, 1, 1, 1 },
	};
	assert_int_equal(map_write(&hooks, EDGE_MAP_GUEST, &slot, &guest), 0);
	assert_int_equal(map_write(&hooks, EDGE_MAP_RULES, &slot, &rules), 0);
	assert_int_equal(map_write(&hooks, EDGE_MAP_SLOT, &ifindex, &slot), 0);
	assert_int_equal(map_write(&hooks, EDGE_MAP_CAMPUS, &campus, &one), 0);
	set_flags(0);
	set_lease(UINT64_MAX);
	set_kill(EDGE_ABI_KILL_ALL, 0);
	set_kill(1 + SLOT, 0);
	return 0;
}

static uint64_t reason(enum edge_abi_reason why)
{
	struct edge_abi_guest_stats s;

	assert_int_equal(map_read_sum(&hooks, EDGE_MAP_GUEST_STATS, SLOT, (uint64_t *)&s, sizeof(s) / 8), 0);
	return s.reasons[why];
}

static void test_label(void **state)
{
	struct packet p = udp("198.51.100.1", 53, 0x02); /* ECN stays */
	struct iphdr ip;

	(void)state;
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_UNSPEC);
	assert_int_equal(p.mark, guest.mark);
	memcpy(&ip, p.out + ETH_HLEN, sizeof(ip));
	assert_int_equal(ip.tos, TRAFFIC_DSCP_GUEST << 2 | 2);
	assert_int_equal(ip_sum(&ip, sizeof(ip)), 0);
	/* A guest that labels its packets as control gets the guests' label. */
	p = udp("198.51.100.1", 53, TRAFFIC_DSCP_CONTROL << 2);
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_UNSPEC);
	memcpy(&ip, p.out + ETH_HLEN, sizeof(ip));
	assert_int_equal(ip.tos >> 2, TRAFFIC_DSCP_GUEST);
	assert_int_equal(ip_sum(&ip, sizeof(ip)), 0);
}

static void test_rules(void **state)
{
	static const struct {
		const char *dst;
		uint16_t port;
		int want;
	} cases[] = {
		{ "198.51.100.1", 1, TC_ACT_UNSPEC }, { "10.1.2.3", 100, TC_ACT_UNSPEC },
		{ "10.1.2.255", 200, TC_ACT_UNSPEC }, { "10.1.2.3", 99, TC_ACT_SHOT },
		{ "10.1.2.3", 201, TC_ACT_SHOT },     { "10.1.3.3", 150, TC_ACT_SHOT },
		{ "10.9.9.9", 1, TC_ACT_UNSPEC },     { "10.9.9.8", 1, TC_ACT_SHOT },
		{ "100.127.0.10", 1, TC_ACT_SHOT },   { "11.0.0.1", 1, TC_ACT_UNSPEC },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct packet p = udp(cases[i].dst, cases[i].port, 0);

		assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), cases[i].want);
	}
	/* Another protocol to the same port; without the internet only the rules are open. */
	{
		struct packet p = udp("10.1.2.3", 150, 0);
		uint32_t slot = SLOT;

		p.bytes[ETH_HLEN + 9] = IPPROTO_TCP;
		assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
		guest.flags = EDGE_ABI_GUEST_ACTIVE;
		assert_int_equal(map_write(&hooks, EDGE_MAP_GUEST, &slot, &guest), 0);
		p = udp("198.51.100.1", 1, 0);
		assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
		p = udp("10.9.9.9", 1, 0);
		assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_UNSPEC);
	}
}

static void test_order(void **state)
{
	struct packet p = udp("198.51.100.1", 53, 0);
	uint64_t killed = reason(EDGE_ABI_KILLED), lease = reason(EDGE_ABI_LEASE);

	(void)state;
	/* Kill comes before the lease, whichever flag. */
	set_lease(clock_boot_ns());
	set_kill(EDGE_ABI_KILL_ALL, 1);
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	set_kill(EDGE_ABI_KILL_ALL, 0);
	set_kill(1 + SLOT, 7);
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	assert_int_equal(reason(EDGE_ABI_KILLED), killed + 2);
	set_kill(1 + SLOT, 0);
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	assert_int_equal(reason(EDGE_ABI_LEASE), lease + 1);
	set_lease(0);
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	set_lease(clock_boot_ns() + 60 * NS_PER_S);
	p.mark = 0;
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_UNSPEC);
	/* Every program on a guest packet's way checks both. */
	for (int i = 0; i < 2; i++) {
		struct packet in = udp("100.127.0.11", 53, 0);

		set_kill(i ? 1 + SLOT : EDGE_ABI_KILL_ALL, 1);
		assert_int_equal(run(EDGE_PROG_GUEST_IN, &in), TC_ACT_SHOT);
		assert_int_equal(run(EDGE_PROG_GUEST_INNER, &in), TC_ACT_SHOT);
		p.mark = guest.mark;
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_SHOT);
		set_kill(i ? 1 + SLOT : EDGE_ABI_KILL_ALL, 0);
		assert_int_equal(run(EDGE_PROG_GUEST_IN, &in), TC_ACT_UNSPEC);
		assert_int_equal(run(EDGE_PROG_GUEST_INNER, &in), TC_ACT_UNSPEC);
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_UNSPEC);
		set_lease(1);
		assert_int_equal(run(EDGE_PROG_GUEST_IN, &in), TC_ACT_SHOT);
		assert_int_equal(run(EDGE_PROG_GUEST_INNER, &in), TC_ACT_SHOT);
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_SHOT);
		set_lease(UINT64_MAX);
	}
}

static void test_spoof(void **state)
{
	struct packet p = udp("198.51.100.1", 53, 0);

	(void)state;
	p.bytes[6] ^= 1; /* source MAC */
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	p = udp("198.51.100.1", 53, 0);
	p.bytes[ETH_HLEN + 12] ^= 1; /* source address */
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
}

static struct packet ip6(void)
{
	struct packet p = udp("198.51.100.1", 53, 0);

	p.bytes[12] = 0x86;
	p.bytes[13] = 0xdd;
	p.bytes[ETH_HLEN] = 0x60;
	p.len = ETH_HLEN + 48;
	return p;
}

static void ip6_counted(uint64_t out, uint64_t in, uint64_t denied, uint64_t killed)
{
	struct edge_abi_ip6_stats s;

	assert_int_equal(map_read_sum(&hooks, EDGE_MAP_GUEST_IP6, SLOT, (uint64_t *)&s, sizeof(s) / 8), 0);
	assert_int_equal(s.out, out);
	assert_int_equal(s.in, in);
	assert_int_equal(reason(EDGE_ABI_DENIED), denied);
	assert_int_equal(reason(EDGE_ABI_KILLED), killed);
}

/* IPv6 is closed in every program on a guest's way, counted by name, and cut by a kill. */
static void test_ip6(void **state)
{
	uint64_t denied = reason(EDGE_ABI_DENIED), killed = reason(EDGE_ABI_KILLED);
	struct packet p = ip6();

	(void)state;
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	ip6_counted(1, 0, denied + 1, killed);
	p = ip6();
	assert_int_equal(run(EDGE_PROG_GUEST_IN, &p), TC_ACT_SHOT);
	assert_int_equal(run(EDGE_PROG_GUEST_INNER, &p), TC_ACT_SHOT); /* knows no slot without an address */
	ip6_counted(1, 1, denied + 2, killed);
	for (uint32_t i = 0; i < 2; i++) {
		set_kill(i ? 1 + SLOT : EDGE_ABI_KILL_ALL, 1);
		assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
		assert_int_equal(run(EDGE_PROG_GUEST_IN, &p), TC_ACT_SHOT);
		/* One that bears the guest's mark and waits at the uplink. */
		p.mark = guest.mark;
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_SHOT);
		p.mark = 0;
		set_kill(i ? 1 + SLOT : EDGE_ABI_KILL_ALL, 0);
	}
	ip6_counted(1, 1, denied + 2, killed + 6);
}

static void test_arp(void **state)
{
	struct packet p = { .len = 42 };
	static const uint8_t head[8] = { 0, 1, 8, 0, 6, 4, 0, 1 };

	(void)state;
	memset(p.bytes, 0xff, 6);
	memcpy(p.bytes + 6, guest.mac, 6);
	p.bytes[12] = 0x08;
	p.bytes[13] = 0x06;
	memcpy(p.bytes + 14, head, 8);
	memcpy(p.bytes + 22, guest.mac, 6);
	memcpy(p.bytes + 28, &guest.address, 4);
	memcpy(p.bytes + 38, &guest.gateway, 4);
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_UNSPEC);
	memcpy(p.bytes + 28, &guest.gateway, 4); /* "I am the gateway" */
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
	memcpy(p.bytes + 28, &guest.address, 4);
	p.bytes[22] ^= 4;
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &p), TC_ACT_SHOT);
}

static void test_classes(void **state)
{
	static const struct {
		enum traffic_class class;
		uint32_t priority;
	} cases[] = {
		{ TRAFFIC_CONTROL, TREE_CONTROL }, { TRAFFIC_DEADLINE, TREE_DEADLINE },
		{ TRAFFIC_SCAVENGER, TREE_SCAVENGER }, { TRAFFIC_RESEARCH, 3 },
	};

	(void)state;
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct packet p = udp("198.51.100.1", 53, 0);

		p.mark = cases[i].class == TRAFFIC_RESEARCH ? 0x1234 : traffic_mark(cases[i].class, 9);
		p.priority = 3;
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_UNSPEC);
		assert_int_equal(p.priority, cases[i].priority);
	}
	set_flags(EDGE_ABI_STOP_ALL);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct packet p = udp("198.51.100.1", 53, 0);
		bool stops = cases[i].class == TRAFFIC_DEADLINE || cases[i].class == TRAFFIC_SCAVENGER;

		p.mark = cases[i].class == TRAFFIC_RESEARCH ? 0 : traffic_mark(cases[i].class, 9);
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), stops ? TC_ACT_SHOT : TC_ACT_UNSPEC);
	}
	set_flags(0);
	{
		struct packet p = udp("198.51.100.1", 53, 0);

		p.mark = guest.mark;
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_UNSPEC);
		assert_int_equal(p.priority, TREE_GUEST0 + SLOT);
		/* A late packet of whoever had the slot before. */
		p.mark = guest.mark - (1u << EDGE_ABI_TAG_GENERATION_SHIFT);
		assert_int_equal(run(EDGE_PROG_UPLINK_OUT, &p), TC_ACT_SHOT);
	}
}

static void test_routed(void **state)
{
	struct packet in = udp("100.127.0.11", 4000, 0), out = udp("198.51.100.1", 77, 0);
	uint32_t other = inet_addr("198.51.100.1");
	uint16_t port = htons(77); /* of no other test */

	(void)state;
	set_flags(EDGE_ABI_ROUTED);
	memcpy(in.bytes + ETH_HLEN + 12, &other, 4);
	memcpy(in.bytes + ETH_HLEN + 20, &port, 2);
	assert_int_equal(run(EDGE_PROG_GUEST_IN, &in), TC_ACT_SHOT); /* nobody asked */
	assert_int_equal(run(EDGE_PROG_GUEST_OUT, &out), TC_ACT_UNSPEC);
	assert_int_equal(run(EDGE_PROG_GUEST_IN, &in), TC_ACT_UNSPEC);
}

/* Whatever bytes a guest sends: what passes carries its own addresses and goes where it may. */
static void test_fuzz(void **state)
{
	struct rng rng;
	unsigned passed = 0, ran = 0;

	(void)state;
	rng_init(&rng, 42);
	for (int i = 0; i < FUZZ_PACKETS; i++) {
		struct packet p = udp("198.51.100.1", 53, 0);
		struct iphdr ip;
		uint64_t flips = rng_below(&rng, 4);

		p.len = 14 + (size_t)rng_below(&rng, 60);
		for (uint64_t k = 0; k < flips; k++)
			p.bytes[rng_below(&rng, p.len)] ^= (uint8_t)(1u << rng_below(&rng, 8));
		for (int prog = 0; prog < EDGE_PROG_COUNT; prog++) {
			struct packet copy = p;
			int verdict = run((enum edge_prog)prog, &copy);

			if (verdict == REFUSED)
				continue;
			ran++;
			assert_true(verdict == TC_ACT_SHOT || verdict == TC_ACT_UNSPEC);
			if (prog != EDGE_PROG_GUEST_OUT || verdict == TC_ACT_SHOT || copy.bytes[13] == 6)
				continue;
			passed++;
			memcpy(&ip, copy.bytes + ETH_HLEN, sizeof(ip));
			assert_true(p.len >= ETH_HLEN + 20);
			assert_memory_equal(copy.bytes + 6, guest.mac, 6);
			assert_int_equal(ip.saddr, guest.address);
			assert_true(ntohl(ip.daddr) >> 24 != 10 || ntohl(ip.daddr) >> 8 == 0x0a0102 ||
				    ip.daddr == inet_addr("10.9.9.9"));
			assert_int_equal(copy.mark, guest.mark);
		}
	}
	assert_true(ran > FUZZ_PACKETS && passed > FUZZ_PACKETS / 10 && passed < FUZZ_PACKETS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_label, setup),  cmocka_unit_test_setup(test_rules, setup),
		cmocka_unit_test_setup(test_order, setup),  cmocka_unit_test_setup(test_spoof, setup),
		cmocka_unit_test_setup(test_ip6, setup),
		cmocka_unit_test_setup(test_arp, setup),    cmocka_unit_test_setup(test_classes, setup),
		cmocka_unit_test_setup(test_routed, setup), cmocka_unit_test_setup(test_fuzz, setup),
	};
	struct diag d = DIAG_INIT;
	int failed, err = hooks_open(&hooks, NULL, &d);

	if (err == -EPERM || err == -EACCES || err == -ENOSYS) {
		printf("skipped: BPF programs: %s\n", d.what);
		return 77;
	}
	if (err < 0) {
		fprintf(stderr, "%s\n", d.what);
		return 1;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	hooks_close(&hooks);
	return failed;
}
