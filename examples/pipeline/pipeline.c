/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A character transformer in three stages, each a node of its own, streaming
 * tokens to a client. Stages may move to another process or machine at any
 * moment; the text does not change by a letter.
 *
 *   pipeline stage N [--standby] [--model FILE] [--registry A] [--token T]
 *   pipeline client COUNT [--model FILE] ...   prints the text
 *   pipeline demo MOVES COUNT [--model FILE]   all on this machine, with that many moves,
 *                                              compared with a run in one process
 *
 * client -> stage-1 -> stage-2 -> stage-3 -> client: the ids of the window so
 * far, two activations, the next id. Without a model file: parameters from a seed.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <reclaim/stream.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stream/registry_server.h"
#include "../train/checkpoint.h"
#include "../train/model.h"

enum { STAGES = 3, WINDOW = 32 };

static struct model model;
static const char *registry_address, *token = "pipeline", *model_path, *listen_on;
static float *scratch, *x, *logits;
static uint64_t *instance_out; /* demo: where a stage tells its instance */

static int load_model(void)
{
	int r;

	if (model_path) {
		r = checkpoint_load_model(model_path, &model);
	} else {
		struct model_config c = { .vocab = 96, .context = WINDOW, .width = 48, .layers = 6,
					  .heads = 4 };

		r = model_init(&model, &c);
		if (r == 0)
			model_randomise(&model, 7);
	}
	if (r < 0)
		return r;
	scratch = malloc(sizeof(float) * model_scratch_floats(&model.cfg, 1, model.cfg.context));
	x = malloc(sizeof(float) * model.cfg.context * model.cfg.width);
	logits = malloc(sizeof(float) * model.cfg.vocab * model.cfg.context);
	return scratch && x && logits ? 0 : -ENOMEM;
}

/* The part of the layers that a stage has. */
static void run_layers(int stage, size_t length)
{
	size_t from = model.cfg.layers * (size_t)(stage - 1) / STAGES;
	size_t to = model.cfg.layers * (size_t)stage / STAGES;

	for (size_t i = from; i < to; i++)
		model_layer(&model, i, x, 1, length, scratch);
}

static uint8_t best_of(size_t length)
{
	size_t best = 0;

	model_head(&model, x + (length - 1) * model.cfg.width, 1, logits, scratch);
	for (size_t i = 1; i < model.cfg.vocab; i++)
		if (logits[i] > logits[best])
			best = i;
	return (uint8_t)best;
}

static void fail(const char *what, int r)
{
	fprintf(stderr, "pipeline: %s: %s\n", what, strerror(-r));
	exit(1);
}

static struct reclaim_node *open_node(const char *name, bool standby)
{
	struct reclaim_node_options o = { .size = sizeof(o), .name = name, .registry = registry_address,
					  .token = token, .level = 1, .standby = standby,
					  .listen = listen_on };
	struct reclaim_node *n;
	int r = reclaim_node_open(&o, &n);

	if (r < 0)
		fail("open", r);
	return n;
}

/* A stage has no state but its place in the streams, and that the library moves. */
static int run_stage(int stage, bool standby)
{
	char name[32], to[32];
	struct reclaim_stream *out;
	struct reclaim_msg m;
	int r;

	snprintf(name, sizeof(name), "stage-%d", stage);
	snprintf(to, sizeof(to), stage < STAGES ? "stage-%d" : "client", stage + 1);
	struct reclaim_node *n = open_node(name, standby);
	r = reclaim_stream_open(n, to, stage < STAGES ? RECLAIM_ACTIVATION : RECLAIM_TOKEN, NULL, &out);
	if (r < 0)
		fail("stream", r);
	if (instance_out)
		__atomic_store_n(instance_out, reclaim_node_instance(n), __ATOMIC_RELEASE);
	while ((r = reclaim_recv(n, &m, -1)) == 1) {
		size_t length = m.len;

		if (m.kind != RECLAIM_DATA)
			continue;
		if (stage == 1) {
			model_embed(&model, m.data, 1, length, x);
		} else {
			length = m.len / sizeof(float) / model.cfg.width;
			memcpy(x, m.data, m.len);
		}
		run_layers(stage, length);
		if (stage < STAGES) {
			r = reclaim_send(out, x, length * model.cfg.width * sizeof(float), 0, -1);
		} else {
			uint8_t id = best_of(length);

			r = reclaim_send(out, &id, 1, 0, -1);
		}
		if (r < 0)
			break;
		/* What it sent is kept by the library until taken, so this is safe. */
		(void)reclaim_stable(n);
	}
	if (r != -ESTALE)
		fail("stage", r);
	usleep(200000); /* tells late senders where it went */
	reclaim_node_close(n);
	return 0;
}

static int generate(uint32_t count, uint8_t *text, uint32_t *progress)
{
	struct reclaim_node *n = open_node("client", false);
	struct reclaim_stream *out;
	struct reclaim_msg m;
	uint32_t have = 1;
	int r = reclaim_stream_open(n, "stage-1", RECLAIM_TOKEN, NULL, &out);

	text[0] = 1;
	while (r >= 0 && have <= count) {
		uint32_t length = have < model.cfg.context ? have : model.cfg.context;

		r = reclaim_send(out, text + have - length, length, 0, -1);
		do {
			if (r >= 0)
				r = reclaim_recv(n, &m, 60000);
		} while (r == 1 && m.kind != RECLAIM_DATA);
		if (r == 0)
			r = -ETIMEDOUT;
		if (r == 1)
			text[have++] = *(const uint8_t *)m.data;
		if (progress)
			__atomic_store_n(progress, have, __ATOMIC_RELEASE);
		(void)reclaim_stable(n);
	}
	reclaim_node_close(n);
	return r < 0 ? r : 0;
}

