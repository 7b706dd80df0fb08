/* muster serve: runs a store and rendezvous server until SIGTERM or SIGINT. */
#include "cli/cli_lock.h"
#include "cli/cli_log.h"
#include "cli/cli_loop.h"
#include "cli/cli_time.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct serve_options {
    const char *listen;
    const char *data_dir;
    const char *backing;
    const char *sync;
    const char *port_file;
    const char *http;
    struct cli_lock lock;
    bool quiet;
    bool json;
    bool verbose;
    struct cli_log_options log;
    uint64_t key_max, value_max, keys_max, memory, buffers, connections, sessions;
    double sync_interval, grace, drain;
};

/* Notifies the service manager, if there is one (sd_notify's protocol: a datagram to
 * $NOTIFY_SOCKET). */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len = path == NULL ? 0 : strlen(path);
    int fd;

    if (len == 0 || len >= sizeof(addr.sun_path) || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    memcpy(addr.sun_path, path, len);
    if (path[0] == '@') {
        addr.sun_path[0] = '\0'; /* an abstract socket */
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) {
        (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&addr,
                     (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len));
        (void)close(fd);
    }
}

/* The file is written under another name and renamed, so that a reader never sees half a number. */
static int write_port_file(const char *path, unsigned port)
{
    char temporary[4096];
    FILE *f;

    if (snprintf(temporary, sizeof(temporary), "%s.%ld", path, (long)getpid()) >=
        (int)sizeof(temporary)) {
        errno = ENAMETOOLONG;
    } else if ((f = fopen(temporary, "we")) != NULL) {
        bool ok = fprintf(f, "%u\n", port) > 0;

        ok = fclose(f) == 0 && ok;
        if (ok && rename(temporary, path) == 0) {
            return CLI_OK;
        }
        (void)unlink(temporary);
    }
    return cli_fail(CLI_FAILED, "cannot write the port file \"%s\": %s", path, strerror(errno));
}

static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

struct signals {
    sigset_t set;
    muster_server *server;
};

/* This thread waits for a signal and drains the server; a second signal ends the process at
 * once. */
static void *await_signal(void *context)
{
    struct signals *s = context;
    int number;

    (void)sigwait(&s->set, &number);
    notify("STOPPING=1");
    muster_server_drain(s->server);
    (void)sigwait(&s->set, &number);
    _exit(128 + number);
    return NULL;
}

/* Prints a line with the time. */
static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void say(const char *format, ...)
{
    char stamp[CLI_TIME_CAP];
    va_list args;

    printf("%smuster: ", cli_time_stamp(stamp));
    va_start(args, format);
    (void)vprintf(format, args);
    va_end(args);
    (void)putchar('\n');
    (void)fflush(stdout);
}

static void tell_the_user(const struct muster_server_config *config, const muster_server *server)
{
    say("serving on %s", muster_server_address(server));
    if (config->backing != NULL && strncmp(config->backing, "tcp:", 4) == 0) {
        say("passing everything on to the server at %s", config->backing + 6);
    } else if (config->backing != NULL) {
        say("keeping every key in %s: a change is answered once it is there", config->backing);
    } else if (config->data_dir == NULL) {
        say("keeping everything in memory; --data-dir keeps it on disk");
    } else if (config->sync == MUSTER_SYNC_INTERVAL) {
        say("writing to %s every %u ms: a crash loses at most the last %u ms and the write in "
            "progress, or the last two writes where they take longer",
            config->data_dir, config->sync_interval_ms, config->sync_interval_ms);
    } else {
        say("writing to %s: a change is answered once it is on disk", config->data_dir);
    }
    if (config->http != NULL) {
        say("status at http://%s/", muster_server_http_address(server));
    }
}

static int serve(const struct serve_options *o, const struct muster_server_config *config,
                 muster_runtime *rt, const sigset_t *set)
{
    struct signals signals = {.set = *set};
    char took[CLI_TIME_CAP];
    muster_server *server;
    pthread_t thread;
    int err = muster_server_start(rt, config, &server);

    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    if (o->port_file != NULL && write_port_file(o->port_file, muster_server_port(server)) != 0) {
        muster_server_free(server);
        return CLI_FAILED;
    }
    if (o->json) {
        cli_print_json(json_pack("{s:s, s:s*}", "address", muster_server_address(server), "http",
                                 config->http == NULL ? NULL : muster_server_http_address(server)));
    } else if (!o->quiet) {
        tell_the_user(config, server);
    }
    cli_log_tell(MUSTER_LOG_INFO, "SERVING", -1,
                 json_pack("{s:s, s:s*}", "address", muster_server_address(server), "http",
                           config->http == NULL ? NULL : muster_server_http_address(server)),
                 "serving on %s", muster_server_address(server));
    notify("READY=1");
    signals.server = server;
    if (pthread_create(&thread, NULL, await_signal, &signals) == 0) {
        (void)pthread_detach(thread);
    }
    err = muster_server_wait(server);
    if (o->port_file != NULL) {
        (void)unlink(o->port_file);
    }
    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    if (!o->quiet) {
        say("ended after %s", cli_time_took(took, cli_time_since()));
    }
    /* The process ends here; the thread that waits for signals may still use the server. */
    return CLI_OK;
}

