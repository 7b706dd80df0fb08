#!/usr/bin/python3
"""muster.rpc against other processes: answers, errors, cancellation, exit, fork and Ctrl-C."""

import asyncio
import concurrent.futures
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, List, Tuple, Type

import harness

import muster
from lib import die_with_parent
from muster import rpc

checks = harness.checks
WORKER = os.path.join(harness.HERE, "rpc_worker.py")


class Other:
    """A worker process, and an agent here that knows it."""

    def __init__(self, *args: str, name: str = "b", number: int = 1, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, WORKER, name, str(number), *args], env=harness.ENVIRONMENT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            universal_newlines=True, preexec_fn=die_with_parent,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        self.agent = rpc.Agent("a", 0, **options)
        self.name = name
        if "held" not in args:
            self.agent.add_worker(name, number, self.address)

    def __enter__(self) -> "Other":
        return self

    def call(self, method: str, *parts: Any, **options: Any) -> Any:
        return self.agent.call(self.name, "test::" + method, *parts, **options)

    def begin(self, method: str, *parts: Any, **options: Any) -> "rpc.Future[Any]":
        return self.agent.call_async(self.name, "test::" + method, *parts, **options)

    def release(self) -> None:
        """Lets one that is held start."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    def said(self) -> str:
        """Ends it, and returns what it wrote on standard error."""
        self.process.kill()
        return str(self.process.communicate()[1])

    def __exit__(self, *_: object) -> None:
        self.agent.shutdown()
        if self.process.poll() is None:
            self.said()


def raises(kind: Type[BaseException], call: Callable[[], Any], what: str) -> Any:
    """The exception of that kind, which the call must raise."""
    try:
        got = call()
    except kind as error:
        checks.ok(True, f"{what}: {type(error).__name__}: {str(error)[:90]}")
        return error
    except BaseException as error:  # noqa: BLE001 - told
        checks.ok(False, what, repr(error))
        return None
    checks.ok(False, what, f"returned {got!r}")
    return None


# --- answers --------------------------------------------------------------------------------------


def test_answers() -> None:
    with Other() as b:
        checks.equal(b.call("Bytes.echo", b"one"), b"one", "one part")
        checks.equal(b.call("Bytes.echo", b"a\0", "ü", bytearray(b"c"), b""),
                     [b"a\0", "ü".encode(), b"c", b""], "several parts")  # fmt: skip
        checks.equal(b.call("Bytes.echo"), b"", "no part")
        checks.equal(b.call("Bytes.none", b"x"), b"", "None is an empty answer")
        checks.equal(b.call("Bytes.text"), "höi".encode(), "text is UTF-8")
        checks.equal(b.agent.call(1, "test::Bytes.echo", b"x"), b"x", "by id")
        checks.equal(b.begin("Bytes.echo", b"x").result(), b"x", "a future")
        error = raises(rpc.RemoteError, lambda: b.call("Bytes.wrong"), "a number is no answer")
        checks.equal(error.type, "TypeError", "and the type is told")
        raises(TypeError, lambda: b.call("Bytes.echo", 3), "a number is no part")
        raises(TypeError, lambda: b.call("Bytes.echo", None), "None is no part")


def test_context() -> None:
    with Other() as b:
        caller, method, left, canceled, thread = b.call("Bytes.context", timeout=5)
        checks.equal((caller, method, canceled), (b"a", b"test::Bytes.context", b"False"),
                     "the handler sees its caller")  # fmt: skip
        checks.ok(4 < float(left) <= 5, "and its deadline", left)
        checks.ok(thread.startswith(b"muster-rpc-serve"), "on a thread of the agent", thread)
        left = b.call("Bytes.context", timeout=float("inf"))[2]
        checks.equal(left, b"inf", "or none")
        checks.equal(b.call("Async.context"), [b"a", b"test::Async.context"], "coroutines, too")
        raises(RuntimeError, rpc.current, "outside of a handler there is no call")


def test_large() -> None:
    with Other() as b:
        data = os.urandom(1 << 20) * 64
        began = time.monotonic()
        checks.ok(b.call("Bytes.echo", data) == data, "64 MiB there and back")
        futures = [b.begin("Bytes.echo", data[: 8 << 20]) for _ in range(8)]
        checks.ok(all(f.result() == data[: 8 << 20] for f in futures), "8 times 8 MiB at once")
        for _ in range(8):
            b.begin("Bytes.echo", os.urandom(4 << 20))  # nobody keeps the future
        gc.collect()
        checks.equal(b.call("Bytes.echo", b"x"), b"x", "futures that nobody keeps do no harm")
        checks.note(f"{time.monotonic() - began:.1f} s")


def test_nested() -> None:
    with Other() as b:

        @b.agent.method("test::Bytes.back")
        def back(method: bytes, depth: bytes) -> Any:
            if int(depth) == 0:
                return b"bottom"
            return b.agent.call("b", method.decode(), method, b"%d" % (int(depth) - 1))

        checks.equal(b.call("Bytes.back", b"test::Bytes.back", b"12"), b"bottom", "calls in calls")


def test_names() -> None:
    with rpc.Agent("a", 0) as agent, rpc.Agent("b", 1) as other:
        agent.add_worker("b", 1, other.address)
        checks.equal(agent.register(raises), "python::__main__.raises", "a function's own name")
        checks.equal(other.register(raises), "python::__main__.raises", "on each agent")
        raises(muster.errors.Exists, lambda: agent.register(raises), "but once")
        raises(ValueError, lambda: agent.register(lambda: b""), "a lambda has no name")
        raises(ValueError, lambda: agent.register(checks.ok, "ok"), "a name has its form")
        raises(TypeError, lambda: agent.register("x"), "text is none")  # type: ignore[arg-type]

        def double(x: bytes) -> bytes:
            return x + x

        agent.register(double, "test::Bytes.double")
        other.register(double, "test::Bytes.double")
        checks.equal(agent.call("b", double, b"x"), b"xx", "a function stands for its name")
        checks.equal(agent.workers(), [rpc.Worker("b", 1)], "the workers")
        agent.remove_worker("b")
        checks.equal(agent.workers(), [], "a worker that was removed")
        raises(rpc.NotFound, lambda: agent.remove_worker("b"), "is not removed twice")
    raises(ValueError, lambda: rpc.Agent("a b"), "a worker's name")
    raises(ValueError, lambda: rpc.Agent("a", threads=0), "no threads")
    raises(rpc.Closed, lambda: agent.call("b", "x::Y.z"), "an agent that was shut down")


# --- errors ---------------------------------------------------------------------------------------


def test_errors() -> None:
    with Other() as b:
        error = raises(rpc.RemoteError, lambda: b.call("Bytes.boom", b"value"), "a handler's error")
        checks.equal((error.type, error.text, error.name),
                     ("ValueError", "the disk is full", "MUSTER_EREMOTE"), "its text")  # fmt: skip
        checks.ok("Traceback" not in str(error) and ".py" not in str(error), "and no more", error)
        error = raises(rpc.RemoteError, lambda: b.call("Bytes.boom", b"long"), "a long text")
        checks.ok(900 < len(error.text) <= 1024, "is cut", len(error.text))
        for what, kind in ((b"exit", "SystemExit"), (b"mute", "KeyError"), (b"zero", "ValueError"),
                           (b"unprintable", "Unprintable")):  # fmt: skip
            error = raises(rpc.RemoteError, lambda: b.call("Bytes.boom", what), f"{what.decode()}")
            checks.equal(error.type, kind, f"type of {what.decode()}")
        error = raises(rpc.RemoteError, lambda: b.call("Async.boom"), "a coroutine's error")
        checks.equal((error.type, error.text), ("LookupError", "nothing here"), "its type and text")
        raises(rpc.RemoteError, lambda: b.call("Bytes.text", b"x"), "wrong arguments")
        error = raises(rpc.NotFound, lambda: b.call("Bytes.nothing"), "no such method")
        checks.equal(error.name, "MUSTER_ENOMETHOD", "its code")
        error = raises(rpc.NotFound, lambda: b.agent.call("c", "test::A.b"), "no such worker")
        checks.equal(error.name, "MUSTER_EWORKER", "its code")
        raises(ValueError, lambda: b.agent.call("b", "no method"), "no method's name")
        raises(ValueError, lambda: b.agent.call("b\0", "a::B.c"), "a zero byte in a name")
        for timeout in (-1.0, float("nan")):
            raises(ValueError, lambda: b.call("Bytes.echo", timeout=timeout), f"timeout {timeout}")
            future = b.begin("Bytes.echo")
            raises(ValueError, lambda: future.result(timeout), f"result({timeout})")
        checks.ok("the disk is full" in b.said(), "what failed is logged where it failed")


def test_timeout() -> None:
    with Other() as b:
        began = time.monotonic()
        raises(rpc.TimedOut, lambda: b.call("Bytes.sleep", b"20", timeout=0.2), "a timeout")
        checks.ok(0.15 < time.monotonic() - began < 15, "in time", time.monotonic() - began)
        harness.wait_until(lambda: b"canceled" in b.call("Bytes.seen"), "the handler was told")
        future = b.begin("Bytes.sleep", b"0.5")
        raises(TimeoutError, lambda: future.result(0.05), "a result that is not there yet")
        raises(TimeoutError, lambda: future.exception(0), "asked without waiting")
        checks.equal(future.done(), False, "it is under way")
        checks.equal(future.result(10), b"slept", "and goes on")
        b.agent.timeout = 0.2
        checks.equal(b.agent.timeout, 0.2, "the agent's timeout")
        raises(rpc.TimedOut, lambda: b.call("Bytes.sleep", b"20"), "is that of calls")


def test_cancel() -> None:
    with Other() as b:
        future = b.begin("Bytes.sleep", b"20")
        time.sleep(0.1)
        checks.equal(future.cancel(), True, "it had not ended")
        raises(rpc.Canceled, lambda: future.result(5), "a call that was canceled")
        checks.equal(future.cancel(), False, "it has")
        checks.ok(isinstance(future.exception(), rpc.Canceled), "its exception")
        harness.wait_until(lambda: b"canceled" in b.call("Bytes.seen"), "the handler was told")

        async def awaiting() -> Any:
            future = b.begin("Async.sleep", b"20")
            try:
                await asyncio.wait_for(future, 0.1)
            except asyncio.TimeoutError:
                await asyncio.sleep(0.2)
                return future.exception(0)

        checks.ok(isinstance(asyncio.run(awaiting()), rpc.Canceled), "a task that was canceled")


def test_lost_worker() -> None:
    place = f"listen=127.0.0.1:{harness.free_port()}"
    with Other(place) as b, Other(place, "held") as successor:
        future = b.begin("Bytes.stubborn", b"20", timeout=30)
        checks.equal(b.call("Bytes.echo", b"x"), b"x", "it is there")
        b.process.kill()
        b.process.wait()
        successor.release()
        raises(rpc.OutcomeUnknown, lambda: future.result(25), "another one in its place")
        successor.process.kill()
        future = b.begin("Bytes.stubborn", b"20", timeout=30)
        raises(muster.errors.ConnectionFailed, lambda: future.result(25), "nobody in its place")
    with rpc.Agent("a", 0) as agent:
        agent.add_worker("b", 1, f"127.0.0.1:{harness.free_port()}")
        raises((muster.errors.ConnectionFailed, rpc.TimedOut),  # type: ignore[arg-type]
               lambda: agent.call("b", "x::Y.z", timeout=1), "nobody is there")  # fmt: skip


def test_closed() -> None:
    with Other() as b:
        future = b.begin("Bytes.stubborn", b"3")
        raises(rpc.Closed, lambda: b.call("Bytes.leave"), "a handler that shuts its agent down")
        raises(rpc.Closed, lambda: future.result(5), "ends the calls of others")
    with Other() as b:
        futures = [b.begin("Bytes.stubborn", b"5"), b.begin("Async.sleep", b"5")]
        waiting: List[Any] = []

        def wait(future: "rpc.Future[Any]") -> None:
            waiting.append(future.exception())

        threads = [threading.Thread(target=wait, args=(f,)) for f in futures]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        began = time.monotonic()
        b.agent.shutdown()
        for thread in threads:
            thread.join(5)
        checks.ok(time.monotonic() - began < 4.5, "shutdown ends calls at once")
        checks.ok(len(waiting) == 2 and all(isinstance(e, rpc.Closed) for e in waiting),
                  "they are closed", waiting)  # fmt: skip
        raises(rpc.Closed, lambda: b.call("Bytes.echo"), "and no call can be made")
        raises(rpc.Closed, lambda: b.begin("Bytes.echo"), "nor begun")
        b.agent.shutdown()


def use_until_closed(agent: rpc.Agent, number: int, wrong: List[Any]) -> None:
    """One of several threads that use an agent until it is shut down under them."""

    async def in_loop() -> None:
        while True:
            await asyncio.gather(*[agent.call_async("b", "test::A.sleep", b"y") for _ in range(10)])

    try:
        while True:
            if number == 0:
                asyncio.run(in_loop())
            elif number % 3 == 0:
                agent.call("b", "test::A.echo", b"x" * 100000)
            elif number % 3 == 1:
                agent.call_async("b", "test::A.sleep", b"x").result()
            else:
                future = agent.call_async("b", "test::A.echo", b"x")
                future.add_done_callback(lambda f: f.exception())
                agent.workers()
    except rpc.Closed:
        pass
    except BaseException as error:  # noqa: BLE001 - told
        wrong.append(error)


def test_shutdown_in_use() -> None:
    async def sleep(data: bytes) -> bytes:
        await asyncio.sleep(0.002)
        return data

    wrong: List[Any] = []
    for turn in range(16):
        with rpc.Agent("a", 0) as a, rpc.Agent("b", 1) as b:
            a.add_worker("b", 1, b.address)
            b.register(lambda data: data, "test::A.echo")
            b.register(sleep, "test::A.sleep")
            threads = [
                threading.Thread(target=use_until_closed, args=(a, number, wrong), daemon=True)
                for number in range(6)
            ]
            for thread in threads:
                thread.start()
            time.sleep(0.02 * (turn % 4))
            for agent in (a, b) if turn % 2 else (b, a):
                agent.shutdown()
            for thread in threads:
                thread.join(10)
            if any(thread.is_alive() for thread in threads):
                wrong.append("a call has not ended")
                break
    checks.equal(wrong, [], "agents are shut down while calls come and go")


def test_retry() -> None:
    with Other() as b:
        raises(rpc.RemoteError, lambda: b.call("Bytes.count"), "it fails the first time")
        checks.equal(b.call("Bytes.count"), b"2", "not the second")
        checks.equal(b.call("Bytes.count", retry=rpc.Retry(gap=0.05)), b"4", "retried")
        error = raises(rpc.RemoteError,
                       lambda: b.call("Bytes.count", retry=rpc.Retry(gap=0.05), once=True),
                       "an answer is final with `once`")  # fmt: skip
        checks.equal(error.text, "not yet", "its text")


# --- many at once ---------------------------------------------------------------------------------


def test_thousand_in_flight() -> None:
    with Other() as b:

        async def many() -> List[Any]:
            return await asyncio.gather(*[b.begin("Async.meet", b"1000") for _ in range(1000)])

        before = threading.active_count()
        began = time.monotonic()
        got = asyncio.run(many())
        checks.ok(all(g == b"1000" for g in got), "a thousand calls are under way at once")
        checks.equal(threading.active_count(), before, "without a thread for each")
        checks.note(f"{time.monotonic() - began:.2f} s")
    with Other() as b:
        futures = [b.begin("Async.meet", b"1000") for _ in range(1000)]
        checks.ok(all(f.result(20) == b"1000" for f in futures), "and from a thread")
    with Other() as b:
        told: List[Any] = []
        for _ in range(1000):  # no call ends before the last one is made
            b.begin("Async.meet", b"1000").add_done_callback(
                lambda f: told.append((f.result(0), threading.current_thread()))
            )
        harness.wait_until(lambda: len(told) == 1000, "the callbacks")
        here = sum(thread is threading.main_thread() for _, thread in told)
        checks.ok(here <= 1, "and with callbacks, on a thread of the agent", here)


def test_threads() -> None:
    with Other() as b:
        wrong: List[Any] = []

        def calls(number: int) -> None:
            for i in range(100):
                data = b"%d-%d" % (number, i)
                if b.call("Bytes.echo", data) != data:
                    wrong.append(data)

        threads = [threading.Thread(target=calls, args=(n,)) for n in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        checks.equal(wrong, [], "16 threads get their own answers")
        began = time.monotonic()
        futures = [b.begin("Bytes.stubborn", b"0.3") for _ in range(32)]
        [f.result() for f in futures]
        checks.ok(0.55 < time.monotonic() - began < 9, "16 handlers run at a time",
                  time.monotonic() - began)  # fmt: skip


def test_asyncio() -> None:
    with Other() as b:
        outside = b.begin("Async.sleep", b"0.1")

        async def main() -> List[Any]:
            inside = b.begin("Async.sleep", b"0.1")
            first = [await outside, await inside, await inside]
            try:
                await b.begin("Async.boom")
            except rpc.RemoteError as error:
                first.append(error.type)
            return first

        checks.equal(asyncio.run(main()), [b"slept"] * 3 + ["LookupError"], "futures are awaited")
        made: List[Any] = []

        async def make() -> None:
            made.append(b.begin("Async.sleep", b"0.3"))

        async def wait() -> Any:
            return await made[0]

        asyncio.run(make())
        checks.equal(asyncio.run(wait()), b"slept", "in another loop than where they were made")
        asyncio.run(make())
        checks.equal(made[1].result(5), b"slept", "or on a thread, when the loop is closed")
        asyncio.run(make())
        told = threading.Event()
        made[2].result(5)
        made[2].add_done_callback(lambda _: told.set())
        checks.ok(told.is_set(), "a callback that comes late is called at once")
        bad = b.begin("Async.sleep", b"0.05")
        bad.add_done_callback(lambda _: 1 / 0)
        bad.add_done_callback(lambda _: told.clear())
        harness.wait_until(lambda: not told.is_set(), "a callback that raises harms no other")


def test_gil_is_free() -> None:
    with Other() as b:
        count = 0
        stop = False

        def spin() -> None:
            nonlocal count
            while not stop:
                count += 1
                time.sleep(0.001)

        thread = threading.Thread(target=spin)
        thread.start()
        b.call("Bytes.stubborn", b"0.5")
        b.begin("Bytes.stubborn", b"0.5").result()
        stop = True
        thread.join()
        checks.ok(count > 50, "other threads run while a call waits", count)


# --- no pickle without being asked ----------------------------------------------------------------


class Hostile:
    """Makes a file where it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (open, (self.path, "w"))


