/*
 * Succession: who hosts a run when its host is lost. A decision machine, one for each agent and
 * run; it is voter, candidate and host in one. docs/succession.md has the argument for its safety.
 *
 *     mu_succession_init(m, &config)
 *     mu_succession_start(m, now, line, index)   the endpoints that were named; our place, if any
 *     mu_succession_followed(), _heard(), _lost(), _prepare(), _assigned(), _set_line()
 *                                                what became of our host, and what it said
 *     mu_succession_answered(), _unreached()     what became of an ASK
 *     mu_succession_asked(), _unasked(), _probed()   what others ask us
 *     mu_succession_peer_in(), _peer_out(), _begin(), _seat(), _go(), _ready(), _abort()
 *                                                while we host: its hub
 *     mu_succession_tick(m, now)                 at mu_succession_deadline(m)
 *     while (mu_succession_next_prepare(m, &peer, &prepare)) after each of these, in this order:
 *     while (mu_succession_next_answer(m, &asker, &answer))  what to tell members, whom to answer,
 *     while (mu_succession_next(m, &action))                 and what to do
 *
 * Terms and electorates. A run has terms 1, 2, ...; each has one host at most. The nodes of one
 * round are an ELECTORATE; a node votes in it by its rank. Electorate 0 (term 0, round 0) is the
 * endpoints that were named, by their index. A host begins a round in three steps:
 *
 *     TOLD       PREPARE tells every node of the new round its rank; each says READY
 *     BOUND      PREPARE tells these, and every voter of a base, that the round may begin; READY
 *     COMMITTED  the voters that are READY are at least half of every base: ASSIGNED goes out, and
 *                the round is the only base from now on
 *
 * The bases are the electorates any of which may be the last that was committed: one, unless we
 * have just succeeded a host that died in between. What a node was told last is its VIEW: term,
 * round, step, and the electorates that may be the last committed one. A later view takes the place
 * of the earlier (term, then round, then step). A successor takes the latest view that it and all
 * who ask it have, and needs promises of MORE than half of every electorate in it; these are its
 * bases. At least half, and more than half, of the same nodes have one in common, who says no to
 * one of the two.
 *
 * (TOLD comes first, since otherwise a host that dies while it sends PREPARE leaves nodes of the
 * new round that do not know of it, whose votes are needed and who cannot give them.)
 *
 *                      FOLLOW (from whom we asked, or were probed by)
 *                 +----------------------------------------------------------+
 *                 |                                                          |
 *                 v     followed()               lost()                      |
 *              TURNING ----------> FOLLOWING --------------> WALKING --------+
 *                 |                                           ^ |  ^
 *                 |   lost(): it could not be joined          | |  |  patience is over, or
 *                 +-------------------------------------------+ |  |  nobody promises
 *                                   (start() leads here, too)   |  |
 *        the line has come to us, or more than half             |  |
 *        of every electorate in the latest view would promise   v  |
 *                                                       STANDING --+--> CLAIMING
 *                                                        ^              | more than half
 *                        STEP_DOWN, and nobody is known  |              | have promised: HOST
 *                                                        +-- HOSTING <--+
 *        STEP_DOWN to a host of a higher term leads from HOSTING to TURNING; left() leads to OUT.
 *
 * WALKING asks nodes of the line. An ask promises nothing at first (term 0): it says
 * that we have lost the host, and would promise. Whoever is asked answers once it knows:
 *     FOLLOW term address   it hosts, or is in touch with the host (heard since it was asked)
 *     RAISE term            enough would promise: promise this term, by asking again with it
 *     FORGET term           it hosts a lower term than we have promised, and we have no vote there:
 *                           forget all promises and votes, as if we had been started anew; follow
 * So no promise is spent on an election that cannot succeed, nor on the loss of a host that only we
 * have lost. A promise is given once for a term, to one node, and after it nothing is accepted from
 * a lower term. A host that is asked by a voter of one of its bases that has promised a higher term
 * can never again count on that voter: it steps down, and stands with the others for a new term. So
 * does one that is asked or joined by a node with a later view than it can have given: it was
 * started anew, and took an old run for a new one.
 *
 * The walk: the first entry of the line that can be reached is home. A node asks there all the
 * time, and visits the other entries one after the other with a second call, in turn one before
 * home and one after it. Who is before home and does not fail for the time of a visit is the new
 * home. Visits are for those that have another home. Who promises gives up the other call. An entry
 * that was not reached is passed over for a while, and so is the host that was just lost. A visit
 * lasts for `patience`, and so does the wait before the first one, and the wait for a host that was
 * promised; it grows by half each time, to PATIENCE_GROWTH times, and has a random part.
 *
 * No call allocates. The machine borrows the line, the peers and the askers, which the driver owns.
 */
