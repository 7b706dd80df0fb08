/* States in a swarm: peers of one DHT, some of which speak only hivemind's protocol. */
#include "state_rig.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "api/state_api.h"
#include "codec/bin/msgpack.h"

#define PREFIX   "run_state_averager"
#define AVERAGER "DecentralizedAverager"
#define TRAINER  "TrainingStateAverager"

static const char *averager = AVERAGER; /* of all peers */
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

static void must(int err)
{
    if (err != 0) {
        fail_msg("%s\n%s", muster_errmsg(), muster_state_report());
    }
}

/* --- a swarm of three ------------------------------------------------------------------------- */

struct swarm {
    muster_state *peers[3];
    struct model models[3];
    const char *first[1]; /* through whom all others join */
};

static struct muster_state_config in_swarm(const struct swarm *s)
{
    struct muster_state_config config = muster_state_config_defaults();

    config.listen = "/ip4/127.0.0.1/tcp/0";
    config.key = "";
    config.dht = (const char *const *)s->first;
    config.dht_count = s->first[0] == NULL ? 0 : 1;
    config.hivemind = averager;
    return config;
}

static struct muster_state_source source_of(const struct model *m, uint64_t epoch)
{
    return (struct muster_state_source){.size = sizeof(struct muster_state_source),
                                        .prefix = PREFIX,
                                        .epoch = epoch,
                                        .priority = (double)epoch,
                                        .metadata = {"\x81\xa2lr\x05", 5},
                                        .tensors = m->tensors,
                                        .tensor_count = 3};
}

/* The DHT has heard of it. */
static void await_declared(muster_state *peer, uint64_t count)
{
    struct muster_state_stats stats = {0};

    for (int i = 0; i < 2000 && stats.declared < count; i++) {
        struct timespec pause = {.tv_nsec = 5000000};

        muster_state_stats(peer, &stats);
        (void)nanosleep(&pause, NULL);
    }
    assert_true(stats.declared >= count);
}

static void share(struct swarm *s, size_t i, uint64_t epoch)
{
    struct muster_state_source source = source_of(&s->models[i], epoch);
    struct muster_state_stats stats;

    muster_state_stats(s->peers[i], &stats);
    must(muster_state_share(s->peers[i], &source));
    await_declared(s->peers[i], stats.declared + 1);
}

static void swarm_open(struct swarm *s, uint64_t mib)
{
    memset(s, 0, sizeof(*s));
    for (size_t i = 0; i < 3; i++) {
        struct muster_state_config config = in_swarm(s);

        model_make(&s->models[i], mib, i);
        must(muster_state_open(giver, &config, &s->peers[i]));
        if (i == 0) {
            s->first[0] = muster_state_address(s->peers[0]);
        }
    }
}

static void swarm_close(struct swarm *s)
{
    for (size_t i = 3; i-- > 0;) {
        muster_state_close(s->peers[i]);
        model_free(&s->models[i]);
    }
}

struct limit_door {
    struct mu_door door;
    muster_state *peer;
    const struct mu_state_gate_config *gate;
};

static void limit_on_loop(struct mu_door *door)
{
    struct limit_door *d = MU_CONTAINER_OF(door, struct limit_door, door);

    mu_state_donor_limit(d->peer->donor, d->gate);
    mu_door_open(door);
}

static void limit(muster_state *peer, const struct mu_state_gate_config *gate)
{
    struct limit_door d = {.peer = peer, .gate = gate};

    mu_door_pass(peer->rt, &d.door, limit_on_loop);
}

/* From now on it speaks hivemind's protocol and nothing else, as a trainer in Python does. */
static void forget_native(muster_state *peer)
{
    mu_state_donor_end(peer->rt, peer->donor);
    peer->donor = NULL;
}

static void close_forgetful(struct swarm *s, size_t i)
{
    muster_state_close(s->peers[i]);
    s->peers[i] = NULL;
}

static struct muster_state_request from(const struct swarm *s)
{
    struct muster_state_request r = muster_state_request_defaults();

