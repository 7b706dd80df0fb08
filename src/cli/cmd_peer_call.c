/* muster peer call: calls a method of a peer in hivemind's framing. */
#include "cli/cmd_peer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "codec/peer/multiaddr.h"

#define DATA_MAX ((size_t)64 << 20)

struct call {
    struct peer_app app;
    struct mu_peer_id peer;
    char name[MU_PEER_ID_TEXT_MAX]; /* the peer's name in messages */
    struct mu_peer_connect connect;
    struct mu_peer_watch watch;
    struct mu_timer timer; /* limit for the whole call */
    struct mu_timer soon;  /* routing has learnt which methods the peer serves: the call may
                              begin */
    struct mu_unary_call unary;
    struct mu_peer_items items;
    struct mu_buf addr;
    struct mu_buf *data;
    size_t sent;       /* how many data were sent */
    size_t identified; /* peers that have identified themselves */
    bool begun;
    bool unreached; /* `why` tells why the last peer could not be reached */
    struct mu_errmsg why;
};

static struct call *call_of(struct peer_app *app)
{
    return MU_CONTAINER_OF(app, struct call, app);
}

/* --- the result ------------------------------------------------------------------------------- */

/* Prints what went wrong, with which peer, and the remedy. */
static void fail_call(struct call *c, int status, const char *text)
{
    const struct peer_options *o = c->app.o;
    const char *whom = c->name[0] != '\0' ? c->name : o->address;
    int code;

    switch (status) {
    case MUSTER_ETIMEDOUT:
        code = cli_fail(CLI_TIMEOUT, "%s: %s: %s; --timeout TIME gives it more time", whom,
                        o->method, text);
        break;
    case MUSTER_EREFUSED:
        code = cli_fail(CLI_FAILED, "%s does not serve %s%s", whom, o->method,
                        strstr(o->method, "::") != NULL ? "; upper and lower case matter"
                                                        : "; write namespace::Service.method");
        break;
    case MUSTER_EREMOTE:
        code = cli_fail(CLI_FAILED, "%s: %s failed: %s", whom, o->method, text);
        break;
    case MUSTER_ENOENT:
        code =
            cli_fail(CLI_CONNECT, "%s: %s: %s; give its multiaddr, or a --bootstrap that knows it",
                     whom, o->method, text);
        break;
    case MUSTER_ECLOSED:
    case MUSTER_EPROTO:
        code = cli_fail(CLI_FAILED, "%s: %s: %s; it may be %s", whom, o->method, text,
                        o->stream ? "a unary method: try without --stream"
                                  : "a streaming method: try --stream");
        break;
    case MUSTER_ELIMIT:
        code = cli_fail(CLI_FAILED, "%s: %s: %s; %s", whom, o->method, text,
                        o->stream
                            ? "an item is at most 64 MiB long"
                            : "a unary message is at most 4 MiB long, an item of --stream 64 MiB");
        break;
    default:
        code =
            cli_fail(CLI_CONNECT, "%s: %s: %s; `muster peer ping` tells whether it can be reached",
                     whom, o->method, text);
        break;
    }
    peer_app_stop(&c->app, code);
}

static json_t *hex_of(struct mu_span bytes)
{
    char *text = malloc(2 * bytes.len + 1);
    json_t *made;

    if (text == NULL) {
        return json_null();
    }
    text[0] = '\0';
    for (size_t i = 0; i < bytes.len; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", bytes.data[i]);
    }
    made = json_string(text);
    free(text);
    return made;
}

static void print_message(const struct call *c, struct mu_span message)
{
    json_t *object;
    json_t *text;

    if (!c->app.o->json) {
        (void)fwrite(message.data, 1, message.len, stdout);
        (void)putchar('\n');
        (void)fflush(stdout);
        return;
    }
    object = json_pack("{s:s, s:s, s:I}", "peer", c->name, "method", c->app.o->method, "bytes",
                       (json_int_t)message.len);
    text = json_stringn(message.len == 0 ? "" : (const char *)message.data, message.len);
    if (text != NULL) {
        (void)json_object_set_new(object, "text", text);
    } else {
        (void)json_object_set_new(object, "hex", hex_of(message));
    }
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)putchar('\n');
    (void)fflush(stdout);
    json_decref(object);
}

static void on_done(struct mu_unary_call *unary, int status, const char *text,
                    struct mu_span message)
{
    struct call *c = MU_CONTAINER_OF(unary, struct call, unary);

    if (c->app.loop.stopping) {
        return;
    }
    if (status != 0) {
        fail_call(c, status, text);
        return;
    }
    print_message(c, message);
    peer_app_stop(&c->app, 0);
}

/* --- streaming -------------------------------------------------------------------------------- */

