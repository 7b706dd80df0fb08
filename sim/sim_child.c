#include "sim_child.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"
#include "core/err.h"
#include "sim_impl.h"

/* How much a pipe holds. */
#define PIPE_MAX  65536u
#define LINE_LEN  1024u
#define START_NS  MU_NS_PER_MS           /* from spawn to exec, at most */
#define STEP_NS   (20 * UINT64_C(1000))  /* between two words of a script, at most */
#define DEATH_NS  (200 * UINT64_C(1000)) /* from a deadly signal to the end, at most */
#define ORPHAN_NS MU_NS_PER_MS

struct stream {
    struct mu_buf bytes;
    bool piped;
    bool paused;
    bool in_output;
    bool resumed;
    bool ended; /* the owner was told, or there is no pipe */
};

struct family {
    struct mu_list link; /* of sim->families */
    struct mu_sim *sim;
    struct mu_sim_host *host;
    struct mu_sim_proc *proc; /* the process that started it; NULL when that is dead */
    struct mu_child *child;   /* NULL if `proc` is */
    struct sim_action tell;
    struct mu_list beasts; /* those that are alive */
    struct beast *leader;  /* NULL once it is dead */
    int64_t pid;
    char **argv; /* copies */
    char **envp;
    char **script;
    struct stream streams[2];
    bool told_start;
    bool told_exit;
    bool left;
    bool telling; /* inside a callback */
    int start_status;
    int status;
};

/* One process. */
struct beast {
    struct mu_list link; /* of family->beasts */
    struct family *family;
    struct sim_action step;
    int64_t pid;
    size_t at;        /* the next word of the script; of the leader only */
    uint64_t done;    /* of a flood, in bytes */
    uint64_t wake_ns; /* when it continues, if it is not stopped */
    uint64_t ignore;  /* a bit for each signal */
    bool daemon;      /* not in its leader's group */
    bool stopped;
    bool blocked; /* its pipe is full */
    bool dying;
    int death; /* the status it dies with */
};

static void kill_beast(struct beast *b, int status, uint64_t within_ns);

/* --- texts ------------------------------------------------------------------------------------ */

static void free_texts(char **texts)
{
    for (size_t i = 0; texts != NULL && texts[i] != NULL; i++) {
        mu_free(texts[i]);
    }
    mu_free(texts);
}

/* Copies into the test's memory; never fails. */
static char **copy_texts(const char *const *texts)
{
    size_t count = 0;
    char **copy;

    while (texts != NULL && texts[count] != NULL) {
        count++;
    }
    copy = mu_calloc(count + 1, sizeof(*copy));
    MU_ASSERT(copy != NULL);
    for (size_t i = 0; i < count; i++) {
        copy[i] = mu_strndup(texts[i], strlen(texts[i]));
        MU_ASSERT(copy[i] != NULL);
    }
    return copy;
}

static int run_zoo(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                   const char *const **ret_script)
{
    const char *slash = strrchr(what->argv[0], '/');

    (void)arg;
    (void)host;
    if (strcmp(slash == NULL ? what->argv[0] : slash + 1, "zoo") != 0) {
        return -ENOENT;
    }
    *ret_script = what->argv + 1;
    return 0;
}

void mu_sim_set_exec(struct mu_sim *sim, mu_sim_exec *exec, void *arg)
{
    sim->exec = exec;
    sim->exec_arg = arg;
}

/* --- callbacks -------------------------------------------------------------------------------- */

static void free_family(struct family *f)
{
    sim_cancel(f->sim, &f->tell);
    mu_list_remove(&f->link);
    mu_buf_fini(&f->streams[0].bytes);
    mu_buf_fini(&f->streams[1].bytes);
    free_texts(f->argv);
    free_texts(f->envp);
    free_texts(f->script);
    mu_free(f);
}

static void tell_soon(struct family *f)
{
    if (f->proc == NULL) {
        if (mu_list_empty(&f->beasts) && !f->telling) {
            free_family(f);
        }
    } else if (!sim_scheduled(&f->tell) && f->told_start) {
        sim_schedule(f->sim, &f->tell, f->sim->now_ns + mu_prng_below(&f->sim->prng, STEP_NS + 1));
    }
}

/* Arms the next word of the script, but not while it is stopped; UINT64_MAX: never. */
static void go_on(struct beast *b, uint64_t at_ns)
{
    b->wake_ns = at_ns;
    if (!b->stopped && !b->dying && at_ns != UINT64_MAX) {
        sim_schedule(b->family->sim, &b->step, at_ns);
    }
}

