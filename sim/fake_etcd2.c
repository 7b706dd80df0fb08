#include "fake_etcd2.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "sim_http.h"

#define TICK_NS    (100 * MU_NS_PER_MS)
#define KEYS       "/v2/keys"
#define FIELDS_MAX 8

struct member {
    struct fake_etcd2 *etcd;
    struct mu_sim_http_server *server;
};

struct wait {
    struct mu_list link;
    struct mu_sim_exchange *x;
    char *path;
    int64_t index;
    bool recursive;
};

struct fake_etcd2 {
    struct mu_sim *sim;
    struct member members[FAKE_ETCD2_MEMBERS];
    size_t member_count;
    struct etcd2_model model;
    struct mu_list waits;
    uint32_t timeout_ppm;
    bool careless;
};

struct fields {
    size_t count;
    char *names[FIELDS_MAX];
    char *values[FIELDS_MAX];
};

static void *must(void *p)
{
    MU_ASSERT(p != NULL);
    return p;
}

/* --- requests --------------------------------------------------------------------------------- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c - 'a' + 10;
}

static void unescape(char *text)
{
    char *to = text;

    for (; *text != '\0'; text++) {
        if (*text == '%' && text[1] != '\0' && text[2] != '\0') {
            *to++ = (char)(hex(text[1]) * 16 + hex(text[2]));
            text += 2;
        } else {
            *to++ = *text;
        }
    }
    *to = '\0';
}

/* Parses a query or a form in place. */
static void split_fields(struct fields *f, char *text)
{
    char *rest = text;

    for (char *item = strsep(&rest, "&"); item != NULL && f->count < FIELDS_MAX;
         item = strsep(&rest, "&")) {
        char *value = item;
        char *name = strsep(&value, "=");

        if (name[0] == '\0' || value == NULL) {
            continue;
        }
        unescape(value);
        f->names[f->count] = name;
        f->values[f->count++] = value;
    }
}

static const char *field(const struct fields *f, const char *name)
{
    for (size_t i = 0; i < f->count; i++) {
        if (strcmp(f->names[i], name) == 0) {
            return f->values[i];
        }
    }
    return NULL;
}

static bool is_true(const struct fields *f, const char *name)
{
    const char *value = field(f, name);

    return value != NULL && strcmp(value, "true") == 0;
}

static int64_t number(const struct fields *f, const char *name)
{
    const char *value = field(f, name);

    return value == NULL ? 0 : strtoll(value, NULL, 10);
}

static void answer(struct fake_etcd2 *e, struct mu_sim_exchange *x, int code)
{
    char index[24];

    (void)snprintf(index, sizeof(index), "%" PRId64, e->model.index);
    mu_sim_http_keep(x, index);
    mu_sim_http_answer(x, code, mu_buf_span(&e->model.out), true);
}

static void drop_wait(struct wait *w)
{
    mu_list_remove(&w->link);
    mu_free(w->path);
    mu_free(w);
}

static void pump(struct fake_etcd2 *e)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &e->waits) {
        struct wait *w = MU_CONTAINER_OF(it, struct wait, link);
        struct mu_sim_exchange *x = w->x;

        if (etcd2_model_watch(&e->model, w->path, w->index, w->recursive) != 0) {
            mu_sim_http_set_context(x, NULL);
            drop_wait(w);
            mu_sim_http_answer(x, 200, mu_buf_span(&e->model.out), true);
        }
    }
}

static void start_wait(struct fake_etcd2 *e, struct mu_sim_exchange *x, const char *path,
                       const struct fields *f)
{
    struct wait *w = must(mu_calloc(1, sizeof(*w)));

    w->x = x;
    w->path = must(mu_strndup(path, strlen(path)));
    w->index = number(f, "waitIndex");
    w->recursive = is_true(f, "recursive");
    mu_list_init(&w->link);
    mu_list_push(&e->waits, &w->link);
    mu_sim_http_set_context(x, w);
    mu_sim_http_answer(x, 200, (struct mu_span){0}, false);
    pump(e);
}

static int run_put(struct fake_etcd2 *e, const char *path, const struct fields *f)
{
    const char *exist = field(f, "prevExist");
    struct etcd2_put put = {
        .path = path,
        .value = field(f, "value"),
        .prev_value = field(f, "prevValue"),
        .prev_index = number(f, "prevIndex"),
        .prev_exist = exist == NULL ? -1 : strcmp(exist, "true") == 0,
        .ttl_s = number(f, "ttl"),
        .dir = is_true(f, "dir"),
        .refresh = is_true(f, "refresh"),
    };

    if (e->careless) {
        put.prev_value = NULL;
    }
    return etcd2_model_put(&e->model, mu_sim_now_ns(e->sim), &put);
}