#ifndef MU_SUCCESSION_H
#define MU_SUCCESSION_H

#include "core/err.h"
#include "core/list.h"
#include "core/prng.h"
#include "core/span.h"
#include "core/time.h"
#include "core/trace.h"

/* Electorates any of which may be the last. Each host that dies between BOUND and COMMITTED adds
 * one, and the next commit leaves one: more than this takes seven such deaths in a row. */
#define MU_SUCCESSION_CONFIGS 8
/* Rounds that a node remembers its rank in. Others may count on its vote in one that was given up
 * since; after more than this without any that is committed, they may wait for it in vain. */
#define MU_SUCCESSION_PAST            8
#define MU_SUCCESSION_WORLD_MAX       65536 /* as many nodes as a room takes */
#define MU_SUCCESSION_NAME_MAX        255   /* of a node, or HOST:PORT */
#define MU_SUCCESSION_LINE_MAX        128   /* members; the named endpoints come on top */
#define MU_SUCCESSION_SPREAD          32    /* of the members of a larger world, evenly spread */
#define MU_SUCCESSION_ENDPOINTS_MAX   32
#define MU_SUCCESSION_LEGACY_MAX      16384
#define MU_SUCCESSION_ACTIONS         8 /* no input leads to more */
#define MU_SUCCESSION_CALLS           2 /* asks at a time: one at home, one on a visit */
#define MU_SUCCESSION_MISSING         8 /* names that an explanation can have */
#define MU_SUCCESSION_PATIENCE_MS     2000
#define MU_SUCCESSION_PATIENCE_GROWTH 8
#define MU_SUCCESSION_ANY_PATIENCES   3    /* MU_SUCCESSION_ANY: until it hosts with what it has */
#define MU_SUCCESSION_REACH_MS        1000 /* for the driver: until a connection must be up */
#define MU_SUCCESSION_PROBE_MS        1000
#define MU_SUCCESSION_NO_RANK         UINT32_MAX

enum mu_succession_mode {
    MU_SUCCESSION_MAJORITY = 0,
    MU_SUCCESSION_ANY, /* goes on without a majority: two worlds are possible */
};

/* Who may succeed, in order: the named endpoints, then members by rank. Names are for texts, and
 * may be "" for an endpoint; addresses are HOST:PORT. */
struct mu_succession_heir {
    const char *name;
    const char *address;
};

struct mu_succession_line {
    uint32_t count; /* at most MU_SUCCESSION_ENDPOINTS_MAX + MU_SUCCESSION_LINE_MAX */
    const struct mu_succession_heir *heirs;
};

/** How many members of a world are in the line, and which rank the i-th of them has. */
static inline uint32_t mu_succession_line_len(uint32_t world)
{
    return world <= MU_SUCCESSION_LINE_MAX ? world : MU_SUCCESSION_SPREAD;
}

static inline uint32_t mu_succession_line_rank(uint32_t world, uint32_t i)
{
    return (uint32_t)((uint64_t)i * world / mu_succession_line_len(world));
}

struct mu_succession_config {
    const char *name;    /* this node's; borrowed */
    const char *address; /* where it listens (its `heir`); borrowed */
    enum mu_succession_mode mode;
    uint64_t rounds_from; /* the number here of what its users call round 0, for texts */
    uint64_t patience_ms; /* 0: MU_SUCCESSION_PATIENCE_MS */
    uint64_t seed;
    struct mu_trace trace;
};

struct mu_electorate {
    uint64_t term;
    uint64_t round;
    uint32_t world; /* how many vote; 1 to MU_SUCCESSION_WORLD_MAX */
    uint32_t rank;  /* of the node whose view this is; MU_SUCCESSION_NO_RANK: it has no vote */
    uint64_t
        incarnation; /* of the run: another has rounds with the same numbers. 0: electorate 0 */
};

