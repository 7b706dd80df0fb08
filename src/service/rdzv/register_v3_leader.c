/*
 * Which node is the leader, and what it does.
 *
 *     born ──► looks for the next older key ──► watches it ──► gone: looks again
 *                          └── there is none: LEADER, watches all keys, decides
 *
 * The leader decides on a new state when both watches have reported all there is, no change of ours
 * is on its way, and something is different from what it should be. Small changes of a large round
 * are gathered for a moment, so that the state, which all nodes read, is not written for each of
 * them; a change that nodes wait for (a round that is complete, one that has lost a member) is
 * written at once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/rdzv/leased.h"
#include "core/alloc.h"
#include "service/base/log.h"
#include "service/rdzv/register_v3.h"

#define RUN_TTL_S        7200 /* the same as PyTorch's backend on v2 */
#define AGAIN_MS         300  /* after something failed */
#define WATCH_MS_A_NODE  4    /* how long the elder may go unwatched */
#define WATCH_MS_MAX     2000
#define GATHER_MS        5
#define GATHER_US_A_NODE 1000 /* how much longer with each node */
#define GATHER_MS_MAX    500

static bool is_alive(const struct mu_rdzv_v3_register *c)
{
    return c->born != 0 && c->lease_state == MU_RDZV_V3_KEPT && !c->closing;
}

static void run_at(struct mu_rdzv_v3_register *c, mu_mono_t at)
{
    c->client_at = mu_mono_min(c->client_at, at);
    mu_rdzv_v3_arm(c);
}

static void run_again(struct mu_rdzv_v3_register *c)
{
    run_at(c, mu_mono_add_ms(mu_env_now(c->base.env).mono, AGAIN_MS));
}

/* --- the keys of all nodes -------------------------------------------------------------------- */

static struct mu_rdzv_v3_entry *find_entry(struct mu_rdzv_v3_register *c, struct mu_span key)
{
    struct mu_map_node *link = mu_map_find(&c->entries, key);

    return link == NULL ? NULL : MU_CONTAINER_OF(link, struct mu_rdzv_v3_entry, link);
}

static void drop_entry(struct mu_rdzv_v3_register *c, struct mu_rdzv_v3_entry *e)
{
    mu_map_remove(&c->entries, &e->link);
    mu_free(e->entry.node.addr);
    mu_free(e);
}

static void drop_entries(struct mu_rdzv_v3_register *c)
{
    struct mu_map_node *link = mu_map_next(&c->entries, NULL);

    while (link != NULL) {
        struct mu_map_node *next = mu_map_next(&c->entries, link);

        drop_entry(c, MU_CONTAINER_OF(link, struct mu_rdzv_v3_entry, link));
        link = next;
    }
}

static struct mu_rdzv_v3_entry *add_entry(struct mu_rdzv_v3_register *c, struct mu_span key)
{
    struct mu_rdzv_v3_entry *e = mu_calloc(1, sizeof(*e) + key.len);

    if (e == NULL) {
        return NULL;
    }
    e->key_len = key.len;
    memcpy(e->key, key.data, key.len);
    if (mu_map_insert(&c->entries, &e->link, mu_span(e->key, e->key_len)) != 0) {
        mu_free(e);
        return NULL;
    }
    return e;
}

/* MUSTER_ENOMEM. A key that does not hold a wish is ignored, as if its node were not there. */
static int put_entry(struct mu_rdzv_v3_register *c, const struct mu_etcd_kv *kv)
{
    struct mu_rdzv_v3_entry *e = find_entry(c, kv->key);
    struct mu_rdzv_entry entry = {.born = kv->create_revision, .revision = kv->mod_revision};
    int err = mu_rdzv_wish_decode(kv->value, &entry.node, &entry.wish);

    if (err == MUSTER_ENOMEM) {
        return err;
    }
    if (err != 0) {
        if (e != NULL) {
            drop_entry(c, e);
        }
        return 0;
    }
    if (e == NULL) {
        e = add_entry(c, kv->key);
    }
    if (e == NULL) {
        mu_free(entry.node.addr);
        return MUSTER_ENOMEM;
    }
    mu_free(e->entry.node.addr);
    e->entry = entry;
    return 0;
}

static void on_nodes_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *change)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, nodes);
    struct mu_rdzv_v3_entry *e;

    if (change->deleted) {
        e = find_entry(c, change->kv.key);
        if (e != NULL) {
            drop_entry(c, e);
        }
    } else if (put_entry(c, &change->kv) != 0) {
        mu_etcd_watch_cancel(watch); /* no memory: the watch reports all again */
        return;
    }
    /* Many keys come at once; we decide on them together. */
    run_at(c, mu_env_now(c->base.env).mono);
}

