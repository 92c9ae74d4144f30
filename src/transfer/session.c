/* SPDX-License-Identifier: Apache-2.0 */
/* How sessions end, in words and codes; the halves are in send.c and receive.c. */
#include "transfer/session.h"

#include <errno.h>
#include <string.h>

enum transfer_code transfer_code_of(int err)
{
	switch (err) {
	case 0: return TRANSFER_OK;
	case -ENOENT: return TRANSFER_E_MISSING;
	case -EBADMSG: return TRANSFER_E_DAMAGED;
	case -EKEYREJECTED: return TRANSFER_E_KEY;
	case -ENOSPC:
	case -EDQUOT: return TRANSFER_E_SPACE;
	case -ESTALE: return TRANSFER_E_EPOCH;
	case -ECANCELED: return TRANSFER_E_CANCELLED;
	case -EBUSY: return TRANSFER_E_BUSY;
	case -EACCES: return TRANSFER_E_PEER;
	case -EPROTO: return TRANSFER_E_PROTOCOL;
	case -ECONNRESET:
	case -ECONNREFUSED:
	case -ECONNABORTED:
	case -ETIMEDOUT:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -EHOSTDOWN:
	case -EADDRNOTAVAIL:
	case -EPIPE: return TRANSFER_E_LINK;
	default: return TRANSFER_E_IO;
	}
}

void session_end_set(struct session_end *end, int err, const struct diag *diag)
{
	end->code = transfer_code_of(err);
	end->from_peer = false;
	if (diag && diag->what[0])
		end->diag = *diag;
	else
		diag_set(&end->diag, 0, "", "%s", strerror(-err));
}

int session_end_take(struct session_end *end, const uint8_t *body, size_t len, struct diag *diag)
{
	struct transfer_fail f;

	if (transfer_decode_fail(body, len, &f, diag) < 0)
		return -EPROTO;
	end->code = f.code;
	end->from_peer = true;
	diag_set(&end->diag, 0, "peer", "%s", f.text);
	return 1;
}
