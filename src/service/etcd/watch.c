/*
 * Watches.
 *
 *     READING ──► STREAMING ──► RESTING ──► STREAMING ...          a lost stream
 *                     └──────► RESTING ──► READING ──► STREAMING   compacted
 *
 * The place in the history is `next`. It moves only behind changes that were told: the revision
 * that a reply's header shows may be ahead of changes that are still to come.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/etcd/etcd_internal.h"

#define REQUEST_MAX (64u << 10)

enum watch_state {
    IDLE = 0,
    READING,
    STREAMING,
    RESTING, /* until its timer; then reads, if it must, or streams */
    UNNAMED, /* until there is a token */
};

/* A key that is there, as far as was told. */
struct known {
    struct mu_map_node node;
    uint64_t seen; /* the reading that it was last found in */
    size_t len;
    uint8_t bytes[];
};

static void go_on(struct mu_etcd_watch *w);

/* --- the keys that are there ------------------------------------------------------------------ */

static bool tracks(const struct mu_etcd_watch *w)
{
    return !w->puts_only;
}

static struct known *find_known(struct mu_etcd_watch *w, struct mu_span key)
{
    struct mu_map_node *node = mu_map_find(&w->known, key);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct known, node);
}

static int add_known(struct mu_etcd_watch *w, struct mu_span key, uint64_t seen)
{
    struct known *k = find_known(w, key);

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

static void drop_known(struct mu_etcd_watch *w, struct known *k)
{
    mu_map_remove(&w->known, &k->node);
    mu_free(k);
}

static void forget_all(struct mu_etcd_watch *w)
{
    struct mu_map_node *node = mu_map_next(&w->known, NULL);

    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&w->known, node);

        drop_known(w, MU_CONTAINER_OF(node, struct known, node));
        node = next;
    }
    mu_map_fini(&w->known);
}

/* --- ending ----------------------------------------------------------------------------------- */

static void end_watch(struct mu_etcd_watch *w, int status)
{
    struct mu_etcd *etcd = w->etcd;

    mu_env_timer_arm(etcd->env, &w->timer, MU_MONO_NEVER);
    mu_list_remove(&w->link);
    forget_all(w);
    mu_buf_fini(&w->body);
    mu_buf_fini(&w->in);
    mu_etcd_reply_fini(&w->reply);
    w->state = IDLE;
    if (w->errmsg.text[0] == '\0') {
        (void)mu_err(&w->errmsg, status, "%s", muster_strerror(status));
    }
    w->ended(w, status);
    mu_etcd_check_closed(etcd);
}

static void rest(struct mu_etcd_watch *w, uint64_t ns)
{
    struct mu_env *env = w->etcd->env;

    w->state = RESTING;
    mu_env_timer_arm(env, &w->timer, mu_mono_add_ns(mu_env_now(env).mono, ns));
}

/* A stream or a try for one has failed; `w->verdict` is why, in words in errmsg. */
static void retry(struct mu_etcd_watch *w, bool hopeless)
{
    struct mu_etcd *etcd = w->etcd;

    w->tries++;
    mu_etcd_leave(etcd, w->endpoint);
    if ((hopeless && w->tries >= etcd->endpoint_count) || mu_etcd_out_of_patience(etcd, w->since)) {
        end_watch(w, w->verdict);
    } else {
        rest(w, mu_etcd_rest_ns(etcd, w->tries));
    }
}

/* --- telling ---------------------------------------------------------------------------------- */

static void tell(struct mu_etcd_watch *w, const struct mu_etcd_change *change)
{
    if (w->ending == 0) {
        w->change(w, change);
    }
}

static void say_told(struct mu_etcd_watch *w)
{
    if (w->ending == 0 && w->told != NULL) {
        w->told(w);
    }
}

static int tell_event(struct mu_etcd_watch *w, const struct mu_etcd_event *e)
{
    struct mu_etcd_change change = {
        .deleted = e->deleted,
        .has_prev = e->has_prev,
        .revision = e->kv.mod_revision,
        .kv = e->kv,
        .prev = e->prev,
    };
    int err = 0;

    if (tracks(w)) {
        struct known *k = find_known(w, e->kv.key);

        change.created = !e->deleted && k == NULL;
        if (e->deleted && k != NULL) {
            drop_known(w, k);
        } else if (!e->deleted) {
            err = add_known(w, e->kv.key, 0);
        }
    } else {
        change.created = !e->deleted && e->kv.create_revision == e->kv.mod_revision;
    }
    if (err == 0) {
        tell(w, &change);
    }
    return err;
}

static int by_revision(const void *a, const void *b)
{
    const struct mu_etcd_kv *x = a;
    const struct mu_etcd_kv *y = b;

    return x->mod_revision < y->mod_revision ? -1 : x->mod_revision > y->mod_revision ? 1 : 0;
}

