/* States from peers, from inside: donors that lie, and connections that are sealed. */
#include "state_rig.h"

#include <unistd.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "certs.h"
#include "own_network.h"
#include "service/state/donor_internal.h"
#include "skipped.h"

static muster_runtime *giver;
static muster_runtime *taker;
static const char *address; /* not loopback's */

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

/* Two donors: the first one is made to lie, the second one has an older state, or the same. */
struct pair {
    struct model models[2];
    muster_state *donors[2];
    const char *addrs[2];
};

static void pair_open(struct pair *p, uint64_t first_epoch, uint64_t second_epoch)
{
    struct muster_state_config config = muster_state_config_defaults();

    config.listen = "127.0.0.1:0";
    model_make(&p->models[0], 3, first_epoch);
    model_make(&p->models[1], 3, second_epoch);
    p->donors[0] = donor_open(giver, &config, &p->models[0], first_epoch);
    p->donors[1] = donor_open(giver, &config, &p->models[1], second_epoch);
    p->addrs[0] = muster_state_address(p->donors[0]);
    p->addrs[1] = muster_state_address(p->donors[1]);
}

static void pair_close(struct pair *p)
{
    for (size_t i = 0; i < 2; i++) {
        muster_state_close(p->donors[i]);
        model_free(&p->models[i]);
    }
}

/* Changes what a donor gives out, on its own thread. */
struct change {
    struct mu_door door;
    muster_state *donor;
    void (*run)(struct mu_state_share *share);
};

static void run_change(struct mu_door *door)
{
    struct change *c = MU_CONTAINER_OF(door, struct change, door);
    struct mu_state_share *share = mu_state_donor_find(c->donor->donor, mu_span_str("job"));

    c->run(share);
    mu_door_open(door);
}

static void change(muster_state *donor, void (*run)(struct mu_state_share *share))
{
    struct change c = {.donor = donor, .run = run};

    mu_door_pass(donor->rt, &c.door, run_change);
}

static void lie_about_version(struct mu_state_share *share)
{
    share->offer.manifest.epoch = 9; /* The offer's bytes say 1. */
    share->priority = 9;
}

static void give_another_id(struct mu_state_share *share)
{
    share->id[7] ^= 1; /* It is asked for this, and its offer is another one. */
}

static void spoil_signature(struct mu_state_share *share)
{
    ((uint8_t *)(uintptr_t)share->offer.signature.data)[3] ^= 1;
}

/* Another's word for this state, to be shown in the list; the offer has its own. */
static struct {
    struct mu_identity signer;
    uint8_t signature[MU_IDENTITY_SIG_LEN_MAX];
} borrowed;

static void borrow_signature(struct mu_state_share *share)
{
    uint8_t message[13 + MU_STATE_ID_LEN] = "muster-state:";
    struct mu_buf signature;

    memcpy(message + 13, share->id, MU_STATE_ID_LEN);
    mu_buf_init(&signature, sizeof(borrowed.signature));
    assert_int_equal(
        mu_identity_sign(&borrowed.signer, mu_span(message, sizeof(message)), &signature), 0);
    memcpy(borrowed.signature, mu_buf_span(&signature).data, signature.len);
    share->offer.public_key = mu_buf_span(&borrowed.signer.public_key);
    share->offer.signature = mu_span(borrowed.signature, signature.len);
    mu_buf_fini(&signature);
}

static void spoil_leaf(struct mu_state_share *share)
{
    ((uint8_t *)(uintptr_t)share->offer.leaves.data)[3] ^= 1;
}

static void have_nothing(struct mu_state_share *share)
{
    static const uint8_t nothing[8] = {0};

    share->have_count = 0;
    share->have = nothing;
}

static void load_from_both(struct pair *p, const struct model *expected, uint32_t banned)
{
    struct muster_state_request r = muster_state_request_defaults();
    muster_state_copy *copy;

    r.prefix = "job";
    r.donors = p->addrs;
    r.donor_count = 2;
    r.timeout_ms = 20000;
    if (muster_state_load(taker, &r, &copy) != 0) {
        fail_msg("%s\n%s", muster_errmsg(), muster_state_report());
    }
    copy_assert_same(copy, expected);
    assert_int_equal(muster_state_copy_progress(copy)->banned, banned);
    muster_state_copy_free(copy);
}

static void test_donor_that_lies_about_its_version_is_passed_over(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, 1, 5);
    change(p.donors[0], lie_about_version);
    load_from_both(&p, &p.models[1], 1);
    assert_non_null(strstr(muster_state_report(), "another version"));
    pair_close(&p);
}

