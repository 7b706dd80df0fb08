/*
 * The conversation of tests/vectors/native-wire.txt, played by both ends: each must write exactly
 * the bytes that stand there. Verbs (AT is client or server, - is nothing, the last word may have
 * blanks in it):
 *
 *     dial                          call AT METHOD PAYLOAD TIMEOUT_MS    reply AT ID STATUS PAYLOAD
 *     cut                           item AT ID PAYLOAD                   end AT ID
 *     tick MS                       consumed AT ID N                     cancel AT ID
 *     drain AT WHY                  close AT                             refuse STATUS TEXT
 *     header TYPE LENGTH ACK ID
 */
#include "rpc_pair.h"

#include <stdio.h>

struct play {
    struct rpc_pair pair;
    struct mu_buf want; /* bytes of the block that is being read */
    char mark;          /* what they are: > < ! - */
    struct mu_rpc_header header;
    struct mu_buf refusal;
    unsigned line;
    unsigned frames;
};

static struct mu_span text_of(const char *word)
{
    return strcmp(word, "-") == 0 ? (struct mu_span){0} : mu_span_str(word);
}

static void compare(struct play *p, struct mu_span got)
{
    struct mu_span want = mu_buf_span(&p->want);

    for (size_t i = 0; i < got.len && i < want.len; i++) {
        if (got.data[i] != want.data[i]) {
            fail_msg("before line %u: byte %zu is %02x, not %02x", p->line, i, got.data[i],
                     want.data[i]);
        }
    }
    if (got.len != want.len) {
        fail_msg("before line %u: %zu bytes, not %zu", p->line, got.len, want.len);
    }
}

/* The end of a block: takes as much as an end has to say, compares it, passes it on. */
static void end_block(struct play *p)
{
    struct rpc_end *from = p->mark == '>' ? &p->pair.client : &p->pair.server;
    struct rpc_end *to = p->mark == '>' ? &p->pair.server : &p->pair.client;
    uint8_t header[MU_RPC_HEADER];

    if (p->want.len == 0) {
        return;
    }
    p->frames++;
    if (p->mark == '-') {
        struct mu_rpc_header h;

        mu_rpc_header_encode(header, &p->header);
        compare(p, mu_span(header, sizeof(header)));
        assert_int_equal(mu_rpc_header_decode(header, &h), 0);
        assert_int_equal(h.ack, p->header.ack);
    } else if (p->refusal.len != 0) {
        compare(p, mu_buf_span(&p->refusal));
        mu_buf_reset(&p->refusal);
    } else {
        while (rpc_pair_send(&p->pair, from, to)) {
        }
        compare(p, mu_buf_span(&to->wire));
        if (p->mark == '!') {
            mu_buf_reset(&to->wire);
        }
        while (rpc_pair_receive(&p->pair, to)) {
        }
    }
    mu_buf_reset(&p->want);
}

static void read_bytes(struct play *p, const char *line)
{
    const char *text = line + 1;
    unsigned byte;
    int n;

    if (p->mark != line[0]) {
        end_block(p);
        p->mark = line[0];
    }
    while (sscanf(text, " %2x%n", &byte, &n) == 1) {
        assert_int_equal(mu_buf_reserve(&p->want, 1), 0);
        mu_buf_put_u8(&p->want, (uint8_t)byte);
        text += n;
    }
}

static int act_on_call(struct play *p, const char *verb, struct rpc_end *at, const char *rest)
{
    struct mu_rpc *r = &at->rpc;
    struct mu_now now = p->pair.now;
    unsigned long long id = 0;
    char word[64] = "-";
    int status = 0;

    if (strcmp(verb, "reply") == 0) {
        assert_int_equal(sscanf(rest, "%llu %d %63[^\n]", &id, &status, word), 3);
        return mu_rpc_reply(r, now, id, status, text_of(word));
    }
    if (strcmp(verb, "item") == 0) {
        assert_int_equal(sscanf(rest, "%llu %63[^\n]", &id, word), 2);
        return mu_rpc_item(r, now, id, text_of(word));
    }
    if (strcmp(verb, "consumed") == 0) {
        assert_int_equal(sscanf(rest, "%llu %d", &id, &status), 2);
        return mu_rpc_consumed(r, now, id, (size_t)status);
    }
    assert_int_equal(sscanf(rest, "%llu", &id), 1);
    if (strcmp(verb, "end") == 0) {
        return mu_rpc_end(r, now, id);
    }
    assert_string_equal(verb, "cancel");
    return mu_rpc_cancel(r, now, id);
}

