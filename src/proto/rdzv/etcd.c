#include "proto/rdzv/etcd.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/rdzv/etcd_internal.h"

#define KEY_MAX      8192u
#define ACTIVE       "/rdzv/active_version"
#define NO_MEMORY_MS 50u

struct mu_retcd_config mu_retcd_config_defaults(void)
{
    return (struct mu_retcd_config){
        .prefix = "/torchelastic/p2p",
        .min_nodes = 1,
        .max_nodes = 1,
        .timeout_ms = 600000,
        .last_call_ms = 30000,
        .close_ms = 10000,
        .watch_ms = 15000,
        .notice_ms = 5500,
        .notice_lost = true,
    };
}

/* --- life ------------------------------------------------------------------------------------- */

/* Copies a prefix with a slash in front and no slash at its end: "/" is "". */
static char *clean_prefix(const char *prefix)
{
    size_t len = strlen(prefix);
    bool slash = len > 0 && prefix[0] == '/';
    char *clean = mu_malloc(len + 2);

    if (clean != NULL) {
        (void)snprintf(clean, len + 2, "%s%s", slash ? "" : "/", prefix);
        for (len = strlen(clean); len > 0 && clean[len - 1] == '/'; len--) {
            clean[len - 1] = '\0';
        }
    }
    return clean;
}

int mu_retcd_init(struct mu_retcd *m, const struct mu_retcd_config *config)
{
    size_t cap;

    *m = (struct mu_retcd){.config = *config};
    if (strlen(config->prefix) > MU_RETCD_PREFIX_MAX) {
        return MUSTER_EINVAL;
    }
    m->config.prefix = m->config.run_id = NULL; /* Our copies are set below. */
    m->prefix = clean_prefix(config->prefix);
    cap = strlen(config->prefix) + strlen(config->run_id) + 16;
    m->root = mu_malloc(cap);
    if (m->prefix == NULL || m->root == NULL) {
        mu_free(m->prefix);
        mu_free(m->root);
        return MUSTER_ENOMEM;
    }
    (void)snprintf(m->root, cap, "%s/run_%s", m->prefix, config->run_id);
    mu_prng_seed(&m->prng, config->seed);
    for (size_t i = 0; i < MU_RETCD_LANES; i++) {
        mu_buf_init(&m->lanes[i].key, KEY_MAX);
        mu_buf_init(&m->lanes[i].value, MU_RETCD_STATE_MAX);
        mu_buf_init(&m->lanes[i].prev, MU_RETCD_STATE_MAX);
        m->lanes[i].wake = MU_MONO_NEVER;
    }
    mu_buf_init(&m->text, MU_RETCD_STATE_MAX);
    mu_buf_init(&m->lease, KEY_MAX);
    m->deadline = m->drop_at = m->list_at = m->close_deadline = MU_MONO_NEVER;
    return 0;
}

void mu_retcd_fini(struct mu_retcd *m)
{
    for (size_t i = 0; i < MU_RETCD_LANES; i++) {
        mu_buf_fini(&m->lanes[i].key);
        mu_buf_fini(&m->lanes[i].value);
        mu_buf_fini(&m->lanes[i].prev);
    }
    mu_buf_fini(&m->text);
    mu_buf_fini(&m->lease);
    mu_free(m->root);
    mu_free(m->prefix);
}

/* --- lanes ------------------------------------------------------------------------------------ */

static const struct mu_retcd_act *act_of(enum mu_retcd_phase phase)
{
    return mu_retcd_join_acts[phase].name != NULL ? &mu_retcd_join_acts[phase]
                                                  : &mu_retcd_round_acts[phase];
}

const char *mu_retcd_phase_name(const struct mu_retcd *m)
{
    return act_of(m->phase)->name;
}

static bool is_joining(const struct mu_retcd *m)
{
    return m->phase >= MU_RETCD_P_MAKE_PREFIX && m->phase <= MU_RETCD_P_KV;
}

