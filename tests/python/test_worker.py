#!/usr/bin/python3
"""The worker's side of `muster run`: what it can ask, and what it tells; and the same without an
agent, in children, and after the agent has gone."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from typing import Any, Dict, List

import harness

checks = harness.checks

HEAD = """
import json, os, sys, time
from muster import worker
def say(**what):
    path = os.path.join(sys.argv[1], "%s-%d" % (os.environ.get("RANK", "x"), os.getpid()))
    with open(path + ".part", "a") as file:
        file.write(json.dumps(what) + "\\n")
"""


class Job:
    """Agents of `muster run` with a script of ours, and what its workers wrote."""

    def __init__(self, script: str, nodes: str = "1", *options: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.script = os.path.join(self.folder.name, "script.py")
        self.notes = os.path.join(self.folder.name, "notes")
        os.mkdir(self.notes)
        with open(self.script, "w") as file:
            file.write(HEAD + script)
        self.command = [
            harness.MUSTER, "run", "--nnodes", nodes, "--rdzv-id", "job", "--rdzv-endpoint",
            f"127.0.0.1:{harness.free_port()}", *options,
        ]  # fmt: skip
        self.agents: List["subprocess.Popen[str]"] = []

    def start(self, *options: str) -> "subprocess.Popen[str]":
        env = dict(harness.ENVIRONMENT, PYTHON_EXEC=sys.executable)
        agent = subprocess.Popen(
            [*self.command, *options, self.script, self.notes], env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, universal_newlines=True,
            preexec_fn=harness.lib.die_with_parent,
        )  # fmt: skip
        self.agents.append(agent)
        return agent

    def finish(self) -> List[int]:
        codes = []
        for agent in self.agents:
            try:
                self.said = agent.communicate(timeout=harness.PATIENCE)[0]
            except subprocess.TimeoutExpired:
                agent.kill()
                self.said = agent.communicate()[0]
            codes.append(agent.returncode)
        return codes

    def told(self) -> List[Dict[str, Any]]:
        lines = []
        for name in sorted(os.listdir(self.notes)):
            with open(os.path.join(self.notes, name)) as file:
                lines += [json.loads(line) for line in file if line.endswith("\n")]
        return lines

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
                agent.communicate()
        self.folder.cleanup()


def test_ranks_store_and_peers() -> None:
    script = """
with worker.store() as store:
    total = store.add("sum", worker.rank())
    store.barrier("added", worker.world_size())
    say(under=worker.running_under_muster(), rank=worker.rank(), world=worker.world_size(),
        local=worker.local_rank(), locals=worker.local_world_size(), node=worker.node_rank(),
        nodes=worker.node_count(), run=worker.run_id(), round=worker.round(),
        restarts=worker.restart_count(), most=worker.max_restarts(), grace=worker.grace(),
        sum=store.add("sum", 0), peers=worker.peers())
    store.barrier("read", worker.world_size())
"""
    with Job(script, "2", "--nproc-per-node", "2", "--max-restarts", "3", "--grace", "7") as job:
        job.start()
        job.start()
        checks.equal(job.finish(), [0, 0], "two agents with two workers each")
        told = sorted(job.told(), key=lambda t: t["rank"])
    if not checks.equal([t["rank"] for t in told], [0, 1, 2, 3], "ranks"):
        checks.note(job.said)
        return
    checks.equal(
        [(t["node"], t["local"]) for t in told], [(0, 0), (0, 1), (1, 0), (1, 1)], "places"
    )
    same = {
        k: {t[k] for t in told}
        for k in (
            "under",
            "world",
            "locals",
            "nodes",
            "run",
            "round",
            "restarts",
            "most",
            "grace",
            "sum",
        )
    }
    checks.equal(
        same,
        {"under": {True}, "world": {4}, "locals": {2}, "nodes": {2}, "run": {"job"}, "round": {0},
         "restarts": {0}, "most": {3}, "grace": {7.0}, "sum": {6}}, "what is the same for all",
    )  # fmt: skip
    peers = told[0]["peers"]
    checks.equal([p[:3] for p in peers], [[0, 0, 0], [1, 0, 1], [2, 1, 0], [3, 1, 1]], "peers")
    checks.equal({p[3] for p in peers}, {socket.gethostname()}, "their hosts")
    checks.equal(len({p[4] for p in peers}), 4, "their processes")


CHANGES = """
import asyncio, multiprocessing, subprocess, threading
how = os.environ["HOW"]
say(first=worker.change_due(), round=worker.round(), world=worker.world_size())
if how == "fork":
    if os.fork() == 0:
        while True:  # must not read what is the worker's
            worker.change_due()
            worker.saved()
            time.sleep(0.001)
