/*
 * Nodes of a rendezvous over a compare-and-set register in memory, in virtual time: what the
 * machine is tried with. A request reaches the register after `latency`, its answer comes back
 * after as much again; every change of the register fires the watch of each node. The register's
 * token is its version.
 *
 *     world_init(&w);  node = world_add(&w, "a");  world_join(&w, node);  world_run(&w, until);
 *
 * What happens is told in lines (world.say), which are the golden traces.
 */
#ifndef MU_RDZV_WORLD_H
#define MU_RDZV_WORLD_H

#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "proto/rdzv/node.h"

#define WORLD_NODES_MAX 600
#define WORLD_MS        MU_NS_PER_MS
#define WORLD_S         MU_NS_PER_S
#define WORLD_EPOCH     (UINT64_C(1700000000) * WORLD_S)
/* Monotonic clocks start somewhere. */
#define WORLD_MONO_START (UINT64_C(5000) * WORLD_S)

struct world_node {
    struct mu_rdzv r;
    char name[24];
    bool alive;
    bool paused;
    bool cut;        /* requests fail */
    bool rejoin;     /* as an agent: joins again when somebody waits, or when it was dropped */
    int64_t skew_ns; /* of its wall clock */
    /* What it was told last. */
    unsigned told; /* MU_RDZV_* of all updates since world_forget() */
    bool member;
    int64_t rank;
    int64_t round;
    size_t world_size;
    char members[256];
    size_t waiting;
    size_t left;
    int code;
    char text[MU_ERRMSG_CAP];
    uint64_t assigned_at;
    uint64_t assignments;
    uint64_t last_read; /* version */
    const char *doing;  /* the action being written */
};

enum world_kind { WORLD_EXEC = 1, WORLD_ANSWER, WORLD_WATCH };

struct world_item {
    enum world_kind kind;
    uint64_t at;
    uint64_t seq;
    size_t node;
    uint64_t request;
    bool write;
    bool has_token;
    uint64_t token;
    bool present;
    bool accepted;
    bool failed;
    const char *doing;
    uint8_t *bytes;
    size_t len;
};

struct world {
    struct mu_rdzv_config config; /* for nodes that are added */
    uint64_t now;                 /* from zero */
    uint64_t latency;
    uint64_t seq;
    bool present;
    uint64_t version;
    uint8_t *bytes;
    size_t len;
    struct world_node *nodes[WORLD_NODES_MAX];
    size_t node_count;
    struct world_item *items;
    size_t item_count;
    size_t item_cap;
    uint64_t reads;
    uint64_t writes;
    uint64_t lost;
    uint64_t bytes_moved;
    void (*say)(struct world *w, const char *line);
    /* Instead of mu_rdzv_step(), if set. */
    int (*step)(struct mu_rdzv *r, const struct mu_rdzv_event *ev, struct mu_rdzv_update *up);
    /* Called after each step of a node; for checks. */
    void (*check)(struct world *w, struct world_node *n, const struct mu_rdzv_update *up);
};

static inline void world_init(struct world *w)
{
    *w = (struct world){.config = mu_rdzv_config_defaults(), .latency = WORLD_MS};
    w->config.settings.min_nodes = 2;
    w->config.settings.max_nodes = 2;
    w->config.push = true;
}

static inline void world_fini(struct world *w)
{
    for (size_t i = 0; i < w->node_count; i++) {
        mu_rdzv_fini(&w->nodes[i]->r);
        free(w->nodes[i]);
    }
    for (size_t i = 0; i < w->item_count; i++) {
        free(w->items[i].bytes);
    }
    free(w->items);
    free(w->bytes);
    *w = (struct world){0};
}

/* --- telling -------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static inline void
world_say(struct world *w, const struct world_node *n, const char *format, ...)
{
    char line[1024];
    int len;
    va_list args;

    if (w->say == NULL) {
        return;
    }
    len = snprintf(line, sizeof(line), "[%9.3f] %s ", (double)w->now / 1e9, n->name);
    va_start(args, format);
    (void)vsnprintf(line + len, sizeof(line) - (size_t)len, format, args);
    va_end(args);
    w->say(w, line);
}

static inline void world_list(char *out, size_t cap, const struct mu_rdzv_state *s, int which,
                              const char *title)
{
    size_t n = strlen(out);
    size_t said = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        const struct mu_rdzv_member *m = &s->members[s->order[i]];

        if (which == 0 ? m->participant : which == 1 ? m->waiting : m->spare) {
            n += (size_t)snprintf(out + n, n < cap ? cap - n : 0, "%s%s%s", said == 0 ? title : " ",
                                  said == 0 ? "{" : "", m->node.addr);
            said++;
        }
    }
    if (said != 0 && n < cap) {
        (void)snprintf(out + n, cap - n, "}");
    }
}

/** Such as `round 0 {a b} last call until 30.002, waiting {c}`. */
static inline char *world_show(char *out, size_t cap, const struct mu_rdzv_state *s)
{
    size_t n = (size_t)snprintf(out, cap, "round %lld", (long long)s->round);

    if (mu_rdzv_participants(s) == 0) {
        n += (size_t)snprintf(out + n, cap - n, " {}");
    }
    world_list(out, cap, s, 0, " ");
    n = strlen(out);
    if (s->complete) {
        n += (size_t)snprintf(out + n, cap - n, " complete");
    } else if (s->has_deadline) {
        n += (size_t)snprintf(out + n, cap - n, " last call until %.3f",
                              ((double)s->deadline.ns - (double)WORLD_EPOCH) / 1e9);
    }
    world_list(out, cap, s, 1, ", waiting ");
    world_list(out, cap, s, 2, ", spare ");
    if (s->closed) {
        n = strlen(out);
        (void)snprintf(out + n, cap - n, ", closed");
    }
    return out;
}

