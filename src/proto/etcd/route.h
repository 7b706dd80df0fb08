/*
 * The way of a call to an etcd cluster: which endpoint it goes to, what is tried again and when,
 * and when it is given up. Decision machines: service/etcd/etcd.c drives them and has the HTTP.
 *
 * A route is what all calls and watches of a client share: the endpoint that answered last, the
 * time of that answer, and the token that etcd knows our user by. An asker makes one call.
 *
 *     mu_etcd_asker_start(a, route, &terms, now)
 *     while ((action = mu_etcd_asker_next(a)) != 0) ...   then, and after every other function:
 *         SEND           send the request to `endpoint`, and end the exchange after `try_ms`
 *         CANCEL         end the exchange, mu_etcd_asker_done() follows
 *         AUTHENTICATE   ask for a token by a call that is not `named`, mu_etcd_route_authed()
 *                        follows, and mu_etcd_asker_authed() for every asker and watcher
 *         END            the last action: `answer` says how it ended
 *     mu_etcd_asker_done(a, &exchange, now)       the exchange has ended
 *     mu_etcd_asker_unsent(a, err, now)           the exchange could not begin
 *     mu_etcd_asker_spoil(a, err)                 the answer cannot be kept: it is too long
 *     mu_etcd_asker_stop(a, why, now)             the owner does not want it any more
 *     mu_etcd_asker_tick(a, now)                  it is `wake`
 *
 *     call:   IDLE    --start-->            OUT      SEND
 *             IDLE    --start-->            UNNAMED  there is no token yet
 *             OUT     --done-->             IDLE     etcd answered, or trying again is no use: END
 *             OUT     --done-->             RESTING  another endpoint may answer, or this one later
 *             OUT     --stop, spoil-->      OUT      CANCEL, and done ends it
 *             RESTING --tick-->             OUT, UNNAMED, or IDLE at its deadline
 *             UNNAMED --authed-->           RESTING
 *             UNNAMED --tick-->             IDLE     its deadline: END
 *             RESTING, UNNAMED --stop-->    RESTING  and the tick ends it
 *
 *     token:  MISSING --a call or a watch needs it-->   ASKED   AUTHENTICATE
 *             ASKED   --authed-->                       HELD, OFF (the cluster asks for none), or
 *                                                       MISSING: what waits for it ends
 *             HELD, OFF --etcd refuses it-->            MISSING
 *
 * After a failure the next endpoint of the list is asked at once; after each round through all of
 * them there is a pause, 20 ms at first and twice as long each time up to half a second, of which
 * the second half is random.
 */
#ifndef MU_ETCD_ROUTE_H
#define MU_ETCD_ROUTE_H

#include "core/prng.h"
#include "core/time.h"
#include "proto/etcd/judge.h"

/* service/etcd/etcd.h says what the times are. */
struct mu_etcd_route_config {
    uint32_t endpoint_count; /* 1 to 31 */
    uint32_t first_ms;
    uint32_t patience_ms;
    uint32_t try_ms;
    uint32_t quiet_ms;
    size_t reply_bytes_max;
    const char *user; /* NULL: calls go without a token. Borrowed */
};

enum mu_etcd_token_state {
    MU_ETCD_TOKEN_MISSING = 0,
    MU_ETCD_TOKEN_ASKED,
    MU_ETCD_TOKEN_HELD,
    MU_ETCD_TOKEN_OFF,
};

struct mu_etcd_route {
    struct mu_etcd_route_config config;
    struct mu_prng prng;
    uint32_t current; /* the endpoint that is asked next */
    bool ever_answered;
    mu_mono_t answered; /* when an endpoint last did */
    enum mu_etcd_token_state token;
    uint64_t token_number; /* counts tokens; 0: none yet */
    bool closing;          /* set by the driver: what starts from now on ends with MUSTER_ECLOSED */
};

/** The seed also chooses the first endpoint, so that not every client goes to the same one. */
void mu_etcd_route_init(struct mu_etcd_route *r, const struct mu_etcd_route_config *config,
                        uint64_t seed);
/** The call for a token has ended, with words in `msg`. Returns the status to tell the askers and
 * watchers that wait for the token, and may change the words. */
