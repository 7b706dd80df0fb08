/* The connections that come in: their addresses, their first bytes, and the owners that they
 * get. */
#include <string.h>

#include "codec/lock/tls_hello.h"
#include "core/alloc.h"
#include "proto/rpc/rpc.h"
#include "service/lock/env_internal.h"

/* If a timer is later than this, this process was asleep. */
#define LATE_MS 1000
/* How many strangers a second that greet on the native wire get a refusal in words, for which their
 * connection has to linger until they have read it. The others are cut off. */
#define FAREWELLS_MAX 64
/* While connections come in every turn, one handshake begins for so many of them. */
#define COME_MAX 32

/* --- time limits ------------------------------------------------------------------------------ */

static mu_mono_t first_of(const struct mu_list *guests)
{
    return mu_list_empty(guests) ? MU_MONO_NEVER
                                 : MU_CONTAINER_OF(guests->next, struct lock_conn, link)->by;
}

static void arm_timer(struct mu_lock_env *lock)
{
    mu_mono_t at = mu_mono_min(first_of(&lock->silent), first_of(&lock->begun));

    if (mu_mono_before(at, lock->forgiven)) {
        at = lock->forgiven;
    }
    if (!mu_heap_contains(&lock->timer.node) || at.ns != lock->timer.node.at.ns) {
        mu_env_timer_arm(lock->below, &lock->timer, at);
    }
}

static void await(struct lock_conn *c, struct mu_list *guests, uint32_t ms)
{
    c->by = mu_mono_add_ms(mu_env_now(c->lock->below).mono, ms);
    mu_list_push(guests, &c->link);
    arm_timer(c->lock);
}

static void stop_awaiting(struct lock_conn *c)
{
    if (mu_list_empty(&c->link)) {
        return;
    }
    mu_list_remove(&c->link);
    if (c->guest.stage <= MU_GUEST_SILENT) {
        c->lock->silent_count--;
    }
    arm_timer(c->lock);
}

/* The guest is none any more. It may be the one for whom others of its address wait. */
void mu_lock_guest_leaves(struct lock_conn *c)
{
    struct mu_lock_env *lock = c->lock;

    mu_guests_leave(&lock->book, &c->guest);
    if (!mu_list_empty(&lock->book.turns)) {
        mu_env_timer_arm(lock->below, &lock->turn, mu_env_now(lock->below).mono);
    }
}

/* Ends the wait: the connection has no owner, and no more is expected from it. */
static void leave(struct lock_conn *c)
{
    stop_awaiting(c);
    mu_list_remove(&c->fresh);
    mu_lock_guest_leaves(c);
    mu_free(c->hello);
    c->hello = NULL;
    c->hello_len = 0;
}

void mu_lock_shut(struct lock_conn *c)
{
    leave(c);
    if (!c->closing) {
        c->closing = true;
        mu_env_close(c->lock->below, &c->raw, true);
    }
}

/* Tells the client that it may come again, by the alert of an internal error on our side (RFC 8446,
 * 6.2). A silent client may have its hello on the way, and would take an end without an alert for
 * that of a server without TLS. In a flood the address is not looked up, since the log would not
 * show it. */
static void send_away(struct lock_conn *c, const char *why)
{
    static const uint8_t alert[] = {21, 3, 3, 0, 2, 2, 80};
    struct mu_lock_env *lock = c->lock;
    size_t taken = 0;
    char peer[64] = "";

    if (mu_log_may(&lock->limit, mu_env_now(lock->below).mono)) {
        mu_env_peer(lock->below, &c->raw, peer, sizeof(peer));
    }
    mu_lock_env_refused(lock, peer, why);
    if (lock->sealed != NULL && !c->native) {
        mu_env_send(lock->below, &c->raw, mu_span(alert, sizeof(alert)), &taken);
    }
    mu_lock_shut(c);
}

static void tire(struct lock_conn *c);

/* A process that was stopped for a while finds every connection late, with bytes that it has not
 * read yet. */