def test_pickle_is_not_loaded_unasked() -> None:
    with harness.Scratch() as scratch, Other() as b, Other("pickle", name="p") as p:
        path = os.path.join(str(scratch), "harm")
        bad = pickle.dumps(Hostile(path))
        checks.ok(isinstance(pickle.loads(bad), object) and os.path.exists(path), "it is hostile")
        os.unlink(path)
        checks.equal(b.call("Bytes.echo", bad), bad, "a pickle is bytes to a function of bytes")
        for call in (b.call, p.call):
            error = raises(rpc.RemoteError, lambda: call("Bytes.echo", b"muster-pickle-1", bad),
                           "one that says so is refused")  # fmt: skip
            checks.equal(error.type, "InvalidArgument", "unread")
        raises(ValueError, lambda: b.call("Bytes.echo", bad, pickle=True), "the agent must ask")
        raises(ValueError, lambda: b.agent.register(raises, "x::Y.z", pickle=True), "for both ways")
        error = raises(rpc.RemoteError, lambda: p.call("Object.add", bad), "bytes to objects")
        checks.equal(error.type, "InvalidArgument", "are not loaded")

        @b.agent.method("test::Bytes.hostile")
        def hostile(*_: bytes) -> List[bytes]:
            return [b"muster-pickle-1", bad]

        b.agent.add_worker("a", 0, b.agent.address)
        got = b.agent.call("a", "test::Bytes.hostile")
        checks.equal(got, [b"muster-pickle-1", bad], "an answer is not loaded, either")
        checks.equal(os.path.exists(path), False, "nothing was loaded")


