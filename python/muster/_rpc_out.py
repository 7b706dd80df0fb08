"""Calls that go out: futures, and who is told when they end.

A blocking call waits for its own end in the library. A future that was made inside an event loop is
put into that loop's queue when it ends; any other one is put into a queue of the agent's, which a
thread takes from as soon as somebody wants to be told (``add_done_callback``, ``await``).
"""

import ctypes
import re
import select
import sys
import threading
import time
import weakref
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Generator,
    Generic,
    List,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypeVar,
)

from . import _lib, _runtime
from .errors import MusterError, RemoteError, from_code

_T = TypeVar("_T")

if TYPE_CHECKING:
    Futures = weakref.WeakValueDictionary[int, "Future[Any]"]

FLAG_RETRY, FLAG_ONCE, FLAG_BORROW = 1, 2, 4
KIND_REMOTE = 3

#: Parts that are longer in all are not copied: they go to the kernel from where they are.
BORROW_BYTES = 64 << 10


def parts_in(parts: Sequence[bytes]) -> Any:
    """An array of struct muster_rpc_part, all in memory."""
    rows: Any = [((part, len(part)), -1) for part in parts]
    return (_lib.RpcPart * len(parts))(*rows)


def running_loop() -> Any:
    """The event loop that runs on this thread, or None. asyncio is not imported for that."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio._get_running_loop()


# --- how a call ended -----------------------------------------------------------------------------

_HANDLERS_TYPE = re.compile(r"([A-Za-z_][\w.]*)(?:: |$)")


def remote_error(code: int, message: str, method: str) -> MusterError:
    """The error of a handler: its type and text are taken from what the library says."""
    error = RemoteError(message)
    error.code, error.name = code, _lib.text(_lib.fast.muster_errname(code))
    match = re.match(re.escape(method) + r" to [A-Za-z0-9_:-]+: ", message)
    said = message[match.end():] if match else message
    named = _HANDLERS_TYPE.match(said)
    error.type = named.group(1) if named else ""
    error.text = said[named.end():] if named else said
    return error


class Outcome:
    """How a call ended: with the parts of its answer, or with an error."""

    __slots__ = ("parts", "error")

    def __init__(self, future: int, method: str) -> None:
        fast = _lib.fast
        status = fast.muster_rpc_future_status(future)
        self.error: Optional[MusterError] = None
        self.parts: List[bytes] = []
        if status == 0:
            part = fast.muster_rpc_future_part
            count = fast.muster_rpc_future_part_count(future)
            self.parts = [_lib.span(part(future, i).data) for i in range(count)]
            return
        message = _lib.text(fast.muster_rpc_future_errmsg(future))
        if fast.muster_rpc_future_kind(future) == KIND_REMOTE:
            self.error = remote_error(status, message, method)
        else:
            self.error = from_code(status, message)


# --- futures --------------------------------------------------------------------------------------


class Future(_runtime.Unique, Generic[_T]):
    """A call under way, or how it ended.

    It can be waited for by threads (``result``, ``exception``), in any event loop (``await``), and
    with callbacks. A future that nobody keeps does not end its call.
    """

    _what = "a call"

    def __init__(
        self, calls: "Calls", method: str, decode: Callable[[List[bytes]], _T], keep: Any
    ) -> None:
        self._calls = calls
        self._method = method
        self._decode = decode
        self._keep = keep  # what the library reads until the call has ended
        self._lock = threading.Lock()
        self._users = 0  # threads that wait in the library, which needs the pointer
        self._pointer: Optional[int] = None
        self._loop: Any = None
        self._number = 0
        self._outcome: Optional[Outcome] = None
        self._decoded: Optional[Tuple[_T]] = None
        self._callbacks: List[Callable[["Future[_T]"], Any]] = []
        self._generation = _runtime._generation

    def _alive(self) -> None:
        if self._generation != _runtime._generation:
            raise _runtime.forked_error("the call")

    def _free(self) -> None:
        """Under the lock, when the call has ended or nobody wants its answer."""
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            _lib.fast.muster_rpc_future_free(pointer)

    def _settle(self) -> None:
        """Takes over how the call ended, and tells those who asked."""
        with self._lock:
            if self._outcome is not None or self._pointer is None:
                return
            self._outcome = Outcome(self._pointer, self._method)
            self._keep = None
            callbacks, self._callbacks = self._callbacks, []
            if self._users == 0:
                self._free()
        self._calls.forget(self)
        for callback in callbacks:
            self._run(callback)

    def _run(self, callback: Callable[["Future[_T]"], Any]) -> None:
        try:
            callback(self)
        except Exception:  # noqa: BLE001 - nobody else could catch it
            import logging

            logging.getLogger("muster.rpc").exception("a callback of %r failed", self)

    def _wait(self, timeout: Optional[float]) -> bool:
        """Waits until the call has ended."""
        end = None if timeout is None else time.monotonic() + max(0.0, timeout)
        slices = _runtime.on_main_thread()
        with self._lock:
            if self._outcome is not None:
                return True
            pointer = self._pointer
            self._users += 1
        try:
            while True:
                ms = _runtime.SLICE_MS if slices else _lib.TIMEOUT_NEVER
                left = None if end is None else max(0, round((end - time.monotonic()) * 1000))
                if left is not None:
                    ms = left if ms < 0 else min(ms, left)
                (_lib.lib if ms else _lib.fast).muster_rpc_future_wait(pointer, ms)
                if _lib.fast.muster_rpc_future_ended(pointer):
                    self._settle()
                    return True
                if left == 0:
                    return False
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._outcome is not None:
                    self._free()

    def done(self) -> bool:
        """Whether the call has ended."""
        if self._outcome is None:
            self._alive()
            with self._lock:
                if self._pointer is None or not _lib.fast.muster_rpc_future_ended(self._pointer):
                    return self._outcome is not None
            self._settle()
        return True

    def _ended(self, timeout: Optional[float]) -> Outcome:
        if timeout is not None:
            _lib.milliseconds(timeout)  # complains about what is not a timeout
        if self._outcome is None:
            self._alive()
            with self._calls.runtime._using():
                ended = self._wait(None if timeout == float("inf") else timeout)
            if not ended:
                raise from_code(_lib.ETIMEDOUT, f"{self._method} has not ended within {timeout} s")
        assert self._outcome is not None
        return self._outcome

    def result(self, timeout: Optional[float] = None) -> _T:
        """Waits for the answer and returns it, or raises the call's error. If the call has not
        ended after ``timeout`` seconds, ``TimedOut`` is raised, and the call goes on."""
        outcome = self._ended(timeout)
        if outcome.error is not None:
            raise outcome.error
        decoded = self._decoded
        if decoded is None:
            decoded = self._decoded = (self._decode(outcome.parts),)
            outcome.parts = []
        return decoded[0]

    def exception(self, timeout: Optional[float] = None) -> Optional[BaseException]:
        """Waits for the end; returns the error, or None if there is an answer."""
        outcome = self._ended(timeout)
        return outcome.error

    def cancel(self) -> bool:
        """Asks for the call's early end, and tells the handler. Returns whether the call had not
        ended yet; it may still end otherwise than with ``Canceled``."""
        if self._outcome is not None:
            return False
        self._alive()
        with self._lock:
            if self._pointer is None or _lib.fast.muster_rpc_future_ended(self._pointer):
                return False
            _lib.fast.muster_rpc_future_cancel(self._pointer)
        return True

    def add_done_callback(self, callback: Callable[["Future[_T]"], Any]) -> None:
        """Calls ``callback(future)`` when the call has ended: at once if it has, else on the thread
        that learns of it first. That is a thread of the agent, or the event loop in which the call
        was made. What the callback raises is logged."""
        self._alive()
        with self._lock:
            if self._outcome is None:
                self._callbacks.append(callback)
                self._calls.pin(self)
                callback_now = False
            else:
                callback_now = True
        if callback_now:
            self._run(callback)
        elif self._loop is None:
            self._calls.watch()

    def __await__(self) -> Generator[Any, None, _T]:
        if not self.done():
            yield from self._wait_in_loop()
        return self.result(0)

    def _wait_in_loop(self) -> Generator[Any, None, None]:
        import asyncio

        loop = asyncio.get_running_loop()
        waiter = loop.create_future()

        def finish() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def tell(_: Any) -> None:
            if running_loop() is loop:
                finish()
                return
            try:
                loop.call_soon_threadsafe(finish)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        self.add_done_callback(tell)
        if self._loop is not None and self._loop is not loop:
            # The loop whose queue it goes into may not run any more.
            threading.Thread(target=self._ended, args=(None,), name="muster-rpc-wait",
                             daemon=True).start()  # fmt: skip
        try:
            yield from waiter
        except BaseException:
            self.cancel()
            raise

    def __repr__(self) -> str:
        outcome = self._outcome
        how = "under way" if outcome is None else "failed" if outcome.error else "ended"
        return f"<muster.rpc.Future {self._method}, {how}>"

    def __del__(self) -> None:
        if getattr(self, "_pointer", None) is None or self._generation != _runtime._generation:
            return
        pointer, self._pointer = self._pointer, None
        if pointer is not None and self._keep is not None:
            self._calls.keep(pointer, self._keep)
        else:
            _lib.fast.muster_rpc_future_free(pointer)


# --- all calls of an agent ------------------------------------------------------------------------


class Wake:
    """A pipe that wakes threads which wait for descriptors, once and for all."""

    def __init__(self) -> None:
        import os

        self.fd, self._other = os.pipe()
        self._close = os.close
        self._write = os.write

    def set(self) -> None:
        self._write(self._other, b"!")

    def __del__(self) -> None:
        self._close(self.fd)
        self._close(self._other)


class Calls:
    """The calls of an agent that are under way. It does not know the agent, so that an agent which
    nobody keeps can go."""

    def __init__(self, runtime: _runtime.Runtime) -> None:
        self.runtime = runtime
        self._lock = threading.Lock()
        self._queue: Optional[_runtime.Queue] = None
        self._wake: Optional[Wake] = None
        self._closed = False
        self._futures: "Futures" = weakref.WeakValueDictionary()
        self._pinned: Set["Future[Any]"] = set()
        self._kept: List[Tuple[int, Any]] = []

    # What the futures need.

    def forget(self, future: "Future[Any]") -> None:
        self._futures.pop(future._number, None)
        self._pinned.discard(future)

    def pin(self, future: "Future[Any]") -> None:
        """Somebody wants to be told: the future lives until then."""
        self._pinned.add(future)

    def keep(self, pointer: int, keep: Any) -> None:
        """The future is gone, but the library reads what it borrowed until the call has ended."""
        self._kept.append((pointer, keep))

    def _sweep(self) -> None:
        kept, self._kept = self._kept, []
        for pointer, keep in kept:
            if _lib.fast.muster_rpc_future_ended(pointer):
                _lib.fast.muster_rpc_future_free(pointer)
            else:
                self._kept.append((pointer, keep))

    def watch(self) -> None:
        """Starts the thread that tells of calls that were made outside event loops."""
        with self._lock:
            if self._wake is not None or self._queue is None or self._closed:
                return
            self._wake = Wake()
            threading.Thread(
                target=_tell, args=(self._queue, self._wake, self._futures),
                name="muster-rpc-done", daemon=True,
            ).start()  # fmt: skip

    # What the agent needs.

    def begin(
        self, agent: _runtime.Handle, request: _lib.RpcRequest, future: "Future[Any]"
    ) -> None:
        """Begins a call whose end is told."""
        if self._kept:
            self._sweep()
        loop = running_loop()
        if loop is None:
            queue, context = self._own_queue(), next(_runtime._numbers)
        else:
            from . import _aio

            loop_queue = _aio.loop_queue(self.runtime)
            queue = loop_queue.queue

            def ended(_: Any) -> None:
                loop_queue.forget(context)
                future.done()  # or the loop's queue has ended, and the agent's end is told later

            context = loop_queue.expect(ended)
        pointer = ctypes.c_void_p()
        future._loop = loop
        future._number = context if loop is None else next(_runtime._numbers)
        request.context = context
        try:
            with agent._using() as me, queue._using() as request.queue:
                # The end may be told before this returns: the future must be found by then, and
                # its lock keeps it from being settled before it has its pointer.
                with future._lock:
                    self._futures[future._number] = future
                    call = (_lib.lib if request.flags & FLAG_BORROW else _lib.fast).muster_rpc_call
                    try:
                        code = call(me, ctypes.byref(request), ctypes.byref(pointer))
                    finally:
                        # Ctrl-C may come right after the call has begun.
                        future._pointer = pointer.value
            if code != 0:
                raise from_code(code)
        except BaseException:
            if future._pointer is None:
                self.forget(future)
                if loop is not None:
                    loop_queue.forget(context)
            raise

    def _own_queue(self) -> _runtime.Queue:
        with self._lock:
            if self._closed:
                raise _runtime.closed_error("the agent")
            if self._queue is None:
                self._queue = _runtime.Queue(self.runtime)
            return self._queue

    def cancel_all(self) -> None:
        """Asks every call to end."""
        for future in list(self._futures.values()):
            future.cancel()

    def close(self) -> None:
        """After the agent's end: every call has ended. Takes over how, and stops the thread."""
        with self._lock:
            self._closed = True
            if self._wake is not None:
                self._wake.set()
        for future in list(self._futures.values()):
            future._wait(1.0)
        self._sweep()
        if self._queue is not None:
            self._queue.close()


