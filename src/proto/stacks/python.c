#include "proto/stacks/python.h"

#include <muster/error.h>

#include "core/buf.h"
#include "proto/stacks/python_internal.h"

bool mu_python_read(struct mu_python *p, uint64_t addr, void *to, size_t len)
{
    if (p->reads_left == 0) {
        return false;
    }
    p->reads_left--;
    return mu_memory_read(&p->memory, addr, to, len);
}

bool mu_python_u64(struct mu_python *p, uint64_t addr, uint64_t *ret)
{
    uint8_t b[8];

    if (!mu_python_read(p, addr, b, sizeof(b))) {
        return false;
    }
    *ret = mu_get_u64(b);
    return true;
}

bool mu_python_u32(struct mu_python *p, uint64_t addr, uint32_t *ret)
{
    uint8_t b[4];

    if (!mu_python_read(p, addr, b, sizeof(b))) {
        return false;
    }
    *ret = mu_get_u32(b);
    return true;
}

/* --- threads ---------------------------------------------------------------------------------- */

/* Which thread state holds the GIL of an interpreter; false: unknown. *ret is 0 if none does. */
static bool gil_holder(struct mu_python *p, uint64_t interp, uint64_t *ret)
{
    const struct mu_python_layout *l = &p->layout;
    uint64_t gil;
    uint32_t locked;

    if (l->current != MU_PYTHON_NONE) {
        return mu_python_u64(p, p->runtime + l->current, ret);
    }
    if (l->interp_gil == MU_PYTHON_NONE || !mu_python_u64(p, interp + l->interp_gil, &gil) ||
        !mu_python_plausible(gil) || !mu_python_u32(p, gil + l->gil_locked, &locked) ||
        !mu_python_u64(p, gil + l->gil_holder, ret)) {
        return false;
    }
    if (locked != 1) {
        *ret = 0;
    }
    return true;
}

static bool read_thread(struct mu_python *p, uint64_t state, uint64_t interp,
                        struct mu_python_thread *ret, uint64_t *ret_next)
{
    const struct mu_python_layout *l = &p->layout;
    uint64_t its_interp;

    *ret = (struct mu_python_thread){.state = state};
    return mu_python_plausible(state) && mu_python_u64(p, state + l->thread_interp, &its_interp) &&
           its_interp == interp && mu_python_u64(p, state + l->thread_next, ret_next) &&
           mu_python_u64(p, state + l->thread_ident, &ret->ident) &&
           (l->thread_native == MU_PYTHON_NONE ||
            mu_python_u64(p, state + l->thread_native, &ret->native));
}

/* Appends the threads of an interpreter; false: they make no sense. The newest are the first in its
 * list, and the main thread is the last: if there are too many, those before it are left out. */
static bool read_interp(struct mu_python *p, uint64_t interp, struct mu_python_thread *threads,
                        size_t cap, size_t *count)
{
    uint64_t state;
    uint64_t holder = 0;
    bool known = gil_holder(p, interp, &holder);

    if (!mu_python_u64(p, interp + p->layout.interp_threads, &state)) {
        return false;
    }
    for (uint32_t i = 0; state != 0 && i < MU_PYTHON_LIST_MAX; i++) {
        struct mu_python_thread t;

        if (!read_thread(p, state, interp, &t, &state)) {
            return *count == cap;
        }
        t.gil = !known              ? MU_STACKS_GIL_UNKNOWN
                : holder == t.state ? MU_STACKS_GIL_HELD
                                    : MU_STACKS_GIL_NOT_HELD;
        *count += *count < cap ? 1 : 0;
        threads[*count - 1] = t;
    }
    return true;
}

int mu_python_threads(struct mu_python *p, struct mu_python_thread *threads, size_t cap,
                      size_t *ret_count)
{
    uint64_t interp;
    size_t count = 0;

    if (!mu_python_u64(p, p->runtime + p->layout.interpreters, &interp)) {
        return MUSTER_EAGAIN;
    }
    for (uint32_t i = 0; i < MU_PYTHON_INTERPS_MAX && interp != 0; i++) {
        if (!mu_python_plausible(interp) || !read_interp(p, interp, threads, cap, &count) ||
            !mu_python_u64(p, interp + p->layout.interp_next, &interp)) {
            return MUSTER_EAGAIN;
        }
    }
    *ret_count = count;
    return 0;
}

