/* The group of a rendezvous: new workers are added, and those that are gone are removed. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/rdzv_api.h"
#include "api/rpc_api.h"
#include "core/addr.h"
#include "core/alloc.h"

#define SLICE_MS 1000 /* how long to wait for others before looking at the round again */
#define TIDY_MS  1000 /* how long removing a key may take */

/* A worker of the new world. */
struct worker {
    const char *name;
    struct mu_addr addr;
    struct mu_addr near; /* kind 0: no such address */
    int32_t rank;
};

struct world_door {
    struct mu_rpc_door base;
    struct worker *workers; /* by name */
    size_t count;
    int32_t own;
    struct mu_rpc_peer **peers;
    int32_t *ids;
    int err;
    struct mu_errmsg msg;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct worker *)a)->name, ((const struct worker *)b)->name);
}

static const struct worker *find_worker(const struct world_door *d, const char *name)
{
    struct worker key = {.name = name};

    return bsearch(&key, d->workers, d->count, sizeof(*d->workers), by_name);
}

/* --- on the loop ------------------------------------------------------------------------------ */

static void remove_the_gone(const struct world_door *d)
{
    muster_rpc_agent *a = d->base.agent;
    struct mu_rpc_peer *peer = mu_rpc_agent_next(a->agent, NULL);

    while (peer != NULL) {
        struct mu_rpc_peer *next = mu_rpc_agent_next(a->agent, peer);
        char name[MU_RPC_WORKER_MAX + 1];

        (void)snprintf(name, sizeof(name), "%s", mu_rpc_peer_name(peer));
        if (find_worker(d, name) == NULL) {
            (void)mu_rpc_agent_remove(a->agent, name);
            mu_rref_agent_gone(a->rrefs, name);
        }
        peer = next;
    }
}

/* The workers that stay take their new ids, which may have been another's until now. */
static int renumber(struct world_door *d)
{
    muster_rpc_agent *a = d->base.agent;
    struct mu_rpc_peer *peer = NULL;
    size_t count = 0;

    while ((peer = mu_rpc_agent_next(a->agent, peer)) != NULL) {
        d->peers[count] = peer;
        d->ids[count++] = find_worker(d, mu_rpc_peer_name(peer))->rank;
    }
    return mu_rpc_agent_renumber(a->agent, d->peers, d->ids, count, d->own);
}

static void enter_on_loop(struct mu_door *door)
{
    struct world_door *d = MU_CONTAINER_OF(door, struct world_door, base.door);
    muster_rpc_agent *a = d->base.agent;

    remove_the_gone(d);
    d->err = renumber(d);
    for (size_t i = 0; d->err == 0 && i < d->count; i++) {
        const struct worker *s = &d->workers[i];

        d->err = mu_rpc_agent_add(a->agent, s->name, s->rank, &s->addr, &d->msg);
        if (d->err == 0) {
            (void)mu_rpc_agent_set_near(a->agent, s->name, s->near.kind == 0 ? NULL : &s->near);
        }
        d->err = d->err != 0 ? d->err : mu_rref_agent_back(a->rrefs, s->name);
    }
    if (d->err == 0) {
        atomic_store(&a->id, d->own);
        mu_rref_agent_set_id(a->rrefs, d->own);
    }
    mu_rpc_agent_turn(a->agent);
    mu_door_open(door);
}

/* --- a round ---------------------------------------------------------------------------------- */

static int enter(muster_rpc_agent *a, const struct mu_rpc_member *members, uint32_t count,
                 uint32_t rank)
{
    struct world_door d = {.count = count, .own = (int32_t)rank};
    int err = 0;

    d.workers = mu_calloc(d.count, sizeof(*d.workers));
    d.peers = mu_calloc(d.count, sizeof(struct mu_rpc_peer *));
    d.ids = mu_calloc(d.count, sizeof(*d.ids));
    if (d.workers == NULL || d.peers == NULL || d.ids == NULL) {
        err = mu_api_error(MUSTER_ENOMEM, NULL);
    }
    for (size_t i = 0; err == 0 && i < d.count; i++) {
        d.workers[i].name = members[i].name;
        d.workers[i].rank = (int32_t)i;
        err = mu_api_error(mu_rpc_parse_address(a, members[i].address, &d.workers[i].addr,
                                                &d.workers[i].near, &d.msg),
                           d.msg.text);
    }
    if (err == 0) {
        qsort(d.workers, d.count, sizeof(*d.workers), by_name);
        mu_rpc_pass(a, &d.base, enter_on_loop);
        err = mu_api_error(d.err, d.msg.text[0] != '\0' ? d.msg.text : NULL);
    }
    mu_free(d.workers);
    mu_free((void *)d.peers);
    mu_free(d.ids);
    return err;
}

static int check_round(const muster_rpc_agent *a, const struct muster_rdzv_info *round)
{
    if (round->store == NULL) {
        return mu_api_error(MUSTER_EINVAL, "the round has no store: open the rendezvous without "
                                           "MUSTER_RDZV_NO_STORE");
    }
    if (a->address[0] == '\0') {
        return mu_api_error(MUSTER_EINVAL, "a worker of a group must listen");
    }
    if (round->world_size == 0 || round->world_size > 32768 || round->rank >= round->world_size) {
        return mu_api_error(MUSTER_EINVAL, "a group must have 1 to 32768 workers");
    }
    return 0;
}

