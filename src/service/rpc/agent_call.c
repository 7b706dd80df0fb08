/* Our calls: waiting for a line, sending, the answer in one or many pieces, deadlines, retries. */
#include "service/rpc/agent_internal.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

/* The longest text of a handler, and what is put around it here. */
#define TEXT_MAX (MU_RPC_MESSAGE_MAX + 128)

static mu_mono_t mono(const struct mu_rpc_agent *a)
{
    return mu_env_now(a->env).mono;
}

/* --- the end of a call ------------------------------------------------------------------------ */

/* Gives the parts back to the owner. */
static void take_back(struct mu_rpc_out *out)
{
    if (out->lent) {
        out->lent = false;
        mu_rpc_revoke(mu_rpc_line_rpc(out->line), out->id);
        mu_rpc_line_touch(out->line);
    }
}

/* Takes the call off its line and out of every queue; it still counts as in flight. */
static void detach(struct mu_rpc_out *out)
{
    mu_rpc_coming_drop(out->line, out->id, &out->in);
    if (out->line != NULL) {
        mu_map_remove(&out->line->outs, &out->by_id);
        take_back(out);
        out->line = NULL;
    }
    mu_list_remove(&out->link);
    mu_heap_remove(&out->agent->deadlines, &out->deadline);
    mu_rpc_retry_drop(&out->agent->retries, &out->again);
    out->part = out->part_at = 0;
}

/* Ends the call: the last thing that happens to it. */
static void tell(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct mu_rpc_agent *a = out->agent;
    struct mu_rpc_peer *peer = out->to;
    char *kept = out->text;

    mu_list_remove(&out->all);
    mu_list_remove(&out->key);
    out->state = MU_RPC_OUT_IDLE;
    out->text = NULL;
    a->in_flight--;
    a->stats.calls_ok += status == 0 ? 1 : 0;
    a->stats.calls_failed += status != 0 ? 1 : 0;
    a->stats.timeouts += status == MUSTER_ETIMEDOUT ? 1 : 0;
    mu_rpc_count(a->stats.latency, mu_mono_since(out->begun, mono(a)));
    if (peer->guest) {
        mu_rpc_peer_touch(peer);
    }
    a->lent = out->in.buf;
    mu_buf_init(&out->in.buf, 0);
    out->ended(out, status, text, message); /* it may be begun again, or freed */
    mu_rpc_agent_give_buf(a, &a->lent);
    mu_free(kept);
}

/* Ends the call with an error, which is reported at the end of this turn. */
static void end_later(struct mu_rpc_out *out, int status, const char *text)
{
    struct mu_rpc_agent *a = out->agent;
    char whole[TEXT_MAX + MU_RPC_METHOD_MAX + MU_RPC_WORKER_MAX + 8];

    detach(out);
    out->state = MU_RPC_OUT_ENDING;
    out->status = status;
    (void)snprintf(whole, sizeof(whole), "%s to %s: %s", out->method, out->to->name,
                   text != NULL && text[0] != '\0' ? text : muster_strerror(status));
    mu_free(out->text);
    out->text = mu_malloc(strlen(whole) + 1);
    if (out->text != NULL) {
        memcpy(out->text, whole, strlen(whole) + 1);
    }
    mu_list_push(&a->ending, &out->link);
}

void mu_rpc_calls_tell(struct mu_rpc_agent *a)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&a->ending)) != NULL) {
        struct mu_rpc_out *out = MU_CONTAINER_OF(it, struct mu_rpc_out, link);

        tell(out, out->status, out->text != NULL ? out->text : muster_strerror(out->status),
             (struct mu_span){0});
    }
}

struct mu_buf mu_rpc_agent_steal(struct mu_rpc_agent *a)
{
    struct mu_buf taken = a->lent;

    mu_buf_init(&a->lent, 0);
    return taken;
}

void mu_rpc_agent_tell(struct mu_rpc_agent *a, struct mu_rpc_out *out, int status, const char *text,
                       struct mu_buf *message)
{
    struct mu_buf outer = a->lent;
    struct mu_buf kept = *message; /* the text of an error cannot be stolen */

    mu_buf_init(message, message->max);
    mu_buf_init(&a->lent, 0);
    if (status == 0) {
        a->lent = kept;
        out->ended(out, 0, text, mu_buf_span(&kept));
        mu_buf_fini(&a->lent);
    } else {
        out->ended(out, status, text, (struct mu_span){0});
        mu_buf_fini(&kept);
    }
    a->lent = outer;
}

