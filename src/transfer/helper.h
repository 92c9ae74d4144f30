/* SPDX-License-Identifier: Apache-2.0 */
/* The helper program: its channel to the agent, and its two kinds of work. */
#ifndef RECLAIM_TRANSFER_HELPER_H
#define RECLAIM_TRANSFER_HELPER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "io/identity.h"
#include "transfer/message.h"
#include "transfer/session.h"
#include "wire/ticket.h"

struct channel {
	int fd;
	pthread_mutex_t lock;
	char *buf; /* MESSAGE_LINE_MAX */
	size_t len;
	bool open;
};

int channel_init(struct channel *c, int fd);
void channel_done(struct channel *c);
/* From any thread. A message that cannot be sent is lost: then the agent is gone too. */
void channel_send(struct channel *c, const struct message *m);
/* Waits at most timeout_ms for the next message: 1, 0 = none, -EPIPE = the agent is gone. Bad
 * lines are passed over. message_done() it. One thread. */
int channel_receive(struct channel *c, int timeout_ms, struct message *ret);

/* code and diag of an end into a message, by pointer: send it before end dies. */
void message_set_end(struct message *m, const struct session_end *end);

/* Does the ticket let `source` give `image` of `job` to `destination`? NULL image = only names. */
int ticket_check(const struct ticket *t, const struct identity_peer *source,
		 const struct identity_peer *destination, const char *job,
		 const uint8_t image[IMAGE_DIGEST_LEN], bool fetch, struct diag *diag);

/* config: the first message. Exit status. */
int helper_send(struct channel *c, const struct message *config);
int helper_receive(struct channel *c, const struct message *config);

#endif
