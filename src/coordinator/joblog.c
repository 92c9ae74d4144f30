/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching, as a state of one epoch:
 *
 *     match   position of the line of the tail [replay_from, tail_end) that the
 *             present line is compared with
 *     ahead   how far that is behind the next unmatched line (0: it is that one)
 *     inside  bytes of that line that the present line has repeated so far
 *     fresh   the present line has turned out to be new: it is appended
 *     back    after a line that was found further on: how far behind is the line
 *             that was expected instead (and `ahead`: how far behind that it was found)
 *
 * At a line's start its bytes are compared with the tail's next line. As long
 * as they agree nothing is written. When they part, a later line of the tail
 * that begins the same takes its place: an image's place in the output is only
 * known from below, and lines with a time in them differ each time. If there
 * is none, the part that agreed is appended after all (it is the beginning of
 * a new line) and the rest follows. A line that was found further on may also
 * have been out of turn ("resumed at step 30", said anew by each incarnation,
 * stands behind the steps that it repeated): if the tail does not go on there, but
 * where it was left, matching goes back. When match reaches tail_end, everything is
 * new and goes straight through; an unfinished last line of the tail is then
 * simply continued.
 *
 * The cursor of an offset is `match` while there is a tail left, the end of
 * the log afterwards. It grows with the offset with slope 1 or 0, so a few
 * segments per epoch remember all of it.
 */
#include "coordinator/joblog.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/point.h"
#include "base/strbuf.h"
#include "base/vec.h"

#define INDEX_COMPACT_SIZE (1u << 20)
#define SEGMENTS_MAX 512
#define READ_MAX 4096
#define AHEAD_MAX 65536 /* bytes of the tail searched for a line that begins the same */
#define BACK_MAX  (16 * AHEAD_MAX)
#define AHEAD_LINE_MIN 4 /* bytes: shorter lines (empty ones, braces) are everywhere */

enum record_kind { RECORD_STATE = 1, RECORD_SEGMENT = 2 };

/* One record of the index; little-endian machines only, as all that we run on are. */
struct record {
	uint32_t crc; /* of what follows */
	uint32_t kind;
	uint64_t epoch;
	uint64_t offset; /* of the epoch's output */
	uint64_t log_len;
	uint64_t match, tail_end;
	uint32_t inside, back;
	uint32_t flags; /* FLAG_... */
	uint32_t ahead;
};
_Static_assert(sizeof(struct record) == 64, "index record");
enum { FLAG_FRESH = 1, FLAG_FULL = 4 };

/* From this offset on the cursor is `cursor + (offset - from)` (grows) or stays. */
struct segment {
	uint64_t from, cursor;
	bool grows;
};

struct epoch {
	uint64_t epoch;
	uint64_t end; /* offset reached */
	struct VEC(struct segment) segments;
};

struct joblog {
	int log_fd, idx_fd;
	char *idx_path;
	uint64_t size_max;
	uint64_t log_len;
	uint64_t idx_len;
	struct record now; /* the newest epoch's state */
	struct VEC(struct epoch) epochs;
	struct strbuf idx_out; /* records of the call under way */
	bool dirty;
};

/* ---- cursors ---- */

static struct epoch *epoch_find(const struct joblog *l, uint64_t epoch)
{
	for (size_t i = 0; i < l->epochs.count; i++)
		if (l->epochs.data[i].epoch == epoch)
			return &l->epochs.data[i];
	return NULL;
}

static void epoch_drop(struct joblog *l, size_t i)
{
	VEC_DONE(&l->epochs.data[i].segments);
	VEC_REMOVE(&l->epochs, i);
}

static struct epoch *epoch_add(struct joblog *l, uint64_t epoch)
{
	struct epoch e = { .epoch = epoch };
	if (l->epochs.count >= JOBLOG_EPOCHS_MAX)
		epoch_drop(l, 0);
	return VEC_PUSH(&l->epochs, e) < 0 ? NULL : &l->epochs.data[l->epochs.count - 1];
}

