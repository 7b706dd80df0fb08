/*
 * The state of the etcd rendezvous is JSON that anybody with access to etcd may have written. What
 * is understood can be edited, and the edit says what was meant; and a node that finds such texts,
 * one behind the other, at every turn, goes on.
 */
#include <stdlib.h>
#include <string.h>

#include "codec/rdzv/etcd_state.h"
#include "proto/rdzv/etcd.h"

#define STEPS_MAX 400

static void must(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void check_edit(struct mu_span text, const struct mu_retcd_state *was)
{
    struct mu_retcd_edit edits[] = {
        {.status = "closed"},
        {.join = was->status == MU_RETCD_JOINABLE, .status = "frozen", .empty_keep_alives = true},
        {.keep_alive = "/a/\"b\"_7", .status = "final", .set_waiting = true, .waiting = 3},
    };

    for (size_t i = 0; i < sizeof(edits) / sizeof(edits[0]); i++) {
        struct mu_retcd_state is;
        struct mu_buf out;
        bool has = false;
        uint64_t rank;

        if (i == 2 && was->status != MU_RETCD_FROZEN) {
            continue;
        }
        if (i == 1 && was->status != MU_RETCD_JOINABLE) {
            continue;
        }
        mu_buf_init(&out, 2 * MU_RETCD_STATE_MAX);
        must(mu_retcd_state_edit(text, &edits[i], &out) == 0);
        must(mu_retcd_state_decode(mu_buf_span(&out), &is) == 0);
        must(i != 0 || is.status == MU_RETCD_CLOSED);
        must(i != 1 || (is.status == MU_RETCD_FROZEN && is.keep_alives == 0 &&
                        is.participants == was->participants + 1 && is.version == was->version));
        must(i != 2 || (is.status == MU_RETCD_FINAL && is.waiting == 3 &&
                        is.keep_alives == was->keep_alives + 1));
        if (i == 2) {
            static const struct mu_etcd2_reply nothing;

            must(mu_retcd_state_has(mu_buf_span(&out), "a/\"b\"_7", &has) == 0 && has);
            must(mu_retcd_state_missing(mu_buf_span(&out), &nothing, NULL, &rank) == 1);
        }
        mu_buf_fini(&out);
    }
}

/* A node whose every read finds the next line, and whose writes all succeed. */
static void drive(struct mu_span in)
{
    struct mu_retcd_config config = mu_retcd_config_defaults();
    struct mu_etcd2_node node = {.modified = 7};
    struct mu_etcd2_reply reply = {.nodes = &node, .node_count = 1};
    struct mu_retcd_event event = {.type = MU_RETCD_JOIN};
    struct mu_retcd_update up;
    struct mu_retcd m;

    config.run_id = "r";
    config.min_nodes = 2;
    config.max_nodes = 4;
    must(mu_retcd_init(&m, &config) == 0);
    for (int i = 0; i < STEPS_MAX; i++) {
        const struct mu_retcd_lane *lane = &m.lanes[MU_RETCD_MAIN];

        mu_retcd_step(&m, &event, &up);
        event = (struct mu_retcd_event){.type = MU_RETCD_TIMEOUT, .now = mu_retcd_deadline(&m)};
        if (event.now.ns == UINT64_MAX) {
            event.now = m.now;
        }
        if (lane->out) {
            const uint8_t *end = in.len == 0 ? NULL : memchr(in.data, '\n', in.len);
            size_t len = end == NULL ? in.len : (size_t)(end - in.data);

            node.value = mu_span(in.data, len);
            if (lane->request.verb == MU_RETCD_GET) {
                in = mu_span_skip(in, end == NULL ? in.len : len + 1);
            }
            event = (struct mu_retcd_event){.type = MU_RETCD_ANSWER,
                                            .now = m.now,
                                            .lane = MU_RETCD_MAIN,
                                            .number = lane->request.number,
                                            .index = i,
                                            .reply = &reply};
        } else if (m.phase == MU_RETCD_P_OUT || m.phase == MU_RETCD_P_BETWEEN) {
            event.type = MU_RETCD_JOIN;
        }
        if (in.len == 0 && i > STEPS_MAX / 2) {
            break;
        }
    }
    mu_retcd_fini(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_retcd_state state;
    struct mu_buf out;

    if (mu_retcd_state_decode(in, &state) == 0) {
        check_edit(in, &state);
    }
    mu_buf_init(&out, 4 * MU_RETCD_STATE_MAX);
    if (mu_retcd_extra_edit(in, MU_SPAN_LIT("k\""), MU_SPAN_LIT("v\n"), &out) == 0) {
        struct mu_buf value;

        mu_buf_init(&value, 64);
        must(mu_retcd_extra_get(mu_buf_span(&out), MU_SPAN_LIT("k\""), &value) == 1);
        must(mu_span_eq(mu_buf_span(&value), MU_SPAN_LIT("v\n")));
        mu_buf_fini(&value);
    }
    mu_buf_fini(&out);
    drive(in);
    return 0;
}
