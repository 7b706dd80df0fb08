/*
 * A tensor in hivemind's encodings: the `buffer` of its `Tensor` message. A tensor's own bytes are
 * as in codec/bin/tensor.h; NONE sends them as they are, the others send fewer bytes, with a loss.
 *
 *     NONE            the bytes; bfloat16 as float32 (hivemind's default)
 *                     or as it is. The length shows which of the two was sent.
 *     FLOAT16         halves, clamped to +-65504
 *     MEANSTD_16BIT   halves of (x - mean) / std, for each row of the last dimension; then the
 *                     means, then the deviations, float32
 *     QUANTILE_8BIT   i64 256, float32 codebook[256], u8 index for each: between 256-quantiles
 *     UNIFORM_8BIT    the same form: between borders at equal distance, within three deviations
 *     BLOCKWISE_8BIT  i64 n, i64 256, float32 greatest[n], float32 codebook[256], u8 index for
 *                     each: in blocks of 4,096, each with its greatest absolute value
 *
 * All except NONE are for floats only; FLOAT16 and MEANSTD_16BIT are not for bfloat16, and
 * MEANSTD_16BIT is not for a scalar, which has no rows.
 *
 * Encoding needs memory only for codebooks: an encoder reads the tensor once, when it is made, and
 * then gives its bytes in pieces of any length. Any number of cursors can read one encoder at once,
 * on any thread.
 *
 *     mu_hm_encoder_init(&e, &tensor, values);         may take long for the 8-bit encodings
 *     mu_hm_cursor_init(&c);
 *     mu_hm_encoder_read(&e, &c, out, len);            until mu_hm_encoder_len(&e) bytes are read
 */
#ifndef MU_HM_TENSOR_H
#define MU_HM_TENSOR_H

#include "codec/bin/tensor.h"

#define MU_HM_CODES 256
#define MU_HM_BLOCK 4096

enum mu_hm_compression {
    MU_HM_NONE = 0,
    MU_HM_MEANSTD_16BIT = 1,
    MU_HM_FLOAT16 = 2,
    MU_HM_QUANTILE_8BIT = 3,
    MU_HM_UNIFORM_8BIT = 4,
    MU_HM_BLOCKWISE_8BIT = 5,
};
#define MU_HM_COMPRESSION_LAST MU_HM_BLOCKWISE_8BIT

/** As hivemind calls it, "UNIFORM_8BIT". */
const char *mu_hm_compression_name(enum mu_hm_compression compression);
/** Finds an encoding by its name, in any case. False: there is no such encoding. */
bool mu_hm_compression_parse(struct mu_span name, enum mu_hm_compression *ret);

struct mu_hm_tensor {
    enum mu_dtype dtype;
    enum mu_hm_compression compression;
    bool bfloat16_raw;     /* encoding by NONE: bfloat16 as it is */
    const uint64_t *shape; /* borrowed */
    uint32_t rank;
};

/** Whether there is such an encoding of such a tensor: 0 or MUSTER_ENOTSUP. */
int mu_hm_tensor_check(const struct mu_hm_tensor *t);
/** The tensor's decoded length. MUSTER_EINVAL: it is impossibly large. */
int mu_hm_tensor_len(const struct mu_hm_tensor *t, uint64_t *ret_len);
/** The longest encoding of the tensor that is accepted. MUSTER_EINVAL, MUSTER_ENOTSUP. */
int mu_hm_encoded_len_max(const struct mu_hm_tensor *t, uint64_t *ret_len);
/**
 * Decodes into `out`, which has mu_hm_tensor_len(). Nothing is written before all lengths and
 * indices are known to be right. MUSTER_EPROTO, with a text; MUSTER_EINVAL, MUSTER_ENOTSUP.
 */
int mu_hm_decode(const struct mu_hm_tensor *t, struct mu_span encoded, struct mu_space out,
                 struct mu_errmsg *reterr_msg);

/* --- encoding --------------------------------------------------------------------------------- */

/* A run of equal elements of an encoding. */
struct mu_hm_section {
    int kind;
    uint32_t size; /* of an element */
    uint64_t count;
    uint64_t offset; /* of the first */
    int64_t number;
};

struct mu_hm_encoder {
    /* private */
    struct mu_hm_tensor t;
    const uint8_t *values; /* borrowed until the last read, as t.shape */
    uint64_t elements;
    uint64_t row; /* elements of a row */
    struct mu_hm_section sections[5];
    unsigned section_count;
    uint64_t len;
    float *codes;   /* NULL, or MU_HM_CODES of them */
    float *borders; /* one fewer than the codes */
    double shift, scale;
};

/* A reader's position. */
struct mu_hm_cursor {
    uint64_t offset;
    /* private from here: what is known of a row or a block */
    uint64_t part;
    float mean, std;
    bool known;
};

/** MUSTER_EINVAL: `values` has another length than the tensor; MUSTER_ENOTSUP, MUSTER_ENOMEM. */
int mu_hm_encoder_init(struct mu_hm_encoder *e, const struct mu_hm_tensor *t,
                       struct mu_span values);
void mu_hm_encoder_fini(struct mu_hm_encoder *e);

static inline uint64_t mu_hm_encoder_len(const struct mu_hm_encoder *e)
{
    return e->len;
}

static inline void mu_hm_cursor_init(struct mu_hm_cursor *c)
{
    *c = (struct mu_hm_cursor){0};
}

/** Writes the next `len` bytes; at least as many must be left. */
void mu_hm_encoder_read(const struct mu_hm_encoder *e, struct mu_hm_cursor *c, uint8_t *out,
                        size_t len);

#endif
