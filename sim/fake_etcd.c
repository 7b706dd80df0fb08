#include "fake_etcd.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#include "codec/text/base64.h"
#include "codec/text/json_view.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"
#include "core/list.h"
#include "fake_etcd_log.h"
#include "sim_http.h"

#define TICK_NS     (100 * MU_NS_PER_MS)
#define TIMEOUT_PPM 10000u /* share of the requests that time out */
#define OUT_MAX     (64u << 20)

struct member {
    struct fake_etcd *etcd;
    struct mu_sim_http_server *server;
    bool isolated;
};

struct lease {
    struct mu_list link;
    int64_t id;
    int64_t ttl_s;
    uint64_t until_ns;
    uint64_t ended_ns;
};

struct stream {
    struct mu_list link;
    struct member *member;
    struct mu_sim_exchange *x;
    struct mu_span key;
    struct mu_span end;
    int64_t next;
    bool no_delete;
    bool prev_kv;
    bool greeted;
};

struct fake_etcd {
    struct mu_sim *sim;
    struct member members[FAKE_ETCD_MEMBERS];
    size_t member_count;
    int64_t revision;
    int64_t compacted;
    struct fake_etcd_event *log;
    size_t log_count;
    size_t log_cap;
    struct mu_list leases;
    struct mu_list streams;
    struct mu_buf out;
    struct mu_buf scratch; /* what requests decode to */
    bool immortal;         /* leases never end: a planted bug */
    bool failed;           /* the current request names a lease that does not exist */
    bool changed;
};

static void *must(void *p)
{
    MU_ASSERT(p != NULL);
    return p;
}

/* --- writing JSON ----------------------------------------------------------------------------- */