/* A key that a reading found. */
static int tell_found(struct mu_etcd_watch *w, const struct mu_etcd_kv *kv, uint64_t reading)
{
    bool was_known = tracks(w) && find_known(w, kv->key) != NULL;
    bool news = w->next != 0 && kv->mod_revision >= w->next;
    struct mu_etcd_change change = {
        .created = tracks(w) ? !was_known : kv->create_revision == kv->mod_revision,
        .initial = !news,
        .revision = kv->mod_revision,
        .kv = *kv,
    };
    int err = tracks(w) ? add_known(w, kv->key, reading) : 0;

    if (err == 0 && (news || (w->next == 0 && w->current))) {
        tell(w, &change);
    }
    return err;
}

static void tell_vanished(struct mu_etcd_watch *w, uint64_t reading)
{
    struct mu_map_node *node = mu_map_next(&w->known, NULL);

    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&w->known, node);
        struct known *k = MU_CONTAINER_OF(node, struct known, node);

        if (k->seen != reading) {
            struct mu_etcd_change change = {
                .deleted = true,
                .revision = (int64_t)reading,
                .kv = {.key = mu_span(k->bytes, k->len), .mod_revision = (int64_t)reading},
            };

            tell(w, &change);
            drop_known(w, k);
        }
        node = next;
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static void on_read_done(struct mu_etcd_call *call)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(call, struct mu_etcd_watch, read);
    const struct mu_etcd_result *found;
    uint64_t reading;
    int err = 0;

    if (w->ending == 0 && call->status == MUSTER_EOVERFLOW) {
        rest(w, 0); /* Compacted once more meanwhile: the stream will say up to where. */
        return;
    }
    if (w->ending != 0 || call->status != 0) {
        w->errmsg = call->errmsg;
        end_watch(w, w->ending != 0 ? w->ending : call->status);
        return;
    }
    found = &call->reply->results[0];
    reading = (uint64_t)(w->read_at != 0 ? w->read_at : call->reply->revision);
    if ((int64_t)reading + 1 < w->next) {
        w->must_read = true;
        rest(w, 0); /* Older than what was told: not even a linearizable read is older. */
        return;
    }
    if (found->kv_count > 1) {
        qsort(found->kvs, found->kv_count, sizeof(*found->kvs), by_revision);
    }
    for (size_t i = 0; err == 0 && i < found->kv_count; i++) {
        err = tell_found(w, &found->kvs[i], reading);
    }
    if (err == 0 && tracks(w)) {
        tell_vanished(w, reading);
    }
    if (err != 0 || w->ending != 0) {
        end_watch(w, w->ending != 0 ? w->ending : err);
        return;
    }
    w->next = (int64_t)reading + 1;
    w->state = RESTING;
    say_told(w);
    go_on(w);
}

static void read_range(struct mu_etcd_watch *w)
{
    struct mu_etcd_op op = {
        .kind = MU_ETCD_RANGE,
        .key = w->key,
        .end = w->end,
        .revision = w->read_at,
        .keys_only = w->next == 0 && !w->current,
    };
    int err;

    mu_buf_reset(&w->body);
    err = mu_etcd_encode_op(&w->body, &op);
    if (err != 0) {
        w->ending = err;
        rest(w, 0);
        return;
    }
    w->state = READING;
    w->read = (struct mu_etcd_call){
        .path = mu_etcd_op_path(MU_ETCD_RANGE),
        .body = mu_buf_span(&w->body),
        .repeat = true,
        .done = on_read_done,
    };
    mu_etcd_submit(w->etcd, &w->read);
}

/* --- streaming -------------------------------------------------------------------------------- */

/* A piece that ends the stream; how it goes on is decided in on_done(). */
static void break_off(struct mu_etcd_watch *w, int verdict)
{
    w->verdict = verdict;
    mu_env_http_cancel(w->etcd->env, &w->http);
}

static void take_events(struct mu_etcd_watch *w)
{
    const struct mu_etcd_reply *r = &w->reply;

    for (size_t i = 0; i < r->event_count && w->ending == 0; i++) {
        const struct mu_etcd_event *e = &r->events[i];
        int err = 0;

        if (e->kv.mod_revision >= w->next) {
            err = tell_event(w, e);
        }
        if (err != 0) {
            w->ending = err;
            break_off(w, err);
            return;
        }
    }
    /* A transaction's changes have one revision, and come in one piece. */
    if (r->event_count > 0 && r->events[r->event_count - 1].kv.mod_revision >= w->next) {
        w->next = r->events[r->event_count - 1].kv.mod_revision + 1;
        say_told(w);
    }
}