static void generate_here(uint32_t count, uint8_t *text)
{
	text[0] = 1;
	for (uint32_t have = 1; have <= count; have++) {
		uint32_t length = have < model.cfg.context ? have : model.cfg.context;

		model_embed(&model, text + have - length, 1, length, x);
		for (int s = 1; s <= STAGES; s++)
			run_layers(s, length);
		text[have] = best_of(length);
	}
}

/* --- everything on one machine --- */

struct shared {
	uint64_t instance[STAGES + 1];
	uint32_t progress;
};

static pid_t start_stage(struct shared *sh, int stage, bool standby)
{
	sh->instance[stage] = 0;
	pid_t p = fork();

	if (p == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		instance_out = &sh->instance[stage];
		_exit(run_stage(stage, standby));
	}
	while (!__atomic_load_n(&sh->instance[stage], __ATOMIC_ACQUIRE))
		usleep(1000);
	return p;
}

static int demo(uint32_t moves, uint32_t count)
{
	static const uint8_t secret[SEAL_KEY_LEN] = { 3 };
	struct registry_server_options ro = { .listen = "tcp:127.0.0.1:0" };
	struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *text = mmap(NULL, count + 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *alone = calloc(1, count + 2);
	static char address[160];
	int ready[2], status = 1;
	pid_t stages[STAGES + 1];

	if (pipe(ready))
		return 1;
	pid_t registry = fork();
	if (registry == 0) {
		struct registry_server *s;

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (registry_server_open(&ro, &s))
			_exit(1);
		registry_add_job(registry_server_registry(s), "pipeline", token, secret);
		(void)!write(ready[1], registry_server_address(s), sizeof(address));
		registry_server_run(s);
		_exit(0);
	}
	if (read(ready[0], address, sizeof(address)) < 10)
		return 1;
	registry_address = address;
	for (int i = 1; i <= STAGES; i++)
		stages[i] = start_stage(sh, i, false);
	pid_t client = fork();
	if (client == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int r = generate(count, text, &sh->progress);

		if (r < 0)
			fail("client", r);
		_exit(0);
	}
	uint32_t moved = 0;
	for (uint32_t k = 0; k < moves; k++) {
		int stage = (int)(k % STAGES) + 1;
		char name[32];

		/* Spread over the text, so that each falls into it. */
		while (__atomic_load_n(&sh->progress, __ATOMIC_ACQUIRE) < (k + 1) * (count / (moves + 2)))
			usleep(500);
		snprintf(name, sizeof(name), "stage-%d", stage);
		pid_t next = start_stage(sh, stage, true);
		int r = reclaim_move(address, token, name, sh->instance[stage]);
		if (r < 0)
			fail("move", r);
		if (waitpid(stages[stage], &status, 0) != stages[stage] || status)
			fail("the old stage", -EIO);
		stages[stage] = next;
		moved++;
	}
	waitpid(client, &status, 0);
	for (int i = 1; i <= STAGES; i++) {
		kill(stages[i], SIGKILL);
		waitpid(stages[i], NULL, 0);
	}
	kill(registry, SIGKILL);
	waitpid(registry, NULL, 0);
	generate_here(count, alone);
	bool same = status == 0 && !memcmp(text, alone, count + 1);
	printf("%u tokens over %u moves: the text is %s\n", count, moved,
	       same ? "identical to an unmoved run" : "DIFFERENT");
	return same ? 0 : 1;
}

int main(int argc, char **argv)
{
	bool standby = false;
	int args = 1;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--standby"))
			standby = true;
		else if (!strcmp(argv[i], "--model") && i + 1 < argc)
			model_path = argv[++i];
		else if (!strcmp(argv[i], "--registry") && i + 1 < argc)
			registry_address = argv[++i];
		else if (!strcmp(argv[i], "--token") && i + 1 < argc)
			token = argv[++i];
		else if (!strcmp(argv[i], "--listen") && i + 1 < argc)
			listen_on = argv[++i];
		else
			argv[args++] = argv[i];
	}
	if (args < 3) {
		fprintf(stderr, "usage: %s stage N [--standby] | client COUNT | demo MOVES COUNT\n"
				"       [--model FILE] [--registry ADDRESS] [--token T] [--listen HOST:PORT]\n",
			argv[0]);
		return 2;
	}
	int r = load_model();
	if (r < 0)
		fail("model", r);
	if (!strcmp(argv[1], "stage"))
		return run_stage(atoi(argv[2]), standby);
	if (!strcmp(argv[1], "demo") && args > 3)
		return demo((uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]));
	uint32_t count = (uint32_t)atoi(argv[2]);
	uint8_t *text = calloc(1, count + 2);
	r = generate(count, text, NULL);
	if (r < 0)
		fail("client", r);
	for (uint32_t i = 0; i <= count; i++)
		putchar(text[i] < 95 ? text[i] + 32 : '\n');
	putchar('\n');
	return 0;
}
