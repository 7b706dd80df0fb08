/* Preloaded into a program, this puts the program's clocks ahead by numbers of nanoseconds that are
 * in the file named by MUSTER_TEST_CLOCK, also when these change while the program runs: first the
 * wall clock's, then that of the clocks which count from the start of the machine (two times eight
 * bytes, as the machine has them). A wait that is under way, or until a time of day, is as long as
 * it was.
 *
 * It is not libfaketime, which makes clock_nanosleep() fail when it leaves the monotonic clock
 * alone, opens a file for each look at the clock and leaves others behind in /dev/shm. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000ll

static const volatile int64_t *ahead_ns; /* of the wall clock, and since the start */
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void)
{
    *(void **)&real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("MUSTER_TEST_CLOCK");
    int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    void *bytes = mmap(NULL, 2 * sizeof *ahead_ns, PROT_READ, MAP_SHARED, file, 0);
    if (bytes != MAP_FAILED)
        ahead_ns = bytes;
    close(file);
}

static void move(struct timespec *now, int64_t by_ns)
{
    int64_t moved = (int64_t)now->tv_sec * SECOND_NS + now->tv_nsec + by_ns;
    *now = (struct timespec){.tv_sec = moved / SECOND_NS, .tv_nsec = moved % SECOND_NS};
}

int clock_gettime(clockid_t clock, struct timespec *ret_now)
{
    if (real_clock_gettime == NULL) /* another library's constructor came first */
        begin();
    int error = real_clock_gettime(clock, ret_now);
    if (error != 0 || ahead_ns == NULL)
        return error;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        move(ret_now, ahead_ns[0]);
    else if (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE ||
             clock == CLOCK_MONOTONIC_RAW || clock == CLOCK_BOOTTIME)
        move(ret_now, ahead_ns[1]);
    return 0;
}

int gettimeofday(struct timeval *restrict ret_now, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *ret_now = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

int timespec_get(struct timespec *ret_now, int base)
{
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, ret_now) == 0 ? base : 0;
}

time_t time(time_t *ret_now)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (ret_now != NULL)
        *ret_now = now.tv_sec;
    return now.tv_sec;
}
