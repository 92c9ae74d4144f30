/* SPDX-License-Identifier: Apache-2.0 */
#include "transfer/data_links.h"

#include <string.h>
#include <unistd.h>

#include "base/check.h"

void data_links_init(struct data_links *d, const struct data_links_params *p)
{
	memset(d, 0, sizeof(*d));
	d->p = *p;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->changed, NULL);
}

void data_links_done(struct data_links *d)
{
	pthread_cond_destroy(&d->changed);
	pthread_mutex_destroy(&d->lock);
}

void data_links_set_ready(struct data_links *d)
{
	pthread_mutex_lock(&d->lock);
	d->ready = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
}

int data_links_enter(struct data_links *d, struct link *l, bool if_ready)
{
	int slot = 0;

	pthread_mutex_lock(&d->lock);
	while (slot < TRANSFER_STREAMS_MAX && d->links[slot])
		slot++;
	if (d->over || (if_ready && !d->ready) || slot == TRANSFER_STREAMS_MAX) {
		slot = -1;
	} else {
		d->links[slot] = l;
		d->attached++;
	}
	pthread_mutex_unlock(&d->lock);
	return slot;
}

void data_links_leave(struct data_links *d, int slot)
{
	pthread_mutex_lock(&d->lock);
	d->links[slot] = NULL;
	d->attached--;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);
}

void data_links_fail(struct data_links *d, int err, const struct diag *diag)
{
	uint64_t one = 1;

	pthread_mutex_lock(&d->lock);
	if (!d->error && !d->over) {
		d->error = err;
		d->error_diag = *diag;
	}
	pthread_mutex_unlock(&d->lock);
	if (d->p.wake_fd >= 0)
		(void)!write(d->p.wake_fd, &one, sizeof(one)); /* full = already awake */
}

int data_links_error(struct data_links *d, struct diag *diag)
{
	int error;

	pthread_mutex_lock(&d->lock);
	error = d->error;
	if (error && diag)
		*diag = d->error_diag;
	pthread_mutex_unlock(&d->lock);
	return error;
}

static void *open_main(void *arg)
{
	struct data_link_opener *o = arg;
	struct data_links *d = o->d;
	struct link *l = NULL;
	struct diag diag = DIAG_INIT;
	int r = d->p.open(d->p.open_arg, o->stream, &l, &diag);

	if (r == 0) {
		d->p.serve(d->p.serve_arg, l);
		link_free(l);
	} else {
		data_links_fail(d, r, &diag);
	}
	return NULL;
}

unsigned data_links_open(struct data_links *d, unsigned count)
{
	unsigned begun = 0;

	for (; d->p.open && begun < count && d->thread_count < TRANSFER_STREAMS_MAX; begun++) {
		struct data_link_opener *o = &d->openers[d->thread_count];

		*o = (struct data_link_opener){ d, d->thread_count + 1 };
		if (pthread_create(&d->threads[d->thread_count], NULL, open_main, o) != 0)
			break;
		d->thread_count++;
	}
	return begun;
}

void data_links_end(struct data_links *d, bool cut)
{
	pthread_mutex_lock(&d->lock);
	d->over = true;
	pthread_cond_broadcast(&d->changed);
	for (unsigned i = 0; cut && i < TRANSFER_STREAMS_MAX; i++)
		if (d->links[i])
			link_shutdown(d->links[i]);
	while (d->attached)
		pthread_cond_wait(&d->changed, &d->lock);
	pthread_mutex_unlock(&d->lock);
	for (; d->thread_count; d->thread_count--)
		pthread_join(d->threads[d->thread_count - 1], NULL);
}
