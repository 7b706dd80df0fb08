/*
 * The conformance battery: what every struct mu_env promises in core/env.h, checked once for all
 * of them. A driver makes an environment, says how to run it, and runs each of battery_tests as a
 * cmocka test of its own; battery_main() does all of that.
 */
#ifndef MU_TEST_ENV_BATTERY_H
#define MU_TEST_ENV_BATTERY_H

#include <stdbool.h>

#include "core/env.h"

struct env_under_test {
    struct mu_env *env; /* filled in by `up` */
    /** A fresh environment for one test. 0 on success. */
    int (*up)(struct env_under_test *eut);
    /** Ends it; everything in it was closed. */
    void (*down)(struct env_under_test *eut);
    /**
     * Runs turns until `done(context)` is true, asking after each turn. False when 20 seconds of
     * the environment's time went by before that.
     */
    bool (*run_until)(struct env_under_test *eut, bool (*done)(void *context), void *context);
    /** Where to listen: TCP with port 0 unless the environment must be told one. */
    void (*listen_addr)(struct env_under_test *eut, struct mu_addr *ret);
    /** Turns a listening address into one to dial from the same environment. */
    void (*dial_addr)(struct env_under_test *eut, const struct mu_addr *listening,
                      struct mu_addr *ret);
    /** An address where nobody listens, so that a dial is refused. */
    void (*refused_addr)(struct env_under_test *eut, struct mu_addr *ret);
    bool reads_elsewhere; /* it never asks where bytes are to lie */
    bool passes_on;       /* connections may belong to an environment below it */
    bool accepts_late;    /* a peer that goes at once may never be told of */
    const char *zoo;      /* what the program of tests/lib/zoo.c is called */
    void *context;        /* the driver's */
};

/** Addresses on loopback, for those members above. */
void battery_tcp_listen(struct env_under_test *eut, struct mu_addr *ret);
void battery_same_addr(struct env_under_test *eut, const struct mu_addr *listening,
                       struct mu_addr *ret);
void battery_tcp_refused(struct env_under_test *eut, struct mu_addr *ret);

/** Runs every test over the environment that `eut` describes. The exit code of the program. */
int battery_main(const char *name, struct env_under_test *eut);

#endif
