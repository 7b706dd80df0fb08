/* Calls between peers over real connections in the simulator: unary, streaming, and to a peer whose
 * address only another one knows. */
#include "peer_rig.h"

#include "codec/peer/frame.h"
#include "service/peer/kad.h"
#include "service/peer/call.h"
#include "service/peer/echo.h"

#define UNARY "test::Service.unary"
#define ITEMS "test::Service.items"

struct side {
    struct rig_node *node;
    struct mu_peer_calls *calls;
    struct mu_kad *kad;
    struct mu_unary_handler handler;
    struct mu_unary_request *held; /* the last request that is not answered */
    struct mu_peer_items_handler items_handler;
    struct mu_peer_items served;
    int starts, gones;
    bool frees; /* its calls, when a request is gone */
    bool starved;
    int items, ends, ended, ended_status;
};

struct unary {
    struct side *side;
    struct mu_unary_call call;
    const char *message;
    size_t len; /* of a long one */
    bool frees; /* all calls, when it is done */
    int done;
    int status;
    char text[128];
    struct mu_buf got;
};

struct stream {
    struct side *side;
    struct mu_peer_items items;
    struct rig_node *to;
    bool frees; /* all calls, with the first item */
    int sent, got, ended, status;
    char text[128];
};

static struct rig rig;
static struct side sides[3];
static struct mu_peer_calls_config limits[3]; /* of the sides; set by reset_limits() */

static void free_calls(struct side *s)
{
    mu_peer_calls_free(s->calls);
    s->calls = NULL;
}

/* --- the serving side ------------------------------------------------------------------------- */

static void on_start(struct mu_unary_handler *h, struct mu_unary_request *request,
                     struct mu_span message)
{
    struct side *s = MU_CONTAINER_OF(h, struct side, handler);

    s->starts++;
    if (mu_span_eq(message, MU_SPAN_LIT("hold"))) {
        s->held = request;
    } else if (mu_span_eq(message, MU_SPAN_LIT("fail"))) {
        mu_unary_reply(request, MUSTER_EREMOTE, MU_SPAN_LIT("ValueError('as asked')"));
    } else {
        mu_unary_reply(request, 0, message);
    }
}

static void on_gone(struct mu_unary_handler *h, struct mu_unary_request *request)
{
    struct side *s = MU_CONTAINER_OF(h, struct side, handler);

    if (request == s->held) {
        s->held = NULL;
    }
    s->gones++;
    if (s->frees) {
        free_calls(s);
    }
}

static void on_served_item(struct mu_peer_items *items, struct mu_span message)
{
    struct side *s = MU_CONTAINER_OF(items, struct side, served);

    s->items++;
    if (mu_span_eq(message, MU_SPAN_LIT("fail"))) {
        if (s->starved) {
            rig_miss(0);
        }
        mu_peer_items_fail(items, "it went wrong");
        if (s->starved) {
            assert_true(rig_missed());
        }
    } else {
        assert_int_equal(mu_peer_items_send(items, message), 0);
    }
}

static void on_served_end(struct mu_peer_items *items)
{
    struct side *s = MU_CONTAINER_OF(items, struct side, served);

    s->ends++;
    (void)mu_peer_items_end(items);
}

static void on_served_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct side *s = MU_CONTAINER_OF(items, struct side, served);

    (void)text;
    s->ended++;
    s->ended_status = status;
}

static const struct mu_peer_items_events served_events = {
    .item = on_served_item, .end = on_served_end, .ended = on_served_ended};

static struct mu_peer_items *on_items(struct mu_peer_items_handler *h,
                                      const struct mu_peer_id *peer)
{
    struct side *s = MU_CONTAINER_OF(h, struct side, items_handler);

    (void)peer;
    s->served.on = &served_events;
    return &s->served;
}

static int reset_limits(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        limits[i] = mu_peer_calls_config_defaults();
    }
    return 0;
}

