/*
 * Golden traces of a p2p daemon's machines: a script, and the story it must produce.
 *
 *     trace_p2pd FILE               compares; the first line that differs is shown
 *     trace_p2pd --rewrite FILE     writes the story anew. Commit that only if you can explain
 *                                   every line that changed.
 *
 * A script, up to the line "----". Users are A to D, other single letters are peers. A stream has
 * the name of its user and call (A1), or the one that it was opened with.
 *
 *     # a remark
 *     set calls=8 held=4000 window=1000 msg=8000 high=4000 out=40000 takes=0
 *     A joins | leaves | is deaf | reads
 *     A adds ping [balanced]           A removes ping
 *     A calls 1 P ping 20              twenty bytes of data for P's handler of ping
 *     A answers 7 10                   A cancels 1
 *     P opens s ping                   a stream of P's for a handler here
 *     s asks 7 ping 30                 on it, a request with id 7; as far as P may send
 *     A1 answers 9 30                  P's answer; its id does not matter
 *     s says HEX                       s ends            s is gone [refused]
 *     A1 takes 100                     of what is written to it, from now on; "all"
 *     address X adds ping [balanced]   X removes ping    turn ping
 *     wait 5s
 *     pipe [dialled]                   a pipe begins: its head has ten bytes
 *     socket opens | takes 100         client says 50    client ends
 *     peer says 100 | ends             stream takes 100  stream is gone
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "hex.h"
#include "p2pd_rig.h"
#include "proto/p2pd/pipe.h"

#define STORY_MAX (1u << 16)
#define WORDS_MAX 8
#define NAMED_MAX 32

static struct mu_p2pd_calls_config config = {
    .msg_len_max = 8000,
    .name_len_max = 30,
    .free_bytes = 1000,
    .high_bytes = 4000,
    .calls_max = 8,
    .request_ms = 60000,
    .linger_ms = 5000,
    .held_bytes_max = 4000,
};
static struct rig rig;
static bool begun;
static struct {
    char name[16];
    struct rig_stream *s;
    struct mu_buf rest; /* what the peer could not say yet */
} named[NAMED_MAX];
static size_t named_count;
static size_t takes = SIZE_MAX;
static size_t out_max = 40000;
static struct mu_p2pd_pipe pipe_;
static size_t socket_takes;
static size_t stream_takes;
static char story[STORY_MAX];
static size_t story_len;
static const char *script_name;

_Noreturn static void refuse(const char *what, const char *where)
{
    (void)fprintf(stderr, "%s: %s: %s\n", script_name, what, where);
    exit(2);
}

