/*
 * The dump of a flight recorder: what is read of it, that unknown keys and older versions are
 * taken, what is refused and in which words, and that no dump costs more than its length warrants.
 */
#include "unit.h"

#include <stdlib.h>

#include <muster/error.h>

#include "codec/stacks/flight.h"
#include "codec/stacks/place.h"
#include "core/alloc.h"
#include "core/prng.h"
#include "failheap.h"
#include "flight_dump.h"

static void expect_error(struct mu_span in, int want, const char *words)
{
    struct mu_errmsg msg = {{0}};
    struct mu_flight f;

    mu_flight_init(&f);
    assert_int_equal(mu_flight_decode(&f, in, &msg), want);
    if (strstr(msg.text, words) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", words, msg.text);
    }
    assert_int_equal(f.entry_count, 0);
    assert_null(f.texts);
    mu_flight_fini(&f);
}

static void decode(struct mu_flight *f, struct mu_span in)
{
    struct mu_errmsg msg = {{0}};

    mu_flight_init(f);
    if (mu_flight_decode(f, in, &msg) != 0) {
        fail_msg("%s", msg.text);
    }
}

static void expect_text(const struct mu_flight *f, uint32_t text, const char *want)
{
    assert_string_equal(mu_flight_text(f, text), want);
}

static void test_flight_reads_what_a_rank_recorded(void **unused)
{
    struct mu_flight f;
    struct dump d;

    (void)unused;
    dump_begin(&d, "2.10");
    dump_group(&d, "0", "default_pg", "[0, 1, 2, 3]");
    dump_group(&d, "7", "tp", "[2, 3]");
    dump_status(&d, 118, 118, 117);
    dump_entry(&d, (struct dump_op){.seq = 117,
                                    .op = 117,
                                    .duration_ms = 1.5,
                                    .created_ns = INT64_C(1700000000000000001),
                                    .completed_ns = INT64_C(1700000000002000000)});
    dump_entry(&d,
               (struct dump_op){
                   .seq = 118, .op = 118, .state = "started", .file = "/job/train.py", .line = 81});
    dump_entry(&d, (struct dump_op){.seq = 5,
                                    .p2p = true,
                                    .name = "nccl:recv 3<-0",
                                    .group = "7",
                                    .desc = "tp",
                                    .pg_id = 1,
                                    .in = 70000,
                                    .type = "BFloat16",
                                    .state = "scheduled"});
    decode(&f, dump_end(&d));

    expect_text(&f, f.version, "2.10");
    assert_int_equal(f.group_count, 2);
    expect_text(&f, f.groups[0].name, "0");
    expect_text(&f, f.groups[0].desc, "default_pg");
    assert_int_equal(f.groups[0].count, 4);
    assert_int_equal(f.groups[1].count, 2);
    assert_int_equal(f.ranks[f.groups[1].first + 1], 3);
    assert_int_equal(f.groups[0].enqueued, 118);
    assert_int_equal(f.groups[0].completed, 117);
    assert_int_equal(f.groups[1].completed, -1);
    assert_int_equal(f.entry_count, 3);
    assert_int_equal(f.entries[0].seq, 117);
    assert_int_equal(f.entries[0].state, MU_FLIGHT_COMPLETED);
    assert_int_equal(f.entries[0].duration_ns, 1500000);
    assert_int_equal(f.entries[0].created_ns, UINT64_C(1700000000000000001));
    assert_int_equal(f.entries[0].completed_ns, UINT64_C(1700000000002000000));
    expect_text(&f, f.entries[0].file, "");
    expect_text(&f, f.entries[1].name, "all_reduce");
    assert_int_equal(f.entries[1].state, MU_FLIGHT_STARTED);
    assert_int_equal(f.entries[1].completed_ns, 0);
    assert_int_equal(f.entries[1].timeout_ms, 600000);
    expect_text(&f, f.entries[1].function, "train");
    expect_text(&f, f.entries[1].file, "/job/train.py");
    assert_int_equal(f.entries[1].line, 81);
    expect_text(&f, f.entries[1].inputs.sizes, "[[1024]]");
    expect_text(&f, f.entries[1].inputs.types, "[Float]");
    assert_int_equal(f.entries[1].inputs.elements, 1024);
    assert_int_equal(f.entries[0].inputs.sizes_digest, f.entries[1].inputs.sizes_digest);
    assert_int_not_equal(f.entries[0].inputs.sizes_digest, f.entries[2].inputs.sizes_digest);
    assert_int_not_equal(f.entries[0].inputs.types_digest, f.entries[2].inputs.types_digest);
    assert_true(f.entries[2].p2p);
    assert_int_equal(f.entries[2].seq, 5);
    assert_int_equal(f.entries[2].group, 1);
    assert_int_equal(f.entries[2].state, MU_FLIGHT_SCHEDULED);
    expect_text(&f, f.entries[2].name, "recv 3<-0");
    expect_text(&f, f.entries[2].inputs.sizes, "[[70000]]");
    mu_flight_fini(&f);
    dump_free(&d);
}

