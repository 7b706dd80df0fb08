/*
 * Payloads that are not copied. Goal: what is lent arrives as what is copied would, however the
 * bytes are split and whenever the link is cut, and nobody looks at it after it was taken back.
 * Method: a stream of items, some lent and some copied, some to a place and some not, is added up
 * at the other end; memory that was taken back is overwritten.
 */
#include "rpc_pair.h"

#include "core/alloc.h"
#include "failheap.h"

#define ITEMS    12
#define ITEM_MAX 9000

struct flow {
    uint64_t id;    /* of the call, at the caller */
    uint64_t id_in; /* at the callee */
    uint8_t sent[ITEMS][ITEM_MAX];
    size_t lens[ITEMS];
    uint8_t *got; /* what came, in order */
    size_t got_len;
    bool place;    /* the callee says where items are to lie */
    size_t placed; /* how many came there */
    bool down;     /* items go to the caller */
    int replies;
    int status;
    bool ended;
    bool canceled;
};

static void give_place(struct flow *f, struct rpc_end *at, uint64_t id)
{
    struct mu_space room = {f->got + f->got_len, ITEM_MAX};

    if (f->place) {
        assert_int_equal(mu_rpc_land(&at->rpc, id, room), 0);
    }
}

static void on_item(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct flow *f = p->context;

    if (ev->payload.data == f->got + f->got_len) {
        f->placed++;
    } else {
        memcpy(f->got + f->got_len, ev->payload.data, ev->payload.len);
    }
    f->got_len += ev->payload.len;
    assert_int_equal(mu_rpc_consumed(&at->rpc, p->now, ev->id, ev->payload.len), 0);
    give_place(f, at, ev->id);
}

static void on_event(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct flow *f = p->context;

    if (ev->type == MU_RPC_EV_CALL) {
        f->id_in = ev->id;
        if (!f->down) {
            give_place(f, at, ev->id);
        }
    } else if (ev->type == MU_RPC_EV_ITEM) {
        on_item(p, at, ev);
    } else if (ev->type == MU_RPC_EV_END) {
        f->ended = true;
        assert_int_equal(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, (struct mu_span){0}), 0);
    } else if (ev->type == MU_RPC_EV_CANCEL) {
        f->canceled = true; /* answered later */
    } else if (ev->type == MU_RPC_EV_REPLY) {
        f->replies++;
        f->status = ev->status;
    }
}

/* Items of all sorts of lengths, each byte of its own. */
static void fill(struct flow *f)
{
    static const size_t lens[ITEMS] = {9000, 1, 4096, 0, 4095, 8000, 5000, 4096, 17, 9000, 6000, 1};

    for (size_t i = 0; i < ITEMS; i++) {
        f->lens[i] = lens[i];
        for (size_t at = 0; at < lens[i]; at++) {
            f->sent[i][at] = (uint8_t)(i * 37 + at * 11 + at / 256);
        }
    }
}

static struct flow *start(struct rpc_pair *p)
{
    struct flow *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    f->got = calloc(ITEMS + 1, ITEM_MAX);
    assert_non_null(f->got);
    fill(f);
    rpc_pair_init(p, NULL, NULL);
    p->on_event = on_event;
    p->context = f;
    assert_int_equal(rpc_pair_link(p), 0);
    return f;
}

static void finish(struct rpc_pair *p)
{
    struct flow *f = p->context;

    rpc_pair_fini(p);
    free(f->got);
    free(f);
}

static void call(struct rpc_pair *p, uint32_t timeout_ms)
{
    struct flow *f = p->context;

    rpc_pair_pump(p);
    assert_int_equal(mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("t::T.flow"),
                                 (struct mu_span){0}, timeout_ms, 0, &f->id),
                     0);
}

static void send_all(struct rpc_pair *p, struct rpc_end *from, uint64_t id)
{
    struct flow *f = p->context;

    for (size_t i = 0; i < ITEMS; i++) {
        struct mu_span item = mu_span(f->sent[i], f->lens[i]);

        assert_int_equal(i % 3 == 2 ? mu_rpc_item(&from->rpc, p->now, id, item)
                                    : mu_rpc_item_lent(&from->rpc, p->now, id, item, NULL),
                         0);
    }
}

