/*
 * Trains a small language model on several nodes that may come and go.
 *
 *     muster run --nnodes 2:4 --rdzv-endpoint HOST:29400 --no-python train DIR EPOCHS TEXT
 *
 * Every node has the same model and takes its share of each batch; the gradients of all are added
 * up through the RPC agent, so that all take the same step. After each epoch (a fixed number of
 * steps) every node shares its state with the others, and keeps it in DIR.
 *
 * When nodes come or go, `muster run` starts the workers anew. Each looks at what it has in DIR and
 * tells the others how far it is. Who is behind, or has nothing, loads the newest state from those
 * that have it, and all go on from there: no step is lost but those since the last epoch.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/muster.h>

#include "train_model.h"

#define BATCH      192
#define SEED       7
#define WAIT_MS    30000
#define LATE_LIMIT 30 /* seconds that a worker waits to be stopped when it has lost another */

/* A state is the weights and, for each, the two numbers that Adam keeps. */
#define TENSORS (3 * MODEL_LAYERS)

struct train {
    const char *dir;
    uint64_t epochs;
    uint64_t steps; /* of an epoch */
    uint32_t rank;
    uint32_t world;
    muster_runtime *rt;
    muster_store *store;
    muster_rpc_agent *agent;
    muster_state *state;
    const char **workers; /* the names of all */
    struct model_text text;
    struct model model;
    float gradient[MODEL_NUMBERS + 1]; /* and the loss behind it */
    uint64_t epoch;                    /* how many are behind us */
};

/* --- words ------------------------------------------------------------------------------------ */

