#include "service/stacks/flight_take.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/stacks/flight.h"
#include "core/alloc.h"

#define CHUNK ((size_t)1 << 20)

/* --- on a thread ------------------------------------------------------------------------------ */

static void settle(struct mu_flight_take_worker *w, const char *why)
{
    (void)snprintf(w->note, sizeof(w->note), "%s", why);
    w->settled = true;
}

static bool make_path(char *path, const char *prefix, uint32_t rank, const char *end)
{
    return prefix != NULL && snprintf(path, MU_FLIGHT_PATH_MAX, "%s%" PRIu32 "%s", prefix, rank,
                                      end) < MU_FLIGHT_PATH_MAX;
}

/* What a dump is like just now; 0: it is not there. */
static uint64_t mark_of(const struct mu_flight_take *t, struct mu_peek_process *p, int i,
                        const struct mu_flight_take_worker *w, uint64_t *ret_len)
{
    const struct mu_peek *peek = mu_env_peek(t->config.env);
    char path[MU_FLIGHT_PATH_MAX];
    uint64_t mark = 0;

    return make_path(path, t->config.dumps[i], w->rank, "") && peek->open_file(p, path) == 0 &&
                   peek->file_state(p, ret_len, &mark) == 0
               ? mark
               : 0;
}

static void poke(struct mu_flight_take *t, struct mu_peek_process *p,
                 struct mu_flight_take_worker *w)
{
    char path[MU_FLIGHT_PATH_MAX];
    uint64_t len;
    int err = -ENAMETOOLONG;

    for (int i = 0; i < 2; i++) {
        w->marks[i] = mark_of(t, p, i, w, &len);
    }
    if (make_path(path, t->config.pipe, w->rank, ".pipe")) {
        err = mu_env_peek(t->config.env)->poke(p, path);
    }
    t->asked += err == 0 ? 1 : 0;
    if (err == -ENOENT) {
        settle(w, ""); /* it does not listen: perhaps it uses no NCCL */
    } else if (err == -ENXIO) {
        settle(w, "nobody reads from its pipe");
    } else if (err == -EIO) {
        settle(w, "something else is in the place of its pipe");
    } else if (err != 0) {
        (void)snprintf(w->note, sizeof(w->note), "its pipe cannot be written to: %s",
                       muster_strerror(err));
        w->settled = true;
    }
}

/* Reads the file that is open. Only a thread that may wait does this. */
static int read_dump(const struct mu_peek *peek, struct mu_peek_process *p, uint64_t len,
                     struct mu_buf *out)
{
    int err = mu_buf_reserve(out, (size_t)len);

    for (uint64_t at = 0; err == 0 && at < len;) {
        size_t part = len - at < CHUNK ? (size_t)(len - at) : CHUNK;

        err = peek->read_file(p, at, mu_buf_grow(out, part), part);
        at += part;
    }
    return err;
}

/* A dump is written while it can be seen: until all of it is there, it cannot be decoded. */
static void take_dump(struct mu_flight_take *t, struct mu_peek_process *p,
                      struct mu_flight_take_worker *w, uint64_t len)
{
    struct mu_errmsg why = {{0}};
    struct mu_flight flight;
    struct mu_buf bytes;
    int err;

    if (len > MU_FLIGHT_BYTES_MAX) {
        settle(w, "its dump is too long");
        return;
    }
    mu_buf_init(&bytes, MU_FLIGHT_BYTES_MAX);
    mu_flight_init(&flight);
    err = read_dump(mu_env_peek(t->config.env), p, len, &bytes);
    if (err == 0) {
        err = mu_flight_decode(&flight, mu_buf_span(&bytes), &why);
    }
    if (err == 0) {
        w->settled = true;
        err = mu_flight_brief(&flight, &w->brief);
    }
    if (w->settled && err != 0) {
        settle(w, err == MUSTER_ELIMIT ? "its dump has too many groups" : muster_strerror(err));
    } else if (err != 0) {
        (void)snprintf(w->note, sizeof(w->note), "its dump cannot be read: %.120s",
                       why.text[0] != '\0' ? why.text : "it changes");
    }
    mu_flight_fini(&flight);
    mu_buf_fini(&bytes);
}

