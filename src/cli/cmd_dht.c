/* muster dht: runs a node of the DHT, and reads and writes records, from the shell. */
#include "cli/cmd_dht.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/bin/msgpack.h"

/* Computes the id of a key as hivemind does: bytes are hashed as they are, everything else in its
 * encoding. */
static int key_of(const char *word, struct mu_dht_id *ret)
{
    struct mu_buf buf;
    struct mu_span in;
    struct mu_mp t;
    int code;

    mu_buf_init(&buf, 1u << 20);
    code = dht_encode_word(&buf, word, strncmp(word, "hex:", 4) != 0);
    if (code == 0) {
        in = mu_buf_span(&buf);
        *ret = mu_mp_next(&in, &t) == 0 && t.type == MU_MP_BIN ? mu_dht_key(t.bytes)
                                                               : mu_dht_key(mu_buf_span(&buf));
    }
    mu_buf_fini(&buf);
    return code;
}

static void print_json(json_t *object)
{
    (void)json_dumpf(object, stdout, JSON_COMPACT | JSON_ENCODE_ANY);
    (void)putchar('\n');
    json_decref(object);
}

/* --- get -------------------------------------------------------------------------------------- */

static json_t *entries_of(const struct mu_dht_result *r)
{
    json_t *list = json_array();
    struct mu_dht_dict dict;
    struct mu_dht_entry e;

    if (mu_dht_dict_decode(mu_buf_span(&r->value), &dict) == 0) {
        while (mu_dht_dict_next(&dict, &e)) {
            (void)json_array_append_new(
                list, json_pack("{s:o, s:o, s:f}", "subkey", dht_decode_value(e.subkey), "value",
                                dht_decode_value(e.value), "expiration", e.expiration));
        }
    }
    return list;
}

static void print_plain(const struct mu_dht_result *r)
{
    json_t *entries;
    json_t *item;
    size_t i;

    if (r->type == MU_DHT_FOUND_REGULAR) {
        print_json(dht_decode_value(mu_buf_span(&r->value)));
        return;
    }
    entries = entries_of(r);
    json_array_foreach(entries, i, item)
    {
        (void)json_dumpf(json_object_get(item, "subkey"), stdout, JSON_COMPACT | JSON_ENCODE_ANY);
        (void)putchar('\t');
        (void)json_dumpf(json_object_get(item, "value"), stdout, JSON_COMPACT | JSON_ENCODE_ANY);
        (void)putchar('\n');
    }
    json_decref(entries);
}

static void print_result(const struct dht_app *app, const char *key, const struct mu_dht_result *r)
{
    json_t *object;

    if (!app->o->json) {
        if (r->type != MU_DHT_NOT_FOUND) {
            print_plain(r);
        }
        return;
    }
    object = json_pack("{s:s, s:b, s:i, s:i}", "key", key, "found", r->type != MU_DHT_NOT_FOUND,
                       "hops", (int)r->hops, "calls", (int)r->calls);
    if (r->type == MU_DHT_FOUND_REGULAR) {
        (void)json_object_set_new(object, "value", dht_decode_value(mu_buf_span(&r->value)));
    } else if (r->type == MU_DHT_FOUND_DICTIONARY) {
        (void)json_object_set_new(object, "entries", entries_of(r));
    }
    if (r->type != MU_DHT_NOT_FOUND) {
        (void)json_object_set_new(object, "expiration", json_real(r->expiration));
    }
    print_json(object);
}

static void on_got(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct dht_app *app = MU_CONTAINER_OF(wish, struct dht_app, wish);
    size_t missing = 0;

    if (op->status == MUSTER_ECLOSED) {
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        print_result(app, app->o->words[i], &op->results[i]);
        missing += op->results[i].type == MU_DHT_NOT_FOUND;
    }
    (void)fflush(stdout);
    if (missing > 0 && !app->o->json) {
        (void)cli_fail(0, "%zu of %zu keys were not found", missing, op->count);
    }
    dht_stop(app, missing == 0 ? 0 : op->status == MUSTER_ETIMEDOUT ? CLI_TIMEOUT : CLI_NO_KEY);
}

