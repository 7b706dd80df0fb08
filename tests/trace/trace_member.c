/*
 * Golden traces of a member of a native run: a script, and the story it must produce.
 *
 *     trace_member FILE               compares; the first line that differs is shown
 *     trace_member --rewrite FILE     writes the story anew. Commit that only if you can explain
 *                                     every line that changed.
 *
 * A script, up to the line "----". Each line but `set` begins with its time; times do not go back.
 *
 *     # a remark
 *     set join_timeout=4s kept=3s restarts=3 hosting stays
 *                              stays: the user answers a cut that nothing runs
 *     0s join                  and: join blameless, leave, close
 *     1s linked                the session is there, and what there is to say is said; unlinked
 *     1s confirmed             the server has answered what was said now
 *     1s entered gathering     a notice; and: entered waiting, entered spare
 *     1s assigned 0 left=2     round 0; 2 restarts are left
 *     2s ended 0 lost n1       a notice; and: left, failed, upscale
 *     2s waiters 3
 *     3s answered timeout no round in time       the reply to the join, and its text
 *     3s close_answered ok
 *     3s lost it is gone       the session; and: unreached, broken
 *     3s starved               nothing can be said for want of memory, until `fed`
 *     3s asleep                the process is stopped, until `awake`
 *     9s end
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rdzv/member.h"
#include "proto/rdzv/room.h"

#define STORY_MAX (1u << 16)
#define WORDS_MAX 40

static struct mu_member member;
static struct mu_member_config config = {
    .address = "server:29400", .join_timeout_ms = 600000, .restarts_max = UINT32_MAX};
static bool begun;
static bool stays;
static bool starved;
static bool asleep;
static mu_mono_t now;
static char shown[64];
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
                                  (double)now.ns / 1e9, line);
    if (story_len >= STORY_MAX) {
        refuse("the story is too long", line);
    }
}

/* --- names ------------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    int status;
} statuses[] = {
    {"ok", 0},
    {"closed", MUSTER_ERDZV_CLOSED},
    {"graceful", MUSTER_ERDZV_GRACEFUL},
    {"timeout", MUSTER_ERDZV_TIMEOUT},
    {"conn", MUSTER_ERDZV_CONN},
    {"lost", MUSTER_ERDZV_LOST},
    {"state", MUSTER_ERDZV_STATE},
    {"restarts", MUSTER_ERDZV_RESTARTS},
    {"session", MUSTER_ESESSION},
    {"method", MUSTER_ENOMETHOD},
    {"late", MUSTER_ETIMEDOUT},
    {"unknown", MUSTER_ENOENT},
};

#define STATUSES (sizeof(statuses) / sizeof(statuses[0]))

static int parse_status(const char *text)
{
    size_t i = 0;

    while (i < STATUSES && strcmp(statuses[i].name, text) != 0) {
        i++;
    }
    if (i == STATUSES) {
        refuse("not a status", text);
    }
    return statuses[i].status;
}

static const char *status_name(int status)
{
    size_t i = 0;

    while (i < STATUSES && statuses[i].status != status) {
        i++;
    }
    return i < STATUSES ? statuses[i].name : muster_strerror(status);
}

static uint32_t parse_place(const char *text)
{
    return strcmp(text, "gathering") == 0 ? MU_RDZV_PLACE_GATHERING
           : strcmp(text, "spare") == 0   ? MU_RDZV_PLACE_SPARE
                                          : MU_RDZV_PLACE_WAITING;
}

static uint32_t parse_reason(const char *text)
{
    return strcmp(text, "lost") == 0     ? MU_ROOM_END_LOST
           : strcmp(text, "left") == 0   ? MU_ROOM_END_LEFT
           : strcmp(text, "failed") == 0 ? MU_ROOM_END_FAILED
                                         : MU_ROOM_END_UPSCALE;
}

static void show_state(void)
{
    static const char *const users[] = {"OUT", "JOINING", "IN", "BETWEEN", "LEAVING"};
    static const char *const calls[] = {"no call", "ASKED", "ENTERED", "SPARE", "ENDING"};
    static const char *const runs[] = {"", ", close WANTED", ", close ASKED", ", CLOSED"};
    static const char *const holds[] = {"", ", holds a round", ", a held round is due"};
    char text[64];

    (void)snprintf(text, sizeof(text), "%s, %s%s%s", users[member.user], calls[member.call],
                   runs[member.run], holds[member.held]);
    if (strcmp(text, shown) != 0) {
        memcpy(shown, text, sizeof(shown));
        tell("    = %s", text);
    }
}

/* --- the driver ------------------------------------------------------------------------------- */

