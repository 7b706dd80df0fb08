#include "proto/rpc/once.h"

#include <string.h>

#include "core/alloc.h"

struct mu_rpc_once_caller {
    struct mu_map_node by_id;
    struct mu_list recent;
    struct mu_map keys;
    struct mu_list all;
    uint64_t floor;
    size_t running;
    uint8_t id[MU_RPC_CALLER_LEN];
};

struct mu_rpc_once_config mu_rpc_once_config_defaults(void)
{
    return (struct mu_rpc_once_config){
        .callers_max = 4096,
        .keys_max = 65536,
        .bytes_max = (size_t)64 << 20,
    };
}

void mu_rpc_once_init(struct mu_rpc_once *o, const struct mu_rpc_once_config *config)
{
    *o = (struct mu_rpc_once){.config = *config};
    mu_map_init(&o->callers, config->seed);
    mu_list_init(&o->recent);
    mu_list_init(&o->answers);
}

/* --- forgetting ------------------------------------------------------------------------------- */

static void drop_content(struct mu_rpc_once *o, struct mu_rpc_once_key *key)
{
    o->bytes -= key->content.cap;
    mu_buf_fini(&key->content);
    mu_list_remove(&key->answer);
}

static void free_key(struct mu_rpc_once *o, struct mu_rpc_once_key *key)
{
    drop_content(o, key);
    mu_map_remove(&key->caller->keys, &key->by_seq);
    mu_list_remove(&key->all);
    o->keys--;
    mu_free(key);
}

static void free_caller(struct mu_rpc_once *o, struct mu_rpc_once_caller *c)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &c->all) {
        free_key(o, MU_CONTAINER_OF(it, struct mu_rpc_once_key, all));
    }
    mu_map_fini(&c->keys);
    mu_map_remove(&o->callers, &c->by_id);
    mu_list_remove(&c->recent);
    mu_free(c);
}

void mu_rpc_once_fini(struct mu_rpc_once *o)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &o->recent) {
        free_caller(o, MU_CONTAINER_OF(it, struct mu_rpc_once_caller, recent));
    }
    mu_map_fini(&o->callers);
}

/* Keys come nearly in the order of their numbers: those below the floor are at the front. */
static void raise_floor(struct mu_rpc_once *o, struct mu_rpc_once_caller *c, uint64_t floor)
{
    if (floor <= c->floor) {
        return;
    }
    c->floor = floor;
    MU_LIST_FOREACH_SAFE (it, tmp, &c->all) {
        struct mu_rpc_once_key *key = MU_CONTAINER_OF(it, struct mu_rpc_once_key, all);

        if (key->seq >= floor) {
            break;
        }
        if (key->done) {
            free_key(o, key);
        }
    }
}

static void forget_one_caller(struct mu_rpc_once *o)
{
    MU_LIST_FOREACH (it, &o->recent) {
        struct mu_rpc_once_caller *c = MU_CONTAINER_OF(it, struct mu_rpc_once_caller, recent);

        if (c->running == 0) {
            free_caller(o, c);
            o->forgot = true;
            return;
        }
    }
}

/* --- keys ------------------------------------------------------------------------------------- */

static struct mu_rpc_once_caller *new_caller(struct mu_rpc_once *o, const uint8_t *id)
{
    struct mu_rpc_once_caller *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    memcpy(c->id, id, sizeof(c->id));
    mu_map_init(&c->keys, o->config.seed);
    mu_list_init(&c->all);
    if (mu_map_insert(&o->callers, &c->by_id, mu_span(c->id, sizeof(c->id))) != 0) {
        mu_free(c);
        return NULL;
    }
    mu_list_push(&o->recent, &c->recent);
    return c;
}

static struct mu_rpc_once_key *new_key(struct mu_rpc_once *o, struct mu_rpc_once_caller *c,
                                       uint64_t seq)
{
    struct mu_rpc_once_key *key = mu_calloc(1, sizeof(*key));

    if (key == NULL) {
        return NULL;
    }
    key->seq = seq;
    key->caller = c;
    mu_list_init(&key->answer);
    mu_list_init(&key->joined);
    mu_buf_init(&key->content, o->config.bytes_max);
    if (mu_map_insert(&c->keys, &key->by_seq, mu_span(&key->seq, sizeof(key->seq))) != 0) {
        mu_free(key);
        return NULL;
    }
    mu_list_push(&c->all, &key->all);
    c->running++;
    o->keys++;
    return key;
}

static enum mu_rpc_once_verdict judge_known(struct mu_rpc_once_key *key,
                                            struct mu_rpc_once_key **ret_key)
{
    *ret_key = key;
    if (!key->done) {
        return MU_RPC_ONCE_JOIN;
    }
    return key->lost ? MU_RPC_ONCE_REFUSE : MU_RPC_ONCE_REPLAY;
}

enum mu_rpc_once_verdict mu_rpc_once_begin(struct mu_rpc_once *o, const uint8_t *caller,
                                           uint64_t seq, uint64_t floor, bool again,
                                           struct mu_rpc_once_key **ret_key)
{
    struct mu_map_node *node = mu_map_find(&o->callers, mu_span(caller, MU_RPC_CALLER_LEN));
    struct mu_rpc_once_caller *c =
        node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_once_caller, by_id);

    if (c == NULL && again && o->forgot) {
        return MU_RPC_ONCE_REFUSE;
    }
    if (c == NULL) {
        while (o->callers.count >= o->config.callers_max) {
            size_t before = o->callers.count;

            forget_one_caller(o);
            if (o->callers.count == before) {
                return MU_RPC_ONCE_FULL;
            }
        }
        c = new_caller(o, caller);
        if (c == NULL) {
            return MU_RPC_ONCE_FULL;
        }
    }
    mu_list_remove(&c->recent);
    mu_list_push(&o->recent, &c->recent);
    raise_floor(o, c, floor);
    node = mu_map_find(&c->keys, mu_span(&seq, sizeof(seq)));
    if (node != NULL) {
        return judge_known(MU_CONTAINER_OF(node, struct mu_rpc_once_key, by_seq), ret_key);
    }
    if (seq < c->floor) {
        return MU_RPC_ONCE_REFUSE;
    }
    if (c->keys.count >= o->config.keys_max) {
        return MU_RPC_ONCE_FULL;
    }
    *ret_key = new_key(o, c, seq);
    return *ret_key == NULL ? MU_RPC_ONCE_FULL : MU_RPC_ONCE_RUN;
}

void mu_rpc_once_answer(struct mu_rpc_once *o, struct mu_rpc_once_key *key, int status,
                        struct mu_span content)
{
    key->done = true;
    key->status = status;
    key->caller->running--;
    if (key->seq < key->caller->floor) {
        free_key(o, key); /* The caller no longer wants the answer. */
        return;
    }
    if (content.len > o->config.bytes_max || mu_buf_append(&key->content, content) != 0) {
        key->lost = true;
        return;
    }
    o->bytes += key->content.cap;
    mu_list_push(&o->answers, &key->answer);
    while (o->bytes > o->config.bytes_max) {
        struct mu_rpc_once_key *oldest =
            MU_CONTAINER_OF(o->answers.next, struct mu_rpc_once_key, answer);

        oldest->lost = true;
        drop_content(o, oldest);
    }
}

void mu_rpc_once_withdraw(struct mu_rpc_once *o, struct mu_rpc_once_key *key)
{
    key->caller->running--;
    free_key(o, key);
}
