/*
 * What elastic agents tell each other through the round's store about their workers, and the ranks
 * that follow from it. These are PyTorch's texts, in JSON:
 *
 *     {"role": "default", "rank": 0, "local_world_size": 2}     an agent of itself
 *     [2, 4, 2, 4]      base rank, world size, base rank in the role, size of the role
 *
 * Worker `r` of an agent has rank base + r. Agents count in the order of their own ranks.
 */
#ifndef MU_ROLE_INFO_H
#define MU_ROLE_INFO_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"

#define MU_ROLE_LEN_MAX      255
#define MU_ROLE_INFO_LEN_MAX (MU_ROLE_LEN_MAX * 6 + 128) /* every byte escaped, and the rest */
#define MU_RANKS_LEN_MAX     64

struct mu_role_info {
    char role[MU_ROLE_LEN_MAX + 1];
    uint32_t rank;             /* of the agent */
    uint32_t local_world_size; /* at least 1 */
};

struct mu_ranks {
    uint32_t base;
    uint32_t world;
    uint32_t role_base;
    uint32_t role_world;
};

/** Writes the text, with a zero after it. Returns its length. */
size_t mu_role_info_encode(const struct mu_role_info *info, char out[MU_ROLE_INFO_LEN_MAX + 1]);
/** MUSTER_EPROTO: it is not such a text, a number is out of range, or the role is too long. */
int mu_role_info_decode(struct mu_span in, struct mu_role_info *ret_info);

size_t mu_ranks_encode(const struct mu_ranks *ranks, char out[MU_RANKS_LEN_MAX + 1]);
/** MUSTER_EPROTO: also if the base is beyond the world. */
int mu_ranks_decode(struct mu_span in, struct mu_ranks *ret_ranks);

/**
 * Assigns the ranks of all agents from what they told, by their rank. MUSTER_EPROTO, with a text,
 * if one of them claims another rank; MUSTER_ELIMIT for a world beyond 2^31 - 1 workers.
 * MUSTER_ENOMEM.
 */
int mu_ranks_assign(const struct mu_role_info *infos, size_t count, struct mu_ranks *ret_ranks,
                    struct mu_errmsg *reterr_msg);

#endif
