/*
 * A watcher of a range of etcd's keys: every change, in order, none skipped, none twice. It reads
 * the range, follows a stream of changes, takes up a lost stream where it broke off, and reads
 * again what was compacted away. A stream machine: service/etcd/watch.c drives it, makes its calls
 * and has the stream.
 *
 *     mu_etcd_watcher_start(w, route, &config, seed, now)
 *     while ((action = mu_etcd_watcher_next(w, now)) != 0) ...   then, and after all others:
 *         READ            post `body` to /v3/kv/range, with no time limit. Twice is as once
 *         STREAM          post `body` to /v3/watch at `endpoint`, with no time limit
 *         CANCEL_READ, CANCEL_STREAM    end it; read_done() or stream_done() follows
 *         AUTHENTICATE    as in proto/etcd/route.h
 *         CHANGE          tell the owner `change`, which is lent until the next call
 *         TOLD            all changes before revision `next` were told
 *         READY           what happens from now on will be told
 *         END             the last action: `verdict`, with words in `errmsg`. It holds no memory
 *     mu_etcd_watcher_read_done(w, &answer, now)       its reply is lent until all was told
 *     mu_etcd_watcher_recv(w, code, bytes, now)        bytes of the stream: takes those of one
 *                                                      piece at most, and returns how many
 *     mu_etcd_watcher_stream_done(w, &exchange, now)
 *     mu_etcd_watcher_unsent(w, err, now)              the stream could not begin
 *     mu_etcd_watcher_authed(w, status, text, now)
 *     mu_etcd_watcher_stop(w, why, now)                the owner does not want it any more
 *     mu_etcd_watcher_tick(w, now)                     it is `wake`
 *
 *     IDLE      --start-->                    RESTING
 *     RESTING   --tick-->                     READING    the range is not known, or compacted: READ
 *     RESTING   --tick-->                     STREAMING  STREAM
 *     RESTING   --tick-->                     UNNAMED    there is no token yet
 *     UNNAMED   --authed-->                   RESTING
 *     READING   --read_done-->                TELLING    CHANGE ..., TOLD
 *     READING   --read_done-->                RESTING    compacted again, or older than was told
 *     TELLING   --all is told-->              STREAMING or UNNAMED
 *     STREAMING --recv-->                     STREAMING  READY, CHANGE ..., TOLD
 *     STREAMING --quiet, a bad piece, stop--> STREAMING  CANCEL_STREAM
 *     STREAMING --stream_done-->              RESTING    and on from revision `next`
 *     READING   --stop-->                     READING    CANCEL_READ
 *     RESTING, UNNAMED --stop-->              RESTING    and the tick ends it
 *     any of them                             IDLE       END: it was stopped, etcd refuses it for
 *                                                        good, the cluster is silent for too long,
 *                                                        or there is no memory
 *
 * The place in the history is `next`. It moves only behind changes that were told: the revision
 * that a reply's header shows may be ahead of changes that are still to come.
 */
#ifndef MU_ETCD_WATCHER_H
#define MU_ETCD_WATCHER_H

#include "codec/text/json_view.h"
#include "core/buf.h"
#include "core/map.h"
#include "proto/etcd/route.h"

struct mu_etcd_change {
    bool deleted;
    bool created; /* it was not there before */
    bool initial; /* it was there at the start, see `current` */
    bool has_prev;
    int64_t revision; /* of a deletion found by reading again: of that reading */
    struct mu_etcd_kv kv;
    struct mu_etcd_kv prev;
};

/* service/etcd/etcd.h says what the members mean. */
struct mu_etcd_watcher_config {
    struct mu_span key; /* borrowed, and so is `end` */
    struct mu_span end;
    bool current;
    bool prev_kv;
    bool puts_only;
    int64_t from;
};