enum mu_succession_step {
    MU_SUCCESSION_TOLD = 1,
    MU_SUCCESSION_BOUND,
    MU_SUCCESSION_COMMITTED,
};

/*
 * What a node was told last. `may` are the electorates that may be the last committed one:
 *     TOLD       the bases                 `told` is the new round, with our rank
 *     BOUND      the bases, the new round  `told` is unset (world 0)
 *     COMMITTED  the round                 likewise
 * count 0: it was told nothing; it has no vote. It votes in each electorate of `may`, `told` and
 * `past` in which it has a rank: others may still hold for possible what it knows to be over.
 */
struct mu_succession_view {
    uint64_t term;
    uint64_t round;
    enum mu_succession_step step;
    uint32_t count;
    struct mu_electorate may[MU_SUCCESSION_CONFIGS];
    struct mu_electorate told;
    uint32_t past_count; /* rounds that it was told of before, and its rank in each; oldest first */
    struct mu_electorate past[MU_SUCCESSION_PAST];
};

/* The run's small state, as the host of `term` had it before `round`: newer if (term, round,
 * version) is higher. The bytes are the driver's, and opaque here. */
struct mu_succession_legacy {
    uint64_t term;
    uint64_t round;
    uint64_t version;
    struct mu_span bytes; /* at most MU_SUCCESSION_LEGACY_MAX; borrowed */
};

/* --- messages --------------------------------------------------------------------------------- */

/* Host to member, on its join call; beside the line and the legacy, which the driver adds. */
struct mu_succession_prepare {
    uint64_t term;
    enum mu_succession_step step; /* TOLD or BOUND */
    struct mu_electorate round;   /* rank: the receiver's, or NO_RANK: it only votes in a base */
    uint32_t base_count;          /* at most MU_SUCCESSION_CONFIGS - 1 */
    struct mu_electorate bases[MU_SUCCESSION_CONFIGS]; /* ranks are not told */
};

/* Member to host, on the same call: READY{term, round, step}. */

/* The call muster::Rendezvous.promise, from a node that has lost its host. */
struct mu_succession_ask {
    uint64_t term;     /* promised herewith to whom is asked; 0: nothing yet */
    uint64_t promised; /* the highest term that it has promised or followed */
    struct mu_succession_view view;
    struct mu_succession_legacy legacy;
};

enum mu_succession_answer_kind {
    MU_SUCCESSION_RAISE = 1, /* term */
    MU_SUCCESSION_FOLLOW_IT, /* term, address */
    MU_SUCCESSION_FORGET,    /* term, address */
    MU_SUCCESSION_LEFT,      /* it has left the run: the call fails, and another is asked */
};

/* The reply: one for each ask. */
struct mu_succession_answer {
    enum mu_succession_answer_kind kind;
    uint64_t term;
    const char *address; /* lent until the next call */
};

/*
 * A host to a node of the line: "I host this term; do you know better?" The round settles it
 * between two of one term (which take MU_SUCCESSION_ANY, or named endpoints that were started
 * anew), then the address.
 */
struct mu_succession_probe {
    uint64_t term; /* in a reply, 0: it knows no better */
    uint64_t round;
    const char *address;
};

/* --- what the driver owns --------------------------------------------------------------------- */

/* One ask that has come in. The driver fills in the first three fields. It belongs to the machine
 * from mu_succession_asked() until mu_succession_next_answer() returns it, or _unasked(). */
struct mu_succession_asker {
    void *owner;
    char name[MU_SUCCESSION_NAME_MAX + 1];
    struct mu_succession_ask ask;
    struct mu_succession_answer answer; /* private from here */
    struct mu_list link;
};

/* One member of the hub while we host (also our own agent's). The driver fills in the first four
 * fields; `view` is what its join said. It belongs to the machine from peer_in() to peer_out(). */
