/* The cursor over outside bytes: what is short fails, and goes on failing. */
#include "unit.h"

#include "core/reader.h"

static const uint8_t wire[] = {0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b,
                               0x0c, 0x0d, 0x0e, 0x0f, 0x03, 0x00, 0x00, 0x00, 'a',  'b',  'c'};

static void test_reader_reads_fields_in_order(void **state)
{
    struct mu_reader r = mu_reader(mu_span(wire, sizeof(wire)));

    (void)state;
    assert_int_equal(mu_read_u8(&r), 0x01);
    assert_int_equal(mu_read_u16(&r), 0x0302);
    assert_int_equal(mu_read_u32(&r), 0x07060504);
    assert_true(mu_read_u64(&r) == UINT64_C(0x0f0e0d0c0b0a0908));
    assert_false(mu_reader_done(&r));
    assert_span_text(mu_read_span32(&r), "abc");
    assert_true(mu_reader_done(&r));
}

/* Every prefix of the message fails, none reads behind its end, and nothing is read after that. */
static void test_reader_fails_on_every_prefix(void **state)
{
    (void)state;
    for (size_t len = 0; len < sizeof(wire); len++) {
        /* A copy of its own, so that a sanitizer sees a byte too far. */
        uint8_t *copy = test_malloc(len + 1);
        struct mu_reader r = mu_reader(mu_span(copy + 1, len));

        memcpy(copy + 1, wire, len);
        (void)mu_read_u8(&r);
        (void)mu_read_u16(&r);
        (void)mu_read_u32(&r);
        (void)mu_read_u64(&r);
        assert_int_equal(mu_read_span32(&r).len, 0);
        assert_true(r.failed);
        assert_false(mu_reader_done(&r));
        assert_int_equal(mu_read_u8(&r), 0);
        assert_int_equal(mu_read_u64(&r), 0);
        assert_int_equal(mu_read_bytes(&r, 0).len, 0);
        assert_true(r.failed);
        test_free(copy);
    }
}

static void test_reader_refuses_a_length_beyond_any_memory(void **state)
{
    struct mu_reader r = mu_reader(mu_span(wire, sizeof(wire)));

    (void)state;
    assert_null(mu_read_bytes(&r, UINT64_MAX).data);
    assert_true(r.failed);
}

static void test_reader_of_nothing_is_done(void **state)
{
    struct mu_reader r = mu_reader((struct mu_span){0});

    (void)state;
    assert_int_equal(mu_read_bytes(&r, 0).len, 0);
    assert_true(mu_reader_done(&r));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reader_reads_fields_in_order),
        cmocka_unit_test(test_reader_fails_on_every_prefix),
        cmocka_unit_test(test_reader_refuses_a_length_beyond_any_memory),
        cmocka_unit_test(test_reader_of_nothing_is_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
