/* States that the agent keeps for a worker: in vaults that the worker has inherited. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/args.h"
#include "api/state_api.h"
#include "codec/state/kept.h"
#include "core/alloc.h"
#include "service/state/file.h"
#include "transport/vault.h"

#define VARIABLE "MUSTER_VAULTS"
#define SUM_AT   (MU_KEPT_HEAD_LEN - 8)

/* What one call copies. */
struct job {
    struct mu_kept_head head;
    struct mu_buf file_head;
    struct mu_layout layout;
    uint8_t **data;
    struct mu_state_put *moves; /* the head, and each tensor */
    uint64_t threads;
    unsigned vault;
};

/* All of this process, under the lock. */
static struct keeper {
    bool known; /* what follows was read from the environment */
    bool keeps;
    struct mu_kept_terms terms;
    uint8_t *maps[MU_KEPT_VAULTS]; /* they stay: pages that were touched are quick to write */
    bool running;                  /* `thread` copies `job` */
    pthread_t thread;
    struct job job;
    struct mu_buf head; /* of what is loaded; told to the caller */
} keeper;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* --- what the agent has given us -------------------------------------------------------------- */

static bool are_vaults(const struct mu_kept_terms *t)
{
    for (unsigned i = 0; i < MU_KEPT_VAULTS + (unsigned)t->found; i++) {
        if (!mu_vault_is((int)(t->fd + i), t->bytes)) {
            return false;
        }
    }
    return t->bytes >= MU_KEPT_HEAD_BYTES;
}

