/*
 * A loop of the command's own, on its main thread: for verbs that live from events of the services
 * and not from answers that they wait for.
 *
 *     cli_loop_open(&loop, on_signal, context);     signals are blocked from here on
 *     ... open things in loop.env ...
 *     cli_loop_run(&loop);                          until cli_loop_stop()
 *     cli_loop_close(&loop);
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
    struct mu_env *env; /* with cli_loop_lock(), that of the lock */
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
/** From here on its environment obeys the job's lock. Returns 0; or an exit code, said, and the
 * loop is closed. */
int cli_loop_lock(struct cli_loop *loop, struct cli_lock *lock);
void cli_loop_run(struct cli_loop *loop);
/** On the loop: cli_loop_run() returns after this turn. */
void cli_loop_stop(struct cli_loop *loop);
/** Everything opened in it must be closed. */
void cli_loop_close(struct cli_loop *loop);
/**
 * For verbs that serve. SIGHUP of a process that has a terminal says that it was closed, and ends
 * it. Without one it is somebody's who wants files to be read again, which nobody has to ask for:
 * it is ignored.
 */
void cli_take_hangup(void);
/** As many descriptors as the system lets us have. Returns how many. */
uint64_t cli_raise_descriptor_limit(void);

#endif
