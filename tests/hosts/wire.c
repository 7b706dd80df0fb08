/* The network between the hosts of a test, in user space: a tun device in the network namespace of
 * each, and IP packets carried between them by destination, with what goes wrong on real wires.
 *
 * usage: wire SEED PID...
 *
 * Host number N is the network namespace of the Nth PID and answers to every address whose last
 * byte was given to it: N + 1 at first, more with `address`. When all devices are there it says
 * `ready`.
 * Then it takes commands on standard input, one a line, each answered by a line `ok ...` or
 * `error: ...`, and ends with the end of its input:
 *
 *   link HOST in|out|both [RULE=NUMBER]...   what happens on this host's cable in that direction
 *   clear                                    no rules and no cut pairs any more
 *   pair FROM TO 0|1                         1: nothing goes from FROM to TO
 *   address HOST BYTE                        one more address of that host
 *   count HOST                               packets sent; come, lost and damaged on the way
 *
 * Rules, all 0 at first: loss, corrupt, reorder (chances from 0 to 1), delay and jitter (ms), rate
 * (bytes a second), cut (0 or 1), repair (1: a damaged packet's checksum is made good, so that the
 * damage reaches the program), shut (1: no TCP connection opens in that direction, as behind a NAT
 * or a firewall). A rule that is not named stays as it is.
 *
 * Queues are bounded: what does not fit is lost, as on a switch. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum {
    HOSTS_MAX = 64,
    PACKET_MAX = 65536,
    /* Packets on their way, all together and to one host. */
    QUEUE_MAX = 32768,
    QUEUE_OF_HOST_MAX = 8192,
    /* Packets taken from a host before the others have their turn. */
    BATCH = 64,
    LINE_MAX_BYTES = 1024
};
#define MS 1000000ull
/* What a cable with a rate holds back before it loses; and how late a reordered packet is. */
#define BACKLOG_MAX_NS (250 * MS)
#define REORDER_MAX_NS (5 * MS)

enum direction { IN, OUT, DIRECTIONS };

struct rules {
    double loss, corrupt, reorder, delay, jitter, rate, cut, repair, shut;
    uint64_t free_at_ns; /* when the last packet has left, if there is a rate */
};

struct host {
    int tun;
    struct rules rules[DIRECTIONS];
    bool deaf_to[HOSTS_MAX];
    size_t queued;
    uint64_t sent, delivered, lost, damaged;
};

struct packet {
    uint64_t due_ns;
    uint64_t number; /* those due at the same time keep their order */
    int to;
    size_t length;
    uint8_t bytes[];
};

static struct host hosts[HOSTS_MAX];
static int host_count;
static int host_of_byte[256];
static struct packet *queue[QUEUE_MAX]; /* a heap, the next one first */
static size_t queue_length;
static uint64_t packets_queued;
static uint64_t random_state;

static void die(const char *what)
{
    fprintf(stderr, "wire: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 * MS + (uint64_t)now.tv_nsec;
}

static uint64_t draw(void) /* xorshift64* */
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 0x2545f4914f6cdd1dull;
}

static double draw_share(void)
{
    return (double)(draw() >> 11) / 9007199254740992.0;
}

static bool chance(double share)
{
    return share > 0 && draw_share() < share;
}

/* --- packets ---------------------------------------------------------------------------------- */

static int find_target(const uint8_t *bytes, size_t length)
{
    if (length >= 20 && bytes[0] >> 4 == 4)
        return bytes[16] == 10 ? host_of_byte[bytes[19]] : -1;
    if (length >= 40 && bytes[0] >> 4 == 6)
        return bytes[24] == 0xfd ? host_of_byte[bytes[39]] : -1;
    return -1;
}

/* Flips a bit behind the IP header; with `repair` one of TCP's payload, and the checksum is right
 * again. Returns whether something was damaged. */
