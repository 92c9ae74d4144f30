/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a parser or an operation says about its failure. The caller owns the
 * struct (usually on its stack); nothing is allocated or printed on failure,
 * so one parser serves daemon, command line, page and fuzzer.
 *
 * A function that takes a diag accepts NULL, and fills it only on failure.
 */
#ifndef RECLAIM_BASE_DIAG_H
#define RECLAIM_BASE_DIAG_H

#define DIAG_WHERE_MAX 256
#define DIAG_WHAT_MAX 512

struct diag {
	char where[DIAG_WHERE_MAX]; /* "lab.yaml:12: slots[1].cores", may be "" */
	char what[DIAG_WHAT_MAX];   /* "700 is above the maximum, 512" */
};

#define DIAG_INIT { "", "" }

/* Fills diag (if any) and returns err, so that a failure is one statement. */
int diag_set(struct diag *diag, int err, const char *where, const char *what_fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* Puts "prefix" before an inner place: "a.yaml" + "slots[0]" = "a.yaml: slots[0]". */
void diag_prefix(struct diag *diag, const char *prefix);

/* "where: what", or only what there is. Returns buf. */
const char *diag_format(const struct diag *diag, char *buf, unsigned long buf_size);

#endif
