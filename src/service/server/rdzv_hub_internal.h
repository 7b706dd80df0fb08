/*
 * What the files of the hub share. rdzv_hub.c: runs, and what they have to tell.
 * rdzv_hub_member.c: members, from their join to their reply. rdzv_hub_ask.c: status and close.
 * rdzv_lead.c, rdzv_lead_promise.c: the run whose host may change.
 */
#ifndef MU_RDZV_HUB_INTERNAL_H
#define MU_RDZV_HUB_INTERNAL_H

#include "service/server/rdzv_hub.h"
#include "service/server/rdzv_lead.h"

/* A text that says why, as long as an answer can carry. */
#define MU_RDZV_WHY_MAX MU_RPC_MESSAGE_MAX

/* How long after its workers a node may vanish so that their failure, and that of the others, is
 * its loss: what ends a host ends its processes one after the other. */
#define MU_RDZV_ECHO_MS 1000
/* How late the server may be to notice that a member is lost. */
#define MU_RDZV_LATE_MS 200

struct mu_rdzv_run {
    struct mu_rdzv_hub *hub;
    struct mu_map_node by_id;
    struct mu_list link;  /* hub->busy or hub->idle */
    struct mu_list dirty; /* hub->dirty */
    struct mu_timer timer;
    struct mu_room room;
    bool busy;
    bool over;                /* the room was finished: only what it shows is left of it */
    bool formed;              /* `told` is a round of this incarnation */
    uint64_t told;            /* the round of the last assignment that was told to anybody */
    bool ended_noted;         /* the end of the round `told` is among the events */
    uint64_t fence;           /* no node of this incarnation, or of one before it, is let in */
    mu_mono_t failed_at;      /* when workers failed last, where there were other members */
    struct mu_heap timeouts;  /* of members without a rank */
    struct mu_list spares;    /* as they came; of some the room may think otherwise by now */
    uint64_t excluded;        /* how many exclusions there were when that was noted */
    uint64_t promoted;        /* how many the room had promoted when they were looked at */
    struct mu_buf members;    /* the list of all in the round, as it is told; empty: not made yet */
    struct mu_rdzv_list list; /* the same among the keys of the round; len 0: not there */
    struct mu_status_history history;
    struct mu_rdzv_lead *lead; /* NULL: its host does not change */
    size_t id_len;
    char id[MU_RDZV_NAME_LEN_MAX + 1];
};

/* A member: a join that goes on. */
struct mu_rdzv_member {
    struct mu_rpc_served base;
    size_t *joins; /* of its session */
    struct mu_rdzv_run *run;
    struct mu_room_member room;
    struct mu_heap_node timeout;
    struct mu_list spare;   /* run->spares */
    struct mu_list starved; /* hub->starved */
    uint64_t join_timeout_ms;
    uint32_t flags; /* MU_RDZV_JOIN_* */
    /* What it is owed, in this order. */
    uint32_t entered; /* its place; 0: it knows */
    bool owed_ended;
    bool owed_prepare;
    bool owed_assigned;
    bool owed_waiters;
    struct mu_room_notice ended; /* `who` points to `ended_who`, or is NULL */
    struct mu_room_notice assigned;
    struct mu_room_notice waiters;
    struct mu_succession_prepare prepare;
    struct mu_succession_peer *peer; /* of a run with a lead, if it knows of that; or NULL */
    char ended_who[MU_ROOM_NAME_MAX + 1];
    char addr[MU_RDZV_NAME_LEN_MAX + 1];
    char page[MU_RDZV_NAME_LEN_MAX + 1]; /* where its agent's status page is; "": nowhere */
    char heir[MU_RDZV_NAME_LEN_MAX + 1]; /* where it could host the run; "": nowhere */
};

static inline struct mu_rdzv_member *mu_rdzv_member_of(const struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_room_member, link)->owner;
}

/* --- rdzv_hub.c ------------------------------------------------------------------------------- */

struct mu_rdzv_run *mu_rdzv_run_find(struct mu_rdzv_hub *hub, struct mu_span id);
/**
 * The run that a join means: found, opened, or opened again. MUSTER_ERDZV_CLOSED, MUSTER_EINVAL,
 * MUSTER_ELIMIT, MUSTER_ENOMEM; all in words.
 */
int mu_rdzv_run_get(struct mu_rdzv_hub *hub, const struct mu_rdzv_join *join,
                    struct mu_rdzv_run **ret_run, struct mu_errmsg *reterr_msg);
/** Its room may have something to tell: at the end of the turn it is asked. */
void mu_rdzv_run_touch(struct mu_rdzv_run *run);
/** Puts a point on its time line; `who` may be NULL. */
void mu_rdzv_run_mark(struct mu_rdzv_run *run, enum mu_status_mark mark, uint64_t round,
                      uint32_t nodes, const char *who);
