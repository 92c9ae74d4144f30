/* SPDX-License-Identifier: Apache-2.0 */
/* A QR code for a terminal: two rows in a line, by half blocks. */
#ifndef RECLAIM_VOLUNTEER_QR_H
#define RECLAIM_VOLUNTEER_QR_H

#include "base/strbuf.h"

/* 0, -EFBIG (too long for a code) or -ENOMEM. */
int qr_format(const char *text, struct strbuf *out);

#endif
