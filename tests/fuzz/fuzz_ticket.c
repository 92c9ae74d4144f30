/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "wire/ticket.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The first byte chooses: a body, or a ticket's text with a body inside. What decodes must encode
 * to the same bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ticket_text parts;
	struct ticket t;
	uint8_t again[TICKET_BODY_MAX];
	size_t len;
	char *text;

	if (size == 0)
		return 0;
	if (data[0] & 1) {
		text = malloc(size);
		memcpy(text, data + 1, size - 1);
		text[size - 1] = 0;
		if (ticket_parse(text, &parts, NULL) == 0)
			(void)ticket_decode_body(parts.body, parts.body_len, &t, NULL);
		free(text);
		return 0;
	}
	if (ticket_decode_body(data + 1, size - 1, &t, NULL) < 0)
		return 0;
	if (ticket_encode_body(&t, again, sizeof(again), &len, NULL) < 0 || len != size - 1)
		abort();
	return 0;
}
