"""Averaging with peers that train apart, in the groups of hivemind's averagers or in muster's own.

::

    import muster.average

    with muster.average.Averager(model, prefix="run7", dht=["/ip4/10.0.0.1/tcp/31337/p2p/12D3..."],
                                 listen="/ip4/0.0.0.0/tcp/0") as averager:
        for epoch in range(epochs):
            samples = train(model)
            result = averager.step(weight=samples)
            print(f"averaged with {len(result.members)} members")

The other members may be muster's or hivemind's: ``DecentralizedAverager``, ``GradientAverager`` and
``TrainingStateAverager`` speak this protocol, and ``PowerSGDGradientAverager`` with ``power_rank``.
Beyond loopback, ``allow`` names the peers that may connect, or the runtime is insecure. With ``wire="native"`` all members are muster's, and
the death of one loses nothing. Tensors are averaged in place: those of PyTorch, of
numpy, and buffers of floats.

``Outer`` trains a model of PyTorch's that way, as DiLoCo does: a line in the loop of a script.
"""

import ctypes
import math
import time
from typing import Any, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _landing, _lib, _msgpack, _runtime, _tensors
from ._donor import Donor, set_lists
from ._runtime import Handle, Runtime, call_interruptibly
from .errors import InvalidArgument, MusterError, from_code

__all__ = ["Averager", "Look", "Member", "Outer", "Result", "Round"]

MODES = ("node", "client", "aux")
FLOATS = ("F32", "F16", "BF16", "F64")
PHASES = ("idle", "searching", "following", "reducing")


class Member(NamedTuple):
    """A member of a group, and what came of it."""

    peer: str  #: its id
    mode: str  #: ``"node"``, ``"client"`` or ``"aux"``
    weight: Optional[float]  #: as it told us; None: it told us nothing
    sent: int  #: parts of our share that it has sent,
    owed: int  #: of so many
    results: int  #: averages of its own share that it has sent us,
    owns: int  #: of so many
    failure: str  #: why it failed; "": it did not
    gather: Any  #: what it told all others
    counted: bool = False  #: on the native wire: its values are in the average


class Result(NamedTuple):
    """What became of a step."""

    key: str  #: the bucket in which the group was sought
    group_id: str
    members: Tuple[Member, ...]  #: in the order of the group; we are among them
    position: int  #: ours
    led: bool  #: we led the group
    parts: int  #: of all tensors together
    parts_local: int  #: of them, so many keep our own values, because their owner failed
    bytes_sent: int
    bytes_received: int
    matchmaking: float  #: seconds until there was a group
    reduce: float  #: seconds for the averaging itself
    digest: str = ""  #: on the native wire: SHA-256 of the averaged vector, the same at all members

    @property
    def failed(self) -> Tuple[Member, ...]:
        """The members that failed."""
        return tuple(it for it in self.members if it.failure)


class Look(NamedTuple):
    """What a step waits for."""

    phase: str  #: ``"idle"``, ``"searching"``, ``"following"`` or ``"reducing"``
    key: str
    others: int  #: that look for a group in the same bucket
    followers: int  #: that wait for us to begin
    leader: str  #: for which we wait
    refused_by: str  #: the peer that refused us last, or was not reached
    refusal: str  #: and why
    parts: int
    parts_done: int


def _told(raw: bytes) -> Any:
    """What a member told; as bytes, if it is something that this module does not read."""
    try:
        return _msgpack.decode(raw) if raw else None
    except ValueError:
        return raw


def _member(raw: _lib.AverageMember, counted: bool) -> Member:
    return Member(_lib.text(raw.peer), MODES[raw.mode], raw.weight if raw.weight >= 0 else None,
                  raw.sent, raw.owed, raw.results, raw.owns, _lib.text(raw.why),
                  _told(_lib.span(raw.gather)), counted)  # fmt: skip


def _result(at: Any) -> Result:
    raw = at.contents
    members = tuple(
        _member(raw.members[i], _lib.fast.muster_average_result_counted(at, i))
        for i in range(raw.member_count)
    )
    return Result(
        _lib.text(raw.key), _lib.text(raw.group_id), members, raw.position, raw.led, raw.parts,
        raw.parts_local, raw.bytes_sent, raw.bytes_received, raw.matchmaking_ms / 1000,
        raw.reduce_ms / 1000, _lib.text(_lib.fast.muster_average_result_digest(at)),
    )  # fmt: skip


