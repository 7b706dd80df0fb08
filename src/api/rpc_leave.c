/*
 * Leaving a group, through the store that it was joined with. Keys, under "rpc/GROUP/leave/":
 *
 *     N/ID      in round N: how many calls have begun and have ended at the worker with this id
 *     N/go      what the worker with the id 0 decided: "1", all may go; "0", another round
 *     gone      how many of the other workers have read that they may go
 *     over      all of them have: the worker with the id 0 goes last
 *
 * The first round calls the roll: each worker writes its numbers at the moment it comes. In every
 * later round a worker writes them when nothing is under way there, so a round takes as long as the
 * longest call, and another follows only if a call was begun meanwhile. All may go when as many
 * calls have begun up to a round as had ended up to the round before, ours and others' alike. The
 * sums of one round alone would not do, since the workers do not count at the same moment.
 *
 * Each worker removes its key of a round when it has read the decision; the decision is removed
 * when all are in the next round, and the last worker clears the rest.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

#define NAMED_MAX 8    /* how many missing workers are named */
#define TIDY_MS   1000 /* how long removing a key may take */
#define LAST_MS   5000 /* how long the leader waits until the others have read that they may go */

struct leaving {
    muster_rpc_agent *agent;
    muster_store *store;
    int64_t until;
    const char *group;
    uint32_t size;
    uint32_t rank;
    uint32_t round;
    uint64_t ended; /* up to the round before; only the leader has it */
    bool again;     /* an earlier try already began this round */
    bool may_go;
};

/* --- what is under way here ------------------------------------------------------------------- */

struct idle_door {
    struct mu_rpc_door base;
    struct mu_rpc_idle idle;
    struct mu_timer timer;
    bool at_once;
    int64_t wait_ms; /* or MUSTER_TIMEOUT_NEVER */
    uint64_t begun;
    uint64_t ended;
    int err;
    struct mu_errmsg busy;
};

static void count_calls(struct idle_door *d)
{
    struct mu_rpc_agent_stats stats;

    mu_rpc_agent_stats(d->base.agent->agent, &stats);
    d->begun = stats.calls + stats.served;
    d->ended = d->begun - stats.in_flight - stats.serving;
}

static void on_idle(struct mu_rpc_idle *idle)
{
    struct idle_door *d = MU_CONTAINER_OF(idle, struct idle_door, idle);

    mu_env_timer_arm(d->base.agent->rt->env, &d->timer, MU_MONO_NEVER);
    count_calls(d);
    mu_door_open(&d->base.door);
}

static void on_timer(struct mu_timer *timer)
{
    struct idle_door *d = MU_CONTAINER_OF(timer, struct idle_door, timer);

    mu_list_remove(&d->idle.link);
    d->err = MUSTER_ETIMEDOUT;
    mu_rpc_agent_busy(d->base.agent->agent, d->busy.text, sizeof(d->busy.text));
    mu_door_open(&d->base.door);
}

static void look_on_loop(struct mu_door *door)
{
    struct idle_door *d = MU_CONTAINER_OF(door, struct idle_door, base.door);
    struct mu_rpc_agent *agent = d->base.agent->agent;
    struct mu_env *env = d->base.agent->rt->env;

    if (d->at_once) {
        count_calls(d);
        mu_door_open(door);
        return;
    }
    mu_timer_init(&d->timer, on_timer);
    if (d->wait_ms != MUSTER_TIMEOUT_NEVER) {
        mu_env_timer_arm(env, &d->timer,
                         mu_mono_add_ms(mu_env_now(env).mono, (uint64_t)d->wait_ms));
    }
    d->idle.idle = on_idle;
    mu_rpc_agent_when_idle(agent, &d->idle);
    mu_rpc_agent_turn(agent); /* it may be idle now, and `d` may be gone */
}

