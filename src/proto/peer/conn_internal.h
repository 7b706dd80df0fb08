/* What the files of peer_conn share. */
#ifndef MU_PEER_CONN_INTERNAL_H
#define MU_PEER_CONN_INTERNAL_H

#include "proto/peer/conn.h"

/*
 *     ours     QUEUED --> PROPOSING --> OPEN --> gone
 *                                   --> FAILED, told as READY with an error --> gone
 *     theirs   RESPONDING <--> ASKED --> OPEN --> gone
 */
enum mu_peer_stream_state {
    MU_PEER_STREAM_QUEUED = 1,
    MU_PEER_STREAM_PROPOSING,
    MU_PEER_STREAM_RESPONDING,
    MU_PEER_STREAM_ASKED,
    MU_PEER_STREAM_OPEN,
    MU_PEER_STREAM_FAILED,
};

struct mu_peer_stream {
    struct mu_map_node by_id;
    struct mu_list link;      /* queued or negotiating */
    struct mu_list attention; /* something is to be told or tried again */
    uint32_t id;
    bool ours;
    enum mu_peer_stream_state state;
    bool wants;      /* a write was short: WRITABLE is owed */
    bool ending;     /* its end goes out behind what is said of the name */
    bool ended;      /* and is out */
    bool remote_end; /* EOF was told */
    int err;         /* FAILED */
    uint32_t credit; /* bytes that were dealt with, and the peer has not been told */
    mu_mono_t deadline;
    struct mu_mss *mss; /* NULL: nothing was said yet, or all is */
};

/** It is over. The first reason counts. */
void mu_peer_fail(struct mu_peer_conn *c, int err, const char *text, const char *detail);

struct mu_peer_stream *mu_peer_find(const struct mu_peer_conn *c, uint32_t id);
/** It is gone here; yamux is not told. */
void mu_peer_release(struct mu_peer_conn *c, struct mu_peer_stream *s);
/** The next of those who need attention. True: there is something to tell. */
bool mu_peer_attend(struct mu_peer_conn *c, struct mu_peer_event *ret);
/** What yamux has to tell. True: and so do we. */
bool mu_peer_take_yamux(struct mu_peer_conn *c, const struct mu_yamux_event *e,
                        struct mu_peer_event *ret);
/** Deals with data that was lent. True: there is something to tell. */
bool mu_peer_take_lent(struct mu_peer_conn *c, struct mu_peer_event *ret);
/** Opens what is queued, as far as may be. True: some were. */
bool mu_peer_open_queued(struct mu_peer_conn *c);
/** The peer's proposal was not answered: it is refused. */
void mu_peer_refuse_asked(struct mu_peer_conn *c);
/** Moves what the muxer, or the negotiation for it, has to say into Noise. True: that was all. */
bool mu_peer_seal(struct mu_peer_conn *c);
/** Those whose time is over. */
void mu_peer_expire(struct mu_peer_conn *c);

#endif
