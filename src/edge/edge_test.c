/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edge in namespaces. "Does not arrive" is not a wait: a second datagram
 * that must arrive is sent behind it on the same path, or a drop counter tells.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "edge/edge_internal.h"
#include "edge/testnet.h"

#define SOON_MS 2000
#define FOREVER UINT64_MAX

static struct testnet net;
static const char *schema_dir = "docs/schema";
static char buf[2048];

static struct edge *open_edge(const struct edge_config *c)
{
	struct diag d = DIAG_INIT;
	struct edge *e = NULL;
	int err = edge_open(c, &e, &d);

	if (err < 0)
		print_error("edge_open: %s: %s\n", d.where, d.what);
	assert_int_equal(err, 0);
	return e;
}

static void remove_edge(struct edge *e)
{
	struct diag d = DIAG_INIT;
	int err = edge_remove(e, &d);

	if (err < 0)
		print_error("edge_remove: %s\n", d.what);
	assert_int_equal(err, 0);
	edge_close(e);
}

static struct edge_guest attach(struct edge *e, int ns, const char *job, const struct edge_rule *rules,
				size_t rules_count, uint64_t rate_bps)
{
	struct edge_guest_config c = { .job = job, .epoch = 7, .netns_fd = ns, .rules = rules,
				       .rules_count = rules_count, .internet = true,
				       .rate_bps = rate_bps, .lease_deadline_boot_ns = FOREVER };
	struct edge_guest g;
	struct diag d = DIAG_INIT;
	int err = edge_guest_attach(e, &c, &g, &d);

	if (err < 0)
		print_error("attach: %s: %s\n", d.where, d.what);
	assert_int_equal(err, 0);
	return g;
}

/* As much of JSON Schema as edge-show.json uses. */
static void conforms(const json_t *schema, const json_t *value, const char *where)
{
	const char *type = json_string_value(json_object_get(schema, "type"));
	json_t *properties = json_object_get(schema, "properties"), *sub;
	const char *key;
	size_t i;

	if (type && strcmp(type, "string") == 0 && !json_is_string(value))
		fail_msg("%s is no string", where);
	if (type && strcmp(type, "integer") == 0 && !json_is_integer(value))
		fail_msg("%s is no integer", where);
	if (type && strcmp(type, "boolean") == 0 && !json_is_boolean(value))
		fail_msg("%s is no boolean", where);
	if (json_object_get(schema, "items")) {
		assert_true(json_is_array(value));
		json_array_foreach(value, i, sub)
			conforms(json_object_get(schema, "items"), sub, where);
	}
	if (!properties)
		return;
	assert_int_equal(json_object_size(value), json_object_size(properties));
	json_object_foreach(properties, key, sub) {
		if (!json_object_get(value, key))
			fail_msg("%s lacks %s", where, key);
		conforms(sub, json_object_get(value, key), key);
	}
}

static json_t *schema_of(const char *name)
{
	char path[512];
	json_t *schema;

	assert_int_equal(path_format(path, sizeof(path), "%s/%s", schema_dir, name), 0);
	schema = json_load_file(path, 0, NULL);
	assert_non_null(schema);
	return schema;
}

static void test_probe(void **state)
{
	struct edge_features f;

	(void)state;
	edge_probe(&f);
	for (int i = 0; i < EDGE_FEATURE_COUNT; i++) {
		assert_non_null(f.items[i].name);
		assert_non_null(f.items[i].fallback);
		assert_true(f.items[i].reason[0] != '\0');
		print_message("%s: %s (%s)\n", f.items[i].name, f.items[i].have ? "yes" : "no",
			      f.items[i].reason);
	}
	assert_true(f.items[EDGE_ROOT].have && f.items[EDGE_BPF].have);
}

static int stay(void *arg)
{
	pid_t pid = fork();

	(void)arg;
	while (pid == 0)
		(void)pause();
	return pid;
}

/* A process in a namespace, as a guest is. */
static pid_t hold(int ns)
{
	pid_t pid = net_run_in(ns, stay, NULL);

	assert_true(pid > 0);
	return pid;
}

