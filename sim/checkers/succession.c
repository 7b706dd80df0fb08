#include "checkers/succession.h"

#include <string.h>

void succ_truth_reborn(struct succ_truth *t, uint32_t node)
{
    t->lives[node]++;
    t->promised[node] = 0;
    memset(t->promised_to[node], 0, sizeof(t->promised_to[node]));
}

void succ_truth_follow(struct succ_truth *t, uint32_t node, uint64_t term)
{
    t->promised[node] = term > t->promised[node] ? term : t->promised[node];
}

const char *succ_truth_promise(struct succ_truth *t, uint32_t node, uint64_t term, uint32_t to)
{
    if (term >= SUCC_TERMS_MAX) {
        return "there are too many terms";
    }
    if (t->promised_to[node][term] != 0 && t->promised_to[node][term] != to + 1) {
        return "a promise was given twice";
    }
    t->promised_to[node][term] = (uint8_t)(to + 1);
    succ_truth_follow(t, node, term);
    return NULL;
}

static bool is_base(const struct succ_term *term, const struct succ_commit *c)
{
    for (uint8_t i = 0; i < term->base_count; i++) {
        if (term->bases[i].term == c->term && term->bases[i].round == c->round) {
            return true;
        }
    }
    return false;
}

/* Whether the hosts after the one that committed it know of it, up to the one that went on. */
static bool is_known(const struct succ_truth *t, const struct succ_commit *c)
{
    for (uint64_t s = c->term + 1; s < SUCC_TERMS_MAX; s++) {
        if (t->terms[s].host != 0 && !is_base(&t->terms[s], c)) {
            return false;
        }
        if (t->terms[s].last != 0) {
            break;
        }
    }
    return true;
}

static bool is_dead(const struct succ_truth *t, const struct succ_commit *c)
{
    uint32_t gone = 0;

    for (uint32_t i = 0; i < c->world; i++) {
        const struct succ_voter *v = &c->voters[i];

        gone += t->lives[v->node] != v->life || t->promised[v->node] > c->term;
    }
    return 2 * gone > c->world;
}

static const struct succ_commit *last_commit(const struct succ_truth *t, uint64_t below)
{
    while (below-- > 0) {
        if (t->terms[below].last != 0) {
            return &t->commits[t->terms[below].last - 1];
        }
    }
    return NULL;
}

const char *succ_truth_host(struct succ_truth *t, uint32_t node, const struct mu_succession *m)
{
    struct succ_term *term = &t->terms[m->host_term < SUCC_TERMS_MAX ? m->host_term : 0];
    const struct succ_commit *last;

    if (m->host_term >= SUCC_TERMS_MAX) {
        return "there are too many terms";
    }
    if (term->host != 0) {
        return "a term has two hosts";
    }
    term->host = (uint8_t)(node + 1);
    term->base_count = (uint8_t)m->base_count;
    for (uint32_t i = 0; i < m->base_count; i++) {
        term->bases[i].term = m->bases[i].term;
        term->bases[i].round = m->bases[i].round;
    }
    last = last_commit(t, m->host_term);
    if (last == NULL) {
        return NULL;
    }
    if (!is_known(t, last)) {
        return "a host does not know the last committed round";
    }
    if (m->first_round <= last->round) {
        return "a host begins with a round number that was used";
    }
    return m->heritage.version < last->legacy ? "a host has an old legacy" : NULL;
}

const char *succ_truth_commit(struct succ_truth *t, const struct succ_commit *commit)
{
    struct succ_commit *c = &t->commits[t->commit_count];

    if (t->commit_count == SUCC_COMMITS_MAX) {
        return "there are too many rounds";
    }
    for (uint32_t i = 0; i < t->commit_count; i++) {
        if (t->commits[i].round == commit->round) {
            return "a round number was used twice";
        }
    }
    *c = *commit;
    t->commit_count++;
    for (uint32_t i = 0; i < c->world; i++) {
        c->voters[i].life = t->lives[c->voters[i].node];
    }
    t->terms[c->term].last = (uint8_t)t->commit_count;
    if (!is_known(t, c)) {
        return "a host committed a round that its successor does not know";
    }
    for (uint64_t s = 0; s < SUCC_TERMS_MAX; s++) {
        for (uint64_t later = s + 1; t->terms[s].last != 0 && later < SUCC_TERMS_MAX; later++) {
            if (t->terms[later].last != 0 && !is_dead(t, &t->commits[t->terms[s].last - 1])) {
                return "two worlds are alive";
            }
        }
    }
    return NULL;
}

const char *succ_truth_assigned(const struct succ_truth *t, uint32_t node, uint64_t term,
                                uint64_t round, uint32_t rank)
{
    for (uint32_t i = 0; i < t->commit_count; i++) {
        const struct succ_commit *c = &t->commits[i];

        if (c->term == term && c->round == round && rank < c->world) {
            return c->voters[rank].node == node ? NULL : "two nodes have the same rank";
        }
    }
    return "a node runs in a round that was never committed";
}
