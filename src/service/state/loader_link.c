/* A donor as its loader sees it: a session, calls and their answers. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/state/loader_internal.h"

#define FOUND_MS 1000

static void on_ready(void *context)
{
    struct mu_state_link *k = context;

    k->ready = true;
    if (k->is_donor) {
        mu_state_fetching_ready(k);
    } else {
        mu_state_ask_ready(k);
    }
}

/* There was no session, or it was lost: all its calls have ended. */
static void fail(struct mu_state_link *k, int status, const char *text)
{
    k->ready = false;
    if (k->is_donor) {
        mu_state_fetching_failed(k, status, text);
    } else {
        mu_state_ask_failed(k, status, text);
    }
    mu_state_link_close(k);
    mu_state_loader_turn(k->loader);
}

static void on_failed(void *context, int status, const char *text)
{
    fail(context, status, text);
}

static void on_mismatch(void *context, bool silent)
{
    fail(context, silent ? MUSTER_ETIMEDOUT : MUSTER_ECONN,
         silent ? "it accepts connections but does not answer"
                : "it hung up; check that this is the address of a donor");
}

static void on_reply(struct mu_state_link *k, const struct mu_rpc_event *event)
{
    if (event->id == k->list_call || event->id == k->offer_call) {
        mu_state_ask_reply(k, event);
    } else if (event->id != 0 && (event->id == k->stream || event->id == k->have_call ||
                                  event->id == k->swarm_call)) {
        mu_state_fetching_reply(k, event);
    }
}

static void on_event(void *context, const struct mu_rpc_event *event)
{
    struct mu_state_link *k = context;

    switch (event->type) {
    case MU_RPC_EV_REPLY:
        on_reply(k, event);
        break;
    case MU_RPC_EV_ITEM:
        if (event->id == k->offer_call && event->id != 0) {
            mu_state_offer_item(k, event->payload);
        } else if (event->id == k->stream && event->id != 0) {
            mu_state_fetching_item(k, event->payload);
            break; /* it counts as consumed when it is hashed */
        }
        (void)mu_rpc_consumed(&k->client.rpc, mu_env_now(k->loader->env), event->id,
                              event->payload.len);
        break;
    case MU_RPC_EV_CREDIT:
        if (k->is_donor && k->loader->has_fetch) {
            mu_state_fetch_resume(&k->loader->fetch, k->donor);
        }
        break;
    case MU_RPC_EV_CALL:
        (void)mu_rpc_reply(&k->client.rpc, mu_env_now(k->loader->env), event->id, MUSTER_ENOMETHOD,
                           MU_SPAN_LIT("a loader serves no methods"));
        break;
    case MU_RPC_EV_BYE:
        fail(k, MUSTER_ECLOSED, "it has left");
        break;
    case MU_RPC_EV_REFUSED:
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_END:
    case MU_RPC_EV_CANCEL:
        break;
    }
}

static void on_turn_ended(void *context)
{
    struct mu_state_link *k = context;

    mu_state_fetching_heard(k);
    mu_state_loader_turn(k->loader);
}

static void on_closed(void *context)
{
    struct mu_state_link *k = context;
    struct mu_state_loader *l = k->loader;

    k->live = false;
    k->closing = false;
    k->ready = false;
    mu_free(k->bounce);
    k->bounce = NULL;
    if (k->wanted && l->phase == MU_STATE_FETCHING) {
        (void)mu_state_link_dial(k);
    }
    mu_state_loader_turn(l);
}

bool mu_state_link_dial(struct mu_state_link *k)
{
    struct mu_state_loader *l = k->loader;
    struct mu_rpc_config terms = mu_state_rpc_terms();
    /* A donor that was found may have left again; it is tried anew if it is worth it. */
    uint32_t found_ms = l->config.connect_ms < FOUND_MS ? l->config.connect_ms : FOUND_MS;
    struct mu_rpc_client_config config = {
        .addr = k->addr,
        .name = l->config.name,
        .connect_ms = k->found ? found_ms : l->config.connect_ms,
        .reconnect_ms = 1,
        .probe_ms = l->config.connect_ms,
        .greetings = 1,
        .terms = &terms,
    };
    struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .gave_up = on_failed,
        .event = on_event,
        .turn_ended = on_turn_ended,
        .closed = on_closed,
        .context = k,
    };

    if (k->live) {
        return true; /* also while it closes: then it is dialled again, if it is needed */
    }
    k->list_call = k->offer_call = k->stream = k->have_call = k->swarm_call = 0;
    if (mu_rpc_client_init(&k->client, l->env, &config, &events) != 0) {
        return false;
    }
    k->live = true;
    return true;
}

void mu_state_link_close(struct mu_state_link *k)
{
    if (k->live && !k->closing) {
        mu_state_fetching_unaim(k);
        k->closing = true;
        k->ready = false;
        k->stream = k->have_call = k->swarm_call = k->list_call = k->offer_call = 0;
        mu_rpc_client_close(&k->client);
    }
}

uint64_t mu_state_link_call(struct mu_state_link *k, const char *method, struct mu_span payload,
                            uint32_t timeout_ms)
{
    uint64_t id = 0;

    if (!k->ready || k->closing ||
        mu_rpc_client_call(&k->client, mu_span_str(method), payload, timeout_ms, &id) != 0) {
        return 0;
    }
    k->dirty = true;
    return id;
}

void mu_state_link_flush(struct mu_state_link *k)
{
    if (k->dirty && k->live && !k->closing) {
        k->dirty = false;
        mu_rpc_client_flush(&k->client);
    }
}
