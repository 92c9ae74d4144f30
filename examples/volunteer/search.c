/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One point of a hyper-parameter search: trains the small transformer of
 * examples/train on a text that is built in, and reports the loss. Value i
 * names a point of the grid below. One source, built as WebAssembly for pages
 * and as a program for native volunteers; exact arithmetic (train/exact.h) gives
 * both the same bits, so that a quorum may mix them.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"
#include "search_text.h"

#define STEPS 12
#define BATCH 4

static const uint32_t widths[] = { 16, 24, 32 }, layers[] = { 1, 2 };
static const float rates[] = { 1e-3f, 3e-3f, 1e-2f, 3e-2f };
#define POINTS (3 * 2 * 4)

static uint32_t to_ids(uint8_t *ids)
{
	uint8_t id_of[256];
	uint32_t vocab = 0;
	memset(id_of, 255, sizeof(id_of));
	for (size_t i = 0; i < sizeof(search_text); i++)
		id_of[search_text[i]] = 0;
	for (size_t b = 0; b < 256; b++) {
		if (id_of[b] == 0)
			id_of[b] = (uint8_t)vocab++;
	}
	for (size_t i = 0; i < sizeof(search_text); i++)
		ids[i] = id_of[search_text[i]];
	return vocab;
}

/* Batches at fixed places of the text: every point sees the same data in the same order. */
static void fill(const uint8_t *ids, uint32_t context, uint64_t step, uint8_t *tokens,
		 uint8_t *targets)
{
	for (uint32_t s = 0; s < BATCH; s++) {
		size_t at = (size_t)((step * BATCH + s) * 7919 % (sizeof(search_text) - context - 1));
		memcpy(tokens + s * context, ids + at, context);
		memcpy(targets + s * context, ids + at + 1, context);
	}
}

static int train(uint64_t point, char *out, size_t out_size)
{
	static uint8_t ids[sizeof(search_text)], tokens[BATCH * 32], targets[BATCH * 32];
	struct model_config cfg = { .context = 32, .heads = 2 };
	struct model m;
	struct model_train *t;
	if (point >= POINTS)
		return -1;
	cfg.width = widths[point % 3];
	cfg.layers = layers[point / 3 % 2];
	float rate = rates[point / 6];
	cfg.vocab = to_ids(ids);
	if (model_init(&m, &cfg) < 0 || model_train_new(&m, BATCH, &t) < 0)
		return -1;
	struct adamw o = { .first = calloc(m.params_count, sizeof(float)),
			   .second = calloc(m.params_count, sizeof(float)), .rate = rate,
			   .decay = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f };
	if (!o.first || !o.second)
		return -1;
	double loss = 0;
	model_randomise(&m, 1);
	for (uint64_t step = 1; step <= STEPS; step++) {
		fill(ids, cfg.context, step, tokens, targets);
		loss = model_train_loss(t, &m, tokens, targets);
		adamw_step(&o, &m, model_train_grad(t), step);
	}
	/* Millionths as an integer: printing of fractions differs between libraries. */
	(void)snprintf(out, out_size, "width %u layers %u rate %d/10000 loss %d", (unsigned)cfg.width,
		       (unsigned)cfg.layers, (int)(rate * 10000 + 0.5f), (int)(loss * 1e6));
	free(o.first);
	free(o.second);
	model_train_free(t);
	model_done(&m);
	return 0;
}

#ifdef __wasm__
__attribute__((export_name("alloc"))) void *alloc(size_t len)
{
	return malloc(len + 1);
}

/* Where the result lies, and its length, in one number; 0 = failed. */
__attribute__((export_name("apply"))) uint64_t apply(char *value, size_t len)
{
	static char out[128];
	value[len] = '\0';
	if (train(strtoull(value, NULL, 10), out, sizeof(out)) < 0)
		return 0;
	return (uint64_t)(uintptr_t)out << 32 | strlen(out);
}
#else
int main(void)
{
	char line[32], out[128];
	if (!fgets(line, sizeof(line), stdin) || train(strtoull(line, NULL, 10), out, sizeof(out)) < 0) {
		fprintf(stderr, "no such point, or no memory\n");
		return 1;
	}
	fputs(out, stdout);
	return 0;
}
#endif
