"""Sharing: a snapshot of a tree, for others to load."""

import ctypes
import threading
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _landing, _lib, _runtime, _tensors, _tree
from ._runtime import Handle, Runtime, call_interruptibly
from .errors import MusterError, NoMemory, from_code
from .store import Store

__all__ = ["Donor", "Info", "Shared", "Stats", "share"]


class Info(NamedTuple):
    """A version of a state. ``id`` is the same for the same bytes; ``signer`` is the peer that
    vouches for them, "" for a state of hivemind's."""

    prefix: str
    id: str
    epoch: int
    step: int
    bytes: int
    tensors: int
    priority: float
    signer: str


class Stats(NamedTuple):
    """What a donor has given to others so far."""

    downloads: int
    turned_away: int
    chunks: int
    bytes: int
    active: int


def info_of(raw: _lib.StateInfo) -> Info:
    """A struct muster_state_info in Python."""
    return Info(
        _lib.text(raw.prefix), _lib.text(raw.id), raw.epoch, raw.step, raw.bytes, raw.tensors,
        raw.priority, _lib.text(raw.signer),
    )  # fmt: skip


def _align(at: int, size: int) -> int:
    return (at + size - 1) // size * size


class _Snapshot:
    """A copy of a tree's tensors in memory that is sent without another copy."""

    def __init__(self, plan: _tree.Plan) -> None:
        offsets: List[int] = []
        end = 0
        for it in plan.slots:
            end = _align(end, it.dtype.bytes)
            offsets.append(end)
            end += it.nbytes
        self.memory: Optional[int] = _lib.lib.muster_state_alloc(max(end, 1))
        if self.memory is None:
            raise NoMemory(f"there is no memory for a copy of the state: {end} bytes")
        try:
            addresses = [self.memory + offset for offset in offsets]
            _tensors.copy_many(plan.slots, addresses)
            self.rows = _landing.rows_of(plan.slots, addresses)
        except BaseException:
            self.free()
            raise

    def free(self) -> None:
        if self.memory is not None:
            _lib.lib.muster_state_free(self.memory)
            self.memory = None


_RELEASE = ctypes.cast(_lib.lib.muster_state_free, ctypes.c_void_p).value


