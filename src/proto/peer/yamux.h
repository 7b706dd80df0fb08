/*
 * yamux: many streams over one ordered, reliable connection, each with its own window. A stream
 * machine for either side:
 *
 *     mu_yamux_recv(&y, now, bytes, &used)   bytes of the connection; stops behind each event
 *     while (mu_yamux_next_event(&y, &e))    OPENED, DATA, EOF, RESET, WRITABLE, GO_AWAY, DEAD
 *     mu_yamux_open(&y, now, &id)            a stream of ours; data may be written at once
 *     mu_yamux_write(&y, id, bytes, &taken)  as much as window and output allow
 *     mu_yamux_consumed(&y, now, id, n)      data was handled: the peer may send as much more
 *     mu_yamux_output() mu_yamux_sent()      bytes for the connection
 *     mu_yamux_deadline() mu_yamux_tick()    keep-alive
 *
 * A stream:
 *
 *     none --- open (ours), SYN (the peer's) ---> OPEN --- both sides have said FIN ---> gone
 *                                                 OPEN --- either side says RST -------> gone
 *
 * Data is not kept here: a DATA event lends it, and a caller that cannot use it yet keeps it,
 * within the window that was granted. The window starts at 256 KiB, as the protocol says, and
 * doubles up to `window_bytes_max` while the reader empties it within a few round trips; up to 4
 * MiB also while it is emptied within 10 ms, however short those are.
 *
 * Streams that wait for room in the output are told one at a time and in turn, so that no stream
 * can keep the others from writing.
 *
 * A stream's id is its handle. Neither side uses it again within a connection: calls with the id of
 * a stream that is gone return MUSTER_ENOENT.
 */
#ifndef MU_YAMUX_H
#define MU_YAMUX_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/list.h"
#include "core/map.h"
#include "core/span.h"
#include "core/time.h"

#define MU_YAMUX_HEADER       12
#define MU_YAMUX_WINDOW_FIRST 262144
#define MU_YAMUX_DATA_MAX     65507 /* in one frame of ours; with its header a message of Noise */
#define MU_YAMUX_SEEN         1024  /* how far the peer's ids may be out of order */

enum mu_yamux_role {
    MU_YAMUX_DIALLER = 1, /* its streams have odd ids */
    MU_YAMUX_LISTENER,
};

struct mu_yamux_config {
    enum mu_yamux_role role;
    uint64_t seed;             /* seed of the table of streams */
    uint32_t streams_max;      /* open streams of the peer; more are reset. 4,096 */
    uint32_t unacked_max;      /* our streams that the peer has not accepted yet. 256 */
    uint32_t window_bytes_max; /* 16 MiB */
    uint64_t grown_bytes_max;  /* how much the windows of all streams may grow together. 64 MiB */
    uint32_t output_bytes_max; /* kept for sending; beyond it, writes take nothing. 1 MiB */
    uint32_t keep_alive_ms;    /* from ping to ping, the first one at once. 30 s; 0: no pings */
    uint32_t dead_ms;          /* a peer is dead if a ping is not answered and nothing else comes
                                  for so long. 10 s */
};

/** The defaults named above; role and seed are the caller's to set. */
struct mu_yamux_config mu_yamux_config_defaults(void);

enum mu_yamux_event_type {
    MU_YAMUX_EV_OPENED = 1, /* the peer opened a stream */
    MU_YAMUX_EV_DATA,       /* `data`, lent until the next recv; may be a part of a frame */
    MU_YAMUX_EV_EOF,        /* the peer sends no more on it */
    MU_YAMUX_EV_RESET,      /* the stream is gone, without a proper end */
    MU_YAMUX_EV_WRITABLE,   /* a write that took less than all may go on */
    MU_YAMUX_EV_GO_AWAY,    /* the peer accepts no more streams; `code` */
    MU_YAMUX_EV_DEAD,       /* the peer does not answer: drop the connection */
};

struct mu_yamux_event {
    enum mu_yamux_event_type type;
    uint32_t id;
    uint32_t code;
    struct mu_span data;
};

enum mu_yamux_go_away {
    MU_YAMUX_NORMAL = 0,
    MU_YAMUX_PROTOCOL_ERROR = 1,
    MU_YAMUX_INTERNAL_ERROR = 2,
};

struct mu_yamux {
    struct mu_yamux_config config;
    int poison;
    struct mu_errmsg why;
    struct mu_map streams;
    uint32_t next_id; /* the next of our ids */
    /* Which of the peer's ids were used: one bit for each of the last ids up to `seen_end`. */
    uint32_t seen_end;
    uint64_t seen[MU_YAMUX_SEEN / 64];
    uint64_t grown;  /* how much the windows have grown */
    uint32_t theirs; /* open streams of the peer's */
    uint32_t unacked;
    bool away;          /* we said GO_AWAY */
    bool drains;        /* we accept streams that the peer opens before it hears of it */
    bool refused;       /* the peer said GO_AWAY */
    uint32_t away_ping; /* the first ping behind our GO_AWAY, if it drains */
    /* the frame that is being read */
    uint8_t head[MU_YAMUX_HEADER];
    uint8_t head_len;
    uint32_t data_id; /* its body belongs to this stream; 0: to no stream */
    uint32_t data_left;
    uint16_t data_flags;         /* flags that count when the body is complete */
    struct mu_yamux_event event; /* told before anything else; type 0: no event */
    struct mu_list writable;     /* streams with a WRITABLE to tell */
    uint32_t eof_id;             /* an EOF or RESET that follows the event; 0: no stream */
    bool away_event;
    uint32_t away_code;
    bool dead_event;
    /* keep-alive, and how long a round trip takes */
    mu_mono_t heard_at;
    mu_mono_t ping_at;   /* when to send the next ping */
    mu_mono_t pinged_at; /* MU_MONO_NEVER: we wait for no pong */
    uint32_t ping_value;
    uint64_t rtt_ns; /* the shortest round trip; 0: not measured yet */
    struct mu_buf out;
    size_t behind;          /* mu_yamux_set_behind() */
    struct mu_list no_room; /* streams whose writer waits for room in the output, in turn */
    struct mu_list unsaid;  /* streams that are gone, but whose RST must still be sent */
};

