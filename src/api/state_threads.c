/* Copies of many bytes, on several threads: one thread uses a fraction of a machine's bandwidth. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "api/state_api.h"

/* What a thread takes at a time: large enough to be worth a look at a shared number. */
#define PIECE ((uint64_t)4 << 20)
/* Beyond so many the memory is the limit. */
#define THREADS_MAX 16

struct work {
    const struct mu_state_put *moves;
    size_t count;
    atomic_uint_fast64_t next; /* the number of the next piece, over all moves */
};

static uint64_t pieces_of(uint64_t len)
{
    return len / PIECE + (len % PIECE != 0);
}

/* Each thread walks the moves once, and copies the pieces that it has drawn. */
static void *run(void *arg)
{
    struct work *w = arg;
    uint64_t mine = atomic_fetch_add(&w->next, 1);
    uint64_t before = 0; /* pieces of the moves before this one */

    for (size_t i = 0; i < w->count; i++) {
        const struct mu_state_put *m = &w->moves[i];
        uint64_t here = pieces_of(m->len);

        while (mine < before + here) {
            uint64_t at = (mine - before) * PIECE;
            uint64_t len = m->len - at < PIECE ? m->len - at : PIECE;

            memcpy(m->to + at, m->from + at, (size_t)len);
            mine = atomic_fetch_add(&w->next, 1);
        }
        before += here;
    }
    return NULL;
}

/* The workers of a node copy at the same time. */
static uint64_t threads_that_help(void)
{
    const char *text = getenv("LOCAL_WORLD_SIZE");
    long workers = text == NULL ? 1 : strtol(text, NULL, 10);
    cpu_set_t set;
    uint64_t cpus = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0) {
        cpus = (uint64_t)CPU_COUNT(&set);
    }
    cpus = workers > 1 ? cpus / (uint64_t)workers : cpus;
    return cpus == 0 ? 1 : cpus;
}

void mu_state_put_all(const struct mu_state_put *moves, size_t count, uint64_t threads)
{
    struct work w = {.moves = moves, .count = count};
    pthread_t others[THREADS_MAX - 1];
    uint64_t pieces = 0;
    unsigned started = 0;

    for (size_t i = 0; i < count; i++) {
        pieces += pieces_of(moves[i].len);
    }
    threads = threads == 0 ? threads_that_help() : threads;
    threads = threads > THREADS_MAX ? THREADS_MAX : threads;
    threads = threads > pieces ? pieces : threads;
    while (started + 1 < threads && pthread_create(&others[started], NULL, run, &w) == 0) {
        started++;
    }
    (void)run(&w);
    while (started > 0) {
        (void)pthread_join(others[--started], NULL);
    }
}
