/* SPDX-License-Identifier: Apache-2.0 */
/* reclaimd: reads the configuration, opens everything in order, runs the loop. */
#include <errno.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_internal.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "base/log.h"
#include "base/option.h"
#include "base/point.h"
#include "base/program.h"

struct options {
	const char *config, *state, *run, *terms, *shim, *transfer;
	bool check, verbose;
};

#define TICK_NS (200 * NS_PER_MS)

static int say(const struct diag *diag)
{
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 4];
	(void)fprintf(stderr, "reclaimd: %s\n", diag_format(diag, text, sizeof(text)));
	return 1;
}

/* ---- the receiver of images ---- */

static void on_listening(void *arg, uint16_t port)
{
	struct agent *a = arg;
	bool moved = a->transfer_port != port;
	a->transfer_port = port;
	if (moved && a->link && control_client_is_up(a->link))
		(void)control_client_restart(a->link, NULL); /* a new hello carries the port */
}

static void on_received(void *arg, const struct transfer_incoming *in)
{
	struct agent *a = arg;
	char commit[CONTROL_COMMIT_MAX + 1];
	CLEANUP_JSON json_t *meta = link_image_meta(a, in->job, in->image);
	uint64_t output_offset = link_image_output(meta, commit);
	struct control_message m = {
		.type = CONTROL_RECEIVED,
		.received = {
			.job = (char *)in->job,
			.epoch = in->epoch,
			.seq = in->seq,
			.image = (char *)in->image,
			.from = (char *)in->from,
			.ticket_serial = (char *)in->ticket_serial,
			.hold_only = in->hold_only,
			.bytes_wire = in->bytes_wire,
			.ms = in->ms,
			.output_offset = output_offset,
			.commit = commit,
		},
	};
	POINT("agent.received.before_told");
	log_info("job %s epoch %llu: image %.12s is here (from %s)", in->job,
		 (unsigned long long)in->epoch, in->image, in->from);
	output_tail_tell(a, in->job, in->epoch, meta); /* before the image counts as durable */
	(void)link_send(a, &m); /* without a link, hello's list of images says it */
	POINT("agent.received.told");
}

static void on_receive_failed(void *arg, const struct transfer_incoming *in,
			      enum transfer_code code, const struct diag *diag)
{
	log_warn("image %.12s of job %s from %s: %s: %s", in->image, in->job, in->from,
		 transfer_code_name(code), diag->what);
}

static void on_crashed(void *arg, const struct diag *diag)
{
	log_warn("receiver: %s: %s; started again", diag->where, diag->what);
}

static int receiver_open(struct agent *a, struct diag *diag)
{
	static const struct transfer_receiver_callbacks callbacks = {
		.listening = on_listening,
		.received = on_received,
		.failed = on_receive_failed,
		.crashed = on_crashed,
	};
	const struct transfer_receiver_params p = {
		.program = a->transfer_program,
		.store_dir = image_store_dir(a->images),
		.identity_dir = a->identity_dir,
		.listen_addr = a->config.listen ? a->config.listen : "0.0.0.0",
		.port = (uint16_t)a->config.transfer_port,
		.disk_reserve = a->config.disk_reserve,
	};
	return transfer_receiver_start(loop_uv(a->loop), &p, &callbacks, a, &a->receiver, diag);
}

/* ---- opening and closing ---- */

static int read_boot_id(struct agent *a)
{
	CLEANUP_FREE char *text = NULL;
	int r = file_read("/proc/sys/kernel/random/boot_id", 128, &text, NULL);
	if (r < 0)
		return r;
	text[strcspn(text, "\n")] = '\0';
	return path_format(a->boot_id, sizeof(a->boot_id), "%s", text);
}

