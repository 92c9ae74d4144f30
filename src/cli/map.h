/* SPDX-License-Identifier: Apache-2.0 */
/* `reclaim map`: what its options say, and the command itself (map.c). */
#ifndef RECLAIM_CLI_MAP_H
#define RECLAIM_CLI_MAP_H

#include "base/option.h"

struct map_values {
	const char *page, *program, *title, *owner, *out, *mode, *url_file;
	const char *address, *public_host, *cert, *key, *udp_address, *stun, *invite;
	struct option_strs public_addresses, ice;
	uint64_t quorum, degree, port, udp_port, stall_ns, errors;
	bool here, unordered, ordered_gaps, json, quiet, no_qr, relay_only, lite;
};

/* Exit status: 0 all computed, 1 something failed, 130 interrupted. */
int map_run(const struct map_values *values, const char *function, const char *const *inputs,
	    size_t inputs_count);

#endif
