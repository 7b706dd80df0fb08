/*
 * Encoding in pieces. An encoding is a few sections of equal elements (numbers, a codebook, the
 * tensor's own), and each can be written from any element on: no piece needs the one before.
 */
#include "codec/state/hm_tensor_internal.h"
#include "core/alloc.h"
#include "core/assert.h"

enum kind {
    RAW = 1, /* bytes as they are */
    WIDE,    /* as float32 */
    HALF,    /* as half */
    SCALED,  /* as half, minus the mean of its row, divided by the deviation */
    MEANS,   /* of rows */
    STDS,
    NUMBER,
    GREATEST, /* of blocks */
    CODES,
    UNIFORM, /* indices */
    QUANTILE,
    BLOCKWISE,
};

static void add_section(struct mu_hm_encoder *e, enum kind kind, uint32_t size, uint64_t count)
{
    e->sections[e->section_count++] =
        (struct mu_hm_section){.kind = (int)kind, .size = size, .count = count, .offset = e->len};
    e->len += size * count;
}

static void add_number(struct mu_hm_encoder *e, uint64_t number)
{
    add_section(e, NUMBER, 8, 1);
    e->sections[e->section_count - 1].number = (int64_t)number;
}

static void lay_out(struct mu_hm_encoder *e, const struct mu_hm_sizes *n)
{
    uint64_t blocks = n->elements / MU_HM_BLOCK + (n->elements % MU_HM_BLOCK != 0);

    switch (e->t.compression) {
    case MU_HM_NONE:
        if (e->t.dtype == MU_DTYPE_BF16 && !e->t.bfloat16_raw) {
            add_section(e, WIDE, 4, n->elements);
        } else {
            add_section(e, RAW, 1, n->bytes);
        }
        break;
    case MU_HM_FLOAT16:
        add_section(e, HALF, 2, n->elements);
        break;
    case MU_HM_MEANSTD_16BIT:
        add_section(e, SCALED, 2, n->elements);
        add_section(e, MEANS, 4, n->rows);
        add_section(e, STDS, 4, n->rows);
        break;
    case MU_HM_UNIFORM_8BIT:
    case MU_HM_QUANTILE_8BIT:
        add_number(e, MU_HM_CODES);
        add_section(e, CODES, 4, MU_HM_CODES);
        add_section(e, e->t.compression == MU_HM_UNIFORM_8BIT ? UNIFORM : QUANTILE, 1, n->elements);
        break;
    case MU_HM_BLOCKWISE_8BIT:
        add_number(e, blocks);
        add_number(e, MU_HM_CODES);
        add_section(e, GREATEST, 4, blocks);
        add_section(e, CODES, 4, MU_HM_CODES);
        add_section(e, BLOCKWISE, 1, n->elements);
        break;
    }
}

static int make_codes(struct mu_hm_encoder *e)
{
    enum mu_hm_compression c = e->t.compression;
    int err = 0;

    if (c != MU_HM_UNIFORM_8BIT && c != MU_HM_QUANTILE_8BIT && c != MU_HM_BLOCKWISE_8BIT) {
        return 0;
    }
    e->codes = mu_calloc(2 * MU_HM_CODES, sizeof(*e->codes));
    if (e->codes == NULL) {
        return MUSTER_ENOMEM;
    }
    e->borders = e->codes + MU_HM_CODES;
    if (c == MU_HM_UNIFORM_8BIT) {
        mu_hm_make_uniform(e);
    } else if (c == MU_HM_QUANTILE_8BIT) {
        err = mu_hm_make_quantile(e);
    } else {
        mu_hm_make_dynamic(e->codes, e->borders);
    }
    if (err != 0) {
        mu_hm_encoder_fini(e);
    }
    return err;
}

int mu_hm_encoder_init(struct mu_hm_encoder *e, const struct mu_hm_tensor *t, struct mu_span values)
{
    struct mu_hm_sizes n;
    uint64_t longest;
    int err = mu_hm_encoded_len_max(t, &longest);

    memset(e, 0, sizeof(*e));
    if (err != 0) {
        return err;
    }
    if (!mu_hm_sizes(t, &n) || n.bytes != values.len) {
        return MUSTER_EINVAL;
    }
    e->t = *t;
    e->values = values.data;
    e->elements = n.elements;
    e->row = n.row;
    lay_out(e, &n);
    MU_ASSERT(e->len <= longest);
    return make_codes(e);
}

void mu_hm_encoder_fini(struct mu_hm_encoder *e)
{
    mu_free(e->codes);
    e->codes = NULL;
    e->borders = NULL;
}

/* --- elements --------------------------------------------------------------------------------- */

static float clamp_to_half(float x)
{
    if (x > MU_HM_HALF_MAX) {
        return MU_HM_HALF_MAX;
    }
    return x < -MU_HM_HALF_MAX ? -MU_HM_HALF_MAX : x;
}