/** The list of its members in the running round, lent until the round ends. MUSTER_ENOMEM. */
int mu_rdzv_run_members(struct mu_rdzv_run *run, struct mu_span *ret_members);
/** Sees to it that the list is among the keys of the running round. Errors as of mu_ks_set(). */
int mu_rdzv_run_list(struct mu_rdzv_run *run, struct mu_rdzv_list *ret_list);

/** Opens a run, for the lead, as the legacy has it; it has no members. MUSTER_ENOMEM. */
int mu_rdzv_run_succeed(struct mu_rdzv_lead *lead, const struct mu_rdzv_legacy *legacy,
                        uint64_t first_round, struct mu_rdzv_run **ret_run,
                        struct mu_errmsg *reterr_msg);
/** Gives up a run whose members were all sent away. */
void mu_rdzv_run_drop(struct mu_rdzv_run *run);

/* --- rdzv_hub_member.c ------------------------------------------------------------------------ */

/** Serves `join`. */
void mu_rdzv_member_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                          const struct mu_rpc_event *event);
/** The room has something for it; what ends the membership frees it. */
void mu_rdzv_member_tell(struct mu_rdzv_member *m, const struct mu_room_notice *notice);
/** Sends what it is owed, as far as there is credit. */
void mu_rdzv_member_push(struct mu_rdzv_member *m);
/** Its time to get a rank begins, if it has a bound. */
void mu_rdzv_member_arm(struct mu_rdzv_member *m);
/** Whether all members that ran when workers failed were heard late enough after that, so that the
 * failure is not the echo of a loss. */
bool mu_rdzv_run_heard_all(const struct mu_rdzv_run *run);
/** Before the room is told anything: no failure is the run's end while a member may be lost. Its
 * loss can be noticed later than it should, if we were away. */
void mu_rdzv_run_doubt(struct mu_rdzv_run *run);
/** It is out of the room: answers its call and frees it. */
void mu_rdzv_member_dismiss(struct mu_rdzv_member *m, int status, const char *why);

/** It is out of the room, and its call is answered. */
void mu_rdzv_member_free(struct mu_rdzv_member *m);
/** It is out of the room: sends it to the host, if that is known. */
void mu_rdzv_member_move(struct mu_rdzv_member *m, bool known);
/** Sends a notice, outside of their order. */
int mu_rdzv_member_send(struct mu_rpc_session *session, uint64_t id, struct mu_buf *scratch,
                        const struct mu_rdzv_notice *notice);

/* --- rdzv_lead.c ------------------------------------------------------------------------------ */

/** Whether the call is about the lead's run. */
bool mu_rdzv_lead_is(const struct mu_rdzv_hub *hub, struct mu_span run_id);
/** Serves `join` while the run is hosted elsewhere, or nowhere. */
void mu_rdzv_lead_park(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                       const struct mu_rpc_event *event, const struct mu_rdzv_join *join);
/** A member has come, or is about to go. MUSTER_ENOMEM. */
int mu_rdzv_lead_in(struct mu_rdzv_member *m, const struct mu_rdzv_join *join);
void mu_rdzv_lead_entered(struct mu_rdzv_member *m);
void mu_rdzv_lead_out(struct mu_rdzv_member *m, bool good);
/** It says READY. */
void mu_rdzv_lead_ready(struct mu_rdzv_member *m, const struct mu_rdzv_ready *ready);
/** A round was formed, or is over. */
void mu_rdzv_lead_formed(struct mu_rdzv_run *run, uint64_t round, uint32_t world);
void mu_rdzv_lead_ended(struct mu_rdzv_run *run);
/** What the next host must know has changed within a round: all members are told. */
void mu_rdzv_lead_changed(struct mu_rdzv_run *run);
/** Adds what the lead tells of terms. */
void mu_rdzv_lead_notice(const struct mu_rdzv_lead *lead, struct mu_rdzv_notice *notice);

/** What the wire says, as the machine has it. */
void mu_rdzv_lead_view(struct mu_succession_view *to, const struct mu_rdzv_view *from);

/* --- rdzv_lead_promise.c ---------------------------------------------------------------------- */

/** Serves `promise`. */
void mu_rdzv_promise_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                           const struct mu_rpc_event *event);
/** Serves `host`. */
void mu_rdzv_host_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                        const struct mu_rpc_event *event);

/* --- rdzv_hub_ask.c --------------------------------------------------------------------------- */

void mu_rdzv_status_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                          const struct mu_rpc_event *event);
void mu_rdzv_explain_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                           const struct mu_rpc_event *event);
void mu_rdzv_close_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                         const struct mu_rpc_event *event);
void mu_rdzv_exclude_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                           const struct mu_rpc_event *event);

#endif
