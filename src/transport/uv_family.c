/*
 * Families: which process descends from which child. Since we are a subreaper, a process whose
 * parents have died is a child of ours. So a walk up from any descendant ends at us, and the last
 * of a family to die is a child of ours: the kernel tells us with SIGCHLD, and we need not poll.
 * Only killing polls: what is being killed may fork meanwhile, and must not win.
 *
 * Not every orphan is of a family: as pid 1 we get those of all others as well, and a shell that
 * became this program leaves its children to us. These are reaped, and otherwise left alone.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/err.h"
#include "transport/child_internal.h"

/* Owners, in a survey, of processes that do not belong to a child. */
static char foreign;
static char stray;

/* A chain of parents longer than this was read while it changed. */
#define DEPTH_MAX 4096

/* In how many surveys in a row a process may be in the middle of an exec before it counts as one
 * without a mark. */
#define UNSURE_MAX 64

/* How often processes that are being killed are looked for again. */
#define REST_MIN_MS 1
#define REST_MAX_MS 64

static struct mu_uv_child *child_of(struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_uv_child, link);
}

/* --- owners ----------------------------------------------------------------------------------- */

static void *owner_of_number(struct mu_uv_families *f, uint64_t number)
{
    MU_LIST_FOREACH (it, &f->children) {
        if (child_of(it)->number == number) {
            return child_of(it);
        }
    }
    return &stray;
}

static struct mu_uv_child *child_with_pid(struct mu_uv_families *f, pid_t pid)
{
    MU_LIST_FOREACH (it, &f->children) {
        if (child_of(it)->pid == pid && !child_of(it)->reaped) {
            return child_of(it);
        }
    }
    return NULL;
}

static bool read_mark(struct mu_uv_families *f, const struct mu_proc *p, uint64_t *ret_number)
{
    char mark[MU_PROC_MARK_MAX];
    const char *at;
    int rc = mu_proc_variable(p, MU_CHILD_MARK, mark);

    if (rc != 0) {
        f->unsure = f->unsure || (rc == -EAGAIN && !p->dead);
        return false;
    }
    at = strstr(mark, f->cgroup.id);
    if (at == NULL || at[MU_FAMILY_ID_LEN] != '.') {
        return false;
    }
    *ret_number = 0;
    for (at += MU_FAMILY_ID_LEN + 1; *at >= '0' && *at <= '9'; at++) {
        *ret_number = *ret_number * 10 + (uint64_t)(*at - '0');
    }
    return true;
}

/* The owner of a child process of ours. */
static void *owner_of_root(struct mu_uv_families *f, const struct mu_proc *p)
{
    struct mu_uv_child *c = child_with_pid(f, p->pid);
    char text[16 + MU_FAMILY_ID_LEN];
    uint64_t number;

    if (c != NULL) {
        return c;
    }
    /* Our children start sessions of their own: a process in our session is not one of theirs. */
    if (p->pid == f->watch.pid || p->sid == getsid(0)) {
        return &foreign;
    }
    MU_LIST_FOREACH (it, &f->children) {
        if (p->sid == child_of(it)->pid || p->pgid == child_of(it)->pid) {
            return child_of(it);
        }
    }
    (void)snprintf(text, sizeof(text), "muster-%s-", f->cgroup.id);
    if (mu_proc_cgroup_number(p->pid, text, &number) || read_mark(f, p, &number)) {
        return owner_of_number(f, number);
    }
    return f->exclusive ? &stray : &foreign;
}

/* The owner of the first of its parents that has a known owner, or is a child of ours. */
static void *find_owner(struct mu_uv_families *f, struct mu_proc *p, pid_t self)
{
    for (int depth = 0; depth < DEPTH_MAX; depth++) {
        struct mu_proc *parent;

        if (p->owner != NULL) {
            return p->owner;
        }
        if (p->ppid == self) {
            p->owner = owner_of_root(f, p);
            return p->owner;
        }
        if (p->ppid == 0) {
            return &foreign;
        }
        parent = mu_proc_table_find(&f->table, p->ppid);
        if (parent == NULL) {
            struct mu_proc now;

            /* Its parent died while we read: it has another parent now, perhaps us. */
            if (mu_proc_read(p->pid, &now) != 0 || now.start != p->start || now.ppid == p->ppid) {
                return &foreign;
            }
            p->ppid = now.ppid;
            continue;
        }
        p = parent;
    }
    return &foreign;
}

