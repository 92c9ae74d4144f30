/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See assoc.h. usrsctp keeps its addresses in sixteen short lists, so all
 * associations share one address and are told apart by their local port, which
 * stands at the head of each packet: `by_port` finds the way back. (An address
 * for each cost a walk through thousands of them at every join.)
 */
#include "volunteer/assoc.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <usrsctp.h>


#define PATH_MTU 1150u /* DTLS and UDP headers around it stay below 1,200 and most paths */
#define BUFFER (256 << 10)

struct assoc {
	uint16_t port; /* local; its place in by_port */
	struct socket *socket;
	const struct assoc_ops *ops;
	void *user;
	bool up, down, blocked;
	uint8_t *part; /* of a message that comes in pieces */
	size_t part_len;
};

#define PORT_MIN 1024u
#define PORTS 64000u
static struct assoc **by_port; /* [PORTS] */
static int address; /* what usrsctp takes for everybody's address: never looked into */
#define ADDRESS ((void *)&address)
static size_t open_count;
static bool started;
static uint32_t next_port;

static struct assoc *at_port(uintptr_t port)
{
	return port >= PORT_MIN && port < PORT_MIN + PORTS ? by_port[port - PORT_MIN] : NULL;
}

static int on_output(void *to, void *bytes, size_t len, uint8_t tos, uint8_t set_df)
{
	(void)to, (void)tos, (void)set_df;
	const uint8_t *header = bytes;
	struct assoc *s = len >= 2 ? at_port((uintptr_t)header[0] << 8 | header[1]) : NULL;
	if (!s)
		return ENOTCONN;
	s->ops->output(s->user, bytes, len);
	return 0;
}

static void no_log(const char *format, ...)
{
	(void)format;
}

static int start_library(void)
{
	if (started)
		return 0;
	by_port = calloc(PORTS, sizeof(*by_port));
	if (!by_port)
		return -ENOMEM;
	started = true;
	usrsctp_init_nothreads(0, on_output, no_log);
	usrsctp_register_address(ADDRESS);
	usrsctp_sysctl_set_sctp_blackhole(2); /* packets for nobody get no answer */
	usrsctp_sysctl_set_sctp_ecn_enable(0);
	usrsctp_sysctl_set_sctp_asconf_enable(0);
	usrsctp_sysctl_set_sctp_auth_enable(0);
	usrsctp_sysctl_set_sctp_pktdrop_enable(0);
	usrsctp_sysctl_set_sctp_nrsack_enable(0);
	usrsctp_sysctl_set_sctp_no_csum_on_loopback(0);
	usrsctp_sysctl_set_sctp_delayed_sack_time_default(20);
	usrsctp_sysctl_set_sctp_heartbeat_interval_default(30000);
	usrsctp_sysctl_set_sctp_rto_initial_default(500);
	usrsctp_sysctl_set_sctp_rto_min_default(200);
	usrsctp_sysctl_set_sctp_rto_max_default(2000);
	usrsctp_sysctl_set_sctp_init_rto_max_default(2000);
	usrsctp_sysctl_set_sctp_assoc_rtx_max_default(8);
	usrsctp_sysctl_set_sctp_path_rtx_max_default(8);
	usrsctp_sysctl_set_sctp_nr_outgoing_streams_default(16);
	usrsctp_sysctl_set_sctp_max_chunks_on_queue(4096);
	return 0;
}

uint16_t assoc_port_next(void)
{
	uint16_t port;
	do /* a long-lived one may still hold it */
		port = (uint16_t)(PORT_MIN + next_port++ % PORTS);
	while (by_port && by_port[port - PORT_MIN] && open_count < PORTS);
	return port;
}

static void on_notification(struct assoc *s, const union sctp_notification *n)
{
	if (n->sn_header.sn_type != SCTP_ASSOC_CHANGE)
		return;
	if (n->sn_assoc_change.sac_state == SCTP_COMM_UP) {
		s->up = true;
		s->ops->up(s->user);
	} else if (n->sn_assoc_change.sac_state != SCTP_RESTART && !s->down) {
		s->down = true;
		s->ops->down(s->user);
	}
}

static void give_up(struct assoc *s)
{
	if (!s->down) {
		s->down = true;
		s->ops->down(s->user);
	}
}

/* A message that the library hands over in pieces is put together, up to the limit. */
static void on_data(struct assoc *s, const void *bytes, size_t len, uint16_t stream, uint32_t ppid,
		    bool last)
{
	if (last && !s->part) {
		s->ops->message(s->user, stream, ppid, bytes, len);
		return;
	}
	uint8_t *grown = s->part_len + len <= ASSOC_MESSAGE_MAX
		? realloc(s->part, s->part_len + len + 1) : NULL;
	if (!grown) {
		give_up(s);
		return;
	}
	s->part = grown;
	memcpy(s->part + s->part_len, bytes, len);
	s->part_len += len;
	if (!last)
		return;
	uint8_t *whole = s->part;
	size_t whole_len = s->part_len;
	s->part = NULL;
	s->part_len = 0;
	s->ops->message(s->user, stream, ppid, whole, whole_len);
	free(whole);
}

static int on_receive(struct socket *socket, union sctp_sockstore from, void *data, size_t len,
		      struct sctp_rcvinfo info, int flags, void *user)
{
	(void)socket, (void)from;
	struct assoc *s = at_port((uintptr_t)user);
	if (data && s) {
		if (flags & MSG_NOTIFICATION)
			on_notification(s, data);
		else if (!s->down)
			on_data(s, data, len, info.rcv_sid, ntohl(info.rcv_ppid), flags & MSG_EOR);
	} else if (!data && s) {
		give_up(s);
	}
	free(data);
	return 1;
}

