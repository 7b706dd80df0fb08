"""Tensors of PyTorch, of numpy and of neither, as bytes at an address.

Neither package is imported here: if a program has tensors of one, it has imported it.
"""

import ctypes
import os
import sys
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

__all__ = ["Array", "DTYPES", "Slot", "copy_many", "is_tensor", "make", "slot"]


class DType(NamedTuple):
    """A type of elements: the library's number and name, what others call it, its bytes."""

    code: int
    name: str
    torch: str
    numpy: str
    format: str
    bytes: int


_ROWS = [
    DType(1, "BOOL", "bool", "bool", "?", 1),
    DType(2, "U8", "uint8", "uint8", "B", 1),
    DType(3, "I8", "int8", "int8", "b", 1),
    DType(4, "F8_E5M2", "float8_e5m2", "float8_e5m2", "", 1),
    DType(5, "F8_E4M3", "float8_e4m3fn", "float8_e4m3fn", "", 1),
    DType(6, "F8_E8M0", "float8_e8m0fnu", "float8_e8m0fnu", "", 1),
    DType(7, "I16", "int16", "int16", "h", 2),
    DType(8, "U16", "uint16", "uint16", "H", 2),
    DType(9, "F16", "float16", "float16", "e", 2),
    DType(10, "BF16", "bfloat16", "bfloat16", "", 2),
    DType(11, "I32", "int32", "int32", "i", 4),
    DType(12, "U32", "uint32", "uint32", "I", 4),
    DType(13, "F32", "float32", "float32", "f", 4),
    DType(14, "I64", "int64", "int64", "q", 8),
    DType(15, "U64", "uint64", "uint64", "Q", 8),
    DType(16, "F64", "float64", "float64", "d", 8),
    DType(17, "C64", "complex64", "complex64", "", 8),
]
DTYPES: Dict[int, DType] = {row.code: row for row in _ROWS}
BY_NAME: Dict[str, DType] = {row.name: row for row in _ROWS}
_BY_TORCH = {row.torch: row for row in _ROWS}
_BY_NUMPY = {row.numpy: row for row in _ROWS}
_BY_FORMAT = {row.format: row for row in _ROWS if row.format}
_BY_FORMAT.update({"l": BY_NAME["I64"], "L": BY_NAME["U64"], "c": BY_NAME["U8"],
                   "n": BY_NAME["I64"], "N": BY_NAME["U64"]})  # fmt: skip

#: Complex numbers of 128 bits travel as pairs of F64, with this mark in the metadata.
C128 = "c128"

#: Types that states lack, by PyTorch's names, and those as which their bytes travel. The mark in the
#: metadata is the name.
CARRIED = {"complex32": "I32", "float4_e2m1fn_x2": "U8", "float8_e4m3fnuz": "U8",
           "float8_e5m2fnuz": "U8"}  # fmt: skip
MARKS = ("", C128, *CARRIED)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


class Array:
    """A tensor for programs that have neither PyTorch nor numpy, and for types that these lack: the
    name of a type, such as ``"F32"``, a shape, and its bytes, in a buffer."""

    __slots__ = ("dtype", "shape", "data")

    def __init__(self, dtype: str, shape: Sequence[int], data: Any = None) -> None:
        if dtype not in BY_NAME:
            raise ValueError(f"there is no type {dtype!r}: use one of {', '.join(BY_NAME)}")
        self.dtype = dtype
        self.shape = tuple(int(n) for n in shape)
        if any(n < 0 for n in self.shape):
            raise ValueError(f"a shape has no negative numbers: {self.shape}")
        need = _count(self.shape) * BY_NAME[dtype].bytes
        self.data = memoryview(bytearray(need) if data is None else data)
        if self.data.nbytes != need:
            raise ValueError(f"{dtype} of shape {self.shape} has {need} bytes, "
                             f"not {self.data.nbytes}")
        self.data = self.data.cast("B")

    def __bytes__(self) -> bytes:
        return bytes(self.data)

    def tolist(self) -> List[Any]:
        """The elements, in one list; those of types that Python lacks, as bytes."""
        row = BY_NAME[self.dtype]
        if row.format:
            view: Any = self.data
            return [*view.cast(row.format)] if self.data.nbytes else []
        raw = bytes(self.data)
        return [raw[i : i + row.bytes] for i in range(0, len(raw), row.bytes)]

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Array) and self.dtype == other.dtype
                and self.shape == other.shape and self.data == other.data)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<Array {self.dtype} {list(self.shape)}>"


