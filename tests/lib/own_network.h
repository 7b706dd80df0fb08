/*
 * An address that is not loopback's, for tests of what the job's lock does beyond it.
 *
 *     int main(void)
 *     {
 *         address = own_network();          the first thing, while there is one thread
 *
 * The process gets a network of its own, if the system lets it make one; loopback is there as well.
 * Otherwise it is an address of this host. NULL: there is neither.
 */
#ifndef MU_TEST_OWN_NETWORK_H
#define MU_TEST_OWN_NETWORK_H

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define OWN_NETWORK_ADDRESS "10.77.0.1"

static inline bool own_network_write(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool written = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);

    if (fd >= 0) {
        (void)close(fd);
    }
    return written;
}

/* As who we are, if that is enough; else as the first user of a namespace of our own. */
static inline bool own_network_leave(void)
{
    unsigned uid = (unsigned)getuid();
    unsigned gid = (unsigned)getgid();
    char map[64];

    if (unshare(CLONE_NEWNET) == 0) {
        return true;
    }
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
        return false;
    }
    (void)snprintf(map, sizeof(map), "%u %u 1", uid, uid);
    (void)own_network_write("/proc/self/setgroups", "deny");
    if (!own_network_write("/proc/self/uid_map", map)) {
        return false;
    }
    (void)snprintf(map, sizeof(map), "%u %u 1", gid, gid);
    return own_network_write("/proc/self/gid_map", map);
}

static inline bool own_network_up(const char *address)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct ifreq more = {.ifr_name = "lo:1"};
    struct sockaddr_in in = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool up;

    (void)inet_pton(AF_INET, address, &in.sin_addr);
    memcpy(&more.ifr_addr, &in, sizeof(in));
    up = fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &lo) == 0 && ioctl(fd, SIOCSIFADDR, &more) == 0;
    if (fd >= 0) {
        (void)close(fd);
    }
    return up;
}

static inline bool own_network_find(char *out, size_t cap)
{
    struct ifaddrs *all = NULL;
    bool found = false;

    if (getifaddrs(&all) != 0) {
        return false;
    }
    for (const struct ifaddrs *i = all; i != NULL && !found; i = i->ifa_next) {
        if (i->ifa_addr != NULL && i->ifa_addr->sa_family == AF_INET &&
            (i->ifa_flags & IFF_LOOPBACK) == 0) {
            const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)i->ifa_addr;

            found = inet_ntop(AF_INET, &in->sin_addr, out, (socklen_t)cap) != NULL;
        }
    }
    freeifaddrs(all);
    return found;
}

static inline const char *own_network(void)
{
    static char address[INET_ADDRSTRLEN] = OWN_NETWORK_ADDRESS;

    bool found =
        own_network_leave() ? own_network_up(address) : own_network_find(address, sizeof(address));

    return found ? address : NULL;
}

#endif
