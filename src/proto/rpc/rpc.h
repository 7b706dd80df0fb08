/*
 * A session of the native wire: calls both ways over a connection that may be lost and made again.
 * A stream machine. docs/native-wire.md describes the protocol; codec/rpc/frame.h its bytes.
 *
 * One struct mu_rpc is one end of one session. It lives as long as the session and is given one
 * connection (a "link") after another:
 *
 *     the side that dials                        the side that listens
 *     mu_rpc_init(), role CLIENT                 mu_rpc_greet_recv() reads the HELLO
 *     mu_rpc_dialled()  writes magic and HELLO   finds the session, or mu_rpc_init(), role SERVER
 *     mu_rpc_recv() ... event WELCOMED           mu_rpc_accepted()  writes WELCOME
 *
 * While no link is up, calls can still be made and replies given: they are sent when there is a
 * link. Frames that were sent and not acknowledged are kept and sent again, so every call is
 * received exactly once for as long as both ends keep the session. If the server has forgotten it
 * (it was restarted, or the grace ran out), the client is welcomed with resumed = false and every
 * call in progress ends with MUSTER_ESESSION: it may or may not have run. The machine goes on in a
 * new life of the session; ids are never used again.
 *
 * A call ends with exactly one REPLY event at the caller: the callee's, or one made here with
 * MUSTER_ETIMEDOUT (its deadline passed and the callee said nothing for REPLY_MARGIN_MS more),
 * MUSTER_ECANCELED (mu_rpc_cancel), MUSTER_ESESSION, MUSTER_ECLOSED (mu_rpc_close, BYE), or the
 * error that poisoned the session.
 * The callee's side sees CALL, then ITEM, END, perhaps CANCEL (the caller cancelled, its deadline
 * passed, or the session ended), and must reply exactly once in every case; after CANCEL the reply
 * is a formality, but it frees the call.
 *
 * Flow control. A frame costs its header and its payload. Calls: a side may send CALL and ITEM
 * frames of its own calls while its credit with the peer is positive; the frame that takes it below
 * zero is the last until more is granted. The machine grants as CALL events are pulled and items
 * consumed; while more than `output_bytes_high` waits to be sent (or eight times that waits to be
 * acknowledged), or `calls_max` calls are being served, it hands out no CALL events. It always
 * reads: replies can never wait behind calls, so two ends cannot block each other. Items to the
 * caller: credit per call, granted by mu_rpc_consumed(). A window begins small, since data between
 * two processes of a host should stay in its caches, and is doubled as long as it holds less than
 * twice of what arrives within a round trip.
 *
 * Events are pulled; recv stops after each frame that made one, and takes nothing while one waits.
 * Spans in events are lent until the next recv, tick or next_event; they may point into the bytes
 * given to recv, which the caller keeps as long. mu_rpc_sent() can release what waited for room, so
 * events are pulled after it too; a driver that does not is woken by the deadline.
 */
#ifndef MU_RPC_H
#define MU_RPC_H

#include "codec/rpc/frame.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"
#include "core/span.h"
#include "core/time.h"
#include "core/trace.h"

enum mu_rpc_role {
    MU_RPC_CLIENT = 1, /* dials; its calls have odd ids */
    MU_RPC_SERVER,     /* listens; its calls have even ids */
};

/* How much longer than its own deadline a caller waits, so that the callee's answer, which can say
 * what was missing, comes first. */
#define MU_RPC_REPLY_MARGIN_MS 500

struct mu_rpc_config {
    enum mu_rpc_role role;
    uint8_t session[MU_RPC_SESSION_LEN]; /* client: drawn from entropy; server: from the HELLO */
    uint8_t incarnation[MU_RPC_SESSION_LEN]; /* server: drawn once per process */
    uint64_t seed;
    const char *name;           /* our name, for the other end's logs; borrowed for the machine's
                                   life */
    struct mu_span credential;  /* client; borrowed for the machine's life */
    uint32_t grace_ms;          /* client: what it asks for; server: the most it gives. 10 s */
    uint32_t beat_ms;           /* 5 s */
    uint32_t dead_ms;           /* 15 s */
    uint32_t frame_bytes_max;   /* longest payload that is accepted. 64 MiB */
    uint32_t call_window_bytes; /* CALL and caller's ITEM bytes that may wait here unpulled. 1
                                   MiB */
    uint32_t item_window_bytes; /* bytes of a call's items that may wait at the caller. 256 KiB */
    /* How large the two windows may grow if the path is long and fast. 0: they do not grow. */
    uint32_t call_window_bytes_max;
    uint32_t item_window_bytes_max;
    uint32_t calls_max;         /* calls being served at once. 65536 */
    uint32_t output_bytes_high; /* no CALL events above this much unsent. 1 MiB */
    uint32_t output_bytes_max;  /* everything kept for sending: beyond it, EAGAIN. 1 GiB */
    bool confirms; /* asks in every beat whether the other end hears us, even if there is other
                      traffic */
    struct mu_trace trace;
};

