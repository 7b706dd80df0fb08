"""Rendezvous: the nodes of a job find each other, agree on the members, and get a rank each. They
do so again whenever a node comes or goes.

::

    with muster.Rendezvous("node0:29400", "job7", nodes="2:4") as rdzv:
        for round in rdzv:
            print(f"round {round.round}: rank {round.rank} of {round.world_size}")
            while not rdzv.ended():
                ...  # a step of the work, with round.store
            print(rdzv.ended())  # why: "node3 was lost"

The node that can bind the endpoint hosts the rendezvous, unless a server is there already
(``muster serve``). Connections beyond this machine need the job's credential: see ``Runtime``.

A rendezvous may be used by several threads at the same time. It does not survive ``fork()``.
"""

import ctypes
import enum
import threading
import time
from typing import (
    Any,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

from . import _lib
from ._runtime import SLICE_MS, Handle, Runtime, call_interruptibly, chosen, on_main_thread
from .errors import Closed, MusterError, RendezvousClosed, from_code, in_words
from .store import Store

__all__ = ["Rendezvous", "AsyncRendezvous", "Round", "Event", "EventKind", "EndReason"]

#: The rendezvous has no bound for restarts, or its backend does not count them.
UNBOUNDED = 2**32 - 1


class EventKind(enum.Enum):
    """What happened to a round."""

    WAITING = 1  #: the number of nodes that wait to be let in has changed
    ENDED = 2  #: the round is over
    CLOSED = 3  #: the run is closed


class EndReason(enum.Enum):
    """Why a round is over."""

    LOST = 1  #: a member vanished
    LEFT = 2  #: a member left
    UPSCALE = 3  #: late nodes are let in
    FAILED = 4  #: the workers of a member failed
    DROPPED = 5  #: the other nodes have gone on without this one
    OUT = 6  #: this node is out; the text says why
    CLOSED = 7  #: the run was closed


class Event(NamedTuple):
    """Something that happened during a round. ``text`` is one sentence; ``member`` and
    ``member_rank`` name the node that caused the end, if one did."""

    kind: EventKind
    round: int
    text: str
    waiting: int = 0
    reason: Optional[EndReason] = None
    member: Optional[str] = None
    member_rank: Optional[int] = None


class Round(NamedTuple):
    """A round that this node is in.

    ``store`` is the round's own: other rounds do not see its keys. It is open until the next round
    is asked for. ``members`` and ``addresses`` are in the order of the ranks, and empty where the
    backend was told not to list them (by default, in worlds of more than 128 nodes).
    ``bootstrap`` is where workers meet: host and port of a store that rank 0 serves for this round.
    """

    rank: int
    world_size: int
    round: int
    store: Store
    store_url: str
    bootstrap: Tuple[str, int]
    members: Tuple[str, ...]
    addresses: Tuple[str, ...]
    incarnation: int
    restarts_left: Optional[int]


def parse_nodes(nodes: Union[str, int, Tuple[int, int]]) -> Tuple[int, int]:
    """The smallest and the largest number of nodes: ``4``, ``"4"``, ``"2:4"`` or ``(2, 4)``."""
    try:
        if isinstance(nodes, str):
            least, _, most = nodes.partition(":")
            pair = int(least), int(most or least)
        elif isinstance(nodes, int):
            pair = nodes, nodes
        else:
            pair = int(nodes[0]), int(nodes[1])
    except (ValueError, TypeError, IndexError):
        raise ValueError(f'nodes must be N or "MIN:MAX": not {nodes!r}') from None
    if not 1 <= pair[0] <= pair[1] < 2**32:
        raise ValueError(f"nodes must be at least 1, and MIN no more than MAX: not {nodes!r}")
    return pair


def config_text(config: Union[str, Mapping[str, Any], None]) -> str:
    """The options of a backend as the library wants them: ``key=value,...``."""
    if config is None or isinstance(config, str):
        return config or ""
    parts = []
    for key, value in config.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if "," in text:
            raise ValueError(f"the option {key} of a rendezvous cannot have a comma: {text!r}")
        parts.append(f"{key}={text}")
    return ",".join(parts)


class Rendezvous(Handle):
    """A node of a run. Opening it sends nothing to other nodes; ``next()`` joins them.

    :param endpoint: where the nodes meet: "HOST[:PORT]" (29400), or everything in one, as
        "BACKEND://ENDPOINT/RUN_ID?min_workers=N&max_workers=N"
    :param run_id: the run; nodes with the same id meet
    :param nodes: how many nodes a round has: ``4``, or "2:4" for 2 to 4
    :param backend: "muster", "c10d" (PyTorch's), "etcd-v3", "etcd-v2", "etcd" or "static"
    :param local_addr: how the other nodes reach this one; by default the host's name
    :param config: options of the backend, as a mapping or "key=value,...": ``join_timeout``,
        ``last_call_timeout``, ``upscale_delay`` and others (muster-rdzv(1))
    :param bootstrap: whether rank 0 serves a store for workers (``Round.bootstrap``); without, a
        round begins sooner. All nodes of a run must agree on it.
    :param runtime: the runtime it belongs to; by default that of the process
    """

    _close_function = "muster_rdzv_close"
    _interrupt_function = "muster_rdzv_interrupt"
    _close_is_slow = True  # a rendezvous host lets the others go first
    _what = "the rendezvous"

    def __init__(
        self,
        endpoint: str,
        run_id: str = "",
        nodes: Union[str, int, Tuple[int, int]] = 1,
        *,
        backend: str = "muster",
        local_addr: Optional[str] = None,
        config: Union[str, Mapping[str, Any], None] = None,
        bootstrap: bool = True,
        runtime: Optional[Runtime] = None,
    ) -> None:
        runtime = chosen(runtime)
        super().__init__(runtime)
        self._events = threading.Lock()
        self._store: Optional[Store] = None
        self.endpoint = endpoint
        params = _lib.defaults(_lib.RdzvParams)
        params.backend = _lib.encoded(backend)
        params.endpoint = _lib.encoded(endpoint)
        params.run_id = _lib.encoded(run_id)
        params.nodes_min, params.nodes_max = parse_nodes(nodes)
        params.local_addr = _lib.encoded(local_addr)
        params.config = _lib.encoded(config_text(config))
        params.flags = 0 if bootstrap else 2
        code = self._opening(
            lambda rt, at: int(_lib.lib.muster_rdzv_open(rt, ctypes.byref(params), at))
        )
        if code != 0:
            raise from_code(code)

    def __repr__(self) -> str:
        return f"<muster.Rendezvous {self.endpoint}{' closed' if self.closed else ''}>"

    # --- calls that wait --------------------------------------------------------------------------

    def _in_library(self, call: Callable[[int], int]) -> int:
        """Makes a call that may wait; close() interrupts it."""
        with self._using() as pointer:
            return call(pointer)

    def _run(self, call: Callable[[int], int]) -> None:
        """Makes a call that cannot be bounded. Interrupting it closes the rendezvous, because
        nothing else ends it."""
        try:
            call_interruptibly(lambda: self._in_library(call), lambda _code: None)
        except MusterError:
            raise
        except BaseException:
            self._close_aside()
            raise

    def _close_aside(self) -> None:
        """Closes the rendezvous on a thread of its own, since saying goodbye takes a while."""
        threading.Thread(target=self.close, name="muster-close", daemon=True).start()

    def close(self) -> None:
        """Leaves the round, and closes the rendezvous on this node; the run goes on for the other
        nodes. Calls under way on other threads end with ``Closed``."""
        super().close()

    def _free(self) -> int:
        self._drop_store()
        return super()._free()

    # --- rounds -----------------------------------------------------------------------------------

    def _drop_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _take(self, info: _lib.RdzvInfo) -> Round:
        """Copies what the library lends."""
        assert self._runtime is not None
        url = _lib.text(info.store_url)
        self._store = Store._borrowed(info.store, url, self._runtime)
        return Round(
            rank=info.rank,
            world_size=info.world_size,
            round=info.round,
            store=self._store,
            store_url=url,
            bootstrap=(_lib.text(info.bootstrap_addr), info.bootstrap_port),
            members=tuple(_lib.text(info.members[i]) for i in range(info.member_count)),
            addresses=tuple(_lib.text(info.member_addrs[i]) for i in range(info.member_count)),
            incarnation=info.incarnation,
            restarts_left=None if info.restarts_left == UNBOUNDED else info.restarts_left,
        )

    def next(self) -> Round:
        """Waits for the next round, and returns it. A node that is in a round leaves it first,
        which ends the round for the others as well.

        Raises ``RendezvousClosed`` (the run is over), ``RendezvousTimeout`` (the text says which
        nodes are missing) or another ``RendezvousError``. After an error the node is in no round,
        and may try again. Ctrl-C closes the rendezvous."""
        info = _lib.RdzvInfo()
        rounds = []

        def call(pointer: int) -> int:
            code: int = _lib.lib.muster_rdzv_next(pointer, ctypes.byref(info))
            if code != 0:
                return code
            with self._lock:  # close() waits for it, and what is lent is there until then
                if self._pointer is None:
                    return _lib.ECLOSED
                rounds.append(self._take(info))
            return 0

        self._drop_store()
        self._run(call)
        return rounds[0]

    def __iter__(self) -> Iterator[Round]:
        """The rounds, until the run is closed or the rendezvous is."""
        while True:
            try:
                yield self.next()
            except (RendezvousClosed, Closed):
                return

    def explain(self, timeout: Optional[float] = None) -> Optional[str]:
        """What ``next()``, under way on another thread, waits for, in a sentence: "1 of 2 nodes is
        here: node0". None if no call is under way, or if there was no answer within ``timeout``
        seconds."""
        said = []

        def wait(pointer: int, ms: int) -> int:
            code: int = _lib.lib.muster_rdzv_explain(pointer, ms)
            said.append(in_words(_lib.text(_lib.fast.muster_errmsg())) if code == 0 else None)
            return 0 if code == _lib.ENOENT else code

        return said[-1] if self._wait(wait, timeout) else None

    def ended(self, timeout: Optional[float] = 0.0) -> Optional[str]:
        """Why the round is over, in a sentence, or None if it goes on. Waits for the end for up to
        ``timeout`` seconds (None: without bound)."""
        why = []

        def wait(pointer: int, ms: int) -> int:
            code: int = _lib.lib.muster_rdzv_ended(pointer, ms)
            if code == 0:
                why.append(in_words(_lib.text(_lib.fast.muster_errmsg())))
            return code

        return why[0] if self._wait(wait, timeout) else None

    def _wait(self, wait: Callable[[int, int], int], timeout: Optional[float]) -> bool:
        """Waits with `wait(pointer, ms)`, in slices where Ctrl-C must work; False: nothing came."""
        left_ms = _lib.milliseconds(timeout, _lib.TIMEOUT_NEVER)
        end = time.monotonic() + left_ms / 1000
        while True:
            slice_ms = SLICE_MS if on_main_thread() else 1000
            if left_ms >= 0:
                slice_ms = max(0, min(slice_ms, round((end - time.monotonic()) * 1000)))
            code = self._in_library(lambda pointer: wait(pointer, slice_ms))
            if code == 0:
                return True
            if code != _lib.ETIMEDOUT:
                raise from_code(code)
            if left_ms >= 0 and time.monotonic() >= end:
                return False

    # --- events -----------------------------------------------------------------------------------

    def next_event(self, timeout: Optional[float] = None) -> Optional[Event]:
        """Waits for the next event; None if there was none in time. Each is reported once."""
        event = _lib.RdzvEvent()
        events = []

        def wait(pointer: int, ms: int) -> int:
            code: int = _lib.lib.muster_rdzv_wait_event(pointer, ms, ctypes.byref(event))
            if code != 0:
                return code
            with self._lock:
                if self._pointer is None:
                    return _lib.ECLOSED
                events.append(_event(event))
            return 0

        self._get()
        with self._events:  # one thread at a time may wait
            return events[0] if self._wait(wait, timeout) else None

    def events(self) -> Iterator[Event]:
        """What happens, until the rendezvous is closed: nodes wait, the round ends, the run is
        closed."""
        while True:
            try:
                event = self.next_event()
            except Closed:
                return
            if event is not None:
                yield event

    # --- the run ----------------------------------------------------------------------------------

    @property
    def num_nodes_waiting(self) -> int:
        """How many nodes wait to be let in. Sends nothing."""
        count = ctypes.c_uint32()
        with self._using() as pointer:
            code = _lib.fast.muster_rdzv_num_nodes_waiting(pointer, ctypes.byref(count))
        if code != 0:
            raise from_code(code)
        return count.value

    @property
    def is_closed(self) -> bool:
        """Whether the run is closed for all nodes, as far as this node knows."""
        closed = ctypes.c_bool()
        with self._using() as pointer:
            code = _lib.fast.muster_rdzv_is_closed(pointer, ctypes.byref(closed))
        if code != 0:
            raise from_code(code)
        return closed.value

    @property
    def backend(self) -> str:
        """The backend's name."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_rdzv_backend(pointer))

    @property
    def run_id(self) -> str:
        """The run's id."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_rdzv_run_id(pointer))

    def set_closed(self) -> None:
        """Closes the run for all nodes."""
        self._run(_lib.lib.muster_rdzv_set_closed)

    def shutdown(self) -> bool:
        """Closes the run for all nodes; whether that worked."""
        try:
            self.set_closed()
        except MusterError:
            return False
        return True

    @property
    def aio(self) -> "AsyncRendezvous":
        """The same rendezvous for asyncio."""
        return AsyncRendezvous(self)


def _event(event: _lib.RdzvEvent) -> Event:
    """Copies an event that the library lends."""
    kind = EventKind(event.kind)
    caused = kind is EventKind.ENDED and event.who is not None
    return Event(
        kind=kind,
        round=event.round,
        text=in_words(_lib.text(event.text)),
        waiting=event.waiting if kind is EventKind.WAITING else 0,
        reason=EndReason(event.reason) if kind is EventKind.ENDED else None,
        member=_lib.text(event.who) if caused else None,
        member_rank=event.who_rank if caused else None,
    )


class AsyncRendezvous:
    """A rendezvous for asyncio: what waits is awaited, and runs on a thread meanwhile."""

    def __init__(self, rdzv: Rendezvous) -> None:
        from ._aio import in_thread  # which loads asyncio

        self._rdzv = rdzv
        self._in_thread = in_thread

    async def next(self) -> Round:
        """As ``Rendezvous.next()``. If it is canceled, the rendezvous is closed."""
        try:
            result: Round = await self._in_thread(self._rdzv.next)
        except MusterError:
            raise
        except BaseException:
            self._rdzv._close_aside()
            raise
        return result

    async def __aiter__(self) -> AsyncIterator[Round]:
        while True:
            try:
                yield await self.next()
            except (RendezvousClosed, Closed):
                return

    async def ended(self, timeout: Optional[float] = 0.0) -> Optional[str]:
        """As ``Rendezvous.ended()``."""
        result: Optional[str] = await self._in_thread(lambda: self._rdzv.ended(timeout))
        return result

    async def events(self) -> AsyncIterator[Event]:
        """As ``Rendezvous.events()``."""
        while True:
            try:
                event = await self._in_thread(lambda: self._rdzv.next_event(1.0))
            except Closed:
                return
            if event is not None:
                yield event

    async def set_closed(self) -> None:
        """As ``Rendezvous.set_closed()``."""
        await self._in_thread(self._rdzv.set_closed)

    async def close(self) -> None:
        """As ``Rendezvous.close()``."""
        await self._in_thread(self._rdzv.close)
