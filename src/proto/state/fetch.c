#include "proto/state/fetch.h"

#include <inttypes.h>

#include "proto/state/fetch_internal.h"

struct mu_state_fetch_config mu_state_fetch_config_defaults(void)
{
    return (struct mu_state_fetch_config){
        .deadline = MU_MONO_NEVER,
        .idle_ms = 30000,
        .stall_ms = 5000,
        .have_ms = 200,
        .rest_ms = 250,
        .rest_ms_max = 5000,
        .tries = 6,
        .in_flight_max = 32,
        .asks_max = 256,
        .spares = 8,
        .donors_max = 256,
    };
}

/* --- life --------------------------------------------------------- */

static bool is_valid(const struct mu_state_fetch_config *c)
{
    bool lengths = c->chunks == 0 || (c->chunk_bytes >= c->last_bytes && c->last_bytes != 0 &&
                                      c->chunks <= MU_STATE_CHUNKS_MAX);

    return lengths && c->stall_ms != 0 && c->have_ms != 0 && c->rest_ms != 0 && c->tries != 0 &&
           c->in_flight_max != 0 && c->asks_max != 0 && c->asks_max <= 65536 &&
           c->spares <= c->asks_max && c->donors_max != 0 && c->donors_max <= UINT16_MAX;
}

static int take_memory(struct mu_state_fetch *f)
{
    const struct mu_state_fetch_config *c = &f->config;
    size_t words = mu_state_words_len(c->chunks);

    /* Between two pulls of events, each ask makes at most a REVOKE and a HAVE, and each donor an
     * OPEN, a DROP and a BAN; then there is the END. */
    f->event_cap = 2 * c->asks_max + 3 * c->donors_max + 8;
    f->have = mu_calloc(1, words + 8);
    f->claimed = mu_calloc(1, words + 8);
    f->spread = mu_calloc(1, words + 8);
    f->rarity = mu_calloc((size_t)c->chunks + 1, sizeof(*f->rarity));
    f->donors = mu_calloc(c->donors_max, sizeof(struct mu_state_donor *));
    f->asks = mu_calloc(c->asks_max, sizeof(*f->asks));
    f->spares = mu_calloc((size_t)c->spares + 1, sizeof(*f->spares));
    f->events = mu_calloc(f->event_cap, sizeof(*f->events));
    if (f->have == NULL || f->claimed == NULL || f->spread == NULL || f->rarity == NULL ||
        f->donors == NULL || f->asks == NULL || f->spares == NULL || f->events == NULL) {
        return MUSTER_ENOMEM;
    }
    return 0;
}

/* Takes the bits of the chunks that are there, and clears those beyond the last chunk. */
static void set_have(struct mu_state_fetch *f)
{
    uint32_t chunks = f->config.chunks;

    for (uint32_t i = 0; f->config.have != NULL && i < chunks; i++) {
        if (mu_state_bit(f->config.have, i)) {
            mu_state_bit_set(f->have, i);
            mu_state_bit_set(f->claimed, i);
            f->done++;
        }
    }
    f->unclaimed = chunks - f->done;
    for (size_t i = chunks; i < mu_state_words_len(chunks) * 8; i++) {
        mu_state_bit_set(f->claimed, (uint32_t)i);
    }
    f->config.have = NULL;
}

int mu_state_fetch_init(struct mu_state_fetch *f, const struct mu_state_fetch_config *config,
                        mu_mono_t now)
{
    int err;

    if (!is_valid(config)) {
        return MUSTER_EINVAL;
    }
    *f = (struct mu_state_fetch){
        .config = *config,
        .status = MU_STATE_FETCH_RUNNING,
        .more = true,
        .progress = now,
    };
    mu_prng_seed(&f->prng, config->seed);
    mu_list_init(&f->unused);
    mu_list_init(&f->owed);
    mu_list_init(&f->hashing);
    err = take_memory(f);
    if (err != 0) {
        mu_state_fetch_fini(f);
        return err;
    }
    for (uint32_t i = 0; i < config->asks_max; i++) {
        mu_list_init(&f->asks[i].by_donor);
        mu_list_push(&f->unused, &f->asks[i].link);
    }
    while (f->spares_free < config->spares) {
        f->spares[f->spares_free] = config->spares - 1 - f->spares_free;
        f->spares_free++;
    }
    set_have(f);
    if (f->done == config->chunks) {
        mu_state_fetch_finish(f);
    }
    return 0;
}

void mu_state_fetch_fini(struct mu_state_fetch *f)
{
    for (uint32_t i = 0; i < f->donor_count; i++) {
        mu_free(f->donors[i]->bits);
        mu_free(f->donors[i]);
    }
    mu_free(f->have);
    mu_free(f->claimed);
    mu_free(f->spread);
    mu_free(f->rarity);
    mu_free(f->donors);
    mu_free(f->asks);
    mu_free(f->spares);
    mu_free(f->events);
    *f = (struct mu_state_fetch){0};
}

/* --- events ------------------------------------------------------- */

void mu_state_fetch_push(struct mu_state_fetch *f, const struct mu_state_fetch_event *event)
{
    uint32_t at = (f->event_head + f->event_count) % f->event_cap;

    MU_ASSERT(f->event_count < f->event_cap);
    f->events[at] = *event;
    if (event->text == NULL) {
        f->events[at].text = "";
    }
    f->event_count++;
}

bool mu_state_fetch_next_event(struct mu_state_fetch *f, struct mu_state_fetch_event *ret)
{
    if (f->event_count == 0) {
        return false;
    }
    *ret = f->events[f->event_head];
    f->event_head = (f->event_head + 1) % f->event_cap;
    f->event_count--;
    return true;
}

