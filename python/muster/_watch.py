"""Watches: the changes of keys, as iterators."""

from __future__ import annotations

import ctypes
import enum
import threading
import time
from typing import TYPE_CHECKING, Iterator, NamedTuple, Optional

from . import _import, _lib, _runtime, _verbs
from ._runtime import SLICE_MS, Queue, Unique, on_main_thread, stop_if_exiting
from .errors import MusterError, from_code

if TYPE_CHECKING:
    from ._verbs import Data
    from .store import Store

class ChangeKind(enum.Enum):
    """What happened to a key."""

    CREATED = 1
    UPDATED = 2
    APPENDED = 3
    DELETED = 4
    EXPIRED = 5  #: deleted because its lease or its session ended


class Change(NamedTuple):
    """A change of a watched key. ``revision`` numbers all changes of the store, and grows."""

    kind: ChangeKind
    key: bytes
    value: bytes
    revision: int


_change_next = _lib.fast.muster_op_change_next
_ended = _lib.fast.muster_op_ended
_KINDS = {kind.value: kind for kind in ChangeKind}


class _Changes(Unique):
    """A watch under way: the operation, and the changes that wait in it. One thread at a time."""

    _what = "a watch"

    def __init__(self, store: Store, key: Data, prefix: bool, current: bool) -> None:
        self._store = store
        self._call = _verbs.Call()
        self._call.fill(_verbs.watch(key, prefix, current))
        self._op: Optional[ctypes.c_void_p] = None
        self._free = _runtime.Once(_lib.fast.muster_op_free, self._call.op)
        self._guard = threading.Lock()  # of the operation's end, which others may ask for
        self._change = _lib.Change()
        self._closed = False

    def _begin(self, queue: Queue, context: int) -> None:
        self._op = self._call.op
        request = self._call.request
        with queue._using() as pointer:
            request.queue, request.context = pointer, context
            self._store._started(self._store._submit(self._call))

    def _take(self) -> Optional[Change]:
        """The next change; None if there is none now."""
        change = self._change
        if self._op is None or _change_next(self._op, ctypes.byref(change)) != 1:
            return None
        return Change(
            _KINDS[change.kind], _lib.span(change.key), _lib.span(change.value), change.revision
        )

    def _end(self) -> Optional[MusterError]:
        """Why the watch has ended, when nothing is left in it; None if it goes on."""
        if self._op is None or not _ended(self._op):
            return None
        stop_if_exiting()
        status = _lib.fast.muster_op_status(self._op) or _lib.ECANCELED
        return _verbs.error_of(self._op, status)

    def _let_go(self) -> None:
        """Frees the operation, unless it belongs to the parent of a fork."""
        if self._store._generation == _runtime._generation:
            with self._guard:
                self._op = None
                self._free()

    def _cancel(self) -> None:
        """Asks for its end; whoever waits for a change learns of it."""
        if self._store._generation == _runtime._generation:
            with self._guard:
                if self._op:
                    _lib.fast.muster_op_cancel(self._op)


class Watch(_Changes):
    """The changes of a key, as an iterator. It ends when it is closed, and raises when the store
    can no longer tell: closed, lost, or this end fell too far behind (``LimitExceeded``)."""

    def __init__(self, store: Store, key: Data, prefix: bool, current: bool) -> None:
        super().__init__(store, key, prefix, current)
        self._turn = threading.Lock()
        assert store._runtime is not None
        self._queue = Queue(store._runtime)
        self._begin(self._queue, 0)

    def next(self, timeout: Optional[float] = None) -> Change:
        """Waits for the next change, for up to ``timeout`` seconds (None: without bound). Raises
        ``TimedOut``, or ``StopIteration`` if the watch was closed."""
        ms = _lib.milliseconds(timeout, _lib.TIMEOUT_NEVER)
        deadline = None if ms < 0 else time.monotonic() + ms / 1000
        try:
            with self._turn:
                return self._wait(deadline)
        finally:
            if self._closed:
                self._dispose()

    def _wait(self, deadline: Optional[float]) -> Change:
        while not self._closed:
            change = self._take()
            if change is not None:
                return change
            error = self._end()
            if error is not None and not self._closed:
                raise error
            if self._store._generation != _runtime._generation:
                raise self._store._gone()
            self._wait_slice(deadline)
        raise StopIteration

    def _wait_slice(self, deadline: Optional[float]) -> None:
        wait_ms = SLICE_MS if on_main_thread() else _lib.TIMEOUT_NEVER
        if deadline is not None:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise from_code(_lib.ETIMEDOUT, "no change came in time")
            left = max(1, round(rest * 1000))
            wait_ms = left if wait_ms < 0 else min(wait_ms, left)
        if self._queue.wait(wait_ms):
            self._queue.take()

    def __iter__(self) -> Iterator[Change]:
        return self

    def __next__(self) -> Change:
        return self.next()

    def close(self) -> None:
        """Ends the watch; a thread that waits in it goes on at once."""
        self._closed = True
        if not self._dispose():
            self._cancel()

    def _dispose(self) -> bool:
        """Frees everything, unless another thread is in it: then that one does."""
        if not self._turn.acquire(blocking=False):
            return False
        try:
            self._let_go()
            self._queue.close()
        finally:
            self._turn.release()
        return True

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            if not _runtime.is_finalizing():
                self.close()
                self._let_go()  # Ctrl-C may have kept an earlier close from it
        except Exception:  # noqa: BLE001 - nobody can catch it here
            pass


class AsyncWatch(_Changes):
    """The changes of a key, for ``async for``. It ends and raises as ``Watch`` does."""

    def __init__(self, store: Store, key: Data, prefix: bool, current: bool) -> None:
        _aio = _import("_aio")
        super().__init__(store, key, prefix, current)
        assert store._runtime is not None
        self._loop_queue = _aio.loop_queue(store._runtime)
        self._due = _aio.asyncio.Event()
        self._context = self._loop_queue.expect(lambda _event: self._due.set())
        self._begin(self._loop_queue.queue, self._context)

    async def next(self, timeout: Optional[float] = None) -> Change:
        """Waits for the next change, for up to ``timeout`` seconds (None: without bound). Raises
        ``TimedOut``, or ``StopAsyncIteration`` if the watch was closed."""
        import asyncio

        try:
            return await asyncio.wait_for(self._wait(), timeout)
        except asyncio.TimeoutError:
            raise from_code(_lib.ETIMEDOUT, "no change came in time") from None

    async def _wait(self) -> Change:
        while not self._closed:
            change = self._take()
            if change is not None:
                return change
            error = self._end()
            if error is not None:
                raise error
            self._due.clear()
            await self._due.wait()
        raise StopAsyncIteration

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> Change:
        return await self._wait()

    def close(self) -> None:
        """Ends the watch, on the thread of its event loop."""
        self._closed = True
        self._loop_queue.forget(self._context)
        self._let_go()
        self._due.set()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self._loop_queue.forget(self._context)
            self._let_go()
        except Exception:  # noqa: BLE001 - nobody can catch it here
            pass
