/* SPDX-License-Identifier: Apache-2.0 */
#include "image/chunk_writer.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/map.h"

#define THREADS_MAX 3
#define HELD_MAX 2
#define SLOTS_MAX (2 * THREADS_MAX + HELD_MAX)

enum slot_state { SLOT_FREE, SLOT_HELD, SLOT_QUEUED, SLOT_BUSY, SLOT_DONE };

struct slot {
	enum slot_state state;
	uint64_t order;          /* of being put */
	uint8_t *buf;
	struct chunk chunk;
	struct chunk_list *list; /* only the caller's thread touches what it points to */
	uint32_t index;
};

struct chunk_writer {
	struct chunk_writer_params p;
	pthread_t threads[THREADS_MAX];
	unsigned thread_count, slot_count;
	struct slot slots[SLOTS_MAX];

	pthread_mutex_t lock; /* of all below, and of the slots' states */
	pthread_cond_t queued, done;
	bool stop;
	int error;
	uint64_t order, placed; /* chunks put; of them those past the giving of places */
	uint64_t pack_len, new_bytes;
	struct map *own;      /* names written by this image */
	struct VEC(struct pack_row) rows;
};

/* 1 when the chunk is the job's already, else 0, or an error. Sealed in place; the tag and check of
 * a chunk that is already here come from sealing too: they are a function of the content. */
static int slot_seal(struct chunk_writer *w, struct sealer *sealer, struct slot *s)
{
	struct chunk *c = &s->chunk;
	struct pack_place at;
	int r;

	seal_name(w->p.keys, s->buf, c->len, c->name);
	r = sealer_seal(sealer, c->name, s->buf, c->len, s->buf, c->tag);
	if (r < 0)
		return r;
	seal_check(s->buf, c->len, c->check);
	return packs_find(w->p.packs, c->name, &at) == 0 && at.len == c->len;
}

/* A place in the pack: 0, or 1 when this image has the chunk already. With the lock held. */
static int place_new(struct chunk_writer *w, const struct chunk *c, struct pack_place *ret)
{
	struct pack_row row = { .offset = w->pack_len, .len = c->len };
	int r;

	memcpy(row.name, c->name, SEAL_NAME_LEN);
	*ret = (struct pack_place){ w->p.pack_fd, w->p.direct_fd, row.offset, c->len };
	r = map_insert(w->own, c->name, SEAL_NAME_LEN, w);
	if (r == -EEXIST)
		return 1;
	if (r == 0)
		r = VEC_PUSH(&w->rows, row);
	if (r == 0) {
		w->pack_len += pack_align(c->len);
		w->new_bytes += c->len;
	}
	return r;
}

/* Places are given in the order in which chunks were put, whoever is done first: the same folder
 * makes the same pack, read in order later. */
static int slot_write(struct chunk_writer *w, struct sealer *sealer, struct slot *s)
{
	struct pack_place at;
	int r = slot_seal(w, sealer, s);

	pthread_mutex_lock(&w->lock);
	while (w->placed != s->order)
		pthread_cond_wait(&w->done, &w->lock);
	if (r == 0)
		r = place_new(w, &s->chunk, &at);
	w->placed++;
	pthread_cond_broadcast(&w->done);
	pthread_mutex_unlock(&w->lock);
	if (r == 0)
		r = pack_write(&at, s->buf);
	return MIN(r, 0);
}

static struct slot *slot_next(struct chunk_writer *w, enum slot_state state)
{
	struct slot *found = NULL;

	for (unsigned i = 0; i < w->slot_count; i++) {
		struct slot *s = &w->slots[i];

		if (s->state == state && (!found || s->order < found->order))
			found = s;
	}
	return found;
}

static void *thread_main(void *arg)
{
	struct chunk_writer *w = arg;
	struct sealer *sealer = NULL;
	int r = sealer_new(w->p.keys, &sealer);

	pthread_mutex_lock(&w->lock);
	for (;;) {
		struct slot *s = slot_next(w, SLOT_QUEUED);

		if (!s && w->stop)
			break;
		if (!s) {
			pthread_cond_wait(&w->queued, &w->lock);
			continue;
		}
		s->state = SLOT_BUSY;
		if (sealer) {
			pthread_mutex_unlock(&w->lock);
			r = slot_write(w, sealer, s);
			pthread_mutex_lock(&w->lock);
		}
		if (r < 0 && w->error == 0)
			w->error = r;
		s->state = SLOT_DONE;
		pthread_cond_broadcast(&w->done);
	}
	pthread_mutex_unlock(&w->lock);
	sealer_free(sealer);
	return NULL;
}

