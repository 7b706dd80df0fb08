/* What a worker tells its group about itself, and what it keeps of what the others tell. */

#include "api/rpc_api.h"
#include "core/alloc.h"

/* Packs the devices and the maps, as spans of `packed`, which has room for all. Under the lock. */
static size_t put_devices(const muster_rpc_agent *a, struct mu_buf *packed,
                          struct mu_rpc_part *parts)
{
    size_t count = 0;

    for (size_t i = 0; i < a->device_count; i++) {
        mu_buf_put_u32(packed, (uint32_t)a->devices[i]);
    }
    parts[count++] = (struct mu_rpc_part){mu_buf_span(packed), -1};
    MU_LIST_FOREACH (it, &a->maps) {
        const struct mu_rpc_device_map *m = MU_CONTAINER_OF(it, struct mu_rpc_device_map, link);
        size_t at = packed->len;

        for (size_t i = 0; i < m->count; i++) {
            mu_buf_put_u32(packed, (uint32_t)m->pairs[i].local);
            mu_buf_put_u32(packed, (uint32_t)m->pairs[i].remote);
        }
        parts[count++] = (struct mu_rpc_part){mu_span_str(m->worker), -1};
        parts[count++] = (struct mu_rpc_part){mu_span_skip(mu_buf_span(packed), at), -1};
    }
    return count;
}

int mu_rpc_member_encode(muster_rpc_agent *a, struct mu_buf *out)
{
    struct mu_rpc_part *parts;
    struct mu_buf packed;
    size_t bytes;
    size_t maps = 0;
    int err;

    mu_buf_init(&packed, SIZE_MAX / 4);
    (void)pthread_mutex_lock(&a->lock);
    bytes = a->device_count * 4;
    MU_LIST_FOREACH (it, &a->maps) {
        bytes += MU_CONTAINER_OF(it, struct mu_rpc_device_map, link)->count * 8;
        maps++;
    }
    parts = mu_calloc(3 + 2 * maps, sizeof(*parts));
    err = parts == NULL ? MUSTER_ENOMEM : mu_buf_reserve(&packed, bytes);
    if (err == 0) {
        parts[0] = (struct mu_rpc_part){mu_span_str(a->name), -1};
        parts[1] = (struct mu_rpc_part){mu_span_str(a->published), -1};
        err = mu_rpc_intro_encode(out, parts, 2 + put_devices(a, &packed, parts + 2));
    }
    (void)pthread_mutex_unlock(&a->lock);
    mu_buf_fini(&packed);
    mu_free(parts);
    return err;
}

int mu_rpc_members_name_devices(muster_rpc_agent *a, const struct mu_rpc_member *members,
                                size_t count)
{
    struct mu_buf named;
    int err;

    mu_buf_init(&named, SIZE_MAX / 4);
    err = mu_rpc_members_devices(members, count, a->name, &named);
    if (err != 0) {
        mu_buf_fini(&named);
        return mu_api_error(err, NULL);
    }
    (void)pthread_mutex_lock(&a->lock);
    mu_buf_fini(&a->named);
    a->named = named;
    (void)pthread_mutex_unlock(&a->lock);
    return 0;
}
