/*
 * Every exchange recorded between PyTorch's own client and server, replayed to our server: its
 * answers must be the same bytes, however the requests were cut on their way. tests/vectors has
 * the recordings and their format.
 */
#include <stddef.h>
#include <stdint.h>

#include "torch_rig.h"

struct replay {
    struct rig rig;
    bool open;
    size_t conn;
    struct mu_buf said; /* segments since the last answer */
    struct mu_buf want; /* the answer expected to them */
    unsigned exchanges;
    const char *file;
    unsigned line;
};

static void put_hex(struct replay *p, struct mu_buf *b, const char *text)
{
    unsigned byte;
    int n;

    while (sscanf(text, " %2x%n", &byte, &n) == 1) {
        assert_int_equal(mu_buf_reserve(b, 1), 0);
        mu_buf_put_u8(b, (uint8_t)byte);
        text += n;
    }
    p->exchanges++;
}

/* Says what was gathered and compares what comes back. */
static void settle(struct replay *p)
{
    struct mu_buf *got = &p->rig.conns[p->conn].got;

    if (p->said.len == 0) {
        return;
    }
    rig_say(&p->rig, p->conn, mu_buf_span(&p->said));
    if (!mu_span_eq(mu_buf_span(got), mu_buf_span(&p->want))) {
        (void)fprintf(stderr, "%s, before line %u\n", p->file, p->line);
        rig_print("got ", mu_buf_span(got));
        rig_print("want", mu_buf_span(&p->want));
        fail();
    }
    mu_buf_reset(got);
    mu_buf_reset(&p->said);
    mu_buf_reset(&p->want);
}

static void begin_store(struct replay *p, enum rig_split split, uint64_t seed)
{
    settle(p);
    if (p->open) {
        rig_fini(&p->rig);
    }
    rig_init(&p->rig, split, seed);
    p->open = true;
    p->conn = 0;
}

static void expect_refusal(struct replay *p, const char *code)
{
    (void)rig_feed(&p->rig, p->conn, mu_buf_span(&p->said));
    assert_int_not_equal(p->rig.conns[p->conn].err, 0);
    assert_string_equal(muster_errname(p->rig.conns[p->conn].err), code);
    mu_buf_reset(&p->said);
}

static unsigned replay_file(const char *name, enum rig_split split, uint64_t seed)
{
    struct replay p = {.file = name};
    char path[512];
    char line[4096];
    FILE *f;

    (void)snprintf(path, sizeof(path), "%s/%s", MU_VECTOR_DIR, name);
    f = fopen(path, "r");
    assert_non_null(f);
    mu_buf_init(&p.said, 1 << 20);
    mu_buf_init(&p.want, 1 << 20);
    while (fgets(line, sizeof(line), f) != NULL) {
        p.line++;
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '>') {
            if (p.want.len != 0) {
                settle(&p);
            }
            put_hex(&p, &p.said, line + 1);
        } else if (line[0] == '<') {
            put_hex(&p, &p.want, line + 1);
        } else if (line[0] == '!') {
            expect_refusal(&p, line + 2);
        } else if (strncmp(line, "conn ", 5) == 0) {
            settle(&p);
            p.conn = (size_t)(line[5] - '0');
            assert_true(p.conn < RIG_CONNS);
        } else if (strcmp(line, "store") == 0) {
            begin_store(&p, split, seed);
        } else if (line[0] == '=') {
            settle(&p);
        } else {
            assert_true(line[0] == '\0' || line[0] == '#');
        }
    }
    settle(&p);
    rig_fini(&p.rig);
    mu_buf_fini(&p.said);
    mu_buf_fini(&p.want);
    (void)fclose(f);
    return p.exchanges;
}

static void replay_all_ways(const char *name, unsigned at_least)
{
    assert_true(replay_file(name, RIG_WHOLE, 0) >= at_least);
    assert_true(replay_file(name, RIG_BYTES, 0) >= at_least);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        assert_true(replay_file(name, RIG_RANDOM, seed) >= at_least);
    }
}

static void test_torch_vectors_of_pytorch_1_13_are_answered_byte_for_byte(void **state)
{
    (void)state;
    replay_all_ways("torch-1.13.txt", 45);
}

static void test_torch_vectors_of_pytorch_2_11_are_answered_byte_for_byte(void **state)
{
    (void)state;
    replay_all_ways("torch-2.11.txt", 65);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_vectors_of_pytorch_1_13_are_answered_byte_for_byte),
        cmocka_unit_test(test_torch_vectors_of_pytorch_2_11_are_answered_byte_for_byte),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
