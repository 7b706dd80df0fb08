/*
 * The scheduler of a download in worlds from a seed: donors that are quick, slow, partial, silent,
 * busy or lying, that come and go, and a driver whose sends are refused now and then. What the
 * header says of landings, spares and ends is checked after every step.
 *
 *     test_state_fetch_model [--seeds COUNT] [--seed SEED]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/error.h>

#include "codec/state/msg.h"
#include "core/prng.h"
#include "proto/state/fetch.h"

#define CHUNKS_MAX 300
#define DONORS_MAX 12
#define OWED_MAX   64
#define SPARES_MAX 8

struct owed {
    uint32_t chunk;
    uint32_t spare;
    bool revoked;
};

struct donor {
    bool open;   /* there is a stream */
    bool silent; /* and nothing comes */
    bool liar;
    bool full;
    uint32_t pace; /* chance of an answer at each step, ppm */
    uint8_t has[CHUNKS_MAX / 8 + 1];
    struct owed owed[OWED_MAX];
    uint32_t count;
};

struct hash {
    uint32_t donor;
    uint32_t chunk;
    uint32_t spare;
    bool good;
};

struct world {
    uint64_t seed;
    struct mu_prng prng;
    struct mu_state_fetch f;
    struct mu_state_fetch_config config;
    mu_mono_t now;
    struct donor donors[DONORS_MAX];
    uint32_t donor_count;
    struct hash hashing[1024];
    uint32_t hashing_count;
    uint8_t have[CHUNKS_MAX / 8 + 1];
    uint32_t done;
    bool ended;
};

static void broken(const struct world *w, const char *what, uint32_t a)
{
    (void)fprintf(stderr, "seed 0x%llx: %s (%u)\n", (unsigned long long)w->seed, what, a);
    abort();
}

static bool chance(struct world *w, uint32_t ppm)
{
    return mu_prng_chance(&w->prng, ppm);
}

/* --- what must hold --------------------------------------------------------------------------- */

/* One landing for each place and each side buffer, none where a chunk is there. */
static void check_places(const struct world *w)
{
    uint8_t places[CHUNKS_MAX] = {0};
    uint8_t spares[SPARES_MAX] = {0};

    for (uint32_t i = 0; i < w->donor_count; i++) {
        for (uint32_t k = 0; k < w->donors[i].count; k++) {
            const struct owed *o = &w->donors[i].owed[k];

            if (!o->revoked) {
                uint8_t *place =
                    o->spare == MU_STATE_NO_SPARE ? &places[o->chunk] : &spares[o->spare];

                if ((*place)++ != 0 || mu_state_bit(w->have, o->chunk)) {
                    broken(w, "two land in one place, or where a chunk is", o->chunk);
                }
            }
        }
    }
    for (uint32_t i = 0; i < w->hashing_count; i++) {
        const struct hash *h = &w->hashing[i];

        /* What is in its place is being read there; no landing was begun there since. */
        if (h->spare == MU_STATE_NO_SPARE ? places[h->chunk] != 0 : spares[h->spare] != 0) {
            broken(w, "somebody lands where a chunk is being hashed", h->chunk);
        }
    }
}

static void on_have(struct world *w, const struct mu_state_fetch_event *e)
{
    if (mu_state_bit(w->have, e->chunk)) {
        broken(w, "a chunk was had twice", e->chunk);
    }
    for (uint32_t i = 0; i < w->donor_count; i++) {
        for (uint32_t k = 0; k < w->donors[i].count; k++) {
            if (w->donors[i].owed[k].chunk == e->chunk && !w->donors[i].owed[k].revoked) {
                broken(w, "a chunk is had that somebody still lands", e->chunk);
            }
        }
    }
    mu_state_bit_set(w->have, e->chunk);
    w->done++;
}

