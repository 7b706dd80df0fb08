/*
 * Looking for the nodes nearest to some keys: a beam search that asks several nodes at once, each
 * about several keys (hivemind's traverse_dht). Pure, and without a word of what is asked: whoever
 * drives it makes the calls and tells what came of them.
 *
 *     mu_dht_search_add(s, &key, start, count)             a query for each key
 *     while (mu_dht_search_next_call(s, &call)) ...        ask call.who about call.queries
 *     mu_dht_search_learn(s, &call, query, &neighbour)     what it answered,
 *     mu_dht_search_answered(s, call.number, ok)           and that this was all
 *     while (mu_dht_search_next_end(s, &query)) ...        mu_dht_search_nearest()
 *
 * A query keeps the nodes that it has heard of in the order of their distance. It asks the nearest
 * that it has not asked yet, as long as that one is among the `beam` nearest of those that have not
 * failed, and ends when there is none. A node that fails is out of the beam, so the next one comes
 * in: dead nodes do not narrow the search. It also ends when it has cost `calls_max` calls, or when
 * mu_dht_search_stop() says that enough is known.
 */
#ifndef MU_DHT_SEARCH_H
#define MU_DHT_SEARCH_H

#include <stdbool.h>

#include "codec/dht/msg.h"
#include "core/list.h"

#define MU_DHT_BATCH_MAX 16 /* queries of one call */

struct mu_dht_search_config {
    struct mu_dht_neighbour self; /* is not asked */
    uint32_t beam;                /* 20 */
    uint32_t workers;             /* calls under way. 4 */
    uint32_t batch;               /* queries of one call. 1 */
    uint32_t calls_max;           /* for one query. 128 */
    uint32_t nodes_max;           /* that a query remembers. 256 */
};

struct mu_dht_search_node;
struct mu_dht_query;

struct mu_dht_search {
    struct mu_dht_search_config config;
    struct mu_dht_query *queries;
    size_t count;
    size_t cap;
    size_t unfinished;
    struct mu_list calls;
    uint32_t under_way;
    uint64_t numbers;
};

struct mu_dht_search_call {
    uint64_t number;
    struct mu_dht_neighbour who;
    size_t count;
    uint32_t queries[MU_DHT_BATCH_MAX];
    uint32_t hops; /* how far from where the search began */
};

/** Fills in the defaults of what is zero. Takes no memory. */
void mu_dht_search_init(struct mu_dht_search *s, const struct mu_dht_search_config *config);
void mu_dht_search_fini(struct mu_dht_search *s);
/** A query; they are numbered from zero. MUSTER_ENOMEM. */
int mu_dht_search_add(struct mu_dht_search *s, const struct mu_dht_id *target,
                      const struct mu_dht_neighbour *start, size_t count);
/** The next call to make. False: none now. */
bool mu_dht_search_next_call(struct mu_dht_search *s, struct mu_dht_search_call *ret);
/** A call's answer names a neighbour for a query. MUSTER_ENOMEM. */
int mu_dht_search_learn(struct mu_dht_search *s, const struct mu_dht_search_call *call,
                        uint32_t query, const struct mu_dht_neighbour *who);
/** That was the answer, or there was none. A number that is not known is ignored. */
void mu_dht_search_answered(struct mu_dht_search *s, uint64_t number, bool ok);
/** A query needs no more. */
void mu_dht_search_stop(struct mu_dht_search *s, uint32_t query);
/** The next query that has ended; each once. */
bool mu_dht_search_next_end(struct mu_dht_search *s, uint32_t *ret_query);
/** The nearest nodes that have not failed, nearest first; returns how many. */
size_t mu_dht_search_nearest(const struct mu_dht_search *s, uint32_t query, size_t max,
                             struct mu_dht_neighbour *out);
/** How many nodes one after the other led to the nearest that answered, and what it has cost. */
uint32_t mu_dht_search_hops(const struct mu_dht_search *s, uint32_t query);
uint32_t mu_dht_search_calls(const struct mu_dht_search *s, uint32_t query);
const struct mu_dht_id *mu_dht_search_target(const struct mu_dht_search *s, uint32_t query);
/** Whether all queries have ended. Calls may still be under way; nobody needs them. */
static inline bool mu_dht_search_done(const struct mu_dht_search *s)
{
    return s->unfinished == 0;
}

#endif
