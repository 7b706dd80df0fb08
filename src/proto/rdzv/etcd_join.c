/* Joins a round: PyTorch's init, join and confirm phases, in PyTorch's order. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/rdzv/etcd_internal.h"

#define ALREADY     MU_ETCD2_EXISTS
#define COUNTER_MAX UINT64_C(999999999999999999)
#define SETUP_TEXT  "{\"status\": \"setup\"}"
#define JOINABLE_TEXT                                                                              \
    "{\"status\": \"joinable\", \"version\": \"%" PRIu64 "\", \"participants\": []}"

static int put_text(struct mu_buf *b, struct mu_span text)
{
    mu_buf_reset(b);
    return mu_buf_append(b, text);
}

static void make_dir(struct mu_retcd *m, int err, int64_t ttl_s)
{
    mu_retcd_ask(m, MU_RETCD_MAIN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_MKDIR, .ttl_s = ttl_s});
}

/* A directory that exists already is as good as a new one. */
static bool was_made(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0 || code == ALREADY) {
        m->why.text[0] = '\0';
        return true;
    }
    mu_retcd_rest(m, "the directories of the run cannot be made: %.150s", m->why.text);
    return false;
}

/* --- the directories -------------------------------------------------------------------------- */

static void begin_make_prefix(struct mu_retcd *m)
{
    if (m->prefix[0] == '\0') {
        mu_retcd_enter(m, MU_RETCD_P_MAKE_RUN);
        return;
    }
    make_dir(m, put_text(&m->lanes[MU_RETCD_MAIN].key, mu_span_str(m->prefix)), 0);
}

static void take_make_prefix(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_made(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_MAKE_RUN);
    }
}

static void begin_make_run(struct mu_retcd *m)
{
    make_dir(m, mu_retcd_key(m, MU_RETCD_MAIN, "%s", ""), MU_RETCD_RUN_TTL_S);
}

static void take_make_run(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_made(m, event)) {
        mu_retcd_run_start(m);
        mu_retcd_enter(m, MU_RETCD_P_MAKE_RDZV);
    }
}

static void begin_make_rdzv(struct mu_retcd *m)
{
    make_dir(m, mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv"), 0);
}

static void take_make_rdzv(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_made(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_MAKE_COUNTER);
    }
}

static void begin_make_counter(struct mu_retcd *m)
{
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/version_counter");

    err = err != 0 ? err : put_text(&m->lanes[MU_RETCD_MAIN].value, MU_SPAN_LIT("0"));
    mu_retcd_ask(m, MU_RETCD_MAIN, err, (struct mu_retcd_request){.verb = MU_RETCD_MAKE});
}

static void take_make_counter(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_made(m, event)) {
        m->constructed = true;
        mu_retcd_enter(m, MU_RETCD_P_CREATE);
    }
}

/* --- a new version ---------------------------------------------------------------------------- */

static void begin_create(struct mu_retcd *m)
{
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/active_version");

    err = err != 0 ? err : put_text(&m->lanes[MU_RETCD_MAIN].value, MU_SPAN_LIT(SETUP_TEXT));
    mu_retcd_ask(m, MU_RETCD_MAIN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_MAKE, .ttl_s = MU_RETCD_SETUP_TTL_S});
}

static void take_create(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_enter(m, MU_RETCD_P_COUNTER_GET);
    } else if (code == ALREADY) {
        mu_retcd_enter(m, MU_RETCD_P_READ);
    } else {
        mu_retcd_rest(m, "no state could be created: %.150s", m->why.text);
    }
}

static void begin_counter_get(struct mu_retcd *m)
{
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/version_counter");

    mu_retcd_ask(m, MU_RETCD_MAIN, err, (struct mu_retcd_request){.verb = MU_RETCD_GET});
}

static bool read_counter(struct mu_span text, uint64_t *ret)
{
    uint64_t number = 0;

    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < '0' || text.data[i] > '9' || number > COUNTER_MAX / 10) {
            return false;
        }
        number = number * 10 + (uint64_t)(text.data[i] - '0');
    }
    *ret = number;
    return text.len > 0 && number < COUNTER_MAX;
}

