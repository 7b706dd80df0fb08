/*
 * Keys that gateways may answer for: the server's side of proto/store/holds.h, as native calls.
 *
 *     hold     a stream; while it lasts, its session may hold keys. Its first item, without keys,
 *              says so; every other item asks keys back
 *     fetch    reads keys and holds them, at once or when all have existed
 *     renew    keeps the lease
 *     lend     others may hold them, too: only the end of the lease ends what is not given back
 *     drop     gives keys back
 *
 * A call that changes keys which others hold waits until they have given them back. All calls of
 * its session that come after it wait behind it, since those of one session take effect in order;
 * only calls about held keys other than `fetch` do not wait. A connection of PyTorch's wire is not
 * read on in the same case (torch_server.h).
 */
#include "service/server/gateway_hold.h"
#include "service/server/server_internal.h"

#include "codec/store/hold.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/torch_dialect.h"

/* A call that waits behind one that has to wait. */
struct deferred {
    struct mu_rpc_served base;
    struct mu_list link; /* session->deferred */
    mu_mono_t deadline;
    struct mu_span method;
    struct mu_span payload;
    uint8_t bytes[];
};

/* A fetch that waits for its keys. */
struct fetch {
    struct mu_rpc_served base;
    struct mu_ks_owner owner;
    struct mu_ks_wait wait;
    mu_mono_t asked; /* when it came */
    struct mu_span *keys;
    size_t count;
    uint8_t bytes[];
};

/* Keys to delete. */
struct prefix_job {
    struct mu_list link; /* server->prefixes */
    struct mu_ks_owner owner;
    struct mu_hold_writer writer;
    struct mu_store_server *server;
    struct mu_span prefix;
    uint8_t bytes[];
};

static void run_deferred(struct mu_store_session *session);

/* --- life ------------------------------------------------------------------------------------- */

void mu_store_holds_init(struct mu_store_server *s)
{
    s->config.hold.seed = s->config.keyspace.seed;
    mu_holds_init(&s->holds, &s->config.hold);
    mu_list_init(&s->recalled);
    mu_list_init(&s->recalling);
    mu_list_init(&s->unsure);
    mu_list_init(&s->prefixes);
    s->grants = s->config.holds && s->config.disk == NULL && s->config.backing == NULL;
}

void mu_store_holds_fini(struct mu_store_server *s)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&s->prefixes)) != NULL) {
        struct prefix_job *job = MU_CONTAINER_OF(it, struct prefix_job, link);

        mu_holds_withdraw(&s->holds, &job->writer);
        mu_free(job);
    }
    mu_store_lend_fini(s);
    mu_holds_fini(&s->holds);
}

/* Its client has dropped everything, or is dead. */
static bool is_over(const struct mu_store_session *session)
{
    return session->base.goodbye || session->base.rpc.eof_grace_ms != UINT32_MAX;
}

static void leave(struct mu_store_session *session, bool dropped)
{
    if (session->holder != NULL) {
        mu_holds_leave(&session->server->holds, session->holder, dropped && !session->lends);
        session->holder = NULL;
        session->hold_id = 0;
        session->lends = false;
    }
    mu_list_remove(&session->unsure);
    session->recall_count = 0;
    mu_buf_fini(&session->recalls);
    mu_list_remove(&session->recalled);
}

void mu_store_holds_leave(struct mu_store_session *session)
{
    MU_ASSERT(mu_list_empty(&session->deferred));
    mu_holds_withdraw(&session->server->holds, &session->writer);
    leave(session, is_over(session));
}

/* --- asking keys back ------------------------------------------------------------------------- */

/* Sends what keys are to be asked back, or as soon as there is credit. Without memory they are not
 * asked back, and the lease ends. */
