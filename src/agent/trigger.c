/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/trigger.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_internal.h"
#include "agent/logind.h"
#include "agent/own_use.h"
#include "agent/presence.h"
#include "base/check.h"
#include "base/log.h"

/* Of the time that logind gives, for the end of the guests and its proof. */
#define DRAIN_SHARE 4
#define DRAIN_MAX_NS (2 * NS_PER_S)

struct trigger {
	struct presence *presence;
	struct logind *logind; /* NULL = not built in */
	struct own_use *own_use;
	uint64_t last_use_ns;  /* CLOCK_BOOTTIME of the last sign; of our start before there is any */
	bool seen_use;
	bool leaving;          /* shutting down, asleep, lid closed: nothing is lent */
	bool was_lent;
};

static const char *const default_inputs[] = { "/dev/input/event*", "/dev/tty[0-9]*" };

static bool wanted(const struct terms_triggers *t, enum owner_trigger kind)
{
	switch (kind) {
	case TRIGGER_LOGIN:
		return t->login;
	case TRIGGER_KEYBOARD:
		return t->keyboard;
	case TRIGGER_GPU:
		return t->gpu;
	case TRIGGER_CPU:
		return t->cpu > 0;
	case TRIGGER_SHUTDOWN:
	case TRIGGER_SUSPEND:
	case TRIGGER_LID:
		return t->shutdown;
	case TRIGGER_STAYS:
	case OWNER_TRIGGER_COUNT:
		break;
	}
	return false;
}

static bool is_leaving(enum owner_trigger kind)
{
	return kind == TRIGGER_SHUTDOWN || kind == TRIGGER_SUSPEND || kind == TRIGGER_LID;
}

static uint64_t window_ns(const struct agent *a, enum owner_trigger kind)
{
	uint64_t window = a->terms.window_ns, delay = a->trigger->logind ? logind_delay_ns(a->trigger->logind) : 0;
	if ((kind != TRIGGER_SHUTDOWN && kind != TRIGGER_SUSPEND) || !delay)
		return window;
	return MIN(window, delay - MIN(delay / DRAIN_SHARE, DRAIN_MAX_NS));
}

void trigger_fire(struct agent *a, enum owner_trigger kind, const char *detail)
{
	struct trigger *t = a->trigger;
	struct owner *o = &a->owner;
	if (!t)
		return;
	if (kind == TRIGGER_STAYS) {
		t->leaving = false;
		owner_schedule_check(a);
		return;
	}
	if (!is_leaving(kind)) {
		t->last_use_ns = clock_boot_ns();
		t->seen_use = true;
	}
	if (!wanted(&a->terms.triggers, kind)) {
		if (kind == TRIGGER_SHUTDOWN || kind == TRIGGER_SUSPEND)
			logind_release(t->logind);
		return;
	}
	t->leaving |= is_leaving(kind);
	uint64_t window = window_ns(a, kind);
	bool sooner = o->state == CONTROL_OWNER_NOTICE && is_leaving(kind) && owner_remaining_ns(a) > window;
	if (o->state == CONTROL_OWNER_LENT || sooner) {
		log_info("owner: %s%s%s", owner_trigger_names[kind], detail && *detail ? ": " : "",
			 detail ? detail : "");
		/* Somebody who said `back` gets what they said. */
		bool again = o->state == CONTROL_OWNER_LENT ? is_leaving(kind) || a->terms.quiet_ns > 0 :
							      o->intent_lent;
		owner_back_by_itself(a, window, owner_trigger_names[kind], again);
	}
	trigger_state(a);
}

/* ---- what sees the signs ---- */

static void on_presence(void *user, enum presence_sign sign, const char *detail)
{
	static const enum owner_trigger kinds[PRESENCE_SIGN_COUNT] = {
		[PRESENCE_LOGIN] = TRIGGER_LOGIN,
		[PRESENCE_INPUT] = TRIGGER_KEYBOARD,
		[PRESENCE_LID_CLOSED] = TRIGGER_LID,
		[PRESENCE_LID_OPENED] = TRIGGER_STAYS,
	};
	trigger_fire(user, kinds[sign], detail);
}

static void on_logind(void *user, enum logind_event event, const char *detail)
{
	static const enum owner_trigger kinds[] = {
		[LOGIND_LOGIN] = TRIGGER_LOGIN,
		[LOGIND_SHUTDOWN] = TRIGGER_SHUTDOWN,
		[LOGIND_SLEEP] = TRIGGER_SUSPEND,
		[LOGIND_STAYS] = TRIGGER_STAYS,
	};
	trigger_fire(user, kinds[event], detail);
}