static void run_request(struct fake_etcd2 *e, struct mu_sim_exchange *x, const char *method,
                        const char *path, const struct fields *f, bool silent)
{
    int code;

    if (strcmp(method, "PUT") == 0) {
        code = run_put(e, path, f);
    } else if (strcmp(method, "DELETE") == 0) {
        code = etcd2_model_delete(&e->model, path, field(f, "prevValue"));
    } else if (is_true(f, "wait")) {
        start_wait(e, x, path, f);
        return;
    } else {
        code = etcd2_model_get(&e->model, mu_sim_now_ns(e->sim), path);
    }
    if (!silent) {
        answer(e, x, code);
    }
    pump(e);
}

static void on_request(void *arg, struct mu_sim_exchange *x, const char *method, const char *target,
                       struct mu_span body)
{
    struct fake_etcd2 *e = ((struct member *)arg)->etcd;
    struct mu_prng *prng = mu_sim_prng(e->sim);
    char *path = must(mu_strndup(target, strlen(target)));
    char *form = must(mu_strndup((const char *)body.data, body.len));
    char *query = strchr(path, '?');
    struct fields f = {0};
    bool silent = mu_prng_chance(prng, e->timeout_ppm);

    mu_sim_http_set_context(x, NULL);
    if (query != NULL) {
        *query = '\0';
        split_fields(&f, query + 1);
    }
    split_fields(&f, form);
    unescape(path);
    MU_ASSERT(strncmp(path, KEYS, strlen(KEYS)) == 0);
    (void)etcd2_model_expire(&e->model, mu_sim_now_ns(e->sim));
    pump(e);
    /* The request times out: done, or not done. */
    if (!silent || mu_prng_below(prng, 2) == 0) {
        run_request(e, x, method, path + strlen(KEYS), &f, silent);
    }
    mu_free(path);
    mu_free(form);
}

static void on_gone(void *arg, struct mu_sim_exchange *x)
{
    struct wait *w = mu_sim_http_context(x);

    (void)arg;
    if (w != NULL) {
        mu_sim_http_set_context(x, NULL);
        drop_wait(w);
    }
}

static const struct mu_sim_http_ops ops = {.request = on_request, .gone = on_gone};

/* --- the cluster ------------------------------------------------------------------------------ */

static void on_tick(struct mu_sim *sim, void *arg)
{
    struct fake_etcd2 *e = arg;

    if (etcd2_model_expire(&e->model, mu_sim_now_ns(sim))) {
        pump(e);
    }
    MU_ASSERT(mu_sim_at(sim, mu_sim_now_ns(sim) + TICK_NS, on_tick, e) == 0);
}

struct fake_etcd2 *fake_etcd2_new(struct mu_sim *sim, const char *const *hosts, size_t count,
                                  uint32_t timeout_ppm)
{
    struct fake_etcd2 *e = must(mu_calloc(1, sizeof(*e)));

    MU_ASSERT(count <= FAKE_ETCD2_MEMBERS);
    e->sim = sim;
    e->member_count = count;
    e->timeout_ppm = timeout_ppm;
    mu_list_init(&e->waits);
    etcd2_model_init(&e->model);
    for (size_t i = 0; i < count; i++) {
        e->members[i].etcd = e;
        e->members[i].server = mu_sim_http_serve(mu_sim_host_new(sim, hosts[i]), FAKE_ETCD2_PORT,
                                                 &ops, &e->members[i]);
    }
    MU_ASSERT(mu_sim_at(sim, mu_sim_now_ns(sim) + TICK_NS, on_tick, e) == 0);
    return e;
}

void fake_etcd2_free(struct fake_etcd2 *e)
{
    while (!mu_list_empty(&e->waits)) {
        struct wait *w = MU_CONTAINER_OF(e->waits.next, struct wait, link);

        mu_sim_http_set_context(w->x, NULL);
        drop_wait(w);
    }
    etcd2_model_fini(&e->model);
    mu_free(e);
}

void fake_etcd2_down(struct fake_etcd2 *e, size_t member, bool down)
{
    mu_sim_http_down(e->members[member].server, down);
}

void fake_etcd2_careless(struct fake_etcd2 *e)
{
    e->careless = true;
}

void fake_etcd2_heal(struct fake_etcd2 *e)
{
    e->timeout_ppm = 0;
}

const struct etcd2_model *fake_etcd2_model(const struct fake_etcd2 *e)
{
    return &e->model;
}
