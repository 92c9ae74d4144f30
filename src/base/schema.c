/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of fields to structs and back. The place of a failure is kept as a
 * chain of frames on the stack and only written out when something fails.
 */
#include "base/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/parse.h"

/* Where the decoder stands: parent frame, and the key or index inside it. */
struct place {
	const struct place *up;
	const json_t *parent;
	const char *key;
	size_t index;
};

struct decoder {
	enum schema_mode mode;
	const struct yaml_lines *lines;
	struct diag *diag;
};

static size_t place_path(const struct place *p, char *buf, size_t size)
{
	if (!p || !p->parent)
		return 0;
	size_t n = place_path(p->up, buf, size);
	if (n >= size)
		return n;
	int m;
	if (p->key)
		m = snprintf(buf + n, size - n, "%s%.60s", n ? "." : "", p->key);
	else
		m = snprintf(buf + n, size - n, "[%zu]", p->index);
	return n + (size_t)m;
}

static int decode_fail(const struct decoder *d, int err, const struct place *p, const char *what)
{
	char path[160] = "", where[DIAG_WHERE_MAX];
	(void)place_path(p, path, sizeof(path));
	unsigned line = 0;
	/* A missing key has no line of its own: the nearest container's is shown. */
	for (const struct place *q = p; q && q->parent && !line; q = q->up)
		line = yaml_lines_get(d->lines, q->parent, q->key, q->index);
	if (line)
		(void)snprintf(where, sizeof(where), "%.80s:%u%s%s", yaml_lines_name(d->lines), line,
			       *path ? ": " : "", path);
	else if (d->lines)
		(void)snprintf(where, sizeof(where), "%.80s%s%s", yaml_lines_name(d->lines),
			       *path ? ": " : "", path);
	else
		(void)snprintf(where, sizeof(where), "%s", path);
	return diag_set(d->diag, err, where, "%s", what);
}

/* "700 is not ..." -- the offending value in short, for the message. */
static void value_text(const json_t *v, char *buf, size_t size)
{
	char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(10));
	(void)snprintf(buf, size, text && strlen(text) > 60 ? "%.57s..." : "%.60s",
		       text ? text : "value");
	free(text);
}

static int fail_value(const struct decoder *d, int err, const struct place *p, const json_t *v,
		      const char *expected)
{
	char text[80], what[DIAG_WHAT_MAX];
	value_text(v, text, sizeof(text));
	(void)snprintf(what, sizeof(what), "%s is not %s", text, expected);
	return decode_fail(d, err, p, what);
}

static int check_range(const struct decoder *d, const struct place *p, const json_t *v, double x,
		       const struct schema_field *f)
{
	char text[80], what[DIAG_WHAT_MAX], bound[FORMAT_MAX];
	double limit;
	const char *side;
	if (f->max > 0 && x > f->max) {
		limit = f->max;
		side = "above the maximum";
	} else if (x < f->min) {
		limit = f->min;
		side = "below the minimum";
	} else {
		return 0;
	}
	value_text(v, text, sizeof(text));
	switch (f->kind) {
	case FIELD_KIND_DURATION:
		(void)format_duration((uint64_t)limit, bound);
		break;
	case FIELD_KIND_SIZE:
		(void)format_size((uint64_t)limit, bound);
		break;
	case FIELD_KIND_RATE:
		(void)format_rate((uint64_t)limit, bound);
		break;
	default:
		(void)snprintf(bound, sizeof(bound), "%.15g", limit);
	}
	(void)snprintf(what, sizeof(what), "%s is %s, %s", text, side, bound);
	return decode_fail(d, -ERANGE, p, what);
}

static int decode_u64(const struct decoder *d, const struct place *p, const json_t *v,
		      const struct schema_field *f, uint64_t *ret)
{
	uint64_t x;
	if (json_is_integer(v) && json_integer_value(v) >= 0)
		x = (uint64_t)json_integer_value(v);
	else if (!json_is_string(v) || parse_u64(json_string_value(v), &x) < 0)
		return fail_value(d, -EINVAL, p, v, "a whole number of 0 or more");
	int r = check_range(d, p, v, (double)x, f);
	if (r == 0)
		*ret = x;
	return r;
}

