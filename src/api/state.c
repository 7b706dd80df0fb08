/* The public state download: what is shared. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "service/log.h"
#include "service/state_file.h"

#define HASH_THREADS_MAX 8
#define HASH_CHUNKS_MIN  16 /* for which another thread is worth while */

/* --- tensors ---------------------------------------------------------------------------------- */

const char *muster_dtype_name(enum muster_dtype dtype)
{
    return dtype < MUSTER_DTYPE_BOOL || dtype > MUSTER_DTYPE_F6_E3M2
               ? NULL
               : mu_dtype_name((enum mu_dtype)dtype);
}

int mu_state_layout_of(const struct muster_tensor *tensors, size_t count, struct mu_layout *ret,
                       uint8_t ***ret_data, struct mu_errmsg *msg)
{
    uint8_t **data = mu_calloc(count == 0 ? 1 : count, sizeof(*data));
    int err = data == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory") : 0;

    mu_layout_init(ret);
    for (size_t i = 0; err == 0 && i < count; i++) {
        const struct muster_tensor *t = &tensors[i];

        if (t->name == NULL || muster_dtype_name(t->dtype) == NULL ||
            (t->rank != 0 && t->shape == NULL)) {
            err = mu_err(msg, MUSTER_EINVAL, "tensor %zu has no name, no type or no shape", i);
            break;
        }
        err = mu_layout_add(ret, mu_span_str(t->name), (enum mu_dtype)t->dtype, t->shape, t->rank);
        if (err != 0) {
            (void)mu_err(msg, err, "tensor \"%.100s\": %s", t->name, muster_strerror(err));
        } else if (t->data == NULL && ret->tensors[i].len != 0) {
            err = mu_err(msg, MUSTER_EINVAL, "tensor \"%.100s\" has no data", t->name);
        }
        data[i] = t->data;
    }
    if (err != 0) {
        mu_layout_fini(ret);
        mu_free(data);
        return err;
    }
    *ret_data = data;
    return 0;
}

uint64_t muster_tensor_bytes(const struct muster_tensor *tensor)
{
    struct mu_layout layout;
    uint64_t bytes = UINT64_MAX;

    mu_layout_init(&layout);
    if (muster_dtype_name(tensor->dtype) != NULL &&
        mu_layout_add(&layout, MU_SPAN_LIT("t"), (enum mu_dtype)tensor->dtype, tensor->shape,
                      tensor->rank) == 0) {
        bytes = layout.bytes;
    }
    mu_layout_fini(&layout);
    return bytes;
}

/* --- memory that leaves without a copy -------------------------------------------------------- */

struct allocation {
    struct mu_list link;
    struct mu_mapped *mapped;
};

static pthread_mutex_t allocations_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mu_list allocations = {&allocations, &allocations};

void *muster_state_alloc(size_t len)
{
    struct allocation *a = mu_calloc(1, sizeof(*a));
    struct mu_errmsg msg;

    if (a == NULL || len == 0 || mu_mapped_memory(len, &a->mapped, &msg) != 0) {
        mu_free(a);
        return NULL;
    }
    (void)pthread_mutex_lock(&allocations_lock);
    mu_list_push(&allocations, &a->link);
    (void)pthread_mutex_unlock(&allocations_lock);
    return a->mapped->data;
}

