/*
 * Golden traces of the machines of etcd's client (proto/etcd). tests/lib/story.h says how a file is
 * made and run. The first line of a script starts one machine at 0 s; each other line is what
 * happens to it, and when. Ticks come by themselves.
 *
 *     call endpoints=3 repeat timeout=5s user=kim     or with: v2 poll bare
 *     1s answers 200 {...}               the exchange ends with this answer; v2: index=7 before it
 *     1s fails ECONN no route            the exchange ends, and the server did not get the request
 *     1s fails sent ECONN reset          or it may have; code=200: the answer had begun
 *     1s unsent ENOMEM                   the exchange could not begin
 *     1s spoils ELIMIT                   the answer is too long
 *     1s token                           there is one
 *     1s no-token EREFUSED etcd says: no or there will be none
 *     1s stop
 *     9s look                            nothing happens; ticks up to then
 *
 *     lease ttl=9
 *     1s kept 9                          the call is answered, with this time to live
 *     1s exists                          there is a lease of this number
 *     1s fails ENOENT no such lease
 *     1s stop, 1s revoke, 1s close
 *
 *     watch endpoints=2 current          or with: puts_only from=7 prev_kv user=kim
 *     1s read 10 a=1@4 b=2@9             the range as of revision 10 (tests/lib/etcd_words.h)
 *     1s unread EOVERFLOW compacted      the range could not be read
 *     1s piece created put:a=1@11        a piece of the stream; several with | between them
 *     1s bytes 200 {"res                 bytes of the stream, with the answer's HTTP code
 *     1s ends 200                        the stream ended by itself
 *     1s fails ..., unsent, token, no-token, stop, look: as with a call
 *
 * The story shows each action of the machine behind an arrow.
 */
#include <inttypes.h>

#include <muster/error.h>

#include "etcd_words.h"
#include "proto/etcd/lease.h"
#include "proto/etcd/watch.h"
#include "story.h"

#define ENDPOINT "e%u"

static struct mu_etcd_route route;
static struct mu_etcd_asker asker;
static struct mu_etcd_holder holder;
static struct mu_etcd_watcher watcher;
static struct mu_etcd_reply reply;
static char where[16];
static void (*take_event)(char **words, size_t count);
static void (*tick)(void);
static const mu_mono_t *wake;

static mu_mono_t now(void)
{
    return (mu_mono_t){story_now_ns};
}

static int find_error(const char *name)
{
#define MATCH(id, code, text)                                                                      \
    if (strcmp(name, #id) == 0) {                                                                  \
        return code;                                                                               \
    }
    MUSTER_ERRNO_MAP(MATCH)
    story_refuse("not the name of an error", name);
}

static const char *error_name(int code)
{
    return code == 0 ? "well" : muster_errname(code) + strlen("MUSTER_");
}

static const char *join(char **words, size_t count)
{
    static char text[1024];

    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(text);

        (void)snprintf(text + len, sizeof(text) - len, "%s%s", i == 0 ? "" : " ", words[i]);
    }
    return text;
}

static const char *for_ms(uint32_t ms)
{
    static char text[32];

    (void)snprintf(text, sizeof(text), ", for %" PRIu32 " ms", ms);
    return ms == 0 ? "" : text;
}

static bool is(const char *word, const char *what)
{
    return strcmp(word, what) == 0;
}

/* "fails [sent] ERROR words", "unsent ERROR" ... into an exchange. */
static struct mu_etcd_exchange take_failure(char **words, size_t count, uint32_t endpoint)
{
    bool sent = count > 1 && is(words[1], "sent");
    int code = 0;

    words += sent ? 2 : 1;
    count -= sent ? 2 : 1;
    if (count > 0 && strncmp(words[0], "code=", 5) == 0) {
        code = (int)strtol(words[0] + 5, NULL, 10);
        words++;
        count--;
    }
    if (count == 0) {
        story_refuse("an error is missing", words[-1]);
    }
    (void)snprintf(where, sizeof(where), ENDPOINT, endpoint);
    return (struct mu_etcd_exchange){.status = find_error(words[0]),
                                     .sent = sent,
                                     .code = code,
                                     .error = join(words + 1, count - 1),
                                     .where = where,
                                     .index = "",
                                     .reply = &reply};
}

/* --- a call ----------------------------------------------------------------------------------- */

static void pump_call(void)
{
    enum mu_etcd_asker_action action;

    while ((action = mu_etcd_asker_next(&asker)) != 0) {
        const struct mu_etcd_answer *a = &asker.answer;

        switch (action) {
        case MU_ETCD_ASKER_SEND:
            story_tell("  -> ask " ENDPOINT "%s", asker.endpoint, for_ms(asker.try_ms));
            break;
        case MU_ETCD_ASKER_CANCEL:
            story_tell("  -> cancel");
            break;
        case MU_ETCD_ASKER_AUTHENTICATE:
            story_tell("  -> ask for a token");
            break;
        case MU_ETCD_ASKER_END:
            story_tell("  -> end: %s%s%s%s", error_name(a->status),
                       a->unknown ? ", it may have happened" : "", a->status != 0 ? ": " : "",
                       a->status != 0 ? a->errmsg.text : "");
            break;
        }
    }
}

