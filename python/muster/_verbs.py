"""The operations of a store: what each asks of the library, and how its result is read.

An operation that was not started yet is a plan, a plain tuple: how it is run, by a thread that
waits or by an event loop, is another matter. A plan is filled into a `Call`, which has the structs
that the library reads. Making those costs more than all the rest, so they are used again.
"""

from __future__ import annotations

import ctypes
from collections import abc, namedtuple

from . import _lib
from .errors import MusterError, from_code

TYPE_CHECKING = False  # see muster/__init__.py
if TYPE_CHECKING:
    from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union

    from ._lease import AsyncLease, Lease

    _R = TypeVar("_R")
    AnyLease = Union[Lease, AsyncLease, int, None]
    Data = Union[str, bytes, bytearray, memoryview]
    Items = Union[Mapping[Any, Data], Sequence[Tuple[Data, Data]]]
    # how the result is read, verb, keys, values, flags, number, lease, timeout in ms
    Plan = Tuple[Callable[[Any], _R], int, Sequence[bytes], Sequence[bytes], int, int, int, int]

    class CompareSet(NamedTuple):
        """What ``compare_set`` found or wrote, and whether it wrote."""

        value: bytes
        written: bool

else:
    CompareSet = namedtuple("CompareSet", "value written")

(
    SET, GET, ADD, COMPARE_SET, CHECK, WAIT, DELETE, NUM_KEYS, LIST_KEYS, APPEND, MULTI_GET,
    MULTI_SET, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, BARRIER, WATCH, LEASE_GRANT, LEASE_KEEP,
    LEASE_REVOKE,
) = range(1, 21)  # fmt: skip

NOWAIT, PREFIX, CURRENT = 1, 2, 4

# --- results --------------------------------------------------------------------------------------

_op_number = _lib.fast.muster_op_number
_op_value = _lib.fast.muster_op_value
_string_at = ctypes.string_at


def read_none(_op: Any) -> None:
    return None


def read_number(op: Any) -> int:
    number: int = _op_number(op)
    return number


def read_flag(op: Any) -> bool:
    return bool(_op_number(op))


def read_value(op: Any) -> bytes:
    value = _op_value(op, 0)
    length = value.len
    return _string_at(value.data, length) if length else b""


def read_values(op: Any) -> List[bytes]:
    return [_lib.span(_op_value(op, i)) for i in range(_lib.fast.muster_op_value_count(op))]


def read_compared(op: Any) -> CompareSet:
    return CompareSet(read_value(op), read_flag(op))


def error_of(op: Any, status: int) -> MusterError:
    """The exception for an operation that has ended with an error."""
    return from_code(status, _lib.text(_lib.fast.muster_op_errmsg(op)))


# --- structs --------------------------------------------------------------------------------------

_TEMPLATE = _lib.defaults(_lib.StoreRequest)

#: Calls that are not in use. `pop` and `append` of a list are atomic.
_spare: List[Call] = []
#: What a spare call may keep alive of the last operation's key and values.
_SPARE_BYTES = 4096


class Call:
    """A request, what it points to, and the place for the operation that it becomes."""

    __slots__ = ("request", "request_ref", "op", "op_ref", "key", "value", "second", "keep")

    def __init__(self) -> None:
        self.request = request = _lib.StoreRequest.from_buffer_copy(_TEMPLATE)
        self.request_ref = ctypes.byref(request)
        self.op = ctypes.c_void_p()
        self.op_ref = ctypes.byref(self.op)
        keys, values = (_lib.Bytes * 1)(), (_lib.Bytes * 2)()
        self.key, self.value, self.second = keys[0], values[0], values[1]
        self.keep: Any = (keys, values)
        request.keys = keys
        request.values = values

    def fill(self, plan: Plan[Any]) -> None:
        """Makes it the request of a plan."""
        _, verb, keys, values, flags, number, lease, timeout_ms = plan
        request = self.request
        request.verb = verb
        request.flags = flags
        request.number = number
        request.lease = lease
        request.timeout_ms = timeout_ms
        request.key_count = count = len(keys)
        request.value_count = value_count = len(values)
        if count > 1 or value_count > 2:
            self.keep = (_lib.many(keys), _lib.many(values))
            request.keys, request.values = self.keep
            return
        if count:
            key = self.key
            key.data = data = keys[0]
            key.len = len(data)
        if value_count:
            value = self.value
            value.data = data = values[0]
            value.len = len(data)
            if value_count == 2:
                second = self.second
                second.data = data = values[1]
                second.len = len(data)


