#!/usr/bin/python3
"""Every operation of a store, waited for and awaited, on each kind of store that a machine has by
itself; watches, leases, servers; errors and their classes."""

import asyncio
import contextlib
import copy
import math
import os
import pickle
import threading
import time
import urllib.request
from typing import Any, Callable, Dict, Iterator, List, Tuple

import harness

import muster
from muster import errors
from muster.store import SESSION, Change, ChangeKind, CompareSet

checks = harness.checks

# (operation, arguments, options, what it returns, or the error that it raises); queues and leases
# are not in every kind of store.
Row = Tuple[str, Tuple[Any, ...], Dict[str, Any], Any]
BINARY = bytes(range(256))
STEPS: List[Row] = [
    ("set", ("a", "1"), {}, None),
    ("get", ("a",), {}, b"1"),
    ("set", (b"raw\0key", BINARY), {"timeout": 5}, None),
    ("get", (b"raw\0key",), {"timeout": math.inf}, BINARY),
    ("set", ("empty", b""), {}, None),
    ("get", ("empty",), {}, b""),
    ("set", ("buffer", bytearray(b"xy")), {}, None),
    ("get", ("buffer",), {}, b"xy"),
    ("set", ("buffer", memoryview(b"xyz")[1:]), {}, None),
    ("get", ("buffer",), {"wait": False}, b"yz"),
    ("set", ("snow\u2603", "man\u2603"), {}, None),
    ("get", ("snow\u2603".encode(),), {}, "man\u2603".encode()),
    ("get", ("absent",), {"wait": False}, errors.NotFound),
    ("get", ("absent",), {"timeout": 0.05}, errors.TimedOut),
    ("add", ("n", 5), {}, 5),
    ("add", ("n",), {}, 6),
    ("add", ("n", -10), {}, -4),
    ("get", ("n",), {}, b"-4"),
    ("add", ("big", 2**62), {}, 2**62),
    ("add", ("big", 2**64), {}, ValueError),
    ("compare_set", ("cas", "", "first"), {}, CompareSet(b"first", True)),
    ("compare_set", ("cas", "other", "second"), {}, CompareSet(b"first", False)),
    ("compare_set", ("cas", "first", "second"), {}, CompareSet(b"second", True)),
    ("check", ("a",), {}, True),
    ("check", (["a", "n"],), {}, True),
    ("check", (["a", "absent"],), {}, False),
    ("wait", (["a", b"n"],), {}, None),
    ("wait", ("a",), {}, None),
    ("wait", (["a", "absent"],), {"timeout": 0.05}, errors.TimedOut),
    ("delete", ("a",), {}, True),
    ("delete", ("a",), {}, False),
    ("append", ("list", "x"), {}, None),
    ("append", ("list", "y" * 5000), {}, None),
    ("get", ("list",), {}, b"x" + b"y" * 5000),
    ("multi_set", ({"m1": "v1", b"m2": b"v2", "m3": b""},), {}, None),
    ("multi_set", ([("m4", "v4")],), {}, None),
    ("multi_get", (["m1", "m2", "m3", "m4"],), {}, [b"v1", b"v2", b"", b"v4"]),
    ("multi_get", (["m1", "absent"],), {"timeout": 0.05}, errors.TimedOut),
    ("set", ("large", b"L" * 3_000_000), {}, None),
    ("get", ("large",), {}, b"L" * 3_000_000),
    ("num_keys", (), {}, 13),
    ("barrier", ("alone", 1), {}, None),
    ("barrier", ("two", 2), {"timeout": 0.05}, errors.TimedOut),
    ("barrier", ("none", 0), {}, ValueError),
    ("set", ("a", 1), {}, TypeError),
    ("set", (None, "v"), {}, TypeError),
    ("get", ("a",), {"timeout": -1}, ValueError),
    ("get", ("a",), {"timeout": math.nan}, ValueError),
    ("get", ("a",), {"timeout": 0}, errors.InvalidArgument),
]
MORE: List[Row] = [
    ("keys", ("m",), {}, [b"m1", b"m2", b"m3", b"m4"]),
    ("push", ("q", "1"), {}, None),
    ("push", ("q", "2"), {}, None),
    ("queue_len", ("q",), {}, 2),
    ("pop", ("q",), {}, b"1"),
    ("pop", ("q",), {"wait": False}, b"2"),
    ("pop", ("q",), {"wait": False}, errors.NotFound),
    ("pop", ("q",), {"timeout": 0.05}, errors.TimedOut),
    ("queue_len", ("q",), {}, 0),
    ("set", ("mine", "1"), {"lease": SESSION}, None),
    ("add", ("snow\u2603",), {}, errors.InvalidArgument),
    ("set", ("leased", "1"), {"lease": 12345}, errors.NotFound),
]


