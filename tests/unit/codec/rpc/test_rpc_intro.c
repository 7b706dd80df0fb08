#include "unit.h"

#include <muster/error.h>

#include "codec/rpc/intro.h"
#include "core/alloc.h"

static int decode(const struct mu_rpc_part *parts, size_t count, struct mu_buf *buf,
                  struct mu_rpc_intro *ret)
{
    mu_buf_init(buf, SIZE_MAX);
    assert_int_equal(mu_rpc_intro_encode(buf, parts, count), 0);
    return mu_rpc_intro_decode(mu_buf_span(buf), ret);
}

static void test_rpc_intro_survives_the_way(void **state)
{
    struct mu_rpc_part parts[] = {
        {MU_SPAN_LIT("w0"), -1},
        {MU_SPAN_LIT("10.0.0.1:1234,unix:@muster-rpc-00ff"), -1},
        {MU_SPAN_LIT("\0\0\0\0\7\0\0\0"), -1},
        {MU_SPAN_LIT("w1"), -1},
        {MU_SPAN_LIT("\0\0\0\0\5\1\0\0"), -1},
    };
    struct mu_rpc_intro intro;
    struct mu_buf buf;

    (void)state;
    assert_int_equal(decode(parts, 5, &buf, &intro), 0);
    assert_true(mu_span_eq(intro.name, parts[0].data));
    assert_true(mu_span_eq(intro.address, parts[1].data));
    assert_int_equal(intro.notice.len, 0);
    assert_int_equal(mu_rpc_intro_device(intro.devices, 1), 7);
    assert_int_equal(intro.map_count, 1);
    assert_true(mu_span_eq(intro.maps[0].data, parts[3].data));
    assert_int_equal(mu_rpc_intro_device(intro.maps[1].data, 1), 261);
    mu_rpc_intro_fini(&intro);
    mu_rpc_intro_fini(&intro);
    mu_buf_fini(&buf);
    /* One part is a notice. */
    assert_int_equal(decode(parts, 1, &buf, &intro), 0);
    assert_true(mu_span_eq(intro.notice, parts[0].data));
    assert_int_equal(intro.name.len, 0);
    mu_rpc_intro_fini(&intro);
    mu_buf_fini(&buf);
}

static void test_rpc_intro_that_cannot_be_is_refused(void **state)
{
    struct mu_rpc_part good[] = {
        {MU_SPAN_LIT("w0"), -1},
        {MU_SPAN_LIT("h:1"), -1},
        {MU_SPAN_LIT("\1\0\0\0"), -1},
        {MU_SPAN_LIT("w1"), -1},
        {MU_SPAN_LIT("\1\0\0\0\1\0\0\0"), -1},
    };
    const struct {
        size_t at;
        struct mu_span value;
    } bad[] = {
        {0, MU_SPAN_LIT("")},
        {0, MU_SPAN_LIT("a b")},
        {1, MU_SPAN_LIT("")},
        {1, MU_SPAN_LIT("h:1\33[2J")},
        {2, MU_SPAN_LIT("\1\0\0")},
        {2, MU_SPAN_LIT("\377\377\377\377")},
        {3, MU_SPAN_LIT("")},
        {4, MU_SPAN_LIT("\1\0\0\0")},
        {4, MU_SPAN_LIT("\1\0\0\0\0\0\0\200")},
    };
    struct mu_rpc_intro intro;
    struct mu_buf buf;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mu_span kept = good[bad[i].at].data;

        good[bad[i].at].data = bad[i].value;
        assert_int_equal(decode(good, 5, &buf, &intro), MUSTER_EPROTO);
        good[bad[i].at].data = kept;
        mu_buf_fini(&buf);
    }
    assert_int_equal(decode(good, 2, &buf, &intro), MUSTER_EPROTO);
    mu_buf_fini(&buf);
    assert_int_equal(decode(good, 4, &buf, &intro), MUSTER_EPROTO);
    mu_buf_fini(&buf);
    assert_int_equal(mu_rpc_intro_decode((struct mu_span){0}, &intro), MUSTER_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_intro_survives_the_way),
        cmocka_unit_test(test_rpc_intro_that_cannot_be_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
