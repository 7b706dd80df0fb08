/*
 * The texts with which torchrun's options say what happens to workers' output, and their values.
 * Pure: texts in, values out. Every error has a text.
 */
#ifndef MU_OUTPUT_SPEC_H
#define MU_OUTPUT_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

/* Standard streams, as -r and -t number them. */
enum {
    MU_STD_NONE = 0,
    MU_STD_OUT = 1,
    MU_STD_ERR = 2,
    MU_STD_ALL = 3,
};

/** How many ranks, or texts to filter for, one option may name. */
#define MU_SPEC_ITEMS_MAX 4096

struct mu_std_rank {
    uint32_t rank;
    uint8_t mask;
};

/* A mask for each local rank: one for all, or named ones and MU_STD_NONE for the others. */
struct mu_std_masks {
    uint8_t all;
    struct mu_std_rank *ranks; /* owned */
    size_t count;
};

/**
 * Parses "0" to "3", or "rank:mask,rank:mask,...", with ranks of any number of digits. A rank that
 * comes twice has its last mask. MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ELIMIT. `ret` needs fini.
 */
int mu_std_masks_parse(struct mu_span text, struct mu_std_masks *ret, struct mu_errmsg *reterr_msg);
void mu_std_masks_fini(struct mu_std_masks *m);
uint8_t mu_std_masks_get(const struct mu_std_masks *m, uint32_t rank);

/* Local ranks that are shown on the console; without names, all are. */
struct mu_rank_filter {
    uint32_t *ranks; /* owned */
    size_t count;
};

/**
 * Parses "0,2,5"; blanks around numbers are fine, and an empty text names no rank. A number below
 * zero, which torchrun accepts too, is no worker's: "-1" shows no worker. Errors as above.
 */
int mu_rank_filter_parse(struct mu_span text, struct mu_rank_filter *ret,
                         struct mu_errmsg *reterr_msg);
void mu_rank_filter_fini(struct mu_rank_filter *f);
bool mu_rank_filter_shows(const struct mu_rank_filter *f, uint32_t rank);

/* Texts of which a line must contain one. */
struct mu_text_filter {
    uint8_t *bytes; /* owned */
    struct mu_span *texts;
    size_t count;
};

/** Parses "one,two": a comma that is part of a text is written ",,". Empty texts are left out. */
int mu_text_filter_parse(struct mu_span text, struct mu_text_filter *ret,
                         struct mu_errmsg *reterr_msg);
void mu_text_filter_fini(struct mu_text_filter *f);
bool mu_text_filter_matches(const struct mu_text_filter *f, struct mu_span line);

/** The prefix of a line: torchrun's default, without TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE. */
#define MU_PREFIX_TEMPLATE "[${role_name}${local_rank}]:"

/**
 * Appends `template` with ${role_name}, ${rank} and ${local_rank} (also without braces) put in.
 * "$$" is one dollar; unknown variables stay as they are. Errors as mu_buf_append().
 */
int mu_prefix_expand(struct mu_span template, struct mu_span role, uint32_t rank,
                     uint32_t local_rank, struct mu_buf *out);

#endif
