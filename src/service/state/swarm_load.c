#include "service/state/swarm_load.h"

#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/state/swarm_load_internal.h"

/* The timer does everything: no callback of another module is on the stack then. */
void mu_state_swarm_turn_later(struct mu_state_swarm_load *l)
{
    mu_env_timer_arm(l->env, &l->timer, mu_state_swarm_now(l));
}

void mu_state_swarm_note(struct mu_state_swarm_load *l, int status, const char *text)
{
    /* Errors of native donors say more than those of the others after them. */
    if (l->status == 0) {
        l->status = mu_err(&l->text, status, "%s", text);
    }
}

/* --- native donors ---------------------------------------------------------------------------- */

void mu_state_swarm_add_native(struct mu_state_swarm_load *l, const struct mu_state_found *f)
{
    char name[MU_PEER_ID_TEXT_MAX + 8] = "/p2p/";
    struct mu_errmsg msg;

    (void)mu_peer_id_format(&f->connect.peer, name + 5);
    (void)mu_state_loader_add(l->loader, name, &msg);
}

size_t mu_state_swarm_count_native(const struct mu_state_swarm_load *l)
{
    size_t count = l->donor_count;

    for (size_t i = 0; i < l->found_count; i++) {
        count += mu_state_swarm_is_native(&l->found[i]);
    }
    return count;
}

static void on_native_ended(void *context, int status, const char *text,
                            struct mu_state_share *share)
{
    struct mu_state_swarm_load *l = context;

    l->share = share;
    if (status != 0) {
        mu_state_swarm_note(l, status, text);
    }
    (void)mu_state_loader_report(l->loader, &l->report);
}

static void on_native_closed(void *context)
{
    struct mu_state_swarm_load *l = context;

    l->busy = false;
    mu_state_swarm_turn_later(l);
}

static int resolve(void *context, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg)
{
    const struct mu_state_loader_config *native =
        &((struct mu_state_swarm_load *)context)->config.native;

    return native->resolve(native->context, text, ret, reterr_msg);
}

static bool may_dial(void *context, const char *text)
{
    const struct mu_state_loader_config *native =
        &((struct mu_state_swarm_load *)context)->config.native;

    return native->may_dial == NULL || native->may_dial(native->context, text);
}

static int accept(void *context, struct mu_state_plan *plan, struct mu_errmsg *reterr_msg)
{
    const struct mu_state_loader_config *native =
        &((struct mu_state_swarm_load *)context)->config.native;

    return native->accept(native->context, plan, reterr_msg);
}

static bool on_native_progress(void *context, const struct mu_state_loader_progress *p)
{
    const struct mu_state_loader_config *native =
        &((struct mu_state_swarm_load *)context)->config.native;

    return native->progress == NULL || native->progress(native->context, p);
}

uint64_t mu_state_swarm_ms_left(const struct mu_state_swarm_load *l)
{
    uint64_t now = mu_state_swarm_now(l).ns;

    return l->deadline.ns <= now ? 1 : (l->deadline.ns - now) / MU_NS_PER_MS + 1;
}

static void start_native(struct mu_state_swarm_load *l)
{
    struct mu_state_loader_config config = l->config.native;
    struct mu_errmsg msg;
    int err;

    l->phase = NATIVE;
    if (mu_state_swarm_count_native(l) == 0) {
        return;
    }
    if (config.timeout_ms != 0) {
        config.timeout_ms = mu_state_swarm_ms_left(l);
    }
    config.resolve = resolve;
    config.may_dial = may_dial;
    config.accept = accept;
    config.progress = on_native_progress;
    config.ended = on_native_ended;
    config.closed = on_native_closed;
    config.context = l;
    err = mu_state_loader_start(l->config.env, &config, &l->loader, &msg);
    if (err != 0) {
        mu_state_swarm_note(l, err, msg.text);
        return;
    }
    l->busy = true;
    for (size_t i = 0; i < l->donor_count; i++) {
        (void)mu_state_loader_add(l->loader, l->donors[i], &msg);
    }
    for (size_t i = 0; i < l->found_count; i++) {
        if (mu_state_swarm_is_native(&l->found[i])) {
            mu_state_swarm_add_native(l, &l->found[i]);
        }
    }
}

