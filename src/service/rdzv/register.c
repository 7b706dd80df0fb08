#include "service/rdzv/register.h"

void mu_rdzv_register_answer(struct mu_rdzv_register *reg, struct mu_rdzv_event *event)
{
    reg->want = MU_RDZV_REGISTER_NOTHING;
    event->request = reg->request;
    reg->events.answer(reg->events.context, event);
}

bool mu_rdzv_register_is_transient(int status)
{
    switch (status) {
    case MUSTER_EINVAL:
    case MUSTER_ENOTSTORE:
    case MUSTER_EREFUSED:
    case MUSTER_EVERSION:
    case MUSTER_ENOMETHOD:
    case MUSTER_ENOTSUP:
    case MUSTER_ECORRUPT:
    case MUSTER_ETLS:
        return false;
    }
    return true;
}

void mu_rdzv_register_fail(struct mu_rdzv_register *reg, int status, const char *text,
                           bool transient)
{
    struct mu_rdzv_event event = {
        .type = MU_RDZV_BACKEND_FAILED,
        .status = status,
        .text = text,
        .transient = transient,
    };

    if (reg->want != MU_RDZV_REGISTER_NOTHING) {
        mu_rdzv_register_answer(reg, &event);
    }
}
