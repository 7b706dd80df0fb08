/* The public state download: tensors in memory and safetensors files, without the network. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "service/state/file.h"

int mu_state_read_head(const struct mu_mapped *m, struct mu_buf *out, struct mu_errmsg *msg)
{
    uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN];
    size_t len = 0;
    int err = m->len < sizeof(prefix) ? 0 : mu_mapped_read(m, 0, prefix, sizeof(prefix));

    if (err == 0) {
        err = mu_state_file_head_len(mu_span(prefix, m->len < sizeof(prefix) ? 0 : sizeof(prefix)),
                                     m->len, &len, msg);
        if (err != 0) {
            return err;
        }
        err = mu_buf_reserve(out, len);
    }
    if (err == 0) {
        err = mu_mapped_read(m, 0, mu_buf_grow(out, len), len);
    }
    return err == 0 ? 0 : mu_err(msg, err, "%s", muster_strerror(err));
}

/* --- writing ---------------------------------------------------------------------------------- */

static int fill(struct mu_mapped *m, struct mu_span head, const struct mu_layout *layout,
                uint8_t *const *tensors)
{
    memcpy(m->data, head.data, head.len);
    for (size_t i = 0; i < layout->count; i++) {
        if (layout->tensors[i].len != 0) {
            memcpy(m->data + head.len + layout->tensors[i].offset, tensors[i],
                   (size_t)layout->tensors[i].len);
        }
    }
    return mu_mapped_sync(m);
}

/* Writes a file beside `path`, syncs it and renames it: `path` is the old file or the new one. */
static int write_file(const char *path, const char *fresh, struct mu_span head,
                      const struct mu_layout *layout, uint8_t *const *tensors,
                      struct mu_errmsg *msg)
{
    struct mu_mapped *m;
    bool found = access(fresh, F_OK) == 0;
    uint64_t len;
    int err;

    if (__builtin_add_overflow(layout->bytes, head.len, &len) || len > SIZE_MAX) {
        return mu_err(msg, MUSTER_ELIMIT, "%.120s: the state is too large for a file", path);
    }
    err = mu_mapped_create(fresh, (size_t)len, &m, msg);
    if (err != 0) {
        if (!found) {
            (void)remove(fresh); /* on a disk that is full */
        }
        return err;
    }
    err = fill(m, head, layout, tensors);
    if (err == 0 && rename(fresh, path) != 0) {
        err = -errno;
    }
    mu_mapped_close(m);
    if (err != 0) {
        (void)remove(fresh);
        return mu_err(msg, err, "%.120s: %s", path, muster_strerror(err));
    }
    return 0;
}

int muster_state_save(const char *path, const struct muster_tensor *tensors, size_t tensor_count,
                      struct muster_bytes metadata)
{
    struct mu_state_manifest manifest = {0};
    char *fresh = NULL;
    struct mu_errmsg msg;
    struct mu_buf head;
    uint8_t **data;
    int err = mu_state_layout_of(tensors, tensor_count, &manifest.layout, &data, &msg);

    if (err == 0) {
        err = mu_layout_check_names(&manifest.layout, &msg);
        if (err != 0) {
            mu_layout_fini(&manifest.layout);
            mu_free(data);
        }
    }
    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    mu_buf_init(&head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    mu_buf_init(&manifest.metadata, MU_STATE_METADATA_MAX);
    err = mu_buf_append(&manifest.metadata, mu_span(metadata.data, metadata.len));
    err = err != 0 ? err : mu_state_file_head(&manifest, &head);
    if (err == 0) {
        size_t len = strlen(path) + sizeof(".save");

        fresh = mu_malloc(len);
        err = fresh == NULL ? MUSTER_ENOMEM : 0;
        if (err == 0) {
            (void)snprintf(fresh, len, "%s.save", path);
        }
    }
    if (err != 0) {
        (void)mu_err(&msg, err, "%.120s: %s", path, muster_strerror(err));
    } else {
        err = write_file(path, fresh, mu_buf_span(&head), &manifest.layout, data, &msg);
    }
    mu_free(fresh);
    mu_buf_fini(&head);
    mu_buf_fini(&manifest.metadata);
    mu_layout_fini(&manifest.layout);
    mu_free(data);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}

/* --- reading ---------------------------------------------------------------------------------- */

static int read_tensors(const struct mu_mapped *m, const struct mu_layout *expected,
                        uint8_t *const *tensors, struct mu_errmsg *msg)
{
    struct mu_layout layout;
    struct mu_buf metadata;
    struct mu_buf head;
    int err;

    mu_layout_init(&layout);
    mu_buf_init(&head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    mu_buf_init(&metadata, MU_STATE_METADATA_MAX);
    err = mu_state_read_head(m, &head, msg);
    err = err != 0 ? err : mu_state_file_parse(mu_buf_span(&head), m->len, &layout, &metadata, msg);
    err = err != 0 ? err : mu_layout_check(expected, &layout, msg);
    for (size_t i = 0; err == 0 && i < layout.count; i++) {
        err = mu_mapped_read(m, head.len + layout.tensors[i].offset, tensors[i],
                             (size_t)layout.tensors[i].len);
        if (err != 0) {
            (void)mu_err(msg, err, "cannot read the file: %s", muster_strerror(err));
        }
    }
    mu_layout_fini(&layout);
    mu_buf_fini(&head);
    mu_buf_fini(&metadata);
    return err;
}

int muster_state_read(const char *path, const struct muster_tensor *tensors, size_t tensor_count)
{
    struct mu_layout expected;
    struct mu_mapped *m = NULL;
    struct mu_errmsg msg;
    uint8_t **data;
    int err = mu_state_layout_of(tensors, tensor_count, &expected, &data, &msg);

    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    err = mu_mapped_open(path, &m, &msg);
    if (err == 0) {
        err = read_tensors(m, &expected, data, &msg);
        if (err != 0) {
            mu_err_prefix(&msg, "%.120s", path);
        }
        mu_mapped_close(m);
    }
    mu_layout_fini(&expected);
    mu_free(data);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}
