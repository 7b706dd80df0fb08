/* The store's operations as payloads: round trips, counts, limits, and what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/store/msg.h"
#include "core/alloc.h"
#include "failheap.h"

static const enum mu_store_verb all_verbs[] = {
#define VERB(name, ...) MU_STORE_##name,
    MU_STORE_VERB_MAP(VERB)
#undef VERB
};

#define VERB_COUNT (sizeof(all_verbs) / sizeof(all_verbs[0]))

static void test_store_msg_methods_name_their_verbs(void **state)
{
    enum mu_store_verb verb;

    (void)state;
    for (size_t i = 0; i < VERB_COUNT; i++) {
        assert_int_equal(
            mu_store_verb_of(mu_span_str(mu_store_verb_facts(all_verbs[i])->method), &verb), 0);
        assert_int_equal(verb, all_verbs[i]);
    }
    assert_string_equal(mu_store_verb_facts(MU_STORE_COMPARE_SET)->method,
                        "muster::Store.compare_set");
    assert_int_equal(mu_store_verb_of(MU_SPAN_LIT("muster::Store."), &verb), MUSTER_ENOMETHOD);
    assert_int_equal(mu_store_verb_of(MU_SPAN_LIT("muster::Store.sett"), &verb), MUSTER_ENOMETHOD);
    assert_int_equal(mu_store_verb_of(MU_SPAN_LIT("muster::Store"), &verb), MUSTER_ENOMETHOD);
    assert_int_equal(mu_store_verb_of(MU_SPAN_LIT("set"), &verb), MUSTER_ENOMETHOD);
}

static void test_store_msg_request_has_the_bytes_of_its_layout(void **state)
{
    static const uint8_t expected[] = {
        1,    0,    0,    0,                                  /* flags: nowait */
        0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,       /* number: -2 */
        7,    0,    0,    0,    0,    0,    0,    0,          /* lease */
        1,    0,    0,    0,    3,    0,    0,    0,          /* one key of three bytes */
        'k',  'e',  'y',  1,    0,    0,    0,    0,    0, 0, /* one value, empty */
        0,
    };
    struct mu_span key = MU_SPAN_LIT("key");
    struct mu_span value = {0};
    struct mu_store_request in = {.verb = MU_STORE_SET,
                                  .flags = MU_STORE_NOWAIT,
                                  .keys = &key,
                                  .key_count = 1,
                                  .values = &value,
                                  .value_count = 1,
                                  .number = -2,
                                  .lease = 7};
    struct mu_store_request out;
    struct mu_span *parts;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_store_request_encode(&b, &in), 0);
    assert_int_equal(b.len, sizeof(expected));
    assert_memory_equal(mu_buf_span(&b).data, expected, sizeof(expected));
    assert_int_equal(mu_store_request_decode(mu_buf_span(&b), MU_STORE_SET, 1, &out, &parts), 0);
    assert_int_equal(out.verb, MU_STORE_SET);
    assert_int_equal(out.number, -2);
    assert_int_equal(out.lease, 7);
    assert_span_text(out.keys[0], "key");
    assert_int_equal(out.values[0].len, 0);
    mu_free(parts);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_store_request_decode(mu_span(mu_buf_span(&b).data, n), MU_STORE_SET, 1,
                                                 &out, &parts),
                         MUSTER_EPROTO);
    }
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("x")), 0);
    assert_int_equal(mu_store_request_decode(mu_buf_span(&b), MU_STORE_SET, 1, &out, &parts),
                     MUSTER_EPROTO);
    mu_buf_fini(&b);
}

/* One verb of each shape; EACH: as many values as keys. */
#define EACH SIZE_MAX
static const struct {
    enum mu_store_verb verb;
    size_t keys_min, keys_max, values;
} shapes[] = {
    {MU_STORE_SET, 1, 1, 1},      {MU_STORE_COMPARE_SET, 1, 1, 2},   {MU_STORE_GET, 1, 1, 0},
    {MU_STORE_WAIT, 0, 99, 0},    {MU_STORE_MULTI_SET, 0, 99, EACH}, {MU_STORE_LIST_KEYS, 0, 1, 0},
    {MU_STORE_NUM_KEYS, 0, 0, 0},
};

/* Whether a request of that many keys and values is one, to the decoder. */
static bool is_taken(enum mu_store_verb verb, size_t keys, size_t values)
{
    const struct mu_span spans[3] = {MU_SPAN_LIT("a"), MU_SPAN_LIT("b"), MU_SPAN_LIT("c")};
    struct mu_store_request in = {
        .verb = verb, .keys = spans, .key_count = keys, .values = spans, .value_count = values};
    struct mu_store_request out;
    struct mu_span *parts = NULL;
    struct mu_buf b;
    int err;

    mu_buf_init(&b, 4096);
    assert_int_equal(mu_store_request_encode(&b, &in), 0);
    err = mu_store_request_decode(mu_buf_span(&b), verb, 3, &out, &parts);
    assert_true(err == 0 || err == MUSTER_EPROTO);
    assert_int_equal(err == 0, mu_store_request_fits(&in));
    mu_free(parts);
    mu_buf_fini(&b);
    return err == 0;
}

