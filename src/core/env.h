/*
 * The environment: everything that a service may ask of the outside world. transport/ implements it
 * on libuv, sim/ on virtual time; services see only this. Its verbs, in groups:
 *
 *     time and chance    now, timer_arm, entropy
 *     the process        memory, self, paths, vaults; others: peek; its machine: health
 *     connections        dial, dial_plain, listen, unlisten, sendv, resume, finish, close;
 *                        about one: peer, trust, why
 *     work that blocks   work
 *     children           spawn, child_signal, child_resume, child_leave, children_until,
 *                        standbys_open, standbys_want, standbys_close
 *     HTTP               http, http_resume, http_cancel
 *
 * Rules that hold for every verb, in every implementation:
 *  - One thread. All calls and all callbacks happen on it.
 *  - Completion is always a later turn: no callback runs inside the call that asked for it.
 *  - When a verb returns an error, its callback will never be called.
 *  - The caller provides the memory (struct mu_conn, mu_listener, mu_timer, mu_work, mu_child,
 *    mu_http embedded in its own) and may reuse it only after the last callback named below.
 *  - A callback may call any verb, close included.
 */
#ifndef MU_ENV_H
#define MU_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/addr.h"
#include "core/child.h"
#include "core/health.h"
#include "core/heap.h"
#include "core/http.h"
#include "core/list.h"
#include "core/paths.h"
#include "core/peek.h"
#include "core/span.h"
#include "core/time.h"
#include "core/vault.h"

struct mu_env;

/* A timer: `fire` is called once, at or after the time it was armed for. */
struct mu_timer {
    struct mu_heap_node node; /* the environment's */
    void (*fire)(struct mu_timer *timer);
};

static inline void mu_timer_init(struct mu_timer *t, void (*fire)(struct mu_timer *timer))
{
    mu_heap_node_init(&t->node);
    t->fire = fire;
}

/* A byte stream to another process. */
struct mu_conn;

struct mu_conn_events {
    /** A dialled connection is up. Accepted ones are up when `accept` returns. */
    void (*open)(struct mu_conn *conn);
    /**
     * Bytes have come. Returns how many were used; if not all were, the environment keeps the rest
     * and reads no more until mu_env_resume(), which delivers the rest again. `in` is valid until
     * the callback returns.
     */
    size_t (*data)(struct mu_conn *conn, struct mu_span in);
    /**
     * Returns where the next bytes should be read to, so that they need not be copied afterwards.
     * May be NULL, and may return an empty space each time. The environment asks right before it
     * reads: the `data` that follows begins with the first bytes of the room, and must use all of
     * them. More may follow in another `data`, from elsewhere. The environment may choose not to
     * ask. The room must stay valid until the next callback of the connection.
     */
    struct mu_space (*room)(struct mu_conn *conn);
    /** The other end has sent all it will send. Writing may still work. */
    void (*eof)(struct mu_conn *conn);
    /**
     * May come some time after `eof`: the other end has closed, and nothing that is sent reaches it
     * any more. Only unix sockets can tell that from the end of what it sends. May be NULL.
     */
    void (*hung_up)(struct mu_conn *conn);
    /** There is room again, after a mu_env_send() that took less than it was given. */
    void (*writable)(struct mu_conn *conn);
    /**
     * The last callback: after mu_env_close() (status 0), a failed dial, or an error of the
     * connection (a negative code; no close is needed then). The memory is the owner's again.
     */
    void (*closed)(struct mu_conn *conn, int status);
};

struct mu_conn {
    const struct mu_conn_events *on; /* set before dial, or by `accept` */
    struct mu_env *env;              /* set by the environment */
    void *impl;                      /* the environment's */
};

/* What an environment that has a lock (service/lock/env.h) knows of the other end. */
enum mu_trust {
    MU_TRUST_OPEN = 1, /* on this host, or with the job's credential, or without a lock */
    MU_TRUST_PLAIN,    /* nothing of that: it may speak PyTorch's protocol, or be told why not */
};

/* An address that others connect to. */
struct mu_listener {
    /**
     * A connection has come in. Returns the memory for it with `on` set, or NULL to refuse it. No
     * other callback of that connection comes before this returns.
     */
    struct mu_conn *(*accept)(struct mu_listener *listener);
    /**
     * Accepting has failed for lack of descriptors or memory (a negative code such as -EMFILE) and
     * pauses a moment; new connections wait in the kernel's queue. Called each time it fails. May
     * be NULL.
     */
    void (*accept_failed)(struct mu_listener *listener, int status);
    /** The last callback, after mu_env_unlisten(). */
    void (*closed)(struct mu_listener *listener);
    struct mu_env *env;
    void *impl;
    bool here_only; /* set by listen: all of its addresses are loopback, whatever its name */
};

