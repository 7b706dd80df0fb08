/*
 * Which nodes a run does not let in, for how long and why. Pure: the time is an argument.
 *
 *     mu_exclusions_fail(x, now, machine, node)    a node failed; perhaps once too often
 *     mu_exclusions_forgive(x, since)              failures since then were the echo of a loss
 *     mu_exclusions_add(x, now, who, ...)          somebody names a node
 *     mu_exclusions_lift(x, who)                   and takes it back
 *     mu_exclusions_find(x, now, machine, node)    is it excluded now?
 *
 * A node is known by its machine (a stable id that it tells when it joins), or by its name if it
 * told none. An entry also counts the failures of a node that is not excluded yet. There are at
 * most MU_EXCLUSIONS_MAX of them: when another one is needed, the one that would be over first
 * goes.
 *
 * The policy: after `after` failures within `within_ms`, a node is excluded for `for_ms`. Failures
 * from before an exclusion do not count any more.
 */
#ifndef MU_RDZV_EXCLUSIONS_H
#define MU_RDZV_EXCLUSIONS_H

#include "codec/rdzv/msg.h"
#include "core/buf.h"
#include "core/span.h"
#include "core/time.h"

#define MU_EXCLUSIONS_MAX       64
#define MU_EXCLUSION_TEXT_MAX   MU_RDZV_NAME_LEN_MAX
#define MU_EXCLUDE_FOR_MS       (UINT64_C(30) * 60 * 1000) /* if nobody says for how long */
#define MU_EXCLUSIONS_BYTES_MAX ((size_t)64 << 10)         /* of the encoded table */

struct mu_exclude_policy {
    uint32_t after; /* at most MU_RDZV_FAILURES_MAX; 0: failures exclude nobody */
    uint64_t within_ms;
    uint64_t for_ms;
};

struct mu_exclusion {
    char key[MU_EXCLUSION_TEXT_MAX + 1];  /* machine or name */
    char node[MU_EXCLUSION_TEXT_MAX + 1]; /* its name, as it was seen last; or as `key` */
    char reason[MU_EXCLUSION_TEXT_MAX + 1];
    bool by_hand;
    mu_mono_t at;    /* when it was excluded last; 0: never */
    mu_mono_t until; /* it is excluded before this */
    uint32_t failed_count;
    mu_mono_t failed[MU_RDZV_FAILURES_MAX]; /* the oldest first */
};

struct mu_exclusions {
    struct mu_exclude_policy policy;
    struct mu_exclusion *all;
    uint32_t count;
    uint32_t cap;
    uint64_t total; /* how many exclusions there have been */
};

void mu_exclusions_init(struct mu_exclusions *x, const struct mu_exclude_policy *policy);
void mu_exclusions_fini(struct mu_exclusions *x);

/** Returns whether this failure was one too many: the node is excluded. Without memory it is not
 * counted. */
bool mu_exclusions_fail(struct mu_exclusions *x, mu_mono_t now, const char *machine,
                        const char *node);
/** What was counted since then, and what followed from it, is taken back. */
void mu_exclusions_forgive(struct mu_exclusions *x, mu_mono_t since);
/**
 * Excludes a node by its machine (or "") and name, or what the user named. `reason` is cut if it is
 * too long. MUSTER_ENOMEM.
 */
int mu_exclusions_add(struct mu_exclusions *x, mu_mono_t now, const char *machine, const char *node,
                      struct mu_span reason, uint64_t for_ms);
/** Returns how many entries were lifted: those whose machine, name or host is `who`. */
uint32_t mu_exclusions_lift(struct mu_exclusions *x, const char *who);
/** Returns the exclusion of a node, or NULL. Lent until the next change. */
const struct mu_exclusion *mu_exclusions_find(const struct mu_exclusions *x, mu_mono_t now,
                                              const char *machine, const char *node);
static inline bool mu_exclusion_holds(const struct mu_exclusion *e, mu_mono_t now)
{
    return mu_mono_before(now, e->until);
}
/** Returns how many hold now. */
uint32_t mu_exclusions_count(const struct mu_exclusions *x, mu_mono_t now);
/** Whether `who` is the machine or the name of a node, or its host: what a name begins with, up to
 * a "_". */
bool mu_exclusion_names(const char *who, const char *machine, const char *node);
/** Writes the table as messages (codec/rdzv/msg.h), times relative to now; `all`: also of nodes
 * that have failed and are not excluded. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_exclusions_encode(const struct mu_exclusions *x, mu_mono_t now, bool all,
                         struct mu_buf *out);
/** Adds what another server knew; the policy stays. MUSTER_EPROTO, MUSTER_ENOMEM: what came before
 * the fault was taken. */
int mu_exclusions_decode(struct mu_exclusions *x, mu_mono_t now, struct mu_span in);

#endif
