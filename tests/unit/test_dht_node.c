/* Nodes of the DHT, several in memory: what is stored is found, who comes gets his part, and what
 * a node must not take it refuses with its own reason. */
#include "unit.h"

#include "codec/msgpack.h"
#include "core/alloc.h"
#include "crypto/identity.h"
#include "dht_swarm.h"
#include "failheap.h"

static struct mu_dht_id key_of(const char *text)
{
    struct mu_dht_id id;

    assert_int_equal(mu_dht_key_text(mu_span_str(text), &id), 0);
    return id;
}

static uint32_t store_text(size_t n, const char *key, const char *value, double in_s)
{
    struct mu_dht_put put = {
        .key = key_of(key), .value = mu_span_str(value), .expiration = swarm_time() + in_s};
    struct mu_dht_op *op = swarm_store(n, &put, 1);
    uint32_t stored = op->results[0].stored;

    mu_dht_op_free(op);
    return stored;
}

static void assert_found(size_t n, const char *key, bool latest, const char *value)
{
    struct mu_dht_id id = key_of(key);
    struct mu_dht_op *op = swarm_get(n, &id, latest);

    assert_int_equal(op->status, 0);
    if (value == NULL) {
        assert_int_equal(op->results[0].type, MU_DHT_NOT_FOUND);
    } else {
        assert_int_equal(op->results[0].type, MU_DHT_FOUND_REGULAR);
        assert_span_text(mu_buf_span(&op->results[0].value), value);
    }
    mu_dht_op_free(op);
}

static size_t count_keepers(const char *key)
{
    struct mu_dht_id id = key_of(key);
    size_t count = 0;

    for (size_t i = 0; i < swarm_count; i++) {
        count += mu_dht_storage_get(mu_dht_main_storage(swarm[i].dht), swarm_time(), &id) != NULL;
    }
    return count;
}

static int tear_down(void **unused)
{
    (void)unused;
    swarm_stop();
    return 0;
}

/* --- storing and finding ---------------------------------------------------------------------- */

static void test_dht_node_what_one_stores_all_find(void **unused)
{
    (void)unused;
    swarm_start(40);
    assert_int_equal(store_text(3, "key", "\x2a", 60), 5);
    assert_int_equal(count_keepers("key"), 5);
    for (size_t i = 0; i < 40; i++) {
        assert_found(i, "key", i % 2 == 0, "\x2a");
    }
    assert_found(7, "another", true, NULL);
}

static void test_dht_node_finds_nothing_that_has_expired(void **unused)
{
    (void)unused;
    swarm_start(10);
    assert_int_equal(store_text(0, "key", "\x2a", 10), 5);
    assert_found(5, "key", false, "\x2a"); /* and has it in its cache now */
    swarm_ns += 9999 * MU_NS_PER_MS;
    assert_found(5, "key", false, "\x2a");
    swarm_ns += MU_NS_PER_MS;
    for (size_t i = 0; i < 10; i++) {
        assert_found(i, "key", false, NULL);
    }
}

static void test_dht_node_of_two_values_the_later_expiration_wins(void **unused)
{
    (void)unused;
    swarm_start(12);
    assert_int_equal(store_text(0, "key", "\x01", 100), 5);
    assert_int_equal(store_text(1, "key", "\x02", 50), 0);
    assert_found(2, "key", true, "\x01");
    assert_int_equal(store_text(3, "key", "\x03", 200), 5);
    for (size_t i = 0; i < 12; i++) {
        assert_found(i, "key", true, "\x03");
    }
}

static void test_dht_node_subkeys_of_several_writers_are_one_dictionary(void **unused)
{
    struct mu_dht_id id = key_of("dict");
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    struct mu_dht_op *op;
    unsigned seen = 0;

    (void)unused;
    swarm_start(12);
    for (uint8_t i = 0; i < 6; i++) {
        struct mu_dht_put put = {id, mu_span(&i, 1), mu_span(&i, 1), swarm_time() + 10 + i};

        op = swarm_store(i, &put, 1);
        assert_int_equal(op->results[0].stored, 5);
        mu_dht_op_free(op);
    }
    swarm_ns += 11500 * MU_NS_PER_MS; /* the first two are over */
    op = swarm_get(9, &id, true);
    assert_int_equal(op->results[0].type, MU_DHT_FOUND_DICTIONARY);
    assert_int_equal(mu_dht_dict_decode(mu_buf_span(&op->results[0].value), &dict), 0);
    while (mu_dht_dict_next(&dict, &e)) {
        assert_true(mu_span_eq(e.subkey, e.value) && e.expiration > swarm_time());
        seen |= 1u << e.subkey.data[0];
    }
    assert_int_equal(seen, 0x3c);
    mu_dht_op_free(op);
}

