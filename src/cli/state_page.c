#include "cli/state_page.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <muster/version.h>

static struct mu_now now(void)
{
    struct timespec mono;
    struct timespec wall;

    (void)clock_gettime(CLOCK_MONOTONIC, &mono);
    (void)clock_gettime(CLOCK_REALTIME, &wall);
    return (struct mu_now){
        .mono = {(uint64_t)mono.tv_sec * MU_NS_PER_S + (uint64_t)mono.tv_nsec},
        .wall = {(uint64_t)wall.tv_sec * MU_NS_PER_S + (uint64_t)wall.tv_nsec},
    };
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_transfer(struct mu_status_text *t, const char *before, const char *peer,
                         const struct muster_state_transfer *row)
{
    mu_status_put(t, "%s{\"peer\":", before);
    mu_status_quote(t, peer);
    mu_status_put(t, ",\"what\":");
    mu_status_quote(t, row->prefix);
    mu_status_put(t,
                  ",\"bytes\":%" PRIu64 ",\"total\":%" PRIu64 ",\"bytes_per_s\":%.0f"
                  ",\"age_ms\":%" PRIu64 "}",
                  row->bytes, row->total, row->bytes_per_s, row->age_ms);
}

static void put_given(struct mu_status_text *t, struct state_page *p)
{
    struct muster_state_stats stats;
    size_t count;
    size_t told;

    muster_state_stats(p->state, &stats);
    count = muster_state_transfers(p->state, p->rows, STATE_PAGE_ROWS);
    told = count < STATE_PAGE_ROWS ? count : STATE_PAGE_ROWS;
    mu_status_put(t,
                  ",\"downloads\":%" PRIu64 ",\"turned_away\":%" PRIu64 ",\"chunks\":%" PRIu64
                  ",\"bytes_given\":%" PRIu64 ",\"active\":%" PRIu32
                  ",\"hivemind_downloads\":%" PRIu64 "},\"transfers\":[",
                  stats.downloads, stats.turned_away, stats.chunks, stats.bytes, stats.active,
                  stats.hivemind_downloads);
    for (size_t i = 0; i < told; i++) {
        put_transfer(t, i == 0 ? "" : ",", p->rows[i].peer, &p->rows[i]);
    }
    mu_status_put(t, "],\"transfers_more\":%zu", count - told);
}

static void put_loaded(struct mu_status_text *t, struct state_page *p)
{
    const struct muster_state_progress *g = &p->progress;
    struct muster_state_transfer row = {
        .bytes = g->bytes,
        .total = g->total,
        .bytes_per_s = g->bytes_per_s,
        .age_ms = mu_mono_since(p->began, now().mono) / MU_NS_PER_MS,
    };
    char from[32];

    mu_status_put(t,
                  ",\"bytes\":%" PRIu64 ",\"total\":%" PRIu64 ",\"resumed\":%" PRIu64
                  ",\"wasted\":%" PRIu64 ",\"donors\":%" PRIu32 ",\"banned\":%" PRIu32
                  ",\"lost\":%" PRIu32 ",\"restarts\":%" PRIu32 "},\"transfers\":[",
                  g->bytes, g->total, g->resumed, g->wasted, g->donors, g->banned, g->lost,
                  g->restarts);
    if (p->has_progress) {
        (void)snprintf(row.prefix, sizeof(row.prefix), "%s", p->prefix);
        (void)snprintf(from, sizeof(from), "%" PRIu32 " donor%s", g->donors,
                       g->donors == 1 ? "" : "s");
        put_transfer(t, "", from, &row);
    }
    mu_status_put(t, "],\"transfers_more\":0");
}

static bool is_ready(const struct state_page *p)
{
    return p->state != NULL || strcmp(p->what, "loading") == 0;
}

static int tell_json(void *context, struct mu_buf *out)
{
    struct state_page *p = context;
    struct mu_status_text t = {.out = out};
    char host[256] = "";

    (void)pthread_mutex_lock(&p->lock);
    (void)gethostname(host, sizeof(host) - 1);
    mu_status_put(&t, "{\"kind\":\"state\",\"version\":\"" MUSTER_VERSION "\",\"address\":");
    mu_status_quote(&t, p->state != NULL ? muster_state_address(p->state) : host);
    mu_status_put(&t, ",\"at_ms\":%" PRIu64 ",\"ready\":%s,\"state\":{\"what\":\"%s\",\"prefix\":",
                  now().wall.ns / MU_NS_PER_MS, is_ready(p) ? "true" : "false", p->what);
    mu_status_quote(&t, p->prefix);
    if (p->state != NULL) {
        put_given(&t, p);
    } else {
        put_loaded(&t, p);
    }
    mu_status_events_put(&t, &p->events);
    mu_status_put(&t, "}");
    (void)pthread_mutex_unlock(&p->lock);
    return t.err;
}

/* --- Prometheus ------------------------------------------------------------------------------- */

static void put_figure(struct mu_status_text *t, const char *name, const char *type,
                       const char *help, uint64_t value)
{
    mu_status_metric(t, name, type, help);
    mu_status_put(t, "%s %" PRIu64 "\n", name, value);
}

static void put_given_metrics(struct mu_status_text *t, struct state_page *p)
{
    struct muster_state_stats stats;

    muster_state_stats(p->state, &stats);
    put_figure(t, "muster_state_downloads", "gauge", "Downloads from this process now.",
               stats.active);
    put_figure(t, "muster_state_downloads_total", "counter", "Downloads begun here.",
               stats.downloads);
    put_figure(t, "muster_state_turned_away_total", "counter", "Downloads that found no slot.",
               stats.turned_away);
    put_figure(t, "muster_state_given_bytes_total", "counter", "Bytes sent to newcomers.",
               stats.bytes);
    put_figure(t, "muster_state_given_chunks_total", "counter", "Chunks sent to newcomers.",
               stats.chunks);
    put_figure(t, "muster_state_hivemind_downloads_total", "counter",
               "Downloads begun by hivemind's peers.", stats.hivemind_downloads);
}

static int tell_metrics(void *context, struct mu_buf *out)
{
    struct state_page *p = context;
    const struct muster_state_progress *g = &p->progress;
    struct mu_status_text t = {.out = out};

    (void)pthread_mutex_lock(&p->lock);
    mu_status_metric(&t, "muster_info", "gauge", "The version of muster.");
    mu_status_put(&t, "muster_info{version=\"" MUSTER_VERSION "\"} 1\n");
    if (p->state != NULL) {
        put_given_metrics(&t, p);
    } else {
        put_figure(&t, "muster_state_loaded_bytes", "gauge", "Bytes that are verified.", g->bytes);
        put_figure(&t, "muster_state_total_bytes", "gauge", "Bytes of the state.", g->total);
        put_figure(&t, "muster_state_wasted_bytes_total", "counter",
                   "Bytes that arrived and were not used.", g->wasted);
        put_figure(&t, "muster_state_bytes_per_second", "gauge", "Bytes that arrive per second.",
                   (uint64_t)g->bytes_per_s);
        put_figure(&t, "muster_state_donors", "gauge", "Donors that send chunks now.", g->donors);
        put_figure(&t, "muster_state_donors_banned_total", "counter",
                   "Donors that sent something wrong.", g->banned);
        put_figure(&t, "muster_state_donors_lost_total", "counter", "Donors that were lost.",
                   g->lost);
    }
    (void)pthread_mutex_unlock(&p->lock);
    return t.err;
}

static bool tell_ready(void *context)
{
    struct state_page *p = context;
    bool ready;

    (void)pthread_mutex_lock(&p->lock);
    ready = is_ready(p);
    (void)pthread_mutex_unlock(&p->lock);
    return ready;
}

/* --- what happens ----------------------------------------------------------------------------- */

int state_page_open(struct state_page *p, const struct state_options *o, const char *what)
{
    const struct mu_status_source source = {
        .json = tell_json, .metrics = tell_metrics, .ready = tell_ready, .context = p};
    const struct muster_lock *lock = cli_lock_of(o->lock);
    const struct cli_page_place place = {
        .http = o->http, .token_file = lock->token_file, .insecure = lock->insecure};
    int code;

    *p = (struct state_page){.o = o, .what = what, .began = now().mono};
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)snprintf(p->prefix, sizeof(p->prefix), "%s", o->prefix == NULL ? "" : o->prefix);
    if (o->http == NULL) {
        return 0;
    }
    code = cli_page_open(&p->page, &place, &source);
    if (code == 0 && !o->json) {
        (void)fprintf(stderr, "status at http://%s/\n", p->page.address);
    } else if (code == 0) {
        state_print(json_pack("{s:s, s:s}", "event", "page", "address", p->page.address));
    }
    return code;
}

