/*
 * Answers questions about averaging, a line each, so that model.py can ask thousands of them:
 *
 *     schema TYPE:DIM,DIM ...                     the schema hash
 *     fractions VALUES MODE,MODE,...              N, C: node, client
 *     divide PART_BYTES A,B,... N:TYPE:TOLD:CODEC ...   the parts of each member
 *     bits GROUP_ID TARGET MEMBERS POSITION BITS
 *     data CODEC TYPE WEIGHT HEX                  a message with that part
 *     back HEX                                    the values of such a message
 *     mean TYPE WEIGHT:HEX ...                    the average, and the delta of the first
 *     matrix RANK RATIO DIM,DIM,...               as which matrix PowerSGD carries it, or "whole"
 *     due EVERY COUNT STEP                        the fragment that is due after it, or "none"
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/average/kernel.h"
#include "codec/average/power.h"
#include "hex.h"
#include "proto/average/fragment.h"
#include "proto/average/group.h"

#define VALUES_MAX (1u << 16)

static char line[1u << 20];
static char *words[4096];
static size_t count;

static void print_hex(const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        (void)printf("%02x", ((const uint8_t *)data)[i]);
    }
}

/* Takes the next piece off `*rest`; NULL: there is none. */
static char *next(char **rest, const char *separator)
{
    char *piece = strsep(rest, separator);

    return piece == NULL || *piece == '\0' ? NULL : piece;
}

static uint64_t number(const char *text)
{
    return strtoull(text, NULL, 10);
}

static enum mu_dtype type_of(const char *text)
{
    return mu_dtype_parse(mu_span_str(text));
}

static void answer_schema(void)
{
    uint8_t hash[MU_AVG_SCHEMA_LEN];
    struct mu_layout l;

    mu_layout_init(&l);
    for (size_t i = 1; i < count; i++) {
        uint64_t shape[MU_TENSOR_RANK_MAX];
        size_t rank = 0;
        char *rest = words[i];
        char *type = next(&rest, ":");

        for (char *dim = next(&rest, ","); dim != NULL; dim = next(&rest, ",")) {
            shape[rank++] = number(dim);
        }
        if (mu_layout_add(&l, mu_span("", 0), type_of(type), shape, rank) != 0) {
            abort();
        }
    }
    if (mu_avg_schema_hash(&l, hash) != 0) {
        abort();
    }
    mu_layout_fini(&l);
    print_hex(hash, sizeof(hash));
}

static void answer_fractions(void)
{
    struct mu_avg_gather members[MU_AVG_MEMBERS_MAX] = {0};
    uint64_t fractions[MU_AVG_MEMBERS_MAX];
    size_t n = 0;

    for (char *mode = next(&words[2], ","); mode != NULL; mode = next(&words[2], ",")) {
        members[n++].mode = *mode == 'C' ? MU_AVG_CLIENT : MU_AVG_NODE;
    }
    if (mu_avg_fractions(number(words[1]), members, n, fractions) != 0) {
        (void)printf("error");
        return;
    }
    for (size_t i = 0; i < n; i++) {
        (void)printf("%s%" PRIu64, i == 0 ? "" : " ", fractions[i]);
    }
}

static void answer_divide(void)
{
    static struct mu_avg_tensor tensors[4096];
    static struct mu_avg_division d;
    uint64_t fractions[MU_AVG_MEMBERS_MAX];
    size_t members = 0;

    for (char *f = next(&words[2], ","); f != NULL; f = next(&words[2], ",")) {
        fractions[members++] = number(f);
    }
    for (size_t i = 3; i < count; i++) {
        struct mu_avg_tensor *t = &tensors[i - 3];

        t->elements = number(next(&words[i], ":"));
        t->dtype = type_of(next(&words[i], ":"));
        t->told = type_of(next(&words[i], ":"));
        t->compression = (enum mu_hm_compression)number(next(&words[i], ":"));
    }
    if (mu_avg_divide_vector(&d, tensors, count - 3, fractions, members, number(words[1])) != 0) {
        abort();
    }
    for (size_t m = 0; m < members; m++) {
        for (size_t i = d.first[m]; i < d.first[m] + d.count[m]; i++) {
            (void)printf("%" PRIu32 ":%" PRIu64 ":%" PRIu64 " ", d.parts[i].tensor,
                         d.parts[i].offset, d.parts[i].elements);
        }
        (void)printf("|");
    }
    mu_avg_division_fini(&d);
}

