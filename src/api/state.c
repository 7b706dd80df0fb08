/* The public state download: sharing, and what others are told about shared states. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/state_api.h"
#include "codec/state/hm_trainer.h"
#include "core/alloc.h"
#include "service/base/log.h"

/* --- life ------------------------------------------------------------------------------------- */

void muster_state_config_init(struct muster_state_config *ret, size_t size)
{
    struct mu_state_donor_config d = mu_state_donor_config_defaults();
    struct muster_state_config ours = {
        .listen = mu_listen_default,
        .slots = d.gate.slots,
        .replaced_ms = d.replaced_ms,
    };

    mu_api_give(ret, size, &ours, sizeof(ours));
}

struct state_door {
    struct mu_door door;
    muster_state *state;
    const struct muster_state_config *config;
    struct mu_hm_donor_stats hm;
    const char *prefix;
    double priority;
    bool hidden;
    uint32_t wait_ms;
    struct mu_state_donor_stats stats;
    struct mu_state_transfer *transfers;
    size_t cap;
    size_t count;
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

static void on_placed(void *context, int status, const char *text)
{
    struct state_door *d = context;

    if (status != 0) {
        d->err = mu_err(&d->msg, status, "%s", text);
    }
    mu_door_open(&d->door);
}

/* Waits until a relay leads here, if one is to. */
static void reserve(struct state_door *d)
{
    struct mu_state_peers *peers = d->state->net.peers;

    for (size_t i = 0; d->err == 0 && i < d->config->via_count; i++) {
        d->err = mu_state_peers_via(peers, d->config->via[i], &d->msg);
    }
    if (d->err == 0 && d->config->via_count != 0) {
        mu_state_peers_await(peers, on_placed, d);
    } else {
        mu_door_open(&d->door);
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
    if (d->err == 0) {
        (void)snprintf(s->told, sizeof(s->told), "%s", s->address);
    }
    if (d->err == 0 && d->config->listen != NULL && s->net.peers == NULL &&
        d->config->advertise == NULL) {
        (void)mu_addr_format(mu_state_donor_addr(s->donor), s->told, sizeof(s->told));
    }
    reserve(d);
}

/* NULL: the configuration is valid. */
static const char *find_fault(muster_runtime *rt, const struct muster_state_config *config,
                              enum mu_hm_compression *ret)
{
    if (mu_runtime_is_mine(rt)) {
        return "this call waits: make it on a thread of your own, not the runtime's";
    }
    if (config->slots == 0) {
        return "`slots` must be at least 1";
    }
    if (config->dht != NULL && config->key == NULL) {
        return "`dht` needs a `key`: the nodes of a DHT are peers";
    }
    if (config->sign != NULL && config->key != NULL) {
        return "`sign` cannot be used with `key`: a peer signs with its own key";
    }
    if (config->allow_count != 0 && config->key == NULL) {
        return "`allow` needs a `key`: it names peers by their ids";
    }
    if (config->via_count != 0 && (config->key == NULL || config->listen == NULL)) {
        return "`via` needs a `key` and a `listen`: relays lead peers to each other";
    }
    if (config->hivemind != NULL && config->dht == NULL) {
        return "`hivemind` needs a `dht`, where hivemind's peers find each other";
    }
    *ret = MU_HM_NONE;
    return config->encoding != NULL && !mu_hm_compression_parse(mu_span_str(config->encoding), ret)
               ? "hivemind has no encoding of that name"
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

static int open_state(muster_runtime *rt, const struct muster_state_config *config,
                      muster_state **ret_state)
{
    const struct mu_state_net_terms terms = {.key = config->key,
                                             .sign = config->sign,
                                             .minds = true,
                                             .allow = config->allow,
                                             .allow_count = config->allow_count};
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
    s->near = mu_state_any_is_here(&config->listen, config->listen == NULL ? 0 : 1) ||
              mu_state_any_is_here(config->dht, config->dht_count);
    d.state = s;
    d.err = mu_state_net_open(&s->net, rt, &terms, &d.msg);
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
               strcmp(s->net.transport, "plain") == 0
                   ? " note=\"not encrypted: everyone who can reach the address can read it\""
                   : "");
    }
    *ret_state = s;
    return 0;
}

int muster_state_open(muster_runtime *rt, const struct muster_state_config *given,
                      muster_state **ret_state)
{
    struct muster_state_config config;
    int err = MU_API_TAKE(state_config, &config, given);

    return err != 0 ? err : open_state(rt, &config, ret_state);
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

struct address_door {
    struct mu_door door;
    struct mu_state_peers *peers;
    size_t i;
    char *text;
    size_t cap;
};

static void address_on_loop(struct mu_door *door)
{
    struct address_door *d = MU_CONTAINER_OF(door, struct address_door, door);

    mu_state_peers_address(d->peers, d->i, d->text, d->cap);
    mu_door_open(door);
}

bool muster_state_address_at(muster_state *s, size_t i, char *ret_text, size_t cap)
{
    struct address_door d = {.peers = s->net.peers, .i = i, .text = ret_text, .cap = cap};

    ret_text[0] = '\0';
    if (i == 0 || s->address[0] == '\0') {
        (void)snprintf(ret_text, cap, "%s", i == 0 ? s->address : "");
    } else if (s->net.peers != NULL) {
        mu_door_pass_anywhere(s->rt, &d.door, address_on_loop);
    }
    return ret_text[0] != '\0';
}

const char *muster_state_transport(const muster_state *s)
{
    return s->net.transport;
}

/* --- what is shared changes ------------------------------------------------------------------- */

/* Trainers that join choose by priority and get the epoch, so the two must agree. */
static bool is_for_trainers(const muster_state *s)
{
    const char *averager = s->node.swarm == NULL ? NULL : mu_state_swarm_averager(s->node.swarm);

    return averager != NULL && strcmp(averager, MU_HM_TRAINER) == 0;
}

static void set_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);
    struct mu_state_share *share = mu_state_donor_find(d->state->donor, mu_span_str(d->prefix));

