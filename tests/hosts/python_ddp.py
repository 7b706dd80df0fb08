#!/usr/bin/python3
"""The Python examples on several hosts, as their first lines say: weights that outlive their nodes
(examples/ddp_state.py), with the job's token, with --insecure and with neither, and a rendezvous
(examples/rendezvous.py).

    python_ddp.py [MUSTER] [--only=TEXT]
"""
import importlib.util
import os
import re
import signal
import sys
import time

from drill import make_token
from rig import HERE, Checks, Rig, muster_path, skip, wait_until

MUSTER = muster_path()
ROOT = os.path.dirname(os.path.dirname(HERE))
EXAMPLE = os.path.join(ROOT, "examples", "ddp_state.py")
ENVIRONMENT = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHON_EXEC": sys.executable,
    "OMP_NUM_THREADS": "1",
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(MUSTER), "libmuster.so.0"),
}
PATIENCE = 90
STEPS = "240"
BEGINS = re.compile(r"rank \d+ of (\d+) begins at step (\d+) with weights (\w+) \(from (\w+)\)")
STEP = re.compile(r"step (\d+) of \d+: loss ([\d.]+)")
ENDS = re.compile(r"rank \d+ ends at step (\d+) with weights (\w+)")
checks = Checks()

# Looks at every packet of its host. A state begins with the names of its tensors.
LISTENER = """
import socket
everything = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
everything.settimeout(0.1)
print("listens", flush=True)
heard = False
while True:
    try:
        packet = everything.recv(65536)
    except socket.timeout:
        continue
    if b"module.0.weight" in packet and not heard:
        heard = True
        print("heard the names of the tensors", flush=True)
    if b"nothing more" in packet:
        print("ends", flush=True)
        break
"""


def listen_on(host):
    return host.start(sys.executable, "-c", LISTENER).says("listens")


def heard_by(listener):
    """Whether the state came by in the clear."""
    listener.host.must_run(sys.executable, "-c", (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); "
        "s.sendto(b'nothing more', ('node0', 9))"))
    listener.says("ends")
    return "heard" in listener.output()


def start_agent(host, credential, *words, nnodes="2:4", steps=STEPS, seconds="0.05"):
    return host.start(MUSTER, "run", "--nnodes", nnodes, "--rdzv-endpoint", "node0:29400",
                      "--rdzv-id", "job7", *credential, *words, EXAMPLE, steps, seconds,
                      env=ENVIRONMENT)


def begun(agent):
    """What its worker began with, each time: (world, step, weights, source)."""
    return BEGINS.findall(agent.output())


def steps_done(agents):
    return max(losses(agents), default=0)


def losses(agents):
    """By the number of the step."""
    return {int(step): float(loss) for agent in agents
            for step, loss in STEP.findall(agent.output())}


def words_of(agents):
    return "\n".join("%s says: %s" % (agent.host.name, agent.output().strip()[-1500:])
                     for agent in agents)


def await_world(agents, size, what, since):
    """Waits until the newest thing that each of them has begun is a world of this size; returns
    their rows of it, or None."""
    def rows():
        last = [begun(agent)[-1:] for agent in agents]
        return all(row and int(row[0][0]) == size for row in last) and [row[0] for row in last]

    try:
        found = wait_until(rows, what, PATIENCE, 0.05)
    except AssertionError:
        checks.ok(False, what, words_of(agents))
        return None
    checks.note("%5.1f s: %s" % (time.monotonic() - since, what))
    checks.equal(len({row[1:3] for row in found}), 1, what + ": with the same step and weights")
    return found


def kill_all(rig, host):
    """kill -9 of everything on a host."""
    for pid in rig.processes():
        try:
            if os.readlink("/proc/%d/ns/net" % pid) == host.network:
                os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended with the others


