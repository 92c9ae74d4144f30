/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Taking a machine back with no agent to ask: through the guests' supervisors,
 * which hold the guests' timers, or with reclaim-cut, which needs only the
 * kernel. Nothing here knows the coordinator, the network or the agent's state
 * folder; the declared window stands in a file of the run folder.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/program.h"
#include "base/vec.h"
#include "cli/context.h"
#include "cli/owner_internal.h"
#include "job/shim_client.h"
#include "wire/owner.h"

#define SHIM_ANSWER_NS (2 * NS_PER_S)
/* Where no agent has ever said which window its owner declared. */
#define WINDOW_UNKNOWN_NS (60 * NS_PER_S)

int owner_cut_direct(const struct owner_options *o)
{
	char beside[4096];
	struct stat st;
	/* An agent of an ordinary user has no edge and no cgroups: its supervisors are all there is. */
	if (geteuid() != 0 && stat(owner_run_dir(o), &st) == 0 && st.st_uid == geteuid())
		return owner_back_direct(o, 0);
	static const char *const here[] = { "" };
	const char *program = program_find(NULL, here, 1, "reclaim-cut", beside, sizeof(beside)) == 0 ?
				      beside : "/usr/sbin/reclaim-cut";
	(void)fflush(NULL);
	(void)execl(program, "reclaim-cut", "--run", owner_run_dir(o), (char *)NULL);
	return cli_failf("no agent answers, and %s cannot be run: %s", program, strerror(errno));
}

static int notice_shim(const char *socket, uint64_t window_ns, const char *reason)
{
	char id[] = OWNER_DIRECT_NOTICE;
	struct diag diag = DIAG_INIT;
	struct shim_command cmd = {
		.type = SHIM_CMD_NOTICE,
		.notice = { .notice_id = id,
			    .reason = (char *)reason,
			    .deadline_ns = clock_boot_ns() + window_ns,
			    .window_ns = window_ns },
	};
	return shim_call(socket, &cmd, SHIM_ANSWER_NS, NULL, &diag);
}

/* What a supervisor that can no longer be asked has left behind: nobody's word for anything. */
struct unproven {
	uint64_t pids_left;   /* by the supervisors' own count */
	unsigned supervisors; /* gone without a word: their socket lies there, nobody listens */
};

/* True once nothing more is to be heard of the guest behind this supervisor. A socket that is gone
 * was closed after the proof: a new agent has taken over and let go of it. */
static bool shim_is_done(const char *socket, struct unproven *u)
{
	struct shim_command cmd = { .type = SHIM_CMD_STATUS };
	struct shim_event ev = { .type = SHIM_EVENT_HELLO };
	struct diag diag = DIAG_INIT;
	int r = shim_call(socket, &cmd, SHIM_ANSWER_NS, &ev.hello, &diag);
	if (r == -ENOENT)
		return true;
	if (r == -ECONNREFUSED) {
		u->supervisors++;
		return true;
	}
	if (r < 0)
		return false;
	bool done = ev.hello.state == SHIM_ENDED || ev.hello.state == SHIM_WAITING;
	u->pids_left += done ? ev.hello.exited.pids_left : 0;
	shim_event_done(&ev);
	return done;
}

struct sockets VEC(char *);

static int wait_shims(const struct sockets *told, uint64_t window_ns, struct unproven u)
{
	uint64_t asked = clock_boot_ns(), end = asked + window_ns + OWNER_AFTER_DEADLINE_NS;
	char text[FORMAT_MAX];
	for (size_t i = 0; i < told->count;) {
		if (shim_is_done(told->data[i], &u)) {
			i++;
			continue;
		}
		if (clock_boot_ns() >= end)
			return cli_failf("a guest is still here %s after the deadline; 'reclaim back --now' ends it",
					 format_duration(OWNER_AFTER_DEADLINE_NS, text));
		const struct timespec pause = { 0, 50 * 1000000L }; /* it says nothing by itself on this call */
		(void)nanosleep(&pause, NULL);
	}
	if (u.pids_left)
		return cli_failf("%llu guest process(es) are left", (unsigned long long)u.pids_left);
	if (u.supervisors)
		return cli_failf("%u supervisor(s) died without a word: whether their guests are gone is not "
				 "proven; 'reclaim back --now' makes sure", u.supervisors);
	(void)printf("this machine is yours after %s: no guest process is left\n",
		     format_duration(clock_boot_ns() - asked, text));
	return 0;
}

int owner_back_direct(const struct owner_options *o, uint64_t window_ns)
{
	char dir_name[256], path[512];
	struct sockets told = VEC_INIT;
	if (path_format(dir_name, sizeof(dir_name), "%s/shim", owner_run_dir(o)) < 0)
		return 1;
	CLEANUP_DIR DIR *d = opendir(dir_name);
	if (!d)
		return cli_failf("no agent answers, and %s: %s", dir_name, strerror(errno));
	unsigned deaf = 0;
	struct unproven unproven = { 0 };
	for (struct dirent *e; (e = readdir(d));) {
		size_t len = strlen(e->d_name);
		if (len < 6 || strcmp(e->d_name + len - 5, ".sock") != 0 ||
		    path_format(path, sizeof(path), "%s/%s", dir_name, e->d_name) < 0)
			continue;
		int r = notice_shim(path, window_ns, o->reason ? o->reason : "owner");
		if (r == 0 && VEC_PUSH(&told, strdup(path)) < 0)
			deaf++;
		else if (r == -ECONNREFUSED)
			unproven.supervisors++;
		else if (r < 0)
			deaf++;
	}
	char text[FORMAT_MAX];
	(void)printf("no agent answers; %zu guest(s) were told by their supervisors and end within %s\n",
		     told.count, format_duration(window_ns, text));
	int status = o->no_wait ? 0 : wait_shims(&told, window_ns, unproven);
	VEC_EACH(&told, t)
		free(*t);
	VEC_DONE(&told);
	if (deaf)
		return cli_failf("%u guest(s) could not be told; 'reclaim back --now' ends them", deaf);
	return status;
}

/* What the agent last declared (wire/owner.h); what is no sane window is as good as none. */
static uint64_t declared_window_ns(const struct owner_options *o)
{
	char path[256];
	uint64_t ms;
	CLEANUP_FREE char *text = NULL;
	if (path_format(path, sizeof(path), "%s/" OWNER_WINDOW_FILE, owner_run_dir(o)) < 0 ||
	    file_read(path, 32, &text, NULL) < 0)
		return WINDOW_UNKNOWN_NS;
	text[strcspn(text, "\n")] = '\0';
	return parse_u64(text, &ms) == 0 && ms <= OWNER_WINDOW_MAX_MS ? ms * NS_PER_MS : WINDOW_UNKNOWN_NS;
}

int owner_back_direct_declared(const struct owner_options *o)
{
	return owner_back_direct(o, o->in ? o->in : declared_window_ns(o));
}
