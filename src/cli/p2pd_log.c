/* The log of muster p2pd, ruled by the variables of go-log, which hivemind sets. */
#include "cli/cmd_p2pd.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "cli/cli_log.h"
#include "core/span.h"

#define RULES_MAX  32
#define LABELS_MAX 32

/* How much of one part of the daemon is logged: "relay=debug". */
struct rule {
    struct mu_span name;
    unsigned level;
};

static struct {
    unsigned level; /* of parts without a rule; 0: nothing */
    struct rule rules[RULES_MAX];
    size_t rule_count;
    bool json;
    int outputs[3]; /* descriptors */
    size_t output_count;
    json_t *labels;
} state;

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL ? "" : value;
}

/* --- levels ----------------------------------------------------------------------------------- */

static bool read_level(struct mu_span word, unsigned *ret)
{
    static const struct {
        const char *name;
        unsigned level;
    } levels[] = {{"debug", MUSTER_LOG_DEBUG},
                  {"info", MUSTER_LOG_INFO},
                  {"warn", MUSTER_LOG_WARN},
                  {"warning", MUSTER_LOG_WARN},
                  {"error", MUSTER_LOG_ERROR},
                  {"dpanic", 0},
                  {"panic", 0},
                  {"fatal", 0}};

    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strlen(levels[i].name) == word.len &&
            strncasecmp(levels[i].name, (const char *)word.data, word.len) == 0) {
            *ret = levels[i].level;
            return true;
        }
    }
    return false;
}

/* "error" or "relay=debug". */
static void take_level(const char *word, size_t len)
{
    const char *equals = memchr(word, '=', len);
    struct mu_span level = equals == NULL ? mu_span(word, len)
                                          : mu_span(equals + 1, len - (size_t)(equals + 1 - word));
    unsigned number = 0;

    if (!read_level(level, &number)) {
        (void)p2pd_fail(0,
                        "GOLOG_LOG_LEVEL: \"%.*s\" is ignored; levels are debug, info, warn, error "
                        "and fatal",
                        (int)len, word);
    } else if (equals == NULL) {
        state.level = number;
    } else if (state.rule_count < RULES_MAX) {
        state.rules[state.rule_count++] =
            (struct rule){mu_span(word, (size_t)(equals - word)), number};
    }
}

static unsigned greatest_level(void)
{
    unsigned most = state.level;

    for (size_t i = 0; i < state.rule_count; i++) {
        most = most > state.rules[i].level ? most : state.rules[i].level;
    }
    return most;
}

/* --- lines ------------------------------------------------------------------------------------ */

/* The part of the daemon that an id names: "PEER-LOST" is of "peer". */
static void part_of(const char *id, char *part, size_t cap)
{
    size_t i = 0;

    for (; i < cap - 1 && id[i] != '\0' && id[i] != '-'; i++) {
        part[i] = (char)tolower((unsigned char)id[i]);
    }
    part[i] = '\0';
}

static bool is_wanted(unsigned level, const char *part)
{
    for (size_t i = state.rule_count; i-- > 0;) {
        if (mu_span_eq(state.rules[i].name, mu_span_str(part))) {
            return level <= state.rules[i].level;
        }
    }
    return level <= state.level;
}

static void write_line(const char *line, size_t len)
{
    for (size_t i = 0; i < state.output_count; i++) {
        ssize_t n = write(state.outputs[i], line, len);

        (void)n; /* There is nobody to tell. */
    }
}

/* go-log's time, which hivemind parses. */
static void put_time(char *text, size_t cap)
{
    struct timespec ts;
    struct tm tm;
    char zone[8];
    size_t len;

    (void)clock_gettime(CLOCK_REALTIME, &ts);
    (void)localtime_r(&ts.tv_sec, &tm);
    (void)strftime(zone, sizeof(zone), "%z", &tm);
    len = strftime(text, cap, "%Y-%m-%dT%H:%M:%S", &tm);
    (void)snprintf(text + len, cap - len, ".%03ld%s", ts.tv_nsec / 1000000, zone);
}

