"""The runtime: the thread that does the work, what is open in it, and how Python waits for it.

Most programs never see it: the first object that is opened makes the runtime of the process, with
the credential that the environment names. At the interpreter's end everything that is still open is
closed.
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import itertools
import os
import threading
import time
import weakref
from collections import namedtuple
from sys import is_finalizing as is_finalizing
from threading import get_ident

from . import _lib
from .errors import Closed, MusterError, from_code

TYPE_CHECKING = False  # see muster/__init__.py
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, TypeVar

    _T = TypeVar("_T")

#: How long a wait on the main thread lasts before Python looks for signals: Ctrl-C works within it.
SLICE_MS = 50

_numbers = itertools.count(1)

#: Counts forks: what was opened before one is dead after it.
_generation = 0

#: Set when the interpreter ends; from then on threads other than the main one are daemons.
_exiting = False

#: The thread that handles signals.
_main_ident = threading.main_thread().ident


def on_main_thread() -> bool:
    """Whether signals are handled by this thread, so that its waits must be short."""
    return get_ident() == _main_ident


def stop_if_exiting() -> None:
    """Keeps a daemon thread from going on while the interpreter ends: what it uses was closed under
    it, and its error would only disturb what the program has printed last."""
    if _exiting and not on_main_thread():
        while True:
            time.sleep(3600)


def wait_in_slices(wait: Callable[[int], int], ended: Callable[[], bool]) -> int:
    """Waits with `wait(ms)`, in slices where Ctrl-C must work, and returns its code. A timeout is
    one of the slices unless `ended()`."""
    slice_ms = SLICE_MS if on_main_thread() else _lib.TIMEOUT_NEVER
    while True:
        code = wait(slice_ms)
        if code != _lib.ETIMEDOUT:
            return code
        if ended():
            return wait(0)  # it may have ended well after the slice


class Unique:
    """Something that stands for one thing of the library or of a server: a copy would end it a
    second time, and in another process there is nothing that it stands for."""

    _what = "this object"

    def __reduce_ex__(self, _protocol: Any) -> Any:
        # copy.copy() and copy.deepcopy() come here as well as pickle.
        raise TypeError(
            f"{self._what} cannot be copied or pickled: it is open in this process, once. "
            "Use the same object, or open another one where it is needed"
        )


class Once:
    """A call of the library's that ends something: it is made once, and `ended` says whether it has
    returned. Ctrl-C may come between any two steps of Python's, but not here, because taking the
    call, making it and writing that down is one step."""

    __slots__ = ("_calls", "ended")

    def __init__(self, function: Any, slot: Any) -> None:
        self._calls = map(function, (slot,))
        self.ended: List[Any] = []

    def __call__(self) -> None:
        self.ended.extend(self._calls)


def _nothing(_slot: Any) -> None:
    """Ends something that is not ours."""


class Handle(Unique):
    """Something that is open in a runtime: it is closed once, and not used after that.

    A subclass sets `_close_function`, and opens it with `_opening()`. It calls the library inside
    `with self._using() as pointer`; a call that returns at once may be made with `self._lock` held
    instead.

    Ctrl-C may come anywhere. So the library itself writes the pointer into `_slot`, which is ours
    from the beginning; the close is made `Once`; and all that has to be done around it can be done
    again, by the next `close()` or when the object is forgotten.
    """

    _close_function = ""
    _interrupt_function = ""  # ends the calls that are under way, so that it can be closed
    _close_is_slow = False  # Ctrl-C must work in its close
    _close_last = False  # others tell of their end through it
    _close_waits = True  # its close returns when it is closed, not when others will have done that

    def __init__(self, runtime: Optional["Runtime"]) -> None:
        # A signal's handler, or a __del__, may use what the thread that it interrupts is using.
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)
        self._uses: "set[int]" = set()
        self._slot = ctypes.c_void_p()
        close = getattr(_lib.lib, self._close_function) if self._close_function else _nothing
        self._end = Once(close, self._slot)
        self._pointer: Optional[int] = None  # None: not open yet, or not open any more
        self._left = False  # closed, but calls still use it: the last one ends it
        self._over = False  # ended, and its runtime knows
        self._generation = _generation
        self._number = next(_numbers)
        self._runtime = runtime
        _handles.add(self)

    def _opening(self, call: Callable[[int, Any], int]) -> int:
        """Opens it with `call(pointer of the runtime, where its own goes)`, and returns the code of
        that. Raises if the runtime was closed meanwhile."""
        runtime = self._runtime
        assert runtime is not None
        with runtime._using() as rt:
            runtime._expect(self)
            code = call(rt, ctypes.byref(self._slot))
            if code != 0:
                runtime._forget(self)
                return code
            self._pointer = self._slot.value
            if not runtime._adopt(self):
                self._finish(quietly=True)
                raise closed_error(runtime._what)
        return 0

    def _get(self) -> int:
        """The pointer; raises if there is none any more."""
        pointer = self._pointer
        if pointer is None:
            raise self._gone()
        return pointer

    def _gone(self) -> MusterError:
        """The error for using it now; a daemon thread does not see it if the interpreter ends."""
        stop_if_exiting()
        if self._generation != _generation:
            return forked_error(self._what)
        return closed_error(self._what)

    def _using(self) -> "_Use":
        """A context in which the object is not closed under the caller."""
        return _Use(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._pointer is None

    def close(self) -> None:
        """Closes it. A second call does nothing."""
        self._finish(quietly=False)

    def _finish(self, quietly: bool) -> None:
        """Closes it; quietly: where nobody waits and nothing may be raised."""
        with self._lock:
            again, self._left = self._left, True
            pointer, self._pointer = self._pointer, None
            busy = bool(self._uses)
            if busy and pointer is not None and self._interrupt_function:
                # With the lock held, so that the last of these calls cannot free it meanwhile.
                getattr(_lib.fast, self._interrupt_function)(pointer)
        if self._over:
            return
        if not busy:
            if self._close_is_slow and not quietly and not again:
                call_interruptibly(self._free, lambda code: None)
            else:
                self._free()
        elif self._close_waits and not quietly and not again:
            self._finish_last()

    def _finish_last(self) -> None:
        """Closes it when the last call that uses it has ended."""
        with self._lock:
            while self._uses:
                self._idle.wait(1.0)
        self._free()
        with self._lock:
            while not self._over:
                self._idle.wait(0.05)  # the thread of that call ends it

    def _free(self) -> int:
        """Ends it, or does what is left of that. Can be made again at any time."""
        if self._slot.value:
            self._end()
            if not self._end.ended:
                return 0  # another thread is in it
        if not self._over:
            try:
                self._was_freed()
            finally:
                if self._runtime is not None:
                    self._runtime._forget(self)
                self._over = True
                with self._lock:
                    self._idle.notify_all()
        return 0

    def _was_freed(self) -> None:
        """What a subclass does when it has ended; may be called twice."""

    def _outlive_interpreter(self) -> None:
        """Keeps it open when the interpreter ends; it goes with the process."""
        if self._runtime is not None:
            self._runtime._open.pop(self._number, None)

    def _leave(self, number: int) -> None:
        """A call that used it has ended."""
        with self._lock:
            self._uses.discard(number)
            last = self._left and not self._uses
            if last:
                self._idle.notify_all()
        if last:
            self._free()

    def _forked(self) -> None:
        """In a child of fork(): nothing of it may be touched any more."""
        self._pointer = None
        self._over = True
        self._end = Once(_nothing, None)
        self._uses = set()
        self._lock = threading.RLock()
        self._idle = threading.Condition(self._lock)

    def __enter__(self: _T) -> _T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # What the end of the interpreter has left open ends with the process: a thread that gives
        # up the interpreter's lock that late may not get it back.
        try:
            if not is_finalizing():
                self._finish(quietly=True)
        except Exception:  # noqa: BLE001 - nobody can catch it here
            pass
        except BaseException:
            self._finish(quietly=True)  # Ctrl-C came, and there is no other chance
            raise


class _Use:
    """A call that uses a handle's pointer. Ctrl-C may come between any two lines, so each step can
    be made twice, and what was not left is left when this is forgotten."""

    __slots__ = ("_handle",)

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def __enter__(self) -> int:
        handle = self._handle
        with handle._lock:
            pointer = handle._pointer
            if pointer is not None:
                handle._uses.add(id(self))
        if pointer is None:
            raise handle._gone()
        return pointer

    def __exit__(self, *_: object) -> None:
        self._handle._leave(id(self))

    def __del__(self) -> None:
        handle = self._handle
        try:
            if id(self) in handle._uses:
                handle._leave(id(self))
        except KeyboardInterrupt:
            handle._leave(id(self))  # there is no other chance
            raise


def closed_error(what: str) -> MusterError:
    """The error for something that was closed."""
    error = Closed(f"{what} is closed")
    error.code, error.name = _lib.ECLOSED, "MUSTER_ECLOSED"
    return error


def forked_error(what: str) -> MusterError:
    """The error for something that a parent process opened."""
    error = Closed(
        f"{what} was opened before fork(), and its thread did not come along: open it in the child"
    )
    error.code, error.name = _lib.ECLOSED, "MUSTER_ECLOSED"
    return error


class _Interruptible:
    """A call that is made on a thread of its own while the main thread waits for it.

    Ctrl-C may come after any step of Python's, also in Python's own modules: `Event` and
    `Thread.start()` could be left with a lock taken, for which the other thread would wait for
    ever. So both ends meet at locks alone, each of whose operations is one step.
    """

    def __init__(self, call: Callable[[], int], abandon: Callable[[int], None]) -> None:
        self._call = call
        self._abandon = abandon
        self._lock = threading.Lock()
        self._done = _thread.allocate_lock()  # taken until the call has ended
        self._done.acquire()
        self._ended = False
        self._left = False
        self._code = 0
        self._error: Optional[BaseException] = None

    def _run(self) -> None:
        try:
            self._code = self._call()
            if self._code < 0:
                self._error = from_code(self._code)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            self._code, self._error = -1, error
        with self._lock:
            self._ended = True
            left = self._left
        self._done.release()
        if left:
            self._abandon(self._code)

    def make(self) -> int:
        try:
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                self._run()  # the interpreter ends, and starts no more threads
            while not self._done.acquire(timeout=3600):
                pass
        except BaseException:
            with self._lock:
                self._left = True
                late = self._ended
            if late:
                self._abandon(self._code)
            raise
        if self._error is not None:
            raise self._error
        return self._code


def call_interruptibly(call: Callable[[], int], abandon: Callable[[int], None]) -> int:
    """Makes a call that may wait long, so that Ctrl-C works: on the main thread it is made on a
    thread of its own. Returns its code; an error is raised with its text. If the wait is
    interrupted, `abandon(code)` is called when the call has ended. What the call opens should have
    an owner before it returns: Ctrl-C may come right after it."""
    if on_main_thread():
        return _Interruptible(call, abandon).make()
    code = call()
    if code < 0:
        raise from_code(code)
    return code


class Runtime(Handle):
    """The thread that does the work of everything opened in it, and the job's credential.

    Without arguments the credential comes from the environment: ``MUSTER_TOKEN_FILE``, or
    ``MUSTER_TLS_CERT``, ``MUSTER_TLS_KEY`` and ``MUSTER_TLS_CA``; ``MUSTER_ALLOW``;
    ``MUSTER_INSECURE``. Connections within this machine need none.

    :param token_file: the file whose first line is the job's token (``muster keygen token``)
    :param cert: our certificate, a PEM file, with ``key`` and ``ca`` (``muster keygen tls``)
    :param name: the name that a server's certificate must carry; "" is any
    :param insecure: let everything in and out without a credential
    :param allow: ranges of addresses to and from which PyTorch's protocol may be spoken
    """

    _close_function = "muster_runtime_free"
    # An open that Ctrl-C has interrupted goes on until its timeout; nobody should wait for that.
    _close_waits = False
    _what = "the runtime"

    def __init__(
        self,
        *,
        token_file: Optional[str] = None,
        cert: Optional[str] = None,
        key: Optional[str] = None,
        ca: Optional[str] = None,
        name: Optional[str] = None,
        insecure: bool = False,
        allow: Sequence[str] = (),
    ) -> None:
        if isinstance(allow, str):
            raise TypeError(f"allow is a list of ranges of addresses: use [{allow!r}]")
        super().__init__(None)
        # A dict, because its steps are whole ones: others open and close while this is read.
        self._open: "Dict[int, weakref.ref[Handle]]" = {}
        config = _lib.defaults(_lib.RuntimeConfig)
        if token_file or cert or key or ca or name is not None or insecure or allow:
            lock = _lib.defaults(_lib.Lock)
            lock.token_file = _lib.encoded(token_file)
            lock.cert = _lib.encoded(cert)
            lock.key = _lib.encoded(key)
            lock.ca = _lib.encoded(ca)
            lock.name = _lib.encoded(name)
            lock.insecure = insecure
            if allow:
                lock.allow = _lib.texts(allow)
                lock.allow_count = len(allow)
            config.lock = ctypes.pointer(lock)
        code = _lib.lib.muster_runtime_new_with(ctypes.byref(config), ctypes.byref(self._slot))
        if code != 0:
            raise from_code(code)
        self._pointer = self._slot.value
        _runtimes.add(self)

    def _expect(self, handle: Handle) -> None:
        """Keeps the runtime until something that is about to be opened in it has ended."""
        with self._lock:
            self._uses.add(-handle._number)

    def _adopt(self, handle: Handle) -> bool:
        """Something was opened: it is closed with the runtime, unless that was closed already."""
        self._open[handle._number] = weakref.ref(handle)
        return self._pointer is not None

    def _forget(self, handle: Handle) -> None:
        self._leave(-handle._number)
        self._open.pop(handle._number, None)

    def _close_all(self, quietly: bool) -> None:
        """Closes what is open, the newest first: what was opened later may use what was there.
        Queues come last, since they tell the end of all the others."""
        found = [reference() for reference in list(self._open.values())]
        handles = [it for it in found if it is not None]
        for handle in sorted(handles, key=lambda it: (it._close_last, -it._number)):
            if quietly:
                handle._finish(quietly=True)
            else:
                handle.close()

    def _shut(self, quietly: bool) -> None:
        with self._lock:
            if self._over:
                return
            self._uses.add(0)
        # From now on nothing is opened in it, and the last that uses it ends it: in most cases us.
        super()._finish(quietly=True)
        try:
            self._close_all(quietly)
        finally:
            self._leave(0)

    def close(self) -> None:
        """Closes everything that is open in the runtime, and ends it."""
        self._shut(quietly=False)


_handles: "weakref.WeakSet[Handle]" = weakref.WeakSet()
_runtimes: "weakref.WeakSet[Runtime]" = weakref.WeakSet()
_default: Optional[Runtime] = None
_default_lock = threading.Lock()


def default() -> Runtime:
    """The runtime of the process; made when it is first needed."""
    global _default
    with _default_lock:
        if _default is None or _default.closed:
            _default = Runtime()
        return _default


def chosen(runtime: Optional[Runtime]) -> Runtime:
    """The runtime that something is opened in: the one that the caller names, or the process's."""
    if runtime is None:
        return default()
    if not isinstance(runtime, Runtime):
        raise TypeError(f"runtime must be a muster.Runtime, or None: not {runtime!r}")
    return runtime


