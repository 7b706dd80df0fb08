/*
 * An intrusive doubly linked list. The node lives inside the element; the head is a node of its
 * own. A node that is on no list points to itself, so removing twice is harmless.
 */
#ifndef MU_LIST_H
#define MU_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct mu_list {
    struct mu_list *next;
    struct mu_list *prev;
};

/** The element of type `type` whose member `member` is at `ptr`. */
#define MU_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define MU_LIST_FOREACH(it, head)                                                                  \
    for (struct mu_list *it = (head)->next; it != (head); it = it->next)

/** As above, and the body may remove or free the element of `it` (no other). */
#define MU_LIST_FOREACH_SAFE(it, tmp, head)                                                        \
    for (struct mu_list *it = (head)->next, *tmp = it->next; it != (head); it = tmp, tmp = it->next)

static inline void mu_list_init(struct mu_list *l)
{
    l->next = l;
    l->prev = l;
}

static inline bool mu_list_empty(const struct mu_list *head)
{
    return head->next == head;
}

/** Appends; the node must not be on a list. */
static inline void mu_list_push(struct mu_list *head, struct mu_list *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void mu_list_remove(struct mu_list *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    mu_list_init(node);
}

/** Removes and returns the first node, or NULL. */
static inline struct mu_list *mu_list_pop(struct mu_list *head)
{
    struct mu_list *node = head->next;

    if (node == head) {
        return NULL;
    }
    mu_list_remove(node);
    return node;
}

#endif