    d->err = share == NULL ? MUSTER_ENOENT : 0;
    if (share != NULL && is_for_trainers(d->state) &&
        d->priority != (double)share->offer.manifest.epoch) {
        d->err = MUSTER_EINVAL;
    } else if (share != NULL) {
        share->priority = d->priority;
        share->hidden = d->hidden;
        if (d->state->node.swarm != NULL) {
            mu_state_swarm_set(d->state->node.swarm, d->prefix, d->priority, d->hidden);
        }
    }
    mu_door_open(door);
}

/* Passes the door from any thread. */
static void pass(muster_state *s, struct state_door *d, void (*run)(struct mu_door *door))
{
    d->state = s;
    mu_door_pass_anywhere(s->rt, &d->door, run);
}

int muster_state_set(muster_state *s, const char *prefix, double priority, bool hidden)
{
    struct state_door d = {.prefix = prefix, .priority = priority, .hidden = hidden};

    if (s->node.swarm != NULL ? !isfinite(priority) : isnan(priority)) {
        return mu_api_error(MUSTER_EINVAL, "a priority must be a number");
    }
    pass(s, &d, set_on_loop);
    return mu_api_error(d.err, d.err == MUSTER_EINVAL
                                   ? "hivemind's trainers need the epoch for a priority"
                                   : "no state is shared under that prefix");
}

struct shared_door {
    struct mu_door door;
    muster_state *state;
    const char *prefix;
    struct muster_state_info *ret;
    int err;
};

static void shared_on_loop(struct mu_door *door)
{
    struct shared_door *d = MU_CONTAINER_OF(door, struct shared_door, door);
    const struct mu_state_share *share =
        mu_state_donor_find(d->state->donor, mu_span_str(d->prefix));

    d->err = share == NULL ? MUSTER_ENOENT : 0;
    if (share != NULL) {
        struct mu_state_entry entry = mu_state_share_entry(share);

        mu_state_info_of(d->ret, &entry, &d->state->net.identity->id);
    }
    mu_door_open(door);
}

int muster_state_shared(muster_state *s, const char *prefix, struct muster_state_info *ret_info)
{
    struct shared_door d = {.state = s, .prefix = prefix, .ret = ret_info};

    mu_door_pass_anywhere(s->rt, &d.door, shared_on_loop);
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
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
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

static void transfers_on_loop(struct mu_door *door)
{
    struct state_door *d = MU_CONTAINER_OF(door, struct state_door, door);

    d->count = mu_state_donor_transfers(d->state->donor, d->transfers, d->cap);
    mu_door_open(door);
}

size_t muster_state_transfers(muster_state *s, struct muster_state_transfer *ret_rows, size_t cap)
{
    struct state_door d = {.cap = cap};

    d.transfers = cap == 0 ? NULL : mu_calloc(cap, sizeof(*d.transfers));
    if (d.transfers == NULL) {
        d.cap = 0;
    }
    pass(s, &d, transfers_on_loop);
    for (size_t i = 0; i < d.cap && i < d.count; i++) {
        struct muster_state_transfer *row = &ret_rows[i];

        *row = (struct muster_state_transfer){
            .bytes = d.transfers[i].bytes,
            .total = d.transfers[i].total,
            .bytes_per_s = (double)d.transfers[i].bytes_per_s,
            .age_ms = d.transfers[i].age_ms,
        };
        (void)snprintf(row->peer, sizeof(row->peer), "%s", d.transfers[i].peer);
        (void)snprintf(row->prefix, sizeof(row->prefix), "%s", d.transfers[i].prefix);
    }
    mu_free(d.transfers);
    return d.cap == 0 && cap != 0 ? 0 : d.count;
}

int muster_state_announce(muster_state *s, muster_store *store, const char *prefix,
                          int64_t timeout_ms)
{
    char key[MU_STATE_PREFIX_MAX + MU_STATE_ADDR_MAX + 32];

    if (s->address[0] == '\0' || strlen(prefix) > MU_STATE_PREFIX_MAX) {
        return mu_api_error(MUSTER_EINVAL,
                            s->address[0] == '\0'
                                ? "the state does not listen, so others cannot load from it"
                                : "the prefix is too long");
    }
    (void)snprintf(key, sizeof(key), "muster-state/%s/%s", prefix, s->address);
    return muster_store_set_leased(store, muster_str(key), muster_str(s->address),
                                   MUSTER_LEASE_SESSION, timeout_ms);
}
