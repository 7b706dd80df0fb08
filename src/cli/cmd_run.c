/* muster run: the elastic launcher, with torchrun's options and environment. */
#include "cli/run_events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/cli_loop.h"
#include "cli/cli_time.h"
#include "cli/run_explain.h"
#include "cli/run_flight.h"
#include "cli/run_torch.h"
#include "cli/run_kept.h"
#include "cli/run_lookup.h"
#include "cli/run_progress.h"
#include "cli/run_verdict.h"
#include "cli/run_watch.h"
#include "core/printable.h"
#include "transport/uv_files.h"

#define REPORT_SAID "the stacks of all ranks are in "

struct run {
    struct run_options o;
    struct run_torch torch; /* of the workers */
    struct run_flight flight;
    struct cli_loop loop;
    struct mu_files *files;
    struct mu_output *output;
    struct mu_agent_service *agent;
    struct run_events events;
    struct run_watch watch;
    struct run_explain explain;
    struct run_progress progress;
    char host[256];
    char page[MU_RDZV_RUN_ID_MAX + 1]; /* the status page's address for others */
    char waits_for[512];               /* what a line told last, of those that are rewritten */
    uint32_t ranks[RUN_WORKERS_MAX];   /* ranks of the workers that are being started */
    bool wordy;                        /* every decision is printed */
    int code;
};

/* --- messages --------------------------------------------------------------------------------- */

#define LINE_MAX_BYTES 1152

/* Writes a line of ours for people: with the time, whole, and without what a terminal obeys. */
static size_t put_line(char text[LINE_MAX_BYTES], const char *line)
{
    char stamp[CLI_TIME_CAP];
    int n = snprintf(text, LINE_MAX_BYTES, "%smuster: ", cli_time_stamp(stamp));

    (void)mu_printable(text + n, LINE_MAX_BYTES - (size_t)n, mu_span_str(line), false);
    return strlen(text);
}

static void say(struct run *r, const char *line)
{
    char text[LINE_MAX_BYTES + 1];
    size_t len;

    if (cli_log_is_json()) {
        cli_log_tell(MUSTER_LOG_INFO, "RUN", -1, NULL, "%s", line);
        return;
    }
    len = put_line(text, line);
    text[len] = '\n';
    mu_output_say(r->output, MU_STDERR, mu_span(text, len + 1));
}

/* Columns of the terminal on standard error; 0: it is no terminal, or one that cannot rewrite. */
static size_t columns(void)
{
    const char *term = getenv("TERM");
    struct winsize size;

    return term == NULL || strcmp(term, "dumb") == 0 || isatty(STDERR_FILENO) == 0 ||
                   ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0
               ? 0
               : size.ws_col;
}

/* Whether a line says the same as the one before, apart from the times at its beginning. */
static bool is_told(struct run *r, const char *line)
{
    const char *what = strstr(line, ": ");
    bool told;

    what = what != NULL ? what : line;
    told = strncmp(r->waits_for, what, sizeof(r->waits_for) - 1) == 0;
    (void)snprintf(r->waits_for, sizeof(r->waits_for), "%s", what);
    return told;
}

/* On a terminal, a line that says what is waited for takes the place of the one before. One that is
 * longer than the terminal is wide is shown whole once, since its end says what to try. */
static void on_waits(void *context, const char *line)
{
    struct run *r = context;
    char text[LINE_MAX_BYTES];
    size_t room = columns();
    size_t len;

    run_watch_log(&r->watch, line);
    if (!r->wordy || cli_log_is_json()) {
        return;
    }
    len = put_line(text, line);
    if (room < 40 || (!is_told(r, line) && len >= room)) {
        say(r, line);
        return;
    }
    len = len < room ? len : room - 1;
    while (len > 0 && ((unsigned char)text[len] & 0xc0) == 0x80) {
        len--; /* not in the middle of a character */
    }
    mu_output_rewrite(r->output, MU_STDERR, mu_span(text, len));
}

static void on_log(void *context, const char *line)
{
    struct run *r = context;

    run_watch_log(&r->watch, line);
    if (r->wordy && !cli_log_is_json()) {
        say(r, line);
    }
}

