/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass, one layer at a time: pre-norm attention and a SiLU
 * feed-forward block, RMS norms, learned positions. Training keeps the same
 * intermediate values per layer (model_train.c) and walks back over them.
 */
#include "model_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "exact.h"

size_t model_params_count(const struct model_config *c)
{
	return model_head_offset(c) + (size_t)c->width * c->vocab;
}

int model_init(struct model *m, const struct model_config *cfg)
{
	if (cfg->vocab < 1 || cfg->vocab > MODEL_VOCAB_MAX || cfg->context < 1 ||
	    cfg->context > MODEL_CONTEXT_MAX || cfg->width < 1 || cfg->width > MODEL_WIDTH_MAX ||
	    cfg->layers < 1 || cfg->layers > MODEL_LAYERS_MAX || cfg->heads < 1 ||
	    cfg->width % cfg->heads)
		return -EINVAL;
	m->cfg = *cfg;
	m->params_count = model_params_count(cfg);
	m->params = calloc(m->params_count, sizeof(*m->params));
	return m->params ? 0 : -ENOMEM;
}

void model_done(struct model *m)
{
	free(m->params);
	m->params = NULL;
}

/* splitmix64 (Steele, Lea, Flood 2014) to a sum of uniforms: near normal, and exact. */
static float random_near_normal(uint64_t *state)
{
	int32_t sum = 0;

	for (int i = 0; i < 4; i++) {
		uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));

		z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
		z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
		z ^= z >> 31;
		sum += (int32_t)(z >> 48) - 32768;
	}
	return (float)sum / 37837.0f; /* variance of four uniforms of 65536 */
}

static void fill(float *p, size_t n, float scale, uint64_t *state)
{
	for (size_t i = 0; i < n; i++)
		p[i] = scale * random_near_normal(state);
}

static void fill_ones(float *p, size_t n)
{
	for (size_t i = 0; i < n; i++)
		p[i] = 1.0f;
}

void model_randomise(struct model *m, uint64_t seed)
{
	const struct model_config *c = &m->cfg;
	size_t w = c->width;
	float scale = 1.0f / sqrtf((float)w), out = scale / sqrtf(2.0f * (float)c->layers);

	fill(m->params, (c->vocab + c->context) * w, 0.1f, &seed);
	for (size_t l = 0; l < c->layers; l++) {
		struct layer_params p = layer_params(c, m->params, l);

		fill_ones(p.norm1, w);
		fill(p.qkv, 3 * w * w, scale, &seed);
		fill(p.proj, w * w, out, &seed);
		fill_ones(p.norm2, w);
		fill(p.up, 4 * w * w, scale, &seed);
		fill(p.down, 4 * w * w, out / 2, &seed);
	}
	fill_ones(m->params + model_head_offset(c) - w, w);
	fill(m->params + model_head_offset(c), w * c->vocab, scale, &seed);
}

/* out[rows][n] = in[rows][k] * weight[k][n] (+ out if add). */
void matmul(float *out, const float *in, const float *weight, size_t rows, size_t k, size_t n,
	    int add)
{
	if (!add)
		memset(out, 0, rows * n * sizeof(*out));
	for (size_t i = 0; i < rows; i++)
		for (size_t j = 0; j < k; j++)
			exact_axpy(out + i * n, in[i * k + j], weight + j * n, n);
}

/* out = x / rms(x) * gain, by rows; keeps 1 / rms for the way back. */
void rms_norm(float *out, float *inverse, const float *x, const float *gain, size_t rows, size_t w)
{
	for (size_t i = 0; i < rows; i++) {
		const float *row = x + i * w;
		float scale = 1.0f / sqrtf(exact_dot(row, row, w) / (float)w + 1e-5f);

		inverse[i] = scale;
		for (size_t j = 0; j < w; j++)
			out[i * w + j] = row[j] * scale * gain[j];
	}
}

