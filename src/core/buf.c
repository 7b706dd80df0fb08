#include "core/buf.h"

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"

void mu_buf_init(struct mu_buf *b, size_t max)
{
    *b = (struct mu_buf){.max = max};
}

void mu_buf_fini(struct mu_buf *b)
{
    mu_free(b->data);
    *b = (struct mu_buf){.max = b->max};
}

int mu_buf_reserve(struct mu_buf *b, size_t n)
{
    size_t cap;
    uint8_t *data;

    if (n > b->max - b->len) {
        return MUSTER_ELIMIT;
    }
    /* Written so that no sum can wrap: with a maximum near SIZE_MAX, `n` may be anything. */
    if (n <= b->cap - b->head - b->len) {
        return 0;
    }
    /* Sliding down is cheap while at least as much was consumed as is held. */
    if (n <= b->cap - b->len && b->head >= b->len) {
        memmove(b->data, b->data + b->head, b->len);
        b->head = 0;
        return 0;
    }
    cap = b->len + n;
    if (cap < b->max / 2) {
        cap = cap < 128 ? 256 : cap * 2;
    } else {
        cap = b->max;
    }
    if (cap < b->len + n) {
        cap = b->len + n;
    }
    if (b->head == 0) {
        data = mu_realloc(b->data, cap);
        if (data == NULL) {
            return MUSTER_ENOMEM;
        }
    } else {
        data = mu_malloc(cap);
        if (data == NULL) {
            return MUSTER_ENOMEM;
        }
        if (b->len != 0) {
            memcpy(data, b->data + b->head, b->len);
        }
        mu_free(b->data);
    }
    b->data = data;
    b->head = 0;
    b->cap = cap;
    return 0;
}

int mu_buf_append(struct mu_buf *b, struct mu_span s)
{
    int err = mu_buf_reserve(b, s.len);

    if (err != 0) {
        return err;
    }
    mu_buf_put(b, s);
    return 0;
}

void mu_buf_consume(struct mu_buf *b, size_t n)
{
    MU_ASSERT(n <= b->len);
    b->head += n;
    b->len -= n;
    if (b->len == 0) {
        b->head = 0;
    }
}

void mu_buf_reset(struct mu_buf *b)
{
    b->head = 0;
    b->len = 0;
}

void mu_buf_trim(struct mu_buf *b, size_t keep)
{
    if (b->len == 0 && b->cap > keep) {
        mu_free(b->data);
        b->data = NULL;
        b->head = 0;
        b->cap = 0;
    }
}
