/* MessagePack: the vectors of the DHT, every form of every type, every cut, and what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "failheap.h"
#include "hex.h"

static struct mu_buf buf;
static struct mu_mp_out out;

static int set_up(void **unused)
{
    (void)unused;
    mu_buf_init(&buf, 1 << 20);
    out = mu_mp_out(&buf);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_buf_fini(&buf);
    return 0;
}

static void assert_written(const char *hex)
{
    uint8_t want[256];
    size_t len = hex_decode(want, sizeof(want), hex);

    assert_int_equal(out.err, 0);
    assert_int_equal(buf.len, len);
    assert_memory_equal(mu_buf_span(&buf).data, want, len);
    assert_true(mu_mp_is_value(mu_buf_span(&buf)));
    mu_buf_reset(&buf);
}

static void test_msgpack_writes_the_vectors_of_the_dht(void **unused)
{
    (void)unused;
    mu_mp_put_nil(&out);
    assert_written("c0");
    mu_mp_put_bool(&out, true);
    assert_written("c3");
    mu_mp_put_bool(&out, false);
    assert_written("c2");
    mu_mp_put_double(&out, 3933.0);
    assert_written("cb40aeba0000000000");
    mu_mp_put_double(&out, __builtin_inf());
    assert_written("cb7ff0000000000000");
    mu_mp_put_str(&out, MU_SPAN_LIT("abc"));
    assert_written("a3616263");
    mu_mp_put_bin(&out, MU_SPAN_LIT("abc"));
    assert_written("c403616263");
    mu_mp_put_array(&out, 2);
    mu_mp_put_uint(&out, 1);
    mu_mp_put_uint(&out, 2);
    assert_written("920102");
    mu_mp_put_map(&out, 1);
    mu_mp_put_str(&out, MU_SPAN_LIT("a"));
    mu_mp_put_uint(&out, 1);
    assert_written("81a16101");
    mu_mp_put_ext(&out, MU_MP_EXT_TUPLE, 3);
    mu_mp_put_array(&out, 2);
    mu_mp_put_uint(&out, 1);
    mu_mp_put_uint(&out, 2);
    assert_written("c70340920102");
    mu_mp_put_ext(&out, MU_MP_EXT_TUPLE, 9);
    mu_mp_put_array(&out, 2);
    mu_mp_put_str(&out, MU_SPAN_LIT("x"));
    mu_mp_put_ext(&out, MU_MP_EXT_TUPLE, 4);
    mu_mp_put_array(&out, 1);
    mu_mp_put_bin(&out, MU_SPAN_LIT("y"));
    assert_written("c7094092a178d64091c40179");
}

static void test_msgpack_writes_the_shortest_form_of_every_number(void **unused)
{
    static const struct {
        int64_t value;
        const char *hex;
    } cases[] = {
        {0, "00"},
        {127, "7f"},
        {128, "cc80"},
        {255, "ccff"},
        {256, "cd0100"},
        {65535, "cdffff"},
        {65536, "ce00010000"},
        {4294967295, "ceffffffff"},
        {4294967296, "cf0000000100000000"},
        {INT64_MAX, "cf7fffffffffffffff"},
        {-1, "ff"},
        {-32, "e0"},
        {-33, "d0df"},
        {-128, "d080"},
        {-129, "d1ff7f"},
        {-32768, "d18000"},
        {-32769, "d2ffff7fff"},
        {INT32_MIN, "d280000000"},
        {(int64_t)INT32_MIN - 1, "d3ffffffff7fffffff"},
        {INT64_MIN, "d38000000000000000"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_span in;
        struct mu_mp t;

        mu_mp_put_int(&out, cases[i].value);
        in = mu_buf_span(&buf);
        assert_int_equal(mu_mp_next(&in, &t), 0);
        assert_int_equal(in.len, 0);
        assert_true(cases[i].value < 0
                        ? t.type == MU_MP_INT && t.negative == cases[i].value
                        : t.type == MU_MP_UINT && t.number == (uint64_t)cases[i].value);
        assert_written(cases[i].hex);
    }
}

static void test_msgpack_lengths_take_the_form_they_need(void **unused)
{
    static const size_t lens[] = {0, 15, 16, 31, 32, 255, 256, 65535, 65536};
    uint8_t *zeroes = mu_calloc(1, 65536);

    (void)unused;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        struct mu_span body = mu_span(zeroes, lens[i]);
        struct mu_span in;
        struct mu_mp t;

        mu_mp_put_bin(&out, body);
        assert_int_equal(buf.len, mu_mp_bin_len(lens[i]));
        mu_mp_put_str(&out, body);
        mu_mp_put_ext(&out, 7, lens[i]);
        mu_mp_put_raw(&out, body);
        mu_mp_put_array(&out, lens[i]);
        in = mu_buf_span(&buf);
        assert_int_equal(mu_mp_next(&in, &t), 0);
        assert_true(t.type == MU_MP_BIN && t.bytes.len == lens[i]);
        assert_int_equal(mu_mp_next(&in, &t), 0);
        assert_true(t.type == MU_MP_STR && t.bytes.len == lens[i]);
        assert_int_equal(mu_mp_next(&in, &t), 0);
        assert_true(t.type == MU_MP_EXT && t.ext == 7 && t.bytes.len == lens[i]);
        assert_int_equal(in.len, mu_mp_array_len(lens[i]));
        assert_int_equal(mu_mp_next(&in, &t), 0);
        assert_true(t.type == MU_MP_ARRAY && t.count == lens[i]);
        mu_buf_reset(&buf);
    }
    mu_free(zeroes);
}

static void test_msgpack_skips_a_whole_value_and_nothing_more(void **unused)
{
    uint8_t bytes[64];
    size_t len =
        hex_decode(bytes, sizeof(bytes), "83 01 92 c0 81a16102 c403010203 90 ca3f800000 c3 05");
    struct mu_span in = mu_span(bytes, len);
    struct mu_span value;

    (void)unused;
    assert_int_equal(mu_mp_skip(&in, &value), 0);
    assert_int_equal(value.len, len - 1);
    assert_int_equal(in.len, 1);
    for (size_t cut = 0; cut < len - 1; cut++) {
        in = mu_span(bytes, cut);
        assert_int_equal(mu_mp_skip(&in, &value), MUSTER_EPROTO);
        assert_int_equal(in.len, cut);
    }
    assert_false(mu_mp_is_value(mu_span(bytes, len)));
}

static void test_msgpack_refuses_what_promises_too_much(void **unused)
{
    static const char *const texts[] = {
        "",
        "c1",         /* never used */
        "ddffffffff", /* four thousand million values, none of them there */
        "dfffffffff00",
        "dcffff c0",
        "c6ffffffff 00",
        "dbffffffff",
        "c9ffffffff40",
        "cb0000",
        "d8 40 0000",
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint8_t bytes[32];
        size_t len = hex_decode(bytes, sizeof(bytes), texts[i]);

        assert_false(mu_mp_is_value(mu_span(bytes, len)));
    }
}

