/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a transformer on characters, as a guest would: prints a line per
 * step, saves by the contract of docs/job-contract.md, and when its machine is
 * wanted back saves once more and leaves with 85, "start me again". However
 * often it is moved, its last model is the same to the bit.
 *
 * Standard output holds nothing that depends on time or place, so a resumed run
 * prints exactly the lines again that it computes again.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "checkpoint.h"
#include "text.h"

enum { EXIT_RESTART_ME = 85 };

enum on_notice {
	ON_NOTICE_EXIT = 0, /* save, leave with 85 */
	ON_NOTICE_STAY,     /* save, go on until killed */
	ON_NOTICE_HANG,     /* a save handler that never comes back */
};

struct options {
	const char *text, *checkpoints, *result, *export_path, *send_to;
	struct model_config cfg;
	uint64_t batch, steps, every, print_every, seed;
	uint64_t pace_ns, save_delay_ns;
	int on_notice;
};

static volatile sig_atomic_t wanted_save, wanted_leave;

static void on_signal(int signo)
{
	if (signo == SIGUSR1)
		wanted_save = 1;
	else
		wanted_leave = 1;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void usage(FILE *out)
{
	(void)fputs(
		"usage: train [options]\n"
		"Trains a character model, deterministic to the bit.\n\n"
		"  --text PATH         file or folder (/usr/share/common-licenses)\n"
		"  --layers N --width N --heads N --context N --batch N\n"
		"                      shape of the model (2 64 4 32 2)\n"
		"  --steps N           train so far (400)\n"
		"  --every N           checkpoint every N steps, 0 = only when told (25)\n"
		"  --pace TIME         a step takes at least this long: 50ms, 1s (0)\n"
		"  --seed N            of parameters and batches (1)\n"
		"  --print-every N     steps per line (1)\n"
		"  --checkpoints DIR   ($RECLAIM_CHECKPOINT_DIR, or ./checkpoints)\n"
		"  --result FILE       written at the end (result.json)\n"
		"  --export FILE       the model alone, written at the end\n"
		"  --on-notice WHAT    exit, stay or hang (exit)\n"
		"  --save-delay TIME   each save takes this much longer (0)\n"
		"  --send HOST:PORT    send UDP as fast as it goes while training\n",
		out);
}

static int parse_time(const char *text, uint64_t *ret_ns)
{
	char *end;
	double x = strtod(text, &end);

	if (end == text || x < 0 || x > 1e6)
		return -EINVAL;
	if (strcmp(end, "ms") == 0)
		x /= 1000;
	else if (*end && strcmp(end, "s") != 0)
		return -EINVAL;
	*ret_ns = (uint64_t)(x * 1e9);
	return 0;
}

static int parse_count(const char *text, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	return errno || end == text || *end || *text == '-' ? -EINVAL : 0;
}

enum {
	OPT_TEXT = 1000, OPT_CHECKPOINTS, OPT_RESULT, OPT_EXPORT, OPT_SEND, OPT_LAYERS, OPT_WIDTH,
	OPT_HEADS, OPT_CONTEXT, OPT_BATCH, OPT_STEPS, OPT_EVERY, OPT_PRINT, OPT_SEED, OPT_PACE,
	OPT_DELAY, OPT_ON_NOTICE, OPT_HELP,
};

static const struct option long_options[] = {
	{ "text", 1, NULL, OPT_TEXT },	     { "checkpoints", 1, NULL, OPT_CHECKPOINTS },
	{ "result", 1, NULL, OPT_RESULT },   { "export", 1, NULL, OPT_EXPORT },
	{ "send", 1, NULL, OPT_SEND },	     { "layers", 1, NULL, OPT_LAYERS },
	{ "width", 1, NULL, OPT_WIDTH },     { "heads", 1, NULL, OPT_HEADS },
	{ "context", 1, NULL, OPT_CONTEXT }, { "batch", 1, NULL, OPT_BATCH },
	{ "steps", 1, NULL, OPT_STEPS },     { "every", 1, NULL, OPT_EVERY },
	{ "print-every", 1, NULL, OPT_PRINT }, { "seed", 1, NULL, OPT_SEED },
	{ "pace", 1, NULL, OPT_PACE },	     { "save-delay", 1, NULL, OPT_DELAY },
	{ "on-notice", 1, NULL, OPT_ON_NOTICE }, { "help", 0, NULL, OPT_HELP },
	{ NULL, 0, NULL, 0 },
};

static int take_number(struct options *o, int opt, uint64_t n)
{
	switch (opt) {
	case OPT_LAYERS: o->cfg.layers = (uint32_t)n; break;
	case OPT_WIDTH: o->cfg.width = (uint32_t)n; break;
	case OPT_HEADS: o->cfg.heads = (uint32_t)n; break;
	case OPT_CONTEXT: o->cfg.context = (uint32_t)n; break;
	case OPT_BATCH: o->batch = n; break;
	case OPT_STEPS: o->steps = n; break;
	case OPT_EVERY: o->every = n; break;
	case OPT_PRINT: o->print_every = n; break;
	case OPT_SEED: o->seed = n; break;
	default: return -EINVAL;
	}
	return n > UINT32_MAX ? -ERANGE : 0;
}

static int take_option(struct options *o, int opt, const char *arg)
{
	uint64_t n;

	switch (opt) {
	case OPT_TEXT: o->text = arg; return 0;
	case OPT_CHECKPOINTS: o->checkpoints = arg; return 0;
	case OPT_RESULT: o->result = arg; return 0;
	case OPT_EXPORT: o->export_path = arg; return 0;
	case OPT_SEND: o->send_to = arg; return 0;
	case OPT_PACE: return parse_time(arg, &o->pace_ns);
	case OPT_DELAY: return parse_time(arg, &o->save_delay_ns);
	case OPT_ON_NOTICE:
		o->on_notice = strcmp(arg, "exit") == 0 ? ON_NOTICE_EXIT :
			       strcmp(arg, "stay") == 0 ? ON_NOTICE_STAY :
			       strcmp(arg, "hang") == 0 ? ON_NOTICE_HANG : -1;
		return o->on_notice < 0 ? -EINVAL : 0;
	default:
		return parse_count(arg, &n) < 0 ? -EINVAL : take_number(o, opt, n);
	}
}

/* Fills o; exits on --help and bad usage. */
static void parse_options(struct options *o, int argc, char **argv)
{
	const char *env = getenv("RECLAIM_CHECKPOINT_DIR");
	int opt, at;

	*o = (struct options){
		.text = "/usr/share/common-licenses", .checkpoints = env ? env : "checkpoints",
		.result = "result.json",
		.cfg = { .context = 32, .width = 64, .layers = 2, .heads = 4 },
		.batch = 2, .steps = 400, .every = 25, .print_every = 1, .seed = 1,
	};
	while ((opt = getopt_long(argc, argv, "h", long_options, &at)) != -1) {
		if (opt == 'h' || opt == OPT_HELP) {
			usage(stdout);
			exit(0);
		}
		if (opt == '?' || take_option(o, opt, optarg) < 0) {
			if (opt != '?')
				(void)fprintf(stderr, "train: --%s: '%s' is not possible\n",
					      long_options[at].name, optarg);
			usage(stderr);
			exit(2);
		}
	}
	if (optind < argc || o->batch < 1 || o->batch > 4096 || o->print_every < 1) {
		usage(stderr);
		exit(2);
	}
}

/* A child that sends datagrams without pause: the worst neighbour a link can have. */
static int start_sender(const char *to)
{
	char host[256], payload[1400];
	const char *colon = strrchr(to, ':');
	struct addrinfo hints = { .ai_socktype = SOCK_DGRAM }, *ai;
	pid_t parent = getpid(), pid;
	int fd;

	if (!colon || (size_t)(colon - to) >= sizeof(host))
		return -EINVAL;
	memcpy(host, to, (size_t)(colon - to));
	host[colon - to] = 0;
	if (getaddrinfo(host, colon + 1, &hints, &ai) != 0)
		return -EHOSTUNREACH;
	fd = socket(ai->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, ai->ai_addr, ai->ai_addrlen) < 0) {
		freeaddrinfo(ai);
		return -errno;
	}
	freeaddrinfo(ai);
	pid = fork();
	if (pid != 0) {
		(void)close(fd);
		return pid < 0 ? -errno : 0;
	}
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	(void)signal(SIGTERM, SIG_IGN);
	(void)signal(SIGUSR1, SIG_IGN);
	memset(payload, 0, sizeof(payload));
	for (uint64_t n = 0; getppid() == parent; n++) {
		memcpy(payload, &n, sizeof(n));
		if (send(fd, payload, sizeof(payload), 0) < 0) {
			struct timespec t = { 0, 1000000 }; /* refused or no buffers: try again */

			(void)nanosleep(&t, NULL);
		}
	}
	_exit(0);
}