/* Reads all processes, finds the owner of each, and reaps dead orphans. */
static int take_stock(struct mu_uv_families *f, size_t *ret_strays)
{
    pid_t self = getpid();
    int rc = mu_proc_table_read(&f->table);

    if (rc != 0) {
        return rc;
    }
    *ret_strays = 0;
    f->unsure = false;
    MU_LIST_FOREACH (it, &f->children) {
        child_of(it)->alive = 0;
    }
    for (size_t i = 0; i < f->table.count; i++) {
        struct mu_proc *p = &f->table.procs[i];

        p->owner = p->pid == self ? &foreign : find_owner(f, p, self);
        if (p->owner == &foreign) {
            continue;
        }
        if (p->dead) {
            if (p->ppid == self && child_with_pid(f, p->pid) == NULL) {
                (void)waitpid(p->pid, NULL, WNOHANG);
            }
        } else if (p->owner == &stray) {
            ++*ret_strays;
        } else {
            ((struct mu_uv_child *)p->owner)->alive++;
        }
    }
    return 0;
}

/* --- killing and judging ---------------------------------------------------------------------- */

/* Kills the doomed processes of the table; true if there was any. */
static bool kill_doomed(struct mu_uv_families *f)
{
    bool all = true;
    bool any = false;

    MU_LIST_FOREACH (it, &f->children) {
        struct mu_uv_child *c = child_of(it);

        all = all && (c->killing || c->aside);
        if (c->killing && c->cgroup && c->alive > 0) {
            (void)mu_cgroup_kill(&f->cgroup, c->number);
        }
    }
    for (size_t i = 0; i < f->table.count; i++) {
        const struct mu_proc *p = &f->table.procs[i];

        if (p->dead || p->owner == &foreign ||
            !(p->owner == &stray ? all : ((struct mu_uv_child *)p->owner)->killing)) {
            continue;
        }
        (void)mu_proc_signal(p, SIGKILL);
        any = true;
    }
    return any;
}

/* Finds families that are gone; true if another survey is needed. */
static bool judge(struct mu_uv_families *f, size_t strays)
{
    size_t left = 0;
    bool again = false;

    MU_LIST_FOREACH (it, &f->children) {
        left += child_of(it)->empty_surveys < 2 && !child_of(it)->aside;
    }
    MU_LIST_FOREACH (it, &f->children) {
        struct mu_uv_child *c = child_of(it);

        if (!c->reaped || c->empty_surveys >= 2) {
            continue;
        }
        if (c->alive > 0 || (left == 1 && strays > 0 && !c->aside)) {
            c->empty_surveys = 0;
            continue;
        }
        /* One survey may miss a process born meanwhile, with a pid that was already passed. */
        if (++c->empty_surveys < 2) {
            again = true;
            continue;
        }
        left -= !c->aside;
        mu_uv_child_end_soon(c);
    }
    return again;
}

static void look_again_in(struct mu_uv_families *f, uint64_t ms)
{
    mu_env_timer_arm(&f->uv->env, &f->timer, mu_mono_add_ms(mu_env_now(&f->uv->env).mono, ms));
}

static void survey(struct mu_uv_families *f)
{
    bool needed = false;
    bool killing = false;
    bool unsure;
    size_t strays = 0;

    MU_LIST_FOREACH (it, &f->children) {
        struct mu_uv_child *c = child_of(it);

        needed = needed || (c->empty_surveys < 2 && (c->reaped || c->killing));
    }
    if (!needed) {
        return;
    }
    if (take_stock(f, &strays) != 0) {
        /* No descriptors, or no /proc: without it we cannot say that a family is gone. */
        look_again_in(f, REST_MAX_MS);
        return;
    }
    killing = kill_doomed(f);
    /* A process in the middle of an exec may belong to any family: no family counts as gone until
     * the exec is over. */
    f->unsure_surveys = f->unsure ? f->unsure_surveys + 1 : 0;
    unsure = f->unsure && f->unsure_surveys < UNSURE_MAX;
    if (!unsure && judge(f, strays)) {
        mu_uv_families_survey_soon(f);
    }
    mu_proc_table_clear(&f->table);
    if (killing) {
        look_again_in(f, f->rest_ms);
        f->rest_ms = f->rest_ms * 2 > REST_MAX_MS ? REST_MAX_MS : f->rest_ms * 2;
    } else if (unsure) {
        look_again_in(f, f->unsure_surveys);
    }
}

