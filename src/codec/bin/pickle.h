/*
 * A reader of Python pickles that hold only data. It knows the opcodes that occur in the state of a
 * rendezvous (protocols 2 to 5) with the handful of classes in it, and in the dump of a flight
 * recorder (codec/stacks/flight.h), which has no classes; at everything else it stops and says what
 * it found. Nothing is ever imported or called: an object is a class, the arguments it would be
 * called with and the attributes it would be given.
 *
 *     struct mu_pickle p;
 *     mu_pickle_init(&p);
 *     err = mu_pickle_read(&p, bytes, memory_max, &msg);
 *     root = mu_pickle_at(&p, p.root);
 *     ...
 *     mu_pickle_fini(&p);
 *
 * Values are numbered; containers hold numbers. A value that a pickle refers to twice exists once,
 * so a pickle can build a graph that would be enormous if it were written out, or a container that
 * holds itself. Code that walks it must not recurse, and must not scan a big container once for
 * each of many references to it.
 *
 * Each opcode costs a constant amount of memory. The ceiling is the caller's.
 */
#ifndef MU_PICKLE_H
#define MU_PICKLE_H

#include "core/err.h"
#include "core/span.h"

enum mu_pickle_kind {
    MU_PICKLE_NONE = 1,
    MU_PICKLE_BOOL,
    MU_PICKLE_INT,
    MU_PICKLE_TEXT,
    MU_PICKLE_BYTES,
    MU_PICKLE_TUPLE,
    MU_PICKLE_LIST,
    MU_PICKLE_DICT,
    MU_PICKLE_SET,
    MU_PICKLE_CLASS,
    MU_PICKLE_OBJECT,
    MU_PICKLE_FLOAT,
};

/* The classes that may be named. With the last two, protocols 2 and 3 write a set, and protocol 2
 * writes bytes. */
enum mu_pickle_class {
    MU_PICKLE_CLASS_NO = 0,
    MU_PICKLE_CLASS_STATE,     /* torch's _RendezvousState */
    MU_PICKLE_CLASS_NODE,      /* torch's _NodeDesc */
    MU_PICKLE_CLASS_DATETIME,  /* datetime.datetime */
    MU_PICKLE_CLASS_TIMEZONE,  /* datetime.timezone */
    MU_PICKLE_CLASS_TIMEDELTA, /* datetime.timedelta */
    MU_PICKLE_CLASS_SET,       /* builtins.set of a list */
    MU_PICKLE_CLASS_ENCODE,    /* _codecs.encode of a text, "latin1" */
};

#define MU_PICKLE_NOTHING UINT32_MAX /* the number of no value */

struct mu_pickle_value {
    uint8_t kind;   /* enum mu_pickle_kind */
    uint8_t type;   /* enum mu_pickle_class, of a class or an object */
    uint32_t count; /* bytes; items; of an object: a number for the caller's use, 0 at first */
    union {
        int64_t integer; /* of an int or a bool */
        double real;     /* of a float: any, also infinite or not a number */
        struct {
            uint32_t first; /* where its bytes or items begin */
            uint32_t last;  /* where its last run of items begins */
        } held;
        struct {
            uint32_t args;       /* a tuple */
            uint32_t attributes; /* a dict, or MU_PICKLE_NOTHING */
        } object;
    } as;
};

struct mu_pickle_numbers {
    uint32_t *data;
    size_t len;
    size_t cap;
};

struct mu_pickle {
    struct mu_span in; /* borrowed: texts and bytes lie in it */
    struct mu_pickle_value *values;
    size_t value_count;
    size_t value_cap;
    struct mu_pickle_numbers items; /* the items of all containers, in runs */
    uint32_t root;
    size_t memory; /* in use, of memory_max */
    size_t memory_max;
};

void mu_pickle_init(struct mu_pickle *p);
void mu_pickle_fini(struct mu_pickle *p);

/**
 * Reads one pickle, which is all of `in` and is borrowed as long as `p` is used. MUSTER_ECORRUPT:
 * it is damaged or holds something we do not read. MUSTER_ELIMIT: it needs more than `memory_max`.
 * MUSTER_ENOMEM. The first two have a text. After an error, only mu_pickle_fini() may be called.
 */
int mu_pickle_read(struct mu_pickle *p, struct mu_span in, size_t memory_max,
                   struct mu_errmsg *reterr_msg);

static inline struct mu_pickle_value *mu_pickle_at(const struct mu_pickle *p, uint32_t number)
{
    return &p->values[number];
}

static inline bool mu_pickle_is(const struct mu_pickle *p, uint32_t number,
                                enum mu_pickle_kind kind)
{
    return p->values[number].kind == kind;
}

static inline bool mu_pickle_is_object(const struct mu_pickle *p, uint32_t number,
                                       enum mu_pickle_class type)
{
    return mu_pickle_is(p, number, MU_PICKLE_OBJECT) && p->values[number].type == type;
}

/** The bytes of a text or of bytes. */
static inline struct mu_span mu_pickle_bytes(const struct mu_pickle *p, uint32_t number)
{
    const struct mu_pickle_value *v = &p->values[number];

    return mu_span(p->in.data + v->as.held.first, v->count);
}

/** Item `i` of a tuple; `i` is below its count. */
static inline uint32_t mu_pickle_item(const struct mu_pickle *p, uint32_t number, size_t i)
{
    return p->items.data[p->values[number].as.held.first + i];
}

/* Walks the items of a list or a set, or the keys and values of a dict, in turn. */
struct mu_pickle_walk {
    uint32_t run;
    uint32_t index;
};

struct mu_pickle_walk mu_pickle_walk(const struct mu_pickle *p, uint32_t number);
/** The next one, or MU_PICKLE_NOTHING. */
uint32_t mu_pickle_next(const struct mu_pickle *p, struct mu_pickle_walk *w);

/**
 * The value under a key in a dict, or MU_PICKLE_NOTHING. Reads the whole dict: check its count
 * first if a hostile pickle could make you do this often.
 */
uint32_t mu_pickle_get(const struct mu_pickle *p, uint32_t dict, const char *key);

#endif
