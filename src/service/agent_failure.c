/*
 * The first failure of a round: whoever's worker fails writes it into the round's store if nothing
 * is there, so that the store's order of events decides; the others read it there.
 */
#include <string.h>

#include "core/alloc.h"
#include "service/agent_internal.h"

static void keep(struct mu_agent_round *r, struct mu_failure *f)
{
    struct mu_agent_verdict *v = &r->s->verdict;

    r->failure_known = true;
    mu_failure_fini(&v->first_failure);
    v->first_failure = *f;
    v->has_failure = true;
    v->failure_here = f->group_rank == r->rank;
}

static void take_first(struct mu_agent_round *r, struct mu_span text)
{
    struct mu_failure f;

    if (mu_failure_decode(text, &f) == 0) {
        keep(r, &f);
    }
}

static void on_op(struct mu_store_op *op)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(op, struct mu_agent_round, op);
    struct mu_agent_service *s = r->s;

    r->op_busy = false;
    if (op->status == 0 && op->reply.value_count != 0 && op->reply.values[0].len != 0) {
        take_first(r, op->reply.values[0]);
    } else if (r->publishes && r->op_text.len != 0) {
        take_first(r, mu_buf_span(&r->op_text)); /* Nobody says otherwise. */
    }
    if (r->closing) {
        mu_agent_round_settle(r);
    } else {
        mu_agent_settle(s);
    }
}

static void submit(struct mu_agent_round *r, enum mu_store_verb verb, uint32_t flags,
                   size_t value_count)
{
    r->op_key = MU_SPAN_LIT(MU_AGENT_FAILURE_KEY);
    r->op = (struct mu_store_op){
        .request =
            {
                .verb = verb,
                .flags = flags,
                .keys = &r->op_key,
                .key_count = 1,
                .values = r->op_values,
                .value_count = value_count,
            },
        .timeout_ms = r->s->config.verdict_ms,
        .done = on_op,
    };
    r->op_busy = true;
    mu_store_submit(r->stores.store, &r->op);
}

/* The end of what the worker wrote, as a text: zeros in it become blanks. */
static char *dup_tail(const struct mu_agent_worker *w)
{
    struct mu_span tail = mu_buf_span(&w->tail);
    char *text;

    if (tail.len > MU_FAILURE_TAIL_MAX) {
        tail = mu_span(tail.data + (tail.len - MU_FAILURE_TAIL_MAX), MU_FAILURE_TAIL_MAX);
    }
    text = mu_strndup(tail.len == 0 ? "" : (const char *)tail.data, tail.len);
    for (size_t i = 0; text != NULL && i < tail.len; i++) {
        if (text[i] == '\0') {
            text[i] = ' ';
        }
    }
    return text;
}

static void read_error_file(struct mu_agent_service *s, uint32_t local_rank, struct mu_failure *f)
{
    struct mu_buf text;

    if (s->events.read_error_file == NULL) {
        return;
    }
    mu_buf_init(&text, MU_FAILURE_BYTES_MAX);
    s->events.read_error_file(s->events.context, local_rank, &text);
    if (text.len != 0 && mu_failure_read_error_file(f, mu_buf_span(&text)) != 0) {
        mu_agent_log(s, "the error file of worker %u is not what PyTorch writes", local_rank);
    }
    mu_buf_fini(&text);
}

void mu_agent_failure_publish(struct mu_agent_round *r, uint32_t local_rank)
{
    struct mu_agent_service *s = r->s;
    const struct mu_agent_worker *w = &s->workers[local_rank];
    const char *host = s->config.host != NULL ? s->config.host : s->rdzv->node;
    struct mu_failure f = {
        .host = mu_strndup(host, strlen(host)),
        .group_rank = r->rank,
        .rank = w->end.rank,
        .local_rank = local_rank,
        .pid = w->end.pid,
        .exit_code = w->end.exit_code,
        .round = r->number,
        .restart_count = s->attempt.restart_count,
        .time_s = (int64_t)(mu_env_now(s->env).wall.ns / MU_NS_PER_S),
        .tail = dup_tail(w),
    };
    int err;

    read_error_file(s, local_rank, &f);
    mu_buf_reset(&r->op_text);
    err = mu_failure_encode(&r->op_text, &f);
    mu_failure_fini(&f);
    if (err != 0) {
        mu_agent_log(s, "the failure cannot be told: %s", muster_strerror(err));
        return;
    }
    if (r->op_busy || !r->store_open) {
        take_first(r, mu_buf_span(&r->op_text));
        return;
    }
    r->publishes = true;
    r->op_values[0] = (struct mu_span){0};
    r->op_values[1] = mu_buf_span(&r->op_text);
    submit(r, MU_STORE_COMPARE_SET, 0, 2);
}

void mu_agent_failure_read(struct mu_agent_round *r)
{
    if (!r->op_busy && r->store_open && !r->closing) {
        r->publishes = false;
        submit(r, MU_STORE_GET, MU_STORE_NOWAIT, 0);
    }
}
