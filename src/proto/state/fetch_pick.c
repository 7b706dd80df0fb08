/* Chooses which donor to ask for which chunk. */
#include "proto/state/fetch_internal.h"

/* How many candidates are compared for one ask: enough to find a rare one, and a limit on the
 * work. */
#define SCAN_MAX 64
/* How many tries to find a chunk that no incomplete donor has. */
#define THROWS 16
/* How many asks a donor of unknown speed gets. */
#define FIRST_WINDOW 4

/* --- asks --------------------------------------------------------- */

static struct mu_state_ask *find_other(const struct mu_list *list, const struct mu_state_ask *ask)
{
    MU_LIST_FOREACH (it, list) {
        struct mu_state_ask *other = MU_CONTAINER_OF(it, struct mu_state_ask, link);

        if (other != ask && other->chunk == ask->chunk && !other->revoked) {
            return other;
        }
    }
    return NULL;
}

struct mu_state_ask *mu_state_ask_twin(struct mu_state_fetch *f, const struct mu_state_ask *ask)
{
    struct mu_state_ask *other = find_other(&f->hashing, ask);

    return other != NULL ? other : find_other(&f->owed, ask);
}

void mu_state_ask_free(struct mu_state_fetch *f, struct mu_state_ask *ask)
{
    if (ask->spare != MU_STATE_NO_SPARE) {
        f->spares[f->spares_free++] = ask->spare;
    }
    mu_list_remove(&ask->link);
    mu_list_push(&f->unused, &ask->link);
}

void mu_state_ask_let_go(struct mu_state_fetch *f, struct mu_state_ask *ask)
{
    if (mu_state_ask_twin(f, ask) == NULL) {
        mu_state_bit_clear(f->claimed, ask->chunk);
        f->unclaimed++;
    }
    mu_state_ask_free(f, ask);
}

static void make_ask(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d,
                     const struct mu_state_ask_request *request)
{
    struct mu_list *node = mu_list_pop(&f->unused);
    struct mu_state_ask *ask = MU_CONTAINER_OF(node, struct mu_state_ask, link);

    ask->donor = d->index;
    ask->chunk = request->chunk;
    ask->spare = request->spare;
    ask->revoked = false;
    ask->at = now;
    mu_list_push(&f->owed, &ask->link);
    mu_list_push(&d->owes, &ask->by_donor);
    if (d->in_flight++ == 0) {
        /* The time in which the donor had nothing to do counts neither as silence nor as
         * slowness. */
        d->heard = now;
        d->mark = mu_mono_add_ns(d->mark, mu_mono_since(d->idle, now));
    }
    if (!mu_state_bit(f->claimed, ask->chunk)) {
        mu_state_bit_set(f->claimed, ask->chunk);
        f->unclaimed--;
    }
    mu_trace(&f->config.trace, "state.ask", d->index, ask->chunk);
}

/* --- the donor ---------------------------------------------------- */

/* Twice of what the donor sends while an answer is on its way, so that it never runs dry and the
 * window can double while it is too small. */
static uint32_t window_of(const struct mu_state_fetch *f, const struct mu_state_donor *d)
{
    uint32_t most = f->config.in_flight_max;
    uint64_t window = FIRST_WINDOW;

    if (d->bytes_per_s != 0 && d->latency_ns != UINT64_MAX) {
        uint64_t ns = d->latency_ns < MU_NS_PER_S * 10 ? d->latency_ns : MU_NS_PER_S * 10;
        uint64_t kib = d->bytes_per_s / 1024 + 1;

        window = 2 + 2 * (kib * (ns / 1000) / 1000000 * 1024) / f->config.chunk_bytes;
    }
    return window < most ? (uint32_t)window : most;
}

static bool can_ask(const struct mu_state_fetch *f, const struct mu_state_donor *d)
{
    return d->state == MU_STATE_DONOR_READY && !d->paused && d->in_flight < window_of(f, d);
}

/* Returns the nanoseconds until the donor would have sent one more chunk; an unknown speed counts
 * as `pace`, the best, so that it becomes known soon. */
