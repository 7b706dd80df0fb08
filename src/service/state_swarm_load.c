#include "service/state_swarm_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/error.h>

#include "codec/dht_dict.h"
#include "codec/msgpack.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/peer_env.h"

#define FOUND_MAX   64   /* donors that are looked at, those with the greatest priorities */
#define IDENTIFY_MS 3000 /* for a host that is connected to say what it speaks */
#define HM_IDLE_MS  15000
#define NAME_CAP    512

enum phase {
    FINDING = 1,
    PROBING,
    NEWER,  /* hivemind's donors with greater priorities than all native ones */
    NATIVE, /* native ones */
    REST,   /* hivemind's others */
    ENDED,
};

enum kind {
    UNKNOWN = 0,
    SPEAKS_NATIVE,
    SPEAKS_OTHER,
    UNREACHED,
};

/* Somebody whom the DHT knows. */
struct found {
    struct mu_state_swarm_load *load;
    struct mu_peer_connect connect;
    double priority;
    uint64_t lot; /* decides between equals */
    enum kind kind;
    bool connecting;
    bool connected;
    bool asked; /* as a donor of hivemind's */
    mu_mono_t identify_by;
    int status;
    char text[160];
};

struct mu_state_swarm_load {
    struct mu_state_swarm_load_config config;
    struct mu_env *env; /* of the host */
    struct mu_peer_watch watch;
    struct mu_timer timer;
    enum phase phase;
    bool busy; /* with what the phase does: an end of it will come */
    bool canceled;
    mu_mono_t deadline;
    mu_mono_t probe_by;
    mu_mono_t progress_at;
    struct mu_dht_id key;
    struct mu_dht_wish wish;
    char **donors;
    size_t donor_count;
    struct found *found; /* by priority */
    size_t found_count;
    struct mu_state_loader *loader;
    bool loader_closed;
    struct mu_state_share *share;
    struct mu_hm_load hm;
    struct mu_buf known;
    char name[NAME_CAP];
    struct mu_hm_loaded loaded;
    bool has_loaded;
    double priority;
    int status;
    struct mu_errmsg text;
    struct mu_buf report;
};

static mu_mono_t now_of(const struct mu_state_swarm_load *l)
{
    return mu_env_now(l->env).mono;
}

/* Everything is done from the timer: no callback of another's is on the stack then. */
static void turn_later(struct mu_state_swarm_load *l)
{
    mu_env_timer_arm(l->env, &l->timer, now_of(l));
}

static void note(struct mu_state_swarm_load *l, int status, const char *text)
{
    /* What native donors did says more than what the others did behind them. */
    if (l->status == 0) {
        l->status = mu_err(&l->text, status, "%s", text);
    }
}

/* --- who there is ----------------------------------------------------------------------------- */

static int compare_found(const void *a, const void *b)
{
    const struct found *x = a;
    const struct found *y = b;

    if (x->priority > y->priority || x->priority < y->priority) {
        return x->priority > y->priority ? -1 : 1;
    }
    return (x->lot < y->lot) - (x->lot > y->lot);
}

static int read_found(struct mu_state_swarm_load *l, struct mu_span dictionary)
{
    const struct mu_peer_id *self = mu_peer_host_id(mu_state_swarm_host(l->config.swarm));
    double now = mu_dht_service_time(mu_state_swarm_dht(l->config.swarm));
    struct mu_dht_dict dict;
    struct mu_dht_entry entry;
    int err = mu_dht_dict_decode(dictionary, &dict);

    if (err != 0) {
        return err;
    }
    l->found = mu_calloc((size_t)dict.count + 1, sizeof(*l->found));
    if (l->found == NULL) {
        return MUSTER_ENOMEM;
    }
    while (mu_dht_dict_next(&dict, &entry)) {
        struct found *f = &l->found[l->found_count];

        if (mu_hm_donor_entry(&entry, now, &f->connect.peer, &f->priority) &&
            !mu_peer_id_eq(&f->connect.peer, self)) {
            mu_env_entropy(l->env, &f->lot, sizeof(f->lot));
            f->load = l;
            l->found_count++;
        }
    }
    qsort(l->found, l->found_count, sizeof(*l->found), compare_found);
    l->found_count = l->found_count < FOUND_MAX ? l->found_count : FOUND_MAX;
    return 0;
}

