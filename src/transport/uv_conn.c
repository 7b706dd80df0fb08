#include "transport/uv_internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"
#include "transport/mapped.h"

static void on_event(uv_poll_t *poll, int status, int events);

/* Makes the loop watch what the state asks for. */
static void update_interest(struct mu_uv_conn *c)
{
    int want = 0;

    switch (c->state) {
    case MU_UV_DIALING:
        want = UV_WRITABLE;
        break;
    case MU_UV_OPEN:
        want = (!c->paused && !c->eof ? UV_READABLE : 0) |
               (c->rest.len != 0 || c->want_writable ? UV_WRITABLE : 0);
        if (want == 0 && !c->urgent) {
            /* Nothing to do, but a reset is worth knowing: the kernel reports it with any event
             * that is asked for, and an honest program never sends this one. */
            want = UV_PRIORITIZED;
        }
        break;
    case MU_UV_FLUSHING:
        /* Reads too, so that an other end that writes before it reads cannot hold us up. */
        want = UV_WRITABLE | (c->eof ? 0 : UV_READABLE);
        break;
    case MU_UV_PARTING:
    case MU_UV_LINGERING:
        want = UV_READABLE;
        break;
    case MU_UV_DEAD:
        return;
    }
    if (want != c->interest) {
        c->interest = (uint8_t)want;
        /* It can fail only for a socket that is watched twice. */
        MU_ASSERT((want == 0 ? uv_poll_stop(&c->poll) : uv_poll_start(&c->poll, want, on_event)) ==
                  0);
    }
}

/* The end of a connection. */

void mu_uv_conn_free(struct mu_uv_conn *c)
{
    mu_list_remove(&c->later.link);
    mu_uv_dial_free(c);
    mu_buf_fini(&c->rest);
    mu_buf_fini(&c->stash);
    mu_free(c);
}

/* Gives the memory back to the owner. */
static void report_closed(struct mu_uv_conn *c)
{
    struct mu_conn *conn = c->conn;

    if (conn != NULL) {
        c->conn = NULL;
        c->uv->live--;
        conn->impl = NULL;
        conn->on->closed(conn, c->status);
    }
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct mu_uv_conn *c = handle->data;

    c->handle_closing = false;
    if (c->state == MU_UV_DIALING) {
        mu_uv_dial_next(c);
        return;
    }
    MU_ASSERT(c->state == MU_UV_DEAD);
    report_closed(c);
    mu_uv_conn_free(c);
}

/* Lets go of the socket; on_handle_closed() follows. */
static void close_socket(struct mu_uv_conn *c)
{
    c->handle_closing = true;
    c->interest = 0;
    uv_close((uv_handle_t *)&c->poll, on_handle_closed);
    (void)close(c->fd);
    c->fd = -1;
}

void mu_uv_conn_teardown(struct mu_uv_conn *c, int status)
{
    if (c->state == MU_UV_DEAD) {
        return;
    }
    c->state = MU_UV_DEAD;
    c->status = status;
    mu_env_timer_arm(&c->uv->env, &c->timer, MU_MONO_NEVER);
    mu_list_remove(&c->later.link);
    /* The buffers stay until the end: the owner may be looking at them right now. */
    if (c->fd >= 0) {
        close_socket(c);
    } else if (!c->handle_closing) {
        mu_uv_later_add(c->uv, &c->later);
    }
}

void mu_uv_conn_drop_lingering(struct mu_uv_env *uv)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &uv->lingering) {
        mu_uv_conn_teardown(MU_CONTAINER_OF(it, struct mu_uv_conn, later.link), 0);
    }
}

/* Everything is sent. If we closed now, with unread bytes, the kernel would reset the connection,
 * and the other end would lose what it has not read yet. So we shut only our side, and read and
 * drop what still comes until the end, within the linger time. The owner need not wait. */