/* Computes the mean and the deviation of a row, unless they are known already. */
static void know_row(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, uint64_t row)
{
    uint64_t first = row * e->row;
    double sum = 0;
    double squares = 0;

    if (c->known && c->part == row) {
        return;
    }
    for (uint64_t i = 0; i < e->row; i++) {
        sum += (double)mu_hm_float_at(e->t.dtype, e->values, first + i);
    }
    c->mean = e->row == 0 ? 0 : (float)(sum / (double)e->row);
    for (uint64_t i = 0; i < e->row; i++) {
        double off = (double)(mu_hm_float_at(e->t.dtype, e->values, first + i) - c->mean);

        squares += off * off;
    }
    c->std = e->row == 0 ? 0 : (float)mu_hm_root(squares / (double)e->row);
    c->std = c->std < MU_HM_STD_MIN ? MU_HM_STD_MIN : c->std;
    c->part = row;
    c->known = true;
}

/* Computes the greatest absolute value of a block, without NaNs. */
static void know_block(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, uint64_t block)
{
    uint64_t first = block * MU_HM_BLOCK;
    uint64_t end = e->elements - first < MU_HM_BLOCK ? e->elements : first + MU_HM_BLOCK;

    if (c->known && c->part == block) {
        return;
    }
    c->std = 0;
    for (uint64_t i = first; i < end; i++) {
        float x = mu_hm_float_at(e->t.dtype, e->values, i);

        x = x < 0 ? -x : x;
        c->std = x > c->std ? x : c->std;
    }
    c->part = block;
    c->known = true;
}

static uint16_t scale_element(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, uint64_t i)
{
    float x = mu_hm_float_at(e->t.dtype, e->values, i);

    know_row(e, c, i / e->row);
    return mu_half_from_float(clamp_to_half((x - c->mean) / c->std));
}

static uint8_t block_index(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, uint64_t i)
{
    float x = mu_hm_float_at(e->t.dtype, e->values, i);

    know_block(e, c, i / MU_HM_BLOCK);
    return mu_hm_border_index(e->borders, c->std > 0 ? x / c->std : 0);
}

static void write_floats(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, enum kind kind,
                         uint64_t first, uint64_t count, uint8_t *out)
{
    for (uint64_t k = 0; k < count; k++) {
        float value;

        if (kind == WIDE) {
            value = mu_hm_float_at(e->t.dtype, e->values, first + k);
        } else if (kind == CODES) {
            value = e->codes[first + k];
        } else if (kind == GREATEST) {
            know_block(e, c, first + k);
            value = c->std;
        } else {
            know_row(e, c, first + k);
            value = kind == MEANS ? c->mean : c->std;
        }
        mu_put_u32(out + k * 4, mu_float_bits(value));
    }
}

static void write_elements(const struct mu_hm_encoder *e, struct mu_hm_cursor *c,
                           const struct mu_hm_section *s, uint64_t first, uint64_t count,
                           uint8_t *out)
{
    enum mu_dtype dtype = e->t.dtype;

    switch ((enum kind)s->kind) {
    case RAW:
        memcpy(out, e->values + first, count);
        break;
    case HALF:
        for (uint64_t k = 0; k < count; k++) {
            mu_put_u16(out + k * 2, mu_half_from_float(clamp_to_half(
                                        mu_hm_float_at(dtype, e->values, first + k))));
        }
        break;
    case SCALED:
        for (uint64_t k = 0; k < count; k++) {
            mu_put_u16(out + k * 2, scale_element(e, c, first + k));
        }
        break;
    case NUMBER:
        mu_put_u64(out, (uint64_t)s->number);
        break;
    case UNIFORM:
        for (uint64_t k = 0; k < count; k++) {
            out[k] = mu_hm_uniform_index(e, mu_hm_float_at(dtype, e->values, first + k));
        }
        break;
    case QUANTILE:
        for (uint64_t k = 0; k < count; k++) {
            out[k] = mu_hm_border_index(e->borders, mu_hm_float_at(dtype, e->values, first + k));
        }
        break;
    case BLOCKWISE:
        for (uint64_t k = 0; k < count; k++) {
            out[k] = block_index(e, c, first + k);
        }
        break;
    case WIDE:
    case MEANS:
    case STDS:
    case GREATEST:
    case CODES:
        write_floats(e, c, (enum kind)s->kind, first, count, out);
        break;
    }
}

/* Reads as much of one section as there is, from an offset in it. Returns how many bytes. */
static size_t read_section(const struct mu_hm_encoder *e, struct mu_hm_cursor *c,
                           const struct mu_hm_section *s, uint8_t *out, size_t len)
{
    uint64_t at = c->offset - s->offset;
    uint64_t first = at / s->size;
    uint32_t skip = (uint32_t)(at % s->size);
    uint64_t count = len / s->size;
    uint8_t one[8];

    if (skip == 0 && count != 0) {
        count = count < s->count - first ? count : s->count - first;
        write_elements(e, c, s, first, count, out);
        return (size_t)(count * s->size);
    }
    /* The piece begins or ends within an element. */
    write_elements(e, c, s, first, 1, one);
    len = len < s->size - skip ? len : s->size - skip;
    memcpy(out, one + skip, len);
    return len;
}

void mu_hm_encoder_read(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, uint8_t *out,
                        size_t len)
{
    MU_ASSERT(c->offset <= e->len && len <= e->len - c->offset);
    for (unsigned i = 0; i < e->section_count && len != 0; i++) {
        const struct mu_hm_section *s = &e->sections[i];

        while (len != 0 && c->offset >= s->offset && c->offset - s->offset < s->size * s->count) {
            size_t n = read_section(e, c, s, out, len);

            out += n;
            len -= n;
            c->offset += n;
        }
    }
}
