/*
 * The register of our own backend on etcd's v3 API. What its files share: register_v3.c (the state,
 * as it is watched; requests), register_v3_life.c (the node's lease, key and wishes),
 * register_v3_leader.c (who decides, and deciding). proto/rdzv/leader.h says how it is decided.
 *
 * Under the prefix P of a run (/muster/rdzv/RUN by default; a slash in RUN is %2F):
 *
 *     P/state        the state, changed by compare-and-set on its mod_revision only
 *     P/nodes/LEASE  a node's wish. It is there for as long as the node's lease, whose number in
 *                    hex is its name, and only the node writes it
 *     P/store/...    the rounds' stores (service/store/etcd.h). Whoever completes a round clears
 *                    those before the last one
 *
 * A request is answered from what the watch on P/state has told, so a read costs nothing. A write
 * is a wish: the node writes its own key, and is answered with the state that has seen the wish.
 * Closing the run is a compare-and-set by whoever wants it, and needs no lease.
 *
 * A node looks after the one whose key is the next older one, and becomes the leader when there is
 * none: so a death wakes one node, not all. Who that is the write that creates its key tells; that
 * it is watched has time, and hundreds that come together do not do it together.
 *
 * Life. The lease is lost when etcd says so or when its time is up by our own clock, which is never
 * later. From then on the machine is shown a state without itself, so that the round is over here
 * before anybody else can begin another.
 *
 * P/state has a lease as well, of the leader's, for two hours: what is left of a run goes when its
 * last leader is gone for so long.
 */
#ifndef MU_RDZV_REGISTER_V3_H
#define MU_RDZV_REGISTER_V3_H

#include <inttypes.h>

#include "core/buf.h"
#include "core/map.h"
#include "proto/rdzv/leader.h"
#include "service/etcd/etcd.h"
#include "service/rdzv/register.h"

#define MU_RDZV_V3_ROUND      "%012" PRId64 /* a round in the prefix of its store */
#define MU_RDZV_V3_PREFIX_CAP 2048
#define MU_RDZV_V3_KEY_CAP    (MU_RDZV_V3_PREFIX_CAP + 32)

struct mu_rdzv_v3_config {
    const char *prefix; /* of the run; copied */
    struct mu_rdzv_settings settings;
    struct mu_rdzv_node node; /* copied */
    int64_t lease_ttl_s;
};

/** Takes the client: closed with the register. MUSTER_ENOMEM, MUSTER_ELIMIT: the client is still
 * the caller's. */
int mu_rdzv_v3_cell_new(struct mu_env *env, struct mu_etcd *etcd,
                        const struct mu_rdzv_v3_config *config,
                        const struct mu_rdzv_register_events *events,
                        struct mu_rdzv_register **ret_register);

/* --- what its files share --------------------------------------------------------------------- */

enum mu_rdzv_v3_lease {
    MU_RDZV_V3_NO_LEASE = 0,
    MU_RDZV_V3_STARTING,
    MU_RDZV_V3_KEPT,
    MU_RDZV_V3_STOPPING,
};

/* A node's key, as the leader knows it. */
struct mu_rdzv_v3_entry {
    struct mu_map_node link;
    struct mu_rdzv_entry entry;
    size_t key_len;
    uint8_t key[];
};

struct mu_rdzv_v3_register {
    struct mu_rdzv_register base;
    struct mu_etcd *etcd;
    struct mu_rdzv_settings settings;
    struct mu_rdzv_node node; /* its address is owned */
    int64_t lease_ttl_s;
    bool found;
    bool closing;
    bool leaving; /* the client is being closed */
    struct mu_timer timer;
    mu_mono_t answer_at; /* something may be told on this turn */
    mu_mono_t watch_at;  /* the watch on the state is begun again */
    char store_key[MU_RDZV_V3_KEY_CAP];
    char state_key[MU_RDZV_V3_KEY_CAP];
    char nodes_key[MU_RDZV_V3_KEY_CAP];
    char nodes_end[MU_RDZV_V3_KEY_CAP];

