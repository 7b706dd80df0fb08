#!/usr/bin/python3
"""The hang watchdog of `muster run`: two agents, whose workers meet in gloo's collectives. One rank
hangs, each time in another way: both agents name it, and the line that it is at. Then ways to be
slow, about which nobody may say anything. And --hang-action restart: a hang that cannot end costs a
restart, and the verdict says why.

usage: run_hang.py path/to/muster [--workers=2] [--hang=2] [--seeds=1] [--first=0] [--only=TEXT]

--workers: of each of the two agents. --seeds: each with other victims.
"""
import json
import os
import re
import signal
import sys
import threading
import time

from lib import HERE, Checks, Scratch, free_port, muster_path, option, wait_until
from run_ddp import Agent, wait_for

WORKER = os.path.join(HERE, "hang_worker.py")
TOLD = re.compile(r"muster: (no rank has made progress for \d+ s: .*)")
PATIENCE = 90
HANGS = ["hang_sleep", "hang_lock", "hang_queue", "hang_gil", "hang_pipe", "hang_stop", "hang_loader",
         "hang_teardown"]
BUSY = ["busy_burn", "busy_checkpoint", "busy_evaluate", "busy_child", "busy_steps", "busy_debugger",
        "busy_alike"]
STUCK = ["skip", "order"]


def lines_of():
    """Where each way of hanging stands, as the worker's source says."""
    with open(WORKER) as file:
        return {line.rpartition("# here: ")[2].strip(): i + 1
                for i, line in enumerate(file) if "# here: " in line}


class Job:
    def __init__(self, directory, ways, victim, *options):
        self.directory, self.workers = directory, option("workers", 2)
        self.hang = option("hang", 2.0)
        self.said_path = os.path.join(directory, "said")
        self.verdicts = [os.path.join(directory, "verdict%d" % i) for i in range(2)]
        port = free_port()
        os.environ["HANG"] = str(self.hang)
        self.agents = [Agent([
            muster_path(), "run", "--nnodes=2", "--nproc-per-node=%d" % self.workers, "--rdzv-id=hang",
            "--rdzv-endpoint=127.0.0.1:%d" % port, "--local-addr=127.0.0.1", "--grace=2s",
            "--hang=%gs" % self.hang, "--verdict", self.verdicts[i]] + list(options) +
            [WORKER, directory, ",".join(ways), str(victim)], directory) for i in range(2)]

    def said(self):
        """What the victims said: the way, its process and the time; or that it is done."""
        try:
            with open(self.said_path) as file:
                return [line.split() for line in file]
        except FileNotFoundError:
            return []

    def told(self, agent):
        return TOLD.findall(self.agents[agent].said())

    def wait(self, condition, what):
        def over():
            return condition() or any(a.process.poll() is not None for a in self.agents)
        wait_until(over, what, patience=PATIENCE, step=0.02)

    def text(self):
        return "\n".join(a.said() for a in self.agents)

    def end(self):
        codes = wait_for(self.agents)
        return codes


def release(way, pid):
    os.kill(pid, signal.SIGCONT if way == "hang_stop" else signal.SIGUSR1)


def check_told(checks, line, victim, place, what):
    checks.ok(re.search(r"rank %d \(\S+\) is missing" % victim, line), what + ": names rank %d" % victim,
              line)
    checks.ok(re.search(r"rank %d (stopped )?in " % victim, line) and " at hang_worker.py:%d;" % place in line + ";",
              what + ": names line %d" % place, line)


