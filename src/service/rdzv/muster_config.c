/* The native backend's options, and the texts that it makes for its users. */
#include "service/rdzv/muster.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/url.h"

#define JOIN_TIMEOUT_MS  UINT64_C(600000)
#define LAST_CALL_MS     UINT64_C(1000)
#define UPSCALE_DELAY_MS UINT64_C(1000)
#define BEAT_MS          UINT64_C(1000)
#define DEAD_MS          UINT64_C(3000)
#define BEATS            6 /* in that time, so that little of it is over when one is not answered */

/* Seconds where zero means something, too, and "never" is `never`. */
static int parse_delay(const char *config, const char *key, uint64_t fallback, uint64_t never,
                       uint64_t *ret, struct mu_errmsg *reterr_msg)
{
    struct mu_span value;

    if (mu_rdzv_config_get(config, key, &value)) {
        if (mu_span_eq(value, MU_SPAN_LIT("never"))) {
            *ret = never;
            return 0;
        }
        if (mu_span_eq(value, MU_SPAN_LIT("0"))) {
            *ret = 0;
            return 0;
        }
    }
    return mu_rdzv_config_seconds(config, key, fallback, ret, reterr_msg);
}

/* Seconds for the session, which counts milliseconds in 32 bits. */
static int parse_beat(const char *config, const char *key, uint64_t fallback, uint64_t max_ms,
                      uint32_t *ret, struct mu_errmsg *reterr_msg)
{
    uint64_t ms;
    int err = mu_rdzv_config_seconds(config, key, fallback, &ms, reterr_msg);

    if (err == 0 && ms > max_ms) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "the rendezvous configuration option '%s' is at most %" PRIu64 " s", key,
                     max_ms / 1000);
    }
    if (err == 0) {
        *ret = (uint32_t)ms;
    }
    return err;
}

static int parse_count(const char *config, const char *key, uint32_t fallback, uint32_t *ret,
                       struct mu_errmsg *reterr_msg)
{
    int64_t number;
    int err = mu_rdzv_config_int(config, key, fallback, &number, reterr_msg);

    if (err == 0 && (number < 0 || number > UINT32_MAX)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "the rendezvous configuration option '%s' is %" PRId64
                     ": it must be between 0 and %" PRIu32,
                     key, number, UINT32_MAX);
    }
    if (err == 0) {
        *ret = (uint32_t)number;
    }
    return err;
}

static int parse_times(struct mu_rdzv_muster_config *c, const struct mu_rdzv_params *params,
                       struct mu_errmsg *reterr_msg)
{
    const char *config = params->config;
    uint64_t silence_ms = 0;
    /* PyTorch's older backends call it so; the other name wins. */
    int err = parse_delay(config, "timeout", JOIN_TIMEOUT_MS, 0, &c->join_timeout_ms, reterr_msg);

    if (err == 0) {
        err = parse_delay(config, "join_timeout", c->join_timeout_ms, 0, &c->join_timeout_ms,
                          reterr_msg);
    }
    if (err == 0) {
        err = parse_delay(config, "last_call_timeout", LAST_CALL_MS, UINT64_MAX, &c->last_call_ms,
                          reterr_msg);
    }
    if (err == 0) {
        err = parse_delay(config, "upscale_delay", UPSCALE_DELAY_MS, UINT64_MAX,
                          &c->upscale_delay_ms, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_handler_silence(params, &silence_ms, reterr_msg);
    }
    /* If one of the two is given, the other one fits it. */
    if (err == 0) {
        err = parse_beat(config, "dead", silence_ms, MU_RPC_DEAD_MS_MAX, &c->dead_ms, reterr_msg);
    }
    if (err == 0) {
        uint64_t beat = (c->dead_ms != 0 ? c->dead_ms : DEAD_MS) / BEATS;

        err = parse_beat(config, "beat", beat < BEAT_MS ? beat : BEAT_MS, MU_RPC_DEAD_MS_MAX / 3,
                         &c->beat_ms, reterr_msg);
    }
    if (err == 0 && c->dead_ms == 0) {
        c->dead_ms = 3 * c->beat_ms > DEAD_MS ? 3 * c->beat_ms : (uint32_t)DEAD_MS;
    }
    if (err == 0) {
        err = parse_beat(config, "grace", c->dead_ms, MU_RPC_DEAD_MS_MAX, &c->grace_ms, reterr_msg);
    }
    if (err == 0 && c->grace_ms > c->dead_ms) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "grace=%g is longer than dead=%g: a node could be silent for longer than the "
                     "bound",
                     c->grace_ms / 1000.0, c->dead_ms / 1000.0);
    }
    if (err == 0 && c->dead_ms < 2 * c->beat_ms) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "dead=%g is less than two beats of %g s: a node that lives could be held for "
                     "dead",
                     c->dead_ms / 1000.0, c->beat_ms / 1000.0);
    }
    return err;
}

