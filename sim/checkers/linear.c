#include "checkers/linear.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "sim.h"

#define WORDS (LINEAR_KEY_OPS_MAX / 64)
#define NONE  UINT32_MAX

/* --- history ---------------------------------------------------------------------------------- */

void linear_init(struct linear_history *h)
{
    *h = (struct linear_history){0};
}

void linear_fini(struct linear_history *h)
{
    mu_free(h->ops);
    linear_init(h);
}

uint32_t linear_invoke(struct linear_history *h, const struct linear_op *op, uint64_t now_ns)
{
    struct linear_op *copy;

    if (h->count == h->cap) {
        struct mu_sim_heap *heap = mu_sim_outside();
        size_t cap = h->cap == 0 ? 256 : h->cap * 2;
        struct linear_op *bigger = mu_realloc(h->ops, cap * sizeof(*bigger));

        mu_sim_inside(heap);
        MU_ASSERT(bigger != NULL);
        h->ops = bigger;
        h->cap = cap;
    }
    copy = &h->ops[h->count];
    *copy = *op;
    copy->invoked = ++h->order;
    copy->returned = 0;
    copy->invoked_ns = now_ns;
    copy->dropped = false;
    return (uint32_t)h->count++;
}

void linear_return(struct linear_history *h, uint32_t op, const struct linear_result *result,
                   uint64_t now_ns)
{
    MU_ASSERT(op < h->count && h->ops[op].returned == 0);
    h->ops[op].returned = ++h->order;
    h->ops[op].returned_ns = now_ns;
    h->ops[op].result = *result;
}

void linear_drop(struct linear_history *h, uint32_t op)
{
    MU_ASSERT(op < h->count && h->ops[op].returned == 0);
    h->ops[op].dropped = true;
}

/* --- the store, as it should be --------------------------------------------------------------- */

static bool same(struct linear_value a, struct linear_value b)
{
    return a.present == b.present && (!a.present || a.number == b.number);
}

/* Computes what compare_set answers and leaves. */
static struct linear_value compare_set(const struct linear_op *op, struct linear_value *state,
                                       bool *ret_written)
{
    *ret_written = same(*state, op->expected);
    if (*ret_written) {
        *state = (struct linear_value){true, op->number};
        return *state;
    }
    return state->present ? *state : op->expected;
}

/* Applies an operation; false if its answer could not have been given with this value there. */
static bool apply(const struct linear_op *op, struct linear_value *state)
{
    const struct linear_result *r = &op->result;
    bool known = op->returned != 0;
    struct linear_value reply;
    bool flag;

    switch (op->kind) {
    case LINEAR_GET:
        return !known || same(r->value, *state);
    case LINEAR_SET:
        *state = (struct linear_value){true, op->number};
        return true;
    case LINEAR_ADD:
        /* The sum wraps, as the store's does. */
        state->number = (int64_t)((uint64_t)state->number + (uint64_t)op->number);
        state->present = true;
        return !known || r->value.number == state->number;
    case LINEAR_COMPARE_SET:
        reply = compare_set(op, state, &flag);
        return !known || (same(reply, r->value) && (!r->flag_known || r->flag == flag));
    case LINEAR_DELETE:
        flag = state->present;
        *state = (struct linear_value){0};
        return !known || !r->flag_known || r->flag == flag;
    case LINEAR_CHECK:
        return !known || r->flag == state->present;
    case LINEAR_WAIT:
        return state->present;
    }
    return false;
}

/* --- what was tried --------------------------------------------------------------------------- */

/* A set of (operations done, value left); `words` of bits and the value make one record. */
struct memory {
    uint64_t *records;
    uint32_t *slots; /* number of the record plus one, or 0 */
    size_t slot_count;
    size_t count;
    size_t cap;
    size_t words; /* of bits */
};

static uint64_t hash_record(const uint64_t *record, size_t words)
{
    uint64_t h = 0;

    for (size_t i = 0; i < words; i++) {
        h = (h ^ record[i]) * UINT64_C(0x9e3779b97f4a7c15);
        h ^= h >> 31;
    }
    return h;
}

