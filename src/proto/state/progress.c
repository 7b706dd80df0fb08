#include "proto/state/progress.h"

#include <muster/error.h>

#include "codec/dht/dict.h"
#include "codec/bin/msgpack.h"
#include "core/assert.h"

#define SPEED_MIN 1e-20 /* avoids a division by zero */

static const char *const fields[] = {
    "peer_id", "epoch", "samples_accumulated", "samples_per_second", "time", "client_mode"};
enum {
    PEER_ID,
    EPOCH,
    SAMPLES,
    SPEED,
    TIME,
    CLIENT,
    FIELDS,
};

/* --- records ---------------------------------------------------------------------------------- */

int mu_progress_record_encode(const struct mu_progress_record *r, struct mu_buf *buf)
{
    struct mu_mp_out out = mu_mp_out(buf);

    mu_mp_put_map(&out, FIELDS);
    mu_mp_put_str(&out, mu_span_str(fields[PEER_ID]));
    mu_mp_put_bin(&out, r->peer);
    mu_mp_put_str(&out, mu_span_str(fields[EPOCH]));
    mu_mp_put_uint(&out, r->epoch);
    mu_mp_put_str(&out, mu_span_str(fields[SAMPLES]));
    mu_mp_put_uint(&out, r->samples);
    mu_mp_put_str(&out, mu_span_str(fields[SPEED]));
    mu_mp_put_double(&out, r->samples_per_second);
    mu_mp_put_str(&out, mu_span_str(fields[TIME]));
    mu_mp_put_double(&out, r->time);
    mu_mp_put_str(&out, mu_span_str(fields[CLIENT]));
    mu_mp_put_bool(&out, r->client);
    return out.err;
}

static int find_field(struct mu_span name)
{
    for (int i = 0; i < FIELDS; i++) {
        if (mu_span_eq(name, mu_span_str(fields[i]))) {
            return i;
        }
    }
    return FIELDS;
}

static bool is_finite(double x)
{
    return x - x == 0;
}

static bool set_field(struct mu_progress_record *r, int field, const struct mu_mp *t)
{
    switch (field) {
    case PEER_ID:
        r->peer = t->bytes;
        return t->type == MU_MP_BIN;
    case EPOCH:
        r->epoch = t->number;
        return t->type == MU_MP_UINT;
    case SAMPLES:
        r->samples = t->number;
        return t->type == MU_MP_UINT;
    case SPEED:
        r->samples_per_second = t->real;
        return t->type == MU_MP_FLOAT && is_finite(t->real) && t->real >= 0;
    case TIME:
        r->time = t->real;
        return t->type == MU_MP_FLOAT && is_finite(t->real);
    case CLIENT:
        r->client = t->boolean;
        return t->type == MU_MP_BOOL;
    default:
        return true;
    }
}

int mu_progress_record_decode(struct mu_span value, struct mu_progress_record *ret)
{
    struct mu_progress_record r = {0};
    unsigned seen = 0;
    struct mu_mp map;

    if (mu_mp_next(&value, &map) != 0) {
        return MUSTER_EPROTO;
    }
    if (map.type == MU_MP_NIL) {
        return MUSTER_ENOENT;
    }
    if (map.type != MU_MP_MAP) {
        return MUSTER_EPROTO;
    }
    for (uint32_t i = 0; i < map.count; i++) {
        struct mu_span whole;
        struct mu_mp key;
        struct mu_mp t;
        int field;

        if (mu_mp_next(&value, &key) != 0 || key.type != MU_MP_STR ||
            mu_mp_skip(&value, &whole) != 0 || mu_mp_next(&whole, &t) != 0) {
            return MUSTER_EPROTO;
        }
        field = find_field(key.bytes);
        if (!set_field(&r, field, &t)) {
            return MUSTER_EPROTO;
        }
        seen |= 1u << field;
    }
    if ((seen & ((1u << FIELDS) - 1)) != (1u << FIELDS) - 1) {
        return MUSTER_EPROTO;
    }
    *ret = r;
    return 0;
}

/* --- ourselves -------------------------------------------------------------------------------- */