static void on_later(struct mu_uv_later *later)
{
    survey(MU_CONTAINER_OF(later, struct mu_uv_families, later));
}

static void on_timer(struct mu_timer *timer)
{
    survey(MU_CONTAINER_OF(timer, struct mu_uv_families, timer));
}

void mu_uv_families_survey_soon(struct mu_uv_families *f)
{
    mu_uv_later_add(f->uv, &f->later);
}

int mu_uv_family_signal(struct mu_uv_child *c, int signal, bool group_only)
{
    struct mu_uv_families *f = c->families;
    size_t strays;
    int rc = take_stock(f, &strays);
    bool any = false;

    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; i < f->table.count; i++) {
        const struct mu_proc *p = &f->table.procs[i];

        if (p->owner == c && !p->dead && (!group_only || p->pgid == c->pid)) {
            any = mu_proc_signal(p, signal) == 0 || any;
        }
    }
    if (c->killing) {
        f->rest_ms = REST_MIN_MS;
        any = kill_doomed(f) || any;
    }
    mu_proc_table_clear(&f->table);
    /* A process that was found dead has been reaped: SIGCHLD does not report its death any more. */
    mu_uv_families_survey_soon(f);
    return any ? 0 : -ESRCH;
}

/* --- SIGCHLD ---------------------------------------------------------------------------------- */

