#include "service/rdzv/register_store.h"

#include <stdio.h>
#include <string.h>

#include "codec/text/base64.h"
#include "core/alloc.h"
#include "core/prng.h"

/* PyTorch's value for "there is no state"; no state has this base64. */
#define SENTINEL "Y2FuaW1hZGFt"
/* The base64 of the longest state. */
#define TEXT_BYTES_MAX ((size_t)MU_RDZV_STATE_BYTES_MAX / 3 * 4 + 8)

static void pump(struct mu_rdzv_store_register *c);
static void set_up(struct mu_rdzv_store_register *c);
static void arm_watch(struct mu_rdzv_store_register *c);
static void take_turn(struct mu_rdzv_store_register *c);
static void pass_turn(struct mu_rdzv_store_register *c);

/* --- answers ---------------------------------------------------------------------------------- */

/* Answers with the state that the key holds. */
static void answer_state(struct mu_rdzv_store_register *c, enum mu_rdzv_event_type type,
                         struct mu_span text)
{
    struct mu_rdzv_event event = {.type = type};
    int err = 0;

    mu_buf_reset(&c->bytes);
    if (!mu_span_eq(text, MU_SPAN_LIT(SENTINEL))) {
        err = text.len > TEXT_BYTES_MAX ? MUSTER_ELIMIT : mu_base64_decode(&c->bytes, text);
        event.present = true;
        event.bytes = mu_buf_span(&c->bytes);
        event.token = text;
    }
    if (err == MUSTER_ENOMEM) {
        mu_rdzv_register_fail(&c->base, err, "out of memory", true);
    } else if (err == MUSTER_ELIMIT) {
        mu_rdzv_register_fail(&c->base, MUSTER_ECORRUPT, "it is longer than any state", false);
    } else if (err != 0) {
        mu_rdzv_register_fail(&c->base, MUSTER_ECORRUPT, "it is not base64", false);
    } else {
        mu_rdzv_register_answer(&c->base, &event);
    }
    mu_buf_reset(&c->bytes);
    mu_buf_trim(&c->bytes, 1u << 20);
}

/* The store has forgotten the key: writes the sentinel again, then repeats the request. */
static void create_again(struct mu_rdzv_store_register *c)
{
    c->phase = MU_RDZV_STORE_REGISTER_DOWN;
    set_up(c);
}

static void on_read(struct mu_rdzv_store_register *c)
{
    const struct mu_store_op *op = &c->ask.op;

    if (op->status == MUSTER_ENOENT) {
        create_again(c);
    } else if (op->status == MUSTER_ELIMIT) {
        mu_rdzv_register_fail(&c->base, MUSTER_ECORRUPT, "it is longer than any state", false);
    } else if (op->status != 0) {
        mu_rdzv_register_fail(&c->base, op->status, op->errmsg.text,
                              mu_rdzv_register_is_transient(op->status));
    } else {
        answer_state(c, MU_RDZV_STATE_READ, op->reply.values[0]);
    }
}

static void on_written(struct mu_rdzv_store_register *c)
{
    const struct mu_store_op *op = &c->ask.op;
    struct mu_span desired = mu_buf_span(&c->desired);
    struct mu_rdzv_event event = {.type = MU_RDZV_STATE_WRITTEN, .token = desired};

    if (op->status == MUSTER_ELIMIT) {
        /* The value is too long for the store, or the present one is too long for us: a read will
         * show. */
        mu_rdzv_register_fail(&c->base, MUSTER_ECORRUPT, op->errmsg.text, false);
    } else if (op->status != 0) {
        mu_rdzv_register_fail(&c->base, op->status, op->errmsg.text,
                              mu_rdzv_register_is_transient(op->status));
    } else if (mu_span_eq(op->reply.values[0], desired)) {
        c->contended = false;
        mu_rdzv_register_answer(&c->base, &event);
    } else if (mu_span_eq(op->reply.values[0], mu_buf_span(&c->expected))) {
        /* The answer is what we expected, and yet it was not replaced: so PyTorch says that the key
         * is absent. */
        create_again(c);
    } else {
        c->contended = true;
        answer_state(c, MU_RDZV_WRITE_LOST, op->reply.values[0]);
    }
}