/** Takes no memory. MUSTER_EINVAL. */
int mu_yamux_init(struct mu_yamux *y, const struct mu_yamux_config *config, mu_mono_t now);
void mu_yamux_fini(struct mu_yamux *y);

/**
 * Takes bytes up to the end of the first frame, or part of one, that makes an event; takes nothing
 * while an event waits, or while the peer does not read its answers. MUSTER_EPROTO, MUSTER_EWINDOW,
 * and MUSTER_ELIMIT for a frame greater than any window poison it, with a GO_AWAY in the output;
 * MUSTER_ENOMEM does not.
 */
int mu_yamux_recv(struct mu_yamux *y, mu_mono_t now, struct mu_span in, size_t *ret_used);
bool mu_yamux_next_event(struct mu_yamux *y, struct mu_yamux_event *ret_event);

/** Opens a stream. MUSTER_EAGAIN: too many that the peer has not accepted; MUSTER_ECLOSED: it
 * accepts no more, or ids are used up; MUSTER_ENOMEM. */
int mu_yamux_open(struct mu_yamux *y, mu_mono_t now, uint32_t *ret_id);
/** The same in two steps, for a caller that needs the id before the stream can be opened. An id
 * that was allotted and never opened is lost, which is harmless. MUSTER_ECLOSED. */
int mu_yamux_allot(struct mu_yamux *y, uint32_t *ret_id);
int mu_yamux_open_as(struct mu_yamux *y, mu_mono_t now, uint32_t id);
/** Takes what it can; WRITABLE follows if that was not all. MUSTER_ENOENT; MUSTER_EINVAL after
 * mu_yamux_end(); MUSTER_ENOMEM: nothing was taken. The error that poisoned it. */
int mu_yamux_write(struct mu_yamux *y, uint32_t id, struct mu_span data, size_t *ret_taken);
/**
 * Writes the header of a data frame whose body the caller sends from its own memory, when the
 * output is empty. Returns how much of `len` bytes may be sent now; 0: nothing, or there is no such
 * stream. Once it is sent, the caller calls mu_yamux_framed(); what could not be sent goes to
 * mu_yamux_write(), and so does the rest, even if it is empty: that ends the stream's turn.
 */
size_t mu_yamux_frame(const struct mu_yamux *y, uint32_t id, size_t len,
                      uint8_t ret_head[MU_YAMUX_HEADER]);
void mu_yamux_framed(struct mu_yamux *y, uint32_t id, size_t len);
/** Ends our side of the stream. MUSTER_ENOENT, MUSTER_ENOMEM; a second call is harmless. */
int mu_yamux_end(struct mu_yamux *y, uint32_t id);
/** Resets the stream for both sides, at once; nothing more is told of it. Harmless for a stream
 * that is gone already. MUSTER_ENOMEM: it is gone here, and mu_yamux_say_resets() tells the
 * peer. */
int mu_yamux_reset(struct mu_yamux *y, uint32_t id);
/** Tells the peer of resets that found no memory or no room in the output; call it again and again.
 * MUSTER_ENOMEM: there is still no memory. */
int mu_yamux_say_resets(struct mu_yamux *y);
/** `n` bytes of its data were handled. Harmless for a stream that is gone. MUSTER_ENOMEM: try
 * again. */
int mu_yamux_consumed(struct mu_yamux *y, mu_mono_t now, uint32_t id, uint32_t n);
/** Tells the peer to open no more streams. Open streams go on. MUSTER_ENOMEM. */
int mu_yamux_go_away(struct mu_yamux *y, enum mu_yamux_go_away code);
/** The same, but accepts streams that the peer opens anyway, because it may not have heard yet. A
 * ping goes behind it. MUSTER_ENOMEM. */
int mu_yamux_drain(struct mu_yamux *y, mu_mono_t now);
/** Returns whether the peer has heard that we drain: all that it opened before has come. */
bool mu_yamux_drained(const struct mu_yamux *y);

struct mu_span mu_yamux_output(const struct mu_yamux *y);
void mu_yamux_sent(struct mu_yamux *y, size_t len);
/** Sets how many bytes that left the output are not on the wire yet; they count as still in it. */
void mu_yamux_set_behind(struct mu_yamux *y, size_t len);
mu_mono_t mu_yamux_deadline(const struct mu_yamux *y);
/** A tick that comes much later than the deadline does not declare the peer dead, because we were
 * asleep. MUSTER_ENOMEM: call it again. */
int mu_yamux_tick(struct mu_yamux *y, mu_mono_t now);

/** Returns the number of open streams. */
size_t mu_yamux_count(const struct mu_yamux *y);
const char *mu_yamux_errmsg(const struct mu_yamux *y);

#endif
