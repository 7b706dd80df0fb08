/*
 * A group of workers, through a store that all share. Keys, under "rpc/GROUP/":
 *
 *     name/ID, addr/ID       who has the id, and where it is dialled: "HOST:PORT", and behind a
 *                            comma "unix:@NAME", where those of the same host find it
 *     leave/N/begun          of round N, the sum over all workers of the calls that were begun,
 *     leave/N/ended          that have ended, ours and others' alike,
 *     leave/N/here, go       how many have said so, and that all have
 *
 * Nothing is under way any more when as many calls have begun up to a round as had ended up to the
 * round before: sums of one round alone would not do, since they are not taken at one moment.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

#define KEY_MAX   320
#define GROUP_MAX 128
#define PAUSE_NS  2000000 /* between two rounds */

static int check_group(muster_rpc_agent *a, const char *group, uint32_t world_size)
{
    if (mu_runtime_is_mine(a->rt)) {
        return mu_api_error(MUSTER_EINVAL, "waiting on the runtime's thread would wait for ever");
    }
    if (group == NULL || group[0] == '\0' || strlen(group) > GROUP_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a group's name has 1 to 128 bytes");
    }
    if (world_size == 0 || world_size > 32768 || a->id < 0 || (uint32_t)a->id >= world_size) {
        return mu_api_error(MUSTER_EINVAL, "the worker's id must be below the size of the world, "
                                           "which is at most 32768");
    }
    if (a->address[0] == '\0') {
        return mu_api_error(MUSTER_EINVAL, "a worker of a group must listen");
    }
    return 0;
}

/* --- keys ------------------------------------------------------------------------------------- */

struct keys {
    char (*text)[KEY_MAX];
    struct muster_bytes *keys;
    size_t count;
};

static int make_keys(struct keys *k, const char *group, uint32_t world_size)
{
    k->count = (size_t)world_size * 2;
    k->text = mu_calloc(k->count, KEY_MAX);
    k->keys = mu_calloc(k->count, sizeof(*k->keys));
    if (k->text == NULL || k->keys == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < k->count; i++) {
        (void)snprintf(k->text[i], KEY_MAX, "rpc/%s/%s/%zu", group, i % 2 == 0 ? "name" : "addr",
                       i / 2);
        k->keys[i] = muster_str(k->text[i]);
    }
    return 0;
}

static void free_keys(struct keys *k)
{
    mu_free(k->text);
    mu_free(k->keys);
}

/* A store without multi_set and multi_get does it one by one. */
static int publish(muster_store *store, const struct keys *k, const muster_rpc_agent *a,
                   uint32_t rank, int64_t timeout_ms)
{
    const struct muster_bytes *keys = k->keys + (size_t)rank * 2;
    struct muster_bytes values[2] = {muster_str(a->name), muster_str(a->published)};
    int err = muster_store_multi_set(store, keys, values, 2, timeout_ms);

    for (size_t i = 0; i < 2 && err == MUSTER_ENOTSUP; i++) {
        int one = muster_store_set(store, keys[i], values[i], timeout_ms);

        if (one != 0 || i == 1) {
            err = one;
        }
    }
    return err;
}

static int learn(muster_store *store, const struct keys *k, struct muster_values *ret,
                 int64_t timeout_ms)
{
    int err = muster_store_multi_get(store, k->keys, k->count, ret, timeout_ms);

    if (err != MUSTER_ENOTSUP) {
        return err;
    }
    ret->items = mu_calloc(k->count, sizeof(*ret->items));
    ret->count = k->count;
    err = ret->items == NULL ? MUSTER_ENOMEM : 0;
    for (size_t i = 0; i < k->count && err == 0; i++) {
        err = muster_store_get(store, k->keys[i], &ret->items[i], timeout_ms);
    }
    return err;
}