static void open_side(void *arg)
{
    struct mu_kad_config kad = mu_kad_config_defaults();
    struct side *s = arg;

    assert_int_equal(mu_peer_calls_new(s->node->host, &limits[s - sides], &s->calls), 0);
    assert_int_equal(mu_kad_start(s->node->host, &kad, &s->kad), 0);
    s->handler = (struct mu_unary_handler){.method = UNARY, .start = on_start, .gone = on_gone};
    assert_int_equal(
        mu_peer_calls_unary(s->calls)->ops->serve(mu_peer_calls_unary(s->calls), &s->handler), 0);
    s->items_handler = (struct mu_peer_items_handler){.name = ITEMS, .opened = on_items};
    assert_int_equal(mu_peer_items_serve(s->calls, &s->items_handler), 0);
}

static void close_side(void *arg)
{
    struct side *s = arg;

    mu_peer_items_unserve(&s->items_handler);
    free_calls(s);
    mu_kad_stop(s->kad);
}

static void open_all(size_t count)
{
    rig_open(&rig, count, NULL);
    rig_run_all(&rig);
    memset(sides, 0, sizeof(sides));
    for (size_t i = 0; i < count; i++) {
        sides[i].node = &rig.node[i];
        mu_sim_call(rig.node[i].proc, open_side, &sides[i]);
    }
}

static void close_all(void)
{
    for (size_t i = 0; i < rig.count; i++) {
        mu_sim_call(rig.node[i].proc, close_side, &sides[i]);
    }
    rig_close(&rig);
}

/* --- the calling side ------------------------------------------------------------------------- */

static void on_done(struct mu_unary_call *call, int status, const char *text,
                    struct mu_span message)
{
    struct unary *u = MU_CONTAINER_OF(call, struct unary, call);
    struct mu_sim_heap *heap = mu_sim_outside();

    u->done++;
    u->status = status;
    (void)snprintf(u->text, sizeof(u->text), "%s", text);
    assert_int_equal(mu_buf_append(&u->got, message), 0);
    mu_sim_inside(heap);
    if (u->frees) {
        free_calls(u->side);
    }
}

static void begin_unary(void *arg)
{
    struct unary *u = arg;
    struct mu_unary *unary = mu_peer_calls_unary(u->side->calls);
    char *data = mu_calloc(1, u->len + 1);
    struct mu_span message = u->message != NULL ? mu_span_str(u->message) : mu_span(data, u->len);

    assert_int_equal(unary->ops->call(unary, &u->call, message),
                     u->len > MU_CALL_FRAME_MAX ? MUSTER_ELIMIT : 0);
    mu_free(data);
}

static void call_from(struct side *s, struct rig_node *to, struct unary *u, uint32_t timeout_ms)
{
    u->side = s;
    u->call = (struct mu_unary_call){
        .peer = to->identity.id, .method = UNARY, .timeout_ms = timeout_ms, .done = on_done};
    mu_buf_init(&u->got, 8 << 20);
    mu_sim_call(s->node->proc, begin_unary, u);
}

static void test_peer_call_a_message_goes_there_and_back(void **unused)
{
    struct unary shorter = {.message = "hello"};
    struct unary empty = {.message = ""};
    struct unary longest = {.len = 4000000};

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    call_from(&sides[0], &rig.node[1], &shorter, 3000);
    call_from(&sides[0], &rig.node[1], &empty, 3000);
    call_from(&sides[0], &rig.node[1], &longest, 30000);
    rig_run(&rig, 30000);
    assert_true(shorter.done == 1 && shorter.status == 0);
    assert_span_text(mu_buf_span(&shorter.got), "hello");
    assert_true(empty.done == 1 && empty.status == 0 && empty.got.len == 0);
    assert_true(longest.done == 1 && longest.status == 0 && longest.got.len == 4000000);
    mu_buf_fini(&shorter.got);
    mu_buf_fini(&longest.got);
    /* And in the other direction, over the connection that is there. */
    call_from(&sides[1], &rig.node[0], &shorter, 3000);
    rig_run(&rig, 1000);
    assert_int_equal(shorter.done, 2);
    assert_int_equal(rig_stats(&rig.node[1]).dials, 0);
    mu_buf_fini(&shorter.got);
    close_all();
}

