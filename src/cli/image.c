/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The images of this machine: what is here, whether it is whole, what may go.
 * Works on the store itself, so it needs no agent; sealed contents stay sealed,
 * since the key is the coordinator's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "base/schema.h"
#include "cli/commands.h"
#include "cli/context.h"
#include "image/store.h"

#define PREFIX_MIN 4

struct image_options {
	const char *store;
	bool json, drop_bad;
	uint64_t keep;
};

struct image_row {
	char *job, *image, *previous;
	uint64_t epoch, seq, created_ms, files, bytes, stored_bytes, chunks;
};

static const struct schema_field info_fields[] = {
	FIELD_STR(struct image_row, job, IMAGE_JOB_MAX, .help = "the job whose checkpoint it is"),
	FIELD_STR(struct image_row, image, IMAGE_DIGEST_HEX, .help = "SHA-256 of the manifest"),
	FIELD_STR(struct image_row, previous, IMAGE_DIGEST_HEX, .help = "the image before; absent for a first"),
	FIELD_U64(struct image_row, epoch, 0, 0, .help = "incarnation of the job"),
	FIELD_U64(struct image_row, seq, 0, 0, .help = "commit within the epoch"),
	FIELD_U64(struct image_row, created_ms, 0, 0, .help = "milliseconds since 1970, by the maker's clock"),
	FIELD_U64(struct image_row, files, 0, 0, .help = "entries of every kind"),
	FIELD_U64(struct image_row, bytes, 0, 0, .help = "of the files, without holes"),
	FIELD_U64(struct image_row, stored_bytes, 0, 0, .help = "of its chunks; images of a job share chunks"),
	FIELD_U64(struct image_row, chunks, 0, 0, .help = "how many"),
	FIELD_END,
};
static const struct schema info_schema = SCHEMA(struct image_row, "image", info_fields);

static json_t *info_json(const struct image_info *i)
{
	struct image_row row = {
		.job = (char *)(uintptr_t)i->job, .image = (char *)(uintptr_t)i->digest,
		.previous = i->previous[0] ? (char *)(uintptr_t)i->previous : NULL, .epoch = i->epoch,
		.seq = i->seq, .created_ms = i->created_wall_ms, .files = i->files, .bytes = i->bytes,
		.stored_bytes = i->stored_bytes, .chunks = i->chunks,
	};

	return schema_encode(&info_schema, &row);
}

static int store_open(const struct image_options *o, struct image_store **ret)
{
	struct diag diag = DIAG_INIT;
	const char *state = getenv("RECLAIM_STATE");
	char dir[4096];
	int r;

	if (o->store)
		r = path_format(dir, sizeof(dir), "%s", o->store);
	else
		r = path_format(dir, sizeof(dir), "%s/images", state && *state ? state : "/var/lib/reclaim");
	if (r == 0 && access(dir, F_OK) < 0)
		return cli_failf("%s: %s", dir, errno == EACCES ? "only the agent's user may look at images" :
								   "no image store here");
	if (r == 0)
		r = image_store_open(dir, ret, &diag);
	return r < 0 ? cli_fail(&diag) : 0;
}

/* The one image of the job that begins like this; prints what is wrong. */
static int image_find(struct image_store *s, const char *job, const char *prefix, struct image_info *ret)
{
	CLEANUP_FREE struct image_info *infos = NULL;
	struct diag diag = DIAG_INIT;
	size_t count = 0, hits = 0;

	if (strlen(prefix) < PREFIX_MIN)
		return cli_failf("give at least %d digits of the image's digest", PREFIX_MIN);
	if (image_list(s, job, &infos, &count, &diag) < 0)
		return cli_fail(&diag);
	for (size_t i = 0; i < count; i++) {
		if (strncmp(infos[i].digest, prefix, strlen(prefix)) == 0) {
			*ret = infos[i];
			hits++;
		}
	}
	if (hits == 0)
		return cli_failf("job %s has no image %s here", job, prefix);
	return hits > 1 ? cli_failf("%s is the beginning of %zu images", prefix, hits) : 0;
}

static int run_ls(const void *values, int argc, const char *const *argv)
{
	CLEANUP_IMAGE_STORE struct image_store *s = NULL;
	CLEANUP_FREE struct image_info *infos = NULL;
	const struct image_options *o = values;
	struct diag diag = DIAG_INIT;
	char bytes[FORMAT_MAX], when[CLOCK_TEXT_MAX];
	size_t count = 0;
	int r = store_open(o, &s);

	if (r)
		return r;
	if (image_list(s, argc ? argv[0] : NULL, &infos, &count, &diag) < 0)
		return cli_fail(&diag);
	if (o->json) {
		json_t *list = json_array();

		for (size_t i = 0; i < count; i++)
			json_array_append_new(list, info_json(&infos[i]));
		cli_print_json(list);
		return 0;
	}
	if (count)
		printf("%-24s %-16s %6s %6s %10s %8s  %s\n", "JOB", "IMAGE", "EPOCH", "COMMIT", "SIZE", "FILES",
		       "TAKEN");
	for (size_t i = 0; i < count; i++)
		printf("%-24s %-16.16s %6llu %6llu %10s %8llu  %s\n", infos[i].job, infos[i].digest,
		       (unsigned long long)infos[i].epoch, (unsigned long long)infos[i].seq,
		       format_size(infos[i].bytes, bytes), (unsigned long long)infos[i].files,
		       clock_format_wall(infos[i].created_wall_ms, when));
	return 0;
}

