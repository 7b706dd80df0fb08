/* States from peers: sharing and loading, with two runtimes in one process. */
#include "state_rig.h"

#include <stdatomic.h>
#include <time.h>
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

static struct muster_state_config local(void)
{
    struct muster_state_config config = muster_state_config_defaults();

    config.listen = "127.0.0.1:0";
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

static void test_state_is_loaded_into_new_memory(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    const char *addr;
    struct model m;
    muster_state *donor;
    muster_state_copy *copy;

    (void)state;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 12);
    addr = muster_state_address(donor);
    assert_string_equal(muster_state_transport(donor), "plain");
    r = from(&addr, 1);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &m);
    assert_int_equal(muster_state_copy_info(copy)->epoch, 12);
    assert_int_equal(muster_state_copy_info(copy)->step, 7);
    assert_int_equal(muster_state_copy_info(copy)->bytes, model_bytes(&m));
    assert_int_equal(muster_state_copy_metadata(copy).len, 13);
    assert_int_equal(muster_state_copy_progress(copy)->bytes, model_bytes(&m));
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

static void test_state_is_loaded_in_place(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    const char *addr;
    struct model m;
    struct model mine;
    muster_state *donor;

    (void)state;
    model_make(&m, 5, 1);
    model_make(&mine, 5, 2);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    must(muster_state_load(taker, &r, NULL));
    model_assert_same(&m, &mine);
    muster_state_close(donor);
    model_free(&m);
    model_free(&mine);
}

static void test_layout_that_differs_is_refused_before_anything_is_written(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    const char *addr;
    struct model m;
    struct model mine;
    struct model kept;
    muster_state *donor;

    (void)state;
    model_make(&m, 2, 1);
    model_make(&mine, 2, 2);
    model_make(&kept, 2, 2);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    mine.tensors[2].name = "head.bia5";
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "head.bia5"));
    mine.tensors[2].name = kept.tensors[2].name;
    mine.shapes[1][0]++;
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EINVAL);
    mine.shapes[1][0]--;
    mine.tensors[0].dtype = MUSTER_DTYPE_I32;
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EINVAL);
    mine.tensors[0].dtype = MUSTER_DTYPE_F32;
    r.tensor_count = 2;
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EINVAL);
    model_assert_same(&mine, &kept);
    muster_state_close(donor);
    model_free(&m);
    model_free(&mine);
    model_free(&kept);
}

static void test_newest_is_loaded_and_hidden_ones_are_not(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    const char *addrs[3];
    struct model models[3];
    muster_state *donors[3];
    muster_state_copy *copy;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        model_make(&models[i], 1, i);
        donors[i] = donor_open(giver, &config, &models[i], 10 + i);
        addrs[i] = muster_state_address(donors[i]);
    }
    r = from(addrs, 3);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &models[2]);
    muster_state_copy_free(copy);
    assert_int_equal(muster_state_set(donors[2], "job", 12, true), 0);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &models[1]);
    muster_state_copy_free(copy);
    assert_int_equal(muster_state_set(donors[0], "job", 100, false), 0);
    r.by_priority = true;
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &models[0]);
    muster_state_copy_free(copy);
    assert_int_equal(muster_state_set(donors[0], "other", 1, false), MUSTER_ENOENT);
    r.prefix = "other";
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ENOENT);
    for (size_t i = 0; i < 3; i++) {
        muster_state_close(donors[i]);
        model_free(&models[i]);
    }
}

static void test_donors_are_listed_with_what_they_have_or_why_not(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    struct muster_state_row rows[4];
    const char *addrs[2] = {NULL, "127.0.0.1:1"};
    struct model m;
    muster_state *donor;

    (void)state;
    model_make(&m, 1, 3);
    donor = donor_open(giver, &config, &m, 5);
    addrs[0] = muster_state_address(donor);
    r = from(addrs, 2);
    r.connect_ms = 300;
    assert_int_equal(muster_state_list(taker, &r, rows, 4), 2);
    assert_int_equal(rows[0].status, 0);
    assert_string_equal(rows[0].info.prefix, "job");
    assert_int_equal(rows[0].info.epoch, 5);
    assert_int_equal(rows[0].have, rows[0].chunks);
    assert_int_equal(rows[1].status, MUSTER_ECONN);
    assert_string_equal(rows[1].donor, "127.0.0.1:1");
    assert_true(rows[1].why[0] != '\0');
    muster_state_close(donor);
    model_free(&m);
}

