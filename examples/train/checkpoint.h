/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints by the contract: a folder that appears whole or not at all.
 *
 *     DIR/step-00000040/model.bin   header and parameters
 *                       adamw.bin   both moments
 *                       state.txt   step, random state, what it was trained on
 *                       MANIFEST    lines "SIZE SHA256 NAME" of the others
 *
 * Written as DIR/.new-PID, each file synced, MANIFEST last, the folder renamed
 * and DIR synced. Two are kept. Reading takes the newest that holds against its
 * manifest and says which it had to pass over.
 */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include <stdint.h>

#include "model.h"

struct train_state {
	struct model model;
	struct adamw adamw;
	uint64_t step;
	uint64_t random; /* state of the batch generator */
	char text[65];   /* SHA-256 of the training text */
	uint64_t batch;
};

/* 0 or -errno. pause_ns: stand still before the last step, to play a slow disk. */
int checkpoint_save(const char *dir, const struct train_state *s, uint64_t pause_ns,
		    uint64_t *ret_bytes);
/*
 * Loads the newest good checkpoint over s (whose model has the wanted shape).
 * 1 loaded, 0 there is none, -errno otherwise; complaints go to stderr.
 */
int checkpoint_load(const char *dir, struct train_state *s);
/* A model.bin alone, of whatever shape: for inference. */
int checkpoint_load_model(const char *path, struct model *ret);
int checkpoint_write_model(const char *path, const struct model *m);
/* SHA-256 over parameters and moments, in hexadecimal. */
void checkpoint_digest(const struct train_state *s, char hex[65]);

#endif
