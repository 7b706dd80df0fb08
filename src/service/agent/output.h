/*
 * What becomes of the workers' output: to files, to the console with a prefix, to the filtered
 * files, and the last of it kept for the verdict.
 *
 *     mu_output_new(env, &config, &out, &msg)      makes the run's directory
 *     mu_output_begin(out, attempt, ranks, count)  makes the attempt's, opens its files
 *     mu_output_fill(out, i, &what)                says where the streams of worker i lead
 *     mu_env_spawn(env, &child, &what)
 *     mu_output_take(out, i, &child, stream, in)   in the child's `output`; returns what it used
 *     mu_output_exited(out, i)                     in the child's `exited`
 *     mu_output_tail(out, i, buf, cap)             its last lines
 *     mu_output_end(out)                           when all of them are gone: closes the files
 *     mu_output_say(out, stream, text)             words of our own, any time
 *     mu_output_flush(out, drained, arg)           is all of it on the console?
 *
 * Where a stream goes, by the masks (-r, -t) and the filter of local ranks:
 *
 *     redirected            its file, which the worker itself has open
 *     tee                   its file, and the console with a prefix
 *     neither               the console as it is
 *     and not to be shown   not to the console; lines in files and in the tail all the same
 *
 * Directories, as torchrun's: BASE/RUNID_xxxxxx/attempt_N/LOCALRANK/stdout.log, stderr.log and
 * (the worker's own) error.json; filtered_stdout.log and filtered_stderr.log beside the ranks. An
 * attempt of the same number is removed first. Without a base there are no files, and tee is
 * the console alone.
 *
 * Lines are never torn: the console gets whole lines, or what of one there is when `flush_ms` have
 * passed without its end (a prompt, a progress bar); if then another's line comes, a line end goes
 * before it. A carriage return alone ends a piece that the next one of its stream overwrites. What
 * is longer than `line_max` is cut, with " [...]" at the end of the piece and "[...] " before the
 * next. Files and filters get the bytes as they came.
 *
 * Memory is bounded: one line for each stream, the tails, one queue for each console. When the
 * console does not take what comes, a stream that has a file goes on, its lines on the console are
 * left out, and a line says how many; one that has none rests, and its worker waits at its pipe as
 * it would at the terminal. Streams that rest take turns, so that none starves another. A worker
 * that has ended must not wait, or nobody could take its place: what is left of its output, and
 * what its descendants write, rests no more. It goes to the queue beyond its measure, by at most
 * MU_OUTPUT_EXTRA_MAX together with words of our own; what finds no room there is left out.
 */
#ifndef MU_OUTPUT_H
#define MU_OUTPUT_H

#include "codec/agent/output_spec.h"
#include "core/env.h"
#include "core/files.h"

/** The last of a rank's output that is kept. */
#define MU_OUTPUT_TAIL_MAX 65536
/** What may wait for a console beyond `queue_max`. */
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
    const struct mu_text_filter *filters[2]; /* stdout, stderr; without texts: none */
    size_t line_max;                         /* 0: 32 KiB */
    size_t queue_max;                        /* of a console. 0: 256 KiB */
    uint64_t flush_ms;                       /* 0: 200 */
};

/**
 * Makes the directories and opens the consoles. `config` and the texts in it are borrowed for the
 * call; files, masks and filters for life. A fresh base is torchelastic_xxxxxx in `temp`; it goes
 * with mu_output_free() if no file was left in it. MUSTER_ENOMEM, MUSTER_ELIMIT, or a negated
 * errno.
 */
int mu_output_new(struct mu_env *env, const struct mu_output_config *config, struct mu_output **ret,
                  struct mu_errmsg *reterr_msg);
/** Drops what the console did not take. All children must be gone. */
void mu_output_free(struct mu_output *out);
/** The run's directory, or NULL. */
const char *mu_output_run_dir(const struct mu_output *out);

/**
 * Begins an attempt of `count` workers; `ranks` are their global ranks. What an attempt before has
 * left is ended first. Errors as mu_output_new(); nothing is open then.
 */
int mu_output_begin(struct mu_output *out, uint32_t attempt, const uint32_t *ranks, size_t count,
                    struct mu_errmsg *reterr_msg);
/** Sets the streams of `what` but stdin; their paths are lent until the attempt ends. */
void mu_output_fill(struct mu_output *out, uint32_t local_rank, struct mu_spawn *what);
/**
 * Where the worker is to write its error, for TORCHELASTIC_ERROR_FILE; "" without files, or when no
 * attempt has begun.
 */
const char *mu_output_error_file(const struct mu_output *out, uint32_t local_rank);
/** Appends what the worker wrote there, if it did, the end of it if `text` cannot hold all. */
void mu_output_read_error(struct mu_output *out, uint32_t local_rank, struct mu_buf *text);
/**
 * Takes what a worker wrote, or with an empty span its end. Returns what it used; if that is less
 * than all it calls mu_env_child_resume() when there is room again. `child` is not used after the
 * end of its streams.
 */
size_t mu_output_take(struct mu_output *out, uint32_t local_rank, struct mu_child *child,
                      enum mu_stream stream, struct mu_span in);
/** The process of a worker has ended. */
void mu_output_exited(struct mu_output *out, uint32_t local_rank);
/**
 * Copies the end of a worker's output: lines of both streams as they came, and behind them what has
 * no end yet. Its length; 0 when no attempt has begun.
 */
size_t mu_output_tail(struct mu_output *out, uint32_t local_rank, uint8_t *buf, size_t cap);
/** The attempt is over: closes its files. Tails stay until the next one. */
void mu_output_end(struct mu_output *out);
/**
 * Puts text of our own, lines with their ends, on a console, behind what waits there. Lost if too
 * much does.
 */
void mu_output_say(struct mu_output *out, enum mu_stream stream, struct mu_span text);
/**
 * True: nothing waits for a console. False: `drained` is called once, when nothing does any more;
 * that may take for ever, if nobody reads.
 */
bool mu_output_flush(struct mu_output *out, void (*drained)(void *arg), void *arg);

#endif
