#include "cli/run_torch.h"

#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_CAP 4096

/* --- the interpreter -------------------------------------------------------------------------- */

static const char *base_of(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static bool is_python(const char *program)
{
    return strncmp(base_of(program), "python", 6) == 0;
}

/* Finds a program as execvp() does. */
static bool find_program(const char *name, const char *path, char ret[PATH_CAP])
{
    if (strchr(name, '/') != NULL) {
        return snprintf(ret, PATH_CAP, "%s", name) < PATH_CAP && access(ret, X_OK) == 0;
    }
    for (path = path == NULL ? "/usr/local/bin:/usr/bin:/bin" : path;;) {
        size_t len = strcspn(path, ":");

        if (snprintf(ret, PATH_CAP, "%.*s%s%s", (int)len, path, len == 0 ? "" : "/", name) <
                PATH_CAP &&
            access(ret, X_OK) == 0) {
            return true;
        }
        if (path[len] == '\0') {
            return false;
        }
        path += len + 1;
    }
}

/* Reads the interpreter from the first line of a script, such as "#!/usr/bin/env python3". */
static bool read_first_line(const char *script, char ret[PATH_CAP])
{
    FILE *file = fopen(script, "re");
    char line[PATH_CAP];
    const char *at = line + 2;
    bool ok =
        file != NULL && fgets(line, sizeof(line), file) != NULL && strncmp(line, "#!", 2) == 0;

    if (file != NULL) {
        (void)fclose(file);
    }
    while (ok) {
        at += strspn(at, " \t");
        (void)snprintf(ret, PATH_CAP, "%.*s", (int)strcspn(at, " \t\r\n"), at);
        if (is_python(ret) || ret[0] == '\0') {
            break;
        }
        at += strlen(ret); /* env, or one of its options */
    }
    return ok && ret[0] != '\0';
}

/* Finds the interpreter of a command, as a path. */
static bool find_python(const char *program, const char *path, char ret[PATH_CAP])
{
    char script[PATH_CAP];
    char name[PATH_CAP];

    if (is_python(program)) {
        return find_program(program, path, ret);
    }
    return find_program(program, path, script) && read_first_line(script, name) &&
           find_program(name, path, ret);
}

/* --- torch ------------------------------------------------------------------------------------ */

/* Reads __version__ = '2.11.0+cu130' from torch/version.py in a folder of packages. */
static bool read_version(const char *folder, size_t len, struct run_torch *ret)
{
    char text[PATH_CAP];
    FILE *file = NULL;
    bool found = false;

    if (snprintf(text, sizeof(text), "%.*s/torch/version.py", (int)len, folder) < PATH_CAP) {
        file = fopen(text, "re");
    }
    while (file != NULL && !found && fgets(text, sizeof(text), file) != NULL) {
        found = sscanf(text, "__version__ = %*['\"]%d.%d", &ret->major, &ret->minor) == 2;
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return found;
}

/* Looks into all folders that fit a pattern below a prefix. */
static bool look_below(const char *prefix, const char *pattern, struct run_torch *ret)
{
    char path[PATH_CAP];
    glob_t folders;
    bool found = false;

    if (snprintf(path, sizeof(path), "%s/%s", prefix, pattern) >= PATH_CAP ||
        glob(path, GLOB_NOSORT, NULL, &folders) != 0) {
        return false;
    }
    for (size_t i = 0; i < folders.gl_pathc && !found; i++) {
        found = read_version(folders.gl_pathv[i], strlen(folders.gl_pathv[i]), ret);
    }
    globfree(&folders);
    return found;
}

/* Cuts "/x/bin/python3" to "/x". */
static bool cut_to_prefix(char path[PATH_CAP])
{
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(path, '/');

        if (slash == NULL) {
            return false;
        }
        *slash = '\0';
    }
    return true;
}

/* Whether a virtual environment is at the prefix, and whether it lets the system's packages in. */
static bool is_venv(const char *prefix, bool *ret_open)
{
    char line[PATH_CAP];
    FILE *file = NULL;

    *ret_open = true;
    if (snprintf(line, sizeof(line), "%s/pyvenv.cfg", prefix) < PATH_CAP) {
        file = fopen(line, "re");
    }
    if (file == NULL) {
        return false;
    }
    *ret_open = false;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, "include-system-site-packages", 28) == 0) {
            *ret_open = strstr(line, "true") != NULL;
        }
    }
    (void)fclose(file);
    return true;
}

static bool look_in_pythonpath(const char *path, struct run_torch *ret)
{
    while (path != NULL && *path != '\0') {
        size_t len = strcspn(path, ":");

        if (len != 0 && read_version(path, len, ret)) {
            return true;
        }
        path += len;
        path += *path == ':' ? 1 : 0;
    }
    return false;
}

/* Looks where an interpreter that is no virtual environment's has its packages. Its own version is
 * in the name of the file that it is: python3.11. */
static bool look_in_system(const char *real, const struct run_torch_env *env, struct run_torch *ret)
{
    char prefix[PATH_CAP];
    char version[16] = "";
    char packages[64];
    char user[64];

    (void)sscanf(base_of(real), "python%15[0-9.]", version);
    if (strchr(version, '.') == NULL) {
        (void)snprintf(version, sizeof(version), "3*");
    }
    (void)snprintf(packages, sizeof(packages), "lib*/python%s/*-packages", version);
    (void)snprintf(user, sizeof(user), ".local/lib/python%s/site-packages", version);
    (void)snprintf(prefix, sizeof(prefix), "%s", real);
    return (env->userbase != NULL ? look_below(env->userbase, user + 7, ret)
            : env->home != NULL   ? look_below(env->home, user, ret)
                                  : false) ||
           (cut_to_prefix(prefix) &&
            ((strcmp(prefix, "/usr") == 0 && look_below("/usr/local", packages, ret)) ||
             look_below(prefix, packages, ret) ||
             look_below(prefix, "lib/python3/dist-packages", ret)));
}

struct run_torch run_torch_find(const char *const *argv, const struct run_torch_env *env)
{
    struct run_torch torch = {0};
    char python[PATH_CAP];
    char real[PATH_MAX];
    bool is_open;

    if (argv[0] == NULL || !find_python(argv[0], env->path, python) ||
        look_in_pythonpath(env->pythonpath, &torch)) {
        return torch;
    }
    if (realpath(python, real) == NULL || !cut_to_prefix(python)) {
        return torch;
    }
    if (is_venv(python, &is_open) && look_below(python, "lib*/python3*/site-packages", &torch)) {
        return torch;
    }
    if (is_open) {
        (void)look_in_system(real, env, &torch);
    }
    return torch;
}

bool run_torch_is_old(struct run_torch torch)
{
    return torch.major == 1 || (torch.major == 2 && torch.minor < 2);
}

bool run_torch_renamed_flight(struct run_torch torch)
{
    return torch.major > 2 || (torch.major == 2 && torch.minor >= 9);
}