@contextlib.contextmanager
def stores() -> Iterator[List[Tuple[str, str, List[Row]]]]:
    with harness.Server() as server, harness.Scratch() as folder:
        yield [
            ("tcp", server.url, STEPS + MORE),
            ("hash", "hash:", STEPS + MORE),
            ("file", "file://" + os.path.join(folder, "store"), STEPS),
        ]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - compared with what is expected
        return error


def compare(got: Any, row: Row, kind: str) -> None:
    name, args, options, expected = row
    what = f"{kind}: {name}{args!r}"[:70] + f" {options or ''}"
    if isinstance(expected, type):
        checks.ok(type(got) is expected, what + f" raises {expected.__name__}", repr(got))
        return
    if name == "keys" and isinstance(got, list):
        got = sorted(got)
    checks.ok(got == expected and type(got) is type(expected), what, repr(got)[:200])


def test_operations() -> None:
    with stores() as kinds:
        for kind, url, rows in kinds:
            with muster.Store(f"{url}?prefix=sync") as store:
                for row in rows:
                    name, args, options, _ = row
                    compare(outcome(lambda: getattr(store, name)(*args, **options)), row, kind)


def test_operations_on_a_thread() -> None:
    with stores() as kinds:
        for kind, url, rows in kinds:
            def work() -> None:
                with muster.Store(f"{url}?prefix=thread") as store:
                    for row in rows:
                        name, args, options, _ = row
                        got = outcome(lambda: getattr(store, name)(*args, **options))
                        compare(got, row, kind + " on a thread")
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()


def test_operations_awaited() -> None:
    async def work(kind: str, url: str, rows: List[Row]) -> None:
        async with await muster.Store.open_async(f"{url}?prefix=async") as store:
            for row in rows:
                name, args, options, _ = row
                try:
                    got = await getattr(store, name)(*args, **options)
                except Exception as error:  # noqa: BLE001 - compared with what is expected
                    got = error
                compare(got, row, "async " + kind)

    with stores() as kinds:
        for kind, url, rows in kinds:
            asyncio.run(work(kind, url, rows))


def test_as_a_mapping() -> None:
    with muster.Store("hash:") as store:
        store["k"] = "v"
        checks.equal(store["k"], b"v", "store[key]")
        checks.ok("k" in store and "x" not in store, "key in store")
        del store["k"]
        checks.raises(KeyError, lambda: store["k"], "an absent key is a KeyError")
        checks.raises(errors.NotFound, lambda: store.__delitem__("k"), "del of an absent key")
        checks.raises(TypeError, lambda: list(store), "it is no iterator", "not iterable")  # type: ignore
        store.timeout = 0.05
        checks.equal(store.timeout, 0.05, "the store's timeout")
        checks.raises(TimeoutError, lambda: store.get("k"), "it applies")
        store.timeout = math.inf
        checks.equal(store.timeout, math.inf, "no bound")
        checks.equal(repr(store), "<muster.Store hash:>", "repr")
    checks.equal(repr(store), "<muster.Store hash: closed>", "repr of a closed store")