void state_page_serve(struct state_page *p, muster_state *state, const char *prefix)
{
    (void)pthread_mutex_lock(&p->lock);
    p->state = state;
    (void)snprintf(p->prefix, sizeof(p->prefix), "%s", prefix);
    (void)pthread_mutex_unlock(&p->lock);
}

void state_page_progress(struct state_page *p, const struct muster_state_progress *progress)
{
    bool first;

    (void)pthread_mutex_lock(&p->lock);
    first = !p->has_progress && progress->info != NULL;
    p->progress = *progress;
    if (progress->info != NULL) {
        (void)snprintf(p->prefix, sizeof(p->prefix), "%s", progress->info->prefix);
    }
    p->progress.info = NULL; /* lent */
    p->has_progress = p->has_progress || first;
    (void)pthread_mutex_unlock(&p->lock);
    if (first) {
        state_page_note(p, "loading", "version %" PRIu64 ".%" PRIu64 " of %s was chosen",
                        progress->info->epoch, progress->info->step, progress->info->prefix);
    }
}

void state_page_note(struct state_page *p, const char *what, const char *format, ...)
{
    char text[MU_STATUS_EVENT_MAX];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)pthread_mutex_lock(&p->lock);
    p->what = what == NULL ? p->what : what;
    mu_status_events_add(&p->events, now().wall, p->prefix, text);
    (void)pthread_mutex_unlock(&p->lock);
}

void state_page_close(struct state_page *p)
{
    cli_page_close(&p->page);
    (void)pthread_mutex_destroy(&p->lock);
}
