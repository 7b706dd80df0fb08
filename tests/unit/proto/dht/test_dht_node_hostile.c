/* What a node of the DHT must not take it refuses with its own reason. */
#include "unit.h"

#include "codec/bin/msgpack.h"
#include "core/alloc.h"
#include "crypto/identity.h"
#include "dht_swarm.h"

/* --- poisoners -------------------------------------------------------------------------------- */

/* Has node 0 asked to store, by a stranger; how many of the items it took. */
static size_t poison(const struct mu_dht_item *items, size_t count)
{
    struct mu_peer_id stranger = swarm_peer(50);
    struct mu_dht_head head = {0};
    struct mu_dht_store_reply decoded;
    struct swarm_reply reply;
    struct mu_buf message;
    size_t taken = 0;
    bool ok;

    mu_buf_init(&message, 8 << 20);
    assert_int_equal(mu_dht_store_encode(&message, &head, items, count), 0);
    reply = swarm_ask(0, &stranger, MU_DHT_STORE, mu_buf_span(&message));
    assert_int_equal(reply.status, 0);
    assert_int_equal(mu_dht_store_reply_decode(mu_buf_span(&reply.message), &decoded), 0);
    assert_int_equal(decoded.count, count);
    while (mu_dht_store_reply_next(&decoded, &ok)) {
        taken += ok;
    }
    mu_buf_fini(&reply.message);
    mu_buf_fini(&message);
    return taken;
}

static struct mu_dht_stats stats_of(size_t n)
{
    struct mu_dht_stats stats;

    mu_dht_stats(swarm[n].dht, &stats);
    return stats;
}

static void test_dht_node_refuses_what_would_last_for_ever(void **unused)
{
    struct mu_dht_item items[] = {
        {.key = swarm_key("a"),
         .tag = MU_DHT_TAG_REGULAR,
         .value = MU_SPAN_LIT("\x01"),
         .expiration = 1e18},
        {.key = swarm_key("b"),
         .tag = MU_DHT_TAG_REGULAR,
         .value = MU_SPAN_LIT("\x01"),
         .expiration = __builtin_inf()},
        {.key = swarm_key("c"),
         .tag = MU_SPAN_LIT("\x05"),
         .value = MU_SPAN_LIT("\x01"),
         .expiration = 1e300,
         .in_cache = true},
    };

    (void)unused;
    swarm_start(1);
    assert_int_equal(poison(items, 3), 0);
    assert_int_equal(stats_of(0).refused_future, 3);
    assert_int_equal(stats_of(0).records + stats_of(0).cached, 0);
}

