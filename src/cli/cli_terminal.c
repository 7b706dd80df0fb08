#include "cli/cli_terminal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/printable.h"
#include "core/utf8.h"

/* A stream that replaces standard output or standard error. */
struct shown {
    FILE *stream; /* NULL: it is not a terminal */
    FILE *old;
    int fd;
    char rest[4]; /* the beginning of a character whose end has not come yet */
    size_t rest_len;
};

static struct shown streams[2];

static int write_all(int fd, const char *text, size_t len)
{
    while (len != 0) {
        ssize_t n = write(fd, text, len);

        if (n < 0 && errno != EINTR) {
            return -1;
        }
        text += n < 0 ? 0 : n;
        len -= n < 0 ? 0 : (size_t)n;
    }
    return 0;
}

/* Returns whether these are the first bytes of an incomplete character. */
static bool is_begun(struct mu_span in)
{
    uint8_t c = in.data[0];
    size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    uint8_t whole[4] = {0x80, 0x80, 0x80, 0x80};

    if (c < 0xc2 || c > 0xf4 || in.len >= len) {
        return false;
    }
    memcpy(whole, in.data, in.len);
    if (in.len == 1) {
        whole[1] = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    }
    return mu_utf8_len(mu_span(whole, len)) == len;
}

static int show(struct shown *s, struct mu_span in)
{
    char out[1024];
    size_t len = 0;

    while (in.len != 0 && !is_begun(in)) {
        size_t taken;

        len += mu_printable_next(out + len, in, true, &taken);
        in = mu_span_skip(in, taken);
        if (len > sizeof(out) - MU_PRINTABLE_MAX) {
            if (write_all(s->fd, out, len) != 0) {
                return -1;
            }
            len = 0;
        }
    }
    memcpy(s->rest, in.data, in.len);
    s->rest_len = in.len;
    return write_all(s->fd, out, len);
}

static ssize_t on_write(void *cookie, const char *text, size_t len)
{
    struct shown *s = cookie;
    struct mu_span in = mu_span(text, len);

    /* The character is complete after at most three more bytes, or is not valid. */
    while (s->rest_len != 0 && in.len != 0) {
        uint8_t joined[sizeof(s->rest) + 1];
        size_t n = s->rest_len;

        memcpy(joined, s->rest, n);
        joined[n] = in.data[0];
        in = mu_span_skip(in, 1);
        if (show(s, mu_span(joined, n + 1)) != 0) {
            return 0;
        }
    }
    return in.len == 0 || show(s, in) == 0 ? (ssize_t)len : 0;
}

static FILE *open_stream(struct shown *s, FILE *old, int fd, int mode)
{
    const cookie_io_functions_t functions = {.write = on_write};

    s->fd = fd;
    s->old = old;
    s->stream = isatty(fd) == 1 ? fopencookie(s, "w", functions) : NULL;
    if (s->stream == NULL) {
        return old;
    }
    (void)setvbuf(s->stream, NULL, mode, BUFSIZ);
    return s->stream;
}

bool cli_terminal_colors(int fd)
{
    const char *no = getenv("NO_COLOR");
    const char *kind = getenv("TERM");

    return isatty(fd) == 1 && (no == NULL || no[0] == '\0') &&
           (kind == NULL || strcmp(kind, "dumb") != 0);
}

void cli_terminal_open(void)
{
    stdout = open_stream(&streams[0], stdout, STDOUT_FILENO, _IOLBF);
    stderr = open_stream(&streams[1], stderr, STDERR_FILENO, _IONBF);
}

void cli_terminal_close(void)
{
    (void)fflush(stdout);
    stdout = streams[0].old;
    stderr = streams[1].old;
}

void cli_terminal_control(FILE *to, const char *text)
{
    (void)fflush(to);
    for (size_t i = 0; i < 2; i++) {
        if (streams[i].stream == to) {
            (void)write_all(streams[i].fd, text, strlen(text));
            return;
        }
    }
    (void)fputs(text, to);
}