static void put(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void put(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    story_len += (size_t)vsnprintf(story + story_len, STORY_MAX - story_len, format, args);
    va_end(args);
    if (story_len >= STORY_MAX) {
        refuse("the story is too long", format);
    }
}

/* --- calls: what the machine does ------------------------------------------------------------- */

static const char *name_of(const struct mu_p2pd_unary *call)
{
    for (size_t i = named_count; i > 0; i--) {
        if (named[i - 1].s == rig_stream_of(call)) {
            return named[i - 1].name;
        }
    }
    return "?";
}

static char letter_of(const struct mu_p2pd_user *user)
{
    return (char)('A' + (rig_user_of(user) - rig.users));
}

static void on_acted(struct rig *r, const struct mu_p2pd_action *a, size_t n)
{
    (void)r;
    if (a->call != NULL) {
        put("              %s: ", name_of(a->call));
    }
    switch (a->type) {
    case MU_P2PD_ACTION_OPEN:
        put("opens a stream to %c for %.*s\n", a->call->peer.bytes[6], (int)a->call->name.len,
            (const char *)a->call->name.data);
        break;
    case MU_P2PD_ACTION_CONSUMED:
        put("the peer may send %zu more\n", a->len);
        break;
    case MU_P2PD_ACTION_WRITE:
        put("writes %zu, %zu taken\n", a->bytes.len, n);
        break;
    case MU_P2PD_ACTION_END:
        put("ends our side\n");
        break;
    case MU_P2PD_ACTION_RESET:
        put("resets the stream\n");
        break;
    case MU_P2PD_ACTION_OVER:
        put("is over\n");
        for (size_t i = 0; i < named_count; i++) {
            named[i].s = named[i].s == rig_stream_of(a->call) ? NULL : named[i].s;
        }
        break;
    case MU_P2PD_ACTION_UNSERVE:
        put("              %s is not served any more\n", a->name->text);
        break;
    case MU_P2PD_ACTION_CLOSE:
        put("              %c is closed\n", letter_of(a->user));
        break;
    case MU_P2PD_ACTION_SEND:
    case MU_P2PD_ACTION_RESUME: /* after each send: no news */
        break;
    }
}

static void on_heard(struct rig *r, struct rig_user *u, const struct mu_p2pd_call *m)
{
    struct mu_span data;

    (void)r;
    put("              %c hears %u: ", letter_of(&u->user), m->id.data[0]);
    if (m->kind == MU_P2PD_NOTHING) {
        put("done\n");
    } else if (m->kind == MU_P2PD_CANCEL) {
        put("cancel\n");
    } else if (m->kind == MU_P2PD_DAEMON_ERROR) {
        put("error \"%.*s\"\n", (int)m->data.len, (const char *)m->data.data);
    } else if (m->kind == MU_P2PD_CALL_RESPONSE) {
        bool well = mu_p2pd_body_decode(m->body, &data);

        put("%s of %zu bytes\n", well ? "answer" : "handler's error", data.len);
    } else {
        put("%c calls %.*s with %zu bytes\n", m->peer.data[6], (int)m->name.len,
            (const char *)m->name.data, m->data.len);
    }
}

/* The machine acts, and peers go on with what they have to say. */
static void pump(void)
{
    bool more = true;

    rig_pump(&rig);
    while (more) {
        more = false;
        for (size_t i = 0; i < named_count; i++) {
            struct rig_stream *s = named[i].s;

            if (s == NULL || !s->open || named[i].rest.len == 0 || s->window == 0) {
                continue;
            }
            put("              %s: the peer says %zu of %zu\n", named[i].name,
                s->window < named[i].rest.len ? s->window : named[i].rest.len, named[i].rest.len);
            mu_buf_consume(&named[i].rest, rig_peer_says(s, mu_buf_span(&named[i].rest)));
            rig_pump(&rig);
            more = true;
        }
    }
}

/* --- calls: the script ------------------------------------------------------------------------ */

static size_t parse_number(const char *text)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    if (end == text || *end != '\0') {
        refuse("not a number", text);
    }
    return (size_t)number;
}

static struct rig_stream *stream_named(const char *name, struct mu_buf **ret_rest)
{
    for (size_t i = named_count; i > 0; i--) {
        if (strcmp(named[i - 1].name, name) == 0 && named[i - 1].s != NULL) {
            *ret_rest = &named[i - 1].rest;
            return named[i - 1].s;
        }
    }
    refuse("no such stream", name);
}

static void name_stream(const char *name, struct rig_stream *s)
{
    if (s == NULL) {
        return;
    }
    if (named_count == NAMED_MAX) {
        refuse("too many streams", name);
    }
    s->takes = takes;
    (void)snprintf(named[named_count].name, sizeof(named[0].name), "%s", name);
    mu_buf_init(&named[named_count].rest, 1 << 20);
    named[named_count++].s = s;
}

static const uint8_t zeroes[8192];

static struct mu_p2pd_call message(enum mu_p2pd_call_kind kind, const char *id, size_t len)
{
    static uint8_t bytes[MU_P2PD_CALL_ID_LEN];
    static struct mu_buf body;
    struct mu_p2pd_call m = {.kind = kind, .id = mu_span(bytes, sizeof(bytes))};

    bytes[0] = (uint8_t)parse_number(id);
    if (kind == MU_P2PD_UNARY_RESPONSE) {
        mu_buf_fini(&body);
        mu_buf_init(&body, 1 << 20);
        MU_ASSERT(mu_p2pd_body_encode(&body, false, mu_span(zeroes, len)) == 0);
        m.body = mu_buf_span(&body);
    } else {
        m.data = mu_span(zeroes, len);
    }
    return m;
}

