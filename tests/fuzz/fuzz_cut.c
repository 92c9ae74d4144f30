/* SPDX-License-Identifier: Apache-2.0 */
/* edge.cut: root writes it, but a set-user-id program reads it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "edge/cut_plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1);
	struct cut_plan p;
	unsigned line = 0;

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';
	if (cut_plan_parse(text, &p, &line) == 0 && p.bpf[0] && p.bpf[0] != '/')
		abort();
	free(text);
	return 0;
}
