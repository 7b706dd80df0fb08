/*
 * A node as a member of a native run: what it asks the server for, what it tells its user, and when
 * it must take itself for lost. A decision machine: it sees decoded notices and times.
 * service/rdzv/muster.h drives it and has the session.
 *
 *     mu_member_init(m, &config)
 *     mu_member_join(), _leave(), _close()    what the user wants
 *     mu_member_notice(), _answered(), ...    what the server says, and what the session comes to
 *     mu_member_tick(m, now)                  at mu_member_deadline(m)
 *     while (mu_member_next(m, &action))      after each of these: what to do
 *     while (mu_member_say(m, &word))         when the server can be spoken to: say it, then
 *         mu_member_said(m, now, word, err)   report that it was said, or why not
 *
 * The user. A leave leads from every state to LEAVING; FAILED and the end of the run lead to OUT.
 *
 *               join            ASSIGNED          ENDED
 *       OUT -----------> JOINING -------> IN -------------> BETWEEN        LEAVING -----> OUT
 *                           ^              |                   |                   LEFT
 *                           +---- join ----+------ join -------+
 *
 * The join call lasts from round to round. Its reply, a CANCEL and the end of the session lead from
 * every state to NONE.
 *
 *             CALL_JOIN          a notice              END_CALL
 *       NONE -----------> ASKED ---------> ENTERED --------------> ENDING
 *                                           |   ^                    ^
 *                          ENTERED as spare v   | ASSIGNED           |
 *                                           SPARE -------------------+
 *
 *       user       the call
 *       OUT        NONE
 *       JOINING    NONE (until it can be made), ASKED, ENTERED, SPARE
 *       IN         ENTERED, SPARE
 *       BETWEEN    ENTERED, SPARE, or NONE if the server has forgotten us. It may assign the next
 *                  round before the user joins again: the assignment is held back.
 *       LEAVING    each of them; with NONE, LEFT follows at once
 *
 * The run, as far as this node may close it. The reply to a join can say CLOSED as well.
 *
 *              close          CALL_CLOSE           its reply
 *       OPEN ---------> WANTED ---------> ASKED -------------> CLOSED
 *         ^               | ^               | |
 *         +---------------+-|---------------+ |   CLOSE_FAILED
 *                           +-----------------+   the session is over: a close can be said twice
 *
 * The fence. The server counts on a member that it has heard of within the time that the two have
 * agreed on (link.kept_ms), and others may go on without it at the end of that time. So a member
 * that is not answered stops what it has begun before that, by its own clock, counted from when it
 * said what was answered last (link.confirmed):
 *
 *     0                                         22/30      27/30     30/30 of the time
 *     |--- beats, a sixth apart, unanswered ------|-- stop --|-- none --|--> others may begin
 *                                              CUT_OFF      `by`      the server holds it for lost
 *
 * A member that is stopped itself can do nothing of that: somebody else must do it, at 29/30
 * (mu_member_counted_until()).
 *
 * What was begun is fenced until the node is OUT or enters again, also when its call is gone. The
 * node that hosts the server sleeps when the server sleeps: while its call lasts, it is never cut
 * off.
 */
#ifndef MU_MEMBER_H
#define MU_MEMBER_H

#include "codec/rdzv/msg.h"
#include "core/err.h"
#include "core/time.h"

#define MU_MEMBER_CLOSE_MS 30000 /* until a close has failed */
#define MU_MEMBER_ACTIONS  4     /* no input leads to more */

struct mu_member_config {
    const char *address;      /* the server's, for texts; borrowed, and may change */
    uint64_t join_timeout_ms; /* 0: none */
    uint32_t restarts_max;    /* UINT32_MAX: no bound */
};

enum mu_member_user {
    MU_MEMBER_OUT = 0,
    MU_MEMBER_JOINING,
    MU_MEMBER_IN,
    MU_MEMBER_BETWEEN,
    MU_MEMBER_LEAVING,
};

enum mu_member_call {
    MU_MEMBER_CALL_NONE = 0,
    MU_MEMBER_CALL_ASKED,
    MU_MEMBER_CALL_ENTERED, /* the server counts on us */
    MU_MEMBER_CALL_SPARE,   /* likewise, and we wait without a bound while we are in touch */
    MU_MEMBER_CALL_ENDING,  /* we want out */
};

enum mu_member_run {
    MU_MEMBER_RUN_OPEN = 0,
    MU_MEMBER_RUN_WANTED, /* The user wants it closed. */
    MU_MEMBER_RUN_ASKED,  /* The server was asked to close it. */
    MU_MEMBER_RUN_CLOSED,
};

/* An assignment that came while the user was away, or that may be an old one. */
enum mu_member_held {
    MU_MEMBER_HELD_NONE = 0,
    MU_MEMBER_HELD_BACK,
    MU_MEMBER_HELD_DUE, /* It may be told now: the user is back, or we are in touch again. */
};

/* What there is to say to the server. */
enum mu_member_word {
    MU_MEMBER_CALL_JOIN = 1,
    MU_MEMBER_SAY, /* `say` of `round`, on the join call */
    MU_MEMBER_END_CALL,
    MU_MEMBER_CALL_CLOSE, /* with MU_MEMBER_CLOSE_MS for its reply */
};