def _tell(queue: _runtime.Queue, wake: Wake, futures: "Futures") -> None:
    """The thread that takes ended calls from a queue, until it is woken."""
    poll = select.poll()
    poll.register(queue.fd, select.POLLIN)
    poll.register(wake.fd, select.POLLIN)
    while all(fd != wake.fd for fd, _ in poll.poll()):
        try:
            events = queue.take()
        except MusterError:
            return
        for event in events:
            future = futures.get(event.context)
            if future is not None:
                future._settle()
            future = None


def run_blocking(
    calls: Calls, agent: _runtime.Handle, request: _lib.RpcRequest, method: str, keep: Any
) -> Outcome:
    """Makes a call and waits for its end on this thread."""
    pointer = ctypes.c_void_p()
    begin = (_lib.lib if request.flags & FLAG_BORROW else _lib.fast).muster_rpc_call
    ended = False
    with calls.runtime._using():
        try:
            with agent._using() as me:
                code = begin(me, ctypes.byref(request), ctypes.byref(pointer))
            if code != 0:
                raise from_code(code)
            _runtime.wait_in_slices(
                lambda ms: _lib.lib.muster_rpc_future_wait(pointer, ms),
                lambda: _lib.fast.muster_rpc_future_ended(pointer),
            )
            ended = True
            return Outcome(pointer.value or 0, method)
        finally:
            # Ctrl-C may have come at any moment after the call has begun.
            future = pointer.value
            if future is not None:
                if not ended:
                    _lib.fast.muster_rpc_future_cancel(future)
                if ended or not request.flags & FLAG_BORROW:
                    _lib.fast.muster_rpc_future_free(future)
                else:
                    calls.keep(future, keep)