static void test_store_msg_request_has_as_many_parts_as_its_verb_takes(void **state)
{
    (void)state;
    for (size_t n = 0; n < 16; n++) {
        size_t keys = n / 4;
        size_t values = n % 4;

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            bool fits = keys >= shapes[i].keys_min && keys <= shapes[i].keys_max &&
                        values == (shapes[i].values == EACH ? keys : shapes[i].values);

            if (is_taken(shapes[i].verb, keys, values) != fits) {
                fail_msg("%s with %zu keys and %zu values",
                         mu_store_verb_facts(shapes[i].verb)->name, keys, values);
            }
        }
        for (size_t i = 0; i < VERB_COUNT; i++) {
            (void)is_taken(all_verbs[i], keys, values);
        }
        assert_false(is_taken((enum mu_store_verb)0, keys, values));
        assert_false(is_taken((enum mu_store_verb)(all_verbs[VERB_COUNT - 1] + 1), keys, values));
    }
}

static void test_store_msg_facts_tell_what_may_be_repeated_and_what_waits(void **state)
{
    struct mu_store_request q = {.verb = MU_STORE_QUEUE_POP};

    (void)state;
    assert_true(mu_store_verb_is_read(MU_STORE_WAIT));
    assert_true(mu_store_verb_is_read(MU_STORE_NUM_KEYS));
    assert_false(mu_store_verb_is_read(MU_STORE_QUEUE_POP));
    assert_false(mu_store_verb_is_read(MU_STORE_WATCH)); /* It would skip changes in silence. */
    assert_false(mu_store_verb_is_read(MU_STORE_LEASE_KEEP));
    assert_true(mu_store_may_block(&q));
    q.flags = MU_STORE_NOWAIT;
    assert_false(mu_store_may_block(&q));
    q.verb = MU_STORE_BARRIER;
    assert_true(mu_store_may_block(&q));
    q.verb = MU_STORE_CHECK;
    assert_false(mu_store_may_block(&q));
}

static void test_store_msg_facts_tell_what_a_store_lacks(void **state)
{
    struct mu_store_request q = {.verb = MU_STORE_QUEUE_LEN};

    (void)state;
    assert_string_equal(mu_store_lacks(MU_STORE_IN_FILE, &q), "queues");
    assert_null(mu_store_lacks(MU_STORE_IN_TORCH2, &q));
    q.verb = MU_STORE_APPEND; /* PyTorch 1.13 does not know it, but what it can be made of. */
    assert_null(mu_store_lacks(MU_STORE_IN_TORCH1, &q));
    q.lease = 7;
    assert_string_equal(mu_store_lacks(MU_STORE_IN_TORCH1, &q), "leases");
}

static void test_store_msg_counts_are_checked_before_memory_is_taken(void **state)
{
    uint8_t bytes[20 + 4 + 8] = {0};
    struct mu_store_request out;
    struct mu_span *parts;

    (void)state;
    failheap_arm(0);
    /* Four thousand million keys in eight bytes. */
    memset(bytes + 20, 0xff, 4);
    assert_int_equal(mu_store_request_decode(mu_span(bytes, sizeof(bytes)), MU_STORE_WAIT, SIZE_MAX,
                                             &out, &parts),
                     MUSTER_EPROTO);
    /* A key of four thousand million bytes. */
    mu_put_u32(bytes + 20, 1);
    memset(bytes + 24, 0xff, 4);
    assert_int_equal(mu_store_request_decode(mu_span(bytes, sizeof(bytes)), MU_STORE_WAIT, SIZE_MAX,
                                             &out, &parts),
                     MUSTER_EPROTO);
    /* One key, no values: more than the limit, then a failing heap. */
    memset(bytes + 24, 0, 8);
    assert_int_equal(
        mu_store_request_decode(mu_span(bytes, sizeof(bytes)), MU_STORE_WAIT, 0, &out, &parts),
        MUSTER_ELIMIT);
    assert_false(failheap_fired());
    assert_int_equal(
        mu_store_request_decode(mu_span(bytes, sizeof(bytes)), MU_STORE_WAIT, 1, &out, &parts),
        MUSTER_ENOMEM);
    failheap_disarm();
    /* Unknown flags. */
    bytes[0] = MU_STORE_FLAGS + 1;
    assert_int_equal(
        mu_store_request_decode(mu_span(bytes, sizeof(bytes)), MU_STORE_WAIT, 1, &out, &parts),
        MUSTER_EPROTO);
}

