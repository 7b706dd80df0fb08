/*
 * What holds for every stream machine: how bytes are split and drained changes nothing, garbage is
 * an error or nothing, an error stays, and running out of memory at any one place loses nothing.
 */
#include "rpc_pair.h"

#include "core/prng.h"
#include "failheap.h"

/* A service that answers calls with their payload, streams with their items. */
static void serve(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    switch (ev->type) {
    case MU_RPC_EV_CALL:
        if (mu_span_eq(ev->method, MU_SPAN_LIT("echo"))) {
            (void)mu_rpc_reply(&at->rpc, p->now, ev->id, 0, ev->payload);
        }
        break;
    case MU_RPC_EV_ITEM:
        (void)mu_rpc_item(&at->rpc, p->now, ev->id, ev->payload);
        (void)mu_rpc_consumed(&at->rpc, p->now, ev->id, ev->payload.len);
        break;
    case MU_RPC_EV_END:
    case MU_RPC_EV_CANCEL:
        (void)mu_rpc_reply(&at->rpc, p->now, ev->id, ev->status, MU_SPAN_LIT("end"));
        break;
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
    case MU_RPC_EV_REPLY:
    case MU_RPC_EV_CREDIT:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
        break;
    }
}

/* Everything a client can say to a server that says nothing by itself, HELLO excluded. */
static void record(struct mu_buf *ret_bytes)
{
    static uint8_t big[3000];
    struct rpc_pair p;
    uint64_t id;

    rpc_pair_init(&p, NULL, NULL);
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("echo"),
                                     mu_span(big, sizeof(big)), 0, 0, &id),
                         0);
        assert_int_equal(mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("stream"),
                                     (struct mu_span){0}, 9, 0, &id),
                         0);
        assert_int_equal(mu_rpc_item(&p.client.rpc, p.now, id, MU_SPAN_LIT("item")), 0);
        assert_int_equal(mu_rpc_item(&p.client.rpc, p.now, id, (struct mu_span){0}), 0);
        if (i != 1) {
            assert_int_equal(mu_rpc_end(&p.client.rpc, p.now, id), 0);
        } else {
            assert_int_equal(mu_rpc_cancel(&p.client.rpc, p.now, id), 0);
        }
    }
    assert_int_equal(mu_buf_append(ret_bytes, mu_rpc_output(&p.client.rpc)), 0);
    mu_rpc_sent(&p.client.rpc, mu_rpc_output(&p.client.rpc).len);
    rpc_pair_ms(&p, 5000);
    assert_int_equal(mu_rpc_tick(&p.client.rpc, p.now), 0); /* a PING */
    assert_int_equal(mu_buf_append(ret_bytes, mu_rpc_output(&p.client.rpc)), 0);
    rpc_pair_fini(&p);
}

/* A server that was greeted; its WELCOME has left. */
static void start_server(struct rpc_pair *p)
{
    rpc_pair_init(p, NULL, NULL);
    p->on_event = serve;
    assert_int_equal(rpc_pair_link(p), 0);
    rpc_pair_pump(p);
    assert_true(mu_rpc_linked(&p->server.rpc));
}

/* Feeds in chunks (0: random ones) and collects what comes out, at the end, in chunks. */
static void replay(struct mu_span in, size_t chunk, size_t drain, struct mu_buf *out)
{
    struct mu_prng prng;
    struct rpc_pair p;
    size_t at = 0;

    mu_prng_seed(&prng, 7);
    start_server(&p);
    while (at < in.len) {
        size_t n = chunk != 0 ? chunk : 1 + mu_prng_below(&prng, 200);
        size_t end = at + (n < in.len - at ? n : in.len - at);

        while (at < end) {
            at += rpc_pair_feed(&p, &p.server, mu_span(in.data + at, end - at));
            assert_int_equal(p.server.error, 0);
            rpc_pair_events(&p, &p.server);
        }
    }
    while (mu_rpc_output(&p.server.rpc).len != 0) {
        struct mu_span s = mu_rpc_output(&p.server.rpc);

        s.len = drain != 0 && s.len > drain ? drain : s.len;
        assert_int_equal(mu_buf_append(out, s), 0);
        mu_rpc_sent(&p.server.rpc, s.len);
    }
    rpc_pair_fini(&p);
}

