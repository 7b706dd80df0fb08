#include "proto/state/recall.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

int mu_recall_init(struct mu_recall *r, uint32_t nodes)
{
    *r = (struct mu_recall){.node_count = nodes, .copies = MU_KEPT_COPIES_MAX};
    if (nodes == 0 || nodes > MU_RECALL_NODES_MAX) {
        return MUSTER_ELIMIT;
    }
    r->nodes = mu_calloc(nodes, sizeof(*r->nodes));
    return r->nodes == NULL ? MUSTER_ENOMEM : 0;
}

void mu_recall_fini(struct mu_recall *r)
{
    for (uint32_t i = 0; r->keys != NULL && i < r->key_count && i < MU_RECALL_KEYS_MAX; i++) {
        mu_buf_fini(&r->keys[i]);
    }
    mu_free(r->keys);
    mu_free(r->nodes);
    mu_free(r->entries);
    *r = (struct mu_recall){0};
}

static int make_room(struct mu_recall *r, size_t more)
{
    size_t cap = r->entry_cap;
    struct mu_recall_entry *entries;

    if (more <= cap - r->entry_count) {
        return 0;
    }
    cap = cap * 2 > r->entry_count + more ? cap * 2 : r->entry_count + more;
    entries = mu_realloc(r->entries, cap * sizeof(*entries));
    if (entries == NULL) {
        return MUSTER_ENOMEM;
    }
    r->entries = entries;
    r->entry_cap = cap;
    return 0;
}

static void add_heads(struct mu_recall *r, uint32_t node, const struct mu_kept_head *heads,
                      size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t era = heads[i].version.era;

        r->entries[r->entry_count++] = (struct mu_recall_entry){.head = heads[i], .node = node};
        r->era = era > r->era ? era : r->era;
    }
}

int mu_recall_take(struct mu_recall *r, uint32_t node, const struct mu_kept_report *report)
{
    int err = make_room(r, report->head_count);

    MU_ASSERT(node < r->node_count && !r->nodes[node].reported);
    if (err == 0) {
        r->nodes[node].reported = true;
        r->nodes[node].workers = report->workers;
        r->reports++;
        add_heads(r, node, report->heads, report->head_count);
    }
    return err;
}

/* Numbers follow each other as the keys come, and most often a node has the key of the last. */
static int number_key(struct mu_recall *r, struct mu_span key, uint32_t *ret)
{
    uint32_t i = r->key_count;

    if (r->keys == NULL) {
        r->keys = mu_calloc(MU_RECALL_KEYS_MAX, sizeof(*r->keys));
    }
    if (r->keys == NULL) {
        return MUSTER_ENOMEM;
    }
    while (r->key_count <= MU_RECALL_KEYS_MAX && i > 0) {
        i--;
        if (mu_span_eq(mu_buf_span(&r->keys[i]), key)) {
            *ret = i;
            return 0;
        }
    }
    if (r->key_count < MU_RECALL_KEYS_MAX) {
        mu_buf_init(&r->keys[r->key_count], MU_KEPT_TEXT_MAX);
        if (mu_buf_append(&r->keys[r->key_count], key) != 0) {
            return MUSTER_ENOMEM;
        }
    }
    *ret = r->key_count;
    r->key_count += r->key_count <= MU_RECALL_KEYS_MAX;
    return 0;
}

int mu_recall_take_holding(struct mu_recall *r, uint32_t node,
                           const struct mu_kept_holding *holding)
{
    int err;

    MU_ASSERT(node < r->node_count);
    err = number_key(r, holding->topology, &r->nodes[node].key);
    err = err != 0 ? err : make_room(r, holding->head_count);
    if (err == 0) {
        add_heads(r, node, holding->heads, holding->head_count);
        r->copies = holding->copies < r->copies ? holding->copies : r->copies;
    }
    return err;
}

uint32_t mu_recall_missing(const struct mu_recall *r)
{
    return r->node_count - r->reports;
}

/* --- which version ---------------------------------------------------------------------------- */

/* The newest version first. What is called the same version but is of another kind is another. */
static int by_kind(const struct mu_recall_entry *a, const struct mu_recall_entry *b)
{
    int order = mu_kept_version_cmp(&b->head.version, &a->head.version);

    if (order == 0 && a->head.replicated != b->head.replicated) {
        order = a->head.replicated ? -1 : 1;
    }
    if (order == 0 && a->head.world != b->head.world) {
        order = a->head.world < b->head.world ? -1 : 1;
    }
    return order;
}

