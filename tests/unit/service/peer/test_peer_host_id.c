/* What hosts say of themselves, and what they believe: addresses with a signature. */
#include "peer_rig.h"

#include "codec/peer/identify.h"
#include "crypto/envelope.h"
#include "crypto/peer_record.h"

static const struct mu_span identify_names[] = {
    {(const uint8_t *)MU_PEER_IDENTIFY_NAME, sizeof(MU_PEER_IDENTIFY_NAME) - 1}};

/* --- to ask ----------------------------------------------------------------------------------- */

/* One that asks by hand, and keeps what it hears. */
struct asking {
    struct rig_node *from;
    struct rig_node *to;
    struct mu_host_stream stream;
    struct mu_identify_in in;
    struct mu_identify id;
    struct mu_peer_record record;
    bool heard;
};

static void ask_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct asking *a = MU_CONTAINER_OF(s, struct asking, stream);

    mu_host_stream_consumed(s, bytes.len);
    assert_int_equal(mu_identify_in_recv(&a->in, bytes), 0);
}

static void ask_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct asking *a = MU_CONTAINER_OF(s, struct asking, stream);
    struct mu_span bytes;

    (void)text;
    assert_int_equal(status, 0);
    assert_int_equal(mu_identify_in_end(&a->in, &bytes), 0);
    assert_int_equal(mu_identify_decode(bytes, &a->id), 0);
    assert_int_equal(mu_peer_record_open(a->id.signed_record, &a->record), 0);
    a->heard = true;
}

static const struct mu_host_stream_events ask_events = {.data = ask_data, .ended = ask_ended};

static void ask_inside(void *arg)
{
    struct asking *a = arg;

    mu_identify_in_init(&a->in);
    a->stream.on = &ask_events;
    mu_host_stream_open(a->from->host, &a->stream, &a->to->identity.id, identify_names, 1);
    mu_host_stream_end(&a->stream);
}

static void ask(struct rig *r, struct asking *a)
{
    a->heard = false;
    mu_sim_call(a->from->proc, ask_inside, a);
    rig_run(r, 1000);
    assert_true(a->heard);
}

static void forget_inside(void *arg)
{
    mu_identify_in_fini(&((struct asking *)arg)->in);
}

static void announce_inside(void *arg)
{
    struct mu_errmsg msg;

    assert_int_equal(
        mu_peer_host_announce(((struct rig_node *)arg)->host, "/ip4/203.0.113.7/tcp/4001", &msg),
        0);
}

static void assert_only_addr(const struct mu_peer_record *record, const char *text)
{
    char found[MU_MULTIADDR_TEXT_MAX];
    struct mu_span walk = record->addrs;
    struct mu_span addr;

    assert_true(mu_peer_record_next_addr(&walk, &addr));
    assert_string_equal(mu_multiaddr_format(addr, found, sizeof(found)), text);
    assert_false(mu_peer_record_next_addr(&walk, &addr));
}

static void test_peer_host_signs_what_it_says_of_its_addresses(void **unused)
{
    struct rig r;
    struct asking a;
    uint64_t seq;

    (void)unused;
    rig_open(&r, 2, NULL);
    a = (struct asking){.from = &r.node[0], .to = &r.node[1]};
    rig_run_all(&r);
    rig_introduce(&r.node[0], &r.node[1]);
    ask(&r, &a);
    assert_true(mu_peer_id_eq(&a.record.peer, &r.node[1].identity.id));
    assert_only_addr(&a.record, "/dns/b/tcp/4001");
    seq = a.record.seq;
    mu_sim_call(a.from->proc, forget_inside, &a);
    /* The same again is the same record: it is not signed for each who asks. */
    ask(&r, &a);
    assert_int_equal(a.record.seq, seq);
    mu_sim_call(a.from->proc, forget_inside, &a);
    mu_sim_call(r.node[1].proc, announce_inside, &r.node[1]);
    ask(&r, &a);
    assert_only_addr(&a.record, "/ip4/203.0.113.7/tcp/4001");
    assert_true(a.record.seq > seq);
    mu_sim_call(a.from->proc, forget_inside, &a);
    rig_close(&r);
}

/* --- to tell ---------------------------------------------------------------------------------- */

/* One that says of itself what it likes. */
struct telling {
    struct rig_node *node;
    struct mu_peer_handler handler;
    struct mu_host_stream stream;
    struct mu_buf out;
};

static void tell_more(struct mu_host_stream *s)
{
    struct telling *t = MU_CONTAINER_OF(s, struct telling, stream);

    assert_int_equal(mu_host_stream_write(s, mu_buf_span(&t->out)), t->out.len);
    mu_host_stream_end(s);
}

static void tell_data(struct mu_host_stream *s, struct mu_span bytes)
{
    mu_host_stream_consumed(s, bytes.len);
}

