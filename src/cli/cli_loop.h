/*
 * A loop of the command's own, on its main thread: for verbs that live from events of the services
 * and not from answers that they wait for.
 *
 *     cli_loop_open(&loop, on_signal, context);     signals are blocked from here on
 *     ... open things in loop.env ...
 *     cli_loop_run(&loop);                          until cli_loop_stop()
 *     cli_loop_close(&loop);
 *
 * cli_loop_live() does all but the first, for a verb that ends itself by cli_loop_end().
 */
#ifndef MU_CLI_LOOP_H
#define MU_CLI_LOOP_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "api/lock.h"
#include "cli/cli_lock.h"
#include "transport/uv_env.h"

struct cli_loop {
    struct mu_uv_env *uv;
    struct mu_env *env;         /* with cli_loop_lock(), that of the lock */
    struct mu_timer stop_timer; /* of cli_loop_live() */
    bool stopping;              /* cli_loop_end() was called */
    int code;                   /* the exit code */
    /* private from here */
    struct mu_locked locked;
    void (*on_signal)(void *context, int number);
    void *context;
    struct mu_post post;
    atomic_bool posted;
    atomic_uint_least64_t pending; /* signals, a bit for each number */
    bool patient;
    sigset_t set;
    pthread_t thread;
    atomic_bool ending;
};

/**
 * The first SIGTERM or SIGINT becomes a call of `on_signal` on the loop, the second ends the
 * process.
 * Returns 0 or an exit code, said.
 */
int cli_loop_open(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                  void *context);
/** The same for any signals (1 to 63), each of which becomes a call every time it comes. */
int cli_loop_open_for(struct cli_loop *loop, const sigset_t *set,
                      void (*on_signal)(void *context, int number), void *context);
/** As cli_loop_open(), and cli_loop_lock(). */
int cli_loop_open_locked(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                         void *context, struct cli_lock *lock);
/** As cli_loop_open(), with room for many peers, and a log as the environment asks for. */
int cli_loop_open_peers(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                        void *context);
/** From here on its environment obeys the job's lock. Returns 0; or an exit code, said, and the
 * loop is closed. */
int cli_loop_lock(struct cli_loop *loop, struct cli_lock *lock);
void cli_loop_run(struct cli_loop *loop);
/** On the loop: cli_loop_run() returns after this turn. */
void cli_loop_stop(struct cli_loop *loop);
/** Everything opened in it must be closed. */
void cli_loop_close(struct cli_loop *loop);
/**
 * Calls `start`, which opens things, and if that returns 0, `begin`, and runs until
 * cli_loop_stop(). Both get the loop's context and return an exit code, said. cli_loop_end() calls
 * `stop`, which closes what `start` has opened and leads to cli_loop_stop(). Closes the loop.
 * Returns an exit code.
 */
int cli_loop_live(struct cli_loop *loop, int (*start)(void *context), int (*begin)(void *context),
                  void (*stop)(struct mu_timer *stop_timer));
/** Has `stop` called on a later turn: it may be called from any callback. The first code counts. */
void cli_loop_end(struct cli_loop *loop, int code);
/**
 * For verbs that serve: blocks the signals that end them, in this thread and in those that it
 * starts, so that a thread can wait for them. `hangup`: SIGHUP is one of the signals; otherwise, as
 * cli_take_hangup().
 */
void cli_block_signals(sigset_t *ret_set, bool hangup);
/**
 * For verbs that serve. SIGHUP of a process that has a terminal says that it was closed, and ends
 * it. Without one it is somebody's who wants files to be read again, which nobody has to ask for:
 * it is ignored.
 */
void cli_take_hangup(void);
/** As many descriptors as the system lets us have. Returns how many. */
uint64_t cli_raise_descriptor_limit(void);

#endif
