/*
 * PyTorch's protocol, client side: the input says what is submitted when, and what a server that
 * may be anything answers. First the generation, then steps: one byte for a request (below 128) or
 * for the length of the answer that follows it.
 */
#include "codec/store/torch_wire.h"
#include "core/assert.h"
#include "proto/store/torch_client.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct state {
    struct mu_torch_client c;
    uint64_t submitted;
    uint64_t answered;
};

static void pull(struct state *s)
{
    struct mu_torch_client_event event;

    while (mu_torch_client_next_event(&s->c, &event)) {
        size_t sum = 0;

        if (event.type == MU_TORCH_CLIENT_READY) {
            continue;
        }
        /* Answers come in the order of the requests, each once. */
        MU_ASSERT(event.tag == ++s->answered);
        for (size_t i = 0; i < event.reply.value_count; i++) {
            for (size_t k = 0; k < event.reply.values[i].len; k++) {
                sum += event.reply.values[i].data[k];
            }
        }
        MU_ASSERT(sum <= 255 * s->c.in.max);
        MU_ASSERT(event.status == 0 || event.reply.value_count == 0);
    }
}

static void submit(struct state *s, uint8_t what)
{
    static const struct mu_span keys[3] = {
        {(const uint8_t *)"a", 1}, {(const uint8_t *)"init/", 5}, {NULL, 0}};
    struct mu_store_request request = {
        .verb = (enum mu_store_verb)(1 + what % 20),
        .flags = (what & 64) != 0 ? MU_STORE_NOWAIT : 0,
        .keys = keys,
        .values = keys,
        .key_count = 1,
        .number = -1,
    };
    enum mu_store_verb verb = request.verb;

    if (verb == MU_STORE_MULTI_GET || verb == MU_STORE_CHECK || verb == MU_STORE_WAIT ||
        verb == MU_STORE_MULTI_SET) {
        request.key_count = what / 20 % 4;
    } else if (verb == MU_STORE_NUM_KEYS || verb == MU_STORE_LIST_KEYS) {
        request.key_count = 0;
    }
    if (verb == MU_STORE_SET || verb == MU_STORE_APPEND || verb == MU_STORE_QUEUE_PUSH) {
        request.value_count = 1;
    } else if (verb == MU_STORE_COMPARE_SET) {
        request.value_count = 2;
    } else if (verb == MU_STORE_MULTI_SET) {
        request.value_count = request.key_count;
    }
    if (mu_torch_client_submit(&s->c, &request, s->submitted + 1) == 0) {
        s->submitted++;
    }
}

static void hear(struct state *s, struct mu_span in)
{
    while (in.len != 0) {
        size_t used = 0;
        int err = mu_torch_client_recv(&s->c, in, &used);

        if (err != 0) {
            MU_ASSERT(s->c.poison == err && mu_torch_client_errmsg(&s->c)[0] != '\0');
            return;
        }
        MU_ASSERT(used <= in.len && (used != 0 || s->c.has_event));
        in = mu_span_skip(in, used);
        pull(s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_torch_client_config config = mu_torch_client_config_defaults();
    struct state s = {.submitted = 0};

    if (size == 0) {
        return 0;
    }
    config.generation = (data[0] & 1) != 0 ? MU_TORCH_1 : MU_TORCH_2;
    config.value_bytes_max = 4096;
    config.values_max = 300;
    config.output_bytes_max = 4096;
    if (mu_torch_client_init(&s.c, &config) != 0) {
        return 0;
    }
    pull(&s);
    for (size_t at = 1; at < size;) {
        uint8_t what = data[at++];

        if (what == 127) {
            (void)mu_torch_client_cancel(&s.c);
        } else if (what == 126) {
            mu_torch_client_sent(&s.c, mu_torch_client_output(&s.c).len);
        } else if (what < 126) {
            submit(&s, what);
        } else {
            size_t len = what - 127u;

            len = len < size - at ? len : size - at;
            hear(&s, mu_span(data + at, len));
            at += len;
        }
        MU_ASSERT(s.submitted - s.answered == mu_torch_client_in_flight(&s.c));
    }
    mu_torch_client_fini(&s.c);
    return 0;
}
