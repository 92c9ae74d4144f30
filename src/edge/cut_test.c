/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim-cut as an owner runs it: the agent gone, no root, set-user-id. Real
 * maps, real cgroups (one frozen by the v1 freezer, where there is one).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <mntent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/file.h"
#include "edge/edge_internal.h"
#include "edge/testnet.h"

#define OWNER_GID 54321
#define NOBODY 65534
#define SOON_MS 2000

static struct testnet net;
static const char *cut_program;
static char cut_copy[128], output[4096];

/* Runs it as nobody, with one extra group; its exit status. What it printed is in output. */
static int run_cut(const char *run_dir, gid_t group)
{
	int out[2], status, fd = open(cut_copy, O_RDONLY);
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	assert_true(fd >= 0 && pipe(out) == 0);
	pid = fork();
	if (pid == 0) {
		char *argv[] = { (char *)"reclaim-cut", (char *)"--run", (char *)run_dir, NULL };
		char *envp[] = { (char *)"LD_PRELOAD=/nonexistent.so", (char *)"PATH=/nowhere", NULL };

		(void)dup2(out[1], 1);
		(void)dup2(out[1], 2);
		if (setgroups(1, &group) == 0 && setresgid(NOBODY, NOBODY, NOBODY) == 0 &&
		    setresuid(NOBODY, NOBODY, NOBODY) == 0)
			(void)fexecve(fd, argv, envp);
		_exit(99);
	}
	close(fd);
	close(out[1]);
	while ((n = read(out[0], output + len, sizeof(output) - 1 - len)) > 0)
		len += (size_t)n;
	output[len] = '\0';
	close(out[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void find_cgroup(const char *type, const char *option, char path[EDGE_PATH_MAX])
{
	FILE *mounts = setmntent("/proc/self/mounts", "re");
	struct mntent *m;

	path[0] = '\0';
	while (mounts && (m = getmntent(mounts)))
		if (strcmp(m->mnt_type, type) == 0 && (!option || hasmntopt(m, option)) && !path[0])
			(void)path_format(path, EDGE_PATH_MAX, "%s/reclaim-edge-test-%d", m->mnt_dir,
					  (int)getpid());
	if (mounts)
		endmntent(mounts);
	if (path[0] && mkdir(path, 0755) < 0)
		path[0] = '\0';
}

static void put(const char *dir, const char *name, const char *fmt, int value)
{
	char path[EDGE_PATH_MAX + 32], text[32];
	int fd, len;

	assert_int_equal(path_format(path, sizeof(path), "%s/%s", dir, name), 0);
	len = snprintf(text, sizeof(text), fmt, value);
	fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, (size_t)len), len);
	close(fd);
}

/* A guest that has to be killed: it ignores what can be ignored. */
static pid_t guest_process(const char *v2, const char *v1)
{
	pid_t pid = fork();

	if (pid == 0) {
		(void)signal(SIGTERM, SIG_IGN);
		for (;;)
			pause();
	}
	put(v2, "cgroup.procs", "%d\n", pid);
	if (v1[0]) {
		put(v1, "cgroup.procs", "%d\n", pid);
		put(v1, "freezer.state", "FROZEN\n", 0);
	}
	return pid;
}

static void test_cut(void **state)
{
	struct edge_config c = testnet_config(&net);
	char v2[EDGE_PATH_MAX], v1[EDGE_PATH_MAX];
	int ns = testnet_ns_new(), out = testnet_udp(net.world_ns, TESTNET_INTERNET, 5000), in, status;
	struct edge_guest_config gc = { .job = "job", .epoch = 1, .netns_fd = ns, .internet = true,
					.lease_deadline_boot_ns = UINT64_MAX };
	struct edge_guest g;
	struct edge *e;
	struct edge_guest_count n;
	struct diag d = DIAG_INIT;
	uint64_t until = clock_boot_ns() + SOON_MS * NS_PER_MS;
	pid_t pid;

	(void)state;
	find_cgroup("cgroup2", NULL, v2);
	find_cgroup("cgroup", "freezer", v1);
	if (!v2[0]) {
		print_message("skipped: reclaim-cut: no cgroup2 to work with\n");
		skip();
	}
	c.owner_gid = OWNER_GID;
	c.cgroup_v2 = v2;
	c.cgroup_v1_freezer = v1[0] ? v1 : NULL;
	assert_int_equal(edge_open(&c, &e, &d), 0);
	assert_int_equal(edge_guest_attach(e, &gc, &g, &d), 0);
	in = testnet_udp(ns, NULL, 0);
	assert_int_equal(testnet_udp_send(in, TESTNET_INTERNET, 5000, "open"), 0);
	assert_true(testnet_udp_recv(out, SOON_MS, output, sizeof(output), NULL));
	pid = guest_process(v2, v1);
	edge_close(e); /* the agent is dead */

	/* Not for everybody, and not by anybody's own folder. */
	assert_int_equal(run_cut(net.run_dir, OWNER_GID + 1), 2);
	assert_non_null(strstr(output, "group"));
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	assert_int_equal(chmod(net.run_dir, 0777), 0);
	assert_int_equal(run_cut(net.run_dir, OWNER_GID), 2);
	assert_non_null(strstr(output, "root's alone"));
	assert_int_equal(chmod(net.run_dir, 0755), 0);
	assert_int_equal(run_cut("relative", OWNER_GID), 2);

	assert_int_equal(run_cut(net.run_dir, OWNER_GID), 0);
	print_message("%s", output);
	assert_non_null(strstr(output, "packets: cut"));
	assert_non_null(strstr(output, "queues: empty"));
	assert_non_null(strstr(output, "processes: none left"));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

	(void)testnet_udp_send(in, TESTNET_INTERNET, 5000, "dead");
	assert_int_equal(edge_open(&c, &e, &d), 0);
	assert_true(edge_killed(e, EDGE_ALL));
	do
		assert_int_equal(edge_guest_count(e, g.slot, &n), 0);
	while (n.killed == 0 && clock_boot_ns() < until);
	assert_true(n.killed >= 1);
	assert_false(testnet_udp_recv(out, 0, output, sizeof(output), NULL));
	/* A second cut finds nothing more to do and says so. */
	assert_int_equal(run_cut(net.run_dir, OWNER_GID), 0);

	/* Without any edge there is nothing it would do. */
	assert_int_equal(edge_remove(e, &d), 0);
	edge_close(e);
	assert_int_equal(run_cut(net.run_dir, OWNER_GID), 2);
	close(in);
	close(out);
	close(ns);
	assert_int_equal(rmdir(v2), 0);
	if (v1[0])
		assert_int_equal(rmdir(v1), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(test_cut) };
	const char *why = testnet_init(&net);
	char *program = NULL;
	size_t len;
	int failed;

	cut_program = argc > 1 ? argv[1] : "build/src/edge/reclaim-cut";
	if (why) {
		printf("skipped: reclaim-cut: %s\n", why);
		testnet_done(&net);
		return 77;
	}
	(void)snprintf(cut_copy, sizeof(cut_copy), "%s/reclaim-cut", net.run_dir);
	if (file_read(cut_program, 64u << 20, &program, &len) < 0 ||
	    file_write_atomic(cut_copy, program, len, 0755) < 0 || chmod(cut_copy, 04755) < 0) {
		fprintf(stderr, "cannot copy %s\n", cut_program);
		return 1;
	}
	free(program);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	testnet_done(&net);
	return failed;
}
