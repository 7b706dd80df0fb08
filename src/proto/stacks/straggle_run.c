/* Who keeps the others waiting, by the paces of all ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/stacks/straggle.h"

#define LOOKS_LEAST 4  /* in a span, on average, or a rank is not compared */
#define SPANS_LEAST 4  /* in which the others waited */
#define WARM_SPANS  3  /* with steps, before anybody is judged: the first steps compile and cache */
#define LATE_PARTS  5  /* in four of so many of these spans a straggler is behind */
#define FEW         16 /* one of so many may be named */
#define CHANCE      24 /* squares of standard deviations: once in a few million looks */
#define MILLION     1000000

/* A rank, in the time that is being judged by. */
struct mu_straggle_stats {
    uint32_t looks;
    uint32_t waits;
    uint32_t turns;
    uint32_t marks;
    uint32_t delay_permille; /* on average */
    uint32_t share;          /* of looks in which it waited, in millionths */
    uint32_t others;         /* the same of the others: the median of them */
    bool counts;             /* it can be compared */
    bool behind;
    bool certain; /* and is so in most spans, and not by chance */
};

struct mu_straggle_tally {
    uint32_t first;  /* of its ranks that count */
    uint32_t counts; /* how many do */
    uint32_t behind;
    uint32_t certain;
    uint64_t kept; /* the sum over them */
    uint64_t delay;
};

/* --- life ------------------------------------------------------------------------------------- */

void mu_straggle_defaults(struct mu_straggle_config *config)
{
    *config = (struct mu_straggle_config){
        .world = 1, .nodes = 1, .span_ms = 10000, .least_permille = 100, .steps_min = 5};
}

int mu_straggle_init(struct mu_straggle *s, const struct mu_straggle_config *config)
{
    *s = (struct mu_straggle){.config = *config};
    if (config->world == 0 || config->world > MU_STRAGGLE_RANKS_MAX || config->nodes == 0 ||
        config->nodes > config->world) {
        return MUSTER_EINVAL;
    }
    s->histories = mu_calloc(config->world, sizeof(*s->histories));
    s->sums = mu_calloc(config->world, sizeof(*s->sums));
    s->order = mu_calloc(config->world, sizeof(*s->order));
    s->ranks = mu_calloc(config->world, sizeof(*s->ranks));
    s->names = mu_calloc(config->nodes, sizeof(*s->names));
    s->tallies = mu_calloc(config->nodes, sizeof(*s->tallies));
    if (s->histories == NULL || s->sums == NULL || s->order == NULL || s->ranks == NULL ||
        s->names == NULL || s->tallies == NULL) {
        mu_straggle_fini(s);
        return MUSTER_ENOMEM;
    }
    return 0;
}

void mu_straggle_fini(struct mu_straggle *s)
{
    mu_free(s->histories);
    mu_free(s->sums);
    mu_free(s->order);
    mu_free(s->ranks);
    mu_free(s->names);
    mu_free(s->tallies);
    *s = (struct mu_straggle){0};
}

/* --- spans ------------------------------------------------------------------------------------ */

void mu_straggle_begin(struct mu_straggle *s)
{
    size_t at = s->span++ % MU_STRAGGLE_SPANS;

    s->change_count = s->change_taken = 0;
    s->compared <<= 1;
    for (uint32_t i = 0; i < s->config.world; i++) {
        s->histories[i].spans[at] = (struct mu_straggle_span){0};
        s->histories[i].late <<= 1;
        s->histories[i].could <<= 1;
    }
}

