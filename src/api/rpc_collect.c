/* Objects of a whole group: all_gather and broadcast. service/rpc/gather.h says how they work. */
#include <stdlib.h>
#include <string.h>

#include "api/rpc_api.h"
#include "core/alloc.h"
#include "service/rpc/gather.h"

struct lead_door {
    struct mu_rpc_door base;
    struct mu_rpc_lead lead;
    int status;
    struct mu_errmsg text;
    struct mu_buf message;
};

/* --- the leader ------------------------------------------------------------------------------- */

static void on_done(struct mu_rpc_lead *lead, int status, struct mu_span message)
{
    struct lead_door *d = MU_CONTAINER_OF(lead, struct lead_door, lead);

    d->status = status;
    if (status != 0) {
        (void)mu_err(&d->text, status, "%.*s",
                     (int)(message.len < MU_ERRMSG_CAP ? message.len : MU_ERRMSG_CAP),
                     (const char *)message.data);
    } else if (mu_buf_append(&d->message, message) != 0) {
        d->status = mu_err(&d->text, MUSTER_ENOMEM, "out of memory");
    }
    mu_door_open(&d->base.door);
}

static void lead_on_loop(struct mu_door *door)
{
    struct lead_door *d = MU_CONTAINER_OF(door, struct lead_door, base.door);
    struct mu_rpc_agent *agent = d->base.agent->agent;
    int err = mu_rpc_gather_open(d->base.agent->gather, &d->lead); /* `d` may be gone with 0. */

    if (err != 0) {
        d->status = mu_err(&d->text, err, "%s",
                           err == MUSTER_EBUSY ? "the tag is in use" : muster_strerror(err));
        mu_door_open(door);
    }
    mu_rpc_agent_turn(agent);
}

/* --- one of the others ------------------------------------------------------------------------ */

/* The leader ends the call in time; we do so only if the leader is silent. */
static int wait_for_leader(muster_rpc_future *f, const char *leader, const char *tag,
                           uint32_t wait_ms)
{
    struct mu_errmsg msg;
    int err = muster_rpc_future_wait(f, wait_ms == 0 ? MUSTER_TIMEOUT_NEVER
                                                     : (int64_t)wait_ms + MU_RPC_GATHER_LATE_MS);

    if (err != MUSTER_ETIMEDOUT || muster_rpc_future_ended(f)) {
        return err;
    }
    muster_rpc_future_cancel(f);
    return mu_api_error(
        mu_err(&msg, err, "%.60s: the leader %.127s did not answer in time", tag, leader),
        msg.text);
}

static int follow(muster_rpc_agent *a, const char *leader, const char *tag,
                  struct muster_bytes object, uint32_t wait_ms, muster_rpc_future **ret_future)
{
    uint8_t patience[4];
    struct muster_rpc_part parts[3] = {
        {muster_str(tag), MUSTER_RPC_CPU},
        {object, MUSTER_RPC_CPU},
        {{patience, sizeof(patience)}, MUSTER_RPC_CPU},
    };
    struct muster_rpc_request q = muster_rpc_request_defaults();
    muster_rpc_future *f;
    int err;

    q.to = leader;
    q.method = MU_RPC_GATHER_METHOD;
    q.parts = parts;
    q.part_count = 3;
    q.timeout_ms = MUSTER_TIMEOUT_NEVER;
    mu_put_u32(patience, wait_ms);
    err = muster_rpc_call(a, &q, &f);
    if (err != 0) {
        return err;
    }
    err = wait_for_leader(f, leader, tag, wait_ms);
    if (err != 0) {
        muster_rpc_future_free(f);
        return err;
    }
    *ret_future = f;
    return 0;
}

/* --- both ------------------------------------------------------------------------------------- */

/* The group, in the order that all its workers use. */
struct group {
    const char **names; /* without ourselves, ascending */
    size_t count;
    size_t place;       /* where our name would be */
    const char *leader; /* the first name of all */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int sort_group(const muster_rpc_agent *a, const char *const *workers, size_t count,
                      struct group *ret)
{
    size_t own = 0;