def block(address: int, count: int) -> Any:
    """A buffer over memory that somebody else keeps."""
    return (ctypes.c_char * count).from_address(address)


def memory(count: int) -> Tuple[int, Any]:
    """New memory: its address, and what keeps it."""
    keep = (ctypes.c_char * max(count, 1))()
    return ctypes.addressof(keep), keep


class Slot:
    """A tensor of the caller's: where its bytes are, or how to get at them.

    ``address`` is set if the bytes can be read, and written if ``writable``, in place. Otherwise
    ``write_to`` and ``read_from`` copy them.
    """

    kind = ""  # which package it is of: "t", "n" or "a"

    def __init__(self, obj: Any, dtype: DType, shape: Sequence[int], mark: str = "") -> None:
        self.obj = obj
        self.name = ""
        self.index = -1
        self.dtype = dtype
        self.shape = tuple(int(n) for n in shape)
        self.mark = mark
        self.nbytes = _count(self.shape) * dtype.bytes
        self.address: Optional[int] = None
        self.writable = True
        self.device = False  # in the memory of an accelerator

    def write_to(self, address: int) -> None:
        """Copies the tensor's bytes to an address."""
        raise NotImplementedError

    def read_from(self, address: int, wait: bool = True) -> None:
        """Copies bytes from an address into the tensor; without ``wait``, memory of a device may
        still be written when this returns."""
        raise NotImplementedError

    def settle(self) -> None:
        """Waits for copies to a device."""


def _move(to: int, source: int, count: int) -> None:
    ctypes.memmove(to, source, count)  # without the interpreter's lock


class _TorchSlot(Slot):
    kind = "t"

    def __init__(self, obj: Any, path: str) -> None:
        torch = sys.modules["torch"]
        if obj.layout is not torch.strided:
            raise TypeError(f"{path}: only dense tensors can be shared, not {obj.layout}")
        if getattr(obj, "is_quantized", False):
            raise TypeError(f"{path}: quantized tensors cannot be shared: {obj.dtype}")
        if obj.device.type == "meta":
            raise TypeError(f"{path}: a tensor on the meta device has no bytes; give it some first, "
                            'such as with module.to_empty(device="cpu")')
        tensor, mark = obj.detach(), ""
        name = str(tensor.dtype).replace("torch.", "")
        if name == "complex128":
            tensor, mark, name = torch.view_as_real(tensor.resolve_conj()), C128, "float64"
        elif name in CARRIED:
            mark, name = name, BY_NAME[CARRIED[name]].torch
            tensor = tensor.resolve_conj().view(getattr(torch, name))
        dtype = _BY_TORCH.get(name)
        if dtype is None:
            raise TypeError(f"{path}: states have no type {tensor.dtype}")
        super().__init__(obj, dtype, tuple(tensor.shape), mark)
        self.tensor = tensor
        self.device = tensor.device.type != "cpu"
        plain = not (tensor.is_conj() or tensor.is_neg())
        # The conjugate of another tensor has its pairs in new memory: what is written there would
        # be lost. Where one element stands for many (expand()), there is no room for all.
        self.writable = not (mark and obj.is_conj()) and not any(
            step == 0 and n > 1 for step, n in zip(tensor.stride(), tensor.shape))  # fmt: skip
        if not self.device and plain and tensor.is_contiguous():
            self.address = tensor.data_ptr()

    def flat(self) -> Any:
        """The bytes as a tensor in the same memory or, where they are not in order, in new one."""
        torch = sys.modules["torch"]
        tensor = self.tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
        return tensor.view(torch.uint8)

    def write_to(self, address: int) -> None:
        if self.address is not None:
            _move(address, self.address, self.nbytes)
        elif self.nbytes:
            flat = self.flat().cpu()
            _move(address, flat.data_ptr(), self.nbytes)

    def read_from(self, address: int, wait: bool = True) -> None:
        if self.address is not None:
            _move(self.address, address, self.nbytes)
        elif self.nbytes:
            self.read_tensor(_torch_over(block(address, self.nbytes)), wait)

    def read_tensor(self, raw: Any, wait: bool) -> None:
        """The same from bytes that are a tensor already, perhaps in pinned memory."""
        value = raw.view(self.tensor.dtype).reshape(self.tensor.shape)
        # Of other devices than CUDA's we do not know how to wait for the end of a copy.
        on_cuda = self.tensor.device.type == "cuda"
        self.tensor.copy_(value, non_blocking=on_cuda and not wait)

    def settle(self) -> None:
        if self.device and self.tensor.device.type == "cuda":
            sys.modules["torch"].cuda.current_stream(self.tensor.device).synchronize()