/* --- attempts --------------------------------------------------------------------------------- */

static void attempt(struct mu_rpc_out *out)
{
    struct mu_rpc_agent *a = out->agent;
    mu_mono_t now = mono(a);

    mu_rpc_retry_sent(&a->retries, &out->again, now);
    out->state = MU_RPC_OUT_QUEUED;
    mu_list_push(&out->to->unsent, &out->link);
    if (out->timeout_ms != 0) {
        mu_heap_insert(&a->deadlines, &out->deadline, mu_mono_add_ms(now, out->timeout_ms));
    }
    mu_rpc_peer_touch(out->to);
}

struct mu_rpc_retry_options mu_rpc_out_retry_defaults(void)
{
    return mu_rpc_retry_options_defaults();
}

int mu_rpc_out_retry_check(const struct mu_rpc_retry_options *o, struct mu_errmsg *reterr_msg)
{
    return mu_rpc_retry_check(o, reterr_msg);
}

void mu_rpc_agent_call(struct mu_rpc_agent *a, struct mu_rpc_out *out)
{
    out->agent = a;
    out->line = NULL;
    out->begun = mono(a);
    out->was_sent = false;
    out->part = out->part_at = 0;
    out->text = NULL;
    mu_list_init(&out->link);
    mu_list_init(&out->key);
    mu_heap_node_init(&out->deadline);
    out->lent = false;
    out->in = (struct mu_rpc_coming){0};
    mu_buf_init(&out->in.buf, a->config.message_bytes_max);
    mu_rpc_retry_begin(&out->again, &out->retry);
    mu_list_push(&out->to->outs, &out->all);
    mu_rpc_budget_earn(&out->to->budget);
    a->in_flight++;
    a->stats.calls++;
    if (out->once) {
        out->seq = a->seq++;
        mu_list_push(&a->once_outs, &out->key);
    }
    if (a->stopping) {
        end_later(out, MUSTER_ECLOSED, "the agent was shut down");
        return;
    }
    attempt(out);
}

/* Whether another try may help. An answer of the callee to a `once` call is final. */
static bool is_retryable(const struct mu_rpc_out *out, int status)
{
    switch (status) {
    case MUSTER_ECANCELED:
    case MUSTER_ENOMETHOD:
    case MUSTER_EINVAL:
    case MUSTER_ELIMIT:
    case MUSTER_EONCE:
    case MUSTER_EWORKER:
    case MUSTER_ETLS:
        return false;
    case MUSTER_ETIMEDOUT:
    case MUSTER_ECONN:
    case MUSTER_ESESSION:
    case MUSTER_ECLOSED:
    case MUSTER_EDRAIN:
    case MUSTER_ENOMEM:
        return true;
    default:
        return !out->once;
    }
}

void mu_rpc_out_failed(struct mu_rpc_out *out, int status, const char *text)
{
    struct mu_rpc_agent *a = out->agent;
    char whole[TEXT_MAX];

    if (out->state == MU_RPC_OUT_ENDING) {
        return;
    }
    detach(out);
    if (!out->retrying) {
        end_later(out, status, text);
        return;
    }
    text = text != NULL && text[0] != '\0' ? text : muster_strerror(status);
    switch (mu_rpc_retry_failed(&a->retries, &out->again, &out->to->budget,
                                is_retryable(out, status))) {
    case MU_RPC_RETRY_WAIT:
        out->state = MU_RPC_OUT_RETRY;
        return;
    case MU_RPC_RETRY_FINAL:
    case MU_RPC_RETRY_STOPPED:
        end_later(out, status, text);
        return;
    case MU_RPC_RETRY_EXHAUSTED:
        (void)snprintf(whole, sizeof(whole),
                       "has not succeeded after the specified number of max retries (%d): %s",
                       (int)out->retry.retries_max, text);
        end_later(out, status, whole);
        return;
    case MU_RPC_RETRY_BUDGET:
        (void)snprintf(
            whole, sizeof(whole),
            "not tried again because too many calls to this worker were retried already: %s", text);
        end_later(out, status, whole);
        return;
    }
}

