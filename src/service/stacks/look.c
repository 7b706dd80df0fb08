#include "service/stacks/look.h"

#include <errno.h>
#include <stdio.h>

#include "core/env.h"
#include "proto/stacks/elf.h"
#include "proto/stacks/kernel.h"

/* --- its bytes -------------------------------------------------------------------------------- */

/* Some sandboxes do not have the system call at all. */
static bool permission(int err)
{
    return err == -EPERM || err == -EACCES || err == -ENOSYS;
}

static bool read_memory(void *context, uint64_t addr, void *to, size_t len)
{
    struct mu_stacks_look *l = context;
    int err = l->peek->read(l->process, addr, to, len);

    if (permission(err)) {
        l->refused = err;
    }
    return err == 0;
}

static bool read_file(void *context, uint64_t offset, void *to, size_t len)
{
    struct mu_stacks_look *l = context;

    return l->peek->read_file(l->process, offset, to, len) == 0;
}

static struct mu_span read_text(struct mu_stacks_look *l, uint64_t tid, const char *name, char *buf,
                                size_t cap)
{
    size_t len;

    return l->peek->text(l->process, tid, name, 0, buf, cap, &len) == 0 ? mu_span(buf, len)
                                                                        : (struct mu_span){0};
}

/* --- the interpreter -------------------------------------------------------------------------- */

static int note_refused(struct mu_stacks_look *l)
{
    return mu_err(&l->note, MUSTER_EREFUSED,
                  "Its memory may not be read: it belongs to another user, or "
                  "kernel.yama.ptrace_scope or a sandbox forbids it. Run muster as its user or as "
                  "root; in a container, add the capability SYS_PTRACE.");
}

static int note_version(struct mu_stacks_look *l)
{
    uint32_t version = l->python.reterr_version;

    return mu_err(&l->note, MUSTER_ENOTSUP,
                  "It runs Python %u.%u, whose frames cannot be read; Python 3.%d to 3.%d can.",
                  version >> 24, version >> 16 & 0xff, MU_PYTHON_MINOR_MIN, MU_PYTHON_MINOR_MAX);
}

static int open_known(struct mu_stacks_look *l)
{
    struct mu_memory memory = {read_memory, l};
    int err = mu_python_open(&l->python, memory, l->known.runtime, l->known.version, &l->stack);

    if (err == 0) {
        err = mu_python_threads(&l->python, l->threads, MU_STACKS_THREADS_MAX, &l->thread_count);
    }
    return err;
}

/* Opens the interpreter of a file, whose symbols were found. */
static int open_python(struct mu_stacks_look *l, const struct mu_elf_python *elf,
                       const struct mu_maps_file *file)
{
    uint64_t bias = elf->fixed ? 0 : file->start - elf->base;
    struct mu_memory memory = {read_memory, l};
    uint8_t b[8];
    int err;

    l->known.version = mu_maps_version(file->path);
    if (elf->version != 0 && mu_memory_read(&memory, bias + elf->version, b, sizeof(b))) {
        l->known.version = mu_get_u32(b);
    }
    l->known.runtime = bias + elf->runtime;
    err = open_known(l);
    if (l->refused != 0) {
        return note_refused(l);
    }
    if (err == MUSTER_ENOTSUP) {
        return note_version(l);
    }
    if (err != 0 || l->thread_count == 0) {
        return mu_err(&l->note, MUSTER_EAGAIN, "Its Python interpreter is starting or ending.");
    }
    return 0;
}

static int try_file(struct mu_stacks_look *l, const struct mu_maps_file *file, const char *path)
{
    struct mu_memory bytes = {read_file, l};
    struct mu_elf_python elf;
    int err;

    if (!file->found) {
        return MUSTER_ENOENT;
    }
    err = l->peek->open_file(l->process, path);
    if (err != 0) {
        return permission(err)
                   ? note_refused(l)
                   : mu_err(&l->note, MUSTER_EAGAIN,
                            "Its file %s cannot be opened, so its interpreter was not found; if it "
                            "was replaced since the process started, start the process again.",
                            file->path);
    }
    err = mu_elf_find_python(bytes, &elf);
    return err == 0 ? open_python(l, &elf, file) : MUSTER_ENOENT;
}

static int read_maps(struct mu_stacks_look *l)
{
    size_t len;
    int err = l->peek->exe(l->process, l->text, sizeof(l->text), &len);

    mu_maps_init(&l->maps, mu_span(l->text, err == 0 ? len : 0));
    for (uint64_t at = 0;
         err == 0 && at < MU_STACKS_MAPS_MAX && !(l->maps.program.found && l->maps.library.found);
         at += len) {
        err = l->peek->text(l->process, 0, "maps", at, l->text, sizeof(l->text), &len);
        if (err == 0 && len == 0) {
            break;
        }
        if (err == 0) {
            mu_maps_feed(&l->maps, mu_span(l->text, len));
        }
    }
    return err;
}

