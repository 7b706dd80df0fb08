/*
 * The journal on its way to the disk.
 *
 * Changes are made in memory at once and gathered in the keyspace's journal. A worker thread
 * commits one piece at a time; changes that come meanwhile are the next piece, so that many clients
 * share one fsync. With SYNC_ALWAYS no answer leaves before every change made up to it is on disk:
 *
 *   a torch connection   marks in its output: `ready` bytes may go, `next` when this commit is done
 *   a native session     whole answers wait in held_replies with the number of the batch they need
 *
 * Reads wait as well, or a client could see a value that a crash takes back.
 *
 * A full disk does not end the server. The piece stays, and is tried again every second; until it
 * fits, all changes that the disk would have to hold are refused (ks.frozen), nothing waits for the
 * disk, and clients whose changes did not get there are told: a native client by an error,
 * PyTorch's, whose protocol has none, by the end of its connection.
 */
#include "service/server/server_internal.h"

#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

#define AGAIN_MS      10   /* until a commit that found no memory to begin is tried again */
#define FULL_AGAIN_MS 1000 /* the same for one that found no room on the disk */

bool mu_store_commit_gates(const struct mu_store_server *s)
{
    return s->config.disk != NULL && s->config.sync == MU_SYNC_ALWAYS && !s->disk_full &&
           (s->committing || mu_ks_journal_len(&s->ks) != 0);
}

bool mu_store_commit_saturated(const struct mu_store_server *s)
{
    return s->config.disk != NULL && !s->disk_full &&
           (mu_ks_journal_len(&s->ks) > s->config.journal_bytes_high ||
            s->held_bytes > s->config.journal_bytes_high);
}

bool mu_store_commit_idle(const struct mu_store_server *s)
{
    return !s->committing && mu_ks_journal_len(&s->ks) == 0;
}

mu_mono_t mu_store_commit_deadline(const struct mu_store_server *s)
{
    return s->committing ? s->commit_again : s->next_commit;
}

/* The batch whose commit makes all changes up to now durable. */
static uint64_t batch_needed(const struct mu_store_server *s)
{
    return mu_ks_journal_len(&s->ks) != 0 ? s->batch_started + 1 : s->batch_started;
}

void mu_store_commit_note(struct mu_store_conn *c, size_t journal_len)
{
    if (mu_ks_journal_len(&c->server->ks) > journal_len) {
        c->wrote = batch_needed(c->server);
    }
}

void mu_store_commit_mark(struct mu_store_conn *c)
{
    struct mu_store_server *s = c->server;
    size_t len = mu_store_conn_output_len(c);

    if (!mu_store_commit_gates(s)) {
        c->ready = len;
        return;
    }
    if (c->ready < len) {
        if (mu_list_empty(&c->held)) {
            mu_list_push(&s->held_conns, &c->held);
        }
        if (batch_needed(s) == s->batch_started) {
            c->next = len;
        }
    }
}

/* --- native answers --------------------------------------------------------------------------- */

/* Appends an answer that needs the changes up to now, with room for `len` bytes. */
static struct mu_store_held *new_held(struct mu_store_session *session, uint64_t id, size_t len)
{
    struct mu_store_server *s = session->server;
    struct mu_store_held *held = mu_malloc(sizeof(*held) + len);

    if (held != NULL) {
        *held = (struct mu_store_held){
            .session = session, .id = id, .batch = batch_needed(s), .len = len};
        mu_list_push(&s->held_replies, &held->link);
        s->held_bytes += held->len;
        s->buffer_bytes += held->len;
    }
    return held;
}

void mu_store_answer(struct mu_store_session *session, uint64_t id, bool item, bool wrote,
                     int status, struct mu_span payload)
{
    struct mu_store_server *s = session->server;
    struct mu_store_held *held;

    if (!mu_store_commit_gates(s)) {
        mu_store_session_send(session, id, item, status, payload);
        return;
    }
    held = new_held(session, id, payload.len);
    if (held == NULL) {
        mu_store_session_fail(session, id, item);
        return;
    }
    held->status = status;
    held->item = item;
    held->wrote = wrote && status == 0;
    if (payload.len != 0) {
        memcpy(held->data, payload.data, payload.len);
    }
}