struct mu_progress_config mu_progress_config_defaults(void)
{
    return (struct mu_progress_config){
        .target_batch_size = 1,
        .fetch_min_ms = 500,
        .fetch_max_ms = 10000,
        .fetch_alone_ms = 3000,
        .expiration_ms = 60000,
        .doubt_ms = 60000,
        .tolerance = 1,
        .witnesses = 2,
        .drift_peers = 3,
        .drift_rate = 0.2,
        .alpha = 0.1,
    };
}

static double wall_s(struct mu_now now)
{
    return (double)now.wall.ns / 1e9;
}

void mu_progress_init(struct mu_progress *p, const struct mu_progress_config *config,
                      struct mu_now now)
{
    MU_ASSERT(config->witnesses >= 1 && config->witnesses <= MU_PROGRESS_WITNESSES_MAX);
    MU_ASSERT(config->target_batch_size != 0);
    *p = (struct mu_progress){.config = *config};
    p->samples_per_second = SPEED_MIN;
    p->ema_since = now.mono;
    p->next_fetch = now.mono;
    p->next_store = MU_MONO_NEVER;
    p->exact_wanted = true;
    p->swarm.eta = __builtin_inf();
}

/* Updates the moving average of the time that one sample takes, corrected for having begun at
 * zero. */
static void update_speed(struct mu_progress *p, struct mu_now now, uint64_t samples)
{
    double took = (double)mu_mono_since(p->ema_since, now.mono) / 1e9;
    double alpha = p->config.alpha;
    double left = 1;
    double mean;

    p->ema = alpha * took / (double)samples + (1 - alpha) * p->ema;
    p->ema_updates++;
    /* After some hundred updates nothing is left to correct. */
    for (uint64_t i = 0; i < p->ema_updates && left > 1e-12; i++) {
        left *= 1 - alpha;
    }
    mean = p->ema / (1 - left);
    p->samples_per_second = 1 / (mean > SPEED_MIN ? mean : SPEED_MIN);
}

void mu_progress_report(struct mu_progress *p, struct mu_now now, uint64_t epoch, uint64_t samples)
{
    if (epoch == p->epoch && epoch == p->swarm.epoch) {
        if (samples >= p->samples) {
            p->swarm.samples += samples - p->samples;
        } else {
            uint64_t lost = p->samples - samples;

            p->swarm.samples -= lost < p->swarm.samples ? lost : p->swarm.samples;
        }
    }
    if (samples > p->samples && !p->paused) {
        update_speed(p, now, samples - p->samples);
    }
    p->ema_since = now.mono;
    p->epoch = epoch;
    p->samples = samples;
    p->store_wanted = true;
}

void mu_progress_update_epoch(struct mu_progress *p, struct mu_now now, uint64_t epoch)
{
    if (epoch > p->swarm.epoch) {
        p->swarm.epoch = epoch;
        p->swarm.samples = 0;
        p->swarm.estimated_samples = 0;
        p->swarm.eta = __builtin_inf();
    }
    mu_progress_report(p, now, epoch, 0);
    p->fetched = false;
    p->exact_wanted = true;
}

void mu_progress_pause(struct mu_progress *p)
{
    p->paused = true;
}

void mu_progress_resume(struct mu_progress *p, struct mu_now now)
{
    p->paused = false;
    p->ema_since = now.mono;
}

bool mu_progress_ready(const struct mu_progress *p, struct mu_now now)
{
    return p->swarm.epoch > p->epoch || p->swarm.samples >= p->config.target_batch_size ||
           wall_s(now) >= p->swarm.eta;
}

struct mu_progress_record mu_progress_record(const struct mu_progress *p, struct mu_now now)
{
    return (struct mu_progress_record){
        .peer = mu_peer_id_span(&p->config.self),
        .epoch = p->epoch,
        .samples = p->samples,
        .samples_per_second = p->samples_per_second,
        .time = wall_s(now),
        .client = p->config.client,
    };
}

/* --- the driver ------------------------------------------------------------------------------- */

mu_mono_t mu_progress_deadline(const struct mu_progress *p)
{
    mu_mono_t store = p->store_wanted ? (mu_mono_t){0} : p->next_store;
    mu_mono_t fetch = p->fetching || p->paused ? MU_MONO_NEVER : p->next_fetch;

    return mu_mono_min(store, fetch);
}