static void on_sigchld(uv_signal_t *handle, int number)
{
    struct mu_uv_families *f = handle->data;
    bool look = false;

    (void)number;
    /* Children without a pidfd: below, a dead child of other code may hide them. */
    MU_LIST_FOREACH (it, &f->children) {
        if (child_of(it)->pidfd < 0) {
            mu_uv_child_look(child_of(it));
        }
    }
    for (;;) {
        siginfo_t info = {0};
        struct mu_uv_child *c;

        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
            break;
        }
        c = child_with_pid(f, info.si_pid);
        if (c != NULL) {
            mu_uv_child_look(c);
            continue;
        }
        look = true;
        if (info.si_pid != f->watch.pid && getsid(info.si_pid) == getsid(0) && getpid() != 1) {
            break; /* other code must reap it; the survey finds what it hides */
        }
        (void)waitpid(info.si_pid, NULL, WNOHANG);
        if (info.si_pid == f->watch.pid) {
            /* The watcher was killed. The next spawn starts another one. */
            (void)close(f->watch.fd);
            f->watch = (struct mu_watch){0};
        }
    }
    if (look) {
        mu_uv_families_survey_soon(f);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

static void make_id(struct mu_uv_env *uv, char id[MU_FAMILY_ID_LEN + 1])
{
    static const char digits[] = "0123456789abcdef";
    uint8_t bytes[MU_FAMILY_ID_LEN];

    mu_env_entropy(&uv->env, bytes, sizeof(bytes));
    for (size_t i = 0; i < sizeof(bytes); i++) {
        id[i] = digits[bytes[i] & 15];
    }
    id[MU_FAMILY_ID_LEN] = '\0';
}

/*
 * Whether every orphan that comes to us descends from a child of the families. Not as pid 1, to
 * which all orphans of a container come, nor if we already have children: the program that started
 * those became this one by exec, and their descendants will become our orphans one day.
 */
static bool is_exclusive(void)
{
    siginfo_t info;

    return getpid() != 1 && waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
           errno == ECHILD;
}

static int start_families(struct mu_uv_families *f)
{
    char id[MU_FAMILY_ID_LEN + 1];
    int was = 0;
    int rc = mu_proc_table_init(&f->table);

    if (rc != 0) {
        return MUSTER_ENOMEM;
    }
    if (prctl(PR_GET_CHILD_SUBREAPER, &was) != 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        rc = -errno;
        mu_proc_table_fini(&f->table);
        return rc;
    }
    f->was_subreaper = was != 0;
    f->exclusive = is_exclusive();
    rc = uv_signal_init(&f->uv->loop, &f->chld);
    if (rc != 0) {
        mu_proc_table_fini(&f->table);
        return rc;
    }
    f->chld.data = f;
    make_id(f->uv, id);
    mu_cgroup_find(&f->cgroup, id);
    f->uv->families = f;
    return uv_signal_start(&f->chld, on_sigchld, SIGCHLD);
}

int mu_uv_families_get(struct mu_uv_env *uv, struct mu_uv_families **ret)
{
    struct mu_uv_families *f = uv->families;
    int rc;

    if (f == NULL) {
        f = mu_calloc(1, sizeof(*f));
        if (f == NULL) {
            return MUSTER_ENOMEM;
        }
        f->uv = uv;
        f->rest_ms = REST_MIN_MS;
        mu_list_init(&f->children);
        mu_list_init(&f->later.link);
        f->later.run = on_later;
        mu_timer_init(&f->timer, on_timer);
        rc = start_families(f);
        if (rc != 0) {
            if (uv->families == NULL) {
                mu_free(f);
            }
            return rc;
        }
        if (uv->no_cgroups) {
            f->cgroup.base[0] = '\0';
        }
    }
    if (f->watch.pid == 0) {
        rc = mu_watch_start(&f->watch, &f->cgroup);
        if (rc != 0) {
            return rc;
        }
        MU_LIST_FOREACH (it, &f->children) {
            mu_watch_tell(&f->watch, child_of(it)->pid, true);
        }
        mu_watch_until(&f->watch, uv->children_until);
    }
    *ret = f;
    return 0;
}

void mu_uv_children_until(struct mu_env *env, mu_mono_t until)
{
    struct mu_uv_env *uv = mu_uv_of(env);

    uv->children_until = until; /* for a watcher that is started later */
    if (uv->families != NULL) {
        mu_watch_until(&uv->families->watch, until);
    }
}

/* Families whose owners let go outlive the loop: tells the watcher which, and for how long. Also of
 * orphans, whatever binds them to a family now: when the watcher looks, they may have another
 * session and no mark. */
static void leave_to_watcher(struct mu_uv_families *f)
{
    mu_mono_t now = mu_env_now(&f->uv->env).mono;
    pid_t self = getpid();
    uint64_t grace_ms = 0;
    size_t strays = 0;

    if (take_stock(f, &strays) == 0) {
        for (size_t i = 0; i < f->table.count; i++) {
            const struct mu_proc *p = &f->table.procs[i];

            if (!p->dead && (p->owner == &stray || (p->owner != &foreign && p->ppid == self))) {
                mu_watch_tell(&f->watch, p->pid, true);
            }
        }
    }
    mu_proc_table_clear(&f->table);
    while (!mu_list_empty(&f->children)) {
        struct mu_uv_child *c = child_of(f->children.next);
        uint64_t ms = mu_mono_until_ms(c->kill_at, now);

        grace_ms = ms > grace_ms ? ms : grace_ms;
        mu_uv_child_drop(c);
    }
    mu_watch_leave(&f->watch, grace_ms);
}

void mu_uv_families_stop(struct mu_uv_env *uv)
{
    struct mu_uv_families *f = uv->families;

    if (f == NULL) {
        return;
    }
    if (!mu_list_empty(&f->children)) {
        leave_to_watcher(f);
    }
    mu_env_timer_arm(&uv->env, &f->timer, MU_MONO_NEVER);
    mu_list_remove(&f->later.link);
    mu_watch_stop(&f->watch);
    if (!f->was_subreaper) {
        (void)prctl(PR_SET_CHILD_SUBREAPER, 0);
    }
    uv_close((uv_handle_t *)&f->chld, NULL);
}

void mu_uv_families_free(struct mu_uv_env *uv)
{
    if (uv->families != NULL) {
        mu_proc_table_fini(&uv->families->table);
        mu_free(uv->families);
        uv->families = NULL;
    }
}