static void part(struct mu_uv_conn *c)
{
    if (c->eof || c->write_status != 0 || shutdown(c->fd, SHUT_WR) != 0) {
        mu_uv_conn_teardown(c, 0);
        return;
    }
    c->state = MU_UV_PARTING;
    update_interest(c);
    mu_uv_later_add(c->uv, &c->later);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_uv_conn *c = MU_CONTAINER_OF(timer, struct mu_uv_conn, timer);

    if (c->state == MU_UV_DIALING && c->fd < 0) {
        mu_uv_dial_next(c);
    } else if (c->state == MU_UV_DIALING) {
        mu_uv_conn_try_failed(c, -ETIMEDOUT);
    } else {
        mu_uv_sock_set_reset(c->fd);
        mu_uv_conn_teardown(c, 0);
    }
}

void mu_uv_conn_try_failed(struct mu_uv_conn *c, int status)
{
    mu_uv_dial_note(c, status);
    mu_env_timer_arm(&c->uv->env, &c->timer, MU_MONO_NEVER);
    close_socket(c);
}

void mu_uv_conn_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct mu_uv_conn *c = conn->impl;

    if (c == NULL || c->state == MU_UV_DEAD || (!abort && c->state > MU_UV_OPEN)) {
        return;
    }
    if (abort && c->fd >= 0) {
        mu_uv_sock_set_reset(c->fd);
    }
    if (abort || c->state == MU_UV_DIALING) {
        mu_uv_conn_teardown(c, 0);
        return;
    }
    mu_list_remove(&c->later.link);
    mu_env_timer_arm(env, &c->timer, mu_mono_add_ms(mu_env_now(env).mono, MU_UV_LINGER_MS));
    c->state = MU_UV_FLUSHING;
    if (c->rest.len == 0) {
        part(c);
    } else {
        update_interest(c);
    }
}

/* Sending. */

/* The other end may have said why before it went: what it sent is read first, and its end ends the
 * connection. */
static void write_failed(struct mu_uv_conn *c, int status)
{
    bool reading = c->state == MU_UV_OPEN && !c->paused && !c->eof;

    mu_buf_reset(&c->rest);
    c->want_writable = false;
    if (reading && (status == -EPIPE || status == -ECONNRESET)) {
        c->write_status = status;
        update_interest(c);
    } else {
        mu_uv_conn_teardown(c, c->state == MU_UV_OPEN ? status : 0);
    }
}

/* How many bytes of plain memory the kernel took; a negated errno. */
static ssize_t send_memory(int fd, const struct mu_span *spans, size_t count, bool more)
{
    struct iovec parts[MU_ENV_SPANS_MAX];
    struct msghdr msg = {.msg_iov = parts};
    ssize_t n;

    for (size_t i = 0; i < count && i < MU_ENV_SPANS_MAX; i++) {
        parts[i].iov_base = (void *)(uintptr_t)spans[i].data;
        parts[i].iov_len = spans[i].len;
        msg.msg_iovlen++;
    }
    do {
        n = sendmsg(fd, &msg, MSG_NOSIGNAL | (more ? MSG_MORE : 0));
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EFAULT) {
        return -EIO; /* in a file that became too short: see transport/mapped.h */
    }
    if (n < 0) {
        n = errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    }
    return n;
}

/* How many of the first spans are plain memory. */
static size_t count_plain(const struct mu_span *spans, size_t count)
{
    size_t n = 0;

    while (n < count && !mu_mapped_has(spans[n])) {
        n++;
    }
    return n;
}

/* Whether files are sent page by page. Within a host a page costs more than its copy, which is read
 * again before it leaves the cache; a network card needs no copy. */
static bool sends_pages(struct mu_uv_conn *c)
{
    if (c->path == MU_UV_PATH_UNKNOWN) {
        c->path = mu_uv_sock_is_near(c->fd) ? MU_UV_PATH_NEAR : MU_UV_PATH_FAR;
    }
    return c->path == MU_UV_PATH_FAR || mu_mapped_even_near;
}

/* How many bytes the kernel took, or a negated errno if it took nothing. Spans in a mapping are
 * sent from its file. */