static void test_rpc_output_does_not_depend_on_how_bytes_are_split_or_drained(void **state)
{
    const size_t chunks[][2] = {{1, 0}, {2, 1}, {23, 0}, {24, 7}, {25, 0}, {0, 1}, {0, 100}};
    struct mu_buf in;
    struct mu_buf expected;

    (void)state;
    mu_buf_init(&in, 1 << 20);
    mu_buf_init(&expected, 1 << 20);
    record(&in);
    replay(mu_buf_span(&in), in.len, 0, &expected);
    assert_true(expected.len > 9000);
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        struct mu_buf out;

        mu_buf_init(&out, 1 << 20);
        replay(mu_buf_span(&in), chunks[i][0], chunks[i][1], &out);
        assert_int_equal(out.len, expected.len);
        assert_memory_equal(mu_buf_span(&out).data, mu_buf_span(&expected).data, out.len);
        mu_buf_fini(&out);
    }
    mu_buf_fini(&in);
    mu_buf_fini(&expected);
}

/* --- violations ----------------------------------------------------- */

struct frame {
    uint8_t type;
    uint64_t id;
    uint64_t ack;
    const char *payload;
    size_t len;
};

#define FRAME(type, id, payload)                                                                   \
    {                                                                                              \
        MU_RPC_##type, id, 0, payload, sizeof(payload) - 1                                         \
    }
#define CALL_M                                                                                     \
    "\0\0\0\0\0\0\0\0"                                                                             \
    "\0\0\1\0\0\0\0\0"                                                                             \
    "\1m"

static const struct violation {
    const char *what;
    struct frame frames[4];
    int code;
} violations[] = {
    {"an unknown type", {{99, 0, 0, "", 0}}, MUSTER_EPROTO},
    {"a second HELLO", {FRAME(HELLO, 0, "aaaa")}, MUSTER_EPROTO},
    {"a WELCOME from a client", {FRAME(WELCOME, 0, "aaaa")}, MUSTER_EPROTO},
    {"a short PING", {FRAME(PING, 0, "1234567")}, MUSTER_EPROTO},
    {"a BYE for a call", {FRAME(BYE, 1, "")}, MUSTER_EPROTO},
    {"a CALL without an id", {FRAME(CALL, 0, CALL_M)}, MUSTER_EPROTO},
    {"a CALL with our id", {FRAME(CALL, 2, CALL_M)}, MUSTER_EPROTO},
    {"a CALL that skips an id", {FRAME(CALL, 3, CALL_M)}, MUSTER_EPROTO},
    {"the same CALL twice", {FRAME(CALL, 1, CALL_M), FRAME(CALL, 1, CALL_M)}, MUSTER_EPROTO},
    {"a CALL without a method", {FRAME(CALL, 1, "aaaaaaaabbbbbbbb\0x")}, MUSTER_EPROTO},
    {"an ITEM without a call", {FRAME(ITEM, 1, "")}, MUSTER_EPROTO},
    {"an ITEM for a call we never made", {FRAME(ITEM, 2, "")}, MUSTER_EPROTO},
    {"a REPLY to a call we never made", {FRAME(REPLY, 2, "\0\0\0\0")}, MUSTER_EPROTO},
    {"a REPLY to its own call",
     {FRAME(CALL, 1, CALL_M), FRAME(REPLY, 1, "\0\0\0\0")},
     MUSTER_EPROTO},
    {"an END without a call", {FRAME(END, 1, "")}, MUSTER_EPROTO},
    {"two ENDs", {FRAME(CALL, 1, CALL_M), FRAME(END, 1, ""), FRAME(END, 1, "")}, MUSTER_EPROTO},
    {"an ITEM behind the END",
     {FRAME(CALL, 1, CALL_M), FRAME(END, 1, ""), FRAME(ITEM, 1, "x")},
     MUSTER_EPROTO},
    {"two CANCELs",
     {FRAME(CALL, 1, CALL_M), FRAME(CANCEL, 1, ""), FRAME(CANCEL, 1, "")},
     MUSTER_EPROTO},
    {"an ITEM behind the CANCEL",
     {FRAME(CALL, 1, CALL_M), FRAME(CANCEL, 1, ""), FRAME(ITEM, 1, "x")},
     MUSTER_EPROTO},
    {"CREDIT for a call that never was", {FRAME(CREDIT, 1, "12345678")}, MUSTER_EPROTO},
    {"CREDIT for our own call", {FRAME(CREDIT, 2, "12345678")}, MUSTER_EPROTO},
    {"an ack of what was not sent", {{MU_RPC_ACK, 0, 1, "", 0}}, MUSTER_EPROTO},
    {"an ack of 2^64 - 1", {{MU_RPC_ACK, 0, UINT64_MAX, "", 0}}, MUSTER_EPROTO},
};