void mu_lock_on_timer(struct mu_timer *timer)
{
    struct mu_lock_env *lock = MU_CONTAINER_OF(timer, struct mu_lock_env, timer);
    mu_mono_t now = mu_env_now(lock->below).mono;
    mu_mono_t at = mu_mono_min(first_of(&lock->silent), first_of(&lock->begun));

    if (mu_mono_before(at, lock->forgiven)) {
        at = lock->forgiven;
    }
    if (mu_mono_since(at, now) > LATE_MS * MU_NS_PER_MS) {
        lock->forgiven = mu_mono_add_ms(now, LATE_MS);
    }
    while (mu_mono_reached(lock->forgiven, now) && mu_mono_reached(first_of(&lock->silent), now)) {
        tire(MU_CONTAINER_OF(lock->silent.next, struct lock_conn, link));
    }
    while (mu_mono_reached(lock->forgiven, now) && mu_mono_reached(first_of(&lock->begun), now)) {
        send_away(MU_CONTAINER_OF(lock->begun.next, struct lock_conn, link),
                  "it fell silent in the middle of the handshake");
    }
    arm_timer(lock);
}

void mu_lock_guest_gone(struct lock_conn *c)
{
    leave(c);
    if (c->listener != NULL) {
        c->listener->guests--;
        mu_lock_free_listener_if_shut(c->listener);
    }
}

static void shut_all(struct mu_list *guests, const struct lock_listener *l)
{
    MU_LIST_FOREACH_SAFE (it, tmp, guests) {
        struct lock_conn *c = MU_CONTAINER_OF(it, struct lock_conn, link);

        if (c->listener == l) {
            mu_lock_shut(c);
        }
    }
}

void mu_lock_shut_guests(struct lock_listener *l)
{
    shut_all(&l->lock->silent, l);
    shut_all(&l->lock->begun, l);
    shut_all(&l->lock->waiting, l);
}

/* --- guests ----------------------------------------------------------------------------------- */

static struct lock_conn *conn_of(struct mu_guest *guest)
{
    return MU_CONTAINER_OF(guest, struct lock_conn, guest);
}

/* Enters the connections that came since the last time: a connection has no address before its
 * accept has returned. */
static void write_down(struct mu_lock_env *lock)
{
    struct mu_list *node;

    while ((node = mu_list_pop(&lock->fresh)) != NULL) {
        struct lock_conn *c = MU_CONTAINER_OF(node, struct lock_conn, fresh);
        struct mu_guest *guest;
        uint8_t ip[MU_IP_LEN];
        char peer[64];

        mu_env_peer(lock->below, &c->raw, peer, sizeof(peer));
        if (mu_guests_add(&lock->book, &c->guest,
                          mu_lock_peer_is_near(peer) || !mu_lock_peer_ip(peer, ip) ? NULL : ip) !=
            0) {
            mu_lock_shut(c);
            continue;
        }
        guest = mu_guests_over(&lock->book, &c->guest);
        if (guest != NULL) {
            send_away(conn_of(guest), "too many connections are in the middle of a handshake");
        }
    }
}

void mu_lock_greet(struct lock_conn *c)
{
    write_down(c->lock);
    mu_list_push(&c->lock->fresh, &c->fresh);
    c->lock->come++;
    c->lock->silent_count++;
    await(c, &c->lock->silent, MU_LOCK_SPEAK_MS);
}

/* --- first bytes ------------------------------------------------------------------------------ */

static const char no_credential[] = "it shows no credential (--token-file), and plain connections "
                                    "from its address are not allowed (--allow CIDR)";

/* Gives the connection an owner. False: it was turned away. */
static bool hand_over(struct lock_conn *c, struct mu_listener *to, struct mu_env *env)
{
    struct mu_conn *upper = to->accept(to);

    if (upper == NULL) {
        mu_lock_shut(c);
        return false;
    }
    upper->env = env;
    upper->impl = c;
    c->upper = upper;
    c->listener->guests--;
    c->listener = NULL;
    return true;
}

