"""A worker of relays.py: counts in the store of PyTorch, and reads what others have written, until it
is told to stop. Its words are in said.RANK of the folder that it is given."""
import datetime
import os
import sys
import time

import torch.distributed as dist

FOLDER = sys.argv[1]
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def say(*words):
    with open(os.path.join(FOLDER, "said.%d" % RANK), "a") as file:
        print(*words, file=file, flush=True)


def is_told(name):
    return os.path.exists(os.path.join(FOLDER, name))


def main():
    store, _, _ = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=120)))
    if RANK == 0:
        store.set("fixed", "x" * 100)
    store.wait(["fixed"])
    say("begun")
    adds, slowest = 0, 0.0
    while not is_told("stop"):
        began = time.monotonic()
        store.add("count", 1)
        adds += 1
        store.set("mine/%d" % RANK, str(adds))
        if store.get("mine/%d" % RANK) != str(adds).encode():
            say("stale")
        if store.get("fixed") != b"x" * 100:
            say("wrong")
        slowest = max(slowest, time.monotonic() - began)
        if adds % 20 == 0:
            say("adds", adds)
        time.sleep(0.01)
    store.add("adds", adds)
    if store.add("ended", 1) == WORLD:
        store.set("all ended", "1")
    store.wait(["all ended"])
    say("sum", store.add("count", 0) == store.add("adds", 0), "slowest %.2f" % slowest, "adds", adds)
    if store.add("left", 1) == WORLD:
        store.set("all left", "1")
    store.wait(["all left"])


if __name__ == "__main__":
    main()