static void take_counter_get(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);
    const struct mu_etcd2_node *node =
        code == 0 && event->reply->node_count > 0 ? &event->reply->nodes[0] : NULL;
    char quoted[40];

    if (node == NULL) {
        /* PyTorch fails when the counter is gone. The whole run is gone then, so it can be begun
         * again. */
        m->constructed = m->constructed && code != MU_ETCD2_NOT_FOUND;
        mu_retcd_rest(m, "the version counter cannot be read: %.150s", m->why.text);
    } else if (!read_counter(node->value, &m->counter)) {
        mu_retcd_fail(m, MUSTER_ERDZV_STATE, "the version counter is %s, which is not a number",
                      mu_span_quote(quoted, sizeof(quoted), node->value));
    } else {
        m->counter++;
        m->counter_index = node->modified;
        mu_retcd_enter(m, MU_RETCD_P_COUNTER_SET);
    }
}

static void begin_counter_set(struct mu_retcd *m)
{
    char text[24];
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/version_counter");

    (void)snprintf(text, sizeof(text), "%" PRIu64, m->counter);
    err = err != 0 ? err : put_text(&m->lanes[MU_RETCD_MAIN].value, mu_span_str(text));
    mu_retcd_ask(m, MU_RETCD_MAIN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_COUNT, .index = m->counter_index});
}

static void take_counter_set(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_enter(m, MU_RETCD_P_VERSION_DIR);
        return;
    }
    /* The same holds if another node has counted: our setup was too slow, and is gone. */
    m->constructed = m->constructed && code != MU_ETCD2_NOT_FOUND;
    mu_retcd_rest(m, "the version could not be counted: %.150s", m->why.text);
}

static void begin_version_dir(struct mu_retcd *m)
{
    make_dir(m, mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/v_%" PRIu64, m->counter), 0);
}

static void take_version_dir(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_enter(m, MU_RETCD_P_PUBLISH);
    } else if (code == ALREADY) {
        mu_retcd_enter(m, MU_RETCD_P_READ);
    } else {
        mu_retcd_rest(m, "the version's directory cannot be made: %.150s", m->why.text);
    }
}

static void begin_publish(struct mu_retcd *m)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_MAIN];
    char text[96];
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/active_version");

    (void)snprintf(text, sizeof(text), JOINABLE_TEXT, m->counter);
    err = err != 0 ? err : put_text(&l->value, mu_span_str(text));
    err = err != 0 ? err : put_text(&l->prev, MU_SPAN_LIT(SETUP_TEXT));
    mu_retcd_ask(m, MU_RETCD_MAIN, err, (struct mu_retcd_request){.verb = MU_RETCD_SWAP});
}

static void take_publish(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (mu_retcd_code(m, event) == 0) {
        m->version = m->counter;
        mu_retcd_note(m, "version %" PRIu64 " can be joined", m->version);
        mu_retcd_enter(m, MU_RETCD_P_JOIN_PAUSE);
    } else {
        mu_retcd_rest(m, "version %" PRIu64 " could not be published: %.150s", m->counter,
                      m->why.text);
    }
}

/* --- the state -------------------------------------------------------------------------------- */

static void begin_state(struct mu_retcd *m)
{
    mu_retcd_ask_state(m, MU_RETCD_MAIN);
}

/* Reads the state for a phase of the join. False: another phase has begun. */
static bool got_state(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int rc = mu_retcd_take_state(m, event);

    if (rc == 1) {
        m->why.text[0] = '\0';
        mu_retcd_soon(m, "the state is gone");
    } else if (rc != 0) {
        mu_retcd_rest(m, "the state cannot be read: %.150s", m->why.text);
    } else if (m->state.status == MU_RETCD_CLOSED) {
        m->why.text[0] = '\0';
        mu_retcd_learn_closed(m);
    } else {
        m->why.text[0] = '\0';
        return true;
    }
    return false;
}

static void take_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (!got_state(m, event)) {
        return;
    }
    m->version = m->state.version;
    switch (m->state.status) {
    case MU_RETCD_JOINABLE:
        mu_retcd_enter(m, MU_RETCD_P_JOIN_PAUSE);
        break;
    case MU_RETCD_FINAL:
        mu_retcd_enter(m, MU_RETCD_P_ANNOUNCE_PAUSE);
        break;
    case MU_RETCD_SETUP:
    case MU_RETCD_FROZEN:
    case MU_RETCD_CLOSED:
    case MU_RETCD_OTHER:
        mu_retcd_enter(m, MU_RETCD_P_SETTLE);
        break;
    }
}

static void begin_watch(struct mu_retcd *m)
{
    mu_retcd_ask_watch(m, false, UINT64_MAX);
}

