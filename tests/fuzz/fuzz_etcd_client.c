/*
 * The machines of etcd's client under events in any order, made of the input: a call, a lease or a
 * watch, as its first byte says. Answers are whole, broken, late, or of a stranger; the heap fails.
 * Each machine asks only for what can be done (one exchange at a time, none after its end), does
 * nothing that it must not (a second try of what may have happened, a lease past its time, a change
 * after the watch was stopped), and ends exactly once when nothing is answered any more.
 */
#include "core/assert.h"
#include "core/reader.h"
#include "etcd_words.h"
#include "failheap.h"
#include "proto/etcd/lease.h"
#include "proto/etcd/watch.h"

#define TRY_MS     800
#define FIRST_MS   3000
#define QUIET_MS   2000
#define REPLY_MAX  2048
#define ROUNDS_MAX 4000

static const int errors[] = {MUSTER_ECONN,   MUSTER_ETIMEDOUT, MUSTER_ETLS,      MUSTER_ENAME,
                             MUSTER_EPROTO,  MUSTER_ENOMEM,    MUSTER_EREFUSED,  MUSTER_ENOENT,
                             MUSTER_ECLOSED, MUSTER_ECANCELED, MUSTER_EOVERFLOW, MUSTER_ELIMIT};
static const char *const refusals[] = {
    "{\"error\":\"etcdserver: no leader\",\"code\":14}",
    "{\"error\":\"etcdserver: request timed out\",\"code\":14}",
    "{\"error\":\"etcdserver: invalid auth token\",\"code\":16}",
    "{\"error\":\"etcdserver: permission denied\",\"code\":7}",
    "{\"errorCode\":301}",
    "404 page not found",
    "Client sent an HTTP request to an HTTPS server.",
    "{\"header\":{\"revision\":\"9\"}}",
};

static uint64_t now_ms;
static struct mu_etcd_route route;
static struct mu_etcd_reply reply;
static bool out;   /* an exchange, or a call, is under way */
static bool ended; /* END was given */
static bool stopped;
static bool asking; /* for a token */

static mu_mono_t now(void)
{
    return (mu_mono_t){1 + now_ms * MU_NS_PER_MS};
}

static int pick_error(struct mu_reader *r)
{
    return errors[mu_read_u8(r) % (sizeof(errors) / sizeof(errors[0]))];
}

static struct mu_etcd_exchange read_exchange(struct mu_reader *r)
{
    static const int codes[] = {200, 400, 401, 404, 500, 503};
    uint8_t how = mu_read_u8(r);
    struct mu_etcd_exchange x = {
        .sent = (how & 1) != 0, .error = "broken", .where = "e", .index = "7", .reply = &reply};

    if ((how & 6) != 0) {
        x.status = pick_error(r);
        x.code = (how & 8) != 0 ? 200 : 0;
        return x;
    }
    x.code = codes[mu_read_u8(r) % 6];
    x.sent = true;
    if ((how & 8) != 0) {
        x.text = r->rest;
    } else {
        x.text = mu_span_str(refusals[mu_read_u8(r) % (sizeof(refusals) / sizeof(refusals[0]))]);
    }
    return x;
}

static void start_route(struct mu_reader *r, bool with_user)
{
    struct mu_etcd_route_config config = {
        .endpoint_count = 1 + mu_read_u8(r) % 3,
        .first_ms = FIRST_MS,
        .patience_ms = 1000,
        .try_ms = TRY_MS,
        .quiet_ms = QUIET_MS,
        .reply_bytes_max = REPLY_MAX,
        .user = with_user ? "kim" : NULL,
    };

    mu_etcd_route_init(&route, &config, mu_read_u8(r));
    now_ms = 0;
    out = ended = stopped = asking = false;
}

static int end_auth(struct mu_reader *r, struct mu_errmsg *msg)
{
    int status = (mu_read_u8(r) & 3) == 0 ? pick_error(r) : 0;

    (void)mu_err(msg, status, "%s",
                 (mu_read_u8(r) & 1) != 0 ? "authentication is not enabled" : "no");
    MU_ASSERT(asking && route.token == MU_ETCD_TOKEN_ASKED);
    asking = false;
    return mu_etcd_route_authed(&route, status, msg);
}

/* --- a call ----------------------------------------------------------------------------------- */

static struct mu_etcd_asker asker;
static bool only_once; /* the request may have been done, and must not be done twice */

