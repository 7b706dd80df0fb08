#include "proto/rdzv/succession_internal.h"

#include <string.h>

/* --- the line -------------------------------------------------------------------------------- */

static bool is_us(const struct mu_succession *m, const char *address)
{
    return strcmp(address, m->config.address) == 0;
}

/* The first entry of `count` from `first` on that is not to be passed over, beginning to look at
 * `from` and around; line.count: none. */
static uint32_t find_entry(const struct mu_succession *m, uint32_t first, uint32_t count,
                           uint32_t from, mu_mono_t now)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t entry = first + (from + i) % count;

        if (!mu_mono_before(now, m->passed_over[entry])) {
            return entry;
        }
    }
    return m->line.count;
}

/* The next one to visit: in turn one before home, which is a better home if it can be reached, and
 * one after it. line.count: none. */
static uint32_t next_visit(struct mu_succession *m, mu_mono_t now)
{
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t first = m->after ? m->home + 1 : 0;
        uint32_t count = m->after ? m->line.count - first : m->home;
        uint32_t *visited = &m->visited[m->after];
        uint32_t entry = find_entry(m, first, count, *visited, now);

        m->after = !m->after;
        if (entry < m->line.count) {
            *visited = entry - first + 1;
            if (!is_us(m, m->line.heirs[entry].address)) {
                return entry;
            }
        }
    }
    return m->line.count;
}

static mu_mono_t first_chance(const struct mu_succession *m)
{
    mu_mono_t first = MU_MONO_NEVER;

    for (uint32_t i = 0; i < m->line.count; i++) {
        first = mu_mono_min(first, m->passed_over[i]);
    }
    return first;
}

void mu_succession_wait(struct mu_succession *m, mu_mono_t now)
{
    m->give_up =
        mu_mono_add_ns(now, m->patience_ns + mu_prng_below(&m->prng, m->patience_ns / 2 + 1));
}

static void grow_patience(struct mu_succession *m)
{
    uint64_t most = m->config.patience_ms * MU_NS_PER_MS * MU_SUCCESSION_PATIENCE_GROWTH;

    m->patience_ns += m->patience_ns / 2;
    m->patience_ns = m->patience_ns < most ? m->patience_ns : most;
}

/* --- asking ---------------------------------------------------------------------------------- */

static struct mu_succession_call *home_call(struct mu_succession *m)
{
    return &m->calls[m->home_call];
}

static struct mu_succession_call *visit_call(struct mu_succession *m)
{
    return &m->calls[!m->home_call];
}

static void ask(struct mu_succession *m, struct mu_succession_call *call, const char *address,
                uint64_t term)
{
    struct mu_succession_action *a = mu_succession_push(m, MU_SUCCESSION_ASK);

    call->asking = true;
    call->term = term;
    mu_succession_set(call->asked, address);
    a->call = (uint32_t)(call - m->calls);
    a->term = term;
    mu_succession_set(a->address, address);
    mu_trace(&m->config.trace, call == home_call(m) ? "succession.ask" : "succession.visit",
             call->entry, term);
}

static void ask_entry(struct mu_succession *m, struct mu_succession_call *call, uint32_t entry)
{
    call->entry = entry;
    ask(m, call, m->line.heirs[entry].address, 0);
}

static void hang_up(struct mu_succession *m, struct mu_succession_call *call)
{
    if (call->asking) {
        call->asking = false;
        mu_succession_push(m, MU_SUCCESSION_HANG_UP)->call = (uint32_t)(call - m->calls);
    }
}

void mu_succession_hang_up(struct mu_succession *m)
{
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        hang_up(m, &m->calls[i]);
    }
}

bool mu_succession_has_promised(const struct mu_succession *m)
{
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        if (m->calls[i].asking && m->calls[i].term != 0) {
            return true;
        }
    }
    return false;
}

/* Whether that entry itself is asked, and not a host of which it knew. */
static bool is_at(const struct mu_succession *m, const struct mu_succession_call *call,
                  uint32_t entry)
{
    return call->asking && call->entry == entry && entry < m->line.count &&
           strcmp(call->asked, m->line.heirs[entry].address) == 0;
}

/* Whether home is asked, or is our own place. A host that has stepped down stands elsewhere. */
static bool is_home(struct mu_succession *m)
{
    if (m->home >= m->line.count) {
        return false;
    }
    return m->state == MU_SUCCESSION_STANDING
               ? is_us(m, m->line.heirs[m->home].address)
               : home_call(m)->asking && home_call(m)->entry == m->home;
}

/* Asks at home, or stands there. No ask is under way there. */
static void settle(struct mu_succession *m, mu_mono_t now)
{
    m->state = MU_SUCCESSION_WALKING;
    if (m->home >= m->line.count || mu_mono_before(now, m->passed_over[m->home])) {
        /* The next one: by the time that all before it have failed, the first may have its turn. */
        m->home = find_entry(m, 0, m->line.count, m->home < m->line.count ? m->home : 0, now);
    }
    if (m->home >= m->line.count) {
        m->give_up = first_chance(m);
    } else if (is_us(m, m->line.heirs[m->home].address)) {
        m->state = MU_SUCCESSION_STANDING;
        mu_trace(&m->config.trace, "succession.stand", m->home, 0);
    } else if (is_at(m, visit_call(m), m->home)) {
        m->home_call = !m->home_call;
    } else {
        ask_entry(m, home_call(m), m->home);
    }
}