void mu_rpc_calls_fail(struct mu_rpc_peer *peer, int status, const char *text)
{
    /* Each call goes to the end of another list. */
    while (!mu_list_empty(&peer->unsent)) {
        mu_rpc_out_failed(MU_CONTAINER_OF(peer->unsent.next, struct mu_rpc_out, link), status,
                          text);
    }
}

/* Tells the callee that we do not wait any more, if the call was sent. */
static void withdraw(struct mu_rpc_out *out)
{
    if (out->line != NULL) {
        (void)mu_rpc_cancel(mu_rpc_line_rpc(out->line), mu_env_now(out->agent->env), out->id);
        mu_rpc_line_touch(out->line);
    }
}

void mu_rpc_out_cancel(struct mu_rpc_out *out)
{
    if (out->state != MU_RPC_OUT_IDLE && out->state != MU_RPC_OUT_ENDING) {
        withdraw(out);
        end_later(out, MUSTER_ECANCELED, NULL);
    }
}

static void time_out(struct mu_rpc_out *out)
{
    char text[160];

    (void)snprintf(text, sizeof(text),
                   "ran for more than the set timeout (%u ms) and is now marked with an error%s",
                   out->timeout_ms,
                   out->state == MU_RPC_OUT_QUEUED ? "; it waited for a connection" : "");
    /* A call that runs at most once may be repeated: it must go on even if we stop waiting. */
    if (!out->once || !out->retrying) {
        withdraw(out);
    }
    mu_rpc_out_failed(out, MUSTER_ETIMEDOUT, text);
}

void mu_rpc_calls_tick(struct mu_rpc_agent *a)
{
    mu_mono_t now = mono(a);
    struct mu_heap_node *node;
    struct mu_rpc_retry *retry;

    while ((node = mu_heap_pop_due(&a->deadlines, now)) != NULL) {
        time_out(MU_CONTAINER_OF(node, struct mu_rpc_out, deadline));
    }
    while ((retry = mu_rpc_retry_next(&a->retries, now)) != NULL) {
        a->stats.retries++;
        attempt(MU_CONTAINER_OF(retry, struct mu_rpc_out, again));
    }
}

mu_mono_t mu_rpc_calls_deadline(const struct mu_rpc_agent *a)
{
    return mu_mono_min(mu_heap_deadline(&a->deadlines), mu_rpc_retry_deadline(&a->retries));
}

void mu_rpc_calls_end(struct mu_rpc_peer *peer, int status, const char *text)
{
    MU_LIST_FOREACH (it, &peer->outs) {
        struct mu_rpc_out *out = MU_CONTAINER_OF(it, struct mu_rpc_out, all);

        if (out->state != MU_RPC_OUT_ENDING) {
            withdraw(out);
            end_later(out, status, text);
        }
    }
}

static void stop_calls_to(struct mu_list *peers)
{
    MU_LIST_FOREACH (it, peers) {
        struct mu_rpc_peer *peer = MU_CONTAINER_OF(it, struct mu_rpc_peer, link);

        MU_LIST_FOREACH (one, &peer->outs) {
            struct mu_rpc_out *out = MU_CONTAINER_OF(one, struct mu_rpc_out, all);

            if (out->state != MU_RPC_OUT_ENDING) {
                bool waited = out->state == MU_RPC_OUT_RETRY;

                withdraw(out);
                end_later(out, MUSTER_ECLOSED,
                          waited ? "the agent was shut down while the call waited for its next try"
                                 : "the agent was shut down");
            }
        }
    }
}

void mu_rpc_calls_stop(struct mu_rpc_agent *a)
{
    mu_rpc_retry_stop(&a->retries);
    stop_calls_to(&a->workers);
    stop_calls_to(&a->guests);
}

/* --- sending ---------------------------------------------------------------------------------- */

/* The lowest number for which an answer is still wanted. */
static uint64_t floor_of(const struct mu_rpc_agent *a)
{
    return mu_list_empty(&a->once_outs)
               ? a->seq
               : MU_CONTAINER_OF(a->once_outs.next, struct mu_rpc_out, key)->seq;
}

