/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <zstd.h>

#include "base/check.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/point.h"
#include "base/vec.h"
#include "image/incoming.h"
#include "image/pack.h"
#include "image/reader.h"
#include "transfer/chunk_tools.h"
#include "transfer/data_links.h"
#include "transfer/session.h"

#define OFFER_TIMEOUT_MS 15000
#define PROGRESS_MS 200
#define STALL_MS 30000 /* a sender that says nothing for so long is gone, whatever TCP thinks */
#define PART_MIN 16384u

struct receive_session {
	struct receive_params p;
	struct receive_stats *stats;
	struct link *control;
	struct image_incoming *in;
	struct image_reader *base;
	struct seal_keys keys;
	bool has_keys;
	int wake_fd; /* to the control thread: something happened on a data link */

	struct data_links links;
	struct transfer_chunk parts[TRANSFER_STREAMS_MAX];
	unsigned part_count;
};

static void serve(void *arg, struct link *l);

int receive_session_new(const struct receive_params *p, struct receive_stats *stats,
			struct receive_session **ret, struct session_end *end)
{
	struct receive_session *s = calloc(1, sizeof(*s));

	if (s)
		s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!s || s->wake_fd < 0) {
		free(s);
		session_end_set(end, -ENOMEM, NULL);
		return -ENOMEM;
	}
	s->p = *p;
	s->stats = stats;
	data_links_init(&s->links, &(struct data_links_params){ .open = p->open, .open_arg = p->open_arg,
								.serve = serve, .serve_arg = s,
								.wake_fd = s->wake_fd });
	*ret = s;
	return 0;
}

void receive_session_free(struct receive_session *s)
{
	if (!s)
		return;
	image_reader_close(s->base);
	image_incoming_close(s->in);
	explicit_bzero(&s->keys, sizeof(s->keys));
	data_links_done(&s->links);
	(void)close(s->wake_fd); /* an eventfd */
	free(s);
}

static void wake(struct receive_session *s)
{
	uint64_t one = 1;
	ssize_t n = write(s->wake_fd, &one, sizeof(one));

	(void)n; /* full = already awake */
}

/* ---- beginnings of payloads that a broken link left ---- */

static int part_path(const struct receive_session *s, uint32_t index, char ret[4200])
{
	return path_format(ret, 4200, "%s/part-%u", image_incoming_dir(s->in), index);
}

/* The chunk's head with offset = bytes kept, then those bytes. Losing it costs sending them again. */
static void part_save(struct receive_session *s, const struct transfer_chunk *head,
		      const uint8_t *bytes, uint32_t have)
{
	struct transfer_partial p = { *head };
	uint8_t frame[64];
	char path[4200];
	CLEANUP_FD int fd = -1;
	int n;

	if (have < PART_MIN)
		return;
	p.chunk.offset = have;
	n = transfer_encode_partial(&p, frame, sizeof(frame));
	if (n < 0 || part_path(s, head->index, path) < 0)
		return;
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || fd_write_all(fd, frame, (size_t)n) < 0 || fd_write_all(fd, bytes, have) < 0)
		(void)unlink(path);
}

static int part_load(struct receive_session *s, const struct transfer_chunk *head, uint8_t *buf)
{
	uint8_t frame[TRANSFER_HEADER_LEN + TRANSFER_CHUNK_BODY_LEN];
	struct transfer_partial p;
	char path[4200];
	CLEANUP_FD int fd = -1;

	if (part_path(s, head->index, path) < 0)
		return -EPROTO;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fd_read_all(fd, frame, sizeof(frame)) < 0 ||
	    transfer_decode_partial(frame + TRANSFER_HEADER_LEN, TRANSFER_CHUNK_BODY_LEN, &p, NULL) < 0 ||
	    p.chunk.offset < head->offset || p.chunk.payload_len != head->payload_len ||
	    memcmp(p.chunk.check, head->check, 8) != 0)
		return -EPROTO; /* it goes on where we never told it to */
	return fd_read_all(fd, buf, head->offset);
}

