/* Waiting for a round to end, being in one, what is kept alive meanwhile, and closing the run. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "proto/rdzv/etcd_internal.h"

#define FREE_PAUSE_MS 200u   /* every write of a store wakes nodes that wait for a round's end */
#define RETRY_MS      1000u  /* after a keep-alive that was not answered */
#define RUN_RETRY_MS  60000u /* likewise for the run's directory */
#define CLOSED_TEXT   "{\"status\": \"closed\"}"

/* --- waiting for a round to end --------------------------------------------------------------- */

static void begin_announce_pause(struct mu_retcd *m)
{
    mu_retcd_jitter(m, MU_RETCD_MAIN);
}

static void begin_state(struct mu_retcd *m)
{
    mu_retcd_ask_state(m, MU_RETCD_MAIN);
}

/* Reads the state of the round that we wait for. False: it is over, or cannot be read. */
static bool goes_on(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int rc = mu_retcd_take_state(m, event);

    if (rc < 0) {
        mu_retcd_rest(m, "the state cannot be read: %.150s", m->why.text);
        return false;
    }
    m->why.text[0] = '\0';
    if (rc == 0 && m->state.status == MU_RETCD_CLOSED) {
        mu_retcd_learn_closed(m);
        return false;
    }
    if (rc == 1 || !mu_retcd_is(m, MU_RETCD_FINAL)) {
        mu_retcd_again(m);
        return false;
    }
    return true;
}

static void take_announce_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (goes_on(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_ANNOUNCE_SWAP);
    }
}

static void begin_announce_swap(struct mu_retcd *m)
{
    struct mu_retcd_edit edit = {.set_waiting = true, .waiting = m->state.waiting + 1};

    mu_retcd_ask_swap(m, &edit, 0);
}

static void take_announce_swap(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_note(m, "waiting for version %" PRIu64 " to end", m->version);
        m->drop_at = mu_mono_add_ms(m->now, m->config.notice_ms);
        mu_retcd_enter(m, MU_RETCD_P_FREE_READ);
    } else if (code == MU_ETCD2_COMPARE_FAILED || (code == -1 && event->status != MUSTER_ENOMEM)) {
        /* Being counted twice does no harm: the others only check whether a node waits. */
        mu_retcd_enter(m, MU_RETCD_P_ANNOUNCE_PAUSE);
    } else {
        mu_retcd_rest(m, "could not announce that we wait: %.150s", m->why.text);
    }
}

static void begin_free_pause(struct mu_retcd *m)
{
    mu_retcd_pause(m, MU_RETCD_MAIN, FREE_PAUSE_MS);
}

static void take_free_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (goes_on(m, event)) {
        mu_retcd_enter(m, MU_RETCD_P_FREE_LIST);
    }
}

static void begin_list(struct mu_retcd *m)
{
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/v_%" PRIu64, m->version);

    mu_retcd_ask(m, MU_RETCD_MAIN, err, (struct mu_retcd_request){.verb = MU_RETCD_LIST});
}

/* Looks for a missing key. Returns 1 if one is missing, 0 if all are there, negative if that is not
 * known. */
static int find_missing(struct mu_retcd *m, const struct mu_retcd_event *event, const char *except,
                        uint64_t *ret_rank)
{
    static const struct mu_etcd2_reply nothing;
    int64_t code = mu_retcd_code(m, event);

    if (code != 0 && code != MU_ETCD2_NOT_FOUND) {
        return MUSTER_ECONN;
    }
    return mu_retcd_state_missing(mu_buf_span(&m->text), code == 0 ? event->reply : &nothing,
                                  except, ret_rank);
}