/* Work that may block or take long. */
struct mu_work {
    /** Called once, on any thread, with no access to anything the loop thread uses meanwhile. */
    void (*run)(struct mu_work *work);
    /** Called once afterwards, on the loop thread. The memory is the owner's again. */
    void (*done)(struct mu_work *work);
    struct mu_env *env;
    void *impl;
};

/* This process. */
struct mu_self {
    char host[MU_ADDR_HOST_MAX + 1]; /* the name of its machine, never empty */
    int64_t pid;
};

/* How many spans one mu_env_sendv() looks at; the rest waits for `writable`. */
#define MU_ENV_SPANS_MAX 64

struct mu_env_ops {
    /** The time of this turn: the same for everything that happens in it. */
    struct mu_now (*now)(struct mu_env *env);
    /** Fills `buf` with bytes fit for keys. */
    void (*entropy)(struct mu_env *env, void *buf, size_t len);
    /** How much memory this process may have, in bytes. NULL: unknown. */
    uint64_t (*memory)(struct mu_env *env);
    void (*self)(struct mu_env *env, struct mu_self *ret_self);
    /** The file system; valid for ever. NULL, or returning NULL: there is no file system. */
    const struct mu_paths *(*paths)(struct mu_env *env);
    /** Memory for workers; valid for ever. NULL, or returning NULL: there is none. */
    const struct mu_vaults *(*vaults)(struct mu_env *env);
    /** Other processes; valid for ever. NULL, or returning NULL: none can be seen. */
    const struct mu_peek *(*peek)(struct mu_env *env);
    /** The machine's health; valid for ever. NULL, or returning NULL: it cannot be seen. */
    const struct mu_health_source *(*health)(struct mu_env *env);
    /** Arms, re-arms, or with MU_MONO_NEVER disarms. Cannot fail. */
    void (*timer_arm)(struct mu_env *env, struct mu_timer *timer, mu_mono_t at);
    /** Connects; `open` or `closed` follows. MUSTER_EINVAL for an address it cannot take. */
    int (*dial)(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr);
    /**
     * Connects for a protocol that has to be plain. MUSTER_ELOCKED, here or in `closed`: this
     * environment speaks to that address only with the job's credential. NULL: as dial.
     */
    int (*dial_plain)(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr);
    /**
     * Binds and listens at once; `addr` with port 0 is rewritten with the port that was found.
     * Errors: a negated errno such as -EADDRINUSE, MUSTER_EINVAL, MUSTER_ELOCKED.
     */
    int (*listen)(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
    /** Stops listening; `closed` follows. Accepted connections stay open. */
    void (*unlisten)(struct mu_env *env, struct mu_listener *listener);
    /**
     * Sends `count` spans, one after the other: sends what it can at once, keeps a bounded part in
     * a buffer of its own, and says how much it took. If that is not all, `writable` follows. The
     * data is borrowed for the call. Errors of the connection come as `closed`, never from here: a
     * dead connection takes everything. It may ignore the spans after the first MU_ENV_SPANS_MAX.
     */
    void (*sendv)(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                  size_t count, size_t *ret_taken);
    /** Resumes reading after `data` used less than it was given. */
    void (*resume)(struct mu_env *env, struct mu_conn *conn);
    /**
     * Closes; `closed` follows with status 0. What mu_env_send() took is still delivered if the
     * other end reads it within the environment's linger time; with `abort`, it is dropped at once.
     */
    void (*close)(struct mu_env *env, struct mu_conn *conn, bool abort);
    /**
     * Ends our side: the other end reads what was taken, then the end, and may go on sending. What
     * we send from then on is dropped. mu_env_close() is still needed. NULL where this is not
     * possible. A dialled connection must be open.
     */
    void (*finish)(struct mu_env *env, struct mu_conn *conn);
    /** Writes the other end's address for a log line: at most `cap` bytes, terminated. */
    void (*peer)(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap);
    /** How much an accepted connection is trusted; known once bytes have come. NULL: open. */
    enum mu_trust (*trust)(struct mu_env *env, const struct mu_conn *conn);
    /**
     * Explains, beyond the status, the `closed` that is being called; an `eof`, if the end may have
     * been cut off; or a dial or listen that has just returned MUSTER_ELOCKED. The text is valid
     * during that callback. NULL: there is never an explanation.
     */
    const char *(*why)(struct mu_env *env);
    /** Calls `run` on another thread, then `done` on the loop. MUSTER_ENOMEM. */
    int (*work)(struct mu_env *env, struct mu_work *work);
    /**
     * Starts a program in a session and a process group of its own, with only the descriptors of
     * `what`, and with no signal blocked or handled (see core/child.h). `started` follows, with 0
     * or with what failed in the child: this call never waits for a disk. MUSTER_EINVAL if argv is
     * missing, a stream is invalid, or there are too many arguments; MUSTER_ENOTSUP, MUSTER_ENOMEM,
     * or a negated errno (-EAGAIN, -EMFILE) if no process or pipe can be made.
     */
    int (*spawn)(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what);
    /**
     * Sends a signal to the processes of `scope`. SIGTERM, SIGINT, SIGHUP and SIGQUIT are followed
     * by SIGCONT, so that a stopped process can obey. SIGKILL to the family is repeated until
     * `gone`, whatever the family starts meanwhile. Allowed at any time between spawn and `gone`.
     * -ESRCH if there was no such process (any more, or yet), MUSTER_EINVAL for a signal that does
     * not exist.
     */
    int (*child_signal)(struct mu_env *env, struct mu_child *child, int signal,
                        enum mu_child_scope scope);
    /** Resumes reading a stream after `output` used less than it was given. */
    void (*child_resume)(struct mu_env *env, struct mu_child *child, enum mu_stream stream);
    /**
     * Lets go of a child: no callback comes any more, not even `gone`, and the memory is the
     * owner's again. What is left of its family gets `signal` now (and SIGCONT after it) and is
     * killed when `grace_ms` have passed, by the watcher if we have ended by then; what the family
     * writes until then is lost. Allowed at any time between spawn and `gone`.
     */
    void (*child_leave)(struct mu_env *env, struct mu_child *child, int signal, uint64_t grace_ms);
    /**
     * All children that there are then are killed at `until`, with their families, even if this
     * process is stopped; unless another time is set before. MU_MONO_NEVER, as at first: they are
     * not. NULL: there is nobody to do it.
     */
    void (*children_until)(struct mu_env *env, mu_mono_t until);
    /**
     * Starts the zygote of standbys (see core/child.h), with the descriptors of `what` and the
     * socket; `channel`, `sentinel` and `from` are not for it. `ended` follows one day. The errors
     * of spawn.
     */
    int (*standbys_open)(struct mu_env *env, struct mu_standbys *standbys,
                         const struct mu_spawn *what);
    /** So many shall wait, at most MU_STANDBYS_MAX: where there are fewer, others are forked. The
     * place of one that is used or dies stays empty until the next call. */
    void (*standbys_want)(struct mu_env *env, struct mu_standbys *standbys, uint32_t count);
    /** Ends those that wait, and the zygote; `ended` follows. A second call changes nothing. */
    void (*standbys_close)(struct mu_env *env, struct mu_standbys *standbys);
    /**
     * Starts an HTTP exchange (see core/http.h); `done` follows. MUSTER_EINVAL for a method or URL
     * that it does not support or a body that does not fit the method, MUSTER_ENOMEM,
     * MUSTER_ENOTSUP where there is no HTTP.
     */
    int (*http)(struct mu_env *env, struct mu_http *http, const struct mu_http_request *request);
    /** Resumes an answer after `data` used less than it was given. */
    void (*http_resume)(struct mu_env *env, struct mu_http *http);
    /**
     * Ends the exchange: no `head` or `data` comes any more, and `done` follows with
     * MUSTER_ECANCELED. A second call changes nothing. The other end may or may not do what it was
     * asked.
     */
    void (*http_cancel)(struct mu_env *env, struct mu_http *http);
};

struct mu_env {
    const struct mu_env_ops *ops;
};

static inline struct mu_now mu_env_now(struct mu_env *env)
{
    return env->ops->now(env);
}

static inline void mu_env_entropy(struct mu_env *env, void *buf, size_t len)
{
    env->ops->entropy(env, buf, len);
}

/** UINT64_MAX: unknown. */
static inline uint64_t mu_env_memory(struct mu_env *env)
{
    return env->ops->memory == NULL ? UINT64_MAX : env->ops->memory(env);
}

static inline void mu_env_self(struct mu_env *env, struct mu_self *ret_self)
{
    env->ops->self(env, ret_self);
}

/** NULL: there are no files. */
static inline const struct mu_paths *mu_env_paths(struct mu_env *env)
{
    return env->ops->paths == NULL ? NULL : env->ops->paths(env);
}

/** NULL: no vaults can be made. */
static inline const struct mu_vaults *mu_env_vaults(struct mu_env *env)
{
    return env->ops->vaults == NULL ? NULL : env->ops->vaults(env);
}

/** NULL: no other process can be seen. */
static inline const struct mu_peek *mu_env_peek(struct mu_env *env)
{
    return env->ops->peek == NULL ? NULL : env->ops->peek(env);
}

/** NULL: the health of this machine cannot be seen. */
static inline const struct mu_health_source *mu_env_health(struct mu_env *env)
{
    return env->ops->health == NULL ? NULL : env->ops->health(env);
}

static inline void mu_env_timer_arm(struct mu_env *env, struct mu_timer *timer, mu_mono_t at)
{
    env->ops->timer_arm(env, timer, at);
}

static inline int mu_env_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    return env->ops->dial(env, conn, addr);
}

