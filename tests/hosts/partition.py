#!/usr/bin/python3
"""Jobs of `muster run` on hosts whose network fails, locked with a token: the job is not lost, all
come together again, and no two worlds train at the same time.

    partition.py [MUSTER] [--whole] [--only=TEXT] [--kinds=cut,in,...]

Every worker writes down when it trains, and in which world (stamping_worker.py). From that come the
figures of each drill: how long two worlds trained at the same time, how long none did, and how many
restarts were charged. --whole: all kinds of failures, for all sides of the partition, and pauses of
up to 60 seconds.
"""
import glob
import os
import sys
import time

from rig import HERE, Checks, Rig, muster_path, option, wait_until

checks = Checks()
WHOLE = "--whole" in sys.argv
MUSTER = muster_path()
PATIENCE = 60
GAP = 0.25  # a worker that wrote nothing for so long did not train then


class Job:
    """A job on all hosts of a rig, each with one agent and one worker; node0 hosts it, or a server
    of its own on the last host (apart=True)."""

    def __init__(self, rig, nnodes, apart=False):
        self.rig = rig
        self.folder = os.path.join(rig.path, "stamps")
        os.makedirs(self.folder)
        token = os.path.join(rig.path, "token")
        rig.hosts[0].must_run(MUSTER, "keygen", "token", token)
        members = rig.hosts[:-1] if apart else rig.hosts
        host = rig.hosts[-1] if apart else rig.hosts[0]
        self.server = None
        if apart:
            self.server = host.start(MUSTER, "serve", "--listen", "0.0.0.0:29400", "--token-file",
                                     token)
            self.server.says("29400")
        self.agents = [
            member.start(MUSTER, "run", "--nnodes", nnodes, "--max-restarts", "3",
                         "--rdzv-endpoint", host.name + ":29400", "--rdzv-id", "drill",
                         "--token-file", token,
                         os.path.join(HERE, "stamping_worker.py"), self.folder,
                         env={"PYTHON_EXEC": sys.executable})
            for member in members]

    def stamps(self):
        """All that was written down: (time, world, rank, size, restarts), by worker."""
        found = []
        for path in glob.glob(os.path.join(self.folder, "stamps.*")):
            with open(path) as file:
                lines = [line.split() for line in file.read().split("\n")[:-1]]
            found.append([(float(t), world, int(rank), int(size), int(restarts))
                          for t, world, rank, size, restarts in lines])
        return [worker for worker in found if worker]

    def trains(self, size, since=0.0):
        """Whether a world of this size trains with all its workers, later than that."""
        now = time.monotonic()
        last = [worker[-1] for worker in self.stamps()]
        fresh = [s for s in last if s[3] == size and s[0] > since and now - s[0] < GAP]
        return len({s[2] for s in fresh}) == size and len({s[1] for s in fresh}) == 1

    def await_world(self, size, why, since=0.0, patience=PATIENCE):
        """Checks that such a world comes; whether it did."""
        def come():
            return self.trains(size, since) or not any(agent.alive() for agent in self.agents)

        try:
            wait_until(come, "a world of %d" % size, patience, 0.05)
        except AssertionError:
            pass
        return checks.ok(self.trains(size, since), why, "agents say: " + self.words())

    def words(self):
        return " | ".join("%s: %s" % (agent.host.name, agent.output().strip()[-200:])
                          for agent in self.agents)

    def finish(self, what):
        """Lets the workers end; all agents must have ended well."""
        open(os.path.join(self.folder, "done"), "w").close()
        codes = [agent.wait(PATIENCE) for agent in self.agents]
        checks.equal(codes, [0] * len(codes), what + ": the job ends well")
        if any(codes):
            checks.note(self.words())


def spans(stamps):
    """The times in which each world trained: {world: [(begin, end)...]}, of all its workers."""
    worlds = {}
    for worker in stamps:
        begin = previous = worker[0][0]
        for t, world, *_ in worker[1:] + [(float("inf"), worker[0][1])]:
            if t - previous > GAP:
                worlds.setdefault(world, []).append((begin, previous))
                begin = t
            previous = t
    return worlds


def union(pieces):
    merged = []
    for begin, end in sorted(pieces):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def overlap(worlds):
    """For how long two worlds trained at the same time, in seconds."""
    unions = [union(pieces) for pieces in worlds.values()]
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0]))
               for i, one in enumerate(unions) for other in unions[:i] for a in one for b in other)


