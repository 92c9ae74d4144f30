/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The node of a page: node.c compiled to WebAssembly, with its calls going to
 * JavaScript. One node per instance. Built for wasm32 only.
 */
#include <stdlib.h>

#include "volunteer/node.h"
#include "volunteer/route.h"

#define IMPORT(name) __attribute__((import_module("env"), import_name(#name)))
#define EXPORT(name) __attribute__((export_name(#name)))

IMPORT(js_send) void js_send(int link, const void *bytes, size_t len);
IMPORT(js_close) void js_close(int link);
IMPORT(js_promote) void js_promote(void);
IMPORT(js_compute) void js_compute(uint64_t value, const void *bytes, size_t len);
IMPORT(js_cancel) void js_cancel(uint64_t value);
IMPORT(js_make_offer) void js_make_offer(uint32_t generation);
IMPORT(js_take_offer) void js_take_offer(int slot, uint64_t origin, const void *sdp, size_t len);
IMPORT(js_take_answer) void js_take_answer(const void *sdp, size_t len);
IMPORT(js_parent_changed) void js_parent_changed(int up, uint64_t position, uint32_t generation);
IMPORT(js_child_changed) void js_child_changed(int up, uint64_t child, uint32_t generation);

static struct node *node;
static uint32_t degree;

_Noreturn void check_failed(const char *expr, const char *file, int line);
_Noreturn void check_failed(const char *expr, const char *file, int line)
{
	(void)expr, (void)file, (void)line;
	__builtin_trap();
}

static void on_send(void *user, int link, const void *bytes, size_t len)
{
	(void)user;
	js_send(link, bytes, len);
}

static void on_close(void *user, int link)
{
	(void)user;
	js_close(link);
}

static void on_promote(void *user)
{
	(void)user;
	js_promote();
}

static void on_compute(void *user, uint64_t value, const void *bytes, size_t len)
{
	(void)user;
	js_compute(value, bytes, len);
}

static void on_cancel(void *user, uint64_t value)
{
	(void)user;
	js_cancel(value);
}

static void on_make_offer(void *user, uint32_t generation)
{
	(void)user;
	js_make_offer(generation);
}

static void on_take_offer(void *user, int slot, uint64_t origin, const void *sdp, size_t len)
{
	(void)user;
	js_take_offer(slot, origin, sdp, len);
}

static void on_take_answer(void *user, const void *sdp, size_t len)
{
	(void)user;
	js_take_answer(sdp, len);
}

static void on_parent_changed(void *user, bool up, uint64_t position, uint32_t generation)
{
	(void)user;
	js_parent_changed(up, position, generation);
}

static void on_child_changed(void *user, bool up, uint64_t child, uint32_t generation)
{
	(void)user;
	js_child_changed(up, child, generation);
}

static const struct node_ops ops = {
	.send = on_send, .close = on_close, .promote = on_promote, .compute = on_compute,
	.cancel = on_cancel, .make_offer = on_make_offer, .take_offer = on_take_offer,
	.take_answer = on_take_answer, .parent_changed = on_parent_changed,
	.child_changed = on_child_changed,
};

EXPORT(page_new) int page_new(uint64_t self, uint32_t the_degree, int mode)
{
	degree = the_degree;
	return node_new(self, degree, (enum route_mode)mode, &ops, NULL, &node);
}

EXPORT(page_set_workers) void page_set_workers(uint32_t workers, uint64_t now_ms)
{
	node_set_workers(node, workers, now_ms);
}

EXPORT(page_use_socket) void page_use_socket(uint64_t now_ms)
{
	node_use_socket(node, now_ms);
}

EXPORT(page_expect)
int page_expect(uint64_t child, uint64_t position, uint32_t generation, uint64_t now_ms)
{
	return node_expect(node, child, position, generation, now_ms);
}

EXPORT(page_assigned) void page_assigned(uint64_t position, uint32_t generation, uint64_t now_ms)
{
	node_assigned(node, position, generation, now_ms);
}

EXPORT(page_link_up) void page_link_up(int link, uint64_t now_ms)
{
	node_link_up(node, link, now_ms);
}

EXPORT(page_link_down) void page_link_down(int link, uint64_t now_ms)
{
	node_link_down(node, link, now_ms);
}

EXPORT(page_input) void page_input(int link, const void *bytes, size_t len, uint64_t now_ms)
{
	node_input(node, link, bytes, len, now_ms);
}

EXPORT(page_result)
void page_result(uint64_t value, int failed, const void *bytes, size_t len, uint32_t took_ms,
		 uint64_t now_ms)
{
	node_result(node, value, failed, bytes, len, took_ms, now_ms);
}

EXPORT(page_offer_made) void page_offer_made(const void *sdp, size_t len, uint64_t now_ms)
{
	node_offer_made(node, sdp, len, now_ms);
}

EXPORT(page_answer_made)
void page_answer_made(int slot, const void *sdp, size_t len, uint64_t now_ms)
{
	node_answer_made(node, slot, sdp, len, now_ms);
}

EXPORT(page_leave) void page_leave(uint64_t now_ms)
{
	node_leave(node, now_ms);
}

EXPORT(page_tick) void page_tick(uint64_t now_ms)
{
	node_tick(node, now_ms);
}

/* computed, failed, relayed, held, children, attached, depth, refused */
EXPORT(page_stats) const uint32_t *page_stats(void)
{
	static uint32_t out[8];
	struct node_stats s;
	node_stats(node, &s);
	out[0] = (uint32_t)s.computed;
	out[1] = (uint32_t)s.failed;
	out[2] = (uint32_t)s.relayed;
	out[3] = s.held;
	out[4] = s.children;
	out[5] = s.attached;
	out[6] = s.attached ? route_depth(s.position, degree) : 0;
	out[7] = (uint32_t)s.refused;
	return out;
}