static int by_kind_and_place(const void *x, const void *y)
{
    const struct mu_recall_entry *a = x;
    const struct mu_recall_entry *b = y;
    int order = by_kind(a, b);

    if (order == 0 && a->node != b->node) {
        order = a->node < b->node ? -1 : 1;
    }
    if (order == 0 && a->head.rank != b->head.rank) {
        order = a->head.rank < b->head.rank ? -1 : 1;
    }
    return order;
}

/* Whether `count` entries of one replicated version are on all nodes. */
static bool is_everywhere(const struct mu_recall *r, const struct mu_recall_entry *e, size_t count)
{
    uint32_t next = 0;

    for (size_t i = 0; i < count && next < r->node_count; i++) {
        next += e[i].node == next; /* they are sorted by node */
    }
    return next == r->node_count;
}

/* Whether among `count` entries of one version each rank's is on the node where the rank will be.
 * The entries are sorted by node, and the ranks of the round as well. */
static bool is_in_place(const struct mu_recall *r, const struct mu_recall_entry *e, size_t count)
{
    uint64_t rank = 0;
    size_t i = 0;

    for (uint32_t node = 0; node < r->node_count; node++) {
        uint64_t end = rank + r->nodes[node].workers;

        while (i < count && e[i].node < node) {
            i++;
        }
        for (; i < count && e[i].node == node && rank < end; i++) {
            rank += e[i].head.rank == rank;
        }
        if (rank != end) {
            return false;
        }
    }
    return rank == e[0].head.world;
}

/* --- with copies ------------------------------------------------------------------------------ */

/* A rank of the new round: whether its node has its shard, and which others do. */
struct recall_rank {
    bool own;
    uint32_t node_count;
    uint32_t nodes[MU_KEPT_SOURCES_MAX];
};

static int add_fetch(struct mu_kept_plan *p, uint32_t rank, const uint32_t *nodes, uint32_t count)
{
    if (count == 0 || p->fetch_count == MU_KEPT_FETCHES_MAX) {
        return MUSTER_ENOENT; /* nobody has it */
    }
    p->fetches[p->fetch_count] = (struct mu_kept_fetch){.rank = rank, .node_count = count};
    memcpy(p->fetches[p->fetch_count].nodes, nodes, count * sizeof(*nodes));
    p->fetch_count++;
    return 0;
}

static int make_fetches(struct mu_kept_plan *p, uint64_t most)
{
    size_t count = most < MU_KEPT_FETCHES_MAX ? (size_t)most : MU_KEPT_FETCHES_MAX;

    p->fetches = mu_calloc(count + 1, sizeof(*p->fetches));
    p->fetch_count = 0;
    return p->fetches == NULL ? MUSTER_ENOMEM : 0;
}

static void note_holder(const struct mu_recall *r, struct recall_rank *ranks,
                        const struct mu_recall_entry *e)
{
    struct recall_rank *k = &ranks[e->head.rank];
    const struct mu_recall_node *node = &r->nodes[e->node];

    if (e->head.rank >= node->base && e->head.rank - node->base < node->workers) {
        k->own = true;
    } else if (k->node_count < MU_KEPT_SOURCES_MAX &&
               (k->node_count == 0 || k->nodes[k->node_count - 1] != e->node)) {
        k->nodes[k->node_count++] = e->node; /* they are sorted by node */
    }
}

/* Who fetches which shard of the version of `count` entries. MUSTER_ENOENT: some rank cannot. */
static int plan_shards(const struct mu_recall *r, const struct mu_recall_entry *e, size_t count,
                       struct mu_kept_plan *p)
{
    const struct mu_recall_node *last = &r->nodes[r->node_count - 1];
    uint64_t world = (uint64_t)last->base + last->workers;
    struct recall_rank *ranks;
    int err;

    if (world != e[0].head.world || world > MU_RECALL_RANKS_MAX) {
        return MUSTER_ENOENT;
    }
    ranks = mu_calloc((size_t)world, sizeof(*ranks));
    err = ranks == NULL ? MUSTER_ENOMEM : make_fetches(p, world);
    for (size_t i = 0; err == 0 && i < count; i++) {
        note_holder(r, ranks, &e[i]);
    }
    for (uint32_t rank = 0; err == 0 && rank < world; rank++) {
        if (!ranks[rank].own) {
            err = add_fetch(p, rank, ranks[rank].nodes, ranks[rank].node_count);
        }
    }
    mu_free(ranks);
    return err;
}

/* Nodes without a copy fetch one, not all from the same node. */
static int plan_replicas(const struct mu_recall *r, const struct mu_recall_entry *e, size_t count,
                         struct mu_kept_plan *p)
{
    uint32_t *holders = mu_calloc(count, sizeof(*holders));
    uint32_t held = 0;
    uint32_t next = 0;
    int err = holders == NULL ? MUSTER_ENOMEM : make_fetches(p, r->node_count);

