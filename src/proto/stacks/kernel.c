#include "proto/stacks/kernel.h"

#include <stdio.h>
#include <string.h>

#define NS_PER_TICK  UINT64_C(10000000) /* of /proc, whatever the kernel's own is */
#define SECTOR_BYTES 512
#define PAGE_BYTES   4096 /* at least */

/* The calls in which a thread is found when it waits. Others are shown by their number. */
struct call {
    unsigned number;
    const char *name;
};

#if defined(__x86_64__)
static const struct call calls[] = {
    {0, "read"},
    {1, "write"},
    {7, "poll"},
    {16, "ioctl"},
    {17, "pread64"},
    {18, "pwrite64"},
    {19, "readv"},
    {20, "writev"},
    {23, "select"},
    {34, "pause"},
    {35, "nanosleep"},
    {40, "sendfile"},
    {42, "connect"},
    {43, "accept"},
    {44, "sendto"},
    {45, "recvfrom"},
    {46, "sendmsg"},
    {47, "recvmsg"},
    {61, "wait4"},
    {72, "fcntl"},
    {73, "flock"},
    {74, "fsync"},
    {75, "fdatasync"},
    {128, "rt_sigtimedwait"},
    {130, "rt_sigsuspend"},
    {202, "futex"},
    {219, "restart_syscall"},
    {230, "clock_nanosleep"},
    {232, "epoll_wait"},
    {247, "waitid"},
    {257, "openat"},
    {270, "pselect6"},
    {271, "ppoll"},
    {281, "epoll_pwait"},
    {288, "accept4"},
    {441, "epoll_pwait2"},
};
#elif defined(__aarch64__)
static const struct call calls[] = {
    {22, "epoll_pwait"},
    {25, "fcntl"},
    {29, "ioctl"},
    {32, "flock"},
    {56, "openat"},
    {63, "read"},
    {64, "write"},
    {65, "readv"},
    {66, "writev"},
    {67, "pread64"},
    {68, "pwrite64"},
    {71, "sendfile"},
    {72, "pselect6"},
    {73, "ppoll"},
    {82, "fsync"},
    {83, "fdatasync"},
    {95, "waitid"},
    {98, "futex"},
    {101, "nanosleep"},
    {115, "clock_nanosleep"},
    {128, "restart_syscall"},
    {133, "rt_sigsuspend"},
    {137, "rt_sigtimedwait"},
    {202, "accept"},
    {203, "connect"},
    {206, "sendto"},
    {207, "recvfrom"},
    {211, "sendmsg"},
    {212, "recvmsg"},
    {242, "accept4"},
    {260, "wait4"},
    {441, "epoll_pwait2"},
};
#else
static const struct call calls[] = {{0, NULL}};
#endif

/* Takes a decimal number off; false: there is none. */
static bool take_number(struct mu_span *s, uint64_t *ret)
{
    size_t n = 0;

    *ret = 0;
    while (n < s->len && n < 19 && s->data[n] >= '0' && s->data[n] <= '9') {
        *ret = *ret * 10 + (uint64_t)(s->data[n++] - '0');
    }
    *s = mu_span_skip(*s, n);
    return n != 0;
}

static struct mu_span first_word(struct mu_span s)
{
    size_t n = 0;

    while (n < s.len && s.data[n] > ' ') {
        n++;
    }
    return mu_span(s.data, n);
}

static void put_call(char *out, size_t cap, struct mu_span syscall)
{
    uint64_t number;

    out[0] = '\0';
    if (!take_number(&syscall, &number)) {
        return;
    }
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        if (calls[i].number == number && calls[i].name != NULL) {
            (void)snprintf(out, cap, "%s", calls[i].name);
            return;
        }
    }
    (void)snprintf(out, cap, "system call %llu", (unsigned long long)number);
}

size_t mu_kernel_text(char *out, size_t cap, struct mu_span syscall, struct mu_span wchan)
{
    struct mu_span place = first_word(wchan);
    char call[40];

    put_call(call, sizeof(call), syscall);
    if (place.len == 0 || mu_span_eq(place, MU_SPAN_LIT("0")) || place.len > 64) {
        (void)snprintf(out, cap, "%s", call);
    } else if (call[0] == '\0') {
        (void)snprintf(out, cap, "%.*s", (int)place.len, (const char *)place.data);
    } else {
        (void)snprintf(out, cap, "%s (%.*s)", call, (int)place.len, (const char *)place.data);
    }
    return strlen(out);
}

static bool take_field(struct mu_span *rest, uint64_t *ret_number)
{
    while (rest->len != 0 && (rest->data[0] == ' ' || rest->data[0] == '-')) {
        *rest = mu_span_skip(*rest, 1);
    }
    return take_number(rest, ret_number);
}

bool mu_kernel_stat_read(struct mu_span text, struct mu_kernel_stat *ret)
{
    struct mu_span rest = text;
    uint64_t number = 0;
    uint64_t ticks = 0;
    size_t end = text.len;

    while (end > 0 && text.data[end - 1] != ')') {
        end--;
    }
    rest = mu_span_skip(text, end);
    if (end == 0 || rest.len < 3 || rest.data[0] != ' ') {
        return false;
    }
    ret->state = (char)rest.data[1];
    rest = mu_span_skip(rest, 2);
    /* The state is field 3; the times are fields 14 to 17; the start is field 22. */
    for (int field = 4; field <= 22; field++) {
        if (!take_field(&rest, &number)) {
            return false;
        }
        ticks += field >= 14 && field <= 17 ? number : 0;
    }
    ret->cpu_ns = ticks * NS_PER_TICK;
    ret->start = number;
    /* Address space, and resident pages. */
    ret->memory_bytes =
        take_field(&rest, &number) && take_field(&rest, &number) && number < UINT64_MAX / PAGE_BYTES
            ? number * PAGE_BYTES
            : 0;
    return true;
}

