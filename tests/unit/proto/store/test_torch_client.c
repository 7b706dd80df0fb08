/*
 * The client machine, mostly back to back with the server machine in memory, with a splitter in
 * between; what no server of ours would say is fed by hand.
 */
#include <stddef.h>
#include <stdint.h>

#include "failheap.h"
#include "torch_rig.h"

#include "proto/store/torch_client.h"

#define N(x)      ((uint64_t)(x))
#define KEY(text) ((struct mu_span[]){mu_span_str(text)})
#define KEYS(...) ((struct mu_span[]){__VA_ARGS__})
#define S(text)   MU_SPAN_LIT(text)

/* --- a client and what it was told --------------------------------------------------------- */

struct told {
    uint64_t tag;
    int status;
    int64_t number;
    size_t count;
    char values[8][64];
};

struct end {
    struct mu_torch_client c;
    int err;
    bool ready;
    struct told told[64];
    size_t told_count;
};

static void end_init(struct end *e, enum mu_torch_generation generation)
{
    struct mu_torch_client_config config = mu_torch_client_config_defaults();

    memset(e, 0, sizeof(*e));
    config.generation = generation;
    config.nonce = 0x01020304;
    assert_int_equal(mu_torch_client_init(&e->c, &config), 0);
}

static void end_pull(struct end *e)
{
    struct mu_torch_client_event event;

    while (mu_torch_client_next_event(&e->c, &event)) {
        struct told *told = &e->told[e->told_count];

        if (event.type == MU_TORCH_CLIENT_READY) {
            e->ready = true;
            continue;
        }
        assert_true(e->told_count < 64);
        e->told_count++;
        told->tag = event.tag;
        told->status = event.status;
        told->number = event.reply.number;
        told->count = event.reply.value_count;
        for (size_t i = 0; i < event.reply.value_count && i < 8; i++) {
            assert_true(event.reply.values[i].len < 64);
            (void)snprintf(told->values[i], 64, "%.*s", (int)event.reply.values[i].len,
                           (const char *)event.reply.values[i].data);
        }
    }
}

/* Feeds answers by hand; returns how much was taken. */
static size_t end_hear(struct end *e, struct mu_span in)
{
    size_t done = 0;

    end_pull(e);
    while (done < in.len && e->err == 0) {
        size_t used = 0;

        e->err = mu_torch_client_recv(&e->c, mu_span_skip(in, done), &used);
        assert_true(e->err != 0 || used != 0);
        done += used;
        end_pull(e);
    }
    return done;
}

static void end_drop_output(struct end *e)
{
    mu_torch_client_sent(&e->c, mu_torch_client_output(&e->c).len);
}

static void end_expect_output(struct end *e, struct mu_span want)
{
    if (!mu_span_eq(mu_torch_client_output(&e->c), want)) {
        rig_print("got ", mu_torch_client_output(&e->c));
        rig_print("want", want);
        fail();
    }
    end_drop_output(e);
}

static int submit(struct end *e, uint64_t tag, enum mu_store_verb verb, struct mu_span *keys,
                  size_t key_count, struct mu_span *values, size_t value_count, int64_t number)
{
    struct mu_store_request request = {
        .verb = verb,
        .keys = keys,
        .key_count = key_count,
        .values = values,
        .value_count = value_count,
        .number = number,
    };

    return mu_torch_client_submit(&e->c, &request, tag);
}

static int submit_nowait(struct end *e, uint64_t tag, enum mu_store_verb verb, struct mu_span *keys,
                         size_t key_count)
{
    struct mu_store_request request = {
        .verb = verb, .keys = keys, .key_count = key_count, .flags = MU_STORE_NOWAIT};

    return mu_torch_client_submit(&e->c, &request, tag);
}

/* --- a client on connection `i` of a rig --------------------------------------------------- */

static void pair_pump(struct rig *r, size_t i, struct end *e)
{
    struct mu_buf *got = &r->conns[i].got;
    bool moved = true;

    while (moved && e->err == 0) {
        struct mu_span out = mu_torch_client_output(&e->c);

        moved = false;
        end_pull(e);
        if (out.len != 0) {
            size_t n = rig_piece(r, out.len);

            rig_say(r, i, mu_span(out.data, n));
            mu_torch_client_sent(&e->c, n);
            moved = true;
        }
        if (got->len != 0) {
            size_t n = rig_piece(r, got->len);
            uint8_t *copy = malloc(n);
            size_t used = 0;

            memcpy(copy, mu_buf_span(got).data, n);
            e->err = mu_torch_client_recv(&e->c, mu_span(copy, n), &used);
            free(copy);
            mu_buf_consume(got, used);
            end_pull(e);
            moved = true;
        }
    }
}