static void tick_call(void)
{
    mu_etcd_asker_tick(&asker, now());
    pump_call();
}

static void take_answer(char **words, size_t count)
{
    struct mu_etcd_exchange x = {.error = "", .where = where, .index = "", .reply = &reply};
    bool index = count > 2 && strncmp(words[2], "index=", 6) == 0;

    if (count < 2) {
        story_refuse("a code is missing", words[0]);
    }
    x.sent = true;
    x.code = (int)strtol(words[1], NULL, 10);
    x.index = index ? words[2] + 6 : "";
    x.text = mu_span_str(join(words + (index ? 3 : 2), count - (index ? 3 : 2)));
    (void)snprintf(where, sizeof(where), ENDPOINT, asker.endpoint);
    mu_etcd_asker_done(&asker, &x, now());
}

static void take_call_event(char **words, size_t count)
{
    if (is(words[0], "answers")) {
        take_answer(words, count);
    } else if (is(words[0], "stop")) {
        mu_etcd_asker_stop(&asker, MUSTER_ECANCELED, now());
    } else if (is(words[0], "token")) {
        (void)mu_etcd_route_authed(&route, 0, &asker.answer.errmsg);
        mu_etcd_asker_authed(&asker, 0, "", now());
    } else if (!is(words[0], "look")) {
        struct mu_etcd_exchange x = take_failure(words, count, asker.endpoint);
        struct mu_errmsg msg;

        if (is(words[0], "fails")) {
            mu_etcd_asker_done(&asker, &x, now());
        } else if (is(words[0], "unsent")) {
            mu_etcd_asker_unsent(&asker, x.status, now());
        } else if (is(words[0], "spoils")) {
            mu_etcd_asker_spoil(&asker, x.status);
        } else if (is(words[0], "no-token")) {
            (void)mu_err(&msg, x.status, "%s", x.error);
            x.status = mu_etcd_route_authed(&route, x.status, &msg);
            mu_etcd_asker_authed(&asker, x.status, msg.text, now());
        } else {
            story_refuse("a call has no such event", words[0]);
        }
    }
    pump_call();
}

/* --- a lease ---------------------------------------------------------------------------------- */

static void pump_lease(void)
{
    enum mu_etcd_holder_action action;

    while ((action = mu_etcd_holder_next(&holder)) != 0) {
        switch (action) {
        case MU_ETCD_HOLDER_SEND:
            story_tell("  -> post %s to %s%s", holder.body, holder.path, for_ms(holder.timeout_ms));
            break;
        case MU_ETCD_HOLDER_CANCEL:
            story_tell("  -> cancel");
            break;
        case MU_ETCD_HOLDER_GRANTED:
            story_tell("  -> granted, %" PRId64 " s", holder.ttl_s);
            break;
        case MU_ETCD_HOLDER_END:
            if (holder.stopping) {
                story_tell("  -> end: stopped");
            } else {
                story_tell("  -> end: lost: %s: %s", error_name(holder.verdict),
                           holder.errmsg.text);
            }
            break;
        }
    }
}

static void tick_lease(void)
{
    mu_etcd_holder_tick(&holder, now());
    pump_lease();
}

static void take_lease_event(char **words, size_t count)
{
    static mu_mono_t sent;
    struct mu_etcd_answer a = {.reply = &reply};

    if (is(words[0], "kept") || is(words[0], "exists") || is(words[0], "fails")) {
        /* A call is answered 10 ms after its last try went out, or "5s kept 9 after=2s". */
        bool after = count > 2 && strncmp(words[count - 1], "after=", 6) == 0;

        sent.ns = story_now_ns - (after ? story_time_ns(words[count - 1] + 6) : 10 * MU_NS_PER_MS);
        reply.ttl_s = count > 1 ? strtoll(words[1], NULL, 10) : 0;
        if (is(words[0], "exists")) {
            a.status = MUSTER_EREFUSED;
            a.grpc_code = MU_ETCD_PRECONDITION;
        } else if (is(words[0], "fails")) {
            struct mu_etcd_exchange x = take_failure(words, count, 0);

            a.status = mu_err(&a.errmsg, x.status, "%s", x.error);
        }
        mu_etcd_holder_done(&holder, &a, sent, now());
    } else if (is(words[0], "stop") || is(words[0], "revoke")) {
        mu_etcd_holder_stop(&holder, is(words[0], "revoke"), now());
    } else if (is(words[0], "close")) {
        mu_etcd_holder_close(&holder, now());
    } else if (!is(words[0], "look")) {
        story_refuse("a lease has no such event", words[0]);
    }
    pump_lease();
}

