#include "etcd2_model.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "codec/etcd/v2.h"
#include "codec/text/json_string.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "core/time.h"

#define OUT_MAX (16u << 20)

struct node {
    struct mu_list link;
    char *path;
    char *value;
    bool dir;
    uint64_t until_ns; /* 0: for ever */
    int64_t created;
    int64_t modified;
};

static void *must(void *p)
{
    MU_ASSERT(p != NULL);
    return p;
}

static char *copy(const char *text)
{
    return must(mu_strndup(text, strlen(text)));
}

void etcd2_model_init(struct etcd2_model *m)
{
    *m = (struct etcd2_model){.index = 3};
    mu_list_init(&m->nodes);
    mu_buf_init(&m->out, OUT_MAX);
}

static void free_node(struct node *n)
{
    mu_list_remove(&n->link);
    mu_free(n->path);
    mu_free(n->value);
    mu_free(n);
}

void etcd2_model_fini(struct etcd2_model *m)
{
    while (!mu_list_empty(&m->nodes)) {
        free_node(MU_CONTAINER_OF(m->nodes.next, struct node, link));
    }
    for (size_t i = 0; i < m->event_count; i++) {
        mu_free(m->events[i].path);
        mu_free(m->events[i].value);
    }
    mu_free(m->events);
    mu_buf_fini(&m->out);
}

static struct node *find(const struct etcd2_model *m, const char *path)
{
    MU_LIST_FOREACH (it, &m->nodes) {
        struct node *n = MU_CONTAINER_OF(it, struct node, link);

        if (strcmp(n->path, path) == 0) {
            return n;
        }
    }
    return NULL;
}

const char *etcd2_model_value(const struct etcd2_model *m, const char *path)
{
    const struct node *n = find(m, path);

    return n == NULL ? NULL : n->value;
}

