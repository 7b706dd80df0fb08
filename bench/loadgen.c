/*
 * loadgen MODE --port P [options]: load for one server, figures as `name value unit` lines.
 * See usage() below, and lg.h for what a run promises.
 */
#include "lg.h"

#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

noreturn void lg_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fputs("loadgen: ", stderr);
    (void)vfprintf(stderr, format, args);
    (void)fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void *lg_alloc(size_t count, size_t size)
{
    void *memory = calloc(count > 0 ? count : 1, size);
    if (memory == NULL) {
        lg_die("out of memory");
    }
    return memory;
}

void lg_append(struct lg_bytes *bytes, const void *data, size_t len)
{
    if (len > bytes->cap - bytes->len) {
        size_t cap = (bytes->len + len) * 2;
        uint8_t *grown = realloc(bytes->data, cap);
        if (grown == NULL) {
            lg_die("out of memory");
        }
        bytes->data = grown;
        bytes->cap = cap;
    }
    if (len > 0) {
        memcpy(bytes->data + bytes->len, data, len);
        bytes->len += len;
    }
}

void lg_append_u64(struct lg_bytes *bytes, uint64_t value)
{
    lg_append(bytes, &value, sizeof value);
}

void lg_append_str(struct lg_bytes *bytes, const void *data, size_t len)
{
    lg_append_u64(bytes, len);
    lg_append(bytes, data, len);
}

void lg_bytes_free(struct lg_bytes *bytes)
{
    free(bytes->data);
    memset(bytes, 0, sizeof *bytes);
}

uint64_t lg_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

void lg_pin(int cpu)
{
    cpu_set_t set;
    if (cpu < 0) {
        return;
    }
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) {
        lg_die("cannot run on core %d: %s", cpu, strerror(errno));
    }
}

void lg_print(const struct lg_options *options, const char *name, double value, const char *unit)
{
    const char *dot = options->name[0] != '\0' ? "." : "";
    (void)printf("%s%s%s %.*f %s\n", options->name, dot, name, value < 1000 ? 2 : 0, value, unit);
    (void)fflush(stdout);
}

void lg_want_descriptors(size_t wanted)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        lg_die("getrlimit: %s", strerror(errno));
    }
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted) {
        lg_die("%zu descriptors are needed and only %llu allowed: raise ulimit -n", wanted,
               (unsigned long long)limit.rlim_cur);
    }
}

int lg_run_connect(const struct lg_options *options)
{
    char scratch[64];
    lg_want_descriptors(options->conns + 16);
    int *fds = lg_connect_many(options, options->conns);
    lg_print(options, "open", (double)options->conns, "connections");
    while (read(STDIN_FILENO, scratch, sizeof scratch) > 0) {
    }
    for (size_t i = 0; i < options->conns; i++) {
        (void)close(fds[i]);
    }
    free(fds);
    return 0;
}

struct word {
    const char *text;
    int value;
};

static const struct word PROTOS[] = {
    {"torch1", LG_TORCH1}, {"torch2", LG_TORCH2}, {"resp", LG_RESP}, {NULL, 0}};
static const struct word OPS[] = {
    {"get", LG_GET}, {"set", LG_SET}, {"add", LG_ADD}, {"cas", LG_CAS}, {NULL, 0}};
static const struct word ATTACKS[] = {{"dribble", LG_DRIBBLE}, {"lengths", LG_LENGTHS},
                                      {"noread", LG_NOREAD},   {"waits", LG_WAITS},
                                      {"mixed", LG_MIXED},     {NULL, 0}};

static int parse_word(const struct word *words, const char *text, const char *what)
{
    for (; words->text != NULL; words++) {
        if (strcmp(words->text, text) == 0) {
            return words->value;
        }
    }
    lg_die("unknown %s \"%s\"", what, text);
}

static size_t parse_size(const char *text, size_t min, size_t max, const char *what)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < min || value > max) {
        lg_die("%s must be a number from %zu to %zu, not \"%s\"", what, min, max, text);
    }
    return (size_t)value;
}

static double parse_seconds(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || value < 0 || value > 3600) {
        lg_die("\"%s\" is no number of seconds up to 3600", text);
    }
    return value;
}

static noreturn void usage(int code)
{
    (void)fputs(
        "usage: loadgen MODE --port P [options]\n"
        "modes:\n"
        "  load      requests as fast as they are answered; prints ops, p50, p99\n"
        "  bare      the same load on a server that only moves the bytes (none needed)\n"
        "  waiters   from a set to the last of --conns waiters woken\n"
        "  floor     the same reader under a bare loop of sends (no server needed)\n"
        "  connect   hold --conns idle connections until standard input ends\n"
        "  hostile   --attack dribble|lengths|noread|waits|mixed\n"
        "options:\n"
        "  --proto torch1|torch2|resp  --op get|set|add|cas  --conns N  --depth N  --size BYTES\n"
        "  --seconds S  --warmup S  --idle N  --keys N  --rounds N  --rate N  --host IPV4\n"
        "  --cpu N  --server-cpu N  --spin  --name PREFIX\n",
        code == 0 ? stdout : stderr);
    exit(code);
}