static void on_event(struct world *w, const struct mu_state_fetch_event *e)
{
    struct donor *d = &w->donors[e->donor];

    if (w->ended) {
        broken(w, "an event behind the end", (uint32_t)e->type);
    }
    switch (e->type) {
    case MU_STATE_FETCH_EV_OPEN:
        if (chance(w, 200000)) {
            mu_state_fetch_lost(&w->f, w->now, e->donor,
                                chance(w, 100000) ? MUSTER_ENOENT : MUSTER_ECONN, "no");
        } else if (chance(w, 200000)) {
            mu_state_fetch_busy(&w->f, w->now, e->donor, (uint32_t)mu_prng_below(&w->prng, 2000));
        } else if (!chance(w, 50000)) {
            d->open = true;
            mu_state_fetch_ready(&w->f, w->now, e->donor);
        }
        break;
    case MU_STATE_FETCH_EV_ASK_HAVE:
        if (!chance(w, 100000)) {
            (void)mu_state_fetch_have(&w->f, w->now, e->donor, d->full ? NULL : d->has);
        }
        break;
    case MU_STATE_FETCH_EV_REVOKE:
        for (uint32_t k = 0; k < d->count; k++) {
            if (d->owed[k].chunk == e->chunk && !d->owed[k].revoked) {
                d->owed[k].revoked = true;
                return;
            }
        }
        broken(w, "what nobody owes was revoked", e->chunk);
        break;
    case MU_STATE_FETCH_EV_HAVE:
        on_have(w, e);
        break;
    case MU_STATE_FETCH_EV_BAN:
        if (!d->liar) {
            broken(w, "an honest donor was banned", e->donor);
        }
        d->open = false;
        d->count = 0;
        break;
    case MU_STATE_FETCH_EV_DROP:
        d->open = false;
        d->count = 0;
        break;
    case MU_STATE_FETCH_EV_END:
        w->ended = true;
        if ((e->status == 0) != (w->done == w->config.chunks)) {
            broken(w, "it ended well without all chunks, or badly with them", w->done);
        }
        break;
    }
}

static void pull(struct world *w)
{
    struct mu_state_fetch_event e;

    while (mu_state_fetch_next_event(&w->f, &e)) {
        on_event(w, &e);
    }
    if (mu_state_fetch_chunks_done(&w->f) != w->done ||
        memcmp(mu_state_fetch_bits(&w->f), w->have, mu_state_bits_len(w->config.chunks)) != 0) {
        broken(w, "the bits are not what the events said", w->done);
    }
}

/* --- what happens ----------------------------------------------------------------------------- */

static void ask(struct world *w)
{
    struct mu_state_ask_request r;

    for (int n = 0; n < 200 && mu_state_fetch_next(&w->f, w->now, &r); n++) {
        struct donor *d = &w->donors[r.donor];

        if (!d->open || mu_state_bit(w->have, r.chunk) || d->count == OWED_MAX) {
            broken(w, "nobody to ask, or what is there is asked for", r.chunk);
        }
        if (chance(w, 20000)) {
            mu_state_fetch_refuse(&w->f, &r);
            continue;
        }
        d->owed[d->count++] = (struct owed){r.chunk, r.spare, false};
        check_places(w);
    }
}

static struct owed pop(struct donor *d)
{
    struct owed o = d->owed[0];

    d->count--;
    memmove(d->owed, d->owed + 1, d->count * sizeof(d->owed[0]));
    return o;
}

static void answer(struct world *w, uint32_t donor)
{
    struct donor *d = &w->donors[donor];
    struct mu_state_ask_request owes;
    struct owed o;
    bool revoked;

    if (!mu_state_fetch_owes(&w->f, donor, &owes, &revoked) || owes.chunk != d->owed[0].chunk ||
        revoked != d->owed[0].revoked) {
        broken(w, "it is not known what a donor owes", donor);
    }
    o = pop(d);
    if (!d->full && !mu_state_bit(d->has, o.chunk)) {
        if (!mu_state_fetch_absent(&w->f, w->now, donor, o.chunk)) {
            broken(w, "a chunk that it owes was not taken for absent", o.chunk);
        }
        return;
    }
    switch (mu_state_fetch_received(&w->f, w->now, donor, o.chunk)) {
    case MU_STATE_FETCH_VERIFY:
        if (o.revoked) {
            broken(w, "what was revoked is to be hashed", o.chunk);
        }
        w->hashing[w->hashing_count++] =
            (struct hash){donor, o.chunk, o.spare, !d->liar || chance(w, 900000)};
        break;
    case MU_STATE_FETCH_DISCARD:
        break;
    case MU_STATE_FETCH_NOT_ASKED:
        broken(w, "what a donor owes was not taken", o.chunk);
        break;
    }
}

static void finish_hash(struct world *w, uint32_t i)
{
    struct hash h = w->hashing[i];

    w->hashing[i] = w->hashing[--w->hashing_count];
    mu_state_fetch_verified(&w->f, w->now, h.donor, h.chunk, h.good);
}

static void disturb(struct world *w)
{
    uint32_t i = (uint32_t)mu_prng_below(&w->prng, w->donor_count);
    struct donor *d = &w->donors[i];

    if (d->open && chance(w, 3000)) {
        d->open = false;
        d->count = 0;
        mu_state_fetch_lost(&w->f, w->now, i, MUSTER_ECONN, "reset");
    }
    if (chance(w, 3000)) {
        d->silent = !d->silent;
    }
    if (!d->full) {
        mu_state_bit_set(d->has, (uint32_t)mu_prng_below(&w->prng, w->config.chunks));
        if (chance(w, 50000)) {
            mu_state_bit_clear(d->has, (uint32_t)mu_prng_below(&w->prng, w->config.chunks));
        }
    }
    mu_state_fetch_resume(&w->f, i);
}

