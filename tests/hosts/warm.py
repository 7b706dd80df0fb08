#!/usr/bin/python3
"""Warm workers between hosts: three of them, a token, two places and a spare. The spare takes the
place of a host that is lost, with workers that were standbys; the other host's workers, too. Then an
agent that is the first process of a container, where orphans of others come to it as well.

    warm.py [MUSTER]
"""
import os
import re
import textwrap

from drill import make_token
from rig import Checks, Rig, muster_path, wait_until

checks = Checks()
MUSTER = muster_path()
WORKER = """
    import os, sys, time
    print("start: rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"],
          "warm" if "json" in sys.modules else "plain", flush=True)
    while not os.path.exists(sys.argv[1]): time.sleep(0.02)
    sys.exit(int(sys.argv[2]) if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" else 0)
    """


def write_worker(rig):
    path = os.path.join(rig.hosts[0].path, "worker.py")
    with open(path, "w") as file:
        file.write(textwrap.dedent(WORKER))
    return path


def starts(agent):
    return re.findall(r"start: rank \d of (\d) (\w+)", agent.output())


def spare():
    with Rig(3) as rig:
        worker, token = write_worker(rig), make_token(rig)
        stop = os.path.join(rig.hosts[0].path, "stop")
        server = rig.hosts[0].start(MUSTER, "serve", "--listen", "0.0.0.0:29400",
                                    *token[rig.hosts[0].name])
        agents = []
        for host in rig.hosts:
            agents.append(host.start(
                MUSTER, "run", "--nnodes=2", "--nproc-per-node=2", "--max-restarts=0", "--warm=json",
                "--rdzv-endpoint=%s:29400" % rig.hosts[0].address, "--rdzv-conf=is_host=false",
                *token[host.name], "--local-addr", host.address, worker, stop, "0",
                env={"PYTHON_EXEC": "/usr/bin/python3"}))
            # The first two make the round before the third comes, so that it is the spare.
            agents[-1].says("nodes meet" if host is rig.hosts[0] else
                            "round 0: node" if host is rig.hosts[1] else "standbys wait")
        for agent in agents:
            agent.says("standbys wait")
        checks.equal(starts(agents[2]), [], "the third host is a spare")
        agents[1].kill()
        agents[2].says("start: rank")
        agents[0].says("round 1: ranks")
        agents[2].says("round 1: ranks")
        with open(stop, "w"):
            pass
        checks.equal([agents[0].wait(), agents[2].wait()], [0, 0], "the job ends well without the lost host")
        checks.equal(starts(agents[2]), [("4", "warm")] * 2, "the spare's first workers were standbys")
        checks.equal(starts(agents[0])[-2:], [("4", "warm")] * 2, "and so were the other host's next ones")
        server.stop()
        checks.equal(rig.processes(), [], "nothing is left on any host")


def first_process():
    with Rig(1) as rig:
        worker = write_worker(rig)
        stop = os.path.join(rig.hosts[0].path, "stop")
        agent = rig.hosts[0].start(MUSTER, "run", "--standalone", "--nproc-per-node=2", "--warm=json",
                                   "--max-restarts=1", worker, stop, "3", pid1=True,
                                   env={"PYTHON_EXEC": "/usr/bin/python3"})
        agent.says("standbys wait")
        wait_until(lambda: len(starts(agent)) == 2, "both workers")
        with open(stop, "w"):
            pass
        checks.equal(agent.wait(), 0, "as the first process: the job ends well")
        checks.equal(starts(agent), [("2", "plain")] * 2 + [("2", "warm")] * 2,
                     "as the first process: standbys became workers")
        checks.equal(rig.processes(), [], "as the first process: nothing is left")


spare()
first_process()
checks.done()
