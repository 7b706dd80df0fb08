/* Groups of stacks as a sentence, as a page, and as JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/stacks/place.h"
#include "codec/text/json_string.h"
#include "core/alloc.h"
#include "core/printable.h"
#include "proto/stacks/group_internal.h"

#define RANGES_CAP 160 /* bytes of the ranks of one group */
#define SHOWN_CAP  512

/* What is shown: the groups in their order, and the ranks sorted. */
struct page {
    const struct mu_groups *g;
    bool by_place;
    struct mu_group **groups;
    uint32_t group_count;
    uint32_t shown;
    uint32_t *ranks; /* room for those of one group, or for those that are missing */
    struct mu_buf *out;
    int err;
};

__attribute__((format(printf, 2, 3))) static void say(struct page *p, const char *format, ...)
{
    char text[2 * SHOWN_CAP];
    va_list args;
    int len;

    va_start(args, format);
    len = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (p->err == 0 && len > 0) {
        size_t most = (size_t)len < sizeof(text) ? (size_t)len : sizeof(text) - 1;

        p->err = mu_buf_append(p->out, mu_span(text, most));
    }
}

static void say_json(struct page *p, struct mu_span text)
{
    char clean[MU_PRINTABLE_MAX * (MU_GROUPS_TEXT_MAX + 1)];
    char quoted[2 * sizeof(clean)];
    size_t len = mu_printable(clean, sizeof(clean), text, false);

    len = mu_json_quote(mu_span(clean, len), quoted, sizeof(quoted));
    if (p->err == 0) {
        p->err = mu_buf_append(p->out, mu_span(quoted, len < sizeof(quoted) ? len : 0));
    }
}

size_t mu_groups_ranges(char *out, size_t cap, const uint32_t *ranks, size_t count)
{
    size_t len = 0;
    size_t i = 0;

    out[0] = '\0';
    while (i < count) {
        char range[32];
        char more[32];
        size_t end = i + 1;
        int range_len;

        while (end < count && ranks[end] == ranks[end - 1] + 1) {
            end++;
        }
        range_len = end - i == 1
                        ? snprintf(range, sizeof(range), "%s%u", i == 0 ? "" : ",", ranks[i])
                        : snprintf(range, sizeof(range), "%s%u%c%u", i == 0 ? "" : ",", ranks[i],
                                   end - i == 2 ? ',' : '-', ranks[end - 1]);
        /* The words that end the list must still fit after every range but the last. */
        if (len + (size_t)range_len + (end < count ? sizeof(more) - 8 : 1) > cap) {
            (void)snprintf(more, sizeof(more), "%s%zu more", i == 0 ? "" : " and ", count - i);
            return len + (size_t)snprintf(out + len, cap - len, "%s", more);
        }
        memcpy(out + len, range, (size_t)range_len + 1);
        len += (size_t)range_len;
        i = end;
    }
    return len;
}

/* --- the order -------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b)
{
    const struct mu_group_rank *x = a;
    const struct mu_group_rank *y = b;

    return (x->rank > y->rank) - (x->rank < y->rank);
}

/* The odd ones first: small groups before large ones. */
static int compare_groups(const void *a, const void *b)
{
    const struct mu_group *x = *(struct mu_group *const *)a;
    const struct mu_group *y = *(struct mu_group *const *)b;

    if (x->count != y->count) {
        return x->count < y->count ? -1 : 1;
    }
    return (x->first > y->first) - (x->first < y->first);
}

static uint32_t group_of(const struct page *p, const struct mu_group_rank *rank)
{
    return p->by_place ? rank->place : rank->stack;
}

