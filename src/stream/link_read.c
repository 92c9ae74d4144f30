/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What comes in on a link: read into a block, the payload of a long message
 * straight into its own memory, and taken apart into frames.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "stream/node_internal.h"

static bool make_room(struct link *l, uint32_t need)
{
	struct block *b = l->block;
	uint32_t have = l->wr - l->rd;

	if (b && b->refs == 1 && l->rd == l->wr) {
		l->rd = l->wr = 0;
		have = 0;
	}
	if (b && b->cap - l->wr >= need)
		return true;
	struct block *fresh = block_new(l->node, MAX(need + have, (uint32_t)BLOCK_SIZE));
	if (!fresh)
		return false;
	if (b) {
		memcpy(fresh->data, b->data + l->rd, have);
		block_unref(l->node, b);
	}
	l->block = fresh;
	l->rd = 0;
	l->wr = have;
	return true;
}

static void direct_finish(struct link *l)
{
	if (l->direct_drop) {
		free(l->direct_at);
		l->direct_drop = false;
	} else if (l->direct) {
		in_frag_done(l, l->direct);
	}
	l->direct = NULL;
	l->direct_at = NULL;
}

/* The payload of a FRAG: what is here is copied, the rest is read in place. */
static int frag(struct link *l, const struct stream_frame *f, uint32_t payload)
{
	struct in *in = f->handle < l->ins.count ? l->ins.data[f->handle] : NULL;
	uint32_t here = MIN(payload, l->wr - l->rd);
	uint8_t *at = NULL;

	if (in && in->link == l) {
		int r = in_frag(l, in, f, payload, &at);

		if (r < 0)
			return r;
	}
	if (!at) {
		/* Nobody wants it: read past it. */
		l->direct_drop = true;
		l->direct_at = malloc(payload);
		if (!l->direct_at)
			return -ENOMEM;
		l->rd += here;
		l->direct_left = payload - here;
		if (!l->direct_left)
			direct_finish(l);
		return 0;
	}
	memcpy(at, l->block->data + l->rd, here);
	l->rd += here;
	l->direct = in;
	l->direct_at = at + here;
	l->direct_left = payload - here;
	if (!l->direct_left)
		direct_finish(l);
	return 0;
}

/* Takes whole frames from the block; < 0: the peer broke the protocol. */
static int parse(struct link *l)
{
	while (!l->dead && !l->direct_left && l->rd < l->wr) {
		const uint8_t *p = l->block->data + l->rd;
		struct stream_frame f;
		uint32_t payload = 0;
		/* What is no good RUN goes the long way, and is refused there. */
		int used = stream_run_decode(p, l->wr - l->rd, &f, &payload) ?
				   STREAM_RUN_HEAD :
				   stream_frame_decode(p, l->wr - l->rd, &f, &payload);

		if (used < 0)
			return used;
		if (used == 0)
			return make_room(l, STREAM_SMALL_MAX + STREAM_FRAME_HEAD) ? 0 : -ENOMEM;
		if (l->incoming && !l->greeted && f.type != STREAM_FRAME_HELLO)
			return -EBADMSG;
		if (f.type == STREAM_FRAME_FRAG) {
			l->rd += (uint32_t)used;
			int r = frag(l, &f, payload);

			if (r < 0)
				return r;
			continue;
		}
		if (payload > l->wr - l->rd - (uint32_t)used)
			/* All of a RUN must lie together. */
			return make_room(l, (uint32_t)used + payload - (l->wr - l->rd)) ? 0 : -ENOMEM;
		l->rd += (uint32_t)used + payload;
		p += used;
		if (f.type == STREAM_FRAME_RUN) {
			struct in *in = f.handle < l->ins.count ? l->ins.data[f.handle] : NULL;

			if (in && in->link == l)
				in_run(l, in, &f, p, payload);
			else
				l->node->stats.stale_refused += f.count;
		} else if (f.type == STREAM_FRAME_STATE) {
			int r = move_state_bytes(l, &f, p, payload);

			if (r < 0)
				return r;
		} else {
			link_frame(l, &f);
		}
	}
	return 0;
}

