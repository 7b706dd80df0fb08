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
    /* The most that we keep for a peer besides data: we stop reading from a peer that does not read
     * it. */
    CONTROL_BYTES_MAX = 256 * 1024,
    /* The window doubles while its reader empties it within this many round trips. */
    ROUND_TRIPS = 4,
    /* Even on the shortest path, a window below this size doubles while it is emptied within this
     * time: the loops on both sides work in turns, and a writer that waits in each turn costs both
     * a wake-up. */
    WINDOW_LOCAL_MAX = 4 << 20,
    GROW_NS_MIN = 10 * 1000 * 1000,
};

enum mu_yamux_wait {
    WAITS_NOT = 0,
    WAITS_WINDOW,
    WAITS_ROOM, /* on no_room */
    WAITS_TOLD, /* on writable: WRITABLE must be told */
};

struct mu_yamux_stream {
    struct mu_map_node by_id;
    struct mu_list link; /* no_room, writable or unsaid */
    uint32_t id;
    bool ours;
    bool acked;
    bool local_end;
    bool remote_end;
    bool reset; /* reset by the peer; gone once that is told */
    bool turn;  /* it was told that there is room, before the others that wait */
    enum mu_yamux_wait wait;
    uint32_t send_window;
    uint32_t recv_window; /* how much the peer may still send */
    uint32_t unconsumed;  /* how much it sent that was not handled yet */
    uint32_t target;      /* the window that is kept open */
    mu_mono_t updated_at;
};

/** Appends a header to room that was reserved. */
void mu_yamux_put_header(struct mu_yamux *y, enum mu_yamux_frame type, uint16_t flags, uint32_t id,
                         uint32_t length);
/** Appends a frame without a body. MUSTER_ENOMEM; an answer of recv never meets MUSTER_ELIMIT: recv
 * stops, and data leaves room for it. */
int mu_yamux_put_control(struct mu_yamux *y, enum mu_yamux_frame type, uint16_t flags, uint32_t id,
                         uint32_t length);

/** Returns NULL if there is no such stream. */
struct mu_yamux_stream *mu_yamux_find(const struct mu_yamux *y, uint32_t id);
/** Returns NULL if there is no memory. */
struct mu_yamux_stream *mu_yamux_new_stream(struct mu_yamux *y, uint32_t id, bool ours,
                                            mu_mono_t now);
void mu_yamux_free_stream(struct mu_yamux *y, struct mu_yamux_stream *s);
void mu_yamux_set_acked(struct mu_yamux *y, struct mu_yamux_stream *s);
/** Sets what its writer waits for from now on. */
void mu_yamux_let_wait(struct mu_yamux *y, struct mu_yamux_stream *s, enum mu_yamux_wait wait);

/* Returns whether a stream that waits for room can be told that there is room. There must be a good
 * deal of it: the stream fills it up, and the bytes that are left are moved to make room. */
static inline bool mu_yamux_has_turn(const struct mu_yamux *y)
{
    return !mu_list_empty(&y->no_room) && y->out.len + y->behind <= y->config.output_bytes_max / 4;
}

#endif
