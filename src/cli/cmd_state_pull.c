/* muster state pull, and ls. */
#include "cli/cli_terminal.h"
#include "cli/state_page.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define BAR      24
#define LINE_S   1.0 /* seconds between two lines if there is no terminal */
#define ROWS_MAX 4096

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    if (interrupted != 0) {
        _exit(128 + number);
    }
    interrupted = number;
}

static double seconds(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

struct pull {
    const struct state_options *o;
    bool bar; /* draw a bar on the terminal */
    double said_at;
    double came_at; /* when the first bytes of a hivemind donor were seen; 0: none were */
    double begun;
    bool chosen;
    struct state_page page;
};

/* --- progress --------------------------------------------------------------------------------- */

static void clear_bar(const struct pull *p)
{
    if (p->bar) {
        cli_terminal_control(stderr, "\r\033[K");
    }
}

static void say_chosen(const struct pull *p, const struct muster_state_info *info)
{
    char size[24];

    if (p->o->json) {
        state_print(json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:f}", "event", "chosen",
                              "prefix", info->prefix, "id", info->id, "signer", info->signer,
                              "epoch", (json_int_t)info->epoch, "step", (json_int_t)info->step,
                              "bytes", (json_int_t)info->bytes, "tensors",
                              (json_int_t)info->tensors, "priority", info->priority));
        return;
    }
    clear_bar(p);
    (void)fprintf(stderr,
                  "%s, version %" PRIu64 ".%" PRIu64 ": %" PRIu64 " tensors, %s\nid %s\nsigned "
                  "by %s%s\n",
                  info->prefix, info->epoch, info->step, info->tensors,
                  state_size(size, info->bytes), info->id, info->signer,
                  p->o->trusted_count != 0 || p->o->id != NULL ? "" : ", an unknown key");
}

static void say_time_left(char *out, size_t cap, const struct muster_state_progress *g)
{
    double left = g->bytes_per_s > 1 ? (double)(g->total - g->bytes) / g->bytes_per_s : -1;

    if (left < 0 || left > 359999) {
        (void)snprintf(out, cap, "-:--");
    } else if (left >= 3600) {
        (void)snprintf(out, cap, "%d:%02d:%02d", (int)left / 3600, (int)left / 60 % 60,
                       (int)left % 60);
    } else {
        (void)snprintf(out, cap, "%d:%02d", (int)left / 60, (int)left % 60);
    }
}

static void say_progress(const struct pull *p, const struct muster_state_progress *g)
{
    int percent = g->total == 0 ? 100 : (int)(g->bytes * 100 / g->total);
    char done[24];
    char total[24];
    char rate[24];
    char left[32];
    char bar[BAR + 1];

    say_time_left(left, sizeof(left), g);
    for (int i = 0; i < BAR; i++) {
        bar[i] = i * 100 < percent * BAR ? '#' : '.';
    }
    bar[BAR] = '\0';
    clear_bar(p);
    (void)fprintf(stderr, "%s%s%s%3d%%  %s of %s  %s/s  %s left  %u donor%s%s%s", p->bar ? "[" : "",
                  p->bar ? bar : "", p->bar ? "] " : "", percent, state_size(done, g->bytes),
                  state_size(total, g->total), state_size(rate, (uint64_t)g->bytes_per_s), left,
                  g->donors, g->donors == 1 ? "" : "s", g->banned != 0 ? ", some banned" : "",
                  p->bar ? "" : "\n");
    (void)fflush(stderr);
}

static void print_progress(const struct muster_state_progress *g)
{
    state_print(json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I}", "event", "progress",
                          "bytes", (json_int_t)g->bytes, "total", (json_int_t)g->total, "resumed",
                          (json_int_t)g->resumed, "wasted", (json_int_t)g->wasted, "bytes_per_s",
                          g->bytes_per_s, "donors", (json_int_t)g->donors, "banned",
                          (json_int_t)g->banned, "lost", (json_int_t)g->lost));
}