static void send_recalls(struct mu_store_session *session)
{
    struct mu_buf *out = &session->server->scratch;
    int err;

    mu_list_remove(&session->recalled);
    if (session->recall_count == 0 || session->hold_id == 0) {
        return;
    }
    mu_buf_reset(out);
    err = mu_buf_reserve(out, 4 + session->recalls.len);
    if (err == 0) {
        mu_buf_put_u32(out, (uint32_t)session->recall_count);
        mu_buf_put(out, mu_buf_span(&session->recalls));
        err = mu_rpc_session_item(&session->base, session->hold_id, mu_buf_span(out));
    }
    if (err != MUSTER_EAGAIN) {
        session->recall_count = 0;
        mu_buf_reset(&session->recalls);
        mu_buf_trim(&session->recalls, 0);
    }
    mu_buf_trim(out, 1 << 20);
    mu_rpc_session_touch(&session->base);
}

static void add_recall(struct mu_store_session *session, struct mu_span key)
{
    if (session->recall_count >= MU_HOLD_KEYS_MAX) {
        send_recalls(session);
    }
    if (session->recall_count >= MU_HOLD_KEYS_MAX ||
        mu_buf_reserve(&session->recalls, 4 + key.len) != 0) {
        return; /* its lease will be over */
    }
    mu_buf_put_u32(&session->recalls, (uint32_t)key.len);
    mu_buf_put(&session->recalls, key);
    session->recall_count++;
    if (mu_list_empty(&session->recalled)) {
        mu_list_push(&session->server->recalled, &session->recalled);
    }
}

void mu_store_holds_pump(struct mu_store_server *s)
{
    struct mu_hold_writer *writer;
    struct mu_holder *holder;
    struct mu_span key;
    struct mu_list *it;

    if (!s->grants) {
        return;
    }
    while ((writer = mu_holds_next_writer(&s->holds)) != NULL) {
        struct mu_ks_owner *owner = writer->owner;

        owner->unheld(owner);
    }
    while (mu_holds_next_recall(&s->holds, &holder, &key)) {
        add_recall(holder->owner, key);
    }
    while ((it = mu_list_pop(&s->recalled)) != NULL) {
        send_recalls(MU_CONTAINER_OF(it, struct mu_store_session, recalled));
    }
}

/* --- changes that wait ------------------------------------------------------------------------ */

static void session_unheld(struct mu_ks_owner *owner)
{
    run_deferred(MU_CONTAINER_OF(owner, struct mu_store_session, owner));
}

bool mu_store_holds_may(struct mu_store_session *session, const struct mu_store_request *q,
                        int *ret_err)
{
    struct mu_store_server *s = session->server;
    int may;

    if (mu_store_verb_facts(q->verb)->does != MU_STORE_CHANGES) {
        return true;
    }
    session->owner.unheld = session_unheld;
    session->writer.owner = &session->owner;
    may = mu_holds_ask(&s->holds, &session->writer, session->holder, mu_env_now(s->env).mono,
                       q->keys, q->key_count);
    *ret_err = may < 0 ? may : 0;
    return may == 1;
}

static void free_deferred(struct mu_rpc_served *base)
{
    struct deferred *d = MU_CONTAINER_OF(base, struct deferred, base);

    mu_list_remove(&d->link);
    mu_rpc_served_remove(base);
    mu_free(d);
}

static void cancel_deferred(struct mu_rpc_served *base, int why)
{
    struct mu_store_session *session = mu_store_session_of(base);
    struct deferred *d = MU_CONTAINER_OF(base, struct deferred, base);
    bool first = session->deferred.next == &d->link;
    uint64_t id = base->id;

    free_deferred(base);
    mu_rpc_session_reply(&session->base, id, why, mu_span_str(muster_strerror(why)));
    if (first) {
        mu_holds_withdraw(&session->server->holds, &session->writer);
        run_deferred(session);
    }
}

static const struct mu_rpc_served_ops deferred_ops = {
    .cancel = cancel_deferred,
    .free = free_deferred,
};

/* Puts a call behind those that wait; the first of them is the one that `writer` is about. False:
 * there was no memory, and the call has ended with that. */
