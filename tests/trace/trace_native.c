/*
 * Stories of a group that averages in the native mode. Messages take no time, and are delivered one
 * from each link in turn. What is told are control messages as they are sent, and how members end.
 *
 *     begin N [clients=MASK]
 *     steps N            deliver N messages
 *     all                deliver all that there are, and tell members of links that are over
 *     kill I
 *     cut I K            the link between two ends
 *     hold I K           what I sends to K is held up, until
 *     free I K
 *     wait S
 */
#include "scenarios/average/native_node.h"
#include "story.h"

#define QUEUE_MAX 256

static struct nat_round group;
static struct nat_node members[NAT_NODES_MAX];
static struct nat_truth truth;
static struct nat_frame frames[NAT_NODES_MAX][NAT_NODES_MAX][QUEUE_MAX];
static uint32_t queued[NAT_NODES_MAX][NAT_NODES_MAX];
static bool held[NAT_NODES_MAX][NAT_NODES_MAX], over[NAT_NODES_MAX][NAT_NODES_MAX];
static bool noticed[NAT_NODES_MAX][NAT_NODES_MAX], dead[NAT_NODES_MAX], told[NAT_NODES_MAX];
static uint32_t turn;

static struct mu_now now(void)
{
    return (struct mu_now){{story_now_ns + MU_NS_PER_S}, {0}};
}

static uint32_t number_of(const char *text)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);

    if (end == text || *end != '\0') {
        story_refuse("not a number", text);
    }
    return (uint32_t)number;
}

static void list(char *out, size_t cap, uint64_t mask)
{
    out[0] = '\0';
    for (uint32_t i = 0; i < NAT_NODES_MAX; i++) {
        if ((mask >> i & 1) != 0) {
            (void)snprintf(out + strlen(out), cap - strlen(out), "%s%u", out[0] == '\0' ? "" : ",",
                           i);
        }
    }
}

static void tell_message(uint32_t from, uint32_t to, const struct mu_native_msg *m)
{
    char set[32];
    char mask[32];

    list(set, sizeof(set), m->set.members);
    list(mask, sizeof(mask), m->mask);
    switch (m->type) {
    case MU_NATIVE_HAVE:
        story_tell("%u to %u: HAVE shard %u of %s", from, to, m->shard, set);
        break;
    case MU_NATIVE_PROMISE:
        story_tell("%u to %u: PROMISE %u%s%s", from, to, m->ballot,
                   m->accepted   ? ", accepted"
                   : m->proposed ? ", proposed"
                                 : "",
                   m->final ? ", final" : "");
        break;
    case MU_NATIVE_ASSIGN:
        story_tell("%u to %u: ASSIGN %u owners %s", from, to, m->ballot, mask);
        break;
    case MU_NATIVE_PROPOSE:
        story_tell("%u to %u: PROPOSE %u sum %u of %s%s", from, to, m->ballot, m->sum, set,
                   m->bound ? ", bound" : "");
        break;
    case MU_NATIVE_FINAL:
        story_tell("%u to %u: FINAL %u sum %u of %s", from, to, m->ballot, m->sum, set);
        break;
    case MU_NATIVE_WANT:
    case MU_NATIVE_LOST:
    case MU_NATIVE_CLOSE:
        story_tell("%u to %u: %s %s", from, to, mu_native_type_name(m->type), mask);
        break;
    case MU_NATIVE_HELLO:
    case MU_NATIVE_PART:
    case MU_NATIVE_AVERAGE:
        break;
    case MU_NATIVE_PREPARE:
    case MU_NATIVE_NEWER:
    case MU_NATIVE_ACCEPT:
    case MU_NATIVE_DONE:
    case MU_NATIVE_FAIL:
        story_tell("%u to %u: %s %u", from, to, mu_native_type_name(m->type), m->ballot);
        break;
    }
}

static void send(void *context, uint32_t from, uint32_t to, const struct nat_frame *frame)
{
    struct mu_native_msg msg;

    (void)context;
    if (dead[to] || over[from][to] || members[to].released) {
        return;
    }
    if (queued[from][to] == QUEUE_MAX ||
        mu_native_msg_decode(mu_span(frame->bytes, frame->len), &msg) != 0) {
        story_refuse("cannot be sent", "");
    }
    tell_message(from, to, &msg);
    frames[from][to][queued[from][to]++] = *frame;
}

static void failed(void *context, const char *what)
{
    (void)context;
    story_refuse("a promise is broken", what);
}