static void say(struct fake_etcd *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void say(struct fake_etcd *e, const char *format, ...)
{
    char text[256];
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    MU_ASSERT(n >= 0 && (size_t)n < sizeof(text));
    MU_ASSERT(mu_buf_append(&e->out, mu_span(text, (size_t)n)) == 0);
}

static void say_bytes(struct fake_etcd *e, const char *name, struct mu_span bytes)
{
    say(e, "\"%s\":\"", name);
    MU_ASSERT(mu_base64_encode(&e->out, bytes) == 0);
    say(e, "\"");
}

static void say_header(struct fake_etcd *e)
{
    say(e, "\"header\":{\"revision\":\"%" PRId64 "\"}", e->revision);
}

static void say_kv(struct fake_etcd *e, const struct fake_etcd_event *v, bool value)
{
    say(e, "{");
    say_bytes(e, "key", v->key);
    say(e, ",\"mod_revision\":\"%" PRId64 "\"", v->revision);
    if (!v->deleted) {
        say(e, ",\"create_revision\":\"%" PRId64 "\",\"version\":\"%" PRId64 "\"",
            v->create_revision, v->version);
        if (v->lease != 0) {
            say(e, ",\"lease\":\"%" PRId64 "\"", v->lease);
        }
        if (value && v->value.len != 0) {
            say(e, ",");
            say_bytes(e, "value", v->value);
        }
    }
    say(e, "}");
}

/* --- reading JSON ----------------------------------------------------------------------------- */

static int64_t get_int(struct mu_span object, const char *name)
{
    int64_t v = 0;

    (void)mu_jv_int(mu_jv_member(object, name), &v);
    return v;
}

static bool get_bool(struct mu_span object, const char *name)
{
    return mu_jv_is_true(mu_jv_member(object, name));
}

static bool is_text(struct mu_span object, const char *name, const char *text)
{
    struct mu_span v = mu_jv_member(object, name);

    return v.len == strlen(text) + 2 && memcmp(v.data + 1, text, v.len - 2) == 0;
}

/* The scratch was made large enough for all of a request. */
static struct mu_span get_bytes(struct fake_etcd *e, struct mu_span object, const char *name)
{
    struct mu_span v = mu_jv_member(object, name);
    size_t from = e->scratch.len;

    if (v.len < 2) {
        return (struct mu_span){0};
    }
    MU_ASSERT(mu_base64_decode(&e->scratch, mu_span(v.data + 1, v.len - 2)) == 0);
    return mu_span_skip(mu_buf_span(&e->scratch), from);
}

/* --- the history ------------------------------------------------------------------------------ */

/* Finds the last change to a key at a revision, or NULL if the key did not exist then. */
static const struct fake_etcd_event *find(const struct fake_etcd *e, struct mu_span key,
                                          int64_t revision, size_t before)
{
    for (size_t i = before; i-- > 0;) {
        const struct fake_etcd_event *v = &e->log[i];

        if (v->revision <= revision && mu_span_eq(v->key, key)) {
            return v->deleted ? NULL : v;
        }
    }
    return NULL;
}

static const struct fake_etcd_event *now(const struct fake_etcd *e, struct mu_span key)
{
    return find(e, key, e->revision + 1, e->log_count);
}

static struct mu_span keep(struct mu_span s)
{
    uint8_t *copy = must(mu_malloc(s.len + 1));

    if (s.len != 0) {
        memcpy(copy, s.data, s.len);
    }
    return mu_span(copy, s.len);
}

/* Finds the change to a key that is about to be followed by another; NULL if the key does not
 * exist. */
static const struct fake_etcd_event *supersede(struct fake_etcd *e, struct mu_span key)
{
    for (size_t i = e->log_count; i-- > 0;) {
        if (mu_span_eq(e->log[i].key, key)) {
            e->log[i].until = e->revision + 1;
            return e->log[i].deleted ? NULL : &e->log[i];
        }
    }
    return NULL;
}

/* Finds the first change at a revision or after it; the log is in order. */
static size_t find_revision(const struct fake_etcd *e, int64_t revision)
{
    size_t low = 0;
    size_t high = e->log_count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (e->log[middle].revision < revision) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static void add_event(struct fake_etcd *e, struct mu_span key, struct mu_span value, int64_t lease,
                      bool deleted)
{
    const struct fake_etcd_event *old = supersede(e, key);
    struct fake_etcd_event v = {
        .revision = e->revision + 1,
        .deleted = deleted,
        .key = keep(key),
        .value = keep(value),
        .create_revision = old != NULL ? old->create_revision : e->revision + 1,
        .version = old != NULL ? old->version + 1 : 1,
        .lease = lease,
        .at_ns = mu_sim_now_ns(e->sim),
    };

    if (e->log_count == e->log_cap) {
        e->log_cap = e->log_cap == 0 ? 256 : e->log_cap * 2;
        e->log = must(mu_realloc(e->log, e->log_cap * sizeof(*e->log)));
    }
    e->log[e->log_count++] = v;
    e->changed = true;
}

/* --- leases ----------------------------------------------------------------------------------- */

static struct lease *find_lease(const struct fake_etcd *e, int64_t id)
{
    MU_LIST_FOREACH (it, &e->leases) {
        struct lease *l = MU_CONTAINER_OF(it, struct lease, link);

        if (l->id == id) {
            return l;
        }
    }
    return NULL;
}

static bool lease_lives(const struct fake_etcd *e, int64_t id)
{
    struct lease *l = find_lease(e, id);

    return l != NULL && l->ended_ns == 0;
}

static size_t end_lease(struct fake_etcd *e, struct lease *l)
{
    size_t count;
    struct fake_etcd_event *all = fake_etcd_list(e->log, e->log_count, mu_span("", 0),
                                                 mu_span("", 1), e->revision + 1, &count);
    size_t removed = 0;

    l->ended_ns = mu_sim_now_ns(e->sim);
    for (size_t i = 0; i < count; i++) {
        if (all[i].lease == l->id) {
            add_event(e, all[i].key, (struct mu_span){0}, 0, true);
            removed++;
        }
    }
    mu_free(all);
    return removed;
}

/* --- operations ------------------------------------------------------------------------------- */

static void do_range(struct fake_etcd *e, struct mu_span q)
{
    struct mu_span key = get_bytes(e, q, "key");
    struct mu_span end = get_bytes(e, q, "range_end");
    int64_t revision = get_int(q, "revision");
    int64_t limit = get_int(q, "limit");
    size_t count;
    struct fake_etcd_event *found = fake_etcd_list(
        e->log, e->log_count, key, end, revision == 0 ? e->revision + 1 : revision, &count);

    count =
        fake_etcd_pick(found, count, get_int(q, "max_create_revision"),
                       is_text(q, "sort_target", "CREATE"), is_text(q, "sort_order", "DESCEND"));
    say(e, "{");
    say_header(e);
    for (size_t i = 0;
         i < count && !get_bool(q, "count_only") && (limit == 0 || (int64_t)i < limit); i++) {
        say(e, i == 0 ? ",\"kvs\":[" : ",");
        say_kv(e, &found[i], !get_bool(q, "keys_only"));
        if (i + 1 == count || (limit != 0 && (int64_t)i + 1 == limit)) {
            say(e, "]");
        }
    }
    if (count != 0) {
        say(e, ",\"count\":\"%zu\"", count);
    }
    say(e, "}");
    mu_free(found);
}

static void do_put(struct fake_etcd *e, struct mu_span q)
{
    struct mu_span key = get_bytes(e, q, "key");
    struct mu_span value = get_bytes(e, q, "value");

    add_event(e, key, value, get_int(q, "lease"), false);
    say(e, "{");
    say_header(e);
    say(e, "}");
}

static void do_delete(struct fake_etcd *e, struct mu_span q)
{
    struct mu_span key = get_bytes(e, q, "key");
    struct mu_span end = get_bytes(e, q, "range_end");
    size_t count;
    struct fake_etcd_event *found =
        fake_etcd_list(e->log, e->log_count, key, end, e->revision + 1, &count);

    for (size_t i = 0; i < count; i++) {
        add_event(e, found[i].key, (struct mu_span){0}, 0, true);
    }
    mu_free(found);
    say(e, "{");
    say_header(e);
    if (count != 0) {
        say(e, ",\"deleted\":\"%zu\"", count);
    }
    say(e, "}");
}

/* The lease of a put must exist, or nothing of the request is done. */
static void check_lease(struct fake_etcd *e, struct mu_span put)
{
    int64_t lease = get_int(put, "lease");

    if (lease != 0 && !lease_lives(e, lease)) {
        e->failed = true;
    }
}

static bool compare_holds(struct fake_etcd *e, struct mu_span c)
{
    const struct fake_etcd_event *v = now(e, get_bytes(e, c, "key"));
    int64_t have = 0;
    int64_t want = 0;

    if (is_text(c, "target", "VALUE")) {
        return v != NULL && mu_span_eq(v->value, get_bytes(e, c, "value"));
    }
    if (is_text(c, "target", "MOD")) {
        have = v == NULL ? 0 : v->revision;
        want = get_int(c, "mod_revision");
    } else {
        MU_ASSERT(is_text(c, "target", "CREATE"));
        have = v == NULL ? 0 : v->create_revision;
        want = get_int(c, "create_revision");
    }
    MU_ASSERT(is_text(c, "result", "EQUAL"));
    return have == want;
}

static void do_one(struct fake_etcd *e, struct mu_span op)
{
    struct mu_span q;

    if ((q = mu_jv_member(op, "request_range")).len != 0) {
        say(e, "{\"response_range\":");
        do_range(e, q);
    } else if ((q = mu_jv_member(op, "request_put")).len != 0) {
        say(e, "{\"response_put\":");
        do_put(e, q);
    } else {
        q = mu_jv_member(op, "request_delete_range");
        MU_ASSERT(q.len != 0);
        say(e, "{\"response_delete_range\":");
        do_delete(e, q);
    }
    say(e, "}");
}

static void do_txn(struct fake_etcd *e, struct mu_span q)
{
    struct mu_jv_walk w = mu_jv_walk(mu_jv_member(q, "compare"));
    struct mu_span part;
    struct mu_span branch;
    bool holds = true;
    bool first = true;

    while (mu_jv_next(&w, NULL, &part)) {
        holds = compare_holds(e, part) && holds;
    }
    branch = mu_jv_member(q, holds ? "success" : "failure");
    w = mu_jv_walk(branch);
    while (mu_jv_next(&w, NULL, &part)) {
        check_lease(e, mu_jv_member(part, "request_put"));
    }
    if (e->failed) {
        return;
    }
    say(e, "{%s\"responses\":[", holds ? "\"succeeded\":true," : "");
    w = mu_jv_walk(branch);
    while (mu_jv_next(&w, NULL, &part)) {
        if (!first) {
            say(e, ",");
        }
        first = false;
        do_one(e, part);
    }
    say(e, "],");
    e->revision += e->changed ? 1 : 0;
    say_header(e);
    e->revision -= e->changed ? 1 : 0;
    say(e, "}");
}

static int do_grant(struct fake_etcd *e, struct mu_span q)
{
    int64_t id = get_int(q, "ID");
    struct lease *l = find_lease(e, id);

    if (l != NULL) {
        say(e, "{\"error\":\"etcdserver: lease already exists\",\"code\":9}");
        return 412;
    }
    l = must(mu_calloc(1, sizeof(*l)));
    l->id = id;
    l->ttl_s = get_int(q, "TTL") < 2 ? 2 : get_int(q, "TTL");
    l->until_ns = mu_sim_now_ns(e->sim) + (uint64_t)l->ttl_s * MU_NS_PER_S;
    mu_list_init(&l->link);
    mu_list_push(&e->leases, &l->link);
    say(e, "{");
    say_header(e);
    say(e, ",\"ID\":\"%" PRId64 "\",\"TTL\":\"%" PRId64 "\"}", id, l->ttl_s);
    return 200;
}

static int do_lease(struct fake_etcd *e, const char *path, struct mu_span q)
{
    struct lease *l = find_lease(e, get_int(q, "ID"));
    bool lives = l != NULL && l->ended_ns == 0;

    if (strcmp(path, "/v3/lease/keepalive") == 0) {
        say(e, "{\"result\":{");
        say_header(e);
        if (lives) {
            l->until_ns = mu_sim_now_ns(e->sim) + (uint64_t)l->ttl_s * MU_NS_PER_S;
            say(e, ",\"TTL\":\"%" PRId64 "\"", l->ttl_s);
        }
        say(e, "}}");
        return 200;
    }
    if (strcmp(path, "/v3/lease/timetolive") == 0) {
        say(e, "{");
        say_header(e);
        say(e, ",\"TTL\":\"%d\"}", lives ? 1 : -1);
        return 200;
    }
    if (!lives) {
        e->failed = true;
        return 404;
    }
    (void)end_lease(e, l);
    say(e, "{");
    say_header(e);
    say(e, "}");
    return 200;
}

/* --- watches ---------------------------------------------------------------------------------- */

static void say_events(struct fake_etcd *e, struct stream *s, size_t from)
{
    int64_t revision = e->log[from].revision;
    bool any = false;

    mu_buf_reset(&e->out);
    say(e, "{\"result\":{");
    say_header(e);
    for (size_t i = from; i < e->log_count && e->log[i].revision == revision; i++) {
        const struct fake_etcd_event *v = &e->log[i];
        const struct fake_etcd_event *old = find(e, v->key, revision - 1, i);

        if (fake_etcd_in_range(v->key, s->key, s->end) && !(v->deleted && s->no_delete)) {
            say(e, any ? "," : ",\"events\":[");
            say(e, v->deleted ? "{\"type\":\"DELETE\",\"kv\":" : "{\"kv\":");
            say_kv(e, v, true);
            if (s->prev_kv && old != NULL) {
                say(e, ",\"prev_kv\":");
                say_kv(e, old, true);
            }
            say(e, "}");
            any = true;
        }
    }
    say(e, "%s}}\n", any ? "]" : "");
    if (any) {
        mu_sim_http_answer(s->x, 200, mu_buf_span(&e->out), false);
    }
    s->next = revision + 1;
}

static void drop_stream(struct stream *s)
{
    mu_list_remove(&s->link);
    mu_free((void *)(uintptr_t)s->key.data);
    mu_free((void *)(uintptr_t)s->end.data);
    mu_free(s);
}

static void pump_stream(struct fake_etcd *e, struct stream *s)
{
    if (s->member->isolated) {
        return;
    }
    mu_buf_reset(&e->out);
    if (!s->greeted) {
        s->greeted = true;
        say(e, "{\"result\":{");
        say_header(e);
        say(e, ",\"created\":true}}\n");
        mu_sim_http_answer(s->x, 200, mu_buf_span(&e->out), false);
    }
    if (s->next < e->compacted) {
        struct mu_sim_exchange *x = s->x;

        mu_buf_reset(&e->out);
        say(e, "{\"result\":{");
        say_header(e);
        say(e, ",\"canceled\":true,\"compact_revision\":\"%" PRId64 "\"}}\n", e->compacted);
        drop_stream(s);
        mu_sim_http_set_context(x, NULL);
        mu_sim_http_answer(x, 200, mu_buf_span(&e->out), true);
        return;
    }
    for (size_t i = find_revision(e, s->next); i < e->log_count; i++) {
        if (e->log[i].revision >= s->next) {
            say_events(e, s, i);
        }
    }
}

static void pump(struct fake_etcd *e)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &e->streams) {
        pump_stream(e, MU_CONTAINER_OF(it, struct stream, link));
    }
}

