/*
 * The check of this node: a look at its machine (health.h), then a command for the shell. The exit
 * code of the command decides, and its last line is the reason. What it has started is killed when
 * it has ended.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/assert.h"
#include "service/agent/agent_internal.h"

static struct mu_agent_service *service_of(struct mu_child *child)
{
    return MU_CONTAINER_OF(child, struct mu_agent_service, check.child);
}

/* --- its words -------------------------------------------------------------------------------- */

static void end_line(struct mu_agent_service *s)
{
    struct mu_agent_check *c = &s->check;
    char text[MU_AGENT_CHECK_LINE_MAX + 16];

    c->line[c->line_len] = '\0';
    c->line_len = 0;
    if (c->line[strspn(c->line, " \t\r")] == '\0') {
        return;
    }
    memcpy(c->last, c->line, sizeof(c->last));
    if (s->events.checked != NULL) {
        s->events.checked(s->events.context, c->line);
    } else {
        (void)snprintf(text, sizeof(text), "[check]: %s", c->line);
        s->events.log(s->events.context, text);
    }
}

static size_t on_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    struct mu_agent_service *s = service_of(child);
    struct mu_agent_check *c = &s->check;

    (void)stream;
    for (size_t i = 0; i < in.len; i++) {
        uint8_t byte = in.data[i];

        if (byte == '\n') {
            end_line(s);
        } else if (c->line_len < MU_AGENT_CHECK_LINE_MAX) {
            c->line[c->line_len++] = (char)(byte < 0x20 || byte == 0x7f ? ' ' : byte);
        }
    }
    return in.len;
}

/* --- its end ---------------------------------------------------------------------------------- */

static void tell(struct mu_agent_service *s, int exit_code, const char *text)
{
    struct mu_agent_check *c = &s->check;

    if (!c->over) {
        c->over = true;
        mu_env_timer_arm(s->env, &c->timer, MU_MONO_NEVER);
        mu_agent_tell(s, (struct mu_agent_event){
                             .type = MU_AGENT_CHECKED, .exit_code = exit_code, .text = text});
    }
}

static void kill_all(struct mu_agent_service *s)
{
    (void)mu_env_child_signal(s->env, &s->check.child, SIGKILL, MU_CHILD_FAMILY);
}

static void on_started(struct mu_child *child, int status)
{
    struct mu_agent_service *s = service_of(child);

    s->check.exit_code = status;
    if (status != 0) {
        (void)snprintf(s->check.last, sizeof(s->check.last), "it cannot be started: %.200s",
                       child->error.text);
    } else if (s->check.over) {
        kill_all(s);
    }
}

static void on_exited(struct mu_child *child, int status)
{
    service_of(child)->check.exit_code = status;
    kill_all(service_of(child));
}

/* All that it wrote has come by now. */
static void on_gone(struct mu_child *child)
{
    struct mu_agent_service *s = service_of(child);
    struct mu_agent_check *c = &s->check;
    char text[MU_AGENT_CHECK_LINE_MAX + 1];

    if (c->line_len != 0) {
        end_line(s);
    }
    memcpy(text, c->last, sizeof(text));
    if (text[0] == '\0' && c->exit_code != 0) {
        (void)snprintf(text, sizeof(text), "it %s %d and said nothing",
                       c->exit_code < 0 ? "was ended by signal" : "exited with",
                       c->exit_code < 0 ? -c->exit_code : c->exit_code);
    }
    c->spawned = false;
    tell(s, c->exit_code, text);
    mu_agent_settle(s);
}

static const struct mu_child_events child_events = {
    .started = on_started,
    .output = on_output,
    .exited = on_exited,
    .gone = on_gone,
};

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, check.timer);
    char text[64];

    (void)snprintf(text, sizeof(text), "it did not end within %u s", s->config.check_ms / 1000);
    if (s->check.spawned) {
        kill_all(s);
    }
    tell(s, -SIGKILL, text);
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_agent_check_init(struct mu_agent_service *s)
{
    mu_timer_init(&s->check.timer, on_timer);
    s->check.over = true;
}

static void start_command(struct mu_agent_service *s)
{
    const char *const argv[] = {"/bin/sh", "-c", s->config.check, NULL};
    const struct mu_spawn what = {
        .argv = argv,
        .envp = s->config.inherited,
        .streams = {{.to = MU_SPAWN_NULL}, {.to = MU_SPAWN_PIPE}, {.to = MU_SPAWN_PIPE}},
    };
    struct mu_agent_check *c = &s->check;
    int err = -EBUSY;

    if (!c->spawned) { /* One that cannot be killed may still be there. */
        c->line_len = 0;
        c->last[0] = '\0';
        c->child.on = &child_events;
        err = mu_env_spawn(s->env, &c->child, &what);
    }
    if (err != 0) {
        tell(s, 1, muster_strerror(err));
        return;
    }
    c->spawned = true;
    mu_env_timer_arm(s->env, &c->timer,
                     mu_mono_add_ms(mu_env_now(s->env).mono, s->config.check_ms));
}

void mu_agent_check_health(struct mu_agent_service *s, const char *fault)
{
    if (s->check.over) {
        return;
    }
    if (fault[0] != '\0' || s->config.check == NULL) {
        tell(s, fault[0] != '\0' ? 1 : 0, fault);
    } else {
        start_command(s);
    }
}

void mu_agent_check_start(struct mu_agent_service *s)
{
    s->check.over = false;
    if (!mu_agent_health_check(s)) {
        mu_agent_check_health(s, "");
    }
}

void mu_agent_check_stop(struct mu_agent_service *s)
{
    s->check.over = true;
    mu_agent_health_check_stop(s);
    mu_env_timer_arm(s->env, &s->check.timer, MU_MONO_NEVER);
    if (s->check.spawned) {
        kill_all(s);
    }
}
