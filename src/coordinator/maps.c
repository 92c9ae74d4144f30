/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See maps.h. A map stands as long as its owner's connection, and a minute
 * longer: then its volunteers are only told to come again (by closing), not that
 * they are not wanted. Messages of volunteers are passed on unread, except the first,
 * which names the map.
 */
#include "coordinator/maps.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/strbuf.h"
#include "coordinator/server.h"
#include "volunteer/carry.h"
#include "volunteer/page_files.h"

#define SWEEP_NS (2 * NS_PER_S)
#define JOIN_NS (10 * NS_PER_S)  /* a stranger's time to say where it belongs */
#define GRACE_NS (60 * NS_PER_S) /* a map's, after its owner's connection fell */
#define START_NS (10 * NS_PER_S) /* after a start maps may come back later than their volunteers */

struct carried_file {
	char name[256], kind[65];
	struct strbuf bytes;
	bool whole;
};

struct carried_map {
	char invite[SIGNAL_TOKEN_MAX + 1], user[IDENTITY_NAME_MAX + 1];
	struct http_socket *owner; /* NULL: gone, may come back */
	bool ready;
	struct carried_file files[CARRY_FILES_MAX];
	size_t files_count;
	uint64_t gone_ns;
	struct carried_map *next;
};

struct volunteer_socket {
	struct http_socket *socket;
	struct carried_map *map; /* NULL: has not said yet */
	uint64_t id, opened_ns;
	struct volunteer_socket *prev, *next;
};

struct maps {
	struct carried_map *all;
	struct volunteer_socket *volunteers;
	struct map *by_id; /* of volunteers that have joined */
	size_t count, volunteers_count, strangers;
	uint64_t next_id, opened_ns;
	struct loop_timer sweep;
};

static struct maps *maps_of(void *user)
{
	return ((struct coordinator *)user)->maps;
}

static int say(struct carried_map *map, const struct carry *message)
{
	CLEANUP_JSON json_t *out = carry_encode(message);
	return out && map->owner ? http_socket_send_json(map->owner, out) : -EPIPE;
}

static struct carried_map *find(const struct maps *m, const char *invite)
{
	struct carried_map *map = m->all;
	size_t len = strlen(invite);
	/* Of equal length and compared whole: how long it takes says nothing about the others. */
	while (map && (strlen(map->invite) != len || CRYPTO_memcmp(map->invite, invite, len) != 0))
		map = map->next;
	return map;
}

/* ---- a map and its owner ---- */

static void files_drop(struct carried_map *map)
{
	for (size_t i = 0; i < map->files_count; i++)
		strbuf_done(&map->files[i].bytes);
	map->files_count = 0;
	map->ready = false;
}

static void map_drop(struct maps *m, struct carried_map *map)
{
	struct carried_map **at = &m->all;
	while (*at != map)
		at = &(*at)->next;
	*at = map->next;
	m->count--;
	files_drop(map);
	free(map);
}

static void volunteers_close(struct maps *m, const struct carried_map *map)
{
	for (struct volunteer_socket *v = m->volunteers; v; v = v->next) {
		if (v->map == map)
			http_socket_close(v->socket);
	}
}

