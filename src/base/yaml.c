/* SPDX-License-Identifier: Apache-2.0 */
/*
 * YAML to JSON values with the line of every value kept aside. Input is a
 * file written by a person, or by an enemy: depth, node count and size are
 * bounded, and constructs that make one file mean two things are refused.
 */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/map.h"
#include "base/parse.h"
#include "base/schema.h"

struct yaml_lines {
	char *name;
	struct map *at; /* parent pointer, then key or index -> line */
};

/* Keys are cut here for the line table only; the value keeps its whole key. */
#define LINE_KEY_TEXT_MAX 128

struct line_key {
	const json_t *parent;
	size_t index;
	char text[LINE_KEY_TEXT_MAX];
};

static size_t line_key_make(struct line_key *k, const json_t *parent, const char *key, size_t index)
{
	memset(k, 0, sizeof(*k));
	k->parent = parent;
	k->index = key ? SIZE_MAX : index;
	if (key)
		strncpy(k->text, key, sizeof(k->text) - 1);
	return offsetof(struct line_key, text) + strlen(k->text);
}

unsigned yaml_lines_get(const struct yaml_lines *l, const json_t *parent, const char *key,
			size_t index)
{
	if (!l)
		return 0;
	struct line_key k;
	size_t len = line_key_make(&k, parent, key, index);
	return (unsigned)(uintptr_t)map_get(l->at, &k, len);
}

const char *yaml_lines_name(const struct yaml_lines *l)
{
	return l ? l->name : "";
}

void yaml_lines_free(struct yaml_lines *l)
{
	if (!l)
		return;
	map_free(l->at);
	free(l->name);
	free(l);
}

struct loader {
	yaml_parser_t parser;
	struct yaml_lines *lines;
	struct diag *diag;
	unsigned nodes;
};

static int fail(struct loader *l, int err, size_t line, const char *what)
{
	char where[DIAG_WHERE_MAX];
	(void)snprintf(where, sizeof(where), "%.200s:%zu", l->lines->name, line + 1);
	return diag_set(l->diag, err, where, "%s", what);
}

static int next_event(struct loader *l, yaml_event_t *ev)
{
	if (yaml_parser_parse(&l->parser, ev))
		return 0;
	char what[160];
	(void)snprintf(what, sizeof(what), "not YAML: %s",
		       l->parser.problem ? l->parser.problem : "out of memory");
	return fail(l, l->parser.error == YAML_MEMORY_ERROR ? -ENOMEM : -EINVAL,
		    l->parser.problem_mark.line, what);
}

static int remember_line(struct loader *l, const json_t *parent, const char *key, size_t index,
			 size_t line)
{
	struct line_key k;
	size_t len = line_key_make(&k, parent, key, index);
	return map_set(l->lines->at, &k, len, (void *)(uintptr_t)(line + 1), NULL);
}

/* Plain scalars get JSON's types; quoted and block scalars are always strings. */
static json_t *scalar_value(const yaml_event_t *ev)
{
	const char *text = (const char *)ev->data.scalar.value;
	size_t len = ev->data.scalar.length;
	if (ev->data.scalar.style == YAML_PLAIN_SCALAR_STYLE && strlen(text) == len) {
		int64_t i;
		double d;
		if (!*text || strcmp(text, "~") == 0 || strcmp(text, "null") == 0)
			return json_null();
		if (strcmp(text, "true") == 0)
			return json_true();
		if (strcmp(text, "false") == 0)
			return json_false();
		if (parse_i64(text, &i) == 0)
			return json_integer(i);
		if (parse_double(text, &d) == 0)
			return json_real(d);
	}
	return json_stringn(text, len);
}

static int load_value(struct loader *l, yaml_event_t *ev, unsigned depth, json_t **ret);

static int load_sequence(struct loader *l, unsigned depth, json_t **ret)
{
	CLEANUP_JSON json_t *array = json_array();
	if (!array)
		return -ENOMEM;
	for (;;) {
		yaml_event_t ev;
		int r = next_event(l, &ev);
		if (r < 0)
			return r;
		if (ev.type == YAML_SEQUENCE_END_EVENT) {
			yaml_event_delete(&ev);
			*ret = TAKE(array);
			return 0;
		}
		size_t line = ev.start_mark.line;
		json_t *item;
		r = load_value(l, &ev, depth + 1, &item);
		yaml_event_delete(&ev);
		if (r < 0)
			return r;
		if (json_array_append_new(array, item) < 0 ||
		    remember_line(l, array, NULL, json_array_size(array) - 1, line) < 0)
			return -ENOMEM;
	}
}

static int load_pair(struct loader *l, json_t *object, const yaml_event_t *key_ev, unsigned depth)
{
	size_t line = key_ev->start_mark.line;
	if (key_ev->type != YAML_SCALAR_EVENT)
		return fail(l, -EINVAL, line, "a key must be plain text");
	const char *key = (const char *)key_ev->data.scalar.value;
	if (strlen(key) != key_ev->data.scalar.length)
		return fail(l, -EINVAL, line, "a key holds a NUL byte");
	if (json_object_get(object, key)) {
		char what[200];
		(void)snprintf(what, sizeof(what), "key '%.100s' stands here twice", key);
		return fail(l, -EINVAL, line, what);
	}
	yaml_event_t ev;
	int r = next_event(l, &ev);
	if (r < 0)
		return r;
	json_t *value;
	r = load_value(l, &ev, depth + 1, &value);
	yaml_event_delete(&ev);
	if (r < 0)
		return r;
	if (json_object_set_new(object, key, value) < 0)
		return fail(l, -EINVAL, line, "a key is not valid UTF-8");
	return remember_line(l, object, key, 0, line);
}