/* Encodes the head of a message, and all of it if it is short, into the agent's scratch. */
static int encode(struct mu_rpc_out *out, bool *ret_more)
{
    struct mu_rpc_agent *a = out->agent;
    struct mu_buf *to = &a->scratch;
    size_t size = 0;
    int err = mu_rpc_msg_size(out->parts, out->part_count, &size);

    mu_buf_reset(to);
    if (err == 0 && out->once) {
        struct mu_rpc_key key = {.seq = out->seq, .floor = floor_of(a), .again = out->was_sent};

        memcpy(key.caller, a->server.incarnation, sizeof(key.caller));
        err = mu_rpc_key_encode(to, &key);
    }
    if (err == 0 && !out->raw) {
        err = mu_rpc_msg_head(to, out->parts, out->part_count);
    }
    *ret_more = size > MU_RPC_PIECE && !out->stream;
    for (size_t i = 0; err == 0 && !*ret_more && i < out->part_count; i++) {
        err = mu_buf_append(to, out->parts[i].data);
    }
    return err;
}

static uint32_t wire_timeout(const struct mu_rpc_out *out)
{
    uint64_t left;

    if (out->timeout_ms == 0) {
        return 0;
    }
    left = mu_mono_until_ms(out->deadline.at, mono(out->agent));
    return left == 0 ? 1 : left > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)left;
}

/* Sends as much of a long message as there is credit for. */
static void send_pieces(struct mu_rpc_out *out)
{
    struct mu_rpc *rpc = mu_rpc_line_rpc(out->line);
    struct mu_now now = mu_env_now(out->agent->env);
    int err = 0;

    mu_rpc_line_touch(out->line);
    while (err == 0 && out->part < out->part_count) {
        struct mu_span rest = mu_span_skip(out->parts[out->part].data, out->part_at);

        rest.len = rest.len < MU_RPC_PIECE ? rest.len : MU_RPC_PIECE;
        err = rest.len == 0 ? 0 : mu_rpc_item_lent(rpc, now, out->id, rest, NULL);
        if (err != 0) {
            break;
        }
        out->lent = true;
        out->agent->stats.bytes_out += rest.len;
        out->part_at += rest.len;
        if (out->part_at == out->parts[out->part].data.len) {
            out->part++;
            out->part_at = 0;
        }
    }
    if (err == 0) {
        err = mu_rpc_end(rpc, now, out->id);
    }
    if (err == 0) {
        out->state = MU_RPC_OUT_SENT;
    } else if (err != MUSTER_EAGAIN) {
        withdraw(out);
        mu_rpc_out_failed(out, err, NULL);
    }
}

/* Writes the CALL. MUSTER_EAGAIN: later. Other errors end the attempt. */
static int begin_call(struct mu_rpc_line *line, struct mu_rpc_out *out)
{
    struct mu_rpc_agent *a = out->agent;
    struct mu_now now = mu_env_now(a->env);
    bool more = false;
    uint32_t flags;
    int err;

    if (out->once && out->was_sent &&
        memcmp(out->sent_to, line->incarnation, sizeof(out->sent_to)) != 0) {
        return MUSTER_EONCE; /* the process that may have run it is gone */
    }
    err = encode(out, &more);
    if (err != 0) {
        return err;
    }
    flags = (more ? MU_RPC_CALL_MORE : 0) | (out->stream ? MU_RPC_CALL_STREAM : 0) |
            (out->once ? MU_RPC_CALL_ONCE : 0);
    err = mu_rpc_call(mu_rpc_line_rpc(line), now, mu_span_str(out->method),
                      mu_buf_span(&a->scratch), wire_timeout(out), flags, &out->id);
    if (err != 0) {
        return err;
    }
    /* From now on it may run, canceled or not. */
    out->was_sent = true;
    memcpy(out->sent_to, line->incarnation, sizeof(out->sent_to));
    mu_rpc_line_touch(line);
    if (mu_map_insert(&line->outs, &out->by_id, mu_span(&out->id, sizeof(out->id))) != 0) {
        (void)mu_rpc_cancel(mu_rpc_line_rpc(line), now, out->id);
        return MUSTER_ENOMEM;
    }
    a->stats.bytes_out += a->scratch.len;
    out->line = line;
    mu_list_remove(&out->link);
    out->state = more ? MU_RPC_OUT_SENDING : MU_RPC_OUT_SENT;
    return 0;
}

