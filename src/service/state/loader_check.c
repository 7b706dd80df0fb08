/* Chunks are hashed on other threads, two at a time where possible. */
#include <string.h>

#include "core/alloc.h"
#include "crypto/state_tree.h"
#include "service/state/loader_internal.h"

/* How long a chunk waits for a second one. If chunks come more slowly than that, the processor has
 * time to hash each alone. */
#define HOLD_MS 10

struct mu_state_check *mu_state_check_new(struct mu_state_loader *l, uint32_t chunk,
                                          void (*settle)(struct mu_state_check *c))
{
    struct mu_state_check *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        c->loader = l;
        c->settle = settle;
        c->chunk = chunk;
        c->offset = mu_state_chunk_offset(&l->share->offer.manifest, chunk);
        c->len = mu_state_share_len(l->share, chunk);
        c->leaf = mu_state_offer_leaf(&l->share->offer, chunk);
    }
    return c;
}

void mu_state_check_free(struct mu_state_check *c)
{
    if (c != NULL) {
        mu_state_share_drop(c->share);
        mu_free(c->bounce);
        mu_free(c);
    }
}

static void read_chunk(struct mu_state_check *c)
{
    if (c->share != NULL && c->share->read != NULL) {
        c->bounce = mu_malloc(c->len);
        c->data = c->bounce;
        c->ok = c->bounce != NULL && c->share->read(c->share, c->offset, c->bounce, c->len) == 0;
    } else {
        c->ok = true;
    }
}

static void hash_chunk(struct mu_state_check *c, uint8_t ret_hash[MU_STATE_HASH_LEN])
{
    struct mu_span chunk = mu_span(c->data, c->len);

    mu_state_leaf(ret_hash, &chunk, 1);
}

static void run_check(struct mu_work *work)
{
    struct mu_state_check *c = MU_CONTAINER_OF(work, struct mu_state_check, work);
    struct mu_state_check *second = c->second;
    uint8_t hashes[2][MU_STATE_HASH_LEN];

    read_chunk(c);
    if (second != NULL) {
        read_chunk(second);
    }
    if (second != NULL && c->ok && second->ok) {
        mu_state_leaf_two(hashes[0], mu_span(c->data, c->len), hashes[1],
                          mu_span(second->data, second->len));
    } else if (c->ok) {
        hash_chunk(c, hashes[0]);
    } else if (second != NULL && second->ok) {
        hash_chunk(second, hashes[1]);
    }
    c->ok = c->ok && memcmp(hashes[0], c->leaf, MU_STATE_HASH_LEN) == 0;
    if (second != NULL) {
        second->ok = second->ok && memcmp(hashes[1], second->leaf, MU_STATE_HASH_LEN) == 0;
    }
}

static void check_done(struct mu_work *work)
{
    struct mu_state_check *c = MU_CONTAINER_OF(work, struct mu_state_check, work);
    struct mu_state_check *second = c->second;
    struct mu_state_loader *l = c->loader;

    c->settle(c);
    mu_state_check_free(c);
    if (second != NULL) {
        second->settle(second);
        mu_state_check_free(second);
    }
    l->jobs--;
    mu_state_loader_turn(l); /* the loader may be gone after this */
}

static int begin(struct mu_state_loader *l, struct mu_state_check *c)
{
    int err;

    c->work.run = run_check;
    c->work.done = check_done;
    err = mu_env_work(l->env, &c->work);
    if (err != 0) {
        mu_state_check_free(c->second);
        mu_state_check_free(c);
        return err;
    }
    l->jobs++;
    return 0;
}

int mu_state_check_begin(struct mu_state_check *c, bool more)
{
    struct mu_state_loader *l = c->loader;

    if (l->held != NULL) {
        struct mu_state_check *first = l->held;

        l->held = NULL;
        first->second = c;
        return begin(l, first);
    }
    if (more) {
        l->held = c;
        l->held_until = mu_mono_add_ms(mu_env_now(l->env).mono, HOLD_MS);
        return 0;
    }
    return begin(l, c);
}

int mu_state_check_flush(struct mu_state_loader *l, mu_mono_t now)
{
    struct mu_state_check *c = l->held;

    if (c == NULL || !mu_mono_reached(l->held_until, now)) {
        return 0;
    }
    l->held = NULL;
    return begin(l, c);
}

mu_mono_t mu_state_check_deadline(const struct mu_state_loader *l)
{
    return l->held == NULL ? MU_MONO_NEVER : l->held_until;
}

void mu_state_check_fini(struct mu_state_loader *l)
{
    mu_state_check_free(l->held);
    l->held = NULL;
}
