/* SPDX-License-Identifier: Apache-2.0 */
/* The lend-terms file: its table, its rules, and the weekly schedule. Trusts nothing it reads. */
#include "scenario/terms.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/check.h"

#define DAY_MINUTES (24 * 60)

const char *const terms_slot_kind_names[] = { "cpu", "gpu", NULL };
const char *const terms_sandbox_names[] = { "full", "namespaces", "userns", "process", NULL };
static const char *const day_names[] = { "monday",   "tuesday",	"wednesday", "thursday",
					"friday",   "saturday", "sunday" };

static const struct schema_field slot_fields[] = {
	FIELD_STR(struct terms_slot, name, TERMS_NAME_MAX, .help = "unique name on this machine"),
	FIELD_ENUM(struct terms_slot, kind, terms_slot_kind_names, .fallback = "cpu",
		   .help = "what is lent: a share of the cores, or a GPU"),
	FIELD_STR(struct terms_slot, gpu, TERMS_NAME_MAX,
		  .help = "GPU slots: NVML index, UUID or PCI address"),
	FIELD_DOUBLE(struct terms_slot, cores, 0.05, 4096, .fallback = "1", .help = "CPU cores"),
	FIELD_SIZE(struct terms_slot, memory, 0, 1e15,
		   .help = "memory; absent = an equal share of caps.memory"),
	FIELD_END,
};
static const struct schema slot_schema = SCHEMA(struct terms_slot, "slot", slot_fields);

static const struct schema_field span_fields[] = {
	FIELD_STRLIST(struct terms_span, days, 9, 7, .help = "mon ... sun; absent = every day"),
	FIELD_STR(struct terms_span, from, 5, .flags = FIELD_REQUIRED, .help = "local time, HH:MM"),
	FIELD_STR(struct terms_span, to, 5, .flags = FIELD_REQUIRED,
		  .help = "local time, HH:MM or 24:00; at or before `from` = on the next day"),
	FIELD_END,
};
static const struct schema span_schema = SCHEMA(struct terms_span, "span", span_fields);

static const struct schema_field schedule_fields[] = {
	FIELD_LIST(struct terms_schedule, lend, &span_schema, TERMS_SPANS_MAX,
		   .help = "lent only inside these; none = always"),
	FIELD_LIST(struct terms_schedule, keep, &span_schema, TERMS_SPANS_MAX,
		   .help = "never lent inside these"),
	FIELD_END,
};
static const struct schema schedule_schema =
	SCHEMA(struct terms_schedule, "schedule", schedule_fields);

static const struct schema_field caps_fields[] = {
	FIELD_SIZE(struct terms_caps, memory, 0, 1e15, .help = "memory of all guests"),
	FIELD_DOUBLE(struct terms_caps, cores, 0, 4096, .help = "CPU cores of all guests"),
	FIELD_SIZE(struct terms_caps, disk, 0, 1e18, .help = "disk for guests and images"),
	FIELD_RATE(struct terms_caps, uplink, 0, 1e13, .help = "sending, guests and moves"),
	FIELD_RATE(struct terms_caps, downlink, 0, 1e13, .help = "receiving, guests and moves"),
	FIELD_U64(struct terms_caps, pids, 0, 4194304, .fallback = "512",
		  .help = "processes per guest"),
	FIELD_END,
};
static const struct schema caps_schema = SCHEMA(struct terms_caps, "caps", caps_fields);

static const struct schema_field who_fields[] = {
	FIELD_STRLIST(struct terms_who, users, TERMS_NAME_MAX, TERMS_NAMES_MAX,
		      .help = "these users"),
	FIELD_STRLIST(struct terms_who, groups, TERMS_NAME_MAX, TERMS_NAMES_MAX,
		      .help = "users of these groups"),
	FIELD_STRLIST(struct terms_who, deny, TERMS_NAME_MAX, TERMS_NAMES_MAX,
		      .help = "never these users"),
	FIELD_END,
};
static const struct schema who_schema = SCHEMA(struct terms_who, "who", who_fields);