static int begin_page(struct page *p, struct mu_groups *g, struct mu_buf *out)
{
    size_t room = g->rank_count > g->config.world ? g->rank_count : g->config.world;
    const struct mu_group_set *set;

    *p = (struct page){.g = g, .out = out};
    p->by_place = g->stacks.full || g->stacks.count > g->config.groups_shown_max;
    set = p->by_place ? &g->places : &g->stacks;
    p->groups = mu_calloc((size_t)set->count + 1, sizeof(struct mu_group *));
    p->ranks = mu_calloc(room + 1, sizeof(*p->ranks));
    if (p->groups == NULL || p->ranks == NULL) {
        mu_free(p->groups);
        mu_free(p->ranks);
        return MUSTER_ENOMEM;
    }
    if (g->rank_count != 0) {
        qsort(g->ranks, g->rank_count, sizeof(*g->ranks), compare_ranks);
    }
    for (uint32_t i = 0; i < set->count; i++) {
        p->groups[i] = set->groups[i];
        p->groups[i]->first = UINT32_MAX;
    }
    for (uint32_t i = g->rank_count; i-- > 0;) {
        if (group_of(p, &g->ranks[i]) != MU_GROUP_NONE) {
            p->groups[group_of(p, &g->ranks[i])]->first = g->ranks[i].rank;
        }
    }
    qsort(p->groups, set->count, sizeof(*p->groups), compare_groups);
    p->group_count = set->count;
    p->shown = set->count < g->config.groups_shown_max ? set->count : g->config.groups_shown_max;
    return 0;
}

static int end_page(struct page *p)
{
    mu_free(p->groups);
    mu_free(p->ranks);
    return p->err;
}

/* The group that is shown at place `i`. When not all fit, the last place is for the largest: what
 * most ranks do must be seen, too. */
static const struct mu_group *shown_at(const struct page *p, uint32_t i)
{
    return p->groups[i + 1 == p->shown ? p->group_count - 1 : i];
}

static const char *ranges_of(struct page *p, const struct mu_group *group, char text[RANGES_CAP])
{
    size_t count = 0;

    for (uint32_t i = 0; i < p->g->rank_count; i++) {
        const struct mu_group_rank *rank = &p->g->ranks[i];

        if (group_of(p, rank) == group->number) {
            p->ranks[count++] = rank->rank;
        }
    }
    (void)mu_groups_ranges(text, RANGES_CAP, p->ranks, count);
    return text;
}

/* Ranks of the world without a report. */
static size_t find_missing(struct page *p)
{
    uint32_t next = 0;
    size_t count = 0;

    for (uint32_t rank = 0; rank < p->g->config.world; rank++) {
        while (next < p->g->rank_count && p->g->ranks[next].rank < rank) {
            next++;
        }
        if (next == p->g->rank_count || p->g->ranks[next].rank != rank) {
            p->ranks[count++] = rank;
        }
    }
    return count;
}

static uint32_t count_shown(const struct page *p)
{
    uint32_t ranks = 0;

    for (uint32_t i = 0; i < p->shown; i++) {
        ranks += shown_at(p, i)->count;
    }
    return ranks;
}

/* --- words ------------------------------------------------------------------------------------ */

static void say_who(struct page *p, const struct mu_group *group, bool ranges)
{
    char text[RANGES_CAP];

    if (group->count == 1 && group->first == MU_STACKS_NO_RANK) {
        say(p, "a process without a rank");
    } else if (group->count == 1) {
        say(p, "rank %u", group->first);
    } else if (ranges) {
        say(p, "%u ranks (%s)", group->count, ranges_of(p, group, text));
    } else {
        say(p, "%u ranks", group->count);
    }
}

static void say_where(struct page *p, const struct mu_group *group)
{
    struct mu_group_view view = mu_group_view(group->node.key);
    struct mu_stacks_frame place;
    char function[SHOWN_CAP];
    char file[SHOWN_CAP];

    if (!mu_group_place(group->node.key, &place)) {
        (void)mu_printable(function, sizeof(function), view.note, false);
        say(p, "%s not in Python code that could be read%s%s", view.stopped ? " stopped," : "",
            view.note.len == 0 ? "" : ": ", function);
        return;
    }
    (void)mu_printable(function, sizeof(function), place.function, false);
    (void)mu_printable(file, sizeof(file), mu_place_base(place.file), false);
    say(p, "%s in %s at %s:%u", view.stopped ? " stopped" : "", function, file, place.line);
}

static void say_more(struct page *p, const char *before, const char *after)
{
    uint32_t ranks = p->g->rank_count - count_shown(p);
    uint32_t groups = p->group_count - p->shown;

    if (ranks != 0) {
        say(p, "%s%u more rank%s in %u more place%s%s%s", before, ranks, ranks == 1 ? "" : "s",
            groups, groups == 1 ? "" : "s", p->g->places.full && p->by_place ? " at least" : "",
            after);
    }
}

