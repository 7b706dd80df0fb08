/* muster kv: every operation of a store, from the shell. */
#include "cli/cli_lock.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "codec/text/base64.h"

#define STDIN_MAX ((size_t)1 << 30)

struct kv {
    const char *url;
    uint64_t timeout_ms;
    uint64_t connect_ms;
    uint64_t lease;
    bool json;
    bool raw;
    bool nowait;
    bool prefix;
    bool current;
    bool once;
    struct cli_lock lock;
    muster_store *store;
    int argc;
    char **argv; /* after the operation */
};

/* --- printing --------------------------------------------------------------------------------- */

/* Adds bytes as JSON: as text if they are UTF-8, else as base64 under the name with "_base64"
 * appended. */
static void put_bytes(json_t *object, const char *name, struct muster_bytes bytes)
{
    json_t *text = json_stringn(bytes.data, bytes.len);
    char longer[64];
    struct mu_buf out;

    if (text != NULL) {
        (void)json_object_set_new(object, name, text);
        return;
    }
    mu_buf_init(&out, SIZE_MAX);
    if (mu_base64_encode(&out, mu_span(bytes.data, bytes.len)) == 0) {
        (void)snprintf(longer, sizeof(longer), "%s_base64", name);
        (void)json_object_set_new(object, longer,
                                  json_stringn((const char *)mu_buf_span(&out).data, out.len));
    }
    mu_buf_fini(&out);
}

static void print_json(json_t *object)
{
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    json_decref(object);
}

static void print_value(const struct kv *kv, struct muster_bytes key, struct muster_bytes value)
{
    if (kv->json) {
        json_t *object = json_object();

        put_bytes(object, "key", key);
        put_bytes(object, "value", value);
        print_json(object);
        return;
    }
    (void)fwrite(value.data, 1, value.len, stdout);
    if (!kv->raw) {
        (void)fputc('\n', stdout);
    }
}

static void print_number(const struct kv *kv, const char *name, int64_t number)
{
    if (kv->json) {
        json_t *object = json_object();

        (void)json_object_set_new(object, name, json_integer(number));
        print_json(object);
    } else {
        printf("%" PRId64 "\n", number);
    }
}

/* --- arguments -------------------------------------------------------------------------------- */

/* Takes a value from the command line; "-" reads all of standard input. */
static int take_value(const char *text, struct muster_value *ret)
{
    size_t cap = 65536;
    size_t n;

    if (strcmp(text, "-") != 0) {
        *ret = (struct muster_value){strdup(text), strlen(text)};
        return ret->data == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;
    }
    *ret = (struct muster_value){malloc(cap), 0};
    while (ret->data != NULL &&
           (n = fread((char *)ret->data + ret->len, 1, cap - ret->len, stdin)) > 0) {
        ret->len += n;
        if (ret->len == cap) {
            void *bigger = cap >= STDIN_MAX ? NULL : realloc(ret->data, cap *= 2);

            if (bigger == NULL) {
                return cli_fail(CLI_FAILED, "standard input is longer than a value may be");
            }
            ret->data = bigger;
        }
    }
    return ret->data == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;
}

static struct muster_bytes bytes_of(const struct muster_value *value)
{
    return (struct muster_bytes){value->data, value->len};
}

static int fail(int err)
{
    return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
}

static struct muster_bytes *keys_of(int argc, char **argv)
{
    struct muster_bytes *keys = calloc((size_t)argc + 1, sizeof(*keys));

    for (int i = 0; keys != NULL && i < argc; i++) {
        keys[i] = muster_str(argv[i]);
    }
    return keys;
}

/* --- requests --------------------------------------------------------------------------------- */

/* Runs a request to its end. The caller frees the op if it is not NULL, also after a failure. */
static int run_request(struct kv *kv, struct muster_store_request *q, muster_op **ret_op)
{
    int err;

    *ret_op = NULL;
    q->timeout_ms = (int64_t)kv->timeout_ms;
    q->lease = q->lease != 0 ? q->lease : kv->lease;
    err = muster_store_submit(kv->store, q, ret_op);
    if (err == 0) {
        err = muster_op_wait(*ret_op);
    }
    return err == 0 ? 0 : fail(err);
}

