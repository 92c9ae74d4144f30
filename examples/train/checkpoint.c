/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "sha256.h"

#define MAGIC "CHARLM1"
#define PATH_LEN 4096
#define FILE_LEN (PATH_LEN + 16)

struct header {
	char magic[8];
	struct model_config cfg;
	uint32_t zero;
};

static int write_all(int fd, const void *bytes, size_t len)
{
	const char *p = bytes;

	while (len > 0) {
		ssize_t n = write(fd, p, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		len -= (size_t)n;
	}
	return 0;
}

/* A file of up to two parts, synced; adds its line to the manifest. */
static int put(const char *dir, const char *name, const void *a, size_t a_len, const void *b,
	       size_t b_len, char *manifest, size_t manifest_size)
{
	char path[FILE_LEN], hex[65];
	size_t used = manifest ? strlen(manifest) : 0;
	struct sha256 hash;
	int fd, r;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	r = write_all(fd, a, a_len);
	if (r == 0 && b_len)
		r = write_all(fd, b, b_len);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r < 0 || !manifest)
		return r;
	sha256_init(&hash);
	sha256_update(&hash, a, a_len);
	if (b_len)
		sha256_update(&hash, b, b_len);
	sha256_final_hex(&hash, hex);
	(void)snprintf(manifest + used, manifest_size - used, "%zu %s %s\n", a_len + b_len, hex,
		       name);
	return 0;
}

static int sync_dir(const char *dir)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;

	if (fd < 0)
		return -errno;
	if (fsync(fd) < 0)
		r = -errno;
	(void)close(fd); /* read only */
	return r;
}

static void remove_dir(const char *dir)
{
	static const char *const names[] = { "MANIFEST", "model.bin", "adamw.bin", "state.txt" };
	char path[FILE_LEN];

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		(void)unlink(path); /* may be missing */
	}
	(void)rmdir(dir);
}

static int descending(const void *a, const void *b)
{
	return strcmp(*(char *const *)b, *(char *const *)a);
}

/* Names of committed checkpoints, newest first; the caller frees all. */
static size_t list(const char *dir, char ***ret)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	char **names = NULL;
	size_t n = 0;

	while (d && (e = readdir(d))) {
		char **grown;

		if (strncmp(e->d_name, "step-", 5) != 0)
			continue;
		grown = realloc(names, (n + 1) * sizeof(*names));
		if (!grown)
			break;
		names = grown;
		names[n] = strdup(e->d_name);
		if (!names[n])
			break;
		n++;
	}
	if (d)
		(void)closedir(d);
	if (n)
		qsort(names, n, sizeof(*names), descending);
	*ret = names;
	return n;
}

static void list_free(char **names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(names[i]);
	free(names);
}

static void prune(const char *dir)
{
	char **names, path[PATH_LEN];
	size_t n = list(dir, &names);

	for (size_t i = 2; i < n; i++) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		remove_dir(path);
	}
	list_free(names, n);
}

static struct header header_of(const struct model *m)
{
	struct header h = { .magic = MAGIC, .cfg = m->cfg };

	return h;
}

int checkpoint_save(const char *dir, const struct train_state *s, uint64_t pause_ns,
		    uint64_t *ret_bytes)
{
	char fresh[PATH_LEN], final[PATH_LEN], state[512], manifest[1024] = "";
	struct header h = header_of(&s->model);
	size_t len = s->model.params_count * sizeof(float);
	int r;

	(void)snprintf(fresh, sizeof(fresh), "%s/.new-%d", dir, (int)getpid());
	(void)snprintf(final, sizeof(final), "%s/step-%08" PRIu64, dir, s->step);
	(void)snprintf(state, sizeof(state),
		       "step %" PRIu64 "\nrandom %" PRIu64 "\ntext %s\nbatch %" PRIu64 "\n",
		       s->step, s->random, s->text, s->batch);
	if (access(final, F_OK) == 0)
		return 0; /* this step is saved already */
	remove_dir(fresh); /* an earlier process of this number may have died here */
	if (mkdir(fresh, 0755) < 0)
		return -errno;
	r = put(fresh, "model.bin", &h, sizeof(h), s->model.params, len, manifest,
		sizeof(manifest));
	if (r == 0)
		r = put(fresh, "adamw.bin", s->adamw.first, len, s->adamw.second, len, manifest,
			sizeof(manifest));
	if (r == 0)
		r = put(fresh, "state.txt", state, strlen(state), NULL, 0, manifest,
			sizeof(manifest));
	if (r == 0 && pause_ns) {
		struct timespec t = { (time_t)(pause_ns / 1000000000),
				      (long)(pause_ns % 1000000000) };

		while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR)
			; /* a signal does not make a slow disk faster */
	}
	if (r == 0)
		r = put(fresh, "MANIFEST", manifest, strlen(manifest), NULL, 0, NULL, 0);
	if (r == 0)
		r = sync_dir(fresh);
	if (r == 0 && rename(fresh, final) < 0)
		r = -errno;
	if (r == 0)
		r = sync_dir(dir);
	if (r < 0) {
		remove_dir(fresh);
		return r;
	}
	if (ret_bytes)
		*ret_bytes = sizeof(h) + 3 * len + strlen(state);
	prune(dir);
	return 0;
}

