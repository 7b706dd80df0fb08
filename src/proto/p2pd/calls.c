#include "proto/p2pd/calls.h"

#include <string.h>

#include <muster/error.h>

#include "proto/p2pd/calls_internal.h"

#define BIT(type) (1u << (type))

void mu_p2pd_calls_init(struct mu_p2pd_calls *calls, const struct mu_p2pd_calls_config *config)
{
    *calls = (struct mu_p2pd_calls){.config = *config};
    mu_prng_seed(&calls->prng, config->seed);
    mu_p2pd_names_init(&calls->names, config->name_len_max, mu_prng_u64(&calls->prng));
    mu_list_init(&calls->list);
    mu_list_init(&calls->due);
    mu_list_init(&calls->due_users);
    mu_list_init(&calls->starving);
    mu_heap_init(&calls->timers);
}

void mu_p2pd_calls_clear(struct mu_p2pd_calls *calls)
{
    mu_p2pd_names_drop(&calls->names, NULL);
    while (!mu_list_empty(&calls->list)) {
        mu_p2pd_unary_drop(MU_CONTAINER_OF(calls->list.next, struct mu_p2pd_unary, link));
    }
}

void mu_p2pd_calls_fini(struct mu_p2pd_calls *calls)
{
    mu_p2pd_names_fini(&calls->names);
}

/* --- what a user hears ------------------------------------------------------------------------ */

void mu_p2pd_user_tell(struct mu_p2pd_user *user, const struct mu_p2pd_call *m)
{
    if (user->failed) {
        return;
    }
    user->failed = mu_p2pd_conn_tell(user->conn, m) != 0;
    mu_p2pd_user_due(user, user->failed ? MU_P2PD_ACTION_CLOSE : MU_P2PD_ACTION_SEND);
}

void mu_p2pd_user_tell_simply(struct mu_p2pd_user *user, struct mu_span id,
                              enum mu_p2pd_call_kind kind, const char *text)
{
    struct mu_p2pd_call m = {.kind = kind, .id = id, .data = mu_span_str(text)};

    mu_p2pd_user_tell(user, &m);
}

void mu_p2pd_user_answer(struct mu_p2pd_user *user, struct mu_span id, const char *error)
{
    mu_p2pd_user_tell_simply(user, id, error == NULL ? MU_P2PD_NOTHING : MU_P2PD_DAEMON_ERROR,
                             error == NULL ? "" : error);
}

void mu_p2pd_user_sent(struct mu_p2pd_user *user)
{
    while (!mu_list_empty(&user->waiting) && user->conn->out.len <= user->all->config.high_bytes &&
           !user->failed) {
        mu_p2pd_unary_deliver(
            MU_CONTAINER_OF(mu_list_pop(&user->waiting), struct mu_p2pd_unary, waiting));
    }
    mu_p2pd_user_due(user, MU_P2PD_ACTION_RESUME);
}

/* --- what a user says ------------------------------------------------------------------------- */

static struct mu_p2pd_unary *find(const struct mu_map *map, struct mu_span id)
{
    struct mu_map_node *node = mu_map_find(map, id);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_p2pd_unary, by_id);
}

bool mu_p2pd_user_call(struct mu_p2pd_user *user, struct mu_p2pd_unary *call, struct mu_span name,
                       const struct mu_p2pd_call *m, struct mu_span message)
{
    struct mu_p2pd_calls *calls = user->all;
    struct mu_peer_id peer;
    const char *why = NULL;

    if (mu_peer_id_from_bytes(&peer, m->peer) != 0) {
        why = "failed to parse peer ID: it is not the multihash of a key";
    } else if (m->name.len == 0 || m->name.len > calls->config.name_len_max) {
        why = "failed to negotiate protocol: there is none, or its name is too long";
    } else if (find(&user->calls, m->id) != NULL) {
        why = "a call with that id is under way";
    } else if (call == NULL || calls->stats.unary >= calls->config.calls_max) {
        why = "there are as many calls under way as may be";
    } else {
        mu_p2pd_unary_init(calls, call, true, &peer, name);
        memcpy(call->id, m->id.data, sizeof(call->id));
        if (mu_buf_append(&call->out, message) != 0 ||
            mu_map_insert(&user->calls, &call->by_id, mu_span(call->id, sizeof(call->id))) != 0) {
            mu_buf_fini(&call->out);
            why = "out of memory";
        }
    }
    if (why != NULL) {
        mu_p2pd_user_tell_simply(user, m->id, MU_P2PD_DAEMON_ERROR, why);
        return false;
    }
    mu_p2pd_unary_begin(call);
    call->user = user;
    user->held_bytes += call->out.len;
    calls->stats.calls++;
    calls->stats.calls_ever++;
    mu_p2pd_call_due(call, MU_P2PD_ACTION_OPEN);
    mu_p2pd_call_due(call, MU_P2PD_ACTION_WRITE);
    return true;
}

void mu_p2pd_user_said(struct mu_p2pd_user *user, const struct mu_p2pd_call *m,
                       struct mu_span message)
{
    struct mu_p2pd_unary *call = NULL;

