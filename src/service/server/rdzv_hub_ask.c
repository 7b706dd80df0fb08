/* What can be asked about runs, and what can be done to one from outside. */
#include "service/server/rdzv_hub_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define OTHERS_MAX 16 /* runs that are looked at */

/* --- status ----------------------------------------------------------------------------------- */

static int encode_members(const struct mu_rdzv_run *run, struct mu_buf *out)
{
    mu_mono_t now = mu_env_now(run->hub->env).mono;

    for (size_t i = 0; i < MU_ROOM_STATES_IN; i++) {
        enum mu_room_member_state state = mu_room_states_in[i];

        MU_LIST_FOREACH (it, &run->room.in[state].members) {
            struct mu_room_member *room = MU_CONTAINER_OF(it, struct mu_room_member, link);
            const struct mu_rdzv_member *m = room->owner;
            struct mu_rdzv_member_msg msg = {
                .node = mu_span_str(room->name),
                .addr = mu_span_str(m->addr),
                .rank = state == MU_ROOM_RUNNING ? room->rank : UINT32_MAX,
                .place = (uint32_t)state,
                .silent_ms =
                    mu_mono_since(mu_rpc_last_heard(&m->base.session->rpc), now) / MU_NS_PER_MS,
            };
            int err = mu_rdzv_member_encode(out, &msg);

            if (err != 0) {
                return err;
            }
        }
    }
    return 0;
}

static int encode_run(const struct mu_rdzv_run *run, bool whole, struct mu_buf *out)
{
    const struct mu_room *room = &run->room;
    struct mu_rdzv_run_msg msg = {
        .run_id = run->by_id.key,
        .state = (uint32_t)room->state,
        .incarnation = room->incarnation,
        .round = room->round,
        .nodes_min = room->config.nodes_min,
        .nodes_max = room->config.nodes_max,
        .restarts_left = room->config.restarts_max == UINT32_MAX
                             ? UINT32_MAX
                             : room->config.restarts_max - room->restarts,
    };
    char text[MU_RDZV_WHY_MAX];
    struct mu_buf exclusions;
    struct mu_buf members;
    int err = 0;

    for (size_t i = 0; i < 4; i++) {
        msg.counts[i] = room->in[MU_ROOM_GATHERING + i].count;
        msg.member_count += msg.counts[i];
    }
    mu_room_explain(room, text, sizeof(text));
    msg.text = mu_span_str(text);
    mu_buf_init(&members, out->max);
    mu_buf_init(&exclusions, MU_EXCLUSIONS_BYTES_MAX);
    if (whole && !run->over) {
        err = encode_members(run, &members);
        msg.members = mu_buf_span(&members);
    }
    if (whole && !run->over && err == 0) {
        err = mu_exclusions_encode(&room->exclusions, mu_env_now(run->hub->env).mono, false,
                                   &exclusions);
        msg.exclusions = mu_buf_span(&exclusions);
    }
    if (err == 0) {
        err = mu_rdzv_run_encode(out, &msg);
    }
    mu_buf_fini(&members);
    mu_buf_fini(&exclusions);
    return err;
}

