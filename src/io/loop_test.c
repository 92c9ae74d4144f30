/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "io/io_test_util.h"
#include "io/loop.h"
#include "io/unix_client.h"
#include "io/unix_server.h"

static int fired[8], fired_count;
static struct loop_timer timers[8];
static struct loop *loop;

static void fire(void *user)
{
	fired[fired_count++] = (int)(intptr_t)user;
}

static void fire_and_rearm(void *user)
{
	fire(user);
	if (fired_count < 3)
		loop_timer_in(&timers[0], 0);
	else
		loop_stop(loop);
}

static void test_timers_in_order(void **state)
{
	assert_int_equal(loop_new(&loop), 0);
	uint64_t at = clock_boot_ns() + 5 * NS_PER_MS;
	fired_count = 0;
	/* 0 and 1 are equal: order of start. 2 is earlier, 3 is stopped, 4 has passed already. */
	for (int i = 0; i < 5; i++)
		loop_timer_init(&timers[i], loop, fire, (void *)(intptr_t)i);
	loop_timer_at(&timers[0], at);
	loop_timer_at(&timers[1], at);
	loop_timer_at(&timers[2], at - NS_PER_MS);
	loop_timer_at(&timers[3], at);
	loop_timer_at(&timers[4], 1);
	loop_timer_stop(&timers[3]);
	assert_false(loop_timer_armed(&timers[3]));
	while (fired_count < 4)
		loop_turn(loop, 1000);
	const int want[] = { 4, 2, 0, 1 };
	assert_memory_equal(fired, want, sizeof(want));
	assert_true(clock_boot_ns() >= at);

	fired_count = 0;
	loop_timer_init(&timers[0], loop, fire_and_rearm, NULL);
	loop_timer_in(&timers[0], 0);
	assert_int_equal(loop_run(loop), 0);
	assert_int_equal(fired_count, 3);
	loop_free(loop);
}

static void on_signal(void *user, int signum)
{
	*(int *)user = signum;
}

static void test_signal(void **state)
{
	int got = 0;
	assert_int_equal(loop_new(&loop), 0);
	assert_int_equal(loop_on_signal(loop, SIGUSR1, on_signal, &got), 0);
	raise(SIGUSR1);
	for (int i = 0; i < 100 && !got; i++)
		loop_turn(loop, 50);
	assert_int_equal(got, SIGUSR1);
	loop_free(loop);
}

/* ---- Unix sockets: the loop in one thread, a blocking client in another ---- */

static int opened, closed, messages;
static json_t *conn_reply;

static void on_open(struct unix_conn *c, void *user)
{
	opened++;
	assert_int_equal(unix_conn_peer(c)->pid, getpid());
	assert_int_equal(unix_conn_peer(c)->uid, getuid());
}

static void on_message(struct unix_conn *c, json_t *m, void *user)
{
	messages++;
	if (json_object_get(m, "end")) {
		loop_stop(loop);
		return;
	}
	assert_int_equal(unix_conn_send(c, m), 0);
	if (json_object_get(m, "bye"))
		unix_conn_close(c);
}

static void on_close(struct unix_conn *c, void *user)
{
	closed++;
}

static const struct unix_ops ops = { on_open, on_message, on_close };
static char socket_path[128];

static int raw_exchange(const char *bytes, size_t len, char *answer, size_t answer_size)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
		return -1;
	for (size_t at = 0; at < len;) {
		ssize_t n = send(fd, bytes + at, len - at, MSG_NOSIGNAL);
		if (n <= 0)
			break;
		at += (size_t)n;
	}
	shutdown(fd, SHUT_WR);
	size_t got = 0;
	for (;;) {
		ssize_t n = recv(fd, answer + got, answer_size - 1 - got, 0);
		if (n <= 0)
			break;
		got += (size_t)n;
	}
	answer[got] = 0;
	close(fd);
	return (int)got;
}

