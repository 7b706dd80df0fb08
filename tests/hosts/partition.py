#!/usr/bin/python3
"""Jobs of `muster run` on hosts whose network fails, locked with a token: the job is not lost, all
come together again, and no two worlds train at the same time.

    partition.py [MUSTER] [--whole] [--only=TEXT] [--kinds=cut,in,...]

Every worker writes down when it trains, and in which world (stamping_worker.py). From that come the
figures of each drill: how long two worlds trained at the same time, how long none did, and how many
restarts were charged. --whole: all kinds of failures, for all sides of the partition, and pauses of
up to 60 seconds.
"""
import os
import sys
import time

from drill import Job, longest_gap, make_token, overlap, spans
from rig import Checks, Rig, muster_path, option, wait_until

checks = Checks()
WHOLE = "--whole" in sys.argv
MUSTER = muster_path()


def report(name, job, restarts=None):
    worlds = spans(job.stamps())
    charged = job.charged()
    seconds = overlap(worlds)
    checks.note("%-48s worlds %d, overlap %.2f s, nobody trained for %.1f s, restarts charged %d" %
                (name, len(worlds), seconds, longest_gap(worlds), charged))
    checks.ok(seconds == 0, name + ": no two worlds train at the same time", "%.2f s" % seconds)
    if restarts is not None:
        checks.equal(charged, restarts, name + ": restarts charged")


def start_job(rig, nnodes, apart=False):
    """On all hosts; node0 hosts it, or, apart, a server on the last of them, which is no member.
    Returns the job and the server."""
    credential = make_token(rig)
    if not apart:
        return Job(checks, rig, rig.hosts, rig.hosts[0], nnodes, credential), None
    last = rig.hosts[-1]
    server = last.start(MUSTER, "serve", "--listen", "0.0.0.0:29400", *credential[last.name])
    server.says("29400")
    return Job(checks, rig, rig.hosts[:-1], last, nnodes, credential), server


# --- the drills -----------------------------------------------------------------------------------

# What happens to the link of a host; those that break it make the others go on without.
KINDS = {
    "cut": ("a cut at", lambda link: link.cut()),
    "in": ("a cut inwards at", lambda link: link.cut("in")),
    "out": ("a cut outwards at", lambda link: link.cut("out")),
    "unplug": ("unplugging", lambda link: link.unplug()),
    "loss": ("20 % loss at", lambda link: link.set(loss=0.2)),
    "delay": ("200 ms for a round trip to", lambda link: link.set(delay_ms=100)),
    "corrupt": ("1 % damage at", lambda link: link.set(corrupt=0.01)),
    # There are few packets while workers only train: so that some are met.
    "forge": ("20 % damage that no checksum sees at", lambda link: link.set(corrupt=0.2, repair=1)),
}
BREAKING = ("cut", "in", "out", "unplug")
LASTS = 8 if WHOLE else 5


def drill(kind, victims, apart=False, hosts=4):
    """One failure, of the links of these hosts by number."""
    who = "the host" if 0 in victims and not apart else \
        "the server" if apart and hosts - 1 in victims else "a member"
    name = "%s %s%s" % (KINDS[kind][0], who, " and others" if len(victims) > 1 else "")
    with Rig(hosts) as rig:
        job, _ = start_job(rig, "2:%d" % hosts, apart)
        members = len(job.agents)
        if not job.await_world(members, name + ": the job begins"):
            return
        if len(victims) > 1:
            rig.partition([rig.hosts[v] for v in victims],
                          [h for h in rig.hosts if h.number not in victims])
        else:
            KINDS[kind][1](rig.hosts[victims[0]].link)
        failed = time.monotonic()
        lost = [v for v in victims if v < members]
        if kind in BREAKING and who == "a member" and members - len(lost) >= 2:
            job.await_world(members - len(lost), name + ": the others go on", failed)
        time.sleep(max(0, failed + LASTS - time.monotonic()))
        rig.heal()
        job.await_world(members, name + ": all come together again", time.monotonic())
        report(name, job)
        job.finish(name)


