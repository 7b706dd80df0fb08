/*
 * Whole rounds in memory, from a seed: members with their reducers back to back, streams that delay
 * messages, members that die, fall silent or lie at any step. In each of them
 * - every member that lives ends, within a bound;
 * - a part that is done is the average of exactly those whom the machine names, by their weights;
 * - whoever got a result for a part holds that average, and whoever did not holds its own values;
 * - without a fault nobody is cut or banned, and all hold the average of all.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/average/kernel.h"
#include "core/prng.h"
#include "proto/average/reduce.h"

#define MEMBERS_MAX 6
#define PARTS_MAX   40
#define WIDTH_MAX   4
#define WIRE_MAX    8192
#define TOTAL_MS    60000

enum lie {
    HONEST,
    DIES,         /* its streams break */
    SILENT,       /* its streams stay, and nothing more comes of it */
    NOT_FINITE,   /* a part that cannot be read */
    WRONG_LENGTH, /* of a part */
    WRONG_RESULT, /* length of a result */
    OTHER_WEIGHT, /* from one part to the next */
    HUGE_WEIGHT,
    CALLS_TWICE,
    SENDS_TWICE, /* the same part, which looks like the next one */
    TOO_MANY,    /* parts */
    REFUSES,     /* an error instead of a result */
    LIES,        /* how many there are */
};

enum message_kind { FIRST, PART, ENDS, RESULT, FINISHED, BROKEN_IN, BROKEN_OUT, TAKEN };

struct message {
    uint64_t at;
    uint64_t order;
    uint32_t from, to;
    enum message_kind kind;
    struct mu_avg_data data;
    bool good;
    float values[WIDTH_MAX];
};

struct member {
    struct mu_reduce r;
    float values[PARTS_MAX][WIDTH_MAX]; /* what it holds */
    float begun[PARTS_MAX][WIDTH_MAX];  /* what it had */
    bool got[PARTS_MAX];
    float sums[PARTS_MAX][WIDTH_MAX];
    float parts[MEMBERS_MAX][PARTS_MAX][WIDTH_MAX];
    bool added[MEMBERS_MAX][PARTS_MAX];
    double said[MEMBERS_MAX]; /* weights that came with the parts */
    struct message held[MEMBERS_MAX];
    struct message waiting[MEMBERS_MAX][PARTS_MAX + 2]; /* not read while one is held */
    size_t waiting_count[MEMBERS_MAX];
    bool is_held[MEMBERS_MAX];
    bool opened[MEMBERS_MAX];
    double weight;
    enum lie lie;
    uint64_t lie_at; /* the step at which it begins */
    uint64_t steps;
    bool gone; /* dies or is silent */
    bool ended;
    uint64_t ended_at;
};

static struct member members[MEMBERS_MAX];
static size_t count;
static struct mu_avg_division division;
static struct message wire[WIRE_MAX];
static size_t wire_count;
static uint64_t wire_order;
static uint64_t last_at[MEMBERS_MAX][MEMBERS_MAX][2];
static struct mu_prng prng;
static uint64_t clock_ns;
static float averages[PARTS_MAX][WIDTH_MAX];
static bool done[PARTS_MAX]; /* and there were weights */
static uint64_t seed;
static uint32_t delay_ms;

static void fail(const char *what, uint32_t member, uint32_t part)
{
    (void)fprintf(stderr, "seed %llu: %s (member %u, part %u)\n", (unsigned long long)seed, what,
                  member, part);
    exit(1);
}

static struct mu_now now(void)
{
    return (struct mu_now){{clock_ns}, {clock_ns}};
}

static size_t width(uint32_t part)
{
    return (size_t)division.parts[part].elements;
}

/* `way` 0: requests of `from`; 1: answers of it. Each stream keeps its order. */
static struct message *put(uint32_t from, uint32_t to, int way, enum message_kind kind)
{
    struct message *m = &wire[wire_count++];
    uint64_t at = clock_ns + mu_prng_below(&prng, (uint64_t)delay_ms * MU_NS_PER_MS + 1);
    uint64_t *last = &last_at[from][to][way];

