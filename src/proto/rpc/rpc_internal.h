/*
 * What the files of the rpc machine share. link.c: greeting, lives, keep-alive. out.c: frames out,
 * acknowledgement. in.c: frames in. call.c: our calls. serve.c: the other end's. event.c: events.
 * loan.c: payloads that are not copied. Every entry point calls mu_rpc_enter() first and
 * mu_rpc_settle() last.
 */
#ifndef MU_RPC_INTERNAL_H
#define MU_RPC_INTERNAL_H

#include "proto/rpc/rpc.h"

/* An acknowledgement goes out alone when the other end may hold more than this because it is
 * missing. */
#define MU_RPC_QUIET_FRAMES 64
#define MU_RPC_QUIET_BYTES  ((size_t)1 << 20)

/* How soon the report of a call that failed for lack of memory is tried again. */
#define MU_RPC_FAIL_MS 20

/* How many times `output_bytes_high` may wait for acknowledgement before nothing more is begun. */
#define MU_RPC_KEPT_FACTOR 8

/* How many buffers and records of calls are kept for the next use. */
#define MU_RPC_KEEP_BYTES 65536
#define MU_RPC_KEEP_CALLS 32

/* Payloads shorter than this are copied, which is cheaper than a loan. */
#define MU_RPC_LAND_MIN 4096
#define MU_RPC_LEND_MIN 4096

enum mu_rpc_call_state {
    MU_RPC_OUT = 1, /* ours; no reply yet */
    MU_RPC_ENDED,   /* ours; its REPLY event waits to be pulled */
    MU_RPC_QUEUED,  /* the other end's; waits to be handed out */
    MU_RPC_SERVED,  /* the other end's; handed out */
    MU_RPC_ORPHAN,  /* the other end's, of a life that is over; its reply is dropped */
};

/* Events that a call has to give. */
#define MU_RPC_DUE_HELD   1u /* frames that came before the call was handed out */
#define MU_RPC_DUE_CREDIT 2u
#define MU_RPC_DUE_CANCEL 4u
#define MU_RPC_DUE_REPLY  8u

struct mu_rpc_entry {
    struct mu_map_node node; /* by `id`, except ENDED */
    struct mu_list all;      /* calls_out or calls_in; in calls_out never ENDED */
    struct mu_list due;      /* due, queue or spare */
    struct mu_list stall;
    struct mu_heap_node timer;
    uint64_t id; /* local */
    enum mu_rpc_call_state state;
    uint8_t pending;       /* MU_RPC_DUE_* */
    bool ended;            /* END was sent or received */
    bool caller_cancelled; /* CANCEL was received: nothing may follow */
    bool cancelled;        /* the callee was told or will be told */
    bool failed;           /* `stall` is in r->failed; its reply is `status` */
    bool stalled;          /* the callee's item got EAGAIN for lack of this call's credit */
    int status;            /* status of the CANCEL or REPLY event to give */
    mu_mono_t deadline;
    /* Items to the caller: how much was sent or received, and how much may be. */
    uint64_t spent;
    uint64_t limit;
    uint64_t done;       /* at the caller: of `spent`, how much was handled */
    uint64_t unconsumed; /* payload bytes of items, either way, that mu_rpc_consumed() may name */
    uint64_t owed;       /* at the callee: how much of the calls credit this call must give back */
    struct mu_buf held;  /* at the callee: whole frames, as they came */
    size_t held_read;
    struct mu_space land;    /* the memory for its items */
    struct mu_rpc_mark mark; /* at the caller */
};

/* The end of a frame's payload that is not in `out`. */
struct mu_rpc_loan {
    struct mu_list link;
    uint64_t at;              /* after which byte of `out` it goes, counted as `out_at` */
    uint64_t id;              /* of the call, local */
    struct mu_span data;      /* of a `lent` payload, only its length */
    struct mu_rpc_blob *blob; /* that `data` lies in; NULL: borrowed, or `copy` */
    uint8_t *copy;
    struct mu_rpc_lent *lent; /* replaces all these */
};

/* --- rpc.c ----------------------------------------------------- */

