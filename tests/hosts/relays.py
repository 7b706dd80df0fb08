#!/usr/bin/python3
"""Relays of `muster run`: five nodes, of which two read the workers' store for two others and carry
what these change. Their connections are reset again and again under load, and they are stopped, and no
worker notices: each of its ADDs counts once, and what it has written it reads.

    relays.py [MUSTER] [--only=TEXT]
"""
import importlib.util
import os
import re
import sys
import time

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, skip, wait_until

MUSTER = muster_path()
PATIENCE = 120
NODES = 5
RELAYS = 2
RESETS = 20
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
            MUSTER, "run", "--nnodes", str(NODES), "--nproc-per-node", "1", "--rdzv-endpoint", "node0:29400",
            "--detect", "30s", "--http", "127.0.0.1:29401", *token, *options,
            os.path.join(HERE, "relays_worker.py"), self.folder,
            env={"PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}) for host in rig.hosts]

    def tell(self, word):
        open(os.path.join(self.folder, word), "w").close()

    def said(self, rank):
        path = os.path.join(self.folder, "said.%d" % rank)
        return open(path).read() if os.path.exists(path) else ""

    def await_all(self, word):
        def lines():
            found = [re.findall("^%s.*$" % word, self.said(rank), re.M) for rank in range(NODES)]
            return all(found) and [line[-1] for line in found]

        return wait_until(lines, "%r of all ranks" % word, PATIENCE, 0.05)

    def adds_of(self, rank):
        return int((re.findall(r"^adds (\d+)$", self.said(rank), re.M) or ["0"])[-1])

    def adds(self):
        return sum(self.adds_of(rank) for rank in range(NODES))

    def children(self, number):
        text = self.hosts[number].must_run(sys.executable, "-c", PAGE, self.key)
        found = re.findall(r"^muster_agent_store_children\{[^}]*\} (\d+)$", text, re.M)
        return int(found[0]) if found else 0

    def relay_ports(self):
        """By host, the port at which its gateway listens for others."""
        ports = {}
        for i, agent in enumerate(self.agents):
            found = re.findall(r"this node is a relay, at \S+:(\d+)", agent.output())
            if found:
                ports[i] = int(found[-1])
        return ports


def end_well(job):
    job.tell("stop")
    lines = job.await_all("sum")
    checks.ok(all(line.startswith("sum True") for line in lines), "every ADD counts once", lines)
    checks.equal([agent.wait(PATIENCE) for agent in job.agents], [0] * NODES, "all end well")
    said = "".join(job.said(rank) for rank in range(NODES))
    checks.ok("stale" not in said and "wrong" not in said, "everybody read what it should", said)
    checks.note("; ".join(lines))


def test_relays_are_lost():
    """Connections of relays are reset under load."""
    with Rig(NODES) as rig:
        job = Job(rig, "--relays", str(RELAYS))
        job.await_all("begun")
        ports = job.relay_ports()
        checks.equal(len(ports), RELAYS, "two nodes are relays")
        wait_until(lambda: sum(job.children(i) for i in range(NODES)) == NODES - 1 - RELAYS,
                   "two children at the relays", PATIENCE)
        checks.equal({i for i in range(NODES) if job.children(i)} - set(ports), set(),
                     "and nobody else has children")
        resets = 0
        for turn in range(RESETS):
            before = job.adds()
            for i, port in ports.items():
                if turn % 2 == i % 2 or turn % 5 == 0:
                    out = job.hosts[i].must_run("ss", "-K", "-tn", "state", "established", "sport", "=",
                                                ":%d" % port)
                    resets += out.count(":%d" % port)
            wait_until(lambda: job.adds() > before, "more work", PATIENCE, 0.05)
            time.sleep(0.1)
        checks.note("%d connections were reset" % resets)
        checks.ok(resets > 0, "connections of relays were reset")
        checks.ok(all(agent.alive() for agent in job.agents), "all agents go on")
        checks.ok(not any("restart" in agent.output() for agent in job.agents), "in the same round")
        end_well(job)


def test_relay_stands_still():
    """A relay that is stopped under load: those behind it go on by another one."""
    with Rig(NODES) as rig:
        job = Job(rig, "--relays", str(RELAYS))
        job.await_all("begun")
        relays = [agent for i, agent in enumerate(job.agents) if i in job.relay_ports()]
        for relay in relays:
            relay.pause()
            before = [job.adds_of(rank) for rank in range(NODES)]
            wait_until(lambda: sum(job.adds_of(rank) >= before[rank] + 40 for rank in range(NODES)) >= NODES - 1,
                       "work of all but the one whose gateway stands still", 25, 0.05)
            relay.resume()
        checks.ok(all(agent.alive() for agent in job.agents), "all agents go on")
        end_well(job)


def test_off():
    """--relays off, and fewer nodes than auto asks for: there are none."""
    with Rig(NODES) as rig:
        job = Job(rig)
        job.await_all("begun")
        checks.equal(job.relay_ports(), {}, "five nodes have no relays of their own accord")
        end_well(job)


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        skip("this Python has no PyTorch")
    checks.run_tests(globals())
    checks.done()
