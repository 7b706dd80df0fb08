#include <muster/error.h>

#include "codec/stacks/place.h"
#include "core/alloc.h"
#include "proto/stacks/group_internal.h"

#define KEY_BYTES_MAX ((size_t)MU_STACKS_REPORT_BYTES_MAX)

void mu_groups_defaults(struct mu_groups_config *config)
{
    *config = (struct mu_groups_config){.groups_shown_max = 10, .frames_shown_max = 5};
}

void mu_groups_init(struct mu_groups *g, const struct mu_groups_config *config)
{
    *g = (struct mu_groups){.config = *config,
                            .stacks = {.count_max = MU_GROUPS_STACKS_MAX},
                            .places = {.count_max = MU_GROUPS_PLACES_MAX}};
    if (g->config.world > MU_GROUPS_RANKS_MAX) {
        g->config.world = 0;
    }
    mu_map_init(&g->stacks.map, 0);
    mu_map_init(&g->places.map, 0);
    mu_buf_init(&g->key, KEY_BYTES_MAX);
}

static void free_set(struct mu_group_set *set)
{
    for (uint32_t i = 0; i < set->count; i++) {
        mu_free(set->groups[i]);
    }
    mu_free(set->groups);
    mu_map_fini(&set->map);
}

void mu_groups_fini(struct mu_groups *g)
{
    free_set(&g->stacks);
    free_set(&g->places);
    mu_free(g->ranks);
    mu_buf_fini(&g->key);
}

/* --- a group as bytes ------------------------------------------------------------------------- */

struct mu_group_view mu_group_view(struct mu_span key)
{
    struct mu_group_view view = {.frames = mu_reader(key)};

    view.stopped = mu_read_u8(&view.frames) != 0;
    view.note = mu_read_bytes(&view.frames, mu_read_u16(&view.frames));
    return view;
}

bool mu_group_next(struct mu_group_view *view, struct mu_stacks_frame *ret_frame)
{
    struct mu_reader *r = &view->frames;

    if (r->rest.len == 0) {
        return false;
    }
    ret_frame->line = mu_read_u32(r);
    ret_frame->function = mu_read_bytes(r, mu_read_u16(r));
    ret_frame->file = mu_read_bytes(r, mu_read_u16(r));
    return !r->failed;
}

static int put_text(struct mu_buf *b, struct mu_span text, bool keep_end)
{
    size_t len = text.len < MU_GROUPS_TEXT_MAX ? text.len : MU_GROUPS_TEXT_MAX;
    int err = mu_buf_reserve(b, 2 + len);

    if (err == 0) {
        mu_buf_put_u16(b, (uint16_t)len);
        mu_buf_put(b, keep_end ? mu_span_skip(text, text.len - len) : mu_span(text.data, len));
    }
    return err;
}

static int put_head(struct mu_buf *b, bool stopped, struct mu_span note)
{
    int err;

    mu_buf_reset(b);
    err = mu_buf_reserve(b, 1);
    if (err != 0) {
        return err;
    }
    mu_buf_put_u8(b, stopped ? 'T' : 0);
    return put_text(b, note, false);
}

static int put_frame(struct mu_buf *b, const struct mu_stacks_frame *frame)
{
    int err = mu_buf_reserve(b, 4);

    if (err != 0) {
        return err;
    }
    mu_buf_put_u32(b, frame->line);
    err = put_text(b, frame->function, false);
    return err != 0 ? err : put_text(b, frame->file, true);
}

/* A stack, as bytes. A worker whose stack could not be read is known by the note that says why. */
static int make_stack(struct mu_buf *b, const struct mu_stacks_report *report)
{
    struct mu_stacks_threads threads = report->threads;
    struct mu_stacks_thread thread = {0};
    struct mu_stacks_frame frame;
    bool seen = mu_stacks_thread_next(&threads, &thread) == 0 && thread.main;
    bool empty = !seen || thread.frame_count == 0;
    int err = put_head(b, seen && thread.state == 'T', empty ? report->note : MU_SPAN_LIT(""));

    while (err == 0 && seen && mu_stacks_frame_next(&thread.frames, &frame) == 0) {
        err = put_frame(b, &frame);
    }
    return err;
}

