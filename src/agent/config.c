/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/config.h"

#include <limits.h>

static const char *const edge_mode_names[] = { "auto", "off", "required", NULL };

static const struct schema_field edge_fields[] = {
	FIELD_ENUM(struct agent_edge_config, mode, edge_mode_names, .fallback = "auto",
		   .help = "guard the uplink: with what there is, not at all, or not without all of it"),
	FIELD_STR(struct agent_edge_config, uplink, 15, .help = "interface; that of the default route"),
	FIELD_RATE(struct agent_edge_config, uplink_rate, 0, 1e12, .help = "its rate; the link's own"),
	FIELD_RATE(struct agent_edge_config, guest_ceiling, 0, 1e12, .help = "for all guests together"),
	FIELD_STR(struct agent_edge_config, guest_net, 18, .help = "guests' addresses, /24 or larger"),
	FIELD_STRLIST(struct agent_edge_config, campus, 18, 32, .help = "prefixes closed to guests"),
	FIELD_END,
};
static const struct schema edge_schema = SCHEMA(struct agent_edge_config, "edge", edge_fields);

static const struct schema_field sensor_fields[] = {
	FIELD_STR(struct agent_sensors, utmp, PATH_MAX, .fallback = "/var/run/utmp",
		  .help = "who is logged in: utmp(5)"),
	FIELD_STRLIST(struct agent_sensors, inputs, 256, 32,
		      .help = "devices whose use is the owner's, as patterns; keyboards, mice, consoles"),
	FIELD_STR(struct agent_sensors, lid, 256, .fallback = "/proc/acpi/button/lid/*/state",
		  .help = "files that say whether the lid is open or closed"),
	FIELD_BOOL(struct agent_sensors, logind, .fallback = "true",
		   .help = "listen to logind, where there is one"),
	FIELD_END,
};
static const struct schema sensors_schema = SCHEMA(struct agent_sensors, "sensors", sensor_fields);

static const struct schema_field config_fields[] = {
	FIELD_STR(struct agent_config, coordinator, 260, .flags = FIELD_REQUIRED,
		  .help = "host:port of the coordinator"),
	FIELD_STR(struct agent_config, listen, 64, .help = "address of the transfer port; all"),
	FIELD_INT(struct agent_config, transfer_port, 0, 65535, .fallback = "7412",
		  .help = "where other machines send images"),
	FIELD_STR(struct agent_config, host, 128, .help = "name or address that other machines reach"),
	FIELD_STR(struct agent_config, terms, PATH_MAX, .fallback = "/etc/reclaim/terms.yaml",
		  .help = "the owner's lend terms"),
	FIELD_STR(struct agent_config, building, 64, .help = "for placement: what shares an uplink"),
	FIELD_STR(struct agent_config, room, 64, .help = "for forecasts: what shares a timetable"),
	FIELD_STR(struct agent_config, owner_group, 32, .fallback = "reclaim-owner",
		  .help = "group that may use the owner's commands"),
	FIELD_OBJECT(struct agent_config, edge, &edge_schema),
	FIELD_STR(struct agent_config, cgroup_parent, 200, .help = "reclaim/NODE"),
	FIELD_U64(struct agent_config, uid_base, 0, 4e9, .fallback = "1879048192",
		  .help = "first of the guests' user ids; 0 = run guests as the agent's user"),
	FIELD_SIZE(struct agent_config, disk_reserve, 0, 1e15, .fallback = "1GiB",
		   .help = "left free on the state folder's file system"),
	FIELD_BOOL(struct agent_config, own_network, .fallback = "true",
		   .help = "guests in network namespaces of their own"),
	FIELD_OBJECT(struct agent_config, sensors, &sensors_schema, .help = "how the owner is noticed"),
	FIELD_STR(struct agent_config, criu, PATH_MAX, .help = "the criu program, if not on PATH"),
	FIELD_END,
};
const struct schema agent_config_schema =
	SCHEMA(struct agent_config, "agent configuration", config_fields);

int agent_config_load(const char *path, struct agent_config *ret, struct diag *diag)
{
	return schema_load_yaml(&agent_config_schema, path, ret, diag);
}

void agent_config_done(struct agent_config *c)
{
	schema_done(&agent_config_schema, c);
}
