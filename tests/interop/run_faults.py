#!/usr/bin/python3
"""Agents and workers that misbehave, as real processes under `muster run`: an agent is killed and the
others run on in a new world, also when it was the host; a new agent is let in; and a zoo of workers,
of which nothing may be left.

usage: run_faults.py path/to/muster [--rounds=40]
"""
import os
import re
import signal
import subprocess
import sys
import time

from lib import Checks, Scratch, die_with_parent, free_port, muster_path, option, wait_until

SLEEPER = """
import os, sys, time
print("start %f rank %s world %s" % (time.time(), os.environ["RANK"], os.environ["WORLD_SIZE"]),
      flush=True)
time.sleep(float(sys.argv[1]))
"""

# In a world of two, rank 0 ends as soon as rank 1 is gone, as workers do that lose a peer.
PEERS = """
import fcntl, os, sys, time
directory = sys.argv[1]
print("start %f rank %s world %s" % (time.time(), os.environ["RANK"], os.environ["WORLD_SIZE"]),
      flush=True)
if os.environ["WORLD_SIZE"] == "2":
    with open(directory + "/peer", "w") as peer:
        if os.environ["RANK"] == "1":
            fcntl.flock(peer, fcntl.LOCK_EX)
            open(directory + "/held", "w").close()
            time.sleep(1000)
        while not os.path.exists(directory + "/held"):
            time.sleep(0.01)
        fcntl.flock(peer, fcntl.LOCK_EX)
        sys.exit("lost a peer")
"""

# What a worker of the zoo does, by number; each leaves a mark in its command line.
ZOO = r"""
import os, signal, subprocess, sys, time
kind = int(sys.argv[1])
local = int(os.environ["LOCAL_RANK"])
if kind == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif kind == 1:
    if os.fork() == 0:
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        os._exit(0)
elif kind == 2:
    subprocess.Popen(["setsid", "sleep", "1000"], env=os.environ)
elif kind == 3 and local == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
elif kind == 4 and local == 1:
    block = b"x" * 1023 + b"\n"
    for _ in range(8 * 1024):
        os.write(1, block)
elif kind == 5 and local == 1:
    sys.exit(0)
if local == 0:
    time.sleep(0.05)
    sys.exit(3)
time.sleep(1000)
"""


class Agent:
    def __init__(self, muster, directory, name, options, script):
        self.log = os.path.join(directory, name + ".log")
        env = dict(os.environ, PYTHON_EXEC=sys.executable)
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen([muster, "run"] + options + script, env=env, stdout=out,
                                            stderr=out, stdin=subprocess.DEVNULL,
                                            preexec_fn=die_with_parent)

    def text(self):
        with open(self.log, errors="replace") as f:
            return f.read()

    def starts(self, world):
        """When workers of a world of that size have started."""
        return [float(t) for t in re.findall(r"start ([\d.]+) rank \d+ world %d\b" % world,
                                             self.text())]

    def end(self, patience=30):
        return self.process.wait(timeout=patience)