static void on_asked(struct mu_store_op *op)
{
    struct mu_rdzv_store_register *c = MU_CONTAINER_OF(op, struct mu_rdzv_store_register, ask.op);

    c->ask.busy = false;
    if (c->closing) {
        return;
    }
    if (c->base.want == MU_RDZV_REGISTER_NOTHING || c->asked != c->base.request) {
        pump(c); /* another request has replaced it */
        return;
    }
    if (op->status == 0 && op->reply.value_count != 1) {
        mu_rdzv_register_fail(&c->base, MUSTER_EPROTO, "the store's answer has no value", true);
    } else if (c->base.want == MU_RDZV_REGISTER_READ) {
        on_read(c);
    } else {
        on_written(c);
    }
    if (c->holding && c->base.want != MU_RDZV_REGISTER_WRITE) {
        pass_turn(c);
    }
}

/* --- requests --------------------------------------------------------------------------------- */

static void swap(struct mu_buf *a, struct mu_buf *b)
{
    struct mu_buf c = *a;

    *a = *b;
    *b = c;
}

static void submit(struct mu_rdzv_store_register *c, struct mu_rdzv_store_register_op *slot,
                   const struct mu_store_request *request, uint32_t timeout_ms,
                   void (*done)(struct mu_store_op *op))
{
    slot->busy = true;
    slot->called_back = false;
    slot->op.request = *request;
    slot->op.request.keys = slot == &c->turn || slot == &c->give ? &c->turn_key : &c->key;
    slot->op.request.key_count = 1;
    slot->op.timeout_ms = timeout_ms;
    slot->op.done = done;
    mu_store_submit(c->store, &slot->op);
}

/* Sends the request to the store, as soon as that is possible. */
static void pump(struct mu_rdzv_store_register *c)
{
    struct mu_store_request q = {.verb = MU_STORE_GET, .flags = MU_STORE_NOWAIT};

    if (c->closing || c->base.want == MU_RDZV_REGISTER_NOTHING || c->delayed) {
        return;
    }
    if (c->phase != MU_RDZV_STORE_REGISTER_UP) {
        set_up(c);
        return;
    }
    if (c->ask.busy) {
        return;
    }
    if (c->base.want == MU_RDZV_REGISTER_WRITE && c->push && c->contended && !c->holding) {
        take_turn(c);
        return;
    }
    if (c->base.want == MU_RDZV_REGISTER_WRITE) {
        if (c->asked != c->base.request) { /* else it repeats the same write */
            swap(&c->expected, &c->next_expected);
            swap(&c->desired, &c->next_desired);
        }
        c->ask_values[0] = mu_buf_span(&c->expected);
        c->ask_values[1] = mu_buf_span(&c->desired);
        q = (struct mu_store_request){
            .verb = MU_STORE_COMPARE_SET, .values = c->ask_values, .value_count = 2};
    }
    c->asked = c->base.request;
    arm_watch(c);
    submit(c, &c->ask, &q, c->config.answer_ms, on_asked);
}

static void want(struct mu_rdzv_store_register *c, enum mu_rdzv_register_want what,
                 uint64_t request)
{
    c->base.want = what;
    c->base.request = request;
    if (c->ask.busy && !c->ask.called_back) {
        c->ask.called_back = true;
        mu_store_cancel(&c->ask.op);
    } else {
        pump(c);
    }
}

static struct mu_rdzv_store_register *store_register_of(struct mu_rdzv_register *reg)
{
    return MU_CONTAINER_OF(reg, struct mu_rdzv_store_register, base);
}

