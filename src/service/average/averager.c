#include "service/average/averager_native.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/average/kernel.h"
#include "core/assert.h"
#include "service/base/log.h"

#define NATIVE_CLASS "MusterNative"

struct mu_averager_config mu_averager_config_defaults(void)
{
    struct mu_matchmaker_config match = mu_matchmaker_config_defaults();
    struct mu_reduce_config reduce = mu_reduce_config_defaults();

    return (struct mu_averager_config){
        .averager = "DecentralizedAverager",
        .part_bytes = MU_AVG_PART_BYTES,
        .power_ratio = 0.5,
        .bits = "",
        .size_min = match.size_min,
        .matchmaking_ms = match.matchmaking_ms,
        .request_ms = match.request_ms,
        .sender_ms = reduce.sender_ms,
        .reducer_ms = reduce.reducer_ms,
        .reduce_ms = reduce.total_ms,
        .linger_ms = 5000,
        .streams_max = 1024,
        .streams_peer_max = 8,
    };
}

bool mu_averager_can_add(const struct mu_layout *layout, uint8_t *const *data, double weight,
                         size_t *ret_tensor)
{
    for (size_t i = 0; i < layout->count; i++) {
        if (!mu_avg_can_add(layout->tensors[i].dtype, data[i],
                            (size_t)mu_layout_elements(layout, i), weight)) {
            *ret_tensor = i;
            return false;
        }
    }
    return true;
}

const char *mu_averager_refusal(enum mu_avg_code code)
{
    static const char *const words[MU_AVG_CODE_LAST + 1] = {
        [MU_AVG_NOT_DECLARED] = "it has not said yet when it begins",
        [MU_AVG_NOT_A_LEADER] = "it follows another peer",
        [MU_AVG_BAD_EXPIRATION_TIME] = "it begins later than we do, by its time or by its clock",
        [MU_AVG_BAD_SCHEMA_HASH] =
            "its tensors have other shapes or types than ours, or another order",
        [MU_AVG_DUPLICATE_PEER_ID] = "it has us in its group already",
        [MU_AVG_GROUP_IS_FULL] = "its group is full",
        [MU_AVG_NOT_LOOKING_FOR_GROUP] = "it does not look for a group any more",
        [MU_AVG_PROTOCOL_VIOLATION] = "it does not understand our request, or is a client",
        [MU_AVG_INTERNAL_ERROR] = "it failed",
        [MU_AVG_CANCELLED] = "it has given up",
        [MU_AVG_BAD_GROUP_KEY] = "it is in another bucket by now",
    };

    return code <= MU_AVG_CODE_LAST && words[code] != NULL ? words[code] : "it did not say why";
}

/* --- the end of a step ------------------------------------------------------------------------ */

void mu_averager_finish(struct mu_averager *a, int status, const char *text)
{
    if (a->finished || a->step == NULL) {
        return;
    }
    a->finished = true;
    a->result.status = status;
    (void)mu_err(&a->text, status, "%s", text);
    a->result.text = a->text.text;
    a->result.key = a->result_key;
    a->result.members = a->members;
}

static void log_end(const struct mu_averager *a)
{
    const struct mu_averager_result *r = &a->result;
    char peer[MU_PEER_ID_TEXT_MAX];

    for (size_t i = 0; i < r->member_count; i++) {
        if (r->members[i].why != NULL) {
            mu_log(MUSTER_LOG_WARN, "AVERAGE-MEMBER-LOST", "peer=%s why=\"%s\"",
                   mu_peer_id_format(&r->members[i].peer, peer), r->members[i].why);
        }
    }
    if (r->status == 0) {
        mu_log(MUSTER_LOG_INFO, "AVERAGE-DONE",
               "key=%s members=%zu parts=%u parts_local=%u matchmaking_ms=%" PRIu64
               " reduce_ms=%" PRIu64,
               r->key, r->member_count, r->parts, r->parts_local, r->matchmaking_ms, r->reduce_ms);
    } else {
        mu_log(MUSTER_LOG_INFO, "AVERAGE-FAILED", "key=%s status=%s why=\"%s\"", r->key,
               muster_errname(r->status), r->text);
    }
}

