#include "service/rdzv/bootstrap.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/url.h"
#include "service/base/log.h"
#include "service/rdzv/rdzv.h"
#include "service/server/server.h"

/* The workers are gone when a round's server goes, so a longer wait is not worth it. */
#define DRAIN_MS         200
#define ROUND_DIGITS_MAX 20

static const char addr_name[] = "MASTER_ADDR";
static const char port_name[] = "MASTER_PORT";
/* A key beside a pair of ours, which says that the pair is good for its own round only. */
static const char mark_name[] = "muster/fresh";

/*
 * The round's own pair:                      The pairs of earlier rounds, when patience is over:
 *
 *   rank 0   SET_MARK ->                       CHECK -> MARK -> ADDR -> PORT -> dial -> done
 *            SET_ADDR -> SET_PORT -> done        ^ absent, ours, another address, no listener
 *   others   GET_ADDR -> GET_PORT -> done        +---- one round down ----
 */
enum step {
    SET_MARK = 1, /* only where other nodes may look back */
    SET_ADDR,
    SET_PORT,
    GET_ADDR,
    GET_PORT,
};

enum back_step {
    BACK_CHECK = 1,
    BACK_MARK,
    BACK_ADDR,
    BACK_PORT,
};

struct look_back {
    struct mu_store_op op;
    bool busy;
    enum back_step step;
    uint64_t round;
    unsigned left; /* how many rounds may still be looked at */
    size_t stem_len;
    struct mu_span keys[3];
    char key_text[3][MU_RDZV_BOOTSTRAP_PREFIX_MAX + ROUND_DIGITS_MAX + sizeof(mark_name) + 2];
    struct mu_addr addr;
    struct mu_conn conn;
    bool dialling; /* until `closed` */
    bool answered;
};

struct mu_rdzv_bootstrap {
    struct mu_env *env;
    struct mu_rdzv_bootstrap_config config; /* its texts point to the members below */
    char prefix[MU_RDZV_BOOTSTRAP_PREFIX_MAX + 1];
    char own_addr[MU_ADDR_HOST_MAX + 1];
    char addr_0[MU_ADDR_HOST_MAX + 1];
    struct mu_addr pair; /* the result */
    struct mu_store_op op;
    bool busy; /* op is under way */
    enum step step;
    struct mu_span key;
    struct mu_span value;
    char port_text[8];
    struct look_back back;
    struct mu_store_server *server;
    struct mu_listener listener; /* without `share`: finds a free port */
    struct mu_timer patience;
    struct mu_timer turn; /* for what must happen on a later turn: freeing the server, the end */
    mu_mono_t deadline;
    unsigned pending; /* callbacks that will still come */
    bool told;        /* `done` or `failed` was called, or is not wanted any more */
    bool stopped;     /* the server */
    bool ending;
};

/* --- text ------------------------------------------------------------------------------------- */

/* Whether the bytes, which come from outside, may be a host: printable, without blanks. */
static bool is_address(struct mu_span s)
{
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] <= 0x20 || s.data[i] >= 0x7f) {
            return false;
        }
    }
    return s.len != 0 && s.len <= MU_ADDR_HOST_MAX;
}

static bool parse_port(struct mu_span s, uint16_t *ret)
{
    uint32_t port = 0;

    if (s.len == 0 || s.len > 5) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '9') {
            return false;
        }
        port = port * 10 + (uint32_t)(s.data[i] - '0');
    }
    if (port == 0 || port > UINT16_MAX) {
        return false;
    }
    *ret = (uint16_t)port;
    return true;
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

/* --- the result, and the end ------------------------------------------------------------------ */

/* There is a result, or none is wanted: ends what is under way. */
static void settle(struct mu_rdzv_bootstrap *b)
{
    if (b->told) {
        return;
    }
    b->told = true;
    mu_env_timer_arm(b->env, &b->patience, MU_MONO_NEVER);
    if (b->busy) {
        mu_store_cancel(&b->op);
    }
    if (b->back.busy) {
        mu_store_cancel(&b->back.op);
    }
    if (b->back.dialling && !b->back.answered) {
        mu_env_close(b->env, &b->back.conn, true);
    }
}

