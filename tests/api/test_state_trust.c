/* States among strangers: who may load one, and whose word for it is taken. */
#include "state_rig.h"

#include <sys/stat.h>
#include <unistd.h>

static muster_runtime *giver;
static muster_runtime *taker;

static int set_up(void **state)
{
    (void)state;
    return muster_runtime_new(&giver) != 0 || muster_runtime_new(&taker) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_close_all();
    muster_runtime_free(giver);
    muster_runtime_free(taker);
    return 0;
}

static struct muster_state_config among_peers(const char *listen)
{
    struct muster_state_config config = muster_state_config_defaults();

    config.listen = listen;
    config.key = "";
    return config;
}

static struct muster_state_request from(const char *const *donors, size_t count)
{
    struct muster_state_request r = muster_state_request_defaults();

    r.prefix = "job";
    r.donors = donors;
    r.donor_count = count;
    r.timeout_ms = 30000;
    return r;
}

static void must(int err)
{
    if (err != 0) {
        fail_msg("%s\n%s", muster_errmsg(), muster_state_report());
    }
}

static void share(muster_state *donor, const struct model *m, uint64_t epoch, double priority)
{
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = "job",
                                         .epoch = epoch,
                                         .priority = priority,
                                         .tensors = m->tensors,
                                         .tensor_count = 3};

    must(muster_state_share(donor, &source));
}

/* The id in an address. */
static const char *id_of(const muster_state *state)
{
    return strstr(muster_state_address(state), "/p2p/") + 5;
}

/* --- who may come ----------------------------------------------------------------------------- */

static void test_beyond_loopback_peers_are_named_or_everybody_is_let_in(void **state)
{
    const struct muster_lock insecure = {.size = sizeof(struct muster_lock), .insecure = true};
    struct muster_runtime_config open = {.size = sizeof(struct muster_runtime_config),
                                         .lock = &insecure};
    struct muster_state_config config = among_peers("/ip4/0.0.0.0/tcp/0");
    muster_runtime *rt;
    muster_state *s;
    const char *friend;

    (void)state;
    assert_int_equal(muster_state_open(giver, &config, &s), MUSTER_ELOCKED);
    assert_non_null(strstr(muster_errmsg(), "--allow PEER,..."));
    config.listen = "/ip4/127.0.0.1/tcp/0";
    must(muster_state_open(giver, &config, &s));
    friend = strdup(id_of(s));
    muster_state_close(s);
    config.listen = "/ip4/0.0.0.0/tcp/0";
    config.allow = &friend;
    config.allow_count = 1;
    must(muster_state_open(giver, &config, &s));
    muster_state_close(s);
    free((void *)(uintptr_t) friend);
    friend = "nobody";
    assert_int_equal(muster_state_open(giver, &config, &s), MUSTER_EINVAL);
    config.key = NULL;
    assert_int_equal(muster_state_open(giver, &config, &s), MUSTER_EINVAL);
    config = among_peers("/ip4/0.0.0.0/tcp/0");
    must(muster_runtime_new_with(&open, &rt));
    must(muster_state_open(rt, &config, &s));
    muster_state_close(s);
    muster_runtime_free(rt);
}

static void test_a_credential_does_not_stand_in_for_a_list_of_peers(void **state)
{
    char path[] = "/tmp/muster-token-XXXXXX";
    const struct muster_lock lock = {.size = sizeof(struct muster_lock), .token_file = path};
    struct muster_runtime_config sealed = {.size = sizeof(struct muster_runtime_config),
                                           .lock = &lock};
    struct muster_state_config config = among_peers("/ip4/0.0.0.0/tcp/0");
    int fd = mkstemp(path);
    muster_runtime *rt;
    muster_state *s;

    (void)state;
    assert_true(fd >= 0 && write(fd, "0123456789abcdef0123456789abcdef\n", 33) == 33);
    (void)close(fd);
    must(muster_runtime_new_with(&sealed, &rt));
    assert_int_equal(muster_state_open(rt, &config, &s), MUSTER_ELOCKED);
    assert_non_null(strstr(muster_errmsg(), "credential"));
    muster_runtime_free(rt);
    (void)unlink(path);
}

