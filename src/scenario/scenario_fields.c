/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of the scenario format: every key, its bounds, its default. */
#include "scenario/scenario_internal.h"

/* Times and rates carry their unit in the struct but not in the file. */
#define SPAN(t, m, label, ...)                                                      \
	{ .name = (label), .kind = FIELD_KIND_DURATION, .offset = offsetof(t, m),   \
	  .max = 365.0 * 86400e9, ##__VA_ARGS__ }
#define RATE(t, m, label, ...)                                                      \
	{ .name = (label), .kind = FIELD_KIND_RATE, .offset = offsetof(t, m),       \
	  .max = 1e13, ##__VA_ARGS__ }
#define SIZE(t, m, label, ...)                                                      \
	{ .name = (label), .kind = FIELD_KIND_SIZE, .offset = offsetof(t, m),       \
	  .max = 1e15, ##__VA_ARGS__ }
#define NAME(t, m, ...) FIELD_STR(t, m, SCENARIO_NAME_MAX, ##__VA_ARGS__)

const char *const scenario_do_names[] = {
	"back",	   "lend", "cancel",  "pause",	  "resume",	"crash",     "restart",
	"cut",	   "restore", "stop_all", "cancel_job", "power_off", "power_on", NULL,
};
const char *const scenario_what_names[] = { "agent",  "shim",	  "coordinator", "sender",
					    "receiver", "guest", NULL };
static const char *const mode_names[] = { "notice", "now", NULL };
static const char *const wait_names[] = { "none", "running", "durable", NULL };
static const char *const flow_kind_names[] = { "bulk", "short", NULL };

static const struct schema_field building_fields[] = {
	NAME(struct scenario_building, name, .flags = FIELD_REQUIRED, .help = "unique"),
	RATE(struct scenario_building, uplink_bps, "uplink", .min = 1e3, .fallback = "10Gbit",
	     .help = "building to core, each direction"),
	FIELD_END,
};
static const struct schema building_schema =
	SCHEMA(struct scenario_building, "building", building_fields);

static const struct schema_field machine_fields[] = {
	NAME(struct scenario_machine, name, .flags = FIELD_REQUIRED, .help = "unique"),
	NAME(struct scenario_machine, building, .flags = FIELD_REQUIRED, .help = "where it stands"),
	RATE(struct scenario_machine, link_bps, "link", .min = 1e3, .fallback = "1Gbit",
	     .help = "machine to building switch, each direction"),
	NAME(struct scenario_machine, owner, .help = "defaults to owner-NAME"),
	NAME(struct scenario_machine, room, .help = "whose owners tend to come together"),
	FIELD_JSON(struct scenario_machine, terms, .help = "lend terms, over the scenario's"),
	FIELD_STR(struct scenario_machine, terms_file, 1024, .help = "or a terms file"),
	FIELD_END,
};
static const struct schema machine_schema =
	SCHEMA(struct scenario_machine, "machine", machine_fields);

static const struct schema_field host_fields[] = {
	NAME(struct scenario_host, name, .flags = FIELD_REQUIRED, .help = "unique"),
	NAME(struct scenario_host, building, .flags = FIELD_REQUIRED, .help = "where it stands"),
	RATE(struct scenario_host, link_bps, "link", .min = 1e3, .fallback = "1Gbit",
	     .help = "host to building switch"),
	FIELD_END,
};
static const struct schema host_schema = SCHEMA(struct scenario_host, "host", host_fields);

static const struct schema_field core_fields[] = {
	{ .name = "capacity", .kind = FIELD_KIND_RATE, .max = 1e14,
	  .help = "of the core switch; absent = never the bottleneck" },
	FIELD_END,
};
static const struct schema core_schema =
	{ .name = "core", .fields = core_fields, .size = sizeof(uint64_t) };

static const struct schema_field topology_fields[] = {
	{ .name = "core", .kind = FIELD_KIND_OBJECT,
	  .offset = offsetof(struct scenario_topology, core_bps), .sub = &core_schema },
	FIELD_LIST(struct scenario_topology, buildings, &building_schema, SCENARIO_BUILDINGS_MAX,
		   .flags = FIELD_REQUIRED, .help = "each has a switch"),
	FIELD_LIST(struct scenario_topology, machines, &machine_schema, SCENARIO_MACHINES_MAX,
		   .help = "lent machines"),
	FIELD_LIST(struct scenario_topology, hosts, &host_schema, SCENARIO_FLOWS_MAX,
		   .help = "other ends of research flows"),
	NAME(struct scenario_topology, coordinator, .help = "its building; defaults to the first"),
	FIELD_END,
};
static const struct schema topology_schema =
	SCHEMA(struct scenario_topology, "topology", topology_fields);

static const struct schema_field cost_fields[] = {
	SPAN(struct scenario_cost, work_ns, "work", .help = "computing, uninterrupted"),
	SPAN(struct scenario_cost, step_ns, "step", .help = "one step"),
	SPAN(struct scenario_cost, save_ns, "save", .help = "standstill per checkpoint"),
	SPAN(struct scenario_cost, restore_ns, "restore", .help = "start to computing again"),
	SIZE(struct scenario_cost, image_bytes, "image", .help = "one full image"),
	FIELD_DOUBLE(struct scenario_cost, delta, 0, 1, .fallback = "1",
		     .help = "share that travels when the image before is there"),
	FIELD_END,
};
static const struct schema cost_schema = SCHEMA(struct scenario_cost, "cost", cost_fields);

static const struct schema_field job_fields[] = {
	NAME(struct scenario_job, name, .flags = FIELD_REQUIRED, .help = "unique"),
	NAME(struct scenario_job, user, .fallback = "guest", .help = "who submits it"),
	SPAN(struct scenario_job, at_ns, "at", .help = "submitted at"),
	FIELD_STRLIST(struct scenario_job, command, 4096, 256, .help = "program and arguments"),
	FIELD_STR(struct scenario_job, file, 1024, .help = "or a job file"),
	FIELD_JSON(struct scenario_job, spec, .help = "more keys of a job file"),
	SPAN(struct scenario_job, interval_ns, "interval",
	     .help = "between checkpoints; 0 = the policy decides"),
	{ .name = "slots", .kind = FIELD_KIND_U64, .offset = offsetof(struct scenario_job, slots),
	  .min = 1, .max = 1024, .fallback = "1", .help = "how many at once" },
	FIELD_BOOL(struct scenario_job, reference,
		   .help = "compare the result with an uninterrupted run's"),
	FIELD_DOUBLE(struct scenario_job, weight, 0, 1e6, .fallback = "1",
		     .help = "of its work, for policies"),
	FIELD_OBJECT(struct scenario_job, cost, &cost_schema, .help = "for simulator and planning"),
	FIELD_END,
};
static const struct schema job_schema = SCHEMA(struct scenario_job, "job", job_fields);
static_assert(sizeof(size_t) == sizeof(uint64_t), "slots is decoded as a U64");

static const struct schema_field event_fields[] = {
	NAME(struct scenario_event, name, .help = "for `after` and reports"),
	SPAN(struct scenario_event, at_ns, "at", .help = "not before this time"),
	NAME(struct scenario_event, after, .help = "not before the end of this earlier event"),
	SPAN(struct scenario_event, delay_ns, "delay", .help = "and so long after it"),
	FIELD_ENUM(struct scenario_event, wait, wait_names, .fallback = "none",
		   .help = "not before every job is running, or its newest image is durable"),
	{ .name = "do", .kind = FIELD_KIND_ENUM, .offset = offsetof(struct scenario_event, act),
	  .names = scenario_do_names, .flags = FIELD_REQUIRED, .help = "what happens" },
	FIELD_STRLIST(struct scenario_event, machines, SCENARIO_NAME_MAX, SCENARIO_MACHINES_MAX,
		      .help = "to these machines"),
	FIELD_STRLIST(struct scenario_event, buildings, SCENARIO_NAME_MAX, SCENARIO_BUILDINGS_MAX,
		      .help = "to the uplinks of these buildings"),
	NAME(struct scenario_event, holds, .help = "to the machines that run this job"),
	FIELD_BOOL(struct scenario_event, room, .help = "and to everybody in the same room"),
	NAME(struct scenario_event, like, .help = "to the machines of this earlier event"),
	NAME(struct scenario_event, job, .help = "to this job"),
	FIELD_ENUM(struct scenario_event, mode, mode_names, .fallback = "notice",
		   .help = "back: with a window, or now"),
	{ .name = "window", .kind = FIELD_KIND_DURATION,
	  .offset = offsetof(struct scenario_event, window_ns), .max = (double)TERMS_WINDOW_MAX_NS,
	  .help = "back: instead of the declared window" },
	FIELD_ENUM(struct scenario_event, what, scenario_what_names, .fallback = "agent",
		   .help = "crash, restart: of what"),
	FIELD_STR(struct scenario_event, point, 128, .help = "crash: at this protocol point"),
	FIELD_U64(struct scenario_event, nth, 1, 1e9, .fallback = "1",
		  .help = "crash: at its nth passing"),
	SPAN(struct scenario_event, for_ns, "for", .help = "undo it after so long"),
	FIELD_END,
};
const struct schema scenario_event_schema = SCHEMA(struct scenario_event, "event", event_fields);

static const struct schema_field flow_fields[] = {
	NAME(struct scenario_flow, name, .flags = FIELD_REQUIRED, .help = "unique"),
	NAME(struct scenario_flow, from, .flags = FIELD_REQUIRED, .help = "machine or host"),
	NAME(struct scenario_flow, to, .flags = FIELD_REQUIRED, .help = "machine or host"),
	FIELD_ENUM(struct scenario_flow, kind, flow_kind_names, .fallback = "bulk"),
	SPAN(struct scenario_flow, start_ns, "start", .help = "first packet"),
	SPAN(struct scenario_flow, stop_ns, "stop", .help = "last packet; 0 = to the end"),
	{ .name = "streams", .kind = FIELD_KIND_U64,
	  .offset = offsetof(struct scenario_flow, streams), .min = 1, .max = 256, .fallback = "1",
	  .help = "TCP connections" },
	RATE(struct scenario_flow, rate_bps, "rate", .help = "0 = as fast as it goes"),
	FIELD_DOUBLE(struct scenario_flow, load, 0, 1, .help = "short: share of the path"),
	FIELD_STR(struct scenario_flow, sizes, 1024, .help = "short: size distribution"),
	FIELD_END,
};
static const struct schema flow_schema = SCHEMA(struct scenario_flow, "flow", flow_fields);

static const struct schema_field check_fields[] = {
	NAME(struct scenario_check, name, .flags = FIELD_REQUIRED, .help = "what must hold"),
	FIELD_DOUBLE(struct scenario_check, min, -1e300, 1e300, .fallback = SCENARIO_UNSET_MIN),
	FIELD_DOUBLE(struct scenario_check, max, -1e300, 1e300, .fallback = SCENARIO_UNSET_MAX),
	{ .name = "count", .kind = FIELD_KIND_U64, .offset = offsetof(struct scenario_check, count),
	  .max = 1e9, .help = "how often at least" },
	FIELD_END,
};
static const struct schema check_schema = SCHEMA(struct scenario_check, "check", check_fields);

static const struct schema_field system_fields[] = {
	SPAN(struct scenario_system, lease_ns, "lease", .help = "of guests"),
	SPAN(struct scenario_system, status_ns, "status", .help = "agents report so often"),
	RATE(struct scenario_system, floor_bps, "floor", .help = "guaranteed to a move at notice"),
	RATE(struct scenario_system, floors_bps, "floors", .help = "campus-wide cap on their sum"),
	SPAN(struct scenario_system, interval_ns, "interval", .help = "between checkpoints"),
	FIELD_STR(struct scenario_system, policy, 64, .help = "for the simulator"),
	FIELD_END,
};
static const struct schema system_schema = SCHEMA(struct scenario_system, "system", system_fields);

static const struct schema_field scenario_fields[] = {
	FIELD_INT(struct scenario, version, 1, 1, .fallback = "1", .help = "of this format"),
	NAME(struct scenario, name, .flags = FIELD_REQUIRED, .help = "for reports"),
	FIELD_STR(struct scenario, summary, 4096, .help = "for people"),
	FIELD_U64(struct scenario, seed, 0, 1.8e19, .fallback = "1", .help = "of everything random"),
	SPAN(struct scenario, duration_ns, "duration", .fallback = "120s",
	     .help = "gives up after so long"),
	FIELD_OBJECT(struct scenario, topology, &topology_schema, .flags = FIELD_REQUIRED),
	FIELD_JSON(struct scenario, terms, .help = "lend terms of every machine"),
	FIELD_OBJECT(struct scenario, system, &system_schema, .help = "settings of the programs"),
	FIELD_LIST(struct scenario, jobs, &job_schema, SCENARIO_JOBS_MAX),
	FIELD_LIST(struct scenario, events, &scenario_event_schema, SCENARIO_EVENTS_MAX),
	FIELD_LIST(struct scenario, flows, &flow_schema, SCENARIO_FLOWS_MAX),
	FIELD_LIST(struct scenario, checks, &check_schema, 256),
	FIELD_JSON(struct scenario, sim, .help = "the simulator's own settings"),
	FIELD_END,
};
const struct schema scenario_schema = SCHEMA(struct scenario, "scenario", scenario_fields);
