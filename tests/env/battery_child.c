/* Children: the order of what is told, signals, output that is not used, and the end. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "battery_peer.h"
#include "core/err.h"

/* A child that watches what it is told. */
struct pup {
    struct mu_child child;
    char story[64]; /* a letter for each callback; deliveries in a row are one */
    size_t story_len;
    char text[2][4096];
    size_t text_len[2];
    size_t bytes;
    size_t use_max; /* uses no more of each delivery, and asks for the rest; 0: all */
    bool rests;     /* uses nothing */
    bool exited;
    bool gone;
    int start_status;
    int status;
    size_t again; /* how often it is started anew when it is gone */
    void (*on_started)(struct pup *p);
    void (*on_exited)(struct pup *p);
};

static void note(struct pup *p, char letter)
{
    EXPECT(battery_in_verb == 0);
    EXPECT(!p->gone);
    if (p->story_len == 0 || p->story[p->story_len - 1] != letter) {
        EXPECT(p->story_len < sizeof(p->story) - 1);
        p->story[p->story_len++] = letter;
    }
}

static void on_started(struct mu_child *child, int status)
{
    struct pup *p = MU_CONTAINER_OF(child, struct pup, child);

    note(p, status == 0 ? 's' : 'S');
    EXPECT((child->pid > 0) == (status == 0));
    EXPECT((child->error.text[0] == '\0') == (status == 0));
    p->start_status = status;
    if (p->on_started != NULL) {
        p->on_started(p);
    }
}

static size_t on_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    struct pup *p = MU_CONTAINER_OF(child, struct pup, child);
    int i = stream == MU_STDERR;
    size_t used = p->rests ? 0 : in.len;
    size_t room = sizeof(p->text[i]) - 1 - p->text_len[i];

    EXPECT(stream == MU_STDOUT || stream == MU_STDERR);
    note(p, in.len == 0 ? "OE"[i] : "oe"[i]);
    if (p->use_max != 0 && used > p->use_max) {
        used = p->use_max;
        VERB(mu_env_child_resume(battery_eut->env, child, stream));
    }
    room = room < used ? room : used;
    if (room > 0) {
        memcpy(p->text[i] + p->text_len[i], in.data, room);
    }
    p->text_len[i] += room;
    p->bytes += used;
    return used;
}

static void on_exited(struct mu_child *child, int status)
{
    struct pup *p = MU_CONTAINER_OF(child, struct pup, child);

    note(p, 'x');
    EXPECT(!p->exited);
    p->exited = true;
    p->status = status;
    if (p->on_exited != NULL) {
        p->on_exited(p);
    }
}

static int start_list(struct pup *p, const char *const *argv);

static void on_gone(struct mu_child *child)
{
    struct pup *p = MU_CONTAINER_OF(child, struct pup, child);

    note(p, 'g');
    if (p->again > 0) {
        const char *argv[] = {battery_eut->zoo, "exit=4", NULL};

        p->again--;
        p->exited = false;
        EXPECT(start_list(p, argv) == 0);
        return;
    }
    p->gone = true;
}

static const struct mu_child_events events = {
    .started = on_started,
    .output = on_output,
    .exited = on_exited,
    .gone = on_gone,
};

static void pup_init(struct pup *p)
{
    memset(p, 0, sizeof(*p));
    p->child.on = &events;
}

static int start_list(struct pup *p, const char *const *argv)
{
    static const char *const envp[] = {"PATH=/usr/bin:/bin", NULL};
    struct mu_spawn what = {.argv = argv,
                            .envp = envp,
                            .streams = {[1] = {MU_SPAWN_PIPE, NULL}, [2] = {MU_SPAWN_PIPE, NULL}}};
    int rc;

    VERB(rc = mu_env_spawn(battery_eut->env, &p->child, &what));
    return rc;
}

#define START(p, ...)                                                                              \
    assert_int_equal(start_list((p), (const char *[]){battery_eut->zoo, __VA_ARGS__, NULL}), 0)

static int send_signal(struct pup *p, int signal, enum mu_child_scope scope)
{
    int rc;

    VERB(rc = mu_env_child_signal(battery_eut->env, &p->child, signal, scope));
    return rc;
}

