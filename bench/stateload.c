/*
 * A donor and a newcomer of a state made up for the purpose, with as little around them as can be.
 *
 *     stateload serve LISTEN BYTES [rate=BYTES] [slots=N] [copy] [cert=F key=F ca=F] [peer]
 *         prints "ready ADDRESS SECONDS", the time that hashing took; serves until its input ends,
 *         and then prints "gave BYTES"
 *     stateload load INTO BYTES ADDRESS... [listen=ADDRESS] [stay] [cert=F key=F ca=F]
 *         INTO is touched (memory that was written to before), apart (the same, each tensor in
 *         memory of its own, as those of a framework are), new, or a file's path; prints
 *         "loaded SECONDS BESIDE CPU", the most memory it had beside the tensors and the seconds
 *         that all its threads ran; with `stay` it goes on serving until its input ends
 * Certificates are the runtime's lock: they are used beyond loopback.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <muster/muster.h>

#define TENSORS 16

struct options {
    uint64_t bytes;
    uint64_t rate;
    uint32_t slots;
    bool copy;
    bool peer;
    bool stay;
    const char *listen;
    struct muster_lock lock;
    const char *words[64];
    size_t word_count;
};

static double seconds(void)
{
    struct timespec ts;

    (void)clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int die(const char *what)
{
    (void)fprintf(stderr, "stateload: %s: %s\n%s", what, muster_errmsg(), muster_state_report());
    return 1;
}

/* Of all threads. */
static double cpu_seconds(void)
{
    struct rusage u;

    (void)getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Memory in use, in bytes: `what` is a line of /proc/self/status. */
static uint64_t memory(const char *what)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (strncmp(line, what, strlen(what)) == 0) {
            (void)sscanf(line + strlen(what), ": %llu", &kib);
        }
    }
    if (f != NULL) {
        (void)fclose(f);
    }
    return (uint64_t)kib << 10;
}

/* Tensors of the same names and kind as those of bench_python_state, at these addresses. */
static void lay_out(struct muster_tensor *tensors, uint64_t *shapes, char (*names)[16],
                    uint8_t *const at[TENSORS], uint64_t bytes)
{
    for (size_t i = 0; i < TENSORS; i++) {
        (void)snprintf(names[i], 16, "layer%02zu", i);
        shapes[i] = bytes / TENSORS / sizeof(float);
        tensors[i] = (struct muster_tensor){.name = names[i],
                                            .dtype = MUSTER_DTYPE_F32,
                                            .rank = 1,
                                            .shape = &shapes[i],
                                            .data = at[i]};
    }
}

/* Addresses behind each other in `data`, as those of most models are. */
static void place_in(uint8_t *at[TENSORS], uint8_t *data, uint64_t bytes)
{
    for (size_t i = 0; i < TENSORS; i++) {
        at[i] = data + bytes / TENSORS * i;
    }
}

static void parse(struct options *o, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        char *value = strchr(argv[i], '=');
        const char *name = argv[i];

        if (value == NULL) {
            o->copy = o->copy || strcmp(name, "copy") == 0;
            o->peer = o->peer || strcmp(name, "peer") == 0;
            o->stay = o->stay || strcmp(name, "stay") == 0;
            if (strcmp(name, "copy") != 0 && strcmp(name, "peer") != 0 &&
                strcmp(name, "stay") != 0 && o->word_count < 64) {
                o->words[o->word_count++] = name;
            }
            continue;
        }
        *value++ = '\0';
        if (strcmp(name, "rate") == 0) {
            o->rate = strtoull(value, NULL, 10);
        } else if (strcmp(name, "slots") == 0) {
            o->slots = (uint32_t)strtoul(value, NULL, 10);
        } else if (strcmp(name, "listen") == 0) {
            o->listen = value;
        } else if (strcmp(name, "cert") == 0) {
            o->lock.cert = value;
        } else if (strcmp(name, "key") == 0) {
            o->lock.key = value;
        } else if (strcmp(name, "ca") == 0) {
            o->lock.ca = value;
        }
    }
    o->lock.name = "";
}

static void wait_for_end(void)
{
    while (getchar() != EOF) {
    }
}

