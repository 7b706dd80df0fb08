/* What an agent makes of its looks. */
#include "proto/stacks/straggle.h"

#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

#define LATE_INTERVALS 3
#define LONG_LOOKS     5 /* of one wait; the rest of it is not a matter of steps */

/* --- what a worker does ----------------------------------------------------------------------- */

struct wait {
    const char *file;     /* the end of its name, or a part that ends in a slash */
    const char *function; /* NULL: any */
    bool at_lock;         /* only if the thread sleeps there */
};

static const struct wait waits[] = {
    {"/torch/distributed/distributed_c10d.py", NULL, false},
    {"/torch/distributed/_functional_collectives.py", NULL, false},
    {"/torch/distributed/rendezvous.py", NULL, false},
    {"/torch/distributed/elastic/utils/store.py", NULL, false},
    {"/muster/store.py", NULL, false},
    {"/torch/cuda/__init__.py", "synchronize", false},
    {"/torch/cuda/streams.py", NULL, false},
    {"/torch/distributed/", NULL, true},
    {"/torch/autograd/__init__.py", NULL, true},
    {"/torch/autograd/graph.py", NULL, true},
    {"/torch/_tensor.py", "backward", true},
    {"/torch/nn/parallel/distributed.py", NULL, true},
};

static bool ends_with(struct mu_span text, const char *end)
{
    size_t len = strlen(end);

    return text.len >= len && memcmp(text.data + text.len - len, end, len) == 0;
}

static bool is_in(const struct mu_stacks_frame *frame, const struct wait *w)
{
    size_t len = strlen(w->file);

    return (w->function == NULL || ends_with(frame->function, w->function)) &&
           (w->file[len - 1] == '/'
                ? frame->file.len != 0 &&
                      memmem(frame->file.data, frame->file.len, w->file, len) != NULL
                : ends_with(frame->file, w->file));
}

enum mu_pacer_wait mu_pacer_wait_of(const struct mu_stacks_frame *frame)
{
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        if (is_in(frame, &waits[i])) {
            return waits[i].at_lock ? MU_PACER_WAIT_AT_LOCK : MU_PACER_WAIT;
        }
    }
    return MU_PACER_WAIT_NONE;
}

/* --- looks ------------------------------------------------------------------------------------ */

void mu_pacer_defaults(struct mu_pacer_config *config)
{
    *config = (struct mu_pacer_config){
        .interval_ns = MU_NS_PER_S, .span_ns = 10 * MU_NS_PER_S, .workers = 1};
}

int mu_pacer_init(struct mu_pacer *p, const struct mu_pacer_config *config)
{
    *p = (struct mu_pacer){.config = *config};
    if (config->workers == 0 || config->workers > MU_PACES_MAX || config->interval_ns == 0 ||
        config->interval_ns > UINT64_MAX / LATE_INTERVALS || config->span_ns == 0) {
        return MUSTER_EINVAL;
    }
    p->workers = mu_calloc(config->workers, sizeof(*p->workers));
    return p->workers == NULL ? MUSTER_ENOMEM : 0;
}

void mu_pacer_fini(struct mu_pacer *p)
{
    mu_free(p->workers);
    p->workers = NULL;
}

void mu_pacer_start(struct mu_pacer *p, uint32_t worker, uint32_t rank)
{
    MU_ASSERT(worker < p->config.workers);
    p->workers[worker] = (struct mu_pacer_worker){.pace = {.rank = rank}};
}

/* The fractions of multiples of the golden ratio: the sums of these gaps are spread evenly over
 * a step of any length. */
uint64_t mu_pacer_gap_ns(const struct mu_pacer *p)
{
    uint64_t fraction = (p->looks * UINT64_C(0x9e3779b97f4a7c15)) >> 44;

    return p->config.interval_ns / 2 + (p->config.interval_ns >> 20) * fraction;
}

static void begin_span(struct mu_pacer *p, mu_mono_t now)
{
    p->began = now;
    for (uint32_t i = 0; i < p->config.workers; i++) {
        p->workers[i].pace = (struct mu_pace){.rank = p->workers[i].pace.rank};
        p->workers[i].delay_ns = 0;
    }
}

static void look_at(struct mu_pacer_worker *w, const struct mu_pacer_look *look)
{
    const struct mu_pacer_look *last = &w->last;

    if (w->looked && look->delay_ns > last->delay_ns) {
        w->delay_ns += look->delay_ns - last->delay_ns;
    }
    if (w->looked && look->marks > last->marks) {
        uint64_t marks = look->marks - last->marks;

        w->pace.marks += marks < UINT32_MAX - w->pace.marks ? (uint32_t)marks : 0;
    }
    w->waits = look->stance == MU_PACER_WAITS ? w->waits + 1 : 0;
    if (look->stance != MU_PACER_UNSEEN && w->waits <= LONG_LOOKS && w->pace.looks < UINT16_MAX) {
        w->pace.looks++;
        if (look->stance == MU_PACER_WAITS) {
            w->pace.waits++;
        } else if (last->stance == MU_PACER_WAITS) {
            w->pace.turns++;
        }
    }
    w->last = *look;
    w->looked = true;
}

void mu_pacer_look(struct mu_pacer *p, mu_mono_t now, const struct mu_pacer_look *looks)
{
    bool late =
        p->looked && mu_mono_since(p->looked_at, now) > LATE_INTERVALS * p->config.interval_ns;

    if (!p->looked || late) {
        begin_span(p, now);
    }
    for (uint32_t i = 0; i < p->config.workers; i++) {
        if (late) {
            p->workers[i].last = looks[i];
            p->workers[i].last.stance = MU_PACER_UNSEEN;
        } else {
            look_at(&p->workers[i], &looks[i]);
        }
    }
    p->looks++;
    p->looked_at = now;
    p->looked = true;
}

static uint16_t permille(uint64_t part, uint64_t whole)
{
    return whole == 0 ? 0 : part >= whole ? 1000 : (uint16_t)((double)part * 1000 / (double)whole);
}

bool mu_pacer_take(struct mu_pacer *p, mu_mono_t now, struct mu_pace *paces)
{
    uint64_t ns = mu_mono_since(p->began, now);

    if (!p->looked || ns < p->config.span_ns) {
        return false;
    }
    for (uint32_t i = 0; i < p->config.workers; i++) {
        paces[i] = p->workers[i].pace;
        paces[i].delay_permille = permille(p->workers[i].delay_ns, ns);
    }
    p->span++;
    begin_span(p, now);
    return true;
}
