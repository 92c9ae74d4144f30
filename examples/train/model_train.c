/* SPDX-License-Identifier: Apache-2.0 */
/* The way back, and the optimiser. Gradients are exact for the forward pass of model.c. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "exact.h"
#include "model_internal.h"

struct model_train {
	struct model_config cfg;
	size_t sequences, rows;
	float *memory; /* one block, the pointers below point into it */
	float *x, *normed, *inverse, *logits, *grad;
	float *dx, *dmid, *dwide, *dqkv, *dprobs;
	float *values; /* layer_values of every layer */
};

int model_train_new(const struct model *m, size_t sequences, struct model_train **ret)
{
	const struct model_config *c = &m->cfg;
	size_t length = c->context, rows = sequences * length, w = c->width;
	size_t layer = layer_values_floats(c, sequences, length);
	struct model_train *t = calloc(1, sizeof(*t));
	float *at;

	if (!t)
		return -ENOMEM;
	*t = (struct model_train){ .cfg = *c, .sequences = sequences, .rows = rows };
	t->memory = calloc(m->params_count + rows * (1 + 11 * w + c->vocab) + length +
				   c->layers * layer, sizeof(float));
	if (!t->memory) {
		free(t);
		return -ENOMEM;
	}
	at = t->memory;
	t->grad = at;
	t->x = (at += m->params_count);
	t->normed = (at += rows * w);
	t->inverse = (at += rows * w);
	t->logits = (at += rows);
	t->dx = (at += rows * c->vocab);
	t->dmid = (at += rows * w);
	t->dwide = (at += rows * w);
	t->dqkv = (at += rows * 4 * w);
	t->dprobs = (at += rows * 3 * w);
	t->values = at + length;
	*ret = t;
	return 0;
}

void model_train_free(struct model_train *t)
{
	if (t)
		free(t->memory);
	free(t);
}

float *model_train_grad(struct model_train *t)
{
	return t->grad;
}

/* For out = in * weight: din (set), dweight (added). */
static void matmul_back(float *din, float *dweight, const float *dout, const float *in,
			const float *weight, size_t rows, size_t k, size_t n)
{
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < k; j++) {
			din[i * k + j] = exact_dot(dout + i * n, weight + j * n, n);
			exact_axpy(dweight + j * n, in[i * k + j], dout + i * n, n);
		}
}

/* dx is added to; x is the norm's input. */
static void rms_norm_back(float *dx, float *dgain, const float *dout, const float *x,
			  const float *gain, const float *inverse, size_t rows, size_t w)
{
	for (size_t i = 0; i < rows; i++) {
		const float *d = dout + i * w, *row = x + i * w;
		float scale = inverse[i], sum = 0;

		for (size_t j = 0; j < w; j++) {
			dgain[j] += d[j] * row[j] * scale;
			sum += d[j] * gain[j] * row[j];
		}
		sum = sum * scale * scale * scale / (float)w;
		for (size_t j = 0; j < w; j++)
			dx[i * w + j] += d[j] * gain[j] * scale - row[j] * sum;
	}
}

static void attend_back(float *dqkv, float *dprobs, const float *dout, const float *probs,
			const float *qkv, size_t length, size_t w, size_t head, size_t dim)
{
	float scale = 1.0f / sqrtf((float)dim);
	size_t at = head * dim;

	for (size_t t = 0; t < length; t++) {
		const float *p = probs + t * length, *d = dout + t * w + at;
		float sum = 0;

		for (size_t u = 0; u <= t; u++) {
			dprobs[u] = exact_dot(d, qkv + u * 3 * w + 2 * w + at, dim);
			sum += dprobs[u] * p[u];
			exact_axpy(dqkv + u * 3 * w + 2 * w + at, p[u], d, dim);
		}
		for (size_t u = 0; u <= t; u++) {
			float ds = p[u] * (dprobs[u] - sum) * scale;

			exact_axpy(dqkv + t * 3 * w + at, ds, qkv + u * 3 * w + w + at, dim);
			exact_axpy(dqkv + u * 3 * w + w + at, ds, qkv + t * 3 * w + at, dim);
		}
	}
}