bool mu_retcd_is_member(const struct mu_retcd *m)
{
    return m->phase >= MU_RETCD_P_IN_READ;
}

void mu_retcd_drop(struct mu_retcd *m, enum mu_retcd_lane_id lane)
{
    struct mu_retcd_lane *l = &m->lanes[lane];

    if (l->out) {
        l->out = false;
        if ((m->up->requests & 1u << lane) != 0) {
            m->up->requests &= ~(1u << lane); /* The request was never sent. */
        } else {
            m->up->cancels |= 1u << lane;
        }
    }
    l->wake = MU_MONO_NEVER;
}

void mu_retcd_pause(struct mu_retcd *m, enum mu_retcd_lane_id lane, uint64_t ms)
{
    m->lanes[lane].wake = mu_mono_add_ms(m->now, ms);
}

void mu_retcd_jitter(struct mu_retcd *m, enum mu_retcd_lane_id lane)
{
    m->lanes[lane].wake = mu_mono_add_ns(
        m->now, mu_prng_below(&m->prng, (uint64_t)MU_RETCD_JITTER_MS * MU_NS_PER_MS));
}

int mu_retcd_key(struct mu_retcd *m, enum mu_retcd_lane_id lane, const char *format, ...)
{
    struct mu_retcd_lane *l = &m->lanes[lane];
    char tail[96];
    va_list args;
    int err;

    va_start(args, format);
    (void)vsnprintf(tail, sizeof(tail), format, args);
    va_end(args);
    mu_buf_reset(&l->key);
    err = mu_buf_append(&l->key, mu_span_str(m->root));
    return err != 0 ? err : mu_buf_append(&l->key, mu_span_str(tail));
}

void mu_retcd_ask(struct mu_retcd *m, enum mu_retcd_lane_id lane, int err,
                  struct mu_retcd_request request)
{
    struct mu_retcd_lane *l = &m->lanes[lane];

    MU_ASSERT(!l->out);
    if (err != 0) {
        /* There was no memory for it: the lane's timer begins its phase again. */
        mu_retcd_pause(m, lane, NO_MEMORY_MS);
        return;
    }
    l->request = request;
    l->request.number = ++m->numbers;
    l->request.key = mu_buf_span(&l->key);
    l->request.value = mu_buf_span(&l->value);
    l->request.prev = mu_buf_span(&l->prev);
    l->out = true;
    l->wake = MU_MONO_NEVER;
    m->up->requests |= 1u << lane;
}

void mu_retcd_ask_state(struct mu_retcd *m, enum mu_retcd_lane_id lane)
{
    int err = mu_retcd_key(m, lane, ACTIVE);

    mu_retcd_ask(m, lane, err, (struct mu_retcd_request){.verb = MU_RETCD_GET});
}

void mu_retcd_ask_watch(struct mu_retcd *m, bool recursive, uint64_t timeout_ms)
{
    int err = mu_retcd_key(m, MU_RETCD_MAIN, recursive ? "/rdzv" : ACTIVE);

    timeout_ms = timeout_ms < m->config.watch_ms ? timeout_ms : m->config.watch_ms;
    mu_retcd_ask(m, MU_RETCD_MAIN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_WATCH,
                                           .index = m->index + 1,
                                           .recursive = recursive,
                                           .timeout_ms = timeout_ms == 0 ? 1 : timeout_ms});
}

void mu_retcd_ask_swap(struct mu_retcd *m, const struct mu_retcd_edit *edit, int64_t ttl_s)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_MAIN];
    struct mu_span text = mu_buf_span(&m->text);
    int err = mu_retcd_key(m, MU_RETCD_MAIN, ACTIVE);

    mu_buf_reset(&l->value);
    mu_buf_reset(&l->prev);
    if (err == 0) {
        err = edit == NULL ? mu_buf_append(&l->value, text)
                           : mu_retcd_state_edit(text, edit, &l->value);
    }
    err = err != 0 ? err : mu_buf_append(&l->prev, text);
    mu_retcd_ask(m, MU_RETCD_MAIN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_SWAP, .ttl_s = ttl_s});
}