static void add_native(struct mu_state_swarm_load *l, const struct found *f)
{
    char name[MU_PEER_ID_TEXT_MAX + 8] = "/p2p/";
    struct mu_errmsg msg;

    (void)mu_peer_id_format(&f->connect.peer, name + 5);
    (void)mu_state_loader_add(l->loader, name, &msg);
}

static void settle(struct found *f, enum kind kind, int status, const char *text)
{
    struct mu_state_swarm_load *l = f->load;

    if (f->kind != UNKNOWN) {
        return;
    }
    f->kind = kind;
    f->status = status;
    (void)snprintf(f->text, sizeof(f->text), "%.150s", text);
    if (l->phase == PROBING && kind != UNREACHED) {
        l->probe_by =
            mu_mono_min(l->probe_by, mu_mono_add_ms(now_of(l), l->config.native.settle_ms));
    } else if (l->phase == NATIVE && kind == SPEAKS_NATIVE && l->busy) {
        add_native(l, f); /* It was late, and is welcome. */
    }
    turn_later(l);
}

static bool speaks_native(const struct found *f)
{
    return mu_peer_host_speaks(mu_state_swarm_host(f->load->config.swarm), &f->connect.peer,
                               MU_PEER_WIRE_NAME);
}

/* It has said what it speaks, if it has said anything. */
static void look_at(struct found *f)
{
    struct mu_peer_host *host = mu_state_swarm_host(f->load->config.swarm);

    if (speaks_native(f)) {
        settle(f, SPEAKS_NATIVE, 0, "");
    } else if (mu_peer_host_agent(host, &f->connect.peer).len != 0 ||
               mu_mono_reached(f->identify_by, now_of(f->load))) {
        settle(f, SPEAKS_OTHER, 0, "does not speak the native wire");
    }
}

static void on_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer)
{
    struct mu_state_swarm_load *l = MU_CONTAINER_OF(watch, struct mu_state_swarm_load, watch);

    for (size_t i = 0; i < l->found_count; i++) {
        struct found *f = &l->found[i];

        if (f->connected && mu_peer_id_eq(&f->connect.peer, peer)) {
            settle(f, speaks_native(f) ? SPEAKS_NATIVE : SPEAKS_OTHER, 0,
                   speaks_native(f) ? "" : "does not speak the native wire");
        }
    }
}

static void on_connected(struct mu_peer_connect *connect, int status, const char *text)
{
    struct found *f = MU_CONTAINER_OF(connect, struct found, connect);

    f->connecting = false;
    if (status != 0) {
        char why[160];

        (void)snprintf(why, sizeof(why), "cannot be reached: %.120s", text);
        settle(f, UNREACHED, status, why);
        return;
    }
    f->connected = true;
    f->identify_by = mu_mono_add_ms(now_of(f->load), IDENTIFY_MS);
    look_at(f);
    turn_later(f->load);
}

static void on_looked(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_state_swarm_load *l = MU_CONTAINER_OF(wish, struct mu_state_swarm_load, wish);
    bool found = op->count != 0 && op->results[0].type == MU_DHT_FOUND_DICTIONARY;
    int err = found ? read_found(l, mu_buf_span(&op->results[0].value)) : op->status;

    l->busy = false;
    if (err != 0 && l->donor_count == 0) {
        char text[120];

        (void)snprintf(text, sizeof(text), "donors cannot be looked up: %s", muster_strerror(err));
        note(l, err, text);
    }
    turn_later(l);
}

static void probe(struct mu_state_swarm_load *l)
{
    l->phase = PROBING;
    l->probe_by = mu_mono_add_ms(now_of(l), l->config.native.connect_ms);
    for (size_t i = 0; i < l->found_count; i++) {
        struct found *f = &l->found[i];

        f->connect.done = on_connected;
        f->connecting = true;
        mu_peer_host_connect(mu_state_swarm_host(l->config.swarm), &f->connect);
    }
}

static bool is_probed(struct mu_state_swarm_load *l)
{
    bool known = true;

    for (size_t i = 0; i < l->found_count; i++) {
        if (l->found[i].kind == UNKNOWN && l->found[i].connected) {
            look_at(&l->found[i]);
        }
        known = known && l->found[i].kind != UNKNOWN;
    }
    return known || mu_mono_reached(l->probe_by, now_of(l));
}

/* --- native donors ---------------------------------------------------------------------------- */

