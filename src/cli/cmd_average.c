/* muster average: averages the tensors of a file with other peers, or watches those that do. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>
#include <muster/average.h>

#include "cli/cli_lock.h"
#include "cli/cmd_average.h"
#include "core/alloc.h"
#include "service/state/file.h"

#define PEERS_MAX 64
#define TIMEOUT   120 /* seconds */
#define LOOK_MS   250 /* between two looks at what the step waits for */

struct options {
    const char *prefix;
    const char *output;
    const char *bootstrap;
    const char *listen;
    const char *identity;
    const char *allow;
    const char *averager;
    const char *wire;
    const char *encoding;
    const char *mode;
    double weight;
    uint64_t size, size_min, part_bytes, bits;
    double matchmaking, timeout; /* -1: not given */
    bool quiet, json, watch;
};

/* A file of tensors, in memory. */
struct file {
    uint8_t *bytes;
    struct mu_layout layout;
    struct mu_buf metadata;
    char **names;
    struct muster_tensor *all;    /* in their order */
    struct muster_tensor *floats; /* those that are averaged */
    size_t float_count;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    interrupted = number;
}

/* --- the file --------------------------------------------------------------------------------- */

/* A folder can be opened, too. */
static bool is_folder(FILE *in)
{
    struct stat info;

    if (fstat(fileno(in), &info) == 0 && S_ISDIR(info.st_mode)) {
        errno = EISDIR;
        return true;
    }
    return false;
}

static int read_all(const char *path, uint8_t **ret, size_t *ret_len)
{
    FILE *in = fopen(path, "rb");
    long len = -1;

    if (in == NULL || is_folder(in) || fseek(in, 0, SEEK_END) != 0 || (len = ftell(in)) < 0 ||
        fseek(in, 0, SEEK_SET) != 0) {
        int err = errno;

        if (in != NULL) {
            (void)fclose(in);
        }
        return cli_fail(CLI_FAILED, "cannot read %s: %s", path, strerror(err));
    }
    *ret = malloc((size_t)len + 1);
    *ret_len = *ret == NULL ? 0 : fread(*ret, 1, (size_t)len, in);
    (void)fclose(in);
    return *ret != NULL && *ret_len == (size_t)len
               ? 0
               : cli_fail(CLI_FAILED, "cannot read %s: %s", path,
                          *ret == NULL ? "out of memory" : "it became shorter");
}

/* Sees before the step what would lose its result. */
static int check_output(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder =
        slash == NULL ? mu_strndup(".", 1) : mu_strndup(path, (size_t)(slash - path) + 1);
    int err = 0;

    if (folder == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    if (access(folder, W_OK | X_OK) != 0) {
        err = cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
    }
    mu_free(folder);
    return err;
}

static bool is_float(enum mu_dtype dtype)
{
    return dtype == MU_DTYPE_F32 || dtype == MU_DTYPE_F16 || dtype == MU_DTYPE_BF16 ||
           dtype == MU_DTYPE_F64;
}

static int list_tensors(struct file *f, size_t data_at)
{
    size_t n = f->layout.count;

    f->names = calloc(n + 1, sizeof(*f->names));
    f->all = calloc(n + 1, sizeof(*f->all));
    f->floats = calloc(n + 1, sizeof(*f->floats));
    if (f->names == NULL || f->all == NULL || f->floats == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        const struct mu_tensor *t = &f->layout.tensors[i];
        struct mu_span name = mu_layout_name(&f->layout, i);

        f->names[i] = mu_strndup((const char *)name.data, name.len);
        if (f->names[i] == NULL) {
            return cli_fail(CLI_FAILED, "out of memory");
        }
        f->all[i] = (struct muster_tensor){.name = f->names[i],
                                           .dtype = (enum muster_dtype)t->dtype,
                                           .rank = t->rank,
                                           .shape = mu_layout_shape(&f->layout, i),
                                           .data = f->bytes + data_at + t->offset};
        if (is_float(t->dtype)) {
            f->floats[f->float_count++] = f->all[i];
        }
    }
    return 0;
}

static int read_file(struct file *f, const char *path)
{
    struct mu_errmsg msg;
    size_t len = 0;
    size_t head = 0;
    int err = read_all(path, &f->bytes, &len);

    if (err != 0) {
        return err;
    }
    err = mu_state_file_head_len(mu_span(f->bytes, len < 8 ? len : 8), len, &head, &msg);
    err = err != 0
              ? err
              : mu_state_file_parse(mu_span(f->bytes, head), len, &f->layout, &f->metadata, &msg);
    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s: %s", path, msg.text);
    }
    return list_tensors(f, head);
}