class Donor(Handle):
    """What this process shares, at one address.

    :param listen: where others connect: ``"HOST:PORT"``, port 0 for any; ``"unix:/PATH"``; with a
        ``key`` a multiaddr. By default any port: on every address if there is a credential,
        otherwise on loopback
    :param advertise: the host that others dial
    :param key: the file of our peer key: connections are between libp2p peers; "" for a new key
    :param sign: without a ``key``: the file of the key that signs what is shared
    :param allow: ids of peers that may connect, with a ``key``
    :param dht: multiaddrs of nodes of a swarm's DHT; an empty list begins a new one
    :param via: multiaddrs of relays
    :param hivemind: the class that hivemind's trainers share with, to serve them, too
    :param slots: how many downloads are served at once
    :param rate: bytes sent in a second, for all together; 0 is no bound
    :param replaced: for how many seconds a replaced version is given to those that load it
    """

    _close_function = "muster_state_close"
    _what = "the donor"

    def __init__(
        self,
        listen: Optional[str] = None,
        *,
        advertise: Optional[str] = None,
        key: Optional[str] = None,
        sign: Optional[str] = None,
        allow: Optional[Sequence[str]] = None,
        dht: Optional[Sequence[str]] = None,
        via: Optional[Sequence[str]] = None,
        hivemind: Optional[str] = None,
        encoding: Optional[str] = None,
        slots: Optional[int] = None,
        rate: int = 0,
        replaced: Optional[float] = None,
        runtime: Optional[Runtime] = None,
    ) -> None:
        runtime = _runtime.chosen(runtime)
        super().__init__(runtime)
        config = _lib.defaults(_lib.StateConfig)
        if listen is not None:
            config.listen = _lib.encoded(listen)
        config.advertise = _lib.encoded(advertise)
        config.key = _lib.encoded(key)
        config.sign = _lib.encoded(sign)
        config.hivemind = _lib.encoded(hivemind)
        config.encoding = _lib.encoded(encoding)
        lists = set_lists(config, {"allow": allow, "dht": dht, "via": via})
        if slots is not None:
            config.slots = _lib.whole("slots", slots, 0, 2**32 - 1)
        config.rate_bytes = _lib.whole("rate", rate, 0, 2**63 - 1)
        if replaced is not None:
            config.replaced_ms = _lib.milliseconds(replaced)

        def opening(rt: int, at: Any, keep: Any = lists) -> int:
            return int(_lib.lib.muster_state_open(rt, ctypes.byref(config), at))

        call_interruptibly(lambda: self._opening(opening), lambda code: self._finish(quietly=True))

    @property
    def address(self) -> str:
        """The address that others dial."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_state_address(pointer))

    @property
    def addresses(self) -> List[str]:
        """All addresses that others can dial: a peer may have several."""
        room = ctypes.create_string_buffer(1024)
        found: List[str] = []
        with self._using() as pointer:
            while _lib.lib.muster_state_address_at(pointer, len(found), room, len(room)):
                found.append(_lib.text(room.value))
        return found

    @property
    def transport(self) -> str:
        """``"plain"``, ``"peer"``, or ``"lock"``: encrypted beyond loopback."""
        with self._using() as pointer:
            return _lib.text(_lib.fast.muster_state_transport(pointer))

    @property
    def stats(self) -> Stats:
        """What others have got from here so far."""
        raw = _lib.StateStats()
        with self._using() as pointer:
            _lib.lib.muster_state_stats(pointer, ctypes.byref(raw))
        return Stats(raw.downloads, raw.turned_away, raw.chunks, raw.bytes, raw.active)

    def share(
        self,
        what: Any,
        *,
        prefix: str = "model",
        epoch: int = 0,
        step: int = 0,
        priority: float = 0.0,
        metadata: Optional[Mapping[str, Any]] = None,
        hidden: bool = False,
        store: Optional[Store] = None,
    ) -> "Shared":
        """Shares a copy of a tree, in place of what had the prefix; see ``muster.state.share``."""
        _runtime.check_is("store must be a muster.Store", store, Store)
        plan = _tree.Plan(what)
        raw = _tree.encode(plan, metadata)
        source = self._source(prefix, epoch, step, priority, hidden, raw)
        snapshot = _Snapshot(plan)
        array, keep = _landing.tensor_array(snapshot.rows)
        source.tensors = array
        source.tensor_count = len(snapshot.rows)
        source.released = _RELEASE
        source.context = snapshot.memory

        def sharing(keep: Any = (array, keep)) -> int:
            with self._using() as pointer:
                code = int(_lib.lib.muster_state_share(pointer, ctypes.byref(source)))
            if code != 0:
                snapshot.free()
            return code

        return self._shared(prefix, sharing, store)

    def share_file(
        self,
        path: Any,
        *,
        prefix: str = "model",
        epoch: int = 0,
        step: int = 0,
        priority: float = 0.0,
        hidden: bool = False,
        store: Optional[Store] = None,
    ) -> "Shared":
        """Shares a safetensors file, which must not be changed while it is shared; another may be
        renamed over it."""
        _runtime.check_is("store must be a muster.Store", store, Store)
        source = self._source(prefix, epoch, step, priority, hidden, b"")
        name = _lib.encoded(path)

        def sharing() -> int:
            with self._using() as pointer:
                return int(_lib.lib.muster_state_share_file(pointer, name, ctypes.byref(source)))

        return self._shared(prefix, sharing, store)

    def _source(
        self, prefix: str, epoch: int, step: int, priority: float, hidden: bool, metadata: bytes
    ) -> _lib.StateSource:
        if not (0 <= epoch < 2**64 and 0 <= step < 2**64):
            raise ValueError(f"epoch and step are numbers from 0 on: not {epoch} and {step}")
        source = _lib.defaults(_lib.StateSource)
        source.prefix = _lib.encoded(prefix)
        source.epoch = epoch
        source.step = step
        source.priority = priority
        source.hidden = hidden
        if metadata:
            source.metadata = _lib.Bytes(metadata, len(metadata))
        return source

    def _shared(self, prefix: str, sharing: Any, store: Optional[Store]) -> "Shared":
        call_interruptibly(sharing, lambda code: None)
        if store is not None:
            self.announce(store, prefix)
        return Shared(self, prefix)

    def announce(
        self, store: Store, prefix: str = "model", timeout: Optional[float] = None
    ) -> None:
        """Writes into a store where states of this prefix can be loaded, for as long as this
        process has the store open."""
        _runtime.check_is("store must be a muster.Store", store, Store, optional=False)
        name = _lib.encoded(prefix)
        limit = _lib.milliseconds(timeout)

        def announcing() -> int:
            with self._using() as pointer, store._using() as at:
                return int(_lib.lib.muster_state_announce(pointer, at, name, limit))

        call_interruptibly(announcing, lambda code: None)

    def info(self, prefix: str = "model") -> Info:
        """What is shared under a prefix, as others see it."""
        raw = _lib.StateInfo()
        with self._using() as pointer:
            code = _lib.lib.muster_state_shared(pointer, _lib.encoded(prefix), ctypes.byref(raw))
        if code != 0:
            raise from_code(code)
        return info_of(raw)

    def set(self, prefix: str = "model", *, priority: float = 0.0, hidden: bool = False) -> None:
        """Changes the priority of what is shared, and whether it may be loaded."""
        with self._using() as pointer:
            code = _lib.lib.muster_state_set(pointer, _lib.encoded(prefix), priority, hidden)
        if code != 0:
            raise from_code(code)

    def unshare(self, prefix: str = "model", *, wait: float = 0.0) -> None:
        """Withdraws a state; downloads of it have up to ``wait`` seconds to finish."""
        name = _lib.encoded(prefix)
        limit = min(_lib.milliseconds(wait), 2**32 - 1) if wait != float("inf") else 2**32 - 1

        def withdrawing() -> int:
            with self._using() as pointer:
                return int(_lib.lib.muster_state_unshare(pointer, name, limit))

        call_interruptibly(withdrawing, lambda code: None)


def set_lists(struct: Any, lists: Mapping[str, Optional[Sequence[str]]]) -> List[Any]:
    """Sets pairs of fields such as `allow` and `allow_count`; returns what they point to."""
    keep = []
    for field, values in lists.items():
        if values is None:
            continue
        if isinstance(values, str):
            raise TypeError(f"{field} is a list of texts, not one text: use [{values!r}]")
        texts = _lib.texts([*values])
        # A list of nothing is not the same as no list.
        room = texts if len(values) else (ctypes.c_char_p * 1)()
        setattr(struct, field, ctypes.cast(room, ctypes.POINTER(ctypes.c_char_p)))
        setattr(struct, field + "_count", len(values))
        keep += [texts, room]
    return keep


class Shared(_runtime.Unique):
    """A state that is shared, until it is replaced, unshared, or its donor is closed."""

    _what = "a shared state"

    def __init__(self, donor: Donor, prefix: str) -> None:
        self.donor = donor
        self.prefix = prefix

    @property
    def address(self) -> str:
        """The address that others dial."""
        return self.donor.address

    @property
    def info(self) -> Info:
        """What is shared, as others see it: its id and its signer, on which they can insist."""
        return self.donor.info(self.prefix)

    def set(self, *, priority: float = 0.0, hidden: bool = False) -> None:
        """Changes its priority, and whether it may be loaded."""
        self.donor.set(self.prefix, priority=priority, hidden=hidden)

    def unshare(self, *, wait: float = 0.0) -> None:
        """Withdraws it; downloads have up to ``wait`` seconds to finish."""
        self.donor.unshare(self.prefix, wait=wait)

    def __enter__(self) -> "Shared":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.unshare()
        except MusterError:
            pass  # it was replaced and withdrawn, or the donor is closed

    def __repr__(self) -> str:
        return f"<muster.state.Shared {self.prefix!r} at {self.donor.address}>"


_donors: Dict[Tuple[Any, ...], Donor] = {}
_donors_lock = threading.Lock()


def _donor(listen: Optional[str], advertise: Optional[str], sign: Optional[str]) -> Donor:
    """The process's donor at an address; opened when it is first used."""
    runtime = _runtime.default()
    with _donors_lock:
        wanted = (runtime._number, listen, advertise, sign)
        donor = _donors.get(wanted)
        if donor is None or donor.closed:
            donor = _donors[wanted] = Donor(listen, advertise=advertise, sign=sign)
        return donor