static void on_item(struct mu_peer_items *items, struct mu_span message)
{
    print_message(MU_CONTAINER_OF(items, struct call, items), message);
}

static void send_items(struct mu_peer_items *items)
{
    struct call *c = MU_CONTAINER_OF(items, struct call, items);
    int err = 0;

    while (err == 0 && c->sent < c->app.o->data_count) {
        err = mu_peer_items_send(items, mu_buf_span(&c->data[c->sent]));
        c->sent += err == 0 ? 1 : 0;
    }
    if (err == 0) {
        err = mu_peer_items_end(items);
    }
    if (err != 0 && err != MUSTER_EAGAIN && !c->app.loop.stopping) {
        fail_call(c, err, muster_strerror(err));
    }
}

static void on_items_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct call *c = MU_CONTAINER_OF(items, struct call, items);

    if (c->app.loop.stopping) {
        return;
    }
    if (status != 0) {
        fail_call(c, status, text);
    } else {
        peer_app_stop(&c->app, 0);
    }
}

static const struct mu_peer_items_events items_events = {
    .item = on_item,
    .writable = send_items,
    .ended = on_items_ended,
};

/* --- to the peer ------------------------------------------------------------------------------ */

static void begin_call(struct call *c)
{
    const struct peer_options *o = c->app.o;
    struct mu_unary *unary = mu_peer_calls_unary(c->app.calls);
    int err;

    c->begun = true;
    (void)mu_peer_id_format(&c->peer, c->name);
    if (o->stream) {
        c->items.on = &items_events;
        mu_peer_items_open(c->app.calls, &c->items, &c->peer, o->method);
        send_items(&c->items);
        return;
    }
    c->unary.peer = c->peer;
    c->unary.method = o->method;
    c->unary.done = on_done;
    err = unary->ops->call(unary, &c->unary, mu_buf_span(&c->data[0]));
    if (err != 0) {
        fail_call(c, err, muster_strerror(err));
    }
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct call *c = MU_CONTAINER_OF(connect, struct call, connect);

    if (c->app.loop.stopping) {
        return;
    }
    if (status != 0) {
        fail_call(c, status == MUSTER_ECLOSED ? MUSTER_ECONN : status, text);
        return;
    }
    c->peer = connect->peer;
    begin_call(c);
}

static void on_soon(struct mu_timer *timer)
{
    struct call *c = MU_CONTAINER_OF(timer, struct call, soon);

    if (!c->app.loop.stopping && !c->begun) {
        begin_call(c);
    }
}

/* All bootstrap peers have been tried, and those that were reached have said which protocols they
 * serve. */
static void look_around(struct call *c)
{
    size_t met = 0;

    for (size_t i = 0; i < c->app.bootstrap_count; i++) {
        if (!c->app.bootstrap[i].tried) {
            return;
        }
        met += c->app.bootstrap[i].base.met ? 1 : 0;
    }
    if (met == 0) {
        mu_err_prefix(&c->why, "no peer to bootstrap from can be reached");
        fail_call(c, MUSTER_ECONN, c->why.text);
    } else if (c->identified >= met) {
        mu_env_timer_arm(c->app.loop.env, &c->soon, mu_env_now(c->app.loop.env).mono);
    }
}

static void on_bootstrapped(struct peer_app *app, struct peer_bootstrap *b, int status,
                            const char *text)
{
    struct call *c = call_of(app);

    (void)b;
    if (c->begun) {
        return; /* The bootstrap peers are no longer needed. */
    }
    if (status != 0) {
        (void)mu_err(&c->why, status, "%s", text);
    }
    look_around(c);
}

