/* The cipher of peers. The transcript in test_noise.c says that it is the right one. */
#include "unit.h"

#include <muster/error.h>

#include "crypto/aead.h"

enum { TEXT_MAX = 65519 };

static const uint8_t key[MU_AEAD_KEY_LEN] = {1, 2, 3};
static uint8_t text[TEXT_MAX];
static uint8_t sealed[TEXT_MAX + MU_AEAD_TAG_LEN];
static uint8_t again[TEXT_MAX + MU_AEAD_TAG_LEN];

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(text); i++) {
        text[i] = (uint8_t)(i * 2654435761u >> 24);
    }
    return 0;
}

static void test_aead_pieces_of_a_text_make_no_difference(void **unused)
{
    static const size_t cuts[] = {0, 1, 12, 63, 64, 65, 8191, 8192, 8193, 40000, TEXT_MAX};
    struct mu_aead a;

    (void)unused;
    assert_int_equal(mu_aead_init(&a, MU_AEAD_SEAL, key), 0);
    assert_int_equal(mu_aead_seal(&a, 7, MU_SPAN_LIT("extra"), mu_span(text, sizeof(text)), sealed),
                     0);
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        for (size_t j = i; j < sizeof(cuts) / sizeof(cuts[0]); j++) {
            const struct mu_span parts[] = {
                mu_span(text, cuts[i]),
                mu_span(text + cuts[i], cuts[j] - cuts[i]),
                mu_span(text + cuts[j], sizeof(text) - cuts[j]),
            };

            memset(again, 0, sizeof(again));
            assert_int_equal(mu_aead_sealv(&a, 7, MU_SPAN_LIT("extra"), parts, 3, again), 0);
            assert_memory_equal(again, sealed, sizeof(sealed));
        }
    }
    mu_aead_fini(&a);
}

static void test_aead_opens_what_was_sealed_of_any_length_where_it_lies(void **unused)
{
    static const size_t lens[] = {0, 1, 63, 64, 8191, 8192, 8193, 16384, 50000, TEXT_MAX};
    struct mu_aead sealing;
    struct mu_aead opening;

    (void)unused;
    assert_int_equal(mu_aead_init(&sealing, MU_AEAD_SEAL, key), 0);
    assert_int_equal(mu_aead_init(&opening, MU_AEAD_OPEN, key), 0);
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        size_t len = lens[i];
        struct mu_span extra = {0};

        memcpy(again, text, len);
        assert_int_equal(mu_aead_seal(&sealing, i, extra, mu_span(again, len), again), 0);
        assert_int_equal(
            mu_aead_open(&opening, i, extra, mu_span(again, len + MU_AEAD_TAG_LEN), again), 0);
        assert_memory_equal(again, text, len);
    }
    mu_aead_fini(&sealing);
    mu_aead_fini(&opening);
}

static void test_aead_notices_what_was_changed(void **unused)
{
    static const size_t places[] = {0, 8191, 8192, 20000, TEXT_MAX - 1, TEXT_MAX, TEXT_MAX + 15};
    struct mu_aead sealing;
    struct mu_aead opening;
    struct mu_span extra = MU_SPAN_LIT("extra");

    (void)unused;
    assert_int_equal(mu_aead_init(&sealing, MU_AEAD_SEAL, key), 0);
    assert_int_equal(mu_aead_init(&opening, MU_AEAD_OPEN, key), 0);
    assert_int_equal(mu_aead_seal(&sealing, 1, extra, mu_span(text, sizeof(text)), sealed), 0);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        sealed[places[i]] ^= 0x10;
        assert_int_equal(mu_aead_open(&opening, 1, extra, mu_span(sealed, sizeof(sealed)), again),
                         MUSTER_ECORRUPT);
        sealed[places[i]] ^= 0x10;
    }
    assert_int_equal(mu_aead_open(&opening, 2, extra, mu_span(sealed, sizeof(sealed)), again),
                     MUSTER_ECORRUPT);
    assert_int_equal(
        mu_aead_open(&opening, 1, MU_SPAN_LIT("other"), mu_span(sealed, sizeof(sealed)), again),
        MUSTER_ECORRUPT);
    assert_int_equal(mu_aead_open(&opening, 1, extra, mu_span(sealed, 15), again), MUSTER_ECORRUPT);
    assert_int_equal(mu_aead_open(&opening, 1, extra, mu_span(sealed, sizeof(sealed)), again), 0);
    mu_aead_fini(&sealing);
    mu_aead_fini(&opening);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_aead_pieces_of_a_text_make_no_difference),
        cmocka_unit_test(test_aead_opens_what_was_sealed_of_any_length_where_it_lies),
        cmocka_unit_test(test_aead_notices_what_was_changed),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
