#include "lg.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define RECV_BYTES ((size_t)256 * 1024)
#define EVENTS_MAX 256
#define SILENCE_NS (10ull * 1000 * 1000 * 1000)

struct conn {
    int fd;
    struct lg_script *script; /* shared by all for get and set, else its own */
    size_t send_at;           /* offset in the requests of the next byte to send */
    size_t unsent;            /* bytes that are due and not sent yet */
    size_t reply_at;          /* offset in the replies, or in `sum`, of the next byte to come */
    bool blocked;             /* waits for EPOLLOUT */
    uint64_t *sent_ns;        /* when each request in flight was made: a ring of `depth` */
    size_t oldest;
    size_t in_flight;
    uint64_t done; /* answered, ever */
    uint8_t sum[32];
    size_t sum_len;
};

struct load {
    const struct lg_options *options;
    int epoll_fd;
    struct conn *conns;
    struct lg_script shared;
    uint8_t *buffer;
    struct lg_hist hist;
    uint64_t answered;
    bool draining; /* no new requests */
};

static void watch_writable(struct load *load, struct conn *conn, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = conn};
    if (epoll_ctl(load->epoll_fd, EPOLL_CTL_MOD, conn->fd, &event) != 0) {
        lg_die("epoll_ctl: %s", strerror(errno));
    }
    conn->blocked = on;
}

static void flush(struct load *load, struct conn *conn)
{
    const struct lg_bytes *requests = &conn->script->requests;
    while (conn->unsent > 0) {
        size_t slice = requests->len - conn->send_at;
        slice = slice < conn->unsent ? slice : conn->unsent;
        ssize_t sent = send(conn->fd, requests->data + conn->send_at, slice, MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) {
            break;
        }
        if (sent < 0) {
            lg_die("send: %s", strerror(errno));
        }
        conn->unsent -= (size_t)sent;
        conn->send_at += (size_t)sent;
        if (conn->send_at == requests->len) {
            conn->send_at = 0;
        }
    }
    if (conn->blocked != (conn->unsent > 0)) {
        watch_writable(load, conn, conn->unsent > 0);
    }
}

/* Makes as many requests as there is room for and sends them in one go. */
static void refill(struct load *load, struct conn *conn, uint64_t now)
{
    size_t depth = load->options->depth;
    if (load->draining) {
        return;
    }
    while (conn->in_flight < depth) {
        size_t slot = conn->oldest + conn->in_flight;
        conn->sent_ns[slot < depth ? slot : slot - depth] = now;
        conn->in_flight++;
        conn->unsent += conn->script->request_len;
    }
    flush(load, conn);
}

/* How many replies end within these bytes. All have one length, and each byte is compared. */
static size_t match_replies(struct conn *conn, const uint8_t *data, size_t len)
{
    const struct lg_bytes *replies = &conn->script->replies;
    size_t begun = conn->reply_at % conn->script->reply_len;
    size_t ended = (begun + len) / conn->script->reply_len;
    while (len > 0) {
        size_t slice = replies->len - conn->reply_at;
        slice = slice < len ? slice : len;
        if (memcmp(data, replies->data + conn->reply_at, slice) != 0) {
            lg_die("a wrong reply, the %llu. on its connection or one behind it",
                   (unsigned long long)conn->done + 1);
        }
        data += slice;
        len -= slice;
        conn->reply_at += slice;
        if (conn->reply_at == replies->len) {
            conn->reply_at = 0;
        }
    }
    return ended;
}

static size_t match_sums(struct conn *conn, enum lg_proto proto, const uint8_t *data, size_t len)
{
    size_t ended = 0;
    while (len > 0) {
        size_t slice = conn->sum_len - conn->reply_at;
        slice = slice < len ? slice : len;
        if (memcmp(data, conn->sum + conn->reply_at, slice) != 0) {
            lg_die("a wrong sum: expected %llu", (unsigned long long)(conn->done + ended + 1));
        }
        data += slice;
        len -= slice;
        conn->reply_at += slice;
        if (conn->reply_at == conn->sum_len) {
            ended++;
            conn->reply_at = 0;
            conn->sum_len = lg_sum_reply(proto, conn->done + ended + 1, conn->sum);
        }
    }
    return ended;
}

static void take_replies(struct load *load, struct conn *conn, size_t ended, uint64_t now)
{
    size_t depth = load->options->depth;
    if (ended > conn->in_flight) {
        lg_die("more replies than requests");
    }
    /* Requests of one batch have one time: count them together. */
    size_t left = ended;
    while (left > 0) {
        uint64_t sent = conn->sent_ns[conn->oldest];
        size_t same = 0;
        do {
            conn->oldest = conn->oldest + 1 < depth ? conn->oldest + 1 : 0;
            same++;
        } while (same < left && conn->sent_ns[conn->oldest] == sent);
        lg_hist_add(&load->hist, now - sent, same);
        left -= same;
    }
    conn->in_flight -= ended;
    conn->done += ended;
    load->answered += ended;
}

