#!/usr/bin/python3
"""Ranks that stay: a job of six with two standing by, on eight hosts, with a token and default
options. One node after the other is killed: a spare takes exactly the place that was lost, and no
other rank changes.

    ranks.py [MUSTER]
"""
import glob
import os
import re
import sys
import time

from drill import make_token
from rig import Checks, Rig, muster_path, wait_until

checks = Checks()
MUSTER = muster_path()
# Each worker writes down who it is as soon as it runs, and then does nothing.
WORKER = ('echo "$RANK $GROUP_RANK $WORLD_SIZE $HOSTNAME" '
          '>"$0/.$RANK" && mv "$0/.$RANK" "$0/$MUSTER_ROUND.$RANK" && exec sleep 600')


class Six:
    """The job; node0 hosts the rendezvous."""

    def __init__(self, rig, nproc=1):
        self.folder = os.path.join(rig.path, "ranks")
        os.makedirs(self.folder)
        self.token = make_token(rig)
        self.nproc = nproc
        self.agents = {}
        for host in rig.hosts:
            self.start(host)

    def start(self, host):
        self.agents[host.name] = host.start(
            MUSTER, "run", "--nnodes", "6:6", "--spares", "2", "--nproc-per-node", str(self.nproc),
            "--rdzv-endpoint", "node0:29400", "--rdzv-id", "six", "--no-python",
            *self.token[host.name], "sh", "-c", WORKER, self.folder,
            env={"HOSTNAME": host.name})

    def ranks(self, number):
        """Who has which rank in that round: {rank: host}."""
        found = {}
        for path in glob.glob(os.path.join(self.folder, "%d.*" % number)):
            with open(path) as file:
                rank, group, size, host = file.read().split()
            checks.equal(int(size), 6 * self.nproc, "the size of the world")
            checks.equal(int(group), int(rank) // self.nproc, "the rank of the node")
            found[int(rank)] = host
        return found

    def rounds(self):
        return sorted({int(name.split(".")[0]) for name in os.listdir(self.folder)
                       if not name.startswith(".")})

    def await_round(self, after):
        """The next round in which all workers run: its number, and who has which rank."""
        def come():
            for number in self.rounds():
                names = glob.glob(os.path.join(self.folder, "%d.*" % number))
                if number > after and len(names) == 6 * self.nproc:
                    return number + 1
            return False

        try:
            number = wait_until(come, "a round after %d" % after, 60, 0.005) - 1
        except AssertionError as error:
            raise AssertionError("%s: %s: %s" % (error, os.listdir(self.folder), self.words()))
        return number, self.ranks(number)

    def words(self):
        return " | ".join("%s: %s" % (name, agent.output().strip()[-300:])
                          for name, agent in self.agents.items())

    def times(self, number):
        return [os.stat(path).st_mtime
                for path in glob.glob(os.path.join(self.folder, "%d.*" % number))]


class WarmSix(Six):
    """The same with a script that is run by standbys."""

    SCRIPT = """import os, sys, time
warm = "json" in sys.modules
rank, group, size, number = (os.environ[name] for name in
                             ("RANK", "GROUP_RANK", "WORLD_SIZE", "MUSTER_ROUND"))
place = os.path.join(sys.argv[1], ".%s" % rank)
with open(place, "w") as file:
    file.write("%s %s %s %s" % (rank, group, size, os.environ["HOSTNAME"]))
os.rename(place, os.path.join(sys.argv[1], "%s.%s" % (number, rank)))
print("round %s is %s" % (number, "warm" if warm else "plain"), flush=True)
time.sleep(600)
"""

    def start(self, host):
        script = os.path.join(self.folder, ".script.py")
        with open(script, "w") as file:
            file.write(self.SCRIPT)
        self.agents[host.name] = host.start(
            MUSTER, "run", "--nnodes", "6:6", "--spares", "2", "--warm=json", "--rdzv-endpoint",
            "node0:29400", "--rdzv-id", "six", *self.token[host.name], script, self.folder,
            env={"HOSTNAME": host.name, "PYTHON_EXEC": sys.executable})


def assigned_at(agent, number):
    """When the agent was given its place in that round, in seconds of this day."""
    line = re.search(r"(\d+):(\d+):([\d.]+) muster: round %d: node " % number, agent.output())
    return int(line[1]) * 3600 + int(line[2]) * 60 + float(line[3])


def lose_one(job, number, ranks, victim):
    """Kills that host's agent; returns the next round, and what it took until its worker ran."""
    lost = [rank for rank, host in ranks.items() if host == victim]
    began = time.time()
    job.agents.pop(victim).kill()
    number, now = job.await_round(number)
    while victim in now.values():
        checks.note("round %d began before the kill: %s" % (number, job.words()))
        number, now = job.await_round(number)
    for rank, host in ranks.items():
        if rank not in lost:
            checks.equal(now[rank], host, "rank %d after the loss of %s" % (rank, victim))
    takers = {now[rank] for rank in lost}
    checks.equal(len(takers), 1, "one spare takes the place of %s" % victim)
    checks.ok(not takers & set(ranks.values()), "it was a spare", takers)
    ran = max(os.stat(os.path.join(job.folder, "%d.%d" % (number, rank))).st_mtime
              for rank in lost)
    checks.note("%s, rank %s, killed: the worker of %s ran after %.3f s, all after %.3f s" % (
        victim, lost, takers.pop(), ran - began, max(job.times(number)) - began))
    return number, now


def drill(nproc):
    with Rig(8) as rig:
        job = Six(rig, nproc)
        number, ranks = job.await_round(-1)
        wait_until(lambda: sum("spare" in agent.output() for agent in job.agents.values()) >= 2,
                   "two spares: " + job.words(), 60)
        for turn in range(5):
            # Not the host of the rendezvous; each time another place, from the last to the first.
            victims = [ranks[rank] for rank in sorted(ranks, reverse=True)
                       if ranks[rank] != "node0"]
            victim = victims[turn * nproc % len(victims)]
            number, ranks = lose_one(job, number, ranks, victim)
            host = next(host for host in rig.hosts if host.name == victim)
            job.start(host)  # It stands by from now on.
            job.agents[victim].says("spare", 60)


def test_six_with_two_standing_by():
    drill(1)


def test_warm_spares():
    """The spare's worker is a standby that waited there."""
    with Rig(8) as rig:
        job = WarmSix(rig)
        number, ranks = job.await_round(-1)
        for agent in job.agents.values():
            agent.says("standbys wait", 60)
        for victim in (ranks[5], ranks[3]):
            before = set(ranks.values())
            number, ranks = lose_one(job, number, ranks, victim)
            taker, = set(ranks.values()) - before
            rank = next(rank for rank in ranks if ranks[rank] == taker)
            job.agents[taker].says("round %d is warm" % number)
            ran = os.stat(os.path.join(job.folder, "%d.%d" % (number, rank))).st_mtime % 86400
            checks.note("%s was told of its place, and its worker ran %.0f ms later" % (
                taker, 1000 * (ran - assigned_at(job.agents[taker], number))))


def test_the_host_is_lost():
    """A spare takes exactly its place, too: the next host knows who had which rank."""
    with Rig(8) as rig:
        job = Six(rig)
        number, ranks = job.await_round(-1)
        wait_until(lambda: sum("spare" in agent.output() for agent in job.agents.values()) >= 2,
                   "two spares: " + job.words(), 60)
        number, ranks = lose_one(job, number, ranks, "node0")
        said = next(agent.output() for agent in job.agents.values()
                    if "hosts the rendezvous now" in agent.output())
        victim = re.search(r"muster: (\S+) hosts the rendezvous now", said).group(1)
        lose_one(job, number, ranks, victim)


def test_ranks_of_workers_stay_too():
    drill(2)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