    r.prefix = PREFIX;
    r.dht = (const char *const *)s->first;
    r.dht_count = 1;
    r.hivemind = averager;
    r.timeout_ms = 30000;
    return r;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_swarm_newest_state_is_found_in_the_dht(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 3);
    r = from(&s);
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ENOENT);
    share(&s, 1, 10);
    share(&s, 2, 12);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &s.models[2]);
    assert_int_equal(muster_state_copy_info(copy)->epoch, 12);
    muster_state_copy_free(copy);

    /* Hidden, it is not there; and the other one is. */
    assert_int_equal(muster_state_set(s.peers[2], PREFIX, 12, true), 0);
    await_declared(s.peers[2], 2);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &s.models[1]);
    muster_state_copy_free(copy);

    /* Withdrawn, nothing is. */
    assert_int_equal(muster_state_unshare(s.peers[1], PREFIX, 0), 0);
    await_declared(s.peers[1], 2);
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ENOENT);
    assert_non_null(strstr(muster_errmsg(), "no peer shares"));
    swarm_close(&s);
}

static void test_swarm_native_donors_serve_at_once(void **state)
{
    struct muster_state_source source;
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 24);
    for (size_t i = 0; i < 3; i++) {
        source = source_of(&s.models[0], 5); /* All have the same bytes. */
        must(muster_state_share(s.peers[i], &source));
        await_declared(s.peers[i], 1);
    }
    r = from(&s);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &s.models[0]);
    for (size_t i = 0; i < 3; i++) {
        struct muster_state_stats stats;

        muster_state_stats(s.peers[i], &stats);
        assert_int_equal(stats.downloads, 1);
        assert_int_equal(stats.hivemind_downloads, 0);
    }
    muster_state_copy_free(copy);
    swarm_close(&s);
}

static void test_swarm_hivemind_donor_gives_its_state_in_place(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct model mine;
    char file[64];
    struct swarm s;

    (void)state;
    swarm_open(&s, 2);
    share(&s, 1, 7);
    forget_native(s.peers[1]);
    model_make(&mine, 2, 99);
    r = from(&s);
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    must(muster_state_load(taker, &r, &copy));
    model_assert_same(&mine, &s.models[1]);
    copy_assert_same(copy, &s.models[1]);
    assert_ptr_equal(muster_state_copy_tensor(copy, 0).data, mine.tensors[0].data);
    assert_int_equal(muster_state_copy_info(copy)->epoch, 7);
    assert_int_equal(muster_state_copy_metadata(copy).len, 12); /* lr, and the epoch */
    assert_non_null(strstr(muster_state_report(), "gave its state"));
    muster_state_copy_free(copy);

    /* Into new memory the names are ours. */
    r.tensor_count = 0;
    must(muster_state_load(taker, &r, &copy));
    assert_string_equal(muster_state_copy_tensor(copy, 2).name, "tensor.2");
    assert_memory_equal(muster_state_copy_tensor(copy, 1).data, s.models[1].tensors[1].data,
                        muster_tensor_bytes(&s.models[1].tensors[1]));
    muster_state_copy_free(copy);

    /* Into a file, and from there to others, as any state. */
    (void)snprintf(file, sizeof(file), "/tmp/muster-swarm-%d.safetensors", (int)getpid());
    r.file = file;
    r.listen = "/ip4/127.0.0.1/tcp/0";
    r.keep_serving = true;
    must(muster_state_load(taker, &r, &copy));
    assert_true(muster_state_copy_progress(copy)->hivemind);
    assert_int_equal(access(file, R_OK), 0);
    assert_memory_equal(muster_state_copy_tensor(copy, 0).data, s.models[1].tensors[0].data,
                        muster_tensor_bytes(&s.models[1].tensors[0]));
    muster_state_copy_free(copy);
    (void)unlink(file);
    r.file = NULL;

    /* Who does not speak hivemind's protocol gets nothing of it, and is told. */
    r.hivemind = NULL;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ECONN);
    assert_non_null(strstr(muster_state_report(), "does not speak the native wire"));
    close_forgetful(&s, 1);
    model_free(&mine);
    swarm_close(&s);
}

/* --- from a hivemind donor into a file -------------------------------------------------------- */

static void grow(struct swarm *s, size_t i, uint64_t mib)
{
    model_free(&s->models[i]);
    model_make(&s->models[i], mib, i);
}

static char stream_file[64];
static char stream_part[80];

static struct muster_state_request into_file(const struct swarm *s)
{
    struct muster_state_request r = from(s);

