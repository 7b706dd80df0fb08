/* The public averager. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/average.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/average/averager.h"

#define TIMEOUT_MS 120000 /* of a step */

struct muster_average {
    muster_runtime *rt;
    struct mu_state_net net; /* unless `through` has one */
    struct mu_state_node node;
    struct mu_state_swarm *swarm;
    struct mu_averager *averager; /* the loop's */
    struct mu_layout layout;
    uint8_t **data;
    enum mu_dtype *told;
    char address[MU_STATE_ADDR_MAX + 1];
    char peer[MU_PEER_ID_TEXT_MAX];
    struct mu_averager_step step;
    struct mu_door *waiter; /* for the end of the averager */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Under the lock. */
    bool active; /* a step was begun, and its result was not taken */
    bool ended;
    int status;
    struct mu_errmsg text;
    struct muster_average_result *result;
    struct mu_queued place;
};

void muster_average_config_init(struct muster_average_config *ret, size_t size)
{
    struct mu_averager_config d = mu_averager_config_defaults();
    struct muster_average_config ours = {
        .part_bytes = d.part_bytes,
        .size_min = d.size_min,
        .matchmaking_ms = d.matchmaking_ms,
        .request_ms = d.request_ms,
        .sender_ms = d.sender_ms,
        .reducer_ms = d.reducer_ms,
        .reduce_ms = d.reduce_ms,
        .key = "",
        .listen = "/ip4/127.0.0.1/tcp/0",
        .power_ratio = d.power_ratio,
    };

    mu_api_give(ret, size, &ours, sizeof(ours));
}

