/* Calls to an etcd cluster: what its refusals mean, and what calls of one client share. The stories
 * tests/trace/etcd-call-*.txt have what one call does by itself. */
#include "unit.h"

#include <muster/error.h>

#include "proto/etcd/lease.h"
#include "proto/etcd/route.h"

static struct mu_etcd_route route;
static struct mu_etcd_asker first;
static struct mu_etcd_asker second;
static struct mu_etcd_reply reply;
static const struct mu_etcd_terms named = {.repeat = true, .named = true};

static mu_mono_t at(uint64_t ms)
{
    return (mu_mono_t){ms * MU_NS_PER_MS};
}

static void start_route(const char *user)
{
    struct mu_etcd_route_config config = {
        .endpoint_count = 3,
        .first_ms = 30000,
        .patience_ms = 10000,
        .try_ms = 8000,
        .quiet_ms = 20000,
        .reply_bytes_max = 1000,
        .user = user,
    };

    mu_etcd_route_init(&route, &config, 1);
    route.current = 0;
    first = second = (struct mu_etcd_asker){0};
}

static void end_exchange(struct mu_etcd_asker *a, int status, int code, const char *text,
                         uint64_t ms)
{
    mu_etcd_asker_done(a,
                       &(struct mu_etcd_exchange){.status = status,
                                                  .sent = status == 0,
                                                  .code = code,
                                                  .error = "no route",
                                                  .where = "e",
                                                  .index = "",
                                                  .text = mu_span_str(text),
                                                  .reply = &reply},
                       at(ms));
}

static void assert_asks(struct mu_etcd_asker *a, uint32_t endpoint)
{
    assert_int_equal(mu_etcd_asker_next(a), MU_ETCD_ASKER_SEND);
    assert_int_equal(a->endpoint, endpoint);
    assert_int_equal(mu_etcd_asker_next(a), 0);
}

/* --- what refusals mean ----------------------------------------------------------------------- */

static void test_refusals_are_judged_by_code_and_words(void **state)
{
    static const struct {
        int64_t code;
        const char *message;
        enum mu_etcd_verdict verdict;
        int status;
    } cases[] = {
        {MU_ETCD_NOT_FOUND, "requested lease not found", MU_ETCD_DONE, MUSTER_ENOENT},
        {MU_ETCD_DENIED, "permission denied", MU_ETCD_DONE, MUSTER_EREFUSED},
        {MU_ETCD_UNAUTHORIZED, "invalid auth token", MU_ETCD_REAUTH, MUSTER_EREFUSED},
        {MU_ETCD_INVALID, "revision of auth store is old", MU_ETCD_REAUTH, MUSTER_EINVAL},
        {MU_ETCD_INVALID, "authentication failed", MU_ETCD_DONE, MUSTER_EREFUSED},
        {MU_ETCD_INVALID, "user name is empty", MU_ETCD_DONE, MUSTER_EREFUSED},
        {MU_ETCD_INVALID, "request is too large", MU_ETCD_DONE, MUSTER_ELIMIT},
        {MU_ETCD_INVALID, "too many operations in txn request", MU_ETCD_DONE, MUSTER_ELIMIT},
        {MU_ETCD_INVALID, "key is not provided", MU_ETCD_DONE, MUSTER_EINVAL},
        {MU_ETCD_EXHAUSTED, "too many requests", MU_ETCD_NEXT, MUSTER_ECONN},
        {MU_ETCD_EXHAUSTED, "mvcc: database space exceeded", MU_ETCD_DONE, MUSTER_EFULL},
        {MU_ETCD_EXHAUSTED, "message larger than max", MU_ETCD_DONE, MUSTER_ELIMIT},
        {MU_ETCD_PRECONDITION, "lease already exists", MU_ETCD_DONE, MUSTER_EREFUSED},
        {MU_ETCD_OUT_OF_RANGE, "has been compacted", MU_ETCD_DONE, MUSTER_EOVERFLOW},
        {MU_ETCD_UNIMPLEMENTED, "unknown service", MU_ETCD_DONE, MUSTER_EVERSION},
        {MU_ETCD_UNAVAILABLE, "no leader", MU_ETCD_NEXT, MUSTER_ECONN},
        {MU_ETCD_UNAVAILABLE, "not capable", MU_ETCD_NEXT, MUSTER_ECONN},
        {MU_ETCD_UNAVAILABLE, "rpc not supported for learner", MU_ETCD_NEXT, MUSTER_ECONN},
        {MU_ETCD_UNAVAILABLE, "connection refused", MU_ETCD_NEXT, MUSTER_ECONN},
        {MU_ETCD_UNAVAILABLE, "unhealthy cluster", MU_ETCD_NEXT, MUSTER_ECONN},
        {MU_ETCD_UNAVAILABLE, "request timed out", MU_ETCD_UNKNOWN, MUSTER_ECONN},
        {0, "", MU_ETCD_UNKNOWN, MUSTER_ECONN},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_etcd_reply r = {.code = cases[i].code, .message = mu_span_str(cases[i].message)};
        struct mu_errmsg msg;
        int status = 0;

        assert_int_equal(mu_etcd_judge_refusal(&r, &status, &msg), cases[i].verdict);
        assert_int_equal(status, cases[i].status);
        assert_non_null(strstr(msg.text, cases[i].message));
    }
}

