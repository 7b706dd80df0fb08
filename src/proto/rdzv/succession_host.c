#include "proto/rdzv/succession_internal.h"

#include <inttypes.h>
#include <string.h>

/* A tenth of a second between two probes is enough for the longest line. */
#define PROBE_MS_MIN 100

/* --- counting -------------------------------------------------------------------------------- */

/*
 * A word of one of N members costs as much as a word of one of two: the counts that decide are kept
 * up to date. Whatever changes `rank`, `votes` or `said` of a peer takes it out of the counts
 * before, and puts it back after.
 */
static bool is_told(const struct mu_succession_peer *peer)
{
    return peer->rank != MU_SUCCESSION_NO_RANK && (peer->old || peer->said >= MU_SUCCESSION_TOLD);
}

static bool is_bound(const struct mu_succession_peer *peer, uint32_t base)
{
    return peer->votes[base] != MU_SUCCESSION_NO_RANK &&
           (peer->old || peer->said == MU_SUCCESSION_BOUND);
}

/* The mark of a vote. Each base has as many as fit: if these are fewer than its voters, two of them
 * share one. */
static uint32_t mark_of(const struct mu_succession *m, uint32_t base, uint32_t rank)
{
    return (base * (MU_SUCCESSION_WORLD_MAX / m->base_count) + rank) % MU_SUCCESSION_WORLD_MAX;
}

/* Notes that a peer has these votes. False: no peer had any of them since the marks were made. */
static bool mark(struct mu_succession *m, const struct mu_succession_peer *peer)
{
    bool had = false;

    for (uint32_t i = 0; i < m->base_count; i++) {
        if (peer->votes[i] != MU_SUCCESSION_NO_RANK) {
            uint32_t at = mark_of(m, i, peer->votes[i]);
            uint64_t bit = UINT64_C(1) << at % 64;

            had = had || (m->marks[at / 64] & bit) != 0;
            m->marks[at / 64] |= bit;
        }
    }
    return had;
}

static void count_in(struct mu_succession *m, const struct mu_succession_peer *peer)
{
    m->told += is_told(peer);
    for (uint32_t i = 0; i < m->base_count; i++) {
        m->ready[i] += is_bound(peer, i);
    }
}

static void count_out(struct mu_succession *m, const struct mu_succession_peer *peer)
{
    m->told -= is_told(peer);
    for (uint32_t i = 0; i < m->base_count; i++) {
        m->ready[i] -= is_bound(peer, i);
    }
}

static void count_anew(struct mu_succession *m)
{
    m->told = 0;
    memset(m->ready, 0, sizeof(m->ready));
    memset(m->marks, 0, sizeof(m->marks));
    MU_LIST_FOREACH (it, &m->peers) {
        count_in(m, mu_succession_peer_of(it));
        (void)mark(m, mu_succession_peer_of(it));
    }
}

static void forget_peers(struct mu_succession *m)
{
    while (mu_list_pop(&m->peers) != NULL) {
    }
    m->untold = &m->peers;
    count_anew(m);
}

/* The first peer that has news, or NULL. */
static struct mu_succession_peer *next_untold(struct mu_succession *m)
{
    while (m->untold != &m->peers && !mu_succession_peer_of(m->untold)->news) {
        m->untold = m->untold->next;
    }
    return m->untold != &m->peers ? mu_succession_peer_of(m->untold) : NULL;
}

/* --- beginning and ending to host ------------------------------------------------------------ */

void mu_succession_host(struct mu_succession *m, mu_mono_t now, uint64_t term)
{
    struct mu_succession_action *a = mu_succession_push(m, MU_SUCCESSION_HOST);

    m->state = MU_SUCCESSION_HOSTING;
    m->host_term = term;
    mu_succession_set(m->host, m->config.address);
    m->give_up = MU_MONO_NEVER;
    m->any_at = MU_MONO_NEVER;
    m->step = 0;
    m->missing_count = 0;
    memset(m->left, 0, sizeof(m->left));
    m->left_ourselves = 0;
    memset(&m->preparing, 0, sizeof(m->preparing));
    count_anew(m);
    m->probe_at = now;
    a->term = term;
    mu_trace(&m->config.trace, "succession.host", term, m->base_count);
    mu_succession_answer_all(m, term, m->config.address);
}

/*
 * A host knows what it has not committed, and will not commit any more. It tells itself of one more
 * round on the same bases, which never begins: so no successor that it promises to has to reckon
 * with the round that it has prepared.
 */