/* A caller that does not say which call it is: a frame on a stream of its own. */
static struct {
    struct mu_host_stream stream;
    struct mu_buf out;
    int ended;
} nameless;

static const struct mu_span unary_name[] = {{(const uint8_t *)UNARY, sizeof(UNARY) - 1}};

static void on_nameless_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    assert_int_equal(mu_host_stream_write(s, mu_buf_span(&nameless.out)), nameless.out.len);
}

static void on_nameless_data(struct mu_host_stream *s, struct mu_span bytes)
{
    mu_host_stream_consumed(s, bytes.len);
    mu_host_stream_end(s);
}

static void on_nameless_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)s;
    (void)status;
    (void)text;
    nameless.ended++;
}

static void begin_nameless(void *arg)
{
    static const struct mu_host_stream_events on = {
        .ready = on_nameless_ready, .data = on_nameless_data, .ended = on_nameless_ended};

    (void)arg;
    nameless.stream.on = &on;
    mu_host_stream_open(rig.node[0].host, &nameless.stream, &rig.node[1].identity.id, unary_name,
                        1);
}

static void test_peer_call_a_request_without_an_id_is_a_request(void **unused)
{
    const struct mu_call_frame frame = {.kind = MU_CALL_REQUEST, .data = MU_SPAN_LIT("hello")};

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    mu_buf_init(&nameless.out, 4096);
    assert_int_equal(mu_call_frame_encode(&nameless.out, &frame), 0);
    /* An empty id, of two bytes behind the length, is none where there is no such field at all. */
    assert_memory_equal(mu_buf_span(&nameless.out).data + 1, "\x0a\x00", 2);
    nameless.out.data[nameless.out.head + 2] = (uint8_t)(nameless.out.len - 3);
    mu_buf_consume(&nameless.out, 2);
    mu_sim_call(rig.node[0].proc, begin_nameless, NULL);
    rig_run(&rig, 3000);
    assert_int_equal(sides[1].starts, 1);
    assert_int_equal(nameless.ended, 1);
    mu_buf_fini(&nameless.out);
    close_all();
}

static void test_peer_call_a_handler_that_fails_says_how(void **unused)
{
    struct unary u = {.message = "fail"};

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    call_from(&sides[0], &rig.node[1], &u, 3000);
    rig_run(&rig, 1000);
    assert_int_equal(u.done, 1);
    assert_int_equal(u.status, MUSTER_EREMOTE);
    assert_non_null(strstr(u.text, "as asked"));
    mu_buf_fini(&u.got);
    close_all();
}

static void test_peer_call_ends_in_time_and_the_handler_is_told(void **unused)
{
    struct unary u = {.message = "hold"};

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    call_from(&sides[0], &rig.node[1], &u, 2000);
    rig_run(&rig, 1500);
    assert_true(u.done == 0 && sides[1].starts == 1 && sides[1].held != NULL);
    rig_run(&rig, 1000);
    assert_int_equal(u.done, 1);
    assert_int_equal(u.status, MUSTER_ETIMEDOUT);
    assert_int_equal(sides[1].gones, 1);
    assert_null(sides[1].held);
    mu_buf_fini(&u.got);
    close_all();
}

/* However a call ends: by its answer, in time, with its connection, or for want of one. */
static void test_peer_call_all_may_be_freed_when_one_is_done(void **unused)
{
    static const struct {
        const char *message;
        bool known;
        int status;
    } cases[] = {
        {"hello", true, 0},
        {"fail", true, MUSTER_EREMOTE},
        {"hold", true, MUSTER_ETIMEDOUT},
        {"hello", false, MUSTER_ENOENT},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct unary first = {.message = cases[i].message, .frees = true};
        struct unary other = {.message = "hold"};

        open_all(2);
        if (cases[i].known) {
            rig_introduce(&rig.node[0], &rig.node[1]);
        }
        call_from(&sides[0], &rig.node[1], &first, 2000);
        call_from(&sides[0], &rig.node[1], &other, 20000);
        rig_run(&rig, 30000);
        assert_int_equal(first.done, 1);
        assert_int_equal(first.status, cases[i].status);
        assert_null(sides[0].calls);
        assert_int_equal(other.done, 0);
        mu_buf_fini(&first.got);
        close_all();
    }
}