/** The defaults named above; role, session, incarnation and seed are the caller's to set. */
struct mu_rpc_config mu_rpc_config_defaults(void);

enum mu_rpc_event_type {
    MU_RPC_EV_WELCOMED = 1, /* client: the link is up; `resumed`, `payload` is the server's name */
    MU_RPC_EV_REFUSED,      /* `status`, `payload` is the text; drop the link and do not dial
                               again */
    MU_RPC_EV_CALL,         /* callee: `id`, `method`, `payload`, `flags`, `deadline` */
    MU_RPC_EV_ITEM,         /* either: `id`, `payload`; mu_rpc_consumed() when done with it */
    MU_RPC_EV_END,          /* callee: `id`; the caller has no more items */
    MU_RPC_EV_CANCEL, /* callee: `id`, `status` why (ECANCELED, ETIMEDOUT, ESESSION); reply now */
    MU_RPC_EV_REPLY,  /* caller: `id`, `status`, `payload` (the error's text if status) */
    MU_RPC_EV_CREDIT, /* either: a send that got EAGAIN on `id` (0: calls) may continue */
    MU_RPC_EV_LINK_DEAD, /* the other end was silent for dead_ms: drop the link */
    MU_RPC_EV_DRAIN,     /* the other end is about to leave; `status` and `payload` say why */
    MU_RPC_EV_BYE,       /* the other end closed the session: free it */
};

struct mu_rpc_event {
    enum mu_rpc_event_type type;
    uint64_t id;
    bool resumed;
    int status;
    uint32_t flags;
    mu_mono_t deadline; /* MU_MONO_NEVER: no deadline */
    struct mu_span method;
    struct mu_span payload;
};

struct mu_rpc;

/* When a window was last renewed, and how much was handled by then. */
struct mu_rpc_mark {
    uint64_t done;
    mu_mono_t at;
};

/* --- a new connection at the listening side --------------------- */

/*
 * Reads the magic and the HELLO, and nothing after it. It is small, so that an undecided connection
 * costs little.
 */
struct mu_rpc_greet {
    struct mu_buf in;
};

void mu_rpc_greet_init(struct mu_rpc_greet *g);
void mu_rpc_greet_fini(struct mu_rpc_greet *g);
/** Returns whether the first bytes are the magic: 1 yes, 0 no, MUSTER_EAGAIN: yes so far. */
int mu_rpc_greet_sniff(struct mu_span first);
/**
 * Takes bytes up to the end of the HELLO. 0 with `*ret_hello` filled (its spans lent by `g`);
 * MUSTER_EAGAIN: all was used and it is not complete yet; MUSTER_EPROTO; MUSTER_EVERSION: refuse
 * it; MUSTER_ENOMEM. `*ret_used` is set with 0 and with MUSTER_EAGAIN.
 */
int mu_rpc_greet_recv(struct mu_rpc_greet *g, struct mu_span in, size_t *ret_used,
                      struct mu_rpc_hello *ret_hello);
/** Appends a REFUSE frame to `out`, for a connection that gets no session. */
int mu_rpc_refuse(struct mu_buf *out, int status, const char *text);

/* --- life ------------------------------------------------------- */

/** Takes no memory. MUSTER_EINVAL: a window or frame limit below the protocol's least, a name or
 * credential too long. */
int mu_rpc_init(struct mu_rpc *r, const struct mu_rpc_config *config);
void mu_rpc_fini(struct mu_rpc *r);

/* --- links ------------------------------------------------------ */