void mu_rpc_calls_begin(struct mu_rpc_peer *peer)
{
    while (!mu_list_empty(&peer->unsent)) {
        struct mu_rpc_out *out = MU_CONTAINER_OF(peer->unsent.next, struct mu_rpc_out, link);
        struct mu_rpc_line *line = mu_rpc_peer_line(peer);
        int err;

        if (line == NULL) {
            return;
        }
        err = begin_call(line, out);
        mu_buf_trim(&peer->agent->scratch, MU_RPC_PIECE);
        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err != 0) {
            mu_rpc_out_failed(out, err, NULL);
        } else if (out->state == MU_RPC_OUT_SENDING) {
            send_pieces(out);
        } else if (out->stream) {
            out->writable(out);
        }
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static void fail_with_text(struct mu_rpc_out *out, const struct mu_rpc_event *event)
{
    char text[TEXT_MAX];
    int len = (int)event->payload.len; /* the wire bounds it */

    if (event->status == MUSTER_ETIMEDOUT && out->timeout_ms != 0) {
        /* The callee's clock was first; for the caller that is the same. */
        (void)snprintf(text, sizeof(text), "ran for more than the set timeout (%u ms): %.*s",
                       out->timeout_ms, len, (const char *)event->payload.data);
    } else {
        (void)snprintf(text, sizeof(text), "%.*s", len, (const char *)event->payload.data);
    }
    mu_rpc_out_failed(out, event->status, text);
}

void mu_rpc_out_on_reply(struct mu_rpc_out *out, const struct mu_rpc_event *event)
{
    struct mu_span message = event->payload;

    if (event->status != 0) {
        fail_with_text(out, event);
        return;
    }
    if (out->in.buf.len != 0) {
        if (mu_buf_append(&out->in.buf, event->payload) != 0) {
            mu_rpc_out_failed(out, MUSTER_ENOMEM, NULL);
            return;
        }
        message = mu_buf_span(&out->in.buf);
    }
    mu_map_remove(&out->line->outs, &out->by_id);
    take_back(out);
    out->line = NULL;
    mu_heap_remove(&out->agent->deadlines, &out->deadline);
    tell(out, 0, "", message);
}

void mu_rpc_out_on_item(struct mu_rpc_out *out, const struct mu_rpc_event *event)
{
    struct mu_rpc *rpc = mu_rpc_line_rpc(out->line);
    int err;

    if (out->stream) {
        out->item(out, event->payload);
        return;
    }
    err = mu_rpc_coming_add(out->line, event->id, &out->in, event->payload);
    if (err != 0) {
        withdraw(out);
        mu_rpc_out_failed(out, err,
                          err == MUSTER_ELIMIT ? "the answer is longer than this worker accepts"
                                               : NULL);
        return;
    }
    (void)mu_rpc_consumed(rpc, mu_env_now(out->agent->env), event->id, event->payload.len);
}

void mu_rpc_out_on_credit(struct mu_rpc_out *out)
{
    if (out->state == MU_RPC_OUT_SENDING) {
        send_pieces(out);
    } else if (out->stream) {
        out->writable(out);
    }
}

/* --- streams ---------------------------------------------------------------------------------- */

int mu_rpc_out_item(struct mu_rpc_out *out, struct mu_span message)
{
    int err;

    if (out->state == MU_RPC_OUT_IDLE || out->state == MU_RPC_OUT_ENDING) {
        return MUSTER_ECLOSED;
    }
    if (out->line == NULL) {
        return MUSTER_EAGAIN; /* `writable` comes with the line */
    }
    err = mu_rpc_item(mu_rpc_line_rpc(out->line), mu_env_now(out->agent->env), out->id, message);
    if (err == 0) {
        out->agent->stats.bytes_out += message.len;
        mu_rpc_line_touch(out->line);
    }
    return err;
}

int mu_rpc_out_end(struct mu_rpc_out *out)
{
    int err;

    if (out->line == NULL) {
        return out->state == MU_RPC_OUT_QUEUED ? MUSTER_EAGAIN : MUSTER_ECLOSED;
    }
    err = mu_rpc_end(mu_rpc_line_rpc(out->line), mu_env_now(out->agent->env), out->id);
    mu_rpc_line_touch(out->line);
    return err;
}

void mu_rpc_out_consumed(struct mu_rpc_out *out, size_t n)
{
    if (out->line != NULL) {
        (void)mu_rpc_consumed(mu_rpc_line_rpc(out->line), mu_env_now(out->agent->env), out->id, n);
        mu_rpc_line_touch(out->line);
    }
}
