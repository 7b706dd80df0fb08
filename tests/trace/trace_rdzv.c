/*
 * Golden traces of the rendezvous: a script, and the story it must produce.
 *
 *     trace_rdzv FILE...              compares; the first line that differs is shown
 *     trace_rdzv --rewrite FILE...    writes the story anew. Commit that only if you can explain
 *                                     every line that changed.
 *
 * A script, up to the line "----":
 *
 *     # a remark
 *     set min=2 max=3 join=600s last_call=30s push=yes dialect=2 latency=1ms
 *     node a rejoin skew=7s     a node with properties; others are made when they are first named
 *     90ms a join               at that time: join leave close look crash stop resume cut heal;
 *     2s - wipe                 the register loses what it holds
 *     run until 40s
 *
 * The story leaves out heartbeats, and reads that show what the node saw when it read last.
 */
#include "rdzv_world.h"

#include <ctype.h>

#define STORY_MAX  (1u << 16)
#define SCRIPT_MAX (1u << 16)

static struct world w;
static char story[STORY_MAX];
static size_t story_len;
static char last_read[WORLD_NODES_MAX][512];
static const char *script_name;
static unsigned script_line;

_Noreturn static void refuse(const char *what, const char *where)
{
    (void)fprintf(stderr, "%s:%u: %s: %s\n", script_name, script_line, what, where);
    exit(2);
}

static void tell(struct world *world, const char *line)
{
    const char *words = strchr(line, ']') + 2;
    const char *read = strstr(words, " reads ");

    if (strstr(words, "KEEP_ALIVE") != NULL) {
        return;
    }
    for (size_t i = 0; i < world->node_count && read != NULL; i++) {
        const char *name = world->nodes[i]->name;

        if (strncmp(words, name, strlen(name)) == 0 && words[strlen(name)] == ' ') {
            if (strcmp(last_read[i], read) == 0) {
                return;
            }
            (void)snprintf(last_read[i], sizeof(last_read[i]), "%s", read);
        }
    }
    story_len += (size_t)snprintf(story + story_len, STORY_MAX - story_len, "%s\n", line);
    if (story_len >= STORY_MAX) {
        refuse("the story is too long", line);
    }
}

/* --- words ------------------------------------------------------------ */

static uint64_t parse_time(const char *text)
{
    char *end;
    double number = strtod(text, &end);

    if (end == text || number < 0) {
        refuse("not a time", text);
    }
    if (strcmp(end, "ms") == 0) {
        return (uint64_t)(number * 1e6);
    }
    if (strcmp(end, "s") == 0) {
        return (uint64_t)(number * 1e9);
    }
    if (*end != '\0' || number != 0) {
        refuse("not a time", text);
    }
    return 0;
}

/* The value behind "key=", or NULL. */
static const char *value_of(const char *word, const char *key)
{
    size_t n = strlen(key);

    return strncmp(word, key, n) == 0 && word[n] == '=' ? word + n + 1 : NULL;
}

static void set(const char *word)
{
    struct mu_rdzv_settings *settings = &w.config.settings;
    const char *v;

    if ((v = value_of(word, "min")) != NULL) {
        settings->min_nodes = strtoul(v, NULL, 10);
    } else if ((v = value_of(word, "max")) != NULL) {
        settings->max_nodes = strtoul(v, NULL, 10);
    } else if ((v = value_of(word, "join")) != NULL) {
        settings->join_timeout_ms = parse_time(v) / WORLD_MS;
    } else if ((v = value_of(word, "last_call")) != NULL) {
        settings->last_call_timeout_ms = parse_time(v) / WORLD_MS;
    } else if ((v = value_of(word, "latency")) != NULL) {
        w.latency = parse_time(v);
    } else if ((v = value_of(word, "push")) != NULL) {
        w.config.push = strcmp(v, "yes") == 0;
    } else if ((v = value_of(word, "dialect")) != NULL) {
        w.config.dialect = strcmp(v, "1.13") == 0      ? MU_RDZV_DIALECT_1_13
                           : strcmp(v, "2-naive") == 0 ? MU_RDZV_DIALECT_2_NAIVE
                                                       : MU_RDZV_DIALECT_2;
    } else {
        refuse("no such setting", word);
    }
}

static size_t node_of(const char *name)
{
    for (size_t i = 0; i < w.node_count; i++) {
        if (strcmp(w.nodes[i]->name, name) == 0) {
            return i;
        }
    }
    return world_add(&w, name);
}

static void give_property(size_t node, const char *word)
{
    const char *v = value_of(word, "skew");

    if (v != NULL) {
        int64_t sign = *v == '-' ? -1 : 1;

        w.nodes[node]->skew_ns = sign * (int64_t)parse_time(*v == '-' ? v + 1 : v);
    } else if (strcmp(word, "rejoin") == 0) {
        w.nodes[node]->rejoin = true;
    } else {
        refuse("no such property", word);
    }
}

