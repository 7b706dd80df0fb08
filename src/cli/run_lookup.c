#include "cli/run_lookup.h"

#include <stdio.h>
#include <time.h>

#include "cli/cli_log.h"
#include "cli/cli_time.h"

#define LOOKUP_S 2

static void *watch(void *context)
{
    static const char text[] = "looking up the name in --rdzv-endpoint takes long: do the name "
                               "servers of this host (/etc/resolv.conf) answer?";
    struct run_lookup *l = context;
    char stamp[CLI_TIME_CAP];
    struct timespec until;

    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOOKUP_S;
    (void)pthread_mutex_lock(&l->mutex);
    while (!l->is_over && pthread_cond_timedwait(&l->over, &l->mutex, &until) == 0) {
    }
    if (!l->is_over && cli_log_is_json()) {
        cli_log_tell(MUSTER_LOG_WARN, "RUN", -1, NULL, "%s", text);
    } else if (!l->is_over) {
        (void)fprintf(stderr, "%smuster: %s\n", cli_time_stamp(stamp), text);
    }
    (void)pthread_mutex_unlock(&l->mutex);
    return NULL;
}

void run_lookup_begin(struct run_lookup *l)
{
    *l = (struct run_lookup){.mutex = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
    l->started = pthread_create(&l->thread, NULL, watch, l) == 0;
}

void run_lookup_end(struct run_lookup *l)
{
    (void)pthread_mutex_lock(&l->mutex);
    l->is_over = true;
    (void)pthread_cond_signal(&l->over);
    (void)pthread_mutex_unlock(&l->mutex);
    if (l->started) {
        (void)pthread_join(l->thread, NULL);
    }
}
