#!/usr/bin/python3
"""Rendezvous: rounds of several processes and threads, events, nodes that join and are lost,
closing and interruption."""

import asyncio
import os
import signal
import threading
import time
from typing import Any, List, Optional

import harness

import muster
from muster import errors
from muster.rendezvous import EndReason, EventKind, Round, config_text, parse_nodes

checks = harness.checks

#: Options of a run whose nodes are let in and missed at once.
QUICK = {"last_call_timeout": "100ms", "upscale_delay": "50ms", "is_host": False}


def rendezvous(server: harness.Server, nodes: Any = 1, **options: Any) -> muster.Rendezvous:
    config = dict(QUICK, **options.pop("config", {}))
    return muster.Rendezvous(
        f"127.0.0.1:{server.port}", options.pop("run_id", "job"), nodes, config=config, **options
    )


class Next(threading.Thread):
    """A next() on a thread of its own."""

    def __init__(self, rdzv: muster.Rendezvous) -> None:
        super().__init__(daemon=True)
        self.rdzv = rdzv
        self.round: Optional[Round] = None
        self.error: Optional[BaseException] = None
        self.start()

    def run(self) -> None:
        try:
            self.round = self.rdzv.next()
        except BaseException as error:  # noqa: BLE001 - for the test to see
            self.error = error

    def result(self) -> Round:
        self.join(harness.PATIENCE)
        if self.round is None:
            raise AssertionError(f"no round: {self.error!r}")
        return self.round


def meet(*nodes: muster.Rendezvous) -> List[Round]:
    return [thread.result() for thread in [Next(node) for node in nodes]]


def test_nodes_and_options_are_read() -> None:
    checks.equal(parse_nodes(3), (3, 3), "a number")
    checks.equal(parse_nodes("3"), (3, 3), "a number as text")
    checks.equal(parse_nodes("2:4"), (2, 4), "a range")
    checks.equal(parse_nodes((2, 4)), (2, 4), "a pair")
    for wrong in ("", "x", "4:2", 0, "2:", None, "1:2:3"):
        if wrong == "2:":
            checks.equal(parse_nodes("2:"), (2, 2), "a range without its end")
        else:
            checks.raises(ValueError, lambda w=wrong: parse_nodes(w), f"nodes {wrong!r}")
    checks.equal(config_text({"a": True, "b": 1.5, "c": "x"}), "a=true,b=1.5,c=x", "options")
    checks.raises(
        ValueError, lambda: config_text({"a": "1,b=2"}), "an option with a comma", "comma"
    )
    checks.raises(
        errors.InvalidArgument,
        lambda: muster.Rendezvous("127.0.0.1:1", "job", config={"join_timout": 1}),
        "an option that nobody knows", "join_timeout",
    )  # fmt: skip
    checks.raises(
        errors.MusterError, lambda: muster.Rendezvous("127.0.0.1:1", "job", backend="no"),
        "a backend that nobody knows",
    )  # fmt: skip


PROGRAM = """
import sys, muster
with muster.Rendezvous(sys.argv[1], "job", nodes=3, local_addr="127.0.0.1") as rdzv:
    round = rdzv.next()
    total = round.store.add("sum", round.rank)
    round.store.barrier("added", round.world_size)
    print(round.rank, round.world_size, round.round, int(round.store.get("sum")),
          len(round.members), round.bootstrap[0], round.bootstrap[1] > 0, flush=True)
    round.store.barrier("read", round.world_size)
"""


def test_three_processes_of_which_one_hosts() -> None:
    endpoint = f"127.0.0.1:{harness.free_port()}"
    running = [harness.start(PROGRAM, endpoint) for _ in range(3)]
    ended = [harness.finish(process) for process in running]
    lines = sorted(e.out.strip() for e in ended)
    expected = [f"{rank} 3 0 3 3 127.0.0.1 True" for rank in range(3)]
    checks.equal(lines, expected, "each has a rank, and all have one store")
    checks.ok(all(e.code == 0 for e in ended), "all end well", ended)