def _slots(tensors: Any) -> List[_tensors.Slot]:
    """The tensors in their order, which is part of what members must have in common."""
    if _tensors.is_tensor(tensors):
        pairs = [("0", tensors)]
    elif isinstance(tensors, Mapping):
        pairs = [(str(name), it) for name, it in tensors.items()]
    elif callable(getattr(tensors, "named_parameters", None)):
        pairs = list(tensors.named_parameters())
    else:
        pairs = [(str(i), it) for i, it in enumerate(tensors)]
    found = []
    for name, it in pairs:
        if not _tensors.is_tensor(it):
            raise TypeError(f"{name}: {type(it).__name__} is not a tensor")
        slot = _tensors.slot(it, name)
        if slot.mark or slot.dtype.name not in FLOATS:
            raise InvalidArgument(f"{name}: only floats can be averaged, not {slot.dtype.name}")
        if not slot.writable:
            raise InvalidArgument(f"{name}: it cannot be written")
        slot.name = name
        found.append(slot)
    if not found:
        raise InvalidArgument("there are no tensors to average")
    return found


class Averager(Handle):
    """A member of hivemind's groups, or of muster's own, for some tensors.

    :param tensors: a tensor, a list or dict of them, or a module, whose parameters are averaged.
        Their order, shapes and types must be those of the other members. No two may share memory,
        as tied weights do in a ``state_dict()``
    :param prefix: the name of what is averaged, the same at all members; without a dot
    :param dht: multiaddrs of nodes of the swarm's DHT; an empty list begins a new one
    :param averager: the class of the other members in Python: by default
        ``"DecentralizedAverager"``
    :param wire: ``"hivemind"``, or ``"native"``: muster's own, on which nothing is lost when a
        member dies, and all that succeed hold the same bits. The same at all members: those of
        different wires never meet
    :param encoding: of parts on their way, the same at all members: ``"NONE"``, ``"FLOAT16"``,
        ``"MEANSTD_16BIT"``, ``"QUANTILE_8BIT"``, ``"UNIFORM_8BIT"``, ``"BLOCKWISE_8BIT"``; on the
        native wire ``"NONE"``, ``"INT8"``, ``"FP8"``
    :param mode: ``"node"``; ``"client"``: others cannot call us; ``"aux"``: we average for others,
        and our own values count nothing
    :param target_size: a group of that size begins at once; otherwise when its time has come
    :param min_size: with fewer members there is no group
    :param group_bits: of our first bucket, such as ``"01"``: peers meet in buckets, and go to others
        after each step, which mixes them
    :param matchmaking: how many seconds a group waits for others
    :param request_timeout: for a leader to answer; shorter than ``matchmaking``. By default 3, or
        half of ``matchmaking`` if that is less
    :param sender_timeout: for the next part of a member; then it is left out
    :param reducer_timeout: for the next average of a member; then its share stays ours
    :param reduce_timeout: for all of it, once there is a group
    :param part_bytes: of a part, the same at all members
    :param power_rank: PowerSGD of that rank, for groups of hivemind's
        ``PowerSGDGradientAverager``: gradients with more than one axis are averaged as two thin
        matrices, and what these do not carry is kept for the next step
    :param power_ratio: a tensor of which less than this share would be saved is averaged whole
    :param described: with a ``TrainingStateAverager``, the types of the model's parameters, such as
        ``"BF16"``, one for each tensor
    :param through: a ``muster.state.Donor`` in a DHT: the same peer shares its state and averages.
        Then the parameters below, and ``dht``, are not used
    :param listen: a multiaddr; by default any port on loopback
    :param key: the file of our peer key; "" for a new key
    :param allow: ids of peers that may connect; beyond loopback it is needed, unless the runtime is
        insecure
    """

    _close_function = "muster_average_close"
    _interrupt_function = "muster_average_cancel"
    _close_is_slow = True
    _what = "the averager"

    def __init__(
        self,
        tensors: Any,
        *,
        prefix: str,
        dht: Optional[Sequence[str]] = None,
        averager: Optional[str] = None,
        wire: Optional[str] = None,
        encoding: Optional[str] = None,
        mode: str = "node",
        target_size: int = 0,
        min_size: int = 2,
        group_bits: str = "",
        matchmaking: Optional[float] = None,
        request_timeout: Optional[float] = None,
        sender_timeout: Optional[float] = None,
        reducer_timeout: Optional[float] = None,
        reduce_timeout: Optional[float] = None,
        part_bytes: Optional[int] = None,
        power_rank: int = 0,
        power_ratio: float = 0.5,
        described: Optional[Sequence[str]] = None,
        through: Optional[Donor] = None,
        listen: Optional[str] = None,
        advertise: Optional[str] = None,
        key: Optional[str] = None,
        allow: Optional[Sequence[str]] = None,
        runtime: Optional[Runtime] = None,
    ) -> None:
        if mode not in MODES:
            raise InvalidArgument(f"mode must be one of {', '.join(MODES)}: not {mode!r}")
        _runtime.check_is("through must be a muster.state.Donor", through, Donor)
        for name in described or ():
            if name not in FLOATS:
                raise InvalidArgument(f"described names {', '.join(FLOATS)}: not {name!r}")
        self._slots = _slots(tensors)
        self._staged: List[Tuple[_tensors.Slot, int]] = []
        self._room: List[Any] = []
        super().__init__(_runtime.chosen(through._runtime if through and not runtime else runtime))
        config = _lib.defaults(_lib.AverageConfig)
        config.prefix = _lib.encoded(prefix)
        config.averager = _lib.encoded(averager)
        config.wire = _lib.encoded(wire)
        config.encoding = _lib.encoded(encoding.upper() if encoding else None)
        config.mode = MODES.index(mode)
        config.target_size = _lib.whole("target_size", target_size, 0, 256)
        config.size_min = _lib.whole("min_size", min_size, 2, 256)
        config.group_bits = _lib.encoded(group_bits)
        for field, seconds in (("matchmaking_ms", matchmaking), ("request_ms", request_timeout),
                               ("sender_ms", sender_timeout), ("reducer_ms", reducer_timeout),
                               ("reduce_ms", reduce_timeout)):  # fmt: skip
            if seconds is not None:
                setattr(config, field, _lib.milliseconds(seconds))
        if request_timeout is None:
            config.request_ms = min(config.request_ms, config.matchmaking_ms // 2)
        if part_bytes is not None:
            config.part_bytes = _lib.whole("part_bytes", part_bytes, 1, 2**31 - 1)
        config.power_rank = _lib.whole("power_rank", power_rank, 0, 64)
        config.power_ratio = power_ratio
        if listen is not None:
            config.listen = _lib.encoded(listen)
        elif mode == "client":
            config.listen = None
        config.advertise = _lib.encoded(advertise)
        if key is not None:
            config.key = _lib.encoded(key)
        keep = set_lists(config, {"allow": allow, "dht": dht})
        keep += self._set_tensors(config, described)

        def opening(rt: int, at: Any, keep: Any = keep) -> int:
            if through is None:
                return int(_lib.lib.muster_average_open(rt, ctypes.byref(config), at))
            with through._using() as pointer:
                config.through = pointer
                return int(_lib.lib.muster_average_open(rt, ctypes.byref(config), at))

        call_interruptibly(lambda: self._opening(opening), lambda code: self._finish(quietly=True))

    def _set_tensors(
        self, config: _lib.AverageConfig, described: Optional[Sequence[str]]
    ) -> List[Any]:
        addresses = []
        for it in self._slots:
            address = it.address
            if address is None or it.nbytes == 0:
                address, room = _tensors.memory(it.nbytes)
                self._room.append(room)
                self._staged.append((it, address))
            addresses.append(address)
        array, names = _landing.tensor_array(_landing.rows_of(self._slots, addresses))
        config.tensors = array
        config.tensor_count = len(self._slots)
        keep: List[Any] = [array, names]
        if described is not None:
            if len(described) != len(self._slots):
                raise InvalidArgument("described needs a type for each tensor: "
                                      f"{len(self._slots)}, not {len(described)}")
            codes = [_tensors.BY_NAME[name].code for name in described]
            types = (ctypes.c_int * len(codes))(*codes)
            config.described = types
            keep.append(types)
        return keep

    @property
    def address(self) -> str:
        """The multiaddr that others dial; "" if it does not listen."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_average_address(pointer))

    @property
    def peer(self) -> str:
        """Our peer id."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_average_peer(pointer))

    def look(self) -> Look:
        """What a step that is under way waits for; from any thread."""
        raw = _lib.AverageLook()
        with self._using() as pointer:
            _lib.lib.muster_average_look(pointer, ctypes.byref(raw))
        return Look(PHASES[raw.phase], _lib.text(raw.key), raw.others, raw.followers,
                    _lib.text(raw.leader), _lib.text(raw.refused_by), _lib.text(raw.refusal),
                    raw.parts, raw.parts_done)  # fmt: skip

    def cancel(self) -> None:
        """Ends a step that is under way; from any thread."""
        with self._using() as pointer:
            _lib.lib.muster_average_cancel(pointer)

    def step(self, weight: float = 1.0, timeout: float = 120.0, gather: Any = None) -> Result:
        """Averages with whoever comes. The tensors are the library's until it returns.

        ``TimedOut``: nobody came in time, or the group took too long; its text says what is known.
        Members that failed are no error: ``Result.failed`` names them.

        :param weight: of our values, such as the number of samples behind them
        :param timeout: for all of it, in seconds; at least half of it is spent on finding a group
        :param gather: told to all members: what MessagePack can carry
        """
        with self._using() as pointer:
            self._begin(pointer, weight, timeout, gather)
            try:
                _runtime.wait_in_slices(
                    lambda ms: int(_lib.lib.muster_average_wait(pointer, ms)), lambda: False)  # fmt: skip
            except BaseException:
                _lib.lib.muster_average_cancel(pointer)
                self._take(pointer)
                raise
            return self._ended(pointer)

    def begin(self, weight: float = 1.0, timeout: float = 120.0, gather: Any = None) -> None:
        """The first half of ``step``, which returns at once. The tensors are the library's until
        ``end()`` returns."""
        with self._using() as pointer:
            self._begin(pointer, weight, timeout, gather)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Whether the step that was begun has ended; waits for up to ``timeout`` seconds, None
        without bound."""
        until = None if timeout is None else time.monotonic() + timeout
        with self._using() as pointer:
            while True:
                left = _runtime.SLICE_MS
                if until is not None:
                    left = max(0, min(left, math.ceil(1000 * (until - time.monotonic()))))
                code = _lib.lib.muster_average_wait(pointer, left)
                if code == 0:
                    return True
                if code != _lib.ETIMEDOUT:
                    raise from_code(code)
                if until is not None and time.monotonic() >= until:
                    return False

    def end(self) -> Result:
        """Waits for the end of the step that was begun, and returns what ``step`` does."""
        with self._using() as pointer:
            self.wait()
            return self._ended(pointer)

    async def step_async(
        self, weight: float = 1.0, timeout: float = 120.0, gather: Any = None
    ) -> Result:
        """``step`` for asyncio. If its task is canceled, the step is."""
        import asyncio

        from . import _aio

        work = asyncio.ensure_future(_aio.in_thread(lambda: self.step(weight, timeout, gather)))
        try:
            result: Result = await asyncio.shield(work)
            return result
        except asyncio.CancelledError:
            # The tensors are the caller's again only when the step has ended.
            self.cancel()
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()
            raise

    def _begin(self, pointer: int, weight: float, timeout: float, gather: Any) -> None:
        request = _lib.defaults(_lib.AverageRequest)
        request.weight = weight
        request.timeout_ms = _lib.milliseconds(timeout)
        if gather is not None:
            raw = _msgpack.encode(gather)
            request.gather = _lib.Bytes(raw, len(raw))
        for it, address in self._staged:
            it.write_to(address)
        code = _lib.lib.muster_average_begin(pointer, ctypes.byref(request))
        if code != 0:
            raise from_code(code)

    def _take(self, pointer: int) -> Tuple[Optional[Result], Optional[MusterError]]:
        raw = ctypes.POINTER(_lib.AverageResult)()
        code = _lib.lib.muster_average_end(pointer, ctypes.byref(raw))
        error = from_code(code) if code != 0 else None
        result = _result(raw) if raw else None
        _lib.fast.muster_average_result_free(raw)
        for it, address in self._staged:
            it.read_from(address)
        for it, _address in self._staged:
            it.settle()
        return result, error

    def _ended(self, pointer: int) -> Result:
        result, error = self._take(pointer)
        if error is not None:
            setattr(error, "result", result)
            raise error
        if result is None:
            raise from_code(-12)
        return result


# It stands on what is above.
from ._outer import Outer, Round  # noqa: E402