if how == "spawn":
    program = ("import time\\nfrom muster import worker\\n"
               "while True: worker.change_due(); time.sleep(0.001)")
    subprocess.Popen([sys.executable, "-c", program])
if worker.world_size() == 2:
    sys.exit(0)
def saved(left):
    say(left=left, again=how == "callback" or worker.change_due() is not None)
    worker.saved()
    say(after=worker.change_due())
if how == "callback":
    worker.on_change(saved)
    time.sleep(100)
elif how == "await":
    saved(asyncio.run(worker.change()))
    time.sleep(100)
elif how == "wait":
    say(early=worker.wait_for_change(0.05))
    saved(worker.wait_for_change())
    time.sleep(100)
step = 0
while True:
    worker.step(step)
    step += 1
    left = worker.change_due()
    if left is not None:
        saved(left)
        time.sleep(100)
    time.sleep(0.01)
"""


def test_a_change_is_told() -> None:
    for how in ("poll", "callback", "await", "wait", "fork", "spawn"):
        os.environ["HOW"] = harness.ENVIRONMENT["HOW"] = how
        with Job(CHANGES, "1:2", "--upscale-delay", "0.1") as job:
            job.start()
            harness.wait_until(lambda: any("first" in t for t in job.told()), "it runs")
            time.sleep(0.3)  # a change that comes at once would not find the callback or the waiter
            began = time.monotonic()
            job.start()
            codes = job.finish()
            took = time.monotonic() - began
            told = job.told()
        checks.equal(codes, [0, 0], f"{how}: the job ends well")
        left = [t for t in told if "left" in t]
        checks.equal(len(left), 1, f"{how}: the worker that was there is told, once")
        checks.ok(left and 0 < left[0]["left"] <= 60, f"{how}: how long it has", left)
        checks.ok(left and left[0]["again"], f"{how}: it is due until it is saved")
        # The agent may stop it before it says this.
        after = [t["after"] for t in told if "after" in t]
        checks.ok(after in ([], [None]), f"{how}: then not any more", after)
        checks.ok(took < 20, f"{how}: nobody waits once it is saved: {took:.1f} s")
        checks.equal(
            sorted({(t["round"], t["world"]) for t in told if "first" in t}), [(0, 1), (1, 2)],
            f"{how}: the rounds",
        )  # fmt: skip


def test_steps_are_shown() -> None:
    port = harness.free_port()
    script = "\nfor n in range(1000):\n    worker.step(n)\n    time.sleep(0.02)\n"
    with Job(script, "1", "--http", f"127.0.0.1:{port}") as job:
        job.start()

        def shown() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as page:
                    lines = page.read().decode().splitlines()
            except OSError:
                return False
            return any("step" in line and not line.startswith("#") for line in lines)

        harness.wait_until(shown, "the agent's metrics have steps")
        checks.ok(True, "the agent's metrics have steps")


def test_without_an_agent() -> None:
    program = """
import asyncio
from muster import worker
assert not worker.running_under_muster()
print(worker.rank(), worker.world_size(), worker.local_rank(), worker.node_rank(),
      worker.round(), worker.restart_count(), worker.max_restarts(), repr(worker.run_id()))
worker.step(1); worker.saved(); worker.on_change(print)
print(worker.change_due(), worker.wait_for_change(0.05))
with worker.store() as store:
    store.set("a", "b")
    store.barrier("alone", worker.world_size())
    print(store.get("a"), [p[:3] for p in worker.peers()])
try:
    worker.step(-1)
except ValueError as error:
    print(error)
