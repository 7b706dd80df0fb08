/* The calls `promise`: others ask this node to host the run, or whether it knows a better host. And
 * `host`: who does. */
#include <stdio.h>

#include "core/alloc.h"
#include "service/server/rdzv_hub_internal.h"

static mu_mono_t mono(const struct mu_rdzv_lead *lead)
{
    return mu_env_now(lead->hub->env).mono;
}

static void free_asked(struct mu_rdzv_lead_ask *a)
{
    mu_rpc_served_remove(&a->base);
    mu_buf_fini(&a->legacy);
    mu_free(a);
}

static void asked_free(struct mu_rpc_served *base)
{
    struct mu_rdzv_lead_ask *a = MU_CONTAINER_OF(base, struct mu_rdzv_lead_ask, base);

    mu_succession_unasked(a->lead->machine, &a->asker);
    free_asked(a);
}

static void asked_cancel(struct mu_rpc_served *base, int why)
{
    mu_rpc_session_reply(base->session, base->id, why, mu_span_str(muster_strerror(why)));
    asked_free(base);
}

static void asked_credit(struct mu_rpc_served *base)
{
    (void)base; /* It gets no items. */
}

static const struct mu_rpc_served_ops asked_ops = {
    .cancel = asked_cancel,
    .credit = asked_credit,
    .free = asked_free,
};

static void reply(struct mu_rdzv_lead *lead, struct mu_rpc_session *session, uint64_t id,
                  const struct mu_rdzv_answer *answer)
{
    struct mu_buf *out = lead->hub->on.scratch;
    int err;

    mu_buf_reset(out);
    err = mu_rdzv_answer_encode(out, answer);
    mu_rpc_session_reply(session, id, err,
                         err == 0 ? mu_buf_span(out) : mu_span_str(muster_strerror(err)));
}

void mu_rdzv_lead_answer(struct mu_succession_asker *asker,
                         const struct mu_succession_answer *answer)
{
    struct mu_rdzv_lead_ask *a = asker->owner;
    const struct mu_rdzv_answer msg = {
        .kind = answer->kind == MU_SUCCESSION_RAISE       ? MU_RDZV_ANSWER_RAISE
                : answer->kind == MU_SUCCESSION_FOLLOW_IT ? MU_RDZV_ANSWER_FOLLOW
                                                          : MU_RDZV_ANSWER_FORGET,
        .term = answer->term,
        .addr = answer->address == NULL ? (struct mu_span){0} : mu_span_str(answer->address),
    };

    if (answer->kind == MU_SUCCESSION_LEFT) {
        asked_cancel(&a->base, MUSTER_ENOENT);
        return;
    }
    reply(a->lead, a->base.session, a->base.id, &msg);
    free_asked(a);
}

static void be_probed(struct mu_rdzv_lead *lead, struct mu_rpc_session *session, uint64_t id,
                      const struct mu_rdzv_promise *p)
{
    char addr[MU_RDZV_NAME_LEN_MAX + 1];
    const struct mu_succession_probe probe = {.term = p->term, .round = p->round, .address = addr};
    struct mu_succession_probe better = {0};

    (void)snprintf(addr, sizeof(addr), "%.*s", (int)p->addr.len, (const char *)p->addr.data);
    mu_succession_probed(lead->machine, mono(lead), &probe, &better);
    reply(lead, session, id,
          &(struct mu_rdzv_answer){
              .kind = MU_RDZV_ANSWER_PROBED,
              .term = better.term,
              .round = better.round,
              .addr = better.term == 0 ? (struct mu_span){0} : mu_span_str(better.address),
          });
    lead->wake(lead->context);
}

static int be_asked(struct mu_rdzv_lead *lead, struct mu_rpc_session *session, uint64_t id,
                    const struct mu_rdzv_promise *p)
{
    struct mu_rdzv_lead_ask *a = mu_calloc(1, sizeof(*a));
    struct mu_rdzv_legacy legacy = {0};

    if (a != NULL) {
        mu_buf_init(&a->legacy, MU_RDZV_LEGACY_MAX);
    }
    if (a == NULL || mu_buf_append(&a->legacy, p->legacy) != 0 ||
        mu_rpc_served_add(&a->base, &asked_ops, session, id) != 0) {
        if (a != NULL) {
            mu_buf_fini(&a->legacy);
        }
        mu_free(a);
        return MUSTER_ENOMEM;
    }
    a->lead = lead;
    a->asker.owner = a;
    (void)snprintf(a->asker.name, sizeof(a->asker.name), "%.*s", (int)p->node.len,
                   (const char *)p->node.data);
    a->asker.ask.term = p->term;
    a->asker.ask.promised = p->promised;
    mu_rdzv_lead_view(&a->asker.ask.view, &p->view);
    if (p->legacy.len != 0) {
        (void)mu_rdzv_legacy_decode(p->legacy, &legacy); /* It was, with the call. */
    }
    a->asker.ask.legacy = (struct mu_succession_legacy){.term = legacy.term,
                                                        .round = legacy.round,
                                                        .version = legacy.version,
                                                        .bytes = mu_buf_span(&a->legacy)};
    lead->asked(lead->context, p);
    mu_succession_asked(lead->machine, mono(lead), &a->asker);
    lead->wake(lead->context);
    return 0;
}

/* --- the call `host` -------------------------------------------------------------------------- */

void mu_rdzv_host_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                        const struct mu_rpc_event *event)
{
    const struct mu_succession *m = hub->lead == NULL ? NULL : hub->lead->machine;
    struct mu_span id;
    int err = mu_rdzv_run_id_decode(event->payload, &id);
    bool known = err == 0 && m != NULL && (id.len == 0 || mu_rdzv_lead_is(hub, id)) &&
                 (m->state == MU_SUCCESSION_FOLLOWING || m->state == MU_SUCCESSION_HOSTING);

    err = err == 0 && !known ? MUSTER_ENOENT : err;
    mu_rpc_session_reply(session, event->id, err,
                         mu_span_str(err == 0 ? m->host : muster_strerror(err)));
}

/* --- the call `promise` ----------------------------------------------------------------------- */

void mu_rdzv_promise_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                           const struct mu_rpc_event *event)
{
    struct mu_rdzv_promise promise;
    int err = mu_rdzv_promise_decode(event->payload, &promise);

    if (err == 0 && !mu_rdzv_lead_is(hub, promise.run_id)) {
        err = MUSTER_ENOENT;
    }
    if (err == 0 && promise.kind == MU_RDZV_PROMISE_PROBE) {
        be_probed(hub->lead, session, event->id, &promise);
    } else if (err == 0) {
        err = be_asked(hub->lead, session, event->id, &promise);
    }
    if (err != 0) {
        mu_rpc_session_reply(session, event->id, err, mu_span_str(muster_strerror(err)));
    }
}
