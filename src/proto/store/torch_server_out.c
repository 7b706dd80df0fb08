/*
 * Answers on their way out: our own bytes, and between them values that are sent straight from the
 * keyspace, so that any number of readers of one value hold it once.
 */
#include "proto/store/torch_server_private.h"

#include "core/alloc.h"
#include "core/assert.h"

struct mu_torch_loans *mu_torch_loans_new(struct mu_torch_server *t, size_t n)
{
    struct mu_torch_loans *loans = mu_malloc(sizeof(*loans) + n * sizeof(loans->loans[0]));

    if (loans != NULL) {
        loans->count = 0;
        loans->first = 0;
        loans->cap = n;
        mu_list_push(&t->lent, &loans->link);
        t->lent_memory += sizeof(*loans) + n * sizeof(loans->loans[0]);
    }
    return loans;
}

void mu_torch_loans_drop(struct mu_torch_server *t, struct mu_torch_loans *loans)
{
    for (size_t i = loans->first; i < loans->count; i++) {
        mu_ks_release(loans->loans[i].block);
    }
    t->lent_memory -= sizeof(*loans) + loans->cap * sizeof(loans->loans[0]);
    mu_list_remove(&loans->link);
    mu_free(loans);
}

void mu_torch_loans_put(struct mu_torch_server *t, struct mu_torch_loans *loans,
                        struct mu_span value, struct mu_ks_block *block)
{
    MU_ASSERT(loans->count < loans->cap && value.len != 0 && block != NULL);
    mu_ks_hold(block);
    loans->loans[loans->count++] = (struct mu_torch_loan){
        .block = block, .rest = value, .before = t->out.len - t->lent_before};
    t->lent_before = t->out.len;
    t->lent_bytes += value.len;
}

size_t mu_torch_server_output(const struct mu_torch_server *t, struct mu_span *spans, size_t cap)
{
    struct mu_span out = mu_buf_span(&t->out);
    size_t n = 0;

    MU_LIST_FOREACH (it, &t->lent) {
        const struct mu_torch_loans *loans = MU_CONTAINER_OF(it, struct mu_torch_loans, link);

        for (size_t i = loans->first; i < loans->count && n < cap; i++) {
            const struct mu_torch_loan *loan = &loans->loans[i];

            if (loan->before != 0) {
                spans[n++] = mu_span(out.data, loan->before);
                out = mu_span_skip(out, loan->before);
            }
            if (n < cap) {
                spans[n++] = loan->rest;
            }
        }
    }
    if (out.len != 0 && n < cap) {
        spans[n++] = out;
    }
    return n;
}

/* Takes up to `n` bytes off the first loan and what goes before it; returns how many. */
static size_t sent_loan(struct mu_torch_server *t, struct mu_torch_loans *loans, size_t n)
{
    struct mu_torch_loan *loan = &loans->loans[loans->first];
    size_t before = n < loan->before ? n : loan->before;
    size_t lent = n - before < loan->rest.len ? n - before : loan->rest.len;

    mu_buf_consume(&t->out, before);
    loan->before -= before;
    loan->rest = mu_span_skip(loan->rest, lent);
    t->lent_before -= before;
    t->lent_bytes -= lent;
    if (loan->rest.len == 0) {
        mu_ks_release(loan->block);
        loans->first++;
    }
    if (loans->first == loans->count) {
        mu_torch_loans_drop(t, loans);
    }
    return before + lent;
}

void mu_torch_server_sent(struct mu_torch_server *t, size_t n)
{
    while (n != 0 && !mu_list_empty(&t->lent)) {
        n -= sent_loan(t, MU_CONTAINER_OF(t->lent.next, struct mu_torch_loans, link), n);
    }
    mu_buf_consume(&t->out, n);
    if (mu_torch_server_output_len(t) == 0) {
        /*
         * An idle connection holds no memory. The next buffer begins with the room that was needed
         * last, so that a busy connection does not grow it step by step each time.
         */
        t->out_hint = (uint32_t)(n < MU_TORCH_HINT_MAX ? n : MU_TORCH_HINT_MAX);
        mu_buf_trim(&t->out, 0);
    }
}