static void tell_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)s;
    (void)status;
    (void)text;
}

static const struct mu_host_stream_events tell_events = {
    .data = tell_data, .writable = tell_more, .ended = tell_ended};

static struct mu_host_stream *tell_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    struct telling *t = MU_CONTAINER_OF(handler, struct telling, handler);

    (void)peer;
    (void)name;
    t->stream.on = &tell_events;
    return &t->stream;
}

static void tell_inside(void *arg)
{
    struct telling *t = arg;

    t->handler = (struct mu_peer_handler){.name = MU_PEER_IDENTIFY_NAME, .opened = tell_opened};
    assert_int_equal(mu_peer_host_serve(t->node->host, &t->handler), 0);
}

static void put_addr(struct mu_buf *out, const char *text)
{
    struct mu_errmsg msg;

    mu_buf_init(out, MU_MULTIADDR_MAX);
    assert_int_equal(mu_multiaddr_parse(out, text, &msg), 0);
}

/* Says two addresses, one of them in a record that `signer` has signed. */
static void compose(struct mu_buf *out, const struct mu_identity *signer, uint64_t seq, bool broken)
{
    struct mu_buf plain;
    struct mu_buf signed_addr;
    struct mu_buf record;
    struct mu_span plain_span;
    struct mu_span signed_span;
    struct mu_identify_out say = {.addrs = &plain_span, .addr_count = 1};

    put_addr(&plain, "/ip4/192.0.2.1/tcp/1");
    put_addr(&signed_addr, "/ip4/192.0.2.2/tcp/2");
    plain_span = mu_buf_span(&plain);
    signed_span = mu_buf_span(&signed_addr);
    mu_buf_init(&record, MU_PEER_RECORD_MAX);
    assert_int_equal(mu_peer_record_seal(signer, seq, &signed_span, 1, &record), 0);
    record.data[record.len - 1] ^= broken ? 1 : 0;
    say.signed_record = mu_buf_span(&record);
    mu_buf_init(out, 1 << 16);
    assert_int_equal(mu_identify_encode(&say, out), 0);
    mu_buf_fini(&record);
    mu_buf_fini(&signed_addr);
    mu_buf_fini(&plain);
}

static bool has_addr(const struct rig_node *of, const struct rig_node *who, const char *text)
{
    struct mu_span addr;
    char found[MU_MULTIADDR_TEXT_MAX];

    for (size_t i = 0; (addr = mu_peer_host_addr(of->host, &who->identity.id, i)).len != 0; i++) {
        if (strcmp(mu_multiaddr_format(addr, found, sizeof(found)), text) == 0) {
            return true;
        }
    }
    return false;
}

static void test_peer_host_believes_addresses_with_their_peers_signature(void **unused)
{
    enum { TELLER = 0, HEARER = 1, OTHER = 2 };
    static const struct {
        int signer;
        bool broken;
        int why;
    } cases[] = {
        {TELLER, false, 0},
        {TELLER, true, MUSTER_ESIGNATURE},
        {OTHER, false, MUSTER_EPEERID},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig r;
        struct telling t;
        struct rig_call call;
        bool good = cases[i].why == 0;

        rig_open(&r, 3, NULL);
        r.node[TELLER].config.no_identify = true;
        t = (struct telling){.node = &r.node[TELLER]};
        compose(&t.out, &r.node[cases[i].signer].identity, 5, cases[i].broken);
        rig_run_all(&r);
        mu_sim_call(r.node[TELLER].proc, tell_inside, &t);
        rig_introduce(&r.node[HEARER], &r.node[TELLER]);
        rig_call(&r.node[HEARER], &r.node[TELLER], &call, 10);
        rig_run(&r, 2000);
        rig_assert_echoed(&call);
        assert_int_equal(r.node[HEARER].identified, good ? 1 : 0);
        assert_int_equal(rig_stats(&r.node[HEARER]).violations, good ? 0 : 1);
        assert_int_equal(rig_stats(&r.node[HEARER]).last_failure, cases[i].why);
        assert_true(has_addr(&r.node[HEARER], &r.node[TELLER], "/ip4/192.0.2.2/tcp/2") == good);
        assert_false(has_addr(&r.node[HEARER], &r.node[TELLER], "/ip4/192.0.2.1/tcp/1"));
        mu_buf_fini(&t.out);
        rig_close(&r);
    }
}

/* rust-libp2p signs its record with words of its own: the record is passed over, and what came with
 * it counts. */
