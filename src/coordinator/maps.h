/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volunteers of maps: the page, the functions and the signalling sockets that
 * the coordinator carries for a master in somebody's `reclaim map`
 * (volunteer/carry.h). Volunteers come without a certificate, on the browsers'
 * side of the port alone, and are admitted by an invitation to one map; here
 * they are bounded in number, in bytes, and in time to say which.
 */
#ifndef RECLAIM_COORDINATOR_MAPS_H
#define RECLAIM_COORDINATOR_MAPS_H

#include "io/http_server.h"

#define MAPS_MAX 64
#define MAPS_PER_USER_MAX 8
#define MAPS_VOLUNTEERS_MAX 3000 /* of all maps: agents and people need connections too */
#define MAPS_STRANGERS_MAX 200   /* of those, that have not said yet where they belong */
#define MAPS_MESSAGE_MAX (1u << 20)
#define MAPS_OWNER_QUEUE_MAX (16u << 20)
#define MAPS_VOLUNTEER_QUEUE_MAX (4u << 20)

struct coordinator;
struct maps;

int maps_open(struct coordinator *c, struct maps **ret);
/* After the port is closed. */
void maps_close(struct maps *m);

extern const struct http_route maps_routes[];         /* end with a NULL path */
extern const struct http_socket_route maps_owner_socket, maps_volunteer_socket;

#endif