static void release(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_adopt(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns = testnet_ns_new(), out = testnet_udp(net.world_ns, TESTNET_INTERNET, 5000), in;
	struct edge_guest g = attach(e, ns, "job-1", NULL, 0, 0), again;
	struct edge_kill_report r;
	pid_t holder;

	(void)state;
	in = testnet_udp(ns, NULL, 0);
	assert_int_equal(edge_floor_set(e, 300000000), 0);
	assert_int_equal(edge_kill(e, g.slot, &r), 0);
	edge_close(e); /* as a crash: nothing is undone */

	/* Killed while nobody is there. */
	assert_true(testnet_udp_send(in, TESTNET_INTERNET, 5000, "dead") <= 0);
	e = open_edge(&c);
	assert_int_equal(edge_floor_get(e), 300000000);
	assert_int_equal(edge_guest_find(e, "job-1", 7, &again), 0);
	assert_int_equal(again.slot, g.slot);
	assert_true(again.killed);
	assert_int_equal(edge_guest_detach(e, g.slot), 0);
	assert_int_equal(edge_guest_detach(e, g.slot), -ENOENT);
	g = attach(e, ns, "job-1", NULL, 0, 0);
	edge_close(e);
	e = open_edge(&c);
	assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "alive"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "alive"); /* "dead" would have been first */
	/* With a process in it, the guest's namespace is found, and its own queue can be set again. */
	holder = hold(ns);
	edge_close(e);
	e = open_edge(&c);
	assert_non_null(e->guests[g.slot].inner);
	assert_int_equal(edge_guest_rate_set(e, g.slot, 10000000), 0);
	release(holder);
	close(ns);
	close(in);
	close(out);
	remove_edge(e);
}

