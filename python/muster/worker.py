"""What a script can ask and tell the agent that runs it (``muster run``).

::

    from muster import worker

    for step in range(first, last):
        train(step)
        worker.step(step)                  # shown on the status page
        if worker.change_due() is not None:
            save()                         # nodes join or leave: the workers start again soon
            worker.saved()                 # nobody needs to wait for this one any more

Everything here may be called anywhere: without an agent a script is the only worker of its job, and
what would be told to the agent is told to nobody. Under torchrun the ranks are torchrun's.

Only the worker itself talks to its agent. In processes that it starts (the workers of a DataLoader,
for instance) ``change_due()``, ``saved()`` and ``step()`` do nothing.
"""

import os
import select
import socket
import stat
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional

if TYPE_CHECKING:
    from ._runtime import Runtime
    from .store import Store

__all__ = [
    "Peer",
    "change",
    "change_due",
    "grace",
    "local_rank",
    "local_world_size",
    "max_restarts",
    "node_count",
    "node_rank",
    "on_change",
    "peers",
    "rank",
    "restart_count",
    "round",
    "run_id",
    "running_under_muster",
    "saved",
    "step",
    "store",
    "wait_for_change",
    "world_size",
]


# --- what the environment says --------------------------------------------------------------------


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise ValueError(f"the variable {name} must be a number: not {text!r}") from None


def running_under_muster() -> bool:
    """Whether an agent of muster started this job (``muster run``)."""
    return "MUSTER_GRACE" in os.environ


def rank() -> int:
    """The rank of this worker in the world; 0 without an agent."""
    return _number("RANK", 0)


def world_size() -> int:
    """The number of workers on all nodes; 1 without an agent."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """The rank of this worker on its node; 0 without an agent."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    """The number of workers on this node; 1 without an agent."""
    return _number("LOCAL_WORLD_SIZE", 1)


def node_rank() -> int:
    """The rank of this node; 0 without an agent."""
    return _number("GROUP_RANK", 0)


def node_count() -> int:
    """The number of nodes; 1 without an agent."""
    return _number("GROUP_WORLD_SIZE", 1)


def run_id() -> str:
    """The id of the run; "" without an agent."""
    return os.environ.get("TORCHELASTIC_RUN_ID", "")


def round() -> int:
    """The round of the rendezvous that this worker belongs to: it grows whenever nodes join or are
    lost, and whenever workers fail. 0 without an agent, and under torchrun."""
    return _number("MUSTER_ROUND", 0)


def restart_count() -> int:
    """How often workers were restarted because some failed."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0)


def max_restarts() -> int:
    """How often workers may fail before the job does."""
    return _number("TORCHELASTIC_MAX_RESTARTS", 0)


def grace() -> float:
    """The seconds between SIGTERM and SIGKILL when the agent stops its workers."""
    return float(os.environ.get("MUSTER_GRACE") or 30)


# --- the other workers ----------------------------------------------------------------------------


def store(*, timeout: float = 300.0, runtime: "Optional[Runtime]" = None) -> "Store":
    """Opens the store that the workers of this round share (``MASTER_ADDR`` and ``MASTER_PORT``).
    Each round has a new one. Without an agent it is a store inside this process."""
    from .store import Store

    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port:
        return Store("hash:", timeout=timeout, runtime=runtime)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return Store(f"tcp://{host}:{port}", timeout=timeout, runtime=runtime)


class Peer(NamedTuple):
    """A worker of the round."""

    rank: int
    node_rank: int
    local_rank: int
    host: str
    pid: int


def peers(*, timeout: float = 300.0) -> List[Peer]:
    """The workers of this round, in the order of their ranks. All of them must call it, once: each
    says who it is, and waits for the others."""
    me = f"{node_rank()} {local_rank()} {os.getpid()} {socket.gethostname()}"
    begin = f"muster/worker/{restart_count()}/"
    with store(timeout=timeout) as shared:
        shared.set(f"{begin}{rank()}", me)
        values = shared.multi_get([f"{begin}{i}" for i in range(world_size())])
        # Rank 0's agent may serve the store, and end with its workers: nobody goes before all know.
        shared.barrier(f"{begin}known", world_size())
    found = []
    for number, value in enumerate(values):
        node, local, pid, host = value.decode().split(" ", 3)
        found.append(Peer(number, int(node), int(local), host, int(pid)))
    return found


# --- the channel to the agent ---------------------------------------------------------------------


def _is_ancestor(pid: int) -> bool:
    """Whether the process `pid` is above this one."""
    at = os.getppid()
    while at > 1 and at != pid:
        try:
            with open(f"/proc/{at}/stat", "rb") as file:
                # The second field is a name in brackets, which may contain anything.
                at = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return False
    return at == pid


