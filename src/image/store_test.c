/* SPDX-License-Identifier: Apache-2.0 */
/* Images on a real file system: everything of a tree comes back, nothing of a failure stays. */
#include "image/store.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <cmocka.h>

#include "base/check.h"
#include "base/file.h"
#include "base/rng.h"
#include "image/incoming.h"
#include "image/reader.h"

static char root[64];
static struct image_store *store;
static const uint8_t key[32] = { 1, 2, 3 };

static int setup(void **state)
{
	char path[128];

	strcpy(root, "/tmp/reclaim-store-test-XXXXXX");
	if (!mkdtemp(root))
		return -1;
	snprintf(path, sizeof(path), "%s/store", root);
	return image_store_open(path, &store, NULL);
}

static int teardown(void **state)
{
	image_store_close(store);
	return dir_remove_all(root);
}

static const char *at(const char *name)
{
	static char paths[8][256];
	static unsigned next;
	char *p = paths[next++ % 8];

	snprintf(p, 256, "%s/%s", root, name);
	return p;
}

static void put(const char *name, const void *bytes, size_t len)
{
	int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0644);

	assert_true(fd >= 0);
	assert_int_equal(fd_write_all(fd, bytes, len), 0);
	close(fd);
}

static void put_random(const char *name, size_t len, uint64_t seed)
{
	uint8_t *buf = malloc(len + 8);
	struct rng r;

	rng_init(&r, seed);
	for (size_t i = 0; i < len; i += 8) {
		uint64_t v = rng_u64(&r);

		memcpy(buf + i, &v, 8);
	}
	put(name, buf, len);
	free(buf);
}