def test_objects() -> None:
    with Other("pickle", name="p", pickle=False) as plain, rpc.Agent("c", 2, pickle=True) as agent:
        agent.add_worker("p", 1, plain.address)
        raises(ValueError, lambda: plain.call("Object.add", 1, kwargs={"b": 2}), "none unasked")
        checks.equal(agent.call("p", "test::Object.add", 2, 3), 5, "numbers")
        checks.equal(agent.call("p", "test::Object.add", [1], [None, {"a": 2.5}]),
                     [1, None, {"a": 2.5}], "objects")  # fmt: skip
        checks.equal(agent.call("p", "test::Object.add", 1, kwargs={"b": 5}), 6, "named arguments")
        checks.equal(agent.call_async("p", "test::Object.add", "x", "y").result(), "xy", "futures")
        error = raises(rpc.RemoteError, lambda: agent.call("p", "test::Object.boom"), "an error")
        checks.equal(error.type, "Unprintable", "travels as its name")
        checks.equal(agent.call("p", "test::Bytes.echo", b"x", pickle=False), b"x", "bytes as well")
        error = raises(rpc.RemoteError, lambda: agent.call("p", "test::Bytes.text"), "not mixed")
        checks.equal(error.type, "InvalidArgument", "a function of bytes takes no object")