void mu_straggle_add(struct mu_straggle *s, uint32_t node, struct mu_span name,
                     const struct mu_pace *pace)
{
    size_t len = name.len < MU_PACE_NODE_MAX ? name.len : MU_PACE_NODE_MAX;
    struct mu_straggle_history *history;

    if (pace->rank >= s->config.world || node >= s->config.nodes) {
        return;
    }
    MU_ASSERT(s->span != 0);
    if (len != 0) {
        memcpy(s->names[node], name.data, len);
    }
    s->names[node][len] = '\0';
    history = &s->histories[pace->rank];
    history->node = node;
    history->spans[(s->span - 1) % MU_STRAGGLE_SPANS] = (struct mu_straggle_span){
        .looks = pace->looks,
        .waits = pace->waits,
        .turns = pace->turns,
        .delay_permille = pace->delay_permille,
        .marks = pace->marks < UINT16_MAX ? (uint16_t)pace->marks : UINT16_MAX,
    };
}

/* --- sums ------------------------------------------------------------------------------------- */

static void sum_up(const struct mu_straggle *s, uint32_t rank, uint32_t spans)
{
    struct mu_straggle_stats *sum = &s->sums[rank];
    uint32_t heard = 0;
    uint32_t compared = 0;

    *sum = (struct mu_straggle_stats){0};
    for (uint32_t i = 1; i <= spans; i++) {
        const struct mu_straggle_span *span =
            &s->histories[rank].spans[(s->span - i) % MU_STRAGGLE_SPANS];

        if (spans != 1 && (s->compared >> (i - 1) & 1) == 0) {
            continue;
        }
        compared++;
        sum->looks += span->looks;
        sum->waits += span->waits;
        sum->turns += span->turns;
        sum->marks += span->marks;
        sum->delay_permille += span->delay_permille;
        heard += span->looks != 0;
    }
    sum->counts = compared != 0 && sum->looks >= LOOKS_LEAST * compared;
    if (sum->counts) {
        sum->share = (uint32_t)((uint64_t)sum->waits * MILLION / sum->looks);
        sum->delay_permille /= heard;
    }
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Orders all ranks that count by their shares, and finds for each what the others do. */
static void order_ranks(struct mu_straggle *s, uint32_t spans)
{
    uint32_t middle;

    s->order_count = 0;
    for (uint32_t i = 0; i < s->config.world; i++) {
        sum_up(s, i, spans);
        if (s->sums[i].counts) {
            s->order[s->order_count++] = (uint64_t)s->sums[i].share << 32 | i;
        }
    }
    if (s->order_count < 2) {
        return;
    }
    qsort(s->order, s->order_count, sizeof(*s->order), compare);
    middle = (s->order_count - 2) / 2; /* of the others, which are one less; the lower of two */
    for (uint32_t i = 0; i < s->order_count; i++) {
        uint32_t at = middle >= i ? middle + 1 : middle;

        s->sums[(uint32_t)s->order[i]].others = (uint32_t)(s->order[at] >> 32);
    }
}

static uint32_t kept(const struct mu_straggle_stats *sum)
{
    return sum->counts && sum->others > sum->share ? sum->others - sum->share : 0;
}

static bool is_behind(const struct mu_straggle *s, const struct mu_straggle_stats *sum)
{
    return kept(sum) >= s->config.least_permille * 1000 && sum->share <= sum->others / 2;
}

/* --- one span --------------------------------------------------------------------------------- */

/* Ranks that were looked at lately. */
static uint32_t count_known(const struct mu_straggle *s)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < s->config.world; i++) {
        bool known = false;

        for (uint32_t at = 1; at <= MU_STRAGGLE_SHORT && at <= s->span; at++) {
            known |= s->histories[i].spans[(s->span - at) % MU_STRAGGLE_SPANS].looks != 0;
        }
        count += known;
    }
    return count;
}

static void judge_span(struct mu_straggle *s)
{
    order_ranks(s, 1);
    if (2 * s->order_count <= count_known(s)) {
        return; /* most are in a long wait, and only those that are not have looks */
    }
    s->compared |= 1;
    for (uint32_t i = 0; i < s->order_count && s->order_count >= 2; i++) {
        uint32_t rank = (uint32_t)s->order[i];
        const struct mu_straggle_stats *sum = &s->sums[rank];

        s->histories[rank].could |= sum->others >= s->config.least_permille * 1000;
        s->histories[rank].late |= is_behind(s, sum);
    }
}

