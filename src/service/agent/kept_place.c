/*
 * Memory that a version is loaded into. Chunks that did not change since the version that was in it
 * before are found by their hashes; those of the version beside it are copied over. So only what
 * changed comes from others.
 */
#include <string.h>

#include "core/alloc.h"
#include "service/agent/kept_internal.h"

#define METADATA_LEN (2 + MU_KEPT_HEAD_LEN) /* msgpack: the bytes of a head */

static struct mu_agent_kept_place *place_of(const struct mu_state_share *share)
{
    return share->owner;
}

bool mu_agent_place_head(const struct mu_agent_copies *c, const struct mu_state_offer *offer,
                         struct mu_kept_head *ret)
{
    const struct mu_state_manifest *m = &offer->manifest;
    struct mu_span meta = mu_buf_span(&m->metadata);

    return meta.len == METADATA_LEN && m->layout.count == 1 &&
           mu_kept_head_decode(meta.data + 2, c->s->kept.bytes, ret) == 0 &&
           ret->bytes == m->layout.bytes && ret->version.era == m->epoch &&
           ret->version.step == m->step;
}

int mu_agent_place_make(struct mu_agent_kept_place *p)
{
    int err = p->made ? 0 : p->c->source->own(p->c->s->kept.bytes, &p->own);

    p->made = p->made || err == 0;
    return err;
}

static uint8_t *bytes_of(const struct mu_agent_kept_place *p)
{
    return p->own.at + MU_KEPT_HEAD_BYTES;
}

static int prepare(struct mu_state_share *share, uint64_t offset, uint64_t len)
{
    const struct mu_agent_kept_place *p = place_of(share);

    return p->c->source->ready(&p->own, MU_KEPT_HEAD_BYTES + offset, len);
}

/* Whether the version beside has this chunk. */
static bool is_beside(const struct mu_state_share *share, uint64_t offset, size_t len)
{
    const struct mu_agent_kept_place *b = place_of(share)->beside;
    const struct mu_state_manifest *m = &share->offer.manifest;
    uint32_t chunk = (uint32_t)(offset / m->chunk_bytes);

    return b != NULL && b->share != NULL && chunk < b->share->chunks &&
           b->share->offer.manifest.chunk_bytes == m->chunk_bytes &&
           mu_state_share_len(b->share, chunk) == len &&
           memcmp(mu_state_offer_leaf(&b->share->offer, chunk),
                  mu_state_offer_leaf(&share->offer, chunk), MU_STATE_HASH_LEN) == 0;
}

/* On any thread: what may be there of the version that is loaded. */
static int read_place(struct mu_state_share *share, uint64_t offset, void *buf, size_t len)
{
    const struct mu_agent_kept_place *p = place_of(share);
    int err = 0;

    if (is_beside(share, offset, len)) {
        err = prepare(share, offset, len);
        if (err == 0) {
            memcpy(bytes_of(p) + offset, bytes_of(p->beside) + offset, len);
        }
    }
    if (err == 0) {
        memcpy(buf, bytes_of(p) + offset, len);
    }
    return err;
}

int mu_agent_place_plan(struct mu_agent_kept_place *p, struct mu_state_plan *plan)
{
    uint32_t chunks = mu_state_chunk_count(&plan->offer->manifest);
    uint64_t bytes = plan->offer->manifest.layout.bytes;

    plan->segments = mu_calloc(1, sizeof(*plan->segments));
    if (plan->segments == NULL) {
        return MUSTER_ENOMEM;
    }
    plan->segments[0] = (struct mu_state_segment){.len = bytes, .data = bytes_of(p)};
    plan->segment_count = bytes == 0 ? 0 : 1;
    if (p->written != 0 || (p->beside != NULL && p->beside->share != NULL)) {
        plan->maybe = mu_calloc(1, mu_state_bits_len(chunks) + 1);
        for (uint32_t i = 0; plan->maybe != NULL && i < chunks; i++) {
            mu_state_bit_set(plan->maybe, i);
        }
    }
    plan->read = read_place;
    plan->prepare = prepare;
    plan->owner = p;
    p->written = bytes + MU_KEPT_HEAD_BYTES > p->written ? bytes + MU_KEPT_HEAD_BYTES : p->written;
    return 0;
}

void mu_agent_place_whole(struct mu_agent_kept_place *p, const struct mu_kept_head *head,
                          struct mu_state_share *share)
{
    mu_kept_head_encode(head, p->own.at);
    share->read = NULL; /* from now on it is memory that nobody writes to */
    p->share = share;
    p->beside = NULL;
    mu_agent_place_give(p);
}

void mu_agent_place_give(struct mu_agent_kept_place *p)
{
    if (p->share != NULL && !p->given && p->c->donor != NULL) {
        p->given = mu_state_donor_add(p->c->donor, p->share) == 0;
    }
}

bool mu_agent_place_free(struct mu_agent_kept_place *p)
{
    if (p->share != NULL && p->given && p->c->donor != NULL) {
        mu_state_donor_withdraw(p->c->donor, p->share, 0);
    }
    p->given = false;
    return p->share == NULL || p->share->refs == 1;
}

void mu_agent_place_fini(struct mu_agent_kept_place *p)
{
    mu_state_share_drop(p->share);
    p->share = NULL;
    if (p->made) {
        p->c->source->disown(&p->own);
        p->made = false;
    }
    p->written = 0;
}
