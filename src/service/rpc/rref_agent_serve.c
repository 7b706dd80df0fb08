/* Requests of other workers: the messages of the machine, fetches, and the making of values. */
#include "service/rpc/rref_agent_internal.h"

#include <string.h>

#include "core/alloc.h"

const char *const mu_rref_methods[MU_RREF_METHODS] = {
    "muster::RRef.fetch",  "muster::RRef.create", "muster::RRef.fork",  "muster::RRef.accept",
    "muster::RRef.delete", "muster::RRef.cancel", "muster::RRef.probe",
};

/* A fetch of another worker that came before the value was there. */
struct waiter {
    struct mu_list link; /* value->waiting */
    struct mu_rpc_in *in;
};

static struct mu_rref_agent *refs_of(struct mu_rpc_handler *handler, size_t index)
{
    return MU_CONTAINER_OF(handler - index, struct mu_rref_agent, handlers);
}

/* --- values ----------------------------------------------------------------------------------- */

static void answer_waiting(struct mu_rref_value *v, int status, struct mu_span content)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&v->waiting)) != NULL) {
        struct waiter *w = MU_CONTAINER_OF(it, struct waiter, link);

        mu_rpc_in_reply(w->in, status, content);
        mu_free(w);
    }
    while (!mu_list_empty(&v->local)) {
        mu_rref_fetch_end(MU_CONTAINER_OF(v->local.next, struct mu_rref_fetch, link), status,
                          content);
    }
}

static void complete(struct mu_rref_value *v, int status, struct mu_span content)
{
    if (mu_buf_append(&v->content, content) != 0) {
        status = MUSTER_ENOMEM;
    }
    v->ready = true;
    v->status = status;
    answer_waiting(v, status, mu_buf_span(&v->content));
}

static void on_made(struct mu_rpc_in *in, int status, struct mu_span message)
{
    struct mu_rref_value *v = in->asker;

    if (v->buried) {
        mu_rref_value_free(NULL, v);
        return;
    }
    complete(v, status, message);
}

void mu_rref_make(struct mu_rref_agent *refs, struct mu_rref_value *v, struct mu_span method,
                  struct mu_buf *message, const char *caller, int32_t caller_id)
{
    struct mu_errmsg msg;
    char quoted[160];
    int err =
        mu_rpc_agent_run(refs->agent, method, message, caller, caller_id, on_made, v, &v->running);

    if (err == 0) {
        return;
    }
    (void)mu_err(&msg, err, "%s cannot run %s: %s", refs->config.rref.name,
                 mu_span_quote(quoted, sizeof(quoted), method), muster_strerror(err));
    complete(v, err, mu_span_str(msg.text));
}

void mu_rref_bury(struct mu_rref_agent *refs, struct mu_rref_value *v)
{
    if (refs->config.freed != NULL) {
        refs->config.freed(refs->config.context, v->id);
    }
    answer_waiting(v, MUSTER_ENOENT,
                   MU_SPAN_LIT("the value was freed because no reference was left"));
    if (v->running != NULL) {
        v->buried = true;
        mu_rpc_in_cancel(v->running, MUSTER_ECANCELED); /* its answer frees the value */
        return;
    }
    mu_rref_value_free(&refs->table, v);
}

void mu_rref_serve_stop(struct mu_rref_agent *refs)
{
    struct mu_map_node *node = NULL;

    while ((node = mu_map_next(&refs->table.values, node)) != NULL) {
        struct mu_rref_value *v = MU_CONTAINER_OF(node, struct mu_rref_value, by_id);

        answer_waiting(v, MUSTER_ECLOSED, MU_SPAN_LIT("the owner was shut down"));
        if (v->running != NULL) {
            mu_rpc_in_cancel(v->running, MUSTER_ECLOSED);
        }
    }
}

/* --- fetches ---------------------------------------------------------------------------------- */

static int read_msg(struct mu_span message, struct mu_rref_msg *ret)
{
    struct mu_span in = mu_span_skip(message, message.len == 0 ? 0 : 1);
    int err =
        message.len == 0 || message.data[0] != 0 ? MUSTER_EPROTO : mu_rref_msg_decode(&in, ret);

    return err == 0 && in.len != 0 ? MUSTER_EPROTO : err;
}

static void on_fetch(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct mu_rref_agent *refs = refs_of(h, 0);
    struct mu_rref_value *v = NULL;
    struct mu_rref_msg msg;
    struct waiter *w;
    int err = read_msg(message, &msg);

    in->owner = NULL;
    v = err == 0 ? mu_rref_find_value(&refs->table, msg.rref) : NULL;
    if (v == NULL) {
        mu_rpc_in_reply(in, err != 0 ? err : MUSTER_ENOENT,
                        err != 0
                            ? MU_SPAN_LIT("the reference is malformed")
                            : MU_SPAN_LIT("the value does not exist, or does not exist any more"));
        return;
    }
    if (v->ready) {
        mu_rpc_in_reply(in, v->status, mu_buf_span(&v->content));
        return;
    }
    w = mu_calloc(1, sizeof(*w));
    if (w == NULL) {
        mu_rpc_in_reply(in, MUSTER_ENOMEM, MU_SPAN_LIT("there is no memory to wait for the value"));
        return;
    }
    w->in = in;
    in->owner = w;
    mu_list_push(&v->waiting, &w->link);
}

