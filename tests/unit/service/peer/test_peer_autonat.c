/* Peers that dial each other back, in the simulator. */
#include "peer_rig.h"
#include "service/peer/autonat.h"

static struct rig r;

struct told {
    size_t reached;
    size_t failed;
    char text[256];
    struct mu_peer_autonat *autonat;
    struct mu_peer_connect connect;
    struct mu_buf addr;
};

static struct told told[RIG_NODES];

#define NODE(i) (&r.node[i])
#define ID(i)   (&r.node[i].identity.id)

static void on_told(void *context, const struct mu_peer_id *by, bool reached, const char *text)
{
    struct told *t = context;

    (void)by;
    t->reached += reached ? 1 : 0;
    t->failed += reached ? 0 : 1;
    (void)snprintf(t->text, sizeof(t->text), "%s", text);
}

static void start_inside(void *arg)
{
    struct rig_node *n = arg;
    struct told *t = &told[n - r.node];
    struct mu_peer_autonat_config config = {.told = on_told, .context = t};

    assert_int_equal(mu_peer_autonat_start(n->host, &config, &t->autonat), 0);
}

static void free_inside(void *arg)
{
    struct rig_node *n = arg;
    struct told *t = &told[n - r.node];

    mu_peer_host_connect_cancel(&t->connect);
    mu_peer_autonat_free(t->autonat);
    mu_buf_fini(&t->addr);
}

static void set_up(size_t count)
{
    memset(told, 0, sizeof(told));
    rig_open(&r, count, NULL);
}

static void run_all(void)
{
    rig_run_all(&r);
    for (size_t i = 0; i < r.count; i++) {
        mu_buf_init(&told[i].addr, MU_MULTIADDR_MAX);
        mu_sim_call(NODE(i)->proc, start_inside, NODE(i));
    }
}

static void tear_down(void)
{
    for (size_t i = 0; i < r.count; i++) {
        mu_sim_call(NODE(i)->proc, free_inside, NODE(i));
    }
    rig_close(&r);
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    (void)connect;
    (void)text;
    assert_int_equal(status, 0);
}

static void connect_inside(void *arg)
{
    struct rig_pair *p = arg;
    struct told *t = &told[p->of - r.node];

    t->connect = (struct mu_peer_connect){.peer = p->who->identity.id, .done = on_connected};
    mu_peer_host_connect(p->of->host, &t->connect);
}

/* Connects a node to another, which it knows where to find. */
static void join(size_t from, size_t to)
{
    rig_introduce(NODE(from), NODE(to));
    mu_sim_call(NODE(from)->proc, connect_inside, &(struct rig_pair){NODE(from), NODE(to)});
}

static void announce_inside(void *arg)
{
    struct mu_errmsg msg;

    assert_int_equal(mu_peer_host_announce(((struct rig_node *)arg)->host, "/dns/b/tcp/5555", &msg),
                     0);
}

static void test_autonat_peer_that_can_be_dialled_is_told_so(void **state)
{
    (void)state;
    set_up(2);
    run_all();
    join(1, 0);
    rig_run(&r, 3000);
    assert_int_equal(told[1].reached, 1);
    assert_int_equal(told[1].failed, 0);
    /* The other was asked likewise, by the one that came. */
    assert_int_equal(told[0].reached, 1);
    tear_down();
}

/* Its port is closed to others: what it announces is not where it listens. */
static void test_autonat_peer_that_cannot_be_dialled_is_told_so(void **state)
{
    (void)state;
    set_up(2);
    NODE(1)->listens = false;
    run_all();
    mu_sim_call(NODE(1)->proc, announce_inside, NODE(1));
    join(1, 0);
    rig_run(&r, 10000);
    assert_int_equal(told[1].reached, 0);
    assert_int_equal(told[1].failed, 1);
    assert_non_null(strstr(told[1].text, "b:5555"));
    tear_down();
}

/* A peer that listens nowhere has nothing to ask. */
static void test_autonat_peer_without_an_address_asks_nobody(void **state)
{
    (void)state;
    set_up(2);
    NODE(1)->listens = false;
    run_all();
    join(1, 0);
    rig_run(&r, 10000);
    assert_int_equal(told[1].reached + told[1].failed, 0);
    tear_down();
}

