#include "service/rpc/rref_agent_internal.h"

#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

struct mu_rref_agent_config mu_rref_agent_config_defaults(void)
{
    return (struct mu_rref_agent_config){
        .rref = mu_rref_config_defaults(),
        .call_ms = 5000,
        .retry = {.retries_max = 2, .duration_ms = 500, .backoff = 1.5},
    };
}

/* --- messages on their way -------------------------------------------------------------------- */

struct mu_rref_flight *mu_rref_flight_new(const struct mu_rref_remote *call)
{
    size_t name = strlen(call->method);
    size_t count = call->part_count + 1;
    struct mu_rref_flight *f;
    size_t bytes = 0;
    uint8_t *at;

    if (mu_rpc_msg_size(call->parts, call->part_count, &bytes) != 0 ||
        bytes > SIZE_MAX / 4 - sizeof(*f) - count * sizeof(*f->parts)) {
        return NULL;
    }
    f = mu_malloc(sizeof(*f) + count * sizeof(*f->parts) + MU_RREF_MSG_LEN + name + bytes);
    if (f == NULL) {
        return NULL;
    }
    *f = (struct mu_rref_flight){.parts = (struct mu_rpc_part *)(f + 1)};
    f->msg = at = (uint8_t *)(f->parts + count);
    memcpy(at + MU_RREF_MSG_LEN, call->method, name);
    f->parts[0] = (struct mu_rpc_part){mu_span(at, MU_RREF_MSG_LEN + name), -1};
    at += MU_RREF_MSG_LEN + name;
    for (size_t i = 0; i < call->part_count; i++) {
        struct mu_span data = call->parts[i].data;

        if (data.len != 0) {
            memcpy(at, data.data, data.len);
        }
        f->parts[i + 1] = (struct mu_rpc_part){mu_span(at, data.len), call->parts[i].device};
        at += data.len;
    }
    f->out.parts = f->parts;
    f->out.part_count = count;
    f->out.timeout_ms = call->timeout_ms;
    f->out.retrying = call->retrying;
    f->out.retry = call->retry;
    return f;
}

static struct mu_rref_flight *take_flight(struct mu_rref_agent *refs, struct mu_rref_op *op)
{
    struct mu_rref_flight *f;
    struct mu_rref_user *u;

    if (op->verb == MU_RREF_CREATE) {
        u = mu_rref_op_user(op);
        f = u->payload;
        u->payload = NULL;
        return f;
    }
    f = mu_calloc(1, sizeof(*f));
    if (f != NULL) {
        f->msg = f->room;
        f->part = (struct mu_rpc_part){mu_span(f->room, sizeof(f->room)), -1};
        f->out.parts = &f->part;
        f->out.part_count = 1;
        f->out.timeout_ms = refs->config.call_ms;
        f->out.retrying = true;
        f->out.retry = refs->config.retry;
    }
    return f;
}

/* Keeps the error of a creation for the users of the reference. */
static void keep_text(struct mu_rref_op *op, int status, const char *text)
{
    struct mu_rref_user *u = op->verb == MU_RREF_CREATE ? mu_rref_op_user(op) : NULL;
    struct mu_rref *ref = u != NULL ? u->handle : NULL;

    if (status == 0 || ref == NULL || ref->text != NULL || text == NULL) {
        return;
    }
    ref->text = mu_malloc(strlen(text) + 1);
    if (ref->text != NULL) {
        memcpy(ref->text, text, strlen(text) + 1);
    }
}

static void on_landed(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct mu_rref_flight *f = MU_CONTAINER_OF(out, struct mu_rref_flight, out);
    struct mu_rref_agent *refs = f->refs;
    struct mu_rref_answer answer = {0};

    if (status == 0) {
        /* A message of one part has one byte before the part. */
        status = message.len != 1 + MU_RREF_ANSWER_LEN
                     ? MUSTER_EPROTO
                     : mu_rref_answer_decode(mu_span_skip(message, 1), &answer);
    } else if (status == MUSTER_EWORKER && f->op->verb != MU_RREF_CREATE) {
        status = MUSTER_ESESSION; /* just removed: mu_rref_agent_gone() has reported it */
    }
    keep_text(f->op, status, text);
    mu_rref_op_ended(&refs->table, mu_rref_agent_now(refs), f->op, status, &answer);
    mu_free(f);
    mu_rref_agent_pump(refs);
}

static void send_op(struct mu_rref_agent *refs, struct mu_rref_op *op)
{
    struct mu_rpc_peer *to = mu_rpc_agent_find(refs->agent, op->peer->name);
    struct mu_rref_flight *f = take_flight(refs, op);

    if (to == NULL || f == NULL) {
        int status = f == NULL ? MUSTER_ENOMEM : MUSTER_EWORKER;

        mu_free(f);
        mu_rref_op_ended(&refs->table, mu_rref_agent_now(refs), op, status, NULL);
        return;
    }
    f->refs = refs;
    f->op = op;
    mu_rref_msg_encode(f->msg, &op->msg);
    f->out.to = to;
    f->out.method = mu_rref_methods[op->verb];
    f->out.once = true;
    f->out.ended = on_landed;
    mu_rpc_agent_call(refs->agent, &f->out);
}