/* --- a watch ---------------------------------------------------------------------------------- */

static void tell_change(const struct mu_etcd_change *c)
{
    story_tell("  -> %s %.*s%s%.*s at %" PRId64 "%s%s",
               c->deleted ? "gone:" : "put:", (int)c->kv.key.len, (const char *)c->kv.key.data,
               c->deleted ? "" : "=", (int)c->kv.value.len,
               c->kv.value.len == 0 ? "" : (const char *)c->kv.value.data, c->revision,
               c->created ? ", created" : "", c->initial ? ", initial" : "");
}

static void pump_watch(void)
{
    enum mu_etcd_watcher_action action;

    while ((action = mu_etcd_watcher_next(&watcher, now())) != 0) {
        struct mu_span body = mu_buf_span(&watcher.body);

        switch (action) {
        case MU_ETCD_WATCHER_READ:
            story_tell("  -> read %.*s", (int)body.len, (const char *)body.data);
            break;
        case MU_ETCD_WATCHER_STREAM:
            story_tell("  -> stream from " ENDPOINT ": %.*s", watcher.endpoint, (int)body.len,
                       (const char *)body.data);
            break;
        case MU_ETCD_WATCHER_CANCEL_READ:
            story_tell("  -> cancel the reading");
            break;
        case MU_ETCD_WATCHER_CANCEL_STREAM:
            story_tell("  -> cancel the stream");
            break;
        case MU_ETCD_WATCHER_AUTHENTICATE:
            story_tell("  -> ask for a token");
            break;
        case MU_ETCD_WATCHER_CHANGE:
            tell_change(&watcher.change);
            break;
        case MU_ETCD_WATCHER_TOLD:
            story_tell("  -> told: next is %" PRId64, watcher.next);
            break;
        case MU_ETCD_WATCHER_READY:
            story_tell("  -> ready");
            break;
        case MU_ETCD_WATCHER_END:
            story_tell("  -> end: %s: %s", error_name(watcher.verdict), watcher.errmsg.text);
            break;
        }
    }
}

static void tick_watch(void)
{
    mu_etcd_watcher_tick(&watcher, now());
    pump_watch();
}

static void receive(int code, struct mu_span in)
{
    while (in.len > 0) {
        in = mu_span_skip(in, mu_etcd_watcher_recv(&watcher, code, in, now()));
        pump_watch();
    }
}

static void take_read(char **words, size_t count)
{
    struct mu_etcd_answer a = {.reply = &reply};
    struct mu_buf text;

    if (is(words[0], "unread")) {
        struct mu_etcd_exchange x = take_failure(words, count, 0);

        a.status = mu_err(&a.errmsg, x.status, "%s", x.error);
    }
    mu_buf_init(&text, STORY_MAX);
    etcd_say_range(&text, strtoll(words[1], NULL, 10), (const char *const *)words + 2,
                   a.status != 0 ? 0 : count - 2);
    if (mu_etcd_reply_decode(&reply, mu_buf_span(&text)) != 0) {
        story_refuse("not an answer", words[0]);
    }
    mu_etcd_watcher_read_done(&watcher, &a, now());
    pump_watch();
    mu_buf_fini(&text);
}

static void take_pieces(char **words, size_t count)
{
    struct mu_buf text;

    mu_buf_init(&text, STORY_MAX);
    for (size_t at = 1; at <= count;) {
        size_t end = at;

        while (end < count && !is(words[end], "|")) {
            end++;
        }
        etcd_say_piece(&text, (const char *const *)words + at, end - at);
        at = end + 1;
    }
    receive(200, mu_buf_span(&text));
    mu_buf_fini(&text);
}