int trigger_open(struct agent *a)
{
	const struct agent_sensors *s = &a->config.sensors;
	struct trigger *t = calloc(1, sizeof(*t));
	if (!t)
		return -ENOMEM;
	a->trigger = t;
	t->last_use_ns = clock_boot_ns();
	const struct presence_config config = {
		.utmp = s->utmp,
		.inputs = s->inputs_count ? (const char *const *)s->inputs : default_inputs,
		.inputs_count = s->inputs_count ? s->inputs_count : ARRAY_SIZE(default_inputs),
		.lid = s->lid,
	};
	int r = presence_open(a->loop, &config, on_presence, a, &t->presence);
	if (r == 0)
		r = own_use_open(a, &t->own_use);
	if (r < 0)
		return r;
	if (s->logind && logind_open(a->loop, on_logind, a, &t->logind) < 0)
		t->logind = NULL; /* trigger_lacks() says so */
	trigger_state(a);
	return 0;
}

void trigger_close(struct agent *a)
{
	struct trigger *t = a->trigger;
	if (!t)
		return;
	presence_close(t->presence);
	if (t->logind)
		logind_close(t->logind);
	own_use_lent(t->own_use, false);
}

void trigger_state(struct agent *a)
{
	struct trigger *t = a->trigger;
	if (!t)
		return;
	bool lent = a->owner.state == CONTROL_OWNER_LENT;
	if (lent != t->was_lent)
		own_use_lent(t->own_use, lent);
	t->was_lent = lent;
	/* Free: whoever waits for us waits no longer. */
	if (t->leaving && a->owner.state == CONTROL_OWNER_OWNED && t->logind)
		logind_release(t->logind);
}

void trigger_terms(struct agent *a)
{
	if (a->trigger)
		a->trigger->was_lent = false; /* looks begin anew, with another baseline */
	trigger_state(a);
}

void trigger_lend_asked(struct agent *a)
{
	if (a->trigger)
		a->trigger->leaving = false;
}

static uint64_t quiet_left_ns(const struct agent *a)
{
	uint64_t since = clock_boot_ns() - a->trigger->last_use_ns;
	return since >= a->terms.quiet_ns ? 0 : a->terms.quiet_ns - since;
}

uint64_t trigger_wait_ns(const struct agent *a)
{
	if (!a->trigger)
		return 0;
	return a->trigger->leaving ? UINT64_MAX : quiet_left_ns(a);
}

uint64_t trigger_wait_asked_ns(const struct agent *a)
{
	return a->trigger && a->terms.triggers.keyboard ? quiet_left_ns(a) : 0;
}

uint64_t trigger_idle_ns(const struct agent *a)
{
	return a->trigger && a->trigger->seen_use ? clock_boot_ns() - a->trigger->last_use_ns : 0;
}

size_t trigger_lacks(const struct agent *a, char **ret, size_t max)
{
	const struct trigger *t = a->trigger;
	const struct terms_triggers *w = &a->terms.triggers;
	size_t n = 0;
	if (!t)
		return 0;
	const char *bus = t->logind ? logind_missing(t->logind) :
			  a->config.sensors.logind ? "built without libsystemd" : "switched off";
	const char *login = presence_missing(t->presence, PRESENCE_LOGIN);
	const char *input = presence_missing(t->presence, PRESENCE_INPUT);
	const char *gpu = own_use_missing_gpu(t->own_use), *cpu = own_use_missing_cpu(t->own_use);
	const struct {
		bool lacks;
		const char *name, *why;
	} rows[] = {
		{ w->login && login && bus, "login", login },
		{ w->keyboard && input, "keyboard", input },
		{ w->gpu && gpu, "gpu", gpu },
		{ w->cpu > 0 && cpu, "cpu", cpu },
		{ w->shutdown && bus, "shutdown, suspend", bus },
	};
	for (size_t i = 0; i < ARRAY_SIZE(rows) && n < max; i++) {
		char text[256];
		if (!rows[i].lacks)
			continue;
		(void)snprintf(text, sizeof(text), "trigger %s: %.150s ('reclaim trigger' does it)", rows[i].name,
			       rows[i].why);
		ret[n] = strdup(text);
		n += ret[n] != NULL;
	}
	return n;
}
