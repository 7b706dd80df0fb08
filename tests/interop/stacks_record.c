/*
 * Records what the reader of stacks looks at in a process, as an image for the unit tests and the
 * fuzzer (tests/lib/stacks_image.h):
 *
 *     stacks_record PID FILE
 *
 * tests/interop/stacks_images.py makes those in the tree.
 */
#include <stdio.h>
#include <stdlib.h>

#include "service/stacks/look.h"
#include "stacks_image.h"
#include "transport/proc_peek.h"

#define BLOCKS_MAX 4096

static struct {
    uint64_t addr;
    uint8_t bytes[IMAGE_BLOCK];
} blocks[BLOCKS_MAX];
static size_t block_count;

static void record(struct mu_peek_process *p, uint64_t addr)
{
    for (size_t i = 0; i < block_count; i++) {
        if (blocks[i].addr == addr) {
            return;
        }
    }
    if (block_count < BLOCKS_MAX &&
        mu_peek_real.read(p, addr, blocks[block_count].bytes, IMAGE_BLOCK) == 0) {
        blocks[block_count++].addr = addr;
    }
}

static int recording_read(struct mu_peek_process *p, uint64_t addr, void *to, size_t len)
{
    int err = mu_peek_real.read(p, addr, to, len);

    for (uint64_t at = addr & ~(uint64_t)(IMAGE_BLOCK - 1); err == 0 && at < addr + len;
         at += IMAGE_BLOCK) {
        record(p, at);
    }
    return err;
}

static void put(FILE *file, uint64_t v, size_t bytes)
{
    uint8_t b[8];

    mu_put_u64(b, v);
    (void)fwrite(b, 1, bytes, file);
}

static void write_image(FILE *file, const struct mu_stacks_look *look)
{
    const struct mu_python_layout *layout = &look->python.layout;

    put(file, look->python.runtime, 8);
    put(file, 0x03000000u | layout->minor << 16, 4);
    put(file, look->tid_count < IMAGE_THREADS ? look->tid_count : IMAGE_THREADS, 4);
    for (size_t i = 0; i < look->tid_count && i < IMAGE_THREADS; i++) {
        put(file, look->inner[i], 8);
    }
    for (size_t i = 0; i < block_count; i++) {
        put(file, blocks[i].addr, 8);
        (void)fwrite(blocks[i].bytes, 1, IMAGE_BLOCK, file);
    }
}

int main(int argc, char **argv)
{
    static struct mu_stacks_look look;
    struct mu_peek peek = mu_peek_real;
    struct mu_stacks_report head = {0};
    struct mu_errmsg why = {""};
    struct mu_buf out;
    FILE *file;
    int err;

    if (argc != 3) {
        (void)fprintf(stderr, "usage: stacks_record PID FILE\n");
        return 2;
    }
    peek.read = recording_read;
    look.peek = &peek;
    mu_buf_init(&out, MU_STACKS_REPORT_BYTES_MAX);
    err = mu_stacks_look(&look, strtoll(argv[1], NULL, 10), &head, &out, &why);
    mu_buf_fini(&out);
    file = err == 0 && look.thread_count != 0 ? fopen(argv[2], "wb") : NULL;
    if (file == NULL) {
        (void)fprintf(stderr, "stacks_record: %s %s\n", why.text, look.note.text);
        return 1;
    }
    write_image(file, &look);
    return fclose(file) == 0 ? 0 : 1;
}