static bool is_idle(const struct mu_averager *a)
{
    return a->step == NULL && !a->storing && !a->fetching && mu_list_empty(&a->senders) &&
           mu_list_empty(&a->joiners) && mu_list_empty(&a->outs) && !a->asking.active &&
           a->native == NULL && mu_list_empty(&a->strangers) && mu_list_empty(&a->lingering);
}

static void arm(struct mu_averager *a)
{
    mu_mono_t at = MU_MONO_NEVER;

    if (a->match != NULL) {
        at = mu_matchmaker_deadline(a->match);
    } else if (a->round != NULL) {
        at = mu_reduce_deadline(&a->round->reduce);
    }
    if (a->stopping) {
        at = mu_mono_min(at, is_idle(a) ? mu_env_now(a->env).mono : a->linger_until);
    }
    mu_env_timer_arm(a->env, &a->timer, at);
}

void mu_averager_pump(struct mu_averager *a)
{
    struct mu_averager_step *step = a->step;

    if (a->pumping) {
        a->again = true;
        return;
    }
    a->pumping = true;
    do {
        a->again = false;
        mu_averager_match_pump(a);
        mu_averager_round_pump(a);
        mu_averager_native_pump(a);
    } while (a->again);
    a->pumping = false;
    if (!a->finished) {
        arm(a);
        return;
    }
    a->finished = false;
    a->step = NULL;
    log_end(a);
    arm(a);
    step->done(step, &a->result); /* which may begin another step, or stop */
}

/* --- life ------------------------------------------------------------------------------------- */

bool mu_averager_may_open(const struct mu_averager *a, const struct mu_peer_id *peer)
{
    uint32_t theirs = 0;

    if (a->stopping || a->streams >= a->config.streams_max) {
        return false;
    }
    MU_LIST_FOREACH (it, &a->joiners) {
        theirs +=
            mu_peer_id_eq(&MU_CONTAINER_OF(it, struct mu_averager_joiner, link)->items.peer, peer);
    }
    MU_LIST_FOREACH (it, &a->senders) {
        theirs +=
            mu_peer_id_eq(&MU_CONTAINER_OF(it, struct mu_averager_sender, link)->items.peer, peer);
    }
    MU_LIST_FOREACH (it, &a->strangers) {
        theirs +=
            mu_peer_id_eq(&MU_CONTAINER_OF(it, struct mu_averager_stream, link)->items.peer, peer);
    }
    return theirs < a->config.streams_peer_max;
}

static void cut_streams(struct mu_averager *a)
{
    if (a->asking.active) {
        a->asking.active = false;
        mu_peer_items_cancel(&a->asking.items);
    }
    while (!mu_list_empty(&a->outs)) {
        mu_averager_out_free(MU_CONTAINER_OF(a->outs.next, struct mu_averager_out, link));
    }
    while (!mu_list_empty(&a->joiners)) {
        struct mu_averager_joiner *j =
            MU_CONTAINER_OF(a->joiners.next, struct mu_averager_joiner, link);

        mu_peer_items_cancel(&j->items);
        mu_averager_joiner_free(j);
    }
    while (!mu_list_empty(&a->senders)) {
        struct mu_averager_sender *s =
            MU_CONTAINER_OF(a->senders.next, struct mu_averager_sender, link);

        mu_peer_items_cancel(&s->items);
        mu_averager_sender_free(s);
    }
}

static void free_averager(struct mu_averager *a)
{
    mu_averager_power_free(a);
    mu_free(a->join_name);
    mu_free(a->part_name);
    mu_free(a->tensors);
    mu_free(a->filled);
    mu_free(a->residual_at);
    mu_free(a->residuals);
    mu_free(a->members);
    mu_free(a->whys);
    mu_buf_fini(&a->told);
    mu_free(a);
}

