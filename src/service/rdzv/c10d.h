/*
 * What the files of the backends c10d, etcd-v2 and etcd-v3 share: one handler for the machine of
 * proto/rdzv/node.h, with any register (service/rdzv/register.h) for its state. See
 * service/rdzv/rdzv.h for what it does.
 */
#ifndef MU_RDZV_C10D_H
#define MU_RDZV_C10D_H

#include "proto/rdzv/node.h"
#include "core/url.h"
#include "service/etcd/etcd.h"
#include "service/rdzv/rdzv.h"
#include "service/rdzv/register.h"
#include "service/store/store.h"

#define MU_RDZV_C10D_PATH_CAP 1024
/* Enough for a path or the parameters of a cluster with every byte escaped, and the longest
 * prefix. */
#define MU_RDZV_C10D_FILE_CAP 512
#define MU_RDZV_C10D_URL_CAP                                                                       \
    (3 * (MU_URL_MAX + 3 * MU_RDZV_C10D_FILE_CAP) + 12 * MU_RDZV_RUN_ID_MAX + 256)

enum mu_rdzv_c10d_place {
    MU_RDZV_C10D_STORE = 0, /* a key of a store, at an endpoint or in a file */
    MU_RDZV_C10D_ETCD_V2,
    MU_RDZV_C10D_ETCD_V3,
};

struct mu_rdzv_c10d_config {
    enum mu_rdzv_c10d_place place;
    struct mu_rdzv_settings settings;
    enum mu_rdzv_dialect dialect; /* of the first state, if we write it */
    bool dialect_given;           /* the user chose it: it holds on every store */
    enum mu_rdzv_host_wish host;
    enum mu_store_tcp_protocol protocol;
    uint64_t read_timeout_ms;
    uint64_t upscale_delay_ms; /* UINT64_MAX: never */
    bool members;
    bool file; /* `path` instead of `endpoint` */
    struct mu_addr endpoint;
    char path[MU_RDZV_C10D_PATH_CAP];
    struct mu_url etcd; /* the cluster, and the other parts of its URL */
    bool etcd_tls;      /* etcd-v2, as PyTorch has it: protocol=https, ssl_cert ... */
    char etcd_files[3][MU_RDZV_C10D_FILE_CAP]; /* cacert, cert, key; "": not given */
    char etcd_prefix[MU_RDZV_C10D_PATH_CAP];   /* of the keys of all runs */
    int64_t lease_ttl_s;                       /* etcd-v3 */
    int64_t pid;
    int64_t local_id; /* -1: drawn at random */
};

/** Reads the options of the backend, and the endpoint. MUSTER_EINVAL with a text. */
int mu_rdzv_c10d_configure(struct mu_rdzv_c10d_config *c, struct mu_env *env,
                           const struct mu_rdzv_params *params, struct mu_errmsg *reterr_msg);
/** c10d_etcd.c: reads the options that only etcd's backends have, and their endpoint. */
int mu_rdzv_c10d_configure_etcd(struct mu_rdzv_c10d_config *c, const struct mu_rdzv_params *params,
                                struct mu_errmsg *reterr_msg);
/** Makes the client that the configuration names. */
int mu_rdzv_c10d_open_etcd(const struct mu_rdzv_c10d_config *c, struct mu_env *env,
                           struct mu_etcd **ret_etcd, struct mu_errmsg *reterr_msg);
/** etcd-v3: writes the prefix of all keys of a run, cut to what fits. Returns `prefix`. */
char *mu_rdzv_c10d_v3_prefix(char *prefix, size_t cap, const struct mu_rdzv_c10d_config *c,
                             const char *run_id);
/** The same as mu_rdzv_c10d_url(), for a store in etcd. */
char *mu_rdzv_c10d_etcd_url(char *url, const struct mu_rdzv_c10d_config *c, const char *run_id,
                            int64_t round);
/** Appends a text, escaped for a URL. Returns where it ends; no zero is put there. */
char *mu_rdzv_c10d_escape(char *at, const char *text);
/** Writes the URL of a round's store, with PyTorch's prefix. Returns `url`. */
char *mu_rdzv_c10d_url(char *url, const struct mu_rdzv_c10d_config *c, const char *run_id,
                       int64_t round);
/** Makes the members' texts, in one block for mu_free(). NULL: no memory. */
struct mu_rdzv_peer *mu_rdzv_c10d_peers(const struct mu_rdzv_node *const *members, size_t count);
/** "addr_pid_localid", as PyTorch writes it. */
#define MU_RDZV_C10D_NAME_CAP (MU_RDZV_ADDR_MAX + 48)
char *mu_rdzv_c10d_name(char *name, const struct mu_rdzv_node *node);

enum mu_rdzv_c10d_state {
    MU_RDZV_C10D_OUT = 0,
    MU_RDZV_C10D_JOINING,
    MU_RDZV_C10D_IN,
    MU_RDZV_C10D_BETWEEN, /* for the user its round is over; for the others it is still a member */
};

/* Calls of the user that have not reached the machine. */
enum {
    MU_RDZV_C10D_RECORD = 1 << 0, /* log which node hosts */
    MU_RDZV_C10D_LEAVE = 1 << 1,
    MU_RDZV_C10D_JOIN = 1 << 2,
    MU_RDZV_C10D_CLOSE = 1 << 3,
    MU_RDZV_C10D_WATCH = 1 << 4, /* the state has changed */
    MU_RDZV_C10D_FREE = 1 << 5,
    MU_RDZV_C10D_EXPLAIN = 1 << 6,
    MU_RDZV_C10D_GIVE_UP = 1 << 7, /* the name of etcd's host has been unknown for too long */
    MU_RDZV_C10D_LOOK = 1 << 8,
};

struct mu_rdzv_c10d {
    struct mu_rdzv_handler base;
    struct mu_rdzv_c10d_config config;
    struct mu_rdzv machine;
    struct mu_rdzv_register *reg;
    struct mu_store_server *server; /* if it hosts */
    struct mu_timer timer;
    enum mu_rdzv_c10d_state state;
    unsigned soon;
    mu_mono_t retry_at;   /* for a step that found no memory */
    mu_mono_t upscale_at; /* when late nodes are let in */
    size_t world;         /* of the round that was assigned last */
    bool doubts;          /* the user wants to know whether all its members are there */
    mu_wall_t *beats;     /* while it does: their heartbeats as they were then; NULL: not known */
    int64_t rank;
    bool found;  /* the register has answered */
    bool closed; /* the run is closed */
    bool closed_told;
    bool freeing;
    struct mu_errmsg host_text;
    char step[48];
};

/* c10d_explain.c: what a join waits for. */
void mu_rdzv_c10d_explain(struct mu_rdzv_c10d *n);
/** A try to reach the register has failed. For a store: */
void mu_rdzv_c10d_trouble(void *context, int status);
/** and for etcd, at the endpoint `where`: */
void mu_rdzv_c10d_etcd_trouble(void *context, int status, const char *where, const char *why);

/** The name of a step for the record, with that of the backend before it. */
const char *mu_rdzv_c10d_step(struct mu_rdzv_c10d *n, const char *step);

/* c10d_events.c: tells the user what the machine reports. The user may call anything from inside;
 * the node lives until its `freed`. */
void mu_rdzv_c10d_tell(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up);
/** The user no longer wants to know whether all members are there. */
void mu_rdzv_c10d_end_doubt(struct mu_rdzv_c10d *n);
/** Late nodes have waited long enough. */
void mu_rdzv_c10d_upscale(struct mu_rdzv_c10d *n);

#endif