/* --- what is asked for ends ------------------------------------------------------------------- */

struct watcher {
    atomic_uint calls;
    uint64_t cancel_at; /* bytes; 0: never */
    void (*half)(void *context);
    void *context;
    bool half_told;
    struct muster_state_progress last;
};

static bool watch(void *context, const struct muster_state_progress *p)
{
    struct watcher *w = context;

    (void)atomic_fetch_add(&w->calls, 1);
    w->last = *p;
    if (w->half != NULL && !w->half_told && p->bytes * 4 >= p->total && p->bytes != 0) {
        w->half_told = true;
        w->half(w->context);
    }
    return w->cancel_at == 0 || p->bytes < w->cancel_at;
}

static void test_load_is_canceled_by_its_progress(void **state)
{
    struct muster_state_config config = local();
    struct watcher w = {.cancel_at = 3 << 20};
    struct muster_state_request r;
    muster_state_copy *copy = NULL;
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.rate_bytes = 10 << 20;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.progress = watch;
    r.progress_ms = 10;
    r.context = &w;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ECANCELED);
    assert_null(copy);
    assert_true(w.last.bytes >= w.cancel_at && w.last.bytes < model_bytes(&m));
    muster_state_close(donor);
    model_free(&m);
}

static void test_load_is_canceled_from_another_thread(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    muster_state_loading *loading;
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.rate_bytes = 1;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    muster_state_load_cancel(loading);
    assert_int_equal(muster_state_load_end(loading, NULL), MUSTER_ECANCELED);
    muster_state_close(donor);
    model_free(&m);
}

static double elapsed(const struct timespec *since)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - since->tv_sec) + (double)(now.tv_nsec - since->tv_nsec) / 1e9;
}

static void test_both_deadlines_end_a_load(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    struct timespec begun;
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.rate_bytes = 100; /* a chunk, and then nothing for hours */
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.timeout_ms = 400;
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_ETIMEDOUT);
    assert_true(elapsed(&begun) >= 0.4 && elapsed(&begun) < 5);
    assert_non_null(strstr(muster_state_report(), addr));
    r.timeout_ms = MUSTER_TIMEOUT_NEVER;
    r.idle_ms = 400;
    (void)clock_gettime(CLOCK_MONOTONIC, &begun);
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_ETIMEDOUT);
    assert_true(elapsed(&begun) >= 0.4 && elapsed(&begun) < 5);
    muster_state_close(donor);
    model_free(&m);
}

static void test_error_says_what_each_donor_did(void **state)
{
    const char *addrs[2] = {"127.0.0.1:1", "127.0.0.1:2"};
    struct muster_state_request r = from(addrs, 2);

    (void)state;
    r.connect_ms = 200;
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_ECONN);
    assert_non_null(strstr(muster_errmsg(), "127.0.0.1:"));
    assert_non_null(strstr(muster_state_report(), "127.0.0.1:1: "));
    assert_non_null(strstr(muster_state_report(), "127.0.0.1:2: "));
    addrs[0] = "nonsense";
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EURL);
}

/* --- donors that come, go and lie ------------------------------------------------------------- */

/* Holds a load when a quarter of it is there, until the test has done something. */
struct hold {
    atomic_bool reached;
    atomic_bool go;
};

static void hold(void *context)
{
    struct hold *h = context;

    atomic_store(&h->reached, true);
    while (!atomic_load(&h->go)) {
        (void)usleep(500);
    }
}