static void user_line(struct rig_user *u, char **w, size_t count)
{
    struct mu_peer_id peer;
    struct mu_p2pd_call m;
    char name[8];

    if (strcmp(w[1], "joins") == 0) {
        rig_join(&rig, u);
    } else if (strcmp(w[1], "leaves") == 0) {
        rig_leave(u);
    } else if (strcmp(w[1], "is") == 0) {
        u->deaf = true;
    } else if (strcmp(w[1], "reads") == 0) {
        u->deaf = false;
        rig_read(&rig, u);
    } else if (strcmp(w[1], "adds") == 0 || strcmp(w[1], "removes") == 0) {
        m = message(w[1][0] == 'a' ? MU_P2PD_ADD_UNARY : MU_P2PD_REMOVE_UNARY, "0", 0);
        m.name = mu_span_str(w[2]);
        m.balanced = count > 3;
        (void)rig_say(&rig, u, &m);
    } else if (strcmp(w[1], "calls") == 0 && count == 6) {
        m = message(MU_P2PD_CALL_UNARY, w[2], parse_number(w[5]));
        peer = rig_peer((uint8_t)w[3][0]);
        m.peer = w[3][0] == '-' ? mu_span("?", 1) : mu_peer_id_span(&peer);
        m.name = w[4][0] == '-' ? (struct mu_span){0} : mu_span_str(w[4]);
        (void)snprintf(name, sizeof(name), "%s%.3s", w[0], w[2]);
        name_stream(name, rig_say(&rig, u, &m));
    } else if (strcmp(w[1], "answers") == 0 && count == 4) {
        m = message(MU_P2PD_UNARY_RESPONSE, w[2], parse_number(w[3]));
        (void)rig_say(&rig, u, &m);
    } else if (strcmp(w[1], "cancels") == 0 && count == 3) {
        m = message(MU_P2PD_CANCEL, w[2], 0);
        (void)rig_say(&rig, u, &m);
    } else {
        refuse("not understood", w[1]);
    }
}

static void stream_line(char **w, size_t count)
{
    struct mu_buf *rest;
    struct rig_stream *s = stream_named(w[0], &rest);
    struct mu_peer_id self = rig_peer('z');
    struct mu_p2pd_call m;
    uint8_t bytes[64];

    if (strcmp(w[1], "asks") == 0 && count == 5) {
        m = message(MU_P2PD_CALL_UNARY, w[2], parse_number(w[4]));
        m.peer = mu_peer_id_span(&self);
        m.name = mu_span_str(w[3]);
        MU_ASSERT(mu_p2pd_call_encode(rest, &m) == 0);
    } else if (strcmp(w[1], "answers") == 0 && count == 4) {
        m = message(MU_P2PD_UNARY_RESPONSE, w[2], parse_number(w[3]));
        MU_ASSERT(mu_p2pd_call_encode(rest, &m) == 0);
    } else if (strcmp(w[1], "says") == 0) {
        MU_ASSERT(mu_buf_append(rest, mu_span(bytes, hex_decode(bytes, sizeof(bytes), w[2]))) == 0);
    } else if (strcmp(w[1], "ends") == 0) {
        mu_p2pd_unary_eof(&s->unary);
    } else if (strcmp(w[1], "is") == 0) {
        rig_stream_gone(s, count > 3 ? MUSTER_EREFUSED : MUSTER_ECLOSED,
                        count > 3 ? "the peer knows none of the names" : "reset by the peer");
    } else if (strcmp(w[1], "takes") == 0) {
        s->takes = strcmp(w[2], "all") == 0 ? SIZE_MAX : parse_number(w[2]);
        mu_p2pd_unary_writable(&s->unary);
    } else {
        refuse("not understood", w[1]);
    }
}

