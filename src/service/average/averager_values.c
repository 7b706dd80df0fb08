/* The arithmetic of a round on the native wire, on other threads. */
#include <string.h>

#include <muster/error.h>

#include "codec/average/kernel.h"
#include "codec/average/quant.h"
#include "core/assert.h"
#include "crypto/hash.h"
#include "service/average/averager_native.h"

static const struct mu_avg_part *part_of(const struct mu_averager_native *r, uint32_t part)
{
    return &r->division.parts[part];
}

static size_t elements_of(const struct mu_averager_native *r, uint32_t part)
{
    return (size_t)part_of(r, part)->elements;
}

size_t mu_averager_encoded_len(const struct mu_averager_native *r, uint32_t part)
{
    size_t n = elements_of(r, part);

    return r->averager->config.quant == 0 ? n * sizeof(float) : mu_quant_len(MU_AVERAGER_BLOCK, n);
}

struct mu_span mu_averager_encoded(const struct mu_averager_native *r, uint32_t part)
{
    const uint8_t *bytes =
        r->own[part] != NULL ? r->own[part] : mu_averager_own(r->averager, part_of(r, part));

    return mu_span(bytes, mu_averager_encoded_len(r, part));
}

/* Decodes a part in an encoding of a byte. False: a value is not finite. */
static bool decode(const struct mu_averager_native *r, struct mu_span in, float *out, size_t count)
{
    return mu_quant_decode(r->averager->config.quant, MU_AVERAGER_BLOCK, in, out, count) == 0;
}

bool mu_averager_values_good(const struct mu_averager_native *r, uint32_t part,
                             struct mu_span values)
{
    size_t n;
    float *scratch;
    bool good;

    if (part >= r->division.part_count || values.len != mu_averager_encoded_len(r, part)) {
        return false;
    }
    n = elements_of(r, part);
    if (r->averager->config.quant == 0) {
        return mu_avg_finite(MU_DTYPE_F32, values.data, n);
    }
    scratch = mu_malloc(n * sizeof(*scratch));
    good = scratch != NULL && decode(r, values, scratch, n);
    mu_free(scratch);
    return good;
}

/* --- averages --------------------------------------------------------------------------------- */

struct mu_averager_average *mu_averager_average_new(uint32_t sum, size_t len)
{
    struct mu_averager_average *average = mu_malloc(sizeof(*average) + len);

    if (average != NULL) {
        mu_list_init(&average->link);
        average->sum = sum;
        average->len = len;
    }
    return average;
}

void mu_averager_average_free(struct mu_averager_native *r, struct mu_averager_average *average)
{
    if (average != NULL && !mu_list_empty(&r->jobs)) {
        mu_list_push(&r->trash, &average->link);
    } else {
        mu_free(average);
    }
}

/* --- our own values --------------------------------------------------------------------------- */

