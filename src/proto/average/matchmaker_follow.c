/* Whom a matchmaker follows: the bucket, the peers in it, and the call to one of them. */
#include <stdlib.h>

#include "codec/bin/msgpack.h"
#include "codec/dht/dict.h"
#include "core/alloc.h"
#include "proto/average/matchmaker_internal.h"

/* --- the bucket ------------------------------------------------------------------------------- */

/* A subkey is the bytes of a peer id; the value is true while it looks for a group. */
static bool read_entry(const struct mu_matchmaker *m, double now, const struct mu_dht_entry *entry,
                       struct mu_matchmaker_candidate *ret)
{
    struct mu_span subkey = entry->subkey;
    struct mu_span value = entry->value;
    struct mu_mp t;

    if (!(entry->expiration >= now) ||
        !(entry->expiration <= now + (double)m->config.ahead_ms / 1e3)) {
        return false; /* also what is not a number */
    }
    if (mu_mp_next(&subkey, &t) != 0 || t.type != MU_MP_BIN || subkey.len != 0 ||
        mu_peer_id_from_bytes(&ret->peer, t.bytes) != 0 ||
        mu_peer_id_eq(&ret->peer, &m->config.self)) {
        return false;
    }
    ret->expiration = entry->expiration;
    ret->tried = false;
    return mu_mp_next(&value, &t) == 0 && t.type == MU_MP_BOOL && t.boolean && value.len == 0;
}

static int compare_candidates(const void *a, const void *b)
{
    const struct mu_matchmaker_candidate *x = a;
    const struct mu_matchmaker_candidate *y = b;

    if (x->expiration < y->expiration || x->expiration > y->expiration) {
        return x->expiration < y->expiration ? -1 : 1;
    }
    return mu_matchmaker_compare_peers(&x->peer, &y->peer);
}

/* Both lists are sorted: what was tried in the old one was tried in the new one. */
static void keep_tried(const struct mu_matchmaker *m, struct mu_matchmaker_candidate *list,
                       size_t count)
{
    size_t old = 0;

    for (size_t i = 0; i < count; i++) {
        while (old < m->candidate_count && compare_candidates(&m->candidates[old], &list[i]) < 0) {
            old++;
        }
        if (old < m->candidate_count && compare_candidates(&m->candidates[old], &list[i]) == 0) {
            list[i].tried = m->candidates[old].tried;
        }
    }
}

static void read_bucket(struct mu_matchmaker *m, double now, struct mu_span dictionary)
{
    struct mu_matchmaker_candidate *list;
    struct mu_dht_entry entry;
    struct mu_dht_dict dict;
    size_t count = 0;

    if (dictionary.len == 0 || mu_dht_dict_decode(dictionary, &dict) != 0) {
        return;
    }
    list = mu_calloc((size_t)dict.count + 1, sizeof(*list));
    if (list == NULL) {
        return; /* what is known stays; the bucket is read again */
    }
    while (mu_dht_dict_next(&dict, &entry)) {
        count += read_entry(m, now, &entry, &list[count]);
    }
    qsort(list, count, sizeof(*list), compare_candidates);
    count = count < m->config.candidates_max ? count : m->config.candidates_max;
    keep_tried(m, list, count);
    if (count != 0 && list[count - 1].expiration - (double)m->config.skew_ms / 1e3 > m->assured) {
        m->assured = list[count - 1].expiration - (double)m->config.skew_ms / 1e3;
    }
    mu_free(m->candidates);
    m->candidates = list;
    m->candidate_count = count;
}

void mu_matchmaker_fetched(struct mu_matchmaker *m, struct mu_now now, uint64_t number, int status,
                           struct mu_span dictionary)
{
    double wall = mu_matchmaker_wall(now);
    double assured =
        wall + (double)m->config.matchmaking_ms / 1e3 - (double)m->config.skew_ms / 1e3;
    uint32_t pause = m->config.fetch_ms;

    if (number == 0 || number != m->fetching) {
        return;
    }
    m->fetching = 0;
    pause = MU_MATCHMAKER_FETCH_MS_MIN > pause / 2 ? MU_MATCHMAKER_FETCH_MS_MIN : pause / 2;
    m->fetch_at = mu_mono_add_ms(now.mono, pause + mu_prng_below(&m->prng, m->config.fetch_ms));
    if (status >= 0) {
        m->assured = assured > m->assured ? assured : m->assured;
        read_bucket(m, wall, dictionary);
    }
    mu_matchmaker_search(m, now);
}

/* --- the search ------------------------------------------------------------------------------- */

/* The first that was not tried and is not over; NULL: there is none. */
static struct mu_matchmaker_candidate *find_head(struct mu_matchmaker *m, double now)
{
    for (size_t i = 0; i < m->candidate_count; i++) {
        if (!m->candidates[i].tried && m->candidates[i].expiration >= now) {
            return &m->candidates[i];
        }
    }
    return NULL;
}

static bool precedes_us(const struct mu_matchmaker *m, const struct mu_matchmaker_candidate *c)
{
    if (c->expiration < m->declared || c->expiration > m->declared) {
        return c->expiration < m->declared;
    }
    return mu_matchmaker_compare_peers(&c->peer, &m->config.self) < 0;
}

