/*
 * One connection to a peer: encrypted, authenticated, multiplexed, each stream with the name of its
 * protocol. It contains multistream-select, Noise and yamux (docs/peer.md draws it) and is itself a
 * stream machine: bytes of the wire below, named streams above.
 *
 *     mu_peer_conn_recv(&c, now, bytes, &used)   bytes of the connection
 *     while (mu_peer_conn_next_event(&c, &e))    the events, see below
 *     mu_peer_conn_output() mu_peer_conn_sent()  bytes for the wire; then ask for events again
 *     mu_peer_conn_deadline() mu_peer_conn_tick()
 *
 *     mu_peer_conn_open(&c, now, names, 2, &id)  a stream, for the first name the peer knows
 *     mu_peer_conn_write(&c, id, bytes, &taken)
 *     mu_peer_conn_consumed(&c, now, id, n)      it was handled: the peer may send more
 *     mu_peer_conn_end() mu_peer_conn_reset()
 *     mu_peer_conn_accept() mu_peer_conn_refuse()   a stream of the peer's
 *     mu_peer_conn_close()
 *
 * No payload is sent or told before the peer has proved its id: streams that are opened earlier
 * wait. A stream for one name need not wait for the peer's consent: what is written at once goes
 * out behind the proposal.
 *
 * Data is lent and not kept here; a caller that cannot use it yet keeps it, within the window.
 *
 * Each stream ends exactly once for the caller that was told of it or has opened it: with EOF, once
 * it was ended here too; with RESET; with READY and an error; or by mu_peer_conn_reset(). At the
 * end of the connection, RESET is told for all streams that are left, and CLOSED or FAILED is the
 * last event.
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
    uint8_t secret_static[MU_X25519_LEN]; /* both are drawn for this connection */
    uint8_t secret_ephemeral[MU_X25519_LEN];
    struct mu_peer_id expected;   /* the peer that it must be; length 0: any peer */
    uint64_t seed;                /* seed of the tables of streams */
    uint32_t handshake_ms;        /* time until streams can be opened. 15 s */
    uint32_t negotiate_ms;        /* time to agree on the name of a stream. 15 s */
    uint32_t streams_max;         /* of each side. 1,024 */
    bool muxer_late;              /* agree on the muxer after the handshake, not in it */
    struct mu_yamux_config yamux; /* except role, seed and streams_max. Output 512 KiB */
};

/** The defaults named above; role, identity, secrets and seed are the caller's to set. */
struct mu_peer_conn_config mu_peer_conn_config_defaults(void);

enum mu_peer_event_type {
    MU_PEER_EV_SECURED = 1,   /* the peer has proved its id: mu_peer_conn_peer() */
    MU_PEER_EV_STREAM_OPENED, /* by the peer, for `name`: accept or refuse it before the next event
                                 is asked for; otherwise it is refused */
    MU_PEER_EV_STREAM_READY,  /* ours: agreed on `name`; or `err` and it is gone: MUSTER_EREFUSED
                                 (the peer knows no such name), MUSTER_ETIMEDOUT, MUSTER_ECLOSED,
                                 MUSTER_EPROTO or that of the connection */
    MU_PEER_EV_DATA,          /* `data`, lent until the next recv or tick */
    MU_PEER_EV_EOF,           /* the peer sends no more on it */
    MU_PEER_EV_RESET,         /* the stream is gone, without a proper end */
    MU_PEER_EV_WRITABLE,      /* a write that took less than all may go on */
    MU_PEER_EV_GO_AWAY,       /* the peer accepts no more streams */
    MU_PEER_EV_CLOSED,        /* the connection is over, because one side closed it */
    MU_PEER_EV_FAILED,        /* the connection is over: `err`, and mu_peer_conn_errmsg() */
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
    mu_mono_t handshake_at; /* when the handshake must be done */
    struct mu_mss raw;      /* on the bare connection */
    struct mu_noise noise;  /* from NOISE on */
    struct mu_mss muxer;    /* within Noise, in MUXER */
    struct mu_yamux yamux;
    struct mu_map streams;
    uint32_t ours;              /* how many of them are ours */
    struct mu_list queued;      /* our streams that cannot be opened yet */
    struct mu_list negotiating; /* in the order of their deadlines */
    struct mu_list attention;   /* streams that have something to tell or to send */
    uint32_t asked_id;          /* STREAM_OPENED was told and is not answered; 0: no stream */
    uint32_t lent_id;           /* whose data `lent` is */
    struct mu_span lent;        /* data of a frame that is not handled yet */
    bool secured_event;
    bool over_event;
    bool starved; /* something stopped for lack of memory */
    bool eof;     /* the wire has ended */
    int err;      /* why it is over; 0: one side closed it */
    struct mu_errmsg why;
    uint64_t opened; /* streams ever; `closed` of them are gone; the difference is held */
    uint64_t closed;
};

/** MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_peer_conn_init(struct mu_peer_conn *c, const struct mu_peer_conn_config *config,
                      mu_mono_t now);
void mu_peer_conn_fini(struct mu_peer_conn *c);

/**
 * Takes bytes; not all of them while events wait, or while the peer does not read its answers. A
 * violation by the peer is told by FAILED, and returned from then on. MUSTER_ENOMEM: ask for
 * events, and call it again; MUSTER_ECLOSED after CLOSED.
 */
int mu_peer_conn_recv(struct mu_peer_conn *c, mu_mono_t now, struct mu_span in, size_t *ret_used);
/** The other side has closed the connection, or it broke. Earlier events are told first. */
void mu_peer_conn_eof(struct mu_peer_conn *c, mu_mono_t now);
/** Takes the next event. Events, and answers with them, are made on demand: ask for all events,
 * then for output. */
bool mu_peer_conn_next_event(struct mu_peer_conn *c, struct mu_peer_event *ret_event);

/**
 * Opens a stream for one of `count` names, the first that the peer knows. MUSTER_EINVAL: no names;
 * MUSTER_ELIMIT: too many streams; MUSTER_ECLOSED: the peer accepts no more; MUSTER_ENOMEM.
 */
int mu_peer_conn_open(struct mu_peer_conn *c, mu_mono_t now, const struct mu_span *names,
                      size_t count, uint32_t *ret_id);
/** Accepts a stream. MUSTER_ENOENT: no such stream waits for an answer; MUSTER_ENOMEM: try
 * again. */
int mu_peer_conn_accept(struct mu_peer_conn *c, uint32_t id);
/** Refuses the name; the peer may propose another. MUSTER_ENOENT. */
int mu_peer_conn_refuse(struct mu_peer_conn *c, uint32_t id);
/** Takes what it can; WRITABLE follows if that was not all. MUSTER_ENOENT; MUSTER_EINVAL after
 * mu_peer_conn_end(); MUSTER_ENOMEM: nothing was taken. */
int mu_peer_conn_write(struct mu_peer_conn *c, uint32_t id, struct mu_span data, size_t *ret_taken);
/** Ends our side of the stream. MUSTER_ENOENT; a second call is harmless. */
int mu_peer_conn_end(struct mu_peer_conn *c, uint32_t id);
/** Resets the stream: it is gone at once, and nothing more is told of it. Harmless for a stream
 * that is gone already. */
void mu_peer_conn_reset(struct mu_peer_conn *c, uint32_t id);
/** `n` bytes of its data were handled. Harmless for a stream that is gone. */
void mu_peer_conn_consumed(struct mu_peer_conn *c, mu_mono_t now, uint32_t id, size_t n);
/** Closes the connection: what was written still goes out, and a GO_AWAY. */
void mu_peer_conn_close(struct mu_peer_conn *c);
/**
 * Opens no more streams and asks the peer to open no more; open streams go on, and so do those that
 * the peer opens before it hears of it. GO_AWAY, the end of the connection or
 * mu_peer_conn_drained() shows that it has heard. MUSTER_EAGAIN: the connection is not open yet;
 * MUSTER_ENOMEM.
 */
int mu_peer_conn_drain(struct mu_peer_conn *c, mu_mono_t now);
bool mu_peer_conn_drained(const struct mu_peer_conn *c);
/** Returns how much the windows of all streams have grown beyond their initial size. */
uint64_t mu_peer_conn_grown(const struct mu_peer_conn *c);
/** Sets how much more all windows together may grow. */
void mu_peer_conn_limit_growth(struct mu_peer_conn *c, uint64_t more);
/** Returns the shortest round trip; 0: not measured yet. */
uint64_t mu_peer_conn_rtt_ns(const struct mu_peer_conn *c);

/** Seals and returns what must be sent, as far as there is room; lent until the next call. */
struct mu_span mu_peer_conn_output(struct mu_peer_conn *c);
void mu_peer_conn_sent(struct mu_peer_conn *c, size_t len);
/** Returns whether it is over and nothing is left to send: the connection can be closed. */
bool mu_peer_conn_done(struct mu_peer_conn *c);
mu_mono_t mu_peer_conn_deadline(const struct mu_peer_conn *c);
void mu_peer_conn_tick(struct mu_peer_conn *c, mu_mono_t now);

/** Returns the peer's id; its length is 0 before SECURED. */
const struct mu_peer_id *mu_peer_conn_peer(const struct mu_peer_conn *c);
/** Returns the number of streams that are held. */
size_t mu_peer_conn_count(const struct mu_peer_conn *c);
const char *mu_peer_conn_errmsg(const struct mu_peer_conn *c);

#endif
