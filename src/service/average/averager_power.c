/* What an averager averages instead of gradients with PowerSGD (codec/average/power.h). */
#include <string.h>

#include <muster/error.h>

#include "codec/average/kernel.h"
#include "codec/average/power.h"
#include "service/average/averager_internal.h"

/* A gradient that is carried as two thin matrices. */
struct compressed {
    uint32_t tensor;
    struct mu_avg_matrix shape;
    float *rest;  /* what was not carried, from step to step */
    float *q;     /* of the last step that succeeded */
    float *whole; /* the rest and the gradient; with the two below, while a step averages */
    float *p;
    float *next_q;
};

struct mu_averager_power {
    uint32_t rank;
    size_t count;
    struct compressed *all;
    /* What the phases average: P of each, and then Q of each and the tensors that are averaged
     * whole. */
    struct mu_avg_tensor *p_tensors, *q_tensors;
    uint8_t **p_data, **q_data;
    size_t q_count;
};

static size_t values_of(const struct compressed *c)
{
    return c->shape.rows * c->shape.columns;
}

static void drop(struct compressed *c)
{
    mu_free(c->whole);
    mu_free(c->p);
    mu_free(c->next_q);
    c->whole = c->p = c->next_q = NULL;
}

void mu_averager_power_end(struct mu_averager *a)
{
    for (size_t i = 0; a->power != NULL && i < a->power->count; i++) {
        drop(&a->power->all[i]);
    }
}

void mu_averager_power_free(struct mu_averager *a)
{
    struct mu_averager_power *w = a->power;

    if (w == NULL) {
        return;
    }
    mu_averager_power_end(a);
    for (size_t i = 0; i < w->count; i++) {
        mu_free(w->all[i].rest);
        mu_free(w->all[i].q);
    }
    mu_free(w->all);
    mu_free(w->p_tensors);
    mu_free(w->q_tensors);
    mu_free(w->p_data);
    mu_free(w->q_data);
    mu_free(w);
    a->power = NULL;
}

static struct mu_avg_tensor thin(const struct mu_averager *a, size_t length)
{
    return (struct mu_avg_tensor){.elements = (uint64_t)length * a->config.power_rank,
                                  .dtype = MU_DTYPE_F32,
                                  .told = MU_DTYPE_F32,
                                  .compression = a->config.compression};
}

/* The first Q is random, and each member's own: after one step all have the same. */
static int take_memory(struct mu_averager *a, struct compressed *c, struct mu_prng *prng)
{
    size_t q = c->shape.columns * a->config.power_rank;

    c->rest = mu_calloc(values_of(c), sizeof(*c->rest));
    c->q = mu_calloc(q, sizeof(*c->q));
    if (c->rest == NULL || c->q == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < q; i++) {
        c->q[i] = (float)(mu_prng_u64(prng) >> 40) / (float)(1 << 24);
    }
    return 0;
}

/* Which tensors are carried how, in hivemind's order. */
static int sort_tensors(struct mu_averager *a, struct mu_averager_power *w)
{
    const struct mu_layout *layout = a->config.layout;
    uint8_t seed[8];
    struct mu_prng prng;
    size_t whole = 0;

    mu_env_entropy(a->env, seed, sizeof(seed));
    mu_prng_seed(&prng, mu_get_u64(seed));
    for (uint32_t i = 0; i < layout->count; i++) {
        struct compressed *c = &w->all[w->count];

        if (!mu_avg_power_matrix(mu_layout_shape(layout, i), layout->tensors[i].rank, w->rank,
                                 a->config.power_ratio, &c->shape)) {
            continue;
        }
        c->tensor = i;
        w->p_tensors[w->count] = thin(a, c->shape.rows);
        w->q_tensors[w->count] = thin(a, c->shape.columns);
        w->count++;
        if (take_memory(a, c, &prng) != 0) {
            return MUSTER_ENOMEM;
        }
    }
    w->q_count = w->count;
    for (uint32_t i = 0; i < layout->count; i++) {
        if (whole < w->count && w->all[whole].tensor == i) {
            whole++;
        } else {
            w->q_tensors[w->q_count] = a->tensors[i];
            w->q_data[w->q_count++] = a->config.data[i];
        }
    }
    return 0;
}

