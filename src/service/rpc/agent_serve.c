/* Calls of other workers: from CALL to REPLY, in one or many pieces, and at most once if wanted. */
#include "service/rpc/agent_internal.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

static struct mu_now now_of(const struct mu_rpc_in *in)
{
    return mu_env_now(in->agent->env);
}

/* Counts the bytes of an incomplete message. MUSTER_ELIMIT: all of them together are too many. */
static int count_coming(struct mu_rpc_in *in, size_t bytes)
{
    struct mu_rpc_agent *a = in->agent;

    if (bytes > a->config.coming_bytes_max - a->coming) {
        return MUSTER_ELIMIT;
    }
    in->coming += bytes;
    a->coming += bytes;
    return 0;
}

static void uncount_coming(struct mu_rpc_in *in)
{
    in->agent->coming -= in->coming;
    in->coming = 0;
}

static void free_in(struct mu_rpc_in *in)
{
    uncount_coming(in);
    mu_rpc_coming_drop(in->line, in->id, &in->message);
    if (in->line != NULL) {
        mu_map_remove(&in->line->ins, &in->by_id);
    }
    mu_list_remove(&in->joined);
    if (in->answer != NULL) {
        mu_rpc_answer_keep(in->agent, in->answer);
    }
    mu_free(in);
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Sends a short answer at once. */
static void reply_now(struct mu_rpc_line *line, uint64_t id, int status, struct mu_span payload)
{
    struct mu_rpc *rpc = mu_rpc_line_rpc(line);
    struct mu_now now = mu_env_now(line->agent->env);
    int err = mu_rpc_reply(rpc, now, id, status, payload);

    if (err == MUSTER_ELIMIT) {
        err = mu_rpc_reply(rpc, now, id, MUSTER_ELIMIT,
                           MU_SPAN_LIT("the answer is longer than the caller accepts"));
    }
    if (err == MUSTER_ENOMEM) {
        mu_rpc_fail(rpc, now, id, status == 0 ? MUSTER_ENOMEM : status);
    }
    line->agent->stats.bytes_out += payload.len;
    mu_rpc_line_touch(line);
}

static void reply_and_free(struct mu_rpc_in *in, int status, struct mu_span payload)
{
    if (in->line != NULL) {
        reply_now(in->line, in->id, status, payload);
    }
    free_in(in);
}

/* Sends as much of a long answer as there is credit for, and at the end the REPLY. */
static void send_pieces(struct mu_rpc_in *in)
{
    struct mu_rpc *rpc = mu_rpc_line_rpc(in->line);

    mu_rpc_line_touch(in->line);
    while (in->answer_at < in->answer->buf.len) {
        struct mu_span rest = mu_span_skip(mu_buf_span(&in->answer->buf), in->answer_at);
        int err;

        rest.len = rest.len < MU_RPC_PIECE ? rest.len : MU_RPC_PIECE;
        err = mu_rpc_item_lent(rpc, now_of(in), in->id, rest, in->answer);
        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err != 0) {
            reply_and_free(in, err, mu_span_str(muster_strerror(err)));
            return;
        }
        in->agent->stats.bytes_out += rest.len;
        in->answer_at += rest.len;
    }
    reply_and_free(in, 0, (struct mu_span){0});
}

/* Answers a call that does not run any more, or never did. `owned`: the message's memory, or
 * NULL. */
static void answer_with(struct mu_rpc_in *in, int status, struct mu_span message,
                        struct mu_buf *owned)
{
    struct mu_buf copy;

    if (in->line == NULL || status != 0 || message.len <= MU_RPC_PIECE || in->canceled != 0) {
        reply_and_free(in, in->canceled != 0 && status == 0 ? in->canceled : status,
                       in->canceled != 0 && status == 0 ? (struct mu_span){0} : message);
        return;
    }
    mu_buf_init(&copy, SIZE_MAX / 4);
    if (owned == NULL && mu_buf_append(&copy, message) == 0) {
        owned = &copy;
    }
    in->answer = owned == NULL ? NULL : mu_rpc_blob_new(owned);
    mu_buf_fini(&copy);
    if (in->answer == NULL) {
        reply_and_free(in, MUSTER_ENOMEM, MU_SPAN_LIT("there is no memory for the answer"));
        return;
    }
    in->state = MU_RPC_IN_REPLYING;
    send_pieces(in);
}