/* --- which thread of the kernel is which ------------------------------------------------------ */

/* Where the C library has the number in its struct of a thread: glibc on x86-64, glibc on ARM64,
 * musl on x86-64. */
static const uint32_t tid_places[] = {720, 208, 48};

static bool is_tid(uint64_t tid, const uint64_t *tids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (tids[i] == tid) {
            return true;
        }
    }
    return false;
}

static uint64_t tid_of(struct mu_python *p, const struct mu_python_thread *t, const uint64_t *tids,
                       size_t count)
{
    if (t->native != 0 && is_tid(t->native, tids, count)) {
        return t->native;
    }
    for (size_t i = 0; i < sizeof(tid_places) / sizeof(tid_places[0]); i++) {
        uint32_t tid;

        if (mu_python_u32(p, t->ident + tid_places[i], &tid) && is_tid(tid, tids, count)) {
            return tid;
        }
    }
    return 0;
}

void mu_python_match(struct mu_python *p, struct mu_python_thread *threads, size_t count,
                     const uint64_t *tids, size_t tid_count)
{
    for (size_t i = 0; i < count; i++) {
        threads[i].tid = tid_of(p, &threads[i], tids, tid_count);
    }
}

/* --- is there an interpreter? ----------------------------------------------------------------- */

/* Whether a table fits: there are threads, and the first that has frames can be read. */
static bool table_fits(struct mu_python *p, struct mu_python_stack *stack)
{
    struct mu_python_thread threads[8];
    size_t count;

    if (mu_python_threads(p, threads, 8, &count) != 0 || count == 0) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (mu_python_stack(p, &threads[i], stack) == 0 && stack->frame_count != 0) {
            return true;
        }
    }
    return false;
}

/* One that describes itself. MUSTER_ENOENT: it does not. */
static int open_self(struct mu_python *p)
{
    uint8_t self[MU_PYTHON_SELF_BYTES];

    if (!mu_python_read(p, p->runtime, self, 8)) {
        return MUSTER_EPROTO;
    }
    if (!mu_span_eq(mu_span(self, 8), MU_SPAN_LIT(MU_PYTHON_COOKIE))) {
        return MUSTER_ENOENT;
    }
    if (!mu_python_read(p, p->runtime, self, sizeof(self))) {
        return MUSTER_EPROTO;
    }
    return mu_python_layout_read(mu_span(self, sizeof(self)), &p->layout, &p->reterr_version);
}

static int try_tables(struct mu_python *p, struct mu_python_stack *scratch)
{
    /* The frames of 3.10 have nothing that others have not, so it is tried last. */
    static const uint32_t minors[] = {12, 11, 9, 10};

    p->strict = true;
    for (size_t i = 0; i < sizeof(minors) / sizeof(minors[0]); i++) {
        p->layout = *mu_python_layout_of(minors[i]);
        p->code_type = 0;
        if (minors[i] == 9) {
            p->layout.current = MU_PYTHON_NONE; /* 3.8 has it elsewhere, and all else is the same */
        }
        if (table_fits(p, scratch)) {
            p->strict = false;
            return 0;
        }
    }
    return MUSTER_EPROTO;
}

int mu_python_open(struct mu_python *p, struct mu_memory memory, uint64_t runtime, uint32_t version,
                   struct mu_python_stack *scratch)
{
    const struct mu_python_layout *table = mu_python_layout_of(version >> 16 & 0xff);
    int err;

    *p =
        (struct mu_python){.memory = memory, .runtime = runtime, .reads_left = MU_PYTHON_READS_MAX};
    err = open_self(p);
    if (err != MUSTER_ENOENT) {
        return err;
    }
    if (version == 0) {
        return try_tables(p, scratch);
    }
    if (version >> 24 != 3 || table == NULL) {
        p->reterr_version = version;
        return MUSTER_ENOTSUP;
    }
    p->layout = *table;
    if ((version & 0xffff) != 0) {
        p->layout.micro = version >> 8 & 0xff;
    }
    return 0;
}
