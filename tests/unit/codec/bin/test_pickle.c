/*
 * The restricted reader of pickles: what each opcode builds, what is refused and in which words,
 * and that no pickle costs more than its length warrants. Pickles are written by hand.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/error.h>

#include "codec/bin/pickle.h"
#include "core/buf.h"
#include "core/prng.h"
#include "failheap.h"

#define MEMORY ((size_t)1 << 20)

/* A pickle of protocol 4 from literals; the opcode that ends it is added. */
#define PICKLE(text) MU_SPAN_LIT("\x80\x04" text ".")
/* The same as it stands. */
#define RAW(text) MU_SPAN_LIT(text)

#define TORCH "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
#define NODE  "\x8c\x37" TORCH "\x8c\x09_NodeDesc\x93"
#define DATETIME                                                                                   \
    "\x8c\x08"                                                                                     \
    "datetime\x8c\x08"                                                                             \
    "datetime\x93"

struct reading {
    struct mu_pickle p;
    struct mu_errmsg msg;
    int err;
};

static struct reading begin(struct mu_span in)
{
    struct reading r = {0};

    mu_pickle_init(&r.p);
    r.err = mu_pickle_read(&r.p, in, MEMORY, &r.msg);
    return r;
}

static const struct mu_pickle_value *root(const struct reading *r)
{
    if (r->err != 0) {
        fail_msg("%s", r->msg.text);
    }
    return mu_pickle_at(&r->p, r->p.root);
}

static void end(struct reading *r)
{
    mu_pickle_fini(&r->p);
}

static void expect_int(struct mu_span in, int64_t want)
{
    struct reading r = begin(in);

    assert_int_equal(root(&r)->kind, MU_PICKLE_INT);
    assert_int_equal(root(&r)->as.integer, want);
    end(&r);
}

static void expect_refused(struct mu_span in, const char *words)
{
    struct reading r = begin(in);

    assert_int_equal(r.err, MUSTER_ECORRUPT);
    if (strstr(r.msg.text, words) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", words, r.msg.text);
    }
    end(&r);
}

