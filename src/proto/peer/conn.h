/*
 * One connection to a peer: encrypted, proved, multiplexed, each stream with the name of what it
 * carries. It contains multistream-select, Noise and yamux (docs/peer.md draws it) and is itself a
 * stream machine: bytes of the wire below, named streams above.
 *
 *     mu_peer_conn_recv(&c, now, bytes, &used)   bytes of the connection
 *     while (mu_peer_conn_next_event(&c, &e))    what has come of it, see below
 *     mu_peer_conn_output() mu_peer_conn_sent()  bytes for the wire; then ask for events again
 *     mu_peer_conn_deadline() mu_peer_conn_tick()
 *
 *     mu_peer_conn_open(&c, now, names, 2, &id)  a stream, for the first name the peer knows
 *     mu_peer_conn_write(&c, id, bytes, &taken)
 *     mu_peer_conn_consumed(&c, now, id, n)      it was dealt with: the peer may send more
 *     mu_peer_conn_end() mu_peer_conn_reset()
 *     mu_peer_conn_accept() mu_peer_conn_refuse()   a stream of the peer's
 *     mu_peer_conn_close()
 *
 * Nothing of a payload is sent or told before the peer has proved who it is: streams that are
 * opened earlier wait. A stream for one name need not wait for the peer's consent: what is written
 * at once goes out behind the proposal.
 *
 * Data is lent and not kept here; whoever has no use for it yet keeps it, within the window.
 *
 * Each stream ends exactly once for who was told of it, or has opened it: with EOF, once it was
 * ended here too; with RESET; with READY and an error; or by mu_peer_conn_reset(). When all is
 * over, streams that are left are told to be reset, and CLOSED or FAILED is the last event.
 */
#ifndef MU_PEER_CONN_H
#define MU_PEER_CONN_H

#include <stdbool.h>

#include "core/err.h"
#include "core/list.h"
#include "core/map.h"
#include "core/span.h"
#include "core/time.h"
#include "proto/peer/mss.h"
#include "proto/peer/noise.h"
#include "proto/peer/yamux.h"

#define MU_PEER_SECURITY_NAME "/noise"
#define MU_PEER_MUXER_NAME    "/yamux/1.0.0"

enum mu_peer_role {
    MU_PEER_DIALLER = 1,
    MU_PEER_LISTENER,
};

struct mu_peer_conn_config {
    enum mu_peer_role role;
    const struct mu_identity *identity;   /* borrowed until SECURED */
    uint8_t secret_static[MU_X25519_LEN]; /* drawn for this connection, both */
    uint8_t secret_ephemeral[MU_X25519_LEN];
    struct mu_peer_id expected;   /* who it must be; its length 0: whoever it is */
    uint64_t seed;                /* of the tables of streams */
    uint32_t handshake_ms;        /* until streams can be opened. 15 s */
    uint32_t negotiate_ms;        /* for the name of a stream. 15 s */
    uint32_t streams_max;         /* of each side. 1,024 */
    bool muxer_late;              /* agree on the muxer behind the handshake, not in it */
    struct mu_yamux_config yamux; /* but for role, seed and streams_max. Output 512 KiB */
};

/** The defaults named above; role, identity, secrets and seed are the caller's to set. */
struct mu_peer_conn_config mu_peer_conn_config_defaults(void);

enum mu_peer_event_type {
    MU_PEER_EV_SECURED = 1,   /* the peer has proved who it is: mu_peer_conn_peer() */
    MU_PEER_EV_STREAM_OPENED, /* by the peer, for `name`: accept or refuse it before the next event
                                 is asked for; it is refused else */
    MU_PEER_EV_STREAM_READY,  /* ours: agreed on `name`; or `err` and it is gone: MUSTER_EREFUSED
                                 (the peer knows none of the names), MUSTER_ETIMEDOUT,
                                 MUSTER_ECLOSED, MUSTER_EPROTO or that of the connection */
    MU_PEER_EV_DATA,          /* `data`, lent until the next recv or tick */
    MU_PEER_EV_EOF,           /* the peer says no more on it */
    MU_PEER_EV_RESET,         /* it is gone, without a proper end */
    MU_PEER_EV_WRITABLE,      /* a write that took less than all may go on */
    MU_PEER_EV_GO_AWAY,       /* the peer takes no more streams */
    MU_PEER_EV_CLOSED,        /* it is over, as one of the two wished */
    MU_PEER_EV_FAILED,        /* it is over: `err`, and mu_peer_conn_errmsg() */
};

struct mu_peer_event {
    enum mu_peer_event_type type;
    uint32_t id;
    int err;
    struct mu_span name; /* lent until the next event is asked for */
    struct mu_span data;
};

/*
 *     RAW -- /noise agreed --> NOISE -- proved --> MUXER -- /yamux agreed --> OPEN --> OVER
 *                                         '------ agreed in the handshake -----'
 */
enum mu_peer_stage {
    MU_PEER_RAW = 1,
    MU_PEER_NOISE,
    MU_PEER_MUXER,
    MU_PEER_OPEN,
    MU_PEER_OVER,
};

