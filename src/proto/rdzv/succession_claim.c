#include "proto/rdzv/succession_internal.h"

#include <string.h>

/* --- counting -------------------------------------------------------------------------------- */

static bool counts(const struct mu_succession_asker *asker, uint64_t term)
{
    return term == 0 || asker->ask.term == term;
}

static void add_votes(const struct mu_succession_view *voter, struct mu_succession_tally *tally)
{
    for (uint32_t i = 0; i < tally->view->count; i++) {
        if (mu_succession_vote(voter, &tally->view->may[i]) != MU_SUCCESSION_NO_RANK) {
            tally->votes[i]++;
        }
    }
}

void mu_succession_count(const struct mu_succession *m, uint64_t term,
                         struct mu_succession_tally *ret)
{
    int64_t worst = 0;

    memset(ret, 0, sizeof(*ret));
    ret->view = &m->view;
    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_view *view = &mu_succession_asker_of(it)->ask.view;

        if (mu_succession_view_later(view, ret->view)) {
            ret->view = view;
        }
    }
    add_votes(&m->view, ret);
    MU_LIST_FOREACH (it, &m->askers) {
        if (counts(mu_succession_asker_of(it), term)) {
            add_votes(&mu_succession_asker_of(it)->ask.view, ret);
        }
    }
    ret->lacking = ret->view->count;
    for (uint32_t i = 0; i < ret->view->count; i++) {
        /* More than half is needed. */
        int64_t lacks = (int64_t)ret->view->may[i].world + 1 - 2 * (int64_t)ret->votes[i];

        if (lacks > worst) {
            worst = lacks;
            ret->lacking = i;
        }
    }
}

static bool is_enough(const struct mu_succession_tally *tally)
{
    return tally->view->count > 0 && tally->lacking == tally->view->count;
}

static bool votes_in(const struct mu_succession_view *voter, const struct mu_electorate *in,
                     uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (mu_succession_vote(voter, &in[i]) != MU_SUCCESSION_NO_RANK) {
            return true;
        }
    }
    return false;
}

/* --- answering ------------------------------------------------------------------------------- */

static void answer(struct mu_succession *m, struct mu_succession_asker *asker,
                   enum mu_succession_answer_kind kind, uint64_t term, const char *address)
{
    asker->answer = (struct mu_succession_answer){.kind = kind, .term = term, .address = address};
    mu_list_remove(&asker->link);
    mu_list_push(&m->answered, &asker->link);
}

void mu_succession_answer_all(struct mu_succession *m, uint64_t term, const char *address)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &m->askers) {
        answer(m, mu_succession_asker_of(it), MU_SUCCESSION_FOLLOW_IT, term, address);
    }
}

bool mu_succession_next_answer(struct mu_succession *m, struct mu_succession_asker **ret_asker,
                               struct mu_succession_answer *ret_answer)
{
    struct mu_list *link = mu_list_pop(&m->answered);

    if (link == NULL) {
        return false;
    }
    *ret_asker = mu_succession_asker_of(link);
    *ret_answer = (*ret_asker)->answer;
    return true;
}

/* --- the claim ------------------------------------------------------------------------------- */

static uint64_t highest_promise(const struct mu_succession *m)
{
    uint64_t highest = m->promised;

    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_ask *a = &mu_succession_asker_of(it)->ask;

        highest = a->promised > highest ? a->promised : highest;
    }
    return highest;
}

static uint64_t highest_round(const struct mu_succession_view *view, uint64_t highest)
{
    for (uint32_t i = 0; i < view->count; i++) {
        highest = view->may[i].round > highest ? view->may[i].round : highest;
    }
    for (uint32_t i = 0; i < view->past_count; i++) {
        highest = view->past[i].round > highest ? view->past[i].round : highest;
    }
    return view->count > 0 && view->round > highest ? view->round : highest;
}

