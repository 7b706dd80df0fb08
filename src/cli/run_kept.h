/*
 * Where the workers of this agent can keep something in memory from one round to the next: their
 * own memory goes with them whenever nodes come or go.
 *
 *     run_kept_begin(&k, run_id);      tells the workers of it, in MUSTER_KEEP
 *     ... the run ...
 *     run_kept_end(&k);                removes what they have left there
 *
 * It is a directory that the first worker to use it makes:
 *
 *     /dev/shm/muster-UID/RUN.NAMESPACE.PID.START
 *
 * The name says whose it is, so that what an agent leaves that was killed can be told from what is
 * in use: the namespace of its process id, the id, and when it started, in clock ticks since the
 * machine did. The Python module removes such leftovers (python/muster/_kept.py).
 */
#ifndef MU_RUN_KEPT_H
#define MU_RUN_KEPT_H

struct run_kept {
    char path[256]; /* "": there is none */
};

/** Sets MUSTER_KEEP, or unsets it where a name cannot be made. Creates nothing. */
void run_kept_begin(struct run_kept *k, const char *run_id);
/** Removes the directory and the files in it. Leaves what is no file, and what is not ours. */
void run_kept_end(struct run_kept *k);

#endif
