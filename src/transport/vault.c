#include "transport/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/err.h"

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

const struct mu_vaults mu_vaults_real = {.make = make, .read = read_vault, .drop = drop};

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