/* --- joining ---------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_names(const muster_rpc_agent *a, uint32_t rank, const struct muster_values *v)
{
    const char *own = v->items[(size_t)rank * 2].data;
    const char *own_addr = v->items[(size_t)rank * 2 + 1].data;
    size_t world = v->count / 2;
    const char **names;
    struct mu_errmsg msg;
    int err = 0;

    if (strcmp(own, a->name) != 0 || strcmp(own_addr, a->published) != 0) {
        return mu_api_error(mu_err(&msg, MUSTER_EEXIST, "%.127s at %.60s has the id %d as well",
                                   own, own_addr, (int)rank),
                            msg.text);
    }
    names = mu_calloc(world, sizeof(*names));
    if (names == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    for (size_t i = 0; i < world; i++) {
        names[i] = v->items[i * 2].data;
    }
    qsort(names, world, sizeof(*names), by_name);
    for (size_t i = 1; i < world && err == 0; i++) {
        if (strcmp(names[i - 1], names[i]) == 0) {
            err = mu_api_error(
                mu_err(&msg, MUSTER_EEXIST, "two workers of the group are named %s", names[i]),
                msg.text);
        }
    }
    mu_free(names);
    return err;
}

static int add_all(muster_rpc_agent *a, const struct muster_values *v)
{
    for (size_t i = 0; i < v->count / 2; i++) {
        int err =
            muster_rpc_add_worker(a, v->items[i * 2].data, (int32_t)i, v->items[i * 2 + 1].data);

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

int mu_rpc_exchange(muster_rpc_agent *a, muster_store *store, const char *group,
                    uint32_t world_size, uint32_t rank, int64_t timeout_ms,
                    struct muster_values *ret_values)
{
    struct muster_values values = {0};
    struct keys keys = {0};
    int err = make_keys(&keys, group, world_size);

    if (err != 0) {
        err = mu_api_error(err, NULL);
    }
    if (err == 0) {
        err = publish(store, &keys, a, rank, timeout_ms);
    }
    if (err == 0) {
        err = learn(store, &keys, &values, timeout_ms);
    }
    if (err == 0) {
        err = check_names(a, rank, &values);
    }
    free_keys(&keys);
    if (err != 0) {
        muster_values_free(&values);
        return err;
    }
    *ret_values = values;
    return 0;
}

int mu_rpc_set_group(muster_rpc_agent *a, const char *group, uint32_t world_size)
{
    char *copy = mu_malloc(strlen(group) + 1);

    if (copy == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    memcpy(copy, group, strlen(group) + 1);
    mu_free(a->group);
    a->group = copy;
    a->world_size = world_size;
    return 0;
}

int muster_rpc_join_group(muster_rpc_agent *a, muster_store *store, const char *group,
                          uint32_t world_size, int64_t timeout_ms)
{
    struct muster_values values = {0};
    int err = check_group(a, group, world_size);

    if (err == 0) {
        err = mu_rpc_exchange(a, store, group, world_size, (uint32_t)a->id, timeout_ms, &values);
    }
    if (err == 0) {
        err = add_all(a, &values);
    }
    if (err == 0) {
        err = mu_rpc_set_group(a, group, world_size);
    }
    muster_values_free(&values);
    return err;
}

/* --- leaving ---------------------------------------------------------------------------------- */

static int add_key(muster_rpc_agent *a, muster_store *store, uint32_t round, const char *what,
                   uint64_t delta, int64_t *ret_sum, int64_t timeout_ms)
{
    char key[KEY_MAX];

    (void)snprintf(key, sizeof(key), "rpc/%s/leave/%" PRIu32 "/%s", a->group, round, what);
    return muster_store_add(store, muster_str(key), (int64_t)delta, ret_sum, timeout_ms);
}

/* Waits until all have said what they know, and returns the sums. */
static int one_round(muster_rpc_agent *a, muster_store *store, uint32_t round, int64_t *ret_begun,
                     int64_t *ret_ended, int64_t timeout_ms)
{
    char go[KEY_MAX];
    struct muster_bytes go_key;
    uint64_t begun = 0;
    uint64_t ended = 0;
    int64_t sum = 0;
    int err;

    (void)snprintf(go, sizeof(go), "rpc/%s/leave/%" PRIu32 "/go", a->group, round);
    go_key = muster_str(go);
    mu_rpc_activity(a, &begun, &ended);
    err = add_key(a, store, round, "begun", begun, &sum, timeout_ms);
    if (err == 0) {
        err = add_key(a, store, round, "ended", ended, &sum, timeout_ms);
    }
    if (err == 0) {
        err = add_key(a, store, round, "here", 1, &sum, timeout_ms);
    }
    if (err == 0 && sum == (int64_t)a->world_size) {
        err = muster_store_set(store, go_key, muster_str("1"), timeout_ms);
    }
    if (err == 0) {
        err = muster_store_wait(store, &go_key, 1, timeout_ms);
    }
    if (err == 0) {
        err = add_key(a, store, round, "begun", 0, ret_begun, timeout_ms);
    }
    return err == 0 ? add_key(a, store, round, "ended", 0, ret_ended, timeout_ms) : err;
}

int muster_rpc_leave_group(muster_rpc_agent *a, muster_store *store, int64_t timeout_ms)
{
    int64_t ended_before = -1;

    if (a->group == NULL) {
        return mu_api_error(MUSTER_EINVAL, "the agent is in no group");
    }
    for (uint32_t round = 0;; round++) {
        int64_t begun = 0;
        int64_t ended = 0;
        int err = one_round(a, store, round, &begun, &ended, timeout_ms);

        if (err != 0) {
            return err;
        }
        if (begun == ended_before) {
            return 0;
        }
        ended_before = ended;
        (void)nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL); /* tidy: a thread's own */
    }
}