/* --- several spans ---------------------------------------------------------------------------- */

/* Twice the logarithm: how far the luckiest of so many may be off. */
static double luck(uint32_t ranks)
{
    uint32_t bits = 0;

    while (ranks >> bits != 0) {
        bits++;
    }
    return 2 * 0.693 * bits;
}

/* Whether the difference is larger than chance makes it, if looks are independent. They are
 * less so: then this errs on the side of silence. */
static bool is_certain(const struct mu_straggle *s, const struct mu_straggle_stats *sum)
{
    double others = (double)sum->others / MILLION;
    double less = (double)kept(sum) / MILLION;
    double variance = others * (1 - others) + 1.0 / sum->looks;

    return less * less * sum->looks >= (CHANCE + luck(s->order_count)) * variance;
}

static uint32_t count_bits(uint32_t bits)
{
    uint32_t count = 0;

    for (; bits != 0; bits &= bits - 1) {
        count++;
    }
    return count;
}

static uint32_t bits_of(uint32_t spans)
{
    return (UINT32_C(1) << spans) - 1;
}

static bool is_often_behind(const struct mu_straggle_history *history, uint32_t spans)
{
    uint32_t could = count_bits(history->could & bits_of(spans));
    uint32_t late = count_bits(history->late & bits_of(spans));

    return could >= SPANS_LEAST && late * LATE_PARTS >= could * (LATE_PARTS - 1);
}

/* Steps of the run: as marked, or else waits that were seen to end. */
static uint32_t count_steps(const struct mu_straggle *s, bool *ret_marked)
{
    uint64_t turns = 0;
    uint32_t marks = 0;

    for (uint32_t i = 0; i < s->order_count; i++) {
        const struct mu_straggle_stats *sum = &s->sums[(uint32_t)s->order[i]];

        marks = sum->marks > marks ? sum->marks : marks;
        turns += sum->turns;
    }
    *ret_marked = marks != 0;
    return marks != 0 ? marks : (uint32_t)(turns / s->order_count);
}

static void tally_nodes(struct mu_straggle *s)
{
    memset(s->tallies, 0, s->config.nodes * sizeof(*s->tallies));
    for (uint32_t i = s->config.world; i-- > 0;) {
        struct mu_straggle_tally *t = &s->tallies[s->histories[i].node];

        if (s->sums[i].counts) {
            t->first = i;
            t->counts++;
            t->behind += s->sums[i].behind;
            t->certain += s->sums[i].certain;
            t->kept += kept(&s->sums[i]);
            t->delay += s->sums[i].delay_permille;
        }
    }
}

/* Whether enough ranks of a node for all of it are so. */
static bool are_most(const struct mu_straggle *s, uint32_t node, uint32_t ranks)
{
    return s->config.nodes > 1 && ranks >= 2 && 2 * ranks >= s->tallies[node].counts;
}

static uint32_t few_of(uint32_t count)
{
    return count < 2 * FEW ? 1 : count / FEW;
}

/* --- who is named ----------------------------------------------------------------------------- */

static void say(struct mu_straggle *s, enum mu_straggle_word word, const struct mu_straggler *who)
{
    MU_ASSERT(s->change_count < sizeof(s->changes) / sizeof(s->changes[0]));
    s->changes[s->change_count++] = (struct mu_straggle_change){.word = word, .who = *who};
}

static void drop(struct mu_straggle *s, size_t i)
{
    s->named.count--;
    memmove(&s->named.list[i], &s->named.list[i + 1],
            (s->named.count - i) * sizeof(s->named.list[0]));
}

/* "rank 5 on node2" */
static int put_who(const struct mu_straggler *who, char *out, size_t cap)
{
    const char *on = who->node[0] == '\0' ? "" : " on ";

    return who->rank_count == 1
               ? snprintf(out, cap, "rank %" PRIu32 "%s%s", who->rank, on, who->node)
               : snprintf(out, cap, "%s%s(%" PRIu32 " ranks from %" PRIu32 " on)", who->node,
                          who->node[0] == '\0' ? "" : " ", who->rank_count, who->rank);
}

