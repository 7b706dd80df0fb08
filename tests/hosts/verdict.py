#!/usr/bin/python3
"""What a user reads when a job on two hosts fails, on every host and on the server's page: who failed
first, where, and why; which rank hung while the others timed out; that the kernel had no memory left,
and under which limit; which interpreter found no module; where the log files are.

    verdict.py [MUSTER] [--only=TEXT]
"""
import json
import os
import re

from drill import make_token
from rig import Checks, Rig, muster_path

MUSTER = muster_path()
PYTHON = "/usr/bin/python3"
PATIENCE = 120  # seconds; PyTorch takes its time to be imported
checks = Checks()

HANG = """
import datetime, os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 3:
    print("rank 3 thinks", flush=True)
    time.sleep(1000)
dist.all_reduce(torch.ones(1))
"""

# Takes all the memory that there is, once the others are there.
GREEDY = """
import os, time
time.sleep(0.5)
hoard = []
while os.environ["RANK"] == "3":
    hoard.append(b"x" * (8 << 20))
time.sleep(1000)
"""

IMPORT = """
import os, time
if os.environ["RANK"] == "2":
    import a_module_that_nobody_has
time.sleep(1000)
"""

RECOVERS = """
import os, sys, time
attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
if attempt + rank in ("01", "12"):
    print("rank %s gives up" % rank, flush=True)
    sys.exit(int(attempt) + 7)
time.sleep(1000)
"""

FETCH = """
import sys, urllib.request
request = urllib.request.Request("http://127.0.0.1:8080/status.json")
request.add_header("Authorization", "Bearer " + sys.argv[1])
print(urllib.request.urlopen(request).read().decode())
"""


class Job:
    """A server on node2, and two nodes with two workers each on node0 and node1."""

    def __init__(self, rig, script, *options, memory=None, env=None):
        credential = make_token(rig)
        path = os.path.join(rig.path, "worker.py")
        with open(path, "w") as file:
            file.write(script)
        self.last = rig.hosts[2]
        self.key = self.last.must_run(MUSTER, "keygen", "page", credential["node2"][1]).strip()
        self.server = self.last.start(MUSTER, "serve", "--listen", "0.0.0.0:29400", "--http",
                                      "127.0.0.1:8080", *credential["node2"])
        self.server.says("29400")
        self.nodes = [
            host.start(MUSTER, "run", "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-endpoint",
                       "node2:29400", "--rdzv-id", "job7", "--verdict",
                       os.path.join(rig.path, host.name + ".json"), *credential[host.name], *options,
                       path, memory=memory if host.number == 1 else None,
                       env=dict({"PYTHON_EXEC": PYTHON}, **(env or {})))
            for host in rig.hosts[:2]]
        self.verdict_paths = [os.path.join(rig.path, host.name + ".json") for host in rig.hosts[:2]]

    def end(self, what):
        """Waits for the end of both nodes; what they said, and their verdicts."""
        codes = [node.wait(PATIENCE) for node in self.nodes]
        self.said = [node.output() for node in self.nodes]
        if not checks.equal(codes, [1, 1], what + ": both nodes end with 1"):
            checks.note("\n".join(self.said))
        self.verdicts = []
        for path in self.verdict_paths:
            with open(path) as file:
                self.verdicts.append(json.load(file))

    def all_say(self, pattern, what):
        for i, said in enumerate(self.said):
            checks.ok(re.search(pattern, said), "%s: node %d says so" % (what, i), said)

    def page(self):
        """The run, as the server's page has it."""
        code, out, err = self.last.run(PYTHON, "-c", FETCH, self.key)
        assert code == 0, err
        return next(run for run in json.loads(out)["runs"] if run["id"] == "job7")


def place_of(job, rank):
    """The name of the host that had this rank: ranks follow the order of the nodes' names."""
    return next(v["host"] for v in job.verdicts if any(w["rank"] == rank for w in v["workers"]))


