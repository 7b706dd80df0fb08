#!/usr/bin/python3
"""The daemon's persistent connections against the protocol, from outside.

    p2pd_calls.py [MUSTER] [--calls=2000]

Unary calls with every error, given up at every stage and by everybody; replicas of a handler in turn;
thousands at once, and one of 64 MiB. What else there is of the protocol is in p2pd_conformance.py.
"""
import asyncio
import contextlib
import os
import signal
import tempfile

import lib
from lib import option
from p2pd_lib import (IDENTIFY, STREAM_HANDLER, STRANGER, Cancelled, Daemon, DaemonChecks,
                      FakePeer, data, echo, framed, link_binary, maddr, number, uvarint)

checks = DaemonChecks()


async def calls(a, b):
    caller, handler = await a.client(), await b.client()

    async def who(peer, payload):
        return peer + payload

    async def fails(_peer, payload):
        raise ValueError(payload.decode())

    await handler.add("who", who)
    await handler.add("fails", fails)
    checks.equal(await caller.call(b.id, "who", b"!"), a.id + b"!", "call: the caller is told, proved")
    checks.equal(await caller.call(b.id, "who", b""), a.id, "call: of nothing")
    await checks.refused("call: the handler fails", caller.call(b.id, "fails", b"why"), "ValueError('why')")
    await checks.refused("call: unknown", caller.call(b.id, "none", b""), "failed to negotiate protocol")
    await checks.refused("call: of no name", caller.call(b.id, "", b""), "failed to negotiate protocol")
    await checks.refused("call: nobody", caller.call(STRANGER, "who", b""), "no address")
    await checks.refused("call: no peer", caller.call(b"xx", "who", b""), "peer ID")
    await checks.refused("call: itself", caller.call(a.id, "who", b""), "itself")
    await a.disconnect(b)
    checks.equal(await caller.call(b.id, "who", b"!"), a.id + b"!", "call: connects where it has to")
    size = (4 << 20) - 200
    await handler.add("big", echo)
    big = os.urandom(size)
    checks.ok(await caller.call(b.id, "big", big) == big, "call: as long as may be")
    checks.ok((await asyncio.gather(*(caller.call(b.id, "big", big[:1 << 20]) for _ in range(24))))
              == [big[:1 << 20]] * 24, "call: 24 of a MiB at once")
    caller.send(os.urandom(16), data(4, data(1, b"x")))
    caller.cancel(os.urandom(16))
    caller.send(os.urandom(16), b"")
    checks.equal(await caller.call(b.id, "big", b"x"), b"x", "what belongs to nothing is ignored")
    await caller.close()
    await handler.close()


async def handlers(a, b):
    """Who handles what, and who may change that."""
    caller, handler = await a.client(), await b.client()
    await handler.add("who", echo)
    await checks.refused("handler twice", handler.add("who", echo), "handler for protocol who already set")
    await checks.refused("handler of no name", handler.add("", echo), "name of a protocol")
    await checks.refused("handler by another", caller.remove("who"), "handler for protocol who does not exist")
    streams = data(1, maddr("/unix/nowhere")) + data(2, "who") + number(3, 1)
    await checks.refused("a handler for streams beside one for calls", b.request(STREAM_HANDLER, streams),
                         "handler for protocol who already set")
    other = await b.client()
    await checks.refused("removed by another", other.remove("who"),
                         "handler for protocol who was not created in this persistent connection")
    await checks.refused("a replica that does not say so", other.add("who", echo), "already set")
    await other.add("who", echo, balanced=True)
    await other.close()
    checks.equal(await caller.call(b.id, "who", b"!"), b"!", "a replica is gone, one is left")
    await handler.remove("who")
    await checks.refused("call: removed", caller.call(b.id, "who", b""), "failed to negotiate protocol")
    await checks.refused("removed twice", handler.remove("who"), "does not exist")

    gate, began = asyncio.Event(), asyncio.Queue()
    await handler.add("slow", waiting(began, gate))
    future = caller.begin(b.id, "slow", b"x")[1]
    await began.get()
    await handler.remove("slow")
    gate.set()
    checks.equal(await future, b"x", "a handler that is removed answers what it was asked")
    conn = await b.dial()
    await b.request(IDENTIFY, conn=conn)
    late = await b.client(conn)
    await late.add("who", echo)
    checks.equal(await caller.call(b.id, "who", b"!"), b"!", "a connection becomes persistent later on")
    for client in caller, handler, late:
        await client.close()