# --- groups ---------------------------------------------------------------------------------------

MEMBER = """
import sys, muster
from muster import rpc
store = muster.Store(sys.argv[1])
me, count = int(sys.argv[2]), int(sys.argv[3])
late = float(sys.argv[4])
agent = rpc.Agent(f"w{me}", me)
@agent.method("test::Group.who")
def who():
    return agent.name
agent.join_group(store, "g", count, timeout=20)
names = [w.name for w in agent.workers()]
assert names == [f"w{i}" for i in range(count)], names
assert [agent.call(n, "test::Group.who").decode() for n in names] == names
assert agent.all_gather(names, "t", str(me)) == [b"%d" % i for i in range(count)]
assert agent.broadcast(names, "w1", "t2", b"root" if me == 1 else b"") == b"root"
if me == 0:
    import time
    time.sleep(late)
agent.leave_group(store, timeout=20)
agent.shutdown()
print("ok")
"""


def test_group() -> None:
    with harness.Server() as server:
        members = [harness.start(MEMBER, server.url, str(i), "4", "2.5") for i in range(4)]
        for member in members:
            ended = harness.finish(member)
            checks.equal((ended.code, ended.out), (0, "ok\n"), f"a member of a group: {ended}")
        with muster.Store(server.url) as store, rpc.Agent("w0", 0) as agent:
            checks.equal(store.keys(), [], "nothing is left in the store")
            error = raises(
                rpc.TimedOut, lambda: agent.join_group(store, "h", 2, timeout=0.6), "alone"
            )
            checks.ok("1" in str(error), "the missing are named")
            raises(ValueError, lambda: agent.leave_group(store), "it is in no group")