static bool has_said(void *context)
{
    struct pup *p = context;

    return strstr(p->text[0], "ready") != NULL;
}

static void test_child_is_started_heard_ended_and_gone(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    START(&p, "out=hello", "part=you", "exit=3");
    assert_int_equal(p.story_len, 0);

    battery_run_until_set(&p.gone);

    assert_string_equal(p.text[0], "hello\nyou");
    assert_int_equal(p.status, 3);
    assert_int_equal(p.story[0], 's');
    assert_true(strchr(p.story, 'o') < strchr(p.story, 'x'));
    assert_non_null(strchr(p.story, 'O'));
    assert_non_null(strchr(p.story, 'E'));
    assert_int_equal(p.story[p.story_len - 1], 'g');
}

static void test_child_that_cannot_start_is_gone_without_an_end(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    assert_int_equal(start_list(&p, (const char *[]){"no-such-program", NULL}), 0);

    battery_run_until_set(&p.gone);

    assert_string_equal(p.story, "Sg");
    assert_int_equal(p.start_status, -ENOENT);
    assert_string_equal(p.child.error.text, "exec 'no-such-program': No such file or directory");
}

static void test_child_that_makes_no_sense_is_refused(void **state)
{
    struct pup p;
    struct mu_spawn what = {0};
    const char *const argv[] = {"zoo", NULL};
    const char *const envp[] = {NULL};
    int rc;

    (void)state;
    pup_init(&p);
    VERB(rc = mu_env_spawn(battery_eut->env, &p.child, &what));
    assert_int_equal(rc, MUSTER_EINVAL);
    what = (struct mu_spawn){.argv = argv, .envp = envp, .streams = {{MU_SPAWN_PIPE, NULL}}};
    VERB(rc = mu_env_spawn(battery_eut->env, &p.child, &what));
    assert_int_equal(rc, MUSTER_EINVAL);
    what.streams[0] = (struct mu_spawn_stream){MU_SPAWN_FILE, NULL};
    VERB(rc = mu_env_spawn(battery_eut->env, &p.child, &what));
    assert_int_equal(rc, MUSTER_EINVAL);
    battery_run_for_ms(2);
    assert_int_equal(p.story_len, 0);
}

static void test_child_without_pipes_says_nothing(void **state)
{
    struct pup p;
    const char *const argv[] = {battery_eut->zoo, "out=unheard", "exit=1", NULL};
    const char *const envp[] = {NULL};
    struct mu_spawn what = {.argv = argv, .envp = envp};
    int rc;

    (void)state;
    pup_init(&p);
    VERB(rc = mu_env_spawn(battery_eut->env, &p.child, &what));
    assert_int_equal(rc, 0);
    battery_run_until_set(&p.gone);
    assert_string_equal(p.story, "sxg");
}

static void test_child_that_ignores_a_signal_is_killed(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    START(&p, "ignore=15", "out=ready", "sleep=0");
    battery_run_until(has_said, &p);

    assert_int_equal(send_signal(&p, SIGTERM, MU_CHILD_GROUP), 0);
    battery_run_for_ms(10);
    assert_false(p.exited);
    assert_int_equal(send_signal(&p, SIGKILL, MU_CHILD_GROUP), 0);
    battery_run_until_set(&p.gone);

    assert_int_equal(p.status, -SIGKILL);
}

static void test_child_that_is_stopped_obeys(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    START(&p, "out=ready", "raise=19", "sleep=0");
    battery_run_until(has_said, &p);
    assert_int_equal(send_signal(&p, SIGTERM, MU_CHILD_GROUP), 0);
    battery_run_until_set(&p.gone);
    assert_int_equal(p.status, -SIGTERM);
}

static void kill_at_once(struct pup *p)
{
    EXPECT(send_signal(p, SIGKILL, MU_CHILD_FAMILY) == 0);
}

static void test_child_can_be_killed_when_it_starts(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    p.on_started = kill_at_once;
    START(&p, "sleep=0");
    battery_run_until_set(&p.gone);
    assert_int_equal(p.status, -SIGKILL);
}