static void take_piece(struct mu_etcd_watch *w)
{
    struct mu_etcd *etcd = w->etcd;
    const struct mu_etcd_reply *r = &w->reply;
    int status;
    int err = mu_etcd_reply_decode(&w->reply, mu_buf_span(&w->in));

    if (err != 0) {
        (void)mu_err(&w->errmsg, err, "a piece of a watch is not etcd's: %s", muster_strerror(err));
        break_off(w, err);
        return;
    }
    if (r->is_error || (r->canceled && r->compact_revision == 0)) {
        enum mu_etcd_verdict verdict = mu_etcd_judge(r, &status, &w->errmsg);

        if (r->canceled && memmem(r->message.data, r->message.len, "permission", 10) != NULL) {
            status = MUSTER_EREFUSED; /* It comes without a code. */
            verdict = MU_ETCD_DONE;
        }
        if (verdict == MU_ETCD_REAUTH) {
            mu_etcd_drop_token(etcd, w->token);
        } else if (verdict == MU_ETCD_DONE) {
            w->ending = status;
        }
        break_off(w, status);
        return;
    }
    mu_etcd_answered(etcd, w->endpoint);
    w->tries = 0;
    w->heard = etcd->answered;
    if (r->compact_revision != 0) {
        /* What is behind that revision is still told one by one: only up to it is read. */
        w->read_at = r->compact_revision;
        break_off(w, MUSTER_EOVERFLOW);
        return;
    }
    if (r->created && !w->was_ready) {
        w->was_ready = true;
        if (w->ready != NULL) {
            w->ready(w);
        }
    }
    take_events(w);
}

static void on_head(struct mu_http *http)
{
    (void)http;
}

static size_t on_data(struct mu_http *http, struct mu_span in)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(http, struct mu_etcd_watch, http);
    size_t all = in.len;

    w->heard = mu_env_now(w->etcd->env).mono;
    while (in.len > 0 && w->verdict == 0 && w->ending == 0) {
        size_t used = 0;
        bool whole = false;
        int err = mu_jv_split(&w->split, in, &used, &whole);

        if (err == 0) {
            err = mu_buf_append(&w->in, mu_span(in.data, used));
        } else if (w->http.code != 200) {
            err = mu_buf_append(&w->in, in); /* Words: a refusal that is not JSON. */
            used = in.len;
        }
        if (err == MUSTER_ELIMIT) {
            /* It would come again, as long as it is. */
            w->ending = mu_err(&w->errmsg, err, "a piece of a watch is longer than %zu bytes",
                               w->etcd->config.reply_bytes_max);
        } else if (err != 0) {
            (void)mu_err(&w->errmsg, err, "a piece of a watch cannot be read: %s",
                         muster_strerror(err));
        }
        if (err != 0) {
            break_off(w, err);
            break;
        }
        in = mu_span_skip(in, used);
        if (whole) {
            take_piece(w);
            mu_buf_reset(&w->in);
            mu_buf_trim(&w->in, 1 << 20);
        }
    }
    return all;
}

static void on_done(struct mu_http *http, int status)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(http, struct mu_etcd_watch, http);
    struct mu_etcd *etcd = w->etcd;
    int verdict = w->verdict;

    mu_env_timer_arm(etcd->env, &w->timer, MU_MONO_NEVER);
    mu_buf_reset(&w->in);
    if (w->ending != 0) {
        end_watch(w, w->ending);
        return;
    }
    w->since = w->tries == 0 ? mu_env_now(etcd->env).mono : w->since;
    if (verdict == MUSTER_EOVERFLOW) {
        w->must_read = true;
        rest(w, 0);
        return;
    }
    if (verdict == MUSTER_EAGAIN) {
        rest(w, 0); /* It was quiet for long: nobody failed, but look whether it is alive. */
        mu_etcd_leave(etcd, w->endpoint);
        return;
    }
    if (verdict == 0) {
        w->verdict = status == 0 ? MUSTER_ECONN : status;
        (void)mu_err(&w->errmsg, w->verdict, "%s: %.180s", etcd->endpoints[w->endpoint].base,
                     status == 0                   ? "the stream ended"
                     : http->error.text[0] != '\0' ? http->error.text
                                                   : muster_strerror(status));
        if (http->code == 404) {
            w->verdict = mu_err(&w->errmsg, MUSTER_EVERSION,
                                "this server does not offer etcd's v3 API at /v3");
        }
    }
    retry(w, w->verdict == MUSTER_ETLS || w->verdict == MUSTER_EVERSION);
}

static const struct mu_http_events stream_events = {
    .head = on_head,
    .data = on_data,
    .done = on_done,
};