static void answer(struct mu_rpc_in *in, int status, struct mu_span message)
{
    answer_with(in, status, message, NULL);
}

static void answer_joined(struct mu_list *joined, int status, struct mu_span message)
{
    struct mu_list *it;

    while ((it = mu_list_pop(joined)) != NULL) {
        answer(MU_CONTAINER_OF(it, struct mu_rpc_in, joined), status, message);
    }
}

static void reply_with(struct mu_rpc_in *in, int status, struct mu_span message,
                       struct mu_buf *owned)
{
    struct mu_rpc_agent *a = in->agent;
    struct mu_rpc_once_key *key = in->key;

    mu_list_remove(&in->running);
    a->running_count--;
    a->stats.serve_errors += status != 0 ? 1 : 0;
    mu_rpc_count(a->stats.handling, mu_mono_since(in->begun, now_of(in).mono));
    if (key != NULL) {
        struct mu_list joined;
        struct mu_list *it;

        mu_list_init(&joined);
        while ((it = mu_list_pop(&key->joined)) != NULL) {
            mu_list_push(&joined, it);
        }
        mu_rpc_once_answer(&a->once, key, status, message);
        answer_joined(&joined, status, message);
    }
    if (in->answered != NULL) {
        *in->slot = NULL;
        in->answered(in, status, message);
        free_in(in);
        return;
    }
    answer_with(in, status, message, owned);
}

void mu_rpc_in_reply(struct mu_rpc_in *in, int status, struct mu_span message)
{
    reply_with(in, status, message, NULL);
}

void mu_rpc_in_reply_buf(struct mu_rpc_in *in, int status, struct mu_buf *message)
{
    reply_with(in, status, mu_buf_span(message), message);
    mu_buf_fini(message);
}

int mu_rpc_in_item(struct mu_rpc_in *in, struct mu_span message)
{
    int err;

    if (in->line == NULL || in->canceled != 0) {
        return MUSTER_ECANCELED;
    }
    err = mu_rpc_item(mu_rpc_line_rpc(in->line), now_of(in), in->id, message);
    if (err == 0) {
        in->agent->stats.bytes_out += message.len;
        mu_rpc_line_touch(in->line);
    }
    return err;
}

void mu_rpc_in_consumed(struct mu_rpc_in *in, size_t n)
{
    if (in->line != NULL) {
        (void)mu_rpc_consumed(mu_rpc_line_rpc(in->line), now_of(in), in->id, n);
        mu_rpc_line_touch(in->line);
    }
}

/* --- beginning -------------------------------------------------------------------------------- */

static void run(struct mu_rpc_in *in, struct mu_span message)
{
    struct mu_rpc_agent *a = in->agent;

    in->state = MU_RPC_IN_RUNNING;
    in->begun = now_of(in).mono;
    mu_list_push(&a->running, &in->running);
    a->running_count++;
    a->stats.served++;
    in->handler->start(in->handler, in, message);
}

/* The message of a call is complete: runs it, or answers from memory. */
static void decide(struct mu_rpc_in *in, struct mu_span message)
{
    struct mu_rpc_agent *a = in->agent;
    struct mu_rpc_once_key *key = NULL;

    if (!in->once) {
        run(in, message);
        return;
    }
    switch (mu_rpc_once_begin(&a->once, in->key_of.caller, in->key_of.seq, in->key_of.floor,
                              in->key_of.again, &key)) {
    case MU_RPC_ONCE_RUN:
        in->key = key;
        run(in, message);
        return;
    case MU_RPC_ONCE_JOIN:
        in->state = MU_RPC_IN_JOINED;
        mu_list_push(&key->joined, &in->joined);
        return;
    case MU_RPC_ONCE_REPLAY:
        a->stats.replays++;
        answer(in, key->status, mu_buf_span(&key->content));
        return;
    case MU_RPC_ONCE_REFUSE:
        answer(in, MUSTER_EONCE, MU_SPAN_LIT("its answer is not remembered any more"));
        return;
    case MU_RPC_ONCE_FULL:
        answer(in, MUSTER_ENOMEM, MU_SPAN_LIT("there is no room to remember another call"));
        return;
    }
}