/* --- workers' output and files ---------------------------------------------------------------- */

static int on_prepare(void *context, const struct mu_agent_attempt *attempt,
                      struct mu_errmsg *reterr_msg)
{
    struct run *r = context;
    int err;

    for (uint32_t i = 0; i < attempt->workers; i++) {
        r->ranks[i] = attempt->ranks.base + i;
    }
    err =
        mu_output_begin(r->output, attempt->restart_count, r->ranks, attempt->workers, reterr_msg);
    if (err == 0) {
        run_explain_begin(&r->explain);
        run_events_prepare(&r->events, attempt);
        run_watch_prepare(&r->watch, attempt);
    }
    return err;
}

static const char *on_error_file(void *context, uint32_t local_rank)
{
    return mu_output_error_file(((struct run *)context)->output, local_rank);
}

static void on_read_error_file(void *context, uint32_t local_rank, struct mu_buf *out)
{
    mu_output_read_error(((struct run *)context)->output, local_rank, out);
}

static void on_explain(void *context, const struct mu_agent_worker_end *end, const char *tail,
                       char *text, size_t cap)
{
    struct run *r = context;

    run_explain(&r->explain, &r->o, end, tail, text, cap);
}

static void on_log_files(void *context, uint32_t local_rank, char *text, size_t cap)
{
    mu_output_log_files(((struct run *)context)->output, local_rank, text, cap);
}

static void on_streams(void *context, uint32_t local_rank, struct mu_spawn *what)
{
    struct run *r = context;

    mu_output_fill(r->output, local_rank, what);
    what->cpus = r->o.cpus == NULL ? NULL : &r->o.cpus[local_rank];
}

static void on_mark(void *context, uint32_t local_rank, const uint64_t *step)
{
    mu_agent_service_mark(((struct run *)context)->agent, local_rank, step);
}

static size_t on_output(void *context, uint32_t local_rank, struct mu_child *child,
                        enum mu_stream stream, struct mu_span in)
{
    struct run *r = context;
    size_t used = mu_output_take(r->output, local_rank, child, stream, in);

    if (run_progress_take(&r->progress, local_rank, stream, mu_span(in.data, used), on_mark, r)) {
        say(r, "--progress-regex takes too long: some lines are not looked at; write a simpler "
               "pattern, or print less");
    }
    return used;
}

static size_t on_tail(void *context, uint32_t local_rank, uint8_t *buf, size_t cap)
{
    return mu_output_tail(((struct run *)context)->output, local_rank, buf, cap);
}

static void on_step(void *context, uint32_t local_rank, uint64_t step, uint64_t ns)
{
    run_watch_step(&((struct run *)context)->watch, local_rank, step, ns);
}

/* The whole report, beside the logs of the workers. What cannot be written is in the verdict. */
static void keep_report(struct run *r, const struct mu_hang *hang)
{
    const char *dir = mu_output_run_dir(r->output);
    char line[LINE_MAX_BYTES];
    const char *path = line + strlen(REPORT_SAID);
    FILE *file;

    if (dir == NULL || hang->over || hang->action == MU_HANG_TELL ||
        snprintf(line, sizeof(line), REPORT_SAID "%s/hang_%llu_%llu.txt", dir,
                 (unsigned long long)r->watch.status.attempt.round,
                 (unsigned long long)hang->number) >= (int)sizeof(line)) {
        return;
    }
    file = fopen(path, "we");
    if (file != NULL) {
        (void)fprintf(file, "%s\n%s", hang->text, hang->stacks);
        (void)fclose(file);
        say(r, line);
    }
}

/* The stacks are for people; a log of JSON lines has them in its event. */
static void on_hang(void *context, const struct mu_hang *hang)
{
    struct run *r = context;
    struct mu_span rest = mu_span_str(hang->stacks);

    run_watch_hang(&r->watch, hang);
    keep_report(r, hang);
    while (hang->action != MU_HANG_TELL && !cli_log_is_json() && rest.len != 0) {
        const char *newline = memchr(rest.data, '\n', rest.len);
        size_t len = newline == NULL ? rest.len : (size_t)(newline - (const char *)rest.data);
        char line[LINE_MAX_BYTES];

        (void)snprintf(line, sizeof(line), "%.*s", (int)len, (const char *)rest.data);
        say(r, line);
        rest = mu_span_skip(rest, newline == NULL ? len : len + 1);
    }
}