static void record_emit(struct joblog *l, const struct record *r)
{
	struct record out = *r;
	out.crc = hash_crc32c(0, (const char *)&out + sizeof(out.crc), sizeof(out) - sizeof(out.crc));
	strbuf_append(&l->idx_out, &out, sizeof(out)); /* a failure is sticky, seen at the write */
}

static int segment_add(struct joblog *l, uint64_t epoch, const struct segment *s)
{
	struct epoch *e = epoch_find(l, epoch);
	if (!e)
		e = epoch_add(l, epoch);
	if (!e)
		return -ENOMEM;
	if (e->segments.count) {
		struct segment *last = &e->segments.data[e->segments.count - 1];
		uint64_t at = last->grows ? last->cursor + (s->from - last->from) : last->cursor;
		if (last->grows == s->grows && at == s->cursor)
			return 0;
		if (last->from == s->from) {
			*last = *s;
			goto emit;
		}
	}
	if (e->segments.count >= SEGMENTS_MAX)
		VEC_REMOVE(&e->segments, 0);
	if (VEC_PUSH(&e->segments, *s) < 0)
		return -ENOMEM;
emit:;
	struct record r = { .kind = RECORD_SEGMENT, .epoch = epoch, .offset = s->from,
			    .log_len = s->cursor, .flags = s->grows };
	record_emit(l, &r);
	return 0;
}

static uint64_t cursor_now(const struct joblog *l)
{
	if (l->now.back)
		return l->now.match - l->now.back;
	return l->now.match < l->now.tail_end ? l->now.match - l->now.ahead : l->log_len;
}

uint64_t joblog_cursor(const struct joblog *l, uint64_t epoch, uint64_t offset, uint64_t unknown)
{
	const struct epoch *e = epoch_find(l, epoch);
	if (!e || e->segments.count == 0)
		return MIN(unknown, l->log_len);
	offset = MIN(offset, e->end);
	const struct segment *s = &e->segments.data[0];
	for (size_t i = 1; i < e->segments.count && e->segments.data[i].from <= offset; i++)
		s = &e->segments.data[i];
	uint64_t at = s->grows && offset > s->from ? s->cursor + (offset - s->from) : s->cursor;
	return MIN(at, l->log_len);
}

/* ---- the text ---- */