void muster_state_free(void *memory)
{
    struct allocation *found = NULL;

    (void)pthread_mutex_lock(&allocations_lock);
    MU_LIST_FOREACH (it, &allocations) {
        struct allocation *a = MU_CONTAINER_OF(it, struct allocation, link);

        if (a->mapped->data == memory) {
            found = a;
            break;
        }
    }
    if (found != NULL) {
        mu_list_remove(&found->link);
    }
    (void)pthread_mutex_unlock(&allocations_lock);
    if (found != NULL) {
        mu_mapped_close(found->mapped);
        mu_free(found);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

struct muster_state_config muster_state_config_defaults(void)
{
    struct mu_state_donor_config d = mu_state_donor_config_defaults();

    return (struct muster_state_config){
        .listen = mu_listen_default,
        .slots = d.gate.slots,
        .replaced_ms = d.replaced_ms,
    };
}

struct state_door {
    struct mu_door door;
    muster_state *state;
    const struct muster_state_config *config;
    struct mu_state_share *share;
    struct mu_hm_snapshot *snapshot;
    struct mu_hm_donor_stats hm;
    const char *prefix;
    double priority;
    bool hidden;
    uint32_t wait_ms;
    struct mu_state_donor_stats stats;
    int err;
    struct mu_errmsg msg;
};

static void on_stopped(void *context)
{
    mu_door_open(context);
}

struct end_door {
    struct mu_door door;
    struct mu_state_donor *donor;
};

static void stop_donor(struct mu_door *door)
{
    struct end_door *d = MU_CONTAINER_OF(door, struct end_door, door);

    mu_state_donor_on_stopped(d->donor, on_stopped, door);
    mu_state_donor_stop(d->donor);
}

static void free_donor(struct mu_door *door)
{
    mu_state_donor_free(MU_CONTAINER_OF(door, struct end_door, door)->donor);
    mu_door_open(door);
}

void mu_state_donor_end(muster_runtime *rt, struct mu_state_donor *donor)
{
    struct end_door d = {.donor = donor};

    if (donor != NULL) {
        mu_door_pass(rt, &d.door, stop_donor);
        mu_door_pass(rt, &d.door, free_donor);
    }
}

static void start_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);
    struct mu_state_donor_config config = mu_state_donor_config_defaults();
    muster_state *s = d->state;

    config.gate.slots = d->config->slots;
    config.gate.bytes_per_s = d->config->rate_bytes;
    config.replaced_ms = d->config->replaced_ms;
    d->err = mu_state_net_listen(&s->net, d->config->listen, d->config->advertise, &config,
                                 &s->donor, s->address, sizeof(s->address), &d->msg);
    mu_door_open(door);
}

/* NULL: it can be. */
static const char *find_fault(muster_runtime *rt, const struct muster_state_config *config,
                              enum mu_hm_compression *ret)
{
    if (mu_runtime_is_mine(rt)) {
        return "not on the runtime's own thread";
    }
    if (config->slots == 0) {
        return "a donor without slots serves nobody";
    }
    if (config->dht != NULL && config->key == NULL) {
        return "who is in a DHT is a peer, and needs a key";
    }
    if (config->hivemind != NULL && config->dht == NULL) {
        return "hivemind's peers find each other in a DHT";
    }
    *ret = MU_HM_NONE;
    return config->encoding != NULL && !mu_hm_compression_parse(mu_span_str(config->encoding), ret)
               ? "no encoding of hivemind's has that name"
               : NULL;
}

static int join(muster_state *s, const struct muster_state_config *config, struct mu_errmsg *msg)
{
    struct mu_state_node_terms terms = {
        .dht = config->dht,
        .dht_count = config->dht_count,
        .averager = config->hivemind,
        .client = config->listen == NULL,
        .slots = config->slots,
    };

    return config->dht == NULL ? 0 : mu_state_node_open(&s->node, &s->net, &terms, msg);
}

int muster_state_open(muster_runtime *rt, const struct muster_state_config *config,
                      muster_state **ret_state)
{
    struct state_door d = {.config = config};
    enum mu_hm_compression compression;
    const char *fault = find_fault(rt, config, &compression);
    muster_state *s;

    if (fault != NULL) {
        return mu_api_error(MUSTER_EINVAL, fault);
    }
    s = mu_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    s->rt = rt;
    s->compression = compression;
    s->replaced_ms = config->replaced_ms;
    d.state = s;
    d.err = mu_state_net_open(&s->net, rt, config->tls, config->key, false, &d.msg);
    if (d.err == 0) {
        mu_door_pass(rt, &d.door, start_on_loop);
        d.err = d.err != 0 ? d.err : join(s, config, &d.msg);
        if (d.err != 0) {
            mu_state_donor_end(rt, s->donor);
            mu_state_net_close(&s->net);
        }
    }
    if (d.err != 0) {
        mu_free(s);
        return mu_api_error(d.err, d.msg.text);
    }
    if (config->listen != NULL) {
        mu_log(MUSTER_LOG_INFO, "STATE-SERVING", "address=%s transport=%s%s", s->address,
               s->net.transport,
               s->net.env == rt->env && rt->locked.tls == NULL
                   ? " note=\"not encrypted: who reaches the address reads it\""
                   : "");
    }
    *ret_state = s;
    return 0;
}

void muster_state_close(muster_state *s)
{
    if (s == NULL || mu_runtime_is_mine(s->rt)) {
        return;
    }
    mu_state_node_close(&s->node);
    mu_state_donor_end(s->rt, s->donor);
    mu_state_net_close(&s->net);
    mu_free(s);
}

