/*
 * Writes what Python's pickle.dumps() would write: every object in the same order with the same
 * opcodes, repeated objects as references, in frames of 64 KiB. Other agents only need something
 * that they can load; identical bytes let a test compare them with Python's.
 */
#include "codec/rdzv/state.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/civil.h"

#define PROTOCOL     4
#define FRAME_TARGET (64u << 10)
#define FRAME_HEADER 9
#define BATCH        1000 /* items between a mark and the opcode that takes them */
#define UNSAVED      UINT32_MAX
#define OPCODE_MAX   16 /* bytes of the longest opcode with its operand, except for texts */

enum opcode {
    OP_MARK = '(',
    OP_EMPTY_TUPLE = ')',
    OP_STOP = '.',
    OP_SHORT_BINBYTES = 'C',
    OP_BININT = 'J',
    OP_BININT1 = 'K',
    OP_BININT2 = 'M',
    OP_NONE = 'N',
    OP_REDUCE = 'R',
    OP_BINUNICODE = 'X',
    OP_BUILD = 'b',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_SETITEM = 's',
    OP_SETITEMS = 'u',
    OP_EMPTY_DICT = '}',
    OP_PROTO = 0x80,
    OP_NEWOBJ = 0x81,
    OP_TUPLE1 = 0x85,
    OP_TUPLE2 = 0x86,
    OP_TUPLE3 = 0x87,
    OP_NEWTRUE = 0x88,
    OP_NEWFALSE = 0x89,
    OP_LONG1 = 0x8a,
    OP_SHORT_BINUNICODE = 0x8c,
    OP_EMPTY_SET = 0x8f,
    OP_ADDITEMS = 0x90,
    OP_STACK_GLOBAL = 0x93,
    OP_MEMOIZE = 0x94,
    OP_FRAME = 0x95,
};

/* Objects that are written once in a state and then referred to: texts, classes, the time zone. A
 * class has the name of its module twice if that is its own name too, as datetime's is. */
enum once {
    MODULE_TORCH,
    NAME_STATE,
    NAME_NODE,
    MODULE_DATETIME,
    NAME_DATETIME,
    NAME_TIMEZONE,
    NAME_TIMEDELTA,
    NAME_ROUND,
    NAME_COMPLETE,
    NAME_DEADLINE,
    NAME_CLOSED,
    NAME_PARTICIPANTS,
    NAME_WAIT_LIST,
    NAME_REDUNDANCY_LIST,
    NAME_LAST_HEARTBEATS,
    NAME_FQDN,
    NAME_ADDR,
    NAME_PID,
    NAME_LOCAL_ID,
    CLASS_STATE,
    CLASS_NODE,
    CLASS_DATETIME,
    CLASS_TIMEZONE,
    CLASS_TIMEDELTA,
    UTC,
    ONCE_COUNT,
};

static const char *const texts[] = {
    [MODULE_TORCH] = "torch.distributed.elastic.rendezvous.dynamic_rendezvous",
    [NAME_STATE] = "_RendezvousState",
    [NAME_NODE] = "_NodeDesc",
    [MODULE_DATETIME] = "datetime",
    [NAME_DATETIME] = "datetime",
    [NAME_TIMEZONE] = "timezone",
    [NAME_TIMEDELTA] = "timedelta",
    [NAME_ROUND] = "round",
    [NAME_COMPLETE] = "complete",
    [NAME_DEADLINE] = "deadline",
    [NAME_CLOSED] = "closed",
    [NAME_PARTICIPANTS] = "participants",
    [NAME_WAIT_LIST] = "wait_list",
    [NAME_REDUNDANCY_LIST] = "redundancy_list",
    [NAME_LAST_HEARTBEATS] = "last_heartbeats",
    [NAME_FQDN] = "fqdn",
    [NAME_ADDR] = "addr",
    [NAME_PID] = "pid",
    [NAME_LOCAL_ID] = "local_id",
};

static const struct {
    enum once module;
    enum once name;
} class_names[] = {
    [CLASS_STATE] = {MODULE_TORCH, NAME_STATE},
    [CLASS_NODE] = {MODULE_TORCH, NAME_NODE},
    [CLASS_DATETIME] = {MODULE_DATETIME, NAME_DATETIME},
    [CLASS_TIMEZONE] = {MODULE_DATETIME, NAME_TIMEZONE},
    [CLASS_TIMEDELTA] = {MODULE_DATETIME, NAME_TIMEDELTA},
};