static bool damage(uint8_t *bytes, size_t length, bool repair)
{
    bool is_v4 = bytes[0] >> 4 == 4;
    size_t transport = is_v4 ? (size_t)(bytes[0] & 15) * 4 : 40;
    size_t begin = transport;
    if (repair) {
        if ((is_v4 ? bytes[9] : bytes[6]) != 6 || length < transport + 20)
            return false;
        begin += (size_t)(bytes[transport + 12] >> 4) * 4;
    }
    if (begin >= length)
        return false;
    size_t at = begin + (size_t)(draw() % (length - begin));
    /* The checksum is over words that begin at the transport header. */
    size_t word = at - (at - transport) % 2;
    uint32_t before = (uint32_t)bytes[word] << 8 | (word + 1 < length ? bytes[word + 1] : 0);
    bytes[at] ^= (uint8_t)(1u << (draw() % 8));
    if (repair) {
        uint32_t after = (uint32_t)bytes[word] << 8 | (word + 1 < length ? bytes[word + 1] : 0);
        uint8_t *sum = bytes + transport + 16;
        uint32_t total = (~((uint32_t)sum[0] << 8 | sum[1]) & 0xffff) + (~before & 0xffff) + after;
        total = (total & 0xffff) + (total >> 16);
        total = ~((total & 0xffff) + (total >> 16));
        sum[0] = (uint8_t)(total >> 8);
        sum[1] = (uint8_t)total;
    }
    return true;
}

/* The first packet of a TCP connection: SYN without ACK. */
static bool is_opening(const uint8_t *bytes, size_t length)
{
    bool is_v4 = bytes[0] >> 4 == 4;
    size_t transport = is_v4 ? (size_t)(bytes[0] & 15) * 4 : 40;
    return (is_v4 ? bytes[9] : bytes[6]) == 6 && length >= transport + 20 &&
           (bytes[transport + 13] & 0x12) == 0x02;
}

static bool is_before(const struct packet *one, const struct packet *other)
{
    return one->due_ns != other->due_ns ? one->due_ns < other->due_ns : one->number < other->number;
}

static void push(struct packet *packet)
{
    size_t at = queue_length++;
    for (; at > 0 && is_before(packet, queue[(at - 1) / 2]); at = (at - 1) / 2)
        queue[at] = queue[(at - 1) / 2];
    queue[at] = packet;
}

static struct packet *pop(void)
{
    struct packet *first = queue[0];
    struct packet *last = queue[--queue_length];
    size_t at = 0;
    for (size_t next = 1; next < queue_length; next = 2 * at + 1) {
        if (next + 1 < queue_length && is_before(queue[next + 1], queue[next]))
            next++;
        if (!is_before(queue[next], last))
            break;
        queue[at] = queue[next];
        at = next;
    }
    queue[at] = last;
    return first;
}

/* An interface that is down takes nothing: the packet is lost. */
static void deliver(struct host *host, const uint8_t *bytes, size_t length)
{
    if (write(host->tun, bytes, length) == (ssize_t)length)
        host->delivered++;
    else
        host->lost++;
}

/* When a packet that comes to this cable at `at_ns` has passed it; 0 if it is lost. */
static uint64_t pass(struct rules *rules, uint64_t at_ns, size_t length)
{
    if (rules->cut != 0 || chance(rules->loss))
        return 0;
    if (rules->rate > 0) {
        if (rules->free_at_ns > at_ns + BACKLOG_MAX_NS)
            return 0;
        if (rules->free_at_ns < at_ns)
            rules->free_at_ns = at_ns;
        rules->free_at_ns += (uint64_t)((double)length * 1e9 / rules->rate);
        at_ns = rules->free_at_ns;
    }
    at_ns += (uint64_t)((rules->delay + rules->jitter * draw_share()) * (double)MS);
    if (chance(rules->reorder))
        at_ns += MS / 2 + draw() % REORDER_MAX_NS;
    return at_ns;
}

