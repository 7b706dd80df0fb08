#include <string.h>

#include <muster/error.h>

#include "core/buf.h"
#include "proto/stacks/python_internal.h"

#define SHIMS      4           /* frames of the interpreter's own, around the innermost one */
#define FRAME_MAX  256u        /* as in python_layout.c */
#define CODE_MAX   (64u << 20) /* bytes of instructions in a code object */
#define COPIES_MAX (1u << 20)  /* copies of one, in a build with free threads */
#define OUTER_MAX  (MU_STACKS_FRAMES_MAX - MU_STACKS_INNER_MAX)
#define TAGS       ((uint64_t)7) /* the low bits of a reference to what a frame runs, since 3.14 */
#define NO_FRAME   INT64_MIN     /* as an instruction: the frame is not one of Python's */

/* A chain of frames as it is followed. */
struct chain {
    struct mu_python_raw *raw; /* the innermost, then the outermost as a ring */
    uint32_t count;            /* all that were followed */
    uint64_t digest;           /* of all, but for the innermost instruction */
    bool endless;
};

/* Whether an address is that of a code object. */
static bool is_code(struct mu_python *p, uint64_t addr)
{
    uint64_t type;
    uint64_t name;
    char text[5];

    if (!mu_python_plausible(addr) || !mu_python_u64(p, addr + p->layout.object_type, &type)) {
        return false;
    }
    if (type == p->code_type && type != 0) {
        return true;
    }
    if (!mu_python_plausible(type) || !mu_python_u64(p, type + p->layout.type_name, &name) ||
        !mu_python_read(p, name, text, sizeof(text)) || memcmp(text, "code", sizeof(text)) != 0) {
        return false;
    }
    p->code_type = type;
    return true;
}

/* Where the instructions begin that a frame runs. */
static bool code_begin(struct mu_python *p, const uint8_t *frame, uint64_t code, uint64_t *ret)
{
    const struct mu_python_layout *l = &p->layout;
    uint64_t copies;
    uint32_t index;

    *ret = code + l->code_bytes;
    if (l->frame_tlbc == MU_PYTHON_NONE || l->code_tlbc == MU_PYTHON_NONE) {
        return true;
    }
    index = mu_get_u32(frame + l->frame_tlbc);
    if (index == 0) {
        return true;
    }
    return index < COPIES_MAX && mu_python_u64(p, code + l->code_tlbc, &copies) &&
           mu_python_plausible(copies) && mu_python_u64(p, copies + 8 + 8 * (uint64_t)index, ret);
}

/* Looks at a code object, once for each stack. False: it is none. */
static bool look_at_code(struct mu_python *p, uint64_t code, uint32_t *ret_first)
{
    struct mu_python_seen *seen = &p->seen[code / 16 % (sizeof(p->seen) / sizeof(p->seen[0]))];
    uint32_t first = 0;

    if (seen->code != code || code == 0) {
        if (!is_code(p, code) || (p->layout.code_first != MU_PYTHON_NONE &&
                                  !mu_python_u32(p, code + p->layout.code_first, &first))) {
            return false;
        }
        *seen = (struct mu_python_seen){code, first > CODE_MAX / 2 ? 0 : first * 2};
    }
    *ret_first = seen->first;
    return true;
}

/* The instruction that a frame is at, in bytes. False: it makes no sense. */
static bool instruction(struct mu_python *p, const uint8_t *frame, uint64_t code, uint32_t first,
                        int64_t *ret_at)
{
    const struct mu_python_layout *l = &p->layout;
    uint64_t begin;

    if (l->code_bytes == MU_PYTHON_NONE) {
        int32_t at = (int32_t)mu_get_u32(frame + l->frame_at);

        *ret_at = l->lines == MU_PYTHON_LINETABLE ? (int64_t)at * 2 : at;
        return *ret_at >= -2 && *ret_at < CODE_MAX;
    }
    if (!code_begin(p, frame, code, &begin)) {
        return false;
    }
    *ret_at = (int64_t)(mu_get_u64(frame + l->frame_at) - begin);
    if (*ret_at < -2 || *ret_at >= CODE_MAX) {
        return false;
    }
    /* Until its first instruction that counts, a frame is not complete; Python does not show it,
     * either. The frame of a generator (1) always is. */
    if (*ret_at < (frame[l->frame_owner] == 1 ? 0 : (int64_t)first)) {
        *ret_at = NO_FRAME;
    }
    return true;
}