/*
 * Has the notice file changed since we last reacted? It is renamed into place,
 * so its inode and time tell one notice from the next. A withdrawn notice has
 * another action than those that end us.
 */
static int notice_came(const char *path)
{
	static ino_t seen_ino;
	static struct timespec seen_time;
	struct stat st;
	char text[1024];
	size_t n;
	FILE *f;

	if (!path || stat(path, &st) < 0 ||
	    (st.st_ino == seen_ino && st.st_mtim.tv_sec == seen_time.tv_sec &&
	     st.st_mtim.tv_nsec == seen_time.tv_nsec))
		return 0;
	seen_ino = st.st_ino;
	seen_time = st.st_mtim;
	f = fopen(path, "re");
	if (!f)
		return 0;
	n = fread(text, 1, sizeof(text) - 1, f);
	(void)fclose(f); /* read only */
	text[n] = 0;
	if (strstr(text, "\"checkpoint\""))
		wanted_save = 1;
	else if (strstr(text, "\"terminate\"") || strstr(text, "\"stop\""))
		wanted_leave = 1;
	return wanted_save || wanted_leave;
}

static uint64_t random_below(uint64_t *state, uint64_t n)
{
	uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15)); /* splitmix64 */

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return (z ^ (z >> 31)) % n;
}

struct run {
	const struct options *opt;
	struct text text;
	struct train_state state;
	struct model_train *train;
	uint8_t *tokens, *targets;
	uint64_t saves, save_ns, save_bytes, started_at;
	double loss;
};

