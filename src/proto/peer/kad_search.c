#include "proto/peer/kad_search.h"

#include <string.h>

bool mu_kad_nearer(const uint8_t key[MU_SHA256_LEN], const uint8_t a[MU_SHA256_LEN],
                   const uint8_t b[MU_SHA256_LEN])
{
    for (size_t i = 0; i < MU_SHA256_LEN; i++) {
        if (a[i] != b[i]) {
            return (a[i] ^ key[i]) < (b[i] ^ key[i]);
        }
    }
    return false;
}

void mu_kad_search_init(struct mu_kad_search *s, const struct mu_kad_search_config *config)
{
    memset(s, 0, sizeof(*s));
    s->config = *config;
    if (s->config.parallel > MU_KAD_PARALLEL_MAX) {
        s->config.parallel = MU_KAD_PARALLEL_MAX;
    }
    s->state = MU_KAD_SEARCH_ASKING;
    mu_sha256(s->key, mu_peer_id_span(&config->target));
}

/* --- candidates ------------------------------------------------------------------------------- */

static struct mu_kad_candidate *find_candidate(struct mu_kad_search *s,
                                               const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < s->count; i++) {
        if (mu_peer_id_eq(&s->candidates[i].id, peer)) {
            return &s->candidates[i];
        }
    }
    return NULL;
}

void mu_kad_search_add(struct mu_kad_search *s, const struct mu_peer_id *peer)
{
    struct mu_kad_candidate c = {.id = *peer};
    size_t at = s->count;

    if (mu_peer_id_eq(peer, &s->config.self) || mu_peer_id_eq(peer, &s->config.target) ||
        find_candidate(s, peer) != NULL) {
        return;
    }
    mu_sha256(c.key, mu_peer_id_span(peer));
    while (at > 0 && mu_kad_nearer(s->key, c.key, s->candidates[at - 1].key)) {
        at--;
    }
    if (at == MU_KAD_CANDIDATES_MAX) {
        return;
    }
    s->count += s->count < MU_KAD_CANDIDATES_MAX ? 1 : 0;
    memmove(&s->candidates[at + 1], &s->candidates[at],
            (s->count - at - 1) * sizeof(*s->candidates));
    s->candidates[at] = c;
}

/* Finds the nearest peer that was not asked, if it is among the nearest of those that have not
 * failed. */
static struct mu_kad_candidate *next_candidate(struct mu_kad_search *s)
{
    uint32_t alive = 0;

    for (size_t i = 0; i < s->count && alive < s->config.nearest; i++) {
        if (s->candidates[i].state == MU_KAD_PEER_NEW) {
            return &s->candidates[i];
        }
        alive += s->candidates[i].state != MU_KAD_PEER_FAILED ? 1 : 0;
    }
    return NULL;
}

/* --- asks ------------------------------------------------------------------------------------- */

static size_t find_ask(const struct mu_kad_search *s, const struct mu_peer_id *peer)
{
    size_t i = 0;

    while (i < s->ask_count && !mu_peer_id_eq(&s->asks[i].peer, peer)) {
        i++;
    }
    return i;
}

bool mu_kad_search_is_asking(const struct mu_kad_search *s, const struct mu_peer_id *peer)
{
    return find_ask(s, peer) < s->ask_count;
}

/* One ask is over. The peer may have been pushed out of the candidates since. */
static void end_ask(struct mu_kad_search *s, size_t i, enum mu_kad_peer_state state)
{
    struct mu_kad_candidate *c = find_candidate(s, &s->asks[i].peer);

    if (c != NULL) {
        c->state = state;
    }
    s->asks[i] = s->asks[--s->ask_count];
}

static void begin_ask(struct mu_kad_search *s, mu_mono_t now, struct mu_kad_candidate *c)
{
    c->state = MU_KAD_PEER_ASKED;
    s->asked++;
    s->asks[s->ask_count++] =
        (struct mu_kad_ask){.peer = c->id, .until = mu_mono_add_ms(now, s->config.answer_ms)};
}

/* --- in --------------------------------------------------------------------------------------- */

/* No peer is asked any more. */
static void end_search(struct mu_kad_search *s, enum mu_kad_search_state state)
{
    s->state = state;
    s->ask_count = 0;
}

void mu_kad_search_answered(struct mu_kad_search *s, const struct mu_peer_id *peer,
                            const struct mu_peer_id *named, size_t count)
{
    size_t ask = find_ask(s, peer);
    bool for_self = mu_peer_id_eq(&s->config.self, &s->config.target);

    if (ask == s->ask_count) {
        return;
    }
    end_ask(s, ask, MU_KAD_PEER_ANSWERED);
    for (size_t i = 0; i < count && i < MU_KAD_NAMED_MAX; i++) {
        if (!for_self && mu_peer_id_eq(&named[i], &s->config.target)) {
            end_search(s, MU_KAD_SEARCH_FOUND);
            return;
        }
        mu_kad_search_add(s, &named[i]);
    }
}

void mu_kad_search_failed(struct mu_kad_search *s, const struct mu_peer_id *peer)
{
    size_t ask = find_ask(s, peer);

    if (ask < s->ask_count) {
        end_ask(s, ask, MU_KAD_PEER_FAILED);
    }
}

void mu_kad_search_stop(struct mu_kad_search *s)
{
    if (s->state == MU_KAD_SEARCH_ASKING) {
        end_search(s, MU_KAD_SEARCH_STOPPED);
    }
}

/* --- out -------------------------------------------------------------------------------------- */

/* Returns the index of the ask whose time ends first; 0 if there is no ask. */
static size_t first_late(const struct mu_kad_search *s)
{
    size_t first = 0;

    for (size_t i = 1; i < s->ask_count; i++) {
        if (mu_mono_before(s->asks[i].until, s->asks[first].until)) {
            first = i;
        }
    }
    return first;
}

mu_mono_t mu_kad_search_deadline(const struct mu_kad_search *s)
{
    return s->ask_count == 0 ? MU_MONO_NEVER : s->asks[first_late(s)].until;
}

bool mu_kad_search_next(struct mu_kad_search *s, mu_mono_t now, struct mu_kad_action *ret)
{
    struct mu_kad_candidate *c = next_candidate(s);

    if (mu_mono_reached(mu_kad_search_deadline(s), now)) {
        size_t late = first_late(s);

        *ret = (struct mu_kad_action){.type = MU_KAD_ACTION_LATE, .peer = s->asks[late].peer};
        end_ask(s, late, MU_KAD_PEER_FAILED);
        return true;
    }
    if (s->state == MU_KAD_SEARCH_ASKING && c != NULL && s->ask_count < s->config.parallel &&
        s->asked < s->config.asked_max) {
        begin_ask(s, now, c);
        *ret = (struct mu_kad_action){.type = MU_KAD_ACTION_ASK, .peer = c->id};
        return true;
    }
    if (s->state == MU_KAD_SEARCH_ASKING && s->ask_count == 0) {
        end_search(s, c != NULL       ? MU_KAD_SEARCH_SPENT
                      : s->asked == 0 ? MU_KAD_SEARCH_NOBODY
                                      : MU_KAD_SEARCH_UNKNOWN);
    }
    if (s->state != MU_KAD_SEARCH_ASKING && !s->told) {
        s->told = true;
        *ret = (struct mu_kad_action){.type = MU_KAD_ACTION_END};
        return true;
    }
    return false;
}
