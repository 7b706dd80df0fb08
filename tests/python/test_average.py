"""Averaging over loopback: numpy's arrays, PyTorch's tensors and modules, buffers; in asyncio; and
what happens when something is wrong."""

import array
import asyncio
import hashlib
import threading
import time
from typing import Any, Callable, List

import harness
import muster
from muster import average, errors, state

checks = harness.checks

QUICK = {"matchmaking": 1.5, "request_timeout": 0.7}


def together(*calls: Callable[[], Any]) -> List[Any]:
    """Calls all of them at once; returns what they returned, or raised."""
    said: List[Any] = [None] * len(calls)

    def run(i: int) -> None:
        try:
            said[i] = calls[i]()
        except Exception as error:  # noqa: BLE001 - it is looked at
            said[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def pair(a: Any, b: Any, **options: Any) -> List[average.Averager]:
    first = average.Averager(a, prefix="py", target_size=2, **QUICK, **options)
    return [first, average.Averager(b, prefix="py", dht=[first.address], target_size=2, **QUICK, **options)]


def test_buffers() -> None:
    a, b = array.array("f", [0.0, 2.0, 4.0]), array.array("f", [2.0, 2.0, 0.0])
    members = pair([a], [b])
    with members[0], members[1]:
        said = together(lambda: members[0].step(1.0, 60, gather={"n": 1}), lambda: members[1].step(3.0, 60))
        checks.ok(all(isinstance(it, average.Result) for it in said), "two buffers are averaged", said)
        checks.equal([*a], [1.5, 2.0, 1.0], "with their weights")
        checks.equal([*a], [*b], "at both")
        result = said[0]
        checks.equal({m.peer for m in result.members}, {m.peer for m in members}, "the result names both")
        checks.equal(result.failed, (), "nobody failed")
        checks.equal(sorted(str(m.gather) for m in said[1].members), ["None", "{'n': 1}"], "both told something")
        checks.equal(result.parts_local, 0, "nothing is local")
        checks.equal(members[0].look().phase, "idle", "nothing is under way")


def test_native() -> None:
    a, b = array.array("f", [0.0, 2.0, 4.0]), array.array("f", [2.0, 2.0, 0.0])
    members = pair([a], [b], wire="native")
    with members[0], members[1]:
        said = together(lambda: members[0].step(1.0, 60), lambda: members[1].step(3.0, 60))
        checks.ok(all(isinstance(it, average.Result) for it in said), "two buffers, on the native wire", said)
        checks.equal([*a], [1.5, 2.0, 1.0], "with their weights")
        checks.equal(a.tobytes(), b.tobytes(), "the same bits at both")
        checks.equal(said[0].digest, hashlib.sha256(a.tobytes()).hexdigest(), "the digest is that of the vector")
        checks.equal(said[0].digest, said[1].digest, "at both")
        checks.equal([it.counted for it in said[0].members], [True, True], "both were counted")
    c, d = array.array("f", [1.0] * 999), array.array("f", [3.0] * 999)
    members = pair([c], [d], wire="native", encoding="int8")
    with members[0], members[1]:
        said = together(lambda: members[0].step(timeout=60), lambda: members[1].step(timeout=60))
        checks.ok(all(isinstance(it, average.Result) for it in said), "in a byte for each value", said)
        checks.ok(max(abs(x - 2) for x in c) < 0.05 and c == d, "about the average, the same at both")
    try:
        average.Averager(a, prefix="x", wire="native", encoding="FLOAT16")
        checks.ok(False, "an encoding of hivemind's is refused")
    except errors.InvalidArgument as error:
        checks.ok("INT8" in str(error), "an encoding of hivemind's is refused", error)


def test_grid() -> None:
    """Groups of two that mix: after two steps each of four has the average of all four."""
    values = [array.array("f", [x]) for x in (0.0, 4.0, 8.0, 20.0)]
    members: List[average.Averager] = []
    for it, bits in zip(values, ("0", "0", "1", "1")):
        members.append(average.Averager(it, prefix="grid", target_size=2, group_bits=bits,
                                        dht=[members[0].address] if members else None, **QUICK))  # fmt: skip
    keys = []
    for _ in range(2):
        said = together(*[lambda member=it: member.step(timeout=60) for it in members])
        checks.ok(all(isinstance(it, average.Result) and len(it.members) == 2 for it in said), "groups of two", said)
        keys.append([getattr(it, "key", "") for it in said])
    checks.equal(keys[0], ["grid.0b0", "grid.0b0", "grid.0b1", "grid.0b1"], "first of neighbours")
    checks.ok(keys[1][0] != keys[1][1] and keys[1][2] != keys[1][3], "then of one of each", keys)
    checks.equal([it[0] for it in values], [8.0] * 4, "all have the average of all")
    for member in members:
        member.close()


def matrix(rows: int, columns: int, values: Callable[[int, int], float]) -> Any:
    flat = array.array("f", [values(i, k) for i in range(rows) for k in range(columns)])
    return flat, memoryview(flat).cast("B").cast("f", shape=[rows, columns])


def distance(a: Any, b: Any) -> float:
    return max(abs(x - y) for x, y in zip(a, b))


def test_power() -> None:
    """PowerSGD: what has its rank is carried whole, and what has not comes with the next steps."""
    rows, columns = 20, 30
    parts = [lambda i, k: (i + 1.0) * (k % 5 - 2), lambda i, k: 3.0 * (i + 1) * (k % 5 - 2)]
    (a, a_seen), (b, b_seen) = (matrix(rows, columns, it) for it in parts)
    small = [array.array("f", [1.0, 2.0]), array.array("f", [3.0, 6.0])]
    members = pair([a_seen, small[0]], [b_seen, small[1]], power_rank=1)
    with members[0], members[1]:
        said = together(lambda: members[0].step(1.0, 60), lambda: members[1].step(3.0, 60))
        checks.ok(all(isinstance(it, average.Result) for it in said), "two members, with PowerSGD", said)
        want = matrix(rows, columns, lambda i, k: 2.5 * (i + 1.0) * (k % 5 - 2))[0]
        checks.ok(distance(a, want) < 1e-3, "a gradient of that rank is averaged", distance(a, want))
        checks.ok(distance(a, b) < 1e-3, "the same at both", distance(a, b))
        checks.equal([[*it] for it in small], [[2.5, 5.0]] * 2, "what is too small is averaged whole")
        sent = max(getattr(it, "bytes_sent", 0) for it in said)
        checks.ok(sent < 4 * rows * columns / 2, "with few bytes", sent)
        # Gradients of a higher rank, the same in each step: what was not carried is not lost.
        given = [matrix(rows, columns, lambda i, k, s=s: (7 * i + k * k * s) % 11 - 5.0)[0] for s in (1, 3)]
        mean = [(x + y) / 2 for x, y in zip(*given)]
        total, far = [0.0] * len(mean), []
        for turn in range(1, 31):
            a[:], b[:] = given
            together(lambda: members[0].step(timeout=60), lambda: members[1].step(timeout=60))
            total = [x + y for x, y in zip(total, a)]
            far.append(max(abs(x / turn - y) for x, y in zip(total, mean)))
        checks.ok(distance(a, b) < 1e-3, "both go on with the same", distance(a, b))
        checks.ok(far[-1] < far[0] / 3, "over many steps nothing is lost", far)
    for what, options in (("on the native wire", {"power_rank": 1, "wire": "native"}),
                          ("without a rank", {"averager": "PowerSGDGradientAverager"}),
                          ("nothing to compress", {"power_rank": 40})):  # fmt: skip
        try:
            average.Averager([a_seen], prefix="x", **options)  # type: ignore[arg-type]
            checks.ok(False, "PowerSGD " + what + ": refused")
        except errors.InvalidArgument as error:
            checks.ok(True, "PowerSGD %s: refused: %s" % (what, error))


def test_torch() -> None:
    try:
        import torch
    except ImportError:
        checks.note("no PyTorch here")
        return
    a, b = torch.nn.Linear(3, 4), torch.nn.Linear(3, 4)
    want = [(x.detach() + y.detach()) / 2 for x, y in zip(a.parameters(), b.parameters())]
    members = pair(a, b)
    with members[0], members[1]:
        said = together(lambda: members[0].step(timeout=60), lambda: members[1].step(timeout=60))
        checks.ok(all(isinstance(it, average.Result) for it in said), "two modules are averaged", said)
        checks.ok(all(torch.allclose(x, w) for x, w in zip(a.parameters(), want)), "in place")
    c, d = torch.arange(12.0).reshape(3, 4).t(), torch.zeros(4, 3)
    want = [c / 2]
    members = pair(c, d)
    with members[0], members[1]:
        said = together(lambda: members[0].step(timeout=60), lambda: members[1].step(timeout=60))
        checks.ok(torch.allclose(c, want[0]) and torch.allclose(d, want[0]), "a tensor with another stride", said)


def test_asyncio() -> None:
    a, b = array.array("f", [0.0]), array.array("f", [4.0])
    members = pair(a, b)

    async def run() -> Any:
        done = await asyncio.gather(members[0].step_async(timeout=60), members[1].step_async(timeout=60))
        work = asyncio.ensure_future(members[0].step_async(timeout=600))
        while members[0].look().phase == "idle":
            await asyncio.sleep(0.01)
        work.cancel()
        try:
            await work
        except asyncio.CancelledError:
            return done
        return None

    with members[0], members[1]:
        checks.ok(asyncio.run(run()) is not None, "in asyncio, and a task that is canceled")
        checks.equal([a[0], b[0]], [2.0, 2.0], "the average")


def test_in_parts() -> None:
    a, b = array.array("f", [0.0]), array.array("f", [4.0])
    members = pair(a, b)
    with members[0], members[1]:
        members[0].begin(timeout=60)
        checks.equal(members[0].wait(0), False, "a step that has begun waits for others")
        try:
            members[0].begin(timeout=60)
            checks.ok(False, "one at a time")
        except errors.Busy as error:
            checks.ok(True, "one at a time", error)
        members[1].begin(timeout=60)
        results = [it.end() for it in members]
        checks.equal([a[0], b[0]], [2.0, 2.0], "the average")
        checks.equal([len(it.members) for it in results], [2, 2], "both know who took part")
        try:
            members[0].wait(0)
            checks.ok(False, "then there is no step")
        except errors.NotFound as error:
            checks.ok(True, "then there is no step", error)
        members[0].begin(timeout=1)
        checks.ok(members[0].wait(30), "a step ends by its timeout")
        try:
            members[0].end()
            checks.ok(False, "and says so")
        except errors.TimedOut as error:
            checks.ok(getattr(error, "result").members == (), "and says so", error)


def test_faults() -> None:
    a = array.array("f", [0.0])
    for what, options in (("a dot", {"prefix": "a.b"}), ("a mode", {"mode": "boss"}), ("no group", {"min_size": 1})):
        try:
            average.Averager(a, **{"prefix": "x", **options})
            checks.ok(False, what + " is refused")
        except (errors.InvalidArgument, ValueError) as error:
            checks.ok(True, "%s is refused: %s" % (what, error))
    for wrong in (array.array("i", [1]), "text", []):
        try:
            average.Averager([wrong] if wrong else [], prefix="x")
            checks.ok(False, "%r is refused" % (wrong,))
        except (TypeError, errors.InvalidArgument) as error:
            checks.ok(True, "%r is refused: %s" % (wrong, error))
    for what, options, text in (
        ("a type", {"described": ["bfloat16"]}, "BF16"),
        ("a giver", {"through": "x"}, "muster.state.Donor"),
        ("an address", {"listen": "0.0.0.0:0"}, "not a multiaddr"),
        ("an encoding", {"encoding": "FLOAT61"}, "MEANSTD_16BIT"),
        ("a size", {"min_size": 3, "target_size": 2}, "smaller"),
    ):
        try:
            average.Averager(a, **{"prefix": "x", **options})
            checks.ok(False, what + " is refused")
        except (errors.InvalidArgument, TypeError) as error:
            checks.ok(text in str(error), what + " is refused", error)
    try:
        average.Averager({"a": a, "tied": a}, prefix="x")
        checks.ok(False, "memory that is there twice is refused")
    except errors.InvalidArgument as error:
        checks.ok("a and tied share memory" in str(error), "memory that is there twice is refused", error)
    with average.Averager(a, prefix="x", matchmaking=1):
        checks.ok(True, "with little time for a group, there is less for an answer")
    with average.Averager(a, prefix="x", **QUICK) as lonely:
        try:
            lonely.step(timeout=1)
            checks.ok(False, "nobody comes")
        except errors.TimedOut as error:
            checks.ok("nobody else" in str(error) and getattr(error, "result").members == (), "nobody comes", error)
        a[0] = float("nan")
        try:
            lonely.step(timeout=1)
            checks.ok(False, "NaN is refused")
        except errors.InvalidArgument as error:
            checks.ok("not finite" in str(error), "NaN is refused", error)


def test_close_ends_a_step() -> None:
    lonely = average.Averager(array.array("f", [0.0]), prefix="x")

    def close() -> float:
        while lonely.look().phase == "idle":
            pass
        before = time.monotonic()
        lonely.close()
        return time.monotonic() - before

    stepped, closed = together(lambda: lonely.step(timeout=60), close)
    checks.ok(isinstance(stepped, errors.Canceled), "a step under way is canceled by close()", stepped)
    checks.ok(isinstance(closed, float) and closed < 10, "which does not wait for its time", closed)


def test_through_a_donor() -> None:
    a, b = array.array("f", [0.0]), array.array("f", [4.0])
    with state.Donor("/ip4/127.0.0.1/tcp/0", key="", dht=[]) as donor:
        first = average.Averager(a, prefix="py", target_size=2, through=donor, **QUICK)
        second = average.Averager(b, prefix="py", target_size=2, dht=[first.address], **QUICK)
        with first, second:
            checks.equal(first.address, donor.address, "one peer shares and averages")
            said = together(lambda: first.step(timeout=60), lambda: second.step(timeout=60))
            checks.ok([a[0], b[0]] == [2.0, 2.0], "the average", said)


def test_donors_are_found_through_another() -> None:
    with state.Donor("/ip4/127.0.0.1/tcp/0", key="", dht=[]) as first:
        with state.Donor("/ip4/127.0.0.1/tcp/0", key="", dht=[first.address]) as second:
            first.share({"x": bytearray(b"0123")}, prefix="py", epoch=4)

            def listed() -> Any:
                try:
                    return state.list(prefix="py", through=second)
                except errors.NotFound:
                    return None

            rows = harness.wait_until(listed, "the donor to have told the DHT")
            checks.equal([row.info.epoch for row in rows if row.info], [4], "what others share is listed")
            loaded = state.load(prefix="py", through=second, progress=False)
            checks.equal([bytes(loaded.tree["x"]), loaded.epoch], [b"0123", 4], "and loaded")
            try:
                state.list(prefix="py", through=first)
                checks.ok(False, "what one shares oneself is not")
            except errors.NotFound as error:
                checks.ok(True, "what one shares oneself is not", error)


assert muster.average is average
checks.run_tests(globals())
checks.done()