static void call(struct mu_matchmaker *m, struct mu_now now, const struct mu_peer_id *peer)
{
    m->leader = *peer;
    m->calling = ++m->numbers;
    m->call_until = mu_mono_add_ms(now.mono, m->config.request_ms);
    m->asked_expiration = m->config.client ? mu_matchmaker_next_time(m, now) : m->declared;
    mu_matchmaker_note(m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_CALL,
                                                      .number = m->calling,
                                                      .expiration = m->asked_expiration,
                                                      .peer = *peer});
}

void mu_matchmaker_search(struct mu_matchmaker *m, struct mu_now now)
{
    double wall = mu_matchmaker_wall(now);
    struct mu_matchmaker_candidate *head;

    if (m->state != MU_MATCHMAKER_SEARCHING) {
        return;
    }
    head = find_head(m, wall);
    if (mu_mono_reached(m->fetch_at, now.mono)) {
        if (head == NULL || !precedes_us(m, head) ||
            (head->expiration >= m->assured && head->expiration <= m->deadline)) {
            m->fetching = ++m->numbers;
            m->fetch_at = mu_mono_add_ms(now.mono, m->config.fetch_lost_ms);
            mu_matchmaker_note(
                m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_FETCH, .number = m->fetching});
        } else {
            /* Enough is known for now. */
            m->fetch_at = mu_mono_add_ms(now.mono, m->config.fetch_ms);
        }
    }
    if (m->calling == 0 && head != NULL && precedes_us(m, head)) {
        head->tried = true;
        m->hops = 0;
        call(m, now, &head->peer);
    }
}

/* --- the call --------------------------------------------------------------------------------- */

void mu_matchmaker_unfollow(struct mu_matchmaker *m, struct mu_now now, bool hang_up)
{
    if (m->calling == 0) {
        return;
    }
    if (hang_up) {
        mu_matchmaker_note(
            m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_HANG_UP, .number = m->calling});
    }
    m->calling = 0;
    m->call_until = MU_MONO_NEVER;
    if (m->state == MU_MATCHMAKER_FOLLOWING) {
        m->state = MU_MATCHMAKER_SEARCHING;
        if (!m->config.client && mu_mono_reached(m->declared_at, now.mono) &&
            !mu_mono_reached(m->until, now.mono)) {
            mu_matchmaker_declare(m, now);
        }
        /* An answer that was due while we followed is not waited for. */
        m->fetch_at = m->fetching == 0 ? m->fetch_at : now.mono;
    }
}

static void accepted(struct mu_matchmaker *m, struct mu_now now)
{
    double wait = m->asked_expiration - mu_matchmaker_wall(now);

    m->state = MU_MATCHMAKER_FOLLOWING;
    mu_matchmaker_disband(m);
    m->call_until =
        mu_mono_add_ms(mu_matchmaker_when(now, m->asked_expiration), m->config.request_ms);
    if (!(wait > 0)) {
        m->call_until = mu_mono_add_ms(now.mono, m->config.request_ms);
    }
}

static void begun(struct mu_matchmaker *m, struct mu_now now, struct mu_span message)
{
    uint32_t position;

    mu_buf_reset(&m->begin);
    if (mu_buf_append(&m->begin, message) != 0 ||
        mu_matchmaker_read_group(m, &m->group, &position) != 0) {
        mu_matchmaker_unfollow(m, now, true);
        return;
    }
    m->position = position;
    mu_matchmaker_end(m, 0, "");
}

/* The leader will not begin, and may say who will. */
static void sent_on(struct mu_matchmaker *m, struct mu_now now, const struct mu_avg_reply *reply)
{
    bool go = reply->suggested && !mu_peer_id_eq(&reply->suggested_leader, &m->config.self) &&
              !mu_peer_id_eq(&reply->suggested_leader, &m->leader) && m->hops < m->config.hops_max;

    mu_matchmaker_unfollow(m, now, true);
    if (go) {
        m->hops++;
        call(m, now, &reply->suggested_leader);
    }
}

void mu_matchmaker_replied(struct mu_matchmaker *m, struct mu_now now, uint64_t number,
                           struct mu_span message)
{
    struct mu_avg_reply *reply = &m->group; /* until there is a group, its room is free */
    bool following = m->state == MU_MATCHMAKER_FOLLOWING;

    if (number == 0 || number != m->calling) {
        return;
    }
    if (mu_avg_reply_decode(message, reply) != 0) {
        mu_matchmaker_unfollow(m, now, true);
    } else if (!following && reply->code == MU_AVG_ACCEPTED) {
        accepted(m, now);
    } else if (following && reply->code == MU_AVG_BEGIN_ALLREDUCE) {
        begun(m, now, message);
    } else if (following &&
               (reply->code == MU_AVG_GROUP_DISBANDED || reply->code == MU_AVG_CANCELLED)) {
        sent_on(m, now, reply);
    } else {
        mu_matchmaker_unfollow(m, now, true);
    }
    mu_matchmaker_search(m, now);
}

void mu_matchmaker_closed(struct mu_matchmaker *m, struct mu_now now, uint64_t number)
{
    if (number != 0 && number == m->calling) {
        mu_matchmaker_unfollow(m, now, false);
        mu_matchmaker_search(m, now);
    }
}