    if (wire_count == WIRE_MAX) {
        fail("the wire is full", from, 0);
    }
    memset(m, 0, sizeof(*m));
    *last = at > *last ? at : *last;
    m->at = *last;
    m->order = wire_order++;
    m->from = from;
    m->to = to;
    m->kind = kind;
    m->good = true;
    return m;
}

static bool lies(struct member *m, enum lie lie)
{
    return m->lie == lie && m->steps >= m->lie_at;
}

static void send_part(uint32_t me, const struct mu_reduce_event *e)
{
    struct member *m = &members[me];
    struct message *w = put(me, e->member, 0, e->first ? FIRST : PART);

    w->data = (struct mu_avg_data){.code = e->first ? MU_AVG_PART_FOR_AVERAGING : MU_AVG_NO_CODE,
                                   .group_id = MU_SPAN_LIT("group-of-twenty-byte"),
                                   .weight = m->weight,
                                   .tensor = true,
                                   .dtype = MU_DTYPE_F32,
                                   .elements = width(e->part)};
    w->data.group_id.len = e->first ? 20 : 0;
    memcpy(w->values, m->begun[e->part], sizeof(w->values));
    w->good = !lies(m, NOT_FINITE);
    w->data.elements += lies(m, WRONG_LENGTH);
    w->data.weight += lies(m, OTHER_WEIGHT) ? (double)m->steps : 0;
    w->data.weight = lies(m, HUGE_WEIGHT) ? 1e300 : w->data.weight;
    if (lies(m, CALLS_TWICE) || lies(m, SENDS_TWICE)) {
        struct message *again = put(me, e->member, 0, lies(m, CALLS_TWICE) ? FIRST : PART);

        again->data = w->data;
        memcpy(again->values, w->values, sizeof(w->values));
    }
    if (lies(m, TOO_MANY) && e->last) {
        struct message *again = put(me, e->member, 0, PART);

        again->data = w->data;
        memcpy(again->values, w->values, sizeof(w->values));
    }
    if (e->last) {
        (void)put(me, e->member, 0, ENDS);
    }
    /* The connection takes it after a while. */
    w = put(me, me, 0, TAKEN);
    w->to = e->member;
}

/* Compares a sum with the one in float64 of those whom the machine names. */
static void check_part(struct member *m, uint32_t part, double weights)
{
    for (uint32_t i = 0; i < count; i++) {
        if (m->r.included[i] && members[i].lie == HONEST &&
            (memcmp(m->parts[i][part], members[i].begun[part], 4 * width(part)) != 0 ||
             m->said[i] != members[i].weight)) {
            fail("an honest member's part or weight is not what it sent", i, part);
        }
    }
    for (size_t k = 0; k < width(part); k++) {
        double sum = 0;
        double all = 0;

        for (uint32_t i = 0; i < count; i++) {
            if (m->r.included[i]) {
                sum += m->said[i] * (double)m->parts[i][part][k];
                all += m->said[i];
            }
        }
        if (fabs(all - weights) > 1e-9 * all ||
            (all > 0 && fabs(sum / all - (double)m->sums[part][k]) > 1e-3)) {
            fail("the average is not that of those who are named", m->r.config.position, part);
        }
    }
}

static void answer(uint32_t me, const struct mu_reduce_event *e)
{
    struct member *m = &members[me];

    for (uint32_t i = 0; i < count; i++) {
        if (m->r.included[i] != m->added[i][e->part]) {
            fail("another member is named than was added", i, e->part);
        }
    }
    if (e->weights > 0) {
        mu_avg_divide(m->sums[e->part], width(e->part), e->weights);
        check_part(m, e->part, e->weights);
    }
    done[e->part] = e->weights > 0;
    memcpy(averages[e->part], m->sums[e->part], sizeof(averages[0]));
    for (uint32_t i = 0; i < count; i++) {
        float delta[WIDTH_MAX] = {0};
        struct message *w;

        if (!m->r.included[i] || m->r.members[i].in == MU_REDUCE_IN_BANNED) {
            continue;
        }
        if (e->weights > 0) {
            mu_avg_delta((uint8_t *)delta, m->sums[e->part], MU_DTYPE_F32,
                         (const uint8_t *)m->parts[i][e->part], width(e->part));
        }
        if (i == me) {
            mu_avg_apply(MU_DTYPE_F32, (uint8_t *)m->values[e->part], (uint8_t *)delta,
                         width(e->part), 1);
            m->got[e->part] = true;
            continue;
        }
        w = put(me, i, 1, RESULT);
        w->data = (struct mu_avg_data){.code = MU_AVG_AVERAGED_PART,
                                       .tensor = true,
                                       .dtype = MU_DTYPE_F32,
                                       .elements = width(e->part)};
        memcpy(w->values, delta, sizeof(delta));
        w->data.elements += lies(m, WRONG_RESULT);
        if (lies(m, REFUSES)) {
            w->data = (struct mu_avg_data){.code = MU_AVG_INTERNAL_ERROR};
        }
    }
}

