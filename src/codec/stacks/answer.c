#include "codec/stacks/answer.h"

#include <muster/error.h>

#include "core/assert.h"
#include "core/reader.h"

#define VERSION    1
#define HEAD_AT    5 /* behind the version and the head's length */
#define HEAD_BYTES (4 * 4 + 2)

/* --- to read one ------------------------------------------------------------------------------ */

int mu_stacks_answer_decode(struct mu_span in, struct mu_stacks_answer *ret_answer)
{
    struct mu_reader r = mu_reader(in);
    struct mu_stacks_answer answer = {0};
    uint8_t version = mu_read_u8(&r);
    struct mu_reader head = mu_reader(mu_read_span32(&r));

    if (in.len > MU_STACKS_ANSWER_BYTES_MAX) {
        return MUSTER_ELIMIT;
    }
    answer.workers = mu_read_u32(&head);
    answer.left_out = mu_read_u32(&head);
    answer.cut = mu_read_u32(&head);
    answer.world = mu_read_u32(&head);
    answer.node = mu_read_bytes(&head, mu_read_u16(&head));
    answer.reports = r.rest;
    if (head.rest.len != 0) { /* older versions do not have it */
        size_t flights = mu_read_u32(&head);

        head.failed = head.failed || flights > r.rest.len;
        flights = head.failed ? 0 : flights;
        answer.reports.len -= flights;
        answer.flights = mu_span(answer.reports.data + answer.reports.len, flights);
    }
    if (r.failed || head.failed || version != VERSION || answer.node.len > MU_STACKS_NAME_MAX) {
        return MUSTER_EPROTO;
    }
    *ret_answer = answer;
    return 0;
}

int mu_stacks_answer_next(struct mu_span *reports, struct mu_stacks_report *ret_report)
{
    struct mu_reader r = mu_reader(*reports);
    struct mu_span report;

    if (reports->len == 0) {
        return MUSTER_ENOENT;
    }
    report = mu_read_span32(&r);
    if (r.failed) {
        reports->len = 0;
        return MUSTER_EPROTO;
    }
    *reports = r.rest;
    return mu_stacks_report_decode(report, ret_report);
}

int mu_stacks_answer_next_flight(struct mu_span *flights, struct mu_stacks_flight *ret_flight)
{
    struct mu_reader r = mu_reader(*flights);
    struct mu_reader one;
    uint8_t is_dump;

    if (flights->len == 0) {
        return MUSTER_ENOENT;
    }
    one = mu_reader(mu_read_span32(&r));
    if (r.failed) {
        flights->len = 0;
        return MUSTER_EPROTO;
    }
    *flights = r.rest;
    *ret_flight = (struct mu_stacks_flight){.rank = mu_read_u32(&one)};
    is_dump = mu_read_u8(&one);
    if (is_dump != 0) {
        ret_flight->dump = one.rest;
    } else {
        ret_flight->note = one.rest;
    }
    return one.failed || one.rest.len == 0 || ret_flight->note.len > MU_STACKS_NOTE_MAX
               ? MUSTER_EPROTO
               : 0;
}

/* --- to make one ------------------------------------------------------------------------------ */

int mu_stacks_answer_begin(struct mu_stacks_answer_writer *w, const struct mu_stacks_answer *head,
                           size_t bytes_max)
{
    size_t name_len = head->node.len < MU_STACKS_NAME_MAX ? head->node.len : MU_STACKS_NAME_MAX;
    int err;

    MU_ASSERT(bytes_max >= 1024);
    *w = (struct mu_stacks_answer_writer){.left_out = 0};
    mu_buf_init(&w->out, bytes_max);
    err = mu_buf_reserve(&w->out, HEAD_AT + HEAD_BYTES + name_len + 4);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(&w->out, VERSION);
    mu_buf_put_u32(&w->out, (uint32_t)(HEAD_BYTES + name_len + 4));
    mu_buf_put_u32(&w->out, head->workers);
    mu_buf_put_u32(&w->out, 0); /* mu_stacks_answer_end() knows these two */
    mu_buf_put_u32(&w->out, 0);
    mu_buf_put_u32(&w->out, head->world);
    mu_buf_put_u16(&w->out, (uint16_t)name_len);
    mu_buf_put(&w->out, mu_span(head->node.data, name_len));
    mu_buf_put_u32(&w->out, 0); /* and this one */
    return 0;
}

