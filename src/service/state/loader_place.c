/*
 * Memory for chunks is made ready ahead of them, on other threads: the kernel takes and zeroes its
 * pages there, and not while the loop receives. A stretch of several chunks is made ready at a
 * time, and a chunk is asked for when its own is: so nothing is put where there may be no room.
 */
#include "core/alloc.h"
#include "service/state/loader_internal.h"

#define STRETCH_CHUNKS 8
#define STRETCH_BYTES  ((uint32_t)8 << 20) /* unless a single chunk has more */
#define AHEAD_MAX      4                   /* stretches that nobody has asked for yet */

enum mu_state_stretch {
    MU_STATE_STRETCH_NEW = 0,
    MU_STATE_STRETCH_BEGUN,
    MU_STATE_STRETCH_READY,
};

struct mu_state_place_job {
    struct mu_work work;
    struct mu_state_loader *loader;
    uint32_t stretch;
    uint64_t offset;
    uint64_t len;
    bool ahead;
    int err;
};

static uint32_t count_stretches(const struct mu_state_loader *l)
{
    return (l->share->chunks + l->stretch_chunks - 1) / l->stretch_chunks;
}

static void run_job(struct mu_work *work)
{
    struct mu_state_place_job *job = MU_CONTAINER_OF(work, struct mu_state_place_job, work);
    struct mu_state_share *share = job->loader->share; /* it stays as long as there are jobs */

    job->err = share->prepare(share, job->offset, job->len);
}

static void job_done(struct mu_work *work)
{
    struct mu_state_place_job *job = MU_CONTAINER_OF(work, struct mu_state_place_job, work);
    struct mu_state_loader *l = job->loader;

    l->stretches_ahead -= job->ahead ? 1 : 0;
    if (job->err == 0) {
        l->stretches[job->stretch] = MU_STATE_STRETCH_READY;
    } else {
        struct mu_errmsg text;

        (void)mu_err(&text, job->err, "there is no room for the state: %s",
                     muster_strerror(job->err));
        mu_state_loader_end(l, job->err, text.text);
    }
    mu_free(job);
    l->jobs--;
    mu_state_loader_turn(l); /* the loader may be gone after this */
}

static int begin(struct mu_state_loader *l, uint32_t stretch, bool ahead)
{
    const struct mu_state_manifest *m = &l->share->offer.manifest;
    struct mu_state_place_job *job = mu_calloc(1, sizeof(*job));
    uint32_t first = stretch * l->stretch_chunks;

    if (job == NULL) {
        return MUSTER_ENOMEM;
    }
    job->work.run = run_job;
    job->work.done = job_done;
    job->loader = l;
    job->stretch = stretch;
    job->ahead = ahead;
    job->offset = mu_state_chunk_offset(m, first);
    job->len = (uint64_t)l->stretch_chunks * m->chunk_bytes;
    if (job->len > m->layout.bytes - job->offset) {
        job->len = m->layout.bytes - job->offset;
    }
    if (mu_env_work(l->env, &job->work) != 0) {
        mu_free(job);
        return MUSTER_ENOMEM;
    }
    l->stretches[stretch] = MU_STATE_STRETCH_BEGUN;
    l->stretches_ahead += ahead ? 1 : 0;
    l->jobs++;
    return 0;
}

bool mu_state_place_init(struct mu_state_loader *l)
{
    uint32_t chunk_bytes = l->share->offer.manifest.chunk_bytes;

    l->stretch_chunks = STRETCH_BYTES / chunk_bytes;
    l->stretch_chunks = l->stretch_chunks > STRETCH_CHUNKS ? STRETCH_CHUNKS
                        : l->stretch_chunks == 0           ? 1
                                                           : l->stretch_chunks;
    l->stretches_ahead = 0;
    if (l->share->prepare != NULL) {
        l->stretches = mu_calloc(count_stretches(l) + 1, 1);
        return l->stretches != NULL;
    }
    return true;
}

void mu_state_place_want(struct mu_state_loader *l, uint32_t chunk)
{
    uint32_t first = chunk / l->stretch_chunks;
    uint32_t count;

    if (l->stretches == NULL) {
        return;
    }
    count = count_stretches(l);
    if (l->stretches[first] == MU_STATE_STRETCH_NEW && begin(l, first, false) != 0) {
        mu_state_loader_end(l, MUSTER_ENOMEM, "out of memory for a chunk");
        return;
    }
    for (uint32_t i = first + 1;
         i < count && i <= first + AHEAD_MAX && l->stretches_ahead < AHEAD_MAX; i++) {
        if (l->stretches[i] == MU_STATE_STRETCH_NEW && begin(l, i, true) != 0) {
            return; /* it is wanted again */
        }
    }
}

bool mu_state_place_is_ready(const struct mu_state_loader *l, uint32_t chunk)
{
    return l->stretches == NULL ||
           l->stretches[chunk / l->stretch_chunks] == MU_STATE_STRETCH_READY;
}

void mu_state_place_fini(struct mu_state_loader *l)
{
    mu_free(l->stretches);
    l->stretches = NULL;
}
