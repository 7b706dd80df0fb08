/*
 * The workers' output: it goes to files, to the console with a prefix, and to the filtered files,
 * and its end is kept for the verdict.
 *
 *     mu_output_new(env, &config, &out, &msg)      makes the run's directory
 *     mu_output_begin(out, attempt, ranks, count)  makes the attempt's, opens its files
 *     mu_output_fill(out, i, &what)                says where the streams of worker i go
 *     mu_env_spawn(env, &child, &what)
 *     mu_output_take(out, i, &child, stream, in)   in the child's `output`; returns what it used
 *     mu_output_exited(out, i)                     in the child's `exited`
 *     mu_output_tail(out, i, buf, cap)             its last lines
 *     mu_output_end(out)                           when all of them are gone: closes the files
 *     mu_output_say(out, stream, text)             text of our own, any time
 *     mu_output_flush(out, drained, arg)           is all of it on the console?
 *
 * Where a stream goes, by the masks (-r, -t) and the filter of local ranks:
 *
 *     redirected            its file, which the worker itself has open
 *     tee                   its file, and the console with a prefix
 *     neither               the console as it is
 *     filtered out          not to the console, but to files and the tail all the same
 *
 * Directories, as torchrun's: BASE/RUNID_xxxxxx/attempt_N/LOCALRANK/stdout.log, stderr.log and
 * (the worker's own) error.json; filtered_stdout.log and filtered_stderr.log beside the ranks. An
 * attempt of the same number is removed first. Without a base there are no files, and tee is
 * the console alone.
 *
 * Lines are never torn: the console gets whole lines, or the part of one that is there when
 * `flush_ms` have passed without its end (a prompt, a progress bar); if a line of another stream
 * comes then, a line end goes before it. A carriage return alone ends a piece that the next one of
 * its stream overwrites. A line longer than `line_max` is cut, with " [...]" at the end of the
 * piece and "[...] " before the next. Files and filters get the bytes as they came.
 *
 * Memory is bounded: one line for each stream, the tails, one queue for each console. When the
 * console is too slow, a stream that has a file goes on, its lines on the console are left out, and
 * a line says how many. A stream without a file rests, and its worker waits at its pipe as it would
 * at the terminal. Streams that rest take turns, so that each makes progress. A worker that has
 * ended must not wait, or no other could replace it: what is left of its output, and what its
 * descendants write, rests no more. It goes to the queue beyond `queue_max`, by at most
 * MU_OUTPUT_EXTRA_MAX together with text of our own; what finds no room there is left out.
 */
#ifndef MU_OUTPUT_H
#define MU_OUTPUT_H

#include "codec/agent/output_spec.h"
#include "core/env.h"
#include "core/files.h"

/** How many bytes of the end of a rank's output are kept. */
#define MU_OUTPUT_TAIL_MAX 65536
/** How many bytes may wait for a console beyond `queue_max`. */
#define MU_OUTPUT_EXTRA_MAX (2u << 20)

struct mu_output;

struct mu_output_config {
    struct mu_files *files; /* borrowed for life */
    const char *base;       /* directory; NULL or the null device: no files; "": a fresh one */
    const char *temp;       /* where a fresh one is made; NULL: /tmp */
    const char *run_id;
    const char *role;
    const char *prefix; /* template; NULL: MU_PREFIX_TEMPLATE */
    const struct mu_std_masks *redirects;
    const struct mu_std_masks *tees;
    const struct mu_rank_filter *shown;
    const struct mu_text_filter *filters[2]; /* stdout, stderr; without texts: no filtered files */
    size_t line_max;                         /* 0: 32 KiB */
    size_t queue_max;                        /* of a console. 0: 256 KiB */
    uint64_t flush_ms;                       /* 0: 200 */
    /** The file at `path` cannot be written any more; what follows is only on the console. Once for
     * each file. May be NULL. */
    void (*lost)(void *context, const char *path, int status);
    void *context;
};

/**
 * Makes the directories and opens the consoles. `config` and the texts in it are borrowed for the
 * call; files, masks and filters for life. A fresh base is torchelastic_xxxxxx in `temp`;
 * mu_output_free() removes it if it holds no file. MUSTER_ENOMEM, MUSTER_ELIMIT, or a negated
 * errno.
 */
int mu_output_new(struct mu_env *env, const struct mu_output_config *config, struct mu_output **ret,
                  struct mu_errmsg *reterr_msg);
/** Drops what the console did not take. All children must be gone. */
void mu_output_free(struct mu_output *out);
/** The run's directory, or NULL. */
const char *mu_output_run_dir(const struct mu_output *out);

/**
 * Begins an attempt of `count` workers; `ranks` are their global ranks. An earlier attempt is ended
 * first. Errors as mu_output_new(); nothing is open then.
 */
int mu_output_begin(struct mu_output *out, uint32_t attempt, const uint32_t *ranks, size_t count,
                    struct mu_errmsg *reterr_msg);
/** Sets the streams of `what` but stdin; their paths are lent until the attempt ends. */
void mu_output_fill(struct mu_output *out, uint32_t local_rank, struct mu_spawn *what);
/**
 * Returns where the worker writes its error, for TORCHELASTIC_ERROR_FILE; "" without files, or when
 * no attempt has begun.
 */
const char *mu_output_error_file(const struct mu_output *out, uint32_t local_rank);
/** Names the files that the worker's output goes to, with ", " between them; "": there are none, or
 * `cap` bytes have no room for them. */
void mu_output_log_files(const struct mu_output *out, uint32_t local_rank, char *text, size_t cap);
/** Appends what the worker wrote there, if anything; only its end if `text` cannot hold all. */
void mu_output_read_error(struct mu_output *out, uint32_t local_rank, struct mu_buf *text);
/**
 * Takes what a worker wrote; an empty span is the end. Returns how many bytes it used; if these are
 * not all, it calls mu_env_child_resume() when there is room again. `child` is not used after the
 * end of its streams.
 */
size_t mu_output_take(struct mu_output *out, uint32_t local_rank, struct mu_child *child,
                      enum mu_stream stream, struct mu_span in);
/** The process of a worker has ended. */
void mu_output_exited(struct mu_output *out, uint32_t local_rank);
/**
 * Copies the end of a worker's output: lines of both streams as they came, and behind them what has
 * no line end yet. Returns the length; 0 when no attempt has begun.
 */
size_t mu_output_tail(struct mu_output *out, uint32_t local_rank, uint8_t *buf, size_t cap);
/** The attempt is over: closes its files. Tails stay until the next one. */
void mu_output_end(struct mu_output *out);
/**
 * Puts text of our own, lines with their ends, on a console, behind what waits there. It is lost if
 * too much waits.
 */
void mu_output_say(struct mu_output *out, enum mu_stream stream, struct mu_span text);
/**
 * Likewise for one line without its end on a console that is a terminal: the next call replaces the
 * line while it is the last one there, and everything else begins below it.
 */
void mu_output_rewrite(struct mu_output *out, enum mu_stream stream, struct mu_span line);
/**
 * True: nothing waits for a console. False: `drained` is called once, when nothing does any more;
 * that never happens if nobody reads the console.
 */
bool mu_output_flush(struct mu_output *out, void (*drained)(void *arg), void *arg);

#endif