class Node:
    """A node of a rendezvous, with an agent that follows its rounds."""

    def __init__(self, port: int, name: str) -> None:
        config = {"last_call_timeout": "100ms", "is_host": False}
        self.rdzv = muster.Rendezvous(f"127.0.0.1:{port}", "job", 2, config=config)
        self.agent = rpc.Agent(name)  # its ids are those of the rounds
        self.agent.register(lambda: name, "test::Node.name")

    def next(self) -> None:
        self.round = self.rdzv.next()
        self.agent.follow_round(self.round, timeout=20)

    def close(self) -> None:
        self.agent.shutdown()
        self.rdzv.close()


def together(*calls: Callable[[], Any]) -> None:
    """Makes calls at the same time, which must all return."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result(harness.PATIENCE)


def check_round(*nodes: Node) -> None:
    """Whether the agents know each other, by name and by rank."""
    ranks = {node.round.rank: node.agent.name for node in nodes}
    for node in nodes:
        me = node.agent
        checks.equal(me.id, node.round.rank, f"{me.name}'s id is its rank")
        known = {worker.id: worker.name for worker in me.workers()}
        checks.equal(known, ranks, f"{me.name} knows the members")
        for rank, name in ranks.items():
            answers = me.call(rank, "test::Node.name"), me.call(name, "test::Node.name")
            checks.equal(answers, (name.encode(), name.encode()), f"{me.name} calls {name}")
        together(lambda: me.follow_round(node.round, timeout=5))
    checks.equal(nodes[0].round.store.keys("rpc/"), [], "nothing is left in the round's store")


def test_follow_round() -> None:
    with harness.Server() as server:
        a, b, c = (Node(server.port, name) for name in "abc")
        together(a.next, b.next)
        check_round(a, b)
        first = a.round
        b.close()
        together(a.next, c.next)
        checks.equal(a.round.round, first.round + 1, "the second round")
        check_round(a, c)
        raises(rpc.NotFound, lambda: a.agent.call("b", "test::Node.name"), "b is gone")
        raises(rpc.Closed, lambda: a.agent.follow_round(first), "a round that is over")
        with rpc.Agent("mute", listen=None) as mute:
            raises(ValueError, lambda: mute.follow_round(a.round), "an agent that does not listen")
        # c does not tell its name a second time: the next round ends the wait.
        ended = []
        with rpc.Agent("late") as late:
            waiting = threading.Thread(
                target=lambda: ended.append(
                    raises(rpc.Closed, lambda: late.follow_round(a.round), "a round that ends")
                )
            )
            waiting.start()
            time.sleep(0.3)  # it waits, most likely; the result is the same if it does not
            began = time.monotonic()
            together(a.rdzv.next, c.rdzv.next)
            waiting.join(harness.PATIENCE)
            checks.ok(len(ended) == 1, f"the wait ends: {time.monotonic() - began:.1f} s")
        a.close()
        c.close()


# --- exit, Ctrl-C, fork ---------------------------------------------------------------------------

EXIT = """
import asyncio, sys, threading, time
from muster import rpc
agent = rpc.Agent("a", 0)
agent.add_worker("b", 1, sys.argv[1])
@agent.method("test::Here.sleep")
def sleep():
    time.sleep(30)
