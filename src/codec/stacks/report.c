#include "codec/stacks/report.h"

#include <muster/error.h>

#include "core/assert.h"
#include "core/reader.h"

#define VERSION      1
#define FRAME_BYTES  12
#define HEAD_BYTES   (1 + 3 * 4 + 2 * 4 + 2 * 8 + 2 * 4)
#define THREAD_BYTES (8 + 1 + 1 + 4 + 4 + 4 + 4)
#define PROBES       8 /* slots that are looked at for one text */

/* Half of a report for the texts, half for the threads: so it fits as a whole. */
#define HALF_MAX ((MU_STACKS_REPORT_BYTES_MAX - HEAD_BYTES - 2 - 3 * 4) / 2)

enum {
    THREAD_MAIN = 1 << 0,
    THREAD_GIL_KNOWN = 1 << 1,
    THREAD_GIL_HELD = 1 << 2,
    THREAD_ENDLESS = 1 << 3,
    THREAD_TORN = 1 << 4,
};

/* --- texts ------------------------------------------------------------------------------------ */

static bool text_at(struct mu_span texts, uint32_t at, struct mu_span *ret_text)
{
    struct mu_reader r;

    if (at > texts.len) {
        return false;
    }
    r = mu_reader(mu_span_skip(texts, at));
    *ret_text = mu_read_bytes(&r, mu_read_u16(&r));
    return !r.failed;
}

/* The text at a place that was checked when the report was decoded. */
static struct mu_span checked_text(struct mu_span texts, uint32_t at)
{
    struct mu_span text = {0};

    MU_ASSERT(text_at(texts, at, &text));
    return text;
}

static bool text_fits(struct mu_span texts, uint32_t at, size_t max)
{
    struct mu_span text;

    return text_at(texts, at, &text) && text.len <= max;
}

static uint32_t hash(struct mu_span text)
{
    uint32_t h = 2166136261u;

    for (size_t i = 0; i < text.len; i++) {
        h = (h ^ text.data[i]) * 16777619u;
    }
    return h;
}

/* Returns the place of a text that is already there, or UINT32_MAX and a free slot if there is one.
 */
static uint32_t find_text(struct mu_stacks_writer *w, struct mu_span text, uint32_t **ret_slot)
{
    uint32_t h = hash(text);

    *ret_slot = NULL;
    for (uint32_t i = 0; i < PROBES; i++) {
        uint32_t *slot = &w->slots[(h + i) % MU_STACKS_SLOTS];

        if (*slot == 0) {
            *ret_slot = slot;
            return UINT32_MAX;
        }
        if (mu_span_eq(checked_text(mu_buf_span(&w->texts), *slot - 1), text)) {
            return *slot - 1;
        }
    }
    return UINT32_MAX;
}

/* Appends a text unless it is there. MUSTER_ENOMEM, MUSTER_ELIMIT. */
static int put_text(struct mu_stacks_writer *w, struct mu_span text, uint32_t *ret_at)
{
    uint32_t *slot;
    uint32_t at = find_text(w, text, &slot);
    int err;

    if (at != UINT32_MAX) {
        *ret_at = at;
        return 0;
    }
    err = mu_buf_reserve(&w->texts, 2 + text.len);
    if (err != 0) {
        return err;
    }
    at = (uint32_t)w->texts.len;
    mu_buf_put_u16(&w->texts, (uint16_t)text.len);
    mu_buf_put(&w->texts, text);
    if (slot != NULL) {
        *slot = at + 1;
    }
    *ret_at = at;
    return 0;
}

/* A cut that leaves no half of a character of UTF-8. */
static struct mu_span cut_end(struct mu_span text, size_t max)
{
    if (text.len > max) {
        while (max > 0 && (text.data[max] & 0xc0) == 0x80) {
            max--;
        }
        text.len = max;
    }
    return text;
}

static struct mu_span cut_front(struct mu_span text, size_t max)
{
    if (text.len > max) {
        text = mu_span_skip(text, text.len - max);
        while (text.len > 0 && (text.data[0] & 0xc0) == 0x80) {
            text = mu_span_skip(text, 1);
        }
    }
    return text;
}

/* --- to make one ------------------------------------------------------------------------------ */

