/* Devices: which ones a worker has, and the maps to other workers' devices. */
#include <stdlib.h>
#include <string.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

#define DEVICES_MAX 4096

/* --- the devices ------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

static int check_devices(const int32_t *sorted, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (sorted[i] < 0) {
            return mu_api_error(MUSTER_EINVAL, "a worker's devices are numbered from 0");
        }
        if (i != 0 && sorted[i - 1] == sorted[i]) {
            return mu_api_error(MUSTER_EEXIST, "a device is named twice");
        }
    }
    return 0;
}

int muster_rpc_set_devices(muster_rpc_agent *a, const int32_t *devices, size_t count)
{
    int32_t *copy;
    int32_t *old;
    int err;

    if (count > DEVICES_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a worker may have at most 4096 devices");
    }
    copy = mu_calloc(count + 1, sizeof(*copy));
    if (copy == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    if (count != 0) {
        memcpy(copy, devices, count * sizeof(*copy));
        qsort(copy, count, sizeof(*copy), ascending);
    }
    err = check_devices(copy, count);
    if (err != 0) {
        mu_free(copy);
        return err;
    }
    (void)pthread_mutex_lock(&a->lock);
    old = a->devices;
    a->devices = copy;
    a->device_count = count;
    (void)pthread_mutex_unlock(&a->lock);
    mu_free(old);
    return 0;
}

static int32_t lesser_above(int32_t after, int32_t device, int32_t least)
{
    return device > after && (least < 0 || device < least) ? device : least;
}

/* The lowest of our devices above `after` that was set or, if no devices were set, that a map
 * names; -1: there is no such device. Under the lock. */
static int32_t next_device(const muster_rpc_agent *a, int32_t after)
{
    int32_t least = -1;

    for (size_t i = 0; i < a->device_count; i++) {
        if (a->devices[i] > after) {
            return a->devices[i];
        }
    }
    if (a->device_count != 0) {
        return -1;
    }
    MU_LIST_FOREACH (it, &a->maps) {
        const struct mu_rpc_device_map *m = MU_CONTAINER_OF(it, struct mu_rpc_device_map, link);

        for (size_t i = 0; i < m->count; i++) {
            least = lesser_above(after, m->pairs[i].local, least);
        }
    }
    for (size_t i = 0; i < a->named.len / 4; i++) {
        least = lesser_above(after, mu_rpc_intro_device(mu_buf_span(&a->named), i), least);
    }
    return least;
}

size_t muster_rpc_devices(muster_rpc_agent *a, int32_t *ret_devices, size_t cap)
{
    int32_t device = -1;
    size_t count = 0;

    (void)pthread_mutex_lock(&a->lock);
    while ((device = next_device(a, device)) >= 0) {
        if (count < cap) {
            ret_devices[count] = device;
        }
        count++;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return count;
}

/* --- the maps --------------------------------------------------------------------------------- */

static struct mu_rpc_device_map *find_map(muster_rpc_agent *a, const char *worker)
{
    MU_LIST_FOREACH (it, &a->maps) {
        struct mu_rpc_device_map *d = MU_CONTAINER_OF(it, struct mu_rpc_device_map, link);

        if (strcmp(d->worker, worker) == 0) {
            return d;
        }
    }
    return NULL;
}

static int check_pairs(const struct muster_rpc_device_pair *pairs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (pairs[i].local < 0 || pairs[i].remote < 0) {
            return mu_api_error(MUSTER_EINVAL, "a mapped device must be 0 or more: parts in "
                                               "memory need no map");
        }
        for (size_t j = 0; j < i; j++) {
            if (pairs[i].local == pairs[j].local || pairs[i].remote == pairs[j].remote) {
                return mu_api_error(MUSTER_EEXIST, "a device is mapped twice");
            }
        }
    }
    return 0;
}

int muster_rpc_set_device_map(muster_rpc_agent *a, const char *worker,
                              const struct muster_rpc_device_pair *pairs, size_t count)
{
    struct mu_rpc_device_map *old;
    struct mu_rpc_device_map *d;
    int err;

    if (!mu_rpc_worker_name_ok(mu_span_str(worker)) || count > DEVICES_MAX) {
        return mu_api_error(MUSTER_EINVAL,
                            "the worker's name is invalid, or there are more than 4096 devices");
    }
    err = check_pairs(pairs, count);
    if (err != 0) {
        return err;
    }
    d = mu_calloc(1, sizeof(*d) + count * sizeof(pairs[0]));
    if (d == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    memcpy(d->worker, worker, strlen(worker));
    d->count = count;
    if (count != 0) {
        memcpy(d->pairs, pairs, count * sizeof(pairs[0]));
    }
    (void)pthread_mutex_lock(&a->lock);
    old = find_map(a, worker);
    if (old != NULL) {
        mu_list_remove(&old->link);
    }
    mu_list_push(&a->maps, &d->link);
    (void)pthread_mutex_unlock(&a->lock);
    mu_free(old);
    return 0;
}

size_t muster_rpc_device_map(muster_rpc_agent *a, const char *worker,
                             struct muster_rpc_device_pair *ret_pairs, size_t cap)
{
    const struct mu_rpc_device_map *d;
    size_t count;

    (void)pthread_mutex_lock(&a->lock);
    d = find_map(a, worker);
    count = d == NULL ? 0 : d->count;
    for (size_t i = 0; i < count && i < cap; i++) {
        ret_pairs[i] = d->pairs[i];
    }
    (void)pthread_mutex_unlock(&a->lock);
    return count;
}

int mu_rpc_map_with(const struct mu_rpc_device_map *map, int32_t device, bool back,
                    int32_t *ret_device)
{
    if (device == MUSTER_RPC_CPU) {
        *ret_device = device;
        return 0;
    }
    for (size_t i = 0; map != NULL && i < map->count; i++) {
        if ((back ? map->pairs[i].remote : map->pairs[i].local) == device) {
            *ret_device = back ? map->pairs[i].local : map->pairs[i].remote;
            return 0;
        }
    }
    return MUSTER_EINVAL;
}

int mu_rpc_map_device(muster_rpc_agent *a, const char *worker, int32_t device, bool back,
                      int32_t *ret_device)
{
    int err;

    if (strcmp(worker, a->name) == 0) { /* our own devices need no map */
        *ret_device = device;
        return 0;
    }
    (void)pthread_mutex_lock(&a->lock);
    err = mu_rpc_map_with(find_map(a, worker), device, back, ret_device);
    (void)pthread_mutex_unlock(&a->lock);
    return err;
}

int mu_rpc_copy_map(muster_rpc_agent *a, const char *worker, struct mu_rpc_device_map **ret_map)
{
    struct mu_rpc_device_map *copy = NULL;
    const struct mu_rpc_device_map *map;

    (void)pthread_mutex_lock(&a->lock);
    map = find_map(a, worker);
    if (map != NULL) {
        size_t size = sizeof(*map) + map->count * sizeof(map->pairs[0]);

        copy = mu_malloc(size);
        if (copy != NULL) {
            memcpy(copy, map, size);
        }
    }
    (void)pthread_mutex_unlock(&a->lock);
    *ret_map = copy;
    return map != NULL && copy == NULL ? MUSTER_ENOMEM : 0;
}

void mu_rpc_devices_free(muster_rpc_agent *a)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &a->maps) {
        mu_free(MU_CONTAINER_OF(it, struct mu_rpc_device_map, link));
    }
    mu_free(a->devices);
    mu_buf_fini(&a->named);
}
