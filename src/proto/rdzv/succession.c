#include "proto/rdzv/succession_internal.h"

#include <stdio.h>
#include <string.h>

#include "core/assert.h"

/* --- views ----------------------------------------------------------------------------------- */

bool mu_succession_view_later(const struct mu_succession_view *a,
                              const struct mu_succession_view *b)
{
    if (a->count == 0 || b->count == 0) {
        return a->count > b->count;
    }
    if (a->term != b->term) {
        return a->term > b->term;
    }
    if (a->round != b->round) {
        return a->round > b->round;
    }
    return a->step > b->step;
}

static uint32_t find_rank(const struct mu_electorate *list, uint32_t count,
                          const struct mu_electorate *in)
{
    for (uint32_t i = 0; i < count; i++) {
        if (mu_electorate_same(&list[i], in) && list[i].rank != MU_SUCCESSION_NO_RANK) {
            return list[i].rank;
        }
    }
    return MU_SUCCESSION_NO_RANK;
}

uint32_t mu_succession_vote(const struct mu_succession_view *view, const struct mu_electorate *in)
{
    uint32_t rank = find_rank(view->may, view->count, in);

    if (rank == MU_SUCCESSION_NO_RANK && view->count > 0 && view->told.world > 0) {
        rank = find_rank(&view->told, 1, in);
    }
    return rank != MU_SUCCESSION_NO_RANK ? rank : find_rank(view->past, view->past_count, in);
}

/* Keeps the rank in a round, in the place of the oldest if need be. */
static void remember(struct mu_succession_view *view, const struct mu_electorate *e)
{
    if (e->world == 0 || e->rank == MU_SUCCESSION_NO_RANK ||
        find_rank(view->past, view->past_count, e) != MU_SUCCESSION_NO_RANK) {
        return;
    }
    if (view->past_count == MU_SUCCESSION_PAST) {
        view->past_count--;
        memmove(&view->past[0], &view->past[1], view->past_count * sizeof(view->past[0]));
    }
    view->past[view->past_count++] = *e;
}

static bool is_sane(const struct mu_electorate *e)
{
    return e->world > 0 && e->world <= MU_SUCCESSION_WORLD_MAX &&
           (e->rank == MU_SUCCESSION_NO_RANK || e->rank < e->world);
}

void mu_succession_sanitise(struct mu_succession_view *view)
{
    bool sane = view->count <= MU_SUCCESSION_CONFIGS && view->step >= MU_SUCCESSION_TOLD &&
                view->step <= MU_SUCCESSION_COMMITTED && view->term < MU_SUCCESSION_TERM_MAX;

    for (uint32_t i = 0; sane && i < view->count; i++) {
        sane = is_sane(&view->may[i]);
    }
    sane = sane && view->past_count <= MU_SUCCESSION_PAST;
    for (uint32_t i = 0; sane && i < view->past_count; i++) {
        sane = is_sane(&view->past[i]);
    }
    if (!sane || (view->told.world > 0 && !is_sane(&view->told))) {
        memset(view, 0, sizeof(*view));
    }
}

/* --- actions --------------------------------------------------------------------------------- */

struct mu_succession_action *mu_succession_push(struct mu_succession *m,
                                                enum mu_succession_action_type type)
{
    struct mu_succession_action *a;

    MU_ASSERT(m->action_count < MU_SUCCESSION_ACTIONS);
    a = &m->actions[m->action_count++];
    memset(a, 0, sizeof(*a));
    a->type = type;
    return a;
}

bool mu_succession_next(struct mu_succession *m, struct mu_succession_action *ret)
{
    if (m->action_count == 0) {
        mu_succession_commit_any(m);
    }
    if (m->action_count == 0) {
        return false;
    }
    *ret = m->actions[0];
    m->action_count--;
    memmove(&m->actions[0], &m->actions[1], m->action_count * sizeof(m->actions[0]));
    return true;
}

void mu_succession_set(char *text, const char *from)
{
    if (text != from) {
        (void)snprintf(text, MU_SUCCESSION_NAME_MAX + 1, "%s", from);
    }
}

/* --- life ------------------------------------------------------------------------------------ */

void mu_succession_init(struct mu_succession *m, const struct mu_succession_config *config)
{
    memset(m, 0, sizeof(*m));
    m->config = *config;
    if (m->config.patience_ms == 0) {
        m->config.patience_ms = MU_SUCCESSION_PATIENCE_MS;
    }
    mu_prng_seed(&m->prng, config->seed);
    mu_list_init(&m->askers);
    mu_list_init(&m->answered);
    mu_list_init(&m->peers);
    m->untold = &m->peers;
    m->give_up = MU_MONO_NEVER;
    m->any_at = MU_MONO_NEVER;
    m->probe_at = MU_MONO_NEVER;
}