void muster_average_request_init(struct muster_average_request *ret, size_t size)
{
    struct muster_average_request ours = {.weight = 1, .timeout_ms = TIMEOUT_MS};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* --- results ---------------------------------------------------------------------------------- */

/* A result, and what is asked for by functions. */
struct whole_result {
    struct muster_average_result told;
    char digest[2 * MU_NATIVE_DIGEST_LEN + 1];
    uint64_t counted; /* members, as bits */
};

bool muster_average_result_counted(const struct muster_average_result *result, size_t i)
{
    return i < 64 &&
           (MU_CONTAINER_OF(result, const struct whole_result, told)->counted >> i & 1) != 0;
}

const char *muster_average_result_digest(const struct muster_average_result *result)
{
    return MU_CONTAINER_OF(result, const struct whole_result, told)->digest;
}

void muster_average_result_free(struct muster_average_result *result)
{
    if (result != NULL) {
        for (size_t i = 0; i < result->member_count; i++) {
            mu_free((void *)(uintptr_t)result->members[i].gather.data);
        }
        mu_free((void *)(uintptr_t)result->members);
        mu_free(result);
    }
}

static void tell_member(struct muster_average_member *ret, const struct mu_averager_member *m)
{
    *ret = (struct muster_average_member){
        .mode = (enum muster_average_mode)m->mode,
        .weight = m->weighed ? m->weight : -1,
        .sent = m->sent,
        .owed = m->owed,
        .results = m->results,
        .owns = m->owns,
    };
    (void)mu_peer_id_format(&m->peer, ret->peer);
    (void)snprintf(ret->why, sizeof(ret->why), "%s", m->why == NULL ? "" : m->why);
    ret->gather.data = mu_strndup((const char *)m->user.data, m->user.len);
    ret->gather.len = ret->gather.data == NULL ? 0 : m->user.len;
}

/* NULL: there is no memory for it. */
static struct muster_average_result *result_of(const struct mu_averager_result *r)
{
    struct whole_result *whole = mu_calloc(1, sizeof(*whole));
    struct muster_average_result *ret = &whole->told;
    struct muster_average_member *members = mu_calloc(r->member_count + 1, sizeof(*members));

    if (whole == NULL || members == NULL) {
        mu_free(whole);
        mu_free(members);
        return NULL;
    }
    for (size_t i = 0; i < r->member_count; i++) {
        tell_member(&members[i], &r->members[i]);
        whole->counted |= i < 64 && r->members[i].counted ? UINT64_C(1) << i : 0;
    }
    (void)snprintf(ret->key, sizeof(ret->key), "%s", r->key);
    for (size_t i = 0; r->member_count != 0 && i < sizeof(r->group_id); i++) {
        (void)snprintf(ret->group_id + 2 * i, 3, "%02x", r->group_id[i]);
    }
    ret->member_count = r->member_count;
    ret->members = members;
    ret->position = r->position;
    ret->led = r->leading;
    ret->parts = r->parts;
    ret->parts_local = r->parts_local;
    ret->bytes_sent = r->bytes_sent;
    ret->bytes_received = r->bytes_received;
    ret->matchmaking_ms = r->matchmaking_ms;
    ret->reduce_ms = r->reduce_ms;
    for (size_t i = 0; r->has_digest && i < sizeof(r->digest); i++) {
        (void)snprintf(whole->digest + 2 * i, 3, "%02x", r->digest[i]);
    }
    return ret;
}

/* --- life ------------------------------------------------------------------------------------- */

static muster_average *new_average(muster_runtime *rt)
{
    muster_average *v = mu_calloc(1, sizeof(*v));
    pthread_condattr_t attr;

    if (v == NULL) {
        return NULL;
    }
    v->rt = rt;
    mu_layout_init(&v->layout);
    (void)pthread_mutex_init(&v->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&v->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return v;
}

static void free_average(muster_average *v)
{
    mu_state_node_close(&v->node);
    if (v->net.rt != NULL) {
        mu_state_net_close(&v->net);
    }
    muster_average_result_free(v->result);
    mu_queued_fini(&v->place);
    mu_layout_fini(&v->layout);
    mu_free(v->data);
    mu_free(v->told);
    (void)pthread_cond_destroy(&v->cond);
    (void)pthread_mutex_destroy(&v->lock);
    mu_free(v);
}

struct open_door {
    struct mu_door door;
    muster_average *average;
    const struct muster_average_config *config;
    bool native;
    enum mu_quant quant;                /* on the native wire, */
    enum mu_hm_compression compression; /* or on hivemind's */
    int err;
    struct mu_errmsg msg;
};

static void listen_on_loop(struct mu_door *door)
{
    struct open_door *d = MU_CONTAINER_OF(door, struct open_door, door);
    muster_average *v = d->average;

    d->err = mu_state_net_listen_peers(&v->net, d->config->listen, d->config->advertise,
                                       "average with us", v->address, sizeof(v->address), &d->msg);
    mu_door_open(door);
}

static void on_stopped(void *context)
{
    muster_average *v = context;
    struct mu_door *waiter = v->waiter;

    v->waiter = NULL;
    mu_door_open(waiter);
}

static void start_on_loop(struct mu_door *door)
{
    struct open_door *d = MU_CONTAINER_OF(door, struct open_door, door);
    const struct muster_average_config *c = d->config;
    struct mu_averager_config config = mu_averager_config_defaults();
    muster_average *v = d->average;

    config.host = mu_state_swarm_host(v->swarm);
    config.calls = mu_state_swarm_calls(v->swarm);
    config.dht = mu_state_swarm_dht(v->swarm);
    config.prefix = c->prefix;
    config.averager = c->averager != NULL  ? c->averager
                      : c->power_rank != 0 ? "PowerSGDGradientAverager"
                                           : config.averager;
    config.layout = &v->layout;
    config.data = v->data;
    config.told = v->told;
    config.native = d->native;
    config.quant = d->quant;
    config.compression = d->compression;
    config.part_bytes = c->part_bytes;
    config.power_rank = c->power_rank;
    config.power_ratio = c->power_ratio;
    config.mode = (enum mu_avg_mode)c->mode;
    config.bits = c->group_bits != NULL ? c->group_bits : "";
    config.target_size = c->target_size;
    config.size_min = c->size_min;
    config.matchmaking_ms = c->matchmaking_ms;
    config.request_ms = c->request_ms;
    config.sender_ms = c->sender_ms;
    config.reducer_ms = c->reducer_ms;
    config.reduce_ms = c->reduce_ms;
    config.stopped = on_stopped;
    config.context = v;
    d->err = mu_averager_start(&config, &v->averager, &d->msg);
    if (d->err == 0) {
        (void)mu_peer_id_format(mu_averager_self(v->averager), v->peer);
    }
    mu_door_open(door);
}

/* Which wire it is, and the encoding of parts on it. NULL: both are known. */
static const char *take_wire(const struct muster_average_config *c, struct open_door *d)
{
    const char *encoding = c->encoding != NULL ? c->encoding : "NONE";

    d->native = c->wire != NULL && strcmp(c->wire, "native") == 0;
    if (c->wire != NULL && !d->native && strcmp(c->wire, "hivemind") != 0) {
        return "there is no such wire: it is \"hivemind\" or \"native\"";
    }
    if (!d->native) {
        return mu_hm_compression_parse(mu_span_str(encoding), &d->compression)
                   ? NULL
                   : "there is no encoding of that name on hivemind's wire: it is NONE, FLOAT16, "
                     "MEANSTD_16BIT, QUANTILE_8BIT, UNIFORM_8BIT or BLOCKWISE_8BIT";
    }
    if (c->averager != NULL) {
        return "`averager` is a class of hivemind's, which the native wire does not have";
    }
    d->quant = strcmp(encoding, "INT8") == 0  ? MU_QUANT_INT8
               : strcmp(encoding, "FP8") == 0 ? MU_QUANT_FP8
                                              : (enum mu_quant)0;
    return d->quant != 0 || strcmp(encoding, "NONE") == 0
               ? NULL
               : "there is no encoding of that name on the native wire: it is NONE, INT8 or FP8";
}

/* NULL: the configuration is valid as far as it is seen here. */
static const char *find_fault(muster_runtime *rt, const struct muster_average_config *c,
                              struct open_door *d)
{
    if (mu_runtime_is_mine(rt)) {
        return "this call waits: make it on a thread of your own, not the runtime's";
    }
    if (c->prefix == NULL || c->prefix[0] == '\0' || strchr(c->prefix, '.') != NULL) {
        return "the prefix must not be empty or contain a dot, which separates it from the bits of "
               "a group in the DHT";
    }
    if (c->tensors == NULL || c->tensor_count == 0) {
        return "there are no tensors to average";
    }
    if (c->mode > MUSTER_AVERAGE_AUX) {
        return "there is no such mode";
    }
    if (c->through != NULL && c->through->node.swarm == NULL) {
        return "the state in `through` is not in a DHT";
    }
    if (c->through == NULL && c->listen == NULL && c->mode != MUSTER_AVERAGE_CLIENT) {
        return "without `listen` nobody can call us: use the mode of a client, or listen";
    }
    if (c->power_rank == 0 && c->averager != NULL &&
        strcmp(c->averager, "PowerSGDGradientAverager") == 0) {
        return "members of a PowerSGDGradientAverager average with a rank: set `power_rank` to "
               "theirs";
    }
    return take_wire(c, d);
}

struct extent {
    const uint8_t *at;
    uint64_t len;
    size_t tensor;
};

static int compare_extents(const void *a, const void *b)
{
    const struct extent *x = a;
    const struct extent *y = b;

    return x->at < y->at ? -1 : x->at > y->at;
}

static int refuse_overlap(const muster_average *v, size_t a, size_t b, struct mu_errmsg *msg)
{
    struct mu_span x = mu_layout_name(&v->layout, a < b ? a : b);
    struct mu_span y = mu_layout_name(&v->layout, a < b ? b : a);

    return mu_err(
        msg, MUSTER_EINVAL,
        "the tensors %.*s and %.*s share memory, which would be averaged twice: leave one "
        "of them out",
        (int)(x.len < 80 ? x.len : 80), (const char *)x.data, (int)(y.len < 80 ? y.len : 80),
        (const char *)y.data);
}

/* Each value has one place: differences are added to it. */
static int check_apart(const muster_average *v, struct mu_errmsg *msg)
{
    size_t n = 0;
    int err = 0;
    struct extent *extents = mu_calloc(v->layout.count, sizeof(*extents));

    if (extents == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < v->layout.count; i++) {
        uint64_t bits =
            mu_layout_elements(&v->layout, i) * mu_dtype_bits(v->layout.tensors[i].dtype);

        if (bits != 0) {
            extents[n++] = (struct extent){v->data[i], bits / 8, i};
        }
    }
    if (n > 1) {
        qsort(extents, n, sizeof(*extents), compare_extents);
    }
    for (size_t i = 1; err == 0 && i < n; i++) {
        if ((uint64_t)(extents[i].at - extents[i - 1].at) < extents[i - 1].len) {
            err = refuse_overlap(v, extents[i - 1].tensor, extents[i].tensor, msg);
        }
    }
    mu_free(extents);
    return err;
}

static int take_tensors(muster_average *v, const struct muster_average_config *c,
                        struct mu_errmsg *msg)
{
    int err = mu_state_layout_of(c->tensors, c->tensor_count, &v->layout, &v->data, msg);

    err = err != 0 ? err : check_apart(v, msg);
    if (err != 0 || c->described == NULL) {
        return err;
    }
    v->told = mu_calloc(c->tensor_count, sizeof(*v->told));
    for (size_t i = 0; v->told != NULL && i < c->tensor_count; i++) {
        v->told[i] = (enum mu_dtype)c->described[i];
        if (c->described[i] != MUSTER_DTYPE_F32 && c->described[i] != MUSTER_DTYPE_F16 &&
            c->described[i] != MUSTER_DTYPE_BF16 && c->described[i] != MUSTER_DTYPE_F64) {
            return mu_err(msg, MUSTER_EINVAL, "`described` names F32, F16, BF16 or F64");
        }
    }
    return v->told == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory") : 0;
}

/* A peer of our own, in the DHT. */
static int open_node(muster_average *v, struct open_door *d)
{
    const struct muster_average_config *c = d->config;
    const struct mu_state_net_terms net = {.key = c->key,
                                           .peers = true,
                                           .minds = c->mode != MUSTER_AVERAGE_CLIENT,
                                           .allow = c->allow,
                                           .allow_count = c->allow_count,
                                           .donors = c->dht,
                                           .donor_count = c->dht_count};
    const struct mu_state_node_terms node = {
        .dht = c->dht, .dht_count = c->dht_count, .client = c->listen == NULL};

    d->err = mu_state_net_open(&v->net, v->rt, &net, &d->msg);
    if (d->err == 0 && c->listen != NULL) {
        mu_door_pass(v->rt, &d->door, listen_on_loop);
    }
    d->err = d->err != 0 ? d->err : mu_state_node_open(&v->node, &v->net, &node, &d->msg);
    v->swarm = v->node.swarm;
    return d->err;
}

static int open_average(muster_runtime *rt, const struct muster_average_config *config,
                        muster_average **ret)
{
    struct open_door d = {.config = config};
    const char *fault = find_fault(rt, config, &d);
    muster_average *v;

    if (fault != NULL) {
        return mu_api_error(MUSTER_EINVAL, fault);
    }
    v = new_average(rt);
    if (v == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    d.average = v;
    d.err = take_tensors(v, config, &d.msg);
    if (d.err == 0 && config->through != NULL) {
        v->swarm = config->through->node.swarm;
        (void)snprintf(v->address, sizeof(v->address), "%s", config->through->address);
    } else if (d.err == 0) {
        d.err = open_node(v, &d);
    }
    if (d.err == 0) {
        mu_door_pass(rt, &d.door, start_on_loop);
    }
    if (d.err != 0) {
        free_average(v);
        return mu_api_error(d.err, d.msg.text);
    }
    *ret = v;
    return 0;
}

int muster_average_open(muster_runtime *rt, const struct muster_average_config *given,
                        muster_average **ret_average)
{
    struct muster_average_config config;
    int err = MU_API_TAKE(average_config, &config, given);

    return err != 0 ? err : open_average(rt, &config, ret_average);
}

struct step_door {
    struct mu_door door;
    muster_average *average;
    struct muster_average_look *look;
    int err;
    struct mu_errmsg msg;
};

static void close_on_loop(struct mu_door *door)
{
    muster_average *v = MU_CONTAINER_OF(door, struct step_door, door)->average;

    v->waiter = door;
    mu_averager_stop(v->averager);
}

void muster_average_close(muster_average *v)
{
    struct step_door d = {.average = v};

    if (v == NULL || mu_runtime_would_wait(v->rt, "muster_average_close")) {
        return;
    }
    mu_door_pass(v->rt, &d.door, close_on_loop);
    (void)mu_queued_leave(&v->place);
    free_average(v);
}

const char *muster_average_address(const muster_average *v)
{
    return v->address;
}

const char *muster_average_peer(const muster_average *v)
{
    return v->peer;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* On the loop: the step has ended. */
static void on_done(struct mu_averager_step *step, const struct mu_averager_result *result)
{
    muster_average *v = MU_CONTAINER_OF(step, muster_average, step);

    (void)pthread_mutex_lock(&v->lock);
    v->status = result->status;
    v->text = (struct mu_errmsg){0};
    (void)mu_err(&v->text, result->status, "%s", result->text);
    v->result = result_of(result);
    v->ended = true;
    (void)mu_queued_push(&v->place, MUSTER_QUEUED_AVERAGED);
    (void)pthread_cond_broadcast(&v->cond);
    (void)pthread_mutex_unlock(&v->lock);
}

static void begin_on_loop(struct mu_door *door)
{
    struct step_door *d = MU_CONTAINER_OF(door, struct step_door, door);

    d->err = mu_averager_step(d->average->averager, &d->average->step, &d->msg);
    mu_door_open(door);
}

/* Whether this caller may begin a step. */
static bool claim(muster_average *v)
{
    bool claimed;

    (void)pthread_mutex_lock(&v->lock);
    claimed = !v->active;
    if (claimed) {
        v->active = true;
        v->ended = false;
    }
    (void)pthread_mutex_unlock(&v->lock);
    return claimed;
}

static void unclaim(muster_average *v)
{
    (void)pthread_mutex_lock(&v->lock);
    v->active = false;
    (void)pthread_mutex_unlock(&v->lock);
}

static int check_values(const muster_average *v, double weight)
{
    struct mu_errmsg msg;
    struct mu_span name;
    size_t at;

    if (mu_averager_can_add(&v->layout, v->data, weight, &at)) {
        return 0;
    }
    name = mu_layout_name(&v->layout, at);
    (void)mu_err(
        &msg, MUSTER_EINVAL,
        "the tensor %.*s has a value that is not finite, or too large to be added with its "
        "weight, which would spoil the average of all members",
        (int)(name.len < 100 ? name.len : 100), (const char *)name.data);
    return mu_api_error(MUSTER_EINVAL, msg.text);
}

static int begin(muster_average *v, const struct muster_average_request *r)
{
    struct step_door d = {.average = v};
    uint32_t timeout_ms;
    int err = mu_api_timeout(r->timeout_ms, TIMEOUT_MS, &timeout_ms);

    err = err != 0 ? err : mu_queue_check(r->queue, v->rt);
    if (err != 0) {
        return err;
    }
    if (!(r->weight >= 0 && r->weight <= MU_AVG_WEIGHT_MAX)) {
        return mu_api_error(MUSTER_EINVAL, "a weight is a number from 0 to 2^40");
    }
    if (!claim(v)) {
        return mu_api_error(
            MUSTER_EBUSY, "a step is under way, or muster_average_end() has not taken its result");
    }
    err = check_values(v, r->weight);
    if (err != 0) {
        unclaim(v);
        return err;
    }
    mu_queued_fini(&v->place);
    mu_queued_init(&v->place, r->queue, v, r->context);
    v->step = (struct mu_averager_step){.weight = r->weight,
                                        .timeout_ms = timeout_ms,
                                        .user = mu_span(r->gather.data, r->gather.len),
                                        .done = on_done};
    mu_door_pass_anywhere(v->rt, &d.door, begin_on_loop);
    if (d.err != 0) {
        unclaim(v);
        return mu_api_error(d.err, d.msg.text);
    }
    return 0;
}

int muster_average_begin(muster_average *v, const struct muster_average_request *given)
{
    struct muster_average_request request;
    int err = 0;

    if (given == NULL) {
        request = muster_average_request_defaults();
    } else {
        err = MU_API_TAKE(average_request, &request, given);
    }
    return err != 0 ? err : begin(v, &request);
}

/* 1: it has ended; 0: not yet; MUSTER_ENOENT. */
static int await_end(muster_average *v, int64_t wait_ms)
{
    struct timespec at = mu_wait_until(wait_ms < 0 ? 0 : wait_ms);
    int got;

    (void)pthread_mutex_lock(&v->lock);
    while (v->active && !v->ended && wait_ms != 0) {
        int err = wait_ms < 0 ? pthread_cond_wait(&v->cond, &v->lock)
                              : pthread_cond_timedwait(&v->cond, &v->lock, &at);

        wait_ms = err != 0 ? 0 : wait_ms; /* look once more */
    }
    got = !v->active ? MUSTER_ENOENT : v->ended;
    (void)pthread_mutex_unlock(&v->lock);
    return got;
}

int muster_average_wait(muster_average *v, int64_t timeout_ms)
{
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (timeout_ms != 0 && mu_runtime_is_mine(v->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    err = await_end(v, timeout_ms);
    if (err < 0) {
        return mu_api_error(err, "no step was begun");
    }
    return err == 1 ? 0 : mu_api_error(MUSTER_ETIMEDOUT, "the step has not ended yet");
}

int muster_average_end(muster_average *v, struct muster_average_result **ret_result)
{
    struct muster_average_result *result;
    struct mu_errmsg text;
    int status;

    if (ret_result != NULL) {
        *ret_result = NULL;
    }
    if (mu_runtime_is_mine(v->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    if (await_end(v, -1) < 0) {
        return mu_api_error(MUSTER_ENOENT, "no step was begun");
    }
    (void)mu_queued_leave(&v->place);
    (void)pthread_mutex_lock(&v->lock);
    result = v->result;
    status = v->status;
    text = v->text;
    v->result = NULL;
    v->active = false;
    (void)pthread_mutex_unlock(&v->lock);
    if (ret_result != NULL) {
        *ret_result = result;
    } else {
        muster_average_result_free(result);
    }
    return status == 0 ? 0 : mu_api_error(status, text.text);
}

int muster_average_step(muster_average *v, double weight, int64_t timeout_ms,
                        struct muster_average_result **ret_result)
{
    struct muster_average_request request = muster_average_request_defaults();
    int err;

    if (ret_result != NULL) {
        *ret_result = NULL;
    }
    if (mu_runtime_is_mine(v->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    request.weight = weight;
    request.timeout_ms = timeout_ms;
    err = begin(v, &request);
    return err != 0 ? err : muster_average_end(v, ret_result);
}

static void cancel_on_loop(struct mu_door *door)
{
    mu_averager_cancel(MU_CONTAINER_OF(door, struct step_door, door)->average->averager);
    mu_door_open(door);
}

void muster_average_cancel(muster_average *v)
{
    struct step_door d = {.average = v};

    mu_door_pass_anywhere(v->rt, &d.door, cancel_on_loop);
}

/* The reason is at the end, behind addresses. */
static void tell_refusal(char ret[128], const char *why)
{
    size_t len = strlen(why);

    if (len < 128) {
        memcpy(ret, why, len + 1);
    } else {
        (void)snprintf(ret, 128, "...%.124s", why + len - 124);
    }
}

static void look_on_loop(struct mu_door *door)
{
    struct step_door *d = MU_CONTAINER_OF(door, struct step_door, door);
    struct muster_average_look *ret = d->look;
    struct mu_averager_look look;

    mu_averager_look(d->average->averager, &look);
    *ret = (struct muster_average_look){
        .phase = (enum muster_average_phase)look.phase,
        .others = look.candidates,
        .followers = look.followers,
        .parts = look.parts,
        .parts_done = look.parts_done,
    };
    (void)snprintf(ret->key, sizeof(ret->key), "%s", look.key);
    if (look.phase == MU_AVERAGER_FOLLOWING) {
        (void)mu_peer_id_format(&look.leader, ret->leader);
    }
    if (look.refused.len != 0) {
        (void)mu_peer_id_format(&look.refused, ret->refused_by);
        tell_refusal(ret->refusal, look.refused_why);
    }
    mu_door_open(door);
}

void muster_average_look(muster_average *v, struct muster_average_look *ret_look)
{
    struct step_door d = {.average = v, .look = ret_look};

    mu_door_pass_anywhere(v->rt, &d.door, look_on_loop);
}
