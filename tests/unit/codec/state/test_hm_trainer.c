/* What a trainer of hivemind can load, and what would send it into an endless loop. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "codec/state/hm_trainer.h"

/* The metadata of a trainer with this many optimizer tensors, beside a value. */
struct told {
    bool no_optimizer;
    bool no_epoch;
    bool no_list;
    uint64_t first; /* the number of the first tensor */
    uint64_t tensors;
};

static void put_metadata(struct mu_buf *out, const struct told *t)
{
    struct mu_mp_out mp = mu_mp_out(out);

    mu_mp_put_map(&mp, (size_t)3 - t->no_epoch - t->no_optimizer);
    mu_mp_put_str(&mp, MU_SPAN_LIT("group_bits"));
    mu_mp_put_str(&mp, MU_SPAN_LIT(""));
    if (!t->no_epoch) {
        mu_mp_put_str(&mp, MU_SPAN_LIT("epoch"));
        mu_mp_put_uint(&mp, 41);
    }
    if (!t->no_optimizer) {
        mu_mp_put_str(&mp, MU_SPAN_LIT("optimizer_metadata"));
        if (t->no_list) {
            mu_mp_put_uint(&mp, 7);
            return;
        }
        mu_mp_put_array(&mp, t->tensors + 1);
        mu_mp_put_map(&mp, 2);
        mu_mp_put_str(&mp, MU_SPAN_LIT("type"));
        mu_mp_put_str(&mp, MU_SPAN_LIT("value"));
        mu_mp_put_str(&mp, MU_SPAN_LIT("value"));
        mu_mp_put_double(&mp, 0.9);
        for (uint64_t i = 0; i < t->tensors; i++) {
            mu_mp_put_map(&mp, 2);
            mu_mp_put_str(&mp, MU_SPAN_LIT("type"));
            mu_mp_put_str(&mp, MU_SPAN_LIT("tensor"));
            mu_mp_put_str(&mp, MU_SPAN_LIT("index"));
            mu_mp_put_uint(&mp, t->first + i);
        }
    }
    assert_int_equal(mp.err, 0);
}

/* Checks three tensors of these names. */
static int check(const struct told *t, const char *const names[3], struct mu_errmsg *msg)
{
    const uint64_t shape[] = {2};
    struct mu_layout layout;
    struct mu_buf metadata;
    uint64_t epoch = 0;
    int err;

    mu_buf_init(&metadata, 4096);
    mu_layout_init(&layout);
    put_metadata(&metadata, t);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_layout_add(&layout, mu_span_str(names[i]), MU_DTYPE_F32, shape, 1), 0);
    }
    msg->text[0] = '\0';
    err = mu_hm_trainer_check(mu_buf_span(&metadata), &layout, &epoch, msg);
    assert_true(err == 0 ? epoch == 41 : msg->text[0] != '\0');
    mu_layout_fini(&layout);
    mu_buf_fini(&metadata);
    return err;
}

static const char *const pulled[3] = {"tensor.0", "tensor.1", "tensor.2"};
static const char *const named[3] = {"weight", "weight.exp_avg", "weight.exp_avg_sq"};
static const char *const sorted[3] = {"tensor.0", "tensor.10", "tensor.2"};

static void test_trainer_loads_what_a_trainer_gave(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(check(&(struct told){.tensors = 2}, pulled, &msg), 0);
    assert_int_equal(check(&(struct told){.tensors = 0}, pulled, &msg), 0);
    assert_int_equal(check(&(struct told){.tensors = 2}, named, &msg), 0);
}

static void test_trainer_is_refused_what_it_cannot_load(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(check(&(struct told){.no_optimizer = true}, pulled, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "no optimizer_metadata"));
    assert_non_null(strstr(msg.text, "state pull --hivemind"));
    assert_int_equal(check(&(struct told){.tensors = 2, .no_epoch = true}, pulled, &msg),
                     MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "no epoch"));
    assert_int_equal(check(&(struct told){.tensors = 3}, pulled, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "3 tensors"));
    assert_int_equal(check(&(struct told){.tensors = 2, .first = 1}, pulled, &msg), MUSTER_EINVAL);
    assert_int_equal(check(&(struct told){.no_list = true}, pulled, &msg), MUSTER_EINVAL);
}

static void test_trainer_is_refused_tensors_in_another_order(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(check(&(struct told){.tensors = 2}, sorted, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "tensor.10 is number 1"));
}

static void test_trainer_is_refused_bytes_that_are_no_metadata(void **state)
{
    static const uint8_t bytes[] = {0x82, 0xa1, 'a', 1, 0xb2};
    struct mu_layout layout;
    struct mu_errmsg msg;
    uint64_t epoch;

    (void)state;
    mu_layout_init(&layout);
    for (size_t len = 0; len <= sizeof(bytes); len++) {
        assert_int_equal(mu_hm_trainer_check(mu_span(bytes, len), &layout, &epoch, &msg),
                         MUSTER_EINVAL);
    }
    mu_layout_fini(&layout);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trainer_loads_what_a_trainer_gave),
        cmocka_unit_test(test_trainer_is_refused_what_it_cannot_load),
        cmocka_unit_test(test_trainer_is_refused_tensors_in_another_order),
        cmocka_unit_test(test_trainer_is_refused_bytes_that_are_no_metadata),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