bool mu_progress_store_due(struct mu_progress *p, struct mu_now now)
{
    if (!p->store_wanted && !mu_mono_reached(p->next_store, now.mono)) {
        return false;
    }
    p->store_wanted = false;
    p->next_store = mu_mono_add_ms(now.mono, p->config.expiration_ms / 2);
    if (p->samples > 0) {
        p->active = true;
        p->active_epoch = p->swarm.epoch;
    }
    return p->active && (p->swarm.epoch == 0 || p->active_epoch >= p->swarm.epoch - 1);
}

bool mu_progress_fetch_due(struct mu_progress *p, struct mu_now now)
{
    if (p->fetching || p->paused || !mu_mono_reached(p->next_fetch, now.mono)) {
        return false;
    }
    p->fetching = true;
    return true;
}

/* --- the swarm -------------------------------------------------------------------------------- */

/* Finds the next valid record of the dictionary. */
static bool next_record(struct mu_dht_dict *dict, double now, struct mu_progress_record *ret,
                        size_t *bad)
{
    struct mu_dht_entry entry;

    while (mu_dht_dict_next(dict, &entry)) {
        int err;

        if (!(entry.expiration >= now)) {
            continue;
        }
        err = mu_progress_record_decode(entry.value, ret);
        if (err == 0) {
            return true;
        }
        *bad += err != MUSTER_ENOENT;
    }
    return false;
}

static bool is_ours(const struct mu_progress *p, const struct mu_progress_record *r)
{
    return mu_span_eq(r->peer, mu_peer_id_span(&p->config.self));
}

/* Collects the greatest epochs of others, as many as there must be witnesses, in descending
 * order. */
static size_t find_greatest(const struct mu_progress *p, struct mu_dht_dict dict, double now,
                            uint64_t top[MU_PROGRESS_WITNESSES_MAX])
{
    struct mu_progress_record r;
    size_t count = 0;
    size_t bad = 0;

    while (next_record(&dict, now, &r, &bad)) {
        size_t at;

        if (r.client || is_ours(p, &r)) {
            continue;
        }
        if (count < p->config.witnesses) {
            at = count++;
        } else if (r.epoch > top[count - 1]) {
            at = count - 1;
        } else {
            continue;
        }
        for (; at > 0 && top[at - 1] < r.epoch; at--) {
            top[at] = top[at - 1];
        }
        top[at] = r.epoch;
    }
    return count;
}

static bool is_within(const struct mu_progress *p, uint64_t epoch, uint64_t base)
{
    return epoch <= base || epoch - base <= p->config.tolerance;
}

static bool is_doubted(const struct mu_progress *p, struct mu_now now, uint64_t epoch)
{
    return mu_mono_before(now.mono, p->doubt_until) && !is_within(p, epoch, p->epoch);
}

/* Returns the epoch of the swarm: the greatest that has witnesses, or ours. */
static uint64_t find_epoch(const struct mu_progress *p, struct mu_now now,
                           const struct mu_dht_dict *dict)
{
    uint64_t top[MU_PROGRESS_WITNESSES_MAX];
    size_t count = find_greatest(p, *dict, wall_s(now), top);

    for (size_t i = 0; i < count; i++) {
        if (is_within(p, top[i], top[count - 1]) && !is_doubted(p, now, top[i])) {
            return top[i] > p->epoch ? top[i] : p->epoch;
        }
    }
    return p->epoch;
}

static void add_record(struct mu_progress_swarm *s, const struct mu_progress_record *r, double now)
{
    double since = now > r->time ? now - r->time : 0;

    s->peers++;
    s->clients += r->client;
    if (r->epoch > s->epoch) {
        s->suspects += !r->client;
        return; /* the epoch of a client's record never counted; one ahead of all adds nothing */
    }
    s->samples_per_second += r->samples_per_second;
    if (r->epoch == s->epoch) {
        s->samples = r->samples > UINT64_MAX - s->samples ? UINT64_MAX : s->samples + r->samples;
        s->estimated_samples += (double)r->samples + since * r->samples_per_second;
    }
}

static uint64_t fetch_after_ms(const struct mu_progress *p, double seconds)
{
    double n = (double)p->swarm.peers;
    double more = n + p->config.drift_peers;
    double most = n * (1 + p->config.drift_rate);
    double ms = seconds * 1000 * n / (more > most ? more : most);

    if (!(ms > p->config.fetch_min_ms)) {
        return p->config.fetch_min_ms;
    }
    return ms < p->config.fetch_max_ms ? (uint64_t)ms : p->config.fetch_max_ms;
}

