#include "cli/options.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/types.h>

#define BARE_MAX 86400 /* a day */

bool cli_parse_number(const char *text, bool size, uint64_t max, uint64_t *ret)
{
    unsigned shift = 0;
    char *end;
    unsigned long long v;

    if (!isdigit((unsigned char)text[0])) {
        return false;
    }
    errno = 0;
    v = strtoull(text, &end, 10);
    if (size && *end != '\0') {
        static const char units[] = "KMGT";
        const char *unit = strchr(units, toupper((unsigned char)*end));

        if (unit == NULL) {
            return false;
        }
        shift = 10 * (unsigned)(unit - units + 1);
        end++;
        if (strcmp(end, "iB") == 0) {
            end += 2;
        }
    }
    if (errno != 0 || *end != '\0' || v > (UINT64_MAX >> shift) ||
        (max != 0 && (uint64_t)v << shift > max)) {
        return false;
    }
    *ret = (uint64_t)v << shift;
    return true;
}

static bool parse_integer(const char *text, int64_t *ret)
{
    bool negative = text[0] == '-';
    uint64_t v;

    if (!cli_parse_number(text + (negative || text[0] == '+'), false, INT32_MAX, &v)) {
        return false;
    }
    *ret = negative ? -(int64_t)v : (int64_t)v;
    return true;
}

/* Parses the number at the beginning of the text; returns its end, or NULL. Takes none of the words
 * and hex digits that strtod() also knows. */
static const char *parse_real(const char *text, double *ret)
{
    const char *digits = text + (text[0] == '-' || text[0] == '+');
    char *end;

    if ((!isdigit((unsigned char)digits[0]) && digits[0] != '.') ||
        tolower((unsigned char)digits[1]) == 'x') {
        return NULL;
    }
    *ret = strtod(text, &end);
    return end == text ? NULL : end;
}

bool cli_parse_seconds(const char *text, double *ret, bool *ret_bare)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"", 1}, {"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
    double v;
    const char *unit = parse_real(text, &v);

    for (size_t i = 0; unit != NULL && i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0) {
            v *= units[i].seconds;
            *ret = v;
            *ret_bare = i == 0;
            return v >= 0 && v <= CLI_SECONDS_MAX;
        }
    }
    return false;
}

uint32_t cli_ms(double seconds)
{
    double ms = seconds * 1000;
    uint32_t whole = ms >= UINT32_MAX ? UINT32_MAX : ms > 0 ? (uint32_t)ms : 0;

    /* What is left of 0.3 s after the multiplication is not a millisecond more. */
    return ms - whole > 1e-6 && whole < UINT32_MAX ? whole + 1 : whole;
}

int64_t cli_timeout(double seconds)
{
    uint32_t ms = cli_ms(seconds);

    return ms == 0 ? MUSTER_TIMEOUT_NEVER : (int64_t)ms;
}

static const char *time_text(uint64_t seconds, char out[32])
{
    unsigned long long n = seconds;

    if (n % 3600 == 0) {
        (void)snprintf(out, 32, "%lluh", n / 3600);
    } else if (n % 60 == 0) {
        (void)snprintf(out, 32, "%llum", n / 60);
    } else {
        (void)snprintf(out, 32, "%llus", n);
    }
    return out;
}

static bool keep_seconds(const struct cli_option *o, const char *value, char why[160])
{
    uint32_t bare_max = o->bare == 0 ? BARE_MAX : o->bare;
    uint64_t max = o->max == 0 ? CLI_SECONDS_MAX : o->max;
    double seconds = 0;
    bool bare = false;
    char text[32];

    if (!cli_parse_seconds(value, &seconds, &bare) && !(seconds > CLI_SECONDS_MAX)) {
        (void)snprintf(why, 160,
                       "is not a time: write 500ms, 5s, 2m or 1h, or a number of seconds");
        return false;
    }
    if (bare && seconds > bare_max) {
        double unit = seconds < 120 ? 1 : seconds < 7200 ? 60 : 3600;

        (void)snprintf(why, 160,
                       "has no unit and would be %.4g %s: write %.20sms for milliseconds, or "
                       "%.20ss for seconds",
                       seconds / unit,
                       unit < 60     ? "seconds"
                       : unit < 3600 ? "minutes"
                                     : "hours",
                       value, value);
        return false;
    }
    if (seconds > (double)max) {
        (void)snprintf(why, 160, "is longer than %s", time_text(max, text));
        return false;
    }
    *(double *)o->to = seconds;
    return true;
}

static bool keep_real(const char *value, double *ret)
{
    double v;
    const char *end = parse_real(value, &v);

    if (end == NULL || *end != '\0' || v > 1e9 || v < -1e9) {
        return false;
    }
    *ret = v;
    return true;
}

bool cli_option_keep(const struct cli_option *o, const char *value, char why[160])
{
    (void)snprintf(why, 160, "is not a number, or is out of range");
    switch (o->type) {
    case CLI_FLAG:
        *(bool *)o->to = true;
        return true;
    case CLI_TEXT:
        *(const char **)o->to = value;
        return true;
    case CLI_NUMBER:
    case CLI_SIZE:
        return cli_parse_number(value, o->type == CLI_SIZE, o->max, o->to);
    case CLI_INTEGER:
        return parse_integer(value, o->to);
    case CLI_REAL:
        return keep_real(value, o->to);
    case CLI_SECONDS:
        return keep_seconds(o, value, why);
    case CLI_GONE:
        break;
    }
    return false;
}
