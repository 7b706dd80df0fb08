/* What the workers of agent_hang_world.h really do, and what can be seen of it. */
#include "scenarios/agent/agent_hang_world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DESCENDANT 1000000 /* is added to the pid of the worker that it descends from */

/* What is seen has no context. */
static _Thread_local struct hang_world *seen;

/* --- the truth -------------------------------------------------------------------------------- */

bool hang_is_still(enum act act)
{
    return act >= ACT_WAIT;
}

/* For how long a rank has done that. */
static uint64_t done_ns(const struct hang_world *w, uint32_t rank, enum act act)
{
    const struct truth *t = &w->truths[rank];

    return t->done_ns[act] + (t->act == act && mu_sim_now_ns(w->sim) > t->since_ns
                                  ? mu_sim_now_ns(w->sim) - t->since_ns
                                  : 0);
}

/* From `at_ns` on, until when it does nothing. */
void hang_set_act(struct hang_world *w, uint32_t rank, enum act act, uint64_t at_ns)
{
    struct truth *t = &w->truths[rank];

    t->done_ns[t->act] = done_ns(w, rank, t->act);
    t->act = act;
    t->since_ns = at_ns;
}

/* --- what can be seen of it ------------------------------------------------------------------- */

struct wanted {
    int64_t pid;
    uint32_t rank;
    bool found;
};

static void find_process(void *arg, const struct mu_sim_process *p)
{
    struct wanted *want = arg;
    const char *rank = mu_sim_process_variable(p, "RANK");

    if (p->pid == want->pid && rank != NULL) {
        want->found = true;
        want->rank = (uint32_t)strtoul(rank, NULL, 10);
    }
}

static int peek_open(int64_t pid, struct mu_peek_process **ret)
{
    struct wanted want = {.pid = pid > DESCENDANT ? pid - DESCENDANT : pid};
    struct mu_peek_process *p;

    mu_sim_each_process(seen->sim, find_process, &want);
    if (!want.found || want.rank >= hang_rank_count(seen)) {
        return -ESRCH;
    }
    p = &seen->peeks[2 * want.rank + (pid > DESCENDANT ? 1 : 0)];
    p->users = p->pid == pid ? p->users + 1 : 1;
    p->pid = pid;
    p->rank = want.rank;
    *ret = p;
    return 0;
}

static void peek_close(struct mu_peek_process *p)
{
    (void)p;
}

static int peek_same(struct mu_peek_process *p)
{
    struct mu_peek_process *again;

    return peek_open(p->pid, &again);
}

static int peek_read(struct mu_peek_process *p, uint64_t addr, void *to, size_t len)
{
    (void)p;
    (void)addr;
    (void)to;
    (void)len;
    return -EPERM;
}

static int peek_exe(struct mu_peek_process *p, char *buf, size_t cap, size_t *ret_len)
{
    (void)p;
    *ret_len = (size_t)snprintf(buf, cap, "/worker");
    return 0;
}

static int peek_threads(struct mu_peek_process *p, uint64_t *tids, size_t cap, size_t *ret_count)
{
    (void)cap;
    tids[0] = (uint64_t)p->pid;
    *ret_count = 1;
    return 0;
}

static const char *place_of(const struct truth *t)
{
    return t->act == ACT_STUCK ? "futex_wait" : t->act == ACT_STOPPED ? "do_signal_stop" : "wait";
}

static int peek_text(struct mu_peek_process *p, uint64_t tid, const char *name, uint64_t offset,
                     char *buf, size_t cap, size_t *ret_len)
{
    const struct truth *t = &seen->truths[p->rank];
    bool descends = p->pid > DESCENDANT;
    uint64_t ticks = done_ns(seen, p->rank, descends ? ACT_CHILD : ACT_COMPUTE) / 10000000;
    struct mu_peek_process *again;
    int len = 0;

    (void)tid;
    if (peek_open(p->pid, &again) != 0) {
        return -ESRCH;
    }
    if (strcmp(name, "stat") == 0) {
        len = snprintf(buf, cap,
                       "%" PRId64 " (worker) %c 1 1 1 0 -1 0 0 0 0 0 %" PRIu64
                       " 0 0 0 20 0 1 0 100 0 0",
                       p->pid,
                       descends                ? 'S'
                       : t->act == ACT_STOPPED ? 'T'
                       : t->act == ACT_COMPUTE ? 'R'
                                               : 'S',
                       ticks);
    } else if (strcmp(name, "io") == 0) {
        len = snprintf(buf, cap, "rchar: 5\nwchar: %" PRIu64 "\n",
                       descends ? 0 : done_ns(seen, p->rank, ACT_WRITE) / 1000);
    } else if (strcmp(name, "status") == 0) {
        len = snprintf(buf, cap, "Name:\tworker\nTracerPid:\t%d\n",
                       t->act == ACT_TRACED && !descends ? 1 : 0);
    } else if (strcmp(name, "wchan") == 0) {
        len = snprintf(buf, cap, "%s", place_of(t));
    } else if (strcmp(name, "children") == 0 && !descends && seen->plant != HANG_PLANT_CHILDLESS) {
        len = snprintf(buf, cap, "%" PRId64 " ", p->pid + DESCENDANT);
    }
    *ret_len = offset == 0 && len > 0 ? (size_t)len : 0;
    return 0;
}

static int peek_machine(const char *name, char *buf, size_t cap, size_t *ret_len)
{
    (void)name;
    (void)buf;
    (void)cap;
    *ret_len = 0;
    return 0;
}

static int peek_open_file(struct mu_peek_process *p, const char *path)
{
    (void)p;
    (void)path;
    return -ENOENT;
}

static int peek_file_state(struct mu_peek_process *p, uint64_t *ret_len, uint64_t *ret_mark)
{
    (void)p;
    (void)ret_len;
    (void)ret_mark;
    return -ENOENT;
}

static int peek_read_file(struct mu_peek_process *p, uint64_t offset, void *to, size_t len)
{
    return peek_read(p, offset, to, len);
}

static int peek_poke(struct mu_peek_process *p, const char *path)
{
    return peek_open_file(p, path);
}

static const struct mu_peek peek = {.open = peek_open,
                                    .close = peek_close,
                                    .same = peek_same,
                                    .read = peek_read,
                                    .exe = peek_exe,
                                    .threads = peek_threads,
                                    .text = peek_text,
                                    .machine = peek_machine,
                                    .open_file = peek_open_file,
                                    .file_state = peek_file_state,
                                    .read_file = peek_read_file,
                                    .poke = peek_poke};

const struct mu_peek *hang_peek(struct hang_world *w)
{
    seen = w;
    return &peek;
}