static void check_got(const struct flow *f)
{
    size_t at = 0;

    for (size_t i = 0; i < ITEMS; i++) {
        assert_memory_equal(f->got + at, f->sent[i], f->lens[i]);
        at += f->lens[i];
    }
    assert_int_equal(f->got_len, at);
}

/* The whole flow to the callee, with or without a cut. */
static void play(size_t send_chunk, size_t recv_chunk, bool place, bool use_room, size_t cut_after)
{
    struct rpc_pair p;
    struct flow *f = start(&p);

    f->place = place;
    call(&p, 0);
    p.send_chunk = send_chunk;
    p.recv_chunk = recv_chunk;
    p.use_room = use_room;
    p.delivered = 0;
    p.cut_after = cut_after;
    send_all(&p, &p.client, f->id);
    assert_int_equal(mu_rpc_end(&p.client.rpc, p.now, f->id), 0);
    rpc_pair_pump(&p);
    if (!p.linked) {
        assert_int_equal(rpc_pair_link(&p), 0);
        rpc_pair_pump(&p);
    }

    check_got(f);
    assert_int_equal(f->replies, 1);
    assert_int_equal(f->status, 0);
    assert_int_equal(p.client.rpc.kept_bytes, 0);
    if (place && cut_after == 0) {
        assert_int_equal(f->placed, 7); /* of 4096 bytes and more */
    }
    finish(&p);
}

static void test_rpc_lent_items_arrive_as_copied_ones(void **state)
{
    static const size_t chunks[] = {0, 1, 7, 24, 4096, 5001};

    (void)state;
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        for (int how = 0; how < 4; how++) {
            play(chunks[i], 0, (how & 1) != 0, (how & 2) != 0, 0);
            play(0, chunks[i], (how & 1) != 0, (how & 2) != 0, 0);
        }
    }
}

static void test_rpc_lent_items_are_sent_again_after_a_cut(void **state)
{
    (void)state;
    for (size_t at = 1; at < 58000; at += at < 9200 ? 61 : 997) {
        play(0, 0, (at & 1) != 0, (at & 2) != 0, at);
        play(5000, 3000, (at & 1) == 0, (at & 2) != 0, at);
    }
}

static void test_rpc_lent_item_is_sent_from_where_it_lies(void **state)
{
    struct mu_span spans[8];
    struct rpc_pair p;
    struct flow *f = start(&p);
    size_t count;

    (void)state;
    call(&p, 0);
    rpc_pair_pump(&p);
    assert_int_equal(mu_rpc_item_lent(&p.client.rpc, p.now, f->id, mu_span(f->sent[0], 9000), NULL),
                     0);
    assert_int_equal(mu_rpc_item_lent(&p.client.rpc, p.now, f->id, mu_span(f->sent[5], 8000), NULL),
                     0);
    count = mu_rpc_outputv(&p.client.rpc, spans, 8);

    assert_int_equal(count, 4);
    assert_int_equal(spans[0].len, MU_RPC_HEADER);
    assert_ptr_equal(spans[1].data, f->sent[0]);
    assert_ptr_equal(spans[3].data, f->sent[5]);

    /* In the middle of one, the rest of that comes first. */
    mu_rpc_sent(&p.client.rpc, MU_RPC_HEADER + 100);
    count = mu_rpc_outputv(&p.client.rpc, spans, 8);
    assert_int_equal(count, 3);
    assert_ptr_equal(spans[0].data, f->sent[0] + 100);
    assert_int_equal(spans[0].len, 8900);
    finish(&p);
}