static void tell_ends(void)
{
    for (uint32_t i = 0; i < group.count; i++) {
        char set[32];

        if (!dead[i] && members[i].ended && !told[i]) {
            told[i] = true;
            list(set, sizeof(set), members[i].m.set.members);
            if (members[i].status == 0) {
                story_tell("%u has the average of %s", i, set);
            } else {
                story_tell("%u ends: %s", i, mu_native_text(&members[i].m));
            }
        }
    }
}

/* The next message in turn. */
static bool deliver(void)
{
    for (uint32_t x = 0; x < group.count * group.count; x++) {
        uint32_t link = (turn + x) % (group.count * group.count);
        uint32_t from = link / group.count;
        uint32_t to = link % group.count;
        struct nat_frame frame = frames[from][to][0];

        if (queued[from][to] != 0 && !held[from][to] && !dead[to] && !noticed[to][from]) {
            turn = link + 1;
            queued[from][to]--;
            memmove(&frames[from][to][0], &frames[from][to][1], queued[from][to] * sizeof(frame));
            nat_node_receive(&members[to], now(), from, mu_span(frame.bytes, frame.len));
            tell_ends();
            return true;
        }
    }
    return false;
}

static bool notice(void)
{
    for (uint32_t i = 0; i < group.count; i++) {
        for (uint32_t k = 0; k < group.count; k++) {
            if (i != k && !dead[i] && !members[i].released && !noticed[i][k] &&
                (dead[k] || over[i][k] || members[k].released)) {
                noticed[i][k] = true;
                nat_node_lost(&members[i], now(), k);
                tell_ends();
                return true;
            }
        }
    }
    return false;
}

static void wait_for(const char *text)
{
    uint64_t end = story_now_ns + story_time_ns(text);

    for (;;) {
        mu_mono_t next = MU_MONO_NEVER;

        for (uint32_t i = 0; i < group.count; i++) {
            next = dead[i] ? next : mu_mono_min(next, mu_native_deadline(&members[i].m));
        }
        if (next.ns > end + MU_NS_PER_S) {
            break;
        }
        story_now_ns = next.ns - MU_NS_PER_S > story_now_ns ? next.ns - MU_NS_PER_S : story_now_ns;
        for (uint32_t i = 0; i < group.count; i++) {
            if (!dead[i]) {
                nat_node_tick(&members[i], now());
            }
        }
        tell_ends();
        while (deliver() || notice()) {
        }
    }
    story_now_ns = end;
}

static void begin(char **words, size_t count)
{
    uint64_t clients = count > 2 ? strtoull(words[2] + strlen("clients="), NULL, 0) : 0;
    uint32_t size = number_of(words[1]);

    if (size < 1 || size > NAT_NODES_MAX) {
        story_refuse("not a size", words[1]);
    }
    nat_round_init(&group, size, clients, 1, 0, 7);
    for (uint32_t i = 0; i < size; i++) {
        members[i].truth = &truth;
        members[i].send = send;
        members[i].failed = failed;
        nat_node_start(&members[i], now(), i, &group);
    }
}

static void take(char **words, size_t count)
{
    uint32_t one = count > 1 && strcmp(words[0], "wait") != 0 ? number_of(words[1]) : 0;
    uint32_t other = count > 2 && strcmp(words[0], "begin") != 0 ? number_of(words[2]) : 0;

    if (strcmp(words[0], "begin") == 0) {
        begin(words, count);
    } else if (strcmp(words[0], "steps") == 0) {
        while (one-- > 0 && deliver()) {
        }
    } else if (strcmp(words[0], "all") == 0) {
        while (deliver() || notice()) {
        }
    } else if (strcmp(words[0], "kill") == 0) {
        dead[one] = true;
        memset(queued[one], 0, sizeof(queued[one]));
        story_tell("%u is dead", one);
    } else if (strcmp(words[0], "cut") == 0) {
        over[one][other] = over[other][one] = true;
        queued[one][other] = queued[other][one] = 0;
    } else if (strcmp(words[0], "hold") == 0 || strcmp(words[0], "free") == 0) {
        held[one][other] = words[0][0] == 'h';
    } else if (strcmp(words[0], "wait") == 0) {
        wait_for(words[1]);
    } else {
        story_refuse("not a verb", words[0]);
    }
}

int main(int argc, char **argv)
{
    return story_main(argc, argv, take);
}
