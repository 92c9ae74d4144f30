/* SPDX-License-Identifier: Apache-2.0 */
#include "wire/control.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_every_type_round_trips(void **state)
{
	for (int t = 1; t < CONTROL_TYPE_COUNT; t++) {
		/* The least message of each type: its required fields, from its own schema. */
		json_t *in = json_pack("{s:i,s:s}", "v", CONTROL_VERSION, "type", control_type_names[t]);
		for (const struct schema_field *f = control_schema(t)->fields; f->kind; f++) {
			if (!(f->flags & FIELD_REQUIRED))
				continue;
			json_object_set_new(in, f->name,
					    f->kind == FIELD_KIND_ENUM ? json_string(f->names[0]) :
					    f->kind == FIELD_KIND_STR  ? json_string("x") :
					    f->kind == FIELD_KIND_JSON ? json_object() : json_string("7"));
		}
		struct control_message m, again;
		struct diag diag = DIAG_INIT;
		assert_int_equal(control_decode(in, &m, &diag), 0);
		assert_int_equal(m.type, t);
		json_t *out = control_encode(&m);
		assert_int_equal(control_decode(out, &again, &diag), 0);
		json_t *out2 = control_encode(&again);
		assert_true(json_equal(out, out2));
		json_decref(in);
		json_decref(out);
		json_decref(out2);
		control_done(&m);
		control_done(&again);
	}
}

static void test_refusals_name_the_place(void **state)
{
	static const struct {
		const char *text, *where, *what;
		int err;
	} rows[] = {
		{ "{\"type\":\"hello\"}", "v", "version 1", -EPROTO },
		{ "{\"v\":1,\"type\":\"sing\"}", "type", "'sing' is no message", -EPROTO },
		{ "{\"v\":1,\"type\":\"stop\",\"job\":\"a\"}", "stop: epoch", "is missing", -EINVAL },
		{ "{\"v\":1,\"type\":\"stop\",\"job\":\"a\",\"epoch\":\"-1\"}", "stop: epoch",
		  "not a whole number", -EINVAL },
		{ "{\"v\":1,\"type\":\"hello\",\"node\":\"n\",\"owner_state\":\"lent\",\"transfer_port\":70000}",
		  "hello: transfer_port", "above the maximum", -ERANGE },
		{ "{\"v\":1,\"type\":\"status\",\"seq\":1,\"owner_state\":\"lent\",\"jobs\":[{\"job\":\"a\"}]}",
		  "status: jobs[0].epoch", "is missing", -EINVAL },
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		json_t *in = json_loads(rows[i].text, 0, NULL);
		struct control_message m;
		struct diag diag = DIAG_INIT;
		assert_int_equal(control_decode(in, &m, &diag), rows[i].err);
		assert_string_equal(diag.where, rows[i].where);
		assert_non_null(strstr(diag.what, rows[i].what));
		json_decref(in);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_type_round_trips),
		cmocka_unit_test(test_refusals_name_the_place),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