/* The leader's pipe has room again. */
static void unblock(struct family *f)
{
    if (f->leader != NULL && f->leader->blocked) {
        f->leader->blocked = false;
        go_on(f->leader, f->sim->now_ns);
    }
}

static void tell_output(struct family *f, int i)
{
    struct stream *s = &f->streams[i];
    struct mu_span in = mu_buf_span(&s->bytes);
    struct mu_child *child = f->child;
    struct mu_sim_proc *proc = f->proc;
    size_t used;

    if (in.len > 1 && mu_prng_chance(&f->sim->prng, f->sim->faults.chunk_ppm)) {
        in.len = 1 + (size_t)mu_prng_below(&f->sim->prng, in.len - 1);
    }
    sim_trace_step(f->sim, 2, in.len);
    s->in_output = true;
    s->resumed = false;
    sim_enter(proc);
    used = child->on->output(child, i == 0 ? MU_STDOUT : MU_STDERR, in);
    sim_leave(proc);
    s->in_output = false;
    MU_ASSERT(used <= in.len);
    s->paused = used < in.len && !s->resumed;
    mu_buf_consume(&s->bytes, used);
    if (in.len == 0) {
        s->ended = true;
    } else {
        unblock(f);
    }
}

/* Returns whether there is something of this stream to tell. */
static bool has_output(const struct family *f, const struct stream *s)
{
    return !s->ended && !s->paused && (s->bytes.len > 0 || mu_list_empty(&f->beasts));
}

/* Each step makes one callback. */
static void run_tell(struct sim_action *action)
{
    struct family *f = MU_CONTAINER_OF(action, struct family, tell);
    struct mu_child *child = f->child;
    struct mu_sim_proc *proc = f->proc;

    f->telling = true;
    if (!f->told_start) {
        sim_trace_step(f->sim, 1, (uint64_t)-f->start_status);
        f->told_start = true;
        child->pid = f->start_status == 0 ? f->pid : 0;
        sim_enter(proc);
        child->on->started(child, f->start_status);
        sim_leave(proc);
        if (f->leader != NULL) {
            go_on(f->leader, f->sim->now_ns);
        }
    } else if (f->start_status == 0 && has_output(f, &f->streams[0])) {
        tell_output(f, 0);
    } else if (f->start_status == 0 && has_output(f, &f->streams[1])) {
        tell_output(f, 1);
    } else if (f->start_status == 0 && f->leader == NULL && !f->told_exit) {
        sim_trace_step(f->sim, 3, (uint64_t)f->status & 0xffff);
        f->told_exit = true;
        sim_enter(proc);
        child->on->exited(child, f->status);
        sim_leave(proc);
    } else if (mu_list_empty(&f->beasts) && (f->start_status != 0 || f->told_exit) &&
               f->streams[0].ended && f->streams[1].ended) {
        sim_trace_step(f->sim, 4, 0);
        child->impl = NULL;
        free_family(f);
        sim_enter(proc);
        child->on->gone(child);
        sim_leave(proc);
        return;
    } else {
        sim_trace_step(f->sim, 0, 0);
        f->telling = false;
        return; /* nothing to tell before something happens */
    }
    f->telling = false;
    tell_soon(f);
}

/* --- processes -------------------------------------------------------------------------------- */

static void end_beast(struct beast *b)
{
    struct family *f = b->family;

    if (f->leader == b) {
        f->leader = NULL;
        f->status = b->death;
    }
    sim_cancel(f->sim, &b->step);
    mu_list_remove(&b->link);
    mu_free(b);
    tell_soon(f);
}

static struct beast *add_beast(struct family *f, void (*run)(struct sim_action *action))
{
    struct beast *b = mu_calloc(1, sizeof(*b));

    MU_ASSERT(b != NULL);
    b->family = f;
    b->pid = ++f->sim->last_pid;
    b->step = (struct sim_action){.run = run, .kind = SIM_PROCESS, .subject = (uint64_t)b->pid};
    mu_list_push(&f->beasts, &b->link);
    return b;
}

static void run_death(struct sim_action *action)
{
    struct beast *b = MU_CONTAINER_OF(action, struct beast, step);

    sim_trace_step(b->family->sim, 1, (uint64_t)b->death & 0xffff);
    end_beast(b);
}

