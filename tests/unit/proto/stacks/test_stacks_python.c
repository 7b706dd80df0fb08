/*
 * The reader of CPython's frames: in images of real interpreters of all versions it finds what
 * their program did, and in memory that was made to mislead it stops within its limits.
 */
#include <stdio.h>

#include <muster/error.h>

#include "proto/stacks/python.h"
#include "stacks_image.h"
#include "unit.h"

#define CORPUS MU_VECTOR_DIR "/../fuzz/corpus/stacks_python/"

static struct mu_python_stack stack;

struct loaded {
    uint8_t bytes[64 << 10];
    size_t len;
    struct stacks_image image;
    struct mu_python python;
    struct mu_python_thread threads[MU_STACKS_THREADS_MAX];
    size_t count;
};

static void load(struct loaded *l, const char *version)
{
    char path[512];
    FILE *file;

    (void)snprintf(path, sizeof(path), CORPUS "image-%s", version);
    file = fopen(path, "rb");
    assert_non_null(file);
    l->len = fread(l->bytes, 1, sizeof(l->bytes), file);
    (void)fclose(file);
    assert_true(image_open(&l->image, mu_span(l->bytes, l->len)));
}

static int open_as(struct loaded *l, uint32_t version)
{
    return mu_python_open(&l->python, (struct mu_memory){image_read, &l->image}, l->image.runtime,
                          version, &stack);
}

static void find_threads(struct loaded *l)
{
    assert_int_equal(mu_python_threads(&l->python, l->threads, MU_STACKS_THREADS_MAX, &l->count),
                     0);
    mu_python_match(&l->python, l->threads, l->count, l->image.tids, l->image.tid_count);
}

struct expected {
    const char *function; /* since 3.11 */
    const char *plain;    /* before */
    uint32_t line;
};

/* As PROGRAM of tests/interop/stacks_images.py. */
static const struct expected of_main[] = {
    {"größe", "größe", 7},
    {"größe", "größe", 5},
    {"größe", "größe", 5},
    {"Loader.__next__.<locals>.<lambda>", "<lambda>", 10},
    {"Loader.__next__", "__next__", 10},
    {"名前", "名前", 12},
    {"<module>", "<module>", 25},
};

static void assert_main_stack(const struct loaded *l)
{
    bool qualified = l->python.layout.minor >= 11;

    assert_int_equal(stack.frame_count, 8);
    assert_int_equal(stack.omitted, 0);
    assert_false(stack.endless);
    for (uint32_t i = 0; i < 7; i++) {
        assert_span_text(stack.frames[i].function,
                         qualified ? of_main[i].function : of_main[i].plain);
        assert_span_text(stack.frames[i].file, "/job/train.py");
        assert_int_equal(stack.frames[i].line, of_main[i].line);
    }
    assert_span_text(stack.frames[7].file, "<string>");
}

static const char *const versions[] = {"3.8.18", "3.9.18", "3.10.13", "3.11.2",  "3.11.7",
                                       "3.12.1", "3.13.0", "3.13.5",  "3.13.18", "3.14.10"};

static void test_stacks_python_reads_all_versions(void **state)
{
    static struct loaded l;

    (void)state;
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        load(&l, versions[i]);
        assert_int_equal(open_as(&l, l.image.version), 0);
        find_threads(&l);
        assert_int_equal(l.count, 2);
        /* The newest thread is the first in the list. */
        assert_int_equal(l.threads[1].tid, l.image.tids[0]);
        assert_int_equal(l.threads[0].tid, l.image.tids[1]);
        assert_int_equal(l.threads[0].gil, MU_STACKS_GIL_NOT_HELD);
        assert_int_equal(mu_python_stack(&l.python, &l.threads[1], &stack), 0);
        assert_main_stack(&l);
        assert_int_equal(mu_python_stack(&l.python, &l.threads[0], &stack), 0);
        assert_span_text(stack.frames[0].function, "waiter");
        assert_int_equal(stack.frames[0].line, 15);
        assert_int_equal(stack.frame_count, 1);
    }
}

