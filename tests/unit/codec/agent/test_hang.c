/* What agents say to each other of a hang: there and back, bounds, and what is refused. */
#include "unit.h"

#include <string.h>

#include <muster/error.h>

#include "codec/agent/hang.h"
#include "failheap.h"

static struct mu_hang sample(void)
{
    static char missing[] = "3,5";
    static char text[] = "ranks 3,5 may be missing";
    static char stacks[] = "rank 3 in \"next\"\n";

    return (struct mu_hang){.number = 2,
                            .since_s = 1794736770,
                            .still_ms = 61000,
                            .missing_count = 2,
                            .split = true,
                            .blamed = 3,
                            .action = MU_HANG_RESTART,
                            .missing = missing,
                            .text = text,
                            .stacks = stacks};
}

static void test_hang_survives_the_way_there_and_back(void **state)
{
    struct mu_hang h = sample();
    struct mu_hang back;
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, MU_HANG_BYTES_MAX);
    assert_int_equal(mu_hang_encode(&out, &h), 0);
    assert_int_equal(mu_hang_decode(mu_buf_span(&out), &back), 0);
    assert_int_equal(back.number, 2);
    assert_false(back.over);
    assert_int_equal(back.since_s, 1794736770);
    assert_int_equal(back.still_ms, 61000);
    assert_int_equal(back.missing_count, 2);
    assert_true(back.split);
    assert_int_equal(back.blamed, 3);
    assert_int_equal(back.action, MU_HANG_RESTART);
    assert_string_equal(back.missing, h.missing);
    assert_string_equal(back.text, h.text);
    assert_string_equal(back.stacks, h.stacks);
    mu_hang_fini(&back);
    mu_buf_fini(&out);
}

static void test_hang_fills_in_what_an_older_agent_does_not_say(void **state)
{
    struct mu_hang h;

    (void)state;
    assert_int_equal(mu_hang_decode(MU_SPAN_LIT("{\"hang\": 1, \"new\": [1, {}]}"), &h), 0);
    assert_int_equal(h.number, 1);
    assert_int_equal(h.action, MU_HANG_TELL);
    assert_string_equal(h.missing, "");
    assert_string_equal(h.text, "");
    assert_string_equal(h.stacks, "");
    mu_hang_fini(&h);
}

static void test_hang_cuts_texts_between_characters(void **state)
{
    static char text[MU_HANG_TEXT_MAX + 8];
    static char missing[MU_HANG_MISSING_MAX + 8];
    static char stacks[MU_HANG_STACKS_MAX + 8];
    struct mu_hang h = sample();
    struct mu_hang back;
    struct mu_buf out;

    (void)state;
    memset(text, 'x', MU_HANG_TEXT_MAX - 1);
    memcpy(text + MU_HANG_TEXT_MAX - 1, "\xc3\xa4", 3); /* the second byte is one too many */
    memset(missing, '1', MU_HANG_MISSING_MAX + 1);
    memset(stacks, '\x01', MU_HANG_STACKS_MAX + 1); /* each becomes six bytes */
    h.text = text;
    h.missing = missing;
    h.stacks = stacks;
    mu_buf_init(&out, MU_HANG_BYTES_MAX);
    assert_int_equal(mu_hang_encode(&out, &h), 0);
    assert_int_equal(mu_hang_decode(mu_buf_span(&out), &back), 0);
    assert_int_equal(strlen(back.text), MU_HANG_TEXT_MAX - 1);
    assert_int_equal(strlen(back.missing), MU_HANG_MISSING_MAX);
    assert_int_equal(strlen(back.stacks), MU_HANG_STACKS_MAX);
    mu_hang_fini(&back);
    mu_buf_fini(&out);
}

static void test_hang_refuses_what_is_none(void **state)
{
    static char big[MU_HANG_BYTES_MAX + 2];
    const char *const bad[] = {
        "",
        "[]",
        "1",
        "{",
        "{\"hang\": -1}",
        "{\"hang\": \"1\"}",
        "{\"blamed\": 4294967296}",
        "{\"missing_count\": 4294967296}",
        "{\"still_ms\": -1}",
        "{\"since\": -1}",
        "{\"action\": \"shout\"}",
        "{\"action\": 1}",
        "{\"missing\": 3}",
        "{\"text\": null}",
        "{\"stacks\": []}",
    };
    struct mu_hang h;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(mu_hang_decode(mu_span_str(bad[i]), &h), MUSTER_EPROTO);
    }
    memset(big, ' ', sizeof(big));
    memcpy(big, "{}", 2);
    assert_int_equal(mu_hang_decode(mu_span(big, MU_HANG_BYTES_MAX + 1), &h), MUSTER_EPROTO);
    assert_int_equal(mu_hang_decode(mu_span(big, MU_HANG_BYTES_MAX), &h), 0);
    mu_hang_fini(&h);
}

static void test_hang_names_actions(void **state)
{
    enum mu_hang_action action;

    (void)state;
    for (int i = MU_HANG_TELL; i <= MU_HANG_EXCLUDE; i++) {
        assert_true(
            mu_hang_action_of(mu_span_str(mu_hang_action_name((enum mu_hang_action)i)), &action));
        assert_int_equal(action, i);
    }
    assert_false(mu_hang_action_of(MU_SPAN_LIT("tel"), &action));
}

/* No allocation that fails leaks, or leaves half a text. */
static void test_hang_without_memory(void **state)
{
    struct mu_hang h = sample();
    struct mu_hang back;
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, MU_HANG_BYTES_MAX);
    assert_int_equal(mu_hang_encode(&out, &h), 0);
    for (long nth = 0;; nth++) {
        bool fired;
        int err;

        failheap_arm(nth);
        err = mu_hang_decode(mu_buf_span(&out), &back);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        if (!fired) {
            break;
        }
    }
    mu_hang_fini(&back);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hang_survives_the_way_there_and_back),
        cmocka_unit_test(test_hang_fills_in_what_an_older_agent_does_not_say),
        cmocka_unit_test(test_hang_cuts_texts_between_characters),
        cmocka_unit_test(test_hang_refuses_what_is_none),
        cmocka_unit_test(test_hang_names_actions),
        cmocka_unit_test(test_hang_without_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