static void tell_done(struct mu_rdzv_bootstrap *b, const char *how)
{
    char quoted[80];

    settle(b);
    mu_log(MUSTER_LOG_INFO, "RDZV-BOOTSTRAP",
           "round=%" PRIu64 " rank=%" PRIu32 " addr=%s port=%u %s", b->config.round, b->config.rank,
           mu_span_quote(quoted, sizeof(quoted), mu_span_str(b->pair.host)), b->pair.port, how);
    b->config.done(b->config.context, b->pair.host, b->pair.port);
}

static void tell_failed(struct mu_rdzv_bootstrap *b, int status, const struct mu_errmsg *why)
{
    settle(b);
    b->config.failed(b->config.context, status, why->text);
}

/* One callback fewer is outstanding; the last one frees the object. */
static void let_go(struct mu_rdzv_bootstrap *b)
{
    void (*ended)(void *context) = b->config.ended;
    void *context = b->config.context;

    if (--b->pending == 0 && b->ending) {
        mu_free(b);
        ended(context);
    }
}

static void fail_op(struct mu_rdzv_bootstrap *b, const struct mu_store_op *op)
{
    struct mu_errmsg why;
    char quoted[80];
    uint32_t seconds = (b->config.timeout_ms + 999) / 1000;
    int status = op->status;

    if (status == MUSTER_ETIMEDOUT && b->step >= GET_ADDR) {
        status = mu_err(&why, MUSTER_ERDZV_TIMEOUT,
                        "rank 0 (%s) has published no bootstrap address for round %" PRIu64
                        " within %" PRIu32 " s",
                        mu_span_quote(quoted, sizeof(quoted), mu_span_str(b->addr_0)),
                        b->config.round, seconds);
    } else if (status == MUSTER_ETIMEDOUT) {
        status = mu_err(&why, MUSTER_ERDZV_TIMEOUT,
                        "the round's store did not take the bootstrap address within %" PRIu32 " s",
                        seconds);
    } else {
        if (status != MUSTER_ENOMEM && status != MUSTER_ECLOSED) {
            status = MUSTER_ERDZV_CONN;
        }
        (void)mu_err(&why, status, "the store of round %" PRIu64 ": %s", b->config.round,
                     op->errmsg.text);
    }
    tell_failed(b, status, &why);
}

/* --- the round's own pair --------------------------------------------------------------------- */

static uint32_t time_left(const struct mu_rdzv_bootstrap *b)
{
    uint64_t ms = mu_mono_until_ms(b->deadline, mu_env_now(b->env).mono);

    return ms == 0 ? 1 : (uint32_t)ms; /* 0 would mean for ever */
}

static void on_op_done(struct mu_store_op *op);

static void submit_step(struct mu_rdzv_bootstrap *b, enum step step)
{
    bool port = step == SET_PORT || step == GET_PORT;
    bool set = step == SET_MARK || step == SET_ADDR || step == SET_PORT;

    b->step = step;
    b->key = mu_span_str(step == SET_MARK ? mark_name : port ? port_name : addr_name);
    b->value =
        step == SET_MARK ? MU_SPAN_LIT("1") : mu_span_str(port ? b->port_text : b->pair.host);
    b->op = (struct mu_store_op){
        .request = {.verb = set ? MU_STORE_SET : MU_STORE_GET,
                    .keys = &b->key,
                    .key_count = 1,
                    .values = set ? &b->value : NULL,
                    .value_count = set ? 1 : 0},
        .timeout_ms = time_left(b),
        .done = on_op_done,
    };
    b->busy = true;
    b->pending++;
    mu_store_submit(b->config.store, &b->op);
}

static void fail_value(struct mu_rdzv_bootstrap *b, const char *name, struct mu_span value)
{
    struct mu_errmsg why;
    char quoted[80];

    tell_failed(b,
                mu_err(&why, MUSTER_ERDZV_STATE, "rank 0 has published %s as %s for round %" PRIu64,
                       mu_span_quote(quoted, sizeof(quoted), value), name, b->config.round),
                &why);
}