static void on_fetch_cancel(struct mu_rpc_in *in, int why)
{
    struct waiter *w = in->owner;

    mu_list_remove(&w->link);
    mu_free(w);
    mu_rpc_in_reply(in, why, mu_span_str(muster_strerror(why)));
}

/* --- messages --------------------------------------------------------------------------------- */

static void reply(struct mu_rref_agent *refs, struct mu_rpc_in *in, int verdict)
{
    struct mu_rref_answer answer = {refs->config.rref.life, mu_rref_floor(&refs->table),
                                    (enum mu_rref_verdict)verdict};
    uint8_t bytes[1 + MU_RREF_ANSWER_LEN] = {0};

    if (verdict < 0) {
        mu_rpc_in_reply(in, verdict, mu_span_str(muster_strerror(verdict)));
        return;
    }
    mu_rref_answer_encode(bytes + 1, &answer);
    mu_rpc_in_reply(in, 0, mu_span(bytes, sizeof(bytes)));
}

/* A guest cannot be called, so it cannot be asked for a sign of life. */
static bool turn_away(struct mu_rpc_in *in)
{
    if (in->caller_id >= 0) {
        return false;
    }
    mu_rpc_in_reply(in, MUSTER_EREFUSED,
                    MU_SPAN_LIT("a guest cannot hold a reference: it needs an id"));
    return true;
}

typedef int hear_msg(struct mu_rref_table *t, mu_mono_t now, const char *from,
                     const struct mu_rref_msg *msg);

static void hear(struct mu_rref_agent *refs, struct mu_rpc_in *in, struct mu_span message,
                 hear_msg *machine)
{
    struct mu_rref_msg msg;
    int verdict = read_msg(message, &msg);

    if (turn_away(in)) {
        return;
    }
    if (verdict == 0) {
        verdict = machine(&refs->table, mu_rref_agent_now(refs), in->caller, &msg);
    }
    reply(refs, in, verdict);
    mu_rref_agent_pump(refs);
}

static void on_fork(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    hear(refs_of(h, MU_RREF_FORK), in, message, mu_rref_on_fork);
}

static void on_accept(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    hear(refs_of(h, MU_RREF_ACCEPT), in, message, mu_rref_on_accept);
}

static void on_delete(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    hear(refs_of(h, MU_RREF_DELETE), in, message, mu_rref_on_delete);
}

static void on_cancel(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    hear(refs_of(h, MU_RREF_CANCEL), in, message, mu_rref_on_cancel);
}

static void on_probe(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    hear(refs_of(h, MU_RREF_PROBE), in, message, mu_rref_on_probe);
}

/* --- CREATE ----------------------------------------------------------------------------------- */

/* Makes the message of the arguments again, as it was before it was sent here. */
static int read_create(struct mu_span message, struct mu_rref_msg *ret, struct mu_buf *ret_method,
                       struct mu_buf *ret_args)
{
    struct mu_rpc_part *parts = NULL;
    size_t count = 0;
    struct mu_span head;
    int err = mu_rpc_msg_decode(message, &parts, &count);

    if (err == 0 && count == 0) {
        err = MUSTER_EPROTO;
    }
    if (err == 0) {
        head = parts[0].data;
        err = mu_rref_msg_decode(&head, ret);
    }
    if (err == 0) {
        err = mu_rpc_is_method(head) ? mu_buf_append(ret_method, head) : MUSTER_EPROTO;
    }
    if (err == 0) {
        err = mu_rpc_msg_head(ret_args, parts + 1, count - 1);
    }
    for (size_t i = 1; err == 0 && i < count; i++) {
        err = mu_buf_append(ret_args, parts[i].data);
    }
    mu_free(parts);
    return err;
}

static void on_create(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct mu_rref_agent *refs = refs_of(h, MU_RREF_CREATE);
    char caller[MU_RPC_WORKER_MAX + 1];
    int32_t caller_id = in->caller_id;
    struct mu_rref_value *v = NULL;
    struct mu_rref_msg msg;
    struct mu_buf method;
    struct mu_buf args;
    int verdict;

    if (turn_away(in)) {
        return;
    }
    memcpy(caller, in->caller, sizeof(caller));
    mu_buf_init(&method, SIZE_MAX / 4);
    mu_buf_init(&args, SIZE_MAX / 4);
    verdict = read_create(message, &msg, &method, &args);
    if (verdict == 0) {
        verdict = mu_rref_on_create(&refs->table, mu_rref_agent_now(refs), caller, &msg, &v);
    }
    reply(refs, in, verdict); /* this confirms the user; a fetch gets the value */
    if (v != NULL) {
        mu_rref_make(refs, v, mu_buf_span(&method), &args, caller, caller_id);
    }
    mu_buf_fini(&args);
    mu_buf_fini(&method);
    mu_rref_agent_pump(refs);
}

int mu_rref_serve(struct mu_rref_agent *refs)
{
    static void (*const starts[MU_RREF_METHODS])(struct mu_rpc_handler * handler,
                                                 struct mu_rpc_in * in, struct mu_span message) = {
        on_fetch, on_create, on_fork, on_accept, on_delete, on_cancel, on_probe,
    };

    for (size_t i = 0; i < MU_RREF_METHODS; i++) {
        int err;

        refs->handlers[i] = (struct mu_rpc_handler){
            .method = mu_rref_methods[i],
            .start = starts[i],
            .cancel = i == 0 ? on_fetch_cancel : NULL,
        };
        err = mu_rpc_agent_serve(refs->agent, &refs->handlers[i]);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}