void mu_stacks_writer_init(struct mu_stacks_writer *w)
{
    *w = (struct mu_stacks_writer){0};
    mu_buf_init(&w->texts, HALF_MAX);
    mu_buf_init(&w->threads, HALF_MAX);
}

void mu_stacks_writer_fini(struct mu_stacks_writer *w)
{
    mu_buf_fini(&w->texts);
    mu_buf_fini(&w->threads);
}

static uint8_t flags_of(const struct mu_stacks_thread *t)
{
    unsigned flags = 0;

    flags |= t->main ? THREAD_MAIN : 0;
    flags |= t->gil != MU_STACKS_GIL_UNKNOWN ? THREAD_GIL_KNOWN : 0;
    flags |= t->gil == MU_STACKS_GIL_HELD ? THREAD_GIL_HELD : 0;
    flags |= t->endless ? THREAD_ENDLESS : 0;
    flags |= t->torn ? THREAD_TORN : 0;
    return (uint8_t)flags;
}

static int put_frame(struct mu_stacks_writer *w, const struct mu_stacks_frame *frame)
{
    uint32_t function;
    uint32_t file;
    int err = put_text(w, cut_end(frame->function, MU_STACKS_NAME_MAX), &function);

    if (err == 0) {
        err = put_text(w, cut_front(frame->file, MU_STACKS_FILE_MAX), &file);
    }
    if (err == 0) {
        mu_buf_put_u32(&w->threads, function);
        mu_buf_put_u32(&w->threads, file);
        mu_buf_put_u32(&w->threads, frame->line);
    }
    return err;
}

static int put_thread(struct mu_stacks_writer *w, const struct mu_stacks_thread *t,
                      const struct mu_stacks_frame *frames)
{
    size_t size = THREAD_BYTES + (size_t)t->frame_count * FRAME_BYTES;
    uint32_t name;
    uint32_t kernel;
    int err = mu_buf_reserve(&w->threads, 4 + size);

    if (err == 0) {
        err = put_text(w, cut_end(t->name, MU_STACKS_NAME_MAX), &name);
    }
    if (err == 0) {
        err = put_text(w, cut_end(t->kernel, MU_STACKS_NAME_MAX), &kernel);
    }
    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(&w->threads, (uint32_t)size);
    mu_buf_put_u64(&w->threads, t->tid);
    mu_buf_put_u8(&w->threads, (uint8_t)t->state);
    mu_buf_put_u8(&w->threads, flags_of(t));
    mu_buf_put_u32(&w->threads, name);
    mu_buf_put_u32(&w->threads, kernel);
    mu_buf_put_u32(&w->threads, t->omitted);
    mu_buf_put_u32(&w->threads, t->frame_count);
    for (uint32_t i = 0; i < t->frame_count && err == 0; i++) {
        err = put_frame(w, &frames[i]);
    }
    return err;
}

/* Forgets what a thread that did not fit has written. */
static void take_back(struct mu_stacks_writer *w, size_t texts_len, size_t threads_len)
{
    for (size_t i = 0; i < MU_STACKS_SLOTS; i++) {
        if (w->slots[i] > texts_len) {
            w->slots[i] = 0;
        }
    }
    w->texts.len = texts_len;
    w->threads.len = threads_len;
}

int mu_stacks_writer_thread(struct mu_stacks_writer *w, const struct mu_stacks_thread *thread,
                            const struct mu_stacks_frame *frames)
{
    size_t texts_len = w->texts.len;
    size_t threads_len = w->threads.len;
    int err = MUSTER_ELIMIT;

    MU_ASSERT(thread->frame_count <= MU_STACKS_FRAMES_MAX);
    if (w->thread_count < MU_STACKS_THREADS_MAX) {
        err = put_thread(w, thread, frames);
    }
    if (err == 0) {
        w->thread_count++;
        return 0;
    }
    take_back(w, texts_len, threads_len);
    if (err == MUSTER_ELIMIT) {
        w->left_out++;
        err = 0;
    }
    return err;
}