static void expect_told(struct end *e, size_t index, uint64_t tag, int status, int64_t number,
                        size_t count, const char *first)
{
    struct told *told = &e->told[index];

    assert_true(index < e->told_count);
    assert_int_equal(told->tag, tag);
    assert_int_equal(told->status, status);
    assert_int_equal(told->number, number);
    assert_int_equal(told->count, count);
    if (first != NULL) {
        assert_string_equal(told->values[0], first);
    }
}

static void speak_common(struct rig *r, struct end *e)
{
    assert_int_equal(submit(e, 1, MU_STORE_SET, KEY("k"), 1, KEY("v"), 1, 0), 0);
    assert_int_equal(submit(e, 2, MU_STORE_ADD, KEY("init/"), 1, NULL, 0, 1), 0);
    assert_int_equal(submit(e, 3, MU_STORE_ADD, KEY("n"), 1, NULL, 0, -7), 0);
    assert_int_equal(submit(e, 4, MU_STORE_COMPARE_SET, KEY("c"), 1, KEYS(S(""), S("a")), 2, 0), 0);
    assert_int_equal(submit(e, 5, MU_STORE_COMPARE_SET, KEY("c"), 1, KEYS(S("x"), S("b")), 2, 0),
                     0);
    assert_int_equal(submit(e, 6, MU_STORE_CHECK, KEYS(S("k"), S("n")), 2, NULL, 0, 0), 0);
    assert_int_equal(submit(e, 7, MU_STORE_CHECK, KEYS(S("k"), S("zz")), 2, NULL, 0, 0), 0);
    assert_int_equal(submit(e, 8, MU_STORE_NUM_KEYS, NULL, 0, NULL, 0, 0), 0);
    assert_int_equal(submit(e, 9, MU_STORE_DELETE, KEY("n"), 1, NULL, 0, 0), 0);
    assert_int_equal(submit(e, 10, MU_STORE_DELETE, KEY("n"), 1, NULL, 0, 0), 0);
    assert_int_equal(mu_torch_client_in_flight(&e->c), 10);
    pair_pump(r, 0, e);
    assert_true(e->ready);
    assert_int_equal(e->err, 0);
    assert_int_equal(e->told_count, 10);
    expect_told(e, 0, 1, 0, 0, 0, NULL);
    expect_told(e, 1, 2, 0, 1, 0, NULL);
    expect_told(e, 2, 3, 0, -7, 0, NULL);
    expect_told(e, 3, 4, 0, 1, 1, "a");
    expect_told(e, 4, 5, 0, 0, 1, "a");
    expect_told(e, 5, 6, 0, 1, 0, NULL);
    expect_told(e, 6, 7, 0, 0, 0, NULL);
    expect_told(e, 7, 8, 0, 4, 0, NULL);
    expect_told(e, 8, 9, 0, 1, 0, NULL);
    expect_told(e, 9, 10, 0, 0, 0, NULL);
    assert_int_equal(mu_torch_client_in_flight(&e->c), 0);
    /* The server has the keys as PyTorch would have sent them. */
    assert_true(mu_ks_has(&r->ks, S("/k")));
    assert_true(mu_ks_has(&r->ks, S("init/")));

    e->told_count = 0;
    assert_int_equal(submit(e, 20, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit_nowait(e, 21, MU_STORE_GET, KEY("k"), 1), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit_nowait(e, 22, MU_STORE_GET, KEY("zz"), 1), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit(e, 23, MU_STORE_WAIT, KEYS(S("k"), S("k")), 2, NULL, 0, 0), 0);
    pair_pump(r, 0, e);
    assert_int_equal(e->told_count, 4);
    expect_told(e, 0, 20, 0, 0, 1, "v");
    expect_told(e, 1, 21, 0, 0, 1, "v");
    expect_told(e, 2, 22, MUSTER_ENOENT, 0, 0, NULL);
    expect_told(e, 3, 23, 0, 0, 0, NULL);
}

static void speak_2(struct rig *r, struct end *e)
{
    e->told_count = 0;
    assert_int_equal(submit(e, 1, MU_STORE_APPEND, KEY("k"), 1, KEY("w"), 1, 0), 0);
    assert_int_equal(
        submit(e, 2, MU_STORE_MULTI_SET, KEYS(S("a"), S("b")), 2, KEYS(S("1"), S("22")), 2, 0), 0);
    assert_int_equal(submit(e, 3, MU_STORE_QUEUE_PUSH, KEY("q"), 1, KEY("e1"), 1, 0), 0);
    assert_int_equal(submit(e, 4, MU_STORE_QUEUE_PUSH, KEY("q"), 1, KEY("e2"), 1, 0), 0);
    assert_int_equal(submit(e, 5, MU_STORE_QUEUE_LEN, KEY("q"), 1, NULL, 0, 0), 0);
    assert_int_equal(submit_nowait(e, 6, MU_STORE_QUEUE_POP, KEY("q"), 1), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit(e, 7, MU_STORE_QUEUE_POP, KEY("q"), 1, NULL, 0, 0), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit_nowait(e, 8, MU_STORE_QUEUE_POP, KEY("q"), 1), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit(e, 9, MU_STORE_MULTI_GET, KEYS(S("b"), S("a")), 2, NULL, 0, 0), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit_nowait(e, 10, MU_STORE_MULTI_GET, KEYS(S("b"), S("zz")), 2), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit(e, 11, MU_STORE_MULTI_GET, NULL, 0, NULL, 0, 0), 0);
    pair_pump(r, 0, e);
    assert_int_equal(submit(e, 12, MU_STORE_LIST_KEYS, NULL, 0, NULL, 0, 0), 0);
    pair_pump(r, 0, e);
    assert_int_equal(e->err, 0);
    assert_int_equal(e->told_count, 12);
    expect_told(e, 3, 4, 0, 0, 0, NULL);
    expect_told(e, 4, 5, 0, 2, 0, NULL);
    expect_told(e, 5, 6, 0, 2, 1, "e1");
    expect_told(e, 6, 7, 0, 1, 1, "e2");
    expect_told(e, 7, 8, MUSTER_ENOENT, 0, 0, NULL);
    expect_told(e, 8, 9, 0, 0, 2, "22");
    assert_string_equal(e->told[8].values[1], "1");
    expect_told(e, 9, 10, MUSTER_ENOENT, 0, 0, NULL);
    expect_told(e, 10, 11, 0, 0, 0, NULL);
    /* a, b, c, k; "init/" is nobody's key. */
    assert_int_equal(e->told[11].count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_true(strchr("abck", e->told[11].values[i][0]) != NULL);
        assert_int_equal(strlen(e->told[11].values[i]), 1);
    }
}

static void test_torch_client_and_server_understand_each_other(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        for (int generation = MU_TORCH_1; generation <= MU_TORCH_2; generation++) {
            struct rig r;
            struct end e;

            rig_init(&r, seed == 0 ? RIG_WHOLE : seed == 1 ? RIG_BYTES : RIG_RANDOM, seed);
            end_init(&e, (enum mu_torch_generation)generation);
            speak_common(&r, &e);
            if (generation == MU_TORCH_2) {
                speak_2(&r, &e);
            }
            mu_torch_client_fini(&e.c);
            rig_fini(&r);
        }
    }
}

