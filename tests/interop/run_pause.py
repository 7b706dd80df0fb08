#!/usr/bin/python3
"""Pauses of the server, of the agent that hosts it and of a member, and a server that is killed and
started anew: nobody's workers have failed, so no restart is charged (`--max-restarts 0` would end the
job at the first one), and everybody is in one world again. With a token: a stopped server answers no
handshake, so that nobody can even say goodbye to it.

usage: run_pause.py path/to/muster [--only=server] [--seconds=7]
"""
import os
import re
import signal
import subprocess
import time

from lib import Checks, Muster, Scratch, beyond_loopback, free_port, muster_path, option, wait_until
from run_faults import Agent

NODES = 4
APART = "--rdzv-conf=is_host=false"  # Nobody takes the server's place.
WORKER = """
import os, sys, time
print("start %f rank %s world %s restart %s" % (time.time(), os.environ["RANK"],
      os.environ["WORLD_SIZE"], os.environ["TORCHELASTIC_RESTART_COUNT"]), flush=True)
while not os.path.exists(sys.argv[1]) or os.path.exists(sys.argv[1] + "." + os.environ["RANK"]):
    time.sleep(0.02)
print("done in a world of %s" % os.environ["WORLD_SIZE"], flush=True)
"""


def address():
    return beyond_loopback()[0]


def serve(directory, port):
    return Muster("--token-file", token(directory), listen="%s:%d" % (address(), port))


def token(directory):
    """The job's; made once."""
    path = os.path.join(directory, "token")
    if not os.path.exists(path):
        subprocess.run([muster_path(), "keygen", "token", path], check=True, stdout=subprocess.DEVNULL)
    return path


class Job:
    def __init__(self, muster, directory, port, *options):
        script = os.path.join(directory, "worker.py")
        with open(script, "w") as f:
            f.write(WORKER)
        self.stop_file = os.path.join(directory, "stop")
        self.agents = [Agent(muster, directory, "agent%d" % i, [
            "--nnodes=1:%d" % NODES, "--rdzv-endpoint=%s:%d" % (address(), port), "--max-restarts=0",
            "--token-file", token(directory), "--local-addr=%s" % address()] + list(options), [script, self.stop_file]) for i in range(NODES)]

    def begins(self):
        """How often workers of a world of all nodes were started, on the node with the fewest."""
        return min(len(a.starts(NODES)) for a in self.agents)

    def wait(self, starts, what):
        wait_until(lambda: self.begins() >= starts or any(a.process.poll() is not None
                                                         for a in self.agents), what, patience=60)

    def end(self, checks, what):
        """All end well, in a world of all nodes, and no restart was charged."""
        with open(self.stop_file, "w"):
            pass
        codes = [a.end(60) for a in self.agents]
        text = "\n".join(a.text() for a in self.agents)
        checks.equal(codes, [0] * NODES, what + ": the job ends well")
        checks.equal(set(re.findall(r"restart (\d+)", text)), {"0"}, what + ": no restart is charged")
        checks.equal(set(re.findall(r"done in a world of (\d+)", text)), {str(NODES)},
                     what + ": it ends in the world of all")
        if any(codes):
            checks.note(text[-3000:])


def pause(process, seconds):
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGCONT)


def settle(job, checks, what):
    """After a pause: whoever stopped its workers has started them again, and it stays so."""
    begins, since = -1, time.time()
    while time.time() - since < 3 and all(a.process.poll() is None for a in job.agents):
        now = [len(a.starts(NODES)) for a in job.agents] + [len(a.text()) for a in job.agents]
        if now != begins:
            begins, since = now, time.time()
        time.sleep(0.05)
    checks.note("%s: started %s times" % (what, [len(a.starts(NODES)) for a in job.agents]))


def server(checks, muster, seconds):
    what = "server stopped for %g s" % seconds
    with Scratch() as directory, serve(directory, 0) as serving:
        job = Job(muster, directory, serving.port, APART)
        job.wait(1, what)
        pause(serving, seconds)
        settle(job, checks, what)
        job.end(checks, what)


def restarted(checks, muster, seconds):
    what = "server killed twice, and started anew %g s later" % seconds
    with Scratch() as directory:
        port = free_port()
        serving = serve(directory, port)
        job = Job(muster, directory, port, APART)
        job.wait(1, what)
        for begins in (2, 3):
            serving.kill()
            time.sleep(seconds)
            serving = serve(directory, port)
            job.wait(begins, what)
        with serving:
            settle(job, checks, what)
            job.end(checks, what)
        checks.equal([a.text().count("round 0 is over for this node") for a in job.agents],
                     [2] * NODES, what + ": both times it is said")


def one_agent(checks, muster, seconds, hosts):
    what = "%s stopped for %g s" % ("the hosting agent" if hosts else "a member", seconds)
    with Scratch() as directory:
        port = free_port()
        job = Job(muster, directory, port)
        job.wait(1, what)
        listening = [a for a in job.agents if listens(a.process.pid, port)]
        assert len(listening) == 1
        paused = listening[0] if hosts else next(a for a in job.agents if a != listening[0])
        pause(paused.process, seconds)
        settle(job, checks, what)
        job.end(checks, what)


def at_the_end(checks, muster, seconds):
    """The host is stopped while its worker still runs, and all others wait for that. Where another
    node could host, its worker would end, as that of any node that is stopped for so long."""
    what = "the hosting agent stopped for %g s at the end" % seconds
    with Scratch() as directory:
        port = free_port()
        job = Job(muster, directory, port, "--succession=off")
        job.wait(1, what)
        stays = next(a for a in job.agents if listens(a.process.pid, port))
        hold = job.stop_file + "." + re.search(r"rank (\d+) world %d" % NODES, stays.text()).group(1)
        for path in (hold, job.stop_file):
            with open(path, "w"):
                pass
        wait_until(lambda: all("waiting for the other nodes" in a.text()
                               for a in job.agents if a != stays), what)
        pause(stays.process, seconds)
        settle(job, checks, what)
        os.unlink(hold)
        job.end(checks, what)


def listens(pid, port):
    """Whether that process has the listening socket of the port."""
    inodes = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(name) as f:
            for line in f.readlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add("socket:[%s]" % fields[9])
    links = [os.readlink("/proc/%d/fd/%s" % (pid, fd)) for fd in os.listdir("/proc/%d/fd" % pid)]
    return any(link in inodes for link in links)


def host(checks, muster, seconds):
    one_agent(checks, muster, seconds, True)


def member(checks, muster, seconds):
    one_agent(checks, muster, seconds, False)


def main():
    checks = Checks()
    muster = muster_path()
    only = option("only", "")
    seconds = float(option("seconds", 7.0))
    for test in (server, restarted, host, member, at_the_end):
        if only in ("", test.__name__):
            test(checks, muster, seconds)
    if only == "":
        server(checks, muster, 1)
    checks.done()


if __name__ == "__main__":
    main()