static void test_rpc_revoked_memory_is_not_looked_at_again(void **state)
{
    (void)state;
    /* With nothing sent, with the link cut in the middle of it, and with all of it sent. */
    for (size_t sent = 0; sent <= 60000; sent += 3000) {
        struct rpc_pair p;
        struct flow *f = start(&p);
        struct flow copy;

        call(&p, 0);
        rpc_pair_pump(&p);
        send_all(&p, &p.client, f->id);
        for (size_t n = 0; n < sent && mu_rpc_output(&p.client.rpc).len != 0;) {
            size_t part = mu_rpc_output(&p.client.rpc).len;

            part = part < sent - n ? part : sent - n;
            mu_rpc_sent(&p.client.rpc, part);
            n += part;
        }
        copy = *f;
        mu_rpc_revoke(&p.client.rpc, f->id);
        memset(f->sent, 0xdd, sizeof(f->sent));
        if (sent != 0) {
            rpc_pair_cut(&p);
            assert_int_equal(rpc_pair_link(&p), 0);
        }
        assert_int_equal(mu_rpc_end(&p.client.rpc, p.now, f->id), 0);
        rpc_pair_pump(&p);

        memcpy(f->sent, copy.sent, sizeof(f->sent));
        check_got(f);
        assert_int_equal(f->replies, 1);
        assert_int_equal(p.client.rpc.loan_memory, 0);
        finish(&p);
    }
}

static void test_rpc_revoking_without_memory_ends_the_session(void **state)
{
    struct rpc_pair p;
    struct flow *f = start(&p);
    size_t used = 0;

    (void)state;
    call(&p, 0);
    rpc_pair_pump(&p);
    send_all(&p, &p.client, f->id);
    mu_rpc_sent(&p.client.rpc, 100);
    failheap_arm(0);
    mu_rpc_revoke(&p.client.rpc, f->id);
    failheap_disarm();
    memset(f->sent, 0xdd, sizeof(f->sent));
    rpc_pair_events(&p, &p.client);

    assert_int_equal(f->replies, 1);
    assert_int_equal(f->status, MUSTER_ESESSION);
    assert_int_equal(mu_rpc_output(&p.client.rpc).len, 0);
    assert_int_equal(mu_rpc_recv(&p.client.rpc, p.now, MU_SPAN_LIT("x"), &used), MUSTER_ESESSION);
    finish(&p);
}

static void test_rpc_blob_is_kept_until_it_is_acknowledged(void **state)
{
    struct mu_rpc_blob *blob;
    struct rpc_pair p;
    struct flow *f = start(&p);
    struct mu_buf buf;

    (void)state;
    f->down = true;
    call(&p, 0);
    rpc_pair_pump(&p);
    mu_buf_init(&buf, 100000);
    assert_int_equal(mu_buf_append(&buf, mu_span(f->sent[0], 9000)), 0);
    blob = mu_rpc_blob_new(&buf);
    assert_non_null(blob);
    assert_int_equal(buf.cap, 0);
    assert_int_equal(
        mu_rpc_item_lent(&p.server.rpc, p.now, f->id_in, mu_buf_span(&blob->buf), blob), 0);
    assert_int_equal(blob->refs, 2);
    /* It was sent and nobody has said that it came. */
    mu_rpc_sent(&p.server.rpc, MU_RPC_HEADER + 9000);
    assert_int_equal(mu_rpc_reply(&p.server.rpc, p.now, f->id_in, 0, (struct mu_span){0}), 0);
    mu_rpc_revoke(&p.server.rpc, f->id_in); /* not borrowed: nothing is copied */
    assert_int_equal(blob->refs, 2);
    rpc_pair_cut(&p);
    assert_int_equal(blob->refs, 2);
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    assert_int_equal(f->got_len, 9000);
    assert_memory_equal(f->got, f->sent[0], 9000);
    /* The client says something, and with it that the item has come. */
    rpc_pair_tick(&p, 6000);
    rpc_pair_pump(&p);
    assert_int_equal(blob->refs, 1);
    mu_rpc_blob_drop(blob);
    finish(&p);
}

/* --- replies ---------------------------------------------------------------------------------- */

struct lent_reply {
    struct mu_rpc_lent base;
    struct mu_span spans[ITEMS];
    int released;
};

static void count_release(struct mu_rpc_lent *lent)
{
    MU_CONTAINER_OF(lent, struct lent_reply, base)->released++;
}