static bool defer(struct mu_store_session *session, const struct mu_rpc_event *event, bool first)
{
    struct deferred *d = mu_malloc(sizeof(*d) + event->method.len + event->payload.len);

    if (d != NULL) {
        *d = (struct deferred){.deadline = event->deadline};
        mu_list_init(&d->link);
        d->method = mu_span(d->bytes, event->method.len);
        d->payload = mu_span(d->bytes + event->method.len, event->payload.len);
        memcpy(d->bytes, event->method.data, event->method.len);
        if (event->payload.len != 0) {
            memcpy(d->bytes + event->method.len, event->payload.data, event->payload.len);
        }
    }
    if (d == NULL || mu_rpc_served_add(&d->base, &deferred_ops, &session->base, event->id) != 0) {
        mu_free(d);
        if (first) {
            mu_holds_withdraw(&session->server->holds, &session->writer);
        }
        mu_store_session_fail(session, event->id, false);
        return false;
    }
    mu_list_push(first ? session->deferred.next : &session->deferred, &d->link);
    return true;
}

/* --- reading ---------------------------------------------------------------------------------- */

static struct mu_found look_up(struct mu_store_server *s, struct mu_store_session *session,
                               struct mu_span key, size_t *bytes)
{
    struct mu_found found = {0};

    if (mu_ks_get(&s->ks, key, &found.value) == 0) {
        bool large =
            found.value.len > MU_HOLD_VALUE_MAX || *bytes + found.value.len > MU_FOUND_BYTES_MAX;

        found.state = large ? MU_FOUND_LARGE : MU_FOUND_VALUE;
        *bytes += large ? 0 : found.value.len;
    }
    if (mu_ks_queue_len(&s->ks, key) != 0) {
        found.state |= MU_FOUND_QUEUE;
    }
    /* Keys that change by themselves are not held. */
    if (session->holder != NULL && (found.state & (MU_FOUND_LARGE | MU_FOUND_QUEUE)) == 0 &&
        !mu_ks_is_leased(&s->ks, key) && !mu_torch_dialect_is_state(key) &&
        mu_holds_grant(&s->holds, session->holder, mu_env_now(s->env).mono, key)) {
        found.state |= MU_FOUND_HELD;
    }
    return found;
}

uint32_t mu_store_holds_renew(struct mu_store_session *session, mu_mono_t asked)
{
    struct mu_store_server *s = session->server;
    mu_mono_t now = mu_env_now(s->env).mono;

    if (session->holder == NULL ||
        mu_mono_before(mu_mono_add_ms(asked, s->config.hold.lease_ms / 2), now)) {
        return 0;
    }
    return mu_holds_renew(&s->holds, session->holder, now,
                          s->backing == NULL ? MU_MONO_NEVER : mu_store_lend_until(session));
}

static void answer_fetch(struct mu_store_session *session, uint64_t id, const struct mu_span *keys,
                         size_t count, uint32_t lease_ms)
{
    struct mu_store_server *s = session->server;
    struct mu_found *found = mu_calloc(count + 1, sizeof(*found));
    size_t bytes = 0;
    int err;

    mu_buf_reset(&s->scratch);
    for (size_t i = 0; found != NULL && i < count; i++) {
        found[i] = look_up(s, session, keys[i], &bytes);
    }
    err = found == NULL ? MUSTER_ENOMEM : mu_found_encode(&s->scratch, lease_ms, found, count);
    if (err != 0) {
        mu_rpc_session_reply(&session->base, id, err, mu_span_str(muster_strerror(err)));
    } else {
        mu_rpc_session_reply(&session->base, id, 0, mu_buf_span(&s->scratch));
    }
    mu_free(found);
    mu_buf_trim(&s->scratch, 1 << 20);
}

static void free_fetch(struct mu_rpc_served *base)
{
    struct fetch *f = MU_CONTAINER_OF(base, struct fetch, base);

    mu_ks_wait_cancel(&mu_store_session_of(base)->server->ks, &f->wait);
    mu_rpc_served_remove(base);
    mu_free(f);
}