static void ignore(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    (void)p;
    (void)at;
    (void)ev;
}

static int send_frame(struct rpc_pair *p, const struct frame *f)
{
    struct mu_rpc_header h = {.len = (uint32_t)f->len, .type = f->type, .id = f->id, .ack = f->ack};
    uint8_t bytes[MU_RPC_HEADER + 64];
    size_t used = 0;
    int err;

    mu_rpc_header_encode(bytes, &h);
    memcpy(bytes + MU_RPC_HEADER, f->payload, f->len);
    err = mu_rpc_recv(&p->server.rpc, p->now, mu_span(bytes, MU_RPC_HEADER + f->len), &used);
    if (err == 0) {
        assert_int_equal(used, MU_RPC_HEADER + f->len);
        rpc_pair_events(p, &p->server);
    }
    return err;
}

static void check_poisoned(struct rpc_pair *p, int code, const char *what)
{
    struct mu_span out = mu_rpc_output(&p->server.rpc);
    struct frame innocent = FRAME(PING, 0, "12345678");
    uint64_t id;

    if (strlen(mu_rpc_errmsg(&p->server.rpc)) == 0) {
        fail_msg("%s: no text", what);
    }
    assert_int_equal(send_frame(p, &innocent), code);
    assert_int_equal(mu_rpc_tick(&p->server.rpc, p->now), code);
    assert_int_equal(
        mu_rpc_call(&p->server.rpc, p->now, MU_SPAN_LIT("m"), (struct mu_span){0}, 0, 0, &id),
        code);
    /* The peer is told, in the last frame. */
    while (out.len > MU_RPC_HEADER && out.data[4] != MU_RPC_REFUSE) {
        out = mu_span_skip(out, MU_RPC_HEADER + mu_get_u32(out.data));
    }
    assert_true(out.len > MU_RPC_HEADER + 4);
    assert_int_equal(out.data[4], MU_RPC_REFUSE);
    assert_int_equal((int32_t)mu_get_u32(out.data + MU_RPC_HEADER), code);
}

static void test_rpc_violation_poisons_the_session_and_tells_the_peer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(violations) / sizeof(violations[0]); i++) {
        const struct violation *v = &violations[i];
        struct rpc_pair p;
        int err = 0;

        start_server(&p);
        p.on_event = ignore;
        for (size_t k = 0; k < 4 && err == 0 && v->frames[k].payload != NULL; k++) {
            err = send_frame(&p, &v->frames[k]);
        }
        if (err != v->code) {
            fail_msg("%s: %s instead of %s", v->what, muster_errname(err), muster_errname(v->code));
        }
        check_poisoned(&p, v->code, v->what);
        rpc_pair_fini(&p);
    }
}

static void test_rpc_long_frame_is_refused_by_its_header_alone(void **state)
{
    struct mu_rpc_header h = {.len = (64u << 20) + 1, .type = MU_RPC_CALL, .id = 1};
    uint8_t bytes[MU_RPC_HEADER];
    struct rpc_pair p;
    size_t memory;
    size_t used;

    (void)state;
    start_server(&p);
    memory = mu_rpc_memory(&p.server.rpc);
    mu_rpc_header_encode(bytes, &h);
    assert_int_equal(mu_rpc_recv(&p.server.rpc, p.now, mu_span(bytes, sizeof(bytes)), &used),
                     MUSTER_ELIMIT);
    assert_true(mu_rpc_memory(&p.server.rpc) <= memory + 512);
    rpc_pair_fini(&p);
}

