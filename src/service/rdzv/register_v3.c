#include "service/rdzv/register_v3.h"

#include <stdio.h>
#include <string.h>

#include "codec/rdzv/leased.h"
#include "core/alloc.h"

#define AGAIN_MS 300 /* until a lost watch begins again */

static struct mu_rdzv_v3_register *register_of(struct mu_rdzv_register *reg)
{
    return MU_CONTAINER_OF(reg, struct mu_rdzv_v3_register, base);
}

void mu_rdzv_v3_arm(struct mu_rdzv_v3_register *c)
{
    mu_mono_t at = mu_mono_min(mu_mono_min(c->answer_at, c->watch_at), c->client_at);

    mu_env_timer_arm(c->base.env, &c->timer, c->closing ? MU_MONO_NEVER : at);
}

void mu_rdzv_v3_tell(struct mu_rdzv_v3_register *c, bool news)
{
    c->fresh = c->fresh || news;
    c->answer_at = mu_env_now(c->base.env).mono;
    mu_rdzv_v3_arm(c);
}

/* --- the state -------------------------------------------------------------------------------- */

static void note_last_call(struct mu_rdzv_v3_register *c)
{
    bool on = c->present && !c->state.complete && c->state.has_deadline;

    if (on && (!c->last_call || c->last_call_round != c->state.round)) {
        c->last_call_since = mu_env_now(c->base.env).mono;
        c->last_call_round = c->state.round;
    }
    c->last_call = on;
    if (c->present && c->state.round > c->round_top) {
        c->round_top = c->state.round;
    }
}

static void take_nothing(struct mu_rdzv_v3_register *c)
{
    mu_rdzv_state_fini(&c->state);
    mu_rdzv_state_init(&c->state);
    c->present = false;
    c->seen = 0;
    c->mod = 0;
    c->state_lease = 0;
    c->state.round = c->round_top + 1;
}

static void on_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *change)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, watch);
    int err = 0;

    c->corrupt = false;
    c->told = true;
    c->told_revision = change->revision;
    if (change->deleted) {
        take_nothing(c);
    } else {
        err = mu_rdzv_leased_decode(change->kv.value, &c->state, &c->seen, &c->corrupt_text);
        c->present = true;
        c->mod = change->kv.mod_revision;
        c->state_lease = change->kv.lease;
    }
    if (err == MUSTER_ENOMEM) {
        mu_etcd_watch_cancel(watch); /* begun again, it reports the same once more */
        return;
    }
    c->corrupt = err != 0;
    note_last_call(c);
    mu_rdzv_v3_leader_run(c);
    mu_rdzv_v3_tell(c, true);
}

static void on_ready(struct mu_etcd_watch *watch)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, watch);
    const struct mu_rdzv_register_found found = {
        .push = true,
        .text = "etcd answers and reports changes",
    };

    c->ready = c->known = true;
    if (!c->told) {
        take_nothing(c);
        note_last_call(c);
        c->told_revision = watch->next - 1;
    }
    if (!c->found && !c->closing) {
        c->found = true;
        c->base.events.found(c->base.events.context, &found);
    }
    mu_rdzv_v3_leader_run(c);
    mu_rdzv_v3_tell(c, true);
}

static void on_ended(struct mu_etcd_watch *watch, int status)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, watch);
    struct mu_errmsg msg = watch->errmsg;

    c->watching = c->ready = false;
    if (c->closing) {
        return;
    }
    c->watch_at = mu_mono_add_ms(mu_env_now(c->base.env).mono, AGAIN_MS);
    mu_rdzv_v3_arm(c);
    mu_rdzv_register_fail(&c->base, status, msg.text, mu_rdzv_register_is_transient(status));
}

static void start_watch(struct mu_rdzv_v3_register *c)
{
    c->watch_at = MU_MONO_NEVER;
    if (c->watching || c->closing) {
        return;
    }
    c->told = false;
    c->watch = (struct mu_etcd_watch){
        .key = mu_span_str(c->state_key),
        .current = true,
        .change = on_change,
        .ready = on_ready,
        .ended = on_ended,
    };
    c->watching = true;
    mu_etcd_watch_start(c->etcd, &c->watch);
}

/* --- answers ---------------------------------------------------------------------------------- */

/* The state without ourselves, if our life has ended or etcd has not confirmed it yet. */
static const struct mu_rdzv_state *look(struct mu_rdzv_v3_register *c)
{
    const struct mu_rdzv_member *me = mu_rdzv_state_find(&c->state, &c->node);
    bool *dead;

    if (me == NULL || (me->born == c->born && c->lease_state == MU_RDZV_V3_KEPT)) {
        return &c->state;
    }
    if (mu_rdzv_state_copy(&c->view, &c->state) != 0) {
        return NULL;
    }
    dead = mu_calloc(c->view.member_count, sizeof(*dead));
    if (dead == NULL) {
        return NULL;
    }
    dead[me - c->state.members] = true;
    (void)mu_rdzv_expel(&c->view, dead, &c->settings);
    mu_free(dead);
    return &c->view;
}

