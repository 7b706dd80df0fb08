/* Finding an interpreter in an executable. The files are those of the fuzzer's corpus, which
 * tests/fuzz/make_stacks_corpus.py makes. */
#include "proto/stacks/elf.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/buf.h"
#include "unit.h"

#define CORPUS MU_VECTOR_DIR "/../fuzz/corpus/stacks_elf/"

static uint8_t bytes[1 << 20];
static size_t size;
static unsigned reads;

static bool read_bytes(void *context, uint64_t offset, void *to, size_t len)
{
    (void)context;
    reads++;
    if (offset > size || len > size - offset) {
        return false;
    }
    memcpy(to, bytes + offset, len);
    return true;
}

static void load(const char *name)
{
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof(path), CORPUS "%s", name);
    file = fopen(path, "rb");
    assert_non_null(file);
    size = fread(bytes, 1, sizeof(bytes), file);
    (void)fclose(file);
}

static int find(struct mu_elf_python *ret)
{
    return mu_elf_find_python((struct mu_memory){read_bytes, NULL}, ret);
}

static void test_stacks_elf_finds_the_symbols(void **state)
{
    struct mu_elf_python found;

    (void)state;
    load("shared");
    assert_int_equal(find(&found), 0);
    assert_int_equal(found.runtime, 0x5000);
    assert_int_equal(found.version, 0x4000);
    assert_int_equal(found.base, 0);
    assert_false(found.fixed);
    load("symtab");
    assert_int_equal(find(&found), 0);
    assert_int_equal(found.runtime, 0x5000);
}

static void test_stacks_elf_knows_fixed_addresses(void **state)
{
    struct mu_elf_python found;

    (void)state;
    load("fixed");
    assert_int_equal(find(&found), 0);
    assert_true(found.fixed);
    assert_int_equal(found.base, 0x400000);
}

/* A file without symbols has a section. */
static void test_stacks_elf_finds_the_section(void **state)
{
    struct mu_elf_python found;

    (void)state;
    load("section");
    assert_int_equal(find(&found), 0);
    assert_int_equal(found.runtime, 0x7000);
    assert_int_equal(found.version, 0);
}

static void test_stacks_elf_refuses(void **state)
{
    struct mu_elf_python found;

    (void)state;
    load("none");
    assert_int_equal(find(&found), MUSTER_ENOENT);
    load("small"); /* a _PyRuntime of 8 bytes is something else */
    assert_int_equal(find(&found), MUSTER_ENOENT);
    load("others");
    assert_int_equal(find(&found), MUSTER_ENOENT);
    load("bits");
    assert_int_equal(find(&found), MUSTER_ENOTSUP);
    load("empty");
    assert_int_equal(find(&found), MUSTER_EPROTO);
    load("shared");
    bytes[0] = 'x';
    assert_int_equal(find(&found), MUSTER_EPROTO);
}

/* A file with as many tables as there can be, each of all its bytes. */
static void make_tables(void)
{
    load("none");
    memset(bytes + size, 0, sizeof(bytes) - size);
    size = sizeof(bytes);
    mu_put_u16(bytes + 60, MU_ELF_SECTIONS_MAX);
    mu_put_u64(bytes + 40, 4096);
    for (size_t i = 0; i < MU_ELF_SECTIONS_MAX; i++) {
        mu_put_u32(bytes + 4096 + 64 * i + 4, 11);
        mu_put_u64(bytes + 4096 + 64 * i + 24, 65536);
        mu_put_u64(bytes + 4096 + 64 * i + 32, 900000);
    }
}

/* Meets MU_ELF_SECTIONS_MAX, MU_ELF_SEGMENTS_MAX and MU_ELF_SYMBOLS_MAX: what it claims to have
 * does not decide how long it takes. */
static void test_stacks_elf_work_is_bounded(void **state)
{
    struct mu_elf_python found;

    (void)state;
    load("none");
    mu_put_u16(bytes + 60, UINT16_MAX);
    mu_put_u64(bytes + 40, 0); /* the sections are what is there, again and again */
    memset(bytes + size, 0, sizeof(bytes) - size);
    size = sizeof(bytes);
    reads = 0;
    (void)find(&found);
    assert_true(reads < 8 * MU_ELF_SECTIONS_MAX);
    load("none");
    mu_put_u16(bytes + 56, UINT16_MAX); /* segments, of which none is loaded */
    mu_put_u32(bytes + 64, 6);
    memset(bytes + 120, 0, sizeof(bytes) - 120);
    size = sizeof(bytes);
    reads = 0;
    assert_int_equal(find(&found), MUSTER_EPROTO);
    assert_int_equal(reads, 1 + MU_ELF_SEGMENTS_MAX);
    make_tables();
    reads = 0;
    assert_int_equal(find(&found), MUSTER_ENOENT);
    assert_true(reads > MU_ELF_SYMBOLS_MAX / 128);
    assert_true(reads < MU_ELF_SYMBOLS_MAX / 128 + 16 * MU_ELF_SECTIONS_MAX);
    load("long"); /* its table says that it has 2^40 symbols, and ends with the file */
    reads = 0;
    (void)find(&found);
    assert_true(reads < MU_ELF_SYMBOLS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacks_elf_finds_the_symbols),
        cmocka_unit_test(test_stacks_elf_knows_fixed_addresses),
        cmocka_unit_test(test_stacks_elf_finds_the_section),
        cmocka_unit_test(test_stacks_elf_refuses),
        cmocka_unit_test(test_stacks_elf_work_is_bounded),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