static int parse_exclusion(struct mu_rdzv_muster_config *c, const char *config,
                           struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    int err = 0;

    if (mu_rdzv_config_get(config, "exclude_after", &value)) {
        err = mu_rdzv_failures_parse(value, &c->exclude_after, &c->exclude_within_ms, reterr_msg);
        if (err != 0) {
            mu_err_prefix(reterr_msg, "exclude_after");
            return err;
        }
        c->join_flags |= MU_RDZV_JOIN_EXCLUDE;
    }
    err = mu_rdzv_config_seconds(config, "exclude_for", 0, &c->exclude_for_ms, reterr_msg);
    if (err == 0 && mu_rdzv_config_get(config, "machine", &value)) {
        if (value.len > MU_RDZV_NAME_LEN_MAX) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "the machine's id is longer than %d bytes",
                          MU_RDZV_NAME_LEN_MAX);
        }
        memcpy(c->machine, value.data, value.len);
    }
    return err;
}

static int parse_succession(const char *config, enum mu_rdzv_succession_mode *ret,
                            struct mu_errmsg *reterr_msg)
{
    char quoted[64];
    struct mu_span value;

    if (!mu_rdzv_config_get(config, "succession", &value) ||
        mu_span_eq(value, MU_SPAN_LIT("off"))) {
        *ret = MU_RDZV_SUCCESSION_OFF;
    } else if (mu_span_eq(value, MU_SPAN_LIT("majority"))) {
        *ret = MU_RDZV_SUCCESSION_MAJORITY;
    } else if (mu_span_eq(value, MU_SPAN_LIT("any"))) {
        *ret = MU_RDZV_SUCCESSION_ANY;
    } else {
        return mu_err(
            reterr_msg, MUSTER_EINVAL,
            "the rendezvous configuration option 'succession' is %s: it must be majority, "
            "any or off",
            mu_span_quote(quoted, sizeof(quoted), value));
    }
    return 0;
}

/* What relays carry to is a server that is there for all of them: no node can take its place. */
static int parse_via(struct mu_rdzv_muster_config *c, const char *config,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_span value;
    int count;

    if (!mu_rdzv_config_get(config, MU_RDZV_LIST_KEY, &value)) {
        return 0;
    }
    count = mu_rdzv_relays_parse(value, c->relays, MU_CARRY_RELAYS_MAX, reterr_msg);
    if (count < 0) {
        mu_err_prefix(reterr_msg, "the rendezvous configuration option 'via'");
        return count;
    }
    if (c->host == MU_RDZV_HOST_YES || c->succession != MU_RDZV_SUCCESSION_OFF) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "via= and %s exclude each other: relays (`muster serve --backing`) stand "
                      "before a `muster serve`, which no node hosts or succeeds",
                      c->host == MU_RDZV_HOST_YES ? "is_host=true" : "succession=");
    }
    c->relay_count = (size_t)count;
    c->host = MU_RDZV_HOST_NO;
    return 0;
}

int mu_rdzv_muster_configure(struct mu_rdzv_muster_config *c, const struct mu_rdzv_params *params,
                             struct mu_errmsg *reterr_msg)
{
    const char *config = params->config;
    struct mu_span value;
    bool members = false;
    bool host = false;
    int err = mu_rdzv_handler_keys(params, reterr_msg);