static void pump_call(void)
{
    enum mu_etcd_asker_action action;

    while ((action = mu_etcd_asker_next(&asker)) != 0) {
        MU_ASSERT(!ended);
        switch (action) {
        case MU_ETCD_ASKER_SEND:
            MU_ASSERT(!out && !stopped && !only_once);
            MU_ASSERT(asker.endpoint < route.config.endpoint_count);
            MU_ASSERT(!asker.terms.repeat || (asker.try_ms > 0 && asker.try_ms <= TRY_MS));
            MU_ASSERT(mu_mono_before(now(), asker.deadline));
            MU_ASSERT(!asker.terms.named || route.token != MU_ETCD_TOKEN_ASKED);
            out = true;
            break;
        case MU_ETCD_ASKER_CANCEL:
            MU_ASSERT(out);
            break;
        case MU_ETCD_ASKER_AUTHENTICATE:
            MU_ASSERT(!asking && !out && asker.terms.named && route.config.user != NULL);
            asking = true;
            break;
        case MU_ETCD_ASKER_END:
            MU_ASSERT(!out && asker.answer.status <= 0);
            MU_ASSERT(asker.answer.status != 0 || !asker.answer.unknown);
            MU_ASSERT(asker.answer.status == 0 || asker.answer.errmsg.text[0] != '\0');
            ended = true;
            break;
        }
    }
    MU_ASSERT(ended == (asker.state == MU_ETCD_ASKER_IDLE));
    MU_ASSERT(out == (asker.state == MU_ETCD_ASKER_OUT));
    MU_ASSERT(asker.state == MU_ETCD_ASKER_RESTING || asker.state == MU_ETCD_ASKER_UNNAMED ||
              asker.wake.ns == MU_MONO_NEVER.ns);
}

static void finish_exchange(const struct mu_etcd_exchange *x)
{
    out = false;
    only_once = !asker.terms.repeat && x->status != 0 && x->status != MUSTER_ETLS && x->sent;
    mu_etcd_asker_done(&asker, x, now());
}

static void take_call_event(uint8_t what, struct mu_reader *r)
{
    struct mu_etcd_exchange x;
    struct mu_errmsg msg;

    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        if (out) {
            x = read_exchange(r);
            finish_exchange(&x);
        }
        break;
    case 3:
        if (out && mu_read_u8(r) == 0) {
            out = false;
            stopped = true; /* An exchange that cannot begin ends the call. */
            mu_etcd_asker_unsent(&asker, MUSTER_ENOMEM, now());
        } else if (out) {
            mu_etcd_asker_spoil(&asker, MUSTER_ELIMIT);
        }
        break;
    case 4:
        if (asking) {
            int status = end_auth(r, &msg);

            mu_etcd_asker_authed(&asker, status, msg.text, now());
        }
        break;
    case 5:
        now_ms += mu_read_u16(r) % 1500;
        break;
    case 6:
        mu_etcd_asker_tick(&asker, now());
        break;
    default:
        if (what > 0xe0) {
            stopped = true;
            mu_etcd_asker_stop(&asker, MUSTER_ECANCELED, now());
        }
        break;
    }
    pump_call();
}

static void run_call(struct mu_reader *r, void (*each)(struct mu_reader *r))
{
    uint8_t terms = mu_read_u8(r);

    start_route(r, (terms & 32) != 0);
    only_once = false;
    asker = (struct mu_etcd_asker){0};
    mu_etcd_asker_start(&asker, &route,
                        &(struct mu_etcd_terms){.repeat = (terms & 1) != 0,
                                                .v2 = (terms & 2) != 0,
                                                .poll = (terms & 4) != 0,
                                                .bare = (terms & 8) != 0,
                                                .named = (terms & 10) == 0,
                                                .timeout_ms = (terms & 16) != 0 ? 2500 : 0},
                        now());
    pump_call();
    each(r);
    for (unsigned i = 0; !ended; i++) {
        struct mu_etcd_exchange x = {
            .status = MUSTER_ECONN, .error = "gone", .where = "e", .index = "", .reply = &reply};
        struct mu_errmsg msg = {"no"};

        MU_ASSERT(i < ROUNDS_MAX);
        now_ms += 100;
        if (out) {
            finish_exchange(&x);
        } else if (asking) {
            asking = false;
            mu_etcd_asker_authed(&asker, mu_etcd_route_authed(&route, MUSTER_ECONN, &msg), msg.text,
                                 now());
        } else {
            mu_etcd_asker_tick(&asker, now());
        }
        pump_call();
    }
}

