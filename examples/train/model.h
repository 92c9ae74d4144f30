/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small transformer over characters, as a library: the trainer uses all of
 * it, and a pipeline can load a checkpoint and run some of its layers.
 *
 * Parameters are one flat array of floats; each tensor is a slice of it, row
 * by row. Rows are tokens: an activation is [rows][width], where rows come in
 * whole sequences of at most `context` tokens. Everything is deterministic to
 * the bit (exact.h).
 */
#ifndef TRAIN_MODEL_H
#define TRAIN_MODEL_H

#include <stddef.h>
#include <stdint.h>

#define MODEL_LAYERS_MAX 64
#define MODEL_WIDTH_MAX 4096
#define MODEL_VOCAB_MAX 256
#define MODEL_CONTEXT_MAX 1024

struct model_config {
	uint32_t vocab;   /* characters */
	uint32_t context; /* tokens a prediction looks back at */
	uint32_t width;   /* multiple of heads */
	uint32_t layers;
	uint32_t heads;
};

struct model {
	struct model_config cfg;
	float *params;
	size_t params_count;
};

/* 0, -EINVAL (a bound of the config) or -ENOMEM. Zero parameters. */
int model_init(struct model *m, const struct model_config *cfg);
void model_done(struct model *m);
size_t model_params_count(const struct model_config *cfg);
/* Fills the parameters from a seed. */
void model_randomise(struct model *m, uint64_t seed);

/*
 * Forward, layer by layer, as a pipeline stage needs it. `tokens` holds
 * sequences x length ids; x is [sequences * length][width], read and written
 * in place; scratch holds model_scratch_floats() floats.
 */
size_t model_scratch_floats(const struct model_config *cfg, size_t sequences, size_t length);
void model_embed(const struct model *m, const uint8_t *tokens, size_t sequences, size_t length,
		 float *x);
void model_layer(const struct model *m, size_t layer, float *x, size_t sequences, size_t length,
		 float *scratch);
/* logits is [rows][vocab]. */
void model_head(const struct model *m, const float *x, size_t rows, float *logits,
		float *scratch);

/* ---- training ---- */

struct model_train; /* activations and gradients of one batch */

int model_train_new(const struct model *m, size_t sequences, struct model_train **ret);
void model_train_free(struct model_train *t);
/*
 * One forward and backward pass over sequences of `context` tokens; targets
 * are the ids that follow each token. Returns the mean loss in nats and leaves
 * the gradient in model_train_grad() (params_count floats).
 */
double model_train_loss(struct model_train *t, const struct model *m, const uint8_t *tokens,
			const uint8_t *targets);
float *model_train_grad(struct model_train *t);

struct adamw {
	float *first, *second; /* moments, params_count floats each */
	float rate, decay, beta1, beta2;
};
/* step counts from 1. Clips the gradient to norm 1 first. */
void adamw_step(struct adamw *o, struct model *m, float *grad, uint64_t step);

#endif
