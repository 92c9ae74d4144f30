/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a guest finds in /reclaim/bin, one static program under several names, so that it
 * runs in any image:
 *
 *   reclaim-init  pid 1 of the guest: starts it, reaps, ends with it
 *   scontrol      "requeue" and "show hostnames", for Slurm scripts and frameworks
 *   srun          starts the tasks of a step here, with the names Slurm gives them
 *   reclaim       "ack", "commit", "notice": the guest's half of the contract
 *
 * It speaks the line protocol of the guest's socket ($RECLAIM_SOCKET, job/notice.h) and
 * depends on nothing but libc.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 4096
#define REPLY_TIMEOUT_MS 5000
#define TASKS_MAX 1024

/* ---- the guest's socket ---- */

static int socket_open(void)
{
	const char *path = getenv("RECLAIM_SOCKET"), *slash;
	struct sockaddr_un sa = { .sun_family = AF_UNIX };
	char dir[4096];
	int fd, dir_fd = -1, r;

	if (!path || !(slash = strrchr(path, '/')) || (size_t)(slash - path) >= sizeof(dir)) {
		(void)fprintf(stderr, "reclaim: RECLAIM_SOCKET is not set: not inside a job?\n");
		return -1;
	}
	/* A socket's address holds 107 bytes; a path may be longer. */
	(void)snprintf(dir, sizeof(dir), "%.*s", (int)(slash - path), path);
	dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	(void)snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/self/fd/%d/%.60s", dir_fd, slash + 1);
	r = dir_fd < 0 || fd < 0 ? -1 : connect(fd, (struct sockaddr *)&sa, sizeof(sa));
	if (r < 0)
		(void)fprintf(stderr, "reclaim: %s: %s\n", path, strerror(errno));
	if (dir_fd >= 0)
		(void)close(dir_fd);
	if (r < 0 && fd >= 0)
		(void)close(fd);
	return r < 0 ? -1 : fd;
}

/* One line without its newline; false at the end, an error, or after timeout_ms (-1 = never). */
static bool line_read(int fd, char *buf, size_t buf_size, int timeout_ms)
{
	size_t len = 0;

	while (len < buf_size - 1) {
		struct pollfd pfd = { .fd = fd, .events = POLLIN };
		char c;
		int r = poll(&pfd, 1, timeout_ms);

		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0 || read(fd, &c, 1) != 1)
			return false;
		if (c == '\n') {
			buf[len] = '\0';
			return true;
		}
		buf[len++] = c;
	}
	return false;
}

static bool is_reply(const char *line)
{
	return strstr(line, "\"event\":\"reply\"");
}

/* Sends a request and prints an error it is answered with. Exit status. */
static int ask(const char *request)
{
	char line[LINE_MAX_BYTES];
	int fd = socket_open();

	if (fd < 0)
		return 1;
	if (write(fd, request, strlen(request)) != (ssize_t)strlen(request)) {
		(void)fprintf(stderr, "reclaim: %s\n", strerror(errno));
		return 1;
	}
	while (line_read(fd, line, sizeof(line), REPLY_TIMEOUT_MS)) {
		const char *error;

		if (!is_reply(line))
			continue;
		error = strstr(line, "\"error\":\"");
		if (!error)
			return 0;
		error += 9;
		(void)fprintf(stderr, "reclaim: %.*s\n", (int)strcspn(error, "\""), error);
		return 1;
	}
	(void)fprintf(stderr, "reclaim: no answer\n");
	return 1;
}

/* ---- scontrol ---- */

/* "lab[1-3,7],x" one a line; zero padding is kept. */
static void print_hosts(const char *list)
{
	while (*list) {
		char host[256];
		size_t n = strcspn(list, ",[");

		if (list[n] != '[') {
			(void)printf("%.*s\n", (int)n, list);
			list += n;
			list += *list == ',';
			continue;
		}
		(void)snprintf(host, sizeof(host), "%.*s", (int)n, list);
		list += n + 1;
		while (*list && *list != ']') {
			char *end;
			const char *digits = list;
			unsigned long a = strtoul(list, &end, 10), b = a;
			int width = digits[0] == '0' ? (int)(end - digits) : 1;

			if (end == list)
				return;
			if (*end == '-')
				b = strtoul(end + 1, &end, 10);
			for (; a <= b && a < 1000000; a++)
				(void)printf("%s%0*lu\n", host, width, a);
			list = end + (*end == ',');
		}
		list += *list == ']';
		list += *list == ',';
	}
}