def run_hangs(checks, victim):
    """Ways that end when the test has seen enough."""
    ways = [w for w in HANGS if option("only", "") in w]
    places = dict(lines_of(), teardown=lines_of()["sleep"])
    with Scratch() as directory:
        job = Job(directory, ways, victim)
        try:
            for i, way in enumerate(ways):
                job.wait(lambda: len(job.said()) > 2 * i, "%s begins" % way)
                began = job.said()[2 * i]
                job.wait(lambda: all(len(job.told(a)) > i for a in range(2)), "%s is told" % way)
                checks.note("%s of rank %d: told after %.1f s" % (way, victim,
                                                                  time.time() - float(began[2])))
                for agent in range(2):
                    check_told(checks, job.told(agent)[i], victim, places[way[5:]],
                               "%s, agent %d" % (way, agent))
                release(way, int(began[1]))
                if way == "hang_teardown":
                    break  # The workers end.
                job.wait(lambda: job.text().count("the run moves again") >= 2 * (i + 1),
                         "%s is over" % way)
            checks.equal(job.end(), [0, 0], "hangs of rank %d: the job goes on, and ends well" % victim)
            if not checks.equal([len(job.told(a)) for a in range(2)], [len(ways)] * 2,
                                "hangs of rank %d: each is told once" % victim):
                checks.note(job.text())
        except AssertionError as error:
            checks.ok(False, "hangs of rank %d" % victim, "%s\n%s" % (error, job.text()))
        finally:
            for agent in job.agents:
                agent.kill()


def run_busy(checks, victim):
    ways = [w for w in BUSY if option("only", "") in w]
    with Scratch() as directory:
        job = Job(directory, ways, victim)
        codes = job.end()
        checks.equal(codes, [0, 0], "busy rank %d: the job ends well" % victim)
        checks.equal([job.told(a) for a in range(2)], [[], []], "busy rank %d: nothing is said" % victim)
        if codes != [0, 0]:
            checks.note(job.text())


def run_stuck(checks, victim):
    """Ways that end only because the watchdog ends the worker."""
    ways = [w for w in STUCK if option("only", "") in w]
    places = lines_of()
    with Scratch() as directory:
        job = Job(directory, ways, victim, "--hang-action=restart", "--max-restarts=%d" % len(ways))
        codes = job.end()
        checks.equal(codes, [0, 0], "stuck rank %d: the job ends well after the restarts" % victim)
        if codes != [0, 0]:
            checks.note(job.text())
        for agent in range(2):
            told = job.told(agent)
            if not told and agent == 1 - victim // job.workers:
                continue  # The round may end before an agent has heard why.
            for i, way in enumerate(ways[:len(told)]):
                check_told(checks, told[i], victim, places[way], "%s, agent %d" % (way, agent))
        restarts = job.text().count("is ended because the run hangs")
        checks.equal(restarts, len(ways), "stuck rank %d: one restart each" % victim)


def run_verdict(checks, victim):
    """No restart is left: the verdict of both nodes says what hung, and the stacks are in it."""
    with Scratch() as directory:
        job = Job(directory, ["skip"], victim, "--hang-action=restart")
        checks.equal(job.end(), [1, 1], "verdict: the job fails")
        for path in job.verdicts:
            with open(path) as file:
                verdict = json.load(file)
            first = verdict["first_failure"]
            checks.ok(first and first["rank"] == victim and
                      "the watchdog ended it: no rank has made progress" in first["cause"],
                      "verdict: the missing rank failed first, and why", first)
            if first and first["here"]:
                hang = verdict["hang"]
                checks.ok(hang and hang["missing"] == str(victim) and hang["missing_count"] == 1 and
                          "hang_worker.py" in hang["stacks"], "verdict: the hang with its stacks", hang)


def main():
    checks = Checks()
    world = 2 * option("workers", 2)
    only = option("only", "")
    runs = [(run_hangs, HANGS), (run_busy, BUSY), (run_stuck, STUCK), (run_verdict, ["skip"])]
    for seed in range(option("first", 0), option("first", 0) + option("seeds", 1)):
        threads = [threading.Thread(target=run, args=(checks, (seed * 3 + i + 1) % world))
                   for i, (run, ways) in enumerate(runs) if any(only in way for way in ways)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    checks.done()


if __name__ == "__main__":
    main()
