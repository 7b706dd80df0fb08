"""Files of states: the head of a safetensors file, read with distrust and written as the library
reads it."""

import base64
import binascii
import ctypes
import json
import mmap
import os
import struct
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from . import _tensors
from ._tensors import BY_NAME, DType, Slot
from .errors import Corrupt, InvalidArgument

__all__ = ["Entry", "Head", "MappedFile", "file_bytes", "parse_head", "read_head"]

HEAD_MAX = 100_000_000
_KEY = "muster_metadata"
_PAGE = 4096


class Entry(NamedTuple):
    """A tensor that has a place, but perhaps no memory yet."""

    name: str
    dtype: DType
    shape: Tuple[int, ...]
    nbytes: int


class Head(NamedTuple):
    """The head of a file: its tensors in their order, the metadata of the state, and the texts that
    other programs put beside the tensors."""

    entries: List[Entry]
    metadata: bytes
    texts: Dict[str, str]


def _entry(name: str, raw: Any) -> Tuple[int, Entry]:
    """A tensor's row of the head: where it begins, and what it is."""
    if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("a tensor without dtype, shape or data_offsets")
    shape, offsets = raw["shape"], raw["data_offsets"]
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [-1]
    if len(numbers) != len(shape) + 2 or not all(type(n) is int and n >= 0 for n in numbers):
        raise ValueError(f"{name[:80]!r} has a wrong shape or place")
    if raw["dtype"] not in BY_NAME:
        raise InvalidArgument(f"{name[:80]!r} is of a type that this module does not have: "
                              f"{str(raw['dtype'])[:20]}")
    dtype = BY_NAME[raw["dtype"]]
    count = dtype.bytes
    for n in shape:
        count *= n
    if offsets[1] - offsets[0] != count:
        raise ValueError(f"{name[:80]!r} has another size than its shape")
    return offsets[0], Entry(name, dtype, tuple(shape), count)


def _parse(text: bytes, data_bytes: int) -> Head:
    top = json.loads(text)
    if not isinstance(top, dict):
        raise ValueError("the head is no object")
    texts = top.pop("__metadata__", {})
    if not isinstance(texts, dict) or not all(isinstance(v, str) for v in texts.values()):
        raise ValueError("__metadata__ has something that is no text")
    rows = [_entry(name, raw) for name, raw in top.items()]
    rows.sort(key=lambda row: row[0])
    at = 0
    for begin, it in rows:
        if begin != at:
            raise ValueError(f"there is a gap before {it.name[:80]!r}, or it overlaps another")
        at += it.nbytes
    if at != data_bytes:
        raise ValueError(f"the tensors have {at} bytes, the file {data_bytes}")
    metadata = b""
    if _KEY in texts:
        metadata = base64.b64decode(texts.pop(_KEY), validate=True)
    return Head([it for _, it in rows], metadata, texts)


def parse_head(head: bytes, total: int) -> Head:
    """Parses the whole head of a file of `total` bytes. ``ValueError``: it is none."""
    return _parse(head[8:], total - len(head))


def read_head(path: Any) -> Head:
    """Reads the head of a file. ``Corrupt``: it is no safetensors file, or a part of one."""
    with open(path, "rb") as file:
        total = os.fstat(file.fileno()).st_size
        first = file.read(8)
        count = struct.unpack("<Q", first)[0] if len(first) == 8 else HEAD_MAX + 1
        if count > HEAD_MAX or count > total - 8:
            raise Corrupt(f"{path}: it is no safetensors file, or not all of one")
        text = file.read(count)
    try:
        return _parse(text, total - 8 - count)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}") from None
    except (ValueError, RecursionError, binascii.Error) as error:
        raise Corrupt(f"{path}: {error}") from None


def _head_of(slots: Sequence[Slot], metadata: bytes) -> bytes:
    top: Dict[str, Any] = {"__metadata__": {_KEY: base64.b64encode(metadata).decode()}}
    at = 0
    for it in slots:
        top[it.name] = {"dtype": it.dtype.name, "shape": [*it.shape],
                        "data_offsets": [at, at + it.nbytes]}  # fmt: skip
        at += it.nbytes
    text = json.dumps(top, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return struct.pack("<Q", len(text)) + text


def file_bytes(slots: Sequence[Slot], metadata: bytes) -> int:
    """About how long a file with these tensors is."""
    return sum(it.nbytes + 200 + len(it.name) for it in slots) + 2 * len(metadata) + _PAGE


class MappedFile:
    """A file in memory that is written again and again. Memory that has been touched is several
    times as fast to write as new memory, so the file keeps its pages, and this process its mapping.
    """

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        self._map: Optional[mmap.mmap] = None
        self._view: Any = None
        self.bytes = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Ends the mapping; the file stays."""
        self._unmap()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _unmap(self) -> None:
        self._view = None
        if self._map is not None:
            self._map.close()
            self._map = None

    def _fit(self, count: int) -> int:
        """Makes the file so long, with all of its memory; returns where it is. ``OSError``: there
        is no room, and nothing will be written."""
        if self._map is None or self.bytes != count:
            self._unmap()
            os.posix_fallocate(self._fd, 0, count)
            os.ftruncate(self._fd, count)
            self.bytes = count
            self._map = mmap.mmap(self._fd, count)
            self._view = (ctypes.c_char * count).from_buffer(self._map)
        return ctypes.addressof(self._view)

    def write(self, slots: Sequence[Slot], metadata: bytes) -> None:
        """Writes the tensors as they are now. It is not synced: it is for memory that does not
        outlive the machine. Each byte is copied once."""
        head = _head_of(slots, metadata)
        at = self._fit(len(head) + sum(it.nbytes for it in slots))
        places = []
        end = at + len(head)
        for it in slots:
            places.append(end)
            end += it.nbytes
        ctypes.memmove(at, head, len(head))
        _tensors.copy_many(slots, places)
