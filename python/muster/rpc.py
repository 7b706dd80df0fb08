"""RPC: named workers that call each other.

::

    with muster.rpc.Agent("worker0", 0) as agent:

        @agent.method("app::Math.add")
        def add(a: bytes, b: bytes) -> bytes:
            return str(int(a) + int(b)).encode()

        agent.join_group(store, "job7", world_size=2)        # names and addresses of the others
        agent.call("worker1", "app::Math.add", b"1", b"2")   # b"3"
        await agent.call_async("worker1", add, b"1", b"2")   # the same in asyncio
        agent.leave_group(store)                             # no worker has a call under way

Functions take the parts of a call, each of them bytes, and return bytes, a list of bytes, or None.
With ``pickle=True`` on both agents they take and return Python objects; only do that among workers
that trust each other, since whoever sends a pickle can run anything.

Every call ends exactly once: with the function's answer; with ``RemoteError``, which has the type
and the text of what the function raised; or with the error of the way there or back: ``TimedOut``,
``NotFound`` (no such worker or method), ``OutcomeUnknown`` (the worker was lost with the call),
``ConnectionFailed``, ``Canceled``, ``Closed`` (one of the two agents was shut down).
"""

import ctypes
import time
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    TypeVar,
    Union,
    overload,
)

from . import _lib, _pickled, _rpc_in, _rpc_out, _runtime, _verbs
from ._rpc_in import Call, current
from ._rpc_out import Future
from .errors import (
    Canceled,
    Closed,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    RemoteError,
    TimedOut,
    from_code,
)
from .store import Store

if TYPE_CHECKING:
    from .rendezvous import Round

