"""States that the agent keeps: muster.state.keep() and restore(), in workers of `muster run
--keep-memory` that are killed; and examples/keep_ddp.py."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import warnings
from typing import Any, Dict, List, Tuple

import harness

checks = harness.checks
PATIENCE = max(90.0, harness.PATIENCE)
EXAMPLE = os.path.join(harness.ROOT, "examples", "keep_ddp.py")
BEGINS = re.compile(r"rank (\d+) of (\d+) begins at step (\d+) with weights (\w+)")
STEP = re.compile(r"step (\d+) of \d+: loss [\d.]+, weights (\w+)")
ENDS = re.compile(r"rank (\d+) ends at step (\d+) with weights (\w+)")


class Agent:
    """`muster run` of a script."""

    def __init__(self, scratch: str, *arguments: str) -> None:
        env = {k: v for k, v in harness.ENVIRONMENT.items() if not k.startswith(("PET_", "TORCH"))}
        env.update(PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1", TMPDIR=scratch)
        self.process = subprocess.Popen(
            [harness.MUSTER, "run", *arguments], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
            preexec_fn=harness.lib.die_with_parent)  # fmt: skip
        self.lines: List[str] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def output(self) -> str:
        return "".join([*self.lines])

    def all(self, what: "re.Pattern[str]") -> List[Tuple[str, ...]]:
        return what.findall(self.output())

    def end(self) -> int:
        try:
            code = self.process.wait(PATIENCE)
            self.reader.join(PATIENCE)
            return code
        finally:
            if self.process.poll() is None:
                self.process.kill()


def run(scratch: str, script: str, *arguments: str) -> Tuple[int, str]:
    path = os.path.join(scratch, "script.py")
    with open(path, "w") as file:
        file.write(textwrap.dedent(script))
    agent = Agent(scratch, *arguments, path)
    code = agent.end()
    if code != 0:
        checks.note(agent.output()[-3000:])
    return code, agent.output()


# --- without an agent that keeps ------------------------------------------------------------------


def test_without_an_agent_it_is_harmless() -> None:
    import muster.state

    tree = {"x": muster.state.Array("F32", (3,)), "n": 7}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checks.equal(muster.state.keep(tree, step=1), False, "nothing is kept")
    checks.ok(len(caught) == 1 and "--keep-memory" in str(caught[0].message)
              and caught[0].filename == __file__, "a warning says why, and where", caught)
    muster.state.keep_wait()
    checks.equal(muster.state.kept(), None, "nothing is there")
    checks.equal(muster.state.restore(tree), None, "and nothing is restored")
    try:
        muster.state.keep(tree, step=-1)
        checks.ok(False, "a step below 0 is refused")
    except ValueError as error:
        checks.ok("step" in str(error), "a step below 0 is refused", error)


# --- shards, trees, and what does not fit ---------------------------------------------------------

SHARDS = """
    import os, signal, sys, warnings
    from muster import state, worker
    warnings.simplefilter("error")
    rank, again = worker.rank(), worker.restart_count()
    mine = state.Array("I64", (1000 + rank,))
    tree = {"mine": mine, "list": [rank, "text", None], "n": 0}
    if again == 1:
        found = state.restore(tree)
        assert found.step == state.kept() == 3 and found.tree is tree, found
        assert found.metadata == {"rank": rank}, found.metadata
        assert tree["n"] == 3 and tree["list"] == [rank, "text", None], tree
        assert list(mine.data.cast("q")) == [3 * i + rank for i in range(1000 + rank)]
        fresh = state.restore().tree
        assert bytes(fresh["mine"].data) == bytes(mine.data) and fresh["n"] == 3
        try:
            state.restore({"mine": state.Array("I64", (7,)), "list": [0, "", 0], "n": 0})
            raise SystemExit("it fits")
        except state.Mismatch as error:
            assert "mine has shape [7]" in str(error), error
        print("rank", rank, "is right", flush=True)
        raise SystemExit(0)
    assert state.kept() is None and state.restore(tree) is None
    view = mine.data.cast("q")
    for step in range(1, 6):
        for i in range(len(view)):
            view[i] = step * i + rank
        tree["n"] = step
        if step == 4 and rank == 1:  # it dies before it has kept what rank 0 keeps
            os.kill(os.getpid(), signal.SIGKILL)
        assert state.keep(tree, step=step, metadata={"rank": rank}, wait=step % 2 == 0)
        state.keep_wait()
        with worker.store() as store:
            store.barrier("%d" % step, 2)
    """


def test_each_rank_gets_its_shard_back() -> None:
    for extra in ((), ("--warm=json",)):
        with harness.Scratch() as scratch:
            code, output = run(scratch, SHARDS, "--nproc-per-node=2", "--max-restarts=1",
                               "--keep-memory=2M", *extra)  # fmt: skip
            checks.equal(code, 0, f"the job ends well {extra}")
            checks.equal(sorted(re.findall(r"rank (\d) is right", output)), ["0", "1"],
                         "each rank has what both have kept")  # fmt: skip
            checks.ok("the workers load step 3, the newest that all ranks have kept" in output,
                      "the agent says which step")


SMALL = """
    import os, sys, warnings
    from muster import state, worker
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert state.keep({"x": state.Array("U8", (1000000,))}, step=1) is False
        assert state.keep({"x": state.Array("U8", (100,))}, step=2) is True
    assert len(caught) == 1 and "give --keep-memory more" in str(caught[0].message), caught
    """


def test_a_state_that_is_too_large_is_not_kept() -> None:
    with harness.Scratch() as scratch:
        code, output = run(scratch, SMALL, "--keep-memory=1M")
        checks.equal(code, 0, "the program goes on")
        # BYTES_MIN of service/agent/kept.c, for three vaults
        code, output = run(scratch, SMALL, "--keep-memory=767K")
        checks.ok(code == 1 and "keeps no states: give --keep-memory more" in output,
                  "an agent without room says so", output[-2000:])


def test_options_that_cannot_be() -> None:
    with harness.Scratch() as scratch:
        for arguments, words in (
            (("--keep-memory=much",), '"much" is not a size: write 32G, 500M or auto'),
            (("--keep-memory=0",), '"0" is not a size'),
            (("--keep-memory=1G", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"),
             "only the backend muster"),
        ):
            code, output = run(scratch, "", *arguments)
            checks.ok(code != 0 and words in output, f"{arguments} is refused", output[-500:])


# --- the example ----------------------------------------------------------------------------------


def test_the_example_goes_on_where_it_was() -> None:
    steps = 60
    with harness.Scratch() as scratch:
        agent = Agent(scratch, "--nproc-per-node=2", "--max-restarts=2", "--keep-memory=auto",
                      EXAMPLE, str(steps), "1", "0.02")  # fmt: skip
        killed: List[int] = []
        try:
            for least in (10, 30):
                harness.wait_until(
                    lambda: any(int(s) >= least for s, _ in agent.all(STEP)), f"step {least}",
                    PATIENCE)  # fmt: skip
                victim = worker_of(agent.process.pid, len(killed))
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
                harness.wait_until(lambda: len(agent.all(BEGINS)) >= 2 * (len(killed) + 1),
                                   "the next workers", PATIENCE)  # fmt: skip
        finally:
            code = agent.end()
    checks.equal(code, 0, "the job ends well")
    if code != 0:
        checks.note(agent.output()[-3000:])
    begins = agent.all(BEGINS)
    starts = [int(step) for _, _, step, _ in begins]
    checks.ok(starts[:2] == [0, 0] and starts[2] >= 9 and starts[4] >= 29
              and starts[2:4] == [starts[2]] * 2 and starts[4:6] == [starts[4]] * 2,
              "both ranks begin again at the same step, at most one save old", starts)
    seen: Dict[str, Any] = {}
    for step, weights in agent.all(STEP):
        seen.setdefault(step, set()).add(weights)
    checks.ok(all(len(found) == 1 for found in seen.values()),
              "a step that was done again has come to the same", seen)
    for one, other in zip(begins[::2], begins[1::2]):
        checks.equal(one[3], other[3], f"at step {one[2]} both begin with the same weights")
        # A worker may be killed between the copy and the line that tells of it.
        checks.ok(seen.get(one[2], {one[3]}) == {one[3]} or one[2] == "0",
                  f"the weights of step {one[2]} are those kept", one)
    checks.equal(len({weights for _, _, weights in agent.all(ENDS)}), 1, "all end with the same")


def worker_of(agent: int, number: int) -> int:
    """A worker of the agent: by their ranks, so that it is not always the first."""
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                rank = re.search(rb"\0RANK=(\d+)\0", file.read())
        except (OSError, ValueError):
            continue
        if parent == agent and rank is not None:
            found.append((int(rank[1]), int(name)))
    return dict(found)[number % 2]


harness.main(globals())
