/*
 * Grouping: reports are made with their writer, and the sentence, the page and the JSON that come
 * of them are compared as a whole. Also what a stack says about waiting.
 */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "failheap.h"
#include "proto/stacks/group.h"
#include "proto/stacks/stance.h"

#define C10D    "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py"
#define LOGGER  "/usr/lib/python3/dist-packages/torch/distributed/c10d_logger.py"
#define LOADER  "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py"
#define FRAMES  8
#define OUT_MAX ((size_t)1 << 20)

struct stack {
    char state; /* 0: S */
    const char *note;
    bool torn;
    struct {
        const char *function;
        const char *file;
        uint32_t line;
    } frames[FRAMES];
};

static const struct stack reducing = {.frames = {{"all_reduce", C10D, 2696},
                                                 {"wrapper", LOGGER, 83},
                                                 {"train", "/job/train.py", 81},
                                                 {"<module>", "/job/train.py", 200}}};
static const struct stack loading = {
    .frames = {{"Thread.wait", "/usr/lib/python3.11/threading.py", 320},
               {"DataLoader._get", LOADER, 900},
               {"DataLoader.__next__", LOADER, 630},
               {"batches", "/job/data.py", 40},
               {"<module>", "/job/train.py", 70}}};

/* Makes a report of one rank. The bytes are lent until the next call. */
static struct mu_stacks_report make_report(uint32_t rank, const struct stack *s)
{
    static uint8_t bytes[16384];
    struct mu_stacks_frame frames[FRAMES];
    struct mu_stacks_thread thread = {
        .tid = 7, .main = true, .torn = s->torn, .state = s->state == 0 ? 'S' : s->state};
    struct mu_stacks_report head = {.kind = MU_STACKS_PYTHON,
                                    .node = MU_SPAN_LIT("a"),
                                    .rank = rank,
                                    .local_rank = rank,
                                    .pid = 1000 + rank};
    struct mu_stacks_writer w;
    struct mu_buf out;

    head.note = mu_span_str(s->note == NULL ? "" : s->note);
    while (thread.frame_count < FRAMES && s->frames[thread.frame_count].function != NULL) {
        uint32_t i = thread.frame_count++;

        frames[i] = (struct mu_stacks_frame){mu_span_str(s->frames[i].function),
                                             mu_span_str(s->frames[i].file), s->frames[i].line};
    }
    mu_stacks_writer_init(&w);
    mu_buf_init(&out, sizeof(bytes));
    assert_int_equal(mu_stacks_writer_thread(&w, &thread, frames), 0);
    assert_int_equal(mu_stacks_writer_finish(&w, &head, &out), 0);
    memcpy(bytes, out.data + out.head, out.len);
    assert_int_equal(mu_stacks_report_decode(mu_span(bytes, out.len), &head), 0);
    mu_stacks_writer_fini(&w);
    mu_buf_fini(&out);
    return head;
}

static void add(struct mu_groups *g, uint32_t rank, const struct stack *s)
{
    struct mu_stacks_report report = make_report(rank, s);

    assert_int_equal(mu_groups_add(g, &report), 0);
}

static void begin(struct mu_groups *g, uint32_t world)
{
    struct mu_groups_config config;

    mu_groups_defaults(&config);
    config.world = world;
    mu_groups_init(g, &config);
}

typedef int (*writer_fn)(struct mu_groups *g, struct mu_buf *out);

static void expect(struct mu_groups *g, writer_fn write, const char *want)
{
    struct mu_buf out;

    mu_buf_init(&out, OUT_MAX);
    assert_int_equal(write(g, &out), 0);
    if (!mu_span_eq(mu_buf_span(&out), mu_span_str(want))) {
        fail_msg("got\n%.*s\nnot\n%s", (int)out.len, (const char *)(out.data + out.head), want);
    }
    mu_buf_fini(&out);
}