    ret->names = mu_calloc(count + 1, sizeof(*ret->names));
    if (ret->names == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    for (size_t i = 0; i < count; i++) {
        if (workers[i] == NULL || !mu_rpc_worker_name_ok(mu_span_str(workers[i]))) {
            return mu_api_error(MUSTER_EINVAL, "a worker of the group has no name");
        }
        if (strcmp(workers[i], a->name) == 0) {
            own++;
        } else {
            ret->names[ret->count++] = workers[i];
        }
    }
    qsort(ret->names, ret->count, sizeof(*ret->names), by_name);
    for (size_t i = 0; i < ret->count; i++) {
        if (i != 0 && strcmp(ret->names[i - 1], ret->names[i]) == 0) {
            return mu_api_error(MUSTER_EINVAL, "a worker is in the group twice");
        }
        ret->place += strcmp(ret->names[i], a->name) < 0 ? 1 : 0;
    }
    ret->leader = ret->place == 0 ? a->name : ret->names[0];
    return own == 1 ? 0
                    : mu_api_error(MUSTER_EINVAL, own == 0 ? "this worker is not in the group"
                                                           : "a worker is in the group twice");
}

static int check(const muster_rpc_agent *a, size_t count, const char *tag, int64_t timeout_ms,
                 uint32_t *ret_wait_ms)
{
    if (mu_runtime_is_mine(a->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    if (tag == NULL || tag[0] == '\0' || strlen(tag) > MU_RPC_GATHER_TAG_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a tag must have 1 to 200 bytes");
    }
    if (count == 0 || count > 32768) {
        return mu_api_error(MUSTER_EINVAL, "a group must have 1 to 32768 workers");
    }
    return mu_api_timeout(timeout_ms, atomic_load(&a->timeout_ms), ret_wait_ms);
}

/* A call with a tag that is under way here, in the memory of the waiting caller. */
struct tag_in_use {
    struct mu_list link; /* agent->tags */
    const char *tag;
};

static int take_tag(muster_rpc_agent *a, struct tag_in_use *t, const char *tag)
{
    bool busy = false;

    t->tag = tag;
    mu_list_init(&t->link);
    (void)pthread_mutex_lock(&a->lock);
    MU_LIST_FOREACH (it, &a->tags) {
        busy = busy || strcmp(MU_CONTAINER_OF(it, struct tag_in_use, link)->tag, tag) == 0;
    }
    if (!busy) {
        mu_list_push(&a->tags, &t->link);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return busy
               ? mu_api_error(MUSTER_EBUSY, "the tag is in use by a call that has not returned yet")
               : 0;
}

static void give_tag(muster_rpc_agent *a, struct tag_in_use *t)
{
    (void)pthread_mutex_lock(&a->lock);
    mu_list_remove(&t->link);
    (void)pthread_mutex_unlock(&a->lock);
}

static int copy_value(struct mu_span from, struct muster_value *ret)
{
    ret->data = mu_malloc(from.len + 1);
    if (ret->data == NULL) {
        return MUSTER_ENOMEM;
    }
    if (from.len != 0) {
        memcpy(ret->data, from.data, from.len);
    }
    ((char *)ret->data)[from.len] = '\0';
    ret->len = from.len;
    return 0;
}

/* Puts the values from the order of the names into the caller's. */
static int place_values(const muster_rpc_agent *a, const struct group *g,
                        const char *const *workers, size_t count, const struct mu_rpc_part *parts,
                        struct muster_values *ret)
{
    struct muster_values values = {.count = count};
    int err;

    values.items = mu_calloc(count, sizeof(*values.items));
    err = values.items == NULL ? MUSTER_ENOMEM : 0;
    for (size_t i = 0; err == 0 && i < count; i++) {
        size_t place = g->place;

        if (strcmp(workers[i], a->name) != 0) {
            const char **at = bsearch(&workers[i], g->names, g->count, sizeof(*g->names), by_name);

            place = (size_t)(at - g->names);
            place += place >= g->place ? 1 : 0;
        }
        err = copy_value(parts[place].data, &values.items[i]);
    }
    if (err != 0) {
        muster_values_free(&values);
        return mu_api_error(err, NULL);
    }
    *ret = values;
    return 0;
}

/* Leads the group; the result is in `d`. */
static int lead_group(muster_rpc_agent *a, const struct group *g, const char *tag,
                      struct muster_bytes object, bool broadcast, uint32_t wait_ms,
                      struct lead_door *d)
{
    d->lead = (struct mu_rpc_lead){
        .tag = tag,
        .names = g->names,
        .count = g->count,
        .place = g->place,
        .object = mu_span(object.data, object.len),
        .broadcast = broadcast,
        .timeout_ms = wait_ms,
        .done = on_done,
    };
    mu_buf_init(&d->message, SIZE_MAX / 4);
    mu_rpc_pass(a, &d->base, lead_on_loop);
    return mu_api_error(d->status, d->text.text);
}

static int gather(muster_rpc_agent *a, const struct group *g, const char *const *workers,
                  size_t count, const char *tag, struct muster_bytes object, uint32_t wait_ms,
                  struct muster_values *ret_values)
{
    struct mu_rpc_part *parts = NULL;
    struct lead_door d = {.status = 0};
    muster_rpc_future *future = NULL;
    size_t got = 0;
    int err;

    if (g->place == 0) {
        err = lead_group(a, g, tag, object, false, wait_ms, &d);
        err = err != 0 ? err : mu_rpc_msg_decode(mu_buf_span(&d.message), &parts, &got);
    } else {
        err = follow(a, g->leader, tag, object, wait_ms, &future);
        got = err == 0 ? muster_rpc_future_part_count(future) : 0;
        parts = err == 0 ? mu_calloc(got + 1, sizeof(*parts)) : NULL;
        for (size_t i = 0; parts != NULL && i < got; i++) {
            struct muster_bytes data = muster_rpc_future_part(future, i).data;

            parts[i].data = mu_span(data.data, data.len);
        }
    }
    if (err == 0 && (parts == NULL || got != count)) {
        err = mu_api_error(parts == NULL ? MUSTER_ENOMEM : MUSTER_EPROTO, NULL);
    }
    if (err == 0) {
        err = place_values(a, g, workers, count, parts, ret_values);
    }
    mu_free(parts);
    mu_buf_fini(&d.message);
    muster_rpc_future_free(future);
    return err;
}

int muster_rpc_all_gather(muster_rpc_agent *a, const char *const *workers, size_t count,
                          const char *tag, struct muster_bytes object, int64_t timeout_ms,
                          struct muster_values *ret_values)
{
    struct group g = {0};
    struct tag_in_use in_use;
    uint32_t wait_ms = 0;
    int err = check(a, count, tag, timeout_ms, &wait_ms);

    if (err == 0) {
        err = sort_group(a, workers, count, &g);
    }
    if (err == 0) {
        err = take_tag(a, &in_use, tag);
        if (err == 0) {
            err = gather(a, &g, workers, count, tag, object, wait_ms, ret_values);
            give_tag(a, &in_use);
        }
    }
    mu_free(g.names);
    return err;
}

static int broadcast(muster_rpc_agent *a, const struct group *g, const char *root, const char *tag,
                     struct muster_bytes object, uint32_t wait_ms, struct muster_value *ret_value)
{
    struct lead_door d = {.status = 0};
    muster_rpc_future *future = NULL;
    int err;

    if (strcmp(root, a->name) == 0) {
        err = lead_group(a, g, tag, object, true, wait_ms, &d);
    } else {
        err = follow(a, root, tag, (struct muster_bytes){0}, wait_ms, &future);
        object = err == 0 ? muster_rpc_future_part(future, 0).data : object;
    }
    if (err == 0) {
        err = mu_api_error(copy_value(mu_span(object.data, object.len), ret_value), NULL);
    }
    mu_buf_fini(&d.message);
    muster_rpc_future_free(future);
    return err;
}

int muster_rpc_broadcast(muster_rpc_agent *a, const char *const *workers, size_t count,
                         const char *root, const char *tag, struct muster_bytes object,
                         int64_t timeout_ms, struct muster_value *ret_value)
{
    struct group g = {0};
    struct tag_in_use in_use;
    uint32_t wait_ms = 0;
    int err = check(a, count, tag, timeout_ms, &wait_ms);

    if (err == 0) {
        err = sort_group(a, workers, count, &g);
    }
    if (err == 0 &&
        (root == NULL || (strcmp(root, a->name) != 0 &&
                          bsearch(&root, g.names, g.count, sizeof(*g.names), by_name) == NULL))) {
        err = mu_api_error(MUSTER_EINVAL, "the root is not in the group");
    }
    if (err == 0) {
        err = take_tag(a, &in_use, tag);
        if (err == 0) {
            err = broadcast(a, &g, root, tag, object, wait_ms, ret_value);
            give_tag(a, &in_use);
        }
    }
    mu_free(g.names);
    return err;
}
