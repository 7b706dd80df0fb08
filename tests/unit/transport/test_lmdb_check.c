/*
 * Goal: a damaged file is told of and never served, and never takes the process down. Method: bytes
 * changed behind the disk's back, everywhere.
 */
#include "lmdb_fixture.h"

/* Many small records, some long ones, a list of free pages, and a tree of two levels. */
static void make_history(void)
{
    struct mu_disk *disk = open_disk(MAP);
    static char value[9000];

    memset(value, 'v', sizeof(value));
    for (uint64_t round = 0; round < 6; round++) {
        journal_start();
        for (uint64_t i = 1; i <= 150; i++) {
            if (i % 7 == round) {
                journal_put(3, i, "", NULL, 0);
            } else {
                journal_put(i % 5 == 0 ? 2 : 1, i, "key", value, i % 50 == 0 ? 9000 : 40 + round);
            }
        }
        commit(disk, round + 1);
    }
    disk->ops->close(disk);
}

static uint8_t *read_file(size_t *ret_len)
{
    FILE *f = fopen(file, "rb");
    uint8_t *bytes;

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *ret_len = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(*ret_len);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *ret_len, f), *ret_len);
    (void)fclose(f);
    return bytes;
}

static void write_file(const void *bytes, size_t len)
{
    int fd = open(file, O_CREAT | O_TRUNC | O_WRONLY, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), len);
    (void)close(fd);
}