static void on_health(void *context, const struct mu_health_findings *now,
                      const struct mu_health_finding *news)
{
    run_watch_health(&((struct run *)context)->watch, now, news);
}

static void on_straggler(void *context, const struct mu_straggle_change *change)
{
    run_watch_straggler(&((struct run *)context)->watch, change);
}

static void on_paced(void *context, const struct mu_agent_paced *paced)
{
    run_watch_paced(&((struct run *)context)->watch, paced);
}

static void on_exited(void *context, const struct mu_agent_worker_end *end)
{
    struct run *r = context;

    mu_output_exited(r->output, end->local_rank);
    run_watch_exited(&r->watch, end);
}

static void on_gone(void *context, const struct mu_agent_attempt *attempt)
{
    struct run *r = context;

    (void)attempt;
    mu_output_end(r->output);
    run_events_gone(&r->events);
    run_watch_gone(&r->watch);
}

/* --- other events of the agent ---------------------------------------------------------------- */

/* --event-log-handler console needs the time. */
static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct run *r = context;

    run_events_record(&r->events, record);
    run_watch_record(&r->watch, record);
}

static void on_started(void *context, const struct mu_agent_attempt *attempt)
{
    struct run *r = context;

    (void)attempt;
    run_events_started(&r->events, r->agent);
    run_watch_started(&r->watch, r->agent);
}

/* The verdict of a run that failed says how long it took. */
static void say_end(struct run *r, const struct mu_agent_verdict *verdict)
{
    char took[CLI_TIME_CAP];
    char line[CLI_TIME_CAP + 64];

    (void)snprintf(line, sizeof(line), "%s after %s",
                   verdict->outcome == MU_AGENT_GRACEFUL ? "ended as a spare" : "succeeded",
                   cli_time_took(took, verdict->took_ms));
    if (!cli_log_is_json() && r->wordy && r->code == 0) {
        say(r, line);
    }
}

/* Workers that write to a full disk fail, and cannot say so if their words go there, too. */
static void say_full_disk(struct run *r)
{
    const char *dir = mu_output_run_dir(r->output);
    struct statvfs disk;
    char line[600];

    if (r->code != 0 && dir != NULL && statvfs(dir, &disk) == 0 && disk.f_blocks != 0 &&
        disk.f_bavail == 0) {
        (void)snprintf(line, sizeof(line),
                       "the disk of the log files is full, and may be why it failed: %.400s", dir);
        say(r, line);
    }
}

static void on_ended(void *context, const struct mu_agent_verdict *verdict)
{
    struct run *r = context;
    const char *error_file = getenv("TORCHELASTIC_ERROR_FILE");
    char head[LINE_MAX_BYTES];
    struct mu_buf text;

    r->code = mu_agent_verdict_exit_code(verdict);
    run_events_ended(&r->events, verdict);
    run_watch_ended(&r->watch, verdict);
    mu_buf_init(&text, (size_t)16 << 20);
    if (r->code != 0 && !cli_log_is_json() &&
        mu_agent_verdict_text(verdict, r->wordy, &text) == 0) {
        put_line(head, "");
        mu_output_say(r->output, MU_STDERR, mu_span_str(head));
        mu_output_say(r->output, MU_STDERR, mu_buf_span(&text));
    }
    mu_buf_fini(&text);
    say_full_disk(r);
    say_end(r, verdict);
    if (r->o.verdict != NULL) {
        run_verdict_write(r->o.verdict, verdict);
    }
    if (r->code != 0 && error_file != NULL && error_file[0] != '\0') {
        run_verdict_write_error_file(error_file, verdict,
                                     (int64_t)(mu_env_now(r->loop.env).wall.ns / MU_NS_PER_S));
    }
    mu_agent_service_free(r->agent);
}

static void on_drained(void *context)
{
    cli_loop_stop(&((struct run *)context)->loop);
}

