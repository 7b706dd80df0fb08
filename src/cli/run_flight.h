/*
 * Where the flight recorders of PyTorch listen and write, in the workers of one `muster run`: pipes
 * and dumps are files in /tmp whose names nobody can guess.
 *
 *     run_flight_begin(&f, random);    f.path: the beginning of their names, for the agent
 *     run_flight_end(&f, keep_dumps);
 *
 * They are not in a folder of their own: in a container that has the variables, but not the folder,
 * PyTorch could not make its pipe, and would end the worker.
 */
#ifndef MU_RUN_FLIGHT_H
#define MU_RUN_FLIGHT_H

#include <stdbool.h>
#include <stdint.h>

struct run_flight {
    char path[64]; /* "": there are none */
};

void run_flight_begin(struct run_flight *f, uint64_t random);
/** Removes the pipes, and the dumps, unless they may be of use. */
void run_flight_end(struct run_flight *f, bool keep_dumps);

#endif