/* One sequence and head: scores, softmax over what lies before, sum of values. */
static void attend(float *out, float *probs, const float *qkv, size_t length, size_t w, size_t head,
		   size_t dim)
{
	float scale = 1.0f / sqrtf((float)dim);

	for (size_t t = 0; t < length; t++) {
		const float *q = qkv + t * 3 * w + head * dim;
		float *p = probs + t * length, top = -1e30f, sum = 0;

		for (size_t u = 0; u <= t; u++) {
			p[u] = exact_dot(q, qkv + u * 3 * w + w + head * dim, dim) * scale;
			top = p[u] > top ? p[u] : top;
		}
		for (size_t u = 0; u <= t; u++) {
			p[u] = exact_expf(p[u] - top);
			sum += p[u];
		}
		memset(out + t * w + head * dim, 0, dim * sizeof(*out));
		for (size_t u = 0; u <= t; u++) {
			p[u] /= sum;
			exact_axpy(out + t * w + head * dim, p[u],
				   qkv + u * 3 * w + 2 * w + head * dim, dim);
		}
	}
}

void layer_forward(const struct model_config *c, const struct layer_params *p,
		   const struct layer_values *v, float *x, size_t sequences, size_t length)
{
	size_t w = c->width, dim = w / c->heads, rows = sequences * length;

	memcpy(v->in, x, rows * w * sizeof(*x));
	rms_norm(v->normed1, v->inverse1, x, p->norm1, rows, w);
	matmul(v->qkv, v->normed1, p->qkv, rows, w, 3 * w, 0);
	for (size_t s = 0; s < sequences; s++)
		for (size_t h = 0; h < c->heads; h++)
			attend(v->attended + s * length * w,
			       v->probs + (s * c->heads + h) * length * length,
			       v->qkv + s * length * 3 * w, length, w, h, dim);
	matmul(x, v->attended, p->proj, rows, w, w, 1);
	memcpy(v->mid, x, rows * w * sizeof(*x));
	rms_norm(v->normed2, v->inverse2, x, p->norm2, rows, w);
	matmul(v->up, v->normed2, p->up, rows, w, 4 * w, 0);
	for (size_t i = 0; i < rows * 4 * w; i++)
		v->act[i] = v->up[i] / (1.0f + exact_expf(-v->up[i]));
	matmul(x, v->act, p->down, rows, 4 * w, w, 1);
}

size_t layer_values_floats(const struct model_config *c, size_t sequences, size_t length)
{
	size_t rows = sequences * length, w = c->width;

	return rows * (2 + 16 * w) + sequences * c->heads * length * length;
}

struct layer_values layer_values(const struct model_config *c, float *at, size_t sequences,
				 size_t length)
{
	size_t rows = sequences * length, w = c->width;
	struct layer_values v;

	v.in = at;
	v.normed1 = v.in + rows * w;
	v.qkv = v.normed1 + rows * w;
	v.attended = v.qkv + rows * 3 * w;
	v.mid = v.attended + rows * w;
	v.normed2 = v.mid + rows * w;
	v.up = v.normed2 + rows * w;
	v.act = v.up + rows * 4 * w;
	v.inverse1 = v.act + rows * 4 * w;
	v.inverse2 = v.inverse1 + rows;
	v.probs = v.inverse2 + rows;
	return v;
}

size_t model_scratch_floats(const struct model_config *c, size_t sequences, size_t length)
{
	return layer_values_floats(c, sequences, length);
}

void model_embed(const struct model *m, const uint8_t *tokens, size_t sequences, size_t length,
		 float *x)
{
	size_t w = m->cfg.width;
	const float *places = m->params + m->cfg.vocab * w;

	for (size_t i = 0; i < sequences * length; i++)
		for (size_t j = 0; j < w; j++)
			x[i * w + j] = m->params[tokens[i] * w + j] + places[i % length * w + j];
}

void model_layer(const struct model *m, size_t layer, float *x, size_t sequences, size_t length,
		 float *scratch)
{
	struct layer_params p = layer_params(&m->cfg, m->params, layer);
	struct layer_values v = layer_values(&m->cfg, scratch, sequences, length);

	layer_forward(&m->cfg, &p, &v, x, sequences, length);
}

void model_head(const struct model *m, const float *x, size_t rows, float *logits, float *scratch)
{
	size_t w = m->cfg.width, at = model_head_offset(&m->cfg);

	rms_norm(scratch + rows, scratch, x, m->params + at - w, rows, w);
	matmul(logits, scratch + rows, m->params + at, rows, w, m->cfg.vocab, 0);
}