static ssize_t try_send(struct mu_uv_conn *c, const struct mu_span *spans, size_t count)
{
    ssize_t total = 0;
    ssize_t n = 0;
    size_t len = 0;
    int fd = c->fd;

    count = count < MU_ENV_SPANS_MAX ? count : MU_ENV_SPANS_MAX;
    if (count_plain(spans, count) == count || !sends_pages(c)) {
        return send_memory(fd, spans, count, false);
    }
    for (size_t i = 0; i < count && (size_t)n == len; total += n) {
        size_t plain = count_plain(spans + i, count - i);
        size_t used = plain != 0 ? plain : 1;

        len = mu_span_total(spans + i, used);
        n = plain != 0 ? send_memory(fd, spans + i, plain, i + plain < count)
                       : mu_mapped_send(fd, spans[i]);
        if (n < 0) {
            return total != 0 ? total : n; /* it fails again when it comes first */
        }
        i += used;
    }
    return total;
}

/* Keeps what the kernel did not take, if that is little. The owner of more has to wait for
 * `writable` anyway, and can then send it from where it is. Spans in a mapping are never copied:
 * the file may be too short to be read. */
static bool keep_rest(struct mu_uv_conn *c, const struct mu_span *spans, size_t count, size_t taken,
                      size_t total)
{
    if (total - taken > MU_UV_REST_MAX - c->rest.len || count_plain(spans, count) < count ||
        mu_buf_reserve(&c->rest, total - taken) != 0) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        size_t skip = taken < spans[i].len ? taken : spans[i].len;

        mu_buf_put(&c->rest, mu_span_skip(spans[i], skip));
        taken -= skip;
    }
    return true;
}

void mu_uv_conn_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                      size_t count, size_t *ret_taken)
{
    struct mu_uv_conn *c = conn->impl;
    size_t total = mu_span_total(spans, count);
    size_t taken = 0;

    (void)env;
    *ret_taken = total;
    if (c == NULL || c->state > MU_UV_OPEN || c->write_status != 0 || c->finished || total == 0) {
        return;
    }
    if (c->state == MU_UV_OPEN && c->rest.len == 0) {
        ssize_t n = try_send(c, spans, count);

        if (n < 0) {
            write_failed(c, (int)n);
            return;
        }
        taken = (size_t)n;
        if (taken == total) {
            return;
        }
    }
    if (c->state == MU_UV_OPEN && keep_rest(c, spans, count, taken, total)) {
        taken = total;
    }
    c->want_writable = c->want_writable || taken < total;
    *ret_taken = taken;
    if (c->state == MU_UV_OPEN) {
        update_interest(c);
    }
}

void mu_uv_conn_finish(struct mu_env *env, struct mu_conn *conn)
{
    struct mu_uv_conn *c = conn->impl;

    (void)env;
    if (c != NULL && c->state == MU_UV_OPEN && !c->finished) {
        c->finished = true;
        c->want_writable = false;
        if (c->rest.len == 0) {
            (void)shutdown(c->fd, SHUT_WR);
        }
        update_interest(c);
    }
}

static void on_writable(struct mu_uv_conn *c)
{
    if (c->rest.len != 0) {
        struct mu_span rest = mu_buf_span(&c->rest);
        ssize_t n = try_send(c, &rest, 1);

        if (n < 0) {
            write_failed(c, (int)n);
            return;
        }
        mu_buf_consume(&c->rest, (size_t)n);
        if (c->rest.len != 0) {
            return;
        }
        mu_buf_trim(&c->rest, 0);
    }
    if (c->state == MU_UV_FLUSHING) {
        part(c);
        return;
    }
    if (c->finished) {
        (void)shutdown(c->fd, SHUT_WR);
    }
    if (c->want_writable) {
        c->want_writable = false;
        c->conn->on->writable(c->conn);
        update_interest(c);
    } else {
        update_interest(c);
    }
}

/* Reading. */

static size_t call_data(struct mu_uv_conn *c, struct mu_span in)
{
    size_t used;

    c->in_data = true;
    used = c->conn->on->data(c->conn, in);
    c->in_data = false;
    MU_ASSERT(used <= in.len);
    return used;
}

