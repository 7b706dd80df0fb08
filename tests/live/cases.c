#include <stdlib.h>
#include <string.h>

#include "storm.h"

#define STEPS_MAX 512
#define LINE_CAP  (2 * LANE_MAX + 128)

static void *need(void *memory)
{
    if (memory == NULL) {
        abort();
    }
    return memory;
}

uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *state, size_t bound)
{
    return bound == 0 ? 0 : (size_t)(draw(state) % bound);
}

/* -- files */

static void step_set(struct step *s, uint32_t after, int stream, const void *data, size_t len)
{
    s->after = after;
    s->stream = stream;
    s->len = len;
    s->data = need(malloc(len + 1));
    memcpy(s->data, data, len);
}

static bool read_send(const char *line, struct step *ret)
{
    static uint8_t data[LANE_MAX];
    char stream[16];
    unsigned after;
    int at = 0;
    size_t len = 0;

    if (sscanf(line, "send %u %15s %n", &after, stream, &at) != 2 || at == 0) {
        return false;
    }
    for (const char *p = line + at; len < sizeof(data); p += 2, len++) {
        unsigned value;

        if (sscanf(p, "%2x", &value) != 1) {
            break;
        }
        data[len] = (uint8_t)value;
    }
    step_set(ret, after, stream[0] == '-' ? -1 : (int)strtol(stream, NULL, 10), data, len);
    return true;
}

static void steps_add(struct step **steps, size_t *count, struct step step)
{
    *steps = need(realloc(*steps, (*count + 1) * sizeof(**steps)));
    (*steps)[(*count)++] = step;
}

void corpus_load(struct corpus *c, const char *path)
{
    FILE *file = fopen(path, "r");
    char *line = need(malloc(LINE_CAP));
    struct step step;
    char name[64];

    memset(c, 0, sizeof(*c));
    while (file != NULL && fgets(line, LINE_CAP, file) != NULL) {
        if (sscanf(line, "conv %63s", name) == 1) {
            c->convs = need(realloc(c->convs, (c->count + 1) * sizeof(*c->convs)));
            memset(&c->convs[c->count], 0, sizeof(*c->convs));
            memcpy(c->convs[c->count++].name, name, sizeof(name));
        } else if (c->count > 0 && read_send(line, &step)) {
            steps_add(&c->convs[c->count - 1].steps, &c->convs[c->count - 1].count, step);
        }
    }
    free(line);
    if (file == NULL || c->count == 0) {
        fprintf(stderr, "storm: there are no conversations in %s\n", path);
        exit(2);
    }
    fclose(file);
}

void corpus_free(struct corpus *c)
{
    for (size_t i = 0; i < c->count; i++) {
        for (size_t k = 0; k < c->convs[i].count; k++) {
            free(c->convs[i].steps[k].data);
        }
        free(c->convs[i].steps);
    }
    free(c->convs);
}

void case_write(const struct storm_case *c, FILE *file)
{
    fprintf(file, "case %llu\n", (unsigned long long)c->number);
    for (unsigned i = 0; i < c->count; i++) {
        const struct lane *lane = &c->lanes[i];

        fprintf(file, "lane %u %d %d %lld %u\n", lane->way, (int)lane->ending, lane->patient,
                (long long)lane->fault_at, lane->fault_xor);
        for (size_t k = 0; k < lane->count; k++) {
            const struct step *step = &lane->steps[k];

            fprintf(file, "send %u ", step->after);
            fprintf(file, step->stream < 0 ? "- " : "%d ", step->stream);
            for (size_t at = 0; at < step->len; at++) {
                fprintf(file, "%02x", step->data[at]);
            }
            fprintf(file, "\n");
        }
    }
}

bool case_read(struct storm_case *ret, FILE *file)
{
    char *line = need(malloc(LINE_CAP));
    bool begun = false;

    memset(ret, 0, sizeof(*ret));
    for (long at = ftell(file); fgets(line, LINE_CAP, file) != NULL; at = ftell(file)) {
        unsigned long long number;
        long long fault;
        unsigned way, xor;
        int ending, patient;
        struct step step;

        if (sscanf(line, "case %llu", &number) == 1) {
            if (begun) {
                fseek(file, at, SEEK_SET);
                break;
            }
            begun = true;
            ret->number = number;
        } else if (ret->count < LANES_MAX && sscanf(line, "lane %u %d %d %lld %u", &way, &ending,
                                                    &patient, &fault, &xor) == 5) {
            ret->lanes[ret->count++] = (struct lane){.way = way,
                                                     .ending = (enum ending)ending,
                                                     .patient = patient != 0,
                                                     .fault_at = fault,
                                                     .fault_xor = (uint8_t) xor };
        } else if (ret->count > 0 && read_send(line, &step)) {
            struct lane *lane = &ret->lanes[ret->count - 1];

            steps_add(&lane->steps, &lane->count, step);
        }
    }
    free(line);
    return begun;
}

