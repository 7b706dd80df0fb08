/* Whether a whole run hangs, and who is missing. */
#include <stdlib.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "proto/stacks/watchdog.h"

void mu_watchdog_run_init(struct mu_watchdog_run *run, uint64_t hang_ms)
{
    *run = (struct mu_watchdog_run){.hang_ms = hang_ms};
}

void mu_watchdog_run_confirm(struct mu_watchdog_run *run, uint64_t still_ms)
{
    run->hangs = true;
    run->confirmed = true;
    run->still_ms = still_ms;
}

/* What all pulses come to. */
struct sum {
    uint32_t live; /* neither ended nor a server */
    uint32_t ended;
    uint32_t still;    /* of the live ones: nothing moved for hang_ms */
    uint32_t spins;    /* only their CPU time did */
    uint32_t waits;    /* for others, or may do so */
    uint64_t place;    /* of the first that spins */
    uint64_t still_ms; /* the least */
    bool scattered;    /* they spin in different places */
    bool excused;
};

/* In a run that hangs, whoever spins waits for its GPU, and so for the ranks that its GPU needs. */
static bool waits_for_others(const struct mu_watchdog_run *run, const struct mu_pulse *p)
{
    return p->state != MU_PULSE_STOPPED && p->state != MU_PULSE_ENDED &&
           (p->stance == MU_STANCE_OTHERS || p->stance == MU_STANCE_PERHAPS ||
            p->still_ms < run->hang_ms);
}

/* A worker that has just been started, or that a debugger holds, has not stood still at all. */
static void add_live(const struct mu_watchdog_run *run, const struct mu_pulse *p, struct sum *sum)
{
    uint64_t ms = p->still_ms;

    sum->live++;
    sum->waits += waits_for_others(run, p) ? 1 : 0;
    if (p->still_ms >= run->hang_ms) {
        sum->still++;
    } else if (p->fixed_ms >= run->hang_ms) {
        sum->scattered |= sum->spins != 0 && p->place != sum->place;
        sum->place = p->place;
        sum->spins++;
        ms = p->fixed_ms;
    } else {
        sum->excused = true;
    }
    sum->still_ms = ms < sum->still_ms ? ms : sum->still_ms;
}

/* Whether a rank has a part in the judgement at all. */
static bool is_judged(const struct mu_pulse *p)
{
    return p->state == MU_PULSE_STOPPED ||
           (p->state != MU_PULSE_ENDED && p->stance != MU_STANCE_REQUESTS);
}

static struct sum add_up(const struct mu_watchdog_run *run, const struct mu_pulse *pulses,
                         size_t count)
{
    struct sum sum = {.still_ms = UINT64_MAX};

    for (size_t i = 0; i < count; i++) {
        const struct mu_pulse *p = &pulses[i];

        if (p->state == MU_PULSE_ENDED) {
            sum.ended++;
        } else if (p->stance == MU_STANCE_PERSON) {
            sum.excused = true;
        } else if (is_judged(p)) {
            add_live(run, p, &sum);
        }
    }
    return sum;
}

static bool is_suspect(const struct mu_watchdog_run *run, const struct sum *sum)
{
    return run->hang_ms != 0 && !sum->excused && sum->live != 0;
}

static bool is_hang(const struct mu_watchdog_run *run, const struct sum *sum)
{
    return is_suspect(run, sum) &&
           (run->confirmed || sum->spins == 0 ||
            (!sum->scattered && sum->still != 0 && sum->spins > sum->still));
}

/* Ranks with equal keys are at the same place. */
static uint64_t key_of(const struct mu_pulse *p)
{
    return p->state == MU_PULSE_STOPPED ? UINT64_MAX : p->place ^ (uint64_t)p->stance << 56;
}

static int compare_keys(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

/* The place where most of the ranks are, and how many are there. Of two that are as full, it is the
 * one with the lower key, so that all agents would say the same. */
static int find_most(const struct mu_pulse *pulses, size_t count, uint64_t *ret_key,
                     size_t *ret_most)
{
    uint64_t *keys = mu_calloc(count, sizeof(*keys));
    size_t len = 0;
    size_t most = 0;
    size_t row = 0;

    if (keys == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_judged(&pulses[i])) {
            keys[len++] = key_of(&pulses[i]);
        }
    }
    qsort(keys, len, sizeof(*keys), compare_keys);
    for (size_t i = 0; i < len; i++) {
        row = i != 0 && keys[i] == keys[i - 1] ? row + 1 : 1;
        if (row > most) {
            most = row;
            *ret_key = keys[i];
        }
    }
    mu_free(keys);
    *ret_most = most;
    return 0;
}

