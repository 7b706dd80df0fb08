/* Watches: each is a machine (proto/etcd/watch.h), a call that reads, a stream and a timer. */
#include "service/etcd/etcd_internal.h"

static void pump(struct mu_etcd_watch *w);

static void on_read_done(struct mu_etcd_call *call)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(call, struct mu_etcd_watch, read);

    mu_etcd_watcher_read_done(&w->watcher, &call->asker.answer, mu_etcd_now(w->etcd));
    pump(w);
}

static void read_range(struct mu_etcd_watch *w)
{
    w->read = (struct mu_etcd_call){
        .path = mu_etcd_op_path(MU_ETCD_RANGE),
        .body = mu_buf_span(&w->watcher.body),
        .repeat = true,
        .done = on_read_done,
    };
    mu_etcd_submit(w->etcd, &w->read);
}

static void on_head(struct mu_http *http)
{
    (void)http;
}

static size_t on_data(struct mu_http *http, struct mu_span in)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(http, struct mu_etcd_watch, http);
    size_t all = in.len;

    while (in.len > 0) {
        in = mu_span_skip(in,
                          mu_etcd_watcher_recv(&w->watcher, http->code, in, mu_etcd_now(w->etcd)));
        pump(w);
    }
    return all;
}

static void on_done(struct mu_http *http, int status)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(http, struct mu_etcd_watch, http);
    struct mu_etcd_exchange x = mu_etcd_exchange_of(w->etcd, http, status, w->watcher.endpoint);

    mu_etcd_watcher_stream_done(&w->watcher, &x, mu_etcd_now(w->etcd));
    pump(w);
}

static void open_stream(struct mu_etcd_watch *w)
{
    static const struct mu_http_events events = {on_head, on_data, on_done};
    struct mu_http_request q = {.method = "POST", .body = mu_buf_span(&w->watcher.body)};
    int err;

    w->http.on = &events;
    err = mu_etcd_exchange(w->etcd, &w->http, w->watcher.endpoint, &q, "/v3/watch", false);
    if (err != 0) {
        mu_etcd_watcher_unsent(&w->watcher, err, mu_etcd_now(w->etcd));
    }
}

static void end(struct mu_etcd_watch *w)
{
    struct mu_etcd *etcd = w->etcd;

    mu_env_timer_arm(etcd->env, &w->timer, MU_MONO_NEVER);
    mu_list_remove(&w->link);
    w->errmsg = w->watcher.errmsg;
    w->ended(w, w->watcher.verdict);
    mu_etcd_check_closed(etcd);
}

static void act(struct mu_etcd_watch *w, enum mu_etcd_watcher_action action)
{
    switch (action) {
    case MU_ETCD_WATCHER_READ:
        read_range(w);
        break;
    case MU_ETCD_WATCHER_STREAM:
        open_stream(w);
        break;
    case MU_ETCD_WATCHER_CANCEL_READ:
        mu_etcd_cancel(&w->read);
        break;
    case MU_ETCD_WATCHER_CANCEL_STREAM:
        mu_env_http_cancel(w->etcd->env, &w->http);
        break;
    case MU_ETCD_WATCHER_AUTHENTICATE:
        mu_etcd_authenticate(w->etcd);
        break;
    case MU_ETCD_WATCHER_CHANGE:
        w->change(w, &w->watcher.change);
        break;
    case MU_ETCD_WATCHER_TOLD:
        if (w->told != NULL) {
            w->told(w);
        }
        break;
    case MU_ETCD_WATCHER_READY:
        if (w->ready != NULL) {
            w->ready(w);
        }
        break;
    case MU_ETCD_WATCHER_END:
        break;
    }
}

static void pump(struct mu_etcd_watch *w)
{
    mu_mono_t now = mu_etcd_now(w->etcd);
    enum mu_etcd_watcher_action action;

    if (w->pumping) {
        return; /* The owner cancels it in a callback: the pump that made that goes on. */
    }
    w->pumping = true;
    while ((action = mu_etcd_watcher_next(&w->watcher, now)) != 0 &&
           action != MU_ETCD_WATCHER_END) {
        w->next = w->watcher.next;
        act(w, action);
    }
    w->pumping = false;
    if (action == MU_ETCD_WATCHER_END) {
        end(w);
    } else {
        mu_env_timer_arm(w->etcd->env, &w->timer, w->watcher.wake);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(timer, struct mu_etcd_watch, timer);

    mu_etcd_watcher_tick(&w->watcher, mu_etcd_now(w->etcd));
    pump(w);
}

void mu_etcd_watch_start(struct mu_etcd *etcd, struct mu_etcd_watch *w)
{
    struct mu_etcd_watcher_config config = {
        .key = w->key,
        .end = w->end,
        .current = w->current,
        .prev_kv = w->prev_kv,
        .puts_only = w->puts_only,
        .from = w->from,
    };
    uint64_t seed;

    mu_env_entropy(etcd->env, &seed, sizeof(seed));
    w->etcd = etcd;
    w->next = w->from;
    mu_timer_init(&w->timer, on_timer);
    mu_list_init(&w->link);
    mu_list_push(&etcd->watches, &w->link);
    mu_etcd_watcher_start(&w->watcher, &etcd->route, &config, seed, mu_etcd_now(etcd));
    pump(w);
}

void mu_etcd_watch_stop(struct mu_etcd_watch *w, int why)
{
    if (w->watcher.state != MU_ETCD_WATCHER_IDLE) {
        mu_etcd_watcher_stop(&w->watcher, why, mu_etcd_now(w->etcd));
        pump(w);
    }
}

void mu_etcd_watch_cancel(struct mu_etcd_watch *w)
{
    mu_etcd_watch_stop(w, MUSTER_ECANCELED);
}

void mu_etcd_watch_authed(struct mu_etcd_watch *w, int status, const char *text)
{
    mu_etcd_watcher_authed(&w->watcher, status, text, mu_etcd_now(w->etcd));
    pump(w);
}