def longest_gap(worlds):
    """The longest time in which nobody trained, between the first and the last."""
    pieces = union([piece for pieces in worlds.values() for piece in pieces])
    return max([b[0] - a[1] for a, b in zip(pieces, pieces[1:])] or [0.0])


def report(name, job, may_overlap=False, restarts=None):
    stamps = job.stamps()
    worlds = spans(stamps)
    charged = max(stamp[4] for worker in stamps for stamp in worker)
    seconds = overlap(worlds)
    checks.note("%-40s worlds %d, overlap %.2f s, nobody trained for %.1f s, restarts charged %d" %
                (name, len(worlds), seconds, longest_gap(worlds), charged))
    if not may_overlap:
        checks.ok(seconds == 0, name + ": no two worlds train at the same time",
                  "%.2f s" % seconds)
    if restarts is not None:
        checks.equal(charged, restarts, name + ": restarts charged")


# --- the drills -----------------------------------------------------------------------------------

# What happens to the link of a host; those that break it make the others go on without.
KINDS = {
    "cut": lambda link: link.cut(),
    "in": lambda link: link.cut("in"),
    "out": lambda link: link.cut("out"),
    "unplug": lambda link: link.unplug(),
    "loss": lambda link: link.set(loss=0.2),
    "delay": lambda link: link.set(delay_ms=100),  # each way: 200 ms for a round trip
    "corrupt": lambda link: link.set(corrupt=0.01),
}
BREAKING = ("cut", "in", "out", "unplug")
LASTS = 8 if WHOLE else 5


def drill(kind, victims, apart=False, hosts=4):
    """One failure, of the links of these hosts by number."""
    who = "the host" if 0 in victims and not apart else \
        "the server" if apart and hosts - 1 in victims else "member"
    name = "%s of %s%s" % (kind, who, " and others" if len(victims) > 1 else "")
    with Rig(hosts) as rig:
        job = Job(rig, "2:%d" % hosts, apart)
        members = len(job.agents)
        if not job.await_world(members, name + ": the job begins"):
            return
        if len(victims) > 1:
            rig.partition([rig.hosts[v] for v in victims],
                          [h for h in rig.hosts if h.number not in victims])
        else:
            KINDS[kind](rig.hosts[victims[0]].link)
        failed = time.monotonic()
        lost = [v for v in victims if v < members]
        if kind in BREAKING and who == "member":
            job.await_world(members - len(lost), name + ": the others go on", failed)
        time.sleep(max(0, failed + LASTS - time.monotonic()))
        rig.heal()
        job.await_world(members, name + ": all come together again", time.monotonic())
        report(name, job)
        job.finish(name)


def test_drills():
    kinds = option("kinds", "cut,in,out,unplug,loss,delay,corrupt" if WHOLE else "cut,in,out,loss")
    for kind in kinds.split(","):
        drill(kind, [3])
    for kind in kinds.split(",") if WHOLE else ["cut"]:
        drill(kind, [0])
    if WHOLE:
        for kind in ("cut", "in", "out", "unplug", "loss"):
            drill(kind, [4], apart=True, hosts=5)
        drill("cut", [0, 1])
        drill("cut", [2, 3])
        drill("cut", [1, 2, 3])
        drill("cut", [3, 4], apart=True, hosts=5)


def pause(who, seconds):
    """A process is stopped for a while. The workers of an agent that is stopped are not, and nobody
    is there to stop them; so what they wrote is not held against it."""
    name = "a pause of %s for %g s" % (who, seconds)
    apart = who == "the server"
    with Rig(5 if apart else 4) as rig:
        job = Job(rig, "2:4", apart)
        if not job.await_world(4, name + ": the job begins"):
            return
        victim = {"the server": job.server, "the host": job.agents[0],
                  "a member": job.agents[2]}[who]
        victim.pause()
        time.sleep(seconds)
        victim.resume()
        if job.await_world(4, name + ": all train again", time.monotonic()):
            time.sleep(2)  # for those who would find out only now
            job.await_world(4, name + ": and go on", time.monotonic())
        report(name, job, may_overlap=True, restarts=0)
        job.finish(name)


def test_pauses():
    for who in ("the server", "the host", "a member"):
        for seconds in (1, 2, 3, 4, 5, 7, 10, 15, 30, 60) if WHOLE else (1, 7):
            pause(who, seconds)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