/* Whether there was an event, none, or one too old to be told: the state is read again. */
static bool was_watched(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (event->status == 0 || event->status == MUSTER_ETIMEDOUT) {
        return true;
    }
    (void)mu_retcd_code(m, event);
    mu_retcd_rest(m, "the state cannot be watched: %.150s", m->why.text);
    return false;
}

static void take_settle(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_watched(m, event)) {
        mu_retcd_soon(m, "the rendezvous was between two states");
    }
}

/* --- joining ---------------------------------------------------------------------------------- */

static void begin_pause(struct mu_retcd *m)
{
    mu_retcd_jitter(m, MU_RETCD_MAIN);
}

static void take_join_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (!got_state(m, event)) {
        return;
    }
    if (m->state.status != MU_RETCD_JOINABLE) {
        mu_retcd_soon(m, "version %" PRIu64 " can no longer be joined", m->version);
    } else if (m->state.version != m->version) {
        mu_retcd_again(m);
    } else if (m->state.participants >= m->config.max_nodes) {
        (void)mu_err(&m->why, 0,
                     "version %" PRIu64 " has %zu nodes and can still be joined: the others have "
                     "another maximum",
                     m->version, m->state.participants);
        mu_retcd_rest(m, "%s", m->why.text);
    } else {
        mu_retcd_enter(m, MU_RETCD_P_JOIN_SWAP);
    }
}

static void begin_join_swap(struct mu_retcd *m)
{
    size_t count = m->state.participants + 1;
    bool full = count == m->config.max_nodes;
    struct mu_retcd_edit edit = {
        .join = true, .status = full ? "frozen" : NULL, .empty_keep_alives = full};
    int64_t ttl_s = full                           ? MU_RETCD_FROZEN_TTL_S
                    : count >= m->config.min_nodes ? MU_RETCD_JOINABLE_TTL_S
                                                   : 0;

    mu_retcd_ask_swap(m, &edit, ttl_s);
}

static void take_join_swap(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == MU_ETCD2_COMPARE_FAILED) {
        mu_retcd_enter(m, MU_RETCD_P_JOIN_PAUSE);
        return;
    }
    if (code != 0) {
        /*
         * If the answer was lost, it can never be known whether the write happened, because others
         * write the same text. Then there may be a rank that will not confirm, and this version
         * ends with its TTL.
         */
        mu_retcd_rest(m, "joining failed: %.150s", m->why.text);
        return;
    }
    m->rank = (uint32_t)m->state.participants;
    mu_retcd_note(m, "joined version %" PRIu64 " as rank %" PRIu32, m->version, m->rank);
    if (m->rank + 1 == m->config.min_nodes && m->rank + 1 < m->config.max_nodes) {
        m->last_call = mu_mono_add_ms(m->now, m->config.last_call_ms);
        mu_retcd_enter(m, MU_RETCD_P_LAST_READ);
    } else {
        mu_retcd_enter(m, MU_RETCD_P_PEERS_READ);
    }
}

/* --- the last call, by the node that reached the minimum -------------------------------------- */

static void take_last_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (!got_state(m, event)) {
        return;
    }
    if (mu_retcd_is(m, MU_RETCD_FROZEN)) {
        mu_retcd_enter(m, MU_RETCD_P_PEERS_READ);
    } else if (!mu_retcd_is(m, MU_RETCD_JOINABLE)) {
        mu_retcd_soon(m, "version %" PRIu64 " went away during the last call", m->version);
    } else if (mu_mono_reached(m->last_call, m->now)) {
        mu_retcd_enter(m, MU_RETCD_P_LAST_FREEZE);
    } else {
        mu_retcd_enter(m, MU_RETCD_P_LAST_KEEP);
    }
}

static void begin_last_freeze(struct mu_retcd *m)
{
    struct mu_retcd_edit edit = {.status = "frozen", .empty_keep_alives = true};

    mu_retcd_ask_swap(m, &edit, MU_RETCD_FROZEN_TTL_S);
}

static void begin_last_keep(struct mu_retcd *m)
{
    mu_retcd_ask_swap(m, NULL, MU_RETCD_JOINABLE_TTL_S);
}