static int begin_get(struct dht_app *app)
{
    struct mu_dht_id *keys = calloc(app->o->word_count, sizeof(*keys));
    int code = keys == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;
    int err;

    for (size_t i = 0; i < app->o->word_count && code == 0; i++) {
        code = key_of(app->o->words[i], &keys[i]);
    }
    if (code == 0) {
        app->wish.done = on_got;
        err = mu_dht_service_get(app->dht, &app->wish, keys, app->o->word_count, app->o->latest);
        code = err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(err));
    }
    free(keys);
    return code;
}

/* --- store ------------------------------------------------------------------------------------ */

static void on_stored(struct mu_dht_wish *wish, const struct mu_dht_op *op)
{
    struct dht_app *app = MU_CONTAINER_OF(wish, struct dht_app, wish);
    size_t lost = 0;

    if (op->status == MUSTER_ECLOSED) {
        return;
    }
    for (size_t i = 0; i < op->count; i++) {
        const struct mu_dht_result *r = &op->results[i];

        lost += r->stored == 0;
        if (app->o->json) {
            print_json(json_pack("{s:s, s:i, s:i, s:f, s:i, s:i}", "key", app->o->words[2 * i],
                                 "stored", (int)r->stored, "refused", (int)r->refused, "expiration",
                                 r->expiration, "hops", (int)r->hops, "calls", (int)r->calls));
        }
    }
    (void)fflush(stdout);
    if (lost > 0) {
        (void)cli_fail(0, "%zu of %zu records were not stored: no node accepted them", lost,
                       op->count);
    }
    dht_stop(app, lost == 0 ? 0 : op->status == MUSTER_ETIMEDOUT ? CLI_TIMEOUT : CLI_FAILED);
}

/* The subkey is the given one, or our owner's mark, which makes the record ours. */
static int encode_subkey(struct dht_app *app, struct mu_buf *out)
{
    struct mu_span mark = mu_dht_owner_mark(&app->validator);
    struct mu_mp_out mp = mu_mp_out(out);

    if (app->o->subkey != NULL) {
        return dht_encode_word(out, app->o->subkey, app->o->text);
    }
    if (mark.len != 0) {
        mu_mp_put_bin(&mp, mark);
    }
    return mp.err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(mp.err));
}

static int begin_store(struct dht_app *app)
{
    size_t count = app->o->word_count / 2;
    struct mu_dht_put *puts = calloc(count, sizeof(*puts));
    struct mu_buf *values = calloc(count, sizeof(*values));
    struct mu_buf subkey;
    int code = puts == NULL || values == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;
    int err;

    mu_buf_init(&subkey, 1u << 20);
    code = code != 0 ? code : encode_subkey(app, &subkey);
    for (size_t i = 0; i < count && code == 0; i++) {
        mu_buf_init(&values[i], 1u << 20);
        code = key_of(app->o->words[2 * i], &puts[i].key);
        code =
            code != 0 ? code : dht_encode_word(&values[i], app->o->words[2 * i + 1], app->o->text);
        puts[i].subkey = mu_buf_span(&subkey);
        puts[i].value = mu_buf_span(&values[i]);
        puts[i].expiration = mu_dht_service_time(app->dht) + app->o->expiration;
    }
    if (code == 0) {
        app->wish.done = on_stored;
        err = mu_dht_service_store(app->dht, &app->wish, puts, count);
        code = err == 0 ? 0 : cli_fail(CLI_FAILED, "%s", muster_strerror(err));
    }
    for (size_t i = 0; values != NULL && i < count; i++) {
        mu_buf_fini(&values[i]);
    }
    mu_buf_fini(&subkey);
    free(values);
    free(puts);
    return code;
}