def test_drills():
    kinds = option("kinds", ",".join(KINDS) if WHOLE else "cut,in,out,loss").split(",")
    for kind in kinds:
        drill(kind, [3])
    for kind in kinds if WHOLE else ["cut"]:
        drill(kind, [0])
    if WHOLE:
        for kind in ("cut", "in", "out", "unplug", "loss"):
            drill(kind, [4], apart=True, hosts=5)
        drill("cut", [0, 1])
        drill("cut", [2, 3])
        drill("cut", [1, 2, 3])
        drill("cut", [3, 4], apart=True, hosts=5)


def pause(who, seconds):
    """A process is stopped for a while. The workers of an agent that is stopped are not; its watcher
    ends them before the others begin without them."""
    name = "a pause of %s for %g s" % (who, seconds)
    apart = who == "the server"
    with Rig(5 if apart else 4) as rig:
        job, server = start_job(rig, "2:4", apart)
        if not job.await_world(4, name + ": the job begins"):
            return
        victim = {"the server": server, "the host": job.agents[0],
                  "a member": job.agents[2]}[who]
        victim.pause()
        time.sleep(seconds)
        victim.resume()
        if job.await_world(4, name + ": all train again", time.monotonic()):
            time.sleep(2)  # for those who would find out only now
            job.await_world(4, name + ": and go on", time.monotonic())
        report(name, job, restarts=0)
        job.finish(name)


def test_pauses():
    for who in ("the server", "the host", "a member"):
        for seconds in (1, 2, 3, 4, 5, 7, 10, 15, 30, 60) if WHOLE else (1, 7):
            pause(who, seconds)


def test_end_beside_a_cut():
    """The work is done while one is cut off: the host of the job ends when the others are gone."""
    name = "the end while a member is cut off"
    with Rig(4) as rig:
        job, _ = start_job(rig, "2:4")
        if job.await_world(4, name + ": the job begins"):
            rig.hosts[3].link.cut()
            job.let_end()
            wait_until(lambda: not any(agent.alive() for agent in job.agents[1:]), "the members' end",
                       60)
            rig.heal()
            job.finish(name)


WORKER = "while :; do cut -d' ' -f1 /proc/uptime >>ticks; sleep 0.1; done"
MOUNTS = "mount --bind hosts /etc/hosts; mount --bind resolv.conf /etc/resolv.conf; exec \"$@\""


def test_name_server_that_is_silent():
    """The host dies, and so does who knows its name: a member's workers end in time all the same."""
    name = "no answer to the name of a dead host"
    with Rig(2) as rig:
        credential = make_token(rig)
        for host in rig.hosts:
            with open(os.path.join(host.path, "hosts"), "w") as file:
                file.write("10.78.0.1 head node0\n10.78.0.2 node1\n")
            with open(os.path.join(host.path, "resolv.conf"), "w") as file:
                file.write("nameserver 10.78.0.99\n")
        head, member = [host.start(
            "unshare", "--mount", "sh", "-ec", MOUNTS, "sh", MUSTER, "run", "--nnodes", "2",
            "--rdzv-endpoint", "head:29400", "--rdzv-id", "named", *credential[host.name],
            "--no-python", "sh", "-c", WORKER) for host in rig.hosts]
        ticks = os.path.join(rig.hosts[1].path, "ticks")
        wait_until(lambda: os.path.exists(ticks), "the member's worker", 60)
        with open(os.path.join(rig.hosts[1].path, "hosts"), "w"):
            pass
        head.kill()
        died = time.monotonic()
        checks.ok(stops(ticks, died + 5), name + ": the member's worker ends")
        member.stop()


def stops(path, by):
    """Whether nothing is added to the file after that time, for a second."""
    while time.monotonic() < by:
        time.sleep(0.1)
    size = os.path.getsize(path)
    time.sleep(1)
    return os.path.getsize(path) == size


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