struct mu_peer_conn {
    struct mu_peer_conn_config config;
    enum mu_peer_stage stage;
    mu_mono_t now;
    mu_mono_t handshake_at; /* when it must be done */
    struct mu_mss raw;      /* on the bare connection */
    struct mu_noise noise;  /* from NOISE on */
    struct mu_mss muxer;    /* within it, in MUXER */
    struct mu_yamux yamux;
    struct mu_map streams;
    uint32_t ours;              /* of them */
    struct mu_list queued;      /* ours that cannot be opened yet */
    struct mu_list negotiating; /* in the order of their deadlines */
    struct mu_list attention;   /* streams with something to tell or to say */
    uint32_t asked_id;          /* STREAM_OPENED was told and is not answered; 0: none */
    uint32_t lent_id;           /* whose data `lent` is */
    struct mu_span lent;        /* what a frame brought and is not dealt with yet */
    bool secured_event;
    bool over_event;
    bool starved; /* something could not go on for want of memory */
    bool eof;     /* nothing more comes from the wire */
    int err;      /* why it is over; 0: it was wished */
    struct mu_errmsg why;
    uint64_t opened; /* streams, ever; closed: of them gone; their difference is held */
    uint64_t closed;
};

/** MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_peer_conn_init(struct mu_peer_conn *c, const struct mu_peer_conn_config *config,
                      mu_mono_t now);
void mu_peer_conn_fini(struct mu_peer_conn *c);

/**
 * Takes bytes; not all of them while events wait, or while the peer reads nothing of what it is
 * owed. What a peer does wrong is told by FAILED, and from then on returned. MUSTER_ENOMEM: ask for
 * events, and call it again; MUSTER_ECLOSED after CLOSED.
 */
int mu_peer_conn_recv(struct mu_peer_conn *c, mu_mono_t now, struct mu_span in, size_t *ret_used);
/** The other side has closed the connection, or it broke: what came before that is told first. */
void mu_peer_conn_eof(struct mu_peer_conn *c, mu_mono_t now);
/** Events are made as they are asked for, and with them answers: ask for all, then for output. */
bool mu_peer_conn_next_event(struct mu_peer_conn *c, struct mu_peer_event *ret_event);

/**
 * A stream of ours for one of `count` names, the first that the peer knows. MUSTER_EINVAL: no
 * names; MUSTER_ELIMIT: as many as may be; MUSTER_ECLOSED: the peer takes no more; MUSTER_ENOMEM.
 */
int mu_peer_conn_open(struct mu_peer_conn *c, mu_mono_t now, const struct mu_span *names,
                      size_t count, uint32_t *ret_id);
/** MUSTER_ENOENT: it is not asked for; MUSTER_ENOMEM: try again. */
int mu_peer_conn_accept(struct mu_peer_conn *c, uint32_t id);
/** The peer may propose another name. MUSTER_ENOENT. */
int mu_peer_conn_refuse(struct mu_peer_conn *c, uint32_t id);
/** Takes what it can; WRITABLE follows if that was not all. MUSTER_ENOENT; MUSTER_EINVAL after
 * mu_peer_conn_end(); MUSTER_ENOMEM: nothing was taken. */
int mu_peer_conn_write(struct mu_peer_conn *c, uint32_t id, struct mu_span data, size_t *ret_taken);
/** We say no more on it. MUSTER_ENOENT; twice is harmless. */
int mu_peer_conn_end(struct mu_peer_conn *c, uint32_t id);
/** It is gone, at once, and nothing more is told of it. Harmless for one that is gone already. */
void mu_peer_conn_reset(struct mu_peer_conn *c, uint32_t id);
/** `n` bytes of its data were dealt with. Harmless for a stream that is gone. */
void mu_peer_conn_consumed(struct mu_peer_conn *c, mu_mono_t now, uint32_t id, size_t n);
/** It is over: what was written still goes out, and a word of farewell. */
void mu_peer_conn_close(struct mu_peer_conn *c);
/**
 * No more streams of ours, and the peer is asked to open none; those that are open go on, and those
 * that it opens before it hears of it. GO_AWAY or the end of the connection tells that it has
 * heard. For a connection that is open. MUSTER_EAGAIN: it is not yet; MUSTER_ENOMEM.
 */
int mu_peer_conn_drain(struct mu_peer_conn *c);
/** What the windows of all streams have grown by, beyond what each begins with. */
uint64_t mu_peer_conn_grown(const struct mu_peer_conn *c);
/** Windows may grow by so much more, all together. */
void mu_peer_conn_limit_growth(struct mu_peer_conn *c, uint64_t more);
/** How long a round trip takes at the least; 0: not measured yet. */
uint64_t mu_peer_conn_rtt_ns(const struct mu_peer_conn *c);

/** Seals what is to be sent, as far as there is room; lent until the next call. */
struct mu_span mu_peer_conn_output(struct mu_peer_conn *c);
void mu_peer_conn_sent(struct mu_peer_conn *c, size_t len);
/** Whether it is over and nothing is left to be sent: the connection can be closed. */
bool mu_peer_conn_done(struct mu_peer_conn *c);
mu_mono_t mu_peer_conn_deadline(const struct mu_peer_conn *c);
void mu_peer_conn_tick(struct mu_peer_conn *c, mu_mono_t now);

/** Who the peer is; its length is 0 before SECURED. */
const struct mu_peer_id *mu_peer_conn_peer(const struct mu_peer_conn *c);
/** Streams that are held. */
size_t mu_peer_conn_count(const struct mu_peer_conn *c);
const char *mu_peer_conn_errmsg(const struct mu_peer_conn *c);

#endif
