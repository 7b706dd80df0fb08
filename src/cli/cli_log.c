#include "cli/cli_log.h"
#include "cli/cli_time.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define TEXT_MAX 2048

const char *const cli_log_formats[] = {"text", "json", NULL};

static struct {
    bool json;
    bool told; /* set by the command line */
    FILE *events;
    enum muster_log_level library;
    enum muster_log_level own;
    const char *run;
    int64_t round;
    int64_t rank;
    char host[256];
    void (*write)(void *context, const char *line, size_t len);
    void *context;
} state = {.round = -1, .rank = -1};

static const char *level_name(enum muster_log_level level)
{
    static const char *const names[] = {"?", "error", "warn", "info", "debug"};

    return names[level <= MUSTER_LOG_DEBUG ? level : 0];
}

/* --- one line --------------------------------------------------------------------------------- */

json_t *cli_log_text(const char *text)
{
    json_t *value = json_string(text);
    char ascii[TEXT_MAX];
    size_t len = 0;

    if (value != NULL) {
        return value;
    }
    for (; text[len] != '\0' && len < sizeof(ascii) - 1; len++) {
        ascii[len] = text[len];
        if ((unsigned char)ascii[len] >= 0x80) {
            ascii[len] = '?';
        }
    }
    ascii[len] = '\0';
    return json_string(ascii);
}

static json_t *number_or_null(int64_t number)
{
    return number < 0 ? json_null() : json_integer(number);
}

static json_t *make_line(enum muster_log_level level, const char *id, const char *text)
{
    struct timespec now;
    json_t *line = json_object();

    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)json_object_set_new(line, "time",
                              json_real((double)now.tv_sec + (double)(now.tv_nsec / 1000) / 1e6));
    (void)json_object_set_new(line, "level", json_string(level_name(level)));
    (void)json_object_set_new(line, "id", json_string(id));
    (void)json_object_set_new(line, "run",
                              state.run == NULL ? json_null() : cli_log_text(state.run));
    (void)json_object_set_new(line, "round", number_or_null(state.round));
    (void)json_object_set_new(line, "rank", number_or_null(state.rank));
    (void)json_object_set_new(line, "host", cli_log_text(state.host));
    (void)json_object_set_new(line, "pid", json_integer(getpid()));
    (void)json_object_set_new(line, "text", cli_log_text(text));
    return line;
}

/* --- a line of the library's ------------------------------------------------------------------ */