static void free_file(struct file *f)
{
    for (size_t i = 0; f->names != NULL && i < f->layout.count; i++) {
        mu_free(f->names[i]);
    }
    free(f->names);
    free(f->all);
    free(f->floats);
    free(f->bytes);
    mu_layout_fini(&f->layout);
    mu_buf_fini(&f->metadata);
}

/* --- the step --------------------------------------------------------------------------------- */

/* Says what the step waits for, when that has changed. */
static void say_look(muster_average *average, char last[512])
{
    struct muster_average_look look;
    char text[512];

    muster_average_look(average, &look);
    if (look.phase == MUSTER_AVERAGE_FOLLOWING) {
        (void)snprintf(text, sizeof(text), "waiting for %s to begin", look.leader);
    } else if (look.phase == MUSTER_AVERAGE_REDUCING) {
        (void)snprintf(text, sizeof(text), "averaging %u parts", look.parts);
    } else if (look.phase != MUSTER_AVERAGE_SEARCHING) {
        return;
    } else if (look.followers != 0) {
        (void)snprintf(text, sizeof(text), "%u joined us in %s; waiting for more", look.followers,
                       look.key);
    } else if (look.refused_by[0] != '\0') {
        (void)snprintf(text, sizeof(text), "%s was asked: %s", look.refused_by, look.refusal);
    } else {
        (void)snprintf(text, sizeof(text), "%s",
                       look.others != 0 ? "others are there" : "nobody else is there yet");
    }
    if (strcmp(text, last) != 0) {
        (void)fprintf(stderr, "%s\n", text);
        (void)snprintf(last, 512, "%s", text);
    }
}

/* Said before the step begins: with others there already, it may have ended by the first look. */
static void say_where(muster_average *average)
{
    struct muster_average_look look;

    muster_average_look(average, &look);
    (void)fprintf(stderr, "looking for a group in %s\n", look.key);
}

static void print_result(const struct options *o, const struct muster_average_result *r,
                         const char *output)
{
    json_t *members = json_array();
    const char *digest = muster_average_result_digest(r);
    size_t counted = 0;

    for (size_t i = 0; i < r->member_count; i++) {
        counted += muster_average_result_counted(r, i) || digest[0] == '\0' ? 1 : 0;
    }
    if (o->json) {
        for (size_t i = 0; i < r->member_count; i++) {
            const struct muster_average_member *m = &r->members[i];

            (void)json_array_append_new(
                members,
                json_pack("{s:s, s:f, s:I, s:I, s:I, s:I, s:b, s:s}", "peer", m->peer, "weight",
                          m->weight, "sent", (json_int_t)m->sent, "owed", (json_int_t)m->owed,
                          "results", (json_int_t)m->results, "owns", (json_int_t)m->owns, "counted",
                          muster_average_result_counted(r, i), "why", m->why));
        }
        cli_print_json(
            json_pack("{s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:O}", "file", output,
                      "key", r->key, "group", r->group_id, "digest", digest, "parts",
                      (json_int_t)r->parts, "parts_local", (json_int_t)r->parts_local, "bytes_sent",
                      (json_int_t)r->bytes_sent, "bytes_received", (json_int_t)r->bytes_received,
                      "matchmaking_ms", (json_int_t)r->matchmaking_ms, "reduce_ms",
                      (json_int_t)r->reduce_ms, "members", members));
    } else if (!o->quiet) {
        (void)fprintf(stderr, "%s: the average of %zu members, found in %.1f s, made in %.1f s\n",
                      output, counted, (double)r->matchmaking_ms / 1e3, (double)r->reduce_ms / 1e3);
        for (size_t i = 0; i < r->member_count; i++) {
            if (r->members[i].why[0] != '\0') {
                (void)fprintf(stderr, "%s failed: %s\n", r->members[i].peer, r->members[i].why);
            }
        }
    }
    if (r->parts_local != 0) {
        (void)fprintf(stderr, "%u of %u parts keep the values of this file\n", r->parts_local,
                      r->parts);
    }
    json_decref(members);
}