static void test_reach(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	struct edge_rule rule = { .to = { { inet_addr(TESTNET_CAMPUS) }, 32 }, .port_min = 6000,
				  .port_max = 6001, .proto = EDGE_PROTO_UDP };
	int ns = testnet_ns_new(), in;
	struct edge_guest g = attach(e, ns, "job-2", &rule, 1, 0);
	int internet = testnet_udp(net.world_ns, TESTNET_INTERNET, 5000);
	int campus = testnet_udp(net.world_ns, TESTNET_CAMPUS, 6001);
	int closed = testnet_udp(net.world_ns, TESTNET_CAMPUS, 6002);
	int service = testnet_udp(net.machine_ns, NULL, 7000);
	int tos_on = 1;
	struct sockaddr_in from;
	struct edge_guest_count n;
	uint64_t denied;
	json_t *who, *who_schema;
	struct in_addr addr = { inet_addr(TESTNET_INTERNET) };

	(void)state;
	in = testnet_udp(ns, NULL, 0);
	assert_int_equal(setsockopt(internet, IPPROTO_IP, IP_RECVTOS, &tos_on, sizeof(tos_on)), 0);
	/* Out under the uplink's address, and the answer back. */
	assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "hello"), 0);
	assert_true(testnet_udp_recv(internet, SOON_MS, buf, sizeof(buf), &from));
	assert_string_equal(inet_ntoa(from.sin_addr), TESTNET_MACHINE);
	assert_true(sendto(internet, "back", 4, 0, (struct sockaddr *)&from, sizeof(from)) == 4);
	assert_true(testnet_udp_recv(in, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "back");

	/* Campus: only what the rule opens; the allowed one comes last. */
	assert_int_equal(edge_guest_count(e, g.slot, &n), 0);
	denied = n.denied;
	(void)testnet_udp_send(in, TESTNET_CAMPUS, 6002, "no");
	(void)testnet_udp_send(in, TESTNET_WORLD, 6001, "no");
	(void)testnet_udp_send(in, TESTNET_MACHINE, 7000, "no");
	(void)testnet_udp_send(in, inet_ntoa(g.gateway), 7000, "no");
	assert_int_equal(testnet_udp_send(in, TESTNET_CAMPUS, 6001, "yes"), 0);
	assert_true(testnet_udp_recv(campus, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "yes");
	assert_false(testnet_udp_recv(closed, 0, buf, sizeof(buf), NULL));
	assert_false(testnet_udp_recv(service, 0, buf, sizeof(buf), NULL));
	assert_int_equal(edge_guest_count(e, g.slot, &n), 0);
	assert_true(n.denied >= denied + 4); /* the guest's kernel multicasts, too */

	/* Who: by the port that the campus saw, live and from the log. */
	who_schema = schema_of("edge-who.json");
	for (int logged = 0; logged < 2; logged++) {
		if (logged)
			assert_int_equal(flows_sweep(e, true, NULL), 0);
		assert_int_equal(edge_who(e, &addr, 5000, clock_wall_ms(), 60000, &who, NULL), 0);
		assert_true(json_array_size(who) >= 1); /* earlier tests' flows are in the log */
		assert_string_equal(json_string_value(json_object_get(json_array_get(who, 0), "job")),
				    "job-2");
		conforms(who_schema, who, "who");
		json_decref(who);
	}
	addr.s_addr = inet_addr(TESTNET_MACHINE);
	assert_int_equal(edge_who(e, &addr, ntohs(from.sin_port), 0, 0, &who, NULL), 0);
	assert_int_equal(json_array_size(who), 2); /* one source port, two destinations */
	json_decref(who);
	assert_int_equal(edge_who(e, &addr, 1, 0, 0, &who, NULL), 0);
	assert_int_equal(json_array_size(who), 0);
	json_decref(who);
	json_decref(who_schema);
	close(in);
	close(internet);
	close(campus);
	close(closed);
	close(service);
	close(ns);
	remove_edge(e);
}

/* An Ethernet frame with an empty UDP datagram, from any source. */
static void send_frame(int fd, int ifindex, const uint8_t src_mac[6], const uint8_t dst_mac[6],
		       const char *src_ip)
{
	struct {
		struct ether_header eth;
		struct iphdr ip;
		struct udphdr udp;
	} __attribute__((packed)) f = {
		.eth.ether_type = htons(ETH_P_IP),
		.ip = { .version = 4, .ihl = 5, .tot_len = htons(28), .ttl = 9, .protocol = IPPROTO_UDP,
			.saddr = inet_addr(src_ip), .daddr = inet_addr(TESTNET_INTERNET) },
		.udp = { .source = htons(9), .dest = htons(5000), .len = htons(8) },
	};
	struct sockaddr_ll ll = { .sll_family = AF_PACKET, .sll_ifindex = ifindex, .sll_halen = 6 };

	memcpy(f.eth.ether_shost, src_mac, 6);
	memcpy(f.eth.ether_dhost, dst_mac, 6);
	assert_int_equal(sendto(fd, &f, sizeof(f), 0, (struct sockaddr *)&ll, sizeof(ll)), sizeof(f));
}

static uint64_t wait_spoofed(struct edge *e, unsigned slot, uint64_t at_least)
{
	struct edge_guest_count n;
	uint64_t until = clock_boot_ns() + SOON_MS * NS_PER_MS;

	do
		assert_int_equal(edge_guest_count(e, slot, &n), 0);
	while (n.spoofed < at_least && clock_boot_ns() < until);
	return n.spoofed;
}

static void test_spoof(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns = testnet_ns_new(), raw;
	struct edge_guest g = attach(e, ns, "job-3", NULL, 0, 0);
	uint8_t other[6] = { 2, 9, 9, 9, 9, 9 };
	struct edge_abi_guest abi;
	uint32_t slot = g.slot;
	char own[INET_ADDRSTRLEN];

	(void)state;
	assert_int_equal(map_read(&e->hooks, EDGE_MAP_GUEST, &slot, &abi), 0);
	(void)inet_ntop(AF_INET, &g.address, own, sizeof(own));
	raw = testnet_socket(ns, AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
	assert_true(raw >= 0);
	send_frame(raw, e->guests[slot].inner_ifindex, abi.mac, abi.gateway_mac, "10.9.0.77");
	assert_int_equal(wait_spoofed(e, slot, 1), 1);
	send_frame(raw, e->guests[slot].inner_ifindex, other, abi.gateway_mac, own);
	assert_int_equal(wait_spoofed(e, slot, 2), 2);
	close(raw);
	close(ns);
	remove_edge(e);
}

/* An IPv6 frame with nothing in it, to all nodes of the link. */
static void send_ip6(int fd, int ifindex, const uint8_t src_mac[6], const uint8_t dst_mac[6])
{
	uint8_t f[ETH_HLEN + 40] = { 0 };
	struct sockaddr_ll ll = { .sll_family = AF_PACKET, .sll_ifindex = ifindex, .sll_halen = 6 };

	memcpy(f, dst_mac, 6);
	memcpy(f + 6, src_mac, 6);
	f[12] = 0x86;
	f[13] = 0xdd;
	f[ETH_HLEN] = 0x60;
	f[ETH_HLEN + 6] = 59; /* no next header */
	f[ETH_HLEN + 7] = 1;
	memcpy(f + ETH_HLEN + 8, "\xfe\x80\0\0\0\0\0\0\0\0\0\0\0\0\0\x07", 16);
	memcpy(f + ETH_HLEN + 24, "\xff\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\x01", 16);
	/* A drop at the egress hook is told to the sender, as a full queue. */
	assert_true(sendto(fd, f, sizeof(f), 0, (struct sockaddr *)&ll, sizeof(ll)) == sizeof(f) ||
		    errno == ENOBUFS);
}

/* Counts until both stand at least so high, or SOON_MS are over. */
static struct edge_guest_count wait_ip6(struct edge *e, unsigned slot, uint64_t out, uint64_t in, uint64_t killed)
{
	struct edge_guest_count n;
	uint64_t until = clock_boot_ns() + SOON_MS * NS_PER_MS;

	do
		assert_int_equal(edge_guest_count(e, slot, &n), 0);
	while ((n.ip6_out < out || n.ip6_in < in || n.killed < killed) && clock_boot_ns() < until);
	assert_true(n.ip6_out >= out && n.ip6_in >= in && n.killed >= killed);
	assert_true(n.denied >= n.ip6_out + n.ip6_in);
	return n;
}

/* A guest that switches IPv6 on: nothing of it passes either way, it is counted, and a kill cuts it too. */
static void test_ip6(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns = testnet_ns_new(), inner, outer, wire;
	struct edge_guest g = attach(e, ns, "job-6", NULL, 0, 0);
	struct edge_guest_count n;
	struct edge_abi_guest abi;
	uint32_t slot = g.slot;

	(void)state;
	assert_int_equal(map_read(&e->hooks, EDGE_MAP_GUEST, &slot, &abi), 0);
	inner = testnet_socket(ns, AF_PACKET, SOCK_RAW, htons(ETH_P_IPV6));
	outer = testnet_socket(net.machine_ns, AF_PACKET, SOCK_RAW, 0);
	wire = testnet_socket(net.world_ns, AF_PACKET, SOCK_RAW, htons(ETH_P_IPV6));
	assert_true(inner >= 0 && outer >= 0 && wire >= 0);
	send_ip6(inner, e->guests[slot].inner_ifindex, abi.mac, abi.gateway_mac);
	send_ip6(outer, (int)abi.ifindex, abi.gateway_mac, abi.mac);
	n = wait_ip6(e, slot, 1, 1, 0);
	assert_int_equal(edge_kill(e, slot, NULL), 0);
	send_ip6(inner, e->guests[slot].inner_ifindex, abi.mac, abi.gateway_mac);
	send_ip6(outer, (int)abi.ifindex, abi.gateway_mac, abi.mac);
	n = wait_ip6(e, slot, n.ip6_out, n.ip6_in, n.killed + 2);
	/* A frame that passes would lie here by now: behind each drop counter nothing is on its way. */
	for (ssize_t len; (len = recv(inner, buf, sizeof(buf), MSG_DONTWAIT)) > 0;)
		assert_true(len < ETH_HLEN + 40 || buf[ETH_HLEN + 6] != 59 || memcmp(buf, abi.mac, 6) != 0);
	for (ssize_t len; (len = recv(wire, buf, sizeof(buf), MSG_DONTWAIT)) > 0;)
		assert_true(len < ETH_HLEN + 40 || buf[ETH_HLEN + 6] != 59 || memcmp(buf + 6, abi.mac, 6) != 0);
	close(inner);
	close(outer);
	close(wire);
	close(ns);
	remove_edge(e);
}

static void test_lease(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns = testnet_ns_new(), out = testnet_udp(net.world_ns, TESTNET_INTERNET, 5000), in;
	struct edge_guest g = attach(e, ns, "job-4", NULL, 0, 0);
	struct edge_guest_count n;
	uint64_t deadline;

	(void)state;
	in = testnet_udp(ns, NULL, 0);
	assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "1"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	/* The deadline passes with nobody doing anything. */
	deadline = clock_boot_ns() + 30 * NS_PER_MS;
	assert_int_equal(edge_guest_lease(e, g.slot, deadline), 0);
	edge_close(e);
	do
		(void)testnet_udp_send(in, TESTNET_INTERNET, 5000, "2");
	while (clock_boot_ns() < deadline);
	while (testnet_udp_recv(out, 0, buf, sizeof(buf), NULL))
		;
	(void)testnet_udp_send(in, TESTNET_INTERNET, 5000, "late");
	e = open_edge(&c);
	assert_int_equal(edge_guest_count(e, g.slot, &n), 0);
	assert_true(n.lease >= 1);
	assert_int_equal(edge_guest_lease(e, g.slot, FOREVER), 0);
	assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "3"), 0);
	do
		assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	while (buf[0] == '2');
	assert_string_equal(buf, "3");
	close(in);
	close(out);
	close(ns);
	remove_edge(e);
}