static int check_options(const struct serve_options *o, struct muster_server_config *config)
{
    if (strcmp(o->sync, "interval") == 0) {
        config->sync = MUSTER_SYNC_INTERVAL;
    } else if (strcmp(o->sync, "always") != 0) {
        return cli_usage("serve", "--sync %s is neither always nor interval", o->sync);
    }
    if (o->data_dir == NULL && config->sync == MUSTER_SYNC_INTERVAL) {
        return cli_usage("serve", "--sync interval needs --data-dir DIR");
    }
    if (o->backing != NULL && o->data_dir != NULL) {
        return cli_usage("serve",
                         "--backing and --data-dir exclude each other: the keys are in one "
                         "place");
    }
    config->listen = o->listen;
    config->http = o->http;
    config->backing = o->backing;
    config->data_dir = o->data_dir;
    config->sync_interval_ms = cli_ms(o->sync_interval);
    config->key_bytes_max = o->key_max;
    config->value_bytes_max = o->value_max;
    config->keys_max = o->keys_max;
    config->memory_bytes_max = o->memory;
    config->buffer_bytes_max = o->buffers;
    config->connections_max = o->connections;
    config->sessions_max = o->sessions;
    config->session_grace_ms = cli_ms(o->grace);
    config->drain_ms = cli_ms(o->drain);
    return 0;
}

static int run(struct serve_options *o, struct muster_server_config *config)
{
    static char token[512];
    const char *token_file = cli_lock_of(&o->lock)->token_file;
    muster_runtime *rt;
    sigset_t set;
    int err = check_options(o, config);

    if (err == 0 && o->http != NULL && token_file != NULL) {
        err = cli_read_token(token_file, token, sizeof(token));
        config->http_token = token;
    }
    if (err != 0) {
        return err;
    }
    cli_time_begin();
    cli_block_signals(&set, false);
    (void)signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    err = cli_log_open(&o->log, o->verbose ? MUSTER_LOG_DEBUG : MUSTER_LOG_WARN,
                       o->quiet ? MUSTER_LOG_ERROR : MUSTER_LOG_INFO);
    if (err != 0) {
        return err;
    }
    err = cli_runtime_new(&o->lock, &rt);
    return err != 0 ? err : serve(o, config, rt, &set);
}

int cmd_serve(int argc, char **argv)
{
    struct muster_server_config config = muster_server_config_defaults();
    struct serve_options o = {
        .listen = "127.0.0.1:29400",
        .sync = "always",
        .sync_interval = config.sync_interval_ms / 1000.0,
        .key_max = config.key_bytes_max,
        .value_max = config.value_bytes_max,
        .keys_max = config.keys_max,
        .memory = config.memory_bytes_max,
        .buffers = config.buffer_bytes_max,
        .connections = config.connections_max,
        .sessions = config.sessions_max,
        .grace = config.session_grace_ms / 1000.0,
        .drain = config.drain_ms / 1000.0,
    };
    const uint64_t gib = (uint64_t)1 << 30;
    const struct cli_option options[] = {
        {"listen", "HOST:PORT", "where to listen (127.0.0.1:29400); port 0 takes a free one",
         CLI_TEXT, &o.listen, 0},
        {"port-file", "FILE", "write the port to FILE once the server serves", CLI_TEXT,
         &o.port_file, 0},
        {"http", "HOST:PORT", "serve a status page, /metrics, /healthz and /readyz there", CLI_TEXT,
         &o.http, 0},
        CLI_LOCK_OPTIONS(&o.lock),
        {"data-dir", "DIR", "also keep the keys on disk, in DIR", CLI_TEXT, &o.data_dir, 0},
        {"backing", "URL", "keep the keys in etcd://HOST,HOST/PREFIX, or at tcp://HOST:PORT",
         CLI_TEXT, &o.backing, 0},
        {"sync", "MODE", "always (answer a change once it is on disk) or interval (always)",
         CLI_TEXT, &o.sync, 0},
        {"sync-interval", "TIME", "how often --sync interval writes to disk (100ms)", CLI_SECONDS,
         &o.sync_interval, 3600, .bare = 9},
        {"memory", "SIZE", "total size of keys and values (half of the memory, at most 4G)",
         CLI_SIZE, &o.memory, 0},
        {"buffers", "SIZE", "size of half-read requests and unsent answers (an eighth, at most 2G)",
         CLI_SIZE, &o.buffers, 0},
        {"max-key", "SIZE", "longest key (8K)", CLI_SIZE, &o.key_max, gib},
        {"max-value", "SIZE", "longest value (8M)", CLI_SIZE, &o.value_max, gib},
        {"max-keys", "N", "number of keys that one request may name (131072)", CLI_NUMBER,
         &o.keys_max, gib},
        {"max-connections", "N", "number of connections (100000)", CLI_NUMBER, &o.connections, 0},
        {"max-sessions", "N", "number of sessions of the native wire (100000)", CLI_NUMBER,
         &o.sessions, 0},
        {"session-grace", "TIME", "how long a session may be without a connection (10s)",
         CLI_SECONDS, &o.grace, 3600, .bare = 60},
        {"drain", "TIME", "how long SIGTERM waits for clients that are slow to read (5s)",
         CLI_SECONDS, &o.drain, 3600, .bare = 60},
        {"json", NULL, "print the addresses as one JSON object", CLI_FLAG, &o.json, 0},
        {"quiet", NULL, "print only errors", CLI_FLAG, &o.quiet, 0},
        {"verbose", NULL, "log everything the server does, not only what it refuses", CLI_FLAG,
         &o.verbose, 0},
        CLI_LOG_OPTIONS(o.log),
    };
    const struct cli_verb verb = {
        "serve", "[OPTIONS]",
        "Runs a store and rendezvous server. One port serves PyTorch's TCPStore clients (1.13 and\n"
        "2.x) and muster's own. On SIGTERM or SIGINT the server answers what was asked, and ends.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);

    if (err == 0 && argc != 0) {
        err = cli_usage("serve", "unexpected argument \"%s\"", argv[0]);
    }
    return err != 0 ? err : run(&o, &config);
}
