/* SPDX-License-Identifier: Apache-2.0 */
/* Server, REST client and control client against each other on loopback. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/strbuf.h"
#include "io/control_client.h"
#include "io/http_client.h"
#include "io/http_server.h"
#include "io/io_test_util.h"
#include "io/loop.h"

static struct loop *loop;
static struct http_server *server;
static struct identity *coordinator, *guest, *agent, *impostor, *stranger;
static char address[64], ca_fingerprint[IDENTITY_DIGEST_HEX + 1];
static bool revoked;
static int sockets_open, sockets_closed;
static struct http_request *kept;

static void on_echo(struct http_request *r, void *user)
{
	const char *q = http_request_query(r, "q");
	http_reply_json(r, 200, json_pack("{s:s,s:s,s:s,s:O?,s:s}", "id", http_request_param(r, 0),
					  "name", http_request_peer(r)->name, "role",
					  identity_role_name(http_request_peer(r)->role), "body",
					  http_request_json(r), "q", q ? q : ""));
}

static void on_upload(struct http_request *r, void *user)
{
	uint64_t size;
	char sha[IDENTITY_DIGEST_HEX + 1];
	const char *path = http_request_file(r, &size, sha);
	char kept_path[128];
	snprintf(kept_path, sizeof(kept_path), "%s/kept", test_dir);
	assert_int_equal(rename(path, kept_path), 0);
	http_reply_json(r, 201, json_pack("{s:s,s:I}", "sha256", sha, "size", (json_int_t)size));
}

static void on_download(struct http_request *r, void *user)
{
	char kept_path[128];
	snprintf(kept_path, sizeof(kept_path), "%s/kept", test_dir);
	int fd = open(kept_path, O_RDONLY);
	off_t size = lseek(fd, 0, SEEK_END);
	http_reply_fd(r, NULL, fd, 0, (uint64_t)size);
}

static void drain(struct http_stream *s, void *data)
{
	int *left = data;
	for (int i = 0; i < 100 && *left > 0; i++, --*left) {
		char line[64];
		int n = snprintf(line, sizeof(line), "{\"left\": %d}\n", *left);
		http_stream_write(s, line, (size_t)n);
	}
	if (*left == 0) {
		http_stream_on_drain(s, NULL);
		http_stream_end(s);
	}
}

static int streams_gone;

static void stream_gone(struct http_stream *s, void *data)
{
	streams_gone++;
	free(data);
}

static void on_stream(struct http_request *r, void *user)
{
	int *left = malloc(sizeof(*left));
	*left = 50000;
	http_stream_on_drain(http_stream_open(r, "application/x-ndjson", stream_gone, left), drain);
}

static void on_keep(struct http_request *r, void *user)
{
	kept = r;
}

static void on_release(struct http_request *r, void *user)
{
	if (kept)
		http_reply_json(kept, 200, json_pack("{s:b}", "late", 1));
	kept = NULL;
	http_reply_json(r, 204, NULL);
}

static void on_stop(struct http_request *r, void *user)
{
	http_reply_json(r, 204, NULL);
	loop_stop(loop);
}

static const struct http_route routes[] = {
	{ "GET", "/v1/jobs/{id}/echo", 0, 0, on_echo },
	{ "POST", "/v1/jobs/{id}/echo", HTTP_BODY_JSON, 1000, on_echo },
	{ "POST", "/v1/enrol/{id}", HTTP_BODY_JSON | HTTP_ANONYMOUS, 1000, on_echo },
	{ "PUT", "/v1/files/*", HTTP_BODY_FILE, 16 << 20, on_upload },
	{ "GET", "/v1/files/*", 0, 0, on_download },
	{ "GET", "/v1/stream", 0, 0, on_stream },
	{ "GET", "/v1/keep", 0, 0, on_keep },
	{ "GET", "/v1/release", 0, 0, on_release },
	{ "POST", "/v1/stop", 0, 0, on_stop },
	{ 0 },
};

static int socket_open(struct http_socket *s, void *user)
{
	sockets_open++;
	return http_socket_peer(s)->role == IDENTITY_AGENT ? 0 : -EACCES;
}

static void socket_message(struct http_socket *s, const char *text, size_t len, void *user)
{
	if (strstr(text, "\"close\""))
		http_socket_close(s);
	else
		http_socket_send(s, text, len);
}

static void socket_close(struct http_socket *s, void *user)
{
	sockets_closed++;
}

static const struct http_socket_route sockets[] = {
	{ "/v1/agent", 0, 1 << 20, 8 << 20, socket_open, socket_message, socket_close },
	{ 0 },
};

static int admit(const struct identity_peer *peer, void *user)
{
	return revoked && strcmp(peer->name, "alice") == 0 ? -EACCES : 0;
}

/* ---- REST, from a thread with the blocking client ---- */

