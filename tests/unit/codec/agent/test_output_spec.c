#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "codec/agent/output_spec.h"
#include "core/alloc.h"
#include "failheap.h"

static struct mu_errmsg msg;

static void test_masks_one_for_all(void **state)
{
    struct mu_std_masks m;

    (void)state;
    for (int i = 0; i <= 3; i++) {
        char text[2] = {(char)('0' + i), '\0'};

        assert_int_equal(mu_std_masks_parse(mu_span_str(text), &m, &msg), 0);
        assert_int_equal(mu_std_masks_get(&m, 0), i);
        assert_int_equal(mu_std_masks_get(&m, 4000000), i);
        mu_std_masks_fini(&m);
    }
}

static void test_masks_by_rank_of_any_number_of_digits(void **state)
{
    struct mu_std_masks m;

    (void)state;
    assert_int_equal(mu_std_masks_parse(MU_SPAN_LIT("0:3,12:1, 128 : 2 ,0:1"), &m, &msg), 0);
    assert_int_equal(mu_std_masks_get(&m, 0), 1);
    assert_int_equal(mu_std_masks_get(&m, 12), 1);
    assert_int_equal(mu_std_masks_get(&m, 128), 2);
    assert_int_equal(mu_std_masks_get(&m, 1), 0);
    mu_std_masks_fini(&m);
}

static void test_masks_that_make_no_sense(void **state)
{
    static const char *const texts[] = {"",    "4",     "00",      "1:4",          "-1",
                                        "a:1", "1:",    ":1",      "1:1,",         "1:1,,2:1",
                                        "1;1", "1:1:1", "0:3 1:2", "99999999999:1"};
    struct mu_std_masks m;

    (void)state;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        int rc = mu_std_masks_parse(mu_span_str(texts[i]), &m, &msg);

        assert_int_equal(rc, MUSTER_EINVAL);
        assert_true(msg.text[0] != '\0');
    }
}

static void test_rank_filter(void **state)
{
    struct mu_rank_filter f;

    (void)state;
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT(""), &f, &msg), 0);
    assert_true(mu_rank_filter_shows(&f, 7));
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT("0, 12"), &f, &msg), 0);
    assert_true(mu_rank_filter_shows(&f, 0));
    assert_true(mu_rank_filter_shows(&f, 12));
    assert_false(mu_rank_filter_shows(&f, 1));
    mu_rank_filter_fini(&f);
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT(" -1"), &f, &msg), 0);
    assert_false(mu_rank_filter_shows(&f, 0));
    assert_false(mu_rank_filter_shows(&f, 1));
    mu_rank_filter_fini(&f);
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT("0,-"), &f, &msg), MUSTER_EINVAL);
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT("0,x"), &f, &msg), MUSTER_EINVAL);
    assert_int_equal(mu_rank_filter_parse(MU_SPAN_LIT("0,"), &f, &msg), MUSTER_EINVAL);
}

static void test_text_filter_and_its_commas(void **state)
{
    struct mu_text_filter f;

    (void)state;
    assert_int_equal(mu_text_filter_parse(MU_SPAN_LIT("loss,a,,b,,,c,"), &f, &msg), 0);
    assert_int_equal(f.count, 3);
    assert_true(mu_text_filter_matches(&f, MU_SPAN_LIT("the loss is 3")));
    assert_true(mu_text_filter_matches(&f, MU_SPAN_LIT("xa,b,x")));
    assert_true(mu_text_filter_matches(&f, MU_SPAN_LIT("c")));
    assert_false(mu_text_filter_matches(&f, MU_SPAN_LIT("los")));
    assert_false(mu_text_filter_matches(&f, MU_SPAN_LIT("")));
    assert_false(mu_text_filter_matches(&f, MU_SPAN_LIT("a,x")));
    mu_text_filter_fini(&f);
    assert_int_equal(mu_text_filter_parse(MU_SPAN_LIT(""), &f, &msg), 0);
    assert_false(mu_text_filter_matches(&f, MU_SPAN_LIT("x")));
}

