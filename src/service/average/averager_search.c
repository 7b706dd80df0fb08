/* How an averager finds its group: the bucket in the DHT, its call to a leader, and calls to it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/bin/msgpack.h"
#include "service/average/averager_native.h"
#include "service/base/log.h"

#define SEED_BYTES       8
#define JOINER_MS        10000 /* for its request */
#define JOINER_LINGER_MS 30000 /* for it to close the stream after our last reply */

/* --- the bucket ------------------------------------------------------------------------------- */

static void store(struct mu_averager *a);

static void on_stored(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_averager *a = MU_CONTAINER_OF(wish, struct mu_averager, store_wish);

    a->storing = false;
    if (op->count != 0 && op->results[0].stored == 0 && op->status != MUSTER_ECANCELED &&
        op->status != MUSTER_ECLOSED && a->match != NULL) {
        mu_log(MUSTER_LOG_WARN, "AVERAGE-UNHEARD",
               "key=%s status=%s, so others do not know that we look for a group", a->key,
               op->status != 0 ? muster_errname(op->status) : "refused");
    }
    if (a->to_store && op->status != MUSTER_ECLOSED) {
        store(a);
    }
    mu_averager_pump(a);
}

/* Writes our entry; a later one waits for an earlier one. */
static void store(struct mu_averager *a)
{
    struct mu_dht_put put = {.expiration = a->store_expiration};
    struct mu_buf subkey;
    struct mu_buf value;
    struct mu_mp_out s;
    struct mu_mp_out v;
    int err;

    if (a->storing) {
        a->to_store = true;
        return;
    }
    a->to_store = false;
    mu_buf_init(&subkey, 128);
    mu_buf_init(&value, 16);
    s = mu_mp_out(&subkey);
    v = mu_mp_out(&value);
    mu_mp_put_bin(&s, mu_peer_id_span(&a->self));
    mu_mp_put_bool(&v, a->store_value);
    put.subkey = mu_buf_span(&subkey);
    put.value = mu_buf_span(&value);
    err = s.err != 0 ? s.err : v.err;
    err = err != 0 ? err : mu_dht_key_text(mu_span_str(a->store_key), &put.key);
    a->store_wish.done = on_stored;
    /* An entry that has expired already is the past's: leaving it takes no record. */
    err = err != 0 ? err : mu_dht_service_store(a->config.dht, &a->store_wish, &put, 1);
    a->storing = err == 0;
    mu_buf_fini(&subkey);
    mu_buf_fini(&value);
}

static void fetch(struct mu_averager *a, uint64_t number);

static void on_fetched(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct mu_averager *a = MU_CONTAINER_OF(wish, struct mu_averager, fetch_wish);
    struct mu_span found = {0};
    int status = op->status;

    a->fetching = false;
    if (op->count != 0 && op->results[0].type == MU_DHT_FOUND_DICTIONARY) {
        found = mu_buf_span(&op->results[0].value);
        status = 0;
    }
    if (a->match != NULL && strcmp(a->fetch_key, a->key) != 0) {
        fetch(a, a->fetch_number); /* that was the bucket of the step before */
    } else if (a->match != NULL) {
        mu_matchmaker_fetched(a->match, mu_env_now(a->env), a->fetch_number, status, found);
    }
    mu_averager_pump(a);
}

static void fetch(struct mu_averager *a, uint64_t number)
{
    struct mu_dht_id key;
    int err;

    a->fetch_number = number;
    if (a->fetching) {
        return; /* what is under way answers this one */
    }
    memcpy(a->fetch_key, a->key, sizeof(a->fetch_key));
    err = mu_dht_key_text(mu_span_str(a->key), &key);
    a->fetch_wish.done = on_fetched;
    err = err != 0 ? err : mu_dht_service_get(a->config.dht, &a->fetch_wish, &key, 1, true);
    a->fetching = err == 0;
    if (err != 0) {
        mu_matchmaker_fetched(a->match, mu_env_now(a->env), number, err, (struct mu_span){0});
    }
}

/* --- our call --------------------------------------------------------------------------------- */

