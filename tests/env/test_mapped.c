/* Spans of mapped files: what leaves by sendfile are the right bytes, in the right order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"
#include "transport/mapped.h"
#include "transport/uv_env.h"

#define BULK ((size_t)12 << 20) /* more than the kernel takes at once */

static struct mu_uv_env *uv;
static struct mu_env *env;
static char dir[64];
static char path[128];

/* A connection of ours, and the peer's raw socket. */
static struct {
    struct mu_conn conn;
    bool open;
    bool writable;
    bool closed;
    int status;
    int peer;
} end;

static void on_open(struct mu_conn *conn)
{
    (void)conn;
    end.open = true;
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    (void)conn;
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    (void)conn;
}

static void on_writable(struct mu_conn *conn)
{
    (void)conn;
    end.writable = true;
}

static void on_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    end.closed = true;
    end.status = status;
}

static const struct mu_conn_events events = {
    .open = on_open, .data = on_data, .eof = on_eof, .writable = on_writable, .closed = on_closed};

static uint8_t byte_at(size_t i)
{
    return (uint8_t)((i * 2654435761u) >> 13 ^ i >> 20);
}

static void connect_pair(void)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .host = "127.0.0.1"};

    assert_int_equal(bind(listener, (struct sockaddr *)&in, len), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&in, &len), 0);
    addr.port = ntohs(in.sin_port);
    memset(&end, 0, sizeof(end));
    end.conn.on = &events;
    assert_int_equal(mu_env_dial(env, &end.conn, &addr), 0);
    while (!end.open) {
        mu_uv_env_turn(uv);
    }
    end.peer = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    assert_true(end.peer >= 0);
    (void)close(listener);
}