static void give_up_round(struct mu_succession *m)
{
    struct mu_succession_view view = {.term = m->host_term,
                                      .round = m->first_round,
                                      .step = MU_SUCCESSION_TOLD,
                                      .count = m->base_count,
                                      .past_count = m->view.past_count};

    memcpy(view.past, m->view.past, sizeof(view.past));
    for (uint32_t i = 0; i < m->base_count; i++) {
        view.may[i] = m->bases[i];
        view.may[i].rank = mu_succession_vote(&m->view, &m->bases[i]);
    }
    if (mu_succession_view_later(&view, &m->view)) {
        m->view = view;
    }
}

void mu_succession_step_down(struct mu_succession *m, mu_mono_t now, uint64_t term,
                             const char *address)
{
    struct mu_succession_action *a = mu_succession_push(m, MU_SUCCESSION_STEP_DOWN);

    mu_trace(&m->config.trace, "succession.step_down", m->host_term, term);
    a->term = term;
    mu_succession_set(a->address, address);
    give_up_round(m);
    forget_peers(m);
    m->step = 0;
    m->base_count = 0;
    m->insists = false;
    m->probe_at = MU_MONO_NEVER;
    mu_succession_walk_home(m);
    if (address[0] != '\0') {
        mu_succession_turn(m, term, address);
        return;
    }
    m->state = MU_SUCCESSION_STANDING;
    mu_succession_wait(m, now);
    mu_succession_consider(m, now);
}

bool mu_succession_is_unknown(const struct mu_succession *m, const struct mu_succession_view *view)
{
    return view->count > 0 && (view->term > m->host_term ||
                               (view->term == m->host_term && view->round >= m->first_round));
}

/* --- members --------------------------------------------------------------------------------- */

static bool has_vote(const struct mu_succession *m, const struct mu_succession_peer *peer)
{
    for (uint32_t i = 0; i < m->base_count; i++) {
        if (peer->votes[i] != MU_SUCCESSION_NO_RANK) {
            return true;
        }
    }
    return false;
}

/* A voter that joins again has one vote. Most have not joined before, and are not looked for. */
static void take_votes_away(struct mu_succession *m, const struct mu_succession_peer *peer)
{
    if (!mark(m, peer)) {
        return;
    }
    MU_LIST_FOREACH (it, &m->peers) {
        struct mu_succession_peer *other = mu_succession_peer_of(it);

        for (uint32_t i = 0; i < m->base_count; i++) {
            if (other->votes[i] == peer->votes[i] && is_bound(other, i)) {
                m->ready[i]--;
            }
            if (other->votes[i] == peer->votes[i]) {
                other->votes[i] = MU_SUCCESSION_NO_RANK;
            }
        }
    }
}

/* Whether the peer has our own vote: while we host, we promise nothing else. */
static bool is_ours(const struct mu_succession *m, const struct mu_succession_peer *peer,
                    uint32_t base)
{
    return peer->votes[base] != MU_SUCCESSION_NO_RANK &&
           peer->votes[base] == mu_succession_vote(&m->view, &m->bases[base]);
}

/* Our own member has left, and still is a voter when it joins again: it has one vote. */
static void be_back(struct mu_succession *m, const struct mu_succession_peer *peer)
{
    for (uint32_t i = 0; i < m->base_count; i++) {
        if ((m->left_ourselves >> i & 1) != 0 && is_ours(m, peer, i)) {
            m->left_ourselves &= ~(UINT32_C(1) << i);
            m->left[i]--;
        }
    }
}

static void stop_missing(struct mu_succession *m, const char *name)
{
    for (uint32_t i = 0; i < m->missing_count; i++) {
        if (strcmp(m->missing[i], name) == 0) {
            m->missing_count--;
            memmove(m->missing[i], m->missing[i + 1],
                    (m->missing_count - i) * sizeof(m->missing[0]));
            return;
        }
    }
}

void mu_succession_peer_in(struct mu_succession *m, mu_mono_t now, struct mu_succession_peer *peer)
{
    mu_succession_sanitise(&peer->view);
    peer->rank = MU_SUCCESSION_NO_RANK;
    peer->said = 0;
    peer->news = false;
    for (uint32_t i = 0; i < MU_SUCCESSION_CONFIGS; i++) {
        peer->votes[i] = i < m->base_count ? mu_succession_vote(&peer->view, &m->bases[i])
                                           : MU_SUCCESSION_NO_RANK;
    }
    take_votes_away(m, peer);
    be_back(m, peer);
    mu_list_push(&m->peers, &peer->link);
    count_in(m, peer);
    stop_missing(m, peer->name);
    if (mu_succession_is_unknown(m, &peer->view)) {
        mu_succession_step_down(m, now, 0, "");
        return;
    }
    peer->news = !peer->old && m->step == MU_SUCCESSION_BOUND && has_vote(m, peer);
    if (peer->news && m->untold == &m->peers) {
        m->untold = &peer->link;
    }
}

