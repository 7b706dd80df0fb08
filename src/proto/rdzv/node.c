#include "proto/rdzv/node.h"

#include <string.h>

#include "core/alloc.h"
#include "proto/rdzv/node_internal.h"

/* --- life --------------------------------------------------------- */

struct mu_rdzv_config mu_rdzv_config_defaults(void)
{
    return (struct mu_rdzv_config){
        .settings = mu_rdzv_settings_defaults(),
        .dialect = MU_RDZV_DIALECT_2,
        .poll_ms = 1000,
        .first_delay_ms = 300,
        .backoff_ms_min = 2,
        .backoff_ms_max = 1000,
        .retry_ms = 100,
        .spread_us_per_node = 100,
        .token_bytes_max = 64u << 20,
    };
}

int mu_rdzv_init(struct mu_rdzv *r, const struct mu_rdzv_config *config,
                 struct mu_errmsg *reterr_msg)
{
    size_t addr_len = config->node.addr == NULL ? 0 : strlen(config->node.addr);
    int err = mu_rdzv_settings_check(&config->settings, reterr_msg);

    if (err != 0) {
        return err;
    }
    if (addr_len == 0 || addr_len > MU_RDZV_ADDR_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a node's address must have 1 to %d bytes, not %zu", MU_RDZV_ADDR_MAX,
                      addr_len);
    }
    if (config->dialect == MU_RDZV_DIALECT_UNKNOWN || config->poll_ms == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "a dialect and a time between polls are needed");
    }
    *r = (struct mu_rdzv){
        .config = *config,
        .node = config->node,
        .v = {.phase = MU_RDZV_IDLE, .round_top = -1, .round = -1, .beat_deadline = MU_MONO_NEVER},
    };
    r->node.addr = mu_strndup(config->node.addr, addr_len);
    if (r->node.addr == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for the node's address");
    }
    r->config.node = r->node;
    mu_prng_seed(&r->v.prng, config->seed);
    mu_rdzv_state_init(&r->state);
    mu_rdzv_state_init(&r->old);
    mu_rdzv_state_init(&r->next);
    mu_rdzv_state_init(&r->roster);
    mu_buf_init(&r->token, config->token_bytes_max);
    mu_buf_init(&r->old_token, config->token_bytes_max);
    mu_buf_init(&r->out, MU_RDZV_STATE_BYTES_MAX);
    return 0;
}

void mu_rdzv_fini(struct mu_rdzv *r)
{
    mu_rdzv_state_fini(&r->state);
    mu_rdzv_state_fini(&r->old);
    mu_rdzv_state_fini(&r->next);
    mu_rdzv_state_fini(&r->roster);
    mu_buf_fini(&r->token);
    mu_buf_fini(&r->old_token);
    mu_buf_fini(&r->out);
    mu_free(r->members);
    mu_free(r->node.addr);
    r->members = NULL;
    r->node.addr = NULL;
}

/* --- what comes in: states ---------------------------------------- */

/* What restores the machine if the step fails after a state came in. */
enum undo { UNDO_NOTHING = 1, UNDO_READ, UNDO_WRITTEN };

static void swap_states(struct mu_rdzv_state *a, struct mu_rdzv_state *b)
{
    struct mu_rdzv_state c = *a;

    *a = *b;
    *b = c;
}

static void swap_tokens(struct mu_rdzv *r)
{
    struct mu_buf c = r->token;

    r->token = r->old_token;
    r->old_token = c;
}

static void undo(struct mu_rdzv *r, enum undo how)
{
    switch (how) {
    case UNDO_NOTHING:
        return;
    case UNDO_READ:
        swap_states(&r->state, &r->old);
        break;
    case UNDO_WRITTEN:
        swap_states(&r->next, &r->old);
        swap_states(&r->state, &r->next);
        break;
    }
    swap_tokens(r);
}

/* Hashes a token, to compare it with that of a watch for equality only. Never 0. */
static uint64_t hash_token(struct mu_span token)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ token.len;
    size_t i = 0;

    for (; token.len - i >= 8; i += 8) {
        hash = (hash ^ mu_get_u64(token.data + i)) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    for (; i < token.len; i++) {
        hash = (hash ^ token.data[i]) * UINT64_C(0x100000001b3);
    }
    return hash == 0 ? 1 : hash;
}