    (void)snprintf(stream_file, sizeof(stream_file), "/tmp/muster-stream-%d", (int)getpid());
    (void)snprintf(stream_part, sizeof(stream_part), "%s.part", stream_file);
    (void)unlink(stream_file);
    (void)unlink(stream_part);
    r.file = stream_file;
    return r;
}

static bool until_8_mib(void *context, const struct muster_state_progress *p)
{
    (void)context;
    return p->bytes < (8 << 20);
}

static void assert_file_is(const struct model *m)
{
    struct muster_tensor tensors[3];

    for (size_t i = 0; i < 3; i++) {
        static const char *const names[] = {"tensor.0", "tensor.1", "tensor.2"};

        tensors[i] = m->tensors[i];
        tensors[i].name = names[i];
        tensors[i].data = malloc(muster_tensor_bytes(&tensors[i]));
    }
    must(muster_state_read(stream_file, tensors, 3));
    for (size_t i = 0; i < 3; i++) {
        assert_memory_equal(tensors[i].data, m->tensors[i].data, muster_tensor_bytes(&tensors[i]));
        free(tensors[i].data);
    }
}

/* It goes into the file as it comes: what came stays when the load is interrupted, and is not
 * written again when the same comes again. */
static void test_swarm_hivemind_load_keeps_what_came(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 24);
    share(&s, 1, 7);
    forget_native(s.peers[1]);
    r = into_file(&s);
    r.progress = until_8_mib;
    r.progress_ms = 1;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ECANCELED);
    assert_int_equal(access(stream_part, R_OK), 0);
    assert_int_equal(access(stream_file, R_OK), -1);
    r.progress = NULL;
    must(muster_state_load(taker, &r, &copy));
    assert_in_range(muster_state_copy_progress(copy)->resumed, 7 << 20, 25 << 20);
    assert_int_equal(access(stream_part, R_OK), -1);
    assert_file_is(&s.models[1]);
    muster_state_copy_free(copy);

    /* Of another version nothing is taken. */
    assert_int_equal(rename(stream_file, stream_part), 0);
    share(&s, 2, 9);
    forget_native(s.peers[2]);
    must(muster_state_load(taker, &r, &copy));
    assert_int_equal(muster_state_copy_info(copy)->epoch, 9);
    assert_in_range(muster_state_copy_progress(copy)->resumed, 0, 1 << 20);
    assert_file_is(&s.models[2]);
    muster_state_copy_free(copy);
    (void)unlink(stream_file);
    close_forgetful(&s, 1);
    close_forgetful(&s, 2);
    swarm_close(&s);
}

static long peak_kib(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    char line[128];
    long kib = 0;

    while (fgets(line, sizeof(line), file) != NULL) {
        (void)sscanf(line, "VmHWM: %ld", &kib);
    }
    (void)fclose(file);
    return kib;
}

/* The load's memory does not grow with the state. */
static void test_swarm_hivemind_load_takes_little_memory(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;
    long before;

    (void)state;
    swarm_open(&s, 1);
    grow(&s, 1, 64);
    share(&s, 1, 7);
    forget_native(s.peers[1]);
    r = into_file(&s);
    before = peak_kib();
    must(muster_state_load(taker, &r, &copy));
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
    assert_in_range(peak_kib() - before, 0, 32 << 10);
#else
    (void)before;
#endif
    assert_int_equal(muster_state_copy_progress(copy)->total, muster_state_copy_info(copy)->bytes);
    muster_state_copy_free(copy);
    assert_file_is(&s.models[1]);
    (void)unlink(stream_file);
    close_forgetful(&s, 1);
    swarm_close(&s);
}

/* More tensors than room was left for in the head: the file is right all the same, and what it
 * gives to others is what came. */