/* Where nothing says the version, the tables are tried. */
static void test_stacks_python_finds_the_version(void **state)
{
    static struct loaded l;

    (void)state;
    for (size_t i = 0; i < sizeof(versions) / sizeof(versions[0]); i++) {
        uint32_t minor;

        load(&l, versions[i]);
        minor = l.image.version >> 16 & 0xff;
        assert_int_equal(open_as(&l, 0), 0);
        find_threads(&l);
        assert_int_equal(mu_python_stack(&l.python, &l.threads[1], &stack), 0);
        assert_int_equal(stack.frame_count, 8);
        assert_span_text(stack.frames[0].function, "größe");
        assert_int_equal(stack.frames[0].line, 7);
        /* 3.8 and 3.9 differ only in where the holder of the GIL is written. */
        assert_int_equal(l.threads[0].gil,
                         minor <= 9 ? MU_STACKS_GIL_UNKNOWN : MU_STACKS_GIL_NOT_HELD);
        assert_int_equal(l.python.layout.minor, minor == 8 ? 9 : minor);
    }
}

static void test_stacks_python_refuses_other_versions(void **state)
{
    static struct loaded l;
    uint8_t *self;

    (void)state;
    load(&l, "3.8.18");
    assert_int_equal(open_as(&l, 0x03070000), MUSTER_ENOTSUP);
    assert_int_equal(l.python.reterr_version, 0x03070000);
    assert_int_equal(open_as(&l, 0x02071200), MUSTER_ENOTSUP);
    load(&l, "3.14.10");
    /* One that describes itself says its version there; 3.15 may have moved everything. Meets
     * MU_PYTHON_MINOR_MAX and MU_PYTHON_MINOR_MIN. */
    self = (uint8_t *)(uintptr_t)image_block(&l.image, l.image.runtime);
    assert_int_equal(self[10], MU_PYTHON_MINOR_MAX);
    self[10]++;
    assert_int_equal(open_as(&l, 0), MUSTER_ENOTSUP);
    assert_int_equal(l.python.reterr_version >> 16, 0x0300 + MU_PYTHON_MINOR_MAX + 1);
    assert_null(mu_python_layout_of(MU_PYTHON_MINOR_MIN - 1));
    assert_non_null(mu_python_layout_of(MU_PYTHON_MINOR_MIN));
}

/* Offsets of 4 GiB are nonsense. Meets FAR_MAX of proto/stacks/python_layout.c,
 * NEAR_MAX of proto/stacks/python_layout.c, FRAME_MAX of proto/stacks/python_layout.c and
 * FRAME_MAX of proto/stacks/python_frame.c. */
static void test_stacks_python_refuses_senseless_offsets(void **state)
{
    static const size_t places[] = {5, 9, 24, 31, 32, 40, 75, 77};
    struct mu_python_layout layout;
    uint32_t version;
    uint8_t self[MU_PYTHON_SELF_BYTES];

    (void)state;
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        static struct loaded l;

        load(&l, "3.14.10");
        assert_true(image_read(&l.image, l.image.runtime, self, sizeof(self)));
        assert_int_equal(mu_python_layout_read(mu_span(self, sizeof(self)), &layout, &version), 0);
        mu_put_u64(self + 8 * places[i], (uint64_t)1 << 32);
        assert_int_equal(mu_python_layout_read(mu_span(self, sizeof(self)), &layout, &version),
                         MUSTER_EPROTO);
    }
}

static void test_stacks_python_is_not_there(void **state)
{
    static struct loaded l;

    (void)state;
    load(&l, "3.11.2");
    l.image.blocks.len = 0;
    assert_int_equal(open_as(&l, 0), MUSTER_EPROTO);
    assert_int_equal(open_as(&l, l.image.version), MUSTER_EPROTO);
}

/* --- memory that misleads --------------------------------------------------------------------- */

