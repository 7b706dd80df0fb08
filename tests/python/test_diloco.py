"""examples/diloco.py: four peers train, one is killed in the midst of a round, and a new one joins."""

import os
import re
import subprocess
import sys

import harness

checks = harness.checks
try:
    import torch  # noqa: F401
except ImportError:
    checks.skip("no PyTorch here")

EXAMPLE = os.path.join(harness.ROOT, "examples", "diloco.py")
KILLED = re.compile(r"peer 3 is killed at step (\d+), (\w+)")
JOINS = re.compile(r"a new peer joins at step (\d+) with loss ([\d.]+), the others have ([\d.]+)")
ROW = re.compile(r"^ (\w+) +(\d+) +(\d+) +(\d+) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+)$", re.M)
LOSS = re.compile(r"loss at first ([\d.]+); of the peers ([\d.]+); of one process ([\d.]+)")

#: The peers learn as well as one process with as many steps, or worse by no more than this.
MARGIN = 1.1
STEPS, ROUNDS = 96, 12


def test_a_peer_is_killed_and_another_joins() -> None:
    done = subprocess.run([sys.executable, EXAMPLE, "--short"], env=harness.ENVIRONMENT, text=True,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          preexec_fn=harness.lib.die_with_parent, check=False)  # fmt: skip
    for line in done.stdout.splitlines():
        checks.note(line)
    checks.equal(done.returncode, 0, "it ends well")
    killed, joins, loss = (it.search(done.stdout) for it in (KILLED, JOINS, LOSS))
    rows = {it[0]: it for it in ROW.findall(done.stdout)}
    if not (killed and joins and loss and {*rows} == {"0", "1", "2", "new"}):
        checks.ok(False, "it says what happened", done.stdout)
        return
    checks.ok(int(killed.group(1)) >= STEPS // 3, "one is killed when others count on it", killed.group())
    for name in "012":
        checks.equal(int(rows[name][1]), STEPS, f"peer {name} makes all of its steps")
        # The round of the kill may fail; where a peer gets no time, others go on without it.
        checks.ok(int(rows[name][2]) > ROUNDS // 2, f"peer {name} goes on with the others", rows[name])
    checks.ok(int(rows["new"][2]) >= 1, "the new one averages with them", rows["new"])
    first, peers, alone = map(float, loss.groups())
    step, mine, others = (float(it) for it in joins.groups())
    checks.ok(step > 0 and abs(mine - others) < (first - others) / 5, "it begins near them", joins.group())
    last = [float(it[7]) for it in rows.values()]
    checks.ok(max(last) - min(last) < 0.4, "all end alike", last)
    checks.ok(peers < MARGIN * alone and peers < first - 1, "they have learned", loss.group())


harness.main(globals())