/* --- answers ---------------------------------------------------------------------------------- */

int64_t mu_retcd_code(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    const struct mu_etcd2_reply *r = event->reply;

    if (event->status != 0 || r == NULL) {
        (void)mu_err(&m->why, event->status, "%s",
                     event->text != NULL ? event->text : muster_strerror(event->status));
        return -1;
    }
    if (r->code != 0) {
        (void)mu_err(&m->why, 0, "etcd says: %.*s (%" PRId64 ")",
                     (int)(r->message.len < 80 ? r->message.len : 80),
                     (const char *)r->message.data, r->code);
    }
    return r->code;
}

int mu_retcd_take_state(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);
    struct mu_span value;
    char quoted[80];
    int err;

    if (code == MU_ETCD2_NOT_FOUND) {
        return 1;
    }
    if (code != 0 || event->reply->node_count == 0) {
        return code == 0 ? mu_err(&m->why, MUSTER_EPROTO, "etcd's answer has no key")
                         : MUSTER_ECONN;
    }
    value = event->reply->nodes[0].value;
    err = mu_retcd_state_decode(value, &m->state);
    if (err != 0) {
        return mu_err(&m->why, err, "the state of the rendezvous makes no sense: %s",
                      mu_span_quote(quoted, sizeof(quoted), value));
    }
    mu_buf_reset(&m->text);
    err = mu_buf_append(&m->text, value);
    m->index = event->index;
    return err;
}

bool mu_retcd_is(const struct mu_retcd *m, enum mu_retcd_status status)
{
    return m->state.status == status && m->state.version == m->version;
}

/* --- phases ----------------------------------------------------------------------------------- */

void mu_retcd_enter(struct mu_retcd *m, enum mu_retcd_phase phase)
{
    m->phase = phase;
    act_of(phase)->begin(m);
}

void mu_retcd_note(struct mu_retcd *m, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(m->up->note.text, sizeof(m->up->note.text), format, args);
    va_end(args);
}

void mu_retcd_fail(struct mu_retcd *m, int code, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    (void)vsnprintf(m->up->text.text, sizeof(m->up->text.text), format, args);
    va_end(args);
    mu_retcd_drop(m, MU_RETCD_MAIN);
    mu_retcd_lease_stop(m);
    m->deadline = MU_MONO_NEVER;
    m->up->flags |= MU_RETCD_FAILED;
    m->up->code = code;
    m->phase = MU_RETCD_P_OUT;
}

/* Describes which nodes are missing, as far as we have seen. */
static void fail_late(struct mu_retcd *m)
{
    uint64_t seconds = m->config.timeout_ms / 1000;
    const char *why = m->why.text;

    if (m->state.status == MU_RETCD_JOINABLE && why[0] == '\0') {
        mu_retcd_fail(m, MUSTER_ERDZV_TIMEOUT,
                      "timed out after %" PRIu64 " s: %zu of at least %" PRIu32
                      " nodes have joined version %" PRIu64,
                      seconds, m->state.participants, m->config.min_nodes, m->state.version);
    } else if (m->state.status == MU_RETCD_FROZEN && why[0] == '\0') {
        mu_retcd_fail(m, MUSTER_ERDZV_TIMEOUT,
                      "timed out after %" PRIu64 " s: %zu of %zu nodes have confirmed version "
                      "%" PRIu64,
                      seconds, m->state.keep_alives, m->state.participants, m->state.version);
    } else if (m->state.status == MU_RETCD_FINAL && why[0] == '\0') {
        mu_retcd_fail(m, MUSTER_ERDZV_TIMEOUT,
                      "timed out after %" PRIu64 " s: version %" PRIu64
                      " goes on with %zu nodes and has not let us in",
                      seconds, m->state.version, m->state.participants);
    } else {
        mu_retcd_fail(m, MUSTER_ERDZV_TIMEOUT, "timed out after %" PRIu64 " s%s%.180s", seconds,
                      why[0] == '\0' ? "" : ": ", why);
    }
}