static void put_text(const struct mu_straggle *s, struct mu_straggler *who, uint32_t spans)
{
    const struct mu_straggle_history *history = &s->histories[who->rank];
    char name[MU_PACE_NODE_MAX + 48];
    char steps[32] = "";
    char delay[64] = "";
    bool marked;
    uint32_t count = count_steps(s, &marked);

    (void)put_who(who, name, sizeof(name));
    if (marked) {
        (void)snprintf(steps, sizeof(steps), ", in %" PRIu32 " steps", count);
    }
    if (who->delay_permille >= 50) {
        (void)snprintf(delay, sizeof(delay), "; for %u %% of the time others had its CPU",
                       who->delay_permille / 10);
    }
    (void)snprintf(who->text, sizeof(who->text),
                   "%s keeps the others waiting: %u %% of the last %" PRIu32 " s%s; it was the "
                   "last in %" PRIu32 " of %" PRIu32 " spans of %g s%s",
                   name, who->kept_permille / 10, spans * s->config.span_ms / 1000, steps,
                   count_bits(history->late & bits_of(spans)),
                   count_bits(history->could & bits_of(spans)), s->config.span_ms / 1000.0, delay);
}

static void name(struct mu_straggle *s, uint32_t rank, bool whole, uint32_t spans)
{
    uint32_t node = s->histories[rank].node;
    const struct mu_straggle_tally *t = &s->tallies[node];
    struct mu_straggler who = {
        .rank = rank,
        .rank_count = whole ? t->counts : 1,
        .kept_permille = (uint16_t)((whole ? t->kept / t->counts : kept(&s->sums[rank])) / 1000),
        .delay_permille = (uint16_t)(whole ? t->delay / t->counts : s->sums[rank].delay_permille),
    };

    memcpy(who.node, s->names[node], sizeof(who.node));
    for (size_t i = s->named.count; i-- > 0;) {
        const struct mu_straggler *known = &s->named.list[i];
        bool same_node = s->histories[known->rank].node == node;

        if (mu_straggler_is(known, &who) || (same_node && known->rank_count > 1)) {
            return;
        }
        if (same_node && whole) {
            drop(s, i); /* it was the first of them */
        }
    }
    if (s->named.count < MU_STRAGGLERS_MAX &&
        s->change_count < sizeof(s->changes) / sizeof(s->changes[0])) {
        put_text(s, &who, spans);
        s->named.list[s->named.count++] = who;
        say(s, MU_STRAGGLE_NAMED, &who);
    }
}

static void judge_spans(struct mu_straggle *s, uint32_t spans)
{
    uint32_t ranks = 0;
    uint32_t nodes = 0;
    bool marked;

    if (s->order_count < 2 || count_steps(s, &marked) < s->config.steps_min) {
        return;
    }
    for (uint32_t i = 0; i < s->order_count; i++) {
        uint32_t rank = (uint32_t)s->order[i];
        struct mu_straggle_stats *sum = &s->sums[rank];

        /* Also lately: a longer time has seen more than is still so. */
        sum->behind = is_behind(s, sum);
        sum->certain = sum->behind && is_certain(s, sum) &&
                       is_often_behind(&s->histories[rank], spans) &&
                       s->ranks[rank].kept_permille >= s->config.least_permille;
    }
    tally_nodes(s);
    for (uint32_t i = 0; i < s->config.nodes; i++) {
        bool slow = are_most(s, i, s->tallies[i].certain);

        nodes += slow;
        ranks += slow ? 0 : s->tallies[i].behind;
    }
    for (uint32_t i = 0; i < s->config.nodes && nodes <= few_of(s->config.nodes); i++) {
        if (are_most(s, i, s->tallies[i].certain)) {
            name(s, s->tallies[i].first, true, spans);
        }
    }
    for (uint32_t i = 0; i < s->order_count && ranks <= few_of(s->order_count); i++) {
        uint32_t rank = (uint32_t)s->order[i];
        uint32_t node = s->histories[rank].node;

        /* Of a node that may be slow as a whole, a longer time will tell. */
        if (s->sums[rank].certain && !are_most(s, node, s->tallies[node].behind)) {
            name(s, rank, false, spans);
        }
    }
}