static void test_dht_node_refuses_ten_thousand_subkeys(void **unused)
{
    struct mu_dht_item *items = mu_calloc(10000, sizeof(*items));
    uint8_t(*tags)[5] = mu_calloc(10000, sizeof(*tags));
    struct mu_dht_item honest = {.key = swarm_key("dict"),
                                 .tag = MU_SPAN_LIT("\xa6honest"),
                                 .value = MU_SPAN_LIT("\x01"),
                                 .expiration = SWARM_WALL + 60};
    struct mu_dht_put put = {honest.key, honest.tag, honest.value, honest.expiration};
    struct mu_dht_owner_validator validator;
    struct mu_dht_config config = swarm_config(0);
    struct mu_dht_op *op;
    size_t taken;

    (void)unused;
    swarm_start(0);
    assert_int_equal(mu_dht_owner_init(&validator, NULL), 0);
    assert_int_equal(mu_dht_chain_add(&config.chain, &validator.base), 0);
    swarm_add(&config);
    for (uint32_t i = 0; i < 10000; i++) {
        memcpy(tags[i], (uint8_t[]){0xce, 0, (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i}, 5);
        items[i] = (struct mu_dht_item){.key = swarm_key("dict"),
                                        .tag = mu_span(tags[i], 5),
                                        .value = MU_SPAN_LIT("\x01"),
                                        .expiration = SWARM_WALL + 100};
    }
    taken = poison(items, 10000);
    assert_int_equal(taken, 1024);
    assert_int_equal(stats_of(0).refused_subkeys, 10000 - 1024);
    assert_true(stats_of(0).bytes < 1 << 20);
    op = swarm_store(0, &put, 1); /* an honest writer still has room */
    assert_int_equal(op->results[0].stored, 1);
    mu_dht_op_free(op);
    mu_free(items);
    mu_free(tags);
    mu_dht_owner_fini(&validator);
}

static void test_dht_node_checks_only_so_many_signatures_for_a_request(void **unused)
{
    struct mu_dht_owner_validator validator;
    struct mu_dht_config config = swarm_config(0);
    struct mu_dht_item items[20];

    (void)unused;
    swarm_start(0);
    config.owned_max = 8;
    assert_int_equal(mu_dht_owner_init(&validator, NULL), 0);
    assert_int_equal(mu_dht_chain_add(&config.chain, &validator.base), 0);
    swarm_add(&config);
    for (size_t i = 0; i < 20; i++) {
        items[i] = (struct mu_dht_item){.key = swarm_key("progress"),
                                        .tag = MU_SPAN_LIT("\xaa[owner:me]"),
                                        .value = MU_SPAN_LIT("\x01"),
                                        .expiration = SWARM_WALL + 60};
    }
    items[19].tag = MU_DHT_TAG_REGULAR; /* costs nothing, and so is none of them */
    assert_int_equal(poison(items, 20), 1);
    assert_int_equal(stats_of(0).refused_owner, 8);
    assert_int_equal(stats_of(0).refused_full, 11);
    assert_int_equal(poison(items, 8), 0); /* each request has its own */
    assert_int_equal(stats_of(0).refused_owner, 16);
    mu_dht_owner_fini(&validator);
}

static void test_dht_node_refuses_unsigned_records_of_an_owner(void **unused)
{
    struct mu_dht_owner_validator validator;
    struct mu_dht_owner_validator strangers;
    struct mu_dht_config config = swarm_config(0);
    struct mu_identity owner;
    struct mu_identity stranger;
    struct mu_buf tag;
    struct mu_buf forged;
    struct mu_mp_out mp;
    struct mu_dht_item item = {.key = swarm_key("progress"), .expiration = SWARM_WALL + 60};
    struct mu_dht_claim claim;
    struct mu_dht_put put;
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    struct mu_dht_op *op;

    (void)unused;
    assert_int_equal(mu_identity_generate_rsa(&owner, 2048), 0);
    assert_int_equal(mu_identity_generate_rsa(&stranger, 2048), 0);
    assert_int_equal(mu_dht_owner_init(&validator, &owner), 0);
    assert_int_equal(mu_dht_owner_init(&strangers, &stranger), 0);
    swarm_start(0);
    assert_int_equal(mu_dht_chain_add(&config.chain, &validator.base), 0);
    swarm_add(&config);
    mu_buf_init(&tag, 4096);
    mu_buf_init(&forged, 4096);
    mp = mu_mp_out(&tag);
    mu_mp_put_bin(&mp, mu_dht_owner_mark(&validator));
    item.tag = mu_buf_span(&tag);
    item.value = MU_SPAN_LIT("\x07");
    assert_int_equal(poison(&item, 1), 0); /* not signed at all */
    claim = (struct mu_dht_claim){mu_dht_id_span(&item.key), item.tag, item.value, item.expiration};
    assert_int_equal(strangers.base.sign(&strangers.base, &claim, &forged), 0);
    item.value = mu_buf_span(&forged);
    assert_int_equal(poison(&item, 1), 0); /* a stranger does not even try to sign it */
    assert_int_equal(stats_of(0).refused_owner, 2);
    assert_int_equal(stats_of(0).records, 0);

    put = (struct mu_dht_put){item.key, mu_buf_span(&tag), MU_SPAN_LIT("\x08"), item.expiration};
    op = swarm_store(0, &put, 1);
    assert_int_equal(op->results[0].stored, 1);
    mu_dht_op_free(op);
    op = swarm_get(0, &item.key, true);
    assert_int_equal(mu_dht_dict_decode(mu_buf_span(&op->results[0].value), &dict), 0);
    assert_true(mu_dht_dict_next(&dict, &e));
    assert_span_text(e.value, "\x08"); /* without the signature */
    mu_dht_op_free(op);

    /* What the owner signed may be passed on, but neither be changed nor prolonged. */
    mu_buf_reset(&forged);
    claim.value = MU_SPAN_LIT("\x09");
    assert_int_equal(validator.base.sign(&validator.base, &claim, &forged), 0);
    item.value = mu_buf_span(&forged);
    item.expiration += 1;
    assert_int_equal(poison(&item, 1), 0);
    assert_int_equal(stats_of(0).refused_owner, 3);
    mu_buf_fini(&tag);
    mu_buf_fini(&forged);
    mu_dht_owner_fini(&validator);
    mu_dht_owner_fini(&strangers);
    mu_identity_fini(&owner);
    mu_identity_fini(&stranger);
}

/* One who answers finds: false records, and nodes that nobody has ever seen. */
struct liar {
    struct mu_dht_finding finding;
    struct mu_dht_neighbour near[80];
    uint32_t asked;
};

static void answer_with_lies(struct mu_dht *d, struct liar *liar, const struct mu_dht_event *e)
{
    struct mu_dht_head head = {.has_node = true, .node = swarm_key("liar")};
    struct mu_buf message;

    mu_buf_init(&message, 8 << 20);
    if (e->method == MU_DHT_PING) {
        struct mu_dht_ping_reply reply = {.head = head, .dht_time = swarm_time()};

        assert_int_equal(mu_dht_ping_reply_encode(&message, &reply), 0);
    } else if (e->method == MU_DHT_FIND) {
        for (size_t i = 0; i < 80; i++) {
            uint32_t number = liar->asked * 80 + (uint32_t)i;

            liar->near[i].node = mu_dht_key(mu_span(&number, sizeof(number)));
            liar->near[i].peer = swarm_peer(100);
            memcpy(liar->near[i].peer.bytes + 4, &number, sizeof(number));
        }
        liar->finding.near = liar->near;
        liar->finding.near_count = 80;
        liar->asked++;
        assert_int_equal(mu_dht_finding_encode(&message, &liar->finding), 0);
        assert_int_equal(mu_dht_find_reply_end(&message, &head), 0);
    }
    mu_dht_answer(d, swarm_now(), e->number, message.len == 0 ? MUSTER_ECONN : 0,
                  mu_buf_span(&message));
    mu_buf_fini(&message);
}

/* All whom the node asks lie. */
static struct mu_dht_op *run_among_liars(struct mu_dht *d, struct liar *liar)
{
    struct mu_dht_event e;
    struct mu_dht_op *ended = NULL;

    while (mu_dht_next_event(d, &e)) {
        if (e.type == MU_DHT_EVENT_CALL) {
            answer_with_lies(d, liar, &e);
        } else if (e.type == MU_DHT_EVENT_ENDED) {
            ended = e.op;
        }
    }
    assert_non_null(ended);
    return ended;
}

static void test_dht_node_takes_nothing_false_from_those_it_asks(void **unused)
{
    static struct liar liar;
    struct mu_dht_owner_validator validator;
    struct mu_dht_config config = swarm_config(0);
    struct mu_peer_id peer = swarm_peer(99);
    struct mu_dht_id id = swarm_key("key");
    struct mu_dht_entry lies[] = {
        {MU_SPAN_LIT("\xaa[owner:me]"), MU_SPAN_LIT("\x01"), SWARM_WALL + 60},
        {MU_SPAN_LIT("\xa1x"), MU_SPAN_LIT("\x01"), 1e18},
        {MU_SPAN_LIT("\xa1y"), MU_SPAN_LIT("\x01"), SWARM_WALL - 1},
    };
    struct mu_dht_op *op;
    struct mu_dht *d;
    struct mu_buf dict;
    size_t len = 0;

    (void)unused;
    memset(&liar, 0, sizeof(liar));
    swarm_start(0);
    assert_int_equal(mu_dht_owner_init(&validator, NULL), 0);
    assert_int_equal(mu_dht_chain_add(&config.chain, &validator.base), 0);
    assert_int_equal(mu_dht_new(&config, &d), 0);
    assert_int_equal(mu_dht_bootstrap(d, swarm_now(), &peer, 1, &op), 0);
    mu_dht_op_free(run_among_liars(d, &liar));

    mu_buf_init(&dict, 4096);
    for (size_t i = 0; i < 3; i++) {
        len += mu_dht_entry_len(&lies[i]);
    }
    assert_int_equal(mu_dht_dict_begin(&dict, SWARM_WALL + 60, 3, len), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_dht_dict_put(&dict, &lies[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        struct mu_dht_finding lie[] = {
            {MU_DHT_FOUND_DICTIONARY, mu_buf_span(&dict), SWARM_WALL + 60, NULL, 0},
            {MU_DHT_FOUND_REGULAR, MU_SPAN_LIT("\x01"), 1e18, NULL, 0},
            {MU_DHT_FOUND_REGULAR, MU_SPAN_LIT("\x01"), SWARM_WALL - 1, NULL, 0},
        };

        liar.finding = lie[i];
        liar.asked = 0;
        assert_int_equal(mu_dht_get(d, swarm_now(), &id, 1, true, &op), 0);
        assert_ptr_equal(run_among_liars(d, &liar), op);
        assert_int_equal(op->results[0].type, MU_DHT_NOT_FOUND);
        assert_true(op->results[0].calls <= config.search_calls_max);
        mu_dht_op_free(op);
        swarm_tick(60000); /* whom it has called in vain it calls again */
    }
    mu_dht_free(d);
    mu_buf_fini(&dict);
    mu_dht_owner_fini(&validator);
}

static void test_dht_node_answers_nonsense_with_an_error(void **unused)
{
    struct mu_peer_id stranger = swarm_peer(50);

    (void)unused;
    swarm_start(2);
    for (int method = MU_DHT_PING; method <= MU_DHT_FIND; method++) {
        struct swarm_reply reply =
            swarm_ask(0, &stranger, (enum mu_dht_method)method, MU_SPAN_LIT("\x12\xff\xff"));

        assert_int_equal(reply.status, MUSTER_EPROTO);
        assert_true(reply.message.len > 0);
        mu_buf_fini(&reply.message);
    }
    assert_int_equal(swarm_store_text(1, "key", "\x2a", 60), 2);
}

static void test_dht_node_pings_back_whom_it_is_to_validate(void **unused)
{
    struct mu_dht_ping ping = {.head = {.has_node = true, .node = {{9}}}, .validate = true};
    struct mu_dht_ping_reply decoded;
    struct mu_peer_id liar = swarm_peer(1); /* who has another id than this */
    struct swarm_reply reply;
    struct mu_buf message;

    (void)unused;
    swarm_start(2);
    mu_buf_init(&message, 256);
    assert_int_equal(mu_dht_ping_encode(&message, &ping), 0);
    reply = swarm_ask(0, &liar, MU_DHT_PING, mu_buf_span(&message));
    assert_int_equal(mu_dht_ping_reply_decode(mu_buf_span(&reply.message), &decoded), 0);
    assert_false(decoded.available);
    assert_false(mu_dht_table_knows(mu_dht_routing(swarm[0].dht), &ping.head.node));
    assert_true(decoded.dht_time == swarm_time());
    mu_buf_fini(&reply.message);
    mu_buf_reset(&message);
    ping.head.node = swarm_config(1).self.node;
    assert_int_equal(mu_dht_ping_encode(&message, &ping), 0);
    reply = swarm_ask(0, &liar, MU_DHT_PING, mu_buf_span(&message));
    assert_int_equal(mu_dht_ping_reply_decode(mu_buf_span(&reply.message), &decoded), 0);
    assert_true(decoded.available);
    mu_buf_fini(&reply.message);
    mu_buf_fini(&message);
}

/* --- limits ----------------------------------------------------------------------------------- */

static struct mu_dht *lone_node(const struct mu_dht_config *config)
{
    struct mu_dht *d;

    swarm_ns = 0;
    assert_int_equal(mu_dht_new(config, &d), 0);
    return d;
}

/* A stranger wants to know whether it can be reached: the node's next event. */
static struct mu_dht_event ask_for_a_ping(struct mu_dht *d, uint64_t token)
{
    struct mu_dht_ping ping = {.head = {.has_node = true, .node = {{(uint8_t)token}}},
                               .validate = true};
    struct mu_peer_id stranger = swarm_peer(token);
    struct mu_dht_event event;
    struct mu_buf message;

    mu_buf_init(&message, 256);
    assert_int_equal(mu_dht_ping_encode(&message, &ping), 0);
    assert_int_equal(
        mu_dht_request(d, swarm_now(), token, &stranger, MU_DHT_PING, mu_buf_span(&message)), 0);
    mu_buf_fini(&message);
    assert_true(mu_dht_next_event(d, &event));
    return event;
}

/* Two are pinged back at a time, others are told at once that they were not reached. */
static void assert_two_are_pinged_back(const struct mu_dht_config *config)
{
    struct mu_dht *d = lone_node(config);
    struct mu_dht_ping_reply reply;
    struct mu_dht_event first = ask_for_a_ping(d, 1);
    struct mu_dht_event event;

    assert_int_equal(first.type, MU_DHT_EVENT_CALL);
    assert_int_equal(ask_for_a_ping(d, 2).type, MU_DHT_EVENT_CALL);
    event = ask_for_a_ping(d, 3);
    assert_int_equal(event.type, MU_DHT_EVENT_REPLY);
    assert_int_equal(event.number, 3);
    assert_int_equal(event.status, 0);
    assert_int_equal(mu_dht_ping_reply_decode(event.message, &reply), 0);
    assert_false(reply.available);
    mu_dht_answer(d, swarm_now(), first.number, MUSTER_ECONN, (struct mu_span){0});
    assert_true(mu_dht_next_event(d, &event));
    assert_int_equal(event.type, MU_DHT_EVENT_REPLY);
    assert_int_equal(event.number, 1);
    assert_int_equal(ask_for_a_ping(d, 4).type, MU_DHT_EVENT_CALL);
    mu_dht_free(d);
}

static void test_dht_node_pings_back_so_many_at_a_time(void **unused)
{
    struct mu_dht_config config = swarm_config(9);

    (void)unused;
    config.requests_max = 2;
    assert_two_are_pinged_back(&config);
}

static void test_dht_node_makes_so_many_calls_at_a_time(void **unused)
{
    struct mu_dht_config config = swarm_config(9);

    (void)unused;
    config.calls_max = 2;
    assert_two_are_pinged_back(&config);
}

static void test_dht_node_reads_no_longer_message(void **unused)
{
    static uint8_t value[3 + 200] = {0xc5, 0, 200};
    struct mu_dht_item item = {.key = {{1}},
                               .tag = MU_DHT_TAG_REGULAR,
                               .value = mu_span(value, sizeof(value)),
                               .expiration = swarm_time() + 60};
    struct mu_peer_id stranger = swarm_peer(50);
    struct mu_buf message;

    (void)unused;
    mu_buf_init(&message, 1024);
    assert_int_equal(mu_dht_store_encode(&message, &(struct mu_dht_head){0}, &item, 1), 0);
    for (size_t shorter = 0; shorter < 2; shorter++) {
        struct mu_dht_config config = swarm_config(9);
        struct mu_dht_event event;
        struct mu_dht *d;

        config.message_len_max = message.len - shorter;
        d = lone_node(&config);
        assert_int_equal(
            mu_dht_request(d, swarm_now(), 1, &stranger, MU_DHT_STORE, mu_buf_span(&message)), 0);
        assert_true(mu_dht_next_event(d, &event));
        assert_int_equal(event.type, MU_DHT_EVENT_REPLY);
        assert_int_equal(event.status, shorter == 0 ? 0 : MUSTER_ELIMIT);
        assert_int_equal(mu_dht_main_storage(d)->by_key.count, 1 - shorter);
        mu_dht_free(d);
    }
    mu_buf_fini(&message);
}

/* A record that an answer cannot carry is not in it; the rest of the answer is. */
static void test_dht_node_writes_no_longer_message(void **unused)
{
    static const struct mu_dht_id keys[] = {{{1}}, {{2}}};
    static uint8_t value[100000];
    struct mu_dht_config config = swarm_config(9);
    struct mu_peer_id stranger = swarm_peer(50);
    struct mu_dht_find_reply reply;
    struct mu_dht_found found;
    struct mu_dht_event event;
    struct mu_buf message;
    struct mu_dht *d;

    (void)unused;
    config.message_len_max = sizeof(value);
    d = lone_node(&config);
    assert_int_equal(mu_dht_storage_put(mu_dht_main_storage(d), swarm_time(), NULL, &keys[0],
                                        mu_span(value, sizeof(value)), swarm_time() + 60),
                     0);
    assert_int_equal(mu_dht_storage_put(mu_dht_main_storage(d), swarm_time(), NULL, &keys[1],
                                        MU_SPAN_LIT("short"), swarm_time() + 60),
                     0);
    mu_buf_init(&message, 1024);
    assert_int_equal(mu_dht_find_encode(&message, &(struct mu_dht_head){0}, keys, 2), 0);
    assert_int_equal(
        mu_dht_request(d, swarm_now(), 1, &stranger, MU_DHT_FIND, mu_buf_span(&message)), 0);
    assert_true(mu_dht_next_event(d, &event));
    assert_int_equal(event.status, 0);
    assert_true(event.message.len <= config.message_len_max);
    assert_int_equal(mu_dht_find_reply_decode(event.message, &reply), 0);
    assert_true(mu_dht_find_reply_next(&reply, &found));
    assert_int_equal(found.type, MU_DHT_NOT_FOUND);
    assert_true(mu_dht_find_reply_next(&reply, &found));
    assert_int_equal(found.type, MU_DHT_FOUND_REGULAR);
    assert_span_text(found.value, "short");
    mu_buf_fini(&message);
    mu_dht_free(d);
}

/* Runs an operation at a node that knows one other, which says that peer `n` is near: whether the
 * node calls that peer, which never answers. */
static bool calls_when_told_of(struct mu_dht *d, uint32_t n)
{
    struct mu_dht_id id = swarm_key("key");
    struct mu_dht_neighbour dead = {.node = mu_dht_key(mu_span(&n, sizeof(n))),
                                    .peer = swarm_peer(100)};
    struct mu_dht_finding finding = {.near = &dead, .near_count = 1};
    struct mu_dht_head head = {.has_node = true, .node = swarm_key("known")};
    struct mu_dht_event e;
    struct mu_dht_op *op;
    struct mu_buf message;
    bool called = false;

    memcpy(dead.peer.bytes + 4, &n, sizeof(n));
    mu_buf_init(&message, 4096);
    assert_int_equal(mu_dht_finding_encode(&message, &finding), 0);
    assert_int_equal(mu_dht_find_reply_end(&message, &head), 0);
    assert_int_equal(mu_dht_get(d, swarm_now(), &id, 1, true, &op), 0);
    while (mu_dht_next_event(d, &e)) {
        bool is_dead = mu_peer_id_eq(&e.peer, &dead.peer);

        if (e.type == MU_DHT_EVENT_CALL) {
            called = called || is_dead;
            mu_dht_answer(d, swarm_now(), e.number, is_dead ? MUSTER_ECONN : 0,
                          mu_buf_span(&message));
        }
    }
    mu_buf_fini(&message);
    mu_dht_op_free(op);
    return called;
}

/* A node remembers so many peers that did not answer; for one more it forgets the first. Meets
 * BLACKLIST_MAX of proto/dht/node.c. */
static void test_dht_node_remembers_so_many_that_failed(void **unused)
{
    struct mu_dht_config config = swarm_config(0);
    struct mu_dht_ping ping = {.head = {.has_node = true, .node = swarm_key("known")}};
    struct mu_peer_id known = swarm_peer(99);
    struct mu_dht *d = lone_node(&config);
    struct mu_buf message;

    (void)unused;
    mu_buf_init(&message, 256);
    assert_int_equal(mu_dht_ping_encode(&message, &ping), 0);
    assert_int_equal(mu_dht_request(d, swarm_now(), 1, &known, MU_DHT_PING, mu_buf_span(&message)),
                     0);
    mu_buf_fini(&message);
    for (uint32_t n = 0; n < 4096; n++) {
        assert_true(calls_when_told_of(d, n));
    }
    assert_false(calls_when_told_of(d, 0));
    assert_false(calls_when_told_of(d, 4095));
    assert_true(calls_when_told_of(d, 4096));
    assert_true(calls_when_told_of(d, 0)); /* For this one, it forgets the second. */
    assert_false(calls_when_told_of(d, 2));
    assert_false(calls_when_told_of(d, 4096));
    mu_dht_free(d);
}

#define T(name) cmocka_unit_test_teardown(name, swarm_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_dht_node_refuses_what_would_last_for_ever),
        T(test_dht_node_refuses_ten_thousand_subkeys),
        T(test_dht_node_checks_only_so_many_signatures_for_a_request),
        T(test_dht_node_refuses_unsigned_records_of_an_owner),
        T(test_dht_node_takes_nothing_false_from_those_it_asks),
        T(test_dht_node_answers_nonsense_with_an_error),
        T(test_dht_node_pings_back_whom_it_is_to_validate),
        T(test_dht_node_pings_back_so_many_at_a_time),
        T(test_dht_node_makes_so_many_calls_at_a_time),
        T(test_dht_node_reads_no_longer_message),
        T(test_dht_node_writes_no_longer_message),
        T(test_dht_node_remembers_so_many_that_failed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