static void lend(struct lent_reply *l, const struct flow *f)
{
    *l = (struct lent_reply){.base = {.spans = l->spans, .release = count_release, .memory = 100}};
    for (size_t i = 0; i < ITEMS; i++) {
        if (f->lens[i] != 0) {
            l->spans[l->base.count++] = mu_span(f->sent[i], f->lens[i]);
        }
    }
}

static void on_reply(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct flow *f = p->context;

    (void)at;
    if (ev->type == MU_RPC_EV_CALL) {
        f->id_in = ev->id;
    } else if (ev->type == MU_RPC_EV_REPLY) {
        f->replies++;
        f->status = ev->status;
        memcpy(f->got, ev->payload.data, ev->payload.len);
        f->got_len = ev->payload.len;
    }
}

/* Two calls, one after the other, each with a lent answer; with or without a cut. */
static void play_replies(size_t send_chunk, size_t recv_chunk, size_t cut_after)
{
    struct lent_reply l[2];
    struct rpc_pair p;
    struct flow *f = start(&p);

    p.on_event = on_reply;
    for (int i = 0; i < 2; i++) {
        call(&p, 0);
        rpc_pair_pump(&p);
        lend(&l[i], f);
        assert_int_equal(mu_rpc_reply_lent(&p.server.rpc, p.now, f->id_in, &l[i].base), 0);
        assert_int_equal(mu_rpc_reply_lent(&p.server.rpc, p.now, f->id_in, &l[i].base),
                         MUSTER_ENOENT);
        p.send_chunk = send_chunk;
        p.recv_chunk = recv_chunk;
        p.delivered = 0;
        p.cut_after = i == 0 ? cut_after : 0;
        rpc_pair_pump(&p);
        if (!p.linked) {
            assert_int_equal(rpc_pair_link(&p), 0);
            rpc_pair_pump(&p);
        }
        assert_int_equal(f->replies, i + 1);
        assert_int_equal(f->status, 0);
        check_got(f);
    }
    rpc_pair_tick(&p, 6000);
    rpc_pair_pump(&p);
    assert_int_equal(l[0].released + l[1].released, 2);
    assert_int_equal(p.server.rpc.loan_memory, 0);
    finish(&p);
}

static void test_rpc_lent_replies_arrive_as_copied_ones(void **state)
{
    static const size_t chunks[] = {0, 1, 7, 24, 4096, 5001};

    (void)state;
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        play_replies(chunks[i], 0, 0);
        play_replies(0, chunks[i], 0);
    }
    for (size_t at = 1; at < 50000; at += at < 9200 ? 61 : 997) {
        play_replies(0, 0, at);
        play_replies(5000, 3000, at);
    }
}