int mu_groups_write_line(struct mu_groups *g, struct mu_buf *out)
{
    struct page p;
    int err = begin_page(&p, g, out);

    if (err != 0) {
        return err;
    }
    for (uint32_t i = 0; i < p.shown; i++) {
        say(&p, "%s", i == 0 ? "" : "; ");
        say_who(&p, shown_at(&p, i), false);
        say_where(&p, shown_at(&p, i));
    }
    say_more(&p, "; ", "");
    return end_page(&p);
}

static void say_frames(struct page *p, const struct mu_group *group)
{
    struct mu_group_view view = mu_group_view(group->node.key);
    struct mu_stacks_frame frame;
    uint32_t count = 0;

    while (mu_group_next(&view, &frame)) {
        char function[SHOWN_CAP];
        char file[SHOWN_CAP];

        if (count++ < p->g->config.frames_shown_max) {
            (void)mu_printable(function, sizeof(function), frame.function, false);
            (void)mu_printable(file, sizeof(file), frame.file, false);
            say(p, "    %s (%s:%u)\n", function, file, frame.line);
        }
    }
    if (count > p->g->config.frames_shown_max) {
        say(p, "    and %u outer frames\n", count - p->g->config.frames_shown_max);
    }
}

int mu_groups_write_text(struct mu_groups *g, struct mu_buf *out)
{
    char text[RANGES_CAP];
    struct page p;
    size_t missing;
    int err = begin_page(&p, g, out);

    if (err != 0) {
        return err;
    }
    missing = find_missing(&p);
    if (missing != 0) {
        (void)mu_groups_ranges(text, sizeof(text), p.ranks, missing);
        say(&p, "no report from %s %s\n", missing == 1 ? "rank" : "ranks", text);
    }
    for (uint32_t i = 0; i < p.shown; i++) {
        say_who(&p, shown_at(&p, i), true);
        say_where(&p, shown_at(&p, i));
        say(&p, "\n");
        if (!p.by_place) {
            say_frames(&p, shown_at(&p, i));
        }
    }
    say_more(&p, "", "\n");
    return end_page(&p);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void say_json_frame(struct page *p, const struct mu_stacks_frame *frame)
{
    say(p, "\"function\":");
    say_json(p, frame->function);
    say(p, ",\"file\":");
    say_json(p, frame->file);
    say(p, ",\"line\":%u", frame->line);
}

static void say_json_frames(struct page *p, const struct mu_group *group)
{
    struct mu_group_view view = mu_group_view(group->node.key);
    struct mu_stacks_frame frame;
    bool first = true;

    say(p, ",\"frames\":[");
    while (mu_group_next(&view, &frame)) {
        say(p, first ? "{" : ",{");
        say_json_frame(p, &frame);
        say(p, "}");
        first = false;
    }
    say(p, "]");
}

static void say_json_group(struct page *p, const struct mu_group *group)
{
    struct mu_group_view view = mu_group_view(group->node.key);
    struct mu_stacks_frame place;
    char text[RANGES_CAP];

    say(p, "{\"count\":%u,\"ranks\":\"%s\",\"stopped\":%s", group->count, ranges_of(p, group, text),
        view.stopped ? "true" : "false");
    if (mu_group_place(group->node.key, &place)) {
        say(p, ",");
        say_json_frame(p, &place);
    }
    if (view.note.len != 0) {
        say(p, ",\"note\":");
        say_json(p, view.note);
    }
    if (!p->by_place) {
        say_json_frames(p, group);
    }
    say(p, "}");
}

int mu_groups_write_json(struct mu_groups *g, struct mu_buf *out)
{
    char text[RANGES_CAP];
    struct page p;
    size_t missing;
    int err = begin_page(&p, g, out);

    if (err != 0) {
        return err;
    }
    missing = find_missing(&p);
    (void)mu_groups_ranges(text, sizeof(text), p.ranks, missing);
    say(&p,
        "{\"reports\":%u,\"missing\":{\"count\":%zu,\"ranks\":\"%s\"},\"by\":\"%s\",\"groups\":[",
        g->rank_count, missing, text, p.by_place ? "line" : "stack");
    for (uint32_t i = 0; i < p.shown; i++) {
        say(&p, "%s", i == 0 ? "" : ",");
        say_json_group(&p, shown_at(&p, i));
    }
    say(&p, "],\"more\":{\"groups\":%u,\"ranks\":%u}}", p.group_count - p.shown,
        g->rank_count - count_shown(&p));
    return end_page(&p);
}
