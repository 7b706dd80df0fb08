/*
 * The descendants of a process: its children, their children, and so on. A worker may be a script
 * of the shell that has started the interpreter, and a data loader computes in processes of its
 * own.
 */
#ifndef MU_STACKS_FAMILY_H
#define MU_STACKS_FAMILY_H

#include "core/peek.h"

#define MU_STACKS_FAMILY_MAX  256 /* descendants of a worker that are watched */
#define MU_STACKS_FAMILY_SEEN 8   /* descendants that are asked for a Python interpreter */

/** Lists them, parents before their children, at most `cap`. Returns how many. It may block. */
uint32_t mu_stacks_family(const struct mu_peek *peek, struct mu_peek_process *p, int64_t *pids,
                          uint32_t cap);

#endif
