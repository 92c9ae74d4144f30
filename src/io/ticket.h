/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signed tickets (wire/ticket.h) in text form: made by the coordinator, checked
 * at both ends of a transfer.
 */
#ifndef RECLAIM_IO_TICKET_H
#define RECLAIM_IO_TICKET_H

#include "base/diag.h"
#include "io/identity.h"
#include "wire/ticket.h"

int ticket_sign(const struct identity *id, const struct ticket *t, char ret_text[TICKET_TEXT_MAX],
		struct diag *diag);
/* Signature, chain and role; not who holds it nor time. -EACCES or -EBADMSG with diag. */
int ticket_verify(const struct identity *id, const char *text, struct ticket *ret,
		  struct diag *diag);

#endif
