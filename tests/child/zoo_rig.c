#include "zoo_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "transport/child_internal.h"
#include "transport/proc_table.h"

struct mu_uv_env *zoo_uv;
struct mu_env *zoo_env;
char zoo_dir[64];
char zoo_path[128];

static void copy_file(const char *from, const char *to)
{
    char buf[65536];
    ssize_t n;
    int in = open(from, O_RDONLY | O_CLOEXEC);
    int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);

    if (in < 0 || out < 0) {
        perror(from);
        exit(1);
    }
    while ((n = read(in, buf, sizeof(buf))) > 0) {
        if (write(out, buf, (size_t)n) != n) {
            perror(to);
            exit(1);
        }
    }
    (void)close(in);
    (void)close(out);
}

void zoo_open(const char *program)
{
    (void)snprintf(zoo_dir, sizeof(zoo_dir), "/tmp/muster-zoo-XXXXXX");
    if (mkdtemp(zoo_dir) == NULL) {
        perror(zoo_dir);
        exit(1);
    }
    (void)snprintf(zoo_path, sizeof(zoo_path), "%s/zoo", zoo_dir);
    copy_file(program, zoo_path);
}

void zoo_close(void)
{
    DIR *d = opendir(zoo_dir);
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        (void)unlinkat(dirfd(d), e->d_name, 0);
    }
    if (d != NULL) {
        (void)closedir(d);
    }
    (void)rmdir(zoo_dir);
}

int zoo_up(void **state)
{
    (void)state;
    if (mu_uv_env_new(&zoo_uv) != 0) {
        return -1;
    }
    zoo_env = mu_uv_env_env(zoo_uv);
    return 0;
}

/* A test that fails leaves children that live, with which no environment can be freed: they are
 * ended here, so that its own words are the last. */
static void end_children(void)
{
    struct mu_uv_families *f = zoo_uv->families;

    if (f == NULL || mu_list_empty(&f->children)) {
        return;
    }
    MU_LIST_FOREACH (it, &f->children) {
        struct mu_uv_child *c = MU_CONTAINER_OF(it, struct mu_uv_child, link);

        if (!c->left) {
            mu_env_child_leave(zoo_env, c->child, SIGKILL, 0);
        }
    }
}

int zoo_down(void **state)
{
    (void)state;
    if (zoo_uv != NULL) { /* A test that frees it may fail behind that. */
        end_children();
        mu_uv_env_free(zoo_uv);
        zoo_uv = NULL;
    }
    return 0;
}

void zoo_skip_without_cgroups(void)
{
    struct mu_cgroup g;
    char path[MU_CGROUP_PATH_MAX + 128];
    int fd;
    bool kills;

    mu_cgroup_find(&g, "0123456789abcdef");
    fd = mu_cgroup_make(&g, (uint64_t)getpid());
    if (fd < 0) {
        skip_saying("no cgroup can be made here");
    }
    (void)close(fd);
    (void)snprintf(path, sizeof(path), "%s/muster-%s-%ld/cgroup.kill", g.base, g.id,
                   (long)getpid());
    kills = access(path, W_OK) == 0;
    (void)mu_cgroup_remove(&g, (uint64_t)getpid());
    if (!kills) {
        skip_saying("cgroups here have no cgroup.kill (Linux 5.14)");
    }
}

/* --- beasts ----------------------------------------------------------------------------------- */

static void tell(struct beast *b, char letter)
{
    assert_true(b->story_len < sizeof(b->story) - 1);
    /* Deliveries are as the kernel cuts them. */
    if (b->story_len == 0 || b->story[b->story_len - 1] != letter) {
        b->story[b->story_len++] = letter;
    }
}

static void on_started(struct mu_child *child, int status)
{
    struct beast *b = MU_CONTAINER_OF(child, struct beast, child);

    assert_false(b->started);
    b->started = true;
    b->start_status = status;
    tell(b, status == 0 ? 's' : 'S');
    if (b->on_started != NULL) {
        b->on_started(b);
    }
}

