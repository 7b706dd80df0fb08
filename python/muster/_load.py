"""Loading: the newest state that donors have, into the caller's tree or into a new one."""

import contextlib
import ctypes
import math
import os
import re
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _landing, _lib, _runtime, _tensors, _tree
from ._donor import Donor, Info, info_of, set_lists
from ._runtime import Runtime, call_interruptibly, check_is
from ._safetensors import Entry
from ._tree import Given, Mismatch, Plan, Source
from .errors import InvalidArgument, MusterError, from_code, in_words
from .store import Store

__all__ = ["Loaded", "Progress", "Row", "list_states", "load", "load_async"]

ENOENT, EINVAL = _lib.ENOENT, _lib.EINVAL

# What the library says of a state that does not fit (codec/bin/tensor.c). A name that it has cut,
# or written otherwise than it is, says nothing.
_OTHER_TYPE = re.compile(r'tensor ".*" is [A-Z]\w*\[[0-9,]*\], but ')
_OTHER_NAME = re.compile(r'tensor \d+ is "([^"\\]*[^".\\])", but ')


class Progress(NamedTuple):
    """How far a load is. ``info`` is None while the donors are being asked."""

    info: Optional[Info]
    bytes: int  #: verified
    total: int
    resumed: int  #: how many of ``bytes`` were there from the start
    wasted: int
    rate: float  #: bytes in a second, over the last few
    donors: int  #: that serve it now
    banned: int  #: that sent something wrong
    lost: int
    restarts: int  #: versions that were replaced before they were whole
    seconds: float  #: since the load began

    @property
    def left(self) -> float:
        """The seconds that are left at this rate; infinity if nothing comes."""
        if self.total and self.bytes >= self.total:
            return 0.0
        return (self.total - self.bytes) / self.rate if self.rate > 0 and self.total else math.inf


class Loaded(NamedTuple):
    """A state that was loaded."""

    tree: Any  #: what it was loaded into, or the new tree
    info: Info
    metadata: Dict[str, Any]
    seconds: float
    donors: int  #: the most that served it at the same time
    report: str  #: what each donor did, a line each

    @property
    def epoch(self) -> int:
        return self.info.epoch

    @property
    def step(self) -> int:
        return self.info.step

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def signer(self) -> str:
        return self.info.signer

    @property
    def bytes(self) -> int:
        return self.info.bytes


Tell = Callable[[Progress], Any]


# --- telling how far it is ------------------------------------------------------------------------


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _line(prefix: str, p: Progress) -> str:
    if p.info is None and not p.bytes:
        return f"muster: loading {prefix!r}: asking the donors"
    share = 100 * p.bytes // p.total if p.total else 0
    left = "" if p.left in (0.0, math.inf) else f", {p.left:.0f} s left"
    return (f"muster: loading {prefix!r}: {_size(p.bytes)} of {_size(p.total)} ({share}%), "
            f"{_size(p.rate)}/s from {p.donors}{left}")  # fmt: skip


class _Display:
    """On a terminal one line that is rewritten; elsewhere a line every few seconds. Nothing at all
    if it is soon over."""

    FIRST, EVERY = 0.5, 0.1
    LOG_FIRST, LOG_EVERY = 5.0, 5.0

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.terminal = bool(getattr(sys.stderr, "isatty", lambda: False)())
        self.next = self.FIRST if self.terminal else self.LOG_FIRST
        self.shown = False

    def tell(self, p: Progress) -> None:
        if p.seconds < self.next or sys.stderr is None:
            return
        self.next = p.seconds + (self.EVERY if self.terminal else self.LOG_EVERY)
        text = _line(self.prefix, p)
        if self.terminal:
            try:
                text = text[: os.get_terminal_size(sys.stderr.fileno()).columns - 1]
            except (OSError, ValueError):
                pass
            self.shown = True
            text = "\r\x1b[K" + text
        else:
            text += "\n"
        self._write(text)

    def end(self) -> None:
        if self.shown:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            pass  # nobody reads it


# --- a load under way -----------------------------------------------------------------------------


