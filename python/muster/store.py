"""Stores: keys and values that the processes of a job share, and ways to wait for each other.

::

    store = muster.Store("tcp://127.0.0.1:29500")
    store.set("model", "v1")
    store.get("model")                       # b"v1"; waits until somebody has set it
    await store.aio.get("model")             # the same in asyncio
    for change in store.watch("model/", prefix=True):
        print(change.kind, change.key, change.value)

Keys and values are bytes; ``str`` is encoded as UTF-8. Results are bytes. Timeouts are seconds:
``None`` is the store's own, ``math.inf`` no bound.

A URL names the store: ``tcp://HOST[:PORT]`` (a muster server, or the TCPStore of PyTorch's rank 0),
``file:///PATH`` (PyTorch's FileStore), ``etcd://HOST[,HOST...]/PREFIX``, or ``hash:`` (inside this
process). ``?prefix=NAME`` opens a view with keys of its own.

A store may be used by several threads at the same time. It does not survive ``fork()``: open it in
the child.
"""

from __future__ import annotations

import ctypes
import math
from threading import get_ident

from . import _import, _lib, _runtime, _verbs
from ._runtime import SLICE_MS, Handle, Runtime, call_interruptibly, chosen, stop_if_exiting
from ._verbs import CompareSet
from .errors import NotFound, from_code

TYPE_CHECKING = False  # see muster/__init__.py
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence, TypeVar, Union

    from ._lease import AsyncLease as AsyncLease
    from ._lease import Lease as Lease
    from ._store_aio import AsyncStore as AsyncStore
    from ._verbs import Data
    from ._watch import AsyncWatch as AsyncWatch
    from ._watch import Change as Change
    from ._watch import ChangeKind as ChangeKind

    _R = TypeVar("_R")
    from ._watch import Watch as Watch

__all__ = [
    "Store",
    "AsyncStore",
    "Watch",
    "AsyncWatch",
    "Lease",
    "AsyncLease",
    "Change",
    "ChangeKind",
    "CompareSet",
    "SESSION",
]

#: Instead of a lease: the key lives as long as this process has the store open.
SESSION = 2**64 - 1

_submit = _lib.fast.muster_store_submit
_wait_for = _lib.lib.muster_op_wait_for
_ended = _lib.fast.muster_op_ended
_status = _lib.fast.muster_op_status
_free = _lib.fast.muster_op_free

_HOMES = {
    "AsyncStore": "_store_aio",
    "Watch": "_watch",
    "AsyncWatch": "_watch",
    "Change": "_watch",
    "ChangeKind": "_watch",
    "Lease": "_lease",
    "AsyncLease": "_lease",
}


_loaded: Dict[str, Any] = {}


def _load(name: str) -> Any:
    """What few programs need is loaded when it is first used: asyncio alone takes longer than all
    the rest."""
    if name not in _loaded:
        _loaded[name] = getattr(_import(_HOMES[name]), name)
    return _loaded[name]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _load(name)


