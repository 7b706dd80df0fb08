/* Goal: every form that is documented is taken, everything else is refused in words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "core/addr.h"

struct good {
    const char *text;
    uint16_t default_port;
    enum mu_addr_kind kind;
    const char *host;
    uint16_t port;
    const char *formatted; /* NULL: as `text` */
};

static void test_addr_takes_every_form(void **state)
{
    static const struct good cases[] = {
        {"localhost:29500", 0, MU_ADDR_TCP, "localhost", 29500, NULL},
        {"127.0.0.1:0", 0, MU_ADDR_TCP, "127.0.0.1", 0, NULL},
        {"node-3.cluster_a.example:65535", 1, MU_ADDR_TCP, "node-3.cluster_a.example", 65535, NULL},
        {"host", 29400, MU_ADDR_TCP, "host", 29400, "host:29400"},
        {"host:00080", 0, MU_ADDR_TCP, "host", 80, "host:80"},
        {":29500", 0, MU_ADDR_TCP, "", 29500, NULL},
        {"*:29500", 0, MU_ADDR_TCP, "*", 29500, NULL},
        {"[::]:1", 0, MU_ADDR_TCP, "::", 1, NULL},
        {"[::1]:29500", 0, MU_ADDR_TCP, "::1", 29500, NULL},
        {"[::1]", 7, MU_ADDR_TCP, "::1", 7, "[::1]:7"},
        {"[1:2:3:4:5:6:7:8]:1", 0, MU_ADDR_TCP, "1:2:3:4:5:6:7:8", 1, NULL},
        {"[1::8]:1", 0, MU_ADDR_TCP, "1::8", 1, NULL},
        {"[1::]:1", 0, MU_ADDR_TCP, "1::", 1, NULL},
        {"[2001:DB8::ffff]:1", 0, MU_ADDR_TCP, "2001:DB8::ffff", 1, NULL},
        {"[::ffff:10.0.0.1]:1", 0, MU_ADDR_TCP, "::ffff:10.0.0.1", 1, NULL},
        {"[1:2:3:4:5:6:1.2.3.4]:1", 0, MU_ADDR_TCP, "1:2:3:4:5:6:1.2.3.4", 1, NULL},
        {"[fe80::1%eth0]:5", 0, MU_ADDR_TCP, "fe80::1%eth0", 5, NULL},
        {"unix:/run/muster.sock", 0, MU_ADDR_UNIX, "/run/muster.sock", 0, NULL},
        {"peer:12D3KooWK99VoVxNE7", 0, MU_ADDR_PEER, "12D3KooWK99VoVxNE7", 0, NULL},
        {"peer:", 0, MU_ADDR_PEER, "", 0, NULL},
        {"unix:@muster-rpc-1", 0, MU_ADDR_UNIX, "@muster-rpc-1", 0, NULL},
        {"unix:/a path:with colons", 9, MU_ADDR_UNIX, "/a path:with colons", 0, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct good *c = &cases[i];
        struct mu_errmsg msg = {0};
        struct mu_addr addr;
        char text[300];

        if (mu_addr_parse(c->text, c->default_port, &addr, &msg) != 0) {
            fail_msg("%s was refused: %s", c->text, msg.text);
        }
        assert_int_equal(addr.kind, c->kind);
        assert_string_equal(addr.host, c->host);
        assert_int_equal(addr.port, c->port);
        assert_ptr_equal(mu_addr_format(&addr, text, sizeof(text)), text);
        assert_string_equal(text, c->formatted == NULL ? c->text : c->formatted);
    }
}

static void test_addr_refuses_everything_else_and_names_it(void **state)
{
    static const char *const cases[] = {
        "host",
        "host:",
        "host:x",
        "host:65536",
        "host:-1",
        "host:+1",
        "host: 1",
        "host:1 ",
        "host:123456",
        "host:99999999999999999999",
        "ho st:1",
        "host/:1",
        "user@host:1",
        "-host:1",
        ".host:1",
        "**:1",
        "a*:1",
        "h\xc3\xb6st:1",
        "::1",
        "::1:29500",
        "1:2:3",
        "[::1",
        "[::1]1",
        "[::1]:",
        "[]:1",
        "[host]:1",
        "[127.0.0.1]:1",
        "[1:2:3:4:5:6:7]:1",
        "[1:2:3:4:5:6:7:8:9]:1",
        "[1::2::3]:1",
        "[:::]:1",
        "[:1]:1",
        "[1:]:1",
        "[12345::]:1",
        "[::g]:1",
        "[1:2:3:4:5:6:7:1.2.3.4]:1",
        "[::256.0.0.1]:1",
        "[::1.2.3]:1",
        "[::1.2.3.4.5]:1",
        "[::1.2.3.4:5]:1",
        "[1:2:3:4:5:6:7::8:9]:1",
        "[fe80::1%]:1",
        "[fe80::1%e/0]:1",
        "[::1]]:1",
        "unix:",
        "unix:relative",
        "peer:12D3/x",
        "unix:@",
        "unix:/a\nb",
        "unix:/a\x7f",
        "tcp://host:1",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_errmsg msg = {0};
        struct mu_addr addr;
        char before[sizeof(addr)];

        memset(&addr, 0x5a, sizeof(addr));
        memcpy(before, &addr, sizeof(addr));
        if (mu_addr_parse(cases[i], 0, &addr, &msg) != MUSTER_EURL) {
            fail_msg("%s was taken", cases[i]);
        }
        assert_memory_equal(before, &addr, sizeof(addr));
        assert_non_null(strstr(msg.text, cases[i][0] == 'h' ? "h" : "\""));
    }
}

static void test_addr_bounds_its_lengths(void **state)
{
    struct mu_errmsg msg = {0};
    struct mu_addr addr;
    char text[400];

    (void)state;
    memset(text, 'a', sizeof(text));
    memcpy(text + 255, ":1", 3);
    assert_int_equal(mu_addr_parse(text, 0, &addr, &msg), 0);
    assert_int_equal(strlen(addr.host), 255);
    memset(text, 'a', sizeof(text));
    memcpy(text + 256, ":1", 3);
    assert_int_equal(mu_addr_parse(text, 0, &addr, &msg), MUSTER_EURL);

    memset(text, 'a', sizeof(text));
    memcpy(text, "unix:/", 6);
    text[5 + 107] = '\0';
    assert_int_equal(mu_addr_parse(text, 0, &addr, &msg), 0);
    text[5 + 107] = 'a';
    text[5 + 108] = '\0';
    assert_int_equal(mu_addr_parse(text, 0, &addr, &msg), MUSTER_EURL);
    assert_non_null(strstr(msg.text, "107"));
    assert_int_equal(mu_addr_parse("", 1, &addr, &msg), MUSTER_EURL);
    assert_int_equal(mu_addr_parse("unix", 1, &addr, &msg), MUSTER_EURL);
}

static void test_addr_format_cuts_at_the_capacity(void **state)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = 29500, .host = "localhost"};
    char text[10];

    (void)state;
    assert_string_equal(mu_addr_format(&addr, text, sizeof(text)), "localhost");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addr_takes_every_form),
        cmocka_unit_test(test_addr_refuses_everything_else_and_names_it),
        cmocka_unit_test(test_addr_bounds_its_lengths),
        cmocka_unit_test(test_addr_format_cuts_at_the_capacity),
    };

    return cmocka_run_group_tests_name("addr", tests, NULL, NULL);
}
