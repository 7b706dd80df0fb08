"""Joining: the workers of a round agree on a version, whenever one of them is killed.

A round is some processes and a part of a store. The training is a chain of hashes, so that a state
that is torn, mixed or of another step than it says is seen at once.
"""

import contextlib
import hashlib
import json
import os
import random
import select
import signal
import sys
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

import harness
import muster
from muster import _kept, errors, state

checks = harness.checks
SIZE = 100_000
POINTS = harness.option("points", 8)


def next_of(weights: bytes, step: int) -> bytes:
    seed = hashlib.sha256(weights + str(step).encode()).digest()
    return (seed * (SIZE // 32 + 1))[:SIZE]


class Node(NamedTuple):
    """A node of a round: where it keeps its state, and how many workers it has."""

    directory: str
    workers: int = 1


class Worker:
    """A worker as a child of this process; what it says are JSON lines."""

    def __init__(self, pid: int, fd: int, rank: int, node: int) -> None:
        self.pid, self.fd, self.rank, self.node = pid, fd, rank, node
        self.text = b""
        self.code: Optional[int] = None

    def lines(self) -> List[Dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]


#: Functions between which a version is half written.
WRITING = ("write", "copy_many", "move_many", "_put_in_place", "_exchange")


def die_at(count: int) -> None:
    """Kills this process at the so-many-th call of a function in the module, or from it; with a
    negative number, at a call of one that writes."""
    left = [abs(count)]
    home = os.path.dirname(muster.__file__)

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "return" or not frame.f_code.co_filename.startswith(home):
            return
        if count > 0 or (event == "call" and frame.f_code.co_name in WRITING):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


def train(url: str, node: Node, place: Dict[str, int], steps: int, die: int, say: Any) -> None:
    tree: Dict[str, Any] = {"w": bytearray(os.urandom(SIZE)), "info": {"k": -1}}
    with muster.Store(url, timeout=30) as store:
        if die:
            die_at(die)
        joined = state.join(tree, store=store, directory=node.directory, timeout=30, run_id="x",
                            progress=False, **place)  # fmt: skip
        say("begin", step=joined.step, w=hashlib.sha256(tree["w"]).hexdigest(),
            k=tree["info"]["k"], source=joined.source)  # fmt: skip
        for step in joined.steps(joined.step + steps):
            if step == 0:
                tree["w"][:] = bytes(SIZE)  # the chain begins here
            tree["w"][:] = next_of(tree["w"], step)
            tree["info"]["k"] = step
        say("end", step=joined.step)
        if die:
            sys.setprofile(None)
            say("alive")


def start(url: str, nodes: List[Node], steps: int, victim: int = -1, die: int = 0) -> List[Worker]:
    workers: List[Worker] = []
    world = sum(it.workers for it in nodes)
    for i, node in enumerate(nodes):
        for local in range(node.workers):
            rank = len(workers)
            place = {"rank": rank, "world_size": world, "local_rank": local, "node": i,
                     "nodes": len(nodes)}  # fmt: skip
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    def say(what: str, **more: Any) -> None:
                        os.write(writing, json.dumps(dict(more, what=what)).encode() + b"\n")

                    train(url, node, place, steps, die if rank == victim else 0, say)
                    code = 0
                except BaseException as error:  # noqa: BLE001
                    with contextlib.suppress(Exception):
                        say("error", text=f"{type(error).__name__}: {error}")
                finally:
                    os._exit(code)
            os.close(writing)
            workers.append(Worker(pid, reading, rank, i))
    return workers


def finish(workers: List[Worker], patience: float = 40.0) -> None:
    """Waits for the workers; when one is killed the others are, too, as an agent does it."""
    end = time.monotonic() + patience
    open_fds = {it.fd: it for it in workers}
    while open_fds and time.monotonic() < end:
        for fd in select.select([*open_fds], [], [], 0.05)[0]:
            it = open_fds[fd]
            data = os.read(fd, 65536)
            it.text += data
            if not data:
                os.close(fd)
                del open_fds[fd]
                it.code = os.waitpid(it.pid, 0)[1]
                if it.code == signal.SIGKILL:
                    for other in open_fds.values():
                        os.kill(other.pid, signal.SIGKILL)
    for it in open_fds.values():
        os.kill(it.pid, signal.SIGKILL)
        os.waitpid(it.pid, 0)
        os.close(it.fd)
        it.code = -1


@contextlib.contextmanager
def world() -> Iterator[Any]:
    """A server, and a function that gives the store of the next round."""
    with harness.Server() as server, harness.Scratch() as scratch:
        counter = iter(range(10**6))

        def url() -> str:
            return f"{server.url}?prefix=round{next(counter)}"

        def node(workers: int = 1) -> Node:
            path = os.path.join(scratch, f"node{next(counter)}")
            os.mkdir(path)
            return Node(path, workers)

        yield url, node


def version(node: Node) -> int:
    found = _kept.Kept(node.directory, "model").version()
    return -1 if found is None else found.step


def chain(steps: int) -> List[str]:
    """The digests of the weights after each step; the first is for none."""
    weights, found = bytes(SIZE), [""]
    for step in range(steps):
        weights = next_of(weights, step)
        found.append(hashlib.sha256(weights).hexdigest())
    return found


CHAIN = chain(400)


def begun(workers: List[Worker]) -> List[Dict[str, Any]]:
    return [row for it in workers for row in it.lines() if row["what"] == "begin"]


def agree(workers: List[Worker], least: int) -> str:
    """What is wrong with the beginning of a round; "" if nothing is."""
    rows = begun(workers)
    if [it.code for it in workers] != [0] * len(workers) or len(rows) != len(workers):
        return "not all began: " + repr([(it.code, it.lines()) for it in workers])
    if len({(row["step"], row["w"]) for row in rows}) != 1:
        return "they differ: " + repr(rows)
    step = rows[0]["step"]
    if step < least:
        return f"a node had step {least}, but they began at {step}"
    if step and (rows[0]["w"] != CHAIN[step] or any(row["k"] != step - 1 for row in rows)):
        return f"step {step} is not what it says: {rows[0]}"
    return ""


def test_a_job_grows_and_shrinks() -> None:
    with world() as (url, node):
        a, b, c = node(2), node(), node()
        first = start(url(), [a, b], 3)
        finish(first)
        checks.equal(agree(first, 0), "", "without a state all begin with that of rank 0")
        checks.equal({row["source"] for row in begun(first)}, {"start"}, "and say so")
        checks.equal([version(a), version(b)], [3, 3], "each node keeps the last step")
        second = start(url(), [c, b, a], 2)
        finish(second)
        checks.equal(agree(second, 3), "", "a node with nothing gets it from the others")
        checks.equal([row["source"] for row in begun(second)], ["others", "kept", "kept", "kept"],
                     "only that one")
        third = start(url(), [c], 1)
        finish(third)
        checks.equal((agree(third, 5), version(c)), ("", 6), "and can go on alone")
        fourth = start(url(), [a, b, c], 1)
        finish(fourth)
        checks.equal(agree(fourth, 6), "", "who has an older version gets the newest")
        checks.equal([row["source"] for row in begun(fourth)], ["others"] * 3 + ["kept"],
                     "from the one that has it")


def attempt(url: Any, node: Any, nodes: List[Node], victim: int, die: int) -> "tuple[bool, str]":
    """A round in which one worker dies, and the next one: either with its node, or without it and
    with a newcomer. Returns whether it died, and what was wrong."""
    first = start(url(), nodes, 3, victim, die)
    finish(first)
    died = any(it.code == signal.SIGKILL for it in first)
    if not died:
        return False, agree(first, 0)
    lost = next(it for it in first if it.rank == victim).node
    left = [it for i, it in enumerate(nodes) if i != lost]
    for row in begun(first):
        if row["step"] and row["w"] != CHAIN[row["step"]]:
            return True, f"step {row['step']} is not what it says"
    if die % 2:
        left = [*nodes]
    best = max(version(it) for it in left)
    if not die % 2:
        nodes[:] = [*left, node()]
    random.shuffle(nodes)
    second = start(url(), nodes, 1)
    finish(second)
    return True, agree(second, max(best, 0))


def test_a_worker_is_killed_at_any_moment() -> None:
    random.seed(3)
    for victim, what in ((0, "rank 0"), (2, "another"), (1, "one that keeps nothing")):
        with world() as (url, node):
            nodes = [node(2), node(), node()]
            finish(start(url(), nodes, 2))
            # How many calls a whole run makes, found by doubling.
            most = 200
            wrong: List[str] = []
            deaths = 0
            died, text = True, ""
            while died and most < 100_000:
                died, text = attempt(url, node, nodes, victim, most)
                wrong += [f"call {most}: {text}"] if text else []
                deaths += died
                most = most * 2 if died else most
            for _ in range(POINTS):
                point = random.randrange(1, most)
                while len([it for it in nodes if it.workers == 2]) == 0 and victim == 1:
                    nodes[0] = Node(nodes[0].directory, 2)
                died, text = attempt(url, node, nodes, victim, point)
                wrong += [f"call {point}: {text}"] if text else []
                deaths += died
            checks.equal(wrong, [], f"{what} is killed {deaths} times, and the others agree")
            checks.ok(deaths >= 3, "(it was killed)", deaths)


def test_a_worker_is_killed_while_it_writes() -> None:
    with world() as (url, node):
        nodes = [node(), node()]
        finish(start(url(), nodes, 2))
        wrong: List[str] = []
        deaths = 0
        for call in range(1, 16):
            died, text = attempt(url, node, nodes, 0, -2 * call + 1)
            wrong += [f"call {call}: {text}"] if text else []
            deaths += died
        checks.equal(wrong, [], f"a keeper is killed {deaths} times while it writes a version")
        checks.ok(deaths >= 6, "(it was killed)", deaths)


def test_torn_and_foreign_files() -> None:
    with world() as (url, node):
        a, b = node(), node()
        finish(start(url(), [a, b], 3))
        path = _kept.Kept(a.directory, "model").path
        with open(path, "rb+") as file:
            file.truncate(SIZE // 2)
        with open(path[: -len("safetensors")] + "new", "wb") as file:
            file.write(b"x" * 1000)
        again = start(url(), [a, b], 1)
        finish(again)
        checks.equal(agree(again, 3), "", "a file that is torn counts as none")
        with open(path, "rb+") as file:
            file.seek(-10, 2)
            file.write(b"0123456789")
        os.unlink(_kept.Kept(b.directory, "model").path)
        third = start(url(), [a, b], 0)
        finish(third)
        rows = begun(third)
        checks.ok(len(rows) == 2 and rows[0]["w"] == rows[1]["w"], "all have the same bytes", rows)


def test_a_state_of_another_model() -> None:
    with world() as (url, node), muster.Store(url()) as store:
        place = {"rank": 0, "world_size": 1, "node": 0, "nodes": 1, "store": store}
        directory = node().directory
        joined = state.join({"x": bytearray(4)}, directory=directory, **place)
        checks.ok(joined.update(epoch=2, metadata={"lr": 0.1}), "a worker alone keeps its state")
        other = {"x": bytearray(5)}
        checks.raises(state.Mismatch, lambda: state.join(other, directory=directory, **place),
                      "another model is refused", "x has shape")
        tree = {"x": bytearray(4)}
        again = state.join(tree, directory=directory, **place)
        checks.equal((again.epoch, again.step, again.metadata), (2, 1, {"lr": 0.1}),
                     "the same model goes on, with its metadata")
        again.forget()
        last = state.join(tree, directory=directory, **place)
        checks.equal((last.step, last.source), (0, "start"), "what is forgotten is gone")
        sparse = state.join(tree, directory=directory, every=3, **place)
        checks.equal([sparse.update() for _ in range(7)], [False, False, True] * 2 + [False],
                     "it is kept every few steps if that is enough")


def test_a_directory_has_nothing_of_another_job() -> None:
    with world() as (url, node), muster.Store(url()) as store:
        place = {"rank": 0, "world_size": 1, "node": 0, "nodes": 1, "store": store}
        directory = node().directory
        found = _kept._stat_of(os.getpid())
        agent = f"{_kept._namespace()}.{os.getpid()}.{found[1] if found else 0}"

        def join(job: str, agent: str = agent) -> Any:
            os.environ["MUSTER_KEEP"] = f"/dev/shm/none/{job}.{agent}"
            return state.join({"x": bytearray(4)}, directory=directory, **place)

        try:
            join("a").update()
            checks.equal(join("a").source, "kept", "the next round of a job finds its state")
            checks.equal(join("b").source, "start", "another job does not")
            join("c", agent.rpartition(".")[0] + ".1").update()
            join("b")
            checks.equal(sorted(name[0] for name in os.listdir(directory)), ["a", "b"],
                         "what a job has left whose agent is gone is removed")
        finally:
            del os.environ["MUSTER_KEEP"]


def test_room() -> None:
    with world() as (url, node), muster.Store(url()) as store:
        small = os.path.join(node().directory, "small")
        os.mkdir(small)
        code = os.system(f"mount -t tmpfs -o size=1m tmpfs {small} 2>/dev/null")
        if code != 0:
            checks.skip("no tmpfs can be mounted here")
            return
        try:
            tree = {"x": bytearray(600_000)}
            place = {"rank": 0, "world_size": 1, "node": 0, "nodes": 1, "store": store}
            joined = state.join(tree, directory=small, **place)
            checks.raises(errors.LimitExceeded, joined.update, "two versions do not fit", small)
            checks.equal(os.listdir(small), ["model.safetensors"], "and the first stays")
        finally:
            joined.forget()
            os.system(f"umount {small}")


def test_what_is_left_behind() -> None:
    base = _kept._base()
    dead = os.path.join(base, f"gone.{_kept._namespace()}.{2**22 + 1}.1")
    other = os.path.join(base, "elsewhere.1.1.1")
    mine = os.path.join(base, f"mine.{_kept._namespace()}.{os.getpid()}."
                        f"{_kept._stat_of(os.getpid())[1]}")  # type: ignore[index]
    for path in (dead, other, mine):
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "model.safetensors"), "w"):
            pass
    try:
        _kept._remove(_kept.default_directory("x"))
        checks.equal([os.path.exists(p) for p in (dead, other, mine)], [False, True, True],
                     "what dead agents left is removed, and nothing else")
    finally:
        for path in (other, mine):
            _kept._remove(path)
    checks.equal(state.join({"x": 1}).source, "start", "a script alone needs nothing")


harness.main(globals())
