/*
 * Memory of long messages, kept for the next ones, since touching new memory costs more than
 * filling it. Memory that was not used since the last look is freed, and there is a bound.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

#define KEEP_LEAST ((size_t)1 << 20)   /* shorter ones are not worth it */
#define KEEP_BYTES ((size_t)256 << 20) /* in total */
#define KEEP_COUNT 16
#define HUGE_PAGE  ((uintptr_t)2 << 20)

struct kept {
    struct mu_buf buf;
    bool idle; /* since the last look */
};

struct mu_rpc_pool {
    atomic_int refs;
    pthread_mutex_t lock;
    struct kept kept[KEEP_COUNT];
    size_t count;
    size_t bytes;
    size_t out; /* taken and not given back */
};

struct mu_rpc_pool *mu_rpc_pool_new(void)
{
    struct mu_rpc_pool *p = mu_calloc(1, sizeof(*p));

    if (p != NULL) {
        atomic_init(&p->refs, 1);
        (void)pthread_mutex_init(&p->lock, NULL);
    }
    return p;
}

struct mu_rpc_pool *mu_rpc_pool_ref(struct mu_rpc_pool *p)
{
    (void)atomic_fetch_add(&p->refs, 1);
    return p;
}

void mu_rpc_pool_drop(struct mu_rpc_pool *p)
{
    if (p == NULL || atomic_fetch_sub(&p->refs, 1) != 1) {
        return;
    }
    for (size_t i = 0; i < p->count; i++) {
        mu_buf_fini(&p->kept[i].buf);
    }
    (void)pthread_mutex_destroy(&p->lock);
    mu_free(p);
}

static struct mu_buf remove_at(struct mu_rpc_pool *p, size_t index)
{
    struct mu_buf buf = p->kept[index].buf;

    p->kept[index] = p->kept[--p->count];
    p->bytes -= buf.cap;
    return buf;
}

/* Asks for fewer and larger pages: touching them takes a fraction of the time. */
static void advise(const struct mu_buf *buf)
{
    uintptr_t from = ((uintptr_t)buf->data + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1);
    uintptr_t to = ((uintptr_t)buf->data + buf->cap) & ~(HUGE_PAGE - 1);

    if (buf->data != NULL && from < to) {
        (void)madvise((void *)from, to - from, MADV_HUGEPAGE);
    }
}

struct mu_buf mu_rpc_pool_take(struct mu_rpc_pool *p, size_t len, size_t least)
{
    struct mu_buf buf;
    size_t best = SIZE_MAX;

    mu_buf_init(&buf, 0);
    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < p->count; i++) {
        if (p->kept[i].buf.cap >= len &&
            (best == SIZE_MAX || p->kept[i].buf.cap < p->kept[best].buf.cap)) {
            best = i;
        }
    }
    if (best != SIZE_MAX) {
        buf = remove_at(p, best);
    }
    p->out += len >= KEEP_LEAST ? 1 : 0;
    (void)pthread_mutex_unlock(&p->lock);
    if (buf.data == NULL) {
        buf.data = mu_malloc(least);
        buf.cap = buf.data == NULL ? 0 : least;
        advise(&buf);
    }
    mu_buf_reset(&buf);
    return buf;
}

void mu_rpc_pool_give(struct mu_rpc_pool *p, struct mu_buf *buf)
{
    if (p != NULL && buf->cap >= KEEP_LEAST) {
        (void)pthread_mutex_lock(&p->lock);
        p->out -= p->out != 0 ? 1 : 0;
        if (p->count < KEEP_COUNT && buf->cap <= KEEP_BYTES - p->bytes) {
            p->bytes += buf->cap;
            p->kept[p->count++] = (struct kept){.buf = *buf};
            *buf = (struct mu_buf){.max = buf->max};
        }
        (void)pthread_mutex_unlock(&p->lock);
    }
    mu_buf_fini(buf);
}

bool mu_rpc_pool_look(struct mu_rpc_pool *p)
{
    struct mu_buf idle[KEEP_COUNT];
    size_t count = 0;
    bool left;

    (void)pthread_mutex_lock(&p->lock);
    for (size_t i = p->count; i > 0; i--) {
        if (p->kept[i - 1].idle) {
            idle[count++] = remove_at(p, i - 1);
        }
    }
    for (size_t i = 0; i < p->count; i++) {
        p->kept[i].idle = true;
    }
    left = p->count != 0 || p->out != 0;
    (void)pthread_mutex_unlock(&p->lock);
    for (size_t i = 0; i < count; i++) {
        mu_buf_fini(&idle[i]);
    }
    return left;
}