static void start_stream(struct member *m, struct mu_sim_exchange *x, struct mu_span q)
{
    struct fake_etcd *e = m->etcd;
    struct mu_span create = mu_jv_member(q, "create_request");
    struct stream *s = must(mu_calloc(1, sizeof(*s)));
    int64_t start = get_int(create, "start_revision");

    s->member = m;
    s->x = x;
    s->key = keep(get_bytes(e, create, "key"));
    s->end = keep(get_bytes(e, create, "range_end"));
    s->next = start == 0 ? e->revision + 1 : start;
    s->no_delete = mu_jv_member(create, "filters").len != 0;
    s->prev_kv = get_bool(create, "prev_kv");
    mu_list_init(&s->link);
    mu_list_push(&e->streams, &s->link);
    mu_sim_http_set_context(x, s);
    pump_stream(e, s);
}

/* --- requests --------------------------------------------------------------------------------- */

static int run_request(struct fake_etcd *e, const char *path, struct mu_span q)
{
    int code = 200;

    if (strcmp(path, "/v3/kv/range") == 0) {
        int64_t revision = get_int(q, "revision");

        if (revision != 0 && revision < e->compacted) {
            say(e, "{\"error\":\"etcdserver: mvcc: required revision has been "
                   "compacted\",\"code\":11}");
            return 400;
        }
        do_range(e, q);
    } else if (strcmp(path, "/v3/kv/put") == 0) {
        check_lease(e, q);
        if (!e->failed) {
            do_put(e, q);
        }
    } else if (strcmp(path, "/v3/kv/deleterange") == 0) {
        do_delete(e, q);
    } else if (strcmp(path, "/v3/kv/txn") == 0) {
        do_txn(e, q);
    } else if (strcmp(path, "/v3/lease/grant") == 0) {
        code = do_grant(e, q);
    } else {
        code = do_lease(e, path, q);
    }
    if (e->failed) {
        mu_buf_reset(&e->out);
        say(e, "{\"error\":\"etcdserver: requested lease not found\",\"code\":5}");
        code = 404;
    }
    e->revision += e->changed ? 1 : 0;
    return code;
}

