/*
 * A worker that holds up whoever reads its memory. It looks like an interpreter, whose state is on
 * pages that are to be filled by a handler of page faults (userfaultfd), and nobody fills them.
 *
 * Prints "ready". Exits with 77 if the system does not let it.
 */
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SKIP     77
#define SECONDS  1000
#define STATE    65536
#define PAGE_MAX 65536

__attribute__((visibility("default"), aligned(PAGE_MAX))) char _PyRuntime[STATE] = {1};
__attribute__((visibility("default"))) const unsigned long Py_Version = 0x030b02f0; /* 3.11.2 */

int main(void)
{
    struct uffdio_register state = {.range = {(unsigned long)_PyRuntime, STATE},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    struct uffdio_api api = {.api = UFFD_API};
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    void *at;

    if (fd < 0 || ioctl(fd, UFFDIO_API, &api) != 0) {
        return SKIP;
    }
    at = mmap(_PyRuntime, STATE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
              -1, 0);
    if (at == MAP_FAILED || ioctl(fd, UFFDIO_REGISTER, &state) != 0) {
        return SKIP;
    }
    printf("ready\n");
    (void)fflush(stdout);
    (void)sleep(SECONDS);
    return 0;
}
