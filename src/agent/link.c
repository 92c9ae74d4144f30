/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The coordinator's end of the agent. On each new connection `hello` says all
 * that holds here; from then on changes. `status` asks for leases, counted from
 * when it was sent. Nothing in here is needed to serve the owner.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "agent/agent_internal.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/point.h"

bool link_is_up(const struct agent *a)
{
	return a->link && a->welcomed && control_client_is_up(a->link);
}

int link_send(struct agent *a, struct control_message *m)
{
	if (!a->link || !control_client_is_up(a->link))
		return -ENOTCONN;
	CLEANUP_JSON json_t *json = control_encode(m);
	return json ? control_client_send(a->link, json) : -ENOMEM;
}

void guest_report(const struct guest *g, struct control_job_report *ret)
{
	uint64_t ran = guest_ran_ms(g);
	uint64_t at_image = g->image.digest[0] ? g->image.ran_ns / NS_PER_MS : 0;
	*ret = (struct control_job_report){
		.job = (char *)g->job,
		.epoch = g->epoch,
		.state = guest_state(g),
		.slot = g->start.start.slots_count ? g->start.start.slots[0] : NULL,
		.ran_ms = ran,
		.image = g->image.digest[0] && g->image.epoch == g->epoch ? (char *)g->image.digest : NULL,
		.image_seq = g->image.seq,
		.image_output = g->image.output_offset,
		.image_commit = (char *)g->image.commit,
		.unsaved_ms = ran > at_image ? ran - at_image : 0,
		.image_bytes = g->image.bytes,
		.save_ms = g->save_ms,
		.delta_bytes = g->delta_bytes,
		.output_offset = output_size(g),
	};
}

static struct control_job_report *reports(struct agent *a, size_t *ret_count)
{
	struct control_job_report *r = calloc(a->guests_count + 1, sizeof(*r));
	*ret_count = 0;
	for (struct guest *g = a->guests; g && r; g = g->next)
		guest_report(g, &r[(*ret_count)++]);
	return r;
}

void link_send_owner(struct agent *a, bool cancelled)
{
	struct owner *o = &a->owner;
	struct control_message m = {
		.type = CONTROL_OWNER,
		.owner = {
			.state = o->state,
			.paused = o->paused,
			.mode = o->mode,
			.notice_id = o->notice_id[0] ? o->notice_id : NULL,
			.reason = o->reason[0] ? o->reason : NULL,
			.cancelled = cancelled,
			.remaining_ms = owner_remaining_ns(a) / NS_PER_MS,
			.window_ms = o->window_ns / NS_PER_MS,
			.waited_ms = o->freed_ns ? (o->freed_ns - o->asked_ns) / NS_PER_MS : 0,
			.pids_left = o->pids_left,
			.last_guest_packet_us = o->last_packet_us,
		},
	};
	m.owner.jobs = reports(a, &m.owner.jobs_count);
	(void)link_send(a, &m); /* when the link is down, the next hello says it */
	free(m.owner.jobs);
}

void link_send_job(struct guest *g)
{
	struct control_message m = {
		.type = CONTROL_JOB,
		.job = {
			.job = g->job,
			.epoch = g->epoch,
			.state = guest_state(g),
			.ran_ms = guest_ran_ms(g),
			.cpu_ms = g->cpu_ms,
			.acked = g->acked,
			.rung = g->rung[0] ? g->rung : NULL,
			.driver = g->driver[0] ? g->driver : NULL,
			.output_offset = output_size(g),
		},
	};
	if (guest_state(g) == CONTROL_JOB_ENDED) {
		m.job.end = g->end;
		m.job.status = g->end_status;
		m.job.reason = g->end_reason;
		m.job.results_bytes = g->results_bytes;
	}
	(void)link_send(g->agent, &m); /* when the link is down, the next hello says it */
}

/* ---- hello and status ---- */