static bool is_native(const struct found *f)
{
    return f->kind == SPEAKS_NATIVE;
}

static size_t count_native(const struct mu_state_swarm_load *l)
{
    size_t count = l->donor_count;

    for (size_t i = 0; i < l->found_count; i++) {
        count += is_native(&l->found[i]);
    }
    return count;
}

static void on_native_ended(void *context, int status, const char *text,
                            struct mu_state_share *share)
{
    struct mu_state_swarm_load *l = context;

    l->share = share;
    if (status != 0) {
        note(l, status, text);
    }
    (void)mu_state_loader_report(l->loader, &l->report);
}

static void on_native_closed(void *context)
{
    struct mu_state_swarm_load *l = context;

    l->busy = false;
    l->loader_closed = true;
    turn_later(l);
}

static int resolve(void *context, const char *text, struct mu_addr *ret,
                   struct mu_errmsg *reterr_msg)
{
    const struct mu_state_loader_config *native =
        &((struct mu_state_swarm_load *)context)->config.native;

    return native->resolve(native->context, text, ret, reterr_msg);
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

static uint64_t ms_left(const struct mu_state_swarm_load *l)
{
    uint64_t now = now_of(l).ns;

    return l->deadline.ns <= now ? 1 : (l->deadline.ns - now) / MU_NS_PER_MS + 1;
}

static void start_native(struct mu_state_swarm_load *l)
{
    struct mu_state_loader_config config = l->config.native;
    struct mu_errmsg msg;
    int err;

    l->phase = NATIVE;
    if (count_native(l) == 0) {
        return;
    }
    if (config.timeout_ms != 0) {
        config.timeout_ms = ms_left(l);
    }
    config.resolve = resolve;
    config.accept = accept;
    config.progress = on_native_progress;
    config.ended = on_native_ended;
    config.closed = on_native_closed;
    config.context = l;
    err = mu_state_loader_start(l->config.env, &config, &l->loader, &msg);
    if (err != 0) {
        note(l, err, msg.text);
        return;
    }
    l->busy = true;
    for (size_t i = 0; i < l->donor_count; i++) {
        (void)mu_state_loader_add(l->loader, l->donors[i], &msg);
    }
    for (size_t i = 0; i < l->found_count; i++) {
        if (is_native(&l->found[i])) {
            add_native(l, &l->found[i]);
        }
    }
}

/* --- hivemind's donors ------------------------------------------------------------------------ */

static bool is_wanted(const struct mu_state_swarm_load *l, const struct found *f)
{
    double best = -INFINITY;

    if (f->kind != SPEAKS_OTHER || f->asked) {
        return false;
    }
    for (size_t i = 0; i < l->found_count; i++) {
        if (is_native(&l->found[i])) {
            best = best > l->found[i].priority ? best : l->found[i].priority;
        }
    }
    return l->phase == REST || f->priority > best;
}

/* Appends an entry as it was under the key. */
static int put_entry(struct mu_state_swarm_load *l, const struct found *f, struct mu_buf *out,
                     size_t *ret_len)
{
    struct mu_buf subkey;
    struct mu_buf value;
    struct mu_mp_out s;
    struct mu_mp_out v;
    struct mu_dht_entry entry;
    int err;

    mu_buf_init(&subkey, 128);
    mu_buf_init(&value, 16);
    s = mu_mp_out(&subkey);
    v = mu_mp_out(&value);
    mu_mp_put_bin(&s, mu_peer_id_span(&f->connect.peer));
    mu_mp_put_double(&v, f->priority);
    entry = (struct mu_dht_entry){mu_buf_span(&subkey), mu_buf_span(&value),
                                  mu_dht_service_time(mu_state_swarm_dht(l->config.swarm)) + 3600};
    err = s.err != 0 ? s.err : v.err;
    *ret_len = mu_dht_entry_len(&entry);
    if (err == 0 && out != NULL) {
        err = mu_dht_dict_put(out, &entry);
    }
    mu_buf_fini(&subkey);
    mu_buf_fini(&value);
    return err;
}

static int gather_known(struct mu_state_swarm_load *l, size_t *ret_count)
{
    size_t bytes = 0;
    size_t len = 0;
    int err = 0;

    *ret_count = 0;
    mu_buf_reset(&l->known);
    for (size_t i = 0; err == 0 && i < l->found_count; i++) {
        if (is_wanted(l, &l->found[i])) {
            err = put_entry(l, &l->found[i], NULL, &len);
            bytes += len;
            ++*ret_count;
        }
    }
    err = err != 0
              ? err
              : mu_dht_dict_begin(&l->known,
                                  mu_dht_service_time(mu_state_swarm_dht(l->config.swarm)) + 3600,
                                  *ret_count, bytes);
    for (size_t i = 0; err == 0 && i < l->found_count; i++) {
        if (is_wanted(l, &l->found[i])) {
            err = put_entry(l, &l->found[i], &l->known, &len);
        }
    }
    return err;
}

static double priority_of(const struct mu_state_swarm_load *l, const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < l->found_count; i++) {
        if (mu_peer_id_eq(&l->found[i].connect.peer, peer)) {
            return l->found[i].priority;
        }
    }
    return 0;
}

