#include "proto/etcd/watch.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/list.h"

#define REQUEST_MAX (64u << 10)
#define IN_KEPT     (1u << 20)

/* A key that is there, as far as was told. */
struct mu_etcd_known {
    struct mu_map_node node;
    int64_t seen; /* the reading that it was last found in */
    size_t len;
    uint8_t bytes[];
};

/* --- the keys that are there ------------------------------------------------------------------ */

static bool tracks(const struct mu_etcd_watcher *w)
{
    return !w->config.puts_only;
}

static struct mu_etcd_known *find_known(struct mu_etcd_watcher *w, struct mu_span key)
{
    struct mu_map_node *node = mu_map_find(&w->known, key);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_etcd_known, node);
}

static int add_known(struct mu_etcd_watcher *w, struct mu_span key, int64_t seen)
{
    struct mu_etcd_known *k = find_known(w, key);

    if (k == NULL) {
        k = mu_malloc(sizeof(*k) + key.len);
        if (k == NULL) {
            return MUSTER_ENOMEM;
        }
        k->len = key.len;
        if (key.len != 0) {
            memcpy(k->bytes, key.data, key.len);
        }
        if (mu_map_insert(&w->known, &k->node, mu_span(k->bytes, key.len)) != 0) {
            mu_free(k);
            return MUSTER_ENOMEM;
        }
    }
    k->seen = seen;
    return 0;
}

static void drop_known(struct mu_etcd_watcher *w, struct mu_etcd_known *k)
{
    mu_map_remove(&w->known, &k->node);
    mu_free(k);
}

static void forget_all(struct mu_etcd_watcher *w)
{
    struct mu_map_node *node = mu_map_next(&w->known, NULL);

    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&w->known, node);

        drop_known(w, MU_CONTAINER_OF(node, struct mu_etcd_known, node));
        node = next;
    }
    mu_map_fini(&w->known);
}

/* --- how it goes on --------------------------------------------------------------------------- */

static void end(struct mu_etcd_watcher *w, int status)
{
    forget_all(w);
    mu_buf_fini(&w->body);
    mu_buf_fini(&w->in);
    mu_etcd_reply_fini(&w->reply);
    w->state = MU_ETCD_WATCHER_IDLE;
    w->wake = MU_MONO_NEVER;
    w->verdict = status;
    w->due = MU_ETCD_WATCHER_END;
    if (w->errmsg.text[0] == '\0') {
        (void)mu_err(&w->errmsg, status, "%s", muster_strerror(status));
    }
}

static void rest(struct mu_etcd_watcher *w, mu_mono_t now, uint64_t ns)
{
    w->state = MU_ETCD_WATCHER_RESTING;
    w->wake = mu_mono_add_ns(now, ns);
}

static int read_range(struct mu_etcd_watcher *w)
{
    struct mu_etcd_op op = {
        .kind = MU_ETCD_RANGE,
        .key = w->config.key,
        .end = w->config.end,
        .revision = w->read_at,
        .keys_only = w->next == 0 && !w->config.current,
    };

    w->must_read = false;
    w->state = MU_ETCD_WATCHER_READING;
    w->due = MU_ETCD_WATCHER_READ;
    return mu_etcd_encode_op(&w->body, &op);
}

static int open_stream(struct mu_etcd_watcher *w, mu_mono_t now)
{
    struct mu_etcd_watch_request request = {
        .key = w->config.key,
        .end = w->config.end,
        .start_revision = w->next,
        .prev_kv = w->config.prev_kv,
        .no_delete = w->config.puts_only,
    };

    mu_buf_reset(&w->in);
    w->split = (struct mu_jv_split){0};
    w->verdict = 0;
    w->telling = false;
    w->endpoint = w->route->current;
    w->token = w->route->token_number;
    w->heard = now;
    w->state = MU_ETCD_WATCHER_STREAMING;
    w->wake = mu_mono_add_ms(now, w->route->config.quiet_ms);
    w->due = MU_ETCD_WATCHER_STREAM;
    return mu_etcd_encode_watch(&w->body, &request);
}

void mu_etcd_watcher_unsent(struct mu_etcd_watcher *w, int err, mu_mono_t now)
{
    w->due = 0;
    w->ending = err;
    rest(w, now, 0);
}

static void go_on(struct mu_etcd_watcher *w, mu_mono_t now)
{
    bool ask;

    w->wake = MU_MONO_NEVER;
    mu_buf_reset(&w->body);
    if (w->ending != 0) {
        end(w, w->ending);
    } else if (mu_etcd_route_needs_token(w->route, &ask)) {
        w->state = MU_ETCD_WATCHER_UNNAMED;
        w->due = ask ? MU_ETCD_WATCHER_AUTHENTICATE : 0;
    } else {
        int err = w->must_read ? read_range(w) : open_stream(w, now);

        if (err != 0) {
            mu_etcd_watcher_unsent(w, err, now);
        }
    }
}