/* --- the pump --------------------------------------------------------------------------------- */

static bool pump_once(struct mu_rref_agent *refs)
{
    mu_mono_t now = mu_rref_agent_now(refs);
    bool did = false;
    struct mu_rref_value *v;
    struct mu_rref_user *u;
    struct mu_rref_op *op;

    while ((op = mu_rref_next_op(&refs->table, now)) != NULL) {
        send_op(refs, op);
        did = true;
    }
    while ((v = mu_rref_next_dead(&refs->table)) != NULL) {
        mu_rref_bury(refs, v);
        did = true;
    }
    while ((u = mu_rref_next_changed(&refs->table)) != NULL) {
        mu_rref_tell(u->handle);
        did = true;
    }
    mu_rref_fetches_tick(refs);
    return mu_rref_fetches_tell(refs) || did;
}

void mu_rref_agent_pump(struct mu_rref_agent *refs)
{
    if (refs->in_pump) {
        return;
    }
    refs->in_pump = true;
    while (pump_once(refs)) {
    }
    refs->in_pump = false;
    mu_env_timer_arm(
        refs->env, &refs->timer,
        mu_mono_min(mu_rref_deadline(&refs->table), mu_heap_deadline(&refs->deadlines)));
}

void mu_rref_agent_poke(struct mu_rref_agent *refs)
{
    if (!refs->in_pump) {
        mu_env_timer_arm(refs->env, &refs->timer, mu_rref_agent_now(refs));
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rref_agent *refs = MU_CONTAINER_OF(timer, struct mu_rref_agent, timer);
    struct mu_rpc_agent *agent = refs->agent;

    mu_rref_agent_pump(refs);
    mu_rpc_agent_turn(agent);
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_rref_agent_start(struct mu_env *env, struct mu_rpc_agent *agent, const char *name,
                        int32_t id, const struct mu_rref_agent_config *config,
                        struct mu_rref_agent **ret_refs)
{
    struct mu_rref_agent *refs = mu_calloc(1, sizeof(*refs));
    int err;

    if (refs == NULL) {
        return MUSTER_ENOMEM;
    }
    refs->env = env;
    refs->agent = agent;
    refs->config = *config;
    refs->id = id;
    memcpy(refs->config.rref.name, name, strlen(name) + 1);
    mu_env_entropy(env, &refs->config.rref.seed, sizeof(refs->config.rref.seed));
    do {
        mu_env_entropy(env, &refs->config.rref.life, sizeof(refs->config.rref.life));
    } while (refs->config.rref.life == 0);
    mu_rref_init(&refs->table, &refs->config.rref);
    mu_heap_init(&refs->deadlines);
    mu_list_init(&refs->ended);
    mu_timer_init(&refs->timer, on_timer);
    err = mu_rref_serve(refs);
    if (err != 0) {
        mu_rref_fini(&refs->table);
        mu_free(refs);
        return err;
    }
    *ret_refs = refs;
    return 0;
}

void mu_rref_agent_stop(struct mu_rref_agent *refs)
{
    refs->stopped = true;
    mu_rref_stop(&refs->table);
    mu_rref_fetches_stop(refs);
    mu_rref_serve_stop(refs);
}

void mu_rref_agent_free(struct mu_rref_agent *refs)
{
    struct mu_rref_value *v;

    if (refs == NULL) {
        return;
    }
    mu_env_timer_arm(refs->env, &refs->timer, MU_MONO_NEVER);
    (void)mu_rref_fetches_tell(refs);
    while ((v = mu_rref_next_dead(&refs->table)) != NULL) {
        mu_rref_bury(refs, v);
    }
    mu_rref_fini(&refs->table);
    mu_free(refs);
}

void mu_rref_agent_set_id(struct mu_rref_agent *refs, int32_t id)
{
    refs->id = id;
}

void mu_rref_agent_gone(struct mu_rref_agent *refs, const char *worker)
{
    mu_rref_peer_gone(&refs->table, mu_rref_agent_now(refs), worker);
    mu_rref_agent_poke(refs);
}

int mu_rref_agent_back(struct mu_rref_agent *refs, const char *worker)
{
    return mu_rref_peer_back(&refs->table, worker);
}

void mu_rref_agent_stats(const struct mu_rref_agent *refs, struct mu_rref_stats *ret)
{
    mu_rref_stats(&refs->table, ret);
}

uint64_t mu_rref_agent_life(const struct mu_rref_agent *refs)
{
    return refs->config.rref.life;
}

uint64_t mu_rref_agent_last_number(const struct mu_rref_agent *refs)
{
    return refs->table.number;
}