/* The whole file, with a NUL behind it. */
static int slurp(const char *path, char **ret, size_t *ret_len)
{
	FILE *f = fopen(path, "rbe");
	struct stat st;
	char *p;

	if (!f)
		return -errno;
	if (fstat(fileno(f), &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > (off_t)1 << 32) {
		(void)fclose(f);
		return -EINVAL;
	}
	p = malloc((size_t)st.st_size + 1);
	if (!p || fread(p, 1, (size_t)st.st_size, f) != (size_t)st.st_size) {
		free(p);
		(void)fclose(f);
		return p ? -EIO : -ENOMEM;
	}
	(void)fclose(f);
	p[st.st_size] = 0;
	*ret = p;
	*ret_len = (size_t)st.st_size;
	return 0;
}

/* One file, held to its line in the manifest. */
static int get(const char *dir, const char *manifest, const char *name, char **ret, size_t *ret_len)
{
	char path[FILE_LEN], line[256], hex[65];
	struct sha256 hash;
	int r;

	(void)snprintf(path, sizeof(path), "%s/%s", dir, name);
	r = slurp(path, ret, ret_len);
	if (r < 0)
		return r;
	sha256_init(&hash);
	sha256_update(&hash, *ret, *ret_len);
	sha256_final_hex(&hash, hex);
	(void)snprintf(line, sizeof(line), "%zu %s %s\n", *ret_len, hex, name);
	if (strstr(manifest, line))
		return 0;
	free(*ret);
	*ret = NULL;
	return -EBADMSG;
}

static int decode(struct train_state *s, const char *model, size_t model_len, const char *adamw,
		  size_t adamw_len, const char *state)
{
	struct header want = header_of(&s->model);
	size_t len = s->model.params_count * sizeof(float);
	uint64_t step, rng, batch;
	char text[65];

	if (sscanf(state, "step %" SCNu64 " random %" SCNu64 " text %64s batch %" SCNu64, &step,
		   &rng, text, &batch) != 4)
		return -EBADMSG;
	if (model_len != sizeof(want) + len || memcmp(model, &want, sizeof(want)) != 0 ||
	    adamw_len != 2 * len || strcmp(text, s->text) != 0 || batch != s->batch) {
		(void)fprintf(stderr, "train: the checkpoint is of another model or text\n");
		return -EINVAL;
	}
	memcpy(s->model.params, model + sizeof(want), len);
	memcpy(s->adamw.first, adamw, len);
	memcpy(s->adamw.second, adamw + len, len);
	s->step = step;
	s->random = rng;
	return 1;
}

static int load_one(const char *dir, struct train_state *s)
{
	char path[FILE_LEN], *manifest = NULL, *model = NULL, *adamw = NULL, *state = NULL;
	size_t manifest_len, model_len = 0, adamw_len = 0, state_len;
	int r;

	(void)snprintf(path, sizeof(path), "%s/MANIFEST", dir);
	r = slurp(path, &manifest, &manifest_len);
	if (r == 0)
		r = get(dir, manifest, "model.bin", &model, &model_len);
	if (r == 0)
		r = get(dir, manifest, "adamw.bin", &adamw, &adamw_len);
	if (r == 0)
		r = get(dir, manifest, "state.txt", &state, &state_len);
	if (r == 0)
		r = decode(s, model, model_len, adamw, adamw_len, state);
	free(manifest);
	free(model);
	free(adamw);
	free(state);
	return r;
}

int checkpoint_load(const char *dir, struct train_state *s)
{
	char **names, path[PATH_LEN];
	size_t n = list(dir, &names);
	int r = 0;

	for (size_t i = 0; i < n && r != 1 && r != -EINVAL; i++) {
		(void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
		r = load_one(path, s);
		if (r < 0)
			(void)fprintf(stderr, "train: %s: %s\n", path, strerror(-r));
	}
	list_free(names, n);
	return r;
}

int checkpoint_load_model(const char *path, struct model *ret)
{
	struct header h;
	char *bytes;
	size_t len;
	int r = slurp(path, &bytes, &len);

	if (r < 0)
		return r;
	r = -EBADMSG;
	if (len >= sizeof(h)) {
		memcpy(&h, bytes, sizeof(h));
		if (memcmp(h.magic, MAGIC, sizeof(h.magic)) == 0)
			r = model_init(ret, &h.cfg);
		if (r == 0 && len != sizeof(h) + ret->params_count * sizeof(float)) {
			model_done(ret);
			r = -EBADMSG;
		}
		if (r == 0)
			memcpy(ret->params, bytes + sizeof(h), len - sizeof(h));
	}
	free(bytes);
	return r;
}

int checkpoint_write_model(const char *path, const struct model *m)
{
	struct header h = header_of(m);

	return put(".", path, &h, sizeof(h), m->params, m->params_count * sizeof(float), NULL, 0);
}

void checkpoint_digest(const struct train_state *s, char hex[65])
{
	size_t len = s->model.params_count * sizeof(float);
	struct sha256 hash;

	sha256_init(&hash);
	sha256_update(&hash, s->model.params, len);
	sha256_update(&hash, s->adamw.first, len);
	sha256_update(&hash, s->adamw.second, len);
	sha256_final_hex(&hash, hex);
}