static int log_append(struct joblog *l, const char *bytes, size_t len)
{
	if (l->now.flags & FLAG_FULL)
		return 0;
	if (l->log_len + len > l->size_max) {
		static const char note[] = "\n[the log is full: output from here on is not kept]\n";
		l->now.flags |= FLAG_FULL;
		bytes = note;
		len = sizeof(note) - 1;
	}
	size_t at = 0;
	while (at < len) {
		ssize_t n = pwrite(l->log_fd, bytes + at, len - at, (off_t)(l->log_len + at));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	l->log_len += len;
	return 0;
}

static int log_read(const struct joblog *l, uint64_t at, char *buf, size_t len)
{
	size_t got = 0;
	while (got < len) {
		ssize_t n = pread(l->log_fd, buf + got, len - got, (off_t)(at + got));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		got += (size_t)n;
	}
	return 0;
}

static int ends_mid_line(const struct joblog *l, bool *ret)
{
	char last = '\n';
	int r = l->log_len ? log_read(l, l->log_len - 1, &last, 1) : 0;
	*ret = last != '\n';
	return r;
}

/* The part of the present line that agreed is the beginning of a new line after all. */
static int turn_fresh(struct joblog *l)
{
	char buf[READ_MAX];
	bool mid_line;
	int r = ends_mid_line(l, &mid_line);
	if (r == 0 && mid_line)
		r = log_append(l, "\n", 1); /* a line that a kill cut short stays one of its own */
	for (uint64_t at = 0; r == 0 && at < l->now.inside;) {
		size_t n = (size_t)MIN(l->now.inside - at, (uint64_t)sizeof(buf));
		r = log_read(l, l->now.match + at, buf, n);
		if (r == 0)
			r = log_append(l, buf, n);
		at += n;
	}
	l->now.match -= l->now.ahead; /* the tail still waits where it did */
	l->now.ahead = 0;
	l->now.inside = 0;
	l->now.flags |= FLAG_FRESH;
	return r;
}

/* A line of the tail behind the present one that begins with what this line has so far. */
static int find_ahead(const struct joblog *l, char next, uint64_t *ret)
{
	const struct record *s = &l->now;
	size_t prefix_len = (size_t)s->inside + 1;
	if (prefix_len > READ_MAX || s->ahead > AHEAD_MAX)
		return -ENOENT;
	size_t len = (size_t)MIN(s->tail_end - s->match, (uint64_t)AHEAD_MAX);
	CLEANUP_FREE char *tail = malloc(len + prefix_len);
	if (!tail)
		return -ENOMEM;
	int r = log_read(l, s->match, tail, len);
	if (r < 0)
		return r;
	char *prefix = tail + len;
	memcpy(prefix, tail, prefix_len - 1);
	prefix[prefix_len - 1] = next;
	for (char *at = tail; (at = memchr(at, '\n', len - (size_t)(at - tail)));) {
		at++;
		size_t left = len - (size_t)(at - tail);
		char *end = memchr(at, '\n', left);
		if (left < prefix_len || left < AHEAD_LINE_MIN)
			break;
		if ((!end || end - at >= AHEAD_LINE_MIN) && memcmp(at, prefix, prefix_len) == 0) {
			*ret = s->match + (uint64_t)(at - tail);
			return 0;
		}
	}
	return -ENOENT;
}

/* The next byte agrees with the line it is compared with: is the line complete? */
static bool step_agreed(struct joblog *l, char byte)
{
	l->now.inside++;
	if (byte != '\n')
		return false;
	uint64_t back = (uint64_t)(l->now.back ? l->now.back : l->now.ahead) + l->now.inside;
	l->now.match += l->now.inside;
	l->now.inside = 0;
	l->now.back = l->now.ahead && back <= BACK_MAX ? (uint32_t)back : 0;
	if (!l->now.back)
		l->now.ahead = 0;
	return true;
}

/* The line that was left for one further on begins with what this line has so far. */
static int find_back(const struct joblog *l, char next, uint64_t *ret)
{
	const struct record *s = &l->now;
	char here[READ_MAX], there[READ_MAX];
	size_t len = (size_t)s->inside + 1, look = MAX(len, (size_t)AHEAD_LINE_MIN);
	if (!s->back || look > s->back || look > sizeof(there))
		return -ENOENT;
	uint64_t at = s->match - s->back;
	int r = log_read(l, at, there, look);
	if (r == 0)
		r = log_read(l, s->match, here, s->inside);
	if (r < 0)
		return r;
	if (memcmp(here, there, s->inside) != 0 || there[len - 1] != next ||
	    memchr(there, '\n', AHEAD_LINE_MIN - 1))
		return -ENOENT;
	*ret = at;
	return 0;
}

/* This byte is not the next of the line it is compared with: another line, or -ENOENT. */
static int find_other(struct joblog *l, char next)
{
	struct record *s = &l->now;
	uint64_t found;
	int r = find_back(l, next, &found);
	if (r == 0) {
		if (s->match >= s->tail_end) /* all from where it was found is told of */
			s->tail_end = found + s->ahead;
		s->back = s->ahead = 0;
		s->match = found;
		return 0;
	}
	if (r != -ENOENT)
		return r;
	if (s->back)
		s->back = s->ahead = 0;
	r = find_ahead(l, next, &found);
	if (r == 0) {
		s->ahead += (uint32_t)(found - s->match);
		s->match = found;
	}
	return r;
}

/* Compares with the tail; returns how many bytes were consumed, or -errno. */
static ssize_t step_match(struct joblog *l, const char *bytes, size_t len)
{
	char tail[READ_MAX];
	struct record *s = &l->now;
	if (s->match >= s->tail_end) {
		int found = find_other(l, bytes[0]);
		if (found == 0)
			(void)step_agreed(l, bytes[0]);
		return found == -ENOENT ? 0 : found < 0 ? found : 1;
	}
	uint64_t at = s->match + s->inside;
	size_t n = MIN(len, sizeof(tail));
	n = (size_t)MIN((uint64_t)n, s->tail_end - at);
	int r = log_read(l, at, tail, n);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n; i++) {
		if (bytes[i] != tail[i]) {
			r = find_other(l, bytes[i]);
			if (r == -ENOENT) {
				r = turn_fresh(l);
				return r < 0 ? r : (ssize_t)i;
			}
			if (r < 0)
				return r;
			(void)step_agreed(l, bytes[i]);
			return (ssize_t)i + 1;
		}
		if (step_agreed(l, bytes[i]))
			return (ssize_t)i + 1;
	}
	if (s->match + s->inside < s->tail_end)
		return (ssize_t)n;
	/* The tail's last line was unfinished. It is continued where it stands, or, if new lines
	 * have been appended behind it, written once more as a whole. */
	if (l->log_len > s->tail_end)
		r = turn_fresh(l);
	s->match = s->tail_end;
	s->inside = s->ahead = s->back = 0;
	return r < 0 ? r : (ssize_t)n;
}

