/* Answers to asks. */
#include "proto/state/fetch_internal.h"

/* The speed is measured over at least this long, because chunks of one turn come at the same
 * time. */
#define PACE_NS (5 * MU_NS_PER_MS)
/* How many claimed chunks in a row a donor may lack before it is given up. */
#define MISSES_MAX 16

static struct mu_state_ask *first_owed(const struct mu_state_donor *d)
{
    return mu_list_empty(&d->owes) ? NULL
                                   : MU_CONTAINER_OF(d->owes.next, struct mu_state_ask, by_donor);
}

bool mu_state_fetch_owes(const struct mu_state_fetch *f, uint32_t donor,
                         struct mu_state_ask_request *ret, bool *ret_revoked)
{
    const struct mu_state_ask *ask = first_owed(f->donors[donor]);

    if (ask == NULL) {
        return false;
    }
    *ret = (struct mu_state_ask_request){donor, ask->chunk, ask->spare};
    *ret_revoked = ask->revoked;
    return true;
}

void mu_state_fetch_heard(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, size_t bytes)
{
    struct mu_state_donor *d = f->donors[donor];

    d->heard = now;
    if (d->in_flight != 0) {
        d->head_bytes += bytes;
    }
}

/* Takes the first ask that the donor owes, which is answered. NULL: the answer is to another
 * one. */
static struct mu_state_ask *take_answer(struct mu_state_fetch *f, mu_mono_t now,
                                        struct mu_state_donor *d, uint32_t chunk)
{
    struct mu_state_ask *ask = first_owed(d);

    if (ask == NULL || ask->chunk != chunk) {
        return NULL;
    }
    mu_list_remove(&ask->by_donor);
    mu_list_remove(&ask->link);
    /* Wherever the ask goes from here, it is taken off that list again. */
    mu_list_push(&f->unused, &ask->link);
    if (--d->in_flight == 0) {
        d->idle = now;
    }
    d->head_bytes = 0;
    d->heard = now;
    d->paused = false;
    return ask;
}

static void measure(struct mu_state_donor *d, mu_mono_t now, mu_mono_t asked, uint32_t bytes)
{
    uint64_t took = mu_mono_since(asked, now);
    uint64_t ns = mu_mono_since(d->mark, now);

    d->latency_ns = took < d->latency_ns ? took : d->latency_ns;
    d->mark_bytes += bytes;
    if (ns >= PACE_NS) {
        uint64_t pace = d->mark_bytes * 1000000 / (ns / 1000);

        d->bytes_per_s = d->bytes_per_s == 0 ? pace : (d->bytes_per_s * 3 + pace) / 4;
        d->bytes_per_s = d->bytes_per_s == 0 ? 1 : d->bytes_per_s;
        d->mark = now;
        d->mark_bytes = 0;
    }
}

enum mu_state_fetch_verdict mu_state_fetch_received(struct mu_state_fetch *f, mu_mono_t now,
                                                    uint32_t donor, uint32_t chunk)
{
    struct mu_state_donor *d = f->donors[donor];
    struct mu_state_ask *ask = take_answer(f, now, d, chunk);
    struct mu_state_ask *twin;

    if (ask == NULL) {
        return MU_STATE_FETCH_NOT_ASKED;
    }
    measure(d, now, ask->at, mu_state_fetch_len(f, chunk));
    twin = ask->revoked ? NULL : mu_state_ask_twin(f, ask);
    /* While one copy is being hashed, nothing may overwrite it, and a second hash would be useless:
     * a second copy is not needed. */
    if (ask->revoked || !mu_state_fetch_runs(f) ||
        (twin != NULL && mu_list_empty(&twin->by_donor))) {
        d->duplicates++;
        f->bytes_wasted += mu_state_fetch_len(f, chunk);
        mu_state_ask_free(f, ask);
        return MU_STATE_FETCH_DISCARD;
    }
    mu_list_remove(&ask->link);
    mu_list_push(&f->hashing, &ask->link);
    return MU_STATE_FETCH_VERIFY;
}