static void kill_beast(struct beast *b, int status, uint64_t within_ns)
{
    struct mu_sim *sim = b->family->sim;

    if (!b->dying) {
        b->dying = true;
        b->death = status;
        b->step.run = run_death;
        sim_schedule(sim, &b->step, sim->now_ns + mu_prng_below(&sim->prng, within_ns + 1));
    }
}

static void add_descendant(struct family *f, uint64_t ms, bool daemon)
{
    struct beast *b = add_beast(f, run_death);

    b->ignore = UINT64_C(1) << SIGTERM;
    b->daemon = daemon;
    if (ms != 0) {
        sim_schedule(f->sim, &b->step, f->sim->now_ns + ms * MU_NS_PER_MS);
    }
}

static bool signal_beast(struct beast *b, int signal)
{
    bool obeys = signal == SIGKILL || (b->ignore >> signal & 1) == 0;

    if (b->dying) {
        return false;
    }
    if (signal == SIGSTOP) {
        b->stopped = true;
        if (b->step.run != run_death) {
            sim_cancel(b->family->sim, &b->step);
        }
    } else if (signal == SIGCONT) {
        bool was = b->stopped;

        b->stopped = false;
        if (was && b->family->leader == b && !b->blocked) {
            uint64_t now = b->family->sim->now_ns;

            go_on(b, b->wake_ns > now ? b->wake_ns : now);
        }
    } else if (signal != 0 && signal != SIGCHLD && obeys) {
        kill_beast(b, -signal, DEATH_NS);
    }
    return true;
}

/* Writes as much as there is room for; true when all is written. */
static bool write_some(struct beast *b, int i, const char *text, size_t len, const char *end)
{
    struct stream *s = &b->family->streams[i];
    size_t end_len = strlen(end);
    size_t total = len + end_len;

    while (s->piped && b->done < total) {
        size_t at = (size_t)b->done;
        struct mu_span part =
            at < len ? mu_span(text + at, len - at) : mu_span(end + (at - len), total - at);
        size_t room = PIPE_MAX - s->bytes.len;

        if (room == 0) {
            b->blocked = true;
            return false;
        }
        part.len = part.len > room ? room : part.len;
        MU_ASSERT(mu_buf_append(&s->bytes, part) == 0);
        b->done += part.len;
        tell_soon(b->family);
    }
    b->done = 0;
    return true;
}

static bool flood(struct beast *b, uint64_t lines)
{
    struct stream *s = &b->family->streams[0];
    char line[LINE_LEN];

    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    while (s->piped && b->done < lines) {
        if (s->bytes.len + LINE_LEN > PIPE_MAX) {
            b->blocked = true;
            return false;
        }
        MU_ASSERT(mu_buf_append(&s->bytes, mu_span(line, sizeof(line))) == 0);
        b->done++;
        tell_soon(b->family);
    }
    b->done = 0;
    return true;
}

static const char *value_of(const char *word, const char *name)
{
    size_t len = strlen(name);

    return strncmp(word, name, len) == 0 && word[len] == '=' ? word + len + 1 : NULL;
}

/* Runs one word; false when the word is not over yet, or the beast is dead. */
static bool run_word(struct beast *b, const char *word, uint64_t *ret_wait_ns)
{
    struct family *f = b->family;
    const char *v;

    if ((v = value_of(word, "out")) != NULL) {
        return write_some(b, 0, v, strlen(v), "\n");
    }
    if ((v = value_of(word, "err")) != NULL) {
        return write_some(b, 1, v, strlen(v), "\n");
    }
    if ((v = value_of(word, "part")) != NULL) {
        return write_some(b, 0, v, strlen(v), "");
    }
    if ((v = value_of(word, "flood")) != NULL) {
        return flood(b, strtoull(v, NULL, 10));
    }
    if ((v = value_of(word, "sleep")) != NULL) {
        uint64_t ms = strtoull(v, NULL, 10);

        *ret_wait_ns = ms == 0 ? UINT64_MAX : ms * MU_NS_PER_MS;
    } else if ((v = value_of(word, "exit")) != NULL) {
        kill_beast(b, (int)strtol(v, NULL, 10), 0);
    } else if ((v = value_of(word, "raise")) != NULL) {
        (void)signal_beast(b, (int)strtol(v, NULL, 10));
    } else if ((v = value_of(word, "ignore")) != NULL) {
        long number = strtol(v, NULL, 10);

        b->ignore |= number == 0 ? ~UINT64_C(0) : UINT64_C(1) << number;
    } else if ((v = value_of(word, "child")) != NULL) {
        add_descendant(f, strtoull(v, NULL, 10), false);
    } else if ((v = value_of(word, "daemon")) != NULL) {
        add_descendant(f, strtoull(v, NULL, 10), true);
    } else {
        mu_sim_fail(f->sim, "no program does '%s'", word);
    }
    return !b->dying;
}

