/*
 * The lead: the one run of a hub whose host may be lost, because any of its nodes could host it
 * (docs/succession.md). It belongs to the agent that the server is part of, as does the machine
 * that decides (proto/rdzv/succession.h). The hub passes on to the machine what happens to the run,
 * and wakes the owner, which does what the machine wants done:
 *
 *     mu_rdzv_lead_begin(&lead, hub)     joins of the run wait here from now on
 *     mu_rdzv_lead_host(&lead, ...)      those who wait, and who come from now on, are members
 *     mu_rdzv_lead_prepare(&lead, ...)   a member is told PREPARE; its READY goes to the machine
 *     mu_rdzv_lead_commit(&lead, round)  the members are told ASSIGNED, which was held back
 *     mu_rdzv_lead_moved(&lead, ...)     whoever is here, or comes, is sent to another host
 *     mu_rdzv_lead_answer(&lead, ...)    a call `promise` is answered
 *
 * Members without MU_RDZV_JOIN_HEIR, which are older, are told nothing of this.
 */
#ifndef MU_RDZV_LEAD_H
#define MU_RDZV_LEAD_H

#include "codec/rdzv/heir.h"
#include "core/list.h"
#include "proto/rdzv/succession.h"
#include "service/server/rdzv_hub.h"

/* The machine's rounds begin with this number, since its electorate 0 is no round; ours with 0. */
#define MU_RDZV_LEAD_FIRST 1

/* A call `promise` that waits for its answer. */
struct mu_rdzv_lead_ask {
    struct mu_rpc_served base;
    struct mu_rdzv_lead *lead;
    struct mu_succession_asker asker; /* `owner` is this */
    struct mu_buf legacy;             /* that came with it */
};

/* Its memory is the owner's, who fills in the first members. */
struct mu_rdzv_lead {
    const char *run_id;
    struct mu_succession *machine;
    struct mu_span named; /* the endpoints that the user named, as a line */
    /** The machine may have something to do: asks it on a later turn. */
    void (*wake)(void *context);
    /** Somebody asks this node to host; before the machine hears of it. */
    void (*asked)(void *context, const struct mu_rdzv_promise *promise);
    void *context;
    /* Private from here; others read. */
    struct mu_rdzv_hub *hub; /* NULL: there is none any more */
    bool hosting;
    bool held; /* the assignments of `round` wait for the commit */
    uint64_t round;
    struct mu_buf line;    /* as members are told it, when a round is formed */
    struct mu_buf legacy;  /* likewise */
    uint64_t version;      /* of the legacy */
    struct mu_list parked; /* joins that wait */
    uint64_t moved_term;   /* the host that joins are sent to; 0: it is not known */
    char moved_addr[MU_RDZV_NAME_LEN_MAX + 1];
};

void mu_rdzv_lead_begin(struct mu_rdzv_lead *lead, struct mu_rdzv_hub *hub);
/** After the server has gone. */
void mu_rdzv_lead_fini(struct mu_rdzv_lead *lead);

/* Where a lost host was, for the next one. */
struct mu_rdzv_heritage {
    struct mu_span legacy; /* struct mu_rdzv_legacy; "": nothing is known */
    uint64_t first_round;  /* the first number that was not given, as the machine counts */
    mu_mono_t hold;        /* no round begins before it */
};

/** Hosts the run from now on. MUSTER_ENOMEM, MUSTER_EPROTO: the legacy is none. */
int mu_rdzv_lead_host(struct mu_rdzv_lead *lead, const struct mu_rdzv_heritage *heritage,
                      struct mu_errmsg *reterr_msg);
/** The round that was formed last begins, if it is this one, as the machine counts. */
void mu_rdzv_lead_commit(struct mu_rdzv_lead *lead, uint64_t round);
void mu_rdzv_lead_prepare(struct mu_rdzv_lead *lead, struct mu_succession_peer *peer,
                          const struct mu_succession_prepare *prepare);
/** `addr` hosts the run as of `term`. term 0: it is not known who does; they wait, or look. */
void mu_rdzv_lead_moved(struct mu_rdzv_lead *lead, uint64_t term, const char *addr);
/** Answers a call; the asker is freed. */
void mu_rdzv_lead_answer(struct mu_succession_asker *asker,
                         const struct mu_succession_answer *answer);
/** Sends what was said on any of these. */
void mu_rdzv_lead_end_turn(struct mu_rdzv_lead *lead);
/**
 * When at least half of the members of the running round, with this node, were known to hear us,
 * not counting this node's own member `self`. MU_MONO_NEVER: now, since they are not needed.
 */
mu_mono_t mu_rdzv_lead_confirmed(const struct mu_rdzv_lead *lead, const char *self);

#endif