static void wait_held(struct hold *h)
{
    while (!atomic_load(&h->reached)) {
        (void)usleep(500);
    }
}

static void count_release(void *context)
{
    (void)atomic_fetch_add((atomic_int *)context, 1);
}

static int share_epoch(muster_state *donor, const struct model *m, uint64_t epoch,
                       atomic_int *released)
{
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = "job",
                                         .epoch = epoch,
                                         .priority = (double)epoch,
                                         .tensors = m->tensors,
                                         .tensor_count = 3,
                                         .released = released == NULL ? NULL : count_release,
                                         .context = released};

    return muster_state_share(donor, &source);
}

/* What happens when a version is replaced while it is loaded. */
static void replace_while_loading(uint32_t replaced_ms, uint64_t expected_epoch)
{
    struct muster_state_config config = local();
    struct hold held = {false, false};
    atomic_int released = 0;
    struct watcher w = {.half = hold, .context = &held};
    struct muster_state_request r;
    muster_state_loading *loading;
    muster_state_copy *copy;
    const char *addr;
    struct model old;
    struct model fresh;
    muster_state *donor;

    config.rate_bytes = 4 << 20;
    config.replaced_ms = replaced_ms;
    model_make(&old, 4, 1);
    model_make(&fresh, 4, 2);
    assert_int_equal(muster_state_open(giver, &config, &donor), 0);
    assert_int_equal(share_epoch(donor, &old, 1, &released), 0);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.progress = watch;
    r.progress_ms = 5;
    r.context = &w;
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    wait_held(&held);
    assert_int_equal(share_epoch(donor, &fresh, 2, NULL), 0);
    atomic_store(&held.go, true);
    must(muster_state_load_end(loading, &copy));
    assert_int_equal(muster_state_copy_info(copy)->epoch, expected_epoch);
    copy_assert_same(copy, expected_epoch == 1 ? &old : &fresh);
    assert_int_equal(muster_state_copy_progress(copy)->restarts, expected_epoch == 1 ? 0 : 1);
    muster_state_copy_free(copy);
    for (int i = 0; i < 2000 && atomic_load(&released) == 0; i++) {
        (void)usleep(1000);
    }
    assert_int_equal(atomic_load(&released), 1);
    muster_state_close(donor);
    model_free(&old);
    model_free(&fresh);
}

static void test_version_that_is_replaced_is_still_served_whole(void **state)
{
    (void)state;
    replace_while_loading(60000, 1);
}

static void test_version_that_is_gone_gives_way_to_the_next(void **state)
{
    (void)state;
    replace_while_loading(0, 2);
}

static void test_donor_that_leaves_costs_a_chunk(void **state)
{
    struct muster_state_config config = local();
    struct hold held = {false, false};
    struct watcher w = {.half = hold, .context = &held};
    struct muster_state_request r;
    muster_state_loading *loading;
    muster_state_copy *copy;
    const char *addrs[2];
    struct model m;
    muster_state *donors[2];

    (void)state;
    config.rate_bytes = 4 << 20;
    model_make(&m, 12, 1);
    for (size_t i = 0; i < 2; i++) {
        donors[i] = donor_open(giver, &config, &m, 1);
        addrs[i] = muster_state_address(donors[i]);
    }
    r = from(addrs, 2);
    r.progress = watch;
    r.progress_ms = 5;
    r.context = &w;
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    wait_held(&held);
    muster_state_close(donors[0]);
    atomic_store(&held.go, true);
    must(muster_state_load_end(loading, &copy));
    copy_assert_same(copy, &m);
    assert_true(muster_state_copy_progress(copy)->lost >= 1);
    assert_true(muster_state_copy_progress(copy)->wasted <= 2 << 20);
    muster_state_copy_free(copy);
    muster_state_close(donors[1]);
    model_free(&m);
}

