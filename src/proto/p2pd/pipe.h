/*
 * A stream of a peer's joined to a client's socket: bytes from one to the other, both ways, each
 * side held back by the other. A machine for one such pair; service/p2pd/pipe.c drives it.
 *
 *     up, from the client:
 *         FLOWING --the stream takes less than all--> HELD --it takes more: RESUME--> FLOWING
 *         FLOWING --the client ends: END--> ENDED
 *         any --the stream is gone: RESUME--> DROPPED      what the client still says is dropped
 *     down, from the peer:
 *         FLOWING --the peer ends, or the stream is gone--> DRAINING
 *         DRAINING --all is sent; the stream is there: FINISH--> FINISHED
 *         DRAINING, FINISHED --all is sent; the stream is gone: CLOSE--> CLOSED
 *         FLOWING --there is no memory: ABORT--> CLOSED
 *
 * Upwards nothing is kept: what the stream does not take stays with the environment. Downwards what
 * the socket does not take is kept; the peer is given room again only as the client reads, so that
 * the stream's window bounds what is kept. The first bytes down are ours (the pipe's head).
 *
 * After each event: while (mu_p2pd_pipe_next(&pipe, &action)) ...
 */
#ifndef MU_P2PD_PIPE_H
#define MU_P2PD_PIPE_H

#include <stdbool.h>

#include "core/buf.h"

enum mu_p2pd_pipe_state {
    MU_P2PD_PIPE_FLOWING = 1,
    MU_P2PD_PIPE_HELD,     /* up */
    MU_P2PD_PIPE_ENDED,    /* up */
    MU_P2PD_PIPE_DROPPED,  /* up */
    MU_P2PD_PIPE_DRAINING, /* down */
    MU_P2PD_PIPE_FINISHED, /* down */
    MU_P2PD_PIPE_CLOSED,   /* down */
};

enum mu_p2pd_pipe_action_type {
    MU_P2PD_PIPE_SEND = 1, /* `bytes` to the client; then mu_p2pd_pipe_sent() */
    MU_P2PD_PIPE_CONSUMED, /* the peer may send `len` bytes more */
    MU_P2PD_PIPE_END,      /* our side of the stream */
    MU_P2PD_PIPE_RESUME,   /* reading from the client */
    MU_P2PD_PIPE_FINISH,   /* our side of the socket; CLOSE where that cannot be done */
    MU_P2PD_PIPE_CLOSE,    /* the socket, once all is delivered; the last action, like ABORT */
    MU_P2PD_PIPE_ABORT,    /* the socket, at once */
};

struct mu_p2pd_pipe_action {
    enum mu_p2pd_pipe_action_type type;
    struct mu_span bytes;
    size_t len;
};

struct mu_p2pd_pipe {
    enum mu_p2pd_pipe_state up;
    enum mu_p2pd_pipe_state down;
    /* private from here */
    bool open;    /* the socket is */
    bool blocked; /* it takes nothing until it says so */
    bool gone;    /* the stream is */
    bool resume;
    bool end;
    bool failed;
    struct mu_span lent; /* of the peer's, in the event that is under way */
    struct mu_buf kept;
    size_t own;      /* of `kept`, the first bytes are ours and not the peer's */
    size_t consumed; /* for the action CONSUMED */
};

/** `kept_max` is the stream's window and the head. */
void mu_p2pd_pipe_init(struct mu_p2pd_pipe *p, size_t kept_max);
void mu_p2pd_pipe_fini(struct mu_p2pd_pipe *p);
/** What the client hears first; before any other event. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_p2pd_pipe_head(struct mu_p2pd_pipe *p, struct mu_span bytes);

/** The socket is connected, or takes more. */
void mu_p2pd_pipe_ready(struct mu_p2pd_pipe *p);
/** The answer to SEND: how much the socket took. */
void mu_p2pd_pipe_sent(struct mu_p2pd_pipe *p, size_t n);
/** The peer says `bytes`: lent until mu_p2pd_pipe_keep(), which comes behind the actions. */
void mu_p2pd_pipe_heard(struct mu_p2pd_pipe *p, struct mu_span bytes);
void mu_p2pd_pipe_keep(struct mu_p2pd_pipe *p);
/** The peer says no more. */
void mu_p2pd_pipe_peer_ended(struct mu_p2pd_pipe *p);
/** The stream is gone, well or not: the client has what came before, and then the end. */
void mu_p2pd_pipe_gone(struct mu_p2pd_pipe *p);

/** The client says `len` bytes, of which the stream took `taken`. Returns how many are dealt with:
 * those, or all where nobody is there to hear them. */
size_t mu_p2pd_pipe_up(struct mu_p2pd_pipe *p, size_t len, size_t taken);
/** The stream takes more. */
void mu_p2pd_pipe_writable(struct mu_p2pd_pipe *p);
/** The client says no more. */
void mu_p2pd_pipe_client_ended(struct mu_p2pd_pipe *p);

/** What to do now. False: nothing, until something happens. */
bool mu_p2pd_pipe_next(struct mu_p2pd_pipe *p, struct mu_p2pd_pipe_action *ret);

#endif