    for (size_t i = 0; err == 0 && i < count; i++) {
        if (held == 0 || holders[held - 1] != e[i].node) {
            holders[held++] = e[i].node;
        }
    }
    for (uint32_t node = 0; err == 0 && node < r->node_count; node++) {
        uint32_t nodes[MU_KEPT_SOURCES_MAX];
        uint32_t n = held < MU_KEPT_SOURCES_MAX ? held : MU_KEPT_SOURCES_MAX;

        if (next < held && holders[next] == node) {
            next++;
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            nodes[i] = holders[(p->fetch_count + i) % held];
        }
        err = add_fetch(p, r->nodes[node].base, nodes, n);
    }
    mu_free(holders);
    return err;
}

static int plan_version(const struct mu_recall *r, const struct mu_recall_entry *e, size_t count,
                        struct mu_kept_plan *p)
{
    int err = e[0].head.replicated ? plan_replicas(r, e, count, p) : plan_shards(r, e, count, p);

    if (err != 0) {
        mu_free(p->fetches);
        p->fetches = NULL;
        p->fetch_count = 0;
    }
    return err;
}

/* False: there are more ranks than can be numbered. */
static bool count_ranks(struct mu_recall *r)
{
    uint64_t base = 0;

    for (uint32_t i = 0; i < r->node_count; i++) {
        r->nodes[i].base = (uint32_t)base;
        base += r->nodes[i].workers;
        if (base > INT32_MAX) {
            return false;
        }
    }
    return true;
}

static int plan_parts(const struct mu_recall *r, struct mu_kept_plan *p)
{
    p->parts = mu_calloc((size_t)r->node_count + 1, sizeof(*p->parts));
    if (p->parts == NULL) {
        return MUSTER_ENOMEM;
    }
    if (r->key_count < 2 || r->key_count > MU_RECALL_KEYS_MAX) {
        return 0;
    }
    for (uint32_t i = 0; i < r->node_count; i++) {
        if (i == 0 || r->nodes[i].key != r->nodes[i - 1].key) {
            p->parts[p->part_count++].key = r->nodes[i].key;
        }
        p->parts[p->part_count - 1].nodes++;
    }
    return 0;
}

/* --- the decision ----------------------------------------------------------------------------- */

/* The newest version that counts; with `plan`, also by what is fetched. */
static int choose(struct mu_recall *r, struct mu_kept_answer *a, struct mu_kept_plan *plan)
{
    int err = 0;

    if (r->entry_count > 1) {
        qsort(r->entries, r->entry_count, sizeof(*r->entries), by_kind_and_place);
    }
    for (size_t i = 0; i < r->entry_count && !a->found && mu_recall_missing(r) == 0;) {
        const struct mu_recall_entry *first = &r->entries[i];
        size_t end = i + 1;

        while (end < r->entry_count && by_kind(first, &r->entries[end]) == 0) {
            end++;
        }
        a->found = first->head.replicated ? is_everywhere(r, first, end - i)
                                          : is_in_place(r, first, end - i);
        if (!a->found && plan != NULL) {
            err = plan_version(r, first, end - i, plan);
            a->found = err == 0;
        }
        if (err == MUSTER_ENOMEM) {
            return err;
        }
        if (a->found) {
            a->version = first->head.version;
            a->replicated = first->head.replicated;
            a->world = first->head.world;
        }
        i = end;
    }
    return 0;
}

static struct mu_kept_answer begin_answer(const struct mu_recall *r, uint64_t nonce)
{
    return (struct mu_kept_answer){.era = r->era == UINT64_MAX ? UINT64_MAX : r->era + 1,
                                   .nonce = nonce};
}

void mu_recall_decide(struct mu_recall *r, uint64_t nonce, struct mu_kept_answer *ret_answer)
{
    *ret_answer = begin_answer(r, nonce);
    (void)choose(r, ret_answer, NULL);
}

int mu_recall_plan(struct mu_recall *r, uint64_t nonce, struct mu_kept_plan *ret_plan)
{
    struct mu_kept_plan p = {.answer = begin_answer(r, nonce), .copies = r->copies};
    int err = choose(r, &p.answer, count_ranks(r) ? &p : NULL);

    err = err != 0 ? err : plan_parts(r, &p);
    if (err != 0) {
        mu_kept_plan_fini(&p);
        return err;
    }
    *ret_plan = p;
    return 0;
}

void mu_recall_exclude(struct mu_recall *r, const struct mu_kept_version *version)
{
    size_t left = 0;

    for (size_t i = 0; i < r->entry_count; i++) {
        if (mu_kept_version_cmp(&r->entries[i].head.version, version) != 0) {
            r->entries[left++] = r->entries[i];
        }
    }
    r->entry_count = left;
}