static void test_rpc_lent_reply_is_let_go_of_with_the_session(void **state)
{
    struct lent_reply l;
    struct rpc_pair p;
    struct flow *f = start(&p);

    (void)state;
    p.on_event = on_reply;
    call(&p, 0);
    rpc_pair_pump(&p);
    lend(&l, f);
    failheap_arm(0);
    assert_int_equal(mu_rpc_reply_lent(&p.server.rpc, p.now, f->id_in, &l.base), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(l.released, 0);
    assert_int_equal(mu_rpc_reply_lent(&p.server.rpc, p.now, f->id_in, &l.base), 0);
    assert_in_range(mu_rpc_memory(&p.server.rpc), 100, 10000);
    assert_int_equal(l.released, 0);
    finish(&p);
    assert_int_equal(l.released, 1);
}

/* --- places ----------------------------------------------------------------------------------- */

/* A flow whose first item has come but for its last byte. */
static struct flow *half_an_item(struct rpc_pair *p, uint32_t timeout_ms)
{
    struct flow *f = start(p);

    f->place = true;
    p->use_room = true;
    call(p, timeout_ms);
    rpc_pair_pump(p);
    assert_int_equal(mu_rpc_item(&p->client.rpc, p->now, f->id, mu_span(f->sent[0], 9000)), 0);
    while (p->server.rpc.landed != 8999) {
        p->send_chunk = p->server.rpc.landed == 0 ? MU_RPC_HEADER + 1 : 8998;
        assert_true(rpc_pair_send(p, &p->client, &p->server));
        assert_true(rpc_pair_receive(p, &p->server));
    }
    p->send_chunk = 0;
    return f;
}

static void test_rpc_place_that_is_taken_back_is_not_written_to(void **state)
{
    struct rpc_pair p;
    struct flow *f = half_an_item(&p, 0);
    uint8_t *gone = f->got;

    (void)state;
    assert_int_equal(mu_rpc_room(&p.server.rpc).len, 1);
    assert_int_equal(mu_rpc_arriving(&p.server.rpc), 8999);
    assert_int_equal(mu_rpc_land(&p.server.rpc, f->id_in, (struct mu_space){0}), 0);
    assert_int_equal(mu_rpc_room(&p.server.rpc).len, 0);
    assert_int_equal(mu_rpc_arriving(&p.server.rpc), 8999);
    f->got = calloc(ITEMS + 1, ITEM_MAX);
    free(gone);
    p.on_event = NULL;
    rpc_pair_pump(&p);
    assert_int_equal(mu_rpc_arriving(&p.server.rpc), 0);

    assert_int_equal(p.server.error, 0);
    finish(&p);
}

static void test_rpc_place_goes_with_a_call_that_is_canceled_or_late(void **state)
{
    (void)state;
    for (int how = 0; how < 2; how++) {
        struct rpc_pair p;
        struct flow *f = half_an_item(&p, 100);

        /* Its deadline passes in the middle of the item, or the callee gives up. */
        if (how == 0) {
            rpc_pair_ms(&p, 200);
            assert_int_equal(mu_rpc_tick(&p.server.rpc, p.now), 0);
        } else {
            mu_rpc_fail(&p.server.rpc, p.now, f->id_in, MUSTER_ENOMEM);
        }
        assert_int_equal(mu_rpc_room(&p.server.rpc).len, 0);
        memset(f->got, 0, 9000);
        rpc_pair_events(&p, &p.server);
        rpc_pair_pump(&p);
        if (how == 0) {
            assert_true(f->canceled);
            assert_int_equal(
                mu_rpc_reply(&p.server.rpc, p.now, f->id_in, MUSTER_ETIMEDOUT, (struct mu_span){0}),
                0);
            rpc_pair_pump(&p);
        }

        assert_int_equal(f->got[8999], 0);
        assert_int_equal(f->got_len, 0);
        assert_int_equal(f->replies, 1);
        assert_int_equal(f->status, how == 0 ? MUSTER_ETIMEDOUT : MUSTER_ENOMEM);
        assert_int_equal(p.server.error, 0);
        finish(&p);
    }
}

static void test_rpc_place_is_for_the_caller_too(void **state)
{
    struct rpc_pair p;
    struct flow *f = start(&p);

    (void)state;
    f->down = true;
    f->place = true;
    p.use_room = true;
    call(&p, 0);
    give_place(f, &p.client, f->id);
    rpc_pair_pump(&p);
    send_all(&p, &p.server, f->id_in);
    assert_int_equal(mu_rpc_reply(&p.server.rpc, p.now, f->id_in, 0, (struct mu_span){0}), 0);
    rpc_pair_pump(&p);

    check_got(f);
    assert_int_equal(f->placed, 7);
    assert_int_equal(mu_rpc_land(&p.client.rpc, f->id, (struct mu_space){0}), MUSTER_ENOENT);
    finish(&p);
}

static void test_rpc_item_that_is_too_long_for_its_place_lies_elsewhere(void **state)
{
    struct rpc_pair p;
    struct flow *f = start(&p);
    uint8_t small[5000] = {0};

    (void)state;
    call(&p, 0);
    rpc_pair_pump(&p);
    assert_int_equal(mu_rpc_land(&p.server.rpc, f->id_in, (struct mu_space){small, 5000}), 0);
    assert_int_equal(mu_rpc_item(&p.client.rpc, p.now, f->id, mu_span(f->sent[0], 9000)), 0);
    rpc_pair_pump(&p);

    assert_int_equal(f->got_len, 9000);
    assert_int_equal(small[0], 0);
    finish(&p);
}

/* A peer that breaks the rules is not to write where somebody else has his things by now. */
static void test_rpc_place_is_gone_with_the_end(void **state)
{
    struct rpc_pair p;
    struct flow *f = start(&p);
    uint8_t place[5000] = {0};
    uint8_t head[MU_RPC_HEADER];
    struct mu_rpc_header h = {.len = 4500, .type = MU_RPC_ITEM, .id = 1};
    size_t used = 0;

    (void)state;
    call(&p, 0);
    rpc_pair_pump(&p);
    assert_int_equal(mu_rpc_land(&p.server.rpc, f->id_in, (struct mu_space){place, 5000}), 0);
    p.on_event = NULL; /* the callee does not answer yet */
    assert_int_equal(mu_rpc_end(&p.client.rpc, p.now, f->id), 0);
    rpc_pair_pump(&p);
    mu_rpc_header_encode(head, &h);
    assert_int_equal(mu_rpc_recv(&p.server.rpc, p.now, mu_span(head, sizeof(head)), &used), 0);

    assert_true(mu_rpc_room(&p.server.rpc).data < place ||
                mu_rpc_room(&p.server.rpc).data >= place + sizeof(place));
    assert_int_equal(mu_rpc_recv(&p.server.rpc, p.now, mu_span(f->sent[0], 4500), &used),
                     MUSTER_EPROTO);
    assert_int_equal(place[1], 0);
    finish(&p);
}

static void test_rpc_length_alone_takes_no_memory(void **state)
{
    struct rpc_pair p;
    uint8_t head[MU_RPC_HEADER];
    struct mu_rpc_header h = {.len = 60u << 20, .type = MU_RPC_CALL, .id = 1};
    size_t used = 0;

    (void)state;
    (void)start(&p);
    rpc_pair_pump(&p);
    mu_rpc_header_encode(head, &h);
    assert_int_equal(mu_rpc_recv(&p.server.rpc, p.now, mu_span(head, sizeof(head)), &used), 0);

    assert_true(mu_rpc_room(&p.server.rpc).len <= 65536);
    assert_true(mu_rpc_memory(&p.server.rpc) < 200000);
    finish(&p);
}

/* --- memory and windows ----------------------------------------------------------------------- */

static void test_rpc_lent_item_without_memory_changes_nothing(void **state)
{
    struct rpc_pair p;
    struct flow *f = start(&p);
    bool fired = true;

    (void)state;
    call(&p, 0);
    rpc_pair_pump(&p);
    for (long nth = 0; fired; nth++) {
        struct mu_span item = mu_span(f->sent[0], 9000);
        size_t kept = p.client.rpc.kept_bytes;
        int err;

        failheap_arm(nth);
        err = mu_rpc_item_lent(&p.client.rpc, p.now, f->id, item, NULL);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        assert_int_equal(p.client.rpc.kept_bytes - kept, fired ? 0 : MU_RPC_HEADER + 9000);
    }
    rpc_pair_pump(&p);
    assert_int_equal(f->got_len, 9000);
    finish(&p);
}

/* All that is out on either side arrives at the other, that much later. */
static void travel(struct rpc_pair *p, uint64_t ms)
{
    while (rpc_pair_send(p, &p->client, &p->server) || rpc_pair_send(p, &p->server, &p->client)) {
    }
    rpc_pair_ms(p, ms);
    while (rpc_pair_receive(p, &p->server) || rpc_pair_receive(p, &p->client)) {
    }
}

/* Sends for a while over a path that takes `ms` each way; returns the window of calls then. */
static uint64_t window_after(uint64_t ms)
{
    struct mu_rpc_config config = mu_rpc_config_defaults();
    struct rpc_pair p;
    struct flow *f;
    uint64_t window;

    config.call_window_bytes = 65536;
    config.call_window_bytes_max = 1u << 20;
    f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->got = calloc(1, 1);
    rpc_pair_init(&p, NULL, &config);
    p.context = f;
    assert_int_equal(rpc_pair_link(&p), 0);
    travel(&p, ms);
    travel(&p, ms);
    for (int i = 0; i < 400; i++) {
        uint64_t id;
        int err = 0;

        while (err == 0) {
            err = mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("t::T.x"), mu_span(f->sent, 9000),
                              0, 0, &id);
            assert_true(err == 0 || err == MUSTER_EAGAIN);
        }
        if (ms == 0) {
            /* No time on the way; the receiver takes what it takes in 3 ms. */
            rpc_pair_pump(&p);
            rpc_pair_ms(&p, 3);
        } else {
            travel(&p, ms);
        }
    }
    window = p.server.rpc.call_window;
    finish(&p);
    return window;
}

