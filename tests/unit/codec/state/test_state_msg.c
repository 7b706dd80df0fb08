/* The messages of the native state download. */
#include "unit.h"

#include <math.h>
#include <string.h>

#include "codec/state/msg.h"
#include "failheap.h"

static struct mu_state_entry example(void)
{
    struct mu_state_entry entry = {
        .prefix = MU_SPAN_LIT("run"),
        .epoch = 3,
        .step = UINT64_MAX,
        .bytes = 5000000000u,
        .tensors = 12,
        .priority = 3.5,
        .have = 7,
        .chunks = 4769,
        .public_key = MU_SPAN_LIT("key"),
        .signature = MU_SPAN_LIT("its signature"),
    };

    memset(entry.id, 0x11, sizeof(entry.id));
    return entry;
}

static void test_state_list_comes_back_entry_by_entry(void **state)
{
    struct mu_state_entry entry = example();
    struct mu_state_entry got;
    struct mu_span walk;
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, 65536);
    assert_int_equal(mu_state_entry_encode(&out, &entry), 0);
    entry.prefix = (struct mu_span){0};
    entry.priority = -INFINITY;
    assert_int_equal(mu_state_entry_encode(&out, &entry), 0);
    walk = mu_buf_span(&out);

    assert_int_equal(mu_state_entry_next(&walk, &got), 1);
    assert_span_text(got.prefix, "run");
    assert_memory_equal(got.id, entry.id, sizeof(got.id));
    assert_int_equal(got.epoch, 3);
    assert_true(got.step == UINT64_MAX);
    assert_true(got.bytes == 5000000000u);
    assert_int_equal(got.tensors, 12);
    assert_true(got.priority == 3.5);
    assert_int_equal(got.have, 7);
    assert_int_equal(got.chunks, 4769);
    assert_span_text(got.public_key, "key");
    assert_span_text(got.signature, "its signature");
    assert_int_equal(mu_state_entry_next(&walk, &got), 1);
    assert_int_equal(got.prefix.len, 0);
    assert_true(isinf(got.priority));
    assert_int_equal(mu_state_entry_next(&walk, &got), 0);
    mu_buf_fini(&out);
}

static void test_state_list_refuses_what_cannot_be(void **state)
{
    struct mu_state_entry entry = example();
    struct mu_state_entry got;
    struct mu_buf out;
    struct mu_span walk;

    (void)state;
    mu_buf_init(&out, 65536);
    entry.priority = NAN;
    assert_int_equal(mu_state_entry_encode(&out, &entry), MUSTER_EINVAL);
    entry.priority = 0;
    entry.prefix.len = MU_STATE_PREFIX_MAX + 1;
    assert_int_equal(mu_state_entry_encode(&out, &entry), MUSTER_EINVAL);
    entry = example();
    entry.signature.len = MU_STATE_SIG_LEN_MAX + 1;
    assert_int_equal(mu_state_entry_encode(&out, &entry), MUSTER_EINVAL);
    assert_int_equal(out.len, 0);

    entry = example();
    assert_int_equal(mu_state_entry_encode(&out, &entry), 0);
    for (size_t len = 1; len < out.len; len++) {
        walk = mu_span(mu_buf_span(&out).data, len);
        assert_int_equal(mu_state_entry_next(&walk, &got), MUSTER_EPROTO);
        assert_int_equal(walk.len, len);
    }
    out.data[out.head] = 255;
    walk = mu_buf_span(&out);
    assert_int_equal(mu_state_entry_next(&walk, &got), MUSTER_EPROTO);

    mu_buf_reset(&out);
    entry.have = entry.chunks + 1;
    assert_int_equal(mu_state_entry_encode(&out, &entry), 0);
    walk = mu_buf_span(&out);
    assert_int_equal(mu_state_entry_next(&walk, &got), MUSTER_EPROTO);
    mu_buf_fini(&out);
}

