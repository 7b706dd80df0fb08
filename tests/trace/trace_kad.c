/*
 * Golden traces of a search in libp2p's DHT: a script, and the story it must produce.
 *
 *     trace_kad FILE               compares; the first line that differs is shown
 *     trace_kad --rewrite FILE     writes the story anew. Commit that only if you can explain every
 *                                  line that changed.
 *
 * A script, up to the line "----". Peers are numbers: 1 is the nearest to the target, 400 the
 * farthest, 0 the target itself. A peer without a line of its own never answers.
 *
 *     # a remark
 *     set nearest=20 parallel=10 asked_max=64 answer=10s
 *     self 0                     the search is for ourselves; else we are peer 400
 *     known 40 50                can be asked from the start
 *     40 answers 80ms 3 17 0     so long after it is asked, with these peers
 *     50 fails 1s
 *     stop 5s                    the driver stops it then
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kad_peers.h"

#define STORY_MAX (1u << 16)
#define WORDS_MAX 80
#define NEVER     UINT64_MAX

enum manner { SILENT = 0, ANSWERS, FAILS };

struct peer {
    enum manner manner;
    uint64_t after_ns;
    uint64_t at_ns; /* when it answers or fails; NEVER: it was not asked, or is done */
    struct mu_peer_id named[WORDS_MAX];
    char text[512]; /* the same in words */
    size_t count;
};

static struct peer peers[KAD_PEERS + 1];
static struct mu_kad_search_config config;
static unsigned known[WORDS_MAX];
static size_t known_count;
static struct mu_kad_search search;
static uint64_t stop_ns = NEVER;
static uint64_t now_ns;
static char story[STORY_MAX];
static size_t story_len;
static const char *script_name;

_Noreturn static void refuse(const char *what, const char *where)
{
    (void)fprintf(stderr, "%s: %s: %s\n", script_name, what, where);
    exit(2);
}

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void tell(const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    story_len += (size_t)snprintf(story + story_len, STORY_MAX - story_len, "[%9.3f] %s\n",
                                  (double)now_ns / 1e9, line);
    if (story_len >= STORY_MAX) {
        refuse("the story is too long", line);
    }
}

/* --- the search ------------------------------------------------------------------------------- */

static const char *state_name(enum mu_kad_search_state state)
{
    static const char *const names[] = {"?",       "asking", "found",  "nobody",
                                        "unknown", "spent",  "stopped"};

    return names[state];
}

static void pump(void)
{
    struct mu_kad_action action;

    while (mu_kad_search_next(&search, (mu_mono_t){now_ns}, &action)) {
        unsigned n = kad_number(&action.peer);

        switch (action.type) {
        case MU_KAD_ACTION_ASK:
            tell("asks %u", n);
            peers[n].at_ns = peers[n].manner == SILENT ? NEVER : now_ns + peers[n].after_ns;
            break;
        case MU_KAD_ACTION_LATE:
            tell("%u is late", n);
            break;
        case MU_KAD_ACTION_END:
            tell("ends: %s, %" PRIu32 " asked", state_name(search.state), search.asked);
            break;
        }
    }
}

static void act(unsigned n)
{
    struct peer *p = &peers[n];
    bool heard = mu_kad_search_is_asking(&search, &kad_peer[n]);

    p->at_ns = NEVER;
    if (p->manner == ANSWERS) {
        tell("%u answers:%s%s", n, p->count == 0 ? " nobody" : p->text, heard ? "" : " (too late)");
        mu_kad_search_answered(&search, &kad_peer[n], p->named, p->count);
    } else {
        tell("%u fails%s", n, heard ? "" : " (too late)");
        mu_kad_search_failed(&search, &kad_peer[n]);
    }
    pump();
}

/* From one event to the next, until the search has ended. */
static void run_search(void)
{
    mu_kad_search_init(&search, &config);
    for (size_t i = 0; i < known_count; i++) {
        mu_kad_search_add(&search, &kad_peer[known[i]]);
    }
    pump();
    while (search.state == MU_KAD_SEARCH_ASKING) {
        unsigned first = 0;
        uint64_t next_ns = mu_kad_search_deadline(&search).ns;

        for (unsigned n = 1; n <= KAD_PEERS; n++) {
            if (peers[n].at_ns < next_ns) {
                first = n;
                next_ns = peers[n].at_ns;
            }
        }
        if (stop_ns <= next_ns) {
            now_ns = stop_ns;
            tell("is stopped");
            mu_kad_search_stop(&search);
            pump();
        } else if (first != 0) {
            now_ns = next_ns;
            act(first);
        } else {
            now_ns = next_ns;
            pump();
        }
    }
}

/* --- scripts ---------------------------------------------------------------------------------- */

static uint64_t parse_time(const char *text)
{
    char *end;
    double number = strtod(text, &end);

    if (end != text && strcmp(end, "ms") == 0) {
        return (uint64_t)(number * 1e6);
    }
    if (end != text && strcmp(end, "s") == 0) {
        return (uint64_t)(number * 1e9);
    }
    refuse("not a time", text);
}