static void act(const struct mu_member_action *a)
{
    switch (a->type) {
    case MU_MEMBER_CANCEL:
        tell("    cancels the join");
        break;
    case MU_MEMBER_ASSIGNED:
        tell("    assigned: round %" PRIu64 " of %" PRIu64, member.round, member.incarnation);
        break;
    case MU_MEMBER_ENDED:
        tell("    ended: %s%s%s", a->text.text, a->has_who ? "; because of " : "", a->who);
        break;
    case MU_MEMBER_WAITING:
        tell("    waiting: %" PRIu32, a->count);
        break;
    case MU_MEMBER_CUT_OFF:
        tell("    cut off: must have stopped by %.3f%s", (double)a->by.ns / 1e9,
             stays ? "; nothing runs" : "");
        if (!stays) {
            mu_member_cut(&member, now);
        }
        break;
    case MU_MEMBER_FAILED:
        tell("    failed (%s): %s", status_name(a->status), a->text.text);
        break;
    case MU_MEMBER_LEFT:
        tell("    left");
        break;
    case MU_MEMBER_CLOSED:
        tell("    closed");
        break;
    case MU_MEMBER_CLOSE_FAILED:
        tell("    close failed (%s): %s", status_name(a->status), a->text.text);
        break;
    }
}

static void say(void)
{
    enum mu_member_word word;

    while (member.link.linked && mu_member_say(&member, &word)) {
        if (starved) {
            tell("    has no memory to say it");
        } else if (word == MU_MEMBER_CALL_JOIN) {
            tell("    says: join, incarnation %" PRIu64 ", %" PRIu32 " spent", member.incarnation,
                 member.spent);
        } else if (word == MU_MEMBER_SAY) {
            tell("    says: round %" PRIu64 " has %s", member.round,
                 member.say == MU_RDZV_SAY_FAILED ? "failed" : "stopped");
        } else {
            tell("    says: %s", word == MU_MEMBER_END_CALL ? "I want out" : "close the run");
        }
        mu_member_said(&member, now, word, starved ? MUSTER_ENOMEM : 0);
        if (starved) {
            break;
        }
    }
}

static void pump(void)
{
    struct mu_member_action action;

    while (mu_member_next(&member, &action)) {
        act(&action);
    }
    say();
    show_state();
}

