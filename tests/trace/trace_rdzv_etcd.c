/*
 * Golden traces of the etcd rendezvous: a script, and the story it must produce.
 *
 *     trace_rdzv_etcd FILE...              compares; the first line that differs is shown
 *     trace_rdzv_etcd --rewrite FILE...    writes the story anew. Commit that only if you can
 *                                          explain every line that changed.
 *
 * A script, up to the line "----":
 *
 *     # a remark
 *     set min=2 max=3 timeout=60s last_call=3s notice=5s
 *     90ms a join          at that time: join leave close crash cut heal; rejoin: and whenever its
 *                          round ends
 *     2s a lose            the answer to its next swap is lost
 *     run until 40s
 *
 * A request arrives after a millisecond and is answered after another. The story tells writes with
 * what came of them, keys that end, and what nodes are told; not reads, watches and refreshes. The
 * directory of the run is R, its state S.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "etcd2_model.h"
#include "proto/rdzv/etcd.h"

#define NODES_MAX  8
#define STORY_MAX  (1u << 16)
#define EVENTS_MAX 64
#define HOP_NS     MU_NS_PER_MS
#define NEVER      UINT64_MAX
#define ROOT       "/torchelastic/p2p/run_job"

struct op {
    bool busy;
    bool done; /* it arrived, and was answered */
    bool lost;
    uint64_t at_ns;
    uint64_t until_ns; /* a watch */
    struct mu_retcd_request q;
    char *key;
    char *value;
    char *prev;
    char *text;
    int64_t index;
};

struct node {
    char name[16];
    struct mu_retcd m;
    bool alive;
    bool cut;
    bool lose;
    bool rejoin;
    bool due; /* to join again */
    struct op ops[MU_RETCD_LANES];
};

struct planned {
    uint64_t at_ns;
    char node[16];
    char deed[16];
};

static struct etcd2_model etcd;
static struct node nodes[NODES_MAX];
static size_t node_count;
static struct planned plan[EVENTS_MAX];
static size_t plan_count;
static struct mu_retcd_config config;
static uint64_t now_ns;
static char story[STORY_MAX];
static size_t story_len;
static const char *script_name;

_Noreturn static void refuse(const char *what, const char *where)
{
    (void)fprintf(stderr, "%s: %s: %s\n", script_name, what, where);
    exit(2);
}

static void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void tell(const char *format, ...)
{
    char line[1024];
    va_list args;

    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    story_len += (size_t)snprintf(story + story_len, STORY_MAX - story_len, "[%9.3f] %s\n",
                                  (double)now_ns / 1e9, line);
    if (story_len >= STORY_MAX) {
        refuse("the story is too long", line);
    }
}

/* R/rdzv/active_version is S, and R what is below the run. */
static const char *shorten(const char *path)
{
    static char text[256];

    if (strcmp(path, ROOT "/rdzv/active_version") == 0) {
        return "S";
    }
    if (strncmp(path, ROOT, strlen(ROOT)) == 0) {
        (void)snprintf(text, sizeof(text), "R%s", path + strlen(ROOT));
        return text;
    }
    return path;
}

/* --- requests --------------------------------------------------------------------------------- */

static char *copy(struct mu_span s)
{
    char *text = mu_strndup(s.data == NULL ? "" : (const char *)s.data, s.len);

    if (text == NULL) {
        abort();
    }
    return text;
}

static void free_op(struct op *op)
{
    mu_free(op->key);
    mu_free(op->value);
    mu_free(op->prev);
    mu_free(op->text);
    *op = (struct op){0};
}

static void tell_write(const struct node *n, const struct op *op, int code)
{
    static const char *const verbs[] = {[MU_RETCD_MKDIR] = "makes directory",
                                        [MU_RETCD_MAKE] = "makes",
                                        [MU_RETCD_SWAP] = "swaps",
                                        [MU_RETCD_COUNT] = "counts",
                                        [MU_RETCD_PUT] = "puts",
                                        [MU_RETCD_DROP] = "deletes"};
    char ttl[32] = "";
    char end[64] = "";

    if (op->q.verb == MU_RETCD_REFRESH || op->q.verb == MU_RETCD_GET ||
        op->q.verb == MU_RETCD_LIST || op->q.verb == MU_RETCD_WATCH) {
        return;
    }
    if (op->q.ttl_s != 0) {
        (void)snprintf(ttl, sizeof(ttl), " for %" PRId64 " s", op->q.ttl_s);
    }
    if (code >= 400) {
        (void)snprintf(end, sizeof(end), "  (no: %.3s)", strstr(op->text, "errorCode") + 11);
    }
    tell("%s %s %s%s%s%s%s%s", n->name, verbs[op->q.verb], shorten(op->key),
         op->value[0] == '\0' ? "" : " ", op->value, ttl, end, op->lost ? "  (answer lost)" : "");
}

