/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/file.h"

struct lines {
	const char *at, *end, *name;
	unsigned number;
	struct diag *diag;
};

static int fail(struct lines *l, const char *what)
{
	char where[DIAG_WHERE_MAX];
	snprintf(where, sizeof(where), "%.200s:%u", l->name, l->number);
	return diag_set(l->diag, -EINVAL, where, "%s", what);
}

/* The next line that is not empty, cut to size; false at the end. */
static bool next(struct lines *l, char *ret, size_t size)
{
	while (l->at < l->end) {
		const char *eol = memchr(l->at, '\n', (size_t)(l->end - l->at));
		size_t len = (size_t)((eol ? eol : l->end) - l->at);
		l->number++;
		const char *line = l->at;
		l->at = eol ? eol + 1 : l->end;
		if (len > 0 && line[len - 1] == '\r')
			len--;
		if (len == 0)
			continue;
		len = len < size ? len : size - 1;
		memcpy(ret, line, len);
		ret[len] = 0;
		return true;
	}
	return false;
}

int topology_parse(const char *text, size_t len, const char *name, double research,
		   double floors, struct network *net, struct diag *diag)
{
	struct lines l = { .at = text, .end = text + len, .name = name, .diag = diag };
	char line[256];
	unsigned nodes, edges;
	if (!next(&l, line, sizeof(line)) || sscanf(line, "NODES %u", &nodes) != 1 || nodes == 0 ||
	    nodes > NETWORK_POINTS_MAX)
		return fail(&l, "expected NODES and a number");
	(void)next(&l, line, sizeof(line)); /* names of the columns */
	for (unsigned i = 0; i < nodes; i++)
		if (!next(&l, line, sizeof(line)) || network_point_add(net) < 0)
			return fail(&l, "fewer nodes than announced");
	if (!next(&l, line, sizeof(line)) || sscanf(line, "EDGES %u", &edges) != 1 ||
	    edges > 1000000)
		return fail(&l, "expected EDGES and a number");
	(void)next(&l, line, sizeof(line));
	for (unsigned i = 0; i < edges; i++) {
		unsigned from, to;
		double weight, kbit, delay_us;
		if (!next(&l, line, sizeof(line)))
			return fail(&l, "fewer edges than announced");
		if (sscanf(line, "%*s %u %u %lf %lf %lf", &from, &to, &weight, &kbit, &delay_us) !=
			    5 ||
		    from >= nodes || to >= nodes || !(kbit > 0 && kbit < 1e12) ||
		    !(delay_us >= 0 && delay_us < 1e9))
			return fail(&l, "expected label, src, dest, weight, kbit/s, delay");
		if (from == to)
			continue;
		double bps = kbit * 125;
		if (network_link_add(net, from, to, bps, bps * research, floors, delay_us / 1e6) < 0)
			return -ENOMEM;
	}
	return (int)nodes;
}

int topology_load(const char *path, double research, double floors, struct network *net,
		  struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = file_read(path, TOPOLOGY_FILE_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, path, "%s", strerror(-r));
	return topology_parse(text, len, path, research, floors, net, diag);
}
