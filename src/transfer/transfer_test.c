/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole moves between two stores on loopback, by the real helper program: what
 * arrives is whole, what breaks is named, what had arrived is not sent again.
 */
#include "io/io_test_util.h"
#include "io/ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/parse.h"
#include "base/rng.h"
#include "transfer/transfer.h"
#include "wire/ticket.h"

static const char *helper; /* path of reclaim-transfer */
static uv_loop_t loop;
static uint8_t key[32] = { 7, 7, 7 };
static struct identity *coordinator;

/* ---- the two machines ---- */

struct side {
	char name[32], store_dir[256], identity_dir[256];
	struct image_store *store;
	struct transfer_receiver *receiver;
	uint16_t port;
	unsigned started, received, failed, crashed;
	enum transfer_code code;
	struct diag diag;
	struct transfer_incoming last;
	bool stopped;
};

static struct side a, b;

static void on_listening(void *arg, uint16_t port)
{
	((struct side *)arg)->port = port;
}

static void on_started(void *arg, const struct transfer_incoming *in)
{
	((struct side *)arg)->started++;
}

static void on_received(void *arg, const struct transfer_incoming *in)
{
	struct side *s = arg;

	s->received++;
	s->last = *in;
}

static void on_failed(void *arg, const struct transfer_incoming *in, enum transfer_code code,
		      const struct diag *diag)
{
	struct side *s = arg;

	s->failed++;
	s->code = code;
	s->diag = *diag;
}

static void on_crashed(void *arg, const struct diag *diag)
{
	((struct side *)arg)->crashed++;
}

static void on_stopped(void *arg)
{
	((struct side *)arg)->stopped = true;
}

static bool wait_for(bool (*cond)(void *arg), void *arg)
{
	uint64_t end = clock_boot_ns() + 60 * NS_PER_S;

	while (!cond(arg)) {
		if (clock_boot_ns() > end)
			return false;
		uv_run(&loop, UV_RUN_NOWAIT);
		poll(NULL, 0, 1); /* the loop's own poll has nothing to wake it for conditions outside */
	}
	return true;
}

static bool is_listening(void *arg)
{
	return ((struct side *)arg)->port != 0;
}

static bool is_stopped(void *arg)
{
	return ((struct side *)arg)->stopped;
}