static void cancel_fetch(struct mu_rpc_served *base, int why)
{
    struct mu_store_session *session = mu_store_session_of(base);
    uint64_t id = base->id;

    free_fetch(base);
    mu_rpc_session_reply(&session->base, id, why, mu_span_str(muster_strerror(why)));
}

static const struct mu_rpc_served_ops fetch_ops = {
    .cancel = cancel_fetch,
    .free = free_fetch,
};

static void fetch_ready(struct mu_ks_owner *owner, struct mu_ks_wait *wait)
{
    struct fetch *f = MU_CONTAINER_OF(owner, struct fetch, owner);
    struct mu_store_session *session = mu_store_session_of(&f->base);

    (void)wait;
    answer_fetch(session, f->base.id, f->keys, f->count, mu_store_holds_renew(session, f->asked));
    free_fetch(&f->base);
}

/* Waits for the keys. 1: they have all been there; 0: the call goes on; or an error. */
static int wait_for_keys(struct mu_store_session *session, uint64_t id, uint32_t flags,
                         const struct mu_span *keys, size_t count)
{
    enum mu_ks_wait_kind kind = (flags & MU_FETCH_IN_TURN) != 0 ? MU_KS_WAIT_TORCH : MU_KS_WAIT_ALL;
    size_t bytes = 0;
    struct fetch *f;
    bool ready = false;
    uint8_t *at;
    int err;

    for (size_t i = 0; i < count; i++) {
        bytes += sizeof(struct mu_span) + keys[i].len;
    }
    f = mu_malloc(sizeof(*f) + bytes);
    if (f == NULL) {
        return MUSTER_ENOMEM;
    }
    *f = (struct fetch){.count = count, .asked = mu_env_now(session->server->env).mono};
    f->keys = (struct mu_span *)(void *)(f + 1);
    at = (uint8_t *)(f->keys + count);
    for (size_t i = 0; i < count; i++) {
        if (keys[i].len != 0) {
            memcpy(at, keys[i].data, keys[i].len);
        }
        f->keys[i] = mu_span(at, keys[i].len);
        at += keys[i].len;
    }
    f->owner.ready = fetch_ready;
    f->wait.owner = &f->owner;
    err = mu_rpc_served_add(&f->base, &fetch_ops, &session->base, id);
    if (err != 0) {
        mu_free(f);
        return err;
    }
    err = mu_ks_wait(&session->server->ks, &f->wait, kind, f->keys, count, &ready);
    if (err != 0 || ready) {
        free_fetch(&f->base);
    }
    return err != 0 ? err : ready ? 1 : 0;
}

static void start_fetch(struct mu_store_session *session, uint64_t id, struct mu_span payload)
{
    struct mu_span *keys = NULL;
    uint32_t flags = 0;
    size_t count = 0;
    int err = mu_fetch_decode(payload, &flags, &keys, &count);
    bool waits = err == 0 && (flags & MU_FETCH_WAIT) != 0;

    if (waits) {
        err = wait_for_keys(session, id, flags, keys, count);
    }
    if (err < 0) {
        mu_rpc_session_reply(&session->base, id, err, mu_span_str(muster_strerror(err)));
    } else if (!waits || err == 1) {
        answer_fetch(session, id, keys, count,
                     mu_store_holds_renew(session, mu_env_now(session->server->env).mono));
    }
    mu_free(keys);
}

/* --- calls about what is held ----------------------------------------------------------------- */

/* The call that keys are asked back by. */
static void free_hold(struct mu_rpc_served *base)
{
    struct mu_store_session *session = mu_store_session_of(base);

    leave(session, is_over(session));
    mu_rpc_served_remove(base);
    mu_free(base);
}

