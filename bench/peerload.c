/*
 * A peer that loads, and is loaded: what bench_peer measures with, and what the tests against
 * js-libp2p speak through. It is muster's host with little around it.
 *
 *     peerload serve                        prints its multiaddr; echo, sink, abort, calls
 *     peerload echo ADDR                    --streams of --bytes each, both ways at once
 *     peerload sink ADDR                    the same, one way
 *     peerload handshakes ADDR              connects and closes, one after the other
 *     peerload calls ADDR                   unary ones of --bytes, --streams at a time
 *     peerload reset ADDR                   resets a stream, has one reset, goes on
 *
 * Prints one object of JSON, and exits with 1 if something was not as it must be.
 */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "service/peer/call.h"
#include "service/peer/echo.h"
#include "service/peer/host.h"
#include "transport/uv_env.h"

#define SINK_NAME  "/muster/sink/1.0.0"
#define ABORT_NAME "/muster/abort/1.0.0"

enum { PATTERN = 1 << 20 };

struct load {
    const char *mode;
    uint64_t bytes;
    uint64_t streams;
    uint64_t seconds;
    bool rsa;
    bool linger; /* leaves the connection open at the end until the peer closes it */
    struct mu_uv_env *uv;
    struct mu_env *env;
    struct mu_identity identity;
    struct mu_peer_host *host;
    struct mu_peer_echo echo;
    struct mu_peer_calls *calls;
    struct mu_peer_echo_calls echo_calls;
    struct asker *askers;
    uint64_t asking; /* of them */
    uint64_t answers;
    struct mu_peer_handler sink;
    struct mu_peer_handler abort;
    struct mu_peer_connect connect;
    struct mu_peer_watch watch;
    struct mu_timer timer;
    struct mu_buf addr;
    uint8_t *pattern; /* twice, so that any place of it can be read on from */
    struct flow *flows;
    uint64_t left; /* flows that have not ended */
    uint64_t done; /* bytes of ended ones */
    uint64_t handshakes;
    mu_mono_t since;
    bool resetting;
    int code;
};

struct flow {
    struct mu_host_stream stream;
    struct load *load;
    uint64_t sent, got;
    bool echoed; /* what is sent comes back */
    bool failed;
};

static const struct mu_span echo_name[] = {
    {(const uint8_t *)MU_PEER_ECHO_NAME, sizeof(MU_PEER_ECHO_NAME) - 1}};
static const struct mu_span sink_name[] = {{(const uint8_t *)SINK_NAME, sizeof(SINK_NAME) - 1}};
static const struct mu_span abort_name[] = {{(const uint8_t *)ABORT_NAME, sizeof(ABORT_NAME) - 1}};

static void finish(struct load *l, int code)
{
    l->code = l->code != 0 ? l->code : code;
    mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
    mu_peer_host_stop(l->host);
}

static void complain(struct load *l, const char *what, int status, const char *text)
{
    (void)fprintf(stderr, "peerload: %s: %s (%s)\n", what, text, muster_errname(status));
    finish(l, 1);
}

static double seconds_since(const struct load *l)
{
    return (double)mu_mono_since(l->since, mu_env_now(l->env).mono) / 1e9;
}

/* --- serving ---------------------------------------------------------------------------------- */

struct drain {
    struct mu_host_stream stream;
    uint64_t got;
    bool aborts;
};

static void drain_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct drain *d = MU_CONTAINER_OF(s, struct drain, stream);

    d->got += bytes.len;
    if (d->aborts) {
        mu_host_stream_reset(s);
        mu_free(d);
    } else {
        mu_host_stream_consumed(s, bytes.len);
    }
}

static void drain_eof(struct mu_host_stream *s)
{
    struct drain *d = MU_CONTAINER_OF(s, struct drain, stream);
    uint8_t count[8];

    mu_put_u64(count, d->got);
    (void)mu_host_stream_write(s, mu_span(count, sizeof(count)));
    mu_host_stream_end(s);
}

static void drain_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    mu_free(MU_CONTAINER_OF(s, struct drain, stream));
}

static const struct mu_host_stream_events drain_events = {
    .data = drain_data,
    .eof = drain_eof,
    .ended = drain_ended,
};

static struct mu_host_stream *on_drain(struct mu_peer_handler *handler,
                                       const struct mu_peer_id *peer, struct mu_span name)
{
    struct drain *d = mu_calloc(1, sizeof(*d));

    (void)peer;
    (void)name;
    if (d == NULL) {
        return NULL;
    }
    d->stream.on = &drain_events;
    d->aborts = strcmp(handler->name, ABORT_NAME) == 0;
    return &d->stream;
}

