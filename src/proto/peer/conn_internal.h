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
    struct mu_list attention; /* in the list if something must be told or tried again */
    uint32_t id;
    bool ours;
    enum mu_peer_stream_state state;
    bool wants;      /* a write was short: WRITABLE is owed */
    bool ending;     /* its end goes out after the negotiation of its name */
    bool ended;      /* our end was sent */
    bool remote_end; /* EOF was told */
    int err;         /* FAILED */
    uint32_t credit; /* bytes that were handled, and the peer was not told yet */
    mu_mono_t deadline;
    struct mu_mss *mss; /* NULL: the negotiation has not begun, or is over */
};

/** Ends the connection. The first reason counts. */
void mu_peer_fail(struct mu_peer_conn *c, int err, const char *text, const char *detail);

struct mu_peer_stream *mu_peer_find(const struct mu_peer_conn *c, uint32_t id);
/** Frees the stream's record; yamux is not told. */
void mu_peer_release(struct mu_peer_conn *c, struct mu_peer_stream *s);
/** Handles the next stream that needs attention. True: there is something to tell. */
bool mu_peer_attend(struct mu_peer_conn *c, struct mu_peer_event *ret);
/** Handles the next event of yamux. True: there is something to tell. */
bool mu_peer_take_yamux(struct mu_peer_conn *c, const struct mu_yamux_event *e,
                        struct mu_peer_event *ret);
/** Handles data that was lent. True: there is something to tell. */
bool mu_peer_take_lent(struct mu_peer_conn *c, struct mu_peer_event *ret);
/** Opens queued streams as far as the limits allow. True: some were opened. */
bool mu_peer_open_queued(struct mu_peer_conn *c);
/** Refuses a proposal of the peer that was not answered. */
void mu_peer_refuse_asked(struct mu_peer_conn *c);
/** Moves the output of the muxer, or of the negotiation for it, into Noise. True: nothing is
 * left. */
bool mu_peer_seal(struct mu_peer_conn *c);
/** Fails the streams whose time is over. */
void mu_peer_expire(struct mu_peer_conn *c);

#endif