/* A gateway that cancels it has dropped everything before. */
static void cancel_hold(struct mu_rpc_served *base, int why)
{
    struct mu_store_session *session = mu_store_session_of(base);
    uint64_t id = base->id;

    leave(session, why == MUSTER_ECANCELED || is_over(session));
    mu_rpc_served_remove(base);
    mu_free(base);
    mu_rpc_session_reply(&session->base, id, why, mu_span_str(muster_strerror(why)));
}

static void credit_hold(struct mu_rpc_served *base)
{
    send_recalls(mu_store_session_of(base));
}

static const struct mu_rpc_served_ops hold_ops = {
    .cancel = cancel_hold,
    .credit = credit_hold,
    .free = free_hold,
};

/* The session may hold keys: the first item. */
static void say_held(struct mu_store_session *session)
{
    static const uint8_t none[4];

    mu_list_remove(&session->unsure);
    (void)mu_rpc_session_item(&session->base, session->hold_id, mu_span(none, sizeof(none)));
    mu_rpc_session_touch(&session->base);
}

void mu_store_holds_lends(void *server, int status)
{
    struct mu_store_server *s = server;

    while (!mu_list_empty(&s->unsure)) {
        struct mu_store_session *session =
            MU_CONTAINER_OF(s->unsure.next, struct mu_store_session, unsure);

        if (status == 0) {
            say_held(session);
        } else {
            cancel_hold(mu_rpc_served_find(&session->base, session->hold_id), status);
        }
    }
}

static void start_hold(struct mu_store_session *session, uint64_t id)
{
    struct mu_store_server *s = session->server;
    struct mu_gateway_hold *hold = s->backing == NULL ? NULL : mu_gateway_hold(s->backing);
    struct mu_rpc_served *call = NULL;
    int err = session->holder != NULL ? MUSTER_EEXIST : 0;

    if (err == 0) {
        call = mu_calloc(1, sizeof(*call));
        session->holder = call == NULL ? NULL : mu_holds_join(&s->holds, session);
        err = session->holder == NULL ? MUSTER_ENOMEM
                                      : mu_rpc_served_add(call, &hold_ops, &session->base, id);
        if (err != 0) {
            leave(session, true);
            mu_free(call);
        }
    }
    if (err != 0) {
        mu_rpc_session_reply(&session->base, id, err, mu_span_str(muster_strerror(err)));
        return;
    }
    session->hold_id = id;
    mu_buf_init(&session->recalls, s->config.backlog_bytes_max);
    if (s->backing == NULL) {
        say_held(session);
        return;
    }
    mu_list_push(&s->unsure, &session->unsure);
    mu_gateway_hold_lend(hold);
    if (hold->lending == MU_GATEWAY_LENDS || hold->refused) {
        mu_store_holds_lends(s, hold->refused ? MUSTER_ENOMETHOD : 0);
    }
}

static void start_renew(struct mu_store_session *session, uint64_t id)
{
    uint8_t lease[4];

    if (session->holder == NULL) {
        mu_rpc_session_reply(&session->base, id, MUSTER_ENOENT,
                             MU_SPAN_LIT("this session holds no keys"));
        return;
    }
    mu_put_u32(lease, mu_store_holds_renew(session, mu_env_now(session->server->env).mono));
    mu_rpc_session_reply(&session->base, id, 0, mu_span(lease, sizeof(lease)));
}

static void start_lend(struct mu_store_session *session, uint64_t id)
{
    int err = session->holder == NULL ? MUSTER_ENOENT : 0;

    session->lends = err == 0 && session->server->holds.config.plant != MU_HOLDS_PLANT_SHORT_LOAN;
    mu_rpc_session_reply(&session->base, id, err,
                         err == 0 ? (struct mu_span){0}
                                  : MU_SPAN_LIT("this session holds no keys"));
}