static int scontrol_main(int argc, char **argv)
{
	const char *own = getenv("SLURM_JOB_ID");
	int at = 1;

	while (at < argc && argv[at][0] == '-')
		at++;
	if (at < argc && (!strcmp(argv[at], "requeue") || !strcmp(argv[at], "requeuehold"))) {
		const char *id = at + 1 < argc ? argv[at + 1] : NULL;

		if (id && own && strcmp(id, own)) {
			(void)fprintf(stderr, "scontrol: job %s is not this job (%s)\n", id, own);
			return 1;
		}
		return ask("{\"op\":\"requeue\"}\n");
	}
	if (at + 1 < argc && !strcmp(argv[at], "show") && !strncmp(argv[at + 1], "hostname", 8)) {
		const char *list = at + 2 < argc ? argv[at + 2] : getenv("SLURM_JOB_NODELIST");

		print_hosts(list ? list : "localhost");
		return 0;
	}
	if (at + 2 < argc && !strcmp(argv[at], "show") && !strcmp(argv[at + 1], "job")) {
		(void)printf("JobId=%s JobState=RUNNING Requeue=1 Restarts=%s NodeList=%s\n", argv[at + 2],
			     getenv("SLURM_RESTART_COUNT") ? getenv("SLURM_RESTART_COUNT") : "0",
			     getenv("SLURM_JOB_NODELIST") ? getenv("SLURM_JOB_NODELIST") : "localhost");
		return 0;
	}
	(void)fprintf(stderr, "scontrol: here only: requeue JOB, show hostnames [LIST], show job JOB\n");
	return 1;
}

/* ---- srun ---- */

static pid_t tasks[TASKS_MAX];
static unsigned task_count;

static void forward(int signo)
{
	for (unsigned i = 0; i < task_count; i++)
		if (tasks[i] > 0)
			(void)kill(tasks[i], signo);
}

/* The command's place in argv: options with a value as a word of its own are known. */
static int srun_command(int argc, char **argv, unsigned *ret_tasks)
{
	static const char with_value[] = "cnNtpAJoeiDwxmLqGCdK";
	static const char *const long_with_value[] = {
		"--ntasks", "--nodes", "--cpus-per-task", "--time", "--partition", "--account", "--job-name",
		"--output", "--error", "--input", "--chdir", "--gres", "--gpus", "--mem", "--mpi", "--export",
		"--ntasks-per-node", "--cpu-bind", "--gpu-bind", "--signal", "--kill-on-bad-exit", NULL,
	};
	int i = 1;

	for (; i < argc && argv[i][0] == '-' && argv[i][1]; i++) {
		const char *value = NULL;
		bool tasks_option = false;

		if (!strcmp(argv[i], "--"))
			return i + 1;
		if (argv[i][1] != '-') {
			tasks_option = argv[i][1] == 'n';
			if (argv[i][2])
				value = argv[i] + 2;
			else if (strchr(with_value, argv[i][1]) && i + 1 < argc)
				value = argv[++i];
		} else {
			tasks_option = !strncmp(argv[i], "--ntasks", 8) && (argv[i][8] == '=' || !argv[i][8]);
			value = strchr(argv[i], '=');
			value = value ? value + 1 : NULL;
			for (int k = 0; !value && long_with_value[k]; k++)
				if (!strcmp(argv[i], long_with_value[k]) && i + 1 < argc)
					value = argv[++i];
		}
		if (tasks_option && value && atoi(value) > 0)
			*ret_tasks = (unsigned)atoi(value);
	}
	return i;
}

static void put_env(const char *name, unsigned long value)
{
	char text[32];

	(void)snprintf(text, sizeof(text), "%lu", value);
	(void)setenv(name, text, 1);
}

static int srun_main(int argc, char **argv)
{
	const char *env_tasks = getenv("SLURM_NTASKS");
	const char *env_rank = getenv("RECLAIM_RANK");
	unsigned count = env_tasks && atoi(env_tasks) > 0 ? (unsigned)atoi(env_tasks) : 1, left;
	const char *ranks_text = getenv("RECLAIM_RANKS");
	unsigned ranks = ranks_text && atoi(ranks_text) > 0 ? (unsigned)atoi(ranks_text) : 1;
	int at = srun_command(argc, argv, &count), worst = 0;

	if (at >= argc) {
		(void)fprintf(stderr, "srun: no command\n");
		return 1;
	}
	/* A gang has one of us on each of its machines, and each starts its own share. */
	if (ranks > 1)
		count = count > ranks ? count / ranks : 1;
	if (count > TASKS_MAX) {
		(void)fprintf(stderr, "srun: %u tasks are above the maximum, %d\n", count, TASKS_MAX);
		return 1;
	}
	(void)signal(SIGTERM, forward);
	(void)signal(SIGINT, forward);
	(void)signal(SIGUSR1, forward);
	(void)signal(SIGUSR2, forward);
	(void)signal(SIGCONT, forward);
	for (unsigned i = 0; i < count; i++) {
		tasks[i] = fork();
		if (tasks[i] == 0) {
			unsigned node = env_rank ? (unsigned)atoi(env_rank) : 0;

			put_env("SLURM_PROCID", node * count + i);
			put_env("SLURM_LOCALID", i);
			put_env("SLURM_NTASKS", (unsigned long)count * ranks);
			put_env("SLURM_NPROCS", (unsigned long)count * ranks);
			put_env("SLURM_STEP_ID", 0);
			(void)execvp(argv[at], argv + at);
			(void)fprintf(stderr, "srun: %s: %s\n", argv[at], strerror(errno));
			_exit(errno == ENOENT ? 127 : 126);
		}
		if (tasks[i] < 0) {
			(void)fprintf(stderr, "srun: fork: %s\n", strerror(errno));
			worst = 1;
			break;
		}
		task_count = i + 1;
	}
	left = task_count;
	while (left) {
		int status, code;
		pid_t pid = wait(&status);

		if (pid < 0 && errno == EINTR)
			continue;
		if (pid < 0)
			break;
		for (unsigned i = 0; i < task_count; i++)
			if (tasks[i] == pid) {
				tasks[i] = 0;
				left--;
			}
		code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
		if (code > worst)
			worst = code;
	}
	return worst;
}

