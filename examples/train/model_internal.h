/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the forward and the training half of the model. */
#ifndef TRAIN_MODEL_INTERNAL_H
#define TRAIN_MODEL_INTERNAL_H

#include "model.h"

/*
 * The flat parameter array: tokens [vocab][w], positions [context][w], then per
 * layer norm1 [w], qkv [w][3w], proj [w][w], norm2 [w], up [w][4w], down [4w][w],
 * then the last norm [w] and the head [w][vocab]. Gradients lie the same way.
 */
struct layer_params {
	float *norm1, *qkv, *proj, *norm2, *up, *down;
};

static inline size_t layer_floats(const struct model_config *c)
{
	size_t w = c->width;

	return 2 * w + 12 * w * w;
}

/* Of the head matrix; the last norm stands right before it. */
static inline size_t model_head_offset(const struct model_config *c)
{
	return (size_t)(c->vocab + c->context) * c->width + c->layers * layer_floats(c) + c->width;
}

static inline struct layer_params layer_params(const struct model_config *c, float *params,
					       size_t layer)
{
	size_t w = c->width;
	float *at = params + (size_t)(c->vocab + c->context) * w + layer * layer_floats(c);

	return (struct layer_params){
		.norm1 = at,
		.qkv = at + w,
		.proj = at + w + 3 * w * w,
		.norm2 = at + w + 4 * w * w,
		.up = at + 2 * w + 4 * w * w,
		.down = at + 2 * w + 8 * w * w,
	};
}

/* What one layer computes on the way and needs on the way back, [rows][...]. */
struct layer_values {
	float *in, *normed1, *qkv, *attended, *mid, *normed2, *up, *act;
	float *inverse1, *inverse2; /* 1 / rms */
	float *probs;               /* [sequences][heads][length][length] */
};

size_t layer_values_floats(const struct model_config *c, size_t sequences, size_t length);
struct layer_values layer_values(const struct model_config *c, float *at, size_t sequences,
				 size_t length);
/* x: in place. */
void layer_forward(const struct model_config *c, const struct layer_params *p,
		   const struct layer_values *v, float *x, size_t sequences, size_t length);

void matmul(float *out, const float *in, const float *weight, size_t rows, size_t k, size_t n,
	    int add);
void rms_norm(float *out, float *inverse, const float *x, const float *gain, size_t rows, size_t w);

#endif
