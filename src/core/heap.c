#include "core/heap.h"

#include <stddef.h>

#include "core/assert.h"

static bool earlier(const struct mu_heap_node *a, const struct mu_heap_node *b)
{
    return a->at.ns != b->at.ns ? a->at.ns < b->at.ns : a->seq < b->seq;
}

/* Joins two roots (either may be NULL) into one. */
static struct mu_heap_node *meld(struct mu_heap_node *a, struct mu_heap_node *b)
{
    if (a == NULL) {
        return b;
    }
    if (b == NULL) {
        return a;
    }
    if (earlier(b, a)) {
        struct mu_heap_node *t = a;
        a = b;
        b = t;
    }
    b->next = a->child;
    if (b->next != NULL) {
        b->next->prev = b;
    }
    b->prev = a;
    a->child = b;
    a->next = NULL;
    a->prev = NULL;
    return a;
}

/* The two-pass join of a list of siblings: pairs from the left, then all from the right. */
static struct mu_heap_node *join_siblings(struct mu_heap_node *first)
{
    struct mu_heap_node *pairs = NULL;
    struct mu_heap_node *root = NULL;

    while (first != NULL) {
        struct mu_heap_node *a = first;
        struct mu_heap_node *b = a->next;

        first = b == NULL ? NULL : b->next;
        a->next = a->prev = NULL;
        if (b != NULL) {
            b->next = b->prev = NULL;
        }
        a = meld(a, b);
        a->next = pairs;
        pairs = a;
    }
    while (pairs != NULL) {
        struct mu_heap_node *rest = pairs->next;

        pairs->next = NULL;
        root = meld(root, pairs);
        pairs = rest;
    }
    return root;
}

void mu_heap_insert(struct mu_heap *h, struct mu_heap_node *n, mu_mono_t at)
{
    MU_ASSERT(n->seq == 0);
    n->child = n->next = n->prev = NULL;
    n->at = at;
    n->seq = ++h->seq;
    h->root = meld(h->root, n);
}

void mu_heap_remove(struct mu_heap *h, struct mu_heap_node *n)
{
    if (n->seq == 0) {
        return;
    }
    if (n == h->root) {
        h->root = join_siblings(n->child);
    } else {
        if (n->prev->child == n) {
            n->prev->child = n->next;
        } else {
            n->prev->next = n->next;
        }
        if (n->next != NULL) {
            n->next->prev = n->prev;
        }
        h->root = meld(h->root, join_siblings(n->child));
    }
    mu_heap_node_init(n);
}

struct mu_heap_node *mu_heap_pop_due(struct mu_heap *h, mu_mono_t now)
{
    struct mu_heap_node *n = h->root;

    if (n == NULL || !mu_mono_reached(n->at, now)) {
        return NULL;
    }
    mu_heap_remove(h, n);
    return n;
}