/* A dump as Python's pickle writes it: the same keys, several dimensions, no entries yet. */
static void test_flight_reads_shapes_of_many_dimensions(void **unused)
{
    static const char entry[] =
        "\x80\x02}(X\x07\0\0\0versionX\x03\0\0\0002.3X\x07\0\0\0entries](}("
        "X\x0d\0\0\0process_groupX\x01\0\0\0"
        "0X\0\0\0\0\x86X\x05\0\0\0stateX\x07\0\0\0startedX\x0e\0\0\0profiling_name"
        "X\x04\0\0\0a2a\nX\x11\0\0\0collective_seq_idK\x07X\x0b\0\0\0input_sizes"
        "](](K\x02K\x03K\x04"
        "e](e](K\x00"
        "eeX\x0b\0\0\0later_field}X\x0d\0\0\0output_dtypes](X\x05\0\0\0FloatX\x04\0\0\0Halfe"
        "ueu.";
    struct mu_flight f;

    (void)unused;
    decode(&f, MU_SPAN_LIT(entry));
    assert_int_equal(f.entry_count, 1);
    assert_int_equal(f.entries[0].seq, 7);
    expect_text(&f, f.entries[0].inputs.sizes, "[[2, 3, 4], [], [0]]");
    assert_int_equal(f.entries[0].inputs.elements, 25);
    expect_text(&f, f.entries[0].outputs.types, "[Float, Half]");
    expect_text(&f, f.entries[0].outputs.sizes, "");
    expect_text(&f, f.entries[0].name, "a2a\\x0a");
    assert_int_equal(f.groups[0].count, 0);
    mu_flight_fini(&f);
}

/* Gloo leaves the state alone and retires what has ended; NCCL also retires what has timed out. */
static void test_flight_tells_what_has_ended(void **unused)
{
    struct mu_flight f;
    struct dump d;

    (void)unused;
    dump_begin(&d, "2.10");
    dump_entry(&d, (struct dump_op){.name = "gloo:all_reduce", .state = "scheduled"});
    dump_entry(&d,
               (struct dump_op){.name = "gloo:all_reduce", .state = "scheduled", .retired = true});
    dump_entry(&d,
               (struct dump_op){.name = "nccl:all_reduce", .state = "started", .retired = true});
    dump_entry(&d, (struct dump_op){.name = "nccl:all_reduce", .state = "completed"});
    decode(&f, dump_end(&d));
    assert_false(f.entries[0].ended);
    assert_true(f.entries[0].gloo);
    assert_true(f.entries[1].ended);
    expect_text(&f, f.entries[1].name, "all_reduce");
    assert_false(f.entries[2].ended);
    assert_false(f.entries[2].gloo);
    assert_true(f.entries[3].ended);
    mu_flight_fini(&f);
    dump_free(&d);
}

static void test_flight_refuses_what_is_no_dump(void **unused)
{
    struct dump d;

    (void)unused;
    expect_error(MU_SPAN_LIT(""), MUSTER_ECORRUPT, "too early");
    expect_error(MU_SPAN_LIT("\x80\x02]."), MUSTER_ECORRUPT, "wrong kind");
    expect_error(MU_SPAN_LIT("\x80\x02}."), MUSTER_ECORRUPT, "no version");
    expect_error(MU_SPAN_LIT("\x80\x02}(X\x07\0\0\0versionK\x02u."), MUSTER_ECORRUPT, "not a text");
    expect_error(MU_SPAN_LIT("\x80\x02"
                             "cos\nsystem\nX\x04\0\0\0true\x85R."),
                 MUSTER_ECORRUPT, "os.system");
    dump_begin(&d, "1.5");
    expect_error(dump_end(&d), MUSTER_ECORRUPT, "version 1.5");
    dump_free(&d);
    dump_begin(&d, "2.4");
    dump_entry(&d, (struct dump_op){.state = "asleep"});
    expect_error(dump_end(&d), MUSTER_ECORRUPT, "state");
    dump_free(&d);
    dump_begin(&d, "2.4");
    dump_entry(&d, (struct dump_op){.seq = -1});
    expect_error(dump_end(&d), MUSTER_ECORRUPT, "whole number");
    dump_free(&d);
}

