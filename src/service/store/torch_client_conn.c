/* One connection to a server of PyTorch's protocol: a machine, and the steps in flight on it. */
#include "service/store/torch_client.h"

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

#define GREET_MS  5000  /* how long the handshake of a server that is known may take */
#define CANCEL_MS 1000  /* how long the answer to CANCEL_WAIT may take */
#define IDLE_MS   30000 /* how long a connection for blocking steps is kept for the next one */

/* No store has so many keys; eight letters of another protocol's greeting make a larger number. */
#define KEYS_CREDIBLE (INT64_C(1) << 40)

static void arm(struct torch_conn *c, uint32_t ms)
{
    struct mu_env *env = c->store->base.env;

    mu_env_timer_arm(env, &c->timer, mu_mono_add_ms(mu_env_now(env).mono, ms));
}

static void flush(struct torch_conn *c)
{
    while ((c->state == TORCH_CONN_GREETING || c->state == TORCH_CONN_UP) && !c->blocked) {
        struct mu_span out = mu_torch_client_output(&c->machine);
        size_t taken = 0;

        if (out.len == 0) {
            return;
        }
        mu_env_send(c->store->base.env, &c->conn, out, &taken);
        c->blocked = taken < out.len;
        mu_torch_client_sent(&c->machine, taken);
    }
}

bool mu_torch_conn_idle(const struct torch_conn *c)
{
    return c->state == TORCH_CONN_UP && mu_list_empty(&c->steps);
}

static void free_conn(struct torch_conn *c)
{
    if (c->has_machine) {
        mu_torch_client_fini(&c->machine);
    }
    mu_list_remove(&c->link);
    mu_free(c);
}

/* --- the end ---------------------------------------------------------------------------------- */

/*
 * Steps in flight that may be repeated go back to the front of their queue, in order; the tasks of
 * the others end. The queues are put right first: tasks that end call their owners.
 */
static void let_go_of_steps(struct torch_conn *c)
{
    struct torch_store *s = c->store;
    struct mu_list lost;
    struct mu_list *it = c->steps.prev;

    mu_list_init(&lost);
    while (it != &c->steps) {
        struct torch_step *step = MU_CONTAINER_OF(it, struct torch_step, link);

        it = it->prev;
        mu_list_remove(&step->link);
        step->conn = NULL;
        if (mu_torch_step_repeats(step)) {
            struct mu_list *queue =
                mu_store_may_block(&step->request) ? &s->own_queue : &s->main_queue;

            mu_list_push(queue->next, &step->link);
        } else {
            mu_list_push(lost.next, &step->link);
        }
    }
    while ((it = mu_list_pop(&lost)) != NULL) {
        mu_torch_step_lost(MU_CONTAINER_OF(it, struct torch_step, link));
    }
}

static void leave(struct torch_conn *c, int status)
{
    enum torch_conn_state was = c->state;

    c->state = TORCH_CONN_CLOSING;
    mu_env_timer_arm(c->store->base.env, &c->timer, MU_MONO_NEVER);
    mu_torch_store_conn_lost(c->store, c, was, status);
    let_go_of_steps(c);
}

void mu_torch_conn_drop(struct torch_conn *c, int status)
{
    if (c->state != TORCH_CONN_CLOSING) {
        /* A server must not be left waiting for the rest of half a request. */
        bool abort = c->has_machine && mu_torch_client_output(&c->machine).len != 0;

        mu_env_close(c->store->base.env, &c->conn, abort || c->state == TORCH_CONN_DIALLING);
        leave(c, status);
    }
}

/* --- steps ------------------------------------------------------------------------------------ */

int mu_torch_conn_send(struct torch_conn *c, struct torch_step *step)
{
    int err = mu_torch_client_submit(&c->machine, &step->request, 1);

    if (err != 0) {
        return err;
    }
    mu_list_remove(&step->link);
    mu_list_push(&c->steps, &step->link);
    step->conn = c;
    mu_env_timer_arm(c->store->base.env, &c->timer, MU_MONO_NEVER);
    flush(c);
    return 0;
}

void mu_torch_conn_cancel(struct torch_conn *c)
{
    if (c->state != TORCH_CONN_UP) {
        return;
    }
    if (mu_torch_client_cancel(&c->machine) != 0) {
        mu_torch_conn_drop(c, 0);
        return;
    }
    arm(c, CANCEL_MS);
    flush(c);
}

static void take_answer(struct torch_conn *c, const struct mu_torch_client_event *event)
{
    struct mu_list *it = mu_list_pop(&c->steps);
    struct torch_step *step;

    MU_ASSERT(it != NULL);
    step = MU_CONTAINER_OF(it, struct torch_step, link);
    step->conn = NULL;
    mu_torch_store_conn_answered(c->store, c);
    if (c != c->store->main && mu_list_empty(&c->steps)) {
        arm(c, IDLE_MS);
    }
    mu_torch_step_answered(step, event->status, &event->reply);
}

static void go_up(struct torch_conn *c)
{
    c->state = TORCH_CONN_UP;
    mu_env_timer_arm(c->store->base.env, &c->timer, MU_MONO_NEVER);
    if (c != c->store->main) {
        arm(c, IDLE_MS);
    }
    mu_torch_store_conn_up(c->store, c);
}

/*
 * Generation 1 has no handshake. The first connection asks for the number of keys: one byte, which
 * changes nothing, and after which no server of either generation waits for more.
 */
