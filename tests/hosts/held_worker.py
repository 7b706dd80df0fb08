"""A worker of held.py: reads the same keys again and again, takes turns at changing one, and does
what it is told by files in the folder that it is given. Its words are in said.RANK there."""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist

FOLDER = sys.argv[1]
KEYS = 16
READS = 5
TURNS = 24
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def say(*words):
    with open(os.path.join(FOLDER, "said.%d" % RANK), "a") as file:
        print(*words, file=file, flush=True)


def await_word(name):
    while not os.path.exists(os.path.join(FOLDER, name)):
        time.sleep(0.02)


def meet(store, name):
    """As PyTorch's own store based barrier."""
    if store.add(name, 1) == WORLD:
        store.set(name + "/all", "1")
    store.wait([name + "/all"])


def take_turns(store):
    """Whoever has read the word of the turn must read its value, never an older one."""
    for turn in range(TURNS):
        if RANK == turn % WORLD:
            store.set("value", str(turn))
            store.set("turn/%d" % turn, "1")
        store.wait(["turn/%d" % turn])
        for _ in range(2):
            seen = store.get("value").decode()
            if seen != str(turn):
                say("stale: turn %d, value %s" % (turn, seen))
        meet(store, "turn/%d/over" % turn)


def main():
    store, _, _ = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=120)))
    dist.init_process_group("gloo", store=dist.PrefixStore("group", store), rank=RANK,
                            world_size=WORLD)
    total = torch.ones(1)
    dist.all_reduce(total)
    say("world", int(total.item()))
    if RANK == 0:
        for i in range(KEYS):
            store.set("id/%d" % i, "x" * 128)
        store.add("flush", 1)  # a SET has no answer; what follows it does
    say("begun")
    await_word("read")
    began = time.monotonic()
    right = all(store.get("id/%d" % i) == b"x" * 128 for _ in range(READS) for i in range(KEYS))
    say("read", right, time.monotonic() - began)
    await_word("turns")
    take_turns(store)
    say("turned")
    await_word("pause")
    if RANK == WORLD - 1:
        store.get("id/0")  # its gateway holds this, and is about to be stopped
    say("holds")
    await_word("write")
    if RANK == 0:
        began = time.monotonic()
        store.set("id/0", "new")
        new = store.get("id/0") == b"new"
        say("wrote", new, time.monotonic() - began)
    await_word("end")
    say("last", store.get("id/0").decode())
    dist.barrier()


main()