static int open_folders(struct agent *a, const struct options *o, struct diag *diag)
{
	char path[PATH_MAX];
	int r = path_format(a->state_dir, sizeof(a->state_dir), "%s", o->state);
	if (r == 0)
		r = path_format(a->run_dir, sizeof(a->run_dir), "%s", o->run);
	if (r < 0)
		return diag_set(diag, r, o->run, "the path is too long for sockets below it (%zu bytes at most)",
				sizeof(a->run_dir) - 1);
	r = dir_make_all(a->state_dir, 0700);
	if (r < 0)
		return diag_set(diag, r, a->state_dir, "cannot make the folder: %s", strerror(-r));
	r = path_format(path, sizeof(path), "%s/shim", a->run_dir);
	if (r == 0)
		r = dir_make_all(path, 0755);
	/* Our umask closes folders; the owner's commands pass through these, to sockets that have
	 * modes of their own. */
	if (r == 0 && (chmod(a->run_dir, 0755) < 0 || chmod(path, 0755) < 0))
		r = -errno;
	if (r < 0)
		return diag_set(diag, r, path, "cannot make the folder: %s", strerror(-r));
	r = read_boot_id(a);
	if (r < 0)
		return diag_set(diag, r, "boot id", "cannot read: %s", strerror(-r));
	r = path_format(a->identity_dir, sizeof(a->identity_dir), "%s/identity", a->state_dir);
	if (r == 0)
		r = identity_open(a->identity_dir, &a->identity, diag);
	if (r < 0)
		return r;
	const struct identity_peer *self = identity_self(a->identity);
	if (self->role != IDENTITY_AGENT)
		return diag_set(diag, -EACCES, a->identity_dir, "is a certificate of role '%s', not 'agent'",
				identity_role_name(self->role));
	(void)snprintf(a->node, sizeof(a->node), "%s", self->name);
	r = path_format(path, sizeof(path), "%s/images", a->state_dir);
	if (r == 0)
		r = image_store_open(path, &a->images, diag);
	return r;
}

static void find_owner_group(struct agent *a)
{
	a->owner_gid = (gid_t)-1;
	struct group *gr = getgrnam(a->config.owner_group);
	if (gr)
		a->owner_gid = gr->gr_gid;
	else if (geteuid() == 0)
		log_warn("there is no group '%s': only root can use the owner's commands",
			 a->config.owner_group);
}

static void on_tick(void *user)
{
	struct agent *a = user;
	for (struct guest *g = a->guests; g; g = g->next)
		output_pump(g);
	if (a->edge)
		(void)edge_tick(a->edge, NULL); /* counters only; said again next time */
	(void)loop_timer_in(&a->tick, TICK_NS);
}

/* Guests stay: their shims run on, and the next agent adopts them. */
static void on_stop(void *user, int signum)
{
	struct agent *a = user;
	log_info("signal %d: leaving; guests stay with their supervisors", signum);
	a->closing = true;
	loop_stop(a->loop);
}

static void on_reload(void *user, int signum)
{
	struct agent *a = user;
	char error[CONTROL_TEXT_MAX] = "";
	if (owner_reload(a, error, sizeof(error)) < 0)
		log_error("%s", error);
}

static int agent_open(struct agent *a, const struct options *o, struct diag *diag)
{
	a->shim_program = o->shim ? strdup(o->shim) : NULL;
	a->transfer_program = o->transfer ? strdup(o->transfer) : NULL;
	a->slot_used = calloc(a->terms.slots_count + 1, sizeof(*a->slot_used));
	int r = a->slot_used ? open_folders(a, o, diag) : -ENOMEM;
	if (r < 0)
		return r;
	find_owner_group(a);
	static const char *const places[] = { "", "../edge", "../libexec/reclaim" };
	if (program_find(NULL, places, ARRAY_SIZE(places), "reclaim-tunnel", a->tunnel_program,
			 sizeof(a->tunnel_program)) < 0)
		a->tunnel_program[0] = '\0'; /* no ranks of gangs here; hello says so */
	r = loop_new(&a->loop);
	if (r < 0)
		return diag_set(diag, r, "loop", "%s", strerror(-r));
	loop_timer_init(&a->tick, a->loop, on_tick, a);
	r = journal_load(a, diag);
	a->starts++;
	if (r == 0)
		r = owner_open(a, diag);
	/* The owner's socket first: an owner never waits for the rest. */
	if (r == 0)
		r = owner_socket_open(a, diag);
	if (r == 0)
		r = agent_edge_open(a, diag);
	if (r == 0)
		gpu_open(a);
	if (r == 0)
		r = receiver_open(a, diag);
	if (r == 0)
		r = adopt_all(a, diag);
	if (r == 0 && trigger_open(a) < 0)
		r = diag_set(diag, -ENOMEM, "triggers", "out of memory");
	if (r < 0)
		return r;
	agent_edge_sweep(a);
	owner_resume(a);
	(void)loop_on_signal(a->loop, SIGTERM, on_stop, a);
	(void)loop_on_signal(a->loop, SIGINT, on_stop, a);
	(void)loop_on_signal(a->loop, SIGHUP, on_reload, a);
	(void)loop_timer_in(&a->tick, TICK_NS);
	return link_open(a, diag);
}

