/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One table of fields per message or file format. The same rows decode JSON
 * and YAML into a plain struct (with bounds, and a diagnosis that names place
 * and value), encode it again, release it, and print the JSON Schema that the
 * documents and the OpenAPI file carry.
 *
 *     struct slot { uint64_t cores; char *name; };
 *     static const struct schema_field slot_fields[] = {
 *             FIELD_U64(struct slot, cores, 1, 4096, .flags = FIELD_REQUIRED, .help = "CPU cores"),
 *             FIELD_STR(struct slot, name, 64, .help = "what people call it"),
 *             FIELD_END,
 *     };
 *     const struct schema slot_schema = SCHEMA(struct slot, "slot", slot_fields);
 *
 * Unknown keys are refused (files) or ignored (messages from a newer peer):
 * the caller says which. Strings and lists are owned by the struct and go
 * with schema_done().
 */
#ifndef RECLAIM_BASE_SCHEMA_H
#define RECLAIM_BASE_SCHEMA_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"

enum field_kind {
	FIELD_KIND_END = 0,
	FIELD_KIND_BOOL,     /* bool */
	FIELD_KIND_INT,      /* int64_t in a C `int`; JSON number */
	FIELD_KIND_U64,      /* uint64_t; JSON string of digits, a number is accepted */
	FIELD_KIND_DOUBLE,   /* double */
	FIELD_KIND_STR,      /* char *, owned, NULL when absent; max = bytes */
	FIELD_KIND_ENUM,     /* int, index into names[] */
	FIELD_KIND_DURATION, /* uint64_t ns; text "10s" or a number of seconds */
	FIELD_KIND_SIZE,     /* uint64_t bytes; text "4GiB" or a number */
	FIELD_KIND_RATE,     /* uint64_t bit/s; text "1Gbit" or a number */
	FIELD_KIND_OBJECT,   /* an embedded struct described by sub */
	FIELD_KIND_LIST,     /* item array pointer + size_t count at count_offset; sub describes items */
	FIELD_KIND_STRLIST,  /* char ** + size_t count at count_offset; max = bytes each */
	FIELD_KIND_JSON,     /* json_t *, any value, owned reference, NULL when absent */
};

enum field_flags {
	FIELD_REQUIRED = 1,
};

struct schema;

struct schema_field {
	const char *name;
	enum field_kind kind;
	size_t offset;
	size_t count_offset;      /* lists: where the size_t count lives */
	size_t count_max;         /* lists: how many items at most */
	unsigned flags;
	double min, max;          /* numbers; STR: max is the length in bytes */
	const char *const *names; /* ENUM: NULL-terminated */
	const struct schema *sub;
	const char *fallback;     /* default, written as in YAML; NULL = zero value */
	const char *help;
};

struct schema {
	const char *name;
	const struct schema_field *fields;
	size_t size;
	/* A rule over several fields; returns 0 or a negative errno with diag filled. May be NULL. */
	int (*check)(const void *obj, struct diag *diag);
};

