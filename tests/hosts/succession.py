#!/usr/bin/python3
"""The host of the rendezvous is lost, again and again, and the job goes on: another node hosts it.
Four hosts, real addresses, a token, default options; the workers fail when they lose a neighbour.

    succession.py [MUSTER] [--only=TEXT] [--kills=N] [--torch-kills=N]

It prints how long it took from the loss to the first step of the next world, beside the loss of
another node. In no case two worlds train at once.
"""
import glob
import importlib.util
import os
import re
import signal
import sys
import time

from drill import Job, make_certificates, make_token, overlap, spans
from rig import Checks, Rig, muster_path, option, wait_until

checks = Checks()
MUSTER = muster_path()
KILLS = int(option("kills", "3"))
TORCH_KILLS = int(option("torch-kills", "1"))
HOSTS = re.compile(r"muster: (\S+) (?:is back, and )?hosts the rendezvous|muster: (hosting) at ")


class Endpoints:
    """Hosts of a rig, for a job that names them all."""

    def __init__(self, hosts):
        self.name = ",".join("%s:29400" % host.name for host in hosts[:-1])
        self.name += ("," if self.name else "") + hosts[-1].name


class TorchJob(Job):
    """The worker writes no restarts down."""

    def stamps(self):
        found = []
        for path in glob.glob(os.path.join(self.folder, "stamps.*")):
            with open(path) as file:
                lines = [line.split() for line in file.read().split("\n")[:-1]]
            found.append([(float(t), world, int(rank), int(size), 0)
                          for t, world, rank, size in lines])
        return [worker for worker in found if worker]


class OddJob(Job):
    """Of the hosts, the first has little memory, and the second a clock of its own."""

    def start(self, member):
        odd = {0: {"memory": 64 << 20}, 1: {"clock": True}}.get(member.number, {})
        return member.start(*self.command, *self.credential[member.name], self.worker, self.folder,
                            env={"PYTHON_EXEC": sys.executable}, **odd)


def start_job(rig, nnodes="2:4", *options, members=None, worker="ring_worker.py", endpoints=1):
    return Job(checks, rig, members or rig.hosts, Endpoints(rig.hosts[:endpoints]), nnodes,
               make_token(rig), options, worker)


def host_of(job):
    """The number of the agent that hosts, by what the agents said last; those that are gone do not
    count."""
    said = []
    for number, agent in enumerate(job.agents):
        if agent is None or not agent.alive():
            continue
        for line in agent.output().split("\n"):
            found = HOSTS.search(line)
            if found:
                said.append((line[:23], agent.host.name if found.group(2) else found.group(1)))
    name = max(said)[1]
    return next(i for i, agent in enumerate(job.agents) if agent.host.name == name)


def first_step(job, size, since):
    """When the first worker of a world of this size, which is new since then, trained."""
    worlds = {w[0][1]: w[0][0] for w in sorted(job.stamps(), key=lambda w: -w[0][0])
              if w[0][3] == size and w[0][0] > since}
    return min(worlds.values()) if worlds else None


