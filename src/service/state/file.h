/*
 * States as safetensors files: makes a manifest of a file's head, and back. A file that is shared
 * and loaded elsewhere is the same file, byte for byte.
 *
 * The metadata of a state that comes from a file is a msgpack map: {"safetensors": the text of the
 * file's __metadata__}; or, where this library would write the head differently,
 * {"safetensors_head": the head as it is}. The metadata of any other state is written into a file
 * as {"muster_metadata": base64}, and read from there.
 *
 * The head of such a file is padded with spaces, which the format allows: as many that a head of
 * the usual number of tensors is always as long as mu_state_file_reserve() says. So a state whose
 * tensors become known one after the other, as hivemind's do, can be written as it comes.
 */
#ifndef MU_STATE_FILE_H
#define MU_STATE_FILE_H

#include "codec/bin/safetensors.h"
#include "codec/state/manifest.h"

/** Reads the length of the head of a file of `file_len` bytes, of which `head` are the first: eight
 * bytes, or all of them. MUSTER_ECORRUPT. */
int mu_state_file_head_len(struct mu_span head, uint64_t file_len, size_t *ret_len,
                           struct mu_errmsg *reterr_msg);
/**
 * Reads a complete head: fills the layout, which must be empty, and appends the state's metadata.
 * Errors as mu_safetensors_parse().
 */
int mu_state_file_parse(struct mu_span head, uint64_t file_len, struct mu_layout *layout,
                        struct mu_buf *metadata, struct mu_errmsg *reterr_msg);
/** How long the head of a state that comes with this metadata will be, if it has not more tensors
 * than usual. */
size_t mu_state_file_reserve(size_t metadata_len);
/** Appends the head of a file with this state. Errors as mu_safetensors_write(). */
int mu_state_file_head(const struct mu_state_manifest *m, struct mu_buf *out);

#endif
