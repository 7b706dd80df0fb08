/* How a state's connections are made: the runtime's, or between peers; the key that signs. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/state_api.h"
#include "codec/peer/multiaddr.h"
#include "core/alloc.h"

static int read_key(const char *path, uint8_t *buf, size_t cap, size_t *ret_len,
                    struct mu_errmsg *msg)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, cap);
    int err = n < 0 ? -errno : 0;

    if (fd >= 0) {
        (void)close(fd);
    }
    if (err != 0) {
        return mu_err(msg, err, "cannot read the key %.120s: %s", path, muster_strerror(err));
    }
    *ret_len = (size_t)n;
    return n == 0 ? mu_err(msg, MUSTER_EINVAL, "the key %.120s is empty", path) : 0;
}

static int load_identity(struct mu_state_net *net, const char *key, struct mu_errmsg *msg)
{
    uint8_t file[MU_IDENTITY_FILE_MAX];
    size_t len = 0;
    int err = 0;

    if (key != NULL && key[0] != '\0') {
        err = read_key(key, file, sizeof(file), &len, msg);
    }
    if (err == 0) {
        net->identity = mu_calloc(1, sizeof(*net->identity));
        err = net->identity == NULL
                  ? mu_err(msg, MUSTER_ENOMEM, "out of memory")
                  : mu_state_key(net->rt->env, mu_span(file, len), net->identity, msg);
        if (err != 0) {
            mu_free(net->identity);
            net->identity = NULL;
        }
    }
    explicit_bzero(file, sizeof(file));
    return err;
}

int mu_state_read_key(const char *path, struct mu_identity *ret, struct mu_errmsg *msg)
{
    uint8_t file[MU_IDENTITY_FILE_MAX];
    size_t len = 0;
    int err = read_key(path, file, sizeof(file), &len, msg);

    err = err != 0 ? err : mu_identity_decode(ret, mu_span(file, len), msg);
    explicit_bzero(file, sizeof(file));
    return err;
}

struct net_door {
    struct mu_door door;
    struct mu_state_net *net;
    const struct mu_state_net_terms *terms;
    int err;
    struct mu_errmsg *msg;
};

static void use_number(void *context, const char *ip)
{
    mu_state_peers_add_number(context, ip);
}

static void start_peers(struct mu_door *door)
{
    struct net_door *d = MU_CONTAINER_OF(door, struct net_door, door);
    const struct mu_state_net_terms *t = d->terms;
    struct mu_state_net *net = d->net;

    net->closed = t->allow_count != 0;
    d->err = mu_state_peers_start(net->rt->raw, net->identity, net->closed, t->minds, &net->peers,
                                  d->msg);
    if (d->err == 0) {
        mu_uv_env_each_far_number(use_number, net->peers);
    }
    for (size_t i = 0; d->err == 0 && i < t->allow_count; i++) {
        d->err = mu_state_peers_allow(net->peers, t->allow[i], d->msg);
    }
    for (size_t i = 0; d->err == 0 && net->closed && i < t->donor_count; i++) {
        d->err = mu_state_peers_allow(net->peers, t->donors[i], d->msg);
    }
    mu_door_open(door);
}

int mu_state_net_open(struct mu_state_net *net, muster_runtime *rt,
                      const struct mu_state_net_terms *terms, struct mu_errmsg *msg)
{
    const struct mu_lock_policy *policy = mu_lock_env_policy(rt->locked.lock);
    struct net_door d = {.net = net, .terms = terms, .msg = msg};
    int err;

    *net =
        (struct mu_state_net){.rt = rt,
                              .env = rt->env,
                              .transport = policy->sealed && !policy->insecure ? "lock" : "plain"};
    err = load_identity(net, terms->key != NULL ? terms->key : terms->sign, msg);
    if (err == 0 && (terms->key != NULL || terms->peers)) {
        mu_door_pass(rt, &d.door, start_peers);
        err = d.err;
        if (err == 0) {
            net->env = mu_state_peers_env(net->peers);
            net->transport = "peer";
        }
    }
    if (err != 0) {
        mu_state_net_close(net);
    }
    return err;
}

static void peers_stopped(void *context)
{
    mu_door_open(context);
}

static void stop_peers(struct mu_door *door)
{
    struct net_door *d = MU_CONTAINER_OF(door, struct net_door, door);

    mu_state_peers_stop(d->net->peers, peers_stopped, door);
}

void mu_state_net_close(struct mu_state_net *net)
{
    struct net_door d = {.net = net};

    if (net->peers != NULL) {
        mu_door_pass(net->rt, &d.door, stop_peers);
    }
    if (net->identity != NULL) {
        mu_identity_fini(net->identity);
        mu_free(net->identity);
    }
    *net = (struct mu_state_net){0};
}

/* Peers do not show the job's credential, so it keeps no peer out. */
static int check_peers(const struct mu_state_net *net, const char *listen, const char *what,
                       struct mu_errmsg *msg)
{
    const struct mu_lock_policy *policy = mu_lock_env_policy(net->rt->locked.lock);
    struct mu_buf bytes;
    int err;

