#include "proto/state/recall.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "core/assert.h"

int mu_recall_init(struct mu_recall *r, uint32_t nodes)
{
    *r = (struct mu_recall){.node_count = nodes};
    if (nodes == 0 || nodes > MU_RECALL_NODES_MAX) {
        return MUSTER_ELIMIT;
    }
    r->nodes = mu_calloc(nodes, sizeof(*r->nodes));
    return r->nodes == NULL ? MUSTER_ENOMEM : 0;
}

void mu_recall_fini(struct mu_recall *r)
{
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

int mu_recall_take(struct mu_recall *r, uint32_t node, const struct mu_kept_report *report)
{
    int err = make_room(r, report->head_count);

    MU_ASSERT(node < r->node_count && !r->nodes[node].reported);
    if (err != 0) {
        return err;
    }
    r->nodes[node] = (struct mu_recall_node){.reported = true, .workers = report->workers};
    r->reports++;
    for (size_t i = 0; i < report->head_count; i++) {
        const struct mu_kept_head *h = &report->heads[i];

        r->entries[r->entry_count++] = (struct mu_recall_entry){.head = *h, .node = node};
        r->era = h->version.era > r->era ? h->version.era : r->era;
    }
    return 0;
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

void mu_recall_decide(struct mu_recall *r, uint64_t nonce, struct mu_kept_answer *ret_answer)
{
    struct mu_kept_answer a = {.era = r->era == UINT64_MAX ? UINT64_MAX : r->era + 1,
                               .nonce = nonce};

    if (r->entry_count > 1) {
        qsort(r->entries, r->entry_count, sizeof(*r->entries), by_kind_and_place);
    }
    for (size_t i = 0; i < r->entry_count && !a.found && mu_recall_missing(r) == 0;) {
        const struct mu_recall_entry *first = &r->entries[i];
        size_t end = i + 1;

        while (end < r->entry_count && by_kind(first, &r->entries[end]) == 0) {
            end++;
        }
        if (first->head.replicated ? is_everywhere(r, first, end - i)
                                   : is_in_place(r, first, end - i)) {
            a.found = true;
            a.version = first->head.version;
            a.replicated = first->head.replicated;
            a.world = first->head.world;
        }
        i = end;
    }
    *ret_answer = a;
}
