/* A round on the native wire: does what the machine says, and ends the step. */
#include <inttypes.h>
#include <string.h>

#include <muster/error.h>

#include "core/assert.h"
#include "service/average/averager_native.h"
#include "service/base/log.h"

static struct mu_now now_of(const struct mu_averager_native *r)
{
    return mu_env_now(r->averager->env);
}

/* --- memory ----------------------------------------------------------------------------------- */

static void free_values(struct mu_averager_native *r)
{
    for (uint32_t p = 0; r->own != NULL && p < r->division.part_count; p++) {
        mu_free(r->own[p]);
    }
    mu_free(r->own);
    r->own = NULL;
    for (uint32_t i = 0; i < r->division.member_count; i++) {
        size_t n = (size_t)r->division.count[i] * r->division.member_count;

        for (size_t k = 0; r->kept[i] != NULL && k < n; k++) {
            mu_free(r->kept[i][k]);
        }
        mu_free(r->kept[i]);
        r->kept[i] = NULL;
    }
}

static void free_averages(struct mu_averager_native *r)
{
    for (uint32_t p = 0; r->averages != NULL && p < r->division.part_count; p++) {
        mu_averager_average_free(r, r->averages[p]);
        r->averages[p] = NULL;
    }
    r->averaged = 0;
}

static void free_round(struct mu_averager_native *r)
{
    MU_ASSERT(mu_list_empty(&r->jobs));
    mu_env_timer_arm(r->averager->env, &r->timer, MU_MONO_NEVER);
    r->leaving = true;
    for (uint32_t i = 0; r->links != NULL && i < r->division.member_count; i++) {
        mu_averager_link_sever(&r->links[i], "");
    }
    free_values(r);
    free_averages(r);
    mu_free(r->averages);
    mu_free(r->links);
    mu_free(r->peers);
    mu_free(r->got);
    mu_avg_division_fini(&r->division);
    mu_list_remove(&r->link);
    if (r->averager->native == r) {
        r->averager->native = NULL;
    }
    mu_free(r);
}

/* --- its begin -------------------------------------------------------------------------------- */

static int take_memory(struct mu_averager_native *r)
{
    size_t n = r->division.member_count;

    r->got = mu_calloc(n * n, sizeof(*r->got));
    r->averages = mu_calloc(r->division.part_count, sizeof(struct mu_averager_average *));
    r->peers = mu_calloc(n, sizeof(*r->peers));
    r->links = mu_calloc(n, sizeof(*r->links));
    if (r->got == NULL || r->averages == NULL || r->peers == NULL || r->links == NULL) {
        mu_free(r->links);
        r->links = NULL;
        return MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        r->peers[i] = r->averager->members[i].peer;
        r->clients |= (uint64_t)(r->averager->members[i].mode == MU_AVG_CLIENT) << i;
        r->links[i].round = r;
        r->links[i].member = i;
        r->links[i].over = i == r->averager->result.position;
        mu_list_init(&r->links[i].queue);
    }
    return 0;
}

static void set_hello(struct mu_averager_native *r)
{
    const struct mu_averager *a = r->averager;

    r->hello.version = MU_NATIVE_VERSION;
    memcpy(r->hello.group_id, a->result.group_id, sizeof(r->hello.group_id));
    memcpy(r->hello.schema, a->native_schema, sizeof(r->hello.schema));
    r->hello.position = (uint8_t)a->result.position;
    r->hello.members = (uint8_t)a->result.member_count;
}

/* The machine's times: half of all is for members to deliver their values. */
static struct mu_native_config config_of(const struct mu_averager_native *r)
{
    const struct mu_averager *a = r->averager;
    struct mu_native_config c = mu_native_config_defaults();
    uint64_t total = a->config.reduce_ms == 0 ? c.total_ms : a->config.reduce_ms;