static void take_step(struct mu_rdzv_bootstrap *b, const struct mu_store_op *op)
{
    struct mu_span value = op->reply.value_count == 0 ? (struct mu_span){0} : op->reply.values[0];

    switch (b->step) {
    case SET_MARK:
        submit_step(b, SET_ADDR);
        break;
    case SET_ADDR:
        submit_step(b, SET_PORT);
        break;
    case SET_PORT:
        tell_done(b, b->config.share ? "served=here" : "served=by-worker");
        break;
    case GET_ADDR:
        if (!is_address(value)) {
            fail_value(b, addr_name, value);
            break;
        }
        mu_env_timer_arm(b->env, &b->patience, MU_MONO_NEVER);
        memcpy(b->pair.host, value.data, value.len);
        b->pair.host[value.len] = '\0';
        submit_step(b, GET_PORT);
        break;
    case GET_PORT:
        if (!parse_port(value, &b->pair.port)) {
            fail_value(b, port_name, value);
            break;
        }
        tell_done(b, "served=by-rank-0");
        break;
    }
}

static void on_op_done(struct mu_store_op *op)
{
    struct mu_rdzv_bootstrap *b = MU_CONTAINER_OF(op, struct mu_rdzv_bootstrap, op);

    b->busy = false;
    if (b->told) {
        /* The result is not wanted any more. */
    } else if (op->status == 0) {
        take_step(b, op);
    } else if (op->status == MUSTER_ESESSION &&
               !mu_mono_reached(b->deadline, mu_env_now(b->env).mono)) {
        submit_step(b, b->step); /* the same key with the same value: doing it twice is harmless */
    } else {
        fail_op(b, op);
    }
    let_go(b);
}

/* --- the pairs of earlier rounds -------------------------------------------------------------- */

static void look_further_back(struct mu_rdzv_bootstrap *b);
static void on_back_done(struct mu_store_op *op);

static void submit_back(struct mu_rdzv_bootstrap *b, enum back_step step)
{
    struct look_back *k = &b->back;
    bool check = step == BACK_CHECK || step == BACK_MARK;

    k->step = step;
    k->op = (struct mu_store_op){
        .request = {.verb = check ? MU_STORE_CHECK : MU_STORE_GET,
                    .keys = &k->keys[step == BACK_MARK   ? 2
                                     : step == BACK_PORT ? 1
                                                         : 0],
                    .key_count = step == BACK_CHECK ? 2 : 1},
        .timeout_ms = time_left(b),
        .done = on_back_done,
    };
    k->busy = true;
    b->pending++;
    mu_store_submit(b->config.run, &k->op);
}

static void on_dial_open(struct mu_conn *conn)
{
    struct mu_rdzv_bootstrap *b = MU_CONTAINER_OF(conn, struct mu_rdzv_bootstrap, back.conn);

    b->back.answered = true;
    mu_env_close(b->env, conn, true);
}

static size_t on_dial_data(struct mu_conn *conn, struct mu_span in)
{
    (void)conn;
    return in.len;
}

static void on_dial_event(struct mu_conn *conn)
{
    (void)conn;
}

static void on_dial_closed(struct mu_conn *conn, int status)
{
    struct mu_rdzv_bootstrap *b = MU_CONTAINER_OF(conn, struct mu_rdzv_bootstrap, back.conn);

    (void)status;
    b->back.dialling = false;
    if (!b->told && b->step == GET_ADDR && b->back.answered) {
        b->pair = b->back.addr;
        tell_done(b, "served=since-an-earlier-round");
    } else if (!b->told && b->step == GET_ADDR) {
        look_further_back(b);
    }
    let_go(b);
}

static void dial_back(struct mu_rdzv_bootstrap *b)
{
    static const struct mu_conn_events events = {
        .open = on_dial_open,
        .data = on_dial_data,
        .eof = on_dial_event,
        .writable = on_dial_event,
        .closed = on_dial_closed,
    };

    b->back.conn = (struct mu_conn){.on = &events};
    b->back.answered = false;
    if (mu_env_dial(b->env, &b->back.conn, &b->back.addr) != 0) {
        look_further_back(b);
        return;
    }
    b->back.dialling = true;
    b->pending++;
}

/* Keeps the address. False: it is not rank 0's, if that is known. */
static bool keep_back_addr(struct mu_rdzv_bootstrap *b, struct mu_span value)
{
    if (!is_address(value) ||
        (b->addr_0[0] != '\0' && !mu_span_eq(value, mu_span_str(b->addr_0)))) {
        return false;
    }
    b->back.addr = (struct mu_addr){.kind = MU_ADDR_TCP};
    memcpy(b->back.addr.host, value.data, value.len);
    return true;
}