/* Finds the interpreter and its threads. Otherwise the note says why there is none. */
static int find_python(struct mu_stacks_look *l)
{
    int err;

    l->note.text[0] = '\0';
    l->refused = 0;
    if (l->known.runtime != 0 && open_known(l) == 0 && l->thread_count != 0) {
        return 0;
    }
    l->known = (struct mu_stacks_known){0}; /* it has become another program, or is ending */
    l->refused = 0;
    err = read_maps(l);
    if (err != 0) {
        return permission(err)
                   ? note_refused(l)
                   : mu_err(&l->note, MUSTER_EAGAIN,
                            "It has no program: it is ending, or it is a thread of the kernel.");
    }
    err = try_file(l, &l->maps.library, l->maps.library.path);
    if (err != 0 && err != MUSTER_EREFUSED) {
        int program = try_file(l, &l->maps.program, NULL);

        /* A program that is not Python says nothing about a library that is. */
        err = program == MUSTER_ENOENT ? err : program;
    }
    if (err == MUSTER_ENOENT) {
        (void)mu_err(&l->note, err, "It does not run Python: %s has no interpreter.",
                     l->maps.program.found ? l->maps.program.path : "its program");
    } else if (err == 0) {
        l->note.text[0] = '\0';
    }
    return err;
}

/* --- its threads ------------------------------------------------------------------------------ */

/* The main thread is to be the first. It has the process's number, and where the kernel has begun
 * to give out low numbers again, threads that were started later have lower ones. */
static void put_main_first(struct mu_stacks_look *l)
{
    size_t i = 0;

    while (i < l->tid_count && l->tids[i] != (uint64_t)l->pid) {
        i++;
    }
    if (i < l->tid_count) {
        memmove(&l->tids[1], &l->tids[0], i * sizeof(l->tids[0]));
        l->tids[0] = (uint64_t)l->pid;
    }
}

/* The numbers of its threads as it sees them itself, if it has a namespace of its own. */
static void find_inner(struct mu_stacks_look *l)
{
    char status[4096];
    uint64_t inner = mu_kernel_inner_tid(read_text(l, 0, "status", status, sizeof(status)));
    bool other = inner != 0 && inner != (uint64_t)l->pid;

    for (size_t i = 0; i < l->tid_count; i++) {
        l->inner[i] =
            other ? mu_kernel_inner_tid(read_text(l, l->tids[i], "status", status, sizeof(status)))
                  : l->tids[i];
    }
}

/* Which of the process's threads it is, by the number that the process sees; or `tid_count`. */
static size_t find_task(const struct mu_stacks_look *l, uint64_t inner)
{
    size_t i = 0;

    while (i < l->tid_count && (inner == 0 || l->inner[i] != inner)) {
        i++;
    }
    return i;
}

/* The main thread first, then by their numbers, those without one last. */
static void sort_threads(struct mu_stacks_look *l)
{
    for (size_t i = 1; i < l->thread_count; i++) {
        struct mu_python_thread t = l->threads[i];
        size_t rank = find_task(l, t.tid);
        size_t j = i;

        for (; j > 0 && find_task(l, l->threads[j - 1].tid) > rank; j--) {
            l->threads[j] = l->threads[j - 1];
        }
        l->threads[j] = t;
    }
}

/* Texts of a thread of the kernel, in the caller's memory. */
struct task_texts {
    char name[32];
    char kernel[MU_STACKS_NAME_MAX + 1];
};

static void describe_task(struct mu_stacks_look *l, uint64_t tid, struct task_texts *texts,
                          struct mu_stacks_thread *ret)
{
    char stat[512];
    char call[256];
    char place[128];
    struct mu_kernel_stat s;
    struct mu_span name = read_text(l, tid, "comm", texts->name, sizeof(texts->name));

    ret->tid = tid;
    ret->main = tid == (uint64_t)l->pid;
    ret->name = mu_span(name.data, name.len > 0 ? name.len - 1 : 0);
    ret->state = '?';
    if (mu_kernel_stat_read(read_text(l, tid, "stat", stat, sizeof(stat)), &s)) {
        ret->state = s.state;
    }
    if (ret->state != 'R') {
        ret->kernel = mu_span(texts->kernel,
                              mu_kernel_text(texts->kernel, sizeof(texts->kernel),
                                             read_text(l, tid, "syscall", call, sizeof(call)),
                                             read_text(l, tid, "wchan", place, sizeof(place))));
    }
}

