"""muster: coordination for training jobs whose machines come and go.

The module is a thin layer over ``libmuster``. It needs no compiler and no other package::

    import muster

    with muster.Store("tcp://127.0.0.1:29500") as store:
        store.set("greeting", "hello")
        print(store.get("greeting"))

What is here:

``Store``       keys and values that the processes of a job share
``Server``      a store server inside this process
``Rendezvous``  the nodes of a job find each other
``rpc``         named workers that call each other
``state``       the weights of a model, shared with those that join
``average``     tensors, averaged with peers that train apart
``worker``      what a script can ask and tell the agent that runs it (``muster run``)
``torch``       backends for PyTorch: torchrun, init_process_group, checkpoints
``Runtime``     the thread that does the work, and the job's credential
``MusterError`` the base of all errors

Names are loaded when they are first used, so importing ``muster`` costs next to nothing.
"""

from __future__ import annotations

import os as _os
from _thread import RLock as _RLock

__version__ = "0.1.0"

TYPE_CHECKING = False  # typing takes longer to import than the rest of this package
if TYPE_CHECKING:
    from typing import Any, List

    from . import average as average
    from . import rpc as rpc
    from . import state as state
    from . import torch as torch
    from . import worker as worker
    from ._runtime import Runtime as Runtime
    from .errors import MusterError as MusterError
    from .rendezvous import Rendezvous as Rendezvous
    from .server import Server as Server
    from .store import Store as Store

_HOMES = {
    "Store": "store",
    "Server": "server",
    "Rendezvous": "rendezvous",
    "Runtime": "_runtime",
    "MusterError": "errors",
}
_MODULES = ("average", "rpc", "state", "worker", "torch", "errors")

__all__ = [*_HOMES, *_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


# A child of fork() cannot import what another thread of its parent was importing: the lock of that
# module came along, the thread did not. So no fork happens while something is loaded here.
_loading = _RLock()
_os.register_at_fork(
    before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
)


def _import(name: str) -> Any:
    with _loading:
        return getattr(__import__(f"{__name__}.{name}"), name)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(_import(_HOMES[name]), name)
        # While the interpreter ends nothing can be imported, but errors can still be caught.
        globals()["MusterError"] = _import("errors").MusterError
    elif name in _MODULES:
        value = _import(name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted([*globals(), *__all__])