def test_watch() -> None:
    with harness.Server() as server:
        for url in (server.url, "hash:"):
            with muster.Store(url) as store:
                store.set("w/0", "old")
                with store.watch("w/", prefix=True, current=True) as watch:
                    checks.equal(watch.next(5)[:3], (ChangeKind.CREATED, b"w/0", b"old"),
                                 f"{url}: the current value")
                    store.set("w/0", "new")
                    store.append("w/0", "er")
                    store.delete("w/0")
                    store.set("other", "x")
                    got = [next(watch) for _ in range(3)]
                    checks.equal([c.kind for c in got],
                                 [ChangeKind.UPDATED, ChangeKind.APPENDED, ChangeKind.DELETED],
                                 "kinds of changes")
                    checks.ok(isinstance(got[0], Change) and got[0].revision < got[1].revision,
                              "revisions grow")
                    checks.raises(errors.TimedOut, lambda: watch.next(0.05), "no change in time")
                    for i in range(1000):
                        store.set("w/%d" % i, str(i))
                    checks.equal([int(next(watch).value) for _ in range(1000)], list(range(1000)),
                                 "a thousand changes in order")
                checks.equal(list(watch), [], "a closed watch ends")
                watch = store.watch("w")
            checks.raises(errors.Closed, lambda: next(watch), "a closed store ends its watches")


def test_watch_across_threads() -> None:
    with muster.Store("hash:") as store:
        watch = store.watch("key")
        seen: List[Any] = []

        def follow() -> None:
            seen.extend(change.value for change in watch)
            seen.append("end")

        thread = threading.Thread(target=follow)
        thread.start()
        store.set("key", "1")
        harness.wait_until(lambda: seen == [b"1"], "the change is seen")
        watch.close()
        thread.join(5)
        checks.equal(seen, [b"1", "end"], "close() ends an iteration on another thread")
        watch.close()


def test_watch_awaited() -> None:
    async def work() -> None:
        async with await muster.Store.open_async("hash:") as store:
            async with store.watch("k", prefix=True) as watch:
                for i in range(200):
                    await store.set(f"k{i}", str(i))
                got = []
                async for change in watch:
                    got.append(int(change.value))
                    if len(got) == 200:
                        break
                checks.equal(got, list(range(200)), "changes in order")
                try:
                    await watch.next(0.05)
                    checks.ok(False, "no change in time")
                except errors.TimedOut:
                    checks.ok(True, "no change in time")
                await store.set("k", "late")
                checks.equal((await watch.next(5)).value, b"late", "a timeout loses nothing")
            checks.equal([c async for c in watch], [], "a closed watch ends")
            watch = store.watch("k")
            waits = asyncio.ensure_future(watch.next())
            await asyncio.sleep(0)
            await store.close()
            try:
                await waits
                checks.ok(False, "a closed store ends its watches")
            except errors.Closed:
                checks.ok(True, "a closed store ends its watches")

    asyncio.run(work())


def test_lease() -> None:
    with harness.Server() as server, muster.Store(server.url) as store:
        checks.raises(ValueError, lambda: store.lease(1e30), "a lease that is too long", "to 2**40")
        with store.lease(30) as lease:
            store.set("held", "1", lease=lease)
            store.add("count", 1, lease=lease.number)
            checks.equal([number for number, _ in zip(lease, range(3))], [lease.number] * 3,
                         "each step renews it")
            checks.equal(lease.ttl, 30, "its time")
        checks.equal(store.check("held") or store.check("count"), False, "its keys are gone")
        checks.equal(list(lease), [], "a revoked lease ends its iteration")
        lease = store.lease(0.2)
        store.set("short", "1", lease=lease)
        harness.wait_until(lambda: not store.check("short"), "the lease ends")
        checks.raises(errors.NotFound, lease.keep, "a lease that has ended")
        with store.watch("kept") as watch, store.lease(2).keep_alive() as lease:
            store.set("kept", "1", lease=lease)
            watch.next(5)
            checks.raises(errors.TimedOut, lambda: watch.next(4.5), "keep_alive() keeps it")
        checks.equal(watch._closed, True, "the watch is closed")
        lost = store.lease(0.3).keep_alive()
        muster.store.Lease(store, lost.number, 1).revoke()
        harness.wait_until(lambda: lost.error, "keep_alive() notices the end")
        checks.raises(errors.NotFound, lambda: next(lost), "the next step says so")
        checks.raises(ValueError, lambda: store.lease(0), "a lease of no time")
        with store.lease(0.05) as lease:
            store.set("gone", "1", lease=lease)
            harness.wait_until(lambda: not store.check("gone"), "the lease ends")
        checks.ok(True, "a lease that has ended can be left")
        before = threading.active_count()
        del lost, lease
        forgotten = store.lease(0.2).keep_alive()
        checks.equal(threading.active_count() - before <= 1, True, "a thread renews")
        del forgotten
        harness.wait_until(lambda: "muster-lease" not in [t.name for t in threading.enumerate()],
                           "the thread ends with its lease")


