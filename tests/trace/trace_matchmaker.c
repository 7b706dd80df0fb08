/*
 * Stories of one matchmaker among scripted peers. Peers are letters, times are seconds after the
 * begin; the matchmaker is m. Reads of the bucket are answered at once with what `bucket` said
 * last, and told only after `show fetches`.
 *
 *     begin [client] [target=N] [min=N] [timeout=S] [followers=N] [hops=N] [scheduled=S]
 *     bucket a+4 b+2.5 c!6        a has declared 4, c has left; x+nan, x+inf
 *     wait S
 *     ask N PEER TIME [client] [schema] [key] [gather] [empty] [never] [raw=HEX]   call number N
 *     gone N
 *     accepted | refused CODE | disbanded [PEER] | begun PEER...[!gather] | raw HEX
 *     closed                      the call ends. With `late` before it: not the last call, but
 *                                 the one before
 *     cancel
 *     skew S                      the wall clock moves
 */
#include <math.h>

#include "codec/bin/msgpack.h"
#include "codec/dht/dict.h"
#include "hex.h"
#include "proto/average/matchmaker.h"
#include "story.h"

#define EPOCH_S 1000000

static struct mu_matchmaker m;
static bool begun, show_fetches;
static double skew;
static struct mu_buf bucket;
static uint64_t call_number, call_before;
static const uint8_t gather_node[] = {0x93, 0xc0, 0, 0xc4, 1, 0xc0};
static const uint8_t gather_client[] = {0x93, 0xc0, 1, 0xc4, 1, 0xc0};

static struct mu_now now(void)
{
    return (struct mu_now){
        {story_now_ns + MU_NS_PER_S},
        {EPOCH_S * MU_NS_PER_S + story_now_ns + (uint64_t)(int64_t)(skew * 1e9)}};
}

static struct mu_peer_id peer(char letter)
{
    uint8_t bytes[38] = {0, 0x24, 8, 1, 0x12, 0x20};
    struct mu_peer_id id;

    bytes[37] = (uint8_t)letter;
    if (mu_peer_id_from_bytes(&id, mu_span(bytes, sizeof(bytes))) != 0) {
        story_refuse("not a peer", &letter);
    }
    return id;
}

static int number_of(const char *text)
{
    char *end;
    long number = strtol(text, &end, 10);

    if (end == text || *end != '\0') {
        story_refuse("not a number", text);
    }
    return (int)number;
}

static char letter(const struct mu_peer_id *id)
{
    return (char)id->bytes[37];
}

static void tell_reply(const struct mu_matchmaker_event *e)
{
    static struct mu_avg_reply reply;
    char members[64] = "";

    if (mu_avg_reply_decode(e->message, &reply) != 0) {
        story_refuse("not a reply", "");
    }
    for (size_t i = 0; i < reply.member_count; i++) {
        (void)snprintf(members + strlen(members), sizeof(members) - strlen(members), " %c",
                       letter(&reply.members[i]));
    }
    story_tell("reply to %d: %s%s%s%c%s", (int)e->number, mu_avg_code_name(reply.code), members,
               reply.suggested ? ", go to " : "",
               reply.suggested ? letter(&reply.suggested_leader) : '.', e->last ? "" : " (open)");
}

static void tell_end(void)
{
    char members[64] = "";

    for (size_t i = 0; mu_matchmaker_status(&m) == 0 && i < m.group.member_count; i++) {
        (void)snprintf(members + strlen(members), sizeof(members) - strlen(members), " %c",
                       letter(&m.group.members[i]));
    }
    if (mu_matchmaker_status(&m) == 0) {
        story_tell("group of%s; m is number %d%s", members, (int)m.position,
                   m.leading ? " and leads" : "");
    } else {
        story_tell("no group: %s", mu_matchmaker_text(&m));
    }
}

static void pump(void)
{
    struct mu_matchmaker_event e;
    struct mu_avg_join join;

    while (mu_matchmaker_next_event(&m, &e)) {
        switch (e.type) {
        case MU_MATCHMAKER_DECLARE:
            story_tell("declare %.3f", e.expiration - EPOCH_S);
            break;
        case MU_MATCHMAKER_LEAVE:
            story_tell("leave %.3f", e.expiration - EPOCH_S);
            break;
        case MU_MATCHMAKER_FETCH:
            if (show_fetches) {
                story_tell("fetch");
            }
            mu_matchmaker_fetched(&m, now(), e.number, 0, mu_buf_span(&bucket));
            break;
        case MU_MATCHMAKER_CALL:
            call_before = call_number;
            call_number = e.number;
            if (mu_avg_join_decode(e.message, &join) != 0) {
                story_refuse("not a request", "");
            }
            story_tell("call %c, expiration %.3f%s", letter(&e.peer), join.expiration - EPOCH_S,
                       join.client_mode ? ", client" : "");
            break;
        case MU_MATCHMAKER_HANG_UP:
            story_tell("hang up%s", e.number == call_number ? "" : " the call before");
            break;
        case MU_MATCHMAKER_REPLY:
            tell_reply(&e);
            break;
        case MU_MATCHMAKER_END:
            tell_end();
            break;
        }
    }
}

