"""States that the agent keeps: what a worker keeps in its agent's memory, and gets back after a
restart (``muster run --keep-memory``)."""

import ctypes
import warnings
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from . import _landing, _lib, _safetensors, _tree, worker
from ._runtime import call_interruptibly
from ._tensors import copy_many, memory
from .errors import Corrupt, InvalidArgument, LimitExceeded, NoMemory, NotFound, NotSupported
from .errors import from_code

__all__ = ["Restored", "keep", "keep_wait", "kept", "restore"]


class Restored(NamedTuple):
    """What the workers of this round begin with."""

    step: int
    tree: Any
    metadata: Dict[str, Any]


# Memory that a copy in the background reads. Only the next copy, or a wait, may let go of it.
_under_way: List[Any] = []


def _nothing_keeps() -> Optional[str]:
    """Why nothing keeps states here; None if something does. Asked before tensors are copied from a
    device in vain."""
    code = _lib.lib.muster_state_kept(ctypes.byref(_lib.StateKept()))
    error = from_code(code) if code < 0 else None
    return str(error) if isinstance(error, NotSupported) else None


def _warn(text: str) -> None:
    warnings.warn(f"muster.state.keep: {text}", RuntimeWarning, stacklevel=3)


def keep(what: Any, *, step: int, metadata: Optional[Mapping[str, Any]] = None,
         replicated: bool = False, wait: bool = True) -> bool:  # fmt: skip
    """Keeps a tree in the agent's memory, which outlives this worker; all ranks must keep the same
    steps. Returns whether it was kept. Where nothing keeps states (without ``muster run
    --keep-memory``), or there is no room, a warning says so once, and the program goes on.

    :param step: a number that grows; ``restore`` gives it back
    :param metadata: a dict that goes with it
    :param replicated: the tree is the same on all ranks, as with DistributedDataParallel: one copy
        on each node is enough, and any rank's will do after a restart
    :param wait: False: return when the copy has begun. Tensors on the host must not change before
        ``keep_wait()``, or the next ``keep()``, has returned; those on a GPU may
    """
    step = _lib.whole("step", step, 0, 2**64 - 1)
    why = _nothing_keeps()
    if why is not None:
        _warn(why)
        return False
    if replicated and worker.local_rank() != 0:
        return True
    plan = _tree.Plan(what)
    raw = _tree.encode(plan, metadata)
    addresses: List[int] = []
    rooms: List[Any] = []
    staged = []
    for it in plan.slots:
        address = it.address
        if address is None or it.nbytes == 0:
            address, room = memory(max(it.nbytes, 1))
            rooms.append(room)
            staged.append((it, address))
        addresses.append(address)
    copy_many([it for it, _ in staged], [at for _, at in staged])
    array, names = _landing.tensor_array(_landing.rows_of(plan.slots, addresses))
    request = _lib.defaults(_lib.StateKeepRequest)
    request.tensors = array
    request.tensor_count = len(plan.slots)
    request.metadata = _lib.Bytes(raw, len(raw))
    request.step = step
    request.replicated = replicated
    request.background = not wait
    owned = (array, names, rooms, raw, plan, request)

    def keeping(owned: Any = owned) -> int:
        return int(_lib.lib.muster_state_keep(ctypes.byref(request)))

    try:
        call_interruptibly(keeping, lambda code: None)
    except (LimitExceeded, NoMemory) as error:
        _warn(str(error))
        return False
    _under_way[:] = [] if wait else [owned]
    return True


def keep_wait() -> None:
    """Waits until the copy of the last ``keep(wait=False)`` is whole."""
    _lib.lib.muster_state_keep_wait()
    _under_way.clear()


def _kept() -> Optional[_lib.StateKept]:
    found = _lib.StateKept()
    code = _lib.lib.muster_state_kept(ctypes.byref(found))
    if code == 0:
        return found
    error = from_code(code)
    if isinstance(error, (NotFound, NotSupported)):
        return None
    raise error


def kept() -> Optional[int]:
    """The step that ``restore`` would give back; None if there is none."""
    found = _kept()
    return None if found is None else int(found.step)


def _head_of(found: _lib.StateKept) -> _safetensors.Head:
    head = ctypes.string_at(found.head.data, found.head.len)
    try:
        return _safetensors.parse_head(head, int(found.bytes))
    except InvalidArgument:
        raise
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the kept state: {error}") from None


def restore(into: Any = None) -> Optional[Restored]:
    """Gets back the newest version that all ranks have kept: all workers of a round get the same
    one. With ``into``, in place, as ``load`` does; else as a new tree. None: there is none, and the
    program begins as it would without this."""
    found = _kept()
    if found is None:
        return None
    head = _head_of(found)
    plan = None if into is None else _tree.Plan(into)
    described, metadata = _tree.decode(head.metadata, [it.name for it in head.entries])
    if plan is not None:
        plan.check_writable()
        plan.check(_tree.Source([_tree.Given(*it[:3], 0, None) for it in head.entries], described))
        plan.check_described(described)
    landing = _landing.Landing(head.entries, plan)

    def restoring() -> int:
        return int(_lib.lib.muster_state_restore(landing.array, landing.count))

    call_interruptibly(restoring, lambda code: None)
    if plan is None:
        return Restored(int(found.step), landing.source(described).build(), metadata)
    landing.finish(described)
    return Restored(int(found.step), into, metadata)
