#include "service/rdzv/look.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/rdzv/c10d.h"
#include "service/rdzv/register_v2.h"
#include "service/rdzv/register_v3.h"

struct look {
    struct mu_env *env;
    struct mu_rdzv_ask_events events;
    struct mu_rdzv_c10d_config config;
    struct mu_rdzv_register *reg;
    struct mu_timer timer;
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
    uint32_t timeout_ms;
    bool ended;
    int status;
    struct mu_errmsg text;
};

/* `done` is called when the register is closed, so that nothing of it is left then. */
static void end(struct look *l, int status, const char *text)
{
    if (!l->ended) {
        l->ended = true;
        l->status = mu_err(&l->text, status, "%s", text);
        mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
        mu_rdzv_register_close(l->reg);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct look *l = MU_CONTAINER_OF(timer, struct look, timer);
    struct mu_errmsg text;

    (void)mu_err(&text, 0, "etcd at %.160s did not answer within %u ms", l->config.etcd.authority,
                 l->timeout_ms);
    end(l, MUSTER_ERDZV_TIMEOUT, text.text);
}

/* --- the state, for people -------------------------------------------------------------------- */

static const char *place_of(const struct mu_rdzv_member *m, bool complete)
{
    return m->waiting ? "waiting" : m->spare ? "spare" : complete ? "running" : "gathering";
}

static void fill_member(struct mu_rdzv_member_view *view, const struct mu_rdzv_state *s,
                        const struct mu_rdzv_member *m, char *name, struct mu_now now)
{
    view->node = mu_rdzv_c10d_name(name, &m->node);
    view->addr = m->node.addr;
    view->place = place_of(m, s->complete);
    view->rank = m->participant && s->complete ? m->rank : -1;
    view->silent_ms = m->has_heartbeat && m->heartbeat.ns < now.wall.ns
                          ? (now.wall.ns - m->heartbeat.ns) / MU_NS_PER_MS
                          : 0;
}

static int tell_state(struct look *l, const struct mu_rdzv_state *s)
{
    size_t count = s->member_count;
    struct mu_rdzv_member_view *members =
        mu_malloc((count + 1) * (sizeof(*members) + MU_RDZV_C10D_NAME_CAP));
    char *names = (char *)(members + count + 1);
    struct mu_rdzv_run_view view = {
        .run_id = l->run_id,
        .state = s->closed     ? "closed"
                 : s->complete ? "running"
                               : "gathering",
        .text = "",
        .round = (uint64_t)s->round,
        .restarts_left = UINT32_MAX,
        .gathering = s->complete ? 0 : (uint32_t)mu_rdzv_participants(s),
        .running = s->complete ? (uint32_t)mu_rdzv_participants(s) : 0,
        .waiting = (uint32_t)mu_rdzv_waiting(s),
        .spare = (uint32_t)mu_rdzv_spares(s),
        .member_count = count,
        .members = members,
    };

    if (members == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        fill_member(&members[i], s, &s->members[s->order[i]], names + i * MU_RDZV_C10D_NAME_CAP,
                    mu_env_now(l->env));
    }
    l->events.run(l->events.context, &view);
    mu_free(members);
    return 0;
}

static int tell_bytes(struct look *l, struct mu_span bytes, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_state s;
    enum mu_rdzv_dialect dialect;
    int err;

    mu_rdzv_state_init(&s);
    err = mu_rdzv_state_decode(bytes, &s, &dialect, reterr_msg);
    if (err == 0) {
        err = tell_state(l, &s);
    }
    mu_rdzv_state_fini(&s);
    return err;
}

/* --- the register
 * --------------------------------------------------------------------------------- */

static void on_answer(void *context, struct mu_rdzv_event *event)
{
    struct look *l = context;
    struct mu_errmsg msg = {{0}};
    int err;

    if (l->ended) {
        return;
    }
    if (event->type != MU_RDZV_STATE_READ) {
        end(l, event->status == MUSTER_ECORRUPT ? MUSTER_ERDZV_STATE : MUSTER_ERDZV_CONN,
            event->text);
        return;
    }
    if (!event->present) {
        end(l, MUSTER_ENOENT, "there is no such run");
        return;
    }
    err = event->state != NULL ? tell_state(l, event->state) : tell_bytes(l, event->bytes, &msg);
    if (err == MUSTER_ECORRUPT || err == MUSTER_ELIMIT) {
        end(l, MUSTER_ERDZV_STATE, msg.text);
    } else {
        end(l, err, err == 0 ? "" : muster_strerror(err));
    }
}

static void on_found(void *context, const struct mu_rdzv_register_found *found)
{
    (void)context;
    (void)found;
}

static void on_changed(void *context)
{
    (void)context;
}

static void on_closed(void *context)
{
    struct look *l = context;

    l->events.done(l->events.context, l->status, l->text.text);
    mu_free(l);
}

static int open_register(struct look *l, struct mu_errmsg *reterr_msg)
{
    const struct mu_rdzv_register_events events = {
        .found = on_found,
        .answer = on_answer,
        .changed = on_changed,
        .closed = on_closed,
        .context = l,
    };
    char prefix[MU_RDZV_V3_PREFIX_CAP];
    const struct mu_rdzv_v3_config config = {
        .prefix = mu_rdzv_c10d_v3_prefix(prefix, sizeof(prefix), &l->config, l->run_id),
        .settings = l->config.settings,
        .node = {.addr = (char[]){"-"}},
    };
    struct mu_etcd *etcd;
    int err = mu_rdzv_c10d_open_etcd(&l->config, l->env, &etcd, reterr_msg);

    if (err != 0) {
        return err;
    }
    err = l->config.place == MU_RDZV_C10D_ETCD_V2
              ? mu_rdzv_v2_register_new(l->env, etcd, l->run_id, l->timeout_ms, &events, &l->reg)
              : mu_rdzv_v3_register_new(l->env, etcd, &config, &events, &l->reg);
    if (err != 0) {
        mu_etcd_close(etcd, NULL, NULL);
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    return 0;
}

bool mu_rdzv_can_look(const char *backend)
{
    return strcmp(backend, "etcd") == 0 || strcmp(backend, "etcd-v2") == 0 ||
           strcmp(backend, "etcd-v3") == 0;
}

int mu_rdzv_look(struct mu_env *env, const struct mu_rdzv_params *params, uint32_t timeout_ms,
                 const struct mu_rdzv_ask_events *events, struct mu_errmsg *reterr_msg)
{
    struct look *l;
    int err = mu_rdzv_params_check(params, reterr_msg);

    if (err == 0 && strlen(params->run_id) > MU_RDZV_RUN_ID_MAX) {
        err = mu_err(reterr_msg, MUSTER_EINVAL, "the run id is longer than %d bytes",
                     MU_RDZV_RUN_ID_MAX);
    }
    if (err != 0) {
        return err;
    }
    if (strcmp(params->backend, "etcd") == 0) {
        return mu_rdzv_etcd_look(env, params, timeout_ms, events, reterr_msg);
    }
    l = mu_calloc(1, sizeof(*l));
    if (l == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    l->env = env;
    l->events = *events;
    l->timeout_ms = timeout_ms;
    (void)snprintf(l->run_id, sizeof(l->run_id), "%s", params->run_id);
    mu_timer_init(&l->timer, on_timer);
    err = mu_rdzv_c10d_configure(&l->config, env, params, reterr_msg);
    if (err == 0) {
        err = open_register(l, reterr_msg);
    }
    if (err != 0) {
        mu_free(l);
        return err;
    }
    mu_env_timer_arm(env, &l->timer, mu_mono_add_ms(mu_env_now(env).mono, timeout_ms));
    mu_rdzv_register_read(l->reg, 1);
    return 0;
}
