#!/usr/bin/python3
"""A worker that holds up whoever reads its memory (stacks_held.c), among others: the agent goes on,
tells that the job hangs and who is missing, answers `muster stacks`, and ends when it is told to. And
`muster stacks --pid` gives up on such a process.

usage: stacks_held.py path/to/muster path/to/stacks_held
"""
import os
import re
import signal
import subprocess
import sys
import time

from lib import SKIP, Checks, Scratch, die_with_parent, free_port, muster_path, run_muster, wait_until
from run_ddp import Agent, wait_for

HELD = os.path.abspath(sys.argv[2])
RANKS = 4
VICTIM = 2
WORKER = """#!/bin/sh
[ $RANK = %d ] && exec %s
exec %s -c '
import time
def wait_for_others():
    time.sleep(1000)
wait_for_others()'
""" % (VICTIM, HELD, sys.executable)
TOLD = re.compile(r"no rank has made progress for \d+ s: (.*)")


def test_pid(checks):
    with subprocess.Popen([HELD], stdout=subprocess.PIPE, preexec_fn=die_with_parent) as held:
        if held.stdout.readline() != b"ready\n":
            print("skipped: page faults cannot be held up here", flush=True)
            sys.exit(SKIP)
        try:
            look_at(checks, held.pid)
        finally:
            held.kill()


def look_at(checks, pid):
    code, _, why = run_muster("stacks", "--pid", str(pid))
    checks.equal((code, why), (1, "muster: process %d could not be looked at in time\n" % pid),
                 "--pid gives up")
    look = subprocess.Popen([muster_path(), "stacks", "--pid", str(pid)], stderr=subprocess.DEVNULL)
    wait_until(lambda: "handle_userfault" in whereabouts(look.pid), "it is held up")
    look.send_signal(signal.SIGTERM)
    checks.equal(look.wait(60), 128 + signal.SIGTERM, "--pid ends when it is told to")


def whereabouts(pid):
    """Where the threads of a process are in the kernel."""
    places = []
    for tid in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/wchan" % (pid, tid), encoding="utf-8") as file:
            places.append(file.read())
    return places


def test_run(checks):
    with Scratch() as directory:
        endpoint = "127.0.0.1:%d" % free_port()
        worker = os.path.join(directory, "worker")
        with open(worker, "w", encoding="utf-8") as file:
            file.write(WORKER)
        os.chmod(worker, 0o755)
        agent = Agent([muster_path(), "run", "--nnodes=1", "--nproc-per-node=%d" % RANKS, "--rdzv-id=held",
                       "--rdzv-endpoint=" + endpoint, "--local-addr=127.0.0.1", "--hang=2s", "--grace=2s",
                       "--no-python", worker], directory)
        try:
            wait_until(lambda: TOLD.search(agent.said()), "the hang is told")
            told = TOLD.search(agent.said()).group(1)
            checks.ok("rank %d (" % VICTIM in told and "is missing" in told, "the rank is named", told)
            checks.ok("3 ranks in wait_for_others at" in told, "and where the others are", told)
            began = time.monotonic()
            _, out, why = run_muster("stacks", "--rdzv-endpoint", endpoint)
            out = out.decode()
            checks.ok("rank %d not in Python code that could be read: " % VICTIM in out and
                      "3 ranks (0,1,3) in wait_for_others" in out, "muster stacks is answered", out + why)
            checks.note("answered after %.1f s" % (time.monotonic() - began))
            checks.equal(len(TOLD.findall(agent.said())), 1, "the hang is told once")
            agent.process.send_signal(signal.SIGTERM)
            checks.equal(wait_for([agent], 60), [1], "the agent ends when it is told to")
        except AssertionError as error:
            checks.ok(False, "a run with such a worker", "%s\n%s" % (error, agent.said()))
        finally:
            agent.kill()


def main():
    checks = Checks()
    test_pid(checks)
    test_run(checks)
    checks.done()


if __name__ == "__main__":
    main()