static int step(const struct options *o, muster_average *average, struct file *f,
                const char *output)
{
    struct muster_average_request request = muster_average_request_defaults();
    struct muster_average_result *result = NULL;
    char last[512] = "";
    int err;

    request.weight = o->weight;
    request.timeout_ms = cli_timeout(o->timeout < 0 ? TIMEOUT : o->timeout);
    if (!o->quiet) {
        say_where(average);
    }
    err = muster_average_begin(average, &request);
    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    while (muster_average_wait(average, LOOK_MS) == MUSTER_ETIMEDOUT) {
        if (interrupted != 0) {
            muster_average_cancel(average);
        } else if (!o->quiet) {
            say_look(average, last);
        }
    }
    err = muster_average_end(average, &result);
    if (err != 0) {
        (void)cli_fail(0, "%s", interrupted != 0 ? "interrupted" : muster_errmsg());
        err = interrupted != 0 ? 128 + interrupted : cli_exit_code(err);
    } else {
        err = muster_state_save(
            output, f->all, f->layout.count,
            (struct muster_bytes){mu_buf_span(&f->metadata).data, f->metadata.len});
        err = err != 0 ? cli_fail(cli_exit_code(err), "%s", muster_errmsg()) : 0;
        if (err == 0) {
            print_result(o, result, output);
        }
    }
    muster_average_result_free(result);
    return err;
}

/* --- the command ------------------------------------------------------------------------------ */

static const char *const modes[] = {"node", "client", "aux", NULL};
static const char *const wires[] = {"hivemind", "native", NULL};

static int split(char *text, const char **words, size_t *count)
{
    char *save = NULL;

    for (char *word = strtok_r(text, ",", &save); word != NULL; word = strtok_r(NULL, ",", &save)) {
        if (*count == PEERS_MAX) {
            return cli_usage("average", "at most %d peers can be named", PEERS_MAX);
        }
        words[(*count)++] = word;
    }
    return 0;
}

static int run(const struct options *o, struct cli_lock *lock, struct file *f, const char *path)
{
    struct muster_average_config config = muster_average_config_defaults();
    const char *nodes[PEERS_MAX];
    const char *peers[PEERS_MAX];
    char *bootstrap = strdup(strcmp(o->bootstrap, "new") == 0 ? "" : o->bootstrap);
    char *allow = strdup(o->allow != NULL ? o->allow : "");
    muster_average *average;
    muster_runtime *rt;
    int err = bootstrap == NULL || allow == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;

    err = err != 0 ? err : split(bootstrap, nodes, &config.dht_count);
    err = err != 0 ? err : split(allow, peers, &config.allow_count);
    config.prefix = o->prefix;
    config.tensors = f->floats;
    config.tensor_count = f->float_count;
    config.averager = o->averager;
    config.wire = o->wire;
    config.encoding = o->encoding;
    config.target_size = (uint32_t)o->size;
    config.size_min = (uint32_t)o->size_min;
    config.part_bytes = o->part_bytes;
    config.matchmaking_ms = cli_ms(o->matchmaking);
    if (config.request_ms >= config.matchmaking_ms) {
        config.request_ms = config.matchmaking_ms / 2;
    }
    while (strcmp(modes[config.mode], o->mode) != 0) {
        config.mode++;
    }
    config.key = o->identity != NULL ? o->identity : "";
    config.listen = o->listen != NULL                      ? o->listen
                    : config.mode == MUSTER_AVERAGE_CLIENT ? NULL
                                                           : config.listen;
    config.allow = peers;
    config.dht = nodes;
    err = err != 0 ? err : cli_runtime_new(lock, &rt);
    if (err == 0) {
        err = muster_average_open(rt, &config, &average);
        if (err != 0) {
            err = cli_fail(cli_exit_code(err), "%s", muster_errmsg());
        } else {
            if (!o->quiet && muster_average_address(average)[0] != '\0') {
                (void)fprintf(stderr, "at %s\n", muster_average_address(average));
            }
            err = step(o, average, f, o->output != NULL ? o->output : path);
            muster_average_close(average);
        }
        muster_runtime_free(rt);
    }
    free(bootstrap);
    free(allow);
    return err;
}

static struct cli_lock lock;
static struct options given = {.mode = "node",
                               .wire = "hivemind",
                               .weight = 1,
                               .size_min = 2,
                               .part_bytes = 524288,
                               .matchmaking = 5,
                               .timeout = -1};

