/* SPDX-License-Identifier: Apache-2.0 */
/* The second half of doctor: a job, read before it is submitted. */
#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/parse.h"
#include "job/criu.h"
#include "job/doctor.h"
#include "job/signal_name.h"
#include "job/spec.h"

#define SOURCE_MAX (16u << 20)

/* What was seen in the job's files. Each keeps the place where it was seen first. */
struct seen {
	char handler[3][160];  /* TERM, USR1, USR2 */
	char other_handler[160];
	char notice[160];      /* the notice file, the spot path, libreclaim */
	char ckpt_dir[160];    /* $RECLAIM_CHECKPOINT_DIR */
	char saves[160];
	char loads[160];
	char restart[160];     /* exit 85, scontrol requeue */
	char launcher[160];
	char lightning[160], submitit[160];
	char binary[160];
	char ignores_term[160];
	unsigned files;
};

static const int handler_signals[3] = { SIGTERM, SIGUSR1, SIGUSR2 };

static void note(char place[160], const char *file, unsigned line, const char *word)
{
	if (place[0])
		return;
	if (line)
		(void)snprintf(place, 160, "%s in %.80s:%u", word, file, line);
	else
		(void)snprintf(place, 160, "%s in %.80s", word, file);
}

static bool line_has(const char *line, size_t len, const char *word)
{
	return memmem(line, len, word, strlen(word)) != NULL;
}

static void look_for_handlers(struct seen *s, const char *file, unsigned n, const char *line, size_t len)
{
	static const char *const installers[] = { "signal.signal", "sigaction", "signal(", "trap ",
						  "add_signal_handler", "process.on(" };
	static const char *const names[3] = { "TERM", "USR1", "USR2" };
	bool installs = false;

	for (size_t i = 0; i < ARRAY_SIZE(installers); i++)
		installs = installs || line_has(line, len, installers[i]);
	if (!installs)
		return;
	if (line_has(line, len, "SIG_IGN") || line_has(line, len, "trap ''") || line_has(line, len, "trap \"\"")) {
		if (line_has(line, len, "TERM"))
			note(s->ignores_term, file, n, "SIGTERM is ignored");
		return;
	}
	for (size_t i = 0; i < 3; i++)
		if (line_has(line, len, names[i])) {
			char word[40];

			(void)snprintf(word, sizeof(word), "a handler for SIG%s", names[i]);
			note(s->handler[i], file, n, word);
			return;
		}
	note(s->other_handler, file, n, "a signal handler");
}

