/*
 * multistream-select 1.0: two sides agree by name on the protocol of a stream or a connection. A
 * stream machine for either side.
 *
 *     initiator                                     responder
 *     header, name                  ---->
 *                                   <----           header, the same name      agreed
 *                                   <----           header, na                 refused
 *     the next name                 ---->                                      and so on
 *
 *     mu_mss_init(&m, role)
 *     mu_mss_propose(&m, name)              initiator: in turn, the first at once
 *     mu_mss_recv(&m, bytes, &used)         stops behind what makes an event
 *     while (mu_mss_next_event(&m, &e))     PROPOSED (answer it), AGREED, REFUSED
 *     mu_mss_accept(&m) mu_mss_refuse(&m)   responder: to the name that was proposed
 *     mu_mss_output() mu_mss_sent()
 *
 * Nothing is taken after the message that settles it: what follows belongs to the protocol that was
 * agreed on. An initiator with one name left need not wait: what it sends behind its proposal
 * arrives if the proposal is accepted (mu_mss_may_send()), and a responder finds it right behind
 * the name. An answer to an earlier message goes out before anything else.
 *
 * A question for all names (`ls`) gets `na`, as an unknown name does.
 */
#ifndef MU_MSS_H
#define MU_MSS_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

#define MU_MSS_MESSAGE_MAX   1024 /* a name and its line end */
#define MU_MSS_NAME_MAX      (MU_MSS_MESSAGE_MAX - 1)
#define MU_MSS_PROPOSALS_MAX 64 /* proposals that a responder accepts and an initiator makes */

enum mu_mss_role {
    MU_MSS_INITIATOR = 1,
    MU_MSS_RESPONDER,
};

enum mu_mss_event_type {
    MU_MSS_EV_PROPOSED = 1, /* responder: `name`; accept or refuse it */
    MU_MSS_EV_AGREED,       /* initiator: on `name` */
    MU_MSS_EV_REFUSED,      /* initiator: every name was refused */
};

struct mu_mss_event {
    enum mu_mss_event_type type;
    struct mu_span name; /* lent until the next call that is not const */
};

/*
 *     WANT_HEADER ---> WANT_ANSWER ----------> AGREED, REFUSED      initiator
 *                 ---> WANT_NAME <---> ASKED ---> AGREED            responder
 */
enum mu_mss_state {
    MU_MSS_WANT_HEADER = 1,
    MU_MSS_WANT_ANSWER,
    MU_MSS_WANT_NAME,
    MU_MSS_ASKED,
    MU_MSS_AGREED,
    MU_MSS_REFUSED,
};

struct mu_mss {
    enum mu_mss_role role;
    enum mu_mss_state state;
    int poison;
    struct mu_errmsg why;
    enum mu_mss_event_type event; /* the event to tell; 0: no event */
    uint32_t proposals;
    struct mu_buf in;    /* an incomplete message; ASKED, AGREED: the one with the name */
    struct mu_buf names; /* initiator: messages, from the one that is proposed on */
    struct mu_buf out;
};

/** Takes no memory. */
void mu_mss_init(struct mu_mss *m, enum mu_mss_role role);
void mu_mss_fini(struct mu_mss *m);

/** Proposes a name. MUSTER_EINVAL: no name, or the negotiation is over; MUSTER_ELIMIT: too many;
 * MUSTER_ENOMEM. */
int mu_mss_propose(struct mu_mss *m, struct mu_span name);

/**
 * Takes bytes up to the end of the message that makes an event or settles the negotiation; takes
 * nothing while a proposal waits for its answer. Output that was not sent does not matter.
 * MUSTER_EPROTO, and MUSTER_ELIMIT for a message that is too long or one proposal too many, poison
 * it; MUSTER_ENOMEM does not.
 */
int mu_mss_recv(struct mu_mss *m, struct mu_span in, size_t *ret_used);
bool mu_mss_next_event(struct mu_mss *m, struct mu_mss_event *ret_event);
/** Only after PROPOSED. MUSTER_ENOMEM: try again. */
int mu_mss_accept(struct mu_mss *m);
int mu_mss_refuse(struct mu_mss *m);

/** Returns whether data may be sent after the output. */
bool mu_mss_may_send(const struct mu_mss *m);
/** Returns the name that was agreed on or is proposed; else empty. Lent as long as the event's. */
struct mu_span mu_mss_name(const struct mu_mss *m);

struct mu_span mu_mss_output(const struct mu_mss *m);
void mu_mss_sent(struct mu_mss *m, size_t len);
const char *mu_mss_errmsg(const struct mu_mss *m);

#endif
