/*
 * A value that stays where it was made.
 *
 *     ./rref
 *
 * Two workers, here in one process: "chef" has a pantry, "guest" has a reference to a dish that the
 * chef has made, asks what it is, and lets go of it, whereupon the chef throws it away.
 */
#include <stdio.h>
#include <stdlib.h>

#include <muster/muster.h>

static void must(int err)
{
    if (err != 0) {
        fprintf(stderr, "rref: %s\n", muster_errmsg());
        exit(1);
    }
}

/* What the chef is asked to make. It runs on the chef, and its answer stays there. */
static void cook(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part what = muster_rpc_in_part(call, 0);
    char dish[64];
    int len = snprintf(dish, sizeof(dish), "%.*s, well done", (int)what.data.len,
                       (const char *)what.data.data);
    struct muster_rpc_part answer = {{dish, (size_t)len}, MUSTER_RPC_CPU};

    (void)context;
    muster_rpc_reply(call, &answer, 1);
}

static muster_rpc_agent *start(muster_runtime *rt, const char *name, int id)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    muster_rpc_agent *agent;

    config.name = name;
    config.id = id;
    config.listen = "127.0.0.1:0";
    must(muster_rpc_start(rt, &config, &agent));
    return agent;
}

int main(void)
{
    struct muster_rpc_part order = {muster_str("potatoes"), MUSTER_RPC_CPU};
    struct muster_rpc_request request = muster_rpc_request_defaults();
    muster_rpc_agent *chef;
    muster_rpc_agent *guest;
    muster_rpc_future *future;
    muster_runtime *rt;
    muster_rref *dish;

    must(muster_runtime_new(&rt));
    chef = start(rt, "chef", 0);
    guest = start(rt, "guest", 1);
    must(muster_rpc_register(chef, "kitchen::Chef.cook", cook, NULL, 0));
    /* Workers of a job learn of each other with muster_rpc_join_group() or muster_rpc_follow(). */
    must(muster_rpc_add_worker(guest, "chef", 0, muster_rpc_address(chef)));
    must(muster_rpc_add_worker(chef, "guest", 1, muster_rpc_address(guest)));

    request.to = "chef";
    request.method = "kitchen::Chef.cook";
    request.parts = &order;
    request.part_count = 1;
    must(muster_rref_remote(guest, &request, &dish));
    printf("a dish is at the %s's\n", muster_rref_owner(dish));
    must(muster_rref_to_here(dish, 10000, &future));
    printf("it is %.*s\n", (int)muster_rpc_future_part(future, 0).data.len,
           (const char *)muster_rpc_future_part(future, 0).data.data);
    muster_rpc_future_free(future);
    muster_rref_free(dish);

    muster_rpc_shutdown(guest);
    muster_rpc_shutdown(chef);
    muster_runtime_free(rt);
    return 0;
}
