"""Reading a file of a state into a tree."""

from typing import Any, Dict, Optional, Tuple

from . import _landing, _lib, _tree
from ._runtime import call_interruptibly
from ._safetensors import read_head

__all__ = ["read", "read_with"]


def read_with(path: Any, into: Any = None) -> Tuple[Any, Dict[str, Any]]:
    """As ``read``, with the metadata beside the tree."""
    head = read_head(path)
    plan: Optional[_tree.Plan] = None if into is None else _tree.Plan(into)
    described, metadata = _tree.decode(head.metadata, [it.name for it in head.entries])
    if plan is not None:
        plan.check_writable()
        plan.check(_tree.Source([_tree.Given(*it[:3], 0, None) for it in head.entries], described))
        plan.check_described(described)
    landing = _landing.Landing(head.entries, plan)
    name = _lib.encoded(path)

    def reading() -> int:
        return int(_lib.lib.muster_state_read(name, landing.array, landing.count))

    call_interruptibly(reading, lambda code: None)
    if plan is None:
        return landing.source(described).build(), metadata
    landing.finish(described)
    return into, metadata


def read(path: Any, into: Any = None) -> Any:
    """Reads a safetensors file into a tree, in place as ``load`` does, or into a new one. Returns
    the tree."""
    return read_with(path, into)[0]