static void note_refusal(struct mu_averager *a, enum mu_avg_code code, const char *why)
{
    char peer[MU_PEER_ID_TEXT_MAX];

    a->refused = a->asking.items.peer;
    a->refusal = code;
    (void)snprintf(a->refused_why, sizeof(a->refused_why), "%s", why);
    mu_log(MUSTER_LOG_INFO, "AVERAGE-REFUSED", "peer=%s why=\"%s\"",
           mu_peer_id_format(&a->refused, peer), why);
}

/* Why somebody with another schema is in no group of ours. */
static const char *unlike(const struct mu_averager *a)
{
    return a->config.native ? "its tensors, its encoding or its size of parts are not ours"
                            : mu_averager_refusal(MU_AVG_BAD_SCHEMA_HASH);
}

static void on_reply(struct mu_peer_items *items, struct mu_span message)
{
    struct mu_averager_ask *k = MU_CONTAINER_OF(items, struct mu_averager_ask, items);
    struct mu_averager *a = k->averager;
    struct mu_avg_reply *reply = mu_malloc(sizeof(*reply));

    if (reply != NULL && mu_avg_reply_decode(message, reply) == 0 &&
        reply->code != MU_AVG_ACCEPTED && reply->code != MU_AVG_BEGIN_ALLREDUCE &&
        reply->code != MU_AVG_GROUP_DISBANDED) {
        note_refusal(a, reply->code,
                     reply->code == MU_AVG_BAD_SCHEMA_HASH ? unlike(a)
                                                           : mu_averager_refusal(reply->code));
    }
    mu_free(reply);
    if (a->match != NULL) {
        mu_matchmaker_replied(a->match, mu_env_now(a->env), k->number, message);
    }
    mu_averager_pump(a);
}

static void on_reply_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct mu_averager_ask *k = MU_CONTAINER_OF(items, struct mu_averager_ask, items);
    struct mu_averager *a = k->averager;

    k->active = false;
    if (status != 0 && a->match != NULL) {
        note_refusal(a, MU_AVG_NO_CODE, text);
    }
    if (a->match != NULL) {
        mu_matchmaker_closed(a->match, mu_env_now(a->env), k->number);
    }
    mu_averager_pump(a);
}

static const struct mu_peer_items_events asking_events = {
    .item = on_reply,
    .ended = on_reply_ended,
};

static void hang_up(struct mu_averager *a)
{
    if (a->asking.active) {
        a->asking.active = false;
        mu_peer_items_cancel(&a->asking.items);
    }
}

static void ask(struct mu_averager *a, const struct mu_matchmaker_event *e)
{
    struct mu_averager_ask *k = &a->asking;
    int err;

    hang_up(a);
    k->averager = a;
    k->number = e->number;
    k->items.on = &asking_events;
    k->active = true;
    mu_peer_items_open(a->config.calls, &k->items, &e->peer, a->join_name);
    err = e->message.len == 0 ? MUSTER_ENOMEM : mu_peer_items_send(&k->items, e->message);
    err = err != 0 ? err : mu_peer_items_end(&k->items);
    if (err != 0) {
        hang_up(a);
        mu_matchmaker_closed(a->match, mu_env_now(a->env), e->number);
    }
}

/* --- calls to us ------------------------------------------------------------------------------ */

static void watch_joiner(struct mu_averager_joiner *j, uint32_t ms)
{
    struct mu_env *env = j->averager->env;

    mu_env_timer_arm(env, &j->timer,
                     ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(mu_env_now(env).mono, ms));
}

void mu_averager_joiner_free(struct mu_averager_joiner *j)
{
    watch_joiner(j, 0);
    mu_list_remove(&j->link);
    j->averager->streams--;
    mu_free(j);
}

static void answer_joiner(struct mu_averager_joiner *j, struct mu_span message, bool last)
{
    if (j->answered) {
        return;
    }
    if (message.len != 0) {
        (void)mu_peer_items_send(&j->items, message); /* it is short; without it, it times out */
    }
    if (last) {
        j->answered = true;
        watch_joiner(j, JOINER_LINGER_MS);
        if (j->requests_ended) {
            (void)mu_peer_items_end(&j->items);
        }
    }
}