static void test_donor_that_gives_out_another_manifest_is_passed_over(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, 6, 5);
    change(p.donors[0], give_another_id);
    load_from_both(&p, &p.models[1], 1);
    pair_close(&p);
}

static void test_offer_with_a_wrong_signature_or_leaf_is_passed_over(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, 6, 5);
    change(p.donors[0], spoil_signature);
    load_from_both(&p, &p.models[1], 1);
    pair_close(&p);
    pair_open(&p, 6, 5);
    change(p.donors[0], spoil_leaf);
    load_from_both(&p, &p.models[1], 1);
    pair_close(&p);
}

static void test_donor_that_lists_anothers_signature_is_passed_over(void **state)
{
    static const uint8_t seed[MU_IDENTITY_SEED_LEN] = {3};
    struct muster_state_request r = muster_state_request_defaults();
    char signer[MU_PEER_ID_TEXT_MAX];
    const char *trusted = signer;
    struct pair p;
    muster_state_copy *copy;

    (void)state;
    assert_int_equal(mu_identity_from_seed(&borrowed.signer, seed), 0);
    (void)mu_peer_id_format(&borrowed.signer.id, signer);
    pair_open(&p, 6, 5);
    change(p.donors[0], borrow_signature);
    r.prefix = "job";
    r.donors = p.addrs;
    r.donor_count = 2;
    r.trust = &trusted;
    r.trust_count = 1;
    assert_true(muster_state_load(taker, &r, &copy) < 0);
    assert_non_null(strstr(muster_state_report(), "not signed by the signer that it listed"));
    pair_close(&p);
    mu_identity_fini(&borrowed.signer);
}

static void test_donor_that_says_it_has_what_it_has_not_is_asked_no_more(void **state)
{
    struct pair p;

    (void)state;
    pair_open(&p, 5, 5);
    change(p.donors[0], have_nothing);
    load_from_both(&p, &p.models[1], 0);
    pair_close(&p);
}

static void test_part_of_which_nothing_came_is_removed(void **state)
{
    char dir[] = "/tmp/muster-part-XXXXXX";
    struct muster_state_request r = muster_state_request_defaults();
    char file[64];
    char part[64];
    struct pair p;
    muster_state_copy *copy;
    FILE *old;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(file, sizeof(file), "%s/m", dir);
    (void)snprintf(part, sizeof(part), "%s/m.part", dir);
    pair_open(&p, 6, 5);
    change(p.donors[0], have_nothing);
    r.prefix = "job";
    r.donors = p.addrs;
    r.donor_count = 1;
    r.idle_ms = 400;
    r.file = file;
    assert_true(muster_state_load(taker, &r, &copy) < 0);
    assert_int_not_equal(access(part, F_OK), 0);
    /* One that was there before may have something in it still. */
    old = fopen(part, "w");
    assert_true(old != NULL && fputs("from the last time", old) >= 0 && fclose(old) == 0);
    assert_true(muster_state_load(taker, &r, &copy) < 0);
    assert_int_equal(unlink(part), 0);
    assert_int_equal(rmdir(dir), 0);
    pair_close(&p);
}

/* --- addresses -------------------------------------------------------------------------------- */

/* The donor tells of somebody else who has the state, at this address. */
struct tale {
    struct mu_door door;
    muster_state *donor;
    const char *addr;
};

static void run_tale(struct mu_door *door)
{
    struct tale *t = MU_CONTAINER_OF(door, struct tale, door);
    struct mu_state_donor *d = t->donor->donor;
    struct mu_state_given *given = MU_CONTAINER_OF(d->given_list.next, struct mu_state_given, link);
    struct mu_state_member *member = mu_calloc(1, sizeof(*member));
    static struct mu_state_client nobody;

    assert_non_null(member);
    member->client = &nobody;
    member->addr_len = strlen(t->addr);
    memcpy(member->addr, t->addr, member->addr_len);
    member->until = MU_MONO_NEVER;
    mu_list_init(&member->link);
    mu_list_push(&given->swarm, &member->link);
    given->swarm_count++;
    mu_door_open(door);
}

/* A port of loopback where nobody should call. */
static int listen_here(char *text, size_t cap)
{
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&addr, len) == 0 && listen(fd, 8) == 0 &&
                getsockname(fd, (struct sockaddr *)&addr, &len) == 0);
    (void)snprintf(text, cap, "127.0.0.1:%u", (unsigned)ntohs(addr.sin_port));
    return fd;
}