static uint64_t expected_ns(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                            uint64_t pace)
{
    uint64_t bytes = ((uint64_t)d->in_flight + 1) * f->config.chunk_bytes;
    uint64_t per_ms = (d->bytes_per_s != 0 ? d->bytes_per_s : pace) / 1000;

    return 1 + bytes * 1000 / (per_ms == 0 ? 1 : per_ms) * 1000;
}

static uint64_t best_pace(const struct mu_state_fetch *f)
{
    uint64_t best = 1000;

    for (uint32_t i = 0; i < f->donor_count; i++) {
        if (f->donors[i]->bytes_per_s > best) {
            best = f->donors[i]->bytes_per_s;
        }
    }
    return best;
}

/* --- the chunk ---------------------------------------------------- */

/* Finds the rarest chunk that the donor has, beginning at a random place; any of equals. */
static bool pick_rarest(struct mu_state_fetch *f, const struct mu_state_donor *d,
                        uint32_t *ret_chunk)
{
    uint32_t at = (uint32_t)mu_prng_below(&f->prng, f->config.chunks);
    uint32_t best = 0;
    uint32_t equals = 0;
    bool wrapped = false;

    for (uint32_t n = 0; n < SCAN_MAX; n++) {
        uint32_t chunk;

        if (!mu_state_fetch_scan(f, d, at, &chunk)) {
            if (wrapped || !mu_state_fetch_scan(f, d, 0, &chunk)) {
                break;
            }
            wrapped = true;
        }
        if (equals == 0 || f->rarity[chunk] < f->rarity[best]) {
            best = chunk;
            equals = 1;
        } else if (f->rarity[chunk] == f->rarity[best] && mu_prng_below(&f->prng, ++equals) == 0) {
            best = chunk;
        }
        at = chunk + 1;
    }
    if (equals != 0) {
        *ret_chunk = best;
    }
    return equals != 0;
}

/* Finds a chunk that no incomplete donor has, to ask a complete donor for it. */
static bool find_rare(struct mu_state_fetch *f, const struct mu_state_donor *d, uint32_t *ret_chunk)
{
    uint32_t chunks = f->config.chunks;
    uint32_t from = d->cursor < chunks ? d->cursor : 0;

    if (d->parts != 0) {
        uint32_t begin = (uint32_t)((uint64_t)chunks * d->part / d->parts);
        uint32_t end = (uint32_t)((uint64_t)chunks * (d->part + 1) / d->parts);

        if (mu_state_fetch_scan_rare(f, d, begin, end, ret_chunk)) {
            return true;
        }
    }
    if (mu_state_fetch_scan_rare(f, d, from, from + 1, ret_chunk)) {
        return true;
    }
    /* The run has come to chunks that other newcomers have, and just after them may be what they
     * ask for now: continuing there would ask for the same chunks as they do, to the end. */
    for (uint32_t n = 0; n < THROWS; n++) {
        from = (uint32_t)mu_prng_below(&f->prng, chunks);
        if (mu_state_fetch_scan_rare(f, d, from, from + 1, ret_chunk)) {
            return true;
        }
    }
    return mu_state_fetch_scan_rare(f, d, from, chunks, ret_chunk) ||
           mu_state_fetch_scan_rare(f, d, 0, from, ret_chunk);
}

/*
 * A complete donor is asked for runs, which it reads best, but not for chunks that incomplete
 * donors have too: only complete donors have what those lack.
 */
static bool pick_of_full(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t *ret_chunk)
{
    if (!find_rare(f, d, ret_chunk) && !pick_rarest(f, d, ret_chunk)) {
        return false;
    }
    d->cursor = *ret_chunk + 1;
    return true;
}

static bool pick_plain(struct mu_state_fetch *f, struct mu_state_donor *d,
                       struct mu_state_ask_request *ret)
{
    uint32_t chunk = 0;

    if (f->unclaimed == 0 || !(d->full ? pick_of_full(f, d, &chunk) : pick_rarest(f, d, &chunk))) {
        return false;
    }
    *ret = (struct mu_state_ask_request){d->index, chunk, MU_STATE_NO_SPARE};
    return true;
}

