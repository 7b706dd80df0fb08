#include "cli/run_progress.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "core/alloc.h"

#define DIGITS_MAX 18

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * UINT64_C(1000000000) + (uint64_t)t.tv_nsec;
}

/* --- the pattern ------------------------------------------------------------------------------ */

static int refuse(const char *pattern, size_t at, const char *why)
{
    return cli_usage("run", "--progress-regex: %s, at character %zu: \"%s\"", why, at + 1,
                     pattern + at);
}

/* Whether a number of "{2,5}" at `text` is. */
static bool is_large(const char *text)
{
    for (text++; *text != '\0' && *text != '}';) {
        char *end = (char *)(uintptr_t)text + 1;

        if (*text >= '0' && *text <= '9' && strtoul(text, &end, 10) > RUN_PROGRESS_COUNT) {
            return true;
        }
        text = end;
    }
    return false;
}

/* What regcomp() takes, and should not. */
static int check_costs(const char *pattern)
{
    unsigned repeats = 0;

    if (strlen(pattern) > RUN_PROGRESS_PATTERN) {
        return refuse(pattern, RUN_PROGRESS_PATTERN, "the pattern is longer than 256 characters");
    }
    for (size_t i = 0; pattern[i] != '\0'; i++) {
        if (pattern[i] == '\\' && pattern[i + 1] >= '1' && pattern[i + 1] <= '9') {
            return refuse(pattern, i, "references to groups can take forever and are not allowed");
        }
        if (pattern[i] == '\\' && (pattern[i + 1] == 'd' || pattern[i + 1] == 'D')) {
            return refuse(pattern, i, "it has POSIX syntax, in which [0-9] is a digit");
        }
        if (pattern[i] == '\\' && pattern[i + 1] != '\0') {
            i++;
        } else if (pattern[i] == '{' && ++repeats > RUN_PROGRESS_REPEATS) {
            return refuse(pattern, i, "only one count of repetitions is allowed");
        } else if (pattern[i] == '{' && is_large(pattern + i)) {
            return refuse(pattern, i, "repetitions are counted to 64 at most");
        }
    }
    return 0;
}

/* Where a pattern goes wrong: behind the longest beginning of it that is one itself. */
static size_t find_fault(const char *pattern)
{
    char part[RUN_PROGRESS_PATTERN + 1];
    size_t len = strlen(pattern);

    while (len > 0) {
        regex_t regex;

        memcpy(part, pattern, len);
        part[len] = '\0';
        if (regcomp(&regex, part, REG_EXTENDED) == 0) {
            regfree(&regex);
            break;
        }
        len--;
    }
    return len;
}

int run_progress_open(struct run_progress *p, const char *pattern, uint32_t workers)
{
    char why[128];
    int err;

    *p = (struct run_progress){.workers = workers};
    if (pattern == NULL) {
        return 0;
    }
    if (pattern[0] == '\0') {
        return cli_usage("run",
                         "--progress-regex is empty: write a pattern, such as \"step ([0-9]+)\"");
    }
    err = check_costs(pattern);
    if (err != 0) {
        return err;
    }
    err = regcomp(&p->regex, pattern, REG_EXTENDED);
    if (err != 0) {
        (void)regerror(err, &p->regex, why, sizeof(why));
        return refuse(pattern, find_fault(pattern), why);
    }
    p->lines = mu_calloc((size_t)workers * 2, sizeof(*p->lines));
    p->on = p->lines != NULL;
    if (!p->on) {
        regfree(&p->regex);
        return cli_fail(CLI_FAILED, "out of memory");
    }
    return 0;
}

void run_progress_close(struct run_progress *p)
{
    if (p->on) {
        regfree(&p->regex);
    }
    mu_free(p->lines);
    *p = (struct run_progress){0};
}

/* --- lines ------------------------------------------------------------------------------------ */

/* Whether there is time left in this second. */
static bool has_time(struct run_progress *p, uint64_t now)
{
    if (now - p->second >= UINT64_C(1000000000)) {
        p->second = now;
        p->spent_ns = 0;
    }
    p->late = p->late || p->spent_ns > RUN_PROGRESS_NS;
    return p->spent_ns <= RUN_PROGRESS_NS;
}

static bool match(struct run_progress *p, const struct run_progress_line *line, bool *ret_numbered,
                  uint64_t *ret_step)
{
    regmatch_t found[2] = {{.rm_so = 0, .rm_eo = (regoff_t)line->len}, {.rm_so = -1}};
    uint64_t begin = now_ns();
    bool matches =
        has_time(p, begin) && regexec(&p->regex, line->text, 2, found, REG_STARTEND) == 0;
    regoff_t at = matches ? found[1].rm_so : -1;

    p->spent_ns += now_ns() - begin;
    *ret_step = 0;
    *ret_numbered = at >= 0 && found[1].rm_eo > at && found[1].rm_eo - at <= DIGITS_MAX;
    for (; *ret_numbered && at < found[1].rm_eo; at++) {
        *ret_numbered = line->text[at] >= '0' && line->text[at] <= '9';
        *ret_step = *ret_step * 10 + (uint64_t)(line->text[at] - '0');
    }
    return matches;
}

bool run_progress_take(struct run_progress *p, uint32_t local_rank, enum mu_stream stream,
                       struct mu_span bytes,
                       void (*mark)(void *context, uint32_t local_rank, const uint64_t *step),
                       void *context)
{
    struct run_progress_line *line;

    if (!p->on || local_rank >= p->workers) {
        return false;
    }
    line = &p->lines[local_rank * 2 + (stream == MU_STDERR ? 1 : 0)];
    for (size_t i = 0; i < bytes.len; i++) {
        char c = (char)bytes.data[i];
        uint64_t step;
        bool numbered;

        if (c != '\n' && c != '\r') {
            if (line->len < RUN_PROGRESS_LINE) {
                line->text[line->len++] = c;
            }
        } else if (line->len != 0) {
            p->seen += p->matched ? 0 : 1;
            if (match(p, line, &numbered, &step)) {
                p->matched = true;
                mark(context, local_rank, numbered ? &step : NULL);
            }
            line->len = 0;
        }
    }
    if (p->late && !p->told) {
        p->told = true;
        return true;
    }
    return false;
}

bool run_progress_missed(const struct run_progress *p)
{
    return p->on && !p->matched && p->seen >= RUN_PROGRESS_ENOUGH;
}