/* --- a lease ---------------------------------------------------------------------------------- */

static struct mu_etcd_holder holder;
static bool granted;
static uint64_t sent_ms;

static void pump_lease(void)
{
    enum mu_etcd_holder_action action;

    while ((action = mu_etcd_holder_next(&holder)) != 0) {
        MU_ASSERT(!ended);
        switch (action) {
        case MU_ETCD_HOLDER_SEND:
            MU_ASSERT(!out && strlen(holder.body) < sizeof(holder.body) - 1);
            MU_ASSERT(!stopped || strcmp(holder.path, "/v3/lease/revoke") == 0);
            out = true;
            sent_ms = now_ms;
            break;
        case MU_ETCD_HOLDER_CANCEL:
            MU_ASSERT(out);
            break;
        case MU_ETCD_HOLDER_GRANTED:
            MU_ASSERT(!granted && !stopped && !out);
            granted = true;
            break;
        case MU_ETCD_HOLDER_END:
            MU_ASSERT(!out && holder.stopping == stopped);
            MU_ASSERT(stopped || (holder.verdict < 0 && holder.errmsg.text[0] != '\0'));
            ended = true;
            break;
        }
    }
    MU_ASSERT(ended == (holder.state == MU_ETCD_HOLDER_IDLE));
    /* Nobody believes in a lease whose time is over. */
    if (holder.state == MU_ETCD_HOLDER_KEPT || holder.state == MU_ETCD_HOLDER_KEEPING) {
        MU_ASSERT(holder.ttl_s > 0 && holder.wake.ns != MU_MONO_NEVER.ns);
        MU_ASSERT(holder.wake.ns <=
                  mu_mono_add_ns(holder.kept, (uint64_t)holder.ttl_s * MU_NS_PER_S).ns);
    }
}

static void tick_lease(void)
{
    mu_etcd_holder_tick(&holder, now());
    MU_ASSERT(!mu_mono_reached(holder.wake, now()) || holder.due != 0 ||
              holder.state == MU_ETCD_HOLDER_ENDING);
    pump_lease();
}

static void answer_lease(struct mu_reader *r)
{
    struct mu_etcd_answer a = {.reply = &reply};
    uint8_t how = mu_read_u8(r);

    reply.ttl_s = (how & 16) != 0 ? (int64_t)mu_read_u64(r) : mu_read_u8(r) % 8;
    if ((how & 3) == 0) {
        a.status = mu_err(&a.errmsg, pick_error(r), "no");
        a.grpc_code = (how & 4) != 0 ? MU_ETCD_PRECONDITION : 0;
        a.reply = NULL;
    }
    out = false;
    mu_etcd_holder_done(&holder, &a, (mu_mono_t){1 + sent_ms * MU_NS_PER_MS}, now());
    pump_lease();
}

static void take_lease_event(uint8_t what, struct mu_reader *r)
{
    switch (what % 8) {
    case 0:
    case 1:
    case 2:
        if (out) {
            answer_lease(r);
        }
        break;
    case 3:
    case 4:
        now_ms += mu_read_u16(r) % 4000;
        break;
    case 5:
        tick_lease();
        break;
    case 6:
        if (what > 0xc0) {
            mu_etcd_holder_close(&holder, now());
        }
        break;
    default:
        if (what > 0xc0 && !ended) {
            stopped = true;
            mu_etcd_holder_stop(&holder, (what & 8) != 0, now());
        }
        break;
    }
    pump_lease();
}

static void run_lease(struct mu_reader *r, void (*each)(struct mu_reader *r))
{
    start_route(r, false);
    granted = false;
    holder = (struct mu_etcd_holder){0};
    mu_etcd_holder_start(&holder, (int64_t)(mu_read_u64(r) >> 2 | 1), 1 + mu_read_u8(r) % 8, now());
    pump_lease();
    each(r);
    mu_etcd_holder_close(&holder, now());
    pump_lease();
    for (unsigned i = 0; !ended; i++) {
        struct mu_etcd_answer a = {.status = MUSTER_ECLOSED, .errmsg = {"closed"}};

        MU_ASSERT(i < 4);
        if (out) {
            out = false;
            mu_etcd_holder_done(&holder, &a, now(), now());
            pump_lease();
        } else {
            tick_lease();
        }
    }
}

/* --- a watch ---------------------------------------------------------------------------------- */

static struct mu_etcd_watcher watcher;
static bool reading;
static bool was_ready;
static int64_t next_told;
static unsigned stop_at; /* the owner stops it in that change; 0: it does not */