static int copy_token(struct mu_rdzv *r, struct mu_span token)
{
    mu_buf_reset(&r->old_token);
    return mu_buf_append(&r->old_token, token);
}

/* `state` and `token` are now those of the backend. */
static void settle(struct mu_rdzv *r, bool has_token, struct mu_span token)
{
    struct mu_rdzv_vars *v = &r->v;

    if (v->known && !(v->writing && r->config.turns)) {
        /* The first one may have waited for a connection. */
        mu_rdzv_node_took(r, mu_mono_since(v->asked_at, v->now.mono));
    }
    mu_rdzv_node_measure_pace(r);
    v->reading = v->writing = false;
    v->known = true;
    v->synced_at = v->now.mono;
    v->failures = 0;
    v->wake = v->now.mono;
    v->held = false;
    v->has_token = has_token;
    v->token_hash = has_token ? hash_token(token) : 0;
    if (v->stale && v->watch_hash != 0 && v->watch_hash == v->token_hash) {
        v->stale = false; /* the watch was about this very state */
    }
    if (r->state.round > v->round_top) {
        v->round_top = r->state.round;
    }
}

static int take_corrupt(struct mu_rdzv *r, struct mu_rdzv_update *up, const char *text)
{
    struct mu_rdzv_vars *v = &r->v;

    v->reading = v->writing = false;
    v->known = false;
    (void)mu_err(&v->why, 0, "the state of the rendezvous is corrupt: %s", text);
    mu_rdzv_node_fail(r, up, mu_rdzv_node_ops(r), MUSTER_ERDZV_STATE);
    return 0;
}

/* STATE_READ and WRITE_LOST: takes the present state. */
static int take_state(struct mu_rdzv *r, const struct mu_rdzv_event *event,
                      struct mu_rdzv_update *up, enum undo *ret_undo)
{
    struct mu_rdzv_vars *v = &r->v;
    enum mu_rdzv_dialect dialect = MU_RDZV_DIALECT_UNKNOWN;
    struct mu_errmsg msg = {{0}};
    int err = 0;

    if (event->present && r->config.plain) {
        err = mu_rdzv_state_copy(&r->old, event->state);
        if (err == 0) {
            err = copy_token(r, event->token);
        }
    } else if (event->present) {
        err = mu_rdzv_state_decode(event->bytes, &r->old, &dialect, &msg);
        if (err == 0) {
            err = copy_token(r, event->token);
        }
    } else {
        mu_rdzv_state_fini(&r->old);
        mu_rdzv_state_init(&r->old);
        mu_buf_reset(&r->old_token);
        /* A state that was lost is begun again after the earlier rounds. */
        r->old.round = v->round_top < MU_RDZV_ROUND_MAX ? v->round_top + 1 : MU_RDZV_ROUND_MAX;
    }
    if (err == MUSTER_ENOMEM) {
        return err;
    }
    if (err != 0) {
        return take_corrupt(r, up, msg.text[0] != '\0' ? msg.text : "its token is too long");
    }
    swap_states(&r->state, &r->old);
    swap_tokens(r);
    *ret_undo = UNDO_READ;
    if (dialect != MU_RDZV_DIALECT_UNKNOWN && dialect != v->dialect) {
        v->dialect = dialect;
        mu_trace(&r->config.trace, "rdzv.dialect", dialect, 0);
    }
    if (event->type == MU_RDZV_STATE_READ && v->writing) {
        v->losses = 0; /* the wish was considered */
    }
    settle(r, event->present, event->token);
    return 0;
}

static int take_written(struct mu_rdzv *r, const struct mu_rdzv_event *event,
                        struct mu_rdzv_update *up, enum undo *ret_undo)
{
    int err = copy_token(r, event->token);

    if (err == MUSTER_ELIMIT) {
        return take_corrupt(r, up, "its token is too long");
    }
    if (err != 0) {
        return err;
    }
    swap_states(&r->state, &r->next);
    swap_states(&r->next, &r->old);
    swap_tokens(r);
    *ret_undo = UNDO_WRITTEN;
    r->v.losses = 0;
    settle(r, true, event->token);
    return 0;
}