/** Client: a connection is up. Writes magic and HELLO. MUSTER_ECLOSED, MUSTER_ENOMEM. */
int mu_rpc_dialled(struct mu_rpc *r, struct mu_now now);
/**
 * Server: a connection brought this HELLO (of this machine's session: the caller found it). Writes
 * WELCOME, resumed if the HELLO means the life this machine is in, and all that was not
 * acknowledged. A link that is still up is replaced, because the client knows better. A HELLO of a
 * later life, or for a session without grace, begins that life here: calls end with
 * MUSTER_ESESSION. All errors leave everything as it was, a link that is up included, and mean:
 * refuse this connection. MUSTER_EVERSION; MUSTER_ESESSION: an earlier life (a connection that was
 * overtaken by another, or a second client with the same session); MUSTER_EPROTO; MUSTER_ECLOSED;
 * MUSTER_ENOMEM.
 */
int mu_rpc_accepted(struct mu_rpc *r, struct mu_now now, const struct mu_rpc_hello *hello);
/**
 * The connection is gone. Nothing else is lost yet, unless the session has no grace. The grace
 * counts from now, because the end of a connection is a sign of life. Only for a link that was
 * given up for its silence (EV_LINK_DEAD) it counts from when the other end was last heard.
 */
void mu_rpc_unlinked(struct mu_rpc *r, struct mu_now now);
/**
 * The same as mu_rpc_unlinked(), in good order: the other end has closed the connection, and one
 * that means to come back does not do that. The session is kept for at most `grace_ms`.
 */
void mu_rpc_eof(struct mu_rpc *r, struct mu_now now, uint32_t grace_ms);
/**
 * We were away for the last `ns`, paused or too busy to listen, and do not know whether the other
 * end was silent meanwhile. If that is a beat or more, its silence or absence counts from now; if
 * less, that time does not count.
 */
void mu_rpc_stalled(struct mu_rpc *r, struct mu_now now, uint64_t ns);
/** Returns whether a link is up and greeted. */
bool mu_rpc_linked(const struct mu_rpc *r);
/**
 * Returns the latest time at which the other end certainly heard from us: when we sent what it has
 * answered. It measures our silence by what it hears, so this time, and not when we heard from it,
 * tells how long it still counts on us. With `confirms`, the time is no older than a beat and a
 * round trip while all is well. The start of a new life confirms nothing. {0}: nothing was answered
 * yet.
 */
mu_mono_t mu_rpc_confirmed(const struct mu_rpc *r);
/** Returns how long after that the other end certainly keeps the session: the silence or the
 * grace. */
uint32_t mu_rpc_kept_ms(const struct mu_rpc *r);
/**
 * Server: returns when a client that was silent since then can no longer believe that its session
 * goes on, if it obeys the two above. {0} for a client whose process has ended (mu_rpc_eof()).
 */
mu_mono_t mu_rpc_forsaken_at(const struct mu_rpc *r);

/* --- in --------------------------------------------------------- */

/**
 * Takes bytes up to the end of the first frame that makes an event; pull events, then continue with
 * the rest. A violation (MUSTER_EPROTO, MUSTER_EWINDOW, MUSTER_ELIMIT) poisons the session:
 * mu_rpc_errmsg() says what it was; MUSTER_ENOMEM does not.
 */
int mu_rpc_recv(struct mu_rpc *r, struct mu_now now, struct mu_span in, size_t *ret_used);
/**
 * Returns the memory for the next bytes, so that mu_rpc_recv() need not copy them; the caller then
 * gives exactly that memory, or its beginning, to mu_rpc_recv(), which takes all. Empty: any
 * memory. Lent until the next call that is not const.
 */
struct mu_space mu_rpc_room(struct mu_rpc *r);
/** Handles deadlines and keep-alive. MUSTER_ENOMEM: call it again. */
int mu_rpc_tick(struct mu_rpc *r, struct mu_now now);

/* Calling. */
/**
 * Starts a call. `timeout_ms` 0: no timeout. MUSTER_EAGAIN: no credit or too much unsent; EV_CREDIT
 * with id 0 follows when it is worth trying again. MUSTER_EINVAL (method), MUSTER_ELIMIT (the
 * peer's frame limit), MUSTER_ECLOSED, MUSTER_ENOMEM.
 */
