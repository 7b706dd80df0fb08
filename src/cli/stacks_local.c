/*
 * The workers of every `muster run` on this machine, found by their processes. An agent has a child
 * named muster-watch (docs/children.md); its workers are those of its other children whose
 * environment says which rank they have.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cmd_stacks.h"
#include "codec/rdzv/params.h"
#include "core/alloc.h"
#include "core/printable.h"

#define ENVIRON_BYTES ((size_t)1 << 20) /* the variables that matter come first */

struct process {
    int64_t pid;
    int64_t parent;
    bool watch; /* it is an agent's muster-watch */
    bool agent; /* it has such a child */
};

struct worker {
    int64_t pid;
    int64_t agent;
    size_t job;    /* the first worker of its job: several may have the same id, above all "none" */
    uint32_t rank; /* or MU_STACKS_NO_RANK */
    uint32_t local_rank;
    uint32_t world;
    uint64_t round;
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
};

struct machine {
    struct process *processes;
    size_t process_count;
    size_t process_cap;
    struct worker *workers;
    size_t worker_count;
    char *environment; /* ENVIRON_BYTES */
    bool failed;       /* no memory */
};

/* --- /proc ------------------------------------------------------------------------------------ */

/* Reads a file of a process, and ends it with a zero. Returns the length, 0 if there is nothing. */
static size_t read_proc(int64_t pid, const char *name, char *to, size_t cap)
{
    char path[64];
    size_t len = 0;
    ssize_t n = 1;
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64 "/%s", pid, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    while (n > 0 && len + 1 < cap) {
        n = read(fd, to + len, cap - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    (void)close(fd);
    to[len] = '\0';
    return len;
}

static bool is_ours(int64_t pid)
{
    struct stat st;
    char path[32];

    (void)snprintf(path, sizeof(path), "/proc/%" PRId64, pid);
    return stat(path, &st) == 0 && (geteuid() == 0 || st.st_uid == geteuid());
}

/* The name of the process is in brackets, and may hold any, too. */
static bool read_process(int64_t pid, struct process *ret)
{
    char text[512];
    char *end;

    if (read_proc(pid, "stat", text, sizeof(text)) == 0) {
        return false;
    }
    end = strrchr(text, ')');
    if (end == NULL || strlen(end) < 4) {
        return false;
    }
    *ret = (struct process){
        .pid = pid,
        .parent = strtoll(end + 4, NULL, 10),
        .watch = strstr(text, "(muster-watch)") != NULL,
    };
    return true;
}

static void add_process(struct machine *m, const struct process *p)
{
    if (m->process_count == m->process_cap) {
        size_t cap = m->process_cap == 0 ? 256 : 2 * m->process_cap;
        struct process *grown = mu_realloc(m->processes, cap * sizeof(*grown));

        if (grown == NULL) {
            m->failed = true;
            return;
        }
        m->processes = grown;
        m->process_cap = cap;
    }
    m->processes[m->process_count++] = *p;
}

static int compare_pids(const void *a, const void *b)
{
    const struct process *x = a;
    const struct process *y = b;

    return (x->pid > y->pid) - (x->pid < y->pid);
}

static void list_processes(struct machine *m)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;

    if (proc == NULL) {
        return;
    }
    while ((entry = readdir(proc)) != NULL) {
        struct process p;
        uint64_t pid;

        if (cli_parse_number(entry->d_name, false, INT32_MAX, &pid) && is_ours((int64_t)pid) &&
            read_process((int64_t)pid, &p)) {
            add_process(m, &p);
        }
    }
    (void)closedir(proc);
    if (m->process_count != 0) {
        qsort(m->processes, m->process_count, sizeof(*m->processes), compare_pids);
    }
}

/* --- workers ---------------------------------------------------------------------------------- */

static struct process *find(const struct machine *m, int64_t pid)
{
    const struct process key = {.pid = pid};

    return m->process_count == 0
               ? NULL
               : bsearch(&key, m->processes, m->process_count, sizeof(*m->processes), compare_pids);
}

/* A variable of the environment that was read last; NULL: it is not there. */
static const char *variable(const char *list, size_t len, const char *name)
{
    size_t name_len = strlen(name);

    for (size_t at = 0; at < len; at += strlen(list + at) + 1) {
        if (strncmp(list + at, name, name_len) == 0 && list[at + name_len] == '=') {
            return list + at + name_len + 1;
        }
    }
    return NULL;
}

static uint64_t number(const char *text, uint64_t max, uint64_t otherwise)
{
    uint64_t value;

    return text != NULL && cli_parse_number(text, false, max, &value) ? value : otherwise;
}

static void add_worker(struct machine *m, const struct process *p, size_t len)
{
    const char *e = m->environment;
    const char *run_id = variable(e, len, "TORCHELASTIC_RUN_ID");
    struct worker *w = &m->workers[m->worker_count++];

    *w = (struct worker){
        .pid = p->pid,
        .agent = p->parent,
        .rank = (uint32_t)number(variable(e, len, "RANK"), INT32_MAX, MU_STACKS_NO_RANK),
        .local_rank =
            (uint32_t)number(variable(e, len, "LOCAL_RANK"), INT32_MAX, MU_STACKS_NO_RANK),
        .world = (uint32_t)number(variable(e, len, "WORLD_SIZE"), INT32_MAX, 0),
        .round = number(variable(e, len, "MUSTER_ROUND"), UINT64_MAX, 0),
    };
    (void)mu_printable(w->run_id, sizeof(w->run_id), mu_span_str(run_id == NULL ? "" : run_id),
                       false);
}

static void find_workers(struct machine *m)
{
    for (size_t i = 0; i < m->process_count; i++) {
        struct process *agent = m->processes[i].watch ? find(m, m->processes[i].parent) : NULL;

        if (agent != NULL) {
            agent->agent = true;
        }
    }
    for (size_t i = 0; i < m->process_count; i++) {
        const struct process *p = &m->processes[i];
        const struct process *parent = find(m, p->parent);

        if (parent != NULL && parent->agent && !p->watch) {
            size_t len = read_proc(p->pid, "environ", m->environment, ENVIRON_BYTES);

            if (variable(m->environment, len, "MUSTER_ROUND") != NULL) {
                add_worker(m, p, len); /* and no standby */
            }
        }
    }
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

static int compare_agents(const void *a, const void *b)
{
    const struct worker *x = a;
    const struct worker *y = b;
    int runs = strcmp(x->run_id, y->run_id);
    int agents = compare((uint64_t)x->agent, (uint64_t)y->agent);

    return runs != 0 ? runs : agents != 0 ? agents : compare(x->rank, y->rank);
}

static int compare_jobs(const void *a, const void *b)
{
    const struct worker *x = a;
    const struct worker *y = b;

    return x->job != y->job ? compare(x->job, y->job) : compare(x->rank, y->rank);
}

/* Whether a worker can be of the job that begins with `job`, none of whose workers is its rank. */
static bool fits(const struct machine *m, size_t job, size_t i)
{
    const struct worker *w = &m->workers[i];

    if (strcmp(m->workers[job].run_id, w->run_id) != 0 || m->workers[job].world != w->world) {
        return false;
    }
    for (size_t j = job; j < i; j++) {
        if (m->workers[j].job == job && m->workers[j].agent != w->agent &&
            m->workers[j].rank == w->rank) {
            return false;
        }
    }
    return true;
}

/* Tells jobs with the same id apart: two agents of one job have no rank in common. */
static void tell_jobs(struct machine *m)
{
    for (size_t i = 0, end; i < m->worker_count; i = end) {
        size_t job = 0;

        for (end = i; end < m->worker_count && m->workers[end].agent == m->workers[i].agent;) {
            end++;
        }
        while (job < i && (m->workers[job].job != job || !fits(m, job, i))) {
            job++;
        }
        for (size_t j = i; j < end; j++) {
            m->workers[j].job = job;
        }
    }
}

static void look_around(struct machine *m)
{
    list_processes(m);
    m->workers = mu_calloc(m->process_count + 1, sizeof(*m->workers));
    m->environment = mu_malloc(ENVIRON_BYTES);
    m->failed = m->failed || m->workers == NULL || m->environment == NULL;
    if (!m->failed) {
        find_workers(m);
        qsort(m->workers, m->worker_count, sizeof(*m->workers), compare_agents);
        tell_jobs(m);
        qsort(m->workers, m->worker_count, sizeof(*m->workers), compare_jobs);
    }
}

/* --- what they do ----------------------------------------------------------------------------- */

static int take(const struct worker *workers, size_t count, struct stacks_page *page)
{
    struct stacks_list *list = stacks_list_new();
    int code = list == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;

    for (size_t i = 0; code == 0 && i < count; i++) {
        const struct mu_stacks_report head = {.pid = workers[i].pid,
                                              .rank = workers[i].rank,
                                              .local_rank = workers[i].local_rank,
                                              .round = workers[i].round};

        (void)stacks_list_add(list, &head);
    }
    code = code != 0 ? code : stacks_list_take(list);
    for (size_t i = 0; code == 0 && i < stacks_list_count(list); i++) {
        struct mu_span report;
        const char *why;

        int err = stacks_list_report(list, i, &report, &why);

        /* One that has ended meanwhile is no worker any more. */
        if (err == MUSTER_ETIMEDOUT) {
            (void)cli_fail(CLI_FAILED, "%s", why);
        } else if (err == 0 && stacks_page_add(page, report) != 0) {
            code = cli_fail(CLI_FAILED, "out of memory");
        }
    }
    stacks_list_free(list);
    return code;
}

/* One run, or the part of it that is on this machine. */
static int show(const struct stacks_options *o, const struct worker *workers, size_t count)
{
    struct stacks_page page;
    int code;

    stacks_page_init(&page, o);
    code = take(workers, count, &page);
    if (code == 0 && o->json) {
        (void)json_object_set_new(page.object, "run_id", json_string(workers[0].run_id));
        (void)json_object_set_new(page.object, "round", json_integer((json_int_t)workers[0].round));
    } else if (code == 0) {
        printf("run %s, round %" PRIu64 ": %zu worker%s on this machine\n", workers[0].run_id,
               workers[0].round, page.count, page.count == 1 ? "" : "s");
    }
    code = code != 0 ? code : stacks_page_print(&page);
    stacks_page_fini(&page);
    return code;
}

static int show_all(const struct stacks_options *o, const struct machine *m)
{
    size_t shown = 0;
    int code = CLI_OK;

    for (size_t i = 0, end; i < m->worker_count && code == CLI_OK; i = end) {
        end = i + 1;
        while (end < m->worker_count && m->workers[end].job == m->workers[i].job) {
            end++;
        }
        if (o->run_id == NULL || strcmp(o->run_id, m->workers[i].run_id) == 0) {
            if (shown++ != 0 && !o->json) {
                printf("\n");
            }
            code = show(o, &m->workers[i], end - i);
        }
    }
    if (shown == 0) {
        return cli_fail(CLI_FAILED,
                        "no worker of %s%s%s is on this machine%s; name the run's nodes with "
                        "--rdzv-endpoint, or any processes with --pid",
                        o->run_id != NULL ? "run \"" : "`muster run`",
                        o->run_id != NULL ? o->run_id : "", o->run_id != NULL ? "\"" : "",
                        geteuid() == 0 ? "" : ", or it is another user's");
    }
    return code;
}

int stacks_local(const struct stacks_options *o)
{
    struct machine m = {0};
    int code;

    look_around(&m);
    code = m.failed ? cli_fail(CLI_FAILED, "out of memory") : show_all(o, &m);
    mu_free(m.processes);
    mu_free(m.workers);
    mu_free(m.environment);
    return code;
}
