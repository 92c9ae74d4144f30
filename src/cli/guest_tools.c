/* SPDX-License-Identifier: Apache-2.0 */
/* Commands that need no coordinator: `doctor`, and `ack` from inside a job. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "cli/commands.h"
#include "job/doctor.h"

struct doctor_options {
	bool json;
};

static void print_report(const struct doctor_report *r, bool json)
{
	if (json) {
		CLEANUP_JSON json_t *doc = doctor_json(r);

		(void)json_dumpf(doc, stdout, JSON_INDENT(2));
		(void)printf("\n");
		return;
	}
	for (size_t i = 0; i < r->findings.count; i++) {
		const struct doctor_finding *f = &r->findings.data[i];

		(void)printf("%-5s %-12s %s\n", doctor_level_names[f->level], f->area, f->text);
	}
}

static int run_doctor(const void *values, int argc, const char *const *argv)
{
	const struct doctor_options *o = values;
	struct doctor_report report = { VEC_INIT };
	struct diag diag = DIAG_INIT;
	char text[DIAG_WHERE_MAX + DIAG_WHAT_MAX + 3];
	enum doctor_level worst;

	if (argc == 0) {
		doctor_machine(&report);
	} else if (doctor_job(argv[0], &report, &diag) < 0) {
		(void)fprintf(stderr, "reclaim doctor: %s\n", diag_format(&diag, text, sizeof(text)));
		return 1;
	}
	print_report(&report, o->json);
	worst = doctor_worst(&report);
	doctor_report_done(&report);
	return worst == DOCTOR_BAD;
}

/* ---- ack ---- */

static int guest_socket(void)
{
	const char *path = getenv("RECLAIM_SOCKET"), *slash = path ? strrchr(path, '/') : NULL;
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	CLEANUP_FD int fd = -1;
	CLEANUP_FD int dir_fd = -1;
	char dir[4096];

	if (!slash || (size_t)(slash - path) >= sizeof(dir))
		return -ENOENT;
	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (dir_fd < 0 || fd < 0)
		return -errno;
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/self/fd/%d/%.60s", dir_fd, slash + 1);
	if (connect(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0)
		return -errno;
	return TAKE_FD(fd);
}

static int run_ack(const void *values, int argc, const char *const *argv)
{
	static const char request[] = "{\"op\":\"ack\"}\n";
	CLEANUP_FD int fd = guest_socket();
	char buf[4096];
	size_t len = 0;

	if (fd == -ENOENT) {
		(void)fprintf(stderr, "reclaim ack: not inside a job (RECLAIM_SOCKET is not set)\n");
		return 1;
	}
	if (fd < 0 || send(fd, request, sizeof(request) - 1, MSG_NOSIGNAL) < 0) {
		(void)fprintf(stderr, "reclaim ack: %s: %s\n", getenv("RECLAIM_SOCKET"), strerror(errno));
		return 1;
	}
	while (len < sizeof(buf) - 1) {
		struct pollfd pfd = { .fd = fd, .events = POLLIN };
		ssize_t n = poll(&pfd, 1, 5000) > 0 ? read(fd, buf + len, sizeof(buf) - 1 - len) : -1;
		const char *error;

		if (n <= 0)
			break;
		len += (size_t)n;
		buf[len] = '\0';
		if (!strstr(buf, "\"event\":\"reply\"") || !strchr(buf, '\n'))
			continue;
		error = strstr(buf, "\"error\":\"");
		if (!error)
			return 0;
		error += strlen("\"error\":\"");
		(void)fprintf(stderr, "reclaim ack: %.*s\n", (int)strcspn(error, "\""), error);
		return 1;
	}
	(void)fprintf(stderr, "reclaim ack: no answer\n");
	return 1;
}

static const struct option doctor_options[] = {
	{ .name = "json", .kind = OPTION_FLAG, .offset = offsetof(struct doctor_options, json),
	  .help = "print JSON" },
	{ .kind = OPTION_END },
};

const struct command cli_guest_tools_commands[] = {
	{ .name = "doctor", .args = "[JOBFILE]", .args_min = 0, .args_max = 1, .options = doctor_options,
	  .values_size = sizeof(struct doctor_options), .run = run_doctor,
	  .help = "what this machine can do, or what a job would hear and lose at a reclaim",
	  .detail = "Without JOBFILE: the rung of the sandbox this machine reaches and what it lacks,\n"
		    "control groups, CRIU, GPUs. With a job file or script: which channel its program\n"
		    "will hear a notice by, what is missing, and what a reclaim now would cost it.\n"
		    "Exit status 1 if something is bad." },
	{ .name = "ack", .args = "", .args_min = 0, .args_max = 0, .run = run_ack,
	  .help = "inside a job: saved, the machine may go" },
	{ .name = NULL },
};