static void test_rpc_announced_frame_takes_memory_only_as_it_arrives(void **state)
{
    struct mu_rpc_header h = {.len = 64u << 20, .type = MU_RPC_CALL, .id = 1};
    uint8_t bytes[MU_RPC_HEADER + 100] = {0};
    struct rpc_pair p;
    size_t used;

    (void)state;
    start_server(&p);
    mu_rpc_header_encode(bytes, &h);
    assert_int_equal(mu_rpc_recv(&p.server.rpc, p.now, mu_span(bytes, sizeof(bytes)), &used), 0);
    assert_true(mu_rpc_memory(&p.server.rpc) < 8192);
    rpc_pair_fini(&p);
}

static void test_rpc_calls_beyond_the_credit_are_a_violation(void **state)
{
    struct frame f = FRAME(CALL, 1, CALL_M);
    struct mu_rpc_config server = mu_rpc_config_defaults();
    struct rpc_pair p;
    int err = 0;
    size_t sent = 0;

    (void)state;
    server.call_window_bytes = MU_RPC_CREDIT_MIN;
    server.calls_max = 1;
    rpc_pair_init(&p, NULL, &server);
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    while (err == 0) {
        err = send_frame(&p, &f);
        f.id += 2;
        sent += err == 0 ? MU_RPC_HEADER + f.len : 0;
    }
    assert_int_equal(err, MUSTER_EWINDOW);
    assert_in_range(sent, MU_RPC_CREDIT_MIN, MU_RPC_CREDIT_MIN + MU_RPC_HEADER + f.len);
    check_poisoned(&p, MUSTER_EWINDOW, "credit");
    rpc_pair_fini(&p);
}

/* Empty items cost their header, so that they cannot pile up behind a call that waits. */
static void test_rpc_empty_items_are_counted(void **state)
{
    struct frame call = FRAME(CALL, 1, CALL_M);
    struct frame item = FRAME(ITEM, 3, "");
    struct mu_rpc_config server = mu_rpc_config_defaults();
    struct rpc_pair p;
    size_t items = 0;
    int err = 0;

    (void)state;
    server.call_window_bytes = MU_RPC_CREDIT_MIN;
    server.calls_max = 1;
    rpc_pair_init(&p, NULL, &server);
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    assert_int_equal(send_frame(&p, &call), 0);
    call.id = 3;
    assert_int_equal(send_frame(&p, &call), 0);
    while (err == 0) {
        err = send_frame(&p, &item);
        items++;
    }
    assert_int_equal(err, MUSTER_EWINDOW);
    assert_true(items <= MU_RPC_CREDIT_MIN / MU_RPC_HEADER + 1);
    rpc_pair_fini(&p);
}

/* A caller that starts and cancels while it reads nothing: its credit runs out, not our memory. */
static void test_rpc_replies_that_nobody_reads_stop_the_credit(void **state)
{
    struct frame call = FRAME(CALL, 1, CALL_M);
    struct frame cancel = FRAME(CANCEL, 1, "");
    struct mu_rpc_config server = mu_rpc_config_defaults();
    struct rpc_pair p;
    int err = 0;

    (void)state;
    server.call_window_bytes = MU_RPC_CREDIT_MIN;
    server.output_bytes_high = 4096;
    rpc_pair_init(&p, NULL, &server);
    p.on_event = serve;
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    for (int i = 0; i < 100000 && err == 0; i++) {
        err = send_frame(&p, &call);
        err = err == 0 ? send_frame(&p, &cancel) : err;
        call.id += 2;
        cancel.id += 2;
    }
    assert_int_equal(err, MUSTER_EWINDOW);
    assert_true(mu_rpc_memory(&p.server.rpc) < 1 << 20);
    rpc_pair_fini(&p);
}