def _torch_over(buffer: Any) -> Any:
    torch = sys.modules["torch"]
    return torch.frombuffer(buffer, dtype=torch.uint8)


class _NumpySlot(Slot):
    kind = "n"

    def __init__(self, obj: Any, path: str) -> None:
        array, mark = obj, ""
        name = array.dtype.name
        if name == "complex128":
            mark, shape, dtype = C128, array.shape + (2,), BY_NAME["F64"]
        elif name in CARRIED:
            mark, shape, dtype = name, array.shape, BY_NAME[CARRIED[name]]
        elif name in _BY_NUMPY:
            shape, dtype = array.shape, _BY_NUMPY[name]
        else:
            raise TypeError(f"{path}: states have no type {array.dtype}")
        super().__init__(obj, dtype, shape, mark)
        self.writable = bool(array.flags.writeable)
        if array.flags.c_contiguous and array.dtype.isnative:
            self.address = int(array.__array_interface__["data"][0])

    def write_to(self, address: int) -> None:
        if self.address is not None:
            _move(address, self.address, self.nbytes)
        elif self.nbytes:
            self._over(address)[...] = self.obj

    def read_from(self, address: int, wait: bool = True) -> None:
        if self.address is not None:
            _move(self.address, address, self.nbytes)
        elif self.nbytes:
            self.obj[...] = self._over(address)

    def _over(self, address: int) -> Any:
        numpy = sys.modules["numpy"]
        native = self.obj.dtype.newbyteorder("=")
        return numpy.frombuffer(block(address, self.nbytes), native).reshape(self.obj.shape)


class _ArraySlot(Slot):
    kind = "a"

    def __init__(self, obj: Any, path: str) -> None:
        if isinstance(obj, Array):
            view, shape, dtype = obj.data, obj.shape, BY_NAME[obj.dtype]
        else:
            view = memoryview(obj)
            form = view.format.lstrip("@=<") if view.itemsize > 1 else view.format
            if form not in _BY_FORMAT or _BY_FORMAT[form].bytes != view.itemsize:
                raise TypeError(f"{path}: states have no type for the format {view.format!r}")
            if not view.c_contiguous:
                raise TypeError(f"{path}: a buffer with gaps cannot be shared")
            shape, dtype = view.shape or (), _BY_FORMAT[form]
        super().__init__(obj, dtype, shape)
        self.view = view.cast("B") if view.nbytes else memoryview(b"")
        self.writable = not view.readonly
        if self.writable and self.nbytes:
            self._keep = (ctypes.c_char * self.nbytes).from_buffer(self.view)
            self.address = ctypes.addressof(self._keep)

    def write_to(self, address: int) -> None:
        if self.nbytes:
            memoryview(block(address, self.nbytes)).cast("B")[:] = self.view

    def read_from(self, address: int, wait: bool = True) -> None:
        if self.nbytes:
            self.view[:] = memoryview(block(address, self.nbytes)).cast("B")


