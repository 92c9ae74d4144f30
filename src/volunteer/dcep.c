/* SPDX-License-Identifier: Apache-2.0 */
#include "volunteer/dcep.h"

#include <errno.h>
#include <string.h>

int dcep_decode(const uint8_t *bytes, size_t len, struct dcep *ret)
{
	struct dcep d = { 0 };
	if (len >= 1 && bytes[0] == DCEP_ACK) {
		d.type = DCEP_ACK;
		*ret = d;
		return 0;
	}
	if (len < 12 || bytes[0] != DCEP_OPEN)
		return -EBADMSG;
	size_t label = (size_t)bytes[8] << 8 | bytes[9], protocol = (size_t)bytes[10] << 8 | bytes[11];
	if (label + protocol != len - 12)
		return -EBADMSG;
	if (label > DCEP_LABEL_MAX || protocol > DCEP_LABEL_MAX)
		return -EMSGSIZE;
	d.type = DCEP_OPEN;
	d.channel_type = bytes[1];
	memcpy(d.label, bytes + 12, label);
	*ret = d;
	return 0;
}

size_t dcep_encode(const struct dcep *d, uint8_t *buf)
{
	if (d->type == DCEP_ACK) {
		buf[0] = DCEP_ACK;
		return 1;
	}
	size_t label = strnlen(d->label, DCEP_LABEL_MAX);
	memset(buf, 0, 12);
	buf[0] = DCEP_OPEN;
	buf[1] = d->channel_type;
	buf[9] = (uint8_t)label;
	memcpy(buf + 12, d->label, label);
	return 12 + label;
}