/* A process that has 3.11's structs wherever we put them: an array of words at BASE. */
#define BASE      0x100000u
#define WORDS     8192u
#define RUNTIME   (BASE + 0x0000)
#define INTERP    (BASE + 0x1000)
#define THREAD    (BASE + 0x2000)
#define CFRAME    (BASE + 0x2800)
#define FRAME     (BASE + 0x3000)
#define CODE      (BASE + 0x4000)
#define CODE_TYPE (BASE + 0x5000)
#define TYPE_NAME (BASE + 0x5800)
#define STR       (BASE + 0x6000)
#define TABLE     (BASE + 0x8000)

struct made {
    uint8_t bytes[WORDS * 8];
    uint64_t reads;
    uint64_t tear_at; /* the frame's code changes when so many reads were made; 0: never */
};

static struct made made;

static uint8_t *at(uint64_t addr)
{
    return made.bytes + (addr - BASE);
}

static bool made_read(void *context, uint64_t addr, void *to, size_t len)
{
    (void)context;
    made.reads++;
    if (made.tear_at != 0 && made.reads % made.tear_at == 0) {
        mu_put_u64(at(FRAME + 48), mu_get_u64(at(FRAME + 48)) == 0 ? FRAME + 0x200 : 0);
    }
    if (addr < BASE || addr - BASE > sizeof(made.bytes) ||
        len > sizeof(made.bytes) - (addr - BASE)) {
        return false;
    }
    memcpy(to, at(addr), len);
    return true;
}

static void make_frame(uint64_t addr, uint64_t back)
{
    mu_put_u64(at(addr + 32), CODE);
    mu_put_u64(at(addr + 48), back);
    mu_put_u64(at(addr + 56), CODE + 184 + 2);
}

/* A str of ASCII: one byte a character, compact. */
static void make_str(uint64_t addr, const char *text, uint64_t len)
{
    mu_put_u64(at(addr + 16), len);
    mu_put_u32(at(addr + 32), 1u << 2 | 1u << 5 | 1u << 6);
    memcpy(at(addr + 48), text, strlen(text));
}

static void make(struct mu_python *p)
{
    memset(&made, 0, sizeof(made));
    mu_put_u64(at(RUNTIME + 40), INTERP);
    mu_put_u64(at(INTERP + 16), THREAD);
    mu_put_u64(at(THREAD + 16), INTERP);
    mu_put_u64(at(THREAD + 56), CFRAME);
    mu_put_u64(at(CFRAME + 8), FRAME);
    make_frame(FRAME, 0);
    make_frame(FRAME + 0x200, 0);
    mu_put_u64(at(CODE + 8), CODE_TYPE);
    mu_put_u64(at(CODE + 112), STR + 0x800); /* file */
    mu_put_u64(at(CODE + 128), STR);         /* name */
    mu_put_u64(at(CODE + 136), TABLE);
    mu_put_u32(at(CODE + 72), 7); /* its first line */
    mu_put_u64(at(CODE_TYPE + 24), TYPE_NAME);
    memcpy(at(TYPE_NAME), "code", 5);
    make_str(STR, "step", 4);
    make_str(STR + 0x800, "/job/train.py", 13);
    mu_put_u64(at(TABLE + 16), 2);
    memcpy(at(TABLE + 32), "\xd9\x01", 2); /* two units, one line further */
    assert_int_equal(
        mu_python_open(p, (struct mu_memory){made_read, NULL}, RUNTIME, 0x030b0200, &stack), 0);
}

static int read_made(struct mu_python *p)
{
    struct mu_python_thread thread;
    size_t count;

    assert_int_equal(mu_python_threads(p, &thread, 1, &count), 0);
    assert_int_equal(count, 1);
    return mu_python_stack(p, &thread, &stack);
}

static void test_stacks_python_made_is_read(void **state)
{
    struct mu_python p;

    (void)state;
    make(&p);
    assert_int_equal(read_made(&p), 0);
    assert_int_equal(stack.frame_count, 1);
    assert_span_text(stack.frames[0].function, "step");
    assert_span_text(stack.frames[0].file, "/job/train.py");
    assert_int_equal(stack.frames[0].line, 8);
    assert_int_equal(p.layout.micro, 2);
}

