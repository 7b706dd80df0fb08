/* Chunks that may be there already are hashed before any is asked for. Those that cannot be read
 * are simply loaded again. */
#include "core/alloc.h"
#include "service/state/loader_internal.h"

#define RESUME_JOBS 4 /* pairs of chunks that are hashed at once */

static void settle_resumed(struct mu_state_check *c)
{
    struct mu_state_loader *l = c->loader;

    if (c->ok && l->have != NULL) {
        mu_state_bit_set(l->have, c->chunk);
        l->resumed_bytes += c->len;
    } else if (l->whole_only) {
        l->spoiled = true;
        l->resume_next = l->share->chunks;
    }
}

static void check_place(struct mu_state_loader *l, uint32_t chunk)
{
    struct mu_state_check *c = mu_state_check_new(l, chunk, settle_resumed);
    struct mu_space place;

    if (c == NULL) {
        return;
    }
    c->share = mu_state_share_hold(l->share);
    if (l->share->read == NULL) {
        if (mu_state_share_place(l->share, chunk, &place)) {
            c->data = place.data;
        } else {
            c->bounce = mu_malloc(c->len);
            c->data = c->bounce;
            if (c->bounce != NULL) {
                mu_state_share_gather(l->share, chunk, c->bounce);
            }
        }
    }
    if (c->data == NULL && l->share->read == NULL) {
        mu_state_check_free(c);
    } else {
        (void)mu_state_check_begin(c, true);
    }
}

void mu_state_resume_turn(struct mu_state_loader *l)
{
    while (l->maybe != NULL && l->resume_next < l->share->chunks && l->jobs < RESUME_JOBS) {
        if (mu_state_bit(l->maybe, l->resume_next)) {
            check_place(l, l->resume_next);
        }
        l->resume_next++;
    }
    (void)mu_state_check_flush(l, MU_MONO_NEVER);
    if (l->jobs == 0 && l->spoiled) {
        mu_state_offer_accept_again(l);
    } else if (l->jobs == 0) {
        mu_state_fetching_start(l);
    }
}

void mu_state_resume_begin(struct mu_state_loader *l, const struct mu_state_plan *plan)
{
    mu_free(l->maybe);
    mu_free(l->have);
    l->maybe = plan->maybe;
    l->have = NULL;
    l->whole_only = plan->whole_only;
    l->spoiled = false;
    l->phase = MU_STATE_RESUMING;
    l->resume_next = 0;
    l->resumed_bytes = 0;
    if (l->maybe != NULL) {
        l->have = mu_calloc(1, mu_state_bits_len(l->share->chunks) + 1);
        l->resume_next = l->have == NULL ? l->share->chunks : 0;
        l->spoiled = l->have == NULL && l->whole_only;
    }
}