static struct control_slot *slots_of(struct agent *a, size_t *ret_count)
{
	struct control_slot *s = calloc(a->terms.slots_count + 1, sizeof(*s));
	*ret_count = 0;
	for (size_t i = 0; s && i < a->terms.slots_count; i++) {
		const struct terms_slot *t = &a->terms.slots[i];
		const struct nvml_gpu *gpu = gpu_of_slot(a, i);
		if (t->kind == TERMS_SLOT_GPU && !gpu)
			continue; /* nothing there that could be lent */
		s[(*ret_count)++] = (struct control_slot){
			.name = t->name,
			.gpu = gpu != NULL,
			.gpu_type = gpu ? (char *)gpu->name : NULL,
			.gpu_memory = gpu ? gpu->memory_total : 0,
			.cores_milli = (uint64_t)(t->cores * 1000 + 0.5),
			.memory = t->memory ? t->memory
					    : (a->terms.caps.memory / (a->terms.slots_count ? a->terms.slots_count : 1)),
		};
	}
	return s;
}

json_t *link_image_meta(struct agent *a, const char *job, const char *digest)
{
	struct image_info info;
	CLEANUP_FREE char *meta = NULL;
	if (image_show(a->images, job, digest, &info, &meta, NULL) < 0 || !meta)
		return NULL;
	return json_loads(meta, 0, NULL);
}

uint64_t link_image_output(const json_t *meta, char ret_commit[CONTROL_COMMIT_MAX + 1])
{
	const char *commit = json_string_value(json_object_get(meta, "commit"));
	(void)snprintf(ret_commit, CONTROL_COMMIT_MAX + 1, "%s", commit ? commit : "");
	json_int_t offset = json_integer_value(json_object_get(meta, "output_offset"));
	return offset > 0 ? (uint64_t)offset : 0;
}

static struct control_image *images_of(struct agent *a, size_t *ret_count)
{
	struct image_info *list = NULL;
	size_t n = 0;
	*ret_count = 0;
	if (image_list(a->images, NULL, &list, &n, NULL) < 0)
		return NULL;
	/* The newest come first within a job; more than the bound means old ones to prune. */
	if (n > CONTROL_IMAGES_MAX)
		n = CONTROL_IMAGES_MAX;
	struct control_image *out = calloc(n + 1, sizeof(*out));
	for (size_t i = 0; out && i < n; i++) {
		char commit[CONTROL_COMMIT_MAX + 1];
		CLEANUP_JSON json_t *meta = link_image_meta(a, list[i].job, list[i].digest);
		uint64_t offset = link_image_output(meta, commit);
		out[i] = (struct control_image){ strdup(list[i].job), list[i].epoch, list[i].seq,
						 strdup(list[i].digest), list[i].bytes, offset,
						 strdup(commit) };
	}
	*ret_count = out ? n : 0;
	free(list);
	return out;
}

static uint64_t disk_left(struct agent *a)
{
	uint64_t used = 0, free_bytes = 0;
	if (image_store_usage(a->images, &used, &free_bytes, NULL) < 0)
		return 0;
	uint64_t left = free_bytes > a->config.disk_reserve ? free_bytes - a->config.disk_reserve : 0;
	uint64_t cap = a->terms.shadow.disk ? a->terms.shadow.disk : a->terms.caps.disk;
	if (cap)
		left = MIN(left, cap > used ? cap - used : 0);
	return left;
}

static int utc_offset_now(void)
{
	time_t t = time(NULL);
	struct tm local;
	return localtime_r(&t, &local) ? (int)local.tm_gmtoff : 0;
}

