#include "cli/cli_log.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "core/printable.h"

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
    case MUSTER_EDHT_NOBODY:
    case MUSTER_ENOTLS:
    case MUSTER_ETLS:
        return CLI_CONNECT;
    case MUSTER_ERDZV_CLOSED:
        return CLI_CLOSED;
    case MUSTER_EDISK:
    case MUSTER_ECORRUPT:
    case MUSTER_EBUSY:
    case MUSTER_EFULL:
        return CLI_STORAGE;
    case MUSTER_EADDR:
    case MUSTER_ELOCKED:
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
    char said[4096];
    char text[sizeof(said)];
    va_list args;

    (void)fflush(stdout);
    va_start(args, format);
    (void)vsnprintf(said, sizeof(said), format, args);
    va_end(args);
    (void)mu_printable(text, sizeof(text), mu_span_str(said), true);
    if (!cli_log_is_json()) {
        (void)fprintf(stderr, "muster: %s\n", text);
    }
    cli_log_tell(MUSTER_LOG_ERROR, "FAILED", -1, json_pack("{s:i}", "exit_code", code), "%s", text);
    return code;
}

int cli_usage(const char *verb, const char *format, ...)
{
    char text[4096];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!cli_log_is_json()) {
        (void)fprintf(stderr, "muster %s: %s; see `muster %s --help`\n", verb, text, verb);
    }
    cli_log_tell(MUSTER_LOG_ERROR, "USAGE", -1,
                 json_pack("{s:s, s:i}", "verb", verb, "exit_code", CLI_USAGE),
                 "%s; see `muster %s --help`", text, verb);
    return CLI_USAGE;
}

static void print_help(const struct cli_verb *verb)
{
    printf("usage: muster %s %s\n\n%s\n\noptions:\n", verb->name, verb->synopsis,
           verb->description);
    for (size_t i = 0; i < verb->option_count; i++) {
        const struct cli_option *o = &verb->options[i];
        char letter[8] = "";
        char left[80];

        if (o->letter != 0) {
            (void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
        }
        (void)snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name,
                       o->value != NULL ? " " : "", o->value != NULL ? o->value : "");
        if (strlen(left) > 26) {
            printf("  %s\n  %-26s %s\n", left, "", o->help);
        } else {
            printf("  %-26s %s\n", left, o->help);
        }
    }
    printf("  %-26s %s\n", "--help", "print this help");
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

static bool parse_seconds(const char *text, double *ret)
{
    char *end;
    double v;

    if (text[0] == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0') {
        return false;
    }
    v = strtod(text, &end);
    if (*end != '\0' || end == text || v > 1e9 || v < -1e9) {
        return false;
    }
    *ret = v;
    return true;
}

static bool is_one_of(const char *value, const char *const *of)
{
    for (; *of != NULL; of++) {
        if (strcmp(value, *of) == 0) {
            return true;
        }
    }
    return false;
}

/* Stores a value; returns false if the option does not take it. */
static bool keep_value(const struct cli_option *o, const char *value)
{
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
    case CLI_SECONDS:
        return parse_seconds(value, o->to);
    }
    return false;
}

static int take_value(const struct cli_verb *verb, const struct cli_option *o, const char *value)
{
    if (o->of != NULL && !is_one_of(value, o->of)) {
        return cli_usage(verb->name, "--%s %s is not one of %s", o->name, value, o->value);
    }
    if (!keep_value(o, value)) {
        return cli_usage(verb->name, "--%s %s is not a number, or is out of range", o->name, value);
    }
    if (o->given != NULL) {
        *o->given = true;
    }
    return 0;
}

/* Sets the options that the command line did not give from the environment. */
static int take_variables(const struct cli_verb *verb, uint64_t given)
{
    for (size_t i = 0; i < verb->option_count; i++) {
        const struct cli_option *o = &verb->options[i];
        const char *value = o->variable == NULL ? NULL : getenv(o->variable);
        int64_t on;

        if (value == NULL || (given >> i & 1) != 0) {
            continue;
        }
        if (o->type == CLI_FLAG) {
            if (!parse_integer(value, &on)) {
                return cli_fail(CLI_FAILED, "%s=%s in the environment is not a whole number",
                                o->variable, value);
            }
            if (on == 0) {
                continue;
            }
        }
        if (!keep_value(o, value)) {
            return cli_usage(verb->name,
                             "%s=%s in the environment is not a number, or is out of range",
                             o->variable, value);
        }
        if (o->given != NULL) {
            *o->given = true;
        }
    }
    return 0;
}

