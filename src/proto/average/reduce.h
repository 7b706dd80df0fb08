/*
 * One all-reduce in a group, as hivemind's members do it: each cuts the same vector into the same
 * parts (codec/average/divide.h), sends every part to the member that owns it, and gets back by how
 * much the average differs from what it sent. A decision machine without arithmetic: values lie
 * with the driver, and the machine says which to send, add, divide and answer, and whom to ban.
 *
 * It has two sides, which know nothing of each other. As a SENDER, for each other member that owns
 * parts:
 *
 *     OPEN ──▶ SEND part 0 ... SEND part n-1 ──▶ results, one for each part in order ──▶ done
 *                    └── refused, closed, wrong, late: CUT; the parts without a result keep their
 *                        local values, and the round goes on
 *
 * As a REDUCER of the parts that we own, which come from all members, ourselves included:
 *
 *     waiting ──opened()──▶ open ──part() × n──▶ delivered ── answers ──▶ FINISH
 *        └── late, closed, wrong, twice: BAN; nobody waits for that member's further parts.
 *            What it had delivered stays in the sums, as it may have been answered already.
 *
 * A part is DONE when every member that is not banned has delivered it. Parts are done in order. A
 * member may be `window` parts ahead of the part that is waited for; then part() answers
 * MUSTER_EAGAIN, the driver keeps that message and reads no further, and READ says when to give it
 * again. So a reducer holds at most `window` sums, and for each member the values of `window` parts
 * and one message.
 *
 * Modes. A client owns no parts and is never opened to us as a reducer. An auxiliary member is one
 * with weight zero, on the wire too: it sends its parts, and they count nothing. If all weights of
 * a part are zero, DONE has weights 0: there is no average, and all are answered with zeros.
 * PowerSGD: two machines with two divisions, whose group ids have the suffixes MU_AVG_PHASE_P and
 * MU_AVG_PHASE_Q; the second begins when the first has ended, but its callers may come before that
 * and wait at the driver.
 *
 * Time. A member that has not opened its call sender_ms after our begin, or does not send what is
 * waited for within sender_ms, is banned; waiting because of the window does not count. A reducer
 * that does not answer within reducer_ms is cut. After total_ms the round ends whatever is missing.
 * So one hostile member costs the others at most sender_ms for each part that it owes, and
 * reducer_ms for each that it owns, and all hostile members together total_ms.
 *
 * The driver:
 *   1. pulls mu_reduce_next_event() after every input, until it is false, and does what it says;
 *   2. calls mu_reduce_tick() at mu_reduce_deadline();
 *   3. after OPEN: calls rpc_aggregate_part of that member; tells each message of the answer by
 *      result(), its end by cut_off();
 *   4. after SEND: sends that part, the first of a call with code and group id, with our weight,
 *      and says by sent() when the connection has taken it: only then comes the next. After a
 *      `last` part the requests end. Reading results does not wait for that;
 *   5. takes calls of members of the group: opened() with the first message, part() for every
 *      message with the first again, ended() when the requests end or the stream breaks. Values are
 *      decoded before (mu_avg_data_values()), and if that fails, spoiled() says so. A caller that
 *      is not in the group is refused with an error of the call; an unknown group id with
 *      BAD_GROUP_ID, after a step that looks for its group has had time to find it;
 *   6. after part() returned 0, adds the values to the sum of that part with that weight, and keeps
 *      them until DONE, after which it divides, answers each member in `included` that is not
 *      banned with its difference, in the encoding of the part that it answers, and frees the sum;
 *      for ourselves it applies the difference. After FINISH it ends the answers to that member. A
 *      client reads no answer before it has sent everything: its answers queue up at the driver.
 * Everything that a member can do wrong is told by BAN or CUT; result() and part() return errors
 * for nothing else.
 */
#ifndef MU_REDUCE_H
#define MU_REDUCE_H

#include "codec/average/divide.h"
#include "core/time.h"

struct mu_reduce_config {
    const struct mu_avg_division *division; /* borrowed until fini() */
    struct mu_span group_id;                /* copied; at most MU_AVG_GROUP_ID_MAX */
    uint32_t position;                      /* ours in the group */
    double weight;                          /* ours; finite, from 0 to MU_AVG_WEIGHT_MAX */
    uint32_t window;                        /* parts that are summed at a time. 8 */
    uint32_t sender_ms;                     /* for a part of a sender; 0: no limit. 15 s */
    uint32_t reducer_ms;                    /* for a result of a reducer; 0: no limit. 30 s */
    uint32_t total_ms;                      /* for all; 0: no limit. 60 s */
};

enum mu_reduce_event_type {
    MU_REDUCE_OPEN = 1, /* call that member */
    MU_REDUCE_SEND,     /* send it `part` */
    MU_REDUCE_CUT,      /* close that call; its parts from `part` on keep their local values */
    MU_REDUCE_OWN,      /* add our own values of `part` to its sum, with our weight */
    MU_REDUCE_DONE,     /* divide the sum of `part` by `weights`, and answer */
    MU_REDUCE_READ,     /* give part() the message of that member again */
    MU_REDUCE_BAN,      /* send `code` to that caller, if it has called, and end its stream */
    MU_REDUCE_FINISH,   /* all answers to that caller were given: end its stream in order */
    MU_REDUCE_END,      /* the round is over */
};

