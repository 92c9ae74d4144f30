/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/vec.h"
#include "image/reader.h"
#include "transfer/bases.h"
#include "transfer/chunk_tools.h"
#include "transfer/codec.h"
#include "transfer/data_links.h"
#include "transfer/session.h"

#define REPLY_TIMEOUT_MS 60000  /* for READY: the receiver may be reading back a resumed arrival */
#define CONTROL_POLL_MS 200
#define MEMORY_MAX (40u << 20)  /* of all data links together */
#define NAK_MAX 64              /* a chunk that fails more often will not get better */
#define ZSTD_LEVEL 1
#define WIRE_GUESS_BPS UINT64_C(1000000000)

struct send_session {
	struct send_params p;
	struct send_stats *stats;
	struct image_reader *image, *base;
	struct image_reader *bases[TRANSFER_BASES_MAX];
	unsigned base_count, streams;
	struct seal_keys keys;
	bool has_keys;
	uint32_t *base_map;
	struct codec_model model;
	uint64_t path_seq;

	struct data_links links; /* its lock also holds what follows */
	uint8_t *need;       /* bitmap */
	uint32_t cursor;     /* before it nothing is left */
	struct VEC(uint32_t) again; /* refused: to be sent as stored */
	unsigned naks;
	struct transfer_chunk partials[TRANSFER_STREAMS_MAX];
	unsigned partial_count;
};

/* ---- new ---- */

/* Older images of the job that are whole here and were cut alike: the newest few. */
static void bases_open(struct send_session *s)
{
	CLEANUP_FREE struct image_info *infos = NULL;
	size_t count = 0;

	if (!s->has_keys || image_list(s->p.store, s->p.job, &infos, &count, NULL) < 0)
		return;
	for (size_t i = 0; i < count && s->base_count < TRANSFER_BASES_MAX; i++) {
		if (strcmp(infos[i].digest, s->p.image) == 0 ||
		    infos[i].chunk_size != image_reader_manifest(s->image)->chunk_size ||
		    image_reader_open(s->p.store, s->p.job, infos[i].digest,
				      &s->bases[s->base_count], NULL) < 0)
			continue;
		if (image_reader_key_check(s->bases[s->base_count], &s->keys, NULL) == 0)
			s->base_count++;
		else
			image_reader_close(TAKE(s->bases[s->base_count]));
	}
}

static unsigned streams_for(const struct send_session *s)
{
	uint64_t chunk = image_reader_manifest(s->image)->chunk_size;
	uint64_t each = chunk + delta_bound(chunk) + 5 * chunk + (3u << 20);
	unsigned n = s->p.streams ? s->p.streams : 3;

	n = MIN(n, (unsigned)(MEMORY_MAX / each));
	return MAX(n, 1u);
}

static void serve(void *arg, struct link *l);

int send_session_new(const struct send_params *p, struct send_stats *stats,
		     struct send_session **ret, struct session_end *end)
{
	struct send_session *s = calloc(1, sizeof(*s));
	struct diag diag = DIAG_INIT;
	struct pacer_state pace;
	uint64_t rate;
	int r;

	if (!s) {
		session_end_set(end, -ENOMEM, NULL);
		return -ENOMEM;
	}
	s->p = *p;
	s->stats = stats;
	data_links_init(&s->links, &(struct data_links_params){ .open = p->open, .open_arg = p->open_arg,
								.serve = serve, .serve_arg = s, .wake_fd = -1 });
	r = image_reader_open(p->store, p->job, p->image, &s->image, &diag);
	if (r == 0 && p->key) {
		r = seal_keys_derive(p->key, &s->keys);
		if (r == 0)
			r = image_reader_key_check(s->image, &s->keys, &diag);
		s->has_keys = r == 0;
	}
	if (r < 0) {
		session_end_set(end, r, &diag);
		send_session_free(s);
		return r;
	}
	bases_open(s);
	s->streams = streams_for(s);
	pacer_state(p->pacer, &pace);
	rate = MIN(pace.granted_bps, WIRE_GUESS_BPS);
	codec_model_init(&s->model, 8e9 / (double)MAX(rate, UINT64_C(1)),
			 MIN(s->streams, (unsigned)sysconf(_SC_NPROCESSORS_ONLN)));
	*ret = s;
	return 0;
}