/* Meets ASKS_MAX of service/peer/autonat.c. */
static void test_autonat_asks_three_peers_at_most(void **state)
{
    (void)state;
    set_up(6);
    NODE(5)->listens = false;
    run_all();
    mu_sim_call(NODE(5)->proc, announce_inside, NODE(5));
    for (size_t i = 0; i < 5; i++) {
        join(5, i);
        rig_run(&r, 5000);
    }
    assert_int_equal(told[5].reached, 0);
    assert_int_equal(told[5].failed, 3);
    tear_down();
}

/* A stream of requests, as a peer that wants to have others scanned would send. */
struct beggar {
    struct mu_host_stream stream;
    struct mu_buf out;
    struct mu_buf in;
    struct rig_node *from;
    struct rig_node *to;
    const char *const *addrs; /* NULL after the last */
    bool ended;
};

static void beg_write(struct mu_host_stream *s)
{
    struct beggar *b = MU_CONTAINER_OF(s, struct beggar, stream);

    mu_buf_consume(&b->out, mu_host_stream_write(s, mu_buf_span(&b->out)));
}

static void beg_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    beg_write(s);
}

static void beg_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct beggar *b = MU_CONTAINER_OF(s, struct beggar, stream);

    assert_int_equal(mu_buf_append(&b->in, bytes), 0);
    mu_host_stream_consumed(s, bytes.len);
    mu_host_stream_end(s);
}

static void beg_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    MU_CONTAINER_OF(s, struct beggar, stream)->ended = true;
}

static const struct mu_host_stream_events beg_events = {
    .ready = beg_ready, .data = beg_data, .writable = beg_write, .ended = beg_ended};

static void beg_inside(void *arg)
{
    static const struct mu_span name = {(const uint8_t *)MU_AUTONAT_NAME,
                                        sizeof(MU_AUTONAT_NAME) - 1};
    struct beggar *b = arg;
    struct mu_errmsg msg;
    struct mu_buf addrs[8];
    struct mu_span spans[8] = {{0}};
    size_t count = 0;

    for (; b->addrs[count] != NULL; count++) {
        mu_buf_init(&addrs[count], MU_MULTIADDR_MAX);
        assert_int_equal(mu_multiaddr_parse(&addrs[count], b->addrs[count], &msg), 0);
        spans[count] = mu_buf_span(&addrs[count]);
    }
    assert_int_equal(mu_autonat_ask(&b->from->identity.id, spans, count, &b->out), 0);
    while (count-- > 0) {
        mu_buf_fini(&addrs[count]);
    }
    b->stream.on = &beg_events;
    mu_host_stream_open(b->from->host, &b->stream, &b->to->identity.id, &name, 1);
}

/* Returns the status of the answer. */
static uint32_t beg_for(struct rig_node *from, struct rig_node *to, const char *const *addrs,
                        uint64_t ms)
{
    struct beggar b = {.from = from, .to = to, .addrs = addrs};
    struct mu_autonat_msg msg = {0};

    mu_buf_init(&b.out, 8192);
    mu_buf_init(&b.in, 8192);
    mu_sim_call(from->proc, beg_inside, &b);
    rig_run(&r, ms);
    assert_true(b.ended && b.in.len > 1);
    assert_int_equal(mu_autonat_msg_decode(mu_span_skip(mu_buf_span(&b.in), 1), &msg), 0);
    assert_true(msg.response);
    mu_buf_fini(&b.out);
    mu_buf_fini(&b.in);
    return msg.status;
}

static uint32_t beg(struct rig_node *from, struct rig_node *to, const char *addr)
{
    return beg_for(from, to, (const char *const[]){addr, NULL}, 8000);
}

