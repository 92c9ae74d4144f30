/* SPDX-License-Identifier: Apache-2.0 */
/* Inside libreclaim. */
#ifndef RECLAIM_GUESTLIB_GUESTLIB_H
#define RECLAIM_GUESTLIB_GUESTLIB_H

/* Sends a line to the shim and waits for its reply: 0, -EINVAL (refused), -errno. */
int guest_ask(const char *request);

#endif