class _Copy(_runtime.Unique):
    """The memory of a loaded state. Tensors over it keep it; the last of them frees it."""

    _what = "the memory of a loaded state"

    def __init__(self, runtime: Runtime, pointer: int) -> None:
        self.runtime = runtime
        self.pointer: Optional[int] = pointer
        self.generation = _runtime._generation

    def free(self) -> None:
        pointer, self.pointer = self.pointer, None
        # After a fork, and after its runtime, the memory goes with the process.
        if pointer is None or self.generation != _runtime._generation or self.runtime.closed:
            return
        try:
            with self.runtime._using():
                _lib.lib.muster_state_copy_free(pointer)
        except MusterError:
            pass

    def __del__(self) -> None:
        try:
            self.free()
        except Exception:  # noqa: BLE001 - nobody can catch it here
            pass

    def givens(self) -> List[Given]:
        """Its tensors, each over the copy's memory, which they keep."""
        found = []
        for i in range(_lib.fast.muster_state_copy_count(self.pointer)):
            raw = _lib.fast.muster_state_copy_tensor(self.pointer, i)
            dtype = _tree.dtype_of(raw.dtype)
            shape = tuple(raw.shape[k] for k in range(raw.rank))
            count = dtype.bytes
            for n in shape:
                count *= n
            buffer = None
            if count:
                buffer = _tensors.block(raw.data, count)
                buffer._copy = self
            # Others chose the name.
            name = raw.name.decode("utf-8", "surrogateescape")
            found.append(Given(name, dtype, shape, raw.data or 0, buffer))
        return found


class _Load:
    """One load: the request, and how it is waited for."""

    def __init__(self, runtime: Runtime, request: _lib.StateRequest, keep: Any, prefix: str,
                 tell: Union[Tell, bool, None]) -> None:  # fmt: skip
        self.runtime = runtime
        self.request = request
        self.keep = keep
        self.canceled = threading.Event()
        self.display = _Display(prefix) if tell is None else None
        self.tell = self.display.tell if self.display else tell if callable(tell) else None
        self.donors = 0
        self.report = ""
        self.began = time.monotonic()

    def progress(self, loading: Any) -> Progress:
        raw, info = _lib.StateProgress(), _lib.StateInfo()
        _lib.fast.muster_state_load_progress(loading, ctypes.byref(raw), ctypes.byref(info))
        self.donors = max(self.donors, raw.donors)
        return Progress(
            info_of(info) if raw.info else None, raw.bytes, raw.total, raw.resumed, raw.wasted,
            raw.bytes_per_s, raw.donors, raw.banned, raw.lost, raw.restarts,
            time.monotonic() - self.began,
        )  # fmt: skip

    def run(self) -> _Copy:
        """Loads; raises what went wrong, with the report of the donors."""
        loading = ctypes.c_void_p()
        with self.runtime._using() as rt:
            code = _lib.lib.muster_state_load_begin(rt, ctypes.byref(self.request),
                                                    ctypes.byref(loading))  # fmt: skip
            if code != 0:
                raise from_code(code)
            try:
                self._wait(loading)
            except BaseException:
                _lib.fast.muster_state_load_cancel(loading)
                self._end(loading)
                raise
            finally:
                if self.display:
                    self.display.end()
            code, copy, error = self._end(loading)
        if error is not None:
            setattr(error, "report", self.report)
            raise error
        assert copy is not None
        return copy

    def _wait(self, loading: Any) -> None:
        told = 0.0
        # A load is often over within milliseconds: look closely first.
        slice_ms = 1
        while _lib.lib.muster_state_load_wait(loading, slice_ms) == _lib.ETIMEDOUT:
            slice_ms = min(2 * slice_ms, _runtime.SLICE_MS)
            if self.canceled.is_set():
                _lib.fast.muster_state_load_cancel(loading)
            progress = self.progress(loading)
            if self.tell is not None and progress.seconds >= told + 0.1:
                told = progress.seconds
                self.tell(progress)

    def _end(self, loading: Any) -> Tuple[int, Optional[_Copy], Optional[MusterError]]:
        copy = ctypes.c_void_p()
        last = self.progress(loading)
        code = _lib.lib.muster_state_load_end(loading, ctypes.byref(copy))
        error = from_code(code) if code != 0 else None
        self.report = in_words(_lib.text(_lib.fast.muster_state_report()))
        if code != 0 or copy.value is None:
            return code, None, error
        result = _Copy(self.runtime, copy.value)
        if self.tell is not None and self.display is None:
            end = _lib.fast.muster_state_copy_progress(copy).contents
            self.tell(last._replace(bytes=end.bytes, total=end.total, wasted=end.wasted,
                                    seconds=time.monotonic() - self.began))  # fmt: skip
        return code, result, None


