#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

const char *cli_list(const char *const *words, char *out, size_t cap)
{
    size_t len = 0;

    out[0] = '\0';
    for (size_t i = 0; words[i] != NULL && len < cap; i++) {
        len += (size_t)snprintf(out + len, cap - len, "%s%s",
                                i == 0                 ? ""
                                : words[i + 1] == NULL ? " or "
                                                       : ", ",
                                words[i]);
    }
    return out;
}

static bool has_time(const struct cli_verb *verb)
{
    for (size_t i = 0; i < verb->option_count; i++) {
        if (verb->options[i].type == CLI_SECONDS) {
            return true;
        }
    }
    return false;
}

void cli_help(const struct cli_verb *verb)
{
    printf("usage: muster %s %s\n\n%s\n\noptions:\n", verb->name, verb->synopsis,
           verb->description);
    for (size_t i = 0; i < verb->option_count; i++) {
        const struct cli_option *o = &verb->options[i];
        char letter[8] = "";
        char left[80];

        if (o->type == CLI_GONE) {
            continue;
        }
        if (o->letter != 0) {
            (void)snprintf(letter, sizeof(letter), "-%c, ", o->letter);
        }
        (void)snprintf(left, sizeof(left), o->otherwise != NULL ? "%s--%s[=%s%s]" : "%s--%s%s%s",
                       letter, o->name, o->value != NULL && o->otherwise == NULL ? " " : "",
                       o->value != NULL ? o->value : "");
        if (strlen(left) > 26) {
            printf("  %s\n  %-26s %s\n", left, "", o->help);
        } else {
            printf("  %-26s %s\n", left, o->help);
        }
    }
    printf("  %-26s %s\n", "--help", "print this help; with --json, as JSON");
    if (has_time(verb)) {
        printf("\nA TIME is 500ms, 5s, 2m or 1h; a number alone is in seconds.\n");
    }
}

static json_t *words_json(const char *const *words)
{
    json_t *list = json_array();

    for (size_t i = 0; words != NULL && words[i] != NULL; i++) {
        (void)json_array_append_new(list, json_string(words[i]));
    }
    return list;
}

static json_t *option_json(const struct cli_option *o)
{
    static const char *const types[] = {
        [CLI_FLAG] = "flag",    [CLI_TEXT] = "text",       [CLI_NUMBER] = "number",
        [CLI_SIZE] = "size",    [CLI_INTEGER] = "integer", [CLI_REAL] = "real",
        [CLI_SECONDS] = "time", [CLI_GONE] = "gone"};
    json_t *object = json_pack("{s:s, s:s, s:s}", "name", o->name, "type", types[o->type],
                               o->type == CLI_GONE ? "instead" : "help", o->help);

    if (o->value != NULL) {
        (void)json_object_set_new(object, "value", json_string(o->value));
    }
    if (o->otherwise != NULL) {
        (void)json_object_set_new(object, "otherwise", json_string(o->otherwise));
    }
    if (o->letter != 0) {
        (void)json_object_set_new(object, "letter", json_stringn(&o->letter, 1));
    }
    if (o->variable != NULL) {
        (void)json_object_set_new(object, "variable", json_string(o->variable));
    }
    if (o->of != NULL) {
        (void)json_object_set_new(object, "of", words_json(o->of));
    }
    return object;
}

void cli_help_json(const struct cli_verb *verb)
{
    json_t *options = json_array();
    json_t *object =
        json_pack("{s:s, s:s, s:s, s:b, s:o, s:o}", "command", verb->name, "synopsis",
                  verb->synopsis, "description", verb->description, "ends_at_operand",
                  verb->argparse, "operations", words_json(verb->operations), "options", options);

    for (size_t i = 0; i < verb->option_count; i++) {
        (void)json_array_append_new(options, option_json(&verb->options[i]));
    }
    cli_print_json(object);
}

const char *cli_guess_say(const struct mu_guess *g, const char *before, char out[96])
{
    out[0] = '\0';
    if (g->best != NULL) {
        (void)snprintf(out, 96, " (did you mean %s%s?)", before, g->best);
    }
    return out;
}
