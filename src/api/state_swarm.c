/* The public state download in a swarm: a node of its DHT, and hivemind's peers. */
#include <stdio.h>
#include <string.h>

#include "api/state_api.h"
#include "core/alloc.h"

#define PEERS_MAX 64

/* --- a node of the DHT ------------------------------------------------------------------------ */

struct node_door {
    struct mu_door door;
    struct mu_state_node *node;
    struct mu_state_net *net;
    const struct mu_state_node_terms *terms;
    struct mu_peer_id first; /* of the peers through which we join */
    int err;
    struct mu_errmsg *msg;
};

static void open_waiter(struct mu_state_node *node)
{
    struct mu_door *waiter = node->waiter;

    node->waiter = NULL;
    if (waiter != NULL) {
        mu_door_open(waiter);
    }
}

static void on_joined(void *context, int status)
{
    struct mu_state_node *node = context;

    node->joined = status;
    if (status != 0 && node->waiter != NULL) {
        const struct node_door *d = MU_CONTAINER_OF(node->waiter, struct node_door, door);
        const char *why = mu_state_peers_why(d->net->peers, &d->first);

        (void)mu_err(d->msg, status, "cannot join the DHT: %s",
                     why[0] != '\0' ? why : muster_strerror(status));
    }
    open_waiter(node);
}

static void on_stopped(void *context)
{
    open_waiter(context);
}

static int read_peers(struct node_door *d, struct mu_peer_id *peers)
{
    for (size_t i = 0; i < d->terms->dht_count; i++) {
        struct mu_addr addr;
        int err = mu_state_peers_resolve(d->net->peers, d->terms->dht[i], &addr, d->msg);

        err = err != 0 ? err : mu_peer_id_parse(&peers[i], addr.host, d->msg);
        if (err != 0) {
            return err;
        }
    }
    return 0;
}

static void open_on_loop(struct mu_door *door)
{
    struct node_door *d = MU_CONTAINER_OF(door, struct node_door, door);
    struct mu_state_swarm_config config = mu_state_swarm_config_defaults();
    struct mu_peer_id peers[PEERS_MAX];

    d->err = read_peers(d, peers);
    if (d->err == 0) {
        d->first = d->terms->dht_count != 0 ? peers[0] : d->first;
        config.host = mu_state_peers_host(d->net->peers);
        config.peers = peers;
        config.peer_count = d->terms->dht_count;
        config.client = d->terms->client;
        config.averager = d->terms->averager;
        config.slots = d->terms->slots != 0 ? d->terms->slots : config.slots;
        config.op_ms = d->terms->op_ms != 0 ? d->terms->op_ms : config.op_ms;
        config.joined = on_joined;
        config.stopped = on_stopped;
        config.context = d->node;
        d->node->waiter = door;
        d->err = mu_state_swarm_start(&config, &d->node->swarm, d->msg);
    }
    if (d->err != 0) {
        d->node->waiter = NULL;
        mu_door_open(door);
    }
}

int mu_state_node_open(struct mu_state_node *node, struct mu_state_net *net,
                       const struct mu_state_node_terms *terms, struct mu_errmsg *msg)
{
    struct node_door d = {.node = node, .net = net, .terms = terms, .msg = msg};

    *node = (struct mu_state_node){.rt = net->rt};
    if (terms->dht_count > PEERS_MAX || net->peers == NULL) {
        return mu_err(msg, MUSTER_EINVAL,
                      "joining a DHT needs a key, and at most %d nodes to join through", PEERS_MAX);
    }
    mu_door_pass(net->rt, &d.door, open_on_loop);
    if (d.err == 0 && node->joined != 0) {
        mu_state_node_close(node);
        d.err = node->joined;
    }
    return d.err;
}

static void close_on_loop(struct mu_door *door)
{
    struct node_door *d = MU_CONTAINER_OF(door, struct node_door, door);

    d->node->waiter = door;
    mu_state_swarm_stop(d->node->swarm);
}

void mu_state_node_close(struct mu_state_node *node)
{
    struct node_door d = {.node = node};

    if (node->swarm != NULL) {
        mu_door_pass(node->rt, &d.door, close_on_loop);
        node->swarm = NULL;
    }
}

/* --- what hivemind's peers get ---------------------------------------------------------------- */

struct snapshot_home {
    struct mu_state_share *share;
    struct mu_span *values;
    struct mu_buf metadata;
};

static void free_snapshot_home(struct snapshot_home *home)
{
    mu_free(home->values);
    mu_buf_fini(&home->metadata);
    mu_free(home);
}

static void on_snapshot_released(void *context)
{
    struct snapshot_home *home = context;

    mu_state_share_drop(home->share);
    free_snapshot_home(home);
}

