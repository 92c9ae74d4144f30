/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/pacer.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>

#include "base/check.h"
#include "base/clock.h"
#include "transfer/scavenger.h"

#define MEASURE_NS (500 * NS_PER_MS)
#define PATH_NS (50 * NS_PER_MS)
#define BACKLOG_MIN 65536
#define RATE_NONE UINT64_MAX

struct pacer {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	bool stop;
	enum traffic_class traffic_class;
	uint64_t floor_bps, rate_max_bps, granted_bps;
	uint32_t mark_tag;
	struct link *links[TRANSFER_STREAMS_MAX];
	unsigned count;
	struct scavenger scavenger;
	uint64_t acked_gone; /* by connections that are closed */
	uint64_t acked_last, acked_ns, measured_bps;
	uint32_t rtt_us, queue_us, base_us;
	uint64_t path_acked, path_ns, path_seq, path_bps;
	bool path_backlog;
};

/* A deadline move has its floor whatever happens; above it, it yields like everything of ours. */
static bool yields(const struct pacer *p)
{
	return p->traffic_class == TRAFFIC_SCAVENGER || (p->floor_bps && !p->rate_max_bps);
}

/* A floor must not give way to loss that others cause, so its connections hold the paced rate;
 * what has no floor yields inside TCP too, where the kernel can. */
static void cc_apply(const struct pacer *p, struct link *l)
{
	enum link_cc cc = p->floor_bps || (p->rate_max_bps && p->traffic_class != TRAFFIC_SCAVENGER) ?
				  LINK_CC_HOLD :
			  p->traffic_class == TRAFFIC_SCAVENGER ? LINK_CC_YIELD : LINK_CC_DEFAULT;

	(void)link_set_cc(l, cc); /* without it the pacing below does what it can */
}

static void apply(struct pacer *p)
{
	uint64_t each = p->granted_bps == RATE_NONE ? UINT64_MAX :
						     p->granted_bps / 8 / MAX(p->count, 1u);

	for (unsigned i = 0; i < p->count; i++)
		(void)setsockopt(link_fd(p->links[i]), SOL_SOCKET, SO_MAX_PACING_RATE, &each,
				 sizeof(each)); /* known since Linux 3.13 */
}

static void decide(struct pacer *p)
{
	if (yields(p)) {
		scavenger_init(&p->scavenger, p->floor_bps, p->rate_max_bps, clock_boot_ns());
		p->granted_bps = p->scavenger.rate_bps;
	} else {
		p->granted_bps = p->rate_max_bps ? p->rate_max_bps : RATE_NONE;
	}
	for (unsigned i = 0; i < p->count; i++)
		cc_apply(p, p->links[i]);
	apply(p);
}

static void sample(struct pacer *p, uint64_t now)
{
	struct scavenger_sample x = { 0 };
	uint64_t acked = p->acked_gone;
	bool backlog = false;

	for (unsigned i = 0; i < p->count; i++) {
		struct tcp_info t;
		socklen_t len = sizeof(t);

		memset(&t, 0, sizeof(t));
		if (getsockopt(link_fd(p->links[i]), IPPROTO_TCP, TCP_INFO, &t, &len) < 0)
			continue;
		acked += t.tcpi_bytes_acked;
		backlog |= t.tcpi_notsent_bytes > BACKLOG_MIN;
		scavenger_sample_add(&x, t.tcpi_rtt, t.tcpi_rttvar, t.tcpi_min_rtt,
				     t.tcpi_total_retrans, t.tcpi_last_data_sent);
	}
	if (now - p->path_ns >= PATH_NS) {
		if (p->path_ns && acked > p->path_acked && p->count) {
			p->path_bps = (acked - p->path_acked) * 8 * NS_PER_S / (now - p->path_ns);
			p->path_backlog = backlog;
			p->path_seq++;
		}
		p->path_acked = acked;
		p->path_ns = now;
	}
	if (now - p->acked_ns >= MEASURE_NS) {
		p->measured_bps = p->acked_ns && acked > p->acked_last ?
					  (acked - p->acked_last) * 8 * NS_PER_S / (now - p->acked_ns) : 0;
		p->acked_last = acked;
		p->acked_ns = now;
	}
	if (p->count == 0 || x.rtt_us == 0)
		return;
	if (x.min_rtt_us && (!p->base_us || x.min_rtt_us < p->base_us))
		p->base_us = x.min_rtt_us;
	p->rtt_us = x.rtt_us;
	p->queue_us = x.rtt_us > p->base_us ? x.rtt_us - p->base_us : 0;
	if (!yields(p))
		return;
	x.min_rtt_us = p->base_us;
	x.delivered_bps = p->measured_bps;
	p->granted_bps = scavenger_update(&p->scavenger, &x, now);
	apply(p);
}