static void kill_both_ways(uint32_t disable)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e;
	int ns = testnet_ns_new(), out = testnet_udp(net.world_ns, TESTNET_INTERNET, 5000), in;
	struct sockaddr_in from;
	struct edge_kill_report r;
	struct edge_guest g;
	struct edge_guest_count n;
	uint64_t until;

	c.disable = disable;
	e = open_edge(&c);
	g = attach(e, ns, "job-5", NULL, 0, 0);
	in = testnet_udp(ns, NULL, 0);
	for (uint32_t all = 0; all < 2; all++) {
		assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "open"), 0);
		assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), &from));
		assert_int_equal(edge_kill(e, all ? EDGE_ALL : g.slot, &r), 0);
		assert_true(edge_killed(e, g.slot));
		(void)testnet_udp_send(in, TESTNET_INTERNET, 5000, "out");
		(void)sendto(out, "in", 2, 0, (struct sockaddr *)&from, sizeof(from));
		until = clock_boot_ns() + SOON_MS * NS_PER_MS;
		do
			assert_int_equal(edge_guest_count(e, g.slot, &n), 0);
		while ((n.out.dropped_packets == 0 || n.in.dropped_packets == 0) &&
		       clock_boot_ns() < until);
		assert_true(n.out.dropped_packets >= 1 && n.in.dropped_packets >= 1);
		assert_true(n.killed >= 2);
		if (all) {
			assert_int_equal(edge_kill_clear(e), 0);
			break;
		}
		/* A slot's flag falls with the next attach. */
		assert_int_equal(edge_guest_detach(e, g.slot), 0);
		g = attach(e, ns, "job-5", NULL, 0, 0);
	}
	assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "again"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "again");
	assert_false(testnet_udp_recv(in, 0, buf, sizeof(buf), NULL));
	close(in);
	close(out);
	close(ns);
	remove_edge(e);
}

