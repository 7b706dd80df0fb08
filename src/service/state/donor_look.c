/* How far the downloads from a donor are. */
#include "service/state/donor_internal.h"

#include <stdio.h>

#define RATE_NS MU_NS_PER_S

static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
    return ns == 0 ? 0 : (uint64_t)((double)bytes * (double)MU_NS_PER_S / (double)ns);
}

void mu_state_meter_add(struct mu_state_meter *m, mu_mono_t now, uint64_t bytes)
{
    uint64_t ns = mu_mono_since(m->mark, now);

    m->bytes += bytes;
    if (ns >= RATE_NS) {
        m->bytes_per_s = rate_of(m->bytes - m->mark_bytes, ns);
        m->mark = now;
        m->mark_bytes = m->bytes;
    }
}

/* In its first second, and when nothing came for longer, what came since the last mark is all. */
static uint64_t current_rate(const struct mu_state_meter *m, mu_mono_t now)
{
    uint64_t ns = mu_mono_since(m->mark, now);

    return m->mark.ns == m->since.ns || ns >= 2 * RATE_NS ? rate_of(m->bytes - m->mark_bytes, ns)
                                                          : m->bytes_per_s;
}

size_t mu_state_donor_transfers(const struct mu_state_donor *d, struct mu_state_transfer *ret,
                                size_t cap)
{
    mu_mono_t now = mu_env_now(d->env).mono;
    size_t count = 0;

    MU_LIST_FOREACH (it, &d->streams) {
        const struct mu_state_stream *s = MU_CONTAINER_OF(it, struct mu_state_stream, link);

        if (s->is_offer) {
            continue;
        }
        if (count < cap) {
            struct mu_state_transfer *t = &ret[count];

            (void)snprintf(t->peer, sizeof(t->peer), "%s", s->base.session->peer);
            (void)snprintf(t->prefix, sizeof(t->prefix), "%s", s->share->prefix);
            t->bytes = s->meter.bytes;
            t->total = s->share->offer.manifest.layout.bytes;
            t->bytes_per_s = current_rate(&s->meter, now);
            t->age_ms = mu_mono_since(s->meter.since, now) / MU_NS_PER_MS;
        }
        count++;
    }
    return count;
}