static void test_rpc_window_grows_with_the_path(void **state)
{
    (void)state;
    assert_int_equal(window_after(0), 65536);
    assert_int_equal(window_after(50), 1u << 20);
}

/* The callee sends items for a while over a path that takes `ms` each way; returns the window of
 * items then. */
static uint64_t item_window_after(uint64_t ms)
{
    struct mu_rpc_config config = mu_rpc_config_defaults();
    struct rpc_pair p;
    struct flow *f = calloc(1, sizeof(*f));
    uint64_t window;

    assert_non_null(f);
    f->got = calloc(ITEMS * 100, ITEM_MAX);
    f->down = true;
    config.item_window_bytes = 65536;
    config.item_window_bytes_max = 1u << 20;
    rpc_pair_init(&p, &config, NULL);
    p.on_event = on_event;
    p.context = f;
    assert_int_equal(rpc_pair_link(&p), 0);
    travel(&p, ms);
    travel(&p, ms);
    call(&p, 0);
    rpc_pair_pump(&p);
    for (int i = 0; i < 400; i++) {
        int err = 0;

        while (err == 0) {
            err = mu_rpc_item(&p.server.rpc, p.now, f->id_in, mu_span(f->sent, ITEM_MAX));
            assert_true(err == 0 || err == MUSTER_EAGAIN);
        }
        if (ms == 0) {
            rpc_pair_pump(&p);
            rpc_pair_ms(&p, 3);
        } else {
            travel(&p, ms);
        }
        assert_true(p.client.rpc.item_window <= config.item_window_bytes_max);
        f->got_len = 0;
    }
    window = p.client.rpc.item_window;
    finish(&p);
    return window;
}