static size_t on_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    struct beast *b = MU_CONTAINER_OF(child, struct beast, child);
    int i = stream == MU_STDERR;
    size_t used = b->rests ? 0 : in.len;
    size_t room = BEAST_TEXT_MAX - 1 - b->text_len[i];

    assert_true(b->started && b->start_status == 0 && !b->gone);
    tell(b, in.len == 0 ? "OE"[i] : "oe"[i]);
    if (b->use_max != 0 && used > b->use_max) {
        used = b->use_max;
        mu_env_child_resume(zoo_env, child, stream);
    }
    room = room < used ? room : used;
    if (room > 0) {
        memcpy(b->text[i] + b->text_len[i], in.data, room);
    }
    b->text_len[i] += room;
    b->bytes[i] += used;
    return used;
}

static void on_exited(struct mu_child *child, int status)
{
    struct beast *b = MU_CONTAINER_OF(child, struct beast, child);

    assert_true(b->started && b->start_status == 0 && !b->exited && !b->gone);
    b->exited = true;
    b->status = status;
    tell(b, 'x');
    if (b->kill_on_exit != 0) {
        (void)mu_env_child_signal(zoo_env, child, b->kill_on_exit, MU_CHILD_FAMILY);
    }
}

static void on_gone(struct mu_child *child)
{
    struct beast *b = MU_CONTAINER_OF(child, struct beast, child);

    assert_true(b->started && !b->gone && (b->exited || b->start_status != 0));
    b->gone = true;
    tell(b, 'g');
}

static const struct mu_child_events beast_events = {
    .started = on_started,
    .output = on_output,
    .exited = on_exited,
    .gone = on_gone,
};

void beast_init(struct beast *b)
{
    memset(b, 0, sizeof(*b));
    b->child.on = &beast_events;
}

int beast_spawn(struct beast *b, struct mu_spawn *what, const char *const *argv)
{
    static const char *const envp[] = {"PATH=/usr/bin:/bin", "ZOO=beast", NULL};

    what->argv = argv;
    what->envp = envp;
    return mu_env_spawn(zoo_env, &b->child, what);
}

void beast_start(struct beast *b, ...)
{
    struct mu_spawn what = {
        .streams = {{MU_SPAWN_NULL, NULL}, {MU_SPAWN_PIPE, NULL}, {MU_SPAWN_PIPE, NULL}}};
    const char *argv[24] = {zoo_path};
    size_t n = 1;
    va_list args;

    va_start(args, b);
    while ((argv[n] = va_arg(args, const char *)) != NULL) {
        assert_true(++n < 23);
    }
    va_end(args);
    assert_int_equal(beast_spawn(b, &what, argv), 0);
    assert_int_equal(b->story_len, 0);
}

static uint64_t clock_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* --- running ---------------------------------------------------------------------------------- */

struct deadline {
    struct mu_timer timer;
    bool passed;
};

static void on_deadline(struct mu_timer *timer)
{
    MU_CONTAINER_OF(timer, struct deadline, timer)->passed = true;
}

void zoo_run_until(const bool *flag)
{
    struct deadline d = {0};

    mu_timer_init(&d.timer, on_deadline);
    mu_env_timer_arm(zoo_env, &d.timer, mu_mono_add_ms(mu_env_now(zoo_env).mono, ZOO_PATIENCE_MS));
    while (!*flag && !d.passed) {
        mu_uv_env_turn(zoo_uv);
    }
    mu_env_timer_arm(zoo_env, &d.timer, MU_MONO_NEVER);
    assert_false(d.passed);
}

void zoo_run_ms(uint64_t ms)
{
    struct deadline d = {0};

    mu_timer_init(&d.timer, on_deadline);
    mu_env_timer_arm(zoo_env, &d.timer, mu_mono_add_ms(mu_env_now(zoo_env).mono, ms));
    while (!d.passed) {
        mu_uv_env_turn(zoo_uv);
    }
}

void beast_run_until_said(struct beast *b, const char *text)
{
    struct deadline d = {0};

    mu_timer_init(&d.timer, on_deadline);
    mu_env_timer_arm(zoo_env, &d.timer, mu_mono_add_ms(mu_env_now(zoo_env).mono, ZOO_PATIENCE_MS));
    while (strstr(b->text[0], text) == NULL && !d.passed) {
        mu_uv_env_turn(zoo_uv);
    }
    mu_env_timer_arm(zoo_env, &d.timer, MU_MONO_NEVER);
    assert_false(d.passed);
}

