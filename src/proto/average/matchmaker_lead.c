/* Who follows a matchmaker: requests to join, and the group that is made of them. */
#include "core/alloc.h"
#include "proto/average/matchmaker_internal.h"

static void reply(struct mu_matchmaker *m, uint64_t number, enum mu_avg_code code, bool suggest)
{
    mu_matchmaker_note(m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_REPLY,
                                                      .number = number,
                                                      .code = code,
                                                      .peer = m->leader,
                                                      .suggest = suggest,
                                                      .last = code != MU_AVG_ACCEPTED});
}

static bool follows(const struct mu_matchmaker *m, const struct mu_peer_id *peer)
{
    for (uint32_t i = 0; i < m->follower_count; i++) {
        if (mu_peer_id_eq(&m->followers[i].peer, peer)) {
            return true;
        }
    }
    return false;
}

/* Whether the request says what a request must say. */
static bool is_sound(const struct mu_matchmaker *m, const struct mu_avg_join *join)
{
    struct mu_avg_gather gather;

    return join->schema_hash.len != 0 && mu_matchmaker_is_finite(join->expiration) &&
           !m->config.client && mu_avg_gather_decode(join->gather, &gather) == 0 &&
           (gather.mode == MU_AVG_CLIENT) == join->client_mode;
}

/* Our time is later than theirs, so they should lead. */
static bool is_too_early(const struct mu_matchmaker *m, const struct mu_peer_id *peer,
                         const struct mu_avg_join *join)
{
    if (join->expiration == 0) {
        return false; /* no time at all counts as never */
    }
    return m->declared > join->expiration ||
           (m->declared == join->expiration && !join->client_mode &&
            mu_matchmaker_compare_peers(peer, &m->config.self) < 0);
}

static bool is_full(const struct mu_matchmaker *m, const struct mu_avg_join *join)
{
    return (m->config.target_size != 0 && m->follower_count + 1 >= m->config.target_size) ||
           m->follower_count >= m->config.followers_max ||
           join->gather.len > MU_AVG_GATHERED_MAX - m->gather.len - m->gathered_bytes;
}

/* The checks, in hivemind's order. */
static enum mu_avg_code judge(const struct mu_matchmaker *m, const struct mu_peer_id *peer,
                              const struct mu_avg_join *join)
{
    if (m->state == MU_MATCHMAKER_ENDED) {
        return MU_AVG_NOT_LOOKING_FOR_GROUP;
    }
    if (!is_sound(m, join)) {
        return MU_AVG_PROTOCOL_VIOLATION;
    }
    if (!mu_span_eq(join->schema_hash, mu_span(m->config.schema, sizeof(m->config.schema)))) {
        return MU_AVG_BAD_SCHEMA_HASH;
    }
    if (!mu_span_eq(join->group_key, mu_span_str(m->config.key))) {
        return MU_AVG_BAD_GROUP_KEY;
    }
    if (m->declared == 0) {
        return MU_AVG_NOT_DECLARED;
    }
    if (is_too_early(m, peer, join)) {
        return MU_AVG_BAD_EXPIRATION_TIME;
    }
    if (m->state == MU_MATCHMAKER_FOLLOWING) {
        return MU_AVG_NOT_A_LEADER;
    }
    if (mu_peer_id_eq(peer, &m->config.self) || follows(m, peer)) {
        return MU_AVG_DUPLICATE_PEER_ID;
    }
    return is_full(m, join) ? MU_AVG_GROUP_IS_FULL : MU_AVG_ACCEPTED;
}

