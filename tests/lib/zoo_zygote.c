/*
 * The zoo's zygote: it forks standbys which become what they are told, by exec. The protocol is in
 * src/transport/uv_standby.c; this is written from that text and not from the code beside it.
 */
#include "zoo_zygote.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SOCKET    3
#define VAULT     1000
#define FDS_MAX   8
#define WORDS_MAX 256

static void say(const char *text)
{
    if (send(SOCKET, text, strlen(text), 0) < 0) {
        _exit(9);
    }
}

static void say_ready(int other)
{
    char text[32];
    char control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec io = {text, (size_t)snprintf(text, sizeof(text), "ready %d", (int)getpid())};
    struct msghdr msg = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

    *c = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &other, sizeof(other));
    if (sendmsg(SOCKET, &msg, 0) < 0) {
        _exit(9);
    }
}

/* Waits for the one message; its descriptors are moved up, out of the way. */
static size_t hear_go(int own, char kinds[FDS_MAX + 1], int fds[FDS_MAX])
{
    char control[CMSG_SPACE(sizeof(int) * FDS_MAX)];
    struct iovec io = {kinds, FDS_MAX};
    struct msghdr msg = {
        .msg_iov = &io, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    ssize_t n = recvmsg(own, &msg, 0);
    struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
    size_t count;

    if (n <= 0 || c == NULL) {
        _exit(0);
    }
    kinds[n] = '\0';
    count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(c), count * sizeof(int));
    for (size_t i = 0; i < count; i++) {
        int fd = fcntl(fds[i], F_DUPFD_CLOEXEC, 100);

        (void)close(fds[i]);
        fds[i] = fd;
    }
    return count;
}

static void open_stream(int i, const char *how)
{
    int flags = how[0] == 'r'   ? O_RDONLY
                : how[0] == 'c' ? O_WRONLY | O_CREAT | O_TRUNC
                : how[0] == 'a' ? O_WRONLY | O_CREAT | O_APPEND
                                : O_WRONLY;
    int fd = open(how + 1, flags, 0666);

    if (fd < 0 || dup2(fd, i) < 0) {
        _exit(9);
    }
    (void)close(fd);
}

static void become(const char *kinds, const int *fds, char *fields, size_t len)
{
    char *words[WORDS_MAX + 1];
    char *argv[WORDS_MAX + 1] = {NULL};
    size_t count = 0;
    size_t argc;

    for (char *at = fields; at < fields + len && count < WORDS_MAX; at += strlen(at) + 1) {
        words[count++] = at;
    }
    words[count] = NULL;
    for (size_t i = 0; kinds[i] != '\0' && kinds[i] != '.'; i++) {
        int place = kinds[i] == 'c'   ? SOCKET
                    : kinds[i] == 's' ? 99
                    : kinds[i] >= 'A' ? VAULT + kinds[i] - 'A'
                                      : kinds[i] - '0';

        (void)dup2(fds[i + 2], place);
    }
    for (int i = 0; i < 3; i++) {
        if (words[i][0] != '\0') {
            open_stream(i, words[i]);
        }
    }
    if (words[3][0] != '\0' && chdir(words[3]) != 0) {
        int32_t failure[2] = {2, errno};

        (void)!write(fds[1], failure, sizeof(failure));
        _exit(127);
    }
    argc = (size_t)strtol(words[6], NULL, 10);
    memcpy(argv, words + 7, argc * sizeof(*argv));
    (void)execve(argv[0], argv, words + 7 + argc);
    _exit(9);
}

static void stand_by(pid_t parent)
{
    struct timespec rest = {.tv_nsec = 200000};
    char kinds[FDS_MAX + 1];
    struct stat st;
    char *fields;
    int fds[FDS_MAX];
    int pair[2];

    (void)setsid();
    while (getppid() == parent) {
        (void)nanosleep(&rest, NULL);
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) {
        _exit(9);
    }
    say_ready(pair[1]);
    (void)close(pair[1]);
    (void)close(SOCKET);
    (void)hear_go(pair[0], kinds, fds);
    if (fstat(fds[0], &st) != 0 || (fields = malloc((size_t)st.st_size)) == NULL ||
        pread(fds[0], fields, (size_t)st.st_size, 0) != st.st_size) {
        _exit(9);
    }
    become(kinds, fds, fields, (size_t)st.st_size);
}

void zoo_refuse(const char *why)
{
    char text[256];

    (void)snprintf(text, sizeof(text), "refused %s", why);
    say(text);
    _exit(1);
}

void zoo_zygote(void)
{
    char text[16];
    ssize_t n;

    say("imported");
    while ((n = recv(SOCKET, text, sizeof(text) - 1, 0)) > 0) {
        text[n] = '\0';
        for (long i = strtol(text, NULL, 10); i > 0; i--) {
            pid_t pid = fork();

            if (pid == 0) {
                pid_t parent = getpid();

                if (fork() == 0) {
                    stand_by(parent);
                }
                _exit(0);
            }
            (void)waitpid(pid, NULL, 0);
        }
    }
    _exit(0);
}