static void poke(size_t at, uint8_t byte)
{
    int fd = open(file, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    (void)close(fd);
}

static void assert_corrupt(const char *what)
{
    struct mu_errmsg msg = {0};
    struct found f;
    int rc = try_load(&f, &msg);

    if (rc != MUSTER_ECORRUPT) {
        fail_msg("%s: %s %s", what, muster_errname(rc), msg.text);
    }
    assert_non_null(strstr(msg.text, dir));
    assert_non_null(strstr(msg.text, "restore it"));
}

static void test_what_is_no_store_is_told_of(void **state)
{
    char junk[10000];

    (void)state;
    memset(junk, 'j', sizeof(junk));
    assert_int_equal(mkdir(dir, 0700), 0);
    write_file(junk, 0);
    assert_corrupt("an empty file");
    write_file(junk, 10);
    assert_corrupt("a short file");
    write_file(junk, sizeof(junk));
    assert_corrupt("a file of something else");
    memset(junk, 0, sizeof(junk));
    write_file(junk, sizeof(junk));
    assert_corrupt("a file of zeroes");
}

static void test_truncated_file_is_told_of_wherever_it_was_cut(void **state)
{
    size_t len;
    uint8_t *bytes;
    size_t cut;

    (void)state;
    make_history();
    bytes = read_file(&len);
    /* The file is longer than what is in use; cut it within that. */
    for (cut = len; cut > 0 && bytes[cut - 1] == 0; cut--) {
    }
    cut = cut / 4096 * 4096;
    assert_true(cut > 20 * 4096);
    for (; cut > 0; cut -= 4096) {
        write_file(bytes, cut);
        assert_corrupt("a file cut at a page");
        write_file(bytes, cut - 100);
        assert_corrupt("a file cut within a page");
    }
    free(bytes);
}

static void test_flipped_byte_in_a_record_is_told_of(void **state)
{
    struct mu_disk *disk = open_disk(MAP);
    struct mu_errmsg msg = {0};
    struct found f;
    uint8_t *bytes;
    uint8_t *at;
    size_t len;

    (void)state;
    journal_start();
    journal_put(1, 1, "needle", "haystack", 8);
    commit(disk, 1);
    disk->ops->close(disk);
    bytes = read_file(&len);
    at = memmem(bytes, len, "haystack", 8);
    assert_non_null(at);
    poke((size_t)(at - bytes), 'H');
    assert_int_equal(try_load(&f, &msg), MUSTER_ECORRUPT);
    assert_non_null(strstr(msg.text, "record 1"));
    assert_int_equal(f.count, 0);
    poke((size_t)(at - bytes), 'h');
    assert_int_equal(try_load(&f, &msg), 0);
    free(bytes);
}

/* Damages one bit: it is told of, or it was of no consequence and all is there. */
static bool flip(const uint8_t *bytes, size_t at, uint8_t bit, const struct found *whole)
{
    struct mu_errmsg msg = {0};
    struct found f;
    int rc;

    poke(at, bytes[at] ^ bit);
    rc = try_load(&f, &msg);
    if (rc == 0 && (f.count != whole->count || strcmp(f.text, whole->text) != 0)) {
        fail_msg("byte %zu, bit %u: something else was served", at, bit);
    }
    if (rc != 0 && rc != MUSTER_ECORRUPT) {
        fail_msg("byte %zu, bit %u: %s", at, bit, msg.text);
    }
    poke(at, bytes[at]);
    return rc != 0;
}

static void test_no_flipped_bit_is_served_or_fatal(void **state)
{
    struct mu_errmsg msg = {0};
    struct found whole;
    uint8_t *bytes;
    uint8_t *after;
    size_t len;
    size_t used;
    size_t told = 0;
    struct mu_prng prng;

    (void)state;
    make_history();
    assert_int_equal(try_load(&whole, &msg), 0);
    bytes = read_file(&len);
    for (used = len; used > 0 && bytes[used - 1] == 0; used--) {
    }
    mu_prng_seed(&prng, 7);
    for (size_t at = 0; at < 152 * 8; at++) {
        told += flip(bytes, at / 8, (uint8_t)(1u << (at % 8)), &whole);
        told += flip(bytes, 4096 + at / 8, (uint8_t)(1u << (at % 8)), &whole);
    }
    for (size_t page = 2; page * 4096 < used; page++) {
        for (size_t i = 0; i < 60; i++) {
            /* The head of a page and its list of nodes is where it hurts. */
            size_t at = page * 4096 + (i < 24 ? i : (size_t)mu_prng_below(&prng, 4096));

            told += flip(bytes, at, (uint8_t)(1u << mu_prng_below(&prng, 8)), &whole);
        }
    }
    assert_true(told > 500);
    /* Looking does not write. */
    after = read_file(&used);
    assert_int_equal(used, len);
    assert_memory_equal(bytes, after, len);
    free(bytes);
    free(after);
}

static uint64_t get_native(const uint8_t *p)
{
    uint64_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* Where node `i` of a page is in the file. */
static size_t node_at(const uint8_t *bytes, uint64_t pgno, size_t i)
{
    uint16_t offset;

    memcpy(&offset, bytes + pgno * 4096 + 16 + 2 * i, sizeof(offset));
    return (size_t)pgno * 4096 + offset;
}

static void assert_corrupt_for(size_t at, uint8_t byte, uint8_t before, const char *why)
{
    struct mu_errmsg msg = {0};
    struct found f;

    poke(at, byte);
    assert_int_equal(try_load(&f, &msg), MUSTER_ECORRUPT);
    if (strstr(msg.text, why) == NULL) {
        fail_msg("expected \"%s\": %s", why, msg.text);
    }
    poke(at, before);
}

/* Damage that loading alone would not notice, and that the next change would make worse. */
static void test_damaged_trees_are_told_of(void **state)
{
    uint8_t *bytes;
    size_t len;
    size_t meta;
    size_t at;
    size_t other;
    uint64_t free_root;
    uint64_t root;

    (void)state;
    make_history();
    bytes = read_file(&len);
    meta = get_native(bytes + 144) > get_native(bytes + 4096 + 144) ? 0 : 4096;
    free_root = get_native(bytes + meta + 40 + 40);
    root = get_native(bytes + meta + 88 + 40);
    assert_int_equal(bytes[meta + 88 + 6], 2); /* levels, with more than two leaves */
    assert_int_equal(bytes[meta + 40 + 6], 1);

    at = node_at(bytes, free_root, 0) + 8 + 8 + 8; /* its first free page */
    assert_corrupt_for(at, (uint8_t)root, bytes[at], "in use twice");
    assert_corrupt_for(at, 1, bytes[at], "does not exist");
    at = node_at(bytes, free_root, 0) + 8 + 8 + 1; /* how many there are */
    assert_corrupt_for(at, 0x7f, bytes[at], "free pages is malformed");

    at = node_at(bytes, root, 1);
    other = node_at(bytes, root, 2);
    assert_corrupt_for(other, bytes[at], bytes[other], "in use twice");
    assert_corrupt_for(other + 8, 0, bytes[other + 8], "not in order"); /* the key of a branch */
    assert_corrupt_for(other + 8 + 7, 0x40, bytes[other + 8 + 7], "not in order");

    at = bytes[node_at(bytes, root, 1)]; /* a leaf */
    at = node_at(bytes, at, 1);
    assert_corrupt_for(at + 4, 2, bytes[at + 4], "is malformed"); /* a tree within the tree */
    assert_corrupt_for(at + 8 + 7, 0x40, bytes[at + 8 + 7], "not in order");
    free(bytes);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_what_is_no_store_is_told_of, set_up),
        cmocka_unit_test_setup(test_truncated_file_is_told_of_wherever_it_was_cut, set_up),
        cmocka_unit_test_setup(test_flipped_byte_in_a_record_is_told_of, set_up),
        cmocka_unit_test_setup(test_no_flipped_bit_is_served_or_fatal, set_up),
        cmocka_unit_test_setup(test_damaged_trees_are_told_of, set_up),
    };

    return lmdb_run("lmdb_check", tests, sizeof(tests) / sizeof(tests[0]));
}