static void on_readable(struct load *load, struct conn *conn)
{
    ssize_t got = recv(conn->fd, load->buffer, RECV_BYTES, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (got <= 0) {
        lg_die("the server closed a connection after %llu replies: %s",
               (unsigned long long)conn->done, got == 0 ? "end of stream" : strerror(errno));
    }
    size_t ended = load->options->op == LG_ADD
                       ? match_sums(conn, load->options->proto, load->buffer, (size_t)got)
                       : match_replies(conn, load->buffer, (size_t)got);
    if (ended > 0) {
        uint64_t now = lg_now_ns();
        take_replies(load, conn, ended, now);
        refill(load, conn, now);
    }
}

static void turn(struct load *load)
{
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(load->epoll_fd, events, EVENTS_MAX, load->options->spin ? 0 : 100);
    for (int i = 0; i < count; i++) {
        struct conn *conn = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) {
            flush(load, conn);
        }
        if (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
            on_readable(load, conn);
        }
    }
}

static void run_for(struct load *load, double seconds)
{
    uint64_t end = lg_now_ns() + (uint64_t)(seconds * 1e9);
    uint64_t answered = load->answered;
    uint64_t heard = lg_now_ns();
    for (uint64_t now = heard; now < end; now = lg_now_ns()) {
        turn(load);
        if (load->answered != answered) {
            answered = load->answered;
            heard = now;
        } else if (now - heard > SILENCE_NS) {
            lg_die("no answer for 10 seconds");
        }
    }
}

/* Waits for the answers that are still out, so that every request of the run was checked. */
static void drain(struct load *load)
{
    uint64_t end = lg_now_ns() + SILENCE_NS;
    load->draining = true;
    for (size_t i = 0; i < load->options->conns; i++) {
        while (load->conns[i].in_flight > 0) {
            turn(load);
            if (lg_now_ns() > end) {
                lg_die("requests were not answered for 10 seconds");
            }
        }
    }
}

static void open_conn(struct load *load, struct conn *conn, size_t index, uint64_t nonce)
{
    const struct lg_options *options = load->options;
    conn->fd = lg_connect(options, options->proto);
    conn->sent_ns = lg_alloc(options->depth, sizeof *conn->sent_ns);
    if (options->op == LG_GET || options->op == LG_SET) {
        size_t first = lg_script_first(&load->shared, index);
        conn->script = &load->shared;
        conn->send_at = first * load->shared.request_len;
        conn->reply_at = first * load->shared.reply_len;
    } else {
        conn->script = lg_alloc(1, sizeof *conn->script);
        lg_script_init(conn->script, options, options->op, nonce, index);
        if (options->op == LG_CAS) {
            lg_script_prepare(conn->script, options, conn->fd, nonce, index);
        }
        conn->sum_len = lg_sum_reply(options->proto, 1, conn->sum);
    }
    lg_set_nonblocking(conn->fd);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = conn};
    if (epoll_ctl(load->epoll_fd, EPOLL_CTL_ADD, conn->fd, &event) != 0) {
        lg_die("epoll_ctl: %s", strerror(errno));
    }
}

/* get needs the values there before the run; set is read back behind it, however short it was. */
static void run_script(const struct lg_options *options, enum lg_op op)
{
    struct lg_script script;
    int fd = lg_connect(options, options->proto);
    lg_script_init(&script, options, op, 0, 0);
    lg_script_run(&script, fd);
    lg_script_fini(&script);
    (void)close(fd);
}

static void close_all(struct load *load, int *idle)
{
    for (size_t i = 0; i < load->options->conns; i++) {
        struct conn *conn = &load->conns[i];
        (void)close(conn->fd);
        free(conn->sent_ns);
        if (conn->script != &load->shared) {
            lg_script_fini(conn->script);
            free(conn->script);
        }
    }
    for (size_t i = 0; i < load->options->idle; i++) {
        (void)close(idle[i]);
    }
    free(idle);
    free(load->conns);
    free(load->buffer);
    lg_script_fini(&load->shared);
    (void)close(load->epoll_fd);
}

int lg_run_load(const struct lg_options *options)
{
    static struct load load;
    uint64_t nonce = lg_now_ns() ^ (uint64_t)getpid() << 40;

    load = (struct load){.options = options, .epoll_fd = epoll_create1(EPOLL_CLOEXEC)};
    load.buffer = lg_alloc(RECV_BYTES, 1);
    load.conns = lg_alloc(options->conns, sizeof *load.conns);
    lg_want_descriptors(options->conns + options->idle + 16);
    int *idle = lg_connect_many(options, options->idle);
    if ((options->op == LG_GET || options->op == LG_SET) && !options->bare) {
        run_script(options, LG_SET);
    }
    lg_script_init(&load.shared, options, options->op == LG_SET ? LG_SET : LG_GET, 0, 0);
    for (size_t i = 0; i < options->conns; i++) {
        open_conn(&load, &load.conns[i], i, nonce);
    }

    uint64_t now = lg_now_ns();
    for (size_t i = 0; i < options->conns; i++) {
        refill(&load, &load.conns[i], now);
    }
    run_for(&load, options->warmup_seconds);
    memset(&load.hist, 0, sizeof load.hist);
    uint64_t answered = load.answered;
    uint64_t start = lg_now_ns();
    run_for(&load, options->seconds);
    double seconds = (double)(lg_now_ns() - start) / 1e9;
    answered = load.answered - answered;
    double p50 = lg_hist_at(&load.hist, 0.50) / 1e3;
    double p99 = lg_hist_at(&load.hist, 0.99) / 1e3;
    drain(&load);
    if (options->op == LG_SET && !options->bare) {
        run_script(options, LG_GET);
    }
    close_all(&load, idle);

    lg_print(options, "ops", (double)answered / seconds, "ops/s");
    lg_print(options, "p50", p50, "us");
    lg_print(options, "p99", p99, "us");
    return 0;
}
