"""muster for PyTorch, 1.13 and later.

``torchrun --rdzv-backend=muster``
    torchrun's agents meet through muster's rendezvous (PyTorch 2.5 and later find it by
    themselves; ``python -m muster.torchrun`` does the same for those before).

``init_process_group(init_method="muster://HOST:PORT/ID?world_size=4")``
    after ``import muster.torch``, without a launcher. ``nodes=2:4`` lets the number of processes
    vary: a second ``init_process_group()`` joins the next round, ``rendezvous().ended()`` says when
    it is time for one.

``PeerReader``
    loads a distributed checkpoint from the processes that have it in memory.

``CheckpointTransport``
    the same for torchft.
"""

from typing import TYPE_CHECKING, Any, Callable

from ._torch_init import leave, register, rendezvous

if TYPE_CHECKING:
    from ._torch_checkpoint import PeerReader as PeerReader
    from ._torch_checkpoint import share_checkpoint as share_checkpoint
    from ._torch_ft import CheckpointTransport as CheckpointTransport

__all__ = [
    "CheckpointTransport",
    "PeerReader",
    "leave",
    "register",
    "rendezvous",
    "share_checkpoint",
    "torchrun_handler",
]

_HOMES = {
    "PeerReader": "_torch_checkpoint",
    "share_checkpoint": "_torch_checkpoint",
    "CheckpointTransport": "_torch_ft",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module("." + _HOMES[name], __package__), name)
    globals()[name] = value
    return value


def _create(params: Any) -> Any:
    from ._torch_handler import MusterRendezvousHandler

    return MusterRendezvousHandler(params)


def torchrun_handler() -> Callable[[Any], Any]:
    """The entry point ``muster`` of the group ``torchrun.handlers``: returns what makes the handler
    of an agent."""
    return _create


register()
