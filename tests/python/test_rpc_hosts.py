#!/usr/bin/python3
"""muster.rpc on two hosts: with the job's token they call each other, without it they do not."""

import os
import sys

import harness

sys.path.insert(1, os.path.join(harness.ROOT, "tests", "hosts"))

from rig import Rig  # noqa: E402

checks = harness.checks

SERVE = """
import sys, time, muster
from muster import rpc
agent = rpc.Agent("b", 1)
@agent.method("test::Bytes.echo")
def echo(*parts):
    return list(parts)
@agent.method("test::Bytes.back")
def back(data):
    return agent.call(rpc.current().caller, "test::Bytes.here", data)
print("at", agent.address, flush=True)
store = muster.Store(sys.argv[1])
agent.join_group(store, "g", 2, timeout=20)
agent.leave_group(store, timeout=20)
agent.shutdown()
print("left", flush=True)
"""

CALL = """
import asyncio, os, sys, muster
from muster import rpc
store = muster.Store(sys.argv[1])
with rpc.Agent("a", 0) as agent:
    @agent.method("test::Bytes.here")
    async def here(data):
        return b"here " + data
    agent.join_group(store, "g", 2, timeout=20)
    data = os.urandom(4 << 20)
    assert agent.call("b", "test::Bytes.echo", b"x") == b"x"
    assert agent.call("b", "test::Bytes.echo", data) == data
    assert agent.call("b", "test::Bytes.back", b"y") == b"here y"
    async def many():
        return await asyncio.gather(*[agent.call_async("b", "test::Bytes.echo", b"%d" % i)
                                      for i in range(200)])
    assert asyncio.run(many()) == [b"%d" % i for i in range(200)]
    agent.leave_group(store, timeout=20)
print("done", agent.address)
"""

STRANGER = """
import sys
from muster import errors, rpc
agent = rpc.Agent("s", -1, listen=None)
agent.add_worker("b", 1, sys.argv[1])
try:
    print(agent.call("b", "test::Bytes.echo", b"x", timeout=5))
except errors.MusterError as error:
    print(type(error).__name__, error)
"""


def test_two_hosts() -> None:
    with Rig(2) as rig:
        a, b = rig.hosts
        token = os.path.join(rig.path, "token")
        wrong = os.path.join(rig.path, "wrong")
        for path in (token, wrong):
            a.must_run(harness.MUSTER, "keygen", "token", path)
        env = dict(harness.ENVIRONMENT, MUSTER_TOKEN_FILE=token)
        url = f"tcp://{a.name}:29500"
        a.start(harness.MUSTER, "serve", "--listen", "0.0.0.0:29500", env=env)
        worker = b.start(sys.executable, "-c", SERVE, url, env=env)
        worker.says("at ")
        address = worker.output().split()[1]
        checks.ok(address.startswith(b.name + ":"), "the address is that of the host", address)
        for secret, kind, why in ((None, "Refused", "it wants the job's credential"),
                                  (wrong, "ConnectionFailed", "a different token")):  # fmt: skip
            stranger = dict(harness.ENVIRONMENT)
            if secret:
                stranger["MUSTER_TOKEN_FILE"] = secret
            code, out, err = a.run(sys.executable, "-c", STRANGER, address, env=stranger)
            checks.ok(code == 0 and out.startswith(kind) and why in out, f"a stranger: {why}",
                      (code, out, err))  # fmt: skip
        code, out, err = a.run(sys.executable, "-c", CALL, url, env=env)
        checks.ok(code == 0 and out.startswith("done"), "calls both ways", (code, out, err))
        worker.says("left")
        checks.equal(worker.wait(), 0, "the other worker leaves")


harness.main(globals())