/* The texts of the head do not count towards the limit of the threads' texts. */
static int put_head_texts(struct mu_stacks_writer *w, const struct mu_stacks_report *head,
                          uint32_t at[3])
{
    const struct mu_span texts[3] = {cut_end(head->node, MU_STACKS_NAME_MAX),
                                     cut_end(head->note, MU_STACKS_NOTE_MAX),
                                     cut_end(head->version, MU_STACKS_NAME_MAX)};
    int err = 0;

    w->texts.max = HALF_MAX + 3 * 2 + 2 * MU_STACKS_NAME_MAX + MU_STACKS_NOTE_MAX;
    for (size_t i = 0; i < 3 && err == 0; i++) {
        err = put_text(w, texts[i], &at[i]);
    }
    return err;
}

int mu_stacks_writer_finish(struct mu_stacks_writer *w, const struct mu_stacks_report *head,
                            struct mu_buf *out)
{
    uint32_t at[3];
    int err = put_head_texts(w, head, at);

    if (err == 0) {
        err = mu_buf_reserve(out, 2 + 3 * 4 + HEAD_BYTES + w->texts.len + w->threads.len);
    }
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(out, VERSION);
    mu_buf_put_u8(out, FRAME_BYTES);
    mu_buf_put_u32(out, HEAD_BYTES);
    mu_buf_put_u8(out, (uint8_t)head->kind);
    for (size_t i = 0; i < 3; i++) {
        mu_buf_put_u32(out, at[i]);
    }
    mu_buf_put_u32(out, head->rank);
    mu_buf_put_u32(out, head->local_rank);
    mu_buf_put_u64(out, (uint64_t)head->pid);
    mu_buf_put_u64(out, head->round);
    mu_buf_put_u32(out, w->left_out);
    mu_buf_put_u32(out, w->thread_count);
    mu_buf_put_u32(out, (uint32_t)w->texts.len);
    mu_buf_put(out, mu_buf_span(&w->texts));
    mu_buf_put_u32(out, (uint32_t)w->threads.len);
    mu_buf_put(out, mu_buf_span(&w->threads));
    return 0;
}

/* --- to read one ------------------------------------------------------------------------------ */

/* The places of a thread's texts, as they are read. */
struct thread_places {
    uint32_t name;
    uint32_t kernel;
};

static bool read_thread(struct mu_span body, size_t stride, struct mu_stacks_thread *ret,
                        struct thread_places *places)
{
    struct mu_reader r = mu_reader(body);
    uint8_t flags;

    ret->tid = mu_read_u64(&r);
    ret->state = (char)mu_read_u8(&r);
    flags = mu_read_u8(&r);
    places->name = mu_read_u32(&r);
    places->kernel = mu_read_u32(&r);
    ret->omitted = mu_read_u32(&r);
    ret->frame_count = mu_read_u32(&r);
    ret->frames.rest = mu_read_bytes(&r, (uint64_t)ret->frame_count * stride);
    ret->frames.stride = stride;
    ret->main = (flags & THREAD_MAIN) != 0;
    ret->endless = (flags & THREAD_ENDLESS) != 0;
    ret->torn = (flags & THREAD_TORN) != 0;
    ret->gil = (flags & THREAD_GIL_KNOWN) == 0  ? MU_STACKS_GIL_UNKNOWN
               : (flags & THREAD_GIL_HELD) == 0 ? MU_STACKS_GIL_NOT_HELD
                                                : MU_STACKS_GIL_HELD;
    return !r.failed;
}

static bool frames_right(struct mu_span frames, size_t stride, struct mu_span texts)
{
    for (; frames.len != 0; frames = mu_span_skip(frames, stride)) {
        if (!text_fits(texts, mu_get_u32(frames.data), MU_STACKS_NAME_MAX) ||
            !text_fits(texts, mu_get_u32(frames.data + 4), MU_STACKS_FILE_MAX)) {
            return false;
        }
    }
    return true;
}