#define SCHEMA(type, label, rows, ...) \
	{ .name = (label), .fields = (rows), .size = sizeof(type), ##__VA_ARGS__ }
#define FIELD_END { .kind = FIELD_KIND_END }
#define FIELD_BOOL(t, m, ...) \
	{ .name = #m, .kind = FIELD_KIND_BOOL, .offset = offsetof(t, m), ##__VA_ARGS__ }
#define FIELD_INT(t, m, lo, hi, ...) \
	{ .name = #m, .kind = FIELD_KIND_INT, .offset = offsetof(t, m), .min = (lo), .max = (hi), ##__VA_ARGS__ }
#define FIELD_U64(t, m, lo, hi, ...) \
	{ .name = #m, .kind = FIELD_KIND_U64, .offset = offsetof(t, m), .min = (lo), .max = (hi), ##__VA_ARGS__ }
#define FIELD_DOUBLE(t, m, lo, hi, ...) \
	{ .name = #m, .kind = FIELD_KIND_DOUBLE, .offset = offsetof(t, m), .min = (lo), .max = (hi), ##__VA_ARGS__ }
#define FIELD_STR(t, m, len_max, ...) \
	{ .name = #m, .kind = FIELD_KIND_STR, .offset = offsetof(t, m), .max = (len_max), ##__VA_ARGS__ }
#define FIELD_ENUM(t, m, enum_names, ...) \
	{ .name = #m, .kind = FIELD_KIND_ENUM, .offset = offsetof(t, m), .names = (enum_names), ##__VA_ARGS__ }
#define FIELD_DURATION(t, m, ns_min, ns_max, ...) \
	{ .name = #m, .kind = FIELD_KIND_DURATION, .offset = offsetof(t, m), .min = (ns_min), .max = (ns_max), ##__VA_ARGS__ }
#define FIELD_SIZE(t, m, lo, hi, ...) \
	{ .name = #m, .kind = FIELD_KIND_SIZE, .offset = offsetof(t, m), .min = (lo), .max = (hi), ##__VA_ARGS__ }
#define FIELD_RATE(t, m, lo, hi, ...) \
	{ .name = #m, .kind = FIELD_KIND_RATE, .offset = offsetof(t, m), .min = (lo), .max = (hi), ##__VA_ARGS__ }
#define FIELD_OBJECT(t, m, schema_of, ...) \
	{ .name = #m, .kind = FIELD_KIND_OBJECT, .offset = offsetof(t, m), .sub = (schema_of), ##__VA_ARGS__ }
/* t.m is a pointer to items, t.m_count a size_t. */
#define FIELD_LIST(t, m, schema_of, n_max, ...) \
	{ .name = #m, .kind = FIELD_KIND_LIST, .offset = offsetof(t, m), .count_offset = offsetof(t, m##_count), \
	  .count_max = (n_max), .sub = (schema_of), ##__VA_ARGS__ }
#define FIELD_STRLIST(t, m, len_max, n_max, ...) \
	{ .name = #m, .kind = FIELD_KIND_STRLIST, .offset = offsetof(t, m), .count_offset = offsetof(t, m##_count), \
	  .count_max = (n_max), .max = (len_max), ##__VA_ARGS__ }
#define FIELD_JSON(t, m, ...) \
	{ .name = #m, .kind = FIELD_KIND_JSON, .offset = offsetof(t, m), ##__VA_ARGS__ }

enum schema_mode {
	SCHEMA_STRICT, /* unknown keys are errors: files written by people */
	SCHEMA_OPEN,   /* unknown keys are ignored: messages from a newer peer */
};

/* Where each value stood in a text file; filled by yaml_load(), NULL for plain JSON. */
struct yaml_lines;

/*
 * Decodes `in` (borrowed) into the zeroed or stale memory at ret. Returns 0,
 * -EINVAL, -ERANGE or -ENOMEM with diag filled ("file:line: path" in where);
 * on failure ret holds zeros and owns nothing.
 */
int schema_decode(const struct schema *s, json_t *in, enum schema_mode mode,
		  const struct yaml_lines *lines, void *ret, struct diag *diag);
/* A new reference, or NULL when out of memory. Absent strings are left out. */
json_t *schema_encode(const struct schema *s, const void *obj);
/* Releases what the struct owns and zeroes it. */
void schema_done(const struct schema *s, void *obj);
/* JSON Schema (draft 2020-12) of the format; a new reference. */
json_t *schema_describe(const struct schema *s);

/*
 * YAML 1.1 (libyaml) into a JSON value: mappings with string keys, sequences,
 * scalars typed as in YAML's JSON subset. Refused: anchors and aliases, tags,
 * duplicate keys, several documents, more than YAML_DEPTH_MAX levels or
 * YAML_NODES_MAX nodes.
 */
#define YAML_DEPTH_MAX 32
#define YAML_NODES_MAX 200000
#define YAML_FILE_MAX (8u << 20)
int yaml_parse(const char *text, size_t len, const char *name, json_t **ret,
	       struct yaml_lines **ret_lines, struct diag *diag);
int yaml_load(const char *path, json_t **ret, struct yaml_lines **ret_lines, struct diag *diag);
void yaml_lines_free(struct yaml_lines *l);
/* The line (from 1) of a child: of an object by key, of an array by index (key NULL); 0 = unknown. */
unsigned yaml_lines_get(const struct yaml_lines *l, const json_t *parent, const char *key,
			size_t index);
const char *yaml_lines_name(const struct yaml_lines *l);

/* File to struct in one call: yaml_load + schema_decode(STRICT). */
int schema_load_yaml(const struct schema *s, const char *path, void *ret, struct diag *diag);

#endif
