/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs are gathered in a temporary folder of links, one per input under the
 * name it shall have, and packed from there: folders through their link with
 * a trailing slash (tar then takes what is behind it), files as copies that
 * share blocks where the file system can. Nothing of a tree is copied twice.
 */
#include "cli/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"

extern char **environ;

/* Runs a program with stdin and stdout from in and out (-1 = ours). */
static int run_program(const char *const argv[], int in, int out, struct diag *diag)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int status;
	(void)posix_spawn_file_actions_init(&actions);
	if (in >= 0)
		(void)posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	if (out >= 0)
		(void)posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	int r = posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ);
	(void)posix_spawn_file_actions_destroy(&actions);
	if (r != 0)
		return diag_set(diag, -r, argv[0], "cannot start: %s", strerror(r));
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return diag_set(diag, -errno, argv[0], "cannot wait: %s", strerror(errno));
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		return diag_set(diag, -EIO, argv[0], "failed with status %d",
				WIFEXITED(status) ? WEXITSTATUS(status) : -1);
	return 0;
}

int archive_scratch(struct diag *diag)
{
	const char *dir = getenv("TMPDIR");
	char name[PATH_MAX];
	if (path_format(name, sizeof(name), "%s/reclaim-XXXXXX", dir && *dir ? dir : "/tmp") < 0)
		return diag_set(diag, -ENAMETOOLONG, "TMPDIR", "the path is too long");
	int fd = mkostemp(name, O_CLOEXEC);
	if (fd < 0)
		return diag_set(diag, -errno, name, "cannot make a temporary file: %s", strerror(errno));
	(void)unlink(name);
	return fd;
}

static int add_input(const char *dir, const struct job_input *in, struct diag *diag)
{
	CLEANUP_FREE char *full = realpath(in->path, NULL);
	struct stat st;
	char name[PATH_MAX], at[PATH_MAX];
	if (!full || stat(full, &st) < 0)
		return diag_set(diag, -errno, in->path, "input: %s", strerror(errno));
	const char *base = strrchr(full, '/');
	int r = path_format(name, sizeof(name), "%s", in->to ? in->to : (base ? base + 1 : full));
	if (r == 0)
		r = path_format(at, sizeof(at), "%s/%s", dir, name);
	if (r < 0)
		return diag_set(diag, r, in->path, "the path is too long");
	char *slash = strrchr(at, '/');
	*slash = '\0';
	r = dir_make_all(at, 0700);
	*slash = '/';
	if (r < 0)
		return diag_set(diag, r, at, "cannot make the folder: %s", strerror(-r));
	if (S_ISDIR(st.st_mode))
		return symlink(full, at) < 0 ? diag_set(diag, -errno, in->path, "input: %s", strerror(errno)) : 0;
	const char *const cp[] = { "cp", "--reflink=auto", "--preserve=mode,timestamps", "--", full, at, NULL };
	r = run_program(cp, -1, -1, diag);
	if (r == 0 && in->executable && chmod(at, (st.st_mode & 0777) | 0111) < 0)
		r = diag_set(diag, -errno, in->path, "input: %s", strerror(errno));
	return r;
}

int archive_inputs(const struct job_spec *spec, uint64_t *ret_size, struct diag *diag)
{
	char dir[PATH_MAX];
	const char *tmp = getenv("TMPDIR");
	if (path_format(dir, sizeof(dir), "%s/reclaim-inputs-XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0 ||
	    !mkdtemp(dir))
		return diag_set(diag, -errno, dir, "cannot make a temporary folder: %s", strerror(errno));
	CLEANUP_FREE const char **argv = calloc(spec->inputs_count + 8, sizeof(*argv));
	CLEANUP_FREE char *names = calloc(spec->inputs_count + 1, PATH_MAX);
	CLEANUP_FD int fd = archive_scratch(diag);
	int r = fd < 0 ? fd : (argv && names ? 0 : -ENOMEM);
	size_t n = 0;
	if (r == 0) {
		argv[n++] = "tar";
		argv[n++] = "-cf-";
		argv[n++] = "-C";
		argv[n++] = dir;
		argv[n++] = "--";
	}
	for (size_t i = 0; r == 0 && i < spec->inputs_count; i++) {
		char *name = names + i * PATH_MAX, at[PATH_MAX];
		struct stat st;
		r = add_input(dir, &spec->inputs[i], diag);
		const char *base = strrchr(spec->inputs[i].path, '/');
		CLEANUP_FREE char *full = realpath(spec->inputs[i].path, NULL);
		if (r == 0 && full && !spec->inputs[i].to)
			base = strrchr(full, '/');
		if (r == 0)
			r = path_format(name, PATH_MAX - 2, "%s",
					spec->inputs[i].to ? spec->inputs[i].to
							   : (base ? base + 1 : spec->inputs[i].path));
		if (r == 0)
			r = path_format(at, sizeof(at), "%s/%s", dir, name);
		if (r == 0 && lstat(at, &st) == 0 && S_ISLNK(st.st_mode))
			(void)strcat(name, "/."); /* what is behind the link: a slash alone gives the link */
		argv[n++] = name;
	}
	if (r == 0)
		r = run_program(argv, -1, fd, diag);
	(void)dir_remove_all(dir);
	if (r < 0)
		return r;
	off_t size = lseek(fd, 0, SEEK_END);
	if (size < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return diag_set(diag, -errno, "inputs", "%s", strerror(errno));
	*ret_size = (uint64_t)size;
	return TAKE_FD(fd);
}

int archive_unpack(int fd, const char *into, struct diag *diag)
{
	int r = dir_make_all(into, 0755);
	if (r < 0)
		return diag_set(diag, r, into, "cannot make the folder: %s", strerror(-r));
	if (lseek(fd, 0, SEEK_SET) < 0)
		return diag_set(diag, -errno, into, "%s", strerror(errno));
	const char *const argv[] = { "tar", "-xf-", "-C", into, "--no-same-owner", NULL };
	return run_program(argv, fd, -1, diag);
}