static void refuse(struct http_socket *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void refuse(struct http_socket *s, const char *fmt, ...)
{
	char what[200];
	va_list args;
	va_start(args, fmt);
	(void)vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	struct carry no = { .type = CARRY_REFUSED, .what = what };
	CLEANUP_JSON json_t *out = carry_encode(&no);
	if (out)
		(void)http_socket_send_json(s, out); /* it is being closed anyway */
	http_socket_close(s);
}

static int owner_open(struct http_socket *s, void *user)
{
	const struct coordinator *c = user;
	enum identity_role role = http_socket_peer(s)->role;
	if (role != IDENTITY_GUEST && role != IDENTITY_ADMIN && role != IDENTITY_OWNER)
		refuse(s, "this is for people; the certificate says %s", identity_role_name(role));
	else if (!c->config->public_side.name)
		refuse(s, "this coordinator has no certificate that browsers accept (`public` in its "
			  "configuration): use --here");
	return 0;
}

static size_t maps_of_user(const struct maps *m, const char *name)
{
	size_t n = 0;
	for (const struct carried_map *map = m->all; map; map = map->next)
		n += strcmp(map->user, name) == 0;
	return n;
}

static void on_map(struct maps *m, struct http_socket *s, const struct carry *in)
{
	const char *user = http_socket_peer(s)->name;
	struct carried_map *map = in->invite ? find(m, in->invite) : NULL;
	if (in->version != CARRY_VERSION || !in->invite || strlen(in->invite) < CARRY_INVITE_MIN) {
		refuse(s, "another version, or no invitation of %u characters", CARRY_INVITE_MIN);
		return;
	}
	if (map && strcmp(map->user, user) != 0) {
		refuse(s, "this invitation is somebody else's");
		return;
	}
	if (!map) {
		if (m->count >= MAPS_MAX || maps_of_user(m, user) >= MAPS_PER_USER_MAX) {
			refuse(s, "too many maps at once");
			return;
		}
		map = calloc(1, sizeof(*map));
		if (!map) {
			refuse(s, "no memory left");
			return;
		}
		(void)snprintf(map->invite, sizeof(map->invite), "%s", in->invite);
		(void)snprintf(map->user, sizeof(map->user), "%s", user);
		map->next = m->all;
		m->all = map;
		m->count++;
	}
	if (map->owner) { /* the newest connection is the map: the old one may be a ghost */
		http_socket_set_data(map->owner, NULL);
		http_socket_close(map->owner);
		volunteers_close(m, map);
	}
	files_drop(map);
	map->owner = s;
	http_socket_set_data(s, map);
}

static void on_file(struct carried_map *map, struct http_socket *s, const struct carry *in)
{
	struct carried_file *f = map->files_count ? &map->files[map->files_count - 1] : NULL;
	if (!in->path || !in->kind || strchr(in->path, '/') || map->ready) {
		refuse(s, "a file without a name or kind");
		return;
	}
	if (!f || f->whole) {
		if (map->files_count == CARRY_FILES_MAX) {
			refuse(s, "too many files");
			return;
		}
		f = &map->files[map->files_count++];
		*f = (struct carried_file){ .bytes = STRBUF_INIT };
		(void)snprintf(f->name, sizeof(f->name), "%s", in->path);
		(void)snprintf(f->kind, sizeof(f->kind), "%s", in->kind);
	}
	const char *data = in->data ? in->data : "";
	CLEANUP_FREE char *bytes = malloc(CARRY_PART_MAX + 4);
	long n = bytes ? base64_decode(data, strlen(data), bytes, CARRY_PART_MAX + 4) : -ENOMEM;
	if (n < 0 || f->bytes.len + (size_t)n > CARRY_FILE_MAX ||
	    strbuf_append(&f->bytes, bytes, (size_t)n) < 0) {
		refuse(s, "%s cannot be kept: larger than %u MiB, or not base64", f->name,
		       CARRY_FILE_MAX >> 20);
		return;
	}
	f->whole = !in->more;
}

static void on_ready(struct coordinator *c, struct carried_map *map)
{
	char origin[400];
	(void)snprintf(origin, sizeof(origin), "https://%s:%u/volunteer/", c->config->public_side.name,
		       http_server_port(c->http));
	struct carry out = { .type = CARRY_READY, .origin = origin };
	map->ready = true;
	(void)say(map, &out); /* a full queue closes it */
}

static struct volunteer_socket *volunteer_of(const struct maps *m, const struct carried_map *map,
					     uint64_t id)
{
	struct volunteer_socket *v = map_get(m->by_id, &id, sizeof(id));
	return v && v->map == map ? v : NULL;
}

static void owner_message(struct http_socket *s, const char *text, size_t len, void *user)
{
	struct coordinator *c = user;
	struct carried_map *map = http_socket_data(s);
	struct diag d = DIAG_INIT;
	struct carry in;
	json_error_t error;
	CLEANUP_JSON json_t *json = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(json) || carry_decode(json, &in, &d) < 0) {
		refuse(s, "not understood: %s", json ? d.what : error.text);
		return;
	}
	struct volunteer_socket *v = map ? volunteer_of(c->maps, map, in.socket) : NULL;
	if (in.type == CARRY_MAP && !map)
		on_map(c->maps, s, &in);
	else if (!map)
		refuse(s, "say first which map it is");
	else if (in.type == CARRY_FILE)
		on_file(map, s, &in);
	else if (in.type == CARRY_READY)
		on_ready(c, map);
	else if (in.type == CARRY_TEXT && v && in.text)
		(void)http_socket_send(v->socket, in.text, strlen(in.text)); /* a slow one is closed */
	else if (in.type == CARRY_CLOSE && v)
		http_socket_close(v->socket);
	carry_done(&in);
}