static void grow_slots(struct memory *m)
{
    size_t record = m->words + 2;

    mu_free(m->slots);
    m->slot_count = m->slot_count == 0 ? 1024 : m->slot_count * 4;
    m->slots = mu_calloc(m->slot_count, sizeof(*m->slots));
    MU_ASSERT(m->slots != NULL);
    for (size_t i = 0; i < m->count; i++) {
        size_t at = hash_record(&m->records[i * record], record) & (m->slot_count - 1);

        while (m->slots[at] != 0) {
            at = (at + 1) & (m->slot_count - 1);
        }
        m->slots[at] = (uint32_t)(i + 1);
    }
}

/* Returns whether this is new, and remembers it. */
static bool remember(struct memory *m, const uint64_t *done, struct linear_value state)
{
    uint64_t key[WORDS + 2];
    size_t record = m->words + 2;
    size_t at;

    memcpy(key, done, m->words * sizeof(key[0]));
    key[m->words] = state.present ? 1 : 0;
    key[m->words + 1] = (uint64_t)state.number;
    if (m->count * 2 >= m->slot_count) {
        grow_slots(m);
    }
    at = hash_record(key, record) & (m->slot_count - 1);
    while (m->slots[at] != 0) {
        if (memcmp(&m->records[(m->slots[at] - 1) * record], key, record * sizeof(key[0])) == 0) {
            return false;
        }
        at = (at + 1) & (m->slot_count - 1);
    }
    if (m->count == m->cap) {
        m->cap = m->cap == 0 ? 256 : m->cap * 2;
        m->records = mu_realloc(m->records, m->cap * record * sizeof(key[0]));
        MU_ASSERT(m->records != NULL);
    }
    memcpy(&m->records[m->count * record], key, record * sizeof(key[0]));
    m->slots[at] = (uint32_t)++m->count;
    return true;
}

/* --- the search ------------------------------------------------------------------------------- */

/* A call or an answer, in a list in order of time. */
struct event {
    uint64_t order;
    uint32_t op; /* of the key's */
    bool answer;
    uint32_t prev;
    uint32_t next;
};

struct step {
    uint32_t op;
    struct linear_value before;
};

struct search {
    const struct linear_op *ops[LINEAR_KEY_OPS_MAX];
    size_t op_count;
    size_t answers_left; /* answered operations that have no moment yet */
    struct event events[2 * LINEAR_KEY_OPS_MAX + 1]; /* the head of the list first */
    size_t event_count;
    uint32_t call_of[LINEAR_KEY_OPS_MAX];
    uint32_t answer_of[LINEAR_KEY_OPS_MAX]; /* NONE if unknown */
    uint64_t done[WORDS];
    struct step stack[LINEAR_KEY_OPS_MAX];
    size_t depth;
    size_t deepest;
    uint32_t stuck; /* the operation whose answer ended the deepest attempt */
    struct memory memory;
};

static int compare_events(const void *a, const void *b)
{
    const struct event *x = a;
    const struct event *y = b;

    return x->order < y->order ? -1 : 1;
}

static void add_event(struct search *s, uint64_t order, uint32_t op, bool answer)
{
    s->events[s->event_count++] = (struct event){.order = order, .op = op, .answer = answer};
}

/* A read changes nothing: without an answer, it tells nothing either. */
static bool matters(const struct linear_op *op)
{
    return !op->dropped && (op->returned != 0 || op->kind == LINEAR_SET || op->kind == LINEAR_ADD ||
                            op->kind == LINEAR_COMPARE_SET || op->kind == LINEAR_DELETE);
}