static void look(struct mu_flight_take *t, struct mu_peek_process *p,
                 struct mu_flight_take_worker *w)
{
    for (int i = 0; i < 2 && !w->settled; i++) {
        uint64_t len = 0;
        uint64_t mark = mark_of(t, p, i, w, &len);

        if (mark != 0 && mark != w->marks[i] && len != 0) {
            take_dump(t, p, w, len);
        }
    }
}

static void run_for_all(struct mu_work *work,
                        void (*what)(struct mu_flight_take *t, struct mu_peek_process *p,
                                     struct mu_flight_take_worker *w))
{
    struct mu_flight_take *t = MU_CONTAINER_OF(work, struct mu_flight_take, work);
    const struct mu_peek *peek = mu_env_peek(t->config.env);

    for (uint32_t i = 0; i < t->count; i++) {
        struct mu_flight_take_worker *w = &t->workers[i];
        struct mu_peek_process *p;

        if (w->settled) {
            continue;
        }
        if (peek->open(w->pid, &p) != 0) {
            settle(w, "it has ended");
            w->gone = true;
            continue;
        }
        what(t, p, w);
        peek->close(p);
    }
}

static void run_poke(struct mu_work *work)
{
    run_for_all(work, poke);
}

static void run_look(struct mu_work *work)
{
    run_for_all(work, look);
}

/* --- on the loop ------------------------------------------------------------------------------ */

static void finish(struct mu_flight_take *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        struct mu_flight_take_worker *w = &t->workers[i];

        if (!w->settled && w->note[0] == '\0') {
            settle(w, "it was asked, but has not written a dump in time");
        } else if (w->gone && t->asked == 0) {
            settle(w, ""); /* nobody else listens, and perhaps it did not */
        }
    }
    t->over = true;
    mu_env_timer_arm(t->config.env, &t->timer, MU_MONO_NEVER);
    t->config.done(t);
}

static void on_done(struct mu_work *work)
{
    struct mu_flight_take *t = MU_CONTAINER_OF(work, struct mu_flight_take, work);
    mu_mono_t now = mu_env_now(t->config.env).mono;
    bool settled = true;

    t->busy = false;
    for (uint32_t i = 0; i < t->count; i++) {
        settled = settled && t->workers[i].settled;
    }
    if (settled || !mu_mono_before(now, t->deadline)) {
        finish(t);
    } else {
        mu_env_timer_arm(t->config.env, &t->timer, mu_mono_add_ms(now, MU_FLIGHT_POLL_MS));
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_flight_take *t = MU_CONTAINER_OF(timer, struct mu_flight_take, timer);

    if (t->busy) {
        return;
    }
    t->work = (struct mu_work){.run = run_look, .done = on_done};
    t->busy = true;
    if (mu_env_work(t->config.env, &t->work) != 0) {
        t->busy = false;
        finish(t);
    }
}

int mu_flight_take_start(struct mu_flight_take *t)
{
    size_t max =
        t->config.brief_max < MU_FLIGHT_BRIEF_MAX ? t->config.brief_max : MU_FLIGHT_BRIEF_MAX;
    int err;

    for (uint32_t i = 0; i < t->count; i++) {
        mu_buf_init(&t->workers[i].brief, max);
        t->workers[i].note[0] = '\0';
        t->workers[i].settled = t->workers[i].gone = false;
        if (t->workers[i].pid == 0) {
            settle(&t->workers[i], "it does not run");
            t->workers[i].gone = true;
        }
    }
    if (mu_env_peek(t->config.env) == NULL) {
        return MUSTER_ENOTSUP;
    }
    mu_timer_init(&t->timer, on_timer);
    t->deadline = mu_mono_add_ms(mu_env_now(t->config.env).mono, t->config.timeout_ms);
    t->over = false;
    t->asked = 0;
    t->work = (struct mu_work){.run = run_poke, .done = on_done};
    t->busy = true;
    err = mu_env_work(t->config.env, &t->work);
    if (err != 0) {
        t->busy = false;
    }
    return err;
}

void mu_flight_take_hurry(struct mu_flight_take *t)
{
    if (t->over || t->deadline.ns == 0) {
        return;
    }
    t->deadline = mu_env_now(t->config.env).mono;
    if (!t->busy) {
        mu_env_timer_arm(t->config.env, &t->timer, t->deadline);
    }
}

void mu_flight_take_fini(struct mu_flight_take *t)
{
    for (uint32_t i = 0; i < t->count; i++) {
        mu_buf_fini(&t->workers[i].brief);
    }
}
