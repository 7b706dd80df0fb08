/*
 * Where the output of workers goes, and the files they leave: torchrun's directories, masks,
 * prefixes and filters.
 *
 *     BASE/RUN_ID_xxxxxx/attempt_N/LOCAL_RANK/stdout.log  stderr.log  error.json
 *     BASE/RUN_ID_xxxxxx/attempt_N/filtered_stdout.log  filtered_stderr.log
 *
 * A stream that is neither redirected nor tee'd goes to the console as it is, a tee'd one with a
 * prefix; both in whole lines. On the loop's thread, except where it says otherwise.
 */
#ifndef MU_RUN_OUTPUT_H
#define MU_RUN_OUTPUT_H

#include "cli/run_options.h"

#include "service/agent.h"

struct run_output;

/**
 * `drained` is called on another thread: output can be taken again, see run_output_resume(). `o` is
 * borrowed. CLI_FAILED, said: the directories cannot be made.
 */
int run_output_new(const struct run_options *o, void (*drained)(void *context), void *context,
                   struct run_output **ret_output);
/** Makes the directories and opens the files of an attempt. A negative code in words. */
int run_output_prepare(struct run_output *out, const struct mu_agent_attempt *attempt,
                       struct mu_errmsg *reterr_msg);
/** The path of a worker's error file in this attempt; "" if there are no directories. */
const char *run_output_error_file(struct run_output *out, uint32_t local_rank);
/** Appends what is in it, if it is there. */
void run_output_read_error_file(struct run_output *out, uint32_t local_rank, struct mu_buf *text);
/** Takes all of it or, when too much waits to be written, nothing. An empty span: the end. */
size_t run_output_take(struct run_output *out, uint32_t local_rank, enum mu_stream stream,
                       struct mu_span in);
/** Has the streams that rest taken up again. */
void run_output_resume(struct run_output *out, struct mu_agent_service *agent);
/** The attempt is over: its files are closed. */
void run_output_gone(struct run_output *out);
/** A line of our own on standard error, in order with those of workers. */
void run_output_say(struct run_output *out, const char *line);
/** Text of our own likewise, as it is; a line's end is added if it has none. */
void run_output_write(struct run_output *out, const char *text, size_t len);
/** Waits until all is written; removes directories that nobody asked for and that are empty. */
void run_output_free(struct run_output *out);

#endif
