/* The job's token: its file, which users can read it, and whether it could be guessed. */
#include "api/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A token with fewer bits can be found by trying, against a recorded handshake: two hashes make the
 * key from it, and a machine tries some 2^30 of these in a second. */
#define BITS_MIN 70
/* How much each letter is worth that could be part of a word. */
#define WORD_MIN  3
#define WORD_BITS 2

/* --- guesses ---------------------------------------------------------------------------------- */

/* How many hundredths of a bit one out of `characters` is worth. */
static unsigned worth_of(unsigned characters)
{
    static const struct {
        unsigned characters;
        unsigned worth;
    } table[] = {{10, 332}, {16, 400}, {26, 470}, {36, 517}, {42, 539}, {52, 570},
                 {58, 586}, {62, 595}, {68, 609}, {84, 639}, {94, 655}};
    size_t i = 0;

    while (i + 1 < sizeof(table) / sizeof(table[0]) && table[i].characters < characters) {
        i++;
    }
    return table[i].worth;
}

enum { DIGIT, LOWER, UPPER, OTHER };

static unsigned kind_of(char c)
{
    return c >= '0' && c <= '9'   ? DIGIT
           : c >= 'a' && c <= 'z' ? LOWER
           : c >= 'A' && c <= 'Z' ? UPPER
                                  : OTHER;
}

/* How many letters of one case follow each other. */
static size_t letters_at(const char *token)
{
    unsigned kind = kind_of(token[0]);
    size_t len = 0;

    while (token[len] != '\0' && (kind == LOWER || kind == UPPER) && kind_of(token[len]) == kind) {
        len++;
    }
    return len;
}

static unsigned worth_of_characters(const char *token)
{
    static const unsigned sizes[] = {[DIGIT] = 10, [LOWER] = 26, [UPPER] = 26, [OTHER] = 32};
    bool seen[4] = {false};
    unsigned characters = 0;

    if (strspn(token, "0123456789abcdef") == strlen(token) ||
        strspn(token, "0123456789ABCDEF") == strlen(token)) {
        return worth_of(strspn(token, "0123456789") == strlen(token) ? 10 : 16);
    }
    for (const char *c = token; *c != '\0'; c++) {
        seen[kind_of(*c)] = true;
    }
    for (size_t i = 0; i < 4; i++) {
        characters += seen[i] ? sizes[i] : 0;
    }
    return worth_of(characters);
}

unsigned mu_lock_token_bits(const char *token)
{
    unsigned worth = worth_of_characters(token);
    unsigned sum = 0;
    size_t word;

    for (size_t i = 0; token[i] != '\0'; i += word) {
        bool follows = i > 0 && token[i] - token[i - 1] >= -1 && token[i] - token[i - 1] <= 1;

        word = letters_at(token + i);
        if (word >= WORD_MIN) {
            sum += (unsigned)word * WORD_BITS * 100;
            continue;
        }
        /* A character that repeats the one before it, or counts on from it, is no choice. */
        sum += follows ? 100 : worth;
        word = 1;
    }
    return sum / 100;
}

/* --- the file --------------------------------------------------------------------------------- */

/* Reads the beginning of the file, up to `cap` bytes. Returns the length, or a negated errno. */
static ssize_t read_start(int fd, char *buf, size_t cap)
{
    size_t len = 0;

    while (len < cap) {
        ssize_t n = read(fd, buf + len, cap - len);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            return -errno;
        }
        if (n == 0) {
            break;
        }
        len += (size_t)n;
    }
    return (ssize_t)len;
}

/* Kubernetes gives a Secret to a process that does not run as root through its group: 0440, root
 * and fsGroup. Nothing else has a reason to do so. */
static bool is_secret_of_group(const struct stat *st)
{
    return st->st_uid == 0 && (st->st_mode & (S_IWGRP | S_IXGRP | S_IRWXO)) == 0;
}

static int check_mode(const char *path, const struct stat *st, struct mu_errmsg *note,
                      struct mu_errmsg *msg)
{
    if (!S_ISREG(st->st_mode) || (st->st_mode & (S_IRWXG | S_IRWXO)) == 0) {
        return 0;
    }
    if (!is_secret_of_group(st)) {
        return mu_err(
            msg, MUSTER_EINVAL,
            "users other than its owner can read or change the token in %.120s: chmod 600 "
            "it, and make a new token if others may have read it",
            path);
    }
    (void)mu_err(note, 0,
                 "the group %u can read the token in %.120s, as in a Secret of Kubernetes; every "
                 "member of that group can join the job",
                 (unsigned)st->st_gid, path);
    return 0;
}

static int check_token(const char *path, const char *token, size_t len, struct mu_errmsg *msg)
{
    if (len >= MU_LOCK_TOKEN_CAP) {
        return mu_err(msg, MUSTER_EINVAL,
                      "the first line of %.120s is too long for a token: at most %d bytes", path,
                      MU_LOCK_TOKEN_CAP - 1);
    }
    if (len < MU_LOCK_TOKEN_MIN) {
        return mu_err(msg, MUSTER_EINVAL,
                      "the token in %.120s is too short: it needs %d characters or more; `muster "
                      "keygen token` makes one",
                      path, MU_LOCK_TOKEN_MIN);
    }
    for (size_t i = 0; i < len; i++) {
        if ((unsigned char)token[i] <= 0x20 || (unsigned char)token[i] >= 0x7f) {
            return mu_err(msg, MUSTER_EINVAL,
                          "the first line of %.120s is not a token: it may have printable ASCII "
                          "characters only, without spaces",
                          path);
        }
    }
    return 0;
}

int mu_lock_read_token(const char *path, char ret_token[MU_LOCK_TOKEN_CAP],
                       struct mu_errmsg *ret_note, struct mu_errmsg *reterr_msg)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st = {0};
    char text[MU_LOCK_TOKEN_CAP + 2];
    ssize_t got = fd < 0 || fstat(fd, &st) != 0 ? -errno : read_start(fd, text, sizeof(text) - 1);
    size_t len;
    int err;

    if (fd >= 0) {
        (void)close(fd);
    }
    if (got < 0) {
        return mu_err(reterr_msg, (int)got, "cannot read the token from %.120s: %s", path,
                      muster_strerror((int)got));
    }
    text[got] = '\0';
    len = strcspn(text, "\r\n");
    err = check_mode(path, &st, ret_note, reterr_msg);
    err = err != 0 ? err : check_token(path, text, len, reterr_msg);
    if (err == 0) {
        memcpy(ret_token, text, len);
        ret_token[len] = '\0';
        if (mu_lock_token_bits(ret_token) < BITS_MIN) {
            (void)mu_err(
                ret_note, 0,
                "the token in %.120s could be guessed: it looks like words or a pattern, which an "
                "attacker with a recorded handshake can try; `muster keygen token` makes a "
                "random one",
                path);
        }
    }
    explicit_bzero(text, sizeof(text));
    return err;
}