static void test_rpc_window_of_items_grows_with_the_path(void **state)
{
    (void)state;
    assert_int_equal(item_window_after(0), 65536);
    assert_int_equal(item_window_after(50), 1u << 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_lent_items_arrive_as_copied_ones),
        cmocka_unit_test(test_rpc_lent_items_are_sent_again_after_a_cut),
        cmocka_unit_test(test_rpc_lent_item_is_sent_from_where_it_lies),
        cmocka_unit_test(test_rpc_revoked_memory_is_not_looked_at_again),
        cmocka_unit_test(test_rpc_revoking_without_memory_ends_the_session),
        cmocka_unit_test(test_rpc_blob_is_kept_until_it_is_acknowledged),
        cmocka_unit_test(test_rpc_lent_replies_arrive_as_copied_ones),
        cmocka_unit_test(test_rpc_lent_reply_is_let_go_of_with_the_session),
        cmocka_unit_test(test_rpc_place_that_is_taken_back_is_not_written_to),
        cmocka_unit_test(test_rpc_place_goes_with_a_call_that_is_canceled_or_late),
        cmocka_unit_test(test_rpc_place_is_for_the_caller_too),
        cmocka_unit_test(test_rpc_item_that_is_too_long_for_its_place_lies_elsewhere),
        cmocka_unit_test(test_rpc_place_is_gone_with_the_end),
        cmocka_unit_test(test_rpc_length_alone_takes_no_memory),
        cmocka_unit_test(test_rpc_lent_item_without_memory_changes_nothing),
        cmocka_unit_test(test_rpc_window_grows_with_the_path),
        cmocka_unit_test(test_rpc_window_of_items_grows_with_the_path),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
