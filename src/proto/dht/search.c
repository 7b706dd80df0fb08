#include "proto/dht/search.h"

#include <muster/error.h>

#include "core/alloc.h"

enum node_state {
    NODE_FRESH,
    NODE_ASKED,
    NODE_ANSWERED,
    NODE_FAILED,
};

struct mu_dht_search_node {
    struct mu_dht_neighbour who;
    uint32_t hops;
    enum node_state state;
};

struct mu_dht_query {
    struct mu_dht_id target;
    struct mu_dht_search_node *nodes; /* nearest first */
    size_t count;
    size_t cap;
    uint32_t active; /* calls under way */
    uint32_t calls;
    bool ended;
    bool told;
};

struct call_state {
    struct mu_list link;
    struct mu_dht_search_call what;
};

void mu_dht_search_init(struct mu_dht_search *s, const struct mu_dht_search_config *config)
{
    struct mu_dht_search_config c = *config;

    c.beam = c.beam != 0 ? c.beam : 20;
    c.workers = c.workers != 0 ? c.workers : 4;
    c.batch = c.batch == 0 ? 1 : c.batch > MU_DHT_BATCH_MAX ? MU_DHT_BATCH_MAX : c.batch;
    c.calls_max = c.calls_max != 0 ? c.calls_max : 128;
    c.nodes_max = c.nodes_max != 0 ? c.nodes_max : 256;
    *s = (struct mu_dht_search){.config = c};
    mu_list_init(&s->calls);
}

void mu_dht_search_fini(struct mu_dht_search *s)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&s->calls)) != NULL) {
        mu_free(MU_CONTAINER_OF(node, struct call_state, link));
    }
    for (size_t i = 0; i < s->count; i++) {
        mu_free(s->queries[i].nodes);
    }
    mu_free(s->queries);
    s->queries = NULL;
    s->count = 0;
    s->unfinished = 0;
}

/* --- what a query knows ----------------------------------------------------------------------- */

/* Finds the place where a node is or belongs. */
static size_t find_place(const struct mu_dht_query *q, const struct mu_dht_id *node,
                         bool *ret_there)
{
    size_t low = 0;
    size_t high = q->count;

    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = mu_dht_nearer(&q->target, &q->nodes[mid].who.node, node);

        if (c == 0) {
            *ret_there = true;
            return mid;
        }
        if (c < 0) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    *ret_there = false;
    return low;
}

static struct mu_dht_search_node *find_node(struct mu_dht_query *q, const struct mu_dht_id *node)
{
    bool there;
    size_t at = find_place(q, node, &there);

    return there ? &q->nodes[at] : NULL;
}

static int make_room(const struct mu_dht_search *s, struct mu_dht_query *q)
{
    size_t cap = q->cap == 0 ? 32 : q->cap * 2;
    struct mu_dht_search_node *grown;

    if (q->count < q->cap) {
        return 0;
    }
    cap = cap > s->config.nodes_max ? s->config.nodes_max : cap;
    grown = mu_realloc(q->nodes, cap * sizeof(*grown));
    if (grown == NULL) {
        return MUSTER_ENOMEM;
    }
    q->nodes = grown;
    q->cap = cap;
    return 0;
}

/* Remembers a node. If there are too many, the farthest is forgotten. */
static int add_node(const struct mu_dht_search *s, struct mu_dht_query *q,
                    const struct mu_dht_neighbour *who, uint32_t hops, enum node_state state)
{
    bool there;
    size_t at = find_place(q, &who->node, &there);

    if (there || mu_dht_id_eq(&who->node, &s->config.self.node) ||
        mu_peer_id_eq(&who->peer, &s->config.self.peer)) {
        return 0;
    }
    if (q->count == s->config.nodes_max) {
        if (at == q->count) {
            return 0;
        }
        q->count--;
    } else if (make_room(s, q) != 0) {
        return MUSTER_ENOMEM;
    }
    memmove(q->nodes + at + 1, q->nodes + at, (q->count - at) * sizeof(*q->nodes));
    q->nodes[at] = (struct mu_dht_search_node){*who, hops, state};
    q->count++;
    return 0;
}

