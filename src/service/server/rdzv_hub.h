/*
 * The hub: the server's side of the native rendezvous. It keeps a room (proto/rdzv/room.h) for each
 * run and serves the methods `muster::Rendezvous.*` (codec/rdzv/msg.h, docs/native-wire.md) to the
 * sessions of a native server, whose owner passes it the calls of those methods.
 *
 *     a CALL of `join`         a member, as long as the call goes on
 *     its ITEMs, its END       its workers failed; it leaves
 *     the end of its session   it is lost, or, where its client said goodbye, it left
 *     what the room tells it   ITEMs of the call, or its REPLY
 *
 * What the rooms have to tell is told at the end of the turn, at once and whatever the disk does. A
 * member that does not read is told later, and less: of what it was not told yet only the last end
 * and the last assignment are kept, and a round of which it never heard is not told to be over.
 *
 * Runs. A run that is over and everybody told, or that has no members any more, is kept for those
 * who ask how it went and for those who come back, up to a number; then the one that has been so
 * for longest is forgotten. A run that is over is opened again by the next join as a new
 * incarnation, and so is one without members if the join wants other numbers of nodes. Incarnations
 * are counted for the whole hub, from the microsecond in which the server was started. So none is
 * given twice, neither for a run that was forgotten nor by another server after this one: a node
 * that still believes in a round of the old server shares no world with one of the new. Who names
 * one that is over is refused; one that is above all that are known was given by a server before
 * this one, whose clock was ahead of ours, and is taken for what it was: a member of the run. From
 * there it is counted on at some distance, lest two servers after that one give the same.
 *
 * The fence. A member that is lost may still run workers, if it was only cut off: it stops them by
 * itself in the time in which its silence is noticed (muster.c), and before that no other
 * round begins. So a member that is lost otherwise (another came under its name, its session broke
 * a rule) holds the next round back for what is left of that time, unless its process has ended.
 * A server that members of another one come to holds their run back for as long after its start:
 * somebody may have been cut off from that one.
 *
 * Who fails while others of its round are out of reach fails because of them, as far as anybody
 * knows: that costs no restart.
 *
 * The keys of a round begin with "/rdzv/RUN/INCARNATION.ROUND/". They are deleted when the second
 * round after it begins; those of a whole incarnation when the next one is opened, or when the run
 * is forgotten.
 */
#ifndef MU_RDZV_HUB_H
#define MU_RDZV_HUB_H

#include "codec/rdzv/msg.h"
#include "core/env.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"
#include "proto/rdzv/room.h"
#include "proto/store/keyspace.h"
#include "service/page/status_text.h"
#include "service/wire/rpc_server.h"

struct mu_rdzv_hub_config {
    size_t runs_max;      /* with members. 10,000 */
    size_t runs_idle_max; /* that are over or have no members, kept for a while. 1,000 */
    uint32_t members_max; /* of one run, spares and waiters included. 65,536 */
    size_t joins_max;     /* of one session at a time. 1,024 */
};

/* What a hub stands on, borrowed for its life. */
struct mu_rdzv_hub_base {
    struct mu_rpc_server *wire;
    struct mu_keyspace *ks; /* the keys of rounds */
    /** Deletes the keys with this prefix, now or soon. NULL: now. */
    void (*delete_prefix)(void *context, struct mu_span prefix);
    void *context;
    bool keys_outlive;   /* some may be there from a server before this one */
    bool keys_elsewhere; /* what nodes ask for is not in `ks`, but in the server's backing */
    struct mu_status_events *events;
    struct mu_buf *scratch; /* an answer being made */
};

struct mu_rdzv_lead;

struct mu_rdzv_hub {
    struct mu_env *env;
    struct mu_rdzv_lead *lead; /* or NULL: see rdzv_lead.h */
    struct mu_rdzv_hub_config config;
    struct mu_rdzv_hub_base on;
    struct mu_map runs;  /* struct mu_rdzv_run by id */
    struct mu_list busy; /* those with members */
    struct mu_list idle; /* the others, in the order in which they became so */
    size_t busy_count;
    size_t idle_count;
    struct mu_list dirty;   /* whose room may have something to tell */
    struct mu_list starved; /* members to whom something could not be told for want of memory */
    struct mu_timer starved_timer;
    mu_mono_t started;
    uint64_t incarnation; /* the last one that was given, or above it */
    uint64_t forgotten;   /* the last one of all that were forgotten */
    /* Counters, for show. */
    uint64_t members;
    uint64_t joins;
    uint64_t rounds;
    uint64_t losses;   /* nodes */
    uint64_t restarts; /* rounds that ended because workers failed */
    uint64_t exclusions;
    uint64_t refused; /* joins of nodes that were excluded */
    uint64_t notices;
};

struct mu_rdzv_hub_config mu_rdzv_hub_config_defaults(void);
void mu_rdzv_hub_init(struct mu_rdzv_hub *hub, const struct mu_rdzv_hub_config *config,
                      const struct mu_rdzv_hub_base *on);
/** No member is left: every session has ended. */
void mu_rdzv_hub_fini(struct mu_rdzv_hub *hub);
/**
 * Begins a call whose method has the prefix of the rendezvous; it may be answered from inside.
 * `joins` counts the members of the session, which keeps it.
 */
void mu_rdzv_hub_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                       const struct mu_rpc_event *event);
/** Tells what there is to tell. For the end of the turn. */
void mu_rdzv_hub_pump(struct mu_rdzv_hub *hub);

#endif