static void serve(struct load *l)
{
    char text[MU_MULTIADDR_TEXT_MAX];
    char id[MU_PEER_ID_TEXT_MAX];
    struct mu_errmsg msg;

    if (mu_peer_host_listen(l->host, "/ip4/127.0.0.1/tcp/0", &msg) != 0) {
        complain(l, "listen", 0, msg.text);
        return;
    }
    printf("%s/p2p/%s\n",
           mu_multiaddr_format(mu_peer_host_listening(l->host, 0), text, sizeof(text)),
           mu_peer_id_format(&l->identity.id, id));
    (void)fflush(stdout);
}

/* --- loading ---------------------------------------------------------------------------------- */

static void send_some(struct mu_host_stream *s)
{
    struct flow *f = MU_CONTAINER_OF(s, struct flow, stream);
    struct load *l = f->load;

    while (f->sent < l->bytes) {
        size_t at = f->sent % PATTERN;
        uint64_t left = l->bytes - f->sent;
        size_t n = left < PATTERN ? (size_t)left : PATTERN;
        size_t taken = mu_host_stream_write(s, mu_span(l->pattern + at, n));

        f->sent += taken;
        if (taken < n) {
            return;
        }
    }
    mu_host_stream_end(s);
}

static void take_some(struct mu_host_stream *s, struct mu_span bytes)
{
    struct flow *f = MU_CONTAINER_OF(s, struct flow, stream);
    struct load *l = f->load;
    uint64_t want = l->bytes;

    mu_host_stream_consumed(s, bytes.len);
    if (!f->echoed) {
        f->failed = f->failed || bytes.len != 8 || mu_get_u64(bytes.data) != want;
        return;
    }
    for (size_t at = 0; at < bytes.len && !f->failed;) {
        size_t n = bytes.len - at < PATTERN ? bytes.len - at : PATTERN;

        f->failed = memcmp(bytes.data + at, l->pattern + (f->got + at) % PATTERN, n) != 0;
        at += n;
    }
    f->got += bytes.len;
    f->failed = f->failed || f->got > f->sent;
}

static void flow_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct flow *f = MU_CONTAINER_OF(s, struct flow, stream);
    struct load *l = f->load;

    if (status != 0 || f->failed || f->sent != l->bytes || (f->echoed && f->got != l->bytes)) {
        (void)fprintf(stderr, "peerload: sent %" PRIu64 ", got %" PRIu64 "%s\n", f->sent, f->got,
                      f->failed ? ", damaged" : "");
        complain(l, "stream", status, text);
        return;
    }
    l->done += l->bytes;
    if (--l->left == 0) {
        double seconds = seconds_since(l);

        printf("{\"streams\":%" PRIu64 ",\"bytes\":%" PRIu64
               ",\"seconds\":%.6f,\"bytes_per_s\":%.0f}\n",
               l->streams, l->done, seconds, (double)l->done / seconds);
        (void)fflush(stdout);
        if (!l->linger) {
            finish(l, 0);
        }
    }
}

static const struct mu_host_stream_events flow_events = {
    .data = take_some,
    .writable = send_some,
    .ended = flow_ended,
};

static void start_flows(struct load *l)
{
    bool echoed = strcmp(l->mode, "echo") == 0;

    l->flows = calloc(l->streams, sizeof(*l->flows));
    l->left = l->streams;
    l->since = mu_env_now(l->env).mono;
    for (uint64_t i = 0; i < l->streams && l->flows != NULL; i++) {
        struct flow *f = &l->flows[i];

        f->load = l;
        f->echoed = echoed;
        f->stream.on = &flow_events;
        mu_host_stream_open(l->host, &f->stream, &l->connect.peer, echoed ? echo_name : sink_name,
                            1);
        send_some(&f->stream);
    }
}

/* --- calls ------------------------------------------------------------------------------------ */

/* One call after the other. */
struct asker {
    struct mu_unary_call call;
    struct load *load;
};

static void on_answer(struct mu_unary_call *call, int status, const char *text,
                      struct mu_span message);

static void ask(struct asker *a)
{
    struct load *l = a->load;
    struct mu_unary *unary = mu_peer_calls_unary(l->calls);
    int err;

    a->call.peer = l->connect.peer;
    a->call.method = MU_PEER_ECHO_UNARY;
    a->call.timeout_ms = 60000;
    a->call.done = on_answer;
    err = unary->ops->call(unary, &a->call, mu_span(l->pattern, (size_t)l->bytes));
    if (err != 0) {
        complain(l, "call", err, muster_strerror(err));
    }
}

static void on_answer(struct mu_unary_call *call, int status, const char *text,
                      struct mu_span message)
{
    struct asker *a = MU_CONTAINER_OF(call, struct asker, call);
    struct load *l = a->load;