/* Takes what the host before us left: its bases, its rounds, its legacy. */
static void inherit(struct mu_succession *m, const struct mu_succession_view *latest)
{
    uint64_t round = highest_round(&m->view, 0);

    m->heritage = m->legacy;
    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_ask *a = &mu_succession_asker_of(it)->ask;

        round = highest_round(&a->view, round);
        if (mu_succession_legacy_newer(&a->legacy, &m->heritage)) {
            m->heritage = a->legacy;
        }
    }
    m->first_round = round + 1;
    memcpy(m->bases, latest->may, sizeof(m->bases));
    m->base_count = latest->count;
}

static void take_over(struct mu_succession *m, mu_mono_t now,
                      const struct mu_succession_tally *tally)
{
    inherit(m, tally->view);
    mu_succession_host(m, now, m->promised);
}

/* Promises the next term to ourselves. */
static void promise_self(struct mu_succession *m, uint64_t term)
{
    m->promised = term;
    mu_succession_set(m->promised_to, m->config.address);
    mu_trace(&m->config.trace, "succession.claim", term, 0);
}

static void raise_askers(struct mu_succession *m)
{
    struct mu_succession_tally tally;

    mu_succession_count(m, 0, &tally);
    MU_LIST_FOREACH_SAFE (it, tmp, &m->askers) {
        struct mu_succession_asker *asker = mu_succession_asker_of(it);

        if (asker->ask.promised < m->promised &&
            votes_in(&asker->ask.view, tally.view->may, tally.view->count)) {
            answer(m, asker, MU_SUCCESSION_RAISE, m->promised, NULL);
        }
    }
}

void mu_succession_consider(struct mu_succession *m, mu_mono_t now)
{
    struct mu_succession_tally tally;

    /* One who has promised waits for the host, until its patience is over. */
    if (m->state == MU_SUCCESSION_STANDING ||
        (m->state == MU_SUCCESSION_WALKING && !(m->asking && m->asked_term != 0))) {
        uint64_t highest = highest_promise(m);

        mu_succession_count(m, 0, &tally);
        if (!is_enough(&tally) || highest >= MU_SUCCESSION_TERM_MAX) {
            return;
        }
        mu_succession_hang_up(m);
        m->state = MU_SUCCESSION_CLAIMING;
        promise_self(m, highest + 1);
        mu_succession_wait(m, now);
    }
    if (m->state != MU_SUCCESSION_CLAIMING) {
        return;
    }
    mu_succession_count(m, m->promised, &tally);
    if (is_enough(&tally)) {
        take_over(m, now, &tally);
    } else {
        raise_askers(m);
    }
}

void mu_succession_seize(struct mu_succession *m, mu_mono_t now)
{
    struct mu_succession_tally tally;

    m->any_at = MU_MONO_NEVER;
    mu_succession_count(m, 0, &tally);
    if (tally.view->count > 0 && highest_promise(m) < MU_SUCCESSION_TERM_MAX) {
        promise_self(m, highest_promise(m) + 1);
        take_over(m, now, &tally);
    }
}

void mu_succession_insist(struct mu_succession *m, mu_mono_t now)
{
    if (m->state == MU_SUCCESSION_WALKING || m->state == MU_SUCCESSION_STANDING ||
        m->state == MU_SUCCESSION_CLAIMING) {
        mu_succession_hang_up(m);
        m->insists = true;
        mu_succession_seize(m, now);
    }
}

/* --- others ask us --------------------------------------------------------------------------- */

static void take_vote_away(struct mu_electorate *e, const struct mu_succession_view *view)
{
    if (e->world > 0 && e->rank == mu_succession_vote(view, e)) {
        e->rank = MU_SUCCESSION_NO_RANK;
    }
}

/* A voter that asks again has one vote. */
static void take_votes_away(struct mu_succession *m, const struct mu_succession_view *view)
{
    MU_LIST_FOREACH (it, &m->askers) {
        struct mu_succession_view *old = &mu_succession_asker_of(it)->ask.view;

        for (uint32_t i = 0; i < old->count; i++) {
            take_vote_away(&old->may[i], view);
        }
        for (uint32_t i = 0; i < old->past_count; i++) {
            take_vote_away(&old->past[i], view);
        }
        take_vote_away(&old->told, view);
    }
}