/* Whether somebody called while a state was loaded from a donor that listens at `listen`. */
static bool is_lured(const char *listen)
{
    const struct muster_lock lock = {.size = sizeof(struct muster_lock), .insecure = true};
    struct muster_runtime_config open = {.size = sizeof(struct muster_runtime_config),
                                         .lock = &lock};
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_state_request r = muster_state_request_defaults();
    muster_state_copy *copy;
    muster_runtime *rt;
    struct tale tale;
    struct model m;
    const char *addr;
    char text[32];
    int fd = listen_here(text, sizeof(text));
    bool called;

    assert_int_equal(muster_runtime_new_with(&open, &rt), 0);
    config.listen = listen;
    config.rate_bytes = 4 << 20;
    model_make(&m, 6, 1);
    tale = (struct tale){.donor = donor_open(rt, &config, &m, 1), .addr = text};
    mu_door_pass(rt, &tale.door, run_tale);
    addr = muster_state_address(tale.donor);
    r.prefix = "job";
    r.donors = &addr;
    r.donor_count = 1;
    r.timeout_ms = 20000;
    if (muster_state_load(taker, &r, &copy) != 0) {
        fail_msg("%s\n%s", muster_errmsg(), muster_state_report());
    }
    called = accept(fd, NULL, NULL) >= 0;
    (void)close(fd);
    muster_state_copy_free(copy);
    muster_state_close(tale.donor);
    muster_runtime_free(rt);
    model_free(&m);
    return called;
}

static void test_donor_cannot_have_us_dial_our_own_host(void **state)
{
    char text[64];

    (void)state;
    if (address == NULL) {
        skip_saying("there is no address but loopback's");
    }
    (void)snprintf(text, sizeof(text), "%s:0", address);
    assert_false(is_lured(text));
    /* Whose donor is on this host has others there, too. */
    assert_true(is_lured("127.0.0.1:0"));
}

/* A size that no disk has: nothing is taken of the one that there is. */
static void test_claimed_size_takes_no_disk(void **state)
{
    char dir[] = "/tmp/muster-claim-XXXXXX";
    char file[64];
    char part[64];
    struct mu_state_target target = {.file = file, .part = part};
    struct mu_state_offer offer;
    struct mu_state_plan plan = {.offer = &offer};
    struct mu_errmsg msg;

    (void)state;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(file, sizeof(file), "%s/file", dir);
    (void)snprintf(part, sizeof(part), "%s/file.part", dir);
    mu_state_offer_init(&offer);
    offer.manifest.layout.bytes = (uint64_t)1 << 50;
    offer.manifest.chunk_bytes = MU_STATE_CHUNK_BYTES;
    assert_int_equal(mu_state_target_accept(&target, &plan, &msg), MUSTER_ELIMIT);
    assert_non_null(strstr(msg.text, "--max-size"));
    assert_int_equal(rmdir(dir), 0); /* there is nothing in it */
    offer.manifest.layout.bytes = 0;
    mu_state_offer_fini(&offer);
}

/* --- the lock --------------------------------------------------------------------------------- */

static char directory[64];

/* `leaf` NULL: no credential. */
static muster_runtime *runtime_with(const char *leaf, const char *ca)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();
    char paths[3][128];
    struct muster_lock none = muster_lock_defaults();
    struct muster_lock lock = {
        .size = sizeof(struct muster_lock), .cert = paths[0], .key = paths[1], .ca = paths[2]};
    muster_runtime *rt;

    (void)snprintf(paths[0], sizeof(paths[0]), "%s/%s.pem", directory, leaf == NULL ? "" : leaf);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s.key", directory, leaf == NULL ? "" : leaf);
    (void)snprintf(paths[2], sizeof(paths[2]), "%s/%s.pem", directory, leaf == NULL ? "" : ca);
    config.lock = leaf == NULL ? &none : &lock;
    assert_int_equal(muster_runtime_new_with(&config, &rt), 0);
    return rt;
}

/* Loads with that credential; `why` NULL: and gets it. Otherwise the report of the donor says so.
 */
static void load_as(const char *leaf, const char *ca, const char *addr, const struct model *m,
                    const char *why)
{
    struct muster_state_request r = muster_state_request_defaults();
    muster_runtime *rt = runtime_with(leaf, ca);
    muster_state_copy *copy;
    int err;

    r.donors = &addr;
    r.donor_count = 1;
    r.connect_ms = 1000;
    err = muster_state_load(rt, &r, &copy);
    if ((err == 0) != (why == NULL) ||
        (why != NULL && strstr(muster_state_report(), why) == NULL)) {
        fail_msg("%s: %s\n%s", leaf == NULL ? "nothing" : leaf, muster_errmsg(),
                 muster_state_report());
    }
    if (err == 0) {
        copy_assert_same(copy, m);
        muster_state_copy_free(copy);
    }
    muster_runtime_free(rt);
}