struct mu_succession_peer {
    void *owner;
    char name[MU_SUCCESSION_NAME_MAX + 1];
    bool old; /* it knows nothing of succession: it is told nothing, and never promises */
    struct mu_succession_view view;
    struct mu_list link;                   /* private from here */
    uint32_t rank;                         /* in the round that is being prepared, or NO_RANK */
    uint32_t votes[MU_SUCCESSION_CONFIGS]; /* its rank in each base, or NO_RANK */
    enum mu_succession_step said;          /* of the round that is being prepared; 0: nothing */
    bool news;                             /* It must be told the present step. */
};

enum mu_succession_action_type {
    MU_SUCCESSION_ASK = 1,   /* call, address: call `promise` there, with mu_succession_get_ask();
                                an earlier one of that number is given up */
    MU_SUCCESSION_HANG_UP,   /* call: it is given up; nothing of it is reported any more */
    MU_SUCCESSION_FOLLOW,    /* term, address: join there; followed() or lost() is expected */
    MU_SUCCESSION_CHECK,     /* find out soon whether our host is there: heard() or lost() */
    MU_SUCCESSION_SAY_READY, /* term, round, step: to our host */
    MU_SUCCESSION_HOST,      /* term: begin to host; bases, `first_round` and `heritage` are set */
    MU_SUCCESSION_COMMIT,    /* round: the ASSIGNED that are held go out now */
    MU_SUCCESSION_STEP_DOWN, /* term, address: host no more, and tell the members where the host is;
                                "": there is none, they must look for one. FOLLOW comes after it, or
                                we stand */
    MU_SUCCESSION_PROBE,     /* address: send mu_succession_get_probe() there, and pass what it
                                answers to mu_succession_better(). Failure is not reported */
};

struct mu_succession_action {
    enum mu_succession_action_type type;
    uint32_t call; /* below MU_SUCCESSION_CALLS */
    uint64_t term;
    uint64_t round;
    enum mu_succession_step step;
    char address[MU_SUCCESSION_NAME_MAX + 1];
};

enum mu_succession_state {
    MU_SUCCESSION_OUT = 0,
    MU_SUCCESSION_TURNING, /* to `host` */
    MU_SUCCESSION_FOLLOWING,
    MU_SUCCESSION_WALKING,
    MU_SUCCESSION_STANDING,
    MU_SUCCESSION_CLAIMING, /* `promised` */
    MU_SUCCESSION_HOSTING,  /* `host_term` */
};

/* One ask of ours. */
struct mu_succession_call {
    bool asking;
    uint32_t entry;                         /* of the line: */
    char asked[MU_SUCCESSION_NAME_MAX + 1]; /* its address, or that of a host which it knew */
    uint64_t term;                          /* that is promised; 0: none */
};

/* It holds no other memory. Drivers read what they like, and write nothing. */
struct mu_succession {
    struct mu_succession_config config;
    enum mu_succession_state state;
    struct mu_prng prng;

    /* The voter. */
    uint64_t promised; /* the highest term that was promised or followed */
    char promised_to[MU_SUCCESSION_NAME_MAX + 1]; /* the address; "": to nobody, or a host */
    struct mu_succession_view view;
    struct mu_succession_legacy legacy;
    uint64_t host_term; /* TURNING, FOLLOWING, HOSTING */
    char host[MU_SUCCESSION_NAME_MAX + 1];

    /* The walk. */
    struct mu_succession_line line;
    uint32_t endpoint_count; /* the first entries, of which we were told at the start */
    uint32_t home;           /* in the line; its count: none can be reached */
    uint32_t home_call;      /* the call that asks at home; the other one visits */
    struct mu_succession_call calls[MU_SUCCESSION_CALLS];
    bool after;          /* The next visit is to an entry after home. */
    uint32_t visited[2]; /* where to look for the next before home, and after it */
    uint64_t patience_ns;
    mu_mono_t give_up; /* when it is over; MU_MONO_NEVER: nothing is waited for */
    mu_mono_t any_at;  /* MU_SUCCESSION_ANY: when to host with what there is */
    mu_mono_t passed_over[MU_SUCCESSION_ENDPOINTS_MAX + MU_SUCCESSION_LINE_MAX]; /* until */

    /* Those who ask us. */
    bool has_left; /* and did not start again */
    struct mu_list askers;
    struct mu_list answered;           /* to be pulled */
    struct mu_succession_view counted; /* the latest when we counted last, */
    uint32_t idle_asks;                /* and how many asks need not be counted since */

