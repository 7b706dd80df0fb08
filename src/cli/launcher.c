/*
 * The program `muster` of a wheel or an archive: finds the library that it was made with, which has
 * the command inside (in_library.c), and runs that. The places are relative to where this file
 * really is, so that a tree may be moved, and a link to the program may stand anywhere:
 *
 *     bin/muster    lib/python3.11/site-packages/muster/libmuster.so.0    a wheel in a venv
 *     bin/muster    muster/libmuster.so.0                                 a wheel in --target
 *     bin/muster    lib/libmuster.so.0                                    an archive
 *     muster        libmuster.so.0                                        where they are built
 *
 * Another version's library may be in such a place, for another Python, say, or one without the
 * command: these are passed over.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <muster/version.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libmuster.so.0"

typedef int command_fn(int argc, char **argv);
typedef const char *version_fn(void);

static void *find_function(void *library, const char *name)
{
    return library == NULL ? NULL : dlsym(library, name);
}

/* The command in the library at this path; NULL if it is not there, or not the one. */
static command_fn *open_library(const char *path)
{
    void *library = access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *found[2] = {find_function(library, "muster_version"),
                      find_function(library, "muster_command_run")};
    version_fn *version;
    command_fn *command;

    /* ISO C has no cast from a pointer to a function, and POSIX no other way. */
    memcpy(&version, &found[0], sizeof(version));
    memcpy(&command, &found[1], sizeof(command));
    if (version != NULL && command != NULL && strcmp(version(), MUSTER_VERSION) == 0) {
        return command;
    }
    if (library != NULL) {
        (void)dlclose(library);
    }
    return NULL;
}

static command_fn *try_place(const char *bin, const char *place)
{
    char path[2 * PATH_MAX];
    int n = snprintf(path, sizeof(path), "%s/%s/" LIBRARY, bin, place);

    return n > 0 && (size_t)n < sizeof(path) ? open_library(path) : NULL;
}

/* Looks through the folders of Pythons below `lib`, which is relative to `bin`. */
static command_fn *try_pythons(const char *bin, const char *lib)
{
    static const char *const packages[] = {"site-packages/muster", "dist-packages/muster",
                                           "muster"}; /* the last: --home */
    char path[2 * PATH_MAX];
    command_fn *command = NULL;
    struct dirent *entry;
    DIR *folder;

    (void)snprintf(path, sizeof(path), "%s/%s", bin, lib);
    folder = opendir(path);
    while (folder != NULL && command == NULL && (entry = readdir(folder)) != NULL) {
        if (strncmp(entry->d_name, "python", 6) == 0 || strncmp(entry->d_name, "pypy", 4) == 0) {
            for (size_t i = 0; command == NULL && i < sizeof(packages) / sizeof(packages[0]); i++) {
                char place[PATH_MAX];

                (void)snprintf(place, sizeof(place), "%s/%s/%s", lib, entry->d_name, packages[i]);
                command = try_place(bin, place);
            }
        }
    }
    if (folder != NULL) {
        (void)closedir(folder);
    }
    return command;
}

int main(int argc, char **argv)
{
    static const char *const places[] = {"../muster", "../lib", "."};
    char bin[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", bin, sizeof(bin) - 1);
    command_fn *command;
    char *slash;

    if (len < 0) {
        perror("muster: cannot read /proc/self/exe, so the library cannot be found");
        return EXIT_FAILURE;
    }
    bin[len] = '\0';
    slash = strrchr(bin, '/');
    *(slash != NULL ? slash : bin) = '\0';
    command = try_pythons(bin, "../lib");
    command = command != NULL ? command : try_pythons(bin, "../lib64");
    for (size_t i = 0; command == NULL && i < sizeof(places) / sizeof(places[0]); i++) {
        command = try_place(bin, places[i]);
    }
    if (command == NULL) {
        fprintf(stderr,
                "muster: " LIBRARY " of muster " MUSTER_VERSION
                " is not in the folders beside %s: install the package again\n",
                bin);
        return EXIT_FAILURE;
    }
    return command(argc, argv);
}