static int tell_python_thread(struct mu_stacks_look *l, const struct mu_python_thread *thread)
{
    struct mu_stacks_thread t = {.state = '?', .gil = thread->gil};
    struct task_texts texts;
    size_t task = find_task(l, thread->tid);
    int err = MUSTER_EAGAIN;

    for (int i = 0; i < MU_STACKS_TORN_MAX && err == MUSTER_EAGAIN; i++) {
        err = mu_python_stack(&l->python, thread, &l->stack);
    }
    t.torn = err != 0;
    l->torn += t.torn ? 1 : 0;
    if (task < l->tid_count) {
        l->told[task] = true;
        describe_task(l, l->tids[task], &texts, &t);
    }
    t.omitted = l->stack.omitted;
    t.endless = l->stack.endless;
    t.frame_count = l->stack.frame_count;
    return mu_stacks_writer_thread(&l->writer, &t, l->stack.frames);
}

static int tell_threads(struct mu_stacks_look *l)
{
    struct task_texts texts;
    int err = 0;

    size_t count = l->main_only && l->tid_count != 0 ? 1 : l->tid_count;

    /* The main thread is the first of both. */
    for (size_t i = 0; i < l->thread_count && err == 0 && (i == 0 || !l->main_only); i++) {
        err = tell_python_thread(l, &l->threads[i]);
    }
    for (size_t i = 0; i < count && err == 0; i++) {
        struct mu_stacks_thread t = {0};

        if (!l->told[i]) {
            describe_task(l, l->tids[i], &texts, &t);
            err = mu_stacks_writer_thread(&l->writer, &t, NULL);
        }
    }
    return err;
}

/* --- the report ------------------------------------------------------------------------------- */

static void name_version(struct mu_stacks_look *l)
{
    const struct mu_python_layout *layout = &l->python.layout;
    const char *kind = layout->free_threaded ? "t" : "";

    if (layout->micro == MU_PYTHON_NONE) {
        (void)snprintf(l->version, sizeof(l->version), "3.%u%s", layout->minor & 0xff, kind);
    } else {
        (void)snprintf(l->version, sizeof(l->version), "3.%u.%u%s", layout->minor & 0xff,
                       layout->micro & 0xff, kind);
    }
}

static void note_torn(struct mu_stacks_look *l)
{
    if (l->torn != 0 && l->python.reads_left == 0) {
        (void)mu_err(&l->note, 0,
                     "It has more frames than are read at once: those of %u of its threads are not "
                     "complete.",
                     l->torn);
    } else if (l->torn != 0) {
        (void)mu_err(&l->note, 0,
                     "The frames of %u of its threads changed each time they were read: they may "
                     "be of different moments.",
                     l->torn);
    }
}

static int look_at(struct mu_stacks_look *l, struct mu_stacks_report *report, struct mu_buf *out)
{
    int err = MUSTER_EAGAIN;

    find_inner(l);
    for (int i = 0; i < MU_STACKS_TRIES_MAX && err == MUSTER_EAGAIN; i++) {
        err = find_python(l);
    }
    report->kind = err == 0 ? MU_STACKS_PYTHON : MU_STACKS_OTHER;
    if (err == 0) {
        name_version(l);
        mu_python_match(&l->python, l->threads, l->thread_count, l->inner, l->tid_count);
        sort_threads(l);
    } else {
        l->thread_count = 0;
    }
    err = tell_threads(l);
    note_torn(l);
    report->version = mu_span_str(l->version);
    report->note = mu_span_str(l->note.text);
    return err != 0 ? err : mu_stacks_writer_finish(&l->writer, report, out);
}

int mu_stacks_look(struct mu_stacks_look *l, int64_t pid, const struct mu_stacks_report *head,
                   struct mu_buf *out, struct mu_errmsg *reterr_why)
{
    const struct mu_peek *peek = l->peek;
    struct mu_stacks_known known = l->known;
    bool main_only = l->main_only;
    struct mu_stacks_report report = *head;
    int err;

    memset(l, 0, sizeof(*l));
    l->peek = peek;
    l->known = known;
    l->main_only = main_only;
    l->pid = report.pid = pid;
    err = peek->open(pid, &l->process);
    if (err == 0) {
        err = peek->threads(l->process, l->tids, MU_STACKS_TASKS_MAX, &l->tid_count);
    }
    if (err == 0) {
        put_main_first(l);
        mu_stacks_writer_init(&l->writer);
        err = look_at(l, &report, out);
        mu_stacks_writer_fini(&l->writer);
    }
    if (err == 0) {
        err = peek->same(l->process);
    }
    peek->close(l->process);
    if (err == -ESRCH) {
        return mu_err(reterr_why, MUSTER_ENOENT, "there is no process %lld on this machine",
                      (long long)pid);
    }
    return err == 0
               ? 0
               : mu_err(reterr_why, err, "process %lld: %s", (long long)pid, muster_strerror(err));
}