static void take_watch_event(char **words, size_t count)
{
    struct mu_errmsg msg = {0};

    if ((is(words[0], "read") || is(words[0], "unread")) && count > 1) {
        take_read(words, count);
    } else if (is(words[0], "piece")) {
        take_pieces(words, count);
    } else if (is(words[0], "bytes") && count > 2) {
        receive((int)strtol(words[1], NULL, 10), mu_span_str(join(words + 2, count - 2)));
    } else if (is(words[0], "stop")) {
        mu_etcd_watcher_stop(&watcher, MUSTER_ECANCELED, now());
    } else if (is(words[0], "token")) {
        (void)mu_etcd_route_authed(&route, 0, &msg);
        mu_etcd_watcher_authed(&watcher, 0, "", now());
    } else if (is(words[0], "ends") && count == 2) {
        struct mu_etcd_exchange x = {
            .code = (int)strtol(words[1], NULL, 10), .error = "", .where = where};

        (void)snprintf(where, sizeof(where), ENDPOINT, watcher.endpoint);
        mu_etcd_watcher_stream_done(&watcher, &x, now());
    } else if (!is(words[0], "look")) {
        struct mu_etcd_exchange x = take_failure(words, count, watcher.endpoint);

        if (is(words[0], "fails")) {
            mu_etcd_watcher_stream_done(&watcher, &x, now());
        } else if (is(words[0], "unsent")) {
            mu_etcd_watcher_unsent(&watcher, x.status, now());
        } else if (is(words[0], "no-token")) {
            (void)mu_err(&msg, x.status, "%s", x.error);
            x.status = mu_etcd_route_authed(&route, x.status, &msg);
            mu_etcd_watcher_authed(&watcher, x.status, msg.text, now());
        } else {
            story_refuse("a watch has no such event", words[0]);
        }
    }
    pump_watch();
}

/* --- scripts ---------------------------------------------------------------------------------- */

static const char *term(char **words, size_t count, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 1; i < count; i++) {
        if (strncmp(words[i], name, len) == 0 && (words[i][len] == '\0' || words[i][len] == '=')) {
            return words[i] + len + (words[i][len] == '=' ? 1 : 0);
        }
    }
    return NULL;
}

static void start_route(char **words, size_t count)
{
    static char user[64];
    const char *endpoints = term(words, count, "endpoints");
    const char *name = term(words, count, "user");
    struct mu_etcd_route_config config = {
        .endpoint_count = endpoints != NULL ? (uint32_t)strtoul(endpoints, NULL, 10) : 1,
        .first_ms = 30000,
        .patience_ms = 10000,
        .try_ms = 8000,
        .quiet_ms = 20000,
        .reply_bytes_max = 4096,
        .user = name != NULL ? user : NULL,
    };

    (void)snprintf(user, sizeof(user), "%s", name != NULL ? name : "");
    mu_etcd_route_init(&route, &config, 7);
    route.current = 0;
}

static void start(char **words, size_t count)
{
    const char *timeout = term(words, count, "timeout");
    const char *from = term(words, count, "from");
    const char *ttl = term(words, count, "ttl");

    story_tell("%s", join(words, count));
    start_route(words, count);
    if (is(words[0], "call")) {
        struct mu_etcd_terms terms = {
            .repeat = term(words, count, "repeat") != NULL,
            .v2 = term(words, count, "v2") != NULL,
            .poll = term(words, count, "poll") != NULL,
            .bare = term(words, count, "bare") != NULL,
            .timeout_ms = timeout != NULL ? (uint32_t)(story_time_ns(timeout) / MU_NS_PER_MS) : 0,
        };

        terms.named = !terms.v2 && !terms.bare;
        take_event = take_call_event;
        tick = tick_call;
        wake = &asker.wake;
        mu_etcd_asker_start(&asker, &route, &terms, now());
        pump_call();
    } else if (is(words[0], "lease") && ttl != NULL) {
        take_event = take_lease_event;
        tick = tick_lease;
        wake = &holder.wake;
        mu_etcd_holder_start(&holder, 77, strtoll(ttl, NULL, 10), now());
        pump_lease();
    } else if (is(words[0], "watch")) {
        struct mu_etcd_watcher_config config = {
            .key = MU_SPAN_LIT("a"),
            .end = MU_SPAN_LIT("z"),
            .current = term(words, count, "current") != NULL,
            .prev_kv = term(words, count, "prev_kv") != NULL,
            .puts_only = term(words, count, "puts_only") != NULL,
            .from = from != NULL ? strtoll(from, NULL, 10) : 0,
        };

        take_event = take_watch_event;
        tick = tick_watch;
        wake = &watcher.wake;
        mu_etcd_watcher_start(&watcher, &route, &config, 7, now());
        pump_watch();
    } else {
        story_refuse("neither a call nor a lease nor a watch", words[0]);
    }
}

static void take_line(char **words, size_t count)
{
    uint64_t at;

    if (take_event == NULL) {
        start(words, count);
        return;
    }
    if (count < 2) {
        story_refuse("an event is missing", words[0]);
    }
    at = story_time_ns(words[0]);
    while (wake->ns <= at) {
        story_now_ns = wake->ns > story_now_ns ? wake->ns : story_now_ns;
        story_tell("tick");
        tick();
    }
    story_now_ns = at;
    if (!is(words[1], "look")) {
        story_tell("%s", join(words + 1, count - 1));
    }
    take_event(words + 1, count - 1);
}

int main(int argc, char **argv)
{
    int ret;

    mu_etcd_reply_init(&reply);
    ret = story_main(argc, argv, take_line);
    mu_etcd_reply_fini(&reply);
    return ret;
}
