/*
 * A host's disk: the records of a keyspace's journal (proto/store/keyspace.h), kept in order of
 * their numbers. Commits happen at one moment of virtual time, so they happen completely or not at
 * all.
 */
#include "sim_impl.h"

#include <string.h>

#include "core/alloc.h"
#include "core/reader.h"

#define OP_PUT_VALUE 1
#define OP_PUT_QUEUE 2
#define OP_DELETE    3

struct record {
    uint64_t number;
    uint8_t op;
    size_t key_len;
    size_t value_len;
    uint8_t *bytes; /* the key, then the value */
};

struct sim_disk {
    struct mu_disk disk; /* first */
    struct mu_list link; /* of host->disks */
    struct mu_sim_host *host;
    struct mu_sim_proc *holder; /* the process that has it open */
    char name[SIM_NAME_MAX];
    bool broken; /* it has failed since it was opened */
    uint64_t revision;
    struct record *records;
    size_t count;
    size_t cap;
};

/* Finds the place of `number`, or where it would go. */
static size_t find_place(const struct sim_disk *d, uint64_t number)
{
    size_t low = 0;
    size_t high = d->count;

    if (d->count == 0 || d->records[d->count - 1].number < number) {
        return d->count;
    }
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (d->records[mid].number < number) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low;
}

static bool holds(const struct sim_disk *d, size_t at, uint64_t number)
{
    return at < d->count && d->records[at].number == number;
}

static void remove_record(struct sim_disk *d, uint64_t number)
{
    size_t at = find_place(d, number);

    if (holds(d, at, number)) {
        mu_free(d->records[at].bytes);
        d->count--;
        memmove(&d->records[at], &d->records[at + 1], (d->count - at) * sizeof(d->records[0]));
    }
}

static int put_record(struct sim_disk *d, struct record r)
{
    size_t at = find_place(d, r.number);

    if (holds(d, at, r.number)) {
        mu_free(d->records[at].bytes);
        d->records[at] = r;
        return 0;
    }
    if (d->count == d->cap) {
        size_t cap = d->cap == 0 ? 32 : d->cap * 2;
        struct record *bigger = mu_realloc(d->records, cap * sizeof(*bigger));

        if (bigger == NULL) {
            return MUSTER_ENOMEM;
        }
        d->records = bigger;
        d->cap = cap;
    }
    memmove(&d->records[at + 1], &d->records[at], (d->count - at) * sizeof(d->records[0]));
    d->records[at] = r;
    d->count++;
    return 0;
}

/* Writes one record of a journal to the disk. */
static int apply(struct sim_disk *d, struct mu_reader *in)
{
    struct record r = {0};
    struct mu_span key;
    struct mu_span value;
    uint32_t key_len;
    uint64_t value_len;
    int rc;

    r.op = mu_read_u8(in);
    r.number = mu_read_u64(in);
    if (r.op == OP_DELETE && !in->failed) {
        remove_record(d, r.number);
        return 0;
    }
    key_len = mu_read_u32(in);
    value_len = mu_read_u64(in);
    key = mu_read_bytes(in, key_len);
    value = mu_read_bytes(in, value_len);
    if (in->failed || (r.op != OP_PUT_VALUE && r.op != OP_PUT_QUEUE)) {
        return MUSTER_ECORRUPT;
    }
    r.key_len = key.len;
    r.value_len = value.len;
    r.bytes = mu_malloc(key.len + value.len);
    if (r.bytes == NULL) {
        return MUSTER_ENOMEM;
    }
    memcpy(r.bytes, key.data, key.len);
    if (value.len != 0) {
        memcpy(r.bytes + key.len, value.data, value.len);
    }
    rc = put_record(d, r);
    if (rc != 0) {
        mu_free(r.bytes);
    }
    return rc;
}

static int disk_load(struct mu_disk *disk,
                     int (*each)(void *context, uint8_t op, uint64_t number, struct mu_span key,
                                 struct mu_span value),
                     void *context, uint64_t *ret_revision, struct mu_errmsg *reterr_msg)
{
    struct sim_disk *d = (struct sim_disk *)disk;

    (void)reterr_msg;
    for (size_t i = 0; i < d->count; i++) {
        const struct record *r = &d->records[i];
        int rc = each(context, r->op, r->number, mu_span(r->bytes, r->key_len),
                      mu_span(r->bytes + r->key_len, r->value_len));

        if (rc != 0) {
            return rc;
        }
    }
    *ret_revision = d->revision;
    return 0;
}

