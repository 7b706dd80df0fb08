/*
 * The stacks of many workers on one page. Workers whose main threads have the same stack become one
 * group, and the odd ones come first:
 *
 *     rank 3 in DataLoader.__next__ at data.py:40
 *     7 ranks (0-2,4-7) in all_reduce at train.py:81
 *
 * A group is named by the line of the user's script that is reached last, and by the function of a
 * library that this line has called; wrappers are passed over. If there are more different stacks
 * than fit on the page, workers are grouped by that line and function instead. What still does not
 * fit is counted.
 *
 *     mu_groups_init(&g, &config);
 *     for each report: mu_groups_add(&g, &report);      in any order; nothing is borrowed after it
 *     mu_groups_write_text(&g, &out);  mu_groups_write_json(&g, &out);
 *     mu_groups_fini(&g);
 *
 * A report costs a few bytes once its stack is known, so that ten thousand ranks are a matter of
 * milliseconds. Text of workers is made printable. Writing sorts, and does not end the adding.
 */
#ifndef MU_GROUP_H
#define MU_GROUP_H

#include "codec/stacks/report.h"
#include "core/buf.h"
#include "core/map.h"

#define MU_GROUPS_RANKS_MAX  (1u << 20)
#define MU_GROUPS_STACKS_MAX 256  /* different stacks that are kept; beyond, lines are grouped */
#define MU_GROUPS_PLACES_MAX 4096 /* different lines; ranks beyond are together "elsewhere" */
#define MU_GROUPS_TEXT_MAX   255  /* bytes of a function, or of the end of a path */

struct mu_groups_config {
    uint32_t world;            /* ranks that there should be; 0, or too many: not known */
    uint32_t groups_shown_max; /* 10 */
    uint32_t frames_shown_max; /* of each group. 5 */
};

/* A stack, or a place in the user's script. */
struct mu_group {
    struct mu_map_node node; /* its key is the group as bytes, see group.c */
    uint32_t number;
    uint32_t count;
    uint32_t first; /* its lowest rank; set when the groups are sorted */
    uint8_t bytes[];
};

struct mu_group_rank {
    uint32_t rank;
    uint32_t stack; /* numbers of groups, or UINT32_MAX */
    uint32_t place;
};

/* Groups of one kind. */
struct mu_group_set {
    struct mu_map map;
    struct mu_group **groups; /* by number */
    uint32_t count;
    uint32_t count_max;
    bool full; /* there were more than are kept */
};

struct mu_groups {
    struct mu_groups_config config;
    struct mu_group_set stacks;
    struct mu_group_set places;
    struct mu_group_rank *ranks;
    uint32_t rank_count;
    uint32_t rank_cap;
    struct mu_buf key; /* that is being made */
};

void mu_groups_defaults(struct mu_groups_config *config);
void mu_groups_init(struct mu_groups *g, const struct mu_groups_config *config);
void mu_groups_fini(struct mu_groups *g);

/** MUSTER_ELIMIT: more than MU_GROUPS_RANKS_MAX reports; MUSTER_ENOMEM. The report is left out. */
int mu_groups_add(struct mu_groups *g, const struct mu_stacks_report *report);

/**
 * Appends one sentence without a full stop: "rank 3 in ... at data.py:40; 7 ranks in ...", of at
 * most `groups_shown_max` groups. MUSTER_ELIMIT: `out` is too small; MUSTER_ENOMEM.
 */
int mu_groups_write_line(struct mu_groups *g, struct mu_buf *out);
/** Appends the page: a line for each group, its frames below it, the innermost first. As above. */
int mu_groups_write_text(struct mu_groups *g, struct mu_buf *out);
/** Appends the same as a JSON object. As above. */
int mu_groups_write_json(struct mu_groups *g, struct mu_buf *out);

/**
 * Writes ranks, which are sorted, as ranges: "0-2,4-7". What does not fit into `cap` bytes (at
 * least 32) is counted: "0,2,4 and 97 more". Returns the length.
 */
size_t mu_groups_ranges(char *out, size_t cap, const uint32_t *ranks, size_t count);

#endif