static void run_script(struct sim_action *action)
{
    struct beast *b = MU_CONTAINER_OF(action, struct beast, step);
    struct family *f = b->family;
    const char *word = f->script[b->at];
    uint64_t wait_ns = mu_prng_below(&f->sim->prng, STEP_NS + 1);

    sim_trace_step(f->sim, 0, b->at);
    if (word == NULL) {
        kill_beast(b, 0, 0);
        return;
    }
    if (!run_word(b, word, &wait_ns)) {
        return;
    }
    b->at++;
    go_on(b, wait_ns == UINT64_MAX ? UINT64_MAX : f->sim->now_ns + wait_ns);
}

/* --- the verbs -------------------------------------------------------------------------------- */

static bool can_be(const struct mu_spawn *what)
{
    if (what->argv == NULL || what->argv[0] == NULL || what->argv[0][0] == '\0' ||
        what->envp == NULL) {
        return false;
    }
    for (int i = 0; i < 3; i++) {
        const struct mu_spawn_stream *s = &what->streams[i];
        bool file = s->to == MU_SPAWN_FILE || s->to == MU_SPAWN_FILE_APPEND;

        if ((file && s->path == NULL) ||
            (i == 0 && (s->to == MU_SPAWN_PIPE || s->to == MU_SPAWN_FILE_APPEND))) {
            return false;
        }
    }
    return true;
}

int sim_child_spawn(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct mu_sim *sim = proc->sim;
    const char *const *script = NULL;
    struct mu_sim_heap *heap;
    struct family *f;

    if (!can_be(what)) {
        return MUSTER_EINVAL;
    }
    if (what->channel != NULL) {
        return MUSTER_ENOTSUP;
    }
    if (mu_sim_out_of_memory(env)) {
        return MUSTER_ENOMEM;
    }
    if (what->from != NULL && sim_standby_take(what->from) != 0) {
        return MUSTER_EAGAIN;
    }
    heap = mu_sim_outside();
    f = mu_calloc(1, sizeof(*f));
    MU_ASSERT(f != NULL);
    f->sim = sim;
    f->host = proc->host;
    f->proc = proc;
    f->child = child;
    f->tell = (struct sim_action){.run = run_tell, .proc = proc, .kind = SIM_CHILD};
    mu_list_init(&f->beasts);
    for (int i = 0; i < 2; i++) {
        mu_buf_init(&f->streams[i].bytes, PIPE_MAX);
        f->streams[i].piped = what->streams[i + 1].to == MU_SPAWN_PIPE;
        f->streams[i].ended = !f->streams[i].piped;
    }
    f->argv = copy_texts(what->argv);
    f->envp = copy_texts(what->envp);
    f->start_status =
        (sim->exec == NULL ? run_zoo : sim->exec)(sim->exec_arg, proc->host, what, &script);
    child->error.text[0] = '\0';
    if (f->start_status == 0) {
        f->script = copy_texts(script);
        f->leader = add_beast(f, run_script);
        f->pid = f->leader->pid;
    } else {
        f->streams[0].ended = f->streams[1].ended = true;
        (void)mu_err(&child->error, f->start_status, "exec '%.200s': %s", what->argv[0],
                     muster_strerror(f->start_status));
    }
    f->tell.subject = (uint64_t)f->pid;
    mu_list_push(&sim->families, &f->link);
    mu_sim_inside(heap);
    child->env = env;
    child->impl = f;
    child->pid = 0;
    sim_schedule(sim, &f->tell, sim->now_ns + 1 + mu_prng_below(&sim->prng, START_NS));
    return 0;
}

int sim_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                     enum mu_child_scope scope)
{
    struct family *f = child->impl;
    bool obey = signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
    bool any = false;

    (void)env;
    if (signal < 0 || signal > 63) {
        return MUSTER_EINVAL;
    }
    MU_LIST_FOREACH (it, &f->beasts) {
        struct beast *b = MU_CONTAINER_OF(it, struct beast, link);

        if (scope == MU_CHILD_FAMILY || b == f->leader || (scope == MU_CHILD_GROUP && !b->daemon)) {
            any = signal_beast(b, signal) || any;
            if (obey) {
                (void)signal_beast(b, SIGCONT);
            }
        }
    }
    return any ? 0 : -ESRCH;
}