void mu_store_answer_lent(struct mu_store_session *session, uint64_t id, struct mu_rpc_lent *lent)
{
    struct mu_store_held *held;

    if (!mu_store_commit_gates(session->server)) {
        mu_store_session_lend(session, id, lent);
        return;
    }
    held = new_held(session, id, 0);
    if (held == NULL) {
        lent->release(lent);
        mu_store_session_fail(session, id, false);
        return;
    }
    held->lent = lent;
}

static void free_held(struct mu_store_server *s, struct mu_store_held *held)
{
    mu_list_remove(&held->link);
    s->held_bytes -= held->len;
    s->buffer_bytes -= held->len;
    if (held->lent != NULL) {
        held->lent->release(held->lent);
    }
    mu_free(held);
}

void mu_store_commit_forget(struct mu_store_server *s, const struct mu_store_session *session)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &s->held_replies) {
        struct mu_store_held *held = MU_CONTAINER_OF(it, struct mu_store_held, link);

        if (session == NULL || held->session == session) {
            free_held(s, held);
        }
    }
}

/* Whether the disk is that far, or answers do not wait for it any more. */
static bool may_go(const struct mu_store_server *s, const struct mu_store_held *held)
{
    return held->batch <= s->batch_done || s->disk_full;
}

static void release_held(struct mu_store_server *s)
{
    struct mu_list conns;
    struct mu_list *it;

    while (!mu_list_empty(&s->held_replies)) {
        struct mu_store_held *held =
            MU_CONTAINER_OF(s->held_replies.next, struct mu_store_held, link);

        if (!may_go(s, held)) {
            break;
        }
        if (held->wrote && held->batch > s->batch_done) {
            mu_store_session_send(held->session, held->id, false, MUSTER_EDISK,
                                  mu_span_str(s->full_why.text));
        } else if (held->lent != NULL) {
            mu_store_session_lend(held->session, held->id, held->lent);
            held->lent = NULL;
        } else {
            mu_store_session_send(held->session, held->id, held->item, held->status,
                                  mu_span(held->data, held->len));
        }
        free_held(s, held);
    }
    /* Flushing puts a connection that still has to wait back on the list. */
    mu_list_init(&conns);
    while ((it = mu_list_pop(&s->held_conns)) != NULL) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, held);

        c->ready = c->next > c->ready ? c->next : c->ready;
        mu_list_push(&conns, it);
    }
    while ((it = mu_list_pop(&conns)) != NULL) {
        mu_rpc_conn_touch(&MU_CONTAINER_OF(it, struct mu_store_conn, held)->base);
    }
}

/* --- commits ---------------------------------------------------------------------------------- */

static void commit_run(struct mu_work *work)
{
    struct mu_store_server *s = MU_CONTAINER_OF(work, struct mu_store_server, commit);
    struct mu_disk *disk = s->config.disk;

    s->commit_status = disk->ops->commit(disk, mu_buf_span(&s->commit_journal), s->commit_revision,
                                         &s->commit_errmsg);
}

static void move_all(struct mu_list *to, struct mu_list *from)
{
    struct mu_list *it;

    while ((it = mu_list_pop(from)) != NULL) {
        mu_list_push(to, it);
    }
}

/*
 * Resumes connections that waited for the disk, each once. One that fills it up again goes behind
 * those that had no turn.
 */
static void wake_stalled(struct mu_store_server *s)
{
    struct mu_list woken;
    struct mu_list *it;

    mu_list_init(&woken);
    move_all(&woken, &s->stalled);
    while (!mu_store_commit_saturated(s) && (it = mu_list_pop(&woken)) != NULL) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, stalled);

        if (c->base.session != NULL) {
            mu_rpc_session_pump(c->base.session);
        }
        mu_rpc_conn_touch(&c->base);
    }
    move_all(&woken, &s->stalled);
    move_all(&s->stalled, &woken);
}