static void owner_close(struct http_socket *s, void *user)
{
	struct carried_map *map = http_socket_data(s);
	if (!map)
		return;
	map->owner = NULL;
	map->gone_ns = clock_boot_ns();
	volunteers_close(maps_of(user), map);
}

/* ---- volunteers ---- */

static int volunteer_open(struct http_socket *s, void *user)
{
	struct maps *m = maps_of(user);
	if (m->volunteers_count >= MAPS_VOLUNTEERS_MAX || m->strangers >= MAPS_STRANGERS_MAX)
		return -EUSERS;
	struct volunteer_socket *v = calloc(1, sizeof(*v));
	if (!v)
		return -ENOMEM;
	v->socket = s;
	v->opened_ns = clock_boot_ns();
	v->next = m->volunteers;
	if (v->next)
		v->next->prev = v;
	m->volunteers = v;
	m->volunteers_count++;
	m->strangers++;
	http_socket_set_data(s, v);
	return 0;
}

static void turn_away(struct volunteer_socket *v, const char *what)
{
	struct signal no = { .type = SIGNAL_ERROR, .what = (char *)what };
	CLEANUP_FREE char *text = signal_encode(&no);
	if (text)
		(void)http_socket_send(v->socket, text, strlen(text)); /* it is being closed anyway */
	http_socket_close(v->socket);
}

/* The first message says which map it is for. */
static bool introduce(struct maps *m, struct volunteer_socket *v, const char *text, size_t len)
{
	struct signal first;
	struct diag d = DIAG_INIT;
	if (signal_decode(text, len, &first, &d) < 0) {
		turn_away(v, d.what);
		return false;
	}
	struct carried_map *map = first.type == SIGNAL_JOIN && first.invite ? find(m, first.invite) : NULL;
	signal_done(&first);
	if (!map && clock_boot_ns() >= m->opened_ns + START_NS) {
		turn_away(v, "the invitation is not valid any more");
		return false;
	}
	if (!map || !map->owner || !map->ready) { /* back in a moment, and so will the volunteer be */
		http_socket_close(v->socket);
		return false;
	}
	v->id = ++m->next_id;
	if (map_insert(m->by_id, &v->id, sizeof(v->id), v) < 0) {
		http_socket_close(v->socket);
		return false;
	}
	v->map = map;
	m->strangers--;
	struct carry out = { .type = CARRY_OPENED, .socket = v->id,
			     .what = (char *)http_socket_address(v->socket) };
	return say(map, &out) == 0;
}

static void volunteer_message(struct http_socket *s, const char *text, size_t len, void *user)
{
	struct volunteer_socket *v = http_socket_data(s);
	CLEANUP_FREE char *copy = strndup(text, len);
	if (!copy || (!v->map && !introduce(maps_of(user), v, text, len)))
		return;
	struct carry out = { .type = CARRY_TEXT, .socket = v->id, .text = copy };
	if (say(v->map, &out) < 0)
		http_socket_close(s);
}

static void leave_map(struct maps *m, struct volunteer_socket *v)
{
	(void)map_remove(m->by_id, &v->id, sizeof(v->id));
	v->map = NULL;
	m->strangers++;
}