static int kv_set_like(struct kv *kv, enum muster_store_verb verb, const char *number_name)
{
    struct muster_bytes key = muster_str(kv->argv[0]);
    struct muster_bytes value;
    struct muster_value in;
    struct muster_store_request q = {
        .verb = verb, .keys = &key, .key_count = 1, .values = &value, .value_count = 1};
    muster_op *op = NULL;
    int err = take_value(kv->argv[1], &in);

    if (err == 0) {
        value = bytes_of(&in);
        err = run_request(kv, &q, &op);
    }
    if (err == 0 && number_name != NULL) {
        print_number(kv, number_name, muster_op_number(op));
    }
    muster_op_free(op);
    free(in.data);
    return err;
}

static int kv_set(struct kv *kv)
{
    return kv_set_like(kv, MUSTER_STORE_SET, NULL);
}

static int kv_append(struct kv *kv)
{
    return kv_set_like(kv, MUSTER_STORE_APPEND, NULL);
}

static int kv_push(struct kv *kv)
{
    return kv_set_like(kv, MUSTER_STORE_QUEUE_PUSH, NULL);
}

static int kv_mset(struct kv *kv)
{
    size_t count = (size_t)kv->argc / 2;
    struct muster_bytes *keys = calloc(count + 1, sizeof(*keys));
    struct muster_bytes *values = calloc(count + 1, sizeof(*values));
    struct muster_store_request q = {.verb = MUSTER_STORE_MULTI_SET,
                                     .keys = keys,
                                     .key_count = count,
                                     .values = values,
                                     .value_count = count};
    muster_op *op = NULL;
    int err;

    if (kv->argc % 2 != 0) {
        free(keys);
        free(values);
        return cli_usage("kv", "mset needs a value for every key");
    }
    for (size_t i = 0; keys != NULL && values != NULL && i < count; i++) {
        keys[i] = muster_str(kv->argv[2 * i]);
        values[i] = muster_str(kv->argv[2 * i + 1]);
    }
    err = run_request(kv, &q, &op);
    muster_op_free(op);
    free(keys);
    free(values);
    return err;
}

/* get, mget, pop: prints every value of the answer. */
static int kv_get_like(struct kv *kv, enum muster_store_verb verb)
{
    struct muster_bytes *keys = keys_of(kv->argc, kv->argv);
    struct muster_store_request q = {.verb = verb,
                                     .keys = keys,
                                     .key_count = (size_t)kv->argc,
                                     .flags = kv->nowait ? MUSTER_STORE_NOWAIT : 0};
    muster_op *op;
    int err = run_request(kv, &q, &op);

    for (size_t i = 0; err == 0 && i < muster_op_value_count(op); i++) {
        print_value(kv, keys[i], muster_op_value(op, i));
    }
    muster_op_free(op);
    free(keys);
    return err;
}

static int kv_get(struct kv *kv)
{
    return kv_get_like(kv, MUSTER_STORE_GET);
}

static int kv_mget(struct kv *kv)
{
    return kv_get_like(kv, MUSTER_STORE_MULTI_GET);
}

static int kv_pop(struct kv *kv)
{
    return kv_get_like(kv, MUSTER_STORE_QUEUE_POP);
}

static int kv_cas(struct kv *kv)
{
    struct muster_bytes key = muster_str(kv->argv[0]);
    struct muster_bytes values[2] = {muster_str(kv->argv[1]), muster_str(kv->argv[2])};
    struct muster_store_request q = {.verb = MUSTER_STORE_COMPARE_SET,
                                     .keys = &key,
                                     .key_count = 1,
                                     .values = values,
                                     .value_count = 2};
    muster_op *op;
    int err = run_request(kv, &q, &op);

    if (err == 0 && kv->json) {
        json_t *object = json_object();

        put_bytes(object, "key", key);
        put_bytes(object, "value", muster_op_value(op, 0));
        (void)json_object_set_new(object, "written", json_boolean(muster_op_number(op) != 0));
        print_json(object);
    } else if (err == 0) {
        print_value(kv, key, muster_op_value(op, 0));
    }
    err = err == 0 && muster_op_number(op) == 0 ? CLI_FAILED : err;
    muster_op_free(op);
    return err;
}

