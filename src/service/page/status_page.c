#include "service/page/status_page.h"

#include "core/alloc.h"

/* How often listeners get a new page: often enough for people, and a page costs some
 * milliseconds. */
#define TELL_NS (250 * MU_NS_PER_MS)
/* Enough for many runs of many members. */
#define PAGE_MAX ((size_t)32 << 20)

struct mu_status_page {
    struct mu_env *env;
    struct mu_status_source source;
    struct mu_status_page_config config;
    struct mu_http_server *http;
    struct mu_timer timer;
};

void mu_status_page_tell(struct mu_status_page *p)
{
    struct mu_buf line;

    mu_buf_init(&line, PAGE_MAX);
    if (p->source.json(p->source.context, &line) == 0) {
        (void)mu_http_server_push(p->http, mu_buf_span(&line));
    }
    mu_buf_fini(&line);
}

/* Rates and silences change all the time, so there is always something new; but nothing is done
 * while nobody listens. */
static void on_timer(struct mu_timer *timer)
{
    struct mu_status_page *p = MU_CONTAINER_OF(timer, struct mu_status_page, timer);

    if (mu_http_server_listeners(p->http) != 0) {
        mu_status_page_tell(p);
        mu_env_timer_arm(p->env, timer, mu_mono_add_ns(mu_env_now(p->env).mono, TELL_NS));
    }
}

static void on_listened(void *context)
{
    struct mu_status_page *p = context;

    mu_env_timer_arm(p->env, &p->timer, mu_env_now(p->env).mono);
}

static bool is(const struct mu_http_head *head, const char *path)
{
    return mu_span_eq(head->path, mu_span_str(path));
}

/* A kubelet or a load balancer asks these, and has no password to send. They tell no more than
 * whether the port answers, which a stranger sees anyway, and a word. */
static bool is_open(const struct mu_http_head *head)
{
    return is(head, "/healthz") || is(head, "/readyz");
}

static void fill(struct mu_status_page *p, const struct mu_http_head *head,
                 struct mu_http_answer *a)
{
    int err = 0;

    a->status = 200;
    if (is(head, "/")) {
        a->type = "text/html; charset=utf-8";
        err = mu_buf_append(a->body, mu_span(mu_status_page_html, mu_status_page_html_len));
    } else if (is(head, "/status.json")) {
        a->type = "application/json";
        err = p->source.json(p->source.context, a->body);
    } else if (is(head, "/events")) {
        a->type = "text/event-stream";
        a->stream = true;
    } else if (is(head, "/metrics")) {
        a->type = "text/plain; version=0.0.4; charset=utf-8";
        err = p->source.metrics(p->source.context, a->body);
    } else if (is(head, "/stacks") && p->source.stacks != NULL) {
        a->type = "text/plain; charset=utf-8";
        err = p->source.stacks(p->source.context, a->body);
    } else if (is(head, "/healthz")) {
        err = mu_buf_append(a->body, MU_SPAN_LIT("ok\n"));
    } else if (is(head, "/readyz")) {
        bool ready = p->source.ready(p->source.context);
        const char *ailment =
            p->source.ailment == NULL ? NULL : p->source.ailment(p->source.context);

        a->status = ready ? 200 : 503;
        err = mu_buf_append(a->body, ready ? MU_SPAN_LIT("ready\n") : MU_SPAN_LIT("not ready\n"));
        if (ready && ailment != NULL && !a->stranger && err == 0) {
            err = mu_buf_append(a->body, mu_span_str(ailment));
        }
    } else {
        a->status = 0;
    }
    if (err != 0) {
        mu_buf_reset(a->body);
        a->status = 503;
    }
}

static void on_answer(void *context, const struct mu_http_head *head, struct mu_http_answer *ret)
{
    fill(context, head, ret);
}

static void on_stopped(void *context)
{
    struct mu_status_page *p = context;

    mu_env_timer_arm(p->env, &p->timer, MU_MONO_NEVER);
    p->config.stopped(p->config.context);
}

int mu_status_page_start(struct mu_env *env, const struct mu_status_source *source,
                         const struct mu_status_page_config *config,
                         struct mu_status_page **ret_page, struct mu_errmsg *reterr_msg)
{
    struct mu_http_server_config http = mu_http_server_config_defaults();
    struct mu_status_page *p = mu_calloc(1, sizeof(*p));
    int err;

    if (p == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for a status page");
    }
    p->env = env;
    p->source = *source;
    p->config = *config;
    mu_timer_init(&p->timer, on_timer);
    http.listen = config->listen;
    http.token = config->token;
    http.open = is_open;
    http.answer = on_answer;
    http.listened = on_listened;
    http.stopped = on_stopped;
    http.context = p;
    err = mu_http_server_start(env, &http, &p->http, reterr_msg);
    if (err != 0) {
        mu_free(p);
        return err;
    }
    *ret_page = p;
    return 0;
}

const struct mu_addr *mu_status_page_addr(const struct mu_status_page *p)
{
    return mu_http_server_addr(p->http);
}

void mu_status_page_stop(struct mu_status_page *p)
{
    mu_http_server_stop(p->http);
}

void mu_status_page_free(struct mu_status_page *p)
{
    if (p != NULL) {
        mu_http_server_free(p->http);
        mu_free(p);
    }
}