struct encoder {
    struct mu_buf *out;
    size_t start; /* where in `out` the pickle begins */
    size_t frame; /* where in `out` the current frame begins */
    bool framed;
    int err;        /* the first failure; nothing is written after it */
    uint32_t saved; /* how many objects have been remembered */
    uint32_t once[ONCE_COUNT];
    uint32_t *addrs; /* for each member: the number under which its address is remembered */
    uint32_t *nodes; /* and that of the node itself */
    const struct mu_rdzv_state *s;
    enum mu_rdzv_dialect dialect;
};

static bool make_room(struct encoder *e, size_t n)
{
    if (e->err == 0 && e->out->len - e->start + n > MU_RDZV_STATE_BYTES_MAX) {
        e->err = MUSTER_ELIMIT;
    }
    if (e->err == 0) {
        e->err = mu_buf_reserve(e->out, n);
    }
    return e->err == 0;
}

/* Makes room for an opcode, and for the header of the frame that it may begin. */
static bool begin_opcode(struct encoder *e, size_t n)
{
    if (!make_room(e, n + FRAME_HEADER)) {
        return false;
    }
    if (!e->framed) {
        e->framed = true;
        e->frame = e->out->len;
        mu_buf_put_u8(e->out, OP_FRAME);
        mu_buf_put_u64(e->out, 0);
    }
    return true;
}

static void end_frame(struct encoder *e)
{
    size_t len = e->out->len - e->frame - FRAME_HEADER;

    mu_put_u64(e->out->data + e->out->head + e->frame + 1, len);
    e->framed = false;
}

/* Called before each object: a full frame ends here, never inside an object. */
static void begin_object(struct encoder *e)
{
    if (e->err == 0 && e->framed && e->out->len - e->frame - FRAME_HEADER >= FRAME_TARGET) {
        end_frame(e);
    }
}

static void put_opcode(struct encoder *e, enum opcode opcode)
{
    if (begin_opcode(e, 1)) {
        mu_buf_put_u8(e->out, (uint8_t)opcode);
    }
}

static uint32_t memoize(struct encoder *e)
{
    put_opcode(e, OP_MEMOIZE);
    return e->saved++;
}

/* An object that has no parts, and is never referred to. */
static void save_plain(struct encoder *e, enum opcode opcode)
{
    begin_object(e);
    put_opcode(e, opcode);
}

static void save_bool(struct encoder *e, bool value)
{
    save_plain(e, value ? OP_NEWTRUE : OP_NEWFALSE);
}

static void save_int(struct encoder *e, int64_t value)
{
    size_t size = 8;

    begin_object(e);
    if (!begin_opcode(e, OPCODE_MAX)) {
        return;
    }
    if (value >= 0 && value <= UINT8_MAX) {
        mu_buf_put_u8(e->out, OP_BININT1);
        mu_buf_put_u8(e->out, (uint8_t)value);
    } else if (value >= 0 && value <= UINT16_MAX) {
        mu_buf_put_u8(e->out, OP_BININT2);
        mu_buf_put_u16(e->out, (uint16_t)value);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        mu_buf_put_u8(e->out, OP_BININT);
        mu_buf_put_u32(e->out, (uint32_t)value);
    } else {
        /* Finds the fewest bytes that keep the sign. */
        while (value >> (8 * size - 9) == 0 || value >> (8 * size - 9) == -1) {
            size--;
        }
        mu_buf_put_u8(e->out, OP_LONG1);
        mu_buf_put_u8(e->out, (uint8_t)size);
        for (size_t i = 0; i < size; i++) {
            mu_buf_put_u8(e->out, (uint8_t)((uint64_t)value >> (8 * i)));
        }
    }
}

/* Refers to an object that was remembered. */
static void save_reference(struct encoder *e, uint32_t number)
{
    begin_object(e);
    if (!begin_opcode(e, OPCODE_MAX)) {
        return;
    }
    if (number <= UINT8_MAX) {
        mu_buf_put_u8(e->out, OP_BINGET);
        mu_buf_put_u8(e->out, (uint8_t)number);
    } else {
        mu_buf_put_u8(e->out, OP_LONG_BINGET);
        mu_buf_put_u32(e->out, number);
    }
}

