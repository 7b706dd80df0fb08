#include "codec/bin/pickle.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/reader.h"

#define MARK          UINT32_MAX /* on the stack, where a run of items begins */
#define NO_RUN        UINT32_MAX
#define RUN_HEADER    2 /* where the next run begins, how many items this one has */
#define PROTOCOL_MIN  2
#define PROTOCOL_MAX  5
#define FIRST_CAP     64
#define NAME_LINE_MAX 256

/* Values that exist once, in the order in which they are made. */
enum constant { CONST_NONE, CONST_FALSE, CONST_TRUE, CONST_EMPTY_TUPLE };

struct machine {
    struct mu_pickle *p;
    struct mu_reader in;
    struct mu_pickle_numbers stack;
    struct mu_pickle_numbers memo;
    size_t at;        /* where the current opcode is */
    size_t frame_end; /* where the current frame ends */
    bool started;
    bool stopped;
    struct mu_errmsg *msg;
};

static const struct {
    const char *module;
    const char *name;
    enum mu_pickle_class type;
} classes[] = {
    {"torch.distributed.elastic.rendezvous.dynamic_rendezvous", "_RendezvousState",
     MU_PICKLE_CLASS_STATE},
    {"torch.distributed.elastic.rendezvous.dynamic_rendezvous", "_NodeDesc", MU_PICKLE_CLASS_NODE},
    {"datetime", "datetime", MU_PICKLE_CLASS_DATETIME},
    {"datetime", "timezone", MU_PICKLE_CLASS_TIMEZONE},
    {"datetime", "timedelta", MU_PICKLE_CLASS_TIMEDELTA},
    {"builtins", "set", MU_PICKLE_CLASS_SET},
    {"__builtin__", "set", MU_PICKLE_CLASS_SET},
    {"_codecs", "encode", MU_PICKLE_CLASS_ENCODE},
};

void mu_pickle_init(struct mu_pickle *p)
{
    *p = (struct mu_pickle){.root = MU_PICKLE_NOTHING};
}

void mu_pickle_fini(struct mu_pickle *p)
{
    mu_free(p->values);
    mu_free(p->items.data);
    mu_pickle_init(p);
}

static int corrupt(struct machine *m, const char *what)
{
    return mu_err(m->msg, MUSTER_ECORRUPT, "at byte %zu of the pickle: %s", m->at, what);
}

/* Makes room in an array, within the limit. Numbers stay below 2^32 - 1, so that the largest can
 * mean "no value". */
static int make_room(struct machine *m, void **array, size_t *cap, size_t len, size_t more,
                     size_t size)
{
    size_t want = *cap == 0 ? FIRST_CAP : *cap;
    size_t ceiling = m->p->memory_max - m->p->memory + *cap * size;
    void *grown;

    if (len + more <= *cap) {
        return 0;
    }
    while (want < len + more) {
        want *= 2;
    }
    if (want > ceiling / size || want > UINT32_MAX / 2) {
        return mu_err(m->msg, MUSTER_ELIMIT, "the pickle needs more than %zu bytes of memory",
                      m->p->memory_max);
    }
    grown = mu_realloc(*array, want * size);
    if (grown == NULL) {
        return mu_err(m->msg, MUSTER_ENOMEM, "there is no memory for the pickle");
    }
    m->p->memory += (want - *cap) * size;
    *array = grown;
    *cap = want;
    return 0;
}

static int make_numbers(struct machine *m, struct mu_pickle_numbers *n, size_t more)
{
    void *data = n->data;
    int err = make_room(m, &data, &n->cap, n->len, more, sizeof(*n->data));

    n->data = data;
    return err;
}

static int add_number(struct machine *m, struct mu_pickle_numbers *n, uint32_t number)
{
    int err = make_numbers(m, n, 1);

    if (err == 0) {
        n->data[n->len++] = number;
    }
    return err;
}

static int push(struct machine *m, uint32_t number)
{
    return add_number(m, &m->stack, number);
}

static int make_value(struct machine *m, struct mu_pickle_value value, uint32_t *ret_number)
{
    struct mu_pickle *p = m->p;
    void *data = p->values;
    int err = make_room(m, &data, &p->value_cap, p->value_count, 1, sizeof(value));

    p->values = data;
    if (err == 0) {
        *ret_number = (uint32_t)p->value_count;
        p->values[p->value_count++] = value;
    }
    return err;
}