static void miss(struct mu_succession *m, const struct mu_succession_peer *peer)
{
    stop_missing(m, peer->name);
    if (m->missing_count < MU_SUCCESSION_MISSING) {
        mu_succession_set(m->missing[m->missing_count++], peer->name);
    }
}

/* --- the round that is being prepared -------------------------------------------------------- */

static void tell(struct mu_succession *m, enum mu_succession_step step)
{
    m->step = step;
    MU_LIST_FOREACH (it, &m->peers) {
        struct mu_succession_peer *peer = mu_succession_peer_of(it);

        peer->news = !peer->old && (peer->rank != MU_SUCCESSION_NO_RANK ||
                                    (step == MU_SUCCESSION_BOUND && has_vote(m, peer)));
    }
    m->untold = m->peers.next;
    mu_trace(&m->config.trace, step == MU_SUCCESSION_TOLD ? "succession.tell" : "succession.bind",
             m->preparing.term, m->preparing.round);
}

uint32_t mu_succession_count_ready(const struct mu_succession *m, uint32_t base)
{
    return m->left[base] + m->ready[base];
}

bool mu_succession_is_ready(const struct mu_succession *m, uint32_t base)
{
    return (uint64_t)mu_succession_count_ready(m, base) * 2 >= m->bases[base].world;
}

static void commit(struct mu_succession *m)
{
    struct mu_succession_action *a = mu_succession_push(m, MU_SUCCESSION_COMMIT);

    a->term = m->host_term;
    a->round = m->preparing.round;
    mu_trace(&m->config.trace, "succession.commit", a->term, a->round);
    m->step = MU_SUCCESSION_COMMITTED;
    m->insists = false;
    m->bases[0] = m->preparing;
    m->base_count = 1;
    m->missing_count = 0;
    memset(m->left, 0, sizeof(m->left));
    m->left_ourselves = 0;
    MU_LIST_FOREACH (it, &m->peers) {
        struct mu_succession_peer *peer = mu_succession_peer_of(it);

        memset(peer->votes, 0xff, sizeof(peer->votes));
        peer->votes[0] = peer->rank;
        peer->news = false;
    }
    count_anew(m);
}

void mu_succession_commit_any(struct mu_succession *m)
{
    if (mu_succession_is_any(m) && m->step == MU_SUCCESSION_BOUND && next_untold(m) == NULL) {
        commit(m);
    }
}

static void look(struct mu_succession *m)
{
    if (m->step == MU_SUCCESSION_TOLD && m->told == m->preparing.world) {
        tell(m, MU_SUCCESSION_BOUND);
    }
    if (m->step != MU_SUCCESSION_BOUND || mu_succession_is_any(m)) {
        return;
    }
    for (uint32_t i = 0; i < m->base_count; i++) {
        if (!mu_succession_is_ready(m, i)) {
            return;
        }
    }
    commit(m);
}

void mu_succession_set_incarnation(struct mu_succession *m, uint64_t incarnation)
{
    m->incarnation = incarnation;
}

int mu_succession_begin(struct mu_succession *m, uint64_t round, uint32_t world,
                        struct mu_errmsg *reterr_msg)
{
    if (m->state != MU_SUCCESSION_HOSTING) {
        return mu_err(reterr_msg, MUSTER_ECLOSED, "this node does not host the run any more");
    }
    if (round < m->first_round || world == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "round %" PRIu64 " cannot begin: the first free number is %" PRIu64, round,
                      m->first_round);
    }
    if (m->base_count >= MU_SUCCESSION_CONFIGS) {
        return mu_err(reterr_msg, MUSTER_ELIMIT,
                      "too many hosts were lost while they began a round; start the run anew");
    }
    mu_succession_abort(m);
    m->first_round = round + 1;
    m->preparing = (struct mu_electorate){
        .term = m->host_term, .round = round, .world = world, .incarnation = m->incarnation};
    return 0;
}

void mu_succession_seat(struct mu_succession *m, struct mu_succession_peer *peer, uint32_t rank)
{
    count_out(m, peer);
    peer->rank = rank;
    count_in(m, peer);
}