static void test_msgpack_nesting_costs_no_stack(void **unused)
{
    size_t depth = 1 << 20;
    uint8_t *bytes = mu_malloc(depth);

    (void)unused;
    memset(bytes, 0x91, depth - 1);
    bytes[depth - 1] = 0xc0;
    assert_true(mu_mp_is_value(mu_span(bytes, depth)));
    bytes[depth - 1] = 0x91;
    assert_false(mu_mp_is_value(mu_span(bytes, depth)));
    mu_free(bytes);
}

static void test_msgpack_the_first_error_sticks(void **unused)
{
    struct mu_buf small;
    struct mu_mp_out o;

    (void)unused;
    mu_buf_init(&small, 3);
    o = mu_mp_out(&small);
    mu_mp_put_str(&o, MU_SPAN_LIT("abcd"));
    mu_mp_put_nil(&o);
    assert_int_equal(o.err, MUSTER_ELIMIT);
    mu_buf_fini(&small);
    mu_buf_init(&small, 64);
    o = mu_mp_out(&small);
    failheap_arm(0);
    mu_mp_put_nil(&o);
    failheap_disarm();
    mu_mp_put_nil(&o);
    assert_int_equal(o.err, MUSTER_ENOMEM);
    assert_int_equal(small.len, 0);
    mu_buf_fini(&small);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_msgpack_writes_the_vectors_of_the_dht),
        T(test_msgpack_writes_the_shortest_form_of_every_number),
        T(test_msgpack_lengths_take_the_form_they_need),
        T(test_msgpack_skips_a_whole_value_and_nothing_more),
        T(test_msgpack_refuses_what_promises_too_much),
        T(test_msgpack_nesting_costs_no_stack),
        T(test_msgpack_the_first_error_sticks),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
