"""Calls that come in: who runs their handlers, and how they are answered.

The library puts calls into a queue. Threads of Python's take them from there, one each, and run the
handlers: a call that comes alone is run by the thread that it woke. One or two of them watch the
queue, so that a handler that waits keeps nobody else waiting; the others are parked. Handlers that
are coroutines have a queue and an event loop of their own.
"""

import contextvars
import inspect
import os
import select
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from . import _lib, _pickled, _runtime
from ._rpc_out import BORROW_BYTES, Wake, parts_in
from .errors import from_code

_current: "contextvars.ContextVar[Call]" = contextvars.ContextVar("muster.rpc.current")


def current() -> "Call":
    """The call that the running handler serves. Raises ``RuntimeError`` outside of handlers."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("muster.rpc.current(): no handler of a call is running here") from None


class Method(NamedTuple):
    """A function that others can call."""

    name: str
    function: Callable[..., Any]
    pickle: bool
    is_async: bool


class Call(_runtime.Unique):
    """A call that came in, as its handler sees it."""

    _what = "a call"

    def __init__(self, pointer: int, method: Method) -> None:
        self._lock = threading.Lock()
        self._pointer: Optional[int] = pointer
        self._generation = _runtime._generation
        self._why = 0
        #: The method's name.
        self.method = method.name
        #: The name of the worker that calls.
        self.caller = _lib.text(_lib.fast.muster_rpc_in_caller(pointer))

    def _parts(self) -> List[bytes]:
        with self._lock:
            call = self._pointer
            if call is None:
                return []
            part = _lib.fast.muster_rpc_in_part
            count = _lib.fast.muster_rpc_in_part_count(call)
            return [_lib.span(part(call, i).data) for i in range(count)]

    @property
    def time_left(self) -> float:
        """Seconds until the call's deadline; 0 when it has passed, infinity if there is none."""
        with self._lock:
            if self._pointer is None:
                return 0.0
            ms = _lib.fast.muster_rpc_in_time_left(self._pointer)
        return float("inf") if ms < 0 else ms / 1000

    @property
    def canceled(self) -> bool:
        """Whether the caller no longer waits for the answer: it canceled the call, its deadline has
        passed, or it is gone."""
        with self._lock:
            if self._pointer is not None:
                self._why = _lib.fast.muster_rpc_in_canceled(self._pointer)
        return self._why != 0

    def _answer(self, parts: List[bytes]) -> None:
        array = parts_in(parts)
        long = sum(map(len, parts)) > BORROW_BYTES
        pointer = self._end()
        if pointer is not None:
            (_lib.lib if long else _lib.fast).muster_rpc_reply(pointer, array, len(parts))

    def _fail(self, code: int, text: str) -> None:
        said = text.replace("\0", "\\0").encode("utf-8", "backslashreplace")
        pointer = self._end()
        if pointer is not None:
            self._why = self._why or code
            _lib.fast.muster_rpc_fail(pointer, code, said)

    def _end(self) -> Optional[int]:
        """The pointer, for the one who answers; None if it was answered or is a parent's."""
        if self._generation != _runtime._generation:
            return None
        with self._lock:
            pointer, self._pointer = self._pointer, None
        return pointer

    def __repr__(self) -> str:
        return f"<muster.rpc.Call {self.method} from {self.caller}>"