enum mu_member_action_type {
    MU_MEMBER_CANCEL = 1, /* the join call; its reply is not for us any more */
    MU_MEMBER_ASSIGNED,   /* as the last ASSIGNED notice has it */
    MU_MEMBER_ENDED,      /* `round`, reason, who, who_rank, text */
    MU_MEMBER_WAITING,    /* count */
    MU_MEMBER_CUT_OFF,    /* by. mu_member_cut() follows if the user has not stopped by itself */
    MU_MEMBER_FAILED,     /* status, text */
    MU_MEMBER_LEFT,
    MU_MEMBER_CLOSED,       /* once */
    MU_MEMBER_CLOSE_FAILED, /* status, text */
};

struct mu_member_action {
    enum mu_member_action_type type;
    int status;
    uint32_t reason; /* enum mu_room_end_reason; 0: the others go on without us, or may */
    bool has_who;
    uint32_t who_rank;
    uint32_t count;
    mu_mono_t by;
    char who[MU_RDZV_NAME_LEN_MAX + 1];
    struct mu_errmsg text; /* one sentence */
};

/* What the driver knows of the session. */
struct mu_member_link {
    bool linked;         /* There is a connection, and the server has greeted. */
    bool hosting;        /* The server is in this process. */
    int error;           /* why there is no connection; 0: not known */
    uint32_t kept_ms;    /* how long the server waits for us after it has heard of us */
    mu_mono_t confirmed; /* when we said what the server answered last */
};

/* It holds no other memory. Drivers read what they like, and write `link`. */
struct mu_member {
    struct mu_member_config config;
    struct mu_member_link link; /* the driver's: as of now, before every call */
    enum mu_member_user user;
    enum mu_member_call call;
    enum mu_member_run run;

    /* What is known of the run, as the server said last. */
    uint64_t incarnation; /* 0: nothing yet */
    uint64_t round;       /* that we are in, or were last */
    uint32_t spent;       /* restarts of `incarnation` */

    enum mu_rdzv_say say; /* of `round`; 0: nothing */
    enum mu_member_held held;
    uint64_t held_round;
    int unreached; /* why there is no session, which the user must hear; 0: there may be one */
    struct mu_errmsg unreached_text;
    mu_mono_t user_at;  /* when the join or the leave is late */
    bool extended;      /* The join is late, and the server has some more time to say why. */
    mu_mono_t close_at; /* when the close is late */
    mu_mono_t retry_at; /* when to say again what found no memory */

    /* The fence. */
    mu_mono_t join_said;  /* when the join of this call was said */
    mu_mono_t counted_on; /* when the server last counted on us for sure; MU_MONO_NEVER: never */
    uint64_t kept_ns;     /* how long it waits for us after that */
    mu_mono_t fence_at;   /* when to look again; MU_MONO_NEVER: there is nothing to look for */
    mu_mono_t cut_off;    /* `counted_on` when the user was last told that it is cut off */

    size_t action_count;
    struct mu_member_action actions[MU_MEMBER_ACTIONS]; /* the next first */
};

void mu_member_init(struct mu_member *m, const struct mu_member_config *config);

/* --- the user --------------------------------------------------------------------------------- */

/** The user wants a place in the next round. If it is in one, that is over for us: our workers have
 * failed, unless it is `blameless`. True: a session is needed. */
bool mu_member_join(struct mu_member *m, mu_mono_t now, bool blameless);
/** Before mu_member_leave(): our workers have all ended well, so our leaving is no loss. */
void mu_member_finish(struct mu_member *m);
/** LEFT follows. */
void mu_member_leave(struct mu_member *m, mu_mono_t now);
/** CLOSED follows, or CLOSE_FAILED. True: a session is needed. */
bool mu_member_close(struct mu_member *m, mu_mono_t now);
/**
 * Returns until when what was begun may run even if this process does not: a little before the
 * server holds the node for lost. It moves on with every answer of the server. MU_MONO_NEVER:
 * nobody counts on the node, or it hosts the server. The link must be up to date.
 */
mu_mono_t mu_member_counted_until(struct mu_member *m, mu_mono_t now);
/** After CUT_OFF: the user has not stopped what runs, and ENDED follows. */
void mu_member_cut(struct mu_member *m, mu_mono_t now);

/* --- the server ------------------------------------------------------------------------------- */

/** An item of the join call. */
void mu_member_notice(struct mu_member *m, mu_mono_t now, const struct mu_rdzv_notice *notice);
/** The reply to the join call. `text` says why, as everywhere. */
void mu_member_answered(struct mu_member *m, mu_mono_t now, int status, const char *text);
void mu_member_close_answered(struct mu_member *m, int status, const char *text);
/** What the server said cannot be used: FAILED follows. */
void mu_member_broken(struct mu_member *m, int status, const char *text);
/** The session is over, and its calls with it. */
void mu_member_lost(struct mu_member *m, mu_mono_t now, const char *why);
/** Likewise, and there will be no other: what the user waits for fails. */
void mu_member_unreached(struct mu_member *m, mu_mono_t now, int status, const char *text);

/** What to say next; the same until it was said. False: nothing. */
bool mu_member_say(const struct mu_member *m, enum mu_member_word *ret_word);
/** It was said, or `err`. The driver repeats what found no memory after a tick, and the rest when
 * the session can take more. */
void mu_member_said(struct mu_member *m, mu_mono_t now, enum mu_member_word word, int err);

/** What to do now. False: nothing, until something happens. */
bool mu_member_next(struct mu_member *m, struct mu_member_action *ret);
/** Looks for what is late or due. A call that comes too early is harmless. */
void mu_member_tick(struct mu_member *m, mu_mono_t now);
/** When to call mu_member_tick(); a past time means now. MU_MONO_NEVER: after some event only. */
mu_mono_t mu_member_deadline(const struct mu_member *m);

#endif