static void test_rpc_garbage_is_an_error_or_nothing(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 42);
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[256];
        struct rpc_pair p;
        size_t n = 1 + mu_prng_below(&prng, sizeof(bytes));

        start_server(&p);
        for (size_t i = 0; i < n; i++) {
            /* Small numbers are more often what a frame could be. */
            bytes[i] = (uint8_t)mu_prng_below(&prng, (round & 1) != 0 ? 256 : 22);
        }
        if ((round & 2) != 0) {
            bytes[1] = bytes[2] = bytes[3] = bytes[5] = bytes[6] = bytes[7] = 0;
            memset(bytes + 8, 0, 8);
            memset(bytes + 17, 0, 7);
        }
        mu_buf_reset(&p.server.wire);
        assert_int_equal(mu_buf_append(&p.server.wire, mu_span(bytes, n)), 0);
        (void)rpc_pair_receive(&p, &p.server);
        assert_true(mu_rpc_memory(&p.server.rpc) < 1 << 20);
        rpc_pair_fini(&p);
    }
}

/* --- no memory -------------------------------------------------------- */

/* Tries again, with memory, what found none; everything else must work. */
#define WITH_MEMORY(expression)                                                                    \
    do {                                                                                           \
        int with_memory_err = (expression);                                                        \
        if (with_memory_err == MUSTER_ENOMEM) {                                                    \
            failheap_disarm();                                                                     \
            with_memory_err = (expression);                                                        \
        }                                                                                          \
        assert_int_equal(with_memory_err, 0);                                                      \
    } while (0)

struct tally {
    unsigned calls;
    unsigned replies;
    unsigned items;
};

static void serve_with_memory(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct tally *t = p->context;

    if (ev->type == MU_RPC_EV_CALL) {
        t->calls++;
        if (mu_span_eq(ev->method, MU_SPAN_LIT("echo"))) {
            WITH_MEMORY(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, ev->payload));
        }
    } else if (ev->type == MU_RPC_EV_ITEM) {
        t->items++;
        WITH_MEMORY(mu_rpc_consumed(&at->rpc, p->now, ev->id, ev->payload.len));
    } else if (ev->type == MU_RPC_EV_END) {
        WITH_MEMORY(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, MU_SPAN_LIT("end")));
    } else if (ev->type == MU_RPC_EV_REPLY) {
        t->replies++;
    }
}

static void converse(struct rpc_pair *p)
{
    static uint8_t big[3000];
    uint64_t id;

    WITH_MEMORY(mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("echo"), mu_span(big, sizeof(big)),
                            1000, 0, &id));
    WITH_MEMORY(rpc_pair_link(p));
    rpc_pair_pump(p);
    WITH_MEMORY(
        mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("stream"), (struct mu_span){0}, 0, 0, &id));
    WITH_MEMORY(
        mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("echo"), (struct mu_span){0}, 0, 0, &id));
    WITH_MEMORY(mu_rpc_item(&p->client.rpc, p->now, id - 2, MU_SPAN_LIT("item")));
    WITH_MEMORY(mu_rpc_end(&p->client.rpc, p->now, id - 2));
    rpc_pair_pump(p);
    WITH_MEMORY(
        mu_rpc_call(&p->server.rpc, p->now, MU_SPAN_LIT("echo"), (struct mu_span){0}, 0, 0, &id));
    rpc_pair_cut(p);
    WITH_MEMORY(rpc_pair_link(p));
    rpc_pair_pump(p);
    WITH_MEMORY(mu_rpc_drain(&p->server.rpc, p->now, "why"));
    WITH_MEMORY(mu_rpc_close(&p->client.rpc, p->now));
    rpc_pair_pump(p);
}

static void test_rpc_loses_nothing_when_any_one_allocation_fails(void **state)
{
    struct mu_rpc_config server = mu_rpc_config_defaults();
    bool fired = true;

    (void)state;
    server.calls_max = 1; /* so that frames are held as well */
    for (long nth = 0; fired; nth++) {
        struct tally t = {0};
        struct rpc_pair p;

        rpc_pair_init(&p, NULL, &server);
        p.context = &t;
        p.on_event = serve_with_memory;
        p.on_nomem = failheap_disarm;
        p.recv_chunk = nth % 2 == 0 ? 0 : 7;
        assert_int_equal(mu_buf_reserve(&p.client.wire, 1 << 16), 0);
        assert_int_equal(mu_buf_reserve(&p.server.wire, 1 << 16), 0);
        failheap_arm(nth);
        converse(&p);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(p.client.error, 0);
        assert_int_equal(p.server.error, 0);
        assert_int_equal(t.calls, 4);
        assert_int_equal(t.replies, 4);
        assert_int_equal(t.items, 1);
        rpc_pair_fini(&p);
        assert_true(nth < 200);
    }
}