static void store_register_read(struct mu_rdzv_register *reg, uint64_t request)
{
    want(store_register_of(reg), MU_RDZV_REGISTER_READ, request);
}

static int store_register_write(struct mu_rdzv_register *reg, const struct mu_rdzv_update *up)
{
    struct mu_rdzv_store_register *c = store_register_of(reg);
    int err;

    mu_buf_reset(&c->next_expected);
    mu_buf_reset(&c->next_desired);
    err = mu_buf_append(&c->next_expected, up->has_token ? up->token : MU_SPAN_LIT(SENTINEL));
    if (err == 0) {
        err = mu_base64_encode(&c->next_desired, up->bytes);
    }
    if (err == 0) {
        want(c, MU_RDZV_REGISTER_WRITE, up->request);
    }
    return err;
}

/* --- turns ------------------------------------------------------------------------------------ */

static void on_turn(struct mu_store_op *op)
{
    struct mu_rdzv_store_register *c = MU_CONTAINER_OF(op, struct mu_rdzv_store_register, turn.op);

    c->turn.busy = false;
    if (c->closing) {
        return;
    }
    /* A node that has waited in vain writes without a turn, and passes one on afterwards: the one
     * that another node lost. */
    c->holding = op->status == 0 || op->status == MUSTER_ETIMEDOUT;
    if (!c->holding) {
        c->contended = false;
    }
    if (c->holding && c->base.want != MU_RDZV_REGISTER_WRITE) {
        pass_turn(c);
    }
    pump(c);
}

static void take_turn(struct mu_rdzv_store_register *c)
{
    struct mu_store_request q = {.verb = MU_STORE_QUEUE_POP};
    uint32_t random;

    if (!c->turn.busy) {
        mu_env_entropy(c->base.env, &random, sizeof(random));
        submit(c, &c->turn, &q, c->config.turn_ms + random % (c->config.turn_ms / 2 + 1), on_turn);
    }
}

static void on_given(struct mu_store_op *op)
{
    struct mu_rdzv_store_register *c = MU_CONTAINER_OF(op, struct mu_rdzv_store_register, give.op);
    struct mu_store_request q = {.verb = MU_STORE_QUEUE_POP, .flags = MU_STORE_NOWAIT};

    c->give.busy = false;
    if (c->closing) {
        return;
    }
    if (c->give_again) {
        c->give_again = false;
        pass_turn(c);
    } else if (op->status == 0 && op->request.verb == MU_STORE_QUEUE_PUSH && op->reply.number > 1) {
        submit(c, &c->give, &q, c->config.answer_ms, on_given); /* one is enough */
    }
}

static void pass_turn(struct mu_rdzv_store_register *c)
{
    struct mu_store_request q = {
        .verb = MU_STORE_QUEUE_PUSH, .values = &c->turn_value, .value_count = 1};

    c->holding = false;
    if (c->give.busy) {
        c->give_again = true;
    } else if (c->store != NULL) {
        submit(c, &c->give, &q, c->config.answer_ms, on_given);
    }
}

/* --- setting up ------------------------------------------------------------------------------- */

static void on_store_closed(void *context)
{
    struct mu_rdzv_store_register *c = context;

    c->leaving = NULL;
    if (c->closing) {
        mu_env_timer_arm(c->base.env, &c->timer, mu_env_now(c->base.env).mono);
    } else {
        pump(c);
    }
}

static void drop_store(struct mu_rdzv_store_register *c)
{
    c->leaving = c->store;
    c->store = NULL;
    c->holding = c->give_again = false;
    mu_store_close(c->leaving, on_store_closed, c);
}

/* The register is down; the request under way fails, and the next one tries again. */
static void fail_set_up(struct mu_rdzv_store_register *c, int status, const char *text)
{
    /* A store that was never reached has given up for good. */
    bool for_good = !c->store_up;

    c->phase = MU_RDZV_STORE_REGISTER_DOWN;
    if (c->store != NULL && for_good) {
        drop_store(c);
    }
    mu_rdzv_register_fail(&c->base, status, text,
                          !for_good && mu_rdzv_register_is_transient(status));
}

