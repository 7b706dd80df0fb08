/* The text of a failure: which nodes are missing, and how many. */
#include <stdarg.h>
#include <stdio.h>

#include "proto/rdzv/node_internal.h"

#define NAMES_MAX 8

/* Appends to the text, which is cut if it does not fit. */
__attribute__((format(printf, 2, 3))) static void say(struct mu_errmsg *e, const char *format, ...)
{
    size_t n = strlen(e->text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(e->text + n, sizeof(e->text) - n, format, args);
    va_end(args);
}

static void say_time(struct mu_errmsg *e, uint64_t ms)
{
    if (ms % 1000 == 0) {
        say(e, "%llu s", (unsigned long long)(ms / 1000));
    } else {
        say(e, "%llu ms", (unsigned long long)ms);
    }
}

/* Writes a node as PyTorch does: address_pid_number. The address comes from another node, so it is
 * quoted. */
static void say_node(struct mu_errmsg *e, const struct mu_rdzv_node *node)
{
    char plain[128];
    char quoted[64];

    (void)snprintf(plain, sizeof(plain), "%.64s_%lld_%lld", node->addr, (long long)node->pid,
                   (long long)node->local_id);
    say(e, "%s", mu_span_quote(quoted, sizeof(quoted), mu_span_str(plain)));
}

/* Lists the nodes in the round that is being formed. */
static void say_participants(struct mu_errmsg *e, const struct mu_rdzv_state *s)
{
    size_t count = mu_rdzv_participants(s);
    size_t said = 0;

    for (size_t i = 0; i < s->member_count && said < NAMES_MAX; i++) {
        const struct mu_rdzv_member *m = &s->members[s->order[i]];

        if (m->participant) {
            say(e, "%s", said == 0 ? ": " : ", ");
            say_node(e, &m->node);
            said++;
        }
    }
    if (count > said) {
        say(e, " and %zu more", count - said);
    }
}

/* Only nodes of our last round can be known to be missing. */
static void say_missing(struct mu_errmsg *e, const struct mu_rdzv *r)
{
    size_t missing = 0;

    for (size_t i = 0; i < r->roster.member_count; i++) {
        const struct mu_rdzv_member *was = &r->roster.members[r->roster.order[i]];
        const struct mu_rdzv_member *is = mu_rdzv_state_find(&r->state, &was->node);

        if (was->participant && (is == NULL || !is->participant)) {
            if (missing < NAMES_MAX) {
                say(e, "%s", missing == 0 ? "; missing of the round before: " : ", ");
                say_node(e, &was->node);
            }
            missing++;
        }
    }
    if (missing > NAMES_MAX) {
        say(e, " and %zu more", missing - NAMES_MAX);
    }
}

void mu_rdzv_node_say_join_timeout(struct mu_rdzv *r)
{
    const struct mu_rdzv_settings *set = &r->config.settings;
    const struct mu_rdzv_state *s = &r->state;
    const struct mu_rdzv_member *me = mu_rdzv_state_find(s, &r->node);
    struct mu_errmsg *e = &r->v.why;
    size_t count = mu_rdzv_participants(s);

    (void)mu_err(e, 0, "timed out after ");
    say_time(e, set->join_timeout_ms);
    if (!s->complete) {
        bool enough = count >= set->min_nodes;

        say(e, ": %zu of %zu nodes joined", count, enough ? set->max_nodes : set->min_nodes);
        if (enough) {
            say(e, ", and the last call did not end");
        }
        say_participants(e, s);
        say_missing(e, r);
        return;
    }
    if (me != NULL && me->waiting) {
        size_t waiting = mu_rdzv_waiting(s);

        say(e, ": round %lld did not end (%zu %s for it); it is held by %zu", (long long)s->round,
            waiting, waiting == 1 ? "waits" : "wait", count);
    } else {
        say(e, ": round %lld had no room, with %zu of %zu nodes in it", (long long)s->round, count,
            set->max_nodes);
    }
    say_participants(e, s);
}

bool mu_rdzv_say_join(const struct mu_rdzv *r, struct mu_errmsg *ret)
{
    const struct mu_rdzv_settings *set = &r->config.settings;
    const struct mu_rdzv_state *s = mu_rdzv_state(r);
    size_t count = s == NULL ? 0 : mu_rdzv_participants(s);
    bool lacks = s != NULL && !s->complete && count < set->min_nodes;

    ret->text[0] = '\0';
    if (s == NULL) {
        say(ret, "the state of the rendezvous was asked for, and has not come yet");
        return false;
    }
    if (lacks) {
        say(ret, "%zu of %s%zu nodes are here", count,
            set->min_nodes == set->max_nodes ? "" : "at least ", set->min_nodes);
    } else if (!s->complete && count < set->max_nodes) {
        say(ret, "%zu of at most %zu nodes are here, last call for more", count, set->max_nodes);
    } else if (!s->complete) {
        /* Whoever comes last begins the round, by its own numbers. */
        say(ret,
            "%zu of at most %zu nodes are here, and the round does not begin; check that all nodes "
            "have the same --nnodes",
            count, set->max_nodes);
    } else {
        say(ret, "round %lld runs with %zu nodes, and this node waits for the next one",
            (long long)s->round, count);
    }
    say_participants(ret, s);
    if (!s->complete) {
        say_missing(ret, r);
    }
    return lacks;
}

void mu_rdzv_node_say_closed(struct mu_rdzv *r)
{
    (void)mu_err(&r->v.why, 0, "the rendezvous was closed in round %lld",
                 (long long)r->state.round);
}

void mu_rdzv_node_say_timeout(struct mu_rdzv *r, const char *what, uint64_t ms)
{
    (void)mu_err(&r->v.why, 0, "%s within ", what);
    say_time(&r->v.why, ms);
    if (r->v.losses > 1) {
        say(&r->v.why, ": %u writes in a row were lost to others", (unsigned)r->v.losses);
    }
}

void mu_rdzv_node_say_backend(struct mu_rdzv *r, int status, const char *text)
{
    (void)mu_err(&r->v.why, 0, "%s",
                 text != NULL && *text != '\0' ? text : muster_strerror(status));
    if (r->v.failures > 1) {
        say(&r->v.why, " (%u failures in a row)", (unsigned)r->v.failures);
    }
}
