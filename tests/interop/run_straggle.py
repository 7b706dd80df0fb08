#!/usr/bin/python3
"""Stragglers of `muster run`: four ranks on two agents train with DDP and gloo. One rank is slow
because its data is late: both agents name it, say so when it is over, and name nobody while the job
is healthy. Then other processes have the CPU of one rank: it is named, and why. With --stragglers off
nothing is said.

usage: run_straggle.py path/to/muster [--seeds=1] [--only=TEXT]
"""
import os
import re
import subprocess
import sys
import time

from browser import Browser
from lib import HERE, Checks, Scratch, free_port, muster_path, option, wait_until
from run_ddp import Agent, wait_for

WORKER = os.path.join(HERE, "straggle_worker.py")
NAMED = re.compile(r"muster: (.* keeps the others waiting: .*)")
OVER = re.compile(r"muster: (.* no longer keeps the others waiting)")
STEP = re.compile(r"step (\d+) loss")
PATIENCE = 120
checks = Checks()


class Job:
    def __init__(self, directory, how, slow_rank, *options):
        port = free_port()
        self.directory = directory
        self.agents = [Agent([
            muster_path(), "run", "--nnodes=2", "--nproc-per-node=2", "--rdzv-id=slow",
            "--rdzv-endpoint=127.0.0.1:%d" % port, "--local-addr=127.0.0.1", "--grace=2s", *options,
            WORKER, directory, how, str(slow_rank)], directory) for _ in range(2)]

    def touch(self, name):
        open(os.path.join(self.directory, name), "w").close()

    def found(self, pattern):
        return [pattern.findall(agent.said()) for agent in self.agents]

    def wait(self, condition, what):
        def come():
            return condition() or any(agent.process.poll() is not None for agent in self.agents)
        wait_until(come, what, patience=PATIENCE, step=0.1)

    def steps(self):
        return max([int(n) for said in self.found(STEP) for n in said] or [0])

    def end(self, what):
        self.touch("end")
        codes = wait_for(self.agents)
        if not checks.equal(codes, [0, 0], what + ": the job ends well"):
            checks.note("\n".join(agent.said() for agent in self.agents))

    def kill(self):
        for agent in self.agents:
            agent.kill()


def see_late(job, slow_rank, what):
    """The page of node 0 and `muster top` while a rank is slow."""
    node_0 = next(a for a in job.agents if "node 0 of 2" in a.said())
    page = re.search(r"status at (http://\S+)", node_0.said())[1]
    who = "rank %d on" % slow_rank
    with Browser(1200, 800) as browser:
        browser.open(page)
        wait_until(lambda: who in (browser.evaluate("document.body.innerText") or ""), "the page names it",
                   patience=PATIENCE)
        cells = browser.evaluate("[...document.querySelectorAll('.strip i')].map(i => i.title)")
        checks.equal([re.sub(r": .*", "", c) for c in cells], ["rank %d" % i for i in range(4)],
                     what + ": the page has a cell for each rank")
        shares = [int(re.sub(r".*: (\d+) %|.*", r"\1", c) or 0) for c in cells]
        checks.ok(shares.index(max(shares)) == slow_rank, what + ": and its cell is the darkest", cells)
        folder = option("shots", "") or os.path.join(os.path.dirname(muster_path()), "status-shots")
        os.makedirs(folder, exist_ok=True)
        browser.shoot(os.path.join(folder, "straggler.png"))
    top = subprocess.run([muster_path(), "top", "--once", page[len("http://"):].rstrip("/")],
                         stdout=subprocess.PIPE, universal_newlines=True)
    checks.ok(who in top.stdout and "keeps others waiting" in top.stdout, what + ": muster top shows it",
              top.stdout)


def run_late(slow_rank):
    what = "late data on rank %d" % slow_rank
    with Scratch() as directory:
        job = Job(directory, "late", slow_rank, "--stragglers=1s", "--http=127.0.0.1:0")
        try:
            job.wait(lambda: all(job.found(NAMED)), what)
            for agent, said in enumerate(job.found(NAMED)):
                checks.ok(said and re.match(r"rank %d on \S+ keeps the others waiting: \d+ %% of the last "
                                            r"(6|12|30) s" % slow_rank, said[0]),
                          "%s: agent %d names it" % (what, agent), said)
            see_late(job, slow_rank, what)
            job.touch("enough")
            job.wait(lambda: all(job.found(OVER)), what + " is over")
            steps = job.steps()
            job.wait(lambda: job.steps() > steps + 60, what + ": the job goes on")
            job.end(what)
            checks.equal([len(said) for said in job.found(NAMED)], [1, 1], what + ": it is said once")
            checks.equal([len(said) for said in job.found(OVER)], [1, 1], what + ": and that it is over")
        except AssertionError as error:
            checks.ok(False, what, "%s\n%s" % (error, "\n".join(a.said() for a in job.agents)))
        finally:
            job.kill()


def run_hog(slow_rank):
    what = "rank %d without its CPU" % slow_rank
    with Scratch() as directory:
        job = Job(directory, "hog", slow_rank, "--stragglers=1s", "--progress-regex=step ([0-9]+) loss")
        began = time.monotonic()
        try:
            job.wait(lambda: all(job.found(NAMED)), what)
            for agent, said in enumerate(job.found(NAMED)):
                checks.ok(said and said[0].startswith("rank %d on " % slow_rank) and
                          said[0].endswith(" % of the time others had its CPU"),
                          "%s: agent %d names it, and why" % (what, agent), said)
                checks.ok(said and re.search(r" s, in [1-9]\d* steps; ", said[0]),
                          "%s: the steps are counted by --progress-regex" % what, said)
            checks.note("%s: named after %.1f s" % (what, time.monotonic() - began))
            job.end(what)
        except AssertionError as error:
            checks.ok(False, what, "%s\n%s" % (error, "\n".join(a.said() for a in job.agents)))
        finally:
            job.kill()


def run_off(slow_rank):
    what = "--stragglers off"
    with Scratch() as directory:
        job = Job(directory, "sleep", slow_rank, "--stragglers=off")
        try:
            job.wait(lambda: job.steps() > 40, what)
            job.end(what)
            checks.equal(job.found(NAMED), [[], []], what + ": nobody is named")
        finally:
            job.kill()


def main():
    for seed in range(option("seeds", 1)):
        for i, (name, run) in enumerate([("late", run_late), ("hog", run_hog), ("off", run_off)]):
            if option("only", "") in name:
                run((seed + 2 + i) % 4)
    checks.done()


if __name__ == "__main__":
    sys.exit(main())