/* A hivemind donor tells nothing about its state: how much is missing is not known. */
static void say_came(struct pull *p, const struct muster_state_progress *g)
{
    double took;
    char done[24];
    char rate[32] = "";
    char number[24];

    if (p->came_at == 0) {
        p->came_at = seconds();
    }
    took = seconds() - p->came_at;
    if (took > 0.5) {
        (void)snprintf(rate, sizeof(rate), "  %s/s",
                       state_size(number, (uint64_t)((double)g->bytes / took)));
    }
    if (p->o->json) {
        print_progress(g);
        return;
    }
    clear_bar(p);
    (void)fprintf(stderr, "%s from a hivemind donor, which does not tell how much there is%s%s",
                  state_size(done, g->bytes), rate, p->bar ? "" : "\n");
    (void)fflush(stderr);
}

static bool is_time_for_line(const struct pull *p)
{
    return !p->o->quiet && (p->bar || seconds() - p->said_at >= LINE_S);
}

/* Called on the runtime's thread. */
static bool on_progress(void *context, const struct muster_state_progress *g)
{
    struct pull *p = context;

    state_page_progress(&p->page, g);
    if (g->info != NULL && !p->chosen) {
        p->chosen = true;
        if (!p->o->quiet || p->o->json) {
            say_chosen(p, g->info);
        }
    }
    if (g->info == NULL && g->bytes != 0 && is_time_for_line(p)) {
        p->said_at = seconds();
        say_came(p, g);
    } else if (g->info != NULL && is_time_for_line(p)) {
        p->said_at = seconds();
        if (p->o->json) {
            print_progress(g);
        } else {
            say_progress(p, g);
        }
    }
    return interrupted == 0;
}

/* --- pull ------------------------------------------------------------------------------------- */

static bool is_local(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strncmp(addr, "localhost:", 10) == 0 ||
           strncmp(addr, "[::1]:", 6) == 0 || strncmp(addr, "/ip4/127.", 9) == 0;
}

/* A newcomer passes on the chunks that it has, at an address where nodes that can reach the donors
 * can reach it too. */
static const char *own_listener(const struct state_options *o)
{
    bool local = o->word_count != 0 || o->dht_count != 0;
    bool peers = false;

    if (o->no_serve || o->listen != NULL) {
        return o->no_serve ? NULL : o->listen;
    }
    for (size_t i = 0; i < o->word_count; i++) {
        local = local && is_local(o->words[i]);
        peers = peers || o->words[i][0] == '/';
        if (strncmp(o->words[i], "unix:", 5) == 0) {
            return NULL;
        }
    }
    for (size_t i = 0; i < o->dht_count; i++) {
        local = local && is_local(o->dht[i]);
    }
    if (peers || o->identity != NULL) {
        bool said = o->peer_count != 0 || cli_lock_of(o->lock)->insecure;

        return local ? "/ip4/127.0.0.1/tcp/0" : said || o->stay ? "/ip4/0.0.0.0/tcp/0" : NULL;
    }
    if (!local && !cli_lock_lets_in(o->lock) && !o->stay) {
        return NULL; /* No other node could reach the address. */
    }
    return local ? "127.0.0.1:0" : "0.0.0.0:0";
}