/* It arrives. False: a watch that goes on. */
static bool run_op(struct op *op)
{
    const struct mu_retcd_request *q = &op->q;
    struct etcd2_put put = {.path = op->key, .prev_exist = -1, .ttl_s = q->ttl_s};
    int code = 0;

    switch (q->verb) {
    case MU_RETCD_GET:
    case MU_RETCD_LIST:
        code = etcd2_model_get(&etcd, now_ns, op->key);
        break;
    case MU_RETCD_WATCH:
        code = etcd2_model_watch(&etcd, op->key, q->index, q->recursive);
        break;
    case MU_RETCD_DROP:
        code = etcd2_model_delete(&etcd, op->key, op->prev);
        break;
    case MU_RETCD_MKDIR:
    case MU_RETCD_MAKE:
        put.prev_exist = 0;
        put.dir = q->verb == MU_RETCD_MKDIR;
        break;
    case MU_RETCD_SWAP:
        put.prev_value = op->prev;
        break;
    case MU_RETCD_COUNT:
        put.prev_index = q->index;
        put.prev_exist = 1;
        break;
    case MU_RETCD_REFRESH:
        put.refresh = true;
        put.prev_exist = 1;
        break;
    case MU_RETCD_PUT:
        break;
    }
    if (q->verb != MU_RETCD_GET && q->verb != MU_RETCD_LIST && q->verb != MU_RETCD_WATCH &&
        q->verb != MU_RETCD_DROP) {
        put.value = op->value;
        code = etcd2_model_put(&etcd, now_ns, &put);
    }
    if (code == 0) {
        return false;
    }
    op->text = copy(mu_buf_span(&etcd.out));
    op->index = etcd.index;
    op->done = true;
    op->at_ns = now_ns + HOP_NS;
    return true;
}

static void send(struct node *n, size_t lane)
{
    const struct mu_retcd_request *q = &n->m.lanes[lane].request;
    struct op *op = &n->ops[lane];
    bool write = q->verb == MU_RETCD_SWAP;

    free_op(op);
    *op = (struct op){
        .busy = true,
        .at_ns = now_ns + HOP_NS,
        .until_ns = q->verb == MU_RETCD_WATCH ? now_ns + q->timeout_ms * MU_NS_PER_MS : NEVER,
        .q = *q,
        .key = copy(q->key),
        .value =
            copy(q->verb == MU_RETCD_MAKE || q->verb == MU_RETCD_SWAP || q->verb == MU_RETCD_COUNT
                     ? q->value
                     : (struct mu_span){0}),
        .prev = copy(q->prev),
        .lost = write && n->lose,
    };
    n->lose = n->lose && !write;
}

/* --- nodes ------------------------------------------------------------------------------------ */

static void tell_update(struct node *n, const struct mu_retcd_update *up)
{
    if ((up->flags & MU_RETCD_ASSIGNED) != 0) {
        tell("%s is rank %" PRIu32 " of %" PRIu32 " in version %" PRIu64, n->name, up->rank,
             up->world, up->version);
    }
    if ((up->flags & MU_RETCD_WAITING) != 0) {
        tell("%s hears that %" PRIu64 " wait", n->name, up->waiting);
    }
    if ((up->flags & MU_RETCD_ENDED) != 0) {
        n->due = n->rejoin;
        if (up->end == MU_RETCD_END_LOST) {
            tell("%s hears that rank %" PRIu64 " is lost", n->name, up->lost);
        } else {
            tell("%s hears that version %" PRIu64 " is over%s", n->name, up->version,
                 up->end == MU_RETCD_END_DROPPED ? ": it was held for dead" : "");
        }
    }
    if ((up->flags & MU_RETCD_FAILED) != 0) {
        tell("%s fails: %s: %s", n->name, muster_errname(up->code), up->text.text);
    }
    if ((up->flags & MU_RETCD_CLOSED_NOW) != 0) {
        tell("%s hears that the run is closed", n->name);
    }
    if ((up->flags & MU_RETCD_CLOSE_FAILED) != 0) {
        tell("%s cannot close: %s", n->name, up->close_text.text);
    }
}

static void step(struct node *n, struct mu_retcd_event *event)
{
    struct mu_retcd_update up;

    event->now = (mu_mono_t){now_ns};
    mu_retcd_step(&n->m, event, &up);
    tell_update(n, &up);
    for (size_t i = 0; i < MU_RETCD_LANES; i++) {
        if ((up.cancels & 1u << i) != 0) {
            free_op(&n->ops[i]);
        }
        if ((up.requests & 1u << i) != 0) {
            send(n, i);
        }
    }
}