void mu_matchmaker_asked(struct mu_matchmaker *m, struct mu_now now, uint64_t number,
                         const struct mu_peer_id *peer, struct mu_span message)
{
    enum mu_avg_code code = MU_AVG_PROTOCOL_VIOLATION;
    struct mu_avg_join join;
    uint8_t *gather = NULL;

    if (mu_avg_join_decode(message, &join) == 0) {
        code = judge(m, peer, &join);
    } else if (m->state == MU_MATCHMAKER_ENDED) {
        code = MU_AVG_NOT_LOOKING_FOR_GROUP;
    }
    if (code == MU_AVG_BAD_SCHEMA_HASH) {
        m->unlike = *peer;
    }
    if (code == MU_AVG_ACCEPTED) {
        gather = mu_malloc(join.gather.len);
        code = gather == NULL ? MU_AVG_INTERNAL_ERROR : code;
    }
    reply(m, number, code, code == MU_AVG_NOT_A_LEADER);
    if (code != MU_AVG_ACCEPTED) {
        return;
    }
    memcpy(gather, join.gather.data, join.gather.len);
    m->gathered_bytes += join.gather.len;
    m->followers[m->follower_count++] = (struct mu_matchmaker_follower){
        .number = number, .peer = *peer, .gather = gather, .gather_len = join.gather.len};
    if (m->config.target_size != 0 && m->follower_count + 1 >= m->config.target_size) {
        mu_matchmaker_assemble(m);
    }
    mu_matchmaker_search(m, now);
}

void mu_matchmaker_gone(struct mu_matchmaker *m, struct mu_now now, uint64_t number)
{
    (void)now;
    for (uint32_t i = 0; i < m->follower_count; i++) {
        if (m->followers[i].number == number) {
            m->gathered_bytes -= m->followers[i].gather_len;
            mu_free(m->followers[i].gather);
            m->followers[i] = m->followers[--m->follower_count];
            return;
        }
    }
}

void mu_matchmaker_disband(struct mu_matchmaker *m)
{
    bool following = m->state == MU_MATCHMAKER_FOLLOWING;

    for (uint32_t i = 0; i < m->follower_count; i++) {
        reply(m, m->followers[i].number, MU_AVG_GROUP_DISBANDED, following);
        mu_free(m->followers[i].gather);
    }
    m->follower_count = 0;
    m->gathered_bytes = 0;
}

/* Puts the followers and us into an order that nobody chose. */
static void shuffle(struct mu_matchmaker *m, struct mu_avg_reply *group)
{
    for (size_t i = group->member_count; i > 1; i--) {
        size_t j = (size_t)mu_prng_below(&m->prng, i);
        struct mu_peer_id peer = group->members[i - 1];
        struct mu_span gathered = group->gathered[i - 1];

        group->members[i - 1] = group->members[j];
        group->members[j] = peer;
        group->gathered[i - 1] = group->gathered[j];
        group->gathered[j] = gathered;
    }
}

void mu_matchmaker_assemble(struct mu_matchmaker *m)
{
    struct mu_avg_reply *group = &m->group;
    uint32_t position;

    group->code = MU_AVG_BEGIN_ALLREDUCE;
    group->group_id = mu_span(m->config.group_id, sizeof(m->config.group_id));
    group->suggested = false;
    group->member_count = (size_t)m->follower_count + 1;
    group->members[0] = m->config.self;
    group->gathered[0] = mu_buf_span(&m->gather);
    for (uint32_t i = 0; i < m->follower_count; i++) {
        group->members[i + 1] = m->followers[i].peer;
        group->gathered[i + 1] = mu_span(m->followers[i].gather, m->followers[i].gather_len);
    }
    shuffle(m, group);
    mu_buf_reset(&m->begin);
    if (mu_avg_reply_encode(group, &m->begin) != 0 ||
        mu_matchmaker_read_group(m, group, &position) != 0) {
        mu_matchmaker_end(m, MUSTER_ENOMEM, "there is no memory for the group");
        return;
    }
    for (uint32_t i = 0; i < m->follower_count; i++) {
        reply(m, m->followers[i].number, MU_AVG_BEGIN_ALLREDUCE, false);
        mu_free(m->followers[i].gather);
    }
    m->follower_count = 0;
    m->gathered_bytes = 0;
    m->position = position;
    m->leading = true;
    if (m->calling != 0) {
        mu_matchmaker_note(
            m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_HANG_UP, .number = m->calling});
        m->calling = 0;
    }
    mu_matchmaker_end(m, 0, "");
}