/* How many calls have begun and ended here: at once, or when nothing is under way. */
static int look(const struct leaving *l, bool at_once, uint64_t *ret_begun, uint64_t *ret_ended)
{
    struct idle_door d = {.at_once = at_once, .wait_ms = mu_rpc_left(l->until)};
    struct mu_errmsg msg;

    mu_rpc_pass(l->agent, &d.base, look_on_loop);
    if (d.err != 0) {
        return mu_api_error(
            mu_err(&msg, d.err,
                   "could not leave the group %.60s in time: a call is under way: %.150s", l->group,
                   d.busy.text),
            msg.text);
    }
    *ret_begun = d.begun;
    *ret_ended = d.ended;
    return 0;
}

/* --- rounds ----------------------------------------------------------------------------------- */

static void make_key(const struct leaving *l, uint32_t round, const char *what, char *key)
{
    (void)snprintf(key, MU_RPC_GROUP_KEY_MAX, "rpc/%s/leave/%" PRIu32 "/%s", l->group, round, what);
}

static void make_end_key(const struct leaving *l, const char *what, char *key)
{
    (void)snprintf(key, MU_RPC_GROUP_KEY_MAX, "rpc/%s/leave/%s", l->group, what);
}

static void make_own_key(const struct leaving *l, char *key)
{
    char id[16];

    (void)snprintf(id, sizeof(id), "%" PRIu32, l->rank);
    make_key(l, l->round, id, key);
}

static int make_keys(const struct leaving *l, struct mu_rpc_keys *k)
{
    char what[32];

    (void)snprintf(what, sizeof(what), "leave/%" PRIu32 "/", l->round);
    return mu_rpc_keys_make(k, l->group, what, l->size);
}

/* A key that cannot be removed does no harm. */
static void take_away(const struct leaving *l, const char *key)
{
    (void)muster_store_delete(l->store, muster_str(key), NULL, TIDY_MS);
}

/* Names the workers that wrote nothing in this round, instead of keys. */
static int name_missing(const struct leaving *l, const struct mu_rpc_keys *k)
{
    uint32_t ids[NAMED_MAX + 1];
    size_t count = mu_rpc_keys_missing(l->store, k, ids, NAMED_MAX + 1);
    struct muster_rpc_worker worker;
    struct mu_errmsg msg;
    char list[160] = "";
    size_t at = 0;

    for (size_t i = 0; i < count && i < NAMED_MAX && at < sizeof(list); i++) {
        worker = (struct muster_rpc_worker){.name = "?"};
        (void)muster_rpc_worker_info(l->agent, NULL, (int32_t)ids[i], &worker);
        at += (size_t)snprintf(list + at, sizeof(list) - at, " %s", worker.name);
    }
    return mu_api_error(mu_err(&msg, MUSTER_ETIMEDOUT,
                               "could not leave the group %.40s in time%s%s%s", l->group,
                               count == 0 ? ", and the store does not say which workers are missing"
                               : l->round == 0 ? ": these workers have not come:"
                                               : ": these workers have calls under way:",
                               list, count > NAMED_MAX || at >= sizeof(list) ? " and more" : ""),
                        msg.text);
}

static int add_up(const struct muster_values *values, uint64_t *ret_begun, uint64_t *ret_ended)
{
    *ret_begun = *ret_ended = 0;
    for (size_t i = 0; i < values->count; i++) {
        const char *text = values->items[i].data;
        char *end = NULL;

        *ret_begun += strtoull(text, &end, 10);
        if (end == text || *end != ' ') {
            return mu_api_error(MUSTER_EPROTO,
                                "a worker of the group wrote something other than its numbers");
        }
        *ret_ended += strtoull(end, NULL, 10);
    }
    return 0;
}