/* The connection has said nothing for too long. On loopback, which is open, it may stay: a store of
 * PyTorch 1.13 has one on which it only listens, and ends its process when that is closed. */
static void tire(struct lock_conn *c)
{
    char peer[64];

    mu_env_peer(c->lock->below, &c->raw, peer, sizeof(peer));
    if (mu_lock_peer_is_near(peer)) {
        c->trust = MU_TRUST_OPEN;
        leave(c);
        (void)hand_over(c, c->listener->owner, &c->lock->users.env);
    } else {
        mu_lock_shut(c);
    }
}

/* A plain connection goes to its listener. */
static size_t hand_up(struct lock_conn *c, enum mu_trust trust, struct mu_span in)
{
    c->trust = trust;
    leave(c);
    return hand_over(c, c->listener->owner, &c->lock->users.env) ? c->upper->on->data(c->upper, in)
                                                                 : in.len;
}

/* Looks at a native greeting. 1: it is whole, or will never be a greeting; 0: more must come. */
static int scan_greeting(struct mu_span in)
{
    struct mu_rpc_greet greet;
    struct mu_rpc_hello hello;
    size_t used;
    int err;

    mu_rpc_greet_init(&greet);
    err = mu_rpc_greet_recv(&greet, in, &used, &hello);
    mu_rpc_greet_fini(&greet);
    return err == MUSTER_EAGAIN ? 0 : err == MUSTER_ENOMEM ? err : 1;
}

static bool may_have_words(struct mu_lock_env *lock)
{
    mu_mono_t now = mu_env_now(lock->below).mono;

    if (mu_mono_since(lock->farewells_since, now) >= MU_NS_PER_S) {
        lock->farewells_since = now;
        lock->farewells = 0;
    }
    return lock->farewells++ < FAREWELLS_MAX;
}

/* The listener refuses it at once, in words. */
static void hand_greeting(struct lock_conn *c)
{
    struct mu_span greeting = mu_span(c->hello, c->hello_len);
    uint8_t *hello = c->hello;

    c->hello = NULL;
    c->trust = MU_TRUST_PLAIN;
    leave(c);
    if (hand_over(c, c->listener->owner, &c->lock->users.env) &&
        c->upper->on->data(c->upper, greeting) < greeting.len) {
        mu_lock_shut(c); /* The listener is too busy for that. */
    }
    mu_free(hello);
}

/* Keeps the part of a hello that has come. */
static size_t gather(struct lock_conn *c, struct mu_span in)
{
    size_t room = MU_TLS_HELLO_MAX - c->hello_len;
    size_t n = in.len < room ? in.len : room;
    uint8_t *hello = mu_realloc(c->hello, c->hello_len + n);
    char peer[64];
    int whole;

    if (hello == NULL) {
        mu_lock_shut(c);
        return in.len;
    }
    memcpy(hello + c->hello_len, in.data, n);
    c->hello = hello;
    c->hello_len += n;
    whole = c->native ? scan_greeting(mu_span(hello, c->hello_len))
                      : mu_tls_hello_scan(mu_span(hello, c->hello_len));
    if (whole < 0 || (whole == 0 && c->hello_len == MU_TLS_HELLO_MAX)) {
        mu_env_peer(c->lock->below, &c->raw, peer, sizeof(peer));
        mu_lock_env_refused(c->lock, peer, "its first bytes are not a hello");
        mu_lock_shut(c);
        return in.len;
    }
    if (whole == 1 && c->native && !may_have_words(c->lock)) {
        mu_lock_shut(c);
    } else if (whole == 1 && c->native) {
        hand_greeting(c);
    } else if (whole == 1) {
        /* The client waits for us now, however long that takes. */
        stop_awaiting(c);
        mu_list_push(&c->lock->waiting, &c->link);
        mu_guests_move(&c->lock->book, &c->guest, MU_GUEST_WAITING);
        mu_env_timer_arm(c->lock->below, &c->lock->turn, mu_env_now(c->lock->below).mono);
    }
    return n;
}

