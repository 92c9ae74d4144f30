/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The words between an owner's command (or page) and the agent on the same
 * machine: one JSON object per line on the agent's Unix socket. A request is
 * answered by one owner_status; with `watch` the connection then gets another
 * at every change of state, until the machine is free or the asker leaves.
 *
 * No coordinator, no network, no clock takes part in this.
 */
#ifndef RECLAIM_WIRE_OWNER_H
#define RECLAIM_WIRE_OWNER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/schema.h"

#define OWNER_VERSION 1
#define OWNER_GUESTS_MAX 512
#define OWNER_HISTORY_MAX 1000

/* The notice of an owner who found no agent and spoke to the guests' supervisors: the next agent
 * takes the reclaim over. */
#define OWNER_DIRECT_NOTICE "owner-direct"
/* In the run folder, for the same owner: the declared window in ms, in digits. It outlives the agent. */
#define OWNER_WINDOW_FILE "window"
#define OWNER_WINDOW_MAX_MS (UINT64_C(24) * 3600 * 1000)

enum owner_command {
	OWNER_CMD_STATUS = 0,
	OWNER_CMD_LEND,
	OWNER_CMD_BACK,
	OWNER_CMD_CANCEL, /* of a running notice */
	OWNER_CMD_PAUSE,  /* nothing new is placed, across restarts of everything */
	OWNER_CMD_RESUME,
	OWNER_CMD_RELOAD, /* read the terms file again */
	OWNER_CMD_TRIGGER, /* something was seen that the agent could not see: `trigger` */
	OWNER_CMD_COUNT,
};
extern const char *const owner_command_names[];

enum owner_trigger {
	OWNER_TRIGGER_LOGIN = 0,
	OWNER_TRIGGER_KEYBOARD, /* or mouse, or any other way of being there */
	OWNER_TRIGGER_GPU,
	OWNER_TRIGGER_CPU,
	OWNER_TRIGGER_SHUTDOWN,
	OWNER_TRIGGER_SUSPEND,
	OWNER_TRIGGER_LID,
	OWNER_TRIGGER_STAYS,    /* woke up, lid opened, shutdown called off */
	OWNER_TRIGGER_COUNT,
};
extern const char *const owner_trigger_names[];

struct owner_request {
	int v;
	int cmd;            /* enum owner_command */
	bool now;           /* BACK: without a window */
	bool window_given;
	uint64_t window_ms; /* BACK, with window_given: this window instead of the declared one */
	bool watch;
	char *reason;       /* "owner" when absent; "login", "shutdown" from triggers */
	int trigger;        /* TRIGGER: enum owner_trigger */
	uint64_t history;   /* STATUS: so many entries of past use */
};
extern const struct schema owner_request_schema;

struct owner_guest {
	char *job;
	char *name;
	char *user;
	uint64_t epoch;
	char *state;        /* as in wire/control.h */
	char *slot;
	uint64_t ran_ms;
	bool saved;         /* NOTICE: an image since the notice exists */
	bool moved;         /* ... and another machine has it */
	char *to;           /* where it goes; NULL = not known (yet) */
	char *rung;
};

struct owner_use {
	char *user;
	char *job;
	char *from;         /* wall clock, RFC 3339 */
	uint64_t ran_ms;
	char *end;          /* how it ended */
};

struct owner_status {
	int v;
	char *error;        /* the request was refused: why. All else still holds. */
	char *node;
	int state;          /* enum control_owner_state */
	bool paused;
	bool coordinator_up;
	int mode;           /* enum control_reclaim_mode */
	char *notice_id;
	char *reason;
	uint64_t remaining_ms; /* NOTICE: until the deadline */
	uint64_t window_ms;    /* declared; of this notice while there is one */
	uint64_t waited_ms;    /* since `back` was asked; final once FREE */
	bool proven_free;      /* no guest process, packet or GPU context is left */
	uint64_t pids_left;
	uint64_t decided_boot_ns; /* --now: CLOCK_BOOTTIME of this machine when the agent began to act */
	uint64_t last_guest_packet_us; /* --now: last packet at our edge after the decision */
	bool packet_cut;       /* the kill switch stood when it was read back */
	char *alarm;           /* what is left that should not be, for a person to read */
	char *schedule;        /* in words: "lent until Mon 08:00" */
	char *lends;           /* in words, when lending begins again by itself; NULL = it does not */
	uint64_t idle_ms;      /* since the owner was last seen using it; 0 = not known */
	uint64_t slots, slots_used;
	struct owner_guest *guests;
	size_t guests_count;
	struct owner_use *history; /* latest first */
	size_t history_count;
	char **lacks;          /* promises this machine cannot keep, by name */
	size_t lacks_count;
};
extern const struct schema owner_status_schema;

#endif