    if (a->until.ns != MU_MONO_NEVER.ns) {
        uint64_t left = mu_mono_until_ms(a->until, now_of(r).mono);

        total = left < total ? left : total;
    }
    total = total < 100 ? 100 : total;
    c.division = &r->division;
    c.position = r->hello.position;
    c.clients = r->clients;
    c.weight = r->weight;
    c.got = r->got;
    c.total_ms = (uint32_t)total;
    c.gather_ms = (uint32_t)(total / 2);
    c.propose_ms = (uint32_t)(total / 3);
    c.prepare_ms = c.prepare_ms < total / 20 ? c.prepare_ms : (uint32_t)(total / 20);
    c.takeover_ms = (uint32_t)(total / 2 + total / 20);
    return c;
}

static void fail(struct mu_averager_native *r, int status)
{
    r->status = r->status != 0 ? r->status : status;
    if (r->running) {
        mu_native_cancel(&r->machine, now_of(r));
    } else {
        r->ended = true;
    }
}

/* Our values are encoded: the machine begins, and we call the others. */
static void run(struct mu_averager_native *r)
{
    struct mu_native_config c = config_of(r);
    mu_mono_t now = now_of(r).mono;
    int err = r->canceled ? MUSTER_ECANCELED : mu_native_init(&r->machine, &c, now_of(r));

    if (err != 0) {
        fail(r, err);
        return;
    }
    r->running = true;
    r->beat_at = now;
    for (uint32_t i = 0; i < r->division.member_count; i++) {
        r->links[i].heard = r->links[i].said = now;
    }
    mu_averager_links_open(r);
    mu_averager_sort_streams(r->averager);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_averager_native *r = MU_CONTAINER_OF(timer, struct mu_averager_native, timer);
    struct mu_averager *a = r->averager;

    if (r->running && !r->leaving) {
        mu_native_tick(&r->machine, now_of(r));
    }
    mu_averager_pump(a);
}

