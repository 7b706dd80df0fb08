#!/usr/bin/python3
"""States that agents keep, between hosts, with a token and without copies on other nodes
(kept_copies.py has those): three nodes with two workers each, which keep a
shard every step. Workers are killed at any moment, one or several at once; agents, one and two of
them; a node comes back without --keep-memory. After each, all ranks begin with the same version.

    kept.py [MUSTER] [--kills=N]
"""
import os
import random
import re
import signal
import sys

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

checks = Checks()
MUSTER = muster_path()
ROOT = os.path.dirname(os.path.dirname(HERE))
KILLS = int(next((a.partition("=")[2] for a in sys.argv if a.startswith("--kills=")), "8"))
PATIENCE = 90
BEGINS = re.compile(r"begins: round (\d+) rank (\d) step (\d+) common (\d+) mine (\d+)")
REACHED = re.compile(r"reached: round (\d+) step (\d+)")
ENDS = re.compile(r"ends: rank \d step (\d+) common (\d+)")
ENVIRONMENT = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHON_EXEC": sys.executable,
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(MUSTER), "libmuster.so.0"),
}


class Job:
    def __init__(self, rig):
        self.rig, self.token = rig, make_token(rig)
        self.stop = os.path.join(rig.path, "stop")
        self.server = rig.hosts[0].start(MUSTER, "serve", "--listen", "0.0.0.0:29400",
                                         *self.token[rig.hosts[0].name])
        self.ended = ""  # what agents said that are no more
        self.agents = [self.start(host) for host in rig.hosts]

    def start(self, host, *options):
        return host.start(
            MUSTER, "run", "--nnodes=3", "--nproc-per-node=2", "--max-restarts=10000",
            "--max-losses=10000/1h", "--rdzv-endpoint=%s:29400" % self.rig.hosts[0].name,
            "--rdzv-conf=is_host=false", *self.token[host.name], *(options or ("--keep-memory=24M", "--keep-copies=0")),
            os.path.join(HERE, "kept_worker.py"), self.stop, env=ENVIRONMENT)

    def output(self):
        return self.ended + "".join(agent.output() for agent in self.agents)

    def rounds(self):
        """{round: {rank: (step, common, mine)}} of all that began."""
        found = {}
        for number, rank, step, common, mine in BEGINS.findall(self.output()):
            found.setdefault(int(number), {})[int(rank)] = (int(step), common, mine)
        return found

    def last(self):
        """The last round in which all ranks have begun, or -1."""
        return max((n for n, ranks in self.rounds().items() if len(ranks) == 6), default=-1)

    def reached(self, number):
        return max((int(step) for n, step in REACHED.findall(self.output()) if int(n) == number),
                   default=0)

    def await_round(self, after, progress=5):
        """Waits until all ranks train in a later round; returns its number."""
        def trains():
            number = self.last()
            return number > after and self.reached(number) >= min(self.begun(number)) + progress

        wait_until(trains, "the next round", PATIENCE)
        return self.last()

    def begun(self, number):
        return {step for step, _, _ in self.rounds()[number].values()}

    def workers(self):
        """The processes of the workers that live."""
        found = []
        for name in os.listdir("/proc"):
            try:
                with open("/proc/%s/environ" % name, "rb") as file:
                    inside = file.read()
                with open("/proc/%s/cmdline" % name, "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"MUSTER_VAULTS=" in inside and self.stop.encode() in words:
                found.append(int(name))
        return found

    def kill_agents(self, *numbers, options=()):
        for number in numbers:
            self.agents[number].kill()
        for number in numbers:
            self.ended += self.agents[number].output()
            self.agents[number] = self.start(self.rig.hosts[number], *options)


def kill_workers(job, chance):
    """Returns the round that follows."""
    before = job.last()
    reached = job.reached(before)
    for pid in chance.sample(job.workers(), chance.choice((1, 1, 1, 2, 3, 6))):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    after = job.await_round(before)
    begun = job.begun(after)
    if len(begun) != 1 or min(begun) < reached - 1:
        checks.ok(False, "all ranks go on, at most one save old", (begun, reached))
    return after


def main():
    chance = random.Random(22)
    with Rig(3) as rig:
        job = Job(rig)
        number = job.await_round(-1)
        checks.equal(job.begun(number), {0}, "at first nothing is kept")
        for _ in range(KILLS):
            number = kill_workers(job, chance)
        checks.ok(min(job.begun(number)) > 0, "%d times workers were killed, and went on" % KILLS)

        job.kill_agents(2)
        number = job.await_round(number)
        checks.equal(job.begun(number), {0}, "what a killed agent kept is gone, so all begin anew")
        checks.ok("begin without a kept state: there is no version that all ranks have" in job.output(),
                  "the log says so")
        number = kill_workers(job, chance)
        checks.ok(min(job.begun(number)) > 0, "the agent that came back keeps states again")

        job.kill_agents(1, 2)
        number = job.await_round(number)
        checks.equal(job.begun(number), {0}, "two agents at once: all begin anew")
        number = kill_workers(job, chance)
        checks.ok(min(job.begun(number)) > 0, "and go on after that")

        check_rounds(job)
        with open(job.stop, "w"):
            pass
        checks.equal([agent.wait() for agent in job.agents], [0, 0, 0], "the job ends well")
        checks.equal(len(set(ENDS.findall(job.output()))), 1, "all ranks end with the same")
        job.server.stop()
        checks.equal(rig.processes(), [], "nothing is left on any host")


def check_rounds(job):
    """In each round, all ranks have begun with the same version."""
    whole = [ranks for ranks in job.rounds().values() if len(ranks) == 6]
    checks.ok(all(len({(step, common) for step, common, _ in ranks.values()}) == 1 for ranks in whole),
              "in each of %d rounds, all ranks begin with the same version" % len(whole))
    checks.ok(all(len({mine for _, _, mine in ranks.values()}) == 6 for ranks in whole),
              "and each with its own shard")
    checks.equal(re.findall(r"given something torn.*", job.output()), [], "nothing was torn")


def half_kept():
    """A node whose --keep-memory was forgotten: nothing is loaded anywhere, and the log says why."""
    with Rig(2) as rig:
        token = make_token(rig)
        agents = [host.start(
            MUSTER, "run", "--nnodes=2", "--max-restarts=1", "--rdzv-endpoint=node0:29400",
            *token[host.name], *options, "--no-python", "/bin/sh", "-c",
            'echo "vaults of $RANK: $MUSTER_VAULTS"; test $TORCHELASTIC_RESTART_COUNT = 1')
            for host, options in zip(rig.hosts, (("--keep-memory=24M",), ()))]
        checks.equal([agent.wait(PATIENCE) for agent in agents], [0, 0], "the job ends well")
        checks.ok("vaults of 1: \n" in agents[1].output() and "vaults of 0: 1,1000," in agents[0].output(),
                  "one has vaults")
    with Rig(2) as rig:
        token = make_token(rig)
        agents = [host.start(
            MUSTER, "run", "--nnodes=2", "--max-restarts=1", "--rdzv-endpoint=node0:29400",
            *token[host.name], *options, "--no-python", "/bin/sh", "-c", "exit 0")
            for host, options in zip(rig.hosts, ((), ("--keep-memory=24M",)))]
        checks.equal([agent.wait(PATIENCE) for agent in agents], [0, 0], "the job ends well")
        checks.ok("node 0 does not keep states (--keep-memory)" in agents[0].output() + agents[1].output(),
                  "the other way round, the log says so", agents[1].output())


main()
half_kept()
checks.done()
