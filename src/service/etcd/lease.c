/* Leases: each is a machine (proto/etcd/lease.h), a call and a timer. */
#include "service/etcd/etcd_internal.h"

static void pump(struct mu_etcd_lease *l);

static void on_done(struct mu_etcd_call *call)
{
    struct mu_etcd_lease *l = MU_CONTAINER_OF(call, struct mu_etcd_lease, call);

    mu_etcd_holder_done(&l->holder, &call->asker.answer, call->asker.sent, mu_etcd_now(l->etcd));
    pump(l);
}

static void send(struct mu_etcd_lease *l)
{
    l->call = (struct mu_etcd_call){
        .path = l->holder.path,
        .body = mu_span_str(l->holder.body),
        .repeat = true,
        .timeout_ms = l->holder.timeout_ms,
        .done = on_done,
    };
    mu_etcd_submit(l->etcd, &l->call);
}

static void end(struct mu_etcd_lease *l)
{
    struct mu_etcd *etcd = l->etcd;

    mu_env_timer_arm(etcd->env, &l->timer, MU_MONO_NEVER);
    mu_list_remove(&l->link);
    l->errmsg = l->holder.errmsg;
    if (l->holder.stopping) {
        l->stopped(l);
    } else {
        l->lost(l, l->holder.verdict);
    }
    mu_etcd_check_closed(etcd);
}

static void pump(struct mu_etcd_lease *l)
{
    enum mu_etcd_holder_action action;

    while ((action = mu_etcd_holder_next(&l->holder)) != 0) {
        l->id = l->holder.id;
        l->ttl_s = l->holder.ttl_s;
        switch (action) {
        case MU_ETCD_HOLDER_SEND:
            send(l);
            break;
        case MU_ETCD_HOLDER_CANCEL:
            mu_etcd_cancel(&l->call);
            break;
        case MU_ETCD_HOLDER_GRANTED:
            l->granted(l);
            break;
        case MU_ETCD_HOLDER_END:
            end(l);
            return;
        }
    }
    mu_env_timer_arm(l->etcd->env, &l->timer, l->holder.wake);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_etcd_lease *l = MU_CONTAINER_OF(timer, struct mu_etcd_lease, timer);

    mu_etcd_holder_tick(&l->holder, mu_etcd_now(l->etcd));
    pump(l);
}

void mu_etcd_lease_start(struct mu_etcd *etcd, struct mu_etcd_lease *l)
{
    uint64_t number;

    mu_env_entropy(etcd->env, &number, sizeof(number));
    l->etcd = etcd;
    mu_timer_init(&l->timer, on_timer);
    mu_list_init(&l->link);
    mu_list_push(&etcd->leases, &l->link);
    mu_etcd_holder_start(&l->holder, (int64_t)(number >> 2 | 1), l->ttl_s < 1 ? 1 : l->ttl_s,
                         mu_etcd_now(etcd));
    pump(l);
}

void mu_etcd_lease_stop(struct mu_etcd_lease *l, bool revoke)
{
    if (l->holder.state != MU_ETCD_HOLDER_IDLE) {
        mu_etcd_holder_stop(&l->holder, revoke, mu_etcd_now(l->etcd));
        pump(l);
    }
}

void mu_etcd_lease_close(struct mu_etcd_lease *l)
{
    mu_etcd_holder_close(&l->holder, mu_etcd_now(l->etcd));
    pump(l);
}