def _request(
    runtime: Runtime, prefix: str, donors: Optional[Sequence[str]], store: Optional[Store],
    dht: Optional[Sequence[str]], key: Optional[str], allow: Optional[Sequence[str]],
    trust: Optional[Sequence[str]], id: Optional[str], through: Optional[Donor] = None,
) -> Tuple[_lib.StateRequest, List[Any]]:  # fmt: skip
    request = _lib.defaults(_lib.StateRequest)
    request.prefix = _lib.encoded(prefix)
    keep = set_lists(request, {"donors": None, "dht": dht, "allow": allow, "trust": trust})
    if donors is not None:
        if isinstance(donors, str):
            raise TypeError(f"donors is a list of addresses: use [{donors!r}]")
        texts = _lib.texts([*donors])
        request.donors = texts
        request.donor_count = len(donors)
        keep.append(texts)
    if not donors and store is None and dht is None and through is None:
        raise InvalidArgument("nobody to load from: give donors, a store in which they have "
                              "announced themselves, or a dht")
    request.key = _lib.encoded(key)
    request.id = _lib.encoded(id)
    return request, keep


def _check_id(id: Optional[str]) -> None:
    if id is not None and (len(id) != 64 or any(c not in "0123456789abcdef" for c in id.lower())):
        raise InvalidArgument(f"the id of a state has 64 hex digits: not {id!r}")