int mu_state_snapshot_of(struct mu_state_share *share, enum mu_hm_compression compression,
                         struct mu_hm_snapshot **ret, struct mu_errmsg *msg)
{
    const struct mu_state_manifest *m = &share->offer.manifest;
    struct snapshot_home *home = mu_calloc(1, sizeof(*home));
    struct mu_hm_snapshot_config config = {.release = on_snapshot_released, .context = home};
    int err;

    if (home == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    mu_buf_init(&home->metadata, MU_STATE_METADATA_MAX + 64);
    home->values = mu_calloc(m->layout.count + 1, sizeof(*home->values));
    err = home->values == NULL
              ? MUSTER_ENOMEM
              : mu_hm_metadata_tell_epoch(mu_buf_span(&m->metadata), m->epoch, &home->metadata);
    if (err != 0) {
        (void)mu_err(msg, err, "cannot encode the metadata for hivemind's peers: %s",
                     muster_strerror(err));
    } else {
        for (size_t i = 0; i < m->layout.count; i++) {
            home->values[i] = mu_state_share_tensor(share, i);
        }
        config.state = (struct mu_hm_state_config){
            .layout = &m->layout,
            .values = home->values,
            .metadata = mu_buf_span(&home->metadata),
            .compression = compression,
        };
        err = mu_hm_snapshot_new(&config, ret, msg);
        if (err != 0) {
            mu_err_prefix(msg, "for hivemind's peers");
        }
    }
    if (err != 0) {
        free_snapshot_home(home);
        return err;
    }
    home->share = mu_state_share_hold(share);
    return 0;
}

/* --- loading ---------------------------------------------------------------------------------- */

static void take_swarm_rows(muster_state_loading *g)
{
    struct mu_state_swarm_row row;

    for (size_t i = 0; mu_state_swarm_load_row(g->swarm_load, i, &row); i++) {
        struct muster_state_row *to = mu_state_loading_row(g);

        if (to != NULL) {
            *to = (struct muster_state_row){.status = row.status, .hivemind = row.status == 0};
            to->info.priority = row.priority;
            (void)snprintf(to->info.prefix, sizeof(to->info.prefix), "%s", g->config.prefix);
            (void)snprintf(to->donor, sizeof(to->donor), "%s", row.donor);
            (void)snprintf(to->why, sizeof(to->why), "%s", row.text);
        }
    }
}

static void on_ended(void *context, int status, const char *text, struct mu_state_share *share)
{
    muster_state_loading *g = context;

    g->loader = mu_state_swarm_load_native(g->swarm_load);
    g->config.ended(context, status, text, share);
    (void)mu_state_swarm_load_report(g->swarm_load, &g->report);
    if (g->rows != NULL) {
        take_swarm_rows(g);
    } else if (status == 0 && share == NULL) {
        mu_state_swarm_load_take(g->swarm_load, &g->loaded, &g->loaded_priority);
        g->has_loaded = true;
    }
}

int mu_state_loading_in_swarm(muster_state_loading *g, const char *const *donors,
                              size_t donor_count, struct mu_errmsg *msg)
{
    struct mu_state_swarm_load_config config = {
        .swarm = g->swarm,
        .env = g->by->env,
        .native = g->config,
        .bytes_max = g->target.bytes_max,
        .donors = donors,
        .donor_count = donor_count,
        .expected = g->target.in_place ? &g->target.expected : NULL,
        .ended = on_ended,
        .closed = g->config.closed,
    };

    if (g->target.file != NULL) {
        mu_state_stream_file_init(&g->stream, &g->target);
        config.sink = &g->stream.sink;
        config.bytes_max = g->target.bytes_max != 0 ? g->target.bytes_max : UINT64_MAX;
    }
    return mu_state_swarm_load_start(&config, &g->swarm_load, msg);
}

/* Names tensors that came without names. */
static int name_tensors(const struct mu_layout *from, struct mu_layout *to)
{
    int err = 0;

    for (size_t i = 0; err == 0 && i < from->count; i++) {
        struct mu_span name = mu_layout_name(from, i);
        char number[32];

        if (name.len == 0) {
            (void)snprintf(number, sizeof(number), "tensor.%zu", i);
            name = mu_span_str(number);
        }
        err = mu_layout_add(to, name, from->tensors[i].dtype, mu_layout_shape(from, i),
                            from->tensors[i].rank);
    }
    return err;
}

static uint64_t epoch_of(const muster_state_loading *g)
{
    uint64_t epoch;

    if (mu_hm_metadata_epoch(mu_buf_span(&g->loaded.metadata), &epoch) == 0) {
        return epoch;
    }
    return g->loaded_priority >= 1 && g->loaded_priority < 1e18 ? (uint64_t)g->loaded_priority : 0;
}

/* Hashes the bytes in memory, or takes the hashes of those that went into the file. */
static int hash(muster_state_loading *g, struct mu_state_share *share)
{
    struct mu_span leaves;
    int err;

    if (g->target.file == NULL) {
        return mu_state_hash_all(share);
    }
    err = mu_state_stream_file_leaves(&g->stream, &leaves);
    return err != 0 ? err : mu_state_share_set_leaves(share, leaves);
}

/* Makes a share of what the donor's messages were put together to. */
static int make_share(muster_state_loading *g, struct mu_state_share **ret, struct mu_errmsg *msg)
{
    struct mu_state_share_spec spec = {
        .prefix = mu_span_str(g->config.prefix),
        .priority = g->loaded_priority,
        .epoch = epoch_of(g),
        .metadata = mu_buf_span(&g->loaded.metadata),
        .tensors = g->loaded.values,
    };
    struct mu_layout layout;
    int err;

    mu_layout_init(&layout);
    err = name_tensors(&g->loaded.layout, &layout);
    spec.layout = &layout;
    err = err != 0 ? mu_err(msg, err, "%s", muster_strerror(err))
                   : mu_state_share_new(&spec, ret, msg);
    mu_layout_fini(&layout);
    if (err != 0) {
        return err;
    }
    err = hash(g, *ret);
    err = err != 0 ? mu_err(msg, err, "%s", muster_strerror(err))
                   : mu_state_share_seal(*ret, g->by->identity, msg);
    if (err != 0) {
        mu_state_share_drop(*ret);
    }
    return err;
}

/* In place, it is copied once all of it has come. */
static int move_to_target(muster_state_loading *g, struct mu_state_share *share,
                          struct mu_errmsg *msg)
{
    struct mu_state_plan plan = {.offer = &share->offer};
    struct mu_state_segment *from = share->segments;
    int err = mu_state_target_accept(&g->target, &plan, msg);