static int push_value(struct machine *m, struct mu_pickle_value value)
{
    uint32_t number = 0;
    int err = make_value(m, value, &number);

    return err != 0 ? err : push(m, number);
}

static int pop(struct machine *m, uint32_t *ret_number)
{
    if (m->stack.len == 0 || m->stack.data[m->stack.len - 1] == MARK) {
        return corrupt(m, "there is nothing on the stack to take");
    }
    *ret_number = m->stack.data[--m->stack.len];
    return 0;
}

static int pop_kind(struct machine *m, enum mu_pickle_kind kind, const char *lacking,
                    uint32_t *ret_number)
{
    uint32_t number = 0;
    int err = pop(m, &number);

    if (err != 0) {
        return err;
    }
    if (!mu_pickle_is(m->p, number, kind)) {
        return corrupt(m, lacking);
    }
    *ret_number = number;
    return 0;
}

static int do_protocol(struct machine *m, unsigned arg)
{
    uint8_t protocol = mu_read_u8(&m->in);

    (void)arg;
    if (m->started || (!m->in.failed && (protocol < PROTOCOL_MIN || protocol > PROTOCOL_MAX))) {
        return mu_err(m->msg, MUSTER_ECORRUPT, "at byte %zu of the pickle: protocol %u", m->at,
                      protocol);
    }
    return 0;
}

/* A frame says how many bytes may be read at once. All are here already; this only checks. */
static int do_frame(struct machine *m, unsigned arg)
{
    uint64_t len = mu_read_u64(&m->in);

    (void)arg;
    if (m->at < m->frame_end) {
        return corrupt(m, "a frame begins inside another");
    }
    if (len > m->in.rest.len) {
        return corrupt(m, "a frame ends after the end of the pickle");
    }
    m->frame_end = m->p->in.len - m->in.rest.len + (size_t)len;
    return 0;
}

static int do_mark(struct machine *m, unsigned arg)
{
    (void)arg;
    return push(m, MARK);
}

static int do_constant(struct machine *m, unsigned number)
{
    return push(m, number);
}

static int push_int(struct machine *m, int64_t integer)
{
    return push_value(m,
                      (struct mu_pickle_value){.kind = MU_PICKLE_INT, .as = {.integer = integer}});
}

/* Little-endian; one or two bytes are unsigned, four are signed. */
static int do_int(struct machine *m, unsigned size)
{
    if (size == 1) {
        return push_int(m, mu_read_u8(&m->in));
    }
    if (size == 2) {
        return push_int(m, mu_read_u16(&m->in));
    }
    return push_int(m, (int32_t)mu_read_u32(&m->in));
}

static int do_long(struct machine *m, unsigned arg)
{
    struct mu_span bytes = mu_read_bytes(&m->in, mu_read_u8(&m->in));
    uint64_t bits = 0;

    (void)arg;
    if (bytes.len != 0 && (bytes.data[bytes.len - 1] & 0x80) != 0) {
        bits = UINT64_MAX;
    }
    for (size_t i = bytes.len; i-- > 0;) {
        /* Bytes above the eighth may only repeat the sign, as may the eighth's highest bit. */
        if (i >= 8 && bytes.data[i] != (uint8_t)bits) {
            return corrupt(m, "an integer does not fit into 64 bits");
        }
        if (i == 7 && ((bytes.data[i] ^ (uint8_t)(bits >> 56)) & 0x80) != 0) {
            return corrupt(m, "an integer does not fit into 64 bits");
        }
        bits = i >= 8 ? bits : bits << 8 | bytes.data[i];
    }
    return push_int(m, (int64_t)bits);
}

/* Eight bytes of IEEE 754, the highest first: the only number that is not little-endian. */
static int do_float(struct machine *m, unsigned arg)
{
    struct mu_span bytes = mu_read_bytes(&m->in, 8);
    struct mu_pickle_value value = {.kind = MU_PICKLE_FLOAT};
    uint64_t bits = 0;

    (void)arg;
    for (size_t i = 0; i < bytes.len; i++) {
        bits = bits << 8 | bytes.data[i];
    }
    memcpy(&value.as.real, &bits, sizeof(bits));
    return push_value(m, value);
}