def _is_torch(obj: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and hasattr(torch, "Tensor") and isinstance(obj, torch.Tensor)


def _is_numpy(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and hasattr(numpy, "ndarray") and isinstance(obj, numpy.ndarray)


def is_tensor(obj: Any) -> bool:
    """Whether it is something with elements: a tensor, an array, a buffer that can be written."""
    if _is_torch(obj) or _is_numpy(obj) or isinstance(obj, (Array, bytearray, memoryview)):
        return True
    array = sys.modules.get("array")
    return array is not None and isinstance(obj, array.array)


def slot(obj: Any, path: str) -> Slot:
    """The slot of a tensor; ``path`` is for errors."""
    if _is_torch(obj):
        return _TorchSlot(obj, path)
    if _is_numpy(obj):
        return _NumpySlot(obj, path)
    return _ArraySlot(obj, path)


def _make_torch(buffer: Any, dtype: DType, shape: Tuple[int, ...], mark: str) -> Any:
    torch = sys.modules.get("torch")
    kind = getattr(torch, dtype.torch, None) if torch is not None else None
    if torch is None or kind is None or not hasattr(torch, "frombuffer"):
        return None
    if buffer is None:
        tensor = torch.empty(shape, dtype=kind)
    else:
        tensor = torch.frombuffer(buffer, dtype=torch.uint8).view(kind).reshape(shape)
    if mark == C128:
        return torch.view_as_complex(tensor)
    known = getattr(torch, mark, None) if mark in CARRIED else None
    return tensor if known is None else tensor.view(known)


def _make_numpy(buffer: Any, dtype: DType, shape: Tuple[int, ...], mark: str) -> Any:
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "frombuffer"):
        return None
    try:
        kind = numpy.dtype(mark if mark in CARRIED else dtype.numpy)
    except TypeError:
        return None
    array = numpy.empty(shape, kind) if buffer is None else numpy.frombuffer(buffer, kind)
    array = array.reshape(shape)
    return array.view(numpy.complex128).reshape(shape[:-1]) if mark == C128 else array


def make(kind: str, buffer: Any, dtype: DType, shape: Tuple[int, ...], mark: str) -> Any:
    """A tensor over a buffer, of the package that it came from, else of one that is here. A buffer
    of no bytes is None."""
    if mark == C128 and (dtype.name != "F64" or not shape or shape[-1] != 2):
        mark = ""
    if mark in CARRIED and dtype.name != CARRIED[mark]:
        mark = ""
    makers = [_make_numpy, _make_torch] if kind == "n" else [_make_torch, _make_numpy]
    for maker in makers if kind in ("n", "t") else []:
        made = maker(buffer, dtype, shape, mark)
        if made is not None:
            return made
    return Array(dtype.name, shape, bytearray() if buffer is None else memoryview(buffer))


# --- many copies at once --------------------------------------------------------------------------

_PIECE = 16 << 20


def _in_parallel(works: List[Callable[[], None]], threads: int) -> None:
    """Runs all of them, on a few threads; raises the first error."""
    lock = threading.Lock()
    todo = iter(works)
    errors: List[BaseException] = []

    def run() -> None:
        while not errors:
            with lock:
                work = next(todo, None)
            if work is None:
                return
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                errors.append(error)

    helpers = [threading.Thread(target=run, name="muster-copy", daemon=True)
               for _ in range(threads - 1)]  # fmt: skip
    for helper in helpers:
        helper.start()
    run()
    for helper in helpers:
        helper.join()
    if errors:
        raise errors[0]


def move_many(moves: Sequence[Tuple[int, int, int]]) -> None:
    """Copies (to, from, bytes), on several threads where there is much: new memory is slow to
    touch, and one core does not fill it as fast as two."""
    total = sum(count for _, _, count in moves)
    cores = len(os.sched_getaffinity(0))
    if total < 4 * _PIECE or cores < 2:
        for to, source, count in moves:
            _move(to, source, count)
        return
    works: List[Callable[[], None]] = []
    small: List[Tuple[int, int, int]] = []
    for to, source, count in moves:
        if count < _PIECE:
            small.append((to, source, count))
            continue
        for at in range(0, count, _PIECE):
            piece = (to + at, source + at, min(_PIECE, count - at))
            works.append(lambda piece=piece: _move(*piece))  # type: ignore[misc]

    def move_small() -> None:
        for one in small:
            _move(*one)

    works.append(move_small)
    _in_parallel(works, min(4, cores))


#: Takes (to, from, bytes): copies in memory, or writes to a file.
Sink = Callable[[Sequence[Tuple[int, int, int]]], None]


def copy_many(slots: Sequence[Slot], places: Sequence[int], sink: Sink = move_many) -> None:
    """Copies the bytes of many tensors to their places: the snapshot."""
    device = []
    moves = []
    for it, place in zip(slots, places):
        if it.nbytes == 0:
            continue
        if it.device and isinstance(it, _TorchSlot) and it.tensor.device.type == "cuda":
            device.append((it, place))
        elif it.address is not None:
            moves.append((place, it.address, it.nbytes))
        else:
            address, keep = memory(it.nbytes)
            it.write_to(address)
            sink([(place, address, it.nbytes)])
            del keep
    if device:
        _copy_from_cuda(device, sink)
    sink(moves)


_STAGE = 64 << 20


class _Stage:
    """A pinned buffer, and what is on its way into it."""

    def __init__(self) -> None:
        torch: Any = sys.modules["torch"]
        self.buffer = torch.empty(_STAGE, dtype=torch.uint8, pin_memory=True)
        self.used = 0
        self.moves: List[Tuple[int, int, int]] = []
        self.devices: Dict[Any, None] = {}
        self.events: List[Any] = []

    def take(self, flat: Any, at: int, place: int) -> int:
        """Begins to copy what fits of a tensor; returns how much that is."""
        count = int(min(_STAGE - self.used, flat.numel() - at))
        room = self.buffer[self.used : self.used + count]
        room.copy_(flat[at : at + count], non_blocking=True)
        self.devices[flat.device] = None
        self.moves.append((place + at, room.data_ptr(), count))
        self.used += count
        return count

    def seal(self) -> None:
        """No more goes into it now."""
        torch: Any = sys.modules["torch"]
        for device in self.devices:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(device))
            self.events.append(event)

    def empty(self, sink: Sink) -> None:
        """Waits until it is filled, and empties it."""
        for event in self.events:
            event.synchronize()
        if self.moves:
            sink(self.moves)
        self.used, self.moves, self.devices, self.events = 0, [], {}, []


