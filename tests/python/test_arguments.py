#!/usr/bin/python3
"""What a caller can get wrong: it is refused, by an error that speaks of the argument as Python
names it, and nothing has happened then."""

import array
import ctypes
import math
from typing import Any, Callable, Tuple, Type, Union

import harness

import muster
import muster.store
from muster import _lib, errors, rpc, state

checks = harness.checks
Kind = Union[Type[BaseException], Tuple[Type[BaseException], ...]]


def refused(kind: Kind, word: str, call: Callable[[], Any]) -> None:
    """Whether a call is refused with an error of a kind, with a word in its text, and none of C's."""
    try:
        got = call()
    except Exception as error:  # noqa: BLE001 - looked at here
        said = f"{type(error).__name__}: {error}"
        good = isinstance(error, kind) and word in str(error) and "_ms" not in str(error)
        checks.ok(good and "NULL" not in str(error), f"refused: {said}")
        return
    checks.ok(False, f"an error with {word!r}", f"it returned {got!r}")


def test_huge_timeouts() -> None:
    """The library takes 31 bits of milliseconds; more counts as that much, and never as less."""
    most = 2**31 - 1
    for seconds in (1e300, 1.7e308, 9.3e15, 1.8446744073709552e16, 2**70, 10**400, 2147483.648):
        ms = _lib.milliseconds(seconds)
        checks.equal(ctypes.c_int64(ms).value, most, f"{float(min(seconds, 10**300)):g} s")
    checks.equal(_lib.milliseconds(2147483.5), most - 147, "less than that is taken as it is")
    checks.equal(_lib.milliseconds(1e-9), 1, "a timeout that is not 0 is a millisecond at least")
    checks.equal(_lib.milliseconds(math.inf), -1, "no bound")
    with muster.Store("hash:", timeout=1e300) as store:
        checks.equal(store.timeout, most / 1000, "of a store")
        store.set("key", "value", timeout=1e300)
        checks.equal(store.get("key", timeout=1e18), b"value", "of an operation")
    for wrong in ("3", b"3", [1], object()):
        refused(TypeError, "seconds", lambda: _lib.milliseconds(wrong))  # type: ignore[arg-type]


def test_kinds() -> None:
    """A key where keys are wanted is one of them; what is neither is named."""
    with muster.Store("hash:") as store:
        for wrong in (None, 3, object()):
            refused(TypeError, "keys must be", lambda: store.check(wrong))  # type: ignore[arg-type]
            refused(TypeError, "keys must be", lambda: store.wait(wrong))  # type: ignore[arg-type]
            refused(TypeError, "keys must be", lambda: store.multi_get(wrong))  # type: ignore[arg-type]
        for wrong in (None, "abc", ["ab", "c"], [("a", "b", "c")], 7):
            refused(TypeError, "items must be", lambda: store.multi_set(wrong))  # type: ignore[arg-type]
        for wrong in (None, "1", b"1", []):
            refused(TypeError, "ttl must be", lambda: store.lease(wrong))  # type: ignore[arg-type]
        checks.equal(store.keys(), [], "and nothing was written")
    for wrong in (None, 29500, b"127.0.0.1:0"):
        refused(TypeError, "listen must be", lambda: muster.Server(wrong))  # type: ignore[arg-type]
    refused(TypeError, "use ['10.0.0.0/8']", lambda: muster.Runtime(allow="10.0.0.0/8"))
    for nobody in ("tcp://:29500", "tcp://*:29500", "tcp://"):
        refused(errors.InvalidArgument, "", lambda: muster.Store(nobody, connect_timeout=20))


