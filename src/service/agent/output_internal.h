/*
 * What the files of the output service share.
 *
 *   output.c          attempts: directories, files, where a stream goes; its bytes
 *   output_console.c  consoles: the queue, the open line, streams that rest
 */
#ifndef MU_OUTPUT_INTERNAL_H
#define MU_OUTPUT_INTERNAL_H

#include "codec/text/lines.h"
#include "core/buf.h"
#include "core/list.h"
#include "service/agent/output.h"

#define MU_OUTPUT_PATH_MAX 4096

struct output_worker;

/* One stream of one worker. */
struct output_stream {
    struct output_worker *worker;
    struct output_console *console; /* NULL: not shown */
    struct mu_sink *file;           /* NULL: no file, or the worker has it itself */
    char *path;                     /* of the file, or NULL */
    struct mu_lines lines;
    struct mu_child *child; /* since it first wrote, until the stream has ended */
    struct mu_list waiting; /* of console->waiters: it rests, or its last line found no room */
    struct mu_list unshown; /* of output->unshown: part of a line waits to be shown */
    mu_mono_t show_at;
    uint64_t skipped; /* lines that the console did not take */
    enum mu_stream stream;
    bool direct;   /* the worker writes to its file itself */
    bool prefixed; /* as tee */
    bool ending;   /* ended, its last line waits for room */
};

/* The last bytes of something. */
struct output_ring {
    uint8_t *data; /* MU_OUTPUT_TAIL_MAX bytes, or NULL before the first */
    size_t start;
    size_t len;
};

struct output_worker {
    struct mu_output *out;
    struct output_stream streams[2];
    struct output_ring tail;
    size_t redraw; /* bytes at the end of the tail that the next piece of `redraw_by` replaces */
    struct output_stream *redraw_by;
    struct mu_buf prefix;
    char *error_file;
    bool exited; /* its output must not wait any more */
};

struct output_console {
    struct mu_output *out;
    struct mu_sink *sink;
    struct mu_buf queue;
    struct mu_list waiters;
    bool open;                     /* the last line has no end yet */
    bool redraw;                   /* the stream that began it will overwrite it */
    bool rewritten;                /* it is open and of mu_output_rewrite() */
    struct output_stream *open_by; /* NULL: one that is not there any more */
};

struct mu_output {
    struct mu_env *env;
    struct mu_files *files;
    const struct mu_std_masks *redirects;
    const struct mu_std_masks *tees;
    const struct mu_rank_filter *shown;
    const struct mu_text_filter *filters[2];
    size_t line_max;
    size_t queue_max;
    uint64_t flush_ms;
    void (*lost)(void *context, const char *path, int status); /* or NULL */
    void *context;
    char *role;
    char *prefix;
    char *run_dir;    /* NULL: no files */
    char *fresh_base; /* a directory that we made, or NULL */
    struct output_console consoles[2];
    size_t console_count; /* 1 when both are one */
    struct mu_sink *closing[2];
    struct mu_timer timer;
    struct mu_list unshown; /* struct output_stream, the first to be shown first */
    struct output_worker *workers;
    size_t count;
    struct mu_sink *filtered[2];
    void (*drained)(void *arg);
    void *drained_arg;
};

/** MUSTER_ENOMEM, or a negated errno. */
int output_consoles_open(struct mu_output *out, struct mu_errmsg *reterr_msg);
void output_consoles_close(struct mu_output *out);
/** Whether the longest line of the stream has room. */
bool output_console_has_room(const struct output_stream *s);
/** Puts a line on the queue, `last` if the stream ends with it; false: no room for it. */
bool output_console_put(struct output_stream *s, const struct mu_line *line, bool last);
/** Says how many lines were left out, if any were; false: no room for it. */
bool output_console_note(struct output_stream *s, bool last);
/** Makes the stream wait: it is read again when there is room. */
void output_console_wait(struct output_stream *s);
/** Writes as much as the console takes. */
void output_console_pump(struct output_console *c);
/** The stream is going away. */
void output_console_forget(struct output_stream *s);

/** There is room for the last line of a stream that waited. */
void output_stream_finish(struct output_stream *s);

#endif
