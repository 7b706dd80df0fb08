/* muster doctor HOST...: checks this machine, and other hosts as seen from it. */
#include "cli/doctor_host.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Shared with the threads, which may outlive the command because a resolver cannot be stopped. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed;
static struct doctor_exam *published; /* what is known of each host; guarded by the lock */
static size_t unfinished;

static const uint16_t usual_ports[] = {29400, 29500};

/* --- one thread for each host ----------------------------------------------------------------- */

/* The tries point to addresses in their own exam. */
static void copy_exam(struct doctor_exam *to, const struct doctor_exam *from)
{
    *to = *from;
    for (size_t i = 0; i < to->number_count * to->port_count; i++) {
        to->tries[i].number = &to->numbers[i / to->port_count];
    }
}

static void *examine(void *context)
{
    struct doctor_exam *shared = context;
    struct doctor_exam *own = malloc(sizeof(*own));

    (void)pthread_mutex_lock(&lock);
    if (own != NULL) {
        copy_exam(own, shared);
        shared->resolving = true;
    }
    (void)pthread_mutex_unlock(&lock);
    if (own != NULL) {
        own->status =
            mu_probe_resolve(own->addr.host, own->numbers, &own->number_count, &own->no_name);
        (void)pthread_mutex_lock(&lock);
        shared->resolving = false;
        (void)pthread_mutex_unlock(&lock);
        if (own->status == 0) {
            doctor_probe(own);
        }
        own->done = true;
    }
    (void)pthread_mutex_lock(&lock);
    if (own != NULL) {
        copy_exam(shared, own);
    }
    unfinished--;
    (void)pthread_cond_signal(&changed);
    (void)pthread_mutex_unlock(&lock);
    free(own);
    return NULL;
}

static void await_all(uint32_t within_ms)
{
    struct timespec until;

    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += within_ms / 1000 + 1;
    (void)pthread_mutex_lock(&lock);
    while (unfinished > 0 && pthread_cond_timedwait(&changed, &lock, &until) == 0) {
    }
    (void)pthread_mutex_unlock(&lock);
}

static void examine_all(size_t count, uint32_t timeout_ms)
{
    pthread_condattr_t attributes;
    pthread_attr_t detached;
    /* The time to connect, to ask each port, and to probe packet sizes. */
    uint32_t within_ms = 4 * timeout_ms + 4000;

    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&changed, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    (void)pthread_attr_init(&detached);
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    (void)pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count; i++) {
        pthread_t thread;

        if (pthread_create(&thread, &detached, examine, &published[i]) == 0) {
            unfinished++;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    (void)pthread_attr_destroy(&detached);
    await_all(within_ms);
}

/* --- arguments -------------------------------------------------------------------------------- */

static int read_ports(const char *text, uint16_t ports[DOCTOR_PORTS_MAX], size_t *ret_count)
{
    size_t count = 0;

    while (*text != '\0') {
        size_t len = strcspn(text, ",");
        char word[8];
        uint64_t port = 0;

        (void)snprintf(word, sizeof(word), "%.*s", (int)(len < 7 ? len : 7), text);
        if (count == DOCTOR_PORTS_MAX || !cli_parse_number(word, false, 65535, &port) ||
            port == 0) {
            return cli_usage("doctor", "--ports takes 1 to %d ports, separated by commas",
                             DOCTOR_PORTS_MAX);
        }
        ports[count++] = (uint16_t)port;
        text += len + (text[len] == ',' ? 1 : 0);
    }
    *ret_count = count;
    return count != 0 ? 0 : cli_usage("doctor", "--ports names no port");
}

static int read_host(struct doctor_exam *e, const char *word, const uint16_t *ports, size_t count)
{
    struct mu_errmsg msg = {{0}};
    struct mu_addr other;

    e->word = word;
    /* If the port changes with the default, the user did not name it. */
    if (mu_addr_parse(word, 1, &e->addr, &msg) != 0 || mu_addr_parse(word, 2, &other, &msg) != 0) {
        return cli_usage("doctor", "%s", msg.text);
    }
    if (e->addr.kind != MU_ADDR_TCP) {
        return cli_usage("doctor", "\"%s\" is not a host: write HOST or HOST:PORT", word);
    }
    e->named = e->addr.port == other.port;
    if (e->named) {
        e->ports[0].number = e->addr.port;
        e->port_count = 1;
        return 0;
    }
    for (size_t i = 0; i < count; i++) {
        e->ports[i].number = ports[i];
    }
    e->port_count = count;
    return 0;
}

/* --- the command ------------------------------------------------------------------------------ */

static void on_signal(void *context, int number)
{
    (void)context;
    _Exit(128 + number);
}

static int tell(const struct doctor_options *o, const struct doctor_report *report, json_t *here,
                const struct doctor_exam *exams, size_t count)
{
    int code = doctor_worst(report) == DOCTOR_BAD ? CLI_FAILED : CLI_OK;

    if (!o->json) {
        doctor_print(report);
        json_decref(here);
        return code;
    }
    json_t *hosts = json_array();

    for (size_t i = 0; i < count; i++) {
        (void)json_array_append_new(hosts, doctor_exam_json(&exams[i]));
    }
    json_t *all = json_pack("{s:o, s:o, s:o, s:i}", "here", here, "hosts", hosts, "findings",
                            doctor_json(report), "exit_code", code);

    (void)json_dumpf(all, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    json_decref(all);
    return code;
}

static int examine_named(struct doctor_options *o, size_t count)
{
    static struct doctor_report report;
    struct doctor_exam *exams = calloc(count + 1, sizeof(*exams));
    uint32_t timeout_ms = cli_ms(o->timeout == 0 ? 3 : o->timeout);
    struct cli_loop loop;
    int code;

    if (exams == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    doctor_health_begin(); /* it looks while we wait for hosts */
    code = cli_loop_open_locked(&loop, on_signal, NULL, &o->lock);
    if (code == 0) {
        for (size_t i = 0; i < count; i++) {
            published[i].timeout_ms = timeout_ms;
            mu_env_entropy(loop.env, published[i].session, sizeof(published[i].session));
        }
        if (count != 0) {
            examine_all(count, timeout_ms);
        }
        (void)pthread_mutex_lock(&lock);
        for (size_t i = 0; i < count; i++) {
            copy_exam(&exams[i], &published[i]);
        }
        (void)pthread_mutex_unlock(&lock);
        code = doctor_clocks(&loop, exams, count, timeout_ms);
        cli_loop_close(&loop);
    }
    if (code == 0) {
        json_t *here = doctor_self(&report);

        for (size_t i = 0; i < count; i++) {
            doctor_judge(&report, &exams[i]);
        }
        code = tell(o, &report, here, exams, count);
    }
    free(exams);
    return code;
}

int doctor_hosts(struct doctor_options *o, const char *const *words, size_t count)
{
    uint16_t ports[DOCTOR_PORTS_MAX];
    size_t port_count = sizeof(usual_ports) / sizeof(usual_ports[0]);
    int code = 0;

    memcpy(ports, usual_ports, sizeof(usual_ports));
    if (o->ports != NULL) {
        code = read_ports(o->ports, ports, &port_count);
    }
    /* This is never freed, because a thread may return late. */
    published = code == 0 ? calloc(count + 1, sizeof(*published)) : NULL;
    if (code == 0 && published == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    for (size_t i = 0; code == 0 && i < count; i++) {
        code = read_host(&published[i], words[i], ports, port_count);
    }
    return code != 0 ? code : examine_named(o, count);
}