/* Finds the nearest node of the beam that was not asked yet. */
static struct mu_dht_search_node *candidate(const struct mu_dht_search *s,
                                            const struct mu_dht_query *q)
{
    uint32_t in_beam = 0;

    if (q->ended || q->calls >= s->config.calls_max) {
        return NULL;
    }
    for (size_t i = 0; i < q->count && in_beam < s->config.beam; i++) {
        if (q->nodes[i].state == NODE_FRESH) {
            return &q->nodes[i];
        }
        in_beam += q->nodes[i].state != NODE_FAILED;
    }
    return NULL;
}

static void end_query(struct mu_dht_search *s, struct mu_dht_query *q)
{
    if (!q->ended) {
        q->ended = true;
        s->unfinished--;
    }
}

int mu_dht_search_add(struct mu_dht_search *s, const struct mu_dht_id *target,
                      const struct mu_dht_neighbour *start, size_t count)
{
    struct mu_dht_query *q;

    if (s->count == s->cap) {
        size_t cap = s->cap == 0 ? 1 : s->cap * 2;
        struct mu_dht_query *grown = mu_realloc(s->queries, cap * sizeof(*grown));

        if (grown == NULL) {
            return MUSTER_ENOMEM;
        }
        s->queries = grown;
        s->cap = cap;
    }
    q = &s->queries[s->count];
    *q = (struct mu_dht_query){.target = *target};
    for (size_t i = 0; i < count; i++) {
        if (add_node(s, q, &start[i], 1, NODE_FRESH) != 0) {
            mu_free(q->nodes);
            return MUSTER_ENOMEM;
        }
    }
    s->count++;
    s->unfinished++;
    return 0;
}

/* --- calls ------------------------------------------------------------------------------------ */

/* Chooses, among the queries that have a node to ask, the one with the fewest calls, then the
 * nearest. */
static struct mu_dht_query *pick_query(struct mu_dht_search *s)
{
    struct mu_dht_query *best = NULL;
    struct mu_dht_id best_at = {{0}};

    for (size_t i = 0; i < s->count; i++) {
        struct mu_dht_query *q = &s->queries[i];
        const struct mu_dht_search_node *n = candidate(s, q);
        struct mu_dht_id at;

        if (n == NULL) {
            if (!q->ended && q->active == 0) {
                end_query(s, q);
            }
            continue;
        }
        at = mu_dht_distance(&n->who.node, &q->target);
        if (best == NULL || q->active < best->active ||
            (q->active == best->active && memcmp(at.bytes, best_at.bytes, MU_DHT_ID_LEN) < 0)) {
            best = q;
            best_at = at;
        }
    }
    return best;
}

static bool in_batch(const struct mu_dht_search_call *c, uint32_t query)
{
    for (size_t i = 0; i < c->count; i++) {
        if (c->queries[i] == query) {
            return true;
        }
    }
    return false;
}

/* Finds another query that the node was not asked about: the one whose key is nearest to the
 * node. */
static struct mu_dht_query *pick_companion(struct mu_dht_search *s,
                                           const struct mu_dht_search_call *c)
{
    struct mu_dht_query *best = NULL;

    for (size_t i = 0; i < s->count; i++) {
        struct mu_dht_query *q = &s->queries[i];
        struct mu_dht_search_node *n;

        if (q->ended || in_batch(c, (uint32_t)i) || q->calls >= s->config.calls_max) {
            continue;
        }
        n = find_node(q, &c->who.node);
        if ((n == NULL || n->state == NODE_FRESH) &&
            (best == NULL || mu_dht_nearer(&c->who.node, &q->target, &best->target) < 0)) {
            best = q;
        }
    }
    return best;
}