static void stop_watch(void)
{
    stopped = true;
    mu_etcd_watcher_stop(&watcher, MUSTER_ECANCELED, now());
}

static void pump_watch(void)
{
    enum mu_etcd_watcher_action action;

    while ((action = mu_etcd_watcher_next(&watcher, now())) != 0) {
        MU_ASSERT(!ended);
        switch (action) {
        case MU_ETCD_WATCHER_READ:
        case MU_ETCD_WATCHER_STREAM:
            MU_ASSERT(!out && !reading && !stopped && watcher.body.len > 0);
            MU_ASSERT(watcher.endpoint < route.config.endpoint_count);
            reading = action == MU_ETCD_WATCHER_READ;
            out = !reading;
            break;
        case MU_ETCD_WATCHER_CANCEL_READ:
            MU_ASSERT(reading);
            break;
        case MU_ETCD_WATCHER_CANCEL_STREAM:
            MU_ASSERT(out);
            break;
        case MU_ETCD_WATCHER_AUTHENTICATE:
            MU_ASSERT(!asking && !out && !reading);
            asking = true;
            break;
        case MU_ETCD_WATCHER_CHANGE:
            MU_ASSERT(!stopped && !reading);
            if (stop_at != 0 && --stop_at == 0) {
                stop_watch();
            }
            break;
        case MU_ETCD_WATCHER_TOLD:
            MU_ASSERT(!stopped && watcher.next >= next_told);
            next_told = watcher.next;
            break;
        case MU_ETCD_WATCHER_READY:
            MU_ASSERT(!stopped && !was_ready && out);
            was_ready = true;
            break;
        case MU_ETCD_WATCHER_END:
            MU_ASSERT(!out && !reading && watcher.verdict < 0 && watcher.errmsg.text[0] != '\0');
            ended = true;
            break;
        }
    }
    MU_ASSERT(ended == (watcher.state == MU_ETCD_WATCHER_IDLE));
    MU_ASSERT(out == (watcher.state == MU_ETCD_WATCHER_STREAMING));
    MU_ASSERT(reading == (watcher.state == MU_ETCD_WATCHER_READING));
    MU_ASSERT(watcher.state != MU_ETCD_WATCHER_TELLING);
}

/* Words of a few keys and revisions, for tests/lib/etcd_words.h. */
static size_t read_words(struct mu_reader *r, bool piece, char texts[8][32], const char *words[8])
{
    size_t count = mu_read_u8(r) % 9;

    for (size_t i = 0; i < count; i++) {
        uint8_t form = mu_read_u8(r) % 16;
        char key = (char)('a' + mu_read_u8(r) % 5);
        unsigned revision = mu_read_u8(r);

        words[i] = texts[i];
        if (!piece || form < 8) {
            (void)snprintf(texts[i], sizeof(texts[i]), "%s%c=%u@%u:%u", piece ? "put:" : "", key,
                           revision % 10, revision, revision / 2);
        } else if (form < 12) {
            (void)snprintf(texts[i], sizeof(texts[i]), "del:%c@%u", key, revision);
        } else if (form == 12) {
            (void)snprintf(texts[i], sizeof(texts[i]), "compacted:%u", revision);
        } else {
            (void)snprintf(texts[i], sizeof(texts[i]), "%s", form < 15 ? "created" : "canceled");
        }
    }
    return count;
}

static void receive(struct mu_reader *r, int code, struct mu_span in)
{
    size_t step = 1 + mu_read_u8(r);

    while (in.len > 0) {
        size_t len = in.len < step ? in.len : step;
        size_t used = mu_etcd_watcher_recv(&watcher, code, mu_span(in.data, len), now());

        MU_ASSERT(used > 0 && used <= len);
        pump_watch();
        in = mu_span_skip(in, used);
    }
}

static void take_text(struct mu_reader *r, bool piece)
{
    char texts[8][32];
    const char *words[8];
    size_t count = read_words(r, piece, texts, words);
    uint8_t heap = mu_read_u8(r);
    struct mu_etcd_answer a = {.reply = &reply};
    struct mu_buf text;

    mu_buf_init(&text, 1 << 16);
    if (piece) {
        etcd_say_piece(&text, words, count);
    } else {
        etcd_say_range(&text, mu_read_u8(r), words, count);
        MU_ASSERT(mu_etcd_reply_decode(&reply, mu_buf_span(&text)) == 0);
    }
    if (heap < 32) {
        failheap_arm(heap);
    }
    if (piece) {
        receive(r, 200, mu_buf_span(&text));
    } else {
        reading = false;
        mu_etcd_watcher_read_done(&watcher, &a, now());
        pump_watch();
    }
    failheap_disarm();
    mu_buf_fini(&text);
}

