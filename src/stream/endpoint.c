/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint's register in the store: every change goes through endpoint_save()
 * before anybody hears of it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stream/registry_internal.h"

enum { KEY_MAX = 200, ENDPOINTS_MAX = 100000 };

void endpoint_free(struct endpoint *e)
{
	free(e->cursors);
	VEC_DONE(&e->candidates);
	VEC_DONE(&e->watchers);
	free(e);
}

static void key_of(const struct endpoint *e, char key[KEY_MAX])
{
	snprintf(key, KEY_MAX, "stream/%s/%s", e->job->name, e->name);
}

int endpoint_save(struct registry *r, struct endpoint *e, const struct register_record *next)
{
	if (!r->options.store.put) {
		e->record = *next;
		return 0;
	}
	size_t cap = 512 + e->cursors_len;
	uint8_t *buf = malloc(cap);
	char key[KEY_MAX];

	if (!buf)
		return -ENOMEM;
	struct bytes_out o = { .data = buf, .cap = cap };
	bytes_out_u8(&o, 1); /* version of this layout */
	bytes_out_u8(&o, (uint8_t)next->state);
	bytes_out_u64(&o, next->epoch);
	bytes_out_u64(&o, next->owner);
	bytes_out_u64(&o, next->target);
	bytes_out_u64(&o, next->hid);
	bytes_out_blob(&o, e->locator, strlen(e->locator));
	bytes_out_blob(&o, e->group, strlen(e->group));
	bytes_out_blob(&o, e->cursors, e->cursors_len);
	key_of(e, key);
	int rc = o.failed ? -E2BIG :
			    r->options.store.put(r->options.store.arg, key, buf, o.len, e->revision,
						 &e->revision);
	free(buf);
	if (rc == 0)
		e->record = *next;
	return rc;
}

static void text_from(struct bytes_in *in, char *ret, size_t max)
{
	size_t n;
	const uint8_t *p = bytes_in_blob(in, max, &n);

	if (p)
		memcpy(ret, p, n);
	ret[p ? n : 0] = '\0';
}

static int endpoint_load(struct registry *r, struct endpoint *e, uint64_t now_ns)
{
	void *value = NULL;
	size_t len = 0, n = 0;
	char key[KEY_MAX];

	if (!r->options.store.get)
		return 0;
	key_of(e, key);
	int rc = r->options.store.get(r->options.store.arg, key, &value, &len, &e->revision);
	if (rc == -ENOENT)
		return 0;
	if (rc < 0)
		return rc;
	struct bytes_in in = { .data = value, .len = len };
	uint8_t version = bytes_in_u8(&in);

	e->record.state = bytes_in_u8(&in);
	e->record.epoch = bytes_in_u64(&in);
	e->record.owner = bytes_in_u64(&in);
	e->record.target = bytes_in_u64(&in);
	e->record.hid = bytes_in_u64(&in);
	text_from(&in, e->locator, STREAM_LOCATOR_MAX);
	text_from(&in, e->group, STREAM_NAME_MAX);
	const uint8_t *cursors = bytes_in_blob(&in, REGISTRY_BODY_MAX, &n);
	if (in.failed || version != 1 || e->record.state >= REGISTER_STATE_COUNT) {
		free(value);
		return -EBADMSG;
	}
	if (n && (e->cursors = malloc(n))) {
		memcpy(e->cursors, cursors, n);
		e->cursors_len = n;
	}
	free(value);
	e->record.lease_end_ns = now_ns + register_lease_ns(&r->options.terms);
	return 0;
}

int endpoint_get(struct registry *r, struct job *job, const char *name, uint64_t now_ns,
		 struct endpoint **ret)
{
	char key[KEY_MAX];

	snprintf(key, sizeof(key), "%s/%s", job->name, name);
	*ret = map_get_str(r->endpoints, key);
	if (*ret)
		return 0;
	if (r->all.count >= ENDPOINTS_MAX)
		return -ENOSPC;
	struct endpoint *e = calloc(1, sizeof(*e));
	if (!e)
		return -ENOMEM;
	e->job = job;
	snprintf(e->name, sizeof(e->name), "%s", name);
	int rc = endpoint_load(r, e, now_ns);
	if (rc == 0 && (VEC_PUSH(&r->all, e) < 0 || map_set_str(r->endpoints, key, e, NULL) < 0))
		rc = -ENOMEM;
	if (rc < 0) {
		if (r->all.count && r->all.data[r->all.count - 1] == e)
			r->all.count--;
		endpoint_free(e);
		return rc;
	}
	*ret = e;
	return 0;
}
