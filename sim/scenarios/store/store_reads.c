/*
 * Job: what holds for reads that a server answers from its mirror of etcd. They may be behind what
 * clients of other servers have done, but never behind what this server has answered before: a
 * client that has written reads that or something later, and no read is older than an earlier read
 * at the same server, of this key or of another. Counters only grow, so a smaller number is an
 * older one, and the second of a pair only grows after the first, so it is never ahead of it; a
 * worker's own keys come and go once; a group is only ever written whole.
 */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdio.h>

#define COUNTERS   4 /* in pairs */
#define GROUP_KEYS 3

enum deed {
    ADD = 1,    /* adds to the first of a pair */
    ADD_BEHIND, /* when that has happened, adds to the second */
    READ,
    CHECK,
    SET_GROUP,
    READ_GROUP,
    COME,    /* sets a key of its own */
    SEE,     /* the key must exist */
    GO,      /* deletes the key */
    MISS,    /* the key must be gone */
    MISS_ON, /* the key must stay gone */
};

struct reads_state {
    int64_t floors[STORE_SERVERS_MAX][COUNTERS]; /* the most that a server has answered */
};

struct reads_worker {
    struct store_worker base;
    enum deed deed;
    uint32_t key;
    int64_t floor; /* at the time of the read */
    char key_texts[GROUP_KEYS][32];
    char text[24];
    struct mu_span keys[GROUP_KEYS];
    struct mu_span values[GROUP_KEYS];
};

static void reads_make(struct store_world *w, void *state)
{
    (void)w;
    (void)state;
}

static void reads_drop(void *state)
{
    (void)state;
}

static void reads_check(struct store_world *w, void *state)
{
    (void)w;
    (void)state;
}

static int64_t *floor_of(struct reads_worker *c)
{
    const struct store_role *role = c->base.role;
    struct reads_state *state = role->state;

    return &state->floors[role->member->number % role->world->host_count][c->key];
}

static enum deed draw_deed(struct reads_worker *c)
{
    bool groups = c->base.role->member->protocol != MU_STORE_TCP_TORCH1;
    uint64_t n = mu_prng_below(&c->base.prng, groups ? 100 : 80);

    return n < 30   ? ADD
           : n < 65 ? READ
           : n < 70 ? CHECK
           : n < 80 ? COME
           : n < 90 ? SET_GROUP
                    : READ_GROUP;
}

static void submit(struct reads_worker *c, enum mu_store_verb verb, uint32_t flags)
{
    struct mu_store_request *q = &c->base.op.request;
    bool group = c->deed == SET_GROUP || c->deed == READ_GROUP;

    *q = (struct mu_store_request){
        .verb = verb, .flags = flags, .keys = c->keys, .key_count = group ? GROUP_KEYS : 1};
    if (c->deed == SET_GROUP || c->deed == COME) {
        for (size_t i = 0; i < GROUP_KEYS; i++) {
            c->values[i] = mu_span_str(c->text);
        }
        q->values = c->values;
        q->value_count = q->key_count;
    }
    q->number = c->deed == ADD || c->deed == ADD_BEHIND ? 1 : 0;
    c->floor = *floor_of(c);
    c->base.op.timeout_ms = 200 + (uint32_t)mu_prng_below(&c->base.prng, 10000);
    store_worker_submit(&c->base);
}

static void go_on(struct reads_worker *c)
{
    switch (c->deed) {
    case ADD:
    case ADD_BEHIND:
        submit(c, MU_STORE_ADD, 0);
        return;
    case CHECK:
        submit(c, MU_STORE_CHECK, 0);
        return;
    case SET_GROUP:
        submit(c, MU_STORE_MULTI_SET, 0);
        return;
    case READ_GROUP:
        submit(c, MU_STORE_MULTI_GET, MU_STORE_NOWAIT);
        return;
    case COME:
        submit(c, MU_STORE_SET, 0);
        return;
    case GO:
        submit(c, MU_STORE_DELETE, 0);
        return;
    case READ:
    case SEE:
    case MISS:
    case MISS_ON:
        submit(c, MU_STORE_GET, MU_STORE_NOWAIT);
        return;
    }
}

static void name_keys(struct reads_worker *c)
{
    for (uint32_t i = 0; i < GROUP_KEYS; i++) {
        if (c->deed == COME) {
            (void)snprintf(c->key_texts[i], sizeof(c->key_texts[i]), "o%s", c->text);
        } else {
            bool group = c->deed == SET_GROUP || c->deed == READ_GROUP;

            (void)snprintf(c->key_texts[i], sizeof(c->key_texts[i]), "%c%" PRIu32,
                           group ? 'g' : 'n', group ? i : c->key);
        }
        c->keys[i] = mu_span_str(c->key_texts[i]);
    }
}

