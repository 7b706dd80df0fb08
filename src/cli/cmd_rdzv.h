/* What the files of `muster rdzv` share. */
#ifndef MU_CMD_RDZV_H
#define MU_CMD_RDZV_H

#include "cli/cli_log.h"
#include "cli/cli_loop.h"
#include "service/rdzv/rdzv.h"

struct rdzv_options {
    const char *backend;
    const char *endpoint;
    const char *run_id;
    const char *nnodes;
    char nnodes_text[32];
    const char *config;
    const char *local_addr;
    double timeout;       /* seconds: status, close, extra */
    uint64_t version;     /* extra */
    const char *words[2]; /* extra, exclude, include */
    double exclude_for;   /* seconds */
    const char *reason;   /* exclude */
    bool json;
    bool rejoin;
    bool verbose;
    bool quiet;
    struct cli_log_options log;
    struct cli_lock *lock;
};

/** "N" or "MIN:MAX". Returns 0, or CLI_USAGE after it has printed the error. */
int rdzv_parse_nnodes(const char *text, uint32_t *ret_min, uint32_t *ret_max);

/** Joins a run as a node until a signal or the end of the round. Returns an exit code. */
int rdzv_join(const struct rdzv_options *o);
/** Lists the runs, or prints the status of one. */
int rdzv_status(const struct rdzv_options *o);
int rdzv_close(const struct rdzv_options *o);
int rdzv_exclude(const struct rdzv_options *o);
int rdzv_include(const struct rdzv_options *o);
/** Stores PyTorch's extra data, or waits for it. */
int rdzv_extra(const struct rdzv_options *o);

#endif
