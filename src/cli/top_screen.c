#include "cli/top_screen.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/printable.h"

struct drawing {
    const struct top_screen *screen;
    char *text;
    size_t len;
    size_t cap;
    int lines;
};

/* --- lines ------------------------------------------------------------------------------------ */

static bool full(const struct drawing *d)
{
    return d->lines >= d->screen->height;
}

static void append(struct drawing *d, const char *text, size_t len)
{
    if (d->text != NULL && d->cap - d->len <= len) {
        size_t cap = d->cap * 2 + len;
        char *more = realloc(d->text, cap); /* tidy: given to a caller who frees it */

        if (more == NULL) {
            free(d->text); /* tidy: given to a caller who frees it */
        }
        d->text = more;
        d->cap = cap;
    }
    if (d->text != NULL) {
        memcpy(d->text + d->len, text, len);
        d->len += len;
        d->text[d->len] = '\0';
    }
}

/* Adds one line, cut at the width where a character begins. `style`: an escape, or NULL. */
static void put(struct drawing *d, const char *style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void put(struct drawing *d, const char *style, const char *format, ...)
{
    char text[8192];
    char line[sizeof(text)];
    size_t len = 0;
    int columns = 0;
    va_list args;

    if (full(d)) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    (void)mu_printable(line, sizeof(line), mu_span_str(text), false);
    while (line[len] != '\0') {
        bool begins = ((unsigned char)line[len] & 0xc0) != 0x80;

        if (begins && columns == d->screen->width) {
            break;
        }
        columns += begins ? 1 : 0;
        len++;
    }
    if (style != NULL && d->screen->color) {
        append(d, style, strlen(style));
    }
    append(d, line, len);
    if (style != NULL && d->screen->color) {
        append(d, "\033[0m", 4);
    }
    append(d, "\n", 1);
    d->lines++;
}

#define BOLD   "\033[1m"
#define SOFT   "\033[2m"
#define GREEN  "\033[32m"
#define YELLOW "\033[33m"
#define RED    "\033[31m"

/* --- the status ------------------------------------------------------------------------------- */

static const char *text_of(const json_t *object, const char *name)
{
    const char *text = json_string_value(json_object_get(object, name));

    return text == NULL ? "" : text;
}

static double number_of(const json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static double figure(const json_t *status, const char *name)
{
    return number_of(json_object_get(status, "store"), name);
}

static double rate(const struct top_screen *s, const char *name)
{
    double ms = s->before == NULL ? 0 : number_of(s->now, "at_ms") - number_of(s->before, "at_ms");

    return ms <= 0 ? 0 : (figure(s->now, name) - figure(s->before, name)) * 1000 / ms;
}

/* Formats a number as "1.23M". */
static const char *brief(double n, char *buf, size_t cap)
{
    static const char units[] = " kMGT";
    size_t i = 0;

    while (n >= 1000 && i < sizeof(units) - 2) {
        n /= 1000;
        i++;
    }
    (void)snprintf(buf, cap, "%.*f%s", i == 0 || n >= 100 ? 0 : 1, n,
                   i == 0 ? "" : (char[2]){units[i], '\0'});
    return buf;
}

static void put_store(struct drawing *d)
{
    const struct top_screen *s = d->screen;
    char a[16];
    char b[16];
    char c[16];
    char e[16];

    put(d, NULL, "keys %s (%sB)  connections %s  waiting for keys %s",
        brief(figure(s->now, "keys"), a, sizeof(a)),
        brief(figure(s->now, "memory_bytes"), b, sizeof(b)),
        brief(figure(s->now, "connections"), c, sizeof(c)),
        brief(figure(s->now, "waits"), e, sizeof(e)));
    put(d, NULL, "requests %s/s  in %sB/s  out %sB/s  rounds formed %s",
        brief(rate(s, "messages_in_total"), a, sizeof(a)),
        brief(rate(s, "bytes_in_total"), b, sizeof(b)),
        brief(rate(s, "bytes_out_total"), c, sizeof(c)),
        brief(figure(s->now, "rounds_total"), e, sizeof(e)));
}

static void put_head(struct drawing *d)
{
    const json_t *now = d->screen->now;
    const char *kept = text_of(now, "kept");
    bool server = strcmp(text_of(now, "kind"), "server") == 0;

    put(d, BOLD, "muster %s %s %s%s%s%s", text_of(now, "version"), server ? "at" : "on",
        text_of(now, "address"), kept[0] != '\0' ? ", keys " : "", kept,
        !server || json_is_true(json_object_get(now, "ready")) ? "" : ", about to end");
    if (json_object_get(now, "store") != NULL) {
        put_store(d);
    }
}

static const char *style_of(const char *state)
{
    static const char *const good[] = {"running", "succeeded", "done", "graceful"};
    static const char *const bad[] = {"closed", "failed", "error"};

    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        if (strcmp(state, good[i]) == 0) {
            return GREEN;
        }
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (strcmp(state, bad[i]) == 0) {
            return RED;
        }
    }
    return YELLOW;
}

/* Names differ mostly at their ends, so a name that is too long is cut in the middle. */
static const char *cut(const struct drawing *d, const char *text, size_t width, char *buf,
                       size_t cap)
{
    size_t len = strlen(text);
    size_t tail = width / 2;

    if (len <= width || width >= cap || d->screen->width == TOP_WHOLE) {
        return text;
    }
    (void)snprintf(buf, cap, "%.*s..%s", (int)(width - tail - 2), text, text + len - tail);
    return buf;
}

static void put_run(struct drawing *d, const json_t *run, int member_lines)
{
    const json_t *members = json_object_get(run, "members");
    size_t count = json_array_size(members);
    const char *state = text_of(run, "state");
    const json_t *left = json_object_get(run, "restarts_left");
    char restarts[48] = "";

    if (left != NULL) {
        (void)snprintf(restarts, sizeof(restarts), ", %.0f restarts left", json_number_value(left));
    }
    put(d, NULL, " ");
    put(d, style_of(state), "%s  %s, round %.0f, %zu here of %.0f to %.0f%s", text_of(run, "id"),
        state, number_of(run, "round"), count, number_of(run, "nodes_min"),
        number_of(run, "nodes_max"), restarts);
    if (count == 0 || strcmp(state, "gathering") == 0) {
        put(d, SOFT, "  %s", text_of(run, "text"));
    }
    if (count != 0 && member_lines > 1) {
        put(d, SOFT, "  %5s  %-28.28s %-20.20s %-10s %s", "rank", "node", "address", "",
            "last beat");
    }
    for (size_t i = 0; i < count && member_lines > 1; i++) {
        const json_t *m = json_array_get(members, i);
        const json_t *rank = json_object_get(m, "rank");
        char number[16] = "-";
        char name[32];
        char addr[32];

        if ((int)i == member_lines - 2 && i + 1 < count) {
            put(d, SOFT, "  and %zu more", count - i);
            return;
        }
        if (rank != NULL) {
            (void)snprintf(number, sizeof(number), "%.0f", json_number_value(rank));
        }
        put(d, NULL, "  %5s  %-28s %-20s %-10s %.1f s ago", number,
            cut(d, text_of(m, "name"), 28, name, sizeof(name)),
            cut(d, text_of(m, "addr"), 20, addr, sizeof(addr)), text_of(m, "state"),
            number_of(m, "silent_ms") / 1000);
    }
}

/* Formats a duration as "12.3 s", "4 min" or "3.5 h". */
static const char *lasting(double ms, char *buf, size_t cap)
{
    (void)snprintf(buf, cap,
                   ms < 60000     ? "%.1f s"
                   : ms < 3600000 ? "%.0f min"
                                  : "%.1f h",
                   ms < 60000     ? ms / 1000
                   : ms < 3600000 ? ms / 60000
                                  : ms / 3600000);
    return buf;
}

#define KEPT_LONG 200 /* permille of the time; less may be chance */

static void put_worker(struct drawing *d, const json_t *w)
{
    const char *state = text_of(w, "state");
    const json_t *code = json_object_get(w, "exit_code");
    const json_t *step = json_object_get(w, "step");
    char since[16];
    double kept = number_of(w, "kept_permille");
    char ended[64] = "";
    char pace[64] = "";

    if (code != NULL) {
        (void)snprintf(ended, sizeof(ended), "  ended with %.0f", json_number_value(code));
    } else if (step != NULL) {
        (void)snprintf(ended, sizeof(ended), "  step %.0f, step time %.3f s",
                       json_number_value(step), number_of(w, "step_us") / 1e6);
    }
    if (code == NULL && json_object_get(w, "kept_permille") != NULL) {
        (void)snprintf(pace, sizeof(pace), "  waits %.0f %%, keeps others waiting %.0f %%",
                       number_of(w, "waits_permille") / 10, kept / 10);
    }
    put(d,
        strcmp(state, "running") != 0 ? style_of(state)
        : kept >= KEPT_LONG           ? YELLOW
                                      : NULL,
        "  %5.0f  %5.0f  %9.0f  %-10s %s%s%s", number_of(w, "rank"), number_of(w, "local_rank"),
        number_of(w, "pid"), state, lasting(number_of(w, "since_ms"), since, sizeof(since)), ended,
        pace);
}

static void put_agent(struct drawing *d, const json_t *agent, int room)
{
    const json_t *workers = json_object_get(d->screen->now, "workers");
    const json_t *verdict = json_object_get(d->screen->now, "verdict");
    const json_t *stragglers = json_object_get(d->screen->now, "stragglers");
    const json_t *round = json_object_get(agent, "round");
    const char *state = text_of(agent, "state");
    size_t count = json_array_size(workers);
    char place[64] = "";
    char up[16];

    if (round != NULL) {
        (void)snprintf(place, sizeof(place), ", round %.0f, node %.0f of %.0f",
                       json_number_value(round), number_of(agent, "rank"),
                       number_of(agent, "nodes"));
    }
    put(d, style_of(state), "%s  %s%s, restarts %.0f of %.0f, up %s", text_of(agent, "run"), state,
        place, number_of(agent, "restarts"), number_of(agent, "restarts_max"),
        lasting(number_of(agent, "up_ms"), up, sizeof(up)));
    put(d, verdict != NULL ? style_of(state) : SOFT, "  %s",
        verdict != NULL ? text_of(verdict, "text") : text_of(agent, "text"));
    for (size_t i = 0; i < json_array_size(stragglers); i++) {
        put(d, YELLOW, "  %s", text_of(json_array_get(stragglers, i), "text"));
    }
    if (count != 0) {
        put(d, SOFT, "  %5s  %5s  %9s  %-10s %s", "rank", "local", "process", "", "for");
    }
    for (size_t i = 0; i < count; i++) {
        if ((int)(i + json_array_size(stragglers)) >= room - 5 && i + 1 < count) {
            put(d, SOFT, "  and %zu more", count - i);
            return;
        }
        put_worker(d, json_array_get(workers, i));
    }
}

static void put_transfers(struct drawing *d, const json_t *list, int room)
{
    size_t count = json_array_size(list);

    put(d, SOFT, count == 0 ? "no downloads" : "  %-26s %-16s %5s %8s %8s", "with", "what", "",
        "bytes", "rate");
    for (size_t i = 0; i < count; i++) {
        const json_t *t = json_array_get(list, i);
        double total = number_of(t, "total");
        char peer[32];
        char what[24];
        char a[16];
        char b[16];

        if ((int)i >= room - 3 && i + 1 < count) {
            put(d, SOFT, "  and %zu more", count - i);
            return;
        }
        put(d, NULL, "  %-26s %-16s %4.0f%% %8s %6s/s",
            cut(d, text_of(t, "peer"), 26, peer, sizeof(peer)),
            cut(d, text_of(t, "what"), 16, what, sizeof(what)),
            total > 0 ? number_of(t, "bytes") * 100 / total : 0,
            brief(number_of(t, "bytes"), a, sizeof(a)),
            brief(number_of(t, "bytes_per_s"), b, sizeof(b)));
    }
}

static void put_events(struct drawing *d)
{
    const json_t *events = json_object_get(d->screen->now, "events");
    bool agent = json_object_get(d->screen->now, "agent") != NULL;

    put(d, NULL, " ");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        time_t at = (time_t)(number_of(e, "at_ms") / 1000);
        struct tm tm;
        char clock[16] = "";

        if (localtime_r(&at, &tm) != NULL) {
            (void)strftime(clock, sizeof(clock), "%H:%M:%S", &tm);
        }
        /* An agent has one run, which the head shows. */
        put(d, i == 0 ? NULL : SOFT, "%s  %s%s%s", clock, agent ? "" : text_of(e, "run"),
            agent ? "" : "  ", text_of(e, "text"));
    }
}