def take_call(plan: Plan[Any]) -> Call:
    """A call with the request of a plan; give it back with `give_call`."""
    try:
        call = _spare.pop()
    except IndexError:
        call = Call()
    call.fill(plan)
    return call


def give_call(call: Call, plan: Plan[Any]) -> None:
    """For the next operation. Nothing uses the call any more, and its operation was freed."""
    keys, values = plan[2], plan[3]
    if len(keys) > 1 or len(values) > 1 or len(_spare) > 64:
        return
    if values and len(values[0]) > _SPARE_BYTES:
        return
    call.op.value = None
    _spare.append(call)


# --- arguments ------------------------------------------------------------------------------------


def needed_ms(timeout: Optional[float], name: str = "timeout") -> int:
    """The milliseconds of an operation or a call, which needs time for its answer."""
    ms = _lib.milliseconds(timeout)
    if ms == 0:
        raise from_code(
            _lib.EINVAL, f"{name}={timeout}: an answer takes time; use seconds above 0, or math.inf"
        )
    return ms


def default_ms(timeout: float) -> int:
    """The milliseconds of a default, which cannot be the default."""
    if timeout is None:
        raise TypeError("timeout must be a number of seconds: not None")
    return needed_ms(timeout)


def _ms(timeout: Optional[float]) -> int:
    return -2 if timeout is None else needed_ms(timeout)


def _bytes(value: Data) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is str:
        return value.encode()
    return _lib.data(value)


def _lease(lease: AnyLease) -> int:
    if lease is None:
        return 0
    number = getattr(lease, "number", lease)
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"lease must be a lease, its number, SESSION or None: not {lease!r}")
    if not 0 < number < 2**64:
        raise ValueError(f"lease must be a number from 1 to {2**64 - 1}, or None: not {number}")
    return number


def _keys(keys: Union[Data, Sequence[Data]]) -> List[bytes]:
    if isinstance(keys, (str, bytes, bytearray, memoryview)):
        return [_bytes(keys)]
    if not isinstance(keys, abc.Iterable):
        raise TypeError(f"keys must be a key or a list of keys: not {keys!r}")
    return [_bytes(key) for key in keys]


def _pairs(items: Items) -> Tuple[List[bytes], List[bytes]]:
    try:
        pairs = [(k, v) for k, v in (items.items() if isinstance(items, abc.Mapping) else items)]
    except (TypeError, ValueError):
        raise TypeError(f"items must be a dict, or pairs of a key and a value: not {items!r}") from None
    return [_bytes(k) for k, _ in pairs], [_bytes(v) for _, v in pairs]


# --- plans ----------------------------------------------------------------------------------------


def set_(key: Data, value: Data, lease: AnyLease, timeout: Optional[float]) -> Plan[None]:
    return (
        read_none, SET, (_bytes(key),), (_bytes(value),), 0, 0, _lease(lease), _ms(timeout)
    )  # fmt: skip


def get(key: Data, wait: bool, timeout: Optional[float]) -> Plan[bytes]:
    return read_value, GET, (_bytes(key),), (), 0 if wait else NOWAIT, 0, 0, _ms(timeout)


def add(key: Data, delta: int, lease: AnyLease, timeout: Optional[float]) -> Plan[int]:
    if type(delta) is not int or not -(2**63) <= delta < 2**63:
        delta = _lib.whole("delta", delta, -(2**63), 2**63 - 1)
    return read_number, ADD, (_bytes(key),), (), 0, delta, _lease(lease), _ms(timeout)


