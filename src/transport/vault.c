#include "transport/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE  ((uint64_t)4096)
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int make(uint64_t bytes, struct mu_vault *ret_vault)
{
    int fd;
    int err = 0;

    if (bytes == 0 || bytes > INT64_MAX) {
        return MUSTER_EINVAL;
    }
    fd = memfd_create("muster-vault", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return -errno;
    }
    if (ftruncate(fd, (off_t)bytes) != 0 || fcntl(fd, F_ADD_SEALS, SEALS) != 0) {
        err = -errno;
        (void)close(fd);
        return err;
    }
    *ret_vault = (struct mu_vault){.handle = fd, .bytes = bytes};
    return 0;
}

static int read_vault(const struct mu_vault *vault, uint64_t offset, void *buf, size_t len)
{
    uint8_t *at = buf;

    if (offset > vault->bytes || len > vault->bytes - offset) {
        return MUSTER_EINVAL;
    }
    while (len > 0) {
        ssize_t n = pread((int)vault->handle, at, len, (off_t)offset);

        if (n > 0) {
            at += n;
            offset += (uint64_t)n;
            len -= (size_t)n;
        } else if (n == 0) {
            return MUSTER_EINVAL; /* the seals do not let that happen */
        } else if (errno != EINTR) {
            return -errno;
        }
    }
    return 0;
}

static void drop(struct mu_vault *vault)
{
    (void)close((int)vault->handle);
    vault->handle = -1;
}

/* --- of our own ------------------------------------------------------------------------------- */

/* A second descriptor, through which nobody writes. */
static int open_reader(const struct mu_vault *vault, struct mu_vault *ret)
{
    char path[64];
    int fd;

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", (int)vault->handle);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return -errno;
    }
    *ret = (struct mu_vault){.handle = fd, .bytes = vault->bytes};
    return 0;
}

static int own(uint64_t bytes, struct mu_vault_own *ret_own)
{
    struct mu_vault_own o = {.at = NULL};
    int err = make(bytes, &o.vault);

    if (err != 0) {
        return err;
    }
    err = open_reader(&o.vault, &o.reader);
    if (err == 0) {
        err = mu_vault_map((int)o.vault.handle, bytes, true, &o.at);
        if (err != 0) {
            drop(&o.reader);
        }
    }
    if (err != 0) {
        drop(&o.vault);
        return err;
    }
    *ret_own = o;
    return 0;
}

/* Where the kernel cannot take pages ahead (before Linux 5.14), they are taken as they are written.
 */
static int ready(const struct mu_vault_own *o, uint64_t offset, uint64_t len)
{
    uint64_t first = offset / PAGE * PAGE;
    uint64_t end = (offset + len + PAGE - 1) / PAGE * PAGE;

    if (offset > o->vault.bytes || len > o->vault.bytes - offset) {
        return MUSTER_EINVAL;
    }
    end = end < o->vault.bytes ? end : o->vault.bytes;
    while (madvise(o->at + first, (size_t)(end - first), MADV_POPULATE_WRITE) != 0) {
        if (errno == EINVAL) {
            return 0;
        }
        if (errno != EINTR && errno != EAGAIN) {
            return errno == ENOMEM || errno == EFAULT ? MUSTER_ENOMEM : -errno;
        }
    }
    return 0;
}

static void disown(struct mu_vault_own *o)
{
    (void)fallocate((int)o->vault.handle, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    (off_t)o->vault.bytes);
    mu_vault_unmap(o->at, o->vault.bytes);
    drop(&o->reader);
    drop(&o->vault);
    o->at = NULL;
}

const struct mu_vaults mu_vaults_real = {
    .make = make, .read = read_vault, .drop = drop, .own = own, .ready = ready, .disown = disown};

bool mu_vault_is(int fd, uint64_t bytes)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);

    return seals >= 0 && (seals & SEALS) == SEALS && fstat(fd, &st) == 0 && st.st_size >= 0 &&
           (uint64_t)st.st_size == bytes;
}

uint64_t mu_vault_used(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_blocks > 0 ? (uint64_t)st.st_blocks * 512 : 0;
}

int mu_vault_map(int fd, uint64_t bytes, bool writes, uint8_t **ret_at)
{
    void *at = bytes > SIZE_MAX
                   ? MAP_FAILED
                   : mmap(NULL, (size_t)bytes, writes ? PROT_READ | PROT_WRITE : PROT_READ,
                          MAP_SHARED | MAP_NORESERVE, fd, 0);

    if (at == MAP_FAILED) {
        return errno == ENOMEM || bytes > SIZE_MAX ? MUSTER_ENOMEM : -errno;
    }
    if (writes) {
        (void)madvise(at, (size_t)bytes, MADV_HUGEPAGE); /* where the kernel has them for files */
    }
    *ret_at = at;
    return 0;
}

void mu_vault_unmap(uint8_t *at, uint64_t bytes)
{
    if (at != NULL) {
        (void)munmap(at, (size_t)bytes);
    }
}