static void put_runs(struct drawing *d, const json_t *runs, int room)
{
    size_t count = json_array_size(runs);

    if (count == 0) {
        put(d, NULL, " ");
        put(d, SOFT, "no runs yet");
    }
    for (size_t i = 0; i < count; i++) {
        int left = room - (d->lines - 3) - 3 * (int)(count - i - 1);

        if (left < 2) {
            put(d, SOFT, "and %zu more runs", count - i);
            break;
        }
        put_run(d, json_array_get(runs, i), left - 2);
    }
}

char *top_screen_draw(const struct top_screen *screen)
{
    const json_t *agent = json_object_get(screen->now, "agent");
    const json_t *transfers = json_object_get(screen->now, "transfers");
    const json_t *runs = json_object_get(screen->now, "runs");
    struct drawing d = {.screen = screen, .cap = 4096};
    /* The head has three lines, the events have six; the other parts share the rest. */
    int room = screen->height - 9;

    d.text = malloc(d.cap); /* tidy: given to a caller who frees it */
    if (d.text == NULL) {
        return NULL;
    }
    d.text[0] = '\0';
    put_head(&d);
    if (agent != NULL) {
        put_agent(&d, agent, room);
    }
    if (transfers != NULL) {
        put_transfers(&d, transfers, room);
    }
    if (runs != NULL) {
        put_runs(&d, runs, room);
    }
    put_events(&d);
    return d.text;
}