static int disk_commit(struct mu_disk *disk, struct mu_span journal, uint64_t revision,
                       struct mu_errmsg *reterr_msg)
{
    struct sim_disk *d = (struct sim_disk *)disk;
    struct mu_sim *sim = d->host->sim;
    struct mu_reader in = mu_reader(journal);
    struct mu_sim_heap *heap = mu_sim_outside();
    int rc = 0;

    if (d->broken) {
        mu_sim_fail(sim, "disk %s: used again after it failed", d->name);
    }
    if (d->broken || mu_prng_chance(&sim->prng, sim->faults.disk_fail_ppm)) {
        d->broken = true;
        mu_sim_inside(heap);
        return mu_err(reterr_msg, MUSTER_EDISK, "disk %s: no space left", d->name);
    }
    if (mu_prng_chance(&sim->prng, sim->faults.disk_lie_ppm)) {
        mu_sim_inside(heap);
        mu_sim_note(sim, d->holder, "disk %s: %zu bytes were lost in silence", d->name,
                    journal.len);
        return 0;
    }
    while (in.rest.len != 0 && rc == 0) {
        rc = apply(d, &in);
    }
    if (rc != 0) {
        mu_sim_fail(sim, "disk %s: the journal makes no sense: %s", d->name, muster_errname(rc));
    }
    if (revision < d->revision) {
        mu_sim_fail(sim, "disk %s: revision went back", d->name);
    }
    d->revision = revision;
    mu_sim_inside(heap);
    mu_sim_note(sim, d->holder, "disk %s: %zu bytes committed, revision %llu, %zu records", d->name,
                journal.len, (unsigned long long)revision, d->count);
    return rc;
}

static void disk_close(struct mu_disk *disk)
{
    ((struct sim_disk *)disk)->holder = NULL;
}

static const struct mu_disk_ops disk_ops = {
    .load = disk_load,
    .commit = disk_commit,
    .close = disk_close,
};

static struct sim_disk *find_disk(struct mu_sim_host *host, const char *name)
{
    MU_LIST_FOREACH (node, &host->disks) {
        struct sim_disk *d = MU_CONTAINER_OF(node, struct sim_disk, link);

        if (strcmp(d->name, name) == 0) {
            return d;
        }
    }
    return NULL;
}

int mu_sim_disk_open(struct mu_env *env, const char *name, struct mu_disk **ret_disk,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct sim_disk *d = find_disk(proc->host, name);

    if (d == NULL) {
        struct mu_sim_heap *heap = mu_sim_outside();

        d = mu_calloc(1, sizeof(*d));
        mu_sim_inside(heap);
        if (d == NULL) {
            return mu_err(reterr_msg, MUSTER_ENOMEM, "disk %s: out of memory", name);
        }
        d->disk.ops = &disk_ops;
        d->host = proc->host;
        (void)snprintf(d->name, sizeof(d->name), "%s", name);
        mu_list_push(&proc->host->disks, &d->link);
    }
    if (d->holder != NULL) {
        return mu_err(reterr_msg, MUSTER_EBUSY, "disk %s: in use", name);
    }
    d->holder = proc;
    d->broken = false;
    *ret_disk = &d->disk;
    return 0;
}

uint64_t mu_sim_disk_revision(struct mu_sim_host *host, const char *name)
{
    struct sim_disk *d = find_disk(host, name);

    return d == NULL ? 0 : d->revision;
}

void sim_disk_drop(struct mu_sim_proc *proc)
{
    MU_LIST_FOREACH (node, &proc->host->disks) {
        struct sim_disk *d = MU_CONTAINER_OF(node, struct sim_disk, link);

        if (d->holder == proc) {
            d->holder = NULL;
        }
    }
}

size_t sim_disk_held(const struct mu_sim_proc *proc)
{
    size_t held = 0;

    MU_LIST_FOREACH (node, &proc->host->disks) {
        held += MU_CONTAINER_OF(node, struct sim_disk, link)->holder == proc ? 1 : 0;
    }
    return held;
}

void sim_disk_free(struct mu_sim_host *host)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&host->disks)) != NULL) {
        struct sim_disk *d = MU_CONTAINER_OF(node, struct sim_disk, link);

        for (size_t i = 0; i < d->count; i++) {
            mu_free(d->records[i].bytes);
        }
        mu_free(d->records);
        mu_free(d);
    }
}