static void act(const char *name, const char *verb)
{
    static const struct {
        const char *verb;
        enum mu_rdzv_event_type type;
    } wishes[] = {{"join", MU_RDZV_JOIN},
                  {"leave", MU_RDZV_LEAVE},
                  {"close", MU_RDZV_CLOSE},
                  {"look", MU_RDZV_LOOK}};
    size_t node;

    if (strcmp(verb, "wipe") == 0) {
        w.present = false;
        return;
    }
    node = node_of(name);
    world_say(&w, w.nodes[node], "-- %s", verb);
    for (size_t i = 0; i < sizeof(wishes) / sizeof(wishes[0]); i++) {
        if (strcmp(verb, wishes[i].verb) == 0) {
            world_wish(&w, node, wishes[i].type);
            return;
        }
    }
    if (strcmp(verb, "crash") == 0) {
        world_crash(&w, node);
    } else if (strcmp(verb, "stop") == 0 || strcmp(verb, "resume") == 0) {
        world_pause(&w, node, verb[0] == 's');
    } else if (strcmp(verb, "cut") == 0 || strcmp(verb, "heal") == 0) {
        w.nodes[node]->cut = verb[0] == 'c';
    } else {
        refuse("no such verb", verb);
    }
}

static void obey(char *line)
{
    char *words[16];
    size_t count = 0;

    for (char *word = line; *word != '\0' && count < 16;) {
        word += strspn(word, " ");
        if (*word == '\0') {
            break;
        }
        words[count++] = word;
        word += strcspn(word, " ");
        if (*word != '\0') {
            *word++ = '\0';
        }
    }
    if (count == 0 || words[0][0] == '#') {
        return;
    }
    if (strcmp(words[0], "set") == 0) {
        for (size_t i = 1; i < count; i++) {
            set(words[i]);
        }
    } else if (strcmp(words[0], "node") == 0 && count >= 2) {
        size_t node = node_of(words[1]);

        for (size_t i = 2; i < count; i++) {
            give_property(node, words[i]);
        }
    } else if (count == 3 && strcmp(words[0], "run") == 0 && strcmp(words[1], "until") == 0) {
        world_run(&w, parse_time(words[2]));
    } else if (count == 3 && isdigit((unsigned char)words[0][0])) {
        world_run(&w, parse_time(words[0]));
        act(words[1], words[2]);
    } else {
        refuse("not understood", words[0]);
    }
}

/* --- files ------------------------------------------------------------- */

/* Runs the script; what stands behind "----" is the story it should produce. */
static char *play(char *text)
{
    char *line = text;

    world_init(&w);
    w.say = tell;
    story_len = 0;
    story[0] = '\0';
    memset(last_read, 0, sizeof(last_read));
    script_line = 0;
    while (*line != '\0') {
        char *end = strchr(line, '\n');

        script_line++;
        if (end == NULL) {
            refuse("no line ----", line);
        }
        *end = '\0';
        if (strcmp(line, "----") == 0) {
            world_fini(&w);
            return end + 1;
        }
        obey(line);
        line = end + 1;
    }
    refuse("no line ----", "");
}

static bool compare(const char *name, const char *expected)
{
    const char *a = expected;
    const char *b = story;
    unsigned number = script_line;

    while (*a != '\0' || *b != '\0') {
        size_t n = strcspn(a, "\n");
        size_t m = strcspn(b, "\n");

        number++;
        if (n != m || memcmp(a, b, n) != 0) {
            (void)printf("%s:%u:\n  expected: %.*s\n  got:      %.*s\n", name, number, (int)n, a,
                         (int)m, b);
            return false;
        }
        a += n + (a[n] != '\0');
        b += m + (b[m] != '\0');
    }
    return true;
}

static bool run_file(const char *name, bool rewrite)
{
    static char text[SCRIPT_MAX];
    static char script[SCRIPT_MAX];
    FILE *file = fopen(name, "r");
    size_t len;
    char *expected;

    script_name = name;
    if (file == NULL) {
        refuse("cannot be read", name);
    }
    len = fread(text, 1, sizeof(text) - 1, file);
    text[len] = '\0';
    (void)fclose(file);
    memcpy(script, text, len + 1);
    expected = play(script);
    if (!rewrite) {
        return compare(name, expected);
    }
    file = fopen(name, "w");
    if (file == NULL) {
        refuse("cannot be written", name);
    }
    (void)fwrite(text, 1, (size_t)(expected - script), file);
    (void)fputs(story, file);
    return fclose(file) == 0;
}

int main(int argc, char **argv)
{
    bool rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0;
    bool good = true;

    for (int i = rewrite ? 2 : 1; i < argc; i++) {
        good = run_file(argv[i], rewrite) && good;
    }
    return good ? 0 : 1;
}