def _is_child_of_python() -> bool:
    """Whether multiprocessing started this process: then its parent is the worker."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    return multiprocessing is not None and multiprocessing.parent_process() is not None


def _open_socket() -> Optional[socket.socket]:
    """The agent's end of MUSTER_NOTIFY_FD, if the descriptor is what the variable says. A process
    that a worker started may have the variable without the descriptor, whose number then belongs to
    something else."""
    text = os.environ.get("MUSTER_NOTIFY_FD", "")
    if not text.isdigit() or _is_child_of_python():
        return None
    try:
        if not stat.S_ISSOCK(os.fstat(int(text)).st_mode):
            return None
        channel = socket.socket(fileno=os.dup(int(text)))
    except OSError:
        return None
    try:
        if channel.family == socket.AF_UNIX:
            raw = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if _is_ancestor(struct.unpack("3i", raw)[0]):
                return channel
    except OSError:
        pass
    channel.close()
    return None


class _Channel:
    """The worker's conversation with its agent. Calls may come from any thread."""

    def __init__(self, channel: Optional[socket.socket]) -> None:
        self._socket = channel
        self._lock = threading.Lock()
        self._half = b""  # the beginning of a line
        self._asked = False
        self._due: Optional[float] = None  # when the workers are stopped, on the monotonic clock

    def say(self, line: bytes) -> None:
        """Tells the agent something, unless it does not listen. Never waits."""
        with self._lock:
            self._say(line)

    def _say(self, line: bytes) -> None:
        if self._socket is None:
            return
        try:
            self._socket.send(line, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            pass  # an agent that is stopped; the next line may reach it
        except OSError:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _hear(self) -> None:
        """Reads what the agent has said."""
        while self._socket is not None:
            try:
                got = self._socket.recv(4096, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                got = b""
            if not got:
                self._hang_up()
                return
            *lines, self._half = (self._half + got).split(b"\n")
            for line in lines:
                word, _, number = line.partition(b" ")
                if word == b"change" and number.isdigit():
                    self._due = time.monotonic() + int(number) / 1000

    def due(self) -> Optional[float]:
        """The seconds until the workers are stopped; None if that is not to come."""
        with self._lock:
            if not self._asked:
                self._asked = True
                self._say(b"notify\n")
            self._hear()
            return None if self._due is None else max(0.0, self._due - time.monotonic())

    def wait(self, timeout: Optional[float]) -> Optional[float]:
        """Waits until a change is due."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = self.due()
            rest = 0.2 if end is None else min(0.2, end - time.monotonic())
            if left is not None or rest <= 0:
                return left
            with self._lock:
                descriptor = -1 if self._socket is None else self._socket.fileno()
            if descriptor < 0:
                time.sleep(rest)
            else:
                # Another thread may read it first; so this one looks now and then.
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(rest * 1000)

    def saved(self) -> None:
        """Tells the agent that nobody needs to wait for this worker."""
        with self._lock:
            self._hear()
            if self._due is not None:
                self._due = None
                self._say(b"saved\n")


_channel: Optional[_Channel] = None
_channel_lock = threading.Lock()


def _get() -> _Channel:
    global _channel
    if _channel is None:
        with _channel_lock:
            if _channel is None:
                _channel = _Channel(_open_socket())
    return _channel


def _after_fork() -> None:
    """In a child: the conversation is the parent's."""
    global _channel, _channel_lock
    _channel = _Channel(None)
    _channel_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


# --- changes of the members, and steps ------------------------------------------------------------


def change_due() -> Optional[float]:
    """Whether the members will change: the seconds until the workers are stopped, so that they
    start again with the nodes that are there then; None if that is not to come. Cheap: call it
    after each step. The first call tells the agent that this worker wants to know. Then save, and
    call ``saved()``."""
    return _get().due()


def wait_for_change(timeout: Optional[float] = None) -> Optional[float]:
    """Waits until the members will change, and returns what ``change_due()`` does; None if nothing
    came within ``timeout`` seconds."""
    return _get().wait(timeout)


async def change() -> float:
    """Waits until the members will change, in asyncio; returns the seconds that are left."""
    import asyncio

    while True:
        left = change_due()
        if left is not None:
            return left
        await asyncio.sleep(0.05)


def on_change(save: Callable[[float], Any]) -> None:
    """Calls ``save(seconds_left)`` on a thread of its own whenever the members will change, and
    tells the agent when it has returned. For programs whose state can be saved at any time; others
    ask ``change_due()`` between two steps."""
    channel = _get()

    def follow() -> None:
        while channel._socket is not None:
            left = channel.wait(1.0)
            if left is not None:
                save(left)
                channel.saved()

    if channel._socket is not None:
        threading.Thread(target=follow, name="muster-on-change", daemon=True).start()


def saved() -> None:
    """Tells the agent that this worker has saved, and can be stopped. Without a change that is due
    it does nothing."""
    _get().saved()


def step(number: int) -> None:
    """Tells the agent that the step ``number`` is done. The status pages show it, and how long
    steps take."""
    if number < 0:
        raise ValueError(f"a step has a number of 0 or more: not {number}")
    _get().say(b"step %d\n" % number)
