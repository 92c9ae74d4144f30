/* SPDX-License-Identifier: Apache-2.0 */
/* What a stranger may send: requests to sign, certificates to judge, sealed texts. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/file.h"
#include "coordinator/vault.h"
#include "io/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct identity_ca *ca;
static struct identity *id;
static struct vault *vault;

static void prepare(void)
{
	char dir[] = "/tmp/reclaim-fuzz-XXXXXX", self[64];
	CLEANUP_FREE char *csr = NULL, *cert = NULL;
	CHECK(mkdtemp(dir));
	snprintf(self, sizeof(self), "%s/self", dir);
	CHECK(identity_ca_create(dir, "fuzz", NULL) == 0 && identity_ca_open(dir, &ca, NULL) == 0);
	CHECK(identity_request(self, "self", &csr, NULL) == 0);
	CHECK(identity_ca_sign(ca, csr, "self", IDENTITY_AGENT, 3600, &cert, NULL, NULL) == 0);
	CHECK(identity_install(self, identity_ca_pem(ca), cert, NULL) == 0);
	CHECK(identity_open(self, &id, NULL) == 0);
	CHECK(vault_create(dir, NULL) == 0 && vault_open(dir, &vault, NULL) == 0);
	CHECK(dir_remove_all(dir) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct identity_peer peer;
	size_t len;
	if (!ca)
		prepare();
	CLEANUP_FREE char *text = malloc(size + 1), *out = NULL, *clear = NULL;
	CHECK(text);
	memcpy(text, data, size);
	text[size] = 0;
	if (identity_ca_sign(ca, text, "x", IDENTITY_GUEST, 60, &out, NULL, NULL) == 0)
		CHECK(identity_check_cert(id, out, &peer, NULL) == 0 && peer.role == IDENTITY_GUEST);
	/* Nobody but the authority makes a certificate or a sealed text that is believed. */
	CHECK(identity_check_cert(id, text, &peer, NULL) < 0);
	CHECK(identity_verify(id, text, data, size, data, size, &peer) < 0);
	CHECK(vault_unseal(vault, "label", text, &clear, &len) < 0);
	return 0;
}