static void test_the_words_of_a_limit_say_what_to_do(void **state)
{
    struct mu_etcd_reply r = {.code = MU_ETCD_INVALID, .message = MU_SPAN_LIT("is too large\n")};
    struct mu_errmsg msg;
    int status;

    (void)state;
    assert_int_equal(mu_etcd_judge_refusal(&r, &status, &msg), MU_ETCD_DONE);
    assert_string_equal(msg.text, "it is too large for this etcd, which takes 1.5 MiB in a request "
                                  "unless it was started with a larger --max-request-bytes; "
                                  "etcd says: is too large");
}

static void test_answers_of_strangers_are_told_from_etcds(void **state)
{
    static const struct {
        int code;
        const char *text;
        enum mu_etcd_verdict v3;
        enum mu_etcd_verdict v2;
    } cases[] = {
        {200, "{}", MU_ETCD_DONE, MU_ETCD_DONE},
        {404, "404 page not found", MU_ETCD_HOPELESS, MU_ETCD_HOPELESS},
        {401, "who?", MU_ETCD_DONE, MU_ETCD_DONE},
        {403, "no", MU_ETCD_DONE, MU_ETCD_DONE},
        {200, "<html>", MU_ETCD_HOPELESS, MU_ETCD_HOPELESS},
        {502, "<html>", MU_ETCD_UNKNOWN, MU_ETCD_UNKNOWN},
        {400, "Client sent an HTTP request to an HTTPS server.", MU_ETCD_HOPELESS,
         MU_ETCD_HOPELESS},
        {404, "", MU_ETCD_HOPELESS, MU_ETCD_DONE},
        {503, "{\"errorCode\":301}", MU_ETCD_UNKNOWN, MU_ETCD_NEXT},
        {503, "{\"errorCode\":300}", MU_ETCD_UNKNOWN, MU_ETCD_UNKNOWN},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_etcd_exchange x = {.code = cases[i].code,
                                     .text = mu_span_str(cases[i].text),
                                     .index = "12",
                                     .reply = &reply};
        struct mu_etcd_answer a = {0};

        assert_int_equal(mu_etcd_judge_v3(&x, false, &a), cases[i].v3);
        assert_int_equal(mu_etcd_judge_v2(&x, true, &a), cases[i].v2);
    }
}

/* --- what calls share ------------------------------------------------------------------------- */