static void test_group_puts_the_odd_ones_first(void **unused)
{
    struct mu_groups g;

    (void)unused;
    begin(&g, 8);
    for (uint32_t rank = 8; rank-- > 0;) {
        add(&g, rank, rank == 3 ? &loading : &reducing);
    }
    expect(&g, mu_groups_write_line,
           "rank 3 in DataLoader.__next__ at data.py:40; 7 ranks in all_reduce at train.py:81");
    expect(&g, mu_groups_write_text,
           "rank 3 in DataLoader.__next__ at data.py:40\n"
           "    Thread.wait (/usr/lib/python3.11/threading.py:320)\n"
           "    DataLoader._get (" LOADER ":900)\n"
           "    DataLoader.__next__ (" LOADER ":630)\n"
           "    batches (/job/data.py:40)\n"
           "    <module> (/job/train.py:70)\n"
           "7 ranks (0-2,4-7) in all_reduce at train.py:81\n"
           "    all_reduce (" C10D ":2696)\n"
           "    wrapper (" LOGGER ":83)\n"
           "    train (/job/train.py:81)\n"
           "    <module> (/job/train.py:200)\n");
    mu_groups_fini(&g);
}

static void test_group_writes_json(void **unused)
{
    static const struct stack small = {.frames = {{"f\"\n", "/job/a.py", 5}}};
    static const struct stack none = {.note = "no permission to read it"};
    struct mu_groups g;

    (void)unused;
    begin(&g, 4);
    add(&g, 0, &small);
    add(&g, 2, &small);
    add(&g, 1, &none);
    expect(&g, mu_groups_write_json,
           "{\"reports\":3,\"missing\":{\"count\":1,\"ranks\":\"3\"},\"by\":\"stack\",\"groups\":["
           "{\"count\":1,\"ranks\":\"1\",\"stopped\":false,\"note\":\"no permission to read it\","
           "\"frames\":[]},"
           "{\"count\":2,\"ranks\":\"0,2\",\"stopped\":false,\"function\":\"f\\\"\\\\x0a\","
           "\"file\":\"/job/a.py\",\"line\":5,\"frames\":[{\"function\":\"f\\\"\\\\x0a\","
           "\"file\":\"/job/a.py\",\"line\":5}]}],\"more\":{\"groups\":0,\"ranks\":0}}");
    expect(&g, mu_groups_write_text,
           "no report from rank 3\n"
           "rank 1 not in Python code that could be read: no permission to read it\n"
           "2 ranks (0,2) in f\"\\x0a at a.py:5\n"
           "    f\"\\x0a (/job/a.py:5)\n");
    mu_groups_fini(&g);
}

static void test_group_tells_who_was_stopped(void **unused)
{
    struct stack stopped = reducing;
    struct mu_groups g;

    (void)unused;
    stopped.state = 'T';
    begin(&g, 0);
    add(&g, 0, &reducing);
    add(&g, 1, &stopped);
    add(&g, 2, &reducing);
    expect(&g, mu_groups_write_line,
           "rank 1 stopped in all_reduce at train.py:81; 2 ranks in all_reduce at train.py:81");
    mu_groups_fini(&g);
}

static void test_group_names_places_for_people(void **unused)
{
    static const struct stack own = {.frames = {{"main", "train.py", 9}}};
    static const struct stack theirs = {
        .frames = {{"select", "/usr/lib/python3.11/selectors.py", 468}}};
    static const struct stack called = {
        .frames = {{"Module._call_impl", "/x/site-packages/torch/nn/module.py", 1},
                   {"Module._wrapped_call_impl", "/x/site-packages/torch/nn/module.py", 2},
                   {"step", "train.py", 12}}};
    struct mu_groups g;

    (void)unused;
    begin(&g, 0);
    add(&g, 0, &own);
    add(&g, 1, &theirs);
    add(&g, 2, &called);
    add(&g, MU_STACKS_NO_RANK, &loading);
    expect(&g, mu_groups_write_line,
           "rank 0 in main at train.py:9; rank 1 in select at selectors.py:468; "
           "rank 2 in step at train.py:12; "
           "a process without a rank in DataLoader.__next__ at data.py:40");
    mu_groups_fini(&g);
}

