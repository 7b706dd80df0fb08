#include "service/state/swarm.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/peer/kad.h"
#include "service/base/log.h"

#define NAME_MAX_LEN 512 /* of a handler's name */

/* What is shared under a prefix. The entry stays when nothing is shared any more. */
struct entry {
    struct mu_list link;
    struct mu_state_swarm *swarm;
    char *prefix;
    struct mu_hm_donor *donor;
};

struct mu_state_swarm {
    struct mu_state_swarm_config config;
    char *averager;
    struct mu_env *env;
    struct mu_kad *kad;
    struct mu_peer_calls *calls;
    struct mu_dht_service *dht;
    struct mu_dht_owner_validator validator;
    struct mu_dht_wish join;
    struct mu_list entries;
    struct mu_timer timer; /* for the end, when there is nothing else to wait for */
    bool stopping;
};

struct mu_state_swarm_config mu_state_swarm_config_defaults(void)
{
    struct mu_hm_donor_config donor = mu_hm_donor_config_defaults();

    return (struct mu_state_swarm_config){
        .slots = donor.slots,
        .declare_ms = donor.declare_ms,
        .op_ms = 10000,
    };
}

/* --- sharing ---------------------------------------------------------------------------------- */

static struct entry *find_entry(struct mu_state_swarm *s, const char *prefix)
{
    MU_LIST_FOREACH (it, &s->entries) {
        struct entry *e = MU_CONTAINER_OF(it, struct entry, link);

        if (strcmp(e->prefix, prefix) == 0) {
            return e;
        }
    }
    return NULL;
}

static void stop_dht_later(struct mu_state_swarm *s)
{
    mu_env_timer_arm(s->env, &s->timer, mu_env_now(s->env).mono);
}

static void on_donor_stopped(void *context)
{
    struct entry *e = context;
    struct mu_state_swarm *s = e->swarm;

    mu_list_remove(&e->link);
    mu_free(e->prefix);
    mu_free(e);
    if (mu_list_empty(&s->entries)) {
        stop_dht_later(s);
    }
}

static int start_donor(struct entry *e, struct mu_errmsg *reterr_msg)
{
    struct mu_hm_donor_config config = mu_hm_donor_config_defaults();
    struct mu_state_swarm *s = e->swarm;
    char name[NAME_MAX_LEN];

    config.calls = s->calls;
    config.dht = s->dht;
    config.self = *mu_peer_host_id(s->config.host);
    config.prefix = e->prefix;
    config.slots = s->config.slots;
    config.declare_ms = s->config.declare_ms;
    config.allowed = false;
    config.stopped = on_donor_stopped;
    config.context = e;
    if (s->averager != NULL) {
        if (mu_hm_handler_name(name, sizeof(name), e->prefix, s->averager) != 0) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "the averager's name is too long");
        }
        config.name = name;
    }
    return mu_hm_donor_start(s->env, &config, &e->donor, reterr_msg);
}

int mu_state_swarm_ready(struct mu_state_swarm *s, const char *prefix, struct mu_errmsg *reterr_msg)
{
    struct mu_dht_id key;
    struct entry *e;
    int err;

    if (find_entry(s, prefix) != NULL) {
        return 0;
    }
    if (mu_hm_all_averagers(prefix, &key) == MUSTER_EINVAL) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "in a swarm a prefix must not be empty or contain a dot");
    }
    e = mu_calloc(1, sizeof(*e));
    if (e != NULL) {
        e->swarm = s;
        e->prefix = mu_strndup(prefix, strlen(prefix));
    }
    err = e == NULL || e->prefix == NULL ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory")
                                         : start_donor(e, reterr_msg);
    if (err != 0) {
        mu_free(e == NULL ? NULL : e->prefix);
        mu_free(e);
        return err;
    }
    mu_list_push(&s->entries, &e->link);
    return 0;
}

void mu_state_swarm_put(struct mu_state_swarm *s, const char *prefix,
                        struct mu_hm_snapshot *snapshot, double priority, bool hidden,
                        uint32_t wait_ms)
{
    struct entry *e = find_entry(s, prefix);

    MU_ASSERT(e != NULL && (snapshot != NULL) == (s->averager != NULL));
    mu_hm_donor_set_priority(e->donor, priority);
    mu_hm_donor_replace(e->donor, snapshot, wait_ms);
    mu_hm_donor_set_allowed(e->donor, !hidden);
}

void mu_state_swarm_set(struct mu_state_swarm *s, const char *prefix, double priority, bool hidden)
{
    struct entry *e = find_entry(s, prefix);

    if (e != NULL) {
        mu_hm_donor_set_priority(e->donor, priority);
        mu_hm_donor_set_allowed(e->donor, !hidden);
    }
}

void mu_state_swarm_withdraw(struct mu_state_swarm *s, const char *prefix, uint32_t wait_ms)
{
    struct entry *e = find_entry(s, prefix);

    if (e != NULL) {
        mu_hm_donor_set_allowed(e->donor, false);
        mu_hm_donor_replace(e->donor, NULL, wait_ms);
    }
}

void mu_state_swarm_stats(const struct mu_state_swarm *s, struct mu_hm_donor_stats *ret)
{
    *ret = (struct mu_hm_donor_stats){0};
    MU_LIST_FOREACH (it, &s->entries) {
        struct mu_hm_donor_stats one;

        mu_hm_donor_stats(MU_CONTAINER_OF(it, struct entry, link)->donor, &one);
        ret->downloads += one.downloads;
        ret->completed += one.completed;
        ret->cut_off += one.cut_off;
        ret->busy += one.busy;
        ret->denied += one.denied;
        ret->messages += one.messages;
        ret->declared += one.declared;
        ret->unheard += one.unheard;
        ret->active += one.active;
    }
}