def test_a_round() -> None:
    with harness.Server() as server, rendezvous(server, 2) as a, rendezvous(server, 2) as b:
        checks.ok(
            "no round" in (a.ended() or ""), "before the first round, none goes on", a.ended()
        )
        first, second = meet(a, b)
        checks.equal({first.rank, second.rank}, {0, 1}, "ranks")
        checks.equal(first.bootstrap, second.bootstrap, "one place for the workers")
        checks.equal((first.members, len(first.addresses)), (second.members, 2), "members")
        checks.equal((a.backend, a.run_id, a.is_closed), ("muster", "job", False), "what it is")
        checks.equal(first.restarts_left, None, "no bound of restarts")
        checks.equal((a.ended(), a.num_nodes_waiting), (None, 0), "the round goes on")
        started = time.monotonic()
        checks.equal(a.ended(0.2), None, "it goes on for a while")
        checks.ok(0.15 < time.monotonic() - started < 5, "and that was waited for")
        with muster.Store("tcp://%s:%d" % first.bootstrap) as workers:
            workers.set("meet", "here")
        first.store.set("key", "of the first round")
        third, fourth = meet(a, b)
        checks.equal(third.round, first.round + 1, "the next round")
        checks.raises(errors.Closed, lambda: first.store.get("key"), "the store of the old one")
        checks.ok(not third.store.check("key"), "rounds do not see each other's keys")
        checks.equal({third.rank, fourth.rank}, {0, 1}, "ranks again")


def test_a_node_joins_and_is_lost() -> None:
    with harness.Server() as server, rendezvous(server, "1:2") as a:
        alone = a.next()
        checks.equal((alone.rank, alone.world_size), (0, 1), "alone")
        events = a.events()
        program = harness.start(
            "import sys, time, muster\n"
            f"r = muster.Rendezvous(sys.argv[1], 'job', '1:2', config={QUICK!r})\n"
            "print(r.next().rank, flush=True)\n"
            "time.sleep(100)\n", f"127.0.0.1:{server.port}",
        )  # fmt: skip
        event = next(events)
        if event.kind is EventKind.WAITING:
            checks.equal(event.waiting, 1, "one node waits")
            event = next(events)
        checks.equal((event.kind, event.reason), (EventKind.ENDED, EndReason.UPSCALE), "let in")
        checks.equal(event.round, alone.round, "of that round")
        both = a.next()
        checks.equal((both.rank, both.world_size), (0, 2), "a survivor keeps its rank")
        assert program.stdout is not None
        checks.equal(program.stdout.readline(), "1\n", "the other has its own")
        killed = time.monotonic()
        program.kill()
        event = next(events)
        took = time.monotonic() - killed
        checks.equal((event.kind, event.reason), (EventKind.ENDED, EndReason.LOST), "lost")
        checks.equal((event.member, event.member_rank), (both.members[1], 1), "who was lost")
        checks.ok(took < 5, "it is noticed at once", took)
        checks.ok("lost" in event.text or "vanished" in event.text, "a sentence", event.text)
        checks.equal(a.ended(), event.text, "ended() says the same")
        checks.equal(a.next().world_size, 1, "a world without it")
        program.communicate()


def test_the_run_is_closed() -> None:
    with harness.Server() as server, rendezvous(server, 2) as a, rendezvous(server, 2) as b:
        meet(a, b)
        seen: List[Any] = []
        waiter = threading.Thread(target=lambda: seen.extend(a.events()), daemon=True)
        waiter.start()
        b.set_closed()
        harness.wait_until(lambda: a.is_closed, "the other node knows")
        checks.raises(errors.RendezvousClosed, a.next, "no round comes any more")
        checks.equal(list(b), [], "iteration ends")
        checks.ok(b.shutdown(), "closing it again is fine")
        a.close()
        waiter.join(harness.PATIENCE)
        kinds = [event.kind for event in seen]
        checks.ok(EventKind.CLOSED in kinds and not waiter.is_alive(), "an event says so", kinds)
        checks.raises(errors.Closed, a.next, "a closed rendezvous")
        checks.raises(errors.Closed, lambda: a.is_closed, "a closed rendezvous")


def test_timeout_names_what_is_missing() -> None:
    with harness.Server() as server:
        with rendezvous(server, 2, config={"join_timeout": "300ms"}) as a:
            checks.raises(errors.RendezvousTimeout, a.next, "nobody came", "1 of 2")
            checks.raises(TimeoutError, a.next, "it is a TimeoutError, and may be tried again")