static void test_swarm_hivemind_load_of_many_tensors(void **state)
{
    enum { COUNT = 1500 };
    static float values[COUNT];
    static char names[COUNT][16];
    struct muster_tensor tensors[COUNT];
    struct muster_state_request r;
    struct muster_state_source source;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 1);
    for (size_t i = 0; i < COUNT; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "tensor.%zu", i);
        values[i] = (float)i;
        tensors[i] =
            (struct muster_tensor){.name = names[i], .dtype = MUSTER_DTYPE_F32, .data = &values[i]};
    }
    source = source_of(&s.models[1], 7);
    source.tensors = tensors;
    source.tensor_count = COUNT;
    must(muster_state_share(s.peers[1], &source));
    await_declared(s.peers[1], 1);
    forget_native(s.peers[1]);
    r = into_file(&s);
    must(muster_state_load(taker, &r, &copy));
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(*(float *)muster_state_copy_tensor(copy, i).data == (float)i);
    }
    muster_state_copy_free(copy);
    memset(values, 0, sizeof(values));
    must(muster_state_read(stream_file, tensors, COUNT));
    for (size_t i = 0; i < COUNT; i++) {
        assert_true(values[i] == (float)i);
    }
    (void)unlink(stream_file);
    close_forgetful(&s, 1);
    swarm_close(&s);
}

/* A hivemind donor that fails leaves the file to the donors that speak the native wire. */
static void test_swarm_hivemind_load_that_fails_leaves_the_file_to_others(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 4);
    grow(&s, 2, 8);
    share(&s, 1, 7);
    share(&s, 2, 9);
    forget_native(s.peers[2]);
    r = into_file(&s);
    r.bytes_max = (4 << 20) + (1 << 19); /* room for the native one, and half of the other */
    must(muster_state_load(taker, &r, &copy));
    assert_int_equal(muster_state_copy_info(copy)->epoch, 7);
    copy_assert_same(copy, &s.models[1]);
    muster_state_copy_free(copy);
    (void)unlink(stream_file);
    close_forgetful(&s, 2);
    swarm_close(&s);
}

/* Metadata of a trainer: epoch 7, a value, and the last of the three tensors. */
static const uint8_t trained[] = "\x82\xa5"
                                 "epoch\x07\xb2"
                                 "optimizer_metadata\x92\x82\xa4"
                                 "type\xa5"
                                 "value\xa5"
                                 "value\x05\x82\xa4"
                                 "type\xa6"
                                 "tensor\xa5"
                                 "index\x00";

static struct muster_state_source trained_of(const struct model *m)
{
    struct muster_state_source source = source_of(m, 0);

    source.metadata = (struct muster_bytes){trained, sizeof(trained) - 1};
    return source;
}

static void test_swarm_trainers_get_only_what_they_can_load(void **state)
{
    struct muster_state_source source;
    struct muster_state_info info;
    struct swarm s;

    (void)state;
    averager = TRAINER;
    swarm_open(&s, 1);
    source = source_of(&s.models[1], 7);
    assert_int_equal(muster_state_share(s.peers[1], &source), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "no optimizer_metadata"));
    assert_int_equal(muster_state_shared(s.peers[1], PREFIX, &info), MUSTER_ENOENT);
    /* The metadata says which epoch it is. */
    source = trained_of(&s.models[1]);
    source.epoch = 8;
    assert_int_equal(muster_state_share(s.peers[1], &source), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "epoch 7"));
    source.epoch = 7;
    source.priority = 9;
    assert_int_equal(muster_state_share(s.peers[1], &source), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "priority"));
    source = trained_of(&s.models[1]);
    must(muster_state_share(s.peers[1], &source));
    must(muster_state_shared(s.peers[1], PREFIX, &info));
    assert_true(info.epoch == 7 && info.priority == 7);
    assert_int_equal(muster_state_set(s.peers[1], PREFIX, 8, false), MUSTER_EINVAL);
    must(muster_state_set(s.peers[1], PREFIX, 7, true));
    swarm_close(&s);
    averager = AVERAGER;
}