static void on_nodes_ready(struct mu_etcd_watch *watch)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, nodes);

    c->nodes_ready = true;
    run_at(c, mu_env_now(c->base.env).mono);
}

static void on_nodes_ended(struct mu_etcd_watch *watch, int status)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, nodes);

    (void)status;
    c->nodes_on = c->nodes_ready = false;
    drop_entries(c);
    if (!c->closing) {
        run_again(c);
    }
}

static void watch_nodes(struct mu_rdzv_v3_register *c)
{
    c->nodes = (struct mu_etcd_watch){
        .key = mu_span_str(c->nodes_key),
        .end = mu_span_str(c->nodes_end),
        .current = true,
        .change = on_nodes_change,
        .ready = on_nodes_ready,
        .ended = on_nodes_ended,
    };
    c->nodes_on = true;
    c->nodes_ready = false;
    mu_etcd_watch_start(c->etcd, &c->nodes);
}

/* --- the next older one ----------------------------------------------------------------------- */

static void on_elder_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *change)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, elder);

    c->elder_there = !change->deleted;
    if (change->deleted) {
        mu_etcd_watch_cancel(watch);
    }
}

static void on_elder_ready(struct mu_etcd_watch *watch)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, elder);

    if (!c->elder_there) {
        mu_etcd_watch_cancel(watch); /* it went before we looked */
    }
}

static void on_elder_ended(struct mu_etcd_watch *watch, int status)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(watch, struct mu_rdzv_v3_register, elder);

    c->elder_on = false;
    if (c->closing) {
        return;
    }
    if (status == MUSTER_ECANCELED) {
        run_at(c, mu_env_now(c->base.env).mono);
    } else {
        run_again(c);
    }
}

static void watch_elder(struct mu_rdzv_v3_register *c)
{
    c->elder_known = false;
    c->elder = (struct mu_etcd_watch){
        .key = mu_span_str(c->elder_key),
        .current = true,
        .change = on_elder_change,
        .ready = on_elder_ready,
        .ended = on_elder_ended,
    };
    c->elder_on = true;
    c->elder_there = false;
    mu_etcd_watch_start(c->etcd, &c->elder);
}

/* These are the newest keys up to ours, and one of them may be ours: the other is our elder. */
static void take_elder(struct mu_rdzv_v3_register *c, const struct mu_etcd_result *newest)
{
    for (size_t i = 0; i < newest->kv_count; i++) {
        struct mu_span key = newest->kvs[i].key;

        if (!mu_span_eq(key, mu_span_str(c->own_key)) && key.len < sizeof(c->elder_key)) {
            memcpy(c->elder_key, key.data, key.len);
            c->elder_key[key.len] = '\0';
            c->elder_known = true;
            c->elder_at = mu_env_now(c->base.env).mono;
            return;
        }
    }
    c->leader = true;
    mu_log(MUSTER_LOG_DEBUG, "RDZV-LEADER", "key=%s", c->own_key);
}

void mu_rdzv_v3_leader_born(struct mu_rdzv_v3_register *c, const struct mu_etcd_result *newest)
{
    uint64_t spread = c->settings.max_nodes * WATCH_MS_A_NODE;
    uint64_t random;

    c->find_born = c->born;
    take_elder(c, newest);
    mu_env_entropy(c->base.env, &random, sizeof(random));
    spread = spread < WATCH_MS_MAX ? spread : WATCH_MS_MAX;
    c->elder_at = mu_mono_add_ms(c->elder_at, random % (spread + 1));
}

static void on_found(struct mu_etcd_call *call)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(call, struct mu_rdzv_v3_register, find);

    if (c->closing) {
        return;
    }
    if (call->status != 0 || call->reply->result_count == 0) {
        run_again(c);
        return;
    }
    if (is_alive(c) && c->find_born == c->born) {
        take_elder(c, &call->reply->results[0]);
    }
    mu_rdzv_v3_leader_run(c);
}

static void find_elder(struct mu_rdzv_v3_register *c)
{
    const struct mu_etcd_op op = {
        .kind = MU_ETCD_RANGE,
        .key = mu_span_str(c->nodes_key),
        .end = mu_span_str(c->nodes_end),
        .limit = 1,
        .keys_only = true,
        .by_creation = true,
        .newest_first = true,
        .create_max = c->born - 1,
    };

    mu_buf_reset(&c->find_body);
    if (mu_etcd_encode_op(&c->find_body, &op) != 0) {
        run_again(c);
        return;
    }
    c->find_born = c->born;
    c->find = (struct mu_etcd_call){
        .path = mu_etcd_op_path(MU_ETCD_RANGE),
        .body = mu_buf_span(&c->find_body),
        .repeat = true,
        .done = on_found,
    };
    mu_etcd_submit(c->etcd, &c->find);
}

