#include "proto/average/matchmaker.h"

#include "codec/average/schema.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/average/matchmaker_internal.h"

#define NOTES_BEYOND_FOLLOWERS 64
#define MESSAGE_BYTES_MAX      (MU_AVG_GATHERED_MAX + (1u << 16))
#define FOREVER_S              1e9 /* a wait that is longer never ends */

struct mu_matchmaker_config mu_matchmaker_config_defaults(void)
{
    return (struct mu_matchmaker_config){
        .size_min = 2,
        .followers_max = MU_AVG_MEMBERS_MAX - 1,
        .candidates_max = 10000,
        .hops_max = 4,
        .matchmaking_ms = 5000,
        .request_ms = 3000,
        .fetch_ms = 500,
        .fetch_lost_ms = 10000,
        .skew_ms = 3000,
        .ahead_ms = 3600000,
    };
}

int mu_matchmaker_compare_peers(const struct mu_peer_id *a, const struct mu_peer_id *b)
{
    int order = memcmp(a->bytes, b->bytes, a->len < b->len ? a->len : b->len);

    return order != 0 ? order : (int)a->len - (int)b->len;
}

mu_mono_t mu_matchmaker_when(struct mu_now now, double wall)
{
    double wait = wall - mu_matchmaker_wall(now);

    if (!(wait < FOREVER_S)) {
        return MU_MONO_NEVER;
    }
    return wait <= 0 ? now.mono : mu_mono_add_ns(now.mono, (uint64_t)(wait * 1e9));
}

/* --- life ------------------------------------------------------------------------------------- */

static int check_config(const struct mu_matchmaker_config *c)
{
    struct mu_avg_gather gather;

    if (!mu_avg_key_is_valid(mu_span_str(c->key)) ||
        mu_avg_gather_decode(c->gather, &gather) != 0 ||
        (gather.mode == MU_AVG_CLIENT) != c->client || !mu_matchmaker_is_finite(c->scheduled) ||
        c->followers_max == 0 || c->followers_max >= MU_AVG_MEMBERS_MAX || c->size_min == 0 ||
        c->size_min > c->followers_max + 1 || c->candidates_max == 0 ||
        c->request_ms >= c->matchmaking_ms || c->target_size > MU_AVG_MEMBERS_MAX ||
        (c->target_size != 0 && c->target_size < c->size_min)) {
        return MUSTER_EINVAL;
    }
    return 0;
}

static int take_memory(struct mu_matchmaker *m)
{
    const struct mu_matchmaker_config *c = &m->config;

    /* All followers may be sent away, and each may be followed by an answer that waits. */
    m->note_cap = (size_t)c->followers_max + NOTES_BEYOND_FOLLOWERS;
    m->notes = mu_calloc(m->note_cap, sizeof(*m->notes));
    m->followers = mu_calloc(c->followers_max, sizeof(*m->followers));
    return m->notes == NULL || m->followers == NULL ? MUSTER_ENOMEM
                                                    : mu_buf_append(&m->gather, c->gather);
}

int mu_matchmaker_init(struct mu_matchmaker *m, const struct mu_matchmaker_config *config,
                       struct mu_now now)
{
    int err = check_config(config);

    memset(m, 0, sizeof(*m));
    if (err != 0) {
        return err;
    }
    m->config = *config;
    m->config.gather = (struct mu_span){0};
    m->config.fetch_ms = config->fetch_ms < MU_MATCHMAKER_FETCH_MS_MIN ? MU_MATCHMAKER_FETCH_MS_MIN
                                                                       : config->fetch_ms;
    mu_prng_seed(&m->prng, config->seed);
    mu_buf_init(&m->gather, MU_AVG_GATHER_MAX);
    mu_buf_init(&m->begin, MESSAGE_BYTES_MAX);
    mu_buf_init(&m->out, MESSAGE_BYTES_MAX);
    m->state = MU_MATCHMAKER_SEARCHING;
    m->config.gather = config->gather;
    err = take_memory(m);
    m->config.gather = (struct mu_span){0};
    if (err != 0) {
        mu_matchmaker_fini(m);
        return err;
    }
    m->until =
        config->timeout_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now.mono, config->timeout_ms);
    m->deadline = config->timeout_ms == 0
                      ? (double)UINT64_MAX
                      : mu_matchmaker_wall(now) + (double)config->timeout_ms / 1e3;
    m->declared_at = MU_MONO_NEVER;
    m->call_until = MU_MONO_NEVER;
    m->fetch_at = now.mono;
    if (config->client) {
        m->declared = (double)__builtin_inff();
    } else {
        mu_matchmaker_declare(m, now);
    }
    mu_matchmaker_search(m, now);
    return 0;
}