static void on_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer)
{
    struct call *c = MU_CONTAINER_OF(watch, struct call, watch);

    (void)peer;
    c->identified++;
    if (c->peer.len != 0 && !c->begun && !c->app.loop.stopping) {
        look_around(c);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct call *c = MU_CONTAINER_OF(timer, struct call, timer);
    char text[64];

    if (!c->app.loop.stopping) {
        (void)snprintf(text, sizeof(text), "the call did not end within %g s", c->app.o->timeout);
        fail_call(c, MUSTER_ETIMEDOUT, text);
    }
}

static void end_call(struct peer_app *app)
{
    struct call *c = call_of(app);
    struct mu_unary *unary;

    mu_env_timer_arm(app->loop.env, &c->timer, MU_MONO_NEVER);
    mu_env_timer_arm(app->loop.env, &c->soon, MU_MONO_NEVER);
    mu_peer_host_connect_cancel(&c->connect);
    mu_peer_host_unwatch(&c->watch);
    mu_peer_items_cancel(&c->items);
    if (app->calls != NULL) {
        unary = mu_peer_calls_unary(app->calls);
        unary->ops->cancel(unary, &c->unary);
    }
}

static int begin(struct peer_app *app)
{
    struct call *c = call_of(app);
    const char *id = app->o->address;
    struct mu_errmsg msg;
    int code;

    mu_timer_init(&c->timer, on_timer);
    mu_timer_init(&c->soon, on_soon);
    mu_list_init(&c->watch.link);
    code = peer_app_calls(app, true);
    if (code != 0) {
        return code;
    }
    c->watch.identified = on_identified;
    mu_peer_host_watch(app->host, &c->watch);
    mu_env_timer_arm(app->loop.env, &c->timer,
                     mu_mono_add_ms(mu_env_now(app->loop.env).mono, cli_ms(app->o->timeout)));
    id += strncmp(id, "/p2p/", 5) == 0 ? 5 : 0;
    if (id[0] == '/') {
        if (mu_multiaddr_parse(&c->addr, id, &msg) != 0) {
            return cli_fail(CLI_USAGE, "%s: %s", id, msg.text);
        }
        c->connect.addr = mu_buf_span(&c->addr);
        c->connect.done = on_connected;
        mu_peer_host_connect(app->host, &c->connect);
        return 0;
    }
    if (mu_peer_id_parse(&c->peer, id, &msg) != 0) {
        return cli_fail(CLI_USAGE, "%s is neither a multiaddr nor a peer id: %s", id, msg.text);
    }
    if (app->o->bootstrap == NULL) {
        return cli_usage(
            "peer", "%s is an id without an address; --bootstrap MULTIADDR finds the peer", id);
    }
    (void)mu_peer_id_format(&c->peer, c->name);
    return cli_use_words(app->o->bootstrap, peer_use_bootstrap, app);
}

/* --- messages --------------------------------------------------------------------------------- */

static int read_hex(struct mu_buf *out, const char *hex)
{
    size_t len = strlen(hex);

    if (len % 2 != 0 || strspn(hex, "0123456789abcdefABCDEF") != len) {
        return cli_usage("peer", "hex:%s is not pairs of hex digits", hex);
    }
    for (size_t i = 0; i < len; i += 2) {
        char pair[3] = {hex[i], hex[i + 1], '\0'};
        uint8_t byte = (uint8_t)strtoul(pair, NULL, 16);

        if (mu_buf_append(out, mu_span(&byte, 1)) != 0) {
            return cli_fail(CLI_FAILED, "out of memory");
        }
    }
    return 0;
}

static int read_input(struct mu_buf *out)
{
    uint8_t chunk[65536];
    size_t n;

    while ((n = fread(chunk, 1, sizeof(chunk), stdin)) != 0) {
        if (mu_buf_append(out, mu_span(chunk, n)) != 0) {
            return cli_fail(CLI_FAILED, "standard input is longer than a message may be");
        }
    }
    return ferror(stdin) != 0 ? cli_fail(CLI_FAILED, "cannot read standard input") : 0;
}

static int read_data(struct call *c)
{
    const struct peer_options *o = c->app.o;
    int code = 0;

    c->data = calloc(o->data_count + 1, sizeof(*c->data));
    if (c->data == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    for (size_t i = 0; i <= o->data_count; i++) {
        mu_buf_init(&c->data[i], DATA_MAX);
    }
    for (size_t i = 0; i < o->data_count && code == 0; i++) {
        const char *word = o->data[i];

        if (strcmp(word, "-") == 0) {
            code = read_input(&c->data[i]);
        } else if (strncmp(word, "hex:", 4) == 0) {
            code = read_hex(&c->data[i], word + 4);
        } else if (mu_buf_append(&c->data[i], mu_span_str(word)) != 0) {
            code = cli_fail(CLI_FAILED, "out of memory");
        }
    }
    return code;
}

int peer_call(const struct peer_options *o)
{
    struct call c = {.app.o = o,
                     .app.interrupted = CLI_FAILED,
                     .app.ending = end_call,
                     .app.bootstrapped = on_bootstrapped};
    int code;

    if (o->address == NULL || o->method == NULL) {
        return cli_usage("peer", "name the peer and the method: PEER METHOD");
    }
    if (o->data_count > 1 && !o->stream) {
        return cli_usage("peer", "a unary call takes one DATA; use --stream to send several");
    }
    mu_buf_init(&c.addr, MU_MULTIADDR_MAX);
    code = read_data(&c);
    if (code == 0) {
        code = peer_app_run(&c.app, begin);
    }
    for (size_t i = 0; c.data != NULL && i <= o->data_count; i++) {
        mu_buf_fini(&c.data[i]);
    }
    free(c.data);
    mu_buf_fini(&c.addr);
    return code;
}
