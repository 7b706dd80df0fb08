/* Symbols of an executable: the input is the file. */
#include <string.h>

#include "proto/stacks/elf.h"

struct file {
    const uint8_t *data;
    size_t size;
    unsigned reads_left;
};

static bool read_bytes(void *context, uint64_t offset, void *to, size_t len)
{
    struct file *f = context;

    if (f->reads_left == 0 || offset > f->size || len > f->size - offset) {
        return false;
    }
    f->reads_left--;
    memcpy(to, f->data + offset, len);
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct file f = {data, size, 100000};
    struct mu_elf_python found;

    (void)mu_elf_find_python((struct mu_memory){read_bytes, &f}, &found);
    return 0;
}
