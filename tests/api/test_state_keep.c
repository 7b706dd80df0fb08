/*
 * States that the agent keeps. What a worker has inherited is read once in a process, so each
 * worker here is a process of its own; this one is its agent, with the vaults.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/muster.h>

#include "codec/state/kept.h"
#include "transport/vault.h"

#define FD    700
#define VAULT ((uint64_t)16 << 20)
#define COUNT ((uint64_t)1 << 20) /* of the large tensor */

static struct mu_vault vaults[MU_KEPT_VAULTS];
static struct mu_kept_terms terms;

static int up(void **state)
{
    (void)state;
    terms = (struct mu_kept_terms){.fd = FD, .bytes = VAULT, .era = 4, .nonce = 9, .world = 2};
    for (int i = 0; i < MU_KEPT_VAULTS; i++) {
        assert_int_equal(mu_vaults_real.make(VAULT, &vaults[i]), 0);
    }
    return 0;
}

static int down(void **state)
{
    (void)state;
    for (int i = 0; i < MU_KEPT_VAULTS; i++) {
        mu_vaults_real.drop(&vaults[i]);
    }
    return 0;
}

/* --- workers ---------------------------------------------------------------------------------- */

/* The state of a worker at a step: all of it follows from the step. */
static uint64_t small[3];
static uint32_t *large;
static const uint64_t small_shape[] = {3};
static const uint64_t large_shape[] = {2, COUNT / 2};
static struct muster_tensor tensors[3] = {
    {.name = "a", .dtype = MUSTER_DTYPE_U64, .rank = 1, .shape = small_shape, .data = small},
    {.name = "b/none", .dtype = MUSTER_DTYPE_U8, .rank = 1, .shape = (const uint64_t[]){0}},
    {.name = "c", .dtype = MUSTER_DTYPE_U32, .rank = 2, .shape = large_shape},
};

static void fill(uint64_t step)
{
    large = large == NULL ? malloc(COUNT * sizeof(*large)) : large;
    tensors[2].data = large;
    small[0] = small[1] = small[2] = step * 3;
    for (size_t i = 0; i < COUNT; i++) {
        large[i] = (uint32_t)(step * 7 + i);
    }
}

static bool is_at(uint64_t step)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (large[i] != (uint32_t)(step * 7 + i)) {
            return false;
        }
    }
    return small[0] == step * 3 && small[2] == step * 3;
}

static int keep(uint64_t step)
{
    struct muster_state_keep_request request = muster_state_keep_request_defaults();

    request.tensors = tensors;
    request.tensor_count = 3;
    request.step = step;
    return muster_state_keep(&request);
}

/* Ends the process if something is not as it should be. */
static void must(bool holds, int line)
{
    if (!holds) {
        (void)fprintf(stderr, "line %d: %s\n", line, muster_errmsg());
        _exit(line > 255 ? line % 200 + 1 : line);
    }
}
#define MUST(holds) must((holds), __LINE__)

static pid_t start(void (*work)(void), const struct mu_vault *source)
{
    char text[MU_KEPT_TERMS_LEN_MAX + 1];
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid != 0) {
        return pid;
    }
    for (int i = 0; i < MU_KEPT_VAULTS; i++) {
        (void)dup2((int)vaults[i].handle, FD + i);
    }
    if (source != NULL) {
        (void)dup2((int)source->handle, FD + MU_KEPT_VAULTS);
    }
    (void)mu_kept_terms_encode(&terms, text);
    (void)setenv("MUSTER_VAULTS", text, 1);
    work();
    _exit(0);
}