static inline int mu_env_dial_plain(struct mu_env *env, struct mu_conn *conn,
                                    const struct mu_addr *addr)
{
    return env->ops->dial_plain == NULL ? env->ops->dial(env, conn, addr)
                                        : env->ops->dial_plain(env, conn, addr);
}

static inline int mu_env_listen(struct mu_env *env, struct mu_listener *l, struct mu_addr *addr)
{
    return env->ops->listen(env, l, addr);
}

static inline void mu_env_unlisten(struct mu_env *env, struct mu_listener *l)
{
    env->ops->unlisten(env, l);
}

static inline void mu_env_sendv(struct mu_env *env, struct mu_conn *conn,
                                const struct mu_span *spans, size_t count, size_t *ret_taken)
{
    env->ops->sendv(env, conn, spans, count, ret_taken);
}

static inline void mu_env_send(struct mu_env *env, struct mu_conn *conn, struct mu_span data,
                               size_t *ret_taken)
{
    env->ops->sendv(env, conn, &data, 1, ret_taken);
}

static inline void mu_env_resume(struct mu_env *env, struct mu_conn *conn)
{
    env->ops->resume(env, conn);
}

static inline void mu_env_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    env->ops->close(env, conn, abort);
}

/** False: this environment cannot, and nothing was done. */
static inline bool mu_env_finish(struct mu_env *env, struct mu_conn *conn)
{
    if (env->ops->finish != NULL) {
        env->ops->finish(env, conn);
    }
    return env->ops->finish != NULL;
}