/* More stacks than fit on the page: those that come from one line of the script are one group. */
static void test_group_falls_back_to_the_line_of_the_script(void **unused)
{
    struct mu_groups g;

    (void)unused;
    begin(&g, 0);
    for (uint32_t rank = 0; rank < 40; rank++) {
        struct stack s = rank == 17 ? loading : reducing;

        s.frames[0].line = rank;
        add(&g, rank, &s);
    }
    expect(&g, mu_groups_write_text,
           "rank 17 in DataLoader.__next__ at data.py:40\n"
           "39 ranks (0-16,18-39) in all_reduce at train.py:81\n");
    mu_groups_fini(&g);
}

static void test_group_stays_on_one_page(void **unused)
{
    struct mu_groups g;

    (void)unused;
    begin(&g, 0);
    for (uint32_t rank = 0; rank < 100; rank++) {
        struct stack s = reducing;

        s.frames[2].line = rank < 60 ? 7 : rank;
        add(&g, rank, &s);
    }
    expect(&g, mu_groups_write_text,
           "rank 60 in all_reduce at train.py:60\n"
           "rank 61 in all_reduce at train.py:61\n"
           "rank 62 in all_reduce at train.py:62\n"
           "rank 63 in all_reduce at train.py:63\n"
           "rank 64 in all_reduce at train.py:64\n"
           "rank 65 in all_reduce at train.py:65\n"
           "rank 66 in all_reduce at train.py:66\n"
           "rank 67 in all_reduce at train.py:67\n"
           "rank 68 in all_reduce at train.py:68\n"
           "60 ranks (0-59) in all_reduce at train.py:7\n"
           "31 more ranks in 31 more places\n");
    mu_groups_fini(&g);
}

static void test_group_writes_ranges(void **unused)
{
    static const uint32_t some[] = {0, 1, 2, 4, 6, 7, 9};
    uint32_t many[1000];
    char out[64];

    (void)unused;
    assert_int_equal(mu_groups_ranges(out, sizeof(out), some, 7), strlen("0-2,4,6,7,9"));
    assert_string_equal(out, "0-2,4,6,7,9");
    (void)mu_groups_ranges(out, sizeof(out), some, 0);
    assert_string_equal(out, "");
    for (uint32_t i = 0; i < 1000; i++) {
        many[i] = 2 * i;
    }
    (void)mu_groups_ranges(out, sizeof(out), many, 1000);
    assert_string_equal(out, "0,2,4,6,8,10,12,14,16,18,20,22,24,26,28 and 985 more");
    assert_true(mu_groups_ranges(out, 32, many, 1000) < 32);
    assert_string_equal(out, "0,2,4,6 and 996 more");
    many[0] = UINT32_MAX - 5;
    many[1] = UINT32_MAX - 4;
    (void)mu_groups_ranges(out, 32, many, 1000);
    assert_string_equal(out, "1000 more");
}

/* Ten thousand ranks, of which a few are somewhere else. */
static void test_group_takes_ten_thousand_ranks(void **unused)
{
    struct mu_groups g;

    (void)unused;
    begin(&g, 10000);
    for (uint32_t rank = 0; rank < 10000; rank++) {
        if (rank != 77) {
            add(&g, rank, rank == 4321 ? &loading : &reducing);
        }
    }
    expect(&g, mu_groups_write_line,
           "rank 4321 in DataLoader.__next__ at data.py:40; "
           "9998 ranks in all_reduce at train.py:81");
    mu_groups_fini(&g);
}