static void test_pickle_reads_integers_of_each_width(void **unused)
{
    (void)unused;
    expect_int(PICKLE("K\x00"), 0);
    expect_int(PICKLE("K\xff"), 255);
    expect_int(PICKLE("M\x34\x12"), 0x1234);
    expect_int(PICKLE("M\xff\xff"), 65535);
    expect_int(PICKLE("J\xff\xff\xff\xff"), -1);
    expect_int(PICKLE("J\x00\x00\x00\x80"), INT32_MIN);
    expect_int(PICKLE("\x8a\x00"), 0);
    expect_int(PICKLE("\x8a\x01\x80"), -128);
    expect_int(PICKLE("\x8a\x05\x00\x00\x00\x00\x01"), INT64_C(1) << 32);
    expect_int(PICKLE("\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f"), INT64_MAX);
    expect_int(PICKLE("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80"), INT64_MIN);
    expect_int(PICKLE("\x8a\x0a\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 5);
    expect_int(PICKLE("\x8a\x09\xfe\xff\xff\xff\xff\xff\xff\xff\xff"), -2);
    expect_refused(PICKLE("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00"), "64 bits");
    expect_refused(PICKLE("\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff"), "64 bits");
    expect_refused(PICKLE("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01"), "64 bits");
}

static void test_pickle_reads_none_bools_texts_and_bytes(void **unused)
{
    struct reading r;

    (void)unused;
    r = begin(PICKLE("N"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_NONE);
    end(&r);
    r = begin(PICKLE("\x88"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_BOOL);
    assert_int_equal(root(&r)->as.integer, 1);
    end(&r);
    r = begin(PICKLE("\x89"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_BOOL);
    assert_int_equal(root(&r)->as.integer, 0);
    end(&r);
    r = begin(PICKLE("\x8c\x05hello"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_TEXT);
    assert_span_text(mu_pickle_bytes(&r.p, r.p.root), "hello");
    end(&r);
    r = begin(PICKLE("X\x05\x00\x00\x00world"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_TEXT);
    assert_span_text(mu_pickle_bytes(&r.p, r.p.root), "world");
    end(&r);
    r = begin(PICKLE("C\x03"
                     "abc"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_BYTES);
    assert_span_text(mu_pickle_bytes(&r.p, r.p.root), "abc");
    end(&r);
}

static void test_pickle_reads_floats(void **unused)
{
    struct reading r = begin(PICKLE("G\x40\x45\x40\x00\x00\x00\x00\x00"));

    (void)unused;
    assert_int_equal(root(&r)->kind, MU_PICKLE_FLOAT);
    assert_true(root(&r)->as.real > 42.49 && root(&r)->as.real < 42.51);
    end(&r);
    r = begin(PICKLE("G\x7f\xf0\x00\x00\x00\x00\x00\x00"));
    assert_true(root(&r)->as.real > 1e308);
    end(&r);
    expect_refused(RAW("\x80\x04G\x40\x45\x40\x00\x00\x00\x00"), "in the middle of an opcode");
}

static void test_pickle_reads_tuples(void **unused)
{
    struct reading r = begin(PICKLE("K\x01K\x02K\x03\x87"));
    uint32_t inner;

    (void)unused;
    assert_int_equal(root(&r)->kind, MU_PICKLE_TUPLE);
    assert_int_equal(root(&r)->count, 3);
    for (size_t i = 0; i < 3; i++) {
        uint32_t item = mu_pickle_item(&r.p, r.p.root, i);

        assert_int_equal(mu_pickle_at(&r.p, item)->as.integer, i + 1);
    }
    end(&r);
    r = begin(PICKLE(")"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_TUPLE);
    assert_int_equal(root(&r)->count, 0);
    end(&r);
    r = begin(PICKLE("(K\x00(K\x01K\x02K\x03K\x04tK\x05t"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_TUPLE);
    assert_int_equal(root(&r)->count, 3);
    inner = mu_pickle_item(&r.p, r.p.root, 1);
    assert_true(mu_pickle_is(&r.p, inner, MU_PICKLE_TUPLE));
    assert_int_equal(mu_pickle_at(&r.p, inner)->count, 4);
    assert_int_equal(mu_pickle_at(&r.p, mu_pickle_item(&r.p, inner, 3))->as.integer, 4);
    end(&r);
    r = begin(PICKLE("(t"));
    assert_int_equal(root(&r)->kind, MU_PICKLE_TUPLE);
    assert_int_equal(root(&r)->count, 0);
    end(&r);
    expect_refused(PICKLE("K\x01t"), "no mark");
    expect_refused(PICKLE("K\x01\x86"), "nothing on the stack");
    expect_refused(PICKLE("K\x01(\x85"), "nothing on the stack");
}

/* Items come in any number of batches, empty ones too. */
static void expect_items(struct mu_span in, enum mu_pickle_kind kind, unsigned count)
{
    struct reading r = begin(in);
    struct mu_pickle_walk w;
    unsigned seen = 0;

    assert_int_equal(root(&r)->kind, kind);
    assert_int_equal(root(&r)->count, count);
    w = mu_pickle_walk(&r.p, r.p.root);
    for (;;) {
        uint32_t item = mu_pickle_next(&r.p, &w);

        if (item == MU_PICKLE_NOTHING) {
            break;
        }
        assert_int_equal(mu_pickle_at(&r.p, item)->as.integer, ++seen);
    }
    assert_int_equal(seen, count);
    assert_int_equal(mu_pickle_next(&r.p, &w), MU_PICKLE_NOTHING);
    end(&r);
}

static void test_pickle_fills_containers_in_batches(void **unused)
{
    (void)unused;
    expect_items(PICKLE("\x8f"), MU_PICKLE_SET, 0);
    expect_items(PICKLE("\x8f(\x90"), MU_PICKLE_SET, 0);
    expect_items(PICKLE("\x8f(K\x01K\x02\x90(\x90(K\x03\x90"), MU_PICKLE_SET, 3);
    expect_items(PICKLE("]"), MU_PICKLE_LIST, 0);
    expect_items(PICKLE("]K\x01"
                        "a(K\x02K\x03"
                        "eK\x04"
                        "a"),
                 MU_PICKLE_LIST, 4);
    expect_items(PICKLE("}"), MU_PICKLE_DICT, 0);
    expect_items(PICKLE("}(uK\x01K\x02s(K\x03K\x04K\x05K\x06uK\x07K\x08s"), MU_PICKLE_DICT, 8);
    expect_refused(PICKLE("}(K\x01u"), "a key has no value");
    expect_refused(PICKLE("}K\x01s"), "nothing on the stack");
    expect_refused(PICKLE("}(K\x01s"), "nothing on the stack");
    expect_refused(PICKLE("}K\x01K\x02u"), "no mark");
    expect_refused(PICKLE("}K\x01K\x02\x90"), "no mark");
    expect_refused(PICKLE("](\x90"), "of another kind");
    expect_refused(PICKLE("\x8f(K\x01K\x02u"), "of another kind");
    expect_refused(PICKLE("((u"), "of another kind");
    expect_refused(PICKLE("(u"), "nothing on the stack to fill");
    expect_refused(PICKLE("](a"), "nothing on the stack");
    expect_refused(PICKLE("K\x01"
                          "a"),
                   "nothing on the stack to fill");
}

static void test_pickle_finds_the_last_value_under_a_key(void **unused)
{
    struct reading r = begin(PICKLE("}(\x8c\x01"
                                    "aK\x01\x8c\x01"
                                    "bK\x02K\x07K\x09u\x8c\x01"
                                    "aK\x03s"));

    (void)unused;
    assert_int_equal(root(&r)->count, 8);
    assert_int_equal(mu_pickle_at(&r.p, mu_pickle_get(&r.p, r.p.root, "a"))->as.integer, 3);
    assert_int_equal(mu_pickle_at(&r.p, mu_pickle_get(&r.p, r.p.root, "b"))->as.integer, 2);
    assert_int_equal(mu_pickle_get(&r.p, r.p.root, "c"), MU_PICKLE_NOTHING);
    end(&r);
}

static void test_pickle_makes_objects_of_known_classes(void **unused)
{
    struct reading r = begin(PICKLE(NODE ")\x81}\x8c\x03pidK\x05sb"));
    uint32_t attributes;

    (void)unused;
    assert_int_equal(root(&r)->kind, MU_PICKLE_OBJECT);
    assert_int_equal(root(&r)->type, MU_PICKLE_CLASS_NODE);
    attributes = root(&r)->as.object.attributes;
    assert_int_equal(mu_pickle_at(&r.p, mu_pickle_get(&r.p, attributes, "pid"))->as.integer, 5);
    end(&r);
    r = begin(PICKLE(DATETIME "C\x01x\x85R"));
    assert_true(mu_pickle_is_object(&r.p, r.p.root, MU_PICKLE_CLASS_DATETIME));
    assert_int_equal(root(&r)->as.object.attributes, MU_PICKLE_NOTHING);
    end(&r);
    r = begin(PICKLE("cbuiltins\nset\n]\x85R"));
    assert_true(mu_pickle_is_object(&r.p, r.p.root, MU_PICKLE_CLASS_SET));
    end(&r);
}

static void test_pickle_refuses_other_classes_by_name(void **unused)
{
    (void)unused;
    expect_refused(PICKLE("\x8c\x02os\x8c\x06system\x93"),
                   "class \"os.system\" is not one that is read here");
    expect_refused(PICKLE("cposix\nsystem\n"),
                   "class \"posix.system\" is not one that is read here");
    expect_refused(PICKLE("cbuiltins\neval\n"), "class \"builtins.eval\"");
    expect_refused(PICKLE("c_codecs\ndecode\n"), "class \"_codecs.decode\"");
    expect_refused(PICKLE("\x8c\x08"
                          "datetime\x8c\x04"
                          "date\x93"),
                   "class \"datetime.date\"");
    expect_refused(PICKLE("\x8c\x37" TORCH "\x8c\x0b_Rendezvous\x93"), "_Rendezvous\"");
    expect_refused(PICKLE("\x8c\x00\x8c\x03\n\xff\"\x93"), "class \".\\x0a\\xff\\x22\"");
    expect_refused(PICKLE("\x8c\x02osK\x01\x93"), "not named by two texts");
    expect_refused(PICKLE("K\x01\x8c\x02os\x93"), "not named by two texts");
}

static void test_pickle_makes_objects_only_in_the_way_of_their_class(void **unused)
{
    (void)unused;
    expect_refused(PICKLE(NODE ")R"), "not made in the way");
    expect_refused(PICKLE(DATETIME ")\x81"), "not made in the way");
    expect_refused(PICKLE(NODE "K\x01\x85\x81"), "arguments that its class does not take");
    expect_refused(PICKLE(NODE "}\x81"), "arguments are not a tuple");
    expect_refused(PICKLE("K\x01)R"), "no class");
    expect_refused(PICKLE(NODE ")\x81)b"), "attributes are not a dict");
    expect_refused(PICKLE(NODE ")\x81}b}b"), "given attributes");
    expect_refused(PICKLE(DATETIME ")R}b"), "given attributes");
    expect_refused(PICKLE("}}b"), "not an object");
}

static void test_pickle_refers_to_what_it_remembers(void **unused)
{
    struct reading r;

    (void)unused;
    /* Protocol 4 numbers by itself, protocol 3 says the number, which may be used again. */
    r = begin(PICKLE("}\x94K\x07\x94j\x00\x00\x00\x00\x87"));
    assert_int_equal(root(&r)->count, 3);
    assert_int_equal(mu_pickle_item(&r.p, r.p.root, 0), mu_pickle_item(&r.p, r.p.root, 2));
    assert_int_not_equal(mu_pickle_item(&r.p, r.p.root, 0), mu_pickle_item(&r.p, r.p.root, 1));
    end(&r);
    r = begin(PICKLE("}q\x00r\x01\x00\x00\x00h\x00h\x01\x87"));
    assert_int_equal(mu_pickle_item(&r.p, r.p.root, 0), mu_pickle_item(&r.p, r.p.root, 1));
    assert_int_equal(mu_pickle_item(&r.p, r.p.root, 0), mu_pickle_item(&r.p, r.p.root, 2));
    end(&r);
    r = begin(PICKLE("]q\x00K\x05q\x00h\x00\x87"));
    assert_true(mu_pickle_is(&r.p, mu_pickle_item(&r.p, r.p.root, 2), MU_PICKLE_INT));
    end(&r);
    expect_refused(PICKLE("h\x00"), "refers to a value that does not exist");
    expect_refused(PICKLE("K\x05\x94h\x01\x86"), "refers to a value that does not exist");
    expect_refused(PICKLE("K\x05\x94j\xff\xff\xff\xff\x86"),
                   "refers to a value that does not exist");
    expect_refused(PICKLE("K\x05q\x01"), "out of order");
    expect_refused(PICKLE("K\x05r\xff\xff\xff\xff"), "out of order");
    expect_refused(PICKLE("\x94"), "nothing on the stack");
    expect_refused(PICKLE("K\x05(\x94"), "nothing on the stack");
}

static void test_pickle_holds_a_container_that_holds_itself(void **unused)
{
    struct reading r = begin(PICKLE("}\x94\x8c\x01"
                                    "ah\x00s"));

    (void)unused;
    assert_int_equal(root(&r)->kind, MU_PICKLE_DICT);
    assert_int_equal(mu_pickle_get(&r.p, r.p.root, "a"), r.p.root);
    end(&r);
}

/* Meets PROTOCOL_MIN of codec/bin/pickle.c, and PROTOCOL_MAX of codec/bin/pickle.c. */
static void test_pickle_begins_and_ends_as_a_pickle_does(void **unused)
{
    (void)unused;
    expect_int(RAW("\x80\x02K\x01."), 1);
    expect_int(RAW("\x80\x05K\x01."), 1);
    expect_refused(RAW(""), "ends too early");
    expect_refused(RAW("K\x01."), "does not begin with its protocol");
    expect_refused(RAW("\x80\x01K\x01."), "protocol 1");
    expect_refused(RAW("\x80\x06K\x01."), "protocol 6");
    expect_refused(RAW("\x80\x04\x80\x04K\x01."), "protocol 4");
    expect_refused(RAW("\x80\x04."), "nothing on the stack");
    expect_refused(RAW("\x80\x04(."), "nothing on the stack");
    expect_refused(RAW("\x80\x04K\x01"), "ends too early");
    expect_refused(RAW("\x80\x04K\x01K\x01."), "left over");
    expect_refused(RAW("\x80\x04K\x01.x"), "bytes after its end");
}

/* Meets NAME_LINE_MAX of codec/bin/pickle.c: the end of a line is looked for in so many bytes. */
static void test_pickle_reads_lines_that_are_so_long(void **unused)
{
    for (size_t len = 255; len < 257; len++) {
        uint8_t bytes[300] = "\x80\x02"
                             "c";

        memset(bytes + 3, 'm', len);
        memcpy(bytes + 3 + len, "\nn\n.", 5);
        expect_refused(mu_span(bytes, 3 + len + 4),
                       len == 255 ? "is not one that" : "in the middle of");
    }
    (void)unused;
}

static void test_pickle_checks_its_frames(void **unused)
{
    (void)unused;
    expect_int(PICKLE("\x95\x03\x00\x00\x00\x00\x00\x00\x00K\x01"), 1);
    expect_int(PICKLE("\x95\x02\x00\x00\x00\x00\x00\x00\x00K\x01"
                      "\x95\x01\x00\x00\x00\x00\x00\x00\x00"),
               1);
    expect_refused(PICKLE("\x95\x04\x00\x00\x00\x00\x00\x00\x00K\x01"), "after the end");
    expect_refused(PICKLE("\x95\xff\xff\xff\xff\xff\xff\xff\xffK\x01"), "after the end");
    expect_refused(PICKLE("\x95\x0c\x00\x00\x00\x00\x00\x00\x00K\x01"
                          "\x95\x01\x00\x00\x00\x00\x00\x00\x00"),
                   "inside another");
}

static void test_pickle_knows_no_other_opcode(void **unused)
{
    static const char known[] = "().CGJKMNRX]abcehjqrstu}\x80\x81\x85\x86\x87\x88\x89\x8a\x8c\x8f"
                                "\x90\x93\x94\x95";

    (void)unused;
    for (int opcode = 1; opcode < 256; opcode++) {
        uint8_t bytes[] = {0x80, 4, (uint8_t)opcode};
        struct reading r = begin(mu_span(bytes, sizeof(bytes)));

        assert_int_equal(r.err, MUSTER_ECORRUPT);
        assert_true((strstr(r.msg.text, "is not one that is read here") != NULL) ==
                    (strchr(known, opcode) == NULL));
        end(&r);
    }
}

/* All that the opcodes can build, at once. */
static const char whole[] = "\x80\x04\x95\x02\x00\x00\x00\x00\x00\x00\x00}\x94(" NODE
                            ")\x81\x94}\x94\x8c\x03pid\x94J\x01\x02\x03\x04sb" DATETIME "\x94"
                            "C\x03"
                            "abc\x94N\x86R\x94X\x04\x00\x00\x00name\x8f(h\x01K\x01M\x01\x02"
                            "\x90\x88](\x89\x8a\x05\x01\x02\x03\x04\x05"
                            "eh\x02"
                            "aj\x00\x00\x00\x00(K\x01G\x40\x45\x40\x00\x00\x00\x00\x00tu.";

static void test_pickle_cut_anywhere_is_refused(void **unused)
{
    struct reading r = begin(RAW(whole));

    (void)unused;
    assert_int_equal(root(&r)->count, 8);
    end(&r);
    for (size_t len = 0; len < sizeof(whole) - 1; len++) {
        uint8_t *copy = malloc(len + 1); /* so that a sanitizer sees a byte too far */

        memcpy(copy, whole, len);
        copy = realloc(copy, len == 0 ? 1 : len);
        r = begin(mu_span(copy, len));
        assert_int_equal(r.err, MUSTER_ECORRUPT);
        assert_true(r.msg.text[0] != '\0');
        end(&r);
        free(copy);
    }
}

static void test_pickle_survives_any_change_of_two_bytes(void **unused)
{
    uint8_t bytes[sizeof(whole) - 1];
    struct mu_prng rng;
    unsigned read = 0;

    (void)unused;
    mu_prng_seed(&rng, 11);
    for (int i = 0; i < 20000; i++) {
        struct reading r;

        memcpy(bytes, whole, sizeof(bytes));
        for (int k = 0; k < 2; k++) {
            bytes[mu_prng_below(&rng, sizeof(bytes))] = (uint8_t)mu_prng_below(&rng, 256);
        }
        r = begin(mu_span(bytes, sizeof(bytes)));
        assert_true(r.err == 0 || r.err == MUSTER_ECORRUPT);
        read += r.err == 0 ? 1 : 0;
        end(&r);
    }
    assert_true(read > 100);
}

/* Repeats an opcode, reads, and returns the memory that it took. */
static size_t cost_of(const char *first, const char *repeated, size_t repeated_len, size_t times,
                      const char *last, int want)
{
    struct mu_errmsg msg = {{0}};
    struct mu_pickle p;
    struct mu_buf in;
    size_t memory;

    mu_buf_init(&in, (size_t)64 << 20);
    assert_int_equal(mu_buf_append(&in, mu_span("\x80\x04", 2)), 0);
    assert_int_equal(mu_buf_append(&in, mu_span_str(first)), 0);
    for (size_t i = 0; i < times; i++) {
        assert_int_equal(mu_buf_append(&in, mu_span(repeated, repeated_len)), 0);
    }
    assert_int_equal(mu_buf_append(&in, mu_span_str(last)), 0);
    mu_pickle_init(&p);
    assert_int_equal(mu_pickle_read(&p, mu_buf_span(&in), (size_t)8 << 20, &msg), want);
    memory = p.memory;
    assert_int_equal(p.memory_max, (size_t)8 << 20);
    assert_true(memory <= p.memory_max);
    mu_pickle_fini(&p);
    mu_buf_fini(&in);
    return memory;
}

static void test_pickle_bombs_cost_what_they_weigh(void **unused)
{
    (void)unused;
    /* Each tuple holds the last one twice: written out it would be 2^20000 of them. */
    assert_true(cost_of(")", "\x94h\x00\x86", 4, 20000, ".", 0) < 3 << 20);
    /* As deep as it is long. */
    assert_true(cost_of(")", "\x85", 1, 50000, ".", 0) < 3 << 20);
    assert_true(cost_of("", "](", 2, 50000, "", MUSTER_ECORRUPT) < 3 << 20);
    /* A dict that is filled with itself. */
    assert_true(cost_of("}\x94", "h\x00h\x00s", 5, 50000, ".", 0) < 3 << 20);
}

static void test_pickle_stops_at_the_ceiling_of_its_memory(void **unused)
{
    static const char *const greedy[] = {"}", "(", ")", "h", "\x8f\x94", "K1", ")\x85", "\x8c"};

    (void)unused;
    for (size_t i = 0; i < sizeof(greedy) / sizeof(greedy[0]); i++) {
        /* A length or a number behind an opcode that wants one is 0. */
        size_t len = greedy[i][0] == 'h' || greedy[i][0] == '\x8c' ? 2 : strlen(greedy[i]);

        (void)cost_of(")\x94", greedy[i], len, 3000000, "", MUSTER_ELIMIT);
    }
}

static void test_pickle_survives_a_failing_heap(void **unused)
{
    struct mu_errmsg msg = {{0}};
    struct mu_pickle p;

    (void)unused;
    for (long nth = 0;; nth++) {
        bool fired;
        int err;

        mu_pickle_init(&p);
        failheap_arm(nth);
        err = mu_pickle_read(&p, RAW(whole), MEMORY, &msg);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_pickle_fini(&p);
        if (!fired) {
            assert_true(nth > 2);
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pickle_reads_integers_of_each_width),
        cmocka_unit_test(test_pickle_reads_none_bools_texts_and_bytes),
        cmocka_unit_test(test_pickle_reads_floats),
        cmocka_unit_test(test_pickle_reads_tuples),
        cmocka_unit_test(test_pickle_fills_containers_in_batches),
        cmocka_unit_test(test_pickle_finds_the_last_value_under_a_key),
        cmocka_unit_test(test_pickle_makes_objects_of_known_classes),
        cmocka_unit_test(test_pickle_refuses_other_classes_by_name),
        cmocka_unit_test(test_pickle_makes_objects_only_in_the_way_of_their_class),
        cmocka_unit_test(test_pickle_refers_to_what_it_remembers),
        cmocka_unit_test(test_pickle_holds_a_container_that_holds_itself),
        cmocka_unit_test(test_pickle_begins_and_ends_as_a_pickle_does),
        cmocka_unit_test(test_pickle_reads_lines_that_are_so_long),
        cmocka_unit_test(test_pickle_checks_its_frames),
        cmocka_unit_test(test_pickle_knows_no_other_opcode),
        cmocka_unit_test(test_pickle_cut_anywhere_is_refused),
        cmocka_unit_test(test_pickle_survives_any_change_of_two_bytes),
        cmocka_unit_test(test_pickle_bombs_cost_what_they_weigh),
        cmocka_unit_test(test_pickle_stops_at_the_ceiling_of_its_memory),
        cmocka_unit_test(test_pickle_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
