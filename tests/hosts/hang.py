#!/usr/bin/python3
"""The hang watchdog on three hosts, with a token and with certificates: every agent says once who is
missing, on which host and in which line; not when the clock is moved, and not again after an agent was
stopped for a while; and --hang-action exclude excludes the host of the missing rank.

    hang.py [MUSTER]
"""
import os
import re
import time

from drill import make_certificates, make_token
from rig import Checks, Rig, muster_path, wait_until

MUSTER = muster_path()
PATIENCE = 90
ENDPOINT = "node0:29400"
TOLD = re.compile(r"muster: (no rank has made progress for \d+ s: .*)")
checks = Checks()

# The ranks move, each by itself, until there is the file "hang".
WORKER = """
import os, sys, time

def load_batch():
    time.sleep(1000)

def all_reduce():
    time.sleep(1000)

while not os.path.exists(os.path.join(sys.argv[1], "hang")):
    print("step", flush=True)
    time.sleep(0.2)
if os.environ["WORLD_SIZE"] == "6":
    load_batch() if os.environ["RANK"] == "3" else all_reduce()
"""
LINE = 1 + next(i for i, line in enumerate(WORKER.split("\n")) if "def load_batch" in line) + 1


class Job:
    """Two workers on each of three hosts."""

    def __init__(self, rig, credential, *options):
        self.folder = rig.path
        self.flag = os.path.join(rig.path, "hang")
        path = os.path.join(rig.path, "worker.py")
        with open(path, "w") as file:
            file.write(WORKER)
        if os.path.exists(self.flag):
            os.unlink(self.flag)
        self.agents = [
            host.start(MUSTER, "run", "--nnodes", "2:3", "--nproc-per-node", "2", "--rdzv-endpoint", ENDPOINT,
                       "--rdzv-id", "job", "--hang", "3s", *options, *credential[host.name], path, rig.path,
                       clock=True) for host in rig.hosts]
        wait_until(lambda: all("of 6 are running" in agent.output() for agent in self.agents),
                   "the workers run", PATIENCE, 0.1)

    def hang(self):
        with open(self.flag, "w"):
            pass

    def told(self):
        return [TOLD.findall(agent.output()) for agent in self.agents]

    def stop(self):
        for agent in self.agents:
            agent.stop()


def check_told(job, what):
    wait_until(lambda: all(job.told()), what + ": all agents tell it", PATIENCE, 0.1)
    for told in job.told():
        checks.ok(re.search(r"rank 3 \(node1\) is missing; rank 3 in load_batch at worker.py:%d" % LINE,
                            told[0]), what + ": the rank, its host and its line", told[0])


def test_told(rig, credential, what):
    job = Job(rig, credential)
    for host in rig.hosts:
        host.clock.advance(hours=5)
    time.sleep(5)  # Longer than a hang takes: the run moves, whatever the clock says.
    checks.equal(job.told(), [[], [], []], what + ": a run that moves does not hang when clocks do")
    began = time.monotonic()
    job.hang()
    check_told(job, what)
    checks.note("%s: told by all after %.1f s" % (what, time.monotonic() - began))
    for host in rig.hosts:
        host.clock.advance(hours=-5)
    job.agents[1].pause()
    time.sleep(1.5)
    job.agents[1].resume()
    time.sleep(6)
    checks.equal([len(told) for told in job.told()], [1, 1, 1], what + ": it is told once")
    checks.ok(not any("moves again" in agent.output() for agent in job.agents), what + ": and is not over")
    job.stop()


def test_excluded(rig, credential):
    job = Job(rig, credential, "--hang-action", "exclude")
    job.hang()
    wait_until(lambda: "asks to be excluded: rank 3 was missing in a hang" in job.agents[1].output(),
               "the host of rank 3 asks to be excluded", PATIENCE, 0.1)
    checks.ok(True, "the host of the missing rank is excluded")
    codes = [job.agents[i].wait(PATIENCE) for i in (0, 2)]
    checks.equal(codes, [0, 0], "the others go on without it, and end well")
    job.stop()


if __name__ == "__main__":
    with Rig(3) as rig:
        token = make_token(rig)
        test_told(rig, token, "with a token")
        test_told(rig, make_certificates(rig), "with certificates")
        test_excluded(rig, token)
    checks.done()