static void test_donor_that_corrupts_is_banned(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    muster_state_copy *copy;
    const char *addrs[2];
    struct model good;
    struct model bad;
    muster_state *donors[2];

    (void)state;
    model_make(&good, 8, 1);
    model_make(&bad, 8, 1);
    donors[0] = donor_open(giver, &config, &bad, 1);
    config.rate_bytes = 3 << 20; /* The good one cannot give it all before the bad one is asked. */
    donors[1] = donor_open(giver, &config, &good, 1);
    for (size_t i = 0, n = muster_tensor_bytes(&bad.tensors[1]); i < n; i += 1 << 20) {
        ((uint8_t *)bad.tensors[1].data)[i] ^= 1; /* Behind the hash's back. */
    }
    addrs[0] = muster_state_address(donors[0]);
    addrs[1] = muster_state_address(donors[1]);
    r = from(addrs, 2);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &good);
    assert_int_equal(muster_state_copy_progress(copy)->banned, 1);
    assert_non_null(strstr(muster_state_report(), "banned"));
    muster_state_copy_free(copy);
    /* And alone it is of no use. */
    r = from(addrs, 1);
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ECORRUPT);
    assert_non_null(strstr(muster_state_report(), addrs[0]));
    muster_state_close(donors[0]);
    muster_state_close(donors[1]);
    model_free(&good);
    model_free(&bad);
}

