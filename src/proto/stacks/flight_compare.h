/*
 * What the flight recorders of several ranks say together: for each process group, the first
 * collective at which the ranks differ or that has not ended, who has not entered it, who entered
 * another one, whose sizes or types differ; and which rank keeps the others waiting.
 *
 *     mu_flight_compare_init(&c);
 *     err = mu_flight_compare(&c, dumps, count);        decoded by codec/stacks/flight.h
 *     for (i < c.finding_count) puts(c.findings[i].text);
 *     for (i < count) c.lags[i] ...
 *     mu_flight_compare_fini(&c);
 *
 * A group is known by its name and its members: different groups may have one name. PyTorch counts
 * the collectives of a group on each rank, so that equal numbers should mean the same collective.
 * A recorder keeps only its newest entries; what is older than the oldest that all ranks still have
 * is taken to have ended well. Operations that PyTorch has put together (coalesced) share one
 * number, and are compared one by one, in their order.
 *
 * Dumps are taken at slightly different moments, so those of a healthy run differ as well: compare
 * them only once a run is known to hang. Lags can be taken at any time.
 */
#ifndef MU_FLIGHT_COMPARE_H
#define MU_FLIGHT_COMPARE_H

#include "codec/stacks/flight.h"

#define MU_FLIGHT_DUMPS_MAX    65536
#define MU_FLIGHT_FINDINGS_MAX 64 /* those beyond are counted */
#define MU_FLIGHT_SENTENCE     640

struct mu_flight_dump {
    uint32_t rank;
    const struct mu_flight *flight; /* borrowed during the call */
};

enum mu_flight_fault {
    MU_FLIGHT_NOT_ENTERED = 1, /* others are in it */
    MU_FLIGHT_LEFT_OUT,        /* others have entered it; these have gone on without it */
    MU_FLIGHT_OTHER_OP,        /* most ranks are in another one with the same number */
    MU_FLIGHT_OTHER_SIZES,
    MU_FLIGHT_OTHER_TYPES,
    MU_FLIGHT_NOT_FINISHED, /* all are in it */
    MU_FLIGHT_MESSAGE,      /* a message between two ranks has not ended */
    MU_FLIGHT_NO_DUMP,      /* of a member of a group */
};

struct mu_flight_finding {
    enum mu_flight_fault fault;
    uint64_t seq;
    uint32_t first; /* the ranks that are at fault are `ranks[first]` and so on, sorted */
    uint32_t count;
    bool ended;                    /* OTHER_*: by a rank at least, so nobody waits there */
    char text[MU_FLIGHT_SENTENCE]; /* one sentence without a full stop */
};

/* How a rank kept the others waiting, in the collectives that all members of a group have ended.
 * The rank that enters one last is in it for the shortest time. Only times that one rank has
 * measured are compared: the clocks of machines differ. */
struct mu_flight_lag {
    uint32_t collectives; /* that were looked at */
    uint32_t last;        /* of them: it entered last */
    uint64_t kept_ns;     /* for how long all others waited for it alone */
    uint64_t waited_ns;   /* for how long it waited for others */
    uint64_t span_ns; /* from the first to the last of its entries: what the others are part of */
};

struct mu_flight_compare {
    struct mu_flight_finding *findings;
    size_t finding_count;
    size_t left_out;
    uint32_t *ranks;
    size_t rank_count;
    size_t rank_cap;
    struct mu_flight_lag *lags; /* as many as dumps, in their order */
};

void mu_flight_compare_init(struct mu_flight_compare *c);
void mu_flight_compare_fini(struct mu_flight_compare *c);

/** MUSTER_ELIMIT: more than MU_FLIGHT_DUMPS_MAX; MUSTER_ENOMEM. `c` is empty then. */
int mu_flight_compare(struct mu_flight_compare *c, const struct mu_flight_dump *dumps,
                      size_t count);

/**
 * Whether the first finding is a fault that no rank can recover from, whatever it computes: ranks
 * of one group wait in different collectives, or in one with different sizes or types. A rank that
 * has not come to a collective may still come, and one that some have ended holds nobody up.
 */
bool mu_flight_is_certain(const struct mu_flight_compare *c, uint32_t world);

/** The share of its time, in thousandths, for which a rank kept all others waiting. */
static inline uint32_t mu_flight_lag_permille(const struct mu_flight_lag *lag)
{
    return lag->span_ns == 0 || lag->kept_ns > lag->span_ns
               ? 0
               : (uint32_t)((double)lag->kept_ns * 1000.0 / (double)lag->span_ns);
}

#endif