static void test_state_which_is_an_id_or_a_prefix(void **state)
{
    struct mu_state_which which = {.by_id = true};
    struct mu_state_which got;
    struct mu_buf out;

    (void)state;
    memset(which.id, 3, sizeof(which.id));
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_state_which_encode(&out, &which), 0);
    assert_int_equal(mu_state_which_decode(mu_buf_span(&out), &got), 0);
    assert_true(got.by_id);
    assert_memory_equal(got.id, which.id, sizeof(got.id));
    assert_int_equal(mu_state_which_decode(mu_span(mu_buf_span(&out).data, out.len - 1), &got),
                     MUSTER_EPROTO);

    mu_buf_reset(&out);
    which = (struct mu_state_which){.prefix = MU_SPAN_LIT("run")};
    assert_int_equal(mu_state_which_encode(&out, &which), 0);
    assert_int_equal(mu_state_which_decode(mu_buf_span(&out), &got), 0);
    assert_false(got.by_id);
    assert_span_text(got.prefix, "run");

    assert_int_equal(mu_state_which_decode((struct mu_span){0}, &got), MUSTER_EPROTO);
    assert_int_equal(mu_state_which_decode(MU_SPAN_LIT("\3run"), &got), MUSTER_EPROTO);
    mu_buf_reset(&out);
    which.prefix.len = MU_STATE_PREFIX_MAX + 1;
    assert_int_equal(mu_state_which_encode(&out, &which), MUSTER_EINVAL);
    mu_buf_fini(&out);
}

static void test_state_swarm_lists_addresses(void **state)
{
    struct mu_state_swarm_ask ask = {.addr = MU_SPAN_LIT("10.0.0.7:7777")};
    struct mu_state_swarm_ask got;
    struct mu_span walk;
    struct mu_span addr;
    struct mu_state_swarm_head head = {.again_ms = 5000, .part = 2, .parts = 3};
    struct mu_state_swarm_head read;
    struct mu_buf out;

    (void)state;
    memset(ask.id, 8, sizeof(ask.id));
    mu_buf_init(&out, 65536);
    assert_int_equal(mu_state_swarm_ask_encode(&out, &ask), 0);
    assert_int_equal(mu_state_swarm_ask_decode(mu_buf_span(&out), &got), 0);
    assert_memory_equal(got.id, ask.id, sizeof(ask.id));
    assert_span_text(got.addr, "10.0.0.7:7777");
    assert_int_equal(mu_buf_append(&out, MU_SPAN_LIT("x")), 0);
    assert_int_equal(mu_state_swarm_ask_decode(mu_buf_span(&out), &got), MUSTER_EPROTO);

    mu_buf_reset(&out);
    assert_int_equal(mu_state_swarm_encode(&out, &head), 0);
    for (int i = 0; i < MU_STATE_SWARM_MAX; i++) {
        assert_int_equal(mu_state_swarm_add(&out, MU_SPAN_LIT("a:1")), 0);
    }
    assert_int_equal(mu_state_swarm_decode(mu_buf_span(&out), &read, &walk), 0);
    assert_int_equal(read.again_ms, 5000);
    assert_int_equal(read.part, 2);
    assert_int_equal(read.parts, 3);
    for (int i = 0; i < MU_STATE_SWARM_MAX; i++) {
        assert_int_equal(mu_state_swarm_next(&walk, &addr), 1);
        assert_span_text(addr, "a:1");
    }
    assert_int_equal(mu_state_swarm_next(&walk, &addr), 0);
    assert_int_equal(
        mu_state_swarm_decode(mu_span(mu_buf_span(&out).data, out.len - 1), &read, &walk),
        MUSTER_EPROTO);
    assert_int_equal(mu_state_swarm_add(&out, MU_SPAN_LIT("b:1")), 0);
    assert_int_equal(mu_state_swarm_decode(mu_buf_span(&out), &read, &walk), MUSTER_EPROTO);
    assert_int_equal(mu_state_swarm_add(&out, (struct mu_span){0}), MUSTER_EINVAL);
    assert_int_equal(mu_state_swarm_decode(MU_SPAN_LIT("\1\0\0\0\0\0\0\0\0"), &read, &walk),
                     MUSTER_EPROTO);
    assert_int_equal(mu_state_swarm_decode(MU_SPAN_LIT("\1\0\0"), &read, &walk), MUSTER_EPROTO);
    /* A part that there is not. */
    assert_int_equal(mu_state_swarm_decode(MU_SPAN_LIT("\1\0\0\0\3\0\3\0"), &read, &walk),
                     MUSTER_EPROTO);
    assert_int_equal(mu_state_swarm_decode(MU_SPAN_LIT("\1\0\0\0\1\0\0\0"), &read, &walk),
                     MUSTER_EPROTO);
    assert_int_equal(mu_state_swarm_decode(MU_SPAN_LIT("\1\0\0\0\0\0\0\0"), &read, &walk), 0);
    head.part = 3;
    assert_int_equal(mu_state_swarm_encode(&out, &head), MUSTER_EINVAL);
    mu_buf_fini(&out);
}