void send_session_free(struct send_session *s)
{
	if (!s)
		return;
	for (unsigned i = 0; i < s->base_count; i++)
		image_reader_close(s->bases[i]);
	image_reader_close(s->image);
	free(s->base_map);
	free(s->need);
	VEC_DONE(&s->again);
	explicit_bzero(&s->keys, sizeof(s->keys));
	data_links_done(&s->links);
	free(s);
}

/* ---- the queue of chunks ---- */

/* Waits for work. False when the session is over. */
static bool next_chunk(struct send_session *s, uint32_t *ret, bool *ret_as_stored)
{
	uint32_t count = image_reader_manifest(s->image)->chunk_count;
	bool found = false;

	pthread_mutex_lock(&s->links.lock);
	while (!s->links.over && !found) {
		if (!s->links.ready) {
			pthread_cond_wait(&s->links.changed, &s->links.lock);
			continue;
		}
		if (s->again.count) {
			*ret = s->again.data[--s->again.count];
			*ret_as_stored = found = true;
			break;
		}
		while (s->cursor < count && s->need[s->cursor / 8] == 0)
			s->cursor = (s->cursor / 8 + 1) * 8;
		while (s->cursor < count && !(s->need[s->cursor / 8] >> s->cursor % 8 & 1))
			s->cursor++;
		if (s->cursor < count) {
			*ret = s->cursor++;
			*ret_as_stored = false;
			found = true;
			break;
		}
		pthread_cond_wait(&s->links.changed, &s->links.lock); /* a refused one may come back */
	}
	pthread_mutex_unlock(&s->links.lock);
	return found;
}

/* ---- one data link ---- */

struct worker {
	struct chunk_tools tools;
	uint8_t *payload; /* of a form that is not as stored */
};

static int worker_grow(struct send_session *s, struct worker *w, enum transfer_codec codec)
{
	uint32_t size = image_reader_manifest(s->image)->chunk_size;

	if (codec != TRANSFER_SEALED && !w->payload && !(w->payload = malloc(delta_bound(size))))
		return -ENOMEM;
	return chunk_tools_grow(&w->tools, &s->keys, size, codec, false);
}

/* Of this thread: a busy machine must not look like a dear codec. */
static uint64_t thread_cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return timespec_ns(&t);
}

static void path_measure(struct send_session *s)
{
	struct pacer_state pace;
	bool fresh;

	pacer_state(s->p.pacer, &pace);
	pthread_mutex_lock(&s->links.lock);
	fresh = pace.path_seq != s->path_seq;
	s->path_seq = pace.path_seq;
	pthread_mutex_unlock(&s->links.lock);
	if (fresh)
		codec_sent(&s->model, pace.path_bps / 8, !pace.path_backlog);
}

static void check_of(const void *bytes, size_t len, uint8_t ret[8])
{
	seal_check(bytes, len, ret);
}

/* Fills head and *ret_bytes for the chosen form; falls back to the stored one. */
static int payload_make(struct send_session *s, struct worker *w, uint32_t i,
			enum transfer_codec codec, struct transfer_chunk *head,
			const uint8_t **ret_bytes, struct diag *diag)
{
	const struct manifest *m = image_reader_manifest(s->image);
	uint64_t start = thread_cpu_ns();
	struct chunk_tools *t = &w->tools;
	int64_t n = 0;
	struct chunk c;
	int r = worker_grow(s, w, codec);

	memset(head, 0, sizeof(*head));
	head->index = i;
	if (r < 0)
		return r;
	if (codec != TRANSFER_SEALED) {
		r = image_reader_plain(s->image, i, t->sealer, t->chunk, &c, diag);
		if (r < 0)
			return r;
		if (codec == TRANSFER_DELTA) {
			uint32_t b = s->base_map[i];
			struct chunk bc;

			/* A base that cannot be read costs the delta only. */
			if (image_reader_plain(s->base, b, t->sealer, t->base, &bc, NULL) == 0)
				n = delta_encode(t->coder, t->chunk, c.len, t->base, bc.len, ZSTD_LEVEL,
						 w->payload);
			head->base_index = b;
		} else {
			size_t z = ZSTD_compressCCtx(t->cctx, w->payload, delta_bound(m->chunk_size), t->chunk,
						     c.len, ZSTD_LEVEL);

			n = ZSTD_isError(z) ? 0 : (int64_t)z;
		}
		if (n > 0)
			codec_made(&s->model, codec, c.len, (uint64_t)n, thread_cpu_ns() - start);
		if (n > 0 && (uint64_t)n < c.len - c.len / 64) {
			head->codec = codec;
			head->payload_len = (uint32_t)n;
			check_of(w->payload, (size_t)n, head->check);
			*ret_bytes = w->payload;
			return 0;
		}
		head->base_index = 0;
	}
	start = thread_cpu_ns();
	r = image_reader_sealed(s->image, i, t->chunk, &c, diag);
	if (r < 0)
		return r;
	if (codec == TRANSFER_SEALED)
		codec_made(&s->model, codec, c.len, c.len, thread_cpu_ns() - start);
	head->codec = TRANSFER_SEALED;
	head->payload_len = c.len;
	memcpy(head->check, c.check, 8);
	*ret_bytes = t->chunk;
	return 0;
}

