/* SPDX-License-Identifier: Apache-2.0 */
/* A registry of its own for examples and tests: stream-registry ADDRESS JOB TOKEN [TTL_MS [FOLDER]].
 * Prints its address and serves until it is ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "stream/registry_server.h"

int main(int argc, char **argv)
{
	/* One machine, one user: the secret lives as long as the folder does not outlive it. */
	static uint8_t secret[SEAL_KEY_LEN] = { 'e', 'x', 'a', 'm', 'p', 'l', 'e' };
	struct registry_server *s;

	if (argc < 4) {
		fprintf(stderr, "usage: %s unix:PATH|tcp:HOST:PORT JOB TOKEN [TTL_MS [FOLDER]]\n", argv[0]);
		return 2;
	}
	struct registry_server_options o = { .listen = argv[1], .dir = argc > 5 ? argv[5] : NULL };
	if (argc > 4)
		o.terms = (struct register_terms){ strtoull(argv[4], NULL, 10) * NS_PER_MS,
						   10 * NS_PER_MS, 500 };
	int r = registry_server_open(&o, &s);
	if (r == 0)
		r = registry_add_job(registry_server_registry(s), argv[2], argv[3], secret);
	if (r < 0) {
		fprintf(stderr, "%s: %s\n", argv[0], strerror(-r));
		return 1;
	}
	printf("%s\n", registry_server_address(s));
	fflush(stdout);
	r = registry_server_run(s);
	registry_server_close(s);
	return r < 0;
}
