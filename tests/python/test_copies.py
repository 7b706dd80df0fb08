#!/usr/bin/python3
"""What is open cannot be copied or pickled: a copy would close it a second time."""

import asyncio
import copy
import pickle
import re
from typing import Any, Callable, Dict

import harness

import muster
from muster import rpc, state

checks = harness.checks

WAYS: Dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "an old pickle": lambda it: pickle.dumps(it, protocol=0),
}


def refused(it: Any, only_deep: bool = False) -> None:
    """Whether no copy of it can be made; only_deep: a plain copy is the same thing twice."""
    for way, make in WAYS.items():
        if only_deep and way in ("copy", "an old pickle"):
            continue
        name = f"{way} of {type(it).__name__}"
        try:
            checks.ok(False, f"{name} is refused", repr(make(it)))
        except TypeError as error:
            clear = re.match(r"(the|a) [a-z ]+ cannot be copied or pickled: ", str(error))
            checks.ok(clear, f"{name}: {error}")


def test_runtime_and_store() -> None:
    runtime = muster.Runtime()
    with muster.Server(runtime=runtime) as server, muster.Store(server.url, runtime=runtime) as s:
        with s.watch("key") as watch, s.lease(5) as lease:
            for it in (runtime, server, s, watch, watch._queue, lease):
                refused(it)
            refused({"in": [s]}, only_deep=True)
            refused(s.aio, only_deep=True)

        async def in_loop() -> None:
            async with s.aio.lease(5) as granted, s.aio.watch("key") as followed:
                refused(granted)
                refused(followed)

        asyncio.run(in_loop())
        s.set("key", "value")
        checks.equal(s.get("key"), b"value", "the store works after all that")
    runtime.close()


def test_rpc() -> None:
    with rpc.Agent("a", 0) as agent:
        agent.add_worker("a", 0, agent.address)

        @agent.method("test::It.current")
        def handler() -> bytes:
            refused(rpc.current())
            return b"answered once"

        refused(agent)
        future = agent.call_async("a", "test::It.current")
        refused(future)
        checks.equal(future.result(5), b"answered once", "the call ends")


def test_rendezvous_and_state() -> None:
    with muster.Rendezvous(f"127.0.0.1:{harness.free_port()}", "copies", 1) as rdzv:
        refused(rdzv)
        refused(rdzv.aio, only_deep=True)
        refused(rdzv.next(), only_deep=True)
    with state.Donor() as donor, donor.share({"a": state.Array("U8", [2])}) as shared:
        refused(donor)
        refused(shared)


harness.main(globals())
