/*
 * What this machine knows of the end of a worker that failed, beyond its exit code, in a sentence:
 *
 *  - the kernel killed it for lack of memory, and which limit it met. The control groups count such
 *    kills; where they do not, the kernel's log names them;
 *  - an import failed, and which interpreter looked for the module, and why that one.
 *
 *     run_explain_begin(&e)                            before workers start
 *     run_explain(&e, &options, &end, tail, ...)       when one has failed
 */
#ifndef MU_RUN_EXPLAIN_H
#define MU_RUN_EXPLAIN_H

#include "cli/run_options.h"
#include "service/agent/agent.h"

struct run_explain {
    uint64_t kills; /* for lack of memory, before the workers were started */
};

void run_explain_begin(struct run_explain *e);
/** Writes the sentence, or leaves `text` as it is. */
void run_explain(const struct run_explain *e, const struct run_options *o,
                 const struct mu_agent_worker_end *end, const char *tail, char *text, size_t cap);

#endif
