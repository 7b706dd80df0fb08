/* Ranges of addresses, and who is let in. */
#include "proto/lock/lock.h"

#include "unit.h"

static struct mu_cidr range(const char *text)
{
    struct mu_errmsg why;
    struct mu_cidr cidr;

    assert_int_equal(mu_cidr_parse(mu_span_str(text), &cidr, &why), 0);
    return cidr;
}

static bool has(const char *text, const char *address)
{
    struct mu_cidr cidr = range(text);
    uint8_t ip[MU_IP_LEN];

    assert_true(mu_ip_parse(mu_span_str(address), ip));
    return mu_cidr_has(&cidr, ip);
}

static void test_cidr_holds_what_its_prefix_says(void **state)
{
    (void)state;
    assert_true(has("10.0.0.0/8", "10.255.255.255"));
    assert_false(has("10.0.0.0/8", "11.0.0.0"));
    assert_false(has("10.0.0.0/8", "9.255.255.255"));
    assert_true(has("192.168.4.0/22", "192.168.7.255"));
    assert_false(has("192.168.4.0/22", "192.168.8.0"));
    assert_false(has("192.168.4.0/22", "192.168.3.255"));
    assert_true(has("10.1.2.3", "10.1.2.3"));
    assert_false(has("10.1.2.3", "10.1.2.2"));
    assert_true(has("10.1.2.2/31", "10.1.2.3"));
    assert_true(has("0.0.0.0/0", "203.0.113.9"));
    assert_true(has("fd00::/8", "fdff::1"));
    assert_false(has("fd00::/8", "fe80::1"));
    assert_true(has("2001:db8::/33", "2001:db8:7fff::"));
    assert_false(has("2001:db8::/33", "2001:db8:8000::"));
    assert_true(has("::1", "::1"));
    assert_true(has("::/0", "::1"));
}

static void test_cidr_knows_ipv4_inside_ipv6(void **state)
{
    (void)state;
    assert_true(has("10.0.0.0/8", "::ffff:10.1.2.3"));
    assert_true(has("::ffff:10.0.0.0/104", "10.1.2.3"));
    assert_true(has("::/0", "10.1.2.3"));
    /* All of IPv4 is not all of IPv6, and no neighbour of it either. */
    assert_false(has("0.0.0.0/0", "2001:db8::1"));
    assert_false(has("0.0.0.0/0", "::fffe:a01:203"));
    assert_false(has("10.0.0.0/8", "::10.1.2.3"));
}

static void test_cidr_of_a_link_passes_over_the_zone_of_a_peer(void **state)
{
    (void)state;
    assert_true(has("fe80::/10", "fe80::1%eth0"));
}

static void test_cidr_refuses_what_is_none(void **state)
{
    static const char *const bad[] = {
        "",           "/",           "/8",         "10.0.0.0/",    "10.0.0.0/33",  "10.0.0.0/-1",
        "10.0.0/8",   "10.0.0.0/08", "node1",      "10.0.0.0/8 ",  "10.0.0.0/8/8", "::/129",
        "::ffff/4x",  "10.1.2.3/8",  "fd00::1/64", "fe80::%e0/10", "10.0.0.0/1",   "*",
        "10.0.0.0/0",
    };
    struct mu_cidr cidr;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mu_errmsg why = {{0}};

        assert_int_equal(mu_cidr_parse(mu_span_str(bad[i]), &cidr, &why), MUSTER_EINVAL);
        assert_true(why.text[0] != '\0');
    }
}

static void test_lock_near_is_this_host_alone(void **state)
{
    (void)state;
    assert_true(mu_lock_peer_is_near("127.0.0.1:4711"));
    assert_true(mu_lock_peer_is_near("127.8.9.10:1"));
    assert_true(mu_lock_peer_is_near("[::1]:4711"));
    assert_true(mu_lock_peer_is_near("[::ffff:127.0.0.1]:4711"));
    assert_true(mu_lock_peer_is_near("unix:pid=12"));
    assert_false(mu_lock_peer_is_near("128.0.0.1:4711"));
    assert_false(mu_lock_peer_is_near("[fe80::1]:1"));
    assert_false(mu_lock_peer_is_near("10.0.0.1:127"));
    assert_false(mu_lock_peer_is_near("localhost:1")); /* a name says nothing of who calls */
    assert_false(mu_lock_peer_is_near("?"));
    assert_false(mu_lock_peer_is_near(""));
    assert_false(mu_lock_peer_is_near("[::1"));
}

static int may_listen(const struct mu_lock_policy *policy, const char *text)
{
    struct mu_errmsg why = {{0}};
    struct mu_addr addr;
    int err;

    assert_int_equal(mu_addr_parse(text, 0, &addr, &why), 0);
    err = mu_lock_listen(policy, &addr, &why);
    if (err != 0) {
        assert_non_null(strstr(why.text, "--token-file"));
        assert_non_null(strstr(why.text, "--allow"));
        assert_non_null(strstr(why.text, "--insecure"));
        assert_non_null(strstr(why.text, "muster keygen token"));
        /* It follows "cannot listen on ADDRESS: ", with up to 60 bytes of the address, uncut. */
        assert_true(strlen(why.text) + sizeof("cannot listen on : ") + 60 <= MU_ERRMSG_CAP);
    }
    return err;
}