@agent.method("test::Here.async_sleep")
async def async_sleep():
    await asyncio.sleep(30)
agent.add_worker("a", 0, agent.address)
keep = [agent.call_async("a", "test::Here.sleep"), agent.call_async("a", "test::Here.async_sleep"),
        agent.call_async("b", "test::Bytes.stubborn", b"30"),
        agent.call_async("b", "test::Async.sleep", b"30")]
keep[2].add_done_callback(lambda f: None)
agent.call_async("b", "test::Bytes.stubborn", bytes(1 << 20))
def wait(make):
    try:
        make()
    except rpc.Closed:
        pass
for make in (lambda: agent.call("b", "test::Bytes.stubborn", b"30"), keep[3].result):
    threading.Thread(target=wait, args=(make,), daemon=True).start()
time.sleep(0.3)
loop = asyncio.new_event_loop()
async def begin():
    keep.append(agent.call_async("b", "test::Async.sleep", b"30"))
if "loop" in sys.argv:
    loop.run_until_complete(begin())
if "close" in sys.argv:
    loop.close()
if "shutdown" in sys.argv:
    agent.shutdown()
print("end", flush=True)
if "raise" in sys.argv:
    raise SystemExit(5)
"""


def test_exit() -> None:
    with Other() as b:
        for how in ([], ["loop"], ["loop", "close"], ["shutdown"], ["raise"]):
            process = harness.start(EXIT, b.address, *how)
            assert process.stdout is not None
            process.stdout.readline()
            ended = harness.finish(process)
            checks.ok(ended.code == (5 if how == ["raise"] else 0) and ended.seconds < 10,
                      f"exit with calls in every state, {how}: {ended}")  # fmt: skip
            checks.ok("Error" not in ended.err and "Exception" not in ended.err, "in silence",
                      ended.err)  # fmt: skip


def test_peer_exits() -> None:
    """Whoever waits for an answer is told when the worker's program ends."""
    program = """
import asyncio, time
from muster import rpc
agent = rpc.Agent("x", 1)
@agent.method("test::Here.sleep")
def sleep():
    time.sleep(30)
@agent.method("test::Here.async_sleep")
async def async_sleep():
    await asyncio.sleep(30)
print(agent.address, flush=True)
time.sleep(1)
"""
    process = harness.start(program)
    assert process.stdout is not None
    with rpc.Agent("a", 0) as agent:
        agent.add_worker("x", 1, process.stdout.readline().strip())
        futures = [agent.call_async("x", "test::Here." + m) for m in ("sleep", "async_sleep")]
        for future in futures:
            raises(rpc.Closed, lambda: future.result(10), "the worker's program has ended")
    ended = harness.finish(process)
    checks.equal((ended.code, ended.err), (0, ""), "in order")