/* Collects the operations on one key. False if there are too many. */
static bool collect(struct search *s, const struct linear_history *h, uint32_t key)
{
    s->event_count = 1;
    for (size_t i = 0; i < h->count; i++) {
        const struct linear_op *op = &h->ops[i];

        if (op->key != key || !matters(op)) {
            continue;
        }
        if (s->op_count == LINEAR_KEY_OPS_MAX) {
            return false;
        }
        add_event(s, op->invoked, (uint32_t)s->op_count, false);
        if (op->returned != 0) {
            add_event(s, op->returned, (uint32_t)s->op_count, true);
            s->answers_left++;
        }
        s->answer_of[s->op_count] = NONE;
        s->ops[s->op_count++] = op;
    }
    qsort(s->events + 1, s->event_count - 1, sizeof(s->events[0]), compare_events);
    for (uint32_t i = 0; i < s->event_count; i++) {
        s->events[i].prev = i == 0 ? NONE : i - 1;
        s->events[i].next = i + 1 < s->event_count ? i + 1 : NONE;
        if (i != 0 && s->events[i].answer) {
            s->answer_of[s->events[i].op] = i;
        } else if (i != 0) {
            s->call_of[s->events[i].op] = i;
        }
    }
    s->memory.words = (s->op_count + 63) / 64;
    return true;
}

static void unlink_event(struct search *s, uint32_t at)
{
    const struct event *e = &s->events[at];

    s->events[e->prev].next = e->next;
    if (e->next != NONE) {
        s->events[e->next].prev = e->prev;
    }
}

static void relink_event(struct search *s, uint32_t at)
{
    const struct event *e = &s->events[at];

    s->events[e->prev].next = at;
    if (e->next != NONE) {
        s->events[e->next].prev = at;
    }
}

/* Gives the operation the next moment. */
static void place(struct search *s, uint32_t op, struct linear_value before)
{
    s->stack[s->depth++] = (struct step){op, before};
    unlink_event(s, s->call_of[op]);
    if (s->answer_of[op] != NONE) {
        unlink_event(s, s->answer_of[op]);
        s->answers_left--;
    }
}

static struct linear_value take_back(struct search *s, uint32_t *ret_op)
{
    struct step step = s->stack[--s->depth];

    if (s->answer_of[step.op] != NONE) {
        relink_event(s, s->answer_of[step.op]);
        s->answers_left++;
    }
    relink_event(s, s->call_of[step.op]);
    s->done[step.op / 64] &= ~(UINT64_C(1) << step.op % 64);
    *ret_op = step.op;
    return step.before;
}

static enum linear_verdict search(struct search *s)
{
    struct linear_value state = {0};
    uint32_t at = s->events[0].next;

    while (s->answers_left != 0) {
        uint32_t op = at == NONE ? NONE : s->events[at].op;

        if (at != NONE && !s->events[at].answer) {
            struct linear_value next = state;

            s->done[op / 64] |= UINT64_C(1) << op % 64;
            if (apply(s->ops[op], &next) && remember(&s->memory, s->done, next)) {
                place(s, op, state);
                state = next;
                at = s->events[0].next;
            } else {
                s->done[op / 64] &= ~(UINT64_C(1) << op % 64);
                at = s->events[at].next;
            }
            if (s->memory.count > LINEAR_STATES_MAX) {
                return LINEAR_GAVE_UP;
            }
            continue;
        }
        /* This answer's call has no moment yet: nothing else may be placed before it. */
        if (at != NONE && s->depth >= s->deepest) {
            s->deepest = s->depth;
            s->stuck = op;
        }
        if (s->depth == 0) {
            return LINEAR_VIOLATION;
        }
        state = take_back(s, &op);
        at = s->events[s->call_of[op]].next;
    }
    return LINEAR_OK;
}

static enum linear_verdict check_key(const struct linear_history *h, uint32_t key,
                                     struct mu_errmsg *ret_msg)
{
    struct search *s = mu_calloc(1, sizeof(*s));
    enum linear_verdict verdict = LINEAR_GAVE_UP;
    char text[160];

    MU_ASSERT(s != NULL);
    if (collect(s, h, key)) {
        verdict = search(s);
    }
    if (verdict == LINEAR_VIOLATION) {
        (void)mu_err(ret_msg, 0, "key %" PRIu32 " is not linearizable: no place for %s", key,
                     linear_format(s->ops[s->stuck], text, sizeof(text)));
    } else if (verdict == LINEAR_GAVE_UP) {
        (void)mu_err(ret_msg, 0, "key %" PRIu32 ": %zu operations, %zu states: too many to check",
                     key, s->op_count, s->memory.count);
    }
    mu_free(s->memory.records);
    mu_free(s->memory.slots);
    mu_free(s);
    return verdict;
}

