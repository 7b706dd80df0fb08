/* muster p2pd -install and -uninstall: puts this program in the place of hivemind's daemon, and
 * back. */
#include "cli/cmd_p2pd.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cli_python.h"

extern char **environ;

#define OLD ".hivemind" /* behind the name of hivemind's own daemon, while ours is in its place */
#define NEW ".muster"   /* behind the name of ours, until it is complete */

/* Where the daemon is in the package, and beside it. A name that is cut off is refused. */
struct place {
    char python[PATH_MAX]; /* the interpreter that was asked */
    char path[PATH_MAX];
    char old[PATH_MAX + sizeof(OLD)];
    char fresh[PATH_MAX + sizeof(NEW)];
};

/* --- the package ------------------------------------------------------------------------------ */

/* Finds the package as an import would, but does not import it: that would load PyTorch. */
static const char script[] =
    "import importlib.util, os, sys\n"
    "spec = importlib.util.find_spec('hivemind')\n"
    "places = (spec.submodule_search_locations if spec else None) or []\n"
    "print(sys.executable)\n"
    "print(next((os.path.abspath(p) for p in places if os.path.isdir(os.path.join(p, "
    "'hivemind_cli'))), ''))\n";

/* Runs Python and reads its two lines. Returns 0, an errno, or -1: it failed and has said why. */
static int ask_python(const char *python, char *text, size_t cap)
{
    const char *const args[] = {python, "-c", script, NULL};
    posix_spawn_file_actions_t actions;
    size_t len = 0;
    ssize_t n = 1;
    int status = 0;
    pid_t pid;
    int ends[2];
    int err;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        return errno;
    }
    (void)posix_spawn_file_actions_init(&actions);
    (void)posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    err = posix_spawnp(&pid, args[0], &actions, NULL, (char *const *)args, environ);
    (void)posix_spawn_file_actions_destroy(&actions);
    (void)close(ends[1]);
    while (err == 0 && n != 0 && len < cap - 1) {
        n = read(ends[0], text + len, cap - 1 - len);
        if (n < 0 && errno != EINTR) {
            break;
        }
        len += n > 0 ? (size_t)n : 0;
    }
    text[len] = '\0';
    (void)close(ends[0]);
    while (err == 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return err != 0 ? err : status == 0 ? 0 : -1;
}

static int find_place(struct place *p)
{
    char text[2 * PATH_MAX + 2];
    const char *python = cli_python();
    char *folder;
    int err = ask_python(python, text, sizeof(text));

    if (err != 0) {
        return err < 0
                   ? p2pd_fail(CLI_FAILED, "%s could not be asked for its packages", python)
                   : p2pd_fail(CLI_FAILED,
                               "%s cannot be run (%s); put the Python that has hivemind into PATH "
                               "under the name python3",
                               python, strerror(err));
    }
    folder = strchr(text, '\n');
    if (folder == NULL || folder - text >= (ptrdiff_t)sizeof(p->python)) {
        return p2pd_fail(CLI_FAILED, "%s gave an answer that cannot be read", python);
    }
    *folder++ = '\0';
    folder[strcspn(folder, "\n")] = '\0';
    memcpy(p->python, text, (size_t)(folder - text));
    if (*folder == '\0') {
        return p2pd_fail(CLI_FAILED,
                         "%s has no hivemind package; activate the environment that has it, or "
                         "install it: %s -m pip install hivemind",
                         p->python, p->python);
    }
    if (snprintf(p->path, sizeof(p->path), "%s/hivemind_cli/p2pd", folder) >=
        (int)sizeof(p->path)) {
        return p2pd_fail(CLI_FAILED, "the path of the hivemind package is too long: %s", folder);
    }
    (void)snprintf(p->old, sizeof(p->old), "%s" OLD, p->path);
    (void)snprintf(p->fresh, sizeof(p->fresh), "%s" NEW, p->path);
    return 0;
}

/* --- programs --------------------------------------------------------------------------------- */

enum kind { NOTHING, OURS, ANOTHER };