/* Each rank is somewhere else, as in a job that does not hang. */
static void test_group_puts_ten_thousand_places_on_one_page(void **unused)
{
    struct mu_groups g;
    struct mu_buf out;
    size_t lines = 0;

    (void)unused;
    begin(&g, 10000);
    for (uint32_t rank = 0; rank < 10000; rank++) {
        struct stack s = reducing;

        s.frames[2].line = rank % 5000;
        s.frames[0].line = rank;
        add(&g, rank, &s);
    }
    mu_buf_init(&out, OUT_MAX);
    assert_int_equal(mu_groups_write_text(&g, &out), 0);
    for (size_t i = 0; i < out.len; i++) {
        lines += mu_buf_span(&out).data[i] == '\n' ? 1 : 0;
    }
    assert_int_equal(lines, 11);
    mu_buf_reset(&out);
    assert_int_equal(mu_groups_write_json(&g, &out), 0);
    assert_true(g.stacks.count <= MU_GROUPS_STACKS_MAX && g.places.count <= MU_GROUPS_PLACES_MAX);
    mu_buf_fini(&out);
    mu_groups_fini(&g);
}

static void add_line(struct mu_groups *g, uint32_t rank, uint32_t line)
{
    struct stack s = {.frames = {{"f", "train.py", line}}};

    add(g, rank, &s);
}

static void test_group_has_an_end_to_stacks_and_places(void **unused)
{
    struct mu_groups g;
    struct mu_buf out;

    (void)unused;
    begin(&g, 0);
    for (uint32_t i = 0; i < MU_GROUPS_STACKS_MAX; i++) {
        add_line(&g, i, i);
    }
    assert_false(g.stacks.full);
    add_line(&g, MU_GROUPS_STACKS_MAX, MU_GROUPS_STACKS_MAX);
    assert_true(g.stacks.full);
    assert_int_equal(g.stacks.count, MU_GROUPS_STACKS_MAX);
    for (uint32_t i = MU_GROUPS_STACKS_MAX + 1; i < MU_GROUPS_PLACES_MAX; i++) {
        add_line(&g, i, i);
    }
    assert_false(g.places.full);
    add_line(&g, MU_GROUPS_PLACES_MAX, MU_GROUPS_PLACES_MAX);
    assert_true(g.places.full);
    mu_buf_init(&out, OUT_MAX);
    assert_int_equal(mu_groups_write_text(&g, &out), 0);
    assert_int_equal(mu_buf_append(&out, mu_span("", 1)), 0);
    assert_non_null(strstr((char *)out.data, "4087 more ranks in 4086 more places at least"));
    mu_buf_fini(&out);
    mu_groups_fini(&g);
}

static void test_group_has_an_end_to_ranks(void **unused)
{
    struct mu_groups_config config;
    struct mu_stacks_report report = make_report(0, &reducing);
    struct mu_groups g;

    (void)unused;
    begin(&g, 0);
    for (uint32_t i = 0; i < MU_GROUPS_RANKS_MAX; i++) {
        report.rank = i;
        assert_int_equal(mu_groups_add(&g, &report), 0);
    }
    assert_int_equal(mu_groups_add(&g, &report), MUSTER_ELIMIT);
    expect(&g, mu_groups_write_line, "1048576 ranks in all_reduce at train.py:81");
    mu_groups_fini(&g);
    mu_groups_defaults(&config);
    config.world = MU_GROUPS_RANKS_MAX + 1;
    mu_groups_init(&g, &config);
    assert_int_equal(g.config.world, 0);
    mu_groups_fini(&g);
}

/* Functions are cut at their end, paths at their beginning. */
static void test_group_cuts_texts(void **unused)
{
    static char function[MU_GROUPS_TEXT_MAX + 1];
    static char file[MU_GROUPS_TEXT_MAX + 50];
    struct stack s = {.frames = {{function, file, 1}}};
    struct mu_buf out;
    struct mu_groups g;

    (void)unused;
    memset(function, 'f', sizeof(function) - 1);
    memset(file, '/', sizeof(file) - 1);
    memcpy(file + sizeof(file) - 5, "a.py", 4);
    begin(&g, 0);
    add(&g, 0, &s);
    mu_buf_init(&out, OUT_MAX);
    assert_int_equal(mu_groups_write_line(&g, &out), 0);
    assert_int_equal(out.len, strlen("rank 0 in  at a.py:1") + MU_GROUPS_TEXT_MAX);
    mu_buf_fini(&out);
    mu_groups_fini(&g);
}

