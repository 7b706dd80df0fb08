/*
 * A client of an etcd cluster, on the loop: calls, watches and leases over one or more endpoints.
 *
 *     mu_etcd_new(env, &config, &etcd, &msg);
 *     call->path = "/v3/kv/range"; call->body = ...; call->repeat = true; call->done = on_done;
 *     mu_etcd_submit(etcd, call);              on_done(call) follows, on a later turn, exactly once
 *
 * Which endpoint. All calls go to the one that answered last. One that cannot be reached, has no
 * leader, or is stopping is left for the next in the list; after each round through all of them
 * there is a pause that grows to half a second.
 *
 * What is tried again. Whatever certainly did not happen (no connection, no leader, a token that
 * has expired). What perhaps did happen (the connection was lost behind the request, the cluster
 * timed out) only if the call says that twice is as once (`repeat`): reads, and transactions whose
 * compares fail the second time. Any other call ends then, with `unknown` set.
 *
 * When it gives up: at the call's deadline; when no endpoint has answered anybody for patience_ms;
 * and at once when every endpoint refuses for a reason that time does not heal (a certificate, a
 * password, an API that is not there).
 */
#ifndef MU_ETCD_H
#define MU_ETCD_H

#include "core/env.h"
#include "proto/etcd/lease.h"
#include "proto/etcd/route.h"
#include "proto/etcd/watch.h"

#define MU_ETCD_PORT          2379
#define MU_ETCD_ENDPOINTS_MAX 16

struct mu_etcd;

struct mu_etcd_config {
    const char *endpoints; /* HOST[:PORT], several with commas between them */
    bool tls;              /* https; implied by any of the next three */
    const char *cacert;    /* files in PEM, or NULL */
    const char *cert;
    const char *key;
    const char *user; /* NULL: nobody */
    const char *password;
    uint32_t first_ms;      /* until an endpoint has answered for the first time. 30 s */
    uint32_t patience_ms;   /* later: until a silent cluster ends calls and watches. 10 s */
    uint32_t connect_ms;    /* until the next endpoint is tried. 2 s */
    uint32_t try_ms;        /* one try of what can be repeated. 8 s: etcd itself takes 7 to give up.
                           * Doubled, up to 16 times that, while etcd is too slow for it */
    uint32_t quiet_ms;      /* a watch that heard nothing for that long is begun anew. 20 s */
    size_t reply_bytes_max; /* one answer, or one piece of a watch. 256 MiB */
};

struct mu_etcd_config mu_etcd_config_defaults(void);

/** A password is one line of a file, so that it is in no list of processes. No path: "".
 * MUSTER_EURL with words. */
int mu_etcd_read_password(struct mu_env *env, const char *path, char *buf, size_t cap,
                          struct mu_errmsg *reterr_msg);

/** The texts are copied. Connects to nobody yet. MUSTER_EURL with words, MUSTER_ENOMEM. */
int mu_etcd_new(struct mu_env *env, const struct mu_etcd_config *config, struct mu_etcd **ret_etcd,
                struct mu_errmsg *reterr_msg);
/** Has `trouble` called whenever a try of a call got no answer, with the endpoint's URL and the
 * reason; the client goes on as above. */
void mu_etcd_on_trouble(struct mu_etcd *etcd,
                        void (*trouble)(void *context, int status, const char *where,
                                        const char *why),
                        void *context);
/**
 * Ends all calls, watches and leases with MUSTER_ECLOSED (leases are not revoked), on later turns,
 * then calls `closed` (may be NULL) and is gone.
 */
void mu_etcd_close(struct mu_etcd *etcd, void (*closed)(void *context), void *context);

/* --- calls ------------------------------------------------------------------------------------ */

struct mu_etcd_call {
    /* Set by the caller; what they point to stays until `done`. */
    const char *method; /* NULL: POST */
    const char *path;   /* from its slash, with the query */
    struct mu_span body;
    bool repeat; /* twice is as once */
    bool v2;
    bool poll;           /* v2: a wait; that nothing came in time is no fault of the endpoint's */
    bool bare;           /* not an API's: no token, and any answer is an answer (/version) */
    uint32_t timeout_ms; /* 0: never */
    void (*done)(struct mu_etcd_call *call);

