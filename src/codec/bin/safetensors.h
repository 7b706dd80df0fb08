/*
 * The head of a safetensors file: eight bytes that say how long it is, and a JSON object; the
 * tensors' bytes follow.
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
#define MU_SAFETENSORS_HEADER_MAX 100000000u /* of the JSON, by the format */

/**
 * How long the JSON is, from the first eight bytes of a file of `file_len` bytes. MUSTER_ECORRUPT,
 * with a text: it is not such a file.
 */
int mu_safetensors_length(const uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN], uint64_t file_len,
                          size_t *ret_len, struct mu_errmsg *reterr_msg);
/**
 * Reads the JSON, which `data_len` bytes follow. The layout, which is empty, gets the tensors in
 * the order of their bytes; `metadata`, if it is not NULL, gets the text of the metadata's object.
 * MUSTER_ECORRUPT: the format does not allow it, with a text that names the tensor; MUSTER_ENOTSUP:
 * an unknown type of element; MUSTER_ELIMIT, MUSTER_ENOMEM. After an error the layout may hold some
 * of the tensors.
 */
int mu_safetensors_parse(struct mu_span json, uint64_t data_len, struct mu_layout *layout,
                         struct mu_buf *metadata, struct mu_errmsg *reterr_msg);
/**
 * Appends the head of a file with these tensors: the eight bytes and the JSON, padded with spaces
 * so that the bytes after it begin at a multiple of eight. `metadata` is a JSON object of strings,
 * or empty. MUSTER_ELIMIT, MUSTER_ENOMEM: nothing was appended.
 */
int mu_safetensors_write(const struct mu_layout *layout, struct mu_span metadata,
                         struct mu_buf *out);

#endif