static const struct word {
	const char *text;
	size_t offset;
	const char *label; /* NULL = the text */
} words[] = {
	{ "RECLAIM_NOTICE_FILE", offsetof(struct seen, notice), NULL },
	{ "spot/instance-action", offsetof(struct seen, notice), "the cloud spot path" },
	{ "instance/preempted", offsetof(struct seen, notice), "GCP's preempted path" },
	{ "scheduledevents", offsetof(struct seen, notice), "Azure's scheduled events" },
	{ "reclaim.notice", offsetof(struct seen, notice), NULL },
	{ "reclaim_notice_", offsetof(struct seen, notice), "libreclaim" },
	{ "maybe_save(", offsetof(struct seen, notice), "reclaim.torch" },
	{ "RECLAIM_CHECKPOINT_DIR", offsetof(struct seen, ckpt_dir), NULL },
	{ "reclaim_checkpoint_dir", offsetof(struct seen, ckpt_dir), NULL },
	{ "reclaim.torch", offsetof(struct seen, ckpt_dir), NULL },
	{ "reclaim.commit", offsetof(struct seen, ckpt_dir), NULL },
	{ "torch.save", offsetof(struct seen, saves), NULL },
	{ "save_checkpoint", offsetof(struct seen, saves), NULL },
	{ "save_pretrained", offsetof(struct seen, saves), NULL },
	{ "ModelCheckpoint", offsetof(struct seen, saves), NULL },
	{ "reclaim_commit", offsetof(struct seen, saves), NULL },
	{ "reclaim.commit", offsetof(struct seen, saves), NULL },
	{ "reclaim.torch", offsetof(struct seen, saves), NULL },
	{ "np.save", offsetof(struct seen, saves), NULL },
	{ "pickle.dump", offsetof(struct seen, saves), NULL },
	{ "tf.train.Checkpoint", offsetof(struct seen, saves), NULL },
	{ "torch.load", offsetof(struct seen, loads), NULL },
	{ "load_state_dict", offsetof(struct seen, loads), NULL },
	{ "resume", offsetof(struct seen, loads), NULL },
	{ "state.load(", offsetof(struct seen, loads), NULL },
	{ "pickle.load", offsetof(struct seen, loads), NULL },
	{ "scontrol requeue", offsetof(struct seen, restart), NULL },
	{ "exit 85", offsetof(struct seen, restart), NULL },
	{ "exit(85)", offsetof(struct seen, restart), NULL },
	{ "reclaim.RESTART", offsetof(struct seen, restart), NULL },
	{ "RECLAIM_EXIT_RESTART", offsetof(struct seen, restart), NULL },
	{ "torchrun", offsetof(struct seen, launcher), NULL },
	{ "torch.distributed.run", offsetof(struct seen, launcher), NULL },
	{ "mpirun", offsetof(struct seen, launcher), NULL },
	{ "mpiexec", offsetof(struct seen, launcher), NULL },
	{ "accelerate launch", offsetof(struct seen, launcher), NULL },
	{ "deepspeed ", offsetof(struct seen, launcher), NULL },
	{ "import lightning", offsetof(struct seen, lightning), "Lightning" },
	{ "pytorch_lightning", offsetof(struct seen, lightning), "Lightning" },
	{ "import submitit", offsetof(struct seen, submitit), "submitit" },
};

static void look_at_line(struct seen *s, const char *file, unsigned n, const char *line, size_t len)
{
	size_t i = 0;

	while (i < len && isspace((unsigned char)line[i]))
		i++;
	if (i == len || line[i] == '#' || (line[i] == '/' && i + 1 < len && line[i + 1] == '/'))
		return; /* a remark is not a handler */
	look_for_handlers(s, file, n, line, len);
	for (size_t w = 0; w < ARRAY_SIZE(words); w++)
		if (line_has(line, len, words[w].text))
			note((char *)s + words[w].offset, file, n, words[w].label ? words[w].label : words[w].text);
}

static void look_at_text(struct seen *s, const char *file, const char *text, size_t len)
{
	unsigned n = 0;

	s->files++;
	for (const char *p = text, *end = text + len; p < end;) {
		const char *nl = memchr(p, '\n', (size_t)(end - p));
		size_t chars = nl ? (size_t)(nl - p) : (size_t)(end - p);

		look_at_line(s, file, ++n, p, chars);
		p += chars + (nl != NULL);
	}
}

/* An ELF file: its words and the names of what it calls. */
static void look_at_binary(struct seen *s, const char *file, const char *bytes, size_t len)
{
	s->files++;
	note(s->binary, file, 0, "a compiled program");
	for (size_t w = 0; w < ARRAY_SIZE(words); w++)
		if (line_has(bytes, len, words[w].text))
			note((char *)s + words[w].offset, file, 0, words[w].label ? words[w].label : words[w].text);
	if (line_has(bytes, len, "sigaction") || line_has(bytes, len, "\0signal\0"))
		note(s->other_handler, file, 0, "a signal handler (which signal cannot be told)");
}

static bool look_at_file(struct seen *s, const char *path, const char *shown)
{
	CLEANUP_FREE char *text = NULL;
	size_t len;

	if (file_read(path, SOURCE_MAX, &text, &len) < 0)
		return false;
	if (len > 4 && !memcmp(text, "\177ELF", 4))
		look_at_binary(s, shown, text, len);
	else if (!memchr(text, 0, len))
		look_at_text(s, shown, text, len);
	return true;
}