    mu_buf_init(&bytes, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&bytes, listen, msg);
    mu_buf_fini(&bytes);
    if (err != 0) {
        return err;
    }
    if (net->closed || policy->insecure || !mu_state_peers_is_far(listen)) {
        return 0;
    }
    return mu_err(
        msg, MUSTER_ELOCKED,
        "%.60s: any peer on another host could %s%s; name the peers that may with --allow "
        "PEER,..., or let all of them in with --insecure",
        listen, what, policy->sealed ? ", since peers do not show the job's credential" : "");
}

bool mu_state_any_is_here(const char *const *texts, size_t count)
{
    for (size_t i = 0; texts != NULL && i < count; i++) {
        struct mu_errmsg msg;
        struct mu_addr addr;

        if (texts[i][0] == '/'
                ? !mu_state_peers_is_far(texts[i])
                : mu_addr_parse(texts[i], 0, &addr, &msg) == 0 && mu_addr_is_loopback(&addr)) {
            return true;
        }
    }
    return false;
}

static bool is_any(const char *host)
{
    return strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

int mu_state_net_listen_peers(struct mu_state_net *net, const char *listen, const char *advertise,
                              const char *what, char *ret_text, size_t cap, struct mu_errmsg *msg)
{
    int err = check_peers(net, listen, what, msg);

    err = err != 0 ? err : mu_state_peers_listen(net->peers, listen, msg);
    err =
        err != 0 || advertise == NULL ? err : mu_state_peers_advertise(net->peers, advertise, msg);
    if (err == 0) {
        mu_state_peers_address(net->peers, 0, ret_text, cap);
    }
    return err;
}

int mu_state_net_listen(struct mu_state_net *net, const char *listen, const char *advertise,
                        struct mu_state_donor_config *config, struct mu_state_donor **ret,
                        char *ret_text, size_t cap, struct mu_errmsg *msg)
{
    struct mu_addr addr;
    int err = 0;

    ret_text[0] = '\0';
    config->sends_files = net->env == net->rt->env && net->rt->locked.tls == NULL;
    if (listen != NULL && net->peers != NULL) {
        config->listen = (struct mu_addr){.kind = MU_ADDR_PEER};
        err =
            mu_state_net_listen_peers(net, listen, advertise, "load the state", ret_text, cap, msg);
    } else if (listen != NULL) {
        err = mu_addr_parse(mu_locked_listen(&net->rt->locked, listen), 0, &config->listen, msg);
    }
    err = err != 0 ? err : mu_state_donor_start(net->env, config, ret, msg);
    if (err != 0 || listen == NULL) {
        return err;
    }
    if (net->peers != NULL) {
        mu_state_peers_address(net->peers, 0, ret_text, cap);
        return 0;
    }
    addr = *mu_state_donor_addr(*ret);
    if (addr.kind == MU_ADDR_TCP && advertise != NULL) {
        (void)snprintf(addr.host, sizeof(addr.host), "%s", advertise);
    } else if (addr.kind == MU_ADDR_TCP && is_any(addr.host) &&
               gethostname(addr.host, sizeof(addr.host) - 1) != 0) {
        (void)snprintf(addr.host, sizeof(addr.host), "127.0.0.1");
    }
    (void)mu_addr_format(&addr, ret_text, cap);
    return 0;
}