/* Waits as PyTorch does, so that nodes that start together do not write together. */
static void delay(struct mu_rdzv_store_register *c)
{
    struct mu_now now = mu_env_now(c->base.env);
    struct mu_prng prng;
    uint64_t seed;

    mu_env_entropy(c->base.env, &seed, sizeof(seed));
    mu_prng_seed(&prng, seed);
    c->delayed = true;
    mu_env_timer_arm(
        c->base.env, &c->timer,
        mu_mono_add_ns(now.mono, mu_prng_below(&prng, c->config.first_delay_ms * MU_NS_PER_MS)));
}

static void tell_found(struct mu_rdzv_store_register *c)
{
    /* Nodes that share a store of PyTorch 1.13 are PyTorch 1.13, and end when they find another
     * dialect: so we must not be the first to write one. */
    const struct mu_rdzv_register_found found = {
        .push = c->push,
        .turns = c->push,
        .dialect = mu_store_tcp_found(c->store) == MU_STORE_TCP_TORCH1 ? MU_RDZV_DIALECT_1_13
                                                                       : MU_RDZV_DIALECT_UNKNOWN,
        .text = c->push ? "the store answers and reports changes"
                        : "the store answers; it is read once a second",
    };

    c->base.events.found(c->base.events.context, &found);
}

static void go_up(struct mu_rdzv_store_register *c)
{
    bool first = !c->found;

    c->phase = MU_RDZV_STORE_REGISTER_UP;
    c->store_up = true;
    c->found = true;
    if (first) {
        tell_found(c);
        if (!c->push && c->config.first_delay_ms != 0) {
            delay(c);
        }
    }
    pump(c);
}

static void on_created(struct mu_store_op *op)
{
    struct mu_rdzv_store_register *c =
        MU_CONTAINER_OF(op, struct mu_rdzv_store_register, create.op);

    c->create.busy = false;
    if (c->closing) {
        return;
    }
    if (op->status == MUSTER_ELIMIT) {
        /* The answer holds the present value, and no state is that long. */
        c->store_up = true;
        fail_set_up(c, MUSTER_ECORRUPT, "it is longer than any state");
    } else if (op->status != 0) {
        fail_set_up(c, op->status, op->errmsg.text);
    } else {
        if (c->push && op->reply.number == 1) {
            pass_turn(c); /* the node that makes the key makes the first turn */
        }
        go_up(c);
    }
}

/* --- the watch -------------------------------------------------------------------------------- */

static void on_watched(struct mu_store_op *op)
{
    struct mu_rdzv_store_register *c = MU_CONTAINER_OF(op, struct mu_rdzv_store_register, watch.op);

    c->watch.busy = false;
    if (c->closing) {
        return;
    }
    if (op->status == MUSTER_ENOTSUP) {
        c->push = false;
        if (c->found) {
            tell_found(c);
        }
    } else if (!c->turn.busy || c->base.want != MU_RDZV_REGISTER_WRITE) {
        /* The key changed; or the watch was lost, and then it may have changed unseen. A write that
         * waits for its turn will see changes that come meanwhile. */
        c->base.events.changed(c->base.events.context);
    }
}

/*
 * Begins a watch before every request, so that no change after its answer is missed. It reports one
 * change: a node that does not ask again is not told again, and N nodes that write do not cost N
 * notices each.
 */
static void arm_watch(struct mu_rdzv_store_register *c)
{
    struct mu_store_request q = {.verb = MU_STORE_WATCH, .flags = MU_STORE_ONCE};

    if (c->push && !c->watch.busy) {
        submit(c, &c->watch, &q, 0, on_watched);
    }
}