/* --- the bytes, as PyTorch's clients send them ---------------------------------------------- */

static void test_torch_client_sends_what_pytorch_sends(void **state)
{
    struct end e;

    (void)state;
    end_init(&e, MU_TORCH_2);
    end_expect_output(&e, rig_bytes("bwbw", 0, MU_TORCH_MAGIC, 13, 0x01020304u));
    assert_int_equal(submit(&e, 1, MU_STORE_ADD, KEY("n"), 1, NULL, 0, -2), 0);
    end_expect_output(&e, rig_bytes("bsn", 4, "/n", N(-2)));
    assert_int_equal(submit(&e, 2, MU_STORE_SET, KEY("e"), 1, KEY(""), 1, 0), 0);
    end_expect_output(&e, rig_bytes("bssbn", 1, "/e", "", 5, N(0)));
    assert_int_equal(submit(&e, 3, MU_STORE_COMPARE_SET, KEY("cs"), 1, KEYS(S("a"), S("b")), 2, 0),
                     0);
    end_expect_output(&e, rig_bytes("bsss", 2, "/cs", "a", "b"));
    mu_torch_client_fini(&e.c);

    end_init(&e, MU_TORCH_1);
    assert_int_equal(mu_torch_client_output(&e.c).len, 0);
    assert_int_equal(submit(&e, 1, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0), 0);
    end_expect_output(&e, rig_bytes("bns", 5, N(1), "/k"));
    assert_int_equal(end_hear(&e, S("\0")), 1);
    end_expect_output(&e, rig_bytes("bs", 2, "/k"));
    assert_int_equal(e.told_count, 0);
    assert_int_equal(end_hear(&e, rig_bytes("s", "v")), 9);
    expect_told(&e, 0, 1, 0, 0, 1, "v");
    mu_torch_client_fini(&e.c);
}