def waiting(began, gate):
    """A handler that answers when it may."""
    async def handle(_peer, payload):
        began.put_nowait(payload)
        await gate.wait()
        return payload
    return handle


async def strangers(a, b):
    """A call is between who makes it and who was asked."""
    gate, began = asyncio.Event(), asyncio.Queue()
    caller, other, handler, forger = [await d.client() for d in (a, a, b, b)]
    await handler.add("slow", waiting(began, gate))
    await handler.add("echo", echo)
    call_id, future = caller.begin(b.id, "slow", b"mine")
    await began.get()
    forger.send(call_id, data(4, data(1, b"forged")))
    await forger.add("unused", echo)
    other.cancel(call_id)
    await checks.refused("the id of a call under way, used by another",
                         other.ask(data(3, data(1, b.id) + data(2, "slow") + data(3, b"")), call_id)[1], "")
    checks.equal(await other.call(b.id, "echo", b"x"), b"x", "and others go on")
    checks.ok(not future.done(), "who was not asked does not answer, who did not call does not cancel")
    gate.set()
    checks.equal(await future, b"mine", "the answer is the handler's")
    handler.send(call_id, data(4, data(1, b"again")))
    checks.equal(await caller.call(b.id, "echo", b"x"), b"x", "an answer behind the answer is ignored")

    async def nothing(_peer, _payload):
        asked.set()
        await asyncio.Event().wait()

    asked = asyncio.Event()
    await handler.add("nothing", nothing)
    call_id, future = caller.begin(b.id, "nothing", b"")
    await asked.wait()
    handler.send(call_id, data(4, b""))
    await checks.refused("an answer that is neither one nor an error", future, "")
    for client in caller, other, handler, forger:
        await client.close()


async def unreadable(a):
    for name, message in (("a message that is too long", uvarint((4 << 20) + 1) + b"x"),
                          ("a length without end", b"\xff" * 11),
                          ("garbage", framed(b"\xff" * 9)), ("nothing", framed(b"")),
                          ("a call without an id", framed(data(5, b""))),
                          ("a call with half an id", framed(data(1, b"12345678") + data(5, b"")))):
        client = await a.client()
        client.writer.write(message)
        await asyncio.wait_for(client.task, lib.PATIENCE)
        checks.ok(not client.alive, f"{name}: the connection is closed")


# --- given up -------------------------------------------------------------------------------------

