/* What a join waits for, with the backends c10d, etcd-v2 and etcd-v3. */
#include "service/rdzv/c10d.h"

#include <stdio.h>

#include "core/addr.h"

/* Writes where the register is, and what `muster doctor` has to be asked about it. */
static void put_place(const struct mu_rdzv_c10d *n, char *where, char *doctor, size_t cap)
{
    if (n->config.place != MU_RDZV_C10D_STORE) {
        (void)snprintf(where, cap, "etcd at %.200s", n->config.etcd.authority);
        (void)snprintf(doctor, cap, "etcd etcd://%.200s", n->config.etcd.authority);
    } else if (n->config.file) {
        (void)snprintf(where, cap, "the file %.200s", n->config.path);
        doctor[0] = '\0';
    } else {
        (void)mu_addr_format(&n->config.endpoint, where, cap);
        (void)mu_addr_format(&n->config.endpoint, doctor, cap);
    }
}

/* An agent of PyTorch 1.13 ends when it finds the newer dialect, and is missed from then on. Only a
 * store at an endpoint shows which agents come, so elsewhere the user has to say it. */
static const char *say_dialect(const struct mu_rdzv_c10d *n)
{
    bool shows = n->config.place == MU_RDZV_C10D_ETCD_V3 ||
                 (n->config.place == MU_RDZV_C10D_STORE && !n->config.file);

    return shows || n->config.dialect_given || n->machine.v.dialect == MU_RDZV_DIALECT_1_13
               ? ""
               : "; if a missing node has PyTorch 1.13's agent, give --rdzv-conf dialect=1.13 here";
}

void mu_rdzv_c10d_explain(struct mu_rdzv_c10d *n)
{
    char where[MU_ADDR_HOST_MAX + 32];
    char doctor[sizeof(where)];
    char text[MU_ERRMSG_CAP + sizeof(doctor) + 160];
    struct mu_errmsg words = {{0}};

    if (n->state != MU_RDZV_C10D_JOINING || n->freeing) {
        return;
    }
    put_place(n, where, doctor, sizeof(where));
    if (!n->found || n->base.trouble_count != 0) {
        mu_rdzv_handler_unreached(&n->base, where, doctor, &words);
        (void)snprintf(text, sizeof(text), "%s", words.text);
    } else if (mu_rdzv_say_join(&n->machine, &words)) {
        (void)snprintf(text, sizeof(text), "%s%s%s%s%s", words.text,
                       doctor[0] == '\0' ? "" : "; on a missing node, try `muster doctor ", doctor,
                       doctor[0] == '\0' ? "" : "`", say_dialect(n));
    } else {
        (void)snprintf(text, sizeof(text), "%s", words.text);
    }
    mu_rdzv_handler_explained(&n->base, n->machine.v.op_deadline, text);
}

void mu_rdzv_c10d_trouble(void *context, int status)
{
    struct mu_rdzv_c10d *n = context;
    char where[MU_ADDR_HOST_MAX + 16];

    if (n->state == MU_RDZV_C10D_JOINING && !n->freeing) {
        mu_rdzv_handler_trouble(&n->base, status,
                                mu_addr_format(&n->config.endpoint, where, sizeof(where)), NULL);
    }
}

void mu_rdzv_c10d_etcd_trouble(void *context, int status, const char *where, const char *why)
{
    struct mu_rdzv_c10d *n = context;

    if (n->state == MU_RDZV_C10D_JOINING && !n->freeing) {
        mu_rdzv_handler_trouble(&n->base, status, where, why);
        if (mu_rdzv_handler_gives_up(&n->base, status)) {
            n->soon |= MU_RDZV_C10D_GIVE_UP;
            mu_env_timer_arm(n->base.env, &n->timer, mu_env_now(n->base.env).mono);
        }
    }
}
