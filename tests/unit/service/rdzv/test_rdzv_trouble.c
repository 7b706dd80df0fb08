/* What a handler says of a rendezvous that cannot be reached: each reason once; when to give up. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>

#include "service/rdzv/rdzv.h"

static uint64_t now_ns;
static char said[4096];
static size_t records;

static struct mu_now fake_now(struct mu_env *env)
{
    (void)env;
    return (struct mu_now){.mono = {now_ns}};
}

static void fake_self(struct mu_env *env, struct mu_self *ret)
{
    (void)env;
    *ret = (struct mu_self){.host = "here", .pid = 1};
}

static void fake_entropy(struct mu_env *env, void *buf, size_t len)
{
    (void)env;
    memset(buf, 1, len);
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    (void)context;
    records++;
    assert_string_equal(record->name, "muster.trouble");
    (void)snprintf(said, sizeof(said), "%s", record->message);
}

static void begin(struct mu_rdzv_handler *h, const char *config)
{
    static const struct mu_env_ops ops = {
        .now = fake_now, .self = fake_self, .entropy = fake_entropy};
    static struct mu_env env = {.ops = &ops};
    const struct mu_rdzv_params params = {.backend = "muster", .run_id = "run", .config = config};
    const struct mu_rdzv_events events = {.record = on_record};
    struct mu_errmsg msg = {{0}};

    *h = (struct mu_rdzv_handler){0};
    records = 0;
    assert_int_equal(mu_rdzv_handler_init(h, NULL, &env, &params, &events, &msg), 0);
}

static void test_rdzv_each_trouble_is_said_once(void **state)
{
    struct mu_rdzv_handler h;
    struct mu_errmsg text;

    (void)state;
    begin(&h, "");
    mu_rdzv_handler_unreached(&h, "node0:29400", "node0:29400", &text);
    assert_non_null(strstr(text.text, "node0:29400 does not answer"));
    mu_rdzv_handler_trouble(&h, -ECONNREFUSED, "node0:29400", NULL);
    mu_rdzv_handler_trouble(&h, -EHOSTUNREACH, "node0:29400", NULL);
    mu_rdzv_handler_trouble(&h, -ECONNREFUSED, "node0:29400", NULL);
    assert_int_equal(records, 2);
    mu_rdzv_handler_unreached(&h, "node0:29400", "node0:29400", &text);
    assert_string_equal(text.text, "cannot connect to node0:29400: Connection refused; `muster "
                                   "doctor node0:29400` looks into it");
    /* Words that name the place do not get it twice. */
    mu_rdzv_handler_trouble(&h, MUSTER_ETLS, "node0:29400", "cannot connect to node0:29400: no");
    assert_string_equal(said, "cannot connect to node0:29400: no; trying again");
    for (int i = 0; i < MU_RDZV_TROUBLES_MAX; i++) {
        mu_rdzv_handler_trouble(&h, -1000 - i, "node0:29400", NULL);
    }
    assert_int_equal(records, MU_RDZV_TROUBLES_MAX);
}

static void test_rdzv_unknown_name_is_given_up_unless_told(void **state)
{
    struct mu_rdzv_handler h;

    (void)state;
    begin(&h, "keep_trying=true");
    mu_rdzv_handler_trouble(&h, MUSTER_ENAME, "nosuch:29400", NULL);
    assert_string_equal(said, "cannot connect to nosuch:29400: the host name is unknown; trying "
                              "again");
    now_ns += (uint64_t)MU_RDZV_NAME_MS * MU_NS_PER_MS;
    assert_false(mu_rdzv_handler_gives_up(&h, MUSTER_ENAME));

    begin(&h, "");
    mu_rdzv_handler_trouble(&h, MUSTER_ENAME, "nosuch:29400", NULL);
    assert_non_null(strstr(said, "after 60 s, unless --keep-trying is given"));
    now_ns += (uint64_t)MU_RDZV_NAME_MS * MU_NS_PER_MS - 1;
    mu_rdzv_handler_trouble(&h, MUSTER_ENAME, "nosuch:29400", NULL);
    assert_false(mu_rdzv_handler_gives_up(&h, MUSTER_ENAME));
    now_ns++;
    assert_true(mu_rdzv_handler_gives_up(&h, MUSTER_ENAME));
    /* It was known for a moment: the time begins anew. */
    mu_rdzv_handler_trouble(&h, -ECONNREFUSED, "nosuch:29400", NULL);
    mu_rdzv_handler_trouble(&h, MUSTER_ENAME, "nosuch:29400", NULL);
    assert_false(mu_rdzv_handler_gives_up(&h, MUSTER_ENAME));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_each_trouble_is_said_once),
        cmocka_unit_test(test_rdzv_unknown_name_is_given_up_unless_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
