/*
 * Writes dumps of PyTorch's flight recorder by hand, opcode for opcode as PyTorch's own pickler
 * does: protocol 2, each text once and then by reference, all frames shared.
 *
 *     struct dump d;
 *     dump_begin(&d, "2.10");
 *     dump_group(&d, "0", "default_pg", "[0, 1]");
 *     dump_entry(&d, (struct dump_op){.name = "nccl:all_reduce", .seq = 1, .state = "completed"});
 *     span = dump_end(&d);
 *     dump_free(&d);
 */
#ifndef MU_FLIGHT_DUMP_H
#define MU_FLIGHT_DUMP_H

#include <stdio.h>
#include <string.h>

#include "core/assert.h"
#include "core/buf.h"

#define DUMP_TEXTS 256

struct dump {
    struct mu_buf b;
    const char *texts[DUMP_TEXTS]; /* borrowed; NULL: something else has that number */
    uint32_t memo_count;
    bool in_entries;
};

/* One operation; what is left out has a default that a healthy all_reduce has. */
struct dump_op {
    const char *group; /* "0" */
    const char *desc;  /* "default_pg" */
    const char *name;  /* "nccl:all_reduce" */
    const char *state; /* "completed" */
    const char *type;  /* "Float" */
    int64_t pg_id;
    int64_t seq;
    int64_t op;
    int64_t in; /* the one size of the one input; 1024 */
    int64_t out;
    int64_t created_ns;
    int64_t completed_ns; /* 0: None */
    double duration_ms;   /* 0: there is no such key */
    const char *file;     /* of the user's frame; NULL: no stack at all */
    int64_t line;
    bool p2p;
    bool retired;
};

static inline void dump_bytes(struct dump *d, const void *data, size_t len)
{
    MU_ASSERT(mu_buf_append(&d->b, mu_span(data, len)) == 0);
}

static inline void dump_op(struct dump *d, char opcode)
{
    dump_bytes(d, &opcode, 1);
}

static inline void dump_memo(struct dump *d, char small, char large, uint32_t number)
{
    uint8_t bytes[4];

    dump_op(d, number < 256 ? small : large);
    mu_put_u32(bytes, number);
    dump_bytes(d, bytes, number < 256 ? 1 : 4);
}

static inline void dump_text(struct dump *d, const char *text)
{
    uint8_t len[4];

    for (uint32_t i = 0; i < d->memo_count && i < DUMP_TEXTS; i++) {
        if (d->texts[i] != NULL && strcmp(d->texts[i], text) == 0) {
            dump_memo(d, 'h', 'j', i);
            return;
        }
    }
    mu_put_u32(len, (uint32_t)strlen(text));
    dump_op(d, 'X');
    dump_bytes(d, len, 4);
    dump_bytes(d, text, strlen(text));
    if (d->memo_count < DUMP_TEXTS) {
        d->texts[d->memo_count] = text;
    }
    dump_memo(d, 'q', 'r', d->memo_count++);
}

static inline void dump_int(struct dump *d, int64_t n)
{
    uint8_t bytes[9] = {8};

    if (n >= 0 && n < 65536) {
        mu_put_u16(bytes, (uint16_t)n);
        dump_op(d, n < 256 ? 'K' : 'M');
        dump_bytes(d, bytes, n < 256 ? 1 : 2);
    } else if (n >= INT32_MIN && n <= INT32_MAX) {
        mu_put_u32(bytes, (uint32_t)(int32_t)n);
        dump_op(d, 'J');
        dump_bytes(d, bytes, 4);
    } else {
        mu_put_u64(bytes + 1, (uint64_t)n);
        dump_op(d, '\x8a');
        dump_bytes(d, bytes, 9);
    }
}