static int push_bytes(struct machine *m, enum mu_pickle_kind kind, uint64_t len)
{
    size_t first = m->p->in.len - m->in.rest.len;
    struct mu_span bytes = mu_read_bytes(&m->in, len);

    return push_value(m, (struct mu_pickle_value){.kind = (uint8_t)kind,
                                                  .count = (uint32_t)bytes.len,
                                                  .as = {.held = {.first = (uint32_t)first}}});
}

static int do_text(struct machine *m, unsigned arg)
{
    (void)arg;
    return push_bytes(m, MU_PICKLE_TEXT, mu_read_u8(&m->in));
}

static int do_long_text(struct machine *m, unsigned arg)
{
    (void)arg;
    return push_bytes(m, MU_PICKLE_TEXT, mu_read_u32(&m->in));
}

static int do_bytes(struct machine *m, unsigned arg)
{
    (void)arg;
    return push_bytes(m, MU_PICKLE_BYTES, mu_read_u8(&m->in));
}

static int do_tuple(struct machine *m, unsigned count)
{
    struct mu_pickle_numbers *items = &m->p->items;
    struct mu_pickle_value tuple = {
        .kind = MU_PICKLE_TUPLE, .count = count, .as = {.held = {.first = (uint32_t)items->len}}};
    int err = make_numbers(m, items, count);

    items->len += err == 0 ? count : 0;
    for (unsigned i = count; err == 0 && i-- > 0;) {
        err = pop(m, &items->data[tuple.as.held.first + i]);
    }
    return err != 0 ? err : push_value(m, tuple);
}

static int do_empty(struct machine *m, unsigned kind)
{
    return push_value(m,
                      (struct mu_pickle_value){.kind = (uint8_t)kind,
                                               .as = {.held = {.first = NO_RUN, .last = NO_RUN}}});
}

/* Moves the `count` topmost items of the stack to the end of the container below them (and below
 * the mark, if there is one). */
static int fill(struct machine *m, enum mu_pickle_kind kind, size_t count, bool marked)
{
    struct mu_pickle_numbers *items = &m->p->items;
    size_t below = count + (marked ? 1 : 0);
    size_t run = items->len;
    struct mu_pickle_value *box;
    uint32_t number;
    int err;

    if (m->stack.len <= below) {
        return corrupt(m, "there is nothing on the stack to fill");
    }
    number = m->stack.data[m->stack.len - below - 1];
    if (number == MARK || !mu_pickle_is(m->p, number, kind)) {
        return corrupt(m, "the container to fill is of another kind");
    }
    if (kind == MU_PICKLE_DICT && count % 2 != 0) {
        return corrupt(m, "a key has no value");
    }
    err = make_numbers(m, items, RUN_HEADER + count);
    if (err != 0) {
        return err;
    }
    box = mu_pickle_at(m->p, number);
    if (count != 0) {
        const uint32_t *from = &m->stack.data[m->stack.len - count];

        items->data[items->len++] = NO_RUN;
        items->data[items->len++] = (uint32_t)count;
        for (size_t i = 0; i < count; i++) {
            items->data[items->len++] = from[i];
        }
        if (box->as.held.first == NO_RUN) {
            box->as.held.first = (uint32_t)run;
        } else {
            items->data[box->as.held.last] = (uint32_t)run;
        }
        box->as.held.last = (uint32_t)run;
        box->count += (uint32_t)count;
    }
    m->stack.len -= below;
    return 0;
}

static int do_append(struct machine *m, unsigned arg)
{
    (void)arg;
    if (m->stack.len != 0 && m->stack.data[m->stack.len - 1] == MARK) {
        return corrupt(m, "there is nothing on the stack to take");
    }
    return fill(m, MU_PICKLE_LIST, 1, false);
}

static int do_setitem(struct machine *m, unsigned arg)
{
    (void)arg;
    for (size_t i = 1; i <= 2 && i <= m->stack.len; i++) {
        if (m->stack.data[m->stack.len - i] == MARK) {
            return corrupt(m, "there is nothing on the stack to take");
        }
    }
    return fill(m, MU_PICKLE_DICT, 2, false);
}

/* How many values are above the topmost mark. */
static int count_to_mark(struct machine *m, size_t *ret_count)
{
    size_t count = 0;

    while (count < m->stack.len && m->stack.data[m->stack.len - count - 1] != MARK) {
        count++;
    }
    if (count == m->stack.len) {
        return corrupt(m, "there is no mark on the stack");
    }
    *ret_count = count;
    return 0;
}