uint64_t mu_kernel_inner_tid(struct mu_span status)
{
    static const char mark[] = "\nNSpid:";
    uint64_t number;
    uint64_t last = 0;

    while (status.len != 0 && !mu_span_starts_with(status, MU_SPAN_LIT(mark))) {
        status = mu_span_skip(status, 1);
    }
    if (status.len == 0) {
        return 0;
    }
    status = mu_span_skip(status, sizeof(mark) - 1);
    while (status.len != 0 && status.data[0] != '\n') {
        if (!take_number(&status, &number)) {
            status = mu_span_skip(status, 1);
        } else {
            last = number;
        }
    }
    return last;
}

/* --- counters --------------------------------------------------------------------------------- */

/* Takes the first line off. */
static struct mu_span take_line(struct mu_span *text)
{
    size_t n = 0;
    struct mu_span line;

    while (n < text->len && text->data[n] != '\n') {
        n++;
    }
    line = mu_span(text->data, n);
    *text = mu_span_skip(*text, n < text->len ? n + 1 : n);
    return line;
}

static void skip_blanks(struct mu_span *text)
{
    while (text->len != 0 && text->data[0] == ' ') {
        *text = mu_span_skip(*text, 1);
    }
}

/* Takes a word off that is between blanks. */
static struct mu_span take_word(struct mu_span *text)
{
    struct mu_span word;

    skip_blanks(text);
    word = first_word(*text);
    *text = mu_span_skip(*text, word.len);
    return word;
}

static uint64_t number_of(struct mu_span word)
{
    uint64_t number = 0;

    return take_number(&word, &number) ? number : 0;
}

uint64_t mu_kernel_io_bytes(struct mu_span io)
{
    static const char *const names[] = {"rchar:", "wchar:", "read_bytes:", "write_bytes:"};
    uint64_t sum = 0;

    while (io.len != 0) {
        struct mu_span line = take_line(&io);
        struct mu_span name = take_word(&line);

        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
            if (mu_span_eq(name, mu_span_str(names[i]))) {
                sum += number_of(take_word(&line));
            }
        }
    }
    return sum;
}

bool mu_kernel_is_traced(struct mu_span status)
{
    while (status.len != 0) {
        struct mu_span line = take_line(&status);
        static const char mark[] = "TracerPid:\t";

        if (mu_span_starts_with(line, MU_SPAN_LIT(mark))) {
            return number_of(mu_span_skip(line, sizeof(mark) - 1)) != 0;
        }
    }
    return false;
}

/* Control groups of version 1 put what they freeze into the refrigerator, as a sleep of the whole
 * machine does, where it is in state D as if it waited for a disk; version 2 has a trap. */
bool mu_kernel_is_frozen(struct mu_span wchan)
{
    struct mu_span place = first_word(wchan);

    return mu_span_eq(place, MU_SPAN_LIT("__refrigerator")) ||
           mu_span_eq(place, MU_SPAN_LIT("do_freezer_trap"));
}

bool mu_kernel_child_next(struct mu_span *children, int64_t *ret_pid)
{
    uint64_t pid = number_of(take_word(children));

    *ret_pid = pid > INT32_MAX ? 0 : (int64_t)pid;
    return *ret_pid != 0;
}

/* "1234567 89012 345": nanoseconds on a CPU, nanoseconds in the queue for one, how often. */
uint64_t mu_kernel_delay_ns(struct mu_span schedstat)
{
    (void)take_word(&schedstat);
    return number_of(take_word(&schedstat));
}

/* "   8       0 sda reads merged SECTORS ms writes merged SECTORS ..." */
uint64_t mu_kernel_disk_bytes(struct mu_span diskstats)
{
    uint64_t sectors = 0;

    while (diskstats.len != 0) {
        struct mu_span line = take_line(&diskstats);

        for (int field = 1; field <= 10 && line.len != 0; field++) {
            struct mu_span word = take_word(&line);

            sectors += field == 6 || field == 10 ? number_of(word) : 0;
        }
    }
    return sectors * SECTOR_BYTES;
}

/* "  eth0: BYTES packets errs drop fifo frame compressed multicast BYTES ..." */
uint64_t mu_kernel_net_bytes(struct mu_span dev)
{
    uint64_t bytes = 0;

    while (dev.len != 0) {
        struct mu_span line = take_line(&dev);
        size_t colon = 0;

        while (colon < line.len && line.data[colon] != ':') {
            colon++;
        }
        skip_blanks(&line);
        if (colon >= line.len || mu_span_starts_with(line, MU_SPAN_LIT("lo:"))) {
            continue;
        }
        while (line.len != 0 && line.data[0] != ':') {
            line = mu_span_skip(line, 1);
        }
        line = mu_span_skip(line, line.len == 0 ? 0 : 1);
        for (int field = 1; field <= 9 && line.len != 0; field++) {
            struct mu_span word = take_word(&line);

            bytes += field == 1 || field == 9 ? number_of(word) : 0;
        }
    }
    return bytes;
}