def test_lease_awaited() -> None:
    async def work(url: str) -> None:
        async with await muster.Store.open_async(url) as store:
            async with store.lease(30) as lease:
                await store.set("held", "1", lease=lease)
                steps = 0
                async for _ in lease:
                    steps += 1
                    if steps == 3:
                        break
            checks.equal(await store.check("held"), False, "async: its keys are gone")
            async with store.lease(2) as lease:
                lease.keep_alive()
                watch = store.watch("kept")
                await store.set("kept", "1", lease=lease)
                await watch.next(5)
                try:
                    await watch.next(4.5)
                    checks.ok(False, "async: keep_alive() keeps it")
                except errors.TimedOut:
                    checks.ok(True, "async: keep_alive() keeps it")
            lease = await store.lease(1)
            checks.ok(lease.number > 0, "a lease that is awaited")
            await lease.revoke()

    with harness.Server() as server:
        asyncio.run(work(server.url))


def test_cancel() -> None:
    async def work() -> None:
        async with await muster.Store.open_async("hash:") as store:
            tasks = [asyncio.ensure_future(store.pop("queue")) for _ in range(20)]
            await asyncio.sleep(0.05)
            for task in tasks[1:]:
                task.cancel()
            await asyncio.gather(*tasks[1:], return_exceptions=True)
            checks.ok(all(task.cancelled() for task in tasks[1:]), "tasks are canceled")
            await store.push("queue", "x")
            checks.equal(await tasks[0], b"x", "a canceled pop takes nothing")
            await store.push("queue", "y")
            checks.equal(await store.queue_len("queue"), 1, "nobody else waits")
            try:
                await asyncio.wait_for(store.get("never"), 0.05)
                checks.ok(False, "asyncio's own timeout")
            except asyncio.TimeoutError:
                checks.ok(True, "asyncio's own timeout")

    asyncio.run(work())


def test_server() -> None:
    with harness.Scratch() as folder:
        with muster.Server(data_dir=folder, sync="interval", sync_interval=0.01,
                           http="127.0.0.1:0", value_bytes_max=1000) as server:
            checks.equal(server.address, f"127.0.0.1:{server.port}", "its address")
            checks.equal(server.url, f"tcp://127.0.0.1:{server.port}", "its URL")
            with urllib.request.urlopen(f"http://{server.http_address}/healthz", timeout=5) as page:
                checks.equal(page.status, 200, "its page")
            with muster.Store(server.url) as store:
                store.set("kept", "1")
                checks.raises(errors.LimitExceeded, lambda: store.set("big", b"x" * 2000),
                              "a limit is kept")
            checks.raises(errors.Busy, lambda: muster.Server(data_dir=folder),
                          "its directory is in use")
            checks.raises(errors.ConnectionFailed,
                          lambda: muster.Server(f"127.0.0.1:{server.port}"), "its port is in use")
        checks.raises(errors.Closed, lambda: server.port, "a closed server")
        checks.equal(repr(server), "<muster.Server closed>", "repr of a closed server")
        with muster.Server(data_dir=folder) as again, muster.Store(again.url) as store:
            checks.equal(store.get("kept", wait=False), b"1", "what was written is kept")
            with muster.Server(backing=again.url) as gateway, muster.Store(gateway.url) as through:
                checks.equal(through.get("kept"), b"1", "a gateway")
            again.drain()
    checks.raises(errors.Locked, lambda: muster.Server("0.0.0.0:0"), "beyond loopback it is locked",
                  "credential")
    checks.raises(ValueError, lambda: muster.Server(sync="never"), "a wrong word")
    with muster.Server("[::1]:0") as server, muster.Store(server.url) as store:
        store.set("a", "b")
        checks.equal(store.get("a"), b"b", "IPv6")