/* Answers with the state; without `asked`, reports it without a request. */
static void give_state(struct mu_rdzv_v3_register *c, bool asked)
{
    char token[24];
    struct mu_rdzv_event event = {.type = MU_RDZV_STATE_READ, .present = c->present};

    if (c->corrupt) {
        mu_rdzv_register_fail(&c->base, MUSTER_ECORRUPT, c->corrupt_text.text, false);
        return;
    }
    if (c->present) {
        (void)snprintf(token, sizeof(token), "%lld", (long long)c->mod);
        event.token = mu_span_str(token);
        event.state = look(c);
        if (event.state == NULL) {
            mu_rdzv_register_fail(&c->base, MUSTER_ENOMEM, "out of memory", true);
            return;
        }
    }
    if (asked) {
        mu_rdzv_register_answer(&c->base, &event);
    } else {
        c->base.events.answer(c->base.events.context, &event);
    }
}

static void try_close(struct mu_rdzv_v3_register *c);

static void answer(struct mu_rdzv_v3_register *c)
{
    bool asked = c->base.want != MU_RDZV_REGISTER_NOTHING;

    c->answer_at = MU_MONO_NEVER;
    if (!c->watching && !mu_mono_before(c->watch_at, MU_MONO_NEVER)) {
        start_watch(c);
    }
    if (c->failed != 0) {
        int err = c->failed;

        c->failed = 0;
        mu_rdzv_register_fail(&c->base, err, muster_strerror(err), err == MUSTER_ENOMEM);
        return;
    }
    if (!c->ready && !(c->fell && c->known)) {
        return; /* that we are out is reported at once, with the last known state */
    }
    c->fell = false;
    if (c->base.want == MU_RDZV_REGISTER_WRITE && !c->corrupt) {
        if (c->close_wanted && !c->state.closed) {
            try_close(c);
            return;
        }
        if (!c->close_wanted && (c->wish_revision == 0 || c->seen < c->wish_revision)) {
            return; /* the leader has not seen the wish yet */
        }
    }
    if (asked || c->fresh) {
        c->fresh = false;
        give_state(c, asked);
    }
}

/* --- requests --------------------------------------------------------------------------------- */

static void on_close_tried(struct mu_etcd_call *call)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(call, struct mu_rdzv_v3_register, close_call);
    struct mu_errmsg msg = call->errmsg;

    if (c->closing || c->base.want != MU_RDZV_REGISTER_WRITE || !c->close_wanted) {
        return;
    }
    if (call->status == MUSTER_ENOENT) {
        c->close_tried = -1; /* the lease was gone */
        mu_rdzv_register_fail(&c->base, MUSTER_ECONN, msg.text, true);
    } else if (call->status != 0) {
        c->close_tried = -1;
        mu_rdzv_register_fail(&c->base, call->status, msg.text,
                              mu_rdzv_register_is_transient(call->status));
    }
    /* Else the watch reports our close, or what came before it. */
}

/* Closes the state that we know. If another has come meanwhile, the watch reports it, and we try
 * again. */
static void try_close(struct mu_rdzv_v3_register *c)
{
    struct mu_etcd_compare compare = {
        .key = mu_span_str(c->state_key), .target = MU_ETCD_MOD, .number = c->mod};
    struct mu_etcd_op put = {.kind = MU_ETCD_PUT, .key = mu_span_str(c->state_key)};
    const struct mu_etcd_txn txn = {
        .compares = &compare, .compare_count = 1, .success = &put, .success_count = 1};
    int err;

    if (mu_etcd_call_active(&c->close_call) || c->close_tried == c->mod ||
        (c->state_lease == 0 && !mu_rdzv_v3_run_lease(c))) {
        return;
    }
    put.lease = c->state_lease != 0 ? c->state_lease : c->run_lease.id;
    mu_buf_reset(&c->close_value);
    mu_buf_reset(&c->close_body);
    c->state.closed = true;
    err = mu_rdzv_leased_encode(&c->close_value, &c->state, c->seen);
    c->state.closed = false;
    put.value = mu_buf_span(&c->close_value);
    err = err != 0 ? err : mu_etcd_encode_txn(&c->close_body, &txn);
    if (err != 0) {
        c->failed = err;
        mu_rdzv_v3_tell(c, false);
        return;
    }
    c->close_tried = c->mod;
    c->close_call = (struct mu_etcd_call){
        .path = "/v3/kv/txn",
        .body = mu_buf_span(&c->close_body),
        .repeat = true,
        .done = on_close_tried,
    };
    mu_etcd_submit(c->etcd, &c->close_call);
}

static void v3_register_read(struct mu_rdzv_register *reg, uint64_t request)
{
    struct mu_rdzv_v3_register *c = register_of(reg);

    c->base.want = MU_RDZV_REGISTER_READ;
    c->base.request = request;
    c->failed = 0;
    mu_rdzv_v3_tell(c, false);
}