static void address_line(char **w, size_t count)
{
    static uint8_t addr[] = {0x90, 0x03, 2, '/', 0}; /* /unix/X */
    struct mu_errmsg msg = {{0}};
    int err;

    addr[4] = (uint8_t)w[1][0];
    if (strcmp(w[2], "adds") == 0) {
        err = rig_add(&rig, mu_span_str(w[3]), NULL, mu_span(addr, 5), count > 4, &msg);
    } else {
        err =
            mu_p2pd_names_remove(&rig.calls.names, mu_span_str(w[3]), NULL, mu_span(addr, 5), &msg);
    }
    put("              %s\n", err == 0 ? "done" : msg.text);
}

static void turn_line(const char *name)
{
    struct mu_p2pd_handler *h = mu_p2pd_names_next(&rig.calls.names, mu_span_str(name));

    put("              %c\n", h == NULL ? '-' : h->user != NULL ? letter_of(h->user) : h->addr[4]);
}

static void wait_for(const char *text)
{
    char *end;
    uint64_t until = rig.now.ns + (uint64_t)(strtod(text, &end) * 1e9);

    if (strcmp(end, "s") != 0) {
        refuse("not a time", text);
    }
    while (mu_p2pd_calls_deadline(&rig.calls).ns <= until) {
        rig.now = mu_p2pd_calls_deadline(&rig.calls);
        put("[%9.3f] it is late\n", (double)rig.now.ns / 1e9);
        pump();
    }
    rig.now.ns = until;
}

/* --- pipes ------------------------------------------------------------------------------------ */

static void pump_pipe(void)
{
    static const char *const actions[] = {
        [MU_P2PD_PIPE_END] = "ends our side of the stream",
        [MU_P2PD_PIPE_RESUME] = "reads from the client again",
        [MU_P2PD_PIPE_FINISH] = "ends our side of the socket",
        [MU_P2PD_PIPE_CLOSE] = "closes the socket",
        [MU_P2PD_PIPE_ABORT] = "aborts the socket",
    };
    struct mu_p2pd_pipe_action a;

    while (mu_p2pd_pipe_next(&pipe_, &a)) {
        if (a.type == MU_P2PD_PIPE_SEND) {
            size_t n = a.bytes.len < socket_takes ? a.bytes.len : socket_takes;

            put("              sends %zu, %zu taken\n", a.bytes.len, n);
            socket_takes -= n;
            mu_p2pd_pipe_sent(&pipe_, n);
        } else if (a.type == MU_P2PD_PIPE_CONSUMED) {
            put("              the peer may send %zu more\n", a.len);
        } else {
            put("              %s\n", actions[a.type]);
        }
    }
}

static void pipe_line(char **w, size_t count)
{
    size_t number = count == 3 && strcmp(w[1], "is") != 0 ? parse_number(w[2]) : 0;
    size_t n;

    if (strcmp(w[0], "pipe") == 0) {
        mu_p2pd_pipe_init(&pipe_, 1010);
        MU_ASSERT(mu_p2pd_pipe_head(&pipe_, mu_span(zeroes, 10)) == 0);
        socket_takes = 10000;
        stream_takes = 10000;
        if (count == 1) {
            mu_p2pd_pipe_ready(&pipe_);
        }
    } else if (strcmp(w[0], "socket") == 0) {
        socket_takes = count == 3 ? number : socket_takes;
        mu_p2pd_pipe_ready(&pipe_);
    } else if (strcmp(w[0], "client") == 0 && count == 3) {
        n = number < stream_takes ? number : stream_takes;
        stream_takes -= n;
        put("              the stream takes %zu, %zu dealt with\n", n,
            mu_p2pd_pipe_up(&pipe_, number, n));
    } else if (strcmp(w[0], "client") == 0) {
        mu_p2pd_pipe_client_ended(&pipe_);
    } else if (strcmp(w[0], "peer") == 0 && count == 3) {
        mu_p2pd_pipe_heard(&pipe_, mu_span(zeroes, number));
        pump_pipe();
        mu_p2pd_pipe_keep(&pipe_);
    } else if (strcmp(w[0], "peer") == 0) {
        mu_p2pd_pipe_peer_ended(&pipe_);
    } else if (strcmp(w[1], "takes") == 0) {
        stream_takes = number;
        mu_p2pd_pipe_writable(&pipe_);
    } else {
        stream_takes = 0;
        mu_p2pd_pipe_gone(&pipe_);
    }
    pump_pipe();
}