INTERRUPT = """
import asyncio, sys, time, muster
from muster import rpc
agent = rpc.Agent("a", 0)
agent.add_worker("b", 1, sys.argv[1])
store = muster.Store("hash:")
what = {
    "call": lambda: agent.call("b", "test::Bytes.stubborn", b"30"),
    "large": lambda: agent.call("b", "test::Bytes.stubborn", b"30", bytes(1 << 20)),
    "result": lambda: agent.call_async("b", "test::Bytes.stubborn", b"30").result(),
    "timed": lambda: agent.call_async("b", "test::Bytes.stubborn", b"30").result(20),
    "await": lambda: asyncio.run(waiting()),
    "join": lambda: agent.join_group(store, "g", 2, timeout=20),
    "gather": lambda: agent.all_gather(["a", "b"], "t", b"x", timeout=20),
}[sys.argv[2]]
async def waiting():
    await agent.call_async("b", "test::Async.sleep", b"30")
print("ready", flush=True)
try:
    what()
except KeyboardInterrupt:
    print(time.monotonic(), flush=True)
agent.shutdown()
store.close()
"""


def interrupt(address: str, what: str) -> Tuple[float, harness.Ended]:
    """Milliseconds until the program has caught the signal, and how it ended."""
    process = harness.start(INTERRUPT, address, what)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)  # it is in the call by then; if it is not, the test is only easier
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    late = (float(process.stdout.readline() or "inf") - began) * 1000
    return late, harness.finish(process)


