#include "cli/cli_python.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static bool has(const char *folder, const char *name, int mode)
{
    char path[PATH_MAX];

    return snprintf(path, sizeof(path), "%s/%s", folder, name) < PATH_MAX &&
           access(path, mode) == 0;
}

bool cli_python_beside(const char *program, char ret[PATH_MAX])
{
    const char *slash = strrchr(program, '/');
    char folder[PATH_MAX];
    char bin[PATH_MAX];

    if (slash == NULL || slash - program >= PATH_MAX - 1) {
        return false;
    }
    (void)snprintf(folder, sizeof(folder), "%.*s/", (int)(slash - program), program);
    return realpath(folder, bin) != NULL &&
           (has(bin, "../pyvenv.cfg", R_OK) || has(bin, "../conda-meta", R_OK)) &&
           has(bin, "python3", X_OK) && snprintf(ret, PATH_MAX, "%s/python3", bin) < PATH_MAX;
}

const char *cli_python(void)
{
    static char path[PATH_MAX];
    /* The path that execve() was given; the kernel keeps it on our stack. */
    const char *called = (const char *)getauxval(AT_EXECFN);

    return called != NULL && cli_python_beside(called, path) ? path : "python3";
}