    if (status != 0 || message.len != l->bytes ||
        memcmp(message.data, l->pattern, message.len) != 0) {
        complain(l, "answer", status, text);
        return;
    }
    l->answers++;
    if (seconds_since(l) < (double)l->seconds) {
        ask(a);
    } else if (--l->asking == 0) {
        double seconds = seconds_since(l);

        printf("{\"calls\":%" PRIu64 ",\"seconds\":%.3f,\"per_s\":%.1f}\n", l->answers, seconds,
               (double)l->answers / seconds);
        finish(l, 0);
    }
}

static void start_calls(struct load *l)
{
    l->askers = calloc(l->streams, sizeof(*l->askers));
    l->asking = l->askers != NULL ? l->streams : 0;
    l->since = mu_env_now(l->env).mono;
    for (uint64_t i = 0; i < l->asking; i++) {
        l->askers[i].load = l;
        ask(&l->askers[i]);
    }
}

/* --- resets ----------------------------------------------------------------------------------- */

static void reset_write(struct mu_host_stream *s)
{
    struct flow *f = MU_CONTAINER_OF(s, struct flow, stream);

    f->sent += mu_host_stream_write(s, mu_span(f->load->pattern, 100 - f->sent));
}

static void reset_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct flow *f = MU_CONTAINER_OF(s, struct flow, stream);
    struct load *l = f->load;

    (void)bytes;
    /* It echoes: that is enough. Then one that the peer is to reset. */
    mu_host_stream_reset(s);
    f->echoed = false;
    f->sent = 0;
    mu_host_stream_open(l->host, s, &l->connect.peer, abort_name, 1);
    reset_write(s);
}

static void reset_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct flow *f = MU_CONTAINER_OF(s, struct flow, stream);
    struct load *l = f->load;

    if (f->echoed || status != MUSTER_ECLOSED) {
        complain(l, "a stream was to be reset", status, text);
        return;
    }
    l->mode = "echo";
    start_flows(l); /* The connection is as good as before. */
}

static const struct mu_host_stream_events reset_events = {
    .data = reset_data,
    .writable = reset_write,
    .ended = reset_ended,
};

static void start_reset(struct load *l)
{
    static struct flow first;

    first.load = l;
    first.echoed = true;
    first.stream.on = &reset_events;
    mu_host_stream_open(l->host, &first.stream, &l->connect.peer, echo_name, 1);
    reset_write(&first.stream);
}

/* --- handshakes ------------------------------------------------------------------------------- */

static void on_disconnected(struct mu_peer_watch *watch, const struct mu_peer_id *peer, int why)
{
    struct load *l = MU_CONTAINER_OF(watch, struct load, watch);

    (void)peer;
    if (l->linger && l->left == 0 && l->flows != NULL) {
        printf("{\"closed\":%d}\n", why);
        finish(l, why == 0 || why == MUSTER_ECLOSED ? 0 : 1);
    } else if (strcmp(l->mode, "handshakes") == 0) {
        double seconds = seconds_since(l);

        if (seconds < (double)l->seconds) {
            mu_peer_host_connect(l->host, &l->connect);
            return;
        }
        printf("{\"handshakes\":%" PRIu64 ",\"seconds\":%.3f,\"per_s\":%.1f}\n", l->handshakes,
               seconds, (double)l->handshakes / seconds);
        finish(l, 0);
    } else if (l->left != 0) {
        complain(l, "disconnected", why, muster_strerror(why));
    }
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct load *l = MU_CONTAINER_OF(connect, struct load, connect);

    if (status != 0) {
        complain(l, "connect", status, text);
    } else if (strcmp(l->mode, "handshakes") == 0) {
        l->since = l->handshakes++ == 0 ? mu_env_now(l->env).mono : l->since;
        mu_peer_host_disconnect(l->host, &connect->peer);
    } else if (strcmp(l->mode, "calls") == 0) {
        start_calls(l);
    } else if (strcmp(l->mode, "reset") == 0) {
        start_reset(l);
    } else {
        start_flows(l);
    }
}