static ssize_t read_some(struct link *l, size_t *ret_asked)
{
	struct iovec iov[2];
	int count = 0;
	size_t spare = l->block->cap - l->wr;

	if (l->direct_left) {
		iov[count++] = (struct iovec){ l->direct_at, l->direct_left };
		/* Room for the next heads only: their payload again goes in place. */
		spare = MIN(spare, (size_t)4096);
	}
	iov[count++] = (struct iovec){ l->block->data + l->wr, spare };
	*ret_asked = iov[0].iov_len + (count > 1 ? iov[1].iov_len : 0);
	if (l->tls) {
		*ret_asked = iov[0].iov_len;
		return tls_read(l, iov[0].iov_base, iov[0].iov_len);
	}
	struct msghdr m = { .msg_iov = iov, .msg_iovlen = (size_t)count };
	ssize_t n = count == 1 ? recv(l->fd, iov[0].iov_base, iov[0].iov_len, MSG_DONTWAIT) :
				 recvmsg(l->fd, &m, MSG_DONTWAIT);

	return n < 0 ? -errno : n;
}

/* Bytes that were read in: where they belong, and what they say. False: closed. */
static bool took(struct link *l, size_t got)
{
	size_t direct = MIN(got, (size_t)l->direct_left);

	l->last_in_ns = l->node->now_ns;
	l->node->hot = l;
	if (direct) {
		l->direct_left -= (uint32_t)direct;
		if (!l->direct_drop) /* else it is overwritten from its start */
			l->direct_at += direct;
		if (!l->direct_left)
			direct_finish(l);
	}
	l->wr += (uint32_t)(got - direct);
	link_expect(l, false);
	if (parse(l) < 0) {
		link_close(l, "peer broke the protocol");
		return false;
	}
	return !l->dead;
}

static bool room_to_read(struct link *l)
{
	if (l->block && (l->block->refs > 1 || l->rd != l->wr) && l->block->cap - l->wr >= 4096)
		return true;
	if (make_room(l, l->direct_left ? 4096 : 32 << 10))
		return true;
	link_close(l, "no memory");
	return false;
}

/*
 * Sleeps in recv itself, one system call instead of two, when all the news
 * lately came by this link. For at most 2 ms (SO_RCVTIMEO), since it hears of
 * nothing else meanwhile; the helper thread looks after the rest.
 */
bool link_sleep(struct link *l)
{
	struct reclaim_node *n = l->node;
	struct timeval tv = { 0, 2000 };

	if (l->tls || l->direct_left || l->reading || l->dead || !room_to_read(l))
		return false;
	if (!l->timeout_set) {
		if (setsockopt(l->fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof(tv)) < 0)
			return false;
		l->timeout_set = true;
	}
	if (n->unwatched != l && !l->want_out) {
		/* Every packet would wake the epoll set as well, which nobody waits for. */
		link_watch_again(n);
		(void)epoll_ctl(n->epoll_fd, EPOLL_CTL_DEL, l->fd, NULL);
		n->unwatched = l;
	}
	uint8_t *at = l->block->data + l->wr;
	size_t room = l->block->cap - l->wr;

	l->reading = true;
	pthread_mutex_unlock(&n->lock);
	ssize_t k = recv(l->fd, at, room, 0);
	int err = errno;
	node_lock(n);
	l->reading = false;
	node_now(n);
	if (l->dead)
		return true;
	if (k > 0)
		(void)took(l, (size_t)k);
	else if (k == 0 || (err != EAGAIN && err != EINTR))
		link_close(l, "peer closed");
	else
		n->hot = NULL; /* silent: sleep where everything is heard */
	return true;
}

void link_read(struct link *l)
{
	size_t budget = 1 << 20; /* then the other links have their turn */

	while (!l->dead && !l->reading && (budget > 0 || tls_buffered(l))) {
		size_t asked;

		if (!room_to_read(l))
			return;
		ssize_t n = read_some(l, &asked);

		if (n == -EAGAIN || n == -EINTR)
			return;
		if (n <= 0) {
			link_close(l, n == 0 ? "peer closed" : "broken while reading");
			return;
		}
		if (!took(l, (size_t)n))
			return;
		budget -= MIN(budget, (size_t)n);
		if ((size_t)n < asked && !tls_buffered(l))
			return; /* the socket is empty */
	}
}
