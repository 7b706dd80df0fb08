"""A round's store as PyTorch wants it: its own TCPStore, connected to a gateway on loopback.

PyTorch's protocol has no place for a credential, so it stays inside the machine: each process that
takes part serves the store of the round on its own loopback, and passes every request on to rank 0
over one connection, sealed where the job has a credential.

PyTorch gets its own TCPStore, not a class of ours that derives from its Store: such a store calls
Python from threads of C++, and deadlocks where NCCL waits for it with the interpreter's lock held.
"""

import datetime
import threading
from typing import Any, List, Optional
from urllib.parse import parse_qsl

import torch
import torch.distributed as dist

from ._runtime import Runtime
from .rendezvous import Round
from .server import Server

LOOPBACK = "127.0.0.1"


_TIMEOUT = datetime.timedelta(seconds=300)

#: A TCPStore of older versions has a thread that ends the whole process when its server hangs up,
#: so a server may not end before its clients.
_SERVERS_MUST_STAY = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 4)
_kept: List[Server] = []


class Gateway:
    """A store of another host on this machine's loopback."""

    def __init__(self, url: str, runtime: Optional[Runtime]) -> None:
        self._server = Server(f"{LOOPBACK}:0", backing=url, drain_time=0.5, runtime=runtime)
        if _SERVERS_MUST_STAY:
            _kept.append(self._server)
            self._server._outlive_interpreter()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def connect(self, timeout: Optional[datetime.timedelta] = None) -> Any:
        """A TCPStore that is a client of it. Several processes count themselves in a TCPStore that
        knows how many there are; this one does not."""
        return dist.TCPStore(
            LOOPBACK,
            self.port,
            is_master=False,
            wait_for_workers=False,
            timeout=timeout or _TIMEOUT,
        )

    def close(self) -> None:
        """Ends it; clients lose their connections. Does not wait for that: rank 0 may have gone
        first, and then the end takes as long as a drain may."""
        if not _SERVERS_MUST_STAY:
            threading.Thread(target=self._server.close, name="muster-gateway", daemon=True).start()


def workers_gateway(round: Round, runtime: Optional[Runtime]) -> Gateway:
    """The store in which the workers of a round meet: rank 0 serves a new one in each round."""
    address, port = round.bootstrap
    host = f"[{address}]" if ":" in address and not address.startswith("[") else address
    return Gateway(f"tcp://{host}:{port}", runtime)


class AgentStore:
    """The round's own store for the agent. It is at the rendezvous, where the rounds are told apart
    by a prefix, so one connection serves them all: a TCPStore that connects asks the name service
    for the name of the other end first, which can take seconds."""

    def __init__(self, runtime: Optional[Runtime]) -> None:
        self._runtime = runtime
        self._url = ""
        self._gateway: Optional[Gateway] = None
        self._store: Any = None

    def prepare(self, endpoint: str) -> None:
        """Connects before there is a round, to the gateway, which connects to the rendezvous when
        it is there. Older versions must not: they end when the gateway gives up."""
        if not _SERVERS_MUST_STAY and "://" not in endpoint:
            host, colon, port = endpoint.rpartition(":")
            named = colon and port.isdigit() and (":" not in host or host.endswith("]"))
            self._connect(f"tcp://{endpoint}" if named else f"tcp://{endpoint}:29400")

    def _connect(self, url: str) -> None:
        self.close()
        self._gateway, self._url = Gateway(url, self._runtime), url
        self._store = self._gateway.connect()

    def of(self, round: Round) -> Any:
        """The store of a round."""
        url, _, options = round.store_url.partition("?")
        prefix = dict(parse_qsl(options)).get("prefix", "")
        if self._gateway is None or url != self._url or not self._works():
            self._connect(url)
        self._store.set_timeout(_TIMEOUT)  # agents change it, and may leave it so
        # Agents of 1.13 keep MASTER_ADDR there, and so does the rendezvous.
        return dist.PrefixStore(prefix + "/torch", self._store)

    def _works(self) -> bool:
        """Whether the connection has survived: the rendezvous may have been away."""
        try:
            self._store.set_timeout(datetime.timedelta(seconds=5))
            self._store.delete_key("muster/torch/works")  # 1.13 cannot ask whether a key exists
        except (RuntimeError, ValueError):  # PyTorch's errors of a store; those of 1.13 as well
            return False
        return True

    def close(self) -> None:
        """Hangs up."""
        gateway, self._gateway, self._store = self._gateway, None, None
        if gateway is not None:
            gateway.close()