static void test_flight_has_an_end_to_bytes_and_groups(void **unused)
{
    static char names[MU_FLIGHT_GROUPS_MAX + 1][8];
    uint8_t *large = mu_calloc(1, MU_FLIGHT_BYTES_MAX + 1);
    struct mu_flight f;
    struct dump d;

    (void)unused;
    assert_non_null(large);
    expect_error(mu_span(large, MU_FLIGHT_BYTES_MAX + 1), MUSTER_ELIMIT, "longer than");
    mu_free(large);
    for (size_t count = MU_FLIGHT_GROUPS_MAX; count <= MU_FLIGHT_GROUPS_MAX + 1; count++) {
        dump_begin(&d, "2.4");
        dump_status(&d, -1, -1, -1);
        for (size_t i = 0; i < count; i++) {
            (void)snprintf(names[i], sizeof(names[i]), "g%zu", i);
            dump_entry(&d, (struct dump_op){.group = names[i]});
        }
        if (count == MU_FLIGHT_GROUPS_MAX) {
            decode(&f, dump_end(&d));
            assert_int_equal(f.group_count, count);
            mu_flight_fini(&f);
        } else {
            expect_error(dump_end(&d), MUSTER_ELIMIT, "groups");
        }
        dump_free(&d);
    }
}

static void test_flight_has_an_end_to_entries(void **unused)
{
    struct mu_flight f;
    struct dump d;

    (void)unused;
    for (size_t count = MU_FLIGHT_ENTRIES_MAX; count <= MU_FLIGHT_ENTRIES_MAX + 1; count++) {
        dump_begin(&d, "2.4");
        for (size_t i = 0; i < count; i++) {
            dump_entry(&d, (struct dump_op){.seq = (int64_t)i});
        }
        if (count == MU_FLIGHT_ENTRIES_MAX) {
            decode(&f, dump_end(&d));
            assert_int_equal(f.entry_count, count);
            mu_flight_fini(&f);
        } else {
            expect_error(dump_end(&d), MUSTER_ELIMIT, "more than 65536");
        }
        dump_free(&d);
    }
}

static void test_flight_has_an_end_to_members(void **unused)
{
    size_t len = 2 * (MU_FLIGHT_RANKS_MAX + 1);
    char *ranks = mu_malloc(len + 1);
    struct mu_flight f;
    struct dump d;

    (void)unused;
    assert_non_null(ranks);
    for (size_t i = 0; i < len; i++) {
        ranks[i] = i % 2 == 0 ? '1' : ',';
    }
    ranks[len] = '\0';
    dump_begin(&d, "2.4");
    dump_group(&d, "0", "", ranks);
    expect_error(dump_end(&d), MUSTER_ELIMIT, "members");
    dump_free(&d);
    ranks[len - 2] = '\0';
    dump_begin(&d, "2.4");
    dump_group(&d, "0", "", ranks);
    decode(&f, dump_end(&d));
    assert_int_equal(f.groups[0].count, MU_FLIGHT_RANKS_MAX);
    mu_flight_fini(&f);
    dump_free(&d);
    mu_free(ranks);
    dump_begin(&d, "2.4");
    dump_group(&d, "0", "", "[99999999999]");
    expect_error(dump_end(&d), MUSTER_ECORRUPT, "too large");
    dump_free(&d);
}

static void test_flight_cuts_texts(void **unused)
{
    char name[MU_FLIGHT_TEXT_MAX + 100];
    struct mu_flight f;
    struct dump d;

    (void)unused;
    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    dump_begin(&d, "2.4");
    dump_entry(&d, (struct dump_op){.name = name});
    decode(&f, dump_end(&d));
    assert_int_equal(strlen(mu_flight_text(&f, f.entries[0].name)), MU_FLIGHT_TEXT_MAX);
    mu_flight_fini(&f);
    dump_free(&d);
}