int mu_rpc_call(struct mu_rpc *r, struct mu_now now, struct mu_span method, struct mu_span payload,
                uint32_t timeout_ms, uint32_t flags, uint64_t *ret_id);
/** Cancels a call; its REPLY event (MUSTER_ECANCELED) follows. MUSTER_ENOENT. */
int mu_rpc_cancel(struct mu_rpc *r, struct mu_now now, uint64_t id);
/** The caller has no more items. */
int mu_rpc_end(struct mu_rpc *r, struct mu_now now, uint64_t id);

/* Either. */
/**
 * Sends an item. MUSTER_EAGAIN: no credit or too much unsent; EV_CREDIT with this id follows.
 * MUSTER_ENOENT; MUSTER_ECANCELED: the caller is gone, reply; MUSTER_EINVAL: after mu_rpc_end();
 * MUSTER_ELIMIT (the peer's frame limit), MUSTER_ENOMEM.
 */
int mu_rpc_item(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_span payload);
/*
 * Shared memory: frames whose payload is in it keep it until they are acknowledged.
 */
struct mu_rpc_blob {
    size_t refs;
    struct mu_buf buf;
    struct mu_list link; /* for its maker */
};

/** Takes over the content of `buf`; returns one reference. NULL: no memory, and `buf` is
 * unchanged. */
struct mu_rpc_blob *mu_rpc_blob_new(struct mu_buf *buf);
/** Releases one reference; the last one frees the memory. */
void mu_rpc_blob_drop(struct mu_rpc_blob *blob);

/**
 * The same as mu_rpc_item() without a copy: the payload stays where it is for as long as it may
 * have to be sent again. With a `blob`, the payload is in it, and the blob is kept. With NULL it is
 * borrowed, at most until mu_rpc_revoke().
 */
int mu_rpc_item_lent(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_span payload,
                     struct mu_rpc_blob *blob);
/**
 * Stops using what was borrowed for items of this call, ended or not: what is not acknowledged yet
 * is copied. If there is no memory for that, the session is poisoned with MUSTER_ESESSION. Call it
 * before borrowed memory changes; most often there is nothing left to copy, since an answer shows
 * that the items were received.
 */
void mu_rpc_revoke(struct mu_rpc *r, uint64_t id);
/**
 * Sets the memory for the payload of the next items of this call: an item that fits is put at its
 * beginning, and the event's payload points there; then the caller sets memory again. It is lent
 * until it is set again, taken back (len 0), its END comes, or the call ends. If it is taken back
 * in the middle of an item, the payload is lost: the event has a length and no bytes.
 * MUSTER_ENOENT.
 */
int mu_rpc_land(struct mu_rpc *r, uint64_t id, struct mu_space room);
/**
 * `n` bytes of items on this call were handled: the other end may send as many more. What was not
 * consumed when the call ends is given back then. MUSTER_ENOENT, MUSTER_EINVAL (more than came).
 */
int mu_rpc_consumed(struct mu_rpc *r, struct mu_now now, uint64_t id, size_t n);

/* Serving. */
/**
 * Ends a call. With a status other than 0, `payload` is the error's text. Never EAGAIN: `calls_max`
 * and `output_bytes_high` keep room for replies. MUSTER_ENOENT, MUSTER_ELIMIT (the peer's frame
 * limit or `output_bytes_max`: reply with an error instead, for which there is always room),
 * MUSTER_EINVAL (a positive status), MUSTER_ENOMEM.
 */
int mu_rpc_reply(struct mu_rpc *r, struct mu_now now, uint64_t id, int status,
                 struct mu_span payload);
/* A payload that is sent from the caller's memory, one span after the other. */
struct mu_rpc_lent {
    const struct mu_span *spans; /* no span is empty */
    size_t count;
    size_t memory; /* how much memory it takes, for mu_rpc_memory() */
    /** Called once: the other end has it, or it is not needed any more. Must not call the
     * machine. */
    void (*release)(struct mu_rpc_lent *lent);
};
/** The same as mu_rpc_reply() with status 0. On an error `lent` is still the caller's. */
int mu_rpc_reply_lent(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_rpc_lent *lent);

/**
 * Ends a call whose answer, or an item of it, found no memory: with `status` and its own text, as
 * soon as there is memory for these. Nothing more can be sent on the call. Cannot fail; does
 * nothing to a call that has ended.
 */
