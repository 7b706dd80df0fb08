/* The files of the job's credential: read at the start, and again when they are replaced. */
#include "api/lock.h"

#include <string.h>
#include <sys/stat.h>

#include "core/alloc.h"

/* The shortest time between two checks of the files; a new handshake checks them. */
#define LOOK_MS 1000
/* Certificates that expire within WARN_S are logged, at most once in WARN_MS. */
#define WARN_S  (14 * INT64_C(86400))
#define WARN_MS (UINT64_C(86400) * 1000)

#define FILE_COUNT 3

/* What shows that a file was replaced or written to. */
struct stamp {
    dev_t device;
    ino_t number;
    off_t size;
    struct timespec written;
    struct timespec changed;
};

struct mu_lock_files {
    struct mu_env *env;
    struct mu_tls_env *tls;
    char *paths[FILE_COUNT]; /* the token, or certificate, key and authority; NULL: not given */
    char *name;
    bool token;
    struct stamp stamps[FILE_COUNT];  /* of the files in use */
    struct stamp refused[FILE_COUNT]; /* of the files that the log said were refused */
    mu_mono_t look_at;
    mu_mono_t warn_at;
};

/* --- the files as they are now ---------------------------------------------------------------- */

/* False: one of the files is a pipe, or the like, which is read only once; to open it again could
 * block for ever. */
static bool take_stamps(const struct mu_lock_files *f, struct stamp ret[FILE_COUNT])
{
    bool regular = true;

    memset(ret, 0, FILE_COUNT * sizeof(ret[0]));
    for (size_t i = 0; i < FILE_COUNT; i++) {
        struct stat st;

        if (f->paths[i] != NULL && stat(f->paths[i], &st) == 0) {
            regular = regular && S_ISREG(st.st_mode);
            ret[i].device = st.st_dev;
            ret[i].number = st.st_ino;
            ret[i].size = st.st_size;
            ret[i].written = st.st_mtim;
            ret[i].changed = st.st_ctim;
        }
    }
    return regular;
}

/* Reads all files and gives them to `f->tls`, which is made if it does not exist yet. */
static int read_files(struct mu_lock_files *f, struct mu_env *wire, char *page,
                      struct mu_errmsg *msg)
{
    struct mu_tls_config config = {.name = f->name};
    char token[MU_LOCK_TOKEN_CAP] = "";
    struct mu_errmsg note = {{0}};
    int err = 0;

    if (f->token) {
        err = mu_lock_read_token(f->paths[0], token, &note, msg);
        if (err == 0 && note.text[0] != '\0') {
            mu_lock_env_say(MUSTER_LOG_WARN, "LOCK-TOKEN", note.text);
        }
        if (err == 0 && page != NULL) {
            mu_page_key(mu_span_str(token), page);
        }
        config.token = mu_span_str(token);
    } else {
        config.cert = f->paths[0];
        config.key = f->paths[1];
        config.ca = f->paths[2];
    }
    if (err == 0 && f->tls == NULL) {
        err = mu_tls_env_new(wire, &config, &f->tls, msg);
    } else if (err == 0) {
        err = mu_tls_context_renew(mu_tls_env_context(f->tls), &config, msg);
    }
    explicit_bzero(token, sizeof(token));
    return err;
}

static void warn_of_end(struct mu_lock_files *f)
{
    struct mu_now now = mu_env_now(f->env);
    int64_t now_s = (int64_t)(now.wall.ns / MU_NS_PER_S);
    struct mu_errmsg text = {{0}};
    char when[MU_TLS_DATE_CAP];
    struct mu_tls_end end;

    if (mu_mono_before(now.mono, f->warn_at) ||
        !mu_tls_context_end(mu_tls_env_context(f->tls), &end) || end.at_s - now_s > WARN_S) {
        return;
    }
    f->warn_at = mu_mono_add_ms(now.mono, WARN_MS);
    mu_tls_format_end(end.at_s, when);
    (void)mu_err(&text, 0,
                 "the certificate %.100s %s on %s; replace the file (see muster keygen tls), "
                 "which needs no restart",
                 end.path, end.at_s > now_s ? "expires" : "expired", when);
    mu_lock_env_say(MUSTER_LOG_WARN, "LOCK-EXPIRES", text.text);
}

/* The files have changed. Invalid or incomplete ones change nothing, and are logged once, until the
 * files change again. They are still read again each time, since the cause may have been a lack of
 * descriptors or a wrong clock. */
static void renew(struct mu_lock_files *f, const struct stamp stamps[FILE_COUNT])
{
    size_t size = sizeof(f->stamps);
    struct mu_errmsg msg = {{0}};

    if (read_files(f, NULL, NULL, &msg) == 0) {
        memcpy(f->stamps, stamps, size);
        (void)mu_err(&msg, 0, "%.150s was replaced", f->paths[0]);
        mu_lock_env_say(MUSTER_LOG_INFO, "LOCK-RENEWED", msg.text);
        f->warn_at = (mu_mono_t){0};
    } else if (memcmp(stamps, f->refused, size) != 0) {
        memcpy(f->refused, stamps, size);
        mu_err_prefix(&msg, "the old credential stays in use");
        mu_lock_env_say(MUSTER_LOG_WARN, "LOCK-NOT-RENEWED", msg.text);
    }
}

/* A handshake begins. */
static void look(void *context)
{
    struct mu_lock_files *f = context;
    mu_mono_t now = mu_env_now(f->env).mono;
    struct stamp stamps[FILE_COUNT];

    if (mu_mono_before(now, f->look_at)) {
        return;
    }
    f->look_at = mu_mono_add_ms(now, LOOK_MS);
    if (take_stamps(f, stamps) && memcmp(stamps, f->stamps, sizeof(stamps)) != 0) {
        renew(f, stamps);
    }
    warn_of_end(f);
}

/* --- life ------------------------------------------------------------------------------------- */

static bool copy(char **to, const char *text)
{
    *to = text == NULL ? NULL : mu_strndup(text, strlen(text));
    return text == NULL || *to != NULL;
}

int mu_lock_files_open(const struct muster_lock *lock, struct mu_env *wire,
                       struct mu_lock_files **ret, struct mu_tls_env **ret_tls,
                       char ret_page[MU_PAGE_KEY_CAP], struct mu_errmsg *reterr_msg)
{
    bool token = lock->token_file != NULL;
    struct mu_lock_files *f;
    int err;

    if (token && (lock->cert != NULL || lock->key != NULL || lock->ca != NULL)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the job's credential is a token or certificates, not both");
    }
    f = mu_calloc(1, sizeof(*f));
    if (f == NULL || !copy(&f->paths[0], token ? lock->token_file : lock->cert) ||
        !copy(&f->paths[1], lock->key) || !copy(&f->paths[2], lock->ca) ||
        !copy(&f->name, lock->name)) {
        mu_lock_files_free(f);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    f->env = wire;
    f->token = token;
    (void)take_stamps(f, f->stamps);
    err = read_files(f, wire, ret_page, reterr_msg);
    if (err != 0) {
        mu_lock_files_free(f);
        return err;
    }
    f->look_at = mu_mono_add_ms(mu_env_now(wire).mono, LOOK_MS);
    warn_of_end(f);
    mu_tls_env_on_begin(f->tls, look, f);
    *ret = f;
    *ret_tls = f->tls;
    return 0;
}

void mu_lock_files_free(struct mu_lock_files *f)
{
    if (f != NULL) {
        for (size_t i = 0; i < FILE_COUNT; i++) {
            mu_free(f->paths[i]);
        }
        mu_free(f->name);
        mu_free(f);
    }
}