static void test_autonat_dials_none_but_the_peer_that_asks(void **state)
{
    (void)state;
    set_up(3);
    NODE(1)->listens = false;
    run_all();
    rig_introduce(NODE(1), NODE(0));
    /* Node 2 is there and listens, but it is not where the request comes from. */
    assert_int_equal(beg(NODE(1), NODE(0), "/dns/c/tcp/4001"), MU_AUTONAT_DIAL_ERROR);
    assert_int_equal(NODE(2)->connected, 0);
    /* A socket of the asked host is no address either. */
    assert_int_equal(beg(NODE(1), NODE(0), "/unix/tmp/socket"), MU_AUTONAT_DIAL_REFUSED);
    tear_down();
}

/* Meets PORTS_MAX of service/peer/autonat.c. */
static void test_autonat_dials_four_ports_at_most(void **state)
{
    const char *const last[] = {"/dns/b/tcp/1", "/dns/b/tcp/2",    "/dns/b/tcp/1",
                                "/dns/b/tcp/3", "/dns/b/tcp/4001", NULL};
    const char *const beyond[] = {"/dns/b/tcp/1", "/dns/b/tcp/2",    "/dns/b/tcp/3",
                                  "/dns/b/tcp/4", "/dns/b/tcp/4001", NULL};

    (void)state;
    set_up(2);
    run_all();
    rig_introduce(NODE(1), NODE(0));
    assert_int_equal(beg_for(NODE(1), NODE(0), last, 8000), MU_AUTONAT_OK);
    assert_int_equal(beg_for(NODE(1), NODE(0), beyond, 8000), MU_AUTONAT_DIAL_ERROR);
    tear_down();
}

/* Meets BACKS_MAX of service/peer/autonat.c. */
static void test_autonat_dials_thirty_times_in_a_minute(void **state)
{
    size_t dialled = 0;
    size_t refused = 0;

    (void)state;
    set_up(14);
    run_all();
    for (size_t i = 1; i < 14; i++) {
        char addr[32];

        (void)snprintf(addr, sizeof(addr), "/dns/%s/tcp/4001", NODE(i)->name);
        rig_introduce(NODE(i), NODE(0));
        for (size_t k = 0; k < 2; k++) {
            uint32_t status = beg_for(NODE(i), NODE(0), (const char *const[]){addr, NULL}, 1000);

            dialled += status == MU_AUTONAT_OK;
            refused += status == MU_AUTONAT_DIAL_REFUSED;
        }
        dialled += told[i].reached; /* each has asked once by itself */
    }
    assert_int_equal(dialled, 30);
    assert_true(refused >= 6);
    rig_run(&r, 60000);
    assert_int_equal(beg(NODE(1), NODE(0), "/dns/b/tcp/4001"), MU_AUTONAT_OK);
    tear_down();
}

/* Meets PEER_MAX of service/peer/autonat.c. */
static void test_autonat_dials_a_peer_three_times_in_a_minute(void **state)
{
    (void)state;
    set_up(2);
    run_all();
    rig_introduce(NODE(1), NODE(0));
    /* The node itself has asked once. */
    assert_int_equal(beg(NODE(1), NODE(0), "/dns/b/tcp/4001"), MU_AUTONAT_OK);
    assert_int_equal(beg(NODE(1), NODE(0), "/dns/b/tcp/4001"), MU_AUTONAT_OK);
    assert_int_equal(beg(NODE(1), NODE(0), "/dns/b/tcp/4001"), MU_AUTONAT_DIAL_REFUSED);
    rig_run(&r, 60000);
    assert_int_equal(beg(NODE(1), NODE(0), "/dns/b/tcp/4001"), MU_AUTONAT_OK);
    tear_down();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_autonat_peer_that_can_be_dialled_is_told_so),
        cmocka_unit_test(test_autonat_peer_that_cannot_be_dialled_is_told_so),
        cmocka_unit_test(test_autonat_peer_without_an_address_asks_nobody),
        cmocka_unit_test(test_autonat_asks_three_peers_at_most),
        cmocka_unit_test(test_autonat_dials_none_but_the_peer_that_asks),
        cmocka_unit_test(test_autonat_dials_four_ports_at_most),
        cmocka_unit_test(test_autonat_dials_a_peer_three_times_in_a_minute),
        cmocka_unit_test(test_autonat_dials_thirty_times_in_a_minute),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