static void carry(int from, uint8_t *bytes, size_t length, uint64_t at_ns)
{
    struct host *source = &hosts[from];
    int to = find_target(bytes, length);
    source->sent++;
    if (to < 0 || to == from)
        return;
    struct host *target = &hosts[to];
    struct rules *out = &source->rules[OUT];
    struct rules *in = &target->rules[IN];
    bool is_shut = (out->shut != 0 || in->shut != 0) && is_opening(bytes, length);
    uint64_t due_ns = is_shut || target->deaf_to[from] ? 0 : pass(out, at_ns, length);
    due_ns = due_ns == 0 ? 0 : pass(in, due_ns, length);
    bool is_late = due_ns > at_ns;
    if (due_ns == 0 ||
        (is_late && (queue_length == QUEUE_MAX || target->queued == QUEUE_OF_HOST_MAX))) {
        target->lost++;
        return;
    }
    if ((chance(out->corrupt) && damage(bytes, length, out->repair != 0)) ||
        (chance(in->corrupt) && damage(bytes, length, in->repair != 0)))
        target->damaged++;
    if (!is_late) {
        deliver(target, bytes, length);
        return;
    }
    struct packet *packet = malloc(sizeof *packet + length);
    if (packet == NULL)
        die("a packet");
    *packet =
        (struct packet){.due_ns = due_ns, .number = packets_queued++, .to = to, .length = length};
    memcpy(packet->bytes, bytes, length);
    target->queued++;
    push(packet);
}

static void read_host(int from)
{
    static uint8_t bytes[PACKET_MAX];
    uint64_t at_ns = now_ns();
    for (int i = 0; i < BATCH; i++) {
        ssize_t length = read(hosts[from].tun, bytes, sizeof bytes);
        if (length <= 0)
            return;
        carry(from, bytes, (size_t)length, at_ns);
    }
}

static void deliver_due(void)
{
    uint64_t at_ns = now_ns();
    while (queue_length > 0 && queue[0]->due_ns <= at_ns) {
        struct packet *packet = pop();
        hosts[packet->to].queued--;
        deliver(&hosts[packet->to], packet->bytes, packet->length);
        free(packet);
    }
}

/* --- commands --------------------------------------------------------------------------------- */

static double *find_rule(struct rules *rules, const char *name, size_t length)
{
    struct {
        const char *name;
        double *value;
    } known[] = {
        {"loss", &rules->loss},   {"corrupt", &rules->corrupt}, {"reorder", &rules->reorder},
        {"delay", &rules->delay}, {"jitter", &rules->jitter},   {"rate", &rules->rate},
        {"cut", &rules->cut},     {"repair", &rules->repair},   {"shut", &rules->shut},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0)
            return known[i].value;
    return NULL;
}

static struct host *find_host(const char *word)
{
    char *end;
    long number = word == NULL ? -1 : strtol(word, &end, 10);
    return number >= 0 && number < host_count && *end == '\0' ? &hosts[number] : NULL;
}

static bool set_rules(struct host *host, const char *direction, char **rest)
{
    if (host == NULL || direction == NULL)
        return false;
    bool both = strcmp(direction, "both") == 0;
    bool is[DIRECTIONS] = {both || strcmp(direction, "in") == 0,
                           both || strcmp(direction, "out") == 0};
    if (!is[IN] && !is[OUT])
        return false;
    for (char *rule; (rule = strtok_r(NULL, " ", rest)) != NULL;) {
        char *equals = strchr(rule, '=');
        for (int i = 0; i < DIRECTIONS; i++) {
            double *value =
                equals ? find_rule(&host->rules[i], rule, (size_t)(equals - rule)) : NULL;
            char *end = NULL;
            double number = value ? strtod(equals + 1, &end) : -1;
            if (value == NULL || *end != '\0' || number < 0)
                return false;
            if (is[i])
                *value = number;
        }
    }
    return true;
}

static void clear_rules(void)
{
    for (int i = 0; i < host_count; i++) {
        memset(hosts[i].rules, 0, sizeof hosts[i].rules);
        memset(hosts[i].deaf_to, 0, sizeof hosts[i].deaf_to);
    }
}

