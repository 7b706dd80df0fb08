/*
 * The machine of the native mode under what others send it: u8 members, u8 clients, u8 position,
 * and then steps: u8 what, u8 who, u8 how long, u16 length, a message. Whatever comes, events end,
 * nothing is sent to who is gone, a sum is made only of whom we have, and the round ends in time.
 */
#include <stdlib.h>

#include "core/reader.h"
#include "proto/average/native.h"

#define EVENTS_MAX  100000
#define MEMBERS_MAX 7

static struct mu_native n;
static uint32_t got[MEMBERS_MAX * MEMBERS_MAX];
static struct mu_avg_part parts[2 * MEMBERS_MAX];
static struct mu_avg_division division;
static uint64_t clock_ns;
static bool ended, released;
static uint8_t odd;

static struct mu_now now(void)
{
    return (struct mu_now){{clock_ns}, {0}};
}

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

static void pull(void)
{
    struct mu_native_event e;
    size_t events = 0;

    while (mu_native_next_event(&n, &e)) {
        uint8_t digest[MU_NATIVE_DIGEST_LEN] = {odd};

        require(events++ < EVENTS_MAX && !released);
        switch (e.type) {
        case MU_NATIVE_EVENT_SEND:
            require((n.gone >> e.member & 1) == 0 && e.member != n.config.position);
            break;
        case MU_NATIVE_EVENT_GIVE:
        case MU_NATIVE_EVENT_TELL:
            require((n.gone >> e.member & 1) == 0 && e.part < division.part_count);
            mu_native_sent(&n, now(), e.member);
            break;
        case MU_NATIVE_EVENT_SUM:
            for (uint32_t i = 0; i < division.member_count; i++) {
                uint32_t shard = parts[e.part].owner;

                require((e.set->members >> i & 1) == 0 ||
                        got[shard * division.member_count + i] == division.count[shard]);
            }
            mu_native_summed(&n, now(), e.sum, e.part, odd != 255);
            break;
        case MU_NATIVE_EVENT_HASH:
            mu_native_hashed(&n, now(), e.sum, digest);
            break;
        case MU_NATIVE_EVENT_FORGET:
        case MU_NATIVE_EVENT_CUT:
            break;
        case MU_NATIVE_EVENT_PLACE:
            require(!ended);
            break;
        case MU_NATIVE_EVENT_END:
            require(!ended);
            ended = true;
            break;
        case MU_NATIVE_EVENT_RELEASE:
            released = true;
            break;
        }
    }
}

static void step(struct mu_reader *in)
{
    uint8_t what = mu_read_u8(in);
    uint32_t who = mu_read_u8(in) % (uint32_t)division.member_count;
    struct mu_native_msg msg;
    struct mu_span message;

    clock_ns += mu_read_u8(in) * (uint64_t)100 * MU_NS_PER_MS;
    message = mu_read_bytes(in, mu_read_u16(in));
    if (in->failed || who == n.config.position) {
        return;
    }
    odd = what;
    if (what % 8 == 6) {
        mu_native_lost(&n, now(), who);
    } else if (what % 8 == 7) {
        mu_native_tick(&n, now());
    } else if (mu_native_msg_decode(message, &msg) == 0) {
        if (msg.type == MU_NATIVE_PART) {
            (void)mu_native_contributed(&n, now(), who, msg.part, msg.weight, true);
        } else if (msg.type == MU_NATIVE_AVERAGE) {
            (void)mu_native_averaged(&n, now(), who, msg.sum, msg.part, true);
        } else {
            mu_native_received(&n, now(), who, &msg);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader in = mu_reader(mu_span(data, size));
    struct mu_native_config c = mu_native_config_defaults();

    clock_ns = MU_NS_PER_S;
    ended = released = false;
    memset(&division, 0, sizeof(division));
    division.parts = parts;
    division.member_count = 1 + mu_read_u8(&in) % (uint32_t)MEMBERS_MAX;
    c.clients = mu_read_u8(&in) & ((1u << division.member_count) - 2);
    c.position = mu_read_u8(&in) % (uint32_t)division.member_count;
    for (uint32_t i = 0; i < division.member_count; i++) {
        division.first[i] = (uint32_t)division.part_count;
        division.count[i] = (c.clients >> i & 1) != 0 ? 0 : 1 + i % 2;
        for (uint32_t k = 0; k < division.count[i]; k++) {
            parts[division.part_count++] = (struct mu_avg_part){.owner = i, .elements = 1};
        }
    }
    c.division = &division;
    c.got = got;
    require(mu_native_init(&n, &c, now()) == 0);
    pull();
    while (!in.failed && in.rest.len != 0) {
        step(&in);
        pull();
    }
    for (int i = 0; i < 2 && !released; i++) {
        clock_ns += 3600 * MU_NS_PER_S;
        mu_native_tick(&n, now());
        pull();
    }
    require(ended && released);
    return 0;
}