static struct mu_rpc_in *new_in(struct mu_rpc_line *line, const struct mu_rpc_event *event,
                                struct mu_rpc_handler *handler)
{
    struct mu_rpc_in *in = mu_calloc(1, sizeof(*in));

    if (in == NULL) {
        return NULL;
    }
    in->agent = line->agent;
    in->line = line;
    in->handler = handler;
    in->id = event->id;
    in->deadline = event->deadline;
    in->state = MU_RPC_IN_COMING;
    in->caller_id = line->peer->id;
    memcpy(in->caller, line->peer->name, sizeof(in->caller));
    mu_list_init(&in->joined);
    mu_list_init(&in->running);
    mu_buf_init(&in->message.buf, line->agent->config.message_bytes_max);
    if (mu_map_insert(&line->ins, &in->by_id, mu_span(&in->id, sizeof(in->id))) != 0) {
        mu_free(in);
        return NULL;
    }
    return in;
}

static int check_call(struct mu_rpc_agent *a, const struct mu_rpc_event *event,
                      struct mu_rpc_handler **ret_handler, struct mu_errmsg *reterr_msg)
{
    struct mu_map_node *node = mu_map_find(&a->handlers, event->method);
    char quoted[160];

    if (node == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMETHOD, "%s serves no method %s", a->config.name,
                      mu_span_quote(quoted, sizeof(quoted), event->method));
    }
    *ret_handler = MU_CONTAINER_OF(node, struct mu_rpc_handler, by_method);
    if ((event->flags & ~MU_RPC_CALL_FLAGS) != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the call has an unknown flag");
    }
    if (((event->flags & MU_RPC_CALL_STREAM) != 0) != (*ret_handler)->stream) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      (*ret_handler)->stream ? "the method is a stream"
                                             : "the method is not a stream");
    }
    if ((event->flags & MU_RPC_CALL_STREAM) != 0 && event->flags != MU_RPC_CALL_STREAM) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "a stream cannot run at most once");
    }
    if (a->stopping) {
        return mu_err(reterr_msg, MUSTER_EDRAIN, "%s is shutting down", a->config.name);
    }
    return 0;
}

/* Takes a piece of the message, also the first one. */
static void take_piece(struct mu_rpc_in *in, struct mu_span piece)
{
    int err = count_coming(in, piece.len);

    if (err == 0) {
        err = mu_rpc_coming_add(in->line, in->id, &in->message, piece);
    }
    if (err != 0) {
        answer(in, err,
               err == MUSTER_ELIMIT ? MU_SPAN_LIT("the message is longer than this worker accepts")
                                    : MU_SPAN_LIT("there is no memory for the call's message"));
    }
}

void mu_rpc_in_on_call(struct mu_rpc_line *line, const struct mu_rpc_event *event)
{
    struct mu_span message = event->payload;
    struct mu_rpc_handler *handler = NULL;
    struct mu_errmsg why = {0};
    struct mu_rpc_key key = {0};
    struct mu_rpc_in *in;
    int err = check_call(line->agent, event, &handler, &why);

    if (err == 0 && (event->flags & MU_RPC_CALL_ONCE) != 0 &&
        mu_rpc_key_decode(&message, &key) != 0) {
        err = mu_err(&why, MUSTER_EPROTO, "the key of the call is malformed");
    }
    in = err == 0 ? new_in(line, event, handler) : NULL;
    if (err == 0 && in == NULL) {
        err = mu_err(&why, MUSTER_ENOMEM, "there is no memory for another call");
    }
    if (err != 0) {
        reply_now(line, event->id, err, mu_span_str(why.text));
        return;
    }
    in->once = (event->flags & MU_RPC_CALL_ONCE) != 0;
    in->key_of = key;
    if ((event->flags & MU_RPC_CALL_MORE) == 0) {
        decide(in, message);
    } else {
        take_piece(in, message);
    }
}

/* --- the course of a call --------------------------------------------------------------------- */

void mu_rpc_in_on_item(struct mu_rpc_in *in, const struct mu_rpc_event *event)
{
    if (in->state == MU_RPC_IN_RUNNING && in->handler->stream) {
        in->handler->item(in, event->payload);
        return;
    }
    (void)mu_rpc_consumed(mu_rpc_line_rpc(in->line), now_of(in), in->id, event->payload.len);
    if (in->state == MU_RPC_IN_COMING) {
        take_piece(in, event->payload);
    }
}