/* --- for its users ---------------------------------------------------------------------------- */

struct mu_peer_host *mu_state_swarm_host(struct mu_state_swarm *s)
{
    return s->config.host;
}

struct mu_peer_calls *mu_state_swarm_calls(struct mu_state_swarm *s)
{
    return s->calls;
}

struct mu_dht_service *mu_state_swarm_dht(struct mu_state_swarm *s)
{
    return s->dht;
}

const char *mu_state_swarm_averager(const struct mu_state_swarm *s)
{
    return s->averager;
}

int mu_state_swarm_own(struct mu_state_swarm *s, const struct mu_identity *key)
{
    struct mu_dht_owner_validator validator;
    int err;

    if (key != NULL && s->validator.key != NULL) {
        return MUSTER_EBUSY;
    }
    err = mu_dht_owner_init(&validator, key);
    if (err != 0) {
        return err;
    }
    mu_dht_owner_fini(&s->validator);
    s->validator = validator; /* the chain of validators has it now */
    return 0;
}

struct mu_span mu_state_swarm_mark(const struct mu_state_swarm *s)
{
    return mu_dht_owner_mark(&s->validator);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_joined(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_state_swarm *s = MU_CONTAINER_OF(wish, struct mu_state_swarm, join);

    if (s->stopping) {
        return;
    }
    if (op->status != 0) {
        /* An owner that is told decides what becomes of it. */
        mu_log(s->config.joined != NULL ? MUSTER_LOG_INFO : MUSTER_LOG_WARN, "SWARM-NOT-JOINED",
               "status=%s, trying again", muster_errname(op->status));
    } else if (s->config.peer_count != 0 && op->reachable == 0 && !s->config.client) {
        mu_log(MUSTER_LOG_WARN, "SWARM-UNREACHABLE",
               "none of the peers through which we joined can dial us");
    }
    if (s->config.joined != NULL) {
        s->config.joined(s->config.context, op->status);
    }
}

static void free_swarm(struct mu_state_swarm *s)
{
    mu_dht_owner_fini(&s->validator);
    mu_peer_calls_free(s->calls);
    mu_kad_stop(s->kad);
    mu_free(s->averager);
    mu_free(s);
}

static void on_dht_stopped(void *context)
{
    struct mu_state_swarm *s = context;
    void (*stopped)(void *context) = s->config.stopped;
    void *told = s->config.context;

    mu_dht_service_free(s->dht);
    free_swarm(s);
    if (stopped != NULL) {
        stopped(told);
    }
}

static void on_timer(struct mu_timer *timer)
{
    mu_dht_service_stop(MU_CONTAINER_OF(timer, struct mu_state_swarm, timer)->dht);
}

static int start_dht(struct mu_state_swarm *s, struct mu_errmsg *reterr_msg)
{
    struct mu_dht_service_config config = {
        .dht = mu_dht_config_defaults(), .stopped = on_dht_stopped, .context = s};

    config.unary = mu_peer_calls_unary(s->calls);
    config.dht.self.peer = *mu_peer_host_id(s->config.host);
    config.dht.client = s->config.client;
    config.dht.op_ms = s->config.op_ms;
    (void)mu_dht_chain_add(&config.dht.chain, &s->validator.base);
    return mu_dht_service_start(s->env, &config, &s->dht, reterr_msg);
}

static int start(struct mu_state_swarm *s, struct mu_errmsg *reterr_msg)
{
    struct mu_kad_config kad = mu_kad_config_defaults();
    int err;

    kad.client = s->config.client;
    err = mu_dht_owner_init(&s->validator, NULL);
    err = err != 0 ? err : mu_kad_start(s->config.host, &kad, &s->kad);
    err = err != 0 ? err : mu_peer_calls_new(s->config.host, NULL, &s->calls);
    if (err != 0) {
        return mu_err(reterr_msg, err, "cannot start a DHT node: %s", muster_strerror(err));
    }
    return start_dht(s, reterr_msg);
}

int mu_state_swarm_start(const struct mu_state_swarm_config *config, struct mu_state_swarm **ret,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_state_swarm *s = mu_calloc(1, sizeof(*s));
    int err;

    if (s == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    s->config = *config;
    s->env = mu_peer_host_env(config->host);
    mu_list_init(&s->entries);
    mu_timer_init(&s->timer, on_timer);
    if (config->averager != NULL) {
        s->averager = mu_strndup(config->averager, strlen(config->averager));
    }
    err = config->averager != NULL && s->averager == NULL
              ? mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory")
              : start(s, reterr_msg);
    if (err != 0) {
        free_swarm(s);
        return err;
    }
    s->join.done = on_joined;
    err = mu_dht_service_join(s->dht, &s->join, config->peers, config->peer_count);
    if (err != 0) {
        s->config.stopped = NULL; /* the caller does not know of the swarm */
        s->stopping = true;
        mu_dht_service_stop(s->dht);
        return mu_err(reterr_msg, err, "cannot join a DHT: %s", muster_strerror(err));
    }
    *ret = s;
    return 0;
}

void mu_state_swarm_stop(struct mu_state_swarm *s)
{
    MU_ASSERT(!s->stopping);
    s->stopping = true;
    MU_LIST_FOREACH (it, &s->entries) {
        mu_hm_donor_stop(MU_CONTAINER_OF(it, struct entry, link)->donor);
    }
    if (mu_list_empty(&s->entries)) {
        stop_dht_later(s);
    }
}