class Store(Handle):
    """A store, open until it is closed.

    :param url: which store
    :param timeout: of operations that are not given one, in seconds
    :param connect_timeout: of opening it, retries included
    :param runtime: the runtime it belongs to; by default that of the process
    """

    _close_function = "muster_store_close"
    _what = "the store"

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 300.0,
        connect_timeout: float = 300.0,
        runtime: Optional[Runtime] = None,
    ) -> None:
        if not isinstance(url, str):
            raise TypeError(f"url must be a str, such as 'tcp://127.0.0.1:29500': not {url!r}")
        runtime = chosen(runtime)
        super().__init__(runtime)
        self.url = url
        config = _lib.defaults(_lib.StoreConfig)
        config.timeout_ms = _verbs.needed_ms(timeout)
        config.connect_timeout_ms = _verbs.needed_ms(connect_timeout, "connect_timeout")
        name = _lib.encoded(url)

        def opening(rt: int, at: Any) -> int:
            code: int = _lib.lib.muster_store_open(rt, name, ctypes.byref(config), at)
            return code

        call_interruptibly(lambda: self._opening(opening), lambda code: self._finish(quietly=True))

    @classmethod
    async def open_async(
        cls,
        url: str,
        *,
        timeout: float = 300.0,
        connect_timeout: float = 300.0,
        runtime: Optional[Runtime] = None,
    ) -> "AsyncStore":
        """Opens a store without blocking the event loop; the arguments are those of ``Store``."""
        store = await _import("_aio").in_thread(
            lambda: cls(url, timeout=timeout, connect_timeout=connect_timeout, runtime=runtime)
        )
        return store.aio  # type: ignore[no-any-return]

    @classmethod
    def _borrowed(cls, pointer: int, url: str, runtime: Runtime) -> "Store":
        """A store that something else opens and closes: that of a rendezvous's round."""
        store = cls.__new__(cls)
        store._close_function = ""
        Handle.__init__(store, runtime)
        store.url = url
        store._pointer = pointer
        return store

    def close(self) -> None:
        """Closes the store. Operations under way end with ``Closed``."""
        super().close()

    def __repr__(self) -> str:
        return f"<muster.Store {self.url}{' closed' if self.closed else ''}>"

    @property
    def timeout(self) -> float:
        """The timeout of operations that are not given one, in seconds; infinity is no bound."""
        with self._using() as pointer:
            ms: int = _lib.fast.muster_store_timeout(pointer)
        return math.inf if ms == _lib.TIMEOUT_NEVER else ms / 1000

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        ms = _verbs.default_ms(seconds)
        with self._using() as pointer:
            code = _lib.fast.muster_store_set_timeout(pointer, ms)
        if code != 0:
            raise from_code(code)

    @property
    def aio(self) -> "AsyncStore":
        """The same store for asyncio: each operation is awaited."""
        return _load("AsyncStore")(self)  # type: ignore[no-any-return]

    def _submit(self, call: _verbs.Call) -> int:
        """Starts the operation of a call, whose `op` must be freed then; `_started` is told the
        result when no lock is held."""
        with self._lock:
            pointer = self._pointer
            return 1 if pointer is None else _submit(pointer, call.request_ref, call.op_ref)

    def _started(self, code: int) -> None:
        """Raises if nothing was started."""
        if code == 1:
            raise self._gone()
        if code != 0:
            raise from_code(code)

    def _run(self, plan: _verbs.Plan[_R]) -> _R:
        """Runs an operation to its end. Ctrl-C may come after each line: `op` is set by the library
        itself when the operation begins, and freed whatever happens then."""
        call = _verbs.take_call(plan)
        op: Any = call.op
        try:
            code = self._submit(call)
            if code != 0:
                self._started(code)
            slice_ms = SLICE_MS if get_ident() == _runtime._main_ident else -1
            status = _wait_for(op, slice_ms)
            while status == _lib.ETIMEDOUT:
                if _ended(op):
                    status = _status(op)  # it may have ended well after the slice
                    break
                if self._generation != _runtime._generation:
                    op = None  # a signal's handler has forked, and this is the child
                    raise self._gone()
                status = _wait_for(op, slice_ms)
            if status != 0:
                stop_if_exiting()
                raise _verbs.error_of(op, status)
            result = plan[0](op)
        finally:
            if op:
                _free(op)
        _verbs.give_call(call, plan)
        return result

    def set(
        self,
        key: Data,
        value: Data,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Writes the value over what the key holds, and wakes the callers that wait for the key.
        With a lease, the key is deleted when the lease ends."""
        self._run(_verbs.set_(key, value, lease, timeout))

    def get(self, key: Data, *, wait: bool = True, timeout: Optional[float] = None) -> bytes:
        """Waits until the key exists, and reads it. Without ``wait``, ``NotFound`` is raised if the
        key does not exist."""
        return self._run(_verbs.get(key, wait, timeout))

    def add(
        self,
        key: Data,
        delta: int = 1,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> int:
        """Adds to a decimal number and returns the sum; an absent key counts as 0."""
        return self._run(_verbs.add(key, delta, lease, timeout))

    def compare_set(
        self,
        key: Data,
        expected: Data,
        desired: Data,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> CompareSet:
        """Writes ``desired`` if the key holds ``expected``, or is absent and ``expected`` is empty.
        Returns what the key holds now, and whether it was written."""
        return self._run(_verbs.compare_set(key, expected, desired, lease, timeout))

    def check(self, keys: Union[Data, Sequence[Data]], *, timeout: Optional[float] = None) -> bool:
        """Whether all of the keys exist."""
        return self._run(_verbs.check(keys, timeout))

    def wait(self, keys: Union[Data, Sequence[Data]], *, timeout: Optional[float] = None) -> None:
        """Waits until each of the keys has existed."""
        self._run(_verbs.wait(keys, timeout))

    def delete(self, key: Data, *, timeout: Optional[float] = None) -> bool:
        """Deletes the key; returns whether it existed."""
        return self._run(_verbs.delete(key, timeout))

    def num_keys(self, *, timeout: Optional[float] = None) -> int:
        """How many keys there are."""
        return self._run(_verbs.num_keys(timeout))

    def keys(self, prefix: Data = b"", *, timeout: Optional[float] = None) -> List[bytes]:
        """The keys that begin with ``prefix``, in no order."""
        return self._run(_verbs.keys(prefix, timeout))

    def append(
        self,
        key: Data,
        value: Data,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Appends the value to what the key holds."""
        self._run(_verbs.append(key, value, lease, timeout))

    def multi_get(
        self, keys: Sequence[Data], *, wait: bool = True, timeout: Optional[float] = None
    ) -> List[bytes]:
        """Waits until all keys exist, and reads them in order."""
        return self._run(_verbs.multi_get(keys, wait, timeout))

    def multi_set(
        self,
        items: _verbs.Items,
        *,
        lease: _verbs.AnyLease = None,
        timeout: Optional[float] = None,
    ) -> None:
        """Writes several keys; a muster server writes all of them or none of them."""
        self._run(_verbs.multi_set(items, lease, timeout))

    def push(self, key: Data, value: Data, *, timeout: Optional[float] = None) -> None:
        """Puts an element at the end of a queue."""
        self._run(_verbs.push(key, value, timeout))

    def pop(self, key: Data, *, wait: bool = True, timeout: Optional[float] = None) -> bytes:
        """Takes the oldest element of a queue, and waits for one. Without ``wait``, ``NotFound`` is
        raised if there is none."""
        return self._run(_verbs.pop(key, wait, timeout))

    def queue_len(self, key: Data, *, timeout: Optional[float] = None) -> int:
        """How many elements the queue has; 0 if it does not exist."""
        return self._run(_verbs.queue_len(key, timeout))

    def barrier(self, key: Data, world_size: int, *, timeout: Optional[float] = None) -> None:
        """Waits for ``world_size`` callers. A key works once."""
        self._run(_verbs.barrier(key, world_size, timeout))

    def watch(self, key: Data, *, prefix: bool = False, current: bool = False) -> "Watch":
        """Follows the changes of a key, or of all keys that begin with it (``prefix``). With
        ``current``, the values that are there now come first."""
        return _load("Watch")(self, key, prefix, current)  # type: ignore[no-any-return]

    def lease(self, ttl: float, *, timeout: Optional[float] = None) -> "Lease":
        """Grants a lease of ``ttl`` seconds, whose keys are deleted when it ends."""
        number = self._run(_verbs.lease_grant(ttl, timeout))
        return _load("Lease")(self, number, ttl)  # type: ignore[no-any-return]

    # Python would count from store[0] on.
    __iter__ = None

    def __getitem__(self, key: Data) -> bytes:
        return self.get(key, wait=False)

    def __setitem__(self, key: Data, value: Data) -> None:
        self.set(key, value)

    def __delitem__(self, key: Data) -> None:
        if not self.delete(key):
            raise NotFound(f"there is no key {key!r}")

    def __contains__(self, key: Data) -> bool:
        return self.check(key)