const char *muster_state_address(const muster_state *s)
{
    return s->address;
}

const char *muster_state_transport(const muster_state *s)
{
    return s->net.transport;
}

/* --- sharing ---------------------------------------------------------------------------------- */

struct hashing {
    pthread_t thread;
    struct mu_state_share *share;
    uint32_t first;
    uint32_t count;
    int err;
};

static void *run_hashing(void *context)
{
    struct hashing *h = context;

    h->err = mu_state_share_hash(h->share, h->first, h->count);
    return NULL;
}

/* On this thread and as many others as there are cores. */
int mu_state_hash_all(struct mu_state_share *share)
{
    struct hashing parts[HASH_THREADS_MAX] = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t most = share->chunks / HASH_CHUNKS_MIN + 1;
    uint32_t count = cores < 1 ? 1 : cores > HASH_THREADS_MAX ? HASH_THREADS_MAX : (uint32_t)cores;
    int err = 0;

    count = count < most ? count : most;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = (uint32_t)((uint64_t)share->chunks * i / count);
        uint32_t end = (uint32_t)((uint64_t)share->chunks * (i + 1) / count);

        parts[i] = (struct hashing){.share = share, .first = first, .count = end - first};
        if (i == 0 || pthread_create(&parts[i].thread, NULL, run_hashing, &parts[i]) != 0) {
            parts[i].thread = pthread_self(); /* It is done here. */
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (pthread_equal(parts[i].thread, pthread_self()) != 0) {
            (void)run_hashing(&parts[i]);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (pthread_equal(parts[i].thread, pthread_self()) == 0) {
            (void)pthread_join(parts[i].thread, NULL);
        }
        err = err != 0 ? err : parts[i].err;
    }
    return err;
}

static void put_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);
    struct mu_state_swarm *swarm = d->state->node.swarm;

    d->msg.text[0] = '\0';
    d->err = swarm == NULL ? 0 : mu_state_swarm_ready(swarm, d->prefix, &d->msg);
    d->err = d->err != 0 ? d->err : mu_state_donor_put(d->state->donor, d->share);
    if (d->err != 0) {
        d->share->released = NULL;
    } else if (swarm != NULL) {
        mu_state_swarm_put(swarm, d->prefix, d->snapshot, d->share->priority, d->share->hidden,
                           d->state->replaced_ms);
    }
    mu_hm_snapshot_unref(d->snapshot);
    mu_state_share_drop(d->share);
    mu_door_open(door);
}

/* Takes over `home` if it returns 0. */
static int share_it(muster_state *s, const struct muster_state_source *source,
                    const struct mu_layout *layout, uint8_t *const *tensors, uint8_t *data,
                    struct mu_span metadata, struct mu_state_home *home)
{
    struct state_door d = {.state = s, .prefix = source->prefix};
    struct mu_state_share_spec spec = {
        .prefix = mu_span_str(source->prefix),
        .priority = source->priority,
        .hidden = source->hidden,
        .epoch = source->epoch,
        .step = source->step,
        .metadata = metadata,
        .layout = layout,
        .tensors = tensors,
        .data = data,
    };
    int err = mu_state_share_new(&spec, &d.share, &d.msg);

    if (err != 0) {
        return mu_api_error(err, d.msg.text);
    }
    d.share->owner = home;
    d.share->read = home->mapped != NULL ? mu_state_home_read : NULL;
    err = mu_state_hash_all(d.share);
    if (err != 0) {
        (void)mu_err(&d.msg, err, "cannot read what is to be shared: %s", muster_strerror(err));
    } else {
        err = mu_state_share_seal(d.share, s->net.identity, &d.msg);
    }
    if (err == 0 && s->node.swarm != NULL && mu_state_swarm_averager(s->node.swarm) != NULL) {
        err = mu_state_snapshot_of(d.share, s->compression, &d.snapshot, &d.msg);
    }
    if (err != 0) {
        mu_state_share_drop(d.share);
        return mu_api_error(err, d.msg.text);
    }
    d.share->released = mu_state_home_released;
    mu_door_pass(s->rt, &d.door, put_on_loop);
    return mu_api_error(d.err, d.msg.text[0] != '\0' ? d.msg.text : NULL);
}