__all__ = [
    "Agent",
    "Call",
    "Canceled",
    "Closed",
    "Future",
    "NotFound",
    "OutcomeUnknown",
    "RemoteError",
    "Retry",
    "TimedOut",
    "Worker",
    "current",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_REQUEST = _lib.defaults(_lib.RpcRequest)

#: The largest id of a worker.
_ID_MOST = 32767

#: How long a wait for the others of a group lasts before it looks whether anybody wants it still.
_LOOKS_MS = (250, 500, 1000, 2000)


class Worker(NamedTuple):
    """A worker that the agent knows."""

    name: str
    id: int


class Retry(NamedTuple):
    """How a call that fails is tried again: ``most`` times; the first gap is ``gap`` seconds, and
    each later one ``backoff`` times the one before; a random part of it, up to ``jitter``, is cut.
    Each attempt has the whole timeout."""

    most: int = 5
    gap: float = 1.0
    backoff: float = 1.5
    jitter: float = 0.0


def method_name(function: Callable[..., Any]) -> str:
    """The name under which a function is registered unless another is given:
    ``python::MODULE.QUALNAME``. Functions inside of functions have none."""
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    if not module or not name or "<" in name:
        raise InvalidArgument(
            f"{function!r} has no name that other processes could know: name it, "
            "as in agent.register(function, 'app::Service.method')"
        )
    return f"python::{module}.{name}"


def _whole(parts: List[bytes]) -> Any:
    """An answer: bytes, or a list if there are several parts."""
    return parts[0] if len(parts) == 1 else parts or b""


class Agent(_runtime.Handle):
    """Makes and serves the calls of a worker.

    :param name: its name, 1 to 127 of ``A-Z a-z 0-9 - _ :``
    :param id: 0 to 32767, unique in the group; -1: no id, and nobody can call it first
    :param listen: ``HOST:PORT``, port 0 is any; ``unix:/PATH``; None: does not listen. By default
        every address of the host if the runtime has a credential, else loopback
    :param advertise: the host that others dial; by default that of ``listen``, or the host's name
    :param timeout: of calls that are not given one, in seconds
    :param threads: how many handlers may run at the same time; threads are started when needed.
        Handlers that are coroutines need none
    :param pickle: functions and calls may take Python objects. Whoever can call this agent can then
        run anything in this process
    :param runtime: the runtime it belongs to; by default that of the process
    """

    _close_function = "muster_rpc_shutdown"
    # A wait for the others of a group that Ctrl-C has interrupted goes on for a while.
    _close_waits = False
    _what = "the agent"

    def __init__(
        self,
        name: str,
        id: int = -1,
        *,
        listen: Optional[str] = "",
        advertise: Optional[str] = None,
        timeout: float = 60.0,
        threads: int = 16,
        pickle: bool = False,
        runtime: Optional[_runtime.Runtime] = None,
    ) -> None:
        runtime = _runtime.chosen(runtime)
        super().__init__(runtime)
        if threads < 1:
            raise InvalidArgument(f"an agent needs at least one thread, not {threads}")
        config = _lib.defaults(_lib.RpcConfig)
        config.name = _lib.encoded(name)
        config.id = _lib.whole("id", id, -1, _ID_MOST)
        if listen != "":
            config.listen = _lib.encoded(listen)
        config.advertise = _lib.encoded(advertise)
        config.timeout_ms = _verbs.needed_ms(timeout)
        self._pickle = pickle
        self._names: List[Any] = []
        self._calls = _rpc_out.Calls(runtime)
        self._server = _rpc_in.Server(runtime, threads)
        self._group_calls: Set[int] = set()
        code = self._opening(
            lambda rt, at: int(_lib.lib.muster_rpc_start(rt, ctypes.byref(config), at))
        )
        if code != 0:
            raise from_code(code)
        with self._using() as agent:
            #: Its name.
            self.name = _lib.text(_lib.fast.muster_rpc_name(agent))
            #: Where others dial it: ``HOST:PORT`` or ``unix:/PATH``; "" if it does not listen.
            self.address = _lib.text(_lib.fast.muster_rpc_address(agent))

    def __repr__(self) -> str:
        return f"<muster.rpc.Agent {self.name}{' closed' if self.closed else ''}>"

    @property
    def id(self) -> int:
        """Its number in the group, or -1."""
        with self._using() as agent:
            return int(_lib.fast.muster_rpc_id(agent))

    @property
    def timeout(self) -> float:
        """The timeout of calls that are not given one, in seconds; infinity is no bound."""
        with self._using() as agent:
            ms = _lib.fast.muster_rpc_timeout(agent)
        return float("inf") if ms == _lib.TIMEOUT_NEVER else ms / 1000

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        ms = _verbs.default_ms(seconds)
        with self._using() as agent:
            code = _lib.fast.muster_rpc_set_timeout(agent, ms)
        if code != 0:
            raise from_code(code)

    # --- workers

    def add_worker(self, name: str, id: int, address: str = "") -> None:
        """Makes a worker known, or changes its address: ``HOST:PORT`` or ``unix:/PATH``; without
        one, the worker can be called once it has called us."""
        number = _lib.whole("id", id, -1, _ID_MOST)
        _runtime.check_is("name must be a str", name, str, optional=False)
        with self._using() as agent:
            code = _lib.lib.muster_rpc_add_worker(
                agent, _lib.encoded(name), number, _lib.encoded(address)
            )
            if code != 0:
                raise from_code(code)

    def remove_worker(self, name: str) -> None:
        """Forgets a worker that has left. Calls that wait for it end with ``NotFound``."""
        _runtime.check_is("name must be a str", name, str, optional=False)
        with self._using() as agent:
            code = _lib.lib.muster_rpc_remove_worker(agent, _lib.encoded(name))
            if code != 0:
                raise from_code(code)

    def workers(self) -> List[Worker]:
        """The workers that are known."""
        room = 64
        with self._using() as agent:
            while True:
                rows = (_lib.RpcWorker * room)()
                count = _lib.lib.muster_rpc_workers(agent, rows, room)
                if count <= room:
                    return [Worker(_lib.text(row.name), row.id) for row in rows[:count]]
                room = count + 16

    def join_group(
        self, store: Store, group: str, world_size: int, *, timeout: Optional[float] = None
    ) -> None:
        """Tells the others our name and address and learns theirs, through a store that all share.
        Waits until ``world_size`` workers with the ids 0 to ``world_size`` - 1 are there. Use a new
        name for ``group`` each time. A ``TimedOut`` names the missing ids; you may try again."""
        name = _lib.encoded(group)
        count = _lib.whole("world_size", world_size, 1, _ID_MOST + 1)
        self._with_store(
            store, timeout,
            lambda me, at, ms: _lib.lib.muster_rpc_join_group(me, at, name, count, ms),
        )  # fmt: skip

    def leave_group(self, store: Store, *, timeout: Optional[float] = None) -> None:
        """Waits until every worker of the group has called this and no call is under way among
        them. Then it is safe to shut down. The worker with the id 0 returns last."""
        self._with_store(
            store, timeout, lambda me, at, ms: _lib.lib.muster_rpc_leave_group(me, at, ms)
        )

    def follow_round(self, round: "Round", *, timeout: Optional[float] = None) -> None:
        """Makes the nodes of a rendezvous's round the agent's group: each calls it, at the
        beginning of each round. New workers are added, and calls to those that are gone end with
        ``NotFound``; calls among workers that stay go on. A worker's id is its rank in the round.
        The agent must listen. A second call for the same round does nothing."""
        info = _lib.RdzvInfo()
        info.store_url = _lib.encoded(round.store_url)
        info.round, info.incarnation = round.round, round.incarnation
        info.rank, info.world_size = round.rank, round.world_size

        def follow(me: int, at: int, ms: int) -> int:
            info.store = at
            return int(_lib.lib.muster_rpc_follow_round(me, ctypes.byref(info), ms))

        self._with_store(round.store, timeout, follow)

    def _with_store(
        self, store: Store, timeout: Optional[float], wait: Callable[[int, int, int], int]
    ) -> None:
        """Waits for a group, in pieces, so that nobody has to wait long for one who gave up."""
        _runtime.check_is("store must be a muster.Store", store, Store, optional=False)
        bound = _lib.milliseconds(store.timeout if timeout is None else timeout)
        end = time.monotonic() + bound / 1000
        gone: List[bool] = []

        def run(me: int) -> int:
            with store._using() as at:
                for look in range(1 << 30):
                    ms = _LOOKS_MS[min(look, len(_LOOKS_MS) - 1)]
                    left = 1 << 40 if bound < 0 else round((end - time.monotonic()) * 1000)
                    code = wait(me, at, max(1, min(ms, left)))
                    if store.closed:
                        raise store._gone()
                    if code != _lib.ETIMEDOUT or left <= ms or gone or self.closed:
                        break
                return code

        try:
            self._group_call(run)
        except KeyboardInterrupt:
            gone.append(True)
            raise

    def _group_call(
        self, run: Callable[[int], int], unwanted: Callable[[], Any] = lambda: None
    ) -> None:
        """Makes a call of the library that waits for others; `unwanted()` frees its result if
        nobody waits for it any more. If the agent is shut down meanwhile, it is freed when the call
        has ended."""
        def call() -> int:
            with self._using() as agent:
                self._group_calls.add(id(run))
                try:
                    return run(agent)
                finally:
                    self._group_calls.discard(id(run))

        _runtime.call_interruptibly(call, lambda code: unwanted() if code == 0 else None)

    # --- objects of a whole group

    def all_gather(
        self,
        workers: Sequence[str],
        tag: str,
        object: Any,
        *,
        timeout: Optional[float] = None,
        pickle: Optional[bool] = None,
    ) -> List[Any]:
        """Every worker in ``workers``, this one among them, makes the same call with the same tag,
        and gets the objects of all, in the order of ``workers``. Objects are bytes, unless pickle
        was asked for. A tag may be used again when the call has returned."""
        asked = self._asked(pickle)
        sent = self._object(object, asked)
        names, count, mark = _lib.texts(workers), len(workers), _lib.encoded(tag)
        ms = _lib.milliseconds(self.timeout if timeout is None else timeout)
        values = _lib.Values()
        self._group_call(
            lambda me: _lib.lib.muster_rpc_all_gather(
                me, names, count, mark, sent, ms, ctypes.byref(values)
            ),
            lambda: _lib.fast.muster_values_free(ctypes.byref(values)),
        )
        try:
            got = [_lib.span(values.items[i]) for i in range(values.count)]
        finally:
            _lib.fast.muster_values_free(ctypes.byref(values))
        return [_pickled.unpacked(it) if asked else it for it in got]

    def broadcast(
        self,
        workers: Sequence[str],
        root: str,
        tag: str,
        object: Any = b"",
        *,
        timeout: Optional[float] = None,
        pickle: Optional[bool] = None,
    ) -> Any:
        """As ``all_gather``, but every worker gets the object of the worker ``root``, which returns
        when all have it."""
        asked = self._asked(pickle)
        sent = self._object(object, asked)
        names, count = _lib.texts(workers), len(workers)
        leader, mark = _lib.encoded(root), _lib.encoded(tag)
        ms = _lib.milliseconds(self.timeout if timeout is None else timeout)
        value = _lib.Span()
        self._group_call(
            lambda me: _lib.lib.muster_rpc_broadcast(
                me, names, count, leader, mark, sent, ms, ctypes.byref(value)
            ),
            lambda: _lib.fast.muster_value_free(ctypes.byref(value)),
        )
        try:
            got = _lib.span(value)
        finally:
            _lib.fast.muster_value_free(ctypes.byref(value))
        return _pickled.unpacked(got) if asked else got

    @staticmethod
    def _object(value: Any, pickled: bool) -> _lib.Bytes:
        raw = _pickled.packed(value) if pickled else _lib.data(value)
        return _lib.Bytes(raw, len(raw))

    # --- serving

    def register(
        self,
        function: Callable[..., Any],
        name: Optional[str] = None,
        *,
        pickle: Optional[bool] = None,
    ) -> str:
        """Lets others call a function, and returns the name that they use. The default is
        ``python::MODULE.QUALNAME``; a name of your own has the form ``namespace::Service.method``.

        The function runs on a thread of the agent's, or, if it is ``async def``, in an event loop
        of the agent's. With ``pickle`` (by default as the agent) it takes and returns Python
        objects; otherwise the parts of the call, which are bytes, and bytes."""
        if not callable(function):
            raise TypeError(f"a function is needed, not {function!r}")
        name = name or method_name(function)
        method = _rpc_in.Method(name, function, self._asked(pickle), _rpc_in.is_async(function))
        self._server.register(self, method)
        self._names.append((function, name))
        return name

    @overload
    def method(self, function: _F) -> _F: ...

    @overload
    def method(
        self, function: Optional[str] = None, *, pickle: Optional[bool] = None
    ) -> Callable[[_F], _F]: ...

    def method(self, function: Any = None, *, pickle: Optional[bool] = None) -> Any:
        """``register()`` as a decorator: ``@agent.method``, ``@agent.method("app::Math.add")``."""
        if callable(function):
            self.register(function)
            return function

        def decorate(decorated: _F) -> _F:
            self.register(decorated, function, pickle=pickle)
            return decorated

        return decorate

    # --- calling

    def call(
        self,
        to: Union[str, int],
        method: Union[str, Callable[..., Any]],
        *parts: Any,
        timeout: Optional[float] = None,
        retry: Union[Retry, bool, None] = None,
        once: bool = False,
        pickle: Optional[bool] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        """Calls a function of the worker ``to`` (a name or an id) and waits for the answer.

        :param method: the method's name, or the function itself, if the worker registered it under
            its default name or this agent under the same name
        :param parts: bytes (or str, which is UTF-8), or objects if pickle was asked for
        :param timeout: in seconds; by default the agent's. The handler can see it
        :param retry: try again when an attempt fails; True is ``Retry()``. What is called must
            tolerate to run twice, unless ``once``
        :param once: it runs at most once, however often it is sent
        :param pickle: send and get Python objects; by default as the agent
        :param kwargs: with pickle, named arguments
        :returns: bytes; a list of bytes if the answer has several parts; with pickle, an object
        """
        name, asked = self._name_of(method), self._asked(pickle)
        sent = self._parts(parts, kwargs, asked)
        request, keep = self._request(to, name, sent, timeout, retry, once)
        outcome = _rpc_out.run_blocking(self._calls, self, request, name, keep)
        if outcome.error is not None:
            raise outcome.error
        return _pickled.loaded(outcome.parts) if asked else _whole(outcome.parts)

    def call_async(
        self,
        to: Union[str, int],
        method: Union[str, Callable[..., Any]],
        *parts: Any,
        timeout: Optional[float] = None,
        retry: Union[Retry, bool, None] = None,
        once: bool = False,
        pickle: Optional[bool] = None,
        kwargs: Optional[Mapping[str, Any]] = None,
    ) -> "Future[Any]":
        """As ``call``, but only begins it. The future can be awaited, waited for, canceled, and
        given callbacks."""
        name, asked = self._name_of(method), self._asked(pickle)
        sent = self._parts(parts, kwargs, asked)
        request, keep = self._request(to, name, sent, timeout, retry, once)
        borrowed = keep if request.flags & _rpc_out.FLAG_BORROW else None
        future: "Future[Any]" = Future(
            self._calls, name, _pickled.loaded if asked else _whole, borrowed
        )
        self._calls.begin(self, request, future)
        return future

    def _asked(self, pickle: Optional[bool]) -> bool:
        if pickle and not self._pickle:
            raise InvalidArgument("this agent does not take Python objects: Agent(pickle=True)")
        return self._pickle if pickle is None else pickle

    def _name_of(self, method: Union[str, Callable[..., Any]]) -> str:
        if isinstance(method, str):
            return method
        for function, name in self._names:
            if function is method or function == method:
                return str(name)
        return method_name(method)

    @staticmethod
    def _parts(
        parts: Sequence[Any], kwargs: Optional[Mapping[str, Any]], pickle: bool
    ) -> List[bytes]:
        if pickle:
            return _pickled.request(parts, kwargs)
        if kwargs:
            raise InvalidArgument("named arguments need pickle=True, on both agents")
        return [_lib.data(part) for part in parts]

    @staticmethod
    def _request(
        to: Union[str, int],
        name: str,
        parts: List[bytes],
        timeout: Optional[float],
        retry: Union[Retry, bool, None],
        once: bool,
    ) -> Any:
        """The request, and what must live as long as the library reads it."""
        request = _lib.RpcRequest.from_buffer_copy(_REQUEST)
        if isinstance(to, str):
            request.to = _lib.encoded(to)
        else:
            request.to_id = _lib.whole("to, an id,", to, 0, _ID_MOST)
        request.method = _lib.encoded(name)
        array = _rpc_out.parts_in(parts)
        request.parts = array
        request.part_count = len(parts)
        if timeout is not None:
            request.timeout_ms = _verbs.needed_ms(timeout)
        flags = _rpc_out.FLAG_ONCE if once else 0
        if sum(map(len, parts)) > _rpc_out.BORROW_BYTES:
            flags |= _rpc_out.FLAG_BORROW
        plan = Retry() if retry is True else retry
        if plan:
            flags |= _rpc_out.FLAG_RETRY
            struct = _lib.defaults(_lib.RpcRetry)
            struct.retries_max, struct.duration_ms = plan.most, _lib.milliseconds(plan.gap)
            struct.backoff, struct.jitter = plan.backoff, plan.jitter
            request.retry = ctypes.pointer(struct)
        request.flags = flags
        return request, (array, parts)

    # --- the end

    def shutdown(self) -> None:
        """Ends the agent at once. Calls under way, in both directions, end with ``Closed``; a
        handler that runs is told (``current().canceled``), and its answer is dropped."""
        self.close()

    def _finish(self, quietly: bool) -> None:
        if self._pointer is not None:
            self._server.stop()
        super()._finish(quietly)
        if self._group_calls:
            self._calls.cancel_all()  # the agent ends only when the last of these has ended

    def _was_freed(self) -> None:
        self._calls.close()

    def _forked(self) -> None:
        super()._forked()
        self._server.forked()
