"""asyncio: what has ended is taken from a queue whose descriptor the event loop watches."""

import asyncio
import ctypes
import itertools
import os
import threading
import weakref
from typing import Any, Callable, Dict, Optional

from . import _lib, _runtime

_take = _lib.fast.muster_queue_take
_Words = ctypes.c_uint64 * (3 * 64)


class LoopQueue:
    """The queue of one event loop in one runtime. For each thing under way there is a function that
    is called with its event (`expect`), or a future that is done when it has ended
    (`expect_end`)."""

    def __init__(self, loop: asyncio.AbstractEventLoop, runtime: _runtime.Runtime) -> None:
        self.queue = _runtime.Queue(runtime)
        self.waiting: Dict[int, Callable[[_runtime.Event], None]] = {}
        self._futures: "Dict[int, asyncio.Future[None]]" = {}
        self._numbers = itertools.count(1)
        self._loop = weakref.ref(loop)
        # kind, object and context of each thing that was taken
        self._words = _Words.from_buffer(self.queue._room)
        self._generation = _runtime._generation
        # A descriptor of our own: the runtime may be closed, and the queue's descriptor with it,
        # while the loop watches.
        self._fd = -1
        with self.queue._lock:
            if not self.queue.closed:
                self._fd = os.dup(self.queue.fd)
        if self._fd < 0:
            raise self.queue._gone()
        loop.add_reader(self._fd, self._drain)
        me = weakref.ref(self)
        self.queue.on_freed = lambda: _tell_freed(me)

    @property
    def usable(self) -> bool:
        return not self.queue.closed and self._generation == _runtime._generation

    def expect(self, tell: Callable[[_runtime.Event], None]) -> int:
        """A context for something that is about to be started with this queue."""
        number = next(self._numbers)
        self.waiting[number] = tell
        return number

    def expect_end(self, future: "asyncio.Future[None]") -> int:
        """The same for something of which only the end matters."""
        number = next(self._numbers)
        self._futures[number] = future
        return number

    def forget(self, number: int) -> None:
        """Whatever becomes of it, nobody waits any more."""
        self._futures.pop(number, None)
        self.waiting.pop(number, None)

    def close(self) -> None:
        """Lets go of the descriptor, on the loop's thread or when the loop is closed."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._generation == _runtime._generation:
            loop = self._loop()
            if loop is not None and not loop.is_closed():
                loop.remove_reader(fd)
            os.close(fd)
        self.queue._finish(quietly=True)

    def __del__(self) -> None:
        try:
            if not _runtime.is_finalizing():
                self.close()
        except Exception:  # noqa: BLE001 - nobody can catch it here
            pass

    def _drain(self) -> None:
        _runtime.stop_if_exiting()
        queue = self.queue
        with queue._lock:
            pointer = queue._pointer
            count = 0 if pointer is None else _take(pointer, queue._room, 64)
        if pointer is None:
            self._end()
            return
        words = self._words[: 3 * count]
        futures = self._futures
        for i in range(0, 3 * count, 3):
            future = futures.pop(words[i + 2], None)
            if future is not None:
                if not future.done():
                    future.set_result(None)
                continue
            tell = self.waiting.get(words[i + 2])
            if tell is not None:
                tell(_runtime.Event(words[i] & 0xFFFFFFFF, words[i + 1], words[i + 2]))

    def _end(self) -> None:
        """The runtime was closed. What was under way has ended before that."""
        self.close()
        for future in list(self._futures.values()):
            if not future.done():
                future.set_result(None)
        for number, tell in list(self.waiting.items()):
            tell(_runtime.Event(0, 0, number))


def _tell_freed(queue: "weakref.ref[LoopQueue]") -> None:
    """The queue was freed on any thread: its loop learns of it."""
    it = queue()
    loop = None if it is None else it._loop()
    if it is not None and loop is not None and not _runtime._exiting:
        try:
            loop.call_soon_threadsafe(it._end)
        except RuntimeError:
            pass  # the loop is closed


_Queues = Dict[int, LoopQueue]
_loops: "weakref.WeakKeyDictionary[Any, _Queues]" = weakref.WeakKeyDictionary()
_loops_lock = threading.Lock()


def _new_queue(loop: asyncio.AbstractEventLoop, runtime: _runtime.Runtime) -> LoopQueue:
    """Makes the queue of a loop, and closes those of loops that are closed."""
    queue = LoopQueue(loop, runtime)
    with _loops_lock:
        closed = [it for it in _loops if it.is_closed()]
        old = [_loops.pop(it, {}) for it in closed]
        _loops.setdefault(loop, {})[runtime._number] = queue
    for queues in old:
        for it in queues.values():
            it.close()
    return queue


def loop_queue(runtime: _runtime.Runtime) -> LoopQueue:
    """The queue of the running event loop."""
    loop = asyncio.get_running_loop()
    queues = _loops.get(loop)
    queue = None if queues is None else queues.get(runtime._number)
    if queue is None or not queue.usable:
        queue = _new_queue(loop, runtime)
    return queue


def _after_fork() -> None:
    global _loops, _loops_lock
    _loops = weakref.WeakKeyDictionary()
    _loops_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


async def in_thread(call: Callable[[], Any]) -> Any:
    """Runs a call that blocks on a thread of its own, which waits for nobody at the end."""
    loop = asyncio.get_running_loop()
    future: "asyncio.Future[Any]" = loop.create_future()

    def finish(result: Any, error: Optional[BaseException]) -> None:
        if not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as caught:  # noqa: BLE001 - handed to the caller
            error = caught
        _runtime.stop_if_exiting()
        try:
            loop.call_soon_threadsafe(finish, result, error)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name="muster-aio", daemon=True).start()
    return await future
