/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is enrolled: one-time join tokens, certificates issued, revocations,
 * whose machine is whose. All of it lies in the store:
 *
 *     tokens/<sha256 of the secret>  role, name, owner, expiry (removed when used)
 *     certs/<serial>                 name, role, expiry
 *     revoked/<serial>               when, by whom
 *     nodes/<name>                   owner
 *
 * A token's text is rj1.SECRET.FINGERPRINT[@HOST:PORT]: the secret is kept
 * nowhere, the fingerprint lets the newcomer recognise the campus.
 */
#ifndef RECLAIM_COORDINATOR_REGISTRY_H
#define RECLAIM_COORDINATOR_REGISTRY_H

#include <jansson.h>

#include "base/diag.h"
#include "io/identity.h"
#include "store/store.h"

#define TOKEN_TEXT_MAX 512
#define TOKEN_VALID_S_DEFAULT (UINT64_C(24) * 3600)
#define TOKEN_VALID_S_MAX (UINT64_C(90) * 86400)
#define CERT_VALID_S (UINT64_C(365) * 86400)

struct registry;

/* store and ca are borrowed. Reads what is revoked. */
int registry_open(struct store *store, struct identity_ca *ca, struct registry **ret,
		  struct diag *diag);
void registry_close(struct registry *g);

/* owner: for agents, the person whose machine it is; may be NULL. */
int registry_token_create(struct registry *g, enum identity_role role, const char *name,
			  const char *owner, uint64_t valid_s, const char *by, uint64_t wall_ms,
			  char ret_text[TOKEN_TEXT_MAX], struct diag *diag);

struct enrolment {
	char name[IDENTITY_NAME_MAX + 1];
	enum identity_role role;
	char serial[IDENTITY_SERIAL_MAX + 1];
	char *cert_pem; /* malloc'd */
};
/* Spends the token: -EACCES when it is unknown, used or out of date; -EINVAL for a bad request. */
int registry_enrol(struct registry *g, const char *secret, const char *csr_pem, uint64_t wall_ms,
		   struct enrolment *ret, struct diag *diag);
/* A new certificate for somebody who has one. */
int registry_renew(struct registry *g, const struct identity_peer *peer, const char *csr_pem,
		   uint64_t wall_ms, struct enrolment *ret, struct diag *diag);
/* Without a token, by who holds the authority's key (`init`). */
int registry_issue(struct registry *g, const char *name, enum identity_role role,
		   const char *csr_pem, uint64_t wall_ms, struct enrolment *ret, struct diag *diag);

bool registry_is_revoked(const struct registry *g, const char *serial);
/* Every certificate of that name, or the one of that serial. fn is told of each. Returns how many;
 * -ENOENT when there is none that was valid. */
int registry_revoke(struct registry *g, const char *name_or_serial, const char *by,
		    uint64_t wall_ms,
		    void (*fn)(void *user, const char *serial, const char *name,
			       enum identity_role role),
		    void *user);
/* Whose machine it is: "" when nobody was named. */
void registry_owner(struct registry *g, const char *node, char ret[IDENTITY_NAME_MAX + 1]);
/* Agents whose every certificate is revoked. */
bool registry_node_banned(struct registry *g, const char *node);
json_t *registry_certs(struct registry *g); /* a new reference: for people */

#endif