/* --- who may be in flight with whom --------------------------------------------------------- */

static void test_torch_client_gives_what_blocks_the_connection_to_itself(void **state)
{
    struct end e;

    (void)state;
    end_init(&e, MU_TORCH_1);
    assert_int_equal(submit(&e, 1, MU_STORE_ADD, KEY("n"), 1, NULL, 0, 1), 0);
    assert_int_equal(submit(&e, 2, MU_STORE_WAIT, KEY("k"), 1, NULL, 0, 0), MUSTER_EAGAIN);
    assert_int_equal(submit(&e, 2, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0), MUSTER_EAGAIN);
    /* One that takes two steps may follow others, but nothing may follow it. */
    assert_int_equal(submit_nowait(&e, 3, MU_STORE_GET, KEY("k"), 1), 0);
    assert_int_equal(submit(&e, 4, MU_STORE_ADD, KEY("n"), 1, NULL, 0, 1), MUSTER_EAGAIN);
    (void)end_hear(&e, rig_bytes("nbs", N(1), 0, "v"));
    assert_int_equal(e.told_count, 2);
    assert_int_equal(submit(&e, 5, MU_STORE_WAIT, KEY("k"), 1, NULL, 0, 0), 0);
    assert_int_equal(submit(&e, 6, MU_STORE_ADD, KEY("n"), 1, NULL, 0, 1), MUSTER_EAGAIN);
    (void)end_hear(&e, S("\0"));
    assert_int_equal(submit(&e, 7, MU_STORE_ADD, KEY("n"), 1, NULL, 0, 1), 0);
    mu_torch_client_fini(&e.c);
}

static void test_torch_client_says_what_it_cannot_do(void **state)
{
    static const enum mu_store_verb only_2[] = {
        MU_STORE_APPEND,    MU_STORE_MULTI_GET, MU_STORE_MULTI_SET, MU_STORE_QUEUE_PUSH,
        MU_STORE_QUEUE_POP, MU_STORE_QUEUE_LEN, MU_STORE_LIST_KEYS,
    };
    struct mu_store_request leased = {.verb = MU_STORE_SET,
                                      .keys = KEY("k"),
                                      .key_count = 1,
                                      .values = KEY("v"),
                                      .value_count = 1,
                                      .lease = 5};
    struct end one;
    struct end two;

    (void)state;
    end_init(&one, MU_TORCH_1);
    end_init(&two, MU_TORCH_2);
    for (size_t i = 0; i < sizeof(only_2) / sizeof(only_2[0]); i++) {
        assert_int_equal(submit(&one, 1, only_2[i], KEY("k"), 1, KEY("v"), 1, 0), MUSTER_ENOTSUP);
    }
    assert_int_equal(submit(&two, 1, MU_STORE_BARRIER, KEY("k"), 1, NULL, 0, 2), MUSTER_ENOTSUP);
    assert_int_equal(submit(&two, 1, MU_STORE_WATCH, KEY("k"), 1, NULL, 0, 0), MUSTER_ENOTSUP);
    assert_int_equal(submit(&two, 1, MU_STORE_LEASE_GRANT, NULL, 0, NULL, 0, 1), MUSTER_ENOTSUP);
    assert_int_equal(submit(&two, 1, MU_STORE_LIST_KEYS, KEY("pre"), 1, NULL, 0, 0),
                     MUSTER_ENOTSUP);
    assert_int_equal(mu_torch_client_submit(&two.c, &leased, 1), MUSTER_ENOTSUP);
    assert_int_equal(submit(&two, 1, MU_STORE_SET, KEY("k"), 1, NULL, 0, 0), MUSTER_EINVAL);
    assert_int_equal(submit(&two, 1, MU_STORE_GET, NULL, 0, NULL, 0, 0), MUSTER_EINVAL);
    assert_int_equal(submit(&two, 1, MU_STORE_MULTI_SET, KEY("k"), 1, NULL, 0, 0), MUSTER_EINVAL);
    assert_int_equal(mu_torch_client_in_flight(&one.c) + mu_torch_client_in_flight(&two.c), 0);
    mu_torch_client_fini(&one.c);
    mu_torch_client_fini(&two.c);
}

