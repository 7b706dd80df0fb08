/*
 * Golden traces: a file holds a script, the line "----", and the story that the script must make.
 *
 *     program FILE               compares; the first line that differs is shown
 *     program --rewrite FILE     writes the story anew. Commit that only if you can explain every
 *                                line that changed.
 *
 * The program gives story_main() a function that takes a line of the script, in words, and tells
 * what happens by story_tell(). Empty lines and remarks (#) do not reach it.
 */
#ifndef MU_STORY_H
#define MU_STORY_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STORY_MAX       (1u << 16)
#define STORY_WORDS_MAX 40

static uint64_t story_now_ns;
static char story_text[STORY_MAX];
static size_t story_len;
static const char *story_name;

_Noreturn static inline void story_refuse(const char *what, const char *where)
{
    (void)fprintf(stderr, "%s: %s: %s\n", story_name, what, where);
    exit(2);
}

__attribute__((format(printf, 1, 2))) static inline void story_tell(const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    story_len += (size_t)snprintf(story_text + story_len, STORY_MAX - story_len, "[%9.3f] %s\n",
                                  (double)story_now_ns / 1e9, line);
    if (story_len >= STORY_MAX) {
        story_refuse("the story is too long", line);
    }
}

/** 250ms, 1.5s */
static inline uint64_t story_time_ns(const char *text)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || (strcmp(end, "ms") != 0 && strcmp(end, "s") != 0)) {
        story_refuse("not a time", text);
    }
    return (uint64_t)(number * (strcmp(end, "s") == 0 ? 1e9 : 1e6));
}

static inline int story_compare(const char *expected)
{
    size_t line = 0;

    if (strcmp(expected, story_text) == 0) {
        return 0;
    }
    for (size_t i = 0; expected[i] == story_text[i]; i++) {
        line = story_text[i] == '\n' ? i + 1 : line;
    }
    (void)fprintf(stderr, "%s: the story differs here\n  expected: %.*s\n  found:    %.*s\n",
                  story_name, (int)strcspn(expected + line, "\n"), expected + line,
                  (int)strcspn(story_text + line, "\n"), story_text + line);
    return 1;
}

static inline void story_take(char *line, void (*take)(char **words, size_t count))
{
    char *words[STORY_WORDS_MAX];
    size_t count = 0;

    for (char *at = strtok_r(line, " ", &line); at != NULL && count < STORY_WORDS_MAX;
         at = strtok_r(NULL, " ", &line)) {
        words[count++] = at;
    }
    if (count > 0 && words[0][0] != '#') {
        take(words, count);
    }
}

static inline int story_main(int argc, char **argv, void (*take)(char **words, size_t count))
{
    static char text[STORY_MAX];
    bool rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0;
    char *end;
    FILE *f;

    if (argc != (rewrite ? 3 : 2)) {
        (void)fprintf(stderr, "usage: %s [--rewrite] FILE\n", argv[0]);
        return 2;
    }
    story_name = argv[argc - 1];
    f = fopen(story_name, "re");
    if (f == NULL || fread(text, 1, sizeof(text) - 1, f) == 0 || fclose(f) != 0) {
        story_refuse("cannot be read", story_name);
    }
    end = strstr(text, "----\n");
    if (end == NULL) {
        story_refuse("has no line ----", story_name);
    }
    for (char *line = text; line < end; line += strcspn(line, "\n") + 1) {
        char copy_of[2048];

        (void)snprintf(copy_of, sizeof(copy_of), "%.*s", (int)strcspn(line, "\n"), line);
        story_take(copy_of, take);
    }
    if (!rewrite) {
        return story_compare(end + 5);
    }
    f = fopen(story_name, "we");
    if (f == NULL || fwrite(text, 1, (size_t)(end + 5 - text), f) == 0 ||
        fputs(story_text, f) < 0 || fclose(f) != 0) {
        story_refuse("cannot be written", story_name);
    }
    return 0;
}

#endif