static void say_done(const struct pull *p, const muster_state_copy *copy)
{
    const struct muster_state_info *info = muster_state_copy_info(copy);
    const struct muster_state_progress *g = muster_state_copy_progress(copy);
    double took = seconds() - p->begun;
    uint64_t came = g->hivemind ? g->total : g->total - g->resumed;
    char size[24];
    char rate[24];
    char old[24];
    char resumed[48] = "";

    if (p->o->json) {
        state_print(
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:b, s:s}",
                      "event", "done", "file", p->o->output, "id", info->id, "signer", info->signer,
                      "epoch", (json_int_t)info->epoch, "step", (json_int_t)info->step, "bytes",
                      (json_int_t)g->total, "resumed", (json_int_t)g->resumed, "wasted",
                      (json_int_t)g->wasted, "seconds", took, "banned", (json_int_t)g->banned,
                      "lost", (json_int_t)g->lost, "restarts", (json_int_t)g->restarts, "hivemind",
                      g->hivemind ? 1 : 0, "report", muster_state_report()));
        return;
    }
    if (came == 0 && g->total != 0) {
        clear_bar(p);
        (void)fprintf(stderr,
                      "%s is this state already: %s verified in %.1f s, nothing was loaded; signed "
                      "by %s\n",
                      p->o->output, state_size(size, g->total), took, info->signer);
        return;
    }
    if (g->resumed != 0) {
        (void)snprintf(resumed, sizeof(resumed), " (%s were there)", state_size(old, g->resumed));
    }
    clear_bar(p);
    (void)fprintf(stderr, "%s: %s in %.1f s, %s/s%s; %s%s\n", p->o->output,
                  state_size(size, g->total), took,
                  state_size(rate, took > 0 ? (uint64_t)((double)came / took) : 0), resumed,
                  g->hivemind ? "complete, from a hivemind donor, which does not sign"
                              : "verified, signed by ",
                  info->signer);
    if (!p->o->quiet) {
        (void)fputs(muster_state_report(), stderr);
    }
}

static int say_failed(const struct pull *p, int err)
{
    char part[4096];
    const char *remedy = "";

    (void)snprintf(part, sizeof(part), "%s.part", p->o->output);
    clear_bar(p);
    if (access(part, F_OK) == 0) {
        remedy = "; what came is kept: run the same command to continue";
    }
    if (p->o->json) {
        state_print(json_pack("{s:s, s:s, s:s, s:s}", "event", "failed", "error",
                              muster_errname(err), "text", muster_errmsg(), "report",
                              muster_state_report()));
    }
    (void)cli_fail(0, "%s%s", interrupted != 0 ? "interrupted" : muster_errmsg(), remedy);
    if (interrupted == 0) {
        (void)fputs(muster_state_report(), stderr);
    }
    return interrupted != 0 ? 128 + interrupted : cli_exit_code(err);
}

static void stay(void)
{
    sigset_t none;

    (void)sigemptyset(&none);
    while (interrupted == 0) {
        struct timespec tick = {.tv_nsec = 200000000};

        (void)pselect(0, NULL, NULL, NULL, &tick, &none);
    }
}

static int pull(const struct state_options *o, muster_runtime *rt)
{
    static struct pull p;
    struct muster_state_request request;
    muster_state_copy *copy;
    int err;
    int code;

    p.o = o;
    p.begun = seconds();
    code = state_page_open(&p.page, o, "asking");
    if (code != 0) {
        return code;
    }
    err = state_request(o, rt, &request);
    p.bar = !o->json && !o->quiet && isatty(STDERR_FILENO) == 1;
    request.file = o->output;
    request.listen = own_listener(o);
    request.keep_serving = o->stay;
    request.progress = on_progress;
    request.context = &p;
    err = err != 0 ? err : muster_state_load(rt, &request, &copy);
    if (err != 0) {
        state_page_note(&p.page, "failed", "%s", muster_errmsg());
        code = say_failed(&p, err);
    } else {
        state_page_progress(&p.page, muster_state_copy_progress(copy));
        state_page_note(&p.page, "done", "%s is complete", o->output);
        say_done(&p, copy);
        if (o->stay) {
            stay();
        }
        muster_state_copy_free(copy);
    }
    muster_store_close(request.store);
    state_page_close(&p.page);
    return code;
}

/* The file is put in place when all of it has come: what cannot be replaced is refused before. */
static int check_output(const char *output)
{
    struct stat st;

    if (output[0] == '\0') {
        return cli_usage("state", "--output needs a value (FILE)");
    }
    if (output[strlen(output) - 1] == '/' || (stat(output, &st) == 0 && S_ISDIR(st.st_mode))) {
        return cli_usage("state", "%s is a directory: name the file to write in it", output);
    }
    if (stat(output, &st) == 0 && !S_ISREG(st.st_mode)) {
        return cli_usage("state", "%s is not an ordinary file, and would be replaced by one",
                         output);
    }
    return 0;
}