static void test_dht_node_most_may_die_and_it_is_still_found(void **unused)
{
    (void)unused;
    swarm_start(20);
    assert_int_equal(store_text(0, "key", "\x2a", 600), 5);
    for (size_t i = 1, killed = 0; i < 20 && killed < 4; i++) {
        struct mu_dht_id id = key_of("key");

        if (mu_dht_storage_get(mu_dht_main_storage(swarm[i].dht), swarm_time(), &id) != NULL) {
            swarm[i].dead = true;
            killed++;
        }
    }
    for (size_t i = 0; i < 20; i++) {
        if (!swarm[i].dead) {
            assert_found(i, "key", true, "\x2a");
        }
    }
}

static void test_dht_node_a_newcomer_gets_what_it_should_keep(void **unused)
{
    struct mu_dht_config config;
    struct mu_dht_id id = key_of("key");

    (void)unused;
    swarm_start(12);
    assert_int_equal(store_text(0, "key", "\x2a", 600), 5);
    config = swarm_config(12);
    config.self.node = id; /* as near as can be */
    swarm_add(&config);
    assert_non_null(mu_dht_storage_get(mu_dht_main_storage(swarm[12].dht), swarm_time(), &id));
}

static void test_dht_node_a_client_asks_and_is_not_known(void **unused)
{
    struct mu_dht_config config;
    struct mu_peer_id from = swarm_peer(1);
    struct swarm_reply reply;

    (void)unused;
    swarm_start(8);
    config = swarm_config(8);
    config.client = true;
    swarm_add(&config);
    assert_int_equal(store_text(8, "key", "\x2a", 60), 5);
    assert_found(8, "key", true, "\x2a");
    for (size_t i = 0; i < 8; i++) {
        assert_false(mu_dht_table_knows(mu_dht_routing(swarm[i].dht), &config.self.node));
    }
    reply = swarm_ask(8, &from, MU_DHT_FIND, (struct mu_span){0});
    assert_int_equal(reply.status, MUSTER_ENOMETHOD);
    mu_buf_fini(&reply.message);
}

static void test_dht_node_that_has_lost_everybody_comes_back_with_its_records(void **unused)
{
    struct mu_dht_stats stats;

    (void)unused;
    swarm_start(8);
    for (size_t i = 0; i < 7; i++) {
        swarm[i].dead = true;
    }
    assert_int_equal(store_text(7, "key", "\x2a", 6000), 1); /* itself */
    for (int i = 0; i < 200 && mu_dht_routing(swarm[7].dht)->count > 0; i++) {
        assert_found(7, "nothing", true, NULL);
        swarm_tick(1000);
    }
    assert_int_equal(mu_dht_routing(swarm[7].dht)->count, 0);
    for (size_t i = 0; i < 7; i++) {
        swarm[i].dead = false;
    }
    for (int i = 0; i < 20; i++) {
        swarm_tick(1000);
    }
    mu_dht_stats(swarm[7].dht, &stats);
    assert_int_equal(stats.rejoins, 1);
    assert_true(count_keepers("key") >= 5);
    assert_found(2, "key", true, "\x2a");
}

/* Who failed is left alone for a while, but not longer than until it has answered something. */
static void test_dht_node_asks_again_who_has_answered_a_ping_since_it_failed(void **unused)
{
    struct mu_peer_id other = swarm_peer(1);
    struct mu_dht_op *op;

    (void)unused;
    swarm_start(2);
    swarm[1].dead = true;
    assert_int_equal(store_text(0, "key", "\x2a", 6000), 1); /* itself */
    swarm[1].dead = false;
    assert_int_equal(mu_dht_bootstrap(swarm[0].dht, swarm_now(), &other, 1, &op), 0);
    mu_dht_op_free(swarm_finish(op));
    assert_int_equal(store_text(0, "key", "\x2b", 6001), 2);
}

static unsigned first_difference(const struct mu_dht_id *a, const struct mu_dht_id *b)
{
    unsigned bit = 0;

    while (((a->bytes[bit / 8] ^ b->bytes[bit / 8]) >> (7 - bit % 8) & 1) == 0) {
        bit++;
    }
    return bit;
}

