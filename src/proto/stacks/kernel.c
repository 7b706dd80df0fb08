#include "proto/stacks/kernel.h"

#include <stdio.h>
#include <string.h>

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

bool mu_kernel_stat_read(struct mu_span text, struct mu_kernel_stat *ret)
{
    struct mu_span rest = text;
    uint64_t number = 0;
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
    /* The state is field 3; the start is field 22. */
    for (int field = 4; field <= 22; field++) {
        while (rest.len != 0 && (rest.data[0] == ' ' || rest.data[0] == '-')) {
            rest = mu_span_skip(rest, 1);
        }
        if (!take_number(&rest, &number)) {
            return false;
        }
    }
    ret->start = number;
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