/* A new line in the middle of a replay: to its end. */
static ssize_t step_fresh(struct joblog *l, const char *bytes, size_t len)
{
	const char *end = memchr(bytes, '\n', len);
	size_t n = end ? (size_t)(end - bytes) + 1 : len;
	int r = log_append(l, bytes, n);
	if (end)
		l->now.flags &= ~(uint32_t)FLAG_FRESH;
	return r < 0 ? r : (ssize_t)n;
}

static int consume(struct joblog *l, const char *bytes, size_t len)
{
	struct record *s = &l->now;
	while (len > 0) {
		ssize_t n;
		bool through = s->match >= s->tail_end && !s->back && !(s->flags & FLAG_FRESH);
		struct segment seg = { s->offset, cursor_now(l), true };
		if (through && s->tail_end > 0 && l->log_len > s->tail_end) {
			/* New lines came while matching: an unfinished end is not ours to continue. */
			seg.cursor = l->log_len;
		}
		if (s->flags & FLAG_FRESH) {
			seg.grows = false;
			n = step_fresh(l, bytes, len);
		} else if (through) {
			n = log_append(l, bytes, len) < 0 ? -EIO : (ssize_t)len;
			seg.grows = !(s->flags & FLAG_FULL);
		} else {
			if (s->back) /* where it stands is not sure yet: from below */
				seg.grows = false;
			else
				seg.cursor = s->match + s->inside;
			n = step_match(l, bytes, len);
		}
		if (n < 0)
			return (int)n;
		int r = n > 0 ? segment_add(l, s->epoch, &seg) : 0;
		if (r < 0)
			return r;
		s->offset += (uint64_t)n;
		bytes += n;
		len -= (size_t)n;
	}
	return 0;
}

/* ---- the index ---- */

