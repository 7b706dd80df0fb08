/*
 * Golden traces of a succession: a script, and the story it must produce (tests/lib/story.h). Up to
 * nine nodes a, b, c, ... in the minimal service of sim/scenarios/rdzv/succession_node.h.
 *
 *     nodes 3 endpoints 1      first; the rest begins with its time, which does not go back
 *     1s start a b c           these nodes are started
 *     1s run                   all messages are delivered, until there are none
 *     1s deliver a b           the next message from a to b
 *     1s form a                its room forms a round of all who have joined
 *     2s die a                 and what it has sent is lost
 *     2s lost b                it takes its host for lost
 *     2s unreached b           whom it asks at home cannot be reached
 *     2s drop a b              a takes its member b for lost
 *     2s tick b                its deadline has come
 *     2s explain b
 */
#include <inttypes.h>

#include "scenarios/rdzv/succession_node.h"
#include "story.h"

#define QUEUE_MAX 64

static struct succ_truth truth;
static struct succ_node nodes[SUCC_NODES_MAX];
static uint32_t node_count;
static uint32_t endpoints;
static struct {
    uint32_t count;
    struct succ_msg msgs[QUEUE_MAX];
} links[SUCC_NODES_MAX][SUCC_NODES_MAX];

static mu_mono_t now(void)
{
    return (mu_mono_t){story_now_ns};
}

static char name_of(uint32_t node)
{
    return (char)('a' + (int)node);
}

static uint32_t node_named(const char *name)
{
    if (name[0] < 'a' || (uint32_t)(name[0] - 'a') >= node_count || name[1] != '\0') {
        story_refuse("no such node", name);
    }
    return (uint32_t)(name[0] - 'a');
}

/* --- what is told ----------------------------------------------------------------------------- */

static const char *const steps[] = {"", "told", "bound", "committed"};

static void tell_msg(uint32_t from, uint32_t to, const struct succ_msg *m)
{
    const struct mu_succession_prepare *p = &m->u.prepare;
    char text[160] = "";

    switch (m->kind) {
    case SUCC_JOIN:
        (void)snprintf(text, sizeof(text), "join");
        break;
    case SUCC_JOINED:
        (void)snprintf(text, sizeof(text), "joined: term %" PRIu64, m->term);
        break;
    case SUCC_PREPARE:
        (void)snprintf(text, sizeof(text),
                       "prepare: %s, round %" PRIu64 " of term %" PRIu64 ", rank %d of %" PRIu32
                       ", %" PRIu32 " bases, the first round %" PRIu64,
                       steps[p->step], p->round.round, p->term, (int)p->round.rank, p->round.world,
                       p->base_count, p->bases[0].round);
        break;
    case SUCC_READY:
        (void)snprintf(text, sizeof(text), "ready: %s, round %" PRIu64, steps[m->step], m->round);
        break;
    case SUCC_ASSIGNED:
        (void)snprintf(text, sizeof(text), "assigned: round %" PRIu64 " of term %" PRIu64, m->round,
                       m->term);
        break;
    case SUCC_ASK:
        (void)snprintf(text, sizeof(text),
                       "ask: promises %" PRIu64 ", has promised %" PRIu64 "; round %" PRIu64
                       " of term %" PRIu64 " is %s, %" PRIu32 " may be the last",
                       m->u.ask.term, m->u.ask.promised, m->u.ask.view.round, m->u.ask.view.term,
                       steps[m->u.ask.view.step], m->u.ask.view.count);
        break;
    case SUCC_ANSWER:
        (void)snprintf(text, sizeof(text), "answer: %s %" PRIu64 " %c",
                       m->answer == MU_SUCCESSION_RAISE    ? "raise to"
                       : m->answer == MU_SUCCESSION_FORGET ? "forget, and follow"
                                                           : "follow",
                       m->term, name_of(m->about));
        break;
    default:
        (void)snprintf(text, sizeof(text), "%s",
                       m->kind == SUCC_BYE       ? "bye"
                       : m->kind == SUCC_LEAVE   ? "leave"
                       : m->kind == SUCC_HANG_UP ? "hang up"
                       : m->kind == SUCC_REFUSED ? "refused"
                       : m->kind == SUCC_PROBE   ? "probe"
                                                 : "probed");
        break;
    }
    story_tell("%c > %c  %s", name_of(from), name_of(to), text);
}

static void on_trace(void *context, const char *what, uint64_t a, uint64_t b)
{
    const struct succ_node *n = context;

    story_tell("    %c: %s %" PRIu64 " %" PRIu64, name_of((uint32_t)(n - nodes)), what, a, b);
}