/* Where the receiver holds the beginning of exactly this payload. */
static void resume(struct send_session *s, struct transfer_chunk *head)
{
	for (unsigned k = 0; k < s->partial_count; k++) {
		const struct transfer_chunk *p = &s->partials[k];

		if (p->index == head->index && p->codec == head->codec &&
		    p->base_index == head->base_index && p->payload_len == head->payload_len &&
		    memcmp(p->check, head->check, 8) == 0)
			head->offset = p->offset;
	}
}

/* The form that was under way for a kept beginning comes first; else what the model says. */
static enum transfer_codec codec_for(struct send_session *s, uint32_t i, bool as_stored)
{
	bool data = i < image_reader_manifest(s->image)->data_chunk_count;
	bool delta = data && s->base_map && s->base_map[i] != BASE_NONE;

	if (as_stored || !s->has_keys)
		return TRANSFER_SEALED;
	for (unsigned k = 0; k < s->partial_count; k++)
		if (s->partials[k].index == i && (s->partials[k].codec != TRANSFER_DELTA || delta))
			return s->partials[k].codec;
	return codec_choose(&s->model, true, delta);
}

/* What went into the connection since the last count, TLS and all. */
static void count_bytes(struct send_session *s, const struct link *l, uint64_t *counted)
{
	uint64_t now = link_bytes_out(l);

	s->stats->bytes_sent += now - *counted;
	*counted = now;
}

static int chunk_send(struct send_session *s, struct worker *w, struct link *l, uint32_t i,
		      bool as_stored, uint64_t *counted, struct diag *diag)
{
	uint8_t frame[TRANSFER_HEADER_LEN + TRANSFER_CHUNK_BODY_LEN];
	struct transfer_chunk head;
	const uint8_t *bytes;
	uint64_t n;
	int len, r = payload_make(s, w, i, codec_for(s, i, as_stored), &head, &bytes, diag);

	if (r < 0)
		return r;
	resume(s, &head);
	len = transfer_encode_chunk(&head, frame, sizeof(frame));
	CHECK(len == (int)sizeof(frame));
	POINT("transfer.send.chunk");
	n = head.payload_len - head.offset;
	r = link_write(l, frame, sizeof(frame));
	if (r == 0)
		r = link_write(l, bytes + head.offset, n);
	if (r == 0)
		r = link_flush(l);
	if (r < 0)
		return r;
	path_measure(s);
	count_bytes(s, l, counted);
	s->stats->chunks_sent++;
	s->stats->chunks_delta += head.codec == TRANSFER_DELTA;
	s->stats->chunks_zstd += head.codec == TRANSFER_ZSTD;
	return 0;
}

void send_session_attach(struct send_session *s, struct link *l)
{
	struct worker w = { .payload = NULL };
	struct diag diag = DIAG_INIT;
	int slot = data_links_enter(&s->links, l, false), r = 0;
	bool as_stored;
	uint64_t counted = 0;
	uint32_t i;

	if (slot < 0)
		return;
	pacer_add(s->p.pacer, l);
	while (r == 0 && next_chunk(s, &i, &as_stored))
		r = chunk_send(s, &w, l, i, as_stored, &counted, &diag);
	count_bytes(s, l, &counted);
	pacer_remove(s->p.pacer, l);
	if (r < 0)
		data_links_fail(&s->links, r, &diag);
	data_links_leave(&s->links, slot);
	chunk_tools_done(&w.tools);
	free(w.payload);
}