/* Writes a text, or a reference to it if it was written before; `number` remembers that. */
static void save_text(struct encoder *e, const char *text, uint32_t *number)
{
    size_t len = strlen(text);

    if (*number != UNSAVED) {
        save_reference(e, *number);
        return;
    }
    begin_object(e);
    if (!begin_opcode(e, OPCODE_MAX + len)) {
        return;
    }
    if (len <= UINT8_MAX) {
        mu_buf_put_u8(e->out, OP_SHORT_BINUNICODE);
        mu_buf_put_u8(e->out, (uint8_t)len);
    } else {
        mu_buf_put_u8(e->out, OP_BINUNICODE);
        mu_buf_put_u32(e->out, (uint32_t)len);
    }
    mu_buf_put(e->out, mu_span(text, len));
    *number = memoize(e);
}

static void save_name(struct encoder *e, enum once name)
{
    save_text(e, texts[name], &e->once[name]);
}

static void save_class(struct encoder *e, enum once class)
{
    if (e->once[class] != UNSAVED) {
        save_reference(e, e->once[class]);
        return;
    }
    save_name(e, class_names[class].module);
    save_name(e, class_names[class].name);
    put_opcode(e, OP_STACK_GLOBAL);
    e->once[class] = memoize(e);
}

/* Calls the class below the last `count` values with them. */
static uint32_t put_call(struct encoder *e, enum opcode tuple)
{
    put_opcode(e, tuple);
    (void)memoize(e);
    put_opcode(e, OP_REDUCE);
    return memoize(e);
}

/* timezone(timedelta(0, 0, 0)). */
static void save_utc(struct encoder *e)
{
    if (e->once[UTC] != UNSAVED) {
        save_reference(e, e->once[UTC]);
        return;
    }
    begin_object(e);
    save_class(e, CLASS_TIMEZONE);
    save_class(e, CLASS_TIMEDELTA);
    for (int i = 0; i < 3; i++) {
        save_int(e, 0);
    }
    (void)put_call(e, OP_TUPLE3);
    e->once[UTC] = put_call(e, OP_TUPLE1);
}

static void save_time(struct encoder *e, mu_wall_t wall)
{
    struct mu_civil c;
    int err = mu_civil_from_us((int64_t)(wall.ns / 1000), &c);

    MU_ASSERT(err == 0); /* all of mu_wall_t lies before the year 2555 */
    save_class(e, CLASS_DATETIME);
    begin_object(e);
    if (begin_opcode(e, OPCODE_MAX)) {
        const uint8_t packed[] = {(uint8_t)(c.year >> 8),
                                  (uint8_t)c.year,
                                  (uint8_t)c.month,
                                  (uint8_t)c.day,
                                  (uint8_t)c.hour,
                                  (uint8_t)c.minute,
                                  (uint8_t)c.second,
                                  (uint8_t)(c.microsecond >> 16),
                                  (uint8_t)(c.microsecond >> 8),
                                  (uint8_t)c.microsecond};

        mu_buf_put_u8(e->out, OP_SHORT_BINBYTES);
        mu_buf_put_u8(e->out, sizeof(packed));
        mu_buf_put(e->out, mu_span(packed, sizeof(packed)));
    }
    (void)memoize(e);
    if (e->dialect == MU_RDZV_DIALECT_2) {
        save_utc(e);
    }
    (void)put_call(e, e->dialect == MU_RDZV_DIALECT_2 ? OP_TUPLE2 : OP_TUPLE1);
}

/* Begins an object that is made empty; its attributes follow. */
static uint32_t begin_instance(struct encoder *e, enum once class)
{
    uint32_t number;

    save_class(e, class);
    save_plain(e, OP_EMPTY_TUPLE);
    put_opcode(e, OP_NEWOBJ);
    number = memoize(e);
    save_plain(e, OP_EMPTY_DICT);
    (void)memoize(e);
    put_opcode(e, OP_MARK);
    return number;
}

static void end_instance(struct encoder *e)
{
    put_opcode(e, OP_SETITEMS);
    put_opcode(e, OP_BUILD);
}

static void save_node(struct encoder *e, size_t member)
{
    const struct mu_rdzv_node *node = &e->s->members[member].node;
    uint32_t number;

    if (e->nodes[member] != UNSAVED && !e->s->nodes_repeated) {
        save_reference(e, e->nodes[member]);
        return;
    }
    number = begin_instance(e, CLASS_NODE);
    save_name(e, e->dialect == MU_RDZV_DIALECT_1_13 ? NAME_FQDN : NAME_ADDR);
    save_text(e, node->addr, &e->addrs[member]);
    save_name(e, NAME_PID);
    save_int(e, node->pid);
    save_name(e, NAME_LOCAL_ID);
    save_int(e, node->local_id);
    end_instance(e);
    e->nodes[member] = number;
}