static void on_request(struct mu_peer_items *items, struct mu_span message)
{
    struct mu_averager_joiner *j = MU_CONTAINER_OF(items, struct mu_averager_joiner, items);
    struct mu_averager *a = j->averager;
    struct mu_buf refusal;

    if (j->number != 0) {
        return; /* one request in a call */
    }
    j->number = ++a->numbers;
    watch_joiner(j, 0); /* the machine decides when it is answered */
    if (a->match != NULL) {
        mu_matchmaker_asked(a->match, mu_env_now(a->env), j->number, &items->peer, message);
        mu_averager_pump(a);
        return;
    }
    mu_buf_init(&refusal, 256);
    (void)mu_avg_refusal_encode(MU_AVG_NOT_LOOKING_FOR_GROUP, NULL, &refusal);
    answer_joiner(j, mu_buf_span(&refusal), true);
    mu_buf_fini(&refusal);
}

static void on_requests_ended(struct mu_peer_items *items)
{
    struct mu_averager_joiner *j = MU_CONTAINER_OF(items, struct mu_averager_joiner, items);

    j->requests_ended = true;
    if (j->answered || j->number == 0) {
        (void)mu_peer_items_end(items);
    }
}

static void on_joiner_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct mu_averager_joiner *j = MU_CONTAINER_OF(items, struct mu_averager_joiner, items);
    struct mu_averager *a = j->averager;

    (void)status;
    (void)text;
    if (a->match != NULL && j->number != 0) {
        mu_matchmaker_gone(a->match, mu_env_now(a->env), j->number);
    }
    mu_averager_joiner_free(j);
    mu_averager_pump(a);
}

static const struct mu_peer_items_events joiner_events = {
    .item = on_request,
    .end = on_requests_ended,
    .ended = on_joiner_ended,
};

static void on_joiner_timer(struct mu_timer *timer)
{
    struct mu_averager_joiner *j = MU_CONTAINER_OF(timer, struct mu_averager_joiner, timer);
    struct mu_averager *a = j->averager;

    mu_peer_items_cancel(&j->items);
    mu_averager_joiner_free(j);
    mu_averager_pump(a);
}

struct mu_peer_items *mu_averager_on_join(struct mu_peer_items_handler *h,
                                          const struct mu_peer_id *peer)
{
    struct mu_averager *a = MU_CONTAINER_OF(h, struct mu_averager, join_handler);
    struct mu_averager_joiner *j = mu_averager_may_open(a, peer) ? mu_calloc(1, sizeof(*j)) : NULL;

    if (j == NULL) {
        return NULL;
    }
    j->averager = a;
    j->items.on = &joiner_events;
    j->items.peer = *peer;
    mu_timer_init(&j->timer, on_joiner_timer);
    mu_list_init(&j->link);
    mu_list_push(&a->joiners, &j->link);
    a->streams++;
    watch_joiner(j, JOINER_MS);
    return &j->items;
}

static void reply(struct mu_averager *a, const struct mu_matchmaker_event *e)
{
    MU_LIST_FOREACH (it, &a->joiners) {
        struct mu_averager_joiner *j = MU_CONTAINER_OF(it, struct mu_averager_joiner, link);

        if (j->number == e->number) {
            answer_joiner(j, e->message, e->last);
            return;
        }
    }
}

/* --- the search ------------------------------------------------------------------------------- */

static int draw(struct mu_averager *a, struct mu_matchmaker_config *config)
{
    uint8_t seed[SEED_BYTES];

    mu_env_entropy(a->env, config->group_id, sizeof(config->group_id));
    mu_env_entropy(a->env, seed, sizeof(seed));
    config->seed = mu_get_u64(seed);
    return 0;
}

int mu_averager_match_begin(struct mu_averager *a, struct mu_span user, uint64_t timeout_ms,
                            struct mu_errmsg *msg)
{
    struct mu_matchmaker_config config = mu_matchmaker_config_defaults();
    static const uint8_t nil = 0xc0;
    struct mu_avg_gather gather = {.mode = a->config.mode, .user = user};
    struct mu_buf told;
    int err;