static void test_peer_call_all_may_be_freed_when_a_request_is_gone(void **unused)
{
    struct unary u = {.message = "hold"};

    (void)unused;
    open_all(2);
    sides[1].frees = true;
    rig_introduce(&rig.node[0], &rig.node[1]);
    call_from(&sides[0], &rig.node[1], &u, 2000);
    rig_run(&rig, 5000);
    assert_int_equal(sides[1].gones, 1);
    assert_null(sides[1].calls);
    mu_buf_fini(&u.got);
    close_all();
}

static void test_peer_call_to_nobody_fails_at_once(void **unused)
{
    struct unary u = {.message = "hello"};
    struct unary too_long = {.len = 5 << 20};

    (void)unused;
    open_all(2);
    call_from(&sides[0], &rig.node[1], &u, 30000); /* whose address nobody knows */
    call_from(&sides[0], &rig.node[1], &too_long, 30000);
    rig_run(&rig, 5000);
    assert_int_equal(u.done, 1);
    assert_true(u.status < 0);
    assert_int_equal(too_long.done, 0);
    mu_buf_fini(&u.got);
    close_all();
}

static void test_peer_call_finds_who_is_connected_to_another(void **unused)
{
    struct unary to_b = {.message = "x"};
    struct unary c_to_b = {.message = "x"};
    struct unary to_c = {.message = "hello"};

    (void)unused;
    open_all(3);
    rig_introduce(&rig.node[0], &rig.node[1]);
    rig_introduce(&rig.node[2], &rig.node[1]);
    call_from(&sides[0], &rig.node[1], &to_b, 3000);
    call_from(&sides[2], &rig.node[1], &c_to_b, 3000);
    rig_run(&rig, 2000);
    assert_true(to_b.status == 0 && c_to_b.status == 0);
    call_from(&sides[0], &rig.node[2], &to_c, 3000);
    rig_run(&rig, 3000);
    assert_int_equal(to_c.done, 1);
    assert_int_equal(to_c.status, 0);
    assert_span_text(mu_buf_span(&to_c.got), "hello");
    mu_buf_fini(&to_b.got);
    mu_buf_fini(&c_to_b.got);
    mu_buf_fini(&to_c.got);
    close_all();
}

/* --- streams ---------------------------------------------------------------------------------- */

static void on_item(struct mu_peer_items *items, struct mu_span message)
{
    struct stream *s = MU_CONTAINER_OF(items, struct stream, items);

    assert_int_equal(message.len, s->got % 2 == 0 ? 4 : 100000);
    s->got++;
    if (s->frees) {
        free_calls(s->side);
        memset(&s->items, 0xa5, sizeof(s->items)); /* It is ours again. */
    }
}

static void on_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct stream *s = MU_CONTAINER_OF(items, struct stream, items);

    s->ended++;
    s->status = status;
    (void)snprintf(s->text, sizeof(s->text), "%s", text);
}

static void send_more(struct mu_peer_items *items)
{
    static const uint8_t bytes[100000];
    struct stream *s = MU_CONTAINER_OF(items, struct stream, items);

    while (s->sent < 40) {
        int err = mu_peer_items_send(items, mu_span(bytes, s->sent % 2 == 0 ? 4 : sizeof(bytes)));

        if (err == MUSTER_EAGAIN) {
            return;
        }
        assert_int_equal(err, 0);
        s->sent++;
    }
    if (s->sent == 40) {
        assert_int_equal(mu_peer_items_end(items), 0);
        s->sent++;
    }
}

static const struct mu_peer_items_events events = {
    .item = on_item, .writable = send_more, .ended = on_ended};

static void begin_stream(void *arg)
{
    struct stream *s = arg;

    s->items.on = &events;
    mu_peer_items_open(s->side->calls, &s->items, &s->to->identity.id, ITEMS);
    send_more(&s->items);
}

