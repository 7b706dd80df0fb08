#include "storm.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define SLOTS_MAX   192
#define RECENT      512 /* cases that are written down when something is wrong */
#define ANSWER_MS   8   /* for an answer that a real client waited for */
#define LAST_MS     3   /* for the last one */
#define LANE_MS     1500
#define FAULT_MS    60 /* for a connection whose bytes were changed on the wire */
#define LEAVE_MS    400
#define REFUSED_MAX 400 /* connections in a row: the server is gone */
#define GONE        3   /* exit code */

enum lane_state {
    LANE_OFF,
    LANE_DIALLING,
    LANE_TALKING,
    LANE_ENDING,
};

/* A connection under way. */
struct conn {
    enum lane_state state;
    const struct lane *lane;
    int fd;
    struct wire *wire;
    bool sealed;
    size_t next;
    uint64_t put;  /* bytes on the wire */
    int64_t since; /* when the last thing was said */
    int64_t until;
    int64_t wake; /* when to look again, if nothing comes */
};

struct slot {
    bool busy;
    struct storm_case work;
    struct conn conns[LANES_MAX];
};

static struct way ways[WAYS_MAX];
static unsigned way_count;
static struct slot slots[SLOTS_MAX];
static unsigned slot_count = SLOTS_MAX; /* cases at a time */
static in_addr_t stranger;              /* our address beyond loopback */
static int poller;
static volatile sig_atomic_t stopping;
static unsigned refused;
static uint64_t recent[RECENT];
static struct {
    uint64_t cases, conns, answered, ready, sealed, said, refused;
} stats;

static int64_t now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

/* -- a connection */

static void hang_up(struct conn *c, bool reset)
{
    struct linger linger = {.l_onoff = 1};

    if (c->state == LANE_OFF) {
        return;
    }
    stats.answered += wire_heard(c->wire) > 0;
    stats.ready += c->sealed && wire_ready(c->wire);
    if (reset) {
        setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
    }
    close(c->fd);
    wire_free(c->wire);
    c->wire = NULL;
    c->state = LANE_OFF;
}

/* Each connection of loopback has an address of its own, and others another than
 * the honest client: what is allowed to an address is not for all. */
static void choose_source(int fd, const struct way *way)
{
    struct sockaddr_in source = {.sin_family = AF_INET};
    int on = 1;

    if (way->address.ss_family == AF_INET) {
        setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
        source.sin_addr.s_addr =
            way->loopback ? htonl(0x7f000000u | (unsigned)(2 + stats.conns % 65000)) : stranger;
        (void)bind(fd, (struct sockaddr *)&source, sizeof(source));
    }
}

static void dial(struct conn *c, const struct lane *lane)
{
    const struct way *way = &ways[lane->way % way_count];
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};

    memset(c, 0, sizeof(*c));
    c->fd = socket(way->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0) {
        return;
    }
    choose_source(c->fd, way);
    stats.conns++;
    if (connect(c->fd, (const struct sockaddr *)&way->address, way->len) != 0 &&
        errno != EINPROGRESS) {
        refused += errno != EAGAIN; /* a unix socket whose queue is full is there */
        stats.refused++;
        close(c->fd);
        return;
    }
    c->state = LANE_DIALLING;
    c->lane = lane;
    c->wire = wire_new(way->kind);
    c->sealed = way->kind != WAY_PLAIN;
    stats.sealed += c->sealed;
    c->since = now_ms();
    c->until = c->since + (lane->fault_at >= 0 ? FAULT_MS : LANE_MS);
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

/* Sends what there is; false: the connection is gone. */
static bool flush(struct conn *c)
{
    struct bytes *out = wire_output(c->wire);
    int64_t fault = c->lane->fault_at - (int64_t)c->put;

    while (out->len > 0) {
        ssize_t sent;

        if (fault >= 0 && fault < (int64_t)out->len) {
            out->data[fault] ^= c->lane->fault_xor;
        }
        sent = send(c->fd, out->data, out->len, MSG_NOSIGNAL);
        if (fault >= 0 && fault < (int64_t)out->len && (sent < 0 || fault >= sent)) {
            out->data[fault] ^= c->lane->fault_xor; /* its turn has not come */
        }
        if (sent < 0) {
            return errno == EAGAIN;
        }
        c->put += (uint64_t)sent;
        fault -= sent;
        bytes_drop(out, (size_t)sent);
    }
    return true;
}

