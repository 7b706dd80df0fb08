/*
 * A member of a native run (proto/rdzv/member.h) with a driver that does what it is told, and a
 * model of what its user may be told when. Every event is checked: the two agree on what the user
 * does, every join, leave and close ends once, what a node has begun is fenced in time, and a node
 * that was cut off is in no round before it is assigned one.
 */
#ifndef MEMBER_WORLD_H
#define MEMBER_WORLD_H

#include <string.h>

#include "core/assert.h"
#include "proto/rdzv/member.h"

#define MEMBER_KEPT_MS UINT64_C(3000)
#define MEMBER_JOIN_MS UINT64_C(4000)
#define MEMBER_ADDRESS "server:29400"

struct member_world {
    struct mu_member m;
    mu_mono_t now;
    bool stays; /* what the user answers when it is cut off: nothing runs */

    /* What the user was told, and waits for. */
    enum mu_member_user user;
    bool closing;
    bool closed;
    bool cut; /* it was cut off, and has been assigned nothing since */

    /* What the driver has sent. */
    bool call;
    bool close_call;
    mu_mono_t join_said;
    bool entered;       /* the call is a member's */
    mu_mono_t told_cut; /* the moment since which it was said to be cut off last */
    uint64_t round;     /* that was assigned last */
    bool round_over;    /* and has ended since */
    unsigned told[MU_MEMBER_CLOSE_FAILED + 1];
};

static inline void member_world_init(struct member_world *w, uint64_t join_timeout_ms)
{
    memset(w, 0, sizeof(*w));
    mu_member_init(&w->m, &(struct mu_member_config){.address = MEMBER_ADDRESS,
                                                     .join_timeout_ms = join_timeout_ms,
                                                     .restarts_max = 3});
    w->now = (mu_mono_t){MU_NS_PER_S};
    w->told_cut = MU_MONO_NEVER;
    w->m.link = (struct mu_member_link){.kept_ms = MEMBER_KEPT_MS, .confirmed = w->now};
}

/* The last moment at which the server is known to have counted on us. */
static inline mu_mono_t member_heard(const struct member_world *w)
{
    mu_mono_t heard = w->m.link.confirmed;

    return w->m.link.hosting ? w->now : mu_mono_before(heard, w->join_said) ? w->join_said : heard;
}

/* So much of the time is over since. */
static inline bool member_is_over(const struct member_world *w, uint64_t thirtieths)
{
    return w->entered && mu_mono_since(member_heard(w), w->now) >=
                             MEMBER_KEPT_MS * MU_NS_PER_MS / 30 * thirtieths;
}

static inline void member_world_act(struct member_world *w, const struct mu_member_action *a)
{
    enum mu_member_user was = w->user;

    w->told[a->type]++;
    switch (a->type) {
    case MU_MEMBER_CANCEL:
        MU_ASSERT(w->call);
        w->call = w->entered = false;
        break;
    case MU_MEMBER_ASSIGNED:
        MU_ASSERT(was == MU_MEMBER_JOINING && w->call && !w->closed);
        MU_ASSERT(!member_is_over(w, 22) && !w->round_over);
        w->user = MU_MEMBER_IN;
        w->cut = false;
        break;
    case MU_MEMBER_ENDED:
        MU_ASSERT(was == MU_MEMBER_IN && a->text.text[0] != '\0');
        w->user = MU_MEMBER_BETWEEN;
        break;
    case MU_MEMBER_WAITING:
        MU_ASSERT(was == MU_MEMBER_IN);
        break;
    case MU_MEMBER_CUT_OFF:
        MU_ASSERT(!w->m.link.hosting || !w->entered);
        MU_ASSERT(was != MU_MEMBER_LEAVING && was != MU_MEMBER_OUT);
        w->told_cut = w->m.cut_off;
        if (!w->stays) {
            mu_member_cut(&w->m, w->now);
            w->cut = true;
        }
        break;
    case MU_MEMBER_FAILED:
        MU_ASSERT(was != MU_MEMBER_OUT && was != MU_MEMBER_LEAVING);
        MU_ASSERT(a->status != 0 && a->text.text[0] != '\0');
        w->user = MU_MEMBER_OUT;
        break;
    case MU_MEMBER_LEFT:
        MU_ASSERT(was == MU_MEMBER_LEAVING);
        w->user = MU_MEMBER_OUT;
        break;
    case MU_MEMBER_CLOSED:
        MU_ASSERT(!w->closed && was != MU_MEMBER_JOINING && was != MU_MEMBER_LEAVING);
        w->closed = true;
        w->closing = false;
        w->user = MU_MEMBER_OUT;
        break;
    case MU_MEMBER_CLOSE_FAILED:
        MU_ASSERT(w->closing && a->status != 0 && a->text.text[0] != '\0');
        w->closing = w->close_call = false;
        break;
    }
}