/* ---- which files ---- */

struct folder {
	char path[4096]; /* of the job file: inputs and names are relative to where people stand */
};

static bool is_input(const struct job_spec *spec, const char *name)
{
	for (size_t i = 0; i < spec->inputs_count; i++) {
		const char *path = spec->inputs[i].path, *slash = strrchr(path, '/');
		size_t n;

		if (!strcmp(path, name) || (slash && !strcmp(slash + 1, name)) ||
		    (spec->inputs[i].to && !strcmp(spec->inputs[i].to, name)))
			return true;
		n = strlen(path);
		while (n > 1 && path[n - 1] == '/')
			n--;
		if (!strncmp(path, name, n) && name[n] == '/')
			return true;
		if (!strcmp(path, "."))
			return true;
	}
	return false;
}

/* A word of the command that names a file here: looked at, and it must travel. */
static void look_at_word(struct doctor_report *r, const struct job_spec *spec, struct seen *s, const char *word)
{
	static const char *const hidden[] = { "/home/", "/root/", "/mnt/", "/srv/", "/scratch/", "/data/",
					      "/work/", "/var/", "/tmp/", "/media/" };
	const char *name = word;
	struct stat st;

	for (size_t i = 0; i < ARRAY_SIZE(hidden); i++)
		if (!strncmp(word, hidden[i], strlen(hidden[i]))) {
			doctor_add(r, DOCTOR_BAD, "files",
				   "%.150s: %.10s is not visible to a guest; bring it along as an input", word, hidden[i]);
			(void)look_at_file(s, word, word);
			return;
		}
	while (!strncmp(name, "./", 2))
		name += 2;
	if (!name[0] || name[0] == '-')
		return;
	if (stat(name, &st) < 0) {
		const char *end = strrchr(name, '.');

		if (end && name[0] != '/' && !is_input(spec, name) && (!strcmp(end, ".py") || !strcmp(end, ".sh")))
			doctor_add(r, DOCTOR_WARN, "files", "%.150s is neither here nor among the inputs", name);
		return;
	}
	if (!S_ISREG(st.st_mode))
		return;
	(void)look_at_file(s, name, name);
	if (name[0] != '/' && !is_input(spec, name))
		doctor_add(r, DOCTOR_BAD, "files", "%.150s is here but not among the inputs: the guest will not find it",
			   name);
}

static void look_at_words(struct doctor_report *r, const struct job_spec *spec, struct seen *s, const char *text,
			  size_t len)
{
	size_t i = 0;

	while (i < len) {
		char word[512];
		size_t from;

		while (i < len && (isspace((unsigned char)text[i]) || strchr(";|&()<>'\"`$", text[i])))
			i++;
		from = i;
		while (i < len && !isspace((unsigned char)text[i]) && !strchr(";|&()<>'\"`$", text[i]))
			i++;
		if (i == from || i - from >= sizeof(word))
			continue;
		(void)snprintf(word, sizeof(word), "%.*s", (int)(i - from), text + from);
		look_at_word(r, spec, s, word);
	}
}

static void look_at_script(struct doctor_report *r, const struct job_spec *spec, struct seen *s, const char *name)
{
	const char *text = spec->script;

	look_at_text(s, name, text, strlen(text));
	for (const char *p = text; *p;) {
		size_t n = strcspn(p, "\n");

		if (*p != '#')
			look_at_words(r, spec, s, p, n);
		p += n + (p[n] == '\n');
	}
}

/* ---- what follows from it ---- */