static void take_watch_event(uint8_t what, struct mu_reader *r)
{
    struct mu_etcd_answer a = {0};
    struct mu_etcd_exchange x;
    struct mu_errmsg msg;

    switch (what % 8) {
    case 0:
    case 1:
        if (out || reading) {
            take_text(r, out);
        }
        break;
    case 2:
        if (out) {
            receive(r, (what & 8) != 0 ? 200 : 404, r->rest);
        } else if (reading) {
            a.status = mu_err(&a.errmsg, pick_error(r), "no");
            reading = false;
            mu_etcd_watcher_read_done(&watcher, &a, now());
        }
        break;
    case 3:
        if (out && (what & 16) != 0) {
            out = false;
            stopped = true; /* A stream that cannot begin ends the watch. */
            mu_etcd_watcher_unsent(&watcher, MUSTER_ENOMEM, now());
        } else if (out) {
            x = read_exchange(r);
            out = false;
            mu_etcd_watcher_stream_done(&watcher, &x, now());
        }
        break;
    case 4:
        if (asking) {
            int status = end_auth(r, &msg);

            mu_etcd_watcher_authed(&watcher, status, msg.text, now());
        }
        break;
    case 5:
        now_ms += mu_read_u16(r) % 3000;
        break;
    case 6:
        if (what == 0xfe) {
            stop_watch();
        } else if (what > 0x80) {
            stop_at = 1 + mu_read_u8(r) % 8;
        }
        break;
    default:
        if ((what & 16) != 0) {
            failheap_arm(what >> 5);
        }
        mu_etcd_watcher_tick(&watcher, now());
        pump_watch();
        failheap_disarm();
        break;
    }
    pump_watch();
}

static void run_watch(struct mu_reader *r, void (*each)(struct mu_reader *r))
{
    uint8_t terms = mu_read_u8(r);
    struct mu_etcd_watcher_config config = {
        .key = MU_SPAN_LIT("a"),
        .end = MU_SPAN_LIT("z"),
        .current = (terms & 1) != 0,
        .prev_kv = (terms & 2) != 0,
        .puts_only = (terms & 4) != 0,
        .from = (terms & 12) == 12 ? 5 : 0,
    };

    start_route(r, (terms & 16) != 0);
    reading = was_ready = false;
    stop_at = 0;
    next_told = 0;
    watcher = (struct mu_etcd_watcher){0};
    mu_etcd_watcher_start(&watcher, &route, &config, 1, now());
    pump_watch();
    each(r);
    stop_watch();
    pump_watch();
    for (unsigned i = 0; !ended; i++) {
        struct mu_etcd_exchange x = {.status = MUSTER_ECANCELED, .error = "", .where = "e"};
        struct mu_etcd_answer a = {.status = MUSTER_ECANCELED};

        MU_ASSERT(i < 4);
        if (out) {
            out = false;
            mu_etcd_watcher_stream_done(&watcher, &x, now());
        } else if (reading) {
            reading = false;
            mu_etcd_watcher_read_done(&watcher, &a, now());
        } else {
            mu_etcd_watcher_tick(&watcher, now());
        }
        pump_watch();
    }
}

/* --- the whole -------------------------------------------------------------------------------- */

static void (*take_event)(uint8_t what, struct mu_reader *r);

static void take_events(struct mu_reader *r)
{
    while (!r->failed && r->rest.len > 0 && !ended) {
        uint8_t what = mu_read_u8(r);
        struct mu_reader inside = mu_reader(mu_read_bytes(r, mu_read_u8(r)));

        if (!r->failed) {
            take_event(what, &inside);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const runs[])(struct mu_reader * r, void (*each)(struct mu_reader * r)) = {
        run_call, run_lease, run_watch};
    static void (*const takes[])(uint8_t what, struct mu_reader * r) = {
        take_call_event, take_lease_event, take_watch_event};
    struct mu_reader r = mu_reader(mu_span(data, size));
    uint8_t machine = mu_read_u8(&r) % 3;

    mu_etcd_reply_init(&reply);
    take_event = takes[machine];
    runs[machine](&r, take_events);
    mu_etcd_reply_fini(&reply);
    return 0;
}
