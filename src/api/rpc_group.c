/*
 * A group of workers, through a store that all share. The key "rpc/GROUP/ID" says which worker has
 * the id, and what it tells about itself (codec/rpc/intro.h); rpc_leave.c removes it.
 *
 * The first worker to write the key has the id. A worker that finds its id taken writes a notice
 * into the keys of all workers that have not come, so that every waiting worker is told, not only
 * these two.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

#define GROUP_MAX 128
#define NAMED_MAX 8   /* how many missing workers are named */
#define LOOK_MS   500 /* how long to look for the missing ones, when the time is over */

static int check_group(muster_rpc_agent *a, const char *group, uint32_t world_size)
{
    if (group == NULL || group[0] == '\0' || strlen(group) > GROUP_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a group's name must have 1 to 128 bytes");
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

/* --- time ------------------------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec now = mu_wait_until(0);

    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int mu_rpc_until(const muster_rpc_agent *a, const muster_store *store, int64_t timeout_ms,
                 int64_t *ret_until)
{
    uint32_t ms;
    int err;

    if (mu_runtime_is_mine(a->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    if (timeout_ms == MUSTER_TIMEOUT_DEFAULT) {
        timeout_ms = muster_store_timeout(store);
    }
    err = mu_api_timeout(timeout_ms, MU_API_NO_BOUND, &ms);
    if (err == 0) {
        *ret_until = ms == MU_API_NO_BOUND ? MU_RPC_NO_END : now_ms() + ms;
    }
    return err;
}

int64_t mu_rpc_left(int64_t until)
{
    int64_t left = until == MU_RPC_NO_END ? MUSTER_TIMEOUT_NEVER : until - now_ms();

    return until != MU_RPC_NO_END && left < 1 ? 1 : left;
}

/* --- keys ------------------------------------------------------------------------------------- */

int mu_rpc_keys_make(struct mu_rpc_keys *k, const char *group, const char *what, uint32_t count)
{
    k->count = count;
    k->text = mu_calloc(count, MU_RPC_GROUP_KEY_MAX);
    k->keys = mu_calloc(count, sizeof(*k->keys));
    if (k->text == NULL || k->keys == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(k->text[i], MU_RPC_GROUP_KEY_MAX, "rpc/%s/%s%" PRIu32, group, what, i);
        k->keys[i] = muster_str(k->text[i]);
    }
    return 0;
}

void mu_rpc_keys_free(struct mu_rpc_keys *k)
{
    mu_free(k->text);
    mu_free(k->keys);
}

int mu_rpc_keys_read(muster_store *store, const struct mu_rpc_keys *k, int64_t until,
                     struct muster_values *ret)
{
    int err = muster_store_multi_get(store, k->keys, k->count, ret, mu_rpc_left(until));

    if (err != MUSTER_ENOTSUP) {
        return err;
    }
    /* A store without multi_get reads them one by one. */
    ret->items = mu_calloc(k->count, sizeof(*ret->items));
    ret->count = k->count;
    err = ret->items == NULL ? mu_api_error(MUSTER_ENOMEM, NULL) : 0;
    for (size_t i = 0; i < k->count && err == 0; i++) {
        err = muster_store_get(store, k->keys[i], &ret->items[i], mu_rpc_left(until));
    }
    return err;
}

/* The first missing key from `from` on; the number of keys: none is missing, or it is unknown. */
static size_t next_missing(muster_store *store, const struct mu_rpc_keys *k, size_t from,
                           int64_t until)
{
    size_t there = 0; /* how many from `from` on exist */
    size_t some = k->count - from;
    bool all = false;

    if (some == 0 ||
        muster_store_check(store, k->keys + from, some, &all, mu_rpc_left(until)) != 0 || all) {
        return k->count;
    }
    while (some - there > 1) {
        size_t half = there + (some - there) / 2;

        if (muster_store_check(store, k->keys + from, half, &all, mu_rpc_left(until)) != 0) {
            return k->count;
        }
        there = all ? half : there;
        some = all ? some : half;
    }
    return from + there;
}

size_t mu_rpc_keys_missing(muster_store *store, const struct mu_rpc_keys *k, uint32_t *ret_ids,
                           size_t cap)
{
    int64_t until = now_ms() + LOOK_MS;
    size_t count = 0;
    size_t at = 0;

    while (count < cap && (at = next_missing(store, k, at, until)) < k->count) {
        ret_ids[count++] = (uint32_t)at++;
    }
    return count;
}

/* --- joining ---------------------------------------------------------------------------------- */

/*
 * Writes the key if it is absent; `ret_there` is what it then holds. The second write is for
 * PyTorch's servers, most of which do not wake waiting clients when compare_set has made a key.
 */
static int write_first(muster_store *store, struct muster_bytes key, struct muster_bytes value,
                       int64_t until, struct muster_value *ret_there)
{
    int err = muster_store_compare_set(store, key, muster_str(""), value, ret_there, NULL,
                                       mu_rpc_left(until));

    if (err == 0 && ret_there->len == value.len &&
        memcmp(ret_there->data, value.data, value.len) == 0) {
        err = muster_store_set(store, key, value, mu_rpc_left(until));
    }
    return err;
}

/* Tells the waiting workers not to wait; a later one finds the notice in its key. */
static void tell_all(muster_store *store, const struct mu_rpc_keys *k, const char *text,
                     int64_t until)
{
    struct mu_rpc_part part = {mu_span_str(text), -1};
    struct muster_value there = {0};
    struct mu_buf notice;
    int err;

    mu_buf_init(&notice, SIZE_MAX / 4);
    err = mu_rpc_intro_encode(&notice, &part, 1);
    for (size_t i = 0; i < k->count && err == 0; i++) {
        struct muster_bytes value = {mu_buf_span(&notice).data, notice.len};

        err = write_first(store, k->keys[i], value, until, &there);
        muster_value_free(&there);
    }
    mu_buf_fini(&notice);
}

/* Our id is taken by another worker, or by ourselves, when we told something else. */
static int settle(muster_rpc_agent *a, muster_store *store, const struct mu_rpc_keys *k,
                  uint32_t rank, int64_t until, struct muster_bytes ours, struct muster_bytes there)
{
    struct mu_rpc_member other = {0};
    struct mu_errmsg msg = {0};
    int err = mu_rpc_member_decode(mu_span(there.data, there.len), &other, &msg);

    mu_rpc_intro_fini(&other.intro);
    if (err == 0 && strcmp(other.address, a->published) == 0) {
        return muster_store_set(store, k->keys[rank], ours, mu_rpc_left(until));
    }
    if (err == 0) {
        err = mu_err(&msg, MUSTER_EEXIST, "%.60s and %.60s at %.60s both have the id %" PRIu32,
                     a->name, other.name, other.address, rank);
        tell_all(store, k, msg.text, until);
    }
    return mu_api_error(err, msg.text);
}

/* Claims our id. MUSTER_EEXIST: another worker has it. */
static int claim(muster_rpc_agent *a, muster_store *store, const struct mu_rpc_keys *k,
                 uint32_t rank, int64_t until)
{
    struct muster_value value = {0};
    struct muster_bytes ours;
    struct muster_bytes there;
    struct mu_buf intro;
    int err;

    mu_buf_init(&intro, SIZE_MAX / 4);
    err = mu_api_error(mu_rpc_member_encode(a, &intro), NULL);
    ours = (struct muster_bytes){mu_buf_span(&intro).data, intro.len};
    if (err == 0) {
        err = write_first(store, k->keys[rank], ours, until, &value);
    }
    there = (struct muster_bytes){value.data, value.len};
    if (err == 0 && (there.len != ours.len || memcmp(there.data, ours.data, ours.len) != 0)) {
        err = settle(a, store, k, rank, until, ours, there);
    }
    muster_value_free(&value);
    mu_buf_fini(&intro);
    return err;
}

/* Names the missing workers instead of their keys. */
static int name_missing(muster_store *store, const struct mu_rpc_keys *k, const char *group)
{
    uint32_t ids[NAMED_MAX + 1];
    size_t count = mu_rpc_keys_missing(store, k, ids, NAMED_MAX + 1);
    struct mu_errmsg msg;
    char list[NAMED_MAX * 12] = "";
    size_t at = 0;

    for (size_t i = 0; i < count && i < NAMED_MAX; i++) {
        at += (size_t)snprintf(list + at, sizeof(list) - at, " %" PRIu32, ids[i]);
    }
    return mu_api_error(count == 0
                            ? mu_err(&msg, MUSTER_ETIMEDOUT,
                                     "not all workers of the group %s have come in time", group)
                            : mu_err(&msg, MUSTER_ETIMEDOUT,
                                     "these workers of the group %.128s have not come in time: "
                                     "ids%s%s",
                                     group, list, count > NAMED_MAX ? " and more" : ""),
                        msg.text);
}

static int read_members(muster_rpc_agent *a, const struct mu_rpc_world *world,
                        const struct muster_values *values, struct mu_rpc_member *members)
{
    struct mu_errmsg msg = {0};
    int err = 0;

    for (uint32_t i = 0; i < world->size && err == 0; i++) {
        struct mu_span value = mu_span(values->items[i].data, values->items[i].len);

        err = mu_rpc_member_decode(value, &members[i], &msg);
    }
    if (err == 0) {
        err = mu_rpc_members_check(members, world->size, world->all_there, &msg);
    }
    (void)mu_api_error(err, msg.text);
    if (err == 0) {
        err = mu_rpc_members_name_devices(a, members, world->size);
    }
    for (uint32_t i = 0; i < world->size; i++) {
        mu_rpc_intro_fini(&members[i].intro);
    }
    return err;
}

static int learn(muster_rpc_agent *a, muster_store *store, const struct mu_rpc_world *world,
                 const struct mu_rpc_keys *k, int64_t until, struct mu_rpc_member *members)
{
    struct muster_values values = {0};
    int err = mu_rpc_keys_read(store, k, until, &values);

    if (err == MUSTER_ETIMEDOUT) {
        err = name_missing(store, k, world->group);
    } else if (err == 0) {
        err = read_members(a, world, &values, members);
    }
    muster_values_free(&values);
    return err;
}

int mu_rpc_exchange(muster_rpc_agent *a, muster_store *store, const struct mu_rpc_world *world,
                    int64_t timeout_ms, struct mu_rpc_member **ret_members)
{
    struct mu_rpc_member *members = mu_calloc(world->size, sizeof(*members));
    struct mu_rpc_keys keys = {0};
    int64_t until = 0;
    int err = mu_rpc_until(a, store, timeout_ms, &until);

    if (err == 0) {
        err = members == NULL ? mu_api_error(MUSTER_ENOMEM, NULL)
                              : mu_rpc_keys_make(&keys, world->group, "", world->size);
    }
    if (err == 0) {
        err = claim(a, store, &keys, world->rank, until);
    }
    if (err == 0) {
        err = learn(a, store, world, &keys, until, members);
    }
    mu_rpc_keys_free(&keys);
    if (err != 0) {
        mu_free(members);
        return err;
    }
    *ret_members = members;
    return 0;
}

static int add_all(muster_rpc_agent *a, const struct mu_rpc_member *members, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        int err = muster_rpc_add_worker(a, members[i].name, (int32_t)i, members[i].address);

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

int muster_rpc_join_group(muster_rpc_agent *a, muster_store *store, const char *group,
                          uint32_t world_size, int64_t timeout_ms)
{
    struct mu_rpc_world world = {group, "", world_size, (uint32_t)a->id, true};
    struct mu_rpc_member *members = NULL;
    int err = check_group(a, group, world_size);

    if (err != 0) {
        return err;
    }
    err = mu_rpc_exchange(a, store, &world, timeout_ms, &members);
    if (err == 0) {
        err = add_all(a, members, world_size);
    }
    if (err == 0) {
        err = mu_rpc_set_group(a, &world);
    }
    mu_free(members);
    return err;
}