static void test_state_have_has_a_bit_for_each_chunk_and_no_more(void **state)
{
    uint8_t bits[2] = {0};
    struct mu_state_have have = {.bits = mu_span(bits, 2)};
    struct mu_state_have got;
    struct mu_buf out;

    (void)state;
    mu_state_bit_set(bits, 0);
    mu_state_bit_set(bits, 9);
    mu_buf_init(&out, 4096);
    assert_int_equal(mu_state_have_encode(&out, &have), 0);
    assert_int_equal(mu_state_have_decode(mu_buf_span(&out), 10, &got), 0);
    assert_false(got.all);
    assert_true(mu_state_bit(got.bits.data, 0));
    assert_true(mu_state_bit(got.bits.data, 9));
    assert_false(mu_state_bit(got.bits.data, 8));
    assert_int_equal(mu_state_have_decode(mu_buf_span(&out), 16, &got), 0);
    assert_int_equal(mu_state_have_decode(mu_buf_span(&out), 9, &got), MUSTER_EPROTO);
    assert_int_equal(mu_state_have_decode(mu_buf_span(&out), 8, &got), MUSTER_EPROTO);
    assert_int_equal(mu_state_have_decode(mu_buf_span(&out), 17, &got), MUSTER_EPROTO);

    assert_int_equal(mu_state_have_decode(MU_SPAN_LIT("\1"), 9, &got), 0);
    assert_true(got.all);
    assert_int_equal(mu_state_have_decode(MU_SPAN_LIT("\1\1"), 8, &got), MUSTER_EPROTO);
    assert_int_equal(mu_state_have_decode(MU_SPAN_LIT("\2\1"), 8, &got), MUSTER_EPROTO);
    assert_int_equal(mu_state_have_decode((struct mu_span){0}, 0, &got), MUSTER_EPROTO);
    assert_int_equal(mu_state_have_decode(MU_SPAN_LIT("\0"), 0, &got), 0);
    mu_buf_fini(&out);
}

static void test_state_ask_has_chunks_that_there_are(void **state)
{
    uint8_t item[4 * (MU_STATE_ASK_MAX + 1)] = {0};
    struct mu_span walk = MU_SPAN_LIT("\1\0\0\0\7\0\0\0");
    uint32_t chunk;

    (void)state;
    assert_int_equal(mu_state_ask_next(&walk, 8, &chunk), 1);
    assert_int_equal(chunk, 1);
    assert_int_equal(mu_state_ask_next(&walk, 7, &chunk), MUSTER_EPROTO);
    assert_int_equal(mu_state_ask_next(&walk, 8, &chunk), 1);
    assert_int_equal(chunk, 7);
    assert_int_equal(mu_state_ask_next(&walk, 8, &chunk), 0);
    walk = MU_SPAN_LIT("\1\0\0");
    assert_int_equal(mu_state_ask_next(&walk, 8, &chunk), MUSTER_EPROTO);
    walk = mu_span(item, sizeof(item));
    assert_int_equal(mu_state_ask_next(&walk, 8, &chunk), MUSTER_EPROTO);
    walk = mu_span(item, sizeof(item) - 4);
    assert_int_equal(mu_state_ask_next(&walk, 8, &chunk), 1);
}