static void refuse(struct fake_etcd *e, struct mu_sim_exchange *x, const char *words)
{
    mu_buf_reset(&e->out);
    say(e, "{\"error\":\"etcdserver: %s\",\"code\":14}", words);
    mu_sim_http_answer(x, 503, mu_buf_span(&e->out), true);
}

static void on_request(void *arg, struct mu_sim_exchange *x, const char *method, const char *path,
                       struct mu_span body)
{
    struct member *m = arg;
    struct fake_etcd *e = m->etcd;
    struct mu_prng *prng = mu_sim_prng(e->sim);
    bool times_out;
    int code;

    MU_ASSERT(strcmp(method, "POST") == 0 && mu_jv_valid(body));
    mu_buf_reset(&e->scratch);
    MU_ASSERT(mu_buf_reserve(&e->scratch, body.len + 64) == 0);
    mu_buf_reset(&e->out);
    e->failed = e->changed = false;
    if (m->isolated) {
        refuse(e, x, "no leader");
        return;
    }
    if (strcmp(path, "/v3/watch") == 0) {
        start_stream(m, x, mu_jv_root(body));
        return;
    }
    times_out = mu_sim_faults(e->sim)->reset_every_ns != 0 && mu_prng_chance(prng, TIMEOUT_PPM);
    if (times_out && mu_prng_below(prng, 2) == 0) {
        refuse(e, x, "request timed out");
        return;
    }
    code = run_request(e, path, mu_jv_root(body));
    if (times_out) {
        refuse(e, x, "request timed out, possibly due to previous leader failure");
    } else {
        mu_sim_http_answer(x, code, mu_buf_span(&e->out), true);
    }
    if (e->changed) {
        pump(e);
    }
}

