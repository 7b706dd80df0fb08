/* What the codecs of the rendezvous' messages share. */
#ifndef MU_RDZV_MSG_INTERNAL_H
#define MU_RDZV_MSG_INTERNAL_H

#include "codec/rdzv/msg.h"
#include "core/reader.h"

/* Each message begins with this; bytes after the fields of a version are ignored. */
#define MU_RDZV_MSG_VERSION 1

static inline void mu_rdzv_name_put(struct mu_buf *out, struct mu_span name)
{
    mu_buf_put_u8(out, (uint8_t)name.len);
    mu_buf_put(out, name);
}

static inline struct mu_span mu_rdzv_name_read(struct mu_reader *r)
{
    return mu_read_bytes(r, mu_read_u8(r));
}

/* A reader after the version; it has failed if the version is not ours. */
static inline struct mu_reader mu_rdzv_version_read(struct mu_span in)
{
    struct mu_reader r = mu_reader(in);

    if (mu_read_u8(&r) != MU_RDZV_MSG_VERSION) {
        r.failed = true;
    }
    return r;
}

/* --- heir.c ----------------------------------------------------------------------------------- */

/* MUSTER_ELIMIT: too many electorates. */
int mu_rdzv_view_put(struct mu_buf *out, const struct mu_rdzv_view *view);
/* False: malformed. */
bool mu_rdzv_view_read(struct mu_span in, struct mu_rdzv_view *ret_view);
void mu_rdzv_electorate_put(struct mu_buf *out, const struct mu_rdzv_electorate *e);
/* False: one is malformed. */
bool mu_rdzv_electorates_read(struct mu_reader *r, struct mu_rdzv_electorate *list, uint32_t count);

#endif