/* groups_shown_max and frames_shown_max decide how long the page is. */
static void test_group_shows_as_much_as_it_is_told(void **unused)
{
    struct mu_groups_config config = {.groups_shown_max = 2, .frames_shown_max = 1};
    struct mu_groups g;

    (void)unused;
    mu_groups_init(&g, &config);
    add(&g, 0, &reducing);
    add(&g, 1, &loading);
    expect(&g, mu_groups_write_text,
           "rank 0 in all_reduce at train.py:81\n"
           "    all_reduce (" C10D ":2696)\n"
           "    and 3 outer frames\n"
           "rank 1 in DataLoader.__next__ at data.py:40\n"
           "    Thread.wait (/usr/lib/python3.11/threading.py:320)\n"
           "    and 4 outer frames\n");
    add_line(&g, 2, 2);
    expect(&g, mu_groups_write_text,
           "rank 0 in all_reduce at train.py:81\n"
           "rank 2 in f at train.py:2\n"
           "1 more rank in 1 more place\n");
    mu_groups_fini(&g);
}

static void test_group_survives_a_failing_heap(void **unused)
{
    (void)unused;
    for (long nth = 0;; nth++) {
        struct mu_stacks_report report = make_report(0, &reducing);
        struct mu_groups g;
        struct mu_buf out;
        bool fired;
        int err;

        begin(&g, 2);
        mu_buf_init(&out, OUT_MAX);
        failheap_arm(nth);
        err = mu_groups_add(&g, &report);
        if (err == 0) {
            err = mu_groups_write_text(&g, &out);
        }
        if (err == 0) {
            err = mu_groups_write_json(&g, &out);
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_buf_fini(&out);
        mu_groups_fini(&g);
        if (!fired) {
            assert_true(nth > 8);
            break;
        }
    }
}

static void test_group_says_when_the_page_does_not_fit(void **unused)
{
    struct mu_groups g;
    struct mu_buf out;

    (void)unused;
    begin(&g, 0);
    add(&g, 0, &reducing);
    mu_buf_init(&out, 20);
    assert_int_equal(mu_groups_write_text(&g, &out), MUSTER_ELIMIT);
    mu_buf_fini(&out);
    mu_groups_fini(&g);
}

static enum mu_pulse_stance stance_of(const struct stack *s)
{
    struct mu_stacks_report report = make_report(0, s);

    return mu_stance_of(&report);
}

static uint64_t place_of(const struct stack *s)
{
    struct mu_stacks_report report = make_report(0, s);

    return mu_stance_place(&report);
}

static void test_stance_knows_what_a_stack_waits_for(void **unused)
{
    static const struct stack serving = {
        .frames = {{"EpollSelector.select", "/usr/lib/python3.11/selectors.py", 468},
                   {"BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1870},
                   {"main", "/job/serve.py", 9}}};
    static const struct stack handling = {
        .frames = {{"handle", "/job/serve.py", 30},
                   {"BaseEventLoop._run_once", "/usr/lib/python3.11/asyncio/base_events.py", 1922},
                   {"main", "/job/serve.py", 9}}};
    static const struct stack debugging = {
        .frames = {{"Cmd.cmdloop", "/usr/lib/python3.11/cmd.py", 126},
                   {"Pdb.interaction", "/usr/lib/python3.11/pdb.py", 400},
                   {"main", "/job/train.py", 9}}};
    static const struct stack editor = {
        .frames = {{"Condition.wait", "/usr/lib/python3.11/threading.py", 324},
                   {"PyDB._do_wait_suspend", "/x/debugpy/_vendored/pydevd/pydevd.py", 2200},
                   {"main", "/job/train.py", 9}}};
    static const struct stack awaited = {
        .frames = {{"Condition.wait", "/usr/lib/python3.11/threading.py", 324},
                   {"wait_for_client", "/x/site-packages/debugpy/server/api.py", 339},
                   {"main", "/job/train.py", 9}}};
    static const struct stack embedded = {
        .frames = {{"EpollSelector.select", "/usr/lib/python3.11/selectors.py", 468},
                   {"InteractiveShellEmbed.mainloop", "/x/IPython/terminal/embed.py", 3},
                   {"main", "/job/train.py", 9}}};
    static const struct stack forward = {
        .frames = {{"linear", "/x/site-packages/torch/nn/functional.py", 3},
                   {"forward", "/x/site-packages/torch/distributed/fsdp/x.py", 3},
                   {"main", "/job/train.py", 9}}};
    static const struct stack backward = {
        .frames = {{"backward", "/x/site-packages/torch/autograd/__init__.py", 197},
                   {"Tensor.backward", "/x/site-packages/torch/_tensor.py", 487},
                   {"main", "/job/train.py", 9}}};
    static const struct stack gathering = {
        .frames = {{"unshard", "/x/site-packages/torch/distributed/fsdp/x.py", 3},
                   {"main", "/job/train.py", 9}}};
    static const struct stack none = {.note = "not Python"};
    struct stack torn = reducing;

    (void)unused;
    torn.torn = true;
    assert_int_equal(stance_of(&backward), MU_STANCE_PERHAPS);
    assert_int_equal(stance_of(&gathering), MU_STANCE_PERHAPS);
    assert_int_equal(stance_of(&reducing), MU_STANCE_OTHERS);
    assert_int_equal(stance_of(&serving), MU_STANCE_REQUESTS);
    assert_int_equal(stance_of(&handling), MU_STANCE_UNKNOWN);
    assert_int_equal(stance_of(&debugging), MU_STANCE_PERSON);
    assert_int_equal(stance_of(&editor), MU_STANCE_PERSON);
    assert_int_equal(stance_of(&awaited), MU_STANCE_PERSON);
    assert_int_equal(stance_of(&embedded), MU_STANCE_PERSON);
    assert_int_equal(stance_of(&forward), MU_STANCE_UNKNOWN);
    assert_int_equal(stance_of(&loading), MU_STANCE_UNKNOWN);
    assert_int_equal(stance_of(&none), MU_STANCE_UNKNOWN);
    assert_int_equal(stance_of(&torn), MU_STANCE_UNKNOWN);
}

static void test_stance_tells_places_apart(void **unused)
{
    static const struct stack none = {.note = "not Python"};
    struct stack other = reducing;
    struct stack torn = reducing;

    (void)unused;
    torn.torn = true;
    other.frames[3].line++;
    assert_int_equal(place_of(&reducing), place_of(&reducing));
    assert_int_not_equal(place_of(&reducing), 0);
    assert_int_not_equal(place_of(&reducing), place_of(&other));
    assert_int_not_equal(place_of(&reducing), place_of(&loading));
    assert_int_equal(place_of(&none), 0);
    assert_int_equal(place_of(&torn), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_puts_the_odd_ones_first),
        cmocka_unit_test(test_group_writes_json),
        cmocka_unit_test(test_group_tells_who_was_stopped),
        cmocka_unit_test(test_group_names_places_for_people),
        cmocka_unit_test(test_group_falls_back_to_the_line_of_the_script),
        cmocka_unit_test(test_group_stays_on_one_page),
        cmocka_unit_test(test_group_writes_ranges),
        cmocka_unit_test(test_group_takes_ten_thousand_ranks),
        cmocka_unit_test(test_group_puts_ten_thousand_places_on_one_page),
        cmocka_unit_test(test_group_has_an_end_to_stacks_and_places),
        cmocka_unit_test(test_group_has_an_end_to_ranks),
        cmocka_unit_test(test_group_cuts_texts),
        cmocka_unit_test(test_group_shows_as_much_as_it_is_told),
        cmocka_unit_test(test_group_survives_a_failing_heap),
        cmocka_unit_test(test_group_says_when_the_page_does_not_fit),
        cmocka_unit_test(test_stance_knows_what_a_stack_waits_for),
        cmocka_unit_test(test_stance_tells_places_apart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
