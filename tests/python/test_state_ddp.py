"""examples/ddp_state.py under `muster run`: three nodes train, one is killed, a new one with random
weights joins and goes on with those of the others."""

import os
import re
import subprocess
import sys
import threading
from typing import Any, Dict, List, Tuple

import harness

checks = harness.checks
PATIENCE = max(90.0, harness.PATIENCE)
STEPS = 120
KILL_AT = 30
EXAMPLE = os.path.join(harness.ROOT, "examples", "ddp_state.py")

BEGINS = re.compile(r"rank (\d+) of (\d+) begins at step (\d+) with weights (\w+) \(from (\w+)\)")
LOSS = re.compile(r"step (\d+) of \d+: loss ([\d.]+), (\d+) workers, weights (\w+)")
ENDS = re.compile(r"rank (\d+) ends at step (\d+) with weights (\w+)")


class Agent:
    """`muster run` with the example as its one worker."""

    def __init__(self, endpoint: str, scratch: str) -> None:
        env = {k: v for k, v in harness.ENVIRONMENT.items() if not k.startswith(("PET_", "TORCH"))}
        env.update(PYTHON_EXEC=sys.executable, OMP_NUM_THREADS="1", TMPDIR=scratch)
        self.process = subprocess.Popen(
            [harness.MUSTER, "run", "--nnodes", "2:4", "--rdzv-endpoint", endpoint, "--rdzv-id",
             "ddp", EXAMPLE, str(STEPS), "0.03"], env=env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
            preexec_fn=harness.lib.die_with_parent)  # fmt: skip
        self.lines: List[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def all(self, what: "re.Pattern[str]") -> List[Tuple[str, ...]]:
        return what.findall("".join([*self.lines]))

    def step(self) -> int:
        rows = self.all(LOSS)
        return int(rows[-1][0]) if rows else 0


def kept() -> List[str]:
    try:
        return [n for n in os.listdir(f"/dev/shm/muster-{os.getuid()}") if n.startswith("ddp.")]
    except FileNotFoundError:
        return []


def average(rows: List[Tuple[int, float]], low: int, high: int) -> float:
    found = [loss for step, loss in rows if low < step <= high]
    return sum(found) / len(found)


def test_a_new_node_goes_on_with_the_others() -> None:
    before = set(kept())
    with harness.Scratch() as scratch, harness.Server() as server:
        endpoint = f"127.0.0.1:{server.port}"
        agents = [Agent(endpoint, scratch) for _ in range(3)]
        everybody = agents[:]
        try:
            first = [a for a in agents]
            zero = harness.wait_until(
                lambda: next((a for a in first if a.step() >= KILL_AT), None),
                f"step {KILL_AT}", PATIENCE)
            victim = next(a for a in agents if a is not zero)
            victim.process.kill()
            agents.remove(victim)
            harness.wait_until(lambda: all(len(a.all(BEGINS)) >= 2 for a in agents),
                               "the others to go on", PATIENCE)
            newcomer = Agent(endpoint, scratch)
            agents.append(newcomer)
            everybody.append(newcomer)
            codes = [a.process.wait(PATIENCE) for a in agents]
        finally:
            for a in everybody:
                if a.process.poll() is None:
                    a.process.kill()
        judge(agents, newcomer, codes)
    # The one that was killed could not remove its own.
    left = set(kept()) - before
    checks.ok(len(left) <= 1, "each agent has removed what its workers kept", left)


def judge(agents: List[Agent], newcomer: Agent, codes: List[int]) -> None:
    checks.equal(codes, [0, 0, 0], "all that are left end with 0")
    for a in agents if codes != [0, 0, 0] else []:
        checks.note("".join(a.lines[-25:]))
    rounds: Dict[Tuple[str, str], List[Any]] = {}
    for a in agents:
        for rank, world, step, weights, source in a.all(BEGINS):
            rounds.setdefault((world, step), []).append((weights, source, a is newcomer))
    for (world, step), rows in rounds.items():
        checks.equal(len({row[0] for row in rows}), 1,
                     f"in a world of {world}, from step {step}, all have the same weights")
    mine = newcomer.all(BEGINS)
    checks.ok(len(mine) == 1 and int(mine[0][2]) >= KILL_AT and mine[0][4] == "others",
              "the new one begins where the others are, with what they have", mine)
    checks.equal(len({row[2] for a in agents for row in a.all(ENDS)}), 1, "all end with the same")
    losses = sorted({(int(s), float(loss)) for a in agents for s, loss, _, _ in a.all(LOSS)})
    for step, loss in losses:
        checks.note(f"step {step:4d}  loss {loss:.4f}  " + "#" * round(20 * loss))
    steps = [step for step, _ in losses]
    # A worker may be stopped between a step and the line that tells of it.
    missing = {*range(10, STEPS + 1, 10)} - {*steps}
    checks.ok(len(missing) <= 2 and len(steps) == len({*steps}) and steps[-1] == STEPS,
              "the steps go on, and none is done twice", steps)
    joined = int(mine[0][2]) if mine else STEPS
    before, after = average(losses, joined - 30, joined), average(losses, joined, joined + 30)
    start = losses[0][1]
    checks.ok(after < 1.3 * before and after < start, "the loss does not jump when it joins",
              f"{start:.3f} first, {before:.3f} before, {after:.3f} after")


harness.main(globals())