void case_free(struct storm_case *c)
{
    for (unsigned i = 0; i < c->count; i++) {
        for (size_t k = 0; k < c->lanes[i].count; k++) {
            free(c->lanes[i].steps[k].data);
        }
        free(c->lanes[i].steps);
    }
    c->count = 0;
}

/* -- mutations */

static void put(uint8_t *at, uint64_t value, unsigned width, bool big)
{
    for (unsigned i = 0; i < width; i++) {
        at[big ? width - 1 - i : i] = (uint8_t)(value >> (8 * i));
    }
}

/* A number where the server may take one: a length, a count, an id. */
static void write_number(uint64_t *state, struct step *s)
{
    static const unsigned widths[] = {1, 2, 4, 8};
    static const uint64_t values[] = {0,          1,          2,          0x7f,       0x80,
                                      0xff,       0x7fff,     0x8000,     0xffff,     0x10000,
                                      0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32, 1ull << 62,
                                      1ull << 63, UINT64_MAX};
    unsigned width = widths[below(state, 4)];
    uint64_t value = values[below(state, sizeof(values) / sizeof(values[0]))];

    if (below(state, 3) == 0) {
        value = s->len + below(state, 9) - 4; /* near the truth */
    }
    if (s->len >= width) {
        put(s->data + below(state, s->len - width + 1), value, width, below(state, 2) == 0);
    }
}

static void replace(struct step *s, size_t at, size_t old, const uint8_t *with, size_t len)
{
    uint8_t *data;

    if (s->len - old + len > LANE_MAX / 4) {
        return;
    }
    data = need(malloc(s->len - old + len + 1));
    memcpy(data, s->data, at);
    memcpy(data + at, with, len);
    memcpy(data + at + len, s->data + at + old, s->len - at - old);
    free(s->data);
    s->data = data;
    s->len = s->len - old + len;
}

/* A piece of what anybody in the corpus said. */
static const uint8_t *borrow(uint64_t *state, const struct corpus *c, size_t *ret_len)
{
    const struct conv *conv = &c->convs[below(state, c->count)];
    const struct step *step;
    size_t at;

    *ret_len = 0;
    if (conv->count == 0) {
        return (const uint8_t *)"";
    }
    step = &conv->steps[below(state, conv->count)];
    at = below(state, step->len);
    *ret_len = 1 + below(state, step->len - at);
    if (step->len == 0) {
        *ret_len = 0;
    }
    return step->data + at;
}

/* Changes within one step. */
static void mutate_step(uint64_t *state, const struct corpus *c, struct step *s)
{
    size_t at = below(state, s->len);
    size_t span = 1 + below(state, s->len - at < 64 ? s->len - at : 64);
    size_t len;
    const uint8_t *other;

    if (s->len == 0) {
        return;
    }
    span = span > s->len - at ? s->len - at : span;
    switch (below(state, 10)) {
    case 0:
    case 1:
    case 2:
        s->data[at] ^= (uint8_t)(1u << below(state, 8));
        break;
    case 3:
        s->data[at] = (uint8_t)draw(state);
        break;
    case 4:
    case 5:
        write_number(state, s);
        break;
    case 6:
        replace(s, at, span, s->data, 0);
        break;
    case 7: { /* said twice, or many times */
        uint8_t copy[64];
        unsigned times = below(state, 8) == 0 ? 200 : 1;

        memcpy(copy, s->data + at, span);
        for (unsigned i = 0; i < times; i++) {
            replace(s, at, 0, copy, span);
        }
        break;
    }
    default:
        other = borrow(state, c, &len);
        replace(s, at, below(state, 2) == 0 ? 0 : span, other, len);
    }
}

static void remove_step(struct lane *lane, size_t at)
{
    free(lane->steps[at].data);
    memmove(&lane->steps[at], &lane->steps[at + 1],
            (lane->count - at - 1) * sizeof(lane->steps[0]));
    lane->count--;
}

static void insert_step(struct lane *lane, size_t at, const struct step *from)
{
    struct step copy;

    if (lane->count >= STEPS_MAX) {
        return;
    }
    step_set(&copy, from->after, from->stream, from->data, from->len);
    steps_add(&lane->steps, &lane->count, copy);
    memmove(&lane->steps[at + 1], &lane->steps[at],
            (lane->count - at - 1) * sizeof(lane->steps[0]));
    lane->steps[at] = copy;
}