    /*
     * Valid in `done`. status 0: v3: `reply` is what came. v2: `text` is, whatever its code said;
     * `index` is that of the cluster. Otherwise, with a sentence in `errmsg` and, where etcd gave
     * one, its gRPC code:
     *   MUSTER_ENOENT      no such lease
     *   MUSTER_EINVAL      etcd could not make sense of it
     *   MUSTER_EREFUSED    wrong name or password, or no permission
     *   MUSTER_EFULL       etcd's space is used up
     *   MUSTER_EOVERFLOW   that revision was compacted
     *   MUSTER_EVERSION    this server does not have this API
     *   MUSTER_ELIMIT      the request or the answer is too long
     *   MUSTER_ECONN, MUSTER_ENAME, MUSTER_ETLS, MUSTER_EPROTO, MUSTER_ETIMEDOUT, MUSTER_ECANCELED,
     *   MUSTER_ECLOSED, MUSTER_ENOMEM
     */
    int status;
    bool unknown;   /* an error, but it may have happened */
    uint32_t tries; /* that failed */
    int64_t grpc_code;
    const struct mu_etcd_reply *reply;
    struct mu_span text;
    int code; /* HTTP's */
    int64_t index;
    struct mu_errmsg errmsg;

    /* The client's own from here. */
    struct mu_etcd *etcd;
    struct mu_list link;
    struct mu_http http;
    struct mu_timer timer;
    struct mu_buf in;
    struct mu_etcd_asker asker;
};

void mu_etcd_submit(struct mu_etcd *etcd, struct mu_etcd_call *call);
/** `done` follows with MUSTER_ECANCELED, unless it ends otherwise first. */
void mu_etcd_cancel(struct mu_etcd_call *call);
bool mu_etcd_call_active(const struct mu_etcd_call *call);

/* --- watches -------------------------------------------------------------------------------------
 *
 * Every change to a range of keys, in order, none skipped, none twice. It begins with a read of the
 * range, so that it knows where it stands; a lost connection is taken up at the next revision. When
 * the changes it has to go on with were compacted away, it reads the range as of the compaction and
 * tells what is different: each key that was written since, with its value then, and each that is
 * gone. What was not compacted it tells one by one.
 */
struct mu_etcd_watch {
    /* Set by the caller; what they point to stays until `ended`. */
    struct mu_span key;
    struct mu_span end;
    bool current;   /* tell what is there, before the first change */
    bool prev_kv;   /* with what was before, where etcd can tell */
    bool puts_only; /* no deletions: then it keeps no list of the keys that are there */
    int64_t from;   /* the first revision, if known: then nothing is read. Puts only */
    /** A change, lent for the call. May cancel the watch: then no more come. */
    void (*change)(struct mu_etcd_watch *watch, const struct mu_etcd_change *change);
    /** All changes before revision `next` were told, those of one transaction together. May be
     * NULL. */
    void (*told)(struct mu_etcd_watch *watch);
    /** It stands: what happens from now on will be told. May be NULL. Once. */
    void (*ready)(struct mu_etcd_watch *watch);
    /** The last callback; errors as those of calls. `errmsg` is set. */
    void (*ended)(struct mu_etcd_watch *watch, int status);
    struct mu_errmsg errmsg;
    int64_t next; /* the first revision that was not told yet */

    /* The client's own from here. */
    struct mu_etcd *etcd;
    struct mu_list link;
    struct mu_etcd_call read;
    struct mu_http http;
    struct mu_timer timer;
    struct mu_etcd_watcher watcher;
    bool pumping;
};

void mu_etcd_watch_start(struct mu_etcd *etcd, struct mu_etcd_watch *watch);
/** `ended` follows with MUSTER_ECANCELED; no change comes any more. Twice is as once. */
void mu_etcd_watch_cancel(struct mu_etcd_watch *watch);

/* --- leases --------------------------------------------------------------------------------------
 *
 * A lease that is granted, and kept alive three times within its time. It counts as lost when etcd
 * says so, or when its time has passed since the last keep-alive that was answered went out: so
 * never later than etcd itself, whose count begins when that arrives.
 */
struct mu_etcd_lease {
    int64_t ttl_s; /* wanted; then what the server gave. At least 1 */
    /** It is granted: `id` is set. */
    void (*granted)(struct mu_etcd_lease *lease);
    /** It could not be had, or is no more; `errmsg` says why. The last callback, unless stopped. */
    void (*lost)(struct mu_etcd_lease *lease, int status);
    /** The last callback after mu_etcd_lease_stop(). */
    void (*stopped)(struct mu_etcd_lease *lease);
    int64_t id; /* 0: not yet */
    struct mu_errmsg errmsg;

    /* The client's own from here. */
    struct mu_etcd *etcd;
    struct mu_list link;
    struct mu_etcd_call call;
    struct mu_timer timer;
    struct mu_etcd_holder holder;
};

void mu_etcd_lease_start(struct mu_etcd *etcd, struct mu_etcd_lease *lease);
/** Ends it, with `revoke` also at the server (tried for a second); `stopped` follows. */
void mu_etcd_lease_stop(struct mu_etcd_lease *lease, bool revoke);

#endif
