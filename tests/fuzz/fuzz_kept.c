/* What others write of kept states: the head of a vault, by a worker; reports and the answer, by
 * other agents; a worker's variable. What is understood is the same when it is written again. */
#include <stdlib.h>

#include "codec/state/kept.h"
#include "core/alloc.h"
#include "proto/state/recall.h"

static void try_head(const uint8_t *data)
{
    struct mu_kept_head head;
    uint8_t again[MU_KEPT_HEAD_LEN];

    if (mu_kept_head_decode(data, (uint64_t)1 << 30, &head) == 0) {
        mu_kept_head_encode(&head, again);
        if (memcmp(again, data, sizeof(again)) != 0 || head.rank >= head.world) {
            abort();
        }
    }
}

static void try_report(struct mu_span in)
{
    struct mu_kept_report report;
    struct mu_kept_answer answer;
    struct mu_recall recall;
    struct mu_buf again;

    if (mu_kept_report_decode(in, &report) != 0) {
        return;
    }
    mu_buf_init(&again, MU_KEPT_REPORT_BYTES_MAX);
    if (mu_kept_report_encode(&report, &again) != 0 || !mu_span_eq(mu_buf_span(&again), in)) {
        abort();
    }
    if (mu_recall_init(&recall, 2) != 0 || mu_recall_take(&recall, 0, &report) != 0 ||
        mu_recall_take(&recall, 1, &report) != 0) {
        abort();
    }
    mu_recall_decide(&recall, 1, &answer);
    if (answer.found && !answer.replicated && answer.world != 2 * (uint64_t)report.workers) {
        abort();
    }
    mu_recall_fini(&recall);
    mu_buf_fini(&again);
    mu_free(report.heads);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    uint8_t answer_again[MU_KEPT_ANSWER_LEN];
    char terms_again[MU_KEPT_TERMS_LEN_MAX + 1];
    struct mu_kept_answer answer;
    struct mu_kept_terms terms;

    if (size >= MU_KEPT_HEAD_LEN) {
        try_head(data);
    }
    try_report(in);
    if (mu_kept_answer_decode(in, &answer) == 0) {
        mu_kept_answer_encode(&answer, answer_again);
        if (!mu_span_eq(mu_span(answer_again, sizeof(answer_again)), in)) {
            abort();
        }
    }
    if (mu_kept_terms_decode(in, &terms) == 0 &&
        !mu_span_eq(mu_span(terms_again, mu_kept_terms_encode(&terms, terms_again)), in)) {
        abort();
    }
    return 0;
}