static int encode_list(const struct mu_list *runs, struct mu_buf *out)
{
    MU_LIST_FOREACH (it, runs) {
        int err = encode_run(MU_CONTAINER_OF(it, struct mu_rdzv_run, link), false, out);

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

void mu_rdzv_status_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                          const struct mu_rpc_event *event)
{
    struct mu_buf *out = hub->on.scratch;
    struct mu_rdzv_run *run;
    struct mu_span id;
    int err = mu_rdzv_run_id_decode(event->payload, &id);

    mu_buf_reset(out);
    if (err == 0 && id.len == 0) {
        err = encode_list(&hub->busy, out);
        if (err == 0) {
            err = encode_list(&hub->idle, out);
        }
    } else if (err == 0) {
        run = mu_rdzv_run_find(hub, id);
        err = run == NULL ? 0 : encode_run(run, true, out); /* The answer has no runs, or one. */
    }
    mu_rpc_session_reply(session, event->id, err,
                         err == 0 ? mu_buf_span(out) : mu_span_str(muster_strerror(err)));
    mu_buf_trim(out, 1 << 20);
}

/* Appends the name of another run that waits for nodes: its nodes may be those that are missing
 * here, under another id. */
static void add_other_run(const struct mu_rdzv_hub *hub, const struct mu_rdzv_run *run, char *text,
                          size_t cap)
{
    size_t len = strlen(text);
    unsigned looks = 0;
    char quoted[80];

    MU_LIST_FOREACH (it, &hub->busy) {
        const struct mu_rdzv_run *other = MU_CONTAINER_OF(it, struct mu_rdzv_run, link);

        if (other != run && mu_room_lacks(&other->room)) {
            (void)snprintf(
                text + len, cap - len,
                "; the run %s also waits for nodes: check that all nodes have the same --rdzv-id",
                mu_span_quote(quoted, sizeof(quoted), other->by_id.key));
            return;
        }
        looks += other != run ? 1 : 0;
        if (looks == OTHERS_MAX) {
            return;
        }
    }
}

/* Thousands may ask it while they wait: it costs one sentence, whoever is there. */
void mu_rdzv_explain_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                           const struct mu_rpc_event *event)
{
    char text[MU_RDZV_WHY_MAX] = "";
    struct mu_rdzv_run *run = NULL;
    struct mu_span id;
    int err = mu_rdzv_run_id_decode(event->payload, &id);

    if (err == 0) {
        run = mu_rdzv_run_find(hub, id);
        err = run == NULL && !mu_rdzv_lead_is(hub, id) ? MUSTER_ENOENT : 0;
    }
    if (err == 0 && mu_rdzv_lead_is(hub, id)) {
        mu_succession_explain(hub->lead->machine, text, sizeof(text) / 2);
    }
    if (run != NULL && text[0] == '\0') {
        mu_room_explain(&run->room, text, sizeof(text) / 2);
    }
    if (run != NULL && mu_room_lacks(&run->room)) {
        add_other_run(hub, run, text, sizeof(text));
    }
    mu_rpc_session_reply(session, event->id, err, mu_span_str(text));
}

/* --- close ------------------------------------------------------------------------------------ */

void mu_rdzv_close_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                         const struct mu_rpc_event *event)
{
    struct mu_rdzv_run *run;
    struct mu_errmsg why = {0};
    struct mu_span id;
    int err = mu_rdzv_run_id_decode(event->payload, &id);

    if (err != 0) {
        (void)mu_err(&why, err, "malformed question");
    } else {
        run = mu_rdzv_run_find(hub, id);
        if (run == NULL) {
            err = mu_err(&why, MUSTER_ENOENT, "no such run");
        } else if (!run->over) {
            mu_room_close(&run->room, mu_env_now(hub->env).mono);
            mu_rdzv_run_touch(run);
        }
    }
    mu_rpc_session_reply(session, event->id, err, mu_span_str(why.text));
}

/* --- exclude ---------------------------------------------------------------------------------- */

static int change_exclusions(struct mu_rdzv_run *run, const struct mu_rdzv_exclude_msg *msg,
                             struct mu_errmsg *reterr_msg)
{
    mu_mono_t now = mu_env_now(run->hub->env).mono;
    char quoted[80];

    if (msg->for_ms != 0) {
        return mu_room_exclude(&run->room, now, msg->who, msg->reason, msg->for_ms, reterr_msg);
    }
    if (mu_room_include(&run->room, msg->who) == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "no node %s is excluded; `muster rdzv status` lists those that are",
                      mu_span_quote(quoted, sizeof(quoted), msg->who));
    }
    mu_rdzv_lead_changed(run);
    return 0;
}

void mu_rdzv_exclude_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session,
                           const struct mu_rpc_event *event)
{
    struct mu_rdzv_exclude_msg msg;
    struct mu_errmsg why = {0};
    int err = mu_rdzv_exclude_decode(event->payload, &msg);

    if (err != 0) {
        (void)mu_err(&why, err, "malformed question");
    } else {
        struct mu_rdzv_run *run = mu_rdzv_run_find(hub, msg.run_id);

        err = run == NULL ? mu_err(&why, MUSTER_ENOENT, "no such run")
              : run->over ? mu_err(&why, MUSTER_ECLOSED, "the run is over")
                          : change_exclusions(run, &msg, &why);
        if (run != NULL) {
            mu_rdzv_run_touch(run);
        }
    }
    mu_rpc_session_reply(session, event->id, err, mu_span_str(why.text));
}