static void test_kill(void **state)
{
	(void)state;
	kill_both_ways(0);
}

static void test_kill_no_htb(void **state)
{
	(void)state;
	kill_both_ways(1u << EDGE_HTB | 1u << EDGE_TBF);
}

/* One guest is cut, its neighbour goes on; and neither reaches the other. */
static void test_kill_one(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns[2] = { testnet_ns_new(), testnet_ns_new() }, in[2];
	int out = testnet_udp(net.world_ns, TESTNET_INTERNET, 5000);
	struct edge_guest g[2] = { attach(e, ns[0], "job-a", NULL, 0, 0), attach(e, ns[1], "job-b", NULL, 0, 0) };
	char other[INET_ADDRSTRLEN];

	(void)state;
	for (int i = 0; i < 2; i++)
		in[i] = testnet_udp(ns[i], NULL, (uint16_t)(8000 + i));
	(void)inet_ntop(AF_INET, &g[1].address, other, sizeof(other));
	(void)testnet_udp_send(in[0], other, 8001, "neighbour");
	assert_int_equal(edge_kill(e, g[0].slot, NULL), 0);
	assert_true(edge_killed(e, g[0].slot));
	assert_false(edge_killed(e, g[1].slot));
	(void)testnet_udp_send(in[0], TESTNET_INTERNET, 5000, "cut");
	assert_int_equal(testnet_udp_send(in[1], TESTNET_INTERNET, 5000, "free"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "free");
	assert_false(testnet_udp_recv(out, 0, buf, sizeof(buf), NULL));
	assert_false(testnet_udp_recv(in[1], 0, buf, sizeof(buf), NULL));
	assert_int_equal(edge_kill(e, EDGE_GUESTS_MAX, NULL), -ENOENT);
	for (int i = 0; i < 2; i++) {
		close(in[i]);
		close(ns[i]);
	}
	close(out);
	remove_edge(e);
}

/* All slots are given out, and one more is refused and leaves nothing. */
static void test_full(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns[EDGE_GUESTS_MAX + 1];
	struct edge_guest_config gc = { .epoch = 1 };
	struct edge_guest g, all[EDGE_GUESTS_MAX];
	struct diag d = DIAG_INIT;
	char job[16];

	(void)state;
	for (int i = 0; i <= EDGE_GUESTS_MAX; i++) {
		ns[i] = testnet_ns_new();
		(void)snprintf(job, sizeof(job), "job-%d", i);
		gc.job = job;
		gc.netns_fd = ns[i];
		assert_int_equal(edge_guest_attach(e, &gc, &g, &d), i < EDGE_GUESTS_MAX ? 0 : -ENOSPC);
	}
	assert_int_equal(edge_guests(e, all, EDGE_GUESTS_MAX), EDGE_GUESTS_MAX);
	gc.job = "job-3";
	assert_int_equal(edge_guest_attach(e, &gc, &g, &d), -EEXIST);
	gc.job = "";
	assert_int_equal(edge_guest_attach(e, &gc, &g, &d), -EINVAL);
	for (int i = 0; i <= EDGE_GUESTS_MAX; i++)
		close(ns[i]);
	remove_edge(e);
}

static void test_floor(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e;

	(void)state;
	c.floor_cap_bps = 500000000;
	e = open_edge(&c);
	assert_int_equal(edge_floor_cap(e), 500000000);
	assert_int_equal(edge_floor_set(e, 500000001), -EDQUOT);
	assert_int_equal(edge_floor_get(e), 0);
	assert_int_equal(edge_floor_set(e, 400000000), 0);
	edge_close(e);
	/* A lower cap holds for what was granted before. */
	c.floor_cap_bps = 100000000;
	e = open_edge(&c);
	assert_int_equal(edge_floor_get(e), 100000000);
	remove_edge(e);
}

/* Fills the uplink from a marked socket for a while; how many bytes left the uplink in that class. */
static void flood(int fd, int count)
{
	static const char payload[1400];
	struct sockaddr_in sin = { .sin_family = AF_INET, .sin_port = htons(9),
				   .sin_addr = { inet_addr(TESTNET_WORLD) } };

	for (int i = 0; i < count; i++)
		(void)sendto(fd, payload, sizeof(payload), MSG_DONTWAIT, (struct sockaddr *)&sin,
			     sizeof(sin)); /* a full queue is the point */
}

static int marked(enum traffic_class class, uint32_t tag)
{
	int fd = testnet_udp(net.machine_ns, NULL, 0);
	uint32_t mark = traffic_mark(class, tag);

	assert_true(fd >= 0);
	if (class != TRAFFIC_RESEARCH)
		assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_MARK, &mark, sizeof(mark)), 0);
	return fd;
}