def _copy_from_cuda(items: Sequence[Tuple[_TorchSlot, int]], sink: Sink) -> None:
    """Copies from the device through two pinned buffers: while one is being filled, the other is
    emptied. The stream is the caller's, so that what it computes comes first."""
    filling, other = _Stage(), _Stage()
    for it, place in items:
        flat = it.flat()
        at = 0
        while at < it.nbytes:
            if filling.used == _STAGE:
                filling.seal()
                other.empty(sink)
                filling, other = other, filling
            at += filling.take(flat, at, place)
    filling.seal()
    other.empty(sink)
    filling.empty(sink)


def pinned(counts: Sequence[int]) -> Tuple[List[Any], Any]:
    """A pinned tensor of bytes for each number; ordinary memory if there is no more of that."""
    torch: Any = sys.modules["torch"]
    views: List[Any] = []
    slabs: List[Any] = []
    used = size = 0
    for i, count in enumerate(counts):
        if not slabs or used + count > size:
            size = max(count, min(1 << 30, sum(counts[i:])))
            try:
                slabs.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
            except RuntimeError:
                slabs.append(torch.empty(size, dtype=torch.uint8))
            used = 0
        views.append(slabs[-1][used : used + count])
        # A tensor of another type is made of these bytes, which must begin at a multiple of its
        # size.
        used += (count + 63) // 64 * 64
    return views, slabs