/* --- the command ------------------------------------------------------------------------------ */

static int run(struct dht_options *o, const char *what)
{
    struct dht_app app = {.o = o};

    if (o->replicas == 0) {
        return cli_usage("dht", "--replicas must be at least 1");
    }
    if (strcmp(what, "serve") == 0) {
        if (o->word_count != 0) {
            return cli_usage("dht", "serve takes no arguments, only options");
        }
        cli_take_hangup();
        return dht_run(&app, false);
    }
    if (strcmp(what, "get") == 0) {
        app.begin = begin_get;
        return o->word_count == 0 ? cli_usage("dht", "name at least one KEY") : dht_run(&app, true);
    }
    app.begin = begin_store;
    if (o->expiration <= 0) {
        return cli_usage("dht", "--expiration must be greater than 0");
    }
    return o->word_count == 0 || o->word_count % 2 != 0
               ? cli_usage("dht", "store needs a VALUE for every KEY")
               : dht_run(&app, true);
}

int cmd_dht(int argc, char **argv)
{
    struct dht_options o = {
        .listen = "/ip4/127.0.0.1/tcp/0", .expiration = 300, .replicas = 5, .timeout = 30};
    static const char *const operations[] = {"serve", "get", "store", NULL};
    const struct cli_option options[] = {
        {"bootstrap", "MULTIADDR,...", "nodes to join through, each with /p2p/ID at its end",
         CLI_TEXT, &o.peers, 0},
        {"peers", "MULTIADDR,...", "write --bootstrap", CLI_GONE, NULL, 0},
        {"identity", "FILE", "the key file (a temporary key)", CLI_TEXT, &o.identity, 0},
        {"listen", "MULTIADDR,...", "serve: where to listen (/ip4/127.0.0.1/tcp/0)", CLI_TEXT,
         &o.listen, 0},
        {"advertise", "MULTIADDR,...", "serve: the addresses that others dial (those of --listen)",
         CLI_TEXT, &o.announce, 0},
        {"announce", "MULTIADDR,...", "write --advertise", CLI_GONE, NULL, 0},
        {"no-relay", NULL, "serve: be no relay for peers that cannot be dialled", CLI_FLAG,
         &o.no_relay, 0},
        {"subkey", "SUBKEY", "store: write into a dictionary, under this subkey", CLI_TEXT,
         &o.subkey, 0},
        {"owner", "FILE", "store: sign with this RSA key; nobody else can change the record",
         CLI_TEXT, &o.owner, 0},
        {"expiration", "TIME", "store: how long a record lasts (5m)", CLI_SECONDS, &o.expiration,
         0},
        {"replicas", "N", "how many nodes keep a record (5, as in hivemind; at most 16)",
         CLI_NUMBER, &o.replicas, 16},
        {"latest", NULL, "get: look for the newest record on all nodes that may have it", CLI_FLAG,
         &o.latest, 0},
        {"text", NULL, "store: values are texts, even if they look like JSON or bytes", CLI_FLAG,
         &o.text, 0},
        {"timeout", "TIME", "get, store: time limit for the whole operation (30s)", CLI_SECONDS,
         &o.timeout, 3600},
        {"timeout-ms", "MS", "write --timeout 30s, or --timeout 500ms", CLI_GONE, NULL, 0},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &o.json, 0},
    };
    const struct cli_verb verb = {
        "dht",
        "serve|get|store [OPTIONS] [KEY...|KEY VALUE...]",
        "serve   runs a node of the DHT\n"
        "get     prints the records of keys\n"
        "store   writes records; a VALUE is JSON, or hex:... for bytes, or else a text",
        options,
        sizeof(options) / sizeof(options[0]),
        .operations = operations};
    int err = cli_parse(&verb, &argc, &argv);

    if (err != 0) {
        return err;
    }
    o.words = argv + 1;
    o.word_count = (size_t)argc - 1;
    return run(&o, argv[0]);
}