static void watch_quiet(struct mu_etcd_watch *w)
{
    struct mu_etcd *etcd = w->etcd;

    mu_env_timer_arm(etcd->env, &w->timer, mu_mono_add_ms(w->heard, etcd->config.quiet_ms));
}

static void open_stream(struct mu_etcd_watch *w)
{
    struct mu_etcd *etcd = w->etcd;
    struct mu_etcd_watch_request request = {
        .key = w->key,
        .end = w->end,
        .start_revision = w->next,
        .prev_kv = w->prev_kv,
        .no_delete = w->puts_only,
    };
    struct mu_http_request q = {.method = "POST"};
    int err;

    mu_buf_reset(&w->body);
    mu_buf_reset(&w->in);
    w->split = (struct mu_jv_split){0};
    w->verdict = 0;
    w->endpoint = etcd->current;
    w->token = etcd->token_number;
    w->heard = mu_env_now(etcd->env).mono;
    w->http.on = &stream_events;
    err = mu_etcd_encode_watch(&w->body, &request);
    q.body = mu_buf_span(&w->body);
    if (err == 0) {
        err = mu_etcd_exchange(etcd, &w->http, w->endpoint, &q, "/v3/watch", false);
    }
    if (err != 0) {
        w->ending = err;
        rest(w, 0);
        return;
    }
    w->state = STREAMING;
    watch_quiet(w);
}

/* --- the whole -------------------------------------------------------------------------------- */

static void go_on(struct mu_etcd_watch *w)
{
    if (w->ending != 0) {
        end_watch(w, w->ending);
    } else if (mu_etcd_needs_token(w->etcd)) {
        w->state = UNNAMED;
    } else if (w->must_read) {
        w->must_read = false;
        read_range(w);
    } else {
        open_stream(w);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_etcd_watch *w = MU_CONTAINER_OF(timer, struct mu_etcd_watch, timer);

    if (w->state != STREAMING) {
        go_on(w);
    } else if (mu_mono_reached(mu_mono_add_ms(w->heard, w->etcd->config.quiet_ms),
                               mu_env_now(w->etcd->env).mono)) {
        break_off(w, MUSTER_EAGAIN);
    } else {
        watch_quiet(w);
    }
}

void mu_etcd_watch_start(struct mu_etcd *etcd, struct mu_etcd_watch *w)
{
    uint64_t seed;

    MU_ASSERT(w->state == IDLE && (w->from == 0 || w->puts_only));
    w->etcd = etcd;
    w->next = w->from;
    w->must_read = w->from == 0;
    w->read_at = 0;
    w->was_ready = false;
    w->ending = etcd->closing ? MUSTER_ECLOSED : 0;
    w->verdict = 0;
    w->tries = 0;
    w->errmsg.text[0] = '\0';
    w->since = mu_env_now(etcd->env).mono;
    mu_env_entropy(etcd->env, &seed, sizeof(seed));
    mu_map_init(&w->known, seed);
    mu_buf_init(&w->body, REQUEST_MAX);
    mu_buf_init(&w->in, etcd->config.reply_bytes_max);
    mu_etcd_reply_init(&w->reply);
    mu_timer_init(&w->timer, on_timer);
    mu_list_init(&w->link);
    mu_list_push(&etcd->watches, &w->link);
    rest(w, 0);
}

static void stop_watch(struct mu_etcd_watch *w, int why)
{
    if (w->state == IDLE || w->ending != 0) {
        return;
    }
    w->ending = why;
    w->errmsg.text[0] = '\0';
    switch ((enum watch_state)w->state) {
    case READING:
        mu_etcd_cancel(&w->read);
        break;
    case STREAMING:
        mu_env_http_cancel(w->etcd->env, &w->http);
        break;
    case RESTING:
    case UNNAMED:
        rest(w, 0);
        break;
    case IDLE:
        break;
    }
}

void mu_etcd_watch_cancel(struct mu_etcd_watch *w)
{
    stop_watch(w, MUSTER_ECANCELED);
}

void mu_etcd_watch_end_all(struct mu_etcd *etcd)
{
    MU_LIST_FOREACH (it, &etcd->watches) {
        stop_watch(MU_CONTAINER_OF(it, struct mu_etcd_watch, link), MUSTER_ECLOSED);
    }
}

void mu_etcd_watch_authed(struct mu_etcd *etcd, int status, const char *text)
{
    MU_LIST_FOREACH (it, &etcd->watches) {
        struct mu_etcd_watch *w = MU_CONTAINER_OF(it, struct mu_etcd_watch, link);

        if (w->state == UNNAMED) {
            if (status != 0) {
                w->ending = mu_err(&w->errmsg, status, "%s", text);
            }
            rest(w, 0);
        }
    }
}
