/* SPDX-License-Identifier: Apache-2.0 */
#include "volunteer/qr.h"

#include <errno.h>
#include <qrencode.h>

#define QUIET 2 /* modules of white around; four are asked for, terminals add their own */

static bool is_dark(const QRcode *code, int x, int y)
{
	if (x < 0 || y < 0 || x >= code->width || y >= code->width)
		return false;
	return code->data[y * code->width + x] & 1;
}

int qr_format(const char *text, struct strbuf *out)
{
	QRcode *code = QRcode_encodeString(text, 0, QR_ECLEVEL_L, QR_MODE_8, 1);
	if (!code)
		return errno == ERANGE ? -EFBIG : -ENOMEM;
	/* White on black with the colours set, so that it reads on any terminal. */
	for (int y = -QUIET; y < code->width + QUIET; y += 2) {
		strbuf_add(out, "\x1b[97;40m");
		for (int x = -QUIET; x < code->width + QUIET; x++) {
			bool up = !is_dark(code, x, y), down = !is_dark(code, x, y + 1);
			strbuf_add(out, up && down ? "█" : up ? "▀" : down ? "▄" : " ");
		}
		strbuf_add(out, "\x1b[0m\n");
	}
	QRcode_free(code);
	return out->failed ? -ENOMEM : 0;
}