static void put_text(struct mu_buf *b, const char *text)
{
    uint8_t head[5] = {'X'};

    mu_put_u32(head + 1, (uint32_t)strlen(text));
    assert_int_equal(mu_buf_append(b, mu_span(head, 5)), 0);
    assert_int_equal(mu_buf_append(b, mu_span_str(text)), 0);
}

static void put(struct mu_buf *b, const char *text)
{
    assert_int_equal(mu_buf_append(b, mu_span_str(text)), 0);
}

/*
 * Meets KEYS_MAX of codec/stacks/flight.c, FRAMES_MAX of codec/stacks/flight.c, and TENSORS_MAX of
 * codec/stacks/flight_tensors.c. An entry refers to one list of `count` items in place of `field`.
 */
static void expect_length(const char *field, const char *item, size_t count, int want)
{
    struct mu_errmsg msg = {{0}};
    struct mu_flight f;
    struct mu_buf b;
    size_t before;
    int err;

    mu_buf_init(&b, (size_t)1 << 20);
    assert_int_equal(mu_buf_append(&b, mu_span("\x80\x02}(", 4)), 0);
    put_text(&b, "version");
    put_text(&b, "2.9");
    put_text(&b, "entries");
    put(&b, "](}(");
    put_text(&b, "process_group");
    put_text(&b, "0");
    put_text(&b, "x");
    put(&b, "\x86");
    put_text(&b, "state");
    put_text(&b, "started");
    put_text(&b, "profiling_name");
    put_text(&b, "x");
    put_text(&b, "collective_seq_id");
    put(&b, "K\x01");
    before = field == NULL ? 4 : 0;
    if (field != NULL) {
        put_text(&b, field);
        put(&b, "](");
    }
    for (size_t i = before; i < count; i++) {
        put(&b, item);
    }
    put(&b, field == NULL ? "ueu." : "eueu.");
    mu_flight_init(&f);
    err = mu_flight_decode(&f, mu_buf_span(&b), &msg);
    if (err != want) {
        fail_msg("%zu of %s: %d, %s", count, field, err, msg.text);
    }
    mu_flight_fini(&f);
    mu_buf_fini(&b);
}

static void test_flight_has_an_end_to_its_parts(void **unused)
{
    (void)unused;
    expect_length(NULL, "NN", 64, 0);
    expect_length(NULL, "NN", 65, MUSTER_ELIMIT);
    expect_length("frames", "}", 256, 0);
    expect_length("frames", "}", 257, MUSTER_ELIMIT);
    expect_length("input_sizes", "]", 4096, 0);
    expect_length("input_sizes", "]", 4097, MUSTER_ELIMIT);
}

/* One list of 4,000 shapes is written once, and then 40,000 entries refer to it. */
static void test_flight_bombs_cost_what_they_weigh(void **unused)
{
    struct mu_buf b;

    (void)unused;
    mu_buf_init(&b, (size_t)1 << 20);
    assert_int_equal(mu_buf_append(&b, mu_span("\x80\x02}(", 4)), 0);
    put_text(&b, "version");
    put_text(&b, "2.9");
    put_text(&b, "entries");
    put(&b, "](}(");
    put_text(&b, "process_group");
    put_text(&b, "0");
    put_text(&b, "x");
    put(&b, "\x86");
    put_text(&b, "state");
    put_text(&b, "started");
    put_text(&b, "profiling_name");
    put_text(&b, "x");
    put_text(&b, "collective_seq_id");
    put(&b, "K\x01");
    put_text(&b, "input_sizes");
    put(&b, "](");
    for (int i = 0; i < 4000; i++) {
        put(&b, "]");
    }
    put(&b, "eu");
    assert_int_equal(mu_buf_append(&b, mu_span("q\0", 2)), 0);
    for (int i = 0; i < 40000; i++) {
        assert_int_equal(mu_buf_append(&b, mu_span("h\0", 2)), 0);
    }
    put(&b, "eu.");
    expect_error(mu_buf_span(&b), MUSTER_ECORRUPT, "too often");
    mu_buf_fini(&b);
}