static void on_back_done(struct mu_store_op *op)
{
    struct mu_rdzv_bootstrap *b = MU_CONTAINER_OF(op, struct mu_rdzv_bootstrap, back.op);
    struct mu_span value = op->reply.value_count == 0 ? (struct mu_span){0} : op->reply.values[0];

    b->back.busy = false;
    if (b->told || b->step != GET_ADDR || op->status != 0) {
        /* The round's own pair has come, or the store is gone, which its own op will report. */
    } else if (b->back.step == BACK_CHECK && op->reply.number != 0) {
        submit_back(b, BACK_MARK);
    } else if (b->back.step == BACK_MARK && op->reply.number == 0) {
        submit_back(b, BACK_ADDR);
    } else if (b->back.step == BACK_ADDR && keep_back_addr(b, value)) {
        submit_back(b, BACK_PORT);
    } else if (b->back.step == BACK_PORT && parse_port(value, &b->back.addr.port)) {
        dial_back(b);
    } else {
        look_further_back(b);
    }
    let_go(b);
}

static void look_further_back(struct mu_rdzv_bootstrap *b)
{
    static const char *const names[] = {addr_name, port_name, mark_name};
    struct look_back *k = &b->back;

    if (k->round == 0 || k->left == 0) {
        return;
    }
    k->round--;
    k->left--;
    for (int i = 0; i < 3; i++) {
        int len = snprintf(k->key_text[i], sizeof(k->key_text[i]), "%.*s%" PRIu64 "/%s",
                           (int)k->stem_len, b->prefix, k->round, names[i]);

        k->keys[i] = mu_span(k->key_text[i], (size_t)len);
    }
    submit_back(b, BACK_CHECK);
}

static void on_patience_over(struct mu_timer *timer)
{
    struct mu_rdzv_bootstrap *b = MU_CONTAINER_OF(timer, struct mu_rdzv_bootstrap, patience);

    look_further_back(b);
}

/* Earlier rounds can be found only where the round's number ends the prefix. */
static void prepare_look_back(struct mu_rdzv_bootstrap *b)
{
    char tail[ROUND_DIGITS_MAX + 2];
    int tail_len = snprintf(tail, sizeof(tail), ".%" PRIu64, b->config.round);
    size_t len = strlen(b->prefix);

    if (b->config.run == NULL || b->config.round == 0 || len <= (size_t)tail_len ||
        strcmp(b->prefix + len - (size_t)tail_len, tail) != 0) {
        return;
    }
    b->back.stem_len = len - (size_t)tail_len + 1;
    b->back.round = b->config.round;
    b->back.left = MU_RDZV_BOOTSTRAP_ROUNDS_MAX;
    mu_env_timer_arm(b->env, &b->patience,
                     mu_mono_add_ms(mu_env_now(b->env).mono, b->config.patience_ms));
}

/* --- rank 0 ----------------------------------------------------------------------------------- */

bool mu_rdzv_round_store_is_near(const char *url)
{
    static const char scheme[] = "tcp://";
    char text[MU_ADDR_HOST_MAX + 16];
    struct mu_errmsg msg;
    struct mu_addr addr;
    size_t len;

    if (strncmp(url, scheme, sizeof(scheme) - 1) != 0) {
        return false;
    }
    url += sizeof(scheme) - 1;
    len = strcspn(url, "/?");
    if (len >= sizeof(text)) {
        return false;
    }
    memcpy(text, url, len);
    text[len] = '\0';
    return mu_addr_parse(text, 0, &addr, &msg) == 0 && mu_addr_is_loopback(&addr);
}

static void on_server_stopped(void *context, int status, const char *why)
{
    struct mu_rdzv_bootstrap *b = context;

    (void)status;
    (void)why;
    /* The server is still on the stack. */
    b->stopped = true;
    mu_env_timer_arm(b->env, &b->turn, mu_env_now(b->env).mono);
}

static int start_server(struct mu_rdzv_bootstrap *b, struct mu_addr *listen,
                        struct mu_errmsg *reterr_msg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    int err;

    config.listen = *listen;
    config.drain_ms = DRAIN_MS;
    config.rpc.name = "muster bootstrap";
    config.stopped = on_server_stopped;
    config.context = b;
    err = mu_store_server_start(b->env, &config, &b->server, reterr_msg);
    if (err == 0) {
        b->pending++;
        *listen = *mu_store_server_addr(b->server);
    }
    return err;
}