struct mu_reduce_event {
    enum mu_reduce_event_type type;
    uint32_t member;
    uint32_t part; /* a number of the division's parts */
    bool first;    /* SEND: of its call */
    bool last;     /* SEND: of its call */
    double weights;
    enum mu_avg_code code;
};

/* As a reducer that we send to. */
enum mu_reduce_out {
    MU_REDUCE_OUT_NONE = 0, /* it owns nothing, cannot be called, or is us */
    MU_REDUCE_OUT_NEW,
    MU_REDUCE_OUT_OPEN,
    MU_REDUCE_OUT_DONE, /* all results have come */
    MU_REDUCE_OUT_LOST,
};

/* As a sender to us. */
enum mu_reduce_in {
    MU_REDUCE_IN_NONE = 0, /* we own nothing */
    MU_REDUCE_IN_WAITING,
    MU_REDUCE_IN_OPEN,
    MU_REDUCE_IN_DELIVERED,
    MU_REDUCE_IN_BANNED,
};

struct mu_reduce_member {
    /* Read only. */
    enum mu_reduce_out out;
    enum mu_reduce_in in;
    uint32_t results;   /* parts of it that came back */
    uint32_t delivered; /* our parts that it has sent */
    const char *why;    /* it was cut or banned; NULL: it was not */
    bool weighed;       /* its weight is known */
    double weight;
    /* private */
    uint32_t sent;
    bool sending;
    bool tell_cut, tell_ban, tell_read, tell_finish;
    bool called;
    bool held;
    mu_mono_t out_since, in_since;
    enum mu_avg_code code;
};

struct mu_reduce {
    /* Read only. */
    struct mu_reduce_member members[MU_AVG_MEMBERS_MAX];
    bool included[MU_AVG_MEMBERS_MAX]; /* after DONE: who is in the sum */
    uint32_t current;                  /* our part that is waited for, counted from our first */
    /* private */
    struct mu_reduce_config config;
    uint8_t group_id[MU_AVG_GROUP_ID_MAX];
    size_t group_id_len;
    mu_mono_t until;
    mu_mono_t now;
    bool ended, told;
    int status;
    struct mu_errmsg text;
};

struct mu_reduce_config mu_reduce_config_defaults(void);
/** MUSTER_EINVAL: a position, weight, window or group id that cannot be. Takes no memory. */
int mu_reduce_init(struct mu_reduce *r, const struct mu_reduce_config *config, struct mu_now now);

/* --- in: as a sender -------------------------------------------------------------------------- */

/** The part of the last SEND to that member is on its way. */
void mu_reduce_sent(struct mu_reduce *r, struct mu_now now, uint32_t member);
/**
 * Takes a message of a reducer; `good` is whether its values were decoded and are finite. 1: apply
 * them to part `*ret_part`; 0: it was not a result, and the reducer is cut.
 */
int mu_reduce_result(struct mu_reduce *r, struct mu_now now, uint32_t member,
                     const struct mu_avg_data *data, bool good, uint32_t *ret_part);
/** The call to that member has ended or could not be made. */
void mu_reduce_cut_off(struct mu_reduce *r, struct mu_now now, uint32_t member, const char *why);

/* --- in: as a reducer ------------------------------------------------------------------------- */

/**
 * A member calls us; `first` is its first message, which part() takes then. False: the call is
 * refused, and `*ret_code` is the answer to it.
 */
bool mu_reduce_opened(struct mu_reduce *r, struct mu_now now, uint32_t member,
                      const struct mu_avg_data *first, enum mu_avg_code *ret_code);
/**
 * Takes a part, or `good` false: one whose values cannot be read. 1: add its values, with
 * data->weight, to the sum of part `*ret_part`; MUSTER_EAGAIN: keep the message until READ; 0: the
 * member is banned, and nothing is added.
 */
int mu_reduce_part(struct mu_reduce *r, struct mu_now now, uint32_t member,
                   const struct mu_avg_data *data, bool good, uint32_t *ret_part);
/** The requests of that member have ended. */
void mu_reduce_ended(struct mu_reduce *r, struct mu_now now, uint32_t member);

/* --- out -------------------------------------------------------------------------------------- */

void mu_reduce_tick(struct mu_reduce *r, struct mu_now now);
/** Ends the round: callers are told CANCELLED. */
void mu_reduce_cancel(struct mu_reduce *r, struct mu_now now);
bool mu_reduce_next_event(struct mu_reduce *r, struct mu_reduce_event *ret);
mu_mono_t mu_reduce_deadline(const struct mu_reduce *r);
/** After END: 0, even if members were cut or banned; MUSTER_ETIMEDOUT, MUSTER_ECANCELED. */
int mu_reduce_status(const struct mu_reduce *r);
const char *mu_reduce_text(const struct mu_reduce *r);
/** After END: how many parts, of all of the division, kept their local values. */
uint32_t mu_reduce_parts_local(const struct mu_reduce *r);

#endif