def check_is(what: str, value: Any, kind: Any, optional: bool = True) -> None:
    """Refuses an argument that is not of a kind; `what` names both: "store must be a Store"."""
    if not isinstance(value, kind) and not (optional and value is None):
        raise TypeError(f"{what}{', or None' if optional else ''}: not {value!r}")


if TYPE_CHECKING:

    class Event(NamedTuple):
        """Something that was in a queue."""

        kind: int
        object: int
        context: int

else:
    Event = namedtuple("Event", "kind object context")

QUEUED_OP, QUEUED_CHANGE, QUEUED_FUTURE, QUEUED_CALL, QUEUED_LOADED, QUEUED_AVERAGED = range(1, 7)


class Queue(Handle):
    """What has ended, for an event loop or a thread of Python's."""

    _close_function = "muster_queue_free"
    _close_last = True
    # A thread that waits in it leaves when what it waits for has ended.
    _close_waits = False
    _what = "the queue"

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self.on_freed: Optional[Callable[[], None]] = None
        self._room = (_lib.Queued * 64)()
        code = self._opening(_lib.fast.muster_queue_new)
        if code != 0:
            raise from_code(code)
        with self._using() as pointer:
            self.fd: int = _lib.fast.muster_queue_fd(pointer)

    def take(self) -> List[Event]:
        """What is in the queue now, up to 64 things. One thread at a time."""
        room = self._room
        with self._lock:
            pointer = self._pointer
            count = 0 if pointer is None else _lib.fast.muster_queue_take(pointer, room, 64)
        if pointer is None:
            raise self._gone()
        return [Event(q.kind, q.object or 0, q.context or 0) for q in room[:count]]

    def _was_freed(self) -> None:
        if self.on_freed is not None:
            self.on_freed()

    def wait(self, timeout_ms: int) -> bool:
        """Waits until something is in the queue; releases the interpreter's lock."""
        with self._using() as pointer:
            return bool(_lib.lib.muster_queue_wait(pointer, timeout_ms) == 0)


def _after_fork() -> None:
    """In a child: what the parent opened is dead, and nothing of it may be touched."""
    global _generation, _default, _default_lock, _exiting, _handles, _main_ident, _runtimes
    _generation += 1
    _main_ident = get_ident()
    _exiting = False
    inherited = list(_handles)
    _default = None
    _default_lock = threading.Lock()
    _handles = weakref.WeakSet()
    _runtimes = weakref.WeakSet()
    for handle in inherited:
        handle._forked()


def _at_exit() -> None:
    """Closes what is open, so that servers learn of it at once. A call that is still under way on
    another thread (a daemon's, or an open that was interrupted) keeps its runtime, with which the
    process then ends."""
    global _exiting
    _exiting = True
    if is_finalizing():
        return  # this is an interpreter inside another that has ended: see Handle.__del__
    for runtime in list(_runtimes):
        runtime._shut(quietly=True)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