/* Listens at the address that the others are given, if it is one of this host; behind a translation
 * of addresses it is not, and then the server listens on all addresses. */
static void choose_address(struct mu_rdzv_bootstrap *b, struct mu_addr *listen)
{
    struct mu_addr own = *listen;

    memcpy(own.host, b->own_addr, sizeof(b->own_addr));
    if (mu_rdzv_place(b->env, &own) == 0) {
        *listen = own;
    }
}

static struct mu_conn *turn_away(struct mu_listener *listener)
{
    (void)listener;
    return NULL;
}

static void on_unlistened(struct mu_listener *listener)
{
    let_go(MU_CONTAINER_OF(listener, struct mu_rdzv_bootstrap, listener));
}

static int find_port(struct mu_rdzv_bootstrap *b, struct mu_addr *listen,
                     struct mu_errmsg *reterr_msg)
{
    int err;

    b->listener = (struct mu_listener){.accept = turn_away, .closed = on_unlistened};
    err = mu_env_listen(b->env, &b->listener, listen);
    if (err != 0) {
        return mu_err(reterr_msg, err == MUSTER_ELOCKED ? err : MUSTER_EADDR,
                      "cannot find a free port: %s", mu_env_strerror(b->env, err));
    }
    b->pending++;
    mu_env_unlisten(b->env, &b->listener);
    return 0;
}

static int open_port(struct mu_rdzv_bootstrap *b, struct mu_addr *listen,
                     struct mu_errmsg *reterr_msg)
{
    return b->config.share ? start_server(b, listen, reterr_msg) : find_port(b, listen, reterr_msg);
}

static int begin_rank_0(struct mu_rdzv_bootstrap *b, struct mu_errmsg *reterr_msg)
{
    struct mu_addr listen = {.kind = MU_ADDR_TCP, .host = "::"}; /* all addresses of the host */
    int err;

    if (!is_address(mu_span_str(b->own_addr))) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "\"%.64s\" is not the address of a node",
                      b->own_addr);
    }
    memcpy(b->pair.host, b->own_addr, sizeof(b->own_addr));
    if (b->config.alone && b->config.share) {
        (void)snprintf(b->pair.host, sizeof(b->pair.host), "127.0.0.1");
        (void)snprintf(listen.host, sizeof(listen.host), "127.0.0.1");
    } else if (is_loopback(b->own_addr)) {
        memcpy(listen.host, b->own_addr, sizeof(b->own_addr));
    } else if (b->config.share) {
        choose_address(b, &listen);
    }
    err = open_port(b, &listen, reterr_msg);
    if (err == MUSTER_ELOCKED && b->config.nearby) {
        static const char here[] = "127.0.0.1";

        memcpy(listen.host, here, sizeof(here));
        memcpy(b->pair.host, here, sizeof(here));
        err = open_port(b, &listen, reterr_msg);
    }
    if (err == 0) {
        b->pair.port = listen.port;
        (void)snprintf(b->port_text, sizeof(b->port_text), "%u", b->pair.port);
        submit_step(b, b->config.run != NULL ? SET_MARK : SET_ADDR);
    }
    return err;
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_turn(struct mu_timer *timer)
{
    struct mu_rdzv_bootstrap *b = MU_CONTAINER_OF(timer, struct mu_rdzv_bootstrap, turn);

    if (b->server == NULL || b->stopped) {
        mu_store_server_free(b->server);
        b->server = NULL;
        b->stopped = false;
        let_go(b);
    }
}

static int copy_texts(struct mu_rdzv_bootstrap *b, struct mu_errmsg *reterr_msg)
{
    const struct mu_rdzv_bootstrap_config *c = &b->config;
    int n = snprintf(b->prefix, sizeof(b->prefix), "%s", c->prefix == NULL ? "" : c->prefix);
    int m = snprintf(b->own_addr, sizeof(b->own_addr), "%s", c->addr == NULL ? "" : c->addr);
    int k = snprintf(b->addr_0, sizeof(b->addr_0), "%s", c->addr_0 == NULL ? "" : c->addr_0);

    if (n >= (int)sizeof(b->prefix) || m >= (int)sizeof(b->own_addr) ||
        k >= (int)sizeof(b->addr_0)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the prefix of a round or an address is too long");
    }
    return 0;
}