def compare_set(
    key: Data, expected: Data, desired: Data, lease: AnyLease, timeout: Optional[float]
) -> Plan[CompareSet]:
    values = (_bytes(expected), _bytes(desired))
    return read_compared, COMPARE_SET, (_bytes(key),), values, 0, 0, _lease(lease), _ms(timeout)


def check(keys: Union[Data, Sequence[Data]], timeout: Optional[float]) -> Plan[bool]:
    return read_flag, CHECK, _keys(keys), (), 0, 0, 0, _ms(timeout)


def wait(keys: Union[Data, Sequence[Data]], timeout: Optional[float]) -> Plan[None]:
    return read_none, WAIT, _keys(keys), (), 0, 0, 0, _ms(timeout)


def delete(key: Data, timeout: Optional[float]) -> Plan[bool]:
    return read_flag, DELETE, (_bytes(key),), (), 0, 0, 0, _ms(timeout)


def num_keys(timeout: Optional[float]) -> Plan[int]:
    return read_number, NUM_KEYS, (), (), 0, 0, 0, _ms(timeout)


def keys(prefix: Data, timeout: Optional[float]) -> Plan[List[bytes]]:
    begin = _bytes(prefix)
    return read_values, LIST_KEYS, (begin,) if begin else (), (), 0, 0, 0, _ms(timeout)


def append(key: Data, value: Data, lease: AnyLease, timeout: Optional[float]) -> Plan[None]:
    return (
        read_none, APPEND, (_bytes(key),), (_bytes(value),), 0, 0, _lease(lease), _ms(timeout)
    )  # fmt: skip


def multi_get(keys: Sequence[Data], wait: bool, timeout: Optional[float]) -> Plan[List[bytes]]:
    return read_values, MULTI_GET, _keys(keys), (), 0 if wait else NOWAIT, 0, 0, _ms(timeout)


def multi_set(items: Items, lease: AnyLease, timeout: Optional[float]) -> Plan[None]:
    keys, values = _pairs(items)
    return read_none, MULTI_SET, keys, values, 0, 0, _lease(lease), _ms(timeout)


def push(key: Data, value: Data, timeout: Optional[float]) -> Plan[None]:
    return read_none, QUEUE_PUSH, (_bytes(key),), (_bytes(value),), 0, 0, 0, _ms(timeout)


def pop(key: Data, wait: bool, timeout: Optional[float]) -> Plan[bytes]:
    return read_value, QUEUE_POP, (_bytes(key),), (), 0 if wait else NOWAIT, 0, 0, _ms(timeout)


def queue_len(key: Data, timeout: Optional[float]) -> Plan[int]:
    return read_number, QUEUE_LEN, (_bytes(key),), (), 0, 0, 0, _ms(timeout)


def barrier(key: Data, world_size: int, timeout: Optional[float]) -> Plan[None]:
    count = _lib.whole("world_size", world_size, 1, 2**63 - 1)
    return read_none, BARRIER, (_bytes(key),), (), 0, count, 0, _ms(timeout)


def watch(key: Data, prefix: bool, current: bool) -> Plan[None]:
    flags = (PREFIX if prefix else 0) | (CURRENT if current else 0)
    return read_none, WATCH, (_bytes(key),), (), flags, 0, 0, _ms(None)


def lease_grant(ttl: float, timeout: Optional[float]) -> Plan[int]:
    if isinstance(ttl, (str, bytes)) or not hasattr(ttl, "__float__"):
        raise TypeError(f"ttl must be a number of seconds: not {ttl!r}")
    if not 0.001 <= ttl < 2**40:
        raise ValueError(f"a lease must last from a millisecond to 2**40 seconds: not {ttl} s")
    return read_number, LEASE_GRANT, (), (), 0, round(ttl * 1000), 0, _ms(timeout)


def lease_keep(number: int, timeout: Optional[float]) -> Plan[None]:
    return read_none, LEASE_KEEP, (), (), 0, 0, number, _ms(timeout)


def lease_revoke(number: int, timeout: Optional[float]) -> Plan[None]:
    return read_none, LEASE_REVOKE, (), (), 0, 0, number, _ms(timeout)