/* --- the turn --------------------------------------------------------------------------------- */

static void end(struct mu_state_swarm_load *l)
{
    bool good = l->share != NULL || l->has_loaded;

    if (!good && l->status == 0 &&
        !(l->config.native.list_only && l->found_count + l->donor_count != 0)) {
        if (l->canceled) {
            mu_state_swarm_note(l, MUSTER_ECANCELED, "canceled");
        } else if (mu_mono_reached(l->deadline, mu_state_swarm_now(l))) {
            mu_state_swarm_note(l, MUSTER_ETIMEDOUT, "no donor was found in time");
        } else if (l->found_count == 0) {
            mu_state_swarm_note(l, MUSTER_ENOENT, "no peer shares a state under that prefix");
        } else {
            mu_state_swarm_note(l, MUSTER_ECONN,
                                "none of the peers that share a state could be reached");
        }
    }
    l->phase = ENDED;
    mu_env_timer_arm(l->env, &l->timer, MU_MONO_NEVER);
    mu_peer_host_unwatch(&l->watch);
    for (size_t i = 0; i < l->found_count; i++) {
        mu_peer_host_connect_cancel(&l->found[i].connect);
    }
    l->config.ended(l->config.native.context, good ? 0 : l->status, good ? "" : l->text.text,
                    l->share);
    l->config.closed(l->config.native.context);
}

static void stop_what_runs(struct mu_state_swarm_load *l)
{
    switch (l->phase) {
    case FINDING:
        mu_dht_service_cancel(&l->wish);
        break;
    case NEWER:
    case REST:
        mu_hm_load_cancel(&l->hm);
        break;
    case NATIVE:
        mu_state_loader_cancel(l->loader);
        break;
    case PROBING:
    case ENDED:
        break;
    }
}

/* The native loader reports its own progress. */
static void tell_progress(struct mu_state_swarm_load *l)
{
    const struct mu_state_loader_config *native = &l->config.native;
    struct mu_state_loader_progress p = {0};

    if (l->phase == NATIVE || !mu_mono_reached(l->progress_at, mu_state_swarm_now(l))) {
        return;
    }
    l->progress_at =
        mu_mono_add_ms(mu_state_swarm_now(l), native->progress_ms == 0 ? 1 : native->progress_ms);
    if ((l->phase == NEWER || l->phase == REST) && l->busy) {
        p.bytes = mu_hm_load_machine(&l->hm)->assembler.bytes;
        p.donors = 1;
    }
    if (native->progress != NULL && !native->progress(native->context, &p)) {
        l->canceled = true;
    }
}

/* A phase is over: begins the next. True: something is under way. */
static bool go_on(struct mu_state_swarm_load *l)
{
    if (l->canceled || l->share != NULL || l->has_loaded) {
        return false;
    }
    switch (l->phase) {
    case FINDING:
        mu_state_swarm_probe(l);
        return true;
    case PROBING:
        mu_state_swarm_start_hm(l, NEWER);
        return true;
    case NEWER:
        start_native(l);
        return true;
    case NATIVE:
        mu_state_swarm_start_hm(l, REST);
        return true;
    case REST:
    case ENDED:
        break;
    }
    return false;
}

static void turn(struct mu_state_swarm_load *l)
{
    bool late = mu_mono_reached(l->deadline, mu_state_swarm_now(l));
    mu_mono_t at;

    tell_progress(l);
    if (l->busy && (l->canceled || (late && l->phase == FINDING))) {
        stop_what_runs(l);
    }
    while (!l->busy && (l->phase != PROBING || l->canceled || late || mu_state_swarm_probed(l))) {
        if ((late && l->share == NULL) || !go_on(l)) {
            end(l);
            return;
        }
    }
    /* The native loader has its own timers. */
    at = l->phase == NATIVE ? MU_MONO_NEVER : l->progress_at;
    if ((l->phase == FINDING || l->phase == PROBING) && !late) {
        at = mu_mono_min(at, l->deadline);
    }
    if (l->phase == PROBING) {
        at = mu_mono_min(at, l->probe_by);
    }
    mu_env_timer_arm(l->env, &l->timer, at);
}