/* ---- reclaim ---- */

static int notice_main(bool wait)
{
	char line[LINE_MAX_BYTES];
	int fd = socket_open();
	static const char request[] = "{\"op\":\"notice\"}\n";

	if (fd < 0 || write(fd, request, sizeof(request) - 1) != sizeof(request) - 1)
		return 1;
	while (line_read(fd, line, sizeof(line), wait ? -1 : REPLY_TIMEOUT_MS)) {
		bool standing = strstr(line, "\"action\":\"terminate\"");

		if (wait && !standing)
			continue;
		if (!strstr(line, "\"event\":\"notice\""))
			continue;
		(void)printf("%s\n", line);
		return standing ? 0 : 3;
	}
	return 1;
}

static int reclaim_main(int argc, char **argv)
{
	char request[512];

	if (argc == 2 && !strcmp(argv[1], "ack"))
		return ask("{\"op\":\"ack\"}\n");
	if (argc == 2 && !strcmp(argv[1], "requeue"))
		return ask("{\"op\":\"requeue\"}\n");
	if (argc >= 2 && argc <= 3 && !strcmp(argv[1], "notice"))
		return notice_main(argc == 3 && !strcmp(argv[2], "--wait"));
	if ((argc == 3 || argc == 4) && !strcmp(argv[1], "commit")) {
		for (const char *p = argv[2]; *p; p++)
			if (*p == '"' || *p == '\\' || (unsigned char)*p < 32) {
				(void)fprintf(stderr, "reclaim: a name with quotes or control characters\n");
				return 2;
			}
		(void)snprintf(request, sizeof(request), "{\"op\":\"commit\",\"name\":\"%.255s\",\"step\":%lu}\n",
			       argv[2], argc == 4 ? strtoul(argv[3], NULL, 10) : 0);
		return ask(request);
	}
	(void)fprintf(stderr,
		      "usage, inside a job:\n"
		      "  reclaim ack                  saved; the machine may go\n"
		      "  reclaim commit NAME [STEP]   a checkpoint is complete\n"
		      "  reclaim notice [--wait]      print the notice; exit 3 if there is none\n"
		      "  reclaim requeue              start me again after I have exited\n");
	return 2;
}

/* ---- pid 1 ---- */

static int init_main(int argc, char **argv)
{
	sigset_t all, old;
	pid_t guest;

	if (argc < 2)
		return 2;
	(void)sigfillset(&all);
	(void)sigprocmask(SIG_SETMASK, &all, &old);
	/* "--restore PID": CRIU puts a tree of processes below us; its root is that pid. */
	guest = argc == 3 && !strcmp(argv[1], "--restore") ? (pid_t)atoi(argv[2]) : fork();
	if (guest == 0) {
		(void)sigprocmask(SIG_SETMASK, &old, NULL);
		(void)setsid();
		(void)execvp(argv[1], argv + 1);
		(void)fprintf(stderr, "reclaim: %s: %s\n", argv[1], strerror(errno));
		_exit(errno == ENOENT ? 127 : 126);
	}
	if (guest < 0)
		return 126;
	for (;;) {
		int status;
		pid_t pid = waitpid(-1, &status, 0);

		if (pid < 0 && errno == ECHILD) {
			(void)sigwaitinfo(&all, NULL); /* nobody yet */
			continue;
		}
		if (pid < 0 && errno != EINTR)
			return 126;
		/* Whatever else lives in this pid namespace goes with us. */
		if (pid == guest)
			return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	}
}

int main(int argc, char **argv)
{
	const char *slash = strrchr(argv[0], '/'), *name = slash ? slash + 1 : argv[0];

	if (!strcmp(name, "reclaim-init"))
		return init_main(argc, argv);
	if (!strcmp(name, "scontrol"))
		return scontrol_main(argc, argv);
	if (!strcmp(name, "srun"))
		return srun_main(argc, argv);
	return reclaim_main(argc, argv);
}
