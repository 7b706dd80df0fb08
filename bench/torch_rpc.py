#!/usr/bin/python3
"""PyTorch's torch.distributed.rpc between two processes, as a peer of bench_rpc.

Started without arguments it is the caller, and starts the callee itself. It then reads orders from
standard input, one a line, and answers each with one line of figures:

    sync SECONDS SIZE           calls one after the other: rate, p50 and p99 in microseconds
    async SECONDS SIZE FLIGHT   so many at a time
    push SECONDS SIZE FLIGHT    a tensor of that size to a function that answers with a number:
                                bytes a second
"""
import collections
import os
import socket
import subprocess
import sys
import time

import torch
import torch.distributed.rpc as rpc

import peers


def echo(data):
    return data


def count(tensor):
    return tensor.numel()


def init(rank):
    rpc.init_rpc("worker%d" % rank, rank=rank, world_size=2)


def figures(begun, ended, samples):
    samples.sort()
    at = lambda part: samples[min(len(samples) - 1, int(len(samples) * part))] * 1e6
    return "%.1f %.1f %.1f" % (len(samples) / (ended - begun), at(0.5), at(0.99))


def calls_in_turn(seconds, data):
    samples = []
    begun = last = time.perf_counter()
    while last - begun < seconds:
        rpc.rpc_sync("worker1", echo, args=(data,))
        now = time.perf_counter()
        samples.append(now - last)
        last = now
    return figures(begun, last, samples)


def calls_at_once(seconds, function, data, flight):
    """A new one for each that has ended, in order."""
    samples = []
    waiting = collections.deque()
    begun = now = time.perf_counter()
    while waiting or now - begun < seconds:
        while len(waiting) < flight and now - begun < seconds:
            waiting.append((time.perf_counter(),
                            rpc.rpc_async("worker1", function, args=(data,))))
            now = time.perf_counter()
        since, future = waiting.popleft()
        future.wait()
        now = time.perf_counter()
        samples.append(now - since)
    return figures(begun, now, samples)


def obey(order):
    what, seconds, size = order[0], float(order[1]), int(order[2])
    if what == "sync":
        return calls_in_turn(seconds, bytes(size))
    if what == "async":
        return calls_at_once(seconds, echo, bytes(size), int(order[3]))
    tensor = torch.ones(size, dtype=torch.uint8)
    done = calls_at_once(seconds, count, tensor, int(order[3])).split()
    return "%.1f %s %s" % (float(done[0]) * size, done[1], done[2])


def main():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                      TP_SOCKET_IFNAME=os.environ.get("TP_SOCKET_IFNAME", "lo"))
    # So that the callee can name the functions of this file.
    here = os.path.dirname(os.path.abspath(__file__))
    child = subprocess.Popen([sys.executable, "-c",
                              "import sys; sys.path.insert(0, %r); import torch_rpc as t; "
                              "t.init(1); t.rpc.shutdown()" % here],
                             preexec_fn=peers.die_with_parent)  # it would wait for us for ever
    init(0)
    print("ready", flush=True)
    for line in sys.stdin:
        print(obey(line.split()), flush=True)
    rpc.shutdown()
    child.wait()


if __name__ == "__main__":
    # Pickled by name: the functions must be those of a module that both know.
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import torch_rpc

    torch_rpc.main()