/* No other trainer is there: our own samples are all there are. */
static void be_alone(struct mu_progress *p, struct mu_now now)
{
    uint64_t target = p->config.target_batch_size;
    uint64_t left = p->samples < target ? target - p->samples : 0;

    p->swarm.epoch = p->epoch;
    p->swarm.samples = p->samples;
    p->swarm.estimated_samples = (double)p->samples;
    p->swarm.samples_per_second = p->samples_per_second;
    p->swarm.eta = wall_s(now) + (double)left / p->samples_per_second;
    p->next_fetch = mu_mono_add_ms(now.mono, p->config.fetch_alone_ms);
}

static void take_swarm(struct mu_progress *p, struct mu_now now, struct mu_dht_dict dict)
{
    struct mu_progress_record r;
    double left;

    p->swarm = (struct mu_progress_swarm){.epoch = find_epoch(p, now, &dict),
                                          .samples_per_second = SPEED_MIN};
    while (next_record(&dict, wall_s(now), &r, &p->swarm.bad)) {
        add_record(&p->swarm, &r, wall_s(now));
    }
    if (p->swarm.peers == 0) {
        be_alone(p, now);
        return;
    }
    left = (double)p->config.target_batch_size - p->swarm.estimated_samples;
    left = (left > 0 ? left : 0) / p->swarm.samples_per_second;
    p->swarm.eta = wall_s(now) + left;
    p->next_fetch = mu_mono_add_ms(now.mono, fetch_after_ms(p, left));
}

void mu_progress_fetched(struct mu_progress *p, struct mu_now now, int status,
                         struct mu_span dictionary)
{
    struct mu_dht_dict dict = {0};

    p->fetching = false;
    if (p->paused) {
        p->next_fetch = now.mono; /* due as soon as it is resumed */
        return;
    }
    if (status == 0 && dictionary.len != 0) {
        status = mu_dht_dict_decode(dictionary, &dict);
    }
    if (status != 0) {
        p->next_fetch = mu_mono_add_ms(now.mono, p->config.fetch_alone_ms);
        return;
    }
    take_swarm(p, now, dict);
    p->fetched = true;
}

/* --- loading ---------------------------------------------------------------------------------- */

bool mu_progress_needs_state(struct mu_progress *p)
{
    if (p->exact_wanted && p->fetched) {
        p->exact_wanted = false;
        return p->epoch != p->swarm.epoch;
    }
    return !is_within(p, p->swarm.epoch, p->epoch);
}

enum {
    AT_ROUND,
    AT_UPDATES,
};

int mu_progress_enter(struct mu_progress *p, const struct mu_progress_hooks *hooks)
{
    int err = 0;

    if (p->entering == AT_ROUND) {
        if (hooks->join_round_with_zero_weight != NULL) {
            err = hooks->join_round_with_zero_weight(hooks->context);
        }
        if (err == MUSTER_EAGAIN) {
            return err;
        }
        p->entering = AT_UPDATES; /* a round that has failed is given up */
    }
    err = hooks->await_pending_updates == NULL ? 0 : hooks->await_pending_updates(hooks->context);
    if (err == MUSTER_EAGAIN) {
        return err;
    }
    p->entering = AT_ROUND;
    if (err == 0) {
        mu_progress_pause(p);
    }
    return err;
}

uint64_t mu_progress_leave(struct mu_progress *p, struct mu_now now, int status, uint64_t epoch)
{
    uint64_t ours = status == 0 ? epoch : p->epoch;

    if (p->swarm.epoch > ours) {
        if (is_within(p, p->swarm.epoch, ours)) {
            ours = p->swarm.epoch;
        } else {
            /* No donor had the claimed epoch. */
            p->doubt_until = mu_mono_add_ms(now.mono, p->config.doubt_ms);
            p->swarm.epoch = ours;
            p->swarm.samples = 0;
            p->swarm.eta = __builtin_inf();
        }
    }
    mu_progress_resume(p, now);
    mu_progress_report(p, now, ours, 0);
    p->exact_wanted = false;
    p->next_fetch = now.mono;
    return ours;
}