static const char *value_of(char **words, size_t count, const char *name)
{
    size_t len = strlen(name);

    for (size_t i = 1; i < count; i++) {
        if (strncmp(words[i], name, len) == 0 && (words[i][len] == '=' || words[i][len] == '\0')) {
            return words[i][len] == '=' ? words[i] + len + 1 : "";
        }
    }
    return NULL;
}

static void begin(char **words, size_t count)
{
    struct mu_matchmaker_config c = mu_matchmaker_config_defaults();
    const char *value;

    c.self = peer('m');
    c.client = value_of(words, count, "client") != NULL;
    c.gather = c.client ? mu_span(gather_client, 6) : mu_span(gather_node, 6);
    (void)snprintf(c.key, sizeof(c.key), "demo.0b");
    memset(c.schema, 0x55, sizeof(c.schema));
    value = value_of(words, count, "target");
    c.target_size = value == NULL ? 0 : (uint32_t)number_of(value);
    value = value_of(words, count, "min");
    c.size_min = value == NULL ? 2 : (uint32_t)number_of(value);
    value = value_of(words, count, "followers");
    c.followers_max = value == NULL ? c.followers_max : (uint32_t)number_of(value);
    value = value_of(words, count, "hops");
    c.hops_max = value == NULL ? c.hops_max : (uint32_t)number_of(value);
    value = value_of(words, count, "candidates");
    c.candidates_max = value == NULL ? c.candidates_max : (uint32_t)number_of(value);
    value = value_of(words, count, "timeout");
    c.timeout_ms = value == NULL ? 60000 : (uint64_t)(strtod(value, NULL) * 1e3);
    value = value_of(words, count, "scheduled");
    c.scheduled = value == NULL ? 0 : EPOCH_S + strtod(value, NULL);
    c.seed = 7;
    if (mu_matchmaker_init(&m, &c, now()) != 0) {
        story_refuse("cannot begin", words[0]);
    }
    begun = true;
}

static void set_bucket(char **words, size_t count)
{
    struct mu_buf entries;
    size_t n = 0;

    mu_buf_fini(&bucket);
    mu_buf_init(&bucket, 1 << 16);
    mu_buf_init(&entries, 1 << 16);
    for (size_t i = 1; i < count; i++, n++) {
        struct mu_peer_id id = peer(words[i][0]);
        bool looking = words[i][1] == '+';
        uint8_t subkey[64];
        struct mu_buf key;
        struct mu_mp_out mp;
        struct mu_dht_entry entry = {.value = looking ? MU_SPAN_LIT("\xc3") : MU_SPAN_LIT("\xc2"),
                                     .expiration = EPOCH_S + strtod(words[i] + 2, NULL)};

        mu_buf_init(&key, sizeof(subkey));
        mp = mu_mp_out(&key);
        mu_mp_put_bin(&mp, mu_peer_id_span(&id));
        entry.subkey = mu_buf_span(&key);
        if (mu_dht_dict_put(&entries, &entry) != 0) {
            story_refuse("no room", words[i]);
        }
        mu_buf_fini(&key);
    }
    if (mu_dht_dict_begin(&bucket, EPOCH_S + 60, n, entries.len) != 0 ||
        mu_buf_append(&bucket, mu_buf_span(&entries)) != 0) {
        story_refuse("no room", words[0]);
    }
    mu_buf_fini(&entries);
}