/* Operations whose answer is a number, or nothing (`name` NULL). */
static int kv_number_like(struct kv *kv, enum muster_store_verb verb, int64_t number, int key_count,
                          const char *name)
{
    struct muster_bytes *keys = keys_of(key_count, kv->argv);
    struct muster_store_request q = {
        .verb = verb, .keys = keys, .key_count = (size_t)key_count, .number = number};
    muster_op *op;
    int err = run_request(kv, &q, &op);

    if (err == 0 && name != NULL) {
        print_number(kv, name, muster_op_number(op));
    }
    if (err == 0 && (verb == MUSTER_STORE_CHECK || verb == MUSTER_STORE_DELETE) &&
        muster_op_number(op) == 0) {
        err = CLI_NO_KEY;
    }
    muster_op_free(op);
    free(keys);
    return err;
}

static bool parse_int64(const char *text, int64_t *ret)
{
    bool negative = text[0] == '-';
    uint64_t v;

    if (!cli_parse_number(text + negative, false, INT64_MAX, &v)) {
        return false;
    }
    *ret = negative ? -(int64_t)v : (int64_t)v;
    return true;
}

static int kv_add(struct kv *kv)
{
    int64_t delta;

    if (!parse_int64(kv->argv[1], &delta)) {
        return cli_usage("kv", "add needs a whole number, not \"%s\"", kv->argv[1]);
    }
    return kv_number_like(kv, MUSTER_STORE_ADD, delta, 1, "value");
}

static int kv_barrier(struct kv *kv)
{
    int64_t world;

    if (!parse_int64(kv->argv[1], &world) || world < 1) {
        return cli_usage("kv", "barrier needs the number of clients to wait for, not \"%s\"",
                         kv->argv[1]);
    }
    return kv_number_like(kv, MUSTER_STORE_BARRIER, world, 1, NULL);
}

static int kv_check(struct kv *kv)
{
    return kv_number_like(kv, MUSTER_STORE_CHECK, 0, kv->argc, "there");
}

static int kv_wait(struct kv *kv)
{
    return kv_number_like(kv, MUSTER_STORE_WAIT, 0, kv->argc, NULL);
}

static int kv_del(struct kv *kv)
{
    return kv_number_like(kv, MUSTER_STORE_DELETE, 0, 1, "removed");
}

static int kv_count(struct kv *kv)
{
    return kv_number_like(kv, MUSTER_STORE_NUM_KEYS, 0, 0, "keys");
}

static int kv_len(struct kv *kv)
{
    return kv_number_like(kv, MUSTER_STORE_QUEUE_LEN, 0, 1, "length");
}

static int kv_keys(struct kv *kv)
{
    struct muster_bytes prefix = muster_str(kv->argc > 0 ? kv->argv[0] : "");
    struct muster_store_request q = {
        .verb = MUSTER_STORE_LIST_KEYS, .keys = &prefix, .key_count = prefix.len != 0};
    muster_op *op;
    int err = run_request(kv, &q, &op);

    for (size_t i = 0; err == 0 && i < muster_op_value_count(op); i++) {
        struct muster_bytes key = muster_op_value(op, i);

        if (kv->json) {
            json_t *object = json_object();

            put_bytes(object, "key", key);
            print_json(object);
        } else {
            print_value(kv, key, key);
        }
    }
    muster_op_free(op);
    return err;
}

static int kv_lease(struct kv *kv)
{
    int64_t number = 0;
    struct muster_store_request q = {.verb = MUSTER_STORE_LEASE_GRANT};
    muster_op *op;
    int err;

    if (kv->argc != 2 || !parse_int64(kv->argv[1], &number) || number < 1) {
        return cli_usage("kv", "write lease grant MS, lease keep LEASE or lease revoke LEASE");
    }
    if (strcmp(kv->argv[0], "grant") == 0) {
        q.number = number;
    } else if (strcmp(kv->argv[0], "keep") == 0) {
        q.verb = MUSTER_STORE_LEASE_KEEP;
        q.lease = (uint64_t)number;
    } else if (strcmp(kv->argv[0], "revoke") == 0) {
        q.verb = MUSTER_STORE_LEASE_REVOKE;
        q.lease = (uint64_t)number;
    } else {
        return cli_usage("kv", "lease takes grant, keep or revoke, not \"%s\"", kv->argv[0]);
    }
    err = run_request(kv, &q, &op);
    if (err == 0) {
        print_number(kv,
                     q.verb == MUSTER_STORE_LEASE_GRANT  ? "lease"
                     : q.verb == MUSTER_STORE_LEASE_KEEP ? "ttl_ms"
                                                         : "removed",
                     muster_op_number(op));
    }
    muster_op_free(op);
    return err;
}