/** Notes the time; forgives the other end a silence that was our own absence. */
void mu_rpc_enter(struct mu_rpc *r, struct mu_now now);
/** Returns 0, or the error that every input returns from now on. */
int mu_rpc_usable(const struct mu_rpc *r);
/** Frees buffers after one side was silent for a beat, because an idle session keeps no memory. Not
 * while an event is lent. */
void mu_rpc_trim(struct mu_rpc *r);
/** Poisons the session: remembers why, tells the other end, ends all calls. Returns `code`. */
int mu_rpc_violate(struct mu_rpc *r, int code, const struct mu_errmsg *why);

/* --- out.c ------------------------------------------------- */

/** Makes room for a frame with `len` bytes of payload, so that the writers below cannot fail. */
int mu_rpc_reserve(struct mu_rpc *r, size_t len);
/** Writes the header of a sequenced frame; the payload is appended to r->out, then _finish(). */
size_t mu_rpc_begin(struct mu_rpc *r, enum mu_rpc_frame_type type, uint64_t wire_id);
void mu_rpc_finish(struct mu_rpc *r, size_t at);
/** The same as mu_rpc_finish(), with `lent` bytes of payload after what is in `out`. */
void mu_rpc_finish_lent(struct mu_rpc *r, size_t at, size_t lent);
/** Does both for a payload that is at hand. */
void mu_rpc_put(struct mu_rpc *r, enum mu_rpc_frame_type type, uint64_t wire_id,
                struct mu_span payload);
/** Appends a control frame to `ctl`, which must have room. */
void mu_rpc_put_control(struct mu_rpc *r, struct mu_buf *ctl, enum mu_rpc_frame_type type,
                        struct mu_span payload);
/** Returns whether too much waits to be sent or acknowledged to begin anything new. */
bool mu_rpc_is_crowded(const struct mu_rpc *r);
/** Drops frames up to the `ack`th of this life. */
void mu_rpc_drop_acked(struct mu_rpc *r, uint64_t ack);
/** The link is new: all kept frames must be sent again. */
void mu_rpc_rewind(struct mu_rpc *r);
/** Drops what was not begun; nothing sequenced follows. */
void mu_rpc_cut_output(struct mu_rpc *r);
/** Writes what has become due: credit, acknowledgement, PING, PONG; wakes stalled calls. What finds
 * no memory is tried again by the next call. */
void mu_rpc_settle(struct mu_rpc *r);

/* --- loan.c ------------------------------------------------ */

struct mu_rpc_loan *mu_rpc_loan_at(const struct mu_rpc *r, struct mu_list *it);
/** Writes a reply whose payload is lent; `len` is its length. MUSTER_ENOMEM. */
int mu_rpc_put_reply_lent(struct mu_rpc *r, const struct mu_rpc_entry *e, struct mu_rpc_lent *lent,
                          size_t len);
void mu_rpc_loan_drop(struct mu_rpc *r, struct mu_rpc_loan *loan);
void mu_rpc_loans_drop(struct mu_rpc *r);
/** Writes an ITEM whose payload stays where it is. MUSTER_ENOMEM. */
int mu_rpc_put_lent(struct mu_rpc *r, const struct mu_rpc_entry *e, struct mu_span payload,
                    struct mu_rpc_blob *blob);
/** The owner's memory for the items of a call is gone. */
void mu_rpc_unland(struct mu_rpc *r, struct mu_rpc_entry *e);
/** A header was read: finds out whether its payload goes to an owner's memory. */
void mu_rpc_begin_landing(struct mu_rpc *r);
/** The frame that was being read is handled, or will never be complete. */
void mu_rpc_end_frame(struct mu_rpc *r);

/* --- link.c ------------------------------------------------ */

int mu_rpc_on_welcome(struct mu_rpc *r, struct mu_span payload);
/** Takes the requested times, within the protocol's limits; 0: ours. */
void mu_rpc_set_beats(struct mu_rpc *r, uint32_t beat_ms, uint32_t dead_ms);
void mu_rpc_keep_alive(struct mu_rpc *r);
mu_mono_t mu_rpc_link_deadline(const struct mu_rpc *r);
/** Sets everything that belongs to one life to its beginning; calls must have ended. */
void mu_rpc_begin_life(struct mu_rpc *r);