static void say_notice(struct doctor_report *r, const struct job_spec *spec, const struct seen *s)
{
	struct job_signal sig = job_spec_signal(spec);
	const char *handler = NULL;
	int driver = spec->checkpoint.driver;
	bool signals = driver == JOB_DRIVER_SIGNAL || (driver == JOB_DRIVER_AUTO && spec->signal);

	for (size_t i = 0; i < 3; i++)
		if (handler_signals[i] == sig.signo && s->handler[i][0])
			handler = s->handler[i];
	if (!handler && s->other_handler[0])
		handler = s->other_handler;
	if (s->lightning[0] && sig.signo == SIGUSR1)
		handler = s->lightning;
	if (s->submitit[0] && sig.signo == SIGUSR2)
		handler = s->submitit;
	if (driver == JOB_DRIVER_CRIU || driver == JOB_DRIVER_CUDA) {
		doctor_add(r, DOCTOR_OK, "notice", "the program need not hear it: driver %s saves it from outside",
			   job_driver_names[driver]);
		return;
	}
	if (signals && handler)
		doctor_add(r, DOCTOR_OK, "notice", "it will hear %s at the notice%s: %s", signal_to_name(sig.signo),
			   sig.batch_only ? " (the batch shell alone)" : "", handler);
	else if (signals)
		doctor_add(r, DOCTOR_WARN, "notice",
			   "%s is declared and no handler for it was found%s: it would end the program unsaved",
			   signal_to_name(sig.signo), s->files ? "" : " (no file of it could be read)");
	if (s->notice[0])
		doctor_add(r, DOCTOR_OK, "notice", "it will hear the notice by itself: %s", s->notice);
	if (!signals && !s->notice[0]) {
		if (s->handler[0][0])
			doctor_add(r, DOCTOR_OK, "notice", "SIGTERM will be sent, since it is caught: %s", s->handler[0]);
		else if (s->handler[1][0] || s->handler[2][0])
			doctor_add(r, DOCTOR_WARN, "notice",
				   "%s, but the job declares no signal: add \"signal: %s\" (or --signal)",
				   s->handler[1][0] ? s->handler[1] : s->handler[2], s->handler[1][0] ? "USR1" : "USR2");
		else if (s->lightning[0] || s->submitit[0])
			doctor_add(r, DOCTOR_WARN, "notice", "%s waits for %s: add --signal=%s@90",
				   s->lightning[0] ? s->lightning : s->submitit, s->lightning[0] ? "SIGUSR1" : "SIGUSR2",
				   s->lightning[0] ? "SIGUSR1" : "SIGUSR2");
		else
			doctor_add(r, DOCTOR_WARN, "notice",
				   "no handler, notice file or spot path was found%s: it will not hear a notice",
				   s->files ? "" : " (no file of it could be read)");
	}
	if (s->launcher[0])
		doctor_add(r, DOCTOR_NOTE, "notice",
			   "%s: launchers are passed over, so that they do not kill their workers in the middle of a save",
			   s->launcher);
	if (s->ignores_term[0] && sig.signo == SIGTERM && signals)
		doctor_add(r, DOCTOR_WARN, "notice", "%s, and SIGTERM is what is sent", s->ignores_term);
}

static void say_checkpoints(struct doctor_report *r, const struct job_spec *spec, const struct seen *s)
{
	bool has_dir = spec->checkpoint.dir || s->ckpt_dir[0];

	if (spec->checkpoint.driver >= JOB_DRIVER_CRIU)
		return;
	if (spec->checkpoint.dir)
		doctor_add(r, DOCTOR_OK, "checkpoints", "taken from %s below the working folder", spec->checkpoint.dir);
	else if (s->ckpt_dir[0])
		doctor_add(r, DOCTOR_OK, "checkpoints", "%s", s->ckpt_dir);
	else
		doctor_add(r, DOCTOR_BAD, "checkpoints",
			   "nothing says where checkpoints are: set checkpoint.dir, or let the program write to "
			   "$RECLAIM_CHECKPOINT_DIR%s%s", s->saves[0] ? "; it does save: " : "", s->saves);
	if (has_dir && !s->saves[0] && !s->binary[0] && s->files)
		doctor_add(r, DOCTOR_WARN, "checkpoints", "no code that saves was found");
	if (has_dir && s->saves[0] && !s->loads[0])
		doctor_add(r, DOCTOR_WARN, "checkpoints", "it saves (%s), but no code that resumes was found", s->saves);
}