static void serve(void *arg, struct link *l)
{
	send_session_attach(arg, l);
}

/* ---- the control link ---- */

static int offer_send(struct send_session *s, struct link *control)
{
	struct transfer_offer offer = { .has_key = s->has_keys, .base_count = (uint8_t)s->base_count };
	uint8_t frame[512];
	const uint8_t *bytes;
	size_t len;
	int n, r;

	bytes = image_reader_bytes(s->image, &len);
	memcpy(offer.image, image_reader_digest(s->image), 32);
	offer.manifest_len = len;
	if (s->has_keys)
		memcpy(offer.key, s->p.key, 32);
	for (unsigned i = 0; i < s->base_count; i++)
		memcpy(offer.bases[i], image_reader_digest(s->bases[i]), 32);
	n = transfer_encode_offer(&offer, frame, sizeof(frame));
	CHECK(n > 0);
	r = link_send(control, frame, (size_t)n);
	explicit_bzero(frame, sizeof(frame));
	explicit_bzero(&offer, sizeof(offer));
	for (size_t at = 0; r == 0 && at < len;) {
		uint32_t part = (uint32_t)MIN(len - at, (size_t)32768);

		n = transfer_encode_manifest(part, frame, sizeof(frame));
		r = link_send(control, frame, (size_t)n);
		if (r == 0)
			r = link_send(control, bytes + at, part);
		at += part;
	}
	return r;
}

static int need_add(struct send_session *s, const struct transfer_need *need, struct diag *diag)
{
	uint32_t count = image_reader_manifest(s->image)->chunk_count;

	if (need->first >= count || need->count > count - need->first)
		return diag_set(diag, -EPROTO, "need", "chunks that the image does not have");
	for (uint32_t i = 0; i < need->count; i++)
		if (need->bitmap[i / 8] >> i % 8 & 1)
			s->need[(need->first + i) / 8] |= (uint8_t)(1 << (need->first + i) % 8);
	return 0;
}

static int ready_take(struct send_session *s, const struct transfer_ready *ready, struct diag *diag)
{
	s->stats->chunks_total = ready->lacking;
	s->stats->bytes_total = ready->lacking_bytes;
	s->stats->bytes_stored = ready->lacking_bytes;
	if (ready->base == 0xff || !s->has_keys || ready->lacking == 0)
		return 0;
	if (ready->base >= s->base_count)
		return diag_set(diag, -EPROTO, "ready", "a base that was not offered");
	s->base = s->bases[ready->base];
	/* Without a map there are no deltas; the image still goes. */
	(void)bases_find(s->image, s->base, &s->keys, &s->base_map, NULL);
	return 0;
}

/* NEED, PARTIAL, READY. 0, a negative error, or 1 when the peer failed (end is filled). */
static int wishes_receive(struct send_session *s, struct link *control, uint8_t *body,
			  struct session_end *end, struct diag *diag)
{
	for (;;) {
		struct transfer_header h;
		struct transfer_need need;
		struct transfer_partial partial;
		struct transfer_ready ready;
		int r = link_receive(control, REPLY_TIMEOUT_MS, s->p.wake_fd, &h, body, diag);

		if (r == -EINTR || atomic_load(s->p.cancel))
			return -ECANCELED;
		if (r < 0)
			return r;
		switch (h.type) {
		case TRANSFER_NEED:
			r = transfer_decode_need(body, h.len, &need, diag);
			if (r == 0)
				r = need_add(s, &need, diag);
			break;
		case TRANSFER_PARTIAL:
			r = transfer_decode_partial(body, h.len, &partial, diag);
			if (r == 0 && s->partial_count < TRANSFER_STREAMS_MAX)
				s->partials[s->partial_count++] = partial.chunk;
			break;
		case TRANSFER_READY:
			r = transfer_decode_ready(body, h.len, &ready, diag);
			return r == 0 ? ready_take(s, &ready, diag) : -EPROTO;
		case TRANSFER_COMMITTED: return 2; /* it had everything */
		case TRANSFER_FAIL: return session_end_take(end, body, h.len, diag);
		default: r = diag_set(diag, -EPROTO, "control", "a frame out of turn");
		}
		if (r < 0)
			return -EPROTO;
	}
}