static void *pacer_main(void *arg)
{
	struct pacer *p = arg;

	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		uint64_t now = clock_boot_ns(), ms;
		struct timespec at;

		sample(p, now);
		/* The monotonic clock of the condition: only how long to wait. */
		ms = yields(p) && p->count ? SCAVENGER_SAMPLE_MS : PATH_NS / NS_PER_MS;
		clock_gettime(CLOCK_MONOTONIC, &at);
		at.tv_nsec += (long)(ms * NS_PER_MS);
		at.tv_sec += at.tv_nsec / (long)NS_PER_S;
		at.tv_nsec %= (long)NS_PER_S;
		pthread_cond_timedwait(&p->wake, &p->lock, &at);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

int pacer_new(enum traffic_class c, uint64_t floor_bps, uint64_t rate_max_bps, uint32_t mark_tag,
	      struct pacer **ret)
{
	struct pacer *p = calloc(1, sizeof(*p));
	pthread_condattr_t attr;

	if (!p)
		return -ENOMEM;
	pthread_mutex_init(&p->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&p->wake, &attr);
	pthread_condattr_destroy(&attr);
	p->traffic_class = c;
	p->floor_bps = floor_bps;
	p->rate_max_bps = rate_max_bps;
	p->mark_tag = mark_tag;
	decide(p);
	if (pthread_create(&p->thread, NULL, pacer_main, p) != 0) {
		free(p);
		return -EAGAIN;
	}
	*ret = p;
	return 0;
}

void pacer_free(struct pacer *p)
{
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->thread, NULL);
	pthread_cond_destroy(&p->wake);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

void pacer_add(struct pacer *p, struct link *l)
{
	pthread_mutex_lock(&p->lock);
	if (p->count < TRANSFER_STREAMS_MAX)
		p->links[p->count++] = l;
	link_set_class(l, p->traffic_class, p->mark_tag);
	cc_apply(p, l);
	apply(p);
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

void pacer_remove(struct pacer *p, struct link *l)
{
	pthread_mutex_lock(&p->lock);
	for (unsigned i = 0; i < p->count; i++) {
		struct tcp_info t;
		socklen_t len = sizeof(t);

		if (p->links[i] != l)
			continue;
		memset(&t, 0, sizeof(t));
		if (getsockopt(link_fd(l), IPPROTO_TCP, TCP_INFO, &t, &len) == 0)
			p->acked_gone += t.tcpi_bytes_acked;
		p->links[i] = p->links[--p->count];
		break;
	}
	apply(p);
	pthread_mutex_unlock(&p->lock);
}

void pacer_set_rate(struct pacer *p, uint64_t floor_bps, uint64_t rate_max_bps)
{
	pthread_mutex_lock(&p->lock);
	bool yielded = yields(p);

	p->floor_bps = floor_bps;
	p->rate_max_bps = rate_max_bps;
	if (yielded && yields(p)) {
		p->scavenger.floor_bps = floor_bps; /* what it learnt about the path stays */
		p->scavenger.max_bps = rate_max_bps ? rate_max_bps : UINT64_MAX / 2;
		for (unsigned i = 0; i < p->count; i++)
			cc_apply(p, p->links[i]);
	} else {
		decide(p);
	}
	pthread_mutex_unlock(&p->lock);
}

void pacer_set_class(struct pacer *p, enum traffic_class c)
{
	pthread_mutex_lock(&p->lock);
	p->traffic_class = c;
	for (unsigned i = 0; i < p->count; i++)
		link_set_class(p->links[i], c, p->mark_tag);
	decide(p);
	pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}

void pacer_state(struct pacer *p, struct pacer_state *ret)
{
	pthread_mutex_lock(&p->lock);
	ret->granted_bps = p->granted_bps;
	ret->measured_bps = p->measured_bps;
	ret->rtt_us = p->rtt_us;
	ret->queue_us = p->queue_us;
	ret->path_seq = p->path_seq;
	ret->path_bps = p->path_bps;
	ret->path_backlog = p->path_backlog;
	pthread_mutex_unlock(&p->lock);
}
