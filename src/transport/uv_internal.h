/*
 * What the files of the libuv environment share. Sockets are ours and libuv only watches them
 * (uv_poll_t): its own streams write without MSG_NOSIGNAL, so a connection that breaks would raise
 * SIGPIPE in the user's process, and they queue what the kernel does not take without a bound.
 */
#ifndef MU_UV_INTERNAL_H
#define MU_UV_INTERNAL_H

#include <stdatomic.h>
#include <sys/socket.h>
#include <uv.h>

#include "core/buf.h"
#include "core/env.h"
#include "core/list.h"
#include "transport/uv_env.h"

/* How much of a pipe is read at once; it bounds what a paused pipe holds. */
#define MU_UV_READ_MAX 65536u
/* The same for a connection. Peers' messages have 64 KiB, so most of several come whole. */
#define MU_UV_CONN_READ_MAX 262144u
/* How much may be read after an owner's room: most often the head of what follows. */
#define MU_UV_BEHIND_MAX 4096u
/* How much send() may buffer for each connection. */
#define MU_UV_REST_MAX 65536u
/* How long a closed connection may take to get its last bytes across. */
#define MU_UV_LINGER_MS 5000u
/* How long one address of several may take to answer before the next one is tried. */
#define MU_UV_DIAL_TRY_MS 3000u
/* How long accepting pauses when there are no descriptors or no memory. */
#define MU_UV_ACCEPT_REST_MS 100u
/* The requested backlog; the kernel cuts it to net.core.somaxconn. */
#define MU_UV_BACKLOG 4096

/* Something to do on the next turn. */
struct mu_uv_later {
    struct mu_list link;
    void (*run)(struct mu_uv_later *later);
};

struct uv_http_pool;

struct mu_uv_env {
    struct mu_env env;
    uv_loop_t loop;
    uv_prepare_t prepare; /* ends a turn: the time is stale once the loop has slept */
    uv_idle_t idle; /* runs `laters`; active while there are any, so that the loop won't sleep */
    uv_async_t async;
    uv_timer_t alarm;
    uint64_t alarm_ms; /* what `alarm` is set for, UINT64_MAX for nothing */
    struct mu_heap timers;
    struct mu_uv_later timers_due;
    struct mu_now now;
    bool now_valid;
    struct mu_list laters;
    struct mu_list lingering; /* struct mu_uv_conn by `later.link`: closed, draining */
    uv_mutex_t posts_lock;
    uv_cond_t posts_cond; /* where the loop's thread waits for a post, in mu_uv_env_rest() */
    struct mu_list posts;
    atomic_int posting;        /* how many threads are about to wake the loop */
    size_t live;               /* connections, listeners and work that await their last callback */
    uint8_t *in;               /* MU_UV_CONN_READ_MAX bytes, the larger of the two */
    struct uv_http_pool *http; /* made with the first exchange */
    struct mu_uv_families *families; /* NULL until there was a child */
    mu_mono_t children_until;        /* when the watcher kills them all */
    bool no_cgroups;
    bool turning; /* in mu_uv_env_turn() */
};

/*
 *                 ┌───────────── close(abort), error, failed dial ─────────────┐
 *                 │                                                            ▼
 *   DIALING ──► OPEN ── close ──► FLUSHING ── all sent ──► PARTING ──► LINGERING ──► DEAD
 *                         └──── nothing to send ─────────────┘
 *
 * `closed` is called on leaving PARTING, or else in DEAD.
 */
enum mu_uv_conn_state {
    MU_UV_DIALING = 1,
    MU_UV_OPEN,
    MU_UV_FLUSHING,  /* closed by its owner; the rest is still being sent */
    MU_UV_PARTING,   /* our end is shut; `closed` is due on the next turn */
    MU_UV_LINGERING, /* the owner is gone; reads until the other end's end, so as not to reset it */
    MU_UV_DEAD,      /* the socket is gone; `closed` (if not yet called) and free() are due */
};

/* Where a connection leads. */
enum mu_uv_path {
    MU_UV_PATH_UNKNOWN = 0,
    MU_UV_PATH_NEAR, /* to this host */
    MU_UV_PATH_FAR,
};

struct mu_uv_conn {
    uv_poll_t poll;
    struct mu_uv_env *uv;
    struct mu_conn *conn; /* NULL once `closed` was called */
    struct mu_uv_dial *dial;
    struct mu_uv_later later;
    struct mu_timer timer; /* ends lingering, or one try of a dial */
    struct mu_buf rest;    /* taken by send(), not yet by the kernel */
    struct mu_buf stash;   /* read, not yet used by `data` */
    int fd;                /* -1: no socket, and no handle except one that is closing */
    int status;            /* for `closed` */
    int write_status;      /* how sending failed; earlier input is still read */
    enum mu_uv_conn_state state;
    enum mu_uv_path path;
    uint8_t interest; /* what `poll` watches */
    bool handle_closing;
    bool in_data; /* inside the owner's `data` */
    bool paused;  /* `data` used less than it was given */
    bool resume;  /* resume() was called */
    bool want_writable;
    bool finished; /* mu_env_finish() was called */
    bool eof;      /* the other end's end was read */
    bool urgent;   /* priority events came: do not watch for them again */
};