def check_first(job, what, rank, code):
    """All agents and the page name this rank as the first to fail."""
    for i, verdict in enumerate(job.verdicts):
        first = verdict["first_failure"] or {}
        checks.equal((first.get("rank"), first.get("exit_code"), first.get("host")),
                     (rank, code, place_of(job, rank)), "%s: node %d knows the first failure" % (what, i))
    job.all_say(r"first failure: rank %d \(local rank %d\) on %s" % (rank, rank % 2, place_of(job, rank)),
                what)
    run = job.page()
    failure = run.get("failure") or {}
    checks.equal((failure.get("rank"), failure.get("exit_code"), failure.get("host")),
                 (rank, code, place_of(job, rank)), what + ": the server's page knows it")
    return failure


def test_hang():
    """The one that hangs has not failed, and is to blame. Others may be about to end just then."""
    with Rig(3) as rig:
        job = Job(rig, HANG)
        job.end("a hang")
        host = place_of(job, 3)
        job.all_say(r"still running then, perhaps hung: .*rank 3 \(local rank 1\) on %s\n" % host,
                    "a hang")
        for verdict in job.verdicts:
            running = [(w["rank"], w["host"]) for w in verdict["still_running"]]
            checks.ok((3, host) in running, "a hang: the verdict has it", running)
            checks.ok(verdict["first_failure"]["effect"], "a hang: what failed complains of others")


def test_memory():
    with Rig(3) as rig:
        job = Job(rig, GREEDY, memory=160 << 20)
        job.end("no memory")
        checks.ok(place_of(job, 3) == "node1", "no memory: rank 3 is on node1", job.verdicts)
        failure = check_first(job, "no memory", 3, -9)
        job.all_say(r"SIGKILL \(signal 9\)", "no memory: the signal")
        job.all_say(r"cause: +out of memory: the kernel killed it; the limit of the control group \S+ "
                    r"is 160 MiB", "no memory: the cause and the limit")
        checks.ok("160 MiB" in failure.get("cause", ""), "no memory: the page says it", failure)


def test_import():
    with Rig(3) as rig:
        venv = os.path.join(rig.path, "venv")
        job = Job(rig, IMPORT, env={"VIRTUAL_ENV": venv})
        job.end("an import")
        failure = check_first(job, "an import", 2, 1)
        job.all_say(r"an import failed in the interpreter %s, which PYTHON_EXEC names, not that of "
                    r"VIRTUAL_ENV \(%s\)" % (PYTHON, venv), "an import: the interpreter")
        checks.ok("a_module_that_nobody_has" in failure.get("last_lines", ""),
                  "an import: the page has the last lines", failure)


def test_recovered_from():
    """Rank 1 fails and is restarted; rank 2 ends the job. Every line that says so is there once."""
    with Rig(3) as rig:
        logs = os.path.join(rig.path, "logs")
        job = Job(rig, RECOVERS, "--max-restarts", "1", "--log-dir", logs, "--redirects", "3")
        job.end("a second failure")
        failure = check_first(job, "a second failure", 2, 8)
        job.all_say(r"log files: %s/\S+/attempt_1/0/stdout.log, \S+/stderr.log\n" % logs,
                    "a second failure: the log files")
        checks.equal((failure.get("round"), failure.get("restart_count")), (1, 1),
                     "a second failure: the page shows the last round's")
        checks.ok("rank 2 gives up" in failure.get("last_lines", ""),
                  "a second failure: with its last lines", failure)
        for said in job.said:
            ends = [line for line in said.replace("no restart is left, unless", "").splitlines()
                    if "no restart is left" in line or
                    "used up its" in line or "failed after" in line]
            checks.equal(len(ends), 1, "a second failure: the end is said once")


def test_refused():
    """A fatal error is printed once."""
    with Rig(2) as rig:
        credential = make_token(rig)
        run = [MUSTER, "run", "--rdzv-endpoint", "node0:29400", "--no-python"]
        first = rig.hosts[0].start(*run, "--nnodes", "1:2", *credential["node0"], "sleep", "1000")
        first.says("are running")
        code, out, err = rig.hosts[1].run(*run, "--nnodes", "1:3", *credential["node1"], "sleep", "1000")
        checks.equal(code, 1, "other numbers of nodes: refused")
        reasons = [line for line in err.splitlines() if "give all nodes the same" in line]
        checks.equal(len(reasons), 1, "other numbers of nodes: said once")
        checks.ok("ERROR after " in err, "other numbers of nodes: the verdict says it", err)


if __name__ == "__main__":
    checks.run_tests(globals())
    checks.done()
