/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a coordinator runs: one table of settings, for the YAML file
 * (`serve --config FILE`, `serve --check`) and for the command line, which
 * wins. What an admin changes at run time (cap, blackout, stop-all) lies in
 * the store and wins over both.
 */
#ifndef RECLAIM_COORDINATOR_CONFIG_H
#define RECLAIM_COORDINATOR_CONFIG_H

#include "base/diag.h"
#include "base/schema.h"

struct config_public {
	char *name; /* server name of the browsers' side */
	char *cert, *key;
};

struct coordinator_config {
	char *listen;           /* "ADDRESS:PORT" */
	uint64_t lease;         /* ns */
	uint64_t lease_margin;  /* ns */
	uint64_t status_every;  /* ns */
	uint64_t interval;      /* ns between checkpoints where nothing better is known */
	uint64_t floor;         /* bit/s, least that is guaranteed to one move at notice */
	uint64_t floors;        /* bit/s, campus-wide cap on their sum */
	uint64_t keep;          /* ns from a job's end until it is forgotten; 0 = never */
	uint64_t jobs_max;
	uint64_t inputs_max;    /* bytes of one job's inputs, or results */
	uint64_t log_max;       /* bytes of one job's output */
	struct config_public public_side;
};

extern const struct schema config_schema;
/* Defaults, then the file (NULL = none). 0 or -errno with diag. */
int config_load(const char *path, struct coordinator_config *ret, struct diag *diag);
/* The rules over several fields, after the command line had its say. */
int config_check(const struct coordinator_config *c, struct diag *diag);
/* Cuts "127.0.0.1:7070" or "[::1]:7070". */
int config_listen(const char *text, char *ret_address, size_t size, uint16_t *ret_port,
		  struct diag *diag);

#endif
