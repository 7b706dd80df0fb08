#include "proto/stacks/stance.h"

#include "core/span.h"
#include "proto/stacks/straggle.h"

#define FNV_BASIS UINT64_C(0xcbf29ce484222325)
#define FNV_PRIME UINT64_C(0x100000001b3)

/* The main thread, which is the first. */
static bool find_main(const struct mu_stacks_report *report, struct mu_stacks_thread *ret_thread)
{
    struct mu_stacks_threads threads = report->threads;

    return mu_stacks_thread_next(&threads, ret_thread) == 0 && ret_thread->main;
}

static uint64_t mix(uint64_t digest, struct mu_span bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        digest = (digest ^ bytes.data[i]) * FNV_PRIME;
    }
    return (digest ^ 0xff) * FNV_PRIME;
}

uint64_t mu_stance_place(const struct mu_stacks_report *report)
{
    struct mu_stacks_thread thread;
    struct mu_stacks_frame frame;
    uint64_t digest = FNV_BASIS;

    if (!find_main(report, &thread) || thread.torn) {
        return 0;
    }
    if (thread.frame_count == 0) {
        return report->kind == MU_STACKS_OTHER && thread.kernel.len != 0
                   ? mix(digest, thread.kernel)
                   : 0;
    }
    while (mu_stacks_frame_next(&thread.frames, &frame) == 0) {
        digest = mix(mix(digest, frame.function), frame.file);
        digest = (digest ^ frame.line) * FNV_PRIME;
    }
    return digest == 0 ? 1 : digest;
}

/* Where a thread that is known to wait is: the end of a file's name, and the end of the function's
 * (which may have its class before it); NULL: any function. */
struct known {
    const char *file;
    const char *function;
    enum mu_pulse_stance stance;
    bool innermost; /* only there; else in any frame */
};

static const struct known knowns[] = {
    {"/pdb.py", NULL, MU_STANCE_PERSON, false},
    {"/bdb.py", NULL, MU_STANCE_PERSON, false},
    {"/code.py", "interact", MU_STANCE_PERSON, false},
    {"/pydevd.py", "do_wait_suspend", MU_STANCE_PERSON, false},
    {"/debugpy/server/api.py", "wait_for_client", MU_STANCE_PERSON, false},
    {"/IPython/terminal/embed.py", NULL, MU_STANCE_PERSON, false},
    {"/socketserver.py", "serve_forever", MU_STANCE_REQUESTS, false},
    {"/socket.py", "accept", MU_STANCE_REQUESTS, true},
    {"/grpc/_server.py", "wait_for_termination", MU_STANCE_REQUESTS, false},
    {"/asyncio/base_events.py", "_run_once", MU_STANCE_REQUESTS, false},
    {"/torch/distributed/distributed_c10d.py", NULL, MU_STANCE_OTHERS, true},
    {"/torch/distributed/_functional_collectives.py", NULL, MU_STANCE_OTHERS, true},
    {"/torch/distributed/rendezvous.py", NULL, MU_STANCE_OTHERS, true},
    {"/torch/distributed/elastic/utils/store.py", NULL, MU_STANCE_OTHERS, true},
    {"/muster/store.py", NULL, MU_STANCE_OTHERS, true},
};

static bool ends_with(struct mu_span text, const char *end)
{
    size_t len = strlen(end);

    return text.len >= len && memcmp(text.data + text.len - len, end, len) == 0;
}

static const struct known *find_known(const struct mu_stacks_frame *frame, bool innermost)
{
    for (size_t i = 0; i < sizeof(knowns) / sizeof(knowns[0]); i++) {
        const struct known *k = &knowns[i];

        if ((innermost || !k->innermost) && ends_with(frame->file, k->file) &&
            (k->function == NULL || ends_with(frame->function, k->function))) {
            return k;
        }
    }
    return NULL;
}

/* A server that handles a request has frames of the handler inside its own: it waits only while the
 * innermost frame is one that waits. */
static bool is_wait(const struct mu_stacks_frame *frame)
{
    return ends_with(frame->function, "select") || ends_with(frame->function, "poll") ||
           ends_with(frame->function, "wait") || ends_with(frame->function, "accept") ||
           ends_with(frame->function, "wait_for_termination") ||
           ends_with(frame->function, "serve_forever");
}

/* What can be said of a process whose frames cannot be read. */
static enum mu_pulse_stance stance_in_kernel(struct mu_span kernel)
{
    static const char *const calls[] = {"accept", "epoll_", "poll", "ppoll", "select", "pselect6"};

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (mu_span_starts_with(kernel, mu_span_str(calls[i]))) {
            return MU_STANCE_REQUESTS;
        }
    }
    return MU_STANCE_UNKNOWN;
}

enum mu_pulse_stance mu_stance_of(const struct mu_stacks_report *report)
{
    struct mu_stacks_thread thread;
    struct mu_stacks_frame frame;
    enum mu_pulse_stance stance = MU_STANCE_UNKNOWN;
    bool innermost = true;
    bool waits = false;

    if (!find_main(report, &thread) || thread.torn) {
        return MU_STANCE_UNKNOWN;
    }
    if (report->kind == MU_STACKS_OTHER) {
        return stance_in_kernel(thread.kernel);
    }
    while (mu_stacks_frame_next(&thread.frames, &frame) == 0) {
        const struct known *k = find_known(&frame, innermost);

        if (innermost && mu_pacer_wait_of(&frame) != MU_PACER_WAIT_NONE) {
            stance = MU_STANCE_PERHAPS;
        }
        waits |= innermost && is_wait(&frame);
        innermost = false;
        if (k != NULL && (k->stance != MU_STANCE_REQUESTS || waits)) {
            return k->stance;
        }
    }
    return stance;
}