/* Of the other half, and of the other quarter of its own half, each node knows somebody. */
static void test_dht_node_knows_some_in_every_part_of_the_space(void **unused)
{
    (void)unused;
    swarm_start(SWARM_MAX);
    for (size_t i = 0; i < SWARM_MAX; i++) {
        struct mu_dht_id self = swarm_config(i).self.node;
        size_t known[8 * MU_DHT_ID_LEN] = {0};

        for (size_t j = 0; j < SWARM_MAX; j++) {
            struct mu_dht_id other = swarm_config(j).self.node;

            if (i != j && mu_dht_table_knows(mu_dht_routing(swarm[i].dht), &other)) {
                known[first_difference(&self, &other)]++;
            }
        }
        assert_true(known[0] >= 3 && known[1] >= 3);
    }
}

static void test_dht_node_sees_by_itself_who_is_gone(void **unused)
{
    struct mu_dht_config gone = swarm_config(3);

    (void)unused;
    swarm_start(8);
    swarm[3].dead = true;
    for (int i = 0; i < 200; i++) {
        swarm_tick(1000);
    }
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(mu_dht_table_knows(mu_dht_routing(swarm[i].dht), &gone.self.node), false);
        assert_int_equal(mu_dht_routing(swarm[i].dht)->count, i == 3 ? 7 : 6);
    }
}

/* Nodes that do not answer are found out by asking. */
static void forget_the_dead(size_t first, size_t count, size_t left)
{
    for (int i = 0; i < 200; i++) {
        size_t known = 0;

        for (size_t n = first; n < first + count; n++) {
            assert_found(n, "nothing", true, NULL);
            known += mu_dht_routing(swarm[n].dht)->count;
        }
        if (known == count * left) {
            return;
        }
        swarm_tick(1000);
    }
    fail_msg("the dead are still known");
}

static void set_dead(size_t first, size_t count, bool dead)
{
    for (size_t i = first; i < first + count; i++) {
        swarm[i].dead = dead;
    }
}

/* Two who have lost the others and not each other: neither is alone, and both are away. */
static void test_dht_node_two_that_were_cut_off_together_come_back(void **unused)
{
    struct mu_dht_stats stats;

    (void)unused;
    swarm_start(8);
    set_dead(6, 2, true);
    forget_the_dead(0, 6, 5);
    set_dead(6, 2, false);
    set_dead(0, 6, true);
    forget_the_dead(6, 2, 1);
    assert_int_equal(store_text(7, "key", "\x2a", 6000), 2);
    set_dead(0, 6, false);
    for (int i = 0; i < 100; i++) {
        swarm_tick(1000);
    }
    mu_dht_stats(swarm[7].dht, &stats);
    assert_int_equal(stats.rejoins, 1);
    assert_int_equal(mu_dht_routing(swarm[7].dht)->count, 7);
    assert_true(count_keepers("key") >= 5);
    assert_found(2, "key", true, "\x2a");
}

static void test_dht_node_asks_again_before_what_it_has_read_expires(void **unused)
{
    struct mu_dht_id id = key_of("key");
    size_t reader = 2;

    (void)unused;
    swarm_start(12);
    assert_int_equal(store_text(0, "key", "\x01", 20), 5);
    /* Somebody who is not one of those that keep it anyway. */
    while (mu_dht_storage_get(mu_dht_main_storage(swarm[reader].dht), swarm_time(), &id) != NULL) {
        reader++;
    }
    assert_found(reader, "key", false, "\x01");
    assert_found(reader, "key", false, "\x01");
    assert_int_equal(store_text(1, "key", "\x02", 600), 5);
    assert_null(mu_dht_storage_get(mu_dht_main_storage(swarm[reader].dht), swarm_time(), &id));
    for (int i = 0; i < 19; i++) {
        swarm_tick(1000);
    }
    for (size_t i = 0; i < 12; i++) {
        swarm[i].dead = i != reader; /* what it has now it has asked for by itself */
    }
    swarm_ns += 5 * MU_NS_PER_S;
    assert_found(reader, "key", false, "\x02");
}

