/* The public state download: how something comes to be shared. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "api/state_api.h"
#include "codec/state/hm_trainer.h"
#include "core/alloc.h"
#include "service/state/file.h"

#define HASH_THREADS_MAX 8
#define HASH_CHUNKS_MIN  16 /* how many chunks make another thread worthwhile */

/* --- hashing ---------------------------------------------------------------------------------- */

struct hashing {
    pthread_t thread;
    struct mu_state_share *share;
    uint32_t first;
    uint32_t count;
    int err;
};

static void *run_hashing(void *context)
{
    struct hashing *h = context;

    h->err = mu_state_share_hash(h->share, h->first, h->count);
    return NULL;
}

/* Hashes on this thread and as many others as there are cores. */
int mu_state_hash_all(struct mu_state_share *share)
{
    struct hashing parts[HASH_THREADS_MAX] = {0};
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    uint32_t most = share->chunks / HASH_CHUNKS_MIN + 1;
    uint32_t count = cores < 1 ? 1 : cores > HASH_THREADS_MAX ? HASH_THREADS_MAX : (uint32_t)cores;
    int err = 0;

    count = count < most ? count : most;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = (uint32_t)((uint64_t)share->chunks * i / count);
        uint32_t end = (uint32_t)((uint64_t)share->chunks * (i + 1) / count);

        parts[i] = (struct hashing){.share = share, .first = first, .count = end - first};
        if (i == 0 || pthread_create(&parts[i].thread, NULL, run_hashing, &parts[i]) != 0) {
            parts[i].thread = pthread_self(); /* this thread does it */
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (pthread_equal(parts[i].thread, pthread_self()) != 0) {
            (void)run_hashing(&parts[i]);
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (pthread_equal(parts[i].thread, pthread_self()) == 0) {
            (void)pthread_join(parts[i].thread, NULL);
        }
        err = err != 0 ? err : parts[i].err;
    }
    return err;
}

/* --- memory ----------------------------------------------------------------------------------- */

struct share_door {
    struct mu_door door;
    muster_state *state;
    struct mu_state_share *share;
    struct mu_hm_snapshot *snapshot;
    const char *prefix;
    int err;
    struct mu_errmsg msg;
};

static void put_on_loop(struct mu_door *door)
{
    struct share_door *d = MU_CONTAINER_OF(door, struct share_door, door);
    struct mu_state_swarm *swarm = d->state->node.swarm;

    d->msg.text[0] = '\0';
    d->err = swarm == NULL ? 0 : mu_state_swarm_ready(swarm, d->prefix, &d->msg);
    d->err = d->err != 0 ? d->err : mu_state_donor_put(d->state->donor, d->share);
    if (d->err != 0) {
        d->share->released = NULL;
    } else if (swarm != NULL) {
        mu_state_swarm_put(swarm, d->prefix, d->snapshot, d->share->priority, d->share->hidden,
                           d->state->replaced_ms);
    }
    mu_hm_snapshot_unref(d->snapshot);
    mu_state_share_drop(d->share);
    mu_door_open(door);
}

/* The epoch is the one that the metadata names, for hivemind's trainers take theirs from there; and
 * those that join choose by priority, so it must be the epoch too. */
static int settle_epoch(const muster_state *s, const struct mu_layout *layout,
                        struct mu_state_share_spec *spec, struct mu_errmsg *msg)
{
    const char *averager = s->node.swarm == NULL ? NULL : mu_state_swarm_averager(s->node.swarm);
    bool trainer = averager != NULL && strcmp(averager, MU_HM_TRAINER) == 0;
    uint64_t epoch = 0;
    int err = trainer ? mu_hm_trainer_check(spec->metadata, layout, &epoch, msg) : 0;

    if (err != 0 || averager == NULL || spec->metadata.len == 0 ||
        mu_hm_metadata_epoch(spec->metadata, &epoch) != 0) {
        return err;
    }
    if (spec->epoch != 0 && spec->epoch != epoch) {
        return mu_err(msg, MUSTER_EINVAL,
                      "its metadata is of epoch %llu, so it cannot be shared as epoch %llu",
                      (unsigned long long)epoch, (unsigned long long)spec->epoch);
    }
    if (trainer && spec->priority != 0 && spec->priority != (double)epoch) {
        return mu_err(msg, MUSTER_EINVAL,
                      "its metadata is of epoch %llu, which must be its priority too: a %s that "
                      "joins would load it again and again with the priority %g",
                      (unsigned long long)epoch, MU_HM_TRAINER, spec->priority);
    }
    spec->epoch = epoch;
    spec->priority = trainer ? (double)epoch : spec->priority;
    return 0;
}

/* Takes ownership of `home` if it returns 0. */
static int share_it(muster_state *s, const struct muster_state_source *source,
                    const struct mu_layout *layout, uint8_t *const *tensors, uint8_t *data,
                    struct mu_span metadata, struct mu_state_home *home)
{
    struct share_door d = {.state = s, .prefix = source->prefix};
    struct mu_state_share_spec spec = {
        .prefix = mu_span_str(source->prefix),
        .priority = source->priority,
        .hidden = source->hidden,
        .epoch = source->epoch,
        .step = source->step,
        .metadata = metadata,
        .layout = layout,
        .tensors = tensors,
        .data = data,
    };
    int err = settle_epoch(s, layout, &spec, &d.msg);

    err = err != 0 ? err : mu_state_share_new(&spec, &d.share, &d.msg);
    if (err != 0) {
        return mu_api_error(err, d.msg.text);
    }
    d.share->owner = home;
    d.share->read = home->mapped != NULL ? mu_state_home_read : NULL;
    err = mu_state_hash_all(d.share);
    if (err != 0) {
        (void)mu_err(&d.msg, err, "cannot read the tensors to share: %s", muster_strerror(err));
    } else {
        err = mu_state_share_seal(d.share, s->net.identity, &d.msg);
    }
    if (err == 0 && s->node.swarm != NULL && mu_state_swarm_averager(s->node.swarm) != NULL) {
        err = mu_state_snapshot_of(d.share, s->compression, &d.snapshot, &d.msg);
    }
    if (err != 0) {
        mu_state_share_drop(d.share);
        return mu_api_error(err, d.msg.text);
    }
    d.share->released = mu_state_home_released;
    mu_door_pass(s->rt, &d.door, put_on_loop);
    return mu_api_error(d.err, d.msg.text[0] != '\0' ? d.msg.text : NULL);
}

void muster_state_source_init(struct muster_state_source *ret, size_t size)
{
    struct muster_state_source ours = {.prefix = NULL};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

static int take_source(muster_state *s, const struct muster_state_source *given,
                       struct muster_state_source *source)
{
    int err = MU_API_TAKE(state_source, source, given);

    if (err != 0) {
        return err;
    }
    if (mu_runtime_is_mine(s->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    if (source->prefix == NULL) {
        return mu_api_error(MUSTER_EINVAL, "a state needs a prefix, by which it is found");
    }
    if (s->node.swarm != NULL && !isfinite(source->priority)) {
        return mu_api_error(MUSTER_EINVAL, "the peers of a swarm do not accept such a priority");
    }
    return 0;
}

static struct mu_state_home *new_home(const struct muster_state_source *source)
{
    struct mu_state_home *home = mu_calloc(1, sizeof(*home));

    if (home != NULL) {
        home->released = source->released;
        home->context = source->context;
    }
    return home;
}

int muster_state_share(muster_state *s, const struct muster_state_source *given)
{
    struct muster_state_source source;
    struct mu_state_home *home;
    struct mu_layout layout;
    struct mu_errmsg msg;
    uint8_t **tensors;
    int err = take_source(s, given, &source);

    if (err != 0) {
        return err;
    }
    err = mu_state_layout_of(source.tensors, source.tensor_count, &layout, &tensors, &msg);
    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    home = new_home(&source);
    err = home == NULL ? mu_api_error(MUSTER_ENOMEM, NULL)
                       : share_it(s, &source, &layout, tensors, NULL,
                                  mu_span(source.metadata.data, source.metadata.len), home);
    if (err != 0) {
        mu_free(home);
    }
    mu_layout_fini(&layout);
    mu_free(tensors);
    return err;
}

/* --- files ------------------------------------------------------------------------------------ */

/* Encoding reads the file's bytes, which is unsafe while others can cut the file short: copies it
 * into memory. */
static int bring_home(muster_state *s, struct mu_state_home *home, size_t head, uint64_t bytes,
                      struct mu_errmsg *msg)
{
    int err;

    if (s->node.swarm == NULL || mu_state_swarm_averager(s->node.swarm) == NULL) {
        return 0;
    }
    home->memory = bytes > SIZE_MAX - 1 ? NULL : mu_malloc((size_t)bytes + 1);
    if (home->memory == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "there is no memory for a state of %llu bytes",
                      (unsigned long long)bytes);
    }
    err = mu_mapped_read(home->mapped, head, home->memory, (size_t)bytes);
    if (err != 0) {
        return mu_err(msg, err, "cannot read the file: %s", muster_strerror(err));
    }
    mu_mapped_close(home->mapped);
    home->mapped = NULL;
    return 0;
}

static int share_file(muster_state *s, const char *path, const struct muster_state_source *source)
{
    struct mu_state_home *home;
    struct mu_layout layout;
    struct mu_errmsg msg;
    struct mu_buf head;
    struct mu_buf metadata;
    int err;

    home = new_home(source);
    if (home == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    mu_layout_init(&layout);
    mu_buf_init(&head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    mu_buf_init(&metadata, MU_STATE_METADATA_MAX);
    err = mu_mapped_open(path, &home->mapped, &msg);
    if (err == 0) {
        err = mu_state_read_head(home->mapped, &head, &msg);
        err = err != 0 ? err
                       : mu_state_file_parse(mu_buf_span(&head), home->mapped->len, &layout,
                                             &metadata, &msg);
        err = err != 0 ? err : bring_home(s, home, head.len, layout.bytes, &msg);
        if (err != 0) {
            mu_err_prefix(&msg, "%.120s", path);
        }
    }
    if (err != 0) {
        err = mu_api_error(err, msg.text);
    } else {
        struct mu_span own = mu_span(source->metadata.data, source->metadata.len);

        home->data_at = head.len;
        err = share_it(s, source, &layout, NULL,
                       home->mapped != NULL ? home->mapped->data + head.len : home->memory,
                       own.len != 0 ? own : mu_buf_span(&metadata), home);
        if (err != 0) {
            (void)mu_err(&msg, err, "%.120s: %s", path, muster_errmsg());
            err = mu_api_error(err, msg.text);
        }
    }
    if (err != 0) {
        mu_mapped_close(home->mapped);
        mu_free(home->memory);
        mu_free(home);
    }
    mu_layout_fini(&layout);
    mu_buf_fini(&head);
    mu_buf_fini(&metadata);
    return err;
}

int muster_state_share_file(muster_state *s, const char *path,
                            const struct muster_state_source *given)
{
    struct muster_state_source source;
    int err = take_source(s, given, &source);

    return err != 0 ? err : share_file(s, path, &source);
}