/* --- cancelling ----------------------------------------------------------------------------- */

static void test_torch_client_cancels_a_wait_and_stays_in_step(void **state)
{
    struct rig r;
    struct end e;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    end_init(&e, MU_TORCH_2);
    assert_int_equal(mu_torch_client_cancel(&e.c), MUSTER_ENOENT);
    assert_int_equal(submit(&e, 1, MU_STORE_GET, KEY("nope"), 1, NULL, 0, 0), 0);
    pair_pump(&r, 0, &e);
    assert_int_equal(mu_torch_client_cancel(&e.c), 0);
    assert_int_equal(mu_torch_client_cancel(&e.c), 0);
    pair_pump(&r, 0, &e);
    expect_told(&e, 0, 1, MUSTER_ECANCELED, 0, 0, NULL);
    assert_int_equal(r.ks.wait_count, 0);
    assert_int_equal(submit(&e, 2, MU_STORE_SET, KEY("k"), 1, KEY("v"), 1, 0), 0);
    pair_pump(&r, 0, &e);
    assert_int_equal(submit(&e, 3, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0), 0);
    pair_pump(&r, 0, &e);
    expect_told(&e, 2, 3, 0, 0, 1, "v");
    mu_torch_client_fini(&e.c);
    rig_fini(&r);
}

static void greet(struct end *e)
{
    end_drop_output(e);
    assert_int_equal(end_hear(e, rig_bytes("w", 0x01020304u)), 4);
    assert_true(e->ready);
}

static void test_torch_client_copes_when_the_answer_crosses_the_cancel(void **state)
{
    struct end e;

    (void)state;
    end_init(&e, MU_TORCH_2);
    greet(&e);
    assert_int_equal(submit(&e, 1, MU_STORE_WAIT, KEY("k"), 1, NULL, 0, 0), 0);
    assert_int_equal(mu_torch_client_cancel(&e.c), 0);
    end_expect_output(&e, rig_bytes("bnsb", 6, N(1), "/k", 12));
    (void)end_hear(&e, S("\0"));
    assert_int_equal(e.told_count, 0);
    (void)end_hear(&e, S("\1"));
    expect_told(&e, 0, 1, 0, 0, 0, NULL);
    /* A get that was given up does not go on to its second step. */
    assert_int_equal(submit(&e, 2, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0), 0);
    assert_int_equal(mu_torch_client_cancel(&e.c), 0);
    end_drop_output(&e);
    (void)end_hear(&e, S("\0\1"));
    expect_told(&e, 1, 2, MUSTER_ECANCELED, 0, 0, NULL);
    assert_int_equal(mu_torch_client_output(&e.c).len, 0);
    /* Once the second step is out, there is nothing to cancel: the answer comes. */
    assert_int_equal(submit(&e, 3, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0), 0);
    (void)end_hear(&e, S("\0"));
    end_drop_output(&e);
    assert_int_equal(mu_torch_client_cancel(&e.c), 0);
    assert_int_equal(mu_torch_client_output(&e.c).len, 0);
    (void)end_hear(&e, rig_bytes("s", "v"));
    expect_told(&e, 2, 3, 0, 0, 1, "v");
    assert_int_equal(e.err, 0);
    mu_torch_client_fini(&e.c);
}

static void test_torch_client_cannot_cancel_in_generation_1(void **state)
{
    struct end e;

    (void)state;
    end_init(&e, MU_TORCH_1);
    assert_int_equal(submit(&e, 1, MU_STORE_WAIT, KEY("k"), 1, NULL, 0, 0), 0);
    assert_int_equal(mu_torch_client_cancel(&e.c), MUSTER_ENOTSUP);
    mu_torch_client_fini(&e.c);
}