    /* The host. */
    struct mu_electorate bases[MU_SUCCESSION_CONFIGS]; /* rank: not used */
    uint32_t base_count;
    uint64_t incarnation;                 /* of the next round */
    uint64_t first_round;                 /* the first number that is not known to be used */
    struct mu_succession_legacy heritage; /* HOST: its bytes are lent until the next input */
    struct mu_list peers;
    struct mu_list *untold;                /* the first peer that may have news, or the head */
    uint32_t told;                         /* peers with a rank that are ready: TOLD or BOUND */
    uint32_t ready[MU_SUCCESSION_CONFIGS]; /* voters of each base that are ready: BOUND */
    bool insists;                          /* no majority is needed, until a round is committed */
    uint32_t left[MU_SUCCESSION_CONFIGS];  /* voters of each base that left in good order, */
    uint32_t left_ourselves; /* and a bit for each base whose vote of ours is among these */
    uint64_t marks[MU_SUCCESSION_WORLD_MAX / 64]; /* votes that a peer may have; see mark() */
    struct mu_electorate preparing; /* the round that is being prepared, or was last */
    enum mu_succession_step step;   /* how far it is; 0: it is given up, or has not begun */
    uint32_t probe_entry;           /* of the line */
    mu_mono_t probe_at;
    uint32_t missing_count;
    char missing[MU_SUCCESSION_MISSING][MU_SUCCESSION_NAME_MAX + 1]; /* voters that were lost */

    uint32_t action_first, action_count;
    struct mu_succession_action actions[MU_SUCCESSION_ACTIONS];
};

void mu_succession_init(struct mu_succession *m, const struct mu_succession_config *config);
/** Borrows the line until another is set. `index`: our own place among the endpoints, which makes
 * us a voter of electorate 0; MU_SUCCESSION_NO_RANK: none. We walk until followed(). */
void mu_succession_start(struct mu_succession *m, mu_mono_t now,
                         const struct mu_succession_line *endpoints, uint32_t index);
/** We leave the run, or it is over: all is forgotten. Peers are the driver's again; those who ask
 * us are answered LEFT, and so are all who come until we start again. */
void mu_succession_left(struct mu_succession *m);

/* --- our host --------------------------------------------------------------------------------- */

/** A host has taken our join. Also when nobody asked us to look for one. */
void mu_succession_followed(struct mu_succession *m, mu_mono_t now, uint64_t term,
                            const char *address);
/** It was heard of; at least once after CHECK. */
void mu_succession_heard(struct mu_succession *m, mu_mono_t now);
/** It is lost, or could not be joined; our workers have stopped. From now on the driver says
 * nothing to it, and passes nothing from it on. */
void mu_succession_lost(struct mu_succession *m, mu_mono_t now);
/** PREPARE has come. SAY_READY follows, unless it is from a lower term than we have promised. The
 * legacy that came with it is set with mu_succession_set_legacy(). */
void mu_succession_prepare(struct mu_succession *m, mu_mono_t now,
                           const struct mu_succession_prepare *prepare);
/** ASSIGNED has come: the round was committed. */
void mu_succession_assigned(struct mu_succession *m, uint64_t term, uint64_t round);
/** Borrows the line until another is set. */
void mu_succession_set_line(struct mu_succession *m, const struct mu_succession_line *line);
/** Borrows the bytes until others are set. An older one than the present is ignored: false. */
bool mu_succession_set_legacy(struct mu_succession *m, const struct mu_succession_legacy *legacy);

/**
 * Hosts without a majority, and begins one round without: for the agent at the only endpoint of a
 * run, which was started anew, when those who ask it can get no majority without the one before it.
 * Until it had waited, another host would have found it.
 */
void mu_succession_insist(struct mu_succession *m, mu_mono_t now);

/* --- our asks --------------------------------------------------------------------------------- */

void mu_succession_get_ask(const struct mu_succession *m, uint32_t call,
                           struct mu_succession_ask *ret);
void mu_succession_answered(struct mu_succession *m, mu_mono_t now, uint32_t call,
                            const struct mu_succession_answer *answer);