int mu_etcd_route_authed(struct mu_etcd_route *r, int status, struct mu_errmsg *msg);

/* For the machines. */

void mu_etcd_route_answered(struct mu_etcd_route *r, uint32_t endpoint, mu_mono_t now);
/** An endpoint failed: the one behind it is asked next. */
void mu_etcd_route_leave(struct mu_etcd_route *r, uint32_t endpoint);
/** How long to wait before try number `tries` (from 1). */
uint64_t mu_etcd_route_rest_ns(struct mu_etcd_route *r, uint32_t tries);
/** Whether the cluster has been silent for too long, as seen by what began at `started`. */
bool mu_etcd_route_silent(const struct mu_etcd_route *r, mu_mono_t started, mu_mono_t now);
/** Whether a request must wait for a token. `ret_ask`: the caller must ask for it. */
bool mu_etcd_route_needs_token(struct mu_etcd_route *r, bool *ret_ask);
/** etcd refuses the token of that number. */
void mu_etcd_route_drop_token(struct mu_etcd_route *r, uint64_t number);

/* --- one call --------------------------------------------------------------------------------- */

struct mu_etcd_terms {
    bool repeat; /* twice is as once */
    bool v2;
    bool poll;           /* v2: a wait; that nothing came in time is no fault of the endpoint's */
    bool bare;           /* any answer is an answer */
    bool named;          /* it goes with a token, where one is needed */
    uint32_t timeout_ms; /* 0: never */
};

enum mu_etcd_asker_state {
    MU_ETCD_ASKER_IDLE = 0,
    MU_ETCD_ASKER_OUT,
    MU_ETCD_ASKER_RESTING, /* until `wake` */
    MU_ETCD_ASKER_UNNAMED, /* until there is a token */
};

enum mu_etcd_asker_action {
    MU_ETCD_ASKER_SEND = 1,
    MU_ETCD_ASKER_CANCEL,
    MU_ETCD_ASKER_AUTHENTICATE,
    MU_ETCD_ASKER_END,
};

/* It holds no memory. Drivers read the first members. */
struct mu_etcd_asker {
    enum mu_etcd_asker_state state;
    uint32_t endpoint;            /* SEND */
    uint32_t try_ms;              /* SEND; 0: never */
    mu_mono_t sent;               /* when the last SEND was given */
    mu_mono_t wake;               /* when to tick; MU_MONO_NEVER: not */
    struct mu_etcd_answer answer; /* END */
    int spoilt;                   /* why the answer is not kept; 0: it is */

    struct mu_etcd_route *route;
    struct mu_etcd_terms terms;
    enum mu_etcd_asker_action due;
    mu_mono_t started;
    mu_mono_t deadline;
    uint32_t tries;
    uint32_t slow;     /* tries that etcd had not answered when their time was up */
    uint32_t hopeless; /* endpoints that refuse it for good, a bit for each */
    uint32_t auths;
    uint64_t token; /* which one it went out with */
    int ending;     /* why it is being stopped; 0: it is not */
};

/** The asker must be IDLE: all zero, or after END. */
void mu_etcd_asker_start(struct mu_etcd_asker *a, struct mu_etcd_route *route,
                         const struct mu_etcd_terms *terms, mu_mono_t now);
void mu_etcd_asker_done(struct mu_etcd_asker *a, const struct mu_etcd_exchange *x, mu_mono_t now);
void mu_etcd_asker_unsent(struct mu_etcd_asker *a, int err, mu_mono_t now);
void mu_etcd_asker_spoil(struct mu_etcd_asker *a, int err);
/** There is a token, or (status not 0) there will be none. Only an UNNAMED asker minds. */
void mu_etcd_asker_authed(struct mu_etcd_asker *a, int status, const char *text, mu_mono_t now);
/** END follows with `why`, unless it ends otherwise first; but never in the same turn. */
void mu_etcd_asker_stop(struct mu_etcd_asker *a, int why, mu_mono_t now);
void mu_etcd_asker_tick(struct mu_etcd_asker *a, mu_mono_t now);
/** What to do now; 0: nothing, until something happens. */
enum mu_etcd_asker_action mu_etcd_asker_next(struct mu_etcd_asker *a);

#endif