static void test_peer_host_passes_over_a_record_of_another_kind(void **unused)
{
    static const struct mu_span domain = {(const uint8_t *)"libp2p-routing-state", 20};
    static const struct mu_span type = {(const uint8_t *)"/libp2p/routing-state-record", 28};
    struct mu_identify_out say = {.addr_count = 1};
    struct mu_buf plain;
    struct mu_buf record;
    struct mu_span plain_span;
    struct rig r;
    struct telling t;
    struct rig_call call;

    (void)unused;
    rig_open(&r, 2, NULL);
    r.node[0].config.no_identify = true;
    put_addr(&plain, "/ip4/192.0.2.1/tcp/1");
    plain_span = mu_buf_span(&plain);
    say.addrs = &plain_span;
    mu_buf_init(&record, MU_PEER_RECORD_MAX);
    assert_int_equal(mu_envelope_seal(&r.node[0].identity, domain, type, mu_span("x", 1), &record),
                     0);
    say.signed_record = mu_buf_span(&record);
    t = (struct telling){.node = &r.node[0]};
    mu_buf_init(&t.out, 1 << 16);
    assert_int_equal(mu_identify_encode(&say, &t.out), 0);
    rig_run_all(&r);
    mu_sim_call(r.node[0].proc, tell_inside, &t);
    rig_introduce(&r.node[1], &r.node[0]);
    rig_call(&r.node[1], &r.node[0], &call, 10);
    rig_run(&r, 2000);
    rig_assert_echoed(&call);
    assert_int_equal(r.node[1].identified, 1);
    assert_int_equal(rig_stats(&r.node[1]).violations, 0);
    assert_true(has_addr(&r.node[1], &r.node[0], "/ip4/192.0.2.1/tcp/1"));
    mu_buf_fini(&t.out);
    mu_buf_fini(&record);
    mu_buf_fini(&plain);
    rig_close(&r);
}

/* What is told from another host of this one's own addresses is not dialled. */
static void test_peer_host_believes_no_stranger_about_its_own_host(void **unused)
{
    static const char *const told[] = {"/unix/tmp/x.sock",       "/ip4/127.0.0.1/tcp/22",
                                       "/ip4/0.0.0.0/tcp/22",    "/ip4/169.254.169.254/tcp/80",
                                       "/ip6/::1/tcp/22",        "/ip6/fe80::1/tcp/22",
                                       "/dns4/localhost/tcp/22", "/ip4/192.0.2.9/tcp/22"};
    enum { COUNT = sizeof(told) / sizeof(told[0]) };
    struct mu_span spans[COUNT];
    struct mu_buf addrs[COUNT];
    struct rig r;
    struct telling t;
    struct rig_call call;

    (void)unused;
    for (size_t i = 0; i < COUNT; i++) {
        put_addr(&addrs[i], told[i]);
        spans[i] = mu_buf_span(&addrs[i]);
    }
    rig_open(&r, 2, NULL);
    r.node[0].config.no_identify = true;
    t = (struct telling){.node = &r.node[0]};
    mu_buf_init(&t.out, 1 << 16);
    assert_int_equal(
        mu_identify_encode(&(struct mu_identify_out){.addrs = spans, .addr_count = COUNT}, &t.out),
        0);
    rig_run_all(&r);
    mu_sim_call(r.node[0].proc, tell_inside, &t);
    rig_introduce(&r.node[1], &r.node[0]);
    rig_call(&r.node[1], &r.node[0], &call, 10);
    rig_run(&r, 2000);
    assert_int_equal(r.node[1].identified, 1);
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(has_addr(&r.node[1], &r.node[0], told[i]), i == COUNT - 1);
        mu_buf_fini(&addrs[i]);
    }
    mu_buf_fini(&t.out);
    rig_close(&r);
}

static void disconnect_inside(void *arg)
{
    struct rig_pair *p = arg;

    mu_peer_host_disconnect(p->of->host, &p->who->identity.id);
}

static void test_peer_host_does_not_go_back_to_an_older_record(void **unused)
{
    struct rig r;
    struct telling t;
    struct rig_call call;
    struct mu_buf older;
    struct mu_buf newer;

    (void)unused;
    rig_open(&r, 2, NULL);
    r.node[0].config.no_identify = true;
    compose(&older, &r.node[0].identity, 4, false);
    /* The newer one is without addresses, so that what is learned comes from the older one. */
    mu_buf_init(&newer, MU_PEER_RECORD_MAX);
    assert_int_equal(mu_peer_record_seal(&r.node[0].identity, 5, NULL, 0, &newer), 0);
    t = (struct telling){.node = &r.node[0]};
    mu_buf_init(&t.out, 1 << 16);
    assert_int_equal(
        mu_identify_encode(&(struct mu_identify_out){.signed_record = mu_buf_span(&newer)}, &t.out),
        0);
    rig_run_all(&r);
    mu_sim_call(r.node[0].proc, tell_inside, &t);
    for (size_t i = 0; i < 2; i++) {
        rig_introduce(&r.node[1], &r.node[0]);
        rig_call(&r.node[1], &r.node[0], &call, 10);
        rig_run(&r, 2000);
        rig_assert_echoed(&call);
        mu_sim_call(r.node[1].proc, disconnect_inside, &(struct rig_pair){&r.node[1], &r.node[0]});
        rig_run(&r, 1000);
        mu_buf_reset(&t.out);
        assert_int_equal(mu_buf_append(&t.out, mu_buf_span(&older)), 0);
    }
    assert_int_equal(r.node[1].identified, 2);
    assert_false(has_addr(&r.node[1], &r.node[0], "/ip4/192.0.2.2/tcp/2"));
    mu_buf_fini(&t.out);
    mu_buf_fini(&older);
    mu_buf_fini(&newer);
    rig_close(&r);
}

