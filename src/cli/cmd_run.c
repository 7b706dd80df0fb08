/* muster run: the elastic launcher; torchrun's place, options and environment. */
#include "cli/run_output.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli_loop.h"

struct run {
    struct run_options o;
    struct cli_loop loop;
    struct run_output *output;
    struct mu_agent_service *agent;
    char host[256];
    struct mu_post drained;
    atomic_bool posted; /* `drained` is on its way */
    bool wordy;         /* every decision is told */
    int code;
};

/* --- what the agent tells --------------------------------------------------------------------- */

static void on_log(void *context, const char *line)
{
    struct run *r = context;

    if (r->wordy) {
        run_output_say(r->output, line);
    }
}

static int on_prepare(void *context, const struct mu_agent_attempt *attempt,
                      struct mu_errmsg *reterr_msg)
{
    return run_output_prepare(((struct run *)context)->output, attempt, reterr_msg);
}

static const char *on_error_file(void *context, uint32_t local_rank)
{
    return run_output_error_file(((struct run *)context)->output, local_rank);
}

static void on_read_error_file(void *context, uint32_t local_rank, struct mu_buf *out)
{
    run_output_read_error_file(((struct run *)context)->output, local_rank, out);
}

static size_t on_output(void *context, uint32_t local_rank, enum mu_stream stream,
                        struct mu_span in)
{
    return run_output_take(((struct run *)context)->output, local_rank, stream, in);
}

static void on_gone(void *context, const struct mu_agent_attempt *attempt)
{
    (void)attempt;
    run_output_gone(((struct run *)context)->output);
}

/* One line of JSON for each step of the rendezvous: --event-log-handler console. */
static void on_record(void *context, const struct mu_rdzv_record *record)
{
    static const char *const states[] = {"", "INIT", "RUNNING", "SUCCEEDED", "FAILED"};
    struct run *r = context;
    json_t *line;
    char *text;

    if (!r->o.events) {
        return;
    }
    line = json_pack("{s:s*, s:s*, s:s*, s:s*, s:s, s:I}", "name", record->name, "run_id",
                     record->run_id, "message", record->message, "node", record->node, "node_state",
                     states[record->state], "pid", (json_int_t)getpid());
    if (line != NULL && record->rank >= 0) {
        (void)json_object_set_new(line, "rank", json_integer(record->rank));
    }
    text = line == NULL ? NULL : json_dumps(line, JSON_COMPACT);
    if (text != NULL) {
        run_output_write(r->output, text, strlen(text));
    }
    free(text);
    json_decref(line);
}

/* Written beside and renamed, so that nobody reads half of it. */
static void write_verdict(const char *path, struct mu_span text)
{
    char temporary[4096];
    FILE *f = NULL;

    if (snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid()) <
        (int)sizeof(temporary)) {
        f = fopen(temporary, "we");
    }
    if (f != NULL) {
        bool ok = fwrite(text.data, 1, text.len, f) == text.len;

        ok = fclose(f) == 0 && ok;
        if (ok && rename(temporary, path) == 0) {
            return;
        }
        (void)unlink(temporary);
    }
    (void)cli_fail(CLI_FAILED, "cannot write the verdict to \"%s\": %s", path, strerror(errno));
}

static void on_ended(void *context, const struct mu_agent_verdict *verdict)
{
    struct run *r = context;
    struct mu_buf text;

    r->code = mu_agent_verdict_exit_code(verdict);
    mu_buf_init(&text, (size_t)16 << 20);
    if (r->code != 0 && mu_agent_verdict_text(verdict, &text) == 0) {
        struct mu_span s = mu_buf_span(&text);

        run_output_write(r->output, (const char *)s.data, s.len);
    }
    mu_buf_reset(&text);
    if (r->o.verdict != NULL && mu_agent_verdict_json(verdict, &text) == 0) {
        write_verdict(r->o.verdict, mu_buf_span(&text));
    }
    mu_buf_fini(&text);
    mu_agent_service_free(r->agent);
}

static void on_freed(void *context)
{
    struct run *r = context;

    r->agent = NULL;
    cli_loop_stop(&r->loop);
}

/* --- from other threads ----------------------------------------------------------------------- */

static void on_signal(void *context, int number)
{
    struct run *r = context;

    if (r->agent != NULL) {
        mu_agent_service_signal(r->agent, number);
    }
}

static void resume_output(struct mu_post *post)
{
    struct run *r = MU_CONTAINER_OF(post, struct run, drained);

    atomic_store(&r->posted, false);
    if (r->agent != NULL) {
        run_output_resume(r->output, r->agent);
    }
}