/** Notes that something is sent that the other end answers at once, or (`seq`) acknowledges; and
 * that it has answered. */
void mu_rpc_ask(struct mu_rpc *r, uint64_t seq);
void mu_rpc_note_answer(struct mu_rpc *r, uint64_t ack);
/* The other end has received what was sent at that time. */
void mu_rpc_confirm(struct mu_rpc *r, mu_mono_t said);
/** Doubles a window that holds up its sender; `done` of it is handled by now. */
void mu_rpc_widen(struct mu_rpc *r, uint64_t *window, uint64_t max, struct mu_rpc_mark *mark,
                  uint64_t done);

/* --- call.c ------------------------------------------------ */

uint64_t mu_rpc_own_first(const struct mu_rpc *r);
uint64_t mu_rpc_peer_first(const struct mu_rpc *r);
uint64_t mu_rpc_wire_id(const struct mu_rpc *r, const struct mu_rpc_entry *e);
struct mu_rpc_entry *mu_rpc_find(const struct mu_rpc *r, uint64_t id);
/** Finds the call that a frame is about, NULL for one that has ended. MUSTER_EPROTO: there was no
 * such call. */
int mu_rpc_find_wire(struct mu_rpc *r, uint64_t wire_id, bool own, struct mu_rpc_entry **ret);
/** Makes a record in the map and in its list. NULL: no memory. */
struct mu_rpc_entry *mu_rpc_entry_new(struct mu_rpc *r, uint64_t id, enum mu_rpc_call_state state);
/** Removes a record from everything. */
void mu_rpc_entry_drop(struct mu_rpc *r, struct mu_rpc_entry *e);
void mu_rpc_make_due(struct mu_rpc *r, struct mu_rpc_entry *e, unsigned bits);
/** Ends a call of ours here; its REPLY event follows. */
void mu_rpc_end_own(struct mu_rpc *r, struct mu_rpc_entry *e, int status);
/** Ends all calls: ours with `status`; the other end's are cancelled with MUSTER_ESESSION. */
void mu_rpc_end_all(struct mu_rpc *r, int status);
int mu_rpc_on_reply(struct mu_rpc *r, struct mu_span payload);
int mu_rpc_on_own_item(struct mu_rpc *r, struct mu_span payload);
/** Grants items for which there was no memory before. */
void mu_rpc_grant_owed(struct mu_rpc *r);
int mu_rpc_on_credit(struct mu_rpc *r, struct mu_span payload);

/* --- serve.c ----------------------------------------------- */

int mu_rpc_on_call(struct mu_rpc *r, struct mu_span payload);
int mu_rpc_on_peer_item(struct mu_rpc *r, struct mu_span payload);
int mu_rpc_on_end(struct mu_rpc *r);
int mu_rpc_on_cancel(struct mu_rpc *r);
/** Reports calls that mu_rpc_fail() ended, as far as there is memory. */
void mu_rpc_reply_failed(struct mu_rpc *r);
bool mu_rpc_can_hand_out(const struct mu_rpc *r);
/** The bytes that it holds become lent (if they are what is lent) or are freed. */
void mu_rpc_drop_held(struct mu_rpc *r, struct mu_rpc_entry *e);
/** The callee is told; held frames are dropped. */
void mu_rpc_cancel_served(struct mu_rpc *r, struct mu_rpc_entry *e, int status);
/** Answers a call that was never handed out. Room must be reserved: MU_RPC_OWN_REPLY. */
#define MU_RPC_OWN_REPLY 64
void mu_rpc_reply_queued(struct mu_rpc *r, struct mu_rpc_entry *e, int status);

/* --- event.c ----------------------------------------------- */

bool mu_rpc_has_event(const struct mu_rpc *r);
/** Sets the event of the frame that is being handled. */
void mu_rpc_tell(struct mu_rpc *r, struct mu_rpc_event event);

#endif