def test_explain_says_what_next_waits_for() -> None:
    with harness.Server() as server:
        with rendezvous(server, 2, config={"name": "alpha"}) as a:
            checks.equal(a.explain(), None, "nobody waits")
            waiting = Next(a)
            said: List[str] = []

            def is_known() -> bool:
                said.append(a.explain() or "")
                return "alpha" in said[-1]

            harness.wait_until(is_known, "the server knows it")
            checks.ok("1 of 2" in said[-1], "who is here, and how many are missing", said[-1])
        waiting.join(harness.PATIENCE)
        checks.raises(errors.Closed, a.explain, "a rendezvous that is closed")


def test_close_ends_a_next_under_way() -> None:
    with harness.Server() as server:
        for pause in (0.0, 0.0, 0.0, 0.1):
            a = rendezvous(server, 2)
            waiting = Next(a)
            events = threading.Thread(target=lambda r=a: list(r.events()), daemon=True)
            events.start()
            time.sleep(pause)  # none: close() meets them on their way into the library
            a.close()
            waiting.join(harness.PATIENCE)
            events.join(harness.PATIENCE)
            checks.ok(isinstance(waiting.error, errors.Closed), "next() ends", repr(waiting.error))
            checks.ok(not events.is_alive(), "events() ends")


INTERRUPTED = """
import os, signal, sys, threading, time, muster
rdzv = muster.Rendezvous(sys.argv[1], "job", 2, config={"is_host": False})
call = {"next": rdzv.next, "ended": lambda: rdzv.ended(None), "events": lambda: list(rdzv.events())}
if sys.argv[2] != "next":
    other = muster.Rendezvous(sys.argv[1], "job", 2, config={"is_host": False})
    threading.Thread(target=other.next, daemon=True).start()
    rdzv.next()
sent = []
def interrupt():
    time.sleep(0.5)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    call[sys.argv[2]]()
except KeyboardInterrupt:
    print(time.monotonic() - sent[0], rdzv.closed or sys.argv[2] == "next")
"""


def test_interrupted_by_ctrl_c() -> None:
    with harness.Server() as server:
        for what in ("next", "ended", "events"):
            ended = harness.run(INTERRUPTED, f"127.0.0.1:{server.port}", what)
            words = ended.out.split()
            ok = ended.code == 0 and len(words) == 2
            checks.ok(ok, f"Ctrl-C ends {what}()", ended)
            checks.ok(ok and float(words[0]) < 10, f"at once: {words[:1]} s in {what}()", ended)


def test_fork() -> None:
    with harness.Server() as server, rendezvous(server, 1) as a:
        round = a.next()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            said = b""
            for call in (a.next, a.ended, lambda: round.store.get("x"), lambda: a.is_closed):
                try:
                    call()
                except errors.Closed as error:
                    said += b"fork " if "fork" in str(error) else b"closed "
            a.close()
            os.write(write, said)
            os._exit(0)
        os.waitpid(child, 0)
        checks.equal(os.read(read, 100), b"fork " * 4, "in a child it is dead, and says why")
        checks.equal(a.ended(), None, "and the parent's goes on")


def test_asyncio() -> None:
    async def story(server: harness.Server) -> None:
        a, b = rendezvous(server, 2), rendezvous(server, 2)
        first, second = await asyncio.gather(a.aio.next(), b.aio.next())
        checks.equal({first.rank, second.rank}, {0, 1}, "two nodes of one event loop")
        ended = asyncio.ensure_future(a.aio.ended(10))
        events = a.aio.events()
        await b.aio.close()
        checks.ok((await ended) is not None, "the end is awaited")
        event = await events.__anext__()
        checks.equal(event.reason, EndReason.LEFT, "an event")
        waiting = asyncio.ensure_future(a.aio.next())
        await asyncio.sleep(0.05)
        waiting.cancel()
        try:
            await waiting
            checks.ok(False, "a canceled next() is canceled")
        except asyncio.CancelledError:
            checks.ok(True, "a canceled next() is canceled")
        harness.wait_until(lambda: a.closed, "the node has left")
        async for _round in rendezvous(server, 1, run_id="other").aio:
            break

    with harness.Server() as server:
        asyncio.run(story(server))


def test_example() -> None:
    program = os.path.join(harness.ROOT, "examples", "rendezvous.py")
    with open(program) as file:
        text = file.read()
    endpoint = f"127.0.0.1:{harness.free_port()}"
    running = [harness.start(text, endpoint) for _ in range(2)]
    ended = [harness.finish(process) for process in running]
    checks.ok(all(e.code == 0 and "add up to 1" in e.out for e in ended), "the example", ended)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    harness.main(globals())