/* `data` left something. */
static void pause_reading(struct mu_uv_conn *c)
{
    c->paused = true;
    if (c->resume) {
        mu_uv_later_add(c->uv, &c->later);
    }
    update_interest(c);
}

static void take_bytes(struct mu_uv_conn *c, struct mu_span in)
{
    size_t used = call_data(c, in);

    if (c->state != MU_UV_OPEN) {
        return;
    }
    if (used == in.len) {
        c->resume = false;
        return;
    }
    if (mu_buf_append(&c->stash, mu_span_skip(in, used)) != 0) {
        mu_uv_conn_teardown(c, MUSTER_ENOMEM);
        return;
    }
    pause_reading(c);
}

/* Reported once: the priority events that show a late hang-up are not watched for again. If we had
 * shut our own side, an other end that has only ended would look the same. */
static void take_hang_up(struct mu_uv_conn *c)
{
    if (c->state == MU_UV_OPEN && c->eof && !c->finished && c->conn->on->hung_up != NULL &&
        mu_uv_sock_hung_up(c->fd)) {
        c->urgent = true;
        update_interest(c);
        c->conn->on->hung_up(c->conn);
    }
}

static void take_end(struct mu_uv_conn *c)
{
    c->eof = true;
    if (c->state != MU_UV_OPEN) {
        /* Flushing goes on; lingering is over. */
        if (c->state == MU_UV_FLUSHING) {
            update_interest(c);
        } else if (c->state == MU_UV_LINGERING) {
            mu_uv_conn_teardown(c, 0);
        }
        return;
    }
    if (c->write_status != 0) {
        mu_uv_conn_teardown(c, c->write_status);
        return;
    }
    update_interest(c);
    c->conn->on->eof(c->conn);
    take_hang_up(c);
}

/* Reads into the owner's room, and what follows into the loop's buffer. */
static ssize_t try_recv(struct mu_uv_conn *c, struct mu_space room)
{
    struct iovec parts[2] = {
        {.iov_base = room.data, .iov_len = room.len},
        {.iov_base = c->uv->in, .iov_len = room.len == 0 ? MU_UV_READ_MAX : MU_UV_BEHIND_MAX},
    };
    ssize_t n;

    do {
        n = room.len == 0 ? recv(c->fd, c->uv->in, MU_UV_CONN_READ_MAX, 0) : readv(c->fd, parts, 2);
    } while (n < 0 && errno == EINTR);
    return n < 0 ? -errno : n;
}

static void take_read(struct mu_uv_conn *c, struct mu_space room, size_t n)
{
    size_t first = n < room.len ? n : room.len;

    if (first != 0) {
        size_t used = call_data(c, mu_span(room.data, first));

        MU_ASSERT(used == first || c->state != MU_UV_OPEN);
        c->resume = false;
    }
    if (n > first && c->state == MU_UV_OPEN) {
        take_bytes(c, mu_span(c->uv->in, n - first));
    }
}

static void on_readable(struct mu_uv_conn *c)
{
    struct mu_space room = {0};
    ssize_t n;

    if (c->state == MU_UV_OPEN && c->conn->on->room != NULL) {
        room = c->conn->on->room(c->conn);
    }
    n = try_recv(c, room);
    c->uv->now_valid = false;
    if (n > 0) {
        if (c->state == MU_UV_OPEN) {
            take_read(c, room, (size_t)n);
        }
    } else if (n == 0) {
        take_end(c);
    } else if (n != -EAGAIN && n != -EWOULDBLOCK) {
        mu_uv_conn_teardown(c, c->state == MU_UV_OPEN ? (int)n : 0);
    }
}

static void deliver_stash(struct mu_uv_conn *c)
{
    size_t used;

    c->resume = false;
    used = call_data(c, mu_buf_span(&c->stash));
    if (c->state != MU_UV_OPEN) {
        return;
    }
    mu_buf_consume(&c->stash, used);
    if (c->stash.len != 0) {
        pause_reading(c);
        return;
    }
    mu_buf_trim(&c->stash, 0);
    c->paused = false;
    c->resume = false;
    update_interest(c);
}