static inline void member_world_check(const struct member_world *w)
{
    const struct mu_member *m = &w->m;

    MU_ASSERT(m->user == w->user && w->call == (m->call != MU_MEMBER_CALL_NONE));
    MU_ASSERT(w->closed == (m->run == MU_MEMBER_RUN_CLOSED));
    MU_ASSERT(w->closing == (m->run == MU_MEMBER_RUN_WANTED || m->run == MU_MEMBER_RUN_ASKED));
    MU_ASSERT(w->close_call == (m->run == MU_MEMBER_RUN_ASKED) || w->closed);
    switch (w->user) {
    case MU_MEMBER_OUT:
        MU_ASSERT(!w->call && m->held == MU_MEMBER_HELD_NONE);
        MU_ASSERT(m->fence_at.ns == MU_MONO_NEVER.ns);
        break;
    case MU_MEMBER_JOINING:
        MU_ASSERT(m->call != MU_MEMBER_CALL_ENDING);
        break;
    case MU_MEMBER_IN:
        MU_ASSERT(m->call == MU_MEMBER_CALL_ENTERED || m->call == MU_MEMBER_CALL_SPARE);
        MU_ASSERT(m->held == MU_MEMBER_HELD_NONE && !w->cut);
        break;
    case MU_MEMBER_BETWEEN:
        MU_ASSERT(m->call != MU_MEMBER_CALL_ENDING);
        break;
    case MU_MEMBER_LEAVING:
        break;
    }
    MU_ASSERT(m->say == 0 || w->call);
    MU_ASSERT(m->held == MU_MEMBER_HELD_NONE || w->call);
    MU_ASSERT(!w->closed || (m->close_at.ns == MU_MONO_NEVER.ns && !w->call));
}

/* Does what the machine wants done. */
static inline void member_world_run(struct member_world *w)
{
    struct mu_member_action action;

    while (mu_member_next(&w->m, &action)) {
        member_world_act(w, &action);
    }
    member_world_check(w);
}

/* --- events ----------------------------------------------------------------------------------- */

static inline void member_world_join(struct member_world *w, bool blameless)
{
    bool taken = w->user != MU_MEMBER_JOINING && w->user != MU_MEMBER_LEAVING;
    bool needed = mu_member_join(&w->m, w->now, blameless);

    MU_ASSERT(needed == (taken && !w->closed));
    w->user = taken ? MU_MEMBER_JOINING : w->user;
    member_world_run(w);
}

static inline void member_world_leave(struct member_world *w)
{
    mu_member_leave(&w->m, w->now);
    w->user = MU_MEMBER_LEAVING;
    member_world_run(w);
}

static inline void member_world_close(struct member_world *w)
{
    bool needed = mu_member_close(&w->m, w->now);

    MU_ASSERT(needed == (!w->closed && !w->closing));
    w->closing = w->closing || needed;
    member_world_run(w);
}

static inline void member_world_notice(struct member_world *w, const struct mu_rdzv_notice *notice)
{
    w->entered = w->entered || (w->call && w->user != MU_MEMBER_LEAVING);
    mu_member_notice(&w->m, w->now, notice);
    member_world_run(w);
}

