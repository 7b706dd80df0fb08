/*
 * Goal: the records are those that PyTorch writes, byte for byte, and nothing that a file may hold
 * is read past its end. Method: what PyTorch 1.13 wrote, whole and cut at every byte.
 */
#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

#include <muster/error.h>

#include "codec/store/file_record.h"
#include "core/prng.h"
#include "failheap.h"

/* All bytes of the recording, in order. */
static size_t load_vectors(uint8_t *bytes, size_t cap)
{
    FILE *file = fopen(MU_VECTOR_DIR "/file-store-1.13.txt", "r");
    char line[1024];
    size_t len = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *at = line + 1;
        unsigned byte;
        int n;

        while (line[0] == '>' && sscanf(at, " %2x%n", &byte, &n) == 1) {
            assert_true(len < cap);
            bytes[len++] = (uint8_t)byte;
            at += n;
        }
    }
    (void)fclose(file);
    return len;
}

static void test_file_record_reads_and_writes_what_pytorch_wrote(void **state)
{
    static const struct {
        const char *key;
        const char *value;
        bool deletion;
    } want[] = {
        {"/k", "v", false},
        {"/k", "", false},
        {"/", "e", false},
        {"/n", "5", false},
        {"/n", "-2", false},
        {"/c", "a", false},
        {"/c", "b", false},
        {"/p/q", "r", false},
        {"/k", "", true},
        {"/never", "", true},
        {"/k", "xxxxxxxxxxxxxxxxxxxx", false},
        {"cleanup/", "1", false},
        {"cleanup/", "2", false},
    };
    uint8_t bytes[1024];
    size_t len = load_vectors(bytes, sizeof(bytes));
    size_t at = 0;
    struct mu_buf again;

    (void)state;
    mu_buf_init(&again, sizeof(bytes));
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        struct mu_file_record record;
        size_t used = 0;
        size_t needed = 0;

        assert_int_equal(
            mu_file_record_decode(mu_span(bytes + at, len - at), &record, &used, &needed), 0);
        assert_span_text(record.key, want[i].key);
        assert_span_text(record.value, want[i].value);
        assert_int_equal(record.deletion, want[i].deletion);
        assert_int_equal(used, mu_file_record_size(&record));
        assert_int_equal(mu_file_record_encode(&again, &record), 0);
        at += used;
    }
    assert_int_equal(at, len);
    assert_true(mu_span_eq(mu_buf_span(&again), mu_span(bytes, len)));
    mu_buf_fini(&again);
}

static void test_file_record_that_is_cut_off_asks_for_what_is_missing(void **state)
{
    static const uint8_t whole[] = "\x03\0\0\0/ab\x02\0\0\0xy";
    struct mu_file_record record;
    size_t used = 0;
    size_t last = 0;

    (void)state;
    for (size_t n = 0; n < sizeof(whole) - 1; n++) {
        size_t needed = 0;
        uint8_t *copy = malloc(n == 0 ? 1 : n); /* So that the sanitizer sees its end. */

        memcpy(copy, whole, n);
        assert_int_equal(mu_file_record_decode(mu_span(copy, n), &record, &used, &needed),
                         MUSTER_EAGAIN);
        assert_true(needed > n && needed <= sizeof(whole) - 1 && needed >= last);
        last = needed;
        free(copy);
    }
    assert_int_equal(last, sizeof(whole) - 1);
}

static void test_file_record_refuses_what_no_file_store_writes(void **state)
{
    static const struct mu_span bad[] = {
        {(const uint8_t *)"\0\0\0\0", 4},                  /* no key */
        {(const uint8_t *)"\x01\0\x10\0/", 5},             /* a key of more than 1 MiB */
        {(const uint8_t *)"\xff\xff\xff\xff", 4},          /* absurd */
        {(const uint8_t *)"\x03\0\0\0abc", 7},             /* nobody's key */
        {(const uint8_t *)"\x03\0\0\0a", 5},               /* seen at its first byte */
        {(const uint8_t *)"\x01\0\0\0-", 5},               /* deletes no key */
        {(const uint8_t *)"\x08\0\0\0cleanuq/", 12},       /* almost a counter */
        {(const uint8_t *)"\x02\0\0\0/k\x01\0\0\x40", 10}, /* a value of more than 1 GiB */
        {(const uint8_t *)"\x03\0\0\0-/k\x01\0\0\0x", 12}, /* a deletion with a value */
        {(const uint8_t *)"#!/bin/sh\n", 10},
    };
    struct mu_file_record record;
    size_t used;
    size_t needed;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(mu_file_record_decode(bad[i], &record, &used, &needed), MUSTER_ECORRUPT);
    }
}