static const struct option LONG_OPTIONS[] = {
    {"proto", required_argument, NULL, 'p'},   {"op", required_argument, NULL, 'o'},
    {"attack", required_argument, NULL, 'a'},  {"host", required_argument, NULL, 'h'},
    {"port", required_argument, NULL, 'P'},    {"conns", required_argument, NULL, 'c'},
    {"depth", required_argument, NULL, 'd'},   {"size", required_argument, NULL, 's'},
    {"seconds", required_argument, NULL, 't'}, {"warmup", required_argument, NULL, 'w'},
    {"idle", required_argument, NULL, 'i'},    {"keys", required_argument, NULL, 'k'},
    {"rounds", required_argument, NULL, 'r'},  {"rate", required_argument, NULL, 'R'},
    {"cpu", required_argument, NULL, 'C'},     {"server-cpu", required_argument, NULL, 'S'},
    {"spin", no_argument, NULL, 'x'},          {"name", required_argument, NULL, 'n'},
    {"help", no_argument, NULL, '?'},          {NULL, 0, NULL, 0}};

static void parse_option(struct lg_options *options, int option)
{
    switch (option) {
    case 'p':
        options->proto = (enum lg_proto)parse_word(PROTOS, optarg, "protocol");
        break;
    case 'o':
        options->op = (enum lg_op)parse_word(OPS, optarg, "operation");
        break;
    case 'a':
        options->attack = (enum lg_attack)parse_word(ATTACKS, optarg, "attack");
        break;
    case 'h':
        options->host = optarg;
        break;
    case 'P':
        options->port = (uint16_t)parse_size(optarg, 1, 65535, "--port");
        break;
    case 'c':
        options->conns = parse_size(optarg, 1, 100000, "--conns");
        break;
    case 'd':
        options->depth = parse_size(optarg, 1, 4096, "--depth");
        break;
    case 's':
        options->size = parse_size(optarg, 0, 8 << 20, "--size");
        break;
    case 't':
        options->seconds = parse_seconds(optarg);
        break;
    case 'w':
        options->warmup_seconds = parse_seconds(optarg);
        break;
    case 'i':
        options->idle = parse_size(optarg, 0, 100000, "--idle");
        break;
    case 'k':
        options->keys = parse_size(optarg, 1, 1 << 20, "--keys");
        break;
    case 'r':
        options->rounds = parse_size(optarg, 1, 100000, "--rounds");
        break;
    case 'R':
        options->rate = parse_size(optarg, 1, 100000, "--rate");
        break;
    case 'C':
        options->cpu = (int)parse_size(optarg, 0, 1023, "--cpu");
        break;
    case 'S':
        options->server_cpu = (int)parse_size(optarg, 0, 1023, "--server-cpu");
        break;
    case 'x':
        options->spin = true;
        break;
    case 'n':
        options->name = optarg;
        break;
    default:
        usage(optopt == 0 ? 0 : 2);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct lg_options *options);
    } modes[] = {{"load", lg_run_load},   {"bare", lg_run_bare},       {"waiters", lg_run_waiters},
                 {"floor", lg_run_floor}, {"connect", lg_run_connect}, {"hostile", lg_run_hostile}};
    struct lg_options options = {.name = "",
                                 .proto = LG_TORCH1,
                                 .op = LG_GET,
                                 .attack = LG_MIXED,
                                 .host = "127.0.0.1",
                                 .conns = 8,
                                 .depth = 1,
                                 .size = 64,
                                 .keys = 256,
                                 .rounds = 21,
                                 .rate = 100,
                                 .seconds = 1,
                                 .warmup_seconds = 0.2,
                                 .cpu = -1,
                                 .server_cpu = -1};

    int option;
    while ((option = getopt_long(argc, argv, "", LONG_OPTIONS, NULL)) != -1) {
        parse_option(&options, option);
    }
    if (optind + 1 != argc) {
        usage(2);
    }
    if (options.op == LG_CAS && options.proto == LG_RESP) {
        lg_die("Redis has no compare-and-set");
    }
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[optind], modes[i].name) == 0) {
            if (options.port == 0 && modes[i].run != lg_run_floor && modes[i].run != lg_run_bare) {
                lg_die("--port is needed");
            }
            lg_pin(options.cpu);
            return modes[i].run(&options);
        }
    }
    usage(2);
}
