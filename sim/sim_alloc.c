/*
 * The allocator of simulated processes. It is linked in place of core/alloc.c: same functions, but
 * each block remembers its owner, so that a process can be discarded at any moment without its
 * help. Blocks are still separate blocks of the C library, so AddressSanitizer sees each one.
 */
#include "sim_impl.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

struct block {
    struct mu_list link; /* in heap->blocks; in no list if the test owns it */
    struct mu_sim_heap *heap;
    size_t size;
};

_Static_assert(sizeof(struct block) % 16 == 0, "what lies behind the header must stay aligned");

bool (*mu_alloc_hook)(size_t size);

static struct mu_sim_heap *payer;
static bool spared;

void mu_sim_spare_memory(bool is_spared)
{
    spared = is_spared;
}

static void charge(struct block *b, struct mu_sim_heap *heap)
{
    b->heap = heap;
    mu_list_init(&b->link);
    if (heap != NULL) {
        mu_list_push(&heap->blocks, &b->link);
        heap->count++;
    }
}

static void discharge(struct block *b)
{
    if (b->heap != NULL) {
        b->heap->count--;
    }
    mu_list_remove(&b->link);
}

bool sim_heap_fails(struct mu_sim_heap *heap)
{
    if (heap == NULL || heap->sim == NULL || spared) {
        return false;
    }
    return heap->short_until_ns > heap->sim->now_ns ||
           mu_prng_chance(&heap->prng, heap->sim->faults.alloc_fail_ppm);
}

static bool is_refused(size_t size)
{
    return (mu_alloc_hook != NULL && !mu_alloc_hook(size)) || sim_heap_fails(payer) ||
           size > SIZE_MAX - sizeof(struct block);
}

static void *allocate(size_t size)
{
    struct block *b = malloc(sizeof(*b) + size);

    if (b == NULL) {
        return NULL;
    }
    b->size = size;
    charge(b, payer);
    return b + 1;
}

void *mu_malloc(size_t size)
{
    return is_refused(size) ? NULL : allocate(size);
}

void *mu_sim_calloc(size_t size)
{
    void *p = allocate(size);

    MU_ASSERT(p != NULL);
    return memset(p, 0, size);
}

void *mu_calloc(size_t count, size_t size)
{
    void *p;

    if (size != 0 && count > SIZE_MAX / size) {
        return NULL;
    }
    p = mu_malloc(count * size);
    if (p != NULL) {
        memset(p, 0, count * size);
    }
    return p;
}

void *mu_realloc(void *ptr, size_t size)
{
    struct block *b;
    struct block *bigger;
    struct mu_sim_heap *heap;

    if (ptr == NULL) {
        return mu_malloc(size);
    }
    if (is_refused(size)) {
        return NULL;
    }
    b = (struct block *)ptr - 1;
    heap = b->heap;
    discharge(b);
    bigger = realloc(b, sizeof(*b) + size);
    if (bigger == NULL) {
        charge(b, heap);
        return NULL;
    }
    bigger->size = size;
    charge(bigger, heap);
    return bigger + 1;
}

void mu_free(void *ptr)
{
    struct block *b;

    if (ptr == NULL) {
        return;
    }
    b = (struct block *)ptr - 1;
    discharge(b);
    free(b);
}

char *mu_strndup(const char *text, size_t len)
{
    char *copy = len == SIZE_MAX ? NULL : mu_malloc(len + 1);

    if (copy != NULL) {
        if (len != 0) {
            memcpy(copy, text, len);
        }
        copy[len] = '\0';
    }
    return copy;
}

struct mu_sim_heap *sim_heap_swap(struct mu_sim_heap *heap)
{
    struct mu_sim_heap *old = payer;

    payer = heap;
    return old;
}

struct mu_sim_heap *mu_sim_outside(void)
{
    return sim_heap_swap(NULL);
}

void mu_sim_inside(struct mu_sim_heap *heap)
{
    (void)sim_heap_swap(heap);
}

void sim_heap_init(struct mu_sim_heap *heap)
{
    *heap = (struct mu_sim_heap){0};
    mu_list_init(&heap->blocks);
}

void sim_heap_drop(struct mu_sim_heap *heap)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&heap->blocks)) != NULL) {
        free(MU_CONTAINER_OF(node, struct block, link));
    }
    heap->count = 0;
}

bool sim_heap_in_place(void)
{
    struct mu_sim_heap probe;
    struct mu_sim_heap *old;
    void *p;
    bool counted;

    sim_heap_init(&probe);
    old = sim_heap_swap(&probe);
    p = mu_malloc(1);
    counted = probe.count == 1;
    mu_free(p);
    (void)sim_heap_swap(old);
    return counted;
}