static void test_lock_listens_beyond_loopback_only_if_told_who_may_come(void **state)
{
    struct mu_cidr cidr = range("10.0.0.0/8");
    struct mu_lock_policy none = {0};
    struct mu_lock_policy some[] = {
        {.sealed = true}, {.insecure = true}, {.allow = &cidr, .allow_count = 1}};

    (void)state;
    assert_int_equal(may_listen(&none, "127.0.0.1:0"), 0);
    assert_int_equal(may_listen(&none, "[::1]:0"), 0);
    assert_int_equal(may_listen(&none, "localhost:0"), 0);
    assert_int_equal(may_listen(&none, "unix:/tmp/x"), 0);
    assert_int_equal(may_listen(&none, "0.0.0.0:0"), MUSTER_ELOCKED);
    assert_int_equal(may_listen(&none, "[::]:0"), MUSTER_ELOCKED);
    assert_int_equal(may_listen(&none, "*:0"), MUSTER_ELOCKED);
    assert_int_equal(may_listen(&none, "node1:0"), MUSTER_ELOCKED);
    assert_int_equal(may_listen(&none, "10.0.0.1:0"), MUSTER_ELOCKED);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(may_listen(&some[i], "0.0.0.0:0"), 0);
    }
}

enum { TLS = 0x16, TORCH = 14, NATIVE = 'M', HTTP = 'G' };

static void test_lock_judges_by_address_and_first_byte(void **state)
{
    static const char near[] = "127.0.0.1:1";
    static const char far[] = "192.0.2.7:1";
    static const char let[] = "10.1.2.3:1";
    struct mu_cidr cidr = range("10.0.0.0/8");
    struct mu_lock_policy sealed = {.sealed = true, .allow = &cidr, .allow_count = 1};
    struct mu_lock_policy bare = {.allow = &cidr, .allow_count = 1};
    struct mu_lock_policy wide = {.sealed = true, .insecure = true};
    static const uint8_t plain[] = {TORCH, NATIVE, HTTP, 0};

    (void)state;
    for (size_t i = 0; i < sizeof(plain); i++) {
        assert_int_equal(mu_lock_judge(&sealed, near, plain[i]), MU_LOCK_OPEN);
        assert_int_equal(mu_lock_judge(&wide, far, plain[i]), MU_LOCK_OPEN);
        assert_int_equal(mu_lock_judge(&sealed, let, plain[i]), MU_LOCK_PLAIN);
        assert_int_equal(mu_lock_judge(&sealed, far, plain[i]),
                         plain[i] == NATIVE ? MU_LOCK_PLAIN : MU_LOCK_SHUT);
        assert_int_equal(mu_lock_judge(&sealed, "?", plain[i]),
                         plain[i] == NATIVE ? MU_LOCK_PLAIN : MU_LOCK_SHUT);
    }
    assert_int_equal(mu_lock_judge(&sealed, near, TLS), MU_LOCK_SEALED);
    assert_int_equal(mu_lock_judge(&sealed, far, TLS), MU_LOCK_SEALED);
    assert_int_equal(mu_lock_judge(&wide, far, TLS), MU_LOCK_SEALED);
    /* Nobody here can speak it. */
    assert_int_equal(mu_lock_judge(&bare, far, TLS), MU_LOCK_SHUT);
    assert_int_equal(mu_lock_judge(&bare, near, TLS), MU_LOCK_OPEN);
}

static enum mu_lock_plain dials(const struct mu_lock_policy *policy, const char *text)
{
    struct mu_errmsg why;
    struct mu_addr addr;

    assert_int_equal(mu_addr_parse(text, 0, &addr, &why), 0);
    return mu_lock_dial_plain(policy, &addr);
}

static void test_lock_dials_plain_only_where_it_may(void **state)
{
    struct mu_cidr cidr = range("10.0.0.0/8");
    struct mu_lock_policy none = {0};
    struct mu_lock_policy wide = {.sealed = true, .insecure = true};
    struct mu_lock_policy sealed = {.sealed = true};
    struct mu_lock_policy some = {.sealed = true, .allow = &cidr, .allow_count = 1};

    (void)state;
    assert_int_equal(dials(&none, "192.0.2.7:1"), MU_LOCK_PLAIN_YES);
    assert_int_equal(dials(&wide, "192.0.2.7:1"), MU_LOCK_PLAIN_YES);
    assert_int_equal(dials(&sealed, "127.0.0.1:1"), MU_LOCK_PLAIN_YES);
    assert_int_equal(dials(&sealed, "unix:/x"), MU_LOCK_PLAIN_YES);
    assert_int_equal(dials(&sealed, "192.0.2.7:1"), MU_LOCK_PLAIN_NO);
    assert_int_equal(dials(&sealed, "node1:1"), MU_LOCK_PLAIN_NO);
    assert_int_equal(dials(&some, "10.1.2.3:1"), MU_LOCK_PLAIN_YES);
    assert_int_equal(dials(&some, "192.0.2.7:1"), MU_LOCK_PLAIN_NO);
    assert_int_equal(dials(&some, "node1:1"), MU_LOCK_PLAIN_IF_ALLOWED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cidr_holds_what_its_prefix_says),
        cmocka_unit_test(test_cidr_knows_ipv4_inside_ipv6),
        cmocka_unit_test(test_cidr_of_a_link_passes_over_the_zone_of_a_peer),
        cmocka_unit_test(test_cidr_refuses_what_is_none),
        cmocka_unit_test(test_lock_near_is_this_host_alone),
        cmocka_unit_test(test_lock_listens_beyond_loopback_only_if_told_who_may_come),
        cmocka_unit_test(test_lock_judges_by_address_and_first_byte),
        cmocka_unit_test(test_lock_dials_plain_only_where_it_may),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