static int run(const void *values, int argc, const char *const *argv)
{
	const struct options *o = values;
	static struct agent a;
	struct diag diag = DIAG_INIT;
	log_init("reclaimd", o->verbose ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
	if (agent_config_load(o->config, &a.config, &diag) < 0)
		return say(&diag);
	if (o->terms) {
		free(a.config.terms);
		a.config.terms = strdup(o->terms);
	}
	if (terms_load(a.config.terms, &a.terms, &diag) < 0)
		return say(&diag);
	if (o->check) {
		(void)printf("%s and %s: no mistakes found\n", o->config, a.config.terms);
		terms_done(&a.terms);
		agent_config_done(&a.config);
		return 0;
	}
	(void)signal(SIGPIPE, SIG_IGN);
	(void)umask(077);
	if (agent_open(&a, o, &diag) < 0)
		return say(&diag);
	log_info("%s: %s%s", a.node, control_owner_state_names[a.owner.state],
		 a.owner.paused ? ", paused" : "");
	int r = loop_run(a.loop);
	/* The kernel takes back what is left: a fast end is what an upgrade wants, and what a kill
	 * would do. Guests, the edge and the store are made to outlive any end. */
	if (a.link)
		control_client_close(a.link);
	trigger_close(&a);
	owner_close(&a);
	return r < 0 ? 1 : 0;
}

#define O(m) offsetof(struct options, m)
static const struct option options[] = {
	{ "config", 'c', OPTION_STR, O(config), "FILE", "/etc/reclaim/agent.yaml", 0, 0,
	  "the agent's configuration" },
	{ "terms", 0, OPTION_STR, O(terms), "FILE", NULL, 0, 0,
	  "the lend terms, instead of the file that the configuration names" },
	{ "state", 0, OPTION_STR, O(state), "DIR", "/var/lib/reclaim", 0, 0,
	  "identity, images, jobs, and what the owner wants" },
	{ "run", 0, OPTION_STR, O(run), "DIR", "/run/reclaim", 0, 0, "sockets and pinned maps" },
	{ "shim", 0, OPTION_STR, O(shim), "PROGRAM", NULL, 0, 0,
	  "reclaim-shim, if it is not beside this program" },
	{ "transfer", 0, OPTION_STR, O(transfer), "PROGRAM", NULL, 0, 0,
	  "reclaim-transfer, if it is not beside this program" },
	{ "check", 0, OPTION_FLAG, O(check), NULL, NULL, 0, 0,
	  "only check the configuration and the terms" },
	{ "verbose", 'v', OPTION_FLAG, O(verbose), NULL, NULL, 0, 0, "log more" },
	{ .kind = OPTION_END },
};

static const struct command commands[] = {
	{ .name = "", .options = options, .values_size = sizeof(struct options), .run = run,
	  .help = "Lends this machine's slots, runs guests, and gives the machine back." },
	{ .name = NULL },
};

int main(int argc, char **argv)
{
	static const struct program program = {
		.name = "reclaimd",
		.summary = "the agent on a lent machine",
		.version = RECLAIM_VERSION,
		.section = 8,
		.commands = commands,
		.detail = "SIGHUP reads the lend terms again. SIGTERM ends the agent and leaves its guests\n"
			  "running under their supervisors; the next agent takes them over.",
	};
	point_init();
	return program_main(&program, argc, argv);
}
