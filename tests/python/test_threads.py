#!/usr/bin/python3
"""Threads and event loops: waits leave the interpreter to others, closing is safe at any moment,
event loops come and go."""

import asyncio
import gc
import os
import threading
import time
from typing import Any, Callable, List

import harness

import muster
from muster import _runtime, errors

checks = harness.checks


def on_thread(call: Callable[[], Any]) -> "threading.Thread":
    thread = threading.Thread(target=call)
    thread.start()
    return thread


def test_waits_release_the_interpreter() -> None:
    """Each wait is ended by something that another thread of this interpreter does."""
    with harness.Server() as server, muster.Store(server.url) as store:
        results: List[Any] = []
        waits = {
            "get": (lambda: store.get("g"), lambda: store.set("g", "1")),
            "wait": (lambda: store.wait("w"), lambda: store.set("w", "1")),
            "pop": (lambda: store.pop("p"), lambda: store.push("p", "1")),
            "barrier": (lambda: store.barrier("b", 2), lambda: store.barrier("b", 2)),
            "multi_get": (lambda: store.multi_get(["x", "y"]),
                          lambda: store.multi_set({"x": "1", "y": "2"})),
            "watch": (lambda: store.watch("k", current=True).next(30), lambda: store.set("k", "1")),
        }
        for name, (wait, end) in waits.items():
            thread = on_thread(lambda: results.append(wait()))
            end()
            thread.join(30)
            checks.ok(not thread.is_alive(), f"{name} on a thread, ended by the main one")
        for name in ("get", "wait", "pop"):
            wait, end = waits[name]
            store.delete(name[0])
            timer = threading.Timer(0.05, end)
            timer.start()
            wait()
            checks.ok(True, f"{name} on the main thread, ended by another")
            timer.join()


def test_open_releases_the_interpreter() -> None:
    """A store is opened while this very interpreter starts the server."""
    port = harness.free_port()
    servers: List[muster.Server] = []
    timer = threading.Timer(0.2, lambda: servers.append(muster.Server(f"127.0.0.1:{port}")))
    timer.start()
    with muster.Store(f"tcp://127.0.0.1:{port}", connect_timeout=30) as store:
        store.set("a", "b")
    timer.join()
    servers[0].close()
    checks.ok(True, "open waits for a server of this process")


def test_close_under_operations() -> None:
    """A store, a watch and a runtime are closed while threads are in the midst of them."""
    with harness.Server() as server:
        for round_number in range(30):
            runtime = muster.Runtime()
            store = muster.Store(server.url, runtime=runtime)
            ended: List[BaseException] = []
            begun = threading.Barrier(9)

            def work(operation: Callable[[muster.Store], Any]) -> None:
                begun.wait()
                try:
                    while True:
                        operation(store)
                except errors.MusterError as error:
                    ended.append(error)

            operations: List[Callable[[muster.Store], Any]] = [
                lambda s: s.set("a", "b"),
                lambda s: s.get("a"),
                lambda s: s.get("never"),
                lambda s: s.add("n"),
                lambda s: s.watch("a").next(),
                lambda s: s.timeout,
                lambda s: asyncio.run(s.aio.get("never")),
                lambda s: muster.Store("hash:", runtime=runtime).close(),
            ]
            threads = [on_thread(lambda o=o: work(o)) for o in operations]
            begun.wait()
            time.sleep(0.001 * (round_number % 10))
            if round_number % 2:
                store.close()
            runtime.close()
            for thread in threads:
                thread.join(20)
            if not checks.ok(not any(t.is_alive() for t in threads) and len(ended) == 8 and
                             all(isinstance(e, errors.Closed) for e in ended),
                             f"round {round_number}: each thread sees that it is closed", ended):
                break


def test_one_store_in_two_loops() -> None:
    with harness.Server() as server, muster.Store(server.url) as store:
        async def work() -> None:
            async def one() -> None:
                for _ in range(50):
                    await store.aio.add("n")
            await asyncio.gather(*[one() for _ in range(8)])

        threads = [on_thread(lambda: asyncio.run(work())) for _ in range(2)]
        for thread in threads:
            thread.join(60)
        checks.equal(store.get("n"), b"800", "two event loops in two threads")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_loops_come_and_go() -> None:
    with muster.Store("hash:") as store:
        async def work() -> None:
            await store.aio.set("a", "b")
            asyncio.ensure_future(store.aio.get("never"))
            await asyncio.sleep(0)

        asyncio.run(work())
        gc.collect()
        before = descriptors()
        for _ in range(100):
            asyncio.run(work())
        gc.collect()
        asyncio.run(work())
        checks.ok(descriptors() <= before + 4, "a hundred loops leave no descriptors",
                  f"{before} before, {descriptors()} after")
        first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
        for _ in range(3):
            first.run_until_complete(store.aio.set("a", "c"))
            second.run_until_complete(store.aio.set("a", "d"))
        first.close()
        second.run_until_complete(store.aio.set("a", "e"))
        second.close()
        checks.ok(True, "two loops by turns")


def test_runtime_closed_under_a_loop() -> None:
    async def work(closer: Callable[[], None]) -> List[Any]:
        tasks = [asyncio.ensure_future(store.aio.get("never")) for _ in range(5)]
        watch = store.aio.watch("never")
        tasks.append(asyncio.ensure_future(watch.next()))
        await asyncio.sleep(0.02)
        thread = threading.Thread(target=closer)
        thread.start()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        thread.join()
        # Another runtime in the same loop, whose descriptors have the same numbers.
        async with await muster.Store.open_async("hash:") as other:
            await other.set("a", "b")
        return results

    for name in ("the store", "the runtime"):
        runtime = muster.Runtime()
        store = muster.Store("hash:", runtime=runtime)
        closer = store.close if name == "the store" else runtime.close
        results = asyncio.run(work(closer))
        checks.ok(all(isinstance(r, errors.Closed) for r in results),
                  f"{name} is closed under an event loop", results)
        runtime.close()


def test_closed_things() -> None:
    store = muster.Store("hash:")
    watch = store.watch("a")
    store.close()
    store.close()
    for name, call in {
        "get": lambda: store.get("a"),
        "watch": lambda: store.watch("a"),
        "lease": lambda: store.lease(1),
        "timeout": lambda: store.timeout,
        "aio": lambda: asyncio.run(store.aio.get("a")),
        "an old watch": lambda: next(watch),
    }.items():
        checks.raises(errors.Closed, call, f"{name} of a closed store", "closed")
    watch.close()
    runtime = muster.Runtime()
    inner = muster.Store("hash:", runtime=runtime)
    runtime.close()
    runtime.close()
    checks.ok(inner.closed, "a runtime closes what is open in it")
    checks.raises(errors.Closed, lambda: muster.Store("hash:", runtime=runtime), "a closed runtime")
    with muster.Store("hash:") as fresh:
        fresh.set("a", "b")
    _runtime.default().close()
    with muster.Store("hash:") as fresh:
        fresh.set("a", "b")
    checks.ok(True, "the process's runtime is made anew")


def test_many_threads() -> None:
    with harness.Server() as server, muster.Store(server.url) as store:
        def work(number: int) -> None:
            for i in range(50):
                store.set(f"k{number}", str(i))
                if store.get(f"k{number}") != str(i).encode():
                    wrong.append(number)
                store.add("sum")
        wrong: List[int] = []
        threads = [on_thread(lambda n=n: work(n)) for n in range(32)]
        for thread in threads:
            thread.join()
        checks.equal((store.get("sum"), wrong), (b"1600", []), "32 threads on one store")


harness.main(globals())