/* Returns whether the first `len` bytes are the option's name, or its beginning. */
static bool name_fits(const struct cli_verb *verb, const char *option, const char *name, size_t len,
                      bool begins)
{
    for (size_t i = 0; i < len; i++) {
        char c = verb->argparse && name[i] == '_' ? '-' : name[i];

        if (option[i] != c) {
            return false;
        }
    }
    return begins || option[len] == '\0';
}

static const struct cli_option help_option = {.name = "help", .type = CLI_FLAG, .letter = 'h'};

/* Finds the option of that name, or the only one that begins with it. Returns NULL after it has
 * printed an error. */
static const struct cli_option *find_option(const struct cli_verb *verb, const char *word,
                                            const char *name, size_t len)
{
    const struct cli_option *found = NULL;

    for (size_t i = 0; i <= verb->option_count; i++) {
        const struct cli_option *o = i < verb->option_count ? &verb->options[i] : &help_option;

        if (name_fits(verb, o->name, name, len, false)) {
            return o;
        }
    }
    for (size_t i = 0; verb->argparse && i <= verb->option_count; i++) {
        const struct cli_option *o = i < verb->option_count ? &verb->options[i] : &help_option;

        if (len == 0 || o->whole || !name_fits(verb, o->name, name, len, true)) {
            continue;
        }
        if (found != NULL) {
            (void)cli_usage(verb->name, "%.*s could be --%s or --%s", (int)(name + len - word),
                            word, found->name, o->name);
            return NULL;
        }
        found = o;
    }
    if (found == NULL) {
        (void)cli_usage(verb->name, "there is no option %s", word);
    }
    return found;
}

static const struct cli_option *find_letter(const struct cli_verb *verb, char letter)
{
    for (size_t i = 0; i < verb->option_count; i++) {
        if (verb->options[i].letter == letter) {
            return &verb->options[i];
        }
    }
    return letter == help_option.letter ? &help_option : NULL;
}

/* argparse takes a word that begins with a dash as a value only if it cannot be an option. */
static bool may_be_value(const struct cli_verb *verb, const char *word)
{
    const char *digits = word + 1;
    double ignored;

    return !verb->argparse || word[0] != '-' || word[1] == '\0' || strchr(word, ' ') != NULL ||
           (strspn(digits, "0123456789.") == strlen(digits) && parse_seconds(digits, &ignored));
}

/* The position of the parser. */
struct parse {
    const struct cli_verb *verb;
    int argc;
    char **argv;
    int at;
    uint64_t given;
};

/* Takes the option with its value: `value`, or else the next word. */
static int take_option(struct parse *p, const struct cli_option *o, const char *value)
{
    if (o == &help_option) {
        print_help(p->verb);
        exit(CLI_OK);
    }
    if (o->value == NULL && value != NULL) {
        return cli_usage(p->verb->name, "--%s takes no value", o->name);
    }
    if (o->value != NULL && value == NULL) {
        if (p->at + 1 >= p->argc || !may_be_value(p->verb, p->argv[p->at + 1])) {
            return cli_usage(p->verb->name, "--%s needs a value (%s)", o->name, o->value);
        }
        value = p->argv[++p->at];
    }
    p->given |= UINT64_C(1) << (o - p->verb->options);
    return take_value(p->verb, o, value);
}