#define TRY(cond)                                                               \
	do {                                                                    \
		if (!(cond)) {                                                  \
			snprintf(problem, sizeof(problem), "line %d: %s (%s: %s)", __LINE__, #cond, \
				 d.where, d.what);                              \
			return problem;                                         \
		}                                                               \
	} while (0)

static char problem[1024];

static char *try_calls(struct http_client *c)
{
	struct diag d = DIAG_INIT;
	json_t *reply = NULL;
	json_t *body = json_pack("{s:s}", "k", "v");
	char *big = malloc(3000);
	memset(big, 'x', 2999);
	big[2999] = 0;
	json_t *large = json_string(big);
	free(big);

	TRY(http_client_call(c, "POST", "/v1/jobs/j-1/echo?q=a%20b&z=1", body, &reply, &d) == 0);
	TRY(strcmp(json_string_value(json_object_get(reply, "id")), "j-1") == 0);
	TRY(strcmp(json_string_value(json_object_get(reply, "name")), "alice") == 0);
	TRY(strcmp(json_string_value(json_object_get(reply, "role")), "guest") == 0);
	TRY(strcmp(json_string_value(json_object_get(reply, "q")), "a b") == 0);
	TRY(json_equal(json_object_get(reply, "body"), body));
	json_decref(reply);
	TRY(http_client_call(c, "GET", "/v1/jobs/j-1/echo", NULL, &reply, &d) == 0);
	json_decref(reply);
	TRY(http_client_call(c, "GET", "/v1/nothing", NULL, NULL, &d) == -ENOENT);
	TRY(http_client_call(c, "DELETE", "/v1/jobs/j-1/echo", NULL, NULL, &d) == -ENOENT);
	TRY(http_client_call(c, "POST", "/v1/jobs/j-1/echo", large, NULL, &d) == -EFBIG);
	TRY(http_client_call(c, "POST", "/v1/jobs/j-1/echo", body, NULL, &d) == 0);
	TRY(http_client_call(c, "POST", "/v1/jobs/j-1/echo", NULL, NULL, &d) == 0);
	revoked = true;
	TRY(http_client_call(c, "GET", "/v1/jobs/j-1/echo", NULL, NULL, &d) == -EACCES);
	TRY(strstr(d.what, "revoked"));
	revoked = false;
	json_decref(body);
	json_decref(large);
	return NULL;
}

