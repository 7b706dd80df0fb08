#include "cli/cli_lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "api/lock.h"

static const char *variable(const char *name)
{
    const char *value = getenv(name);

    return value == NULL || value[0] == '\0' ? NULL : value;
}

/* A process that has a credential leaves no core file, and other processes of the same user cannot
 * read its memory. Programs that it starts are not restricted. */
static void keep_secrets(void)
{
    (void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

/* A service whose unit says LoadCredential=muster.token has the token in a file of its own. Without
 * a stored token there is no file. */
static const char *find_passed_token(struct cli_lock *lock)
{
    const char *directory = variable("CREDENTIALS_DIRECTORY");
    int len = directory == NULL
                  ? 0
                  : snprintf(lock->passed, sizeof(lock->passed), "%s/muster.token", directory);

    return len > 0 && (size_t)len < sizeof(lock->passed) && access(lock->passed, F_OK) == 0
               ? lock->passed
               : NULL;
}

const struct muster_lock *cli_lock_of(struct cli_lock *lock)
{
    struct muster_lock *l = &lock->whole;
    const char *insecure = variable("MUSTER_INSECURE");

    *l = lock->lock;
    l->size = sizeof(*l); /* the options filled in the rest */
    /* A credential comes from one place: half of one and half of another do not make a
     * credential. */
    if (l->token_file == NULL && l->cert == NULL && l->key == NULL && l->ca == NULL) {
        l->token_file = variable("MUSTER_TOKEN_FILE");
        l->cert = variable("MUSTER_TLS_CERT");
        l->key = variable("MUSTER_TLS_KEY");
        l->ca = variable("MUSTER_TLS_CA");
    }
    if (l->token_file == NULL && l->cert == NULL && l->key == NULL && l->ca == NULL) {
        l->token_file = find_passed_token(lock);
    }
    if (l->token_file != NULL || l->key != NULL) {
        keep_secrets();
    }
    l->insecure = l->insecure || (insecure != NULL && strcmp(insecure, "0") != 0);
    lock->ranges = lock->allow != NULL ? lock->allow : variable("MUSTER_ALLOW");
    /* The library splits the list at its commas. */
    l->allow = &lock->ranges;
    l->allow_count = lock->ranges == NULL ? 0 : 1;
    return l;
}

bool cli_lock_lets_in(struct cli_lock *lock)
{
    const struct muster_lock *l = cli_lock_of(lock);

    return l->token_file != NULL || l->cert != NULL || l->insecure;
}

int cli_runtime_new(struct cli_lock *lock, muster_runtime **ret_runtime)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();
    int err;

    config.lock = cli_lock_of(lock);
    err = muster_runtime_new_with(&config, ret_runtime);
    return err == 0 ? 0 : cli_fail(cli_exit_code(err), "cannot start: %s", muster_errmsg());
}

int cli_read_token(const char *path, char *token, size_t cap)
{
    char text[MU_LOCK_TOKEN_CAP];
    struct mu_errmsg note = {{0}};
    struct mu_errmsg msg = {{0}};
    int err;

    keep_secrets();
    err = mu_lock_read_token(path, text, &note, &msg);

    if (err != 0 || strlen(text) >= cap) {
        return cli_fail(CLI_FAILED, "%s", err != 0 ? msg.text : "the token is too long");
    }
    memcpy(token, text, strlen(text) + 1);
    explicit_bzero(text, sizeof(text));
    return 0;
}
