/*
 * The status of a run of PyTorch's `etcd` rendezvous: reads its state, then the keep-alive keys of
 * its version. The state says how many nodes there are, and the keep-alive keys which of them live;
 * neither has a name or an address.
 */
#include "service/rdzv/look.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "service/rdzv/etcd.h"

#define PATH_MAX_BYTES (64u << 10)
#define NAME_CAP       32

struct look {
    struct mu_rdzv_ask_events events;
    struct mu_rdzv_etcd_config config;
    struct mu_etcd *etcd;
    struct mu_etcd_call call;
    struct mu_etcd2_reply reply;
    struct mu_buf path;
    struct mu_retcd_state state;
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
    uint32_t timeout_ms;
    int status;
    struct mu_errmsg text;
};

static void on_closed(void *context)
{
    struct look *l = context;

    l->events.done(l->events.context, l->status, l->text.text);
    mu_etcd2_reply_fini(&l->reply);
    mu_buf_fini(&l->path);
    mu_free(l);
}

static void end(struct look *l, int status, const char *text)
{
    l->status = mu_err(&l->text, status, "%s", text);
    mu_etcd_close(l->etcd, on_closed, l);
}

/* --- the answer ------------------------------------------------------------------------------- */

/* Marks the nodes that have a keep-alive key, and for how long it was not renewed. */
static void mark_alive(const struct mu_etcd2_reply *listing, struct mu_rdzv_member_view *members,
                       bool *alive, size_t count)
{
    for (size_t i = 0; i < listing->node_count; i++) {
        const struct mu_etcd2_node *n = &listing->nodes[i];
        const char *digits = memrchr(n->key.data, '_', n->key.len);
        size_t len = digits == NULL ? 0 : n->key.len - (size_t)(digits - (const char *)n->key.data);
        char number[24];
        unsigned long rank;
        char *rest;

        if (len < 2 || len > sizeof(number) || n->dir || n->key.len < len + 5 ||
            memcmp(digits - 5, "/rank", 5) != 0) {
            continue;
        }
        memcpy(number, digits + 1, len - 1);
        number[len - 1] = '\0';
        rank = strtoul(number, &rest, 10);
        if (*rest == '\0' && rank < count) {
            alive[rank] = true;
            members[rank].silent_ms = n->ttl_s > 0 && n->ttl_s < MU_RETCD_RANK_TTL_S
                                          ? (uint64_t)(MU_RETCD_RANK_TTL_S - n->ttl_s) * 1000
                                          : 0;
        }
    }
}

/* One sentence, where there is something to say. */
static const char *describe(const struct mu_retcd_state *s, const bool *alive, char *text,
                            size_t cap)
{
    size_t dead = 0;

    text[0] = '\0';
    for (size_t i = 0; s->status == MU_RETCD_FINAL && i < s->participants; i++) {
        if (!alive[i]) {
            (void)snprintf(text, cap, "the keep-alive key of rank %zu%s has ended", i,
                           dead++ > 0 ? " and others" : "");
        }
    }
    if (s->status == MU_RETCD_SETUP || s->status == MU_RETCD_OTHER) {
        (void)snprintf(text, cap, "a round is being set up");
    } else if (s->status == MU_RETCD_FROZEN) {
        (void)snprintf(text, cap, "%zu of %zu have confirmed", s->keep_alives, s->participants);
    }
    return text;
}

static int tell_run(struct look *l, const struct mu_etcd2_reply *listing)
{
    const struct mu_retcd_state *s = &l->state;
    bool final = s->status == MU_RETCD_FINAL;
    size_t count = s->participants;
    size_t each = sizeof(struct mu_rdzv_member_view) + NAME_CAP + sizeof(bool);
    struct mu_rdzv_member_view *members = mu_calloc(count + 1, each);
    char *names = (char *)(members + count + 1);
    bool *alive = (bool *)(names + (count + 1) * NAME_CAP);
    char text[96];
    struct mu_rdzv_run_view view = {
        .run_id = l->run_id,
        .state = s->status == MU_RETCD_CLOSED ? "closed"
                 : final                      ? "running"
                                              : "gathering",
        .round = s->version,
        .restarts_left = UINT32_MAX,
        .gathering =
            s->status == MU_RETCD_JOINABLE || s->status == MU_RETCD_FROZEN ? (uint32_t)count : 0,
        .running = final ? (uint32_t)count : 0,
        .waiting = (uint32_t)s->waiting,
        .member_count = s->status == MU_RETCD_CLOSED ? 0 : count,
        .members = members,
    };

    if (members == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        char *name = names + i * NAME_CAP;

        (void)snprintf(name, NAME_CAP, "rank_%zu", i);
        members[i] = (struct mu_rdzv_member_view){.node = name,
                                                  .addr = "-",
                                                  .place = final ? "running" : "gathering",
                                                  .rank = final ? (int64_t)i : -1};
    }
    if (listing != NULL) {
        mark_alive(listing, members, alive, count);
    }
    view.text = describe(s, alive, text, sizeof(text));
    l->events.run(l->events.context, &view);
    mu_free(members);
    return 0;
}