int mu_rdzv_bootstrap_start(struct mu_env *env, const struct mu_rdzv_bootstrap_config *config,
                            struct mu_rdzv_bootstrap **ret_bootstrap, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_bootstrap *b = mu_calloc(1, sizeof(*b));
    int err;

    if (b == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    b->env = env;
    b->config = *config;
    if (b->config.timeout_ms == 0) {
        b->config.timeout_ms = MU_RDZV_BOOTSTRAP_TIMEOUT_MS;
    }
    if (b->config.patience_ms == 0) {
        b->config.patience_ms = MU_RDZV_BOOTSTRAP_PATIENCE_MS;
    }
    b->pair.kind = MU_ADDR_TCP;
    b->deadline = mu_mono_add_ms(mu_env_now(env).mono, b->config.timeout_ms);
    mu_timer_init(&b->patience, on_patience_over);
    mu_timer_init(&b->turn, on_turn);
    err = copy_texts(b, reterr_msg);
    if (err == 0 && config->rank == 0) {
        err = begin_rank_0(b, reterr_msg);
    } else if (err == 0) {
        submit_step(b, GET_ADDR);
        prepare_look_back(b);
    }
    if (err != 0) {
        mu_free(b); /* nothing is under way yet */
        return err;
    }
    *ret_bootstrap = b;
    return 0;
}

const struct mu_store_server *mu_rdzv_bootstrap_server(const struct mu_rdzv_bootstrap *b)
{
    return b->server;
}

uint64_t mu_rdzv_bootstrap_changes(const struct mu_rdzv_bootstrap *b)
{
    struct mu_store_server_stats stats = {0};

    if (b->server != NULL) {
        mu_store_server_stats(b->server, &stats);
    }
    return stats.revision;
}

void mu_rdzv_bootstrap_end(struct mu_rdzv_bootstrap *b)
{
    if (b->ending) {
        return;
    }
    b->ending = true;
    settle(b);
    if (b->server != NULL) {
        mu_store_server_drain(b->server); /* on_turn() follows */
    } else {
        b->pending++;
        mu_env_timer_arm(b->env, &b->turn, mu_env_now(b->env).mono);
    }
}

/* --- the round's store ------------------------------------------------------------------------ */

/* Copies the URL without its prefix parameter. */
static int strip_prefix(const char *url, char *to, size_t cap, struct mu_errmsg *reterr_msg)
{
    size_t len = strcspn(url, "?");
    const char *at = url + len;
    char sign = '?';

    if (strlen(url) >= cap) {
        return mu_err(reterr_msg, MUSTER_EURL, "the URL of a round's store is too long");
    }
    memcpy(to, url, len);
    while (*at != '\0') {
        size_t part = strcspn(++at, "&");

        if (strncmp(at, "prefix=", 7) != 0) {
            to[len++] = sign;
            memcpy(to + len, at, part);
            len += part;
            sign = '&';
        }
        at += part;
    }
    to[len] = '\0';
    return 0;
}

int mu_rdzv_round_store_open(struct mu_env *env, const char *text, uint32_t connect_ms,
                             struct mu_rdzv_round_store *ret, struct mu_errmsg *reterr_msg)
{
    char bare[MU_URL_MAX + 8];
    struct mu_store *layer = NULL;
    struct mu_url url;
    const char *prefix;
    int err = mu_url_parse(&url, text, reterr_msg);

    if (err == 0) {
        err = strip_prefix(text, bare, sizeof(bare), reterr_msg);
    }
    if (err != 0) {
        return err;
    }
    prefix = mu_url_param(&url, "prefix");
    prefix = prefix == NULL ? "" : prefix;
    if (strlen(prefix) > MU_RDZV_BOOTSTRAP_PREFIX_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "the prefix of a round's store is too long");
    }
    if (prefix[0] != '\0' && mu_store_prefix_new(env, prefix, &layer) != 0) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    err = mu_store_open(env, bare, connect_ms, &ret->run, reterr_msg);
    if (err != 0) {
        mu_store_prefix_drop(layer);
        return err;
    }
    memcpy(ret->prefix, prefix, strlen(prefix) + 1);
    ret->store = ret->run;
    if (layer != NULL) {
        mu_store_prefix_onto(layer, ret->run);
        ret->store = layer;
    }
    return 0;
}