static void go_on_stopping(struct mu_averager *a)
{
    void (*stopped)(void *context) = a->config.stopped;
    void *context = a->config.context;

    if (!is_idle(a)) {
        /* Whoever has not read its answers by now is cut off, and the bucket is left as it is. */
        a->linger_until = MU_MONO_NEVER;
        cut_streams(a);
        mu_averager_native_cut(a);
        if (a->storing) {
            mu_dht_service_cancel(&a->store_wish);
        }
        if (a->fetching) {
            mu_dht_service_cancel(&a->fetch_wish);
        }
        arm(a);
        return;
    }
    mu_env_timer_arm(a->env, &a->timer, MU_MONO_NEVER);
    free_averager(a);
    if (stopped != NULL) {
        stopped(context);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_averager *a = MU_CONTAINER_OF(timer, struct mu_averager, timer);
    struct mu_now now = mu_env_now(a->env);

    if (a->stopping && a->step == NULL &&
        (is_idle(a) || mu_mono_reached(a->linger_until, now.mono))) {
        go_on_stopping(a);
        return;
    }
    if (a->match != NULL) {
        mu_matchmaker_tick(a->match, now);
    } else if (a->round != NULL) {
        mu_reduce_tick(&a->round->reduce, now);
    }
    mu_averager_pump(a);
}

/* On the native wire, values are float32 on their way, and tensors without values are not cut. */
static int describe_native(struct mu_averager *a, struct mu_errmsg *msg)
{
    const struct mu_averager_config *c = &a->config;

    a->filled = mu_calloc(c->layout->count, sizeof(*a->filled));
    a->residual_at = mu_calloc(c->layout->count, sizeof(*a->residual_at));
    if (a->filled == NULL || a->residual_at == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < c->layout->count; i++) {
        struct mu_avg_tensor *t = &a->tensors[a->tensor_count];

        t->elements = mu_layout_elements(c->layout, i);
        t->dtype = t->told = MU_DTYPE_F32;
        t->compression = MU_HM_NONE;
        a->residual_at[a->tensor_count] = a->values;
        a->filled[a->tensor_count] = (uint32_t)i;
        a->tensor_count += t->elements != 0 ? 1 : 0;
        a->values += t->elements;
    }
    if (a->values == 0) {
        return mu_err(msg, MUSTER_EINVAL, "there are no values to average");
    }
    if (c->quant != 0) {
        a->residuals = a->values > SIZE_MAX / sizeof(float)
                           ? NULL
                           : mu_calloc((size_t)a->values, sizeof(*a->residuals));
    }
    return c->quant == 0 || a->residuals != NULL
               ? 0
               : mu_err(msg, MUSTER_ENOMEM, "there is no memory for what the encoding rounds off");
}

static bool is_averaged(enum mu_dtype dtype)
{
    return dtype == MU_DTYPE_F32 || dtype == MU_DTYPE_F16 || dtype == MU_DTYPE_BF16 ||
           dtype == MU_DTYPE_F64;
}

static int describe(struct mu_averager *a, struct mu_errmsg *msg)
{
    const struct mu_averager_config *c = &a->config;
    char text[64];

    a->tensors = mu_calloc(c->layout->count, sizeof(*a->tensors));
    if (a->tensors == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < c->layout->count; i++) {
        const struct mu_tensor *t = &c->layout->tensors[i];
        uint64_t elements = mu_layout_elements(c->layout, i);
        /* Parts are flat, whatever the tensor is. */
        struct mu_hm_tensor hm = {
            .dtype = t->dtype, .compression = c->compression, .shape = &elements, .rank = 1};

        a->tensors[i] = (struct mu_avg_tensor){
            .elements = elements,
            .dtype = t->dtype,
            .told = c->told != NULL ? c->told[i] : t->dtype,
            .compression = c->compression,
        };
        a->values += c->native ? 0 : elements;
        if (!is_averaged(t->dtype) || (!c->native && mu_hm_tensor_check(&hm) != 0)) {
            struct mu_span name = mu_layout_name(c->layout, i);

            return mu_err(msg, MUSTER_ENOTSUP,
                          "the tensor %.*s is %s, which cannot be averaged with the encoding %s",
                          (int)(name.len < 80 ? name.len : 80), (const char *)name.data,
                          mu_layout_describe(c->layout, i, text, sizeof(text)),
                          c->native ? "of the native wire"
                                    : mu_hm_compression_name(c->compression));
        }
    }
    a->tensor_count = c->native ? 0 : c->layout->count;
    return c->native ? describe_native(a, msg) : 0;
}

/* What members have in common: their layout, and on the native wire all that they must agree on. */
static int set_schema(struct mu_averager *a)
{
    const struct mu_averager_config *c = &a->config;
    struct mu_native_schema s = {.part_bytes = c->part_bytes,
                                 .parts_codec = (uint8_t)c->quant,
                                 .averages_codec = (uint8_t)c->quant,
                                 .block = c->quant == 0 ? 0 : MU_AVERAGER_BLOCK};
    int err = mu_avg_schema_hash(c->layout, a->schema);

    if (err == 0 && c->native) {
        memcpy(s.layout, a->schema, sizeof(s.layout));
        mu_native_schema_hash(&s, a->native_schema);
        memcpy(a->schema, a->native_schema, sizeof(a->schema));
    }
    return err;
}

static int check_sizes(const struct mu_averager_config *c, struct mu_errmsg *msg)
{
    uint32_t most = c->native ? MU_NATIVE_MEMBERS_MAX : MU_AVG_MEMBERS_MAX;

    if (c->size_min < 2 || c->size_min > most || c->target_size == 1 || c->target_size > most) {
        return mu_err(msg, MUSTER_EINVAL, "a group has 2 to %" PRIu32 " members", most);
    }
    if (c->target_size != 0 && c->target_size < c->size_min) {
        return mu_err(msg, MUSTER_EINVAL,
                      "a group of %" PRIu32 " is smaller than the least that is wanted, %" PRIu32,
                      c->target_size, c->size_min);
    }
    if (c->part_bytes > MU_AVG_PART_BYTES_MAX) {
        return mu_err(msg, MUSTER_EINVAL, "a part has at most %d bytes: not %" PRIu64,
                      MU_AVG_PART_BYTES_MAX, c->part_bytes);
    }
    return 0;
}

static int check(struct mu_averager *a, struct mu_errmsg *msg)
{
    const struct mu_averager_config *c = &a->config;
    struct mu_avg_division division = {0};
    uint64_t all = 0;
    int err;

    if (c->layout->count == 0) {
        return mu_err(msg, MUSTER_EINVAL, "there are no tensors to average");
    }
    if (strlen(c->bits) > MU_AVG_BITS_MAX) {
        return mu_err(msg, MUSTER_EINVAL, "the bits of a bucket are at most %d", MU_AVG_BITS_MAX);
    }
    err = c->prefix[0] == '\0' ? MUSTER_EINVAL : mu_avg_key_format(a->key, a->prefix, c->bits);
    if (err != 0) {
        return mu_err(
            msg, MUSTER_EINVAL,
            "%.80s.0b%.70s cannot be a group's key: a prefix must not be empty, contain a "
            "dot, or be longer than %d bytes, and bits are 0 and 1",
            c->prefix, c->bits, MU_AVG_KEY_MAX - 3 - MU_AVG_BITS_MAX);
    }
    err = check_sizes(c, msg);
    if (err != 0) {
        return err;
    }
    if (c->request_ms == 0 || c->request_ms >= c->matchmaking_ms) {
        return mu_err(msg, MUSTER_EINVAL,
                      "the time for an answer (%" PRIu32 " ms) must be shorter than that for "
                      "finding a group (%" PRIu32 " ms), and not zero",
                      c->request_ms, c->matchmaking_ms);
    }
    err = describe(a, msg);
    if (err != 0) {
        return err;
    }
    /* Cut it once for ourselves alone: what cannot be cut now cannot be cut later. */
    all = a->values;
    err = mu_avg_divide_vector(&division, a->tensors, a->tensor_count, &all, 1, c->part_bytes);
    mu_avg_division_fini(&division);
    if (err != 0) {
        return mu_err(msg, err, "the tensors cannot be cut into parts of %" PRIu64 " bytes: %s",
                      c->part_bytes, muster_strerror(err));
    }
    err = set_schema(a);
    if (err != 0) {
        return mu_err(msg, err, "%s", muster_strerror(err));
    }
    return c->power_rank == 0 ? 0 : mu_averager_power_new(a, msg);
}

static int name_handlers(struct mu_averager *a, struct mu_errmsg *msg)
{
    const struct mu_averager_config *c = &a->config;
    const char *averager = c->native ? NATIVE_CLASS : c->averager;
    const char *part = c->native ? "rpc_link" : "rpc_aggregate_part";
    char name[MU_AVG_NAME_MAX];
    int err = mu_avg_handler_format(name, sizeof(name), a->prefix, averager, "rpc_join_group");

    if (err == 0) {
        a->join_name = mu_strndup(name, strlen(name));
        err = mu_avg_handler_format(name, sizeof(name), a->prefix, averager, part);
    }
    if (err == 0) {
        a->part_name = mu_strndup(name, strlen(name));
        err = a->join_name == NULL || a->part_name == NULL ? MUSTER_ENOMEM : 0;
    }
    return err == 0 ? 0
                    : mu_err(msg, err, "the prefix %.80s or the averager's name %.80s: %s",
                             c->prefix, averager, muster_strerror(err));
}

static int serve(struct mu_averager *a, struct mu_errmsg *msg)
{
    int err;

    if (a->config.mode == MU_AVG_CLIENT) {
        return 0;
    }
    a->join_handler =
        (struct mu_peer_items_handler){.name = a->join_name, .opened = mu_averager_on_join};
    a->part_handler = (struct mu_peer_items_handler){
        .name = a->part_name,
        .opened = a->config.native ? mu_averager_on_link : mu_averager_on_part};
    err = mu_peer_items_serve(a->config.calls, &a->join_handler);
    if (err == 0) {
        err = mu_peer_items_serve(a->config.calls, &a->part_handler);
        if (err != 0) {
            mu_peer_items_unserve(&a->join_handler);
        }
    }
    a->serving = err == 0;
    return err == 0 ? 0
                    : mu_err(msg, err, "%s%s",
                             err == MUSTER_EEXIST ? "this peer averages already under " : "serve ",
                             a->join_name);
}

int mu_averager_start(const struct mu_averager_config *config, struct mu_averager **ret,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_averager *a = mu_calloc(1, sizeof(*a));
    int err;

    if (a == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    a->config = *config;
    a->env = mu_peer_host_env(config->host);
    a->self = *mu_peer_host_id(config->host);
    mu_timer_init(&a->timer, on_timer);
    mu_buf_init(&a->told, (size_t)MU_AVG_GATHERED_MAX + MU_AVG_GATHER_MAX);
    mu_list_init(&a->joiners);
    mu_list_init(&a->senders);
    mu_list_init(&a->outs);
    mu_list_init(&a->strangers);
    mu_list_init(&a->lingering);
    /* A bucket of its own: whoever is in it speaks the same wire. */
    (void)snprintf(a->prefix, sizeof(a->prefix), "%s%s", config->prefix,
                   config->native ? MU_AVERAGER_NATIVE_SUFFIX : "");
    a->linger_until = MU_MONO_NEVER;
    err = check(a, reterr_msg);
    err = err != 0 ? err : name_handlers(a, reterr_msg);
    err = err != 0 ? err : serve(a, reterr_msg);
    if (err != 0) {
        free_averager(a);
        return err;
    }
    (void)snprintf(a->bits, sizeof(a->bits), "%s", config->bits);
    *ret = a;
    return 0;
}

void mu_averager_stop(struct mu_averager *a)
{
    mu_mono_t now = mu_env_now(a->env).mono;

    MU_ASSERT(!a->stopping);
    if (a->serving) {
        mu_peer_items_unserve(&a->join_handler);
        mu_peer_items_unserve(&a->part_handler);
    }
    mu_averager_cancel(a);
    a->stopping = true;
    a->linger_until = mu_mono_add_ms(now, a->config.linger_ms);
    mu_env_timer_arm(a->env, &a->timer, now);
}

/* --- steps ------------------------------------------------------------------------------------ */

int mu_averager_step(struct mu_averager *a, struct mu_averager_step *step,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_now now = mu_env_now(a->env);
    uint64_t reserve;
    uint64_t search;
    int err;

    if (a->step != NULL || a->stopping) {
        return mu_err(reterr_msg, MUSTER_EBUSY, "the averager is in a step already");
    }
    if (!(step->weight >= 0 && step->weight <= MU_AVG_WEIGHT_MAX)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "a weight is from 0 to 2^40");
    }
    /* The search leaves time for the all-reduce, up to half of all. */
    reserve = a->config.reduce_ms != 0 && a->config.reduce_ms < step->timeout_ms / 2
                  ? a->config.reduce_ms
                  : step->timeout_ms / 2;
    search = step->timeout_ms - reserve;
    mu_free(a->members);
    mu_free(a->whys);
    a->members = NULL;
    a->whys = NULL;
    a->result = (struct mu_averager_result){0};
    a->begun = now.mono;
    a->until = step->timeout_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now.mono, step->timeout_ms);
    a->refused.len = 0;
    a->candidates = 0;
    a->step = step;
    memcpy(a->result_key, a->key, sizeof(a->key));
    err = mu_averager_match_begin(a, step->user, search, reterr_msg);
    if (err != 0) {
        a->step = NULL;
        return err;
    }
    mu_env_timer_arm(a->env, &a->timer, now.mono);
    return 0;
}