static void on_hm_done(struct mu_hm_load *hm, int status, const char *text)
{
    struct mu_state_swarm_load *l = MU_CONTAINER_OF(hm, struct mu_state_swarm_load, hm);
    struct mu_peer_id from;

    (void)mu_hm_download_report(mu_hm_load_machine(hm), &l->report);
    if (status == 0) {
        mu_hm_load_take(hm, &l->loaded, &from);
        l->has_loaded = true;
        l->priority = priority_of(l, &from);
    } else if (l->phase == REST || status == MUSTER_ETIMEDOUT) {
        note(l, status, text);
    }
    mu_hm_load_fini(hm);
    l->busy = false;
    turn_later(l);
}

static void start_hm(struct mu_state_swarm_load *l, enum phase phase)
{
    struct mu_hm_load_config config = {
        .calls = mu_state_swarm_calls(l->config.swarm),
        .dht = mu_state_swarm_dht(l->config.swarm),
        .prefix = l->config.native.prefix,
        .name = l->name,
        .download = mu_hm_download_config_defaults(),
    };
    uint32_t idle = l->config.native.idle_ms;
    size_t count = 0;
    int err;

    l->phase = phase;
    if (l->config.native.list_only || mu_state_swarm_averager(l->config.swarm) == NULL ||
        (phase == NEWER && count_native(l) == 0)) {
        return;
    }
    err = gather_known(l, &count);
    if (err == 0 && count == 0) {
        return;
    }
    config.known = mu_buf_span(&l->known);
    config.download.self = *mu_peer_host_id(mu_state_swarm_host(l->config.swarm));
    config.download.state.expected = l->config.expected;
    config.download.idle_ms = idle == 0 || idle > HM_IDLE_MS ? HM_IDLE_MS : idle;
    config.download.total_ms = l->config.native.timeout_ms == 0 || ms_left(l) > UINT32_MAX
                                   ? UINT32_MAX
                                   : (uint32_t)ms_left(l);
    l->hm.done = on_hm_done;
    err = err != 0 ? err : mu_hm_load_start(l->env, &config, &l->hm);
    if (err != 0) {
        note(l, err, muster_strerror(err));
        return;
    }
    l->busy = true;
    for (size_t i = 0; i < l->found_count; i++) {
        l->found[i].asked = l->found[i].asked || is_wanted(l, &l->found[i]);
    }
}

/* --- the turn --------------------------------------------------------------------------------- */

