#include "checkers/load.h"

#include <string.h>

#include "proto/state/fetch_internal.h"

void load_check_chunks(struct mu_sim *sim, const char *who, const struct mu_state_loader *l,
                       const uint8_t *content, uint8_t *seen, uint8_t *kept)
{
    uint8_t chunk[LOAD_CHUNK];

    for (uint32_t i = 0; i < l->share->chunks; i++) {
        bool has = mu_state_bit(l->fetch.have, i);

        if (mu_state_bit(seen, i) || !has) {
            if (!has && mu_state_bit(seen, i)) {
                mu_sim_fail(sim, "chunk %u was there and is not", i);
            }
            continue;
        }
        mu_state_share_gather(l->share, i, chunk);
        if (memcmp(chunk, content + (size_t)i * LOAD_CHUNK, mu_state_share_len(l->share, i)) != 0) {
            mu_sim_fail(sim, "%s: chunk %u counts as loaded and is wrong", who, i);
        }
        mu_state_bit_set(seen, i);
        if (kept != NULL) {
            mu_state_bit_set(kept, i);
        }
    }
}

void load_check_time(struct mu_sim *sim, const char *who, const struct mu_sim_proc *proc,
                     uint64_t begun_ns, uint64_t limit_ms)
{
    const struct mu_sim_faults *f = mu_sim_faults(sim);
    uint64_t now = mu_sim_now_ns(sim);
    uint64_t due = begun_ns + limit_ms * MU_NS_PER_MS;
    uint64_t awake = mu_sim_proc_awake_ns(proc);
    /* The slack for drifting clocks, late timers, and work on other threads. */
    uint64_t slack = 2 * MU_NS_PER_S + 2 * f->timer_late_max_ns + 2 * f->work_max_ns +
                     limit_ms * MU_NS_PER_MS / 10;

    due = due > awake ? due : awake;
    if (now > due + slack) {
        mu_sim_fail(sim, "%s: a load of %llu ms took %llu ms", who, (unsigned long long)limit_ms,
                    (unsigned long long)((now - begun_ns) / MU_NS_PER_MS));
    }
}

bool load_plant_unverified(struct mu_sim *sim, struct mu_state_loader *l)
{
    MU_LIST_FOREACH (it, &l->fetch.owed) {
        const struct mu_state_ask *ask = MU_CONTAINER_OF(it, struct mu_state_ask, link);

        if (!ask->revoked && mu_prng_chance(mu_sim_prng(sim), 20000)) {
            mu_state_bit_set(l->fetch.have, ask->chunk);
            l->fetch.done++;
            return true;
        }
    }
    return false;
}