static void test_torch_client_tells_when_another_popped_first(void **state)
{
    struct end e;

    (void)state;
    end_init(&e, MU_TORCH_2);
    greet(&e);
    assert_int_equal(submit(&e, 1, MU_STORE_QUEUE_POP, KEY("q"), 1, NULL, 0, 0), 0);
    (void)end_hear(&e, rig_bytes("bn", 0, N(0)));
    expect_told(&e, 0, 1, MUSTER_EAGAIN, 0, 0, NULL);
    mu_torch_client_fini(&e.c);
}

/* --- answers that no server should give ----------------------------------------------------- */

static void expect_poison(struct mu_span answer, enum mu_store_verb verb, int code)
{
    struct end e;
    size_t used;

    end_init(&e, MU_TORCH_2);
    greet(&e);
    if (verb != 0) {
        struct mu_span *keys = verb == MU_STORE_LIST_KEYS ? NULL : KEY("k");

        assert_int_equal(submit(&e, 1, verb, keys, keys == NULL ? 0 : 1,
                                verb == MU_STORE_SET ? KEY("v") : NULL,
                                verb == MU_STORE_SET ? 1 : 0, 0),
                         0);
    }
    (void)end_hear(&e, answer);
    assert_int_equal(e.err, code);
    assert_true(mu_torch_client_errmsg(&e.c)[0] != '\0');
    assert_int_equal(mu_torch_client_recv(&e.c, S("x"), &used), code);
    assert_int_equal(submit(&e, 9, MU_STORE_NUM_KEYS, NULL, 0, NULL, 0, 0), code);
    mu_torch_client_fini(&e.c);
}

static void test_torch_client_refuses_answers_that_cannot_be(void **state)
{
    struct end e;

    (void)state;
    expect_poison(S("\0"), 0, MUSTER_EPROTO);
    expect_poison(S("\2"), MU_STORE_WAIT, MUSTER_EPROTO);
    expect_poison(S("\1"), MU_STORE_WAIT, MUSTER_EPROTO);
    expect_poison(S("\2"), MU_STORE_CHECK, MUSTER_EPROTO);
    expect_poison(S("\1"), MU_STORE_SET, MUSTER_EPROTO);
    expect_poison(rig_bytes("bn", 0, UINT64_MAX), MU_STORE_GET, MUSTER_ELIMIT);
    expect_poison(rig_bytes("bn", 0, N(1 << 30) + 9), MU_STORE_GET, MUSTER_ELIMIT);
    expect_poison(rig_bytes("n", UINT64_MAX), MU_STORE_LIST_KEYS, MUSTER_EPROTO);
    expect_poison(rig_bytes("n", N(16 << 20) + 1), MU_STORE_LIST_KEYS, MUSTER_ELIMIT);
    expect_poison(rig_bytes("bn", 0, N(-1)), MU_STORE_QUEUE_POP, MUSTER_EPROTO);

    end_init(&e, MU_TORCH_2);
    (void)end_hear(&e, rig_bytes("w", 5u));
    assert_int_equal(e.err, MUSTER_EPROTO);
    assert_string_equal(mu_torch_client_errmsg(&e.c),
                        "the answer to PING is 5 instead of 16909060");
    mu_torch_client_fini(&e.c);
}

static void test_torch_client_is_safe_from_garbage(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 9);
    for (int round = 0; round < 3000; round++) {
        static const enum mu_store_verb verbs[] = {MU_STORE_GET, MU_STORE_WAIT, MU_STORE_NUM_KEYS,
                                                   MU_STORE_LIST_KEYS, MU_STORE_QUEUE_POP};
        enum mu_store_verb verb = verbs[mu_prng_below(&prng, 5)];
        bool keyless = verb == MU_STORE_NUM_KEYS || verb == MU_STORE_LIST_KEYS;
        uint8_t junk[64];
        struct end e;

        end_init(&e, MU_TORCH_2);
        greet(&e);
        assert_int_equal(submit(&e, 1, verb, KEY("k"), keyless ? 0 : 1, NULL, 0, 0), 0);
        for (size_t i = 0; i < sizeof(junk); i++) {
            junk[i] = (uint8_t)(mu_prng_chance(&prng, 800000) ? mu_prng_below(&prng, 3)
                                                              : mu_prng_below(&prng, 256));
        }
        (void)end_hear(&e, mu_span(junk, sizeof(junk)));
        mu_torch_client_fini(&e.c);
    }
}