void mu_matchmaker_fini(struct mu_matchmaker *m)
{
    for (uint32_t i = 0; i < m->follower_count; i++) {
        mu_free(m->followers[i].gather);
    }
    mu_free(m->followers);
    mu_free(m->candidates);
    mu_free(m->notes);
    mu_buf_fini(&m->gather);
    mu_buf_fini(&m->begin);
    mu_buf_fini(&m->out);
    memset(m, 0, sizeof(*m));
}

void mu_matchmaker_end(struct mu_matchmaker *m, int status, const char *text)
{
    uint64_t bits;
    double after = m->declared;

    if (m->state == MU_MATCHMAKER_ENDED) {
        return;
    }
    m->status = status;
    (void)mu_err(&m->text, status, "%s", text);
    mu_matchmaker_disband(m);
    if (m->calling != 0 && status != 0) {
        mu_matchmaker_note(
            m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_HANG_UP, .number = m->calling});
    }
    m->state = MU_MATCHMAKER_ENDED;
    m->calling = 0;
    m->fetching = 0;
    if (!m->config.client) {
        /* The next float64: a record that is later by the least bit takes the place of ours. */
        memcpy(&bits, &after, sizeof(bits));
        bits++;
        memcpy(&after, &bits, sizeof(after));
        mu_matchmaker_note(
            m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_LEAVE, .expiration = after});
    }
    mu_matchmaker_note(m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_END});
}

void mu_matchmaker_cancel(struct mu_matchmaker *m, struct mu_now now)
{
    (void)now;
    mu_matchmaker_end(m, MUSTER_ECANCELED, "the search for a group was cancelled");
}

/* --- time ------------------------------------------------------------------------------------- */

double mu_matchmaker_next_time(const struct mu_matchmaker *m, struct mu_now now)
{
    double soon = mu_matchmaker_wall(now) + (double)m->config.matchmaking_ms / 1e3;
    double time = m->config.scheduled > soon ? m->config.scheduled : soon;

    return time < m->deadline ? time : m->deadline;
}

void mu_matchmaker_declare(struct mu_matchmaker *m, struct mu_now now)
{
    m->declared = mu_matchmaker_next_time(m, now);
    /* The last time is the deadline itself, by the same clock: seconds are rounded. */
    m->declared_at = m->declared >= m->deadline ? m->until : mu_matchmaker_when(now, m->declared);
    mu_matchmaker_note(
        m, (struct mu_matchmaker_note){.type = MU_MATCHMAKER_DECLARE, .expiration = m->declared});
}

/* Our time has come: we lead those who follow, or let them go. */
static void begin_or_declare(struct mu_matchmaker *m, struct mu_now now)
{
    if (m->follower_count + 1 >= m->config.size_min) {
        mu_matchmaker_assemble(m);
        return;
    }
    mu_matchmaker_disband(m);
    mu_matchmaker_declare(m, now);
}

void mu_matchmaker_tick(struct mu_matchmaker *m, struct mu_now now)
{
    if (m->state == MU_MATCHMAKER_ENDED) {
        return;
    }
    if (mu_mono_reached(m->call_until, now.mono)) {
        mu_matchmaker_unfollow(m, now, true);
    }
    if (m->state == MU_MATCHMAKER_SEARCHING && mu_mono_reached(m->declared_at, now.mono) &&
        (m->follower_count + 1 >= m->config.size_min || !mu_mono_reached(m->until, now.mono))) {
        begin_or_declare(m, now);
    }
    if (m->state != MU_MATCHMAKER_ENDED && mu_mono_reached(m->until, now.mono)) {
        mu_matchmaker_end(m, MUSTER_ETIMEDOUT, "no group was found in time");
    }
    mu_matchmaker_search(m, now);
}