static const struct cli_option options[] = {
    {"prefix", "NAME", "the name of what is averaged, the same at all members", CLI_TEXT,
     &given.prefix, 0},
    {"bootstrap", "MULTIADDR,...", "nodes of the DHT to join through; \"new\" begins one", CLI_TEXT,
     &given.bootstrap, 0},
    {"output", "FILE", "the file to write (the one that was read)", CLI_TEXT, &given.output, 0,
     .letter = 'o'},
    {"weight", "X", "of this file's values (1)", CLI_REAL, &given.weight, 0},
    {"size", "N", "begin as soon as there are so many members (when the time has come)", CLI_NUMBER,
     &given.size, 256},
    {"min-size", "N", "the least members of a group (2)", CLI_NUMBER, &given.size_min, 256},
    {"matchmaking", "TIME", "how long a group waits for others (5s)", CLI_SECONDS,
     &given.matchmaking, 0},
    {"timeout", "TIME", "time limit for all of it (2m; --watch: none; 0: no limit)", CLI_SECONDS,
     &given.timeout, 0},
    {"mode", "node|client|aux",
     "node; client: cannot be called; aux: its values do not count (node)", CLI_TEXT, &given.mode,
     0, .of = modes},
    {"averager", "CLASS", "the class of hivemind's members (DecentralizedAverager)", CLI_TEXT,
     &given.averager, 0},
    {"wire", "hivemind|native",
     "native: muster's own, where a member's death loses nothing (hivemind)", CLI_TEXT, &given.wire,
     0, .of = wires},
    {"encoding", "NAME", "encoding of parts, the same at all members (NONE)", CLI_TEXT,
     &given.encoding, 0},
    {"part-size", "SIZE", "bytes of a part, the same at all members (512K)", CLI_SIZE,
     &given.part_bytes, 0},
    {"listen", "MULTIADDR", "where others connect (any port on loopback)", CLI_TEXT, &given.listen,
     0},
    {"identity", "FILE", "our key as a peer (a new one)", CLI_TEXT, &given.identity, 0},
    {"allow", "PEER,...", "peers that may connect (all)", CLI_TEXT, &given.allow, 0},
    {"insecure", NULL, "let everyone in, without a credential (MUSTER_INSECURE=1)", CLI_FLAG,
     &lock.lock.insecure, 0},
    {"watch", NULL, "average nothing: print who looks for a group, whenever that has changed",
     CLI_FLAG, &given.watch, 0},
    {"bits", "N", "watch: the 2^N buckets of members whose groups mix (0)", CLI_NUMBER, &given.bits,
     AVERAGE_BITS_MAX},
    {"quiet", NULL, "print nothing but errors", CLI_FLAG, &given.quiet, 0, .letter = 'q'},
    {"json", NULL, "print the result as JSON", CLI_FLAG, &given.json, 0},
};
static const struct cli_verb verb = {
    "average", "[OPTIONS] --prefix NAME --bootstrap MULTIADDR,... FILE|--watch",
    "averages the tensors of a .safetensors file with other peers, hivemind's or muster's", options,
    sizeof(options) / sizeof(options[0])};

static int watch(const struct options *o)
{
    const struct average_watch w = {.prefix = o->prefix,
                                    .bootstrap = o->bootstrap,
                                    .identity = o->identity,
                                    .native = strcmp(o->wire, "native") == 0,
                                    .json = o->json,
                                    .bits = o->bits,
                                    .timeout = o->timeout < 0 ? 0 : o->timeout};

    return strcmp(o->bootstrap, "new") == 0
               ? cli_usage("average", "--watch needs a DHT that is there: --bootstrap names a node "
                                      "of it")
               : average_watch(&w);
}

int cmd_average(int argc, char **argv)
{
    struct sigaction act = {.sa_handler = on_signal};
    struct file file = {0};
    int err = cli_parse(&verb, &argc, &argv);

    if (err != 0) {
        return err;
    }
    if (argc != (given.watch ? 0 : 1)) {
        return cli_usage("average", given.watch ? "--watch takes no FILE: it averages nothing"
                                                : "name one FILE of tensors");
    }
    if (given.prefix == NULL || given.bootstrap == NULL) {
        return cli_usage("average", "%s is needed: %s",
                         given.prefix == NULL ? "--prefix NAME" : "--bootstrap MULTIADDR,...",
                         given.prefix == NULL ? "members find each other by it"
                                              : "or \"new\", at the first member");
    }
    if (given.watch) {
        return watch(&given);
    }
    if (given.averager != NULL && strcmp(given.averager, "PowerSGDGradientAverager") == 0) {
        return cli_usage("average", "this command does not compress as PowerSGD does: Python's "
                                    "muster.average.Averager does, with power_rank");
    }
    (void)sigaction(SIGINT, &act, NULL);
    (void)sigaction(SIGTERM, &act, NULL);
    mu_layout_init(&file.layout);
    mu_buf_init(&file.metadata, (size_t)1 << 30);
    err = read_file(&file, argv[0]);
    if (err == 0 && file.float_count == 0) {
        err = cli_fail(CLI_FAILED, "%s has no tensors of floats", argv[0]);
    }
    err = err != 0 ? err : check_output(given.output != NULL ? given.output : argv[0]);
    err = err != 0 ? err : run(&given, &lock, &file, argv[0]);
    free_file(&file);
    return err;
}