static const struct schema_field shadow_fields[] = {
	FIELD_BOOL(struct terms_shadow, keep, .fallback = "true",
		   .help = "keep copies of images for other machines"),
	FIELD_BOOL(struct terms_shadow, owned, .fallback = "true",
		   .help = "keep and serve them while the owner has the machine"),
	FIELD_SIZE(struct terms_shadow, disk, 0, 1e18, .fallback = "20GiB",
		   .help = "disk for them"),
	FIELD_END,
};
static const struct schema shadow_schema = SCHEMA(struct terms_shadow, "shadow", shadow_fields);

static const struct schema_field trigger_fields[] = {
	FIELD_BOOL(struct terms_triggers, login, .help = "take back when somebody logs in"),
	FIELD_BOOL(struct terms_triggers, keyboard, .help = "take back at keyboard or mouse use"),
	FIELD_BOOL(struct terms_triggers, gpu, .help = "take back at own use of a lent GPU"),
	FIELD_DOUBLE(struct terms_triggers, cpu, 0, 4096,
		     .help = "take back when own work uses so many cores for 10 s; 0 = never"),
	FIELD_BOOL(struct terms_triggers, shutdown, .fallback = "true",
		   .help = "take back before shutdown, suspend, lid"),
	FIELD_END,
};
static const struct schema triggers_schema =
	SCHEMA(struct terms_triggers, "triggers", trigger_fields);

static const struct schema_field destination_fields[] = {
	FIELD_STR(struct terms_destination, to, 64, .flags = FIELD_REQUIRED,
		  .help = "address or prefix"),
	FIELD_STR(struct terms_destination, proto, 4, .fallback = "any", .help = "tcp, udp or any"),
	FIELD_INT(struct terms_destination, port, 0, 65535, .help = "0 = any"),
	FIELD_END,
};
static const struct schema destination_schema =
	SCHEMA(struct terms_destination, "destination", destination_fields);

static int terms_check(const void *obj, struct diag *diag);

static const struct schema_field terms_fields[] = {
	FIELD_INT(struct terms, version, 1, 1, .fallback = "1", .help = "of this format"),
	{ .name = "window", .kind = FIELD_KIND_DURATION, .offset = offsetof(struct terms, window_ns),
	  .max = (double)TERMS_WINDOW_MAX_NS, .fallback = "60s",
	  .help = "notice that guests get by default" },
	{ .name = "quiet", .kind = FIELD_KIND_DURATION, .offset = offsetof(struct terms, quiet_ns),
	  .max = (double)TERMS_WINDOW_MAX_NS, .fallback = "0s",
	  .help = "idle time of the owner before lending again" },
	FIELD_LIST(struct terms, slots, &slot_schema, TERMS_SLOTS_MAX, .flags = FIELD_REQUIRED,
		   .help = "what is lent"),
	FIELD_OBJECT(struct terms, schedule, &schedule_schema, .help = "weekly, local time"),
	FIELD_OBJECT(struct terms, caps, &caps_schema, .help = "bounds on all guests together"),
	FIELD_OBJECT(struct terms, who, &who_schema, .help = "who may run here"),
	FIELD_OBJECT(struct terms, shadow, &shadow_schema, .help = "copies kept for others"),
	FIELD_OBJECT(struct terms, triggers, &triggers_schema, .help = "back without a command"),
	FIELD_LIST(struct terms, destinations, &destination_schema, TERMS_NAMES_MAX,
		   .help = "campus addresses that guests may reach"),
	FIELD_ENUM(struct terms, sandbox, terms_sandbox_names, .fallback = "process",
		   .help = "lowest rung of the sandbox ladder that is accepted"),
	FIELD_BOOL(struct terms, lend_at_start, .fallback = "false",
		   .help = "lend when the agent first starts"),
	FIELD_END,
};
const struct schema terms_schema = SCHEMA(struct terms, "terms", terms_fields, .check = terms_check);

/* "HH:MM" -> minutes of the day, up to 24:00; -1 if it is not of this form. */
static int clock_minutes(const char *text)
{
	int hours, minutes;

	if (strlen(text) != 5 || strspn(text, "0123456789") != 2 || text[2] != ':' ||
	    strspn(text + 3, "0123456789") != 2)
		return -1;
	hours = (text[0] - '0') * 10 + text[1] - '0';
	minutes = (text[3] - '0') * 10 + text[4] - '0';
	if (hours > 24 || minutes > 59 || (hours == 24 && minutes > 0))
		return -1;
	return hours * 60 + minutes;
}