/* --- without memory --------------------------------------------------------------------------- */

struct meeting {
    struct rig_node *from;
    struct mu_peer_connect connect;
};

static void on_met(struct mu_peer_connect *connect, int status, const char *text)
{
    (void)connect;
    (void)status;
    (void)text;
}

static void meet_inside(void *arg)
{
    struct meeting *m = arg;

    m->connect.done = on_met;
    mu_peer_host_connect(m->from->host, &m->connect);
}

static bool speaks(const struct rig_node *of, const struct rig_node *who)
{
    return mu_peer_host_speaks(of->host, &who->identity.id, RIG_ECHO);
}

/* Whatever it was that there was no memory for, who they are is known in the end. */
static void test_peer_host_asks_again_who_a_peer_is(void **unused)
{
    bool more = true;

    (void)unused;
    for (long nth = 0; more; nth++) {
        struct rig r;
        struct meeting m = {0};

        rig_open(&r, 2, NULL);
        rig_run_all(&r);
        rig_introduce(&r.node[0], &r.node[1]);
        m.from = &r.node[0];
        m.connect.peer = r.node[1].identity.id;
        rig_miss(nth);
        mu_sim_call(m.from->proc, meet_inside, &m);
        rig_run(&r, 20000);
        more = rig_missed();
        if (!mu_peer_host_connected(r.node[0].host, &r.node[1].identity.id)) {
            /* It was the connection that there was no memory for. */
            mu_sim_call(m.from->proc, meet_inside, &m);
            rig_run(&r, 2000);
        }
        assert_true(speaks(&r.node[0], &r.node[1]));
        assert_true(speaks(&r.node[1], &r.node[0]));
        assert_int_equal(rig_stats(&r.node[0]).violations, 0);
        assert_int_equal(rig_stats(&r.node[1]).violations, 0);
        rig_close(&r);
    }
}

struct announcing {
    struct rig_node *node;
    int err;
};

static void try_announce_inside(void *arg)
{
    struct announcing *a = arg;
    struct mu_errmsg msg;

    a->err = mu_peer_host_announce(a->node->host, "/ip4/203.0.113.7/tcp/4001", &msg);
}

/* And so is what has changed. */
static void test_peer_host_tells_again_what_has_changed(void **unused)
{
    bool more = true;
    int told = 0;

    (void)unused;
    for (long nth = 0; more; nth++) {
        struct rig r;
        struct rig_call call;
        struct announcing a = {.node = &r.node[1]};

        rig_open(&r, 2, NULL);
        rig_run_all(&r);
        rig_introduce(&r.node[0], &r.node[1]);
        rig_call(&r.node[0], &r.node[1], &call, 10);
        rig_run(&r, 2000);
        rig_assert_echoed(&call);
        rig_miss(nth);
        mu_sim_call(r.node[1].proc, try_announce_inside, &a);
        /* What was, if not what is. */
        assert_true(mu_peer_host_announced(r.node[1].host, 0).len != 0);
        rig_run(&r, 20000);
        more = rig_missed();
        assert_true(a.err == 0 || a.err == MUSTER_ENOMEM);
        assert_int_equal(has_addr(&r.node[0], &r.node[1], "/ip4/203.0.113.7/tcp/4001"), a.err == 0);
        told += a.err == 0 ? 1 : 0;
        rig_close(&r);
    }
    assert_true(told > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_host_signs_what_it_says_of_its_addresses),
        cmocka_unit_test(test_peer_host_believes_addresses_with_their_peers_signature),
        cmocka_unit_test(test_peer_host_passes_over_a_record_of_another_kind),
        cmocka_unit_test(test_peer_host_believes_no_stranger_about_its_own_host),
        cmocka_unit_test(test_peer_host_does_not_go_back_to_an_older_record),
        cmocka_unit_test(test_peer_host_asks_again_who_a_peer_is),
        cmocka_unit_test(test_peer_host_tells_again_what_has_changed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