void mu_uv_conn_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct mu_uv_conn *c = conn->impl;

    (void)env;
    if (c == NULL || c->state != MU_UV_OPEN || !(c->paused || c->in_data)) {
        return;
    }
    c->resume = true;
    if (c->paused && !c->in_data) {
        mu_uv_later_add(c->uv, &c->later);
    }
}

/* Events. */

static void on_later(struct mu_uv_later *later)
{
    struct mu_uv_conn *c = MU_CONTAINER_OF(later, struct mu_uv_conn, later);

    switch (c->state) {
    case MU_UV_OPEN:
        deliver_stash(c);
        break;
    case MU_UV_PARTING:
        c->state = MU_UV_LINGERING;
        mu_list_push(&c->uv->lingering, &c->later.link);
        report_closed(c);
        if (c->eof) {
            mu_uv_conn_teardown(c, 0);
        }
        break;
    case MU_UV_DEAD:
        report_closed(c);
        mu_uv_conn_free(c);
        break;
    case MU_UV_DIALING:
    case MU_UV_FLUSHING:
    case MU_UV_LINGERING:
        break;
    }
}

/* An error is pending on a socket that is not read from at the moment. */
static void take_error(struct mu_uv_conn *c)
{
    int status = mu_uv_sock_error(c->fd);

    mu_uv_conn_teardown(c, c->state != MU_UV_OPEN ? 0 : status != 0 ? status : -ECONNRESET);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    struct mu_uv_conn *c = poll->data;
    uint8_t interest = c->interest;

    if (c->state == MU_UV_DIALING) {
        mu_uv_dial_event(c);
        return;
    }
    if (status < 0) {
        /* libuv stopped watching. What came before the error is still there to be read. */
        c->interest = 0;
        if ((interest & UV_READABLE) == 0) {
            take_error(c);
            return;
        }
        events = UV_READABLE;
    }
    if ((events & UV_PRIORITIZED) != 0) {
        c->urgent = true;
        take_hang_up(c);
    }
    if ((events & UV_READABLE) != 0) {
        on_readable(c);
    }
    /* The owner may have changed anything in between. */
    if ((events & UV_WRITABLE) != 0 && (c->interest & UV_WRITABLE) != 0) {
        on_writable(c);
    }
    update_interest(c);
}

/* The beginning. */

struct mu_uv_conn *mu_uv_conn_new(struct mu_uv_env *uv)
{
    struct mu_uv_conn *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    c->uv = uv;
    c->fd = -1;
    c->state = MU_UV_DIALING;
    c->later.run = on_later;
    mu_list_init(&c->later.link);
    mu_timer_init(&c->timer, on_timer);
    mu_buf_init(&c->rest, MU_UV_REST_MAX);
    mu_buf_init(&c->stash, MU_UV_CONN_READ_MAX);
    return c;
}

int mu_uv_conn_attach(struct mu_uv_conn *c, int fd)
{
    int rc = uv_poll_init(&c->uv->loop, &c->poll, fd);

    if (rc != 0) {
        return rc;
    }
    c->poll.data = c;
    c->fd = fd;
    c->interest = 0;
    return 0;
}

void mu_uv_conn_start(struct mu_uv_conn *c, struct mu_conn *conn)
{
    conn->env = &c->uv->env;
    conn->impl = c;
    c->conn = conn;
    c->uv->live++;
}

void mu_uv_conn_watch(struct mu_uv_conn *c, enum mu_uv_conn_state state)
{
    c->state = state;
    update_interest(c);
}

void mu_uv_conn_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct mu_uv_conn *c = conn->impl;

    (void)env;
    if (c == NULL || c->fd < 0) {
        (void)snprintf(buf, cap, "?");
    } else {
        mu_uv_sock_peer(c->fd, buf, cap);
    }
}
