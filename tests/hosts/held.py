#!/usr/bin/python3
"""Gateways of `muster run` that answer for keys: PyTorch's own workers on two hosts, each node's
behind the gateway of its agent. A key crosses to a node once, however often its workers read it;
nobody reads an old value; and a gateway that is stopped delays a change by no more than its lease.
Beside it the same with --store-hold off.

    held.py [MUSTER] [--only=TEXT]
"""
import importlib.util
import os
import re
import sys

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, skip, wait_until

MUSTER = muster_path()
PATIENCE = 90
LOCAL = 4
NODES = 2
KEYS, READS, TURNS = 16, 5, 24  # as in held_worker.py
LEASE_S = 2.25  # as the server counts it
checks = Checks()

PAGE = """
import sys
import urllib.request
request = urllib.request.Request("http://127.0.0.1:29401/metrics")
request.add_header("Authorization", "Bearer " + sys.argv[1])
print(urllib.request.urlopen(request).read().decode())
"""


class Job:
    def __init__(self, rig, *options):
        self.folder = os.path.join(rig.path, "words")
        os.makedirs(self.folder)
        self.hosts = rig.hosts
        token = make_token(rig)["node0"]
        self.key = self.hosts[0].must_run(MUSTER, "keygen", "page", token[1]).strip()
        self.agents = [host.start(
            MUSTER, "run", "--nnodes", str(NODES), "--nproc-per-node", str(LOCAL),
            "--rdzv-endpoint", "node0:29400", "--detect", "30s", "--http", "127.0.0.1:29401", *token, *options,
            os.path.join(HERE, "held_worker.py"), self.folder,
            env={"PYTHON_EXEC": sys.executable, "GLOO_SOCKET_IFNAME": "eth0",
                 "OMP_NUM_THREADS": "1"}) for host in rig.hosts]

    def tell(self, word):
        open(os.path.join(self.folder, word), "w").close()

    def said(self, rank):
        path = os.path.join(self.folder, "said.%d" % rank)
        return open(path).read() if os.path.exists(path) else ""

    def await_all(self, word):
        """The lines with this word, of all ranks."""
        def lines():
            found = [re.findall("^%s.*$" % word, self.said(rank), re.M)
                     for rank in range(NODES * LOCAL)]
            return all(found) and [line[-1] for line in found]

        return wait_until(lines, "%r of all ranks" % word, PATIENCE, 0.05)

    def figures(self, number):
        """The figures of the workers' store at a node."""
        text = self.hosts[number].must_run(sys.executable, "-c", PAGE, self.key)
        return {name: int(value) for name, value in re.findall(
            r'^muster_agent_store_(\w+)\{[^}]*\} (\d+)$', text, re.M)}


def grown(after, before):
    return {name: after[name] - before[name] for name in after}


def read_all(job):
    """All ranks read all keys; what that cost the server, and how long it took."""
    job.await_all("begun")
    before = job.figures(0)
    job.tell("read")
    rows = [line.split() for line in job.await_all("read")]
    checks.ok(all(row[1] == "True" for row in rows), "all read the values", rows)
    return grown(job.figures(0), before), max(float(row[2]) for row in rows)


def end_well(job):
    job.tell("end")
    checks.equal([agent.wait(PATIENCE) for agent in job.agents], [0] * NODES, "all end well")
    said = "".join(job.said(rank) for rank in range(NODES * LOCAL))
    checks.equal(said.count("last new"), NODES * LOCAL, "and read the last value")
    checks.ok("stale" not in said, "nobody has read an old value", said)


def test_keys_cross_once():
    """The server is asked for a key once by each node."""
    with Rig(NODES) as rig:
        job = Job(rig)
        cost, seconds = read_all(job)
        checks.note("%d reads in %.2f s: %s" % (NODES * LOCAL * KEYS * READS, seconds, cost))
        if seconds < 1:  # well within a lease
            checks.equal(cost["granted_total"], NODES * KEYS, "each key crosses to a node once")
            # PyTorch 1.13 gets a key by a WAIT and a GET.
            checks.ok(cost["messages_in_total"] <= NODES * 2 * KEYS + 8,
                      "and the first WAITs for it share a call", cost)
        for number in range(NODES):
            figures = job.figures(number)
            checks.ok(figures["cache_hits_total"] >= LOCAL * KEYS * (READS - 1),
                      "node %d answers the rest itself" % number, figures)
        job.tell("turns")
        job.await_all("turned")
        checks.ok("stale" not in "".join(job.said(r) for r in range(NODES * LOCAL)),
                  "%d turns: everybody reads the value of the turn" % TURNS)
        checks.ok(job.figures(0)["recalls_total"] > 0, "keys were asked back", job.figures(0))
        job.tell("pause")
        job.await_all("holds")
        job.agents[1].pause()
        job.tell("write")
        line = wait_until(lambda: re.findall(r"^wrote (\w+) ([\d.]+)", job.said(0), re.M),
                          "the change", PATIENCE, 0.05)[0]
        job.agents[1].resume()
        checks.note("a change of a key that a stopped gateway holds took %.2f s" % float(line[1]))
        checks.ok(line[0] == "True" and float(line[1]) < LEASE_S + 1,
                  "a stopped gateway delays a change by its lease at most", line)
        end_well(job)


def test_off():
    """--store-hold off: every read is a call."""
    with Rig(NODES) as rig:
        job = Job(rig, "--store-hold", "off")
        cost, seconds = read_all(job)
        checks.note("%d reads in %.2f s: %s" % (NODES * LOCAL * KEYS * READS, seconds, cost))
        checks.ok(cost["granted_total"] == 0 and
                  cost["messages_in_total"] >= NODES * LOCAL * KEYS * READS,
                  "off: every read reaches the server", cost)
        for word in ("turns", "pause", "write"):
            job.tell(word)
        wait_until(lambda: "wrote" in job.said(0), "the change", PATIENCE, 0.05)
        end_well(job)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        skip("this Python has no PyTorch")
    checks.run_tests(globals())
    checks.done()