static inline char *world_show_bytes(char *out, size_t cap, const uint8_t *bytes, size_t len)
{
    struct mu_rdzv_state s;
    enum mu_rdzv_dialect dialect;
    struct mu_errmsg msg;

    mu_rdzv_state_init(&s);
    if (mu_rdzv_state_decode(mu_span(bytes, len), &s, &dialect, &msg) != 0) {
        (void)snprintf(out, cap, "garbage");
    } else {
        world_show(out, cap, &s);
    }
    mu_rdzv_state_fini(&s);
    return out;
}

/* --- the register -------------------------------------------------------- */

static inline struct world_item *world_post(struct world *w, enum world_kind kind, size_t node,
                                            uint64_t at)
{
    if (w->item_count == w->item_cap) {
        w->item_cap = w->item_cap == 0 ? 64 : 2 * w->item_cap;
        w->items = realloc(w->items, w->item_cap * sizeof(*w->items));
        assert_non_null(w->items);
    }
    w->items[w->item_count] =
        (struct world_item){.kind = kind, .node = node, .at = at, .seq = w->seq++};
    return &w->items[w->item_count++];
}

static inline uint8_t *world_dup(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len + 1);

    assert_non_null(copy);
    if (len != 0) {
        memcpy(copy, bytes, len);
    }
    return copy;
}

static inline void world_put_register(struct world *w, const uint8_t *bytes, size_t len)
{
    free(w->bytes);
    w->bytes = world_dup(bytes, len);
    w->len = len;
    w->present = true;
    w->version++;
    for (size_t i = 0; i < w->node_count; i++) {
        if (w->nodes[i]->alive && w->nodes[i]->r.config.push) {
            world_post(w, WORLD_WATCH, i, w->now + w->latency)->token = w->version;
        }
    }
}

static inline void world_exec(struct world *w, const struct world_item *item)
{
    struct world_node *n = w->nodes[item->node];
    bool accepted = false;
    bool failed = n->cut;
    struct world_item *answer;
    char shown[512];

    if (item->write && !failed) {
        w->writes++;
        accepted = item->has_token ? w->present && item->token == w->version : !w->present;
        if (accepted) {
            world_put_register(w, item->bytes, item->len);
            world_say(w, n, "writes %s: %s", item->doing,
                      world_show_bytes(shown, sizeof(shown), w->bytes, w->len));
        } else {
            w->lost++;
            world_say(w, n, "loses the write of %s", item->doing);
        }
    } else if (!failed) {
        w->reads++;
    }
    answer = world_post(w, WORLD_ANSWER, item->node, w->now + w->latency);
    answer->request = item->request;
    answer->write = item->write;
    answer->accepted = accepted;
    answer->failed = failed;
    answer->present = w->present;
    answer->token = w->version;
    if (w->present && !failed) {
        answer->bytes = world_dup(w->bytes, w->len);
        answer->len = w->len;
        w->bytes_moved += w->len;
    }
}

/* --- nodes ------------------------------------------------------------ */

static inline struct mu_now world_now(const struct world *w, const struct world_node *n)
{
    return (struct mu_now){
        .mono = {WORLD_MONO_START + w->now},
        .wall = {(uint64_t)((int64_t)(WORLD_EPOCH + w->now) + n->skew_ns)},
    };
}