bool mu_retcd_say_join(const struct mu_retcd *m, struct mu_errmsg *ret)
{
    const struct mu_retcd_state *s = &m->state;
    bool lacks = s->status == MU_RETCD_JOINABLE && s->participants < m->config.min_nodes;

    if (m->why.text[0] != '\0') {
        (void)mu_err(ret, 0, "%s", m->why.text);
    } else if (lacks) {
        (void)mu_err(ret, 0, "%zu of %s%" PRIu32 " nodes are here", s->participants,
                     m->config.min_nodes == m->config.max_nodes ? "" : "at least ",
                     m->config.min_nodes);
    } else if (s->status == MU_RETCD_JOINABLE) {
        (void)mu_err(ret, 0, "%zu of at most %" PRIu32 " nodes are here, last call for more",
                     s->participants, m->config.max_nodes);
    } else if (s->status == MU_RETCD_FROZEN) {
        (void)mu_err(ret, 0, "%zu of %zu nodes have confirmed version %" PRIu64, s->keep_alives,
                     s->participants, s->version);
    } else if (s->status == MU_RETCD_FINAL) {
        (void)mu_err(ret, 0,
                     "version %" PRIu64 " runs with %zu nodes, and this node waits for the next "
                     "one",
                     s->version, s->participants);
    } else {
        (void)mu_err(ret, 0, "the state of the rendezvous is being made");
    }
    return lacks;
}

void mu_retcd_again(struct mu_retcd *m)
{
    mu_retcd_drop(m, MU_RETCD_MAIN);
    mu_retcd_lease_stop(m);
    mu_retcd_enter(m, m->constructed ? MU_RETCD_P_CREATE : MU_RETCD_P_MAKE_PREFIX);
}

/* Rests until its timer is over, and keeps the reason. */
__attribute__((format(printf, 2, 0))) static void stand_still(struct mu_retcd *m,
                                                              const char *format, va_list args)
{
    (void)vsnprintf(m->up->note.text, sizeof(m->up->note.text), format, args);
    mu_retcd_drop(m, MU_RETCD_MAIN);
    m->phase = MU_RETCD_P_REST;
}

void mu_retcd_rest(struct mu_retcd *m, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    stand_still(m, format, args);
    va_end(args);
    mu_retcd_pause(m, MU_RETCD_MAIN, MU_RETCD_REST_MS);
}

void mu_retcd_soon(struct mu_retcd *m, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    stand_still(m, format, args);
    va_end(args);
    mu_retcd_jitter(m, MU_RETCD_MAIN);
}

/* --- steps ------------------------------------------------------------------------------------ */

static void start_join(struct mu_retcd *m)
{
    mu_retcd_drop(m, MU_RETCD_MAIN);
    m->why.text[0] = '\0';
    m->state = (struct mu_retcd_state){0};
    m->deadline = mu_mono_add_ms(m->now, m->config.timeout_ms);
    m->waiting = 0;
    m->lapsed = false;
    if (m->closed) {
        mu_retcd_fail(m, MUSTER_ERDZV_CLOSED, "the run is closed");
    } else {
        mu_retcd_again(m);
    }
}

static void leave(struct mu_retcd *m)
{
    mu_retcd_drop(m, MU_RETCD_MAIN);
    mu_retcd_lease_stop(m);
    m->deadline = MU_MONO_NEVER;
    m->phase = MU_RETCD_P_OUT;
    m->up->flags |= MU_RETCD_LEFT;
}

/* Refusals that waiting does not help. */
static bool is_hopeless(int status)
{
    return status == MUSTER_EVERSION || status == MUSTER_EREFUSED || status == MUSTER_ETLS;
}