/* --- telling what was read -------------------------------------------------------------------- */

/* The first revision behind this one. */
static int64_t behind(int64_t revision)
{
    return revision < INT64_MAX ? revision + 1 : revision;
}

static int by_revision(const void *a, const void *b)
{
    const struct mu_etcd_kv *x = a;
    const struct mu_etcd_kv *y = b;

    return x->mod_revision < y->mod_revision ? -1 : x->mod_revision > y->mod_revision ? 1 : 0;
}

static int tell_found(struct mu_etcd_watcher *w, const struct mu_etcd_kv *kv)
{
    bool was_known = tracks(w) && find_known(w, kv->key) != NULL;
    bool news = w->next != 0 && kv->mod_revision >= w->next;
    int err = tracks(w) ? add_known(w, kv->key, w->reading) : 0;

    if (err == 0 && (news || (w->next == 0 && w->config.current))) {
        w->change = (struct mu_etcd_change){
            .created = tracks(w) ? !was_known : kv->create_revision == kv->mod_revision,
            .initial = !news,
            .revision = kv->mod_revision,
            .kv = *kv,
        };
        w->due = MU_ETCD_WATCHER_CHANGE;
    }
    return err;
}

/* The next key that was there and was not found; none if `due` stays as it is. */
static void tell_gone(struct mu_etcd_watcher *w)
{
    if (w->gone != NULL) {
        drop_known(w, w->gone);
        w->gone = NULL;
    }
    while (w->walk != NULL && w->due == 0) {
        struct mu_etcd_known *k = MU_CONTAINER_OF(w->walk, struct mu_etcd_known, node);

        w->walk = mu_map_next(&w->known, w->walk);
        if (k->seen != w->reading) {
            w->gone = k;
            w->change = (struct mu_etcd_change){
                .deleted = true,
                .revision = w->reading,
                .kv = {.key = mu_span(k->bytes, k->len), .mod_revision = w->reading},
            };
            w->due = MU_ETCD_WATCHER_CHANGE;
        }
    }
}

static void tell_reading(struct mu_etcd_watcher *w, mu_mono_t now)
{
    int err = w->ending;

    if (err == 0 && w->found == NULL) {
        go_on(w, now);
        return;
    }
    while (err == 0 && w->due == 0 && w->at < w->found->kv_count) {
        err = tell_found(w, &w->found->kvs[w->at++]);
    }
    if (err != 0) {
        end(w, err);
        return;
    }
    if (w->due == 0 && tracks(w)) {
        if (w->at == w->found->kv_count) {
            w->walk = mu_map_next(&w->known, NULL);
            w->at++; /* The walk has begun. */
        }
        tell_gone(w);
    }
    if (w->due == 0) {
        w->found = NULL;
        w->next = behind(w->reading);
        w->due = MU_ETCD_WATCHER_TOLD;
    }
}

void mu_etcd_watcher_read_done(struct mu_etcd_watcher *w, const struct mu_etcd_answer *a,
                               mu_mono_t now)
{
    if (w->ending == 0 && a->status == MUSTER_EOVERFLOW) {
        rest(w, now, 0); /* Compacted once more meanwhile: the stream will say up to where. */
        return;
    }
    if (w->ending != 0 || a->status != 0) {
        w->errmsg = a->errmsg;
        end(w, w->ending != 0 ? w->ending : a->status);
        return;
    }
    w->reading = w->read_at != 0 ? w->read_at : a->reply->revision;
    if (behind(w->reading) < w->next) {
        w->must_read = true;
        rest(w, now, 0); /* Older than what was told: not even a linearizable read is older. */
        return;
    }
    w->state = MU_ETCD_WATCHER_TELLING;
    w->found = &a->reply->results[0];
    w->at = 0;
    w->gone = NULL;
    if (w->found->kv_count > 1) {
        qsort(w->found->kvs, w->found->kv_count, sizeof(*w->found->kvs), by_revision);
    }
}

/* --- the stream ------------------------------------------------------------------------------- */

/* The stream must end; what follows is decided when it has ended. */
static void break_off(struct mu_etcd_watcher *w, int verdict)
{
    w->verdict = verdict;
    w->telling = false;
    w->wake = MU_MONO_NEVER;
    w->due = MU_ETCD_WATCHER_CANCEL_STREAM;
}