static inline void mu_env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf,
                               size_t cap)
{
    env->ops->peer(env, conn, buf, cap);
}

static inline enum mu_trust mu_env_trust(struct mu_env *env, const struct mu_conn *conn)
{
    return env->ops->trust == NULL ? MU_TRUST_OPEN : env->ops->trust(env, conn);
}

/** "" when there is nothing to say. */
static inline const char *mu_env_why(struct mu_env *env)
{
    return env->ops->why == NULL ? "" : env->ops->why(env);
}

/** The text for an `err` that a dial or listen has just returned. */
static inline const char *mu_env_strerror(struct mu_env *env, int err)
{
    const char *why = err == MUSTER_ELOCKED ? mu_env_why(env) : "";

    return why[0] != '\0' ? why : muster_strerror(err);
}

static inline int mu_env_work(struct mu_env *env, struct mu_work *work)
{
    return env->ops->work(env, work);
}

static inline int mu_env_spawn(struct mu_env *env, struct mu_child *child,
                               const struct mu_spawn *what)
{
    return env->ops->spawn(env, child, what);
}

static inline int mu_env_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                                      enum mu_child_scope scope)
{
    return env->ops->child_signal(env, child, signal, scope);
}

static inline void mu_env_child_resume(struct mu_env *env, struct mu_child *child,
                                       enum mu_stream stream)
{
    env->ops->child_resume(env, child, stream);
}

static inline void mu_env_child_leave(struct mu_env *env, struct mu_child *child, int signal,
                                      uint64_t grace_ms)
{
    env->ops->child_leave(env, child, signal, grace_ms);
}

static inline int mu_env_standbys_open(struct mu_env *env, struct mu_standbys *standbys,
                                       const struct mu_spawn *what)
{
    return env->ops->standbys_open(env, standbys, what);
}

static inline void mu_env_standbys_want(struct mu_env *env, struct mu_standbys *standbys,
                                        uint32_t count)
{
    env->ops->standbys_want(env, standbys, count);
}

static inline void mu_env_standbys_close(struct mu_env *env, struct mu_standbys *standbys)
{
    env->ops->standbys_close(env, standbys);
}

static inline void mu_env_children_until(struct mu_env *env, mu_mono_t until)
{
    if (env->ops->children_until != NULL) {
        env->ops->children_until(env, until);
    }
}

static inline int mu_env_http(struct mu_env *env, struct mu_http *http,
                              const struct mu_http_request *request)
{
    return env->ops->http(env, http, request);
}

static inline void mu_env_http_resume(struct mu_env *env, struct mu_http *http)
{
    env->ops->http_resume(env, http);
}

static inline void mu_env_http_cancel(struct mu_env *env, struct mu_http *http)
{
    env->ops->http_cancel(env, http);
}

#endif
