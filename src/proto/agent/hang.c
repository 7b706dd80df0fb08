#include "proto/agent/hang.h"

#include <stddef.h>

enum mu_hang_action mu_hang_decide(const struct mu_hang_view *c, const char **ret_why)
{
    *ret_why = NULL;
    if (c->wanted != MU_HANG_EXCLUDE) {
        return c->wanted;
    }
    if (c->missing_count == 0 || c->split) {
        *ret_why = "no node is excluded: nobody can tell which rank is missing";
    } else if (c->missing_nodes != 1) {
        *ret_why = "no node is excluded: the missing ranks are on several nodes";
    } else if (c->nodes <= c->nodes_min) {
        *ret_why = "no node is excluded: too few nodes would be left";
    }
    return *ret_why == NULL ? MU_HANG_EXCLUDE : MU_HANG_RESTART;
}