static void take_last_swap(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);
    bool freeze = m->phase == MU_RETCD_P_LAST_FREEZE;

    if (code == 0 && freeze) {
        mu_retcd_note(m, "the last call for version %" PRIu64 " is over: %zu nodes", m->version,
                      m->state.participants);
        mu_retcd_enter(m, MU_RETCD_P_PEERS_READ);
    } else if (code == 0) {
        m->index = event->index;
        mu_retcd_enter(m, MU_RETCD_P_LAST_WATCH);
    } else if (code == MU_ETCD2_COMPARE_FAILED || (code == -1 && event->status != MUSTER_ENOMEM)) {
        /* The present state shows whether the write happened. */
        mu_retcd_enter(m, MU_RETCD_P_LAST_PAUSE);
    } else {
        mu_retcd_rest(m, "the last call failed: %.150s", m->why.text);
    }
}

static void begin_last_watch(struct mu_retcd *m)
{
    uint64_t left = mu_mono_until_ms(m->last_call, m->now);
    uint64_t half = (uint64_t)MU_RETCD_JOINABLE_TTL_S * 1000 / 2;

    mu_retcd_ask_watch(m, false, left < half ? left : half);
}

static void take_last_watch(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_watched(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_LAST_READ);
    }
}

/* --- until it is frozen ----------------------------------------------------------------------- */

static void take_peers_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (!got_state(m, event)) {
        return;
    }
    if (mu_retcd_is(m, MU_RETCD_FROZEN)) {
        mu_retcd_enter(m, MU_RETCD_P_CONFIRM_PAUSE);
    } else if (mu_retcd_is(m, MU_RETCD_JOINABLE)) {
        mu_retcd_enter(m, MU_RETCD_P_PEERS_WATCH);
    } else {
        mu_retcd_soon(m, "version %" PRIu64 " went away before it was full", m->version);
    }
}

static void take_peers_watch(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_watched(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_PEERS_READ);
    }
}

/* --- confirming ------------------------------------------------------------------------------- */

static int name_lease(struct mu_retcd *m)
{
    char tail[64];
    int err;

    (void)snprintf(tail, sizeof(tail), "/rdzv/v_%" PRIu64 "/rank_%" PRIu32, m->version, m->rank);
    mu_buf_reset(&m->lease);
    err = mu_buf_append(&m->lease, mu_span_str(m->root));
    return err != 0 ? err : mu_buf_append(&m->lease, mu_span(tail, strlen(tail) + 1));
}

static const char *lease_path(const struct mu_retcd *m)
{
    return (const char *)mu_buf_span(&m->lease).data;
}

static void take_confirm_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    bool confirmed = false;
    int err;

    if (!got_state(m, event)) {
        return;
    }
    err = name_lease(m);
    if (err == 0 && (mu_retcd_is(m, MU_RETCD_FROZEN) || mu_retcd_is(m, MU_RETCD_FINAL))) {
        err = mu_retcd_state_has(mu_buf_span(&m->text), lease_path(m), &confirmed);
    }
    if (err != 0) {
        mu_retcd_rest(m, "out of memory");
    } else if (confirmed) {
        /* The write happened after all: no other node writes this path. */
        mu_retcd_lease_start(m);
        mu_retcd_enter(m, MU_RETCD_P_FINAL_READ);
    } else if (!mu_retcd_is(m, MU_RETCD_FROZEN)) {
        mu_retcd_again(m);
    } else {
        mu_retcd_enter(m, MU_RETCD_P_CONFIRM_LEASE);
    }
}

static void begin_confirm_lease(struct mu_retcd *m)
{
    int err = put_text(&m->lanes[MU_RETCD_MAIN].key, mu_span_str(lease_path(m)));

    mu_retcd_ask(m, MU_RETCD_MAIN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_PUT, .ttl_s = MU_RETCD_RANK_TTL_S});
}

static void take_confirm_lease(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_enter(m, MU_RETCD_P_CONFIRM_SWAP);
    } else if (code == -1) {
        mu_retcd_enter(m, MU_RETCD_P_CONFIRM_PAUSE); /* A second write is harmless. */
    } else {
        mu_retcd_rest(m, "the keep-alive key could not be put: %.150s", m->why.text);
    }
}

static void begin_confirm_swap(struct mu_retcd *m)
{
    bool last = m->state.keep_alives + 1 == m->state.participants;
    struct mu_retcd_edit edit = {
        .status = last ? "final" : NULL,
        .keep_alive = lease_path(m),
        .set_waiting = last,
    };

    mu_retcd_ask_swap(m, &edit, last ? 0 : MU_RETCD_FROZEN_TTL_S);
}