def test_nothing_for_something() -> None:
    """None in a list, or for a name, would be NULL; a URL is no store."""
    url = "tcp://127.0.0.1:29500"
    load: Any = state.load
    refused(TypeError, "None in it", lambda: load(donors=[None], progress=False))
    refused(TypeError, "None in it", lambda: load(donors=["h:1"], trust=[None], progress=False))
    refused(TypeError, "store must be", lambda: load(store=url, progress=False))
    refused(TypeError, "store must be", lambda: load(store="", progress=False))
    refused(TypeError, "through must be", lambda: load(donors=["h:1"], through=url))
    refused(TypeError, "store must be", lambda: state.list(store=url))  # type: ignore[arg-type]
    refused(TypeError, "None in it", lambda: muster.Runtime(allow=[None]))  # type: ignore[list-item]
    with state.Donor("127.0.0.1:0") as donor:
        refused(TypeError, "store must be",
                lambda: donor.share({"a": bytearray(3)}, store=url))  # type: ignore[arg-type]
        checks.equal(donor.stats.active, 0, "nothing is shared")
    with rpc.Agent("a", 0) as agent:
        any_agent: Any = agent
        refused(TypeError, "name must be", lambda: any_agent.add_worker(None, 1, "127.0.0.1:1"))
        refused(TypeError, "name must be", lambda: any_agent.remove_worker(None))
        refused(TypeError, "store must be", lambda: any_agent.join_group(url, "group", 1))
        refused(TypeError, "None in it", lambda: any_agent.all_gather([None], "tag", b""))


def test_limits() -> None:
    with muster.Server("127.0.0.1:0", value_bytes_max=1000, key_bytes_max=100) as server, \
            muster.Store(server.url) as store:
        store.set("k" * 50, "v" * 1000)
        refused(errors.LimitExceeded, "value has 1001 bytes, and the server takes 1000",
                lambda: store.set("key", "v" * 1001))
        refused(errors.LimitExceeded, "key has 200 bytes, and the server takes 99", lambda: store.set("k" * 200, "v"))
        refused(errors.LimitExceeded, "--max-value", lambda: store.set("key", "v" * (32 << 20)))
        checks.equal(len(store.get("k" * 50)), 1000, "the store goes on")


def test_timeouts() -> None:
    with muster.Store("hash:") as store, rpc.Agent("a", 0) as agent:
        for it in (store, agent):
            before = it.timeout
            refused(errors.InvalidArgument, "timeout=0", lambda: setattr(it, "timeout", 0))
            refused(TypeError, "None", lambda: setattr(it, "timeout", None))
            refused(ValueError, "-1", lambda: setattr(it, "timeout", -1))
            refused(ValueError, "nan", lambda: setattr(it, "timeout", math.nan))
            checks.equal(it.timeout, before, "the timeout is as before")
        refused(errors.InvalidArgument, "timeout=0", lambda: store.get("k", timeout=0))
        refused(errors.InvalidArgument, "timeout=0", lambda: agent.call("a", "m", timeout=0))
        refused(errors.InvalidArgument, "timeout=0", lambda: rpc.Agent("b", timeout=0))
    refused(errors.InvalidArgument, "timeout=0", lambda: muster.Store("hash:", timeout=0))
    refused(errors.InvalidArgument, "connect_timeout=0",
            lambda: muster.Store("hash:", connect_timeout=0))  # fmt: skip


def test_failed_set_timeout() -> None:
    """Should the library refuse a timeout that the module takes, the caller is told."""
    with muster.Store("hash:") as store, rpc.Agent("a", 0) as agent:
        checks.equal(_lib.fast.muster_store_set_timeout(store._get(), 0), _lib.EINVAL, "a store's")
        checks.equal(_lib.fast.muster_rpc_set_timeout(agent._get(), 0), _lib.EINVAL, "an agent's")


def test_leases() -> None:
    with muster.Store("hash:") as store:
        for number in (-1, 0, 2**64, 2**70, -(2**70)):
            refused(ValueError, "lease", lambda: store.set("k", "v", lease=number))
            refused(ValueError, "lease", lambda: store.add("k", lease=number))
        for wrong in ("x", 1.5, True, b"", store):
            refused(TypeError, "lease", lambda: store.set("k", "v", lease=wrong))
        checks.equal(store.num_keys(), 0, "nothing was written")
    with harness.Server() as server, muster.Store(server.url) as store:
        with store.lease(20) as lease:
            store.set("l", "v", lease=lease)
            store.set("n", "v", lease=lease.number)
        checks.equal(store.check(["l"]) or store.check(["n"]), False, "a lease, and its number")
        store.set("s", "v", lease=muster.store.SESSION)
        checks.ok(store.check("s"), "a session's")