/* The call is over at the driver before the machine hears of it. */
static inline void member_world_answer(struct member_world *w, int status)
{
    w->call = w->entered = false;
    mu_member_answered(&w->m, w->now, status, "so it says");
    member_world_run(w);
}

static inline void member_world_answer_close(struct member_world *w, int status)
{
    w->close_call = false;
    mu_member_close_answered(&w->m, status, "so it says");
    member_world_run(w);
}

static inline void member_world_lose(struct member_world *w, bool for_good)
{
    w->call = w->close_call = w->entered = false;
    if (for_good) {
        mu_member_unreached(&w->m, w->now, MUSTER_ERDZV_CONN, "nobody is there");
    } else {
        mu_member_lost(&w->m, w->now, "the session is gone");
    }
    member_world_run(w);
}

static inline void member_world_break(struct member_world *w)
{
    mu_member_broken(&w->m, MUSTER_ERDZV_STATE, "nonsense");
    member_world_run(w);
}

/* The driver says what there is to say; `err` is what comes of the first. */
static inline void member_world_say(struct member_world *w, int err)
{
    enum mu_member_word word;

    for (unsigned i = 0; mu_member_say(&w->m, &word); i++) {
        MU_ASSERT(i < 4);
        MU_ASSERT((word == MU_MEMBER_SAY || word == MU_MEMBER_END_CALL) == w->call ||
                  word == MU_MEMBER_CALL_CLOSE);
        mu_member_said(&w->m, w->now, word, err);
        if (err != 0) {
            break;
        }
        if (word == MU_MEMBER_CALL_JOIN) {
            MU_ASSERT(w->user == MU_MEMBER_JOINING && !w->closed);
            w->call = true;
            w->join_said = w->now;
        } else if (word == MU_MEMBER_CALL_CLOSE) {
            MU_ASSERT(w->closing && !w->close_call);
            w->close_call = true;
        } else if (word == MU_MEMBER_END_CALL) {
            MU_ASSERT(w->user == MU_MEMBER_LEAVING);
            w->entered = false;
        }
    }
    member_world_check(w);
}

/* The server has answered what we said at `said`. */
static inline void member_world_confirm(struct member_world *w, mu_mono_t said)
{
    if (mu_mono_before(w->m.link.confirmed, said)) {
        w->m.link.confirmed = said;
    }
}

static inline void member_world_tick(struct member_world *w)
{
    bool member = w->entered && w->user != MU_MEMBER_LEAVING;

    mu_member_tick(&w->m, w->now);
    member_world_run(w);
    MU_ASSERT(mu_mono_before(w->now, mu_member_deadline(&w->m)) ||
              w->m.held == MU_MEMBER_HELD_DUE); /* the fence has just found us in touch */
    /* In the end nothing runs that others do not count on. */
    MU_ASSERT(!member || !w->entered || !member_is_over(w, 27) || w->user == MU_MEMBER_OUT ||
              w->told_cut.ns == member_heard(w).ns);
}

/* Goes on to `until`, from one deadline to the next, as a driver that is never late. */
static inline void member_world_sleep(struct member_world *w, mu_mono_t until)
{
    for (unsigned i = 0; !mu_mono_before(until, mu_member_deadline(&w->m)); i++) {
        mu_mono_t at = mu_member_deadline(&w->m);

        MU_ASSERT(i < 10000);
        w->now = mu_mono_before(w->now, at) ? at : w->now;
        member_world_tick(w);
    }
    w->now = until;
}

/* --- events by number ------------------------------------------------------------------------- */

static inline void member_world_assign(struct member_world *w, uint64_t round)
{
    w->round = round;
    w->round_over = false;
    member_world_notice(w, &(struct mu_rdzv_notice){.kind = MU_RDZV_NOTICE_ASSIGNED,
                                                    .incarnation = 7,
                                                    .round = round,
                                                    .world = 2,
                                                    .restarts_left = 2});
}