static void send_hello(struct agent *a)
{
	struct utsname u = { .machine = "" };
	(void)uname(&u);
	char libc[64] = "";
#ifdef __GLIBC__
	(void)snprintf(libc, sizeof(libc), "glibc %s", gnu_get_libc_version());
#endif
	struct owner *o = &a->owner;
	struct control_message m = {
		.type = CONTROL_HELLO,
		.hello = {
			.node = a->node,
			.boot_id = a->boot_id,
			.agent_starts = a->starts,
			.version = (char *)RECLAIM_VERSION,
			.host = a->config.host,
			.transfer_port = a->transfer_port,
			.gang_port = gang_port(a),
			.arch = u.machine,
			.libc = libc,
			.building = a->config.building,
			.room = a->config.room,
			.window_ms = a->terms.window_ns / NS_PER_MS,
			.idle_ms = trigger_idle_ns(a) / NS_PER_MS,
			.shadow_keep = a->terms.shadow.keep,
			.shadow_owned = a->terms.shadow.owned,
			.disk_free = disk_left(a),
			.uplink_bps = a->config.edge.uplink_rate,
			.users = a->terms.who.users,
			.users_count = a->terms.who.users_count,
			.groups = a->terms.who.groups,
			.groups_count = a->terms.who.groups_count,
			.deny = a->terms.who.deny,
			.deny_count = a->terms.who.deny_count,
			.utc_offset_s = utc_offset_now(),
			.owner_state = o->state,
			.paused = o->paused,
			.remaining_ms = owner_remaining_ns(a) / NS_PER_MS,
			.notice_id = o->notice_id[0] ? o->notice_id : NULL,
			.mode = o->mode,
		},
	};
	struct control_hello *h = &m.hello;
	char *lacks[1] = { a->edge_missing };
	if (a->edge_missing[0]) {
		h->lacks = lacks;
		h->lacks_count = 1;
		if (strlen(a->edge_missing) > CONTROL_NAME_MAX)
			lacks[0] = (char *)"edge";
	}
	h->slots = slots_of(a, &h->slots_count);
	h->jobs = reports(a, &h->jobs_count);
	h->images = images_of(a, &h->images_count);
	int r = link_send(a, &m);
	if (r < 0)
		log_warn("hello: %s", strerror(-r));
	for (size_t i = 0; i < h->images_count; i++) {
		free(h->images[i].job);
		free(h->images[i].image);
		free(h->images[i].commit);
	}
	free(h->images);
	free(h->slots);
	free(h->jobs);
}

static void send_status(struct agent *a)
{
	struct control_message m = {
		.type = CONTROL_STATUS,
		.status = {
			.seq = ++a->status_seq,
			.owner_state = a->owner.state,
			.paused = a->owner.paused,
			.idle_ms = trigger_idle_ns(a) / NS_PER_MS,
			.remaining_ms = owner_remaining_ns(a) / NS_PER_MS,
			.disk_free = disk_left(a),
			.floor_bps = a->edge ? edge_floor_get(a->edge) : 0,
		},
	};
	m.status.jobs = reports(a, &m.status.jobs_count);
	size_t i = a->status_seq % ARRAY_SIZE(a->asked);
	a->asked[i].seq = a->status_seq;
	/* Before the send: a lease counts from here, whatever the way takes. */
	a->asked[i].sent_ns = clock_boot_ns();
	(void)link_send(a, &m);
	free(m.status.jobs);
}

static void on_status_timer(void *user)
{
	struct agent *a = user;
	if (link_is_up(a))
		send_status(a);
	for (struct guest *g = a->guests; g; g = g->next) {
		output_pump(g);
		guest_watch_quiet(g);
	}
	(void)loop_timer_in(&a->status_timer, a->status_every_ns);
}

/* ---- what the coordinator says ---- */

static void on_welcome(struct agent *a, const struct control_welcome *w)
{
	a->lease_ns = w->lease_ms * NS_PER_MS;
	a->status_every_ns = MAX(w->status_every_ms, (uint64_t)50) * NS_PER_MS;
	a->floor_cap_bps = w->floor_cap_bps;
	a->welcomed = true;
	log_info("coordinator: welcome from %s, lease %llu ms", w->coordinator ? w->coordinator : "?",
		 (unsigned long long)w->lease_ms);
	const struct control_rates rates = { .floor_cap_bps = w->floor_cap_bps, .stop_all = w->stop_all };
	guest_rates(a, &rates);
	send_status(a);
	output_tails_tell(a);
	output_rewind(a);
	for (struct guest *g = a->guests; g; g = g->next) {
		guest_tell_end(g);
		if (g->image.digest[0] && g->image.epoch == g->epoch && !g->image.durable)
			guest_move_consider(g);
	}
	(void)loop_timer_in(&a->status_timer, a->status_every_ns);
	owner_notify(a);
}