void mu_rpc_in_on_end(struct mu_rpc_in *in)
{
    struct mu_rpc_agent *a = in->agent;
    struct mu_buf *whole = &a->lent;

    if (in->state == MU_RPC_IN_RUNNING && in->handler->stream) {
        in->handler->end(in);
        return;
    }
    if (in->state != MU_RPC_IN_COMING) {
        return;
    }
    /* The handler may answer at once: the message must outlive `in`. */
    uncount_coming(in);
    *whole = in->message.buf;
    mu_buf_init(&in->message.buf, whole->max);
    decide(in, mu_buf_span(whole));
    mu_rpc_agent_give_buf(a, whole);
}

/* The call goes on without its caller, which may ask again for the answer. */
static void leave_running(struct mu_rpc_in *in)
{
    mu_map_remove(&in->line->ins, &in->by_id);
    in->line = NULL;
}

void mu_rpc_in_on_cancel(struct mu_rpc_in *in, int why)
{
    if (in->once && in->state == MU_RPC_IN_RUNNING && why != MUSTER_ECANCELED) {
        reply_now(in->line, in->id, why, mu_span_str(muster_strerror(why)));
        leave_running(in);
        return;
    }
    in->canceled = why;
    switch (in->state) {
    case MU_RPC_IN_COMING:
    case MU_RPC_IN_JOINED:
    case MU_RPC_IN_REPLYING:
        reply_and_free(in, why, mu_span_str(muster_strerror(why)));
        return;
    case MU_RPC_IN_RUNNING:
        if (in->handler->cancel != NULL) {
            in->handler->cancel(in, why);
        }
        return;
    }
}

void mu_rpc_in_on_credit(struct mu_rpc_in *in)
{
    if (in->state == MU_RPC_IN_REPLYING) {
        send_pieces(in);
    } else if (in->state == MU_RPC_IN_RUNNING && in->handler->stream) {
        in->handler->writable(in);
    }
}

void mu_rpc_in_orphan(struct mu_rpc_in *in)
{
    if (in->state != MU_RPC_IN_RUNNING) {
        free_in(in);
        return;
    }
    leave_running(in);
    if (in->once && !in->agent->stopping) {
        return;
    }
    in->canceled = in->canceled != 0 ? in->canceled : MUSTER_ESESSION;
    if (in->handler->cancel != NULL) {
        in->handler->cancel(in, in->canceled);
    }
}

/* --- calls of this process -------------------------------------------------------------------- */

int mu_rpc_agent_run(struct mu_rpc_agent *a, struct mu_span method, struct mu_buf *message,
                     const char *caller, int32_t caller_id, mu_rpc_answered *answered, void *asker,
                     struct mu_rpc_in **slot)
{
    struct mu_map_node *node = mu_map_find(&a->handlers, method);
    struct mu_rpc_handler *handler =
        node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_handler, by_method);
    struct mu_buf outer = a->lent;
    struct mu_rpc_in *in;

    if (handler == NULL || handler->stream || a->stopping) {
        return handler == NULL ? MUSTER_ENOMETHOD : handler->stream ? MUSTER_EINVAL : MUSTER_EDRAIN;
    }
    in = mu_calloc(1, sizeof(*in));
    if (in == NULL) {
        return MUSTER_ENOMEM;
    }
    in->agent = a;
    in->handler = handler;
    in->deadline = MU_MONO_NEVER;
    in->caller_id = caller_id;
    memcpy(in->caller, caller, strlen(caller) + 1);
    in->answered = answered;
    in->asker = asker;
    in->slot = slot;
    mu_list_init(&in->joined);
    mu_list_init(&in->running);
    mu_buf_init(&in->message.buf, a->config.message_bytes_max);
    *slot = in;
    /* The handler may keep the message; another one may be lent at this moment. */
    a->lent = *message;
    mu_buf_init(message, message->max);
    run(in, mu_buf_span(&a->lent));
    mu_buf_fini(&a->lent);
    a->lent = outer;
    return 0;
}

void mu_rpc_in_cancel(struct mu_rpc_in *in, int why)
{
    in->canceled = why;
    if (in->handler->cancel != NULL) {
        in->handler->cancel(in, why);
    }
}
