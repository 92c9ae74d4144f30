/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reclaim-transfer: the part of the agent that touches the network with bulk
 * data. It is a program of its own so that whatever happens to a transfer is
 * contained: threads and blocking calls here, one loop there. It is started by
 * the agent only, reads its task and its commands as lines from descriptor 3,
 * and ends when that closes.
 */
#include "transfer/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include "base/file.h"
#include "base/log.h"
#include "base/point.h"

int channel_init(struct channel *c, int fd)
{
	memset(c, 0, sizeof(*c));
	c->fd = fd;
	c->open = true;
	pthread_mutex_init(&c->lock, NULL);
	c->buf = malloc(MESSAGE_LINE_MAX);
	return c->buf ? 0 : -ENOMEM;
}

void channel_done(struct channel *c)
{
	if (c->buf)
		explicit_bzero(c->buf, MESSAGE_LINE_MAX); /* a key went through it */
	free(c->buf);
	pthread_mutex_destroy(&c->lock);
}

void channel_send(struct channel *c, const struct message *m)
{
	size_t len;
	char *line = message_format(m, &len);

	if (!line)
		return;
	pthread_mutex_lock(&c->lock);
	(void)fd_write_all(c->fd, line, len); /* the header says what a loss means */
	pthread_mutex_unlock(&c->lock);
	free(line);
}

static int line_take(struct channel *c, struct message *ret)
{
	char *end = memchr(c->buf, '\n', c->len);
	struct diag diag = DIAG_INIT;
	size_t len;
	int r;

	if (!end)
		return 0;
	len = (size_t)(end - c->buf);
	r = message_parse(c->buf, len, ret, &diag);
	explicit_bzero(c->buf, len);
	memmove(c->buf, end + 1, c->len - len - 1);
	c->len -= len + 1;
	if (r == 0)
		return 1;
	log_warn("a line from the agent is passed over: %s: %s", diag.where, diag.what);
	return line_take(c, ret);
}

int channel_receive(struct channel *c, int timeout_ms, struct message *ret)
{
	struct pollfd p = { c->fd, POLLIN, 0 };
	ssize_t n;
	int r = line_take(c, ret);

	if (r != 0)
		return r;
	n = poll(&p, 1, timeout_ms);
	if (n <= 0)
		return 0;
	if (c->len == MESSAGE_LINE_MAX)
		return -EPIPE; /* a line without an end is no agent of ours */
	n = read(c->fd, c->buf + c->len, MESSAGE_LINE_MAX - c->len);
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return 0;
	if (n <= 0)
		return -EPIPE;
	c->len += (size_t)n;
	return line_take(c, ret);
}

void message_set_end(struct message *m, const struct session_end *end)
{
	m->code = (char *)(uintptr_t)transfer_code_name(end->code);
	m->where = (char *)(uintptr_t)end->diag.where;
	m->what = (char *)(uintptr_t)end->diag.what;
}

static int party_check(const char *role, const char *name, const char *digest,
		       const struct identity_peer *peer, struct diag *diag)
{
	if (strcmp(name, peer->name) != 0)
		return diag_set(diag, -EACCES, "ticket", "its %s is %s, not %s", role, name, peer->name);
	if (*digest && strcmp(digest, peer->digest) != 0)
		return diag_set(diag, -EACCES, "ticket", "%s shows another certificate than the ticket's", name);
	return 0;
}

int ticket_check(const struct ticket *t, const struct identity_peer *source,
		 const struct identity_peer *destination, const char *job,
		 const uint8_t image[IMAGE_DIGEST_LEN], bool fetch, struct diag *diag)
{
	int r = party_check("source", t->source, t->source_digest, source, diag);

	if (r == 0)
		r = party_check("destination", t->destination, t->destination_digest, destination, diag);
	if (r < 0)
		return r;
	if (fetch != (t->use == TICKET_FETCH))
		return diag_set(diag, -EACCES, "ticket", "it is for another use, %s", ticket_use_names[t->use]);
	if (job && strcmp(job, t->job) != 0)
		return diag_set(diag, -EACCES, "ticket", "it is for job %s, not %s", t->job, job);
	if (!t->image_any && memcmp(t->image, image, IMAGE_DIGEST_LEN) != 0)
		return diag_set(diag, -EACCES, "ticket", "it is for another image");
	return 0;
}

int main(int argc, char **argv)
{
	struct channel c;
	struct message config = { .type = 0 };
	int status = 1, r;

	point_init();
	log_init("reclaim-transfer", LOG_LEVEL_INFO);
	(void)signal(SIGPIPE, SIG_IGN);
	/* The agent's death closes the channel; this is for a helper that hangs. */
	(void)prctl(PR_SET_DUMPABLE, 0); /* keys are in memory */
	if (fcntl(MESSAGE_FD, F_GETFD) < 0) {
		log_error("%s is started by reclaimd, not by hand", argc > 0 ? argv[0] : "this");
		return 2;
	}
	(void)fcntl(MESSAGE_FD, F_SETFD, FD_CLOEXEC);
	if (channel_init(&c, MESSAGE_FD) < 0)
		return 1;
	while ((r = channel_receive(&c, 10000, &config)) == 0)
		;
	if (r == 1 && config.type == MESSAGE_RECEIVE)
		status = helper_receive(&c, &config);
	else if (r == 1 && (config.type == MESSAGE_SEND || config.type == MESSAGE_FETCH))
		status = helper_send(&c, &config);
	message_done(&config);
	channel_done(&c);
	return status;
}
