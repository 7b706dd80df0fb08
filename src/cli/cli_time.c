#include "cli/cli_time.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>

static bool begun;
static struct timespec began;

void cli_time_begin(void)
{
    begun = true;
    (void)clock_gettime(CLOCK_BOOTTIME, &began);
}

const char *cli_time_stamp(char buf[CLI_TIME_CAP])
{
    struct timespec now;
    struct tm local;
    size_t len;

    buf[0] = '\0';
    if (begun && clock_gettime(CLOCK_REALTIME, &now) == 0 &&
        localtime_r(&now.tv_sec, &local) != NULL) {
        len = strftime(buf, CLI_TIME_CAP, "%Y-%m-%d %H:%M:%S", &local);
        (void)snprintf(buf + len, CLI_TIME_CAP - len, ".%03d ",
                       (int)(now.tv_nsec / 1000000 % 1000));
    }
    return buf;
}

uint64_t cli_time_since(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_BOOTTIME, &now);
    return (uint64_t)((int64_t)(now.tv_sec - began.tv_sec) * 1000 +
                      (now.tv_nsec - began.tv_nsec) / 1000000);
}

const char *cli_time_took(char buf[CLI_TIME_CAP], uint64_t ms)
{
    uint64_t s = ms / 1000;

    if (s < 60) {
        (void)snprintf(buf, CLI_TIME_CAP, "%" PRIu64 ".%" PRIu64 " s", s, ms % 1000 / 100);
    } else if (s < 3600) {
        (void)snprintf(buf, CLI_TIME_CAP, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    } else if (s < 86400) {
        (void)snprintf(buf, CLI_TIME_CAP, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
    } else {
        (void)snprintf(buf, CLI_TIME_CAP, "%" PRIu64 " d %" PRIu64 " h", s / 86400,
                       s % 86400 / 3600);
    }
    return buf;
}
