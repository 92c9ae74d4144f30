/* SPDX-License-Identifier: Apache-2.0 */
/* What the shim says about itself, and the file that says it when it is gone. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/point.h"
#include "job/shim/shim.h"

void state_hello(struct shim *s, struct shim_hello *ret)
{
	static char netns[64];
	char **lacks = s->choice.lacks_count ? calloc(s->choice.lacks_count, sizeof(*lacks)) : NULL;

	*ret = (struct shim_hello){
		.pid = (uint64_t)getpid(),
		.job = s->start.job,
		.epoch = s->start.epoch,
		.state = s->state,
		.frozen = s->frozen,
		.lease_frozen = s->lease_frozen,
		.driver = s->driver,
		.driver_why = s->driver_why[0] ? s->driver_why : NULL,
		.guest_pid = s->guest_reaped ? 0 : (uint64_t)s->guest_pid,
		.rung = s->state > SHIM_PREPARING ? (char *)sandbox_rung_names[s->choice.rung] : NULL,
		.cgroup = s->cgroup ? (char *)cgroup_v2_path(s->cgroup) : NULL,
		.lease_deadline_ns = s->start.lease_deadline_ns,
		.notice_id = s->notice.notice_id,
		.deadline_ns = s->notice.deadline_ns,
		.acked = s->acked,
		.saved = s->saved,
		.started_ns = s->started_ns,
		.ran_ns = guest_ran_ns(s),
		.log_bytes = s->log_bytes,
		.exited = s->exited,
	};
	if (s->start.own_network && s->guest_pid && !s->guest_reaped) {
		(void)snprintf(netns, sizeof(netns), "/proc/%d/ns/net", (int)s->guest_pid);
		ret->netns = netns;
	}
	for (size_t i = 0; lacks && i < s->choice.lacks_count; i++)
		lacks[i] = s->choice.lacks[i];
	ret->lacks = lacks; /* the one thing that the caller frees */
	ret->lacks_count = lacks ? s->choice.lacks_count : 0;
}

static const char *boot_id(void)
{
	static char id[64];
	CLEANUP_FD int fd = -1;
	ssize_t n;

	if (id[0])
		return id;
	fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, id, sizeof(id) - 1);
	id[n > 0 ? n : 0] = '\0';
	id[strcspn(id, "\n")] = '\0';
	return id;
}

/* By rename, without fsync: the record is about this boot of this machine. After another
 * boot the guest is gone whatever it says. */
void state_write(struct shim *s)
{
	struct shim_record record = { .boot_id = (char *)boot_id(), .socket = (char *)s->socket_path,
				      .dir = s->start.dir };
	CLEANUP_JSON json_t *obj = NULL;
	CLEANUP_FREE char *text = NULL;
	CLEANUP_FD int fd = -1;
	char tmp[4200];
	int r;

	if (!s->have_start)
		return;
	state_hello(s, &record.hello);
	obj = schema_encode(&shim_record_schema, &record);
	free(record.hello.lacks);
	text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
	r = text ? path_format(tmp, sizeof(tmp), "%s.tmp", s->start.state_file) : -ENOMEM;
	if (r == 0) {
		fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		r = fd < 0 ? -errno : fd_write_all(fd, text, strlen(text));
	}
	if (r == 0 && rename(tmp, s->start.state_file) < 0)
		r = -errno;
	if (r < 0) /* the socket still tells everything to an agent that comes */
		log_warn("%s: cannot be written: %s", s->start.state_file, strerror(-r));
	POINT("shim.state_written");
}

void state_changed(struct shim *s, const char *why)
{
	struct shim_event event = { .type = SHIM_EVENT_STATE };

	event.state = (struct shim_state_change){ .state = s->state, .frozen = s->frozen,
						  .lease_frozen = s->lease_frozen, .why = (char *)why };
	state_write(s);
	conn_event(s, &event);
}

void state_set(struct shim *s, enum shim_state state, const char *why)
{
	if (s->state == state)
		return;
	s->state = state;
	log_info("job %s.%llu: %s%s%s", s->start.job ? s->start.job : "?", (unsigned long long)s->start.epoch,
		 shim_state_names[state], why ? ": " : "", why ? why : "");
	state_changed(s, why);
}