class _Job:
    """What ``load`` does, in parts: so that a thread of its own can run it for asyncio."""

    def __init__(
        self,
        into: Any,
        prefix: str,
        donors: Optional[Sequence[str]],
        store: Optional[Store],
        timeout: float,
        progress: Union[Tell, bool, None],
        trust: Optional[Sequence[str]],
        id: Optional[str],
        listen: Optional[str],
        through: Optional[Donor],
        max_bytes: int,
        idle: Optional[float],
        dht: Optional[Sequence[str]],
        key: Optional[str],
        allow: Optional[Sequence[str]],
        by_priority: bool,
        runtime: Optional[Runtime],
    ) -> None:
        _check_id(id)
        check_is("store must be a muster.Store", store, Store)
        check_is("through must be a muster.state.Donor", through, Donor)
        given = through._runtime if through else store._runtime if store else None
        self.runtime = _runtime.chosen(given if runtime is None else runtime)
        self.into = into
        self.store = store
        self.through = through
        self.plan = None if into is None else Plan(into)
        if self.plan is not None:
            self.plan.check_writable()
        request, keep = _request(self.runtime, prefix, donors, store, dht, key, allow, trust, id,
                                 through)  # fmt: skip
        self.request = request
        request.listen = _lib.encoded(listen)
        request.bytes_max = _lib.whole("max_bytes", max_bytes, 0, 2**63 - 1)
        request.by_priority = by_priority
        request.timeout_ms = _lib.milliseconds(timeout)
        if idle is not None:
            request.idle_ms = _lib.milliseconds(idle)
        self.load = _Load(self.runtime, request, keep, prefix, progress)

    def run(self) -> Loaded:
        """Loads."""
        if self.store is not None:
            with self.store._using() as pointer:
                self.request.store = pointer
                return self._with_store()
        return self._with_store()

    def _with_store(self) -> Loaded:
        if self.through is None:
            return self._with_donor()
        with self.through._using() as pointer:
            self.request.through = pointer
            return self._with_donor()

    def _with_donor(self) -> Loaded:
        if self.plan is None or self.plan.fresh:
            return self._load_beside()
        try:
            return self._load_in_place(self.plan)
        except InvalidArgument as error:
            if not isinstance(error, Mismatch) and self._is_other_order(str(error)):
                return self._load_beside()
            if isinstance(error, Mismatch):
                setattr(error, "report", self.load.report)
            if isinstance(error, Mismatch) or error.code != EINVAL:
                raise
            mismatch = Mismatch(f"the state does not fit: {error}")
            mismatch.code, mismatch.name = error.code, error.name
            setattr(mismatch, "report", self.load.report)
            raise mismatch from None

    def _is_other_order(self, said: str) -> bool:
        """Whether the donors' newest state has as many tensors and bytes as the caller's: then
        perhaps only their order differs, as in a file that another program wrote. To know that, all
        of it must be loaded; so not if the error names a tensor of another type, or one that the
        caller does not have."""
        assert self.plan is not None
        if _OTHER_TYPE.match(said):
            return False
        found = _OTHER_NAME.match(said)
        if found and found.group(1) not in {it.name for it in self.plan.slots}:
            return False
        rows = [row for row in _rows(self.runtime, self.request) if row.info is not None]
        return any(row.info is not None and row.info.tensors == len(self.plan.slots)
                   and row.info.bytes == self.plan.bytes for row in rows)  # fmt: skip

    def _load_in_place(self, plan: Plan) -> Loaded:
        entries = [Entry(it.name, it.dtype, it.shape, it.nbytes) for it in plan.slots]
        landing = _landing.Landing(entries, plan)
        self.request.tensors = landing.array
        self.request.tensor_count = landing.count
        if not entries:
            return self._load_beside()
        copy = self.load.run()
        try:
            described, metadata = _tree.decode(self._metadata(copy), [it.name for it in entries])
            landing.finish(described)
            return self._loaded(copy, self.into, metadata)
        finally:
            copy.free()

    def _load_beside(self) -> Loaded:
        self.request.tensors = None
        self.request.tensor_count = 0
        copy = self.load.run()
        givens = copy.givens()
        described, metadata = _tree.decode(self._metadata(copy), [it.name for it in givens])
        source = Source(givens, described)
        if self.plan is None:
            return self._loaded(copy, source.build(), metadata)
        self.plan.fill(source)
        return self._loaded(copy, self.into, metadata)

    def _metadata(self, copy: _Copy) -> bytes:
        return _lib.span(_lib.fast.muster_state_copy_metadata(copy.pointer))

    def _loaded(self, copy: _Copy, tree: Any, metadata: Dict[str, Any]) -> Loaded:
        info = info_of(_lib.fast.muster_state_copy_info(copy.pointer).contents)
        seconds = time.monotonic() - self.load.began
        return Loaded(tree, info, metadata, seconds, max(self.load.donors, 1), self.load.report)


def load(
    into: Any = None,
    *,
    prefix: str = "model",
    donors: Optional[Sequence[str]] = None,
    store: Optional[Store] = None,
    timeout: float = 600.0,
    progress: Union[Tell, bool, None] = None,
    trust: Optional[Sequence[str]] = None,
    id: Optional[str] = None,
    listen: Optional[str] = None,
    through: Optional[Donor] = None,
    max_bytes: int = 0,
    idle: Optional[float] = None,
    dht: Optional[Sequence[str]] = None,
    key: Optional[str] = None,
    allow: Optional[Sequence[str]] = None,
    by_priority: bool = False,
    runtime: Optional[Runtime] = None,
) -> Loaded:
    """Loads the newest state that donors have under a prefix.

    With ``into``, into the same kind of tree that was shared, in place: tensors keep their memory,
    scalars are set in their containers. If the state is of another model, ``Mismatch`` names what
    differs, and nothing has been written; after any other error the tensors may have been. Without
    ``into``, ``Loaded.tree`` is a new tree.

    ``NotFound``: no donor has such a state. ``TimedOut``, ``ConnectionFailed``, ``Corrupt`` and
    others say why it failed; their ``report`` has a line for each donor.

    :param donors: addresses, as ``Shared.address`` has them
    :param store: where donors have announced themselves
    :param timeout: for the whole load, in seconds
    :param progress: a function that is called with a ``Progress``; False: nothing is shown; None: a
        line on a terminal, and elsewhere a line every few seconds if it takes long
    :param trust: ids of peers: only what one of them has signed
    :param id: only this version
    :param listen: where other newcomers can get what we have so far
    :param through: the same, at a donor's address; if it is in a DHT, donors are found there
    :param max_bytes: a state with more is refused
    :param idle: the longest time in which nothing comes from any donor, in seconds
    """
    return _Job(into, prefix, donors, store, timeout, progress, trust, id, listen, through,
                max_bytes, idle, dht, key, allow, by_priority, runtime).run()  # fmt: skip


