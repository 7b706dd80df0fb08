#!/usr/bin/python3
"""States of the Python module between hosts that only talk to each other with the job's token: a
node that joins gets the state of the others, and a stranger gets nothing.

    python_state.py [MUSTER] [--only=TEXT]
"""
import os
import re

from drill import make_token
from rig import HERE, Checks, Rig, muster_path

MUSTER = muster_path()
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = "/usr/bin/python3"
ENVIRONMENT = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(MUSTER), "libmuster.so.0"),
}
checks = Checks()

WORKER = """
import hashlib, os, time
from muster import state
tree = {"w": bytearray(os.urandom(3_000_000)), "steps": 0}
joined = state.join(tree, timeout=60)
print("began", joined.step, hashlib.sha256(tree["w"]).hexdigest()[:16], joined.source, flush=True)
while True:
    tree["w"][joined.step % 1000] ^= 255
    tree["steps"] += 1
    joined.update()
    if joined.step == 20:
        print("twenty", flush=True)
        time.sleep(600)  # all that are here have the same state when another comes
    time.sleep(0.05)
"""

DONOR = """
import time
from muster import state
shared = state.share({"w": bytearray(b"secret")}, listen="0.0.0.0:29700")
print("shares by", shared.donor.transport, flush=True)
time.sleep(600)
"""

NEWCOMER = """
from muster import state
print(bytes(state.load(donors=["node0:29700"], timeout=5, progress=False).tree["w"].data))
"""


def start_agent(host, credential):
    return host.start(MUSTER, "run", "--nnodes", "2:3", "--rdzv-endpoint", "node0:29400",
                      "--rdzv-id", "job7", "--rdzv-conf", "is_host=0", *credential, "--no-python",
                      PYTHON, "-c", WORKER, env=ENVIRONMENT)


def began(process):
    return re.findall(r"began (\d+) (\w+) (\w+)", process.output())


def test_a_node_joins():
    with Rig(4) as rig:
        credential = make_token(rig)
        server = rig.hosts[0].start(MUSTER, "serve", "--listen", "0.0.0.0:29400",
                                    *credential["node0"])
        server.says("serving")
        first = [start_agent(rig.hosts[i], credential["node%d" % i]) for i in (1, 2)]
        for agent in first:
            agent.says("twenty", 60)
        third = start_agent(rig.hosts[3], credential["node3"])
        third.says("began", 60)
        for agent in first:
            agent.says(" kept", 60)
        rows = [began(agent)[-1] for agent in first + [third]]
        checks.ok(len({row[:2] for row in rows}) == 1, "all go on from the same state", rows)
        checks.equal(int(rows[0][0]), 20, "which is that of the others")
        checks.equal([row[2] for row in rows], ["kept", "kept", "others"], "the new one loaded it")
        for agent in first + [third]:
            agent.kill()


def test_a_stranger():
    with Rig(2) as rig:
        credential = make_token(rig)
        files = {name: dict(ENVIRONMENT, MUSTER_TOKEN_FILE=words[1])
                 for name, words in credential.items()}
        donor = rig.hosts[0].start(PYTHON, "-c", DONOR, env=files["node0"])
        donor.says("shares by lock")
        code, out, err = rig.hosts[1].run(PYTHON, "-c", NEWCOMER, env=files["node1"])
        checks.equal((code, out.strip()), (0, "b'secret'"), "with the token it is loaded")
        code, out, err = rig.hosts[1].run(PYTHON, "-c", NEWCOMER, env=ENVIRONMENT)
        checks.ok(code != 0 and "secret" not in out and "muster.errors" in err,
                  "without it is not", (code, out, err))
        checks.note(err.strip().splitlines()[-1] if err.strip() else "")
        donor.kill()


checks.run_tests(globals())
checks.done()