static int setup(struct run *r)
{
	const struct options *o = r->opt;
	struct train_state *s = &r->state;
	size_t tokens = o->batch * o->cfg.context;
	struct model_config cfg = o->cfg;
	int err = text_load(o->text, &r->text);

	if (err < 0) {
		(void)fprintf(stderr, "train: %s: %s\n", o->text, strerror(-err));
		return err;
	}
	cfg.vocab = r->text.vocab;
	if (r->text.len <= cfg.context + 1) {
		(void)fprintf(stderr, "train: %s: shorter than the context\n", o->text);
		return -ENODATA;
	}
	err = model_init(&s->model, &cfg);
	if (err < 0) {
		(void)fprintf(stderr, "train: no model of this shape: %s\n", strerror(-err));
		return err;
	}
	s->adamw = (struct adamw){ .first = calloc(s->model.params_count, sizeof(float)),
				   .second = calloc(s->model.params_count, sizeof(float)),
				   .rate = 0.003f, .decay = 0.01f, .beta1 = 0.9f, .beta2 = 0.99f };
	r->tokens = malloc(tokens);
	r->targets = malloc(tokens);
	if (!s->adamw.first || !s->adamw.second || !r->tokens || !r->targets ||
	    model_train_new(&s->model, o->batch, &r->train) < 0)
		return -ENOMEM;
	memcpy(s->text, r->text.digest, sizeof(s->text));
	s->batch = o->batch;
	s->random = o->seed ^ UINT64_C(0x6a09e667f3bcc908);
	model_randomise(&s->model, o->seed);
	return 0;
}

static void teardown(struct run *r)
{
	text_done(&r->text);
	model_done(&r->state.model);
	model_train_free(r->train);
	free(r->state.adamw.first);
	free(r->state.adamw.second);
	free(r->tokens);
	free(r->targets);
}

static void step(struct run *r)
{
	struct train_state *s = &r->state;
	size_t length = s->model.cfg.context;

	for (size_t i = 0; i < r->opt->batch; i++) {
		size_t at = random_below(&s->random, r->text.len - length - 1);

		memcpy(r->tokens + i * length, r->text.ids + at, length);
		memcpy(r->targets + i * length, r->text.ids + at + 1, length);
	}
	r->loss = model_train_loss(r->train, &s->model, r->tokens, r->targets);
	s->step++;
	adamw_step(&s->adamw, &s->model, model_train_grad(r->train), s->step);
	if (s->step % r->opt->print_every == 0) {
		(void)printf("step %" PRIu64 " loss %.6f\n", s->step, r->loss);
		(void)fflush(stdout);
	}
}

static int save(struct run *r)
{
	uint64_t start = now_ns();
	int err = checkpoint_save(r->opt->checkpoints, &r->state, r->opt->save_delay_ns,
				  &r->save_bytes);

	if (err < 0) {
		(void)fprintf(stderr, "train: %s: cannot save: %s\n", r->opt->checkpoints,
			      strerror(-err));
		return err;
	}
	r->saves++;
	r->save_ns += now_ns() - start;
	return 0;
}