int mu_averager_native_begin(struct mu_averager *a, struct mu_errmsg *msg)
{
    struct mu_averager_native *r = mu_calloc(1, sizeof(*r));
    bool encode = false;
    int err;

    if (r == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    r->averager = a;
    mu_list_init(&r->link);
    mu_list_init(&r->jobs);
    mu_list_init(&r->trash);
    mu_timer_init(&r->timer, on_timer);
    r->leave_until = MU_MONO_NEVER;
    r->begun = now_of(r).mono;
    r->weight = a->config.mode == MU_AVG_AUX ? 0 : a->step->weight;
    err = mu_averager_take_group(a, &r->division, msg);
    if (err == 0 && r->division.member_count > MU_NATIVE_MEMBERS_MAX) {
        err =
            mu_err(msg, MUSTER_ELIMIT, "the group has more than %d members", MU_NATIVE_MEMBERS_MAX);
    }
    if (err == 0) {
        err = take_memory(r);
        set_hello(r);
        err = err != 0 ? err : mu_averager_own_new(r, &encode);
        err = err != 0 || !encode ? err : mu_averager_job_begin(r, MU_AVERAGER_ENCODE, NULL);
        err = err == 0 ? 0 : mu_err(msg, err, "out of memory");
    }
    if (err != 0) {
        free_round(r);
        return err;
    }
    a->native = r;
    mu_log(MUSTER_LOG_INFO, "AVERAGE-GROUP", "key=%s members=%zu position=%u%s", a->result_key,
           a->result.member_count, a->result.position, a->result.leading ? " leading" : "");
    if (!encode) {
        run(r);
    }
    return 0;
}

/* --- what others send ------------------------------------------------------------------------- */

/* Where the values of a member for a part are kept; NULL: there is no memory. */
static uint8_t **slot_of(struct mu_averager_native *r, uint32_t part, uint32_t member)
{
    uint32_t shard = r->division.parts[part].owner;
    size_t n = r->division.member_count;

    if (r->kept[shard] == NULL) {
        r->kept[shard] = mu_calloc(r->division.count[shard] * n, sizeof(uint8_t *));
    }
    return r->kept[shard] == NULL ? NULL
                                  : &r->kept[shard][(part - r->division.first[shard]) * n + member];
}

static void take_part(struct mu_averager_link *l, const struct mu_native_msg *msg)
{
    struct mu_averager_native *r = l->round;
    bool good = mu_averager_values_good(r, msg->part, msg->values);
    uint8_t **slot = good && !r->ended ? slot_of(r, msg->part, l->member) : NULL;
    uint8_t *bytes = slot == NULL ? NULL : mu_malloc(msg->values.len);

    if (good && !r->ended && bytes == NULL) {
        mu_averager_link_sever(l, "there was no memory for its values");
    } else if (mu_native_contributed(&r->machine, now_of(r), l->member, msg->part, msg->weight,
                                     good)) {
        memcpy(bytes, msg->values.data, msg->values.len);
        *slot = bytes;
        bytes = NULL;
    }
    mu_free(bytes);
}

static void keep_average(struct mu_averager_native *r, uint32_t part,
                         struct mu_averager_average *average)
{
    r->averaged += r->averages[part] == NULL ? 1 : 0;
    mu_averager_average_free(r, r->averages[part]);
    r->averages[part] = average;
}

static void take_average(struct mu_averager_link *l, const struct mu_native_msg *msg)
{
    struct mu_averager_native *r = l->round;
    bool good = mu_averager_values_good(r, msg->part, msg->values);
    struct mu_averager_average *average =
        good && !r->ended ? mu_averager_average_new(msg->sum, msg->values.len) : NULL;

    if (good && !r->ended && average == NULL) {
        mu_averager_link_sever(l, "there was no memory for its averages");
    } else if (mu_native_averaged(&r->machine, now_of(r), l->member, msg->sum, msg->part, good)) {
        memcpy(average->bytes, msg->values.data, msg->values.len);
        keep_average(r, msg->part, average);
        average = NULL;
    }
    mu_free(average);
}

void mu_averager_native_take(struct mu_averager_link *l, struct mu_span message)
{
    struct mu_averager_native *r = l->round;
    struct mu_native_msg msg;

    if (l->over || r->leaving) {
        return;
    }
    if (mu_native_msg_decode(message, &msg) != 0) {
        mu_averager_link_sever(l, "it sent what is no message of a round");
    } else if (msg.type == MU_NATIVE_PART) {
        r->bytes_received += message.len;
        take_part(l, &msg);
    } else if (msg.type == MU_NATIVE_AVERAGE) {
        r->bytes_received += message.len;
        take_average(l, &msg);
    } else {
        mu_native_received(&r->machine, now_of(r), l->member, &msg);
    }
}

/* --- what the machine says -------------------------------------------------------------------- */

static void forget(struct mu_averager_native *r, uint32_t sum)
{
    for (uint32_t p = 0; p < r->division.part_count; p++) {
        if (r->averages[p] != NULL && (sum == MU_NATIVE_NO_SUM || r->averages[p]->sum != sum)) {
            mu_averager_average_free(r, r->averages[p]);
            r->averages[p] = NULL;
            r->averaged--;
        }
    }
}

static void begin_job(struct mu_averager_native *r, enum mu_averager_job_kind kind,
                      const struct mu_native_event *e)
{
    int err = mu_averager_job_begin(r, kind, e);

    if (err != 0) {
        fail(r, err);
    }
}

static void carry_out(struct mu_averager_native *r, const struct mu_native_event *e)
{
    struct mu_averager_link *l = &r->links[e->member];

    switch (e->type) {
    case MU_NATIVE_EVENT_SEND:
        mu_averager_link_say(l, e->msg);
        break;
    case MU_NATIVE_EVENT_GIVE:
        mu_averager_link_give(l, MU_NATIVE_PART, e->part, 0);
        break;
    case MU_NATIVE_EVENT_TELL:
        mu_averager_link_give(l, MU_NATIVE_AVERAGE, e->part, e->sum);
        break;
    case MU_NATIVE_EVENT_SUM:
        begin_job(r, MU_AVERAGER_SUM, e);
        break;
    case MU_NATIVE_EVENT_FORGET:
        forget(r, e->sum);
        break;
    case MU_NATIVE_EVENT_HASH:
        begin_job(r, MU_AVERAGER_HASH, e);
        break;
    case MU_NATIVE_EVENT_PLACE:
        r->place_due = true;
        break;
    case MU_NATIVE_EVENT_CUT:
        mu_averager_link_sever(l, "it breaks the rules of a round");
        break;
    case MU_NATIVE_EVENT_END:
        r->ended = true;
        break;
    case MU_NATIVE_EVENT_RELEASE:
        r->leaving = true;
        break;
    }
}

void mu_averager_native_done(struct mu_averager_job *job)
{
    struct mu_averager_native *r = job->round;

    switch (job->kind) {
    case MU_AVERAGER_ENCODE:
        if (job->good) {
            run(r);
        } else {
            fail(r, MUSTER_EINVAL);
        }
        break;
    case MU_AVERAGER_SUM:
        if (mu_native_summed(&r->machine, now_of(r), job->sum, job->part, job->good)) {
            keep_average(r, job->part, job->average);
            job->average = NULL;
        }
        break;
    case MU_AVERAGER_HASH:
        mu_native_hashed(&r->machine, now_of(r), job->sum, job->digest);
        break;
    case MU_AVERAGER_PLACE:
        r->placed = true;
        break;
    }
}

/* --- its end ---------------------------------------------------------------------------------- */

static void tell_members(struct mu_averager_native *r)
{
    struct mu_averager *a = r->averager;
    uint32_t self = r->hello.position;

    for (uint32_t i = 0; i < r->division.member_count; i++) {
        struct mu_averager_member *told = &a->members[i];
        const char *why = r->links[i].why.text;

        told->counted = a->result.status == 0 && (r->machine.set.members >> i & 1) != 0;
        told->weighed = told->counted || i == self;
        told->weight = told->counted ? r->machine.set.weights[i] : r->weight;
        if (i != self) {
            told->owed = r->division.count[self];
            told->sent = r->running ? r->got[self * r->division.member_count + i] : 0;
            told->owns = r->division.count[i];
            told->results = a->result.status == 0 ? told->owns : 0;
        }
        if (why[0] == '\0' && !told->counted && a->result.status == 0) {
            why = "its values came too late";
        }
        /* Who ends its link after the result was known has done all that it was to do. */
        if (i != self && why[0] != '\0' && !(a->result.status == 0 && r->links[i].left)) {
            (void)mu_err(&a->whys[i], 0, "%s", why);
            told->why = a->whys[i].text;
        }
    }
}

static const char *text_of(const struct mu_averager_native *r)
{
    if (r->status == 0) {
        return mu_native_text(&r->machine);
    }
    if (r->status == MUSTER_EINVAL) {
        return "a value is not finite, or too large for float32";
    }
    return r->status == MUSTER_ECANCELED ? "the round was cancelled" : muster_strerror(r->status);
}

static void end_step(struct mu_averager_native *r)
{
    struct mu_averager *a = r->averager;
    int status = r->status != 0 ? r->status : mu_native_status(&r->machine);

    r->told = true;
    a->result.status = status;
    a->result.reduce_ms = mu_mono_since(r->begun, now_of(r).mono) / MU_NS_PER_MS;
    a->result.parts = (uint32_t)r->division.part_count;
    a->result.parts_local = status == 0 ? 0 : a->result.parts;
    a->result.bytes_sent = r->bytes_sent;
    a->result.bytes_received = r->bytes_received;
    a->result.has_digest = status == 0;
    if (status == 0) {
        memcpy(a->result.digest, r->machine.digest, sizeof(a->result.digest));
    }
    tell_members(r);
    mu_averager_finish(a, status, text_of(r));
    free_values(r);
    a->native = NULL;
    mu_list_push(&a->lingering, &r->link);
    mu_averager_sort_streams(a);
}

/* Whether the round is gone: all that was to be said was said, or its time is over. */
static bool leave(struct mu_averager_native *r)
{
    mu_mono_t now = now_of(r).mono;
    bool any = false;

    if (r->leave_until.ns == MU_MONO_NEVER.ns) {
        r->leave_until = mu_mono_add_ms(now, r->averager->config.linger_ms);
        free_averages(r);
    }
    for (uint32_t i = 0; i < r->division.member_count; i++) {
        mu_averager_link_leave(&r->links[i]);
        any = any || !r->links[i].over;
    }
    if (!mu_list_empty(&r->jobs) || (any && !mu_mono_reached(r->leave_until, now))) {
        return false;
    }
    free_round(r);
    return true;
}

static void arm(struct mu_averager_native *r)
{
    mu_mono_t now = now_of(r).mono;
    mu_mono_t at = r->leaving ? r->leave_until : MU_MONO_NEVER;

    if (r->running && !r->leaving) {
        if (mu_mono_reached(r->beat_at, now)) {
            r->beat_at = mu_mono_add_ms(now, r->averager->config.sender_ms / 8 + 1);
        }
        at = mu_mono_min(mu_native_deadline(&r->machine), r->beat_at);
    }
    mu_env_timer_arm(r->averager->env, &r->timer, at);
}

static void pump(struct mu_averager_native *r)
{
    struct mu_native_event e;

    if (r->running && !r->leaving && mu_mono_reached(r->beat_at, now_of(r).mono)) {
        mu_averager_links_beat(r);
    }
    while (r->running && mu_native_next_event(&r->machine, &e)) {
        carry_out(r, &e);
    }
    if (r->place_due && !r->placing && mu_list_empty(&r->jobs)) {
        r->placing = true;
        r->status = mu_averager_job_begin(r, MU_AVERAGER_PLACE, NULL);
        r->place_due = r->status == 0;
    }
    if (r->ended && !r->told && mu_list_empty(&r->jobs) && r->placed == r->place_due) {
        r->leaving = r->leaving || !r->running;
        end_step(r);
    }
    if (r->told && r->leaving && leave(r)) {
        return;
    }
    arm(r);
}

void mu_averager_native_pump(struct mu_averager *a)
{
    uint32_t waiting = 0;

    MU_LIST_FOREACH_SAFE (it, next, &a->lingering) {
        pump(MU_CONTAINER_OF(it, struct mu_averager_native, link));
    }
    if (a->native != NULL) {
        pump(a->native);
    }
    MU_LIST_FOREACH (it, &a->lingering) {
        waiting += MU_CONTAINER_OF(it, struct mu_averager_native, link)->leaving ? 0 : 1;
    }
    MU_LIST_FOREACH (it, &a->lingering) {
        struct mu_averager_native *r = MU_CONTAINER_OF(it, struct mu_averager_native, link);

        if (!r->leaving && waiting-- > MU_AVERAGER_LINGER_MAX) {
            r->leaving = true;
            a->again = true;
        }
    }
}

void mu_averager_native_cancel(struct mu_averager *a)
{
    struct mu_averager_native *r = a->native;

    if (r != NULL && r->running) {
        mu_native_cancel(&r->machine, now_of(r));
    } else if (r != NULL) {
        r->canceled = true;
    }
}

void mu_averager_native_cut(struct mu_averager *a)
{
    MU_LIST_FOREACH_SAFE (it, next, &a->lingering) {
        struct mu_averager_native *r = MU_CONTAINER_OF(it, struct mu_averager_native, link);

        r->leaving = true;
        r->leave_until = now_of(r).mono;
        (void)leave(r);
    }
    while (!mu_list_empty(&a->strangers)) {
        mu_averager_stream_free(
            MU_CONTAINER_OF(a->strangers.next, struct mu_averager_stream, link));
    }
}
