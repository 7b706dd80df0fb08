/* The log of the clients that the lock has refused. */
#include <string.h>

#include "service/lock/env_internal.h"

/* Hashes a text that is one of a few. */
static uint32_t hash_text(const char *text)
{
    uint32_t hash = 2166136261u;

    for (; *text != '\0'; text++) {
        hash = (hash ^ (unsigned char)*text) * 16777619u;
    }
    return hash;
}

/* False: this address was named less than a minute ago, for the same reason. */
static bool name_peer(struct mu_lock_env *lock, const char *peer, const char *why, mu_mono_t now)
{
    const char *port = strrchr(peer, ':');
    size_t len = port == NULL ? strlen(peer) : (size_t)(port - peer);
    uint32_t reason = hash_text(why);
    struct named *n;

    len = len < sizeof(n->peer) ? len : sizeof(n->peer) - 1;
    for (size_t i = 0; i < NAMED_MAX; i++) {
        n = &lock->named[i];
        if (n->reason == reason && strlen(n->peer) == len && memcmp(n->peer, peer, len) == 0 &&
            mu_mono_before(now, n->until)) {
            return false;
        }
    }
    n = &lock->named[lock->named_next++ % NAMED_MAX];
    memcpy(n->peer, peer, len);
    n->peer[len] = '\0';
    n->reason = reason;
    n->until = mu_mono_add_ms(now, NAMED_MS);
    return true;
}

static void count_unsaid(struct mu_lock_env *lock, mu_mono_t now)
{
    if (lock->limit.unsaid++ == 0) {
        mu_env_timer_arm(lock->below, &lock->unsaid_timer, mu_mono_add_ms(now, NAMED_MS));
    }
}

/* Time first: in a flood nothing else is looked at. */
void mu_lock_env_refused(void *context, const char *peer, const char *why)
{
    struct mu_lock_env *lock = context;
    mu_mono_t now = mu_env_now(lock->below).mono;

    if (!mu_log_may(&lock->limit, now) || !name_peer(lock, peer, why, now)) {
        count_unsaid(lock, now);
        return;
    }
    if (lock->limit.unsaid != 0) {
        mu_env_timer_arm(lock->below, &lock->unsaid_timer, MU_MONO_NEVER);
    }
    mu_log_said(&lock->limit, now, MUSTER_LOG_WARN, "LOCK-REFUSED", "peer=%s why=\"%s\"", peer,
                why);
}

void mu_lock_env_say(enum muster_log_level level, const char *id, const char *text)
{
    mu_log(level, id, "why=\"%s\"", text);
}

void mu_lock_say_unsaid(struct mu_lock_env *lock)
{
    if (lock->limit.unsaid != 0) {
        mu_env_timer_arm(lock->below, &lock->unsaid_timer, MU_MONO_NEVER);
        mu_log_rest(&lock->limit, MUSTER_LOG_WARN, "LOCK-REFUSED");
    }
}

void mu_lock_on_unsaid(struct mu_timer *timer)
{
    mu_lock_say_unsaid(MU_CONTAINER_OF(timer, struct mu_lock_env, unsaid_timer));
}