/* --- watching --------------------------------------------------------------------------------- */

static void print_change(muster_op *op, const struct muster_change *change, void *context)
{
    static const char *const names[] = {"", "created", "updated", "appended", "deleted", "expired"};
    const struct kv *kv = context;

    (void)op;
    if (kv->json) {
        json_t *object = json_object();

        (void)json_object_set_new(object, "change", json_string(names[change->kind]));
        (void)json_object_set_new(object, "revision", json_integer((json_int_t)change->revision));
        put_bytes(object, "key", change->key);
        if (change->kind < MUSTER_CHANGE_DELETED) {
            put_bytes(object, "value", change->value);
        }
        print_json(object);
        return;
    }
    printf("%s ", names[change->kind]);
    (void)fwrite(change->key.data, 1, change->key.len, stdout);
    if (change->kind < MUSTER_CHANGE_DELETED) {
        (void)fputc(' ', stdout);
        (void)fwrite(change->value.data, 1, change->value.len, stdout);
    }
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
}

static int kv_watch(struct kv *kv)
{
    struct muster_bytes key = muster_str(kv->argv[0]);
    struct muster_store_request q = {
        .verb = MUSTER_STORE_WATCH,
        .keys = &key,
        .key_count = 1,
        .flags = (kv->prefix ? MUSTER_STORE_PREFIX : 0) | (kv->current ? MUSTER_STORE_CURRENT : 0) |
                 (kv->once ? MUSTER_STORE_ONCE : 0),
        .timeout_ms = MUSTER_TIMEOUT_NEVER,
        .on_change = print_change,
        .context = kv,
    };
    muster_op *op;
    int err = muster_store_submit(kv->store, &q, &op);

    if (err == 0) {
        err = muster_op_wait(op); /* This waits until the store is gone or a signal ends the
                                     process. */
        if (err == 0) {
            print_number(kv, "revision", muster_op_number(op));
        }
        muster_op_free(op);
    }
    return err == 0 ? 0 : fail(err);
}

/* --- the command ------------------------------------------------------------------------------ */

static const struct {
    const char *name;
    int argc_min, argc_max;
    int (*run)(struct kv *kv);
} operations[] = {
    {"get", 1, 1, kv_get},         {"set", 2, 2, kv_set},         {"add", 2, 2, kv_add},
    {"cas", 3, 3, kv_cas},         {"wait", 1, 1 << 20, kv_wait}, {"check", 1, 1 << 20, kv_check},
    {"del", 1, 1, kv_del},         {"keys", 0, 1, kv_keys},       {"count", 0, 0, kv_count},
    {"append", 2, 2, kv_append},   {"mget", 1, 1 << 20, kv_mget}, {"mset", 2, 1 << 20, kv_mset},
    {"push", 2, 2, kv_push},       {"pop", 1, 1, kv_pop},         {"len", 1, 1, kv_len},
    {"barrier", 2, 2, kv_barrier}, {"watch", 1, 1, kv_watch},     {"lease", 2, 2, kv_lease},
};

static int run_operation(struct kv *kv, int (*run)(struct kv *kv))
{
    struct muster_store_config config = muster_store_config_defaults();
    muster_runtime *rt;
    int code;
    int err = cli_runtime_new(&kv->lock, &rt);

    if (err != 0) {
        return err;
    }
    (void)signal(SIGPIPE, SIG_DFL);
    config.timeout_ms = (uint32_t)kv->timeout_ms;
    config.connect_timeout_ms = (uint32_t)kv->connect_ms;
    err = muster_store_open(rt, kv->url, &config, &kv->store);
    if (err != 0) {
        code = cli_fail(err == MUSTER_ETIMEDOUT ? CLI_CONNECT : cli_exit_code(err), "%s",
                        muster_errmsg());
    } else {
        code = run(kv);
        muster_store_close(kv->store);
    }
    muster_runtime_free(rt);
    if (fflush(stdout) != 0 && code == 0) {
        code = cli_fail(CLI_FAILED, "cannot write the result");
    }
    return code;
}

