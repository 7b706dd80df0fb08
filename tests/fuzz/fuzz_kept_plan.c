/* What other agents write of copies of kept states: what they hold, and node 0's plan. What is
 * understood is the same when it is written again; and whatever is held, a plan can be carried out.
 */
#include <stdlib.h>

#include "core/alloc.h"
#include "proto/state/recall.h"

#define NODES   3u
#define WORKERS 2u

static void check(bool right)
{
    if (!right) {
        abort();
    }
}

static void try_plan(struct mu_span in)
{
    struct mu_kept_plan plan;
    struct mu_buf again;

    if (mu_kept_plan_decode(in, &plan) == 0) {
        mu_buf_init(&again, MU_KEPT_PLAN_BYTES_MAX);
        check(mu_kept_plan_encode(&plan, &again) == 0 && mu_span_eq(mu_buf_span(&again), in));
        mu_buf_fini(&again);
        mu_kept_plan_fini(&plan);
    }
}

/* The first node holds this, the second has the same in its own vaults, as far as it fits. */
static void try_recall(const struct mu_kept_holding *h)
{
    struct mu_kept_report report = {.workers = WORKERS, .heads = h->heads};
    struct mu_recall recall;
    struct mu_kept_plan plan;

    check(mu_recall_init(&recall, NODES) == 0);
    for (uint32_t node = 0; node < NODES; node++) {
        report.head_count = node != 1 ? 0 : h->head_count < 6 ? h->head_count : 6;
        check(mu_recall_take(&recall, node, &report) == 0);
    }
    check(mu_recall_take_holding(&recall, 0, h) == 0);
    check(mu_recall_plan(&recall, 1, &plan) == 0);
    for (size_t i = 0; i < plan.fetch_count; i++) {
        const struct mu_kept_fetch *f = &plan.fetches[i];

        check(f->rank < NODES * WORKERS && f->node_count != 0 && plan.answer.found);
        for (uint32_t k = 0; k < f->node_count; k++) {
            check(f->nodes[k] < NODES && f->nodes[k] != f->rank / WORKERS);
        }
    }
    mu_kept_plan_fini(&plan);
    mu_recall_fini(&recall);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_kept_holding holding;
    struct mu_buf again;

    try_plan(in);
    if (mu_kept_holding_decode(in, &holding) == 0) {
        mu_buf_init(&again, MU_KEPT_HOLDING_BYTES_MAX);
        check(mu_kept_holding_encode(&holding, &again) == 0 && mu_span_eq(mu_buf_span(&again), in));
        mu_buf_fini(&again);
        try_recall(&holding);
        mu_free(holding.heads);
    }
    return 0;
}
