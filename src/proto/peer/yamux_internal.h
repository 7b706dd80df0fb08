/* What the files of yamux share. */
#ifndef MU_YAMUX_INTERNAL_H
#define MU_YAMUX_INTERNAL_H

#include "proto/peer/yamux.h"

enum mu_yamux_frame {
    DATA = 0,
    WINDOW_UPDATE = 1,
    PING = 2,
    GO_AWAY = 3,
};

enum {
    SYN = 1,
    ACK = 2,
    FIN = 4,
    RST = 8,
};

enum {
    /* What may be owed to a peer beside data: it stops being read when it reads nothing of that. */
    CONTROL_BYTES_MAX = 256 * 1024,
    /* The window doubles while its reader empties it within so many round trips. */
    ROUND_TRIPS = 4,
    /* However short the path, a window of less than this doubles while it is emptied within that: a
     * loop on either side takes its turns, and a writer that waits for the other in each of them
     * costs both a wake-up. */
    WINDOW_LOCAL_MAX = 4 << 20,
    GROW_NS_MIN = 10 * 1000 * 1000,
};

enum mu_yamux_wait {
    WAITS_NOT = 0,
    WAITS_WINDOW,
    WAITS_ROOM, /* on no_room */
    WAITS_TOLD, /* on writable: WRITABLE is to be told */
};

struct mu_yamux_stream {
    struct mu_map_node by_id;
    struct mu_list link; /* no_room, writable or unsaid */
    uint32_t id;
    bool ours;
    bool acked;
    bool local_end;
    bool remote_end;
    bool reset; /* by the peer; gone once that is told */
    bool turn;  /* it was told that there is room, ahead of those that wait for it */
    enum mu_yamux_wait wait;
    uint32_t send_window;
    uint32_t recv_window; /* what the peer may still send */
    uint32_t unconsumed;  /* what it sent and nobody has dealt with */
    uint32_t target;      /* the window that is kept open */
    mu_mono_t updated_at;
};

/** Appends a header to room that was reserved. */
void mu_yamux_put_header(struct mu_yamux *y, enum mu_yamux_frame type, uint16_t flags, uint32_t id,
                         uint32_t length);
/** Appends a frame without a body. MUSTER_ENOMEM; MUSTER_ELIMIT cannot be for what recv answers: it
 * stops, and data leaves room for it. */
int mu_yamux_put_control(struct mu_yamux *y, enum mu_yamux_frame type, uint16_t flags, uint32_t id,
                         uint32_t length);

/** NULL: there is none. */
struct mu_yamux_stream *mu_yamux_find(const struct mu_yamux *y, uint32_t id);
/** NULL: no memory. */
struct mu_yamux_stream *mu_yamux_new_stream(struct mu_yamux *y, uint32_t id, bool ours,
                                            mu_mono_t now);
void mu_yamux_free_stream(struct mu_yamux *y, struct mu_yamux_stream *s);
void mu_yamux_set_acked(struct mu_yamux *y, struct mu_yamux_stream *s);
/** What its writer waits for from now on. */
void mu_yamux_let_wait(struct mu_yamux *y, struct mu_yamux_stream *s, enum mu_yamux_wait wait);

/* Whether one of those who wait for room can be told that there is some. A good deal of it: whoever
 * is told fills it up, and the bytes that are left are moved to make room. */
static inline bool mu_yamux_has_turn(const struct mu_yamux *y)
{
    return !mu_list_empty(&y->no_room) && y->out.len + y->behind <= y->config.output_bytes_max / 4;
}

#endif