#define SHARES_BPS 50000000
#define SHARES_TRIES 25

/* What left the uplink by class, and how long it took. */
struct shares {
	uint64_t research, deadline, scavenger;
	double seconds;
};

static uint64_t class_sent(struct edge *e, enum traffic_class class, uint32_t leaf, bool htb)
{
	struct edge_class_count n;

	if (htb)
		return tree_sent(e->sock, e->tree.ifindex, leaf);
	assert_int_equal(edge_class_count(e, class, &n), 0);
	return n.out.bytes;
}

static struct shares shares_now(struct edge *e, bool htb)
{
	return (struct shares){ class_sent(e, TRAFFIC_RESEARCH, TREE_RESEARCH, htb),
				class_sent(e, TRAFFIC_DEADLINE, TREE_DEADLINE, htb),
				class_sent(e, TRAFFIC_SCAVENGER, TREE_SCAVENGER, htb),
				(double)clock_boot_ns() / 1e9 };
}

static struct shares shares_measure(struct edge *e, const int fds[3], bool htb)
{
	struct shares from, to;
	uint64_t until;

	for (int i = 0; i < 3; i++)
		flood(fds[i], 50); /* full before it counts */
	from = shares_now(e, htb);
	until = clock_boot_ns() + 400 * NS_PER_MS;
	while (clock_boot_ns() < until)
		for (int i = 0; i < 3; i++)
			flood(fds[i], 20);
	to = shares_now(e, htb);
	to.research -= from.research;
	to.deadline -= from.deadline;
	to.scavenger -= from.scavenger;
	to.seconds -= from.seconds;
	print_message("research %llu deadline %llu scavenger %llu in %.2f s\n", (unsigned long long)to.research,
		      (unsigned long long)to.deadline, (unsigned long long)to.scavenger, to.seconds);
	return to;
}