static void join_call(struct mu_dht_search *s, struct mu_dht_query *q, struct mu_dht_search_call *c)
{
    struct mu_dht_search_node *n = find_node(q, &c->who.node);

    if (n != NULL) {
        n->state = NODE_ASKED;
    } else {
        /* Without memory, the node may be asked once more, which is harmless. */
        (void)add_node(s, q, &c->who, c->hops, NODE_ASKED);
    }
    q->active++;
    q->calls++;
    c->queries[c->count++] = (uint32_t)(q - s->queries);
}

bool mu_dht_search_next_call(struct mu_dht_search *s, struct mu_dht_search_call *ret)
{
    struct mu_dht_query *q = pick_query(s);
    struct mu_dht_search_node *n;
    struct call_state *call;

    if (q == NULL || s->under_way >= s->config.workers) {
        return false;
    }
    call = mu_calloc(1, sizeof(*call));
    if (call == NULL) {
        if (s->under_way == 0) {
            end_query(s, q); /* nothing would wake it again */
        }
        return false;
    }
    n = candidate(s, q);
    call->what =
        (struct mu_dht_search_call){.number = ++s->numbers, .who = n->who, .hops = n->hops};
    while (q != NULL) {
        join_call(s, q, &call->what);
        q = call->what.count < s->config.batch ? pick_companion(s, &call->what) : NULL;
    }
    mu_list_push(&s->calls, &call->link);
    s->under_way++;
    *ret = call->what;
    return true;
}

int mu_dht_search_learn(struct mu_dht_search *s, const struct mu_dht_search_call *call,
                        uint32_t query, const struct mu_dht_neighbour *who)
{
    return s->queries[query].ended
               ? 0
               : add_node(s, &s->queries[query], who, call->hops + 1, NODE_FRESH);
}

void mu_dht_search_answered(struct mu_dht_search *s, uint64_t number, bool ok)
{
    MU_LIST_FOREACH (it, &s->calls) {
        struct call_state *call = MU_CONTAINER_OF(it, struct call_state, link);

        if (call->what.number != number) {
            continue;
        }
        for (size_t i = 0; i < call->what.count; i++) {
            struct mu_dht_query *q = &s->queries[call->what.queries[i]];
            struct mu_dht_search_node *n = find_node(q, &call->what.who.node);

            q->active--;
            if (n != NULL) {
                n->state = ok ? NODE_ANSWERED : NODE_FAILED;
            }
        }
        mu_list_remove(&call->link);
        mu_free(call);
        s->under_way--;
        return;
    }
}

/* --- ends ------------------------------------------------------------------------------------- */

void mu_dht_search_stop(struct mu_dht_search *s, uint32_t query)
{
    end_query(s, &s->queries[query]);
}

bool mu_dht_search_next_end(struct mu_dht_search *s, uint32_t *ret_query)
{
    (void)pick_query(s);
    for (size_t i = 0; i < s->count; i++) {
        if (s->queries[i].ended && !s->queries[i].told) {
            s->queries[i].told = true;
            *ret_query = (uint32_t)i;
            return true;
        }
    }
    return false;
}

size_t mu_dht_search_nearest(const struct mu_dht_search *s, uint32_t query, size_t max,
                             struct mu_dht_neighbour *out)
{
    const struct mu_dht_query *q = &s->queries[query];
    size_t count = 0;

    for (size_t i = 0; i < q->count && count < max; i++) {
        if (q->nodes[i].state != NODE_FAILED) {
            out[count++] = q->nodes[i].who;
        }
    }
    return count;
}

uint32_t mu_dht_search_hops(const struct mu_dht_search *s, uint32_t query)
{
    const struct mu_dht_query *q = &s->queries[query];

    for (size_t i = 0; i < q->count; i++) {
        if (q->nodes[i].state == NODE_ANSWERED) {
            return q->nodes[i].hops;
        }
    }
    return 0;
}

uint32_t mu_dht_search_calls(const struct mu_dht_search *s, uint32_t query)
{
    return s->queries[query].calls;
}

const struct mu_dht_id *mu_dht_search_target(const struct mu_dht_search *s, uint32_t query)
{
    return &s->queries[query].target;
}
