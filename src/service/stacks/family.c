#include "service/stacks/family.h"

#include "proto/stacks/kernel.h"
#include "service/stacks/look.h"

struct family {
    const struct mu_peek *peek;
    int64_t *pids;
    uint32_t count;
    uint32_t cap;
    char text[4096];
};

/* Of one thread: the list may be longer than our text, and then its first part is taken. */
static void add_children_of(struct family *f, struct mu_peek_process *p, uint64_t tid)
{
    struct mu_span children;
    size_t len;
    int64_t pid;

    if (f->peek->text(p, tid, "children", 0, f->text, sizeof(f->text), &len) != 0) {
        return;
    }
    children = mu_span(f->text, len);
    while (f->count < f->cap && mu_kernel_child_next(&children, &pid)) {
        f->pids[f->count++] = pid;
    }
}

static void add_children(struct family *f, struct mu_peek_process *p)
{
    uint64_t tids[MU_STACKS_TASKS_MAX];
    size_t count = 0;

    if (f->peek->threads(p, tids, MU_STACKS_TASKS_MAX, &count) != 0) {
        return;
    }
    for (size_t i = 0; i < count; i++) {
        add_children_of(f, p, tids[i]);
    }
}

uint32_t mu_stacks_family(const struct mu_peek *peek, struct mu_peek_process *p, int64_t *pids,
                          uint32_t cap)
{
    struct family f = {.peek = peek, .pids = pids, .cap = cap};

    add_children(&f, p);
    for (uint32_t i = 0; i < f.count; i++) {
        struct mu_peek_process *child;

        if (peek->open(f.pids[i], &child) == 0) {
            add_children(&f, child);
            peek->close(child);
        }
    }
    return f.count;
}