void mu_rpc_fail(struct mu_rpc *r, struct mu_now now, uint64_t id, int status);

/** Tells the other end that this side is about to leave; does nothing without a link. */
int mu_rpc_drain(struct mu_rpc *r, struct mu_now now, const char *why);
/** Ends the session: writes BYE if a link is up; calls in progress end with MUSTER_ECLOSED. */
int mu_rpc_close(struct mu_rpc *r, struct mu_now now);

/* --- out -------------------------------------------------------- */

bool mu_rpc_next_event(struct mu_rpc *r, struct mu_rpc_event *ret_event);
/** Returns bytes for the link; lent until the next call that is not const. Empty while there is no
 * link. */
struct mu_span mu_rpc_output(const struct mu_rpc *r);
/** The same in up to `cap` spans, one after the other; returns how many there are. */
#define MU_RPC_SPANS 32 /* a good number of them */
size_t mu_rpc_outputv(const struct mu_rpc *r, struct mu_span *spans, size_t cap);
void mu_rpc_sent(struct mu_rpc *r, size_t n);
/** Returns when to call mu_rpc_tick() next; at once while events wait to be pulled. */
mu_mono_t mu_rpc_deadline(const struct mu_rpc *r);
/** Returns until when the server keeps the session without a link; MU_MONO_NEVER while one is
 * up. */
mu_mono_t mu_rpc_grace_deadline(const struct mu_rpc *r);
/** Client: returns which process welcomed us last; all zero before. 16 bytes. */
const uint8_t *mu_rpc_peer_incarnation(const struct mu_rpc *r);
/** Returns when the other end was last heard; forgiven silences are not counted. */
mu_mono_t mu_rpc_last_heard(const struct mu_rpc *r);
/** Returns when something came from the other end, at the latest; a silence that was forgiven is
 * one all the same. */
mu_mono_t mu_rpc_last_received(const struct mu_rpc *r);
/** Returns how many bytes have come of an incomplete payload; 0 between frames. */
size_t mu_rpc_arriving(const struct mu_rpc *r);
/** Returns how much memory is held besides the struct. */
size_t mu_rpc_memory(const struct mu_rpc *r);
/** Return our calls that have not ended, and the other end's calls that we have not replied to. */
size_t mu_rpc_calls_out(const struct mu_rpc *r);
size_t mu_rpc_calls_in(const struct mu_rpc *r);
const char *mu_rpc_errmsg(const struct mu_rpc *r);

/*
 *     NONE --dialled--> DIALLED --WELCOME--> UP          (client)
 *     NONE --accepted-----------------------> UP         (server)
 *     any  --unlinked--> NONE          DIALLED --REFUSE--> OVER
 */
enum mu_rpc_link {
    MU_RPC_LINK_NONE = 0,
    MU_RPC_LINK_DIALLED, /* HELLO is written; only WELCOME or REFUSE may come */
    MU_RPC_LINK_UP,
    MU_RPC_LINK_OVER, /* what still comes is dropped; output still holds the last frames */
};

/* Callers embed it and look at nothing inside. */
struct mu_rpc {
    struct mu_rpc_config config;
    struct mu_now now;
    int poison;
    bool closed; /* closed by either side: no life follows */
    char *errmsg;

    /* The session. */
    uint32_t life; /* as in the HELLO; server: this machine's, 0 before the first link */
    uint8_t peer_incarnation[MU_RPC_SESSION_LEN]; /* client: from the last WELCOME */
    bool fresh;       /* the next WELCOME begins a life; nothing of it was sent yet */
    bool terms_known; /* known in this life; else the protocol's least is assumed */
    uint32_t grace_ms;
    uint32_t beat_ms;
    uint32_t dead_ms;
    uint32_t peer_frame_max;
    mu_mono_t unlinked_at; /* MU_MONO_NEVER before the first link and while one is up */
    uint32_t eof_grace_ms; /* what is left of the grace after mu_rpc_eof(); UINT32_MAX: all of it */

    /* The link. */
    enum mu_rpc_link link;
    mu_mono_t last_rx;     /* later, if a silence was forgiven */
    mu_mono_t received_at; /* the true one */
    mu_mono_t last_tx;
    mu_mono_t last_ping;
    mu_mono_t confirmed;
    uint64_t pong_nonce;
    bool want_ping;
    bool want_pong;
    bool dead_told;
    bool drain_told;

