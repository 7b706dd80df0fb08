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
    uint64_t timeout;     /* seconds: status, close, extra */
    uint64_t version;     /* extra */
    const char *words[2]; /* extra */
    bool json;
    bool rejoin;
    bool verbose;
    bool quiet;
    struct cli_log_options log;
    struct cli_lock *lock;
};

/** "N" or "MIN:MAX". Returns 0 or CLI_USAGE, said. */
int rdzv_parse_nnodes(const char *text, uint32_t *ret_min, uint32_t *ret_max);

/** A member until a signal, or the round's end. Returns an exit code. */
int rdzv_join(const struct rdzv_options *o);
/** Says which runs there are, or how one stands. */
int rdzv_status(const struct rdzv_options *o);
int rdzv_close(const struct rdzv_options *o);
/** PyTorch's extra data: stored, or waited for. */
int rdzv_extra(const struct rdzv_options *o);

#endif
