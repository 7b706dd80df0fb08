#!/usr/bin/python3
"""PyTorch's launcher with muster's rendezvous (`python -m muster.torchrun`) on hosts that only talk
to each other with the job's token: nodes join, are lost and come back, and the workers of those that
are there train each time. A stranger is refused.

    python_torchrun.py [MUSTER] [--only=TEXT]

The launcher is that of Debian's PyTorch, with its own times: it looks after its workers and at the
rendezvous every 5 s, so a loss costs up to 5 s more than it takes to be noticed.
"""
import glob
import importlib.util
import os
import signal
import sys
import time

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, skip, wait_until

MUSTER = muster_path()
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = sys.executable
ENVIRONMENT = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(MUSTER), "libmuster.so.0"),
}
PATIENCE = 90
checks = Checks()


class Job:
    """An agent and a worker on each host; they meet at node0."""

    def __init__(self, rig):
        self.folder = os.path.join(rig.path, "stamps")
        self.token = make_token(rig)[rig.hosts[0].name][1]
        self.agents = {}
        os.makedirs(self.folder)

    def command(self, conf):
        return [PYTHON, "-m", "muster.torchrun", "--nnodes", "1:3", "--nproc_per_node", "1",
                "--max_restarts", "9", "-r", "1", "-t", "1", "--rdzv_id", "job7",
                "--rdzv_endpoint", "node0:29400", *(["--rdzv_conf", conf] if conf else []),
                os.path.join(HERE, "all_reduce_worker.py"), self.folder]

    def start(self, host):
        """The first host has the token from the environment, the others from an option."""
        if host.number == 0:
            agent = host.start(*self.command(""),
                               env=dict(ENVIRONMENT, MUSTER_TOKEN_FILE=self.token))
        else:
            agent = host.start(*self.command("token_file=" + self.token), env=ENVIRONMENT)
        self.agents[host.name] = agent

    def start_stranger(self, host, conf):
        return host.start(*self.command(conf), env=ENVIRONMENT)

    def trained_at(self, names, since):
        """When the workers of exactly these hosts had added up in one world, after that time; None
        if they have not."""
        worlds = {}
        for path in glob.glob(os.path.join(self.folder, "stamps.*")):
            with open(path) as file:
                lines = [line.split() for line in file.read().split("\n")[:-1]]
            for at, world, rank, size in lines:
                if float(at) > since and int(size) == len(names):
                    host = os.path.basename(path).split(".")[1]
                    worlds.setdefault(world, {}).setdefault(host, float(at))
        found = [max(first.values()) for first in worlds.values() if set(first) == set(names)]
        return min(found, default=None)

    def await_world(self, names, what, since):
        try:
            at = wait_until(lambda: self.trained_at(names, since), what, PATIENCE, 0.1)
        except AssertionError:
            return checks.ok(False, what, self.words())
        checks.note("%5.1f s: %s" % (at - since, what))
        return checks.ok(True, what)

    def words(self):
        return "\n".join("%s says: %s" % (name, agent.output().strip()[-1500:])
                         for name, agent in self.agents.items())

    def finish(self, names):
        open(os.path.join(self.folder, "done"), "w").close()
        agents = [self.agents[name] for name in names]
        try:
            wait_until(lambda: not any(agent.alive() for agent in agents), "the end", PATIENCE)
        except AssertionError:
            pass
        codes = [agent.popen.poll() for agent in agents]
        if not checks.equal(codes, [0] * len(codes), "the job ends well"):
            checks.note(self.words())


def kill_all(rig, host):
    """kill -9 of everything on a host."""
    for pid in rig.processes():
        try:
            if os.readlink("/proc/%d/ns/net" % pid) == host.network:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended with the others


def refused(strangers, began):
    """Each is told at once why it cannot take part, and its worker never starts."""
    for what, (agent, words) in strangers.items():
        try:
            code = agent.wait(PATIENCE)
        finally:
            agent.kill()
        said = agent.output()
        if checks.ok(code == 1 and words in said, "refused: " + what, (code, said[-1500:])):
            last = [line for line in said.splitlines() if words in line][-1]
            checks.note("%.1f s: %s" % (time.monotonic() - began, last))


def test_nodes_come_and_go():
    with Rig(4) as rig:
        job = Job(rig)
        a, b, c, stranger = rig.hosts
        began = time.monotonic()
        job.start(a)
        job.start(b)
        if not job.await_world(["node0", "node1"], "two nodes train", began):
            return

        other = os.path.join(rig.path, "other")
        a.must_run(MUSTER, "keygen", "token", other)
        began = time.monotonic()
        strangers = {
            "without a token": (job.start_stranger(stranger, ""), "token"),
            "with the token of another job": (
                job.start_stranger(stranger, "token_file=" + other), "token"),
            "insecure": (job.start_stranger(stranger, "insecure=1"), "token"),
        }
        refused(strangers, began)
        checks.ok(all(agent.alive() for agent in job.agents.values()), "the job does not mind")

        began = time.monotonic()
        job.start(c)
        if not job.await_world(["node0", "node1", "node2"], "a third node joins", began):
            return
        began = time.monotonic()
        kill_all(rig, b)
        if not job.await_world(["node0", "node2"], "one is killed, two go on", began):
            return
        began = time.monotonic()
        c.link.unplug()
        if not job.await_world(["node0"], "one's link goes down, one goes on", began):
            return
        began = time.monotonic()
        c.link.plug()
        if job.await_world(["node0", "node2"], "its link is up again, two train", began):
            job.finish(["node0", "node2"])


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        skip("this Python has no PyTorch")
    checks.run_tests(globals())
    checks.done()