/* Lines of several processes meet on one terminal: each is written at once. */
static void say(const struct train *t, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say(const struct train *t, const char *format, ...)
{
    char line[512];
    va_list args;
    int n = snprintf(line, sizeof(line), "rank %" PRIu32 "  ", t->rank);

    va_start(args, format);
    n += vsnprintf(line + n, sizeof(line) - (size_t)n - 1, format, args);
    va_end(args);
    n = n < (int)sizeof(line) - 1 ? n : (int)sizeof(line) - 2;
    line[n] = '\n';
    (void)!write(STDOUT_FILENO, line, (size_t)n + 1);
}

static void die(const struct train *t, const char *what)
{
    say(t, "%s: %s", what, muster_errmsg());
    exit(1);
}

/*
 * Another worker is gone, or is slow to come. If it is gone, `muster run` is about to stop us, and
 * start us again among those that are left; ending by ourselves would count as a failure of ours.
 */
static void await_the_end(const struct train *t, const char *what)
{
    say(t, "%s: %s; the next round will sort it out", what, muster_errmsg());
    (void)sleep(LATE_LIMIT);
    exit(1);
}

/* --- the state -------------------------------------------------------------------------------- */

/* The model as tensors with names. */
static void list_tensors(struct model *m, struct muster_tensor *ret)
{
    static const char *const kinds[] = {"", "adam.mean.", "adam.square."};
    static char names[TENSORS][48];
    float *const numbers[] = {m->weights, m->mean, m->square};

    for (size_t i = 0; i < TENSORS; i++) {
        const struct model_layer *layer = &model_layers[i % MODEL_LAYERS];

        (void)snprintf(names[i], sizeof(names[i]), "%s%s", kinds[i / MODEL_LAYERS], layer->name);
        ret[i] = (struct muster_tensor){.name = names[i],
                                        .dtype = MUSTER_DTYPE_F32,
                                        .rank = layer->rank,
                                        .shape = layer->shape,
                                        .data = numbers[i / MODEL_LAYERS] + layer->at};
    }
}

/* The model changes with the next step, and who loads it must not see that: a copy is shared, in
 * memory that leaves without another. */
static void share(struct train *t)
{
    struct model *copy = muster_state_alloc(sizeof(*copy));
    struct muster_tensor tensors[TENSORS];
    struct muster_state_source source = muster_state_source_defaults();

    if (copy == NULL) {
        die(t, "no memory to share the state");
    }
    *copy = t->model;
    list_tensors(copy, tensors);
    source.prefix = "train";
    source.epoch = t->epoch;
    source.step = t->epoch * t->steps;
    source.priority = (double)t->epoch;
    source.tensors = tensors;
    source.tensor_count = TENSORS;
    source.released = muster_state_free;
    source.context = copy;
    if (muster_state_share(t->state, &source) != 0) {
        die(t, "cannot share the state");
    }
}

/* The same, and the epoch beside it. */
static void list_kept(struct train *t, struct muster_tensor *ret)
{
    list_tensors(&t->model, ret);
    ret[TENSORS] =
        (struct muster_tensor){.name = "epoch", .dtype = MUSTER_DTYPE_U64, .data = &t->epoch};
}

/* What this node has of its own, from before it was started anew. */
static void keep(struct train *t)
{
    struct muster_tensor tensors[TENSORS + 1];
    char path[4096];

    (void)snprintf(path, sizeof(path), "%s/kept.safetensors", t->dir);
    list_kept(t, tensors);
    if (muster_state_save(path, tensors, TENSORS + 1, (struct muster_bytes){0}) != 0) {
        die(t, "cannot keep the state");
    }
}

static void take_kept(struct train *t)
{
    struct muster_tensor tensors[TENSORS + 1];
    char path[4096];

    model_init(&t->model, SEED);
    (void)snprintf(path, sizeof(path), "%s/kept.safetensors", t->dir);
    list_kept(t, tensors);
    if (muster_state_read(path, tensors, TENSORS + 1) != 0) {
        t->epoch = 0; /* A newcomer. */
        model_init(&t->model, SEED);
    }
}

/* --- the others ------------------------------------------------------------------------------- */

struct standing {
    uint64_t epoch;
    char address[256];
};

static void load(struct train *t, const struct muster_values *all, uint64_t newest)
{
    struct muster_state_request request = muster_state_request_defaults();
    const char *donors[64];
    struct muster_tensor tensors[TENSORS];
    muster_state_copy *copy;

    for (size_t i = 0; i < all->count && request.donor_count < 64; i++) {
        const struct standing *s = all->items[i].data;

        if (s->epoch == newest) {
            donors[request.donor_count++] = s->address;
        }
    }
    list_tensors(&t->model, tensors);
    request.prefix = "train";
    request.donors = donors;
    request.tensors = tensors;
    request.tensor_count = TENSORS;
    request.timeout_ms = WAIT_MS;
    if (muster_state_load(t->rt, &request, &copy) != 0) {
        await_the_end(t, "cannot load the state");
    }
    say(t,
        "was at epoch %" PRIu64 ", the others at %" PRIu64 ": loaded %" PRIu64
        " KiB from %zu of them",
        t->epoch, newest, muster_state_copy_info(copy)->bytes / 1024, request.donor_count);
    t->epoch = muster_state_copy_info(copy)->epoch;
    muster_state_copy_free(copy);
}

/* Nobody trains before all are where the first is. */
static void catch_up(struct train *t)
{
    struct standing own = {.epoch = t->epoch};
    struct muster_values all;
    uint64_t newest = 0;

    (void)snprintf(own.address, sizeof(own.address), "%s", muster_state_address(t->state));
    if (muster_rpc_all_gather(t->agent, t->workers, t->world, "standing",
                              (struct muster_bytes){&own, sizeof(own)}, WAIT_MS, &all) != 0) {
        await_the_end(t, "cannot learn how far the others are");
    }
    for (size_t i = 0; i < all.count; i++) {
        const struct standing *s = all.items[i].data;

        newest = s->epoch > newest ? s->epoch : newest;
    }
    if (t->epoch < newest) {
        load(t, &all, newest);
        share(t);
        keep(t);
    }
    muster_values_free(&all);
}

/* --- training --------------------------------------------------------------------------------- */

/* The gradient of the whole batch, the same at all: added up in the order of the ranks. Returns the
 * batch's loss. */
static float learn(struct train *t, uint64_t step)
{
    struct muster_values all;
    float *g = t->gradient;

    memset(g, 0, sizeof(t->gradient));
    g[MODEL_NUMBERS] = model_learn(&t->model, &t->text, step, BATCH, t->rank, t->world, g);
    if (muster_rpc_all_gather(t->agent, t->workers, t->world, "gradient",
                              (struct muster_bytes){g, sizeof(t->gradient)}, WAIT_MS, &all) != 0) {
        await_the_end(t, "no step without the others");
    }
    memset(g, 0, sizeof(t->gradient));
    for (size_t i = 0; i < all.count; i++) {
        const float *theirs = all.items[i].data;

        for (size_t k = 0; k <= MODEL_NUMBERS; k++) {
            g[k] += theirs[k];
        }
    }
    muster_values_free(&all);
    return g[MODEL_NUMBERS];
}

static void train(struct train *t)
{
    while (t->epoch < t->epochs) {
        float loss = 0;

        for (uint64_t i = 0; i < t->steps; i++) {
            uint64_t step = t->epoch * t->steps + i;

            loss += learn(t, step);
            model_step(&t->model, t->gradient, step);
        }
        t->epoch++;
        share(t);
        keep(t);
        if (t->rank == 0) {
            say(t, "epoch %3" PRIu64 "  loss %.3f  %" PRIu32 " nodes", t->epoch,
                (double)(loss / (float)t->steps), t->world);
        }
    }
}

/* --- beginning and end ------------------------------------------------------------------------ */

static uint32_t number_of(const char *variable)
{
    const char *text = getenv(variable);

    if (text == NULL) {
        (void)fprintf(stderr, "train: there is no %s: start me with `muster run --no-python`\n",
                      variable);
        exit(2);
    }
    return (uint32_t)strtoul(text, NULL, 10);
}

/* Names, addresses, connections: what `muster run` has told is enough for all of it. */
static void meet(struct train *t)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    struct muster_state_config shared = muster_state_config_defaults();
    char url[512];
    char name[32];

    t->rank = number_of("RANK");
    t->world = number_of("WORLD_SIZE");
    (void)snprintf(url, sizeof(url), "tcp://%s:%" PRIu32, getenv("MASTER_ADDR"),
                   number_of("MASTER_PORT"));
    (void)snprintf(name, sizeof(name), "rank%" PRIu32, t->rank);
    config.name = name;
    config.id = (int32_t)t->rank;
    shared.advertise = config.advertise = getenv("TRAIN_HOST");
    if (muster_runtime_new(&t->rt) != 0 || muster_store_open(t->rt, url, NULL, &t->store) != 0 ||
        muster_rpc_start(t->rt, &config, &t->agent) != 0 ||
        muster_state_open(t->rt, &shared, &t->state) != 0) {
        die(t, "cannot start");
    }
    if (muster_rpc_join_group(t->agent, t->store, "train", t->world, WAIT_MS) != 0) {
        await_the_end(t, "cannot meet the others");
    }
    t->workers = calloc(t->world, sizeof(*t->workers));
    for (uint32_t i = 0; t->workers != NULL && i < t->world; i++) {
        char *worker = malloc(32);

        if (worker != NULL) {
            (void)snprintf(worker, 32, "rank%" PRIu32, i);
        }
        t->workers[i] = worker;
    }
}

static void part(struct train *t)
{
    if (muster_rpc_leave_group(t->agent, t->store, WAIT_MS) != 0) {
        die(t, "cannot part from the others");
    }
    muster_state_close(t->state);
    muster_rpc_shutdown(t->agent);
    muster_store_close(t->store);
    muster_runtime_free(t->rt);
    for (uint32_t i = 0; i < t->world; i++) {
        free((void *)t->workers[i]);
    }
    free((void *)t->workers);
    free(t->text.chars);
}

int main(int argc, char **argv)
{
    static struct train t = {.steps = 25};

    if (argc != 4) {
        (void)fprintf(stderr, "usage: train DIR EPOCHS TEXT\n");
        return 2;
    }
    t.dir = argv[1];
    t.epochs = strtoull(argv[2], NULL, 10);
    if (model_text_read(&t.text, argv[3]) != 0) {
        (void)fprintf(stderr, "train: cannot learn from %s: %s\n", argv[3], strerror(errno));
        return 2;
    }
    meet(&t);
    take_kept(&t);
    if (t.epoch != 0) {
        share(&t);
    }
    catch_up(&t);
    train(&t);
    part(&t);
    return 0;
}
