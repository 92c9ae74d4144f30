/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/system.h"

#include <string.h>

/*
 * Slurm's times are those measured with Debian's Slurm 22.05 (bench/slurm): a
 * requeued job waits for cred_expire, 120 s as installed, 5 s at the least
 * (down 126-143 s and 6.1-6.5 s); a job that submits itself anew starts
 * within 0.1-1.3 s; a guest that stays through a grace is gone 6.5 s after its end, one
 * without a grace within 0.9 s. HTCondor matches once a minute (NEGOTIATOR_INTERVAL 60 s).
 */
/* What a move takes beside save, bytes and restore: notice, plan, ticket, hand-shakes, commit,
 * sandbox. Seen in the lab (bench/slurm/campus6.yaml). */
#define RECLAIM_START_S 0.25

const struct system systems[] = {
	{ .name = "reclaim", .help = "ReclaimNet's policy", .notice = NOTICE_MOVE,
	  .interval = EVERY_POLICY, .store = STORE_PEER, .start_s = RECLAIM_START_S,
	  .planned = true },
	{ .name = "oracle", .help = "the same, knowing the true rates but not the instants",
	  .notice = NOTICE_MOVE, .interval = EVERY_POLICY, .store = STORE_PEER,
	  .start_s = RECLAIM_START_S, .planned = true, .oracle = true },
	{ .name = "clairvoyant", .help = "knows every reclaim", .notice = NOTICE_CLAIRVOYANT,
	  .interval = EVERY_NEVER, .store = STORE_PEER },
	{ .name = "ablate_constant_hazard", .help = "one constant hazard for all",
	  .notice = NOTICE_MOVE, .interval = EVERY_POLICY, .store = STORE_PEER,
	  .start_s = RECLAIM_START_S, .planned = true, .constant_hazard = true },
	{ .name = "ablate_topology",
	  .help = "knows neither which machines share a room nor any link but a machine's own",
	  .notice = NOTICE_MOVE, .interval = EVERY_POLICY, .store = STORE_PEER,
	  .start_s = RECLAIM_START_S, .planned = true, .topology_blind = true, .rooms_blind = true },
	{ .name = "ablate_links", .help = "knows the rooms, but no link but a machine's own",
	  .notice = NOTICE_MOVE, .interval = EVERY_POLICY, .store = STORE_PEER,
	  .start_s = RECLAIM_START_S, .planned = true, .topology_blind = true },
	{ .name = "ablate_deadline", .help = "does not look at windows", .notice = NOTICE_MOVE,
	  .interval = EVERY_POLICY, .store = STORE_PEER, .start_s = RECLAIM_START_S,
	  .planned = true, .deadline_blind = true },
	{ .name = "slurm_requeue", .help = "Slurm as installed: requeue, GraceTime 0, hourly checkpoints",
	  .notice = NOTICE_IGNORE, .interval = EVERY_FIXED, .fixed_s = 3600, .grace_s = 0,
	  .requeue_s = 126, .start_s = 7 },
	{ .name = "slurm_requeue_30", .help = "the same, GraceTime 30", .notice = NOTICE_IGNORE,
	  .interval = EVERY_FIXED, .fixed_s = 3600, .grace_s = 30,
	  .late_s = 6.5, .requeue_s = 126, .start_s = 7 },
	{ .name = "slurm_requeue_300", .help = "the same, GraceTime 300", .notice = NOTICE_IGNORE,
	  .interval = EVERY_FIXED, .fixed_s = 3600, .grace_s = 300,
	  .late_s = 6.5, .requeue_s = 126, .start_s = 7 },
	{ .name = "slurm_requeue_tuned", .help = "requeue, GraceTime 0, cred_expire=5",
	  .notice = NOTICE_IGNORE, .interval = EVERY_FIXED, .fixed_s = 3600, .grace_s = 0,
	  .requeue_s = 5.5, .start_s = 0.7 },
	{ .name = "slurm_resubmit",
	  .help = "the strongest Slurm: saves at notice, submits itself anew, Daly intervals",
	  .notice = NOTICE_SAVE, .interval = EVERY_DALY, .grace_s = 600, .late_s = 6.5,
	  .requeue_s = 0, .start_s = 0.7, .behind = true },
	{ .name = "condor_hub", .help = "HTCondor-like: 600 s to vacate, hourly, through a hub",
	  .notice = NOTICE_SAVE, .interval = EVERY_FIXED, .fixed_s = 3600, .store = STORE_HUB,
	  .grace_s = 600, .requeue_s = 0, .start_s = 30 },
	{ .name = "young", .help = "fixed Young intervals, no use of notice", .notice = NOTICE_IGNORE,
	  .interval = EVERY_YOUNG, .grace_s = 0, .requeue_s = 0, .start_s = 0.7 },
	{ .name = "daly", .help = "fixed Daly intervals, no use of notice", .notice = NOTICE_IGNORE,
	  .interval = EVERY_DALY, .grace_s = 0, .requeue_s = 0, .start_s = 0.7 },
	{ .name = "pipeline_redundancy",
	  .help = "a neighbour computes along; both gone: back to the hourly checkpoint",
	  .notice = NOTICE_TAKEOVER, .interval = EVERY_FIXED, .fixed_s = 3600, .grace_s = 0,
	  .requeue_s = 0, .start_s = 0.7, .redundancy = 0.07 },
	{ .name = "none", .help = "no checkpoint", .notice = NOTICE_IGNORE,
	  .interval = EVERY_NEVER, .grace_s = 0, .requeue_s = 0, .start_s = 0.7 },
};
const size_t systems_count = sizeof(systems) / sizeof(systems[0]);

const struct system *system_find(const char *name)
{
	for (size_t i = 0; i < systems_count; i++)
		if (!strcmp(systems[i].name, name))
			return &systems[i];
	return NULL;
}
