#include "proto/rpc/rpc.h"

#include "core/alloc.h"
#include "proto/rpc/rpc_internal.h"

struct mu_rpc_config mu_rpc_config_defaults(void)
{
    return (struct mu_rpc_config){
        .name = "",
        .grace_ms = 10000,
        .beat_ms = 5000,
        .dead_ms = 15000,
        .frame_bytes_max = UINT32_C(64) << 20,
        .call_window_bytes = UINT32_C(1) << 20,
        .item_window_bytes = UINT32_C(256) << 10,
        .calls_max = 65536,
        .output_bytes_high = UINT32_C(1) << 20,
        .output_bytes_max = UINT32_C(1) << 30,
    };
}

static bool config_is_valid(const struct mu_rpc_config *c)
{
    return (c->role == MU_RPC_CLIENT || c->role == MU_RPC_SERVER) &&
           c->frame_bytes_max >= MU_RPC_FRAME_MIN && c->call_window_bytes >= MU_RPC_CREDIT_MIN &&
           c->item_window_bytes != 0 && c->calls_max != 0 &&
           (c->name == NULL || strlen(c->name) <= MU_RPC_NAME_MAX) &&
           c->credential.len <= MU_RPC_CREDENTIAL_MAX;
}

int mu_rpc_init(struct mu_rpc *r, const struct mu_rpc_config *config)
{
    if (!config_is_valid(config)) {
        return MUSTER_EINVAL;
    }
    *r = (struct mu_rpc){.config = *config, .unlinked_at = MU_MONO_NEVER};
    if (r->config.name == NULL) {
        r->config.name = "";
    }
    mu_buf_init(&r->in, config->frame_bytes_max);
    /* The callers of mu_rpc_reserve() decide what may be kept. */
    mu_buf_init(&r->out, SIZE_MAX / 4);
    mu_buf_init(&r->ctl, 2 * MU_RPC_HELLO_MAX);
    mu_buf_init(&r->lent, SIZE_MAX / 4);
    mu_map_init(&r->calls, config->seed);
    mu_heap_init(&r->timers);
    mu_list_init(&r->calls_out);
    mu_list_init(&r->calls_in);
    mu_list_init(&r->due);
    mu_list_init(&r->queue);
    mu_list_init(&r->failed);
    r->fail_at = MU_MONO_NEVER;
    mu_list_init(&r->stalled_out);
    mu_list_init(&r->stalled_in);
    mu_list_init(&r->spare);
    mu_list_init(&r->loans);
    r->own_next = mu_rpc_own_first(r);
    r->peer_next = mu_rpc_peer_first(r);
    r->grace_ms = config->grace_ms;
    mu_rpc_set_beats(r, 0, 0);
    mu_rpc_begin_life(r);
    return 0;
}

static void free_list(struct mu_list *head, size_t offset)
{
    struct mu_list *at;

    while ((at = mu_list_pop(head)) != NULL) {
        struct mu_rpc_entry *e = (struct mu_rpc_entry *)(void *)((char *)at - offset);

        mu_list_remove(&e->due);
        mu_buf_fini(&e->held);
        mu_free(e);
    }
}

void mu_rpc_trim(struct mu_rpc *r)
{
    mu_buf_trim(&r->out, 0);
    if (r->head_len == 0 && !r->has_event) {
        mu_buf_reset(&r->in);
        mu_buf_trim(&r->in, 0);
    }
    free_list(&r->spare, offsetof(struct mu_rpc_entry, due));
    r->spare_count = 0;
}

void mu_rpc_fini(struct mu_rpc *r)
{
    free_list(&r->calls_out, offsetof(struct mu_rpc_entry, all));
    free_list(&r->calls_in, offsetof(struct mu_rpc_entry, all));
    free_list(&r->due, offsetof(struct mu_rpc_entry, due)); /* the calls that are ENDED */
    free_list(&r->spare, offsetof(struct mu_rpc_entry, due));
    mu_rpc_loans_drop(r);
    mu_map_fini(&r->calls);
    mu_buf_fini(&r->in);
    mu_buf_fini(&r->out);
    mu_buf_fini(&r->ctl);
    mu_buf_fini(&r->lent);
    mu_free(r->errmsg);
    r->errmsg = NULL;
}

int mu_rpc_usable(const struct mu_rpc *r)
{
    if (r->poison != 0) {
        return r->poison;
    }
    return r->closed ? MUSTER_ECLOSED : 0;
}

void mu_rpc_enter(struct mu_rpc *r, struct mu_now now)
{
    mu_mono_t asked;

    r->now = now;
    /* It is unknown whether the other end was silent while we were away: its silence counts from
     * now. */
    asked = mu_rpc_link_deadline(r);
    if (mu_mono_reached(mu_mono_add_ms(asked, r->beat_ms), now.mono)) {
        mu_trace(&r->config.trace, "rpc.tilt", mu_mono_since(asked, now.mono), 0);
        r->last_rx = now.mono;
    }
}

/* Writes the last frame of a link, unless there is no memory for it. */
static void put_refuse(struct mu_rpc *r, int code, const struct mu_errmsg *why)
{
    struct mu_rpc_status s = {.status = code, .payload = mu_span_str(why->text)};
    uint8_t room[4 + MU_ERRMSG_CAP];
    struct mu_buf payload = {.data = room, .cap = sizeof(room), .max = sizeof(room)};

    if (mu_rpc_status_encode(&payload, &s) == 0 &&
        mu_buf_reserve(&r->ctl, MU_RPC_HEADER + payload.len) == 0) {
        mu_rpc_put_control(r, &r->ctl, MU_RPC_REFUSE, mu_buf_span(&payload));
    }
}