static int take_lost(struct mu_rdzv *r, const struct mu_rdzv_event *event,
                     struct mu_rdzv_update *up, enum undo *ret_undo)
{
    r->v.losses += r->v.losses < UINT32_MAX;
    r->stats.lost++;
    mu_trace(&r->config.trace, "rdzv.lost", r->v.losses, 0);
    return take_state(r, event, up, ret_undo);
}

static void take_failure(struct mu_rdzv *r, const struct mu_rdzv_event *event,
                         struct mu_rdzv_update *up)
{
    struct mu_rdzv_vars *v = &r->v;
    unsigned ops = mu_rdzv_node_ops(r);

    r->stats.failures++;
    v->failures += v->failures < UINT32_MAX;
    if (event->status == MUSTER_ECORRUPT || event->status == MUSTER_ERDZV_STATE) {
        (void)take_corrupt(r, up, event->text != NULL ? event->text : "");
        return;
    }
    mu_rdzv_node_say_backend(r, event->status, event->text);
    v->reading = v->writing = false;
    v->wake = mu_rdzv_node_retry(r);
    v->held = true;
    v->stale = true; /* a write may have succeeded all the same */
    v->read_at = v->wake;
    v->watch_hash = 0;
    if (!event->transient) {
        /* A member keeps trying for as long as it may still count as alive for the others. */
        mu_rdzv_node_fail(r, up, ops & ~(unsigned)MU_RDZV_OP_MEMBER, MUSTER_ERDZV_CONN);
    }
}

/* --- what comes in: wishes ---------------------------------------- */

static void start(struct mu_rdzv *r)
{
    r->v.wake = r->v.now.mono;
    r->v.held = false;
}

static int take_join(struct mu_rdzv *r)
{
    struct mu_rdzv_vars *v = &r->v;

    if (v->phase != MU_RDZV_IDLE && v->phase != MU_RDZV_MEMBER) {
        return MUSTER_EINVAL;
    }
    v->phase = MU_RDZV_EXITING;
    v->op_deadline = mu_mono_add_ms(v->now.mono, r->config.settings.join_timeout_ms);
    v->why_said = false;
    v->skew_said = false;
    v->losses = 0;
    v->failures = 0;
    start(r);
    if (!r->config.push && r->config.first_delay_ms != 0 && (!v->known || r->state.round == 0)) {
        /* PyTorch's way to keep nodes that start together from writing together. */
        v->wake = mu_mono_add_ns(v->wake,
                                 mu_prng_below(&v->prng, r->config.first_delay_ms * MU_NS_PER_MS));
        v->held = true;
    }
    return 0;
}

static void take_leave(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    struct mu_rdzv_vars *v = &r->v;

    if (v->phase == MU_RDZV_LEAVING) {
        return;
    }
    if (v->phase == MU_RDZV_IDLE && v->request == 0) {
        up->flags |= MU_RDZV_ENDED;
        up->end = MU_RDZV_END_LEFT;
        return;
    }
    v->phase = MU_RDZV_LEAVING;
    v->op_deadline = mu_mono_add_ms(v->now.mono, r->config.settings.close_timeout_ms);
    start(r);
}

static void take_watch(struct mu_rdzv *r, const struct mu_rdzv_event *event)
{
    struct mu_rdzv_vars *v = &r->v;
    uint64_t hash = event->token.len != 0 ? hash_token(event->token) : 0;
    mu_mono_t read_at;

    if (!r->config.push) {
        return;
    }
    if (hash != 0 && v->known && !v->reading && !v->writing && hash == v->token_hash) {
        v->stale = false; /* the watch was about what we know, mostly our own write */
        return;
    }
    read_at = mu_rdzv_node_spread(r);
    if (v->phase == MU_RDZV_MEMBER) {
        /* Most of the changes in a large round are the heartbeats of others. */
        mu_mono_t soonest = mu_rdzv_node_next_member_read(r);

        read_at = mu_mono_before(read_at, soonest) ? soonest : read_at;
    }
    if (!v->stale || mu_mono_before(read_at, v->read_at)) {
        v->read_at = read_at;
    }
    v->stale = true;
    v->watch_hash = hash;
}

/* --- the step ----------------------------------------------------- */

static bool is_answer(enum mu_rdzv_event_type type)
{
    return type == MU_RDZV_STATE_READ || type == MU_RDZV_STATE_WRITTEN ||
           type == MU_RDZV_WRITE_LOST || type == MU_RDZV_BACKEND_FAILED;
}

