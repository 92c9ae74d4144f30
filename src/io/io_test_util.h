/* SPDX-License-Identifier: Apache-2.0 */
/* A throwaway campus for tests: an authority and identities in a temporary folder. */
#ifndef RECLAIM_IO_TEST_UTIL_H
#define RECLAIM_IO_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/file.h"
#include "io/identity.h"

static char test_dir[64];

static inline void campus_new(void)
{
	struct diag d = DIAG_INIT;
	snprintf(test_dir, sizeof(test_dir), "/tmp/reclaim-io-test-XXXXXX");
	assert_non_null(mkdtemp(test_dir));
	if (identity_ca_create(test_dir, "campus", &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
}

static inline void campus_remove(void)
{
	(void)dir_remove_all(test_dir);
}

/* An identity in test_dir/<name>, signed by the authority in ca_dir. */
static inline struct identity *enrolled_by(const char *ca_dir, const char *name,
					   enum identity_role role, uint64_t valid_s)
{
	struct diag d = DIAG_INIT;
	char dir[256];
	char *csr = NULL, *cert = NULL;
	struct identity_ca *ca = NULL;
	struct identity *id = NULL;

	snprintf(dir, sizeof(dir), "%s/%s", test_dir, name);
	if (identity_ca_open(ca_dir, &ca, &d) < 0 || identity_request(dir, name, &csr, &d) < 0 ||
	    identity_ca_sign(ca, csr, name, role, valid_s, &cert, NULL, &d) < 0 ||
	    identity_install(dir, identity_ca_pem(ca), cert, &d) < 0 ||
	    identity_open(dir, &id, &d) < 0)
		fail_msg("%s: %s", d.where, d.what);
	identity_ca_free(ca);
	free(csr);
	free(cert);
	return id;
}

static inline struct identity *enrolled(const char *name, enum identity_role role)
{
	return enrolled_by(test_dir, name, role, 86400);
}

#endif