int mu_averager_own_new(struct mu_averager_native *r, bool *ret_encode)
{
    const struct mu_averager *a = r->averager;
    bool any = false;

    r->own = mu_calloc(r->division.part_count, sizeof(*r->own));
    if (r->own == NULL) {
        return MUSTER_ENOMEM;
    }
    for (uint32_t p = 0; p < r->division.part_count; p++) {
        uint32_t tensor = a->filled[part_of(r, p)->tensor];

        if (a->config.quant == 0 && a->config.layout->tensors[tensor].dtype == MU_DTYPE_F32) {
            continue; /* they are sent as they lie: nobody touches them before the end */
        }
        any = true;
        r->own[p] = mu_malloc(mu_averager_encoded_len(r, p));
        if (r->own[p] == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    *ret_encode = any;
    return 0;
}

/* Where the residuals of a part are; NULL: there are none. */
static float *residuals_of(const struct mu_averager_native *r, uint32_t part)
{
    const struct mu_averager *a = r->averager;
    const struct mu_avg_part *p = part_of(r, part);

    return a->residuals == NULL ? NULL : a->residuals + a->residual_at[p->tensor] + p->offset;
}

/* What is encoded: our values, and what the encoding did not carry the last time. */
static void load_own(const struct mu_averager_native *r, uint32_t part, float *out)
{
    const struct mu_averager *a = r->averager;
    const struct mu_avg_part *p = part_of(r, part);
    const float *residuals = residuals_of(r, part);
    size_t n = elements_of(r, part);

    mu_avg_load(out, a->config.layout->tensors[a->filled[p->tensor]].dtype, mu_averager_own(a, p),
                n);
    if (residuals != NULL) {
        for (size_t i = 0; i < n; i++) {
            out[i] += residuals[i];
        }
    }
}

static bool encode_own(struct mu_averager_job *job)
{
    struct mu_averager_native *r = job->round;
    enum mu_quant quant = r->averager->config.quant;

    for (uint32_t p = 0; p < r->division.part_count; p++) {
        size_t n = elements_of(r, p);

        if (r->own[p] == NULL) {
            continue;
        }
        load_own(r, p, job->scratch);
        if (quant != 0
                ? mu_quant_encode(quant, MU_AVERAGER_BLOCK, job->scratch, NULL, n, r->own[p]) != 0
                : !mu_avg_finite(MU_DTYPE_F32, (const uint8_t *)job->scratch, n)) {
            return false;
        }
        if (quant == 0) {
            memcpy(r->own[p], job->scratch, n * sizeof(float));
        }
    }
    return true;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* In the order of members, in float32, with a rounding after each operation. */
static bool sum_up(struct mu_averager_job *job)
{
    const struct mu_averager_native *r = job->round;
    enum mu_quant quant = r->averager->config.quant;
    uint32_t shard = part_of(r, job->part)->owner;
    size_t count = r->division.member_count;
    size_t at = (size_t)(job->part - r->division.first[shard]) * count;
    size_t n = elements_of(r, job->part);
    size_t len = mu_averager_encoded_len(r, job->part);
    double weights = 0;
    /* What is not encoded any further is summed where it stays. */
    float *sums = quant != 0 ? job->sums : (float *)(void *)job->average->bytes;

    memset(sums, 0, n * sizeof(float));
    for (uint32_t k = 0; k < count; k++) {
        struct mu_span values;

        if ((job->set.members >> k & 1) == 0) {
            continue;
        }
        values = k == r->hello.position ? mu_averager_encoded(r, job->part)
                                        : mu_span(r->kept[shard][at + k], len);
        if (quant != 0) {
            if (!decode(r, values, job->scratch, n)) {
                return false;
            }
            values.data = (const uint8_t *)job->scratch;
        }
        mu_avg_add(sums, MU_DTYPE_F32, values.data, n, job->set.weights[k]);
        weights += job->set.weights[k];
    }
    if (!(weights > 0)) {
        return false;
    }
    mu_avg_divide(sums, n, weights);
    if (quant != 0) {
        return mu_quant_encode(quant, MU_AVERAGER_BLOCK, sums, NULL, n, job->average->bytes) == 0;
    }
    return mu_avg_finite(MU_DTYPE_F32, job->average->bytes, n);
}

/* --- the end ---------------------------------------------------------------------------------- */

/* What all members must hold: the decoded averages, in order. */
static void hash(struct mu_averager_job *job)
{
    const struct mu_averager_native *r = job->round;
    struct mu_sha256 h;

    mu_sha256_begin(&h);
    for (uint32_t p = 0; p < r->division.part_count; p++) {
        const struct mu_averager_average *average = job->averages[p];
        size_t n = elements_of(r, p);

        if (r->averager->config.quant == 0) {
            mu_sha256_add(&h, mu_span(average->bytes, average->len));
            continue;
        }
        (void)decode(r, mu_span(average->bytes, average->len), job->scratch, n);
        mu_sha256_add(&h, mu_span(job->scratch, n * sizeof(float)));
    }
    mu_sha256_end(&h, job->digest);
}

/* What the encoding did not carry of our values, which were counted. */
static void keep_residuals(struct mu_averager_job *job, uint32_t part)
{
    const struct mu_averager_native *r = job->round;
    float *residuals = residuals_of(r, part);
    size_t n = elements_of(r, part);

    load_own(r, part, job->sums);
    (void)decode(r, mu_averager_encoded(r, part), job->scratch, n);
    for (size_t i = 0; i < n; i++) {
        residuals[i] = job->sums[i] - job->scratch[i];
    }
}

static void place(struct mu_averager_job *job)
{
    struct mu_averager_native *r = job->round;
    const struct mu_averager *a = r->averager;
    bool counted = (job->set.members >> r->hello.position & 1) != 0;

    for (uint32_t p = 0; p < r->division.part_count; p++) {
        const struct mu_averager_average *average = job->averages[p];
        const struct mu_avg_part *part = part_of(r, p);
        const float *values = (const float *)(const void *)average->bytes;
        size_t n = elements_of(r, p);

        if (counted && a->residuals != NULL) {
            keep_residuals(job, p);
        }
        if (a->config.quant != 0) {
            (void)decode(r, mu_span(average->bytes, average->len), job->scratch, n);
            values = job->scratch;
        }
        mu_avg_store(a->config.layout->tensors[a->filled[part->tensor]].dtype,
                     mu_averager_own(a, part), values, n);
    }
}

/* --- jobs ------------------------------------------------------------------------------------- */

static void on_run(struct mu_work *work)
{
    struct mu_averager_job *job = MU_CONTAINER_OF(work, struct mu_averager_job, work);

    job->good = true;
    switch (job->kind) {
    case MU_AVERAGER_ENCODE:
        job->good = encode_own(job);
        break;
    case MU_AVERAGER_SUM:
        job->good = sum_up(job);
        break;
    case MU_AVERAGER_HASH:
        hash(job);
        break;
    case MU_AVERAGER_PLACE:
        place(job);
        break;
    }
}

static void free_job(struct mu_averager_job *job)
{
    struct mu_averager_native *r = job->round;

    mu_list_remove(&job->link);
    mu_free(job->sums);
    mu_free(job->scratch);
    mu_free(job->average);
    mu_free(job->averages);
    mu_free(job);
    while (mu_list_empty(&r->jobs) && !mu_list_empty(&r->trash)) {
        mu_free(MU_CONTAINER_OF(mu_list_pop(&r->trash), struct mu_averager_average, link));
    }
}

/* Tells of what has ended, as far as all before it has. */
static void on_done(struct mu_work *work)
{
    struct mu_averager_job *job = MU_CONTAINER_OF(work, struct mu_averager_job, work);
    struct mu_averager_native *r = job->round;
    struct mu_averager *a = r->averager;

    job->done = true;
    while (!mu_list_empty(&r->jobs)) {
        job = MU_CONTAINER_OF(r->jobs.next, struct mu_averager_job, link);
        if (!job->done) {
            break;
        }
        mu_averager_native_done(job);
        free_job(job);
    }
    mu_averager_pump(a);
}

static int take_memory(struct mu_averager_job *job)
{
    const struct mu_averager_native *r = job->round;
    bool one = job->kind == MU_AVERAGER_SUM;
    size_t most = one ? elements_of(r, job->part) : 0;
    size_t parts = r->division.part_count;

    for (uint32_t p = 0; p < parts && !one; p++) {
        most = elements_of(r, p) > most ? elements_of(r, p) : most;
    }
    if (!one || r->averager->config.quant != 0) {
        job->sums = mu_malloc(most * sizeof(float));
        job->scratch = mu_malloc(most * sizeof(float));
        if (job->sums == NULL || job->scratch == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    if (one) {
        job->average = mu_averager_average_new(job->sum, mu_averager_encoded_len(r, job->part));
    } else if (job->kind != MU_AVERAGER_ENCODE) {
        job->averages = mu_malloc(parts * sizeof(*job->averages));
    }
    if (job->averages != NULL) {
        memcpy(job->averages, r->averages, parts * sizeof(*job->averages));
    }
    return (one && job->average == NULL) ||
                   (!one && job->kind != MU_AVERAGER_ENCODE && job->averages == NULL)
               ? MUSTER_ENOMEM
               : 0;
}

int mu_averager_job_begin(struct mu_averager_native *r, enum mu_averager_job_kind kind,
                          const struct mu_native_event *e)
{
    struct mu_averager_job *job = mu_calloc(1, sizeof(*job));
    int err;

    if (job == NULL) {
        return MUSTER_ENOMEM;
    }
    job->round = r;
    job->kind = kind;
    job->sum = e != NULL ? e->sum : 0;
    job->part = e != NULL ? e->part : 0;
    if (kind == MU_AVERAGER_SUM || kind == MU_AVERAGER_PLACE) {
        job->set = e != NULL ? *e->set : r->machine.set;
    }
    job->work.run = on_run;
    job->work.done = on_done;
    mu_list_init(&job->link);
    err = take_memory(job);
    if (err == 0) {
        mu_list_push(&r->jobs, &job->link);
        err = mu_env_work(r->averager->env, &job->work);
    }
    if (err != 0) {
        free_job(job);
    }
    return err;
}