/* The ways to tell who is missing, as the header says. */
enum way { WAY_NOT_WAITING, WAY_ENDED, WAY_LEFT_OVER, WAY_ELSEWHERE, WAY_SERVING };

static enum way choose_way(const struct sum *sum)
{
    if (sum->waits != 0 && sum->waits < sum->live) {
        return WAY_NOT_WAITING;
    }
    if (sum->ended != 0) {
        return sum->waits != 0 ? WAY_ENDED : WAY_LEFT_OVER;
    }
    return WAY_ELSEWHERE;
}

static bool is_missing(const struct mu_watchdog_run *run, const struct mu_pulse *p, enum way way,
                       uint64_t key)
{
    switch (way) {
    case WAY_NOT_WAITING:
        return is_judged(p) && !waits_for_others(run, p);
    case WAY_ENDED:
        return p->state == MU_PULSE_ENDED;
    case WAY_LEFT_OVER:
        return is_judged(p);
    case WAY_ELSEWHERE:
        return is_judged(p) && key_of(p) != key;
    case WAY_SERVING:
        return !is_judged(p);
    }
    return false;
}

static void name_by(const struct mu_watchdog_run *run, enum way way, uint64_t key,
                    const struct mu_pulse *pulses, size_t count, struct mu_watchdog_verdict *v,
                    uint32_t *missing)
{
    for (size_t i = 0; i < count; i++) {
        if (is_missing(run, &pulses[i], way, key)) {
            missing[v->missing_count++] = pulses[i].rank;
        }
    }
}

static int name_missing(const struct mu_watchdog_run *run, const struct mu_pulse *pulses,
                        size_t count, const struct sum *sum, struct mu_watchdog_verdict *v,
                        uint32_t *missing)
{
    enum way way = choose_way(sum);
    uint64_t key = 0;
    size_t most = 0;
    int err = way == WAY_ELSEWHERE ? find_most(pulses, count, &key, &most) : 0;

    if (err != 0) {
        return err;
    }
    if (way == WAY_ELSEWHERE && most == 1 && sum->live > 2) {
        v->split = true; /* each is elsewhere than the others */
        return 0;
    }
    name_by(run, way, key, pulses, count, v, missing);
    v->split = way == WAY_ELSEWHERE && 2 * most <= sum->live && v->missing_count != 0;
    if (v->missing_count == 0 && sum->waits == sum->live) {
        name_by(run, WAY_SERVING, key, pulses, count, v, missing);
        v->split = v->missing_count != 0;
    }
    return 0;
}

static struct mu_watchdog_verdict without_hang(struct mu_watchdog_run *run, const struct sum *sum)
{
    struct mu_watchdog_verdict v = {.word = MU_WATCHDOG_NOTHING};

    if (run->hangs) {
        v.word = MU_WATCHDOG_RESUMED;
        v.still_ms = run->still_ms;
        run->hangs = run->confirmed = false;
    } else if (is_suspect(run, sum)) {
        v.word = MU_WATCHDOG_SUSPECT;
        v.still_ms = sum->still_ms;
    }
    return v;
}

int mu_watchdog_judge(struct mu_watchdog_run *run, const struct mu_pulse *pulses, size_t count,
                      uint32_t world, struct mu_watchdog_verdict *ret_verdict, uint32_t *missing)
{
    struct mu_watchdog_verdict v = {.word = MU_WATCHDOG_NOTHING};
    struct sum sum = add_up(run, pulses, count);
    int err;

    if (count < world) {
        /* While somebody is not heard from, a hang that was told goes on, and is not over. */
        *ret_verdict = v;
        return 0;
    }
    if (!is_hang(run, &sum)) {
        *ret_verdict = without_hang(run, &sum);
        return 0;
    }
    v.word = run->hangs ? MU_WATCHDOG_HANGING : MU_WATCHDOG_HANG;
    v.still_ms = sum.still_ms;
    err = name_missing(run, pulses, count, &sum, &v, missing);
    if (err != 0) {
        return err;
    }
    run->hangs = true;
    run->still_ms = v.still_ms;
    *ret_verdict = v;
    return 0;
}