static void on_gone(void *arg, struct mu_sim_exchange *x)
{
    struct stream *s = mu_sim_http_context(x);

    (void)arg;
    if (s != NULL) {
        drop_stream(s);
    }
}

static const struct mu_sim_http_ops ops = {.request = on_request, .gone = on_gone};

/* --- the cluster ------------------------------------------------------------------------------ */

static void on_tick(struct mu_sim *sim, void *arg)
{
    struct fake_etcd *e = arg;

    e->changed = false;
    MU_LIST_FOREACH (it, &e->leases) {
        struct lease *l = MU_CONTAINER_OF(it, struct lease, link);

        if (l->ended_ns == 0 && l->until_ns <= mu_sim_now_ns(sim) && !e->immortal) {
            e->changed = false;
            (void)end_lease(e, l);
            e->revision += e->changed ? 1 : 0;
        }
    }
    pump(e);
    MU_ASSERT(mu_sim_at(sim, mu_sim_now_ns(sim) + TICK_NS, on_tick, e) == 0);
}

struct fake_etcd *fake_etcd_new(struct mu_sim *sim, const char *const *hosts, size_t count)
{
    struct fake_etcd *e = must(mu_calloc(1, sizeof(*e)));

    MU_ASSERT(count <= FAKE_ETCD_MEMBERS);
    e->sim = sim;
    e->revision = 1;
    mu_list_init(&e->leases);
    mu_list_init(&e->streams);
    mu_buf_init(&e->out, OUT_MAX);
    mu_buf_init(&e->scratch, OUT_MAX);
    for (size_t i = 0; i < count; i++) {
        e->members[i].etcd = e;
        e->members[i].server =
            mu_sim_http_serve(mu_sim_host_new(sim, hosts[i]), FAKE_ETCD_PORT, &ops, &e->members[i]);
    }
    e->member_count = count;
    on_tick(sim, e);
    return e;
}

