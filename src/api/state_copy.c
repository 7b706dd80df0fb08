/* The public state download: where a loaded state is kept. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "api/state_api.h"
#include "core/alloc.h"
#include "service/state/file.h"

/* --- memory ----------------------------------------------------------------------------------- */

int mu_state_home_read(struct mu_state_share *share, uint64_t offset, void *buf, size_t len)
{
    struct mu_state_home *home = share->owner;

    return mu_mapped_read(home->mapped, home->data_at + offset, buf, len);
}

/* Where the tensors lie in the memory that was made for them. */
static uint8_t *data_of(const struct mu_state_home *home)
{
    return home->mapped != NULL ? home->mapped->data + home->data_at : home->memory;
}

static int prepare(struct mu_state_share *share, uint64_t offset, uint64_t len)
{
    int err = mu_mapped_populate(data_of(share->owner) + offset, (size_t)len);

    return err == MUSTER_ENOTSUP ? 0 : err; /* then each page comes when it is written to */
}

void mu_state_home_released(struct mu_state_share *share)
{
    struct mu_state_home *home = share->owner;
    struct mu_door *waiter = home->waiter;

    mu_mapped_close(home->mapped);
    mu_free(home->memory);
    if (home->loaded != NULL) {
        mu_hm_loaded_fini(home->loaded);
        mu_free(home->loaded);
    }
    if (home->released != NULL) {
        home->released(home->context);
    }
    mu_free(home);
    if (waiter != NULL) {
        mu_door_open(waiter);
    }
}

/* --- the target ------------------------------------------------------------------------------- */

/* Which chunks may be there already: those in which some byte was ever written. */
static uint8_t *find_data(const struct mu_state_home *home, const struct mu_state_manifest *m)
{
    uint32_t chunks = mu_state_chunk_count(m);
    uint8_t *maybe = mu_calloc(1, mu_state_bits_len(chunks) + 1);
    uint64_t at = home->data_at;

    while (maybe != NULL && (at = mu_mapped_next_data(home->mapped, at)) < home->mapped->len) {
        uint32_t chunk = (uint32_t)((at - home->data_at) / m->chunk_bytes);

        mu_state_bit_set(maybe, chunk);
        at = home->data_at + mu_state_chunk_offset(m, chunk) + m->chunk_bytes;
    }
    return maybe;
}

static int accept_memory(struct mu_state_home *home, uint64_t bytes, struct mu_errmsg *msg)
{
    home->memory = bytes > SIZE_MAX - 1 ? NULL : mu_malloc((size_t)bytes + 1);
    if (home->memory == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "there is no memory for a state of %llu bytes",
                      (unsigned long long)bytes);
    }
    return 0;
}