static void add(uint32_t me, uint32_t from, uint32_t part, const float *values, double weight)
{
    struct member *m = &members[me];

    if (division.parts[part].owner != me) {
        fail("a part was added that is not ours", from, part);
    }
    if (m->added[from][part]) {
        fail("a part was added twice", from, part);
    }
    m->added[from][part] = true;
    m->said[from] = weight;
    memcpy(m->parts[from][part], values, sizeof(m->parts[from][part]));
    mu_avg_add(m->sums[part], MU_DTYPE_F32, (const uint8_t *)values, width(part), weight);
}

static void take_part(uint32_t me, struct message *w)
{
    struct member *m = &members[me];
    uint32_t part;
    int got = mu_reduce_part(&m->r, now(), w->from, &w->data, w->good, &part);

    if (got == MUSTER_EAGAIN) {
        m->held[w->from] = *w;
        m->is_held[w->from] = true;
    } else if (got == 1) {
        add(me, w->from, part, w->values, w->data.weight);
    }
}

static void pump(uint32_t me);

/* Requests that come while one is held wait behind it. */
static void take_request(uint32_t me, struct message *w)
{
    struct member *m = &members[me];
    enum mu_avg_code code;

    if (m->is_held[w->from]) {
        if (m->waiting_count[w->from] < PARTS_MAX + 2) {
            m->waiting[w->from][m->waiting_count[w->from]++] = *w;
        }
        return;
    }
    if (w->kind == FIRST) {
        if (mu_reduce_opened(&m->r, now(), w->from, &w->data, &code)) {
            m->opened[w->from] = true;
            take_part(me, w);
        } else {
            struct message *error = put(me, w->from, 1, RESULT);

            error->data = (struct mu_avg_data){.code = code};
        }
    } else if (w->kind == PART) {
        take_part(me, w);
    } else {
        mu_reduce_ended(&m->r, now(), w->from);
    }
}

static void give_again(uint32_t me, uint32_t from)
{
    struct member *m = &members[me];
    struct message w = m->held[from];

    m->is_held[from] = false;
    take_part(me, &w);
    while (!m->is_held[from] && m->waiting_count[from] != 0) {
        w = m->waiting[from][0];
        m->waiting_count[from]--;
        memmove(&m->waiting[from][0], &m->waiting[from][1],
                m->waiting_count[from] * sizeof(m->waiting[from][0]));
        take_request(me, &w);
    }
}

static void fall(struct member *m, uint32_t me)
{
    m->gone = true;
    for (uint32_t i = 0; i < count && m->lie == DIES; i++) {
        if (i != me) {
            (void)put(me, i, 0, BROKEN_IN);
            (void)put(me, i, 1, BROKEN_OUT);
        }
    }
}

static void pump(uint32_t me)
{
    struct member *m = &members[me];
    struct mu_reduce_event e;

    while (!m->gone && mu_reduce_next_event(&m->r, &e)) {
        m->steps++;
        if ((m->lie == DIES || m->lie == SILENT) && m->steps >= m->lie_at) {
            fall(m, me);
            return;
        }
        switch (e.type) {
        case MU_REDUCE_OPEN:
        case MU_REDUCE_CUT:
            break;
        case MU_REDUCE_SEND:
            send_part(me, &e);
            break;
        case MU_REDUCE_OWN:
            add(me, me, e.part, m->begun[e.part], m->weight);
            break;
        case MU_REDUCE_DONE:
            answer(me, &e);
            break;
        case MU_REDUCE_READ:
            give_again(me, e.member);
            break;
        case MU_REDUCE_BAN:
            put(me, e.member, 1, RESULT)->data = (struct mu_avg_data){.code = e.code};
            break;
        case MU_REDUCE_FINISH:
            (void)put(me, e.member, 1, FINISHED);
            break;
        case MU_REDUCE_END:
            m->ended = true;
            m->ended_at = clock_ns;
            break;
        }
    }
}