/* --- scripts ---------------------------------------------------------------------------------- */

static void set_one(const char *word)
{
    const char *value = strchr(word, '=');
    size_t number = value == NULL ? 0 : parse_number(value + 1);

    if (strncmp(word, "calls=", 6) == 0) {
        config.calls_max = (uint32_t)number;
    } else if (strncmp(word, "held=", 5) == 0) {
        config.held_bytes_max = number;
    } else if (strncmp(word, "window=", 7) == 0) {
        config.free_bytes = number;
    } else if (strncmp(word, "msg=", 4) == 0) {
        config.msg_len_max = number;
    } else if (strncmp(word, "high=", 5) == 0) {
        config.high_bytes = number;
    } else if (strncmp(word, "out=", 4) == 0) {
        out_max = number;
    } else if (strncmp(word, "takes=", 6) == 0) {
        takes = number;
    } else {
        refuse("not known", word);
    }
}

static void begin(void)
{
    if (!begun) {
        begun = true;
        rig_init(&rig, &config);
        rig.now.ns = 0;
        rig.out_max = out_max;
        rig.acted = on_acted;
        rig.heard = on_heard;
    }
}

static void take_words(char **w, size_t count)
{
    if (strcmp(w[0], "set") == 0) {
        for (size_t i = 1; i < count; i++) {
            set_one(w[i]);
        }
        return;
    }
    begin();
    if (strcmp(w[0], "wait") == 0 && count == 2) {
        wait_for(w[1]);
    } else if (strcmp(w[0], "pipe") == 0 || strcmp(w[0], "socket") == 0 ||
               strcmp(w[0], "client") == 0 || strcmp(w[0], "peer") == 0 ||
               strcmp(w[0], "stream") == 0) {
        pipe_line(w, count);
    } else if (strcmp(w[0], "address") == 0 && count >= 4) {
        address_line(w, count);
    } else if (strcmp(w[0], "turn") == 0 && count == 2) {
        turn_line(w[1]);
    } else if (count >= 2 && strlen(w[0]) == 1 && w[0][0] >= 'A' && w[0][0] < 'A' + RIG_USERS) {
        user_line(&rig.users[w[0][0] - 'A'], w, count);
    } else if (count == 4 && strcmp(w[1], "opens") == 0) {
        struct mu_peer_id peer = rig_peer((uint8_t)w[0][0]);
        struct rig_stream *s = rig_open(&rig, &peer, mu_span_str(w[3]));

        put(s == NULL ? "              it is refused\n" : "");
        name_stream(w[2], s);
    } else if (count >= 2) {
        stream_line(w, count);
    } else {
        refuse("not understood", w[0]);
    }
    pump();
}

static void take_line(char *line)
{
    char *words[WORDS_MAX];
    size_t count = 0;

    if (line[0] != '\0' && line[0] != '#' && strncmp(line, "set ", 4) != 0 &&
        strncmp(line, "wait ", 5) != 0) {
        put("[%9.3f] %s\n", (double)rig.now.ns / 1e9, line);
    }
    for (char *at = strtok_r(line, " ", &line); at != NULL && count < WORDS_MAX;
         at = strtok_r(NULL, " ", &line)) {
        words[count++] = at;
    }
    if (count != 0 && words[0][0] != '#') {
        take_words(words, count);
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
    put("[%9.3f] all leave\n", (double)rig.now.ns / 1e9);
    begin();
    rig_fini(&rig);
    mu_p2pd_pipe_fini(&pipe_);
    for (size_t i = 0; i < named_count; i++) {
        mu_buf_fini(&named[i].rest);
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
    return run_script(argv[argc - 1], rewrite);
}
