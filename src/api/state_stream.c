/*
 * The public state download: a state that goes into its file as it comes, from one of hivemind's
 * donors. The file's head names every tensor, and the tensors are known only at the end: room is
 * left for the head, and it is padded to fill that. Where the room is too small after all, the
 * bytes are moved.
 *
 * Hivemind's donors cannot begin in the middle. What an interrupted load has left is compared with
 * what comes, and is written only where it differs: so nothing has to say which version it was.
 */
#include <string.h>
#include <sys/stat.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "service/state/file.h"

#define BLOCK ((size_t)1 << 16)
#define MOVE  ((size_t)1 << 20)

static int begin(struct mu_hm_sink *sink, struct mu_span metadata, struct mu_errmsg *msg)
{
    struct mu_state_stream_file *s = MU_CONTAINER_OF(sink, struct mu_state_stream_file, sink);
    struct stat st;
    bool fresh = lstat(s->target->part, &st) != 0;
    int err = 0;

    if (s->file == NULL) {
        err = mu_mapped_begin(s->target->part, &s->file, msg);
        s->target->fresh = s->target->fresh || (err == 0 && fresh);
    }
    if (err == 0 && s->block == NULL) {
        s->block = mu_malloc(BLOCK);
        err = s->block == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory") : 0;
    }
    if (err != 0) {
        return err;
    }
    mu_state_builder_fini(&s->hash);
    mu_state_builder_init(&s->hash, MU_STATE_CHUNK_BYTES);
    s->data_at = mu_state_file_reserve(metadata.len);
    s->kept = s->file->len > s->data_at ? s->file->len - s->data_at : 0;
    s->same = 0;
    s->room = mu_state_target_room(s->target);
    return 0;
}

/* Writes a block, unless it is there. */
static int put_block(struct mu_state_stream_file *s, uint64_t offset, struct mu_span block)
{
    bool same = offset + block.len <= s->kept &&
                mu_mapped_read(s->file, s->data_at + offset, s->block, block.len) == 0 &&
                memcmp(s->block, block.data, block.len) == 0;

    if (same) {
        s->same += block.len;
        return 0;
    }
    s->kept = 0; /* From here on it is another version, or nothing. */
    return mu_mapped_write(s->file, s->data_at + offset, block.data, block.len);
}

static int put(struct mu_hm_sink *sink, uint64_t offset, struct mu_span bytes,
               struct mu_errmsg *msg)
{
    struct mu_state_stream_file *s = MU_CONTAINER_OF(sink, struct mu_state_stream_file, sink);
    int err = mu_state_builder_add(&s->hash, bytes);

    if (offset + bytes.len > s->room) {
        return mu_err(
            msg, MUSTER_ELIMIT,
            "the state has more bytes than nine tenths of the free disk (%llu); free some "
            "space, or set --max-size",
            (unsigned long long)s->room);
    }
    while (err == 0 && bytes.len != 0) {
        struct mu_span block = mu_span(bytes.data, bytes.len < BLOCK ? bytes.len : BLOCK);

        err = put_block(s, offset, block);
        offset += block.len;
        bytes = mu_span_skip(bytes, block.len);
    }
    s->came = s->came || err == 0;
    return err == 0
               ? 0
               : mu_err(msg, err, "cannot write %.150s: %s", s->target->part, muster_strerror(err));
}

/* Another protocol may fill the same file now. */
static void failed(struct mu_hm_sink *sink)
{
    struct mu_state_stream_file *s = MU_CONTAINER_OF(sink, struct mu_state_stream_file, sink);

    mu_mapped_close(s->file);
    s->file = NULL;
}

void mu_state_stream_file_init(struct mu_state_stream_file *s, struct mu_state_target *target)
{
    *s = (struct mu_state_stream_file){.sink = {begin, put, failed}, .target = target};
    mu_state_builder_init(&s->hash, MU_STATE_CHUNK_BYTES);
}

void mu_state_stream_file_fini(struct mu_state_stream_file *s)
{
    mu_mapped_close(s->file);
    s->file = NULL;
    mu_state_builder_fini(&s->hash);
    mu_free(s->block);
    s->block = NULL;
}

int mu_state_stream_file_leaves(struct mu_state_stream_file *s, struct mu_span *ret)
{
    uint8_t root[MU_STATE_HASH_LEN];
    int err = mu_state_builder_end(&s->hash, root);

    *ret = mu_buf_span(&s->hash.leaves);
    return err;
}

/* Moves the bytes to where they begin behind the head, from the side on which they do not overlap
 * what was not moved yet. */
static int move(struct mu_state_stream_file *s, uint64_t to, uint64_t bytes)
{
    uint8_t *block = mu_malloc(MOVE);
    uint64_t done = 0;
    int err = block == NULL ? MUSTER_ENOMEM : 0;

    while (err == 0 && done < bytes) {
        size_t len = bytes - done < MOVE ? (size_t)(bytes - done) : MOVE;
        uint64_t at = to > s->data_at ? bytes - done - len : done;

        err = mu_mapped_read(s->file, s->data_at + at, block, len);
        err = err != 0 ? err : mu_mapped_write(s->file, to + at, block, len);
        done += len;
    }
    mu_free(block);
    s->data_at = to;
    return err;
}

int mu_state_stream_file_finish(struct mu_state_stream_file *s, const struct mu_state_manifest *m,
                                struct mu_mapped **ret_file, uint64_t *ret_data_at,
                                struct mu_errmsg *msg)
{
    struct mu_span none = {0};
    struct mu_buf head;
    int err = 0;

    if (s->file == NULL) { /* All tensors are empty. */
        err = begin(&s->sink, none, msg);
        if (err != 0) {
            return err;
        }
    }
    mu_buf_init(&head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    err = mu_state_file_head(m, &head);
    if (err == 0 && head.len != s->data_at) {
        err = move(s, head.len, m->layout.bytes);
    }
    err = err != 0 ? err : mu_mapped_write(s->file, 0, mu_buf_span(&head).data, head.len);
    err = err != 0 ? err : mu_mapped_end(s->file, head.len + (size_t)m->layout.bytes);
    mu_buf_fini(&head);
    if (err != 0) {
        return mu_err(msg, err, "cannot write %.150s: %s", s->target->part, muster_strerror(err));
    }
    *ret_file = s->file;
    *ret_data_at = s->data_at;
    s->file = NULL;
    return 0;
}