/* The status page is closed. */
static void on_unwatched(void *context)
{
    struct run *r = context;

    if (mu_output_flush(r->output, on_drained, r)) {
        cli_loop_stop(&r->loop);
    }
}

static void on_freed(void *context)
{
    struct run *r = context;

    r->agent = NULL;
    run_watch_close(&r->watch, on_unwatched, r);
}

static void on_signal(void *context, int number)
{
    struct run *r = context;

    if (r->agent != NULL) {
        mu_agent_service_signal(r->agent, number);
    } else {
        cli_loop_stop(&r->loop); /* only a console that is not read delays the end */
    }
}

/* --- the run ---------------------------------------------------------------------------------- */

static bool variable_is(const char *name, const char *value)
{
    const char *text = getenv(name);

    return text != NULL && strcmp(text, value) == 0;
}

/* What workers open in libmuster obeys the same lock. They get the path of the credential, not its
 * content. */
static void tell_workers(const char *name, const char *path)
{
    char *whole = path == NULL ? NULL : realpath(path, NULL);

    if (whole != NULL) {
        (void)setenv(name, whole, 1);
        free(whole);
    }
}

static void tell_workers_of_lock(const struct muster_lock *lock)
{
    tell_workers("MUSTER_TOKEN_FILE", lock->token_file);
    tell_workers("MUSTER_TLS_CERT", lock->cert);
    tell_workers("MUSTER_TLS_KEY", lock->key);
    tell_workers("MUSTER_TLS_CA", lock->ca);
    if (lock->insecure) {
        (void)setenv("MUSTER_INSECURE", "1", 1);
    }
}

/* PyTorch before 2.2 knows the switch by another name, of which later releases warn. */
static void tell_workers_of_nccl(struct run *r)
{
    const struct run_torch_env env = {
        .path = getenv("PATH"),
        .pythonpath = getenv("PYTHONPATH"),
        .userbase = getenv("PYTHONUSERBASE"),
        .home = getenv("HOME"),
    };

    r->torch = run_torch_find((const char *const *)r->o.argv.items, &env);
    if (run_torch_is_old(r->torch)) {
        (void)setenv("NCCL_ASYNC_ERROR_HANDLING", "1", 0);
    }
}

/* Returns whether PyTorch's agents may be in the job: a store that one of them serves has no
 * gateway. */
static bool may_be_mixed(const struct run_options *o, const struct muster_lock *lock)
{
    const char *backend = o->rdzv.backend;

    return (lock->insecure || lock->allow_count != 0) &&
           (strcmp(backend, "c10d") == 0 || strcmp(backend, "etcd-v2") == 0 ||
            strcmp(backend, "etcd") == 0);
}

static struct mu_agent_service_config make_config(struct run_options *o)
{
    const struct muster_lock *lock = cli_lock_of(&o->lock);
    struct mu_agent_service_config c = mu_agent_service_config_defaults();

    c.policy.workers = o->workers;
    c.policy.restarts_max = o->restarts_max;
    if (o->max_losses != NULL) {
        c.policy.losses.max = o->losses_max;
        c.policy.losses.window_ms = o->losses_ms;
    }
    c.policy.grace_ms = o->grace_ms;
    c.policy.change_ms = o->grace_ms;
    c.health = strcmp(o->health, "on") == 0     ? MU_AGENT_HEALTH_ON
               : strcmp(o->health, "warn") == 0 ? MU_AGENT_HEALTH_TELLS
                                                : MU_AGENT_HEALTH_OFF;
    c.policy.check = o->check != NULL || c.health == MU_AGENT_HEALTH_ON;
    c.policy.excluded_ends = strcmp(o->exclude_action, "exit") == 0;
    c.hang_ms = o->hang_ms;
    c.straggle_ms = o->straggle_ms;
    c.marked = o->progress_regex != NULL;
    (void)mu_hang_action_of(mu_span_str(o->hang_action), &c.hang_action);
    c.check = o->check;
    c.check_ms = cli_ms(o->check_timeout);
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
    c.keeps = o->keep_memory != NULL;
    c.keep_bytes = o->keep_bytes;
    c.keep_copies = (uint32_t)o->keep_copies;
    c.zygote = o->zygote.count == 0 ? NULL : (const char *const *)o->zygote.items;
    c.inherited = (const char *const *)environ;
    c.role = o->role;
    c.identical = variable_is("TORCH_ELASTIC_WORKER_IDENTICAL", "1");
    c.share = !variable_is("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1");
    c.backing = o->store_backing;
    c.sealed = (lock->token_file != NULL || lock->cert != NULL) && !may_be_mixed(o, lock);
    c.holds = strcmp(o->store_hold, "on") == 0;
    c.relays = o->relay_count;
    c.virtual_local_rank = o->virtual_local_rank;
    c.signals_to_handle = o->signals_to_handle;
    return c;
}