/* ---------------------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    struct load *l = context;

    mu_peer_echo_calls_unserve(&l->echo_calls);
    mu_peer_calls_free(l->calls);
    mu_peer_host_free(l->host);
    l->host = NULL;
    mu_uv_env_stop(l->uv);
}

static void on_timeout(struct mu_timer *timer)
{
    struct load *l = MU_CONTAINER_OF(timer, struct load, timer);

    complain(l, "timeout", MUSTER_ETIMEDOUT, "it took too long");
}

static int start(struct load *l, const char *addr, bool quiet)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct mu_errmsg msg;
    int err;

    config.identity = &l->identity;
    config.no_identify = quiet;
    config.stopped = on_stopped;
    config.context = l;
    config.memory_bytes_max = (uint64_t)4 << 30;
    err = mu_peer_host_start(l->env, &config, &l->host, &msg);
    if (err != 0) {
        (void)fprintf(stderr, "peerload: %s\n", msg.text);
        return 1;
    }
    mu_peer_echo_init(&l->echo, MU_PEER_ECHO_NAME);
    l->sink = (struct mu_peer_handler){.name = SINK_NAME, .opened = on_drain};
    l->abort = (struct mu_peer_handler){.name = ABORT_NAME, .opened = on_drain};
    (void)mu_peer_host_serve(l->host, &l->echo.handler);
    (void)mu_peer_host_serve(l->host, &l->sink);
    (void)mu_peer_host_serve(l->host, &l->abort);
    if (mu_peer_calls_new(l->host, NULL, &l->calls) != 0 ||
        mu_peer_echo_calls_serve(&l->echo_calls, l->calls) != 0) {
        complain(l, "calls", MUSTER_ENOMEM, "out of memory");
        return 1;
    }
    if (strcmp(l->mode, "serve") == 0) {
        serve(l);
        return 0;
    }
    l->watch.disconnected = on_disconnected;
    mu_peer_host_watch(l->host, &l->watch);
    mu_buf_init(&l->addr, MU_MULTIADDR_MAX);
    if (mu_multiaddr_parse(&l->addr, addr, &msg) != 0) {
        complain(l, "address", MUSTER_EINVAL, msg.text);
        return 1;
    }
    l->connect.addr = mu_buf_span(&l->addr);
    l->connect.done = on_connected;
    mu_peer_host_connect(l->host, &l->connect);
    return 0;
}

static int run(struct load *l, const char *addr, bool quiet)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    int code;

    if (mu_uv_env_new(&l->uv) != 0) {
        return 1;
    }
    l->env = mu_uv_env_env(l->uv);
    mu_timer_init(&l->timer, on_timeout);
    mu_env_timer_arm(l->env, &l->timer,
                     mu_mono_add_ms(mu_env_now(l->env).mono, l->seconds * 1000 + 600000));
    mu_env_entropy(l->env, seed, sizeof(seed));
    if ((l->rsa ? mu_identity_generate_rsa(&l->identity, 2048)
                : mu_identity_from_seed(&l->identity, seed)) != 0) {
        return 1;
    }
    l->pattern = malloc(2 * (size_t)PATTERN);
    if (l->pattern == NULL) {
        return 1;
    }
    for (size_t i = 0; i < 2 * (size_t)PATTERN; i++) {
        l->pattern[i] = (uint8_t)((i % PATTERN) * 167 >> 3);
    }
    code = start(l, addr, quiet);
    if (code == 0 || l->host != NULL) {
        mu_uv_env_run(l->uv);
    }
    mu_buf_fini(&l->addr);
    mu_identity_fini(&l->identity);
    mu_uv_env_free(l->uv);
    free(l->askers);
    free(l->flows);
    free(l->pattern);
    return code != 0 ? code : l->code;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"bytes", required_argument, NULL, 'b'},
        {"streams", required_argument, NULL, 's'},
        {"seconds", required_argument, NULL, 't'},
        {"rsa", no_argument, NULL, 'r'},
        {"linger", no_argument, NULL, 'l'},
        {"quiet", no_argument, NULL, 'q'},
        {NULL, 0, NULL, 0},
    };
    struct load l = {.bytes = 1 << 20, .streams = 1, .seconds = 2};
    bool quiet = false;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'b':
            l.bytes = strtoull(optarg, NULL, 10);
            break;
        case 's':
            l.streams = strtoull(optarg, NULL, 10);
            break;
        case 't':
            l.seconds = strtoull(optarg, NULL, 10);
            break;
        case 'r':
            l.rsa = true;
            break;
        case 'l':
            l.linger = true;
            break;
        case 'q':
            quiet = true;
            break;
        default:
            return 2;
        }
    }
    if (l.bytes > PATTERN && optind < argc && strcmp(argv[optind], "calls") == 0) {
        (void)fprintf(stderr, "peerload: a call has at most %d bytes here\n", PATTERN);
        return 2;
    }
    if (optind >= argc || (strcmp(argv[optind], "serve") != 0 && optind + 1 >= argc)) {
        (void)fprintf(stderr,
                      "usage: peerload serve|echo|sink|handshakes|calls|reset [ADDR] [OPTIONS]\n");
        return 2;
    }
    l.mode = argv[optind];
    return run(&l, argv[optind + 1], quiet);
}
