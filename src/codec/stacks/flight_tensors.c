/* The shapes and types of tensors in a dump: as a text for people, and as a digest to compare. */
#include "codec/stacks/flight_internal.h"

#include <stdio.h>

#include <muster/error.h>

#define TENSORS_MAX 4096
#define FNV_BASIS   UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME   UINT64_C(0x100000001b3)

static uint64_t mix(uint64_t digest, uint64_t number)
{
    for (int i = 0; i < 8; i++) {
        digest = (digest ^ (uint8_t)(number >> (8 * i))) * FNV_PRIME;
    }
    return digest;
}

static uint64_t times(uint64_t a, uint64_t b)
{
    return b != 0 && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

/* A text that is written bit by bit; what does not fit is left out. */
struct draft {
    char text[MU_FLIGHT_TEXT_MAX + 1];
    size_t len;
};

static void draft_bytes(struct draft *t, struct mu_span s)
{
    size_t room = MU_FLIGHT_TEXT_MAX - t->len;
    size_t len = s.len < room ? s.len : room;

    if (len != 0) {
        memcpy(t->text + t->len, s.data, len);
        t->len += len;
    }
}

static void draft_number(struct draft *t, uint64_t number)
{
    char digits[24];

    draft_bytes(t, mu_span(digits, (size_t)snprintf(digits, sizeof(digits), "%llu",
                                                    (unsigned long long)number)));
}

/* One copy is enough of texts that come again and again. */
static int keep_draft(struct mu_flight_decoder *d, const struct draft *t, uint64_t digest,
                      uint32_t *ret_text)
{
    struct mu_flight_shape *shape = &d->shapes[digest % MU_FLIGHT_SHAPES];
    int err = 0;

    if (shape->text == 0 || shape->digest != digest) {
        err = mu_flight_add_text(d, mu_span(t->text, t->len), &shape->text);
        shape->digest = digest;
    }
    *ret_text = shape->text;
    return err;
}

static int read_shape(struct mu_flight_decoder *d, uint32_t list, struct draft *t, uint64_t *digest,
                      uint64_t *elements)
{
    struct mu_pickle_walk w;
    uint64_t product = 1;
    bool first = true;
    int err = mu_flight_walk(d, list, MU_PICKLE_LIST, TENSORS_MAX, "a shape", &w);

    draft_bytes(t, MU_SPAN_LIT("["));
    for (uint32_t i; err == 0 && (i = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        uint64_t size = 0;

        err = mu_flight_read_number(d, i, "a size", &size);
        draft_bytes(t, first ? MU_SPAN_LIT("") : MU_SPAN_LIT(", "));
        draft_number(t, size);
        *digest = mix(*digest, size);
        product = times(product, size);
        first = false;
    }
    draft_bytes(t, MU_SPAN_LIT("]"));
    *digest = mix(*digest, UINT64_MAX);
    *elements = product > UINT64_MAX - *elements ? UINT64_MAX : *elements + product;
    return err;
}

int mu_flight_read_sizes(struct mu_flight_decoder *d, uint32_t list, struct mu_flight_tensors *t)
{
    struct mu_pickle_walk w;
    struct draft draft = {.len = 0};
    bool first = true;
    int err = mu_flight_walk(d, list, MU_PICKLE_LIST, TENSORS_MAX, "a list of sizes", &w);

    t->sizes_digest = FNV_BASIS;
    draft_bytes(&draft, MU_SPAN_LIT("["));
    for (uint32_t i; err == 0 && (i = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        draft_bytes(&draft, first ? MU_SPAN_LIT("") : MU_SPAN_LIT(", "));
        err = read_shape(d, i, &draft, &t->sizes_digest, &t->elements);
        first = false;
    }
    draft_bytes(&draft, MU_SPAN_LIT("]"));
    return err != 0 ? err : keep_draft(d, &draft, t->sizes_digest, &t->sizes);
}

int mu_flight_read_types(struct mu_flight_decoder *d, uint32_t list, struct mu_flight_tensors *t)
{
    struct mu_pickle_walk w;
    struct draft draft = {.len = 0};
    bool first = true;
    int err = mu_flight_walk(d, list, MU_PICKLE_LIST, TENSORS_MAX, "a list of types", &w);

    t->types_digest = FNV_BASIS + 1;
    draft_bytes(&draft, MU_SPAN_LIT("["));
    for (uint32_t i; err == 0 && (i = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING;) {
        struct mu_span type;

        if (!mu_pickle_is(&d->p, i, MU_PICKLE_TEXT)) {
            return mu_flight_refuse(d, "a type of the dump is not a text");
        }
        type = mu_pickle_bytes(&d->p, i);
        draft_bytes(&draft, first ? MU_SPAN_LIT("") : MU_SPAN_LIT(", "));
        draft_bytes(&draft, type);
        for (size_t at = 0; at < type.len; at++) {
            t->types_digest = (t->types_digest ^ type.data[at]) * FNV_PRIME;
        }
        t->types_digest = mix(t->types_digest, UINT64_MAX);
        err = mu_flight_pay(d, type.len);
        first = false;
    }
    draft_bytes(&draft, MU_SPAN_LIT("]"));
    return err != 0 ? err : keep_draft(d, &draft, t->types_digest, &t->types);
}