static int end_of(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void run(void (*work)(void), const struct mu_vault *source)
{
    assert_int_equal(end_of(start(work, source)), 0);
}

/* --- what the agent sees ---------------------------------------------------------------------- */

static bool look(int i, struct mu_kept_head *ret)
{
    uint8_t bytes[MU_KEPT_HEAD_LEN];

    assert_int_equal(mu_vaults_real.read(&vaults[i], 0, bytes, sizeof(bytes)), 0);
    return mu_kept_head_decode(bytes, VAULT, ret) == 0;
}

/* The vault of the newest version; its head is the next worker's version. */
static const struct mu_vault *find(void)
{
    struct mu_kept_head head;
    int best = -1;

    terms.found = false;
    for (int i = 0; i < MU_KEPT_VAULTS; i++) {
        if (look(i, &head) &&
            (best < 0 || mu_kept_version_cmp(&head.version, &terms.version) > 0)) {
            best = i;
            terms.version = head.version;
        }
    }
    terms.found = best >= 0;
    return best < 0 ? NULL : &vaults[best];
}

/* --- tests ------------------------------------------------------------------------------------ */

static void keep_nowhere(void)
{
    static const char *const texts[] = {"", "rubbish", "1,700,16777216,4,9,0,2",
                                        "1,0,16777216,4,9,0,2"};
    struct muster_state_kept kept;
    const char *text = getenv("TEXT");

    fill(1);
    if (text == NULL) {
        (void)unsetenv("MUSTER_VAULTS");
    } else {
        for (int i = 0; i < MU_KEPT_VAULTS; i++) {
            (void)close(FD + i);
        }
        (void)setenv("MUSTER_VAULTS", texts[text[0] - '0'], 1);
    }
    for (int i = 0; i < 2; i++) {
        MUST(keep(1) == MUSTER_ENOTSUP && strstr(muster_errmsg(), "--keep-memory") != NULL);
        MUST(muster_state_kept(&kept) == MUSTER_ENOTSUP);
        MUST(muster_state_restore(tensors, 3) == MUSTER_ENOTSUP);
        muster_state_keep_wait();
        MUST(is_at(1));
    }
}

static void test_keep_nowhere_is_harmless(void **state)
{
    (void)state;
    run(keep_nowhere, NULL);
    for (char text[] = "0"; text[0] < '4'; text[0]++) {
        (void)setenv("TEXT", text, 1);
        run(keep_nowhere, NULL);
        (void)unsetenv("TEXT");
    }
}

static void keep_five(void)
{
    struct muster_state_kept kept;

    MUST(muster_state_kept(&kept) == MUSTER_ENOENT);
    for (uint64_t step = 1; step <= 5; step++) {
        fill(step);
        MUST(keep(step) == 0);
    }
    (void)kill(getpid(), SIGKILL);
}

static void restore_five(void)
{
    struct muster_state_kept kept;

    fill(1);
    MUST(muster_state_kept(&kept) == 0);
    MUST(kept.step == 5 && kept.head.len > 8);
    MUST(kept.bytes == kept.head.len + sizeof(small) + COUNT * sizeof(*large));
    MUST(muster_state_restore(tensors, 3) == 0);
    MUST(is_at(5));
    /* It is there until it is two versions old, also for this process. */
    MUST(keep(6) == 0 && keep(7) == 0);
    MUST(muster_state_restore(tensors, 3) == 0);
    MUST(keep(8) == 0);
    MUST(muster_state_restore(tensors, 3) == MUSTER_ECORRUPT);
}

static void test_keep_outlives_the_worker(void **state)
{
    struct mu_kept_head head;
    uint64_t seen = 0;

    (void)state;
    assert_int_equal(end_of(start(keep_five, NULL)), -SIGKILL);
    for (int i = 0; i < MU_KEPT_VAULTS; i++) {
        assert_true(look(i, &head));
        assert_int_equal(head.world, 2);
        assert_int_equal(head.version.era, 4);
        seen |= UINT64_C(1) << head.version.step;
    }
    assert_int_equal(seen, 1 << 3 | 1 << 4 | 1 << 5);
    assert_non_null(find());
    terms.era = 5;
    run(restore_five, find());
}

static void refuse(void)
{
    struct muster_tensor twice[2] = {tensors[0], tensors[0]};
    struct muster_state_keep_request request = muster_state_keep_request_defaults();
    const uint64_t shape[] = {VAULT};
    struct muster_tensor huge = {
        .name = "huge", .dtype = MUSTER_DTYPE_U8, .rank = 1, .shape = shape, .data = small};

    fill(1);
    MUST(keep(1) == 0);
    request.step = 2;
    request.tensor_count = 1;
    request.tensors = &huge;
    MUST(muster_state_keep(&request) == MUSTER_ELIMIT);
    MUST(strstr(muster_errmsg(), "--keep-memory") != NULL);
    request.tensors = twice;
    request.tensor_count = 2;
    MUST(muster_state_keep(&request) == MUSTER_EEXIST);
    MUST(muster_state_keep(NULL) == MUSTER_EINVAL);
    (void)setenv("LOCAL_RANK", "1", 1);
    request.tensor_count = 1;
    request.replicated = true;
    MUST(muster_state_keep(&request) == 0); /* local rank 0 does it */
}

static void test_keep_refuses_and_leaves_what_is_there(void **state)
{
    struct mu_kept_head head;

    (void)state;
    run(refuse, NULL);
    assert_non_null(find());
    assert_int_equal(terms.version.step, 1);
    assert_int_equal(look(0, &head) + look(1, &head) + look(2, &head), 1);
}

static void keep_behind(void)
{
    struct muster_state_keep_request request = muster_state_keep_request_defaults();

    request.tensors = tensors;
    request.tensor_count = 3;
    request.background = true;
    request.replicated = true;
    request.metadata = muster_str("\x80");
    for (uint64_t threads = 0; threads < 5; threads++) {
        request.threads = threads * threads * threads;
        request.step = threads;
        muster_state_keep_wait();
        fill(threads);
        MUST(muster_state_keep(&request) == 0);
    }
    muster_state_keep_wait();
    muster_state_keep_wait();
}

static void restore_four(void)
{
    struct muster_tensor other[3] = {tensors[0], tensors[1], tensors[2]};

    fill(1);
    other[0].dtype = MUSTER_DTYPE_I64;
    MUST(muster_state_restore(other, 3) == MUSTER_EINVAL);
    MUST(muster_state_restore(tensors, 2) == MUSTER_EINVAL);
    MUST(is_at(1));
    MUST(muster_state_restore(tensors, 3) == 0 && is_at(4));
}

static void test_keep_in_the_background(void **state)
{
    const struct mu_vault *source;

    (void)state;
    run(keep_behind, NULL);
    source = find();
    terms.replicated = true;
    terms.rank = 1; /* any rank's will do */
    run(restore_four, source);
}

/* Whenever a worker is killed, each version that looks whole is. */
static void keep_for_ever(void)
{
    for (uint64_t step = terms.found ? terms.version.step + 1 : 1;; step++) {
        fill(step);
        MUST(keep(step) == 0);
    }
}

static void check_kept(void)
{
    struct muster_state_kept kept;

    fill(0);
    MUST(muster_state_kept(&kept) == 0 && kept.step == terms.version.step);
    MUST(muster_state_restore(tensors, 3) == 0 && is_at(kept.step));
}

static void test_keep_killed_at_any_time(void **state)
{
    const struct mu_vault *source = NULL;
    uint64_t last = 0;

    (void)state;
    for (unsigned round = 0; round < 40; round++) {
        pid_t pid = start(keep_for_ever, source);

        /* Where it is killed differs from run to run; what must hold does not. */
        while (round % 2 == 0 && (find() == NULL || terms.version.step <= last)) {
            (void)usleep(100);
        }
        (void)usleep(round * 777 % 20000);
        (void)kill(pid, SIGKILL);
        assert_int_equal(end_of(pid), -SIGKILL);
        for (int i = 0; i < MU_KEPT_VAULTS; i++) {
            struct mu_kept_head head;

            if (look(i, &head)) {
                terms.version = head.version;
                terms.found = true;
                run(check_kept, &vaults[i]);
            }
        }
        source = find();
        assert_true(!terms.found || terms.version.step >= last);
        last = terms.found ? terms.version.step : 0;
        terms.era++;
    }
    assert_true(last > 0);
}

static void meet_rubbish(void)
{
    struct muster_state_kept kept;

    fill(1);
    for (int i = 0; i < 2; i++) {
        int err = muster_state_kept(&kept);

        MUST(err == MUSTER_ECORRUPT || err == 0);
        err = muster_state_restore(tensors, 3);
        MUST(err == MUSTER_ECORRUPT || err == MUSTER_EINVAL || err == MUSTER_ELIMIT);
        MUST(is_at(1));
    }
}

/* What a worker loads from may be another's, which may have written anything. */
static void test_keep_survives_a_vault_full_of_rubbish(void **state)
{
    static const uint64_t lengths[] = {0, 7, 8, 9, 16, 1000, VAULT - MU_KEPT_HEAD_BYTES};
    static const uint64_t says[] = {0, 1, 8, 1000, 1 << 30, UINT64_MAX};
    uint8_t bytes[MU_KEPT_HEAD_LEN];
    uint8_t *at;

    (void)state;
    assert_int_equal(mu_vault_map((int)vaults[0].handle, VAULT, true, &at), 0);
    terms.version = (struct mu_kept_version){.era = 1, .nonce = 2, .step = 3};
    terms.found = true;
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        for (size_t k = 0; k < sizeof(says) / sizeof(says[0]); k++) {
            struct mu_kept_head head = {.version = terms.version, .world = 2, .bytes = lengths[i]};

            mu_kept_head_encode(&head, bytes);
            memset(at + MU_KEPT_HEAD_BYTES, '{', 4096);
            memcpy(at + MU_KEPT_HEAD_BYTES, &says[k], 8);
            memcpy(at, bytes, sizeof(bytes));
            run(meet_rubbish, &vaults[0]);
        }
    }
    mu_vault_unmap(at, VAULT);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, up, down)
    const struct CMUnitTest tests[] = {
        TEST(test_keep_nowhere_is_harmless),
        TEST(test_keep_outlives_the_worker),
        TEST(test_keep_refuses_and_leaves_what_is_there),
        TEST(test_keep_in_the_background),
        TEST(test_keep_killed_at_any_time),
        TEST(test_keep_survives_a_vault_full_of_rubbish),
    };

    return cmocka_run_group_tests_name("state_keep", tests, NULL, NULL);
}