static void part_drop(struct receive_session *s, uint32_t index)
{
	char path[4200];

	if (part_path(s, index, path) == 0)
		(void)unlink(path); /* usually not there */
}

static void parts_list(struct receive_session *s)
{
	CLEANUP_DIR DIR *dir = opendir(image_incoming_dir(s->in));

	for (struct dirent *e; dir && (e = readdir(dir)) && s->part_count < TRANSFER_STREAMS_MAX;) {
		uint8_t frame[TRANSFER_HEADER_LEN + TRANSFER_CHUNK_BODY_LEN];
		struct transfer_partial p;
		struct stat st;
		CLEANUP_FD int fd = -1;

		if (strncmp(e->d_name, "part-", 5) != 0)
			continue;
		fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
		if (fd >= 0 && fstat(fd, &st) == 0 && fd_read_all(fd, frame, sizeof(frame)) == 0 &&
		    transfer_decode_partial(frame + TRANSFER_HEADER_LEN, TRANSFER_CHUNK_BODY_LEN, &p, NULL) == 0 &&
		    (uint64_t)st.st_size == sizeof(frame) + (uint64_t)p.chunk.offset &&
		    p.chunk.index < image_incoming_image(s->in)->chunk_count &&
		    image_incoming_lacks(s->in, p.chunk.index))
			s->parts[s->part_count++] = p.chunk;
		else
			(void)unlinkat(dirfd(dir), e->d_name, 0); /* of no use */
	}
}

/* ---- one data link ---- */

struct worker {
	struct chunk_tools tools;
	uint8_t *payload;
};

/* The chunk as stored, into *ret. -EBADMSG = not what the manifest names. */
static int payload_open(struct receive_session *s, struct worker *w, const struct transfer_chunk *head,
			uint8_t **ret)
{
	const struct manifest *m = image_incoming_image(s->in);
	uint8_t check[SEAL_CHECK_LEN], tag[SEAL_TAG_LEN];
	struct chunk_tools *t = &w->tools;
	struct chunk c, bc;
	int r;

	manifest_chunk(m, head->index, &c);
	if (head->codec == TRANSFER_SEALED) {
		*ret = w->payload;
		return head->payload_len == c.len ? 0 : -EBADMSG; /* put() holds it against its check */
	}
	seal_check(w->payload, head->payload_len, check);
	if (memcmp(check, head->check, SEAL_CHECK_LEN) != 0)
		return -EBADMSG;
	if (!s->has_keys)
		return -EPROTO;
	r = chunk_tools_grow(t, &s->keys, m->chunk_size, head->codec, true);
	if (r < 0)
		return r;
	if (head->codec == TRANSFER_DELTA) {
		if (!s->base || head->base_index >= image_reader_manifest(s->base)->chunk_count ||
		    manifest_chunk_len(image_reader_manifest(s->base), head->base_index) > m->chunk_size)
			return -EPROTO;
		/* A base damaged on our disk makes the chunk come as stored. */
		if (image_reader_plain(s->base, head->base_index, t->sealer, t->base, &bc, NULL) < 0 ||
		    delta_decode(t->coder, w->payload, head->payload_len, t->base, bc.len, t->chunk, c.len) < 0)
			return -EBADMSG;
	} else if (ZSTD_decompressDCtx(t->dctx, t->chunk, c.len, w->payload, head->payload_len) != c.len) {
		return -EBADMSG;
	}
	r = sealer_seal(t->sealer, c.name, t->chunk, c.len, t->chunk, tag);
	if (r == 0 && memcmp(tag, c.tag, SEAL_TAG_LEN) != 0)
		r = -EBADMSG;
	*ret = t->chunk;
	return r;
}

static int nak(struct receive_session *s, uint32_t index)
{
	uint8_t frame[16];
	int n = transfer_encode_nak(index, frame, sizeof(frame));

	return link_send(s->control, frame, (size_t)n);
}