/* What tells the frames of 3.8 and 3.9 from those of 3.10. */
static bool begins_with_its_code(struct mu_python *p, const uint8_t *frame, uint64_t code)
{
    uint32_t line;

    return mu_python_u32(p, code + p->layout.code_line, &line) &&
           line == mu_get_u32(frame + p->layout.frame_line);
}

/* Reads a frame. A frame without code of Python's has NO_FRAME. False: it makes no sense. */
static bool read_frame(struct mu_python *p, uint64_t addr, struct mu_python_raw *ret,
                       uint64_t *ret_back)
{
    const struct mu_python_layout *l = &p->layout;
    uint8_t frame[FRAME_MAX];
    uint32_t first;

    if (!mu_python_plausible(addr) || !mu_python_read(p, addr, frame, l->frame_bytes)) {
        return false;
    }
    *ret_back = mu_get_u64(frame + l->frame_back);
    if (l->owner_shim != MU_PYTHON_NONE && frame[l->frame_owner] >= l->owner_shim) {
        *ret = (struct mu_python_raw){.at = NO_FRAME};
        return true;
    }
    ret->code = mu_get_u64(frame + l->frame_code) & ~TAGS;
    return look_at_code(p, ret->code, &first) &&
           instruction(p, frame, ret->code, first, &ret->at) &&
           (!p->strict || l->frame_line == MU_PYTHON_NONE ||
            begins_with_its_code(p, frame, ret->code));
}

static uint64_t mix(uint64_t digest, uint64_t v)
{
    digest = (digest ^ v) * 0x9e3779b97f4a7c15u;
    return digest ^ digest >> 29;
}

static bool innermost(struct mu_python *p, uint64_t state, uint64_t *ret)
{
    const struct mu_python_layout *l = &p->layout;
    uint64_t cframe;

    if (l->thread_cframe == MU_PYTHON_NONE) {
        return mu_python_u64(p, state + l->thread_frame, ret);
    }
    return mu_python_u64(p, state + l->thread_cframe, &cframe) && mu_python_plausible(cframe) &&
           mu_python_u64(p, cframe + l->cframe_frame, ret);
}

/* Keeps the innermost frames in order, and of all others the last ones. */
static void keep(struct chain *c, const struct mu_python_raw *raw, uint64_t addr)
{
    uint32_t at = c->count < MU_STACKS_INNER_MAX
                      ? c->count
                      : MU_STACKS_INNER_MAX + (c->count - MU_STACKS_INNER_MAX) % OUTER_MAX;

    c->digest = mix(mix(c->digest, addr), raw->code);
    if (c->count > 0) {
        c->digest = mix(c->digest, (uint64_t)raw->at);
    }
    if (c->raw != NULL) {
        c->raw[at] = *raw;
    }
    c->count++;
}

static bool follow(struct mu_python *p, uint64_t state, struct chain *c)
{
    uint64_t addr;

    if (!innermost(p, state, &addr)) {
        return false;
    }
    for (uint32_t seen = 0; addr != 0; seen++) {
        struct mu_python_raw raw;
        uint64_t back;

        if (seen == MU_PYTHON_CHAIN_MAX) {
            c->endless = true;
            return true;
        }
        if (!read_frame(p, addr, &raw, &back)) {
            return false;
        }
        if (raw.at != NO_FRAME) {
            keep(c, &raw, addr);
        }
        addr = back;
    }
    return true;
}

/* --- names ------------------------------------------------------------------------------------ */

static bool put_str(struct mu_python *p, struct mu_python_stack *s, uint64_t field, bool tail,
                    struct mu_span *ret)
{
    size_t cap = tail ? MU_STACKS_FILE_MAX : MU_STACKS_NAME_MAX;
    size_t room = sizeof(s->texts) - s->texts_len;
    uint64_t addr;
    size_t len;