static void on_failed(void *context, const char *what)
{
    (void)context;
    story_refuse("the checker says", what);
}

/* --- messages --------------------------------------------------------------------------------- */

static void on_send(void *context, uint32_t from, uint32_t to, const struct succ_msg *msg)
{
    (void)context;
    if (links[from][to].count == QUEUE_MAX) {
        story_refuse("a link is full", "");
    }
    links[from][to].msgs[links[from][to].count++] = *msg;
}

static bool deliver(uint32_t from, uint32_t to)
{
    struct succ_msg msg = links[from][to].msgs[0];

    if (links[from][to].count == 0) {
        return false;
    }
    links[from][to].count--;
    memmove(&links[from][to].msgs[0], &links[from][to].msgs[1],
            links[from][to].count * sizeof(msg));
    if (nodes[to].send != NULL) {
        if (from != to) {
            tell_msg(from, to, &msg);
        }
        succ_node_receive(&nodes[to], now(), from, &msg);
    }
    return true;
}

static void deliver_own(void)
{
    for (uint32_t i = 0; i < node_count; i++) {
        while (deliver(i, i)) {
        }
    }
}

static void run(void)
{
    bool any = true;

    while (any) {
        any = false;
        for (uint32_t i = 0; i < node_count * node_count; i++) {
            any = deliver(i / node_count, i % node_count) || any;
            deliver_own();
        }
    }
}

/* --- the script ------------------------------------------------------------------------------- */

static void start(uint32_t i)
{
    nodes[i].truth = &truth;
    nodes[i].send = on_send;
    nodes[i].failed = on_failed;
    nodes[i].trace = (struct mu_trace){.emit = on_trace, .context = &nodes[i]};
    succ_node_start(&nodes[i], now(), i, node_count, endpoints, false, i);
}

static void tick(uint32_t i)
{
    mu_mono_t at = mu_succession_deadline(&nodes[i].m);

    if (at.ns == UINT64_MAX) {
        story_refuse("nothing is waited for", "tick");
    }
    story_now_ns = at.ns > story_now_ns ? at.ns : story_now_ns;
    succ_node_tick(&nodes[i], now());
}

static void die(uint32_t i)
{
    nodes[i].send = NULL;
    for (uint32_t k = 0; k < node_count; k++) {
        links[i][k].count = 0;
    }
}

static void explain(uint32_t i)
{
    char text[256];

    mu_succession_explain(&nodes[i].m, text, sizeof(text));
    story_tell("    %c: \"%s\"", name_of(i), text);
}

static void take_node(const char *what, uint32_t i)
{
    if (strcmp(what, "start") == 0) {
        start(i);
    } else if (strcmp(what, "form") == 0) {
        succ_node_form(&nodes[i], now());
    } else if (strcmp(what, "die") == 0) {
        die(i);
    } else if (strcmp(what, "lost") == 0) {
        succ_node_lost(&nodes[i], now());
    } else if (strcmp(what, "unreached") == 0) {
        succ_node_unreached(&nodes[i], now(), nodes[i].m.home_call);
    } else if (strcmp(what, "tick") == 0) {
        tick(i);
    } else if (strcmp(what, "explain") == 0) {
        explain(i);
    } else {
        story_refuse("not a word", what);
    }
    deliver_own();
}

static void take(char **words, size_t count)
{
    if (strcmp(words[0], "nodes") == 0 && count == 4) {
        node_count = (uint32_t)strtoul(words[1], NULL, 10);
        endpoints = (uint32_t)strtoul(words[3], NULL, 10);
        return;
    }
    if (count < 2) {
        story_refuse("too few words", words[0]);
    }
    if (story_time_ns(words[0]) > story_now_ns) {
        story_now_ns = story_time_ns(words[0]);
    }
    if (strcmp(words[1], "run") == 0) {
        run();
    } else if (strcmp(words[1], "deliver") == 0 && count == 4) {
        (void)deliver(node_named(words[2]), node_named(words[3]));
        deliver_own();
    } else if (strcmp(words[1], "drop") == 0 && count == 4) {
        story_tell("%c drops %c", words[2][0], words[3][0]);
        succ_node_drop(&nodes[node_named(words[2])], now(), node_named(words[3]));
    } else {
        for (size_t i = 2; i < count; i++) {
            story_tell("%s %s", words[1], words[i]);
            take_node(words[1], node_named(words[i]));
        }
    }
}

int main(int argc, char **argv)
{
    return story_main(argc, argv, take);
}