/* Changes to the order of steps, and to how they are cut. */
static void mutate_order(uint64_t *state, const struct corpus *c, struct lane *lane)
{
    const struct conv *other = &c->convs[below(state, c->count)];
    size_t a = below(state, lane->count);
    size_t b = below(state, lane->count);
    struct step moved;

    if (lane->count == 0) {
        return;
    }
    switch (below(state, 6)) {
    case 0:
        remove_step(lane, a);
        break;
    case 1:
        insert_step(lane, b, &lane->steps[a]);
        break;
    case 2:
        moved = lane->steps[a];
        lane->steps[a] = lane->steps[b];
        lane->steps[b] = moved;
        break;
    case 3: /* it ends in the middle of something */
        while (lane->count > a + 1) {
            remove_step(lane, lane->count - 1);
        }
        lane->steps[a].len = below(state, lane->steps[a].len + 1);
        break;
    case 4: /* another one's words */
        if (other->count > 0) {
            insert_step(lane, b, &other->steps[below(state, other->count)]);
        }
        break;
    default: /* in two pieces, or in many */
        for (size_t k = below(state, 3) == 0 ? 8 : 1; k > 0 && lane->steps[a].len > 1; k--) {
            size_t cut = 1 + below(state, lane->steps[a].len - 1);
            struct step tail = lane->steps[a];

            tail.data += cut;
            tail.len -= cut;
            insert_step(lane, a + 1, &tail);
            lane->steps[a].len = cut;
        }
    }
}

/* The native wire's frames have a length and, in the first, the name of a session. What is changed
 * inside a frame is read only if the length is right. */
static void repair(uint64_t *state, struct lane *lane, const bool *whole)
{
    static const uint8_t magic[] = "MUSTER\r\n";
    size_t first = 0;

    /* Between peers, the name of the stream comes before it. */
    while (first < lane->count &&
           (lane->steps[first].len < 60 || memcmp(lane->steps[first].data, magic, 8) != 0)) {
        first++;
    }
    if (first < lane->count && below(state, 8) != 0) {
        for (size_t i = 36; i < 52; i++) {
            lane->steps[first].data[i] = (uint8_t)draw(state);
        }
    }
    for (size_t k = first; k < lane->count && k < STEPS_MAX && below(state, 4) != 0; k++) {
        size_t at = k == first ? 8 : 0;

        if (whole[k] && lane->steps[k].len >= at + 24) {
            put(lane->steps[k].data + at, lane->steps[k].len - at - 24, 4, false);
        }
    }
}

/* Which steps are one frame of the native wire each. */
static void find_frames(const struct lane *lane, bool whole[STEPS_MAX])
{
    for (size_t k = 0; k < lane->count && k < STEPS_MAX; k++) {
        const struct step *s = &lane->steps[k];
        size_t at = s->len > 8 && memcmp(s->data, "MUSTER\r\n", 8) == 0 ? 8 : 0;
        uint32_t len = 0;

        if (s->len >= at + 24) {
            memcpy(&len, s->data + at, sizeof(len));
        }
        whole[k] = s->len >= at + 24 && len == s->len - at - 24;
    }
}

static void make_lane(uint64_t *state, const struct corpus *c, struct lane *lane, unsigned ways)
{
    const struct conv *conv = &c->convs[below(state, c->count)];
    bool whole[STEPS_MAX] = {false};
    size_t from = 0, until = conv->count;
    size_t changes = below(state, 16) == 0 ? 0 : 1 + below(state, 6);

    lane->way = (unsigned)below(state, ways);
    lane->ending = (enum ending)(below(state, 64) == 0 ? END_LEAVE : below(state, END_LEAVE));
    lane->patient = below(state, 3) != 0;
    lane->fault_at = -1;
    if (below(state, 12) == 0) {
        lane->fault_at = (int64_t)below(state, below(state, 2) == 0 ? 64 : 1024);
        lane->fault_xor = (uint8_t)(1 + below(state, 255));
    }
    /* All of it, or how it begins and a part of the rest. */
    if (conv->count > 4 && below(state, 4) != 0) {
        from = 1 + below(state, conv->count - 1);
        until = from + 1 + below(state, 8);
        insert_step(lane, 0, &conv->steps[0]);
    }
    for (size_t k = from; k < conv->count && k < until; k++) {
        insert_step(lane, lane->count, &conv->steps[k]);
    }
    find_frames(lane, whole);
    while (changes-- > 0 && lane->count > 0) {
        if (below(state, 4) == 0) {
            mutate_order(state, c, lane);
            find_frames(lane, whole);
        } else {
            mutate_step(state, c, &lane->steps[below(state, lane->count)]);
        }
    }
    repair(state, lane, whole);
}

void case_make(struct storm_case *ret, const struct corpus *c, uint64_t seed, uint64_t number,
               unsigned ways)
{
    uint64_t state = seed * 0x2545f4914f6cdd1d + number;

    memset(ret, 0, sizeof(*ret));
    ret->number = number;
    ret->count = below(&state, 8) == 0 ? 1 + (unsigned)below(&state, LANES_MAX) : 1;
    for (unsigned i = 0; i < ret->count; i++) {
        make_lane(&state, c, &ret->lanes[i], ways);
    }
}