static void tell(struct look *l, const struct mu_etcd2_reply *listing)
{
    int err = tell_run(l, listing);

    end(l, err, err == 0 ? "" : muster_strerror(err));
}

/* --- asking ----------------------------------------------------------------------------------- */

static int ask(struct look *l, const char *tail, void (*done)(struct mu_etcd_call *call))
{
    int err;

    mu_buf_reset(&l->path);
    err = mu_rdzv_etcd_path(&l->path, &l->config, l->run_id, tail);
    if (err == 0) {
        l->call = (struct mu_etcd_call){
            .method = "GET",
            .path = (const char *)mu_buf_span(&l->path).data,
            .repeat = true,
            .v2 = true,
            .timeout_ms = l->timeout_ms,
            .done = done,
        };
        mu_etcd_submit(l->etcd, &l->call);
    }
    return err;
}

/* False: the look has ended. */
static bool take_reply(struct look *l)
{
    struct mu_etcd_call *call = &l->call;

    if (call->status != 0) {
        struct mu_errmsg text = call->errmsg;

        end(l, call->status == MUSTER_ETIMEDOUT ? MUSTER_ERDZV_TIMEOUT : MUSTER_ERDZV_CONN,
            text.text);
        return false;
    }
    if (mu_etcd2_reply_decode(&l->reply, call->text) != 0 ||
        (l->reply.code == 0 && l->reply.node_count == 0)) {
        end(l, MUSTER_ERDZV_STATE, "etcd's answer cannot be read");
        return false;
    }
    return true;
}

static void on_listed(struct mu_etcd_call *call)
{
    struct look *l = MU_CONTAINER_OF(call, struct look, call);

    if (take_reply(l)) {
        tell(l, l->reply.code == 0 ? &l->reply : NULL);
    }
}

static void on_state(struct mu_etcd_call *call)
{
    struct look *l = MU_CONTAINER_OF(call, struct look, call);
    char tail[64];
    int err;

    if (!take_reply(l)) {
        return;
    }
    if (l->reply.code != 0) {
        end(l, MUSTER_ENOENT, "there is no such run");
        return;
    }
    if (mu_retcd_state_decode(l->reply.nodes[0].value, &l->state) != 0) {
        end(l, MUSTER_ERDZV_STATE,
            "the key active_version does not hold the state of a rendezvous");
        return;
    }
    if (l->state.status != MU_RETCD_FINAL) {
        tell(l, NULL);
        return;
    }
    (void)snprintf(tail, sizeof(tail), "v_%" PRIu64 "?quorum=true", l->state.version);
    err = ask(l, tail, on_listed);
    if (err != 0) {
        end(l, err, muster_strerror(err));
    }
}

int mu_rdzv_etcd_look(struct mu_env *env, const struct mu_rdzv_params *params, uint32_t timeout_ms,
                      const struct mu_rdzv_ask_events *events, struct mu_errmsg *reterr_msg)
{
    struct look *l = mu_calloc(1, sizeof(*l));
    int err;

    if (l == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    l->events = *events;
    l->timeout_ms = timeout_ms;
    (void)snprintf(l->run_id, sizeof(l->run_id), "%s", params->run_id);
    mu_etcd2_reply_init(&l->reply);
    mu_buf_init(&l->path, PATH_MAX_BYTES);
    err = mu_rdzv_etcd_configure(&l->config, params, reterr_msg);
    err = err != 0 ? err : mu_rdzv_etcd_client(&l->config, env, &l->etcd, reterr_msg);
    if (err != 0) {
        mu_free(l);
        return err;
    }
    err = ask(l, "active_version?quorum=true", on_state);
    if (err != 0) {
        mu_etcd_close(l->etcd, NULL, NULL);
        mu_buf_fini(&l->path);
        mu_free(l);
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    return 0;
}