enum mu_etcd_watcher_state {
    MU_ETCD_WATCHER_IDLE = 0,
    MU_ETCD_WATCHER_RESTING, /* until `wake` */
    MU_ETCD_WATCHER_UNNAMED, /* until there is a token */
    MU_ETCD_WATCHER_READING,
    MU_ETCD_WATCHER_TELLING, /* what was read */
    MU_ETCD_WATCHER_STREAMING,
};

enum mu_etcd_watcher_action {
    MU_ETCD_WATCHER_READ = 1,
    MU_ETCD_WATCHER_STREAM,
    MU_ETCD_WATCHER_CANCEL_READ,
    MU_ETCD_WATCHER_CANCEL_STREAM,
    MU_ETCD_WATCHER_AUTHENTICATE,
    MU_ETCD_WATCHER_CHANGE,
    MU_ETCD_WATCHER_TOLD,
    MU_ETCD_WATCHER_READY,
    MU_ETCD_WATCHER_END,
};

struct mu_etcd_known;

/* Drivers read the first members. */
struct mu_etcd_watcher {
    enum mu_etcd_watcher_state state;
    uint32_t endpoint;            /* STREAM */
    struct mu_buf body;           /* READ, STREAM; stays until that has ended */
    struct mu_etcd_change change; /* CHANGE */
    int64_t next;                 /* the first revision that was not told yet */
    mu_mono_t wake;               /* when to tick; MU_MONO_NEVER: not */
    int verdict;                  /* END. Before that: why the stream ends; 0: it does not */
    struct mu_errmsg errmsg;

    struct mu_etcd_route *route;
    struct mu_etcd_watcher_config config;
    enum mu_etcd_watcher_action due;
    struct mu_map known; /* keys that are there, as far as was told */
    mu_mono_t since;     /* when the cluster fell silent */
    uint32_t tries;
    int ending; /* why it ends; 0: it does not */
    /* A reading. */
    bool must_read;
    int64_t read_at;                    /* as of which revision; 0: now */
    int64_t reading;                    /* the revision of what was read */
    const struct mu_etcd_result *found; /* NULL: all of it was told */
    struct mu_map_node *walk;           /* over the known keys, for those that are gone */
    struct mu_etcd_known *gone;         /* the last of them that was told */
    size_t at;                          /* in `found`, or in the events of a piece */
    /* The stream. */
    struct mu_buf in;
    struct mu_jv_split split;
    struct mu_etcd_reply reply;
    mu_mono_t heard;
    uint64_t token; /* which one it began with */
    bool telling;   /* the events of a piece */
    bool ready_due;
    bool was_ready;
};

/** The watcher must be IDLE. The seed hashes the keys. Nothing is done before the first tick. */
void mu_etcd_watcher_start(struct mu_etcd_watcher *w, struct mu_etcd_route *route,
                           const struct mu_etcd_watcher_config *config, uint64_t seed,
                           mu_mono_t now);
void mu_etcd_watcher_read_done(struct mu_etcd_watcher *w, const struct mu_etcd_answer *a,
                               mu_mono_t now);
size_t mu_etcd_watcher_recv(struct mu_etcd_watcher *w, int code, struct mu_span in, mu_mono_t now);
void mu_etcd_watcher_stream_done(struct mu_etcd_watcher *w, const struct mu_etcd_exchange *x,
                                 mu_mono_t now);
void mu_etcd_watcher_unsent(struct mu_etcd_watcher *w, int err, mu_mono_t now);
/** There is a token, or (status not 0) there will be none. Only an UNNAMED watcher minds. */
void mu_etcd_watcher_authed(struct mu_etcd_watcher *w, int status, const char *text, mu_mono_t now);
/** END follows with `why`; no change comes any more. */
void mu_etcd_watcher_stop(struct mu_etcd_watcher *w, int why, mu_mono_t now);
void mu_etcd_watcher_tick(struct mu_etcd_watcher *w, mu_mono_t now);
/** What to do now; 0: nothing, until something happens. */
enum mu_etcd_watcher_action mu_etcd_watcher_next(struct mu_etcd_watcher *w, mu_mono_t now);

#endif