static void test_file_record_takes_garbage_within_bounds(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 7);
    for (int i = 0; i < 20000; i++) {
        size_t len = (size_t)(mu_prng_below(&prng, 24));
        uint8_t *bytes = malloc(len == 0 ? 1 : len);
        struct mu_file_record record;
        size_t used = 0;
        size_t needed = 0;
        int err;

        for (size_t k = 0; k < len; k++) {
            static const uint8_t likely[] = {0, 0, 0, 1, 2, 3, '/', '-', 'a', 255};

            bytes[k] = likely[mu_prng_below(&prng, sizeof(likely))];
        }
        err = mu_file_record_decode(mu_span(bytes, len), &record, &used, &needed);
        assert_true(err == 0 || err == MUSTER_EAGAIN || err == MUSTER_ECORRUPT);
        assert_true(err != 0 || (used <= len && used == mu_file_record_size(&record)));
        assert_true(err != MUSTER_EAGAIN || needed > len);
        free(bytes);
    }
}

static void test_file_record_refuses_to_write_what_it_would_not_read(void **state)
{
    uint8_t *key = calloc(1, MU_FILE_KEY_MAX);
    struct mu_file_record record = {.key = mu_span(key, MU_FILE_KEY_MAX)};
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, 64);
    assert_int_equal(mu_file_record_encode(&out, &record), MUSTER_ELIMIT);
    record.key = mu_span(key, 60);
    assert_int_equal(mu_file_record_encode(&out, &record), MUSTER_ELIMIT);
    record.key = mu_span(key, 4);
    failheap_arm(0);
    assert_int_equal(mu_file_record_encode(&out, &record), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(out.len, 0);
    mu_buf_fini(&out);
    free(key);
}

static void test_file_record_has_a_value_that_is_so_long(void **state)
{
    static const uint8_t key[] = {MU_FILE_USER_PREFIX, 'k'};
    uint8_t head[4 + 2 + 4] = {2, 0, 0, 0, MU_FILE_USER_PREFIX, 'k'};
    struct mu_file_record record = {.key = mu_span(key, 2),
                                    .value = mu_span(key, (size_t)MU_FILE_VALUE_MAX + 1)};
    struct mu_buf out;
    size_t used;
    size_t needed = 0;

    (void)state;
    mu_buf_init(&out, 64);
    assert_int_equal(mu_file_record_encode(&out, &record), MUSTER_ELIMIT); /* Nothing is read. */
    mu_put_u32(head + 6, MU_FILE_VALUE_MAX);
    assert_int_equal(mu_file_record_decode(mu_span(head, sizeof(head)), &record, &used, &needed),
                     MUSTER_EAGAIN);
    assert_int_equal(needed, sizeof(head) + MU_FILE_VALUE_MAX);
    mu_put_u32(head + 6, MU_FILE_VALUE_MAX + 1);
    assert_int_equal(mu_file_record_decode(mu_span(head, sizeof(head)), &record, &used, &needed),
                     MUSTER_ECORRUPT);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_record_reads_and_writes_what_pytorch_wrote),
        cmocka_unit_test(test_file_record_that_is_cut_off_asks_for_what_is_missing),
        cmocka_unit_test(test_file_record_refuses_what_no_file_store_writes),
        cmocka_unit_test(test_file_record_takes_garbage_within_bounds),
        cmocka_unit_test(test_file_record_refuses_to_write_what_it_would_not_read),
        cmocka_unit_test(test_file_record_has_a_value_that_is_so_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