/* Finds the oldest chunk that exactly one other donor owes. */
static bool pick_second(struct mu_state_fetch *f, struct mu_state_donor *d,
                        struct mu_state_ask_request *ret)
{
    MU_LIST_FOREACH (it, &f->owed) {
        const struct mu_state_ask *ask = MU_CONTAINER_OF(it, struct mu_state_ask, link);
        bool in_place = ask->spare == MU_STATE_NO_SPARE;

        if (ask->revoked || ask->donor == d->index || !mu_state_donor_has(d, ask->chunk) ||
            (in_place && f->spares_free == 0) || mu_state_ask_twin(f, ask) != NULL) {
            continue;
        }
        /* If the ask in the chunk's own place was lost, that place is free again. */
        *ret = (struct mu_state_ask_request){d->index, ask->chunk, MU_STATE_NO_SPARE};
        if (in_place) {
            ret->spare = f->spares[--f->spares_free];
        }
        return true;
    }
    return false;
}

/* Returns whether a donor that can be asked, now or as soon as it has sent something, has a chunk
 * that no donor was asked for. */
static bool is_plain_left(const struct mu_state_fetch *f)
{
    uint32_t chunk;

    for (uint32_t i = 0; f->unclaimed != 0 && i < f->donor_count; i++) {
        if (f->donors[i]->state == MU_STATE_DONOR_READY &&
            mu_state_fetch_scan(f, f->donors[i], 0, &chunk)) {
            return true;
        }
    }
    return false;
}

/*
 * Tries the donors that can be asked, the one that would be done first before the others, until
 * `pick` finds something for one.
 */
static struct mu_state_donor *try_donors(struct mu_state_fetch *f,
                                         bool (*pick)(struct mu_state_fetch *,
                                                      struct mu_state_donor *,
                                                      struct mu_state_ask_request *),
                                         struct mu_state_ask_request *ret)
{
    uint64_t pace = best_pace(f);
    uint64_t tried_ns = 0;
    uint32_t tried = UINT32_MAX;

    /* Each turn finds the next after (tried_ns, tried) in the order of time, then of number. */
    for (uint32_t turn = 0; turn < f->donor_count; turn++) {
        struct mu_state_donor *best = NULL;
        uint64_t best_ns = 0;

        for (uint32_t i = 0; i < f->donor_count; i++) {
            struct mu_state_donor *d = f->donors[i];
            uint64_t ns = can_ask(f, d) ? expected_ns(f, d, pace) : 0;

            if (ns == 0 ||
                (tried != UINT32_MAX && (ns < tried_ns || (ns == tried_ns && d->index <= tried)))) {
                continue;
            }
            if (best == NULL || ns < best_ns) {
                best = d;
                best_ns = ns;
            }
        }
        if (best == NULL) {
            return NULL;
        }
        if (pick(f, best, ret)) {
            return best;
        }
        tried = best->index;
        tried_ns = best_ns;
    }
    return NULL;
}

bool mu_state_fetch_next(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_ask_request *ret)
{
    struct mu_state_ask_request request;
    struct mu_state_donor *d;

    if (!mu_state_fetch_runs(f) || f->event_count != 0 || mu_list_empty(&f->unused)) {
        return false;
    }
    d = f->unclaimed == 0 ? NULL : try_donors(f, pick_plain, &request);
    if (d == NULL && !mu_list_empty(&f->owed) && !is_plain_left(f)) {
        d = try_donors(f, pick_second, &request);
    }
    if (d == NULL) {
        return false;
    }
    make_ask(f, now, d, &request);
    *ret = request;
    return true;
}

void mu_state_fetch_refuse(struct mu_state_fetch *f, const struct mu_state_ask_request *request)
{
    struct mu_state_donor *d = f->donors[request->donor];
    struct mu_state_ask *ask;

    if (mu_list_empty(&d->owes)) {
        return;
    }
    ask = MU_CONTAINER_OF(d->owes.prev, struct mu_state_ask, by_donor);
    if (ask->chunk != request->chunk) {
        return;
    }
    mu_list_remove(&ask->by_donor);
    if (--d->in_flight == 0) {
        d->idle = ask->at;
    }
    d->paused = true;
    mu_state_ask_let_go(f, ask);
}

void mu_state_fetch_resume(struct mu_state_fetch *f, uint32_t donor)
{
    f->donors[donor]->paused = false;
}