void mu_succession_walk(struct mu_succession *m, mu_mono_t now)
{
    mu_succession_hang_up(m);
    mu_succession_wait(m, now);
    settle(m, now);
}

static void visit(struct mu_succession *m, mu_mono_t now)
{
    uint32_t entry = next_visit(m, now);

    if (entry < m->line.count) {
        ask_entry(m, visit_call(m), entry);
    }
}

void mu_succession_walk_on(struct mu_succession *m, mu_mono_t now)
{
    struct mu_succession_call *visited = visit_call(m);

    if (m->home < m->line.count) {
        grow_patience(m);
    }
    if (!is_home(m) || mu_succession_has_promised(m)) {
        mu_succession_walk(m, now);
        return;
    }
    if (visited->entry < m->home && is_at(m, visited, visited->entry)) {
        /* It was there for all of this time: it is the first that can be reached. */
        hang_up(m, home_call(m));
        m->home = visited->entry;
        m->home_call = !m->home_call;
        m->state = MU_SUCCESSION_WALKING;
    }
    hang_up(m, visit_call(m));
    mu_succession_wait(m, now);
    visit(m, now);
}

void mu_succession_walk_home(struct mu_succession *m)
{
    m->home = 0;
    m->after = true;
    memset(m->visited, 0, sizeof(m->visited));
    m->patience_ns = m->config.patience_ms * MU_NS_PER_MS;
    memset(m->passed_over, 0, sizeof(m->passed_over));
}

void mu_succession_get_ask(const struct mu_succession *m, uint32_t call,
                           struct mu_succession_ask *ret)
{
    memset(ret, 0, sizeof(*ret));
    ret->term = m->calls[call].term;
    ret->promised = m->promised;
    ret->view = m->view;
    ret->legacy = m->legacy;
}

static void pass_over(struct mu_succession *m, mu_mono_t now, uint32_t entry)
{
    if (entry < m->line.count) {
        m->passed_over[entry] = mu_mono_add_ns(now, m->patience_ns);
    }
}

void mu_succession_unreached(struct mu_succession *m, mu_mono_t now, uint32_t call)
{
    struct mu_succession_call *c = &m->calls[call];

    if (!c->asking) {
        return;
    }
    c->asking = false;
    pass_over(m, now, c->entry);
    if (c->term != 0 || m->home >= m->line.count) {
        mu_succession_walk(m, now);
    } else if (c == home_call(m)) {
        settle(m, now);
    } else {
        visit(m, now);
    }
    mu_succession_consider(m, now);
}

/* --- answers --------------------------------------------------------------------------------- */

/* A promise: what it says is true from before it is sent. Who has promised asks nobody else. */
static void raise(struct mu_succession *m, mu_mono_t now, struct mu_succession_call *call,
                  uint64_t term)
{
    bool may =
        term > m->promised || (term == m->promised && strcmp(m->promised_to, call->asked) == 0);

    call->asking = false;
    if (may) {
        m->state = MU_SUCCESSION_WALKING;
        m->promised = term;
        mu_succession_set(m->promised_to, call->asked);
        mu_succession_hang_up(m);
        mu_succession_wait(m, now);
        mu_trace(&m->config.trace, "succession.promise", term, 0);
    }
    ask(m, call, call->asked, may ? term : 0);
}

static bool is_asked(const struct mu_succession *m, const char *address)
{
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        if (m->calls[i].asking && strcmp(m->calls[i].asked, address) == 0) {
            return true;
        }
    }
    return false;
}

/* Somebody knows a host of a lower term than we have promised. Only that host can help us, whether
 * it is in the line or not. */
static void ask_host(struct mu_succession *m, mu_mono_t now, struct mu_succession_call *call,
                     const char *address)
{
    if (is_at(m, call, call->entry) && !is_asked(m, address) && !is_us(m, address)) {
        ask(m, call, address, 0);
    } else {
        mu_succession_unreached(m, now, (uint32_t)(call - m->calls));
    }
}

void mu_succession_answered(struct mu_succession *m, mu_mono_t now, uint32_t call,
                            const struct mu_succession_answer *answer)
{
    struct mu_succession_call *c = &m->calls[call];

    if (!c->asking) {
        return;
    }
    if (answer->term >= MU_SUCCESSION_TERM_MAX || answer->kind == MU_SUCCESSION_LEFT) {
        mu_succession_unreached(m, now, call);
        return;
    }
    if (answer->kind == MU_SUCCESSION_RAISE) {
        raise(m, now, c, answer->term);
        return;
    }
    if (answer->address == NULL || is_us(m, answer->address)) {
        mu_succession_unreached(m, now, call);
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
        ask_host(m, now, c, answer->address);
        return;
    }
    c->asking = false;
    pass_over(m, now, c->entry); /* unless the host can be joined */
    mu_succession_turn(m, answer->term, answer->address);
}