/* Moves everything above the topmost mark into the container below it. */
static int do_fill(struct machine *m, unsigned kind)
{
    size_t count = 0;
    int err = count_to_mark(m, &count);

    return err != 0 ? err : fill(m, (enum mu_pickle_kind)kind, count, true);
}

/* Makes a tuple of everything above the topmost mark, in place of the mark. */
static int do_long_tuple(struct machine *m, unsigned arg)
{
    struct mu_pickle_value tuple = {.kind = MU_PICKLE_TUPLE};
    struct mu_pickle_numbers *items = &m->p->items;
    size_t count = 0;
    int err = count_to_mark(m, &count);

    (void)arg;
    if (err == 0) {
        err = make_numbers(m, items, count);
    }
    if (err != 0) {
        return err;
    }
    tuple.count = (uint32_t)count;
    tuple.as.held.first = (uint32_t)items->len;
    m->stack.len -= count;
    for (size_t i = 0; i < count; i++) {
        items->data[items->len++] = m->stack.data[m->stack.len + i];
    }
    m->stack.len--;
    return push_value(m, tuple);
}

static int push_class(struct machine *m, struct mu_span module, struct mu_span name)
{
    char quoted_module[96];
    char quoted_name[96];

    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        if (mu_span_eq(module, mu_span_str(classes[i].module)) &&
            mu_span_eq(name, mu_span_str(classes[i].name))) {
            return push_value(m, (struct mu_pickle_value){.kind = MU_PICKLE_CLASS,
                                                          .type = (uint8_t)classes[i].type});
        }
    }
    (void)mu_span_quote(quoted_module, sizeof(quoted_module), module);
    (void)mu_span_quote(quoted_name, sizeof(quoted_name), name);
    /* The two quoted texts become one: the closing quote of the first and the opening of the
     * second are left out. */
    return mu_err(m->msg, MUSTER_ECORRUPT, "class %.*s.%s is not one that is read here",
                  (int)strlen(quoted_module) - 1, quoted_module, quoted_name + 1);
}

static int do_class(struct machine *m, unsigned arg)
{
    static const char lacking[] = "a class is not named by two texts";
    uint32_t name = 0;
    uint32_t module = 0;
    int err = pop_kind(m, MU_PICKLE_TEXT, lacking, &name);

    (void)arg;
    if (err == 0) {
        err = pop_kind(m, MU_PICKLE_TEXT, lacking, &module);
    }
    if (err == 0) {
        err = push_class(m, mu_pickle_bytes(m->p, module), mu_pickle_bytes(m->p, name));
    }
    return err;
}

static struct mu_span read_line(struct mu_reader *r)
{
    size_t most = r->rest.len < NAME_LINE_MAX ? r->rest.len : NAME_LINE_MAX;
    const uint8_t *end = most == 0 ? NULL : memchr(r->rest.data, '\n', most);
    struct mu_span line = {0};

    if (end == NULL) {
        r->failed = true;
        return line;
    }
    line = mu_read_bytes(r, (uint64_t)(end - r->rest.data));
    (void)mu_read_u8(r);
    return line;
}

static int do_class_lines(struct machine *m, unsigned arg)
{
    struct mu_span module = read_line(&m->in);
    struct mu_span name = read_line(&m->in);

    (void)arg;
    return m->in.failed ? 0 : push_class(m, module, name);
}

/* Whether objects of the class are made empty and then given attributes. */
static bool has_attributes(unsigned type)
{
    return type == MU_PICKLE_CLASS_STATE || type == MU_PICKLE_CLASS_NODE;
}

/* Makes an object of a class from a tuple of arguments, by __new__() or by a call. */
static int do_object(struct machine *m, unsigned by_new)
{
    struct mu_pickle_value object = {.kind = MU_PICKLE_OBJECT};
    uint32_t args = 0;
    uint32_t class = 0;
    int err = pop_kind(m, MU_PICKLE_TUPLE, "the arguments are not a tuple", &args);

    if (err == 0) {
        err = pop_kind(m, MU_PICKLE_CLASS, "an object to make has no class", &class);
    }
    if (err != 0) {
        return err;
    }
    object.type = mu_pickle_at(m->p, class)->type;
    if (has_attributes(object.type) != (by_new != 0)) {
        return corrupt(m, "an object is not made in the way of its class");
    }
    if (by_new != 0 && mu_pickle_at(m->p, args)->count != 0) {
        return corrupt(m, "an object is made with arguments that its class does not take");
    }
    object.as.object.args = args;
    object.as.object.attributes = MU_PICKLE_NOTHING;
    return push_value(m, object);
}

