"""Where the bytes of a state arrive: in the caller's tensors, or in memory beside them."""

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _lib, _tensors, _tree
from ._safetensors import Entry
from ._tensors import Slot
from ._tree import Given, Mismatch, Plan, Source

__all__ = ["Landing", "tensor_array"]


class _Row(NamedTuple):
    name: str
    code: int
    shape: Tuple[int, ...]
    address: int


def tensor_array(rows: Sequence[_Row]) -> Tuple[Any, List[Any]]:
    """An array of struct muster_tensor, and what it points to."""
    array = (_lib.Tensor * max(len(rows), 1))()
    keep: List[Any] = []
    for it, row in zip(array, rows):
        shape = (ctypes.c_uint64 * max(len(row.shape), 1))(*row.shape)
        name = row.name.encode()
        keep += [shape, name]
        it.name = name
        it.dtype = row.code
        it.rank = len(row.shape)
        it.shape = shape
        it.data = row.address
    return array, keep


def rows_of(slots: Sequence[Slot], addresses: Sequence[int]) -> List[_Row]:
    """The rows of the caller's tensors, with their bytes at these addresses."""
    return [_Row(it.name, it.dtype.code, it.shape, at) for it, at in zip(slots, addresses)]


def _overlapping(slots: Sequence[Slot]) -> Dict[int, Slot]:
    """Tensors that share memory with another: tied weights. Two of them written at once would be
    whichever came last; so all but one get memory of their own, and are compared."""
    found: Dict[int, Slot] = {}
    end = 0
    placed = [it for it in slots if it.address is not None and it.nbytes]
    for it in sorted(placed, key=lambda it: (it.address or 0, -it.nbytes)):
        address = it.address or 0
        if address < end:
            found[id(it)] = it
        end = max(end, address + it.nbytes)
    return found


class Landing:
    """Memory for each tensor of a state whose layout is known, in its order."""

    def __init__(self, entries: Sequence[Entry], plan: Optional[Plan]) -> None:
        self.plan = plan
        self.entries = entries
        slots = {it.name: it for it in plan.slots} if plan is not None else {}
        self.slots: List[Optional[Slot]] = [slots.get(it.name) for it in entries]
        self._tied = _overlapping(plan.slots if plan is not None else [])
        self._staged = self._stage()
        self._keep: List[Any] = []
        self._beside: Dict[int, int] = {}  # the entries whose bytes are beside their tensors
        rows = [self._row(i, it) for i, it in enumerate(entries)]
        self.array, self._names = tensor_array(rows)
        self.count = len(rows)
        self.rows = rows

    def _stage(self) -> Dict[int, Any]:
        """Pinned memory for tensors on a device."""
        wanted = [i for i, it in enumerate(self.slots)
                  if it is not None and it.device and it.nbytes]  # fmt: skip
        if not wanted:
            return {}
        views, _ = _tensors.pinned([self.entries[i].nbytes for i in wanted])
        return dict(zip(wanted, views))

    def _row(self, i: int, entry: Entry) -> _Row:
        it = self.slots[i]
        if it is not None and it.address is not None and id(it) not in self._tied:
            address = it.address
        elif i in self._staged:
            address = self._staged[i].data_ptr()
        else:
            address, keep = _tensors.memory(entry.nbytes)
            self._keep.append(keep)
            self._beside[i] = address
        # Memory of no bytes may be nowhere, and the library takes no such address.
        if entry.nbytes == 0:
            address = ctypes.addressof(_NOTHING)
        return _Row(entry.name, entry.dtype.code, entry.shape, address)

    def source(self, described: Optional[_tree.Described]) -> Source:
        """The state as it arrived, for a tree without tensors of the caller's."""
        keeps = iter(self._keep)
        givens = []
        for i, (entry, row) in enumerate(zip(self.entries, self.rows)):
            keep = next(keeps) if i in self._beside else None
            given = Given(entry.name, entry.dtype, entry.shape, row.address,
                          keep if entry.nbytes else None)  # fmt: skip
            givens.append(given)
        return Source(givens, described)

    def finish(self, described: Optional[_tree.Described]) -> None:
        """Brings what arrived beside the caller's tensors into them, and sets the rest."""
        plan = self.plan
        assert plan is not None
        try:
            plan.check_marks(described, [it.name for it in self.entries])
        except Mismatch as error:
            raise Mismatch(f"{error}; the tensors have been written") from None
        for i, view in self._staged.items():
            self.slots[i].read_tensor(view, wait=False)  # type: ignore[union-attr]
        tied = []
        for i, address in self._beside.items():
            it = self.slots[i]
            if it is None or it.nbytes == 0:
                continue
            if id(it) in self._tied:
                tied.append((it, address))
            else:
                it.read_from(address)
        plan.settle()
        self._compare(tied)
        if described is not None:
            own = {it.name: it.obj for it in plan.slots}
            source = self.source(described)
            plan.assign(described.build(lambda ref: plan.tensor_for(source.tensors, own, ref)))

    def _compare(self, tied: Sequence[Tuple[Slot, int]]) -> None:
        for it, address in tied:
            arrived = _tensors.block(address, it.nbytes)
            here = _tensors.block(it.address or 0, it.nbytes)
            if memoryview(arrived).cast("B") != memoryview(here).cast("B"):
                raise Mismatch(f"{it.name} shares its memory with another tensor here, but in the "
                               "state the two differ; the tensors have been written")


_NOTHING = ctypes.c_char()
