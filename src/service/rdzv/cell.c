#include "service/rdzv/cell.h"

void mu_rdzv_cell_answer(struct mu_rdzv_cell *cell, struct mu_rdzv_event *event)
{
    cell->want = MU_RDZV_CELL_NOTHING;
    event->request = cell->request;
    cell->events.answer(cell->events.context, event);
}

bool mu_rdzv_cell_is_transient(int status)
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

void mu_rdzv_cell_fail(struct mu_rdzv_cell *cell, int status, const char *text, bool transient)
{
    struct mu_rdzv_event event = {
        .type = MU_RDZV_BACKEND_FAILED,
        .status = status,
        .text = text,
        .transient = transient,
    };

    if (cell->want != MU_RDZV_CELL_NOTHING) {
        mu_rdzv_cell_answer(cell, &event);
    }
}