/* Reads the payload so that a break in the middle leaves what came. */
static int payload_read(struct receive_session *s, struct worker *w, struct link *l,
			const struct transfer_chunk *head)
{
	uint32_t at = head->offset;
	int r = 0;

	if (at)
		r = part_load(s, head, w->payload);
	while (r == 0 && at < head->payload_len) {
		uint32_t n = MIN(head->payload_len - at, 65536u);

		r = link_read(l, w->payload + at, n);
		if (r == 0)
			at += n;
	}
	if (r == 0)
		s->stats->bytes_wire += head->payload_len - head->offset;
	else if (at > head->offset || head->offset)
		part_save(s, head, w->payload, at);
	return r == -ENODATA ? -ECONNRESET : r;
}

static int chunk_receive(struct receive_session *s, struct worker *w, struct link *l,
			 struct diag *diag)
{
	uint8_t frame[TRANSFER_HEADER_LEN + TRANSFER_CHUNK_BODY_LEN];
	const struct manifest *m = image_incoming_image(s->in);
	struct transfer_header h;
	struct transfer_chunk head;
	uint8_t *stored;
	uint64_t chunks, bytes;
	int r = link_read(l, frame, sizeof(frame));

	if (r < 0)
		return r;
	if (transfer_decode_header(frame, &h, diag) < 0 || h.type != TRANSFER_CHUNK ||
	    transfer_decode_chunk(frame + TRANSFER_HEADER_LEN, h.len, &head, diag) < 0)
		return -EPROTO;
	if (head.index >= m->chunk_count || head.payload_len > m->chunk_size)
		return diag_set(diag, -EPROTO, "chunk", "not of this image");
	r = payload_read(s, w, l, &head);
	if (r < 0)
		return r;
	POINT("transfer.receive.chunk");
	r = payload_open(s, w, &head, &stored);
	if (r == 0)
		r = image_incoming_put(s->in, head.index, stored, diag);
	part_drop(s, head.index);
	if (r == -EBADMSG)
		return nak(s, head.index);
	if (r < 0)
		return r;
	image_incoming_lacking(s->in, &chunks, &bytes);
	s->stats->chunks_done = s->stats->chunks_total - chunks;
	s->stats->bytes_done = s->stats->bytes_total - bytes;
	if (chunks == 0)
		wake(s);
	return 0;
}

void receive_session_attach(struct receive_session *s, struct link *l)
{
	struct worker w = { .payload = NULL };
	struct diag diag = DIAG_INIT;
	int slot = data_links_enter(&s->links, l, true), r;

	if (slot < 0)
		return;
	w.payload = aligned_alloc(PACK_ALIGN, image_incoming_image(s->in)->chunk_size);
	r = w.payload ? 0 : -ENOMEM;
	while (r == 0)
		r = chunk_receive(s, &w, l, &diag);
	chunk_tools_done(&w.tools);
	free(w.payload);
	if (r != -ENODATA) /* in order: the sender has nothing more for this link */
		data_links_fail(&s->links, r, &diag);
	data_links_leave(&s->links, slot);
}

static void serve(void *arg, struct link *l)
{
	receive_session_attach(arg, l);
}

/* ---- the control link ---- */

static int base_choose(struct receive_session *s, const struct transfer_offer *offer, uint8_t *ret)
{
	*ret = 0xff;
	if (!s->has_keys)
		return 0;
	for (uint8_t i = 0; i < offer->base_count; i++) {
		char hex[IMAGE_DIGEST_HEX + 1];
		struct image_reader *r = NULL;

		hex_encode(offer->bases[i], IMAGE_DIGEST_LEN, hex);
		if (image_reader_open(s->p.store, s->p.job, hex, &r, NULL) < 0)
			continue;
		if (image_reader_key_check(r, &s->keys, NULL) == 0) {
			s->base = r;
			*ret = i;
			return 0;
		}
		image_reader_close(r);
	}
	return 0;
}