static int tell_event(struct mu_etcd_watcher *w, const struct mu_etcd_event *e)
{
    struct mu_etcd_known *k = tracks(w) ? find_known(w, e->kv.key) : NULL;
    bool fresh = tracks(w) ? k == NULL : e->kv.create_revision == e->kv.mod_revision;
    int err = 0;

    if (e->deleted && k != NULL) {
        drop_known(w, k);
    } else if (!e->deleted && tracks(w)) {
        err = add_known(w, e->kv.key, 0);
    }
    if (err == 0) {
        w->change = (struct mu_etcd_change){
            .deleted = e->deleted,
            .created = !e->deleted && fresh,
            .has_prev = e->has_prev,
            .revision = e->kv.mod_revision,
            .kv = e->kv,
            .prev = e->prev,
        };
        w->due = MU_ETCD_WATCHER_CHANGE;
    }
    return err;
}

static void tell_piece(struct mu_etcd_watcher *w)
{
    const struct mu_etcd_reply *r = &w->reply;
    int err = 0;

    if (w->ready_due) {
        w->ready_due = false;
        w->due = MU_ETCD_WATCHER_READY;
        return;
    }
    while (err == 0 && w->due == 0 && w->at < r->event_count) {
        const struct mu_etcd_event *e = &r->events[w->at++];

        err = e->kv.mod_revision >= w->next ? tell_event(w, e) : 0;
    }
    if (err != 0) {
        w->ending = err;
        break_off(w, err);
    } else if (w->due == 0) {
        w->telling = false;
        /* A transaction's changes have one revision, and come in one piece. */
        if (r->event_count > 0 && r->events[r->event_count - 1].kv.mod_revision >= w->next) {
            w->next = behind(r->events[r->event_count - 1].kv.mod_revision);
            w->due = MU_ETCD_WATCHER_TOLD;
        }
        mu_buf_reset(&w->in);
        mu_buf_trim(&w->in, IN_KEPT);
    }
}

/* A piece that refuses the watch. */
static void take_refusal(struct mu_etcd_watcher *w)
{
    const struct mu_etcd_reply *r = &w->reply;
    int status;
    enum mu_etcd_verdict verdict = mu_etcd_judge_refusal(r, &status, &w->errmsg);

    if (r->canceled && r->message.len != 0 &&
        memmem(r->message.data, r->message.len, "permission", 10) != NULL) {
        status = MUSTER_EREFUSED; /* It comes without a code. */
        verdict = MU_ETCD_DONE;
    }
    if (verdict == MU_ETCD_REAUTH) {
        mu_etcd_route_drop_token(w->route, w->token);
    } else if (verdict == MU_ETCD_DONE) {
        w->ending = status;
    }
    break_off(w, status);
}

static void take_piece(struct mu_etcd_watcher *w, mu_mono_t now)
{
    const struct mu_etcd_reply *r = &w->reply;
    int err = mu_etcd_reply_decode(&w->reply, mu_buf_span(&w->in));

    if (err != 0) {
        (void)mu_err(&w->errmsg, err, "a piece of a watch is not etcd's: %s", muster_strerror(err));
        break_off(w, err);
        return;
    }
    if (r->is_error || (r->canceled && r->compact_revision == 0)) {
        take_refusal(w);
        return;
    }
    mu_etcd_route_answered(w->route, w->endpoint, now);
    w->tries = 0;
    if (r->compact_revision != 0) {
        /* What is behind that revision is still told one by one: only up to it is read. */
        w->read_at = r->compact_revision;
        break_off(w, MUSTER_EOVERFLOW);
        return;
    }
    w->ready_due = r->created && !w->was_ready;
    w->was_ready = w->was_ready || r->created;
    w->telling = true;
    w->at = 0;
}

size_t mu_etcd_watcher_recv(struct mu_etcd_watcher *w, int code, struct mu_span in, mu_mono_t now)
{
    size_t used = 0;
    bool whole = false;
    int err;

    if (w->state != MU_ETCD_WATCHER_STREAMING || w->verdict != 0 || w->ending != 0) {
        return in.len;
    }
    w->heard = now;
    err = mu_jv_split(&w->split, in, &used, &whole);
    if (err != 0 && code != 200) {
        used = in.len; /* Words: a refusal that is not JSON. */
        err = 0;
    }
    err = err != 0 ? err : mu_buf_append(&w->in, mu_span(in.data, used));
    if (err == MUSTER_ELIMIT) {
        /* It would come again, as long as it is. */
        w->ending = mu_err(&w->errmsg, err, "a piece of a watch is longer than %zu bytes",
                           w->route->config.reply_bytes_max);
    } else if (err != 0) {
        (void)mu_err(&w->errmsg, err, "a piece of a watch cannot be read: %s",
                     muster_strerror(err));
    }
    if (err != 0) {
        break_off(w, err);
        return in.len;
    }
    if (whole) {
        take_piece(w, now);
    }
    return used;
}

