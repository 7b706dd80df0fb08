#!/usr/bin/python3
"""The hang watchdog of `muster run`: two agents, whose workers meet in gloo's collectives. One rank
hangs, each time in another way: both agents name it, and the line that it is at. Then ways to be
slow, about which nobody may say anything. And --hang-action restart: a hang that cannot end costs a
restart, and the verdict says why.

usage: run_hang.py path/to/muster [--workers=2] [--hang=2] [--seeds=1] [--first=0] [--only=TEXT,...]
           [--long=1.5] [--beside=1] [--matrix]

--workers: of each of the two agents. --seeds: each with another victim, which hangs at another step
and time. --long: how many times the time of --hang each healthy way lasts. --beside: how many seeds
run at once. --matrix: only hangs, and at the end how long it took to tell them, by their kinds.
"""
import json
import os
import re
import signal
import statistics
import sys
import threading
import time

from lib import HERE, Checks, Scratch, free_port, muster_path, option, wait_until
from run_ddp import Agent, wait_for

WORKER = os.path.join(HERE, "hang_worker.py")
TOLD = re.compile(r"muster: (no rank has made progress for \d+ s: .*)")
PATIENCE = 90
HANGS = ["hang_sleep", "hang_lock", "hang_queue", "hang_gil", "hang_pipe", "hang_stop", "hang_freeze",
         "hang_loader", "hang_teardown"]
BUSY = ["busy_burn", "busy_checkpoint", "busy_evaluate", "busy_child", "busy_steps", "busy_debugger",
        "busy_import", "busy_compile", "busy_loading", "busy_download", "busy_sync", "busy_thread",
        "busy_saver", "busy_prompt", "busy_server", "busy_loop", "busy_store", "busy_places",
        "busy_alike"]
STUCK = ["skip", "uneven", "order", "size", "group"]
ONLY = option("only", "").split(",")
seconds = {}  # by way: from the beginning of a hang until it was told


def wanted(ways):
    return [way for way in ways if any(text in way for text in ONLY)]


def lines_of():
    """Where each way of hanging stands, as the worker's source says."""
    with open(WORKER) as file:
        return {line.rpartition("# here: ")[2].strip(): i + 1
                for i, line in enumerate(file) if "# here: " in line}


class Job:
    def __init__(self, directory, ways, victim, seed, *options, freezer=None):
        self.directory, self.workers = directory, option("workers", 2)
        self.hang = option("hang", 2.0)
        self.said_path = os.path.join(directory, "said")
        self.verdicts = [os.path.join(directory, "verdict%d" % i) for i in range(2)]
        port = free_port()
        self.long = option("long", 1.5)
        os.environ.update(HANG=str(self.hang), LONG=str(self.long))
        self.agents = [Agent([
            "env", "FROZEN=%s" % (freezer.path if freezer else ""), muster_path(), "run", "--nnodes=2", "--nproc-per-node=%d" % self.workers, "--rdzv-id=hang",
            "--rdzv-endpoint=127.0.0.1:%d" % port, "--local-addr=127.0.0.1", "--grace=2s",
            "--hang=%gs" % self.hang, "--verdict", self.verdicts[i]] + list(options) +
            [WORKER, directory, ",".join(ways), str(victim), str(seed)], directory) for i in range(2)]

    def said(self):
        """What the victims said: the way, its process and the time; or that it is done."""
        try:
            with open(self.said_path) as file:
                return [line.split() for line in file]
        except FileNotFoundError:
            return []

    def told(self, agent):
        return TOLD.findall(self.agents[agent].said())

    def ended(self):
        return any(a.process.poll() is not None for a in self.agents)

    def wait(self, condition, what):
        wait_until(lambda: condition() or self.ended(), what, patience=PATIENCE, step=0.02)

    def text(self):
        return "\n".join(a.said() for a in self.agents)

    def end(self):
        return wait_for(self.agents, PATIENCE + self.hang * self.long * len(BUSY))


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