static void reads_next(struct store_worker *worker)
{
    struct reads_worker *c = MU_CONTAINER_OF(worker, struct reads_worker, base);

    if (worker->role->world->finishing) {
        store_worker_stop(worker);
        return;
    }
    c->deed = draw_deed(c);
    c->key = (uint32_t)mu_prng_below(&worker->prng, COUNTERS);
    c->key -= c->deed == ADD ? c->key % 2 : 0;
    (void)snprintf(c->text, sizeof(c->text), "%" PRId64, store_worker_unique(worker));
    name_keys(c);
    go_on(c);
}

static void complain(const struct reads_worker *c, const char *words, int64_t number)
{
    const struct store_role *role = c->base.role;

    mu_sim_fail(role->world->sim, "client %" PRIu32 " (%.*s): %s: %" PRId64 " behind %" PRId64,
                role->member->number, (int)c->keys[0].len, (const char *)c->keys[0].data, words,
                number, c->floor);
}

/* Returns the number that was read, or 0 if there was no number. */
static int64_t read_one(const struct reads_worker *c, enum store_verdict verdict)
{
    const struct mu_store_reply *reply = &c->base.op.reply;
    int64_t number = 0;

    if (verdict == STORE_ABSENT || (reply->value_count == 1 && reply->values[0].len == 0)) {
        return 0; /* PyTorch's clients read an absent key as empty. */
    }
    if (reply->value_count != 1 || !store_read_number(reply->values[0], &number)) {
        mu_sim_fail(c->base.role->world->sim, "client %" PRIu32 " got no number",
                    c->base.role->member->number);
    }
    return number;
}

static void judge_number(struct reads_worker *c, const char *words, int64_t number)
{
    int64_t *floor = floor_of(c);

    if (number < c->floor) {
        complain(c, words, number);
    }
    *floor = number > *floor ? number : *floor;
    if (c->key % 2 == 1) {
        floor--; /* The first of the pair. */
        *floor = number > *floor ? number : *floor;
    }
}

static void judge_group(const struct reads_worker *c)
{
    const struct mu_store_reply *reply = &c->base.op.reply;

    for (size_t i = 1; i < reply->value_count; i++) {
        if (!mu_span_eq(reply->values[i], reply->values[0])) {
            complain(c, "saw half of a multi_set", 0);
        }
    }
}

/* Checks an answer, and takes the next step with the worker's own key. False: there is no next
 * step. */
static bool judge(struct reads_worker *c, enum store_verdict verdict)
{
    switch (c->deed) {
    case ADD:
    case ADD_BEHIND:
        judge_number(c, "added to an older number", c->base.op.reply.number);
        if (c->deed == ADD_BEHIND) {
            return false;
        }
        c->deed = ADD_BEHIND;
        c->key++;
        name_keys(c);
        return true;
    case READ:
        judge_number(c, "read an older number", read_one(c, verdict));
        return false;
    case CHECK:
        if (c->base.op.reply.number == 0 && c->floor != 0) {
            complain(c, "found no number", 0);
        }
        return false;
    case SET_GROUP:
        return false;
    case READ_GROUP:
        judge_group(c);
        return false;
    case COME:
    case GO:
        c->deed++;
        return true;
    case SEE:
        if (read_one(c, verdict) == 0) {
            complain(c, "did not read what it has written", 0);
        }
        c->deed++;
        return true;
    case MISS:
    case MISS_ON:
        if (read_one(c, verdict) != 0) {
            complain(c, "read what it has deleted", 0);
        }
        c->deed++;
        return c->deed == MISS_ON;
    }
    return false;
}

static void reads_done(struct store_worker *worker, enum store_verdict verdict)
{
    struct reads_worker *c = MU_CONTAINER_OF(worker, struct reads_worker, base);

    if (verdict != STORE_UNKNOWN && judge(c, verdict)) {
        go_on(c);
    } else {
        store_worker_think(worker, 100);
    }
}

const struct store_job store_job_reads = {
    .state_size = sizeof(struct reads_state),
    .worker_size = sizeof(struct reads_worker),
    .make = reads_make,
    .drop = reads_drop,
    .check = reads_check,
    .next = reads_next,
    .done = reads_done,
};
