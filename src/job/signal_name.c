/* SPDX-License-Identifier: Apache-2.0 */
#include "job/signal_name.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/check.h"
#include "base/parse.h"
#include "job/spec.h"

static const struct {
	const char *name; /* with its SIG, so that it can be returned as it is */
	int signo;
} signals[] = {
	{ "SIGHUP", SIGHUP },   { "SIGINT", SIGINT },     { "SIGQUIT", SIGQUIT },
	{ "SIGILL", SIGILL },   { "SIGTRAP", SIGTRAP },   { "SIGABRT", SIGABRT },
	{ "SIGBUS", SIGBUS },   { "SIGFPE", SIGFPE },     { "SIGKILL", SIGKILL },
	{ "SIGUSR1", SIGUSR1 }, { "SIGSEGV", SIGSEGV },   { "SIGUSR2", SIGUSR2 },
	{ "SIGPIPE", SIGPIPE }, { "SIGALRM", SIGALRM },   { "SIGTERM", SIGTERM },
	{ "SIGCHLD", SIGCHLD }, { "SIGCONT", SIGCONT },   { "SIGSTOP", SIGSTOP },
	{ "SIGTSTP", SIGTSTP }, { "SIGTTIN", SIGTTIN },   { "SIGTTOU", SIGTTOU },
	{ "SIGURG", SIGURG },   { "SIGXCPU", SIGXCPU },   { "SIGXFSZ", SIGXFSZ },
	{ "SIGVTALRM", SIGVTALRM }, { "SIGPROF", SIGPROF }, { "SIGWINCH", SIGWINCH },
	{ "SIGIO", SIGIO },     { "SIGPWR", SIGPWR },     { "SIGSYS", SIGSYS },
};

int signal_from_name(const char *name)
{
	uint64_t n;

	if (parse_u64(name, &n) == 0)
		return n >= 1 && n <= 64 ? (int)n : -EINVAL;
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
		if (!strcasecmp(name, signals[i].name) || !strcasecmp(name, signals[i].name + 3))
			return signals[i].signo;
	return -EINVAL;
}

const char *signal_to_name(int signo)
{
	for (size_t i = 0; i < ARRAY_SIZE(signals); i++)
		if (signals[i].signo == signo)
			return signals[i].name;
	return "?";
}

int job_signal_parse(const char *text, struct job_signal *ret, struct diag *diag)
{
	struct job_signal sig = { .before_s = 60 };
	char copy[65];
	char *at, *name = copy;
	uint64_t n;
	int signo;

	if (strlen(text) >= sizeof(copy))
		return diag_set(diag, -EINVAL, "signal", "longer than %zu bytes", sizeof(copy) - 1);
	(void)snprintf(copy, sizeof(copy), "%s", text);
	/* R: (reservation) has no meaning here and is accepted, as B:. */
	if (!strncasecmp(name, "B:", 2)) {
		sig.batch_only = true;
		name += 2;
	} else if (!strncasecmp(name, "R:", 2)) {
		name += 2;
	}
	at = strchr(name, '@');
	if (at) {
		*at++ = '\0';
		if (parse_u64(at, &n) < 0 || n > 65535)
			return diag_set(diag, -ERANGE, "signal", "\"%s\": \"%s\" is not a number of seconds up to 65535",
					text, at);
		sig.before_s = (unsigned)n;
	}
	signo = signal_from_name(name);
	if (signo < 0)
		return diag_set(diag, -EINVAL, "signal", "\"%s\": \"%s\" is not a signal", text, name);
	if (signo == SIGKILL || signo == SIGSTOP)
		return diag_set(diag, -EINVAL, "signal", "\"%s\": %s cannot be caught, so it cannot ask for a save",
				text, signal_to_name(signo));
	sig.signo = signo;
	*ret = sig;
	return 0;
}

struct job_signal job_spec_signal(const struct job_spec *spec)
{
	struct job_signal sig = { .signo = SIGTERM, .before_s = 60 };

	if (spec->signal)
		(void)job_signal_parse(spec->signal, &sig, NULL); /* checked when it was read */
	return sig;
}