static inline void member_world_end(struct member_world *w, uint32_t reason)
{
    w->round_over = true;
    member_world_notice(w, &(struct mu_rdzv_notice){.kind = MU_RDZV_NOTICE_ENDED,
                                                    .incarnation = 7,
                                                    .round = w->round,
                                                    .reason = reason % 5,
                                                    .has_who = true,
                                                    .who = MU_SPAN_LIT("other")});
}

static inline void member_world_enter(struct member_world *w, enum mu_rdzv_place place)
{
    member_world_notice(w, &(struct mu_rdzv_notice){
                               .kind = MU_RDZV_NOTICE_ENTERED, .incarnation = 7, .place = place});
}

/* What the user wants, and what the driver says of it. */
static inline void member_world_wish(struct member_world *w, unsigned kind, uint32_t number)
{
    switch (kind) {
    case 0:
    case 1:
        member_world_join(w, number % 2 == 1);
        break;
    case 2:
        member_world_leave(w);
        break;
    case 3:
        member_world_close(w);
        break;
    case 4:
    case 5:
        member_world_say(w, 0);
        break;
    default:
        member_world_say(w, number % 2 == 0 ? MUSTER_ENOMEM : MUSTER_EAGAIN);
        break;
    }
}

/* What the server says. */
static inline void member_world_hear(struct member_world *w, unsigned kind, uint32_t number)
{
    static const int answers[] = {0,
                                  MUSTER_ERDZV_CLOSED,
                                  MUSTER_ERDZV_TIMEOUT,
                                  MUSTER_ESESSION,
                                  MUSTER_ENOMETHOD,
                                  MUSTER_ERDZV_LOST,
                                  MUSTER_ERDZV_GRACEFUL};

    switch (kind) {
    case 7:
    case 8:
        member_world_enter(w, kind == 7 ? MU_RDZV_PLACE_GATHERING : MU_RDZV_PLACE_SPARE);
        break;
    case 9:
    case 10:
    case 11:
        member_world_assign(w, w->round + (kind == 11 ? 0 : 1));
        break;
    case 12:
        member_world_end(w, number);
        break;
    case 13:
        member_world_notice(w, &(struct mu_rdzv_notice){.kind = MU_RDZV_NOTICE_WAITERS});
        break;
    case 14:
        member_world_answer(w, answers[number % 7]);
        break;
    default:
        member_world_answer_close(w, kind == 16        ? MUSTER_ETIMEDOUT
                                     : number % 2 == 0 ? 0
                                                       : MUSTER_ESESSION);
        break;
    }
}

#define MEMBER_EVENTS 26

/* One of the kinds of events, with a number that some of them use. */
static inline void member_world_event(struct member_world *w, unsigned kind, uint32_t number)
{
    kind %= MEMBER_EVENTS;
    switch (kind) {
    case 17:
    case 18:
        member_world_lose(w, kind == 18);
        break;
    case 19:
        member_world_break(w);
        break;
    case 20:
        member_world_confirm(w, w->now);
        break;
    case 21:
        w->m.link.linked = !w->m.link.linked;
        break;
    case 22:
        member_world_sleep(w, mu_mono_add_ms(w->now, number % 8192));
        break;
    case 23: /* It was stopped, and its timer comes late. */
        w->now = mu_mono_add_ms(w->now, number % 65536);
        member_world_tick(w);
        break;
    case 24:
        w->stays = number % 2 == 1;
        break;
    case 25:
        member_world_tick(w);
        break;
    default:
        (kind < 7 ? member_world_wish : member_world_hear)(w, kind, number);
        break;
    }
}

/* Nobody answers any more: what the user waits for ends all the same. */
static inline void member_world_finish(struct member_world *w)
{
    bool bounded = w->m.config.join_timeout_ms != 0;

    w->m.link.linked = false;
    member_world_lose(w, false);
    member_world_sleep(w, mu_mono_add_ms(w->now, 2 * MEMBER_JOIN_MS + MU_MEMBER_CLOSE_MS + 5000));
    MU_ASSERT(w->user != MU_MEMBER_LEAVING && !w->closing);
    MU_ASSERT(w->user != MU_MEMBER_JOINING || !bounded);
}

#endif