void fake_etcd_free(struct fake_etcd *e)
{
    struct mu_list *it;

    while ((it = e->streams.next) != &e->streams) {
        struct stream *s = MU_CONTAINER_OF(it, struct stream, link);

        mu_sim_http_set_context(s->x, NULL);
        drop_stream(s);
    }
    while ((it = mu_list_pop(&e->leases)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct lease, link));
    }
    for (size_t i = 0; i < e->log_count; i++) {
        mu_free((void *)(uintptr_t)e->log[i].key.data);
        mu_free((void *)(uintptr_t)e->log[i].value.data);
    }
    mu_free(e->log);
    mu_buf_fini(&e->out);
    mu_buf_fini(&e->scratch);
    mu_free(e);
}

void fake_etcd_immortal(struct fake_etcd *e)
{
    e->immortal = true;
}

void fake_etcd_down(struct fake_etcd *e, size_t member, bool down)
{
    mu_sim_http_down(e->members[member].server, down);
}

void fake_etcd_isolate(struct fake_etcd *e, size_t member, bool isolated)
{
    e->members[member].isolated = isolated;
    pump(e);
}

void fake_etcd_put(struct fake_etcd *e, const char *key)
{
    add_event(e, mu_span_str(key), (struct mu_span){0}, 0, false);
    e->revision++;
    pump(e);
}

void fake_etcd_compact(struct fake_etcd *e, int64_t revision)
{
    e->compacted = revision > e->compacted ? revision : e->compacted;
}

int64_t fake_etcd_revision(const struct fake_etcd *e)
{
    return e->revision;
}

int64_t fake_etcd_compacted(const struct fake_etcd *e)
{
    return e->compacted;
}

bool fake_etcd_event(const struct fake_etcd *e, size_t i, struct fake_etcd_event *ret)
{
    if (i >= e->log_count) {
        return false;
    }
    *ret = e->log[i];
    return true;
}

uint64_t fake_etcd_lease_end(const struct fake_etcd *e, int64_t lease)
{
    struct lease *l = find_lease(e, lease);

    return l == NULL ? 0 : l->ended_ns;
}