static bool is_wanted(const struct mu_rdzv_vars *v, const struct mu_rdzv_event *event)
{
    bool asking = v->reading || v->writing;

    if (event->type == MU_RDZV_STATE_READ && event->request == 0) {
        return !asking;
    }
    if (event->type == MU_RDZV_STATE_WRITTEN || event->type == MU_RDZV_WRITE_LOST) {
        asking = v->writing;
    }
    return asking && event->request == v->request;
}

static int take(struct mu_rdzv *r, const struct mu_rdzv_event *event, struct mu_rdzv_update *up,
                enum undo *ret_undo)
{
    struct mu_rdzv_vars *v = &r->v;

    if (is_answer(event->type) && !is_wanted(v, event)) {
        return 0; /* an answer that is no longer expected */
    }
    switch (event->type) {
    case MU_RDZV_JOIN:
        return take_join(r);
    case MU_RDZV_LEAVE:
        take_leave(r, up);
        return 0;
    case MU_RDZV_CLOSE:
        if (!v->closing) {
            v->closing = true;
            v->close_deadline = mu_mono_add_ms(v->now.mono, r->config.settings.close_timeout_ms);
            start(r);
        }
        return 0;
    case MU_RDZV_LOOK:
        v->looking = true;
        v->look_deadline = mu_mono_add_ms(v->now.mono, r->config.settings.close_timeout_ms);
        if (event->anew) {
            v->stale = true; /* so is the answer to what was asked before */
            v->read_at = v->now.mono;
            v->watch_hash = 0;
        }
        start(r);
        return 0;
    case MU_RDZV_STATE_READ:
        return take_state(r, event, up, ret_undo);
    case MU_RDZV_STATE_WRITTEN:
        return take_written(r, event, up, ret_undo);
    case MU_RDZV_WRITE_LOST:
        return take_lost(r, event, up, ret_undo);
    case MU_RDZV_BACKEND_FAILED:
        take_failure(r, event, up);
        return 0;
    case MU_RDZV_WATCH:
        take_watch(r, event);
        return 0;
    case MU_RDZV_TIMEOUT:
        return 0;
    }
    return MUSTER_EINVAL;
}

int mu_rdzv_step(struct mu_rdzv *r, const struct mu_rdzv_event *event,
                 struct mu_rdzv_update *ret_update)
{
    struct mu_rdzv_vars saved = r->v;
    struct mu_rdzv_stats stats = r->stats;
    struct mu_rdzv_update up = {0};
    enum undo how = UNDO_NOTHING;
    int err;

    r->v.now = event->now;
    err = take(r, event, &up, &how);
    if (err == 0) {
        err = mu_rdzv_node_run(r, &up);
    }
    if (err != 0) {
        undo(r, how);
        r->v = saved;
        r->stats = stats;
        return err;
    }
    up.flags |= MU_RDZV_DEADLINE;
    up.deadline = mu_rdzv_deadline(r);
    *ret_update = up;
    return 0;
}

mu_mono_t mu_rdzv_deadline(const struct mu_rdzv *r)
{
    const struct mu_rdzv_vars *v = &r->v;
    unsigned ops = mu_rdzv_node_ops(r);
    mu_mono_t at = v->wake;

    if (ops == 0) {
        return MU_MONO_NEVER;
    }
    if (v->reading || v->writing) {
        return mu_rdzv_node_patience(r, ops);
    }
    if (v->stale && !v->held) {
        at = mu_mono_min(at, v->read_at);
    }
    return v->failures != 0 ? mu_mono_min(at, mu_rdzv_node_patience(r, ops)) : at;
}

const struct mu_rdzv_state *mu_rdzv_state(const struct mu_rdzv *r)
{
    return r->v.known ? &r->state : NULL;
}

const char *mu_rdzv_phase_name(enum mu_rdzv_phase phase)
{
    static const char *const names[] = {
        [MU_RDZV_IDLE] = "IDLE",     [MU_RDZV_EXITING] = "EXITING", [MU_RDZV_JOINING] = "JOINING",
        [MU_RDZV_MEMBER] = "MEMBER", [MU_RDZV_LEAVING] = "LEAVING",
    };

    return names[phase];
}
