#!/usr/bin/python3
"""`muster stacks` without an endpoint: the workers of `muster run` on this machine, found by their
processes. Jobs with any backend, several at once, with processes of their own, and warm ones.

    stacks_local.py [MUSTER] [--only=NAME]
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid

from lib import Checks, die_with_parent, free_port, muster_path, wait_until

MUSTER = muster_path()
checks = Checks()

WORKER = """
import os, subprocess, sys, time

def helper():
    subprocess.run(["sleep", "1000"])

def forward():
    time.sleep(1000)

helper() if os.environ["RANK"] == "2" else forward()
"""


def stacks(*options):
    done = subprocess.run([MUSTER, "stacks", *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextlib.contextmanager
def job(*options, script=()):
    """Three workers of a Python script of ours, or of another command; the path of the script, by which their page
    is found."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as ours, tempfile.TemporaryFile() as log:
        ours.write(WORKER)
        ours.flush()
        agent = subprocess.Popen([MUSTER, "run", "--nproc-per-node", "3", *options, *(script or [ours.name])],
                                 stdout=log,
                                 stderr=log, preexec_fn=die_with_parent,
                                 env=dict(os.environ, PYTHON_EXEC=sys.executable))
        try:
            yield ours.name
        finally:
            agent.terminate()
            agent.wait()


def page(script):
    """Of all runs on this machine, the one with this script; None: it is not there."""
    for line in stacks("--json")[1].splitlines():
        found = json.loads(line)
        files = {frame["file"] for group in found["groups"] for frame in group.get("frames", [])}
        if script in files:
            return found
    return None


def functions(script):
    """{function of the worker's script: ranks}"""
    return {group["frames"][-2]["function"]: group["ranks"] for group in (page(script) or {"groups": []})["groups"]
            if len(group.get("frames", [])) > 1}


def await_workers(script, what):
    """Until they are where they stay; the id of their run."""
    expected = {"helper": "2", "forward": "0,1"}
    try:
        wait_until(lambda: functions(script) == expected, what, 60, 0.2)
    except AssertionError:
        pass
    checks.equal(functions(script), expected, what)
    return (page(script) or {"run_id": "?"})["run_id"]


def test_standalone():
    with job("--standalone") as script:
        run_id = await_workers(script, "the workers, and no other processes of theirs")
        code, out, _ = stacks("--rdzv-id", run_id)
        lines = out.splitlines() + ["", ""]
        checks.equal(code, 0, "all were printed")
        checks.equal(lines[0], "run %s, round 0: 3 workers on this machine" % run_id, "of which run they are")
        checks.ok(lines[1].startswith("rank 2 in "), "the odd one first", out)
        code, out, _ = stacks("--rdzv-id", run_id, "--all-threads")
        checks.equal((code, out.count("\nprocess ")), (0, 3), "all threads of all workers")


def test_two_runs():
    with job("--standalone") as one, job("--rdzv-backend", "c10d", "--rdzv-id", uuid.uuid4().hex, "--rdzv-endpoint",
                                         "127.0.0.1:%d" % free_port()) as two:
        ids = [await_workers(script, "each run by itself") for script in (one, two)]
        code, out, _ = stacks()
        checks.ok(code == 0 and all("run %s," % run_id in out for run_id in ids), "both, one after the other", out)


def test_same_id():
    """Two jobs without an id are both called "none", and have the same ranks."""
    with job() as one, job() as two:
        for script in (one, two):
            await_workers(script, "both are called none")
        files = {frame["file"] for group in page(one)["groups"] for frame in group["frames"]}
        checks.ok(two not in files, "each is shown by itself", files)


def test_agents_of_one_job():
    """What several agents of this machine have is one job."""
    where = ["--nnodes", "2", "--rdzv-id", uuid.uuid4().hex, "--rdzv-endpoint", "127.0.0.1:%d" % free_port()]
    expected = ["0,1", "2", "3-5"]

    def ranks(script):
        return sorted(group["ranks"] for group in (page(script) or {"groups": []})["groups"])

    with job(*where) as one, job(*where) as two:
        try:
            wait_until(lambda: ranks(one) == expected, "the workers of both agents", 60, 0.2)
        except AssertionError:
            pass
        checks.equal([ranks(one), ranks(two)], [expected] * 2, "the workers of two agents are one job")


def test_warm():
    """Workers that were standbys, and standbys that are no workers."""
    with job("--standalone", "--warm=json", "--max-restarts", "1") as script:
        run_id = await_workers(script, "beside standbys")
        code, out, err = stacks("--rdzv-id", run_id, "--all-threads", "--json")
        first = json.loads(out)["processes"][0] if code == 0 else {"pid": 0, "note": err}
        os.kill(first["pid"], signal.SIGKILL)
        wait_until(lambda: (page(script) or {"round": 0})["round"] == 1, "the next round", 60, 0.2)
        await_workers(script, "standbys that became workers")


def test_shell_script():
    """A worker that is a script of the shell, which has started the interpreter."""
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as shell, tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(WORKER)
        script.flush()
        shell.write('%s %s\ntrue\n' % (sys.executable, script.name))
        shell.flush()
        with job("--standalone", "--no-python", script=["sh", shell.name]):
            await_workers(script.name, "the interpreter that a script of the shell has started")


def test_no_worker():
    run_id = "nobody-" + uuid.uuid4().hex
    code, out, err = stacks("--rdzv-id", run_id)
    checks.ok(code == 1 and out == "" and "no worker of run \"%s\" is on this machine" % run_id in err,
              "there is none", (code, out, err))


def test_other_backends():
    code, _, err = stacks("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:1")
    checks.ok(code == 2 and "on each of its nodes" in err, "a backend without a server: what to do", err)


def test_other_server():
    """The run is c10d's, and its server a muster: nobody can be asked there."""
    port = free_port()
    with job("--rdzv-backend", "c10d", "--rdzv-id", uuid.uuid4().hex, "--rdzv-endpoint",
             "127.0.0.1:%d" % port) as script:
        await_workers(script, "another backend: on the node itself")
        code, _, err = stacks("--rdzv-endpoint", "127.0.0.1:%d" % port)
        checks.ok(code in (4, 7) and "without --rdzv-endpoint" in err, "another backend: what to do", (code, err))


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