/* The client has begun a hello, of TLS or of the native wire. */
static size_t begin_hello(struct lock_conn *c, struct mu_span in)
{
    stop_awaiting(c);
    mu_guests_move(&c->lock->book, &c->guest, MU_GUEST_BEGUN);
    await(c, &c->lock->begun, MU_LOCK_HELLO_MS);
    return gather(c, in);
}

/* Judges the first bytes. */
static size_t judge(struct lock_conn *c, struct mu_span in)
{
    struct mu_lock_env *lock = c->lock;
    uint8_t first = in.data[0];
    char peer[64];

    mu_env_peer(lock->below, &c->raw, peer, sizeof(peer));
    switch (mu_lock_judge(&lock->policy, peer, first)) {
    case MU_LOCK_OPEN:
        return hand_up(c, MU_TRUST_OPEN, in);
    case MU_LOCK_PLAIN:
        if (first != MU_LOCK_FIRST_NATIVE) {
            return hand_up(c, MU_TRUST_PLAIN, in);
        }
        /* A client that is allowed to speak PyTorch's protocol does so once it has read this. */
        if (!mu_lock_peer_is_allowed(&lock->policy, peer)) {
            mu_lock_env_refused(lock, peer, "it shows no credential (--token-file)");
        }
        c->native = true;
        return begin_hello(c, in);
    case MU_LOCK_SEALED:
        return begin_hello(c, in);
    case MU_LOCK_SHUT:
        mu_lock_env_refused(lock, peer,
                            first == MU_LOCK_FIRST_TLS
                                ? "it speaks TLS, but this job has no credential (--token-file)"
                                : no_credential);
        mu_lock_shut(c);
        break;
    }
    return in.len;
}

size_t mu_lock_hear(struct lock_conn *c, struct mu_span in)
{
    write_down(c->lock);
    if (c->closing) {
        return in.len;
    }
    switch (c->guest.stage) {
    case MU_GUEST_SILENT:
        return judge(c, in);
    case MU_GUEST_BEGUN:
        return gather(c, in);
    case MU_GUEST_NONE:
    case MU_GUEST_WAITING:
    case MU_GUEST_SHAKING:
        break;
    }
    return 0; /* Its turn has not come; it is read on then. */
}

/* Whether connections queue up. One that is behind a flood gets in sooner if those before it are
 * entered first: that costs far less than their handshakes, and most of a flood has to go without
 * one. */
static bool is_crowded(struct mu_lock_env *lock)
{
    bool came = lock->come != lock->come_before;

    lock->come_before = lock->come;
    return came && lock->come - lock->come_at_shake < COME_MAX;
}

/* Begins one handshake. Others follow in later turns, and all other work goes on in between. */
void mu_lock_on_turn(struct mu_timer *timer)
{
    struct mu_lock_env *lock = MU_CONTAINER_OF(timer, struct mu_lock_env, turn);
    struct mu_guest *guest;
    struct mu_guest *victim;
    struct lock_conn *c;
    uint8_t *hello;

    if (is_crowded(lock)) {
        mu_env_timer_arm(lock->below, &lock->turn, mu_env_now(lock->below).mono);
        return;
    }
    guest = mu_guests_next(&lock->book);
    victim = mu_guests_surplus(&lock->book);
    if (guest == NULL) {
        return;
    }
    lock->come_at_shake = lock->come;
    c = conn_of(guest);
    mu_env_timer_arm(lock->below, &lock->turn, mu_env_now(lock->below).mono);
    if (victim != NULL) {
        send_away(conn_of(victim), "too many handshakes are under way");
    }
    stop_awaiting(c);
    hello = c->hello;
    c->hello = NULL;
    if (hand_over(c, c->listener->feed, &lock->wire.env)) {
        (void)c->upper->on->data(c->upper, mu_span(hello, c->hello_len));
        mu_env_resume(lock->below, &c->raw);
    }
    mu_free(hello);
}