static void deliver(struct message *w)
{
    struct member *m = &members[w->kind == TAKEN ? w->from : w->to];
    uint32_t part;

    if (m->gone) {
        return;
    }
    switch (w->kind) {
    case TAKEN:
        mu_reduce_sent(&m->r, now(), w->to);
        break;
    case FIRST:
    case PART:
    case ENDS:
        take_request(w->to, w);
        break;
    case RESULT:
        if (mu_reduce_result(&m->r, now(), w->from, &w->data, w->good, &part) == 1) {
            mu_avg_apply(MU_DTYPE_F32, (uint8_t *)m->values[part], (uint8_t *)w->values,
                         width(part), 1);
            m->got[part] = true;
        }
        break;
    case FINISHED:
    case BROKEN_OUT:
        mu_reduce_cut_off(&m->r, now(), w->from, "its stream has ended");
        break;
    case BROKEN_IN:
        mu_reduce_ended(&m->r, now(), w->from);
        break;
    }
    pump(w->kind == TAKEN ? w->from : w->to);
}

/* Runs until nothing is on its way and nobody waits. */
static void run(void)
{
    for (;;) {
        uint64_t at = UINT64_MAX;
        size_t next = SIZE_MAX;
        struct message w;

        for (size_t i = 0; i < wire_count; i++) {
            if (next == SIZE_MAX || wire[i].at < wire[next].at ||
                (wire[i].at == wire[next].at && wire[i].order < wire[next].order)) {
                next = i;
            }
        }
        at = next == SIZE_MAX ? UINT64_MAX : wire[next].at;
        for (uint32_t i = 0; i < count; i++) {
            mu_mono_t timer = mu_reduce_deadline(&members[i].r);

            if (!members[i].gone && timer.ns != UINT64_MAX && timer.ns <= at) {
                at = timer.ns > clock_ns ? timer.ns : clock_ns;
                next = SIZE_MAX;
                clock_ns = at;
                mu_reduce_tick(&members[i].r, now());
                pump(i);
                break;
            }
        }
        if (next == SIZE_MAX && at == UINT64_MAX) {
            return;
        }
        if (next != SIZE_MAX) {
            w = wire[next];
            wire[next] = wire[--wire_count];
            clock_ns = w.at > clock_ns ? w.at : clock_ns;
            deliver(&w);
        }
    }
}

static void begin_members(bool faults, const struct mu_avg_gather *gathers)
{
    static const double weights[] = {1, 1, 2, 0.5, 17, 0};
    uint32_t window = 1 + (uint32_t)mu_prng_below(&prng, 4);

    (void)gathers;
    for (uint32_t i = 0; i < count; i++) {
        struct member *m = &members[i];
        struct mu_reduce_config c = mu_reduce_config_defaults();

        memset(m, 0, sizeof(*m));
        m->weight = weights[mu_prng_below(&prng, 6)];
        m->lie =
            faults && mu_prng_below(&prng, 3) == 0 ? (enum lie)mu_prng_below(&prng, LIES) : HONEST;
        m->lie_at = mu_prng_below(&prng, 40);
        for (uint32_t p = 0; p < division.part_count; p++) {
            for (size_t k = 0; k < WIDTH_MAX; k++) {
                m->begun[p][k] = (float)mu_prng_below(&prng, 1000) / 8;
            }
        }
        memcpy(m->values, m->begun, sizeof(m->values));
        c.division = &division;
        c.group_id = MU_SPAN_LIT("group-of-twenty-byte");
        c.position = i;
        c.weight = m->weight;
        c.window = window;
        c.total_ms = TOTAL_MS;
        if (mu_reduce_init(&m->r, &c, now()) != 0) {
            fail("no init", i, 0);
        }
    }
}

