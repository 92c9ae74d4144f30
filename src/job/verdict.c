/* SPDX-License-Identifier: Apache-2.0 */
#include "job/verdict.h"

#include <stdio.h>

#include "job/signal_name.h"

static const char *how(const struct exit_facts *f, char *buf, size_t buf_size)
{
	if (f->signal)
		(void)snprintf(buf, buf_size, "ended by %s", signal_to_name(f->signal));
	else
		(void)snprintf(buf, buf_size, "exit status %d", f->status);
	return buf;
}

enum shim_end exit_verdict(const struct exit_facts *f, char *buf, size_t buf_size)
{
	char what[64];

	(void)how(f, what, sizeof(what));
	if (!f->started) {
		(void)snprintf(buf, buf_size, "this machine could not start it (%s)", what);
		return f->stopped_for != SHIM_END_NONE ? (enum shim_end)f->stopped_for : SHIM_END_NOT_STARTED;
	}
	/* Finished is finished, even if our own kill was on its way; but only outside a notice
	 * can an exit status of 0 be trusted to mean it. */
	if (f->stopped_for != SHIM_END_NONE && f->stopped_for != SHIM_END_RECLAIMED) {
		(void)snprintf(buf, buf_size, "%s", what);
		return (enum shim_end)f->stopped_for;
	}
	if (f->notice || f->stopped_for == SHIM_END_RECLAIMED) {
		if (!f->signal && f->status == 0 && !f->requeue_asked &&
		    (f->done_on_notice_exit || !f->checkpoint_used)) {
			(void)snprintf(buf, buf_size, "%s during a notice; %s", what,
				       f->done_on_notice_exit ? "the job says that means finished"
							      : "no checkpoint is in use, so it has finished");
			return SHIM_END_DONE;
		}
		(void)snprintf(buf, buf_size, "%s during a notice, %s", what,
			       f->committed_since_notice ? "after it had saved"
			       : f->checkpoint_used      ? "without a save since"
							 : "before any checkpoint");
		return SHIM_END_RECLAIMED;
	}
	if (f->requeue_asked) {
		(void)snprintf(buf, buf_size, "asked to be requeued, then %s", what);
		return SHIM_END_RESTART;
	}
	if (!f->signal && f->status == EXIT_RESTART) {
		(void)snprintf(buf, buf_size, "exit status %d: saved, start me again", EXIT_RESTART);
		return SHIM_END_RESTART;
	}
	if (!f->signal && f->status == 0) {
		(void)snprintf(buf, buf_size, "finished");
		return SHIM_END_DONE;
	}
	(void)snprintf(buf, buf_size, "%s%s", what, f->oom ? ": it needed more memory than its limit" : "");
	return SHIM_END_FAILED;
}