/* --- the end ------------------------------------------------------ */

static void end(struct mu_state_fetch *f, enum mu_state_fetch_status status, int error)
{
    f->status = status;
    f->error = error;
    mu_state_fetch_push(f, &(struct mu_state_fetch_event){
                               .type = MU_STATE_FETCH_EV_END,
                               .spare = MU_STATE_NO_SPARE,
                               .status = error,
                               .text = f->msg.text,
                           });
}

void mu_state_fetch_fail(struct mu_state_fetch *f, int status)
{
    end(f, MU_STATE_FETCH_FAILED, status);
}

void mu_state_fetch_finish(struct mu_state_fetch *f)
{
    end(f, MU_STATE_FETCH_DONE, 0);
}

void mu_state_fetch_cancel(struct mu_state_fetch *f)
{
    if (mu_state_fetch_runs(f)) {
        mu_state_fetch_fail(f, mu_err(&f->msg, MUSTER_ECANCELED, "canceled"));
    }
}

void mu_state_fetch_check_hope(struct mu_state_fetch *f)
{
    int status = 0;
    bool banned = false;

    if (!mu_state_fetch_runs(f) || f->more || !mu_list_empty(&f->hashing)) {
        return;
    }
    for (uint32_t i = 0; i < f->donor_count; i++) {
        const struct mu_state_donor *d = f->donors[i];

        if (d->state != MU_STATE_DONOR_GIVEN_UP && d->state != MU_STATE_DONOR_BANNED) {
            return;
        }
        status = d->status != 0 ? d->status : MUSTER_ECONN;
        banned = banned || d->state == MU_STATE_DONOR_BANNED;
    }
    if (f->donor_count == 0) {
        mu_state_fetch_fail(f, mu_err(&f->msg, MUSTER_ENOENT, "no donor has this state"));
        return;
    }
    mu_state_fetch_fail(f, mu_err(&f->msg, banned ? MUSTER_ECORRUPT : status,
                                  "no donor is left, and %" PRIu32 " of %" PRIu32
                                  " chunks are missing",
                                  f->config.chunks - f->done, f->config.chunks));
}

void mu_state_fetch_expect(struct mu_state_fetch *f, mu_mono_t now, bool more)
{
    (void)now;
    f->more = more;
    mu_state_fetch_check_hope(f);
}

/* --- time --------------------------------------------------------- */

static mu_mono_t idle_at(const struct mu_state_fetch *f)
{
    return f->config.idle_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(f->progress, f->config.idle_ms);
}

void mu_state_fetch_tick(struct mu_state_fetch *f, mu_mono_t now)
{
    if (mu_state_fetch_runs(f) && mu_mono_reached(f->config.deadline, now)) {
        mu_state_fetch_fail(f, mu_err(&f->msg, MUSTER_ETIMEDOUT,
                                      "not done in time: %" PRIu32 " of %" PRIu32
                                      " chunks are missing",
                                      f->config.chunks - f->done, f->config.chunks));
    }
    if (mu_state_fetch_runs(f) && mu_mono_reached(idle_at(f), now)) {
        mu_state_fetch_fail(f, mu_err(&f->msg, MUSTER_ETIMEDOUT,
                                      "no donor sent anything for %" PRIu32 " ms: %" PRIu32
                                      " of %" PRIu32 " chunks are missing",
                                      f->config.idle_ms, f->config.chunks - f->done,
                                      f->config.chunks));
    }
    for (uint32_t i = 0; mu_state_fetch_runs(f) && i < f->donor_count; i++) {
        mu_state_donor_tick(f, now, f->donors[i]);
    }
}

mu_mono_t mu_state_fetch_deadline(const struct mu_state_fetch *f)
{
    mu_mono_t at = mu_mono_min(f->config.deadline, idle_at(f));

    if (f->event_count != 0) {
        return (mu_mono_t){0};
    }
    if (!mu_state_fetch_runs(f)) {
        return MU_MONO_NEVER;
    }
    for (uint32_t i = 0; i < f->donor_count; i++) {
        at = mu_mono_min(at, mu_state_donor_deadline(f, f->donors[i]));
    }
    return at;
}

void mu_state_fetch_away(struct mu_state_fetch *f, uint64_t ns)
{
    f->progress = mu_mono_add_ns(f->progress, ns);
    for (uint32_t i = 0; i < f->donor_count; i++) {
        f->donors[i]->heard = mu_mono_add_ns(f->donors[i]->heard, ns);
    }
}

/* --- out ---------------------------------------------------------- */

enum mu_state_fetch_status mu_state_fetch_status(const struct mu_state_fetch *f)
{
    return f->status;
}

const char *mu_state_fetch_errmsg(const struct mu_state_fetch *f)
{
    return f->msg.text;
}

const uint8_t *mu_state_fetch_bits(const struct mu_state_fetch *f)
{
    return f->have;
}

uint32_t mu_state_fetch_chunks_done(const struct mu_state_fetch *f)
{
    return f->done;
}

uint64_t mu_state_fetch_bytes_done(const struct mu_state_fetch *f)
{
    uint32_t chunks = f->config.chunks;
    uint64_t bytes = (uint64_t)f->done * f->config.chunk_bytes;

    if (chunks != 0 && mu_state_bit(f->have, chunks - 1)) {
        bytes -= f->config.chunk_bytes - f->config.last_bytes;
    }
    return bytes;
}

uint64_t mu_state_fetch_bytes_wasted(const struct mu_state_fetch *f)
{
    return f->bytes_wasted;
}

size_t mu_state_fetch_donor_count(const struct mu_state_fetch *f)
{
    return f->donor_count;
}