static void begin_failing(void *arg)
{
    struct stream *s = arg;

    s->items.on = &events;
    mu_peer_items_open(s->side->calls, &s->items, &s->to->identity.id, ITEMS);
    assert_int_equal(mu_peer_items_send(&s->items, MU_SPAN_LIT("fail")), 0);
}

static void cancel_stream(void *arg)
{
    mu_peer_items_cancel(&((struct stream *)arg)->items);
}

static void test_peer_items_all_come_back(void **unused)
{
    struct stream s;

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    s = (struct stream){.side = &sides[0], .to = &rig.node[1]};
    mu_sim_call(rig.node[0].proc, begin_stream, &s);
    rig_run(&rig, 30000);
    assert_int_equal(s.got, 40);
    assert_int_equal(s.ended, 1);
    assert_int_equal(s.status, 0);
    assert_true(sides[1].items == 40 && sides[1].ends == 1);
    assert_true(sides[1].ended == 1 && sides[1].ended_status == 0);
    close_all();
}

static void test_peer_items_all_may_be_freed_with_an_item(void **unused)
{
    struct stream s;

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    s = (struct stream){.side = &sides[0], .to = &rig.node[1], .frees = true};
    mu_sim_call(rig.node[0].proc, begin_stream, &s);
    rig_run(&rig, 30000);
    assert_int_equal(s.got, 1);
    assert_int_equal(s.ended, 0);
    assert_int_equal(sides[1].ended, 1);
    close_all();
}

static void test_peer_items_a_failure_is_told_and_so_is_a_caller_who_goes(void **unused)
{
    struct stream s;

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    s = (struct stream){.side = &sides[0], .to = &rig.node[1]};
    mu_sim_call(rig.node[0].proc, begin_failing, &s);
    rig_run(&rig, 10000);
    assert_int_equal(s.ended, 1);
    assert_int_equal(s.status, MUSTER_EREMOTE);
    assert_non_null(strstr(s.text, "it went wrong"));
    assert_int_equal(sides[1].ended, 1);
    s = (struct stream){.side = &sides[0], .to = &rig.node[1], .sent = 41};
    mu_sim_call(rig.node[0].proc, begin_stream, &s);
    rig_run(&rig, 100);
    mu_sim_call(rig.node[0].proc, cancel_stream, &s);
    rig_run(&rig, 1000);
    assert_int_equal(s.ended, 0);
    assert_int_equal(sides[1].ended, 2);
    assert_true(sides[1].ended_status < 0);
    close_all();
}

/* Nobody waits for what there was no memory to say. */
static void test_peer_items_a_failure_without_memory_ends_the_call(void **unused)
{
    struct stream s;

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    sides[1].starved = true;
    s = (struct stream){.side = &sides[0], .to = &rig.node[1]};
    mu_sim_call(rig.node[0].proc, begin_failing, &s);
    rig_run(&rig, 10000);
    assert_int_equal(s.ended, 1);
    assert_int_equal(s.status, MUSTER_ECLOSED);
    assert_int_equal(sides[1].ended, 1);
    assert_int_equal(sides[1].ended_status, MUSTER_ENOMEM);
    close_all();
}

/* --- limits ----------------------------------------------------------------------------------- */

static void test_peer_call_serves_so_many_requests_at_a_time(void **unused)
{
    struct unary held[2] = {{.message = "hold"}, {.message = "hold"}};
    struct unary third = {.message = "hello"};
    struct unary later = {.message = "hello"};

    (void)unused;
    limits[1].requests_max = 2;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    call_from(&sides[0], &rig.node[1], &held[0], 5000);
    call_from(&sides[0], &rig.node[1], &held[1], 5000);
    rig_run(&rig, 1000);
    call_from(&sides[0], &rig.node[1], &third, 2000);
    rig_run(&rig, 1000);
    assert_int_equal(third.done, 1);
    assert_true(third.status < 0 && third.status != MUSTER_ETIMEDOUT);
    assert_int_equal(sides[1].starts, 2);
    assert_int_equal(sides[1].gones, 0);
    rig_run(&rig, 5000); /* The two have given up. */
    call_from(&sides[0], &rig.node[1], &later, 2000);
    rig_run(&rig, 1000);
    assert_true(later.done == 1 && later.status == 0);
    for (size_t i = 0; i < 2; i++) {
        mu_buf_fini(&held[i].got);
    }
    mu_buf_fini(&third.got);
    mu_buf_fini(&later.got);
    close_all();
}

