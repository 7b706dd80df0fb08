/* Calls that go on, in the table of their session; and answers. */
#include "service/wire/rpc_server.h"

int mu_rpc_served_add(struct mu_rpc_served *call, const struct mu_rpc_served_ops *ops,
                      struct mu_rpc_session *session, uint64_t id)
{
    call->ops = ops;
    call->session = session;
    call->id = id;
    return mu_map_insert(&session->calls, &call->by_id, mu_span(&call->id, sizeof(call->id)));
}

void mu_rpc_served_remove(struct mu_rpc_served *call)
{
    mu_map_remove(&call->session->calls, &call->by_id);
}

struct mu_rpc_served *mu_rpc_served_find(struct mu_rpc_session *session, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&session->calls, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_served, by_id);
}

void mu_rpc_served_free_all(struct mu_rpc_session *session)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&session->calls, NULL)) != NULL) {
        struct mu_rpc_served *call = MU_CONTAINER_OF(node, struct mu_rpc_served, by_id);

        call->ops->free(call);
    }
    mu_map_fini(&session->calls);
}

/* --- events ----------------------------------------------------------------------------------- */

static void take_item(struct mu_rpc_session *session, struct mu_rpc_served *call,
                      const struct mu_rpc_event *event)
{
    if (call != NULL && call->ops->item != NULL) {
        call->ops->item(call, event->payload);
    }
    /* Answered or not, and wanted or not: it is dealt with. */
    (void)mu_rpc_consumed(&session->rpc, mu_env_now(session->server->env), event->id,
                          event->payload.len);
}

void mu_rpc_served_event(struct mu_rpc_session *session, const struct mu_rpc_event *event)
{
    /* A call that is not found was answered, though its answer may not have left yet. */
    struct mu_rpc_served *call =
        event->type == MU_RPC_EV_CALL ? NULL : mu_rpc_served_find(session, event->id);

    switch (event->type) {
    case MU_RPC_EV_CALL:
        session->server->ops->call(session, event);
        break;
    case MU_RPC_EV_CANCEL:
        if (call != NULL) {
            call->ops->cancel(call, event->status);
        }
        break;
    case MU_RPC_EV_CREDIT:
        if (call != NULL) {
            call->ops->credit(call);
        }
        break;
    case MU_RPC_EV_ITEM:
        take_item(session, call, event);
        break;
    case MU_RPC_EV_END:
        if (call != NULL && call->ops->end != NULL) {
            call->ops->end(call);
        }
        break;
    case MU_RPC_EV_REPLY: /* The server calls nobody. */
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_BYE:
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
        break;
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

int mu_rpc_session_item(struct mu_rpc_session *session, uint64_t id, struct mu_span payload)
{
    int err = mu_rpc_item(&session->rpc, mu_env_now(session->server->env), id, payload);

    if (err == 0) {
        mu_rpc_session_touch(session);
    }
    return err;
}

void mu_rpc_session_reply(struct mu_rpc_session *session, uint64_t id, int status,
                          struct mu_span payload)
{
    struct mu_now now = mu_env_now(session->server->env);
    int err = mu_rpc_reply(&session->rpc, now, id, status, payload);

    if (err == MUSTER_ELIMIT) {
        err = mu_rpc_reply(&session->rpc, now, id, MUSTER_ELIMIT,
                           MU_SPAN_LIT("the answer is longer than the client takes"));
    }
    if (err == MUSTER_ENOMEM) {
        /* What was done is done; an answer with content is lost, one without is not. */
        mu_rpc_fail(&session->rpc, now, id,
                    status == 0 && payload.len != 0 ? MUSTER_ENOMEM : status);
    }
    mu_rpc_session_touch(session);
}