static void say_loss(struct doctor_report *r, const struct job_spec *spec, const struct seen *s)
{
	bool has_dir = spec->checkpoint.dir || s->ckpt_dir[0];
	bool hears = spec->signal || s->notice[0] || s->handler[0][0];
	char text[FORMAT_MAX];

	if (spec->checkpoint.driver >= JOB_DRIVER_CRIU) {
		struct criu_info info;
		struct diag diag = DIAG_INIT;

		doctor_add(r, DOCTOR_OK, "loss", "at a reclaim now: nothing, if the image fits the owner's window");
		if (criu_probe(NULL, &info, &diag) < 0)
			doctor_add(r, DOCTOR_NOTE, "loss", "this machine cannot tell whether it can be dumped: %s",
				   diag.what);
		return;
	}
	if (!has_dir)
		doctor_add(r, DOCTOR_BAD, "loss", "at a reclaim now: all work since the start%s",
			   spec->requeue ? "; it starts anew elsewhere" : "; and --no-requeue ends it");
	else if (hears && spec->checkpoint.save_estimate_ns)
		doctor_add(r, DOCTOR_OK, "loss", "at a reclaim now: nothing, where the window is longer than %s and the move",
			   format_duration(spec->checkpoint.save_estimate_ns, text));
	else if (hears)
		doctor_add(r, DOCTOR_OK, "loss", "at a reclaim now: nothing, where the window holds a save and a move; "
						 "with no window, the work since the last checkpoint");
	else
		doctor_add(r, DOCTOR_WARN, "loss", "at a reclaim now: the work since its last checkpoint%s%s",
			   spec->checkpoint.interval_ns ? ", at most " : "",
			   spec->checkpoint.interval_ns ? format_duration(spec->checkpoint.interval_ns, text) : "");
	if (has_dir && !s->restart[0] && hears)
		doctor_add(r, DOCTOR_NOTE, "loss",
			   "exit status 85 (or scontrol requeue) would say \"saved, start me again\"; during a notice any "
			   "exit after a save is taken so");
}

int doctor_job(const char *path, struct doctor_report *r, struct diag *diag)
{
	struct job_warnings warnings = VEC_INIT;
	struct job_spec spec;
	struct seen s = { .files = 0 };
	int err = job_spec_load(path, &spec, &warnings, diag);

	if (err < 0)
		return err;
	VEC_EACH(&warnings, w)
		doctor_add(r, DOCTOR_WARN, "job file", "%.120s: %.250s", w->where, w->what);
	VEC_DONE(&warnings);
	if (spec.script)
		look_at_script(r, &spec, &s, path);
	for (size_t i = 0; i < spec.command_count; i++)
		look_at_words(r, &spec, &s, spec.command[i], strlen(spec.command[i]));
	for (size_t i = 0; i < spec.inputs_count; i++) {
		struct stat st;
		const char *input = spec.inputs[i].path;

		if (stat(input, &st) < 0)
			doctor_add(r, DOCTOR_BAD, "files", "input %.200s: %s", input, strerror(errno));
		else if (S_ISREG(st.st_mode))
			(void)look_at_file(&s, input, input);
	}
	doctor_add(r, DOCTOR_OK, "job", "%s: %llu cores, %llu GPUs, %llu ranks", spec.name,
		   (unsigned long long)spec.slots.cores, (unsigned long long)spec.slots.gpus,
		   (unsigned long long)spec.slots.ranks);
	say_notice(r, &spec, &s);
	say_checkpoints(r, &spec, &s);
	say_loss(r, &spec, &s);
	job_spec_done(&spec);
	return 0;
}