class Freezer:
    """A control group whose members are frozen as they enter."""

    def __init__(self, seed):
        old = os.path.isdir("/sys/fs/cgroup/freezer")
        self.path = "%s/muster-hang-%d-%d" % ("/sys/fs/cgroup/freezer" if old else "/sys/fs/cgroup",
                                              os.getpid(), seed)
        self.state = os.path.join(self.path, "freezer.state" if old else "cgroup.freeze")
        self.words = ("FROZEN", "THAWED") if old else ("1", "0")

    def __enter__(self):
        os.mkdir(self.path)
        write(self.state, self.words[0])
        return self

    def thaw(self):
        write(self.state, self.words[1])

    def __exit__(self, *_):
        self.thaw()
        wait_until(lambda: not open(os.path.join(self.path, "cgroup.procs")).read(),
                   "the freezer is empty")
        os.rmdir(self.path)


def release(way, pid, freezer):
    if way == "hang_freeze":
        freezer.thaw()
    else:
        os.kill(pid, signal.SIGCONT if way == "hang_stop" else signal.SIGUSR1)


def check_told(checks, line, victim, place, what):
    checks.ok(re.search(r"rank %d \(\S+\) is missing" % victim, line), what + ": names rank %d" % victim,
              line)
    checks.ok(re.search(r"rank %d (stopped )?in " % victim, line) and " at hang_worker.py:%d;" % place in line + ";",
              what + ": names line %d" % place, line)


def note_time(checks, way, victim, began):
    taken = time.time() - float(began[2])
    seconds.setdefault(way, []).append(taken)
    checks.note("%s of rank %d: told after %.1f s" % (way, victim, taken))


def run_hangs(checks, victim, seed):
    """Ways that end when the test has seen enough."""
    ways = wanted(HANGS)
    places, failed = dict(lines_of(), teardown=lines_of()["sleep"]), len(checks.failed)
    with Scratch() as directory, Freezer(seed) as freezer:
        job = Job(directory, ways, victim, seed, freezer=freezer)
        try:
            for i, way in enumerate(ways):
                job.wait(lambda: len(job.said()) > 2 * i, "%s begins" % way)
                began = job.said()[2 * i]
                job.wait(lambda: all(len(job.told(a)) > i for a in range(2)), "%s is told" % way)
                assert all(len(job.told(a)) > i for a in range(2)), "%s: the job ended before" % way
                note_time(checks, way, victim, began)
                for agent in range(2):
                    check_told(checks, job.told(agent)[i], victim, places[way[5:]],
                               "%s, agent %d" % (way, agent))
                release(way, int(began[1]), freezer)
                if way == "hang_teardown":
                    break  # The workers end.
                job.wait(lambda: job.text().count("the run moves again") >= 2 * (i + 1),
                         "%s is over" % way)
            checks.equal(job.end(), [0, 0], "hangs of rank %d: the job goes on, and ends well" % victim)
            checks.equal([len(job.told(a)) for a in range(2)], [len(ways)] * 2,
                         "hangs of rank %d: each is told once" % victim)
        except AssertionError as error:
            checks.ok(False, "hangs of rank %d" % victim, error)
        finally:
            if len(checks.failed) != failed:
                checks.note(job.text())
            for agent in job.agents:
                agent.kill()


def run_busy(checks, victim, seed):
    ways = wanted(BUSY)
    with Scratch() as directory:
        job = Job(directory, ways, victim, seed)
        codes = job.end()
        checks.equal(codes, [0, 0], "busy rank %d: the job ends well" % victim)
        checks.equal([job.told(a) for a in range(2)], [[], []], "busy rank %d: nothing is said" % victim)
        if codes != [0, 0]:
            checks.note(job.text())