static int nak_take(struct send_session *s, uint32_t index, struct diag *diag)
{
	int r = 0;

	if (index >= image_reader_manifest(s->image)->chunk_count)
		return diag_set(diag, -EPROTO, "nak", "a chunk that the image does not have");
	pthread_mutex_lock(&s->links.lock);
	if (s->naks++ >= NAK_MAX)
		r = diag_set(diag, -EBADMSG, "nak", "the receiver refused %u chunks", NAK_MAX);
	else
		r = VEC_PUSH(&s->again, index);
	pthread_cond_broadcast(&s->links.changed);
	pthread_mutex_unlock(&s->links.lock);
	return r;
}

/* Until COMMITTED (0), an error, or the peer's FAIL (1). */
static int watch(struct send_session *s, struct link *control, uint8_t *body,
		 struct session_end *end, struct diag *diag)
{
	for (;;) {
		struct transfer_progress progress;
		struct transfer_header h;
		uint8_t image[32];
		uint32_t index;
		int r = link_receive(control, CONTROL_POLL_MS, s->p.wake_fd, &h, body, diag);

		if (r == -EINTR || atomic_load(s->p.cancel))
			return -ECANCELED;
		if (r == -ETIMEDOUT || r == -ECONNRESET) {
			/* What a data link says is the nearer cause. */
			int error = data_links_error(&s->links, diag);

			if (error && (error != -ECONNRESET || r == -ETIMEDOUT))
				return error;
			if (r == -ETIMEDOUT)
				continue;
		}
		if (r < 0)
			return r;
		switch (h.type) {
		case TRANSFER_NAK:
			r = transfer_decode_nak(body, h.len, &index, diag);
			if (r == 0)
				r = nak_take(s, index, diag);
			break;
		case TRANSFER_PROGRESS:
			r = transfer_decode_progress(body, h.len, &progress, diag);
			if (r == 0) {
				s->stats->chunks_done = progress.chunks;
				s->stats->bytes_done = progress.bytes;
			}
			break;
		case TRANSFER_COMMITTED:
			r = transfer_decode_committed(body, h.len, image, diag);
			if (r == 0 && memcmp(image, image_reader_digest(s->image), 32) == 0)
				return 0;
			return -EPROTO;
		case TRANSFER_FAIL: return session_end_take(end, body, h.len, diag);
		default: r = diag_set(diag, -EPROTO, "control", "a frame out of turn");
		}
		if (r < 0)
			return r == -EBADMSG && h.type != TRANSFER_NAK ? -EPROTO : r;
	}
}

static int transfer(struct send_session *s, struct link *control, uint8_t *body,
		    struct session_end *end, struct diag *diag)
{
	int r = wishes_receive(s, control, body, end, diag);
	unsigned count;

	if (r != 0) {
		data_links_end(&s->links, true); /* one that a fetcher opened may wait already */
		return r == 2 ? 0 : r;
	}
	data_links_set_ready(&s->links);
	/* Few chunks need few connections. */
	count = data_links_open(&s->links, (unsigned)MIN((uint64_t)s->streams, s->stats->chunks_total));
	r = count == 0 && s->p.open && s->stats->chunks_total ? -EAGAIN :
								watch(s, control, body, end, diag);
	data_links_end(&s->links, r != 0);
	return r;
}

void send_session_run(struct send_session *s, struct link *control, struct session_end *end)
{
	CLEANUP_FREE uint8_t *body = malloc(TRANSFER_BODY_MAX);
	struct diag diag = DIAG_INIT;
	int r;

	memset(end, 0, sizeof(*end));
	s->need = calloc(1, image_reader_manifest(s->image)->chunk_count / 8 + 1);
	r = body && s->need ? offer_send(s, control) : -ENOMEM;
	/* A refusal may be on its way while the offer breaks off: the refusal is the reason. */
	if (r == 0 || r == -ECONNRESET)
		r = transfer(s, control, body, end, &diag);
	else
		data_links_end(&s->links, true);
	s->stats->bytes_sent += link_bytes_out(control);
	if (r < 0)
		session_end_set(end, r, &diag);
}
