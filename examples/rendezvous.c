/*
 * A node of an elastic job: meets the others, works with them until the round is over, and meets
 * them again. Start it twice, on one machine or on two:
 *
 *     rendezvous job7 localhost:29400 2      on the first; whoever can bind the endpoint hosts
 *     rendezvous job7 localhost:29400 2      on the second
 *
 * The work here is to add up ranks in the round's store.
 */
#include <stdio.h>
#include <stdlib.h>

#include <muster/muster.h>

static int give_up(const char *what)
{
    (void)fprintf(stderr, "%s: %s\n", what, muster_errmsg());
    return 1;
}

/* What the nodes of a round do together. */
static int work(const struct muster_rdzv_info *info)
{
    int64_t sum;
    int err =
        muster_store_add(info->store, muster_str("sum"), info->rank, &sum, MUSTER_TIMEOUT_DEFAULT);

    if (err == 0) {
        err = muster_store_barrier(info->store, muster_str("added"), info->world_size, 60000);
    }
    if (err == 0) {
        err = muster_store_add(info->store, muster_str("sum"), 0, &sum, MUSTER_TIMEOUT_DEFAULT);
    }
    if (err == 0) {
        (void)printf("the ranks add up to %lld\n", (long long)sum);
        /* Rank 0 may host the store: it goes when all have read. */
        err = muster_store_barrier(info->store, muster_str("read"), info->world_size, 60000);
    }
    return err;
}

/* Returns when the work is done: 0, or why it never will be. */
static int meet_and_work(muster_rdzv *rdzv)
{
    struct muster_rdzv_info info;
    int err;

    while ((err = muster_rdzv_next(rdzv, &info)) == 0) {
        (void)printf("round %llu: rank %u of %u, workers meet at %s:%u\n",
                     (unsigned long long)info.round, info.rank, info.world_size,
                     info.bootstrap_addr, info.bootstrap_port);
        if (work(&info) == 0) {
            return 0;
        }
        /* A node was lost, most likely. Say so, and try with those that are left. */
        (void)fprintf(stderr, "round %llu failed: %s\n", (unsigned long long)info.round,
                      muster_errmsg());
        if (muster_rdzv_ended(rdzv, 1000) == 0) {
            (void)fprintf(stderr, "it is over: %s\n", muster_errmsg());
        }
    }
    return err;
}

int main(int argc, char **argv)
{
    struct muster_rdzv_params params = muster_rdzv_params_defaults();
    muster_runtime *runtime;
    muster_rdzv *rdzv;
    int status = 0;

    if (argc < 4) {
        (void)fprintf(stderr, "usage: rendezvous RUN_ID HOST:PORT NODES [ADDRESS]\n");
        return 2;
    }
    params.run_id = argv[1];
    params.endpoint = argv[2];
    params.nodes_min = params.nodes_max = (uint32_t)strtoul(argv[3], NULL, 10);
    params.local_addr = argc > 4 ? argv[4] : NULL;
    if (muster_runtime_new(&runtime) != 0) {
        return give_up("muster");
    }
    if (muster_rdzv_open(runtime, &params, &rdzv) != 0) {
        status = give_up("cannot open the rendezvous");
    } else {
        if (meet_and_work(rdzv) != 0) {
            status = give_up("cannot meet the others");
        }
        muster_rdzv_close(rdzv);
    }
    muster_runtime_free(runtime);
    return status;
}