static bool shares_hold(const struct shares *s, uint64_t floor_bps, bool htb)
{
	double total = (double)(s->research + s->deadline + s->scavenger);
	double want = (double)floor_bps / SHARES_BPS, got = (double)s->deadline / total;

	/* Of what was sent, the floor's share and the rest to research; bursts blur a little. */
	if (htb)
		return got > want - 0.05 && got < want + 0.08 && (double)s->scavenger < 0.05 * total;
	/* The token bucket never refuses research, so the others get at most floor and scraps. */
	return (double)s->deadline * 8 < (double)(floor_bps + 5000000) * 1.25 * s->seconds + 8 * 131072 * 2 &&
	       (double)s->scavenger < 0.1 * total + 131072;
}

/*
 * Shares of a saturated uplink. It is saturated while this process gets to run: where it waits for
 * a core the queues run empty, and who comes then gets the link, as is right. So it asks to come
 * first, and one stretch in which the shares hold is enough: no accident gives research its share
 * of a link on which the order is wrong.
 */
static void shares(uint32_t disable, uint64_t floor_bps)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e;
	int fds[3], nice_before = getpriority(PRIO_PROCESS, 0);
	bool hold = false;

	c.uplink_bps = SHARES_BPS;
	c.disable = disable;
	e = open_edge(&c);
	assert_int_equal(edge_floor_set(e, floor_bps), 0);
	fds[0] = marked(TRAFFIC_RESEARCH, 0);
	fds[1] = marked(TRAFFIC_DEADLINE, 1);
	fds[2] = marked(TRAFFIC_SCAVENGER, 2);
	(void)setpriority(PRIO_PROCESS, 0, -20); /* may be refused */
	for (int i = 0; i < SHARES_TRIES && !hold; i++) {
		struct shares s = shares_measure(e, fds, !disable);

		hold = shares_hold(&s, floor_bps, !disable);
	}
	(void)setpriority(PRIO_PROCESS, 0, nice_before);
	for (int i = 0; i < 3; i++)
		close(fds[i]);
	remove_edge(e);
	assert_true(hold); /* last, so that the next test finds a bare machine */
}

static void test_shares_htb(void **state)
{
	(void)state;
	shares(0, 20000000);
}

static void test_shares_police(void **state)
{
	(void)state;
	shares(1u << EDGE_HTB, 20000000);
}

static void test_stop_all(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int out = testnet_udp(net.world_ns, TESTNET_WORLD, 5000), move, control;
	struct edge_class_count n;
	uint32_t tag, same;

	(void)state;
	assert_int_equal(edge_tag(e, "job-6", 1, &tag), 0);
	assert_int_equal(edge_tag(e, "job-6", 1, &same), 0);
	assert_int_equal(tag, same);
	move = marked(TRAFFIC_DEADLINE, tag);
	control = marked(TRAFFIC_CONTROL, 0);
	assert_int_equal(edge_stop_all(e, true), 0);
	edge_close(e);
	e = open_edge(&c); /* the stop holds across a restart */
	(void)testnet_udp_send(move, TESTNET_WORLD, 5000, "move");
	assert_int_equal(testnet_udp_send(control, TESTNET_WORLD, 5000, "control"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "control");
	assert_int_equal(edge_class_count(e, TRAFFIC_DEADLINE, &n), 0);
	assert_int_equal(n.out.dropped_packets, 1);
	assert_int_equal(edge_stop_all(e, false), 0);
	assert_int_equal(testnet_udp_send(move, TESTNET_WORLD, 5000, "move"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, buf, sizeof(buf), NULL));
	assert_string_equal(buf, "move");
	close(out);
	close(move);
	close(control);
	remove_edge(e);
}

static void test_status_schema(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns = testnet_ns_new();
	json_t *schema = schema_of("edge-show.json"), *status;

	(void)state;
	(void)attach(e, ns, "job-8", NULL, 0, 0);
	status = edge_status(e);
	assert_int_equal(json_array_size(json_object_get(status, "guests")), 1);
	assert_int_equal(json_array_size(json_object_get(status, "classes")), TRAFFIC_CLASS_COUNT);
	conforms(schema, status, "status");
	json_decref(schema);
	json_decref(status);
	close(ns);
	remove_edge(e);
}

static void test_readonly(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c), *show;
	json_t *a, *b;
	struct diag d = DIAG_INIT;

	(void)state;
	assert_int_equal(edge_floor_set(e, 100000000), 0);
	assert_int_equal(edge_open_readonly(net.run_dir, net.state_dir, &show, &d), 0);
	a = edge_status(e);
	b = edge_status(show);
	assert_non_null(a);
	(void)json_object_del(a, "classes"); /* neighbour discovery goes on in between */
	(void)json_object_del(b, "classes");
	assert_true(json_equal(a, b));
	json_decref(a);
	json_decref(b);
	assert_int_equal(edge_floor_set(show, 0), -EROFS);
	assert_int_equal(edge_kill(show, EDGE_ALL, NULL), -EROFS);
	edge_close(show);
	remove_edge(e);
}