static void take_free_list(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    uint64_t rank = UINT64_MAX;
    int rc = find_missing(m, event, NULL, &rank);

    if (rc == 1 && mu_mono_before(m->now, m->drop_at)) {
        m->why.text[0] = '\0';
        m->drop_due = true;
        mu_retcd_enter(m, MU_RETCD_P_FREE_WATCH);
    } else if (rc == 1) {
        m->why.text[0] = '\0';
        mu_retcd_note(m, "rank %" PRId64 " of version %" PRIu64 " is dead: giving the version up",
                      (int64_t)rank, m->version);
        mu_retcd_enter(m, MU_RETCD_P_FREE_DROP);
    } else if (rc == 0) {
        m->drop_due = false;
        mu_retcd_enter(m, MU_RETCD_P_FREE_WATCH);
    } else {
        mu_retcd_rest(m, "the members cannot be listed: %.150s", m->why.text);
    }
}

static void begin_free_drop(struct mu_retcd *m)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_MAIN];
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/active_version");

    mu_buf_reset(&l->prev);
    err = err != 0 ? err : mu_buf_append(&l->prev, mu_buf_span(&m->text));
    mu_retcd_ask(m, MU_RETCD_MAIN, err, (struct mu_retcd_request){.verb = MU_RETCD_DROP});
}

static void take_free_drop(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code == 0) {
        mu_retcd_again(m);
    } else if (code == MU_ETCD2_NOT_FOUND || code == MU_ETCD2_COMPARE_FAILED) {
        m->why.text[0] = '\0';
        mu_retcd_soon(m, "another node was faster");
    } else {
        mu_retcd_rest(m, "the version could not be given up: %.150s", m->why.text);
    }
}

static void begin_free_watch(struct mu_retcd *m)
{
    mu_retcd_ask_watch(m, true, m->drop_due ? mu_mono_until_ms(m->drop_at, m->now) : UINT64_MAX);
}

static void take_free_watch(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    if (event->status == 0 || event->status == MUSTER_ETIMEDOUT) {
        mu_retcd_enter(m, MU_RETCD_P_FREE_PAUSE);
    } else {
        (void)mu_retcd_code(m, event);
        mu_retcd_rest(m, "the rendezvous cannot be watched: %.150s", m->why.text);
    }
}

/* --- in a round ------------------------------------------------------------------------------- */

static void begin_kv(struct mu_retcd *m)
{
    int err = mu_retcd_key(m, MU_RETCD_MAIN, "/rdzv/v_%" PRIu64 "/kv", m->version);

    mu_retcd_ask(m, MU_RETCD_MAIN, err, (struct mu_retcd_request){.verb = MU_RETCD_MKDIR});
}

static void take_kv(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int64_t code = mu_retcd_code(m, event);

    if (code != 0 && code != MU_ETCD2_EXISTS) {
        if (mu_mono_reached(m->deadline, m->now)) {
            mu_retcd_fail(m, MUSTER_ERDZV_CONN, "the round's store could not be made: %.180s",
                          m->why.text);
        } else {
            mu_retcd_pause(m, MU_RETCD_MAIN, RETRY_MS);
        }
        return;
    }
    m->why.text[0] = '\0';
    m->deadline = MU_MONO_NEVER;
    m->waiting = 0;
    m->list_at = mu_mono_add_ms(m->now, MU_RETCD_LOOK_MS);
    m->up->flags |= MU_RETCD_ASSIGNED;
    m->up->version = m->version;
    m->up->rank = m->rank;
    m->up->world = m->world;
    mu_retcd_enter(m, MU_RETCD_P_IN_READ);
}

static void end_round(struct mu_retcd *m, enum mu_retcd_end end, uint64_t lost)
{
    mu_retcd_drop(m, MU_RETCD_MAIN);
    m->up->flags |= MU_RETCD_ENDED;
    m->up->version = m->version;
    m->up->end = end;
    m->up->lost = lost;
    m->phase = MU_RETCD_P_BETWEEN;
}

static void take_in_read(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    int rc = mu_retcd_take_state(m, event);

    if (rc < 0) {
        mu_retcd_enter(m, MU_RETCD_P_IN_REST);
        return;
    }
    m->why.text[0] = '\0';
    if (rc == 0 && m->state.status == MU_RETCD_CLOSED) {
        mu_retcd_learn_closed(m);
        return;
    }
    if (rc == 1 || !mu_retcd_is(m, MU_RETCD_FINAL)) {
        end_round(m, m->lapsed ? MU_RETCD_END_DROPPED : MU_RETCD_END_GONE, UINT64_MAX);
        return;
    }
    if (m->state.waiting != m->waiting) {
        m->waiting = m->state.waiting;
        m->up->flags |= MU_RETCD_WAITING;
        m->up->waiting = m->waiting;
    }
    mu_retcd_enter(m, m->config.notice_lost && mu_mono_reached(m->list_at, m->now)
                          ? MU_RETCD_P_IN_LIST
                          : MU_RETCD_P_IN_WATCH);
}

