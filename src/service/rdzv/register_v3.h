/*
 * The register of our own backend on etcd's v3 API. Its files share this header: register_v3.c (the
 * watched state; requests), register_v3_life.c (the node's lease, key and wishes),
 * register_v3_leader.c (which node leads, and its decisions). proto/rdzv/leader.h says how the
 * leader decides.
 *
 * Under the prefix P of a run (/muster/rdzv/RUN by default; a slash in RUN is %2F):
 *
 *     P/state        the state, changed by compare-and-set on its mod_revision only
 *     P/nodes/LEASE  a node's wish. It lives as long as the node's lease, whose number in hex is
 *                    its name, and only the node writes it
 *     P/store/...    the rounds' stores (service/store/etcd.h). The leader that completes round R
 *                    deletes the values (store/k/) of the rounds before R - 1; their queues stay
 *
 * A request is answered from what the watch on P/state has reported, so a read costs nothing. A
 * write is a wish: the node writes its own key, and the answer is the first state that has seen the
 * wish. Any node can close the run by a compare-and-set, without a lease.
 *
 * A node watches the node with the next older key (its elder), and becomes the leader when there is
 * no older one: so a death wakes one node, not all. The write that creates the node's key also
 * finds its elder; the watch may begin later, so that hundreds of nodes that come together do not
 * begin it together.
 *
 * Life. The lease is lost when etcd says so or when its time is up by our own clock, which is never
 * later. From then on the machine sees a state without itself, so that the round is over here
 * before the others can begin another.
 *
 * P/state has a lease of the leader's as well, for two hours: what is left of a run goes when its
 * last leader has been gone for so long.
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

/** Takes the client, and closes it with the register. MUSTER_ENOMEM, MUSTER_ELIMIT: the client is
 * still the caller's. */
int mu_rdzv_v3_register_new(struct mu_env *env, struct mu_etcd *etcd,
                            const struct mu_rdzv_v3_config *config,
                            const struct mu_rdzv_register_events *events,
                            struct mu_rdzv_register **ret_register);

/* --- for its files ---------------------------------------------------------------------------- */

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
    mu_mono_t answer_at; /* when an answer may be due */
    mu_mono_t watch_at;  /* when the watch on the state begins again */
    char store_key[MU_RDZV_V3_KEY_CAP];
    char state_key[MU_RDZV_V3_KEY_CAP];
    char nodes_key[MU_RDZV_V3_KEY_CAP];
    char nodes_end[MU_RDZV_V3_KEY_CAP];

    /* The state, as the watch reported it last. */
    struct mu_etcd_watch watch;
    bool watching;
    bool ready;
    bool told;  /* the watch has reported something since it began */
    bool known; /* the watch was ready at some time */
    bool fell;  /* our life has ended, and this was not reported yet */
    bool fresh; /* there is something that was not reported yet */
    int failed; /* the request found no memory, or is too long: reported on a later turn */
    bool present;
    bool corrupt;
    struct mu_errmsg corrupt_text;
    struct mu_rdzv_state state;
    struct mu_rdzv_state view; /* the state without ourselves */
    int64_t seen;
    int64_t mod;           /* 0: there is no state */
    int64_t told_revision; /* of the watch's last report, also of a deletion */
    int64_t state_lease;
    int64_t round_top;
    bool last_call; /* the round's last call has begun, and when we heard of it */
    int64_t last_call_round;
    mu_mono_t last_call_since;

    /* Our life (register_v3_life.c). */
    struct mu_etcd_lease lease;
    enum mu_rdzv_v3_lease lease_state;
    char own_key[MU_RDZV_V3_KEY_CAP + 32];
    int64_t born; /* 0: our key is absent, as far as we know */
    int64_t own_mod;
    enum mu_rdzv_wish wish;
    uint64_t wish_number;
    int64_t wish_revision; /* of the request's wish; 0: it is not written yet */
    struct mu_etcd_call put;
    int64_t put_lease;   /* the lease whose key it writes, */
    uint64_t put_number; /* and the number of the wish */
    struct mu_buf put_value;
    struct mu_buf put_body;

    /* A close (register_v3.c). */
    bool close_wanted;
    int64_t close_tried; /* the state that we tried to close; -1: no state */
    struct mu_etcd_call close_call;
    struct mu_buf close_value;
    struct mu_buf close_body;

    /* The leader (register_v3_leader.c). */
    struct mu_etcd_call find;
    int64_t find_born; /* the key whose elder we look for */
    struct mu_buf find_body;
    bool elder_known;   /* elder_key is that of find_born */
    mu_mono_t elder_at; /* when we begin to watch it */
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
    int64_t swap_wait; /* the revision that the state must reach before we change it again */
    mu_mono_t swapped_at;
    mu_mono_t client_at; /* when the leader has something to do */
    struct mu_etcd_lease run_lease;
    enum mu_rdzv_v3_lease run_lease_state;
};

/* register_v3.c */
void mu_rdzv_v3_arm(struct mu_rdzv_v3_register *c);
/** Answers the request with what is known, on a later turn; with `news` reports it even without a
 * request. */
void mu_rdzv_v3_tell(struct mu_rdzv_v3_register *c, bool news);
/** A call has ended while the register is closing: goes on with that. */
void mu_rdzv_v3_check_closed(struct mu_rdzv_v3_register *c);

/* register_v3_life.c */
/** Writes the wish, once there is a lease. */
void mu_rdzv_v3_wish(struct mu_rdzv_v3_register *c);
/** Gives the lease back; mu_rdzv_v3_check_closed() follows. False: there is no lease. */
bool mu_rdzv_v3_die(struct mu_rdzv_v3_register *c);

/* register_v3_leader.c */
void mu_rdzv_v3_leader_init(struct mu_rdzv_v3_register *c, uint64_t seed);
void mu_rdzv_v3_leader_fini(struct mu_rdzv_v3_register *c);
/** To be called when something has changed: our birth or death, the state, a timer. */
void mu_rdzv_v3_leader_run(struct mu_rdzv_v3_register *c);
/** Our key was just created; `kvs` are the two newest keys: ours and its elder. */
void mu_rdzv_v3_leader_born(struct mu_rdzv_v3_register *c, const struct mu_etcd_result *newest);
/** Gets a lease for the state, if there is none; mu_rdzv_v3_leader_run() follows when there is. */
bool mu_rdzv_v3_run_lease(struct mu_rdzv_v3_register *c);

#endif