enum linear_verdict linear_check(const struct linear_history *h, struct mu_errmsg *ret_msg)
{
    enum linear_verdict worst = LINEAR_OK;
    uint32_t keys = 0;

    for (size_t i = 0; i < h->count; i++) {
        keys = h->ops[i].key >= keys ? h->ops[i].key + 1 : keys;
    }
    for (uint32_t key = 0; key < keys; key++) {
        enum linear_verdict verdict = check_key(h, key, ret_msg);

        if (verdict == LINEAR_VIOLATION) {
            return verdict;
        }
        worst = verdict == LINEAR_OK ? worst : verdict;
    }
    return worst;
}

/* --- text ------------------------------------------------------------------------------------- */

static const char *value_text(struct linear_value v, char *buf, size_t cap)
{
    if (v.present) {
        (void)snprintf(buf, cap, "%" PRId64, v.number);
    } else {
        (void)snprintf(buf, cap, "nothing");
    }
    return buf;
}

static void format_call(const struct linear_op *op, char *buf, size_t cap)
{
    char expected[32];

    switch (op->kind) {
    case LINEAR_GET:
        (void)snprintf(buf, cap, "get");
        return;
    case LINEAR_SET:
        (void)snprintf(buf, cap, "set %" PRId64, op->number);
        return;
    case LINEAR_ADD:
        (void)snprintf(buf, cap, "add %" PRId64, op->number);
        return;
    case LINEAR_COMPARE_SET:
        (void)snprintf(buf, cap, "compare_set %s to %" PRId64,
                       value_text(op->expected, expected, sizeof(expected)), op->number);
        return;
    case LINEAR_DELETE:
        (void)snprintf(buf, cap, "delete");
        return;
    case LINEAR_CHECK:
        (void)snprintf(buf, cap, "check");
        return;
    case LINEAR_WAIT:
        (void)snprintf(buf, cap, "wait");
        return;
    }
}

static void format_answer(const struct linear_op *op, char *buf, size_t cap)
{
    if (op->dropped) {
        (void)snprintf(buf, cap, "did nothing");
        return;
    }
    if (op->returned == 0) {
        (void)snprintf(buf, cap, "unknown");
        return;
    }
    switch (op->kind) {
    case LINEAR_GET:
    case LINEAR_ADD:
    case LINEAR_COMPARE_SET:
        (void)value_text(op->result.value, buf, cap);
        return;
    case LINEAR_DELETE:
    case LINEAR_CHECK:
        (void)snprintf(buf, cap, "%s",
                       op->kind == LINEAR_DELETE && !op->result.flag_known ? "done"
                       : op->result.flag                                   ? "yes"
                                                                           : "no");
        return;
    case LINEAR_SET:
    case LINEAR_WAIT:
        (void)snprintf(buf, cap, "done");
        return;
    }
}

char *linear_format(const struct linear_op *op, char *buf, size_t cap)
{
    char call[80];
    char answer[40];

    format_call(op, call, sizeof(call));
    format_answer(op, answer, sizeof(answer));
    (void)snprintf(buf, cap, "%s -> %s by client %" PRIu32 " (%.3f to %.3f ms)", call, answer,
                   op->client, (double)op->invoked_ns / 1e6, (double)op->returned_ns / 1e6);
    return buf;
}

void linear_print(const struct linear_history *h, uint32_t key, FILE *out)
{
    char text[200];

    for (size_t i = 0; i < h->count; i++) {
        if (h->ops[i].key == key) {
            fprintf(out, "  %6" PRIu64 " %6" PRIu64 "  %s\n", h->ops[i].invoked, h->ops[i].returned,
                    linear_format(&h->ops[i], text, sizeof(text)));
        }
    }
}