static char *try_files(struct http_client *c)
{
	struct diag d = DIAG_INIT;
	json_t *reply = NULL;
	char path[128];
	static char data[3 << 20], back[3 << 20];
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(i * 2654435761u >> 13);
	snprintf(path, sizeof(path), "%s/source", test_dir);
	TRY(file_write_atomic(path, data, sizeof(data), 0600) == 0);
	int fd = open(path, O_RDONLY);
	TRY(http_client_upload(c, "PUT", "/v1/files/a/b", fd, sizeof(data), &reply, &d) == 0);
	TRY(json_integer_value(json_object_get(reply, "size")) == sizeof(data));
	json_decref(reply);
	close(fd);
	snprintf(path, sizeof(path), "%s/back", test_dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	uint64_t size = 0;
	TRY(http_client_download(c, "/v1/files/a/b", fd, &size, &d) == 0);
	TRY(size == sizeof(data));
	TRY(pread(fd, back, sizeof(back), 0) == (ssize_t)sizeof(back));
	TRY(memcmp(data, back, sizeof(data)) == 0);
	close(fd);
	/* Too long: refused before it is sent. */
	snprintf(path, sizeof(path), "%s/huge", test_dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	TRY(ftruncate(fd, 17 << 20) == 0);
	TRY(http_client_upload(c, "PUT", "/v1/files/h", fd, 17 << 20, NULL, &d) == -EFBIG);
	close(fd);
	return NULL;
}

static int count_line(void *user, const char *line, size_t len)
{
	int *next = user;
	int left = 0;
	if (sscanf(line, "{\"left\": %d}", &left) != 1 || left != *next)
		return -EBADMSG;
	--*next;
	return 0;
}

static int stop_at(void *user, const char *line, size_t len)
{
	return ++*(int *)user == 10 ? 77 : 0;
}

static char *try_streams(struct http_client *c)
{
	struct diag d = DIAG_INIT;
	int next = 50000, seen = 0;
	TRY(http_client_lines(c, "/v1/stream", count_line, &next, &d) == 0);
	TRY(next == 0);
	TRY(http_client_lines(c, "/v1/stream", stop_at, &seen, &d) == 77);
	return NULL;
}

static char *try_identities(void)
{
	struct diag d = DIAG_INIT;
	struct http_client *c;
	json_t *body = json_object();
	char wrong[IDENTITY_DIGEST_HEX + 1];

	/* Enrolment knows the authority by its fingerprint alone. */
	TRY(http_client_open_fingerprint(ca_fingerprint, address, &c, &d) == 0);
	TRY(http_client_call(c, "POST", "/v1/enrol/t", body, NULL, &d) == 0);
	TRY(http_client_call(c, "GET", "/v1/jobs/j-1/echo", NULL, NULL, &d) == -EACCES);
	TRY(strstr(d.what, "enrol"));
	http_client_close(c);
	memcpy(wrong, ca_fingerprint, sizeof(wrong));
	wrong[5] = wrong[5] == 'a' ? 'b' : 'a';
	TRY(http_client_open_fingerprint(wrong, address, &c, &d) == 0);
	TRY(http_client_call(c, "POST", "/v1/enrol/t", body, NULL, &d) == -EACCES);
	http_client_close(c);
	/* A certificate of another campus, or an expired one, ends in the handshake. */
	TRY(http_client_open(stranger, address, &c, &d) == 0);
	TRY(http_client_call(c, "GET", "/v1/jobs/j-1/echo", NULL, NULL, &d) == -EACCES);
	http_client_close(c);
	json_decref(body);
	return NULL;
}

static char *try_late(struct http_client *c)
{
	struct diag d = DIAG_INIT;
	/* The kept request's client leaves; answering it later must be harmless. */
	http_client_set_timeout(c, 200);
	TRY(http_client_call(c, "GET", "/v1/keep", NULL, NULL, &d) == -ETIMEDOUT);
	http_client_set_timeout(c, 10000);
	TRY(http_client_call(c, "GET", "/v1/release", NULL, NULL, &d) == 0);
	return NULL;
}

static void *client_thread(void *arg)
{
	struct diag d = DIAG_INIT;
	struct http_client *c;
	if (http_client_open(guest, address, &c, &d) < 0)
		return "open";
	char *bad = try_calls(c);
	bad = bad ? bad : try_files(c);
	bad = bad ? bad : try_streams(c);
	bad = bad ? bad : try_late(c);
	bad = bad ? bad : try_identities();
	json_t *body = json_object();
	http_client_set_timeout(c, 300); /* the loop stops before the answer is out */
	if (http_client_call(c, "POST", "/v1/stop", NULL, NULL, &d) < 0)
		loop_stop(loop);
	json_decref(body);
	http_client_close(c);
	return bad;
}

static void open_server(const struct identity *id, uint16_t port)
{
	struct diag d = DIAG_INIT;
	struct http_server_config config = { .address = "127.0.0.1", .port = port, .identity = id,
					     .spool_dir = test_dir, .routes = routes,
					     .sockets = sockets, .admit = admit };
	if (http_server_open(loop, &config, &server, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	snprintf(address, sizeof(address), "127.0.0.1:%u", http_server_port(server));
}

static void test_rest(void **state)
{
	pthread_t t;
	void *failed;
	assert_int_equal(loop_new(&loop), 0);
	open_server(coordinator, 0);
	pthread_create(&t, NULL, client_thread, NULL);
	loop_run(loop);
	pthread_join(t, &failed);
	if (failed)
		fail_msg("%s", (char *)failed);
	http_server_close(server);
	assert_int_equal(streams_gone, 2);
	loop_free(loop);
}

/* ---- the agent's connection ---- */

static int ups, downs, received;

static void on_up(void *user)
{
	ups++;
}

static void on_down(void *user, const char *why)
{
	downs++;
}

static void on_message(void *user, json_t *m)
{
	received++;
	assert_true(json_is_object(m));
}

#define turn_until(what, value) turn_until_at((what), (value), __LINE__)
static void turn_until_at(const int *what, int value, int line)
{
	uint64_t end = clock_boot_ns() + 20 * NS_PER_S;
	while (*what < value && clock_boot_ns() < end)
		loop_turn(loop, 100);
	if (*what < value)
		fail_msg("line %d: %d, wants %d", line, *what, value);
}

static void test_control(void **state)
{
	static const struct control_client_ops ops = { on_up, on_down, on_message };
	struct control_client *c;
	assert_int_equal(loop_new(&loop), 0);
	open_server(coordinator, 0);
	uint16_t port = http_server_port(server);
	assert_int_equal(control_client_open(loop, agent, address, &ops, NULL, &c), 0);
	turn_until(&ups, 1);

	/* A message near the limit comes back whole, in order with small ones. */
	char *text = malloc(900000);
	memset(text, 'y', 899999);
	text[899999] = 0;
	json_t *m = json_pack("{s:s}", "text", text);
	free(text);
	json_t *small = json_pack("{s:i}", "n", 1);
	assert_int_equal(control_client_send(c, small), 0);
	assert_int_equal(control_client_send(c, m), 0);
	assert_int_equal(control_client_send(c, small), 0);
	turn_until(&received, 3);
	json_decref(m);

	/* The server closes; the server goes and comes back: connected again each time. */
	m = json_pack("{s:b}", "close", 1);
	control_client_send(c, m);
	turn_until(&ups, 2);
	assert_true(downs >= 1);
	http_server_close(server);
	turn_until(&downs, 3);
	assert_false(control_client_is_up(c));
	assert_int_equal(control_client_send(c, small), -ENOTCONN);
	open_server(coordinator, port);
	turn_until(&ups, 3);
	http_server_drop_peer(server, identity_self(agent)->serial);
	turn_until(&ups, 4);
	assert_int_equal(control_client_restart(c, NULL), 0);
	turn_until(&ups, 5);
	control_client_close(c);
	turn_until(&sockets_closed, sockets_open);

	/* An agent that answers in the coordinator's place is not believed. */
	http_server_close(server);
	open_server(impostor, 0);
	downs = 0;
	int ups_before = ups;
	assert_int_equal(control_client_open(loop, agent, address, &ops, NULL, &c), 0);
	turn_until(&downs, 2);
	assert_int_equal(ups, ups_before);
	control_client_close(c);
	/* One of another campus is refused by the server. */
	http_server_close(server);
	open_server(coordinator, 0);
	downs = 0;
	assert_int_equal(control_client_open(loop, stranger, address, &ops, NULL, &c), 0);
	turn_until(&downs, 2);
	assert_int_equal(ups, ups_before);
	control_client_close(c);
	http_server_close(server);
	json_decref(m);
	json_decref(small);
	loop_free(loop);
}

static int setup(void **state)
{
	struct diag d = DIAG_INIT;
	struct identity_ca *ca;
	char other[128];
	campus_new();
	coordinator = enrolled("coord", IDENTITY_COORDINATOR);
	guest = enrolled("alice", IDENTITY_GUEST);
	agent = enrolled("lab1", IDENTITY_AGENT);
	impostor = enrolled("lab2", IDENTITY_AGENT);
	snprintf(other, sizeof(other), "%s/other", test_dir);
	assert_int_equal(identity_ca_create(other, "other", &d), 0);
	stranger = enrolled_by(other, "mallory", IDENTITY_GUEST, 86400);
	assert_int_equal(identity_ca_open(test_dir, &ca, &d), 0);
	snprintf(ca_fingerprint, sizeof(ca_fingerprint), "%s", identity_ca_fingerprint(ca));
	identity_ca_free(ca);
	return 0;
}

static int teardown(void **state)
{
	identity_free(coordinator);
	identity_free(guest);
	identity_free(agent);
	identity_free(impostor);
	identity_free(stranger);
	campus_remove();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rest),
		cmocka_unit_test(test_control),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