void mu_averager_cancel(struct mu_averager *a)
{
    struct mu_now now = mu_env_now(a->env);

    if (a->match != NULL) {
        mu_matchmaker_cancel(a->match, now);
    } else if (a->round != NULL) {
        mu_reduce_cancel(&a->round->reduce, now);
    }
    mu_averager_native_cancel(a);
    if (a->step != NULL) {
        mu_env_timer_arm(a->env, &a->timer, now.mono);
    }
}

const struct mu_peer_id *mu_averager_self(const struct mu_averager *a)
{
    return &a->self;
}

void mu_averager_look(const struct mu_averager *a, struct mu_averager_look *ret)
{
    *ret = (struct mu_averager_look){.key = a->key, .refused = a->refused, .refusal = a->refusal};
    memcpy(ret->refused_why, a->refused_why, sizeof(ret->refused_why));
    if (a->match != NULL) {
        bool following = a->match->state == MU_MATCHMAKER_FOLLOWING;

        ret->phase = following ? MU_AVERAGER_FOLLOWING : MU_AVERAGER_SEARCHING;
        ret->candidates = (uint32_t)a->match->candidate_count;
        ret->followers = a->match->follower_count;
        ret->leader = a->match->leader;
    } else if (a->round != NULL) {
        ret->phase = MU_AVERAGER_REDUCING;
        ret->parts = (uint32_t)a->round->division.part_count;
        ret->parts_done = a->round->parts_done;
    } else if (a->native != NULL) {
        ret->phase = MU_AVERAGER_REDUCING;
        ret->parts = (uint32_t)a->native->division.part_count;
        ret->parts_done = a->native->averaged;
    }
}
