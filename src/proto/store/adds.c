#include "proto/store/adds.h"

#include <muster/error.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

void mu_adds_init(struct mu_adds *a, uint64_t seed)
{
    *a = (struct mu_adds){0};
    mu_map_init(&a->calls, seed);
    mu_list_init(&a->to_send);
}

void mu_adds_fini(struct mu_adds *a)
{
    MU_ASSERT(a->calls.count == 0 && a->landed == NULL);
    mu_map_fini(&a->calls);
}

/* Sums wrap, as the server's do. */
static int64_t plus(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x + (uint64_t)y);
}

static int64_t minus(int64_t x, int64_t y)
{
    return (int64_t)((uint64_t)x - (uint64_t)y);
}

static struct mu_adds_call *new_call(struct mu_adds *a, struct mu_span key)
{
    struct mu_adds_call *call = mu_malloc(sizeof(*call) + key.len);

    if (call == NULL) {
        return NULL;
    }
    *call = (struct mu_adds_call){.key = mu_span(call->bytes, key.len)};
    if (key.len != 0) {
        memcpy(call->bytes, key.data, key.len);
    }
    mu_list_init(&call->link);
    mu_list_init(&call->sent);
    mu_list_init(&call->waiting);
    if (mu_map_insert(&a->calls, &call->node, call->key) != 0) {
        mu_free(call);
        return NULL;
    }
    mu_list_push(&a->to_send, &call->link);
    return call;
}

static void free_call(struct mu_adds *a, struct mu_adds_call *call)
{
    mu_list_remove(&call->link);
    mu_map_remove(&a->calls, &call->node);
    mu_free(call);
}

int mu_adds_submit(struct mu_adds *a, struct mu_add *add, struct mu_span key, int64_t delta)
{
    struct mu_map_node *n = mu_map_find(&a->calls, key);
    struct mu_adds_call *call =
        n == NULL ? new_call(a, key) : MU_CONTAINER_OF(n, struct mu_adds_call, node);

    if (call == NULL) {
        return MUSTER_ENOMEM;
    }
    *add = (struct mu_add){.delta = delta, .call = call};
    mu_list_init(&add->link);
    mu_list_push(&call->waiting, &add->link);
    return 0;
}

bool mu_adds_has(const struct mu_adds *a, struct mu_span key)
{
    return a->calls.count != 0 && mu_map_find(&a->calls, key) != NULL;
}

bool mu_adds_leave(struct mu_adds *a, struct mu_add *add)
{
    struct mu_adds_call *call = add->call;

    if (add->sent) {
        return false;
    }
    mu_list_remove(&add->link);
    add->call = NULL;
    if (mu_list_empty(&call->waiting) && mu_list_empty(&call->sent) && call != a->landed &&
        !mu_list_empty(&call->link)) {
        free_call(a, call); /* it was not sent */
    }
    return true;
}

struct mu_adds_call *mu_adds_next_call(struct mu_adds *a)
{
    struct mu_list *it = mu_list_pop(&a->to_send);
    struct mu_adds_call *call;
    size_t count = 0;

    if (it == NULL) {
        return NULL;
    }
    call = MU_CONTAINER_OF(it, struct mu_adds_call, link);
    call->delta = 0;
    while ((it = mu_list_pop(&call->waiting)) != NULL) {
        struct mu_add *add = MU_CONTAINER_OF(it, struct mu_add, link);

        add->sent = true;
        call->delta = plus(call->delta, add->delta);
        mu_list_push(&call->sent, &add->link);
        count++;
    }
    a->combined += count - 1;
    return call;
}

void mu_adds_land(struct mu_adds *a, struct mu_adds_call *call, int status, int64_t sum)
{
    MU_ASSERT(a->landed == NULL);
    a->landed = call;
    a->status = status;
    a->sum = minus(sum, call->delta);
}

bool mu_adds_next(struct mu_adds *a, struct mu_add **ret_add, int *ret_status, int64_t *ret_sum)
{
    struct mu_adds_call *call = a->landed;
    struct mu_list *it = call == NULL ? NULL : mu_list_pop(&call->sent);

    if (it != NULL) {
        struct mu_add *add = MU_CONTAINER_OF(it, struct mu_add, link);

        a->sum = plus(a->sum, add->delta);
        add->call = NULL;
        add->sent = false;
        *ret_add = add;
        *ret_status = a->status;
        *ret_sum = a->sum;
        return true;
    }
    a->landed = NULL;
    if (call != NULL && mu_list_empty(&call->waiting)) {
        free_call(a, call);
    } else if (call != NULL) {
        mu_list_push(&a->to_send, &call->link);
    }
    return false;
}
