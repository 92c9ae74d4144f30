/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON Schema (draft 2020-12) that a table of fields stands for. */
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/schema.h"

static void set(json_t *object, const char *key, json_t *value)
{
	CHECK(json_object_set_new(object, key, value) == 0);
}

static void describe_bounds(const struct schema_field *f, json_t *out)
{
	set(out, "minimum", json_real(f->min));
	if (f->max > 0)
		set(out, "maximum", json_real(f->max));
}

static json_t *describe_names(const struct schema_field *f)
{
	json_t *names = json_array();
	for (size_t i = 0; f->names[i]; i++)
		CHECK(json_array_append_new(names, json_string(f->names[i])) == 0);
	return names;
}

static json_t *describe_field(const struct schema_field *f)
{
	json_t *out = f->kind == FIELD_KIND_OBJECT ? schema_describe(f->sub) : json_object();
	CHECK(out);
	switch (f->kind) {
	case FIELD_KIND_BOOL:
		set(out, "type", json_string("boolean"));
		break;
	case FIELD_KIND_INT:
		set(out, "type", json_string("integer"));
		describe_bounds(f, out);
		break;
	case FIELD_KIND_U64:
		/* 64-bit integers travel as strings; a number is taken too. */
		set(out, "type", json_pack("[s,s]", "string", "integer"));
		set(out, "pattern", json_string("^[0-9]{1,20}$"));
		break;
	case FIELD_KIND_DOUBLE:
		set(out, "type", json_string("number"));
		describe_bounds(f, out);
		break;
	case FIELD_KIND_STR:
		set(out, "type", json_string("string"));
		if (f->max > 0)
			set(out, "maxLength", json_integer((json_int_t)f->max));
		break;
	case FIELD_KIND_ENUM:
		set(out, "enum", describe_names(f));
		break;
	case FIELD_KIND_DURATION:
	case FIELD_KIND_SIZE:
	case FIELD_KIND_RATE:
		set(out, "type", json_pack("[s,s]", "string", "number"));
		set(out, "format", json_string(f->kind == FIELD_KIND_DURATION ? "duration-unit"
					       : f->kind == FIELD_KIND_SIZE   ? "size-unit"
									      : "rate-unit"));
		break;
	case FIELD_KIND_LIST:
		set(out, "type", json_string("array"));
		set(out, "items", schema_describe(f->sub));
		set(out, "maxItems", json_integer((json_int_t)f->count_max));
		break;
	case FIELD_KIND_STRLIST:
		set(out, "type", json_string("array"));
		set(out, "items", json_pack("{s:s,s:I}", "type", "string", "maxLength",
					    (json_int_t)f->max));
		set(out, "maxItems", json_integer((json_int_t)f->count_max));
		break;
	default:
		break;
	}
	if (f->help)
		set(out, "description", json_string(f->help));
	if (f->fallback)
		set(out, "default", json_string(f->fallback));
	return out;
}

json_t *schema_describe(const struct schema *s)
{
	json_t *properties = json_object(), *required = json_array(), *out = json_object();
	CHECK(properties && required && out);
	for (const struct schema_field *f = s->fields; f->kind; f++) {
		set(properties, f->name, describe_field(f));
		if (f->flags & FIELD_REQUIRED)
			CHECK(json_array_append_new(required, json_string(f->name)) == 0);
	}
	set(out, "title", json_string(s->name));
	set(out, "type", json_string("object"));
	set(out, "properties", properties);
	if (json_array_size(required) > 0)
		set(out, "required", required);
	else
		json_decref(required);
	return out;
}
