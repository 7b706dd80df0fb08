/* Joining the other nodes, checking that they are still there, and joining them again. */
#include "proto/dht/node_internal.h"

#include <muster/error.h>

#define PEERS_MAX 256
#define GAPS_MAX  16 /* parts of the id space that one search looks at */
#define GAP_KNOWN 3  /* how many known nodes of such a part are enough */

/* --- joining ---------------------------------------------------------------------------------- */

static void ended_join(struct mu_dht *d, struct dht_op *op, int status)
{
    bool restores = op->restores && status == 0;

    mu_dht_op_end(d, op, status);
    if (d->table.count > 0) {
        d->alone = false;
        d->rejoin_at = MU_MONO_NEVER;
    }
    if (restores) {
        d->stats.rejoins++;
        mu_dht_store_anew(d);
    }
}

/* A node has let us in: searches for the nodes near to us. They learn of us by being asked. */
static void look_around(struct mu_dht *d, struct dht_op *op)
{
    op->searching = true;
    op->deadline = mu_mono_add_ms(d->now.mono, d->config.op_ms);
    op->keys[0].id = d->config.self.node;
    if (mu_dht_op_search(d, op, 0) != 0) {
        ended_join(d, op, MUSTER_ENOMEM);
    }
    d->moved = true;
}

static void pings_over(struct mu_dht *d, struct dht_op *op)
{
    if (op->searching || op->ended) {
        return;
    }
    if (op->base.answered > op->clocks) {
        look_around(d, op);
    } else if (op->upkeep) {
        op->restores = false;
        look_around(d, op);
    } else {
        ended_join(d, op, op->clocks > 0 ? MUSTER_EDHT_CLOCK : MUSTER_EDHT_NOBODY);
    }
}

/*
 * A peer's clock must show a time between our question and its answer, within the allowed
 * difference: records expire by the clock, and are lost where clocks differ.
 */
static bool clock_agrees(const struct mu_dht *d, const struct dht_call *c, double theirs)
{
    double slack = (double)d->config.clock_ms / 1e3;

    return theirs >= c->sent - slack && theirs <= mu_dht_time(d) + slack;
}

void mu_dht_join_answered(struct mu_dht *d, struct dht_op *op, const struct dht_call *c,
                          const struct mu_dht_ping_reply *reply)
{
    op->pings--;
    if (reply != NULL) {
        op->base.answered++;
        op->base.reachable += reply->available;
        op->clocks += !clock_agrees(d, c, reply->dht_time);
    }
    if (op->pings == 0) {
        pings_over(d, op);
    }
}

static unsigned common_bits(const struct mu_dht_id *a, const struct mu_dht_id *b)
{
    unsigned bits = 0;

    while (bits < 8 * MU_DHT_ID_LEN &&
           ((a->bytes[bits / 8] ^ b->bytes[bits / 8]) >> (7 - bits % 8) & 1) == 0) {
        bits++;
    }
    return bits;
}

/* Makes an id that shares the first `bit` bits with ours, but not the next one. */
static struct mu_dht_id id_beside(struct mu_dht *d, unsigned bit)
{
    struct mu_dht_id id = d->config.self.node;

    id.bytes[bit / 8] ^= (uint8_t)(0x80u >> bit % 8);
    for (unsigned i = bit + 1; i < 8 * MU_DHT_ID_LEN; i++) {
        id.bytes[i / 8] ^= (uint8_t)((mu_prng_u64(&d->prng) & 1) << (7 - i % 8));
    }
    return id;
}

static bool knows_some(struct mu_dht *d, const struct mu_dht_id *target, unsigned bits)
{
    struct mu_dht_neighbour near[GAP_KNOWN];
    size_t enough = d->config.bucket_size < GAP_KNOWN ? d->config.bucket_size : GAP_KNOWN;

    return mu_dht_table_nearest(&d->table, target, enough, NULL, near) == enough &&
           common_bits(target, &near[enough - 1].node) >= bits;
}

/*
 * A node that has searched only for its own id knows only the nodes around it, and so do they: a
 * search for something far from there would go in circles. So each part of the id space that does
 * not hold us (the other half, the other quarter of our half and so on) is searched if too few of
 * its nodes are known.
 */
static void fill_gaps(struct mu_dht *d, struct dht_op *op)
{
    size_t max = d->config.bucket_size;
    struct mu_dht_neighbour *near = mu_calloc(max, sizeof(*near));
    unsigned depth = 0;

    if (near != NULL &&
        mu_dht_table_nearest(&d->table, &d->config.self.node, max, NULL, near) == max) {
        depth = common_bits(&d->config.self.node, &near[max - 1].node);
    }
    mu_free(near);
    for (unsigned bit = 0; bit < depth && bit < GAPS_MAX; bit++) {
        struct mu_dht_id target = id_beside(d, bit);

        op->keys[op->gaps + 1].id = target;
        if (!knows_some(d, &target, bit + 1) && mu_dht_op_search(d, op, op->gaps + 1) == 0) {
            op->gaps++;
        }
    }
}

