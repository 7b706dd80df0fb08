#!/usr/bin/python3
"""NCCL's flight recorder, asked by the agents of `muster run`: eight workers on two agents, which do
with their recorders what PyTorch does (flight_worker.py). A hang names who has not entered which
collective, who entered another one or with other sizes, in one process group or the other; `muster
stacks` says the same. And workers that have something else in the place of their pipes and dumps.

usage: run_flight.py path/to/muster [--only=TEXT]
"""
import glob
import json
import os
import re
import subprocess
import sys
import time

from lib import HERE, Checks, Scratch, free_port, muster_path, option, wait_until
from run_ddp import Agent

WORKER = os.path.join(HERE, "flight_worker.py")
WORKERS, VICTIM = 4, 5
TOLD = re.compile(r"muster: (no rank has made progress for \d+ s: .*)")
SAYS = {
    "missing": "ranks 0-4,6,7 wait in all_reduce #41 of group default (train.py:81); rank 5 has not entered it",
    "order": "rank 5",
    "size": "rank 5",
    "spin": "rank 5 entered all_reduce #41 of group default with sizes",
    "group": "ranks 4,6,7 wait in all_reduce #9 of group tp",
}
ATTACKS = {
    "huge": "no dump of rank 5: its dump is too long",
    "garbage": "no dump of rank 5: its dump cannot be read: ",
    "cut": "no dump of rank 5: its dump cannot be read: ",
    "never": "no dump of rank 5: it was asked, but has not written a dump in time",
    "file": "no dump of rank 5: something else is in the place of its pipe",
    "link": "no dump of rank 5: something else is in the place of its pipe",
    "gone": "no dump of rank 5: nobody reads from its pipe",
}


class Job:
    """On a machine with much else to do, agents are slow: no node is lost for that (--detect), and
    `stacks` gives much more time than it takes, as a node that answers late would be left out."""

    def __init__(self, directory, what, *options, settings=()):
        self.endpoint = "127.0.0.1:%d" % free_port()
        self.verdict = os.path.join(directory, "verdict")
        self.agents = [Agent(["env", *settings,
            muster_path(), "run", "--nnodes=2", "--nproc-per-node=%d" % WORKERS, "--rdzv-id=flight",
            "--rdzv-endpoint=" + self.endpoint, "--local-addr=127.0.0.1", "--grace=2s", "--detect=60s",
            "--verdict=%s%d" % (self.verdict, i)] + list(options) +
            [WORKER, what, str(VICTIM), directory], directory) for i in range(2)]

    def said(self):
        return "\n".join(a.said() for a in self.agents)

    def stacks(self, *options):
        return subprocess.run([muster_path(), "stacks", "--rdzv-endpoint", self.endpoint] + list(options),
                              capture_output=True, text=True, timeout=60).stdout

    def end(self):
        for agent in self.agents:
            agent.process.terminate()
        for agent in self.agents:
            agent.process.wait(60)
            agent.kill()


def wait_for_workers(job):
    wait_until(lambda: job.said().count("started") == 2 * WORKERS, "the workers start", patience=60)


def run_hang(checks, what):
    """The whole way: the hang is told, with what the recorders say."""
    with Scratch() as directory:
        job = Job(directory, what, "--hang=2s", "--hang-action=stacks")
        try:
            wait_until(lambda: all(TOLD.search(a.said()) for a in job.agents), "%s is told" % what,
                       patience=90)
            line = TOLD.search(job.agents[0].said()).group(1)
            checks.ok("; " + SAYS[what] in line, what + ": the line says it", line)
            checks.ok(re.search(r"rank 5( \(\S+\))? is missing", line), what + ": names rank 5", line)
            checks.note(line)
            page = job.stacks("--timeout=30s")
            checks.ok("flight recorders of 8 ranks:\n  " + SAYS[what] in page, what + ": muster stacks says it",
                      page)
            checks.equal([len(TOLD.findall(a.said())) for a in job.agents], [1, 1],
                         what + ": to write dumps is not to go on")
        finally:
            job.end()
        with open(job.verdict + "0") as file:
            verdict = json.load(file)
        checks.ok(SAYS[what] in verdict["hang"]["text"] and SAYS[what] in verdict["hang"]["stacks"],
                  what + ": the verdict says it", verdict["hang"])
        pipes = [open(name).read() for name in glob.glob(os.path.join(directory, "pipe*"))]
        checks.equal((len(pipes), [name for name in pipes if os.path.lexists(name)]), (2 * WORKERS, []),
                     what + ": no pipe is left")


def run_attack(checks, what):
    with Scratch() as directory:
        job = Job(directory, what, "--hang=off")
        try:
            wait_for_workers(job)
            began = time.monotonic()
            page = job.stacks("--timeout=30s")
            checks.ok(ATTACKS[what] in page, what + ": is said", page)
            checks.ok("flight recorders of 7 ranks:" in page, what + ": the others are read", page)
            checks.note("%s: %.1f s" % (what, time.monotonic() - began))
            checks.ok(all(a.process.poll() is None for a in job.agents), what + ": the agents live")
        finally:
            job.end()


def run_settings(checks):
    """What the user has set is left alone, and used; with `off`, nothing is set."""
    with Scratch() as directory:
        stem = os.path.join(directory, "mine_")
        job = Job(directory, "missing", "--hang=off",
                  settings=["TORCH_NCCL_DEBUG_INFO_PIPE_FILE=" + stem, "TORCH_FR_DUMP_TEMP_FILE=" + stem,
                            "TORCH_FR_BUFFER_SIZE=50"])
        try:
            wait_for_workers(job)
            answer = json.loads(job.stacks("--timeout=30s", "--json"))
            checks.equal(answer["flights"]["dumps"], 8, "the user's own paths are used")
            checks.ok(answer["flights"]["findings"][0].startswith(SAYS["missing"]), "and compared", answer)
            checks.equal(len(glob.glob(stem + "*.pipe")), 8, "the pipes are where the user wants them")
        finally:
            job.end()
    out = subprocess.run([muster_path(), "run", "--flight-recorder=off", "--no-python", "env"],
                         capture_output=True, text=True, timeout=60).stdout
    checks.ok("RANK=0" in out and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in out and "PIPE_FILE" not in out,
              "off: nothing is set", out)


def main():
    checks = Checks()
    only = option("only", "")
    for what in SAYS:
        if only in what:
            run_hang(checks, what)
    for what in ATTACKS:
        if only in what:
            run_attack(checks, what)
    if only in "settings":
        run_settings(checks)
    checks.done()


main()
