/*
 * A node of a native run that could host it: the driver of proto/rdzv/succession.h beside that of
 * proto/rdzv/member.h (service/rdzv/muster.h). It has a server of its own from the start, which
 * hosts the run or sends those who come to the host; when the host is lost, it asks the line of
 * succession, or is asked, and the node joins whoever hosts then.
 *
 *     the session with the host      muster.c: one client, one call `join`
 *     our server                     service/server/rdzv_lead.h
 *     asks and probes of ours        succession_ask.c: a client for each
 *
 * docs/succession.md has the protocol.
 */
#ifndef MU_RDZV_SUCCESSION_H
#define MU_RDZV_SUCCESSION_H

#include "proto/rdzv/succession.h"
#include "service/rdzv/muster.h"
#include "service/server/rdzv_lead.h"

/* A client that makes one call `promise` at a time, wherever it is wanted. */
struct mu_rdzv_caller {
    struct mu_rdzv_muster *n;
    enum mu_rdzv_muster_client client;
    struct mu_rpc_client rpc;
    char address[MU_SUCCESSION_NAME_MAX + 1]; /* that it dials */
    char wanted[MU_SUCCESSION_NAME_MAX + 1];  /* where to call; "": nowhere */
    uint64_t call;                            /* 0: none */
    bool probes;                              /* it sends probes, else asks: */
    uint32_t number;                          /* of the machine's call */
};

/* What is kept of a line: the texts behind the places, in one block. */
struct mu_rdzv_line {
    struct mu_succession_line line;
    struct mu_succession_heir *heirs;
};

_Static_assert(MU_SUCCESSION_CONFIGS == MU_RDZV_ELECTORATES_MAX &&
                   MU_SUCCESSION_PAST == MU_RDZV_ELECTORATES_MAX,
               "the wire has what the machine has");

#define MU_RDZV_SUCCESSION_QUEUE 64 /* far more than a turn can lead to */

struct mu_rdzv_succession {
    struct mu_rdzv_muster *n;
    struct mu_succession machine;
    struct mu_rdzv_lead lead;
    struct mu_timer timer;
    char address[MU_ADDR_HOST_MAX + 16]; /* where we listen; "": nowhere */
    struct mu_rdzv_line endpoints;       /* as the user named them */
    struct mu_buf named;                 /* the same, as the wire has it */
    uint32_t index;                      /* ours among them, or MU_SUCCESSION_NO_RANK */
    struct mu_rdzv_line line;            /* as the host told it last */
    struct mu_buf legacy;                /* likewise */
    struct mu_rdzv_caller asks[MU_SUCCESSION_CALLS];
    struct mu_rdzv_caller probe;
    struct mu_succession_action queue[MU_RDZV_SUCCESSION_QUEUE]; /* to do, the next first */
    uint32_t queued;
    struct mu_buf heritage; /* of the HOST in it */
    bool started;           /* the machine */
    bool plain;             /* the server is older than this, and takes only what it knows */
    bool elsewhere;         /* an endpoint is no address of this host */
    bool lost;              /* the host, and the machine was not told yet: our workers may run */
    bool certain;           /* the host's process has ended */
    bool gave_way;          /* it is there, and hosts no more */
    bool ready_owed;        /* READY could not be said yet: */
    struct mu_rdzv_ready ready;
    mu_mono_t insist_at; /* when to host without a majority; or NEVER */
    mu_mono_t stopped;   /* when the lost host must have stopped its workers */
    mu_mono_t checks;    /* since when we are to find out whether the host is there; or NEVER */
    mu_mono_t turn_by;   /* when a host that was to be joined is given up */
    char lost_addr[MU_SUCCESSION_NAME_MAX + 1];
    char lost_name[MU_SUCCESSION_NAME_MAX + 1];
};

/* succession_host.c */

/** Parses the endpoints, binds one of them or an address of our own, and begins. `n->endpoint` is
 * where to connect if n->reaches. MUSTER_EINVAL, MUSTER_EADDR, MUSTER_ENOMEM, MUSTER_ELOCKED. */
int mu_rdzv_succession_new(struct mu_rdzv_muster *n, const char *endpoints,
                           struct mu_errmsg *reterr_msg);
/** Its callers are closed, and n->server is gone. */
void mu_rdzv_succession_free(struct mu_rdzv_succession *s);
/** The user wants in, or out of it: begins to look for a host, if that was not begun. Whether there
 * is one to connect to. */
bool mu_rdzv_succession_begin(struct mu_rdzv_succession *s);
/**
 * The host is lost for certain, and there is no majority without it: if it was on this host, where
 * we can bind the only endpoint now, we are as good as a node that was started anew there.
 */
bool mu_rdzv_succession_take_endpoint(struct mu_rdzv_succession *s);
/** Ends the callers. True: they are closed; else mu_rdzv_muster_ended() follows. */
bool mu_rdzv_succession_end(struct mu_rdzv_succession *s);
/* succession.c */

/** Sets the callbacks and the timer. */
void mu_rdzv_succession_listen(struct mu_rdzv_succession *s);
/** Starts the machine, unless it was. */
void mu_rdzv_succession_start(struct mu_rdzv_succession *s);
/** The places as texts with an end, in one block. MUSTER_ENOMEM. */
int mu_rdzv_line_make(struct mu_rdzv_line *l, struct mu_span bytes);
void mu_rdzv_line_free(struct mu_rdzv_line *l);
/** The machine may have something to do: asks it on the next turn. */
void mu_rdzv_succession_wake(struct mu_rdzv_succession *s);
/** What the session comes to: the host may be lost. True: it is, and there is no session now. */
bool mu_rdzv_succession_trouble(struct mu_rdzv_succession *s, int status, bool was_open);
/** The user joins: its workers have stopped. */
void mu_rdzv_succession_joins(struct mu_rdzv_succession *s);
/** A turn of the session has ended. */
void mu_rdzv_succession_turned(struct mu_rdzv_succession *s);
/** What the host says of terms. True: it was nothing else. */
bool mu_rdzv_succession_notice(struct mu_rdzv_succession *s, const struct mu_rdzv_notice *notice);
/** The server knows our session no more: it was started anew, or hosts no more. True: it is lost,
 * and the call was ended. */
bool mu_rdzv_succession_forgotten(struct mu_rdzv_succession *s);
/** The join was refused as malformed. True: another one may not be. */
bool mu_rdzv_succession_refused(struct mu_rdzv_succession *s);
/** The node is out. */
void mu_rdzv_succession_left(struct mu_rdzv_succession *s);
/** Whether a host is being looked for; then it is said in words. */
bool mu_rdzv_succession_explain(const struct mu_rdzv_succession *s, char *text, size_t cap);

/* succession_ask.c */

/** Makes the call there, once it can be reached; a call before it is given up. */
void mu_rdzv_caller_call(struct mu_rdzv_caller *c, const char *address);
void mu_rdzv_caller_hang_up(struct mu_rdzv_caller *c);
/** Gives up all asks. */
void mu_rdzv_succession_hang_up(struct mu_rdzv_succession *s);
/** As the wire has it. */
void mu_rdzv_view_of(struct mu_rdzv_view *to, const struct mu_succession_view *from);

#endif
