/*
 * A search for the nodes nearest to some keys: a beam search that asks several nodes at once, each
 * about several keys (hivemind's traverse_dht). It is pure and does not know what is asked: its
 * driver makes the calls and reports the results.
 *
 *     mu_dht_search_add(s, &key, start, count)             a query for each key
 *     while (mu_dht_search_next_call(s, &call)) ...        ask call.who about call.queries
 *     mu_dht_search_learn(s, &call, query, &neighbour)     what it answered
 *     mu_dht_search_answered(s, call.number, ok)           the answer is complete, or failed
 *     while (mu_dht_search_next_end(s, &query)) ...        mu_dht_search_nearest()
 *
 * A query keeps the nodes that it has heard of in the order of their distance. It asks the nearest
 * that it has not asked yet, as long as that one is among the `beam` nearest of those that have not
 * failed, and ends when there is no such node. A node that fails leaves the beam and the next one
 * enters: dead nodes do not narrow the search. It also ends when it has cost `calls_max` calls, or
 * when mu_dht_search_stop() says that enough is known.
 */
#ifndef MU_DHT_SEARCH_H
#define MU_DHT_SEARCH_H

#include <stdbool.h>

#include "codec/dht/msg.h"
#include "core/list.h"

#define MU_DHT_BATCH_MAX 16 /* queries of one call */

struct mu_dht_search_config {
    struct mu_dht_neighbour self; /* the node itself, which is not asked */
    uint32_t beam;                /* 20 */
    uint32_t workers;             /* calls in progress. 4 */
    uint32_t batch;               /* queries of one call. 1 */
    uint32_t calls_max;           /* calls of one query. 128 */
    uint32_t nodes_max;           /* nodes that a query remembers. 256 */
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
    uint32_t hops; /* how far the node is from where the search began */
};

/** Fills in the defaults of limits that are zero. Takes no memory. */
void mu_dht_search_init(struct mu_dht_search *s, const struct mu_dht_search_config *config);
void mu_dht_search_fini(struct mu_dht_search *s);
/** Adds a query; queries are numbered from zero. MUSTER_ENOMEM. */
int mu_dht_search_add(struct mu_dht_search *s, const struct mu_dht_id *target,
                      const struct mu_dht_neighbour *start, size_t count);
/** Takes the next call to make. False: there is no call to make now. */
bool mu_dht_search_next_call(struct mu_dht_search *s, struct mu_dht_search_call *ret);
/** A call's answer named a neighbour for a query. MUSTER_ENOMEM. */
int mu_dht_search_learn(struct mu_dht_search *s, const struct mu_dht_search_call *call,
                        uint32_t query, const struct mu_dht_neighbour *who);
/** The answer is complete, or there was no answer. An unknown number is ignored. */
void mu_dht_search_answered(struct mu_dht_search *s, uint64_t number, bool ok);
/** Ends a query, which knows enough. */
void mu_dht_search_stop(struct mu_dht_search *s, uint32_t query);
/** Takes the next query that has ended; each is returned once. */
bool mu_dht_search_next_end(struct mu_dht_search *s, uint32_t *ret_query);
/** Writes the nearest nodes that have not failed, nearest first; returns how many. */
size_t mu_dht_search_nearest(const struct mu_dht_search *s, uint32_t query, size_t max,
                             struct mu_dht_neighbour *out);
/** Returns how many nodes, one after the other, led to the nearest that answered, and how many
 * calls it cost. */
uint32_t mu_dht_search_hops(const struct mu_dht_search *s, uint32_t query);
uint32_t mu_dht_search_calls(const struct mu_dht_search *s, uint32_t query);
const struct mu_dht_id *mu_dht_search_target(const struct mu_dht_search *s, uint32_t query);
/** Returns whether all queries have ended. Calls may still be in progress; they are not needed. */
static inline bool mu_dht_search_done(const struct mu_dht_search *s)
{
    return s->unfinished == 0;
}

#endif