class WithBytes:
    def __bytes__(self) -> bytes:
        return b"no"


def test_data() -> None:
    """Keys and values are text or have a buffer; what else could be made bytes is a mistake."""
    with muster.Store("hash:") as store:
        for wrong in ([1, 2, 3], (1, 2), range(3), iter([1]), {1: 2}, {1}, WithBytes(), None, 3, 1.5,
                      True, object()):  # fmt: skip
            refused(TypeError, "bytes-like", lambda: store.set("k", wrong))
            refused(TypeError, "bytes-like", lambda: store.get(wrong, wait=False))
        checks.equal(store.num_keys(), 0, "nothing was written")
        for good in (bytearray(b"ab"), memoryview(b"ab"), memoryview(b"a-b-")[::2],
                     array.array("b", b"ab"), "ab"):  # fmt: skip
            store.set("k", good)  # type: ignore[arg-type]
            checks.equal(store.get("k"), b"ab", f"from {type(good).__name__}")


def test_numbers() -> None:
    """Numbers that the library has fewer bits for are not cut."""
    with muster.Store("hash:") as store, rpc.Agent("a", 0) as agent:
        for number in (0, -1, 2**63, 2**70):
            refused(ValueError, "world_size", lambda: store.barrier("b", number))
        refused(TypeError, "world_size", lambda: store.barrier("b", 1.5))  # type: ignore[arg-type]
        for number in (2**63, -(2**63) - 1):
            refused(ValueError, str(number), lambda: store.add("n", number))
        refused(TypeError, "delta", lambda: store.add("n", 1.5))  # type: ignore[arg-type]
        refused(TypeError, "delta", lambda: store.add("n", "1"))  # type: ignore[arg-type]
        checks.equal(store.num_keys(), 0, "nothing was written")
        for number in (0, 2**32 + 1, -1):
            refused(ValueError, "world_size", lambda: agent.join_group(store, "g", number))
        for number in (2**32, -2, 2**70):
            refused(ValueError, "id", lambda: rpc.Agent("b", number))
            refused(ValueError, "id", lambda: agent.add_worker("b", number))
            refused(ValueError, "id", lambda: agent.call(number, "m::M.m", b""))
        refused(TypeError, "id", lambda: rpc.Agent("b", "1"))  # type: ignore[arg-type]
        refused(TypeError, "to", lambda: agent.call(1.5, "m::M.m", b""))  # type: ignore[arg-type]
    refused(ValueError, "slots", lambda: state.Donor(slots=2**32))
    refused(ValueError, "rate", lambda: state.Donor(rate=-1))


def test_opening() -> None:
    for url in (None, 3, b"hash:", ["hash:"]):
        refused(TypeError, "url must be a str", lambda: muster.Store(url))  # type: ignore[arg-type]
    opens = {
        "Store": lambda it: muster.Store("hash:", runtime=it),
        "Server": lambda it: muster.Server(runtime=it),
        "Agent": lambda it: rpc.Agent("a", runtime=it),
        "Rendezvous": lambda it: muster.Rendezvous("127.0.0.1:0", "r", runtime=it),
        "Donor": lambda it: state.Donor(runtime=it),
        "load": lambda it: state.load(donors=["127.0.0.1:1"], runtime=it),
        "list": lambda it: state.list(donors=["127.0.0.1:1"], runtime=it),
    }
    for name, call in opens.items():
        for wrong in (3, "x", 0):
            refused(TypeError, "runtime must be a muster.Runtime", lambda: call(wrong))
    ended = muster.Runtime()
    ended.close()
    refused(errors.Closed, "closed", lambda: muster.Store("hash:", runtime=ended))


harness.main(globals())
