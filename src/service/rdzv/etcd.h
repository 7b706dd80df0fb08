/*
 * What the files of the `etcd` backend share: the machine of proto/rdzv/etcd.h on etcd's v2 API, as
 * PyTorch's EtcdRendezvousHandler has it. See service/rdzv/rdzv.h for what it does, and
 * docs/rendezvous-etcd.md for the protocol.
 */
#ifndef MU_RDZV_ETCD_SERVICE_H
#define MU_RDZV_ETCD_SERVICE_H

#include "core/url.h"
#include "proto/rdzv/etcd.h"
#include "service/etcd/etcd.h"
#include "service/rdzv/rdzv.h"

#define MU_RDZV_ETCD_TEXT_CAP 512
#define MU_RDZV_ETCD_URL_CAP  (MU_URL_MAX + 1)

struct mu_rdzv_etcd_config {
    struct mu_retcd_config machine; /* its texts point to the members below, and to the handler */
    char prefix[MU_RETCD_PREFIX_MAX + 1];
    char endpoints[MU_RDZV_ETCD_TEXT_CAP];
    char cacert[MU_RDZV_ETCD_TEXT_CAP];
    char cert[MU_RDZV_ETCD_TEXT_CAP];
    char key[MU_RDZV_ETCD_TEXT_CAP];
    char user[MU_RDZV_ETCD_TEXT_CAP];
    char password_file[MU_RDZV_ETCD_TEXT_CAP];
    bool tls;
    bool torch_1;              /* dialect=1.13 */
    uint64_t upscale_delay_ms; /* UINT64_MAX: never */
};

/** Reads the options of the backend, and the endpoint. MUSTER_EINVAL with a text. */
int mu_rdzv_etcd_configure(struct mu_rdzv_etcd_config *c, const struct mu_rdzv_params *params,
                           struct mu_errmsg *reterr_msg);
/** Makes the client that the configuration names. */
int mu_rdzv_etcd_client(const struct mu_rdzv_etcd_config *c, struct mu_env *env,
                        struct mu_etcd **ret_etcd, struct mu_errmsg *reterr_msg);
/** Appends the path of a run's key for a request: `tail` follows "/rdzv/" unescaped, and a zero
 * ends it. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_rdzv_etcd_path(struct mu_buf *out, const struct mu_rdzv_etcd_config *c, const char *run_id,
                      const char *tail);
/** Writes the URL of a round's store. False: it is too long. */
bool mu_rdzv_etcd_url(char url[MU_RDZV_ETCD_URL_CAP], const struct mu_rdzv_etcd_config *c,
                      const char *run_id, uint64_t version);

enum mu_rdzv_etcd_state {
    MU_RDZV_ETCD_OUT = 0,
    MU_RDZV_ETCD_JOINING,
    MU_RDZV_ETCD_IN,
    MU_RDZV_ETCD_BETWEEN,
};

/* Calls of the user that have not reached the machine. */
enum {
    MU_RDZV_ETCD_RECORD = 1 << 0,
    MU_RDZV_ETCD_LEAVE = 1 << 1,
    MU_RDZV_ETCD_JOIN = 1 << 2,
    MU_RDZV_ETCD_CLOSE = 1 << 3,
    MU_RDZV_ETCD_FREE = 1 << 4,
    MU_RDZV_ETCD_EXPLAIN = 1 << 5,
};

struct mu_rdzv_etcd;

/* A request of the machine on its way. */
struct mu_rdzv_etcd_lane {
    struct mu_rdzv_etcd *n;
    struct mu_etcd_call call;
    struct mu_buf path;
    struct mu_buf body;
    uint64_t number; /* of the request that is out */
    bool pending;    /* another request waits until this one has ended */
};

struct mu_rdzv_etcd {
    struct mu_rdzv_handler base;
    struct mu_rdzv_etcd_config config;
    struct mu_retcd machine;
    struct mu_etcd *etcd;
    struct mu_etcd2_reply reply; /* of the answer that is being reported */
    struct mu_rdzv_etcd_lane lanes[MU_RETCD_LANES];
    struct mu_timer timer;
    enum mu_rdzv_etcd_state state;
    unsigned soon;
    mu_mono_t upscale_at; /* when late nodes are let in */
    uint64_t waiting;
    int64_t rank;
    uint32_t world;
    uint64_t version;
    bool found; /* etcd has answered */
    bool closed;
    bool freeing;
};

/* etcd_events.c: tells the user what the machine reports. The user may call anything from inside;
 * the node lives until its `freed`. */
void mu_rdzv_etcd_tell(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up);
void mu_rdzv_etcd_upscale(struct mu_rdzv_etcd *n);
/** Tells the user what a join waits for. */
void mu_rdzv_etcd_explain(struct mu_rdzv_etcd *n);
/** A try to reach the endpoint `where` has failed. */
void mu_rdzv_etcd_trouble(void *context, int status, const char *where, const char *why);

#endif
