/*
 * An intrusive pairing heap of deadlines: no allocation, so arming a timer cannot fail. Ties break
 * by the order of insertion, never by address, so that a run can be repeated.
 */
#ifndef MU_HEAP_H
#define MU_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/time.h"

struct mu_heap_node {
    struct mu_heap_node *child; /* first child */
    struct mu_heap_node *next;  /* next sibling */
    struct mu_heap_node *prev;  /* previous sibling, or the parent for a first child */
    mu_mono_t at;
    uint64_t seq; /* order of insertion; 0 means: not in a heap */
};

struct mu_heap {
    struct mu_heap_node *root;
    uint64_t seq;
};

static inline void mu_heap_init(struct mu_heap *h)
{
    *h = (struct mu_heap){0};
}

static inline void mu_heap_node_init(struct mu_heap_node *n)
{
    *n = (struct mu_heap_node){0};
}

static inline bool mu_heap_contains(const struct mu_heap_node *n)
{
    return n->seq != 0;
}

/** The earliest node, or NULL. */
static inline struct mu_heap_node *mu_heap_min(const struct mu_heap *h)
{
    return h->root;
}

/** The earliest deadline, or MU_MONO_NEVER. */
static inline mu_mono_t mu_heap_deadline(const struct mu_heap *h)
{
    return h->root == NULL ? MU_MONO_NEVER : h->root->at;
}

/** Inserts; the node must not be in a heap. */
void mu_heap_insert(struct mu_heap *h, struct mu_heap_node *n, mu_mono_t at);
/** Removes; a node that is in no heap is left alone. */
void mu_heap_remove(struct mu_heap *h, struct mu_heap_node *n);
/** Removes and returns the earliest node if its time has been reached at `now`, else NULL. */
struct mu_heap_node *mu_heap_pop_due(struct mu_heap *h, mu_mono_t now);

#endif
