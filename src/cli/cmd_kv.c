/* muster kv: every operation of a store, from the shell or a prompt. */
#include "cli/cmd_kv.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where the table stores the values. */
static struct kv kv;

static const struct cli_option options[] = {
    {"store", "URL", "tcp://HOST:PORT, etcd://HOST/PREFIX, file:///PATH, hash: (MUSTER_STORE)",
     CLI_TEXT, &kv.url, 0},
    {"wait", NULL, "get, mget, pop: wait until there is a value", CLI_FLAG, &kv.wait, 0},
    {"nowait", NULL, "get, mget and pop answer at once now; --wait waits", CLI_GONE, NULL, 0},
    {"timeout", "TIME", "how long an operation may wait (5m); 0 waits forever", CLI_SECONDS,
     &kv.timeout, 0, .bare = 900},
    {"connect", "TIME", "how long to try to connect (10s)", CLI_SECONDS, &kv.connect, 0,
     .bare = 60},
    {"json", NULL, "print one JSON object per line", CLI_FLAG, &kv.json, 0},
    {"raw", NULL, "print no newline after a value", CLI_FLAG, &kv.raw, 0},
    {"prefix", NULL, "watch all keys that begin with KEY", CLI_FLAG, &kv.prefix, 0},
    {"current", NULL, "watch begins with the keys that exist", CLI_FLAG, &kv.current, 0},
    {"once", NULL, "watch waits for one change, prints only its revision, and ends", CLI_FLAG,
     &kv.once, 0},
    {"lease", "LEASE", "set, append, mset, add, cas: bind the key to this lease", CLI_NUMBER,
     &kv.lease, 0},
    CLI_LOCK_OPTIONS(&kv.lock),
};
static const struct cli_verb verb = {
    "kv",
    "--store URL [OPTIONS] [OPERATION [ARGUMENTS...]]",
    "Does one operation, or on a terminal, without one, reads operations at a prompt.\n\n"
    "operations:\n"
    "  get KEY                    print the value; if there is none, exit with 7\n"
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
    "  mget KEY...                print the values of all of the keys; exit with 7 if one is "
    "missing\n"
    "  mset KEY VALUE...          set several values\n"
    "  push QUEUE VALUE           put a value at the end of a queue\n"
    "  pop QUEUE                  take a value from the queue and print it; if none, exit with 7\n"
    "  len QUEUE                  print the number of values in a queue\n"
    "  barrier NAME COUNT         wait until COUNT clients have reached the barrier\n"
    "  watch KEY                  print each change of the key, until interrupted\n"
    "  lease grant TIME           make a lease that ends when not kept for TIME; print it\n"
    "  lease keep LEASE           start the lease's time again\n"
    "  lease revoke LEASE         end the lease and delete its keys",
    options,
    sizeof(options) / sizeof(options[0]),
    .operations = kv_operations,
    .alone = true};

/* Opens the store, runs `use` and closes it. */
static int with_store(int (*use)(char *operation), char *operation)
{
    struct muster_store_config config = muster_store_config_defaults();
    muster_runtime *rt;
    int code;
    int err = cli_runtime_new(&kv.lock, &rt);

    if (err != 0) {
        return err;
    }
    (void)signal(SIGPIPE, SIG_DFL);
    config.timeout_ms = cli_timeout(kv.timeout);
    config.connect_timeout_ms = cli_timeout(kv.connect);
    err = muster_store_open(rt, kv.url, &config, &kv.store);
    if (err != 0) {
        code = cli_fail(err == MUSTER_ETIMEDOUT ? CLI_CONNECT : cli_exit_code(err), "%s",
                        muster_errmsg());
    } else {
        code = use(operation);
        muster_store_close(kv.store);
    }
    muster_runtime_free(rt);
    if (fflush(stdout) != 0 && code == 0) {
        code = cli_fail(CLI_FAILED, "cannot write the result");
    }
    return code;
}

static int run_one(char *operation)
{
    return kv_run(&kv, operation);
}

/* A line of the prompt has options of its own, and otherwise those of the command line. */
static void run_line(int argc, char **argv)
{
    struct kv before = kv;

    if (cli_parse(&verb, &argc, &argv) == 0 && argc > 0 && kv_check_words(argv[0], argc - 1) == 0) {
        kv.argc = argc - 1;
        kv.argv = argv + 1;
        (void)kv_run(&kv, argv[0]);
    }
    kv = before;
    (void)fflush(stdout);
}

static void find_keys(const char *begin, void (*each)(const char *key, size_t len))
{
    struct muster_bytes prefix = muster_str(begin);
    struct muster_store_request q = muster_store_request_defaults();
    muster_op *op = NULL;

    q.verb = MUSTER_STORE_LIST_KEYS;
    q.keys = &prefix;
    q.key_count = prefix.len != 0;
    q.timeout_ms = 1000;
    if (muster_store_submit(kv.store, &q, &op) == 0 && muster_op_wait(op) == 0) {
        for (size_t i = 0; i < muster_op_value_count(op); i++) {
            each(muster_op_value(op, i).data, muster_op_value(op, i).len);
        }
    }
    muster_op_free(op);
}

static int run_prompt(char *operation)
{
    const struct kv_prompt prompt = {
        .url = kv.url, .verb = &verb, .run = run_line, .keys = find_keys};

    (void)operation;
    return kv_prompt(&prompt);
}

int cmd_kv(int argc, char **argv)
{
    int err;

    kv = (struct kv){.url = getenv("MUSTER_STORE"), .timeout = 300, .connect = 10};
    err = cli_parse(&verb, &argc, &argv);
    if (err != 0) {
        return err;
    }
    if (argc == 0 && (isatty(STDIN_FILENO) != 1 || isatty(STDOUT_FILENO) != 1)) {
        return cli_usage("kv", "name an operation, such as get KEY");
    }
    err = argc == 0 ? 0 : kv_check_words(argv[0], argc - 1);
    if (err == 0 && kv.url == NULL) {
        err = cli_usage("kv", "name the store: --store URL, or MUSTER_STORE in the environment");
    }
    if (err != 0) {
        return err;
    }
    kv.argc = argc - 1;
    kv.argv = argv + 1;
    return argc == 0 ? with_store(run_prompt, NULL) : with_store(run_one, argv[0]);
}
