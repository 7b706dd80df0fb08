/* The operations of a store, as the shell and the prompt of `muster kv` use them. */
#include "cli/cmd_kv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STDIN_MAX ((size_t)1 << 30)

/* --- printing --------------------------------------------------------------------------------- */

static void print_value(const struct kv *kv, struct muster_bytes key, struct muster_bytes value)
{
    if (kv->json) {
        json_t *object = json_object();

        cli_put_bytes(object, "key", key);
        cli_put_bytes(object, "value", value);
        cli_print_json(object);
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
        cli_print_json(object);
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

static struct muster_store_request request_of(enum muster_store_verb verb,
                                              const struct muster_bytes *keys, size_t key_count)
{
    struct muster_store_request q = muster_store_request_defaults();

    q.verb = verb;
    q.keys = keys;
    q.key_count = key_count;
    return q;
}

/* Runs a request to its end; returns an error of the library. The caller frees the op if it is not
 * NULL, also after a failure. */
static int ask(struct kv *kv, struct muster_store_request *q, muster_op **ret_op)
{
    int err;

    *ret_op = NULL;
    q->timeout_ms = cli_timeout(kv->timeout);
    q->lease = q->lease != 0 ? q->lease : kv->lease;
    err = muster_store_submit(kv->store, q, ret_op);
    return err == 0 ? muster_op_wait(*ret_op) : err;
}

/* The same; prints the error and returns an exit code. */
static int run_request(struct kv *kv, struct muster_store_request *q, muster_op **ret_op)
{
    int err = ask(kv, q, ret_op);

    return err == 0 ? 0 : fail(err);
}

static int kv_set_like(struct kv *kv, enum muster_store_verb verb, const char *number_name)
{
    struct muster_bytes key = muster_str(kv->argv[0]);
    struct muster_bytes value;
    struct muster_value in;
    struct muster_store_request q = request_of(verb, &key, 1);
    muster_op *op = NULL;
    int err = take_value(kv->argv[1], &in);

    q.values = &value;
    q.value_count = 1;
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
    struct muster_store_request q = request_of(MUSTER_STORE_MULTI_SET, keys, count);
    muster_op *op = NULL;
    int err;

    q.values = values;
    q.value_count = count;
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

static int fail_missing(const struct kv *kv, enum muster_store_verb verb)
{
    if (verb == MUSTER_STORE_QUEUE_POP) {
        return cli_fail(CLI_NO_KEY, "there is no value in queue \"%s\"; --wait waits for one",
                        kv->argv[0]);
    }
    return kv->argc == 1
               ? cli_fail(CLI_NO_KEY, "there is no key \"%s\"; --wait waits for it", kv->argv[0])
               : cli_fail(CLI_NO_KEY, "one of the %d keys does not exist; --wait waits for all",
                          kv->argc);
}

/* get, mget, pop: prints every value of the answer. */
static int kv_get_like(struct kv *kv, enum muster_store_verb verb)
{
    struct muster_bytes *keys = keys_of(kv->argc, kv->argv);
    struct muster_store_request q = request_of(verb, keys, (size_t)kv->argc);
    muster_op *op;
    int err;

    q.flags = kv->wait ? 0 : MUSTER_STORE_NOWAIT;
    err = ask(kv, &q, &op);
    for (size_t i = 0; err == 0 && i < muster_op_value_count(op); i++) {
        print_value(kv, keys[i], muster_op_value(op, i));
    }
    muster_op_free(op);
    free(keys);
    return err == MUSTER_ENOENT ? fail_missing(kv, verb) : err != 0 ? fail(err) : 0;
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
    struct muster_store_request q = request_of(MUSTER_STORE_COMPARE_SET, &key, 1);
    muster_op *op;
    int err;

    q.values = values;
    q.value_count = 2;
    err = run_request(kv, &q, &op);
    if (err == 0 && kv->json) {
        json_t *object = json_object();

        cli_put_bytes(object, "key", key);
        cli_put_bytes(object, "value", muster_op_value(op, 0));
        (void)json_object_set_new(object, "written", json_boolean(muster_op_number(op) != 0));
        cli_print_json(object);
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
    struct muster_store_request q = request_of(verb, keys, (size_t)key_count);
    muster_op *op;
    int err;

    q.number = number;
    err = run_request(kv, &q, &op);
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
    struct muster_store_request q = request_of(MUSTER_STORE_LIST_KEYS, &prefix, prefix.len != 0);
    muster_op *op;
    int err = run_request(kv, &q, &op);

    for (size_t i = 0; err == 0 && i < muster_op_value_count(op); i++) {
        struct muster_bytes key = muster_op_value(op, i);

        if (kv->json) {
            json_t *object = json_object();

            cli_put_bytes(object, "key", key);
            cli_print_json(object);
        } else {
            print_value(kv, key, key);
        }
    }
    muster_op_free(op);
    return err;
}

/* lease grant TIME, lease keep LEASE, lease revoke LEASE */
static int parse_lease(const struct kv *kv, struct muster_store_request *q)
{
    struct mu_guess g = {.word = mu_span_str(kv->argv[0])};
    double seconds = 0;
    char said[96];

    if (strcmp(kv->argv[0], "grant") == 0) {
        char why[160];
        const struct cli_option ttl = {.type = CLI_SECONDS, .to = &seconds, .bare = 900};

        q->verb = MUSTER_STORE_LEASE_GRANT;
        if (!cli_option_keep(&ttl, kv->argv[1], why)) {
            return cli_usage("kv", "lease grant %s %s", kv->argv[1], why);
        }
        q->number = cli_ms(seconds);
        return q->number > 0 ? 0 : cli_usage("kv", "a lease must last longer than 0");
    }
    q->verb =
        strcmp(kv->argv[0], "keep") == 0 ? MUSTER_STORE_LEASE_KEEP : MUSTER_STORE_LEASE_REVOKE;
    if (q->verb == MUSTER_STORE_LEASE_REVOKE && strcmp(kv->argv[0], "revoke") != 0) {
        mu_guess_try(&g, "grant");
        mu_guess_try(&g, "keep");
        mu_guess_try(&g, "revoke");
        return cli_usage("kv", "lease takes grant, keep or revoke, not \"%s\"%s", kv->argv[0],
                         cli_guess_say(&g, "", said));
    }
    return cli_parse_number(kv->argv[1], false, INT64_MAX, &q->lease) && q->lease != 0
               ? 0
               : cli_usage("kv", "\"%s\" is not the number of a lease", kv->argv[1]);
}

static int kv_lease(struct kv *kv)
{
    struct muster_store_request q = muster_store_request_defaults();
    muster_op *op = NULL;
    int err = parse_lease(kv, &q);

    err = err != 0 ? err : run_request(kv, &q, &op);
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
        cli_put_bytes(object, "key", change->key);
        if (change->kind < MUSTER_CHANGE_DELETED) {
            cli_put_bytes(object, "value", change->value);
        }
        cli_print_json(object);
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
    struct muster_store_request q = request_of(MUSTER_STORE_WATCH, &key, 1);
    muster_op *op;
    int err;

    q.flags = (kv->prefix ? MUSTER_STORE_PREFIX : 0) | (kv->current ? MUSTER_STORE_CURRENT : 0) |
              (kv->once ? MUSTER_STORE_ONCE : 0);
    q.timeout_ms = MUSTER_TIMEOUT_NEVER;
    q.on_change = print_change;
    q.context = kv;
    err = muster_store_submit(kv->store, &q, &op);
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

/* --- the table -------------------------------------------------------------------------------- */

static const struct {
    int argc_min, argc_max;
    int (*run)(struct kv *kv);
} operations[] = {
    {1, 1, kv_get},        {2, 2, kv_set},         {2, 2, kv_add},        {3, 3, kv_cas},
    {1, 1 << 20, kv_wait}, {1, 1 << 20, kv_check}, {1, 1, kv_del},        {0, 1, kv_keys},
    {0, 0, kv_count},      {2, 2, kv_append},      {1, 1 << 20, kv_mget}, {2, 1 << 20, kv_mset},
    {2, 2, kv_push},       {1, 1, kv_pop},         {1, 1, kv_len},        {2, 2, kv_barrier},
    {1, 1, kv_watch},      {2, 2, kv_lease},
};
const char *const kv_operations[] = {"get",  "set",     "add",    "cas",   "wait", "check", "del",
                                     "keys", "count",   "append", "mget",  "mset", "push",  "pop",
                                     "len",  "barrier", "watch",  "lease", NULL};

static size_t find(const char *name)
{
    size_t i = 0;

    while (strcmp(kv_operations[i], name) != 0) {
        i++;
    }
    return i;
}

int kv_check_words(const char *operation, int argc)
{
    size_t i = find(operation);

    if (argc >= operations[i].argc_min && argc <= operations[i].argc_max) {
        return 0;
    }
    return cli_usage("kv", "%s takes %s%d argument%s, not %d", operation,
                     operations[i].argc_max > 3 ? "at least " : "", operations[i].argc_min,
                     operations[i].argc_min == 1 ? "" : "s", argc);
}

int kv_run(struct kv *kv, const char *operation)
{
    return operations[find(operation)].run(kv);
}
