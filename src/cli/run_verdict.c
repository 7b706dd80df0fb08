#include "cli/run_verdict.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "cli/cli.h"

/* Opens the file under another name, so that a reader never sees half of it. */
static FILE *open_file(const char *path, char temporary[4096])
{
    if (snprintf(temporary, 4096, "%s.%ld", path, (long)getpid()) >= 4096) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    return fopen(temporary, "we");
}

static int say_unwritten(const char *what, const char *path)
{
    return cli_fail(CLI_FAILED, "cannot write the %s to \"%s\": %s", what, path, strerror(errno));
}

static void write_file(const char *what, const char *path, const char *text, size_t len)
{
    char temporary[4096];
    FILE *f = open_file(path, temporary);

    if (f != NULL) {
        bool ok = fwrite(text, 1, len, f) == len;

        ok = fclose(f) == 0 && ok;
        if (ok && rename(temporary, path) == 0) {
            return;
        }
        (void)unlink(temporary);
    }
    (void)say_unwritten(what, path);
}

int run_verdict_try(const char *path)
{
    char temporary[4096];
    FILE *f = open_file(path, temporary);

    if (f == NULL) {
        return say_unwritten("verdict", path);
    }
    (void)fclose(f);
    (void)unlink(temporary);
    return CLI_OK;
}

void run_verdict_write(const char *path, const struct mu_agent_verdict *verdict)
{
    struct mu_buf text;

    mu_buf_init(&text, (size_t)16 << 20);
    if (mu_agent_verdict_json(verdict, &text) == 0) {
        write_file("verdict", path, (const char *)mu_buf_span(&text).data, text.len);
    }
    mu_buf_fini(&text);
}

/* Describes the worker that failed, if it left no error message itself. */
static void describe(const struct mu_failure *f, char *out, size_t cap)
{
    const char *name = mu_signal_name(-f->exit_code);
    char how[64];

    if (f->exit_code < 0 && name != NULL) {
        (void)snprintf(how, sizeof(how), "was ended by %s", name);
    } else {
        (void)snprintf(how, sizeof(how),
                       f->exit_code < 0 ? "was ended by signal %d" : "exited with code %d",
                       abs(f->exit_code));
    }
    (void)snprintf(out, cap, "rank %u (local rank %u) on %s %s", f->rank, f->local_rank, f->host,
                   how);
}

void run_verdict_write_error_file(const char *path, const struct mu_agent_verdict *v, int64_t now_s)
{
    const struct mu_failure *f = v->has_failure ? &v->first_failure : NULL;
    char message[512];
    char timestamp[24];
    json_t *file;
    char *text;

    if (f != NULL) {
        describe(f, message, sizeof(message));
    }
    (void)snprintf(timestamp, sizeof(timestamp), "%lld",
                   (long long)(f != NULL ? f->time_s : now_s));
    file = json_pack("{s:{s:s, s:{s:s, s:s}, s:i}}", "message", "message",
                     f == NULL               ? v->text
                     : f->message[0] != '\0' ? f->message
                                             : message,
                     "extraInfo", "py_callstack", f == NULL ? "" : f->traceback, "timestamp",
                     timestamp, "errorCode", f == NULL ? 1 : f->exit_code);
    text = file == NULL ? NULL : json_dumps(file, 0);
    if (text != NULL) {
        write_file("error file", path, text, strlen(text));
    }
    free(text);
    json_decref(file);
}
