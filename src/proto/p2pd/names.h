/*
 * The protocols that a daemon's clients handle. A protocol is for unary calls, which go to clients,
 * or for streams, which go to addresses. Several may handle one protocol if all but the first say
 * so (`balanced`); they take turns.
 *
 * A name is there as long as it has a handler; behind its last one it is gone, until it is freed.
 *
 *     mu_p2pd_names_add(&names, ..., &name, &msg)      a name whose `owner` is NULL is new: serve
 *                                                      it to peers and set `owner`
 *     mu_p2pd_names_remove() mu_p2pd_names_drop()      one handler; all handlers of a client
 *     while ((name = mu_p2pd_names_gone(&names)))      serve it no more; `owner` is the driver's
 *         mu_p2pd_name_free(name)
 *
 * A decision machine without bytes or time.
 */
#ifndef MU_P2PD_NAMES_H
#define MU_P2PD_NAMES_H

#include <stdbool.h>

#include "core/err.h"
#include "core/list.h"
#include "core/map.h"
#include "core/span.h"

struct mu_p2pd_user;

/* A client or an address that handles a protocol. */
struct mu_p2pd_handler {
    struct mu_list link;
    struct mu_p2pd_user *user; /* unary calls; NULL: streams, and */
    size_t addr_len;
    uint8_t addr[]; /* a multiaddr */
};

struct mu_p2pd_name {
    void *owner; /* the driver's */
    bool unary;
    /* private from here */
    struct mu_p2pd_names *names;
    struct mu_map_node by_name;
    struct mu_list gone;
    struct mu_list handlers;
    struct mu_list *next; /* whose turn it is, of them */
    char text[];          /* terminated */
};

struct mu_p2pd_names {
    struct mu_map map;
    struct mu_list gone;
    size_t name_len_max;
    size_t unary_count; /* handlers of unary calls, now */
    size_t addr_count;  /* addresses, now */
};

void mu_p2pd_names_init(struct mu_p2pd_names *names, size_t name_len_max, uint64_t seed);
/** After all names were freed. */
void mu_p2pd_names_fini(struct mu_p2pd_names *names);

/** A client for unary calls, or (NULL) an address for streams. MUSTER_EINVAL, _EEXIST, _ENOMEM. */
int mu_p2pd_names_add(struct mu_p2pd_names *names, struct mu_span text, struct mu_p2pd_user *user,
                      struct mu_span addr, bool balanced, struct mu_p2pd_name **ret_name,
                      struct mu_errmsg *reterr_msg);
/** Takes back what was added just now: peers cannot be told of it, for `err`, which it returns. */
int mu_p2pd_names_refuse(struct mu_p2pd_name *name, int err, struct mu_errmsg *reterr_msg);
/** MUSTER_ENOENT. */
int mu_p2pd_names_remove(struct mu_p2pd_names *names, struct mu_span text,
                         struct mu_p2pd_user *user, struct mu_span addr,
                         struct mu_errmsg *reterr_msg);
/** The client is gone; NULL: all are, and all addresses. */
void mu_p2pd_names_drop(struct mu_p2pd_names *names, const struct mu_p2pd_user *user);
/** The handler whose turn it is; NULL: there is no such protocol. */
struct mu_p2pd_handler *mu_p2pd_names_next(struct mu_p2pd_names *names, struct mu_span text);

/** A name that is gone and not freed yet, or NULL. */
struct mu_p2pd_name *mu_p2pd_names_gone(const struct mu_p2pd_names *names);
void mu_p2pd_name_free(struct mu_p2pd_name *name);

#endif