    if (user.len == 0) {
        gather.user = mu_span(&nil, 1);
    }
    mu_buf_init(&told, MU_AVG_GATHER_MAX);
    err = mu_avg_gather_encode(&gather, &told);
    if (err != 0) {
        mu_buf_fini(&told);
        return mu_err(msg, err,
                      "what is told to the other members must be one MessagePack value "
                      "of at most 64 KiB");
    }
    config.self = a->self;
    memcpy(config.schema, a->schema, sizeof(config.schema));
    memcpy(config.key, a->key, sizeof(config.key));
    config.gather = mu_buf_span(&told);
    config.client = a->config.mode == MU_AVG_CLIENT;
    config.target_size = a->config.target_size;
    config.size_min = a->config.size_min;
    config.matchmaking_ms = a->config.matchmaking_ms;
    config.request_ms = a->config.request_ms;
    config.timeout_ms = timeout_ms;
    if (a->config.native) {
        config.followers_max = MU_NATIVE_MEMBERS_MAX - 1;
    }
    (void)draw(a, &config);
    a->match = mu_calloc(1, sizeof(*a->match));
    err = a->match == NULL ? MUSTER_ENOMEM
                           : mu_matchmaker_init(a->match, &config, mu_env_now(a->env));
    mu_buf_fini(&told);
    if (err != 0) {
        mu_free(a->match);
        a->match = NULL;
        return mu_err(msg, err, "cannot look for a group: %s", muster_strerror(err));
    }
    return 0;
}

void mu_averager_match_free(struct mu_averager *a)
{
    /* A call that has told us of our group ends by itself. */
    if (a->round == NULL && a->native == NULL) {
        hang_up(a);
    }
    if (a->match != NULL) {
        mu_matchmaker_fini(a->match);
        mu_free(a->match);
        a->match = NULL;
    }
}

/* Why there is no group, as far as we know. */
static void explain(struct mu_averager *a, struct mu_errmsg *msg)
{
    char peer[MU_PEER_ID_TEXT_MAX];
    int status = mu_matchmaker_status(a->match);
    const char *text = mu_matchmaker_text(a->match);

    if (status != MUSTER_ETIMEDOUT) {
        (void)mu_err(msg, status, "%s", text);
    } else if (a->refused.len != 0) {
        (void)mu_err(msg, status, "%s: of the others in %.60s, %s was asked last: %s", text, a->key,
                     mu_peer_id_format(&a->refused, peer), a->refused_why);
    } else if (a->match->unlike.len != 0) {
        (void)mu_err(msg, status, "%s: in %.60s, %s asked to join us: %s", text, a->key,
                     mu_peer_id_format(&a->match->unlike, peer), unlike(a));
    } else if (a->match->candidate_count == 0) {
        (void)mu_err(msg, status, "%s: nobody else looked for one in %.100s", text, a->key);
    } else {
        (void)mu_err(msg, status,
                     "%s: others in %.60s: %zu; of at least %" PRIu32
                     " that were to join us, %" PRIu32 " came",
                     text, a->key, a->match->candidate_count, a->config.size_min - 1,
                     a->match->follower_count);
    }
}

static void end_search(struct mu_averager *a)
{
    struct mu_now now = mu_env_now(a->env);
    struct mu_errmsg msg;
    int err = mu_matchmaker_status(a->match);

    a->result.matchmaking_ms = mu_mono_since(a->begun, now.mono) / MU_NS_PER_MS;
    if (err != 0) {
        explain(a, &msg);
    } else {
        err =
            a->config.native ? mu_averager_native_begin(a, &msg) : mu_averager_round_begin(a, &msg);
    }
    mu_averager_match_free(a);
    if (err != 0) {
        mu_averager_finish(a, err, msg.text);
    }
    mu_averager_sort_senders(a);
    mu_averager_sort_streams(a);
}

void mu_averager_match_pump(struct mu_averager *a)
{
    struct mu_matchmaker_event e;

    while (a->match != NULL && mu_matchmaker_next_event(a->match, &e)) {
        switch (e.type) {
        case MU_MATCHMAKER_DECLARE:
        case MU_MATCHMAKER_LEAVE:
            a->store_value = e.type == MU_MATCHMAKER_DECLARE;
            a->store_expiration = e.expiration;
            memcpy(a->store_key, a->result_key, sizeof(a->store_key));
            store(a);
            break;
        case MU_MATCHMAKER_FETCH:
            fetch(a, e.number);
            break;
        case MU_MATCHMAKER_CALL:
            ask(a, &e);
            break;
        case MU_MATCHMAKER_HANG_UP:
            if (a->asking.number == e.number) {
                hang_up(a);
            }
            break;
        case MU_MATCHMAKER_REPLY:
            reply(a, &e);
            break;
        case MU_MATCHMAKER_END:
            end_search(a);
            break;
        }
    }
}
