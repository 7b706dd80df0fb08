/*
 * Connections of the simulated network. A pair is one connection, its two ends are what two kernels
 * know of it. They may disagree on purpose: an end can be gone while the other has not heard of it.
 *
 *      dialling ──▶ open ──▶ lingering ──▶ gone        dark: its host has no power; once that is
 *                    ▲                                 back the end is gone, and what comes for it
 *      backlog ──────┘                                 is answered with a reset
 */
#ifndef MU_SIM_CONN_H
#define MU_SIM_CONN_H

#include "sim_impl.h"

enum sim_end_state {
    SIM_END_NONE = 0,
    SIM_END_DIALLING,
    SIM_END_BACKLOG, /* connected, not yet accepted by the process */
    SIM_END_OPEN,
    SIM_END_LINGERING, /* closed by its owner; accepted bytes are still delivered */
    SIM_END_GONE,
    SIM_END_DARK,
};

/* Bytes up to offset `end` of the stream arrive at `at_ns`. */
struct sim_segment {
    uint64_t end;
    uint64_t at_ns;
};

struct sim_listener {
    struct mu_list link; /* of proc->listeners */
    struct mu_sim_proc *proc;
    struct mu_listener *listener;
    struct mu_addr addr;
    bool loopback;
    bool closing;
    struct mu_list backlog; /* of sim_end */
    struct sim_action closed;
};

struct sim_pair;

struct sim_end {
    struct sim_pair *pair;
    enum sim_end_state state;
    struct mu_sim_host *host;
    struct mu_sim_proc *proc; /* while a process owns it */
    struct mu_list link;      /* of proc->ends or listener->backlog */
    struct mu_conn *conn;
    struct sim_listener *listener; /* in the backlog of */

    /* The stream from here to the other end, as offsets: acked <= delivered <= arrived <= sent. */
    struct mu_buf out; /* the bytes from delivered to sent */
    struct sim_segment *segments;
    size_t segment_head;
    size_t segment_count;
    size_t segment_cap;
    uint64_t sent;
    uint64_t arrived;
    uint64_t delivered;
    uint64_t acked;
    uint64_t last_at_ns; /* nothing overtakes this */
    bool fin;
    uint64_t fin_at_ns;
    bool want_writable;

    /* The stream from the other end. */
    bool stalled; /* the owner used less than it was given */
    bool resumed; /* it asked for more before it even returned */
    bool eof_told;

    int status;     /* for `closed` */
    int rst_status; /* for `rst` */
    bool doomed;    /* `rst` comes when the cut ends */
    struct sim_action arrive;
    struct sim_action ack;
    struct sim_action rst;
    struct sim_action closed;
    struct sim_action linger;
};

struct sim_pair {
    struct mu_sim *sim;
    struct mu_list link; /* of sim->pairs */
    uint64_t id;
    struct sim_end ends[2]; /* the dialler first */
    struct mu_addr addr;
    uint16_t port; /* the dialler's */
    struct sim_action syn;
    struct sim_action accept;
    struct sim_action open;
};

static inline struct sim_end *sim_end_peer(struct sim_end *end)
{
    return &end->pair->ends[end == &end->pair->ends[0] ? 1 : 0];
}

/* sim_conn.c */
void sim_end_init(struct sim_end *end, struct sim_pair *pair, struct mu_sim_host *host,
                  enum sim_end_state state);
/** Lets as much be in flight as on a link without faults. */
void sim_end_widen(struct sim_end *end);
/** Returns the process that gets the callbacks, which wait while it is paused; NULL: only the
 * kernel. */
void sim_end_own(struct sim_end *end, struct mu_sim_proc *proc);
/** Finds the next moment at which something can arrive at this end. */
void sim_end_arm(struct sim_end *end);
/** The end is open now; the other end may have vanished before. */
void sim_end_notice(struct sim_end *end);
/** The end dies on its own side: its owner will be told. */
void sim_end_fail(struct sim_end *end, int status);
/** Sends a reset to the other end; a cut loses it. */
void sim_end_reset_peer(struct sim_end *end);
/** The kernel ends it for an owner that is gone: in order, or with a reset. */
void sim_end_orphan(struct sim_end *end);
void sim_end_dark(struct sim_end *end);
/** Frees the pair if neither end needs it any more. */
void sim_pair_release(struct sim_pair *pair);
void sim_pair_free(struct sim_pair *pair);

#endif