static void test_congestion(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int fd = testnet_socket(net.machine_ns, AF_INET, SOCK_STREAM, 0);
	char name[16];
	socklen_t len = sizeof(name);

	(void)state;
	assert_true(fd >= 0);
	if (e->features.items[EDGE_CC].have) {
		assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, TRAFFIC_CC_FLOOR,
					    strlen(TRAFFIC_CC_FLOOR)), 0);
		assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, TRAFFIC_CC_SCAVENGER,
					    strlen(TRAFFIC_CC_SCAVENGER)), 0);
		assert_int_equal(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
		assert_string_equal(name, TRAFFIC_CC_SCAVENGER);
		/* They outlive the agent, and a second agent finds them. */
		edge_close(e);
		assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, TRAFFIC_CC_FLOOR,
					    strlen(TRAFFIC_CC_FLOOR)), 0);
		e = open_edge(&c);
	} else {
		print_message("skipped: congestion controls: %s\n", e->features.items[EDGE_CC].reason);
	}
	close(fd);
	remove_edge(e);
}

static void test_nothing_left(void **state)
{
	struct edge_config c = testnet_config(&net);
	struct edge *e = open_edge(&c);
	int ns = testnet_ns_new(), forwarding = 1;
	enum tree_found found;
	struct net_link l;
	struct stat st;
	char kind[16], path[128];

	(void)state;
	(void)attach(e, ns, "job-7", NULL, 0, 0);
	close(ns); /* the namespace goes, and the veth with it */
	edge_close(e);
	e = open_edge(&c);
	remove_edge(e);
	assert_int_equal(tree_find(net.machine, net.uplink_ifindex, &found, kind), 0);
	assert_int_equal(found, TREE_NONE);
	assert_int_equal(net_link_get(net.machine, "rg0", 0, &l), -ENODEV);
	assert_int_equal(net_conf_get("up0", "forwarding", &forwarding), 0);
	assert_int_equal(forwarding, 0);
	(void)snprintf(path, sizeof(path), "%s/bpf", net.run_dir);
	assert_true(stat(path, &st) < 0);
	(void)snprintf(path, sizeof(path), "%s/edge.cut", net.run_dir);
	assert_true(stat(path, &st) < 0);
	assert_int_equal(nft_exists(), 0);
	/* clsact is gone, too: creating it succeeds. */
	e = open_edge(&c);
	remove_edge(e);
}

int main(int argc, char **argv)
{
	const char *why = testnet_init(&net);
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probe),
		cmocka_unit_test(test_adopt),
		cmocka_unit_test(test_reach),
		cmocka_unit_test(test_spoof),
		cmocka_unit_test(test_ip6),
		cmocka_unit_test(test_lease),
		cmocka_unit_test(test_kill),
		cmocka_unit_test(test_kill_no_htb),
		cmocka_unit_test(test_kill_one),
		cmocka_unit_test(test_full),
		cmocka_unit_test(test_floor),
		cmocka_unit_test(test_shares_htb),
		cmocka_unit_test(test_shares_police),
		cmocka_unit_test(test_stop_all),
		cmocka_unit_test(test_status_schema),
		cmocka_unit_test(test_readonly),
		cmocka_unit_test(test_congestion),
		cmocka_unit_test(test_nothing_left),
	};
	int failed;

	if (argc > 1)
		schema_dir = argv[1];
	if (why) {
		printf("skipped: edge in namespaces: %s\n", why);
		testnet_done(&net);
		return 77;
	}
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	testnet_done(&net);
	return failed;
}