def follow_stuck(checks, job, victim):
    """Returns the ways in which it hung. On a machine with much else to do, a round may be lost, and
    what hung in it hangs again in the next one."""
    done = 0
    while True:
        job.wait(lambda: len(job.said()) > done, "the next way begins")
        if len(job.said()) == done:
            return [line[0] for line in job.said()]
        job.wait(lambda: len(job.told(victim // job.workers)) > done, "%s is told" % job.said()[done][0])
        note_time(checks, job.said()[done][0], victim, job.said()[done])
        done += 1


def run_stuck(checks, victim, seed):
    """Ways that end only because the watchdog ends the worker."""
    ways = wanted(STUCK)
    places, failed = lines_of(), len(checks.failed)
    with Scratch() as directory:
        job = Job(directory, ways, victim, seed, "--hang-action=restart",
                  "--max-restarts=%d" % len(ways))
        hung = []
        try:
            hung = follow_stuck(checks, job, victim)
        except AssertionError as error:
            checks.ok(False, "stuck rank %d" % victim, error)
        checks.equal(sorted(set(hung)), sorted(ways), "stuck rank %d: it hung in all ways" % victim)
        codes = job.end()
        checks.equal(codes, [0, 0], "stuck rank %d: the job ends well after the restarts" % victim)
        for agent in range(2):
            told, expected = job.told(agent), list(hung)
            if agent == victim // job.workers:
                checks.equal(len(told), len(hung), "stuck rank %d: each is told once" % victim)
            for line in told:
                # On the other node, the round may end before the agent has heard why.
                while len(expected) > 1 and agent != victim // job.workers and (
                        "hang_worker.py:%d;" % places[expected[0]] not in line + ";"):
                    expected.pop(0)
                if not checks.ok(expected, "stuck rank %d: nothing else is told" % victim, line):
                    break
                way = expected.pop(0)
                check_told(checks, line, victim, places[way], "%s, agent %d" % (way, agent))
        restarts = job.text().count("is ended because the run hangs, by SIGABRT")
        checks.equal(restarts, len(hung), "stuck rank %d: one restart each" % victim)
        if len(checks.failed) != failed:
            checks.note(job.text())


def run_verdict(checks, victim, seed):
    """No restart is left: the verdict of both nodes says what hung, and the stacks are in it."""
    with Scratch() as directory:
        job = Job(directory, ["skip"], victim, seed, "--hang-action=restart")
        checks.equal(job.end(), [1, 1], "verdict: the job fails")
        for path in job.verdicts:
            with open(path) as file:
                verdict = json.load(file)
            first = verdict["first_failure"]
            checks.ok(first and "Fatal Python error: Aborted" in str(first["tail"]),
                      "verdict: the worker says where it was", first)
            checks.ok(first and first["rank"] == victim and
                      "the watchdog ended it: no rank has made progress" in first["cause"],
                      "verdict: the missing rank failed first, and why", first)
            if first and first["here"]:
                hang = verdict["hang"]
                checks.ok(hang and hang["missing"] == str(victim) and hang["missing_count"] == 1 and
                          "hang_worker.py" in hang["stacks"], "verdict: the hang with its stacks", hang)


def run_seeds(checks, seeds):
    world = 2 * option("workers", 2)
    runs = [(run_hangs, HANGS), (run_stuck, STUCK)]
    if "--matrix" not in sys.argv:
        runs += [(run_busy, BUSY), (run_verdict, ["skip"])]
    threads = [threading.Thread(target=run, args=(checks, (seed * 3 + i + 1) % world, seed))
               for seed in seeds for i, (run, ways) in enumerate(runs) if wanted(ways)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main():
    checks = Checks()
    first, beside = option("first", 0), option("beside", 1)
    last = first + option("seeds", 1)
    for seed in range(first, last, beside):
        run_seeds(checks, range(seed, min(seed + beside, last)))
    if "--matrix" in sys.argv:
        for way, taken in seconds.items():
            checks.note("%-13s told %d times of %d, after %.1f s (%.1f to %.1f)" % (
                way, len(taken), last - first, statistics.median(taken), min(taken), max(taken)))
    checks.done()


if __name__ == "__main__":
    main()