static int dispatch(struct kv *kv)
{
    if (kv->argc == 0) {
        return cli_usage("kv", "name an operation, such as get KEY");
    }
    for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
        if (strcmp(kv->argv[0], operations[i].name) != 0) {
            continue;
        }
        kv->argc--;
        kv->argv++;
        if (kv->argc < operations[i].argc_min || kv->argc > operations[i].argc_max) {
            return cli_usage("kv", "%s does not take %d arguments", operations[i].name, kv->argc);
        }
        if (kv->url == NULL) {
            return cli_usage("kv",
                             "name the store: --store URL, or MUSTER_STORE in the environment");
        }
        return run_operation(kv, operations[i].run);
    }
    return cli_usage("kv", "there is no operation \"%s\"", kv->argv[0]);
}

int cmd_kv(int argc, char **argv)
{
    struct kv kv = {.url = getenv("MUSTER_STORE"), .timeout_ms = 300000, .connect_ms = 10000};
    const struct cli_option options[] = {
        {"store", "URL", "tcp://HOST:PORT, etcd://HOST/PREFIX, file:///PATH, hash: (MUSTER_STORE)",
         CLI_TEXT, &kv.url, 0},
        {"timeout", "MS", "how long the operation may wait (300000); 0 waits forever", CLI_NUMBER,
         &kv.timeout_ms, UINT32_MAX},
        {"connect", "MS", "how long to try to connect (10000)", CLI_NUMBER, &kv.connect_ms,
         UINT32_MAX},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &kv.json, 0},
        {"raw", NULL, "print no newline after a value", CLI_FLAG, &kv.raw, 0},
        {"nowait", NULL, "get, mget, pop: fail with 7 instead of waiting", CLI_FLAG, &kv.nowait, 0},
        {"prefix", NULL, "watch all keys that begin with KEY", CLI_FLAG, &kv.prefix, 0},
        {"current", NULL, "watch begins with the keys that exist", CLI_FLAG, &kv.current, 0},
        {"once", NULL, "watch waits for one change, prints only its revision, and ends", CLI_FLAG,
         &kv.once, 0},
        {"lease", "LEASE", "set, append, mset, add, cas: bind the key to this lease", CLI_NUMBER,
         &kv.lease, 0},
        CLI_LOCK_OPTIONS(&kv.lock),
    };
    const struct cli_verb verb = {
        "kv", "--store URL [OPTIONS] OPERATION",
        "operations:\n"
        "  get KEY                    wait for the key and print its value\n"
        "  set KEY VALUE              set the value; - reads it from standard input\n"
        "  add KEY AMOUNT             add to a counter and print its new value\n"
        "  cas KEY EXPECTED DESIRED   set the value if it is EXPECTED, and print it; exit with 1 "
        "if not\n"
        "  wait KEY...                wait until all of the keys exist\n"
        "  check KEY...               print 1 if all of the keys exist; else 0, and exit with 7\n"
        "  del KEY                    delete the key and print 1; if none, 0, and exit with 7\n"
        "  keys [PREFIX]              print the keys that begin with PREFIX, or all of them\n"
        "  count                      print the number of keys\n"
        "  append KEY VALUE           append to the value\n"
        "  mget KEY...                wait for all of the keys and print their values\n"
        "  mset KEY VALUE...          set several values\n"
        "  push QUEUE VALUE           put a value at the end of a queue\n"
        "  pop QUEUE                  wait for a value, take it from the queue, and print it\n"
        "  len QUEUE                  print the number of values in a queue\n"
        "  barrier NAME COUNT         wait until COUNT clients have reached the barrier\n"
        "  watch KEY                  print each change of the key, until interrupted\n"
        "  lease grant MS             make a lease that ends when not kept for MS; print it\n"
        "  lease keep LEASE           start the lease's time again\n"
        "  lease revoke LEASE         end the lease and delete its keys",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);

    kv.argc = argc;
    kv.argv = argv;
    return err != 0 ? err : dispatch(&kv);
}
