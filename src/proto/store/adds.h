/*
 * ADDs of one key that come while one is under way are summed into the next call, and everybody
 * gets the number that a call of its own would have got.
 *
 *     mu_adds_submit(): first of its key                 sent at once
 *     mu_adds_submit(): another is under way             waits
 *     mu_adds_land(), mu_adds_next()                     each gets base + the sum up to itself
 *     mu_adds_next_call()                                those who waited, as one call
 *
 * A decision machine.
 */
#ifndef MU_ADDS_H
#define MU_ADDS_H

#include <stdbool.h>

#include "core/list.h"
#include "core/map.h"
#include "core/span.h"

/* One ADD; embedded by the caller, zeroed before its first use. */
struct mu_add {
    int64_t delta;
    struct mu_adds_call *call; /* private from here; NULL: none */
    struct mu_list link;
    bool sent;
};

/* A call of one key. It lasts as long as ADDs of the key keep coming. */
struct mu_adds_call {
    struct mu_span key;
    int64_t delta;           /* of all that are in it */
    void *impl;              /* the driver's */
    struct mu_map_node node; /* private from here */
    struct mu_list link;
    struct mu_list sent;
    struct mu_list waiting;
    uint8_t bytes[];
};

struct mu_adds {
    uint64_t combined;   /* for people: ADDs that needed no call of their own */
    struct mu_map calls; /* private from here */
    struct mu_list to_send;
    struct mu_adds_call *landed;
    int status;
    int64_t sum;
};

void mu_adds_init(struct mu_adds *a, uint64_t seed);
/** No ADD may be left; this is asserted. */
void mu_adds_fini(struct mu_adds *a);
/** Takes an ADD. MUSTER_ENOMEM. */
int mu_adds_submit(struct mu_adds *a, struct mu_add *add, struct mu_span key, int64_t delta);
/** Whether ADDs of the key are under way or wait. */
bool mu_adds_has(const struct mu_adds *a, struct mu_span key);
/** Takes back an ADD that was not sent. False: it was. */
bool mu_adds_leave(struct mu_adds *a, struct mu_add *add);
/** A call to send now; NULL: none. */
struct mu_adds_call *mu_adds_next_call(struct mu_adds *a);
/** A call has ended, with the sum. */
void mu_adds_land(struct mu_adds *a, struct mu_adds_call *call, int status, int64_t sum);
/** What has come of an ADD: its own number, if the status is 0; false: no more. */
bool mu_adds_next(struct mu_adds *a, struct mu_add **ret_add, int *ret_status, int64_t *ret_sum);

#endif