static void on_line(void *context, enum muster_log_level level, const char *id, const char *line)
{
    static const char *const names[] = {"?", "error", "warn", "info", "debug"};
    const char *name = names[level <= MUSTER_LOG_DEBUG ? level : 0];
    char text[2048];
    char at[64];
    char part[32];
    json_t *record;
    char *json;
    int len;

    (void)context;
    part_of(id, part, sizeof(part));
    if (!is_wanted(level, part)) {
        return;
    }
    put_time(at, sizeof(at));
    if (!state.json) {
        len = snprintf(text, sizeof(text), "%s %s p2pd: %s\n", at, name, line);
        write_line(text, (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1);
        return;
    }
    record = json_pack("{s:s, s:s, s:s, s:s, s:o}", "level", name, "ts", at, "logger", part,
                       "caller", "muster-p2pd", "msg", cli_log_text(line));
    if (record != NULL && state.labels != NULL) {
        (void)json_object_update_missing(record, state.labels);
    }
    json = json_dumps(record, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(record);
    if (json != NULL) {
        len = snprintf(text, sizeof(text), "%s\n", json);
        if ((size_t)len < sizeof(text)) {
            write_line(text, (size_t)len);
        }
        free(json);
    }
}

/* --- the beginning ---------------------------------------------------------------------------- */

static void each(const char *list, char separator, void (*take)(const char *word, size_t len))
{
    const char stops[] = {separator, '\0'};

    while (*list != '\0') {
        size_t len = strcspn(list, stops);

        if (len != 0) {
            take(list, len);
        }
        list += len + (list[len] != '\0');
    }
}

static void take_output(const char *word, size_t len)
{
    int fd = len == 6 && memcmp(word, "stdout", 6) == 0   ? STDOUT_FILENO
             : len == 6 && memcmp(word, "stderr", 6) == 0 ? STDERR_FILENO
                                                          : -1;

    if (fd >= 0 && state.output_count < 2) {
        state.outputs[state.output_count++] = fd;
    }
}

static void take_label(const char *word, size_t len)
{
    const char *equals = memchr(word, '=', len);

    if (equals == NULL || json_object_size(state.labels) >= LABELS_MAX) {
        (void)p2pd_fail(0, "GOLOG_LOG_LABELS: \"%.*s\" is ignored; a label is NAME=VALUE", (int)len,
                        word);
        return;
    }
    (void)json_object_setn_new(state.labels, word, (size_t)(equals - word),
                               json_stringn(equals + 1, len - (size_t)(equals + 1 - word)));
}

/* Without GOLOG_OUTPUT, lines go to the file if there is one, and else to standard error. */
static void open_outputs(void)
{
    const char *file = variable("GOLOG_FILE");

    each(variable("GOLOG_OUTPUT"), '+', take_output);
    if (*file != '\0') {
        int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);

        if (fd < 0) {
            (void)p2pd_fail(0, "GOLOG_FILE: cannot write %s: %s", file, strerror(errno));
        } else {
            state.outputs[state.output_count++] = fd;
        }
    }
    if (state.output_count == 0) {
        state.outputs[state.output_count++] = STDERR_FILENO;
    }
}

void p2pd_log_open(void)
{
    const char *format = variable("GOLOG_LOG_FMT");

    state.level = MUSTER_LOG_WARN;
    each(variable("GOLOG_LOG_LEVEL"), ',', take_level);
    state.json = strcmp(format, "json") == 0;
    if (!state.json && *format != '\0' && strcmp(format, "nocolor") != 0 &&
        strcmp(format, "color") != 0) {
        (void)p2pd_fail(0, "GOLOG_LOG_FMT: \"%s\" is ignored; formats are json, nocolor and color",
                        format);
    }
    state.labels = json_object();
    each(variable("GOLOG_LOG_LABELS"), ',', take_label);
    open_outputs();
    muster_log_set(on_line, NULL, (enum muster_log_level)greatest_level());
}