static void tick_until(mu_mono_t until)
{
    while (!asleep && !mu_mono_before(until, mu_member_deadline(&member))) {
        mu_mono_t at = mu_member_deadline(&member);

        now = mu_mono_before(now, at) ? at : now;
        mu_member_tick(&member, now);
        pump();
    }
    now = until;
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

static void set_one(const char *word)
{
    if (strncmp(word, "join_timeout=", 13) == 0) {
        config.join_timeout_ms = parse_time(word + 13) / MU_NS_PER_MS;
    } else if (strncmp(word, "kept=", 5) == 0) {
        member.link.kept_ms = (uint32_t)(parse_time(word + 5) / MU_NS_PER_MS);
    } else if (strncmp(word, "restarts=", 9) == 0) {
        config.restarts_max = (uint32_t)strtoul(word + 9, NULL, 10);
    } else if (strcmp(word, "hosting") == 0) {
        member.link.hosting = true;
    } else if (strcmp(word, "stays") == 0) {
        stays = true;
    } else {
        refuse("not known", word);
    }
}

/* What the server says in the join call. */
static bool take_notice(char **words, size_t count)
{
    struct mu_rdzv_notice notice = {.incarnation = 7, .restarts_left = UINT32_MAX};
    const char *what = words[0];

    if (strcmp(what, "entered") == 0 && count == 2) {
        notice.kind = MU_RDZV_NOTICE_ENTERED;
        notice.place = parse_place(words[1]);
    } else if (strcmp(what, "assigned") == 0 && count >= 2) {
        notice.kind = MU_RDZV_NOTICE_ASSIGNED;
        notice.round = strtoull(words[1], NULL, 10);
        if (count == 3 && strncmp(words[2], "left=", 5) == 0) {
            notice.restarts_left = (uint32_t)strtoul(words[2] + 5, NULL, 10);
        }
    } else if (strcmp(what, "ended") == 0 && count >= 3) {
        notice.kind = MU_RDZV_NOTICE_ENDED;
        notice.round = strtoull(words[1], NULL, 10);
        notice.reason = parse_reason(words[2]);
        notice.has_who = count == 4;
        notice.who = mu_span_str(count == 4 ? words[3] : "");
    } else if (strcmp(what, "waiters") == 0 && count == 2) {
        notice.kind = MU_RDZV_NOTICE_WAITERS;
        notice.waiters = (uint32_t)strtoul(words[1], NULL, 10);
    } else {
        return false;
    }
    mu_member_notice(&member, now, &notice);
    return true;
}

static bool take_wish(char **words, size_t count)
{
    const char *what = words[0];

    if (strcmp(what, "join") == 0) {
        (void)mu_member_join(&member, now, count == 2);
    } else if (strcmp(what, "leave") == 0) {
        mu_member_leave(&member, now);
    } else if (strcmp(what, "close") == 0) {
        (void)mu_member_close(&member, now);
    } else {
        return false;
    }
    return true;
}

/* What becomes of the session and its calls; the rest of the line is a text. */
static bool take_session(char **words, size_t count, const char *text)
{
    const char *what = words[0];

    if (strcmp(what, "linked") == 0 || strcmp(what, "unlinked") == 0) {
        member.link.linked = what[0] == 'l';
    } else if (strcmp(what, "confirmed") == 0) {
        member.link.confirmed = now;
    } else if (strcmp(what, "starved") == 0 || strcmp(what, "fed") == 0) {
        starved = what[0] == 's';
    } else if (strcmp(what, "asleep") == 0 || strcmp(what, "awake") == 0) {
        asleep = what[1] == 's';
    } else if (strcmp(what, "answered") == 0 && count >= 2) {
        mu_member_answered(&member, now, parse_status(words[1]), text);
    } else if (strcmp(what, "close_answered") == 0 && count >= 2) {
        mu_member_close_answered(&member, parse_status(words[1]), text);
    } else if (strcmp(what, "lost") == 0) {
        mu_member_lost(&member, now, text);
    } else if (strcmp(what, "unreached") == 0) {
        mu_member_unreached(&member, now, MUSTER_ERDZV_CONN, text);
    } else if (strcmp(what, "broken") == 0) {
        mu_member_broken(&member, MUSTER_ERDZV_STATE, text);
    } else {
        return false;
    }
    return true;
}

static void begin(void)
{
    struct mu_member_link link = member.link;

    mu_member_init(&member, &config);
    member.link = link;
    begun = true;
}

static void take_line(const char *line)
{
    char copy_of[512];
    char text[512] = "";
    char *words[WORDS_MAX];
    char *rest = copy_of;
    size_t count = 0;

    (void)snprintf(copy_of, sizeof(copy_of), "%s", line);
    for (char *at = strtok_r(rest, " ", &rest); at != NULL && count < WORDS_MAX;
         at = strtok_r(NULL, " ", &rest)) {
        words[count++] = at;
    }
    if (count == 0 || words[0][0] == '#') {
        return;
    }
    if (strcmp(words[0], "set") == 0) {
        for (size_t i = 1; i < count; i++) {
            set_one(words[i]);
        }
        return;
    }
    if (!begun) {
        begin();
    }
    if (count < 2) {
        refuse("not understood", line);
    }
    tick_until((mu_mono_t){parse_time(words[0])});
    if (strcmp(words[1], "end") == 0) {
        return;
    }
    tell("%s", strchr(line, ' ') + 1);
    for (size_t i = strstr(words[1], "answered") != NULL ? 3 : 2; i < count; i++) {
        size_t len = strlen(text);

        (void)snprintf(text + len, sizeof(text) - len, "%s%s", len == 0 ? "" : " ", words[i]);
    }
    if (!take_wish(words + 1, count - 1) && !take_notice(words + 1, count - 1) &&
        !take_session(words + 1, count - 1, text)) {
        refuse("not understood", line);
    }
    pump();
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
    member.link.kept_ms = 3000;
    return run_script(argv[argc - 1], rewrite);
}