static void receiver_start(struct side *s)
{
	struct transfer_receiver_params p = { .program = helper, .store_dir = s->store_dir,
					      .identity_dir = s->identity_dir, .listen_addr = "127.0.0.1" };
	struct transfer_receiver_callbacks cb = { on_listening, on_started, on_received, on_failed, on_crashed };
	struct diag d = DIAG_INIT;

	s->port = 0;
	if (transfer_receiver_start(&loop, &p, &cb, s, &s->receiver, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	assert_true(wait_for(is_listening, s));
}

static void side_start(struct side *s, const char *name)
{
	struct diag d = DIAG_INIT;

	memset(s, 0, sizeof(*s));
	snprintf(s->name, sizeof(s->name), "%s", name);
	snprintf(s->store_dir, sizeof(s->store_dir), "%s/store-%s", test_dir, name);
	snprintf(s->identity_dir, sizeof(s->identity_dir), "%s/%s", test_dir, name);
	identity_free(enrolled(name, IDENTITY_AGENT));
	assert_int_equal(image_store_open(s->store_dir, &s->store, &d), 0);
}

static int setup(void **state)
{
	assert_int_equal(uv_loop_init(&loop), 0);
	campus_new();
	coordinator = enrolled("coord", IDENTITY_COORDINATOR);
	side_start(&a, "a");
	side_start(&b, "b");
	receiver_start(&b);
	return 0;
}

static void side_stop(struct side *s)
{
	if (s->receiver) {
		transfer_receiver_stop(s->receiver, on_stopped, s);
		assert_true(wait_for(is_stopped, s));
	}
	image_store_close(s->store);
	s->receiver = NULL;
}

static int teardown(void **state)
{
	side_stop(&a);
	side_stop(&b);
	identity_free(coordinator);
	assert_int_equal(uv_loop_close(&loop), 0); /* nothing is left on it */
	campus_remove();
	return 0;
}

/* ---- images and tickets ---- */

static void put_random(const char *path, size_t len, uint64_t seed)
{
	uint64_t *buf = malloc(len + 8);
	struct rng r;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);

	rng_init(&r, seed);
	for (size_t i = 0; i < len / 8 + 1; i++)
		buf[i] = rng_u64(&r);
	assert_int_equal(fd_write_all(fd, buf, len), 0);
	close(fd);
	free(buf);
}

static void take(struct side *s, uint64_t epoch, uint64_t seq, size_t bytes, uint64_t seed,
		 struct image_info *ret)
{
	char dir[256], path[300];
	struct image_take_params p = { .job = "j", .epoch = epoch, .seq = seq, .src_dir = dir };
	struct diag d = DIAG_INIT;

	snprintf(dir, sizeof(dir), "%s/ckpt", test_dir);
	mkdir(dir, 0755);
	snprintf(path, sizeof(path), "%s/model", dir);
	if (bytes)
		put_random(path, bytes, seed);
	memcpy(p.key, key, 32);
	if (image_take(s->store, &p, ret, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
}

static struct ticket ticket_for(const struct image_info *info)
{
	struct ticket t = { .use = TICKET_MOVE, .epoch = info->epoch, .remaining_ms = 600000,
			    .traffic_class = TRAFFIC_DEADLINE };
	static unsigned serial;

	snprintf(t.serial, sizeof(t.serial), "t-%u", ++serial);
	strcpy(t.job, "j");
	strcpy(t.source, "a");
	strcpy(t.destination, "b");
	assert_int_equal(hex_decode(info->digest, 64, t.image, 32), 0);
	return t;
}

struct outcome {
	bool over;
	enum transfer_code code;
	struct diag diag;
	struct transfer_result result;
	struct transfer_sender *sender;
	uint64_t kill_after; /* payload bytes; 0 = never */
	bool killed;
};

static void on_progress(void *arg, const struct transfer_progress_info *p)
{
}

static void on_done(void *arg, const struct transfer_result *r)
{
	struct outcome *o = arg;

	o->over = true;
	o->code = TRANSFER_OK;
	o->result = *r;
}

static void on_send_failed(void *arg, enum transfer_code code, const struct diag *diag)
{
	struct outcome *o = arg;

	o->over = true;
	o->code = code;
	o->diag = *diag;
}

static void send_begin(struct outcome *o, const struct image_info *info, const struct ticket *t, uint16_t port,
		       enum traffic_class c, uint64_t rate, bool with_key)
{
	char text[TICKET_TEXT_MAX];
	struct transfer_sender_params p = { .program = helper, .store_dir = a.store_dir,
					    .identity_dir = a.identity_dir, .peer_host = "127.0.0.1",
					    .peer_port = port, .ticket = text, .job = "j",
					    .image = info->digest, .key = with_key ? key : NULL,
					    .traffic_class = c, .rate_max_bps = rate, .retry_ms = 5000 };
	struct transfer_sender_callbacks cb = { on_progress, on_done, on_send_failed };
	struct diag d = DIAG_INIT;

	memset(o, 0, sizeof(*o));
	if (ticket_sign(coordinator, t, text, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	if (transfer_sender_start(&loop, &p, &cb, o, &o->sender, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
}

static bool is_over(void *arg)
{
	return ((struct outcome *)arg)->over;
}

static bool received_one(void *arg)
{
	return ((struct side *)arg)->received > 0;
}

static void finish(struct outcome *o)
{
	assert_true(wait_for(is_over, o));
}

static void expect(struct outcome *o, enum transfer_code code)
{
	finish(o);
	if (o->code != code)
		fail_msg("%s instead of %s: %s: %s", transfer_code_name(o->code), transfer_code_name(code),
			 o->diag.where, o->diag.what);
}

static void expect_whole(struct side *s, const char *digest)
{
	struct diag d = DIAG_INIT;

	if (image_verify(s->store, "j", digest, key, 0, NULL, NULL, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
}

static void expect_nothing(struct side *s)
{
	struct image_info *infos = NULL;
	size_t count = 1;

	assert_int_equal(image_list(s->store, "j", &infos, &count, NULL), 0);
	assert_int_equal(count, 0);
	free(infos);
}

/* ---- a proxy that cuts and flips ---- */

struct proxy {
	int listen_fd;
	uint16_t port, to;
	pthread_t thread;
	atomic_bool stop;
	atomic_ullong cut_every;  /* bytes forwarded; 0 = never */
	atomic_uint cuts_left, cuts;
	atomic_bool flip_next;    /* one bit of the next large piece */
	atomic_ullong bytes;
};

struct pair {
	int x, y;
};

static int dial(uint16_t port)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&at, sizeof(at)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool forward(struct proxy *p, int from, int to)
{
	static char buf[65536];
	ssize_t n = read(from, buf, sizeof(buf));

	if (n <= 0)
		return false;
	if (n > 20000 && atomic_exchange(&p->flip_next, false))
		buf[n / 2] ^= 4;
	p->bytes += (uint64_t)n;
	return fd_write_all(to, buf, (size_t)n) == 0;
}

static void *proxy_main(void *arg)
{
	struct proxy *p = arg;
	struct pair pairs[32];
	unsigned count = 0;
	uint64_t since = 0;

	while (!p->stop) {
		struct pollfd fds[65] = { { p->listen_fd, POLLIN, 0 } };
		bool drop_all = false;

		for (unsigned i = 0; i < count; i++) {
			fds[1 + 2 * i] = (struct pollfd){ pairs[i].x, POLLIN, 0 };
			fds[2 + 2 * i] = (struct pollfd){ pairs[i].y, POLLIN, 0 };
		}
		poll(fds, 1 + 2 * count, 20);
		unsigned seen = count;
		for (unsigned i = 0; i < seen; i++) {
			uint64_t before = p->bytes;
			bool ok = true;

			if (fds[1 + 2 * i].revents)
				ok = forward(p, pairs[i].x, pairs[i].y);
			if (ok && fds[2 + 2 * i].revents)
				ok = forward(p, pairs[i].y, pairs[i].x);
			since += p->bytes - before;
			if (!ok) {
				close(pairs[i].x);
				close(pairs[i].y);
				pairs[i].x = -1;
			}
		}
		if (p->cut_every && p->cuts_left && since > p->cut_every) {
			drop_all = true;
			since = 0;
			p->cuts_left--;
			p->cuts++;
		}
		for (unsigned i = 0; i < count;) {
			if (drop_all && pairs[i].x >= 0) {
				struct linger hard = { 1, 0 };

				setsockopt(pairs[i].x, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard));
				close(pairs[i].x);
				close(pairs[i].y);
				pairs[i].x = -1;
			}
			if (pairs[i].x < 0)
				pairs[i] = pairs[--count];
			else
				i++;
		}
		if (fds[0].revents && count < 32) {
			int x = accept(p->listen_fd, NULL, NULL), y = x < 0 ? -1 : dial(p->to);

			if (y >= 0)
				pairs[count++] = (struct pair){ x, y };
			else if (x >= 0)
				close(x);
		}
	}
	for (unsigned i = 0; i < count; i++) {
		close(pairs[i].x);
		close(pairs[i].y);
	}
	return NULL;
}

static void proxy_start(struct proxy *p, uint16_t to)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);

	memset(p, 0, sizeof(*p));
	p->to = to;
	p->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(p->listen_fd, (struct sockaddr *)&at, sizeof(at)), 0);
	assert_int_equal(listen(p->listen_fd, 32), 0);
	getsockname(p->listen_fd, (struct sockaddr *)&at, &len);
	p->port = ntohs(at.sin_port);
	pthread_create(&p->thread, NULL, proxy_main, p);
}

static void proxy_stop(struct proxy *p)
{
	p->stop = true;
	pthread_join(p->thread, NULL);
	close(p->listen_fd);
}

/* ---- the tests ---- */

static void test_move(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;

	take(&a, 1, 1, 9000001, 1, &info);
	t = ticket_for(&info);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	expect_whole(&b, info.digest);
	assert_int_equal(o.result.chunks_sent, info.chunks);
	assert_true(wait_for(received_one, &b));
	assert_string_equal(b.last.image, info.digest);
	assert_string_equal(b.last.from, "a");
	/* Again: nothing travels. */
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	assert_true(o.result.bytes_wire < 20000); /* ticket, offer, manifest */
}

/* A slow link and a near image: only the difference travels. */
static void test_delta(void **state)
{
	struct image_info one, two;
	struct outcome o;
	struct ticket t;
	char path[300];
	int fd;

	take(&a, 1, 1, 6000000, 1, &one);
	t = ticket_for(&one);
	send_begin(&o, &one, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	snprintf(path, sizeof(path), "%s/ckpt/model", test_dir);
	fd = open(path, O_RDWR);
	for (off_t at = 100; at < 6000000; at += 500000)
		assert_int_equal(pwrite(fd, "changed", 7, at), 7);
	close(fd);
	take(&a, 1, 2, 0, 0, &two);
	t = ticket_for(&two);
	send_begin(&o, &two, &t, b.port, TRAFFIC_DEADLINE, 200000000, true);
	expect(&o, TRANSFER_OK);
	expect_whole(&b, two.digest);
	assert_true(o.result.chunks_delta >= 5);
	assert_true(o.result.bytes_wire < 1300000);
	/* Without the key (a holder, not a host): the same image, as stored. */
}

static void test_hold_only_gets_no_key(void **state)
{
	struct image_info one;
	struct outcome o;
	struct ticket t;

	take(&a, 1, 1, 3000000, 1, &one);
	t = ticket_for(&one);
	t.hold_only = true;
	send_begin(&o, &one, &t, b.port, TRAFFIC_DEADLINE, 200000000, true);
	expect(&o, TRANSFER_OK);
	assert_int_equal(o.result.chunks_zstd + o.result.chunks_delta, 0);
	expect_whole(&b, one.digest);
	assert_true(wait_for(received_one, &b));
	assert_true(b.last.hold_only);
}

static void refuse(const struct image_info *info, const struct ticket *t, enum transfer_code code)
{
	struct outcome o;

	send_begin(&o, info, t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, code);
	assert_true(o.diag.what[0]);
	expect_nothing(&b);
}

static void test_tickets_are_checked(void **state)
{
	struct image_info info;
	struct ticket t;

	take(&a, 5, 1, 100000, 1, &info);
	t = ticket_for(&info);
	strcpy(t.destination, "c");
	refuse(&info, &t, TRANSFER_E_TICKET);
	t = ticket_for(&info);
	strcpy(t.source, "c");
	refuse(&info, &t, TRANSFER_E_TICKET);
	t = ticket_for(&info);
	memset(t.destination_digest, '0', 64);
	refuse(&info, &t, TRANSFER_E_TICKET);
	t = ticket_for(&info);
	t.image[3] ^= 1;
	refuse(&info, &t, TRANSFER_E_TICKET);
	t = ticket_for(&info);
	t.use = TICKET_FETCH;
	refuse(&info, &t, TRANSFER_E_TICKET);
	t = ticket_for(&info);
	t.remaining_ms = 0;
	refuse(&info, &t, TRANSFER_E_EXPIRED);
	t = ticket_for(&info);
	t.epoch = 4; /* not the image's */
	refuse(&info, &t, TRANSFER_E_EPOCH);
	/* Signed by somebody who is not the coordinator. */
	struct identity *was = coordinator;
	coordinator = enrolled("mallory", IDENTITY_AGENT);
	t = ticket_for(&info);
	refuse(&info, &t, TRANSFER_E_TICKET);
	identity_free(coordinator);
	coordinator = was;
	/* Fenced. */
	transfer_receiver_fence(b.receiver, "j", 6);
	t = ticket_for(&info);
	uint64_t fence = 0;
	for (uint64_t end = clock_boot_ns() + 10 * NS_PER_S; fence != 6 && clock_boot_ns() < end;) {
		uv_run(&loop, UV_RUN_NOWAIT);
		assert_int_equal(image_fence_get(b.store, "j", &fence), 0);
	}
	refuse(&info, &t, TRANSFER_E_EPOCH);
}

static void test_foreign_certificate(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;
	struct diag d = DIAG_INIT;
	char other[128];

	take(&a, 1, 1, 100000, 1, &info);
	t = ticket_for(&info);
	snprintf(other, sizeof(other), "%s/other", test_dir);
	assert_int_equal(identity_ca_create(other, "other", &d), 0);
	/* b turns out to be of another campus. */
	side_stop(&b);
	(void)dir_remove_all(b.identity_dir);
	identity_free(enrolled_by(other, "b", IDENTITY_AGENT, 86400));
	memset(&b.stopped, 0, sizeof(b.stopped));
	assert_int_equal(image_store_open(b.store_dir, &b.store, &d), 0);
	receiver_start(&b);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_E_PEER);
	expect_nothing(&b);
}

static void test_rollback_is_refused(void **state)
{
	struct image_info one, two;
	struct outcome o;
	struct ticket t;

	take(&a, 1, 1, 200000, 1, &one);
	take(&a, 1, 2, 200000, 2, &two);
	t = ticket_for(&two);
	send_begin(&o, &two, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	t = ticket_for(&one);
	send_begin(&o, &one, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_E_EPOCH);
}

static void test_ten_cuts(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;
	struct proxy p;

	take(&a, 1, 1, 60000000, 1, &info);
	t = ticket_for(&info);
	proxy_start(&p, b.port);
	p.cut_every = 5000000;
	p.cuts_left = 10;
	send_begin(&o, &info, &t, p.port, TRAFFIC_DEADLINE, 800000000, true);
	expect(&o, TRANSFER_OK);
	proxy_stop(&p);
	expect_whole(&b, info.digest);
	assert_int_equal(p.cuts, 10);
	assert_true(o.result.reconnects >= 10);
	/* What had arrived was not sent again: what the cuts cost was in flight, in buffers. */
	print_message("sent %llu of %llu, forwarded %llu\n", (unsigned long long)o.result.bytes_wire,
		      (unsigned long long)info.stored_bytes, (unsigned long long)p.bytes);
	assert_true(o.result.bytes_wire < info.stored_bytes + 10 * 3 * 1000000);
	assert_true(p.bytes < info.stored_bytes + info.stored_bytes / 50 + 10 * 3 * 300000);
}

static void test_flipped_bit_in_the_stream(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;
	struct proxy p;

	take(&a, 1, 1, 20000000, 1, &info);
	t = ticket_for(&info);
	proxy_start(&p, b.port);
	p.flip_next = true;
	send_begin(&o, &info, &t, p.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	proxy_stop(&p);
	assert_false(p.flip_next);
	assert_true(o.result.reconnects >= 1);
	expect_whole(&b, info.digest);
}

static void flip_in(const char *store, const char *what, long at)
{
	char cmd[1024];

	snprintf(cmd, sizeof(cmd),
		 "f=$(ls %s/jobs/j/%s | head -1); b=$(dd if=$f bs=1 skip=%ld count=1 2>/dev/null | od -An -tu1); "
		 "printf \"\\\\$(printf %%o $((b ^ 1)))\" | dd of=$f bs=1 seek=%ld conv=notrunc 2>/dev/null",
		 store, what, at, at);
	assert_int_equal(system(cmd), 0);
}

static void test_damage_at_the_sender_is_named(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;

	take(&a, 1, 1, 5000000, 1, &info);
	flip_in(a.store_dir, "packs/*.pack", 2500000);
	t = ticket_for(&info);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_E_DAMAGED);
	expect_nothing(&b);
	flip_in(a.store_dir, "packs/*.pack", 2500000); /* whole again, but for the manifest */
	flip_in(a.store_dir, "images/*.manifest", 100);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_E_DAMAGED);
	expect_nothing(&b);
	flip_in(a.store_dir, "images/*.manifest", 100);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	expect_whole(&b, info.digest);
}

/* The receiver's copy of the base has rotted: the delta cannot be undone, the chunk comes whole. */
static void test_damaged_base(void **state)
{
	struct image_info one, two;
	struct outcome o;
	struct ticket t;
	char path[300];
	int fd;

	take(&a, 1, 1, 4000000, 1, &one);
	t = ticket_for(&one);
	send_begin(&o, &one, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	flip_in(b.store_dir, "packs/*.pack", 500000);
	snprintf(path, sizeof(path), "%s/ckpt/model", test_dir);
	fd = open(path, O_RDWR);
	for (off_t at = 100; at < 4000000; at += 500000)
		assert_int_equal(pwrite(fd, "changed", 7, at), 7);
	close(fd);
	take(&a, 1, 2, 0, 0, &two);
	t = ticket_for(&two);
	send_begin(&o, &two, &t, b.port, TRAFFIC_DEADLINE, 100000000, true);
	expect(&o, TRANSFER_OK);
	expect_whole(&b, two.digest);
}

/* A chunk lost at one holder comes back from another. */
static void test_fetch_repairs(void **state)
{
	struct image_info info, info2;
	struct outcome o = { .over = false };
	struct ticket t;
	struct diag d = DIAG_INIT;
	char text[TICKET_TEXT_MAX];
	struct transfer_sender_callbacks cb = { on_progress, on_done, on_send_failed };

	take(&a, 1, 1, 5000000, 1, &info);
	t = ticket_for(&info);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	flip_in(a.store_dir, "packs/*.pack", 2500000);
	assert_int_equal(image_verify(a.store, "j", info.digest, NULL, IMAGE_VERIFY_DROP_BAD, NULL, NULL, &d), -EBADMSG);
	t = ticket_for(&info);
	t.use = TICKET_FETCH;
	strcpy(t.source, "b");
	strcpy(t.destination, "a");
	assert_int_equal(ticket_sign(coordinator, &t, text, &d), 0);
	struct transfer_sender_params p = { .program = helper, .store_dir = a.store_dir,
					    .identity_dir = a.identity_dir, .peer_host = "127.0.0.1",
					    .peer_port = b.port, .ticket = text, .job = "j",
					    .image = info.digest, .traffic_class = TRAFFIC_DEADLINE };
	memset(&o, 0, sizeof(o));
	assert_int_equal(transfer_fetch_start(&loop, &p, &cb, &o, &o.sender, &d), 0);
	expect(&o, TRANSFER_OK);
	assert_true(o.result.bytes_wire <= (1 << 20) + 20000); /* the one chunk */
	expect_whole(&a, info.digest);
	/* And a whole image, to a machine that never had it. */
	assert_int_equal(image_prune(a.store, "j", 0, NULL, NULL, &d), 0);
	memset(&o, 0, sizeof(o));
	assert_int_equal(transfer_fetch_start(&loop, &p, &cb, &o, &o.sender, &d), 0);
	expect(&o, TRANSFER_OK);
	expect_whole(&a, info.digest);
	/* It was asked for: also where a later epoch has begun, and left an image that never became durable. */
	assert_int_equal(image_prune(a.store, "j", 0, NULL, NULL, &d), 0);
	take(&a, 3, 1, 1000, 2, &info2);
	assert_int_equal(image_fence(a.store, "j", 4, &d), 0);
	memset(&o, 0, sizeof(o));
	assert_int_equal(transfer_fetch_start(&loop, &p, &cb, &o, &o.sender, &d), 0);
	expect(&o, TRANSFER_OK);
	expect_whole(&a, info.digest);
	/* Not while the owner is at the machine. */
	transfer_receiver_serve(b.receiver, false);
	assert_int_equal(image_prune(a.store, "j", 0, NULL, NULL, &d), 0);
	memset(&o, 0, sizeof(o));
	assert_int_equal(transfer_fetch_start(&loop, &p, &cb, &o, &o.sender, &d), 0);
	expect(&o, TRANSFER_E_MISSING);
}

static void test_kill_the_sender(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;
	uint64_t first;

	take(&a, 1, 1, 30000000, 1, &info);
	t = ticket_for(&info);
	setenv("RECLAIM_POINTS", "transfer.send.chunk=kill@12", 1);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 400000000, true);
	uv_run(&loop, UV_RUN_ONCE);
	expect(&o, TRANSFER_E_CRASHED);
	unsetenv("RECLAIM_POINTS");
	expect_nothing(&b);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	first = o.result.bytes_wire;
	assert_true(first < info.stored_bytes - 5000000);
	expect_whole(&b, info.digest);
}

static bool listens_again(void *arg)
{
	struct side *s = arg;

	return s->crashed > 0 && transfer_receiver_pid(s->receiver) > 0;
}

/* At each of its points: the helper dies, its successor goes on, the sender does not even notice. */
static void test_kill_the_receiver(void **state)
{
	static const char *const points[] = {
		"transfer.receive.chunk=kill@8", "image.incoming.before_have=kill@8",
		"transfer.receive.before_commit=kill", "image.incoming.before_pack=kill",
		"image.incoming.before_index=kill", "image.incoming.before_commit=kill",
		"image.incoming.after_commit=kill",
	};

	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		struct image_info info;
		struct outcome o;
		struct ticket t;

		side_stop(&b);
		b.stopped = false;
		b.crashed = 0;
		assert_int_equal(image_store_open(b.store_dir, &b.store, NULL), 0);
		setenv("RECLAIM_POINTS", points[i], 1);
		receiver_start(&b);
		unsetenv("RECLAIM_POINTS");
		take(&a, 1, i + 1, 40000000, 100 + i, &info);
		t = ticket_for(&info);
		send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
		expect(&o, TRANSFER_OK);
		assert_true(wait_for(listens_again, &b));
		expect_whole(&b, info.digest);
		/* Lost with the dead: per connection a chunk in hand and what the kernels of both
		 * ends held, about 3 MiB together. */
		assert_true(o.result.bytes_wire < info.stored_bytes + (12u << 20));
	}
}

static void test_full_disk(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;

	side_stop(&b);
	b.stopped = false;
	mkdir(b.store_dir, 0700);
	if (mount("tmpfs", b.store_dir, "tmpfs", 0, "size=4m") < 0) {
		assert_int_equal(image_store_open(b.store_dir, &b.store, NULL), 0);
		receiver_start(&b);
		skip();
	}
	assert_int_equal(image_store_open(b.store_dir, &b.store, NULL), 0);
	receiver_start(&b);
	take(&a, 1, 1, 9000000, 1, &info);
	t = ticket_for(&info);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	finish(&o);
	enum transfer_code code = o.code;
	uint64_t used = 0, room = 0;
	image_store_usage(b.store, &used, &room, NULL);
	side_stop(&b);
	b.stopped = false;
	umount2(b.store_dir, MNT_DETACH);
	assert_int_equal(image_store_open(b.store_dir, &b.store, NULL), 0);
	assert_int_equal(code, TRANSFER_E_SPACE);
	assert_true(o.result.bytes_wire < 20000);
	assert_true(used < 200000);
}

static void test_newest_commit_supersedes(void **state)
{
	struct image_info info[4];
	struct outcome o[4];
	struct ticket t;

	/* A link with a tenth of the need: the first is under way when the others come. */
	for (int i = 0; i < 4; i++) {
		take(&a, 1, (uint64_t)i + 1, 3000000, 50 + (uint64_t)i, &info[i]);
		t = ticket_for(&info[i]);
		send_begin(&o[i], &info[i], &t, b.port, i < 3 ? TRAFFIC_SCAVENGER : TRAFFIC_DEADLINE,
			   i < 3 ? 2000000 : 0, true);
		if (i == 0) {
			bool on = wait_for((bool (*)(void *))is_listening, &b);
			assert_true(on);
			for (uint64_t end = clock_boot_ns() + NS_PER_S; clock_boot_ns() < end && !b.started;)
				uv_run(&loop, UV_RUN_NOWAIT);
			assert_int_equal(b.started, 1);
		}
	}
	expect(&o[0], TRANSFER_E_SUPERSEDED); /* it ran, in the background */
	expect(&o[1], TRANSFER_E_SUPERSEDED); /* it waited */
	expect(&o[2], TRANSFER_E_SUPERSEDED);
	expect(&o[3], TRANSFER_OK);
	expect_whole(&b, info[3].digest);
}

static void test_cancel_and_drop(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;
	char path[512];

	take(&a, 1, 1, 30000000, 1, &info);
	t = ticket_for(&info);
	send_begin(&o, &info, &t, b.port, TRAFFIC_SCAVENGER, 30000000, true);
	for (uint64_t end = clock_boot_ns() + 10 * NS_PER_S; clock_boot_ns() < end && !b.started;)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(b.started, 1);
	transfer_sender_cancel(o.sender);
	expect(&o, TRANSFER_E_CANCELLED);
	transfer_receiver_drop(b.receiver, "j", info.digest);
	snprintf(path, sizeof(path), "%s/jobs/j/incoming/%s", b.store_dir, info.digest);
	for (uint64_t end = clock_boot_ns() + 10 * NS_PER_S; clock_boot_ns() < end && access(path, F_OK) == 0;)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_int_equal(access(path, F_OK), -1);
	expect_nothing(&b);
}

/* The granted rate is kept, and a new one acts inside the running connections. */
static void test_rate(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;
	uint64_t start;

	take(&a, 1, 1, 20000000, 1, &info);
	t = ticket_for(&info);
	start = clock_boot_ns();
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 80000000, true); /* 10 MB/s: 2 s */
	for (; clock_boot_ns() - start < NS_PER_S;)
		uv_run(&loop, UV_RUN_NOWAIT);
	assert_false(o.over);
	transfer_sender_set_rate(o.sender, 0, 8000000000);
	expect(&o, TRANSFER_OK);
	assert_true(clock_boot_ns() - start < 1800 * NS_PER_MS);
	expect_whole(&b, info.digest);
}

static void test_memory_is_bounded(void **state)
{
	struct image_info info;
	struct outcome o;
	struct ticket t;

	take(&a, 1, 1, 300000000, 1, &info);
	t = ticket_for(&info);
	send_begin(&o, &info, &t, b.port, TRAFFIC_DEADLINE, 0, true);
	expect(&o, TRANSFER_OK);
	print_message("sender %llu KiB, %llu ms, %llu ms CPU\n", (unsigned long long)o.result.peak_rss_bytes >> 10,
		      (unsigned long long)o.result.ms, (unsigned long long)o.result.cpu_us / 1000);
	assert_true(o.result.peak_rss_bytes < 64u << 20);
	assert_true(o.result.peak_rss_bytes > 0);
}

int main(int argc, char **argv)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		T(test_move),
		T(test_delta),
		T(test_hold_only_gets_no_key),
		T(test_tickets_are_checked),
		T(test_foreign_certificate),
		T(test_rollback_is_refused),
		T(test_ten_cuts),
		T(test_flipped_bit_in_the_stream),
		T(test_damage_at_the_sender_is_named),
		T(test_damaged_base),
		T(test_fetch_repairs),
		T(test_kill_the_sender),
		T(test_kill_the_receiver),
		T(test_full_disk),
		T(test_newest_commit_supersedes),
		T(test_cancel_and_drop),
		T(test_rate),
		T(test_memory_is_bounded),
	};

	if (argc < 2) {
		fprintf(stderr, "usage: transfer_test PATH-OF-reclaim-transfer [FILTER]\n");
		return 2;
	}
	helper = argv[1];
	signal(SIGPIPE, SIG_IGN);
	if (argc > 2)
		cmocka_set_test_filter(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