static int offer_receive(struct receive_session *s, uint8_t *body, struct transfer_offer *offer,
			 struct session_end *end, struct diag *diag)
{
	struct transfer_header h;
	int r = link_receive(s->control, OFFER_TIMEOUT_MS, -1, &h, body, diag);

	if (r < 0)
		return r;
	if (h.type == TRANSFER_FAIL)
		return session_end_take(end, body, h.len, diag);
	if (h.type != TRANSFER_OFFER || transfer_decode_offer(body, h.len, offer, diag) < 0)
		return -EPROTO;
	if (memcmp(offer->image, s->p.image, 32) != 0)
		return diag_set(diag, -EPROTO, "offer", "another image than the ticket's");
	if (offer->has_key && !s->p.hold_only) {
		r = seal_keys_derive(offer->key, &s->keys);
		s->has_keys = r == 0;
	}
	explicit_bzero(offer->key, sizeof(offer->key));
	explicit_bzero(body, h.len);
	return r;
}

static int manifest_receive(struct receive_session *s, const struct transfer_offer *offer,
			    uint8_t *body, struct diag *diag)
{
	int r = image_incoming_open(s->p.store, s->p.job, s->p.image, offer->manifest_len, &s->in, diag);

	for (uint64_t got = 0; r == 0 && got < offer->manifest_len;) {
		struct transfer_header h;

		r = link_receive(s->control, OFFER_TIMEOUT_MS, -1, &h, body, diag);
		if (r == 0 && h.type != TRANSFER_MANIFEST)
			r = diag_set(diag, -EPROTO, "manifest", "a frame out of turn");
		if (r == 0)
			r = image_incoming_manifest(s->in, body, h.len, diag);
		got += r == 0 ? h.len : 0;
	}
	if (r == 0)
		r = image_incoming_ready(s->in, s->p.reserve, s->p.open != NULL, diag);
	if (r == 0 && image_incoming_image(s->in)->epoch != s->p.epoch)
		r = diag_set(diag, -ESTALE, s->p.job, "the image is of epoch %llu, the ticket of %llu",
			     (unsigned long long)image_incoming_image(s->in)->epoch,
			     (unsigned long long)s->p.epoch);
	return r;
}

static int wishes_send(struct receive_session *s, uint8_t base)
{
	uint32_t count = image_incoming_image(s->in)->chunk_count;
	struct transfer_ready ready = { .base = base };
	CLEANUP_FREE uint8_t *bits = calloc(1, TRANSFER_NEED_MAX / 8);
	uint8_t *frame = malloc(TRANSFER_BODY_MAX);
	int r = bits && frame ? 0 : -ENOMEM, n;

	for (uint32_t first = 0; r == 0 && first < count; first += TRANSFER_NEED_MAX) {
		struct transfer_need need = { first, MIN(count - first, TRANSFER_NEED_MAX), bits };

		memset(bits, 0, TRANSFER_NEED_MAX / 8);
		for (uint32_t i = 0; i < need.count; i++)
			if (image_incoming_lacks(s->in, first + i))
				bits[i / 8] |= (uint8_t)(1 << i % 8);
		n = transfer_encode_need(&need, frame, TRANSFER_BODY_MAX);
		r = n < 0 ? n : link_send(s->control, frame, (size_t)n);
	}
	for (unsigned i = 0; r == 0 && i < s->part_count; i++) {
		struct transfer_partial p = { s->parts[i] };

		n = transfer_encode_partial(&p, frame, TRANSFER_BODY_MAX);
		r = n < 0 ? n : link_send(s->control, frame, (size_t)n);
	}
	image_incoming_lacking(s->in, &ready.lacking, &ready.lacking_bytes);
	if (r == 0) {
		n = transfer_encode_ready(&ready, frame, TRANSFER_BODY_MAX);
		r = link_send(s->control, frame, (size_t)n);
	}
	free(frame);
	return r;
}