/* The newest threads are the first in the list: the last is the main thread. */
static void test_stacks_python_keeps_the_oldest_thread(void **state)
{
    struct mu_python_thread threads[2];
    struct mu_python p;
    size_t count;

    (void)state;
    make(&p);
    for (uint64_t i = 0; i < 4; i++) {
        mu_put_u64(at(THREAD + i * 0x200 + 8), i == 3 ? 0 : THREAD + (i + 1) * 0x200);
        mu_put_u64(at(THREAD + i * 0x200 + 16), INTERP);
    }
    assert_int_equal(mu_python_threads(&p, threads, 2, &count), 0);
    assert_int_equal(count, 2);
    assert_true(threads[0].state == THREAD);
    assert_true(threads[1].state == THREAD + 3 * 0x200);
    /* A list that breaks off there is as good. */
    mu_put_u64(at(THREAD + 2 * 0x200 + 16), 0);
    assert_int_equal(mu_python_threads(&p, threads, 2, &count), 0);
    assert_true(threads[1].state == THREAD + 0x200);
}

/* Meets MU_STACKS_THREADS_MAX, MU_PYTHON_LIST_MAX and MU_PYTHON_INTERPS_MAX: both lists bite their
 * tails. */
static void test_stacks_python_lists_that_are_rings_end(void **state)
{
    static struct mu_python_thread threads[MU_STACKS_THREADS_MAX];
    struct mu_python p;
    size_t count;

    (void)state;
    make(&p);
    mu_put_u64(at(THREAD + 8), THREAD);
    made.reads = 0;
    assert_int_equal(mu_python_threads(&p, threads, MU_STACKS_THREADS_MAX, &count), 0);
    assert_int_equal(count, MU_STACKS_THREADS_MAX);
    assert_int_equal(made.reads, 4 + 4 * MU_PYTHON_LIST_MAX);
    mu_put_u64(at(THREAD + 8), 0);
    mu_put_u64(at(INTERP), INTERP);
    assert_int_equal(mu_python_threads(&p, threads, MU_STACKS_THREADS_MAX, &count), 0);
    assert_int_equal(count, MU_PYTHON_INTERPS_MAX);
}

/* Meets MU_PYTHON_CHAIN_MAX: a frame that was called by itself. */
static void test_stacks_python_endless_chain_is_said(void **state)
{
    struct mu_python p;

    (void)state;
    make(&p);
    make_frame(FRAME, FRAME);
    assert_int_equal(read_made(&p), 0);
    assert_true(stack.endless);
    assert_int_equal(stack.frame_count, MU_STACKS_INNER_MAX);
    assert_int_equal(stack.omitted, MU_PYTHON_CHAIN_MAX - MU_STACKS_INNER_MAX);
}

/* Meets MU_STACKS_FRAMES_MAX, MU_STACKS_INNER_MAX and OUTER_MAX of proto/stacks/python_frame.c: the
 * innermost and the outermost are kept. */
static void test_stacks_python_deep_chain_loses_its_middle(void **state)
{
    enum { FRAMES = MU_STACKS_FRAMES_MAX + 10 };
    struct mu_python p;

    (void)state;
    make(&p);
    mu_put_u64(at(TABLE + 16), 0); /* each frame is on its code's first line, by no table */
    for (uint64_t i = 0; i < FRAMES; i++) {
        uint64_t frame = BASE + 0xa000 + 80 * i;

        make_frame(frame, i + 1 < FRAMES ? frame + 80 : 0);
        mu_put_u64(at(frame + 56), CODE + 184 + 2 * i);
    }
    mu_put_u64(at(CFRAME + 8), BASE + 0xa000);
    /* A table that says line 7 + i for unit i. */
    mu_put_u64(at(TABLE + 16), 2 * FRAMES);
    for (uint64_t i = 0; i < FRAMES; i++) {
        memcpy(at(TABLE + 32 + 2 * i), i == 0 ? "\xd0\x00" : "\xd8\x00", 2);
        *at(TABLE + 32 + 2 * i) = i == 0 ? 0xd0 : 0xd8;
    }
    assert_int_equal(read_made(&p), 0);
    assert_int_equal(stack.frame_count, MU_STACKS_FRAMES_MAX);
    assert_int_equal(stack.omitted, 10);
    assert_int_equal(stack.frames[0].line, 7);
    assert_int_equal(stack.frames[MU_STACKS_INNER_MAX - 1].line, 7 + MU_STACKS_INNER_MAX - 1);
    assert_int_equal(stack.frames[MU_STACKS_INNER_MAX].line, 7 + MU_STACKS_INNER_MAX + 10);
    assert_int_equal(stack.frames[MU_STACKS_FRAMES_MAX - 1].line, 7 + FRAMES - 1);
}

