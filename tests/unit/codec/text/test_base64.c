/* Base64: the texts of RFC 4648, each length there and back, and what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/text/base64.h"
#include "core/prng.h"
#include "failheap.h"

static const char *const pairs[][2] = {
    {"", ""},
    {"f", "Zg=="},
    {"fo", "Zm8="},
    {"foo", "Zm9v"},
    {"foob", "Zm9vYg=="},
    {"fooba", "Zm9vYmE="},
    {"foobar", "Zm9vYmFy"},
    {"canimadam", "Y2FuaW1hZGFt"},
    {"\xfb\xff\xfe", "+//+"},
};

static void test_base64_has_the_texts_of_the_standard(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct mu_buf text;
        struct mu_buf value;

        mu_buf_init(&text, 64);
        mu_buf_init(&value, 64);

        assert_int_equal(mu_base64_encode(&text, mu_span_str(pairs[i][0])), 0);
        assert_int_equal(mu_base64_decode(&value, mu_span_str(pairs[i][1])), 0);

        assert_span_text(mu_buf_span(&text), pairs[i][1]);
        assert_span_text(mu_buf_span(&value), pairs[i][0]);
        mu_buf_fini(&text);
        mu_buf_fini(&value);
    }
}

static void test_base64_returns_what_it_was_given(void **unused)
{
    uint8_t bytes[300];
    struct mu_prng rng;

    (void)unused;
    mu_prng_seed(&rng, 1);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] = (uint8_t)mu_prng_below(&rng, 256);
    }
    for (size_t len = 0; len <= sizeof(bytes); len++) {
        struct mu_buf text;
        struct mu_buf value;

        mu_buf_init(&text, 1024);
        mu_buf_init(&value, 1024);
        assert_int_equal(mu_base64_encode(&text, mu_span(bytes, len)), 0);
        assert_int_equal(mu_base64_decode(&value, mu_buf_span(&text)), 0);

        assert_true(mu_span_eq(mu_buf_span(&value), mu_span(bytes, len)));
        assert_true(mu_base64_decoded_max(text.len) >= len);
        mu_buf_fini(&text);
        mu_buf_fini(&value);
    }
}

static void expect_refused(const char *text)
{
    struct mu_buf out;

    mu_buf_init(&out, 64);
    assert_int_equal(mu_buf_append(&out, MU_SPAN_LIT("kept")), 0);
    assert_int_equal(mu_base64_decode(&out, mu_span_str(text)), MUSTER_ECORRUPT);
    assert_span_text(mu_buf_span(&out), "kept");
    mu_buf_fini(&out);
}

static void test_base64_refuses_what_no_encoder_writes(void **unused)
{
    static const char *const texts[] = {
        "Z",    "Zg",   "Zg=",   "Zm9",  "Zg==\n", "Zg==Zg==", "====", "Z===", "=g==",
        "Z=g=", "Zm=v", "Zm9v=", "Zh==", "Zm9=",   "Zm9v Zm9", "Zm9-", "Zm9_", "Zm9v====",
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        expect_refused(texts[i]);
    }
}

static void test_base64_refuses_each_byte_outside_its_alphabet(void **unused)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    (void)unused;
    for (unsigned byte = 0; byte < 256; byte++) {
        for (size_t place = 0; place < 4; place++) {
            uint8_t text[8] = "AAAAAAAA";
            bool known = byte != 0 && strchr(letters, (int)byte) != NULL;
            struct mu_buf out;

            text[place] = (uint8_t)byte;
            mu_buf_init(&out, 64);
            assert_int_equal(mu_base64_decode(&out, mu_span(text, sizeof(text))),
                             known ? 0 : MUSTER_ECORRUPT);
            mu_buf_fini(&out);
        }
    }
}

static void test_base64_keeps_to_the_limit_of_its_buffer(void **unused)
{
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, 7);
    assert_int_equal(mu_base64_encode(&out, MU_SPAN_LIT("foob")), MUSTER_ELIMIT);
    assert_int_equal(out.len, 0);
    assert_int_equal(mu_base64_decode(&out, MU_SPAN_LIT("Zm9vYmFyZm9v")), MUSTER_ELIMIT);
    assert_int_equal(out.len, 0);
    assert_int_equal(mu_base64_encode(&out, MU_SPAN_LIT("foo")), 0);
    assert_span_text(mu_buf_span(&out), "Zm9v");
    mu_buf_fini(&out);
}

static void test_base64_survives_a_failing_heap(void **unused)
{
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, 64);
    failheap_arm(0);
    assert_int_equal(mu_base64_encode(&out, MU_SPAN_LIT("foo")), MUSTER_ENOMEM);
    assert_int_equal(mu_base64_decode(&out, MU_SPAN_LIT("Zm9v")), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(out.len, 0);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base64_has_the_texts_of_the_standard),
        cmocka_unit_test(test_base64_returns_what_it_was_given),
        cmocka_unit_test(test_base64_refuses_what_no_encoder_writes),
        cmocka_unit_test(test_base64_refuses_each_byte_outside_its_alphabet),
        cmocka_unit_test(test_base64_keeps_to_the_limit_of_its_buffer),
        cmocka_unit_test(test_base64_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
