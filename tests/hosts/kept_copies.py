#!/usr/bin/python3
"""Copies of kept states on other hosts, with a token and, but for the memory, default options: agents
are killed with their workers and replaced. All ranks begin again with the same version, at most two
saves old, and never use more memory than they may. With --keep-copies 2, two neighbours at once. A node without
room for copies, and one that makes none.

    kept_copies.py [MUSTER] [--kills=N] [--only=FUNCTION]
"""
import os
import random
import re
import sys
import time

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, wait_until

checks = Checks()
MUSTER = muster_path()
ROOT = os.path.dirname(os.path.dirname(HERE))
KILLS = int(next((a.partition("=")[2] for a in sys.argv if a.startswith("--kills=")), "2"))
ONLY = next((a.partition("=")[2] for a in sys.argv if a.startswith("--only=")), "")
PATIENCE = 90
MEMORY = 24 << 20
BEGINS = re.compile(r"begins: round (\d+) rank (\d) step (\d+) common (\d+) mine (\d+)")
KEPT = re.compile(r"kept: round (\d+) step (\d+)")
WHOLE = re.compile(r"round (\d+): this node has copies of the states of 2 ranks of other nodes")
ENDS = re.compile(r"ends: rank \d step (\d+) common (\d+)")
ENVIRONMENT = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHON_EXEC": sys.executable,
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(MUSTER), "libmuster.so.0"),
}


class Job:
    """Nodes with two workers each that keep a state every two seconds."""

    def __init__(self, rig, options=(), memory=MEMORY, pause="2", worker="kept_worker.py"):
        self.rig, self.token, self.options = rig, make_token(rig), options
        self.memory, self.worker = memory, worker
        self.environment = dict(ENVIRONMENT, KEPT_PAUSE=pause)
        self.stop = os.path.join(rig.path, "stop")
        self.server = rig.hosts[0].start(MUSTER, "serve", "--listen", "0.0.0.0:29400",
                                         *self.token[rig.hosts[0].name])
        self.ended = ""  # what agents said that are no more
        self.agents = [self.start(host) for host in rig.hosts]

    def start(self, host):
        return host.start(
            MUSTER, "run", "--nnodes=%d" % len(self.rig.hosts), "--nproc-per-node=2",
            "--max-restarts=10000", "--max-losses=10000/1h",
            "--rdzv-endpoint=%s:29400" % self.rig.hosts[0].name, "--rdzv-conf=is_host=false",
            *self.token[host.name], "--keep-memory=%d" % self.memory, *self.options,
            os.path.join(HERE, self.worker), self.stop, env=self.environment)

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
        world = 2 * len(self.rig.hosts)
        return max((n for n, ranks in self.rounds().items() if len(ranks) == world), default=-1)

    def begun(self, number):
        return {step for step, _, _ in self.rounds()[number].values()}

    def kept(self, number):
        return max((int(step) for n, step in KEPT.findall(self.output()) if int(n) == number),
                   default=0)

    def await_round(self, after):
        wait_until(lambda: self.last() > after, "the next round", PATIENCE)
        return self.last()

    def await_copies(self, number):
        """Every node says that it has the copies that it is to have."""
        wait_until(lambda: sum(int(n) == number for n in WHOLE.findall(self.output())) ==
                   len(self.rig.hosts), "copies everywhere", PATIENCE)

    def kill(self, *numbers):
        """Kills agents with all that they started, and starts others in their place."""
        for number in numbers:
            self.agents[number].kill()
        for number in numbers:
            self.ended += self.agents[number].output()
            self.agents[number] = self.start(self.rig.hosts[number])

    def check_memory(self):
        used = [vault_bytes(agent.pid) for agent in self.agents]
        checks.ok(max(used) <= self.memory, "no agent has more than --keep-memory", used)
        return max(used)

    def finish(self):
        with open(self.stop, "w"):
            pass
        count = len(self.rig.hosts)
        checks.equal([agent.wait() for agent in self.agents], [0] * count, "the job ends well")
        checks.equal(len(set(ENDS.findall(self.output()))), 1, "all ranks end with the same")
        checks.equal(re.findall(r"given something torn.*", self.output()), [], "nothing was torn")
        self.server.stop()


def vault_bytes(pid):
    """What the vaults of an agent take."""
    sizes = {}
    for name in os.listdir("/proc/%d/fd" % pid):
        path = "/proc/%d/fd/%s" % (pid, name)
        try:
            if "memfd:muster-vault" in os.readlink(path):
                found = os.stat(path)
                sizes[found.st_ino] = found.st_blocks * 512
        except OSError:
            continue
    return sum(sizes.values())


def await_saves(job, number):
    """Two more saves: the first copies may be of different steps, and each node holds two of them."""
    first = job.kept(number)
    wait_until(lambda: job.kept(number) >= first + 2, "two more saves", PATIENCE)


def same(job, number, what):
    ranks = job.rounds()[number]
    checks.ok(len({(step, common) for step, common, _ in ranks.values()}) == 1 and
              len({mine for _, _, mine in ranks.values()}) == len(ranks), what, ranks)