static void *client_thread(void *arg)
{
	static char answer[200000];
	json_t *reply = NULL;
	struct unix_client *c;
	json_t *m = json_pack("{s:i}", "n", 7);
	if (unix_client_open(socket_path, &c) < 0)
		return "open";
	if (unix_client_call(c, m, NS_PER_S, &reply) < 0 || !json_equal(m, reply))
		return "call";
	json_decref(reply);
	json_decref(m);
	m = json_pack("{s:b}", "bye", 1);
	if (unix_client_call(c, m, NS_PER_S, &reply) < 0)
		return "bye";
	json_decref(reply);
	if (unix_client_receive(c, NS_PER_S, &reply) != -EPIPE)
		return "closed by server";
	json_decref(m);
	unix_client_close(c);

	/* Rubbish is answered with an error, and costs nobody else anything. */
	if (raw_exchange("hello\n", 6, answer, sizeof(answer)) <= 0 || !strstr(answer, "error"))
		return "rubbish";
	if (raw_exchange("[1]\n", 4, answer, sizeof(answer)) <= 0 || !strstr(answer, "error"))
		return "no object";
	static char big[100000];
	memset(big, 'x', sizeof(big));
	if (raw_exchange(big, sizeof(big), answer, sizeof(answer)) <= 0 || !strstr(answer, "65536"))
		return "long line";
	if (raw_exchange("{\"n\":", 5, answer, sizeof(answer)) != 0)
		return "cut line";
	m = json_pack("{s:b}", "end", 1);
	if (unix_client_open(socket_path, &c) < 0 || unix_client_send(c, m) < 0)
		return "end";
	json_decref(m);
	unix_client_close(c);
	return NULL;
}

static void test_unix_sockets(void **state)
{
	struct unix_server *s, *second;
	pthread_t t;
	void *failed;

	assert_int_equal(loop_new(&loop), 0);
	snprintf(socket_path, sizeof(socket_path), "%s/sock", test_dir);
	assert_int_equal(unix_server_open(loop, socket_path, 0600, (gid_t)-1, &ops, NULL, &s), 0);
	assert_int_equal(unix_server_open(loop, socket_path, 0600, (gid_t)-1, &ops, NULL, &second),
			 -EADDRINUSE);
	pthread_create(&t, NULL, client_thread, NULL);
	loop_run(loop);
	pthread_join(t, &failed);
	if (failed)
		fail_msg("client: %s", (char *)failed);
	unix_server_close(s);
	assert_int_equal(access(socket_path, F_OK), -1);
	assert_int_equal(opened, 7); /* six clients, and the second server looking whether we live */;
	assert_int_equal(closed, 7);

	/* A file that a dead process left is replaced. */
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	close(fd);
	assert_int_equal(unix_server_open(loop, socket_path, 0600, (gid_t)-1, &ops, NULL, &s), 0);
	unix_server_close(s);
	loop_free(loop);
}

static void reply_kept(struct unix_conn *c, json_t *m, void *user)
{
	conn_reply = json_incref(m);
}

static void test_unix_conn(void **state)
{
	static const struct unix_ops client_ops = { NULL, reply_kept, on_close };
	struct unix_server *s;
	struct unix_conn *c;

	assert_int_equal(loop_new(&loop), 0);
	assert_int_equal(unix_conn_open(loop, socket_path, &client_ops, NULL, &c), -ENOENT);
	assert_int_equal(unix_server_open(loop, socket_path, 0600, (gid_t)-1, &ops, NULL, &s), 0);
	closed = 0;
	assert_int_equal(unix_conn_open(loop, socket_path, &client_ops, NULL, &c), 0);
	json_t *m = json_pack("{s:s}", "bye", "x");
	assert_int_equal(unix_conn_send(c, m), 0);
	while (closed < 2) /* both ends: the server says bye */
		loop_turn(loop, 1000);
	assert_true(json_equal(conn_reply, m));
	json_decref(m);
	json_decref(conn_reply);
	unix_server_close(s);
	loop_free(loop);
}

static int setup(void **state)
{
	campus_new();
	return 0;
}

static int teardown(void **state)
{
	campus_remove();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_timers_in_order),
		cmocka_unit_test(test_signal),
		cmocka_unit_test(test_unix_sockets),
		cmocka_unit_test(test_unix_conn),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
