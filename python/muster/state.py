"""The weights of a model, shared with those that join.

::

    import muster.state

    shared = muster.state.share({"model": model, "optimizer": optimizer}, epoch=3)
    print(shared.address)

    loaded = muster.state.load({"model": model, "optimizer": optimizer}, donors=["node0:29700"])
    print(loaded.epoch)

What is shared is a copy, so training goes on at once; what is loaded is verified, and goes into the
tensors where they are. ``join`` does both for the workers of an elastic job. ``keep`` copies a state
into memory of the agent (``muster run --keep-memory``), from where ``restore`` gets it after a restart.

Trees are dicts, lists and tuples of tensors (PyTorch's, numpy's, buffers), of numbers and text, and
of objects with ``state_dict()``. ``Array`` is for tensors without either package.
"""

from typing import Any, Mapping, Optional

from . import _landing, _lib, _tree
from ._donor import Donor, Info, Shared, Stats, share
from ._join import Joined, join
from ._load import Loaded, Progress, Row, load, load_async
from ._load import list_states as list  # noqa: A001 - it reads well with its module's name
from ._read import read
from ._runtime import call_interruptibly
from ._tensors import Array, copy_many, memory
from ._tree import Mismatch
from ._vault import Restored, keep, keep_wait, kept, restore

__all__ = [
    "Array",
    "Donor",
    "Info",
    "Joined",
    "Loaded",
    "Mismatch",
    "Progress",
    "Restored",
    "Row",
    "Shared",
    "Stats",
    "join",
    "keep",
    "keep_wait",
    "kept",
    "list",
    "load",
    "load_async",
    "read",
    "restore",
    "save",
    "share",
]


def save(path: Any, what: Any, *, metadata: Optional[Mapping[str, Any]] = None) -> None:
    """Writes a tree into a safetensors file, which other programs read, too. It is written beside
    the old one, synced and renamed, so there is always one that is whole."""
    plan = _tree.Plan(what)
    raw = _tree.encode(plan, metadata)
    addresses, keep = [], []
    for it in plan.slots:
        address = it.address
        if address is None or it.nbytes == 0:
            address, room = memory(it.nbytes)
            keep.append(room)
            copy_many([it], [address])
        addresses.append(address)
    array, names = _landing.tensor_array(_landing.rows_of(plan.slots, addresses))
    name = _lib.encoded(path)

    def saving(keep: Any = (keep, names)) -> int:
        return int(_lib.lib.muster_state_save(name, array, len(plan.slots),
                                              _lib.Bytes(raw, len(raw))))  # fmt: skip

    call_interruptibly(saving, lambda code: None)