int state_pull(const struct state_options *o)
{
    struct sigaction act = {.sa_handler = on_signal};
    muster_runtime *rt;
    int code = check_output(o->output);

    if (code != 0) {
        return code;
    }
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    code = cli_runtime_new(o->lock, &rt);
    if (code != 0) {
        return code;
    }
    code = pull(o, rt);
    muster_runtime_free(rt);
    return code;
}

/* --- ls --------------------------------------------------------------------------------------- */

static void print_row(const struct muster_state_row *row)
{
    if (row->status != 0) {
        state_print(json_pack("{s:s, s:s, s:s}", "donor", row->donor, "error",
                              muster_errname(row->status), "text", row->why));
        return;
    }
    if (row->hivemind) {
        state_print(json_pack("{s:s, s:s, s:f, s:b}", "donor", row->donor, "prefix",
                              row->info.prefix, "priority", row->info.priority, "hivemind", 1));
        return;
    }
    state_print(json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:I, s:I, s:I, s:I}", "donor",
                          row->donor, "prefix", row->info.prefix, "id", row->info.id, "signer",
                          row->info.signer, "epoch", (json_int_t)row->info.epoch, "step",
                          (json_int_t)row->info.step, "priority", row->info.priority, "bytes",
                          (json_int_t)row->info.bytes, "tensors", (json_int_t)row->info.tensors,
                          "have", (json_int_t)row->have, "chunks", (json_int_t)row->chunks));
}

static void say_row(const struct muster_state_row *row)
{
    char version[48];
    char size[24];

    if (row->status != 0) {
        printf("%-28s %s\n", row->donor,
               row->why[0] != '\0' ? row->why : muster_strerror(row->status));
        return;
    }
    if (row->hivemind) {
        printf("%-28s %-20s %-10s %8g  hivemind's: the rest is unknown until it is pulled\n",
               row->donor, row->info.prefix, "-", row->info.priority);
        return;
    }
    (void)snprintf(version, sizeof(version), "%" PRIu64 ".%" PRIu64, row->info.epoch,
                   row->info.step);
    printf("%-28s %-20s %-10s %8g %10s %7" PRIu64 " %4d%% %s %s\n", row->donor, row->info.prefix,
           version, row->info.priority, state_size(size, row->info.bytes), row->info.tensors,
           row->chunks == 0 ? 100 : (int)(row->have * 100 / row->chunks), row->info.id,
           row->info.signer);
}

static int list(const struct state_options *o, muster_runtime *rt)
{
    struct muster_state_row *rows = calloc(ROWS_MAX, sizeof(*rows));
    struct muster_state_request request;
    int n = rows == NULL ? MUSTER_ENOMEM : state_request(o, rt, &request);
    bool any = false;

    n = n != 0 ? n : muster_state_list(rt, &request, rows, ROWS_MAX);
    if (n < 0) {
        free(rows);
        return cli_fail(cli_exit_code(n), "%s", muster_errmsg());
    }
    if (!o->json) {
        printf("%-28s %-20s %-10s %8s %10s %7s %5s %-64s %s\n", "DONOR", "PREFIX", "VERSION",
               "PRIORITY", "BYTES", "TENSORS", "HAVE", "ID", "SIGNER");
    }
    for (int i = 0; i < n && i < ROWS_MAX; i++) {
        any = any || rows[i].status == 0;
        if (o->json) {
            print_row(&rows[i]);
        } else {
            say_row(&rows[i]);
        }
    }
    n = any || n == 0 ? 0 : rows[0].status;
    free(rows);
    muster_store_close(request.store);
    return any ? CLI_OK : n == 0 ? CLI_NO_KEY : cli_exit_code(n);
}

int state_ls(const struct state_options *o)
{
    muster_runtime *rt;
    int code;

    code = cli_runtime_new(o->lock, &rt);
    if (code != 0) {
        return code;
    }
    code = list(o, rt);
    muster_runtime_free(rt);
    return code;
}