static void expect_prefix(const char *template, const char *text)
{
    struct mu_buf out;

    mu_buf_init(&out, 64);
    assert_int_equal(mu_prefix_expand(mu_span_str(template), MU_SPAN_LIT("trainer"), 13, 5, &out),
                     0);
    assert_int_equal(out.len, strlen(text));
    if (out.len > 0) {
        assert_memory_equal(mu_buf_span(&out).data, text, out.len);
    }
    mu_buf_fini(&out);
}

static void test_prefix_knows_three_names(void **state)
{
    struct mu_buf small;

    (void)state;
    expect_prefix(MU_PREFIX_TEMPLATE, "[trainer5]:");
    expect_prefix("${role_name}-$rank/$local_rank ", "trainer-13/5 ");
    expect_prefix("$$rank $other ${other} ${rank $ ${", "$rank $other ${other} ${rank $ ${");
    expect_prefix("", "");
    mu_buf_init(&small, 4);
    assert_int_equal(
        mu_prefix_expand(MU_SPAN_LIT("${role_name}"), MU_SPAN_LIT("trainer"), 0, 0, &small),
        MUSTER_ELIMIT);
    mu_buf_fini(&small);
}

static void test_specs_without_memory(void **state)
{
    (void)state;
    for (long nth = 0;; nth++) {
        struct mu_std_masks m = {0};
        struct mu_rank_filter r = {0};
        struct mu_text_filter t = {0};
        int rc;

        failheap_arm(nth);
        rc = mu_std_masks_parse(MU_SPAN_LIT("0:1"), &m, &msg);
        rc = rc == 0 ? mu_rank_filter_parse(MU_SPAN_LIT("1"), &r, &msg) : rc;
        rc = rc == 0 ? mu_text_filter_parse(MU_SPAN_LIT("x"), &t, &msg) : rc;
        failheap_disarm();
        mu_std_masks_fini(&m);
        mu_rank_filter_fini(&r);
        mu_text_filter_fini(&t);
        if (rc == 0) {
            break;
        }
        assert_int_equal(rc, MUSTER_ENOMEM);
        assert_true(nth < 10);
    }
}

/* "0,0,0..." with so many items. */
static char *many_items(const char *item, size_t count)
{
    size_t len = strlen(item);
    char *text = mu_malloc(count * (len + 1) + 1);

    for (size_t i = 0; i < count; i++) {
        memcpy(text + i * (len + 1), item, len);
        text[i * (len + 1) + len] = ',';
    }
    text[count * (len + 1) - 1] = '\0';
    return text;
}

static void test_specs_name_so_many(void **state)
{
    (void)state;
    for (size_t more = 0; more < 2; more++) {
        char *text = many_items("x", MU_SPEC_ITEMS_MAX + more);
        struct mu_rank_filter ranks;
        struct mu_text_filter texts;
        struct mu_std_masks masks;

        assert_int_equal(mu_text_filter_parse(mu_span_str(text), &texts, &msg),
                         more == 0 ? 0 : MUSTER_ELIMIT);
        if (more == 0) {
            assert_true(mu_text_filter_matches(&texts, MU_SPAN_LIT("an x")));
            mu_text_filter_fini(&texts);
        } else {
            assert_string_equal(msg.text, "more than 4096 texts");
            assert_int_equal(mu_rank_filter_parse(mu_span_str(text), &ranks, &msg), MUSTER_ELIMIT);
            assert_int_equal(mu_std_masks_parse(mu_span_str(text), &masks, &msg), MUSTER_ELIMIT);
            assert_string_equal(msg.text, "more than 4096 ranks are named");
        }
        mu_free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks_one_for_all),
        cmocka_unit_test(test_masks_by_rank_of_any_number_of_digits),
        cmocka_unit_test(test_masks_that_make_no_sense),
        cmocka_unit_test(test_rank_filter),
        cmocka_unit_test(test_text_filter_and_its_commas),
        cmocka_unit_test(test_prefix_knows_three_names),
        cmocka_unit_test(test_specs_without_memory),
        cmocka_unit_test(test_specs_name_so_many),
    };

    return cmocka_run_group_tests_name("output_spec", tests, NULL, NULL);
}