static void say_page(struct run *r)
{
    char address[MU_ADDR_HOST_MAX + 16];
    char line[MU_ADDR_HOST_MAX + 48];

    if (run_watch_address(&r->watch, address, sizeof(address))[0] != '\0') {
        (void)snprintf(line, sizeof(line), "status at http://%s/", address);
        say(r, line);
    }
}

/* A worker that writes to a file itself is not heard. */
static void say_unheard(struct run *r)
{
    for (uint32_t i = 0; r->progress.on && i < r->o.workers; i++) {
        if (mu_std_masks_get(&r->o.redirect_masks, i) != MU_STD_NONE) {
            say(r,
                "--progress-regex does not see what --redirects sends to files; use --tee instead");
            return;
        }
    }
}

/* The first line: a name server that does not answer, or a host that is not there, comes later. */
static void say_meeting(struct run *r)
{
    const struct muster_rdzv_params *p = &r->o.rdzv;
    char line[512];

    if (p->nodes_max == 1 || !r->wordy) {
        return;
    }
    (void)snprintf(line, sizeof(line), "run \"%.120s\": %u%s%.0u nodes meet at %.200s (backend %s)",
                   p->run_id, p->nodes_min, p->nodes_min == p->nodes_max ? "" : " to ",
                   p->nodes_min == p->nodes_max ? 0 : p->nodes_max, p->endpoint, p->backend);
    say(r, line);
}

static int new_agent(struct run *r, const struct mu_agent_service_config *config,
                     const struct mu_agent_service_events *events, struct mu_errmsg *reterr_msg)
{
    struct run_lookup lookup;
    int err;

    run_lookup_begin(&lookup);
    err = mu_agent_service_new(r->loop.env, config, events, &r->agent, reterr_msg);
    run_lookup_end(&lookup);
    return err;
}

static int run_agent(struct run *r)
{
    const struct mu_agent_service_events events = {
        .log = on_log,
        .waits = on_waits,
        .prepare = on_prepare,
        .error_file = on_error_file,
        .read_error_file = on_read_error_file,
        .explain = on_explain,
        .log_files = on_log_files,
        .streams = on_streams,
        .output = on_output,
        .tail = on_tail,
        .started = on_started,
        .step = on_step,
        .hang = on_hang,
        .health = on_health,
        .straggler = on_straggler,
        .paced = on_paced,
        .exited = on_exited,
        .gone = on_gone,
        .ended = on_ended,
        .record = on_record,
        .freed = on_freed,
        .context = r,
    };
    struct mu_agent_service_config config = make_config(&r->o);
    struct mu_errmsg msg;
    int code;
    int err;

    config.flight = r->flight.path[0] == '\0' ? NULL : r->flight.path;
    config.flight_renamed = run_torch_renamed_flight(r->torch);
    if (gethostname(r->host, sizeof(r->host) - 1) == 0) {
        config.host = r->host;
    }
    config.log_dir = mu_output_run_dir(r->output);
    run_events_init(&r->events, &r->o, r->output, r->loop.env, r->host);
    say_meeting(r);
    say_unheard(r);
    code = run_watch_open(&r->watch, &r->o, &config, mu_uv_env_env(r->loop.uv), r->output, r->host);
    config.rdzv.page = run_watch_address_for_others(&r->watch, config.rdzv.local_addr, r->host,
                                                    r->page, sizeof(r->page));
    err = code != 0 ? 0 : new_agent(r, &config, &events, &msg);
    if (err != 0) {
        code = cli_fail(CLI_FAILED, "%s", msg.text);
        run_watch_close(&r->watch, on_unwatched, r);
    }
    if (code == 0) {
        say_page(r);
        mu_agent_service_start(r->agent);
    }
    if (code == 0 || err != 0) {
        cli_loop_run(&r->loop);
    }
    if (run_progress_missed(&r->progress)) {
        say(r, "--progress-regex has matched no line of the workers of this node");
    }
    run_watch_fini(&r->watch);
    return code != 0 ? code : r->code;
}