static int serve(muster_runtime *rt, const struct options *o)
{
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_tensor tensors[TENSORS];
    uint64_t shapes[TENSORS];
    char names[TENSORS][16];
    struct muster_state_source source = muster_state_source_defaults();
    uint8_t *data = o->copy ? malloc(o->bytes) : muster_state_alloc(o->bytes);
    uint8_t *at[TENSORS];
    struct muster_state_stats stats;
    muster_state *state;
    double begun;

    if (data == NULL) {
        return die("no memory");
    }
    for (uint64_t i = 0; i < o->bytes; i += sizeof(uint64_t)) {
        uint64_t x = i * 0x9e3779b97f4a7c15u;

        memcpy(data + i, &x, sizeof(x));
    }
    place_in(at, data, o->bytes);
    lay_out(tensors, shapes, names, at, o->bytes);
    config.listen = o->words[0];
    config.rate_bytes = o->rate;
    config.slots = o->slots != 0 ? o->slots : config.slots;
    config.key = o->peer ? "" : NULL;
    if (muster_state_open(rt, &config, &state) != 0) {
        return die("open");
    }
    source.prefix = "bench";
    source.tensors = tensors;
    source.tensor_count = TENSORS;
    begun = seconds();
    if (muster_state_share(state, &source) != 0) {
        return die("share");
    }
    printf("ready %s %.6f\n", muster_state_address(state), seconds() - begun);
    (void)fflush(stdout);
    wait_for_end();
    muster_state_stats(state, &stats);
    printf("gave %llu\n", (unsigned long long)stats.bytes);
    muster_state_close(state);
    if (o->copy) {
        free(data);
    } else {
        muster_state_free(data);
    }
    return 0;
}

/* Memory that was written to, for all tensors; freed with free_place(). */
static void make_place(uint8_t *at[TENSORS], uint64_t bytes, bool apart)
{
    size_t blocks = apart ? TENSORS : 1;

    for (size_t i = 0; i < blocks; i++) {
        at[i] = malloc(bytes / blocks);
        if (at[i] == NULL) {
            exit(die("no memory"));
        }
        memset(at[i], 1, bytes / blocks);
    }
    if (!apart) {
        place_in(at, at[0], bytes);
    }
}

static void free_place(uint8_t *at[TENSORS], bool apart)
{
    for (size_t i = 0; i < (apart ? TENSORS : 1); i++) {
        free(at[i]);
    }
}

static int load(muster_runtime *rt, const struct options *o)
{
    struct muster_state_request r = muster_state_request_defaults();
    struct muster_tensor tensors[TENSORS];
    uint64_t shapes[TENSORS];
    char names[TENSORS][16];
    bool apart = strcmp(o->words[0], "apart") == 0;
    bool touched = apart || strcmp(o->words[0], "touched") == 0;
    bool into_file = !touched && strcmp(o->words[0], "new") != 0;
    uint8_t *at[TENSORS];
    muster_state_copy *copy;
    uint64_t peak;
    double begun;
    double cpu;

    if (touched) {
        make_place(at, o->bytes, apart);
        lay_out(tensors, shapes, names, at, o->bytes);
        r.tensors = tensors;
        r.tensor_count = TENSORS;
    }
    r.file = into_file ? o->words[0] : NULL;
    r.donors = o->words + 2;
    r.donor_count = o->word_count - 2;
    r.listen = o->listen;
    r.keep_serving = o->stay;
    cpu = cpu_seconds();
    begun = seconds();
    if (muster_state_load(rt, &r, &copy) != 0) {
        return die("load");
    }
    begun = seconds() - begun;
    peak = memory("VmHWM");
    printf("loaded %.6f %llu %.6f\n", begun,
           (unsigned long long)(peak - (peak < o->bytes ? peak : o->bytes)), cpu_seconds() - cpu);
    (void)fflush(stdout);
    if (o->stay) {
        wait_for_end();
    }
    muster_state_copy_free(copy);
    if (touched) {
        free_place(at, apart);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();
    struct options o = {.lock = muster_lock_defaults()};
    muster_runtime *rt;
    int code;

    if (argc < 4) {
        (void)fprintf(stderr, "usage: stateload serve|load ...\n");
        return 2;
    }
    parse(&o, argc - 2, argv + 2);
    o.bytes = o.word_count < 2 ? 0 : strtoull(o.words[1], NULL, 10) / 4096 * 4096;
    config.lock = &o.lock;
    if (muster_runtime_new_with(&config, &rt) != 0) {
        return die("runtime");
    }
    code = strcmp(argv[1], "serve") == 0 ? serve(rt, &o) : load(rt, &o);
    muster_runtime_free(rt);
    return code;
}