static void answer_as_host(struct mu_succession *m, mu_mono_t now,
                           struct mu_succession_asker *asker)
{
    const struct mu_succession_view *view = &asker->ask.view;

    if (mu_succession_is_unknown(m, view)) {
        mu_succession_step_down(m, now, 0, "");
    } else if (asker->ask.promised <= m->host_term) {
        answer(m, asker, MU_SUCCESSION_FOLLOW_IT, m->host_term, m->config.address);
    } else if (votes_in(view, m->bases, m->base_count) ||
               (m->step != 0 && votes_in(view, &m->preparing, 1))) {
        mu_succession_step_down(m, now, 0, "");
    } else {
        answer(m, asker, MU_SUCCESSION_FORGET, m->host_term, m->config.address);
    }
}

void mu_succession_asked(struct mu_succession *m, mu_mono_t now, struct mu_succession_asker *asker)
{
    mu_succession_sanitise(&asker->ask.view);
    if (asker->ask.promised >= MU_SUCCESSION_TERM_MAX ||
        asker->ask.legacy.bytes.len > MU_SUCCESSION_LEGACY_MAX) {
        memset(&asker->ask, 0, sizeof(asker->ask));
    }
    take_votes_away(m, &asker->ask.view);
    mu_list_push(&m->askers, &asker->link);
    mu_trace(&m->config.trace, "succession.asked", asker->ask.term, asker->ask.promised);
    if (m->state == MU_SUCCESSION_HOSTING) {
        answer_as_host(m, now, asker);
    } else if (m->state == MU_SUCCESSION_FOLLOWING) {
        (void)mu_succession_push(m, MU_SUCCESSION_CHECK);
    } else {
        mu_succession_consider(m, now);
    }
}

void mu_succession_unasked(struct mu_succession *m, struct mu_succession_asker *asker)
{
    (void)m;
    mu_list_remove(&asker->link);
}

/* --- probes ---------------------------------------------------------------------------------- */

static bool is_better(const struct mu_succession_probe *a, const struct mu_succession_probe *b)
{
    if (a->term != b->term) {
        return a->term > b->term;
    }
    return a->round != b->round ? a->round > b->round : strcmp(a->address, b->address) < 0;
}

void mu_succession_get_probe(const struct mu_succession *m, struct mu_succession_probe *ret)
{
    *ret = (struct mu_succession_probe){
        .term = m->host_term, .round = m->first_round, .address = m->config.address};
}

void mu_succession_better(struct mu_succession *m, mu_mono_t now,
                          const struct mu_succession_probe *reply)
{
    struct mu_succession_probe ours;

    if (reply->term == 0 || reply->term >= MU_SUCCESSION_TERM_MAX || reply->address == NULL ||
        strcmp(reply->address, m->config.address) == 0) {
        return;
    }
    if (m->state == MU_SUCCESSION_HOSTING) {
        mu_succession_get_probe(m, &ours);
        if (is_better(reply, &ours)) {
            mu_succession_step_down(m, now, reply->term, reply->address);
        }
    } else if ((m->state == MU_SUCCESSION_WALKING || m->state == MU_SUCCESSION_STANDING ||
                m->state == MU_SUCCESSION_CLAIMING) &&
               reply->term >= m->promised) {
        mu_succession_turn(m, reply->term, reply->address);
    }
}

void mu_succession_probed(struct mu_succession *m, mu_mono_t now,
                          const struct mu_succession_probe *probe,
                          struct mu_succession_probe *ret_reply)
{
    struct mu_succession_probe ours = {.address = ""};

    *ret_reply = (struct mu_succession_probe){.address = ""};
    if (probe->address == NULL) {
        return;
    }
    if (m->state == MU_SUCCESSION_HOSTING) {
        mu_succession_get_probe(m, &ours);
    } else if (m->state == MU_SUCCESSION_FOLLOWING && m->host_term > probe->term) {
        ours = (struct mu_succession_probe){.term = m->host_term, .address = m->host};
    }
    if (ours.term != 0 && strcmp(ours.address, probe->address) != 0 && is_better(&ours, probe)) {
        *ret_reply = ours;
    } else {
        mu_succession_better(m, now, probe);
    }
}