int chunk_writer_new(const struct chunk_writer_params *p, struct chunk_writer **ret)
{
	CLEANUP(chunk_writer_free_cleanup) struct chunk_writer *w = calloc(1, sizeof(*w));
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned threads = (unsigned)MIN(MAX(cpus, 2L), (long)THREADS_MAX);

	if (!w)
		return -ENOMEM;
	w->p = *p;
	pthread_mutex_init(&w->lock, NULL);
	pthread_cond_init(&w->queued, NULL);
	pthread_cond_init(&w->done, NULL);
	if (map_new(&w->own) < 0)
		return -ENOMEM;
	for (; w->slot_count < 2 * threads + HELD_MAX; w->slot_count++) {
		uint8_t **buf = &w->slots[w->slot_count].buf;

		*buf = aligned_alloc(PACK_ALIGN, p->chunk_size);
		if (!*buf)
			return -ENOMEM;
	}
	for (; w->thread_count < threads; w->thread_count++)
		if (pthread_create(&w->threads[w->thread_count], NULL, thread_main, w) != 0)
			break;
	if (w->thread_count == 0)
		return -ENOMEM; /* of threads */
	*ret = TAKE(w);
	return 0;
}

void chunk_writer_free(struct chunk_writer *w)
{
	if (!w)
		return;
	pthread_mutex_lock(&w->lock);
	w->stop = true;
	pthread_cond_broadcast(&w->queued);
	pthread_mutex_unlock(&w->lock);
	for (unsigned i = 0; i < w->thread_count; i++)
		pthread_join(w->threads[i], NULL);
	for (unsigned i = 0; i < w->slot_count; i++)
		free(w->slots[i].buf);
	map_free(w->own);
	VEC_DONE(&w->rows);
	pthread_cond_destroy(&w->queued);
	pthread_cond_destroy(&w->done);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

/* Notes what became of finished chunks. */
static void collect(struct chunk_writer *w)
{
	for (unsigned i = 0; i < w->slot_count; i++) {
		struct slot *s = &w->slots[i];

		if (s->state != SLOT_DONE)
			continue;
		CHECK(s->index < s->list->items.count);
		s->list->items.data[s->index] = s->chunk;
		s->state = SLOT_FREE;
	}
}

int chunk_writer_buffer(struct chunk_writer *w, uint8_t **ret)
{
	struct slot *s = NULL;
	int r;

	pthread_mutex_lock(&w->lock);
	for (;;) {
		collect(w);
		s = slot_next(w, SLOT_FREE);
		if (s || w->error)
			break;
		pthread_cond_wait(&w->done, &w->lock);
	}
	r = w->error;
	if (r == 0)
		s->state = SLOT_HELD;
	pthread_mutex_unlock(&w->lock);
	if (r == 0)
		*ret = s->buf;
	return r;
}

void chunk_writer_put(struct chunk_writer *w, uint8_t *buf, uint32_t len, struct chunk_list *list,
		      uint32_t index)
{
	struct slot *s = w->slots;

	while (s->buf != buf)
		s++;
	CHECK(s < w->slots + w->slot_count && s->state == SLOT_HELD && len <= w->p.chunk_size);
	s->chunk = (struct chunk){ .len = len };
	s->list = list;
	s->index = index;
	pthread_mutex_lock(&w->lock);
	s->order = w->order++;
	s->state = SLOT_QUEUED;
	pthread_cond_signal(&w->queued);
	pthread_mutex_unlock(&w->lock);
}

int chunk_writer_finish(struct chunk_writer *w)
{
	int r;

	pthread_mutex_lock(&w->lock);
	while (slot_next(w, SLOT_QUEUED) || slot_next(w, SLOT_BUSY))
		pthread_cond_wait(&w->done, &w->lock);
	collect(w);
	r = w->error;
	pthread_mutex_unlock(&w->lock);
	return r;
}

struct pack_row *chunk_writer_rows(struct chunk_writer *w, uint32_t *ret_count)
{
	*ret_count = (uint32_t)w->rows.count;
	return w->rows.data;
}

uint64_t chunk_writer_pack_len(const struct chunk_writer *w)
{
	return w->pack_len;
}

uint64_t chunk_writer_new_bytes(const struct chunk_writer *w)
{
	return w->new_bytes;
}