@contextlib.asynccontextmanager
async def stopped(d):
    """The daemon does nothing meanwhile."""
    async def is_stopped():
        with open(f"/proc/{d.process.pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"

    d.process.send_signal(signal.SIGSTOP)
    try:
        while not await is_stopped():
            await asyncio.sleep(0.001)
        yield
    finally:
        d.process.send_signal(signal.SIGCONT)


async def has_calls(d, n):
    return (await d.stats())["calls"] == n


async def serves(d, n):
    return (await d.stats())["served"] == n


async def cancels_by_the_caller(a, b):
    """Before, while and after it is handled."""
    caller, handler = await a.client(), await b.client()
    gate, began = asyncio.Event(), asyncio.Queue()
    await handler.add("waits", waiting(began, gate))
    await handler.add("echo", echo)

    async def all_told():
        return not handler.running

    async def is_clean(when):
        """Whoever was asked is told, and nobody has anything left of it."""
        checks.equal(await caller.call(b.id, "echo", b"x"), b"x", f"cancel {when}: others go on")
        await checks.until(all_told, f"cancel {when}: who was asked is told")
        await checks.until(lambda: serves(b, 0), f"cancel {when}: nothing is left of it")

    call_id, future = caller.begin(b.id, "waits", b"")
    caller.cancel(call_id)
    await checks.cancelled(future, "at once")
    await is_clean("at once")

    mute = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
    where = maddr(f"/ip4/127.0.0.1/tcp/{mute.sockets[0].getsockname()[1]}")
    await checks.refused("connect to one who says nothing",
                         a.connect(FakePeer(STRANGER), [where], timeout=1), "deadline exceeded")
    call_id, future = caller.begin(STRANGER, "waits", b"")
    await checks.until(lambda: has_calls(a, 1), "a call to one that is being dialled is under way")
    caller.cancel(call_id)
    await checks.cancelled(future, "before anybody was reached")
    mute.close()

    async with stopped(b):
        call_id, future = caller.begin(b.id, "waits", b"")
        await checks.until(lambda: has_calls(a, 1), "a call to one that does not answer is under way")
        caller.cancel(call_id)
        await checks.cancelled(future, "while it is opened")
    await is_clean("while it is opened")

    asked = (await b.stats())["served_ever"]
    async with stopped(b):
        call_id, future = caller.begin(b.id, "waits", b"x" * (3 << 20))
        await checks.until(lambda: has_calls(a, 1), "a call that is too long for the window is under way")
        caller.cancel(call_id)
        await checks.cancelled(future, "while it is sent")
    await is_clean("while it is sent")
    checks.equal((await b.stats())["served_ever"], asked + 1, "cancel while it is sent: nobody was asked")

    call_id, future = caller.begin(b.id, "waits", b"")
    await checks.until(lambda: serves(b, 1), "a call is handled")
    caller.cancel(call_id)
    await checks.cancelled(future, "while it is handled")
    await is_clean("while it is handled")

    call_id, future = caller.begin(b.id, "waits", b"x" * (3 << 20))
    await checks.until(lambda: serves(b, 1), "a call of 3 MiB is handled")
    async with stopped(a):
        gate.set()
        await checks.until(lambda: serves(b, 0), "and is answered to one that does not read")
        caller.cancel(call_id)
    try:
        checks.equal(len(await asyncio.wait_for(future, lib.PATIENCE)), 3 << 20,
                     "cancel while it is answered: the answer was quicker")
    except Cancelled:
        checks.ok(True, "cancel while it is answered: it is told")
    checks.equal(await caller.call(b.id, "echo", b"x"), b"x", "cancel while it is answered: others go on")

    call_id, future = caller.begin(b.id, "echo", b"4")
    await future
    caller.cancel(call_id)
    checks.equal(await caller.call(b.id, "echo", b"5"), b"5", "cancel behind the answer is ignored")
    await caller.close()
    await handler.close()


async def who_goes_away(a, b):
    """At every stage too: the caller, the handler, what is between them."""
    caller, handler = await a.client(), await b.client()
    began = asyncio.Queue()
    await handler.add("waits", waiting(began, asyncio.Event()))
    await handler.add("echo", echo)

    gone = await a.client()
    whole = framed(data(1, os.urandom(16)) + data(3, data(1, b.id) + data(2, "waits") + data(3, b"x" * 999)))
    gone.writer.write(whole[:500])
    gone.writer.write_eof()
    await asyncio.wait_for(gone.task, lib.PATIENCE)
    checks.ok(not gone.alive, "the caller is gone in the middle of its call")

    gone = await a.client()
    async with stopped(b):
        gone.begin(b.id, "waits", b"x" * (3 << 20))
        await checks.until(lambda: has_calls(a, 1), "a call that is too long for the window is under way")
        gone.writer.transport.abort()
        await checks.until(lambda: has_calls(a, 0), "the caller is gone while it is sent")
    checks.equal(await caller.call(b.id, "echo", b"x"), b"x", "and the handler is not asked")
    checks.equal(began.qsize(), 0, "by nobody")

    gone = await a.client()
    gone.begin(b.id, "waits", b"")
    await began.get()
    gone.writer.transport.abort()
    await checks.until(lambda: count(handler, 1), "the caller is gone: the handler is told")

    future = caller.begin(b.id, "waits", b"7")[1]
    await began.get()
    handler.writer.transport.abort()
    await checks.refused("a call whose handler is gone", future, "")
    await checks.refused("its handlers are gone with it", caller.call(b.id, "echo", b""),
                         "failed to negotiate protocol")

    late = await b.client()
    await late.add("waits", waiting(began, asyncio.Event()))
    call_id, future = caller.begin(b.id, "waits", b"8")
    await began.get()
    answer = framed(data(1, call_id) + data(4, data(1, b"x" * 9999)))
    late.writer.write(answer[:5000])
    late.writer.write_eof()
    await checks.refused("a call whose handler is gone in the middle of the answer", future, "")

    late = await b.client()
    await late.add("waits", waiting(began, asyncio.Event()))
    future = caller.begin(b.id, "waits", b"9")[1]
    await began.get()
    await a.disconnect(b)
    await checks.refused("a call whose connection is gone", future, "")
    await checks.until(lambda: count(late, 1), "and the handler is told")
    await a.connect(b)
    await caller.close()
    await late.close()


async def count(client, at_least):
    return client.cancels >= at_least


async def a_daemon_dies(p2pd, a):
    d = await Daemon(p2pd).start()
    caller, handler = await a.client(), await d.client()
    began = asyncio.Queue()
    await handler.add("waits", waiting(began, asyncio.Event()))
    await a.connect(d)
    future = caller.begin(d.id, "waits", b"")[1]
    await began.get()
    d.process.kill()
    await d.process.wait()
    await checks.refused("a call whose daemon is gone", future, "")
    await d.stop()
    await caller.close()


# --- many, and long -------------------------------------------------------------------------------

async def balanced(a, b):
    """Replicas take turns, and whose turn it is stays so when one of them goes."""
    seen = []

    def handler(i):
        async def handle(_peer, _payload):
            seen.append(i)
            return b""
        return handle

    async def call(n):
        seen.clear()
        for _ in range(n):
            await caller.call(b.id, "shared", b"")
        return seen

    caller = await a.client()
    replicas = [await b.client() for _ in range(4)]
    for i, replica in enumerate(replicas):
        await replica.add("shared", handler(i), balanced=True)
    checks.equal(await call(7), [0, 1, 2, 3, 0, 1, 2], "calls: replicas in turn")
    await replicas[3].close()
    await checks.until(lambda: has_handlers(b, 3), "calls: the last, whose turn it is, is gone")
    checks.equal(await call(2), [0, 1], "calls: and it is the first one's")
    await replicas[0].remove("shared")
    checks.equal(await call(3), [2, 1, 2], "calls: another is gone, and it is whose it was")
    await replicas[2].close()
    await checks.until(lambda: has_handlers(b, 1), "calls: all are gone but one")
    checks.equal(await call(3), [1, 1, 1], "calls: it is always its turn")
    await replicas[0].add("shared", handler(0), balanced=True)
    seen.clear()
    await asyncio.gather(*(caller.call(b.id, "shared", b"") for _ in range(300)))
    checks.equal((seen.count(0), seen.count(1)), (150, 150), "calls: 300 at once, in turn")
    for client in caller, replicas[0], replicas[1]:
        await client.close()


async def has_handlers(d, n):
    return (await d.stats())["handlers"] == n


async def many(a, b, total):
    caller, handler = await a.client(), await b.client()
    running, most = 0, 0
    gate = asyncio.Event()

    async def slow(_peer, payload):
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == total:
            gate.set()
        await asyncio.wait_for(gate.wait(), 60)
        running -= 1
        return payload[::-1]

    await handler.add("slow", slow)
    payloads = [os.urandom(8) + b"x" * (i % 3000) for i in range(total)]
    answers = await asyncio.gather(*(caller.call(b.id, "slow", p) for p in payloads))
    checks.ok(all(x == y[::-1] for x, y in zip(answers, payloads)), f"{total} calls at once, all answered")
    checks.equal(most, total, "all of them were under way together")
    await caller.close()
    await handler.close()


async def long_messages(p2pd):
    """The limit is a flag, and each daemon has its own: 64 MiB in one call, and not one of 100 kB."""
    flag = f"-persistentConnMaxMsgSize={(64 << 20) + 1000}"
    a, b, small = [await Daemon(p2pd, f).start() for f in (flag, flag, "-persistentConnMaxMsgSize=65536")]
    await a.connect(b)
    await a.connect(small)
    caller, handler, other = [await d.client() for d in (a, b, small)]
    await handler.add("echo", echo)
    payload = os.urandom(1 << 20) * 64
    checks.ok(await caller.call(b.id, "echo", payload) == payload, "call: 64 MiB there and back")

    async def long(_peer, _payload):
        return b"x" * 100000

    await other.add("echo", echo)
    await caller.add("long", long)
    await checks.refused("a call that is too long for the other daemon",
                         caller.call(small.id, "echo", b"x" * 100000), "")
    await checks.refused("an answer that is too long for our own", other.call(a.id, "long", b""),
                         "longer than may be")
    checks.equal(await caller.call(small.id, "echo", b"x" * 60000), b"x" * 60000, "and others go on")
    await asyncio.gather(a.stop(), b.stop(), small.stop())


async def main():
    lib.raise_descriptor_limit()
    with tempfile.TemporaryDirectory() as folder:
        p2pd = link_binary(folder)
        a, b = [await Daemon(p2pd).start() for _ in range(2)]
        keepers = [await d.client() for d in (a, b)]  # who keep them running
        await a.connect(b)
        await calls(a, b)
        await handlers(a, b)
        await strangers(a, b)
        await unreadable(a)
        await cancels_by_the_caller(a, b)
        await who_goes_away(a, b)
        await a_daemon_dies(p2pd, a)
        await balanced(a, b)
        await many(a, b, option("calls", 2000))
        await checks.nothing_left(a)
        await checks.nothing_left(b)
        await checks.end_with_clients((a, b), keepers)
        await long_messages(p2pd)


asyncio.run(asyncio.wait_for(main(), 240))
checks.done()