/* The piece did not fit: it will be tried again, and nothing else waits for it. */
static void begin_full(struct mu_store_server *s)
{
    s->commit_again = mu_mono_add_ms(mu_env_now(s->env).mono, FULL_AGAIN_MS);
    if (s->disk_full) {
        return;
    }
    s->disk_full = true;
    s->ks.frozen = MUSTER_EDISK;
    s->full_why = s->commit_errmsg;
    mu_log(MUSTER_LOG_ERROR, "STORE-DISK-FULL", "why=\"%s\" reads=served changes=refused bytes=%zu",
           s->full_why.text, s->commit_journal.len + mu_ks_journal_len(&s->ks));
    mu_status_events_add(&s->events, mu_env_now(s->env).wall, "", s->full_why.text);
    MU_LIST_FOREACH_SAFE (it, tmp, &s->wire.conns) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, base.link);

        if (c->wrote > s->batch_done && s->config.sync == MU_SYNC_ALWAYS) {
            mu_rpc_conn_drop(&c->base,
                             "the data directory is full, so its last changes may be lost");
        }
    }
    release_held(s);
    wake_stalled(s);
}

static void end_full(struct mu_store_server *s)
{
    if (s->disk_full) {
        s->disk_full = false;
        s->ks.frozen = 0;
        mu_log(MUSTER_LOG_INFO, "STORE-DISK-WRITES", "changes=taken");
        mu_status_events_add(&s->events, mu_env_now(s->env).wall, "",
                             "the data directory has room again");
    }
}

static void commit_done(struct mu_work *work)
{
    struct mu_store_server *s = MU_CONTAINER_OF(work, struct mu_store_server, commit);

    if (s->commit_status == MUSTER_EFULL && !s->draining) {
        begin_full(s);
        mu_store_server_finish_turn(s);
        return;
    }
    s->committing = false;
    mu_buf_reset(&s->commit_journal);
    mu_buf_trim(&s->commit_journal, 1 << 20);
    if (s->commit_status != 0) {
        mu_store_server_fail(s, s->commit_status == MUSTER_EFULL ? MUSTER_EDISK : s->commit_status,
                             s->commit_errmsg.text);
        mu_store_server_finish_turn(s);
        return;
    }
    end_full(s);
    s->batch_done = s->batch_started;
    s->stats.commits++;
    release_held(s);
    wake_stalled(s);
    mu_store_server_finish_turn(s);
}

/* Hands the piece to a worker thread; if there is no memory for that, tries again soon. */
static void commit_try(struct mu_store_server *s)
{
    s->commit_again = mu_env_work(s->env, &s->commit) == 0
                          ? MU_MONO_NEVER
                          : mu_mono_add_ms(mu_env_now(s->env).mono, AGAIN_MS);
}

static void commit_start(struct mu_store_server *s)
{
    mu_ks_journal_take(&s->ks, &s->commit_journal);
    s->commit_revision = s->ks.revision;
    s->commit.run = commit_run;
    s->commit.done = commit_done;
    s->committing = true;
    s->batch_started++;
    s->next_commit = MU_MONO_NEVER;
    MU_LIST_FOREACH (it, &s->held_conns) {
        struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, held);

        c->next = mu_store_conn_output_len(c);
    }
    commit_try(s);
}

void mu_store_commit_pump(struct mu_store_server *s)
{
    mu_mono_t now = mu_env_now(s->env).mono;

    if (s->config.disk == NULL || s->status != 0) {
        return;
    }
    if (s->committing && mu_mono_reached(s->commit_again, now)) {
        commit_try(s);
    }
    if (mu_ks_journal_len(&s->ks) == 0) {
        return;
    }
    if (s->next_commit.ns == MU_MONO_NEVER.ns) {
        /* The interval counts from the change, not from the end of the commit that is under way. */
        s->next_commit = mu_mono_add_ms(now, s->config.sync_interval_ms);
    }
    if (s->committing) {
        return;
    }
    if (s->config.sync == MU_SYNC_ALWAYS || s->draining || mu_store_commit_saturated(s)) {
        /* This turn's answers are marked before the piece they need is taken. */
        MU_LIST_FOREACH (it, &s->wire.touched) {
            struct mu_store_conn *c = MU_CONTAINER_OF(it, struct mu_store_conn, base.touched);

            if (c->kind == MU_STORE_CONN_TORCH) {
                mu_store_commit_mark(c);
            }
        }
        commit_start(s);
    } else if (mu_mono_reached(s->next_commit, now)) {
        commit_start(s);
    }
}