static int check_source(muster_state *s, const struct muster_state_source *source)
{
    if (mu_runtime_is_mine(s->rt)) {
        return mu_api_error(MUSTER_EINVAL, "not on the runtime's own thread");
    }
    if (source->prefix == NULL) {
        return mu_api_error(MUSTER_EINVAL, "a state needs a prefix under which it is found");
    }
    if (s->node.swarm != NULL && !isfinite(source->priority)) {
        return mu_api_error(MUSTER_EINVAL, "nobody in a swarm believes such a priority");
    }
    return 0;
}

static struct mu_state_home *new_home(const struct muster_state_source *source)
{
    struct mu_state_home *home = mu_calloc(1, sizeof(*home));

    if (home != NULL) {
        home->released = source->released;
        home->context = source->context;
    }
    return home;
}

int muster_state_share(muster_state *s, const struct muster_state_source *source)
{
    struct mu_state_home *home;
    struct mu_layout layout;
    struct mu_errmsg msg;
    uint8_t **tensors;
    int err = check_source(s, source);

    if (err != 0) {
        return err;
    }
    err = mu_state_layout_of(source->tensors, source->tensor_count, &layout, &tensors, &msg);
    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    home = new_home(source);
    err = home == NULL ? mu_api_error(MUSTER_ENOMEM, NULL)
                       : share_it(s, source, &layout, tensors, NULL,
                                  mu_span(source->metadata.data, source->metadata.len), home);
    if (err != 0) {
        mu_free(home);
    }
    mu_layout_fini(&layout);
    mu_free(tensors);
    return err;
}

/* Reads the head of a mapped file without touching the mapping. */
static int read_head(const struct mu_mapped *m, struct mu_buf *out, struct mu_errmsg *msg)
{
    uint8_t prefix[8];
    size_t len = 0;
    int err = m->len < sizeof(prefix) ? 0 : mu_mapped_read(m, 0, prefix, sizeof(prefix));

    if (err == 0) {
        err = mu_state_file_head_len(mu_span(prefix, m->len < sizeof(prefix) ? 0 : sizeof(prefix)),
                                     m->len, &len, msg);
        if (err != 0) {
            return err;
        }
        err = mu_buf_reserve(out, len);
    }
    if (err == 0) {
        err = mu_mapped_read(m, 0, mu_buf_grow(out, len), len);
    }
    return err == 0 ? 0 : mu_err(msg, err, "%s", muster_strerror(err));
}

/* Who encodes a file's bytes looks at them, and must not do so while others cut the file short. */
static int bring_home(muster_state *s, struct mu_state_home *home, size_t head, uint64_t bytes,
                      struct mu_errmsg *msg)
{
    int err;

    if (s->node.swarm == NULL || mu_state_swarm_averager(s->node.swarm) == NULL) {
        return 0;
    }
    home->memory = bytes > SIZE_MAX - 1 ? NULL : mu_malloc((size_t)bytes + 1);
    if (home->memory == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "no memory for a state of %llu bytes",
                      (unsigned long long)bytes);
    }
    err = mu_mapped_read(home->mapped, head, home->memory, (size_t)bytes);
    if (err != 0) {
        return mu_err(msg, err, "cannot read it: %s", muster_strerror(err));
    }
    mu_mapped_close(home->mapped);
    home->mapped = NULL;
    return 0;
}

int muster_state_share_file(muster_state *s, const char *path,
                            const struct muster_state_source *source)
{
    struct mu_state_home *home;
    struct mu_layout layout;
    struct mu_errmsg msg;
    struct mu_buf head;
    struct mu_buf metadata;
    int err = check_source(s, source);

    if (err != 0) {
        return err;
    }
    home = new_home(source);
    if (home == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    mu_layout_init(&layout);
    mu_buf_init(&head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    mu_buf_init(&metadata, MU_STATE_METADATA_MAX);
    err = mu_mapped_open(path, &home->mapped, &msg);
    if (err == 0) {
        err = read_head(home->mapped, &head, &msg);
        err = err != 0 ? err
                       : mu_state_file_parse(mu_buf_span(&head), home->mapped->len, &layout,
                                             &metadata, &msg);
        err = err != 0 ? err : bring_home(s, home, head.len, layout.bytes, &msg);
        if (err != 0) {
            mu_err_prefix(&msg, "%.120s", path);
        }
    }
    if (err != 0) {
        err = mu_api_error(err, msg.text);
    } else {
        struct mu_span own = mu_span(source->metadata.data, source->metadata.len);

        home->data_at = head.len;
        err = share_it(s, source, &layout, NULL,
                       home->mapped != NULL ? home->mapped->data + head.len : home->memory,
                       own.len != 0 ? own : mu_buf_span(&metadata), home);
    }
    if (err != 0) {
        mu_mapped_close(home->mapped);
        mu_free(home->memory);
        mu_free(home);
    }
    mu_layout_fini(&layout);
    mu_buf_fini(&head);
    mu_buf_fini(&metadata);
    return err;
}

/* --- what is shared changes ------------------------------------------------------------------- */

static void set_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);
    struct mu_state_share *share = mu_state_donor_find(d->state->donor, mu_span_str(d->prefix));

    d->err = share == NULL ? MUSTER_ENOENT : 0;
    if (share != NULL) {
        share->priority = d->priority;
        share->hidden = d->hidden;
        if (d->state->node.swarm != NULL) {
            mu_state_swarm_set(d->state->node.swarm, d->prefix, d->priority, d->hidden);
        }
    }
    mu_door_open(door);
}