void mu_succession_go(struct mu_succession *m, mu_mono_t now)
{
    if (m->state != MU_SUCCESSION_HOSTING) {
        return;
    }
    m->probe_at = mu_mono_min(m->probe_at, mu_mono_add_ms(now, MU_SUCCESSION_PROBE_MS));
    tell(m, mu_succession_is_any(m) ? MU_SUCCESSION_BOUND : MU_SUCCESSION_TOLD);
    look(m);
}

void mu_succession_ready(struct mu_succession *m, mu_mono_t now, struct mu_succession_peer *peer,
                         uint64_t term, uint64_t round, enum mu_succession_step step)
{
    (void)now;
    if (!mu_succession_waits(m) || term != m->host_term || round != m->preparing.round ||
        step > m->step || step <= peer->said) {
        return;
    }
    count_out(m, peer);
    peer->said = step;
    count_in(m, peer);
    look(m);
}

void mu_succession_peer_out(struct mu_succession *m, mu_mono_t now, struct mu_succession_peer *peer,
                            bool good)
{
    bool votes = has_vote(m, peer);

    (void)now;
    if (peer->link.next == NULL || mu_list_empty(&peer->link)) {
        return;
    }
    if (m->untold == &peer->link) {
        m->untold = peer->link.next;
    }
    mu_list_remove(&peer->link);
    count_out(m, peer);
    for (uint32_t i = 0; i < m->base_count; i++) {
        /* One that never promises stands in nobody's way. */
        if ((good || peer->old) && peer->votes[i] != MU_SUCCESSION_NO_RANK) {
            m->left[i]++;
            m->left_ourselves |= is_ours(m, peer, i) ? UINT32_C(1) << i : 0;
        }
    }
    if (votes && !good) {
        miss(m, peer);
    }
    /* A round that has lost a member does not begin. */
    if (mu_succession_waits(m) && peer->rank != MU_SUCCESSION_NO_RANK) {
        mu_succession_abort(m);
    }
    look(m);
}

void mu_succession_abort(struct mu_succession *m)
{
    m->step = 0;
    memset(&m->preparing, 0, sizeof(m->preparing));
    MU_LIST_FOREACH (it, &m->peers) {
        struct mu_succession_peer *peer = mu_succession_peer_of(it);

        peer->rank = MU_SUCCESSION_NO_RANK;
        peer->said = 0;
        peer->news = false;
    }
    count_anew(m);
}

bool mu_succession_waits(const struct mu_succession *m)
{
    return m->state == MU_SUCCESSION_HOSTING &&
           (m->step == MU_SUCCESSION_TOLD || m->step == MU_SUCCESSION_BOUND);
}

bool mu_succession_next_prepare(struct mu_succession *m, struct mu_succession_peer **ret_peer,
                                struct mu_succession_prepare *ret_prepare)
{
    struct mu_succession_peer *peer = next_untold(m);

    if (peer == NULL) {
        return false;
    }
    peer->news = false;
    *ret_peer = peer;
    memset(ret_prepare, 0, sizeof(*ret_prepare));
    ret_prepare->term = m->host_term;
    ret_prepare->step = m->step;
    ret_prepare->round = m->preparing;
    ret_prepare->round.rank = peer->rank;
    ret_prepare->base_count = m->base_count;
    memcpy(ret_prepare->bases, m->bases, sizeof(ret_prepare->bases));
    return true;
}

/* --- probes ---------------------------------------------------------------------------------- */

/* How many entries of the line may know of another host: an endpoint where an agent was started
 * anew; or all, if members are missing that may have gone on without us. */
static uint32_t count_probed(const struct mu_succession *m)
{
    if (mu_succession_waits(m)) {
        return m->line.count;
    }
    if (m->host_term <= 1 && m->endpoint_count <= 1) {
        return 0;
    }
    return m->endpoint_count < m->line.count ? m->endpoint_count : m->line.count;
}

void mu_succession_probe_tick(struct mu_succession *m, mu_mono_t now)
{
    uint32_t count = count_probed(m);
    uint64_t apart_ms;

    if (!mu_mono_reached(m->probe_at, now)) {
        return;
    }
    if (count == 0) {
        m->probe_at = MU_MONO_NEVER;
        return;
    }
    apart_ms = MU_SUCCESSION_PROBE_MS / count;
    m->probe_at = mu_mono_add_ms(now, apart_ms > PROBE_MS_MIN ? apart_ms : PROBE_MS_MIN);
    m->probe_entry = (m->probe_entry + 1) % count;
    if (strcmp(m->line.heirs[m->probe_entry].address, m->config.address) != 0) {
        struct mu_succession_action *a = mu_succession_push(m, MU_SUCCESSION_PROBE);

        mu_succession_set(a->address, m->line.heirs[m->probe_entry].address);
    }
}