def test_server_started_again() -> None:
    """What is asked for while there is no server has not happened anywhere else."""
    server = muster.Server("127.0.0.1:0")
    address = server.address
    with muster.Store(server.url) as store:
        store.set("before", "")
        server.close()
        checks.raises(errors.TimedOut, lambda: store.get("before", timeout=0.2),
                      "without a server, a read ends in time", "no connection")
        checks.raises(errors.TimedOut, lambda: store.set("lost", "", timeout=0.2),
                      "so does a write", "no connection")
        began = threading.Event()

        def start() -> None:
            nonlocal server
            began.wait(30)
            server = muster.Server(address)

        thread = threading.Thread(target=start)
        thread.start()
        pending = asyncio.run(_set_when_told(store, began))
        thread.join()
        checks.equal(pending, None, "a write waits for the server, and is sent to it once")
        checks.equal(sorted(store.keys()), [b"kept"], "which has nothing else")
        server.close()


async def _set_when_told(store: muster.Store, began: threading.Event) -> None:
    under_way = asyncio.ensure_future(store.aio.set("kept", "", timeout=30))
    await asyncio.sleep(0)
    began.set()
    return await under_way


def test_errors() -> None:
    port = harness.free_port()
    url = f"tcp://127.0.0.1:{port}"
    began = time.monotonic()
    error = outcome(lambda: muster.Store(url, connect_timeout=0.3))
    checks.ok(isinstance(error, ConnectionError) or isinstance(error, TimeoutError),
              "nothing listens there", repr(error))
    checks.ok(time.monotonic() - began < 30, "in time")
    checks.raises(errors.InvalidArgument, lambda: muster.Store("nonsense"), "a malformed URL")
    with muster.Server("127.0.0.1:0") as server, muster.Store(server.url) as store:
        store.set("a", "b")
        server.close()
        for what, call in (("a set", lambda: store.set("a", "c", timeout=0.3)),
                           ("a get", lambda: store.get("x", timeout=0.3))):
            checks.raises(errors.TimedOut, call, f"{what} while the server is gone",
                          "no connection to 127.0.0.1")
    checks.raises(ValueError, lambda: muster.Store("hash:\0"), "a URL with a zero byte")
    with muster.Store("hash:") as store:
        errors_seen = [
            outcome(lambda: store.get("x", wait=False)),
            outcome(lambda: store.get("x", timeout=0.02)),
        ]
    errors_seen.append(outcome(lambda: store.get("x")))
    errors_seen.append(outcome(lambda: muster.Store("nonsense")))
    errors_seen.append(error)
    for one in errors_seen:
        for way, twin in (("pickled", pickle.loads(pickle.dumps(one))), ("copied", copy.copy(one))):
            checks.equal((type(twin), str(twin), twin.code, twin.name),
                         (type(one), str(one), one.code, one.name),
                         f"{type(one).__name__} is {way}")
        checks.ok(str(one) and not str(one).startswith("'"), f"it says: {one}")
    checks.raises(KeyError, lambda: (_ for _ in ()).throw(errors_seen[0]), "NotFound: KeyError")
    for name in errors.__all__:
        one = pickle.loads(pickle.dumps(getattr(errors, name)("text")))
        checks.equal((str(one), one.code), ("text", 0), f"{name} by hand")


harness.main(globals())