static unsigned parse_number(const char *text, unsigned max)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    if (end == text || *end != '\0' || number > max) {
        refuse("not a number that may stand here", text);
    }
    return (unsigned)number;
}

static void set_one(const char *word)
{
    static const struct {
        const char *key;
        uint32_t *value;
    } numbers[] = {{"nearest=", &config.nearest},
                   {"parallel=", &config.parallel},
                   {"asked_max=", &config.asked_max}};

    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strncmp(word, numbers[i].key, strlen(numbers[i].key)) == 0) {
            *numbers[i].value = parse_number(word + strlen(numbers[i].key), 1000);
            return;
        }
    }
    if (strncmp(word, "answer=", 7) != 0) {
        refuse("not known", word);
    }
    config.answer_ms = (uint32_t)(parse_time(word + 7) / MU_NS_PER_MS);
}

static void set_peer(char **words, size_t count)
{
    struct peer *p = &peers[parse_number(words[0], KAD_PEERS)];
    size_t len = 0;

    p->manner = strcmp(words[1], "answers") == 0 ? ANSWERS : FAILS;
    if (p->manner == FAILS && (strcmp(words[1], "fails") != 0 || count != 3)) {
        refuse("not understood", words[1]);
    }
    p->after_ns = parse_time(words[2]);
    for (size_t i = 3; i < count; i++) {
        p->named[p->count++] = kad_peer[parse_number(words[i], KAD_PEERS)];
        len += (size_t)snprintf(p->text + len, sizeof(p->text) - len, " %s", words[i]);
    }
}

static void take_line(char *line)
{
    char *words[WORDS_MAX];
    size_t count = 0;

    for (char *at = strtok_r(line, " ", &line); at != NULL && count < WORDS_MAX;
         at = strtok_r(NULL, " ", &line)) {
        words[count++] = at;
    }
    if (count == 0 || words[0][0] == '#') {
        return;
    }
    if (strcmp(words[0], "set") == 0) {
        for (size_t i = 1; i < count; i++) {
            set_one(words[i]);
        }
    } else if (strcmp(words[0], "known") == 0) {
        for (size_t i = 1; i < count && known_count < WORDS_MAX; i++) {
            known[known_count++] = parse_number(words[i], KAD_PEERS);
        }
    } else if (strcmp(words[0], "self") == 0 && count == 2) {
        config.self = kad_peer[parse_number(words[1], KAD_PEERS)];
    } else if (strcmp(words[0], "stop") == 0 && count == 2) {
        stop_ns = parse_time(words[1]);
    } else if (count >= 3) {
        set_peer(words, count);
    } else {
        refuse("not understood", words[0]);
    }
}

static int compare(const char *expected)
{
    size_t line = 0;

    if (strcmp(expected, story) == 0) {
        return 0;
    }
    for (size_t i = 0; expected[i] == story[i]; i++) {
        line = story[i] == '\n' ? i + 1 : line;
    }
    (void)fprintf(stderr, "%s: the story differs here\n  expected: %.*s\n  found:    %.*s\n",
                  script_name, (int)strcspn(expected + line, "\n"), expected + line,
                  (int)strcspn(story + line, "\n"), story + line);
    return 1;
}

static int run_script(const char *path, bool rewrite)
{
    static char text[STORY_MAX];
    FILE *f = fopen(path, "re");
    char *end;
    size_t len;

    script_name = path;
    len = f == NULL ? 0 : fread(text, 1, sizeof(text) - 1, f);
    if (f == NULL || fclose(f) != 0) {
        refuse("cannot be read", path);
    }
    text[len] = '\0';
    end = strstr(text, "----\n");
    if (end == NULL) {
        refuse("has no line ----", path);
    }
    for (char *line = text; line < end;) {
        char copy_of[512];
        size_t n = strcspn(line, "\n");

        (void)snprintf(copy_of, sizeof(copy_of), "%.*s", (int)n, line);
        take_line(copy_of);
        line += n + 1;
    }
    run_search();
    if (!rewrite) {
        return compare(end + 5);
    }
    f = fopen(path, "we");
    if (f == NULL || fwrite(text, 1, (size_t)(end + 5 - text), f) == 0 || fputs(story, f) < 0 ||
        fclose(f) != 0) {
        refuse("cannot be written", path);
    }
    return 0;
}

int main(int argc, char **argv)
{
    bool rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0;

    if (argc != (rewrite ? 3 : 2)) {
        (void)fprintf(stderr, "usage: %s [--rewrite] FILE\n", argv[0]);
        return 2;
    }
    kad_make_peers();
    for (unsigned n = 0; n <= KAD_PEERS; n++) {
        peers[n].at_ns = NEVER;
    }
    config = (struct mu_kad_search_config){.self = kad_peer[KAD_PEERS],
                                           .target = kad_peer[0],
                                           .nearest = 20,
                                           .parallel = 10,
                                           .asked_max = 64,
                                           .answer_ms = 10000};
    return run_script(argv[argc - 1], rewrite);
}