int mu_rpc_violate(struct mu_rpc *r, int code, const struct mu_errmsg *why)
{
    mu_trace(&r->config.trace, "rpc.violation", (uint64_t)-code, 0);
    r->poison = code;
    r->closed = true;
    r->errmsg = mu_strndup(why->text, strlen(why->text));
    mu_rpc_end_all(r, code);
    mu_rpc_cut_output(r);
    if (r->link != MU_RPC_LINK_NONE) {
        put_refuse(r, code, why);
        r->link = MU_RPC_LINK_OVER;
    }
    return code;
}

int mu_rpc_close(struct mu_rpc *r, struct mu_now now)
{
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err == MUSTER_ECLOSED ? 0 : err;
    }
    mu_rpc_enter(r, now);
    if (r->link == MU_RPC_LINK_DIALLED || r->link == MU_RPC_LINK_UP) {
        err = mu_buf_reserve(&r->ctl, MU_RPC_HEADER);
        if (err != 0) {
            return err;
        }
        mu_rpc_put_control(r, &r->ctl, MU_RPC_BYE, (struct mu_span){0});
        r->link = MU_RPC_LINK_OVER;
    }
    r->closed = true;
    mu_rpc_end_all(r, MUSTER_ECLOSED);
    mu_rpc_cut_output(r);
    return 0;
}

int mu_rpc_drain(struct mu_rpc *r, struct mu_now now, const char *why)
{
    struct mu_rpc_status s = {.status = MUSTER_EDRAIN, .payload = mu_span_str(why)};
    uint8_t room[4 + MU_RPC_MESSAGE_MAX];
    struct mu_buf payload = {.data = room, .cap = sizeof(room), .max = sizeof(room)};
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err;
    }
    mu_rpc_enter(r, now);
    if (r->link != MU_RPC_LINK_UP || r->drain_told) {
        return 0;
    }
    (void)mu_rpc_status_encode(&payload, &s); /* cut to what fits */
    err = mu_buf_reserve(&r->ctl, MU_RPC_HEADER + payload.len);
    if (err != 0) {
        return err;
    }
    mu_rpc_put_control(r, &r->ctl, MU_RPC_DRAIN, mu_buf_span(&payload));
    r->drain_told = true;
    return 0;
}

/* The local deadline of our call passed. The callee may not even have the call yet, so it is
 * told. */
static int expire(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    int err;

    switch (e->state) {
    case MU_RPC_OUT:
        err = mu_rpc_reserve(r, 0);
        if (err != 0) {
            return err;
        }
        mu_rpc_put(r, MU_RPC_CANCEL, mu_rpc_wire_id(r, e), (struct mu_span){0});
        mu_rpc_end_own(r, e, MUSTER_ETIMEDOUT);
        return 0;
    case MU_RPC_QUEUED:
        err = mu_rpc_reserve(r, MU_RPC_OWN_REPLY);
        if (err != 0) {
            return err;
        }
        mu_rpc_reply_queued(r, e, MUSTER_ETIMEDOUT);
        return 0;
    case MU_RPC_SERVED:
        mu_rpc_cancel_served(r, e, MUSTER_ETIMEDOUT);
        return 0;
    case MU_RPC_ENDED:
    case MU_RPC_ORPHAN:
        break;
    }
    mu_heap_remove(&r->timers, &e->timer);
    return 0;
}

int mu_rpc_tick(struct mu_rpc *r, struct mu_now now)
{
    if (r->poison != 0) {
        return r->poison;
    }
    mu_rpc_enter(r, now);
    while (mu_mono_reached(mu_heap_deadline(&r->timers), now.mono)) {
        struct mu_heap_node *first = mu_heap_min(&r->timers);
        int err = expire(r, MU_CONTAINER_OF(first, struct mu_rpc_entry, timer));

        if (err != 0) {
            return err;
        }
    }
    mu_rpc_keep_alive(r);
    mu_rpc_settle(r);
    return 0;
}

mu_mono_t mu_rpc_deadline(const struct mu_rpc *r)
{
    if (mu_rpc_has_event(r)) {
        return (mu_mono_t){0};
    }
    return mu_mono_min(mu_mono_min(mu_heap_deadline(&r->timers), r->fail_at),
                       mu_rpc_link_deadline(r));
}

size_t mu_rpc_memory(const struct mu_rpc *r)
{
    size_t records = r->out_count + r->in_count + r->spare_count;

    return r->in.cap + r->out.cap + r->ctl.cap + r->lent.cap + r->held_bytes + r->loan_memory +
           records * sizeof(struct mu_rpc_entry) +
           (r->calls.bucket_count + r->calls.old_count) * sizeof(void *);
}

size_t mu_rpc_calls_out(const struct mu_rpc *r)
{
    return r->out_count;
}

size_t mu_rpc_calls_in(const struct mu_rpc *r)
{
    return r->in_count;
}

const char *mu_rpc_errmsg(const struct mu_rpc *r)
{
    if (r->errmsg != NULL) {
        return r->errmsg;
    }
    return r->poison == 0 ? "" : muster_strerror(r->poison);
}
