#include "proto/agent/agent.h"

const char *mu_agent_state_name(enum mu_agent_state state)
{
    switch (state) {
    case MU_AGENT_IS_IDLE:
        return "IDLE";
    case MU_AGENT_IS_JOINING:
        return "JOINING";
    case MU_AGENT_IS_EXCHANGING:
        return "EXCHANGING";
    case MU_AGENT_IS_STARTING:
        return "STARTING";
    case MU_AGENT_IS_RUNNING:
        return "RUNNING";
    case MU_AGENT_IS_SAVING:
        return "SAVING";
    case MU_AGENT_IS_STOPPING:
        return "STOPPING";
    case MU_AGENT_IS_DOUBTING:
        return "DOUBTING";
    case MU_AGENT_IS_BARRIER:
        return "BARRIER";
    case MU_AGENT_IS_CHECKING:
        return "CHECKING";
    case MU_AGENT_IS_KEPT_OUT:
        return "KEPT_OUT";
    case MU_AGENT_IS_ENDED:
        return "ENDED";
    }
    return "unknown";
}

const char *mu_agent_outcome_name(enum mu_agent_outcome outcome)
{
    switch (outcome) {
    case MU_AGENT_SUCCEEDED:
        return "SUCCEEDED";
    case MU_AGENT_FAILED:
        return "FAILED";
    case MU_AGENT_STOPPED:
        return "STOPPED";
    case MU_AGENT_GRACEFUL:
        return "GRACEFUL";
    case MU_AGENT_ERROR:
        return "ERROR";
    }
    return "unknown";
}

const char *mu_agent_event_name(enum mu_agent_event_type type)
{
    switch (type) {
    case MU_AGENT_START:
        return "START";
    case MU_AGENT_ASSIGNED:
        return "ASSIGNED";
    case MU_AGENT_READY:
        return "READY";
    case MU_AGENT_NOT_READY:
        return "NOT_READY";
    case MU_AGENT_SPAWNED:
        return "SPAWNED";
    case MU_AGENT_SPAWN_FAILED:
        return "SPAWN_FAILED";
    case MU_AGENT_EXITED:
        return "EXITED";
    case MU_AGENT_GROUP_GONE:
        return "GROUP_GONE";
    case MU_AGENT_CUT_OFF:
        return "CUT_OFF";
    case MU_AGENT_ROUND_ENDED:
        return "ROUND_ENDED";
    case MU_AGENT_SURE:
        return "SURE";
    case MU_AGENT_SAVED:
        return "SAVED";
    case MU_AGENT_RDZV_FAILED:
        return "RDZV_FAILED";
    case MU_AGENT_RDZV_CLOSED:
        return "RDZV_CLOSED";
    case MU_AGENT_ALONE:
        return "ALONE";
    case MU_AGENT_BARRIER_DONE:
        return "BARRIER_DONE";
    case MU_AGENT_CHECKED:
        return "CHECKED";
    case MU_AGENT_SIGNAL:
        return "SIGNAL";
    case MU_AGENT_TIMEOUT:
        return "TIMEOUT";
    }
    return "unknown";
}