static int do_build(struct machine *m, unsigned arg)
{
    struct mu_pickle_value *object;
    uint32_t attributes = 0;
    uint32_t number = 0;
    int err = pop_kind(m, MU_PICKLE_DICT, "the attributes are not a dict", &attributes);

    (void)arg;
    if (err == 0) {
        err = pop_kind(m, MU_PICKLE_OBJECT,
                       "attributes are given to something that is not an object", &number);
    }
    if (err != 0) {
        return err;
    }
    object = mu_pickle_at(m->p, number);
    if (!has_attributes(object->type) || object->as.object.attributes != MU_PICKLE_NOTHING) {
        return corrupt(m, "an object is given attributes that its class does not take");
    }
    object->as.object.attributes = attributes;
    return push(m, number);
}

/* Remembers the topmost value. Python numbers remembered values without gaps, so a number beyond
 * the next is an attempt to exhaust our memory. */
static int remember(struct machine *m, uint64_t slot)
{
    uint32_t number = 0;
    int err = pop(m, &number);

    if (err != 0) {
        return err;
    }
    m->stack.len++;
    if (slot > m->memo.len) {
        return corrupt(m, "a value is remembered out of order");
    }
    if (slot < m->memo.len) {
        m->memo.data[slot] = number;
        return 0;
    }
    return add_number(m, &m->memo, number);
}

static int do_memoize(struct machine *m, unsigned arg)
{
    (void)arg;
    return remember(m, m->memo.len);
}

static int do_put(struct machine *m, unsigned size)
{
    uint64_t slot = size == 1 ? mu_read_u8(&m->in) : mu_read_u32(&m->in);

    return m->in.failed ? 0 : remember(m, slot);
}

static int do_get(struct machine *m, unsigned size)
{
    uint64_t slot = size == 1 ? mu_read_u8(&m->in) : mu_read_u32(&m->in);

    if (m->in.failed) {
        return 0;
    }
    if (slot >= m->memo.len) {
        return corrupt(m, "it refers to a value that does not exist");
    }
    return push(m, m->memo.data[slot]);
}

static int do_stop(struct machine *m, unsigned arg)
{
    int err = pop(m, &m->p->root);

    (void)arg;
    if (err != 0) {
        return err;
    }
    if (m->stack.len != 0) {
        return corrupt(m, "it ends with values left over");
    }
    m->stopped = true;
    return 0;
}

static const struct {
    int (*run)(struct machine *m, unsigned arg);
    unsigned arg;
} opcodes[256] = {
    ['('] = {do_mark, 0},
    [')'] = {do_constant, CONST_EMPTY_TUPLE},
    ['.'] = {do_stop, 0},
    ['C'] = {do_bytes, 0},
    ['G'] = {do_float, 0},
    ['J'] = {do_int, 4},
    ['K'] = {do_int, 1},
    ['M'] = {do_int, 2},
    ['N'] = {do_constant, CONST_NONE},
    ['R'] = {do_object, 0},
    ['X'] = {do_long_text, 0},
    [']'] = {do_empty, MU_PICKLE_LIST},
    ['a'] = {do_append, 0},
    ['b'] = {do_build, 0},
    ['c'] = {do_class_lines, 0},
    ['e'] = {do_fill, MU_PICKLE_LIST},
    ['h'] = {do_get, 1},
    ['j'] = {do_get, 4},
    ['q'] = {do_put, 1},
    ['r'] = {do_put, 4},
    ['s'] = {do_setitem, 0},
    ['t'] = {do_long_tuple, 0},
    ['u'] = {do_fill, MU_PICKLE_DICT},
    ['}'] = {do_empty, MU_PICKLE_DICT},
    [0x80] = {do_protocol, 0},
    [0x81] = {do_object, 1},
    [0x85] = {do_tuple, 1},
    [0x86] = {do_tuple, 2},
    [0x87] = {do_tuple, 3},
    [0x88] = {do_constant, CONST_TRUE},
    [0x89] = {do_constant, CONST_FALSE},
    [0x8a] = {do_long, 0},
    [0x8c] = {do_text, 0},
    [0x8f] = {do_empty, MU_PICKLE_SET},
    [0x90] = {do_fill, MU_PICKLE_SET},
    [0x93] = {do_class, 0},
    [0x94] = {do_memoize, 0},
    [0x95] = {do_frame, 0},
};