/* Returns whether `path` is below `dir`; directly, if that is asked for. */
static bool is_below(const char *path, const char *dir, bool directly)
{
    size_t len = strlen(dir);

    return strncmp(path, dir, len) == 0 && path[len] == '/' &&
           (!directly || strchr(path + len + 1, '/') == NULL);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void say(struct etcd2_model *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void say(struct etcd2_model *m, const char *format, ...)
{
    char text[256];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    MU_ASSERT(mu_buf_append(&m->out, mu_span_str(text)) == 0);
}

static void say_quoted(struct etcd2_model *m, const char *name, const char *text)
{
    size_t cap = strlen(text) * 6 + 2;
    char *quoted = must(mu_malloc(cap));
    size_t len = mu_json_quote(mu_span_str(text), quoted, cap);

    say(m, "\"%s\":", name);
    MU_ASSERT(mu_buf_append(&m->out, mu_span(quoted, len)) == 0);
    mu_free(quoted);
}

static void say_node(struct etcd2_model *m, uint64_t now_ns, const struct node *n, bool children)
{
    bool first = true;

    say(m, "{");
    say_quoted(m, "key", n->path);
    if (n->dir) {
        say(m, ",\"dir\":true");
    } else {
        say(m, ",");
        say_quoted(m, "value", n->value);
    }
    if (n->until_ns != 0) {
        say(m, ",\"ttl\":%" PRIu64, (n->until_ns - now_ns) / MU_NS_PER_S + 1);
    }
    say(m, ",\"modifiedIndex\":%" PRId64 ",\"createdIndex\":%" PRId64, n->modified, n->created);
    MU_LIST_FOREACH (it, &m->nodes) {
        const struct node *child = MU_CONTAINER_OF(it, struct node, link);

        if (children && n->dir && is_below(child->path, n->path, true)) {
            say(m, first ? ",\"nodes\":[" : ",");
            first = false;
            say_node(m, now_ns, child, false);
        }
    }
    say(m, first ? "}" : "]}");
}

static int refuse(struct etcd2_model *m, int code, const char *path)
{
    mu_buf_reset(&m->out);
    say(m, "{\"errorCode\":%d,\"message\":\"refused\",", code);
    say_quoted(m, "cause", path);
    say(m, ",\"index\":%" PRId64 "}", m->index);
    return code == MU_ETCD2_NOT_FOUND ? 404 : code == MU_ETCD2_NOT_FILE ? 403 : 412;
}

/* --- changes ---------------------------------------------------------------------------------- */

static void note(struct etcd2_model *m, const char *action, const char *path, const char *value)
{
    if (m->event_count == m->event_cap) {
        m->event_cap = m->event_cap == 0 ? 64 : m->event_cap * 2;
        m->events = must(mu_realloc(m->events, m->event_cap * sizeof(m->events[0])));
    }
    m->events[m->event_count++] = (struct etcd2_event){
        .index = m->index,
        .action = action,
        .path = copy(path),
        .value = value == NULL ? NULL : copy(value),
    };
}

static struct node *add_node(struct etcd2_model *m, const char *path, bool dir)
{
    struct node *n = must(mu_calloc(1, sizeof(*n)));

    n->path = copy(path);
    n->value = copy("");
    n->dir = dir;
    n->created = n->modified = m->index;
    mu_list_init(&n->link);
    mu_list_push(&m->nodes, &n->link);
    return n;
}

static void add_parents(struct etcd2_model *m, const char *path)
{
    char *text = copy(path);

    for (char *slash = strchr(text + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (find(m, text) == NULL) {
            (void)add_node(m, text, true);
        }
        *slash = '/';
    }
    mu_free(text);
}

static void remove_tree(struct etcd2_model *m, struct node *n)
{
    char *path = copy(n->path);

    free_node(n);
    MU_LIST_FOREACH_SAFE (it, tmp, &m->nodes) {
        struct node *child = MU_CONTAINER_OF(it, struct node, link);

        if (is_below(child->path, path, false)) {
            free_node(child);
        }
    }
    mu_free(path);
}

bool etcd2_model_expire(struct etcd2_model *m, uint64_t now_ns)
{
    bool any = false;
    bool again = true;

    while (again) {
        again = false;
        MU_LIST_FOREACH (it, &m->nodes) {
            struct node *n = MU_CONTAINER_OF(it, struct node, link);

            if (n->until_ns != 0 && n->until_ns <= now_ns) {
                m->index++;
                note(m, "expire", n->path, NULL);
                remove_tree(m, n);
                any = again = true;
                break; /* The list has changed. */
            }
        }
    }
    return any;
}

uint64_t etcd2_model_next(const struct etcd2_model *m)
{
    uint64_t next = UINT64_MAX;

    MU_LIST_FOREACH (it, &m->nodes) {
        const struct node *n = MU_CONTAINER_OF(it, struct node, link);

        next = n->until_ns != 0 && n->until_ns < next ? n->until_ns : next;
    }
    return next;
}

static int check_put(struct etcd2_model *m, const struct node *n, const struct etcd2_put *put)
{
    bool compared = put->prev_value != NULL || put->prev_index != 0;

    if (n == NULL && (compared || put->prev_exist == 1)) {
        return refuse(m, MU_ETCD2_NOT_FOUND, put->path);
    }
    if (n != NULL && put->prev_exist == 0) {
        return refuse(m, MU_ETCD2_EXISTS, put->path);
    }
    if (n != NULL && n->dir && !put->dir && !put->refresh) {
        return refuse(m, MU_ETCD2_NOT_FILE, put->path);
    }
    if ((put->prev_value != NULL && strcmp(n->value, put->prev_value) != 0) ||
        (put->prev_index != 0 && n->modified != put->prev_index)) {
        return refuse(m, MU_ETCD2_COMPARE_FAILED, put->path);
    }
    return 0;
}

int etcd2_model_put(struct etcd2_model *m, uint64_t now_ns, const struct etcd2_put *put)
{
    struct node *n = find(m, put->path);
    bool fresh = n == NULL;
    int code = check_put(m, n, put);
    const char *action = put->prev_value != NULL || put->prev_index != 0 ? "compareAndSwap"
                         : put->prev_exist == 0                          ? "create"
                         : put->prev_exist == 1                          ? "update"
                                                                         : "set";

    if (code != 0) {
        return code;
    }
    m->index++;
    if (fresh) {
        add_parents(m, put->path);
        n = add_node(m, put->path, put->dir);
    }
    n->until_ns = put->ttl_s == 0 ? 0 : now_ns + (uint64_t)put->ttl_s * MU_NS_PER_S;
    if (!put->refresh) {
        mu_free(n->value);
        n->value = copy(put->value == NULL ? "" : put->value);
        n->modified = m->index;
        note(m, action, n->path, n->value);
    }
    mu_buf_reset(&m->out);
    say(m, "{\"action\":\"%s\",\"node\":", action);
    say_node(m, now_ns, n, false);
    say(m, "}");
    return fresh ? 201 : 200;
}

int etcd2_model_get(struct etcd2_model *m, uint64_t now_ns, const char *path)
{
    const struct node *n = find(m, path);

    if (n == NULL) {
        return refuse(m, MU_ETCD2_NOT_FOUND, path);
    }
    mu_buf_reset(&m->out);
    say(m, "{\"action\":\"get\",\"node\":");
    say_node(m, now_ns, n, true);
    say(m, "}");
    return 200;
}

int etcd2_model_delete(struct etcd2_model *m, const char *path, const char *prev_value)
{
    struct node *n = find(m, path);

    if (n == NULL) {
        return refuse(m, MU_ETCD2_NOT_FOUND, path);
    }
    if (prev_value != NULL && strcmp(n->value, prev_value) != 0) {
        return refuse(m, MU_ETCD2_COMPARE_FAILED, path);
    }
    m->index++;
    note(m, "compareAndDelete", path, NULL);
    remove_tree(m, n);
    mu_buf_reset(&m->out);
    say(m, "{\"action\":\"compareAndDelete\",\"node\":{");
    say_quoted(m, "key", path);
    say(m, ",\"modifiedIndex\":%" PRId64 ",\"createdIndex\":1}}", m->index);
    return 200;
}

int etcd2_model_watch(struct etcd2_model *m, const char *path, int64_t index, bool recursive)
{
    for (size_t i = 0; i < m->event_count; i++) {
        const struct etcd2_event *e = &m->events[i];

        if (e->index < index ||
            (strcmp(e->path, path) != 0 && !(recursive && is_below(e->path, path, false)) &&
             !(strcmp(e->action, "expire") == 0 && is_below(path, e->path, false)))) {
            continue;
        }
        mu_buf_reset(&m->out);
        say(m, "{\"action\":\"%s\",\"node\":{", e->action);
        say_quoted(m, "key", e->path);
        if (e->value != NULL) {
            say(m, ",");
            say_quoted(m, "value", e->value);
        }
        say(m, ",\"modifiedIndex\":%" PRId64 ",\"createdIndex\":%" PRId64 "}}", e->index, e->index);
        return 200;
    }
    return 0;
}