/* What a trainer gave, kept in a file, is given to the next trainer as the first gave it. */
static void test_swarm_file_of_a_trainer_is_given_to_others(void **state)
{
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = PREFIX};
    struct muster_state_request r;
    muster_state_copy *copy;
    char file[64];
    struct swarm s;

    (void)state;
    averager = TRAINER;
    swarm_open(&s, 2);
    (void)snprintf(file, sizeof(file), "/tmp/muster-trained-%d.safetensors", (int)getpid());
    for (size_t i = 1; i < 3; i++) {
        struct muster_state_source first = trained_of(&s.models[1]);

        must(i == 1 ? muster_state_share(s.peers[1], &first)
                    : muster_state_share_file(s.peers[2], file, &source));
        await_declared(s.peers[i], 1);
        forget_native(s.peers[i]);
        r = from(&s);
        r.file = i == 1 ? file : NULL;
        must(muster_state_load(taker, &r, &copy));
        assert_true(muster_state_copy_progress(copy)->hivemind);
        assert_int_equal(muster_state_copy_info(copy)->epoch, 7);
        assert_int_equal(muster_state_copy_metadata(copy).len, sizeof(trained) - 1);
        assert_memory_equal(muster_state_copy_metadata(copy).data, trained, sizeof(trained) - 1);
        for (size_t k = 0; k < 3; k++) {
            assert_memory_equal(muster_state_copy_tensor(copy, k).data, s.models[1].tensors[k].data,
                                muster_tensor_bytes(&s.models[1].tensors[k]));
        }
        muster_state_copy_free(copy);
        close_forgetful(&s, i);
    }
    (void)unlink(file);
    swarm_close(&s);
    averager = AVERAGER;
}

static void test_swarm_newer_of_native_and_hivemind_wins(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 1);
    share(&s, 1, 7);
    share(&s, 2, 9);
    forget_native(s.peers[2]);
    r = from(&s);
    must(muster_state_load(taker, &r, &copy));
    assert_int_equal(muster_state_copy_info(copy)->epoch, 9);
    muster_state_copy_free(copy);
    share(&s, 1, 11);
    must(muster_state_load(taker, &r, &copy));
    assert_int_equal(muster_state_copy_info(copy)->epoch, 11);
    copy_assert_same(copy, &s.models[1]);
    muster_state_copy_free(copy);
    close_forgetful(&s, 2);
    swarm_close(&s);
}

/* Somebody who died without a word: the entry in the DHT is all that is left. */
struct ghost {
    struct mu_door door;
    struct mu_state_swarm *swarm;
    struct mu_identity identity;
    double priority;
    struct mu_dht_wish wish;
};

static void on_ghost_stored(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    assert_int_equal(op->status, 0);
    mu_door_open(&MU_CONTAINER_OF(wish, struct ghost, wish)->door);
}

static void store_ghost(struct mu_door *door)
{
    struct ghost *g = MU_CONTAINER_OF(door, struct ghost, door);
    struct mu_dht_service *dht = mu_state_swarm_dht(g->swarm);
    struct mu_dht_put put = {.expiration = mu_dht_service_time(dht) + 30};
    struct mu_buf subkey;
    struct mu_buf value;
    struct mu_mp_out out;

    mu_buf_init(&subkey, 128);
    mu_buf_init(&value, 16);
    out = mu_mp_out(&subkey);
    mu_mp_put_bin(&out, mu_peer_id_span(&g->identity.id));
    out = mu_mp_out(&value);
    mu_mp_put_double(&out, g->priority);
    assert_int_equal(mu_hm_all_averagers(PREFIX, &put.key), 0);
    put.subkey = mu_buf_span(&subkey);
    put.value = mu_buf_span(&value);
    g->wish.done = on_ghost_stored;
    assert_int_equal(mu_dht_service_store(dht, &g->wish, &put, 1), 0);
    mu_buf_fini(&subkey);
    mu_buf_fini(&value);
}

static void test_swarm_dead_donor_is_passed_over_and_named(void **state)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN] = {66};
    struct muster_state_request r;
    muster_state_copy *copy;
    struct ghost g = {.priority = 30};
    char id[MU_PEER_ID_TEXT_MAX];
    struct swarm s;

    (void)state;
    swarm_open(&s, 1);
    share(&s, 1, 3);
    assert_int_equal(mu_identity_from_seed(&g.identity, seed), 0);
    g.swarm = s.peers[0]->node.swarm;
    mu_door_pass(giver, &g.door, store_ghost);
    r = from(&s);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &s.models[1]);
    assert_non_null(strstr(muster_state_report(), mu_peer_id_format(&g.identity.id, id)));
    muster_state_copy_free(copy);

    /* With nobody else there it says who could not be asked. */
    assert_int_equal(muster_state_unshare(s.peers[1], PREFIX, 0), 0);
    await_declared(s.peers[1], 2);
    r.connect_ms = 1000;
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ECONN);
    assert_non_null(strstr(muster_errmsg(), id));
    mu_identity_fini(&g.identity);
    swarm_close(&s);
}