static void test_peer_call_reads_so_many_bytes_of_requests(void **unused)
{
    struct unary calls[3] = {{.len = 900}, {.len = 2000}, {.len = 900}};

    (void)unused;
    limits[1].request_bytes_max = 1000;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    for (size_t i = 0; i < 3; i++) {
        call_from(&sides[0], &rig.node[1], &calls[i], 2000);
        rig_run(&rig, 1500);
        assert_int_equal(calls[i].done, 1);
        assert_int_equal(calls[i].status == 0, i != 1);
        assert_int_not_equal(calls[i].status, MUSTER_ETIMEDOUT);
        mu_buf_fini(&calls[i].got);
    }
    assert_int_equal(sides[1].starts, 2);
    close_all();
}

struct item_test {
    struct mu_peer_items items;
    size_t lens[4];
    int errs[4];
    int got, writable, ended, status;
    size_t got_len; /* of the last */
    char text[64];
};

static void count_item(struct mu_peer_items *items, struct mu_span message)
{
    struct item_test *t = MU_CONTAINER_OF(items, struct item_test, items);

    t->got++;
    t->got_len = message.len;
}

static void count_writable(struct mu_peer_items *items)
{
    MU_CONTAINER_OF(items, struct item_test, items)->writable++;
    assert_int_equal(mu_peer_items_end(items), 0);
}

static void count_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct item_test *t = MU_CONTAINER_OF(items, struct item_test, items);

    t->ended++;
    t->status = status;
    (void)snprintf(t->text, sizeof(t->text), "%s", text);
}

static const struct mu_peer_items_events count_events = {
    .item = count_item, .writable = count_writable, .ended = count_ended};

/* Sends items of some lengths before anything can go out, and sees what each is told. */
static void send_lengths(void *arg)
{
    static const uint8_t bytes[2000];
    struct item_test *t = arg;
    bool again = false;

    t->items.on = &count_events;
    mu_peer_items_open(sides[0].calls, &t->items, &rig.node[1].identity.id, ITEMS);
    for (size_t i = 0; i < 4 && t->lens[i] != 0; i++) {
        assert_int_equal(mu_peer_items_send(&t->items, mu_span(bytes, t->lens[i])), t->errs[i]);
        again = t->errs[i] == MUSTER_EAGAIN;
    }
    if (!again) {
        assert_int_equal(mu_peer_items_end(&t->items), 0);
    }
}

static void test_peer_items_are_so_long_and_no_longer(void **unused)
{
    struct item_test ours = {.lens = {1000, 1001}, .errs = {0, MUSTER_ELIMIT}};
    struct item_test theirs = {.lens = {500, 501}};

    (void)unused;
    limits[0].item_len_max = 1000;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    mu_sim_call(rig.node[0].proc, send_lengths, &ours);
    rig_run(&rig, 5000);
    assert_true(ours.got == 1 && ours.ended == 1 && ours.status == 0);
    close_all();
    /* And what the other side finds too long ends the call. */
    limits[1].item_len_max = 500;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    mu_sim_call(rig.node[0].proc, send_lengths, &theirs);
    rig_run(&rig, 5000);
    assert_int_equal(sides[1].items, 1);
    assert_int_equal(sides[1].ended_status, MUSTER_ELIMIT);
    assert_true(theirs.ended == 1 && theirs.status < 0);
    close_all();
}

