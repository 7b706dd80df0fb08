/*
 * The dump of a flight recorder: any bytes are refused in words or read, and what was read refers
 * only to what is there. It can be compared with a shorter one of another rank.
 */
#include "codec/stacks/flight.h"
#include "core/assert.h"
#include "proto/stacks/flight_compare.h"

static void check_text(const struct mu_flight *f, uint32_t text)
{
    MU_ASSERT(text < f->text_len);
    MU_ASSERT(strlen(mu_flight_text(f, text)) <= MU_FLIGHT_TEXT_MAX);
}

static void check_entry(const struct mu_flight *f, const struct mu_flight_entry *e)
{
    MU_ASSERT(e->group < f->group_count);
    MU_ASSERT(e->state >= MU_FLIGHT_SCHEDULED && e->state <= MU_FLIGHT_COMPLETED);
    check_text(f, e->name);
    check_text(f, e->function);
    check_text(f, e->file);
    check_text(f, e->inputs.sizes);
    check_text(f, e->inputs.types);
    check_text(f, e->outputs.sizes);
    check_text(f, e->outputs.types);
}

static void check_compare(const struct mu_flight *f)
{
    struct mu_flight shorter = *f;
    struct mu_flight_dump dumps[] = {{0, f}, {1, f}, {2, &shorter}};
    struct mu_flight_compare c;

    shorter.entry_count /= 2;
    mu_flight_compare_init(&c);
    MU_ASSERT(mu_flight_compare(&c, dumps, 3) == 0);
    for (size_t i = 0; i < c.finding_count; i++) {
        MU_ASSERT(c.findings[i].text[0] != '\0' && c.findings[i].count != 0);
        MU_ASSERT((size_t)c.findings[i].first + c.findings[i].count <= c.rank_count);
    }
    mu_flight_compare_fini(&c);
}

/* What is left of it when it is shortened can be read, and says no less of its groups. */
static void check_brief(const struct mu_flight *f)
{
    struct mu_errmsg msg = {{0}};
    struct mu_flight brief;
    struct mu_buf out;

    mu_buf_init(&out, (size_t)64 << 10);
    mu_flight_init(&brief);
    if (mu_flight_brief(f, &out) == 0) {
        MU_ASSERT(mu_flight_decode(&brief, mu_buf_span(&out), &msg) == 0);
        MU_ASSERT(brief.group_count == f->group_count && brief.entry_count <= f->entry_count);
        check_compare(&brief);
    }
    mu_flight_fini(&brief);
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_errmsg msg = {{0}};
    struct mu_flight f;

    mu_flight_init(&f);
    if (mu_flight_decode(&f, mu_span(data, size), &msg) == 0) {
        for (size_t i = 0; i < f.entry_count; i++) {
            check_entry(&f, &f.entries[i]);
        }
        for (size_t i = 0; i < f.group_count; i++) {
            check_text(&f, f.groups[i].name);
            check_text(&f, f.groups[i].desc);
            MU_ASSERT((size_t)f.groups[i].first + f.groups[i].count <= f.rank_count);
        }
        check_text(&f, f.version);
        check_compare(&f);
        check_brief(&f);
    } else {
        MU_ASSERT(msg.text[0] != '\0' && f.entries == NULL && f.texts == NULL);
    }
    mu_flight_fini(&f);
    return 0;
}