static int set_up(void **state)
{
    FILE *f;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/muster-mapped-XXXXXX");
    if (mkdtemp(dir) == NULL || mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    env = mu_uv_env_env(uv);
    (void)snprintf(path, sizeof(path), "%s/file", dir);
    f = fopen(path, "w");
    for (size_t i = 0; i < BULK; i++) {
        (void)putc(byte_at(i), f);
    }
    connect_pair();
    return fclose(f);
}

static int tear_down(void **state)
{
    (void)state;
    (void)close(end.peer);
    mu_env_close(env, &end.conn, true);
    while (!end.closed) {
        mu_uv_env_turn(uv);
    }
    mu_uv_env_free(uv);
    (void)unlink(path);
    return rmdir(dir);
}

static void on_tick(struct mu_timer *timer)
{
    (void)timer;
}

/* A turn, but no longer than a moment: what the peer has to read wakes nobody here, and there may
 * be no room to write before it has read it. */
static void turn_shortly(void)
{
    struct mu_timer tick;

    mu_timer_init(&tick, on_tick);
    mu_env_timer_arm(env, &tick, mu_mono_add_ms(mu_env_now(env).mono, 2));
    mu_uv_env_turn(uv);
    mu_env_timer_arm(env, &tick, MU_MONO_NEVER);
}

/* What the spans hold, read from the file where they lie in it. */
static uint8_t *flatten(const struct mu_span *spans, size_t count)
{
    uint8_t *all = malloc(mu_span_total(spans, count));
    size_t at = 0;

    for (size_t i = 0; i < count; i++) {
        memcpy(all + at, spans[i].data, spans[i].len);
        at += spans[i].len;
    }
    return all;
}

/* Sends all spans while the peer reads, never more than `gulp` at a time. Returns how many bytes
 * arrived, and that they are the right ones. */
static size_t exchange(struct mu_span *spans, size_t count, size_t gulp)
{
    size_t total = mu_span_total(spans, count);
    uint8_t *wanted = flatten(spans, count);
    uint8_t *got = malloc(total + 1);
    size_t received = 0;
    size_t first = 0;
    bool blocked = false;
    size_t partial = 0;

    while (received < total && !end.closed) {
        size_t taken = 0;
        ssize_t n;

        while (first < count && !blocked && !end.closed) {
            size_t want = mu_span_total(spans + first, count - first);

            mu_env_sendv(env, &end.conn, spans + first, count - first, &taken);
            blocked = taken < want;
            partial += blocked && taken != 0 ? 1 : 0;
            while (first < count && taken >= spans[first].len) {
                taken -= spans[first++].len;
            }
            if (taken != 0) {
                spans[first] = mu_span_skip(spans[first], taken);
            }
        }
        n = recv(end.peer, got + received,
                 total + 1 - received < gulp ? total + 1 - received : gulp, 0);
        if (n > 0) {
            received += (size_t)n;
        } else {
            assert_true(n == 0 || errno == EAGAIN || end.closed);
            end.writable = false;
            turn_shortly();
            blocked = blocked && !end.writable;
        }
    }
    assert_true(received <= total);
    assert_memory_equal(got, wanted, received);
    assert_true(received < total || total < BULK || partial != 0); /* It was sent in parts. */
    free(got);
    free(wanted);
    return received;
}

static void test_bytes_of_a_file_arrive_between_others_in_their_order(void **state)
{
    struct mu_errmsg msg;
    struct mu_mapped *m;
    struct mu_span spans[6];
    size_t total;

    (void)state;
    assert_int_equal(mu_mapped_open(path, &m, &msg), 0);
    assert_int_equal(m->len, BULK);
    spans[0] = MU_SPAN_LIT("head");
    spans[1] = mu_span(m->data, BULK);
    spans[2] = MU_SPAN_LIT("between");
    spans[3] = mu_span(m->data + 5, 3);
    spans[4] = mu_span(m->data + BULK - 70001, 70001);
    spans[5] = MU_SPAN_LIT("tail");
    total = mu_span_total(spans, 6);
    assert_int_equal(exchange(spans, 6, 100003), total);
    mu_mapped_close(m);
}

static void test_memory_that_was_mapped_leaves_as_it_is_when_it_is_sent(void **state)
{
    struct mu_errmsg msg;
    struct mu_mapped *m;
    struct mu_span spans[2];

    (void)state;
    assert_int_equal(mu_mapped_memory(BULK, &m, &msg), 0);
    for (size_t i = 0; i < BULK; i++) {
        m->data[i] = byte_at(i + 7);
    }
    spans[0] = mu_span(m->data + 1, BULK - 1);
    spans[1] = mu_span(m->data, 1);
    assert_int_equal(exchange(spans, 2, 1 << 20), BULK);
    mu_mapped_close(m);
}

static void test_file_that_was_cut_short_ends_the_connection_and_nothing_else(void **state)
{
    struct mu_errmsg msg;
    struct mu_mapped *m;
    size_t taken;
    size_t received = 0;
    uint8_t *got = malloc(BULK);

    (void)state;
    assert_int_equal(mu_mapped_open(path, &m, &msg), 0);
    assert_int_equal(truncate(path, 1000001), 0);
    for (size_t at = 0; !end.closed;) {
        ssize_t n;

        mu_env_send(env, &end.conn, mu_span(m->data + at, BULK - at), &taken);
        at += taken;
        n = recv(end.peer, got + received, BULK - received, 0);
        received += n > 0 ? (size_t)n : 0;
        turn_shortly();
    }
    assert_int_equal(end.status, -EIO);
    for (ssize_t n = 1; n > 0; received += n > 0 ? (size_t)n : 0) {
        assert_int_equal(poll(&(struct pollfd){.fd = end.peer, .events = POLLIN}, 1, 10000), 1);
        n = recv(end.peer, got + received, BULK - received, 0);
        assert_true(n >= 0); /* It ends in order. */
    }
    if (mu_mapped_even_near) {
        assert_int_equal(received, 1000001);
    } else {
        assert_true(received < 1004096); /* Not past the file's last page. */
    }
    for (size_t i = 0; i < received && i < 1000001; i++) {
        assert_int_equal(got[i], byte_at(i));
    }
    assert_int_equal(mu_mapped_read(m, 1000000, got, 1), 0);
    assert_int_equal(mu_mapped_read(m, 1000000, got, 2), MUSTER_EDISK);
    mu_mapped_close(m);
    free(got);
}

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void test_peer_that_is_gone_raises_no_signal(void **state)
{
    struct sigaction act = {.sa_handler = count_signal};
    struct mu_errmsg msg;
    struct mu_mapped *m;
    size_t taken;

    (void)state;
    assert_int_equal(sigaction(SIGPIPE, &act, NULL), 0);
    assert_int_equal(mu_mapped_open(path, &m, &msg), 0);
    (void)close(end.peer);
    end.peer = -1;
    for (int i = 0; i < 1000 && !end.closed; i++) {
        mu_env_send(env, &end.conn, mu_span(m->data, BULK), &taken);
        mu_uv_env_turn(uv);
    }
    assert_true(end.closed);
    assert_int_equal(signals, 0);
    mu_mapped_close(m);
}

static void test_file_to_be_filled_keeps_what_it_holds_and_is_one_process_s(void **state)
{
    char part[160];
    struct mu_errmsg msg;
    struct mu_mapped *m;
    struct mu_mapped *other;
    uint8_t byte;

    (void)state;
    (void)snprintf(part, sizeof(part), "%s.part", path);
    assert_int_equal(mu_mapped_create(part, 100000, &m, &msg), 0);
    m->data[99999] = 7;
    assert_int_equal(mu_mapped_create(part, 100000, &other, &msg), -EWOULDBLOCK);
    assert_non_null(strstr(msg.text, "another process"));
    assert_int_equal(mu_mapped_sync(m), 0);
    mu_mapped_close(m);
    assert_int_equal(mu_mapped_create(part, 200000, &m, &msg), 0);
    assert_int_equal(mu_mapped_read(m, 99999, &byte, 1), 0);
    assert_int_equal(byte, 7);
    mu_mapped_close(m);
    assert_int_equal(unlink(part), 0);
    assert_int_equal(mu_mapped_open(part, &m, &msg), -ENOENT);
    assert_int_equal(mu_mapped_open(dir, &m, &msg), MUSTER_EINVAL);
}

/* Goal: a file that we make is ours whoever the file system says it is of: of root, one with
 * root_squash says nobody. One that was there is not. */
static void test_file_to_be_filled_is_ours_if_we_made_it(void **state)
{
    char part[160];
    struct mu_errmsg msg;
    struct mu_mapped *m;
    int err;

    (void)state;
    if (geteuid() != 0) {
        skip();
    }
    (void)snprintf(part, sizeof(part), "%s/part", dir);
    assert_int_equal(chmod(dir, 0777), 0);
    (void)setfsuid(65534);
    err = mu_mapped_create(part, 1000, &m, &msg);
    (void)setfsuid(0);
    assert_int_equal(err, 0);
    mu_mapped_close(m);
    assert_int_equal(mu_mapped_create(part, 1000, &m, &msg), -EPERM);
    assert_non_null(strstr(msg.text, "another user's"));
    assert_int_equal(unlink(part), 0);
}

/* Goal: memory and files are made ready as far as there is room, and keep what they hold. */
static void test_pages_are_taken_before_they_are_written_to(void **state)
{
    const size_t len = (size_t)5 << 20;
    uint8_t *memory = malloc(len);
    char part[160];
    struct mu_errmsg msg;
    struct mu_mapped *m;
    int err;

    (void)state;
    (void)snprintf(part, sizeof(part), "%s.part", path);
    assert_non_null(memory);
    memory[7] = 7;
    err = mu_mapped_populate(memory + 5, len - 9);
    if (err != MUSTER_ENOTSUP) {
        assert_int_equal(err, 0);
        assert_int_equal(memory[7], 7);
        assert_int_equal(mu_mapped_populate(memory, 0), 0);
    }
    free(memory);
    assert_int_equal(mu_mapped_create_ahead(part, 100000, &m, &msg), 0);
    if (err == 0) {
        assert_int_equal(mu_mapped_populate(m->data + 50000, 50000), 0);
    }
    m->data[99999] = 9;
    /* The file system has no more room. */
    assert_int_equal(truncate(part, 10000), 0);
    if (err == 0) {
        assert_int_equal(mu_mapped_populate(m->data + 9000, 1000), 0);
        assert_int_equal(mu_mapped_populate(m->data + 90000, 1000), -ENOSPC);
    }
    mu_mapped_close(m);
    assert_int_equal(unlink(part), 0);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_bytes_of_a_file_arrive_between_others_in_their_order),
        CASE(test_memory_that_was_mapped_leaves_as_it_is_when_it_is_sent),
        CASE(test_file_that_was_cut_short_ends_the_connection_and_nothing_else),
        CASE(test_peer_that_is_gone_raises_no_signal),
        CASE(test_file_to_be_filled_keeps_what_it_holds_and_is_one_process_s),
        CASE(test_file_to_be_filled_is_ours_if_we_made_it),
        CASE(test_pages_are_taken_before_they_are_written_to),
    };

    int failed = cmocka_run_group_tests_name("copied", tests, NULL, NULL);

    mu_mapped_even_near = true;
    return failed + cmocka_run_group_tests_name("by their pages", tests, NULL, NULL);
}
