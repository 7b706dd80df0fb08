"""``init_process_group(init_method="muster://HOST:PORT/ID?...")``.

PyTorch loads this module with its own launcher (the entry point is in ``muster.torch``), so that it
must cost little: the library is loaded when a URL is used.
"""

import datetime
import importlib
import threading
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from ._torch_gateway import Gateway
    from .rendezvous import Rendezvous


class _Member:
    """This process in a run: it stays a member between two process groups, so that the second one
    is the next round of the first."""

    def __init__(self, rdzv: "Rendezvous") -> None:
        self.rdzv = rdzv
        self.gateway: "Optional[Gateway]" = None

    @property
    def usable(self) -> bool:
        return not self.rdzv.closed

    def next(self, timeout: Optional[datetime.timedelta]) -> Tuple[Any, int, int]:
        from ._torch_aloud import next_round
        from ._torch_gateway import workers_gateway

        if self.gateway is not None:
            self.gateway.close()
            self.gateway = None
        round = next_round(self.rdzv)
        self.gateway = workers_gateway(round, self.rdzv._runtime)
        return self.gateway.connect(timeout), round.rank, round.world_size

    def close(self) -> None:
        if self.gateway is not None:
            self.gateway.close()
            self.gateway = None
        self.rdzv.close()


#: PyTorch keeps the store and drops everything else that a handler yields. What serves the store
#: has to live as long, so it is kept here, until the process ends or leaves.
_members: Dict[Tuple[str, str], _Member] = {}
_latest: Optional[_Member] = None
_lock = threading.Lock()


def _number(options: Dict[str, str], key: str) -> Optional[int]:
    """PyTorch writes -1 for what the user did not give."""
    text = options.pop(key, "-1")
    try:
        value = int(text)
    except ValueError:
        raise ValueError(f"muster://: {key} must be a number: not {text!r}") from None
    return None if value == -1 else value


def _open(url: str, timeout: Optional[datetime.timedelta]) -> Tuple[_Member, Optional[int]]:
    """The member that the URL names, and the rank that it asks for."""
    from . import _torch_lock
    from .rendezvous import Rendezvous, parse_nodes

    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    run_id = unquote(parts.path.strip("/"))
    if not parts.netloc or not run_id:
        raise ValueError(f"muster://: give muster://HOST:PORT/RUN_ID?...: not {url!r}")
    rank, size = _number(options, "rank"), _number(options, "world_size")
    nodes = options.pop("nodes", None)
    if (nodes is None) == (size is None):
        raise ValueError(
            "muster://: say how many processes there are: world_size=N, or nodes=MIN:MAX if their "
            "number may vary"
        )
    if rank is not None and size is not None and not 0 <= rank < size:
        raise ValueError(f"muster://: rank {rank} is not a rank of {size} processes")
    if rank is not None and size is None:
        raise ValueError("muster://: a rank needs world_size; with nodes=MIN:MAX ranks are given")
    key = (parts.netloc, run_id)
    member = _members.get(key)
    if member is None or not member.usable:
        if rank is not None:
            options["topology"] = str(rank)  # by which the server orders the ranks that it gives
        if timeout is not None:
            options.setdefault("join_timeout", f"{max(1, round(timeout.total_seconds()))}")
        local_addr = options.pop("local_addr", None)
        runtime, rest = _torch_lock.split(options)
        member = _Member(
            Rendezvous(
                parts.netloc, run_id, parse_nodes(nodes if nodes is not None else size or 1),
                local_addr=local_addr, config=rest, runtime=runtime,
            )
        )  # fmt: skip
        _members[key] = member
    return member, rank


def handler(
    url: str, timeout: Optional[datetime.timedelta] = None, **_options: Any
) -> Iterator[Tuple[Any, int, int]]:
    """What PyTorch calls for a URL that begins with muster://."""
    global _latest
    with _lock:
        member, wanted = _open(url, timeout)
        _latest = member
    store, rank, size = member.next(timeout)
    if wanted is not None and wanted != rank:
        raise ValueError(
            f"muster://: the rendezvous gave rank {rank} to the process that asked for {wanted}: "
            "give a rank to all processes of the run, each another, or to none"
        )
    yield store, rank, size
    # PyTorch asks a second time only to form a group anew.
    raise RuntimeError("muster://: call init_process_group() again for the next round")


def rendezvous() -> "Optional[Rendezvous]":
    """The rendezvous of the latest init_process_group() with muster://."""
    member = _latest
    return member.rdzv if member is not None and member.usable else None


def leave() -> None:
    """Leaves all runs that init_process_group() has joined."""
    with _lock:
        members = [m for m in _members.values() if m.usable]
        _members.clear()
    for member in members:
        member.close()


def register() -> None:
    """Makes muster:// known to PyTorch. A second call does nothing."""
    # torch.distributed has a function of the same name, which hides the module.
    known = importlib.import_module("torch.distributed.rendezvous")
    if "muster" not in known._rendezvous_handlers:
        known.register_rendezvous_handler("muster", handler)
