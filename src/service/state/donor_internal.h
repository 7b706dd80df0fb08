/*
 * What the files of the donor share.
 *
 *     donor.c        life, states that come and go, connections, the turn
 *     donor_serve.c  calls: what is asked and answered
 *     donor_fetch.c  streams: chunks and offers on their way out
 *     donor_look.c   how far each of them is
 */
#ifndef MU_STATE_DONOR_INTERNAL_H
#define MU_STATE_DONOR_INTERNAL_H

#include "proto/rpc/rpc.h"
#include "service/base/log.h"
#include "service/wire/rpc_server.h"
#include "service/state/donor.h"

/* A state that is given out. */
struct mu_state_given {
    struct mu_list link; /* donor->stands */
    struct mu_state_donor *donor;
    struct mu_state_share *share;
    bool put;             /* it has its prefix for itself */
    bool leaving;         /* nobody else may begin */
    mu_mono_t gone_at;    /* leaving: when those who have begun are told that it is gone */
    size_t downloads;     /* streams of fetchers */
    struct mu_list swarm; /* struct mu_state_member */
    size_t swarm_count;
};

/* Somebody who has some of a state, or is about to. */
struct mu_state_member {
    struct mu_list link;
    const struct mu_state_client *client; /* who said so */
    mu_mono_t until;
    size_t addr_len;
    uint8_t addr[MU_STATE_ADDR_MAX];
};

/* A session with somebody. */
struct mu_state_client {
    struct mu_rpc_session base;
    struct mu_state_donor *donor;
};

struct mu_state_job;

/* How much went where, for those who look: donor_look.c. */
struct mu_state_meter {
    uint64_t bytes;
    mu_mono_t since;
    uint64_t mark_bytes; /* how much it was when the rate was last looked at */
    mu_mono_t mark;
    uint64_t bytes_per_s;
};

/*
 * An offer or chunks on their way to somebody. What was lent to the session is counted in `hold`;
 * a stream that has ended goes to donor->draining until all of that has left.
 */
struct mu_state_stream {
    struct mu_rpc_served base;
    struct mu_list link; /* donor->streams or donor->draining */
    struct mu_state_donor *donor;
    struct mu_state_given *given; /* NULL: it has ended */
    struct mu_state_share *share; /* a reference */
    struct mu_rpc_blob *hold;
    struct mu_state_turn turn;
    struct mu_state_meter meter;
    struct mu_buf asks;          /* u32 each: chunks that were asked for and not given yet */
    struct mu_rpc_blob *pending; /* the first of them, if it had to be copied */
    struct mu_state_job *job;    /* that reads it */
    size_t offer_at;             /* an offer: how much of it was handed on */
    bool is_offer;
    bool stalled;    /* there is no room: CREDIT follows */
    bool ended;      /* the fetcher asks for no more */
    mu_mono_t until; /* draining: when its session is ended */
};

struct mu_state_donor {
    struct mu_env *env;
    struct mu_state_donor_config config;
    struct mu_rpc_server server;
    struct mu_rpc_listener listener;
    struct mu_list given_list;
    struct mu_list streams;
    struct mu_list draining;
    size_t jobs;
    struct mu_state_gate gate;
    struct mu_timer timer;
    struct mu_state_donor_stats stats;
    struct mu_log_limit dropped; /* lines of peers who were */
    bool stopping;
    bool stopped;
    bool in_turn;
};

/* --- donor.c ---------------------------------------------------------------------------- */

/** Sends what is to be sent. Not from inside a callback of the sessions. */
void mu_state_donor_turn(struct mu_state_donor *d);
/** Who may be told of and given: by its id, or the first of a prefix by priority. NULL: none. */
struct mu_state_given *mu_state_given_find(struct mu_state_donor *d,
                                           const struct mu_state_which *which);
/** The last of those who load a state that is leaving has ended: frees it. */
void mu_state_given_settle(struct mu_state_given *given);

/* --- donor_serve.c ---------------------------------------------------------------------- */

void mu_state_donor_call(struct mu_rpc_session *session, const struct mu_rpc_event *event);
/** Forgets those of a swarm whose time has passed, and those of a session that is over. */
void mu_state_given_forget(struct mu_state_given *given, const struct mu_state_client *gone);

/* --- donor_fetch.c ---------------------------------------------------------------------- */

/** Begins a stream. MUSTER_ENOMEM. */
int mu_state_stream_new(struct mu_state_client *client, uint64_t id, struct mu_state_given *given,
                        bool is_offer);
/** There is room, or no more will be asked, or something was read: goes on. */
void mu_state_stream_go(struct mu_state_stream *s);
/** The gate lets it send a chunk. */
void mu_state_stream_serve(struct mu_state_stream *s);
/** Ends it with a reply; `s` is freed then, or drains. */
void mu_state_stream_end(struct mu_state_stream *s, int status, const char *text);
/** Its session is gone, and with it all that was lent. */
void mu_state_stream_orphan(struct mu_state_stream *s);
/** Frees those that have drained, ends the sessions of those that do not. Returns when to look
 * again. */
mu_mono_t mu_state_streams_sweep(struct mu_state_donor *d);

/* --- donor_look.c ----------------------------------------------------------------------- */

void mu_state_meter_add(struct mu_state_meter *m, mu_mono_t now, uint64_t bytes);

#endif