/* Until the donor has begun so many downloads and turned so many away, and serves one. */
static void await_donor(muster_state *donor, uint64_t downloads, uint64_t turned_away)
{
    struct muster_state_stats stats = {0};

    for (int i = 0; i < 4000; i++) {
        muster_state_stats(donor, &stats);
        if (stats.downloads == downloads && stats.turned_away >= turned_away && stats.active == 1) {
            return;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    fail_msg("%d downloads, %d turned away, %d active", (int)stats.downloads,
             (int)stats.turned_away, (int)stats.active);
}

static void test_who_finds_no_slot_comes_again(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    muster_state_loading *loading[2];
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.slots = 1;
    config.rate_bytes = 256 << 10; /* Nobody is done before it is told to end. */
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    assert_int_equal(muster_state_load_begin(taker, &r, &loading[0]), 0);
    await_donor(donor, 1, 0);
    assert_int_equal(muster_state_load_begin(taker, &r, &loading[1]), 0);
    await_donor(donor, 1, 1);
    for (size_t i = 0; i < 2; i++) {
        muster_state_load_cancel(loading[i]);
        assert_int_equal(muster_state_load_end(loading[i], NULL), MUSTER_ECANCELED);
        if (i == 0) {
            await_donor(donor, 2, 1);
        }
    }
    muster_state_close(donor);
    model_free(&m);
}

static void test_newcomers_serve_each_other(void **state)
{
    enum { COUNT = 4 };
    struct muster_state_config config = local();
    struct muster_state_request r;
    muster_state_loading *loading[COUNT];
    muster_state_copy *copies[COUNT];
    struct muster_state_stats stats;
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.rate_bytes = 4 << 20; /* From it alone they would have to wait. */
    model_make(&m, 12, 1);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.listen = "127.0.0.1:0";
    r.keep_serving = true;
    for (size_t i = 0; i < COUNT; i++) {
        assert_int_equal(muster_state_load_begin(taker, &r, &loading[i]), 0);
    }
    for (size_t i = 0; i < COUNT; i++) {
        must(muster_state_load_end(loading[i], &copies[i]));
        copy_assert_same(copies[i], &m);
    }
    muster_state_stats(donor, &stats);
    assert_true(stats.bytes < model_bytes(&m) * COUNT); /* Not once for each of them. */
    for (size_t i = 0; i < COUNT; i++) {
        muster_state_copy_free(copies[i]);
    }
    muster_state_close(donor);
    model_free(&m);
}

static void test_donors_are_found_through_a_store(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r = from(NULL, 0);
    muster_state_copy *copy;
    muster_store *store;
    struct model m;
    muster_state *donor;

    (void)state;
    model_make(&m, 2, 1);
    assert_int_equal(muster_store_open(giver, "hash:", NULL, &store), 0);
    r.store = store;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ENOENT);
    donor = donor_open(giver, &config, &m, 1);
    assert_int_equal(muster_state_announce(donor, store, "job", 1000), 0);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    muster_store_close(store);
    model_free(&m);
}

static void test_memory_of_a_state_is_free_when_it_was_unshared(void **state)
{
    struct muster_state_config config = local();
    atomic_int released = 0;
    struct muster_state_request r;
    muster_state_loading *loading;
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.rate_bytes = 4 << 20;
    model_make(&m, 8, 1);
    assert_int_equal(muster_state_open(giver, &config, &donor), 0);
    assert_int_equal(share_epoch(donor, &m, 1, &released), 0);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    assert_int_equal(muster_state_load_begin(taker, &r, &loading), 0);
    await_donor(donor, 1, 0);
    assert_int_equal(atomic_load(&released), 0);
    assert_int_equal(muster_state_unshare(donor, "job", 0), 0);
    assert_int_equal(atomic_load(&released), 1);
    model_free(&m);
    assert_int_equal(muster_state_load_end(loading, NULL), MUSTER_ENOENT);
    assert_int_equal(muster_state_unshare(donor, "job", 0), MUSTER_ENOENT);
    muster_state_close(donor);
}

/* --- files ------------------------------------------------------------------------------------ */

static void read_file(const char *path, uint8_t **ret, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");

    assert_non_null(f);
    (void)fseek(f, 0, SEEK_END);
    *ret_len = (size_t)ftell(f);
    (void)fseek(f, 0, SEEK_SET);
    *ret = malloc(*ret_len + 1);
    assert_int_equal(fread(*ret, 1, *ret_len, f), *ret_len);
    (void)fclose(f);
}

static void write_safetensors(const char *path, size_t bytes, const char *head)
{
    FILE *f = fopen(path, "wb");
    uint8_t *data = malloc(bytes);
    uint64_t len = strlen(head);

    model_fill(data, bytes, 9);
    (void)fwrite(&len, 8, 1, f);
    (void)fwrite(head, len, 1, f);
    (void)fwrite(data, bytes, 1, f);
    free(data);
    assert_int_equal(fclose(f), 0);
}

static void test_file_arrives_byte_for_byte_and_an_interrupted_load_goes_on(void **state)
{
    static const char head[] =
        "{\"__metadata__\": {\"format\": \"pt\"}, \"a\": {\"dtype\": \"U8\", "
        "\"shape\": [9000000], \"data_offsets\": [0, 9000000]}}  ";
    struct muster_state_config config = local();
    struct muster_state_source source = {
        .size = sizeof(struct muster_state_source), .prefix = "job", .epoch = 3, .priority = 3};
    struct watcher w = {.cancel_at = 4 << 20};
    char dir[] = "/tmp/muster-state-XXXXXX";
    struct muster_state_request r;
    muster_state_copy *copy;
    char in[64];
    char out[64];
    char part[80];
    const char *addr;
    muster_state *donor;
    uint8_t *a;
    uint8_t *b;
    size_t a_len;
    size_t b_len;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(in, sizeof(in), "%s/in", dir);
    (void)snprintf(out, sizeof(out), "%s/out", dir);
    (void)snprintf(part, sizeof(part), "%s.part", out);
    write_safetensors(in, 9000000, head);
    config.rate_bytes = 8 << 20;
    assert_int_equal(muster_state_open(giver, &config, &donor), 0);
    must(muster_state_share_file(donor, in, &source));
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.file = out;
    r.progress = watch;
    r.progress_ms = 5;
    r.context = &w;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ECANCELED);
    assert_int_equal(access(part, F_OK), 0);
    w.cancel_at = 0;
    must(muster_state_load(taker, &r, &copy));
    assert_true(muster_state_copy_progress(copy)->resumed >= 4 << 20);
    assert_int_equal(muster_state_copy_count(copy), 1);
    muster_state_copy_free(copy);
    assert_int_equal(access(part, F_OK), -1);
    read_file(in, &a, &a_len);
    read_file(out, &b, &b_len);
    assert_int_equal(a_len, b_len);
    assert_memory_equal(a, b, a_len);
    free(a);
    free(b);
    muster_state_close(donor);
    assert_int_equal(unlink(in), 0);
    assert_int_equal(unlink(out), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void test_what_is_no_safetensors_file_is_not_shared(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = "job"};
    muster_state *donor;

    (void)state;
    assert_int_equal(muster_state_open(giver, &config, &donor), 0);
    assert_int_equal(muster_state_share_file(donor, "/proc/self/exe", &source), MUSTER_ECORRUPT);
    assert_non_null(strstr(muster_errmsg(), "/proc/self/exe"));
    assert_int_equal(muster_state_share_file(donor, "/nonexistent", &source), -2);
    source.prefix = NULL;
    assert_int_equal(muster_state_share_file(donor, "/nonexistent", &source), MUSTER_EINVAL);
    muster_state_close(donor);
}

/* --- other transports ------------------------------------------------------------------------- */

static void test_state_travels_between_peers(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    muster_state_copy *copy;
    const char *addr;
    struct model m;
    muster_state *donor;

    (void)state;
    config.listen = "/ip4/127.0.0.1/tcp/0";
    config.key = "";
    model_make(&m, 4, 1);
    donor = donor_open(giver, &config, &m, 1);
    assert_string_equal(muster_state_transport(donor), "peer");
    addr = muster_state_address(donor);
    assert_non_null(strstr(addr, "/p2p/"));
    r = from(&addr, 1);
    r.listen = "/ip4/127.0.0.1/tcp/0";
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

static void test_memory_of_the_library_leaves_as_any_other(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    muster_state_copy *copy;
    uint64_t shape = 5000001;
    struct muster_tensor tensor = {
        .name = "w", .dtype = MUSTER_DTYPE_U8, .rank = 1, .shape = &shape};
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = "job",
                                         .tensors = &tensor,
                                         .tensor_count = 1};
    const char *addr;
    muster_state *donor;
    struct muster_tensor got;

    (void)state;
    tensor.data = muster_state_alloc(shape);
    assert_non_null(tensor.data);
    model_fill(tensor.data, shape, 4);
    assert_int_equal(muster_state_open(giver, &config, &donor), 0);
    must(muster_state_share(donor, &source));
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    must(muster_state_load(taker, &r, &copy));
    got = muster_state_copy_tensor(copy, 0);
    assert_memory_equal(got.data, tensor.data, shape);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    muster_state_free(tensor.data);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_state_is_loaded_into_new_memory),
        CASE(test_state_is_loaded_in_place),
        CASE(test_layout_that_differs_is_refused_before_anything_is_written),
        CASE(test_newest_is_loaded_and_hidden_ones_are_not),
        CASE(test_donors_are_listed_with_what_they_have_or_why_not),
        CASE(test_load_is_canceled_by_its_progress),
        CASE(test_load_is_canceled_from_another_thread),
        CASE(test_both_deadlines_end_a_load),
        CASE(test_error_says_what_each_donor_did),
        CASE(test_version_that_is_replaced_is_still_served_whole),
        CASE(test_version_that_is_gone_gives_way_to_the_next),
        CASE(test_donor_that_leaves_costs_a_chunk),
        CASE(test_donor_that_corrupts_is_banned),
        CASE(test_who_finds_no_slot_comes_again),
        CASE(test_newcomers_serve_each_other),
        CASE(test_donors_are_found_through_a_store),
        CASE(test_memory_of_a_state_is_free_when_it_was_unshared),
        CASE(test_file_arrives_byte_for_byte_and_an_interrupted_load_goes_on),
        CASE(test_what_is_no_safetensors_file_is_not_shared),
        CASE(test_state_travels_between_peers),
        CASE(test_memory_of_the_library_leaves_as_any_other),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
