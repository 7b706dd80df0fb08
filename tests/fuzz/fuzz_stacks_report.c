/*
 * A report of a worker's stacks. What was decoded can be written again, and that decodes to the
 * same (texts that nobody names, and bytes that a later version added, are gone by then).
 */
#include "codec/stacks/report.h"
#include "core/assert.h"

/* False: not all of it fitted. */
static bool write_again(struct mu_stacks_report report, struct mu_buf *out)
{
    struct mu_stacks_frame frames[MU_STACKS_FRAMES_MAX];
    struct mu_stacks_thread thread;
    struct mu_stacks_writer w;
    bool fits;

    mu_stacks_writer_init(&w);
    while (mu_stacks_thread_next(&report.threads, &thread) == 0) {
        uint32_t count = 0;

        while (mu_stacks_frame_next(&thread.frames, &frames[count]) == 0) {
            count++;
        }
        MU_ASSERT(count == thread.frame_count);
        MU_ASSERT(mu_stacks_writer_thread(&w, &thread, frames) == 0);
    }
    /* Texts that overlap take more room when each is on its own. */
    fits = w.left_out == 0;
    w.left_out = report.left_out;
    MU_ASSERT(mu_stacks_writer_finish(&w, &report, out) == 0);
    mu_stacks_writer_fini(&w);
    return fits;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_stacks_report report;
    struct mu_buf once;
    struct mu_buf twice;

    if (mu_stacks_report_decode(mu_span(data, size), &report) != 0) {
        return 0;
    }
    mu_buf_init(&once, MU_STACKS_REPORT_BYTES_MAX);
    mu_buf_init(&twice, MU_STACKS_REPORT_BYTES_MAX);
    if (write_again(report, &once)) {
        MU_ASSERT(mu_stacks_report_decode(mu_buf_span(&once), &report) == 0);
        MU_ASSERT(write_again(report, &twice));
        MU_ASSERT(mu_span_eq(mu_buf_span(&once), mu_buf_span(&twice)));
    }
    mu_buf_fini(&once);
    mu_buf_fini(&twice);
    return 0;
}
