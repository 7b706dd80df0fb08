/*
 * Questions to a server of native rendezvous from a client that is not a node: the status of its
 * runs, to close one, or to exclude a node from one. Each question has a session of its own.
 *
 * Of several servers they are asked in turn, until one can be reached that knows the run. A node
 * that could host the run but does not (docs/succession.md) knows who does: that one is asked then.
 */
#ifndef MU_RDZV_ASK_H
#define MU_RDZV_ASK_H

#include "core/env.h"
#include "core/err.h"

#define MU_RDZV_ASK_SERVERS_MAX 32

enum mu_rdzv_question {
    MU_RDZV_ASK_STATUS = 1,
    MU_RDZV_ASK_CLOSE,
    MU_RDZV_ASK_EXCLUDE,
};

/* Places and states have the names that users see. */
struct mu_rdzv_member_view {
    const char *node;
    const char *addr;
    const char *place; /* "gathering", "running", "waiting", "spare" */
    int64_t rank;      /* -1: it has no rank */
    uint64_t silent_ms;
};

/* A node that is not let in. */
struct mu_rdzv_exclusion_view {
    const char *node;
    const char *machine; /* or its name, if that is all that is known */
    const char *reason;
    uint64_t left_ms;
    bool by_hand;
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
    size_t exclusion_count; /* likewise */
    const struct mu_rdzv_exclusion_view *exclusions;
    struct mu_addr server; /* which one told us: the store of the round is there, too */
};

/* Whom to ask. */
struct mu_rdzv_ask_servers {
    struct mu_addr addrs[MU_RDZV_ASK_SERVERS_MAX];
    size_t count;
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
 * `timeout_ms` or a little more for the last server. MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_rdzv_ask(struct mu_env *env, enum mu_rdzv_question question,
                const struct mu_rdzv_ask_servers *servers, const char *run_id, uint32_t timeout_ms,
                const struct mu_rdzv_ask_events *events);
/** Does not let a node in for a time, by its name, its host or its machine; `for_ms` 0: lets it in
 * again. `reason` may be "". Otherwise as mu_rdzv_ask(). */
int mu_rdzv_ask_exclude(struct mu_env *env, const struct mu_rdzv_ask_servers *servers,
                        const char *run_id, const char *who, const char *reason, uint64_t for_ms,
                        uint32_t timeout_ms, const struct mu_rdzv_ask_events *events);

#endif