/* Removes the keys through which the workers of a round met, all at the same time. */
static void take_away(muster_store *store, const struct mu_rpc_keys *k)
{
    muster_op **ops = mu_calloc(k->count, sizeof(*ops));

    for (size_t i = 0; ops != NULL && i < k->count; i++) {
        struct muster_store_request q = muster_store_request_defaults();

        q.verb = MUSTER_STORE_DELETE;
        q.keys = &k->keys[i];
        q.key_count = 1;
        q.timeout_ms = TIDY_MS;
        (void)muster_store_submit(store, &q, &ops[i]);
    }
    for (size_t i = 0; ops != NULL && i < k->count; i++) {
        if (ops[i] != NULL) {
            (void)muster_op_wait(ops[i]);
            muster_op_free(ops[i]);
        }
    }
    mu_free((void *)ops);
}

/* The last worker that has read all the others clears the store. */
static void tidy(muster_store *store, const struct mu_rpc_world *world)
{
    struct mu_rpc_keys keys = {0};
    char heard[MU_RPC_GROUP_KEY_MAX];
    int64_t sum = 0;

    (void)snprintf(heard, sizeof(heard), "rpc/%s/heard", world->group);
    if (muster_store_add(store, muster_str(heard), 1, &sum, TIDY_MS) == 0 &&
        sum == (int64_t)world->size) {
        if (mu_rpc_keys_make(&keys, world->group, "", world->size) == 0) {
            take_away(store, &keys);
        }
        (void)muster_store_delete(store, muster_str(heard), NULL, TIDY_MS);
        mu_rpc_keys_free(&keys);
    }
}

int muster_rpc_follow_round(muster_rpc_agent *a, const struct muster_rdzv_info *round,
                            int64_t timeout_ms)
{
    struct mu_rpc_member *members = NULL;
    char group[64];
    struct mu_rpc_world world = {group, round->store_url == NULL ? "" : round->store_url,
                                 round->world_size, round->rank, false};
    int err = check_round(a, round);

    (void)snprintf(group, sizeof(group), "round-%" PRIu64 "-%" PRIu64, round->incarnation,
                   round->round);
    if (err == 0 && mu_rpc_is_in_group(a, &world)) {
        return 0;
    }
    if (err == 0) {
        err = mu_rpc_exchange(a, round->store, &world, timeout_ms, &members);
    }
    if (err == 0) {
        err = enter(a, members, round->world_size, round->rank);
    }
    if (err == 0) {
        err = mu_rpc_set_group(a, &world);
    }
    mu_free(members);
    if (err == 0) {
        tidy(round->store, &world);
    }
    return err;
}

/* --- round after round ------------------------------------------------------------------------ */

void muster_rpc_following_init(struct muster_rpc_following *ret, size_t size)
{
    struct muster_rpc_following ours = {.timeout_ms = MUSTER_TIMEOUT_NEVER};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* Learns the group for as long as the round lasts: a worker that dies before it has told its name
 * ends the round. */
static int learn_round(muster_rpc_agent *a, muster_rdzv *rdzv, const struct muster_rdzv_info *round,
                       uint32_t timeout_ms)
{
    int64_t waited = 0;

    for (;;) {
        int64_t slice = timeout_ms != MU_API_NO_BOUND && timeout_ms - waited < SLICE_MS
                            ? timeout_ms - waited
                            : SLICE_MS;
        int err = muster_rpc_follow_round(a, round, slice);

        waited += slice;
        if (err != MUSTER_ETIMEDOUT || (timeout_ms != MU_API_NO_BOUND && waited >= timeout_ms) ||
            muster_rdzv_ended(rdzv, 0) != MUSTER_ETIMEDOUT) {
            return err;
        }
    }
}

/* Waits until the round is over, or a node waits to be let in. */
static int sit_out(muster_rdzv *rdzv)
{
    struct muster_rdzv_event event;
    int err;

    do {
        err = muster_rdzv_wait_event(rdzv, MUSTER_TIMEOUT_NEVER, &event);
    } while (err == 0 && event.kind == MUSTER_RDZV_EVENT_WAITING && event.waiting == 0);
    return err;
}

int muster_rpc_follow(muster_rpc_agent *a, muster_rdzv *rdzv,
                      const struct muster_rpc_following *given)
{
    struct muster_rpc_following following;
    struct muster_rdzv_info round;
    uint32_t timeout_ms = MU_API_NO_BOUND;
    int err = MU_API_TAKE(rpc_following, &following, given);

    if (err == 0) {
        err = mu_api_timeout(following.timeout_ms, MU_API_NO_BOUND, &timeout_ms);
    }
    if (err != 0) {
        return err;
    }
    if (!mu_rdzv_hold(rdzv)) {
        return MUSTER_ECLOSED;
    }
    while ((err = muster_rdzv_next(rdzv, &round)) == 0) {
        err = learn_round(a, rdzv, &round, timeout_ms);
        if (err == 0 && following.round != NULL) {
            following.round(a, &round, following.context);
        }
        if (err == 0) {
            err = sit_out(rdzv);
        } else if (muster_rdzv_ended(rdzv, 0) == 0) {
            err = 0; /* it failed with its round; the next round may work */
        }
        if (err != 0) {
            break;
        }
    }
    mu_rdzv_unhold(rdzv);
    return err == MUSTER_ERDZV_CLOSED || err == MUSTER_ERDZV_GRACEFUL ? 0 : err;
}