/* Durations, sizes and rates: a number in the base unit, or text with a unit. */
static int decode_quantity(const struct decoder *d, const struct place *p, const json_t *v,
			   const struct schema_field *f, uint64_t *ret)
{
	static const struct {
		int (*parse)(const char *, uint64_t *);
		const char *expected;
	} kinds[] = {
		[FIELD_KIND_DURATION] = { parse_duration_ns, "a duration like \"90s\" or \"1.5h\"" },
		[FIELD_KIND_SIZE] = { parse_size, "a size like \"512MiB\"" },
		[FIELD_KIND_RATE] = { parse_rate_bps, "a rate like \"100Mbit\"" },
	};
	char number[40];
	const char *text = json_string_value(v);
	if (json_is_integer(v))
		(void)snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
	else if (json_is_real(v))
		(void)snprintf(number, sizeof(number), "%.17g", json_real_value(v));
	else if (!text)
		return fail_value(d, -EINVAL, p, v, kinds[f->kind].expected);
	uint64_t x;
	if (kinds[f->kind].parse(text ? text : number, &x) < 0)
		return fail_value(d, -EINVAL, p, v, kinds[f->kind].expected);
	int r = check_range(d, p, v, (double)x, f);
	if (r == 0)
		*ret = x;
	return r;
}

static int decode_str(const struct decoder *d, const struct place *p, const json_t *v,
		      double len_max, char **ret)
{
	char number[40];
	const char *text = json_string_value(v);
	/* YAML users write `name: 7`: a number is fine where text is meant. */
	if (json_is_integer(v)) {
		(void)snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(v));
		text = number;
	}
	if (!text)
		return fail_value(d, -EINVAL, p, v, "text");
	size_t len = text == number ? strlen(text) : json_string_length(v);
	if (strlen(text) != len)
		return fail_value(d, -EINVAL, p, v, "text without NUL bytes");
	if (len_max > 0 && (double)len > len_max) {
		char what[DIAG_WHAT_MAX];
		(void)snprintf(what, sizeof(what), "%zu bytes of text, the maximum is %.0f", len, len_max);
		return decode_fail(d, -ERANGE, p, what);
	}
	char *copy = strdup(text);
	if (!copy)
		return decode_fail(d, -ENOMEM, p, "out of memory");
	*ret = copy;
	return 0;
}

static int decode_enum(const struct decoder *d, const struct place *p, const json_t *v,
		       const struct schema_field *f, int *ret)
{
	const char *text = json_string_value(v);
	for (int i = 0; text && f->names[i]; i++) {
		if (strcmp(f->names[i], text) == 0) {
			*ret = i;
			return 0;
		}
	}
	char expected[DIAG_WHAT_MAX - 100] = "one of";
	for (size_t i = 0; f->names[i]; i++) {
		size_t n = strlen(expected);
		(void)snprintf(expected + n, sizeof(expected) - n, "%s %s", i ? "," : "", f->names[i]);
	}
	return fail_value(d, -EINVAL, p, v, expected);
}

static int decode_object(const struct decoder *d, const struct schema *s, const struct place *p,
			 const json_t *in, void *obj);
static void release_fields(const struct schema *s, void *obj);

static int check_list(const struct decoder *d, const struct place *p, const json_t *v,
		      const struct schema_field *f)
{
	if (!json_is_array(v))
		return fail_value(d, -EINVAL, p, v, "a list");
	size_t n = json_array_size(v);
	if (n <= f->count_max)
		return 0;
	char what[DIAG_WHAT_MAX];
	(void)snprintf(what, sizeof(what), "%zu entries, the maximum is %zu", n, f->count_max);
	return decode_fail(d, -ERANGE, p, what);
}

static int decode_list(const struct decoder *d, const struct place *p, const json_t *v,
		       const struct schema_field *f, char *obj)
{
	int r = check_list(d, p, v, f);
	if (r < 0)
		return r;
	size_t n = json_array_size(v);
	char *items = calloc(n ? n : 1, f->sub->size);
	if (!items)
		return decode_fail(d, -ENOMEM, p, "out of memory");
	/* Owned by the struct from here on, so that a failure half-way is released. */
	*(char **)(obj + f->offset) = items;
	*(size_t *)(obj + f->count_offset) = n;
	for (size_t i = 0; i < n; i++) {
		struct place at = { p, v, NULL, i };
		r = decode_object(d, f->sub, &at, json_array_get(v, i), items + i * f->sub->size);
		if (r < 0)
			return r;
	}
	return 0;
}

static int decode_strlist(const struct decoder *d, const struct place *p, const json_t *v,
			  const struct schema_field *f, char *obj)
{
	int r = check_list(d, p, v, f);
	if (r < 0)
		return r;
	size_t n = json_array_size(v);
	char **items = calloc(n ? n : 1, sizeof(*items));
	if (!items)
		return decode_fail(d, -ENOMEM, p, "out of memory");
	*(char ***)(obj + f->offset) = items;
	*(size_t *)(obj + f->count_offset) = n;
	for (size_t i = 0; i < n; i++) {
		struct place at = { p, v, NULL, i };
		r = decode_str(d, &at, json_array_get(v, i), f->max, &items[i]);
		if (r < 0)
			return r;
	}
	return 0;
}