static void test_peer_items_that_wait_are_so_many_bytes(void **unused)
{
    struct item_test t = {.lens = {1500, 1}, .errs = {0, MUSTER_EAGAIN}};
    struct item_test u = {.lens = {400, 580, 600}, .errs = {0, 0, MUSTER_EAGAIN}};

    (void)unused;
    limits[0].item_bytes_max = 1000;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    mu_sim_call(rig.node[0].proc, send_lengths, &t); /* A longer one goes alone. */
    rig_run(&rig, 5000);
    assert_true(t.got == 1 && t.writable == 1 && t.ended == 1 && t.status == 0);
    close_all();
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    mu_sim_call(rig.node[0].proc, send_lengths, &u);
    rig_run(&rig, 5000);
    assert_true(u.got == 2 && u.writable == 1 && u.ended == 1 && u.status == 0);
    close_all();
}

static struct mu_peer_echo_calls echo;

static void serve_echo(void *arg)
{
    assert_int_equal(mu_peer_echo_calls_serve(&echo, ((struct side *)arg)->calls), 0);
}

static void unserve_echo(void *arg)
{
    (void)arg;
    mu_peer_echo_calls_unserve(&echo);
}

/* Sends one item to the echo. */
static void send_long(void *arg)
{
    struct item_test *t = arg;
    uint8_t *bytes = mu_calloc(1, t->lens[0]);

    assert_non_null(bytes);
    t->items.on = &count_events;
    mu_peer_items_open(sides[0].calls, &t->items, &rig.node[1].identity.id, MU_PEER_ECHO_STREAM);
    assert_int_equal(mu_peer_items_send(&t->items, mu_span(bytes, t->lens[0])), 0);
    assert_int_equal(mu_peer_items_end(&t->items), 0);
    mu_free(bytes);
}

/* The echo keeps an item behind its length, of eight bytes. Meets HELD_MAX of
 * service/peer/echo.c. */
static void test_peer_echo_holds_so_many_bytes_of_a_caller(void **unused)
{
    struct item_test last = {.lens = {((size_t)64 << 20) - 8}};
    struct item_test first = {.lens = {((size_t)64 << 20) - 7}};

    (void)unused;
    open_all(2);
    rig_introduce(&rig.node[0], &rig.node[1]);
    mu_sim_call(rig.node[1].proc, serve_echo, &sides[1]);
    mu_sim_call(rig.node[0].proc, send_long, &last);
    rig_run(&rig, 60000);
    assert_true(last.got == 1 && last.ended == 1 && last.status == 0);
    assert_int_equal(last.got_len, last.lens[0]);
    mu_sim_call(rig.node[0].proc, send_long, &first);
    rig_run(&rig, 60000);
    assert_true(first.got == 0 && first.ended == 1);
    assert_int_equal(first.status, MUSTER_EREMOTE);
    assert_non_null(strstr(first.text, "too many bytes wait to be read back"));
    mu_sim_call(rig.node[1].proc, unserve_echo, NULL);
    close_all();
}

#define T(name) cmocka_unit_test_setup(name, reset_limits)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_peer_call_a_message_goes_there_and_back),
        T(test_peer_call_a_request_without_an_id_is_a_request),
        T(test_peer_call_a_handler_that_fails_says_how),
        T(test_peer_call_ends_in_time_and_the_handler_is_told),
        T(test_peer_call_all_may_be_freed_when_one_is_done),
        T(test_peer_call_all_may_be_freed_when_a_request_is_gone),
        T(test_peer_call_to_nobody_fails_at_once),
        T(test_peer_call_finds_who_is_connected_to_another),
        T(test_peer_items_all_come_back),
        T(test_peer_items_all_may_be_freed_with_an_item),
        T(test_peer_items_a_failure_is_told_and_so_is_a_caller_who_goes),
        T(test_peer_items_a_failure_without_memory_ends_the_call),
        T(test_peer_call_serves_so_many_requests_at_a_time),
        T(test_peer_call_reads_so_many_bytes_of_requests),
        T(test_peer_items_are_so_long_and_no_longer),
        T(test_peer_items_that_wait_are_so_many_bytes),
        T(test_peer_echo_holds_so_many_bytes_of_a_caller),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