    /* The state, as it was told last. */
    struct mu_etcd_watch watch;
    bool watching;
    bool ready;
    bool told;  /* something, since the watch was begun */
    bool known; /* it was ready at some time */
    bool fell;  /* our life has ended, and nobody was told */
    bool fresh; /* there is something that nobody was told */
    int failed; /* the request found no memory, or is too long: told on a later turn */
    bool present;
    bool corrupt;
    struct mu_errmsg corrupt_text;
    struct mu_rdzv_state state;
    struct mu_rdzv_state view; /* without ourselves */
    int64_t seen;
    int64_t mod;           /* 0: there is none */
    int64_t told_revision; /* of what the watch told last, a deletion too */
    int64_t state_lease;
    int64_t round_top;
    bool last_call; /* of that round it has begun, and when we heard of it */
    int64_t last_call_round;
    mu_mono_t last_call_since;

    /* Our life (register_v3_life.c). */
    struct mu_etcd_lease lease;
    enum mu_rdzv_v3_lease lease_state;
    char own_key[MU_RDZV_V3_KEY_CAP + 32];
    int64_t born; /* 0: our key is not there, as far as we know */
    int64_t own_mod;
    enum mu_rdzv_wish wish;
    uint64_t wish_number;
    int64_t wish_revision; /* of the wish that the request is; 0: it is not written yet */
    struct mu_etcd_call put;
    int64_t put_lease;   /* whose key it writes, */
    uint64_t put_number; /* and which wish */
    struct mu_buf put_value;
    struct mu_buf put_body;

    /* A close (register_v3.c). */
    bool close_wanted;
    int64_t close_tried; /* on which state; -1: on none */
    struct mu_etcd_call close_call;
    struct mu_buf close_value;
    struct mu_buf close_body;

    /* The leader (register_v3_leader.c). */
    struct mu_etcd_call find;
    int64_t find_born; /* whose elder is looked for */
    struct mu_buf find_body;
    bool elder_known;   /* elder_key is that of find_born */
    mu_mono_t elder_at; /* when to begin to watch it */
    struct mu_etcd_watch elder;
    bool elder_on;
    bool elder_there;
    char elder_key[MU_RDZV_V3_KEY_CAP + 32];
    bool leader;
    struct mu_etcd_watch nodes;
    bool nodes_on;
    bool nodes_ready;
    struct mu_map entries;
    struct mu_rdzv_state next;
    struct mu_etcd_call swap;
    struct mu_buf swap_value;
    struct mu_buf swap_body;
    int64_t swap_wait; /* the state must have come so far before it is changed again */
    mu_mono_t swapped_at;
    mu_mono_t client_at; /* something of the leader's is due */
    struct mu_etcd_lease run_lease;
    enum mu_rdzv_v3_lease run_lease_state;
};

/* register_v3.c */
void mu_rdzv_v3_arm(struct mu_rdzv_v3_register *c);
/** Tells what is known to whoever waits for it, on a later turn; `news` also if nobody does. */
void mu_rdzv_v3_tell(struct mu_rdzv_v3_register *c, bool news);
/** A call has ended, and the register is closing: goes on with that. */
void mu_rdzv_v3_check_closed(struct mu_rdzv_v3_register *c);

/* register_v3_life.c */
/** Writes the wish, once there is a lease. */
void mu_rdzv_v3_wish(struct mu_rdzv_v3_register *c);
/** Gives the lease back; mu_rdzv_v3_check_closed() follows. False: there is none. */
bool mu_rdzv_v3_die(struct mu_rdzv_v3_register *c);

/* register_v3_leader.c */
void mu_rdzv_v3_chair_init(struct mu_rdzv_v3_register *c, uint64_t seed);
void mu_rdzv_v3_chair_fini(struct mu_rdzv_v3_register *c);
/** Looks after all that is not as it should be: our birth or death, the state, a timer. */
void mu_rdzv_v3_chair_run(struct mu_rdzv_v3_register *c);
/** Our key was just created, and these are the two newest keys there are: it and its elder. */
void mu_rdzv_v3_chair_born(struct mu_rdzv_v3_register *c, const struct mu_etcd_result *newest);
/** A lease for the state, if there is none: mu_rdzv_v3_chair_run() follows when there is. */
bool mu_rdzv_v3_run_lease(struct mu_rdzv_v3_register *c);

#endif