static void take_in_list(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    const char *own = (const char *)mu_buf_span(&m->lease).data;
    uint64_t rank = UINT64_MAX;
    int rc = find_missing(m, event, own, &rank);

    m->list_at = mu_mono_add_ms(m->now, MU_RETCD_LOOK_MS);
    if (rc == 1) {
        end_round(m, MU_RETCD_END_LOST, rank);
    } else if (rc == 0) {
        m->why.text[0] = '\0';
        mu_retcd_enter(m, MU_RETCD_P_IN_WATCH);
    } else {
        mu_retcd_enter(m, MU_RETCD_P_IN_REST);
    }
}

static void begin_in_watch(struct mu_retcd *m)
{
    mu_retcd_ask_watch(m, false,
                       m->config.notice_lost ? mu_mono_until_ms(m->list_at, m->now) : UINT64_MAX);
}

static void take_in_watch(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    mu_retcd_enter(m, event->status == 0 || event->status == MUSTER_ETIMEDOUT ? MU_RETCD_P_IN_READ
                                                                              : MU_RETCD_P_IN_REST);
}

static void begin_in_rest(struct mu_retcd *m)
{
    mu_retcd_pause(m, MU_RETCD_MAIN, RETRY_MS);
}

static void begin_nothing(struct mu_retcd *m)
{
    m->lanes[MU_RETCD_MAIN].wake = MU_MONO_NEVER;
}

const struct mu_retcd_act mu_retcd_round_acts[MU_RETCD_PHASES] = {
    [MU_RETCD_P_OUT] = {"out", begin_nothing, NULL},
    [MU_RETCD_P_ANNOUNCE_PAUSE] = {"announce-pause", begin_announce_pause, NULL},
    [MU_RETCD_P_ANNOUNCE_READ] = {"announce-read", begin_state, take_announce_read},
    [MU_RETCD_P_ANNOUNCE_SWAP] = {"announce-swap", begin_announce_swap, take_announce_swap},
    [MU_RETCD_P_FREE_PAUSE] = {"free-pause", begin_free_pause, NULL},
    [MU_RETCD_P_FREE_READ] = {"free-read", begin_state, take_free_read},
    [MU_RETCD_P_FREE_LIST] = {"free-list", begin_list, take_free_list},
    [MU_RETCD_P_FREE_DROP] = {"free-drop", begin_free_drop, take_free_drop},
    [MU_RETCD_P_FREE_WATCH] = {"free-watch", begin_free_watch, take_free_watch},
    [MU_RETCD_P_KV] = {"kv", begin_kv, take_kv},
    [MU_RETCD_P_IN_READ] = {"in-read", begin_state, take_in_read},
    [MU_RETCD_P_IN_LIST] = {"in-list", begin_list, take_in_list},
    [MU_RETCD_P_IN_WATCH] = {"in-watch", begin_in_watch, take_in_watch},
    [MU_RETCD_P_IN_REST] = {"in-rest", begin_in_rest, NULL},
    [MU_RETCD_P_BETWEEN] = {"between", begin_nothing, NULL},
};

/* --- our keep-alive key ----------------------------------------------------------------------- */

static void ask_lease(struct mu_retcd *m, enum mu_retcd_verb verb)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_RANK];
    struct mu_span path = mu_buf_span(&m->lease);
    int err;

    mu_buf_reset(&l->key);
    err = mu_buf_append(&l->key, mu_span(path.data, path.len - 1)); /* without the final NUL */
    mu_retcd_ask(m, MU_RETCD_RANK, err,
                 (struct mu_retcd_request){.verb = verb, .ttl_s = MU_RETCD_RANK_TTL_S});
}