void sim_child_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream)
{
    struct family *f = child->impl;
    struct stream *s = &f->streams[stream == MU_STDERR];

    (void)env;
    if (s->in_output) {
        s->resumed = true;
    } else if (s->paused) {
        s->paused = false;
        tell_soon(f);
    }
}

void sim_child_leave(struct mu_env *env, struct mu_child *child, int signal, uint64_t grace_ms)
{
    struct family *f = child->impl;
    struct mu_sim_heap *heap = mu_sim_outside();

    (void)sim_child_signal(env, child, signal, MU_CHILD_FAMILY);
    sim_cancel(f->sim, &f->tell);
    child->impl = NULL;
    f->proc = NULL;
    f->child = NULL;
    f->left = true;
    MU_LIST_FOREACH (it, &f->beasts) {
        kill_beast(MU_CONTAINER_OF(it, struct beast, link), -SIGKILL, grace_ms * MU_NS_PER_MS);
    }
    tell_soon(f);
    mu_sim_inside(heap);
}

/* --- the world's side ------------------------------------------------------------------------- */

size_t sim_child_held(const struct mu_sim_proc *proc)
{
    size_t held = 0;

    MU_LIST_FOREACH (it, &proc->sim->families) {
        held += MU_CONTAINER_OF(it, struct family, link)->proc == proc;
    }
    return held;
}

void sim_child_drop(struct mu_sim_proc *proc, enum mu_sim_kill how)
{
    MU_LIST_FOREACH_SAFE (it, next, &proc->sim->families) {
        struct family *f = MU_CONTAINER_OF(it, struct family, link);

        if (f->proc != proc) {
            continue;
        }
        sim_cancel(f->sim, &f->tell);
        f->proc = NULL;
        f->child = NULL;
        MU_LIST_FOREACH_SAFE (that, after, &f->beasts) {
            struct beast *b = MU_CONTAINER_OF(that, struct beast, link);

            if (how == MU_SIM_KILL_POWER) {
                mu_list_remove(&b->link);
                sim_cancel(f->sim, &b->step);
                mu_free(b);
            } else {
                kill_beast(b, -SIGKILL, b == f->leader ? ORPHAN_NS : MU_SIM_WATCH_NS);
            }
        }
        if (mu_list_empty(&f->beasts)) {
            free_family(f);
        }
    }
}

void sim_child_free(struct mu_sim *sim)
{
    while (!mu_list_empty(&sim->families)) {
        struct family *f = MU_CONTAINER_OF(sim->families.next, struct family, link);
        struct mu_list *it;

        while ((it = mu_list_pop(&f->beasts)) != NULL) {
            struct beast *b = MU_CONTAINER_OF(it, struct beast, link);

            sim_cancel(sim, &b->step);
            mu_free(b);
        }
        free_family(f);
    }
}

void mu_sim_each_process(struct mu_sim *sim,
                         void (*visit)(void *arg, const struct mu_sim_process *process), void *arg)
{
    MU_LIST_FOREACH (it, &sim->families) {
        const struct family *f = MU_CONTAINER_OF(it, struct family, link);

        MU_LIST_FOREACH (that, &f->beasts) {
            const struct beast *b = MU_CONTAINER_OF(that, struct beast, link);

            visit(arg, &(struct mu_sim_process){.pid = b->pid,
                                                .leader = f->pid,
                                                .host = f->host,
                                                .agent = f->proc,
                                                .left = f->left,
                                                .argv = (const char *const *)f->argv,
                                                .envp = (const char *const *)f->envp});
        }
    }
}

bool mu_sim_process_signal(struct mu_sim *sim, int64_t pid, int signal)
{
    MU_LIST_FOREACH (it, &sim->families) {
        MU_LIST_FOREACH (that, &MU_CONTAINER_OF(it, struct family, link)->beasts) {
            struct beast *b = MU_CONTAINER_OF(that, struct beast, link);

            if (b->pid == pid) {
                return signal_beast(b, signal);
            }
        }
    }
    return false;
}

const char *mu_sim_process_variable(const struct mu_sim_process *process, const char *name)
{
    for (const char *const *e = process->envp; *e != NULL; e++) {
        const char *v = value_of(*e, name);

        if (v != NULL) {
            return v;
        }
    }
    return NULL;
}