void mu_succession_start(struct mu_succession *m, mu_mono_t now,
                         const struct mu_succession_line *endpoints, uint32_t index)
{
    MU_ASSERT(endpoints->count <= MU_SUCCESSION_ENDPOINTS_MAX);
    m->has_left = false;
    mu_succession_set_line(m, endpoints);
    m->endpoint_count = endpoints->count;
    if (endpoints->count > 0) {
        m->view.step = MU_SUCCESSION_COMMITTED;
        m->view.count = 1;
        m->view.may[0] = (struct mu_electorate){.world = endpoints->count, .rank = index};
        mu_succession_sanitise(&m->view);
    }
    m->state = MU_SUCCESSION_TURNING;
    mu_succession_lost(m, now);
}

static void move_all(struct mu_list *to, struct mu_list *from)
{
    struct mu_list *link;

    while ((link = mu_list_pop(from)) != NULL) {
        mu_list_push(to, link);
    }
}

void mu_succession_left(struct mu_succession *m)
{
    struct mu_succession_config config = m->config;
    struct mu_list askers;

    config.seed = mu_prng_u64(&m->prng);
    mu_list_init(&askers);
    move_all(&askers, &m->askers);
    move_all(&askers, &m->answered);
    while (mu_list_pop(&m->peers) != NULL) {
    }
    mu_succession_init(m, &config);
    m->has_left = true;
    move_all(&m->askers, &askers);
    mu_succession_refuse(m);
}

/* --- our host -------------------------------------------------------------------------------- */

void mu_succession_turn(struct mu_succession *m, uint64_t term, const char *address)
{
    struct mu_succession_action *a;

    mu_succession_hang_up(m);
    m->state = MU_SUCCESSION_TURNING;
    m->host_term = term;
    mu_succession_set(m->host, address);
    m->give_up = MU_MONO_NEVER;
    a = mu_succession_push(m, MU_SUCCESSION_FOLLOW);
    a->term = term;
    mu_succession_set(a->address, address);
}

void mu_succession_followed(struct mu_succession *m, mu_mono_t now, uint64_t term,
                            const char *address)
{
    if (term < m->promised || m->state == MU_SUCCESSION_HOSTING) {
        return;
    }
    mu_trace(&m->config.trace, "succession.follow", term, 0);
    mu_succession_hang_up(m);
    m->state = MU_SUCCESSION_FOLLOWING;
    m->host_term = term;
    mu_succession_set(m->host, address);
    if (term > m->promised) {
        m->promised = term;
        m->promised_to[0] = '\0';
    }
    m->give_up = MU_MONO_NEVER;
    m->any_at = MU_MONO_NEVER;
    mu_succession_heard(m, now);
}

void mu_succession_heard(struct mu_succession *m, mu_mono_t now)
{
    (void)now;
    if (m->state == MU_SUCCESSION_FOLLOWING) {
        mu_succession_answer_all(m, m->host_term, m->host);
    }
}

/* Who was just lost is not the first to be asked: most of the time it is dead, and a machine that
 * is down takes long not to answer. */
static void pass_over_host(struct mu_succession *m, mu_mono_t now)
{
    for (uint32_t i = 0; i < m->line.count; i++) {
        if (strcmp(m->line.heirs[i].address, m->host) == 0) {
            m->passed_over[i] = mu_mono_add_ns(now, m->patience_ns);
        }
    }
}

void mu_succession_lost(struct mu_succession *m, mu_mono_t now)
{
    if (m->state != MU_SUCCESSION_TURNING && m->state != MU_SUCCESSION_FOLLOWING) {
        return;
    }
    mu_trace(&m->config.trace, "succession.lost", m->host_term, 0);
    if (m->config.mode == MU_SUCCESSION_ANY && m->any_at.ns == UINT64_MAX) {
        m->any_at = mu_mono_add_ms(now, m->config.patience_ms * MU_SUCCESSION_ANY_PATIENCES);
    }
    if (m->state == MU_SUCCESSION_FOLLOWING || m->host_term == 0) {
        mu_succession_walk_home(m);
        pass_over_host(m, now);
        mu_succession_walk(m, now);
    } else {
        mu_succession_walk_on(m, now);
    }
    mu_succession_consider(m, now);
}

/* A host speaks for its own term only, and to those who have promised no higher one. */
static bool is_from_host(const struct mu_succession *m, uint64_t term)
{
    return (m->state == MU_SUCCESSION_FOLLOWING || m->state == MU_SUCCESSION_HOSTING) &&
           term == m->host_term && term >= m->promised;
}

/* The view that the message gives us; our ranks are those that we were told before. */
static bool make_view(const struct mu_succession *m, const struct mu_succession_prepare *p,
                      struct mu_succession_view *ret)
{
    struct mu_electorate round = p->round;