    /* In: the frame that is being read, and the last one, whose event may still be lent. */
    uint8_t head[MU_RPC_HEADER];
    uint8_t head_len;
    bool head_read; /* the header is complete, checked, and in `header` */
    struct mu_rpc_header header;
    struct mu_buf in;
    struct mu_rpc_entry *land_of; /* the call whose item goes to memory of its owner, or NULL */
    uint8_t *land_to;             /* where it goes; NULL: the frame does not go there, or the memory
                                     is gone */
    bool land_lost;               /* the memory is gone: the rest of the frame is dropped */
    size_t landed;
    uint64_t in_seq;       /* sequenced frames received in this life */
    uint32_t in_quiet;     /* of them, since we last sent something */
    size_t in_quiet_bytes; /* likewise */

    /* Out: sequenced frames [not acknowledged | not sent], and control frames before them. The end
     * of a frame's payload may be lent instead of being in `out`. */
    struct mu_buf out;
    uint64_t out_at;      /* where `out` begins, counted in bytes that ever were in it */
    size_t out_sent;      /* bytes of `out` that were sent on this link */
    size_t out_left;      /* bytes still to send of the frame that was begun; 0 between frames */
    size_t out_lent;      /* of that frame, how many bytes are lent; they are its last */
    struct mu_list loans; /* of the frames in `out`, in their order */
    struct mu_list *loan_due; /* the first that was not sent whole; `&loans`: there is no such
                                 loan */
    size_t kept_bytes;        /* of all frames in `out`, lent ones included */
    size_t sent_bytes;        /* of these, sent on this link */
    size_t loan_memory;       /* memory that loans hold here */
    uint64_t out_base; /* how many frames were dropped from the front of `out` in this life */
    uint64_t out_next; /* how many frames were ever written in this life */
    uint64_t out_seq;  /* how many frames, counted from the life's first, were sent whole on this
                          link */
    uint64_t out_high; /* the greatest out_seq ever: what can be acknowledged */
    struct mu_buf ctl;

    /* Sequenced frames in all lives, for statistics. */
    uint64_t frames_in;
    uint64_t frames_out;

    /* Calls: by local id, which is the wire's plus a base that grows with each life. */
    struct mu_map calls;
    struct mu_heap timers;
    mu_mono_t fail_at;        /* when to try again to report the failed calls */
    struct mu_list calls_out; /* in the order of their ids */
    struct mu_list calls_in;
    struct mu_list due;         /* calls that have an event to give */
    struct mu_list queue;       /* calls that came and wait to be handed out */
    struct mu_list failed;      /* calls that mu_rpc_fail() ended, which the other end does not know
                                   yet */
    struct mu_list stalled_out; /* calls whose item got EAGAIN for lack of calls credit or of
                                   room */
    struct mu_list stalled_in;  /* calls whose item got EAGAIN for lack of room */
    struct mu_list spare;
    size_t spare_count;
    size_t out_count;
    size_t in_count;
    size_t serving; /* of in_count, how many are handed out */
    size_t held_bytes;
    uint64_t own_next; /* local ids */
    uint64_t own_base;
    uint64_t peer_next; /* wire ids */
    uint64_t peer_base;

    /* Calls credit, in bytes from the life's first on. */
    uint64_t own_spent;
    uint64_t own_limit; /* how much the other end grants us */
    uint64_t peer_spent;
    uint64_t peer_done;  /* of it, how much was handled */
    uint64_t peer_limit; /* how much we granted the other end */
    uint64_t call_window;
    uint64_t item_window;
    struct mu_rpc_mark call_mark;
    uint64_t rtt_ns;    /* the shortest round trip; UINT64_MAX: not known */
    mu_mono_t asked_at; /* when something was sent that has an answer; MU_MONO_NEVER: no answer is
                           due */
    uint64_t asked_seq; /* the answer is that so many frames were received; 0: the answer is a
                           frame */
    bool call_stalled;
    bool items_owed; /* credit for items is due, and there was no memory to send it */

    bool has_event; /* of the last frame: `event` */
    bool dead_event;
    bool credit_event;
    struct mu_rpc_event event;
    struct mu_buf lent; /* bytes of the last event, which no call holds any more */
};

#endif
