"""Trees: how nested containers, objects with a ``state_dict()`` and scalars become a list of named
tensors and a description of the rest, and how they are filled from one.

The description travels in the metadata, so what is read here was perhaps written by a stranger. It
is msgpack: scalars are themselves, and everything else is an array that begins with its kind:

    ["d", key, node, key, node, ...]    a dict; keys are text, numbers, or None
    ["l", node, ...]  ["u", node, ...]  a list; a tuple
    ["t", i]  ["n", i]  ["a", i]        tensor number i: PyTorch's, numpy's, a plain buffer
    ["t", i, "c128"]                    the same, of pairs that are complex numbers
    ["i", text]  ["c", x, y]            a number of more than 64 bits; a complex number

Tensors are numbered in the order of their names. A tensor's name is its path, with slashes between
the keys: ``model/layer.0.weight``.
"""

from typing import (
    Any,
    Callable,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from . import _msgpack, _tensors
from ._tensors import DTYPES, DType, Slot
from .errors import Corrupt, InvalidArgument

__all__ = ["Described", "Mismatch", "Plan", "Source", "decode", "describe"]

NAME_MAX = 65535
DEPTH_MAX = 64
DIGITS_MAX = 4096
_SCALARS = (type(None), bool, int, float, str, bytes, complex)

#: The key of the description in a state's metadata.
KEY = "muster_tree"


class Mismatch(InvalidArgument):
    """The state is of another model than the tensors that it was to be loaded into."""


# --- the caller's tree ----------------------------------------------------------------------------


class Node:
    """A part of the caller's tree: ``value`` is what is there."""

    def __init__(self, value: Any) -> None:
        self.value = value


class ScalarNode(Node):
    pass


class TensorNode(Node):
    def __init__(self, it: Slot) -> None:
        super().__init__(it.obj)
        self.slot = it


class DictNode(Node):
    def __init__(self, value: Any, items: Dict[Any, Node]) -> None:
        super().__init__(value)
        self.items = items


class ListNode(Node):
    def __init__(self, value: Any, items: List[Node]) -> None:
        super().__init__(value)
        self.items = items


class ObjectNode(Node):
    """Something with a ``state_dict()``, and the tree of that."""

    def __init__(self, value: Any, path: str, inner: Node) -> None:
        super().__init__(value)
        self.path = path
        self.inner = inner
        groups = getattr(value, "param_groups", None)
        state = getattr(value, "state", None)
        self.optimizer = isinstance(groups, list) and isinstance(state, dict)
        #: An optimizer before its first step does not have the tensors that the state has.
        self.fresh = self.optimizer and not state


def _join(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


class Plan:
    """A tree of the caller's: its tensors, in the order of their names, and how to fill it."""

    def __init__(self, what: Any) -> None:
        self.slots: List[Slot] = []
        self.objects: List[ObjectNode] = []
        self.root = self._walk(what, "", 0)
        self.slots.sort(key=lambda it: it.name.encode())
        for i, it in enumerate(self.slots):
            it.index = i
            if i and self.slots[i - 1].name == it.name:
                raise ValueError(f"two tensors have the path {it.name!r}: rename one of their keys")

    @property
    def bytes(self) -> int:
        """How many bytes the tensors have."""
        return sum(it.nbytes for it in self.slots)

    @property
    def fresh(self) -> List[ObjectNode]:
        """Optimizers whose tensors are not there yet."""
        return [it for it in self.objects if it.fresh]

    def _walk(self, value: Any, path: str, depth: int) -> Node:
        if depth > DEPTH_MAX:
            raise ValueError(f"{path[:80]}...: nested more than {DEPTH_MAX} deep")
        if _tensors.is_tensor(value):
            return self._tensor(value, path)
        if isinstance(value, _SCALARS):
            return ScalarNode(value)
        if isinstance(value, Mapping):
            return DictNode(value, {key: self._walk(item, self._key(path, key), depth + 1)
                                    for key, item in value.items()})  # fmt: skip
        if isinstance(value, (list, tuple)):
            return ListNode(value, [self._walk(item, _join(path, i), depth + 1)
                                    for i, item in enumerate(value)])  # fmt: skip
        if callable(getattr(value, "state_dict", None)):
            return self._object(value, path, depth)
        if hasattr(value, "item") and hasattr(value, "dtype") and not getattr(value, "shape", 1):
            return ScalarNode(value.item())  # a number of numpy's
        raise TypeError(
            f"{path or 'this'}: {type(value).__name__} cannot be part of a state: use tensors, "
            "arrays, dicts, lists, tuples, None, bool, int, float, str, bytes, or an object with "
            "state_dict()"
        )

    def _key(self, path: str, key: Any) -> str:
        if key is not None and not isinstance(key, (str, int)):
            raise TypeError(f"{path or 'this'}: a key of a state is text or a number, "
                            f"not {type(key).__name__}")
        return _join(path, key)

    def _tensor(self, value: Any, path: str) -> TensorNode:
        it = _tensors.slot(value, path or "this")
        it.name = path or "value"
        raw = it.name.encode()
        if len(raw) > NAME_MAX or b"\0" in raw:
            raise ValueError(f"{path[:80]}...: a path has no zero byte and up to {NAME_MAX} bytes")
        self.slots.append(it)
        return TensorNode(it)

    def _object(self, value: Any, path: str, depth: int) -> ObjectNode:
        node = ObjectNode(value, path, self._walk(value.state_dict(), path, depth + 1))
        self.objects.append(node)
        return node

    # --- filling it ---

    def check_writable(self) -> None:
        """Raises for what cannot be filled, before anything is."""
        for it in self.slots:
            if not it.writable:
                raise InvalidArgument(f"{it.name}: it cannot be written")
        if isinstance(self.root, ScalarNode) or _has_frozen(self.root):
            raise InvalidArgument("numbers and text cannot be loaded into a tuple at the top, or "
                                  "into themselves: put them into a dict or a list")

    def is_part(self, name: str) -> bool:
        """Whether a name is of an optimizer that is not there yet."""
        return any(not it.path or name.startswith(it.path + "/") for it in self.fresh)

    def check(self, source: "Source") -> None:
        """Raises ``Mismatch`` if the state has other tensors than this tree."""
        have = {it.name: it for it in source.tensors if not self.is_part(it.name)}
        need = {it.name: it for it in self.slots if not self.is_part(it.name)}
        wrong = [f"{name} is not in the state" for name in need if name not in have]
        wrong += [f"{name} is only in the state" for name in have if name not in need]
        for name, it in need.items():
            other = have.get(name)
            if other is None:
                continue
            if other.shape != it.shape:
                wrong.append(f"{name} has shape {list(it.shape)}, in the state {list(other.shape)}")
            elif other.dtype.code != it.dtype.code:
                wrong.append(f"{name} is {it.dtype.name}, in the state {other.dtype.name}")
        if wrong:
            more = f"; and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise Mismatch("the state does not fit: " + "; ".join(wrong[:5]) + more)

    def check_described(self, described: Optional["Described"]) -> None:
        """Raises ``Mismatch`` if the state has no tree for an object that needs one."""
        if self.fresh and described is None:
            raise Mismatch("the state has no description of an optimizer: it was shared by a "
                           "program that does not use this module")
        if described is not None:
            self._check_objects(self.root, described.build(lambda _: None))

    def check_marks(self, described: Optional["Described"], names: Sequence[str]) -> None:
        """Raises ``Mismatch`` if a tensor has a type that travels as another one, and is of another
        type in the state. Plain arrays take any."""
        marks: Dict[str, str] = {}
        if described is not None:
            described.build(lambda ref: marks.update({names[ref.number]: ref.mark}))
        for it in self.slots:
            theirs = marks.get(it.name, it.mark)
            if it.kind != "a" and it.mark != theirs and {it.mark, theirs} & set(_tensors.CARRIED):
                raise Mismatch(f"the state does not fit: {it.name} is {it.mark or it.dtype.name}, "
                               f"in the state {theirs or it.dtype.name}")

    def fill(self, source: "Source") -> None:
        """Copies a state from memory into this tree. Checks all of it before the first byte."""
        self.check(source)
        self.check_described(source.described)
        self.check_marks(source.described, [it.name for it in source.tensors])
        by_name = {it.name: it for it in source.tensors}
        moves = []
        for it in self.slots:
            given = by_name.get(it.name)
            if given is None or it.nbytes == 0:
                continue
            if it.address is not None:
                moves.append((it.address, given.address, it.nbytes))
            else:
                it.read_from(given.address, wait=False)
        _tensors.move_many(moves)
        self.settle()
        if source.described is not None:
            own = {it.name: it.obj for it in self.slots}
            self.assign(source.described.build(lambda ref: self.tensor_for(source.tensors, own, ref)))

    def tensor_for(self, givens: Sequence["Given"], own: Dict[str, Any], ref: "_Ref") -> Any:
        """The caller's tensor of this name; a new one for an optimizer that has none yet."""
        given = givens[ref.number]
        if given.name in own:
            return own[given.name]
        return given.copy(ref.mark)

    def _check_objects(self, node: Node, value: Any) -> None:
        if isinstance(node, ObjectNode):
            if node.fresh and not (isinstance(value, dict) and "param_groups" in value):
                raise Mismatch(f"{node.path or 'this'} is an optimizer, but not in the state")
            if node.optimizer and isinstance(value, dict):
                theirs = value.get("param_groups")
                if not isinstance(theirs, list) or len(theirs) != len(node.value.param_groups):
                    raise Mismatch(f"{node.path or 'this'}: the optimizer has other groups of "
                                   "parameters in the state")
        elif isinstance(node, DictNode) and isinstance(value, dict):
            for key, item in node.items.items():
                if key in value or _holds_object(item):
                    self._check_objects(item, value.get(key))
        elif isinstance(node, ListNode) and isinstance(value, (list, tuple)):
            for item, theirs in zip(node.items, value):
                self._check_objects(item, theirs)

    def settle(self) -> None:
        """Waits for copies to devices."""
        for it in self.slots:
            it.settle()

    def assign(self, value: Any) -> None:
        """Sets everything but the tensors, which are filled already, from the state's tree."""
        _assign(self.root, value)


def _holds_object(node: Node) -> bool:
    if isinstance(node, DictNode):
        return any(_holds_object(item) for item in node.items.values())
    if isinstance(node, ListNode):
        return any(_holds_object(item) for item in node.items)
    return isinstance(node, ObjectNode)


def _has_frozen(node: Node) -> bool:
    """Whether there is a scalar that no container could be given: in a tuple, at the top."""
    return (isinstance(node, ListNode) and isinstance(node.value, tuple)
            and any(isinstance(item, ScalarNode) or _has_frozen(item) for item in node.items))


def _assign(node: Optional[Node], value: Any) -> Any:
    """Sets scalars below a node; returns what belongs in its place."""
    if isinstance(node, TensorNode):
        return node.value
    if isinstance(node, ObjectNode):
        _assign_object(node, value)
        return node.value
    if isinstance(node, DictNode) and isinstance(value, dict):
        for key, item in value.items():
            new = _assign(node.items.get(key), item)
            if key not in node.value or node.value[key] is not new:
                node.value[key] = new
        return node.value
    if isinstance(node, ListNode) and isinstance(value, (list, tuple)):
        return _assign_list(node, value)
    return value


def _assign_list(node: ListNode, value: Sequence[Any]) -> Any:
    nodes: List[Optional[Node]] = [*node.items[: len(value)]]
    nodes += [None] * (len(value) - len(nodes))
    items = [_assign(child, item) for child, item in zip(nodes, value)]
    if isinstance(node.value, list):
        node.value[:] = items
        return node.value
    if len(items) == len(node.value) and all(a is b for a, b in zip(items, node.value)):
        return node.value
    if hasattr(node.value, "_fields"):
        return type(node.value)(*items)
    return tuple(items)


def _assign_object(node: ObjectNode, value: Any) -> None:
    if not isinstance(value, dict):
        return
    if node.fresh:
        node.value.load_state_dict(value)
    elif node.optimizer:
        _assign_optimizer(node.value, value)
    elif not _only_tensors(value):
        # Something else than parameters and buffers, which only the object can set.
        node.value.load_state_dict(value)


def _only_tensors(value: Dict[Any, Any]) -> bool:
    return all(_tensors.is_tensor(item) for item in value.values())


def _assign_optimizer(optimizer: Any, value: Dict[Any, Any]) -> None:
    """Sets the numbers of an optimizer whose tensors are filled. Its own load_state_dict() would
    copy all of them."""
    params: List[Any] = []
    for group, theirs in zip(optimizer.param_groups, value["param_groups"]):
        params += group["params"]
        for key, item in theirs.items():
            if key != "params":
                group[key] = item
    for number, entries in value.get("state", {}).items():
        if not isinstance(number, int) or not 0 <= number < len(params):
            continue
        for key, item in entries.items():
            optimizer.state[params[number]][key] = item


# --- what comes from outside ----------------------------------------------------------------------


class Given(NamedTuple):
    """A tensor of a state that is in memory: ``buffer`` keeps the memory; None if it is empty."""

    name: str
    dtype: DType
    shape: Tuple[int, ...]
    address: int
    buffer: Any

    def copy(self, mark: str) -> Any:
        """A tensor in memory of its own."""
        count = self.dtype.bytes
        for n in self.shape:
            count *= n
        if count == 0:
            return _tensors.make("t", None, self.dtype, self.shape, mark)
        address, keep = _tensors.memory(count)
        _tensors.move_many([(address, self.address, count)])
        return _tensors.make("t", keep, self.dtype, self.shape, mark)


class _Ref(NamedTuple):
    kind: str
    number: int
    mark: str


class Described:
    """The description of a tree, checked. ``root`` has a ``_Ref`` for each tensor."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def build(self, tensor: Callable[[_Ref], Any]) -> Any:
        """The tree, with the tensors that a function gives for each reference."""
        return _build(self.root, tensor)


def _build(node: Any, tensor: Callable[[_Ref], Any]) -> Any:
    if isinstance(node, _Ref):
        return tensor(node)
    if isinstance(node, dict):
        return {key: _build(item, tensor) for key, item in node.items()}
    if isinstance(node, (list, tuple)):
        return type(node)(_build(item, tensor) for item in node)
    return node


class Source(NamedTuple):
    """A state in memory."""

    tensors: List[Given]
    described: Optional[Described]

    def build(self) -> Any:
        """The tree of the state, with its tensors; without a description, a dict by their names."""
        if self.described is None:
            return {it.name: _tensors.make("t", it.buffer, it.dtype, it.shape, "")
                    for it in self.tensors}  # fmt: skip

        def tensor(ref: _Ref) -> Any:
            it = self.tensors[ref.number]
            return _tensors.make(ref.kind, it.buffer, it.dtype, it.shape, ref.mark)

        return self.described.build(tensor)


def describe(node: Node) -> Any:
    """The description of the caller's tree, for msgpack."""
    if isinstance(node, TensorNode):
        it = node.slot
        return [it.kind, it.index, it.mark] if it.mark else [it.kind, it.index]
    if isinstance(node, ObjectNode):
        return describe(node.inner)
    if isinstance(node, DictNode):
        flat: List[Any] = ["d"]
        for key, item in node.items.items():
            flat += [key, describe(item)]
        return flat
    if isinstance(node, ListNode):
        kind = "u" if isinstance(node.value, tuple) else "l"
        return [kind, *(describe(item) for item in node.items)]
    value = node.value
    if isinstance(value, complex):
        return ["c", value.real, value.imag]
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value) if -(2**63) <= value < 2**64 else ["i", str(value)]
    return value


class _Decoder:
    """Checks a description: every tensor once, under the path that is its name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self.seen: Dict[int, None] = {}

    def node(self, raw: Any, path: str) -> Any:
        if not isinstance(raw, list):
            if isinstance(raw, dict):
                raise ValueError("a map")
            return raw
        kind = raw[0] if raw else None
        if kind in ("t", "n", "a"):
            return self.tensor(raw, path)
        if kind == "d":
            return dict(self.pairs(raw, path))
        if kind in ("l", "u"):
            items = [self.node(item, _join(path, i)) for i, item in enumerate(raw[1:])]
            return tuple(items) if kind == "u" else items
        if kind == "i" and len(raw) == 2 and isinstance(raw[1], str) and len(raw[1]) <= DIGITS_MAX:
            return int(raw[1])
        if kind == "c" and len(raw) == 3 and all(isinstance(x, float) for x in raw[1:]):
            return complex(raw[1], raw[2])
        raise ValueError(f"an unknown kind at {path[:80]!r}")

    def pairs(self, raw: List[Any], path: str) -> Iterator[Tuple[Any, Any]]:
        if len(raw) % 2 != 1:
            raise ValueError("a key without a value")
        seen: Dict[Any, None] = {}
        for key, item in zip(raw[1::2], raw[2::2]):
            if not isinstance(key, (str, int, type(None))) or key in seen:
                raise ValueError(f"a wrong key at {path[:80]!r}")
            seen[key] = None
            yield key, self.node(item, _join(path, key))

    def tensor(self, raw: List[Any], path: str) -> _Ref:
        index = raw[1] if len(raw) in (2, 3) else None
        mark = raw[2] if len(raw) == 3 else ""
        if isinstance(index, bool) or not isinstance(index, int) or mark not in _tensors.MARKS:
            raise ValueError("a wrong tensor")
        if not 0 <= index < len(self.names) or index in self.seen:
            raise ValueError(f"tensor {index} of {len(self.names)}")
        if self.names[index] != (path or "value"):
            raise ValueError(f"tensor {index} is not at its path")
        self.seen[index] = None
        return _Ref(raw[0], index, mark)


def decode(metadata: bytes, names: Sequence[str]) -> Tuple[Optional[Described], Dict[str, Any]]:
    """The description in a state's metadata, if it has one, and the rest of the metadata. What is
    no description of these tensors is ``Corrupt``; metadata of another kind is empty here."""
    if not metadata:
        return None, {}
    try:
        top = _msgpack.decode(metadata)
    except (ValueError, RecursionError):
        return None, {}
    if not isinstance(top, dict):
        return None, {}
    rest = {key: item for key, item in top.items() if isinstance(key, str)}
    if KEY not in rest:
        return None, rest
    raw = rest.pop(KEY)
    try:
        if not isinstance(raw, list) or len(raw) != 2 or raw[0] != 1:
            raise ValueError("it is of another version")
        decoder = _Decoder(names)
        root = decoder.node(raw[1], "")
        if len(decoder.seen) != len(names):
            raise ValueError(f"it names {len(decoder.seen)} of {len(names)} tensors")
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"the state's description of its tree is wrong: {error}") from None
    return Described(root), rest


def encode(plan: Plan, metadata: Optional[Mapping[str, Any]]) -> bytes:
    """The metadata of a state: the caller's, and the description of the tree."""
    top = dict(metadata or {})
    if any(not isinstance(key, str) for key in top) or KEY in top:
        raise InvalidArgument(f"metadata is a dict whose keys are text; {KEY!r} is taken")
    top[KEY] = [1, describe(plan.root)]
    try:
        return _msgpack.encode(top)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"metadata: {error}") from None


def dtype_of(code: int) -> DType:
    """The type with a number of the library's."""
    if code not in DTYPES:
        raise Corrupt(f"the state has a tensor of a type that this module does not know: {code}")
    return DTYPES[code]