static void test_only_those_who_were_named_load(void **state)
{
    struct muster_state_config config = among_peers("/ip4/127.0.0.1/tcp/0");
    struct muster_state_request r;
    muster_state *friend;
    muster_state *donor;
    muster_state_copy *copy;
    const char *addr;
    const char *allowed;
    struct model m;

    (void)state;
    model_make(&m, 1, 1);
    must(muster_state_open(taker, &config, &friend));
    allowed = id_of(friend);
    config.allow = &allowed;
    config.allow_count = 1;
    must(muster_state_open(giver, &config, &donor));
    share(donor, &m, 1, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.connect_ms = 2000;
    assert_true(muster_state_load(taker, &r, &copy) < 0); /* under a key of its own */
    r.through = friend;
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    muster_state_close(friend);
    model_free(&m);
}

static void test_who_passes_on_is_held_to_the_same(void **state)
{
    struct muster_state_config config = among_peers("/ip4/127.0.0.1/tcp/0");
    struct muster_state_request r;
    muster_state *donor;
    muster_state_copy *copy;
    const char *addr;
    const char *allowed;
    struct model m;

    (void)state;
    model_make(&m, 1, 1);
    must(muster_state_open(giver, &config, &donor));
    share(donor, &m, 1, 1);
    addr = muster_state_address(donor);
    allowed = "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN";
    r = from(&addr, 1);
    r.listen = "/ip4/0.0.0.0/tcp/0";
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ELOCKED);
    r.allow = &allowed;
    r.allow_count = 1;
    must(muster_state_load(taker, &r, &copy)); /* The donor is allowed by being named. */
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

/* --- whose word is taken ---------------------------------------------------------------------- */

static void test_a_state_says_who_has_signed_it(void **state)
{
    struct muster_state_config config = among_peers("/ip4/127.0.0.1/tcp/0");
    struct muster_state_request r;
    struct muster_state_info info;
    struct muster_state_row rows[2];
    muster_state *donor;
    muster_state_copy *copy;
    const char *addr;
    struct model m;

    (void)state;
    model_make(&m, 1, 1);
    must(muster_state_open(giver, &config, &donor));
    assert_int_equal(muster_state_shared(donor, "job", &info), MUSTER_ENOENT);
    share(donor, &m, 3, 1);
    must(muster_state_shared(donor, "job", &info));
    assert_string_equal(info.signer, id_of(donor));
    assert_int_equal(info.epoch, 3);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    assert_int_equal(muster_state_list(taker, &r, rows, 2), 1);
    assert_string_equal(rows[0].info.signer, info.signer);
    assert_string_equal(rows[0].info.id, info.id);
    must(muster_state_load(taker, &r, &copy));
    assert_string_equal(muster_state_copy_info(copy)->signer, info.signer);
    assert_string_equal(muster_state_copy_info(copy)->id, info.id);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

static void test_pins_that_cannot_be_are_refused(void **state)
{
    const char *addr = "127.0.0.1:1";
    const char *nobody = "somebody";
    struct muster_state_request r = from(&addr, 1);
    muster_state_copy *copy;

    (void)state;
    r.trust = &nobody;
    r.trust_count = 1;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_EINVAL);
    r = from(&addr, 1);
    r.id = "0123";
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "64 hex digits"));
}

/* --- files ------------------------------------------------------------------------------------ */

static char folder[64];

static const char *in_folder(const char *name)
{
    static char paths[4][128];
    static size_t next;
    char *path = paths[next++ % 4];

    (void)snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

static void open_folder(void)
{
    (void)snprintf(folder, sizeof(folder), "/tmp/muster-trust-XXXXXX");
    assert_non_null(mkdtemp(folder));
}

/* Returns how that went. */
static int load_into(const char *file)
{
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_state_request r;
    muster_state *donor;
    muster_state_copy *copy;
    const char *addr;
    struct model m;
    int err;

    config.listen = "127.0.0.1:0";
    model_make(&m, 3, 1);
    must(muster_state_open(giver, &config, &donor));
    share(donor, &m, 1, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.file = file;
    err = muster_state_load(taker, &r, &copy);
    if (err == 0) {
        copy_assert_same(copy, &m);
        muster_state_copy_free(copy);
    }
    muster_state_close(donor);
    model_free(&m);
    return err;
}

static void write_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    assert_true(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
}

static void assert_text(const char *path, const char *text)
{
    char got[64] = "";
    FILE *file = fopen(path, "r");

    assert_non_null(file);
    assert_int_equal(fread(got, 1, sizeof(got) - 1, file), strlen(text));
    (void)fclose(file);
    assert_string_equal(got, text);
}

static void test_part_that_is_a_link_is_not_followed(void **state)
{
    (void)state;
    open_folder();
    write_text(in_folder("precious"), "mine");
    assert_int_equal(symlink(in_folder("precious"), in_folder("m.part")), 0);
    assert_true(load_into(in_folder("m")) < 0);
    assert_non_null(strstr(muster_errmsg(), "link"));
    assert_text(in_folder("precious"), "mine");
    (void)unlink(in_folder("m.part"));
    assert_int_equal(link(in_folder("precious"), in_folder("m.part")), 0);
    assert_true(load_into(in_folder("m")) < 0);
    assert_text(in_folder("precious"), "mine");
    (void)unlink(in_folder("m.part"));
    if (geteuid() == 0) {
        write_text(in_folder("m.part"), "theirs");
        assert_int_equal(chown(in_folder("m.part"), 65534, 65534), 0);
        assert_true(load_into(in_folder("m")) < 0);
        assert_non_null(strstr(muster_errmsg(), "another user's"));
        (void)unlink(in_folder("m.part"));
    }
    assert_int_equal(load_into(in_folder("m")), 0);
    (void)unlink(in_folder("m"));
    (void)unlink(in_folder("precious"));
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beyond_loopback_peers_are_named_or_everybody_is_let_in),
        cmocka_unit_test(test_a_credential_does_not_stand_in_for_a_list_of_peers),
        cmocka_unit_test(test_only_those_who_were_named_load),
        cmocka_unit_test(test_who_passes_on_is_held_to_the_same),
        cmocka_unit_test(test_a_state_says_who_has_signed_it),
        cmocka_unit_test(test_pins_that_cannot_be_are_refused),
        cmocka_unit_test(test_part_that_is_a_link_is_not_followed),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