static void test_store_msg_reply_round_trips(void **state)
{
    const struct mu_span values[2] = {MU_SPAN_LIT("one"), MU_SPAN_LIT("")};
    struct mu_store_reply in = {.number = INT64_MIN, .values = values, .value_count = 2};
    struct mu_store_reply out;
    struct mu_span *parts;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_store_reply_encode(&b, &in), 0);
    assert_int_equal(mu_store_reply_decode(mu_buf_span(&b), 2, &out, &parts), 0);
    assert_int_equal(out.number, INT64_MIN);
    assert_int_equal(out.value_count, 2);
    assert_span_text(out.values[0], "one");
    mu_free(parts);
    assert_int_equal(mu_store_reply_decode(mu_buf_span(&b), 1, &out, &parts), MUSTER_ELIMIT);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_store_reply_decode(mu_span(mu_buf_span(&b).data, n), 2, &out, &parts),
                         MUSTER_EPROTO);
    }
    /* Without values there is nothing to free. */
    mu_buf_reset(&b);
    in.value_count = 0;
    assert_int_equal(mu_store_reply_encode(&b, &in), 0);
    assert_int_equal(mu_store_reply_decode(mu_buf_span(&b), 0, &out, &parts), 0);
    assert_null(parts);
    mu_buf_fini(&b);
}

static void test_store_msg_change_round_trips(void **state)
{
    struct mu_change in = {.kind = MU_CHANGE_EXPIRED,
                           .revision = UINT64_MAX,
                           .key = MU_SPAN_LIT("k"),
                           .old_value = MU_SPAN_LIT("stays at home"),
                           .value = MU_SPAN_LIT("value")};
    struct mu_change out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_store_change_encode(&b, &in, false), 0);
    assert_int_equal(b.len, 1 + 8 + 4 + 1 + 4 + 5);
    assert_int_equal(mu_store_change_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.kind, MU_CHANGE_EXPIRED);
    assert_int_equal(out.revision, UINT64_MAX);
    assert_span_text(out.key, "k");
    assert_span_text(out.value, "value");
    assert_int_equal(out.old_value.len, 0);
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_store_change_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    for (unsigned kind = 0; kind < 256; kind++) {
        b.data[b.head] = (uint8_t)kind;
        assert_int_equal(mu_store_change_decode(mu_buf_span(&b), &out),
                         kind >= 1 && kind <= 5 ? 0 : MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
}

static void test_store_msg_change_tells_the_old_value_if_asked(void **state)
{
    struct mu_change in = {.kind = MU_CHANGE_UPDATED,
                           .revision = 7,
                           .key = MU_SPAN_LIT("k"),
                           .old_value = MU_SPAN_LIT("before"),
                           .value = MU_SPAN_LIT("after")};
    struct mu_change out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_store_change_encode(&b, &in, true), 0);
    assert_int_equal(b.len, 1 + 8 + 4 + 1 + 4 + 5 + 4 + 6);
    assert_int_equal(mu_store_change_decode(mu_buf_span(&b), &out), 0);
    assert_span_text(out.value, "after");
    assert_span_text(out.old_value, "before");
    for (size_t n = 0; n < b.len; n++) {
        /* One that ends where the old value would begin is whole. */
        assert_int_equal(mu_store_change_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         n == 1 + 8 + 4 + 1 + 4 + 5 ? 0 : MUSTER_EPROTO);
    }
    mu_buf_fini(&b);
}

static void test_store_msg_encoders_respect_the_buffers_maximum(void **state)
{
    struct mu_span key = MU_SPAN_LIT("key");
    struct mu_span huge = {key.data, (size_t)UINT32_MAX + 1};
    struct mu_store_request in = {.verb = MU_STORE_GET, .keys = &key, .key_count = 1};
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 20 + 4 + 4 + 3 + 4 - 1);
    assert_int_equal(mu_store_request_encode(&b, &in), MUSTER_ELIMIT);
    b.max++;
    assert_int_equal(mu_store_request_encode(&b, &in), 0);
    in.keys = &huge; /* refused by its length; its bytes are not looked at */
    b.max = SIZE_MAX / 2;
    assert_int_equal(mu_store_request_encode(&b, &in), MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_msg_methods_name_their_verbs),
        cmocka_unit_test(test_store_msg_request_has_the_bytes_of_its_layout),
        cmocka_unit_test(test_store_msg_request_has_as_many_parts_as_its_verb_takes),
        cmocka_unit_test(test_store_msg_facts_tell_what_may_be_repeated_and_what_waits),
        cmocka_unit_test(test_store_msg_facts_tell_what_a_store_lacks),
        cmocka_unit_test(test_store_msg_counts_are_checked_before_memory_is_taken),
        cmocka_unit_test(test_store_msg_reply_round_trips),
        cmocka_unit_test(test_store_msg_change_round_trips),
        cmocka_unit_test(test_store_msg_change_tells_the_old_value_if_asked),
        cmocka_unit_test(test_store_msg_encoders_respect_the_buffers_maximum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