/* Found far from where it belongs: it is cached where others look first, and they find it there. */
static void test_dht_node_what_is_found_is_cached_at_the_nearest(void **unused)
{
    struct mu_dht_id id = key_of("key");
    struct mu_dht_neighbour near[12];
    size_t far;
    size_t count;

    (void)unused;
    swarm_start(12);
    count = mu_dht_table_nearest(mu_dht_routing(swarm[0].dht), &id, 12, NULL, near);
    assert_int_equal(count, 11);
    far = near[count - 1].peer.bytes[2];
    assert_int_equal(mu_dht_storage_put(mu_dht_main_storage(swarm[far].dht), swarm_time(), NULL,
                                        &id, MU_SPAN_LIT("\x2a"), swarm_time() + 60),
                     0);
    assert_found(0, "key", true, "\x2a");
    assert_int_equal(count_keepers("key"), 1); /* a cache is not a place to keep it */
    swarm[far].dead = swarm[0].dead = true;
    assert_found(near[1].peer.bytes[2], "key", true, "\x2a");
    swarm_ns += 60 * MU_NS_PER_S;
    assert_found(near[1].peer.bytes[2], "key", true, NULL);
}

/* --- joining ---------------------------------------------------------------------------------- */

static void test_dht_node_whose_clock_is_wrong_is_told(void **unused)
{
    struct mu_dht_config config;
    struct mu_peer_id peer = swarm_peer(0);
    struct mu_now wrong;
    struct mu_dht_event e;
    struct mu_dht_op *op;
    struct mu_dht *d;
    struct swarm_reply reply;

    (void)unused;
    swarm_start(1);
    config = swarm_config(5);
    assert_int_equal(mu_dht_new(&config, &d), 0);
    wrong = swarm_now();
    wrong.wall.ns += 10 * MU_NS_PER_S;
    assert_int_equal(mu_dht_bootstrap(d, wrong, &peer, 1, &op), 0);
    assert_true(mu_dht_next_event(d, &e));
    reply = swarm_ask(0, &config.self.peer, MU_DHT_PING, MU_SPAN_LIT(""));
    mu_dht_answer(d, wrong, e.number, reply.status, mu_buf_span(&reply.message));
    mu_buf_fini(&reply.message);
    assert_true(mu_dht_next_event(d, &e));
    assert_ptr_equal(e.op, op);
    assert_int_equal(op->status, MUSTER_EDHT_CLOCK);
    mu_dht_op_free(op);
    mu_dht_free(d);
}

static void test_dht_node_finds_nobody_and_says_so(void **unused)
{
    struct mu_dht_config config = swarm_config(1);
    struct mu_peer_id peer = swarm_peer(40);
    struct mu_dht_op *op;

    (void)unused;
    swarm_start(0);
    assert_int_equal(mu_dht_new(&config, &swarm[0].dht), 0);
    swarm_count = 1;
    assert_int_equal(mu_dht_bootstrap(swarm[0].dht, swarm_now(), &peer, 1, &op), 0);
    swarm_finish(op);
    assert_int_equal(op->status, MUSTER_EDHT_NOBODY);
    mu_dht_op_free(op);
    assert_true(mu_dht_deadline(swarm[0].dht).ns != UINT64_MAX); /* it will try again */
}

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
        {.key = key_of("a"),
         .tag = MU_DHT_TAG_REGULAR,
         .value = MU_SPAN_LIT("\x01"),
         .expiration = 1e18},
        {.key = key_of("b"),
         .tag = MU_DHT_TAG_REGULAR,
         .value = MU_SPAN_LIT("\x01"),
         .expiration = __builtin_inf()},
        {.key = key_of("c"),
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
    struct mu_dht_item honest = {.key = key_of("dict"),
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
        items[i] = (struct mu_dht_item){.key = key_of("dict"),
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
        items[i] = (struct mu_dht_item){.key = key_of("progress"),
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
    struct mu_dht_item item = {.key = key_of("progress"), .expiration = SWARM_WALL + 60};
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
    struct mu_dht_head head = {.has_node = true, .node = key_of("liar")};
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
    struct mu_dht_id id = key_of("key");
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
    assert_int_equal(store_text(1, "key", "\x2a", 60), 2);
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

/* --- ends ------------------------------------------------------------------------------------- */

static void test_dht_node_refuses_to_store_what_is_no_record(void **unused)
{
    struct mu_dht_put put = {
        .key = key_of("k"), .value = MU_SPAN_LIT("\x01"), .expiration = SWARM_WALL + 1};
    struct mu_dht_op *op;

    (void)unused;
    swarm_start(1);
    put.expiration = SWARM_WALL - 1;
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 1, &op), MUSTER_EDHT_EXPIRED);
    put.expiration = SWARM_WALL + 1;
    put.value = MU_SPAN_LIT("\xa9x");
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 1, &op), MUSTER_EDHT_VALUE);
    put.value = MU_SPAN_LIT("\x01");
    put.subkey = MU_SPAN_LIT("\xc0");
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 1, &op), MUSTER_EDHT_VALUE);
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 0, &op), MUSTER_EINVAL);
}