void mu_retcd_lease_begin(struct mu_retcd *m)
{
    ask_lease(m, MU_RETCD_REFRESH);
}

void mu_retcd_lease_start(struct mu_retcd *m)
{
    m->leased = true;
    m->lapsed = false;
    mu_retcd_drop(m, MU_RETCD_RANK);
    mu_retcd_lease_begin(m);
}

void mu_retcd_lease_stop(struct mu_retcd *m)
{
    m->leased = false;
    mu_retcd_drop(m, MU_RETCD_RANK);
}

void mu_retcd_lease_take(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    bool answered = event->status == 0 && event->reply != NULL;

    if (!m->leased) {
        return;
    }
    if (answered && event->reply->code == MU_ETCD2_NOT_FOUND &&
        m->lanes[MU_RETCD_RANK].request.verb == MU_RETCD_REFRESH) {
        m->lapsed = true;
        ask_lease(m, MU_RETCD_PUT);
    } else {
        mu_retcd_pause(m, MU_RETCD_RANK,
                       answered ? (uint64_t)MU_RETCD_RANK_TTL_S * 1000 / 2 : RETRY_MS);
    }
}

/* --- the run's directory ---------------------------------------------------------------------- */

void mu_retcd_run_begin(struct mu_retcd *m)
{
    int err = mu_retcd_key(m, MU_RETCD_RUN, "%s", "");

    mu_retcd_ask(m, MU_RETCD_RUN, err,
                 (struct mu_retcd_request){.verb = MU_RETCD_REFRESH, .ttl_s = MU_RETCD_RUN_TTL_S});
}

void mu_retcd_run_start(struct mu_retcd *m)
{
    mu_retcd_drop(m, MU_RETCD_RUN);
    mu_retcd_run_begin(m);
}

void mu_retcd_run_take(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    bool answered = event->status == 0 && event->reply != NULL;

    if (answered && event->reply->code == MU_ETCD2_NOT_FOUND) {
        m->constructed = false; /* The whole run is gone: the next join begins it again. */
    } else {
        mu_retcd_pause(m, MU_RETCD_RUN,
                       answered ? (uint64_t)MU_RETCD_RUN_TTL_S * 1000 / 2 : RUN_RETRY_MS);
    }
}

/* --- closing ---------------------------------------------------------------------------------- */

void mu_retcd_learn_closed(struct mu_retcd *m)
{
    m->closed = true;
    if (m->phase >= MU_RETCD_P_MAKE_PREFIX && m->phase <= MU_RETCD_P_KV) {
        mu_retcd_fail(m, MUSTER_ERDZV_CLOSED, "the run is closed");
    } else if (m->phase != MU_RETCD_P_OUT) {
        mu_retcd_drop(m, MU_RETCD_MAIN);
        m->phase = MU_RETCD_P_BETWEEN;
    }
    if (!m->closed_told) {
        m->closed_told = true;
        m->up->flags |= MU_RETCD_CLOSED_NOW;
    }
}

static void ask_close(struct mu_retcd *m, enum mu_retcd_close_phase phase)
{
    m->close_phase = phase;
    if (phase == MU_RETCD_C_READ) {
        mu_retcd_ask_state(m, MU_RETCD_CLOSE);
        return;
    }
    if (phase == MU_RETCD_C_MKDIR) {
        mu_retcd_ask(
            m, MU_RETCD_CLOSE, mu_retcd_key(m, MU_RETCD_CLOSE, "%s", ""),
            (struct mu_retcd_request){.verb = MU_RETCD_MKDIR, .ttl_s = MU_RETCD_RUN_TTL_S});
        return;
    }
    mu_retcd_ask(m, MU_RETCD_CLOSE, mu_retcd_key(m, MU_RETCD_CLOSE, "/rdzv/active_version"),
                 (struct mu_retcd_request){.verb = phase == MU_RETCD_C_SWAP ? MU_RETCD_SWAP
                                                                            : MU_RETCD_MAKE});
}

