#include "proto/rdzv/succession_internal.h"

#include <string.h>

/* --- the line -------------------------------------------------------------------------------- */

static bool is_us(const struct mu_succession *m, const char *address)
{
    return strcmp(address, m->config.address) == 0;
}

/* A visit is this much shorter than a stay at home. */
#define VISIT_PART 4

/* The first entry from `from` on, and around, that is not to be passed over; `count`: none. */
static uint32_t find_entry(const struct mu_succession *m, uint32_t from, mu_mono_t now)
{
    uint32_t count = m->line.count;

    for (uint32_t i = 0; i < count; i++) {
        uint32_t entry = (from + i) % count;

        if (!mu_mono_before(now, m->passed_over[entry])) {
            return entry;
        }
    }
    return count;
}

/* Home, a visit, home, the next visit, ... */
static void advance(struct mu_succession *m, mu_mono_t now)
{
    uint32_t home = find_entry(m, 0, now);

    if (!m->away && m->line.count > 0) {
        m->visit = find_entry(m, (m->visit + 1) % m->line.count, now);
        m->at = m->visit;
    }
    m->away = !m->away && m->visit != home;
    m->at = m->away ? m->visit : home;
}

static mu_mono_t first_chance(const struct mu_succession *m)
{
    mu_mono_t first = MU_MONO_NEVER;

    for (uint32_t i = 0; i < m->line.count; i++) {
        first = mu_mono_min(first, m->passed_over[i]);
    }
    return first;
}

static void wait_for(struct mu_succession *m, mu_mono_t now, uint64_t ns)
{
    m->give_up = mu_mono_add_ns(now, ns + mu_prng_below(&m->prng, ns / 2 + 1));
}

void mu_succession_wait(struct mu_succession *m, mu_mono_t now)
{
    wait_for(m, now, m->patience_ns);
}

static void grow_patience(struct mu_succession *m)
{
    uint64_t most = m->config.patience_ms * MU_NS_PER_MS * MU_SUCCESSION_PATIENCE_GROWTH;

    m->patience_ns += m->patience_ns / 2;
    m->patience_ns = m->patience_ns < most ? m->patience_ns : most;
}

/* --- asking ---------------------------------------------------------------------------------- */

static void ask(struct mu_succession *m, const char *address, uint64_t term)
{
    struct mu_succession_action *a = mu_succession_push(m, MU_SUCCESSION_ASK);

    m->asking = true;
    m->asked_term = term;
    mu_succession_set(m->asked, address);
    a->term = term;
    mu_succession_set(a->address, address);
    mu_trace(&m->config.trace, "succession.ask", m->at, term);
}

void mu_succession_hang_up(struct mu_succession *m)
{
    if (m->asking) {
        m->asking = false;
        (void)mu_succession_push(m, MU_SUCCESSION_HANG_UP);
    }
}

void mu_succession_walk(struct mu_succession *m, mu_mono_t now)
{
    mu_succession_hang_up(m);
    m->state = MU_SUCCESSION_WALKING;
    if (m->at >= m->line.count || mu_mono_before(now, m->passed_over[m->at])) {
        m->at = find_entry(m, 0, now);
        m->away = false;
    }
    if (m->at >= m->line.count) {
        m->give_up = first_chance(m);
        return;
    }
    wait_for(m, now, m->away ? m->patience_ns / VISIT_PART : m->patience_ns);
    if (is_us(m, m->line.heirs[m->at].address)) {
        m->state = MU_SUCCESSION_STANDING;
        mu_trace(&m->config.trace, "succession.stand", m->at, 0);
    } else {
        ask(m, m->line.heirs[m->at].address, 0);
    }
}

void mu_succession_walk_on(struct mu_succession *m, mu_mono_t now)
{
    grow_patience(m);
    advance(m, now);
    mu_succession_walk(m, now);
}

void mu_succession_walk_home(struct mu_succession *m)
{
    m->at = 0;
    m->visit = 0;
    m->away = false;
    m->patience_ns = m->config.patience_ms * MU_NS_PER_MS;
    memset(m->passed_over, 0, sizeof(m->passed_over));
}

void mu_succession_get_ask(const struct mu_succession *m, struct mu_succession_ask *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->term = m->asked_term;
    ret->promised = m->promised;
    ret->view = m->view;
    ret->legacy = m->legacy;
}

void mu_succession_unreached(struct mu_succession *m, mu_mono_t now)
{
    if (!m->asking) {
        return;
    }
    m->asking = false;
    if (m->at < m->line.count) {
        m->passed_over[m->at] = mu_mono_add_ns(now, m->patience_ns);
    }
    advance(m, now);
    mu_succession_walk(m, now);
    mu_succession_consider(m, now);
}

/* --- answers --------------------------------------------------------------------------------- */

/* A promise: what it says is true from before it is sent. */
static void raise(struct mu_succession *m, mu_mono_t now, uint64_t term)
{
    char address[MU_SUCCESSION_NAME_MAX + 1];
    bool may = term > m->promised || (term == m->promised && strcmp(m->promised_to, m->asked) == 0);

    mu_succession_set(address, m->asked);
    if (may) {
        m->promised = term;
        mu_succession_set(m->promised_to, address);
        mu_succession_wait(m, now);
        mu_trace(&m->config.trace, "succession.promise", term, 0);
    }
    ask(m, address, may ? term : 0);
}

/* Somebody knows a host of a lower term than we have promised. Only that host can help us, whether
 * it is in the line or not. */
static void ask_host(struct mu_succession *m, mu_mono_t now, const char *address)
{
    if (m->at < m->line.count && strcmp(m->asked, m->line.heirs[m->at].address) == 0 &&
        strcmp(m->asked, address) != 0 && !is_us(m, address)) {
        m->asking = false;
        ask(m, address, 0);
    } else {
        mu_succession_unreached(m, now);
    }
}

void mu_succession_answered(struct mu_succession *m, mu_mono_t now,
                            const struct mu_succession_answer *answer)
{
    if (!m->asking) {
        return;
    }
    if (answer->term >= MU_SUCCESSION_TERM_MAX) {
        mu_succession_unreached(m, now);
        return;
    }
    if (answer->kind == MU_SUCCESSION_RAISE) {
        m->asking = false;
        raise(m, now, answer->term);
        return;
    }
    if (answer->address == NULL || is_us(m, answer->address)) {
        mu_succession_unreached(m, now);
        return;
    }
    if (answer->kind == MU_SUCCESSION_FORGET && answer->term < m->promised) {
        mu_trace(&m->config.trace, "succession.forget", m->promised, answer->term);
        m->promised = 0;
        m->promised_to[0] = '\0';
        memset(&m->view, 0, sizeof(m->view));
        memset(&m->legacy, 0, sizeof(m->legacy)); /* of another life of the run */
    }
    if (answer->term < m->promised) {
        ask_host(m, now, answer->address);
        return;
    }
    m->asking = false;
    mu_succession_turn(m, answer->term, answer->address);
}