/* On the writer's thread. */
static void on_drained(void *context)
{
    struct run *r = context;

    if (!atomic_exchange(&r->posted, true)) {
        mu_uv_env_post(r->loop.uv, &r->drained);
    }
}

/* --- the run ---------------------------------------------------------------------------------- */

static bool variable_is(const char *name, const char *value)
{
    const char *text = getenv(name);

    return text != NULL && strcmp(text, value) == 0;
}

static struct mu_agent_service_config make_config(const struct run_options *o)
{
    struct mu_agent_service_config c = mu_agent_service_config_defaults();

    c.policy.workers = o->workers;
    c.policy.restarts_max = o->restarts_max;
    c.policy.grace_ms = o->grace_ms;
    c.policy.change_ms = o->grace_ms;
    for (int i = 0; i <= RUN_SIGNAL_MAX; i++) {
        c.policy.signal_map[i] = (uint8_t)o->sent_for[i];
    }
    c.rdzv = (struct mu_rdzv_params){
        .backend = o->rdzv.backend,
        .endpoint = o->rdzv.endpoint,
        .run_id = o->rdzv.run_id,
        .nodes_min = o->rdzv.nodes_min,
        .nodes_max = o->rdzv.nodes_max,
        .local_addr = o->rdzv.local_addr,
        .config = o->rdzv.config,
    };
    c.argv = (const char *const *)o->argv.items;
    c.inherited = (const char *const *)environ;
    c.role = o->role;
    c.identical = variable_is("TORCH_ELASTIC_WORKER_IDENTICAL", "1");
    c.share = !variable_is("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
    c.virtual_local_rank = o->virtual_local_rank;
    c.signals_to_handle = o->signals_to_handle;
    return c;
}

static int run_agent(struct run *r)
{
    const struct mu_agent_service_events events = {
        .log = on_log,
        .prepare = on_prepare,
        .error_file = on_error_file,
        .read_error_file = on_read_error_file,
        .output = on_output,
        .gone = on_gone,
        .ended = on_ended,
        .record = on_record,
        .freed = on_freed,
        .context = r,
    };
    struct mu_agent_service_config config = make_config(&r->o);
    struct mu_errmsg msg;
    int err;

    if (gethostname(r->host, sizeof(r->host) - 1) == 0) {
        config.host = r->host;
    }
    err = mu_agent_service_new(r->loop.env, &config, &events, &r->agent, &msg);

    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", msg.text);
    }
    mu_agent_service_start(r->agent);
    cli_loop_run(&r->loop);
    return r->code;
}

/* torchrun's LOGLEVEL: without it, only what somebody should look at. */
static void set_log_level(struct run *r)
{
    const char *text = getenv("LOGLEVEL");
    enum muster_log_level level = MUSTER_LOG_WARN;

    if (text != NULL && strcasecmp(text, "DEBUG") == 0) {
        level = MUSTER_LOG_DEBUG;
    } else if (text != NULL && strcasecmp(text, "INFO") == 0) {
        level = MUSTER_LOG_INFO;
    } else if (text != NULL &&
               (strcasecmp(text, "ERROR") == 0 || strcasecmp(text, "CRITICAL") == 0)) {
        level = MUSTER_LOG_ERROR;
    }
    r->wordy = level != MUSTER_LOG_ERROR;
    muster_log_set(NULL, NULL, level);
}

static int run(struct run *r)
{
    sigset_t set;
    int code;

    (void)sigemptyset(&set);
    for (int i = 1; i < RUN_SIGNAL_MAX; i++) {
        if (r->o.handled[i]) {
            (void)sigaddset(&set, i);
        }
    }
    set_log_level(r);
    (void)cli_raise_descriptor_limit();
    code = cli_loop_open_for(&r->loop, &set, on_signal, r);
    if (code != 0) {
        return code;
    }
    r->drained.run = resume_output;
    code = run_output_new(&r->o, on_drained, r, &r->output);
    if (code == 0) {
        if (r->o.omp_threads && r->wordy) {
            run_output_say(r->output, "OMP_NUM_THREADS is set to 1 for each worker, since nobody "
                                      "has set it; another number may be faster");
        }
        code = run_agent(r);
        atomic_store(&r->posted, true); /* the loop takes no more */
        run_output_free(r->output);
    }
    cli_loop_close(&r->loop);
    return code;
}

int cmd_run(int argc, char **argv)
{
    static struct run r;
    struct run_machine machine = run_machine_probe();
    int code = run_options_parse(&r.o, argc, argv);

    if (code == 0) {
        code = run_options_resolve(&r.o, &machine);
    }
    if (code == 0) {
        code = run(&r);
    }
    run_options_fini(&r.o);
    return code;
}