static int open_store(struct mu_rdzv_store_register *c)
{
    c->store_up = false;
    return c->config.path != NULL ? mu_store_file_new(c->base.env, c->config.path, -1, &c->store)
                                  : mu_store_tcp_new(c->base.env, &c->config.tcp, &c->store);
}

/* Makes the key, unless it is there. This shows whether the store can be watched. */
static void set_up(struct mu_rdzv_store_register *c)
{
    struct mu_store_request q = {
        .verb = MU_STORE_COMPARE_SET, .values = c->create_values, .value_count = 2};

    if (c->phase != MU_RDZV_STORE_REGISTER_DOWN || c->leaving != NULL || c->create.busy) {
        return; /* it is under way, or goes on from there */
    }
    if (c->store == NULL && open_store(c) != 0) {
        c->store = NULL;
        mu_env_timer_arm(c->base.env, &c->timer, mu_env_now(c->base.env).mono);
        return; /* no memory: reported on the next turn */
    }
    c->phase = MU_RDZV_STORE_REGISTER_CREATING;
    arm_watch(c);
    /* The first connection has a deadline of its own; later requests are given up after a while. */
    submit(c, &c->create, &q, c->store_up ? c->config.answer_ms : 0, on_created);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_store_register *c = MU_CONTAINER_OF(timer, struct mu_rdzv_store_register, timer);
    struct mu_rdzv_register_events closed;

    if (c->closing) {
        mu_buf_fini(&c->expected);
        mu_buf_fini(&c->desired);
        mu_buf_fini(&c->next_expected);
        mu_buf_fini(&c->next_desired);
        mu_buf_fini(&c->bytes);
        closed = c->base.events;
        mu_free(c);
        closed.closed(closed.context);
    } else if (c->phase == MU_RDZV_STORE_REGISTER_DOWN) {
        mu_rdzv_register_fail(&c->base, MUSTER_ENOMEM, "out of memory", true);
    } else {
        c->delayed = false;
        pump(c);
    }
}

static void store_register_close(struct mu_rdzv_register *reg)
{
    struct mu_rdzv_store_register *c = store_register_of(reg);

    c->closing = true;
    mu_env_timer_arm(c->base.env, &c->timer, MU_MONO_NEVER);
    if (c->store != NULL) {
        drop_store(c);
    } else if (c->leaving == NULL) {
        mu_env_timer_arm(c->base.env, &c->timer, mu_env_now(c->base.env).mono);
    }
}

static const struct mu_rdzv_register_kind store_register_kind = {
    .read = store_register_read,
    .write = store_register_write,
    .close = store_register_close,
};

int mu_rdzv_store_register_new(struct mu_env *env,
                               const struct mu_rdzv_store_register_config *config,
                               const struct mu_rdzv_register_events *events,
                               struct mu_rdzv_register **ret_register)
{
    struct mu_rdzv_store_register *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->base =
        (struct mu_rdzv_register){.kind = &store_register_kind, .env = env, .events = *events};
    c->config = *config;
    c->push = true;
    c->key = mu_span_str(c->config.key);
    (void)snprintf(c->turn_name, sizeof(c->turn_name), "%s.turn", c->config.key);
    c->turn_key = mu_span_str(c->turn_name);
    c->turn_value = MU_SPAN_LIT("turn");
    c->create_values[0] = mu_span("", 0);
    c->create_values[1] = MU_SPAN_LIT(SENTINEL);
    mu_timer_init(&c->timer, on_timer);
    mu_buf_init(&c->expected, TEXT_BYTES_MAX);
    mu_buf_init(&c->desired, TEXT_BYTES_MAX);
    mu_buf_init(&c->next_expected, TEXT_BYTES_MAX);
    mu_buf_init(&c->next_desired, TEXT_BYTES_MAX);
    mu_buf_init(&c->bytes, MU_RDZV_STATE_BYTES_MAX + 8);
    *ret_register = &c->base;
    return 0;
}