/* Names of 1 GiB: of a function the beginning is read, and a file whose end is not there is torn.
 * Meets UNITS_MAX of proto/stacks/python_text.c and LEN_MAX of proto/stacks/python_text.c. */
static void test_stacks_python_long_names_are_cut(void **state)
{
    struct mu_python p;

    (void)state;
    make(&p);
    make_str(STR, "step", 1u << 30);
    assert_int_equal(read_made(&p), 0);
    assert_int_equal(stack.frames[0].function.len, MU_STACKS_NAME_MAX);
    make_str(STR, "step", UINT64_MAX);
    assert_int_equal(read_made(&p), MUSTER_EAGAIN);
    make_str(STR, "step", 4);
    make_str(STR + 0x800, "/job/train.py", 1u << 30);
    assert_int_equal(read_made(&p), MUSTER_EAGAIN);
}

/* Meets MU_PYTHON_TEXTS_MAX: the names of a stack are in its own memory. */
static void test_stacks_python_names_have_room(void **state)
{
    (void)state;
    assert_true((MU_STACKS_NAME_MAX + MU_STACKS_FILE_MAX) * 48 < MU_PYTHON_TEXTS_MAX);
    assert_int_equal(sizeof(stack.texts), MU_PYTHON_TEXTS_MAX);
}

/* Meets MU_PYTHON_TABLE_MAX: a table of 1 TiB is looked at for a while. */
static void test_stacks_python_long_table_ends(void **state)
{
    struct mu_python p;
    uint64_t before;

    (void)state;
    make(&p);
    mu_put_u64(at(TABLE + 16), (uint64_t)1 << 39);
    mu_put_u64(at(FRAME + 56), CODE + 184 + (32u << 20));
    before = made.reads;
    assert_int_equal(read_made(&p), MUSTER_EAGAIN); /* it is not all there */
    assert_true(made.reads - before < MU_PYTHON_TABLE_MAX / 512 + 100);
}

static void test_stacks_python_garbage_is_torn(void **state)
{
    static const uint64_t fields[] = {CFRAME + 8, FRAME + 32, FRAME + 56, CODE + 8,
                                      CODE + 112, CODE + 128, CODE + 136, THREAD + 56};
    struct mu_python p;

    (void)state;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        make(&p);
        mu_put_u64(at(fields[i]), 0xdeadbeefdeadbeefu);
        assert_int_equal(read_made(&p), MUSTER_EAGAIN);
    }
}

/* Meets CODE_MAX of proto/stacks/python_frame.c. */
static void test_stacks_python_far_instruction_is_torn(void **state)
{
    struct mu_python p;

    (void)state;
    make(&p);
    mu_put_u64(at(FRAME + 56), CODE + 184 + (64u << 20));
    assert_int_equal(read_made(&p), MUSTER_EAGAIN);
    mu_put_u64(at(FRAME + 56), CODE + 184 - 4);
    assert_int_equal(read_made(&p), MUSTER_EAGAIN);
}

/* Without a GIL, threads run copies of the code. Meets
 * COPIES_MAX of proto/stacks/python_frame.c. */