/* --- the state's lease ------------------------------------------------------------------------ */

static void on_run_granted(struct mu_etcd_lease *lease)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(lease, struct mu_rdzv_v3_register, run_lease);

    c->run_lease_state = MU_RDZV_V3_KEPT;
    run_at(c, mu_env_now(c->base.env).mono);
    mu_rdzv_v3_tell(c, false);
}

static void on_run_lost(struct mu_etcd_lease *lease, int status)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(lease, struct mu_rdzv_v3_register, run_lease);
    struct mu_errmsg msg = lease->errmsg;

    c->run_lease_state = MU_RDZV_V3_NO_LEASE;
    if (c->closing) {
        return;
    }
    run_again(c);
    if (c->close_wanted) {
        mu_rdzv_register_fail(&c->base, status, msg.text, mu_rdzv_register_is_transient(status));
    }
}

static void on_run_stopped(struct mu_etcd_lease *lease)
{
    on_run_lost(lease, MUSTER_ECANCELED);
}

bool mu_rdzv_v3_run_lease(struct mu_rdzv_v3_register *c)
{
    if (c->run_lease_state == MU_RDZV_V3_NO_LEASE && !c->closing) {
        c->run_lease = (struct mu_etcd_lease){
            .ttl_s = RUN_TTL_S,
            .granted = on_run_granted,
            .lost = on_run_lost,
            .stopped = on_run_stopped,
        };
        c->run_lease_state = MU_RDZV_V3_STARTING;
        mu_etcd_lease_start(c->etcd, &c->run_lease);
    }
    return c->run_lease_state == MU_RDZV_V3_KEPT;
}

/* --- deciding --------------------------------------------------------------------------------- */

static void on_swapped(struct mu_etcd_call *call)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(call, struct mu_rdzv_v3_register, swap);

    if (c->closing) {
        return;
    }
    if (call->status == MUSTER_ENOENT) {
        mu_etcd_lease_stop(&c->run_lease, false); /* etcd does not know the state's lease */
        return;
    }
    if (call->status != 0) {
        run_again(c);
        return;
    }
    if (call->reply->succeeded) {
        c->swap_wait = call->reply->revision;
    } else if (call->reply->result_count != 0 && call->reply->results[0].kv_count != 0) {
        c->swap_wait = call->reply->results[0].kvs[0].mod_revision;
    }
    if (!call->reply->succeeded && c->swap_wait <= c->mod) {
        run_again(c); /* our own key is gone, and we will hear of it */
        return;
    }
    mu_rdzv_v3_leader_run(c);
}

static int by_revision(const void *a, const void *b)
{
    const struct mu_rdzv_entry *x = *(const struct mu_rdzv_entry *const *)a;
    const struct mu_rdzv_entry *y = *(const struct mu_rdzv_entry *const *)b;

    return x->revision < y->revision ? -1 : x->revision > y->revision ? 1 : 0;
}

/* Computes the next state from all that is known. */
static int decide(struct mu_rdzv_v3_register *c, bool last_call_over, int64_t *seen,
                  struct mu_rdzv_leader_result *ret)
{
    const struct mu_rdzv_entry **list = mu_malloc((c->entries.count + 1) * sizeof(*list));
    size_t count = 0;
    int err;

    if (list == NULL) {
        return MUSTER_ENOMEM;
    }
    for (struct mu_map_node *link = mu_map_next(&c->entries, NULL); link != NULL;
         link = mu_map_next(&c->entries, link)) {
        list[count++] = &MU_CONTAINER_OF(link, struct mu_rdzv_v3_entry, link)->entry;
    }
    qsort(list, count, sizeof(*list), by_revision);
    err = mu_rdzv_state_copy(&c->next, &c->state);
    *seen = c->seen;
    if (err == 0) {
        err = mu_rdzv_leader_step(&c->next, seen, list, count, &c->settings, last_call_over, ret);
    }
    mu_free(list);
    return err;
}

