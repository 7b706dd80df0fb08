#include "proto/p2pd/pipe.h"

void mu_p2pd_pipe_init(struct mu_p2pd_pipe *p, size_t kept_max)
{
    *p = (struct mu_p2pd_pipe){.up = MU_P2PD_PIPE_FLOWING, .down = MU_P2PD_PIPE_FLOWING};
    mu_buf_init(&p->kept, kept_max);
}

void mu_p2pd_pipe_fini(struct mu_p2pd_pipe *p)
{
    mu_buf_fini(&p->kept);
}

/* --- down ------------------------------------------------------------------------------------- */

int mu_p2pd_pipe_head(struct mu_p2pd_pipe *p, struct mu_span bytes)
{
    int err = mu_buf_append(&p->kept, bytes);

    p->own = p->kept.len;
    return err;
}

void mu_p2pd_pipe_ready(struct mu_p2pd_pipe *p)
{
    p->open = true;
    p->blocked = false;
}

static struct mu_span unsent(const struct mu_p2pd_pipe *p)
{
    return p->kept.len != 0 ? mu_buf_span(&p->kept) : p->lent;
}

void mu_p2pd_pipe_sent(struct mu_p2pd_pipe *p, size_t n)
{
    size_t own = n < p->own ? n : p->own;

    p->blocked = n < unsent(p).len;
    p->own -= own;
    p->consumed += n - own;
    if (p->kept.len != 0) {
        mu_buf_consume(&p->kept, n);
        mu_buf_trim(&p->kept, 0);
    } else {
        p->lent = mu_span_skip(p->lent, n);
    }
}

void mu_p2pd_pipe_heard(struct mu_p2pd_pipe *p, struct mu_span bytes)
{
    p->lent = bytes;
}

void mu_p2pd_pipe_keep(struct mu_p2pd_pipe *p)
{
    p->failed = p->failed || mu_buf_append(&p->kept, p->lent) != 0;
    p->lent = (struct mu_span){0};
}

void mu_p2pd_pipe_peer_ended(struct mu_p2pd_pipe *p)
{
    if (p->down == MU_P2PD_PIPE_FLOWING) {
        p->down = MU_P2PD_PIPE_DRAINING;
    }
}

void mu_p2pd_pipe_gone(struct mu_p2pd_pipe *p)
{
    p->gone = true;
    p->resume = p->resume || p->up == MU_P2PD_PIPE_HELD;
    p->up = MU_P2PD_PIPE_DROPPED;
    p->end = false;
    mu_p2pd_pipe_peer_ended(p);
}

/* --- up --------------------------------------------------------------------------------------- */

size_t mu_p2pd_pipe_up(struct mu_p2pd_pipe *p, size_t len, size_t taken)
{
    if (p->up == MU_P2PD_PIPE_DROPPED) {
        return len;
    }
    if (taken < len && p->up == MU_P2PD_PIPE_FLOWING) {
        p->up = MU_P2PD_PIPE_HELD;
    }
    return taken;
}

void mu_p2pd_pipe_writable(struct mu_p2pd_pipe *p)
{
    if (p->up == MU_P2PD_PIPE_HELD) {
        p->up = MU_P2PD_PIPE_FLOWING;
        p->resume = true;
    }
}

void mu_p2pd_pipe_client_ended(struct mu_p2pd_pipe *p)
{
    if (p->up == MU_P2PD_PIPE_FLOWING || p->up == MU_P2PD_PIPE_HELD) {
        p->up = MU_P2PD_PIPE_ENDED;
        p->end = true;
    }
}

/* --- actions ---------------------------------------------------------------------------------- */

/* How the way down goes on, once all is sent. 0: it does not yet. */
static enum mu_p2pd_pipe_action_type end_down(struct mu_p2pd_pipe *p)
{
    if (p->failed) {
        p->down = MU_P2PD_PIPE_CLOSED;
        return MU_P2PD_PIPE_ABORT;
    }
    if (!p->open || unsent(p).len != 0) {
        return 0;
    }
    if (p->gone) {
        p->down = MU_P2PD_PIPE_CLOSED;
        return MU_P2PD_PIPE_CLOSE;
    }
    if (p->down == MU_P2PD_PIPE_DRAINING) {
        p->down = MU_P2PD_PIPE_FINISHED;
        return MU_P2PD_PIPE_FINISH;
    }
    return 0;
}

/* Whether that was due, and is not any more. */
static bool take(bool *due)
{
    bool was = *due;

    *due = false;
    return was;
}

bool mu_p2pd_pipe_next(struct mu_p2pd_pipe *p, struct mu_p2pd_pipe_action *ret)
{
    *ret = (struct mu_p2pd_pipe_action){0};
    if (p->down == MU_P2PD_PIPE_CLOSED) {
        return false;
    }
    if (p->open && !p->blocked && unsent(p).len != 0) {
        ret->type = MU_P2PD_PIPE_SEND;
        ret->bytes = unsent(p);
    } else if (p->consumed != 0 && !p->gone) {
        ret->type = MU_P2PD_PIPE_CONSUMED;
        ret->len = p->consumed;
        p->consumed = 0;
    } else if (take(&p->end)) {
        ret->type = MU_P2PD_PIPE_END;
    } else if (take(&p->resume)) {
        ret->type = MU_P2PD_PIPE_RESUME;
    } else {
        ret->type = end_down(p);
    }
    return ret->type != 0;
}