static int progress_send(struct receive_session *s)
{
	struct transfer_progress p = { s->stats->chunks_done, s->stats->bytes_done };
	uint8_t frame[32];
	int n = transfer_encode_progress(&p, frame, sizeof(frame));

	return link_send(s->control, frame, (size_t)n);
}

/* Until nothing lacks (0), an error, or the sender's FAIL (1, end filled). */
static int watch(struct receive_session *s, uint8_t *body, struct session_end *end, struct diag *diag)
{
	uint64_t quiet_ms = 0, seen = 0;

	for (;;) {
		struct transfer_header h;
		uint64_t chunks, bytes, count;
		ssize_t n;
		int error, r;

		image_incoming_lacking(s->in, &chunks, &bytes);
		if (chunks == 0)
			return 0;
		r = link_receive(s->control, PROGRESS_MS, s->wake_fd, &h, body, diag);
		n = read(s->wake_fd, &count, sizeof(count));
		(void)n; /* empty is fine */
		error = data_links_error(&s->links, diag);
		if (s->p.cancel && atomic_load(s->p.cancel))
			return -ECANCELED;
		if (r == 0 && h.type == TRANSFER_FAIL)
			return session_end_take(end, body, h.len, diag);
		if (error)
			return error;
		if (r == 0)
			return diag_set(diag, -EPROTO, "control", "a frame out of turn");
		if (r == -ETIMEDOUT) {
			r = progress_send(s);
			quiet_ms = s->stats->bytes_wire == seen ? quiet_ms + PROGRESS_MS : 0;
			seen = s->stats->bytes_wire;
			if (quiet_ms > STALL_MS)
				return diag_set(diag, -ETIMEDOUT, "sender", "nothing came for %d s", STALL_MS / 1000);
		} else if (r == -EINTR) {
			r = 0;
		}
		if (r < 0)
			return r;
	}
}

static int transfer(struct receive_session *s, uint8_t *body, struct image_info *ret,
		    struct session_end *end, struct diag *diag)
{
	struct transfer_offer offer = { .manifest_len = 0 };
	struct image_info info;
	uint8_t base, frame[64];
	uint64_t chunks, bytes;
	int r = offer_receive(s, body, &offer, end, diag);

	if (r == 0)
		r = manifest_receive(s, &offer, body, diag);
	if (r != 0)
		return r;
	parts_list(s);
	(void)base_choose(s, &offer, &base);
	image_incoming_lacking(s->in, &chunks, &bytes);
	s->stats->chunks_total = chunks;
	s->stats->bytes_total = bytes;
	if (s->p.started) {
		image_info_fill(image_incoming_image(s->in), s->p.image, &info);
		s->p.started(s->p.started_arg, &info, bytes);
	}
	data_links_set_ready(&s->links);
	r = wishes_send(s, base);
	if (r == 0)
		(void)data_links_open(&s->links, (unsigned)MIN((uint64_t)s->p.streams, chunks));
	if (r == 0)
		r = watch(s, body, end, diag);
	POINT("transfer.receive.before_commit");
	data_links_end(&s->links, true);
	if (r == 0)
		r = image_incoming_commit(s->in, ret, diag);
	if (r == 0) {
		int n = transfer_encode_committed(s->p.image, frame, sizeof(frame));

		/* The image is here whether or not the sender still hears of it. */
		(void)link_send(s->control, frame, (size_t)n);
	}
	return r;
}

void receive_session_run(struct receive_session *s, struct link *control, struct image_info *ret,
			 struct session_end *end)
{
	CLEANUP_FREE uint8_t *body = malloc(TRANSFER_BODY_MAX);
	struct diag diag = DIAG_INIT;
	int r = -ENOMEM;

	memset(end, 0, sizeof(*end));
	s->control = control;
	if (body)
		r = transfer(s, body, ret, end, &diag);
	if (r < 0)
		session_end_set(end, r, &diag);
}
