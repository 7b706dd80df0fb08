/* What the files of flight_compare.h share. */
#ifndef MU_FLIGHT_COMPARE_INTERNAL_H
#define MU_FLIGHT_COMPARE_INTERNAL_H

#include "proto/stacks/flight_compare.h"

/* An entry of a dump, in the order of group, kind, number, and place in the dump. */
struct mu_flight_item {
    uint64_t seq;
    uint32_t group;
    uint32_t index;
    bool p2p;
};

/* A group of one dump. Those with the same digest are one group of the run. */
struct mu_flight_part {
    uint64_t digest;
    uint64_t lead; /* the dump and the group of the first of them: the order of the run's groups */
    uint32_t dump;
    uint32_t group;
};

/* One rank in the comparison of a group. */
struct mu_flight_member {
    uint32_t rank;
    uint32_t dump;
    uint32_t group;                     /* in its dump */
    const struct mu_flight_item *items; /* its collectives, in their order */
    size_t count;
    size_t at; /* the next that is compared */
    const struct mu_flight_item *messages;
    size_t message_count;
};

struct mu_flight_work {
    struct mu_flight_compare *c;
    const struct mu_flight_dump *dumps;
    size_t dump_count;
    struct mu_flight_item *items; /* of all dumps, one after the other */
    size_t *first;                /* where those of each dump begin; one more than dumps */
    struct mu_flight_part *parts;
    size_t part_count;
    struct mu_flight_member *members; /* of the group that is compared, by rank */
    size_t member_count;
    uint32_t *ranks; /* room for all of them, or for all of a group's ranks */
    uint32_t *others;
    int err;
};

static inline const struct mu_flight_entry *mu_flight_entry_of(const struct mu_flight_work *w,
                                                               const struct mu_flight_member *m,
                                                               const struct mu_flight_item *item)
{
    return &w->dumps[m->dump].flight->entries[item->index];
}

/** The entry that a member is at; NULL: it has no more. */
const struct mu_flight_entry *mu_flight_at(const struct mu_flight_work *w,
                                           const struct mu_flight_member *m);

/* What is said, in flight_say.c; `ranks` of the work are those at fault, `others` the others. */
void mu_flight_say_not_entered(struct mu_flight_work *w, const struct mu_flight_member *in,
                               size_t at_fault, size_t waiting);
void mu_flight_say_left_out(struct mu_flight_work *w, const struct mu_flight_member *in,
                            const struct mu_flight_member *odd, size_t at_fault, size_t others);
void mu_flight_say_other(struct mu_flight_work *w, const struct mu_flight_member *in,
                         const struct mu_flight_member *odd, enum mu_flight_fault fault,
                         size_t at_fault, size_t others);
void mu_flight_say_not_finished(struct mu_flight_work *w, const struct mu_flight_member *in,
                                size_t at_fault, size_t finished);
void mu_flight_say_message(struct mu_flight_work *w, const struct mu_flight_member *m,
                           const struct mu_flight_item *item);
void mu_flight_say_no_dump(struct mu_flight_work *w, size_t at_fault);

#endif
