/*
 * What agents find in the store about stragglers: any bytes at all. They are refused, or read as
 * paces and judged without harm, or read as a list of stragglers. What is understood is the same
 * when it is said again.
 */
#include <string.h>

#include "core/assert.h"
#include "proto/stacks/straggle.h"

#define WORLD 64
#define NODES 4

static void check_again(const struct mu_paces *paces)
{
    struct mu_pace all[WORLD];
    struct mu_paces again;
    size_t count = paces->count < WORLD ? paces->count : WORLD;
    struct mu_buf b;

    for (size_t i = 0; i < count; i++) {
        all[i] = mu_paces_at(paces, i);
    }
    mu_buf_init(&b, 8192);
    MU_ASSERT(mu_paces_encode(&b, paces->span, paces->node, all, count) == 0);
    MU_ASSERT(mu_paces_decode(mu_buf_span(&b), &again) == 0 && again.count == count);
    for (size_t i = 0; i < count; i++) {
        struct mu_pace pace = mu_paces_at(&again, i);

        MU_ASSERT(memcmp(&pace, &all[i], sizeof(pace)) == 0);
    }
    mu_buf_fini(&b);
}

static void check_paces(struct mu_span in)
{
    struct mu_straggle_change change;
    struct mu_straggle_config config;
    struct mu_straggle s;
    struct mu_paces paces;

    if (mu_paces_decode(in, &paces) != 0) {
        return;
    }
    check_again(&paces);
    mu_straggle_defaults(&config);
    config.world = WORLD;
    config.nodes = NODES;
    MU_ASSERT(mu_straggle_init(&s, &config) == 0);
    for (int span = 0; span < 40; span++) {
        mu_straggle_begin(&s);
        for (size_t i = 0; i < paces.count; i++) {
            struct mu_pace pace = mu_paces_at(&paces, i);

            mu_straggle_add(&s, pace.rank % 5, paces.node, &pace);
        }
        mu_straggle_judge(&s);
        while (mu_straggle_next(&s, &change)) {
            MU_ASSERT(change.who.rank < WORLD && change.who.kept_permille <= 1000);
            MU_ASSERT(change.who.rank_count >= 1 && change.who.delay_permille <= 1000);
        }
        MU_ASSERT(mu_straggle_list(&s)->count <= MU_STRAGGLERS_MAX);
    }
    mu_straggle_fini(&s);
}

static void check_stragglers(struct mu_span in)
{
    static struct mu_stragglers list;
    static struct mu_stragglers again;
    struct mu_buf b;

    if (mu_stragglers_decode(in, &list) != 0) {
        return;
    }
    mu_buf_init(&b, 64 << 10);
    MU_ASSERT(mu_stragglers_encode(&b, &list) == 0);
    MU_ASSERT(mu_span_eq(mu_buf_span(&b), in));
    MU_ASSERT(mu_stragglers_decode(mu_buf_span(&b), &again) == 0 && again.count == list.count);
    mu_buf_fini(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    check_paces(mu_span(data, size));
    check_stragglers(mu_span(data, size));
    return 0;
}
