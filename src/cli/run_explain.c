#include "cli/run_explain.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "transport/memory_limit.h"

#define PATH_BYTES 512 /* of a path in a sentence; a longer one is cut */

/* --- memory ----------------------------------------------------------------------------------- */

void run_explain_begin(struct run_explain *e)
{
    struct mu_memory_groups groups;

    mu_memory_groups("", &groups);
    e->kills = groups.kills;
}

static const char *describe_bytes(uint64_t bytes, char *out, size_t cap)
{
    double mib = (double)bytes / (1 << 20);

    (void)snprintf(out, cap, mib < 1024 ? "%.0f MiB" : "%.1f GiB", mib < 1024 ? mib : mib / 1024);
    return out;
}

/* Whether the kernel has killed for lack of memory since the workers were started. */
static bool explain_memory(const struct run_explain *e, const struct mu_agent_worker_end *end,
                           char *text, size_t cap)
{
    struct mu_memory_groups groups;
    bool killed = end->exit_code == -SIGKILL;
    uint64_t machine = mu_memory_machine();
    char bytes[32];
    char limit[PATH_BYTES + 96];

    mu_memory_groups("", &groups);
    if (groups.kills <= e->kills && !(killed && mu_memory_killed("/dev/kmsg", end->pid))) {
        return false;
    }
    if (groups.limit < machine) {
        (void)snprintf(limit, sizeof(limit), "the limit of the control group %.*s is %s",
                       PATH_BYTES, groups.dir, describe_bytes(groups.limit, bytes, sizeof(bytes)));
    } else {
        (void)snprintf(limit, sizeof(limit), "this machine has %s",
                       describe_bytes(machine, bytes, sizeof(bytes)));
    }
    (void)snprintf(text, cap, "out of memory: the kernel killed %s; %s",
                   killed ? "it" : "a process of this node before that", limit);
    return true;
}

/* --- the interpreter -------------------------------------------------------------------------- */

/* Whether the last words of the worker are about a module that Python did not find or could not
 * load. */
static bool is_import_error(const char *tail)
{
    const char *last = tail;

    for (const char *at = tail; (at = strstr(at, "Traceback (most recent call last)")) != NULL;
         at++) {
        last = at;
    }
    /* The last is what `python3 -m` says, without a traceback. */
    return strstr(last, "\nModuleNotFoundError: ") != NULL ||
           strstr(last, "\nImportError: ") != NULL || strstr(last, ": No module named ") != NULL;
}

/* Finds a program in PATH as the kernel's caller does. */
static void find_program(const char *name, char *out, size_t cap)
{
    const char *path = getenv("PATH");

    (void)snprintf(out, cap, "%s", name);
    if (strchr(name, '/') != NULL || path == NULL) {
        return;
    }
    for (const char *at = path; *at != '\0';) {
        size_t len = strcspn(at, ":");

        (void)snprintf(out, cap, "%.*s/%s", (int)len, at, name);
        if (len != 0 && access(out, X_OK) == 0) {
            return;
        }
        at += len + (at[len] == ':');
    }
    (void)snprintf(out, cap, "%s", name);
}

static void explain_import(const struct run_options *o, char *text, size_t cap)
{
    const char *name = ((const char *const *)o->argv.items)[0];
    const char *named = getenv("PYTHON_EXEC");
    const char *venv = getenv("VIRTUAL_ENV");
    bool by_name = named != NULL && strcmp(named, name) == 0;
    char found[PATH_BYTES];
    int n;

    find_program(name, found, sizeof(found));
    n = snprintf(text, cap, "an import failed in the interpreter %s, ", found);
    if (by_name) {
        n += snprintf(text + n, cap - (size_t)n, "which PYTHON_EXEC names");
    } else if (strchr(name, '/') != NULL) {
        n += snprintf(text + n, cap - (size_t)n,
                      "that beside this command (PYTHON_EXEC names "
                      "another one)");
    } else {
        n += snprintf(text + n, cap - (size_t)n, "the first %s in PATH", name);
    }
    if (venv != NULL && venv[0] != '\0') {
        bool inside = strncmp(found, venv, strlen(venv)) == 0 && found[strlen(venv)] == '/';

        (void)snprintf(text + n, cap - (size_t)n,
                       inside ? " and that of VIRTUAL_ENV" : ", not that of VIRTUAL_ENV (%.256s)",
                       venv);
    }
}

void run_explain(const struct run_explain *e, const struct run_options *o,
                 const struct mu_agent_worker_end *end, const char *tail, char *text, size_t cap)
{
    if (!explain_memory(e, end, text, cap) && !o->no_python && is_import_error(tail)) {
        explain_import(o, text, cap);
    }
}