/* uv_env.c */

/** Calls `later->run` on the next turn; harmless if that is due already. */
void mu_uv_later_add(struct mu_uv_env *uv, struct mu_uv_later *later);

/* uv_conn.c */

/** A connection in state DIALING without a socket and without an owner, or NULL. */
struct mu_uv_conn *mu_uv_conn_new(struct mu_uv_env *uv);
/** Gives it a socket; on failure that stays the caller's. A negated errno. */
int mu_uv_conn_attach(struct mu_uv_conn *c, int fd);
/** Gives it its owner, which will be told of its end. */
void mu_uv_conn_start(struct mu_uv_conn *c, struct mu_conn *conn);
/** Goes to a state and makes the loop watch the socket for it. */
void mu_uv_conn_watch(struct mu_uv_conn *c, enum mu_uv_conn_state state);
/** One try of a dial failed: closes its socket, then calls mu_uv_dial_next(). */
void mu_uv_conn_try_failed(struct mu_uv_conn *c, int status);
/** Drops a connection that has neither socket nor owner. */
void mu_uv_conn_free(struct mu_uv_conn *c);
/** Closes the socket at once; `closed` follows with `status`. */
void mu_uv_conn_teardown(struct mu_uv_conn *c, int status);
/** Ends all draining of closed connections at once, to get their descriptors back. */
void mu_uv_conn_drop_lingering(struct mu_uv_env *uv);
void mu_uv_conn_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                      size_t count, size_t *ret_taken);
void mu_uv_conn_resume(struct mu_env *env, struct mu_conn *conn);
void mu_uv_conn_finish(struct mu_env *env, struct mu_conn *conn);
void mu_uv_conn_close(struct mu_env *env, struct mu_conn *conn, bool abort);
void mu_uv_conn_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap);

/* uv_dial.c */

int mu_uv_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr);
/** The socket of a dialling connection became writable or failed. */
void mu_uv_dial_event(struct mu_uv_conn *c);
/** Keeps the reason of a failed try, for the owner if it was the last. */
void mu_uv_dial_note(struct mu_uv_conn *c, int status);
/** The handle of a try that failed is closed: tries the next address. */
void mu_uv_dial_next(struct mu_uv_conn *c);
/** The connection is up or given up. */
void mu_uv_dial_free(struct mu_uv_conn *c);

/* uv_listen.c */

int mu_uv_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void mu_uv_unlisten(struct mu_env *env, struct mu_listener *listener);

/* uv_sock.c */

/** A non-blocking stream socket that is not inherited. A negated errno. */
int mu_uv_sock_new(int family, int *ret_fd);
/** Options of a connected socket: no delay, keep-alive, no pacing within a host. Ignores
 * failures. */
void mu_uv_sock_tune(int fd);
/** Makes close() reset the connection instead of ending it. */
void mu_uv_sock_set_reset(int fd);
/** The pending error of a socket, negated; 0: no error. */
int mu_uv_sock_error(int fd);
/** Whether nothing passes in either direction any more, though we have not shut our side. */
bool mu_uv_sock_hung_up(int fd);
/** Whether a socket is connected to itself, as the kernel allows on a free local port. */
bool mu_uv_sock_is_self(int fd);
/** Whether a connected socket leads to this host. */
bool mu_uv_sock_is_near(int fd);
/** MUSTER_EINVAL for a path that is too long. */
int mu_uv_sock_unix(const char *path, struct sockaddr_storage *ret, socklen_t *ret_len);
void mu_uv_sock_peer(int fd, char *buf, size_t cap);

/* uv_http.c */

int mu_uv_http(struct mu_env *env, struct mu_http *http, const struct mu_http_request *request);
void mu_uv_http_resume(struct mu_env *env, struct mu_http *http);
void mu_uv_http_cancel(struct mu_env *env, struct mu_http *http);
/** Our certificate was refused: adds the possible reason to the text. */
void mu_uv_http_explain_cert(const char *path, bool certain, char *text, size_t cap);
/** Closes the connections that are kept. No exchange may be under way. */
void mu_uv_http_free(struct mu_uv_env *uv);

static inline struct mu_uv_env *mu_uv_of(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_uv_env, env);
}

#endif