static void test_state_busy_says_when_to_come_again(void **state)
{
    char text[MU_STATE_BUSY_TEXT_MAX];

    (void)state;
    assert_int_equal(mu_state_busy_parse(mu_span_str(mu_state_busy_text(text, 1234)), 5), 1234);
    assert_int_equal(mu_state_busy_parse(mu_span_str(mu_state_busy_text(text, UINT32_MAX)), 5),
                     3600000);
    assert_int_equal(mu_state_busy_parse(MU_SPAN_LIT("go away"), 5), 5);
    assert_int_equal(mu_state_busy_parse(MU_SPAN_LIT("after "), 5), 5);
    assert_int_equal(mu_state_busy_parse(MU_SPAN_LIT("after"), 5), 5);
    assert_int_equal(mu_state_busy_parse((struct mu_span){0}, 5), 5);
    assert_int_equal(mu_state_busy_parse(MU_SPAN_LIT("after 99999999999999999999 ms"), 5), 3600000);
}

static void test_state_id_is_an_id_and_nothing_else(void **state)
{
    uint8_t bytes[MU_STATE_ID_LEN + 1] = {6};
    uint8_t id[MU_STATE_ID_LEN];

    (void)state;
    assert_int_equal(mu_state_id_decode(mu_span(bytes, MU_STATE_ID_LEN), id), 0);
    assert_int_equal(id[0], 6);
    assert_int_equal(mu_state_id_decode(mu_span(bytes, sizeof(bytes)), id), MUSTER_EPROTO);
    assert_int_equal(mu_state_id_decode(mu_span(bytes, 31), id), MUSTER_EPROTO);
}

static int encode_all(struct mu_buf *out)
{
    struct mu_state_entry entry = example();
    struct mu_state_which which = {.prefix = MU_SPAN_LIT("run")};
    struct mu_state_swarm_ask ask = {.addr = MU_SPAN_LIT("a:1")};
    struct mu_state_swarm_head head = {.again_ms = 1};
    struct mu_state_have have = {.all = true};
    int err = mu_state_entry_encode(out, &entry);

    err = err == 0 ? mu_state_which_encode(out, &which) : err;
    err = err == 0 ? mu_state_swarm_ask_encode(out, &ask) : err;
    err = err == 0 ? mu_state_swarm_encode(out, &head) : err;
    err = err == 0 ? mu_state_swarm_add(out, MU_SPAN_LIT("a:1")) : err;
    return err == 0 ? mu_state_have_encode(out, &have) : err;
}

static void test_state_messages_survive_every_failing_allocation(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_buf out;
        int err;

        mu_buf_init(&out, 65536);
        failheap_arm(nth);
        err = encode_all(&out);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_buf_fini(&out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_state_list_comes_back_entry_by_entry),
        cmocka_unit_test(test_state_list_refuses_what_cannot_be),
        cmocka_unit_test(test_state_which_is_an_id_or_a_prefix),
        cmocka_unit_test(test_state_swarm_lists_addresses),
        cmocka_unit_test(test_state_have_has_a_bit_for_each_chunk_and_no_more),
        cmocka_unit_test(test_state_ask_has_chunks_that_there_are),
        cmocka_unit_test(test_state_busy_says_when_to_come_again),
        cmocka_unit_test(test_state_id_is_an_id_and_nothing_else),
        cmocka_unit_test(test_state_messages_survive_every_failing_allocation),
    };

    return cmocka_run_group_tests_name("state_msg", tests, NULL, NULL);
}