static inline void dump_float(struct dump *d, double real)
{
    uint64_t bits;
    uint8_t bytes[8];

    memcpy(&bits, &real, sizeof(bits));
    for (int i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    dump_op(d, 'G');
    dump_bytes(d, bytes, 8);
}

static inline void dump_key_int(struct dump *d, const char *key, int64_t n)
{
    dump_text(d, key);
    dump_int(d, n);
}

static inline void dump_key_text(struct dump *d, const char *key, const char *text)
{
    dump_text(d, key);
    dump_text(d, text);
}

static inline void dump_key_bool(struct dump *d, const char *key, bool yes)
{
    dump_text(d, key);
    dump_op(d, yes ? '\x88' : '\x89');
}

static inline void dump_key_time(struct dump *d, const char *key, int64_t ns)
{
    dump_text(d, key);
    if (ns == 0) {
        dump_op(d, 'N');
    } else {
        dump_int(d, ns);
    }
}

static inline void dump_begin(struct dump *d, const char *version)
{
    *d = (struct dump){0};
    mu_buf_init(&d->b, (size_t)64 << 20);
    dump_bytes(d, "\x80\x02}(", 4);
    dump_key_text(d, "version", version);
    dump_text(d, "pg_config");
    dump_bytes(d, "}(", 2);
}

static inline void dump_group(struct dump *d, const char *name, const char *desc, const char *ranks)
{
    MU_ASSERT(!d->in_entries);
    dump_text(d, name);
    dump_bytes(d, "}(", 2);
    dump_key_text(d, "name", name);
    dump_key_text(d, "desc", desc);
    dump_key_text(d, "ranks", ranks);
    dump_op(d, 'u');
}

/* Ends the groups; `enqueued` of -1: no status. */
static inline void dump_status(struct dump *d, int64_t enqueued, int64_t started, int64_t completed)
{
    if (d->in_entries) {
        return;
    }
    d->in_entries = true;
    dump_op(d, 'u');
    dump_key_text(d, "comm_lib_version", "2.27.5");
    dump_text(d, "pg_status");
    dump_bytes(d, "}(", 2);
    if (enqueued >= 0) {
        dump_text(d, "0");
        dump_bytes(d, "}(", 2);
        dump_key_int(d, "last_enqueued_collective", enqueued);
        dump_key_int(d, "last_started_collective", started);
        dump_key_int(d, "last_completed_collective", completed);
        dump_op(d, 'u');
    }
    dump_op(d, 'u');
    dump_text(d, "entries");
    dump_bytes(d, "](", 2);
}

static inline void dump_frame(struct dump *d, const char *name, const char *file, int64_t line)
{
    dump_bytes(d, "}(", 2);
    dump_key_text(d, "name", name);
    dump_key_text(d, "filename", file);
    dump_key_int(d, "line", line);
    dump_op(d, 'u');
    if (d->memo_count < DUMP_TEXTS) {
        d->texts[d->memo_count] = NULL;
    }
    dump_memo(d, 'q', 'r', d->memo_count++);
}

static inline void dump_tensors(struct dump *d, const char *sizes, const char *types, int64_t size,
                                const char *type)
{
    dump_text(d, sizes);
    dump_bytes(d, "](](", 4);
    dump_int(d, size);
    dump_bytes(d, "ee", 2);
    dump_text(d, types);
    dump_bytes(d, "](", 2);
    dump_text(d, type);
    dump_op(d, 'e');
}

static inline void dump_entry(struct dump *d, struct dump_op op)
{
    const char *type = op.type == NULL ? "Float" : op.type;

    dump_status(d, -1, -1, -1);
    dump_bytes(d, "}(", 2);
    if (op.file != NULL) {
        dump_text(d, "frames");
        dump_bytes(d, "](", 2);
        dump_frame(d, "all_reduce",
                   "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py", 2696);
        dump_frame(d, "train", op.file, op.line);
        dump_frame(d, "<module>", op.file, 200);
        dump_op(d, 'e');
    }
    dump_key_int(d, "record_id", op.op);
    dump_key_int(d, "pg_id", op.pg_id);
    dump_text(d, "process_group");
    dump_text(d, op.group == NULL ? "0" : op.group);
    dump_text(d, op.desc == NULL ? "default_pg" : op.desc);
    dump_op(d, '\x86');
    dump_key_text(d, "thread_name", "python3");
    dump_key_int(d, "collective_seq_id", op.p2p ? 0 : op.seq);
    dump_key_int(d, "p2p_seq_id", op.p2p ? op.seq : 0);
    dump_key_int(d, "op_id", op.op);
    dump_key_text(d, "profiling_name", op.name == NULL ? "nccl:all_reduce" : op.name);
    dump_key_int(d, "time_created_ns",
                 op.created_ns == 0 ? INT64_C(1700000000000000000) : op.created_ns);
    if (op.duration_ms > 0) {
        dump_text(d, "duration_ms");
        dump_float(d, op.duration_ms);
    }
    dump_tensors(d, "input_sizes", "input_dtypes", op.in == 0 ? 1024 : op.in, type);
    dump_tensors(d, "output_sizes", "output_dtypes", op.out == 0 ? 1024 : op.out, type);
    dump_key_text(d, "state", op.state == NULL ? "completed" : op.state);
    dump_key_time(d, "time_discovered_started_ns", 0);
    dump_key_time(d, "time_discovered_completed_ns", op.completed_ns);
    dump_key_bool(d, "retired", op.retired);
    dump_key_int(d, "timeout_ms", 600000);
    dump_key_bool(d, "is_p2p", op.p2p);
    dump_op(d, 'u');
}

/* The dump, lent until dump_free(). */
static inline struct mu_span dump_end(struct dump *d)
{
    dump_status(d, -1, -1, -1);
    dump_bytes(d, "eu.", 3);
    return mu_buf_span(&d->b);
}

static inline void dump_free(struct dump *d)
{
    mu_buf_fini(&d->b);
}

#endif