static int finish(struct run *r)
{
	char digest[65], fresh[4096];
	FILE *f;

	checkpoint_digest(&r->state, digest);
	(void)snprintf(fresh, sizeof(fresh), "%s.new", r->opt->result);
	f = fopen(fresh, "we");
	if (!f || fprintf(f,
			  "{\"steps\": %" PRIu64 ", \"loss\": %.6f, \"digest\": \"%s\", "
			  "\"checkpoint_bytes\": %" PRIu64 ", \"save_ms\": %.3f, "
			  "\"seconds\": %.3f}\n",
			  r->state.step, r->loss, digest, r->save_bytes,
			  r->saves ? (double)r->save_ns / 1e6 / (double)r->saves : 0.0,
			  (double)(now_ns() - r->started_at) / 1e9) < 0 ||
	    fflush(f) || fsync(fileno(f)) < 0 || fclose(f) || rename(fresh, r->opt->result) < 0) {
		(void)fprintf(stderr, "train: %s: %s\n", r->opt->result, strerror(errno));
		return 1;
	}
	if (r->opt->export_path && checkpoint_write_model(r->opt->export_path, &r->state.model) < 0) {
		(void)fprintf(stderr, "train: %s: cannot write\n", r->opt->export_path);
		return 1;
	}
	(void)printf("done step %" PRIu64 " digest %s\n", r->state.step, digest);
	return 0;
}

static void hang(void)
{
	for (;;)
		(void)pause();
}

/* After a step: what signals and the notice file ask for. Non-zero = leave with it. */
static int react(struct run *r, const char *notice_file)
{
	(void)notice_came(notice_file);
	if (wanted_leave && r->opt->on_notice == ON_NOTICE_HANG)
		hang();
	if (wanted_leave || wanted_save) {
		int leave = wanted_leave && r->opt->on_notice == ON_NOTICE_EXIT;

		wanted_leave = wanted_save = 0;
		if (save(r) < 0)
			return 1;
		return leave ? EXIT_RESTART_ME : 0;
	}
	return 0;
}

/* Sleeps out the step's time; a signal ends the sleep. */
static void pace(uint64_t start, uint64_t pace_ns)
{
	uint64_t until = start + pace_ns;
	struct timespec t = { (time_t)(until / 1000000000), (long)(until % 1000000000) };

	if (pace_ns && !wanted_leave && !wanted_save)
		(void)clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static int train(struct run *r)
{
	const struct options *o = r->opt;
	const char *notice_file = getenv("RECLAIM_NOTICE_FILE");
	int leave;

	while (r->state.step < o->steps) {
		uint64_t start = now_ns();

		step(r);
		pace(start, o->pace_ns);
		leave = react(r, notice_file);
		if (leave)
			return leave;
		if (o->every && r->state.step % o->every == 0 && r->state.step < o->steps &&
		    save(r) < 0)
			return 1;
	}
	return finish(r);
}

int main(int argc, char **argv)
{
	struct sigaction act = { .sa_handler = on_signal };
	struct options o;
	struct run r = { .opt = &o, .started_at = now_ns() };
	int status = 1, loaded;

	(void)sigaction(SIGTERM, &act, NULL); /* before anything slow: a notice may come at once */
	(void)sigaction(SIGUSR1, &act, NULL);
	parse_options(&o, argc, argv);
	(void)mkdir(o.checkpoints, 0755); /* it may exist; saving says what is wrong */
	if (setup(&r) == 0) {
		loaded = checkpoint_load(o.checkpoints, &r.state);
		if (loaded == 1)
			(void)printf("resumed at step %" PRIu64 "\n", r.state.step);
		else if (loaded == 0)
			(void)printf("model of %zu parameters, %zu characters of %u kinds\n",
				     r.state.model.params_count, r.text.len, r.text.vocab);
		(void)fflush(stdout);
		if (loaded >= 0 && o.send_to && start_sender(o.send_to) < 0)
			(void)fprintf(stderr, "train: cannot send to %s\n", o.send_to);
		/* Nothing good to go on from, though something is there: damaged throughout
		 * means from the start, another model means that somebody erred. */
		if (loaded >= 0 || loaded == -EBADMSG)
			status = train(&r);
	}
	teardown(&r);
	return status;
}