def say(title, seconds):
    if seconds:
        seconds = sorted(seconds)
        checks.note("%-44s %4d times: p50 %.2f s, p99 %.2f s, most %.2f s" % (
            title, len(seconds), seconds[len(seconds) // 2],
            seconds[min(len(seconds) - 1, len(seconds) * 99 // 100)], seconds[-1]))


def check_worlds(job, title):
    shared = overlap(spans(job.stamps()))
    checks.ok(shared == 0, "%s: no two worlds at once" % title, "for %.3f s" % shared)


class Ways:
    """How an agent is lost, and how it comes back."""

    def kill(job, number):
        job.agents[number].kill()

    def start_again(job, number):
        job.agents[number] = job.start(job.agents[number].host)

    def unplug(job, number):
        job.agents[number].host.link.unplug()

    def plug(job, number):
        job.agents[number].host.link.plug()

    def cut(job, number):
        job.agents[number].host.link.cut()

    def heal(job, number):
        job.agents[number].host.link.heal()

    def pause(job, number):
        job.agents[number].pause()

    def resume(job, number):
        job.agents[number].resume()


WAYS = {
    "kill -9": (Ways.kill, Ways.start_again),
    "its link is down": (Ways.unplug, Ways.plug),
    "nothing comes through": (Ways.cut, Ways.heal),
    "SIGSTOP": (Ways.pause, Ways.resume),
}


def lose(job, number, way, count, title):
    """One loss and the return. The seconds until the others trained, or None."""
    began = time.monotonic()
    WAYS[way][0](job, number)
    if not job.await_world(count - 1, "%s: the others go on" % title, began):
        return None
    took = first_step(job, count - 1, began) - began
    back = time.monotonic()
    WAYS[way][1](job, number)
    return took if job.await_world(count, "%s: it is back" % title, back) else None


def lose_hosts(job, way, times):
    count = len(job.agents)
    took = []
    for i in range(times):
        host = host_of(job)
        name = job.agents[host].host.name
        seconds = lose(job, host, way, count, "%s, host %s, %d" % (way, name, i))
        if seconds is None:
            return took, False
        took.append(seconds)
        if option("verbose", ""):
            checks.note("%s: %.2f s" % (name, seconds))
    return took, True


# --- the tests ------------------------------------------------------------------------------------


def test_hosts_are_killed():
    """Whoever hosts is killed, and comes back as another. Beside it, the loss of another node."""
    with Rig(4) as rig:
        job = start_job(rig, "2:4", "--max-losses", "100000/1h")
        if not job.await_world(4, "the job begins"):
            return
        took, good = lose_hosts(job, "kill -9", KILLS)
        say("the host, kill -9", took)
        others = []
        for i in range(KILLS if good else 0):
            host = host_of(job)
            seconds = lose(job, (host + 1) % 4, "kill -9", 4, "another node, %d" % i)
            others += [] if seconds is None else [seconds]
        say("another node, kill -9", others)
        check_worlds(job, "kill -9")
        if good:
            checks.equal(job.charged(), 0, "no restart was charged")
            job.finish("after the kills")


def test_hosts_are_silent():
    """The host is cut off, or stopped, and its worker with it: the others take its place when it was
    silent for long enough, and it joins them when it is back."""
    for way in list(WAYS)[1:]:
        with Rig(4) as rig:
            job = start_job(rig)
            if not job.await_world(4, "the job begins"):
                continue
            took, good = lose_hosts(job, way, max(1, KILLS // 3))
            say("the host, " + way, took)
            check_worlds(job, way)
            if good:
                job.finish(way)


def test_hosts_with_certificates_and_odd_machines():
    """Certificates instead of a token, a control group with little memory, and a clock that is hours
    ahead and then moved back: each of them hosts, and is killed."""
    with Rig(4) as rig:
        rig.hosts[1].clock.advance(hours=3)
        job = OddJob(checks, rig, rig.hosts, rig.hosts[0], "2:4", make_certificates(rig),
                     ("--max-losses", "100000/1h"), "ring_worker.py")
        if not job.await_world(4, "certificates: the job begins"):
            return
        hosted = []
        while not {0, 1} <= set(hosted) and len(hosted) < 6:
            hosted.append(host_of(job))
            title = "certificates, host %d, %d" % (hosted[-1], len(hosted))
            if lose(job, hosted[-1], "kill -9", 4, title) is None:
                return
        checks.ok({0, 1} <= set(hosted), "both hosted", hosted)
        rig.hosts[1].clock.advance(hours=-3)
        lose(job, host_of(job), "kill -9", 4, "certificates, the clock is moved back")
        check_worlds(job, "certificates")
        checks.equal(job.charged(), 0, "certificates: no restart was charged")
        job.finish("certificates")


def test_host_leaves():
    """SIGTERM to the agent that hosts: it says goodbye, and the others go on at once."""
    with Rig(3) as rig:
        job = start_job(rig, "1:3")
        if not job.await_world(3, "the job begins"):
            return
        began = time.monotonic()
        job.agents[host_of(job)].signal(signal.SIGTERM)
        if job.await_world(2, "the others go on without a host that left", began):
            say("the host, SIGTERM", [first_step(job, 2, began) - began])
        job.agents = [agent for agent in job.agents if agent.alive()]
        job.finish("after the host left")


def test_pytorch():
    """The workers are PyTorch's, with gloo: whoever hosts is killed. They start from standbys, or
    the import of PyTorch would be most of what is measured; with --torch-kills, without as well."""
    if importlib.util.find_spec("torch") is None:
        checks.note("PyTorch is not here: left out")
        return
    for options in (("--warm=torch",), ())[:1 if TORCH_KILLS == 1 else 2]:
        with Rig(4) as rig:
            job = TorchJob(checks, rig, rig.hosts, rig.hosts[0], "2:4", make_token(rig),
                           ("--max-losses", "100000/1h") + options, "all_reduce_worker.py")
            title = "PyTorch" + "".join(" " + word for word in options)
            if not job.await_world(4, title + ": the job begins"):
                continue
            if options:
                for agent in job.agents:
                    agent.says("standbys wait")
            took, good = lose_hosts(job, "kill -9", TORCH_KILLS)
            say("the host, kill -9, " + title, took)
            check_worlds(job, title)
            if good:
                job.finish(title)


def test_three_endpoints():
    """The first endpoint never comes; then a newcomer has to find the host by the others; then the
    first one comes, and is a node like any other."""
    with Rig(5) as rig:
        job = start_job(rig, "2:4", members=rig.hosts[1:4], endpoints=3)
        if not job.await_world(3, "three nodes begin without the first endpoint"):
            return
        job.agents.append(job.start(rig.hosts[4]))
        job.await_world(4, "a newcomer finds them")
        job.agents.append(job.start(rig.hosts[0]))
        job.agents[-1].says("hosts the rendezvous", 20)
        began = time.monotonic()
        job.agents[host_of(job)].kill()
        # The world that was lost had as many workers, and may have made its last step after the kill.
        wait_until(lambda: first_step(job, 4, began), "another world of four")
        if job.await_world(4, "the host is lost, and all others are there", began):
            checks.note("three endpoints: after %.2f s" % (first_step(job, 4, began) - began))
        check_worlds(job, "three endpoints")
        job.agents = [agent for agent in job.agents if agent.alive()]
        job.finish("three endpoints")


def test_one_of_two():
    """Of two nodes the one that is left is no majority: it waits, says for what, and goes on when the
    other is back. With --succession any it goes on alone."""
    for mode in ("majority", "any"):
        with Rig(2) as rig:
            job = start_job(rig, "1:2", "--succession", mode)
            if not job.await_world(2, mode + ": two begin"):
                continue
            began = time.monotonic()
            job.agents[0].kill()
            if mode == "any":
                job.await_world(1, "any: one goes on alone", began)
            else:
                job.agents[1].says("waiting for promises: 1 of 2 nodes of round 0", 30)
                checks.ok(not job.trains(1, began), "majority: one of two does not train")
            back = time.monotonic()
            Ways.start_again(job, 0)
            if job.await_world(2, mode + ": both are together again", back):
                job.finish(mode + ", one of two")


def test_host_of_two_is_started_again():
    """A job of two nodes cannot go on without either. The one that is left knows more of it than the
    one that comes back, which hosts again after it has waited for others."""
    with Rig(2) as rig:
        job = start_job(rig, "2")
        if job.await_world(2, "two of two begin"):
            Ways.kill(job, 0)
            job.agents[1].says("waiting for promises: 1 of 2 nodes of round 0", 30)
            began = time.monotonic()
            Ways.start_again(job, 0)
            if job.await_world(2, "two of two train again", began):
                say("the host of two, until it is back", [time.monotonic() - began])
                job.finish("two of two")


def test_minority_waits():
    """Two of five, with the host among them, are cut off: the three go on, the two train no more and
    say why, and are taken in when they are back."""
    with Rig(5) as rig:
        job = start_job(rig, "1:5")
        if not job.await_world(5, "the job begins"):
            return
        began = time.monotonic()
        rig.partition(rig.hosts[:2], rig.hosts[2:])
        if not job.await_world(3, "three of five go on", began):
            return
        job.agents[0].says("2 of 5 nodes", 30)
        time.sleep(3)
        two = [w for w in job.stamps() if w[-1][0] > began + 4 and w[0][3] != 3]
        checks.equal(two, [], "two of five do not train")
        rig.heal()
        job.await_world(5, "all five are together again", time.monotonic())
        check_worlds(job, "a minority")
        job.finish("a minority")


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
