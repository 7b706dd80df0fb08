/* Helpers of the store's scenarios and their jobs. */
#include "scenarios/store/store_world.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "fake_etcd.h"

void store_world_trouble_etcd(struct mu_sim *sim, void *arg)
{
    struct store_world *w = arg;
    bool over = mu_sim_now_ns(sim) > STORE_FAULTY_NS;

    fake_etcd_trouble(w->etcd, mu_sim_prng(sim), over);
    if (!over) {
        MU_ASSERT(mu_sim_at(sim,
                            mu_sim_now_ns(sim) + mu_prng_below(mu_sim_prng(sim), 2 * MU_NS_PER_S),
                            store_world_trouble_etcd, w) == 0);
    }
}

/* Makes bursts of revisions now and then that our watch does not see. */
void store_world_write_elsewhere(struct mu_sim *sim, void *arg)
{
    struct store_world *w = arg;
    struct mu_prng *prng = mu_sim_prng(sim);
    uint64_t pause_ns =
        mu_prng_below(prng, mu_prng_below(prng, 8) == 0 ? 2 * MU_NS_PER_S : 20 * MU_NS_PER_MS);

    if (mu_sim_now_ns(sim) > STORE_FAULTY_NS) {
        return;
    }
    fake_etcd_put(w->etcd, "/elsewhere");
    MU_ASSERT(mu_sim_at(sim, mu_sim_now_ns(sim) + pause_ns, store_world_write_elsewhere, w) == 0);
}

struct mu_sim_faults store_world_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw_all(prng);

    f.disk_fail_ppm = mu_prng_below(prng, 8) == 0 ? 5000 : 0;
    return f;
}

void *store_grow(void *array, size_t count, size_t *cap, size_t size)
{
    struct mu_sim_heap *heap;
    void *bigger;

    if (count < *cap) {
        return array;
    }
    *cap = *cap == 0 ? 64 : *cap * 2;
    heap = mu_sim_outside();
    bigger = mu_realloc(array, *cap * size);
    mu_sim_inside(heap);
    MU_ASSERT(bigger != NULL);
    return bigger;
}

bool store_read_number(struct mu_span text, int64_t *ret)
{
    char copy[32];
    char *end;

    if (text.len == 0 || text.len >= sizeof(copy)) {
        return false;
    }
    memcpy(copy, text.data, text.len);
    copy[text.len] = '\0';
    *ret = strtoll(copy, &end, 10);
    return *end == '\0';
}
