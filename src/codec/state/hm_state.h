/*
 * A state on hivemind's wire: the stream that answers `rpc_download_state`. The request is one
 * empty message; the answer is a sequence of
 *
 *     DownloadData {1 bytes metadata; 2 Tensor tensor_part}
 *     Tensor {1 bytes buffer; 2 * uint32 size; 3 bool requires_grad; 4 string dtype;
 *             5 enum compression; 6 int32 chunks}
 *
 * A tensor's encoding (codec/state/hm_tensor.h) is cut into chunks of 64 KiB, a message each. The
 * first has all fields, further ones only `buffer`; the very first message of all has the metadata,
 * a MessagePack map that the trainer interprets. There are no names, no count of tensors and no end
 * marker: hivemind takes what has come when the stream ends. The assembler here checks what can be
 * counted, chunks against `chunks` and bytes against `size` and `dtype`, and with an expected
 * layout also tensors: if the stream is cut off, the error names what is missing. Without an
 * expected layout a stream that is cut off exactly between two tensors looks whole.
 *
 * The assembler keeps the tensors in memory, or passes their bytes on as they come (`pass_on`).
 * bfloat16 and halves are then decoded element by element. A tensor in one of the other encodings
 * is in memory until all of it has come.
 */
#ifndef MU_HM_STATE_H
#define MU_HM_STATE_H

#include "codec/state/hm_tensor.h"

#define MU_HM_CHUNK 65536

/* --- messages --------------------------------------------------------------------------------- */

struct mu_hm_part {
    struct mu_span metadata; /* empty: no metadata. Spans point into the message */
    struct mu_span dtype;    /* empty: a further chunk, or no tensor at all */
    struct mu_span buffer;
    uint64_t shape[MU_TENSOR_RANK_MAX];
    uint32_t rank;
    uint64_t compression;
    uint64_t chunks;
    bool requires_grad;
    bool tensor; /* there is a tensor_part */
};

/** MUSTER_EPROTO. */
int mu_hm_part_decode(struct mu_span message, struct mu_hm_part *ret);
/** Decodes a `Tensor` alone, for other messages that have one: adds to `ret`. MUSTER_EPROTO. */
int mu_hm_part_tensor_decode(struct mu_span in, struct mu_hm_part *ret);
/** Checks that a request, which is empty, can be read. 0 or MUSTER_EPROTO. */
int mu_hm_request_decode(struct mu_span message);

/**
 * The epoch in a trainer's metadata: the number under "epoch" in the map. MUSTER_EPROTO: it is not
 * a map; MUSTER_ENOENT: it has no such number.
 */
int mu_hm_metadata_epoch(struct mu_span metadata, uint64_t *ret_epoch);

/**
 * Appends metadata that contains the epoch: as it is, or with "epoch" before the rest, if it is a
 * map without one, or empty. Metadata that is not a map stays as it is. MUSTER_EPROTO: it cannot be
 * read; MUSTER_ELIMIT, MUSTER_ENOMEM.
 */
int mu_hm_metadata_tell_epoch(struct mu_span metadata, uint64_t epoch, struct mu_buf *out);

/* --- a donor's side --------------------------------------------------------------------------- */

struct mu_hm_state_config {
    const struct mu_layout *layout;     /* borrowed until mu_hm_state_fini(), as everything here */
    const struct mu_span *values;       /* one for each tensor */
    struct mu_span metadata;            /* MessagePack, not empty */
    enum mu_hm_compression compression; /* for tensors that have such an encoding; else NONE */
    bool bfloat16_raw;                  /* for readers with USE_LEGACY_BFLOAT16=0, and for us */
};

struct mu_hm_state {
    /* private */
    struct mu_hm_state_config config;
    struct mu_hm_encoder *encoders;
    uint64_t messages;
};

/**
 * Reads all tensors once: with an 8-bit encoding this takes as long as reading them twice, or
 * sorting them. MUSTER_EINVAL, with a text: no tensor, or no metadata (hivemind would see nothing),
 * an impossible length or dimension; MUSTER_ENOTSUP, MUSTER_ENOMEM.
 */
int mu_hm_state_init(struct mu_hm_state *s, const struct mu_hm_state_config *config,
                     struct mu_errmsg *reterr_msg);
void mu_hm_state_fini(struct mu_hm_state *s);
/** How many messages the state is, and how many bytes of tensors they carry. */
uint64_t mu_hm_state_messages(const struct mu_hm_state *s);
uint64_t mu_hm_state_bytes(const struct mu_hm_state *s);