    if (err != 0) {
        return err;
    }
    share->segments = plan.segments;
    share->segment_count = plan.segment_count;
    /* Each tensor is in one piece on both sides. */
    for (size_t i = 0; i < share->offer.manifest.layout.count; i++) {
        struct mu_span to = mu_state_share_tensor(share, i);

        if (to.len != 0) {
            memcpy((void *)(uintptr_t)to.data, g->loaded.values[i], to.len);
        }
    }
    mu_free(from);
    share->released = plan.released;
    share->owner = plan.owner;
    mu_hm_loaded_fini(&g->loaded);
    return 0;
}

/* The bytes are in the file: completes it. */
static int complete_file(muster_state_loading *g, struct mu_state_share *share,
                         struct mu_errmsg *msg)
{
    struct mu_state_home *home = mu_calloc(1, sizeof(*home));
    int err = home == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory")
                           : mu_state_stream_file_finish(&g->stream, &share->offer.manifest,
                                                         &home->mapped, &home->data_at, msg);

    if (err != 0) {
        mu_free(home);
        return err;
    }
    if (share->segment_count != 0) {
        share->segments[0].data = home->mapped->data + home->data_at;
    }
    share->read = mu_state_home_read;
    share->released = mu_state_home_released;
    share->owner = home;
    mu_hm_loaded_fini(&g->loaded);
    return 0;
}

static int keep_in_memory(muster_state_loading *g, struct mu_state_share *share,
                          struct mu_errmsg *msg)
{
    struct mu_state_home *home = mu_calloc(1, sizeof(*home));

    if (home != NULL) {
        home->loaded = mu_calloc(1, sizeof(*home->loaded));
    }
    if (home == NULL || home->loaded == NULL) {
        mu_free(home);
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    *home->loaded = g->loaded;
    share->owner = home;
    share->released = mu_state_home_released;
    return 0;
}

struct loading_door {
    struct mu_door door;
    muster_state_loading *g;
};

/* From now on others can load it here; a failure does no harm. */
static void add_on_loop(struct mu_door *door)
{
    muster_state_loading *g = MU_CONTAINER_OF(door, struct loading_door, door)->g;

    (void)mu_state_donor_add(g->config.donor, g->share);
    mu_door_open(door);
}

int mu_state_loading_settle(muster_state_loading *g, struct mu_errmsg *msg)
{
    struct mu_state_share *share;
    struct mu_state_entry entry;
    int err = make_share(g, &share, msg);

    if (err != 0) {
        return err;
    }
    err = g->target.file != NULL ? complete_file(g, share, msg)
          : g->target.in_place   ? move_to_target(g, share, msg)
                                 : keep_in_memory(g, share, msg);
    if (err != 0) {
        mu_state_share_drop(share);
        return err;
    }
    entry = mu_state_share_entry(share);
    mu_state_info_of(&g->info, &entry, NULL);
    g->last = (struct muster_state_progress){
        .info = &g->info,
        .bytes = entry.bytes,
        .total = entry.bytes,
        .resumed = g->stream.same,
        .donors = 1,
        .hivemind = true,
    };
    g->has_loaded = false;
    g->share = share;
    if (g->keep && g->config.donor != NULL) {
        struct loading_door d = {.g = g};

        mu_door_pass(g->rt, &d.door, add_on_loop);
    }
    return 0;
}