static int decode_field(const struct decoder *d, const struct place *p, const json_t *v,
			const struct schema_field *f, char *obj)
{
	char *at = obj + f->offset;
	switch (f->kind) {
	case FIELD_KIND_BOOL:
		if (!json_is_boolean(v))
			return fail_value(d, -EINVAL, p, v, "true or false");
		*(bool *)at = json_is_true(v);
		return 0;
	case FIELD_KIND_INT: {
		if (!json_is_integer(v) || json_integer_value(v) > INT32_MAX ||
		    json_integer_value(v) < INT32_MIN)
			return fail_value(d, -EINVAL, p, v, "a whole number");
		int r = check_range(d, p, v, (double)json_integer_value(v), f);
		if (r == 0)
			*(int *)at = (int)json_integer_value(v);
		return r;
	}
	case FIELD_KIND_U64:
		return decode_u64(d, p, v, f, (uint64_t *)at);
	case FIELD_KIND_DOUBLE: {
		if (!json_is_number(v) || !isfinite(json_number_value(v)))
			return fail_value(d, -EINVAL, p, v, "a number");
		int r = check_range(d, p, v, json_number_value(v), f);
		if (r == 0)
			*(double *)at = json_number_value(v);
		return r;
	}
	case FIELD_KIND_STR:
		return decode_str(d, p, v, f->max, (char **)at);
	case FIELD_KIND_ENUM:
		return decode_enum(d, p, v, f, (int *)at);
	case FIELD_KIND_DURATION:
	case FIELD_KIND_SIZE:
	case FIELD_KIND_RATE:
		return decode_quantity(d, p, v, f, (uint64_t *)at);
	case FIELD_KIND_OBJECT:
		return decode_object(d, f->sub, p, v, at);
	case FIELD_KIND_LIST:
		return decode_list(d, p, v, f, obj);
	case FIELD_KIND_STRLIST:
		return decode_strlist(d, p, v, f, obj);
	case FIELD_KIND_JSON:
		*(json_t **)at = json_incref((json_t *)v);
		return 0;
	case FIELD_KIND_END:
		break;
	}
	CHECK(!"a field of unknown kind");
}

static const struct schema_field *field_find(const struct schema *s, const char *name)
{
	for (const struct schema_field *f = s->fields; f->kind; f++)
		if (strcmp(f->name, name) == 0)
			return f;
	return NULL;
}

static int refuse_unknown(const struct decoder *d, const struct schema *s, const struct place *p,
			  const json_t *in)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)in, key, value) {
		if (field_find(s, key))
			continue;
		struct place at = { p, in, key, 0 };
		char what[DIAG_WHAT_MAX];
		(void)snprintf(what, sizeof(what), "unknown key '%.60s'; known are", key);
		for (const struct schema_field *f = s->fields; f->kind; f++) {
			size_t n = strlen(what);
			(void)snprintf(what + n, sizeof(what) - n, "%s %s", f == s->fields ? "" : ",",
				       f->name);
		}
		return decode_fail(d, -EINVAL, &at, what);
	}
	return 0;
}

/* The fallback goes through the same decoder as a written value. */
static int decode_fallback(const struct decoder *d, const struct place *p,
			   const struct schema_field *f, char *obj)
{
	CLEANUP_JSON json_t *v = NULL;
	int r = yaml_parse(f->fallback, strlen(f->fallback), "default", &v, NULL, d->diag);
	if (r == -ENOMEM)
		return r;
	CHECK(r == 0);
	return decode_field(d, p, v, f, obj);
}

static int decode_object(const struct decoder *d, const struct schema *s, const struct place *p,
			 const json_t *in, void *obj)
{
	if (!json_is_object(in)) {
		char expected[100];
		(void)snprintf(expected, sizeof(expected), "a set of keys (%s)", s->name);
		return fail_value(d, -EINVAL, p, in, expected);
	}
	if (d->mode == SCHEMA_STRICT) {
		int r = refuse_unknown(d, s, p, in);
		if (r < 0)
			return r;
	}
	for (const struct schema_field *f = s->fields; f->kind; f++) {
		struct place at = { p, in, f->name, 0 };
		const json_t *v = json_object_get(in, f->name);
		int r = 0;
		if (v && !json_is_null(v))
			r = decode_field(d, &at, v, f, obj);
		else if (f->flags & FIELD_REQUIRED)
			r = decode_fail(d, -EINVAL, &at, "is missing");
		else if (f->fallback)
			r = decode_fallback(d, &at, f, obj);
		else if (f->kind == FIELD_KIND_OBJECT) {
			/* An absent part still gets its own defaults. */
			CLEANUP_JSON json_t *empty = json_object();
			r = empty ? decode_object(d, f->sub, &at, empty, (char *)obj + f->offset)
				  : -ENOMEM;
		}
		if (r < 0)
			return r;
	}
	if (!s->check)
		return 0;
	struct diag inner = DIAG_INIT;
	int r = s->check(obj, &inner);
	if (r < 0) {
		char what[DIAG_WHAT_MAX];
		(void)snprintf(what, sizeof(what), "%.100s%s%.380s", inner.where,
			       inner.where[0] ? ": " : "", inner.what);
		return decode_fail(d, r, p, what);
	}
	return 0;
}