/* Returns the length of "key="; 0: the text does not begin with a key. */
static size_t key_len(const char *text)
{
    size_t len = 0;

    while (islower((unsigned char)text[len]) || isdigit((unsigned char)text[len]) ||
           text[len] == '_') {
        len++;
    }
    return len > 0 && text[len] == '=' ? len : 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads one character between quotes, where mu_span_quote() has written \xNN for unsafe bytes.
 * Returns the position after it. */
static const char *read_quoted(const char *text, char *ret)
{
    *ret = text[0];
    if (text[0] != '\\') {
        return text + 1;
    }
    if (text[1] == '"' || text[1] == '\\') {
        *ret = text[1];
        return text + 2;
    }
    if (text[1] == 'x' && hex_digit(text[2]) >= 0 && hex_digit(text[3]) >= 0) {
        *ret = (char)(hex_digit(text[2]) << 4 | hex_digit(text[3]));
        return text + 4;
    }
    return text + 1;
}

/* Reads a value up to a blank, or between quotes. Returns the position after it. */
static const char *read_value(const char *text, char *out, size_t cap)
{
    bool quoted = *text == '"';
    size_t len = 0;
    char c;

    text += quoted ? 1 : 0;
    while (*text != '\0' && (quoted ? *text != '"' : *text != ' ')) {
        c = *text;
        text = quoted ? read_quoted(text, &c) : text + 1;
        if (len < cap - 1) {
            out[len++] = c == '\0' ? '?' : c;
        }
    }
    out[len] = '\0';
    return quoted && *text == '"' ? text + 1 : text;
}

/* Numbers become JSON numbers, everything else becomes text. */
static json_t *value_of(const char *text)
{
    char *end = NULL;
    long long number;

    errno = 0;
    number = strtoll(text, &end, 10);
    return text[0] != '\0' && *end == '\0' && errno == 0 && !isspace((unsigned char)text[0])
               ? json_integer(number)
               : cli_log_text(text);
}

json_t *cli_log_line(enum muster_log_level level, const char *id, const char *line)
{
    const char *at = strncmp(line, id, strlen(id)) == 0 ? line + strlen(id) : line;
    json_t *object;
    json_t *fields = json_object();
    char key[64];
    char value[TEXT_MAX];

    at += *at == ' ' ? 1 : 0;
    object = make_line(level, id, at);
    while (*at != '\0') {
        size_t len = key_len(at);

        if (len == 0 || len >= sizeof(key)) {
            at += strcspn(at, " ");
        } else {
            memcpy(key, at, len);
            key[len] = '\0';
            at = read_value(at + len + 1, value, sizeof(value));
            if (strcmp(key, "run") == 0) {
                /* The line names its own run, so our rank does not belong in it. */
                (void)json_object_set_new(object, key, cli_log_text(value));
                (void)json_object_set_new(object, "round", json_null());
                (void)json_object_set_new(object, "rank", json_null());
            } else if (strcmp(key, "round") == 0 || strcmp(key, "rank") == 0) {
                (void)json_object_set_new(object, key, value_of(value));
            } else {
                (void)json_object_set_new(fields, key, value_of(value));
            }
        }
        at += strspn(at, " ");
    }
    (void)json_object_set_new(object, "fields", fields);
    return object;
}

/* --- where lines go --------------------------------------------------------------------------- */

/* Takes ownership of `line`. */
static void put_out(json_t *line, bool shown, bool kept)
{
    char *text = json_dumps(line, JSON_COMPACT);
    size_t len = text == NULL ? 0 : strlen(text);

    json_decref(line);
    if (text == NULL) {
        return;
    }
    text[len] = '\n'; /* replaces the final NUL: the text is written with its length */
    if (shown && state.write != NULL) {
        state.write(state.context, text, len + 1);
    } else if (shown) {
        (void)fwrite(text, 1, len + 1, stderr);
    }
    if (kept && state.events != NULL && !(shown && state.events == stderr)) {
        (void)fwrite(text, 1, len + 1, state.events);
        (void)fflush(state.events);
    }
    free(text); /* tidy: jansson allocated it */
}

static void take_line(void *context, enum muster_log_level level, const char *id, const char *line)
{
    bool shown = level <= state.library;
    bool kept = level <= MUSTER_LOG_INFO && state.events != NULL;
    char stamp[CLI_TIME_CAP];

    (void)context;
    if (shown && !state.json) {
        (void)fprintf(stderr, "%smuster: %s: %s\n", cli_time_stamp(stamp), level_name(level), line);
        shown = false;
    }
    if (shown || kept) {
        put_out(cli_log_line(level, id, line), shown, kept);
    }
}

void cli_log_tell(enum muster_log_level level, const char *id, int64_t rank, json_t *fields,
                  const char *format, ...)
{
    bool shown = state.json && level <= state.own;
    char text[TEXT_MAX];
    json_t *line;
    va_list args;

    if (!shown && state.events == NULL) {
        json_decref(fields);
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    line = make_line(level, id, text);
    if (rank >= 0) {
        (void)json_object_set_new(line, "rank", json_integer(rank));
    }
    (void)json_object_set_new(line, "fields", fields == NULL ? json_object() : fields);
    put_out(line, shown, true);
}

/* --- life ------------------------------------------------------------------------------------- */

static bool is_json(const char *format)
{
    return format != NULL && strcmp(format, "json") == 0;
}

int cli_log_open(const struct cli_log_options *o, enum muster_log_level library,
                 enum muster_log_level own)
{
    enum muster_log_level most = library;

    state.json = is_json(o->format);
    state.library = library;
    state.own = own;
    (void)gethostname(state.host, sizeof(state.host) - 1);
    if (o->events != NULL && strcmp(o->events, "-") == 0) {
        state.events = stderr;
    } else if (o->events != NULL) {
        state.events = fopen(o->events, "ae");
        if (state.events == NULL) {
            return cli_fail(CLI_FAILED, "cannot write events to \"%s\": %s", o->events,
                            strerror(errno));
        }
        /* Each line is one write, because other processes may append to the same file. */
        (void)setvbuf(state.events, NULL, _IOFBF, 1 << 16);
    }
    if (state.events != NULL && most < MUSTER_LOG_INFO) {
        most = MUSTER_LOG_INFO;
    }
    muster_log_set(take_line, NULL, most);
    return 0;
}

void cli_log_foresee(const char *word, const char *variable)
{
    if (word != NULL || !state.told) {
        state.told = word != NULL;
        state.json = is_json(word != NULL ? word : variable);
        state.own = MUSTER_LOG_WARN;
        (void)gethostname(state.host, sizeof(state.host) - 1);
    }
}

bool cli_log_is_json(void)
{
    return state.json;
}

void cli_log_divert(void (*write)(void *context, const char *line, size_t len), void *context)
{
    state.write = write;
    state.context = context;
}

void cli_log_place(const char *run, int64_t round, int64_t rank)
{
    state.run = run;
    state.round = round;
    state.rank = rank;
}
