/* SPDX-License-Identifier: Apache-2.0 */
#include "base/schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include <cmocka.h>

#include "base/clock.h"

struct slot {
	uint64_t cores;
	char *label;
};

struct terms {
	char *name;
	bool shadows;
	int rung;
	int mode;
	uint64_t window;
	uint64_t memory;
	double share;
	struct slot *slots;
	size_t slots_count;
	char **users;
	size_t users_count;
	struct slot extra;
	json_t *any;
};

static const char *const mode_names[] = { "open", "closed", NULL };
static const struct schema_field slot_fields[] = {
	FIELD_U64(struct slot, cores, 1, 64, .flags = FIELD_REQUIRED),
	FIELD_STR(struct slot, label, 8),
	FIELD_END,
};
static const struct schema slot_schema = SCHEMA(struct slot, "slot", slot_fields);
static const struct schema_field extra_fields[] = {
	FIELD_U64(struct slot, cores, 0, 64, .fallback = "3"),
	FIELD_END,
};
static const struct schema extra_schema = SCHEMA(struct slot, "extra", extra_fields);

static int check_terms(const void *obj, struct diag *diag)
{
	const struct terms *t = obj;
	if (t->shadows && t->rung == 0)
		return diag_set(diag, -EINVAL, "", "shadows need a rung of 1 or more");
	return 0;
}

static const struct schema_field terms_fields[] = {
	FIELD_STR(struct terms, name, 16, .flags = FIELD_REQUIRED),
	FIELD_BOOL(struct terms, shadows),
	FIELD_INT(struct terms, rung, -5, 5),
	FIELD_ENUM(struct terms, mode, mode_names, .fallback = "closed"),
	FIELD_DURATION(struct terms, window, 0, 6000e9, .fallback = "30s"),
	FIELD_SIZE(struct terms, memory, 0, 1e12),
	FIELD_DOUBLE(struct terms, share, 0, 1),
	FIELD_LIST(struct terms, slots, &slot_schema, 3),
	FIELD_STRLIST(struct terms, users, 16, 4),
	FIELD_OBJECT(struct terms, extra, &extra_schema),
	FIELD_JSON(struct terms, any),
	FIELD_END,
};
static const struct schema terms_schema =
	SCHEMA(struct terms, "terms", terms_fields, .check = check_terms);

static int load(const char *text, struct terms *t, struct diag *diag)
{
	json_t *v;
	struct yaml_lines *lines;
	int r = yaml_parse(text, strlen(text), "t.yaml", &v, &lines, diag);
	if (r < 0)
		return r;
	r = schema_decode(&terms_schema, v, SCHEMA_STRICT, lines, t, diag);
	json_decref(v);
	yaml_lines_free(lines);
	return r;
}

static void test_round_trip(void **state)
{
	struct terms t, u;
	struct diag diag = DIAG_INIT;
	assert_int_equal(load("name: lab\nrung: 2\nshadows: true\nwindow: 1.5h\nmemory: 2GiB\nshare: 0.5\n"
			      "slots:\n- cores: 2\n  label: 7\n- {cores: 4}\nusers: [ann, bob]\nany: {x: [1, 2.5]}\n",
			      &t, &diag), 0);
	assert_string_equal(t.name, "lab");
	assert_int_equal(t.mode, 1);
	assert_true(t.window == 5400 * NS_PER_S);
	assert_int_equal(t.slots_count, 2);
	assert_string_equal(t.slots[0].label, "7");
	assert_int_equal(t.extra.cores, 3);
	json_t *v = schema_encode(&terms_schema, &t);
	assert_int_equal(schema_decode(&terms_schema, v, SCHEMA_OPEN, NULL, &u, &diag), 0);
	assert_true(u.memory == UINT64_C(2) << 30 && u.window == t.window);
	assert_string_equal(u.users[1], "bob");
	json_decref(v);
	schema_done(&terms_schema, &t);
	schema_done(&terms_schema, &u);
}

static void test_errors_name_place_and_value(void **state)
{
	static const struct {
		const char *text, *where, *what;
		int err;
	} rows[] = {
		{ "rung: 1\n", "t.yaml: name", "is missing", -EINVAL },
		{ "name: a\ncolour: red\n", "t.yaml:2: colour", "unknown key 'colour'", -EINVAL },
		{ "name: a\nslots:\n- cores: 1\n- cores: 700\n", "t.yaml:4: slots[1].cores",
		  "700 is above the maximum, 64", -ERANGE },
		{ "name: a\nwindow: soon\n", "t.yaml:2: window", "\"soon\" is not a duration", -EINVAL },
		{ "name: a\nwindow: 2h\n", "t.yaml:2: window", "\"2h\" is above the maximum", -ERANGE },
		{ "name: a\nmode: ajar\n", "t.yaml:2: mode", "one of open, closed", -EINVAL },
		{ "name: a\nshadows: true\n", "", "shadows need a rung", -EINVAL },
		{ "name: a\nslots: [{cores: 1},{cores: 1},{cores: 1},{cores: 1}]\n", "t.yaml:2: slots",
		  "4 entries, the maximum is 3", -ERANGE },
		{ "name: a\nname: b\n", "t.yaml:2", "twice", -EINVAL },
		{ "name: &x a\n", "t.yaml:1", "anchors", -EINVAL },
		{ "name: [\n", "t.yaml", "not YAML", -EINVAL },
		{ "- 1\n", "t.yaml", "is not a set of keys", -EINVAL },
		{ "name: abcdefghijklmnopq\n", "t.yaml:1: name", "17 bytes of text", -ERANGE },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct terms t;
		struct diag diag = DIAG_INIT;
		assert_int_equal(load(rows[i].text, &t, &diag), rows[i].err);
		assert_non_null(strstr(diag.where, rows[i].where));
		assert_non_null(strstr(diag.what, rows[i].what));
		assert_null(t.name);
	}
}

static void test_deep_nesting_is_refused(void **state)
{
	char text[3000];
	memset(text, '[', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	struct terms t;
	struct diag diag = DIAG_INIT;
	assert_true(load(text, &t, &diag) < 0);
}

static void test_describe(void **state)
{
	json_t *d = schema_describe(&terms_schema);
	json_t *props = json_object_get(d, "properties");
	assert_int_equal(json_object_size(props), 11);
	assert_string_equal(json_string_value(json_array_get(json_object_get(d, "required"), 0)), "name");
	json_decref(d);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_round_trip),
		cmocka_unit_test(test_errors_name_place_and_value),
		cmocka_unit_test(test_deep_nesting_is_refused),
		cmocka_unit_test(test_describe),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
