/*
 * What the files of the public state download share.
 *
 *     state.c       what is shared
 *     state_net.c   plain, TLS or peers; the key that signs
 *     state_load.c  loads
 *     state_copy.c  where what is loaded lies
 */
#ifndef MU_STATE_API_H
#define MU_STATE_API_H

#include <muster/state.h>

#include "api/api.h"
#include "service/state_donor.h"
#include "service/state_loader.h"
#include "service/state_peers.h"
#include "transport/mapped.h"
#include "transport/tls_env.h"

/* What connections are made of. */
struct mu_state_net {
    muster_runtime *rt;
    struct mu_env *env;
    const char *transport;
    struct mu_tls_env *tls;
    struct mu_state_peers *peers;
    struct mu_identity identity;
    bool has_identity;
};

/** `key` NULL: no peers. `peers` without a key: one is drawn. Waits for the loop. */
int mu_state_net_open(struct mu_state_net *net, muster_runtime *rt,
                      const struct muster_rpc_tls *tls, const char *key, bool peers,
                      struct mu_errmsg *msg);
/** Waits for the loop. Nothing may use it any more. */
void mu_state_net_close(struct mu_state_net *net);
/** On the loop: has a donor listen; `listen` NULL: nowhere. `ret_text` is what others dial. */
int mu_state_net_listen(struct mu_state_net *net, const char *listen, const char *advertise,
                        struct mu_state_donor_config *config, struct mu_state_donor **ret,
                        char *ret_text, size_t cap, struct mu_errmsg *msg);

struct muster_state {
    muster_runtime *rt;
    struct mu_state_net net;
    struct mu_state_donor *donor;
    char address[MU_STATE_ADDR_MAX + 1];
};

/* Memory that a state lies in; a share's owner. */
struct mu_state_home {
    struct mu_mapped *mapped; /* NULL: `memory` */
    uint64_t data_at;         /* in the file */
    void *memory;             /* NULL: the caller's own */
    void (*released)(void *context);
    void *context;
    struct mu_door *waiter; /* opened when nobody looks at it any more */
};

/** The owner's half of struct mu_state_share, in both directions. */
int mu_state_home_read(struct mu_state_share *share, uint64_t offset, void *buf, size_t len);
void mu_state_home_released(struct mu_state_share *share);

struct muster_state_copy {
    muster_runtime *rt;
    struct mu_state_share *share;
    struct mu_state_donor *donor;     /* that serves it still; NULL: none */
    struct mu_state_donor *own_donor; /* of its own, and what that stands on */
    struct mu_state_net net;
    struct muster_state_info info;
    struct muster_state_progress progress;
    char *names;     /* terminated */
    size_t *name_at; /* for each tensor */
};

/** Fills `info` from an entry. */
void mu_state_info_of(struct muster_state_info *ret, const struct mu_state_entry *entry);
/** The public form of a layout and back. */
int mu_state_layout_of(const struct muster_tensor *tensors, size_t count, struct mu_layout *ret,
                       uint8_t ***ret_data, struct mu_errmsg *msg);
/** A copy of a share that is whole; takes the reference. MUSTER_ENOMEM: it does not. */
int mu_state_copy_new(muster_runtime *rt, struct mu_state_share *share, muster_state_copy **ret);

/* Where a load is to lie. */
struct mu_state_target {
    struct mu_layout expected; /* in place */
    uint8_t **tensors;
    bool in_place;
    char *file; /* or into a file */
    char *part;
};

/** As in struct mu_state_loader_config. */
int mu_state_target_accept(struct mu_state_target *t, struct mu_state_plan *plan,
                           struct mu_errmsg *msg);
/** The file is whole: it gets its name. */
int mu_state_target_finish(struct mu_state_target *t, struct mu_state_share *share,
                           struct mu_errmsg *msg);
void mu_state_target_fini(struct mu_state_target *t);

/** Stops a donor of ours and frees it; waits for the loop. */
void mu_state_donor_end(muster_runtime *rt, struct mu_state_donor *donor);

#endif