/* Writes the next state, only over the one on which we decided, and only while our key is there. */
static int swap_state(struct mu_rdzv_v3_register *c, int64_t seen)
{
    struct mu_span key = mu_span_str(c->state_key);
    const struct mu_etcd_compare compares[] = {
        {.key = key, .target = MU_ETCD_MOD, .number = c->mod},
        {.key = mu_span_str(c->own_key), .target = MU_ETCD_CREATE, .number = c->born},
    };
    char clear_end[MU_RDZV_V3_KEY_CAP + 32];
    struct mu_etcd_op ops[] = {
        {.kind = MU_ETCD_PUT, .key = key, .lease = c->run_lease.id},
        {.kind = MU_ETCD_DELETE, .key = mu_span_str(c->store_key)},
    };
    const struct mu_etcd_op get = {.kind = MU_ETCD_RANGE, .key = key, .keys_only = true};
    bool clear = c->next.complete && !c->state.complete && c->next.round > 1;
    const struct mu_etcd_txn txn = {
        .compares = compares,
        .compare_count = 2,
        .success = ops,
        .success_count = clear ? 2 : 1,
        .failure = &get,
        .failure_count = 1,
    };
    int err;

    mu_buf_reset(&c->swap_value);
    mu_buf_reset(&c->swap_body);
    err = mu_rdzv_leased_encode(&c->swap_value, &c->next, seen);
    ops[0].value = mu_buf_span(&c->swap_value);
    (void)snprintf(clear_end, sizeof(clear_end), "%s" MU_RDZV_V3_ROUND, c->store_key,
                   c->next.round - 1);
    ops[1].end = mu_span_str(clear_end);
    if (err == 0) {
        err = mu_etcd_encode_txn(&c->swap_body, &txn);
    }
    if (err == 0) {
        c->swap = (struct mu_etcd_call){
            .path = "/v3/kv/txn",
            .body = mu_buf_span(&c->swap_body),
            .repeat = true,
            .done = on_swapped,
        };
        c->swapped_at = mu_env_now(c->base.env).mono;
        mu_etcd_submit(c->etcd, &c->swap);
    }
    return err;
}

/* When the next small change may be written. */
static mu_mono_t gather_until(const struct mu_rdzv_v3_register *c)
{
    uint64_t ms = GATHER_MS + c->entries.count * GATHER_US_A_NODE / 1000;

    return mu_mono_add_ms(c->swapped_at, ms < GATHER_MS_MAX ? ms : GATHER_MS_MAX);
}

static void preside(struct mu_rdzv_v3_register *c)
{
    mu_mono_t now = mu_env_now(c->base.env).mono;
    mu_mono_t last_call = c->last_call
                              ? mu_mono_add_ms(c->last_call_since, c->settings.last_call_timeout_ms)
                              : MU_MONO_NEVER;
    struct mu_rdzv_leader_result result;
    int64_t seen;
    int err;

    if (!c->nodes_ready || !c->ready || c->corrupt || mu_etcd_call_active(&c->swap) ||
        c->told_revision < c->swap_wait || !mu_rdzv_v3_run_lease(c)) {
        return; /* what is missing will come and call again */
    }
    c->swap_wait = 0;
    err = decide(c, mu_mono_reached(last_call, now), &seen, &result);
    if (err == 0 && !result.changed && c->present && c->state_lease != c->run_lease.id) {
        result.changed = true; /* the state must not end with another node's lease */
    }
    if (err == 0 && result.changed) {
        if (!result.urgent && mu_mono_before(now, gather_until(c))) {
            run_at(c, gather_until(c));
            return;
        }
        err = swap_state(c, seen);
    }
    if (err != 0) {
        run_again(c);
    } else if (!result.changed && mu_mono_before(now, last_call)) {
        run_at(c, last_call); /* never, where there is no last call */
    }
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_rdzv_v3_leader_run(struct mu_rdzv_v3_register *c)
{
    if (c->closing) {
        return;
    }
    if (!is_alive(c) || c->find_born != c->born) {
        c->leader = c->elder_known = false;
        if (c->nodes_on) {
            mu_etcd_watch_cancel(&c->nodes);
        }
        if (c->elder_on) {
            mu_etcd_watch_cancel(&c->elder);
        }
    }
    if (!is_alive(c)) {
        return;
    }
    if (c->leader) {
        if (!c->nodes_on) {
            watch_nodes(c);
        }
        preside(c);
    } else if (c->elder_on || c->nodes_on || mu_etcd_call_active(&c->find)) {
        return;
    } else if (!c->elder_known) {
        find_elder(c);
    } else if (mu_mono_reached(c->elder_at, mu_env_now(c->base.env).mono)) {
        watch_elder(c);
    } else {
        run_at(c, c->elder_at);
    }
}

void mu_rdzv_v3_leader_init(struct mu_rdzv_v3_register *c, uint64_t seed)
{
    size_t text_max = MU_RDZV_STATE_BYTES_MAX;

    mu_map_init(&c->entries, seed);
    mu_rdzv_state_init(&c->next);
    mu_buf_init(&c->find_body, 16u << 10);
    mu_buf_init(&c->swap_value, text_max);
    mu_buf_init(&c->swap_body, 2 * text_max);
}

void mu_rdzv_v3_leader_fini(struct mu_rdzv_v3_register *c)
{
    drop_entries(c);
    mu_map_fini(&c->entries);
    mu_rdzv_state_fini(&c->next);
    mu_buf_fini(&c->find_body);
    mu_buf_fini(&c->swap_value);
    mu_buf_fini(&c->swap_body);
}