int mu_averager_power_new(struct mu_averager *a, struct mu_errmsg *msg)
{
    size_t n = a->config.layout->count;
    struct mu_averager_power *w;

    if (a->config.native) {
        return mu_err(msg, MUSTER_EINVAL, "PowerSGD is for hivemind's wire");
    }
    if (a->config.power_rank > MU_AVG_RANK_MAX || !(a->config.power_ratio >= 0)) {
        return mu_err(msg, MUSTER_EINVAL,
                      "the rank of PowerSGD is from 1 to %d, and what it must save at least is a "
                      "share from 0",
                      MU_AVG_RANK_MAX);
    }
    w = a->power = mu_calloc(1, sizeof(*w));
    if (w == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    w->rank = a->config.power_rank;
    w->all = mu_calloc(n, sizeof(*w->all));
    w->p_tensors = mu_calloc(n, sizeof(*w->p_tensors));
    w->q_tensors = mu_calloc(n, sizeof(*w->q_tensors));
    w->p_data = mu_calloc(n, sizeof(*w->p_data));
    w->q_data = mu_calloc(n, sizeof(*w->q_data));
    if (w->all == NULL || w->p_tensors == NULL || w->q_tensors == NULL || w->p_data == NULL ||
        w->q_data == NULL || sort_tensors(a, w) != 0) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    return w->count != 0
               ? 0
               : mu_err(msg, MUSTER_EINVAL,
                        "PowerSGD of rank %u would save less than %g of each tensor: average them "
                        "as a GradientAverager does",
                        w->rank, a->config.power_ratio);
}

int mu_averager_power_begin(struct mu_averager *a, struct mu_averager_vector *ret)
{
    struct mu_averager_power *w = a->power;

    for (size_t i = 0; i < w->count; i++) {
        struct compressed *c = &w->all[i];
        size_t n = values_of(c);

        c->whole = mu_calloc(n, sizeof(*c->whole));
        c->p = mu_calloc(c->shape.rows * w->rank, sizeof(*c->p));
        c->next_q = mu_calloc(c->shape.columns * w->rank, sizeof(*c->next_q));
        if (c->whole == NULL || c->p == NULL || c->next_q == NULL) {
            return MUSTER_ENOMEM;
        }
        mu_avg_load(c->whole, a->config.layout->tensors[c->tensor].dtype, a->config.data[c->tensor],
                    n);
        for (size_t k = 0; k < n; k++) {
            c->whole[k] += c->rest[k];
        }
        mu_avg_power_p(c->p, c->whole, c->q, &c->shape, w->rank);
        w->p_data[i] = (uint8_t *)c->p;
        w->q_data[i] = (uint8_t *)c->next_q;
    }
    *ret = (struct mu_averager_vector){w->p_tensors, w->count, w->p_data};
    return 0;
}

int mu_averager_power_turn(struct mu_averager *a, struct mu_averager_vector *ret)
{
    struct mu_averager_power *w = a->power;

    for (size_t i = 0; i < w->count; i++) {
        struct compressed *c = &w->all[i];

        mu_avg_power_orthogonalize(c->p, c->shape.rows, w->rank);
        mu_avg_power_q(c->next_q, c->whole, c->p, &c->shape, w->rank);
        if (!mu_avg_finite(MU_DTYPE_F32, (const uint8_t *)c->next_q, c->shape.columns * w->rank)) {
            return MUSTER_EINVAL;
        }
    }
    *ret = (struct mu_averager_vector){w->q_tensors, w->q_count, w->q_data};
    return 0;
}

int mu_averager_power_put(struct mu_averager *a)
{
    struct mu_averager_power *w = a->power;

    for (size_t i = 0; i < w->count; i++) {
        const struct compressed *c = &w->all[i];

        if (!mu_avg_finite(MU_DTYPE_F32, (const uint8_t *)c->next_q, c->shape.columns * w->rank)) {
            return MUSTER_EINVAL;
        }
    }
    for (size_t i = 0; i < w->count; i++) {
        struct compressed *c = &w->all[i];
        float *q = c->q;

        /* `rest` is used for the product first, and then becomes what it lacks. */
        mu_avg_power_expand(c->rest, c->whole, c->p, c->next_q, &c->shape, w->rank);
        mu_avg_store(a->config.layout->tensors[c->tensor].dtype, a->config.data[c->tensor], c->rest,
                     values_of(c));
        memcpy(c->rest, c->whole, values_of(c) * sizeof(*c->rest));
        c->q = c->next_q;
        c->next_q = q;
    }
    return 0;
}