/* "-m", "-r3", "-r=3", "-mr 3". */
static int take_letters(struct parse *p, const char *word)
{
    for (const char *at = word + 1; *at != '\0'; at++) {
        const struct cli_option *o = find_letter(p->verb, *at);
        const char *value = at[1] == '=' ? at + 2 : at + 1;
        int err;

        if (o == NULL) {
            return cli_usage(p->verb->name, "there is no option %s", word);
        }
        if (o->value != NULL) {
            return take_option(p, o, at[1] == '\0' ? NULL : value);
        }
        err = take_option(p, o, at[1] == '=' ? value : NULL);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

static int take_word(struct parse *p, const char *word)
{
    const char *name = word + 2;
    size_t len = strcspn(name, "=");
    const struct cli_option *o;

    if (word[1] != '-') {
        return take_letters(p, word);
    }
    o = find_option(p->verb, word, name, len);
    return o == NULL ? CLI_USAGE : take_option(p, o, name[len] == '=' ? name + len + 1 : NULL);
}

/* The log format that the command line names, even if the command line is wrong; NULL: it names no
 * format. */
static const char *find_format(const struct parse *p, const struct cli_option *log)
{
    const char *format = NULL;
    bool value_follows = false;

    for (int i = 1; i < p->argc && strcmp(p->argv[i], "--") != 0; i++) {
        const char *word = p->argv[i];
        const struct cli_option *o = NULL;
        size_t len = strcspn(word, "=");

        if (word[0] != '-' || word[1] == '\0') {
            /* Everything after the script belongs to the script. */
            if (p->verb->argparse && !value_follows) {
                break;
            }
            value_follows = false;
            continue;
        }
        for (size_t k = 0; word[1] == '-' && o == NULL && k < p->verb->option_count; k++) {
            if (name_fits(p->verb, p->verb->options[k].name, word + 2, len - 2, false)) {
                o = &p->verb->options[k];
            }
        }
        value_follows = word[len] == '\0' && (o == NULL || o->value != NULL);
        if (o == log && (word[len] == '=' || i + 1 < p->argc)) {
            format = word[len] == '=' ? word + len + 1 : p->argv[i + 1];
        }
    }
    return format;
}

/* Errors of the command line are printed in the format that it asks for, perhaps in a later
 * word. */
static void foresee_format(const struct parse *p)
{
    for (size_t i = 0; i < p->verb->option_count; i++) {
        const struct cli_option *o = &p->verb->options[i];

        if (o->of == cli_log_formats) {
            cli_log_foresee(find_format(p, o), getenv(o->variable));
        }
    }
}

int cli_parse(const struct cli_verb *verb, int *argc, char ***argv)
{
    struct parse p = {.verb = verb, .argc = *argc, .argv = *argv, .at = 1};
    int err = 0;

    foresee_format(&p);
    for (; p.at < p.argc && p.argv[p.at][0] == '-' && p.argv[p.at][1] != '\0'; p.at++) {
        if (strcmp(p.argv[p.at], "--") == 0) {
            p.at++;
            break;
        }
        if (verb->argparse && may_be_value(verb, p.argv[p.at])) {
            break;
        }
        err = take_word(&p, p.argv[p.at]);
        if (err != 0) {
            return err;
        }
    }
    *argc -= p.at;
    *argv += p.at;
    return take_variables(verb, p.given);
}

int cli_each_word(const char *list, cli_word_fn *use, void *context, struct mu_errmsg *msg)
{
    char *copy = list == NULL ? NULL : strdup(list);
    char *save = NULL;
    int err = 0;

    for (char *word = copy == NULL ? NULL : strtok_r(copy, ",", &save); word != NULL && err == 0;
         word = strtok_r(NULL, ",", &save)) {
        err = use(context, word, msg);
        if (err != 0 && msg->text[0] == '\0') {
            (void)mu_err(msg, err, "%s", muster_strerror(err));
        }
        if (err != 0 && strstr(msg->text, word) == NULL) {
            mu_err_prefix(msg, "%s", word);
        }
    }
    free(copy);
    return err;
}

int cli_use_words(const char *list, cli_word_fn *use, void *context)
{
    struct mu_errmsg msg = {""};
    int err = cli_each_word(list, use, context, &msg);

    return err == 0 ? 0 : cli_fail(err == MUSTER_EINVAL ? CLI_USAGE : CLI_ADDRESS, "%s", msg.text);
}

enum muster_log_level cli_log_level(void)
{
    const char *text = getenv("LOGLEVEL");

    if (text != NULL && strcasecmp(text, "DEBUG") == 0) {
        return MUSTER_LOG_DEBUG;
    }
    if (text != NULL && strcasecmp(text, "INFO") == 0) {
        return MUSTER_LOG_INFO;
    }
    if (text != NULL && (strcasecmp(text, "ERROR") == 0 || strcasecmp(text, "CRITICAL") == 0)) {
        return MUSTER_LOG_ERROR;
    }
    return MUSTER_LOG_WARN;
}