static int await_decision(struct leaving *l, const char *go)
{
    struct muster_value value = {0};
    struct mu_rpc_keys keys = {0};
    int err = muster_store_get(l->store, muster_str(go), &value, mu_rpc_left(l->until));

    l->may_go = err == 0 && value.len == 1 && ((const char *)value.data)[0] == '1';
    muster_value_free(&value);
    if (err != MUSTER_ETIMEDOUT) {
        return err;
    }
    err = make_keys(l, &keys);
    err = err != 0 ? err : name_missing(l, &keys);
    mu_rpc_keys_free(&keys);
    return err;
}

/* The leader decides, unless it has decided before and did not hear that the store took it. */
static int decide(struct leaving *l, const char *go)
{
    struct muster_bytes go_key = muster_str(go);
    struct muster_values values = {0};
    bool decided = false;
    struct mu_rpc_keys keys = {0};
    uint64_t begun = 0;
    uint64_t ended = 0;
    int err =
        l->again ? muster_store_check(l->store, &go_key, 1, &decided, mu_rpc_left(l->until)) : 0;

    if (err == 0 && decided) {
        l->ended = UINT64_MAX; /* what it counted is forgotten: one more round */
        return await_decision(l, go);
    }
    if (err == 0) {
        err = make_keys(l, &keys);
    }
    if (err == 0) {
        err = mu_rpc_keys_read(l->store, &keys, l->until, &values);
        err = err == MUSTER_ETIMEDOUT ? name_missing(l, &keys) : err;
    }
    if (err == 0) {
        err = add_up(&values, &begun, &ended);
    }
    if (err == 0) {
        l->may_go = l->round != 0 && begun == l->ended;
        err = muster_store_set(l->store, go_key, muster_str(l->may_go ? "1" : "0"),
                               mu_rpc_left(l->until));
        l->may_go = l->may_go && err == 0;
    }
    if (err == 0 && l->round != 0) {
        char before[MU_RPC_GROUP_KEY_MAX];

        make_key(l, l->round - 1, "go", before);
        take_away(l, before);
    }
    l->ended = err == 0 ? ended : l->ended;
    muster_values_free(&values);
    mu_rpc_keys_free(&keys);
    return err;
}

static int one_round(struct leaving *l)
{
    char own[MU_RPC_GROUP_KEY_MAX];
    char go[MU_RPC_GROUP_KEY_MAX];
    char counts[48];
    uint64_t begun = 0;
    uint64_t ended = 0;
    int err = look(l, l->round == 0, &begun, &ended);

    make_own_key(l, own);
    make_key(l, l->round, "go", go);
    (void)snprintf(counts, sizeof(counts), "%" PRIu64 " %" PRIu64, begun, ended);
    if (err == 0) {
        err =
            muster_store_set(l->store, muster_str(own), muster_str(counts), mu_rpc_left(l->until));
    }
    if (err == 0) {
        err = l->rank == 0 ? decide(l, go) : await_decision(l, go);
    }
    if (err == 0) {
        take_away(l, own);
        l->round++;
        l->again = false;
    }
    return err;
}

/* The others write that they have read that they may go; the last of them writes that all have. */
static void tidy_others(const struct leaving *l)
{
    char key[MU_RPC_GROUP_KEY_MAX];
    int64_t gone = 0;

    make_end_key(l, "gone", key);
    if (muster_store_add(l->store, muster_str(key), 1, &gone, TIDY_MS) == 0 &&
        gone == (int64_t)l->size - 1) {
        make_end_key(l, "over", key);
        (void)muster_store_set(l->store, muster_str(key), muster_str("1"), TIDY_MS);
    }
}

/* The leader goes last, since it may serve the store. It leaves the answer there for a worker that
 * comes later. */
static void tidy_leader(const struct leaving *l)
{
    struct muster_value value = {0};
    int64_t left = mu_rpc_left(l->until);
    char key[MU_RPC_GROUP_KEY_MAX];

    left = left == MUSTER_TIMEOUT_NEVER || left > LAST_MS ? LAST_MS : left;
    make_end_key(l, "over", key);
    if (l->size > 1 && muster_store_get(l->store, muster_str(key), &value, left) != 0) {
        return;
    }
    muster_value_free(&value);
    take_away(l, key);
    make_end_key(l, "gone", key);
    take_away(l, key);
    make_key(l, l->round - 1, "go", key);
    take_away(l, key);
}

