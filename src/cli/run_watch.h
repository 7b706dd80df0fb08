/*
 * Makes `muster run` observable: the status page (--http), and events as JSON lines (--log-format
 * json, --events). The agent's callbacks are passed on to it.
 *
 *     run_watch_open(&w, &options, &config, env, output, host)
 *     run_watch_log(), _record(), _prepare(), _started(), _step(), _hang(), _straggler(), _paced(),
 *     _exited(), _gone(), _ended()
 *     run_watch_close(&w, then, context)       then(context) once the page is closed
 *     run_watch_fini(&w)
 */
#ifndef MU_RUN_WATCH_H
#define MU_RUN_WATCH_H

#include "cli/cli_log.h"
#include "cli/cli_page.h"
#include "cli/run_options.h"
#include "service/agent/status.h"
#include "service/agent/output.h"

struct run_watch {
    struct mu_agent_status status;
    struct mu_output *output;
    struct mu_status_page *page; /* NULL: there is no page */
    const char *run_id;
    void (*then)(void *context);
    void *context;
};

/** Diverts JSON lines to the console of the run, and opens the page in an environment without a
 * lock, because a page has its own. Returns 0, or an exit code after it has printed the error. */
int run_watch_open(struct run_watch *w, struct run_options *o,
                   const struct mu_agent_service_config *config, struct mu_env *env,
                   struct mu_output *output, const char *host);
/** Closes the page, then calls `then`; at once if there is no page. */
void run_watch_close(struct run_watch *w, void (*then)(void *context), void *context);
void run_watch_fini(struct run_watch *w);
/** Returns the page's address, for the user; "": there is no page. */
const char *run_watch_address(const struct run_watch *w, char *buf, size_t cap);
/** Returns HOST:PORT at which other nodes can open the page, if they can; else "". `local_addr` is
 * how they reach this node; "" or NULL: under its host name. */
const char *run_watch_address_for_others(const struct run_watch *w, const char *local_addr,
                                         const char *host, char *buf, size_t cap);

void run_watch_log(struct run_watch *w, const char *line);
void run_watch_record(struct run_watch *w, const struct mu_rdzv_record *record);
void run_watch_prepare(struct run_watch *w, const struct mu_agent_attempt *attempt);
void run_watch_started(struct run_watch *w, const struct mu_agent_service *agent);
void run_watch_step(struct run_watch *w, uint32_t local_rank, uint64_t step, uint64_t ns);
void run_watch_hang(struct run_watch *w, const struct mu_hang *hang);
void run_watch_health(struct run_watch *w, const struct mu_health_findings *now,
                      const struct mu_health_finding *news);
void run_watch_straggler(struct run_watch *w, const struct mu_straggle_change *change);
void run_watch_paced(struct run_watch *w, const struct mu_agent_paced *paced);
void run_watch_exited(struct run_watch *w, const struct mu_agent_worker_end *end);
void run_watch_gone(struct run_watch *w);
void run_watch_ended(struct run_watch *w, const struct mu_agent_verdict *verdict);

#endif