/** It could not be made, or was broken off. Without a connection within MU_SUCCESSION_REACH_MS the
 * driver gives it up by itself and says so here: an ask that has arrived may wait for long. */
void mu_succession_unreached(struct mu_succession *m, mu_mono_t now, uint32_t call);

/* --- others ask us ---------------------------------------------------------------------------- */

void mu_succession_asked(struct mu_succession *m, mu_mono_t now, struct mu_succession_asker *asker);
/** It hung up, or its connection is lost. Harmless for one that was answered. */
void mu_succession_unasked(struct mu_succession *m, struct mu_succession_asker *asker);
bool mu_succession_next_answer(struct mu_succession *m, struct mu_succession_asker **ret_asker,
                               struct mu_succession_answer *ret_answer);
/** A host asks whether we know better. The reply is written at once; its address is lent until the
 * next call. */
void mu_succession_probed(struct mu_succession *m, mu_mono_t now,
                          const struct mu_succession_probe *probe,
                          struct mu_succession_probe *ret_reply);
/** What our own probe was answered. Also when a host of some term is heard of in another way. */
void mu_succession_better(struct mu_succession *m, mu_mono_t now,
                          const struct mu_succession_probe *reply);
void mu_succession_get_probe(const struct mu_succession *m, struct mu_succession_probe *ret);

/* --- the host --------------------------------------------------------------------------------- */

/** Borrows the peer. One that votes by the same rank as an earlier one takes its votes away. */
void mu_succession_peer_in(struct mu_succession *m, mu_mono_t now, struct mu_succession_peer *peer);
/** `good`: it left in good order, and its process does not promise anything any more, unless it is
 * our own. A round that is being prepared with it is given up. */
void mu_succession_peer_out(struct mu_succession *m, mu_mono_t now, struct mu_succession_peer *peer,
                            bool good);
/** Sets the incarnation that rounds belong to, from the next one on. */
void mu_succession_set_incarnation(struct mu_succession *m, uint64_t incarnation);
/** The room has formed a round: mu_succession_seat() for each of its `world` members, then
 * mu_succession_go(). A round that was being prepared is given up. MUSTER_EINVAL: the number was
 * used; MUSTER_ELIMIT: too many bases; MUSTER_ECLOSED: we do not host; with a message. */
int mu_succession_begin(struct mu_succession *m, uint64_t round, uint32_t world,
                        struct mu_errmsg *reterr_msg);
void mu_succession_seat(struct mu_succession *m, struct mu_succession_peer *peer, uint32_t rank);
void mu_succession_go(struct mu_succession *m, mu_mono_t now);
/** A member says READY. Words that come late are harmless. */
void mu_succession_ready(struct mu_succession *m, mu_mono_t now, struct mu_succession_peer *peer,
                         uint64_t term, uint64_t round, enum mu_succession_step step);
/** The room has ended the round that was being prepared. Harmless if there is none. */
void mu_succession_abort(struct mu_succession *m);
/** Whether a round is held back until enough members are READY. */
bool mu_succession_waits(const struct mu_succession *m);
/** What to tell which member, before anything else that it is told from now on. */
bool mu_succession_next_prepare(struct mu_succession *m, struct mu_succession_peer **ret_peer,
                                struct mu_succession_prepare *ret_prepare);

/* --- all -------------------------------------------------------------------------------------- */

/** What to do now. False: nothing, until something happens. */
bool mu_succession_next(struct mu_succession *m, struct mu_succession_action *ret);
/** Looks for what is late or due. A call that comes too early is harmless. */
void mu_succession_tick(struct mu_succession *m, mu_mono_t now);
/** When to call mu_succession_tick(); a past time means now. */
mu_mono_t mu_succession_deadline(const struct mu_succession *m);
/**
 * Writes one sentence on what is waited for: "waiting for promises: 2 of 5 nodes of round 7, c and
 * d are missing". Empty if nothing is. Always terminated within `cap`, which is at least 1.
 */
void mu_succession_explain(const struct mu_succession *m, char *text, size_t cap);

/** Whether `a` is later than `b`. */
bool mu_succession_view_later(const struct mu_succession_view *a,
                              const struct mu_succession_view *b);

#endif