void mu_etcd_watcher_stream_done(struct mu_etcd_watcher *w, const struct mu_etcd_exchange *x,
                                 mu_mono_t now)
{
    struct mu_etcd_route *r = w->route;
    bool hopeless;

    if (w->ending != 0) {
        end(w, w->ending);
        return;
    }
    w->since = w->tries == 0 ? now : w->since;
    if (w->verdict == MUSTER_EOVERFLOW) {
        w->must_read = true;
        rest(w, now, 0);
        return;
    }
    mu_etcd_route_leave(r, w->endpoint);
    if (w->verdict == MUSTER_EAGAIN) {
        rest(w, now, 0); /* It was quiet for long: nobody failed, but look whether it is alive. */
        return;
    }
    if (w->verdict == 0) {
        w->verdict = x->status == 0 ? MUSTER_ECONN : x->status;
        (void)mu_err(&w->errmsg, w->verdict, "%s: %.180s", x->where,
                     x->status == 0        ? "the stream ended"
                     : x->error[0] != '\0' ? x->error
                                           : muster_strerror(x->status));
        if (x->code == 404) {
            w->verdict = mu_err(&w->errmsg, MUSTER_EVERSION,
                                "this server does not offer etcd's v3 API at /v3");
        }
    }
    hopeless =
        w->verdict == MUSTER_ETLS || w->verdict == MUSTER_EVERSION || w->verdict == MUSTER_ENOTSUP;
    if ((++w->tries >= r->config.endpoint_count && hopeless) ||
        mu_etcd_route_silent(r, w->since, now)) {
        end(w, w->verdict);
    } else {
        rest(w, now, mu_etcd_route_rest_ns(r, w->tries));
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

void mu_etcd_watcher_start(struct mu_etcd_watcher *w, struct mu_etcd_route *route,
                           const struct mu_etcd_watcher_config *config, uint64_t seed,
                           mu_mono_t now)
{
    MU_ASSERT(w->state == MU_ETCD_WATCHER_IDLE && (config->from == 0 || config->puts_only));
    *w = (struct mu_etcd_watcher){
        .route = route,
        .config = *config,
        .next = config->from,
        .must_read = config->from == 0,
        .ending = route->closing ? MUSTER_ECLOSED : 0,
        .since = now,
    };
    mu_map_init(&w->known, seed);
    mu_buf_init(&w->body, REQUEST_MAX);
    mu_buf_init(&w->in, route->config.reply_bytes_max);
    mu_etcd_reply_init(&w->reply);
    rest(w, now, 0);
}

void mu_etcd_watcher_authed(struct mu_etcd_watcher *w, int status, const char *text, mu_mono_t now)
{
    if (w->state == MU_ETCD_WATCHER_UNNAMED) {
        if (status != 0) {
            w->ending = mu_err(&w->errmsg, status, "%s", text);
        }
        rest(w, now, 0);
    }
}

void mu_etcd_watcher_stop(struct mu_etcd_watcher *w, int why, mu_mono_t now)
{
    if (w->state == MU_ETCD_WATCHER_IDLE || w->ending != 0) {
        return;
    }
    w->errmsg.text[0] = '\0';
    w->ending = why;
    if (w->state == MU_ETCD_WATCHER_READING) {
        w->due = MU_ETCD_WATCHER_CANCEL_READ;
    } else if (w->state == MU_ETCD_WATCHER_STREAMING) {
        break_off(w, why);
    } else if (w->state != MU_ETCD_WATCHER_TELLING) {
        rest(w, now, 0);
    }
}

void mu_etcd_watcher_tick(struct mu_etcd_watcher *w, mu_mono_t now)
{
    mu_mono_t quiet = mu_mono_add_ms(w->heard, w->route->config.quiet_ms);

    if (!mu_mono_reached(w->wake, now)) {
        return;
    }
    if (w->state != MU_ETCD_WATCHER_STREAMING) {
        go_on(w, now);
    } else if (mu_mono_reached(quiet, now)) {
        break_off(w, MUSTER_EAGAIN);
    } else {
        w->wake = quiet;
    }
}

enum mu_etcd_watcher_action mu_etcd_watcher_next(struct mu_etcd_watcher *w, mu_mono_t now)
{
    enum mu_etcd_watcher_action due;

    if (w->due == 0 && w->state == MU_ETCD_WATCHER_TELLING) {
        tell_reading(w, now);
    } else if (w->due == 0 && w->telling) {
        tell_piece(w);
    }
    due = w->due;
    w->due = 0;
    return due;
}