static bool read_all(struct conn *c)
{
    static uint8_t buffer[1 << 16];

    for (;;) {
        ssize_t got = recv(c->fd, buffer, sizeof(buffer), 0);

        if (got < 0) {
            return errno == EAGAIN;
        }
        if (got == 0 || !wire_recv(c->wire, buffer, (size_t)got)) {
            return false;
        }
    }
}

/* Says what is next, if it is time; then ends as it should. */
static void go_on(struct conn *c, int64_t now)
{
    while (wire_output(c->wire)->len == 0 && wire_ready(c->wire) && c->next < c->lane->count) {
        const struct step *step = &c->lane->steps[c->next];

        if (c->lane->patient && wire_heard(c->wire) < step->after && now - c->since < ANSWER_MS) {
            c->wake = c->since + ANSWER_MS;
            return;
        }
        wire_say(c->wire, step);
        stats.said += step->len;
        c->next++;
        c->since = now;
        if (!flush(c)) {
            hang_up(c, false);
            return;
        }
    }
    if (c->next < c->lane->count || wire_output(c->wire)->len > 0) {
        return;
    }
    if (c->lane->patient && now - c->since < LAST_MS) {
        c->wake = c->since + LAST_MS;
        return;
    }
    if (c->lane->ending == END_CLOSE || c->lane->ending == END_RESET) {
        hang_up(c, c->lane->ending == END_RESET);
        return;
    }
    if (c->lane->ending == END_SHUT) {
        shutdown(c->fd, SHUT_WR);
    }
    c->state = LANE_ENDING;
    c->until = now + (c->lane->ending == END_SHUT ? FAULT_MS : LEAVE_MS);
    c->wake = c->until;
}

static void progress(struct conn *c, int64_t now)
{
    int trouble = 0;
    socklen_t len = sizeof(trouble);

    if (c->state == LANE_OFF) {
        return;
    }
    if (c->state == LANE_DIALLING) {
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &trouble, &len);
        if (trouble != 0) {
            refused++;
            stats.refused++;
            hang_up(c, false);
            return;
        }
    }
    c->wake = c->until;
    if (!flush(c) || !read_all(c) || !flush(c) || now >= c->until) {
        hang_up(c, c->put % 2 == 0);
        return;
    }
    if (c->state == LANE_DIALLING && c->put > 0) {
        c->state = LANE_TALKING;
    }
    if (c->state != LANE_ENDING) {
        refused = 0;
        go_on(c, now);
    }
}

/* -- cases */

static bool slot_is_done(const struct slot *s)
{
    for (unsigned i = 0; i < LANES_MAX; i++) {
        if (s->conns[i].state != LANE_OFF) {
            return false;
        }
    }
    return true;
}

static void slot_start(struct slot *s)
{
    s->busy = true;
    for (unsigned i = 0; i < s->work.count; i++) {
        dial(&s->conns[i], &s->work.lanes[i]);
    }
    recent[stats.cases++ % RECENT] = s->work.number;
}

static void run_events(void)
{
    struct epoll_event events[64];
    int got = epoll_wait(poller, events, 64, 1);
    int64_t now = now_ms();

    for (int i = 0; i < got; i++) {
        progress(events[i].data.ptr, now);
    }
    for (unsigned i = 0; i < slot_count; i++) {
        for (unsigned k = 0; k < LANES_MAX; k++) {
            if (now >= slots[i].conns[k].wake) {
                progress(&slots[i].conns[k], now);
            }
        }
        if (slots[i].busy && slot_is_done(&slots[i])) {
            case_free(&slots[i].work);
            slots[i].busy = false;
        }
    }
}

static bool any_busy(void)
{
    for (unsigned i = 0; i < slot_count; i++) {
        if (slots[i].busy) {
            return true;
        }
    }
    return false;
}

static void write_recent(const char *path, const struct corpus *corpus, uint64_t seed)
{
    FILE *file = fopen(path, "w");
    uint64_t count = stats.cases < RECENT ? stats.cases : RECENT;

    for (uint64_t i = 0; file != NULL && i < count; i++) {
        struct storm_case work;

        case_make(&work, corpus, seed, recent[(stats.cases - count + i) % RECENT], way_count);
        case_write(&work, file);
        case_free(&work);
    }
    if (file != NULL) {
        fclose(file);
    }
}

static void storm(const struct corpus *corpus, uint64_t seed, int64_t seconds)
{
    int64_t end = now_ms() + seconds * 1000;
    uint64_t number = 0;

    while (!stopping && now_ms() < end && refused < REFUSED_MAX) {
        for (unsigned i = 0; i < slot_count; i++) {
            if (!slots[i].busy) {
                case_make(&slots[i].work, corpus, seed, number++, way_count);
                slot_start(&slots[i]);
            }
        }
        run_events();
    }
    while (any_busy()) {
        run_events();
    }
}