static bool on_half(void *context, const struct muster_state_progress *p)
{
    if (p->total != 0 && p->bytes > p->total / 4) {
        atomic_store((atomic_bool *)context, true);
    }
    return true;
}

static void test_swarm_donor_that_leaves_in_the_middle_is_done_without(void **state)
{
    struct muster_state_source source;
    struct muster_state_request r;
    muster_state_loading *loading;
    muster_state_copy *copy;
    atomic_bool half = false;
    struct swarm s;

    (void)state;
    swarm_open(&s, 16);
    for (size_t i = 1; i < 3; i++) {
        struct mu_state_gate_config gate = mu_state_donor_config_defaults().gate;

        source = source_of(&s.models[0], 5);
        must(muster_state_share(s.peers[i], &source));
        await_declared(s.peers[i], 1);
        gate.bytes_per_s = 12u << 20;
        limit(s.peers[i], &gate);
    }
    r = from(&s);
    r.progress = on_half;
    r.progress_ms = 10;
    r.context = &half;
    must(muster_state_load_begin(taker, &r, &loading));
    while (!atomic_load(&half)) {
        struct timespec pause = {.tv_nsec = 1000000};

        (void)nanosleep(&pause, NULL);
    }
    muster_state_close(s.peers[2]);
    s.peers[2] = NULL;
    must(muster_state_load_end(loading, &copy));
    copy_assert_same(copy, &s.models[0]);
    assert_true(muster_state_copy_progress(copy)->lost >= 1);
    muster_state_copy_free(copy);
    swarm_close(&s);
}

static void test_swarm_other_layout_is_refused_before_anything_is_written(void **state)
{
    struct muster_state_request r;
    struct model mine;
    struct model kept;
    struct swarm s;

    (void)state;
    swarm_open(&s, 2);
    share(&s, 1, 7);
    model_make(&mine, 2, 50);
    model_make(&kept, 2, 50);
    mine.shapes[1][0]--;
    r = from(&s);
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "head.weight"));
    forget_native(s.peers[1]);
    assert_int_equal(muster_state_load(taker, &r, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "head.weight"));
    mine.shapes[1][0]++;
    model_assert_same(&mine, &kept);
    close_forgetful(&s, 1);
    model_free(&mine);
    model_free(&kept);
    swarm_close(&s);
}

static void test_swarm_newest_of_another_model_is_passed_over(void **state)
{
    struct muster_state_request r;
    struct muster_state_stats stats;
    struct model mine;
    struct swarm s;

    (void)state;
    swarm_open(&s, 1);
    model_free(&s.models[2]);
    model_make(&s.models[2], 2, 2);
    share(&s, 1, 7);
    share(&s, 2, 9);
    forget_native(s.peers[2]);
    model_make(&mine, 1, 50);
    r = from(&s);
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    must(muster_state_load(taker, &r, NULL));
    model_assert_same(&mine, &s.models[1]);
    assert_non_null(strstr(muster_state_report(), "priority 9"));
    muster_state_stats(s.peers[1], &stats);
    assert_int_equal(stats.downloads, 1);
    assert_int_equal(stats.hivemind_downloads, 0); /* Who speaks more is not asked for less. */
    close_forgetful(&s, 2);
    model_free(&mine);
    swarm_close(&s);
}

static void test_swarm_peer_loads_through_its_own_place(void **state)
{
    struct muster_state_request r;
    muster_state_copy *copy;
    struct swarm s;

    (void)state;
    swarm_open(&s, 2);
    share(&s, 0, 4);
    share(&s, 1, 6);
    share(&s, 2, 5); /* Itself it leaves out, even if it is newer. */
    r = from(&s);
    r.dht = NULL;
    r.through = s.peers[1];
    must(muster_state_load(giver, &r, &copy));
    copy_assert_same(copy, &s.models[2]);
    assert_null(
        strstr(muster_state_report(), strstr(muster_state_address(s.peers[1]), "/p2p/") + 5));
    muster_state_copy_free(copy);
    swarm_close(&s);
}

