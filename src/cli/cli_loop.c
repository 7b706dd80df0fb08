#include "cli/cli_loop.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/cli.h"

#define WAKE_SIGNAL SIGRTMIN /* our own, sent to the thread that waits for signals */

static void run_signals(struct mu_post *post)
{
    struct cli_loop *loop = MU_CONTAINER_OF(post, struct cli_loop, post);
    uint64_t pending;

    atomic_store(&loop->posted, false);
    pending = atomic_exchange(&loop->pending, 0);
    for (int i = 1; i < 64; i++) {
        if ((pending >> i & 1) != 0) {
            loop->on_signal(loop->context, i);
        }
    }
}

/* A second signal ends the process at once if the loop was opened as impatient. */
static void *await_signals(void *context)
{
    struct cli_loop *loop = context;
    int number;

    for (int count = 0;; count++) {
        if (sigwait(&loop->set, &number) != 0) {
            continue;
        }
        if (atomic_load(&loop->ending)) {
            return NULL;
        }
        if (count > 0 && !loop->patient) {
            _exit(128 + number);
        }
        (void)atomic_fetch_or(&loop->pending, UINT64_C(1) << number);
        if (!atomic_exchange(&loop->posted, true)) {
            mu_uv_env_post(loop->uv, &loop->post);
        }
    }
}

static int open_loop(struct cli_loop *loop)
{
    int err;

    loop->post.run = run_signals;
    (void)sigaddset(&loop->set, WAKE_SIGNAL);
    (void)pthread_sigmask(SIG_BLOCK, &loop->set, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    err = mu_uv_env_new(&loop->uv);
    if (err != 0) {
        return cli_fail(CLI_FAILED, "cannot start: %s", muster_strerror(err));
    }
    loop->env = mu_uv_env_env(loop->uv);
    if (pthread_create(&loop->thread, NULL, await_signals, loop) != 0) {
        mu_uv_env_free(loop->uv);
        return cli_fail(CLI_FAILED, "cannot start a thread");
    }
    return 0;
}

int cli_loop_open(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                  void *context)
{
    *loop = (struct cli_loop){.on_signal = on_signal, .context = context};
    (void)sigemptyset(&loop->set);
    (void)sigaddset(&loop->set, SIGTERM);
    (void)sigaddset(&loop->set, SIGINT);
    return open_loop(loop);
}

int cli_loop_open_for(struct cli_loop *loop, const sigset_t *set,
                      void (*on_signal)(void *context, int number), void *context)
{
    *loop =
        (struct cli_loop){.on_signal = on_signal, .context = context, .set = *set, .patient = true};
    return open_loop(loop);
}

int cli_loop_open_peers(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                        void *context)
{
    muster_log_set(NULL, NULL, cli_log_level());
    (void)cli_raise_descriptor_limit();
    return cli_loop_open(loop, on_signal, context);
}

int cli_loop_lock(struct cli_loop *loop, struct cli_lock *lock)
{
    struct mu_errmsg msg = {{0}};
    int err = mu_locked_open(&loop->locked, loop->env, cli_lock_of(lock), &msg);

    if (err != 0) {
        cli_loop_close(loop);
        return cli_fail(cli_exit_code(err), "%s", msg.text);
    }
    loop->env = loop->locked.env;
    return 0;
}

int cli_loop_open_locked(struct cli_loop *loop, void (*on_signal)(void *context, int number),
                         void *context, struct cli_lock *lock)
{
    int err = cli_loop_open(loop, on_signal, context);

    return err != 0 ? err : cli_loop_lock(loop, lock);
}

void cli_loop_run(struct cli_loop *loop)
{
    mu_uv_env_run(loop->uv);
}

void cli_loop_stop(struct cli_loop *loop)
{
    mu_uv_env_stop(loop->uv);
}

void cli_loop_close(struct cli_loop *loop)
{
    /* Only that thread gets the signal and knows what it means. */
    atomic_store(&loop->ending, true);
    (void)pthread_kill(loop->thread, WAKE_SIGNAL);
    (void)pthread_join(loop->thread, NULL);
    mu_locked_close(&loop->locked, loop->uv);
    mu_uv_env_free(loop->uv);
}

int cli_loop_live(struct cli_loop *loop, int (*start)(void *context), int (*begin)(void *context),
                  void (*stop)(struct mu_timer *stop_timer))
{
    int code;

    mu_timer_init(&loop->stop_timer, stop);
    loop->code = start(loop->context);
    if (loop->code == 0) {
        code = begin(loop->context);
        if (code != 0) {
            cli_loop_end(loop, code);
        }
        cli_loop_run(loop);
    }
    cli_loop_close(loop);
    return loop->code;
}

void cli_loop_end(struct cli_loop *loop, int code)
{
    if (!loop->stopping) {
        loop->stopping = true;
        loop->code = code;
        mu_env_timer_arm(loop->env, &loop->stop_timer, mu_env_now(loop->env).mono);
    }
}

void cli_block_signals(sigset_t *ret_set, bool hangup)
{
    (void)sigemptyset(ret_set);
    (void)sigaddset(ret_set, SIGTERM);
    (void)sigaddset(ret_set, SIGINT);
    if (hangup) {
        (void)sigaddset(ret_set, SIGHUP);
    } else {
        cli_take_hangup();
    }
    (void)pthread_sigmask(SIG_BLOCK, ret_set, NULL);
}

void cli_take_hangup(void)
{
    int terminal = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);

    if (terminal >= 0) {
        (void)close(terminal);
    } else {
        (void)signal(SIGHUP, SIG_IGN);
    }
}

uint64_t cli_raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return 0;
    }
    if (limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
        (void)getrlimit(RLIMIT_NOFILE, &limit);
    }
    return limit.rlim_cur;
}