static void take_answer(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (event->lane >= MU_RETCD_LANES || !m->lanes[event->lane].out ||
        m->lanes[event->lane].request.number != event->number) {
        return;
    }
    m->lanes[event->lane].out = false;
    switch (event->lane) {
    case MU_RETCD_MAIN:
        if (is_joining(m) && is_hopeless(event->status)) {
            mu_retcd_fail(m, MUSTER_ERDZV_CONN, "%s",
                          event->text != NULL ? event->text : muster_strerror(event->status));
        } else {
            act_of(m->phase)->take(m, event);
        }
        break;
    case MU_RETCD_RANK:
        mu_retcd_lease_take(m, event);
        break;
    case MU_RETCD_RUN:
        mu_retcd_run_take(m, event);
        break;
    case MU_RETCD_CLOSE:
        mu_retcd_close_take(m, event);
        break;
    case MU_RETCD_LANES:
        break;
    }
}

static bool is_due(struct mu_retcd *m, enum mu_retcd_lane_id lane)
{
    if (m->lanes[lane].out || !mu_mono_reached(m->lanes[lane].wake, m->now)) {
        return false;
    }
    m->lanes[lane].wake = MU_MONO_NEVER;
    return true;
}

/* The pause of a phase is over: begins the next phase, or the same one if it found no memory. */
static void wake_main(struct mu_retcd *m)
{
    switch ((int)m->phase) {
    case MU_RETCD_P_REST:
        mu_retcd_again(m);
        break;
    case MU_RETCD_P_JOIN_PAUSE:
    case MU_RETCD_P_LAST_PAUSE:
    case MU_RETCD_P_CONFIRM_PAUSE:
    case MU_RETCD_P_ANNOUNCE_PAUSE:
    case MU_RETCD_P_FREE_PAUSE:
        mu_retcd_enter(m, m->phase + 1);
        break;
    case MU_RETCD_P_IN_REST:
        mu_retcd_enter(m, MU_RETCD_P_IN_READ);
        break;
    default:
        act_of(m->phase)->begin(m);
        break;
    }
}

static void take_time(struct mu_retcd *m)
{
    if (is_joining(m) && m->phase != MU_RETCD_P_KV && mu_mono_reached(m->deadline, m->now)) {
        fail_late(m);
    }
    if (is_due(m, MU_RETCD_MAIN)) {
        wake_main(m);
    }
    if (is_due(m, MU_RETCD_RANK)) {
        mu_retcd_lease_begin(m);
    }
    if (is_due(m, MU_RETCD_RUN)) {
        mu_retcd_run_begin(m);
    }
    mu_retcd_close_wake(m);
}

void mu_retcd_step(struct mu_retcd *m, const struct mu_retcd_event *event,
                   struct mu_retcd_update *ret_update)
{
    *ret_update = (struct mu_retcd_update){.lost = UINT64_MAX};
    m->up = ret_update;
    m->now = event->now;
    switch (event->type) {
    case MU_RETCD_JOIN:
        start_join(m);
        break;
    case MU_RETCD_LEAVE:
        leave(m);
        break;
    case MU_RETCD_CLOSE_RUN:
        mu_retcd_close_begin(m);
        break;
    case MU_RETCD_ANSWER:
        take_answer(m, event);
        break;
    case MU_RETCD_TIMEOUT:
        take_time(m);
        break;
    }
    m->up = NULL;
}

mu_mono_t mu_retcd_deadline(const struct mu_retcd *m)
{
    mu_mono_t at = MU_MONO_NEVER;

    if (is_joining(m) && m->phase != MU_RETCD_P_KV) {
        at = m->deadline;
    }
    for (size_t i = 0; i < MU_RETCD_LANES; i++) {
        if (!m->lanes[i].out) {
            at = mu_mono_min(at, m->lanes[i].wake);
        }
    }
    return mu_mono_min(at, m->close_deadline);
}