static void test_torch_client_limits_what_waits_to_be_sent(void **state)
{
    struct mu_torch_client_config config = mu_torch_client_config_defaults();
    struct mu_store_request set = {.verb = MU_STORE_SET,
                                   .keys = KEY("k"),
                                   .key_count = 1,
                                   .values = KEY("0123456789"),
                                   .value_count = 1};
    struct mu_torch_client c;

    (void)state;
    config.output_bytes_max = 60;
    assert_int_equal(mu_torch_client_init(&c, &config), 0);
    assert_int_equal(mu_torch_client_submit(&c, &set, 1), 0);
    assert_int_equal(mu_torch_client_submit(&c, &set, 2), MUSTER_ELIMIT);
    assert_int_equal(mu_torch_client_in_flight(&c), 1);
    mu_torch_client_fini(&c);
}

/* Each allocation fails in turn: submit refuses and changes nothing, or recv poisons; no leak. */
static void test_torch_client_survives_a_failing_heap(void **state)
{
    (void)state;
    for (long nth = 0;; nth++) {
        struct mu_torch_client_config config = mu_torch_client_config_defaults();
        struct mu_span answer = rig_bytes("wbsnsss", 0u, 0, "v", N(3), "/a", "/b", "init/");
        struct end e;
        bool fired;
        int err;

        memset(&e, 0, sizeof(e));
        failheap_arm(nth);
        err = mu_torch_client_init(&e.c, &config);
        if (err == 0) {
            err = submit(&e, 1, MU_STORE_GET, KEY("k"), 1, NULL, 0, 0);
        }
        if (err == 0) {
            end_drop_output(&e);
            (void)end_hear(&e, mu_span(answer.data, 4 + 1 + 9));
            err = e.err;
        }
        if (err == 0) {
            err = submit(&e, 2, MU_STORE_LIST_KEYS, NULL, 0, NULL, 0, 0);
        }
        if (err == 0) {
            (void)end_hear(&e, mu_span_skip(answer, 4 + 1 + 9));
            err = e.err;
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_torch_client_fini(&e.c);
        if (!fired) {
            assert_int_equal(e.told_count, 2);
            assert_true(nth > 4);
            break;
        }
    }
}

static void test_torch_client_reads_a_dribble_once(void **state)
{
    enum { KEYS_COUNT = 100000 };
    struct mu_buf b;
    struct end e;

    (void)state;
    end_init(&e, MU_TORCH_2);
    greet(&e);
    assert_int_equal(submit(&e, 1, MU_STORE_LIST_KEYS, NULL, 0, NULL, 0, 0), 0);
    mu_buf_init(&b, 8 << 20);
    assert_int_equal(mu_buf_reserve(&b, 8 + KEYS_COUNT * 10), 0);
    mu_buf_put_u64(&b, KEYS_COUNT);
    for (size_t i = 0; i < KEYS_COUNT; i++) {
        mu_buf_put_u64(&b, 2);
        mu_buf_put(&b, S("/k"));
    }
    for (size_t i = 0; i < b.len; i++) {
        size_t before = i == 0 ? 0 : e.c.scan_offset;
        size_t used;

        assert_int_equal(mu_torch_client_recv(&e.c, mu_span(b.data + i, 1), &used), 0);
        assert_int_equal(used, 1);
        assert_in_range(e.c.scan_offset, before, before + 10);
    }
    assert_true(e.c.has_event);
    assert_int_equal(e.c.event.reply.value_count, KEYS_COUNT);
    mu_buf_fini(&b);
    mu_torch_client_fini(&e.c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_client_and_server_understand_each_other),
        cmocka_unit_test(test_torch_client_sends_what_pytorch_sends),
        cmocka_unit_test(test_torch_client_gives_what_blocks_the_connection_to_itself),
        cmocka_unit_test(test_torch_client_says_what_it_cannot_do),
        cmocka_unit_test(test_torch_client_cancels_a_wait_and_stays_in_step),
        cmocka_unit_test(test_torch_client_copes_when_the_answer_crosses_the_cancel),
        cmocka_unit_test(test_torch_client_cannot_cancel_in_generation_1),
        cmocka_unit_test(test_torch_client_tells_when_another_popped_first),
        cmocka_unit_test(test_torch_client_refuses_answers_that_cannot_be),
        cmocka_unit_test(test_torch_client_is_safe_from_garbage),
        cmocka_unit_test(test_torch_client_limits_what_waits_to_be_sent),
        cmocka_unit_test(test_torch_client_survives_a_failing_heap),
        cmocka_unit_test(test_torch_client_reads_a_dribble_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
