#!/usr/bin/python3
"""`muster stacks` of a run on three hosts, asked from a fourth that is not in it: every rank with its
line, the odd one first; an agent that is stopped is named; after the loss of the host, the others are
asked where the run has gone to.

    stacks.py [MUSTER]
"""
import json
import os
import re
import time

from drill import make_token
from rig import Checks, Rig, muster_path, wait_until

MUSTER = muster_path()
PATIENCE = 90
checks = Checks()

ENDPOINTS = "node0:29400,node1:29400,node2:29400"
HOSTS = re.compile(r"muster: (\S+) (?:is back, and )?hosts the rendezvous|muster: (hosting) at ")

WORKER = """
import os, sys, time

def load_batch():
    time.sleep(1000)

def all_reduce():
    time.sleep(1000)

def train():
    load_batch() if os.environ["RANK"] == "3" else all_reduce()

train()
"""
LINES = {name: 1 + next(i for i, line in enumerate(WORKER.split("\n")) if "def " + name in line) + 1
         for name in ("load_batch", "all_reduce")}


class Job:
    """Two workers on each of node0 to node2; node3 asks."""

    def __init__(self, rig):
        self.credential = make_token(rig)
        self.path = os.path.join(rig.path, "worker.py")
        with open(self.path, "w") as file:
            file.write(WORKER)
        self.outside = rig.hosts[3]
        self.agents = [
            host.start(MUSTER, "run", "--nnodes", "2:3", "--nproc-per-node", "2", "--rdzv-endpoint", ENDPOINTS,
                       "--rdzv-id", "job", *self.credential[host.name], self.path) for host in rig.hosts[:3]]

    def host(self):
        """The agent that hosts the rendezvous, by what the agents said last."""
        said = [(line[:23], found.group(1) or agent.host.name) for agent in self.agents
                for line in agent.output().split("\n") for found in [HOSTS.search(line)] if found]
        return next(agent for agent in self.agents if agent.host.name == max(said)[1])

    def ask(self, endpoint, *options, credential=True):
        """(exit code, the object or the text, what it says on standard error, seconds)"""
        began = time.monotonic()
        code, out, err = self.outside.run(
            MUSTER, "stacks", "--rdzv-endpoint", endpoint, *options,
            *(self.credential["node3"] if credential else []))
        return code, json.loads(out) if "--json" in options and out else out, err, time.monotonic() - began

    def await_stacks(self, endpoint, nodes, why):
        """Asks until all of so many nodes have answered and every worker stands where it belongs."""
        got = []

        def come():
            got[:] = self.ask(endpoint, "--json")
            return got[0] == 0 and got[1]["nodes"] == nodes and places(got[1]) == expected(2 * nodes)

        try:
            wait_until(come, why, PATIENCE, 0.5)
        except AssertionError:
            pass
        checks.equal(places(got[1]) if got[1] else got[2], expected(2 * nodes), why)
        return got


def places(page):
    return [(group["ranks"], group.get("function"), group.get("line")) for group in page["groups"]]


def expected(world):
    odd = [("3", "load_batch", LINES["load_batch"])] if world > 3 else []
    rest = "0-2,4,5" if world == 6 else "0-2"
    return odd + [(rest, "all_reduce", LINES["all_reduce"])]


def test_all(job):
    _, page, _, seconds = job.await_stacks(ENDPOINTS, 3, "every rank, and the odd one first")
    checks.equal(page["late"], [], "all nodes have answered")
    checks.equal(page["missing"]["count"], 0, "all ranks are there")
    checks.equal((page["run_id"], page["world"]), ("job", 6), "the run was found without its id")
    checks.note("six workers on three hosts: %.3f s" % seconds)
    other = next(agent.host.name for agent in job.agents if agent is not job.host())
    code, text, err, _ = job.ask(other, "--rdzv-id", "job", "--all-threads")
    checks.ok(code == 0, "a node that does not host the run knows who does", err)
    checks.ok("\nrank 3 in load_batch at worker.py:%d\n" % LINES["load_batch"] in text, "what people read", text)
    checks.ok("\n5 ranks (0-2,4,5) in all_reduce at worker.py:%d\n" % LINES["all_reduce"] in text,
              "the others are one group", text)
    checks.equal(text.count("\nprocess "), 6, "all threads of all workers follow")


def test_refused(job):
    code, _, err, _ = job.ask(ENDPOINTS, credential=False)
    checks.ok(code == 4, "who has no credential is refused", (code, err))


def test_unknown(job):
    code, _, err, _ = job.ask(ENDPOINTS, "--rdzv-id", "other", "--timeout", "1s")
    checks.ok(code == 7, "there is no such run", (code, err))


def test_stopped(job):
    """Asked at once: an agent that is stopped for long is given up by the others."""
    agent = next(agent for agent in job.agents if agent is not job.host())
    agent.pause()
    code, page, err, seconds = job.ask(job.host().host.name, "--json", "--timeout", "1s")
    agent.resume()
    checks.ok(code == 1, "a node that does not answer is an error", (code, err))
    checks.equal([late["addr"] for late in page["late"]], [agent.host.name], "it is named")
    checks.equal(page["reports"], 4, "the others are shown")
    checks.equal(page["missing"]["count"], 2, "two ranks are missing")
    checks.note("with one agent stopped and --timeout 1s: %.3f s" % seconds)


def test_lost(job):
    """The host of the rendezvous is lost, and with it the store of the round."""
    job.host().kill()
    job.await_stacks(ENDPOINTS, 2, "the run is found where it has gone to")


if __name__ == "__main__":
    with Rig(4) as rig:
        job = Job(rig)
        for test in (test_all, test_refused, test_unknown, test_stopped, test_lost):
            test(job)
        for agent in job.agents:
            agent.stop()
    checks.done()