static void test_stacks_python_copies_of_code_are_known(void **state)
{
    const uint64_t copies = BASE + 0x9000;
    const uint64_t copy = BASE + 0x9800;
    struct mu_python p;

    (void)state;
    make(&p);
    p.layout.frame_tlbc = 64;
    p.layout.code_tlbc = 144;
    mu_put_u64(at(CODE + 144), copies);
    mu_put_u64(at(copies + 8 + 8), copy);
    mu_put_u32(at(FRAME + 64), 1);
    mu_put_u64(at(FRAME + 56), copy + 2);
    assert_int_equal(read_made(&p), 0);
    assert_int_equal(stack.frames[0].line, 8);
    mu_put_u32(at(FRAME + 64), 1u << 20);
    assert_int_equal(read_made(&p), MUSTER_EAGAIN);
}

/* Without a GIL, the state of a str begins with a byte of its own since 3.14. */
static void test_stacks_python_str_without_a_gil(void **state)
{
    static const unsigned shifts[] = {8, 16};
    struct mu_python p;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        make(&p);
        p.layout.minor = 14;
        p.layout.free_threaded = true;
        mu_put_u32(at(STR + 32), 3u | (1u | 1u << 3 | 1u << 4) << shifts[i]);
        mu_put_u32(at(STR + 0x800 + 32), 3u | (1u | 1u << 3 | 1u << 4) << shifts[i]);
        assert_int_equal(read_made(&p), 0);
        assert_span_text(stack.frames[0].function, "step");
    }
}

/* A chain that is another one when it is read again. */
static void test_stacks_python_changing_chain_is_torn(void **state)
{
    struct mu_python p;
    unsigned torn = 0;

    (void)state;
    make(&p);
    made.tear_at = 7;
    for (int i = 0; i < 50; i++) {
        torn += read_made(&p) == MUSTER_EAGAIN ? 1 : 0;
    }
    assert_true(torn > 0);
}

/* Meets MU_PYTHON_READS_MAX. */
static void test_stacks_python_work_is_bounded(void **state)
{
    struct mu_python p;

    (void)state;
    make(&p);
    make_frame(FRAME, FRAME);
    made.reads = 0;
    p.reads_left = MU_PYTHON_READS_MAX;
    for (int i = 0; i < 1000; i++) {
        struct mu_python_thread thread = {.state = THREAD};

        (void)mu_python_stack(&p, &thread, &stack);
    }
    assert_int_equal(made.reads, MU_PYTHON_READS_MAX);
}

static void test_stacks_python_tells_the_holder_of_the_gil(void **state)
{
    struct mu_python_thread thread;
    struct mu_python p;
    size_t count;

    (void)state;
    make(&p);
    mu_put_u64(at(RUNTIME + 576), THREAD);
    assert_int_equal(mu_python_threads(&p, &thread, 1, &count), 0);
    assert_int_equal(thread.gil, MU_STACKS_GIL_HELD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacks_python_reads_all_versions),
        cmocka_unit_test(test_stacks_python_finds_the_version),
        cmocka_unit_test(test_stacks_python_refuses_other_versions),
        cmocka_unit_test(test_stacks_python_refuses_senseless_offsets),
        cmocka_unit_test(test_stacks_python_is_not_there),
        cmocka_unit_test(test_stacks_python_made_is_read),
        cmocka_unit_test(test_stacks_python_keeps_the_oldest_thread),
        cmocka_unit_test(test_stacks_python_lists_that_are_rings_end),
        cmocka_unit_test(test_stacks_python_endless_chain_is_said),
        cmocka_unit_test(test_stacks_python_deep_chain_loses_its_middle),
        cmocka_unit_test(test_stacks_python_long_names_are_cut),
        cmocka_unit_test(test_stacks_python_names_have_room),
        cmocka_unit_test(test_stacks_python_long_table_ends),
        cmocka_unit_test(test_stacks_python_garbage_is_torn),
        cmocka_unit_test(test_stacks_python_far_instruction_is_torn),
        cmocka_unit_test(test_stacks_python_copies_of_code_are_known),
        cmocka_unit_test(test_stacks_python_str_without_a_gil),
        cmocka_unit_test(test_stacks_python_changing_chain_is_torn),
        cmocka_unit_test(test_stacks_python_work_is_bounded),
        cmocka_unit_test(test_stacks_python_tells_the_holder_of_the_gil),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
