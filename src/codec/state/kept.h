/*
 * Kept states (docs/kept.md): what stands at the beginning of a vault, what agents tell each other
 * of their vaults, and what a worker is told of its own. All of it comes from other processes.
 *
 * A vault begins with a head, little-endian, and the rest of a page. The state follows, as a
 * safetensors file of `bytes` bytes:
 *
 *     "MUSTKEPT", u32 1, u32 flags (1: replicated), u64 era, u64 nonce, u64 step,
 *     u32 rank, u32 world, u64 bytes, u64 checksum of these 56 bytes, never 0
 *
 * Whoever writes a vault clears the checksum first and writes it last. So a head that can be
 * decoded stands before a state that was written whole.
 *
 * A version is what all ranks keep at the same step of the same attempt. Its era is greater than
 * that of all versions that were there when the attempt began, so a later attempt that begins again
 * at an earlier step is newer. The nonce tells attempts of the same era apart that knew nothing of
 * each other.
 */
#ifndef MU_STATE_KEPT_H
#define MU_STATE_KEPT_H

#include "core/buf.h"
#include "core/err.h"
#include "core/reader.h"
#include "core/span.h"

#define MU_KEPT_HEAD_LEN   64
#define MU_KEPT_HEAD_BYTES ((uint64_t)4096) /* where the state begins: a page */
/* How many vaults each worker place has: two whole versions stay while the third is written. */
#define MU_KEPT_VAULTS 3

/* Limits of a report: as many workers as an agent may have, each with its vaults. */
#define MU_KEPT_WORKERS_MAX      4096
#define MU_KEPT_HEADS_MAX        (MU_KEPT_WORKERS_MAX * MU_KEPT_VAULTS)
#define MU_KEPT_REPORT_HEAD_LEN  13
#define MU_KEPT_REPORT_ENTRY_LEN 36
#define MU_KEPT_REPORT_BYTES_MAX                                                                   \
    (MU_KEPT_REPORT_HEAD_LEN + (size_t)MU_KEPT_HEADS_MAX * MU_KEPT_REPORT_ENTRY_LEN)
#define MU_KEPT_ANSWER_LEN    58
#define MU_KEPT_TERMS_LEN_MAX 220

struct mu_kept_version {
    uint64_t era;
    uint64_t nonce;
    uint64_t step;
};

/** Below, equal to or above zero as a is older than, the same as, or newer than b. */
int mu_kept_version_cmp(const struct mu_kept_version *a, const struct mu_kept_version *b);

struct mu_kept_head {
    struct mu_kept_version version;
    bool replicated; /* every rank's is the same: any of them serves all */
    uint32_t rank;   /* whose it is */
    uint32_t world;  /* how many ranks there were */
    uint64_t bytes;  /* of the state */
};

/** Writes the head of a vault, with its checksum in the last 8 bytes. */
void mu_kept_head_encode(const struct mu_kept_head *head, uint8_t out[MU_KEPT_HEAD_LEN]);
/** MUSTER_ENOENT: no whole version is there; so also if it does not fit into a vault of
 * `vault_bytes`. */
int mu_kept_head_decode(const uint8_t in[MU_KEPT_HEAD_LEN], uint64_t vault_bytes,
                        struct mu_kept_head *ret_head);

/* --- between agents --------------------------------------------------------------------------- */

/* What an agent's vaults hold, before the workers of a round start. */
struct mu_kept_report {
    uint32_t workers; /* at least 1 */
    struct mu_kept_head *heads;
    size_t head_count;
};

/** One head of a report, of MU_KEPT_REPORT_ENTRY_LEN bytes: without its `bytes`. */
void mu_kept_entry_put(uint8_t *out, const struct mu_kept_head *head);
/** False: it cannot be. */
bool mu_kept_entry_read(struct mu_reader *r, struct mu_kept_head *ret);

/** Appends it. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_kept_report_encode(const struct mu_kept_report *report, struct mu_buf *out);
/** Its heads are for mu_free(), and have no `bytes`. MUSTER_EPROTO, MUSTER_ENOMEM. */
int mu_kept_report_decode(struct mu_span in, struct mu_kept_report *ret_report);

/* What the agent of node 0 decides for all. */
struct mu_kept_answer {
    uint64_t era; /* of the attempt that begins */
    uint64_t nonce;
    bool found; /* what follows holds: the version that all workers load */
    struct mu_kept_version version;
    bool replicated;
    uint32_t world;
};

void mu_kept_answer_encode(const struct mu_kept_answer *answer, uint8_t out[MU_KEPT_ANSWER_LEN]);
/** MUSTER_EPROTO. */
int mu_kept_answer_decode(struct mu_span in, struct mu_kept_answer *ret_answer);

/* --- to a worker ------------------------------------------------------------------------------ */

/* What the variable of a worker says. Its own vaults are the descriptors from `fd` on; the one that
 * it loads from, which may be one of these or another worker's, comes after them. */
struct mu_kept_terms {
    uint32_t fd;
    uint64_t bytes; /* of each vault */
    uint64_t era;
    uint64_t nonce;
    uint32_t rank;
    uint32_t world;
    bool found; /* `version` is to be loaded */
    struct mu_kept_version version;
    bool replicated;
};

/** Writes numbers with commas between them, with a zero after it. Returns its length. */
size_t mu_kept_terms_encode(const struct mu_kept_terms *terms, char out[MU_KEPT_TERMS_LEN_MAX + 1]);
/** MUSTER_EPROTO. */
int mu_kept_terms_decode(struct mu_span in, struct mu_kept_terms *ret_terms);

/**
 * Which of a worker's own vaults it overwrites next: one without a whole version, or else the
 * oldest version, where those of earlier attempts that were not loaded are of no use.
 * `heads[i]` counts if `whole[i]`.
 */
unsigned mu_kept_oldest(const struct mu_kept_head heads[MU_KEPT_VAULTS],
                        const bool whole[MU_KEPT_VAULTS], const struct mu_kept_terms *terms);

#endif