/* Meets MEMORY_MAX of codec/stacks/flight.c: few bytes, many values. */
static void test_flight_bounds_its_memory(void **unused)
{
    size_t len = MU_FLIGHT_BYTES_MAX;
    uint8_t *in = mu_malloc(len);

    (void)unused;
    assert_non_null(in);
    memset(in, 'K', len);
    memcpy(in, "\x80\x02](", 4);
    expect_error(mu_span(in, len), MUSTER_ELIMIT, "bytes of memory");
    mu_free(in);
}

static struct mu_span make_small(struct dump *d)
{
    dump_begin(d, "2.10");
    dump_group(d, "0", "default_pg", "[0, 1]");
    dump_status(d, 3, 3, 2);
    dump_entry(d, (struct dump_op){.seq = 2, .file = "train.py", .line = 5, .duration_ms = 2});
    dump_entry(d, (struct dump_op){.seq = 3, .state = "started", .in = 12, .group = "1"});
    return dump_end(d);
}

static void test_flight_cut_or_changed_anywhere_is_safe(void **unused)
{
    struct mu_errmsg msg;
    struct mu_prng prng;
    struct mu_flight f;
    struct dump d;
    struct mu_span whole = make_small(&d);

    (void)unused;
    mu_prng_seed(&prng, 21);
    mu_flight_init(&f);
    for (size_t len = 0; len < whole.len; len++) {
        assert_int_not_equal(mu_flight_decode(&f, mu_span(whole.data, len), &msg), 0);
    }
    for (size_t i = 0; i < 20000; i++) {
        uint8_t *byte = &d.b.data[d.b.head + mu_prng_below(&prng, whole.len)];
        uint8_t was = *byte;

        *byte = (uint8_t)mu_prng_u64(&prng);
        (void)mu_flight_decode(&f, whole, &msg);
        *byte = was;
    }
    mu_flight_fini(&f);
    dump_free(&d);
}

static void test_flight_survives_a_failing_heap(void **unused)
{
    struct dump d;
    struct mu_span in = make_small(&d);

    (void)unused;
    for (long nth = 0;; nth++) {
        struct mu_errmsg msg = {{0}};
        struct mu_flight f;
        bool fired;
        int err;

        mu_flight_init(&f);
        failheap_arm(nth);
        err = mu_flight_decode(&f, in, &msg);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_flight_fini(&f);
        if (!fired) {
            assert_true(nth > 6);
            break;
        }
    }
    dump_free(&d);
}

static void test_flight_knows_whose_code_a_file_is(void **unused)
{
    static const char *const theirs[] = {
        "/usr/lib/python3.11/threading.py",
        "/opt/conda/lib/python3.10/site-packages/torch/nn/modules/module.py",
        "/usr/lib/python3/dist-packages/torch/x.py",
        "/usr/local/lib64/python3.12/queue.py",
        "<frozen importlib._bootstrap>",
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp",
        "/lib/x86_64-linux-gnu/libc.so.6",
        "??",
        "",
    };
    static const char *const ours[] = {"/job/train.py", "train", "<string>", "<stdin>",
                                       "/job/python3/train.py"};

    (void)unused;
    for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++) {
        assert_true(mu_place_is_library(mu_span_str(theirs[i])));
    }
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        assert_false(mu_place_is_library(mu_span_str(ours[i])));
    }
    assert_span_text(mu_place_base(mu_span_str("/job/train.py")), "train.py");
    assert_span_text(mu_place_base(mu_span_str("train.py")), "train.py");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flight_reads_what_a_rank_recorded),
        cmocka_unit_test(test_flight_reads_shapes_of_many_dimensions),
        cmocka_unit_test(test_flight_tells_what_has_ended),
        cmocka_unit_test(test_flight_refuses_what_is_no_dump),
        cmocka_unit_test(test_flight_has_an_end_to_bytes_and_groups),
        cmocka_unit_test(test_flight_has_an_end_to_entries),
        cmocka_unit_test(test_flight_has_an_end_to_members),
        cmocka_unit_test(test_flight_has_an_end_to_its_parts),
        cmocka_unit_test(test_flight_cuts_texts),
        cmocka_unit_test(test_flight_bombs_cost_what_they_weigh),
        cmocka_unit_test(test_flight_bounds_its_memory),
        cmocka_unit_test(test_flight_cut_or_changed_anywhere_is_safe),
        cmocka_unit_test(test_flight_survives_a_failing_heap),
        cmocka_unit_test(test_flight_knows_whose_code_a_file_is),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
