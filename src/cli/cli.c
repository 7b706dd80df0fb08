#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_exit_code(int err)
{
    switch (err) {
    case 0:
    case MUSTER_ERDZV_GRACEFUL:
        return CLI_OK;
    case MUSTER_ETIMEDOUT:
    case MUSTER_ERDZV_TIMEOUT:
        return CLI_TIMEOUT;
    case MUSTER_ECONN:
    case MUSTER_ENOTSTORE:
    case MUSTER_EREFUSED:
    case MUSTER_ESESSION:
    case MUSTER_EDRAIN:
    case MUSTER_ERDZV_CONN:
        return CLI_CONNECT;
    case MUSTER_ERDZV_CLOSED:
        return CLI_CLOSED;
    case MUSTER_EDISK:
    case MUSTER_ECORRUPT:
    case MUSTER_EBUSY:
    case MUSTER_EFULL:
        return CLI_STORAGE;
    case MUSTER_EADDR:
        return CLI_ADDRESS;
    case MUSTER_EURL:
    case MUSTER_EINVAL:
        return CLI_USAGE;
    case MUSTER_ENOENT:
        return CLI_NO_KEY;
    default:
        return CLI_FAILED;
    }
}

int cli_fail(int code, const char *format, ...)
{
    va_list args;

    (void)fflush(stdout);
    (void)fputs("muster: ", stderr);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fputc('\n', stderr);
    return code;
}

int cli_usage(const char *verb, const char *format, ...)
{
    va_list args;

    (void)fprintf(stderr, "muster %s: ", verb);
    va_start(args, format);
    (void)vfprintf(stderr, format, args);
    va_end(args);
    (void)fprintf(stderr, "; see `muster %s --help`\n", verb);
    return CLI_USAGE;
}

static void print_help(const struct cli_verb *verb)
{
    printf("usage: muster %s %s\n\n%s\n\noptions:\n", verb->name, verb->synopsis,
           verb->description);
    for (size_t i = 0; i < verb->option_count; i++) {
        const struct cli_option *o = &verb->options[i];
        char left[64];

        (void)snprintf(left, sizeof(left), "--%s%s%s", o->name, o->value != NULL ? " " : "",
                       o->value != NULL ? o->value : "");
        printf("  %-26s %s\n", left, o->help);
    }
    printf("  %-26s %s\n", "--help", "this text");
}

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

static int take_value(const struct cli_verb *verb, const struct cli_option *o, const char *value)
{
    switch (o->type) {
    case CLI_FLAG:
        *(bool *)o->to = true;
        return 0;
    case CLI_TEXT:
        *(const char **)o->to = value;
        return 0;
    case CLI_NUMBER:
    case CLI_SIZE:
        if (!cli_parse_number(value, o->type == CLI_SIZE, o->max, o->to)) {
            return cli_usage(verb->name, "--%s %s is not a number it takes", o->name, value);
        }
        return 0;
    }
    return 0;
}

static const struct cli_option *find_option(const struct cli_verb *verb, const char *name,
                                            size_t len)
{
    for (size_t i = 0; i < verb->option_count; i++) {
        if (strlen(verb->options[i].name) == len &&
            strncmp(verb->options[i].name, name, len) == 0) {
            return &verb->options[i];
        }
    }
    return NULL;
}

int cli_parse(const struct cli_verb *verb, int *argc, char ***argv)
{
    int i = 1;

    for (; i < *argc && (*argv)[i][0] == '-' && (*argv)[i][1] != '\0'; i++) {
        const char *word = (*argv)[i];
        const char *name = word + (word[1] == '-' ? 2 : 1);
        size_t len = strcspn(name, "=");
        const struct cli_option *o = find_option(verb, name, len);
        const char *value = name[len] == '=' ? name + len + 1 : NULL;
        int err;

        if (strcmp(word, "--") == 0) {
            i++;
            break;
        }
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
            print_help(verb);
            exit(CLI_OK);
        }
        if (o == NULL || word[1] != '-') {
            return cli_usage(verb->name, "there is no option %s", word);
        }
        if (o->value == NULL && value != NULL) {
            return cli_usage(verb->name, "--%s takes no value", o->name);
        }
        if (o->value != NULL && value == NULL) {
            if (i + 1 >= *argc) {
                return cli_usage(verb->name, "--%s needs a value (%s)", o->name, o->value);
            }
            value = (*argv)[++i];
        }
        err = take_value(verb, o, value);
        if (err != 0) {
            return err;
        }
    }
    *argc -= i;
    *argv += i;
    return 0;
}
