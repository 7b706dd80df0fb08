/*
 * Questions to a server of native rendezvous from a client that is not a node: the status of its
 * runs, or to close one. Each question has a session of its own.
 */
#ifndef MU_RDZV_ASK_H
#define MU_RDZV_ASK_H

#include "core/env.h"
#include "core/err.h"

enum mu_rdzv_question {
    MU_RDZV_ASK_STATUS = 1,
    MU_RDZV_ASK_CLOSE,
};

/* Places and states have the names that users see. */
struct mu_rdzv_member_view {
    const char *node;
    const char *addr;
    const char *place; /* "gathering", "running", "waiting", "spare" */
    int64_t rank;      /* -1: it has no rank */
    uint64_t silent_ms;
};

struct mu_rdzv_run_view {
    const char *run_id;
    const char *state; /* "gathering", "running", "closed", "failed" */
    const char *text;  /* one sentence */
    uint64_t incarnation;
    uint64_t round;
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint32_t restarts_left; /* UINT32_MAX: no bound */
    uint32_t gathering, running, waiting, spare;
    size_t member_count; /* 0 if the question was for all runs */
    const struct mu_rdzv_member_view *members;
};

/* All arguments are lent for the call. */
struct mu_rdzv_ask_events {
    /** Comes for each run, before `done`. */
    void (*run)(void *context, const struct mu_rdzv_run_view *run);
    /** The last callback: 0, or with a text MUSTER_ENOENT (no such run), MUSTER_ERDZV_CONN,
     * MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_STATE (an answer that cannot be understood). */
    void (*done)(void *context, int status, const char *text);
    void *context;
};

/**
 * Asks. `run_id` "": all runs, without their members (status only). `done` follows, within
 * `timeout_ms` or a little more. MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_rdzv_ask(struct mu_env *env, enum mu_rdzv_question question, const struct mu_addr *server,
                const char *run_id, uint32_t timeout_ms, const struct mu_rdzv_ask_events *events);

#endif
