/* The public state download: tensors, and memory for them. */
#include "api/state_api.h"
#include "core/alloc.h"

/* --- tensors ---------------------------------------------------------------------------------- */

const char *muster_dtype_name(enum muster_dtype dtype)
{
    return dtype < MUSTER_DTYPE_BOOL || dtype > MUSTER_DTYPE_F6_E3M2
               ? NULL
               : mu_dtype_name((enum mu_dtype)dtype);
}

int mu_state_layout_of(const struct muster_tensor *tensors, size_t count, struct mu_layout *ret,
                       uint8_t ***ret_data, struct mu_errmsg *msg)
{
    uint8_t **data = mu_calloc(count == 0 ? 1 : count, sizeof(*data));
    int err = data == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory") : 0;

    mu_layout_init(ret);
    for (size_t i = 0; err == 0 && i < count; i++) {
        const struct muster_tensor *t = &tensors[i];

        if (t->name == NULL || muster_dtype_name(t->dtype) == NULL ||
            (t->rank != 0 && t->shape == NULL)) {
            err = mu_err(msg, MUSTER_EINVAL, "tensor %zu has no name, no type or no shape", i);
            break;
        }
        if (t->reserved[0] != NULL || t->reserved[1] != NULL) {
            err = mu_err(msg, MUSTER_EINVAL,
                         "tensor \"%.100s\" has bytes in `reserved`: zero all of struct "
                         "muster_tensor before you fill it in",
                         t->name);
            break;
        }
        err = mu_layout_add(ret, mu_span_str(t->name), (enum mu_dtype)t->dtype, t->shape, t->rank);
        if (err != 0) {
            (void)mu_err(msg, err, "tensor \"%.100s\": %s", t->name, muster_strerror(err));
        } else if (t->data == NULL && ret->tensors[i].len != 0) {
            err = mu_err(msg, MUSTER_EINVAL, "tensor \"%.100s\" has no data", t->name);
        }
        data[i] = t->data;
    }
    if (err != 0) {
        mu_layout_fini(ret);
        mu_free(data);
        return err;
    }
    *ret_data = data;
    return 0;
}

uint64_t muster_tensor_bytes(const struct muster_tensor *tensor)
{
    struct mu_layout layout;
    uint64_t bytes = UINT64_MAX;

    mu_layout_init(&layout);
    if (muster_dtype_name(tensor->dtype) != NULL &&
        mu_layout_add(&layout, MU_SPAN_LIT("t"), (enum mu_dtype)tensor->dtype, tensor->shape,
                      tensor->rank) == 0) {
        bytes = layout.bytes;
    }
    mu_layout_fini(&layout);
    return bytes;
}

/* --- memory that leaves without a copy -------------------------------------------------------- */

struct allocation {
    struct mu_list link;
    struct mu_mapped *mapped;
};

static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mu_list allocations = {&allocations, &allocations};

void *muster_state_alloc(size_t len)
{
    struct allocation *a = mu_calloc(1, sizeof(*a));
    struct mu_errmsg msg;

    if (a == NULL || len == 0 || mu_mapped_memory(len, &a->mapped, &msg) != 0) {
        mu_free(a);
        return NULL;
    }
    (void)pthread_mutex_lock(&allocations_lock);
    mu_list_push(&allocations, &a->link);
    (void)pthread_mutex_unlock(&allocations_lock);
    return a->mapped->data;
}

void muster_state_free(void *memory)
{
    struct allocation *found = NULL;

    (void)pthread_mutex_lock(&allocations_lock);
    MU_LIST_FOREACH (it, &allocations) {
        struct allocation *a = MU_CONTAINER_OF(it, struct allocation, link);

        if (a->mapped->data == memory) {
            found = a;
            break;
        }
    }
    if (found != NULL) {
        mu_list_remove(&found->link);
    }
    (void)pthread_mutex_unlock(&allocations_lock);
    if (found != NULL) {
        mu_mapped_close(found->mapped);
        mu_free(found);
    }
}
