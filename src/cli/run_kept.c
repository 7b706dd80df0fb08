#include "cli/run_kept.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define VARIABLE  "MUSTER_KEEP"
#define RUN_MAX   64
#define START_ROW 19 /* of /proc/self/stat, counted from the state that follows the name */

/* When this process started, as /proc has it; 0 if it cannot be read. */
static uint64_t read_start(void)
{
    char text[2048];
    FILE *file = fopen("/proc/self/stat", "re");
    size_t len = file == NULL ? 0 : fread(text, 1, sizeof(text) - 1, file);
    const char *at;

    if (file != NULL) {
        (void)fclose(file);
    }
    text[len] = '\0';
    at = strrchr(text, ')'); /* The name before it may have spaces and brackets. */
    for (int i = 0; at != NULL && i <= START_ROW; i++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? 0 : strtoull(at + 1, NULL, 10);
}

void run_kept_begin(struct run_kept *k, const char *run_id)
{
    char run[RUN_MAX + 1];
    struct stat namespace;
    uint64_t start = read_start();
    size_t n;

    *k = (struct run_kept){.path = ""};
    for (n = 0; n < RUN_MAX && run_id[n] != '\0'; n++) {
        run[n] = (char)(isalnum((unsigned char)run_id[n]) || run_id[n] == '-' ? run_id[n] : '_');
    }
    run[n] = '\0';
    if (start == 0 || stat("/proc/self/ns/pid", &namespace) != 0 || access("/dev/shm", W_OK) != 0) {
        (void)unsetenv(VARIABLE);
        return;
    }
    (void)snprintf(k->path, sizeof(k->path), "/dev/shm/muster-%u/%s.%ju.%d.%" PRIu64,
                   (unsigned)geteuid(), run, (uintmax_t) namespace.st_ino, (int)getpid(), start);
    (void)setenv(VARIABLE, k->path, 1);
}

void run_kept_end(struct run_kept *k)
{
    struct stat found;
    struct dirent *entry;
    DIR *dir = NULL;
    int fd = k->path[0] == '\0' ? -1 : open(k->path, O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd >= 0 && fstat(fd, &found) == 0 && found.st_uid == geteuid()) {
        dir = fdopendir(fd);
    }
    if (dir == NULL) {
        if (fd >= 0) {
            (void)close(fd);
        }
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        (void)unlinkat(fd, entry->d_name, 0); /* A directory stays, and the rmdir below fails. */
    }
    (void)closedir(dir);
    (void)rmdir(k->path);
    k->path[0] = '\0';
}