/* dx comes in as the gradient of the layer's output and leaves as that of its input. */
static void layer_back(struct model_train *t, const struct layer_params *p,
		       const struct layer_params *g, const struct layer_values *v)
{
	const struct model_config *c = &t->cfg;
	size_t w = c->width, rows = t->rows, length = c->context, dim = w / c->heads;

	matmul_back(t->dwide, g->down, t->dx, v->act, p->down, rows, 4 * w, w);
	for (size_t i = 0; i < rows * 4 * w; i++) {
		float s = 1.0f / (1.0f + exact_expf(-v->up[i]));

		t->dwide[i] *= s * (1.0f + v->up[i] * (1.0f - s));
	}
	matmul_back(t->dmid, g->up, t->dwide, v->normed2, p->up, rows, w, 4 * w);
	rms_norm_back(t->dx, g->norm2, t->dmid, v->mid, p->norm2, v->inverse2, rows, w);

	matmul_back(t->dmid, g->proj, t->dx, v->attended, p->proj, rows, w, w);
	memset(t->dqkv, 0, rows * 3 * w * sizeof(float));
	for (size_t s = 0; s < t->sequences; s++)
		for (size_t h = 0; h < c->heads; h++)
			attend_back(t->dqkv + s * length * 3 * w, t->dprobs,
				    t->dmid + s * length * w,
				    v->probs + (s * c->heads + h) * length * length,
				    v->qkv + s * length * 3 * w, length, w, h, dim);
	matmul_back(t->dmid, g->qkv, t->dqkv, v->normed1, p->qkv, rows, w, 3 * w);
	rms_norm_back(t->dx, g->norm1, t->dmid, v->in, p->norm1, v->inverse1, rows, w);
}

/* Turns the logits into their gradient; returns the mean loss. */
static double softmax_loss(struct model_train *t, const uint8_t *targets)
{
	size_t vocab = t->cfg.vocab;
	double loss = 0;

	for (size_t i = 0; i < t->rows; i++) {
		float *row = t->logits + i * vocab, top = -1e30f, sum = 0, at;

		for (size_t j = 0; j < vocab; j++)
			top = row[j] > top ? row[j] : top;
		at = row[targets[i]] - top;
		for (size_t j = 0; j < vocab; j++) {
			row[j] = exact_expf(row[j] - top);
			sum += row[j];
		}
		loss += exact_log(sum) - (double)at;
		for (size_t j = 0; j < vocab; j++)
			row[j] = row[j] / sum / (float)t->rows;
		row[targets[i]] -= 1.0f / (float)t->rows;
	}
	return loss / (double)t->rows;
}

double model_train_loss(struct model_train *t, const struct model *m, const uint8_t *tokens,
			const uint8_t *targets)
{
	const struct model_config *c = &t->cfg;
	size_t w = c->width, head = model_head_offset(c);
	size_t layer = layer_values_floats(c, t->sequences, c->context);
	double loss;

	memset(t->grad, 0, m->params_count * sizeof(float));
	model_embed(m, tokens, t->sequences, c->context, t->x);
	for (size_t l = 0; l < c->layers; l++) {
		struct layer_params p = layer_params(c, m->params, l);
		struct layer_values v = layer_values(c, t->values + l * layer, t->sequences,
						     c->context);

		layer_forward(c, &p, &v, t->x, t->sequences, c->context);
	}
	rms_norm(t->normed, t->inverse, t->x, m->params + head - w, t->rows, w);
	matmul(t->logits, t->normed, m->params + head, t->rows, w, c->vocab, 0);
	loss = softmax_loss(t, targets);

	matmul_back(t->dmid, t->grad + head, t->logits, t->normed, m->params + head, t->rows, w,
		    c->vocab);
	memset(t->dx, 0, t->rows * w * sizeof(float));
	rms_norm_back(t->dx, t->grad + head - w, t->dmid, t->x, m->params + head - w, t->inverse,
		      t->rows, w);
	for (size_t l = c->layers; l-- > 0;) {
		struct layer_params p = layer_params(c, m->params, l);
		struct layer_params g = layer_params(c, t->grad, l);
		struct layer_values v = layer_values(c, t->values + l * layer, t->sequences,
						     c->context);

		layer_back(t, &p, &g, &v);
	}
	for (size_t i = 0; i < t->rows; i++) {
		exact_axpy(t->grad + tokens[i] * w, 1.0f, t->dx + i * w, w);
		exact_axpy(t->grad + (c->vocab + i % c->context) * w, 1.0f, t->dx + i * w, w);
	}
	return loss;
}

/* beta^n by squaring: the same bits everywhere, unlike pow(). */
static double power(double beta, uint64_t n)
{
	double p = 1;

	for (; n; n >>= 1, beta *= beta)
		if (n & 1)
			p *= beta;
	return p;
}

void adamw_step(struct adamw *o, struct model *m, float *grad, uint64_t step)
{
	float norm = sqrtf(exact_dot(grad, grad, m->params_count));
	float clip = norm > 1.0f ? 1.0f / norm : 1.0f;
	float warm = step < 20 ? (float)step / 20.0f : 1.0f;
	float fix1 = (float)(1.0 - power(o->beta1, step));
	float fix2 = (float)(1.0 - power(o->beta2, step));
	float rate = o->rate * warm;

	for (size_t i = 0; i < m->params_count; i++) {
		float g = grad[i] * clip;

		o->first[i] = o->beta1 * o->first[i] + (1.0f - o->beta1) * g;
		o->second[i] = o->beta2 * o->second[i] + (1.0f - o->beta2) * g * g;
		m->params[i] -= rate * (o->first[i] / fix1 /
						(sqrtf(o->second[i] / fix2) + 1e-8f) +
					o->decay * m->params[i]);
	}
}
