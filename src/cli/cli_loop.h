/*
 * An event loop on the command's main thread, for commands that react to events of the services and
 * do not wait for single answers.
 *
 *     cli_loop_open(&loop, on_signal, context);     signals are blocked from here on
 *     ... open things in loop.env ...
 *     cli_loop_run(&loop);                          until cli_loop_stop()
 *     cli_loop_close(&loop);
 *
 * cli_loop_live() does everything but the first call, for a command that ends itself by
 * cli_loop_end().
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
    struct mu_env *env;         /* with cli_loop_lock(), the lock's environment */
    struct mu_timer stop_timer; /* used by cli_loop_live() */
    bool stopping;              /* cli_loop_end() was called */
    int code;                   /* the exit code */
    /* private */
    struct mu_locked locked;
    void (*on_signal)(void *context, int number);
    void *context;
    struct mu_post post;
    atomic_bool posted;
    atomic_uint_least64_t pending; /* signals, one bit for each number */
    bool patient;
    sigset_t set;
    pthread_t thread;
    atomic_bool ending;
};

/**
 * Opens the loop. The first SIGTERM or SIGINT calls `on_signal` on the loop, the second ends the
 * process. Returns 0, or an exit code after it has printed the error.
 */
int cli_loop_open(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                  void *context);
/** The same for any signals (1 to 63). Every arrival of a signal calls `on_signal`. */
int cli_loop_open_for(struct cli_loop *loop, const sigset_t *set,
                      void (*on_signal)(void *context, int number), void *context);
/** Calls cli_loop_open(), then cli_loop_lock(). */
int cli_loop_open_locked(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                         void *context, struct cli_lock *lock);
/** The same as cli_loop_open(), with as many descriptors as possible and the log that the
 * environment asks for. */
int cli_loop_open_peers(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                        void *context);
/** Makes the loop's environment obey the job's lock. Returns 0; or prints the error and returns an
 * exit code, and the loop is closed. */
int cli_loop_lock(struct cli_loop *loop, struct cli_lock *lock);
void cli_loop_run(struct cli_loop *loop);
/** Call it on the loop: cli_loop_run() returns after this turn. */
void cli_loop_stop(struct cli_loop *loop);
/** Everything that was opened in the loop must be closed before. */
void cli_loop_close(struct cli_loop *loop);
/**
 * Calls `start`, which opens things, and if that returns 0, `begin`, and runs until
 * cli_loop_stop(). Both get the loop's context and return an exit code after they have printed the
 * error. cli_loop_end() calls `stop`, which closes what `start` has opened and leads to
 * cli_loop_stop(). Closes the loop. Returns an exit code.
 */
int cli_loop_live(struct cli_loop *loop, int (*start)(void *context), int (*begin)(void *context),
                  void (*stop)(struct mu_timer *stop_timer));
/** Has `stop` called on a later turn, so any callback may call this. The first code counts. */
void cli_loop_end(struct cli_loop *loop, int code);
/**
 * For commands that serve: blocks the signals that end them, in this thread and in those that it
 * starts, so that a thread can wait for them. `hangup`: SIGHUP is one of the signals; otherwise it
 * is treated as by cli_take_hangup().
 */
void cli_block_signals(sigset_t *ret_set, bool hangup);
/**
 * For commands that serve. If the process has a terminal, SIGHUP means that the terminal was
 * closed, and ends the process. Otherwise SIGHUP is a request to read files again; it is ignored,
 * because files are read again without it.
 */
void cli_take_hangup(void);
/** Raises the limit of open descriptors as far as the system allows. Returns the limit. */
uint64_t cli_raise_descriptor_limit(void);

#endif
