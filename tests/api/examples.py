#!/usr/bin/python3
"""Runs the examples as their first lines say.

usage: examples.py PROGRAM_OF_THE_RENDEZVOUS PROGRAM_OF_THE_REFERENCES
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "interop"))
from lib import free_port

NODES, TIMES = 3, 8


def meet():
    """One of the nodes hosts, and must not be gone before the others have their last answers."""
    endpoint = "127.0.0.1:%d" % free_port()

    command = [sys.argv[1], "example", endpoint, str(NODES), "127.0.0.1"]
    nodes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for _ in range(NODES)]
    told = [node.communicate(timeout=60) for node in nodes]
    for node, (out, err) in zip(nodes, told):
        print(out + err, end="")
    assert all(node.returncode == 0 for node in nodes), [node.returncode for node in nodes]

    first = sorted(out.splitlines()[0] for out, _ in told)
    for rank, line in enumerate(first):
        assert line.startswith(f"round 0: rank {rank} of {NODES}, workers meet at 127.0.0.1:"), line
    assert len({line.split(", ")[1] for line in first}) == 1, first
    assert all("the ranks add up to 3" in out for out, _ in told), told


for _ in range(TIMES):
    meet()
usage = subprocess.run([sys.argv[1]], stderr=subprocess.PIPE, text=True)
assert usage.returncode == 2 and "usage:" in usage.stderr

dish = subprocess.run([sys.argv[2]], stdout=subprocess.PIPE, text=True, timeout=60)
assert dish.returncode == 0 and "it is potatoes, well done" in dish.stdout, dish