/* What the client hears, and a server that leaves its calls alone. */
struct ear {
    uint64_t id; /* of the last call at the server */
    size_t items;
    size_t replies;
    size_t credits; /* at the server */
    int status;
};

static void listen_in(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct ear *ear = p->context;

    if (at == &p->server) {
        ear->id = ev->type == MU_RPC_EV_CALL ? ev->id : ear->id;
        ear->credits += ev->type == MU_RPC_EV_CREDIT ? 1 : 0;
    } else if (ev->type == MU_RPC_EV_ITEM) {
        ear->items++;
    } else if (ev->type == MU_RPC_EV_REPLY) {
        ear->replies++;
        ear->status = ev->status;
    }
}

static void begin_call(struct rpc_pair *p, struct ear *ear, const struct mu_rpc_config *client)
{
    uint64_t id;

    *ear = (struct ear){0};
    rpc_pair_init(p, client, NULL);
    p->context = ear;
    p->on_event = listen_in;
    assert_int_equal(rpc_pair_link(p), 0);
    rpc_pair_pump(p);
    assert_int_equal(
        mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("x"), (struct mu_span){0}, 0, 0, &id), 0);
    rpc_pair_pump(p);
    assert_int_equal(ear->id, id);
}

/* Sends items until there is no memory for another; returns how many. There is none afterwards. */
static size_t fill(struct rpc_pair *p, struct rpc_end *at, uint64_t id)
{
    size_t count = 0;
    int err;

    failheap_arm(0);
    while ((err = mu_rpc_item(&at->rpc, p->now, id, (struct mu_span){0})) == 0) {
        count++;
    }
    assert_int_equal(err, MUSTER_ENOMEM);
    return count;
}

static void test_rpc_call_that_finds_no_memory_fails_when_there_is_some(void **state)
{
    struct rpc_pair p;
    struct ear ear;
    size_t sent;

    (void)state;
    begin_call(&p, &ear, NULL);
    sent = fill(&p, &p.server, ear.id);
    mu_rpc_fail(&p.server.rpc, p.now, ear.id, MUSTER_ENOMEM);
    failheap_disarm();

    /* To the callee it has ended; nobody overtakes the bad news, which is told by itself. */
    assert_int_equal(mu_rpc_item(&p.server.rpc, p.now, ear.id, MU_SPAN_LIT("two")),
                     MUSTER_ECANCELED);
    assert_int_equal(mu_rpc_reply(&p.server.rpc, p.now, ear.id, 0, (struct mu_span){0}),
                     MUSTER_ENOENT);
    mu_rpc_fail(&p.server.rpc, p.now, ear.id, MUSTER_EINVAL);
    p.now.mono = mu_rpc_deadline(&p.server.rpc);
    assert_int_equal(mu_rpc_tick(&p.server.rpc, p.now), 0);
    rpc_pair_pump(&p);
    assert_int_equal(ear.items, sent);
    assert_int_equal(ear.replies, 1);
    assert_int_equal(ear.status, MUSTER_ENOMEM);
    assert_int_equal(mu_rpc_calls_in(&p.server.rpc), 0);
    assert_int_equal(mu_rpc_calls_out(&p.client.rpc), 0);
    rpc_pair_fini(&p);
}