static int run_show(const void *values, int argc, const char *const *argv)
{
	CLEANUP_IMAGE_STORE struct image_store *s = NULL;
	CLEANUP_FREE char *meta = NULL;
	const struct image_options *o = values;
	struct image_info i;
	struct diag diag = DIAG_INIT;
	char a[FORMAT_MAX], b[FORMAT_MAX], when[CLOCK_TEXT_MAX];
	int r = store_open(o, &s);

	if (r == 0)
		r = image_find(s, argv[0], argv[1], &i);
	if (r)
		return r;
	if (image_show(s, argv[0], i.digest, &i, &meta, &diag) < 0)
		return cli_fail(&diag);
	if (o->json) {
		json_t *j = info_json(&i), *m = json_loads(meta, 0, NULL);

		if (m)
			json_object_set_new(j, "meta", m);
		cli_print_json(j);
		return 0;
	}
	printf("image     %s\njob       %s, epoch %llu, commit %llu\ntaken     %s\nprevious  %s\n"
	       "files     %llu, %s\nchunks    %llu of at most %s, %s stored\nmeta      %s\n",
	       i.digest, i.job, (unsigned long long)i.epoch, (unsigned long long)i.seq,
	       clock_format_wall(i.created_wall_ms, when), i.previous[0] ? i.previous : "-",
	       (unsigned long long)i.files, format_size(i.bytes, a), (unsigned long long)i.chunks,
	       format_size(i.chunk_size, b), format_size(i.stored_bytes, a), meta);
	return 0;
}

static int run_verify(const void *values, int argc, const char *const *argv)
{
	CLEANUP_IMAGE_STORE struct image_store *s = NULL;
	CLEANUP_FREE struct image_info *infos = NULL;
	const struct image_options *o = values;
	struct diag diag = DIAG_INIT;
	size_t count = 0, damaged = 0;
	int r = store_open(o, &s);

	if (r)
		return r;
	if (image_list(s, argc ? argv[0] : NULL, &infos, &count, &diag) < 0)
		return cli_fail(&diag);
	for (size_t i = 0; i < count; i++) {
		struct image_damage d = { 0 };

		if (argc > 1 && strncmp(infos[i].digest, argv[1], strlen(argv[1])) != 0)
			continue;
		r = image_verify(s, infos[i].job, infos[i].digest, NULL,
				 o->drop_bad ? IMAGE_VERIFY_DROP_BAD : 0, NULL, &d, &diag);
		if (r < 0 && r != -EBADMSG)
			return cli_fail(&diag);
		damaged += r != 0;
		printf("%s %.16s: %s", infos[i].job, infos[i].digest, r ? "DAMAGED" : "whole");
		if (r)
			printf(", %llu of %llu chunks damaged, %llu missing%s", (unsigned long long)d.chunks_bad,
			       (unsigned long long)d.chunks_checked, (unsigned long long)d.chunks_missing,
			       o->drop_bad ? "; a fetch brings them again" : "");
		printf("\n");
	}
	return damaged ? 1 : 0;
}

static int run_prune(const void *values, int argc, const char *const *argv)
{
	CLEANUP_IMAGE_STORE struct image_store *s = NULL;
	const struct image_options *o = values;
	struct image_pruned p = { 0 };
	struct diag diag = DIAG_INIT;
	char bytes[FORMAT_MAX];
	int r = store_open(o, &s);

	if (r)
		return r;
	if (image_prune(s, argc ? argv[0] : NULL, (unsigned)o->keep, NULL, &p, &diag) < 0)
		return cli_fail(&diag);
	printf("%llu images and %llu chunks removed, %s given back\n", (unsigned long long)p.images,
	       (unsigned long long)p.chunks, format_size(p.bytes, bytes));
	return 0;
}

#define STORE_OPTION                                                                             \
	{ .name = "store", .kind = OPTION_STR, .offset = offsetof(struct image_options, store),  \
	  .arg = "DIR", .help = "the store; default $RECLAIM_STATE/images or /var/lib/reclaim/images" }
#define JSON_OPTION                                                                              \
	{ .name = "json", .kind = OPTION_FLAG, .offset = offsetof(struct image_options, json),   \
	  .help = "JSON, see docs/schema/image.json" }

static const struct option look_options[] = { STORE_OPTION, JSON_OPTION, { .kind = OPTION_END } };
static const struct option verify_options[] = {
	STORE_OPTION,
	{ .name = "drop-bad", .kind = OPTION_FLAG, .offset = offsetof(struct image_options, drop_bad),
	  .help = "forget damaged chunks, so that the next fetch repairs the image" },
	{ .kind = OPTION_END },
};
static const struct option prune_options[] = {
	STORE_OPTION,
	{ .name = "keep", .kind = OPTION_U64, .offset = offsetof(struct image_options, keep), .arg = "N",
	  .fallback = "2", .min = 1, .max = 1000, .help = "the newest N images of each job stay" },
	{ .kind = OPTION_END },
};

const struct command cli_image_commands[] = {
	{ .name = "image ls", .args = "[JOB]", .args_max = 1, .options = look_options,
	  .values_size = sizeof(struct image_options), .help = "checkpoint images on this machine", .run = run_ls },
	{ .name = "image show", .args = "JOB IMAGE", .args_min = 2, .args_max = 2, .options = look_options,
	  .values_size = sizeof(struct image_options), .help = "what one image says about itself",
	  .detail = "IMAGE is the digest or its beginning. File names are sealed with the rest.", .run = run_show },
	{ .name = "image verify", .args = "[JOB [IMAGE]]", .args_max = 2, .options = verify_options,
	  .values_size = sizeof(struct image_options), .help = "reads every chunk and says what is damaged",
	  .run = run_verify },
	{ .name = "image prune", .args = "[JOB]", .args_max = 1, .options = prune_options,
	  .values_size = sizeof(struct image_options),
	  .help = "removes old images and what nothing reaches any more",
	  .detail = "A job whose images are in use is left alone.", .run = run_prune },
	{ .name = NULL },
};