static void begin(bool faults)
{
    struct mu_avg_gather gathers[MEMBERS_MAX] = {0};
    struct mu_avg_tensor tensors[4];
    uint64_t fractions[MEMBERS_MAX];
    uint64_t values = 0;
    size_t tensor_count = 1 + mu_prng_below(&prng, 4);

    memset(done, 0, sizeof(done));
    memset(last_at, 0, sizeof(last_at));
    wire_count = 0;
    clock_ns = MU_NS_PER_S;
    delay_ms = mu_prng_below(&prng, 2) == 0 ? 5 : 500;
    count = 1 + mu_prng_below(&prng, MEMBERS_MAX);
    for (size_t i = 0; i < count; i++) {
        gathers[i].mode = i != 0 && mu_prng_below(&prng, 4) == 0 ? MU_AVG_CLIENT : MU_AVG_NODE;
    }
    for (size_t i = 0; i < tensor_count; i++) {
        tensors[i] = (struct mu_avg_tensor){mu_prng_below(&prng, 30), MU_DTYPE_F32, MU_DTYPE_F32,
                                            MU_HM_NONE};
        values += tensors[i].elements;
    }
    if (mu_avg_fractions(values, gathers, count, fractions) != 0 ||
        mu_avg_divide_vector(&division, tensors, tensor_count, fractions, count, 4 * WIDTH_MAX) !=
            0 ||
        division.part_count > PARTS_MAX) {
        fail("no division", 0, 0);
    }
    begin_members(faults, gathers);
}

static void check_member(uint32_t i, bool faults)
{
    struct member *m = &members[i];
    bool harmless = m->lie != DIES && m->lie != SILENT;

    if (!harmless) {
        return;
    }
    if (!m->ended || m->ended_at > (TOTAL_MS + 1000) * MU_NS_PER_MS) {
        fail("it did not end in time", i, 0);
    }
    for (uint32_t p = 0; p < division.part_count; p++) {
        bool reducible = division.fractions[division.parts[p].owner] != 0;

        for (size_t k = 0; m->lie == HONEST && k < width(p); k++) {
            const float *want = m->got[p] && done[p] ? averages[p] : m->begun[p];

            if (fabsf(m->values[p][k] - want[k]) > 1e-2f) {
                fail("it holds something else than the average", i, p);
            }
        }
        if (!faults && reducible && !m->got[p]) {
            fail("it did not get a result, and nobody failed", i, p);
        }
    }
    for (uint32_t k = 0; !faults && k < count; k++) {
        if (m->r.members[k].why != NULL) {
            fail(m->r.members[k].why, i, k);
        }
    }
    if (!faults && mu_reduce_status(&m->r) != 0) {
        fail("it failed", i, 0);
    }
}

/* Honest members ban nobody who is honest, unless somebody else kept a part from being done. */
static void check_bans(void)
{
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < count; k++) {
            const struct mu_reduce_member *seen = &members[i].r.members[k];

            if (members[i].lie == HONEST && members[k].lie == HONEST &&
                seen->in == MU_REDUCE_IN_BANNED && mu_reduce_status(&members[i].r) == 0) {
                fail(seen->why, i, k);
            }
        }
    }
}

int main(int argc, char **argv)
{
    uint64_t seeds = argc > 2 ? strtoull(argv[2], NULL, 10) : 2000;
    uint64_t first = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    unsigned with_loss = 0;

    for (seed = first; seed < first + seeds; seed++) {
        bool faults = seed % 4 != 0;

        mu_prng_seed(&prng, seed);
        begin(faults);
        for (uint32_t i = 0; i < count; i++) {
            pump(i);
        }
        run();
        for (uint32_t i = 0; i < count; i++) {
            check_member(i, faults);
            with_loss += mu_reduce_parts_local(&members[i].r) != 0;
        }
        check_bans();
        mu_avg_division_fini(&division);
    }
    (void)printf("%llu rounds, %u members of which lost parts\n", (unsigned long long)seeds,
                 with_loss);
    return 0;
}