    if (m->kind == MU_P2PD_CANCEL) {
        call = find(&user->calls, m->id);
        if (call != NULL) {
            user->all->stats.canceled++;
            mu_p2pd_unary_drop(call);
            mu_p2pd_user_tell_simply(user, m->id, MU_P2PD_CANCEL, "");
        }
    } else if (m->kind == MU_P2PD_UNARY_RESPONSE) {
        call = find(&user->served, m->id);
        if (call != NULL && call->state == MU_P2PD_UNARY_ASKED) {
            mu_p2pd_unary_answer(call, message);
        }
    }
}

/* --- users ------------------------------------------------------------------------------------ */

void mu_p2pd_user_init(struct mu_p2pd_calls *calls, struct mu_p2pd_user *user,
                       struct mu_p2pd_conn *conn)
{
    *user = (struct mu_p2pd_user){.conn = conn, .all = calls};
    mu_list_init(&user->due);
    mu_list_init(&user->waiting);
    mu_map_init(&user->calls, mu_prng_u64(&calls->prng));
    mu_map_init(&user->served, mu_prng_u64(&calls->prng));
}

void mu_p2pd_user_leave(struct mu_p2pd_user *user)
{
    struct mu_map_node *node;

    user->failed = true; /* It is told nothing any more. */
    mu_p2pd_names_drop(&user->all->names, user);
    while ((node = mu_map_next(&user->calls, NULL)) != NULL ||
           (node = mu_map_next(&user->served, NULL)) != NULL) {
        mu_p2pd_unary_drop(MU_CONTAINER_OF(node, struct mu_p2pd_unary, by_id));
    }
    user->todo = 0;
    mu_list_remove(&user->due);
}

void mu_p2pd_user_fini(struct mu_p2pd_user *user)
{
    mu_map_fini(&user->calls);
    mu_map_fini(&user->served);
}

/* --- actions ---------------------------------------------------------------------------------- */

void mu_p2pd_call_due(struct mu_p2pd_unary *call, enum mu_p2pd_action_type type)
{
    if (call->todo == 0) {
        mu_list_push(&call->calls->due, &call->due);
    }
    call->todo |= BIT(type);
}

void mu_p2pd_user_due(struct mu_p2pd_user *user, enum mu_p2pd_action_type type)
{
    if (user->failed && type != MU_P2PD_ACTION_CLOSE) {
        return;
    }
    if (user->todo == 0) {
        mu_list_push(&user->all->due_users, &user->due);
    }
    user->todo |= BIT(type);
}

/* Takes the first action off; what is due once only is due no more. */
static enum mu_p2pd_action_type take(unsigned *todo, struct mu_list *due)
{
    unsigned type = 0;

    while ((*todo & BIT(type)) == 0) {
        type++;
    }
    *todo &= ~BIT(type);
    if (*todo == 0) {
        mu_list_remove(due);
    }
    return (enum mu_p2pd_action_type)type;
}

static void drop_after(struct mu_p2pd_unary *call, mu_mono_t now, uint32_t ms)
{
    struct mu_heap *timers = &call->calls->timers;

    mu_heap_remove(timers, &call->timer);
    mu_heap_insert(timers, &call->timer, mu_mono_add_ms(now, ms));
}

static void take_of_call(struct mu_p2pd_unary *call, mu_mono_t now, struct mu_p2pd_action *ret)
{
    struct mu_p2pd_calls *calls = call->calls;

    *ret = (struct mu_p2pd_action){.type = take(&call->todo, &call->due), .call = call};
    if (ret->type == MU_P2PD_ACTION_CONSUMED) {
        ret->len = call->consumed;
        call->consumed = 0;
    } else if (ret->type == MU_P2PD_ACTION_WRITE) {
        ret->bytes = mu_buf_span(&call->out);
        if (call->state == MU_P2PD_UNARY_ANSWERING) {
            drop_after(call, now, calls->config.request_ms);
        }
    } else if (ret->type == MU_P2PD_ACTION_END) {
        drop_after(call, now, calls->config.linger_ms);
    }
}

bool mu_p2pd_calls_next(struct mu_p2pd_calls *calls, mu_mono_t now, struct mu_p2pd_action *ret)
{
    struct mu_heap_node *late;

    while ((late = mu_heap_pop_due(&calls->timers, now)) != NULL) {
        mu_p2pd_unary_drop(MU_CONTAINER_OF(late, struct mu_p2pd_unary, timer));
    }
    if (!mu_list_empty(&calls->names.gone)) {
        *ret = (struct mu_p2pd_action){.type = MU_P2PD_ACTION_UNSERVE,
                                       .name = mu_p2pd_names_gone(&calls->names)};
    } else if (!mu_list_empty(&calls->due)) {
        take_of_call(MU_CONTAINER_OF(calls->due.next, struct mu_p2pd_unary, due), now, ret);
    } else if (!mu_list_empty(&calls->due_users)) {
        struct mu_p2pd_user *user =
            MU_CONTAINER_OF(calls->due_users.next, struct mu_p2pd_user, due);

        *ret = (struct mu_p2pd_action){.type = take(&user->todo, &user->due), .user = user};
    } else {
        return false;
    }
    return true;
}

mu_mono_t mu_p2pd_calls_deadline(const struct mu_p2pd_calls *calls)
{
    return mu_heap_deadline(&calls->timers);
}
