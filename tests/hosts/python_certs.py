#!/usr/bin/python3
"""The Python module between hosts that know each other by certificates: stores, rendezvous, calls,
states and PyTorch's process groups. Who has a certificate of another authority, a token or nothing
gets nowhere, and is told why. With a token, too, processes that are days old meet as new ones do.

    python_certs.py [MUSTER] [--only=TEXT]
"""
import importlib.util
import os
import subprocess
import sys

from drill import make_certificates, make_token
from rig import HERE, Checks, Rig, muster_path

MUSTER = muster_path()
ROOT = os.path.dirname(os.path.dirname(HERE))
PYTHON = sys.executable
ENVIRONMENT = {
    "PYTHONPATH": os.path.join(ROOT, "python"),
    "PYTHONDONTWRITEBYTECODE": "1",
    "MUSTER_LIBRARY": os.path.join(os.path.dirname(MUSTER), "libmuster.so.0"),
}
PATIENCE = 60
# Of a runtime and of what is open in it, in seconds. A token of 304 s once did not open any more.
AGES = {"new": 0, "5 minutes old": 310, "2 days old": 2 * 86400}
checks = Checks()

SERVER = """
import time, muster
server = muster.Server("0.0.0.0:29500")
print("serving", flush=True)
time.sleep(600)
"""

# Both nodes run this: each step needs the other node.
NODE = """
import asyncio, sys, muster
from muster import rpc, state
me = int(sys.argv[1])
store = muster.Store("tcp://node0:29500", timeout=30)
store.set(f"from{me}", "x" * 100000)
assert len(store.get(f"from{1 - me}")) == 100000
assert asyncio.run(store.aio.get(f"from{1 - me}")) == b"x" * 100000
print("store", flush=True)

rdzv = muster.Rendezvous("node0:29500", "job7", 2, config={"join_timeout": 30})
with rdzv:
    got = rdzv.next()
    got.store.barrier("here", 2)
    assert sorted([got.rank, 1 - got.rank]) == [0, 1] and got.world_size == 2
    got.store.barrier("gone", 2)
print("rendezvous", flush=True)

with rpc.Agent(f"worker{me}", me) as agent:
    @agent.method("test::Echo.echo")
    def echo(data):
        return data
    agent.join_group(store, "group", 2, timeout=30)
    data = bytes(range(256)) * 8192
    assert agent.call(f"worker{1 - me}", "test::Echo.echo", data) == data
    agent.leave_group(store, timeout=30)
print("rpc", flush=True)

if me == 0:
    shared = state.share({"w": bytearray(b"weights" * 100000)}, listen="0.0.0.0:29700", store=store)
    assert shared.donor.transport == "lock", shared.donor.transport
    store.set("shared", "")
    store.wait("loaded")
else:
    store.wait("shared")
    into = {"w": bytearray(700000)}
    state.load(into, store=store, timeout=30, progress=False)
    assert bytes(into["w"]) == b"weights" * 100000
    state.load(into, donors=["node0:29700"], timeout=30, progress=False)
    store.set("loaded", "")
store.barrier("state", 2)
print("state", flush=True)
"""

GROUP = """
import sys
import muster.torch, torch
import torch.distributed as dist
dist.init_process_group("gloo", init_method="muster://node0:29500/job8?world_size=2" + sys.argv[1])
mine = torch.full((1000,), float(dist.get_rank() + 1))
dist.all_reduce(mine)
assert float(mine[0]) == 3.0
print("group", flush=True)
dist.destroy_process_group()
muster.torch.leave()
"""

STRANGER = """
import muster
from muster import errors, rpc, state
def tell(what, call):
    try:
        print(what, "went well:", call())
    except errors.MusterError as error:
        print(what, type(error).__name__, str(error).replace("\\n", " "))
tell("store", lambda: muster.Store("tcp://node0:29500", connect_timeout=3))
def meet():
    with muster.Rendezvous("node0:29500", "job7", 1, config={"join_timeout": 3}) as rdzv:
        return rdzv.next()
tell("rendezvous", meet)
agent = rpc.Agent("stranger", 7, listen=None)
agent.add_worker("b", 1, "node0:29600")
tell("rpc", lambda: agent.call("b", "test::Echo.echo", b"x", timeout=3))
tell("state", lambda: state.load(donors=["node0:29700"], timeout=3, progress=False).tree)
"""

# What strangers try to reach: without a group or a store, so that they need nobody else.
VICTIM = """
import time, muster
from muster import rpc, state
server = muster.Server("0.0.0.0:29500")
agent = rpc.Agent("b", 1, listen="0.0.0.0:29600")
agent.register(lambda data: data, "test::Echo.echo")
state.share({"w": bytearray(b"secret")}, listen="0.0.0.0:29700")
print("serving", flush=True)
time.sleep(600)
"""


