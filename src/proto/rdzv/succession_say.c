#include "proto/rdzv/succession_internal.h"

#include <inttypes.h>
#include <string.h>

#include "proto/rdzv/text.h"

/* --- names ----------------------------------------------------------------------------------- */

struct names {
    const char *list[MU_SUCCESSION_MISSING];
    uint32_t count;
    uint32_t more; /* that were not kept */
};

static void add(struct names *names, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++) {
        if (strcmp(names->list[i], name) == 0) {
            return;
        }
    }
    if (names->count < MU_SUCCESSION_MISSING) {
        names->list[names->count++] = name;
    } else {
        names->more++;
    }
}

/* "b", "b and c", "b, c and d", "b, c and 4 more" */
static void say_names(struct mu_text *t, const struct names *names)
{
    for (uint32_t i = 0; i < names->count; i++) {
        bool last = i + 1 == names->count && names->more == 0;

        mu_text_add(t, "%s%s", i == 0 ? "" : last ? " and " : ", ", names->list[i]);
    }
    if (names->more > 0) {
        mu_text_add(t, " and %" PRIu32 " more", names->more);
    }
}

static void say_missing(struct mu_text *t, const struct names *names)
{
    if (names->count > 0) {
        mu_text_add(t, ", ");
        say_names(t, names);
        mu_text_add(t, names->count + names->more == 1 ? " is missing" : " are missing");
    }
}

static void say_electorate(const struct mu_succession *m, struct mu_text *t, uint32_t count,
                           const struct mu_electorate *e)
{
    mu_text_add(t, "%" PRIu32 " of %" PRIu32, count, e->world);
    if (e->term == 0) {
        mu_text_add(t, " named endpoints");
    } else {
        mu_text_add(t, " nodes of round %" PRIu64, e->round - m->config.rounds_from);
    }
}

/* --- what is waited for ---------------------------------------------------------------------- */

static bool asks_us(const struct mu_succession *m, const struct mu_succession_heir *heir,
                    uint64_t term)
{
    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_asker *asker = mu_succession_asker_of(it);

        if ((term == 0 || asker->ask.term == term) && strcmp(asker->name, heir->name) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the voter of that rank asks us, or is us. */
static bool has_vote(const struct mu_succession *m, const struct mu_electorate *in, uint32_t rank,
                     uint64_t term)
{
    MU_LIST_FOREACH (it, &m->askers) {
        const struct mu_succession_ask *ask = &mu_succession_asker_of(it)->ask;

        if ((term == 0 || ask->term == term) && mu_succession_vote(&ask->view, in) == rank) {
            return true;
        }
    }
    return mu_succession_vote(&m->view, in) == rank;
}

/* Endpoints are known by their place in the list that all were started with. */
static void add_endpoints(const struct mu_succession *m, const struct mu_electorate *in,
                          uint64_t term, struct names *names)
{
    for (uint32_t i = 0; in->world == m->endpoint_count && i < in->world; i++) {
        if (i < m->line.count && !has_vote(m, in, i, term)) {
            add(names, m->line.heirs[i].address);
        }
    }
}

static void add_nodes(const struct mu_succession *m, uint64_t term, struct names *names)
{
    for (uint32_t i = 0; i < m->line.count; i++) {
        const struct mu_succession_heir *heir = &m->line.heirs[i];

        if (heir->name[0] != '\0' && strcmp(heir->address, m->config.address) != 0 &&
            strcmp(heir->name, m->config.name) != 0 && !asks_us(m, heir, term)) {
            add(names, heir->name);
        }
    }
}

static void explain_candidate(const struct mu_succession *m, struct mu_text *t)
{
    uint64_t term = m->state == MU_SUCCESSION_CLAIMING ? m->promised : 0;
    const struct mu_electorate *lacking;
    struct mu_succession_tally tally;
    struct names names = {0};

    mu_succession_count(m, term, &tally);
    if (tally.view->count == 0) {
        mu_text_add(t, "waiting for nodes that have run before");
        return;
    }
    if (tally.lacking == tally.view->count) {
        return;
    }
    lacking = &tally.view->may[tally.lacking];
    if (lacking->term == 0) {
        add_endpoints(m, lacking, term, &names);
    } else {
        add_nodes(m, term, &names);
    }
    mu_text_add(t, "waiting for promises: ");
    say_electorate(m, t, tally.votes[tally.lacking], lacking);
    say_missing(t, &names);
    if (lacking->term != 0) {
        mu_text_add(t, "; more than half of them must be here, and agents that were started anew "
                       "do not count (if too many were, start this one anew, too; --succession "
                       "any goes on with those who are here)");
    }
}

static void explain_host(const struct mu_succession *m, struct mu_text *t)
{
    struct names names = {0};

    if (m->step == MU_SUCCESSION_TOLD) {
        MU_LIST_FOREACH (it, &m->peers) {
            const struct mu_succession_peer *peer = mu_succession_peer_of(it);

            if (peer->rank != MU_SUCCESSION_NO_RANK && !peer->old && peer->said == 0) {
                add(&names, peer->name);
            }
        }
        mu_text_add(t, "waiting until all nodes of round %" PRIu64 " are ready",
                    m->preparing.round - m->config.rounds_from);
        say_missing(t, &names);
        return;
    }
    for (uint32_t i = 0; i < m->missing_count; i++) {
        add(&names, m->missing[i]);
    }
    for (uint32_t i = 0; i < m->base_count; i++) {
        if (!mu_succession_is_ready(m, i)) {
            say_electorate(m, t, mu_succession_count_ready(m, i), &m->bases[i]);
            mu_text_add(t, " are here");
            say_missing(t, &names);
            mu_text_add(
                t, "; the others may have gone on without us, so this node waits for half of them "
                   "(--succession any goes on alone)");
            return;
        }
    }
}

/* The one that promises, or else that at home. */
static const struct mu_succession_call *main_call(const struct mu_succession *m)
{
    const struct mu_succession_call *visit = &m->calls[!m->home_call];

    return visit->asking && visit->term != 0 ? visit : &m->calls[m->home_call];
}

void mu_succession_explain(const struct mu_succession *m, char *text, size_t cap)
{
    const struct mu_succession_call *call = main_call(m);
    struct mu_text t = {.data = text, .cap = cap};

    text[0] = '\0';
    switch (m->state) {
    case MU_SUCCESSION_TURNING:
        mu_text_add(&t, "joining the host of term %" PRIu64 " at %s", m->host_term, m->host);
        break;
    case MU_SUCCESSION_WALKING:
        if (call->asking) {
            mu_text_add(&t, "%s %s to host the run", call->term == 0 ? "asking" : "waiting for",
                        call->asked);
        } else {
            mu_text_add(&t, "none of the %" PRIu32 " nodes that could host the run can be reached",
                        m->line.count);
        }
        break;
    case MU_SUCCESSION_STANDING:
    case MU_SUCCESSION_CLAIMING:
        explain_candidate(m, &t);
        break;
    case MU_SUCCESSION_HOSTING:
        if (mu_succession_waits(m)) {
            explain_host(m, &t);
        }
        break;
    case MU_SUCCESSION_OUT:
    case MU_SUCCESSION_FOLLOWING:
        break;
    }
}
