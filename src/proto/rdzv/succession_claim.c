#include "proto/rdzv/succession_internal.h"

#include <string.h>

/* --- counting -------------------------------------------------------------------------------- */

/* Ranks of one electorate. */
struct voters {
    uint64_t bits[MU_SUCCESSION_WORLD_MAX / 64];
};

/* Whether that voter was not counted yet. A node may ask us twice: by two names that we have in the
 * line, or with an old call whose end we have not seen. It has one vote. */
static bool is_new(struct voters *voters, uint32_t rank)
{
    uint64_t bit = UINT64_C(1) << rank % 64;
    bool is = (voters->bits[rank / 64] & bit) == 0;

    voters->bits[rank / 64] |= bit;
    return is;
}

static uint32_t count_votes(const struct mu_succession *m, uint64_t term,
                            const struct mu_electorate *in)
{
    uint32_t rank = mu_succession_vote(&m->view, in);
    struct voters voters;
    uint32_t votes = 0;

    memset(voters.bits, 0, ((size_t)in->world + 63) / 64 * sizeof(voters.bits[0]));
    if (rank != MU_SUCCESSION_NO_RANK && is_new(&voters, rank)) {
        votes++;
    }
    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_ask *ask = &mu_succession_asker_of(it)->ask;

        rank = mu_succession_vote(&ask->view, in);
        if ((term == 0 || ask->term == term) && rank != MU_SUCCESSION_NO_RANK &&
            is_new(&voters, rank)) {
            votes++;
        }
    }
    return votes;
}

/* The latest view of all who ask us, and of our own. */
static const struct mu_succession_view *latest_view(const struct mu_succession *m)
{
    const struct mu_succession_view *latest = &m->view;

    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_view *view = &mu_succession_asker_of(it)->ask.view;

        if (mu_succession_view_later(view, latest)) {
            latest = view;
        }
    }
    return latest;
}

void mu_succession_count(const struct mu_succession *m, uint64_t term,
                         struct mu_succession_tally *ret)
{
    int64_t worst = 0;

    memset(ret, 0, sizeof(*ret));
    ret->view = latest_view(m);
    ret->lacking = ret->view->count;
    for (uint32_t i = 0; i < ret->view->count; i++) {
        int64_t lacks;

        ret->votes[i] = count_votes(m, term, &ret->view->may[i]);
        /* More than half is needed. */
        lacks = (int64_t)ret->view->may[i].world + 1 - 2 * (int64_t)ret->votes[i];
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

/* It waits for our answer no more. If its view was the latest, others may be enough now. */
static void take_out(struct mu_succession *m, struct mu_succession_asker *asker)
{
    mu_list_remove(&asker->link);
    if (mu_succession_view_later(&asker->ask.view, &m->view)) {
        m->idle_asks = 0;
    }
}

static void answer(struct mu_succession *m, struct mu_succession_asker *asker,
                   enum mu_succession_answer_kind kind, uint64_t term, const char *address)
{
    take_out(m, asker);
    asker->answer = (struct mu_succession_answer){.kind = kind, .term = term, .address = address};
    mu_list_push(&m->answered, &asker->link);
}

void mu_succession_answer_all(struct mu_succession *m, uint64_t term, const char *address)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &m->askers) {
        answer(m, mu_succession_asker_of(it), MU_SUCCESSION_FOLLOW_IT, term, address);
    }
}

void mu_succession_refuse(struct mu_succession *m)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &m->askers) {
        answer(m, mu_succession_asker_of(it), MU_SUCCESSION_LEFT, 0, NULL);
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

static void raise_asker(struct mu_succession *m, struct mu_succession_asker *asker)
{
    if (asker->ask.promised < m->promised &&
        votes_in(&asker->ask.view, m->counted.may, m->counted.count)) {
        answer(m, asker, MU_SUCCESSION_RAISE, m->promised, NULL);
    }
}

/* Counts, and notes how many can ask before there is anything to count again: one ask is one vote
 * at most, unless it has a later view. Otherwise an election would be counted as often as it has
 * voters. */
static bool has_enough(struct mu_succession *m, uint64_t term, struct mu_succession_tally *ret)
{
    mu_succession_count(m, term, ret);
    m->counted = *ret->view;
    m->idle_asks = 0;
    if (ret->lacking < ret->view->count) {
        m->idle_asks = ret->view->may[ret->lacking].world / 2 - ret->votes[ret->lacking];
    }
    return is_enough(ret);
}

void mu_succession_consider(struct mu_succession *m, mu_mono_t now)
{
    struct mu_succession_tally tally;

    /* One who has promised waits for the host, until its patience is over. */
    if (m->state == MU_SUCCESSION_STANDING ||
        (m->state == MU_SUCCESSION_WALKING && !mu_succession_has_promised(m))) {
        if (!has_enough(m, 0, &tally) || highest_promise(m) >= MU_SUCCESSION_TERM_MAX) {
            return;
        }
        mu_succession_hang_up(m);
        m->state = MU_SUCCESSION_CLAIMING;
        promise_self(m, highest_promise(m) + 1);
        mu_succession_wait(m, now);
    }
    if (m->state != MU_SUCCESSION_CLAIMING) {
        return;
    }
    if (has_enough(m, m->promised, &tally)) {
        take_over(m, now, &tally);
        return;
    }
    MU_LIST_FOREACH_SAFE (it, tmp, &m->askers) {
        raise_asker(m, mu_succession_asker_of(it));
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
    mu_list_push(&m->askers, &asker->link);
    mu_trace(&m->config.trace, "succession.asked", asker->ask.term, asker->ask.promised);
    if (m->has_left) {
        mu_succession_refuse(m);
    } else if (m->state == MU_SUCCESSION_HOSTING) {
        answer_as_host(m, now, asker);
    } else if (m->state == MU_SUCCESSION_FOLLOWING) {
        (void)mu_succession_push(m, MU_SUCCESSION_CHECK);
    } else if (m->idle_asks == 0 || mu_succession_view_later(&asker->ask.view, &m->counted)) {
        mu_succession_consider(m, now);
    } else {
        m->idle_asks--;
        if (m->state == MU_SUCCESSION_CLAIMING) {
            raise_asker(m, asker);
        }
    }
}

void mu_succession_unasked(struct mu_succession *m, struct mu_succession_asker *asker)
{
    take_out(m, asker);
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
