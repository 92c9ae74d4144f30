/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the store may not hold in clear (image keys, job secrets) is sealed
 * with a master key that lies beside the store, not in it: DIR/master.key,
 * mode 0600. AES-256-GCM; the label (a job id) is bound to the text, so that
 * one job's key cannot be put in another's record.
 */
#ifndef RECLAIM_COORDINATOR_VAULT_H
#define RECLAIM_COORDINATOR_VAULT_H

#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

struct vault;

int vault_create(const char *dir, struct diag *diag); /* -EEXIST: there is one */
int vault_open(const char *dir, struct vault **ret, struct diag *diag);
void vault_close(struct vault *v);

/* Text of 3 + 2 * (len + 28) bytes, malloc'd. */
int vault_seal(const struct vault *v, const char *label, const void *bytes, size_t len, char **ret);
/* malloc'd, with a NUL behind. -EBADMSG: not sealed with this key and label. */
int vault_unseal(const struct vault *v, const char *label, const char *text, char **ret,
		 size_t *ret_len);

#endif
