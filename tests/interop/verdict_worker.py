#!/usr/bin/python3
"""A worker of run_verdict.py: four of them make steps in which each needs a word of all the others,
until one of them ends badly, by the seed: who, when and how. The others fail because of it, as
programs do.

usage: verdict_worker.py DIRECTORY SEED [--gloo]
"""
import json
import os
import random
import signal
import socket
import sys
import time

WORLD = 4


class Plan:
    """What happens under a seed."""

    def __init__(self, seed):
        rng = random.Random(seed)
        self.victim = rng.randrange(WORLD)
        self.step = rng.randrange(3, 30)
        self.told = rng.randrange(WORLD)  # so many peers still hear of it in that step
        self.way = rng.choice(["_exit", "exit", "raise", "record", "kill", "segv", "abort"])
        self.code = rng.randrange(2, 120)
        self.paces = [rng.random() * 0.003 for _ in range(WORLD)]
        self.follow = [rng.choice(["raise", "raise", "abort"]) for _ in range(WORLD)]

    def exit_code(self):
        """As an agent sees it."""
        signals = {"kill": signal.SIGKILL, "segv": signal.SIGSEGV, "abort": signal.SIGABRT}
        if self.way in signals:
            return -signals[self.way]
        return 1 if self.way in ("raise", "record") else self.code

    def message(self):
        return "the loss of rank %d is not a number" % self.victim


def record(message):
    """As PyTorch's decorator of that name does."""
    path = os.environ["TORCHELASTIC_ERROR_FILE"]
    extra = {"py_callstack": "Traceback of it", "timestamp": str(int(time.time()))}
    with open(path, "w") as file:
        json.dump({"message": {"message": message, "extraInfo": extra}}, file)


def end_badly(plan):
    print("rank %d is about to end" % plan.victim, flush=True)
    if plan.way == "_exit":
        os._exit(plan.code)
    if plan.way == "exit":
        sys.exit(plan.code)
    for way, number in (("kill", signal.SIGKILL), ("segv", signal.SIGSEGV)):
        if plan.way == way:
            os.kill(os.getpid(), number)
    if plan.way == "abort":
        os.abort()
    if plan.way == "record":
        record("ValueError: " + plan.message())
    raise ValueError(plan.message())


def follow(plan, rank, error):
    """The end of one that has lost a peer: with a word about it."""
    if plan.follow[rank] == "abort":
        sys.stderr.write("terminate called after throwing an instance of 'std::runtime_error'\n"
                         "  what():  Connection closed by peer\n")
        sys.stderr.flush()
        os.abort()
    raise error


# --- steps over plain sockets -------------------------------------------------------------------


def connect(path):
    """To somebody who may not listen yet."""
    while True:
        s = socket.socket(socket.AF_UNIX)
        try:
            s.connect(path)
            return s
        except OSError:
            s.close()
            time.sleep(0.002)


def meet(directory, rank):
    """A connection to each of the others."""
    listener = socket.socket(socket.AF_UNIX)
    path = os.path.join(directory, "rank%d" % rank)
    listener.bind(path + ".part")
    listener.listen(WORLD)
    os.rename(path + ".part", path)
    peers = {other: connect(os.path.join(directory, "rank%d" % other)) for other in range(rank)}
    for other in peers:
        peers[other].send(b"%d" % rank)
    while len(peers) < WORLD - 1:
        peer, _ = listener.accept()
        peers[int(peer.recv(1))] = peer
    return list(peers.values())


def step_over_sockets(plan, rank, step, peers):
    ends = rank == plan.victim and step == plan.step
    for number, peer in enumerate(peers):
        if ends and number == plan.told:
            end_badly(plan)
        peer.send(b"x")
    if ends:
        end_badly(plan)
    for peer in peers:
        if peer.recv(1) != b"x":
            raise ConnectionError("connection closed by peer")
    time.sleep(plan.paces[rank])


def train_over_sockets(directory, plan, rank):
    peers = meet(directory, rank)
    for step in range(1 << 20):
        try:
            step_over_sockets(plan, rank, step, peers)
        except OSError as error:
            follow(plan, rank, error)


# --- steps over gloo ----------------------------------------------------------------------------


def train_over_gloo(plan):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for step in range(1 << 20):
        if rank == plan.victim and step == plan.step:
            end_badly(plan)
        dist.all_reduce(torch.ones(1000))  # whoever is left fails in here, as it may
        time.sleep(plan.paces[rank])


def main():
    plan = Plan(int(sys.argv[2]))
    if "--gloo" in sys.argv:
        train_over_gloo(plan)
    else:
        train_over_sockets(sys.argv[1], plan, int(os.environ["RANK"]))


if __name__ == "__main__":
    main()
