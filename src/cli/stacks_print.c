#include "cli/stacks_print.h"

#include <stdio.h>
#include <string.h>

#include "core/printable.h"

#define SHOWN_MAX (MU_STACKS_FILE_MAX * MU_PRINTABLE_MAX + 1)

/* A name may hold anything; one line stays one line. */
static void put_text(struct mu_span text)
{
    static char shown[SHOWN_MAX];

    (void)mu_printable(shown, sizeof(shown), text, false);
    (void)fputs(shown, stdout);
}

/* --- for people ------------------------------------------------------------------------------- */

static const char *state_words(char state)
{
    switch (state) {
    case 'R':
        return "running";
    case 'S':
        return "sleeping";
    case 'D':
        return "waiting for the disk or a device";
    case 'T':
        return "stopped";
    case 't':
        return "stopped by a debugger";
    case 'Z':
    case 'X':
        return "ended";
    case 'I':
        return "idle";
    default:
        return "in an unknown state";
    }
}

static void print_frames(const struct mu_stacks_thread *t)
{
    struct mu_stacks_frames frames = t->frames;
    struct mu_stacks_frame frame;

    for (uint32_t i = 0; mu_stacks_frame_next(&frames, &frame) == 0; i++) {
        if (i == MU_STACKS_INNER_MAX && t->omitted != 0) {
            printf("      ... %u more frames\n", t->omitted);
        }
        printf("      ");
        put_text(frame.function);
        printf(" at ");
        put_text(frame.file);
        if (frame.line != 0) {
            printf(":%u", frame.line);
        }
        printf("\n");
    }
    if (t->endless) {
        printf("      ... more frames than were followed\n");
    }
}

static void print_thread(const struct mu_stacks_thread *t)
{
    if (t->tid == 0) {
        printf("  a thread of the interpreter, its number is not known");
    } else {
        printf("  thread %llu", (unsigned long long)t->tid);
    }
    if (t->name.len != 0) {
        printf(" (");
        put_text(t->name);
        printf(")");
    }
    printf("%s: %s", t->main ? ", main" : "", state_words(t->state));
    if (t->kernel.len != 0) {
        printf(" in ");
        put_text(t->kernel);
    }
    printf("%s%s\n", t->gil == MU_STACKS_GIL_HELD ? ", holds the GIL" : "",
           t->torn ? "; these frames may be of different moments" : "");
    print_frames(t);
}

void stacks_print(const struct mu_stacks_report *report)
{
    struct mu_stacks_threads threads = report->threads;
    struct mu_stacks_thread thread;

    printf("process %lld", (long long)report->pid);
    if (report->rank != MU_STACKS_NO_RANK) {
        printf(", rank %u", report->rank);
    }
    if (report->node.len != 0) {
        printf(" on ");
        put_text(report->node);
    }
    if (report->kind == MU_STACKS_PYTHON) {
        printf(", Python ");
        put_text(report->version);
    }
    printf("\n");
    if (report->note.len != 0) {
        printf("  ");
        put_text(report->note);
        printf("\n");
    }
    while (mu_stacks_thread_next(&threads, &thread) == 0) {
        print_thread(&thread);
    }
    if (report->left_out != 0) {
        printf("  ... %u more threads\n", report->left_out);
    }
}

/* --- for programs ----------------------------------------------------------------------------- */

/* Text that is not UTF-8 is shown as it would be printed. */
static json_t *json_text(struct mu_span text)
{
    static char shown[SHOWN_MAX];
    json_t *value = json_stringn(text.len == 0 ? "" : (const char *)text.data, text.len);

    if (value != NULL) {
        return value;
    }
    (void)mu_printable(shown, sizeof(shown), text, false);
    return json_string(shown);
}

static json_t *frames_json(struct mu_stacks_frames frames)
{
    json_t *list = json_array();
    struct mu_stacks_frame frame;

    while (mu_stacks_frame_next(&frames, &frame) == 0) {
        (void)json_array_append_new(
            list, json_pack("{s:o, s:o, s:I}", "function", json_text(frame.function), "file",
                            json_text(frame.file), "line", (json_int_t)frame.line));
    }
    return list;
}

static json_t *thread_json(const struct mu_stacks_thread *t)
{
    const char state[2] = {t->state > ' ' && t->state < 127 ? t->state : '?', '\0'};
    json_t *object = json_pack("{s:I, s:o, s:s, s:b, s:o, s:b, s:I, s:o}", "tid",
                               (json_int_t)t->tid, "name", json_text(t->name), "state", state,
                               "main", t->main, "kernel", json_text(t->kernel), "torn", t->torn,
                               "omitted", (json_int_t)t->omitted, "frames", frames_json(t->frames));

    if (t->gil != MU_STACKS_GIL_UNKNOWN) {
        (void)json_object_set_new(object, "gil", json_boolean(t->gil == MU_STACKS_GIL_HELD));
    }
    if (t->endless) {
        (void)json_object_set_new(object, "endless", json_true());
    }
    return object;
}

json_t *stacks_json(const struct mu_stacks_report *report)
{
    struct mu_stacks_threads threads = report->threads;
    struct mu_stacks_thread thread;
    json_t *list = json_array();
    json_t *object = json_pack("{s:I, s:b, s:o, s:o, s:I, s:o}", "pid", (json_int_t)report->pid,
                               "python", report->kind == MU_STACKS_PYTHON, "version",
                               json_text(report->version), "note", json_text(report->note),
                               "left_out", (json_int_t)report->left_out, "threads", list);

    if (report->node.len != 0) {
        (void)json_object_set_new(object, "node", json_text(report->node));
    }
    if (report->rank != MU_STACKS_NO_RANK) {
        (void)json_object_set_new(object, "rank", json_integer(report->rank));
        (void)json_object_set_new(object, "round", json_integer((json_int_t)report->round));
    }
    if (report->local_rank != MU_STACKS_NO_RANK) {
        (void)json_object_set_new(object, "local_rank", json_integer(report->local_rank));
    }
    while (mu_stacks_thread_next(&threads, &thread) == 0) {
        (void)json_array_append_new(list, thread_json(&thread));
    }
    return object;
}