static void answer_bits(void)
{
    uint8_t id[20];
    char bits[MU_AVG_BITS_MAX + 1];

    hex_decode(id, sizeof(id), words[1]);
    (void)snprintf(bits, sizeof(bits), "%s", words[5]);
    if (mu_avg_next_bits(mu_span(id, sizeof(id)), (uint32_t)number(words[2]),
                         (uint32_t)number(words[3]), (uint32_t)number(words[4]), bits) != 0) {
        abort();
    }
    (void)printf("%s", bits);
}

static void answer_data(void)
{
    static uint8_t values[VALUES_MAX];
    struct mu_avg_data data = {.tensor = true,
                               .compression = (enum mu_hm_compression)number(words[1]),
                               .dtype = type_of(words[2]),
                               .weight = strtod(words[3], NULL)};
    size_t len = count < 5 ? 0 : hex_decode(values, sizeof(values), words[4]);
    struct mu_buf out;

    data.elements = len * 8 / mu_dtype_bits(data.dtype);
    mu_buf_init(&out, 1u << 20);
    if (mu_avg_data_encode(&data, mu_span(values, len), &out) != 0) {
        abort();
    }
    print_hex(mu_buf_span(&out).data, out.len);
    mu_buf_fini(&out);
}

static void answer_back(void)
{
    static uint8_t message[VALUES_MAX * 2];
    static uint8_t values[VALUES_MAX];
    struct mu_avg_data data;
    size_t len = hex_decode(message, sizeof(message), words[1]);

    if (mu_avg_data_decode(mu_span(message, len), &data) != 0 ||
        mu_avg_data_values(&data, (struct mu_space){values, sizeof(values)}) != 0) {
        (void)printf("error");
        return;
    }
    print_hex(values, mu_avg_data_len(&data));
}

static void answer_mean(void)
{
    static float sum[VALUES_MAX / 2];
    static uint8_t values[VALUES_MAX];
    static uint8_t first[VALUES_MAX];
    static uint8_t delta[VALUES_MAX];
    enum mu_dtype dtype = type_of(words[1]);
    double weights = 0;
    size_t n = 0;

    for (size_t i = 2; i < count; i++) {
        double weight = strtod(next(&words[i], ":"), NULL);
        size_t len = hex_decode(values, sizeof(values), next(&words[i], ":"));

        n = len * 8 / mu_dtype_bits(dtype);
        if (i == 2) {
            memset(sum, 0, sizeof(sum));
            memcpy(first, values, len);
        }
        mu_avg_add(sum, dtype, values, n, weight);
        weights += weight;
    }
    mu_avg_divide(sum, n, weights);
    mu_avg_delta(delta, sum, dtype, first, n);
    print_hex(sum, n * 4);
    (void)printf(" ");
    print_hex(delta, n * mu_dtype_bits(mu_avg_delta_dtype(dtype)) / 8);
}

static void answer_due(void)
{
    uint32_t fragment;

    if (mu_fragment_due((uint32_t)number(words[1]), (uint32_t)number(words[2]), number(words[3]),
                        &fragment)) {
        (void)printf("%" PRIu32, fragment);
    } else {
        (void)printf("none");
    }
}

static void answer_matrix(void)
{
    uint64_t shape[MU_TENSOR_RANK_MAX];
    struct mu_avg_matrix got;
    size_t axes = 0;

    for (char *dim = count > 3 ? next(&words[3], ",") : NULL; dim != NULL;
         dim = next(&words[3], ",")) {
        shape[axes++] = number(dim);
    }
    if (mu_avg_power_matrix(shape, axes, (uint32_t)number(words[1]), strtod(words[2], NULL),
                            &got)) {
        (void)printf("%zu %zu", got.rows, got.columns);
    } else {
        (void)printf("whole");
    }
}

int main(void)
{
    static const struct {
        const char *name;
        void (*answer)(void);
    } verbs[] = {
        {"schema", answer_schema}, {"fractions", answer_fractions}, {"divide", answer_divide},
        {"bits", answer_bits},     {"data", answer_data},           {"back", answer_back},
        {"mean", answer_mean},     {"matrix", answer_matrix},       {"due", answer_due}};

    while (fgets(line, sizeof(line), stdin) != NULL) {
        char *rest = line;

        count = 0;
        for (char *w = strtok_r(line, " \n", &rest); w != NULL; w = strtok_r(NULL, " \n", &rest)) {
            words[count++] = w;
        }
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
            if (count != 0 && strcmp(words[0], verbs[i].name) == 0) {
                verbs[i].answer();
            }
        }
        (void)printf("\n");
    }
    return 0;
}