static void test_the_endpoint_that_answered_last_is_asked_first(void **state)
{
    (void)state;
    start_route(NULL);
    mu_etcd_asker_start(&first, &route, &named, at(0));
    assert_asks(&first, 0);
    mu_etcd_asker_start(&second, &route, &named, at(0));
    assert_asks(&second, 0);
    end_exchange(&first, MUSTER_ECONN, 0, "", 10);
    mu_etcd_asker_tick(&first, at(10));
    assert_asks(&first, 1);
    end_exchange(&first, 0, 200, "{}", 20);
    assert_int_equal(mu_etcd_asker_next(&first), MU_ETCD_ASKER_END);
    end_exchange(&second, MUSTER_ECONN, 0, "", 30); /* 0 is left already: 1 is not left for it */
    mu_etcd_asker_tick(&second, at(30));
    assert_asks(&second, 1);
}

/* One that has begun later has its own time, and an answer to one is an answer for all. */
static void test_patience_is_counted_from_the_last_answer_to_anybody(void **state)
{
    (void)state;
    start_route(NULL);
    assert_false(mu_etcd_route_silent(&route, at(0), at(29999)));
    assert_true(mu_etcd_route_silent(&route, at(0), at(30000)));
    assert_false(mu_etcd_route_silent(&route, at(1), at(30000)));
    mu_etcd_route_answered(&route, 2, at(5000));
    assert_false(mu_etcd_route_silent(&route, at(0), at(14999)));
    assert_true(mu_etcd_route_silent(&route, at(0), at(15000)));
    assert_false(mu_etcd_route_silent(&route, at(6000), at(15000)));
}

static void test_pauses_come_after_whole_rounds_and_have_an_end(void **state)
{
    (void)state;
    start_route(NULL);
    for (uint32_t tries = 1; tries < 100; tries++) {
        uint64_t longest = UINT64_C(20) << (tries / 3 - 1 < 5 ? tries / 3 - 1 : 5);
        uint64_t ns = mu_etcd_route_rest_ns(&route, tries);

        longest = (longest < 500 ? longest : 500) * MU_NS_PER_MS;
        if (tries % 3 != 0) {
            assert_int_equal(ns, 0);
        } else {
            assert_in_range(ns, longest / 2, longest);
        }
    }
}

static void test_a_token_is_asked_for_once_and_wakes_all(void **state)
{
    struct mu_errmsg msg = {""};

    (void)state;
    start_route("kim");
    mu_etcd_asker_start(&first, &route, &named, at(0));
    assert_int_equal(mu_etcd_asker_next(&first), MU_ETCD_ASKER_AUTHENTICATE);
    mu_etcd_asker_start(&second, &route, &named, at(0));
    assert_int_equal(mu_etcd_asker_next(&second), 0);
    assert_int_equal(mu_etcd_route_authed(&route, 0, &msg), 0);
    mu_etcd_asker_authed(&first, 0, "", at(10));
    mu_etcd_asker_authed(&second, 0, "", at(10));
    mu_etcd_asker_tick(&first, at(10));
    assert_asks(&first, 0);
    mu_etcd_asker_tick(&second, at(10));
    assert_asks(&second, 0);
}

/* Both went out with the first token. The second refusal is not of the token that there is now. */
static void test_a_token_is_dropped_once(void **state)
{
    static const char refusal[] = "{\"error\":\"invalid auth token\",\"code\":16}";
    struct mu_errmsg msg = {""};

    test_a_token_is_asked_for_once_and_wakes_all(state);
    end_exchange(&first, 0, 401, refusal, 20);
    mu_etcd_asker_tick(&first, at(20));
    assert_int_equal(mu_etcd_asker_next(&first), MU_ETCD_ASKER_AUTHENTICATE);
    assert_int_equal(mu_etcd_route_authed(&route, 0, &msg), 0);
    end_exchange(&second, 0, 401, refusal, 30);
    assert_int_equal(route.token, MU_ETCD_TOKEN_HELD);
    mu_etcd_asker_tick(&second, at(30));
    assert_asks(&second, 0);
}