static void on_lease(struct agent *a, const struct control_lease *l)
{
	size_t slot = l->seq % ARRAY_SIZE(a->asked);
	if (a->asked[slot].seq != l->seq || l->seq == 0)
		return; /* an answer to a status too old to remember gives no lease */
	uint64_t sent = a->asked[slot].sent_ns;
	for (size_t i = 0; i < l->leases_count; i++) {
		struct guest *g = guest_find(a, l->leases[i].job, l->leases[i].epoch);
		if (!g)
			continue;
		if (l->leases[i].remaining_ms == 0)
			guest_kill(g, CONTROL_END_KILLED, "this incarnation is over");
		else
			guest_lease(g, sent + l->leases[i].remaining_ms * NS_PER_MS);
	}
}

static void on_message(void *user, json_t *json)
{
	struct agent *a = user;
	struct control_message m;
	struct diag diag = DIAG_INIT;
	if (control_decode(json, &m, &diag) < 0) {
		log_warn("coordinator: %s: %s; message dropped", diag.where, diag.what);
		return;
	}
	struct guest *g = NULL;
	switch (m.type) {
	case CONTROL_WELCOME:
		on_welcome(a, &m.welcome);
		break;
	case CONTROL_LEASE:
		on_lease(a, &m.lease);
		break;
	case CONTROL_START:
		POINT("agent.start.received");
		(void)guest_start(a, &m); /* takes the message; failures are reported as an end */
		break;
	case CONTROL_STOP:
		guest_stop(a, &m.stop);
		break;
	case CONTROL_MOVE:
		g = guest_find(a, m.move.job, m.move.epoch);
		if (g && m.move.use == CONTROL_MOVE_STAGE)
			guest_stage_set(g, &m.move);
		else if (g)
			guest_move_set(g, &m.move);
		break;
	case CONTROL_STANDBY:
		g = guest_find(a, m.standby.job, m.standby.epoch);
		if (g)
			guest_standby_set(g, &m); /* takes the message */
		break;
	case CONTROL_DURABLE:
		g = guest_find(a, m.durable.job, m.durable.epoch);
		if (g)
			guest_durable(g, &m.durable);
		break;
	case CONTROL_RATES:
		guest_rates(a, &m.rates);
		break;
	case CONTROL_INTERVAL:
		g = guest_find(a, m.interval.job, m.interval.epoch);
		if (g)
			guest_interval_set(g, m.interval.interval_ms * NS_PER_MS,
					   m.interval.next_ms * NS_PER_MS);
		break;
	case CONTROL_NOTICE:
		gang_notice(a, &m.notice);
		break;
	case CONTROL_KEEP:
		guest_prune(a, &m.keep);
		break;
	case CONTROL_OUTPUT_ACK:
		g = guest_find(a, m.output_ack.job, m.output_ack.epoch);
		if (g)
			output_acked(g, m.output_ack.offset);
		break;
	case CONTROL_REFUSED:
		log_error("coordinator: refused: %s", m.refused.reason ? m.refused.reason : "no reason");
		break;
	default:
		log_warn("coordinator: '%s' is not for an agent", control_type_names[m.type]);
	}
	control_done(&m);
}

static void on_up(void *user)
{
	send_hello(user);
}

static void on_down(void *user, const char *why)
{
	struct agent *a = user;
	if (a->welcomed)
		log_warn("coordinator: connection lost: %s", why);
	a->welcomed = false;
	for (struct guest *g = a->guests; g; g = g->next)
		if (g->notice_id[0])
			guest_standby_arm(g);
	owner_notify(a);
}

int link_open(struct agent *a, struct diag *diag)
{
	static const struct control_client_ops ops = { on_up, on_down, on_message };
	loop_timer_init(&a->status_timer, a->loop, on_status_timer, a);
	a->status_every_ns = NS_PER_S;
	int r = control_client_open(a->loop, a->identity, a->config.coordinator, &ops, a, &a->link);
	if (r < 0)
		return diag_set(diag, r, a->config.coordinator, "cannot connect: %s", strerror(-r));
	return 0;
}