static void replay(const char *path)
{
    FILE *file = fopen(path, "r");

    if (file == NULL) {
        fprintf(stderr, "storm: cannot read %s\n", path);
        exit(2);
    }
    while (!stopping && refused < REFUSED_MAX && case_read(&slots[0].work, file)) {
        slot_start(&slots[0]);
        while (any_busy()) {
            run_events();
        }
    }
    fclose(file);
}

/* -- the command line */

static void add_way(const char *text)
{
    static const char *const kinds[] = {"plain", "token", "certs", "noise"};
    struct way *way = &ways[way_count];
    const char *at = strchr(text, '@');
    const char *colon = strrchr(text, ':');
    struct sockaddr_in *in = (struct sockaddr_in *)&way->address;
    struct sockaddr_un *un = (struct sockaddr_un *)&way->address;
    char host[64] = "";

    for (unsigned i = 0; i < 4 && at != NULL && way_count < WAYS_MAX; i++) {
        if (strlen(kinds[i]) != (size_t)(at - text) || strncmp(kinds[i], text, strlen(kinds[i]))) {
            continue;
        }
        way->kind = (enum way_kind)i;
        if (at[1] == '/') {
            un->sun_family = AF_UNIX;
            snprintf(un->sun_path, sizeof(un->sun_path), "%s", at + 1);
            way->len = sizeof(*un);
        } else if (colon != NULL) {
            snprintf(host, sizeof(host), "%.*s", (int)(colon - at - 1), at + 1);
            in->sin_family = AF_INET;
            in->sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
            inet_pton(AF_INET, host, &in->sin_addr);
            way->loopback = strncmp(host, "127.", 4) == 0;
            way->len = sizeof(*in);
        }
        way_count += way->len > 0;
        return;
    }
    fprintf(stderr, "storm: --way wants KIND@HOST:PORT or KIND@/PATH, not '%s'\n", text);
    exit(2);
}

int main(int argc, char **argv)
{
    const char *token = NULL, *cert = NULL, *key = NULL, *out = NULL, *again = NULL, *path = NULL;
    struct corpus corpus = {0};
    uint64_t seed = 1;
    int64_t seconds = 5, started;

    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";

        if (argv[i][0] != '-') {
            path = argv[i];
            continue;
        }
        i++;
        token = strcmp(argv[i - 1], "--token") == 0 ? value : token;
        cert = strcmp(argv[i - 1], "--cert") == 0 ? value : cert;
        key = strcmp(argv[i - 1], "--key") == 0 ? value : key;
        out = strcmp(argv[i - 1], "--out") == 0 ? value : out;
        again = strcmp(argv[i - 1], "--replay") == 0 ? value : again;
        seed = strcmp(argv[i - 1], "--seed") == 0 ? strtoull(value, NULL, 0) : seed;
        seconds = strcmp(argv[i - 1], "--seconds") == 0 ? strtoll(value, NULL, 10) : seconds;
        if (strcmp(argv[i - 1], "--slots") == 0) {
            slot_count = (unsigned)strtoul(value, NULL, 10);
        }
        if (strcmp(argv[i - 1], "--from") == 0) {
            stranger = inet_addr(value);
        }
        if (strcmp(argv[i - 1], "--way") == 0) {
            add_way(value);
        }
    }
    if (way_count == 0 || slot_count == 0 || slot_count > SLOTS_MAX ||
        (path == NULL && again == NULL)) {
        fprintf(stderr, "usage: storm --way KIND@ADDRESS... CONVERSATIONS (see storm.h)\n");
        return 2;
    }
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    poller = epoll_create1(EPOLL_CLOEXEC);
    wire_setup(token, cert, key);
    started = now_ms();
    if (again != NULL) {
        replay(again);
    } else {
        corpus_load(&corpus, path);
        storm(&corpus, seed, seconds);
    }
    started = now_ms() - started;
    printf("cases %llu ms %lld connections %llu answered %llu sealed %llu ready %llu said %llu "
           "refused %llu\n",
           (unsigned long long)stats.cases, (long long)started, (unsigned long long)stats.conns,
           (unsigned long long)stats.answered, (unsigned long long)stats.sealed,
           (unsigned long long)stats.ready, (unsigned long long)stats.said,
           (unsigned long long)stats.refused);
    if (out != NULL && again == NULL) {
        write_recent(out, &corpus, seed);
    }
    corpus_free(&corpus);
    wire_teardown();
    return refused >= REFUSED_MAX ? GONE : 0;
}