static int v3_register_write(struct mu_rdzv_register *reg, const struct mu_rdzv_update *up)
{
    struct mu_rdzv_v3_register *c = register_of(reg);

    c->base.want = MU_RDZV_REGISTER_WRITE;
    c->base.request = up->request;
    c->failed = 0;
    c->close_wanted = up->action == MU_RDZV_ACT_MARK_CLOSED;
    if (c->close_wanted) {
        c->close_tried = -1;
    } else {
        switch ((int)up->action) {
        case MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS:
        case MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST:
            c->wish = MU_RDZV_WISH_OUT;
            break;
        case MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST:
            c->wish = MU_RDZV_WISH_UNSPARE;
            break;
        default:
            c->wish = MU_RDZV_WISH_JOIN;
            break;
        }
        c->wish_number++;
        c->wish_revision = 0;
        mu_rdzv_v3_wish(c);
    }
    mu_rdzv_v3_tell(c, false);
    return 0;
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(timer, struct mu_rdzv_v3_register, timer);
    mu_mono_t now = mu_env_now(c->base.env).mono;

    if (mu_mono_reached(c->watch_at, now)) {
        start_watch(c);
    }
    if (mu_mono_reached(c->client_at, now)) {
        c->client_at = MU_MONO_NEVER;
        mu_rdzv_v3_leader_run(c);
    }
    mu_rdzv_v3_arm(c);
    if (mu_mono_reached(c->answer_at, now)) {
        answer(c); /* last: the register may be closed in there */
    }
    if (!c->closing) {
        mu_rdzv_v3_arm(c);
    }
}

static void free_register(struct mu_rdzv_v3_register *c)
{
    mu_rdzv_v3_leader_fini(c);
    mu_rdzv_state_fini(&c->state);
    mu_rdzv_state_fini(&c->view);
    mu_buf_fini(&c->put_value);
    mu_buf_fini(&c->put_body);
    mu_buf_fini(&c->close_value);
    mu_buf_fini(&c->close_body);
    mu_free(c->node.addr);
    mu_free(c);
}

static void on_etcd_closed(void *context)
{
    struct mu_rdzv_v3_register *c = context;
    struct mu_rdzv_register_events events = c->base.events;

    free_register(c);
    events.closed(events.context);
}

void mu_rdzv_v3_check_closed(struct mu_rdzv_v3_register *c)
{
    if (c->closing && !c->leaving && c->lease_state == MU_RDZV_V3_NO_LEASE) {
        c->leaving = true;
        mu_etcd_close(c->etcd, on_etcd_closed, c);
    }
}

static void v3_register_close(struct mu_rdzv_register *reg)
{
    struct mu_rdzv_v3_register *c = register_of(reg);

    c->closing = true;
    mu_env_timer_arm(c->base.env, &c->timer, MU_MONO_NEVER);
    if (!mu_rdzv_v3_die(c)) {
        mu_rdzv_v3_check_closed(c);
    }
}

static const struct mu_rdzv_register_kind v3_register_kind = {
    .read = v3_register_read,
    .write = v3_register_write,
    .close = v3_register_close,
};

int mu_rdzv_v3_register_new(struct mu_env *env, struct mu_etcd *etcd,
                            const struct mu_rdzv_v3_config *config,
                            const struct mu_rdzv_register_events *events,
                            struct mu_rdzv_register **ret_register)
{
    struct mu_rdzv_v3_register *c;
    size_t text_max = MU_RDZV_STATE_BYTES_MAX;
    uint64_t seed;

    if (strlen(config->prefix) >= MU_RDZV_V3_PREFIX_CAP) {
        return MUSTER_ELIMIT;
    }
    c = mu_calloc(1, sizeof(*c));
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->base = (struct mu_rdzv_register){.kind = &v3_register_kind, .env = env, .events = *events};
    c->etcd = etcd;
    c->settings = config->settings;
    c->settings.generation = MU_RDZV_GENERATION_2;
    c->node = config->node;
    c->node.addr = mu_strndup(config->node.addr, strlen(config->node.addr));
    c->lease_ttl_s = config->lease_ttl_s;
    c->answer_at = c->watch_at = c->client_at = MU_MONO_NEVER;
    c->round_top = -1;
    c->close_tried = -1;
    mu_timer_init(&c->timer, on_timer);
    mu_rdzv_state_init(&c->state);
    mu_rdzv_state_init(&c->view);
    mu_buf_init(&c->put_value, 64u << 10);
    mu_buf_init(&c->put_body, 128u << 10);
    mu_buf_init(&c->close_value, text_max);
    mu_buf_init(&c->close_body, 2 * text_max);
    (void)snprintf(c->store_key, sizeof(c->store_key), "%s/store/k/", config->prefix);
    (void)snprintf(c->state_key, sizeof(c->state_key), "%s/state", config->prefix);
    (void)snprintf(c->nodes_key, sizeof(c->nodes_key), "%s/nodes/", config->prefix);
    (void)snprintf(c->nodes_end, sizeof(c->nodes_end), "%s/nodes0", config->prefix);
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_rdzv_v3_leader_init(c, seed);
    if (c->node.addr == NULL) {
        free_register(c);
        return MUSTER_ENOMEM;
    }
    *ret_register = &c->base;
    return 0;
}
