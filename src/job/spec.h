/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a guest asks for: one struct, one schema table (job_spec_schema) that
 * reads it from a YAML job file, from a script's #RECLAIM and #SBATCH lines,
 * and from JSON on the control plane, and writes it back as JSON.
 *
 * A script may carry two kinds of lines, before its first command:
 *
 *     #RECLAIM checkpoint: {dir: ckpt, driver: signal}     a line of the job file
 *     #RECLAIM --cores=2                                   or an option, as for sbatch
 *     #SBATCH --signal=B:USR1@90 --requeue                 honoured where we can
 *
 * #RECLAIM lines are the job file itself with the mark cut off (so a mapping may
 * go on over several lines by indentation). They win over #SBATCH lines. What an
 * #SBATCH line asks for and we have no way to give is named in a warning.
 *
 * The text is outside input: every function here is fuzzed.
 */
#ifndef RECLAIM_JOB_SPEC_H
#define RECLAIM_JOB_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/diag.h"
#include "base/schema.h"
#include "base/vec.h"

#define JOB_NAME_MAX 128
#define JOB_TEXT_MAX 65536        /* a script, an argument, a value of the environment */
#define JOB_ARGS_MAX 4096
#define JOB_PATH_MAX 1024
#define JOB_LIST_MAX 256          /* inputs, results, secrets, destinations */
#define JOB_SCRIPT_MAX (1u << 20) /* the whole script file */

/* Who saves, and who is told how (docs/job-contract.md). */
enum job_driver {
	JOB_DRIVER_AUTO = 0, /* chosen at start; the shim's "ready" says which and why */
	JOB_DRIVER_SIGNAL,   /* the program saves when it gets its signal */
	JOB_DRIVER_POLL,     /* it saves on its own time, or when it reads the notice */
	JOB_DRIVER_CRIU,     /* unmodified processes, saved from outside */
	JOB_DRIVER_CUDA,     /* the same with GPU state, by cuda-checkpoint */
	JOB_DRIVER_COUNT,
};
extern const char *const job_driver_names[]; /* NULL-terminated */

/* How a complete checkpoint is recognised (ckpt_watch.h). */
enum job_ckpt_format {
	JOB_CKPT_AUTO = 0, /* MANIFEST where there is one, else files that have settled */
	JOB_CKPT_MANIFEST, /* only folders with a MANIFEST that holds */
	JOB_CKPT_FILES,    /* plain files, renamed into place by the program */
	JOB_CKPT_FORMAT_COUNT,
};
extern const char *const job_ckpt_format_names[];

enum job_network_mode {
	JOB_NETWORK_DEFAULT = 0, /* what the owner's terms give a job that declares nothing */
	JOB_NETWORK_NONE,        /* loopback of its own only */
	JOB_NETWORK_DECLARED,    /* the destinations below, if the owner allows them */
	JOB_NETWORK_MODE_COUNT,
};
extern const char *const job_network_mode_names[];

struct job_slots {
	uint64_t cores;   /* CPU cores per rank, at least 1 */
	uint64_t memory;  /* bytes per rank; 0 = what the owner's terms give a slot */
	uint64_t gpus;    /* GPUs per rank */
	char *gpu_type;   /* as NVML names it, matched without case and by part; NULL = any */
	uint64_t gpu_memory; /* bytes per GPU at least; 0 = any */
	uint64_t disk;    /* bytes of work and checkpoint folder; 0 = the terms' limit */
	uint64_t ranks;   /* machines that start together; 1 = an ordinary job */
};

struct job_checkpoint {
	/*
	 * Where the program keeps its checkpoints, relative to its working folder.
	 * It appears there as a link to $RECLAIM_CHECKPOINT_DIR; a program that reads
	 * that variable needs no entry. NULL = the variable only.
	 */
	char *dir;
	int driver;                /* enum job_driver */
	int format;                /* enum job_ckpt_format */
	uint64_t interval_ns;      /* wish for drivers that we trigger; 0 = planned (policy) */
	uint64_t save_estimate_ns; /* what a save takes; 0 = measured */
};

struct job_input {
	char *path; /* on the submitter's machine: file or folder */
	char *to;   /* below the working folder; NULL = the last component of path */
	bool executable;
};

struct job_secret {
	char *name; /* file $RECLAIM_SECRETS_DIR/<name>, in memory only */
	char *from; /* file on the submitter's machine; NULL once it is on the control plane */
};

struct job_network {
	int mode;            /* enum job_network_mode */
	char **destinations; /* "host-or-cidr:port[/udp]" */
	size_t destinations_count;
};

struct job_spec {
	char *name;        /* never NULL after a parse: falls back to the command's name */
	char **command;    /* argv; empty when script is set */
	size_t command_count;
	char *script;      /* text, run by its own #! line, or /bin/sh */
	char **args;       /* of the script */
	size_t args_count;
	struct job_slots slots;
	uint64_t time_limit_ns; /* of running time over all incarnations; 0 = none */
	struct job_checkpoint checkpoint;
	char *signal;      /* "[B:]SIG[@N]", NULL = SIGTERM (see job_signal_parse) */
	bool requeue;      /* false: a reclaim without a commit ends the job instead (--no-requeue) */
	bool done_on_notice_exit; /* exit 0 during a notice means finished */
	uint64_t failure_limit;   /* real failures before FAILED; reclaims never count */
	struct job_input *inputs;
	size_t inputs_count;
	char **results;    /* globs below the working folder, brought back at the end */
	size_t results_count;
	json_t *env;       /* object of strings, or NULL */
	struct job_secret *secrets;
	size_t secrets_count;
	struct job_network network;
	char *image;       /* root folder or OCI image folder on the machine; NULL = its system */
	bool deterministic; /* regenerated output is equal: lets replay be checked by digest */
	char *work_dir;    /* working folder inside the job's own ("--chdir"), NULL = its top */
};

extern const struct schema job_spec_schema;

/* Warnings of a parse, in order of lines; at most JOB_WARNINGS_MAX, then one "and more". */
#define JOB_WARNINGS_MAX 64
struct job_warnings VEC(struct diag);

/*
 * All return 0 or -errno with diag filled ("file:line: place" and value).
 * ret is released with job_spec_done(); warnings (may be NULL) with VEC_DONE().
 */
int job_spec_load(const char *path, struct job_spec *ret, struct job_warnings *ret_warnings,
		  struct diag *diag);
/* Text already read; a text that starts with "#!" or holds #SBATCH/#RECLAIM marks is a script. */
int job_spec_parse(const char *text, size_t len, const char *name, struct job_spec *ret,
		   struct job_warnings *ret_warnings, struct diag *diag);
int job_spec_from_json(json_t *in, struct job_spec *ret, struct diag *diag);
json_t *job_spec_to_json(const struct job_spec *spec);
void job_spec_done(struct job_spec *spec);
/* A spec for "reclaim run -- COMMAND...": defaults and a copy of argv. */
int job_spec_from_argv(int argc, const char *const *argv, struct job_spec *ret, struct diag *diag);

/* Slurm's "--signal=[{R|B}:]SIG[@seconds]". */
struct job_signal {
	int signo;
	bool batch_only;   /* B: the top process alone */
	unsigned before_s; /* N; a hint of how long a save takes. 60 when not given, as in Slurm */
};
int job_signal_parse(const char *text, struct job_signal *ret, struct diag *diag);
/* NULL or the default gives SIGTERM to all. */
struct job_signal job_spec_signal(const struct job_spec *spec);

#endif