int schema_decode(const struct schema *s, json_t *in, enum schema_mode mode,
		  const struct yaml_lines *lines, void *ret, struct diag *diag)
{
	struct decoder d = { mode, lines, diag };
	struct place top = { NULL, NULL, NULL, 0 };
	memset(ret, 0, s->size);
	int r = decode_object(&d, s, &top, in, ret);
	if (r < 0)
		schema_done(s, ret);
	return r;
}

static json_t *encode_field(const struct schema_field *f, const char *obj)
{
	const char *at = obj + f->offset;
	char text[32];
	switch (f->kind) {
	case FIELD_KIND_BOOL:
		return json_boolean(*(const bool *)at);
	case FIELD_KIND_INT:
		return json_integer(*(const int *)at);
	case FIELD_KIND_U64:
		(void)snprintf(text, sizeof(text), "%" PRIu64, *(const uint64_t *)at);
		return json_string(text);
	case FIELD_KIND_DOUBLE:
		return json_real(*(const double *)at);
	case FIELD_KIND_STR:
		return json_string(*(char *const *)at);
	case FIELD_KIND_ENUM:
		return json_string(f->names[*(const int *)at]);
	case FIELD_KIND_DURATION:
		(void)snprintf(text, sizeof(text), "%" PRIu64 "ns", *(const uint64_t *)at);
		return json_string(text);
	case FIELD_KIND_SIZE:
	case FIELD_KIND_RATE:
		(void)snprintf(text, sizeof(text), "%" PRIu64, *(const uint64_t *)at);
		return json_string(text);
	case FIELD_KIND_OBJECT:
		return schema_encode(f->sub, at);
	case FIELD_KIND_JSON:
		return json_incref(*(json_t *const *)at);
	case FIELD_KIND_LIST: {
		CLEANUP_JSON json_t *list = json_array();
		const char *items = *(char *const *)at;
		size_t n = *(const size_t *)(obj + f->count_offset);
		for (size_t i = 0; list && i < n; i++)
			if (json_array_append_new(list, schema_encode(f->sub, items + i * f->sub->size)) < 0)
				return NULL;
		return TAKE(list);
	}
	case FIELD_KIND_STRLIST: {
		CLEANUP_JSON json_t *list = json_array();
		char *const *items = *(char **const *)at;
		size_t n = *(const size_t *)(obj + f->count_offset);
		for (size_t i = 0; list && i < n; i++)
			if (json_array_append_new(list, json_string(items[i])) < 0)
				return NULL;
		return TAKE(list);
	}
	case FIELD_KIND_END:
		break;
	}
	CHECK(!"a field of unknown kind");
}

static bool field_is_absent(const struct schema_field *f, const char *obj)
{
	/* Owned pointers say "absent" by NULL; every other kind always has a value. */
	return (f->kind == FIELD_KIND_STR || f->kind == FIELD_KIND_JSON) &&
	       !*(void *const *)(obj + f->offset);
}

json_t *schema_encode(const struct schema *s, const void *obj)
{
	CLEANUP_JSON json_t *out = json_object();
	if (!out)
		return NULL;
	for (const struct schema_field *f = s->fields; f->kind; f++) {
		if (field_is_absent(f, obj))
			continue;
		if (json_object_set_new(out, f->name, encode_field(f, obj)) < 0)
			return NULL;
	}
	return TAKE(out);
}

static void release_fields(const struct schema *s, void *obj)
{
	for (const struct schema_field *f = s->fields; f->kind; f++) {
		char *at = (char *)obj + f->offset;
		size_t n;
		switch (f->kind) {
		case FIELD_KIND_STR:
			free(*(char **)at);
			break;
		case FIELD_KIND_JSON:
			json_decref(*(json_t **)at);
			break;
		case FIELD_KIND_OBJECT:
			release_fields(f->sub, at);
			break;
		case FIELD_KIND_LIST:
			n = *(size_t *)((char *)obj + f->count_offset);
			for (size_t i = 0; i < n; i++)
				release_fields(f->sub, *(char **)at + i * f->sub->size);
			free(*(char **)at);
			break;
		case FIELD_KIND_STRLIST:
			n = *(size_t *)((char *)obj + f->count_offset);
			for (size_t i = 0; i < n; i++)
				free((*(char ***)at)[i]);
			free(*(char ***)at);
			break;
		default:
			break;
		}
	}
}

void schema_done(const struct schema *s, void *obj)
{
	release_fields(s, obj);
	memset(obj, 0, s->size);
}