static int index_flush(struct joblog *l)
{
	if (l->idx_out.failed)
		return -ENOMEM;
	size_t at = 0;
	while (at < l->idx_out.len) {
		ssize_t n = pwrite(l->idx_fd, l->idx_out.data + at, l->idx_out.len - at,
				   (off_t)(l->idx_len + at));
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	l->idx_len += l->idx_out.len;
	return 0;
}

/* The index anew with only what still matters. */
static int index_compact(struct joblog *l)
{
	strbuf_clear(&l->idx_out);
	VEC_EACH(&l->epochs, e) {
		VEC_EACH(&e->segments, s) {
			struct record r = { .kind = RECORD_SEGMENT, .epoch = e->epoch, .offset = s->from,
					    .log_len = s->cursor, .flags = s->grows };
			record_emit(l, &r);
		}
		struct record end = { .kind = RECORD_STATE, .epoch = e->epoch, .offset = e->end,
				      .log_len = l->log_len };
		if (e->epoch != l->now.epoch)
			record_emit(l, &end);
	}
	if (l->now.epoch)
		record_emit(l, &l->now);
	if (l->idx_out.failed)
		return -ENOMEM;
	int r = file_write_atomic(l->idx_path, l->idx_out.data ? l->idx_out.data : "",
				  l->idx_out.len, 0600);
	if (r < 0)
		return r;
	int fd = open(l->idx_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	close(l->idx_fd);
	l->idx_fd = fd;
	l->idx_len = l->idx_out.len;
	strbuf_clear(&l->idx_out);
	return 0;
}

static int index_replay(struct joblog *l, const struct record *r)
{
	if (r->kind == RECORD_SEGMENT) {
		struct segment s = { r->offset, r->log_len, r->flags != 0 };
		return segment_add(l, r->epoch, &s);
	}
	struct epoch *e = epoch_find(l, r->epoch);
	if (!e)
		e = epoch_add(l, r->epoch);
	if (!e)
		return -ENOMEM;
	e->end = r->offset;
	if (r->epoch >= l->now.epoch)
		l->now = *r;
	l->log_len = r->log_len;
	return 0;
}

/* Could this record have been written by us? Damage that keeps the checksum is no accident. */
static bool record_is_sane(const struct record *r)
{
	if (r->kind == RECORD_SEGMENT)
		return true;
	return r->kind == RECORD_STATE && r->log_len <= INT64_MAX && r->tail_end <= r->log_len &&
	       r->match <= r->tail_end && r->ahead <= r->match && r->back <= r->match &&
	       (!r->back || r->ahead <= r->back) && r->inside <= r->tail_end - r->match &&
	       r->offset <= INT64_MAX && !(r->flags & ~(uint32_t)(FLAG_FRESH | FLAG_FULL));
}

static int index_load(struct joblog *l)
{
	CLEANUP_FREE char *bytes = NULL;
	size_t len;
	int r = file_read(l->idx_path, 64u << 20, &bytes, &len);
	if (r < 0)
		return r;
	for (size_t at = 0; at + sizeof(struct record) <= len; at += sizeof(struct record)) {
		struct record rec;
		memcpy(&rec, bytes + at, sizeof(rec));
		/* A torn record at the end is what a kill in mid-write leaves: never acknowledged. */
		if (rec.crc != hash_crc32c(0, (const char *)&rec + sizeof(rec.crc),
					   sizeof(rec) - sizeof(rec.crc)) ||
		    !record_is_sane(&rec))
			break;
		r = index_replay(l, &rec);
		if (r < 0)
			return r;
		l->idx_len = at + sizeof(rec);
	}
	strbuf_clear(&l->idx_out); /* segment_add() wrote what is there already */
	return 0;
}

int joblog_open(const char *dir, const char *name, uint64_t size_max, struct joblog **ret,
		struct diag *diag)
{
	char path[4096], idx_path[4096];
	struct stat st;
	if (!name_is_plain(name) || path_format(path, sizeof(path), "%s/%s.log", dir, name) < 0 ||
	    path_format(idx_path, sizeof(idx_path), "%s/%s.idx", dir, name) < 0)
		return diag_set(diag, -EINVAL, dir, "\"%.80s\" is no name for a log", name);
	struct joblog *l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->size_max = size_max;
	l->idx_path = strdup(idx_path);
	l->idx_fd = open(idx_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	l->log_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	int r = !l->idx_path ? -ENOMEM : l->idx_fd < 0 || l->log_fd < 0 ? -errno : index_load(l);
	if (r == 0 && fstat(l->log_fd, &st) < 0)
		r = -errno;
	if (r == 0 && (uint64_t)st.st_size < l->log_len) {
		/* Power failed before a sync: the log is shorter than the index believes. */
		l->log_len = (uint64_t)st.st_size;
		l->now.log_len = l->log_len;
		l->now.tail_end = MIN(l->now.tail_end, l->log_len);
		l->now.match = MIN(l->now.match - l->now.ahead, l->now.tail_end);
		l->now.inside = l->now.ahead = 0;
	} else if (r == 0 && (uint64_t)st.st_size > l->log_len) {
		r = ftruncate(l->log_fd, (off_t)l->log_len) < 0 ? -errno : 0;
	}
	if (r < 0) {
		joblog_close(l);
		return diag_set(diag, r, path, "the log cannot be opened: %s", strerror(-r));
	}
	*ret = l;
	return 0;
}

void joblog_close(struct joblog *l)
{
	if (!l)
		return;
	if (l->log_fd >= 0)
		close(l->log_fd);
	if (l->idx_fd >= 0)
		close(l->idx_fd);
	while (l->epochs.count)
		epoch_drop(l, l->epochs.count - 1);
	VEC_DONE(&l->epochs);
	strbuf_done(&l->idx_out);
	free(l->idx_path);
	free(l);
}

int joblog_remove(const char *dir, const char *name)
{
	static const char *const suffixes[] = { "log", "idx" };
	char path[4096];
	if (!name_is_plain(name))
		return -EINVAL;
	for (size_t i = 0; i < ARRAY_SIZE(suffixes); i++) {
		int r = path_format(path, sizeof(path), "%s/%s.%s", dir, name, suffixes[i]);
		if (r < 0)
			return r;
		if (unlink(path) < 0 && errno != ENOENT)
			return -errno;
	}
	return 0;
}

/* Back to before the call: memory must not run ahead of what the index says. */
static void undo(struct joblog *l, const struct record *before)
{
	l->now = *before;
	l->log_len = before->log_len;
	strbuf_clear(&l->idx_out);
	l->idx_out.failed = false;
}

int joblog_output(struct joblog *l, uint64_t epoch, uint64_t replay_from, uint64_t offset,
		  const char *bytes, size_t len, uint64_t *ret_stored)
{
	if (epoch < l->now.epoch) {
		*ret_stored = offset + len;
		return 0;
	}
	struct record before = l->now;
	before.log_len = l->log_len;
	if (epoch > l->now.epoch) {
		uint64_t from = MIN(replay_from, l->log_len);
		l->now = (struct record){ .kind = RECORD_STATE, .epoch = epoch, .match = from,
					  .tail_end = l->log_len, .flags = l->now.flags & FLAG_FULL };
	}
	struct record *s = &l->now;
	if (offset > s->offset || offset + len <= s->offset) { /* a gap, or nothing new */
		*ret_stored = s->offset;
		if (epoch > before.epoch && offset > 0)
			l->now = before; /* not begun */
		return 0;
	}
	size_t skip = (size_t)(s->offset - offset);
	int r = consume(l, bytes + skip, len - skip);
	if (r == 0) {
		struct epoch *e = epoch_find(l, epoch);
		if (!e)
			e = epoch_add(l, epoch);
		s->log_len = l->log_len;
		POINT("coordinator.output.before_index");
		record_emit(l, s);
		r = e ? index_flush(l) : -ENOMEM;
		if (r == 0)
			e->end = s->offset;
	}
	if (r < 0) {
		undo(l, &before);
		*ret_stored = before.epoch == epoch ? before.offset : 0;
		return r;
	}
	strbuf_clear(&l->idx_out);
	l->dirty = true;
	*ret_stored = s->offset;
	if (l->idx_len > INDEX_COMPACT_SIZE)
		(void)index_compact(l); /* it stays long; the next call tries again */
	return 0;
}

uint64_t joblog_length(const struct joblog *l)
{
	return l->log_len;
}

int joblog_fd(const struct joblog *l)
{
	return l->log_fd;
}

int joblog_sync(struct joblog *l)
{
	if (!l->dirty)
		return 0;
	if (fdatasync(l->log_fd) < 0 || fdatasync(l->idx_fd) < 0)
		return -errno;
	l->dirty = false;
	return 0;
}