static int day_index(const char *name)
{
	for (size_t i = 0; i < ARRAY_SIZE(day_names); i++)
		if (strcasecmp(name, day_names[i]) == 0 ||
		    (strlen(name) == 3 && strncasecmp(name, day_names[i], 3) == 0))
			return (int)i;
	return -1;
}

static int spans_check(const struct terms_span *spans, size_t count, const char *what,
		       struct diag *diag)
{
	char where[64];

	for (size_t i = 0; i < count; i++) {
		const char *bad = clock_minutes(spans[i].from) < 0 ? spans[i].from :
				  clock_minutes(spans[i].to) < 0   ? spans[i].to :
								     NULL;

		(void)snprintf(where, sizeof(where), "schedule.%s[%zu]", what, i);
		if (bad)
			return diag_set(diag, -EINVAL, where,
					"'%s' is not a time of day, HH:MM from 00:00 to 24:00", bad);
		for (size_t d = 0; d < spans[i].days_count; d++)
			if (day_index(spans[i].days[d]) < 0)
				return diag_set(diag, -EINVAL, where,
						"'%s' is not a day: mon tue wed thu fri sat sun",
						spans[i].days[d]);
	}
	return 0;
}

static int slots_check(const struct terms *t, struct diag *diag)
{
	char where[64];
	uint64_t memory = 0;

	if (t->slots_count == 0)
		return diag_set(diag, -EINVAL, "slots", "at least one slot is needed");
	for (size_t i = 0; i < t->slots_count; i++) {
		const struct terms_slot *s = &t->slots[i];

		(void)snprintf(where, sizeof(where), "slots[%zu]", i);
		if (s->kind == TERMS_SLOT_GPU && !s->gpu)
			return diag_set(diag, -EINVAL, where, "a GPU slot says which: gpu: 0");
		if (s->kind == TERMS_SLOT_CPU && s->gpu)
			return diag_set(diag, -EINVAL, where,
					"a CPU slot has no gpu ('%s'); write kind: gpu", s->gpu);
		memory += s->memory;
		for (size_t k = 0; k < i; k++) {
			if (s->name && t->slots[k].name && strcmp(s->name, t->slots[k].name) == 0)
				return diag_set(diag, -EINVAL, where,
						"the name '%s' is taken by slots[%zu]", s->name, k);
			if (s->gpu && t->slots[k].gpu && strcmp(s->gpu, t->slots[k].gpu) == 0)
				return diag_set(diag, -EINVAL, where,
						"gpu '%s' is lent by slots[%zu] already", s->gpu, k);
		}
	}
	if (t->caps.memory && memory > t->caps.memory)
		return diag_set(diag, -EINVAL, "caps.memory",
				"the slots take %llu bytes, more than the cap, %llu",
				(unsigned long long)memory, (unsigned long long)t->caps.memory);
	return 0;
}

static int destinations_check(const struct terms *t, struct diag *diag)
{
	char where[64], addr[64];

	for (size_t i = 0; i < t->destinations_count; i++) {
		const struct terms_destination *d = &t->destinations[i];
		const char *slash = strchr(d->to, '/');
		unsigned char bytes[16];
		int bits = -1, bits_max;
		char end;

		(void)snprintf(where, sizeof(where), "destinations[%zu]", i);
		(void)snprintf(addr, sizeof(addr), "%.*s",
			       slash ? (int)(slash - d->to) : (int)strlen(d->to), d->to);
		bits_max = inet_pton(AF_INET, addr, bytes) == 1	 ? 32 :
			   inet_pton(AF_INET6, addr, bytes) == 1 ? 128 :
								   -1;
		if (bits_max < 0)
			return diag_set(diag, -EINVAL, where, "'%s' is not an address", addr);
		if (slash && (sscanf(slash + 1, "%d%c", &bits, &end) != 1 || bits < 0 ||
			      bits > bits_max))
			return diag_set(diag, -EINVAL, where, "'%s' is not a prefix length, 0-%d",
					slash + 1, bits_max);
		if (strcmp(d->proto, "tcp") && strcmp(d->proto, "udp") && strcmp(d->proto, "any"))
			return diag_set(diag, -EINVAL, where, "proto '%s' is not tcp, udp or any",
					d->proto);
	}
	return 0;
}