static void test_dht_node_operations_end_in_time_whoever_is_silent(void **unused)
{
    struct mu_dht_id id = key_of("k");
    struct mu_dht_op *op;
    struct mu_dht_event e;
    bool ended = false;

    (void)unused;
    swarm_start(4);
    assert_int_equal(mu_dht_get(swarm[3].dht, swarm_now(), &id, 1, true, &op), 0);
    while (mu_dht_next_event(swarm[3].dht, &e)) {
        assert_int_equal(e.type, MU_DHT_EVENT_CALL); /* which nobody answers */
    }
    swarm_ns += 60 * MU_NS_PER_S;
    mu_dht_tick(swarm[3].dht, swarm_now());
    while (mu_dht_next_event(swarm[3].dht, &e)) {
        if (e.type == MU_DHT_EVENT_ENDED && e.op == op) {
            ended = true;
        }
    }
    assert_true(ended);
    assert_int_equal(op->status, MUSTER_ETIMEDOUT);
    mu_dht_op_free(op);
}

static void test_dht_node_without_memory_every_operation_ends(void **unused)
{
    (void)unused;
    for (long nth = 0; nth < 400; nth += 7) {
        struct mu_dht_id id = key_of("key");
        struct mu_dht_put put = {
            .key = id, .value = MU_SPAN_LIT("\x2a"), .expiration = SWARM_WALL + 600};
        struct mu_dht_event e;
        struct mu_dht_op *ops[2] = {NULL, NULL};
        size_t begun = 0;
        size_t ended = 0;

        swarm_start(3);
        failheap_arm(nth);
        begun += mu_dht_store(swarm[2].dht, swarm_now(), &put, 1, &ops[0]) == 0;
        begun += mu_dht_get(swarm[2].dht, swarm_now(), &id, 1, true, &ops[1]) == 0;
        while (mu_dht_next_event(swarm[2].dht, &e)) {
            if (e.type == MU_DHT_EVENT_CALL) {
                mu_dht_answer(swarm[2].dht, swarm_now(), e.number, MUSTER_ECONN,
                              (struct mu_span){0});
            } else if (e.type == MU_DHT_EVENT_ENDED) {
                mu_dht_op_free(e.op);
                ended++;
            }
        }
        failheap_disarm();
        assert_int_equal(begun, ended);
        swarm_stop();
    }
}

#define T(name) cmocka_unit_test_teardown(name, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_dht_node_what_one_stores_all_find),
        T(test_dht_node_finds_nothing_that_has_expired),
        T(test_dht_node_of_two_values_the_later_expiration_wins),
        T(test_dht_node_subkeys_of_several_writers_are_one_dictionary),
        T(test_dht_node_most_may_die_and_it_is_still_found),
        T(test_dht_node_a_newcomer_gets_what_it_should_keep),
        T(test_dht_node_a_client_asks_and_is_not_known),
        T(test_dht_node_that_has_lost_everybody_comes_back_with_its_records),
        T(test_dht_node_asks_again_who_has_answered_a_ping_since_it_failed),
        T(test_dht_node_knows_some_in_every_part_of_the_space),
        T(test_dht_node_sees_by_itself_who_is_gone),
        T(test_dht_node_two_that_were_cut_off_together_come_back),
        T(test_dht_node_asks_again_before_what_it_has_read_expires),
        T(test_dht_node_what_is_found_is_cached_at_the_nearest),
        T(test_dht_node_whose_clock_is_wrong_is_told),
        T(test_dht_node_finds_nobody_and_says_so),
        T(test_dht_node_refuses_what_would_last_for_ever),
        T(test_dht_node_refuses_ten_thousand_subkeys),
        T(test_dht_node_checks_only_so_many_signatures_for_a_request),
        T(test_dht_node_refuses_unsigned_records_of_an_owner),
        T(test_dht_node_takes_nothing_false_from_those_it_asks),
        T(test_dht_node_answers_nonsense_with_an_error),
        T(test_dht_node_pings_back_whom_it_is_to_validate),
        T(test_dht_node_refuses_to_store_what_is_no_record),
        T(test_dht_node_operations_end_in_time_whoever_is_silent),
        T(test_dht_node_without_memory_every_operation_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