static void on_lost(void *context, const char *path, int status)
{
    char line[600];

    (void)snprintf(line, sizeof(line),
                   "cannot write %.400s: %s; what follows is only on the console", path,
                   muster_strerror(status));
    say(context, line);
}

static int open_output(struct run *r)
{
    const struct run_options *o = &r->o;
    const char *temp = getenv("TMPDIR");
    struct mu_output_config config = {
        .base = o->log_dir == NULL ? "" : o->log_dir,
        .temp = temp != NULL && temp[0] != '\0' ? temp : NULL,
        .run_id = o->rdzv.run_id,
        .role = o->role,
        .prefix = getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"),
        .redirects = &o->redirect_masks,
        .tees = &o->tee_masks,
        .shown = &o->shown,
        .filters = {&o->stdout_filters, &o->stderr_filters},
        .lost = on_lost,
        .context = r,
    };
    struct mu_errmsg msg;
    int err = mu_uv_files_new(r->loop.uv, &r->files);

    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", muster_strerror(err));
    }
    config.files = r->files;
    err = mu_output_new(r->loop.env, &config, &r->output, &msg);
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", msg.text);
}

static int open_log(struct run *r)
{
    enum muster_log_level level = cli_log_level();

    r->wordy = level != MUSTER_LOG_ERROR;
    cli_time_begin();
    return cli_log_open(&r->o.log, level,
                        !r->wordy                   ? MUSTER_LOG_ERROR
                        : level == MUSTER_LOG_DEBUG ? MUSTER_LOG_DEBUG
                                                    : MUSTER_LOG_INFO);
}

static int run(struct run *r)
{
    struct run_kept kept;
    sigset_t set;
    int code;

    (void)sigemptyset(&set);
    for (int i = 1; i < RUN_SIGNAL_MAX; i++) {
        if (r->o.handled[i]) {
            (void)sigaddset(&set, i);
        }
    }
    code = open_log(r);
    (void)cli_raise_descriptor_limit();
    tell_workers_of_lock(cli_lock_of(&r->o.lock));
    tell_workers_of_nccl(r);
    code = code != 0 ? code : cli_loop_open_for(&r->loop, &set, on_signal, r);
    if (code == 0) {
        code = cli_loop_lock(&r->loop, &r->o.lock);
    }
    if (code != 0) {
        return code;
    }
    code = open_output(r);
    if (code == 0) {
        if (r->o.omp_threads && r->wordy) {
            say(r, "OMP_NUM_THREADS was not set and is set to 1 for each worker; another number "
                   "may be faster");
        }
        run_kept_begin(&kept, r->o.rdzv.run_id);
        if (strcmp(r->o.flight_recorder, "on") == 0) {
            uint64_t random;

            mu_env_entropy(r->loop.env, &random, sizeof(random));
            run_flight_begin(&r->flight, random);
        }
        code = run_agent(r);
        run_flight_end(&r->flight, code != 0);
        run_kept_end(&kept);
    }
    mu_output_free(r->output);
    if (r->files != NULL) {
        r->files->ops->close(r->files);
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
    if (code == 0 && r.o.verdict != NULL) {
        code = run_verdict_try(r.o.verdict);
    }
    if (code == 0) {
        code = run_progress_open(&r.progress, r.o.progress_regex, r.o.workers);
    }
    if (code == 0) {
        code = run(&r);
    }
    run_progress_close(&r.progress);
    run_options_fini(&r.o);
    return code;
}
