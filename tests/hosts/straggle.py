#!/usr/bin/python3
"""A straggler on one of three hosts, with the job's token and default options but for a shorter span:
every agent names the rank and its host.

    straggle.py [MUSTER]
"""
import os
import re
import sys

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

MUSTER = muster_path()
WORKER = os.path.join(os.path.dirname(HERE), "interop", "straggle_worker.py")
NAMED = re.compile(r"muster: (.* keeps the others waiting: .*)")
PATIENCE = 120
checks = Checks()


def main():
    with Rig(3) as rig:
        credential = make_token(rig)
        agents = [
            host.start(MUSTER, "run", "--nnodes", "3", "--nproc-per-node", "2", "--rdzv-endpoint",
                       "node0:29400", "--rdzv-id", "job", "--stragglers", "2s", *credential[host.name],
                       WORKER, rig.path, "sleep", "3",
                       env={"PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}) for host in rig.hosts]
        try:
            wait_until(lambda: all(NAMED.search(agent.output()) or not agent.alive() for agent in agents),
                       "a straggler", PATIENCE, 0.2)
        except AssertionError:
            pass
        whose = "nobody"
        for agent in agents:
            ranks = re.search(r"ranks (\d+) to (\d+) of 6 are running", agent.output())
            if ranks and int(ranks.group(1)) <= 3 <= int(ranks.group(2)):
                whose = agent.host.name
        for agent in agents:
            said = NAMED.findall(agent.output())
            if not checks.ok(said and said[0].startswith("rank 3 on %s keeps the others waiting" % whose),
                             "%s names rank 3 on %s" % (agent.host.name, whose), said):
                checks.note(agent.output())
        with open(os.path.join(rig.path, "end"), "w"):
            pass
        checks.equal([agent.wait(PATIENCE) for agent in agents], [0, 0, 0], "the job ends well")
    checks.done()


if __name__ == "__main__":
    main()