bool mu_state_fetch_absent(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, uint32_t chunk)
{
    struct mu_state_donor *d = f->donors[donor];
    struct mu_state_ask *ask = take_answer(f, now, d, chunk);
    int err;

    if (ask == NULL) {
        return false;
    }
    d->absent++;
    if (ask->revoked || !mu_state_fetch_runs(f)) {
        mu_state_ask_free(f, ask);
        return true;
    }
    mu_state_ask_let_go(f, ask);
    if (++d->misses >= MISSES_MAX) {
        (void)mu_err(&d->msg, 0, "claimed chunks that it does not have");
        mu_state_donor_drop(f, now, d, MUSTER_EPROTO);
        return true;
    }
    err = mu_state_donor_lacks(f, d, chunk);
    if (err != 0) {
        (void)mu_err(&d->msg, 0, "no memory for what it has");
        mu_state_donor_drop(f, now, d, err);
        return true;
    }
    d->have_at = mu_mono_min(d->have_at, mu_mono_add_ms(now, f->config.have_ms));
    return true;
}

static struct mu_state_ask *find_hashing(struct mu_state_fetch *f, uint32_t donor, uint32_t chunk)
{
    MU_LIST_FOREACH (it, &f->hashing) {
        struct mu_state_ask *ask = MU_CONTAINER_OF(it, struct mu_state_ask, link);

        if (ask->donor == donor && ask->chunk == chunk) {
            return ask;
        }
    }
    return NULL;
}

/* Another donor that was asked is too late. Its answer still comes, and is dropped. */
static void revoke(struct mu_state_fetch *f, struct mu_state_ask *ask)
{
    mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                               .type = MU_STATE_FETCH_EV_REVOKE,
                               .donor = ask->donor,
                               .chunk = ask->chunk,
                               .spare = ask->spare,
                           });
    if (ask->spare != MU_STATE_NO_SPARE) {
        f->spares[f->spares_free++] = ask->spare;
        ask->spare = MU_STATE_NO_SPARE;
    }
    ask->revoked = true;
}

static void accept(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_ask *ask)
{
    struct mu_state_donor *d = f->donors[ask->donor];
    struct mu_state_ask *twin = mu_state_ask_twin(f, ask);

    if (twin != NULL) {
        revoke(f, twin);
    }
    mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                               .type = MU_STATE_FETCH_EV_HAVE,
                               .donor = ask->donor,
                               .chunk = ask->chunk,
                               .spare = ask->spare,
                           });
    mu_state_bit_set(f->have, ask->chunk);
    f->done++;
    f->progress = now;
    d->chunks++;
    d->bytes += mu_state_fetch_len(f, ask->chunk);
    d->tries = 0;
    d->misses = 0;
    mu_state_ask_free(f, ask);
    mu_trace(&f->config.trace, "state.have", d->index, ask->chunk);
    if (f->done == f->config.chunks) {
        mu_state_fetch_finish(f);
    }
}

static void reject(struct mu_state_fetch *f, struct mu_state_ask *ask)
{
    struct mu_state_donor *d = f->donors[ask->donor];
    uint32_t chunk = ask->chunk;

    d->bad++;
    f->bytes_wasted += mu_state_fetch_len(f, chunk);
    mu_state_ask_let_go(f, ask);
    mu_state_donor_ban(f, d, chunk);
    mu_state_fetch_check_hope(f);
}

void mu_state_fetch_verified(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                             uint32_t chunk, bool ok)
{
    struct mu_state_ask *ask = find_hashing(f, donor, chunk);

    if (ask == NULL) {
        return;
    }
    if (!mu_state_fetch_runs(f)) {
        mu_state_ask_free(f, ask);
    } else if (ok) {
        accept(f, now, ask);
    } else {
        reject(f, ask);
    }
    if (mu_state_fetch_runs(f) && mu_list_empty(&f->hashing)) {
        mu_state_fetch_check_hope(f);
    }
}
