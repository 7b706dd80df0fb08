#include "cli/cli_log.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_one_of(const char *value, const char *const *of)
{
    for (; *of != NULL; of++) {
        if (strcmp(value, *of) == 0) {
            return true;
        }
    }
    return false;
}

static int take_value(const struct cli_verb *verb, const struct cli_option *o, const char *value)
{
    char why[160];

    if (o->type == CLI_GONE) {
        return cli_usage(verb->name, "there is no --%s any more: %s", o->name, o->help);
    }
    if (value != NULL && value[0] == '\0' && (o->type != CLI_TEXT || o->of != NULL)) {
        return cli_usage(verb->name, "--%s needs a value (%s)", o->name, o->value);
    }
    if (o->of != NULL && !is_one_of(value, o->of)) {
        struct mu_guess g = {.word = mu_span_str(value)};
        char said[96];

        for (size_t i = 0; o->of[i] != NULL; i++) {
            mu_guess_try(&g, o->of[i]);
        }
        return cli_usage(verb->name, "--%s %s is not one of %s%s", o->name, value, o->value,
                         cli_guess_say(&g, "", said));
    }
    if (!cli_option_keep(o, value, why)) {
        return cli_usage(verb->name, "--%s %s %s", o->name, value, why);
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
        char why[160];

        if (value == NULL || (given >> i & 1) != 0) {
            continue;
        }
        if (o->type == CLI_FLAG) {
            int64_t on;
            const struct cli_option number = {.type = CLI_INTEGER, .to = &on};

            if (!cli_option_keep(&number, value, why)) {
                return cli_fail(CLI_FAILED, "%s=%s in the environment is not a whole number",
                                o->variable, value);
            }
            if (on == 0) {
                continue;
            }
        }
        if (!cli_option_keep(o, value, why)) {
            return cli_usage(verb->name, "%s=%s in the environment %s", o->variable, value, why);
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

static int refuse_option(const struct cli_verb *verb, const char *word, const char *name,
                         size_t len)
{
    char plain[64];
    struct mu_guess g = {.word = mu_span(plain, len < sizeof(plain) ? len : 0)};
    char said[96];

    for (size_t i = 0; i < g.word.len; i++) {
        plain[i] = name[i];
        if (verb->argparse && name[i] == '_') {
            plain[i] = '-';
        }
    }
    for (size_t i = 0; i <= verb->option_count; i++) {
        const struct cli_option *o = i < verb->option_count ? &verb->options[i] : &help_option;

        if (o->type != CLI_GONE) {
            mu_guess_try(&g, o->name);
        }
    }
    (void)cli_guess_say(&g, "--", said);
    return cli_usage(verb->name, "there is no option %.*s%s", (int)(name + len - word), word,
                     said[0] != '\0'  ? said
                     : verb->argparse ? ""
                                      : "; if it is not meant as an option, write -- before it");
}

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
        (void)refuse_option(verb, word, name, len);
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

static bool is_number(const char *text)
{
    size_t n = strspn(text, "0123456789");

    if (text[n] == '.') {
        n += 1 + strspn(text + n + 1, "0123456789");
    }
    return text[n] == '\0' && isdigit((unsigned char)text[n == 0 ? 0 : n - 1]);
}

/* Whether a word is a value, an argument, or anything but an option. To argparse, no option has a
 * blank in its name. */
static bool is_operand(const struct cli_verb *verb, const char *word)
{
    return word[0] != '-' || word[1] == '\0' || is_number(word + 1) ||
           (verb->argparse && word[strcspn(word, "= ")] == ' ');
}

/* Whether the word after an option can be its value. */
static bool may_be_value(const struct cli_verb *verb, const char *word)
{
    return is_operand(verb, word) || (!verb->argparse && word[1] != '-');
}

/* The position of the parser. */
struct parse {
    const struct cli_verb *verb;
    int argc;
    char **argv;
    int at;
    int operands; /* how many words were found that are not options; they lie behind argv[0] */
    uint64_t given;
};

static _Noreturn void print_help(const struct parse *p)
{
    for (int i = 1; i < p->argc && strcmp(p->argv[i], "--") != 0; i++) {
        if (strcmp(p->argv[i], "--json") == 0) {
            cli_help_json(p->verb);
            exit(CLI_OK);
        }
    }
    cli_help(p->verb);
    exit(CLI_OK);
}

/* Takes the option with its value: `value`, or else the next word. */
static int take_option(struct parse *p, const struct cli_option *o, const char *value)
{
    if (o == &help_option) {
        print_help(p);
    }
    if (o->value == NULL && value != NULL && o->type != CLI_GONE) {
        return cli_usage(p->verb->name, "--%s takes no value", o->name);
    }
    if (value == NULL) {
        value = o->otherwise;
    }
    if (o->value != NULL && value == NULL && o->type != CLI_GONE) {
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
            return refuse_option(p->verb, word, word + 1, strcspn(word + 1, "="));
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
        value_follows =
            word[len] == '\0' && (o == NULL || (o->value != NULL && o->otherwise == NULL));
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

/* Takes the options, and gathers the other words behind argv[0]. */
static int take_words(struct parse *p)
{
    bool ended = false;
    int err = 0;

    for (; p->at < p->argc && err == 0; p->at++) {
        char *word = p->argv[p->at];

        if (!ended && strcmp(word, "--") == 0) {
            ended = true;
        } else if (ended || is_operand(p->verb, word)) {
            /* Everything after the script belongs to the script. */
            ended = ended || p->verb->argparse;
            p->argv[1 + p->operands++] = word;
        } else {
            err = take_word(p, word);
        }
    }
    return err;
}

/* Where a command has operations, the first word is one of them. */
static int check_operation(const struct parse *p)
{
    const char *const *names = p->verb->operations;
    struct mu_guess g = {0};
    char said[96];
    char list[512];

    if (names == NULL || (p->operands == 0 && p->verb->alone)) {
        return 0;
    }
    if (p->operands == 0) {
        return cli_usage(p->verb->name, "say what to do: %s", cli_list(names, list, sizeof(list)));
    }
    if (is_one_of(p->argv[1], names)) {
        return 0;
    }
    g.word = mu_span_str(p->argv[1]);
    for (size_t i = 0; names[i] != NULL; i++) {
        mu_guess_try(&g, names[i]);
    }
    if (cli_guess_say(&g, "", said)[0] != '\0') {
        return cli_usage(p->verb->name, "there is no operation \"%s\"%s", p->argv[1], said);
    }
    return cli_usage(p->verb->name, "there is no operation \"%s\": say %s", p->argv[1],
                     cli_list(names, list, sizeof(list)));
}

int cli_parse(const struct cli_verb *verb, int *argc, char ***argv)
{
    struct parse p = {.verb = verb, .argc = *argc, .argv = *argv, .at = 1};
    int err;

    foresee_format(&p);
    err = take_words(&p);
    err = err != 0 ? err : check_operation(&p);
    *argc = p.operands;
    *argv += 1;
    return err != 0 ? err : take_variables(verb, p.given);
}
