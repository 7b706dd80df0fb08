/*
 * The head of a safetensors file: eight bytes that say how long it is, a JSON object, and behind it
 * the tensors' bytes.
 *
 *     u64 length, {"__metadata__":{...},"w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}},
 *     bytes
 *
 * The bytes of the tensors follow each other without gaps and fill the file to its end.
 */
#ifndef MU_SAFETENSORS_H
#define MU_SAFETENSORS_H

#include "codec/bin/tensor.h"

#define MU_SAFETENSORS_PREFIX_LEN 8
#define MU_SAFETENSORS_HEADER_MAX 100000000u /* of the JSON, as the format has it */

/**
 * How long the JSON is, from the first eight bytes of a file of `file_len` bytes. MUSTER_ECORRUPT:
 * no such file, in words.
 */
int mu_safetensors_length(const uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN], uint64_t file_len,
                          size_t *ret_len, struct mu_errmsg *reterr_msg);
/**
 * Reads the JSON; `data_len` bytes are behind it. The layout, which is empty, gets the tensors in
 * the order of their bytes; `metadata`, if it is not NULL, gets the text of the metadata's object.
 * MUSTER_ECORRUPT: what the format does not allow, in words that name the tensor; MUSTER_ENOTSUP: a
 * type of element that is not known; MUSTER_ELIMIT, MUSTER_ENOMEM. After an error the layout may
 * hold some of it.
 */
int mu_safetensors_parse(struct mu_span json, uint64_t data_len, struct mu_layout *layout,
                         struct mu_buf *metadata, struct mu_errmsg *reterr_msg);
/**
 * Appends the head of a file with these tensors: the eight bytes and the JSON, padded with spaces
 * so that the bytes behind it begin at a multiple of eight. `metadata` is a JSON object of strings,
 * or empty. MUSTER_ELIMIT, MUSTER_ENOMEM: nothing was appended.
 */
int mu_safetensors_write(const struct mu_layout *layout, struct mu_span metadata,
                         struct mu_buf *out);

#endif