static void obey(char *line)
{
    char *rest = NULL;
    char *verb = strtok_r(line, " ", &rest);
    bool done = false;
    if (verb != NULL && strcmp(verb, "clear") == 0) {
        clear_rules();
        done = true;
    } else if (verb != NULL) {
        struct host *host = find_host(strtok_r(NULL, " ", &rest));
        char *second = strtok_r(NULL, " ", &rest);
        if (strcmp(verb, "link") == 0) {
            done = set_rules(host, second, &rest);
        } else if (strcmp(verb, "pair") == 0) {
            struct host *to = find_host(second);
            char *third = strtok_r(NULL, " ", &rest);
            done = host != NULL && to != NULL && third != NULL;
            if (done)
                to->deaf_to[host - hosts] = *third == '1';
        } else if (strcmp(verb, "address") == 0) {
            long byte = second ? strtol(second, NULL, 10) : -1;
            done = host != NULL && byte > 0 && byte < 256;
            if (done)
                host_of_byte[byte] = (int)(host - hosts);
        } else if (strcmp(verb, "count") == 0 && host != NULL) {
            printf("ok %llu %llu %llu %llu\n", (unsigned long long)host->sent,
                   (unsigned long long)host->delivered, (unsigned long long)host->lost,
                   (unsigned long long)host->damaged);
            return;
        }
    }
    puts(done ? "ok" : "error: no such command, host or rule");
}

/* Returns whether there will be more. */
static bool read_commands(void)
{
    static char line[LINE_MAX_BYTES];
    static size_t length;
    ssize_t count = read(STDIN_FILENO, line + length, sizeof line - 1 - length);
    if (count <= 0)
        return false;
    length += (size_t)count;
    for (char *end; (end = memchr(line, '\n', length)) != NULL;) {
        size_t used = (size_t)(end - line) + 1;
        *end = '\0';
        obey(line);
        memmove(line, line + used, length - used);
        length -= used;
    }
    fflush(stdout);
    return length < sizeof line - 1;
}

/* --- the whole -------------------------------------------------------------------------------- */

static int open_tun(const char *pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    int place = open(path, O_RDONLY | O_CLOEXEC);
    if (place < 0 || setns(place, CLONE_NEWNET) != 0)
        die(path);
    close(place);
    struct ifreq request = {.ifr_name = "eth0"};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    int tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (tun < 0 || ioctl(tun, TUNSETIFF, &request) != 0)
        die("/dev/net/tun");
    return tun;
}

int main(int argc, char **argv)
{
    static struct pollfd wanted[HOSTS_MAX + 1];
    if (argc < 3 || argc - 2 > HOSTS_MAX) {
        fputs("usage: wire SEED PID...\n", stderr);
        return 2;
    }
    random_state = strtoull(argv[1], NULL, 10) * 2 + 1;
    memset(host_of_byte, 0xff, sizeof host_of_byte);
    for (; host_count < argc - 2; host_count++) {
        hosts[host_count].tun = open_tun(argv[host_count + 2]);
        host_of_byte[host_count + 1] = host_count;
        wanted[host_count] = (struct pollfd){.fd = hosts[host_count].tun, .events = POLLIN};
    }
    if (unshare(CLONE_NEWNET) != 0) /* it is on none of the hosts itself */
        die("unshare");
    wanted[host_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    /* A network does not wait for the processors of the hosts; where this is refused, it does. */
    (void)setpriority(PRIO_PROCESS, 0, -15);
    puts("ready");
    fflush(stdout);
    for (;;) {
        uint64_t at_ns = now_ns();
        uint64_t left_ns =
            queue_length == 0 || queue[0]->due_ns <= at_ns ? 0 : queue[0]->due_ns - at_ns;
        struct timespec left = {.tv_sec = (time_t)(left_ns / (1000 * MS)),
                                .tv_nsec = (long)(left_ns % (1000 * MS))};
        if (ppoll(wanted, (nfds_t)host_count + 1, queue_length > 0 ? &left : NULL, NULL) < 0)
            die("ppoll");
        deliver_due();
        for (int i = 0; i < host_count; i++)
            if (wanted[i].revents & POLLIN)
                read_host(i);
        if (wanted[host_count].revents != 0 && !read_commands())
            return 0;
    }
}