static void ask(char **words, size_t count)
{
    uint8_t schema[MU_AVG_SCHEMA_LEN];
    uint8_t raw[256];
    struct mu_peer_id id = peer(words[2][0]);
    bool client = value_of(words, count, "client") != NULL;
    struct mu_avg_join join = {.schema_hash = mu_span(schema, sizeof(schema)),
                               .expiration = EPOCH_S + strtod(words[3], NULL),
                               .gather =
                                   client ? mu_span(gather_client, 6) : mu_span(gather_node, 6),
                               .client_mode = client,
                               .group_key = MU_SPAN_LIT("demo.0b")};
    struct mu_buf out;

    memset(schema, value_of(words, count, "schema") != NULL ? 0x66 : 0x55, sizeof(schema));
    join.schema_hash.len = value_of(words, count, "empty") != NULL ? 0 : join.schema_hash.len;
    if (value_of(words, count, "key") != NULL) {
        join.group_key = MU_SPAN_LIT("demo.0b1");
    }
    if (value_of(words, count, "gather") != NULL) {
        join.gather = MU_SPAN_LIT("\x93\xc0");
    }
    if (value_of(words, count, "never") != NULL) {
        join.expiration = 0;
    }
    mu_buf_init(&out, 4096);
    if (mu_avg_join_encode(&join, &out) != 0) {
        story_refuse("no room", words[0]);
    }
    if (value_of(words, count, "raw") != NULL) {
        mu_buf_reset(&out);
        (void)mu_buf_append(
            &out, mu_span(raw, hex_decode(raw, sizeof(raw), value_of(words, count, "raw"))));
    }
    mu_matchmaker_asked(&m, now(), (uint64_t)number_of(words[1]), &id, mu_buf_span(&out));
    mu_buf_fini(&out);
}

static void send_reply(char **words, size_t count, uint64_t number)
{
    static struct mu_avg_reply reply;
    struct mu_buf out;

    memset(&reply, 0, sizeof(reply));
    if (strcmp(words[0], "accepted") == 0) {
        reply.code = MU_AVG_ACCEPTED;
    } else if (strcmp(words[0], "refused") == 0) {
        reply.code = (enum mu_avg_code)number_of(words[1]);
    } else if (strcmp(words[0], "disbanded") == 0) {
        reply.code = MU_AVG_GROUP_DISBANDED;
        reply.suggested = count > 1;
        reply.suggested_leader = peer(count > 1 ? words[1][0] : 'x');
    } else {
        reply.code = MU_AVG_BEGIN_ALLREDUCE;
        reply.group_id = MU_SPAN_LIT("abcdefghijklmnopqrst");
        for (size_t i = 1; i < count; i++) {
            reply.members[i - 1] = peer(words[i][0]);
            reply.gathered[i - 1] =
                words[i][1] == '!' ? MU_SPAN_LIT("\x93") : mu_span(gather_node, 6);
        }
        reply.member_count = count - 1;
    }
    mu_buf_init(&out, 4096);
    if (mu_avg_reply_encode(&reply, &out) != 0) {
        story_refuse("no room", words[0]);
    }
    mu_matchmaker_replied(&m, now(), number, mu_buf_span(&out));
    mu_buf_fini(&out);
}

static void wait_for(const char *text)
{
    uint64_t end = story_now_ns + story_time_ns(text);

    while (mu_matchmaker_deadline(&m).ns <= end + MU_NS_PER_S) {
        uint64_t at = mu_matchmaker_deadline(&m).ns - MU_NS_PER_S;

        story_now_ns = at > story_now_ns ? at : story_now_ns;
        mu_matchmaker_tick(&m, now());
        pump();
    }
    story_now_ns = end;
}

static void take(char **words, size_t count)
{
    uint64_t number = call_number;

    if (strcmp(words[0], "late") == 0) {
        number = call_before;
        words++;
        count--;
    }
    if (strcmp(words[0], "begin") == 0) {
        begin(words, count);
    } else if (strcmp(words[0], "bucket") == 0) {
        set_bucket(words, count);
    } else if (strcmp(words[0], "show") == 0) {
        show_fetches = true;
    } else if (strcmp(words[0], "skew") == 0) {
        skew += strtod(words[1], NULL);
    } else if (!begun) {
        story_refuse("before begin", words[0]);
    } else if (strcmp(words[0], "wait") == 0) {
        wait_for(words[1]);
    } else if (strcmp(words[0], "ask") == 0) {
        ask(words, count);
    } else if (strcmp(words[0], "gone") == 0) {
        mu_matchmaker_gone(&m, now(), (uint64_t)number_of(words[1]));
    } else if (strcmp(words[0], "closed") == 0) {
        mu_matchmaker_closed(&m, now(), number);
    } else if (strcmp(words[0], "cancel") == 0) {
        mu_matchmaker_cancel(&m, now());
    } else if (strcmp(words[0], "raw") == 0) {
        uint8_t raw[256];

        mu_matchmaker_replied(&m, now(), number,
                              mu_span(raw, hex_decode(raw, sizeof(raw), words[1])));
    } else {
        send_reply(words, count, number);
    }
    if (begun) {
        pump();
    }
}

int main(int argc, char **argv)
{
    int rc;

    mu_buf_init(&bucket, 1 << 16);
    rc = story_main(argc, argv, take);
    if (begun) {
        mu_matchmaker_fini(&m);
    }
    mu_buf_fini(&bucket);
    return rc;
}
