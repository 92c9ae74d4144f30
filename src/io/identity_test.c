/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/io_test_util.h"

static void test_enrol_and_open(void **state)
{
	CLEANUP_IDENTITY struct identity *id = enrolled("lab1", IDENTITY_AGENT);
	const struct identity_peer *self = identity_self(id);
	assert_string_equal(self->name, "lab1");
	assert_int_equal(self->role, IDENTITY_AGENT);
	assert_int_equal(strlen(self->digest), IDENTITY_DIGEST_HEX);
	assert_true(identity_expires_wall_ms(id) / 1000 > (uint64_t)time(NULL) + 86000);

	/* A second authority would orphan everybody. */
	struct diag d = DIAG_INIT;
	assert_int_equal(identity_ca_create(test_dir, "campus", &d), -EEXIST);
}

static void test_sign_verify(void **state)
{
	CLEANUP_IDENTITY struct identity *a = enrolled("coord", IDENTITY_COORDINATOR);
	CLEANUP_IDENTITY struct identity *b = enrolled("lab2", IDENTITY_AGENT);
	uint8_t sig[IDENTITY_SIGNATURE_MAX];
	size_t len;
	struct identity_peer peer;

	assert_int_equal(identity_sign(a, "ticket", 6, sig, &len), 0);
	assert_int_equal(identity_verify(b, identity_cert_pem(a), "ticket", 6, sig, len, &peer), 0);
	assert_string_equal(peer.name, "coord");
	assert_int_equal(peer.role, IDENTITY_COORDINATOR);
	assert_int_equal(identity_verify(b, identity_cert_pem(a), "tickeT", 6, sig, len, &peer),
			 -EBADMSG);
	assert_int_equal(identity_verify(b, identity_cert_pem(b), "ticket", 6, sig, len, &peer),
			 -EBADMSG);
	for (size_t i = 0; i < len; i++) {
		sig[i] ^= 0x40;
		assert_int_equal(identity_verify(b, identity_cert_pem(a), "ticket", 6, sig, len, &peer),
				 -EBADMSG);
		sig[i] ^= 0x40;
	}
	assert_int_equal(identity_verify(b, "no certificate", "ticket", 6, sig, len, &peer), -EINVAL);
}

static void test_foreign_authority(void **state)
{
	struct diag d = DIAG_INIT;
	char other[256];
	snprintf(other, sizeof(other), "%s/other", test_dir);
	assert_int_equal(identity_ca_create(other, "other", &d), 0);
	CLEANUP_IDENTITY struct identity *ours = enrolled("lab3", IDENTITY_AGENT);
	CLEANUP_IDENTITY struct identity *theirs =
		enrolled_by(other, "coord2", IDENTITY_COORDINATOR, 86400);
	uint8_t sig[IDENTITY_SIGNATURE_MAX];
	size_t len;
	struct identity_peer peer;
	assert_int_equal(identity_sign(theirs, "x", 1, sig, &len), 0);
	assert_int_equal(identity_verify(ours, identity_cert_pem(theirs), "x", 1, sig, len, &peer),
			 -EACCES);
	assert_int_equal(identity_check_cert(ours, identity_cert_pem(theirs), &peer, &d), -EACCES);
	assert_true(d.what[0]);
}

static void test_expired(void **state)
{
	struct diag d = DIAG_INIT;
	struct identity_ca *ca;
	char *csr = NULL, *cert = NULL;
	char dir[256];
	struct identity_peer peer;
	CLEANUP_IDENTITY struct identity *ours = enrolled("lab4", IDENTITY_AGENT);

	snprintf(dir, sizeof(dir), "%s/late", test_dir);
	assert_int_equal(identity_ca_open(test_dir, &ca, &d), 0);
	assert_int_equal(identity_request(dir, "late", &csr, &d), 0);
	assert_int_equal(identity_ca_sign(ca, csr, "late", IDENTITY_GUEST, 0, &cert, NULL, &d), 0);
	assert_int_equal(identity_check_cert(ours, cert, &peer, &d), -EACCES);
	assert_non_null(strstr(d.what, "expired"));
	assert_int_equal(identity_install(dir, identity_ca_pem(ca), cert, &d), -EACCES);
	free(csr);
	free(cert);
	identity_ca_free(ca);
}

static void test_bad_input(void **state)
{
	struct diag d = DIAG_INIT;
	struct identity_ca *ca;
	char *cert = NULL, *csr = NULL;
	char dir[256];
	struct identity *id = NULL;

	assert_int_equal(identity_ca_open(test_dir, &ca, &d), 0);
	snprintf(dir, sizeof(dir), "%s/bad", test_dir);
	assert_int_equal(identity_request(dir, "bad", &csr, &d), 0);
	static const char *const names[] = { "", "../x", "a b", "-x", "a/b", "x\ny", NULL };
	for (size_t i = 0; names[i]; i++)
		assert_int_equal(identity_ca_sign(ca, csr, names[i], IDENTITY_GUEST, 60, &cert, NULL, &d),
				 -EINVAL);
	/* Any broken byte of a request is refused, and never crashes. */
	for (size_t i = 0, n = strlen(csr); i < n; i += 7) {
		char old = csr[i];
		csr[i] = old == 'A' ? 'B' : 'A';
		if (identity_ca_sign(ca, csr, "bad", IDENTITY_GUEST, 60, &cert, NULL, &d) == 0) {
			free(cert); /* base64 padding or header text may be indifferent */
			cert = NULL;
		}
		csr[i] = old;
	}
	csr[strlen(csr) / 2] = 0;
	assert_int_equal(identity_ca_sign(ca, csr, "bad", IDENTITY_GUEST, 60, &cert, NULL, &d), -EINVAL);
	free(csr);
	identity_ca_free(ca);

	assert_int_equal(identity_open("/nonexistent", &id, &d), -ENOENT);
	CLEANUP_IDENTITY struct identity *ok = enrolled("worldly", IDENTITY_GUEST);
	snprintf(dir, sizeof(dir), "%s/worldly/key.pem", test_dir);
	assert_int_equal(chmod(dir, 0644), 0);
	snprintf(dir, sizeof(dir), "%s/worldly", test_dir);
	assert_int_equal(identity_open(dir, &id, &d), -EACCES);
	assert_non_null(strstr(d.what, "0600"));
}

static int setup(void **state)
{
	campus_new();
	return 0;
}

static int teardown(void **state)
{
	campus_remove();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_enrol_and_open),
		cmocka_unit_test(test_sign_verify),
		cmocka_unit_test(test_foreign_authority),
		cmocka_unit_test(test_expired),
		cmocka_unit_test(test_bad_input),
	};
	return cmocka_run_group_tests(tests, setup, teardown);
}