# One process for all ages: its runtime, and the store that it has open, grow old with it.
OLD = """
import sys, muster
from muster import rpc, state
kept = muster.Store("tcp://node0:29500", timeout=20)
agent = rpc.Agent("old", 7, listen=None)
agent.add_worker("b", 1, "node0:29600")
for line in sys.stdin:
    kept.add("asked", 1)
    with muster.Store("tcp://node0:29500", connect_timeout=20) as store:
        asked = store.get("asked")
    assert agent.call("b", "test::Echo.echo", b"x", timeout=20) == b"x"
    loaded = state.load(donors=["node0:29700"], timeout=20, progress=False)
    assert bytes(loaded.tree["w"]) == b"secret"
    print("asked", int(asked), flush=True)
"""


def variables(options):
    """The environment that says what the options of a command say."""
    names = {"--tls-ca": "MUSTER_TLS_CA", "--tls-cert": "MUSTER_TLS_CERT",
             "--tls-key": "MUSTER_TLS_KEY", "--token-file": "MUSTER_TOKEN_FILE"}
    return dict(ENVIRONMENT, **{names[k]: v for k, v in zip(options[::2], options[1::2])})


def test_nodes_with_certificates():
    with Rig(2) as rig:
        credential = make_certificates(rig)
        env = [variables(credential[host.name]) for host in rig.hosts]
        rig.hosts[0].start(PYTHON, "-c", SERVER, env=env[0]).says("serving", PATIENCE)
        nodes = [host.start(PYTHON, "-c", NODE, str(i), env=env[i])
                 for i, host in enumerate(rig.hosts)]
        for what in ("store", "rendezvous", "rpc", "state"):
            for node in nodes:
                node.says(what + "\n", PATIENCE)
            checks.ok(True, "%s between hosts with certificates" % what)
        for node in nodes:
            checks.equal(node.wait(PATIENCE), 0, "%s ends well" % node.host.name)
        if importlib.util.find_spec("torch") is None:
            checks.note("PyTorch is not installed: no process group")
            return
        # One has its certificate from the environment, the other from the URL.
        words = dict(zip(credential["node1"][::2], credential["node1"][1::2]))
        url = "&cert=%s&key=%s&ca=%s" % (words["--tls-cert"], words["--tls-key"], words["--tls-ca"])
        group = [rig.hosts[0].start(PYTHON, "-c", GROUP, "", env=env[0]),
                 rig.hosts[1].start(PYTHON, "-c", GROUP, url, env=ENVIRONMENT)]
        for node in group:
            node.says("group", PATIENCE)
            checks.equal(node.wait(PATIENCE), 0, "a process group: %s" % node.host.name)


def test_strangers():
    with Rig(2) as rig:
        server, stranger = rig.hosts
        env = variables(make_certificates(rig)["node0"])
        token = variables(make_token(rig)["node1"])
        os.rename(os.path.join(rig.path, "tls"), os.path.join(rig.path, "ours"))
        other = variables(make_certificates(rig)["node1"])
        env = {k: v.replace("/tls/", "/ours/") for k, v in env.items()}
        server.start(PYTHON, "-c", VICTIM, env=env).says("serving", PATIENCE)
        for what, its, why in (("a certificate of another authority", other, "another authority"),
                               ("a token", token, "locked with certificates"),
                               ("nothing", ENVIRONMENT, "credential")):
            code, out, err = stranger.run(PYTHON, "-c", STRANGER, env=its, patience=PATIENCE)
            lines = out.splitlines()
            checks.ok(code == 0 and len(lines) == 4 and "went well" not in out,
                      "%s opens nothing" % what, (code, out, err))
            for line in lines:
                checks.ok(why in line and "--t" not in line,
                          "%s: %s says why" % (what, line.split(" ", 1)[0]), line)


def test_old_processes():
    for kind, make in (("a token", make_token), ("certificates", make_certificates)):
        with Rig(2) as rig:
            credential = make(rig)
            server, client = rig.hosts
            env = [variables(credential[host.name]) for host in rig.hosts]
            server.start(PYTHON, "-c", VICTIM, env=env[0], clock=True).says("serving", PATIENCE)
            old = client.start(PYTHON, "-c", OLD, env=env[1], clock=True,
                               stdin=subprocess.PIPE)
            passed = 0
            for number, (age, seconds) in enumerate(AGES.items(), 1):
                rig.advance(seconds=seconds - passed)
                passed = seconds
                old.popen.stdin.write(b"on\n")
                old.popen.stdin.flush()
                old.says("asked %d\n" % number, PATIENCE)
                checks.ok(True, "with %s, %s" % (kind, age))


checks.run_tests(globals())
checks.done()