static int load_mapping(struct loader *l, unsigned depth, json_t **ret)
{
	CLEANUP_JSON json_t *object = json_object();
	if (!object)
		return -ENOMEM;
	for (;;) {
		yaml_event_t ev;
		int r = next_event(l, &ev);
		if (r < 0)
			return r;
		if (ev.type == YAML_MAPPING_END_EVENT) {
			yaml_event_delete(&ev);
			*ret = TAKE(object);
			return 0;
		}
		r = load_pair(l, object, &ev, depth);
		yaml_event_delete(&ev);
		if (r < 0)
			return r;
	}
}

static int load_value(struct loader *l, yaml_event_t *ev, unsigned depth, json_t **ret)
{
	size_t line = ev->start_mark.line;
	if (depth > YAML_DEPTH_MAX)
		return fail(l, -E2BIG, line, "nested too deeply");
	if (++l->nodes > YAML_NODES_MAX)
		return fail(l, -E2BIG, line, "too many values in one file");
	switch (ev->type) {
	case YAML_SCALAR_EVENT:
		if (ev->data.scalar.tag || ev->data.scalar.anchor)
			return fail(l, -EINVAL, line, "tags and anchors are not taken here");
		*ret = scalar_value(ev);
		return *ret ? 0 : fail(l, -EINVAL, line, "not valid UTF-8");
	case YAML_SEQUENCE_START_EVENT:
		if (ev->data.sequence_start.tag || ev->data.sequence_start.anchor)
			return fail(l, -EINVAL, line, "tags and anchors are not taken here");
		return load_sequence(l, depth, ret);
	case YAML_MAPPING_START_EVENT:
		if (ev->data.mapping_start.tag || ev->data.mapping_start.anchor)
			return fail(l, -EINVAL, line, "tags and anchors are not taken here");
		return load_mapping(l, depth, ret);
	case YAML_ALIAS_EVENT:
		return fail(l, -EINVAL, line, "aliases are not taken here");
	default:
		return fail(l, -EINVAL, line, "a value is missing");
	}
}

/* The stream must hold one document. An empty one is null. */
static int load_stream(struct loader *l, json_t **ret)
{
	CLEANUP_JSON json_t *value = NULL;
	for (;;) {
		yaml_event_t ev;
		int r = next_event(l, &ev);
		if (r < 0)
			return r;
		yaml_event_type_t type = ev.type;
		size_t line = ev.start_mark.line;
		if (type != YAML_STREAM_START_EVENT && type != YAML_STREAM_END_EVENT &&
		    type != YAML_DOCUMENT_START_EVENT && type != YAML_DOCUMENT_END_EVENT)
			r = value ? fail(l, -EINVAL, line, "a second document")
				  : load_value(l, &ev, 1, &value);
		yaml_event_delete(&ev);
		if (r < 0)
			return r;
		if (type == YAML_STREAM_END_EVENT)
			break;
	}
	*ret = value ? TAKE(value) : json_null();
	return 0;
}

static int lines_new(const char *name, struct yaml_lines **ret)
{
	struct yaml_lines *l = calloc(1, sizeof(*l));
	if (!l)
		return -ENOMEM;
	l->name = strdup(name);
	int r = l->name ? map_new(&l->at) : -ENOMEM;
	if (r < 0) {
		yaml_lines_free(l);
		return r;
	}
	*ret = l;
	return 0;
}

int yaml_parse(const char *text, size_t len, const char *name, json_t **ret,
	       struct yaml_lines **ret_lines, struct diag *diag)
{
	if (len > YAML_FILE_MAX)
		return diag_set(diag, -EFBIG, name, "%zu bytes are more than the %u that a file may have",
				len, YAML_FILE_MAX);
	struct loader l = { .diag = diag };
	int r = lines_new(name, &l.lines);
	if (r < 0)
		return diag_set(diag, r, name, "out of memory");
	if (!yaml_parser_initialize(&l.parser)) {
		yaml_lines_free(l.lines);
		return diag_set(diag, -ENOMEM, name, "out of memory");
	}
	yaml_parser_set_input_string(&l.parser, (const unsigned char *)text, len);
	json_t *value = NULL;
	r = load_stream(&l, &value);
	yaml_parser_delete(&l.parser);
	if (r < 0) {
		if (r == -ENOMEM)
			(void)diag_set(diag, r, name, "out of memory");
		yaml_lines_free(l.lines);
		return r;
	}
	*ret = value;
	if (ret_lines)
		*ret_lines = l.lines;
	else
		yaml_lines_free(l.lines);
	return 0;
}

int yaml_load(const char *path, json_t **ret, struct yaml_lines **ret_lines, struct diag *diag)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;
	int r = file_read(path, YAML_FILE_MAX, &text, &len);
	if (r < 0)
		return diag_set(diag, r, path, "cannot read: %s", strerror(-r));
	return yaml_parse(text, len, path, ret, ret_lines, diag);
}

int schema_load_yaml(const struct schema *s, const char *path, void *ret, struct diag *diag)
{
	CLEANUP_JSON json_t *value = NULL;
	struct yaml_lines *lines = NULL;
	int r = yaml_load(path, &value, &lines, diag);
	if (r == 0)
		r = schema_decode(s, value, SCHEMA_STRICT, lines, ret, diag);
	yaml_lines_free(lines);
	return r;
}