static void volunteer_close(struct http_socket *s, void *user)
{
	struct maps *m = maps_of(user);
	struct volunteer_socket *v = http_socket_data(s);
	if (!v)
		return;
	if (v->map) {
		struct carry out = { .type = CARRY_CLOSE, .socket = v->id };
		(void)say(v->map, &out); /* without an owner nobody needs to know */
		leave_map(m, v);
	}
	m->strangers--;
	if (v->prev)
		v->prev->next = v->next;
	else
		m->volunteers = v->next;
	if (v->next)
		v->next->prev = v->prev;
	m->volunteers_count--;
	free(v);
}

static void sweep(void *user)
{
	struct maps *m = user;
	uint64_t now = clock_boot_ns();
	(void)loop_timer_in(&m->sweep, SWEEP_NS); /* armed before */
	for (struct volunteer_socket *v = m->volunteers; v; v = v->next) {
		if (!v->map && now >= v->opened_ns + JOIN_NS)
			http_socket_close(v->socket);
	}
	for (struct carried_map *map = m->all, *next; map; map = next) {
		next = map->next;
		if (map->owner || now < map->gone_ns + GRACE_NS)
			continue;
		for (struct volunteer_socket *v = m->volunteers; v; v = v->next) {
			if (v->map == map)
				leave_map(m, v); /* being closed */
		}
		map_drop(m, map);
	}
}

const struct http_socket_route maps_owner_socket = {
	CARRY_PATH, 0, MAPS_MESSAGE_MAX, MAPS_OWNER_QUEUE_MAX, owner_open, owner_message, owner_close };
const struct http_socket_route maps_volunteer_socket = {
	DOOR_SOCKET_PATH, HTTP_ANONYMOUS | HTTP_PUBLIC, SIGNAL_MESSAGE_MAX, MAPS_VOLUNTEER_QUEUE_MAX,
	volunteer_open, volunteer_message, volunteer_close };

/* ---- files ---- */

static void get_page(struct http_request *r, void *user)
{
	const char *name = http_request_param(r, 0);
	(void)user;
	if (!name[0])
		name = "index.html";
	for (size_t i = 0; i < page_files_count; i++) {
		if (strcmp(page_files[i].path + 1, name) == 0) {
			http_reply_bytes(r, 200, page_files[i].type, page_files[i].bytes, page_files[i].len);
			return;
		}
	}
	http_reply_error(r, 404, "no such file");
}

static void get_function(struct http_request *r, void *user)
{
	const struct carried_map *map = find(maps_of(user), http_request_param(r, 0));
	const char *name = http_request_param(r, 1);
	for (size_t i = 0; map && i < map->files_count; i++) {
		const struct carried_file *f = &map->files[i];
		if (f->whole && strcmp(f->name, name) == 0) {
			http_reply_bytes(r, 200, f->kind, f->bytes.data ? f->bytes.data : "", f->bytes.len);
			return;
		}
	}
	http_reply_error(r, 404, "no such function, or the map is over");
}

const struct http_route maps_routes[] = {
	{ "GET", "/volunteer/*", HTTP_ANONYMOUS | HTTP_PUBLIC, 0, get_page, NULL },
	{ "GET", DOOR_FUNCTION_PATH "{invite}/{file}", HTTP_ANONYMOUS | HTTP_PUBLIC, 0, get_function, NULL },
	{ 0 },
};

/* ---- whole ---- */

int maps_open(struct coordinator *c, struct maps **ret)
{
	struct maps *m = calloc(1, sizeof(*m));
	if (!m)
		return -ENOMEM;
	m->opened_ns = clock_boot_ns();
	loop_timer_init(&m->sweep, c->loop, sweep, m);
	int r = map_new(&m->by_id);
	if (r == 0)
		r = loop_timer_in(&m->sweep, SWEEP_NS);
	if (r < 0) {
		maps_close(m);
		return r;
	}
	*ret = m;
	return 0;
}

void maps_close(struct maps *m)
{
	if (!m)
		return;
	loop_timer_stop(&m->sweep);
	while (m->volunteers) {
		struct volunteer_socket *v = m->volunteers;
		m->volunteers = v->next;
		free(v);
	}
	while (m->all)
		map_drop(m, m->all);
	map_free(m->by_id);
	free(m);
}
