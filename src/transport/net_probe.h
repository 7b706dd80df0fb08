/*
 * What can be learnt about another host from here, without privileges: its IP addresses
 * ("numbers"), whether its ports answer and how soon, what it answers to a few bytes, and how long
 * a packet may be on the way to it.
 *
 * Every function blocks, for at most the time it is given (except for the resolver, which has the
 * system's own timeout), and may be called on any thread except a loop's.
 */
#ifndef MU_NET_PROBE_H
#define MU_NET_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"

#define MU_PROBE_NUMBERS 8
#define MU_PROBE_TRIES   64

enum mu_probe_scope {
    MU_PROBE_HOST = 1, /* loopback: only the machine itself can use it */
    MU_PROBE_LINK,     /* only hosts on one link can use it */
    MU_PROBE_NET,      /* other hosts can use it */
};

struct mu_probe_number {
    char ip[64];
    bool v6;
    enum mu_probe_scope scope;
};

/** The numbers of a name or of a number, in the resolver's order. MUSTER_ENAME, with a text. */
int mu_probe_resolve(const char *host, struct mu_probe_number ret[MU_PROBE_NUMBERS],
                     size_t *ret_count, struct mu_errmsg *reterr_msg);

struct mu_probe_try {
    const struct mu_probe_number *number;
    uint16_t port;
    /* the result */
    int status;      /* 0, or a negated errno: -ECONNREFUSED, -ETIMEDOUT, -EHOSTUNREACH ... */
    uint32_t rtt_us; /* the shortest round trip that was seen */
    uint32_t mss;    /* bytes of a segment, with its options, that both ends accept */
    uint32_t mtu;    /* of the path, as far as this machine's kernel knows */
};

/** Connects to all of them at once (at most MU_PROBE_TRIES), and closes again. */
void mu_probe_dial(struct mu_probe_try *tries, size_t count, uint32_t timeout_ms);

enum mu_probe_end {
    MU_PROBE_ANSWERED = 1, /* `ret_len` bytes came */
    MU_PROBE_CLOSED,       /* it hung up and said nothing */
    MU_PROBE_SILENT,
    MU_PROBE_FAILED, /* there was no connection */
};

/** Sends `question` on a connection of its own. Returns the first answer, of up to `cap` bytes:
 * everything that comes within the time, or until there are `enough` bytes, or the other end hangs
 * up. */
enum mu_probe_end mu_probe_ask(const struct mu_probe_number *number, uint16_t port,
                               struct mu_span question, uint32_t timeout_ms, uint8_t *answer,
                               size_t cap, size_t enough, size_t *ret_len);

enum mu_probe_mtu_finding {
    MU_PROBE_MTU_UNKNOWN = 1, /* no packet was answered: only `local` is known */
    MU_PROBE_MTU_PASSES,      /* packets of `path` bytes arrive: the longest that can leave here */
    MU_PROBE_MTU_TOLD,        /* `path` is less than `local`; a router said so */
    MU_PROBE_MTU_HOLE,        /* packets longer than `path` vanish without an error */
};

struct mu_probe_mtu {
    enum mu_probe_mtu_finding finding;
    uint32_t local; /* of the interface that leads there */
    uint32_t path;  /* HOLE: the longest that was seen to arrive, not the longest there is */
};

/**
 * Sends datagrams, marked not to be fragmented, to a port where nothing should listen: a host
 * usually answers that the port is closed, which shows that the datagrams arrived. A negated errno.
 */
int mu_probe_mtu(const struct mu_probe_number *number, uint32_t timeout_ms,
                 struct mu_probe_mtu *ret);

#endif
