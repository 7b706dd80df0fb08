"""msgpack, as far as the metadata of states needs it: encoding, and decoding of bytes that others
chose.

What comes from outside may be hostile. ``decode`` takes exactly one value, reads nothing that is
not there, and bounds depth and number of values, so that 16 MiB cannot become gigabytes of objects.
Extensions are refused, and so are maps with two equal keys.
"""

import struct
from typing import Any, Callable, Dict, List, Tuple

__all__ = ["DEPTH_MAX", "ITEMS_MAX", "decode", "encode"]

DEPTH_MAX = 96
ITEMS_MAX = 1_000_000


def _head(out: List[bytes], count: int, small: int, small_max: int, codes: Tuple[int, ...]) -> None:
    """The head of something with a length: in one byte, or with 8, 16 or 32 bits."""
    if count <= small_max:
        out.append(bytes([small | count]))
        return
    for code, form, limit in zip(codes, (">BB", ">BH", ">BI"), (0xFF, 0xFFFF, 0xFFFFFFFF)):
        if code and count <= limit:
            out.append(struct.pack(form, code, count))
            return
    raise ValueError("msgpack has no place for something that long")


def _put_int(out: List[bytes], value: int) -> None:
    if 0 <= value < 128 or -32 <= value < 0:
        out.append(struct.pack("b" if value < 0 else "B", value))
    elif 0 <= value < 2**64:
        for code, form, limit in ((0xCC, ">BB", 2**8), (0xCD, ">BH", 2**16), (0xCE, ">BI", 2**32)):
            if value < limit:
                out.append(struct.pack(form, code, value))
                return
        out.append(struct.pack(">BQ", 0xCF, value))
    elif -(2**63) <= value < 0:
        for code, form, limit in ((0xD0, ">Bb", 2**7), (0xD1, ">Bh", 2**15), (0xD2, ">Bi", 2**31)):
            if value >= -limit:
                out.append(struct.pack(form, code, value))
                return
        out.append(struct.pack(">Bq", 0xD3, value))
    else:
        raise ValueError(f"a number of more than 64 bits: {value}")


def _put(out: List[bytes], value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise ValueError(f"nested more than {DEPTH_MAX} deep")
    if value is None:
        out.append(b"\xc0")
    elif isinstance(value, bool):
        out.append(b"\xc3" if value else b"\xc2")
    elif isinstance(value, int):
        _put_int(out, value)
    elif isinstance(value, float):
        out.append(struct.pack(">Bd", 0xCB, value))
    elif isinstance(value, str):
        raw = value.encode()
        _head(out, len(raw), 0xA0, 31, (0xD9, 0xDA, 0xDB))
        out.append(raw)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        raw = bytes(value)
        _head(out, len(raw), 0, -1, (0xC4, 0xC5, 0xC6))
        out.append(raw)
    elif isinstance(value, (list, tuple)):
        _head(out, len(value), 0x90, 15, (0, 0xDC, 0xDD))
        for item in value:
            _put(out, item, depth + 1)
    elif isinstance(value, dict):
        _head(out, len(value), 0x80, 15, (0, 0xDE, 0xDF))
        for key, item in value.items():
            _put(out, key, depth + 1)
            _put(out, item, depth + 1)
    else:
        raise TypeError(f"{type(value).__name__} cannot be metadata: use None, bool, int, float, "
                        "str, bytes, list or dict")


def encode(value: Any) -> bytes:
    """A value as msgpack: None, bool, int of 64 bits, float, str, bytes, list, tuple, dict."""
    out: List[bytes] = []
    _put(out, value, 0)
    return b"".join(out)


class _Reader:
    """Reads one value after the other, and never beyond the end."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = 0

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise ValueError("msgpack that ends too early")
        raw = self.data[self.at : end]
        self.at = end
        return raw

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self, count: int) -> str:
        return self.take(count).decode()

    def many(self, count: int, depth: int) -> List[Any]:
        if count > len(self.data) - self.at:
            raise ValueError("msgpack that ends too early")
        return [self.value(depth + 1) for _ in range(count)]

    def map(self, count: int, depth: int) -> Dict[Any, Any]:
        if 2 * count > len(self.data) - self.at:
            raise ValueError("msgpack that ends too early")
        result: Dict[Any, Any] = {}
        for _ in range(count):
            key = self.value(depth + 1)
            if isinstance(key, (list, dict, float)):
                raise ValueError("a map whose key is no text and no number")
            if key in result:
                raise ValueError("a map with two equal keys")
            result[key] = self.value(depth + 1)
        return result

    def value(self, depth: int) -> Any:
        self.items += 1
        if depth > DEPTH_MAX or self.items > ITEMS_MAX:
            raise ValueError("msgpack that is nested too deep, or has too many values")
        code = self.take(1)[0]
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code < 0x90:
            return self.map(code & 15, depth)
        if code < 0xA0:
            return self.many(code & 15, depth)
        if code < 0xC0:
            return self.text(code & 31)
        if code in _NUMBERS:
            return self.number(_NUMBERS[code])
        if code in _PLAIN:
            return _PLAIN[code]
        if code in _SIZED:
            form, read = _SIZED[code]
            count = self.number(form)
            return read(self, count, depth)
        raise ValueError(f"msgpack of an unknown kind: 0x{code:02x}")


_PLAIN = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip


def _read_bytes(reader: _Reader, count: int, _depth: int) -> bytes:
    return reader.take(count)


def _read_text(reader: _Reader, count: int, _depth: int) -> str:
    return reader.text(count)


_SIZED: Dict[int, Tuple[str, Callable[[_Reader, int, int], Any]]] = {
    0xC4: (">B", _read_bytes), 0xC5: (">H", _read_bytes), 0xC6: (">I", _read_bytes),
    0xD9: (">B", _read_text), 0xDA: (">H", _read_text), 0xDB: (">I", _read_text),
    0xDC: (">H", _Reader.many), 0xDD: (">I", _Reader.many),
    0xDE: (">H", _Reader.map), 0xDF: (">I", _Reader.map),
}  # fmt: skip


def decode(data: bytes) -> Any:
    """The one value that the bytes are. ``ValueError``: they are no msgpack, or more than is
    allowed."""
    reader = _Reader(data)
    value = reader.value(0)
    if reader.at != len(data):
        raise ValueError("msgpack with something after its end")
    return value