def share(
    what: Any,
    *,
    prefix: str = "model",
    epoch: int = 0,
    step: int = 0,
    priority: float = 0.0,
    metadata: Optional[Mapping[str, Any]] = None,
    store: Optional[Store] = None,
    listen: Optional[str] = None,
    advertise: Optional[str] = None,
    sign: Optional[str] = None,
) -> Shared:
    """Shares a copy of a tree, for others to load.

    The copy is made before this returns, and the tensors may change afterwards. Sharing again under
    the same prefix replaces it: who is loading the old copy gets it to the end, and its memory is
    freed then.

    :param what: dicts, lists and tuples of tensors (PyTorch's, numpy's, buffers) and scalars; or an
        object with ``state_dict()``: a module, an optimizer; or dicts and lists of such objects
    :param prefix: the name by which others find it
    :param epoch: of several states, the one with the highest epoch is loaded
    :param step: and of these, the one with the highest priority, then with the last step
    :param metadata: a dict that comes with it: text, numbers, bytes, lists and dicts
    :param store: a store in which others look for donors
    :param listen: where others connect; see ``Donor``
    """
    donor = _donor(listen, advertise, sign)
    return donor.share(what, prefix=prefix, epoch=epoch, step=step, priority=priority,
                       metadata=metadata, store=store)  # fmt: skip