static int run(const char *fmt, ...)
{
	char cmd[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(cmd, sizeof(cmd), fmt, args);
	va_end(args);
	return WEXITSTATUS(system(cmd));
}

static void take_as(const char *job, uint64_t epoch, uint64_t seq, const char *src,
		    const char *previous, struct image_info *info)
{
	struct image_take_params p = { .job = job, .epoch = epoch, .seq = seq, .src_dir = at(src),
				       .previous = previous, .meta_json = "{\"n\":1}" };
	struct diag d = DIAG_INIT;
	int r;

	memcpy(p.key, key, 32);
	r = image_take(store, &p, info, &d);
	if (r < 0)
		fail_msg("take: %d %s: %s", r, d.where, d.what);
}

/* Modes, times, links, holes, names with odd bytes, extended attributes. */
static void make_tree(void)
{
	struct timespec times[2] = { { 1, 2 }, { 1234567890, 987654321 } };
	int fd;

	mkdir(at("src"), 0755);
	mkdir(at("src/empty"), 0700);
	mkdir(at("src/deep"), 0755);
	mkdir(at("src/deep/er"), 01777);
	put_random("src/big", 3500001, 1);
	put_random("src/deep/er/mid", 700000, 2);
	put("src/none", "", 0);
	for (int i = 0; i < 300; i++) {
		char name[64];

		snprintf(name, sizeof(name), "src/deep/s%03d", i);
		put_random(name, 1000 + (size_t)i, (uint64_t)i + 10);
	}
	put("src/odd \n\"name\xff", "x", 1);
	assert_int_equal(symlink("../does/not/exist", at("src/link")), 0);
	assert_int_equal(link(at("src/big"), at("src/deep/hard")), 0);
	assert_int_equal(mkfifo(at("src/fifo"), 0622), 0);
	/* Root alone reads what nobody may. */
	assert_int_equal(chmod(at("src/none"), geteuid() == 0 ? 0 : 0400), 0);
	assert_int_equal(chmod(at("src/big"), 04711), 0);
	fd = open(at("src/sparse"), O_WRONLY | O_CREAT, 0600);
	assert_int_equal(pwrite(fd, "start", 5, 0), 5);
	assert_int_equal(pwrite(fd, "middle", 6, 50000000), 6);
	assert_int_equal(ftruncate(fd, 100000000), 0);
	close(fd);
	(void)setxattr(at("src/big"), "user.note", "kept", 4, 0); /* not on every file system */
	assert_int_equal(utimensat(AT_FDCWD, at("src/big"), times, 0), 0);
	assert_int_equal(utimensat(AT_FDCWD, at("src/link"), times, AT_SYMLINK_NOFOLLOW), 0);
	assert_int_equal(utimensat(AT_FDCWD, at("src/deep/er"), times, 0), 0);
}

static const char list_cmd[] =
	"cd %s && { find . -printf '%%P|%%y|%%m|%%U:%%G|%%l|%%n|%%T@|' \\( -type d -printf '0' -o -printf '%%s' \\) "
	"-printf '\\n' | sort; find . -type f -exec sha256sum {} + | sort; getfattr -d -R . 2>/dev/null || true; } > %s";

static void assert_same_tree(const char *a, const char *b)
{
	assert_int_equal(run(list_cmd, at(a), at("list.a")), 0);
	assert_int_equal(run(list_cmd, at(b), at("list.b")), 0);
	assert_int_equal(run("diff %s %s", at("list.a"), at("list.b")), 0);
}

static void test_everything_comes_back(void **state)
{
	struct image_info info;
	struct diag d = DIAG_INIT;
	struct stat st;
	char *meta = NULL;
	uint64_t blocks;

	make_tree();
	take_as("j", 1, 1, "src", NULL, &info);
	if (image_restore(store, "j", info.digest, key, at("dst"), NULL, &meta, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	assert_string_equal(meta, "{\"n\":1}");
	free(meta);
	assert_same_tree("src", "dst");
	assert_int_equal(stat(at("dst/sparse"), &st), 0);
	blocks = (uint64_t)st.st_blocks;
	assert_true(blocks * 512 < 100000);
	/* Only into nothing or an empty folder. */
	assert_true(image_restore(store, "j", info.digest, key, at("dst"), NULL, NULL, &d) < 0);
	assert_same_tree("src", "dst");
	assert_int_equal(run("ls -d %s.restore-* 2>/dev/null", at("dst")), 2);
}

static void test_unchanged_chunks_are_shared(void **state)
{
	struct image_info a, b;

	make_tree();
	take_as("j", 1, 1, "src", NULL, &a);
	put_random("src/deep/s100", 5000, 99); /* one small file grows: its neighbours mostly stay */
	take_as("j", 1, 2, "src", a.digest, &b);
	assert_true(a.new_bytes > 4000000);
	assert_true(b.new_bytes < 900000);
	assert_string_equal(b.previous, a.digest);
}

static void test_one_folder_makes_one_pack(void **state)
{
	struct image_info a, b;

	mkdir(at("src"), 0755);
	for (int i = 0; i < 40; i++) { /* each content twice */
		char name[64];

		snprintf(name, sizeof(name), "src/f%02d", i);
		put_random(name, 2500000, (uint64_t)i / 2 + 1);
	}
	take_as("j", 1, 1, "src", NULL, &a);
	take_as("k", 1, 1, "src", NULL, &b);
	assert_true(a.new_bytes > 50000000 && a.new_bytes < 50100000);
	assert_int_equal(a.bytes, 100000000);
	assert_int_equal(run("cmp %s/store/jobs/j/packs/*.pack %s/store/jobs/k/packs/*.pack", root, root), 0);
	assert_int_equal(image_restore(store, "j", a.digest, key, at("dst"), NULL, NULL, NULL), 0);
	assert_int_equal(run("diff -r %s/src %s/dst", root, root), 0);
}

static void test_take_cancelled(void **state)
{
	image_cancel cancel = true;
	struct image_take_params p = { .job = "j", .epoch = 1, .seq = 1, .cancel = &cancel };
	struct image_info info;
	struct diag d = DIAG_INIT;

	make_tree();
	p.src_dir = at("src");
	assert_int_equal(image_take(store, &p, &info, &d), -ECANCELED);
	assert_int_equal(run("[ -z \"$(ls %s/store/jobs/j/tmp %s/store/jobs/j/packs %s/store/jobs/j/images | grep -v :)\" ]",
			     root, root, root), 0);
}

static void flip(const char *glob, long offset)
{
	assert_int_equal(run("f=$(ls %s/%s | head -1); b=$(dd if=$f bs=1 skip=%ld count=1 2>/dev/null | od -An -tu1); "
			     "printf \"\\\\$(printf %%o $((b ^ 1)))\" | dd of=$f bs=1 seek=%ld conv=notrunc 2>/dev/null",
			     root, glob, offset, offset), 0);
}

static void test_damage_is_named_and_falls_back(void **state)
{
	struct image_info a, b;
	struct image_damage damage;
	struct diag d = DIAG_INIT;

	make_tree();
	take_as("j", 1, 1, "src", NULL, &a);
	assert_int_equal(run("mv %s/store/jobs/j/packs %s/keep && mkdir %s/store/jobs/j/packs", root, root, root), 0);
	put_random("src/big", 3500001, 77);
	take_as("j", 1, 2, "src", a.digest, &b);
	flip("store/jobs/j/packs/*.pack", 2000000);
	assert_int_equal(run("mv %s/keep/* %s/store/jobs/j/packs/", root, root), 0);
	/* The chunk may lie in the other pack too; find the one that matters by verifying. */
	assert_int_equal(image_verify(store, "j", b.digest, NULL, 0, NULL, &damage, &d), -EBADMSG);
	assert_int_equal(damage.chunks_bad, 1);
	assert_int_equal(image_restore(store, "j", b.digest, key, at("dst"), NULL, NULL, &d), -EBADMSG);
	assert_string_equal(image_error_name(-EBADMSG), "damaged");
	assert_int_equal(access(at("dst"), F_OK), -1);
	assert_int_equal(image_verify(store, "j", b.digest, NULL, IMAGE_VERIFY_DROP_BAD, NULL, NULL, &d), -EBADMSG);
	assert_int_equal(image_verify(store, "j", b.digest, NULL, 0, NULL, &damage, &d), -EBADMSG);
	assert_int_equal(damage.chunks_bad, 0);
	assert_int_equal(damage.chunks_missing, 1);
	assert_int_equal(image_restore(store, "j", a.digest, key, at("dst"), NULL, NULL, &d), 0);
	flip("store/jobs/j/images/*", 150);
	flip("store/jobs/j/images/*[!x]", 160);
	assert_int_equal(run("[ $(ls %s/store/jobs/j/images | wc -l) = 2 ]", root), 0);
	struct image_info *infos;
	size_t count;
	assert_int_equal(image_list(store, "j", &infos, &count, &d), 0);
	assert_true(count < 2); /* a damaged manifest is not offered */
	free(infos);
}

static void test_wrong_key(void **state)
{
	struct image_info a;
	uint8_t other[32] = { 9 };
	struct diag d = DIAG_INIT;

	make_tree();
	take_as("j", 1, 1, "src", NULL, &a);
	assert_int_equal(image_restore(store, "j", a.digest, other, at("dst"), NULL, NULL, &d), -EKEYREJECTED);
	assert_int_equal(access(at("dst"), F_OK), -1);
}

static void test_prune_keeps_what_is_reachable(void **state)
{
	struct image_info info[5];
	struct image_pruned pruned;
	struct diag d = DIAG_INIT;
	uint64_t used_before, used_after, room;
	struct image_reader *reader;

	make_tree();
	for (int i = 0; i < 5; i++) {
		put_random("src/big", 3500001, 200 + (uint64_t)i);
		take_as("j", 1, (uint64_t)i + 1, "src", i ? info[i - 1].digest : NULL, &info[i]);
	}
	assert_int_equal(image_store_usage(store, &used_before, &room, &d), 0);
	assert_int_equal(image_reader_open(store, "j", info[4].digest, &reader, &d), 0);
	assert_int_equal(image_prune(store, "j", 2, NULL, &pruned, &d), -EBUSY);
	image_reader_close(reader);
	const char *pinned[] = { info[1].digest, NULL };
	assert_int_equal(image_prune(store, "j", 2, pinned, &pruned, &d), 0);
	assert_int_equal(pruned.images, 2);
	assert_int_equal(image_prune(store, NULL, 2, NULL, &pruned, &d), 0);
	assert_int_equal(pruned.images, 1);
	assert_int_equal(image_store_usage(store, &used_after, &room, &d), 0);
	assert_true(used_before - used_after > 9000000);
	for (int i = 3; i < 5; i++)
		assert_int_equal(image_verify(store, "j", info[i].digest, key, 0, NULL, NULL, &d), 0);
	assert_int_equal(image_verify(store, "j", info[0].digest, key, 0, NULL, NULL, &d), -ENOENT);
	assert_int_equal(image_prune(store, "j", 0, NULL, &pruned, &d), 0);
	assert_int_equal(access(at("store/jobs/j"), F_OK), -1);
}

static void test_older_epochs_are_refused(void **state)
{
	struct image_take_params p = { .job = "j", .epoch = 3 };
	struct image_info info;
	struct diag d = DIAG_INIT;
	uint64_t fence;

	make_tree();
	p.src_dir = at("src");
	assert_int_equal(image_fence(store, "j", 4, &d), 0);
	assert_int_equal(image_fence(store, "j", 2, &d), 0);
	assert_int_equal(image_fence_get(store, "j", &fence), 0);
	assert_int_equal(fence, 4);
	assert_int_equal(image_take(store, &p, &info, &d), -ESTALE);
	assert_string_equal(image_error_name(-ESTALE), "epoch");
}

/* A disk that fills up at any moment: a named error, and the disk as empty as before. */
static void test_full_disk(void **state)
{
	struct image_take_params p = { .job = "j", .epoch = 1, .seq = 1 };
	struct image_store *small = NULL;
	struct image_info info;
	struct diag d = DIAG_INIT;
	uint64_t used, room;

	make_tree();
	mkdir(at("small"), 0700);
	if (mount("tmpfs", at("small"), "tmpfs", 0, "size=2m") < 0)
		skip();
	memcpy(p.key, key, 32);
	assert_int_equal(image_store_open(at("small"), &small, &d), 0);
	p.src_dir = at("src");
	assert_int_equal(image_take(small, &p, &info, &d), -ENOSPC);
	assert_string_equal(image_error_name(-ENOSPC), "space");
	/* Also when it only shows while writing: a previous image hides the size. */
	mkdir(at("tiny"), 0755);
	put("tiny/a", "a", 1);
	p.src_dir = at("tiny");
	if (image_take(small, &p, &info, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	p.src_dir = at("src");
	p.previous = info.digest;
	p.seq = 2;
	assert_int_equal(image_take(small, &p, &info, &d), -ENOSPC);
	assert_int_equal(run("[ -z \"$(ls %s/jobs/j/tmp)\" ] && [ $(ls %s/jobs/j/packs | wc -l) = 2 ]",
			     at("small"), at("small")), 0);
	assert_int_equal(image_store_usage(small, &used, &room, &d), 0);
	assert_true(used < 100000);
	/* Restore too. */
	take_as("k", 1, 1, "src", NULL, &info);
	assert_int_equal(image_restore(store, "k", info.digest, key, at("small/dst"), NULL, NULL, &d), -ENOSPC);
	assert_int_equal(run("ls -d %s* 2>/dev/null", at("small/dst")), 2);
	image_store_close(small);
	assert_int_equal(umount(at("small")), 0);
}

static void test_arrival_resumes_and_commits(void **state)
{
	struct image_store *other = NULL;
	struct image_incoming *in = NULL;
	struct image_reader *reader = NULL;
	struct image_info info, got;
	struct diag d = DIAG_INIT;
	uint64_t chunks, bytes;
	uint8_t *buf = malloc(1 << 20);
	const void *manifest;
	size_t len;

	make_tree();
	take_as("j", 2, 1, "src", NULL, &info);
	assert_int_equal(image_store_open(at("other"), &other, &d), 0);
	assert_int_equal(image_reader_open(store, "j", info.digest, &reader, &d), 0);
	manifest = image_reader_bytes(reader, &len);
	for (int session = 0; session < 2; session++) {
		assert_int_equal(image_incoming_open(other, "j", image_reader_digest(reader), len, &in, &d), 0);
		assert_int_equal(image_incoming_manifest(in, manifest, len / 2, &d), 0);
		assert_int_equal(image_incoming_manifest(in, (const char *)manifest + len / 2, len - len / 2, &d), 0);
		if (image_incoming_ready(in, 0, false, &d) < 0)
			fail_msg("%s: %s", d.where, d.what);
		image_incoming_lacking(in, &chunks, &bytes);
		assert_int_equal(chunks, info.chunks - (session ? 3 : 0));
		assert_int_equal(image_incoming_commit(in, &got, &d), -ENODATA);
		for (uint32_t i = 0; i < info.chunks && (session || i < 3); i++) {
			if (!image_incoming_lacks(in, i))
				continue;
			assert_int_equal(image_reader_sealed(reader, i, buf, NULL, &d), 0);
			if (i == 1) {
				buf[7] ^= 1;
				assert_int_equal(image_incoming_put(in, i, buf, &d), -EBADMSG);
				buf[7] ^= 1;
			}
			assert_int_equal(image_incoming_put(in, i, buf, &d), 0);
		}
		if (session)
			assert_int_equal(image_incoming_commit(in, &got, &d), 0);
		image_incoming_close(in);
	}
	assert_string_equal(got.digest, info.digest);
	assert_int_equal(image_verify(other, "j", info.digest, key, 0, NULL, NULL, &d), 0);
	assert_int_equal(image_restore(other, "j", info.digest, key, at("dst"), NULL, NULL, &d), 0);
	assert_same_tree("src", "dst");
	image_reader_close(reader);
	/* An older image than the one held is a rollback. */
	take_as("j2", 1, 9, "src", NULL, &got);
	assert_int_equal(run("mkdir -p %s/x/jobs && mv %s/store/jobs/j2 %s/x/jobs/j2", root, root, root), 0);
	free(buf);
	image_store_close(other);
}

/* A set of plain files is taken without what lies beside it. */
static void test_skip(void **state)
{
	static const char *const skip[] = { "half", "old", "sub/x.tmp" };
	struct image_take_params p = { .job = "jobskip", .epoch = 1, .seq = 1, .skip = skip,
				       .skip_count = ARRAY_SIZE(skip) };
	struct image_info info;
	struct diag d = DIAG_INIT;

	assert_int_equal(mkdir(at("set"), 0755), 0);
	assert_int_equal(mkdir(at("set/old"), 0755), 0);
	assert_int_equal(mkdir(at("set/sub"), 0755), 0);
	put("set/half", "h", 1);
	put("set/halfway", "w", 1);
	put("set/old/gone", "g", 1);
	put("set/sub/x.tmp", "t", 1);
	put("set/sub/x", "x", 1);
	memcpy(p.key, key, 32);
	p.src_dir = at("set");
	assert_int_equal(image_take(store, &p, &info, &d), 0);
	assert_int_equal(image_restore(store, "jobskip", info.digest, key, at("unset"), NULL, NULL, &d), 0);
	assert_int_equal(run("cd %s && [ \"$(find . -type f | sort | tr '\\n' ' ')\" = './halfway ./sub/x ' ]",
			     at("unset")), 0);
	assert_int_equal(run("[ ! -e %s/old ]", at("unset")), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_everything_comes_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unchanged_chunks_are_shared, setup, teardown),
		cmocka_unit_test_setup_teardown(test_one_folder_makes_one_pack, setup, teardown),
		cmocka_unit_test_setup_teardown(test_skip, setup, teardown),
		cmocka_unit_test_setup_teardown(test_take_cancelled, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damage_is_named_and_falls_back, setup, teardown),
		cmocka_unit_test_setup_teardown(test_wrong_key, setup, teardown),
		cmocka_unit_test_setup_teardown(test_prune_keeps_what_is_reachable, setup, teardown),
		cmocka_unit_test_setup_teardown(test_older_epochs_are_refused, setup, teardown),
		cmocka_unit_test_setup_teardown(test_full_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(test_arrival_resumes_and_commits, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
