/*
 * Feeds every file of the given corpus directories to one fuzz target, in the order of their names.
 *
 * Goal: whatever a fuzzer once found stays fixed, without a fuzzer at hand. Method: the target's
 * LLVMFuzzerTestOneInput() is called on each file's bytes; a crash or a sanitizer's report is the
 * failure, and the file being replayed is the last line printed. A corpus without a single file is
 * a failure too, as it would prove nothing.
 */
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat status;
    uint8_t *data = NULL;
    size_t len = 0;
    int result = -1;

    if (file == NULL || fstat(fileno(file), &status) != 0) {
        (void)fprintf(stderr, "cannot read '%s': %s\n", path, strerror(errno));
        goto out;
    }
    /* A block of exactly this size, so that a sanitizer sees a read one byte past the end. */
    len = (size_t)status.st_size;
    data = malloc(len == 0 ? 1 : len);
    if (data == NULL || fread(data, 1, len, file) != len) {
        (void)fprintf(stderr, "cannot read '%s' whole\n", path);
        goto out;
    }
    (void)printf("%s\n", path);
    (void)fflush(stdout);
    (void)LLVMFuzzerTestOneInput(data, len);
    result = 0;
out:
    free(data);
    if (file != NULL) {
        (void)fclose(file);
    }
    return result;
}

/** Returns how many files were replayed, or -1. */
static int replay_directory(const char *directory)
{
    struct dirent **entries = NULL;
    int count = scandir(directory, &entries, NULL, alphasort);
    int replayed = 0;

    if (count < 0) {
        (void)fprintf(stderr, "cannot read the corpus '%s': %s\n", directory, strerror(errno));
        return -1;
    }
    for (int i = 0; i < count; i++) {
        char path[4096];
        int len = snprintf(path, sizeof(path), "%s/%s", directory, entries[i]->d_name);

        if (entries[i]->d_name[0] != '.' && replayed >= 0) {
            if (len < 0 || (size_t)len >= sizeof(path) || replay_file(path) != 0) {
                replayed = -1;
            } else {
                replayed++;
            }
        }
        free(entries[i]);
    }
    free(entries);
    return replayed;
}

int main(int argc, char **argv)
{
    int total = 0;

    for (int i = 1; i < argc; i++) {
        int replayed = replay_directory(argv[i]);

        if (replayed < 0) {
            return 1;
        }
        total += replayed;
    }
    if (total == 0) {
        (void)fprintf(stderr, "usage: replay CORPUS-DIRECTORY...; there was nothing to replay\n");
        return 1;
    }
    (void)printf("%d inputs replayed\n", total);
    return 0;
}