static int act_at(struct play *p, const char *verb, const char *rest)
{
    struct rpc_end *at;
    char word[64] = "";
    char method[64];
    unsigned timeout_ms;
    uint64_t id;
    int n = 0;

    assert_int_equal(sscanf(rest, "%63s %n", word, &n), 1);
    at = strcmp(word, "client") == 0 ? &p->pair.client : &p->pair.server;
    rest += n;
    if (strcmp(verb, "call") == 0) {
        assert_int_equal(sscanf(rest, "%63s %63s %u", method, word, &timeout_ms), 3);
        return mu_rpc_call(&at->rpc, p->pair.now, mu_span_str(method), text_of(word), timeout_ms, 0,
                           &id);
    }
    if (strcmp(verb, "drain") == 0) {
        assert_int_equal(sscanf(rest, "%63[^\n]", word), 1);
        return mu_rpc_drain(&at->rpc, p->pair.now, word);
    }
    if (strcmp(verb, "close") == 0) {
        return mu_rpc_close(&at->rpc, p->pair.now);
    }
    return act_on_call(p, verb, at, rest);
}

static int act(struct play *p, const char *line)
{
    char verb[32] = "";
    char word[64];
    unsigned long long ack;
    unsigned type;
    unsigned len;
    int status;
    int n = 0;

    assert_int_equal(sscanf(line, "= %31s %n", verb, &n), 1);
    if (strcmp(verb, "dial") == 0) {
        return rpc_pair_link(&p->pair);
    }
    if (strcmp(verb, "cut") == 0) {
        rpc_pair_cut(&p->pair);
        return 0;
    }
    if (strcmp(verb, "tick") == 0) {
        assert_int_equal(sscanf(line + n, "%u", &type), 1);
        rpc_pair_tick(&p->pair, type);
        return 0;
    }
    if (strcmp(verb, "refuse") == 0) {
        assert_int_equal(sscanf(line + n, "%d %63[^\n]", &status, word), 2);
        return mu_rpc_refuse(&p->refusal, status, word);
    }
    if (strcmp(verb, "header") == 0) {
        assert_int_equal(sscanf(line + n, "%u %u %llu", &type, &len, &ack), 3);
        p->header = (struct mu_rpc_header){.len = len, .type = (uint8_t)type, .ack = ack};
        return 0;
    }
    return act_at(p, verb, line + n);
}

static void start(struct play *p)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    struct mu_rpc_config server = mu_rpc_config_defaults();

    *p = (struct play){0};
    client.name = "node-7";
    client.credential = MU_SPAN_LIT("key");
    client.call_window_bytes = 65536;
    client.frame_bytes_max = 65536;
    client.item_window_bytes = 64;
    server.name = "store";
    rpc_pair_init(&p->pair, &client, &server);
    for (uint8_t i = 0; i < MU_RPC_SESSION_LEN; i++) {
        p->pair.client.rpc.config.session[i] = i;
        p->pair.server.rpc.config.incarnation[i] = (uint8_t)(0xf0 + i);
    }
    mu_buf_init(&p->want, 4096);
    mu_buf_init(&p->refusal, 4096);
}

static void test_rpc_writes_the_bytes_of_the_specification(void **state)
{
    FILE *file = fopen(MU_VECTOR_DIR "/native-wire.txt", "r");
    char line[256];
    struct play p;

    (void)state;
    assert_non_null(file);
    start(&p);
    while (fgets(line, sizeof(line), file) != NULL) {
        p.line++;
        if (line[0] == '=') {
            int err;

            end_block(&p);
            p.mark = 0;
            assert_int_equal(mu_rpc_output(&p.pair.client.rpc).len, 0);
            assert_int_equal(mu_rpc_output(&p.pair.server.rpc).len, 0);
            err = act(&p, line);
            if (err != 0) {
                fail_msg("line %u: %s", p.line, muster_strerror(err));
            }
        } else if (line[0] != '#' && line[0] != '\n') {
            read_bytes(&p, line);
        }
    }
    end_block(&p);
    (void)fclose(file);
    assert_int_equal(p.pair.client.error, 0);
    assert_int_equal(p.pair.server.error, 0);
    assert_true(p.frames > 20);
    rpc_pair_fini(&p.pair);
    mu_buf_fini(&p.want);
    mu_buf_fini(&p.refusal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_writes_the_bytes_of_the_specification),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