static void test_rpc_call_that_failed_without_memory_ends_with_its_session(void **state)
{
    struct rpc_pair p;
    struct ear ear;

    (void)state;
    begin_call(&p, &ear, NULL);
    (void)fill(&p, &p.server, ear.id);
    mu_rpc_fail(&p.server.rpc, p.now, ear.id, MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(mu_rpc_calls_in(&p.server.rpc), 1);
    assert_int_equal(mu_rpc_close(&p.client.rpc, p.now), 0);
    rpc_pair_pump(&p);
    assert_int_equal(mu_rpc_calls_in(&p.server.rpc), 0);
    assert_true(mu_rpc_deadline(&p.server.rpc).ns == MU_MONO_NEVER.ns);
    rpc_pair_fini(&p);
}

static void test_rpc_credit_that_found_no_memory_is_given_later(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    static uint8_t chunk[1000];
    struct rpc_pair p;
    struct ear ear;
    size_t sent = 0;

    (void)state;
    client.item_window_bytes = 2 * (sizeof(chunk) + MU_RPC_HEADER);
    begin_call(&p, &ear, &client);
    while (mu_rpc_item(&p.server.rpc, p.now, ear.id, mu_span(chunk, sizeof(chunk))) == 0) {
        sent++;
    }
    rpc_pair_pump(&p);
    assert_int_equal(ear.items, sent);
    (void)fill(&p, &p.client, ear.id);
    assert_int_equal(mu_rpc_consumed(&p.client.rpc, p.now, ear.id, sent * sizeof(chunk)), 0);
    failheap_disarm();
    assert_true(p.client.rpc.items_owed);

    assert_int_equal(mu_rpc_tick(&p.client.rpc, p.now), 0);
    assert_false(p.client.rpc.items_owed);
    rpc_pair_pump(&p);
    assert_int_equal(ear.credits, 1);
    rpc_pair_fini(&p);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void on_call_reply_long(struct rpc_pair *p, struct rpc_end *at,
                               const struct mu_rpc_event *ev)
{
    static const uint8_t bytes[2000];
    int *replies = p->context;

    if (ev->type == MU_RPC_EV_CALL) {
        assert_int_equal(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, mu_span(bytes, 2000)),
                         MUSTER_ELIMIT);
        assert_int_equal(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, mu_span(bytes, 100)), 0);
    }
    if (ev->type == MU_RPC_EV_REPLY) {
        assert_int_equal(ev->payload.len, 100);
        ++*replies;
    }
}

/* What is kept for sending, until the other end has said that it is there, is so much. */
static void test_rpc_keeps_so_many_bytes_for_sending(void **state)
{
    static const uint8_t bytes[2000];
    struct mu_rpc_config config = mu_rpc_config_defaults();
    struct rpc_pair p;
    int replies = 0;
    uint64_t id;

    (void)state;
    config.output_bytes_max = 1500;
    rpc_pair_init(&p, &config, &config);
    p.on_event = on_call_reply_long;
    p.context = &replies;
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    assert_int_equal(
        mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("m"), mu_span(bytes, 2000), 0, 0, &id),
        MUSTER_ELIMIT); /* It will never fit. */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("m"), mu_span(bytes, 800), 0, 0, &id), 0);
        assert_int_equal(
            mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("m"), mu_span(bytes, 800), 0, 0, &id),
            MUSTER_EAGAIN); /* It will when the first has gone. */
        rpc_pair_pump(&p);
        rpc_pair_ms(&p, 10000);
        mu_rpc_tick(&p.client.rpc, p.now);
        mu_rpc_tick(&p.server.rpc, p.now);
        rpc_pair_pump(&p);
    }
    assert_int_equal(replies, 3);
    rpc_pair_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_output_does_not_depend_on_how_bytes_are_split_or_drained),
        cmocka_unit_test(test_rpc_violation_poisons_the_session_and_tells_the_peer),
        cmocka_unit_test(test_rpc_long_frame_is_refused_by_its_header_alone),
        cmocka_unit_test(test_rpc_announced_frame_takes_memory_only_as_it_arrives),
        cmocka_unit_test(test_rpc_calls_beyond_the_credit_are_a_violation),
        cmocka_unit_test(test_rpc_empty_items_are_counted),
        cmocka_unit_test(test_rpc_replies_that_nobody_reads_stop_the_credit),
        cmocka_unit_test(test_rpc_garbage_is_an_error_or_nothing),
        cmocka_unit_test(test_rpc_loses_nothing_when_any_one_allocation_fails),
        cmocka_unit_test(test_rpc_call_that_finds_no_memory_fails_when_there_is_some),
        cmocka_unit_test(test_rpc_call_that_failed_without_memory_ends_with_its_session),
        cmocka_unit_test(test_rpc_credit_that_found_no_memory_is_given_later),
        cmocka_unit_test(test_rpc_keeps_so_many_bytes_for_sending),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