static void on_timer(struct mu_timer *timer)
{
    turn(MU_CONTAINER_OF(timer, struct mu_state_swarm_load, timer));
}

/* --- for its owner ---------------------------------------------------------------------------- */

void mu_state_swarm_load_take(struct mu_state_swarm_load *l, struct mu_hm_loaded *ret,
                              double *ret_priority)
{
    MU_ASSERT(l->has_loaded);
    l->has_loaded = false;
    *ret = l->loaded;
    *ret_priority = l->priority;
}

struct mu_state_loader *mu_state_swarm_load_native(struct mu_state_swarm_load *l)
{
    return l->loader;
}

/* --- life ------------------------------------------------------------------------------------- */

static int copy_donors(struct mu_state_swarm_load *l)
{
    const struct mu_state_swarm_load_config *c = &l->config;

    l->donors = mu_calloc(c->donor_count + 1, sizeof(*l->donors));
    for (size_t i = 0; l->donors != NULL && i < c->donor_count; i++) {
        l->donors[i] = mu_strndup(c->donors[i], strlen(c->donors[i]));
        if (l->donors[i] == NULL) {
            return MUSTER_ENOMEM;
        }
        l->donor_count++;
    }
    return l->donors == NULL ? MUSTER_ENOMEM : 0;
}

static void free_load(struct mu_state_swarm_load *l)
{
    for (size_t i = 0; i < l->donor_count; i++) {
        mu_free(l->donors[i]);
    }
    if (l->has_loaded) {
        mu_hm_loaded_fini(&l->loaded);
    }
    mu_free(l->donors);
    mu_free(l->found);
    mu_buf_fini(&l->known);
    mu_buf_fini(&l->report);
    mu_free(l);
}

static int prepare(struct mu_state_swarm_load *l, struct mu_errmsg *reterr_msg)
{
    const char *averager = mu_state_swarm_averager(l->config.swarm);
    int err = copy_donors(l);

    if (err == 0 && mu_hm_all_averagers(l->config.native.prefix, &l->key) == MUSTER_EINVAL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "in a swarm a prefix must not be empty or contain a dot");
    }
    if (err == 0 && averager != NULL &&
        mu_hm_handler_name(l->name, sizeof(l->name), l->config.native.prefix, averager) != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the averager's name is too long");
    }
    l->wish.done = mu_state_swarm_looked;
    err = err != 0
              ? err
              : mu_dht_service_get(mu_state_swarm_dht(l->config.swarm), &l->wish, &l->key, 1, true);
    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
}

int mu_state_swarm_load_start(const struct mu_state_swarm_load_config *config,
                              struct mu_state_swarm_load **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_state_swarm_load *l = mu_calloc(1, sizeof(*l));
    int err;

    if (l == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    l->config = *config;
    l->env = mu_peer_host_env(mu_state_swarm_host(config->swarm));
    mu_buf_init(&l->known, (size_t)1 << 20);
    mu_buf_init(&l->report, (size_t)1 << 20);
    mu_timer_init(&l->timer, on_timer);
    l->phase = FINDING;
    l->deadline = config->native.timeout_ms == 0
                      ? MU_MONO_NEVER
                      : mu_mono_add_ms(mu_state_swarm_now(l), config->native.timeout_ms);
    err = prepare(l, reterr_msg);
    if (err != 0) {
        free_load(l);
        return err;
    }
    l->busy = true;
    l->watch.identified = mu_state_swarm_identified;
    mu_peer_host_watch(mu_state_swarm_host(config->swarm), &l->watch);
    mu_state_swarm_turn_later(l);
    *ret = l;
    return 0;
}

void mu_state_swarm_load_cancel(struct mu_state_swarm_load *l)
{
    if (l->phase != ENDED) {
        l->canceled = true;
        mu_state_swarm_turn_later(l);
    }
}

void mu_state_swarm_load_free(struct mu_state_swarm_load *l)
{
    if (l == NULL) {
        return;
    }
    MU_ASSERT(l->phase == ENDED);
    mu_state_loader_free(l->loader);
    free_load(l);
}
