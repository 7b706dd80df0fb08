/*
 * What nodes send of their flight recorders, gathered: a sentence, a page that stays a page, and
 * why there is no dump.
 */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "flight_dump.h"
#include "proto/stacks/flight_gather.h"

static struct mu_stacks_answer_writer writer;
static struct mu_flights flights;
static struct mu_buf out;

static int setup(void **state)
{
    const struct mu_stacks_answer head = {.workers = 2};

    (void)state;
    assert_int_equal(mu_stacks_answer_begin(&writer, &head, MU_STACKS_ANSWER_BYTES_MAX), 0);
    mu_flights_init(&flights);
    mu_buf_init(&out, (size_t)1 << 20);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mu_stacks_answer_fini(&writer);
    mu_flights_fini(&flights);
    mu_buf_fini(&out);
    return 0;
}

/* A rank of two, in so many groups; in each, rank 0 waits for rank 1. */
static void add_dump(uint32_t rank, unsigned groups)
{
    struct dump d;
    struct mu_stacks_flight flight = {.rank = rank};
    char names[64][8];

    dump_begin(&d, "2.10");
    for (unsigned i = 0; i < groups; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "g%02u", i);
        dump_group(&d, names[i], names[i], "[0, 1]");
    }
    for (unsigned i = 0; i < groups; i++) {
        dump_entry(&d, (struct dump_op){.seq = 1, .group = names[i], .desc = names[i]});
        if (rank == 0) {
            dump_entry(&d, (struct dump_op){
                               .seq = 2, .group = names[i], .desc = names[i], .state = "started"});
        }
    }
    flight.dump = dump_end(&d);
    assert_int_equal(mu_stacks_answer_add_flight(&writer, &flight), 0);
    dump_free(&d);
}

static void add_note(uint32_t rank, const char *note)
{
    const struct mu_stacks_flight flight = {.rank = rank, .note = mu_span_str(note)};

    assert_int_equal(mu_stacks_answer_add_flight(&writer, &flight), 0);
}

static void gather(void)
{
    struct mu_stacks_answer answer;

    assert_int_equal(mu_stacks_answer_decode(mu_stacks_answer_end(&writer), &answer), 0);
    assert_int_equal(answer.reports.len, 0);
    assert_int_equal(mu_flights_add(&flights, answer.flights), 0);
}

static const char *text(int (*write)(const struct mu_flights *f, struct mu_buf *out))
{
    static char copy[1 << 16];

    mu_buf_reset(&out);
    assert_int_equal(write(&flights, &out), 0);
    assert_true(out.len < sizeof(copy));
    memcpy(copy, mu_buf_span(&out).data == NULL ? (const uint8_t *)"" : mu_buf_span(&out).data,
           out.len);
    copy[out.len] = '\0';
    return copy;
}

static unsigned count(const char *in, const char *part)
{
    unsigned n = 0;

    for (; (in = strstr(in, part)) != NULL; in += strlen(part)) {
        n++;
    }
    return n;
}

static void test_gather_says_nothing_of_runs_without_recorders(void **state)
{
    (void)state;
    gather();
    assert_string_equal(text(mu_flights_write_line), "");
    assert_string_equal(text(mu_flights_write_text), "");
    assert_string_equal(text(mu_flights_write_json), "{\"dumps\": 0, \"findings\": []}");
}

static void test_gather_stays_one_page(void **state)
{
    char more[32];

    (void)state;
    add_dump(1, 20);
    add_dump(0, 20);
    gather();
    assert_int_equal(count(text(mu_flights_write_line), "rank 1 has not entered it"),
                     MU_FLIGHTS_LINE_MAX);
    assert_int_equal(count(text(mu_flights_write_text), "rank 1 has not entered it"),
                     MU_FLIGHTS_SHOWN_MAX);
    (void)snprintf(more, sizeof(more), "  and %d more\n", 20 - MU_FLIGHTS_SHOWN_MAX);
    assert_non_null(strstr(text(mu_flights_write_text), more));
    assert_int_equal(count(text(mu_flights_write_json), "rank 1 has not entered it"), 20);
}

static void test_gather_names_who_has_no_dump(void **state)
{
    (void)state;
    for (uint32_t rank = 8; rank-- > 2;) {
        add_note(rank, rank == 5 ? "it is\nbad" : "it was late");
    }
    add_dump(0, 1);
    gather();
    assert_non_null(strstr(text(mu_flights_write_text), "flight recorders of 1 rank:\n"));
    assert_non_null(strstr(text(mu_flights_write_text), "no dump of ranks 2-4,6,7: it was late\n"));
    assert_null(strstr(text(mu_flights_write_text), "is\nbad"));
}

static void test_gather_keeps_few_reasons(void **state)
{
    char note[32];

    (void)state;
    for (uint32_t i = 0; i < MU_FLIGHTS_NOTES_MAX + 3; i++) {
        (void)snprintf(note, sizeof(note), "reason %u", i);
        add_note(i, note);
    }
    gather();
    assert_int_equal(flights.note_count, MU_FLIGHTS_NOTES_MAX);
    assert_int_equal(count(text(mu_flights_write_text), "no dump of rank"), MU_FLIGHTS_NOTES_MAX);
}

static void test_gather_takes_garbage_for_a_note(void **state)
{
    const struct mu_stacks_flight flight = {.rank = 3, .dump = mu_span_str("garbage")};

    (void)state;
    assert_int_equal(mu_stacks_answer_add_flight(&writer, &flight), 0);
    gather();
    assert_int_equal(flights.count, 0);
    assert_non_null(strstr(text(mu_flights_write_text), "no dump of rank 3: "));
    /* What is cut in the middle is not read at all. */
    assert_int_equal(mu_flights_add(&flights, mu_span_str("\xff\xff\xff\xff")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gather_says_nothing_of_runs_without_recorders, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_gather_stays_one_page, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gather_names_who_has_no_dump, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gather_keeps_few_reasons, setup, teardown),
        cmocka_unit_test_setup_teardown(test_gather_takes_garbage_for_a_note, setup, teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