    if (!mu_python_u64(p, field, &addr) ||
        !mu_python_str(p, addr, tail, s->texts + s->texts_len, room < cap ? room : cap, &len)) {
        return false;
    }
    *ret = mu_span(s->texts + s->texts_len, len);
    s->texts_len += len;
    return true;
}

/* The names of a frame with the same code that was named before. */
static bool named_before(struct mu_python_stack *s, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++) {
        if (s->raw[j].code == s->raw[i].code) {
            s->frames[i].function = s->frames[j].function;
            s->frames[i].file = s->frames[j].file;
            return true;
        }
    }
    return false;
}

static bool name_frame(struct mu_python *p, struct mu_python_stack *s, uint32_t i)
{
    uint64_t code = s->raw[i].code;
    struct mu_stacks_frame *frame = &s->frames[i];

    return (named_before(s, i) ||
            (put_str(p, s, code + p->layout.code_name, false, &frame->function) &&
             put_str(p, s, code + p->layout.code_file, true, &frame->file))) &&
           mu_python_line(p, code, s->raw[i].at, &frame->line);
}

int mu_python_top(struct mu_python *p, const struct mu_python_thread *thread,
                  struct mu_python_stack *stack)
{
    struct mu_stacks_frame *frame = &stack->frames[0];
    uint64_t addr = 0;

    stack->frame_count = 0;
    stack->texts_len = 0;
    memset(p->seen, 0, sizeof(p->seen));
    if (!innermost(p, thread->state, &addr)) {
        return MUSTER_EAGAIN;
    }
    for (int i = 0; i < SHIMS && addr != 0; i++) {
        struct mu_python_raw raw;
        uint64_t code;

        if (!read_frame(p, addr, &raw, &addr)) {
            return MUSTER_EAGAIN;
        }
        code = raw.code;
        if (raw.at != NO_FRAME) {
            *frame = (struct mu_stacks_frame){0};
            stack->frame_count =
                put_str(p, stack, code + p->layout.code_name, false, &frame->function) &&
                put_str(p, stack, code + p->layout.code_file, true, &frame->file);
            return stack->frame_count == 1 ? 0 : MUSTER_EAGAIN;
        }
    }
    return MUSTER_EAGAIN;
}

/* Puts the outermost frames, which are a ring, into their order. */
static void unroll(struct mu_python_stack *s, uint32_t count)
{
    struct mu_python_raw outer[OUTER_MAX];
    uint32_t begin = (count - MU_STACKS_INNER_MAX) % OUTER_MAX;

    for (uint32_t i = 0; i < OUTER_MAX; i++) {
        outer[i] = s->raw[MU_STACKS_INNER_MAX + (begin + i) % OUTER_MAX];
    }
    memcpy(&s->raw[MU_STACKS_INNER_MAX], outer, sizeof(outer));
}

static void count_frames(struct mu_python_stack *s, const struct chain *c)
{
    s->endless = c->endless;
    s->frame_count = c->count < MU_STACKS_FRAMES_MAX ? c->count : MU_STACKS_FRAMES_MAX;
    s->omitted = c->count - s->frame_count;
    if (c->endless && c->count > MU_STACKS_INNER_MAX) {
        /* What was kept last is not the end of the chain. */
        s->frame_count = MU_STACKS_INNER_MAX;
        s->omitted = c->count - MU_STACKS_INNER_MAX;
    } else if (s->omitted != 0) {
        unroll(s, c->count);
    }
}

int mu_python_stack(struct mu_python *p, const struct mu_python_thread *thread,
                    struct mu_python_stack *stack)
{
    struct chain c = {.raw = stack->raw};
    struct chain again = {0};
    bool same;

    stack->frame_count = 0;
    stack->omitted = 0;
    stack->endless = false;
    stack->texts_len = 0;
    memset(p->seen, 0, sizeof(p->seen));
    if (!follow(p, thread->state, &c)) {
        return MUSTER_EAGAIN;
    }
    same = follow(p, thread->state, &again) && c.digest == again.digest;
    count_frames(stack, &c);
    for (uint32_t i = 0; i < stack->frame_count; i++) {
        if (!name_frame(p, stack, i)) {
            stack->frame_count = i;
            return MUSTER_EAGAIN;
        }
    }
    return same ? 0 : MUSTER_EAGAIN;
}