static void probe(struct torch_conn *c)
{
    struct mu_store_request q = {.verb = MU_STORE_NUM_KEYS};

    if (mu_torch_client_submit(&c->machine, &q, 0) != 0) {
        mu_torch_conn_drop(c, MUSTER_ENOMEM);
    }
}

static void handle_event(struct torch_conn *c, const struct mu_torch_client_event *event)
{
    switch (event->type) {
    case MU_TORCH_CLIENT_READY:
        if (c->store->generation == MU_TORCH_1 && !c->store->ready) {
            probe(c);
        } else {
            go_up(c);
        }
        break;
    case MU_TORCH_CLIENT_REPLY:
        if (event->tag != 0) {
            take_answer(c, event);
        } else if (event->reply.number >= 0 && event->reply.number <= KEYS_CREDIBLE) {
            go_up(c);
        } else {
            mu_torch_conn_drop(c, MUSTER_EPROTO);
        }
        break;
    }
}

static void handle_events(struct torch_conn *c)
{
    struct mu_torch_client_event event;

    while (c->state != TORCH_CONN_CLOSING && mu_torch_client_next_event(&c->machine, &event)) {
        handle_event(c, &event);
    }
}

/* --- callbacks of the environment ------------------------------------------------------------- */

static void on_open(struct mu_conn *conn)
{
    struct torch_conn *c = MU_CONTAINER_OF(conn, struct torch_conn, conn);
    struct torch_store *s = c->store;
    struct mu_torch_client_config config = mu_torch_client_config_defaults();
    int err;

    if (c->state == TORCH_CONN_CLOSING) {
        return;
    }
    config.generation = s->generation;
    config.value_bytes_max = s->config.value_bytes_max;
    mu_env_entropy(s->base.env, &config.nonce, sizeof(config.nonce));
    c->state = TORCH_CONN_GREETING;
    err = mu_torch_client_init(&c->machine, &config);
    c->has_machine = true;
    if (err != 0) {
        mu_torch_conn_drop(c, err);
    } else {
        arm(c, s->ready ? GREET_MS : s->config.probe_ms);
        handle_events(c);
        flush(c);
    }
    mu_torch_store_pump(s);
}

/* The machine has given up on this server. An answer that is too long would be so again: the op
 * that asked for it ends, all others are sent again. */
static void give_up(struct torch_conn *c, int err)
{
    struct mu_store_reply none = {0};
    struct mu_list *it = err == MUSTER_ELIMIT ? mu_list_pop(&c->steps) : NULL;

    mu_log(MUSTER_LOG_WARN, "STORE-SERVER-VIOLATION", "server=%s why=\"%s\"", c->store->addr,
           mu_torch_client_errmsg(&c->machine));
    mu_torch_conn_drop(c, err);
    if (it != NULL) {
        struct torch_step *step = MU_CONTAINER_OF(it, struct torch_step, link);

        step->conn = NULL;
        mu_torch_step_answered(step, err, &none);
    }
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct torch_conn *c = MU_CONTAINER_OF(conn, struct torch_conn, conn);
    struct torch_store *s = c->store;
    size_t done = 0;

    while (done < in.len && c->state != TORCH_CONN_CLOSING) {
        size_t used = 0;
        int err = mu_torch_client_recv(&c->machine, mu_span_skip(in, done), &used);

        done += used;
        if (err != 0) {
            give_up(c, err);
            break;
        }
        handle_events(c);
    }
    flush(c);
    mu_torch_store_pump(s);
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    struct torch_conn *c = MU_CONTAINER_OF(conn, struct torch_conn, conn);
    struct torch_store *s = c->store;

    mu_torch_conn_drop(c, MUSTER_ECLOSED);
    mu_torch_store_pump(s);
}

static void on_writable(struct mu_conn *conn)
{
    struct torch_conn *c = MU_CONTAINER_OF(conn, struct torch_conn, conn);

    c->blocked = false;
    flush(c);
    mu_torch_store_pump(c->store);
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct torch_conn *c = MU_CONTAINER_OF(conn, struct torch_conn, conn);
    struct torch_store *s = c->store;

    if (c->state != TORCH_CONN_CLOSING) {
        leave(c, status != 0 ? status : MUSTER_ECLOSED);
    }
    free_conn(c);
    mu_torch_store_pump(s);
}

static const struct mu_conn_events conn_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static void on_timer(struct mu_timer *timer)
{
    struct torch_conn *c = MU_CONTAINER_OF(timer, struct torch_conn, timer);
    struct torch_store *s = c->store;

    mu_torch_conn_drop(c, mu_torch_conn_idle(c) ? 0 : MUSTER_ETIMEDOUT);
    mu_torch_store_pump(s);
}

int mu_torch_conn_dial(struct torch_store *s, struct torch_conn **ret_conn)
{
    struct torch_conn *c = mu_calloc(1, sizeof(*c));
    int err;

    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->store = s;
    c->conn.on = &conn_events;
    c->state = TORCH_CONN_DIALLING;
    mu_list_init(&c->steps);
    mu_timer_init(&c->timer, on_timer);
    err = mu_env_dial_plain(s->base.env, &c->conn, &s->config.addr);
    if (err != 0) {
        mu_free(c);
        return err;
    }
    mu_list_push(&s->conns, &c->link);
    *ret_conn = c;
    return 0;
}