static void answer(struct node *n, size_t lane, int status)
{
    struct op *op = &n->ops[lane];
    struct mu_etcd2_reply reply;
    struct mu_retcd_event event = {
        .type = MU_RETCD_ANSWER,
        .lane = (enum mu_retcd_lane_id)lane,
        .number = op->q.number,
        .status = status,
        .text = status == 0 ? NULL : muster_strerror(status),
        .index = op->index,
    };

    mu_etcd2_reply_init(&reply);
    if (status == 0) {
        if (mu_etcd2_reply_decode(&reply, mu_span_str(op->text)) != 0) {
            refuse("the model's answer cannot be read", op->text);
        }
        event.reply = &reply;
    }
    op->busy = false;
    step(n, &event);
    mu_etcd2_reply_fini(&reply);
}

static void run_node(struct node *n)
{
    for (size_t i = 0; i < MU_RETCD_LANES && n->alive; i++) {
        struct op *op = &n->ops[i];

        if (!op->busy || op->at_ns > now_ns) {
            continue;
        }
        if (op->done) {
            answer(n, i, op->lost ? MUSTER_ECONN : 0);
        } else if (n->cut) {
            answer(n, i, MUSTER_ECONN);
        } else if (run_op(op)) {
            tell_write(n, op, strstr(op->text, "errorCode") != NULL ? 412 : 200);
        } else if (op->until_ns <= now_ns) {
            answer(n, i, MUSTER_ETIMEDOUT);
        } else {
            op->at_ns = now_ns + HOP_NS;
        }
    }
    if (n->alive && n->due) {
        n->due = false;
        step(n, &(struct mu_retcd_event){.type = MU_RETCD_JOIN});
    }
    if (n->alive && mu_mono_reached(mu_retcd_deadline(&n->m), (mu_mono_t){now_ns})) {
        step(n, &(struct mu_retcd_event){.type = MU_RETCD_TIMEOUT});
    }
}

static struct node *node_of(const char *name)
{
    struct node *n;

    for (size_t i = 0; i < node_count; i++) {
        if (strcmp(nodes[i].name, name) == 0) {
            return &nodes[i];
        }
    }
    if (node_count == NODES_MAX) {
        refuse("too many nodes", name);
    }
    n = &nodes[node_count++];
    *n = (struct node){.alive = true};
    (void)snprintf(n->name, sizeof(n->name), "%s", name);
    config.seed = node_count;
    if (mu_retcd_init(&n->m, &config) != 0) {
        abort();
    }
    return n;
}

static void do_deed(const struct planned *p)
{
    struct node *n = node_of(p->node);

    tell("%s -- %s", n->name, p->deed);
    if (strcmp(p->deed, "join") == 0) {
        step(n, &(struct mu_retcd_event){.type = MU_RETCD_JOIN});
    } else if (strcmp(p->deed, "leave") == 0) {
        step(n, &(struct mu_retcd_event){.type = MU_RETCD_LEAVE});
    } else if (strcmp(p->deed, "close") == 0) {
        step(n, &(struct mu_retcd_event){.type = MU_RETCD_CLOSE_RUN});
    } else if (strcmp(p->deed, "crash") == 0) {
        n->alive = false;
    } else if (strcmp(p->deed, "cut") == 0 || strcmp(p->deed, "heal") == 0) {
        n->cut = p->deed[0] == 'c';
    } else if (strcmp(p->deed, "rejoin") == 0) {
        n->rejoin = true; /* whenever its round ends */
        step(n, &(struct mu_retcd_event){.type = MU_RETCD_JOIN});
    } else if (strcmp(p->deed, "lose") == 0) {
        n->lose = true;
    } else {
        refuse("no such deed", p->deed);
    }
}

/* One millisecond after the other: the stories are short. */
static void run_until(uint64_t end_ns)
{
    size_t next = 0;

    for (now_ns = 0; now_ns <= end_ns; now_ns += HOP_NS) {
        size_t before = etcd.event_count;

        (void)etcd2_model_expire(&etcd, now_ns);
        for (; before < etcd.event_count; before++) {
            tell("- %s ends", shorten(etcd.events[before].path));
        }
        while (next < plan_count && plan[next].at_ns <= now_ns) {
            do_deed(&plan[next++]);
        }
        for (size_t i = 0; i < node_count; i++) {
            run_node(&nodes[i]);
        }
    }
}

/* --- scripts ---------------------------------------------------------------------------------- */

static uint64_t parse_time(const char *text)
{
    char *end;
    double number = strtod(text, &end);

    if (end != text && strcmp(end, "ms") == 0) {
        return (uint64_t)(number * 1e6);
    }
    if (end != text && (strcmp(end, "s") == 0 || (*end == '\0' && number == 0))) {
        return (uint64_t)(number * 1e9);
    }
    refuse("not a time", text);
}