static int terms_check(const void *obj, struct diag *diag)
{
	const struct terms *t = obj;
	int r = slots_check(t, diag);

	if (r == 0)
		r = spans_check(t->schedule.lend, t->schedule.lend_count, "lend", diag);
	if (r == 0)
		r = spans_check(t->schedule.keep, t->schedule.keep_count, "keep", diag);
	if (r == 0)
		r = destinations_check(t, diag);
	return r;
}

/* "slot0", or with an apostrophe more for each slot that is called so already. */
static char *free_name(const struct terms *t, size_t i)
{
	char name[TERMS_NAME_MAX];
	bool taken = true;

	(void)snprintf(name, sizeof(name), "slot%zu", i);
	while (taken) {
		taken = false;
		for (size_t k = 0; k < t->slots_count; k++)
			taken |= t->slots[k].name && strcmp(t->slots[k].name, name) == 0;
		if (taken)
			(void)strncat(name, "'", sizeof(name) - strlen(name) - 1);
	}
	return strdup(name);
}

int terms_complete(struct terms *t)
{
	for (size_t i = 0; i < t->slots_count; i++) {
		if (!t->slots[i].name)
			t->slots[i].name = free_name(t, i);
		if (!t->slots[i].name)
			return -ENOMEM;
	}
	return 0;
}

int terms_load(const char *path, struct terms *ret, struct diag *diag)
{
	int r = schema_load_yaml(&terms_schema, path, ret, diag);

	if (r < 0)
		return r;
	r = terms_complete(ret);
	if (r < 0)
		terms_done(ret);
	return r;
}

void terms_done(struct terms *t)
{
	if (t)
		schema_done(&terms_schema, t);
}

static unsigned span_days(const struct terms_span *s)
{
	unsigned days = 0;

	for (size_t i = 0; i < s->days_count; i++)
		days |= 1u << day_index(s->days[i]);
	return s->days_count ? days : TERMS_DAYS_ALL;
}

static bool span_covers(const struct terms_span *s, unsigned week_minute)
{
	int from = clock_minutes(s->from), to = clock_minutes(s->to);
	unsigned days = span_days(s);
	int len = to > from ? to - from : to + DAY_MINUTES - from;

	for (int day = 0; day < 7; day++) {
		int start = day * DAY_MINUTES + from;
		int since = (int)week_minute - start;

		if (since < 0) /* a span of Sunday night reaches into Monday */
			since += TERMS_WEEK_MINUTES;
		if ((days & (1u << day)) && since < len)
			return true;
	}
	return false;
}

bool terms_lendable(const struct terms *t, unsigned week_minute)
{
	bool inside = t->schedule.lend_count == 0;

	for (size_t i = 0; i < t->schedule.keep_count; i++)
		if (span_covers(&t->schedule.keep[i], week_minute))
			return false;
	for (size_t i = 0; i < t->schedule.lend_count && !inside; i++)
		inside = span_covers(&t->schedule.lend[i], week_minute);
	return inside;
}

unsigned terms_change_in(const struct terms *t, unsigned week_minute)
{
	bool now = terms_lendable(t, week_minute);

	if (t->schedule.lend_count + t->schedule.keep_count == 0)
		return 0;
	for (unsigned i = 1; i <= TERMS_WEEK_MINUTES; i++)
		if (terms_lendable(t, (week_minute + i) % TERMS_WEEK_MINUTES) != now)
			return i;
	return 0;
}

unsigned terms_week_minute(const struct tm *local)
{
	unsigned day = (unsigned)(local->tm_wday + 6) % 7; /* tm_wday counts from Sunday */

	return day * DAY_MINUTES + (unsigned)(local->tm_hour * 60 + local->tm_min);
}

static bool list_has(char *const *list, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(list[i], name) == 0)
			return true;
	return false;
}

bool terms_admits(const struct terms *t, const char *user, const char *const *groups,
		  size_t groups_count)
{
	const struct terms_who *w = &t->who;

	if (list_has(w->deny, w->deny_count, user))
		return false;
	if (w->users_count + w->groups_count == 0 || list_has(w->users, w->users_count, user))
		return true;
	for (size_t i = 0; i < groups_count; i++)
		if (list_has(w->groups, w->groups_count, groups[i]))
			return true;
	return false;
}
