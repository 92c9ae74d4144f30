/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little of SDP (RFC 8866, 8841, 8839) that one data channel needs: read
 * an offer or answer of a browser or of ours, and write one. Read text is
 * outside input; what is not understood is skipped, what is missing or out of
 * bounds is an error.
 */
#ifndef RECLAIM_VOLUNTEER_SDP_H
#define RECLAIM_VOLUNTEER_SDP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/strbuf.h"
#include "volunteer/address.h"

#define SDP_MAX 8192u
#define SDP_CANDIDATES_MAX 16u
#define SDP_UFRAG_MAX 256u
#define SDP_PWD_MAX 256u
#define SDP_MID_MAX 32u
#define SDP_FINGERPRINT 32u /* SHA-256 */

enum sdp_setup { SDP_ACTPASS = 0, SDP_ACTIVE, SDP_PASSIVE };

struct sdp {
	char ufrag[SDP_UFRAG_MAX + 1], pwd[SDP_PWD_MAX + 1], mid[SDP_MID_MAX + 1];
	uint8_t fingerprint[SDP_FINGERPRINT];
	enum sdp_setup setup;
	bool ice_lite;
	uint16_t sctp_port;
	uint32_t message_max; /* bytes; 0 = any size */
	struct address candidates[SDP_CANDIDATES_MAX]; /* UDP, numeric; others are skipped */
	size_t candidates_count;
	size_t skipped; /* candidates that were names, TCP, or one too many */
};

int sdp_parse(const char *text, size_t len, struct sdp *ret, struct diag *diag);
/* 0 or -ENOMEM. */
int sdp_format(const struct sdp *s, struct strbuf *out);

#endif
