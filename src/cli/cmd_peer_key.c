/* muster peer: key files in the format of libp2p. */
#include "cli/cmd_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "transport/uv_env.h"

static int make(const struct peer_options *o, struct mu_identity *ret)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    int err;

    if (strcmp(o->type, "rsa") == 0) {
        err = mu_identity_generate_rsa(ret, (unsigned)o->bits);
        if (err == MUSTER_EINVAL) {
            return cli_fail(CLI_USAGE, "--bits must be from 2048 to 8192");
        }
    } else {
        struct mu_uv_env *uv; /* the source of random bytes */

        err = mu_uv_env_new(&uv);
        if (err == 0) {
            mu_env_entropy(mu_uv_env_env(uv), seed, sizeof(seed));
            mu_uv_env_free(uv);
            err = mu_identity_from_seed(ret, seed);
        }
        explicit_bzero(seed, sizeof(seed));
    }
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "cannot make a key: %s", muster_strerror(err));
}

static int write_all(int fd, struct mu_span bytes)
{
    while (bytes.len != 0) {
        ssize_t n = write(fd, bytes.data, bytes.len);

        if (n < 0 && errno != EINTR) {
            return -errno;
        }
        bytes = mu_span_skip(bytes, n < 0 ? 0 : (size_t)n);
    }
    return fsync(fd) == 0 ? 0 : -errno;
}

int peer_key_make(const struct peer_options *o, struct mu_identity *ret)
{
    struct mu_buf out;
    int code;
    int err;
    int fd = open(o->identity, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0400);

    if (fd < 0) {
        return cli_fail(CLI_STORAGE, "%s: %s", o->identity, strerror(errno));
    }
    code = make(o, ret);
    if (code == 0) {
        mu_buf_init(&out, MU_IDENTITY_FILE_MAX);
        err = mu_identity_encode(ret, &out);
        if (err == 0) {
            err = write_all(fd, mu_buf_span(&out));
        }
        if (out.data != NULL) {
            explicit_bzero(out.data, out.cap);
        }
        mu_buf_fini(&out);
        if (err != 0) {
            code = cli_fail(CLI_STORAGE, "%s: %s", o->identity, muster_strerror(err));
            mu_identity_fini(ret);
        }
    }
    (void)close(fd);
    if (code != 0) {
        (void)unlink(o->identity); /* A file with half a key is useless. */
    }
    return code;
}

int peer_key_get(const struct peer_options *o, struct mu_identity *ret)
{
    uint8_t bytes[MU_IDENTITY_FILE_MAX];
    struct mu_errmsg msg;
    size_t len = 0;
    ssize_t n = 1;
    int fd;
    int err;

    if (o->identity == NULL) {
        return make(o, ret);
    }
    fd = open(o->identity, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return cli_fail(CLI_STORAGE, "%s: %s%s", o->identity, strerror(errno),
                        errno == ENOENT ? "; `muster peer id --new` makes one" : "");
    }
    while (n > 0 && len < sizeof(bytes)) {
        n = read(fd, bytes + len, sizeof(bytes) - len);
        len += n > 0 ? (size_t)n : 0;
    }
    (void)close(fd);
    if (n < 0) {
        return cli_fail(CLI_STORAGE, "%s: %s", o->identity, strerror(errno));
    }
    err = mu_identity_decode(ret, mu_span(bytes, len), &msg);
    explicit_bzero(bytes, sizeof(bytes));
    return err == 0 ? 0 : cli_fail(CLI_FAILED, "%s: %s", o->identity, msg.text);
}