static void tidy(const struct leaving *l)
{
    char key[MU_RPC_GROUP_KEY_MAX];

    (void)snprintf(key, sizeof(key), "rpc/%s/%" PRIu32, l->group, l->rank);
    take_away(l, key);
    if (l->rank == 0) {
        tidy_leader(l);
    } else {
        tidy_others(l);
    }
}

/* --- the group of an agent -------------------------------------------------------------------- */

int mu_rpc_set_group(muster_rpc_agent *a, const struct mu_rpc_world *world)
{
    struct mu_rpc_group group = {
        .name = mu_strndup(world->group, strlen(world->group)),
        .place = mu_strndup(world->place, strlen(world->place)),
        .size = world->size,
        .rank = world->rank,
    };
    struct mu_rpc_group old = group;
    int err = group.name == NULL || group.place == NULL ? MUSTER_ENOMEM : 0;

    (void)pthread_mutex_lock(&a->lock);
    err = err == 0 && a->leaving ? MUSTER_EBUSY : err;
    if (err == 0) {
        old = a->group;
        a->group = group;
    }
    (void)pthread_mutex_unlock(&a->lock);
    mu_free(old.name);
    mu_free(old.place);
    return mu_api_error(err, err == MUSTER_EBUSY ? "the agent is leaving its group" : NULL);
}

bool mu_rpc_is_in_group(muster_rpc_agent *a, const struct mu_rpc_world *world)
{
    bool is;

    (void)pthread_mutex_lock(&a->lock);
    is = a->group.name != NULL && strcmp(a->group.name, world->group) == 0 &&
         strcmp(a->group.place, world->place) == 0;
    (void)pthread_mutex_unlock(&a->lock);
    return is;
}

/* Borrows the agent's group until end_leaving(). */
static int begin_leaving(muster_rpc_agent *a, struct leaving *l)
{
    int err;

    (void)pthread_mutex_lock(&a->lock);
    err = a->group.name == NULL ? MUSTER_EINVAL : a->leaving ? MUSTER_EBUSY : 0;
    a->leaving = a->leaving || err == 0;
    (void)pthread_mutex_unlock(&a->lock);
    if (err != 0) {
        return mu_api_error(err, err == MUSTER_EINVAL ? "the agent is in no group"
                                                      : "another thread is leaving the group");
    }
    l->group = a->group.name;
    l->size = a->group.size;
    l->rank = a->group.rank;
    l->round = a->group.leave_round;
    l->ended = a->group.leave_ended;
    l->again = a->group.leave_again;
    return 0;
}

static void end_leaving(muster_rpc_agent *a, const struct leaving *l)
{
    struct mu_rpc_group old = {0};

    (void)pthread_mutex_lock(&a->lock);
    a->leaving = false;
    if (l->may_go) {
        old = a->group;
        a->group = (struct mu_rpc_group){0};
    } else {
        a->group.leave_round = l->round; /* the next try goes on there */
        a->group.leave_ended = l->ended;
        a->group.leave_again = true;
    }
    (void)pthread_mutex_unlock(&a->lock);
    mu_free(old.name);
    mu_free(old.place);
}

int muster_rpc_leave_group(muster_rpc_agent *a, muster_store *store, int64_t timeout_ms)
{
    struct leaving l = {.agent = a, .store = store};
    int err = mu_rpc_until(a, store, timeout_ms, &l.until);

    if (err == 0) {
        err = begin_leaving(a, &l);
    }
    if (err != 0) {
        return err;
    }
    while (err == 0 && !l.may_go) {
        err = one_round(&l);
    }
    if (err == 0) {
        tidy(&l);
    }
    end_leaving(a, &l);
    return err;
}
