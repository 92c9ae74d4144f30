/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint.h"
#include "exact.h"

static const struct model_config small = { .vocab = 7, .context = 5, .width = 8, .layers = 2,
					   .heads = 2 };
static const uint8_t tokens[10] = { 0, 3, 6, 2, 2, 5, 1, 4, 0, 6 };
static const uint8_t targets[10] = { 3, 6, 2, 2, 1, 1, 4, 0, 6, 3 };

static void test_exact(void **state)
{
	for (double x = -80; x < 80; x += 0.37)
		assert_true(fabs(exact_expf((float)x) / exp((float)x) - 1) < 2e-6);
	for (double x = 1e-30; x < 1e30; x *= 1.7)
		assert_true(fabs(exact_log(x) - log(x)) < 1e-8);
}

/* The analytic gradient against central differences. */
static void test_gradient(void **state)
{
	struct model m;
	struct model_train *t;
	float *grad;
	size_t checked = 0;

	assert_int_equal(model_init(&m, &small), 0);
	model_randomise(&m, 42);
	assert_int_equal(model_train_new(&m, 2, &t), 0);
	(void)model_train_loss(t, &m, tokens, targets);
	grad = malloc(m.params_count * sizeof(*grad));
	memcpy(grad, model_train_grad(t), m.params_count * sizeof(*grad));
	for (size_t i = 0; i < m.params_count; i += 11, checked++) {
		float keep = m.params[i], h = 1e-2f;
		double above, below, slope;

		m.params[i] = keep + h;
		above = model_train_loss(t, &m, tokens, targets);
		m.params[i] = keep - h;
		below = model_train_loss(t, &m, tokens, targets);
		m.params[i] = keep;
		slope = (above - below) / (2 * (double)h);
		if (fabs(slope - (double)grad[i]) > 2e-3 + 0.02 * fabs(slope))
			fail_msg("parameter %zu: %g by differences, %g by gradient", i, slope,
				 (double)grad[i]);
	}
	assert_true(checked > 100);
	free(grad);
	model_train_free(t);
	model_done(&m);
}

/* A pipeline's layer-by-layer pass gives what training computes. */
static void test_layers(void **state)
{
	struct model m;
	struct model_train *t;
	float x[10 * 8], logits[10 * 7], *scratch;
	double loss = 0;

	assert_int_equal(model_init(&m, &small), 0);
	model_randomise(&m, 7);
	scratch = malloc(model_scratch_floats(&small, 2, 5) * sizeof(*scratch));
	model_embed(&m, tokens, 2, 5, x);
	for (size_t l = 0; l < small.layers; l++)
		model_layer(&m, l, x, 2, 5, scratch);
	model_head(&m, x, 10, logits, scratch);
	for (size_t i = 0; i < 10; i++) {
		double sum = 0;

		for (size_t j = 0; j < 7; j++)
			sum += exp((double)logits[i * 7 + j]);
		loss += log(sum) - (double)logits[i * 7 + targets[i]];
	}
	assert_int_equal(model_train_new(&m, 2, &t), 0);
	assert_true(fabs(loss / 10 - model_train_loss(t, &m, tokens, targets)) < 1e-5);
	model_train_free(t);
	free(scratch);
	model_done(&m);
}

static void test_bounds(void **state)
{
	struct model m;
	struct model_config c = small;

	c.heads = 3;
	assert_int_equal(model_init(&m, &c), -EINVAL);
	c = small;
	c.width = 0;
	assert_int_equal(model_init(&m, &c), -EINVAL);
	assert_true(checkpoint_load_model("/nonexistent", &m) == -ENOENT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_gradient),
		cmocka_unit_test(test_layers),
		cmocka_unit_test(test_bounds),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