static void end(struct mu_state_swarm_load *l)
{
    bool good = l->share != NULL || l->has_loaded;

    if (!good && l->status == 0 &&
        !(l->config.native.list_only && l->found_count + l->donor_count != 0)) {
        if (l->canceled) {
            note(l, MUSTER_ECANCELED, "canceled");
        } else if (mu_mono_reached(l->deadline, now_of(l))) {
            note(l, MUSTER_ETIMEDOUT, "no donor was found in time");
        } else if (l->found_count == 0) {
            note(l, MUSTER_ENOENT, "nobody shares a state under that prefix");
        } else {
            note(l, MUSTER_ECONN, "none of those who share a state could be asked for it");
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

/* The native loader tells its own. */
static void tell_progress(struct mu_state_swarm_load *l)
{
    const struct mu_state_loader_config *native = &l->config.native;
    struct mu_state_loader_progress p = {0};

    if (l->phase == NATIVE || !mu_mono_reached(l->progress_at, now_of(l))) {
        return;
    }
    l->progress_at = mu_mono_add_ms(now_of(l), native->progress_ms);
    if ((l->phase == NEWER || l->phase == REST) && l->busy) {
        p.bytes = mu_hm_load_machine(&l->hm)->assembler.bytes;
        p.donors = 1;
    }
    if (native->progress != NULL && !native->progress(native->context, &p)) {
        l->canceled = true;
    }
}

/* One phase is over: the next. True: something goes on. */
static bool go_on(struct mu_state_swarm_load *l)
{
    if (l->canceled || l->share != NULL || l->has_loaded) {
        return false;
    }
    switch (l->phase) {
    case FINDING:
        probe(l);
        return true;
    case PROBING:
        start_hm(l, NEWER);
        return true;
    case NEWER:
        start_native(l);
        return true;
    case NATIVE:
        start_hm(l, REST);
        return true;
    case REST:
    case ENDED:
        break;
    }
    return false;
}

static void turn(struct mu_state_swarm_load *l)
{
    bool late = mu_mono_reached(l->deadline, now_of(l));
    mu_mono_t at;

    tell_progress(l);
    if (l->busy && (l->canceled || (late && l->phase == FINDING))) {
        stop_what_runs(l);
    }
    while (!l->busy && (l->phase != PROBING || l->canceled || late || is_probed(l))) {
        if ((late && l->share == NULL) || !go_on(l)) {
            end(l);
            return;
        }
    }
    at = mu_mono_min(l->progress_at, l->phase == FINDING ? l->deadline : MU_MONO_NEVER);
    if (l->phase == PROBING) {
        at = mu_mono_min(at, mu_mono_min(l->probe_by, l->deadline));
    }
    at = late ? l->progress_at : at;
    mu_env_timer_arm(l->env, &l->timer, at);
}

static void on_timer(struct mu_timer *timer)
{
    turn(MU_CONTAINER_OF(timer, struct mu_state_swarm_load, timer));
}

/* --- for show --------------------------------------------------------------------------------- */

int mu_state_swarm_load_report(const struct mu_state_swarm_load *l, struct mu_buf *out)
{
    int err = mu_buf_append(out, mu_buf_span(&l->report));

    for (size_t i = 0; err == 0 && i < l->found_count; i++) {
        const struct found *f = &l->found[i];
        char id[MU_PEER_ID_TEXT_MAX];
        char line[MU_PEER_ID_TEXT_MAX + 256];

        if (f->kind != SPEAKS_NATIVE && !f->asked) {
            (void)snprintf(line, sizeof(line), "%s, priority %g: %s\n",
                           mu_peer_id_format(&f->connect.peer, id), f->priority,
                           f->kind == UNKNOWN ? "did not answer in time" : f->text);
            err = mu_buf_append(out, mu_span_str(line));
        }
    }
    return err;
}

bool mu_state_swarm_load_row(const struct mu_state_swarm_load *l, size_t i,
                             struct mu_state_swarm_row *ret)
{
    for (size_t k = 0; k < l->found_count; k++) {
        const struct found *f = &l->found[k];

        if (is_native(f) || i-- != 0) {
            continue;
        }
        *ret = (struct mu_state_swarm_row){.donor = "/p2p/", .priority = f->priority};
        (void)mu_peer_id_format(&f->connect.peer, ret->donor + 5);
        ret->status = f->kind == UNKNOWN ? MUSTER_ETIMEDOUT : f->status;
        ret->text = f->kind == UNKNOWN ? "did not answer in time" : f->text;
        return true;
    }
    return false;
}

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
        return mu_err(reterr_msg, MUSTER_EINVAL, "in a swarm a prefix is not empty and has no dot");
    }
    if (err == 0 && averager != NULL &&
        mu_hm_handler_name(l->name, sizeof(l->name), l->config.native.prefix, averager) != 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the averager's name is too long");
    }
    l->wish.done = on_looked;
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
                      : mu_mono_add_ms(now_of(l), config->native.timeout_ms);
    err = prepare(l, reterr_msg);
    if (err != 0) {
        free_load(l);
        return err;
    }
    l->busy = true;
    l->watch.identified = on_identified;
    mu_peer_host_watch(mu_state_swarm_host(config->swarm), &l->watch);
    turn_later(l);
    *ret = l;
    return 0;
}

void mu_state_swarm_load_cancel(struct mu_state_swarm_load *l)
{
    if (l->phase != ENDED) {
        l->canceled = true;
        turn_later(l);
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