async def load_async(into: Any = None, **options: Any) -> Loaded:
    """``load`` for asyncio, with the same arguments. It is canceled with its task; ``progress`` is
    called in the event loop."""
    import asyncio

    from . import _aio

    loop = asyncio.get_running_loop()
    tell = options.get("progress")
    if callable(tell):
        told: Tell = tell
        options["progress"] = lambda p: loop.call_soon_threadsafe(told, p)
    arguments = dict(_DEFAULTS, **options)
    job = _Job(into, **arguments)
    work = asyncio.ensure_future(_aio.in_thread(job.run))
    try:
        result: Loaded = await asyncio.shield(work)
        return result
    except asyncio.CancelledError:
        # The tensors are the caller's again only when the load has ended.
        job.load.canceled.set()
        await asyncio.wait([work])
        if not work.cancelled():
            work.exception()
        raise


_DEFAULTS: Dict[str, Any] = {
    "prefix": "model", "donors": None, "store": None, "timeout": 600.0, "progress": None,
    "trust": None, "id": None, "listen": None, "through": None, "max_bytes": 0, "idle": None,
    "dht": None, "key": None, "allow": None, "by_priority": False, "runtime": None,
}  # fmt: skip


# --- what donors have -----------------------------------------------------------------------------


class Row(NamedTuple):
    """What a donor has (``info``), or why it did not say (``error``)."""

    donor: str
    info: Optional[Info]
    complete: bool
    error: Optional[MusterError]


def _rows(runtime: Runtime, request: _lib.StateRequest) -> List[Row]:
    cap = 64
    while True:
        room = (_lib.StateRow * cap)()

        def listing() -> int:
            with runtime._using() as rt:
                return int(_lib.lib.muster_state_list(rt, ctypes.byref(request), room, cap))

        count = call_interruptibly(listing, lambda code: None)
        if count <= cap:
            return [_row(raw) for raw in room[:count]]
        cap = count + 64


def _row(raw: _lib.StateRow) -> Row:
    donor = _lib.text(raw.donor)
    if raw.status != 0:
        return Row(donor, None, False, from_code(raw.status, _lib.text(raw.why)))
    return Row(donor, info_of(raw.info), raw.have == raw.chunks, None)


def list_states(
    *,
    prefix: str = "",
    donors: Optional[Sequence[str]] = None,
    store: Optional[Store] = None,
    timeout: float = 5.0,
    dht: Optional[Sequence[str]] = None,
    key: Optional[str] = None,
    through: Optional[Donor] = None,
    runtime: Optional[Runtime] = None,
) -> List[Row]:
    """Asks donors what they have: a row for each state, and one for each donor that has none or
    does not answer within ``timeout`` seconds. ``through`` a donor that is in a DHT, those that it
    finds there."""
    check_is("store must be a muster.Store", store, Store)
    check_is("through must be a muster.state.Donor", through, Donor)
    given = through._runtime if through else store._runtime if store else None
    runtime = _runtime.chosen(given if runtime is None else runtime)
    request, _keep = _request(runtime, prefix, donors, store, dht, key, None, None, None, through)
    request.connect_ms = _lib.milliseconds(timeout)
    with contextlib.ExitStack() as uses:
        if store is not None:
            request.store = uses.enter_context(store._using())
        if through is not None:
            request.through = uses.enter_context(through._using())
        return _rows(runtime, request)
