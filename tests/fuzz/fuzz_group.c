/*
 * Reports of many workers, each after its length (2 bytes): those that can be read are grouped, and
 * the page, the sentence and the JSON can be written, stay as short as they must, and hold nothing
 * that a terminal would obey.
 */
#include "core/assert.h"
#include "core/reader.h"
#include "proto/stacks/group.h"
#include "proto/stacks/stance.h"

static void check_printable(struct mu_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        MU_ASSERT(text.data[i] == '\n' || (text.data[i] >= ' ' && text.data[i] != 0x7f));
    }
}

static void check_written(struct mu_groups *g, int (*write)(struct mu_groups *, struct mu_buf *))
{
    struct mu_buf out;

    mu_buf_init(&out, (size_t)8 << 20);
    MU_ASSERT(write(g, &out) == 0);
    check_printable(mu_buf_span(&out));
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader r = mu_reader(mu_span(data, size));
    struct mu_groups_config config;
    struct mu_groups g;
    uint32_t added = 0;

    mu_groups_defaults(&config);
    config.world = 16;
    mu_groups_init(&g, &config);
    while (r.rest.len > 2 && !r.failed) {
        struct mu_span bytes = mu_read_bytes(&r, mu_read_u16(&r));
        struct mu_stacks_report report;

        if (!r.failed && mu_stacks_report_decode(bytes, &report) == 0) {
            MU_ASSERT(mu_groups_add(&g, &report) == 0);
            MU_ASSERT(mu_stance_of(&report) <= MU_STANCE_PERHAPS);
            MU_ASSERT(mu_stance_place(&report) == mu_stance_place(&report));
            added++;
        }
    }
    MU_ASSERT(g.rank_count == added && g.places.count <= added && g.stacks.count <= added);
    check_written(&g, mu_groups_write_line);
    check_written(&g, mu_groups_write_text);
    check_written(&g, mu_groups_write_json);
    mu_groups_fini(&g);
    return 0;
}
