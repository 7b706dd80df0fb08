"""A worker whose functions the tests of muster.rpc call, in a process of its own.

It prints where it listens. Arguments: its name, its id; `pickle`: it takes objects;
`listen=ADDRESS`; `held`: it is ready to start, and waits for a line on its standard input first.
"""

import asyncio
import os
import sys
import threading
import time
from typing import Any, List, Optional

import muster
from muster import rpc


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def main() -> None:
    name, number = sys.argv[1], int(sys.argv[2])
    pickle = "pickle" in sys.argv
    listen = next((a[7:] for a in sys.argv if a.startswith("listen=")), "")
    if "held" in sys.argv:
        print("held", flush=True)
        sys.stdin.readline()
    agent = rpc.Agent(name, number, listen=listen, pickle=pickle)
    seen: List[str] = []
    arrived = 0
    all_there: Optional[asyncio.Event] = None
    ran = 0

    @agent.method("test::Bytes.echo", pickle=False)
    def echo(*parts: bytes) -> List[bytes]:
        return list(parts)

    @agent.method("test::Bytes.none", pickle=False)
    def none(*parts: bytes) -> None:
        return None

    @agent.method("test::Bytes.text", pickle=False)
    def text() -> str:
        return "höi"

    @agent.method("test::Bytes.wrong", pickle=False)
    def wrong() -> int:
        return 3

    @agent.method("test::Bytes.boom", pickle=False)
    def boom(what: bytes) -> bytes:
        raise {b"value": ValueError("the disk is full"), b"long": ValueError("x" * 5000),
               b"exit": SystemExit(3), b"mute": KeyError(), b"zero": ValueError("a\0b"),
               b"unprintable": Unprintable()}[what]  # fmt: skip

    @agent.method("test::Bytes.sleep", pickle=False)
    def sleep(seconds: bytes) -> bytes:
        end = time.monotonic() + float(seconds)
        call = rpc.current()
        while time.monotonic() < end and not call.canceled:
            time.sleep(0.005)
        seen.append("canceled" if call.canceled else "slept")
        return b"slept"

    @agent.method("test::Bytes.stubborn", pickle=False)
    def stubborn(seconds: bytes, *_: bytes) -> bytes:
        time.sleep(float(seconds))
        return b"slept"

    @agent.method("test::Bytes.seen", pickle=False)
    def what_was_seen() -> bytes:
        return ",".join(seen).encode()

    @agent.method("test::Bytes.context", pickle=False)
    def context() -> List[bytes]:
        call = rpc.current()
        return [call.caller.encode(), call.method.encode(), repr(call.time_left).encode(),
                repr(call.canceled).encode(), threading.current_thread().name.encode()]  # fmt: skip

    @agent.method("test::Async.meet", pickle=False)
    async def meet(count: bytes) -> bytes:
        """Answers when so many calls are under way."""
        nonlocal arrived, all_there
        all_there = all_there or asyncio.Event()
        arrived += 1
        if arrived == int(count):
            all_there.set()
        await all_there.wait()
        return b"%d" % arrived

    @agent.method("test::Async.context", pickle=False)
    async def async_context() -> List[bytes]:
        caller = rpc.current().caller
        await asyncio.sleep(0.01)
        return [caller.encode(), rpc.current().method.encode()]

    @agent.method("test::Async.boom", pickle=False)
    async def async_boom() -> bytes:
        await asyncio.sleep(0)
        raise LookupError("nothing here")

    @agent.method("test::Async.sleep", pickle=False)
    async def async_sleep(seconds: bytes) -> bytes:
        await asyncio.sleep(float(seconds))
        return b"slept"

    @agent.method("test::Bytes.back", pickle=False)
    def back(method: bytes, depth: bytes) -> bytes:
        """Calls the caller, who calls us: as deep as asked."""
        if int(depth) == 0:
            return b"bottom"
        answer = agent.call(rpc.current().caller, method.decode(), method, b"%d" % (int(depth) - 1))
        assert isinstance(answer, bytes)
        return answer

    @agent.method("test::Bytes.count", pickle=False)
    def count() -> bytes:
        nonlocal ran
        ran += 1
        if ran % 2:
            raise RuntimeError("not yet")
        return b"%d" % ran

    @agent.method("test::Bytes.fork", pickle=False)
    def fork() -> bytes:
        """A child that uses the agent, and answers the call of its parent."""
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                agent.workers()
            except muster.errors.Closed:
                code = 7
            rpc.current()._answer([b"from the child"])
            if rpc.current()._pointer is None:
                code = 2  # the call was answered, with what belongs to the parent
            os._exit(code)
        return b"%d" % os.WEXITSTATUS(os.waitpid(pid, 0)[1])

    @agent.method("test::Bytes.leave", pickle=False)
    def leave() -> bytes:
        agent.shutdown()
        return b"never"

    if pickle:

        @agent.method("test::Object.add")
        def add(a: Any, b: Any = 1) -> Any:
            return a + b

        @agent.method("test::Object.boom")
        def object_boom() -> None:
            raise Unprintable()

    print(agent.address, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