/* Every p2pd of muster has this in it, and no other program does. */
static enum kind kind_of(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum kind kind = NOTHING;
    struct stat st;

    if (fd < 0 || fstat(fd, &st) != 0) {
        kind = fd < 0 && (errno == ENOENT || errno == ELOOP) ? NOTHING : ANOTHER;
    } else if (st.st_size > 0) {
        void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);

        kind = data != MAP_FAILED &&
                       memmem(data, (size_t)st.st_size, P2PD_AGENT, strlen(P2PD_AGENT)) != NULL
                   ? OURS
                   : ANOTHER;
        if (data != MAP_FAILED) {
            (void)munmap(data, (size_t)st.st_size);
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return kind;
}

static int fail_in(const struct place *p, const char *path, int err)
{
    bool denied = err == EACCES || err == EPERM || err == EROFS;

    return p2pd_fail(CLI_FAILED, "cannot write %s: %s%s%s%s", path, strerror(err),
                     denied ? "; run this as the user who owns the packages of " : "",
                     denied ? p->python : "",
                     denied ? ", or use a virtual environment of your own" : "");
}

#ifdef MU_COMMAND_IN_LIBRARY
/* This program works only beside its library, so a script starts it from there. The quotes of a
 * shell end at a quote, which is then written as four characters. */
static int write_self(int to)
{
    char path[PATH_MAX];
    ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 1);
    FILE *out = len < 0 ? NULL : fdopen(dup(to), "w");

    if (out == NULL) {
        return errno;
    }
    (void)fputs("#!/bin/sh\n# " P2PD_AGENT ": starts muster where hivemind has its daemon.\nexec '",
                out);
    for (ssize_t i = 0; i < len; i++) {
        (void)(path[i] == '\'' ? fputs("'\\''", out) : fputc(path[i], out));
    }
    (void)fputs("' p2pd \"$@\"\n", out);
    return fclose(out) == 0 ? 0 : errno;
}
#else
static int write_self(int to)
{
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st;
    off_t at = 0;
    int err = from < 0 || fstat(from, &st) != 0 ? errno : 0;

    while (err == 0 && at < st.st_size) {
        ssize_t n = sendfile(to, from, &at, (size_t)(st.st_size - at));

        err = n < 0 && errno != EINTR ? errno : n == 0 ? EIO : 0;
    }
    if (from >= 0) {
        (void)close(from);
    }
    return err;
}
#endif

/* Copies this program. A link would let hivemind's setup.py, which writes a downloaded daemon to
 * that path, write over muster itself. */
static int copy_self(const struct place *p)
{
    int to;
    int err;

    (void)unlink(p->fresh);
    to = open(p->fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    err = to < 0 ? errno : write_self(to);
    if (err == 0 && (fchmod(to, 0755) != 0 || fsync(to) != 0)) {
        err = errno;
    }
    if (to >= 0 && close(to) != 0 && err == 0) {
        err = errno;
    }
    if (err != 0) {
        if (to >= 0) {
            (void)unlink(p->fresh);
        }
        return fail_in(p, p->fresh, err);
    }
    return 0;
}

/* --- verbs ------------------------------------------------------------------------------------ */

static int install(const struct place *p)
{
    enum kind there = kind_of(p->path);
    int code = copy_self(p);

    if (code != 0) {
        return code;
    }
    if ((there == ANOTHER && rename(p->path, p->old) != 0) || rename(p->fresh, p->path) != 0) {
        int err = errno;

        (void)unlink(p->fresh);
        if (there == ANOTHER && access(p->path, F_OK) != 0) {
            (void)rename(p->old, p->path);
        }
        return fail_in(p, p->path, err);
    }
    printf("%s is muster %s now%s%s\n", p->path, MUSTER_VERSION,
           there == ANOTHER ? "; hivemind's own is kept as " : "", there == ANOTHER ? p->old : "");
    return CLI_OK;
}

static int uninstall(const struct place *p)
{
    if (kind_of(p->path) == ANOTHER) {
        printf("%s is not muster's: nothing to do\n", p->path);
        return CLI_OK;
    }
    if (rename(p->old, p->path) == 0) {
        printf("%s is hivemind's own again\n", p->path);
        return CLI_OK;
    }
    return errno != ENOENT
               ? fail_in(p, p->path, errno)
               : p2pd_fail(
                     CLI_FAILED,
                     "%s does not exist, so there is nothing to bring back; %s -m pip install "
                     "--force-reinstall --no-deps hivemind brings hivemind's own daemon",
                     p->old, p->python);
}

int p2pd_install(bool in)
{
    struct place p;
    int code = find_place(&p);

    return code != 0 ? code : in ? install(&p) : uninstall(&p);
}