/* The same from any thread. */
static void pass(muster_state *s, struct state_door *d, void (*run)(struct mu_door *door))
{
    d->state = s;
    if (mu_runtime_is_mine(s->rt)) {
        (void)pthread_mutex_init(&d->door.lock, NULL);
        (void)pthread_cond_init(&d->door.cond, NULL);
        run(&d->door);
        (void)pthread_cond_destroy(&d->door.cond);
        (void)pthread_mutex_destroy(&d->door.lock);
    } else {
        mu_door_pass(s->rt, &d->door, run);
    }
}

int muster_state_set(muster_state *s, const char *prefix, double priority, bool hidden)
{
    struct state_door d = {.prefix = prefix, .priority = priority, .hidden = hidden};

    if (s->node.swarm != NULL ? !isfinite(priority) : isnan(priority)) {
        return mu_api_error(MUSTER_EINVAL, "a priority is a number");
    }
    pass(s, &d, set_on_loop);
    return mu_api_error(d.err, "no state is shared under that prefix");
}

static void unshare_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);
    struct mu_state_share *share = mu_state_donor_find(d->state->donor, mu_span_str(d->prefix));

    if (share == NULL) {
        d->err = MUSTER_ENOENT;
        mu_door_open(door);
        return;
    }
    ((struct mu_state_home *)share->owner)->waiter = door;
    if (d->state->node.swarm != NULL) {
        mu_state_swarm_withdraw(d->state->node.swarm, d->prefix, d->wait_ms);
    }
    mu_state_donor_withdraw(d->state->donor, share, d->wait_ms);
}

int muster_state_unshare(muster_state *s, const char *prefix, uint32_t wait_ms)
{
    struct state_door d = {.state = s, .prefix = prefix, .wait_ms = wait_ms};

    if (mu_runtime_is_mine(s->rt)) {
        return mu_api_error(MUSTER_EINVAL, "not on the runtime's own thread");
    }
    mu_door_pass(s->rt, &d.door, unshare_on_loop);
    return mu_api_error(d.err, "no state is shared under that prefix");
}

static void stats_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);

    mu_state_donor_stats(d->state->donor, &d->stats);
    if (d->state->node.swarm != NULL) {
        mu_state_swarm_stats(d->state->node.swarm, &d->hm);
    }
    mu_door_open(door);
}

void muster_state_stats(muster_state *s, struct muster_state_stats *ret_stats)
{
    struct state_door d = {0};

    pass(s, &d, stats_on_loop);
    *ret_stats = (struct muster_state_stats){
        .downloads = d.stats.downloads,
        .turned_away = d.stats.turned_away,
        .chunks = d.stats.chunks,
        .bytes = d.stats.bytes,
        .active = d.stats.active,
        .hivemind_downloads = d.hm.downloads,
        .hivemind_completed = d.hm.completed,
        .declared = d.hm.declared,
    };
}

int muster_state_announce(muster_state *s, muster_store *store, const char *prefix,
                          int64_t timeout_ms)
{
    char key[MU_STATE_PREFIX_MAX + MU_STATE_ADDR_MAX + 32];

    if (s->address[0] == '\0' || strlen(prefix) > MU_STATE_PREFIX_MAX) {
        return mu_api_error(MUSTER_EINVAL, s->address[0] == '\0'
                                               ? "it listens nowhere, so nobody can come"
                                               : "that prefix is too long");
    }
    (void)snprintf(key, sizeof(key), "muster-state/%s/%s", prefix, s->address);
    return muster_store_set_leased(store, muster_str(key), muster_str(s->address),
                                   MUSTER_LEASE_SESSION, timeout_ms);
}