/* --- what is left ----------------------------------------------------------------------------- */

static void each_process(void (*visit)(int64_t pid, void *context), void *context)
{
    DIR *d = opendir("/proc");
    struct dirent *e;

    while (d != NULL && (e = readdir(d)) != NULL) {
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9') {
            visit(strtol(e->d_name, NULL, 10), context);
        }
    }
    if (d != NULL) {
        (void)closedir(d);
    }
}

static void count_one(int64_t pid, void *context)
{
    char path[64];
    char exe[4096];
    ssize_t n;

    (void)snprintf(path, sizeof(path), "/proc/%ld/exe", (long)pid);
    n = readlink(path, exe, sizeof(exe) - 1);
    if (n < 0) {
        return;
    }
    exe[n] = '\0';
    if (strncmp(exe, zoo_dir, strlen(zoo_dir)) == 0) {
        ++*(size_t *)context;
    }
}

static void kill_one(int64_t pid, void *context)
{
    size_t count = 0;

    (void)context;
    count_one(pid, &count);
    if (count != 0) {
        (void)kill((pid_t)pid, SIGKILL);
    }
}

int zoo_kill_left(void **state)
{
    (void)state;
    for (int i = 0; i < 1000 && zoo_count() != 0; i++) {
        each_process(kill_one, NULL);
        (void)usleep(1000);
    }
    return 0;
}

size_t zoo_count(void)
{
    size_t count = 0;

    each_process(count_one, &count);
    return count;
}

static void count_scrubbed(int64_t pid, void *context)
{
    size_t is_ours = 0;
    char path[64];
    char byte;
    int fd;

    count_one(pid, &is_ours);
    (void)snprintf(path, sizeof(path), "/proc/%ld/environ", (long)pid);
    fd = is_ours == 0 ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        *(size_t *)context += read(fd, &byte, 1) == 0;
        (void)close(fd);
    }
}

size_t zoo_count_scrubbed(void)
{
    size_t count = 0;

    each_process(count_scrubbed, &count);
    return count;
}

void zoo_run_until_count(size_t count)
{
    uint64_t until = clock_ms() + ZOO_PATIENCE_MS;

    while (zoo_count() != count && clock_ms() < until) {
        zoo_run_ms(2);
    }
    assert_int_equal(zoo_count(), count);
}

struct offspring {
    int64_t parent;
    size_t children;
    int64_t watcher;
};

static void count_child(int64_t pid, void *context)
{
    struct offspring *o = context;
    struct mu_proc p;
    char path[64];
    char name[32] = "";
    FILE *file;

    if (mu_proc_read((pid_t)pid, &p) != 0 || p.ppid != o->parent) {
        return;
    }
    (void)snprintf(path, sizeof(path), "/proc/%ld/comm", (long)pid);
    file = fopen(path, "r");
    if (file != NULL) {
        if (fgets(name, sizeof(name), file) == NULL) {
            name[0] = '\0';
        }
        (void)fclose(file);
    }
    if (strcmp(name, "muster-watch\n") == 0) {
        o->watcher = pid;
    } else {
        o->children++;
    }
}

size_t zoo_children_of(int64_t pid)
{
    struct offspring o = {.parent = pid};

    each_process(count_child, &o);
    return o.children;
}

int64_t zoo_watcher_of(int64_t pid)
{
    struct offspring o = {.parent = pid};

    each_process(count_child, &o);
    return o.watcher;
}

static void wait_a_bit(void)
{
    struct timespec pause = {.tv_nsec = 2000000};

    (void)nanosleep(&pause, NULL);
}

bool zoo_empties(void)
{
    uint64_t until = clock_ms() + ZOO_PATIENCE_MS;

    while (zoo_count() != 0) {
        if (clock_ms() > until) {
            return false;
        }
        wait_a_bit();
    }
    return true;
}

void zoo_assert_empty(void)
{
    uint64_t until = clock_ms() + ZOO_PATIENCE_MS;

    assert_int_equal(zoo_count(), 0);
    /* The loop does not run, so what is left stays; but a watcher may be too young for its name. */
    while (zoo_children_of(getpid()) != 0 && clock_ms() < until) {
        wait_a_bit();
    }
    assert_int_equal(zoo_children_of(getpid()), 0);
}
