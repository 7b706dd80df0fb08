/*
 * The reader of CPython's frames, in the memory of a hostile process: the input is that memory
 * (tests/lib/stacks_image.h). Whatever it holds, what comes out is within the limits, and fits into
 * a report.
 */
#include "core/assert.h"
#include "proto/stacks/python.h"
#include "stacks_image.h"

#define READS 20000u /* so that a list without an end does not take the fuzzer's time */

static void check_stack(struct mu_python_stack *stack, struct mu_stacks_writer *w)
{
    struct mu_stacks_thread t = {.frame_count = stack->frame_count, .omitted = stack->omitted};

    MU_ASSERT(stack->frame_count <= MU_STACKS_FRAMES_MAX);
    for (uint32_t i = 0; i < stack->frame_count; i++) {
        MU_ASSERT(stack->frames[i].function.len <= MU_STACKS_NAME_MAX);
        MU_ASSERT(stack->frames[i].file.len <= MU_STACKS_FILE_MAX);
    }
    MU_ASSERT(mu_stacks_writer_thread(w, &t, stack->frames) == 0);
}

static void look(struct stacks_image *image, uint32_t version)
{
    static struct mu_python_stack stack;
    struct mu_python_thread threads[MU_STACKS_THREADS_MAX];
    struct mu_stacks_writer w;
    struct mu_python p;
    size_t count = 0;

    if (mu_python_open(&p, (struct mu_memory){image_read, image}, image->runtime, version,
                       &stack) != 0) {
        return;
    }
    p.reads_left = p.reads_left < READS ? p.reads_left : READS;
    mu_stacks_writer_init(&w);
    if (mu_python_threads(&p, threads, MU_STACKS_THREADS_MAX, &count) == 0) {
        MU_ASSERT(count <= MU_STACKS_THREADS_MAX);
        mu_python_match(&p, threads, count, image->tids, image->tid_count);
    }
    for (size_t i = 0; i < count; i++) {
        if (mu_python_stack(&p, &threads[i], &stack) == 0) {
            check_stack(&stack, &w);
        }
    }
    mu_stacks_writer_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stacks_image image;

    if (size <= 64 << 10 && image_open(&image, mu_span(data, size))) {
        look(&image, image.version);
        if (size < 2048) {
            look(&image, 0);
        }
    }
    return 0;
}