static bool is_listed(const struct mu_rdzv_member *m, enum once list)
{
    return list == NAME_PARTICIPANTS      ? m->participant
           : list == NAME_WAIT_LIST       ? m->waiting
           : list == NAME_LAST_HEARTBEATS ? m->has_heartbeat
                                          : m->spare;
}

static void save_item(struct encoder *e, size_t member, enum once list)
{
    save_node(e, member);
    if (list == NAME_PARTICIPANTS) {
        save_int(e, e->s->members[member].rank);
    } else if (list == NAME_LAST_HEARTBEATS) {
        save_time(e, e->s->members[member].heartbeat);
    }
}

/*
 * Writes the members of a list, as a dict or as a set. Items come in batches, and another batch,
 * which may be empty, follows a full one; but a single item of a dict comes without a batch.
 */
static void save_list(struct encoder *e, enum once list)
{
    bool dict = list == NAME_PARTICIPANTS || list == NAME_LAST_HEARTBEATS;
    enum opcode take = dict ? OP_SETITEMS : OP_ADDITEMS;
    size_t total = 0;
    size_t in_batch = 0;

    save_plain(e, dict ? OP_EMPTY_DICT : OP_EMPTY_SET);
    (void)memoize(e);
    for (size_t i = 0; i < e->s->member_count; i++) {
        total += is_listed(&e->s->members[i], list) ? 1 : 0;
    }
    if (total == 0) {
        return;
    }
    if (!dict || total > 1) {
        put_opcode(e, OP_MARK);
    } else {
        take = OP_SETITEM;
    }
    for (size_t i = 0; i < e->s->member_count && e->err == 0; i++) {
        if (!is_listed(&e->s->members[i], list)) {
            continue;
        }
        save_item(e, i, list);
        if (++in_batch == BATCH) {
            put_opcode(e, take);
            put_opcode(e, OP_MARK);
            in_batch = 0;
        }
    }
    put_opcode(e, take);
}

static void save_state(struct encoder *e)
{
    (void)begin_instance(e, CLASS_STATE);
    save_name(e, NAME_ROUND);
    save_int(e, e->s->round);
    save_name(e, NAME_COMPLETE);
    save_bool(e, e->s->complete);
    save_name(e, NAME_DEADLINE);
    if (e->s->has_deadline) {
        save_time(e, e->s->deadline);
    } else {
        save_plain(e, OP_NONE);
    }
    save_name(e, NAME_CLOSED);
    save_bool(e, e->s->closed);
    save_name(e, NAME_PARTICIPANTS);
    save_list(e, NAME_PARTICIPANTS);
    save_name(e, NAME_WAIT_LIST);
    save_list(e, NAME_WAIT_LIST);
    if (e->dialect != MU_RDZV_DIALECT_1_13) {
        save_name(e, NAME_REDUNDANCY_LIST);
        save_list(e, NAME_REDUNDANCY_LIST);
    }
    save_name(e, NAME_LAST_HEARTBEATS);
    save_list(e, NAME_LAST_HEARTBEATS);
    end_instance(e);
}

int mu_rdzv_state_encode(struct mu_buf *out, const struct mu_rdzv_state *s,
                         enum mu_rdzv_dialect dialect)
{
    struct encoder e = {.out = out, .start = out->len, .s = s, .dialect = dialect};
    size_t count = s->member_count;

    if (dialect == MU_RDZV_DIALECT_UNKNOWN) {
        return MUSTER_EINVAL;
    }
    memset(e.once, 0xff, sizeof(e.once));
    if (count != 0) {
        e.addrs = mu_malloc(2 * count * sizeof(*e.addrs));
        if (e.addrs == NULL) {
            return MUSTER_ENOMEM;
        }
        memset(e.addrs, 0xff, 2 * count * sizeof(*e.addrs));
        e.nodes = e.addrs + count;
    }
    if (make_room(&e, 2)) {
        mu_buf_put_u8(out, OP_PROTO);
        mu_buf_put_u8(out, PROTOCOL);
    }
    save_state(&e);
    put_opcode(&e, OP_STOP);
    if (e.err == 0) {
        end_frame(&e);
    } else {
        out->len = e.start;
    }
    mu_free(e.addrs);
    return e.err;
}