void mu_dht_join_found(struct mu_dht *d, struct dht_op *op)
{
    if (op->keys_done++ == 0 && !d->config.client) {
        fill_gaps(d, op);
    }
    if (op->keys_done == 1 + (size_t)op->gaps) {
        ended_join(d, op, 0);
    }
}

void mu_dht_join_late(struct mu_dht *d, struct dht_op *op)
{
    if (op->searching) {
        ended_join(d, op, 0); /* we have joined; the rest follows */
    } else {
        pings_over(d, op);
    }
}

static int begin_join(struct mu_dht *d, bool internal, bool restores, struct dht_op **ret)
{
    struct dht_op *op;
    int err = mu_dht_op_new(d, MU_DHT_OP_BOOTSTRAP, 1 + GAPS_MAX, 0, &op);

    if (err != 0) {
        return err;
    }
    op->internal = internal;
    op->restores = restores;
    op->deadline = mu_mono_add_ms(d->now.mono, 2 * (uint64_t)d->config.wait_ms);
    mu_list_push(&d->ops, &op->link);
    d->moved = true;
    *ret = op;
    return 0;
}

/* Pings the peers through which we joined, or only those that are not known now. */
static void ping_joined(struct mu_dht *d, struct dht_op *op, bool missing)
{
    for (size_t i = 0; i < d->joined_count; i++) {
        struct mu_dht_neighbour who = {.peer = d->joined[i]};
        struct dht_call *c;

        if ((!missing || mu_dht_table_node_of(&d->table, &who.peer) == NULL) &&
            mu_dht_ping_node(d, DHT_CALL_JOIN, &who, false, !d->config.client, &c) == 0) {
            c->op = op;
            op->pings++;
        }
    }
}

static void ask_to_join(struct mu_dht *d, struct dht_op *op)
{
    ping_joined(d, op, false);
    if (op->pings == 0) {
        ended_join(d, op, d->joined_count == 0 ? 0 : MUSTER_EDHT_NOBODY);
    }
}

static int remember_peers(struct mu_dht *d, const struct mu_peer_id *peers, size_t count)
{
    struct mu_peer_id *copy = mu_calloc(count + 1, sizeof(*copy));

    if (copy == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_free(d->joined);
    d->joined = copy;
    d->joined_count = 0;
    for (size_t i = 0; i < count; i++) {
        if (!mu_peer_id_eq(&peers[i], &d->config.self.peer)) {
            d->joined[d->joined_count++] = peers[i];
        }
    }
    return 0;
}

int mu_dht_bootstrap(struct mu_dht *d, struct mu_now now, const struct mu_peer_id *peers,
                     size_t count, struct mu_dht_op **ret)
{
    struct dht_op *op;
    int err;

    mu_dht_enter(d, now);
    if (count > PEERS_MAX) {
        return MUSTER_EINVAL;
    }
    err = begin_join(d, false, false, &op);
    err = err != 0 ? err : remember_peers(d, peers, count);
    if (err != 0) {
        return err;
    }
    d->upkeep_at = mu_mono_add_ms(now.mono, d->config.upkeep_ms);
    d->had_others = d->joined_count > 0; /* or wants to have some */
    ask_to_join(d, op);
    *ret = &op->base;
    mu_dht_pump(d);
    return 0;
}

/* --- staying ---------------------------------------------------------------------------------- */

bool mu_dht_is_joining(const struct mu_dht *d)
{
    MU_LIST_FOREACH (it, &d->ops) {
        if (MU_CONTAINER_OF(it, struct dht_op, link)->base.type == MU_DHT_OP_BOOTSTRAP) {
            return true;
        }
    }
    return false;
}

static bool knows_joined(const struct mu_dht *d)
{
    for (size_t i = 0; i < d->joined_count; i++) {
        if (mu_dht_table_node_of(&d->table, &d->joined[i]) != NULL) {
            return true;
        }
    }
    return d->joined_count == 0;
}

/*
 * A search for the nodes near to us finds out which are gone, and reminds the others of us. The
 * peers through which we joined are asked too if they are not known any more: otherwise a group
 * that has lost all others but not each other would stay alone for ever. A node that finds them
 * again has been away.
 */
static void keep_up(struct mu_dht *d)
{
    struct dht_op *op;

    d->upkeep_at = mu_mono_add_ms(
        d->now.mono, d->config.upkeep_ms / 2 + mu_prng_below(&d->prng, d->config.upkeep_ms + 1));
    if (d->table.count == 0 || mu_dht_is_joining(d) ||
        begin_join(d, true, !knows_joined(d), &op) != 0) {
        return;
    }
    op->upkeep = true;
    ping_joined(d, op, true);
    if (op->pings == 0) {
        pings_over(d, op);
    }
}

void mu_dht_join_tick(struct mu_dht *d)
{
    struct dht_op *op;

    if (mu_mono_reached(d->upkeep_at, d->now.mono)) {
        keep_up(d);
    }
    if (mu_mono_reached(d->rejoin_at, d->now.mono)) {
        d->rejoin_at = mu_mono_add_ms(d->now.mono, d->config.rejoin_ms);
        if (!mu_dht_is_joining(d) && begin_join(d, true, true, &op) == 0) {
            ask_to_join(d, op);
        }
    }
}
