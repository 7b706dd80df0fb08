/*
 * Says so if the endpoint's name takes long to look up. That happens before the loop runs and holds
 * up everything, so a thread says it:
 *
 *     run_lookup_begin(&l);
 *     ... what looks the name up ...
 *     run_lookup_end(&l);
 */
#ifndef MU_RUN_LOOKUP_H
#define MU_RUN_LOOKUP_H

#include <pthread.h>
#include <stdbool.h>

struct run_lookup {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t over;
    bool is_over;
    bool started;
};

/** A line goes to standard error after 2 s. Without a thread, nothing is said. */
void run_lookup_begin(struct run_lookup *l);
void run_lookup_end(struct run_lookup *l);

#endif