static int append(struct mu_stacks_answer_writer *w, struct mu_span report)
{
    int err = mu_buf_reserve(&w->out, 4 + report.len);

    if (err == 0) {
        mu_buf_put_u32(&w->out, (uint32_t)report.len);
        mu_buf_put(&w->out, report);
    }
    return err;
}

/* Copies a thread into another report. */
static int copy_thread(struct mu_stacks_writer *w, struct mu_stacks_thread *thread)
{
    struct mu_stacks_frame frames[MU_STACKS_FRAMES_MAX];
    uint32_t count = 0;

    while (mu_stacks_frame_next(&thread->frames, &frames[count]) == 0) {
        count++;
    }
    return mu_stacks_writer_thread(w, thread, frames);
}

/* Appends the report with its first thread alone. */
static int append_main(struct mu_stacks_answer_writer *w, const struct mu_stacks_report *report)
{
    struct mu_stacks_threads threads = report->threads;
    struct mu_stacks_thread thread;
    struct mu_stacks_writer writer;
    struct mu_buf out;
    int err = 0;

    mu_stacks_writer_init(&writer);
    mu_buf_init(&out, MU_STACKS_REPORT_BYTES_MAX);
    if (mu_stacks_thread_next(&threads, &thread) == 0) {
        err = copy_thread(&writer, &thread);
        writer.left_out = report->left_out + report->thread_count - writer.thread_count;
    }
    if (err == 0) {
        err = mu_stacks_writer_finish(&writer, report, &out);
    }
    if (err == 0) {
        err = append(w, mu_buf_span(&out));
    }
    mu_stacks_writer_fini(&writer);
    mu_buf_fini(&out);
    return err;
}

int mu_stacks_answer_add(struct mu_stacks_answer_writer *w, struct mu_span report, bool main_only)
{
    struct mu_stacks_report parts;
    bool whole = !main_only;
    int err;

    if (mu_stacks_report_decode(report, &parts) != 0) {
        return MUSTER_EPROTO;
    }
    err = whole ? append(w, report) : append_main(w, &parts);
    if (err == MUSTER_ELIMIT && whole) {
        err = append_main(w, &parts);
        w->cut += err == 0 ? 1 : 0;
    }
    if (err == MUSTER_ELIMIT) {
        w->left_out++;
        err = 0;
    }
    return err;
}

int mu_stacks_answer_add_flight(struct mu_stacks_answer_writer *w,
                                const struct mu_stacks_flight *flight)
{
    bool is_dump = flight->dump.len != 0;
    struct mu_span bytes = is_dump ? flight->dump : flight->note;
    int err = mu_buf_reserve(&w->out, 9 + bytes.len);

    if (err == 0) {
        mu_buf_put_u32(&w->out, (uint32_t)(5 + bytes.len));
        mu_buf_put_u32(&w->out, flight->rank);
        mu_buf_put_u8(&w->out, is_dump ? 1 : 0);
        mu_buf_put(&w->out, bytes);
        w->flights += (uint32_t)(9 + bytes.len);
    }
    return err == MUSTER_ELIMIT ? 0 : err;
}

struct mu_span mu_stacks_answer_end(struct mu_stacks_answer_writer *w)
{
    struct mu_span out = mu_buf_span(&w->out);
    uint8_t *head = w->out.data + w->out.head + HEAD_AT;

    mu_put_u32(head + 4, w->left_out);
    mu_put_u32(head + 8, w->cut);
    mu_put_u32(head - 4 + mu_get_u32(head - 4), w->flights);
    return out;
}

void mu_stacks_answer_fini(struct mu_stacks_answer_writer *w)
{
    mu_buf_fini(&w->out);
}
