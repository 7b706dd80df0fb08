"""A job of `muster run` on the hosts of a rig, for drills: every worker writes down when it trains
and in which world (stamping_worker.py), and from that come figures: how long two worlds trained at
the same time, how long none did, how many restarts were charged.
"""
import glob
import os
import sys
import time

from rig import HERE, muster_path, wait_until

MUSTER = muster_path()
PATIENCE = 60
GAP = 0.25  # a worker that wrote nothing for so long did not train then


def make_token(rig):
    """The options that say the credential, by the name of the host."""
    path = os.path.join(rig.path, "token")
    rig.hosts[0].must_run(MUSTER, "keygen", "token", path)
    return {host.name: ["--token-file", path] for host in rig.hosts}


def make_certificates(rig, days=1000):
    folder = os.path.join(rig.path, "tls")
    names = [host.name for host in rig.hosts]
    rig.hosts[0].must_run(MUSTER, "keygen", "tls", folder, "--host", ",".join(names), "--days",
                          str(days))
    return {name: ["--tls-ca", folder + "/ca.pem", "--tls-cert", "%s/%s.pem" % (folder, name),
                   "--tls-key", "%s/%s.key" % (folder, name)] for name in names}


class Job:
    """One agent and one worker on each of the members; they meet at a port of `host`, which is one
    of them or has a server."""

    def __init__(self, checks, rig, members, host, nnodes, credential,
                 options=("--max-restarts", "3"), worker="stamping_worker.py", port=29400):
        self.checks = checks
        self.folder = os.path.join(rig.path, "stamps")
        self.credential = credential
        self.command = [MUSTER, "run", "--nnodes", nnodes, *options, "--rdzv-endpoint",
                        "%s:%d" % (host.name, port), "--rdzv-id", "drill"]
        self.worker = os.path.join(HERE, worker)
        os.makedirs(self.folder)
        self.agents = [self.start(member) for member in members]

    def start(self, member):
        return member.start(*self.command, *self.credential[member.name], self.worker, self.folder,
                            env={"PYTHON_EXEC": sys.executable})

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
        came = []  # On a busy machine, a second look may find a worker that pauses for a moment.

        def come():
            came[:] = [self.trains(size, since)]
            return came[0] or not any(agent.alive() for agent in self.agents)

        try:
            wait_until(come, "a world of %d" % size, patience, 0.05)
        except AssertionError:
            pass
        return self.checks.ok(came[0], why, "agents say: " + self.words())

    def worlds(self):
        """How many worlds there have been."""
        return len(spans(self.stamps()))

    def charged(self):
        """How many restarts were charged."""
        return max(stamp[4] for worker in self.stamps() for stamp in worker)

    def words(self):
        return " | ".join("%s: %s" % (agent.host.name, agent.output().strip()[-200:])
                          for agent in self.agents)

    def let_end(self):
        """The workers have done their work."""
        open(os.path.join(self.folder, "done"), "w").close()

    def finish(self, what):
        """Lets the workers end; all agents must have ended well."""
        self.let_end()
        try:
            wait_until(lambda: not any(agent.alive() for agent in self.agents), "the end", PATIENCE)
        except AssertionError:
            pass
        codes = [agent.popen.poll() for agent in self.agents]
        self.checks.equal(codes, [0] * len(codes), what + ": the job ends well")
        if any(code != 0 for code in codes):
            self.checks.note(self.words())


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