static int check_threads(struct mu_stacks_threads threads, uint32_t count)
{
    struct mu_reader r = mu_reader(threads.rest);

    for (uint32_t i = 0; i < count; i++) {
        struct mu_stacks_thread t = {0};
        struct thread_places places;
        struct mu_span body = mu_read_span32(&r);

        if (r.failed || !read_thread(body, threads.stride, &t, &places)) {
            return MUSTER_EPROTO;
        }
        if (t.frame_count > MU_STACKS_FRAMES_MAX) {
            return MUSTER_ELIMIT;
        }
        if (!text_fits(threads.texts, places.name, MU_STACKS_NAME_MAX) ||
            !text_fits(threads.texts, places.kernel, MU_STACKS_NAME_MAX) ||
            !frames_right(t.frames.rest, threads.stride, threads.texts)) {
            return MUSTER_EPROTO;
        }
    }
    return mu_reader_done(&r) ? 0 : MUSTER_EPROTO;
}

/* The places of the head's texts follow its kind. */
static bool read_head(struct mu_span head, struct mu_stacks_report *ret, uint32_t at[3])
{
    struct mu_reader r = mu_reader(head);
    uint8_t kind = mu_read_u8(&r);

    for (size_t i = 0; i < 3; i++) {
        at[i] = mu_read_u32(&r);
    }
    ret->rank = mu_read_u32(&r);
    ret->local_rank = mu_read_u32(&r);
    ret->pid = (int64_t)mu_read_u64(&r);
    ret->round = mu_read_u64(&r);
    ret->left_out = mu_read_u32(&r);
    ret->thread_count = mu_read_u32(&r);
    ret->kind = kind == MU_STACKS_PYTHON ? MU_STACKS_PYTHON : MU_STACKS_OTHER;
    return !r.failed && kind != 0;
}

int mu_stacks_report_decode(struct mu_span in, struct mu_stacks_report *ret_report)
{
    struct mu_reader r = mu_reader(in);
    struct mu_stacks_report report = {0};
    uint8_t version = mu_read_u8(&r);
    uint8_t stride = mu_read_u8(&r);
    struct mu_span head = mu_read_span32(&r);
    struct mu_span texts = mu_read_span32(&r);
    uint32_t at[3];
    int err;

    if (in.len > MU_STACKS_REPORT_BYTES_MAX) {
        return MUSTER_ELIMIT;
    }
    report.threads.rest = mu_read_span32(&r);
    report.threads.texts = texts;
    report.threads.stride = stride;
    if (r.failed || version != VERSION || stride < FRAME_BYTES || !read_head(head, &report, at) ||
        !text_fits(texts, at[0], MU_STACKS_NAME_MAX) ||
        !text_fits(texts, at[1], MU_STACKS_NOTE_MAX) ||
        !text_fits(texts, at[2], MU_STACKS_NAME_MAX)) {
        return MUSTER_EPROTO;
    }
    if (report.thread_count > MU_STACKS_THREADS_MAX) {
        return MUSTER_ELIMIT;
    }
    err = check_threads(report.threads, report.thread_count);
    if (err != 0) {
        return err;
    }
    report.node = checked_text(texts, at[0]);
    report.note = checked_text(texts, at[1]);
    report.version = checked_text(texts, at[2]);
    *ret_report = report;
    return 0;
}

int mu_stacks_thread_next(struct mu_stacks_threads *threads, struct mu_stacks_thread *ret_thread)
{
    struct mu_reader r = mu_reader(threads->rest);
    struct mu_stacks_thread thread = {0};
    struct thread_places places;

    if (threads->rest.len == 0) {
        return MUSTER_ENOENT;
    }
    MU_ASSERT(read_thread(mu_read_span32(&r), threads->stride, &thread, &places));
    thread.name = checked_text(threads->texts, places.name);
    thread.kernel = checked_text(threads->texts, places.kernel);
    thread.frames.texts = threads->texts;
    threads->rest = r.rest;
    *ret_thread = thread;
    return 0;
}

int mu_stacks_frame_next(struct mu_stacks_frames *frames, struct mu_stacks_frame *ret_frame)
{
    if (frames->rest.len == 0) {
        return MUSTER_ENOENT;
    }
    ret_frame->function = checked_text(frames->texts, mu_get_u32(frames->rest.data));
    ret_frame->file = checked_text(frames->texts, mu_get_u32(frames->rest.data + 4));
    ret_frame->line = mu_get_u32(frames->rest.data + 8);
    frames->rest = mu_span_skip(frames->rest, frames->stride);
    return 0;
}
