/*
 * The guest book: the connections that have not shown a credential yet, by address. Strangers can
 * be many, so they are bounded, in all and for one address; past a bound a guest has to go, and
 * never one of an address that has few. This is only the book: the caller decides what becomes of a
 * guest, and there is no time in it.
 *
 *     mu_guests_add(&book, &guest, ip)     it is there, and silent
 *     mu_guests_over(&book, &guest)        the guest that has to go for it; repeatedly
 *     mu_guests_move(&book, &guest, stage)
 *     mu_guests_next(&book)                the guest whose handshake begins: one of each address
 *     mu_guests_surplus(&book)             the guest that has to go for it
 *     mu_guests_leave(&book, &guest)       it is known now, or gone
 */
#ifndef MU_LOCK_ENV_GUESTS_H
#define MU_LOCK_ENV_GUESTS_H

#include "codec/text/cidr.h"
#include "core/list.h"
#include "core/map.h"

struct mu_lock_limits {
    size_t guests;             /* in all */
    size_t of_address;         /* of one address, or one /64 of IPv6 */
    size_t shaking;            /* TLS handshakes under way, in all */
    size_t shaking_of_address; /* and of one address; its other guests wait */
};

enum mu_guest_stage {
    MU_GUEST_NONE = 0,
    MU_GUEST_SILENT,  /* it has said nothing */
    MU_GUEST_BEGUN,   /* a part of a hello is there */
    MU_GUEST_WAITING, /* all of it is */
    MU_GUEST_SHAKING, /* TLS is under way */
};

/* All guests from one address. */
struct mu_guest_house;

/* In the caller's memory; all zero when it is in no book. */
struct mu_guest {
    struct mu_guest_house *house;
    struct mu_list link; /* of the house; while TLS is under way, of the book */
    enum mu_guest_stage stage;
};

#define MU_GUESTS_CLASSES 20

struct mu_guests {
    struct mu_lock_limits limits;
    struct mu_map houses;
    struct mu_guest_house *near;
    struct mu_list classes[MU_GUESTS_CLASSES]; /* houses by the logarithm of their guests */
    struct mu_list turns;                      /* houses in which a guest waits and may go on */
    struct mu_list shaking;                    /* guests, oldest first */
    size_t count;
    size_t shaking_count;
};

/** MUSTER_ENOMEM. */
int mu_guests_init(struct mu_guests *book, const struct mu_lock_limits *limits, uint64_t seed);
/** Only when the book is empty. */
void mu_guests_fini(struct mu_guests *book);

/** `ip` NULL: a process of this host, which counts towards no bound and never has to go.
 * MUSTER_ENOMEM: it is in no book. */
int mu_guests_add(struct mu_guests *book, struct mu_guest *guest, const uint8_t *ip);
/**
 * After an addition: the guest that has to go, or NULL. Past the bound of an address, one of that
 * address: the one that has been silent, or in the middle of its hello, for longest; if all wait,
 * the one that has waited least. Past the bound of all, likewise one of an address that has about
 * as many as any.
 */
struct mu_guest *mu_guests_over(struct mu_guests *book, struct mu_guest *guest);
/** To BEGUN or to WAITING. */
void mu_guests_move(struct mu_guests *book, struct mu_guest *guest, enum mu_guest_stage stage);
/** The guest that has waited longest, of the address whose turn it is, or NULL. It is SHAKING
 * then. */
struct mu_guest *mu_guests_next(struct mu_guests *book);
/** The oldest guest with a handshake under way if these are too many, or NULL. */
struct mu_guest *mu_guests_surplus(const struct mu_guests *book);
/** Harmless for a guest that is in no book. */
void mu_guests_leave(struct mu_guests *book, struct mu_guest *guest);

#endif