static void test_state_travels_locked_and_not_to_strangers(void **state)
{
    static const char *const files[] = {"ca", "other", "node", "stray", NULL};
    struct muster_state_config config = muster_state_config_defaults();
    struct cert_authority ca;
    struct cert_authority other;
    muster_runtime *rt;
    muster_state *donor;
    char text[64];
    struct model m;

    (void)state;
    if (address == NULL) {
        skip_saying("there is no address but loopback's");
    }
    (void)snprintf(directory, sizeof(directory), "/tmp/muster-state-XXXXXX");
    assert_non_null(mkdtemp(directory));
    (void)snprintf(text, sizeof(text), "IP:%s", address);
    certs_authority(&ca, directory, "ca");
    certs_authority(&other, directory, "other");
    certs_leaf(&ca, directory, "node", text, 3600);
    certs_leaf(&other, directory, "stray", text, 3600);
    (void)snprintf(text, sizeof(text), "%s:0", address);
    config.listen = text;
    assert_int_equal(muster_state_open(giver, &config, &donor), MUSTER_ELOCKED);
    rt = runtime_with("node", "ca");
    model_make(&m, 4, 1);
    donor = donor_open(rt, &config, &m, 1);
    assert_string_equal(muster_state_transport(donor), "lock");
    load_as("node", "ca", muster_state_address(donor), &m, NULL);
    load_as("stray", "other", muster_state_address(donor), &m, "is not accepted");
    load_as("stray", "ca", muster_state_address(donor), &m, "the other end refuses us");
    load_as(NULL, NULL, muster_state_address(donor), &m, "wants the job's credential");
    muster_state_close(donor);
    /* Loopback is open. */
    config.listen = "127.0.0.1:0";
    donor = donor_open(rt, &config, &m, 1);
    load_as(NULL, NULL, muster_state_address(donor), &m, NULL);
    load_as("stray", "other", muster_state_address(donor), &m, NULL);
    muster_state_close(donor);
    model_free(&m);
    muster_runtime_free(rt);
    certs_authority_free(&ca);
    certs_authority_free(&other);
    certs_remove(directory, files);
}

/* A file that is shared encrypted is read, not mapped memory: cut short, it costs its donor the
 * download and nobody their process. */
static void test_file_that_is_cut_short_ends_the_download_only(void **state)
{
    static const char head[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[8000000],\"data_offsets\":[0,8000000]}}";
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = "job"};
    struct muster_state_request r = muster_state_request_defaults();
    char path[] = "/tmp/muster-state-XXXXXX";
    uint64_t len = sizeof(head) - 1;
    uint8_t *data = malloc(8000000);
    muster_state_copy *copy;
    muster_state *donor;
    const char *addr;
    int fd = mkstemp(path);

    (void)state;
    model_fill(data, 8000000, 1);
    assert_int_equal(write(fd, &len, 8), 8);
    assert_int_equal(write(fd, head, len), len);
    assert_int_equal(write(fd, data, 8000000), 8000000);
    for (int peers = 0; peers < 2; peers++) {
        config.listen = peers ? "/ip4/127.0.0.1/tcp/0" : "127.0.0.1:0";
        config.key = peers ? "" : NULL;
        assert_int_equal(ftruncate(fd, (off_t)len + 8 + 8000000), 0);
        assert_int_equal(pwrite(fd, data, 8000000, (off_t)len + 8), 8000000);
        assert_int_equal(muster_state_open(giver, &config, &donor), 0);
        assert_int_equal(muster_state_share_file(donor, path, &source), 0);
        assert_int_equal(ftruncate(fd, 4000000), 0);
        addr = muster_state_address(donor);
        r.donors = &addr;
        r.donor_count = 1;
        r.idle_ms = 1500;
        r.connect_ms = 1000;
        assert_true(muster_state_load(taker, &r, &copy) != 0);
        muster_state_close(donor);
    }
    free(data);
    (void)close(fd);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_donor_that_lies_about_its_version_is_passed_over),
        CASE(test_donor_that_gives_out_another_manifest_is_passed_over),
        CASE(test_offer_with_a_wrong_signature_or_leaf_is_passed_over),
        CASE(test_donor_that_lists_anothers_signature_is_passed_over),
        CASE(test_donor_that_says_it_has_what_it_has_not_is_asked_no_more),
        CASE(test_part_of_which_nothing_came_is_removed),
        CASE(test_donor_cannot_have_us_dial_our_own_host),
        CASE(test_claimed_size_takes_no_disk),
        CASE(test_state_travels_locked_and_not_to_strangers),
        CASE(test_file_that_is_cut_short_ends_the_download_only),
    };

    address = own_network();
    return skipped_or(cmocka_run_group_tests(tests, NULL, NULL));
}