static void step(struct world *w)
{
    w->now = mu_mono_add_ns(w->now, mu_prng_below(&w->prng, 20 * MU_NS_PER_MS));
    if (mu_mono_reached(mu_state_fetch_deadline(&w->f), w->now)) {
        mu_state_fetch_tick(&w->f, w->now);
        pull(w);
    }
    for (uint32_t i = 0; i < w->donor_count && !w->ended; i++) {
        struct donor *d = &w->donors[i];

        if (d->count != 0 && !d->silent && chance(w, d->pace)) {
            answer(w, i);
            pull(w);
        } else if (d->count != 0 && !d->silent) {
            mu_state_fetch_heard(&w->f, w->now, i, 1);
        }
    }
    while (w->hashing_count != 0 && chance(w, 700000)) {
        finish_hash(w, (uint32_t)mu_prng_below(&w->prng, w->hashing_count));
        pull(w);
    }
    if (!w->ended) {
        disturb(w);
        pull(w);
        ask(w);
        check_places(w);
    }
}

/* --- a world ---------------------------------------------------------------------------------- */

static void make_donor(struct world *w)
{
    struct donor *d = &w->donors[w->donor_count];
    uint32_t index;

    *d = (struct donor){
        .liar = chance(w, 200000),
        .full = chance(w, 500000),
        .pace = 20000 + (uint32_t)mu_prng_below(&w->prng, 980000),
    };
    for (uint32_t i = 0; i < w->config.chunks; i++) {
        if (chance(w, 400000)) {
            mu_state_bit_set(d->has, i);
        }
    }
    w->donor_count++;
    if (mu_state_fetch_add(&w->f, w->now, MU_SPAN_LIT("donor"), &index) != 0 ||
        index != w->donor_count - 1) {
        broken(w, "a donor was not taken", w->donor_count);
    }
    pull(w);
}

static bool run_world(uint64_t seed)
{
    struct world *w = calloc(1, sizeof(*w));
    uint32_t donors;
    bool done;

    if (w == NULL) {
        abort();
    }
    w->seed = seed;
    mu_prng_seed(&w->prng, seed);
    w->now = (mu_mono_t){MU_NS_PER_S};
    w->config = mu_state_fetch_config_defaults();
    w->config.chunks = 1 + (uint32_t)mu_prng_below(&w->prng, chance(w, 500000) ? 20 : CHUNKS_MAX);
    w->config.chunk_bytes = 4096;
    w->config.last_bytes = 1 + (uint32_t)mu_prng_below(&w->prng, 4096);
    w->config.seed = mu_prng_u64(&w->prng);
    w->config.spares = (uint32_t)mu_prng_below(&w->prng, SPARES_MAX + 1);
    w->config.asks_max = SPARES_MAX + (uint32_t)mu_prng_below(&w->prng, 100);
    w->config.idle_ms = chance(w, 500000) ? 0 : 8000;
    w->config.stall_ms = 1 + (uint32_t)mu_prng_below(&w->prng, 3000);
    w->config.deadline = mu_mono_add_ms(w->now, 30000);
    donors = 1 + (uint32_t)mu_prng_below(&w->prng, DONORS_MAX);
    if (mu_state_fetch_init(&w->f, &w->config, w->now) != 0) {
        broken(w, "no memory", 0);
    }
    while (!w->ended) {
        if (w->donor_count < donors && (w->donor_count == 0 || chance(w, 50000))) {
            make_donor(w);
            mu_state_fetch_expect(&w->f, w->now, w->donor_count < donors);
            pull(w);
        }
        if (!w->ended) {
            step(w);
        }
        if (w->now.ns > w->config.deadline.ns + MU_NS_PER_S) {
            broken(w, "it went on past its deadline", w->done);
        }
    }
    /* What was still being hashed comes to nothing. */
    while (w->hashing_count != 0) {
        finish_hash(w, 0);
        pull(w);
    }
    done = w->done == w->config.chunks;
    mu_state_fetch_fini(&w->f);
    free(w);
    return done;
}

int main(int argc, char **argv)
{
    uint64_t seeds = 2000;
    uint64_t well = 0;

    if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        (void)run_world(strtoull(argv[2], NULL, 0));
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        seeds = strtoull(argv[2], NULL, 0);
    }
    for (uint64_t seed = 1; seed <= seeds; seed++) {
        well += run_world(seed) ? 1 : 0;
    }
    (void)printf("%llu worlds, %llu downloads went well\n", (unsigned long long)seeds,
                 (unsigned long long)well);
    /* A world in which nothing ever goes well would prove nothing. */
    return well < seeds / 2 ? 1 : 0;
}
