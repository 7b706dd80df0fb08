#!/usr/bin/python3
"""Ten thousand stores, and servers now and then: memory and descriptors stay where they are.

usage: test_leaks.py [MUSTER] [--rounds=10000]
"""

import asyncio
import gc
import os
from typing import Callable

import harness

import muster

checks = harness.checks
ROUNDS = harness.option("rounds", 10000)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def memory() -> int:
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def stays(name: str, rounds: int, work: Callable[[int], None], room_kib: int = 4096) -> None:
    """Runs it a fifth of the rounds to warm up, and then all of them; the heap may take a little
    room that it does not need again."""
    for i in range(rounds // 5):
        work(i)
    gc.collect()
    fds, rss = descriptors(), memory()
    for i in range(rounds):
        work(i)
    gc.collect()
    grown = memory() - rss
    checks.ok(grown < room_kib, f"{name}: {rounds} rounds, {grown:+} KiB of {rss} KiB")
    checks.ok(descriptors() <= fds, f"{name}: {fds} descriptors, then {descriptors()}")


def test_stores() -> None:
    def work(number: int) -> None:
        with muster.Store("hash:") as store:
            store.set("a", b"x" * 1000)
            store.get("a")
        if number % 100 == 0:
            with muster.Server() as server, muster.Store(server.url) as store:
                store.set("a", "b")

    stays("stores and servers", ROUNDS, work)


def test_operations() -> None:
    with harness.Server() as server, muster.Store(server.url) as store:
        def work(number: int) -> None:
            store.set("a", b"x" * (number % 3 * 3000))
            store.get("a")
            store.multi_get(["a", "a"])
            store.compare_set("a", "", "1")
            try:
                store.get("absent", wait=False)
            except muster.errors.NotFound:
                pass

        stays("operations", ROUNDS, work)


def test_forgotten() -> None:
    def work(_number: int) -> None:
        store = muster.Store("hash:")
        watch = store.watch("a")
        store.set("a", "b")
        next(watch)
        store.lease(5)
        store.cycle = store  # type: ignore[attr-defined]

    stays("stores and watches that nobody closes", ROUNDS // 10, work)


def test_awaited() -> None:
    with muster.Store("hash:") as store:
        async def work() -> None:
            await store.aio.set("a", "b")
            async with store.aio.watch("a") as watch:
                await store.aio.set("a", "b")
                await watch.next()
            task = asyncio.ensure_future(store.aio.get("never"))
            await asyncio.sleep(0)
            task.cancel()

        stays("event loops", ROUNDS // 10, lambda _: asyncio.run(work()))


def test_runtimes() -> None:
    def work(_number: int) -> None:
        with muster.Runtime() as runtime:
            muster.Store("hash:", runtime=runtime).set("a", "b")

    stays("runtimes", ROUNDS // 10, work)


def test_failures() -> None:
    def work(_number: int) -> None:
        for url in ("nonsense", "tcp://127.0.0.1:1?connect=1"):
            try:
                muster.Store(url, connect_timeout=0.001)
            except muster.MusterError:
                pass

    stays("opens that fail", ROUNDS // 20, work)


harness.main(globals())