static void test_swarm_without_hivemind_is_declared_and_withdrawn_alike(void **state)
{
    struct muster_state_config config;
    struct muster_state_source source;
    struct muster_state_request r;
    muster_state_copy *copy;
    muster_state *peer;
    struct swarm s;

    (void)state;
    swarm_open(&s, 1);
    config = in_swarm(&s);
    config.hivemind = NULL;
    must(muster_state_open(giver, &config, &peer));
    source = source_of(&s.models[0], 8);
    must(muster_state_share(peer, &source));
    await_declared(peer, 1);
    r = from(&s);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &s.models[0]);
    muster_state_copy_free(copy);
    assert_int_equal(muster_state_unshare(peer, PREFIX, 0), 0);
    await_declared(peer, 2);
    assert_int_equal(muster_state_load(taker, &r, &copy), MUSTER_ENOENT);
    assert_string_equal(muster_state_report(), ""); /* The DHT knows of nobody. */
    muster_state_close(peer);
    swarm_close(&s);
}

static void test_swarm_list_has_a_row_for_each(void **state)
{
    struct muster_state_row rows[4];
    struct muster_state_request r;
    bool native = false;
    bool hivemind = false;
    struct swarm s;

    (void)state;
    swarm_open(&s, 1);
    share(&s, 1, 7);
    share(&s, 2, 9);
    forget_native(s.peers[2]);
    r = from(&s);
    assert_int_equal(muster_state_list(taker, &r, rows, 4), 2);
    for (size_t i = 0; i < 2; i++) {
        native = native || (!rows[i].hivemind && rows[i].info.epoch == 7);
        hivemind = hivemind || (rows[i].hivemind && rows[i].info.priority == 9);
        assert_int_equal(rows[i].status, 0);
    }
    assert_true(native && hivemind);
    close_forgetful(&s, 2);
    swarm_close(&s);
}

static void test_swarm_what_cannot_be_is_said(void **state)
{
    struct muster_state_config config = muster_state_config_defaults();
    const char *nobody[] = {
        "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWD3eckifWpRn9wQpMG9R9hX3sD158z7EqHWmweQAJU5SA"};
    struct muster_state_source source;
    muster_state *peer;
    struct swarm s;

    (void)state;
    config.dht = nobody;
    config.dht_count = 1;
    assert_int_equal(muster_state_open(giver, &config, &peer), MUSTER_EINVAL);
    config.key = "";
    config.listen = "/ip4/127.0.0.1/tcp/0";
    assert_int_equal(muster_state_open(giver, &config, &peer), MUSTER_EDHT_NOBODY);
    config.encoding = "TINY";
    assert_int_equal(muster_state_open(giver, &config, &peer), MUSTER_EINVAL);
    swarm_open(&s, 1);
    source = source_of(&s.models[0], 1);
    source.prefix = "a.dot";
    assert_int_equal(muster_state_share(s.peers[0], &source), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "dot"));
    swarm_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_swarm_newest_state_is_found_in_the_dht),
        cmocka_unit_test(test_swarm_native_donors_serve_at_once),
        cmocka_unit_test(test_swarm_hivemind_donor_gives_its_state_in_place),
        cmocka_unit_test(test_swarm_hivemind_load_keeps_what_came),
        cmocka_unit_test(test_swarm_hivemind_load_takes_little_memory),
        cmocka_unit_test(test_swarm_hivemind_load_of_many_tensors),
        cmocka_unit_test(test_swarm_hivemind_load_that_fails_leaves_the_file_to_others),
        cmocka_unit_test(test_swarm_trainers_get_only_what_they_can_load),
        cmocka_unit_test(test_swarm_file_of_a_trainer_is_given_to_others),
        cmocka_unit_test(test_swarm_newer_of_native_and_hivemind_wins),
        cmocka_unit_test(test_swarm_dead_donor_is_passed_over_and_named),
        cmocka_unit_test(test_swarm_donor_that_leaves_in_the_middle_is_done_without),
        cmocka_unit_test(test_swarm_other_layout_is_refused_before_anything_is_written),
        cmocka_unit_test(test_swarm_newest_of_another_model_is_passed_over),
        cmocka_unit_test(test_swarm_peer_loads_through_its_own_place),
        cmocka_unit_test(test_swarm_without_hivemind_is_declared_and_withdrawn_alike),
        cmocka_unit_test(test_swarm_list_has_a_row_for_each),
        cmocka_unit_test(test_swarm_what_cannot_be_is_said),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