/* --- who is so no longer ---------------------------------------------------------------------- */

void mu_straggle_say_over(struct mu_straggler *who)
{
    char name[MU_PACE_NODE_MAX + 48];

    (void)put_who(who, name, sizeof(name));
    (void)snprintf(who->text, sizeof(who->text), "%s no longer keeps the others waiting", name);
}

static uint32_t kept_by(const struct mu_straggle *s, const struct mu_straggler *who)
{
    const struct mu_straggle_tally *t = &s->tallies[s->histories[who->rank].node];

    if (who->rank_count == 1) {
        return kept(&s->sums[who->rank]) / 1000;
    }
    return t->counts == 0 ? 0 : (uint32_t)(t->kept / t->counts / 1000);
}

static void end_stragglers(struct mu_straggle *s)
{
    tally_nodes(s);
    for (size_t i = s->named.count; i-- > 0;) {
        struct mu_straggler who = s->named.list[i];
        uint32_t now = kept_by(s, &who);

        if (now < s->config.least_permille / 2) {
            mu_straggle_say_over(&who);
            drop(s, i);
            say(s, MU_STRAGGLE_OVER, &who);
        } else {
            s->named.list[i].kept_permille = (uint16_t)now;
        }
    }
}

/* --- figures ---------------------------------------------------------------------------------- */

static void keep_figures(struct mu_straggle *s)
{
    uint32_t middle = s->order_count == 0 ? 0 : (s->order_count - 1) / 2;

    s->named.typical_permille =
        s->order_count == 0 ? 0 : (uint16_t)((s->order[middle] >> 32) / 1000);
    for (uint32_t i = 0; i < s->config.world; i++) {
        const struct mu_straggle_stats *sum = &s->sums[i];

        s->ranks[i] = (struct mu_straggle_rank){
            .known = sum->counts,
            .node = s->histories[i].node,
            .waits_permille = (uint16_t)(sum->share / 1000),
            .kept_permille = (uint16_t)(kept(sum) / 1000),
            .delay_permille = (uint16_t)sum->delay_permille,
        };
    }
}

static void warm_up(struct mu_straggle *s)
{
    bool marked;

    s->warm_spans += s->order_count >= 2 && count_steps(s, &marked) != 0;
    s->warm_at = s->span;
}

void mu_straggle_judge(struct mu_straggle *s)
{
    static const uint32_t times[] = {MU_STRAGGLE_SHORT, 2 * MU_STRAGGLE_SHORT, MU_STRAGGLE_SPANS};

    judge_span(s);
    if (s->warm_spans < WARM_SPANS) {
        warm_up(s);
    }
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (s->warm_spans < WARM_SPANS || s->span - s->warm_at < times[i]) {
            return;
        }
        order_ranks(s, times[i]);
        if (i == 0) {
            keep_figures(s);
            end_stragglers(s);
        }
        judge_spans(s, times[i]);
    }
}

bool mu_straggle_next(struct mu_straggle *s, struct mu_straggle_change *ret_change)
{
    if (s->change_taken == s->change_count) {
        return false;
    }
    *ret_change = s->changes[s->change_taken++];
    return true;
}

const struct mu_stragglers *mu_straggle_list(const struct mu_straggle *s)
{
    return &s->named;
}

struct mu_straggle_rank mu_straggle_rank(const struct mu_straggle *s, uint32_t rank)
{
    MU_ASSERT(rank < s->config.world);
    return s->ranks[rank];
}