def test_ctrl_c() -> None:
    with Other() as b:
        for what in ("call", "large", "result", "timed", "await", "join", "gather"):
            late, ended = interrupt(b.address, what)
            for _ in range(3):  # a machine that is busy with other things may take longer
                if late < 100 or ended.code != 0:
                    break
                late, ended = interrupt(b.address, what)
            checks.ok(late < 100 and ended.code == 0 and ended.err == "",
                      f"Ctrl-C during {what} after {late:.0f} ms, end after {ended.seconds:.1f} s",
                      ended)  # fmt: skip


def test_fork() -> None:
    with Other() as b:
        future = b.begin("Bytes.stubborn", b"0.5")
        checks.equal(b.call("Bytes.echo", b"x"), b"x", "before")
        pid = os.fork()
        if pid == 0:
            failed = 0
            for use in (lambda: b.call("Bytes.echo"), lambda: b.begin("Bytes.echo"),
                        lambda: future.result(1), lambda: future.cancel(), lambda: future.done(),
                        lambda: b.agent.workers(), lambda: b.agent.register(raises)):  # fmt: skip
                try:
                    use()
                    failed += 1
                except rpc.Closed as error:
                    failed += "fork" not in str(error)
            b.agent.shutdown()
            del b.agent, future
            gc.collect()
            with rpc.Agent("c", 2) as mine:
                mine.add_worker("b", 1, b.address)
                failed += mine.call("b", "test::Bytes.echo", b"y") != b"y"
            os._exit(failed)
        code = os.WEXITSTATUS(os.waitpid(pid, 0)[1])
        checks.equal(code, 0, "a child is told, and can open its own")
        checks.equal(future.result(), b"slept", "the parent goes on")
        checks.equal(b.call("Bytes.fork"), b"7", "a handler may fork")
        checks.equal(b.call("Bytes.echo", b"x"), b"x", "after")


def test_dropped() -> None:
    """Agents and futures that nobody keeps."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        agent = rpc.Agent("a", 0)
        agent.register(raises)
        agent.add_worker("a", 0, agent.address)
        agent.call_async("a", "test::No.thing").add_done_callback(lambda _: None)
        del agent

    def given_back() -> bool:
        gc.collect()
        return len(os.listdir("/proc/self/fd")) <= before + 12  # the runtime itself has some

    harness.wait_until(given_back, "the descriptors of agents that nobody keeps are given back", 10)
    checks.ok(True, "agents that nobody keeps are closed")


harness.main(globals())
