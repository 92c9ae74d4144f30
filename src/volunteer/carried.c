/* SPDX-License-Identifier: Apache-2.0 */
/* See carried.h. */
#include "volunteer/carried.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/map.h"
#include "io/control_client.h"
#include "volunteer/carry.h"

struct carried_socket {
	struct carried *door;
	uint64_t id;
	struct master_member *member;
};

struct carried {
	struct master *master;
	struct carried_config config;
	struct control_client *link;
	struct map *sockets; /* id -> struct carried_socket */
	bool refused, overflown;
	struct loop *loop;
};

static int say(struct carried *c, const struct carry *m)
{
	CLEANUP_JSON json_t *out = carry_encode(m);
	return out ? control_client_send(c->link, out) : -ENOMEM;
}

/* ---- the master's side ---- */

/* More waits than the link takes: it starts anew, from the loop, for the master is at work. */
static void start_anew(void *user)
{
	struct carried *c = user;
	c->overflown = false;
	(void)control_client_restart(c->link, NULL); /* no memory: it falls by itself */
}

static int socket_send(void *socket, const char *text, size_t len)
{
	struct carried_socket *s = socket;
	(void)len;
	struct carry m = { .type = CARRY_TEXT, .socket = s->id, .text = (char *)text };
	int r = say(s->door, &m);
	if (r == -ENOBUFS && !s->door->overflown)
		s->door->overflown = loop_defer(s->door->loop, start_anew, s->door) == 0;
	return r;
}

static void socket_forget(struct carried_socket *s)
{
	(void)map_remove(s->door->sockets, &s->id, sizeof(s->id));
	free(s);
}

static void socket_close(void *socket)
{
	struct carried_socket *s = socket;
	struct carry m = { .type = CARRY_CLOSE, .socket = s->id };
	(void)say(s->door, &m); /* a link that is down has closed it */
	socket_forget(s);
}

static const struct master_socket_ops socket_ops = { socket_send, socket_close };

/* ---- the coordinator's side ---- */

static void on_opened(struct carried *c, const struct carry *m)
{
	struct carried_socket *s = calloc(1, sizeof(*s));
	struct carry no = { .type = CARRY_CLOSE, .socket = m->socket };
	if (s) {
		*s = (struct carried_socket){ .door = c, .id = m->socket };
		if (map_insert(c->sockets, &s->id, sizeof(s->id), s) == 0) {
			if (master_socket_open(c->master, &socket_ops, s, &s->member) == 0)
				return;
			(void)map_remove(c->sockets, &s->id, sizeof(s->id));
		}
	}
	free(s);
	(void)say(c, &no); /* no room: the volunteer tries again */
}

static void on_closed(struct carried_socket *s)
{
	struct carried *c = s->door;
	struct master_member *member = s->member;
	socket_forget(s);
	master_socket_closed(c->master, member);
}

static int send_file(struct carried *c, const struct door_file *f)
{
	CLEANUP_FREE char *text = malloc(CARRY_PART_MAX / 3 * 4 + 5);
	size_t at = 0;
	if (!text)
		return -ENOMEM;
	do {
		size_t n = MIN(f->len - at, (size_t)CARRY_PART_MAX);
		struct carry m = { .type = CARRY_FILE, .path = (char *)f->path + 1, .kind = (char *)f->type,
				   .data = text, .more = at + n < f->len };
		(void)base64_encode((const char *)f->bytes + at, n, text);
		int r = say(c, &m);
		if (r < 0)
			return r;
		at += n;
	} while (at < f->len);
	return 0;
}

static void on_up(void *user)
{
	struct carried *c = user;
	struct carry hello = { .type = CARRY_MAP, .version = CARRY_VERSION,
			       .invite = (char *)master_invite(c->master) };
	struct carry ready = { .type = CARRY_READY };
	int r = say(c, &hello);
	for (size_t i = 0; r == 0 && i < c->config.functions_count; i++)
		r = send_file(c, &c->config.functions[i]);
	if (r == 0)
		r = say(c, &ready);
	if (r == -ENOBUFS) {
		c->refused = true;
		c->config.trouble(c->config.user, "the functions are too large to be carried (5 MiB in all): use --here", true);
	} else if (r < 0) {
		c->config.trouble(c->config.user, strerror(-r), false);
	}
}

/* The link is gone, not the volunteers: their channels stand, and they come back. */
static void abandon_all(struct carried *c)
{
	const void *key;
	size_t key_len, i = 0;
	void *value;
	while (map_next(c->sockets, &i, &key, &key_len, &value)) {
		struct carried_socket *s = value;
		master_socket_abandon(s->member);
		socket_forget(s);
		i = 0;
	}
}

static void on_down(void *user, const char *why)
{
	struct carried *c = user;
	abandon_all(c);
	if (!c->refused)
		c->config.trouble(c->config.user, why, false);
}

static void on_message(void *user, json_t *message)
{
	struct carried *c = user;
	struct carry m;
	if (carry_decode(message, &m, NULL) < 0)
		return; /* of a newer coordinator */
	struct carried_socket *s = map_get(c->sockets, &m.socket, sizeof(m.socket));
	if (m.type == CARRY_READY && m.origin) {
		c->config.ready(c->config.user, m.origin);
	} else if (m.type == CARRY_REFUSED) {
		c->refused = true;
		c->config.trouble(c->config.user, m.what ? m.what : "refused", true);
	} else if (m.type == CARRY_OPENED && !s) {
		on_opened(c, &m);
	} else if (m.type == CARRY_TEXT && s && m.text) {
		master_socket_text(c->master, s->member, m.text, strlen(m.text));
	} else if (m.type == CARRY_CLOSE && s) {
		on_closed(s);
	}
	carry_done(&m);
}

static const struct control_client_ops link_ops = { on_up, on_down, on_message };

int carried_open(struct loop *l, struct master *m, const struct carried_config *config,
		 struct carried **ret)
{
	struct carried *c = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->loop = l;
	c->master = m;
	c->config = *config;
	int r = map_new(&c->sockets);
	if (r == 0)
		r = control_client_open_at(l, config->identity, config->address, CARRY_PATH, &link_ops, c,
					   &c->link);
	if (r < 0) {
		carried_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

void carried_close(struct carried *c)
{
	if (!c)
		return;
	if (c->sockets)
		abandon_all(c);
	control_client_close(c->link);
	map_free(c->sockets);
	free(c);
}