uint64_t mu_state_memory_available(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    unsigned long long kib = 0;
    bool known = false;
    char line[128];

    while (!known && file != NULL && fgets(line, sizeof(line), file) != NULL) {
        known = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return known && kib < UINT64_MAX >> 10 ? (uint64_t)kib << 10 : UINT64_MAX;
}

/* How many bytes a file may take on its disk, including those it has; a tenth is left to others.
 * UINT64_MAX: unknown. */
static uint64_t disk_available(const char *part)
{
    const char *slash = strrchr(part, '/');
    size_t len = slash == NULL ? 0 : slash == part ? 1 : (size_t)(slash - part);
    char *folder = mu_strndup(slash == NULL ? "." : part, slash == NULL ? 1 : len);
    struct statvfs disk;
    struct stat file;
    uint64_t free_bytes;

    if (folder == NULL || statvfs(folder, &disk) != 0) {
        mu_free(folder);
        return UINT64_MAX;
    }
    mu_free(folder);
    free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    return free_bytes - free_bytes / 10 +
           (lstat(part, &file) == 0 ? (uint64_t)file.st_blocks * 512 : 0);
}

uint64_t mu_state_target_room(const struct mu_state_target *t)
{
    return t->bytes_max != 0 ? t->bytes_max
           : t->file != NULL ? disk_available(t->part)
           : t->in_place     ? UINT64_MAX
                             : mu_state_memory_available();
}

/* A manifest can name any size: this checks that it is possible before memory or disk is taken. */
static int check_size(const struct mu_state_target *t, uint64_t bytes, struct mu_errmsg *msg)
{
    uint64_t most = mu_state_target_room(t);

    if (bytes <= most) {
        return 0;
    }
    if (t->bytes_max != 0) {
        return mu_err(msg, MUSTER_ELIMIT, "the state has %llu bytes, more than the maximum of %llu",
                      (unsigned long long)bytes, (unsigned long long)most);
    }
    if (t->file != NULL) {
        return mu_err(msg, MUSTER_ELIMIT,
                      "the state has %llu bytes, more than nine tenths of the free disk (%llu); "
                      "free some space, or set --max-size",
                      (unsigned long long)bytes, (unsigned long long)most);
    }
    return mu_err(msg, MUSTER_ENOMEM,
                  "the state has %llu bytes, but only %llu bytes of memory are free",
                  (unsigned long long)bytes, (unsigned long long)most);
}

/* Opens the file that is there, if it can be that state: as long, and with the same head. */
static bool accept_whole(const struct mu_state_target *t, struct mu_state_home *home,
                         struct mu_span head, const struct mu_state_manifest *m,
                         struct mu_state_plan *plan)
{
    uint32_t chunks = mu_state_chunk_count(m);
    uint8_t *there = mu_malloc(head.len);
    struct mu_errmsg msg;

    if (there != NULL && mu_mapped_open(t->file, &home->mapped, &msg) == 0 &&
        home->mapped->len == head.len + m->layout.bytes &&
        mu_mapped_read(home->mapped, 0, there, head.len) == 0 &&
        memcmp(there, head.data, head.len) == 0) {
        plan->maybe = mu_malloc(mu_state_bits_len(chunks) + 1);
    }
    mu_free(there);
    if (plan->maybe == NULL) {
        mu_mapped_close(home->mapped);
        home->mapped = NULL;
        return false;
    }
    memset(plan->maybe, 0xff, mu_state_bits_len(chunks) + 1);
    home->data_at = head.len;
    home->finished = true;
    plan->whole_only = true;
    plan->read = mu_state_home_read;
    return true;
}

static int accept_part(struct mu_state_target *t, struct mu_state_home *home, struct mu_span head,
                       const struct mu_state_manifest *m, struct mu_state_plan *plan,
                       struct mu_errmsg *msg)
{
    struct stat st;
    bool fresh = lstat(t->part, &st) != 0;
    int err = mu_mapped_create_ahead(t->part, head.len + m->layout.bytes, &home->mapped, msg);

    t->fresh = t->fresh || (err != -ELOOP && err != -EPERM && fresh);
    if (err == 0) {
        err = mu_mapped_populate(home->mapped->data, head.len);
        err = err == MUSTER_ENOTSUP ? 0 : err;
        if (err != 0) {
            (void)mu_err(msg, err, "cannot write %.150s: %s", t->part, muster_strerror(err));
        }
    }
    if (err == 0) {
        memcpy(home->mapped->data, head.data, head.len);
        home->data_at = head.len;
        plan->maybe = find_data(home, m);
        plan->read = mu_state_home_read;
        plan->prepare = prepare;
    }
    return err;
}

static int accept_file(struct mu_state_target *t, struct mu_state_home *home,
                       struct mu_state_plan *plan, struct mu_errmsg *msg)
{
    const struct mu_state_manifest *m = &plan->offer->manifest;
    struct mu_buf head;
    int err;

    mu_buf_init(&head, (size_t)MU_SAFETENSORS_HEADER_MAX + MU_SAFETENSORS_PREFIX_LEN);
    err = mu_state_file_head(m, &head);
    if (err != 0) {
        (void)mu_err(msg, err, "cannot make the head of %.120s: %s", t->file, muster_strerror(err));
    } else if (plan->again || !accept_whole(t, home, mu_buf_span(&head), m, plan)) {
        err = check_size(t, m->layout.bytes, msg);
        err = err != 0 ? err : accept_part(t, home, mu_buf_span(&head), m, plan, msg);
    }
    mu_buf_fini(&head);
    return err;
}

int mu_state_target_accept(struct mu_state_target *t, struct mu_state_plan *plan,
                           struct mu_errmsg *msg)
{
    const struct mu_layout *layout = &plan->offer->manifest.layout;
    struct mu_state_home *home;
    int err = t->in_place ? mu_layout_check(&t->expected, layout, msg) : 0;

    err = err != 0 || t->file != NULL ? err : check_size(t, layout->bytes, msg);
    if (err != 0) {
        return err;
    }
    home = mu_calloc(1, sizeof(*home));
    if (home == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    if (t->file != NULL) {
        err = accept_file(t, home, plan, msg);
    } else if (!t->in_place) {
        err = accept_memory(home, layout->bytes, msg);
        plan->prepare = prepare;
    }
    if (err == 0) {
        err = mu_state_segments_new(layout, t->in_place ? t->tensors : NULL,
                                    t->in_place ? NULL : data_of(home), &plan->segments,
                                    &plan->segment_count);
        if (err != 0) {
            (void)mu_err(msg, err, "out of memory");
        }
    }
    if (err != 0) {
        mu_mapped_close(home->mapped);
        mu_free(home->memory);
        mu_free(home);
        mu_free(plan->maybe);
        return err;
    }
    plan->released = mu_state_home_released;
    plan->owner = home;
    return 0;
}

int mu_state_target_finish(struct mu_state_target *t, struct mu_state_share *share,
                           struct mu_errmsg *msg)
{
    const struct mu_state_home *home = share->owner;
    int err;

    if (t->file == NULL || home->finished) {
        return 0;
    }
    err = mu_mapped_sync(home->mapped);
    if (err == 0 && rename(t->part, t->file) != 0) {
        err = -errno;
    }
    return err == 0 ? 0
                    : mu_err(msg, err, "%.120s is whole, but cannot become %.100s: %s", t->part,
                             t->file, muster_strerror(err));
}

void mu_state_target_give_up(struct mu_state_target *t)
{
    if (t->fresh) {
        (void)unlink(t->part);
    }
}

void mu_state_target_fini(struct mu_state_target *t)
{
    mu_layout_fini(&t->expected);
    mu_free(t->tensors);
    mu_free(t->file);
    mu_free(t->part);
    *t = (struct mu_state_target){0};
    mu_layout_init(&t->expected);
}

/* --- a copy ----------------------------------------------------------------------------------- */

void mu_state_info_of(struct muster_state_info *ret, const struct mu_state_entry *entry,
                      const struct mu_peer_id *signer)
{
    *ret = (struct muster_state_info){
        .epoch = entry->epoch,
        .step = entry->step,
        .bytes = entry->bytes,
        .tensors = entry->tensors,
        .priority = entry->priority,
    };
    (void)snprintf(ret->prefix, sizeof(ret->prefix), "%.*s", (int)entry->prefix.len,
                   (const char *)entry->prefix.data);
    for (size_t i = 0; i < MU_STATE_ID_LEN; i++) {
        (void)snprintf(ret->id + 2 * i, 3, "%02x", entry->id[i]);
    }
    if (signer != NULL && signer->len != 0) {
        (void)mu_peer_id_format(signer, ret->signer);
    }
}

int mu_state_copy_new(muster_runtime *rt, struct mu_state_share *share, muster_state_copy **ret)
{
    const struct mu_layout *layout = &share->offer.manifest.layout;
    muster_state_copy *copy = mu_calloc(1, sizeof(*copy));
    size_t at = 0;

    if (copy != NULL) {
        copy->names = mu_malloc(layout->names.len + layout->count + 1);
        copy->name_at = mu_calloc(layout->count + 1, sizeof(*copy->name_at));
    }
    if (copy == NULL || copy->names == NULL || copy->name_at == NULL) {
        mu_free(copy == NULL ? NULL : copy->names);
        mu_free(copy == NULL ? NULL : copy->name_at);
        mu_free(copy);
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < layout->count; i++) {
        struct mu_span name = mu_layout_name(layout, i);

        copy->name_at[i] = at;
        memcpy(copy->names + at, name.data, name.len);
        at += name.len;
        copy->names[at++] = '\0';
    }
    copy->rt = rt;
    copy->share = share;
    *ret = copy;
    return 0;
}

const struct muster_state_info *muster_state_copy_info(const muster_state_copy *copy)
{
    return &copy->info;
}

const struct muster_state_progress *muster_state_copy_progress(const muster_state_copy *copy)
{
    return &copy->progress;
}

struct muster_bytes muster_state_copy_metadata(const muster_state_copy *copy)
{
    struct mu_span metadata = mu_buf_span(&copy->share->offer.manifest.metadata);

    return (struct muster_bytes){metadata.data, metadata.len};
}

size_t muster_state_copy_count(const muster_state_copy *copy)
{
    return copy->share->offer.manifest.layout.count;
}

struct muster_tensor muster_state_copy_tensor(const muster_state_copy *copy, size_t i)
{
    const struct mu_state_share *share = copy->share;
    const struct mu_layout *layout = &share->offer.manifest.layout;
    const struct mu_tensor *t = &layout->tensors[i];
    struct muster_tensor ret = {
        .name = copy->names + copy->name_at[i],
        .dtype = (enum muster_dtype)t->dtype,
        .rank = t->rank,
        .shape = mu_layout_shape(layout, i),
    };

    ret.data = (void *)(uintptr_t)mu_state_share_tensor(share, i).data;
    return ret;
}

struct copy_door {
    struct mu_door door;
    muster_state_copy *copy;
};

static void drop_on_loop(struct mu_door *door)
{
    muster_state_copy *copy = MU_CONTAINER_OF(door, struct copy_door, door)->copy;

    ((struct mu_state_home *)copy->share->owner)->waiter = door;
    if (copy->donor != NULL) {
        mu_state_donor_withdraw(copy->donor, copy->share, 0);
    }
    mu_state_share_drop(copy->share);
}

void muster_state_copy_free(muster_state_copy *copy)
{
    struct copy_door d = {.copy = copy};

    if (copy == NULL || mu_runtime_is_mine(copy->rt)) {
        return;
    }
    mu_state_donor_end(copy->rt, copy->own_donor);
    mu_door_pass(copy->rt, &d.door, drop_on_loop);
    if (copy->own_donor != NULL) {
        mu_state_net_close(&copy->net);
    }
    mu_free(copy->names);
    mu_free(copy->name_at);
    mu_free(copy);
}
