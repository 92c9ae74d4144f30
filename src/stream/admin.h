/* SPDX-License-Identifier: Apache-2.0 */
/* One question to a registry, for tools: `reclaim streams`, moves from a shell. */
#ifndef RECLAIM_STREAM_ADMIN_H
#define RECLAIM_STREAM_ADMIN_H

/* The job's endpoints as JSON; free() it. */
int stream_admin_list(const char *registry, const char *token, int timeout_ms, char **ret);

#endif