/* One reader of a state; there may be many. */
struct mu_hm_chunker {
    const struct mu_hm_state *state;
    size_t tensor;
    struct mu_hm_cursor cursor;
    bool begun; /* the tensor */
};

void mu_hm_chunker_init(struct mu_hm_chunker *c, const struct mu_hm_state *s);
/** Appends the next message: 1, or 0 at the end; MUSTER_ELIMIT, MUSTER_ENOMEM: nothing changed. */
int mu_hm_chunker_next(struct mu_hm_chunker *c, struct mu_buf *out);

/* --- a client's side -------------------------------------------------------------------------- */

/* What was loaded: tensors in order, and the metadata. */
struct mu_hm_loaded {
    struct mu_layout layout; /* names are the expected ones, else empty */
    uint8_t **values;        /* NULL if the bytes were passed on */
    struct mu_buf metadata;
};

void mu_hm_loaded_fini(struct mu_hm_loaded *l);

static inline struct mu_span mu_hm_loaded_value(const struct mu_hm_loaded *l, size_t i)
{
    return mu_span(l->values[i], (size_t)l->layout.tensors[i].len);
}

struct mu_hm_assembler_config {
    const struct mu_layout *expected; /* NULL: anything. Borrowed */
    uint64_t bytes_max;               /* of decoded tensors. 16 GiB */
    size_t tensors_max;               /* 1,048,576 */
    size_t metadata_len_max;          /* 16 MiB */
    bool pass_on;                     /* `piece` has each message's bytes, and none are kept */
    uint64_t encoded_max; /* of a tensor that is decoded as a whole, with `pass_on`. 16 GiB */
};

/* Bytes of the state, and where they belong: all tensors, one behind the other. */
struct mu_hm_piece {
    uint64_t offset;
    struct mu_span bytes;
};

/* How a tensor's bytes become its values. */
enum mu_hm_decode_kind {
    MU_HM_DECODE_NOTHING = 1, /* as they are, each chunk at once */
    MU_HM_DECODE_ELEMENTS,    /* decoded, each chunk at once */
    MU_HM_DECODE_WHOLE,       /* decoded, once all have come */
};

struct mu_hm_assembler {
    /* For the caller to read. */
    uint64_t bytes; /* bytes of encoded tensors that have come */
    uint64_t messages;
    struct mu_hm_piece piece; /* from the last message; may be empty. Pieces come in order, and each
                                 lies there as long as the message, and until the next one */
    /* private from here */
    struct mu_hm_assembler_config config;
    struct mu_hm_loaded got;
    size_t value_cap;
    struct mu_buf encoded; /* of the current tensor, unless its bytes go to their place at once */
    struct mu_buf decoded; /* of a tensor that is passed on */
    uint64_t encoded_len;
    uint64_t encoded_max;
    uint64_t chunks;
    uint64_t chunk_count;
    enum mu_hm_compression compression;
    enum mu_hm_decode_kind decoding;
    uint32_t element_len; /* encoded; ELEMENTS */
    bool coming;
    int status;
};

struct mu_hm_assembler_config mu_hm_assembler_config_defaults(void);
void mu_hm_assembler_init(struct mu_hm_assembler *a, const struct mu_hm_assembler_config *config);
void mu_hm_assembler_fini(struct mu_hm_assembler *a);
/** Forgets everything, for another donor. */
void mu_hm_assembler_reset(struct mu_hm_assembler *a);
/**
 * Takes a message. MUSTER_EPROTO: it is malformed, or comes at the wrong place; MUSTER_EINVAL: not
 * what was expected; MUSTER_ENOTSUP: an unknown type or encoding; MUSTER_ELIMIT, MUSTER_ENOMEM.
 * Each has a text. After an error all further calls return it.
 */
int mu_hm_assembler_take(struct mu_hm_assembler *a, struct mu_span message,
                         struct mu_errmsg *reterr_msg);
/**
 * The stream has ended in order. 0: everything is there, and is now the caller's. MUSTER_EREFUSED:
 * nothing came at all, which is how hivemind says that it does not share; MUSTER_EPROTO: something
 * is missing; the text names it.
 */
int mu_hm_assembler_end(struct mu_hm_assembler *a, struct mu_hm_loaded *ret,
                        struct mu_errmsg *reterr_msg);

#endif