def test_ddp_with_a_token():
    """Three nodes train; one is killed; a new one joins with nothing, and all end alike."""
    with Rig(4) as rig:
        token = make_token(rig)["node0"]
        began = time.monotonic()
        agents = [start_agent(host, token) for host in rig.hosts[:3]]
        if not await_world(agents, 3, "three nodes begin", began):
            return
        wait_until(lambda: steps_done(agents) >= 20, "20 steps", PATIENCE, 0.05)
        began = time.monotonic()
        everybody = agents[:]
        kill_all(rig, rig.hosts[1])
        agents.pop(1)
        rows = await_world(agents, 2, "one is killed, two go on", began)
        if not rows:
            return
        checks.ok(int(rows[0][1]) >= 20 and {row[3] for row in rows} == {"kept"},
                  "where they were, with what they have kept", rows)
        listener = listen_on(rig.hosts[3])
        began = time.monotonic()
        agents.append(start_agent(rig.hosts[3], token))
        everybody.append(agents[-1])
        joined = await_world(agents, 3, "a new one joins", began)
        if not joined:
            return
        checks.ok(int(joined[2][1]) >= int(rows[0][1]) and joined[2][3] == "others",
                  "with the weights of the others", joined)
        checks.ok(not heard_by(listener), "which came sealed", listener.output())
        codes = [agent.wait(PATIENCE) for agent in agents]
        checks.equal(codes, [0, 0, 0], "all end well")
        ends = [ENDS.findall(agent.output()) for agent in agents]
        went = sorted(losses(everybody).items())
        checks.note(" ".join("%d: %.3f" % row for row in went))
        # New weights have the loss of the first steps, whatever the step is called.
        first, late = went[0][1], [loss for step, loss in went if step > int(joined[2][1])]
        checks.ok(late and max(late) < 0.7 * first, "the loss does not jump", went)
        checks.ok(all(len(end) == 1 for end in ends) and len({end[0] for end in ends}) == 1 and
                  ends[0][0][0] == STEPS, "and with the same weights", ends)


def test_ddp_insecure():
    """--insecure is enough for the workers as well. What is sealed above can be read here."""
    with Rig(2) as rig:
        a, b = rig.hosts
        began = time.monotonic()
        agents = [start_agent(a, ["--insecure"], nnodes="1:2", steps="100000")]
        if not await_world(agents, 1, "insecure: one node begins", began):
            return
        wait_until(lambda: steps_done(agents) >= 10, "10 steps", PATIENCE, 0.05)
        listener = listen_on(b)
        began = time.monotonic()
        agents.append(start_agent(b, ["--insecure"], nnodes="1:2", steps="100000"))
        rows = await_world(agents, 2, "insecure: another joins", began)
        if rows:
            checks.ok(int(rows[1][1]) >= 10 and rows[1][3] == "others",
                      "insecure: with the weights of the first", rows)
            checks.ok(heard_by(listener), "insecure: which came in the clear", listener.output())


def test_ddp_without_a_credential():
    """The agents refuse at once. If only the workers lack it, join() says so and does not wait."""
    with Rig(2) as rig:
        for agent in [start_agent(host, [], nnodes="2") for host in rig.hosts[:1]]:
            began = time.monotonic()
            code = agent.wait(PATIENCE)
            said = agent.output()
            checks.ok(code not in (0, None) and "--token-file" in said and "begins" not in said,
                      "without a credential the agent refuses", (code, said))
            checks.note("%.1f s: %s" % (time.monotonic() - began, said.strip().splitlines()[-1]))
        token = make_token(rig)["node0"]
        hide = ["--no-python", "env", "-u", "MUSTER_TOKEN_FILE", sys.executable]
        began = time.monotonic()
        agents = [start_agent(host, token, *hide, nnodes="2") for host in rig.hosts]
        codes = [agent.wait(PATIENCE) for agent in agents]
        said = words_of(agents)
        checks.ok(0 not in codes and "shares it on loopback only" in said and
                  "MUSTER_TOKEN_FILE" in said, "join() says what the workers lack", (codes, said))
        for line in said.splitlines():
            if "loopback only" in line:
                checks.note("%.1f s: %s" % (time.monotonic() - began, line))
                break


def test_rendezvous():
    """examples/rendezvous.py as its first lines say."""
    with Rig(3) as rig:
        token = make_token(rig)["node0"][1]
        command = [sys.executable, os.path.join(ROOT, "examples", "rendezvous.py"), "node0:29400",
                   "2"]
        env = dict(ENVIRONMENT, MUSTER_TOKEN_FILE=token)
        first = rig.hosts[0].start(*command, env=env)
        began = time.monotonic()
        code, out, err = rig.hosts[2].run(*command, env=ENVIRONMENT)
        checks.ok(code == 1 and out == "" and "token" in err and "Traceback" not in err,
                  "without the token nobody is met", (code, out, err))
        checks.note("%.1f s: %s" % (time.monotonic() - began, err.strip()))
        second = rig.hosts[1].start(*command, env=env)
        codes = [node.wait(PATIENCE) for node in (first, second)]
        said = first.output() + second.output()
        checks.equal(codes, [0, 0], "two nodes meet, and end well")
        checks.equal(sorted(re.findall(r"rank (\d of \d)|add up to (\d)", said)),
                     [("", "1")] * 2 + [("0 of 2", ""), ("1 of 2", "")], "and add up their ranks")


if __name__ == "__main__":
    if importlib.util.find_spec("torch") is None:
        skip("this Python has no PyTorch")
    checks.run_tests(globals())
    checks.done()