static int on_writable(struct socket *socket, uint32_t free_bytes, void *user)
{
	(void)socket, (void)free_bytes;
	struct assoc *s = at_port((uintptr_t)user);
	if (s && s->blocked && !s->down) {
		s->blocked = false;
		s->ops->writable(s->user);
	}
	return 1;
}

static int set_options(struct socket *socket)
{
	const int on = 1, buffer = BUFFER;
	const struct linger linger = { .l_onoff = 1, .l_linger = 0 }; /* close is an abort */
	const struct sctp_initmsg init = { .sinit_num_ostreams = 16, .sinit_max_instreams = 1024 };
	struct sctp_event event = { .se_assoc_id = SCTP_ALL_ASSOC, .se_on = 1,
				    .se_type = SCTP_ASSOC_CHANGE };
	struct sctp_assoc_value reset = { SCTP_ALL_ASSOC,
					  SCTP_ENABLE_RESET_STREAM_REQ | SCTP_ENABLE_CHANGE_ASSOC_REQ };
	if (usrsctp_set_non_blocking(socket, 1) < 0 ||
	    usrsctp_setsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) < 0 ||
	    usrsctp_setsockopt(socket, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof(buffer)) < 0 ||
	    usrsctp_setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof(buffer)) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof(on)) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_INITMSG, &init, sizeof(init)) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_ENABLE_STREAM_RESET, &reset, sizeof(reset)) < 0 ||
	    usrsctp_setsockopt(socket, IPPROTO_SCTP, SCTP_EVENT, &event, sizeof(event)) < 0)
		return -errno;
	return 0;
}

static int connect_ports(struct assoc *s, uint16_t remote_port)
{
	struct sockaddr_conn end = { .sconn_family = AF_CONN, .sconn_port = htons(s->port),
				     .sconn_addr = ADDRESS };
	if (usrsctp_bind(s->socket, (struct sockaddr *)&end, sizeof(end)) < 0)
		return -errno;
	end.sconn_port = htons(remote_port);
	if (usrsctp_connect(s->socket, (struct sockaddr *)&end, sizeof(end)) < 0 &&
	    errno != EINPROGRESS)
		return -errno;
	struct sctp_paddrparams path = { .spp_flags = SPP_PMTUD_DISABLE, .spp_pathmtu = PATH_MTU };
	memcpy(&path.spp_address, &end, sizeof(end));
	if (usrsctp_setsockopt(s->socket, IPPROTO_SCTP, SCTP_PEER_ADDR_PARAMS, &path, sizeof(path)) < 0)
		return -errno;
	return 0;
}

int assoc_open(uint16_t local_port, uint16_t remote_port, const struct assoc_ops *ops, void *user,
	       struct assoc **ret)
{
	int r = start_library();
	if (r < 0)
		return r;
	if (local_port < PORT_MIN || local_port >= PORT_MIN + PORTS)
		return -EINVAL;
	if (at_port(local_port))
		return -EADDRINUSE;
	struct assoc *s = calloc(1, sizeof(*s));
	if (!s)
		return -ENOMEM;
	s->port = local_port;
	s->ops = ops;
	s->user = user;
	by_port[local_port - PORT_MIN] = s;
	open_count++;
	s->socket = usrsctp_socket(AF_CONN, SOCK_STREAM, IPPROTO_SCTP, on_receive, on_writable,
				   BUFFER / 4, (void *)(uintptr_t)local_port);
	r = s->socket ? set_options(s->socket) : -errno;
	if (r == 0)
		r = connect_ports(s, remote_port);
	if (r < 0) {
		assoc_close(s);
		return r;
	}
	*ret = s;
	return 0;
}

void assoc_close(struct assoc *s)
{
	if (!s)
		return;
	s->down = true;
	if (s->socket)
		usrsctp_close(s->socket);
	by_port[s->port - PORT_MIN] = NULL;
	open_count--;
	free(s->part);
	free(s);
}

void assoc_input(struct assoc *s, const void *bytes, size_t len)
{
	/* One channel's peer must not reach another channel's association. */
	const uint8_t *header = bytes;
	if (len >= 4 && ((uint32_t)header[2] << 8 | header[3]) == s->port)
		usrsctp_conninput(ADDRESS, bytes, len, 0);
}

int assoc_send(struct assoc *s, uint16_t stream, uint32_t ppid, const void *bytes, size_t len)
{
	struct sctp_sendv_spa spa = { .sendv_flags = SCTP_SEND_SNDINFO_VALID };
	spa.sendv_sndinfo.snd_sid = stream;
	spa.sendv_sndinfo.snd_ppid = htonl(ppid);
	if (s->down)
		return -EPIPE;
	if (usrsctp_sendv(s->socket, bytes, len, NULL, 0, &spa, sizeof(spa), SCTP_SENDV_SPA, 0) >= 0)
		return 0;
	if (errno == EWOULDBLOCK || errno == ENOBUFS) {
		s->blocked = true;
		return -EAGAIN;
	}
	return -EPIPE;
}

void assoc_advance(uint32_t ms)
{
	if (started)
		usrsctp_handle_timers(ms);
}

size_t assoc_count(void)
{
	return open_count;
}
