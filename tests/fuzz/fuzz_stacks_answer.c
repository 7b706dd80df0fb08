/*
 * A node's answer with the stacks of its workers. Reports that can be read are put into an answer
 * again, as a whole or with their main thread alone, and that has them all.
 */
#include <muster/error.h>

#include "codec/stacks/answer.h"
#include "core/assert.h"
#include "core/reader.h"

/* Copies what can be read. Returns how many reports that is. */
static uint32_t copy(const struct mu_stacks_answer *answer, struct mu_stacks_answer_writer *w,
                     bool main_only)
{
    struct mu_reader r = mu_reader(answer->reports);
    uint32_t count = 0;

    MU_ASSERT(mu_stacks_answer_begin(w, answer, MU_STACKS_ANSWER_BYTES_MAX) == 0);
    while (r.rest.len != 0 && !r.failed) {
        struct mu_span report = mu_read_span32(&r);

        count += mu_stacks_answer_add(w, report, main_only) == 0 ? 1 : 0;
    }
    return count;
}

static void check(const struct mu_stacks_answer *answer, bool main_only)
{
    struct mu_stacks_answer_writer w;
    struct mu_stacks_answer again;
    struct mu_stacks_report report;
    uint32_t count = copy(answer, &w, main_only);

    MU_ASSERT(mu_stacks_answer_decode(mu_stacks_answer_end(&w), &again) == 0);
    MU_ASSERT(mu_span_eq(again.node, answer->node));
    MU_ASSERT(again.workers == answer->workers && again.world == answer->world);
    MU_ASSERT(again.left_out <= count);
    for (uint32_t i = again.left_out; i < count; i++) {
        MU_ASSERT(mu_stacks_answer_next(&again.reports, &report) == 0);
    }
    MU_ASSERT(mu_stacks_answer_next(&again.reports, &report) == MUSTER_ENOENT);
    mu_stacks_answer_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_stacks_answer answer;
    struct mu_stacks_report report;
    struct mu_span rest;

    if (mu_stacks_answer_decode(mu_span(data, size), &answer) != 0) {
        return 0;
    }
    rest = answer.reports;
    while (mu_stacks_answer_next(&rest, &report) != MUSTER_ENOENT) {
        /* Each call takes something off. */
    }
    check(&answer, false);
    check(&answer, true);
    return 0;
}