static void start_drop(struct mu_store_session *session, uint64_t id, struct mu_span payload)
{
    struct mu_span *keys = NULL;
    size_t count = 0;
    int err = mu_hold_keys_decode(payload, &keys, &count);

    for (size_t i = 0; err == 0 && session->holder != NULL && i < count; i++) {
        mu_holds_drop(&session->server->holds, session->holder, keys[i]);
    }
    mu_free(keys);
    mu_rpc_session_reply(&session->base, id, err,
                         err == 0 ? (struct mu_span){0} : mu_span_str(muster_strerror(err)));
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Executes a call whose turn has come. False: it has to wait, and nothing has happened. */
static bool run(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    if (mu_span_eq(event->method, MU_SPAN_LIT(MU_STORE_METHOD_FETCH))) {
        if (session->server->backing != NULL) {
            mu_store_lend_fetch(session, event->id, event->payload);
        } else {
            start_fetch(session, event->id, event->payload);
        }
        return true;
    }
    return mu_store_calls_start(session, event);
}

/* The writer's turn has come: goes on with the calls that wait, as far as possible. */
static void run_deferred(struct mu_store_session *session)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&session->deferred)) != NULL) {
        struct deferred *d = MU_CONTAINER_OF(it, struct deferred, link);
        struct mu_rpc_event event = {
            .id = d->base.id, .method = d->method, .payload = d->payload, .deadline = d->deadline};

        mu_rpc_served_remove(&d->base);
        /* Who waits behind one that has ended must not wait for it. */
        if (!run(session, &event) && defer(session, &event, true)) {
            mu_free(d);
            return;
        }
        mu_free(d);
    }
}

void mu_store_holds_start(struct mu_store_session *session, const struct mu_rpc_event *event)
{
    bool grants = session->server->grants;

    if (grants && mu_span_eq(event->method, MU_SPAN_LIT(MU_STORE_METHOD_HOLD))) {
        start_hold(session, event->id);
    } else if (grants && mu_span_eq(event->method, MU_SPAN_LIT(MU_STORE_METHOD_RENEW))) {
        start_renew(session, event->id);
    } else if (grants && mu_span_eq(event->method, MU_SPAN_LIT(MU_STORE_METHOD_DROP))) {
        start_drop(session, event->id, event->payload);
    } else if (grants && mu_span_eq(event->method, MU_SPAN_LIT(MU_STORE_METHOD_LEND))) {
        start_lend(session, event->id);
    } else if (!grants) {
        (void)mu_store_calls_start(session, event);
    } else if (!mu_list_empty(&session->deferred)) {
        (void)defer(session, event, false);
    } else if (!run(session, event)) {
        (void)defer(session, event, true);
    }
}

/* --- keys that the server deletes ------------------------------------------------------------- */

static void delete_now(struct mu_store_server *s, struct mu_span prefix)
{
    size_t removed = 0;

    mu_ks_delete_prefix(&s->ks, prefix, &removed);
}

static void prefix_unheld(struct mu_ks_owner *owner)
{
    struct prefix_job *job = MU_CONTAINER_OF(owner, struct prefix_job, owner);
    struct mu_store_server *s = job->server;

    if (mu_holds_ask_prefix(&s->holds, &job->writer, mu_env_now(s->env).mono, job->prefix) == 0) {
        return;
    }
    delete_now(s, job->prefix);
    mu_list_remove(&job->link);
    mu_free(job);
}

void mu_store_holds_delete(void *server, struct mu_span prefix)
{
    struct mu_store_server *s = server;
    struct prefix_job *job =
        !s->grants || s->holds.count == 0 ? NULL : mu_calloc(1, sizeof(*job) + prefix.len);

    if (job == NULL) {
        delete_now(s, prefix);
        return;
    }
    job->server = s;
    job->owner.unheld = prefix_unheld;
    job->writer.owner = &job->owner;
    job->prefix = mu_span(job->bytes, prefix.len);
    memcpy(job->bytes, prefix.data, prefix.len);
    mu_list_init(&job->link);
    mu_list_push(&s->prefixes, &job->link);
    prefix_unheld(&job->owner);
}