"""
    ended = harness.run(program)
    checks.equal(ended.out.splitlines(), [
        "0 1 0 0 0 0 0 ''", "None None", "b'b' [(0, 0, 0)]",
        "a step has a number of 0 or more: not -1",
    ], "everything works, and does nothing")  # fmt: skip


def test_a_descriptor_of_something_else() -> None:
    program = "from muster import worker\nworker.step(1)\nprint(worker.change_due())"

    def run(fd: int) -> bytes:
        return subprocess.run(
            [sys.executable, "-c", program],
            env=dict(harness.ENVIRONMENT, MUSTER_NOTIFY_FD=str(fd)),
            pass_fds=[fd] if fd > 2 and fd != 999 else [], stdout=subprocess.PIPE,
        ).stdout  # fmt: skip

    checks.equal(run(999), b"None\n", "a descriptor that is not open")
    checks.equal(run(1), b"None\n", "nothing is written to standard output")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with socket.create_connection(listener.getsockname()) as client:
            other, _ = listener.accept()
            checks.equal(run(client.fileno()), b"None\n", "a connection to somewhere")
            client.close()
            checks.equal(other.recv(100), b"", "nothing is written there")
            other.close()
    # This process is the parent: a pair of its own is as an agent's.
    ours, theirs = socket.socketpair()
    with ours, theirs:
        checks.equal(run(theirs.fileno()), b"None\n", "a pair of the parent's")
        ours.setblocking(False)
        checks.equal(ours.recv(100), b"step 1\nnotify\n", "is taken for the agent's")


STRANGER = """
import socket, sys
ours = socket.socket(socket.AF_UNIX)
ours.bind("\\0" + sys.argv[1])
ours.listen()
print("listens", flush=True)
print(ours.accept()[0].recv(100), flush=True)
"""


def test_a_socket_of_a_stranger() -> None:
    """The number may belong to a socket such as an agent has, but whose other end is with a process
    that is not above this one, or with this one itself."""
    program = """
import os, socket, sys
from muster import worker
if sys.argv[1:]:
    ours, theirs = socket.socketpair()
    os.environ["MUSTER_NOTIFY_FD"] = str(theirs.fileno())
worker.step(1)
print(worker.change_due())
if sys.argv[1:]:
    theirs.close()
    print(ours.recv(100))
"""
    name = f"muster-test-{os.getpid()}"
    stranger = harness.start(STRANGER, name)
    assert stranger.stdout is not None and stranger.stdout.readline() == "listens\n"
    with socket.socket(socket.AF_UNIX) as to_stranger:
        to_stranger.connect("\0" + name)
        got = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE,
            env=dict(harness.ENVIRONMENT, MUSTER_NOTIFY_FD=str(to_stranger.fileno())),
            pass_fds=[to_stranger.fileno()],
        )  # fmt: skip
    checks.equal(got.stdout, b"None\n", "a socket of a stranger's is not asked")
    checks.equal(harness.finish(stranger).out, "b''\n", "and the stranger is told nothing")
    ended = harness.run(program, "own")
    checks.equal(ended.out, "None\nb''\n", "neither is a pair of the process's own")


CHILDREN = """
import multiprocessing, os, sys
def child(out):
    from muster import worker
    worker.step(7)
    worker.saved()
    out.put(worker.wait_for_change(0.3))
def main():
    how, when = sys.argv[1:]
    if when == "after":
        from muster import worker
        worker.step(1)
    context = multiprocessing.get_context(how)
    out = context.Queue()
    process = context.Process(target=child, args=(out,))
    process.start()
    print(out.get())
    process.join()
    from muster import worker
    print(worker.wait_for_change(5) is not None, process.exitcode)
if __name__ == "__main__":
    main()
"""


def test_children_leave_it_alone() -> None:
    """The worker of a DataLoader has the worker's descriptor after a fork, and an agent above it,
    too; what the agent says is not for it, and it says nothing."""
    with tempfile.TemporaryDirectory() as folder:
        script = os.path.join(folder, "children.py")  # a spawned child imports it
        with open(script, "w") as file:
            file.write(CHILDREN)
        for how in ("fork", "spawn", "forkserver"):
            for when in ("before", "after"):
                ours, theirs = socket.socketpair()
                with ours:
                    with theirs:
                        ours.sendall(b"change 60000\n")
                        got = subprocess.run(
                            [sys.executable, script, how, when], stdout=subprocess.PIPE,
                            env=dict(harness.ENVIRONMENT, MUSTER_NOTIFY_FD=str(theirs.fileno())),
                            pass_fds=[theirs.fileno()], timeout=harness.PATIENCE,
                        )  # fmt: skip
                    heard = ours.makefile("rb").read()
                what = f"{how}, {when} the worker has begun to talk"
                checks.equal(got.stdout, b"None\nTrue 0\n", f"{what}: the worker hears it")
                expected = b"notify\n" if when == "before" else b"step 1\nnotify\n"
                checks.equal(heard, expected, f"{what}: and it alone speaks")


if __name__ == "__main__":
    harness.main(globals())