static inline void world_tell(struct world *w, struct world_node *n,
                              const struct mu_rdzv_update *up)
{
    n->told |= up->flags;
    if ((up->flags & MU_RDZV_SKEWED) != 0) {
        world_say(w, n, "finds the clock of %s %llu ms ahead", up->skewed->addr,
                  (unsigned long long)up->skew_ms);
    }
    if ((up->flags & MU_RDZV_ASSIGNED) != 0) {
        size_t at = 0;

        n->members[0] = '\0';
        for (size_t i = 0; i < up->world && at + 24 < sizeof(n->members); i++) {
            at += (size_t)snprintf(n->members + at, sizeof(n->members) - at, "%s%s",
                                   i == 0 ? "" : " ", up->members[i]->addr);
        }
        n->member = true;
        n->rank = up->rank;
        n->round = up->round;
        n->world_size = up->world;
        n->left = up->world;
        n->waiting = 0;
        n->assigned_at = w->now;
        n->assignments++;
        world_say(w, n, "is rank %lld of %zu in round %lld {%s}", (long long)n->rank, n->world_size,
                  (long long)n->round, n->members);
    }
    if ((up->flags & MU_RDZV_LOST) != 0) {
        n->left = up->left;
        world_say(w, n, "has lost members, %zu are left", up->left);
    }
    if ((up->flags & MU_RDZV_WAITING) != 0) {
        n->waiting = up->waiting;
        world_say(w, n, "sees %zu waiting", up->waiting);
    }
    if ((up->flags & MU_RDZV_CLOSED) != 0) {
        world_say(w, n, "knows that it is closed");
    }
    if ((up->flags & MU_RDZV_SEEN) != 0) {
        char shown[512];

        world_say(w, n, "sees %s", world_show(shown, sizeof(shown), mu_rdzv_state(&n->r)));
    }
    if ((up->flags & MU_RDZV_ENDED) != 0) {
        n->member = false;
        world_say(w, n, "%s", up->end == MU_RDZV_END_LEFT ? "is out" : "was dropped");
    }
    if ((up->flags & MU_RDZV_FAILED) != 0) {
        n->member = n->member &&
                    (up->failed & (MU_RDZV_OP_JOIN | MU_RDZV_OP_LEAVE | MU_RDZV_OP_MEMBER)) == 0;
        n->code = up->code;
        (void)snprintf(n->text, sizeof(n->text), "%s", up->text);
        world_say(w, n, "fails, %s: %s", muster_errname(up->code) + strlen("MUSTER_"), up->text);
    }
}

static inline void world_step(struct world *w, size_t index, struct mu_rdzv_event *ev)
{
    struct world_node *n = w->nodes[index];
    struct mu_rdzv_update up;

    ev->now = world_now(w, n);
    assert_int_equal((w->step != NULL ? w->step : mu_rdzv_step)(&n->r, ev, &up), 0);
    assert_true((up.flags & MU_RDZV_DEADLINE) != 0);
    if ((up.flags & (MU_RDZV_DO_READ | MU_RDZV_DO_WRITE)) != 0) {
        struct world_item *item = world_post(w, WORLD_EXEC, index, w->now + w->latency);

        item->request = up.request;
        item->write = (up.flags & MU_RDZV_DO_WRITE) != 0;
        item->doing = n->doing;
        item->has_token = up.has_token;
        if (item->write) {
            item->bytes = world_dup(up.bytes.data, up.bytes.len);
            item->len = up.bytes.len;
            w->bytes_moved += up.bytes.len;
        }
        if (up.has_token) {
            assert_int_equal(up.token.len, 8);
            item->token = mu_get_u64(up.token.data);
        }
    }
    world_tell(w, n, &up);
    if (w->check != NULL) {
        w->check(w, n, &up);
    }
    if (n->rejoin && ((n->member && (n->waiting != 0 || n->left != n->world_size)) ||
                      ((up.flags & MU_RDZV_ENDED) != 0 && up.end == MU_RDZV_END_DROPPED))) {
        struct mu_rdzv_event join = {.type = MU_RDZV_JOIN};

        n->member = false;
        world_say(w, n, "joins again");
        world_step(w, index, &join);
    }
}

static inline void world_trace(void *context, const char *what, uint64_t a, uint64_t b)
{
    struct world_node *n = context;

    (void)b;
    if (strcmp(what, "rdzv.act") == 0) {
        n->doing = mu_rdzv_action_name((enum mu_rdzv_action)a);
    }
}

/** Returns its number. */
static inline size_t world_add(struct world *w, const char *name)
{
    struct world_node *n = calloc(1, sizeof(*n));
    struct mu_rdzv_config config = w->config;
    struct mu_errmsg msg;

    assert_non_null(n);
    assert_true(w->node_count < WORLD_NODES_MAX);
    (void)snprintf(n->name, sizeof(n->name), "%s", name);
    n->alive = true;
    config.node = (struct mu_rdzv_node){.addr = n->name, .pid = 1, .local_id = 0};
    config.seed = 1 + w->node_count;
    config.trace = (struct mu_trace){world_trace, n};
    assert_int_equal(mu_rdzv_init(&n->r, &config, &msg), 0);
    w->nodes[w->node_count] = n;
    return w->node_count++;
}