def lose(job, number, *nodes):
    """Kills agents when all copies are there; returns the round that follows, and how long it took."""
    job.await_copies(number)
    await_saves(job, number)
    kept = job.kept(number)
    since = time.monotonic()
    job.kill(*nodes)
    after = job.await_round(number)
    took = time.monotonic() - since
    same(job, after, "node %s killed: all ranks begin with the same" % " and ".join(map(str, nodes)))
    begun = min(job.begun(after))
    checks.ok(kept - 2 <= begun, "at most two saves old: step %d of %d" % (begun, kept), job.output())
    job.check_memory()
    return after, took


def one_at_a_time():
    chance = random.Random(7)
    with Rig(3) as rig:
        job = Job(rig)
        number = job.await_round(-1)
        checks.equal(job.begun(number), {0}, "at first nothing is kept")
        times = []
        for _ in range(KILLS):
            number, took = lose(job, number, chance.randrange(1, 3))
            times.append(took)
        number, took = lose(job, number, 0)
        times.append(took)
        checks.ok("comes from node" in job.output() or "came from node" in job.output(),
                  "the log says where shards came from")
        checks.ok("for copies of those of 1 other node (--keep-copies)" in job.output(),
                  "the log says that there are copies")
        print("kill of a node until all ranks run with their states: %s s" %
              ", ".join("%.1f" % took for took in times))
        print("memory of an agent: %.1f of %d MiB" % (job.check_memory() / (1 << 20), MEMORY >> 20))
        job.finish()
        checks.equal(rig.processes(), [], "nothing is left on any host")


def two_at_once():
    with Rig(4) as rig:
        job = Job(rig, ("--keep-copies=2",))
        WHOLE_4 = re.compile(r"round (\d+): this node has copies of the states of 4 ranks")
        number = job.await_round(-1)
        wait_until(lambda: len(WHOLE_4.findall(job.output())) >= 4, "copies everywhere", PATIENCE)
        await_saves(job, number)
        kept = job.kept(number)
        job.kill(1, 2)
        after = job.await_round(number)
        same(job, after, "two neighbours killed at once: all ranks begin with the same")
        checks.ok(kept - 2 <= min(job.begun(after)), "at most two saves old", (job.begun(after), kept))
        job.check_memory()
        job.finish()


def without():
    """A node that makes no copies: there are none, and the log says so."""
    with Rig(3) as rig:
        job = Job(rig, ("--keep-copies=0",))
        number = job.await_round(-1)
        wait_until(lambda: job.kept(number) >= 3, "some steps", PATIENCE)
        job.kill(1)
        checks.equal(job.begun(job.await_round(number)), {0}, "without copies all begin anew")
        job.options = ()
        job.kill(2)
        number = job.await_round(number)
        wait_until(lambda: "no copies of kept states: not all nodes make them" in job.output(),
                   "the log says that there are none", PATIENCE)
        job.finish()


def without_room():
    """Memory that is enough for the states of a node's own workers only."""
    with Rig(2) as rig:
        job = Job(rig, memory=3 << 20)
        number = job.await_round(-1)
        wait_until(lambda: "no room for copies" in job.output(), "the log says so", PATIENCE)
        wait_until(lambda: job.kept(number) >= 5, "some steps", PATIENCE)
        job.check_memory()
        checks.equal(job.last(), number, "and the workers go on")
        job.finish()


def sent(host):
    with open("/proc/%d/net/dev" % host.anchor.pid) as file:
        return int(file.read().partition("eth0:")[2].split()[8])


def median_save(job):
    """Of all but the first three saves of each worker, whose memory is new."""
    times = sorted(float(took) for took in re.findall(r"took: ([\d.]+) ms", job.output())[12:])
    return times[len(times) // 2]


def changed_chunks():
    """What crosses for a save in which one of 16 chunks has changed; and what saves take."""
    with Rig(2) as rig:
        job = Job(rig, ("--keep-copies=0",), 400 << 20, "0.5", "kept_chunks_worker.py")
        number = job.await_round(-1)
        wait_until(lambda: job.kept(number) >= 12, "some steps", PATIENCE)
        plain = median_save(job)
        job.finish()
    with Rig(2) as rig:
        job = Job(rig, memory=400 << 20, pause="2", worker="kept_chunks_worker.py")
        number = job.await_round(-1)
        job.await_copies(number)
        wait_until(lambda: job.kept(number) >= 4, "some steps", PATIENCE)
        first, begin = job.kept(number), sent(rig.hosts[0]) + sent(rig.hosts[1])
        wait_until(lambda: job.kept(number) >= first + 4, "some more", PATIENCE)
        steps = job.kept(number) - first
        each = (sent(rig.hosts[0]) + sent(rig.hosts[1]) - begin) / steps / 4
        print("a save of 16 MiB in which 1 of 16 chunks changed: %.2f MiB cross for each rank" %
              (each / (1 << 20)))
        checks.ok(each < 4 << 20, "only what changed crosses", each)
        print("a save takes %.1f ms, without copies %.1f ms (median)" % (median_save(job), plain))
        job.finish()


for part in one_at_a_time, two_at_once, without, without_room, changed_chunks:
    if ONLY in ("", part.__name__):
        part()
checks.done()