static int find(struct mu_errmsg *msg)
{
    const char *text = getenv(VARIABLE);

    if (!keeper.known) {
        keeper.known = true;
        mu_buf_init(&keeper.head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
        keeper.keeps = text != NULL &&
                       mu_kept_terms_decode(mu_span_str(text), &keeper.terms) == 0 &&
                       are_vaults(&keeper.terms);
    }
    return keeper.keeps ? 0
                        : mu_err(msg, MUSTER_ENOTSUP,
                                 "nothing keeps states here: only the workers of muster run "
                                 "--keep-memory can keep theirs");
}

static int map_vault(unsigned i, struct mu_errmsg *msg)
{
    int err = 0;

    if (keeper.maps[i] == NULL) {
        err = mu_vault_map((int)(keeper.terms.fd + i), keeper.terms.bytes, true, &keeper.maps[i]);
    }
    return err == 0 ? 0 : mu_err(msg, err, "the agent's memory: %s", muster_strerror(err));
}

/* --- keeping ---------------------------------------------------------------------------------- */

void muster_state_keep_request_init(struct muster_state_keep_request *ret, size_t size)
{
    struct muster_state_keep_request ours = {.metadata = {"", 0}};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

static void free_job(struct job *job)
{
    mu_buf_fini(&job->file_head);
    mu_layout_fini(&job->layout);
    mu_free(job->data);
    mu_free(job->moves);
}

/* The checksum at the end of the head is the last that is written, and the first that is cleared:
 * whenever this process is killed, a head that can be decoded stands before a whole state. */
static void copy(struct job *job)
{
    uint8_t *at = keeper.maps[job->vault];
    uint8_t head[MU_KEPT_HEAD_LEN];

    memset(at + SUM_AT, 0, MU_KEPT_HEAD_LEN - SUM_AT);
    atomic_thread_fence(memory_order_seq_cst);
    mu_state_put_all(job->moves, job->layout.count + 1, job->threads);
    mu_kept_head_encode(&job->head, head);
    memcpy(at, head, SUM_AT);
    atomic_thread_fence(memory_order_seq_cst);
    memcpy(at + SUM_AT, head + SUM_AT, MU_KEPT_HEAD_LEN - SUM_AT);
}

static void *run(void *arg)
{
    copy(arg);
    return NULL;
}

static void finish(void)
{
    if (keeper.running) {
        (void)pthread_join(keeper.thread, NULL);
        keeper.running = false;
        free_job(&keeper.job);
    }
}

static int choose_vault(struct job *job, struct mu_errmsg *msg)
{
    struct mu_kept_head heads[MU_KEPT_VAULTS];
    bool whole[MU_KEPT_VAULTS];
    uint64_t need = job->head.bytes + MU_KEPT_HEAD_BYTES;
    uint64_t used;

    for (unsigned i = 0; i < MU_KEPT_VAULTS; i++) {
        int err = map_vault(i, msg);

        if (err != 0) {
            return err;
        }
        whole[i] = mu_kept_head_decode(keeper.maps[i], keeper.terms.bytes, &heads[i]) == 0;
    }
    job->vault = mu_kept_oldest(heads, whole, &keeper.terms);
    used = mu_vault_used((int)(keeper.terms.fd + job->vault));
    if (need > used && need - used > mu_state_memory_available()) {
        return mu_err(
            msg, MUSTER_ENOMEM,
            "this machine has not enough memory left to keep another %llu bytes; what was "
            "kept before is still there",
            (unsigned long long)(need - used));
    }
    return 0;
}

static int make_moves(struct job *job)
{
    uint8_t *at = keeper.maps[job->vault] + MU_KEPT_HEAD_BYTES;
    struct mu_span head = mu_buf_span(&job->file_head);

    job->moves = mu_calloc(job->layout.count + 1, sizeof(*job->moves));
    if (job->moves == NULL) {
        return MUSTER_ENOMEM;
    }
    job->moves[0] = (struct mu_state_put){.to = at, .from = head.data, .len = head.len};
    for (size_t i = 0; i < job->layout.count; i++) {
        job->moves[i + 1] =
            (struct mu_state_put){.to = at + head.len + job->layout.tensors[i].offset,
                                  .from = job->data[i],
                                  .len = job->layout.tensors[i].len};
    }
    return 0;
}

/* Describes the state, and finds a place for it. The job is for free_job() in any case. */
static int prepare(struct job *job, const struct muster_state_keep_request *r,
                   struct mu_errmsg *msg)
{
    struct mu_state_manifest manifest = {0};
    int err;

    mu_buf_init(&job->file_head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    mu_layout_init(&job->layout);
    err = mu_state_layout_of(r->tensors, r->tensor_count, &job->layout, &job->data, msg);
    err = err != 0 ? err : mu_layout_check_names(&job->layout, msg);
    if (err != 0) {
        return err;
    }
    mu_buf_init(&manifest.metadata, MU_STATE_METADATA_MAX);
    manifest.layout = job->layout;
    err = mu_buf_append(&manifest.metadata, mu_span(r->metadata.data, r->metadata.len));
    err = err != 0 ? err : mu_state_file_head(&manifest, &job->file_head);
    mu_buf_fini(&manifest.metadata);
    if (err != 0) {
        return mu_err(msg, err, "the state cannot be kept: %s", muster_strerror(err));
    }
    job->threads = r->threads;
    job->head = (struct mu_kept_head){
        .version = {.era = keeper.terms.era, .nonce = keeper.terms.nonce, .step = r->step},
        .replicated = r->replicated,
        .rank = keeper.terms.rank,
        .world = keeper.terms.world};
    if (__builtin_add_overflow(job->layout.bytes, job->file_head.len, &job->head.bytes) ||
        job->head.bytes > keeper.terms.bytes - MU_KEPT_HEAD_BYTES) {
        return mu_err(
            msg, MUSTER_ELIMIT,
            "the state has %llu bytes, but the agent keeps at most %llu for each version: "
            "give --keep-memory more",
            (unsigned long long)job->layout.bytes,
            (unsigned long long)(keeper.terms.bytes - MU_KEPT_HEAD_BYTES));
    }
    err = choose_vault(job, msg);
    if (err == 0 && make_moves(job) != 0) {
        err = mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    return err;
}

/* One copy on a node is enough for all of its workers. */
static bool is_spared(const struct muster_state_keep_request *r)
{
    const char *text = getenv("LOCAL_RANK");

    return r->replicated && text != NULL && strcmp(text, "0") != 0;
}

static int keep(const struct muster_state_keep_request *r, struct mu_errmsg *msg)
{
    int err = find(msg);

    if (err != 0 || is_spared(r)) {
        return err;
    }
    finish();
    keeper.job = (struct job){0};
    err = prepare(&keeper.job, r, msg);
    if (err == 0 && r->background && pthread_create(&keeper.thread, NULL, run, &keeper.job) == 0) {
        keeper.running = true;
        return 0;
    }
    if (err == 0) {
        copy(&keeper.job);
    }
    free_job(&keeper.job);
    return err;
}

int muster_state_keep(const struct muster_state_keep_request *request)
{
    struct muster_state_keep_request r;
    struct mu_errmsg msg = {{0}};
    int err = MU_API_TAKE(state_keep_request, &r, request);

    if (err != 0) {
        return err;
    }
    (void)pthread_mutex_lock(&lock);
    err = keep(&r, &msg);
    (void)pthread_mutex_unlock(&lock);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}

void muster_state_keep_wait(void)
{
    (void)pthread_mutex_lock(&lock);
    finish();
    (void)pthread_mutex_unlock(&lock);
}

/* --- restoring -------------------------------------------------------------------------------- */

/* Reads from the vault that we load from. */
static int read_at(uint64_t offset, void *buf, size_t len)
{
    const struct mu_vault vault = {.handle = (intptr_t)keeper.terms.fd + MU_KEPT_VAULTS,
                                   .bytes = keeper.terms.bytes};

    return mu_vaults_real.read(&vault, offset, buf, len);
}

/* Reads its head: it must be the version that was decided on. */
static int read_source(struct mu_kept_head *ret, struct mu_errmsg *msg)
{
    const struct mu_kept_terms *t = &keeper.terms;
    uint8_t bytes[MU_KEPT_HEAD_LEN];
    int err = read_at(0, bytes, sizeof(bytes));

    if (err != 0 || mu_kept_head_decode(bytes, t->bytes, ret) != 0 ||
        mu_kept_version_cmp(&ret->version, &t->version) != 0 || ret->replicated != t->replicated ||
        (!ret->replicated && ret->rank != t->rank)) {
        return mu_err(
            msg, MUSTER_ECORRUPT,
            "the kept state of step %llu was overwritten before this worker had loaded it",
            (unsigned long long)t->version.step);
    }
    return 0;
}

/* Fills keeper.head, once. */
static int read_head(struct mu_kept_head *ret, struct mu_errmsg *msg)
{
    uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN];
    size_t len = 0;
    int err = find(msg);

    if (err == 0 && !keeper.terms.found) {
        err = mu_err(msg, MUSTER_ENOENT, "no version is kept that all ranks have");
    }
    err = err != 0 ? err : read_source(ret, msg);
    if (err != 0 || keeper.head.len != 0) {
        return err;
    }
    err = ret->bytes < sizeof(prefix) ? MUSTER_ECORRUPT
                                      : read_at(MU_KEPT_HEAD_BYTES, prefix, sizeof(prefix));
    if (err == 0) {
        err = mu_state_file_head_len(mu_span(prefix, sizeof(prefix)), ret->bytes, &len, msg);
        if (err != 0) {
            return err;
        }
        err = mu_buf_reserve(&keeper.head, len);
    }
    if (err == 0) {
        err = read_at(MU_KEPT_HEAD_BYTES, mu_buf_grow(&keeper.head, len), len);
    }
    if (err != 0) {
        mu_buf_reset(&keeper.head);
        return mu_err(msg, err, "the kept state: %s", muster_strerror(err));
    }
    return 0;
}

int muster_state_kept(struct muster_state_kept *ret_kept)
{
    struct mu_kept_head head;
    struct mu_errmsg msg = {{0}};
    struct mu_span bytes;
    int err;

    (void)pthread_mutex_lock(&lock);
    err = read_head(&head, &msg);
    bytes = mu_buf_span(&keeper.head);
    (void)pthread_mutex_unlock(&lock);
    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    *ret_kept = (struct muster_state_kept){
        .step = head.version.step, .bytes = head.bytes, .head = {bytes.data, bytes.len}};
    return 0;
}

static int copy_out(const struct mu_layout *layout, uint8_t *const *data, struct mu_errmsg *msg)
{
    const struct mu_kept_terms *t = &keeper.terms;
    struct mu_state_put *moves = mu_calloc(layout->count + 1, sizeof(*moves));
    struct mu_kept_head after;
    uint8_t *at = NULL;
    int err = moves == NULL ? MUSTER_ENOMEM
                            : mu_vault_map((int)(t->fd + MU_KEPT_VAULTS), t->bytes, false, &at);

    if (err != 0) {
        mu_free(moves);
        return mu_err(msg, err, "the kept state: %s", muster_strerror(err));
    }
    for (size_t i = 0; i < layout->count; i++) {
        moves[i] = (struct mu_state_put){.to = data[i],
                                         .from = at + MU_KEPT_HEAD_BYTES + keeper.head.len +
                                                 layout->tensors[i].offset,
                                         .len = layout->tensors[i].len};
    }
    mu_state_put_all(moves, layout->count, 0);
    mu_vault_unmap(at, t->bytes);
    mu_free(moves);
    return read_source(&after, msg); /* it still is what it was */
}

static int restore(const struct mu_layout *expected, uint8_t *const *data, struct mu_errmsg *msg)
{
    struct mu_kept_head head;
    struct mu_layout layout;
    struct mu_buf metadata;
    int err = read_head(&head, msg);

    if (err != 0) {
        return err;
    }
    mu_layout_init(&layout);
    mu_buf_init(&metadata, MU_STATE_METADATA_MAX);
    err = mu_state_file_parse(mu_buf_span(&keeper.head), head.bytes, &layout, &metadata, msg);
    err = err != 0 ? err : mu_layout_check(expected, &layout, msg);
    err = err != 0 ? err : copy_out(&layout, data, msg);
    mu_layout_fini(&layout);
    mu_buf_fini(&metadata);
    return err;
}

int muster_state_restore(const struct muster_tensor *tensors, size_t tensor_count)
{
    struct mu_layout expected;
    struct mu_errmsg msg = {{0}};
    uint8_t **data;
    int err = mu_state_layout_of(tensors, tensor_count, &expected, &data, &msg);

    if (err != 0) {
        return mu_api_error(err, msg.text);
    }
    (void)pthread_mutex_lock(&lock);
    err = restore(&expected, data, &msg);
    (void)pthread_mutex_unlock(&lock);
    mu_layout_fini(&expected);
    mu_free(data);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}