mu_mono_t mu_matchmaker_deadline(const struct mu_matchmaker *m)
{
    mu_mono_t at = mu_mono_min(m->until, m->call_until);

    if (m->state == MU_MATCHMAKER_ENDED) {
        return MU_MONO_NEVER;
    }
    if (m->state == MU_MATCHMAKER_SEARCHING) {
        at = mu_mono_min(at, mu_mono_min(m->declared_at, m->fetch_at));
    }
    return at;
}

/* --- out -------------------------------------------------------------------------------------- */

void mu_matchmaker_note(struct mu_matchmaker *m, struct mu_matchmaker_note note)
{
    MU_ASSERT(m->note_count < m->note_cap); /* the driver pulls events after each input */
    m->notes[(m->note_head + m->note_count++) % m->note_cap] = note;
}

static int write_join(struct mu_matchmaker *m, double expiration)
{
    struct mu_avg_join join = {
        .schema_hash = mu_span(m->config.schema, sizeof(m->config.schema)),
        .expiration = expiration,
        .gather = mu_buf_span(&m->gather),
        .client_mode = m->config.client,
        .group_key = mu_span_str(m->config.key),
    };

    return mu_avg_join_encode(&join, &m->out);
}

static int write_reply(struct mu_matchmaker *m, const struct mu_matchmaker_note *note)
{
    if (note->code == MU_AVG_BEGIN_ALLREDUCE) {
        return mu_buf_append(&m->out, mu_buf_span(&m->begin));
    }
    return mu_avg_refusal_encode(note->code, note->suggest ? &note->peer : NULL, &m->out);
}

bool mu_matchmaker_next_event(struct mu_matchmaker *m, struct mu_matchmaker_event *ret)
{
    struct mu_matchmaker_note note;
    int err = 0;

    if (m->note_count == 0) {
        return false;
    }
    note = m->notes[m->note_head];
    m->note_head = (m->note_head + 1) % m->note_cap;
    m->note_count--;
    mu_buf_reset(&m->out);
    *ret = (struct mu_matchmaker_event){.type = note.type,
                                        .number = note.number,
                                        .expiration = note.expiration,
                                        .peer = note.peer,
                                        .last = note.last};
    if (note.type == MU_MATCHMAKER_CALL) {
        err = write_join(m, note.expiration);
    } else if (note.type == MU_MATCHMAKER_REPLY) {
        err = write_reply(m, &note);
    }
    /* Without memory there is nothing to say: the other end waits for its own timeout. */
    ret->message = err == 0 ? mu_buf_span(&m->out) : (struct mu_span){0};
    return true;
}

int mu_matchmaker_read_group(struct mu_matchmaker *m, struct mu_avg_reply *ret,
                             uint32_t *ret_position)
{
    struct mu_avg_gather gather;
    bool found = false;

    if (mu_avg_reply_decode(mu_buf_span(&m->begin), ret) != 0 ||
        ret->code != MU_AVG_BEGIN_ALLREDUCE || ret->member_count < m->config.size_min) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < ret->member_count; i++) {
        if (mu_avg_gather_decode(ret->gathered[i], &gather) != 0) {
            return MUSTER_EPROTO;
        }
        if (mu_peer_id_eq(&ret->members[i], &m->config.self)) {
            found = mu_span_eq(ret->gathered[i], mu_buf_span(&m->gather));
            *ret_position = (uint32_t)i;
        }
    }
    return found ? 0 : MUSTER_EPROTO;
}

int mu_matchmaker_status(const struct mu_matchmaker *m)
{
    return m->status;
}

const char *mu_matchmaker_text(const struct mu_matchmaker *m)
{
    return m->text.text;
}