/* Functions that only call what was meant. */
static bool is_wrapper(struct mu_span function)
{
    static const char *const names[] = {"wrapper",          "_fn",     "inner",
                                        "decorate_context", "wrapped", "_wrapped_call_impl",
                                        "_call_impl",       "__call__"};

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t len = strlen(names[i]);

        /* The name may have that of its class or function before it. */
        if (function.len >= len && memcmp(function.data + function.len - len, names[i], len) == 0 &&
            (function.len == len || function.data[function.len - len - 1] == '.')) {
            return true;
        }
    }
    return false;
}

bool mu_group_place(struct mu_span key, struct mu_stacks_frame *ret_place)
{
    struct mu_group_view view = mu_group_view(key);
    struct mu_stacks_frame frame;
    struct mu_span called = {0};
    bool any = false;

    while (mu_group_next(&view, &frame)) {
        if (!any) {
            *ret_place = frame;
            any = true;
        }
        if (!mu_place_is_library(frame.file)) {
            *ret_place = frame;
            ret_place->function = called.len != 0 ? called : frame.function;
            return true;
        }
        if (!is_wrapper(frame.function)) {
            called = frame.function;
        }
    }
    return any;
}

/* --- adding ----------------------------------------------------------------------------------- */

static int make_group(struct mu_group_set *set, struct mu_span key, struct mu_group **ret_group)
{
    struct mu_group *group = mu_malloc(sizeof(*group) + key.len);
    int err;

    if (group == NULL) {
        return MUSTER_ENOMEM;
    }
    *group = (struct mu_group){.number = set->count};
    memcpy(group->bytes, key.data, key.len);
    if (set->groups == NULL) {
        set->groups = mu_calloc(set->count_max, sizeof(struct mu_group *));
    }
    err = set->groups == NULL
              ? MUSTER_ENOMEM
              : mu_map_insert(&set->map, &group->node, mu_span(group->bytes, key.len));
    if (err != 0) {
        mu_free(group);
        return err;
    }
    set->groups[set->count++] = group;
    *ret_group = group;
    return 0;
}

/* The group with that key; NULL, without an error, if it is new and there is no room for it. */
static int find_group(struct mu_group_set *set, struct mu_span key, struct mu_group **ret_group)
{
    struct mu_map_node *node = mu_map_find(&set->map, key);

    *ret_group = (struct mu_group *)(void *)node;
    if (node != NULL) {
        return 0;
    }
    if (set->count == set->count_max) {
        set->full = true;
        return 0;
    }
    return make_group(set, key, ret_group);
}

static int make_place(struct mu_groups *g, struct mu_group **ret_group)
{
    struct mu_span stack = mu_buf_span(&g->key);
    struct mu_group_view view = mu_group_view(stack);
    struct mu_stacks_frame place = {0};
    bool any = mu_group_place(stack, &place);
    struct mu_buf key;
    int err;

    mu_buf_init(&key, KEY_BYTES_MAX);
    err = put_head(&key, view.stopped, view.note);
    if (err == 0 && any) {
        err = put_frame(&key, &place);
    }
    if (err == 0) {
        err = find_group(&g->places, mu_buf_span(&key), ret_group);
    }
    mu_buf_fini(&key);
    return err;
}

static int make_room(struct mu_groups *g)
{
    uint32_t cap = g->rank_cap == 0 ? 64 : 2 * g->rank_cap;
    struct mu_group_rank *grown;

    if (g->rank_count == MU_GROUPS_RANKS_MAX) {
        return MUSTER_ELIMIT;
    }
    if (g->rank_count < g->rank_cap) {
        return 0;
    }
    grown = mu_realloc(g->ranks, cap * sizeof(*grown));
    if (grown == NULL) {
        return MUSTER_ENOMEM;
    }
    g->ranks = grown;
    g->rank_cap = cap;
    return 0;
}

int mu_groups_add(struct mu_groups *g, const struct mu_stacks_report *report)
{
    struct mu_group *stack = NULL;
    struct mu_group *place = NULL;
    int err = make_room(g);

    if (err == 0) {
        err = make_stack(&g->key, report);
    }
    if (err == 0) {
        err = make_place(g, &place);
    }
    if (err == 0) {
        err = find_group(&g->stacks, mu_buf_span(&g->key), &stack);
    }
    if (err != 0) {
        return err;
    }
    if (stack != NULL) {
        stack->count++;
    }
    if (place != NULL) {
        place->count++;
    }
    g->ranks[g->rank_count++] =
        (struct mu_group_rank){.rank = report->rank,
                               .stack = stack == NULL ? MU_GROUP_NONE : stack->number,
                               .place = place == NULL ? MU_GROUP_NONE : place->number};
    return 0;
}
