/*
 * A search for a peer under events in any order, made of the input: answers of peers that are asked
 * and of others, failures, time. It keeps its limits, asks no peer twice, says late only what is,
 * finds the target only if an answer named it, and ends once.
 */
#include "core/assert.h"
#include "core/reader.h"
#include "kad_peers.h"

#define ANSWER_MS 1000
#define NAMED_MAX 200

struct asked {
    bool ever;
    bool now;
    uint64_t since_ms;
};

struct world {
    struct mu_kad_search s;
    struct asked asked[KAD_PEERS + 1];
    uint32_t under_way;
    uint32_t asks;
    uint64_t ms;
    bool named; /* an answer that counts has named the target */
    bool ended;
};

static mu_mono_t mono(uint64_t ms)
{
    return (mu_mono_t){1 + ms * MU_NS_PER_MS};
}

/* The candidates are few, different and in order. */
static void check_candidates(const struct mu_kad_search *s)
{
    MU_ASSERT(s->count <= MU_KAD_CANDIDATES_MAX);
    for (size_t i = 1; i < s->count; i++) {
        MU_ASSERT(mu_kad_nearer(s->key, s->candidates[i - 1].key, s->candidates[i].key));
    }
}

static void check_ask(struct world *w, unsigned n)
{
    const struct mu_kad_search *s = &w->s;

    MU_ASSERT(!w->ended && n >= 1 && n <= KAD_PEERS && !w->asked[n].ever);
    MU_ASSERT(!mu_peer_id_eq(&kad_peer[n], &s->config.self));
    for (size_t i = 0; !mu_peer_id_eq(&s->candidates[i].id, &kad_peer[n]); i++) {
        MU_ASSERT(i + 1 < s->count && s->candidates[i].state != MU_KAD_PEER_NEW);
    }
    w->asked[n] = (struct asked){.ever = true, .now = true, .since_ms = w->ms};
    MU_ASSERT(++w->under_way <= s->config.parallel);
    MU_ASSERT(++w->asks <= s->config.asked_max);
}

static void pump(struct world *w)
{
    struct mu_kad_action action;

    while (mu_kad_search_next(&w->s, mono(w->ms), &action)) {
        unsigned n = kad_number(&action.peer);

        switch (action.type) {
        case MU_KAD_ACTION_ASK:
            check_ask(w, n);
            break;
        case MU_KAD_ACTION_LATE:
            MU_ASSERT(!w->ended && n <= KAD_PEERS && w->asked[n].now);
            MU_ASSERT(w->ms - w->asked[n].since_ms >= ANSWER_MS);
            w->asked[n].now = false;
            w->under_way--;
            break;
        case MU_KAD_ACTION_END:
            MU_ASSERT(!w->ended);
            w->ended = true;
            break;
        }
    }
    MU_ASSERT(w->ended == (w->s.state != MU_KAD_SEARCH_ASKING));
    MU_ASSERT(w->named == (w->s.state == MU_KAD_SEARCH_FOUND));
    MU_ASSERT(w->asks == w->s.asked && w->ended == (w->s.ask_count == 0));
    MU_ASSERT(w->ended || w->under_way == w->s.ask_count);
    MU_ASSERT(w->ended ||
              mono(w->ms).ns < mu_kad_search_deadline(&w->s).ns); /* else it would be late */
    check_candidates(&w->s);
}

static unsigned read_peer(struct mu_reader *r)
{
    return mu_read_u16(r) % (KAD_PEERS + 1);
}

/* One that is being asked, as far as there is one. */
static unsigned pick_asked(const struct world *w, unsigned n)
{
    for (unsigned i = 0; i <= KAD_PEERS; i++, n = (n + 1) % (KAD_PEERS + 1)) {
        if (w->asked[n].now) {
            return n;
        }
    }
    return n;
}

static void answer(struct world *w, unsigned n, struct mu_reader *names)
{
    struct mu_peer_id named[NAMED_MAX];
    bool target = false;
    size_t count = 0;

    while (names->rest.len >= 2 && count < NAMED_MAX) {
        unsigned who = read_peer(names);

        target = target || (who == 0 && count < MU_KAD_NAMED_MAX);
        named[count++] = kad_peer[who];
    }
    if (w->asked[n].now && !w->ended) {
        w->asked[n].now = false;
        w->under_way--;
        w->named = target && !mu_peer_id_eq(&w->s.config.self, &kad_peer[0]);
    }
    mu_kad_search_answered(&w->s, &kad_peer[n], named, count);
}

static void lose(struct world *w, unsigned n)
{
    if (w->asked[n].now && !w->ended) {
        w->asked[n].now = false;
        w->under_way--;
    }
    mu_kad_search_failed(&w->s, &kad_peer[n]);
}

static void take_event(struct world *w, uint8_t what, struct mu_reader *r)
{
    switch (what % 8) {
    case 0:
        while (r->rest.len >= 2) {
            mu_kad_search_add(&w->s, &kad_peer[read_peer(r)]);
        }
        break;
    case 1:
    case 2:
        answer(w, pick_asked(w, read_peer(r)), r);
        break;
    case 3:
        answer(w, read_peer(r), r);
        break;
    case 4:
        lose(w, pick_asked(w, read_peer(r)));
        break;
    case 5:
        lose(w, read_peer(r));
        break;
    case 6:
        w->ms += mu_read_u16(r);
        break;
    default:
        if (what == 0xff) {
            mu_kad_search_stop(&w->s);
        }
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader r = mu_reader(mu_span(data, size));
    struct mu_kad_search_config config = {.answer_ms = ANSWER_MS};
    static struct world w;

    if (kad_peer[0].len == 0) {
        kad_make_peers();
    }
    config.target = kad_peer[0];
    config.self = kad_peer[read_peer(&r)];
    config.nearest = mu_read_u8(&r);
    config.parallel = mu_read_u8(&r);
    config.asked_max = mu_read_u8(&r);
    memset(&w, 0, sizeof(w));
    mu_kad_search_init(&w.s, &config);
    while (!r.failed && r.rest.len > 0) {
        uint8_t what = mu_read_u8(&r);
        struct mu_reader inside = mu_reader(mu_read_bytes(&r, mu_read_u16(&r)));

        if (!r.failed) {
            take_event(&w, what, &inside);
            pump(&w);
        }
    }
    /* Nobody answers any more: time alone ends it. */
    for (unsigned i = 0; !w.ended; i++) {
        MU_ASSERT(i <= config.asked_max + 1);
        pump(&w);
        w.ms += ANSWER_MS;
    }
    return 0;
}
