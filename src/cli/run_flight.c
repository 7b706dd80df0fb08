#include "cli/run_flight.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FOLDER "/tmp/"
#define NAME   "muster-flight-"

void run_flight_begin(struct run_flight *f, uint64_t random)
{
    f->path[0] = '\0';
    if (access(FOLDER, W_OK | X_OK) == 0) {
        (void)snprintf(f->path, sizeof(f->path), FOLDER NAME "%016" PRIx64 "-", random);
    }
}

void run_flight_end(struct run_flight *f, bool keep_dumps)
{
    const char *prefix = f->path + sizeof(FOLDER) - 1;
    struct dirent *entry;
    DIR *dir = f->path[0] == '\0' ? NULL : opendir(FOLDER);

    if (dir == NULL) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        const char *end = strrchr(entry->d_name, '.');

        if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
            (!keep_dumps || (end != NULL && strcmp(end, ".pipe") == 0))) {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    (void)closedir(dir);
    f->path[0] = '\0';
}
