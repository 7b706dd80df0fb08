/* muster keygen: makes the job's credential. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/lock.h"
#include "transport/tls_make.h"

#define HOSTS_MAX 256

struct keygen {
    const char *hosts; /* names, separated by commas */
    uint64_t days;
    bool json;
};

static int write_token(const struct keygen *k, const char *path, const char *token)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool good;

    if (fd < 0 && errno == EEXIST) {
        return cli_fail(CLI_FAILED,
                        "%s exists already; a new token would lock out the job that uses it", path);
    }
    if (fd < 0) {
        return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
    }
    good = dprintf(fd, "%s\n", token) > 0;
    good = close(fd) == 0 && good;
    if (!good) {
        (void)unlink(path);
        return cli_fail(CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
    }
    if (k->json) {
        cli_print_json(json_pack("{s:s}", "file", path));
        return CLI_OK;
    }
    printf("muster: the job's token is in %s. Copy the file to every node, readable only by its\n"
           "muster: owner, and name it there: --token-file %s, or MUSTER_TOKEN_FILE=%s\n",
           path, path, path);
    return CLI_OK;
}

static int make_token(const struct keygen *k, const char *path)
{
    char token[MU_TLS_TOKEN_CAP];
    int code = CLI_OK;

    if (!mu_tls_make_token(token)) {
        return cli_fail(CLI_FAILED, "the system has no random bytes");
    }
    if (path == NULL) {
        printf(k->json ? "{\"token\":\"%s\"}\n" : "%s\n", token);
    } else {
        code = write_token(k, path, token);
    }
    explicit_bzero(token, sizeof(token));
    return code;
}

/* Prints the key that proves the token to the status page, so that the token itself does not go
 * over the wire. */
static int print_page(const struct keygen *k, const char *path)
{
    char key[MU_PAGE_KEY_CAP];
    char token[MU_LOCK_TOKEN_CAP];
    int err = cli_read_token(path, token, sizeof(token));

    if (err == 0) {
        mu_page_key(mu_span_str(token), key);
        printf(k->json ? "{\"key\":\"%s\"}\n" : "%s\n", key);
    }
    explicit_bzero(token, sizeof(token));
    return err;
}

static void print_tls(const struct keygen *k, const char *directory, const char *const *hosts,
                      size_t count, bool made)
{
    if (k->json) {
        json_t *list = json_array();

        for (size_t i = 0; i < count; i++) {
            (void)json_array_append_new(list, json_pack("{s:s, s:s+++, s:s+++}", "host", hosts[i],
                                                        "cert", directory, "/", hosts[i], ".pem",
                                                        "key", directory, "/", hosts[i], ".key"));
        }
        cli_print_json(json_pack("{s:s+, s:b, s:o}", "ca", directory, "/ca.pem", "made_ca", made,
                                 "hosts", list));
        return;
    }
    if (made) {
        printf("muster: made an authority: %s/ca.pem. Its key, %s/ca.key, can let others in:\n"
               "muster: keep it away from the nodes\n",
               directory, directory);
    }
    printf("muster: copy ca.pem to each node, and the .pem and .key of its own name:\n");
    for (size_t i = 0; i < count; i++) {
        printf("  %s: --tls-ca %s/ca.pem --tls-cert %s/%s.pem --tls-key %s/%s.key\n", hosts[i],
               directory, directory, hosts[i], directory, hosts[i]);
    }
}

static int make_tls(const struct keygen *k, const char *directory)
{
    static char text[8192];
    const char *hosts[HOSTS_MAX];
    struct mu_errmsg msg = {{0}};
    size_t count = 0;
    char *rest = text;
    bool made = false;
    int err;

    if (k->hosts == NULL || (size_t)snprintf(text, sizeof(text), "%s", k->hosts) >= sizeof(text)) {
        return cli_usage("keygen", "name every node, as others dial it: --host NAME,...");
    }
    for (char *host; (host = strsep(&rest, ",")) != NULL;) {
        if (count == HOSTS_MAX) {
            return cli_usage("keygen",
                             "--host takes at most %d names; run the command several times",
                             HOSTS_MAX);
        }
        hosts[count++] = host;
    }
    if (mkdir(directory, 0700) != 0 && errno != EEXIST) {
        return cli_fail(CLI_FAILED, "cannot make %s: %s", directory, strerror(errno));
    }
    err = mu_tls_make(directory, hosts, count, (uint32_t)k->days, &made, &msg);
    if (err != 0) {
        return cli_fail(err == MUSTER_EEXIST ? CLI_FAILED : cli_exit_code(err), "%s", msg.text);
    }
    print_tls(k, directory, hosts, count, made);
    return CLI_OK;
}

static int run(const struct keygen *k, int argc, char **argv)
{
    if (argc >= 1 && argc <= 2 && strcmp(argv[0], "token") == 0) {
        return make_token(k, argc == 2 ? argv[1] : NULL);
    }
    if (argc == 2 && strcmp(argv[0], "tls") == 0) {
        return make_tls(k, argv[1]);
    }
    if (argc == 2 && strcmp(argv[0], "page") == 0) {
        return print_page(k, argv[1]);
    }
    return cli_usage("keygen", "say what to make: token [FILE], tls DIR or page FILE");
}

int cmd_keygen(int argc, char **argv)
{
    static const char *const operations[] = {"token", "tls", "page", NULL};
    struct keygen k = {.days = 365};
    const struct cli_option options[] = {
        {"host", "NAME,...", "tls: the nodes, as others dial them: names or numeric addresses",
         CLI_TEXT, &k.hosts, 0},
        {"days", "N", "tls: how long the certificates of the hosts are valid (365)", CLI_NUMBER,
         &k.days, 36500},
        {"json", NULL, "print one JSON object", CLI_FLAG, &k.json, 0},
    };
    const struct cli_verb verb = {
        "keygen",
        "token|tls|page [OPTIONS] [FILE|DIR]",
        "token [FILE]   makes the job's token; without FILE, prints it\n"
        "tls DIR        makes the job's own authority, and a certificate for each --host; an\n"
        "               existing authority signs the certificates of more hosts\n"
        "page FILE      prints the key that shows the token in FILE to a status page; the key\n"
        "               may go over the wire, where the token itself should not",
        options,
        sizeof(options) / sizeof(options[0]),
        .operations = operations};
    int err = cli_parse(&verb, &argc, &argv);

    return err != 0 ? err : run(&k, argc, argv);
}