/* Else a request that takes etcd longer than one try is begun again for ever. Meets SLOW_MAX of
 * proto/etcd/route.c. */
static void test_tries_that_are_too_short_grow(void **state)
{
    static const uint32_t expected[] = {8000, 16000, 32000, 64000, 128000, 128000};
    static const struct mu_etcd_terms patient = {.repeat = true};
    mu_mono_t now = at(0);

    (void)state;
    start_route(NULL);
    route.config.first_ms = route.config.patience_ms = INT32_MAX;
    mu_etcd_asker_start(&first, &route, &patient, now);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_int_equal(mu_etcd_asker_next(&first), MU_ETCD_ASKER_SEND);
        assert_int_equal(first.try_ms, expected[i]);
        now = mu_mono_add_ms(now, first.try_ms);
        mu_etcd_asker_done(
            &first,
            &(struct mu_etcd_exchange){
                .status = MUSTER_ETIMEDOUT, .sent = true, .error = "too late", .where = "e"},
            now);
        now = mu_mono_add_ms(now, 1000);
        mu_etcd_asker_tick(&first, now);
    }
    mu_etcd_asker_stop(&first, MUSTER_ECANCELED, now);
}

static void test_what_starts_at_the_end_is_closed(void **state)
{
    (void)state;
    start_route(NULL);
    route.closing = true;
    mu_etcd_asker_start(&first, &route, &named, at(5));
    assert_int_equal(mu_etcd_asker_next(&first), 0); /* not in the same turn */
    mu_etcd_asker_tick(&first, at(5));
    assert_int_equal(mu_etcd_asker_next(&first), MU_ETCD_ASKER_END);
    assert_int_equal(first.answer.status, MUSTER_ECLOSED);
}

/* --- a lease's time --------------------------------------------------------------------------- */

static void test_a_lease_for_ever_has_no_end_of_ours(void **state)
{
    struct mu_etcd_holder h = {0};
    struct mu_etcd_reply r = {.ttl_s = INT64_MAX};

    (void)state;
    mu_etcd_holder_start(&h, 77, INT64_MAX, at(0));
    assert_int_equal(mu_etcd_holder_next(&h), MU_ETCD_HOLDER_SEND);
    assert_string_equal(h.body, "{\"TTL\":\"9000000000\",\"ID\":\"77\"}");
    mu_etcd_holder_done(&h, &(struct mu_etcd_answer){.reply = &r}, at(0), at(1));
    assert_int_equal(mu_etcd_holder_next(&h), MU_ETCD_HOLDER_GRANTED);
    assert_int_equal(h.wake.ns, UINT64_C(3000000000) * MU_NS_PER_S);
    mu_etcd_holder_tick(&h, h.wake);
    assert_int_equal(mu_etcd_holder_next(&h), MU_ETCD_HOLDER_SEND);
    assert_int_equal(h.timeout_ms, UINT32_MAX);
}

static int set_up(void **state)
{
    (void)state;
    mu_etcd_reply_init(&reply);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mu_etcd_reply_fini(&reply);
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals_are_judged_by_code_and_words),
        cmocka_unit_test(test_the_words_of_a_limit_say_what_to_do),
        cmocka_unit_test(test_answers_of_strangers_are_told_from_etcds),
        cmocka_unit_test(test_the_endpoint_that_answered_last_is_asked_first),
        cmocka_unit_test(test_patience_is_counted_from_the_last_answer_to_anybody),
        cmocka_unit_test(test_pauses_come_after_whole_rounds_and_have_an_end),
        cmocka_unit_test(test_a_token_is_asked_for_once_and_wakes_all),
        cmocka_unit_test(test_a_token_is_dropped_once),
        cmocka_unit_test(test_tries_that_are_too_short_grow),
        cmocka_unit_test(test_what_starts_at_the_end_is_closed),
        cmocka_unit_test(test_a_lease_for_ever_has_no_end_of_ours),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