def _described(error: BaseException) -> str:
    """What the caller is told of an exception: its type and its text, and nothing more."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a handler's exception may be anything
        text = "(its text cannot be had)"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _encoded(result: Any) -> List[bytes]:
    """The parts of an answer: none, one, or several."""
    if result is None:
        return []
    if isinstance(result, (list, tuple)):
        return [_lib.data(part) for part in result]
    return [_lib.data(result)]


class Server:
    """The methods of an agent, and the threads that serve them. It does not know the agent."""

    def __init__(self, runtime: _runtime.Runtime, threads: int) -> None:
        self._runtime = runtime
        self._threads_max = threads
        self._lock = threading.Lock()
        self._methods: Dict[int, Method] = {}
        self._calls: Set[Call] = set()
        self._stopped = False
        self._wake: Optional[Wake] = None
        self._queue: Optional[_runtime.Queue] = None
        self._threads = 0
        self._watching = 0  # threads that take from the queue, or are about to
        self._parked = 0
        self._park = threading.Semaphore(0)
        self._loop: Any = None
        self._loop_thread: Optional[threading.Thread] = None
        self._loop_queue: Optional[_runtime.Queue] = None
        self._tasks: Set[Any] = set()

    def register(self, agent: _runtime.Handle, method: Method) -> None:
        """Serves a method from now on."""
        agent._get()  # raises if the agent is closed
        queue = self._queue_for(method)
        number = next(_runtime._numbers)
        self._methods[number] = method
        try:
            with agent._using() as me, queue._using() as q:
                code = _lib.lib.muster_rpc_register_queue(me, method.name.encode(), q, number)
            if code != 0:
                raise from_code(code)
        except BaseException:
            del self._methods[number]
            raise

    def _queue_for(self, method: Method) -> _runtime.Queue:
        with self._lock:
            if self._stopped:
                raise _runtime.closed_error("the agent")
            if method.is_async:
                if self._loop_queue is None:
                    self._loop_queue = _runtime.Queue(self._runtime)
                    self._start_loop(self._loop_queue)
                return self._loop_queue
            if self._queue is None:
                self._queue = _runtime.Queue(self._runtime)
                self._wake = Wake()
                self._start_thread()
            return self._queue

    # --- threads

    def _start_thread(self) -> None:
        """Under the lock."""
        thread = threading.Thread(
            target=self._serve, args=(self._queue, self._wake), name="muster-rpc-serve", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            if self._threads == 0:
                raise
            return  # none can be started now: calls wait for those that there are
        self._threads += 1
        self._watching += 1

    def _serve(self, queue: _runtime.Queue, wake: Wake) -> None:
        room = (_lib.Queued * 1)()
        with select.epoll() as poll:
            # All that watch are woken: the descriptor says that the queue is not empty, but not
            # again for each call that comes while it is not. So there are two of them at most.
            poll.register(queue.fd, select.EPOLLIN)
            poll.register(wake.fd, select.EPOLLIN)
            while True:
                with queue._lock:
                    pointer = queue._pointer
                    taken = 0 if pointer is None else _lib.fast.muster_queue_take(pointer, room, 1)
                if pointer is None:
                    return
                if taken:
                    method = self._methods[room[0].context]
                    self._run(Call(room[0].object, method), method)
                    self._rest()
                elif any(fd == wake.fd for fd, _ in poll.poll()):
                    return

    def _run(self, call: Call, method: Method) -> None:
        with self._lock:
            self._calls.add(call)
            stopped = self._stopped
            self._watching -= 1
            if self._watching == 0 and not stopped:
                self._replace()
        _current.set(call)
        try:
            if stopped or call.canceled:
                call._fail(_lib.ECLOSED if stopped else call._why, "canceled before it began")
            else:
                result = self._begin(call, method)
                call._answer(_pickled.dumped(result) if method.pickle else _encoded(result))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            self._failed(call, error)
        finally:
            self._over(call)

    def _replace(self) -> None:
        """Lets another thread watch the queue, under the lock."""
        if self._parked:
            self._parked -= 1
            self._watching += 1
            self._park.release()
        elif self._threads < self._threads_max:
            self._start_thread()

    def _rest(self) -> None:
        """After a call: watches the queue again, or waits until that is needed."""
        with self._lock:
            park = self._watching >= 2 and not self._stopped
            if park:
                self._parked += 1
            else:
                self._watching += 1
        if park:
            self._park.acquire()

    @staticmethod
    def _begin(call: Call, method: Method) -> Any:
        """Calls the function: gives its result, or its coroutine."""
        if not method.pickle:
            return method.function(*_pickled.bytes_only(call._parts()))
        args, kwargs = _pickled.arguments(call._parts())
        return method.function(*args, **kwargs)

    @staticmethod
    def _failed(call: Call, error: BaseException) -> None:
        call._fail(_lib.EREMOTE, _described(error))
        import logging

        logging.getLogger("muster.rpc").warning(
            "%s, called by %s, failed", call.method, call.caller, exc_info=error
        )

    def _over(self, call: Call) -> None:
        with self._lock:
            self._calls.discard(call)

    # --- the event loop

    def _start_loop(self, queue: _runtime.Queue) -> None:
        """Under the lock."""
        import asyncio

        loop = self._loop = asyncio.new_event_loop()
        room = (_lib.Queued * 64)()
        # A descriptor of our own: the queue, and its descriptor with it, may be closed any time.
        fd = os.dup(queue.fd)

        def drain() -> None:
            with queue._lock:
                pointer = queue._pointer
                taken = 0 if pointer is None else _lib.fast.muster_queue_take(pointer, room, 64)
            if pointer is None:
                loop.remove_reader(fd)
                return
            for it in room[:taken]:
                method = self._methods[it.context]
                call = Call(it.object, method)
                # Before its task runs, which it may never do: so that stop() finds it.
                with self._lock:
                    self._calls.add(call)
                    stopped = self._stopped
                if stopped:
                    call._fail(_lib.ECLOSED, "the worker was shut down")
                    continue
                task = loop.create_task(self._run_async(call, method))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

        def run() -> None:
            asyncio.set_event_loop(loop)
            loop.add_reader(fd, drain)
            try:
                loop.run_forever()
                for task in list(self._tasks):
                    task.cancel()
                if self._tasks:
                    loop.run_until_complete(asyncio.wait(list(self._tasks), timeout=1))
                loop.run_until_complete(loop.shutdown_asyncgens())
            finally:
                loop.close()
                os.close(fd)

        self._loop_thread = threading.Thread(target=run, name="muster-rpc-loop", daemon=True)
        self._loop_thread.start()

    async def _run_async(self, call: Call, method: Method) -> None:
        _current.set(call)
        try:
            if call.canceled:
                call._fail(call._why, "canceled before it began")
            else:
                result = await self._begin(call, method)
                call._answer(_pickled.dumped(result) if method.pickle else _encoded(result))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            if not self._stopped:
                self._failed(call, error)
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                return  # it would end the loop
            if type(error).__name__ == "CancelledError":
                raise
        finally:
            self._over(call)

    # --- the end

    def stop(self) -> None:
        """Fails what is unanswered, and ends the threads; those that run a handler end after it."""
        with self._lock:
            self._stopped = True
            calls = list(self._calls)
            wake, queues = self._wake, [self._queue, self._loop_queue]
            loop, thread = self._loop, self._loop_thread
            for _ in range(self._parked):
                self._park.release()
        if wake is not None:
            wake.set()
        for call in calls:
            call._fail(_lib.ECLOSED, "the worker was shut down")
        if loop is not None and thread is not None:
            try:
                loop.call_soon_threadsafe(loop.stop)
            except RuntimeError:
                pass  # it is closed
            if thread is not threading.current_thread():
                thread.join(1.0)
        for queue in queues:
            if queue is not None:
                queue.close()
        # What was taken while this ran has seen that it is too late, and was failed.

    def forked(self) -> None:
        """In a child of fork(): no thread of these came along."""
        self._lock = threading.Lock()
        self._stopped = True
        self._loop = self._loop_thread = None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a call of it gives a coroutine."""
    call = getattr(function, "__call__", None)
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