static void test_child_can_be_killed_before_it_starts(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    START(&p, "sleep=0");
    assert_int_equal(send_signal(&p, SIGKILL, MU_CHILD_FAMILY), 0);
    battery_run_until_set(&p.gone);
    assert_int_equal(p.status, -SIGKILL);
}

static void test_gone_waits_for_descendants(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    START(&p, "child=0", "daemon=0", "exit=0");
    battery_run_until_set(&p.exited);
    assert_int_equal(send_signal(&p, SIGTERM, MU_CHILD_FAMILY), 0); /* they ignore it */
    battery_run_for_ms(10);
    assert_false(p.gone);
    assert_int_equal(send_signal(&p, SIGKILL, MU_CHILD_SELF), -ESRCH);

    assert_int_equal(send_signal(&p, SIGKILL, MU_CHILD_FAMILY), 0);
    battery_run_until_set(&p.gone);

    assert_int_equal(p.status, 0);
}

static void test_gone_comes_when_descendants_end_by_themselves(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    START(&p, "child=20", "daemon=40", "exit=0");
    battery_run_until_set(&p.gone);
    assert_true(p.exited);
}

static void test_output_that_is_not_used_stops_the_writer(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    p.rests = true;
    START(&p, "flood=600", "exit=0");
    battery_run_for_ms(20);
    assert_false(p.exited);
    assert_int_equal(p.bytes, 0);

    p.rests = false;
    p.use_max = 1500;
    VERB(mu_env_child_resume(battery_eut->env, &p.child, MU_STDOUT));
    battery_run_until_set(&p.gone);

    assert_int_equal(p.bytes, 600 * 1024);
}

static void test_gone_waits_for_output_that_rests(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    p.rests = true;
    START(&p, "out=last words", "exit=0");
    battery_run_until_set(&p.exited);
    battery_run_for_ms(10);
    assert_false(p.gone);

    p.rests = false;
    VERB(mu_env_child_resume(battery_eut->env, &p.child, MU_STDOUT));
    battery_run_until_set(&p.gone);

    assert_string_equal(p.text[0], "last words\n");
}

static void test_child_memory_can_be_used_again_when_gone(void **state)
{
    struct pup p;

    (void)state;
    pup_init(&p);
    p.again = 3;
    START(&p, "exit=1");
    battery_run_until_set(&p.gone);
    assert_int_equal(p.status, 4);
}

static bool all_are_gone(void *context)
{
    const struct pup *pups = context;

    for (int i = 0; i < 8; i++) {
        if (!pups[i].gone) {
            return false;
        }
    }
    return true;
}

static void test_children_do_not_disturb_each_other(void **state)
{
    struct pup pups[8];

    (void)state;
    for (int i = 0; i < 8; i++) {
        pup_init(&pups[i]);
        pups[i].on_exited = i % 2 == 0 ? NULL : kill_at_once;
        START(&pups[i], i % 2 == 0 ? "exit=0" : "daemon=0", "exit=1");
    }
    battery_run_until(all_are_gone, pups);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(pups[i].status, i % 2);
    }
}

const struct CMUnitTest battery_child_tests[] = {
    cmocka_unit_test(test_child_is_started_heard_ended_and_gone),
    cmocka_unit_test(test_child_that_cannot_start_is_gone_without_an_end),
    cmocka_unit_test(test_child_that_makes_no_sense_is_refused),
    cmocka_unit_test(test_child_without_pipes_says_nothing),
    cmocka_unit_test(test_child_that_ignores_a_signal_is_killed),
    cmocka_unit_test(test_child_that_is_stopped_obeys),
    cmocka_unit_test(test_child_can_be_killed_when_it_starts),
    cmocka_unit_test(test_child_can_be_killed_before_it_starts),
    cmocka_unit_test(test_gone_waits_for_descendants),
    cmocka_unit_test(test_gone_comes_when_descendants_end_by_themselves),
    cmocka_unit_test(test_output_that_is_not_used_stops_the_writer),
    cmocka_unit_test(test_gone_waits_for_output_that_rests),
    cmocka_unit_test(test_child_memory_can_be_used_again_when_gone),
    cmocka_unit_test(test_children_do_not_disturb_each_other),
    {0},
};
