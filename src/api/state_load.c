/* The public state download: loads. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "core/printable.h"

#define TIMEOUT_MS 600000 /* of a load */

static _Thread_local char last_report[8192];

const char *muster_state_report(void)
{
    return last_report;
}

void muster_state_request_init(struct muster_state_request *ret, size_t size)
{
    struct mu_state_loader_config d = mu_state_loader_config_defaults();
    struct muster_state_request ours = {
        .prefix = "",
        .timeout_ms = TIMEOUT_MS,
        .idle_ms = d.idle_ms,
        .stall_ms = d.stall_ms,
        .connect_ms = d.connect_ms,
        .progress_ms = d.progress_ms,
    };

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* --- the beginning ---------------------------------------------------------------------------- */

static bool wants_peers(const struct muster_state_request *r)
{
    for (size_t i = 0; i < r->donor_count; i++) {
        if (r->donors[i][0] == '/') {
            return true;
        }
    }
    return false;
}

static char *copy_text(const char *text, const char *more)
{
    size_t len = strlen(text) + strlen(more) + 1;
    char *copy = mu_malloc(len);

    if (copy != NULL) {
        (void)snprintf(copy, len, "%s%s", text, more);
    }
    return copy;
}

static int fill_target(muster_state_loading *g, const struct muster_state_request *r,
                       struct mu_errmsg *msg)
{
    struct mu_state_target *t = &g->target;

    mu_layout_init(&t->expected);
    t->bytes_max = r->bytes_max;
    if (r->tensor_count != 0 && r->file != NULL) {
        return mu_err(msg, MUSTER_EINVAL, "a state is loaded in place or into a file, not both");
    }
    if (r->file != NULL) {
        t->file = copy_text(r->file, "");
        t->part = copy_text(r->file, ".part");
        return t->file == NULL || t->part == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory") : 0;
    }
    t->in_place = r->tensor_count != 0;
    return t->in_place
               ? mu_state_layout_of(r->tensors, r->tensor_count, &t->expected, &t->tensors, msg)
               : 0;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_id(const char *text, uint8_t ret[MU_STATE_ID_LEN])
{
    for (size_t i = 0; i < MU_STATE_ID_LEN; i++) {
        int high = digit_of(text[2 * i]);
        int low = high < 0 ? -1 : digit_of(text[2 * i + 1]);

        if (low < 0) {
            return false;
        }
        ret[i] = (uint8_t)(high * 16 + low);
    }
    return text[2 * MU_STATE_ID_LEN] == '\0';
}

/* Fills in `id` and `trust`, on which the request insists. */
static int fill_pins(muster_state_loading *g, const struct muster_state_request *r,
                     struct mu_errmsg *msg)
{
    struct mu_state_loader_config *c = &g->config;

    c->by_priority = r->by_priority;
    g->near = mu_state_any_is_here(r->donors, r->donor_count) ||
              mu_state_any_is_here(r->dht, r->dht_count) ||
              (r->through != NULL && r->through->near);
    if (r->id != NULL) {
        if (!parse_id(r->id, g->id)) {
            return mu_err(msg, MUSTER_EINVAL,
                          "%.70s is not the id of a state, which has %d hex digits", r->id,
                          2 * MU_STATE_ID_LEN);
        }
        c->id = g->id;
    }
    g->trust = mu_calloc(r->trust_count + 1, sizeof(*g->trust));
    if (g->trust == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    c->trust = g->trust;
    for (; c->trust_count < r->trust_count; c->trust_count++) {
        int err = mu_peer_id_parse(&g->trust[c->trust_count], r->trust[c->trust_count], msg);

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

static int fill_config(muster_state_loading *g, const struct muster_state_request *r,
                       struct mu_errmsg *msg)
{
    struct mu_state_loader_config *c = &g->config;
    const struct mu_state_net_terms terms = {.key = r->key,
                                             .peers = r->dht != NULL || wants_peers(r),
                                             .allow = r->allow,
                                             .allow_count = r->allow_count,
                                             .donors = r->donors,
                                             .donor_count = r->donor_count};
    uint32_t timeout_ms;
    int err;

    *c = mu_state_loader_config_defaults();
    if (r->prefix == NULL || strlen(r->prefix) > MU_STATE_PREFIX_MAX) {
        return mu_err(msg, MUSTER_EINVAL, "the prefix is missing or too long");
    }
    err = mu_api_timeout(r->timeout_ms, TIMEOUT_MS, &timeout_ms);
    if (err != 0) {
        return mu_err(msg, err, "%s", muster_errmsg());
    }
    (void)snprintf(c->prefix, sizeof(c->prefix), "%s", r->prefix);
    c->timeout_ms = timeout_ms;
    c->idle_ms = r->idle_ms;
    c->stall_ms = r->stall_ms;
    c->connect_ms = r->connect_ms;
    c->progress_ms = r->progress_ms == 0 ? 1 : r->progress_ms;
    c->keep = r->keep_serving;
    c->list_only = g->rows != NULL;
    err = fill_pins(g, r, msg);
    if (err != 0) {
        return err;
    }
    mu_state_loading_callbacks(g);
    if (r->through != NULL) {
        c->donor = r->through->donor;
        (void)snprintf(c->own_addr, sizeof(c->own_addr), "%s", r->through->told);
        g->by = &r->through->net;
        g->swarm = r->through->node.swarm;
        return r->dht != NULL && g->swarm == NULL
                   ? mu_err(msg, MUSTER_EINVAL, "the state in `through` is not in a DHT")
                   : 0;
    }
    g->listen = r->listen;
    g->by = &g->net;
    g->own_net = true;
    return mu_state_net_open(&g->net, g->rt, &terms, msg);
}

static uint64_t now_ms(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts); /* tidy: a thread's own wait */
    return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

/* Joins the DHT for as long as the load takes, unless `through` is in it. */
static int join(muster_state_loading *g, const struct muster_state_request *r,
                struct mu_errmsg *msg)
{
    struct mu_state_node_terms terms = {
        .dht = r->dht,
        .dht_count = r->dht_count,
        .averager = r->hivemind,
        .client = true,
        .op_ms = r->connect_ms < UINT32_MAX / 2 ? r->connect_ms * 2 : r->connect_ms,
    };
    uint64_t begun = now_ms();
    uint64_t took;
    int err;

    if (r->dht == NULL || g->swarm != NULL) {
        return 0;
    }
    if (r->dht_count == 0) {
        return mu_err(msg, MUSTER_EINVAL, "give at least one node through which to join the DHT");
    }
    err = mu_state_node_open(&g->own_node, g->by, &terms, msg);
    g->swarm = g->own_node.swarm;
    took = now_ms() - begun;
    if (g->config.timeout_ms != 0) {
        g->config.timeout_ms = g->config.timeout_ms > took ? g->config.timeout_ms - took : 1;
    }
    return err;
}

static muster_state_loading *new_loading(muster_runtime *rt, const struct muster_state_request *r)
{
    muster_state_loading *g = mu_calloc(1, sizeof(*g));
    pthread_condattr_t attr;

    if (g == NULL) {
        return NULL;
    }
    g->rt = rt;
    mu_state_look_init(g, r->store);
    mu_queued_init(&g->place, r->queue, g, r->context);
    g->keep = r->keep_serving;
    g->progress = r->progress;
    g->context = r->context;
    mu_buf_init(&g->report, (size_t)1 << 20);
    mu_layout_init(&g->target.expected);
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&g->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return g;
}

static void free_loading(muster_state_loading *g)
{
    mu_state_node_close(&g->own_node);
    if (g->has_loaded) {
        mu_hm_loaded_fini(&g->loaded);
    }
    mu_state_stream_file_fini(&g->stream);
    mu_state_donor_end(g->rt, g->own_donor);
    if (g->own_net) {
        mu_state_net_close(&g->net);
    }
    mu_queued_fini(&g->place);
    mu_state_target_fini(&g->target);
    mu_free(g->trust);
    mu_buf_fini(&g->report);
    (void)pthread_cond_destroy(&g->cond);
    (void)pthread_mutex_destroy(&g->lock);
    mu_free(g);
}

/* Waits for the end, below zero without bound. */
static bool wait_closed(muster_state_loading *g, int64_t wait_ms)
{
    struct timespec at = mu_wait_until(wait_ms < 0 ? 0 : wait_ms);
    bool closed;

    (void)pthread_mutex_lock(&g->lock);
    while (!(closed = g->closed) && wait_ms != 0) {
        int err = wait_ms < 0 ? pthread_cond_wait(&g->cond, &g->lock)
                              : pthread_cond_timedwait(&g->cond, &g->lock, &at);

        wait_ms = err != 0 ? 0 : wait_ms; /* look once more */
    }
    (void)pthread_mutex_unlock(&g->lock);
    return closed;
}

/* The load is closed: the loop lets go of it. */
static void leave_loop(muster_state_loading *g)
{
    struct mu_state_load_door d = {.g = g};

    mu_door_pass(g->rt, &d.door, mu_state_loading_unlook);
    mu_door_pass(g->rt, &d.door, mu_state_loading_free);
}

static int begin(muster_runtime *rt, const struct muster_state_request *r,
                 struct muster_state_row *rows, size_t cap, muster_state_loading **ret)
{
    muster_state_loading *g = new_loading(rt, r);
    struct mu_state_load_door d = {.g = g, .donors = r->donors, .donor_count = r->donor_count};

    if (g == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    g->rows = rows;
    g->row_cap = cap;
    d.err = fill_target(g, r, &d.msg);
    d.err = d.err != 0 ? d.err : fill_config(g, r, &d.msg);
    d.err = d.err != 0 ? d.err : join(g, r, &d.msg);
    if (d.err == 0 && g->look.store != NULL) {
        d.err = mu_state_look_first(g, mu_api_timeout_public(r->connect_ms), &d.announced);
        (void)mu_err(&d.msg, d.err, "%s", d.err == 0 ? "" : muster_errmsg());
    }
    if (d.err == 0) {
        mu_door_pass(rt, &d.door, mu_state_loading_start);
        if (d.err != 0 && g->loader != NULL) {
            (void)wait_closed(g, -1);
            leave_loop(g);
        }
    }
    muster_values_free(&d.announced);
    if (d.err != 0) {
        free_loading(g);
        return mu_api_error(d.err, d.msg.text);
    }
    *ret = g;
    return 0;
}

int muster_state_load_begin(muster_runtime *rt, const struct muster_state_request *request,
                            muster_state_loading **ret_loading)
{
    struct muster_state_request r;
    int err =
        mu_runtime_is_mine(rt)
            ? mu_api_error(MUSTER_EINVAL,
                           "this call waits: make it on a thread of your own, not the runtime's")
            : MU_API_TAKE(state_request, &r, request);

    if (err == 0) {
        err = mu_queue_check(r.queue, rt);
    }
    return err != 0 ? err : begin(rt, &r, NULL, 0, ret_loading);
}

int muster_state_load_wait(muster_state_loading *g, int64_t timeout_ms)
{
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (timeout_ms != 0 && mu_runtime_is_mine(g->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    return wait_closed(g, timeout_ms)
               ? 0
               : mu_api_error(MUSTER_ETIMEDOUT, "the load has not ended yet");
}

void muster_state_load_progress(muster_state_loading *g, struct muster_state_progress *ret_progress,
                                struct muster_state_info *ret_info)
{
    (void)pthread_mutex_lock(&g->lock);
    *ret_progress = g->last;
    if (g->last.info != NULL && ret_info != NULL) {
        *ret_info = g->info;
    }
    ret_progress->info = g->last.info == NULL ? NULL : ret_info;
    (void)pthread_mutex_unlock(&g->lock);
}

void muster_state_load_cancel(muster_state_loading *g)
{
    struct mu_state_load_door d = {.g = g};

    if (mu_runtime_is_mine(g->rt)) {
        mu_state_loading_cancel(g);
    } else {
        mu_door_pass(g->rt, &d.door, mu_state_loading_stop);
    }
}

/* --- the end ---------------------------------------------------------------------------------- */

/* Keeps one sentence for the error, with the first line of what the donors did if it fits. */
static int say_error(muster_state_loading *g)
{
    struct mu_span report = mu_buf_span(&g->report);
    struct mu_errmsg msg;
    char first[MU_ERRMSG_CAP];

    (void)snprintf(first, sizeof(first), "%.*s", (int)report.len, (const char *)report.data);
    first[strcspn(first, "\n")] = '\0';
    (void)mu_err(&msg, g->status, "%s%s%s%s", g->text.text, first[0] == '\0' ? "" : " (", first,
                 first[0] == '\0' ? "" : ")");
    return mu_api_error(g->status, msg.text);
}

static int make_copy(muster_state_loading *g, muster_state_copy **ret)
{
    struct mu_errmsg msg;
    int err = g->has_loaded ? mu_state_loading_settle(g, &msg) : 0;

    err = err != 0 ? err : mu_state_target_finish(&g->target, g->share, &msg);

    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    err = mu_state_copy_new(g->rt, g->share, ret);
    if (err != 0) {
        return mu_api_error(err, NULL);
    }
    (*ret)->info = g->info;
    (*ret)->progress = g->last;
    (*ret)->progress.info = &(*ret)->info;
    if (g->keep) {
        (*ret)->donor = g->own_donor == NULL ? g->config.donor : NULL;
        (*ret)->own_donor = g->own_donor;
        g->own_donor = NULL;
        if ((*ret)->own_donor != NULL) {
            (*ret)->net = g->net;
            g->own_net = false;
        }
    }
    return 0;
}

static void drop_on_loop(struct mu_door *door)
{
    muster_state_loading *g = MU_CONTAINER_OF(door, struct mu_state_load_door, door)->g;

    ((struct mu_state_home *)g->share->owner)->waiter = door;
    if (g->config.donor != NULL) {
        mu_state_donor_withdraw(g->config.donor, g->share, 0);
    }
    mu_state_share_drop(g->share);
}

int muster_state_load_end(muster_state_loading *g, muster_state_copy **ret_copy)
{
    struct mu_state_load_door d = {.g = g};
    muster_state_copy *copy = NULL;
    int err;

    (void)wait_closed(g, -1);
    (void)mu_printable(last_report, sizeof(last_report), mu_buf_span(&g->report), true);
    err = g->status != 0 ? say_error(g) : make_copy(g, &copy);
    leave_loop(g);
    if (err != 0 && g->share != NULL) {
        mu_door_pass(g->rt, &d.door, drop_on_loop);
    } else if (err != 0 && g->last.bytes == 0 && !g->stream.came) {
        mu_state_target_give_up(&g->target);
    }
    free_loading(g);
    if (err == 0 && ret_copy != NULL) {
        *ret_copy = copy;
    } else {
        muster_state_copy_free(copy);
    }
    return err;
}

int muster_state_load(muster_runtime *rt, const struct muster_state_request *request,
                      muster_state_copy **ret_copy)
{
    struct muster_state_request r;
    muster_state_loading *g;
    int err = MU_API_TAKE(state_request, &r, request);

    r.queue = NULL; /* its end is told by our return */
    err = err != 0 ? err : muster_state_load_begin(rt, &r, &g);
    return err != 0 ? err : muster_state_load_end(g, ret_copy);
}

int muster_state_list(muster_runtime *rt, const struct muster_state_request *request,
                      struct muster_state_row *ret_rows, size_t cap)
{
    struct muster_state_request r;
    struct muster_state_row none;
    muster_state_loading *g;
    int err;

    if (mu_runtime_is_mine(rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    err = MU_API_TAKE(state_request, &r, request);
    if (err != 0) {
        return err;
    }
    r.tensor_count = 0;
    r.file = NULL;
    r.listen = NULL;
    r.queue = NULL;
    r.timeout_ms = r.connect_ms == 0
                       ? MUSTER_TIMEOUT_NEVER
                       : (int64_t)r.connect_ms * (r.dht != NULL || r.through != NULL ? 4 : 2);
    err = begin(rt, &r, cap == 0 ? &none : ret_rows, cap, &g);
    if (err != 0) {
        return err;
    }
    (void)wait_closed(g, -1);
    err = g->status != 0 && g->row_count == 0 ? say_error(g) : (int)g->row_count;
    leave_loop(g);
    free_loading(g);
    return err;
}