    *c = (struct mu_rdzv_muster_config){.nodes_min = params->nodes_min,
                                        .nodes_max = params->nodes_max};
    if (err == 0) {
        err = parse_times(c, params, reterr_msg);
    }
    if (err == 0) {
        err = parse_count(config, "max_restarts", UINT32_MAX, &c->restarts_max, reterr_msg);
    }
    if (err == 0) {
        err = parse_count(config, "target", 0, &c->target, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_config_bool(config, "members", false, &members, reterr_msg);
        c->join_flags = !mu_rdzv_config_get(config, "members", &value) ? MU_RDZV_JOIN_FEW
                        : members ? MU_RDZV_JOIN_MEMBERS | MU_RDZV_JOIN_FEW
                                  : 0;
    }
    if (err == 0 && mu_rdzv_config_get(config, "spares", &value)) {
        err = parse_count(config, "spares", 0, &c->spares, reterr_msg);
        c->join_flags |= MU_RDZV_JOIN_SPARES;
    }
    if (err == 0 && mu_rdzv_config_get(config, "max_losses", &value)) {
        err = mu_rdzv_losses_parse(value, &c->losses_max, &c->losses_ms, reterr_msg);
        if (err != 0) {
            mu_err_prefix(reterr_msg, "max_losses");
        }
        c->join_flags |= MU_RDZV_JOIN_LOSSES;
    }
    if (err == 0) {
        err = parse_exclusion(c, config, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_config_bool(config, "is_host", false, &host, reterr_msg);
        c->host = !mu_rdzv_config_get(config, "is_host", &value) ? MU_RDZV_HOST_TRY
                  : host                                         ? MU_RDZV_HOST_YES
                                                                 : MU_RDZV_HOST_NO;
    }
    if (err == 0) {
        err = parse_succession(config, &c->succession, reterr_msg);
    }
    if (err == 0) {
        err = parse_via(c, config, reterr_msg);
    }
    if (err == 0 && mu_rdzv_config_get(config, "topology", &value)) {
        if (value.len > MU_RDZV_NAME_LEN_MAX) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "the topology key is longer than %d bytes",
                          MU_RDZV_NAME_LEN_MAX);
        }
        memcpy(c->topology, value.data, value.len);
    }
    return err;
}

/* --- texts ------------------------------------------------------------------------------------ */

char *mu_rdzv_store_url(char *url, const struct mu_addr *endpoint, const char *run_id,
                        uint64_t incarnation, uint64_t round)
{
    char address[MU_ADDR_HOST_MAX + 16];
    char *at;

    _Static_assert(MU_ADDR_HOST_MAX + 16 + 3 * MU_RDZV_RUN_ID_MAX + 128 < MU_RDZV_STORE_URL_CAP,
                   "the longest URL fits");
    (void)mu_addr_format(endpoint, address, sizeof(address));
    at = url + snprintf(url, MU_RDZV_STORE_URL_CAP, "tcp://%s?prefix=rdzv/", address);
    for (; *run_id != '\0'; run_id++) {
        at = mu_url_escape(at, *run_id, "-._~/:@");
    }
    (void)snprintf(at, (size_t)(url + MU_RDZV_STORE_URL_CAP - at), "/%" PRIu64 ".%" PRIu64,
                   incarnation, round);
    return url;
}

int mu_rdzv_peers_decode(struct mu_span members, uint32_t world, struct mu_rdzv_peer **ret_peers)
{
    struct mu_span rest = members;
    struct mu_rdzv_member_msg member;
    struct mu_rdzv_peer *peers;
    size_t bytes = 0;
    uint32_t count = 0;
    char *at;
    int err;

    while ((err = mu_rdzv_member_next(&rest, &member)) == 0) {
        bytes += member.node.len + member.addr.len + 2;
        count++;
    }
    if (err != MUSTER_ENOENT || count != world) {
        return MUSTER_EPROTO;
    }
    peers = mu_malloc(count * sizeof(*peers) + bytes);
    if (peers == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (char *)(peers + count);
    rest = members;
    for (uint32_t i = 0; i < count && mu_rdzv_member_next(&rest, &member) == 0; i++) {
        peers[i].name = mu_span_put_text(&at, member.node);
        peers[i].addr = mu_span_put_text(&at, member.addr);
    }
    *ret_peers = peers;
    return 0;
}