static void set_one(const char *word)
{
    const char *equals = strchr(word, '=');

    if (equals == NULL) {
        refuse("not KEY=VALUE", word);
    }
    if (strncmp(word, "min=", 4) == 0) {
        config.min_nodes = (uint32_t)strtoul(equals + 1, NULL, 10);
    } else if (strncmp(word, "max=", 4) == 0) {
        config.max_nodes = (uint32_t)strtoul(equals + 1, NULL, 10);
    } else if (strncmp(word, "timeout=", 8) == 0) {
        config.timeout_ms = parse_time(equals + 1) / MU_NS_PER_MS;
    } else if (strncmp(word, "last_call=", 10) == 0) {
        config.last_call_ms = parse_time(equals + 1) / MU_NS_PER_MS;
    } else if (strncmp(word, "notice=", 7) == 0) {
        config.notice_ms = parse_time(equals + 1) / MU_NS_PER_MS;
    } else if (strcmp(word, "notice_lost=no") == 0) {
        config.notice_lost = false;
    } else {
        refuse("not known", word);
    }
}

static void take_line(char *line)
{
    char *words[8];
    size_t count = 0;

    for (char *at = strtok_r(line, " ", &line); at != NULL && count < 8;
         at = strtok_r(NULL, " ", &line)) {
        words[count++] = at;
    }
    if (count == 0 || words[0][0] == '#') {
        return;
    }
    if (strcmp(words[0], "set") == 0) {
        for (size_t i = 1; i < count; i++) {
            set_one(words[i]);
        }
    } else if (strcmp(words[0], "run") == 0 && count == 3) {
        run_until(parse_time(words[2]));
    } else if (count == 3 && plan_count < EVENTS_MAX) {
        plan[plan_count] = (struct planned){.at_ns = parse_time(words[0])};
        (void)snprintf(plan[plan_count].node, sizeof(plan[0].node), "%s", words[1]);
        (void)snprintf(plan[plan_count].deed, sizeof(plan[0].deed), "%s", words[2]);
        plan_count++;
    } else {
        refuse("not understood", words[0]);
    }
}

static int compare(const char *expected)
{
    if (strcmp(expected, story) == 0) {
        return 0;
    }
    for (size_t i = 0;; i++) {
        if (expected[i] != story[i]) {
            while (i > 0 && story[i - 1] != '\n') {
                i--;
            }
            (void)fprintf(stderr,
                          "%s: the story differs here\n  expected: %.*s\n  found:    %.*s\n",
                          script_name, (int)strcspn(expected + i, "\n"), expected + i,
                          (int)strcspn(story + i, "\n"), story + i);
            return 1;
        }
    }
}

static int run_script(const char *path, bool rewrite)
{
    static char text[STORY_MAX];
    FILE *f = fopen(path, "re");
    char *end;
    size_t len;

    script_name = path;
    len = f == NULL ? 0 : fread(text, 1, sizeof(text) - 1, f);
    if (f == NULL || fclose(f) != 0) {
        refuse("cannot be read", path);
    }
    text[len] = '\0';
    end = strstr(text, "----\n");
    if (end == NULL) {
        refuse("has no line ----", path);
    }
    config = mu_retcd_config_defaults();
    config.run_id = "job";
    etcd2_model_init(&etcd);
    for (char *line = text; line < end;) {
        char copy_of[512];
        size_t n = strcspn(line, "\n");

        (void)snprintf(copy_of, sizeof(copy_of), "%.*s", (int)n, line);
        take_line(copy_of);
        line += n + 1;
    }
    for (size_t i = 0; i < node_count; i++) {
        for (size_t k = 0; k < MU_RETCD_LANES; k++) {
            free_op(&nodes[i].ops[k]);
        }
        mu_retcd_fini(&nodes[i].m);
    }
    etcd2_model_fini(&etcd);
    if (!rewrite) {
        return compare(end + 5);
    }
    f = fopen(path, "we");
    if (f == NULL || fwrite(text, 1, (size_t)(end + 5 - text), f) == 0 || fputs(story, f) < 0 ||
        fclose(f) != 0) {
        refuse("cannot be written", path);
    }
    return 0;
}

int main(int argc, char **argv)
{
    bool rewrite = argc > 1 && strcmp(argv[1], "--rewrite") == 0;

    if (argc != (rewrite ? 3 : 2)) {
        (void)fprintf(stderr, "usage: %s [--rewrite] FILE\n", argv[0]);
        return 2;
    }
    return run_script(argv[argc - 1], rewrite);
}