void mu_retcd_close_begin(struct mu_retcd *m)
{
    if (m->close_phase != MU_RETCD_C_IDLE) {
        return;
    }
    m->close_deadline = mu_mono_add_ms(m->now, m->config.close_ms);
    m->close_why.text[0] = '\0';
    ask_close(m, MU_RETCD_C_READ);
}

static void end_close(struct mu_retcd *m)
{
    mu_retcd_drop(m, MU_RETCD_CLOSE);
    m->close_phase = MU_RETCD_C_IDLE;
    m->close_deadline = MU_MONO_NEVER;
}

void mu_retcd_close_wake(struct mu_retcd *m)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_CLOSE];

    if (m->close_phase != MU_RETCD_C_IDLE && mu_mono_reached(m->close_deadline, m->now)) {
        end_close(m);
        m->up->flags |= MU_RETCD_CLOSE_FAILED;
        m->up->close_code = mu_err(&m->up->close_text, MUSTER_ERDZV_TIMEOUT,
                                   "the run could not be closed within %" PRIu64 " s%s%.160s",
                                   m->config.close_ms / 1000,
                                   m->close_why.text[0] == '\0' ? "" : ": ", m->close_why.text);
    } else if (!l->out && mu_mono_reached(l->wake, m->now)) {
        l->wake = MU_MONO_NEVER;
        ask_close(m, MU_RETCD_C_READ);
    }
}

/* Writes the state that was read with another status. False: there was no memory. */
static bool edit_closed(struct mu_retcd *m, struct mu_span text)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_CLOSE];
    struct mu_retcd_edit edit = {.status = "closed"};

    mu_buf_reset(&l->value);
    mu_buf_reset(&l->prev);
    return mu_retcd_state_edit(text, &edit, &l->value) == 0 && mu_buf_append(&l->prev, text) == 0;
}

static void take_close_read(struct mu_retcd *m, const struct mu_retcd_event *event, int64_t code)
{
    struct mu_retcd_lane *l = &m->lanes[MU_RETCD_CLOSE];
    struct mu_span text = code == 0 && event->reply->node_count > 0 ? event->reply->nodes[0].value
                                                                    : (struct mu_span){0};
    struct mu_retcd_state state = {0};

    if (code == MU_ETCD2_NOT_FOUND) {
        /* PyTorch cannot close a run that was never begun, but it accepts our closed state. */
        mu_buf_reset(&l->value);
        if (mu_buf_append(&l->value, MU_SPAN_LIT(CLOSED_TEXT)) == 0) {
            ask_close(m, MU_RETCD_C_MKDIR);
            return;
        }
    } else if (code == 0 && mu_retcd_state_decode(text, &state) != 0) {
        (void)mu_err(&m->close_why, 0, "the state of the rendezvous makes no sense");
    } else if (code == 0 && state.status == MU_RETCD_CLOSED) {
        end_close(m);
        mu_retcd_learn_closed(m);
        return;
    } else if (code == 0 && edit_closed(m, text)) {
        ask_close(m, MU_RETCD_C_SWAP);
        return;
    }
    m->close_phase = MU_RETCD_C_PAUSE;
    mu_retcd_pause(m, MU_RETCD_CLOSE, MU_RETCD_JITTER_MS);
}

void mu_retcd_close_take(struct mu_retcd *m, const struct mu_retcd_event *event)
{
    struct mu_errmsg kept = m->why;
    int64_t code = mu_retcd_code(m, event);

    m->close_why = m->why; /* The text is about the close, not the join. */
    m->why = kept;
    if (m->close_phase == MU_RETCD_C_READ) {
        take_close_read(m, event, code);
    } else if (m->close_phase == MU_RETCD_C_MKDIR && (code == 0 || code == MU_ETCD2_EXISTS)) {
        ask_close(m, MU_RETCD_C_MAKE);
    } else if (code == 0) {
        end_close(m);
        mu_retcd_learn_closed(m);
    } else {
        m->close_phase = MU_RETCD_C_PAUSE;
        mu_retcd_jitter(m, MU_RETCD_CLOSE);
    }
}