static void take_confirm_swap(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_note(m, "confirmed rank %" PRIu32 " of version %" PRIu64, m->rank, m->version);
        mu_retcd_lease_start(m);
        mu_retcd_enter(m, MU_RETCD_P_FINAL_READ);
    } else if (code == MU_ETCD2_COMPARE_FAILED || code == -1) {
        mu_retcd_enter(m, MU_RETCD_P_CONFIRM_PAUSE);
    } else {
        mu_retcd_rest(m, "confirming failed: %.150s", m->why.text);
    }
}

static void take_final_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (!got_state(m, event)) {
        return;
    }
    if (mu_retcd_is(m, MU_RETCD_FINAL)) {
        m->world = (uint32_t)m->state.participants;
        mu_retcd_enter(m, MU_RETCD_P_KV);
    } else if (mu_retcd_is(m, MU_RETCD_FROZEN)) {
        mu_retcd_enter(m, MU_RETCD_P_FINAL_WATCH);
    } else {
        mu_retcd_soon(m, "version %" PRIu64 " went away before all had confirmed", m->version);
    }
}

static void take_final_watch(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (was_watched(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_FINAL_READ);
    }
}

static void begin_rest(struct mu_retcd *m)
{
    mu_retcd_pause(m, MU_RETCD_MAIN, MU_RETCD_REST_MS);
}

const struct mu_retcd_act mu_retcd_join_acts[MU_RETCD_PHASES] = {
    [MU_RETCD_P_MAKE_PREFIX] = {"make-prefix", begin_make_prefix, take_make_prefix},
    [MU_RETCD_P_MAKE_RUN] = {"make-run", begin_make_run, take_make_run},
    [MU_RETCD_P_MAKE_RDZV] = {"make-rdzv", begin_make_rdzv, take_make_rdzv},
    [MU_RETCD_P_MAKE_COUNTER] = {"make-counter", begin_make_counter, take_make_counter},
    [MU_RETCD_P_CREATE] = {"create", begin_create, take_create},
    [MU_RETCD_P_COUNTER_GET] = {"counter-get", begin_counter_get, take_counter_get},
    [MU_RETCD_P_COUNTER_SET] = {"counter-set", begin_counter_set, take_counter_set},
    [MU_RETCD_P_VERSION_DIR] = {"version-dir", begin_version_dir, take_version_dir},
    [MU_RETCD_P_PUBLISH] = {"publish", begin_publish, take_publish},
    [MU_RETCD_P_READ] = {"read", begin_state, take_read},
    [MU_RETCD_P_SETTLE] = {"settle", begin_watch, take_settle},
    [MU_RETCD_P_REST] = {"rest", begin_rest, NULL},
    [MU_RETCD_P_JOIN_PAUSE] = {"join-pause", begin_pause, NULL},
    [MU_RETCD_P_JOIN_READ] = {"join-read", begin_state, take_join_read},
    [MU_RETCD_P_JOIN_SWAP] = {"join-swap", begin_join_swap, take_join_swap},
    [MU_RETCD_P_LAST_PAUSE] = {"last-pause", begin_pause, NULL},
    [MU_RETCD_P_LAST_READ] = {"last-read", begin_state, take_last_read},
    [MU_RETCD_P_LAST_FREEZE] = {"last-freeze", begin_last_freeze, take_last_swap},
    [MU_RETCD_P_LAST_KEEP] = {"last-keep", begin_last_keep, take_last_swap},
    [MU_RETCD_P_LAST_WATCH] = {"last-watch", begin_last_watch, take_last_watch},
    [MU_RETCD_P_PEERS_READ] = {"peers-read", begin_state, take_peers_read},
    [MU_RETCD_P_PEERS_WATCH] = {"peers-watch", begin_watch, take_peers_watch},
    [MU_RETCD_P_CONFIRM_PAUSE] = {"confirm-pause", begin_pause, NULL},
    [MU_RETCD_P_CONFIRM_READ] = {"confirm-read", begin_state, take_confirm_read},
    [MU_RETCD_P_CONFIRM_LEASE] = {"confirm-lease", begin_confirm_lease, take_confirm_lease},
    [MU_RETCD_P_CONFIRM_SWAP] = {"confirm-swap", begin_confirm_swap, take_confirm_swap},
    [MU_RETCD_P_FINAL_READ] = {"final-read", begin_state, take_final_read},
    [MU_RETCD_P_FINAL_WATCH] = {"final-watch", begin_watch, take_final_watch},
};
