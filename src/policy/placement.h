/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where a job goes. One call serves a job that starts, a single reclaim and a
 * room of 25 machines that leave together: all jobs given are placed jointly,
 * with admission over every link that their images cross.
 *
 * Who may go where is decided by facts (slot kind, GPU type, memory, ISA,
 * glibc, driver, disk, time); who goes where by expected value: saved work
 * times the chance that it fits and the destination lasts, less downtime and
 * the price of the bytes. When no destination is feasible inside the window,
 * the image is staged on a neighbour and fetched later. What floors cannot
 * promise, since they count on research traffic at its busiest, is tried
 * without one if what research leaves as a rule is likely to be enough.
 */
#ifndef RECLAIM_POLICY_PLACEMENT_H
#define RECLAIM_POLICY_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "policy/admission.h"
#include "policy/network.h"

#define PLACEMENT_NONE UINT32_MAX

/* A lent machine as a destination. Text facts are interned by the caller: equal numbers, equal text. */
struct placement_node {
	uint32_t slots_free;     /* of its kind */
	uint32_t slot_kind;      /* caller's: 0 CPU share, 1 GPU, ... */
	uint32_t gpu_type;       /* 0 = none */
	uint64_t gpu_mem_bytes;  /* per slot */
	uint64_t mem_free_bytes;
	uint64_t disk_free_bytes; /* within the owner's limit for shadow copies */
	uint32_t isa_level;      /* x86-64-v1..v4 as 1..4; other ISAs disjoint: 100+ */
	uint32_t glibc;          /* major * 1000 + minor */
	uint32_t driver;         /* major version; 0 = none */
	bool lent;               /* may start guests now */
	bool stage_only;         /* keeps images, starts nothing (owner's terms while OWNED) */
	uint32_t room;           /* shares a fate with its room */
	double hazard_per_s;     /* reclaim + power-off rate ahead, mean over the job's horizon */
	double survival;         /* to the end of the job's horizon, if the caller has it; < 0: exp(-hazard*horizon) */
	double window_s;         /* notice that its owner gives; < 0 = not known */
	double room_shock;       /* hazard_room_shock(): above 1, its room is leaving */
};

/* Bytes of the job's newest image that a node holds already. */
struct placement_have {
	uint32_t node;
	double bytes;
};

struct placement_job {
	uint64_t id;
	uint32_t slots;
	uint32_t slot_kind;
	uint32_t gpu_type;       /* wanted; 0 = any */
	bool transparent;        /* image restores only on the same GPU type and driver */
	uint64_t gpu_mem_bytes, mem_bytes, disk_bytes;
	uint32_t isa_level, glibc, driver; /* least */
	uint32_t source;         /* node it is on, or that holds its image; PLACEMENT_NONE = fresh start */
	double window_s;         /* INFINITY when nobody waits (a start, a background copy) */
	double save_s;           /* until the image is complete, from now */
	double save_again_s;     /* a later save at the destination, for the next time */
	double image_bytes;      /* of the newest image */
	double unsaved_work_s;   /* slot-seconds since the last durable image: what the move saves */
	double restart_s;        /* restore at the destination */
	double remaining_s;      /* to the job's likely end: the horizon of survival */
	double loss_per_reclaim_s; /* slot-seconds lost when the destination leaves in turn */
	const struct placement_have *have;
	size_t have_count;
	const uint32_t *avoid;   /* nodes that failed to restore it */
	size_t avoid_count;
};

enum placement_verdict {
	PLACEMENT_MOVE = 0, /* image to `node` inside the window, go on there (see `promised`) */
	PLACEMENT_STAGE,    /* image to `node` inside the window, job queues */
	PLACEMENT_FALLBACK, /* nothing fits: last durable image, job queues (or restarts at `node`) */
};

struct placement {
	enum placement_verdict verdict;
	uint32_t node;       /* where the image goes, PLACEMENT_NONE if nowhere */
	double score;        /* slot-seconds of expected value */
	double bytes;        /* that must travel */
	double floor_bps;    /* granted now */
	bool promised;       /* admitted: its floors keep the deadline. A MOVE or STAGE without it is
			      * tried on what research leaves, without a floor */
	double finish_in_s;  /* arrival by the schedule */
	double p_fit;        /* chance that it fits the window */
	double survival;     /* of the destination to the job's end */
	uint32_t considered; /* nodes that passed the facts */
	uint32_t rejected_kind, rejected_room, rejected_time; /* facts; memory/disk/slots; window */
};

struct placement_config {
	double margin_s;     /* kept free before every deadline; 0 = none */
	double downtime_weight; /* slot-seconds that a second of downtime counts for; 0 = 1 */
	double byte_price;   /* slot-seconds per byte on an uncongested path */
	double leftover_price; /* slot-seconds per free slot that stays beside the job: keeps large
				* machines whole for large jobs */
	double uncertainty;  /* relative spread of path bandwidth for P(fits); 0 = 0.15 */
	const uint32_t *rank;  /* nodes worth a look, longest-lasting first; NULL = all, ranked here */
	size_t rank_count;
	size_t candidates_max; /* nodes scored per job; 0 = 64 */
	bool hazard_blind;   /* ablation: survival does not count */
	bool topology_blind; /* ablation: paths count their first link only */
	bool deadline_blind; /* ablation: the window does not count */
};

/*
 * Places all jobs together. `running` are transfers already on the network (may
 * be NULL); those not marked promised give way. 0, -EINVAL (a node index out of range) or -ENOMEM.
 */
int placement_plan(const struct network *net, const struct placement_node *nodes,
		   size_t nodes_count, const struct placement_job *jobs, size_t jobs_count,
		   const struct transfer *running, size_t running_count,
		   const struct placement_config *config, struct placement *ret);

/* Why a node may not take a job: static text, or NULL if the facts allow it. */
const char *placement_refusal(const struct placement_node *node, const struct placement_job *job);

/* The likeliest next homes of a running job, best first, for background copies and standby
 * tickets. Returns the count. */
size_t placement_standby(const struct network *net, const struct placement_node *nodes,
			 size_t nodes_count, const struct placement_job *job,
			 const struct placement_config *config, uint32_t *ret, size_t ret_max);

#endif