static inline void world_wish(struct world *w, size_t node, enum mu_rdzv_event_type type)
{
    struct mu_rdzv_event ev = {.type = type};

    world_step(w, node, &ev);
}

static inline void world_join(struct world *w, size_t node)
{
    world_wish(w, node, MU_RDZV_JOIN);
}

/** Stops it for good, without a word. */
static inline void world_crash(struct world *w, size_t node)
{
    w->nodes[node]->alive = false;
    w->nodes[node]->member = false;
}

static inline void world_pause(struct world *w, size_t node, bool paused)
{
    w->nodes[node]->paused = paused;
}

static inline void world_forget(struct world *w)
{
    for (size_t i = 0; i < w->node_count; i++) {
        w->nodes[i]->told = 0;
    }
}

static inline void world_deliver(struct world *w, const struct world_item *item)
{
    struct world_node *n = w->nodes[item->node];
    uint8_t token[8];
    struct mu_rdzv_event ev = {
        .request = item->request,
        .present = item->present,
        .bytes = {item->bytes, item->len},
        .token = {token, sizeof(token)},
    };

    mu_put_u64(token, item->token);
    if (item->kind == WORLD_WATCH) {
        ev.type = MU_RDZV_WATCH;
    } else if (item->failed) {
        ev.type = MU_RDZV_BACKEND_FAILED;
        ev.status = MUSTER_ECONN;
        ev.text = "the store is unreachable";
        ev.transient = true;
    } else if (!item->write) {
        ev.type = MU_RDZV_STATE_READ;
        if (n->last_read != item->token || !item->present) {
            char shown[512];

            world_say(w, n, "reads %s",
                      item->present ? world_show_bytes(shown, sizeof(shown), item->bytes, item->len)
                                    : "nothing");
        }
    } else {
        ev.type = item->accepted ? MU_RDZV_STATE_WRITTEN : MU_RDZV_WRITE_LOST;
    }
    if (item->kind == WORLD_ANSWER) {
        n->last_read = item->token;
    }
    world_step(w, item->node, &ev);
}

/* The next thing that is due by `until`: an item's number, or item_count + the node whose timer it
 * is; SIZE_MAX if there is none. Items go first. */
static inline size_t world_next(const struct world *w, uint64_t until, uint64_t *ret_at)
{
    size_t best = SIZE_MAX;
    uint64_t at = until;
    uint64_t seq = UINT64_MAX;

    for (size_t i = 0; i < w->item_count; i++) {
        const struct world_item *item = &w->items[i];
        bool held = item->kind != WORLD_EXEC && w->nodes[item->node]->paused;

        if (!held && (item->at < at || (item->at == at && item->seq < seq))) {
            best = i;
            at = item->at;
            seq = item->seq;
        }
    }
    for (size_t i = 0; i < w->node_count; i++) {
        mu_mono_t deadline = mu_rdzv_deadline(&w->nodes[i]->r);
        uint64_t due = deadline.ns <= WORLD_MONO_START ? 0 : deadline.ns - WORLD_MONO_START;

        if (w->nodes[i]->alive && !w->nodes[i]->paused && deadline.ns != MU_MONO_NEVER.ns &&
            (due < at || (due == at && best == SIZE_MAX))) {
            best = w->item_count + i;
            at = due;
        }
    }
    *ret_at = at;
    return best;
}

/** One thing that is due by `until`; false, and it is `until`, if there is none. */
static inline bool world_turn(struct world *w, uint64_t until)
{
    uint64_t at;
    size_t next = world_next(w, until, &at);

    if (next == SIZE_MAX) {
        w->now = until > w->now ? until : w->now;
        return false;
    }
    w->now = at > w->now ? at : w->now;
    if (next >= w->item_count) {
        struct mu_rdzv_event ev = {.type = MU_RDZV_TIMEOUT};

        world_step(w, next - w->item_count, &ev);
    } else {
        struct world_item item = w->items[next];

        w->items[next] = w->items[--w->item_count];
        if (item.kind == WORLD_EXEC) {
            world_exec(w, &item);
        } else if (w->nodes[item.node]->alive) {
            world_deliver(w, &item);
        }
        free(item.bytes);
    }
    return true;
}

static inline void world_run(struct world *w, uint64_t until)
{
    while (world_turn(w, until)) {
    }
}

/** Runs until all living nodes are members, or fails the test at `until`. */
static inline void world_run_until_assigned(struct world *w, uint64_t until)
{
    for (;;) {
        bool all = true;

        for (size_t i = 0; i < w->node_count; i++) {
            all = all && (!w->nodes[i]->alive || w->nodes[i]->member);
        }
        if (all) {
            return;
        }
        if (!world_turn(w, until)) {
            fail_msg("not all are assigned after %.3f s", (double)w->now / 1e9);
        }
    }
}

#endif