def marked(mark):
    """Processes that have the mark in their command line or environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/environ" % pid, "rb") as f:
                environ = f.read()
            with open("/proc/%s/stat" % pid) as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if mark.encode() in environ and state not in "ZX":
            found.append(int(pid))
    return found


def two_agents(checks, muster, kill_host):
    what = "killed host" if kill_host else "killed agent"
    with Scratch() as directory:
        script = os.path.join(directory, "sleeper.py")
        with open(script, "w") as f:
            f.write(SLEEPER)
        options = ["--nnodes=1:2", "--nproc-per-node=2", "--rdzv-endpoint=127.0.0.1:%d" % free_port(),
                   "--max-restarts=3", "--rdzv-conf=last_call_timeout=0.1", "--detect=0.5",
                   "--local-addr=127.0.0.1"]
        first = Agent(muster, directory, "a", options, [script, "3"])
        wait_until(lambda: len(first.starts(2)) == 2, what + ": the first runs alone")
        begin = time.time()
        second = Agent(muster, directory, "b", options + ["--upscale-delay=0"], [script, "3"])
        wait_until(lambda: len(first.starts(4)) == 2 and len(second.starts(4)) == 2,
                   what + ": the second is let in")
        checks.note("let in after %.0f ms" % (1000 * (max(first.starts(4) + second.starts(4)) - begin)))
        victim, other = (first, second) if kill_host else (second, first)
        before = len(other.starts(2))
        begin = time.time()
        victim.process.kill()
        wait_until(lambda: len(other.starts(2)) == before + 2, what + ": the other runs again")
        checks.note("%s: workers run again after %.0f ms"
                    % (what, 1000 * (max(other.starts(2)) - begin)))
        checks.ok(other.end() == 0, what + ": the other ends with 0", other.text())
        victim.end()


def peers_end_with_a_killed_agent(checks, muster):
    """With no restart to spare: nobody has failed by himself."""
    with Scratch() as directory:
        script = os.path.join(directory, "peers.py")
        with open(script, "w") as f:
            f.write(PEERS)
        options = ["--nnodes=1:2", "--rdzv-endpoint=127.0.0.1:%d" % free_port(),
                   "--rdzv-conf=last_call_timeout=8", "--local-addr=127.0.0.1"]
        first = Agent(muster, directory, "a", options, [script, directory])
        second = Agent(muster, directory, "b", options, [script, directory])
        wait_until(lambda: os.path.exists(directory + "/held"), "both run")
        victim, other = (first, second) if "rank 1" in first.text() else (second, first)
        victim.process.kill()
        checks.ok(other.end() == 0 and len(other.starts(1)) == 1,
                  "the other goes on though its worker ended with its peer", other.text())
        victim.end()


def zoo(checks, muster, rounds):
    with Scratch() as directory:
        script = os.path.join(directory, "zoo.py")
        with open(script, "w") as f:
            f.write(ZOO)
        left = []
        wrong = []
        for i in range(rounds):
            mark = "MUSTER_TEST_ZOO=%d.%d." % (os.getpid(), i)
            os.environ["MUSTER_TEST_ZOO"] = mark.split("=")[1]
            kind = i % 7
            program = ["--no-python", os.path.join(directory, "nothing")] if kind == 6 else [script]
            agent = Agent(muster, directory, "zoo", ["--standalone", "--nproc-per-node=2",
                          "--max-restarts=1", "--grace=0.2"], program + [str(kind)])
            try:
                code = agent.end(20)
            except subprocess.TimeoutExpired:
                checks.ok(False, "zoo round %d (kind %d) ends" % (i, kind), agent.text())
                agent.process.send_signal(signal.SIGKILL)
                break
            if code != 1:
                wrong.append((i, kind, code, agent.text()[-500:]))
            left += [(i, kind, pid) for pid in marked(mark)]
        del os.environ["MUSTER_TEST_ZOO"]
        checks.equal(wrong, [], "%d rounds of the zoo end with 1" % rounds)
        checks.equal(left, [], "nothing of it is left behind")
        for _, _, pid in left:
            os.kill(pid, signal.SIGKILL)


def agent_killed_takes_all_along(checks, muster):
    with Scratch() as directory:
        script = os.path.join(directory, "zoo.py")
        with open(script, "w") as f:
            f.write(ZOO.replace("if local == 0:", "print('ready', flush=True)\nif False:"))
        for kind in range(3):
            mark = "%d.killed%d" % (os.getpid(), kind)
            os.environ["MUSTER_TEST_ZOO"] = mark
            agent = Agent(muster, directory, "k%d" % kind, ["--standalone", "--nproc-per-node=2"],
                          [script, str(kind)])
            wait_until(lambda: agent.text().count("ready") == 2, "workers are ready")
            agent.process.kill()
            agent.end()
            try:
                wait_until(lambda: not marked(mark), "they are gone", patience=5)
                gone = True
            except AssertionError:
                gone = False
            checks.ok(gone, "kill -9 of the agent takes its workers along (kind %d)" % kind,
                      marked(mark))
        del os.environ["MUSTER_TEST_ZOO"]


def main():
    checks = Checks()
    muster = muster_path()
    two_agents(checks, muster, kill_host=False)
    two_agents(checks, muster, kill_host=True)
    peers_end_with_a_killed_agent(checks, muster)
    zoo(checks, muster, option("rounds", 40))
    agent_killed_takes_all_along(checks, muster)
    checks.done()


if __name__ == "__main__":
    main()