    memset(ret, 0, sizeof(*ret));
    if (p->base_count == 0 || p->base_count >= MU_SUCCESSION_CONFIGS || round.term != p->term ||
        (p->step != MU_SUCCESSION_TOLD && p->step != MU_SUCCESSION_BOUND)) {
        return false;
    }
    ret->term = p->term;
    ret->round = round.round;
    ret->step = p->step;
    ret->past_count = m->view.past_count;
    memcpy(ret->past, m->view.past, sizeof(ret->past));
    for (uint32_t i = 0; i < p->base_count; i++) {
        ret->may[ret->count] = p->bases[i];
        ret->may[ret->count++].rank = mu_succession_vote(&m->view, &p->bases[i]);
    }
    if (p->step == MU_SUCCESSION_TOLD) {
        ret->told = round;
    } else {
        ret->may[ret->count++] = round;
    }
    mu_succession_sanitise(ret);
    return ret->count > 0;
}

void mu_succession_prepare(struct mu_succession *m, mu_mono_t now,
                           const struct mu_succession_prepare *prepare)
{
    struct mu_succession_view view;
    struct mu_succession_action *a;

    (void)now;
    if (!is_from_host(m, prepare->term) || !make_view(m, prepare, &view) ||
        !mu_succession_view_later(&view, &m->view)) {
        return;
    }
    remember(&view, &view.told);
    for (uint32_t i = 0; i < view.count; i++) {
        remember(&view, &view.may[i]);
    }
    m->view = view;
    mu_trace(&m->config.trace,
             view.step == MU_SUCCESSION_TOLD ? "succession.told" : "succession.bound", view.term,
             view.round);
    a = mu_succession_push(m, MU_SUCCESSION_SAY_READY);
    a->term = view.term;
    a->round = view.round;
    a->step = view.step;
}

void mu_succession_assigned(struct mu_succession *m, uint64_t term, uint64_t round)
{
    struct mu_electorate e;

    if (!is_from_host(m, term) || m->view.count == 0 || m->view.term != term ||
        m->view.round != round || m->view.step == MU_SUCCESSION_COMMITTED) {
        return;
    }
    e = m->view.step == MU_SUCCESSION_TOLD ? m->view.told : m->view.may[m->view.count - 1];
    memset(&m->view.may, 0, sizeof(m->view.may));
    memset(&m->view.told, 0, sizeof(m->view.told));
    m->view.step = MU_SUCCESSION_COMMITTED;
    m->view.count = 1;
    m->view.may[0] = e;
    mu_trace(&m->config.trace, "succession.committed", term, round);
}

void mu_succession_set_line(struct mu_succession *m, const struct mu_succession_line *line)
{
    MU_ASSERT(line->count <= MU_SUCCESSION_ENDPOINTS_MAX + MU_SUCCESSION_LINE_MAX);
    m->line = *line;
    for (uint32_t i = 0; i < MU_SUCCESSION_CALLS; i++) {
        m->calls[i].entry = UINT32_MAX; /* of another line */
    }
    mu_succession_walk_home(m);
}

bool mu_succession_legacy_newer(const struct mu_succession_legacy *a,
                                const struct mu_succession_legacy *b)
{
    if (a->term != b->term) {
        return a->term > b->term;
    }
    return a->round != b->round ? a->round > b->round : a->version > b->version;
}

bool mu_succession_set_legacy(struct mu_succession *m, const struct mu_succession_legacy *legacy)
{
    if (legacy->bytes.len > MU_SUCCESSION_LEGACY_MAX ||
        mu_succession_legacy_newer(&m->legacy, legacy)) {
        return false;
    }
    m->legacy = *legacy;
    return true;
}

/* --- time ------------------------------------------------------------------------------------ */

static bool seeks(const struct mu_succession *m)
{
    return m->state == MU_SUCCESSION_WALKING || m->state == MU_SUCCESSION_STANDING ||
           m->state == MU_SUCCESSION_CLAIMING;
}

void mu_succession_tick(struct mu_succession *m, mu_mono_t now)
{
    if (m->state == MU_SUCCESSION_HOSTING) {
        mu_succession_probe_tick(m, now);
        return;
    }
    if (!seeks(m)) {
        return;
    }
    if (m->state != MU_SUCCESSION_WALKING && mu_mono_reached(m->any_at, now)) {
        mu_succession_seize(m, now);
    } else if (mu_mono_reached(m->give_up, now)) {
        mu_trace(&m->config.trace, "succession.give_up", m->home, 0);
        mu_succession_walk_on(m, now);
        mu_succession_consider(m, now);
    }
}

mu_mono_t mu_succession_deadline(const struct mu_succession *m)
{
    if (m->state == MU_SUCCESSION_HOSTING) {
        return m->probe_at;
    }
    if (!seeks(m)) {
        return MU_MONO_NEVER;
    }
    return m->state == MU_SUCCESSION_WALKING ? m->give_up : mu_mono_min(m->give_up, m->any_at);
}