static int make_constants(struct machine *m)
{
    static const struct mu_pickle_value constants[] = {
        [CONST_NONE] = {.kind = MU_PICKLE_NONE},
        [CONST_FALSE] = {.kind = MU_PICKLE_BOOL},
        [CONST_TRUE] = {.kind = MU_PICKLE_BOOL, .as = {.integer = 1}},
        [CONST_EMPTY_TUPLE] = {.kind = MU_PICKLE_TUPLE},
    };
    uint32_t number;
    int err = 0;

    for (size_t i = 0; err == 0 && i < sizeof(constants) / sizeof(constants[0]); i++) {
        err = make_value(m, constants[i], &number);
    }
    return err;
}

static int run_opcode(struct machine *m)
{
    uint8_t opcode;
    int err;

    m->at = m->p->in.len - m->in.rest.len;
    opcode = mu_read_u8(&m->in);
    if (m->in.failed) {
        return corrupt(m, "it ends too early");
    }
    if (!m->started && opcode != 0x80) {
        return corrupt(m, "it does not begin with its protocol");
    }
    if (opcodes[opcode].run == NULL) {
        return mu_err(m->msg, MUSTER_ECORRUPT,
                      "at byte %zu of the pickle: opcode 0x%02x is not one that is read here",
                      m->at, opcode);
    }
    err = opcodes[opcode].run(m, opcodes[opcode].arg);
    m->started = true;
    if (m->in.failed) {
        return corrupt(m, "it ends in the middle of an opcode");
    }
    return err;
}

int mu_pickle_read(struct mu_pickle *p, struct mu_span in, size_t memory_max,
                   struct mu_errmsg *reterr_msg)
{
    struct machine m = {.p = p, .in = mu_reader(in), .msg = reterr_msg};
    int err;

    mu_pickle_fini(p);
    p->in = in;
    p->memory_max = memory_max;
    if (in.len > UINT32_MAX / 2) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "a pickle of %zu bytes is too long", in.len);
    }
    err = make_constants(&m);
    while (err == 0 && !m.stopped) {
        err = run_opcode(&m);
    }
    if (err == 0 && m.in.rest.len != 0) {
        m.at = in.len - m.in.rest.len;
        err = corrupt(&m, "there are bytes after its end");
    }
    mu_free(m.stack.data);
    mu_free(m.memo.data);
    return err;
}

struct mu_pickle_walk mu_pickle_walk(const struct mu_pickle *p, uint32_t number)
{
    return (struct mu_pickle_walk){.run = p->values[number].as.held.first};
}

uint32_t mu_pickle_next(const struct mu_pickle *p, struct mu_pickle_walk *w)
{
    const uint32_t *items = p->items.data;

    if (w->run == NO_RUN) {
        return MU_PICKLE_NOTHING;
    }
    if (w->index == items[w->run + 1]) {
        w->run = items[w->run];
        w->index = 0;
        if (w->run == NO_RUN) {
            return MU_PICKLE_NOTHING;
        }
    }
    return items[w->run + RUN_HEADER + w->index++];
}

uint32_t mu_pickle_get(const struct mu_pickle *p, uint32_t dict, const char *key)
{
    struct mu_span want = mu_span_str(key);
    struct mu_pickle_walk w = mu_pickle_walk(p, dict);
    uint32_t found = MU_PICKLE_NOTHING;

    for (uint32_t k = mu_pickle_next(p, &w); k != MU_PICKLE_NOTHING; k = mu_pickle_next(p, &w)) {
        uint32_t value = mu_pickle_next(p, &w);

        if (mu_pickle_is(p, k, MU_PICKLE_TEXT) && mu_span_eq(mu_pickle_bytes(p, k), want)) {
            found = value;
        }
    }
    return found;
}
